//! Guests that move: their state goes by their front end from one device to another.

use atoll_host::directory::{HostDirectory, Options as Directory};
use atoll_tests::served::Served as Shared;
use vhost::vhost_user::message::VhostTransferStateDirection as Direction;

use super::*;

const FUSE_OPENDIR: u32 = 27;
const FUSE_RELEASE: u32 = 18;

fn other_socket(served: &Served) -> PathBuf {
    served.folder.path().join("other")
}

fn set(guest: &mut Guest, file: (u64, u64), owner: u64, kind: u32) -> i32 {
    guest.ask(FUSE_SETLK, file.0, &lock(file.1, owner, kind), 0).unwrap().0
}

fn release(guest: &mut Guest, (ino, handle): (u64, u64)) -> i32 {
    let body = [&handle.to_le_bytes()[..], &[0; 16]].concat();
    guest.ask(FUSE_RELEASE, ino, &body, 0).unwrap().0
}

/// Everything of a guest is there at the other device of its server: open files by the same
/// numbers, locks, which nobody gets in between, and what waits for one.
#[test]
fn a_guest_goes_on_at_another_device() {
    let served = Served::new(Options::default());
    let mut guest = served.guest();
    let gone = create(&mut guest, "gone");
    let file = create(&mut guest, "f");
    assert_eq!(release(&mut guest, gone), 0);
    let second = create(&mut guest, "second");
    assert_eq!(write(&mut guest, file, 0, b"before"), 0);
    let (error, dir) = guest.ask(FUSE_OPENDIR, 1, &[0; 8], 0).unwrap();
    assert_eq!(error, 0);
    assert_eq!(set(&mut guest, file, 1, F_WRLCK), 0);
    let waits = guest.submit(1, FUSE_SETLKW, file.0, &lock(file.1, 2, F_WRLCK), 0);
    assert_eq!(write(&mut guest, file, 6, b", and after"), 0);
    assert!(!guest.is_answered(1, waits));

    let state = guest.save().unwrap();
    guest.move_to(&other_socket(&served), &state).unwrap();
    assert_eq!(read(&mut guest, file, 0, 100), b"before, and after");
    assert_eq!(write(&mut guest, second, 0, b"second"), 0);
    assert_eq!(set(&mut guest, second, 5, F_WRLCK), 0);
    assert!(!guest.is_answered(1, waits));
    assert_eq!(set(&mut guest, file, 1, F_UNLCK), 0);
    assert_eq!(guest.answer(1, waits).unwrap().0, 0);
    let body = [&word(&dir, 0).to_le_bytes()[..], &[0; 16]].concat();
    assert_eq!(guest.ask(29, 1, &body, 0).unwrap().0, 0, "RELEASEDIR");
    // No number is given twice.
    let new = create(&mut guest, "new");
    assert!(![file.1, second.1].contains(&new.1));
    assert_eq!([file, second, new].map(|file| release(&mut guest, file)), [0; 3]);
    assert_eq!(guest.ask(FUSE_GETATTR, file.0, &[0; 16], 0).unwrap().0, 0);

    // And back again.
    let file = open(&mut guest, "f");
    let state = guest.save().unwrap();
    guest.move_to(&served.socket(), &state).unwrap();
    assert_eq!(read(&mut guest, file, 0, 6), b"before");
    drop(guest);
    served.end();
}

/// A guest that moves on before it has run has its open files yet, and what waits for a lock.
#[test]
fn a_guest_moves_on_before_it_has_run() {
    let served = Served::new(Options::default());
    let mut guest = served.guest();
    let file = create(&mut guest, "f");
    assert_eq!(set(&mut guest, file, 1, F_WRLCK), 0);
    let waits = guest.submit(1, FUSE_SETLKW, file.0, &lock(file.1, 2, F_WRLCK), 0);
    assert_eq!(write(&mut guest, file, 0, b"before"), 0);
    let state = guest.save().unwrap();
    guest.stand_at(&other_socket(&served), &state).unwrap();
    let state = guest.take_state().unwrap();
    guest.move_to(&served.socket(), &state).unwrap();
    assert_eq!(read(&mut guest, file, 0, 100), b"before");
    assert!(!guest.is_answered(1, waits));
    assert_eq!(set(&mut guest, file, 1, F_UNLCK), 0);
    assert_eq!(guest.answer(1, waits).unwrap().0, 0);
    drop(guest);
    served.end();
}

/// A move that comes to nothing leaves the guest where it was.
#[test]
fn a_guest_that_stays_goes_on() {
    let served = Served::new(Options::default());
    let mut guest = served.guest();
    let file = create(&mut guest, "f");
    assert_eq!(set(&mut guest, file, 1, F_WRLCK), 0);
    for round in 0..3u8 {
        let state = guest.save().unwrap();
        assert!(guest.move_to(&other_socket(&served), &state[1..]).is_err());
        guest.resume();
        assert_eq!(write(&mut guest, file, 0, &[round]), 0);
        let mut other = served.other();
        let theirs = open(&mut other, "f");
        assert_eq!(set(&mut other, theirs, 7, F_WRLCK), EAGAIN, "it has the lock");
    }
    // The front end has nobody who reads the state.
    for queue in 0..2 {
        guest.stop(queue);
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    guest.ask_to_move(Direction::SAVE, writer.into()).unwrap();
    assert!(guest.moved().is_err());
    guest.resume();
    assert_eq!(read(&mut guest, file, 0, 10), [2]);
    // It dies in the middle: all that it had is given back.
    let state = guest.save().unwrap();
    drop(guest);
    let mut other = served.other();
    let theirs = open(&mut other, "f");
    while set(&mut other, theirs, 7, F_WRLCK) == EAGAIN {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(other);
    // Its lock is another's by now.
    let mut holder = served.other();
    let theirs = open(&mut holder, "f");
    while set(&mut holder, theirs, 7, F_WRLCK) == EAGAIN {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(Guest::arrive(&served.socket(), Setup::default(), &state).is_err());
    drop(holder);
    served.end();
}

/// What a state cannot hold is refused, and the guest goes on.
#[test]
fn what_cannot_move() {
    let served = Served::new(Options::default());
    let mut guest = served.guest();
    let file = create(&mut guest, "f");
    assert_eq!(guest.ask(FUSE_UNLINK, 1, &name("f"), 0).unwrap().0, 0);
    assert!(guest.save().is_err(), "it has no name");
    guest.resume();
    assert_eq!(write(&mut guest, file, 0, b"still there"), 0);
    assert_eq!(release(&mut guest, file), 0);
    assert!(guest.save().is_ok());
    drop(guest);
    served.end();

    let tells = Served::new(Options { tells: true, ids: Ids::Guest, ..Options::default() });
    let mut guest = tells.begin("guest", notices::TAKES);
    assert!(guest.save().is_err(), "it is told of changes");
    drop(guest);
    tells.end();
    let window = Served::new(Options { window: 16 << 20, ..Options::default() });
    let mut guest = window.guest();
    assert!(guest.save().is_err(), "there is a window");
    drop(guest);
    window.end();
}

/// States of others, and states that are given twice.
#[test]
fn what_is_no_state_of_this_device() {
    let (served, another) = (Served::new(Options::default()), Served::new(Options::default()));
    let mut guest = served.guest();
    let file = create(&mut guest, "f");
    let state = guest.save().unwrap();
    // The guests of these tests have volumes of one name.
    let cached = KernelOptions { untold: Some(5), ..KernelOptions::default() };
    let keeps = Served::new(Options { kernel: cached, ..Options::default() });
    assert!(guest.move_to(&other_socket(&keeps), &state).is_err(), "it may keep more there");
    keeps.end();
    assert!(guest.move_to(&other_socket(&another), &state).is_err(), "there is no such file");
    let looking = Served::new(Options { read_only: true, ..Options::default() });
    assert!(guest.move_to(&looking.socket(), &state).is_err(), "it may not write there");
    looking.end();
    // A device that has a guest takes none.
    let mut busy = served.other();
    assert!(busy.load(&state).is_err());
    let theirs = open(&mut busy, "f");
    assert_eq!(write(&mut busy, theirs, 0, b"theirs"), 0);
    drop(busy);
    // Twice.
    guest.move_to(&other_socket(&served), &state).unwrap();
    assert_eq!(read(&mut guest, file, 0, 10), b"theirs");
    let second = Guest::arrive(&served.socket(), Setup::default(), &state);
    assert!(second.is_err(), "it has been gone on with");
    drop(guest);
    served.end();
    another.end();
}

/// Whatever bytes a front end makes of a state, its device takes them for what they are or refuses
/// them, and nobody else is harmed.
#[test]
fn states_that_are_made_up() {
    let served = Served::new(Options::default());
    let mut rng = Rng::new(11);
    let mut theirs = served.guest();
    let file = create(&mut theirs, "f");
    assert_eq!(write(&mut theirs, file, 0, b"whole"), 0);
    drop(theirs);
    let mut taken = 0;
    for round in 0..150 {
        let mut guest = served.guest();
        let file = open(&mut guest, "f");
        // The one before may still have it.
        while set(&mut guest, file, 1, F_WRLCK) == EAGAIN {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut state = guest.save().unwrap();
        for _ in 0..rng.within(1..5) {
            let at = rng.within(0..state.len() as u64) as usize;
            state[at] = rng.number() as u8;
        }
        if round % 5 == 0 {
            state.truncate(rng.within(0..state.len() as u64) as usize);
        }
        let other = Guest::arrive(&other_socket(&served), Setup::default(), &state);
        taken += u32::from(other.is_ok());
    }
    assert!((1..150).contains(&taken), "{taken}");
    let mut guest = served.guest();
    let file = open(&mut guest, "f");
    assert_eq!(read(&mut guest, file, 0, 10), b"whole");
    drop(guest);
    served.end();
}

/// A state takes no more of the server's memory than its front end's user may have.
#[test]
fn states_are_paid_for() {
    let served = Served::new(Options { memory: Some(16 << 20), ..Options::default() });
    let guest = Guest::arrive(&served.socket(), Setup::default(), &vec![0; 20 << 20]);
    assert!(guest.is_err());
    // The device is there, and what the state took is given back.
    let mut guest = served.guest();
    let file = create(&mut guest, "f");
    let state = guest.save().unwrap();
    guest.move_to(&other_socket(&served), &state).unwrap();
    assert_eq!(write(&mut guest, file, 0, b"there"), 0);
    drop(guest);
    served.end();
}

/// A directory of the host, whose inodes have to be found again: at another server of it.
#[test]
fn a_guest_of_a_directory_goes_on_at_another_server() {
    let host = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(host.path().join("a/b")).unwrap();
    std::fs::write(host.path().join("a/b/f"), "of the host").unwrap();
    std::fs::write(host.path().join("lost"), "x").unwrap();
    let serve = || {
        let fs = HostDirectory::open(host.path(), &Directory::default()).unwrap();
        Shared::of_directory(fs, 2)
    };
    let first = serve();
    let mut guest = Guest::connect(first.device_at(0), Setup::default());
    guest.init();
    let look = |guest: &mut Guest, parent: u64, called: &str| {
        let (error, entry) = guest.ask(FUSE_LOOKUP, parent, &name(called), 0).unwrap();
        assert_eq!(error, 0, "{called}");
        word(&entry, 0)
    };
    let a = look(&mut guest, 1, "a");
    let b = look(&mut guest, a, "b");
    let f = look(&mut guest, b, "f");
    assert_eq!(look(&mut guest, b, "f"), f);
    let lost = look(&mut guest, 1, "lost");
    let flags = [2u32, 0].map(u32::to_le_bytes).concat();
    let (error, opened) = guest.ask(FUSE_OPEN, f, &flags, 0).unwrap();
    assert_eq!(error, 0);
    let file = (f, word(&opened, 0));
    assert_eq!(set(&mut guest, file, 1, F_WRLCK), 0);
    let state = guest.save().unwrap();
    std::fs::remove_file(host.path().join("lost")).unwrap();
    // The other server takes over when the first has ended.
    guest.go_away();
    first.end();
    let second = serve();
    guest.move_to(second.device_at(1), &state).unwrap();
    assert_eq!(read(&mut guest, file, 0, 20), b"of the host");
    for (ino, error) in [(a, 0), (b, 0), (f, 0), (lost, 116)] {
        assert_eq!(guest.ask(FUSE_GETATTR, ino, &[0; 16], 0).unwrap().0, error, "{ino}");
    }
    let mut other = Guest::connect(second.device_at(0), Setup::default());
    other.init();
    let there = look(&mut other, 1, "a");
    let there = look(&mut other, there, "b");
    let there = look(&mut other, there, "f");
    let (_, opened) = other.ask(FUSE_OPEN, there, &flags, 0).unwrap();
    assert_eq!(set(&mut other, (there, word(&opened, 0)), 1, F_WRLCK), EAGAIN);
    // It forgets what it was given before and has been given again, and no more.
    let again = look(&mut guest, b, "f");
    assert_eq!(release(&mut guest, file), 0);
    let forget = guest.submit(0, FUSE_FORGET, f, &2u64.to_le_bytes(), 0);
    guest.answer(0, forget);
    assert_eq!(guest.ask(FUSE_GETATTR, again, &[0; 16], 0).unwrap().0, 0, "it knows it once more");
    // A directory that is another is refused.
    let state = guest.save().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let fs = HostDirectory::open(elsewhere.path(), &Directory::default()).unwrap();
    let third = Shared::of_directory(fs, 1);
    assert!(guest.move_to(third.device_at(0), &state).is_err());
    drop((guest, other));
    second.end();
    third.end();
}
