//! The log of the pages that a device writes, which the front end of a guest that moves asks for.

use std::collections::BTreeSet;
use std::fs::File;

use atoll_tests::guest::{DirtyLog, PAGE};
use atoll_vfs::wire::opcode::FUSE_RELEASE;
use rustix::fs::OFlags;

use super::*;

/// The pages of the data of scattered reads.
const PAGES: u64 = MEMORY + (43 << 20);
const FILE: u64 = 600_000;

/// The guest's memory, a page after the other.
fn snapshot(guest: &Guest) -> Vec<u8> {
    let mut bytes = vec![0; guest.memory().metadata().unwrap().len() as usize];
    guest.read(MEMORY, &mut bytes);
    bytes
}

fn stop(guest: &mut Guest, queues: usize) {
    for queue in 0..queues {
        guest.stop(queue);
    }
}

/// The pages that differ.
fn changed(before: &[u8], after: &[u8]) -> BTreeSet<u64> {
    let pages = before.chunks(PAGE as usize).zip(after.chunks(PAGE as usize));
    let differ = pages.enumerate().filter(|(_, (before, after))| before != after);
    differ.map(|(page, _)| MEMORY / PAGE + page as u64).collect()
}

/// Has the device do what the driver has offered while it stood still; the pages that changed.
fn serve(guest: &mut Guest, queues: usize) -> BTreeSet<u64> {
    let before = snapshot(guest);
    guest.resume();
    let until = Instant::now() + Duration::from_secs(30);
    while !(0..queues).all(|queue| guest.is_all_used(queue)) {
        assert!(Instant::now() < until, "no answer");
        std::thread::sleep(Duration::from_micros(100));
    }
    stop(guest, queues);
    changed(&before, &snapshot(guest))
}

/// Offers a read into pieces of memory of any size and in any order, which begin in pages that
/// nothing else is in: the pages.
fn scattered(guest: &mut Guest, rng: &mut Rng, (ino, handle): (u64, u64)) -> BTreeSet<u64> {
    const HEAD: u16 = 50;
    const TABLE: u64 = PLACE + 0x1000;
    // As many as there are descriptors that no slot has.
    let count = rng.within(1..12);
    let mut places: Vec<u64> = (0..32).collect();
    let pieces: Vec<(u64, u32)> = (0..count)
        .map(|_| {
            let place = places.swap_remove(rng.within(0..places.len() as u64) as usize);
            let skip = rng.within(0..PAGE);
            (PAGES + place * 2 * PAGE + skip, rng.within(1..2 * PAGE - skip) as u32)
        })
        .collect();
    let len: u32 = pieces.iter().map(|&(_, len)| len).sum();
    let head = [handle.to_le_bytes(), rng.within(0..FILE).to_le_bytes()].concat();
    let words = [len, 0].map(u32::to_le_bytes).concat();
    let body = [&head[..], &words, &[0; 16]].concat();
    let message = request(FUSE_READ, 7, ino, &body);
    guest.write(PLACE, &message);
    guest.write(PLACE + 0x2000, &[0xa5; 16]);
    let mut chain = vec![(PLACE, message.len() as u32, 0), (PLACE + 0x2000, 16, WRITE)];
    chain.extend(pieces.iter().map(|&(addr, len)| (addr, len, WRITE)));
    for (index, &(addr, len, flags)) in chain.iter().enumerate() {
        let more = if index + 1 < chain.len() { NEXT } else { 0 };
        let index = HEAD + index as u16;
        guest.describe(guest.table(1), index, (addr, len, flags | more, index + 1));
    }
    if rng.chance(50) && guest.takes_tables() {
        for (index, &(addr, len, flags)) in chain.iter().enumerate() {
            let more = if index + 1 < chain.len() { NEXT } else { 0 };
            guest.describe(TABLE, index as u16, (addr, len, flags | more, index as u16 + 1));
        }
        let table = (TABLE, 16 * chain.len() as u32, INDIRECT, 0);
        guest.describe(guest.table(1), HEAD, table);
    }
    for &(addr, len) in &pieces {
        guest.write(addr, &vec![0xa5; len as usize]);
    }
    guest.offer(1, HEAD);
    let mut pages = BTreeSet::from([(PLACE + 0x2000) / PAGE]);
    for (addr, len) in pieces {
        pages.extend(addr / PAGE..=(addr + u64::from(len) - 1) / PAGE);
    }
    pages
}

/// Requests by chance: each page that differs afterwards is marked, and no other than those which
/// the device may write.
fn by_chance(served: &Served, setup: Setup, log: &DirtyLog, seed: u64) {
    let bits = format!("{setup:?}, {log:?}, seed {seed}");
    let mut rng = Rng::new(seed);
    let mut guest = served.begin("guest", setup);
    let file = create(&mut guest, &format!("f{seed}"));
    assert_eq!(write(&mut guest, file, 0, &pattern(seed, FILE as usize)), 0);
    guest.begin_log(Some(log), 0).unwrap();
    let queues = setup.queues;
    stop(&mut guest, queues);
    let mut seen = 0;
    for round in 0..8 {
        let mut may: BTreeSet<u64> =
            (0..queues).flat_map(|queue| guest.used_pages(queue)).collect();
        let mut slots = Vec::new();
        for _ in 0..rng.within(0..6) {
            let (opcode, body, room) = match rng.within(0..5) {
                0 => (FUSE_GETATTR, vec![0; 16], 0),
                1 => (FUSE_LOOKUP, name("nothing"), 0),
                2 => (FUSE_SETLK, lock(file.1, round, F_UNLCK), 0),
                _ => {
                    let size = rng.within(1..200_000);
                    let at = rng.within(0..FILE + 100_000);
                    let head = [file.1.to_le_bytes(), at.to_le_bytes()].concat();
                    let words = [size as u32, 0].map(u32::to_le_bytes).concat();
                    (FUSE_READ, [&head[..], &words, &[0; 16]].concat(), size as usize)
                }
            };
            let ino = if opcode == FUSE_LOOKUP { 1 } else { file.0 };
            slots.push((1, guest.submit(1, opcode, ino, &body, room)));
        }
        if rng.chance(50) {
            slots.push((0, guest.submit(0, FUSE_FORGET, file.0, &0u64.to_le_bytes(), 0)));
        }
        for &(_, slot) in &slots {
            may.extend(guest.scribble(slot));
        }
        let own = rng.chance(50);
        if own {
            may.extend(scattered(&mut guest, &mut rng, file));
        }
        log.take();
        let changed = serve(&mut guest, queues);
        let mut marked = log.take();
        assert!(marked.is_superset(&changed), "{bits}, round {round}: {changed:?} {marked:?}");
        if log.is_exact() {
            assert!(may.is_superset(&marked), "{bits}, round {round}: {may:?} {marked:?}");
        } else {
            let whole: BTreeSet<u64> = may.iter().map(|page| page / 8).collect();
            marked.retain(|page| !whole.contains(&(page / 8)));
            assert!(marked.is_empty(), "{bits}, round {round}: {marked:?}");
        }
        seen += changed.len();
        for (queue, slot) in slots {
            guest.answer(queue, slot).unwrap();
        }
    }
    assert!(seen > 40, "{bits}: {seen}");
    guest.resume();
    // Nothing is marked any more when it is not wanted.
    guest.end_log().unwrap();
    log.take();
    assert_eq!(read(&mut guest, file, 0, 1000), pattern(seed, FILE as usize)[..1000]);
    let body = [&file.1.to_le_bytes()[..], &[0; 16]].concat();
    assert_eq!(guest.ask(FUSE_RELEASE, file.0, &body, 0).unwrap().0, 0);
    assert!(log.take().is_empty());
}

#[test]
fn every_page_that_a_device_writes_is_marked() {
    let served = Served::new(Options::default());
    for bits in 0..8 {
        let has = |bit: u32| bits >> bit & 1 != 0;
        let (sealed, indirect, event_index) = (has(0), has(1), has(0) != has(1));
        let setup = Setup { sealed, indirect, event_index, ..Setup::default() };
        by_chance(&served, setup, &DirtyLog::new(has(2), 64, 0), bits);
    }
    served.end();
    // Where what its user takes is limited, no data is put in its place at once.
    let served = Served::new(Options { memory: Some(64 << 20), ..Options::default() });
    by_chance(&served, Setup::default(), &DirtyLog::new(true, 0, 0), 8);
    served.end();
}

/// An answer that comes long after its request is marked as well, in the log that there is then.
#[test]
fn an_answer_that_waited_is_marked() {
    let served = Served::new(Options::default());
    let mut guest = served.guest();
    let file = create(&mut guest, "f");
    let set = guest.ask(FUSE_SETLK, file.0, &lock(file.1, 1, F_WRLCK), 0).unwrap();
    assert_eq!(set.0, 0);
    let waits = guest.submit(1, FUSE_SETLKW, file.0, &lock(file.1, 2, F_WRLCK), 0);
    assert_eq!(guest.ask(FUSE_GETATTR, 1, &[0; 16], 0).unwrap().0, 0);
    let (first, second) = (DirtyLog::new(true, 0, 0), DirtyLog::new(true, 0, 0));
    guest.begin_log(Some(&first), 0).unwrap();
    guest.begin_log(Some(&second), 0).unwrap();
    let pages = guest.scribble(waits);
    let unlock = guest.ask(FUSE_SETLK, file.0, &lock(file.1, 1, F_UNLCK), 0).unwrap();
    assert_eq!(unlock.0, 0);
    assert_eq!(guest.answer(1, waits).unwrap().0, 0);
    stop(&mut guest, 2);
    assert!(second.take().is_superset(&pages));
    assert!(first.take().is_disjoint(&pages));
    drop(guest);
    served.end();
}

/// The places of notices, and used rings that the guest sees elsewhere than the device.
#[test]
fn notices_are_marked() {
    let served = Served::new(Options { tells: true, ids: Ids::Guest, ..Options::default() });
    let mut guest = served.begin("guest", notices::TAKES);
    for number in 0..8 {
        guest.offer_buffer(number, atoll_tests::guest::NOTICE_ROOM);
    }
    let file = create(&mut guest, "f");
    assert_eq!(guest.ask(FUSE_GETATTR, file.0, &[0; 16], 0).unwrap().0, 0);
    let log = DirtyLog::new(true, 0, 0);
    let distance = 40 << 20;
    guest.begin_log(Some(&log), distance).unwrap();
    let before = snapshot(&guest);
    let changes = std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut other = served.other();
            let theirs = open(&mut other, "f");
            write(&mut other, theirs, 0, b"changed")
        });
        let until = Instant::now() + Duration::from_secs(30);
        while guest.take_notice().map(|(number, _)| guest.offer_buffer(number, 4096)).is_none() {
            assert!(Instant::now() < until, "no notice");
            std::thread::sleep(Duration::from_millis(1));
        }
        changes.join().unwrap()
    });
    assert_eq!(changes, 0);
    stop(&mut guest, 3);
    let (changed, marked) = (changed(&before, &snapshot(&guest)), log.take());
    let notice = (MEMORY + 0x2c0_0000) / PAGE;
    assert!(changed.contains(&notice) && marked.contains(&notice), "{changed:?} {marked:?}");
    let used = guest.used_pages(1);
    assert!(marked.is_superset(&used));
    assert!(used.iter().all(|page| marked.contains(&(page + distance / PAGE))), "{marked:?}");
    drop(guest);
    served.end();
}

/// A log that has no place for a page, and one that goes: the guest is dropped, since it would be
/// another elsewhere.
#[test]
fn hostile_logs() {
    let served = Served::new(Options::default());
    create(&mut served.guest(), "f");
    let setup = Setup::default();
    let asks = |guest: &mut Guest| {
        guest.submit(1, FUSE_GETATTR, 1, &[0; 16], 0);
    };
    broken("no log", &served, setup, |guest| {
        let _ = guest.begin_log(None, 0);
        asks(guest);
    });
    for sealed in [true, false] {
        // Its end is where the data of the last slots is; the request has the first.
        broken("a log that ends before", &served, setup, |guest| {
            let log = DirtyLog::new(sealed, 0, 1480);
            let _ = guest.begin_log(Some(&log), 0);
            asks(guest);
        });
        for distance in [48 << 20, u64::MAX / 2, u64::MAX - MEMORY - 0x1_a000] {
            broken("a used ring behind the log", &served, setup, |guest| {
                let _ = guest.begin_log(Some(&DirtyLog::new(sealed, 0, 0)), distance);
                asks(guest);
            });
        }
    }
    broken("a log that is cut short", &served, setup, |guest| {
        let log = DirtyLog::new(false, 0, 0);
        guest.begin_log(Some(&log), 0).unwrap();
        log.file().set_len(10).unwrap();
        asks(guest);
    });
    broken("a log behind the end of its file", &served, setup, |guest| {
        let log = DirtyLog::new(false, 0, 0);
        log.file().set_len(100).unwrap();
        assert!(guest.begin_log(Some(&log), 0).is_err());
    });
    served.end();
}

/// The front end has the flags of what it handed over: nothing that the device writes goes to the
/// end of it, and makes it longer.
#[test]
fn nothing_grows_by_what_a_device_writes() {
    let served = Served::new(Options::default());
    let setup = Setup { sealed: false, ..Setup::default() };
    let append = |file: &File, flags| rustix::fs::fcntl_setfl(file, flags).unwrap();
    for of_log in [false, true] {
        let mut guest = served.begin("guest", setup);
        let log = DirtyLog::new(false, 0, 0);
        guest.begin_log(Some(&log), 0).unwrap();
        stop(&mut guest, 2);
        log.take();
        let slot = guest.submit(1, FUSE_GETATTR, 1, &[0; 16], 0);
        let pages = guest.scribble(slot);
        let file = if of_log { log.file() } else { guest.memory() }.try_clone().unwrap();
        let len = file.metadata().unwrap().len();
        append(&file, OFlags::APPEND);
        guest.resume();
        let until = Instant::now() + Duration::from_secs(30);
        while !guest.is_all_used(1) && !guest.has_been_dropped() {
            assert!(Instant::now() < until, "no answer");
            std::thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(file.metadata().unwrap().len(), len, "of the log: {of_log}");
        append(&file, OFlags::empty());
        // A kernel that cannot be told where to write has the guest dropped.
        if guest.is_all_used(1) {
            assert_eq!(guest.answer(1, slot).unwrap().0, 0);
            stop(&mut guest, 2);
            assert!(log.take().is_superset(&pages));
        }
    }
    served.end();
}
