//! A guest without a machine: a process that is a driver of virtio-fs, over vhost-user, so that the
//! device works at the speed of this machine. Sends what Linux sends, in the pieces in which it
//! does: header, arguments, then the data in pages; and wants an interrupt for each answer.

use std::path::Path;
use std::time::{Duration, Instant};

use atoll_host::guest::{Shares, VhostUser};
use atoll_host::shm::SharedMemory;
use atoll_transport::Shared;
use atoll_transport::channel::Mapped;
use atoll_virtio::device::features;
use atoll_virtio::queue::{Part, QueueOptions};
use atoll_virtio::{Device, DeviceError, Platform, Queue, Region};

use crate::record::Broken;

/// The most data of one request or answer, in bytes.
pub const DATA_MAX: usize = 1 << 20;
const PAGE: usize = 4096;
/// The most parts of a chain: header and arguments of both ways, and the data.
const PARTS: u16 = (DATA_MAX / PAGE) as u16 + 4;
/// The request's places.
const MESSAGE: usize = 0;
const ANSWER: usize = MESSAGE + 2 * PAGE;
const OUT: usize = 0x10_0000;
const IN: usize = 0x20_0000;
const TOTAL: usize = 0x30_0000;

/// The header of a request, and of an answer.
const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// How long an answer is looked for before the driver sleeps, as a guest's processor goes on for a
/// while before it halts.
const SPIN: Duration = Duration::from_micros(20);

/// The queues: of high priority, and for all else.
const HIGH: u16 = 0;
const REQUESTS: u16 = 1;

fn failed(error: DeviceError) -> Broken {
    Broken(format!("the device: {error}"))
}

/// A driver and its memory.
pub struct Driver {
    device: VhostUser,
    queues: [Queue<SharedMemory>; 2],
    places: Region<SharedMemory>,
    unique: u64,
}

impl Driver {
    /// Sets the device at `path` up, whoever made it.
    pub fn connect(path: &Path) -> Result<Driver, Broken> {
        let mut shares = Shares::default();
        let mut device = VhostUser::connect(path, &shares)?;
        if device.begin().map_err(failed)? & features::VERSION_1 == 0 {
            return Err(failed(DeviceError::Unsupported));
        }
        // All devices have the same then.
        device.accept(features::VERSION_1).map_err(failed)?;
        let mut queue = |number| {
            let size = device.queue_size(number);
            let (indirect, event_index) = (false, false);
            let options = QueueOptions { size, parts_max: PARTS, indirect, event_index };
            let queue = Queue::new(&mut shares, options).ok_or(DeviceError::NoMemory)?;
            device.start_queue(number, size, &queue.addresses())?;
            Ok(queue)
        };
        let queues = [queue(HIGH).map_err(failed)?, queue(REQUESTS).map_err(failed)?];
        let places = shares.share(TOTAL).ok_or_else(|| failed(DeviceError::NoMemory))?;
        device.start().map_err(failed)?;
        Ok(Driver { device, queues, places, unique: 0 })
    }

    fn shared(&self) -> Shared<'_> {
        self.places.memory().shared()
    }

    /// Where answers' data is.
    pub fn answer_data(&self, out: &mut [u8]) {
        self.shared().read(IN, out);
    }

    /// Places the data of the next write.
    pub fn place_data(&self, data: &[u8]) {
        self.shared().write(OUT, data);
    }

    /// Offers a chain by queue number `number`, rings if the device wants that, and waits for the
    /// answer: its length.
    fn call(&mut self, number: u16, out: &[Part], into: &[Part]) -> Result<usize, Broken> {
        let queue = &mut self.queues[usize::from(number)];
        queue.offer(out, into).map_err(|error| Broken(format!("a chain: {error:?}")))?;
        if queue.must_ring() {
            self.device.ring(number);
        }
        let begin = Instant::now();
        loop {
            match queue.take().map_err(|_| failed(DeviceError::Broken))? {
                Some(used) => {
                    queue.free(used.head);
                    return Ok(used.written);
                }
                None if begin.elapsed() < SPIN => std::hint::spin_loop(),
                None => self.device.sleep(number).map_err(failed)?,
            }
        }
    }

    fn message(&mut self, opcode: u32, ino: u64, body: &[u8], data: usize) -> usize {
        self.unique += 2;
        let len = IN_HEADER + body.len();
        let mut message = Vec::with_capacity(len);
        message.extend(((len + data) as u32).to_le_bytes());
        message.extend(opcode.to_le_bytes());
        message.extend(self.unique.to_le_bytes());
        message.extend(ino.to_le_bytes());
        message.extend([0u32, 0, 1, 0].map(u32::to_le_bytes).as_flattened());
        message.extend(body);
        self.shared().write(MESSAGE, &message);
        len
    }

    /// Asks, with `data` bytes of the place for them, for an answer of which `room` bytes may be
    /// data. Returns the answer's arguments, and how many bytes of data there are.
    pub fn ask(
        &mut self,
        opcode: u32,
        ino: u64,
        body: &[u8],
        data: usize,
        room: usize,
    ) -> Result<(Vec<u8>, usize), Broken> {
        let len = self.message(opcode, ino, body, data);
        let places = &self.places;
        let pages = |from: usize, len: usize| {
            (0..len).step_by(PAGE).map(move |at| places.part(from + at, PAGE.min(len - at)))
        };
        let mut out = vec![places.part(MESSAGE, IN_HEADER)];
        out.extend((len > IN_HEADER).then(|| places.part(MESSAGE + IN_HEADER, len - IN_HEADER)));
        out.extend(pages(OUT, data));
        let mut into = vec![places.part(ANSWER, OUT_HEADER)];
        // Where data is asked for there are no arguments.
        match room {
            0 => into.push(places.part(ANSWER + OUT_HEADER, PAGE)),
            _ => into.extend(pages(IN, room)),
        }
        let len = self.call(REQUESTS, &out, &into)?;
        let mut header = [0; OUT_HEADER];
        self.shared().read(ANSWER, &mut header);
        let error = i32::from_le_bytes(header[4..8].try_into().expect("4 bytes"));
        let said = u32::from_le_bytes(header[..4].try_into().expect("4 bytes")) as usize;
        if len < OUT_HEADER || said < OUT_HEADER || said > OUT_HEADER + PAGE.max(room) {
            return Err(Broken(format!(
                "the answer to request {opcode} is {len} bytes and says {said}"
            )));
        }
        if error != 0 {
            return Err(Broken(format!("request {opcode} comes to error {}", -error)));
        }
        let rest = said - OUT_HEADER;
        if room > 0 {
            return Ok((Vec::new(), rest));
        }
        let mut arguments = vec![0; rest];
        self.shared().read(ANSWER + OUT_HEADER, &mut arguments);
        Ok((arguments, 0))
    }

    /// Says that `lookups` of an inode are forgotten, by the queue of high priority.
    pub fn forget(&mut self, ino: u64, lookups: u64) -> Result<(), Broken> {
        const FORGET: u32 = 2;
        let len = self.message(FORGET, ino, &lookups.to_le_bytes(), 0);
        let out = [self.places.part(MESSAGE, len)];
        self.call(HIGH, &out, &[]).map(drop)
    }
}
