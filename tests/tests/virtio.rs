//! The virtio-fs device, by a front end and a driver of these tests' own.

#[path = "virtio/any_order.rs"]
mod any_order;
#[path = "virtio/away.rs"]
mod away;
#[path = "virtio/coherent.rs"]
mod coherent;
#[path = "virtio/dirty_log.rs"]
mod dirty_log;
#[path = "virtio/moving.rs"]
mod moving;
#[path = "virtio/notices.rs"]
mod notices;
#[path = "virtio/pieces.rs"]
mod pieces;
#[path = "virtio/process.rs"]
mod process;
#[path = "virtio/shown.rs"]
mod shown;
#[path = "virtio/told.rs"]
mod told;
#[path = "virtio/watchdog.rs"]
mod watchdog;
#[path = "virtio/windows.rs"]
mod windows;
#[path = "virtio/write_back.rs"]
mod write_back;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_block::RamDevice;
use atoll_fs::Fs;
use atoll_host::client::{Address, Connection};
use atoll_host::server::bind::{bind, bind_stream};
use atoll_host::server::guests::{AWAY, Guest as Machine, Ids};
use atoll_host::server::listen::{Door, SocketServer};
use atoll_host::server::rules::{Limit, Mode, Rules};
use atoll_host::virtio::device::DeviceOptions;
use atoll_server::Volume;
use atoll_server::route::kernel::{KernelOptions, Others};
use atoll_tests::guest::{Guest, INDIRECT, MEMORY, NEXT, Setup, WRITE, request};
use atoll_tests::rng::Rng;
use atoll_tests::subject::pattern;
use atoll_tests::{Quirks, Subject, filesystem_conformance_subjects, fixtures};
use atoll_transport::channel::Config;
use atoll_transport::{Lost, Received, SendError, Token, Transport};
use atoll_vfs::wire::Extensions;
use atoll_vfs::{Client, ClientOptions, FileSystem, Ino, Name};
use tempfile::TempDir;

const FUSE_LOOKUP: u32 = 1;
const FUSE_GETATTR: u32 = 3;
const FUSE_FORGET: u32 = 2;
const FUSE_MKDIR: u32 = 9;
const FUSE_UNLINK: u32 = 10;
const FUSE_OPEN: u32 = 14;
const FUSE_READ: u32 = 15;
const FUSE_WRITE: u32 = 16;
const FUSE_FSYNC: u32 = 20;
const FUSE_SETLK: u32 = 32;
const FUSE_SETLKW: u32 = 33;
const FUSE_CREATE: u32 = 35;
const FUSE_DESTROY: u32 = 38;
const FUSE_BATCH_FORGET: u32 = 42;
const FUSE_FALLOCATE: u32 = 43;

const EAGAIN: i32 = 11;
const EIO: i32 = 5;
const EROFS: i32 = 30;
const ENOENT: i32 = 2;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;

type Ended = std::io::Result<Vec<(String, Option<Fs<RamDevice>>)>>;

/// A volume `v` with a server, which has a device for virtual machines.
struct Served {
    folder: TempDir,
    volume: Option<Arc<Volume<Fs<RamDevice>>>>,
    stop: Option<std::io::PipeWriter>,
    thread: Option<JoinHandle<Ended>>,
}

struct Options {
    ids: Ids,
    read_only: bool,
    rules: Vec<&'static str>,
    kernel: KernelOptions,
    window: u64,
    tells: bool,
    away: Duration,
    /// Counts what the watchdog tells, if there is one.
    watchdog: Option<Arc<AtomicU64>>,
    /// The most memory that the user of these tests may take.
    memory: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        let kernel = KernelOptions { untold: Some(0), ..KernelOptions::default() };
        Options {
            ids: Ids::FrontEnd,
            read_only: false,
            rules: vec![],
            kernel,
            window: 0,
            tells: false,
            away: AWAY,
            watchdog: None,
            memory: None,
        }
    }
}

impl Served {
    fn new(options: Options) -> Served {
        // Any user who runs these tests may make files.
        Served::with(fixtures::open_to_all(), options)
    }

    fn with(fs: Fs<RamDevice>, options: Options) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let volume = atoll_host::server::volume(fs, "v");
        let rules = || {
            let rules = options.rules.iter().map(|rule| rule.parse().unwrap()).collect();
            let own = nix::unistd::getuid().as_raw();
            let limit = options.memory.map(|bytes| format!("uid:{own},memory={bytes}"));
            let size = |text: &str| text.parse().map_err(|_| text.to_owned());
            let limits = limit.iter().map(|limit| Limit::parse(limit, size).unwrap());
            Rules::new(rules, own).with_limits(limits.collect())
        };
        let listener = bind(&folder.path().join("s"), false).unwrap();
        let door = Door { listener, rules: rules() };
        let spin = Duration::from_micros(50);
        let mut server =
            SocketServer::new(vec![door], None, vec![Arc::clone(&volume)], spin).unwrap();
        let device = DeviceOptions {
            tag: "data".to_owned(),
            queues: 1,
            kernel: options.kernel,
            spin,
            window: options.window,
            copies: false,
            tells: options.tells,
        };
        let machine = |socket: &str| Machine {
            listener: bind_stream(&folder.path().join(socket), false).unwrap(),
            rules: rules(),
            volume: "v".to_owned(),
            read_only: options.read_only && socket == "guest",
            ids: options.ids,
            away: options.away,
            device: device.clone(),
        };
        server.attach(machine("guest")).unwrap();
        let alone = options.kernel.others == Others::None;
        assert_eq!(server.attach(machine("other")).is_err(), alone);
        if let Some(told) = options.watchdog {
            let tell = move || {
                told.fetch_add(1, Ordering::Relaxed);
            };
            server.watch(Duration::from_millis(1100), tell);
        }
        let (stopped, stop) = std::io::pipe().unwrap();
        let thread = std::thread::spawn(move || server.run(stopped.as_fd()));
        Served { folder, volume: Some(volume), stop: Some(stop), thread: Some(thread) }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("guest")
    }

    /// A guest of the first device, which has begun.
    fn guest(&self) -> Guest {
        self.begin("guest", Setup::default())
    }

    /// A guest of the other device, which has begun.
    fn other(&self) -> Guest {
        self.begin("other", Setup::default())
    }

    fn begin(&self, socket: &str, setup: Setup) -> Guest {
        let mut guest = Guest::connect(&self.folder.path().join(socket), setup);
        guest.init();
        guest
    }

    /// Ends it and returns the file system, which nobody uses any more.
    fn end(mut self) -> Fs<RamDevice> {
        drop((self.volume.take(), self.stop.take()));
        let mut ended = self.thread.take().unwrap().join().unwrap().unwrap();
        ended.remove(0).1.expect("nobody has it any more")
    }
}

fn name(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Makes a file; its inode and handle.
fn create(guest: &mut Guest, called: &str) -> (u64, u64) {
    // O_RDWR, mode, umask, flags.
    let words = [2u32, 0o100644, 0, 0].map(u32::to_le_bytes).concat();
    let (error, body) = guest.ask(FUSE_CREATE, 1, &[words, name(called)].concat(), 0).unwrap();
    assert_eq!(error, 0, "{called}");
    (word(&body, 0), word(&body, 128))
}

fn write(guest: &mut Guest, (ino, handle): (u64, u64), offset: u64, data: &[u8]) -> i32 {
    let head = [handle.to_le_bytes(), offset.to_le_bytes()].concat();
    let words = [data.len() as u32, 0].map(u32::to_le_bytes).concat();
    let body = [&head[..], &words, &0u64.to_le_bytes(), &0u64.to_le_bytes(), data].concat();
    guest.ask(FUSE_WRITE, ino, &body, 0).unwrap().0
}

fn read(guest: &mut Guest, (ino, handle): (u64, u64), offset: u64, size: usize) -> Vec<u8> {
    let head = [handle.to_le_bytes(), offset.to_le_bytes()].concat();
    let words = [size as u32, 0].map(u32::to_le_bytes).concat();
    let body = [&head[..], &words, &0u64.to_le_bytes(), &0u64.to_le_bytes()].concat();
    let (error, data) = guest.ask(FUSE_READ, ino, &body, size).unwrap();
    assert_eq!(error, 0);
    data
}

/// All ways in which queues and memory are: the same comes of it.
#[test]
fn a_guest_reads_what_it_wrote() {
    let served = Served::new(Options::default());
    for bits in 0..16 {
        let has = |bit: u32| bits >> bit & 1 != 0;
        let setup = Setup {
            sealed: has(0),
            indirect: has(1),
            event_index: has(2),
            slots: has(3),
            ..Setup::default()
        };
        let mut guest = Guest::connect(&served.socket(), setup);
        guest.init();
        let file = create(&mut guest, &format!("f{bits}"));
        for round in 0..200u32 {
            let data: Vec<u8> = (0..900).map(|i| (i * 7 + round) as u8).collect();
            assert_eq!(write(&mut guest, file, u64::from(round) * 900, &data), 0);
            assert_eq!(read(&mut guest, file, u64::from(round) * 900, 900), data);
        }
        assert_eq!(read(&mut guest, file, 0, 1 << 20).len(), 900 * 200);
        let (error, attr) = guest.ask(FUSE_GETATTR, file.0, &[0; 16], 0).unwrap();
        assert_eq!((error, word(&attr, 24)), (0, 900 * 200));
        assert_eq!(word(&attr, 0), 0, "it hears of no change: nothing is valid");
        drop(guest);
    }
    let mut fs = served.end();
    let found = fs.lookup(&fixtures::cx(), Ino::ROOT, Name::new(b"f3").unwrap());
    assert_eq!(found.unwrap().size, 900 * 200);
}

/// The body of a request for a lock on a whole file.
fn lock(handle: u64, owner: u64, kind: u32) -> Vec<u8> {
    let head = [handle, owner, 0, u64::MAX >> 1].map(u64::to_le_bytes).concat();
    [head, [kind, 1, 0, 0].map(u32::to_le_bytes).concat()].concat()
}

/// Opens a file by its name; its inode and handle.
fn open(guest: &mut Guest, called: &str) -> (u64, u64) {
    let (error, entry) = guest.ask(FUSE_LOOKUP, 1, &name(called), 0).unwrap();
    assert_eq!(error, 0, "{called}");
    let ino = word(&entry, 0);
    let (error, body) =
        guest.ask(FUSE_OPEN, ino, &[2u32, 0].map(u32::to_le_bytes).concat(), 0).unwrap();
    assert_eq!(error, 0, "{called}");
    (ino, word(&body, 0))
}

#[test]
fn an_answer_that_waits_holds_up_nobody() {
    let served = Served::new(Options::default());
    let mut guest = served.guest();
    let file = create(&mut guest, "f");
    let lock = |owner, kind| lock(file.1, owner, kind);
    assert_eq!(guest.ask(FUSE_SETLK, file.0, &lock(1, F_WRLCK), 0).unwrap().0, 0);
    let waits = guest.submit(1, FUSE_SETLKW, file.0, &lock(2, F_WRLCK), 0);
    for round in 0..50 {
        assert_eq!(write(&mut guest, file, 0, &[round; 100]), 0);
        assert_eq!(read(&mut guest, file, 0, 100), [round; 100]);
        // A sync waits too, for the syncer.
        let body = [&file.1.to_le_bytes()[..], &[0; 8]].concat();
        assert_eq!(guest.ask(FUSE_FSYNC, file.0, &body, 0).unwrap().0, 0);
    }
    assert!(!guest.is_answered(1, waits));
    assert_eq!(guest.ask(FUSE_SETLK, file.0, &lock(1, F_UNLCK), 0).unwrap().0, 0);
    assert_eq!(guest.answer(1, waits).unwrap().0, 0);
    drop(guest);
    served.end();
}

#[test]
fn what_a_guest_forgets_needs_no_answer() {
    let served = Served::new(Options::default());
    let mut guest = served.guest();
    let (ino, _) = create(&mut guest, "f");
    assert_eq!(guest.ask(FUSE_LOOKUP, 1, &name("f"), 0).unwrap().0, 0);
    let one = guest.submit(0, FUSE_FORGET, ino, &1u64.to_le_bytes(), 0);
    assert_eq!(guest.answer(0, one), Some((0, vec![])));
    let batch = [&1u32.to_le_bytes()[..], &[0; 4], &ino.to_le_bytes(), &1u64.to_le_bytes()];
    let batch = guest.submit(0, FUSE_BATCH_FORGET, 0, &batch.concat(), 0);
    assert_eq!(guest.answer(0, batch), Some((0, vec![])));
    assert_eq!(guest.ask(FUSE_LOOKUP, 1, &name("f"), 0).unwrap().0, 0);
}

/// However the guest's life ends, its files are closed and its locks released.
#[test]
fn a_guest_that_begins_again_has_nothing_open() {
    let served = Served::new(Options::default());
    let mut other = served.other();
    let mut guest = served.guest();
    create(&mut guest, "f");
    let theirs = open(&mut other, "f");
    let take = lock(theirs.1, 7, F_WRLCK);
    let give = lock(theirs.1, 7, F_UNLCK);
    for life in 0..5 {
        let file = open(&mut guest, "f");
        let mine = lock(file.1, 1, F_WRLCK);
        assert_eq!(guest.ask(FUSE_SETLK, file.0, &mine, 0).unwrap().0, 0);
        assert_eq!(other.ask(FUSE_SETLK, theirs.0, &take, 0).unwrap().0, EAGAIN);
        let mut waits = other.submit(1, FUSE_SETLKW, theirs.0, &take, 0);
        // One of its own waits too, whose answer nobody wants.
        guest.submit(1, FUSE_SETLKW, file.0, &lock(file.1, 2, F_WRLCK), 0);
        match life {
            0 => {
                assert_eq!(guest.ask(FUSE_DESTROY, 0, &[], 0).unwrap().0, 0);
                assert_eq!(guest.ask(FUSE_LOOKUP, 1, &name("f"), 0).unwrap().0, EIO);
            }
            1 => {
                guest.reset();
            }
            2 => {
                drop(guest);
                guest = Guest::connect(&served.socket(), Setup::default());
            }
            3 => {
                guest.reset_device();
                // It has ended already.
                assert_eq!(other.answer(1, waits).unwrap().0, 0);
                waits = other.submit(1, FUSE_SETLKW, theirs.0, &take, 0);
            }
            _ => {}
        }
        guest.init();
        assert_eq!(other.answer(1, waits).unwrap().0, 0, "life {life}");
        assert_eq!(other.ask(FUSE_SETLK, theirs.0, &give, 0).unwrap().0, 0);
        // A handle that was opened before means nothing now.
        let (error, _) = guest.ask(FUSE_SETLK, file.0, &mine, 0).unwrap();
        assert_ne!(error, 0, "life {life}");
        if life == 0 {
            // The request that waited was answered, since its session ended.
            guest.reset();
            guest.init();
        }
    }
}

/// As when a machine is stopped and goes on: nothing is lost.
#[test]
fn a_guest_that_is_stopped_goes_on() {
    let served = Served::new(Options::default());
    let (mut guest, mut other) = (served.guest(), served.other());
    let file = create(&mut guest, "f");
    let theirs = open(&mut other, "f");
    let take = lock(theirs.1, 7, F_WRLCK);
    assert_eq!(other.ask(FUSE_SETLK, theirs.0, &take, 0).unwrap().0, 0);
    let waits = guest.submit(1, FUSE_SETLKW, file.0, &lock(file.1, 1, F_WRLCK), 0);
    let waits_too = guest.submit(1, FUSE_SETLKW, file.0, &lock(file.1, 2, F_WRLCK), 0);
    assert_eq!(write(&mut guest, file, 0, b"before"), 0);
    let base = guest.stop(1);
    let give = lock(theirs.1, 7, F_UNLCK);
    assert_eq!(other.ask(FUSE_SETLK, theirs.0, &give, 0).unwrap().0, 0);
    assert!(!guest.is_answered(1, waits), "it is stopped");
    guest.start(1, base);
    assert_eq!(guest.answer(1, waits).unwrap().0, 0);
    assert_eq!(read(&mut guest, file, 0, 100), b"before");
    assert!(!guest.is_answered(1, waits_too));
}

/// A request that is done in parts, so that others have their turn, is answered like any other.
#[test]
fn a_request_in_parts_is_answered() {
    for event_index in [true, false] {
        let served = Served::new(Options::default());
        let mut guest = served.begin("guest", Setup { event_index, ..Setup::default() });
        let file = create(&mut guest, "f");
        let begun = Instant::now();
        for len in [40u64 << 20, 30 << 20] {
            let words = [file.1, 0, len, 0].map(u64::to_le_bytes).concat();
            assert_eq!(guest.ask(FUSE_FALLOCATE, file.0, &words, 0).unwrap().0, 0);
        }
        // The driver is rung: it does not look by itself.
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        drop(guest);
        served.end();
    }
}

/// Also where a request takes long: when the device has said that a queue has stopped it writes
/// nothing into the guest's memory, which may be another's by then.
#[test]
fn a_guest_that_is_stopped_is_not_written_to() {
    const LEN: u64 = 3 << 30;
    let mut fs = fixtures::volume(1 << 20);
    let mode = atoll_vfs::SetAttr { mode: Some(0o777), ..atoll_vfs::SetAttr::default() };
    fs.setattr(&fixtures::cx(), Ino::ROOT, None, &mode).unwrap();
    let served = Served::with(fs, Options::default());
    let mut guest = served.guest();
    let file = create(&mut guest, "f");
    let fallocate = |mode: u32| {
        let words = [file.1, 0, LEN].map(u64::to_le_bytes).concat();
        [&words[..], &[mode, 0].map(u32::to_le_bytes).concat()].concat()
    };
    const PUNCH_HOLE_KEEP_SIZE: u32 = 3;
    // With little luck it is done before it could be stopped.
    let stopped = (0..20).find_map(|_| {
        let slot = guest.submit(1, FUSE_FALLOCATE, file.0, &fallocate(0), 0);
        let base = guest.stop(1);
        if !guest.is_answered(1, slot) {
            return Some((slot, base));
        }
        assert_eq!(guest.answer(1, slot).unwrap().0, 0);
        guest.start(1, base);
        let punched = guest.ask(FUSE_FALLOCATE, file.0, &fallocate(PUNCH_HOLE_KEEP_SIZE), 0);
        assert_eq!(punched.unwrap().0, 0);
        None
    });
    let (slot, base) = stopped.expect("a device that is slower than a message");
    std::thread::sleep(Duration::from_millis(500));
    assert!(!guest.is_answered(1, slot), "it was written to");
    guest.start(1, base);
    assert_eq!(guest.answer(1, slot).unwrap().0, 0);
    let attr = guest.ask(FUSE_GETATTR, file.0, &[0; 16], 0).unwrap().1;
    assert_eq!(word(&attr, 24), LEN, "its size");
    drop(guest);
    served.end();
}

#[test]
fn a_guest_may_do_what_the_rules_say() {
    let own = nix::unistd::getuid().as_raw();
    // Whom no rule lets in is not served.
    let rule = format!("uid:{own}=deny");
    let served = Served::new(Options { rules: vec![rule.leak()], ..Options::default() });
    let socket = std::os::unix::net::UnixStream::connect(served.socket()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(std::io::Read::read(&mut &socket, &mut [0]).unwrap(), 0);
    served.end();

    for (rule, read_only) in [(format!("uid:{own}=ro"), false), (format!("uid:{own}=rw"), true)] {
        let rules: Vec<&str> = vec![rule.leak()];
        let served = Served::new(Options { rules, read_only, ..Options::default() });
        let mut guest = served.guest();
        let body = [[0o755u32, 0].map(u32::to_le_bytes).concat(), name("d")].concat();
        assert_eq!(guest.ask(FUSE_MKDIR, 1, &body, 0).unwrap().0, EROFS);
    }
}

#[test]
fn a_guest_has_its_directory_and_no_other() {
    let own = nix::unistd::getuid().as_raw();
    let rules: Vec<&str> = vec![format!("uid:{own}=rw,path=/d").leak()];
    let served = Served::new(Options { rules, ..Options::default() });
    {
        // There is no such directory yet.
        let mut guest = Guest::connect(&served.socket(), Setup::default());
        assert_eq!(guest.try_init(), Some(EIO));
    }
    let mut fs = served.end();
    let mkdir = Name::new(b"d").unwrap();
    fs.mkdir(&fixtures::cx(), Ino::ROOT, mkdir, 0o777).unwrap();
    let rules: Vec<&str> = vec![format!("uid:{own}=rw,path=/d").leak()];
    let served = Served::with(fs, Options { rules, ..Options::default() });
    let mut guest = served.guest();
    create(&mut guest, "inside");
    assert_eq!(guest.ask(FUSE_LOOKUP, 1, &name("d"), 0).unwrap().0, ENOENT);
    drop(guest);
    let mut fs = served.end();
    let mut look =
        |dir, called: &str| fs.lookup(&fixtures::cx(), dir, Name::new(called.as_bytes()).unwrap());
    let dir = look(Ino::ROOT, "d").unwrap().ino;
    assert!(look(dir, "inside").is_ok());
}

/// The guest's superuser is whom the server says.
#[test]
fn a_guest_acts_as_whom_it_may() {
    let own = nix::unistd::getuid().as_raw();
    let cases = [(Ids::FrontEnd, own), (Ids::Guest, 0), (Ids::Fixed(1234, 56), 1234)];
    for (ids, owner) in cases {
        let served = Served::new(Options { ids, ..Options::default() });
        let mut guest = served.guest();
        let (ino, _) = create(&mut guest, "f");
        let (error, attr) = guest.ask(FUSE_GETATTR, ino, &[0; 16], 0).unwrap();
        assert_eq!(error, 0);
        let uid = u32::from_le_bytes(attr[16 + 68..16 + 72].try_into().unwrap());
        assert_eq!(uid, owner, "{ids:?}");
    }
}

/// Where tests that break the rules put things.
const PLACE: u64 = MEMORY + 0x10_0000;

/// Has a guest break a rule: it is dropped, and nobody else notices.
fn broken(what: &str, served: &Served, setup: Setup, breach: impl FnOnce(&mut Guest)) {
    let mut other = served.other();
    let file = open(&mut other, "f");
    let mut guest = served.begin("guest", setup);
    breach(&mut guest);
    assert!(guest.is_dropped(), "{what}");
    assert_eq!(write(&mut other, file, 0, what.as_bytes()), 0, "{what}");
    drop((guest, other));
    // The device is there for the next.
    let mut next = served.guest();
    let file = open(&mut next, "f");
    assert_eq!(read(&mut next, file, 0, what.len()), what.as_bytes());
}

#[test]
fn a_hostile_driver_is_dropped() {
    let served = Served::new(Options::default());
    create(&mut served.guest(), "f");
    let plain = Setup { indirect: false, ..Setup::default() };
    let size = plain.size;
    let message = request(FUSE_GETATTR, 5, 1, &[0; 16]);
    let long = message.len() as u32;
    let break_it = |what: &str, setup: Setup, breach: &dyn Fn(&mut Guest, u64)| {
        broken(what, &served, setup, |guest| {
            guest.write(PLACE, &message);
            let table = guest.table(1);
            breach(guest, table);
        });
    };
    break_it("a loop", plain, &|guest, table| {
        guest.describe(table, 0, (PLACE, 1, NEXT, 1));
        guest.describe(table, 1, (PLACE, 1, NEXT, 0));
        guest.offer(1, 0);
    });
    break_it("a loop of what is written", plain, &|guest, table| {
        guest.describe(table, 0, (PLACE, long, NEXT, 1));
        guest.describe(table, 1, (PLACE, 1, NEXT | WRITE, 1));
        guest.offer(1, 0);
    });
    break_it("an address outside", plain, &|guest, table| {
        guest.describe(table, 0, (8, long, NEXT, 1));
        guest.describe(table, 1, (PLACE, 4096, WRITE, 0));
        guest.offer(1, 0);
    });
    break_it("the last address", plain, &|guest, table| {
        guest.describe(table, 0, (u64::MAX - 3, long, NEXT, 1));
        guest.describe(table, 1, (PLACE, 4096, WRITE, 0));
        guest.offer(1, 0);
    });
    break_it("an answer outside", plain, &|guest, table| {
        guest.describe(table, 0, (PLACE, long, NEXT, 1));
        guest.describe(table, 1, (MEMORY + (48 << 20) - 20, 4096, WRITE, 0));
        guest.offer(1, 0);
    });
    break_it("no room for the answer", plain, &|guest, table| {
        guest.describe(table, 0, (PLACE, long, NEXT, 1));
        guest.describe(table, 1, (PLACE, 100, WRITE, 0));
        guest.offer(1, 0);
    });
    break_it("a head that there is not", plain, &|guest, _| guest.offer(1, size));
    break_it("a descriptor that there is not", plain, &|guest, table| {
        guest.describe(table, 0, (PLACE, long, NEXT, size));
        guest.offer(1, 0);
    });
    break_it("an index that runs on", plain, &|guest, _| guest.set_available(1, size + 5000));
    break_it("a request longer than any", plain, &|guest, table| {
        guest.describe(table, 0, (PLACE, u32::MAX, 0, 0));
        guest.offer(1, 0);
    });
    break_it("many lengths that are longer than any", plain, &|guest, table| {
        for at in 0..size {
            guest.describe(table, at, (PLACE, 1 << 20, NEXT, at + 1));
        }
        guest.offer(1, 0);
    });
    break_it("what is sent behind what is wanted", plain, &|guest, table| {
        guest.describe(table, 0, (PLACE, 4096, WRITE | NEXT, 1));
        guest.describe(table, 1, (PLACE, long, 0, 0));
        guest.offer(1, 0);
    });
    break_it("nothing", plain, &|guest, table| {
        guest.describe(table, 0, (PLACE, 0, 0, 0));
        guest.offer(1, 0);
    });
    break_it("no message", plain, &|guest, table| {
        guest.write(PLACE, &[0xff; 100]);
        guest.describe(table, 0, (PLACE, 100, NEXT, 1));
        guest.describe(table, 1, (PLACE, 4096, WRITE, 0));
        guest.offer(1, 0);
    });
    break_it("a table that was not agreed on", plain, &|guest, table| {
        guest.describe(table, 0, (PLACE, 16, INDIRECT, 0));
        guest.offer(1, 0);
    });
    let tables = Setup::default();
    break_it("a table in a table", tables, &|guest, table| {
        guest.describe(PLACE, 0, (PLACE, 16, INDIRECT, 0));
        guest.describe(table, 0, (PLACE, 16, INDIRECT, 0));
        guest.offer(1, 0);
    });
    for len in [0, 15, 17, 16 * 1025, u32::MAX] {
        break_it("a table of no length", tables, &|guest, table| {
            guest.describe(table, 0, (PLACE, len, INDIRECT, 0));
            guest.offer(1, 0);
        });
    }
    break_it("a loop in a table", tables, &|guest, table| {
        guest.describe(PLACE + 0x1000, 0, (PLACE, 1, NEXT, 1));
        guest.describe(PLACE + 0x1000, 1, (PLACE, 1, NEXT, 0));
        guest.describe(table, 0, (PLACE + 0x1000, 32, INDIRECT, 0));
        guest.offer(1, 0);
    });
    break_it("the end of a table", tables, &|guest, table| {
        guest.describe(PLACE + 0x1000, 0, (PLACE, 1, NEXT, 2));
        guest.describe(table, 0, (PLACE + 0x1000, 32, INDIRECT, 0));
        guest.offer(1, 0);
    });
    break_it("a table outside", tables, &|guest, table| {
        guest.describe(table, 0, (0, 32, INDIRECT, 0));
        guest.offer(1, 0);
    });
    break_it("a request twice", plain, &|guest, table| {
        // It waits for a lock that it has given to another owner.
        let file = open(guest, "f");
        let set = guest.ask(FUSE_SETLK, file.0, &lock(file.1, 1, F_WRLCK), 0);
        assert_eq!(set.unwrap().0, 0);
        let message = request(FUSE_SETLKW, 99, file.0, &lock(file.1, 2, F_WRLCK));
        guest.write(PLACE, &message);
        guest.describe(table, 60, (PLACE, message.len() as u32, NEXT, 61));
        guest.describe(table, 61, (PLACE + 4096, 4096, WRITE, 0));
        guest.offer(1, 60);
        guest.offer(1, 60);
    });
}

#[test]
fn memory_that_goes_costs_its_guest_alone() {
    let served = Served::new(Options::default());
    create(&mut served.guest(), "f");
    for slots in [false, true] {
        let setup = Setup { sealed: false, slots, ..Setup::default() };
        broken("cut short", &served, setup, |guest| {
            guest.memory().set_len(4096).unwrap();
            guest.ring(1);
        });
        broken("emptied", &served, setup, |guest| {
            guest.memory().set_len(0).unwrap();
            guest.ring(0);
        });
    }
    for sealed in [false, true] {
        let setup = Setup { sealed, ..Setup::default() };
        broken("withdrawn", &served, setup, |guest| {
            guest.withdraw();
            guest.ring(1);
        });
    }
}

/// Messages that no front end should send, each on a connection of its own.
#[test]
fn a_hostile_front_end_is_dropped() {
    use std::io::Write;
    let served = Served::new(Options::default());
    create(&mut served.guest(), "f");
    let say = |code: u32, body: &[u8]| {
        let head = [code, 1, body.len() as u32].map(u32::to_le_bytes).concat();
        [&head[..], body].concat()
    };
    let state = |index: u32, value: u32| [index, value].map(u32::to_le_bytes).concat();
    let words = [
        vec![0xff; 64],
        // Other features than were offered, a queue that there is not, sizes that there are not.
        say(2, &u64::MAX.to_le_bytes()),
        say(8, &state(100, 8)),
        say(8, &state(1, 7)),
        say(8, &state(1, 0)),
        say(8, &state(1, 1 << 15)),
        // Memory without a descriptor, a message of no length, one that is none.
        say(5, &[&1u32.to_le_bytes()[..], &[0; 4], &[1; 32]].concat()),
        say(8, &[]),
        say(1000, &[]),
    ];
    for (number, words) in words.iter().enumerate() {
        let setup = Setup::default();
        broken(&format!("words {number}"), &served, setup, |guest| {
            guest.socket().write_all(words).unwrap();
        });
    }
    // One that does not say all stops nobody, not even the server's end.
    let guest = served.guest();
    guest.socket().write_all(&[1, 0, 0]).unwrap();
    let mut other = served.other();
    let file = open(&mut other, "f");
    assert_eq!(write(&mut other, file, 0, b"goes on"), 0);
    served.end();
    assert!(guest.is_dropped() && other.is_dropped());
}

/// Where nobody else has the volume, the guest's kernel may keep what it learns; a number of
/// seconds is what it is told.
#[test]
fn what_a_guest_may_keep() {
    const DIRECT: u32 = 1;
    let kernel =
        |others, untold| KernelOptions { others, untold: Some(untold), ..KernelOptions::default() };
    let cases = [
        (kernel(Others::Any, 0), 0, 0, true),
        (kernel(Others::Any, 7), 7, 7, false),
        (kernel(Others::None, 0), 365 * 24 * 60 * 60, 365 * 24 * 60 * 60, false),
    ];
    for (kernel, entry_valid, attr_valid, direct) in cases {
        let served = Served::new(Options { kernel, ..Options::default() });
        let mut guest = served.guest();
        create(&mut guest, "f");
        let (_, entry) = guest.ask(FUSE_LOOKUP, 1, &name("f"), 0).unwrap();
        assert_eq!((word(&entry, 16), word(&entry, 24)), (entry_valid, attr_valid), "{kernel:?}");
        let (_, attr) = guest.ask(FUSE_GETATTR, word(&entry, 0), &[0; 16], 0).unwrap();
        assert_eq!(word(&attr, 0), attr_valid, "{kernel:?}");
        let (_, opened) = guest.ask(FUSE_OPEN, word(&entry, 0), &[0; 8], 0).unwrap();
        let flags = u32::from_le_bytes(opened[8..12].try_into().unwrap());
        assert_eq!(flags & DIRECT != 0, direct, "{kernel:?}");
    }
    let alone = Options { kernel: kernel(Others::None, 0), ..Options::default() };
    let served = Served::new(alone);
    let place = Address { socket: served.folder.path().join("s"), volume: String::new() };
    let refused = Connection::open(&place).unwrap().ring(Mode::Read, &Config::default());
    assert!(refused.is_err_and(|error| error.to_string().contains("alone")));
}

/// A guest that ends with its server.
struct Both {
    guest: Guest,
    _served: Served,
}

impl Transport for Both {
    fn send(&mut self, message: &[u8], data: &[u8], room: usize) -> Result<Token, SendError> {
        self.guest.send(message, data, room)
    }

    fn ready(&mut self, token: &Token) -> Result<bool, Lost> {
        self.guest.ready(token)
    }

    fn wait(&mut self, token: &Token) -> Result<(), Lost> {
        self.guest.wait(token)
    }

    fn receive(
        &mut self,
        token: Token,
        message: &mut [u8],
        data: &mut [u8],
    ) -> Result<Received, Lost> {
        self.guest.receive(token, message, data)
    }
}

fn client() -> Option<Subject> {
    // The client says who calls.
    let options = Options { ids: Ids::Guest, ..Options::default() };
    let served = Served::with(fixtures::volume(16 << 10), options);
    let guest = Guest::connect(&served.socket(), Setup::default());
    let both = Both { guest, _served: served };
    let options = ClientOptions { extensions: Extensions::empty(), ..ClientOptions::default() };
    let client = Client::connect(both, options).unwrap();
    let quirks =
        Quirks { caller_time: false, ownership: false, finds_itself: true, ..Quirks::default() };
    Some(Subject::new(client, quirks))
}

filesystem_conformance_subjects!(conformance, client);
