//! The memory that clients can take of a server which trusts none of them.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use atoll_host::client::{Address, Connection};
use atoll_host::control::{self, Answer, Hello, Kind, Mode};
use atoll_host::shm::SharedMemory;
use atoll_tests::fixtures;
use atoll_tests::served::{Served, as_stranger, ring};
use atoll_transport::channel::{ClientChannel, Config, Layout};
use atoll_vfs::{Context, FileSystem, Ino, Timespec};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
const STRANGER: u32 = 3002;
/// Longer than anything takes, on a machine that is busy.
const LONG: Duration = Duration::from_secs(60);

/// Memory of a ring, of which only the length is fixed; the place of one page.
fn memory(config: &Config) -> (OwnedFd, u64) {
    let len = Layout::new(config).unwrap().total();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&file, len as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64).unwrap();
    let mapped = SharedMemory::attach(file.try_clone().unwrap(), len).unwrap();
    ClientChannel::create(mapped, config).unwrap();
    (file, len as u64 - 4096)
}

fn ask(place: &Address, memory: &OwnedFd) -> (Connection, Answer) {
    let connection = Connection::open(place).unwrap();
    let (kind, mode, volume) = (Kind::Ring, Mode::Write, String::new());
    let hello = Hello { kind, mode, volume, single_owner: false, view: false };
    control::send(&connection, &hello.encode(), &[memory.as_fd()]).unwrap();
    let answer = Answer::decode(&control::receive(&connection).unwrap().0).unwrap();
    (connection, answer)
}

fn fix(memory: &OwnedFd) {
    rustix::fs::fcntl_add_seals(memory, SealFlags::FUTURE_WRITE | SealFlags::SEAL).unwrap();
}

/// Whether the server ends the connection, within what a session may take to begin.
fn ends(connection: &Connection) -> bool {
    let begun = Instant::now();
    let mut watched = [rustix::event::PollFd::new(connection, rustix::event::PollFlags::RDHUP)];
    let wait = rustix::event::Timespec::try_from(LONG).unwrap();
    rustix::event::poll(&mut watched, Some(&wait)).unwrap() == 1 && begun.elapsed() < LONG
}

/// Pages that the server were the first to touch would be its own to pay for; pages that are taken
/// away while it touches them make it wait.
#[test]
fn the_memory_of_a_stranger_has_its_pages_for_good() {
    let served = Served::to_strangers(fixtures::volume(16_384));
    let place = Address { socket: served.socket(), volume: String::new() };
    let config = Config::default();
    as_stranger(STRANGER, || {
        // The usual client does what is asked for.
        let mut good = ring(&served.socket(), 1).client().unwrap();
        good.getattr(&CX, Ino::ROOT).unwrap();
        // Memory that can be sealed no more is refused, with the reason.
        let (whole, _) = memory(&config);
        rustix::fs::fcntl_add_seals(&whole, SealFlags::SEAL).unwrap();
        let (_connection, answer) = ask(&place, &whole);
        let Answer::Refused(why) = answer else { panic!("{answer:?}") };
        assert!(why.contains("F_SEAL_FUTURE_WRITE"), "{why}");
        // With a hole it is of no use, whenever that comes.
        let (holed, page) = memory(&config);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&holed, punch, page, 4096).unwrap();
        assert!(matches!(ask(&place, &holed).1, Answer::Refused(_)));
        let (holed, page) = memory(&config);
        let (connection, answer) = ask(&place, &holed);
        assert_eq!(answer, Answer::Granted(Mode::Write));
        rustix::fs::fallocate(&holed, punch, page, 4096).unwrap();
        fix(&holed);
        assert!(ends(&connection));
        // One that seals nothing is not served, and nobody waits for it.
        let (open, page) = memory(&config);
        let (connection, answer) = ask(&place, &open);
        assert_eq!(answer, Answer::Granted(Mode::Write));
        rustix::fs::fallocate(&open, punch, page, 4096).unwrap();
        good.getattr(&CX, Ino::ROOT).unwrap();
        let mut other = ring(&served.socket(), 1).client().unwrap();
        other.getattr(&CX, Ino::ROOT).unwrap();
        assert!(ends(&connection));
        good.getattr(&CX, Ino::ROOT).unwrap();
    });
    served.end().unwrap();
}
