//! A guest without a machine: a process that is a driver of virtio-fs, over vhost-user, so that the
//! device works at the speed of this machine. Sends what Linux sends, in the pieces in which it
//! does: header, arguments, then the data in pages.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use atoll_host::shm::SharedMemory;
use atoll_transport::Shared;
use atoll_transport::channel::Mapped;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::record::Broken;

/// The most data of one request or answer, in bytes.
pub const DATA_MAX: usize = 1 << 20;
const PAGE: usize = 4096;
/// Entries of each queue.
const SIZE: u16 = 1024;
/// Where the memory is in the guest, and in the front end.
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;
/// Each queue's parts, then the request's places.
const QUEUE: usize = 0x1_0000;
const AVAILABLE: usize = 0x8000;
const USED: usize = 0xa000;
const MESSAGE: usize = 2 * QUEUE;
const ANSWER: usize = MESSAGE + 2 * PAGE;
const OUT: usize = 0x10_0000;
const IN: usize = 0x20_0000;
const TOTAL: usize = 0x30_0000;
/// Flags of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

const F_PROTOCOL: u64 = 1 << 30;
const F_VERSION_1: u64 = 1 << 32;
/// The header of a request, and of an answer.
const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// How long an answer is looked for before the driver sleeps, as a guest's processor goes on for a
/// while before it halts.
const SPIN: Duration = Duration::from_micros(20);
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

fn failed(what: &str) -> impl Fn(vhost::Error) -> Broken + '_ {
    move |error| Broken(format!("{what}: {error}"))
}

struct Queue {
    kick: EventFd,
    call: EventFd,
    next: u16,
    used: u16,
}

/// A driver and its memory.
pub struct Driver {
    front_end: Frontend,
    /// The connection.
    socket: UnixStream,
    /// Ready when the device rings a queue, or hangs up.
    sleep: Epoll,
    memory: SharedMemory,
    queues: [Queue; 2],
    unique: u64,
    /// Requests that have had their answer.
    pub messages: u64,
}

impl Driver {
    /// Sets the device at `path` up, whoever made it.
    pub fn connect(path: &Path) -> Result<Driver, Broken> {
        let socket = UnixStream::connect(path)?;
        let mut front_end = Frontend::from_stream(socket.try_clone()?, 2);
        front_end.set_owner().map_err(failed("SET_OWNER"))?;
        let offered = front_end.get_features().map_err(failed("GET_FEATURES"))?;
        let features = (F_VERSION_1 | F_PROTOCOL) & offered;
        if features & F_PROTOCOL != 0 {
            let what = "protocol features";
            let offered = front_end.get_protocol_features().map_err(failed(what))?;
            let wanted = VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK;
            front_end.set_protocol_features(offered & wanted).map_err(failed(what))?;
            if offered.contains(VhostUserProtocolFeatures::REPLY_ACK) {
                front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
            }
        }
        front_end.set_features(features).map_err(failed("SET_FEATURES"))?;
        let memory = SharedMemory::create("guest", TOTAL)?;
        let bell = || EventFd::new(EFD_NONBLOCK);
        let queue = || Ok::<_, Broken>(Queue { kick: bell()?, call: bell()?, next: 0, used: 0 });
        let queues = [queue()?, queue()?];
        let sleep = Epoll::new()?;
        let bells = queues.iter().map(|queue| (queue.call.as_raw_fd(), EventSet::IN));
        for (file, event) in bells.chain([(socket.as_raw_fd(), EventSet::READ_HANG_UP)]) {
            sleep.ctl(ControlOperation::Add, file, EpollEvent::new(event, file as u64))?;
        }
        let (unique, messages) = (0, 0);
        let mut driver = Driver { front_end, socket, sleep, memory, queues, unique, messages };
        driver.set_up()?;
        Ok(driver)
    }

    fn set_up(&mut self) -> Result<(), Broken> {
        let Driver { front_end, memory, queues, .. } = self;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST,
            memory_size: TOTAL as u64,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: memory.as_fd().as_raw_fd(),
        };
        front_end.set_mem_table(&[region]).map_err(failed("SET_MEM_TABLE"))?;
        for (index, queue) in queues.iter().enumerate() {
            let at = USER + (QUEUE * index) as u64;
            let parts = VringConfigData {
                queue_max_size: SIZE,
                queue_size: SIZE,
                flags: 0,
                desc_table_addr: at,
                used_ring_addr: at + USED as u64,
                avail_ring_addr: at + AVAILABLE as u64,
                log_addr: None,
            };
            let what = "a queue";
            front_end.set_vring_num(index, SIZE).map_err(failed(what))?;
            front_end.set_vring_base(index, 0).map_err(failed(what))?;
            front_end.set_vring_addr(index, &parts).map_err(failed(what))?;
            front_end.set_vring_call(index, &queue.call).map_err(failed(what))?;
            front_end.set_vring_kick(index, &queue.kick).map_err(failed(what))?;
            front_end.set_vring_enable(index, true).map_err(failed(what))?;
        }
        Ok(())
    }

    fn shared(&self) -> Shared<'_> {
        self.memory.shared()
    }

    /// Where answers' data is.
    pub fn answer_data(&self, out: &mut [u8]) {
        self.shared().read(IN, out);
    }

    /// Places the data of the next write.
    pub fn place_data(&self, data: &[u8]) {
        self.shared().write(OUT, data);
    }

    /// Offers a chain of parts by queue number `number`, and rings if the device wants that.
    fn offer(&mut self, number: usize, parts: &[(usize, usize, u16)]) -> Result<(), Broken> {
        let base = QUEUE * number;
        let shared = self.memory.shared();
        for (index, (at, len, flags)) in parts.iter().enumerate() {
            let more = if index + 1 < parts.len() { NEXT } else { 0 };
            let place = base + 16 * index;
            shared.u64(place).store(GUEST + *at as u64, Ordering::Relaxed);
            shared.u32(place + 8).store(*len as u32, Ordering::Relaxed);
            shared.u16(place + 12).store(flags | more, Ordering::Relaxed);
            shared.u16(place + 14).store(index as u16 + 1, Ordering::Relaxed);
        }
        let queue = &mut self.queues[number];
        let ring = base + AVAILABLE;
        shared.u16(ring + 4 + 2 * usize::from(queue.next % SIZE)).store(0, Ordering::Relaxed);
        queue.next = queue.next.wrapping_add(1);
        shared.u16(ring + 2).store(queue.next, Ordering::Release);
        fence(Ordering::SeqCst);
        let silent = shared.u16(base + USED).load(Ordering::Acquire) & 1 != 0;
        if !silent {
            queue.kick.write(1)?;
        }
        Ok(())
    }

    /// Waits for the answer of queue number `number`: its length.
    fn wait(&mut self, number: usize) -> Result<usize, Broken> {
        let base = QUEUE * number + USED;
        let begin = Instant::now();
        loop {
            let queue = &mut self.queues[number];
            let shared = self.memory.shared();
            if shared.u16(base + 2).load(Ordering::Acquire) != queue.used {
                let entry = base + 4 + 8 * usize::from(queue.used % SIZE);
                queue.used = queue.used.wrapping_add(1);
                self.messages += 1;
                return Ok(shared.u32(entry + 4).load(Ordering::Relaxed) as usize);
            }
            let waited = begin.elapsed();
            if waited < SPIN {
                std::hint::spin_loop();
                continue;
            }
            if waited > PATIENCE {
                return Err(Broken("the device does not answer".into()));
            }
            let mut events = [EpollEvent::default(); 2];
            let count = self.sleep.wait(1000, &mut events)?;
            let gone = self.socket.as_raw_fd() as u64;
            if events[..count].iter().any(|event| event.data() == gone) {
                return Err(Broken("the device has hung up".into()));
            }
            let _ = queue.call.read();
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
        match self.try_ask(opcode, ino, body, data, room)? {
            Ok(answer) => Ok(answer),
            Err(error) => Err(Broken(format!("request {opcode} comes to error {error}"))),
        }
    }

    /// The same, with the error that the answer is.
    #[allow(clippy::type_complexity)]
    pub fn try_ask(
        &mut self,
        opcode: u32,
        ino: u64,
        body: &[u8],
        data: usize,
        room: usize,
    ) -> Result<Result<(Vec<u8>, usize), i32>, Broken> {
        let len = self.message(opcode, ino, body, data);
        let mut parts = Vec::with_capacity(8);
        parts.push((MESSAGE, IN_HEADER, 0));
        if len > IN_HEADER {
            parts.push((MESSAGE + IN_HEADER, len - IN_HEADER, 0));
        }
        let pages = |from: usize, len: usize, flags: u16| {
            (0..len).step_by(PAGE).map(move |at| (from + at, PAGE.min(len - at), flags))
        };
        parts.extend(pages(OUT, data, 0));
        parts.push((ANSWER, OUT_HEADER, WRITE));
        // Where data is asked for there are no arguments.
        match room {
            0 => parts.push((ANSWER + OUT_HEADER, PAGE, WRITE)),
            _ => parts.extend(pages(IN, room, WRITE)),
        }
        self.offer(1, &parts)?;
        let len = self.wait(1)?;
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
            return Ok(Err(-error));
        }
        let rest = said - OUT_HEADER;
        if room > 0 {
            return Ok(Ok((Vec::new(), rest)));
        }
        let mut arguments = vec![0; rest];
        self.shared().read(ANSWER + OUT_HEADER, &mut arguments);
        Ok(Ok((arguments, 0)))
    }

    /// Says that `lookups` of an inode are forgotten, by the queue of high priority.
    pub fn forget(&mut self, ino: u64, lookups: u64) -> Result<(), Broken> {
        const FORGET: u32 = 2;
        let len = self.message(FORGET, ino, &lookups.to_le_bytes(), 0);
        self.offer(0, &[(MESSAGE, len, 0)])?;
        self.wait(0).map(drop)
    }
}
