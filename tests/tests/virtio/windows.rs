//! The window in which a guest maps files, by a front end that keeps no rule that it need not.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use atoll_tests::guest::{Guest, Setup};
use atoll_tests::window::{SHMEM_MAP, SHMEM_UNMAP, Window};

use super::*;

const FUSE_SETUPMAPPING: u32 = 48;
const FUSE_REMOVEMAPPING: u32 = 49;

const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const ESTALE: i32 = 116;

const RANGE: u64 = 2 << 20;
const WINDOW: u64 = 4 * RANGE;
const PAGE: u64 = 4096;
const READ: u64 = 2;
const BOTH: u64 = 3;

/// A server whose first device is `read_only`.
fn served(read_only: bool) -> Served {
    Served::new(Options { window: WINDOW, read_only, ..Options::default() })
}

/// A guest that has begun, and its front end's half of the window.
fn begin(served: &Served, socket: &str) -> (Guest, Window) {
    let setup = Setup { window: true, ..Setup::default() };
    let mut guest = Guest::connect(&served.folder.path().join(socket), setup);
    let window = guest.open_window(WINDOW);
    guest.init();
    (guest, window)
}

/// As Linux asks, which names no handle.
fn setup(offset: u64, len: u64, flags: u64, at: u64) -> Vec<u8> {
    [u64::MAX, offset, len, flags, at].map(u64::to_le_bytes).concat()
}

fn remove(ranges: &[(u64, u64)]) -> Vec<u8> {
    let mut body = (ranges.len() as u32).to_le_bytes().to_vec();
    ranges.iter().for_each(|(at, len)| body.extend([*at, *len].map(u64::to_le_bytes).concat()));
    body
}

/// Has a range shown; the file that the front end was given, and where the range begins in it.
fn show(
    (guest, window): (&mut Guest, &Window),
    ino: u64,
    (offset, flags, at): (u64, u64, u64),
) -> (std::fs::File, u64) {
    let asks = guest.submit(1, FUSE_SETUPMAPPING, ino, &setup(offset, RANGE, flags, at), 0);
    let asked = window.asked();
    assert_eq!((asked.number, asked.at, asked.len), (SHMEM_MAP, at, RANGE));
    assert!(!guest.is_answered(1, asks), "nobody has acknowledged it");
    window.acknowledge(&asked, 0);
    assert_eq!(guest.answer(1, asks).unwrap().0, 0);
    (asked.file.unwrap(), asked.offset)
}

fn hide((guest, window): (&mut Guest, &Window), ino: u64, ranges: &[u64]) {
    let body = remove(&ranges.iter().map(|at| (*at, RANGE)).collect::<Vec<_>>());
    let asks = guest.submit(1, FUSE_REMOVEMAPPING, ino, &body, 0);
    for at in ranges {
        let asked = window.asked();
        assert_eq!((asked.number, asked.at, asked.len), (SHMEM_UNMAP, *at, RANGE));
        assert!(!guest.is_answered(1, asks));
        window.acknowledge(&asked, 0);
    }
    assert_eq!(guest.answer(1, asks).unwrap().0, 0);
}

/// A new file of so many bytes, and its content.
fn fill(guest: &mut Guest, called: &str, len: usize) -> ((u64, u64), Vec<u8>) {
    let file = create(guest, called);
    let content: Vec<u8> = (0..len).map(|at| (at / 4096 + at % 251) as u8).collect();
    for (number, part) in content.chunks(1 << 18).enumerate() {
        assert_eq!(write(guest, file, (number << 18) as u64, part), 0);
    }
    (file, content)
}

/// What a guest stores is everybody's at once, and made durable by its fsync.
#[test]
fn a_guest_is_shown_a_file() {
    let served = served(false);
    let (mut guest, window) = begin(&served, "guest");
    let mut other = served.other();
    let (file, content) = fill(&mut guest, "f", 3 << 20);
    let theirs = open(&mut other, "f");
    let (first, at) = show((&mut guest, &window), file.0, (0, READ, RANGE));
    let (second, end) = show((&mut guest, &window), file.0, (RANGE, BOTH, 0));
    let mut seen = vec![0; RANGE as usize];
    first.read_exact_at(&mut seen, at).unwrap();
    assert!(seen == content[..RANGE as usize]);
    second.read_exact_at(&mut seen, end).unwrap();
    assert!(seen[..1 << 20] == content[RANGE as usize..]);
    assert!(seen[1 << 20..].iter().all(|byte| *byte == 0), "zeros follow the end");
    // A range that was to be read is there to be written: nothing is asked.
    let again = setup(0, RANGE, BOTH, RANGE);
    assert_eq!(guest.ask(FUSE_SETUPMAPPING, file.0, &again, 0).unwrap().0, 0);
    first.write_all_at(b"stored", at + 5000).unwrap();
    assert_eq!(read(&mut other, theirs, 5000, 6), b"stored");
    assert_eq!(write(&mut other, theirs, RANGE + 7, b"theirs"), 0);
    let mut found = [0; 6];
    second.read_exact_at(&mut found, end + 7).unwrap();
    assert_eq!(&found, b"theirs");
    // What is stored behind the end is zeros when the file gets there.
    second.write_all_at(b"beyond", end + (1 << 20) + 100).unwrap();
    assert_eq!(write(&mut other, theirs, (3 << 20) + 200, b"!"), 0);
    assert_eq!(read(&mut other, theirs, (3 << 20) + 100, 6), [0; 6]);
    first.write_all_at(b"synced", at + 9000).unwrap();
    let body = [&file.1.to_le_bytes()[..], &[0; 8]].concat();
    assert_eq!(guest.ask(FUSE_FSYNC, file.0, &body, 0).unwrap().0, 0);
    hide((&mut guest, &window), file.0, &[0, RANGE]);
    drop((first, second, guest, window, other));
    let mut fs = served.end();
    let cx = fixtures::cx();
    let ino = fs.lookup(&cx, Ino::ROOT, Name::new(b"f").unwrap()).unwrap().ino;
    let handle = fs.open(&cx, ino, atoll_vfs::OpenFlags::READ).unwrap();
    for (at, text) in [(5000, b"stored"), (9000, b"synced"), (RANGE + 7, b"theirs")] {
        let mut found = [0; 6];
        fs.read(&cx, ino, handle, at, &mut found).unwrap();
        assert_eq!(&found, text);
    }
}

#[test]
fn requests_that_make_no_sense() {
    let served = served(false);
    let (mut guest, window) = begin(&served, "guest");
    let (file, _) = fill(&mut guest, "f", 100);
    let (another, _) = fill(&mut guest, "g", 100);
    let (ino, unknown) = (file.0, 0x1234_5678_9abc);
    let _shown = show((&mut guest, &window), ino, (0, BOTH, RANGE));
    let mut refused = |opcode, ino, body: &[u8], error| {
        assert_eq!(guest.ask(opcode, ino, body, 0).unwrap().0, error, "{body:?}");
    };
    for body in [
        setup(0, RANGE, BOTH, WINDOW),
        setup(0, RANGE, BOTH, WINDOW - RANGE + PAGE),
        setup(0, WINDOW + PAGE, BOTH, 0),
        setup(0, 0, BOTH, 0),
        setup(0, 5, BOTH, 0),
        setup(5, RANGE, BOTH, 0),
        setup(0, RANGE, BOTH, 5),
        setup(0, RANGE, BOTH, u64::MAX - PAGE + 1),
        setup(u64::MAX - PAGE + 1, RANGE, BOTH, 0),
        // Others overlap what is shown.
        setup(RANGE, RANGE, BOTH, RANGE),
        setup(0, RANGE, BOTH, PAGE),
        setup(0, PAGE, READ, 2 * RANGE - PAGE),
        setup(0, WINDOW, READ, 0),
        // Half of the arguments.
        setup(0, RANGE, BOTH, 0)[..20].to_vec(),
    ] {
        refused(FUSE_SETUPMAPPING, ino, &body, EINVAL);
    }
    refused(FUSE_SETUPMAPPING, another.0, &setup(0, RANGE, BOTH, RANGE), EINVAL);
    if nix::unistd::getuid().is_root() {
        // The superuser's guest may name any inode.
        refused(FUSE_SETUPMAPPING, unknown, &setup(0, RANGE, BOTH, 0), ESTALE);
    }
    let many = vec![(0, PAGE); 200];
    for ranges in [
        &[(0, RANGE)][..],
        &[(RANGE, PAGE)],
        &[(RANGE + PAGE, RANGE - PAGE)],
        &[(RANGE, RANGE), (RANGE, RANGE)],
        &[(RANGE, RANGE), (0, RANGE)],
        &[(RANGE, 2 * RANGE)],
        &[(u64::MAX, u64::MAX)],
        &many,
    ] {
        refused(FUSE_REMOVEMAPPING, ino, &remove(ranges), EINVAL);
    }
    let more_than_there_are = [&9u32.to_le_bytes()[..], &[0; 16]].concat();
    refused(FUSE_REMOVEMAPPING, ino, &more_than_there_are, EINVAL);
    refused(FUSE_REMOVEMAPPING, ino, &remove(&[]), 0);
    // No more than there are ranges, however small.
    for at in 0..3 {
        let asks = setup(0, PAGE, READ, at * PAGE);
        let asks = guest.submit(1, FUSE_SETUPMAPPING, ino, &asks, 0);
        window.acknowledge(&window.asked(), 0);
        assert_eq!(guest.answer(1, asks).unwrap().0, 0);
    }
    let one_more = setup(0, PAGE, READ, 3 * PAGE);
    assert_eq!(guest.ask(FUSE_SETUPMAPPING, ino, &one_more, 0).unwrap().0, ENOSPC);
    assert!(window.asked_within(Duration::from_millis(50)).is_none(), "nothing else was asked");
    assert_eq!(write(&mut guest, file, 0, b"goes on"), 0);
    drop(guest);
    served.end();
}

/// A front end that does not do what it is asked harms its own guest.
#[test]
fn a_front_end_that_does_not_show() {
    let served = served(false);
    let (mut guest, window) = begin(&served, "guest");
    let (file, _) = fill(&mut guest, "f", 100);
    let body = setup(0, RANGE, BOTH, 0);
    // It refuses, and may be asked again.
    let asks = guest.submit(1, FUSE_SETUPMAPPING, file.0, &body, 0);
    window.acknowledge(&window.asked(), 1);
    assert_eq!(guest.answer(1, asks).unwrap().0, EIO);
    let _shown = show((&mut guest, &window), file.0, (0, BOTH, 0));
    // It never answers: the guest's other requests have their answers, and so have others'.
    let waits = guest.submit(1, FUSE_REMOVEMAPPING, file.0, &remove(&[(0, RANGE)]), 0);
    assert_eq!(window.asked().number, SHMEM_UNMAP);
    assert_eq!(guest.ask(FUSE_SETUPMAPPING, file.0, &body, 0).unwrap().0, EBUSY);
    let next = setup(0, RANGE, BOTH, RANGE);
    let behind = guest.submit(1, FUSE_SETUPMAPPING, file.0, &next, 0);
    let (mut other, others) = begin(&served, "other");
    let theirs = open(&mut other, "f");
    for round in 0..20 {
        assert_eq!(write(&mut guest, file, 0, &[round; 9]), 0);
        assert_eq!(read(&mut other, theirs, 0, 9), [round; 9]);
    }
    let _theirs = show((&mut other, &others), theirs.0, (0, BOTH, 0));
    assert!(!guest.is_answered(1, waits) && !guest.is_answered(1, behind));
    // It answers nonsense, after which it is asked no more.
    window.say(&[7; 20]);
    assert_eq!(guest.answer(1, waits).unwrap().0, EIO);
    assert_eq!(guest.answer(1, behind).unwrap().0, EIO);
    assert_eq!(guest.ask(FUSE_SETUPMAPPING, file.0, &body, 0).unwrap().0, EIO);
    assert_eq!(write(&mut guest, file, 0, b"goes on"), 0);
    // It closes the connection.
    drop(others);
    let again = setup(0, RANGE, BOTH, RANGE);
    assert_eq!(other.ask(FUSE_SETUPMAPPING, theirs.0, &again, 0).unwrap().0, EIO);
    drop((guest, other));
    // One that leaves an answer out does not keep the server from its end.
    let (mut last, window) = begin(&served, "guest");
    let file = open(&mut last, "f");
    last.submit(1, FUSE_SETUPMAPPING, file.0, &body, 0);
    window.asked();
    let begun = Instant::now();
    served.end();
    assert!(begun.elapsed() < Duration::from_secs(10));
}

/// A front end acknowledges a range before its guest sees it: what says so is its new memory.
#[test]
fn an_answer_waits_until_the_range_is_seen() {
    // The device waits longer than that, where no memory comes.
    const SOON: Duration = Duration::from_millis(30);
    let served = served(false);
    let (mut guest, window) = begin(&served, "guest");
    let (file, _) = fill(&mut guest, "f", 100);
    // On a machine that is busy a round says nothing.
    let told = (0..50).filter(|_| {
        let asks = guest.submit(1, FUSE_SETUPMAPPING, file.0, &setup(0, RANGE, BOTH, 0), 0);
        let asked = window.asked();
        let begun = Instant::now();
        window.acknowledge(&asked, 0);
        std::thread::sleep(Duration::from_millis(5));
        let early = guest.is_answered(1, asks);
        assert!(!early || begun.elapsed() > SOON, "it has not been seen");
        guest.grow();
        assert_eq!(guest.answer(1, asks).unwrap().0, 0);
        let told = begun.elapsed() < SOON;
        hide((&mut guest, &window), file.0, &[0]);
        told
    });
    assert!(told.take(3).count() > 0, "the memory says nothing");
}

/// Half an acknowledgement is none, and the rest makes it one.
#[test]
fn an_acknowledgement_in_pieces() {
    let served = served(false);
    let (mut guest, window) = begin(&served, "guest");
    let (file, _) = fill(&mut guest, "f", 100);
    let asks = guest.submit(1, FUSE_SETUPMAPPING, file.0, &setup(0, RANGE, BOTH, 0), 0);
    let asked = window.asked();
    let said = [asked.number, 5, 8].map(u32::to_ne_bytes).concat();
    for part in [&said[..3], &said[3..], &[0; 7]] {
        window.say(part);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!guest.is_answered(1, asks));
    }
    window.say(&[0]);
    assert_eq!(guest.answer(1, asks).unwrap().0, 0);
}

/// Of a file that it may not write a guest has copies, which change nothing, and which follow the
/// file when it is opened.
#[test]
fn a_guest_that_may_only_read_has_copies() {
    let served = served(true);
    let (mut writer, _window) = begin(&served, "other");
    let (file, mut content) = fill(&mut writer, "f", 3 << 20);
    let (mut guest, window) = begin(&served, "guest");
    let look_up = |guest: &mut Guest| guest.ask(FUSE_LOOKUP, 1, &name("f"), 0).unwrap();
    let (error, entry) = look_up(&mut guest);
    assert_eq!(error, 0);
    let ino = word(&entry, 0);
    let to_write = setup(0, RANGE, BOTH, 0);
    assert_eq!(guest.ask(FUSE_SETUPMAPPING, ino, &to_write, 0).unwrap().0, EACCES);
    let asks = guest.submit(1, FUSE_SETUPMAPPING, ino, &setup(RANGE, RANGE, READ, 0), 0);
    let asked = window.asked();
    assert!(!asked.writable);
    window.acknowledge(&asked, 0);
    assert_eq!(guest.answer(1, asks).unwrap().0, 0);
    let copy = asked.file.unwrap();
    let mut seen = vec![0; RANGE as usize];
    copy.read_exact_at(&mut seen, asked.offset).unwrap();
    assert!(seen[..1 << 20] == content[RANGE as usize..]);
    assert!(seen[1 << 20..].iter().all(|byte| *byte == 0), "zeros follow the end");
    // Now it is shown, to be read alone.
    let upgrade = setup(RANGE, RANGE, BOTH, 0);
    assert_eq!(guest.ask(FUSE_SETUPMAPPING, ino, &upgrade, 0).unwrap().0, EACCES);
    let _ = copy.write_all_at(b"tampered", asked.offset);
    assert_eq!(read(&mut writer, file, RANGE, 8), content[RANGE as usize..][..8]);
    let at = RANGE as usize + 5000;
    content[at] ^= 1;
    assert_eq!(write(&mut writer, file, at as u64, &content[at..at + 1]), 0);
    let to_read = [0u32, 0].map(u32::to_le_bytes).concat();
    assert_eq!(guest.ask(FUSE_OPEN, ino, &to_read, 0).unwrap().0, 0);
    copy.read_exact_at(&mut seen, asked.offset).unwrap();
    assert!(seen[..1 << 20] == content[RANGE as usize..]);
    hide((&mut guest, &window), ino, &[0]);
}

/// A guest that begins again is shown nothing: what its front end has not stopped showing by
/// itself, the server has it stop.
#[test]
fn a_guest_that_begins_again_is_shown_nothing() {
    let served = served(false);
    let (mut guest, window) = begin(&served, "guest");
    fill(&mut guest, "f", 100);
    for stopped in [false, true, false] {
        let file = open(&mut guest, "f");
        let _shown = show((&mut guest, &window), file.0, (0, BOTH, RANGE));
        // One that the front end has not answered yet.
        guest.submit(1, FUSE_SETUPMAPPING, file.0, &setup(0, RANGE, BOTH, 0), 0);
        let open = window.asked();
        assert_eq!((open.number, open.at), (SHMEM_MAP, 0));
        if stopped {
            guest.reset();
        }
        guest.init();
        window.acknowledge(&open, 0);
        if !stopped {
            for at in [0, RANGE] {
                let asked = window.asked();
                assert_eq!((asked.number, asked.at), (SHMEM_UNMAP, at));
                window.acknowledge(&asked, 0);
            }
        }
        let body = remove(&[(RANGE, RANGE)]);
        assert_eq!(guest.ask(FUSE_REMOVEMAPPING, file.0, &body, 0).unwrap().0, EINVAL);
        assert!(window.asked_within(Duration::from_millis(50)).is_none());
        // A driver does not wait for answers to what its last life asked.
        guest.reset();
        guest.init();
    }
}
