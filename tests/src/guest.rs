//! A virtual machine without a machine: a front end of vhost-user with a driver of virtio-fs, whose
//! memory is a memfd that it reads and writes by system calls.
//!
//! As a driver it keeps the rules ([`Guest::ask`], and the [`Transport`]); below that are the words
//! of its queues, for tests that break them. `moving` takes it to another device, `dirty_log` is
//! told which pages the device writes.

mod dirty_log;
mod moving;

use std::collections::HashMap;
use std::fs::File;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use atoll_transport::{Lost, Received, SendError, Token, Transport};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::window::Window;

pub use dirty_log::{DirtyLog, PAGE};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the memory is in the guest, and in the front end.
pub const MEMORY: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;
const MEMORY_LEN: u64 = 48 << 20;
/// Each queue's parts.
const QUEUE: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x8000;
const USED: u64 = 0xa000;
/// Each request's place: a table of descriptors, its message, its data, and both of its answer.
const SLOTS: u64 = 0x20_0000;
const SLOT: u64 = 0x40_0000;
const SLOT_COUNT: u16 = 10;
const MESSAGE: u64 = 0x1000;
const ANSWER: u64 = 0x2000;
const DATA: u64 = 0x10_0000;
const ROOM: u64 = 0x20_0000;
/// The places of buffers for notices.
const NOTICES: u64 = 0x2c0_0000;
/// The bytes of each.
pub const NOTICE_ROOM: u32 = 4096;
/// The most data of one request or answer, in bytes.
pub const DATA_MAX: usize = 1 << 20;

/// Flags of descriptors.
pub const NEXT: u16 = 1;
/// The device writes it.
pub const WRITE: u16 = 2;
/// It is a table of others.
pub const INDIRECT: u16 = 4;

const F_NOTIFICATION: u64 = 1;
const F_INDIRECT: u64 = 1 << 28;
const F_EVENT_INDEX: u64 = 1 << 29;
const F_PROTOCOL: u64 = 1 << 30;
const F_VERSION_1: u64 = 1 << 32;

/// How a guest is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Entries of each queue.
    pub size: u16,
    /// Queues, with that of high priority.
    pub queues: usize,
    /// Whether its memory is sealed against being cut short.
    pub sealed: bool,
    /// Whether chains lie in tables of their own.
    pub indirect: bool,
    /// Whether both sides say what they want to hear of.
    pub event_index: bool,
    /// Whether regions of memory come one by one.
    pub slots: bool,
    /// Whether it has a window for files that are mapped.
    pub window: bool,
    /// Whether it takes notices of changes, by a queue between that of high priority and those for
    /// requests.
    pub notices: bool,
}

impl Setup {
    /// The features that the guest and its front end take.
    fn features(&self) -> u64 {
        let mut features = F_VERSION_1 | F_PROTOCOL;
        features |= if self.indirect { F_INDIRECT } else { 0 };
        features |= if self.event_index { F_EVENT_INDEX } else { 0 };
        features | if self.notices { F_NOTIFICATION } else { 0 }
    }
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            size: 64,
            queues: 2,
            sealed: true,
            indirect: true,
            event_index: true,
            slots: true,
            window: false,
            notices: false,
        }
    }
}

struct Ring {
    kick: EventFd,
    call: EventFd,
    available: u16,
    used: u16,
    /// Where it was stopped.
    base: u16,
}

/// A guest with its front end.
pub struct Guest {
    front_end: Frontend,
    socket: UnixStream,
    memory: File,
    /// Bytes that it has got since.
    grown: u64,
    setup: Setup,
    record: Option<(VhostUserInflight, File)>,
    /// The device marks what it writes, of each used ring at this distance from where that is.
    logs: Option<u64>,
    rings: Vec<Ring>,
    free: Vec<u16>,
    unique: u64,
    /// By slot: how much data the answer may have.
    rooms: HashMap<u16, usize>,
    /// By slot: bytes of the answer.
    answers: HashMap<u16, usize>,
}

impl Guest {
    /// Sets a guest up with the device at `path`.
    ///
    /// # Panics
    /// When the back end does not keep its half of vhost-user.
    pub fn connect(path: &Path, setup: Setup) -> Guest {
        let mut guest = Guest::meet(path, setup, memory(setup));
        guest.begin();
        guest
    }

    /// The same, with a record of what is in flight.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn connect_with_record(path: &Path, setup: Setup) -> Guest {
        let mut guest = Guest::meet(path, setup, memory(setup));
        let asked = VhostUserInflight::new(0, 0, setup.queues as u16, setup.size);
        guest.record = Some(guest.front_end.get_inflight_fd(&asked).expect("GET_INFLIGHT_FD"));
        guest.begin();
        guest
    }

    /// Loses the connection and connects again: its memory, and the record, stay.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn connect_again(&mut self, path: &Path) {
        // A device has one front end at a time.
        let _ = self.socket.shutdown(Shutdown::Both);
        let memory = self.memory.try_clone().expect("a descriptor");
        let Guest { front_end, socket, .. } = Guest::meet(path, self.setup, memory.into());
        (self.front_end, self.socket) = (front_end, socket);
        self.begin();
    }

    /// Loses the connection and stays away.
    ///
    /// # Panics
    /// When there is none.
    pub fn go_away(&self) {
        self.socket.shutdown(Shutdown::Both).expect("a connection");
    }

    /// Has no record of what is in flight any more.
    pub fn lose_record(&mut self) {
        self.record = None;
    }

    /// The place of the message in this slot.
    pub fn message(&self, slot: u16) -> u64 {
        MEMORY + SLOTS + SLOT * u64::from(slot) + MESSAGE
    }

    /// Connects without setting up anything but features.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    fn meet(path: &Path, setup: Setup, memory: OwnedFd) -> Guest {
        let socket = UnixStream::connect(path).expect("a device");
        let front = socket.try_clone().expect("a descriptor");
        let mut front_end = Frontend::from_stream(front, setup.queues as u64);
        front_end.set_owner().expect("SET_OWNER");
        let offered = front_end.get_features().expect("GET_FEATURES");
        let features = setup.features();
        assert_eq!(features & !offered, 0, "offered: {offered:x}");
        let protocol = front_end.get_protocol_features().expect("GET_PROTOCOL_FEATURES");
        let mut wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::DEVICE_STATE
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE;
        if setup.window {
            wanted |= VhostUserProtocolFeatures::SHMEM
                | VhostUserProtocolFeatures::BACKEND_REQ
                | VhostUserProtocolFeatures::BACKEND_SEND_FD;
        }
        assert!(protocol.contains(wanted), "{protocol:?}");
        front_end.set_protocol_features(wanted).expect("SET_PROTOCOL_FEATURES");
        front_end.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
        front_end.set_features(features).expect("SET_FEATURES");
        let bell = || EventFd::new(EFD_NONBLOCK).expect("an eventfd");
        let ring = |_| Ring { kick: bell(), call: bell(), available: 0, used: 0, base: 0 };
        Guest {
            front_end,
            socket,
            memory: memory.into(),
            grown: 0,
            setup,
            record: None,
            logs: None,
            rings: (0..setup.queues).map(ring).collect(),
            free: (0..SLOT_COUNT).rev().collect(),
            unique: 0,
            rooms: HashMap::new(),
            answers: HashMap::new(),
        }
    }

    /// Opens its window, which has to have `len` bytes.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn open_window(&mut self, len: u64) -> Window {
        let config = self.front_end.get_shmem_config().expect("GET_SHMEM_CONFIG");
        assert_eq!((config.nregions, config.memory_sizes[0]), (1, len));
        let (window, other) = Window::new();
        self.front_end.set_backend_request_fd(&other).expect("SET_BACKEND_REQ_FD");
        window
    }

    /// Has memory more, as when the front end shows it a range.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn grow(&mut self) {
        self.grown += MEMORY_LEN;
        let memory: File = memory(self.setup).into();
        let mut region = self.region();
        region.guest_phys_addr += self.grown;
        region.userspace_addr += self.grown;
        region.mmap_handle = memory.as_raw_fd();
        self.front_end.add_mem_region(&region).expect("ADD_MEM_REG");
    }

    /// The region that the memory is.
    fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: MEMORY,
            memory_size: MEMORY_LEN,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: self.memory.as_raw_fd(),
        }
    }

    /// Hands over memory, record and queues.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    fn begin(&mut self) {
        self.hand_memory();
        if let Some((record, file)) = &self.record {
            self.front_end.set_inflight_fd(record, file.as_raw_fd()).expect("SET_INFLIGHT_FD");
        }
        for queue in 0..self.rings.len() {
            self.start(queue, self.rings[queue].used);
        }
    }

    /// Hands over memory.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    fn hand_memory(&mut self) {
        if self.setup.slots {
            assert!(self.front_end.get_max_mem_slots().expect("GET_MAX_MEM_SLOTS") >= 8);
            let region = self.region();
            self.front_end.add_mem_region(&region).expect("ADD_MEM_REG");
        } else {
            self.front_end.set_mem_table(&[self.region()]).expect("SET_MEM_TABLE");
        }
    }

    /// Starts a queue whose next entry is `base`.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn start(&mut self, queue: usize, base: u16) {
        let size = self.setup.size;
        let parts = self.parts(queue);
        let front_end = &mut self.front_end;
        front_end.set_vring_num(queue, size).expect("SET_VRING_NUM");
        front_end.set_vring_base(queue, base).expect("SET_VRING_BASE");
        front_end.set_vring_addr(queue, &parts).expect("SET_VRING_ADDR");
        let ring = &self.rings[queue];
        front_end.set_vring_call(queue, &ring.call).expect("SET_VRING_CALL");
        front_end.set_vring_kick(queue, &ring.kick).expect("SET_VRING_KICK");
        front_end.set_vring_enable(queue, true).expect("SET_VRING_ENABLE");
    }

    /// Where the parts of a queue are.
    fn parts(&self, queue: usize) -> VringConfigData {
        let at = USER + QUEUE * queue as u64;
        let used = self.table(queue) + USED;
        VringConfigData {
            queue_max_size: self.setup.size,
            queue_size: self.setup.size,
            flags: u32::from(self.logs.is_some()),
            desc_table_addr: at,
            used_ring_addr: at + USED,
            avail_ring_addr: at + AVAILABLE,
            log_addr: self.logs.map(|distance| used.wrapping_add(distance)),
        }
    }

    /// Stops a queue; its next entry.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn stop(&mut self, queue: usize) -> u16 {
        let base = self.front_end.get_vring_base(queue).expect("GET_VRING_BASE") as u16;
        self.rings[queue].base = base;
        base
    }

    /// Takes the memory away, as REM_MEM_REG does.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn withdraw(&mut self) {
        let region = self.region();
        self.front_end.remove_mem_region(&region).expect("REM_MEM_REG");
    }

    /// Says RESET_DEVICE, and starts the guest anew.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn reset_device(&mut self) {
        self.front_end.reset_device().expect("RESET_DEVICE");
        self.reset();
    }

    /// The first queue for requests.
    pub fn requests(&self) -> usize {
        1 + usize::from(self.setup.notices)
    }

    /// Whether virtio-fs's feature for notices is offered.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn is_offered_notices(&mut self) -> bool {
        self.front_end.get_features().expect("GET_FEATURES") & F_NOTIFICATION != 0
    }

    /// Offers the buffer for notices with this number, of `room` bytes.
    pub fn offer_buffer(&mut self, number: u16, room: u32) {
        let at = MEMORY + NOTICES + u64::from(NOTICE_ROOM) * u64::from(number);
        self.describe(self.table(1), number, (at, room, WRITE, 0));
        self.offer(1, number);
    }

    /// A notice that has come, if one has: the number of its buffer, and the message.
    pub fn take_notice(&mut self) -> Option<(u16, Vec<u8>)> {
        let (head, len) = self.take_used(1)?;
        let mut message = vec![0; len as usize];
        self.read(MEMORY + NOTICES + u64::from(NOTICE_ROOM) * u64::from(head), &mut message);
        Some((head as u16, message))
    }

    /// The connection, for words that no front end says.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// The guest is started anew, with the same front end: its memory is empty.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn reset(&mut self) {
        for queue in 0..self.rings.len() {
            self.stop(queue);
            self.write(MEMORY + QUEUE * queue as u64, &[0; QUEUE as usize]);
            (self.rings[queue].available, self.rings[queue].used) = (0, 0);
        }
        self.free = (0..SLOT_COUNT).rev().collect();
        self.rooms.clear();
        self.answers.clear();
        for queue in 0..self.rings.len() {
            self.start(queue, 0);
        }
    }

    /// The guest's memory.
    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// Writes to the guest's memory.
    ///
    /// # Panics
    /// When it is not there.
    pub fn write(&self, addr: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, addr - MEMORY).expect("memory");
    }

    /// Reads from the guest's memory.
    ///
    /// # Panics
    /// When it is not there.
    pub fn read(&self, addr: u64, bytes: &mut [u8]) {
        self.memory.read_exact_at(bytes, addr - MEMORY).expect("memory");
    }

    fn word(&self, addr: u64) -> u16 {
        let mut bytes = [0; 2];
        self.read(addr, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// Writes a descriptor into the table at `table`.
    pub fn describe(&self, table: u64, index: u16, of: (u64, u32, u16, u16)) {
        let (addr, len, flags, next) = of;
        let bytes = [
            &addr.to_le_bytes()[..],
            &len.to_le_bytes(),
            &flags.to_le_bytes(),
            &next.to_le_bytes(),
        ];
        self.write(table + 16 * u64::from(index), &bytes.concat());
    }

    /// The table of a queue's descriptors.
    pub fn table(&self, queue: usize) -> u64 {
        MEMORY + QUEUE * queue as u64
    }

    /// Offers a chain.
    pub fn offer(&mut self, queue: usize, head: u16) {
        let entry = u64::from(self.rings[queue].available % self.setup.size);
        let ring = self.table(queue) + AVAILABLE;
        self.write(ring + 4 + 2 * entry, &head.to_le_bytes());
        self.rings[queue].available = self.rings[queue].available.wrapping_add(1);
        self.set_available(queue, self.rings[queue].available);
    }

    /// Sets the index of what is offered, and rings.
    pub fn set_available(&mut self, queue: usize, index: u16) {
        self.write(self.table(queue) + AVAILABLE + 2, &index.to_le_bytes());
        self.ring(queue);
    }

    /// Rings the device.
    pub fn ring(&self, queue: usize) {
        self.rings[queue].kick.write(1).expect("a bell");
    }

    /// The next answer's head and length, once it is there.
    fn take_used(&mut self, queue: usize) -> Option<(u32, u32)> {
        let used = self.table(queue) + USED;
        let ring = &self.rings[queue];
        if self.word(used + 2) == ring.used {
            return None;
        }
        let mut entry = [0; 8];
        self.read(used + 4 + 8 * u64::from(ring.used % self.setup.size), &mut entry);
        let next = ring.used.wrapping_add(1);
        self.rings[queue].used = next;
        // Tell me of the next one.
        let event = self.table(queue) + AVAILABLE + 4 + 2 * u64::from(self.setup.size);
        self.write(event, &next.to_le_bytes());
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("4 bytes"));
        Some((word(0), word(4)))
    }

    /// The same, waiting; `None` when the back end has gone.
    ///
    /// # Panics
    /// When it takes too long.
    pub fn used(&mut self, queue: usize) -> Option<(u32, u32)> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(used) = self.take_used(queue) {
                return Some(used);
            }
            let call = self.rings[queue].call.as_raw_fd();
            let gone = self.socket.as_raw_fd();
            let wait = until.checked_duration_since(Instant::now()).expect("no answer");
            let gone = ready(&[call, gone], wait).contains(&gone);
            let _ = self.rings[queue].call.read();
            if gone {
                return self.take_used(queue);
            }
        }
    }

    /// Whether the back end has hung up.
    ///
    /// # Panics
    /// When it takes too long.
    pub fn is_dropped(&self) -> bool {
        !ready(&[self.socket.as_raw_fd()], PATIENCE).is_empty()
    }

    /// Whether the back end has hung up by now.
    pub fn has_been_dropped(&self) -> bool {
        !ready(&[self.socket.as_raw_fd()], Duration::ZERO).is_empty()
    }

    /// Sends a request of two parts by `queue`; the answer may have `room` bytes behind its first
    /// part. Returns its slot.
    fn put(&mut self, queue: usize, message: &[u8], data: &[u8], room: usize) -> Option<u16> {
        let slot = self.free.pop()?;
        let at = MEMORY + SLOTS + SLOT * u64::from(slot);
        self.write(at + MESSAGE, message);
        self.write(at + DATA, data);
        // Small pieces lie in the first page, the data of both ways in pages of their own.
        let first = if room > 0 { 16 } else { 4096 };
        let mut chain = vec![(at + MESSAGE, message.len(), 0)];
        chain.extend((!data.is_empty()).then_some((at + DATA, data.len(), 0)));
        // As the kernel sends it: in pages.
        chain.push((at + ANSWER, first, WRITE));
        let half = room / 2;
        let rooms = [(at + ROOM, half, WRITE), (at + ROOM + half as u64, room - half, WRITE)];
        chain.extend(rooms.into_iter().filter(|(_, len, _)| *len > 0));
        let head = slot * 5;
        let (table, start) = match self.setup.indirect {
            true => (at, 0),
            false => (self.table(queue), head),
        };
        let last = chain.len() - 1;
        for (number, (addr, len, flags)) in chain.into_iter().enumerate() {
            let index = start + number as u16;
            let flags = flags | if number < last { NEXT } else { 0 };
            self.describe(table, index, (addr, len as u32, flags, index + 1));
        }
        if self.setup.indirect {
            let len = 16 * (last as u32 + 1);
            self.describe(self.table(queue), head, (at, len, INDIRECT, 0));
        }
        self.rooms.insert(slot, room);
        self.offer(queue, head);
        Some(slot)
    }

    /// Waits for an answer of `queue`. Returns false when there will be none.
    fn collect(&mut self, queue: usize) -> bool {
        let Some((head, len)) = self.used(queue) else { return false };
        self.answers.insert((head / 5) as u16, len as usize);
        true
    }

    /// The answer in a slot, which is free again: its first part, and the data.
    fn take_answer(&mut self, slot: u16) -> Option<(Vec<u8>, Vec<u8>)> {
        let len = self.answers.remove(&slot)?;
        let room = self.rooms.remove(&slot)?;
        let at = MEMORY + SLOTS + SLOT * u64::from(slot);
        let first = if room > 0 { len.min(16) } else { len };
        let (mut message, mut data) = (vec![0; first], vec![0; len - first]);
        self.read(at + ANSWER, &mut message);
        self.read(at + ROOM, &mut data);
        self.free.push(slot);
        Some((message, data))
    }

    /// Sends a request and waits for its answer: the error's number, and what follows the header.
    /// `None` when the back end has gone.
    ///
    /// # Panics
    /// When it takes too long.
    pub fn ask(
        &mut self,
        opcode: u32,
        ino: u64,
        body: &[u8],
        room: usize,
    ) -> Option<(i32, Vec<u8>)> {
        let queue = self.requests();
        let slot = self.submit(queue, opcode, ino, body, room);
        self.answer(queue, slot)
    }

    /// Sends a request and does not wait.
    ///
    /// # Panics
    /// When there are too many.
    pub fn submit(&mut self, queue: usize, opcode: u32, ino: u64, body: &[u8], room: usize) -> u16 {
        self.unique += 2;
        let message = request(opcode, self.unique, ino, body);
        self.put(queue, &message, &[], room).expect("a free slot")
    }

    /// The answer to a request that was sent.
    ///
    /// # Panics
    /// When it takes too long.
    pub fn answer(&mut self, queue: usize, slot: u16) -> Option<(i32, Vec<u8>)> {
        while !self.answers.contains_key(&slot) {
            if !self.collect(queue) {
                return None;
            }
        }
        let (message, data) = self.take_answer(slot)?;
        if message.len() < 16 {
            return Some((0, Vec::new()));
        }
        let error = i32::from_le_bytes(message[4..8].try_into().expect("4 bytes"));
        Some((-error, [&message[16..], &data].concat()))
    }

    /// Whether a request that was sent has its answer now.
    pub fn is_answered(&mut self, queue: usize, slot: u16) -> bool {
        while let Some((head, len)) = self.take_used(queue) {
            self.answers.insert((head / 5) as u16, len as usize);
        }
        self.answers.contains_key(&slot)
    }

    /// Begins a FUSE session as Linux does.
    ///
    /// # Panics
    /// When it is refused.
    pub fn init(&mut self) {
        assert_eq!(self.try_init(), Some(0));
    }

    /// The same; the error's number.
    pub fn try_init(&mut self) -> Option<i32> {
        self.ask_init(0).map(|(error, _)| error)
    }

    /// The same for a kernel that offers more features, bits of the lower 32; those that are
    /// agreed.
    ///
    /// # Panics
    /// When it is refused.
    pub fn init_offering(&mut self, features: u32) -> u32 {
        let (error, answer) = self.ask_init(features).expect("a session");
        assert_eq!(error, 0);
        u32::from_le_bytes(answer[12..16].try_into().expect("4 bytes"))
    }

    fn ask_init(&mut self, more: u32) -> Option<(i32, Vec<u8>)> {
        // 7.38, 128 KiB to read ahead, POSIX locks and longer messages.
        let features: u32 = 1 << 1 | 1 << 5 | 1 << 22 | more;
        let words = [7u32, 38, 128 << 10, features];
        let mut body = words.map(u32::to_le_bytes).concat();
        body.resize(64, 0);
        self.ask(26, 0, &body, 0)
    }
}

/// The memory of a guest.
fn memory(setup: Setup) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("guest", flags).expect("memory");
    rustix::fs::ftruncate(&memory, MEMORY_LEN).expect("memory");
    if setup.sealed {
        let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fcntl_add_seals(&memory, seals).expect("seals");
    }
    memory
}

/// Which of these can be read, or are hung up, once one is.
fn ready(files: &[RawFd], wait: Duration) -> Vec<RawFd> {
    let epoll = Epoll::new().expect("an epoll");
    for &file in files {
        let event = EpollEvent::new(EventSet::IN, file as u64);
        epoll.ctl(ControlOperation::Add, file, event).expect("it can be watched");
    }
    let mut events = vec![EpollEvent::default(); files.len()];
    let count = epoll.wait(wait.as_millis() as i32, &mut events).unwrap_or(0);
    events[..count].iter().map(|event| event.data() as RawFd).collect()
}

/// A FUSE request of process 1 of the superuser's.
pub fn request(opcode: u32, unique: u64, ino: u64, body: &[u8]) -> Vec<u8> {
    let len = 40 + body.len() as u32;
    let mut message = [&len.to_le_bytes()[..], &opcode.to_le_bytes()].concat();
    message.extend(unique.to_le_bytes());
    message.extend(ino.to_le_bytes());
    message.extend([0u32, 0, 1, 0].map(u32::to_le_bytes).concat());
    message.extend(body);
    message
}

impl Transport for Guest {
    fn send(&mut self, message: &[u8], data: &[u8], room: usize) -> Result<Token, SendError> {
        if data.len() > DATA_MAX || room > DATA_MAX {
            return Err(SendError::TooLarge);
        }
        let slot = self.put(1, message, data, room).ok_or(SendError::Full)?;
        Ok(Token(u64::from(slot)))
    }

    fn ready(&mut self, token: &Token) -> Result<bool, Lost> {
        Ok(self.is_answered(1, token.0 as u16))
    }

    fn wait(&mut self, token: &Token) -> Result<(), Lost> {
        while !self.ready(token)? {
            if !self.collect(1) {
                return Err(Lost);
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        token: Token,
        message: &mut [u8],
        data: &mut [u8],
    ) -> Result<Received, Lost> {
        self.wait(&token)?;
        let (first, rest) = self.take_answer(token.0 as u16).ok_or(Lost)?;
        Ok(Received::copy((&first, &rest), message, data))
    }
}
