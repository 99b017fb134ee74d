//! Front ends that connect again: the session of their guest goes on where it was.

use super::notices::{TAKES, changed};
use super::*;
use atoll_tests::guest_cache::Caching;

fn with_record(served: &Served, setup: Setup) -> Guest {
    let mut guest = Guest::connect_with_record(&served.socket(), setup);
    guest.init();
    guest
}

fn set(guest: &mut Guest, file: (u64, u64), owner: u64, kind: u32) -> i32 {
    guest.ask(FUSE_SETLK, file.0, &lock(file.1, owner, kind), 0).unwrap().0
}

/// Open files, locks, what waits for one, and inodes that it knows: all are there when the front
/// end has come back, and in between.
#[test]
fn a_session_goes_on() {
    let served = Served::new(Options::default());
    let mut other = served.other();
    let mut guest = with_record(&served, Setup::default());
    let file = create(&mut guest, "f");
    let gone = create(&mut guest, "gone");
    let unlink = guest.ask(FUSE_UNLINK, 1, &name("gone"), 0).unwrap();
    assert_eq!(unlink.0, 0);
    assert_eq!(write(&mut guest, gone, 0, b"has no name"), 0);
    let theirs = open(&mut other, "f");
    let second = create(&mut guest, "second");
    let seconds = open(&mut other, "second");
    assert_eq!(set(&mut guest, second, 1, F_WRLCK), 0);
    assert_eq!(set(&mut other, theirs, 7, F_WRLCK), 0);
    let waits =
        [1, 2].map(|owner| guest.submit(1, FUSE_SETLKW, file.0, &lock(file.1, owner, F_WRLCK), 0));
    assert_eq!(write(&mut guest, file, 0, b"before"), 0);
    for round in 0..3 {
        guest.go_away();
        assert_eq!(set(&mut other, seconds, 9, F_WRLCK), EAGAIN, "it has the lock");
        guest.connect_again(&served.socket());
        assert_eq!(read(&mut guest, file, 0, 100), b"before", "round {round}");
        assert_eq!(read(&mut guest, gone, 0, 100), b"has no name");
        assert_eq!(guest.ask(FUSE_GETATTR, second.0, &[0; 16], 0).unwrap().0, 0);
        assert!(waits.iter().all(|slot| !guest.is_answered(1, *slot)));
    }
    // One is granted while nobody is there to hear of it.
    guest.go_away();
    assert_eq!(set(&mut other, theirs, 7, F_UNLCK), 0);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(set(&mut other, theirs, 7, F_WRLCK), EAGAIN, "it has been granted");
    guest.connect_again(&served.socket());
    assert_eq!(guest.answer(1, waits[0]).unwrap().0, 0);
    assert!(!guest.is_answered(1, waits[1]));
    assert_eq!(set(&mut guest, file, 1, F_UNLCK), 0);
    assert_eq!(guest.answer(1, waits[1]).unwrap().0, 0);
    drop((guest, other));
    served.end();
}

/// An answer that the driver has not seen when the connection goes is there afterwards, and nothing
/// is done twice.
#[test]
fn what_was_answered_is_not_done_again() {
    let served = Served::new(Options::default());
    let mut guest = with_record(&served, Setup::default());
    let file = create(&mut guest, "f");
    for round in 0..20 {
        let called = format!("g{round}");
        let words = [0o755u32, 0].map(u32::to_le_bytes).concat();
        let slot = guest.submit(1, FUSE_MKDIR, 1, &[words, name(&called)].concat(), 0);
        if round % 2 == 0 {
            // It has been done, whoever has heard of it.
            std::thread::sleep(Duration::from_millis(20));
        }
        guest.connect_again(&served.socket());
        assert_eq!(guest.answer(1, slot).unwrap().0, 0, "{called}");
        // One more would be an answer to this.
        let (error, attr) = guest.ask(FUSE_GETATTR, file.0, &[0; 16], 0).unwrap();
        assert_eq!((error, attr.len()), (0, 104), "{called}");
    }
}

/// What is done in parts goes on too, and is done once.
#[test]
fn a_request_in_parts_goes_on() {
    let served = Served::new(Options::default());
    let mut guest = with_record(&served, Setup::default());
    let file = create(&mut guest, "f");
    let words = [file.1, 0, 45u64 << 20, 0].map(u64::to_le_bytes).concat();
    let slot = guest.submit(1, FUSE_FALLOCATE, file.0, &words, 0);
    guest.connect_again(&served.socket());
    assert_eq!(guest.answer(1, slot).unwrap().0, 0);
    let attr = guest.ask(FUSE_GETATTR, file.0, &[0; 16], 0).unwrap().1;
    assert_eq!(word(&attr, 24), 45 << 20, "its size");
}

/// A front end that does not say what was in flight, or says what is not true, gets errors for
/// that.
#[test]
fn what_is_not_known_is_an_error() {
    let served = Served::new(Options::default());
    let mut other = served.other();
    let mut guest = with_record(&served, Setup::default());
    let file = create(&mut guest, "f");
    let theirs = open(&mut other, "f");
    assert_eq!(set(&mut other, theirs, 7, F_WRLCK), 0);
    let waits =
        [1, 2].map(|owner| guest.submit(1, FUSE_SETLKW, file.0, &lock(file.1, owner, F_WRLCK), 0));
    assert_eq!(write(&mut guest, file, 0, b"after them"), 0);
    guest.go_away();
    // Another request is in the place of the first.
    guest.write(guest.message(waits[0]) + 8, &[0xee; 8]);
    guest.connect_again(&served.socket());
    assert_eq!(guest.answer(1, waits[0]).unwrap().0, EIO);
    assert!(!guest.is_answered(1, waits[1]));
    assert_eq!(read(&mut guest, file, 0, 100), b"after them");
    // With nothing there that is a message.
    guest.go_away();
    guest.write(guest.message(waits[1]), &[0; 40]);
    guest.connect_again(&served.socket());
    assert!(guest.is_dropped());
    // Its session has ended with that.
    assert_eq!(set(&mut other, theirs, 7, F_UNLCK), 0);
    assert_eq!(set(&mut other, theirs, 7, F_WRLCK), 0);

    let mut guest = with_record(&served, Setup::default());
    let file = open(&mut guest, "f");
    guest.go_away();
    guest.lose_record();
    guest.connect_again(&served.socket());
    assert_eq!(guest.ask(FUSE_GETATTR, file.0, &[0; 16], 0).unwrap().0, EIO, "without a record");
    guest.init();
    let file = open(&mut guest, "f");
    assert_eq!(read(&mut guest, file, 0, 100), b"after them");
}

/// A session that ends in whatever way is not kept, and one whose front end stays away ends.
#[test]
fn a_session_is_not_kept_for_ever() {
    let away = Duration::from_millis(300);
    for cause in 0..5 {
        let served = Served::new(Options { away, ..Options::default() });
        let mut other = served.other();
        let recorded = cause != 0;
        let mut guest = match recorded {
            true => with_record(&served, Setup::default()),
            false => served.guest(),
        };
        let file = create(&mut guest, "f");
        let theirs = open(&mut other, "f");
        assert_eq!(set(&mut guest, file, 1, F_WRLCK), 0);
        let waits = other.submit(1, FUSE_SETLKW, theirs.0, &lock(theirs.1, 7, F_WRLCK), 0);
        let begun = Instant::now();
        let late = match cause {
            // No record, no session.
            0 => {
                guest.go_away();
                false
            }
            // It stays away.
            1 => {
                guest.go_away();
                true
            }
            // It begins anew.
            2 => {
                guest.connect_again(&served.socket());
                assert!(!other.is_answered(1, waits));
                guest.init();
                false
            }
            3 => {
                assert_eq!(guest.ask(FUSE_DESTROY, 0, &[], 0).unwrap().0, 0);
                guest.connect_again(&served.socket());
                assert_eq!(guest.ask(FUSE_GETATTR, 1, &[0; 16], 0).unwrap().0, EIO);
                false
            }
            // It breaks a rule.
            _ => {
                guest.set_available(1, 5000);
                false
            }
        };
        assert_eq!(other.answer(1, waits).unwrap().0, 0, "cause {cause}");
        let took = begun.elapsed();
        assert_eq!(took >= away, late, "cause {cause}: {took:?}");
        drop((guest, other));
        served.end();
    }
}

/// A server that ends waits for no front end that is away.
#[test]
fn a_server_ends_without_who_is_away() {
    let served = Served::new(Options::default());
    let mut guest = with_record(&served, Setup::default());
    create(&mut guest, "f");
    guest.go_away();
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    let mut fs = served.end();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(fs.lookup(&fixtures::cx(), Ino::ROOT, Name::new(b"f").unwrap()).is_ok());
}

/// A guest that keeps what it learns is told when its front end is back, if that is soon; others do
/// not wait for it longer than for any other.
#[test]
fn notices_wait_for_who_is_away() {
    let served = Served::new(Options { tells: true, ids: Ids::Guest, ..Options::default() });
    for (away, ends) in [(300, false), (1500, true)] {
        let mut guest = Caching::new(with_record(&served, TAKES), 4);
        let ino = match guest.lookup(1, "f") {
            Ok(ino) => ino,
            Err(_) => create(&mut guest.guest, "f").0,
        };
        guest.size(ino).unwrap();
        let kept = guest.size(ino).unwrap();
        assert!(guest.hits[1] > 0, "it keeps that");
        guest.guest.go_away();
        let took = std::thread::scope(|scope| {
            let change = scope.spawn(|| changed(&served, kept + 1, &mut []));
            std::thread::sleep(Duration::from_millis(away));
            assert_eq!(change.is_finished(), ends);
            guest.guest.connect_again(&served.socket());
            while !change.is_finished() {
                guest.heed();
            }
            change.join().unwrap()
        });
        assert!(took < Duration::from_secs(3), "{took:?}");
        let ((error, _), _) = guest.ask(FUSE_GETATTR, ino, &[0; 16], 0);
        assert_eq!(error, if ends { EIO } else { 0 });
        if !ends {
            assert_eq!((guest.heeded > 0, guest.size(ino)), (true, Ok(kept + 1)));
        }
        guest.guest.go_away();
        drop(guest);
        std::thread::sleep(Duration::from_millis(150));
    }
    served.end();
}
