//! A virtio-fs device whose guest and front end are hostile: queues, chains of descriptors, FUSE
//! messages, a window, memory that is taken away while it is in use.
//!
//! Both sides run in one thread, the device by [`Device::step`]: the same bytes are the same run.
//! Another client has the volume meanwhile and finds it as it left it; nothing is written where
//! the device was given no memory, or was told to leave it; nothing of a guest is kept when it has
//! gone; and the volume is sound in the end.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_block::RamDevice;
use atoll_fs::{CheckOptions, Fs, check};
use atoll_host::virtio::device::{Device, DeviceOptions, RANGE, Step};
use atoll_server::checkpoints::Checkpointer;
use atoll_server::host::Bell;
use atoll_server::removals::Remover;
use atoll_server::revocable::Revocable;
use atoll_server::rights::accounts::{Account, Accounts, Shares};
use atoll_server::route::kernel::{KernelOptions, Others};
use atoll_server::syncs::Syncer;
use atoll_server::task::{Step as TaskStep, Task};
use atoll_server::{Access, Credentials, Identity, Session, Volume};
use atoll_vfs::wire::files::{CreateIn, ReadIn};
use atoll_vfs::wire::header::InHeader;
use atoll_vfs::wire::locks::{FileLock, LkIn};
use atoll_vfs::wire::mappings::{RemovemappingOne, SetupmappingIn};
use atoll_vfs::wire::session::{FUSE_POSIX_LOCKS, FUSE_WRITEBACK_CACHE, InitIn};
use atoll_vfs::wire::{Extensions, Fixed, opcode};
use atoll_vfs::{Context, FileSystem, Handle, Ino, Name, OpenFlags, SetAttr};
use rustix::event::{EventfdFlags, eventfd};

use crate::Script;
use crate::front_end::{
    AVAILABLE, FrontEnd, GuestMemory, NAME, QUEUE, REGION, REGIONS, SIZE, USED, say,
};
use crate::image::{CONTEXT, INCARNATION, empty, mount_options};
use crate::requests::{number, request, seal};

/// Blocks of the volume.
const BLOCKS: u64 = 512;
/// Front ends, one after the other.
const LIVES: usize = 3;
/// Steps that a device takes at once, many more than it needs to have served what there is.
const STEPS: usize = 200;

/// The places of requests: each has a table, a message and an answer.
const SLOTS: u64 = 8;
const SLOT: u64 = REGION / SLOTS;
const MESSAGE: u64 = 0x400;
const ANSWER: u64 = 0x1000;

/// The most bytes of a state, as a pipe holds them.
const PIPE: usize = 32 << 10;

// Flags of a descriptor.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

// Features of the device, and of vhost-user.
const F_INDIRECT: u64 = 1 << 28;
const F_EVENT_INDEX: u64 = 1 << 29;
const F_PROTOCOL: u64 = 1 << 30;
const F_VERSION_1: u64 = 1 << 32;

type Disk = Fs<RamDevice>;

struct Silent;

impl Bell for Silent {
    fn ring(&self) {}
}

/// A task of the volume, between its steps.
struct Tasks(Vec<Box<dyn Task>>);

impl Tasks {
    /// Takes steps until nothing is left to do.
    fn run(&mut self) {
        for task in &mut self.0 {
            let mut flushed = None;
            loop {
                match task.step(flushed.take()) {
                    TaskStep::Wait | TaskStep::Over => break,
                    TaskStep::Pause(_) => {}
                    TaskStep::Flush(flush) => flushed = Some(flush.flush()),
                }
            }
        }
    }
}

/// The volume, with another client's file.
struct Served {
    volume: Arc<Volume<Disk>>,
    tasks: Tasks,
    other: Session<Disk>,
    file: (Ino, Handle),
    content: Vec<u8>,
    accounts: Option<Arc<Accounts>>,
    /// The state of a guest, as it was given last.
    state: Vec<u8>,
}

/// A volume in which everybody may make files.
fn image() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let fs = Fs::mount(empty(BLOCKS), &mount_options(INCARNATION, false));
        let mut fs = fs.expect("a new volume mounts");
        let mode = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        let superuser = Context { uid: 0, gid: 0, ..CONTEXT };
        fs.setattr(&superuser, Ino::ROOT, None, &mode).expect("its root");
        fs.unmount().expect("memory does not fail").bytes().to_vec()
    })
}

const OTHER: Context = Context { uid: 0, gid: 0, ..CONTEXT };

impl Served {
    fn new(script: &mut Script<'_>) -> Served {
        let device = RamDevice::from_bytes(image().to_vec());
        let fs = Fs::mount(device, &mount_options(INCARNATION, false)).expect("it mounts");
        let volume = atoll_host::server::volume(fs, "v");
        let mut tasks: Vec<Box<dyn Task>> = vec![
            Box::new(Remover::new(&volume, Arc::new(Silent))),
            Box::new(Checkpointer::new(&volume, Arc::new(Silent))),
        ];
        // Without one, who syncs does it at once.
        if !script.byte().is_multiple_of(4) {
            tasks.push(Box::new(Syncer::new(&volume, Arc::new(Silent))));
        }
        let mut other = volume.session(Credentials::default(), Access::default()).expect("one");
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let name = Name::new(b"another's").expect("a name");
        let (attr, handle) = other.create(&OTHER, Ino::ROOT, name, 0o600, flags).expect("room");
        let file = (attr.ino, handle);
        let shares = Shares { memory: 8 << 20, ..Shares::UNLIMITED };
        let accounts = script.byte().is_multiple_of(4).then(|| Arc::new(Accounts::new(shares)));
        let (content, state) = (Vec::new(), Vec::new());
        Served { volume, tasks: Tasks(tasks), other, file, content, accounts, state }
    }

    /// The other client's file is as it left it, and can be written.
    fn use_it(&mut self, script: &mut Script<'_>) {
        let (ino, handle) = self.file;
        let mut found = vec![0; self.content.len() + 1];
        let read = self.other.read(&OTHER, ino, handle, 0, &mut found).expect("another's file");
        assert!(found[..read] == self.content, "another's file has changed");
        let byte = script.byte();
        let at = usize::from(byte) * 16;
        match self.other.write(&OTHER, ino, handle, at as u64, &[byte; 16]) {
            Ok(written) => {
                let end = (at + written.len).max(self.content.len());
                self.content.resize(end, 0);
                self.content[at..at + written.len].fill(byte);
            }
            Err(error) => assert_eq!(error, atoll_vfs::Errno::ENOSPC, "another's file"),
        }
    }

    fn payer(&self) -> Option<Arc<Account>> {
        let shares = Shares { memory: 4 << 20, ..Shares::UNLIMITED };
        self.accounts.as_ref().map(|accounts| accounts.open(1, shares))
    }

    /// What begins the sessions of a guest.
    fn begin(&self, read_only: bool) -> impl FnMut() -> Begun + Send + use<> {
        let volume = Arc::clone(&self.volume);
        let account = self.payer();
        move || {
            let peer = Credentials { uid: 1, gid: 2, ..Credentials::default() };
            let account = account.clone();
            // Whomever the guest names, it acts as its front end.
            let access =
                Access { identity: Identity::Peer, read_only, account, ..Access::default() };
            let session = volume.session(peer, access).map_err(|error| error.to_string())?;
            let place = Revocable::default();
            place.begin(session);
            Ok(place)
        }
    }

    fn end(mut self) {
        self.tasks.run();
        let (ino, handle) = self.file;
        self.other.release(&OTHER, ino, handle).expect("another's file");
        self.tasks.run();
        drop((self.other, self.tasks));
        let fs = self.volume.into_inner().ok().expect("nobody has it any more");
        let mut device = fs.expect("it has not failed").unmount().expect("memory does not fail");
        let options = CheckOptions { repair: false, incarnation: INCARNATION, now: CONTEXT.now };
        let report = check(&mut device, &options).expect("a volume can be checked");
        assert!(report.is_clean(), "not sound: {:?}", report.findings);
    }
}

type Begun = Result<Revocable<Session<Disk>>, String>;

/// Runs the target.
///
/// # Panics
/// When a guest harms anybody but itself.
pub fn run(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let mut served = Served::new(&mut script);
    let mut record = None;
    for _ in 0..LIVES {
        record = Life::new(&mut script, &served, record).run(&mut script, &mut served);
        let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let links = names.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let mut kept = links.filter(|link| link.to_string_lossy().contains(NAME));
        assert!(kept.next().is_none(), "a guest's memory is kept");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        assert!(!maps.contains(NAME), "a guest's memory is mapped yet");
        served.use_it(&mut script);
        if script.is_over() {
            break;
        }
    }
    served.end();
}

/// A front end with its guest, and the device.
struct Life {
    device: Option<Device<Disk>>,
    stop: OwnedFd,
    front_end: FrontEnd,
    memory: GuestMemory,
    window: Option<UnixStream>,
    /// What the window's device has asked: numbers of messages.
    asked: Vec<u32>,
    /// By queue: the index of what is offered.
    offered: [u16; 3],
    /// Chains may lie in tables of their own.
    indirect: bool,
    /// Queues that may run.
    running: Vec<u32>,
    unique: u64,
    /// The inode and the handle that were opened last.
    known: (u64, u64),
    slot: u64,
}

impl Life {
    fn new(script: &mut Script<'_>, served: &Served, record: Option<OwnedFd>) -> Life {
        let bits = script.byte();
        let has = |bit: u32| bits >> bit & 1 != 0;
        let window = if has(0) { [RANGE, 4 * RANGE][usize::from(has(1))] } else { 0 };
        let others = if has(3) { Others::Any } else { Others::None };
        let untold = Some(u64::from(has(4)));
        let kernel =
            KernelOptions { others, untold, window: window > 0, ..KernelOptions::default() };
        let options = DeviceOptions {
            tag: "data".to_owned(),
            queues: 1 + u16::from(has(5)),
            kernel,
            spin: Duration::ZERO,
            window,
            copies: has(6),
            tells: has(7),
        };
        let begin = Box::new(served.begin(script.byte().is_multiple_of(8)));
        let (front_end, theirs) = FrontEnd::new(record);
        let (pulse, payer) = (Arc::default(), served.payer());
        let device =
            Device::new(theirs, options, 1, None, pulse, begin, payer).expect("descriptors");
        let stop = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
        let memory = GuestMemory::new(script);
        let mut life = Life {
            device: Some(device),
            stop,
            front_end,
            memory,
            window: None,
            asked: Vec::new(),
            offered: [0; 3],
            indirect: false,
            running: Vec::new(),
            unique: 0,
            known: (1, 0),
            slot: 0,
        };
        // Mostly as it should begin.
        let choice = script.byte();
        life.indirect = choice & 1 != 0;
        let features = F_VERSION_1
            | F_PROTOCOL
            | if life.indirect { F_INDIRECT } else { 0 }
            | if choice & 2 != 0 { F_EVENT_INDEX } else { 0 };
        let protocol = if choice & 4 != 0 { u64::MAX >> 32 } else { 0x1ff_ffff };
        life.front_end.meet(features, protocol);
        if choice & 8 != 0 {
            life.front_end.ask_record(3, SIZE);
        }
        life.settle();
        if choice & 16 != 0 {
            life.front_end.give_record(0, 3, SIZE);
        }
        for number in 0..REGIONS {
            life.give(number);
        }
        for queue in 0..2 + u32::from(has(5)) {
            life.start(queue, u32::from(SIZE), 0, 0);
        }
        if window > 0 {
            life.window = Some(life.front_end.window());
        }
        life.settle();
        if !script.byte().is_multiple_of(8) {
            life.unique += 1;
            let mut message = vec![0; InHeader::SIZE + InitIn::SIZE];
            let features = FUSE_POSIX_LOCKS | if has(1) { FUSE_WRITEBACK_CACHE } else { 0 };
            InitIn::new(features, Extensions::empty()).store(&mut message[InHeader::SIZE..]);
            seal(&mut message, opcode::FUSE_INIT, life.unique, 0, 0);
            life.send(script, 1, &message, &[]);
            life.settle();
            life.create(script);
        }
        life
    }

    fn give(&mut self, number: usize) {
        let region = &mut self.memory.0[number];
        (region.given, region.was_given) = (true, true);
        self.front_end.region(region, say::ADD_MEM_REG, [0; 4]);
    }

    fn start(&mut self, queue: u32, size: u32, base: u32, shift: u64) {
        let at = self.memory.0[0].guest.wrapping_add(QUEUE * u64::from(queue)).wrapping_add(shift);
        self.front_end.start(queue, size, base, at);
        self.running.push(queue);
    }

    /// The device does what it has to do, at most for some steps.
    fn settle(&mut self) {
        for _ in 0..STEPS {
            let Some(device) = &mut self.device else { return };
            // A device that has been told to stop, and has heard it, leaves the memory alone.
            let untouched = (self.running.is_empty() && self.front_end.is_heard())
                .then(|| self.memory.0.each_ref().map(|region| region.bytes()));
            let taken_back = self.front_end.is_heard().then(|| {
                let gone = self.memory.0.iter().filter(|region| !region.given && region.was_given);
                gone.map(|region| region.bytes()).collect::<Vec<_>>()
            });
            let step = device.step(self.stop.as_fd());
            if let Some(before) = untouched {
                let after = self.memory.0.each_ref().map(|region| region.bytes());
                assert!(before == after, "a guest that is stopped was written to");
            }
            if let Some(before) = taken_back {
                let gone = self.memory.0.iter().filter(|region| !region.given && region.was_given);
                let after: Vec<_> = gone.map(|region| region.bytes()).collect();
                assert!(before == after, "memory that was taken back was written to");
            }
            self.front_end.hear();
            self.listen();
            match step {
                Ok(Step::Idle) if self.front_end.is_heard() => return,
                Ok(Step::Idle | Step::Served) => {}
                Ok(Step::Gone) | Err(_) => self.device = None,
            }
        }
    }

    /// Hears what the window's device asks.
    fn listen(&mut self) {
        let Some(window) = &mut self.window else { return };
        let mut bytes = [0; 52];
        while let Ok(52) = window.read(&mut bytes) {
            self.asked.push(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        }
    }

    fn run(mut self, script: &mut Script<'_>, served: &mut Served) -> Option<OwnedFd> {
        while self.device.is_some() && !script.is_over() {
            match script.byte() % 32 {
                0..18 => self.ask(script),
                18 => self.change_memory(script),
                19 => self.take_back(script),
                20 => self.restart(script),
                21 if script.byte().is_multiple_of(4) => self.talk(script),
                22..25 => self.acknowledge(script),
                25 => self.scribble(script),
                26 => served.tasks.run(),
                27 => served.use_it(script),
                31 => self.moves(script, &mut served.state),
                _ => self.settle(),
            }
        }
        self.settle();
        assert!(self.memory.0.iter().all(|region| region.is_guarded()), "written outside");
        let Life { device, front_end, .. } = self;
        drop(device);
        front_end.record
    }

    /// Stops the guest and asks for its state, or gives one that is nearly right.
    fn moves(&mut self, script: &mut Script<'_>, state: &mut Vec<u8>) {
        if !script.byte().is_multiple_of(8) {
            for queue in 0..3 {
                self.front_end.queue(say::GET_VRING_BASE, queue, 0);
            }
            self.settle();
            self.running.clear();
        }
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        let saves = script.byte().is_multiple_of(2);
        let way = [u32::from(!saves).to_ne_bytes(), [0; 4]].concat();
        if saves {
            self.front_end.say(say::SET_DEVICE_STATE_FD, &way, &[&writer.into()]);
            self.settle();
            // It may not have begun, or does not know that it is over.
            let flags = rustix::fs::OFlags::NONBLOCK;
            rustix::fs::fcntl_setfl(&reader, flags).expect("a pipe");
            let mut bytes = vec![0; PIPE];
            if let Ok(len @ 1..) = reader.read(&mut bytes) {
                *state = bytes[..len].to_vec();
            }
        } else {
            let mut bytes = state.clone();
            for _ in 0..script.byte() % 4 {
                let at = script.below(bytes.len() as u64 + 1) as usize;
                let value = script.byte();
                bytes.get_mut(at).into_iter().for_each(|byte| *byte = value);
            }
            if script.byte().is_multiple_of(8) {
                bytes.truncate(script.below(bytes.len() as u64 + 1) as usize);
            }
            // It fits into the pipe.
            writer.write_all(&bytes).expect("a pipe");
            drop(writer);
            self.front_end.say(say::SET_DEVICE_STATE_FD, &way, &[&reader.into()]);
        }
        self.settle();
        self.front_end.say(say::CHECK_DEVICE_STATE, &[], &[]);
        self.settle();
        if script.byte().is_multiple_of(2) {
            for queue in 0..2 {
                self.start(queue, u32::from(SIZE), self.offered[queue as usize].into(), 0);
            }
        }
        self.settle();
    }

    /// Puts a request into a queue, and mostly has it served.
    fn ask(&mut self, script: &mut Script<'_>) {
        self.unique += 1;
        let mut message = Vec::new();
        let data = vec![script.byte(); script.below(600) as usize];
        match script.byte() % 16 {
            0..3 => self.lock(script, &mut message),
            3..7 => self.map(script, &mut message),
            7 => self.transfer(script, &mut message),
            _ => request(script, &mut message, data.len(), self.unique, self.known),
        }
        let queue = if script.byte().is_multiple_of(16) { 0 } else { 1 };
        let answer = self.send(script, queue, &message, &data);
        if script.byte().is_multiple_of(4) {
            return;
        }
        self.settle();
        let header = InHeader::load(&[&message[..], &[0; InHeader::SIZE]].concat());
        if [opcode::FUSE_CREATE, opcode::FUSE_TMPFILE].contains(&header.opcode) {
            self.learn(answer);
        }
    }

    /// Makes a file, for requests to be about.
    fn create(&mut self, script: &mut Script<'_>) {
        self.unique += 1;
        let mut message = vec![0; InHeader::SIZE + CreateIn::SIZE];
        let args = CreateIn { flags: 2, mode: 0o100_644, ..CreateIn::default() };
        args.store(&mut message[InHeader::SIZE..]);
        message.extend(b"a\0");
        seal(&mut message, opcode::FUSE_CREATE, self.unique, 1, 0);
        let answer = self.send(script, 1, &message, &[]);
        self.settle();
        self.learn(answer);
    }

    /// Takes note of what a CREATE has opened.
    fn learn(&mut self, answer: u64) {
        let word = |at: u64| {
            let part =
                |part: u64| u64::from(self.memory.word(answer + at + 2 * part)) << (16 * part);
            (0..4).map(part).sum::<u64>()
        };
        // Behind the header: the entry, and what was opened.
        if word(0) as u32 > 100 {
            self.known = (word(16), word(16 + 128));
        }
    }

    fn lock(&mut self, script: &mut Script<'_>, message: &mut Vec<u8>) {
        let codes = [opcode::FUSE_SETLK, opcode::FUSE_SETLKW, opcode::FUSE_SETLKW];
        let code = *script.pick(&codes);
        let (start, kind) = (number(script), u32::from(script.byte() % 4));
        let end = if script.byte().is_multiple_of(2) { i64::MAX as u64 } else { number(script) };
        let owner = script.byte() % 3;
        let lk = FileLock { start, end, kind, pid: 1 };
        let args = LkIn { fh: self.known.1, owner: owner.into(), lk, lk_flags: 0, padding: 0 };
        *message = vec![0; InHeader::SIZE + LkIn::SIZE];
        args.store(&mut message[InHeader::SIZE..]);
        seal(message, code, self.unique, self.known.0, 0);
    }

    fn map(&mut self, script: &mut Script<'_>, message: &mut Vec<u8>) {
        let range = |script: &mut Script<'_>| match script.byte() % 8 {
            0 => number(script),
            1 => 4096 * script.below(1024),
            _ => RANGE * u64::from(script.byte() % 4),
        };
        *message = vec![0; InHeader::SIZE];
        let code = if script.byte().is_multiple_of(3) {
            let count = u32::from(script.byte() % 6);
            message.extend((count + u32::from(script.byte().is_multiple_of(16))).to_ne_bytes());
            for _ in 0..count {
                let mut one = [0; RemovemappingOne::SIZE];
                let moffset = range(script);
                let len = if script.byte().is_multiple_of(8) { range(script) } else { RANGE };
                RemovemappingOne { moffset, len }.store(&mut one);
                message.extend(one);
            }
            opcode::FUSE_REMOVEMAPPING
        } else {
            let mut args = [0; SetupmappingIn::SIZE];
            let (foffset, moffset) = (range(script), range(script));
            let len = if script.byte().is_multiple_of(8) { range(script) } else { RANGE };
            let flags = u64::from(script.byte() % 4);
            SetupmappingIn { fh: u64::MAX, foffset, len, flags, moffset }.store(&mut args);
            message.extend(args);
            opcode::FUSE_SETUPMAPPING
        };
        seal(message, code, self.unique, self.known.0, 0);
    }

    /// A read or write that is long enough to go to its place at once.
    fn transfer(&mut self, script: &mut Script<'_>, message: &mut Vec<u8>) {
        let size = 4096 * (1 + u32::from(script.byte() % 16));
        let offset = 4096 * script.below(64);
        *message = vec![0; InHeader::SIZE + ReadIn::SIZE];
        let args = ReadIn { fh: self.known.1, offset, size, ..ReadIn::default() };
        args.store(&mut message[InHeader::SIZE..]);
        // The arguments of a write look the same.
        let code = *script.pick(&[opcode::FUSE_READ, opcode::FUSE_WRITE]);
        let sent = if code == opcode::FUSE_WRITE { size as usize } else { 0 };
        seal(message, code, self.unique, self.known.0, sent);
    }

    /// Offers a request; where its answer goes.
    fn send(&mut self, script: &mut Script<'_>, queue: u16, message: &[u8], data: &[u8]) -> u64 {
        self.slot += 1;
        let slot = self.slot % SLOTS;
        let at = self.memory.0[1].guest + SLOT * slot;
        let far = self.memory.0[2].guest;
        let message = &message[..message.len().min((ANSWER - MESSAGE) as usize)];
        self.memory.write(at + MESSAGE, message);
        self.memory.write(far, data);
        let header = InHeader::load(&[message, &[0; InHeader::SIZE]].concat());
        let beyond = (header.len as usize).saturating_sub(message.len()).min(REGION as usize);
        // The request's pieces, then the answer's.
        let split = script.below(message.len() as u64 + 1);
        let mut chain = vec![(at + MESSAGE, split, 0)];
        chain.push((at + MESSAGE + split, message.len() as u64 - split, 0));
        chain.push((far, beyond as u64, 0));
        // Mostly what fits, whatever comes of it.
        let damaged = script.byte().is_multiple_of(24);
        let few = [128, 16, 15, 0][usize::from(script.byte() % 4)];
        let wanted = if damaged { few } else { 4096 };
        chain.push((at + ANSWER, wanted, WRITE));
        let rooms = usize::from(script.byte() % 4);
        chain.extend((0..rooms).map(|room| (far + (room as u64 * 0x5000), 0x5000, WRITE)));
        chain.retain(|(_, len, _)| *len > 0);
        let indirect = script.byte().is_multiple_of(2) && (self.indirect || damaged);
        let size = SIZE - 1;
        let head = if indirect { slot as u16 } else { (slot as u16 * 8) & size };
        let own = self.memory.0[0].guest + QUEUE * u64::from(queue);
        let (table, first) = if indirect { (at, 0) } else { (own, head) };
        let last = chain.len().saturating_sub(1);
        for (place, (mut addr, mut len, mut flags)) in chain.into_iter().enumerate() {
            let index = first + place as u16;
            let mut next = index + 1;
            flags |= if place < last { NEXT } else { 0 };
            // What a driver would not say.
            match script.byte() % 16 {
                _ if !damaged => {}
                0 => addr = number(script),
                1 => addr = addr.wrapping_add(REGION),
                2 => len = number(script),
                3 => flags = script.byte().into(),
                4 => (flags, next) = (flags | NEXT, script.byte().into()),
                5 => len = REGION + 5,
                _ => {}
            }
            self.describe(table, index, (addr, len as u32, flags, next));
        }
        if indirect {
            let len = match script.byte() % 8 {
                _ if !damaged => 16 * (last as u32 + 1),
                0 => script.number() as u32,
                1 => 16 * 1024,
                _ => 16 * (last as u32 + 1),
            };
            self.describe(own, head, (at, len, INDIRECT, 0));
        }
        self.offer(script, queue, head);
        at + ANSWER
    }

    fn describe(&self, table: u64, index: u16, (addr, len, flags, next): (u64, u32, u16, u16)) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write(table + 16 * u64::from(index), &bytes);
    }

    fn offer(&mut self, script: &mut Script<'_>, queue: u16, head: u16) {
        let index = self.offered[usize::from(queue)];
        let ring = self.memory.0[0].guest + QUEUE * u64::from(queue) + AVAILABLE;
        let head = if script.byte() == 0 { script.byte().into() } else { head };
        self.memory.write(ring + 4 + 2 * u64::from(index % SIZE), &head.to_le_bytes());
        let ahead = if script.byte() == 0 { 1 + u16::from(script.byte()) } else { 1 };
        let index = index.wrapping_add(ahead);
        self.offered[usize::from(queue)] = index;
        self.memory.write(ring + 2, &index.to_le_bytes());
    }

    /// Changes a word of the queues, or any.
    fn change_memory(&mut self, script: &mut Script<'_>) {
        let queue = self.memory.0[0].guest + QUEUE * u64::from(script.byte() % 3);
        let at = match script.byte() % 4 {
            0 => queue + AVAILABLE + script.below(80),
            1 => queue + USED + script.below(300),
            2 => queue + script.below(16 * u64::from(SIZE)),
            _ => self.memory.0[1].guest + script.below(REGION),
        };
        let value = number(script);
        let len = 1 << (script.byte() % 4);
        self.memory.write(at, &value.to_le_bytes()[..len]);
    }

    /// Withdraws memory, or gives it again.
    fn take_back(&mut self, script: &mut Script<'_>) {
        let number = usize::from(script.byte()) % REGIONS;
        match script.byte() % 8 {
            // One that is not that, and is refused or not.
            0 => {
                let shift = [script.byte(), 0, script.byte(), script.byte()].map(u64::from);
                let say = *script.pick(&[say::ADD_MEM_REG, say::REM_MEM_REG]);
                if say == say::REM_MEM_REG || shift[0] != 0 || shift[2] != 0 {
                    self.front_end.region(&self.memory.0[number], say, shift);
                }
            }
            1 => self.memory.0[number].cut(script.below(REGION + 4096)),
            2 => {
                let all = script.byte().is_multiple_of(2);
                for (at, region) in self.memory.0.iter_mut().enumerate() {
                    region.given = all || at == number;
                    region.was_given |= region.given;
                }
                let given: Vec<_> = self.memory.0.iter().filter(|region| region.given).collect();
                let count = given.len() as u32 + u32::from(script.byte().is_multiple_of(16));
                self.front_end.table(&given, count);
            }
            3 => self.give(number),
            _ => {
                let region = &mut self.memory.0[number];
                region.given = false;
                self.front_end.region(region, say::REM_MEM_REG, [0; 4]);
                if script.byte().is_multiple_of(2) {
                    self.settle();
                    self.give(number);
                }
            }
        }
    }

    /// Stops queues, and starts them.
    fn restart(&mut self, script: &mut Script<'_>) {
        let queue = u32::from(script.byte() % 3);
        let all = script.byte().is_multiple_of(2);
        match script.byte() % 8 {
            0 => {
                self.front_end.say(say::RESET_DEVICE, &[], &[]);
                self.settle();
                self.running.clear();
            }
            1 => {
                self.front_end.queue(say::SET_VRING_ENABLE, queue, script.byte().into());
            }
            _ => {
                for other in 0..3 {
                    if all || other == queue {
                        self.front_end.queue(say::GET_VRING_BASE, other, 0);
                        self.settle();
                        self.running.retain(|running| *running != other);
                    }
                }
            }
        }
        self.settle();
        if script.byte().is_multiple_of(4) {
            self.ask(script);
        }
        let size = match script.byte() % 8 {
            0 => u32::from(script.byte()),
            1 => 1 << (script.byte() % 12),
            _ => SIZE.into(),
        };
        let shift = if script.byte().is_multiple_of(8) { number(script) } else { 0 };
        for other in 0..3 {
            if all || other == queue {
                let used = self.memory.0[0].guest + QUEUE * u64::from(other) + USED;
                let anew = script.byte().is_multiple_of(4);
                let base = if anew { self.memory.word(used + 2).into() } else { 0 };
                if script.byte().is_multiple_of(4) {
                    self.front_end.change_record(script.below(1000), script.byte());
                    self.front_end.give_record(script.byte().into(), 3, SIZE);
                }
                self.start(other, size, base, shift);
            }
        }
    }

    /// Says something that is right, nearly right, or nothing.
    fn talk(&mut self, script: &mut Script<'_>) {
        match script.byte() % 8 {
            0 => {
                // Any bytes, behind which nothing follows.
                let bytes: Vec<u8> = (0..script.byte()).map(|_| script.byte()).collect();
                self.front_end.send(&bytes, &[]);
                self.front_end.hang_up();
            }
            1 => {
                let (queues, size) = (script.byte().into(), script.number() as u16);
                self.front_end.ask_record(queues, size);
            }
            2 => {
                let number = *script.pick(&[say::SET_VRING_CALL, say::SET_VRING_KICK]);
                let queue = u32::from(script.byte());
                match script.byte() % 4 {
                    0 => self.front_end.false_bell(number, queue, &self.memory),
                    _ => self.front_end.bell(number, queue),
                }
                // A bell for a queue starts it.
                self.running.push(queue);
            }
            3 => self.window = Some(self.front_end.window()),
            4 => {
                let body = [script.below(50), script.below(50)].map(|word| word as u32);
                let body = [body[0], body[1], 0].map(u32::to_ne_bytes).concat();
                self.front_end.say(say::GET_CONFIG, &body, &[]);
            }
            5 => self.front_end.say(say::GET_SHMEM_CONFIG, &[], &[]),
            _ => {
                let number = u32::from(script.byte()) % say::LAST;
                let body: Vec<u8> = (0..script.byte() % 64).map(|_| script.byte()).collect();
                self.running.extend([0, 1, 2]);
                self.front_end.say(number, &body, &[]);
            }
        }
    }

    /// Answers what the window's device asked.
    fn acknowledge(&mut self, script: &mut Script<'_>) {
        use std::io::Write;
        let Some(window) = &mut self.window else { return };
        let asked = (!self.asked.is_empty()).then(|| self.asked.remove(0));
        match script.byte() % 16 {
            0 => self.window = None,
            1 => {
                let bytes: Vec<u8> = (0..script.byte() % 30).map(|_| script.byte()).collect();
                let _ = window.write(&bytes);
            }
            choice => {
                let Some(asked) = asked else { return };
                let value = u64::from(choice == 2);
                let words = [asked, 1 | 4, 8].map(u32::to_ne_bytes).concat();
                let _ = window.write(&[&words[..], &value.to_ne_bytes()].concat());
                // As QEMU does it: the guest has memory more.
                if choice > 8 {
                    self.give(usize::from(choice) % REGIONS);
                }
            }
        }
    }

    /// Changes bytes of a request that is offered, or served.
    fn scribble(&mut self, script: &mut Script<'_>) {
        let at = self.memory.0[1].guest + SLOT * (self.slot % SLOTS) + MESSAGE;
        self.memory.write(at + script.below(200), &[script.byte()]);
    }
}
