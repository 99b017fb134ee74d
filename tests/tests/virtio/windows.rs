//! The window in which a guest maps files, by a front end that keeps no rule that it need not.

use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use atoll_host::server::mapped_memory;
use atoll_server::{Access, Credentials, Limits, Session};

use atoll_tests::guest::{Guest, Setup};
use atoll_tests::window::{SHMEM_MAP, SHMEM_UNMAP, Window};
use atoll_vfs::{Context, Handle, OpenFlags, SetAttr};

use super::*;

const FUSE_SETUPMAPPING: u32 = 48;
const FUSE_REMOVEMAPPING: u32 = 49;

const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
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
    let handle = fs.open(&cx, ino, OpenFlags::READ).unwrap();
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

/// A session as a client of a ring has it, and its handle of `f`.
fn ring(served: &Served, ino: u64) -> (Session<Fs<RamDevice>>, (Ino, Handle)) {
    let volume = served.volume.as_ref().unwrap();
    let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
    let ino = Ino(ino);
    let handle = session.open(&fixtures::cx(), ino, OpenFlags::READ | OpenFlags::WRITE).unwrap();
    (session, (ino, handle))
}

/// The memories that a program maps to have `len` bytes from `offset` on, and where each part ends.
fn map(
    session: &mut Session<Fs<RamDevice>>,
    (ino, handle): (Ino, Handle),
    (offset, len): (u64, u64),
) -> Vec<(std::fs::File, u64)> {
    let (mut at, mut parts) = (offset, Vec::new());
    while at < offset + len {
        let rest = offset + len - at;
        let mapping = session.map(&fixtures::cx(), ino, handle, at, rest).unwrap();
        let memory = mapped_memory(session.volume(), mapping.token).unwrap().0;
        at += mapping.len;
        parts.push((std::fs::File::from(memory), at));
    }
    parts
}

/// What a byte of a file is after so many rounds.
fn byte(at: usize, round: u8) -> u8 {
    (at / 4096 * 31 + at % 251) as u8 ^ round.wrapping_mul(37)
}

fn content(range: u64, round: u8) -> Vec<u8> {
    let from = (range * RANGE) as usize;
    (from..from + RANGE as usize).map(|at| byte(at, round)).collect()
}

/// A guest walks over a file that is many times as long as what it may have in memory, and so do
/// two at once, beside a program that has a part of it mapped: each byte is right, for all.
#[test]
fn a_file_may_be_longer_than_all_that_is_mapped() {
    const RANGES: u64 = 50;
    // Of which the devices take 37 MiB.
    let memory = Some(57 << 20);
    let mut fs = fixtures::volume(40 << 10);
    let all = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    fs.setattr(&fixtures::cx(), Ino::ROOT, None, &all).unwrap();
    let options = Options { window: WINDOW, memory, ..Options::default() };
    let served = Served::with(fs, options);
    let (mut guest, window) = begin(&served, "guest");
    let file = create(&mut guest, "f");
    for at in 0..(RANGES * RANGE) >> 19 {
        let part: Vec<u8> = (at << 19..(at + 1) << 19).map(|at| byte(at as usize, 0)).collect();
        assert_eq!(write(&mut guest, file, at << 19, &part), 0);
    }
    let (mut session, theirs) = ring(&served, file.0);
    // In the middle of a range, and over the border of two.
    let (from, len) = (5 * RANGE + 3 * 65_536, 2 * RANGE);
    let program = map(&mut session, theirs, (from, len)).remove(0).0;
    let (mut second, others) = begin(&served, "other");
    let reads = open(&mut second, "f");
    let mut seen = vec![0; RANGE as usize];
    for round in 1..4u8 {
        let mut shown = VecDeque::new();
        for step in 0..RANGES {
            // Now from the end.
            let range = if round == 2 { RANGES - 1 - step } else { step };
            let at = step % 4 * RANGE;
            if shown.len() == 4 {
                hide((&mut guest, &window), file.0, &[at]);
                drop(shown.pop_front());
            }
            let (memory, offset) = show((&mut guest, &window), file.0, (range * RANGE, BOTH, at));
            memory.read_exact_at(&mut seen, offset).unwrap();
            assert!(seen == content(range, round - 1), "{round} {range}");
            memory.write_all_at(&content(range, round), offset).unwrap();
            // Another guest has the same, and its stores are seen.
            if range % 3 == 0 {
                let (theirs, place) =
                    show((&mut second, &others), file.0, (range * RANGE, BOTH, 0));
                theirs.read_exact_at(&mut seen, place).unwrap();
                assert!(seen == content(range, round), "{round} {range}");
                theirs.write_all_at(b"!", place + 77).unwrap();
                let mut mark = [0];
                memory.read_exact_at(&mut mark, offset + 77).unwrap();
                assert_eq!(&mark, b"!");
                theirs.write_all_at(&content(range, round)[77..78], place + 77).unwrap();
                drop(theirs);
                hide((&mut second, &others), file.0, &[0]);
            }
            shown.push_back(memory);
        }
        let mut there = vec![0; len as usize];
        program.read_exact_at(&mut there, from).unwrap();
        let right =
            (from..from + len).zip(&there).all(|(at, had)| byte(at as usize, round) == *had);
        assert!(right, "the program sees what the guests have stored, in round {round}");
        drop(shown);
        hide((&mut guest, &window), file.0, &[0, RANGE, 2 * RANGE, 3 * RANGE]);
        for range in 0..RANGES {
            let had: Vec<u8> = [0, RANGE / 2]
                .into_iter()
                .flat_map(|half| read(&mut second, reads, range * RANGE + half, 1 << 20))
                .collect();
            assert!(had == content(range, round), "{round} {range}");
        }
    }
    drop((guest, second, session, program));
    let mut fs = served.end();
    let cx = fixtures::cx();
    let ino = fs.lookup(&cx, Ino::ROOT, Name::new(b"f").unwrap()).unwrap().ino;
    let handle = fs.open(&cx, ino, OpenFlags::READ).unwrap();
    for range in 0..RANGES {
        let mut done = 0;
        while done < seen.len() {
            let at = range * RANGE + done as u64;
            done += fs.read(&cx, ino, handle, at, &mut seen[done..]).unwrap();
        }
        assert!(seen == content(range, 3), "{range}");
    }
}

/// Where there is no room a range waits for what was given back to be let go of, and no longer
/// than a guest can wait.
#[test]
fn a_range_waits_for_room() {
    // Of which the device takes 19 MiB.
    let memory = Some(32 << 20);
    let served = Served::new(Options { window: WINDOW, memory, ..Options::default() });
    let (mut guest, window) = begin(&served, "guest");
    let file = create(&mut guest, "f");
    assert_eq!(write(&mut guest, file, 40 * RANGE, b"end"), 0);
    for lets_go in [true, false, true] {
        let mut kept = Vec::new();
        let mut range = 0;
        let asks = loop {
            assert!(range < 40, "there is no bound");
            let body = setup(range * RANGE, RANGE, BOTH, 0);
            let asks = guest.submit(1, FUSE_SETUPMAPPING, file.0, &body, 0);
            let Some(asked) = window.asked_within(Duration::from_millis(100)) else { break asks };
            window.acknowledge(&asked, 0);
            assert_eq!(guest.answer(1, asks).unwrap().0, 0);
            // It keeps what it was given, though it shows it no more.
            kept.push(asked.file.unwrap());
            hide((&mut guest, &window), file.0, &[0]);
            range += 1;
        };
        assert!(range > 1 && !guest.is_answered(1, asks));
        // Others are served meanwhile.
        assert_eq!(write(&mut guest, file, 0, b"goes on"), 0);
        if lets_go {
            drop(kept);
            let asked = window.asked();
            window.acknowledge(&asked, 0);
            assert_eq!(guest.answer(1, asks).unwrap().0, 0);
            hide((&mut guest, &window), file.0, &[0]);
        } else {
            assert_eq!(guest.answer(1, asks).unwrap().0, ENOMEM);
        }
    }
    drop(guest);
    served.end();
}

/// A program maps a file of which a guest is shown ranges: it has those memories, and all others
/// in one. What a guest asks for next to what a program has is in the program's.
#[test]
fn a_program_maps_what_a_guest_is_shown() {
    let served = served(false);
    let (mut guest, window) = begin(&served, "guest");
    let (file, _) = fill(&mut guest, "f", 9 << 20);
    let (mut session, theirs) = ring(&served, file.0);
    let (shown, at) = show((&mut guest, &window), file.0, (RANGE, BOTH, 0));
    let (idle, _) = show((&mut guest, &window), file.0, (3 * RANGE, BOTH, RANGE));
    idle.write_all_at(b"before", 3 * RANGE + 9).unwrap();
    drop(idle);
    hide((&mut guest, &window), file.0, &[RANGE]);
    let parts = map(&mut session, theirs, (0, 9 << 20));
    let ends: Vec<u64> = parts.iter().map(|part| part.1).collect();
    assert_eq!(ends, [RANGE, 2 * RANGE, 9 << 20], "what nobody has any more is no part");
    let mut had = [0; 6];
    parts[2].0.read_exact_at(&mut had, 3 * RANGE + 9).unwrap();
    assert_eq!(&had, b"before");
    shown.write_all_at(b"guest's", at + 5).unwrap();
    parts[1].0.write_all_at(b"program's", RANGE + 100).unwrap();
    let mut had = [0; 9];
    shown.read_exact_at(&mut had, at + 100).unwrap();
    assert_eq!(&had, b"program's");
    assert_eq!(read(&mut guest, file, RANGE + 5, 7), b"guest's");
    // It is the same memory as the program's.
    let (last, at) = show((&mut guest, &window), file.0, (4 * RANGE, BOTH, RANGE));
    last.write_all_at(b"last", at).unwrap();
    let mut had = [0; 4];
    parts[2].0.read_exact_at(&mut had, 4 * RANGE).unwrap();
    assert_eq!(&had, b"last");
    // A range is in one piece.
    let over = setup(4096, RANGE, BOTH, 2 * RANGE);
    assert_eq!(guest.ask(FUSE_SETUPMAPPING, file.0, &over, 0).unwrap().0, EINVAL);
}

/// Where another user's write finds no room in what a program has mapped, that is let go of. A
/// guest that is shown a part of it hears that its stores are lost when it syncs; what it is shown
/// alone stays.
#[test]
fn a_guest_hears_of_what_is_lost() {
    // Of which the device takes 19 MiB.
    let memory = Some(26 << 20);
    let served = Served::new(Options { window: WINDOW, memory, ..Options::default() });
    let (mut guest, window) = begin(&served, "guest");
    let (file, _) = fill(&mut guest, "f", 5 << 20);
    let (mut session, theirs) = ring(&served, file.0);
    let volume = Arc::clone(served.volume.as_ref().unwrap());
    let limits = Limits { mapped: 1 << 20, ..Limits::default() };
    let access = Access { limits, ..Access::default() };
    let user = Credentials { uid: 4321, gid: 4321, ..Credentials::default() };
    let mut little = volume.session(user, access).unwrap();
    let set = SetAttr { mode: Some(0o666), ..SetAttr::default() };
    session.setattr(&fixtures::cx(), theirs.0, None, &set).unwrap();
    let by = Context { uid: 4321, gid: 4321, ..fixtures::cx() };
    little.lookup(&by, Ino::ROOT, Name::new(b"f").unwrap()).unwrap();
    let handle = little.open(&by, theirs.0, OpenFlags::READ | OpenFlags::WRITE).unwrap();
    // What is mapped beyond the end counts when it is written.
    let token = little.map(&by, theirs.0, handle, 6 << 20, 20 << 20).unwrap().token;
    let _program = mapped_memory(&volume, token).unwrap();
    drop(volume);
    let (alone, at) = show((&mut guest, &window), file.0, (0, BOTH, 0));
    alone.write_all_at(b"alone", at).unwrap();
    let sync = [&file.1.to_le_bytes()[..], &[0; 8]].concat();
    let (shared, end) = show((&mut guest, &window), file.0, (3 * RANGE, BOTH, RANGE));
    assert_eq!(guest.ask(FUSE_FSYNC, file.0, &sync, 0).unwrap().0, 0);
    drop(little);
    let mut wrote = 0;
    while session
        .write(&fixtures::cx(), theirs.0, theirs.1, (6 << 20) + wrote, &[1; 1 << 16])
        .is_ok()
    {
        wrote += 1 << 16;
        if wrote == 20 << 20 {
            break;
        }
    }
    assert_eq!(wrote, 20 << 20, "others' writes succeed");
    shared.write_all_at(b"lost", end).unwrap();
    assert_eq!(guest.ask(FUSE_FSYNC, file.0, &sync, 0).unwrap().0, EIO);
    hide((&mut guest, &window), file.0, &[RANGE]);
    assert_eq!(guest.ask(FUSE_FSYNC, file.0, &sync, 0).unwrap().0, 0);
    assert_eq!(read(&mut guest, file, 0, 5), b"alone");
    alone.write_all_at(b"again", at).unwrap();
    assert_eq!(read(&mut guest, file, 0, 5), b"again");
}
