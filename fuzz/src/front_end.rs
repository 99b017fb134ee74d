//! The hostile half of a virtio-fs device: a front end's connection, the memory that it hands over,
//! and the words of the guest's queues.
//!
//! Nothing here judges. What a script chooses may be right, nearly right, or nonsense; but each
//! message is whole, or the connection has ended behind it, so that nobody waits for the rest.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::Script;

/// The name of the guest's memory, by which it is found again where it must not be.
pub const NAME: &str = "atoll-fuzz-guest";
/// What the memory has where nothing was handed over.
pub const GUARD: u8 = 0x5a;

/// Numbers of messages.
pub mod say {
    #![allow(missing_docs)]
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_DEVICE_STATE_FD: u32 = 42;
    pub const CHECK_DEVICE_STATE: u32 = 43;
    pub const GET_SHMEM_CONFIG: u32 = 44;
    pub const LAST: u32 = 46;
}

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of each region.
pub const REGION: u64 = 64 << 10;
/// How many there are: queues, requests, data.
pub const REGIONS: usize = 3;
/// The front end's addresses are so much higher than the guest's.
const USER: u64 = 0x7f00_0000_0000;
/// Bytes between two queues.
pub const QUEUE: u64 = 0x4000;
/// Where the available and the used ring are.
pub const AVAILABLE: u64 = 0x1000;
/// See [`AVAILABLE`].
pub const USED: u64 = 0x2000;
/// Entries of a queue, unless the script says otherwise.
pub const SIZE: u16 = 64;

/// A region of memory: a file of its own, of which what is before and behind is not handed over.
pub struct Region {
    /// Its address in the guest.
    pub guest: u64,
    file: OwnedFd,
    /// It has been handed over, and not been taken back.
    pub given: bool,
    /// It was once.
    pub was_given: bool,
}

impl Region {
    /// All bytes of its file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; (REGION + 2 * PAGE) as usize];
        let len = rustix::io::pread(&self.file, &mut bytes, 0).unwrap_or(0);
        bytes.truncate(len);
        bytes
    }

    /// Whether nobody has written where nothing was handed over.
    pub fn is_guarded(&self) -> bool {
        let bytes = self.bytes();
        let inside = PAGE as usize..(PAGE + REGION) as usize;
        bytes.iter().enumerate().all(|(at, byte)| inside.contains(&at) || *byte == GUARD)
    }

    /// Cuts its file short, if it is not sealed.
    pub fn cut(&self, len: u64) {
        let _ = rustix::fs::ftruncate(&self.file, len);
    }
}

/// The guest's memory.
pub struct GuestMemory(pub [Region; REGIONS]);

impl GuestMemory {
    /// Memory of which some is sealed.
    ///
    /// # Panics
    /// When the machine has none.
    pub fn new(script: &mut Script<'_>) -> GuestMemory {
        let bits = script.byte();
        // Two lie side by side.
        let at = [0x1_0000, 0x1_0000 + REGION, 0x8000_0000];
        GuestMemory(std::array::from_fn(|number| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create(NAME, flags).expect("memory");
            let guard = [GUARD; PAGE as usize];
            rustix::fs::ftruncate(&file, REGION + 2 * PAGE).expect("memory");
            for at in [0, PAGE + REGION] {
                rustix::io::pwrite(&file, &guard, at).expect("memory");
            }
            if bits >> number & 1 == 0 {
                let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
                rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
            }
            Region { guest: at[number], file, given: false, was_given: false }
        }))
    }

    /// Writes at a guest's address what lies in one region.
    pub fn write(&self, addr: u64, bytes: &[u8]) {
        for region in &self.0 {
            let Some(offset) = addr.checked_sub(region.guest).filter(|at| *at < REGION) else {
                continue;
            };
            let len = bytes.len().min((REGION - offset) as usize);
            // A file that was cut stays so.
            let there = rustix::fs::fstat(&region.file).map_or(0, |stat| stat.st_size as u64);
            if PAGE + offset + len as u64 <= there {
                let _ = rustix::io::pwrite(&region.file, &bytes[..len], PAGE + offset);
            }
        }
    }

    /// The 16-bit word at a guest's address.
    pub fn word(&self, addr: u64) -> u16 {
        let mut bytes = [0; 2];
        for region in &self.0 {
            if let Some(offset) = addr.checked_sub(region.guest).filter(|at| *at < REGION) {
                let _ = rustix::io::pread(&region.file, &mut bytes, PAGE + offset);
            }
        }
        u16::from_le_bytes(bytes)
    }
}

/// The connection of a front end, both of whose ends are here.
pub struct FrontEnd {
    socket: UnixStream,
    /// The device's end, to see whether it has heard all.
    theirs: UnixStream,
    /// The record of what is in flight that the device has made last.
    pub record: Option<OwnedFd>,
    bells: [OwnedFd; 2],
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}

impl FrontEnd {
    /// A front end, and the device's end of its connection.
    ///
    /// # Panics
    /// When there are no descriptors left.
    pub fn new(record: Option<OwnedFd>) -> (FrontEnd, UnixStream) {
        let (socket, theirs) = UnixStream::pair().expect("two sockets");
        socket.set_nonblocking(true).expect("a socket");
        let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a bell");
        let device = theirs.try_clone().expect("a descriptor");
        (FrontEnd { socket, theirs, record, bells: [bell(), bell()] }, device)
    }

    /// Whether the device has heard all that was said.
    pub fn is_heard(&self) -> bool {
        rustix::io::ioctl_fionread(&self.theirs).is_ok_and(|count| count == 0)
    }

    /// Sends bytes with descriptors. A device that does not listen loses them.
    pub fn send(&self, bytes: &[u8], files: &[&OwnedFd]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: Vec<_> = files.iter().take(8).map(|file| file.as_fd()).collect();
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags) != Ok(bytes.len()) {
            self.hang_up();
        }
    }

    /// Says nothing any more.
    pub fn hang_up(&self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Sends a message that wants an answer.
    pub fn say(&self, number: u32, body: &[u8], files: &[&OwnedFd]) {
        let header = words(&[number, 1 | 8, body.len() as u32]);
        self.send(&[&header, body].concat(), files);
    }

    /// Hears what the device has said; keeps what it has handed over.
    pub fn hear(&mut self) {
        loop {
            let mut bytes = [0; 512];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            let heard = recvmsg(&self.socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC);
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = part {
                    self.record = files.last().or(self.record.take());
                }
            }
            if !heard.is_ok_and(|heard| heard.bytes > 0) {
                return;
            }
        }
    }

    /// The negotiation, as it should be.
    pub fn meet(&self, features: u64, protocol: u64) {
        self.say(say::SET_OWNER, &[], &[]);
        self.say(say::GET_FEATURES, &[], &[]);
        self.say(say::GET_PROTOCOL_FEATURES, &[], &[]);
        self.say(say::SET_PROTOCOL_FEATURES, &longs(&[protocol]), &[]);
        self.say(say::SET_FEATURES, &longs(&[features]), &[]);
    }

    /// Hands a region over, or takes it back.
    pub fn region(&self, region: &Region, number: u32, shift: [u64; 4]) {
        let [a, b, c, d] = shift;
        let body = longs(&[
            0,
            region.guest.wrapping_add(a),
            REGION.wrapping_add(b),
            (region.guest + USER).wrapping_add(c),
            PAGE.wrapping_add(d),
        ]);
        let file = [&region.file];
        self.say(number, &body, if number == say::ADD_MEM_REG { &file } else { &[] });
    }

    /// Hands over these regions instead of all.
    pub fn table(&self, regions: &[&Region], count: u32) {
        let mut body = words(&[count, 0]);
        for region in regions {
            body.extend(longs(&[region.guest, REGION, region.guest + USER, PAGE]));
        }
        let files: Vec<&OwnedFd> = regions.iter().map(|region| &region.file).collect();
        self.say(say::SET_MEM_TABLE, &body, &files);
    }

    /// Starts a queue of `size` entries whose parts are at `at`, from the entry `base` on.
    pub fn start(&self, queue: u32, size: u32, base: u32, at: u64) {
        self.say(say::SET_VRING_NUM, &words(&[queue, size]), &[]);
        self.say(say::SET_VRING_BASE, &words(&[queue, base]), &[]);
        let at = at.wrapping_add(USER);
        let (used, available) = (at.wrapping_add(USED), at.wrapping_add(AVAILABLE));
        let parts = [&words(&[queue, 0])[..], &longs(&[at, used, available, 0])].concat();
        self.say(say::SET_VRING_ADDR, &parts, &[]);
        self.bell(say::SET_VRING_CALL, queue);
        self.bell(say::SET_VRING_KICK, queue);
        self.say(say::SET_VRING_ENABLE, &words(&[queue, 1]), &[]);
    }

    /// Hands over a bell.
    pub fn bell(&self, number: u32, queue: u32) {
        let bell = &self.bells[usize::from(number == say::SET_VRING_CALL)];
        self.say(number, &longs(&[u64::from(queue & 0xff)]), &[bell]);
    }

    /// Says two words about a queue.
    pub fn queue(&self, number: u32, queue: u32, value: u32) {
        self.say(number, &words(&[queue, value]), &[]);
    }

    /// Asks for a record of what is in flight.
    pub fn ask_record(&self, queues: u16, size: u16) {
        let shape = u64::from(queues) | u64::from(size) << 16;
        self.say(say::GET_INFLIGHT_FD, &longs(&[0, 0, shape]), &[]);
    }

    /// Hands the record over.
    pub fn give_record(&self, offset: u64, queues: u16, size: u16) {
        if let Some(record) = &self.record {
            let shape = u64::from(queues) | u64::from(size) << 16;
            self.say(say::SET_INFLIGHT_FD, &longs(&[0, offset, shape]), &[record]);
        }
    }

    /// Changes a byte of the record.
    pub fn change_record(&self, at: u64, value: u8) {
        if let Some(record) = &self.record {
            let _ = rustix::io::pwrite(record, &[value], at);
        }
    }

    /// Hands over the connection of a window; its other end.
    ///
    /// # Panics
    /// When there are no descriptors left.
    pub fn window(&self) -> UnixStream {
        let (own, other) = UnixStream::pair().expect("two sockets");
        own.set_nonblocking(true).expect("a socket");
        self.say(say::SET_BACKEND_REQ_FD, &[], &[&other.into()]);
        own
    }

    /// Has a file for a bell that is none.
    pub fn false_bell(&self, number: u32, queue: u32, memory: &GuestMemory) {
        self.say(number, &longs(&[u64::from(queue)]), &[&memory.0[0].file]);
    }
}
