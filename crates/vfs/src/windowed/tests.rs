//! The window beside a file system without one: whatever two clients do, both answer the same.
//!
//! The device and its window are made up: they are the model's files themselves. What lies beyond
//! the end of a file in them is garbage, so that a read of it is found.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use super::*;
use crate::model::ModelFs;

const RANGE: u64 = 4096;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Numbers by chance, the same for each seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

fn cx() -> Context {
    Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// A server whose window has some places.
#[derive(Default)]
struct Host {
    fs: ModelFs,
    /// By place: the file, where its range begins, and how it is open for that.
    shown: BTreeMap<u64, (Ino, u64, Handle)>,
    /// Ranges that were asked for, by the request's number.
    asked: BTreeMap<u64, (Ino, Mapping)>,
    unique: u64,
    /// What the next ranges that are asked for are answered with.
    refuses: Vec<Errno>,
    /// Nothing can be copied.
    blind: bool,
    /// Ranges in which files end are asked for too.
    pins: bool,
    /// Messages by kind.
    reads: usize,
    writes: usize,
    maps: usize,
    unmaps: Vec<usize>,
    seeks: usize,
    getattrs: usize,
    /// Stores that are not written back, as the layer below is told.
    stored: usize,
    valid: Valid,
    /// A clock of its own.
    clock: Option<Duration>,
}

/// How long attributes count, no longer than a moment by default.
#[derive(Clone, Copy)]
struct Valid(Validity);

impl Default for Valid {
    fn default() -> Self {
        Valid(Validity::Moment)
    }
}

#[derive(Clone, Default)]
struct Guest(Rc<RefCell<Host>>);

macro_rules! below {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        FileSystem::$verb(&mut $self.0.borrow_mut().fs, $($arg),*)
    };
}

impl FileSystem for Guest {
    crate::verbs!(below: lookup forget setattr readlink mknod mkdir symlink unlink rmdir rename
        link open create tmpfile copy_file_range fallocate fsync release opendir readdir releasedir
        fsyncdir syncfs statfs setxattr getxattr listxattr removexattr);

    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        self.0.borrow_mut().getattrs += 1;
        self.0.borrow_mut().fs.getattr(cx, ino)
    }

    fn seek(&mut self, cx: &Context, ino: Ino, h: Handle, at: u64, to: SeekTo) -> Result<u64> {
        self.0.borrow_mut().seeks += 1;
        self.0.borrow_mut().fs.seek(cx, ino, h, at, to)
    }

    fn read(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.0.borrow_mut().reads += 1;
        self.0.borrow_mut().fs.read(cx, ino, handle, offset, buf)
    }

    fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        self.0.borrow_mut().writes += 1;
        self.0.borrow_mut().fs.write(cx, ino, handle, offset, data)
    }
}

impl Mapper for Guest {
    fn validity(&self) -> Validity {
        self.0.borrow().valid.0
    }

    fn now(&self, cx: &Context) -> Duration {
        self.0.borrow().clock.unwrap_or(clock(cx.now))
    }

    fn begin_map(&mut self, _: &Context, ino: Ino, mapping: &Mapping) -> Result<Asked> {
        let mut host = self.0.borrow_mut();
        let size = host.fs.getattr(&cx(), ino)?.size;
        let ends = mapping.offset + mapping.span.len > size;
        assert!(!ends || host.pins, "the file ends in it");
        host.unique += 1;
        host.maps += 1;
        let unique = host.unique;
        host.asked.insert(unique, (ino, *mapping));
        Ok(Asked { token: Token(unique), unique })
    }

    fn is_mapped(&mut self, asked: &Asked) -> bool {
        asked.unique.is_multiple_of(3)
    }

    fn end_map(&mut self, asked: Asked) -> Result<()> {
        let mut host = self.0.borrow_mut();
        let (ino, Mapping { offset, span, write }) = host.asked.remove(&asked.unique).unwrap();
        assert!(write && span.len == RANGE && span.at.is_multiple_of(RANGE));
        assert!(!host.shown.contains_key(&span.at), "something is shown there");
        let again = host.shown.values().any(|shown| (shown.0, shown.1) == (ino, offset));
        assert!(!again, "it is shown twice");
        assert!(offset.is_multiple_of(RANGE));
        if let Some(error) = host.refuses.pop() {
            return Err(error);
        }
        let handle = host.fs.open(&cx(), ino, RW)?;
        host.shown.insert(span.at, (ino, offset, handle));
        Ok(())
    }

    fn stored(&mut self, _: Ino) {
        self.0.borrow_mut().stored += 1;
    }

    fn written_back(&mut self, _: Ino) {
        let mut host = self.0.borrow_mut();
        assert!(host.stored > 0, "there was nothing");
        host.stored = 0;
    }

    fn unmap(&mut self, _: &Context, _: Ino, spans: &[Span]) -> Result<()> {
        let mut host = self.0.borrow_mut();
        host.unmaps.push(spans.len());
        for span in spans {
            let (ino, _, handle) = host.shown.remove(&span.at).expect("it is shown");
            host.fs.release(&cx(), ino, handle)?;
        }
        Ok(())
    }
}

/// The window of so many places.
struct Shown(Guest, u64);

impl Window for Shown {
    fn len(&self) -> u64 {
        self.1 * RANGE + 100
    }

    fn copy_out(&self, at: u64, out: &mut [u8]) -> bool {
        let host = &mut *self.0.0.borrow_mut();
        let shown = host.shown.get(&(at - at % RANGE)).copied();
        let Some((ino, offset, handle)) = shown.filter(|_| !host.blind) else { return false };
        out.fill(0xee);
        host.fs.read(&cx(), ino, handle, offset + at % RANGE, out).is_ok()
    }

    fn copy_in(&self, at: u64, data: &[u8]) -> bool {
        let host = &mut *self.0.0.borrow_mut();
        let shown = host.shown.get(&(at - at % RANGE)).copied();
        let Some((ino, offset, handle)) = shown.filter(|_| !host.blind) else { return false };
        let end = offset + at % RANGE + data.len() as u64;
        assert!(end <= host.fs.getattr(&cx(), ino).unwrap().size, "a store beyond the end");
        host.fs.write(&cx(), ino, handle, offset + at % RANGE, data).is_ok()
    }
}

/// A client with so many places, for which everything is worth it.
fn client(guest: &Guest, places: u64) -> Windowed<Guest, Shown> {
    let policy = Policy { range: RANGE, least: 1, least_asked: 1, worth: 0, ahead: 2, batch: 2 };
    Windowed::new(guest.clone(), Some(Shown(guest.clone(), places)), policy)
}

/// A file of so many bytes, open, whose first read and write have been made.
fn file(fs: &mut Windowed<Guest, Shown>, called: &str, len: usize) -> (Ino, Handle) {
    let (attr, handle) = fs.create(&cx(), Ino::ROOT, name(called), 0o644, RW).unwrap();
    let data: Vec<u8> = (0..len).map(|at| (at / 100 + at) as u8).collect();
    fs.write(&cx(), attr.ino, handle, 0, &data).unwrap();
    fs.read(&cx(), attr.ino, handle, 0, &mut [0]).unwrap();
    (attr.ino, handle)
}

/// A client with a window, another without, and the same without any window at all.
fn by_chance(seed: u64, places: u64, faults: bool) -> u64 {
    let mut chance = Chance(seed * 2 + 1);
    let guest = Guest::default();
    let mut fs = client(&guest, places);
    let mut plain = ModelFs::default();
    let mut files = Vec::new();
    for called in ["a", "b"] {
        let made = fs.create(&cx(), Ino::ROOT, name(called), 0o644, RW).unwrap();
        let other = plain.create(&cx(), Ino::ROOT, name(called), 0o644, RW).unwrap();
        let theirs = guest.0.borrow_mut().fs.open(&cx(), made.0.ino, RW).unwrap();
        files.push((made.0.ino, [(made.1, other.1), (made.1, other.1)], theirs));
    }
    let flags =
        [RW, OpenFlags::READ, OpenFlags::WRITE, RW | OpenFlags::APPEND, RW | OpenFlags::TRUNC];
    for step in 0..300 {
        if faults && chance.below(8) == 0 {
            let errors = [Errno::EACCES, Errno::ENOMEM, Errno::EIO, Errno::EOPNOTSUPP];
            let mut host = guest.0.borrow_mut();
            host.refuses = vec![errors[chance.below(4) as usize]];
            host.blind = chance.below(3) == 0;
        }
        let which = chance.below(2) as usize;
        let (ino, ref mut handles, theirs) = files[which];
        let slot = chance.below(2) as usize;
        let (own, other) = handles[slot];
        let (at, len) = (chance.below(6 * RANGE), chance.below(3 * RANGE) as usize);
        let data: Vec<u8> = (0..len).map(|byte| (byte as u64 * 7 + step) as u8).collect();
        let size = SetAttr { size: Some(at), ..SetAttr::default() };
        match chance.below(16) {
            0 => {
                // Another client writes, cuts, extends.
                let mut host = guest.0.borrow_mut();
                let done = host.fs.write(&cx(), ino, theirs, at, &data);
                assert_eq!(done, plain.write(&cx(), ino, handles[0].1, at, &data));
            }
            1 => {
                guest.0.borrow_mut().fs.setattr(&cx(), ino, None, &size).unwrap();
                plain.setattr(&cx(), ino, None, &size).unwrap();
            }
            2 => {
                fs.setattr(&cx(), ino, None, &size).unwrap();
                plain.setattr(&cx(), ino, None, &size).unwrap();
            }
            3 if slot == 1 => {
                if handles[1].0 != handles[0].0 {
                    fs.release(&cx(), ino, own).unwrap();
                    plain.release(&cx(), ino, other).unwrap();
                }
                let flags = flags[chance.below(5) as usize];
                handles[1] =
                    (fs.open(&cx(), ino, flags).unwrap(), plain.open(&cx(), ino, flags).unwrap());
            }
            4..=8 => {
                let done = fs.write(&cx(), ino, own, at, &data);
                assert_eq!(done, plain.write(&cx(), ino, other, at, &data), "{seed} {step}");
            }
            9 => {
                assert_eq!(fs.fsync(&cx(), ino, own, false), Ok(()));
            }
            _ => {
                let (mut found, mut expected) = (vec![0; len], vec![0; len]);
                let done = fs.read(&cx(), ino, own, at, &mut found);
                assert_eq!(done, plain.read(&cx(), ino, other, at, &mut expected), "{seed} {step}");
                let read = done.unwrap_or(0);
                assert!(found[..read] == expected[..read], "{seed} {step}: {at} {len}");
            }
        }
        let sizes = [fs.getattr(&cx(), ino).unwrap().size, plain.getattr(&cx(), ino).unwrap().size];
        assert_eq!(sizes[0], sizes[1], "{seed} {step}");
    }
    for (ino, handles, _) in files {
        let mut own = vec![handles[0].0, handles[1].0];
        own.dedup();
        own.into_iter().for_each(|handle| fs.release(&cx(), ino, handle).unwrap());
    }
    let host = guest.0.borrow();
    assert!(host.shown.is_empty() && host.asked.is_empty(), "ranges of closed files are left");
    fs.copied()
}

#[test]
fn two_clients_by_chance() {
    for places in [1, 2, 5] {
        let copied: u64 = (0..60).map(|seed| by_chance(seed, places, false)).sum();
        assert!(copied > 1 << 20, "{copied} bytes went by the window");
    }
}

#[test]
fn two_clients_by_chance_and_a_device_that_refuses() {
    let copied: u64 = (0..120).map(|seed| by_chance(seed, 3, true)).sum();
    assert!(copied > 1 << 16, "{copied} bytes went by the window");
}

/// Every place in which a file can end, and every read and write around it.
#[test]
fn each_end_of_a_file() {
    let edges = [0, 1, RANGE - 1, RANGE, RANGE + 1, 2 * RANGE - 1, 2 * RANGE, 2 * RANGE + 1];
    let guest = Guest::default();
    let mut fs = client(&guest, 4);
    let (ino, handle) = file(&mut fs, "f", 3 * RANGE as usize);
    let mut expected: Vec<u8> = vec![0; 3 * RANGE as usize];
    assert_eq!(fs.read(&cx(), ino, handle, 0, &mut expected), Ok(expected.len()));
    for size in edges {
        for (from, to) in edges.iter().flat_map(|from| edges.map(|to| (*from, to))) {
            let Some(len) = to.checked_sub(from).filter(|len| *len > 0) else { continue };
            // All of it is shown; then another client cuts it.
            let host = || guest.0.borrow_mut();
            let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
            host().fs.setattr(&cx(), ino, None, &set(3 * RANGE)).unwrap();
            fs.write(&cx(), ino, handle, 0, &expected).unwrap();
            host().fs.setattr(&cx(), ino, None, &set(size)).unwrap();
            let mut found = vec![0x55; len as usize];
            let left = size.saturating_sub(from).min(len) as usize;
            assert_eq!(
                fs.read(&cx(), ino, handle, from, &mut found),
                Ok(left),
                "{size} {from} {to}"
            );
            assert!(found[..left] == expected[from as usize..][..left]);
            assert!(found[left..].iter().all(|byte| *byte == 0x55), "bytes beyond the end");
            let data = vec![0x77; len as usize];
            assert_eq!(fs.write(&cx(), ino, handle, from, &data).map(|w| w.len), Ok(data.len()));
            assert_eq!(fs.getattr(&cx(), ino).unwrap().size, size.max(to));
        }
    }
    assert!(fs.copied() > 0);
}

#[test]
fn handles_have_their_rights() {
    let guest = Guest::default();
    let mut fs = client(&guest, 4);
    let (ino, handle) = file(&mut fs, "f", 2 * RANGE as usize);
    let (reads, writes) = (OpenFlags::READ, OpenFlags::WRITE);
    let [to_read, to_write, to_append] = [reads, writes, writes | OpenFlags::APPEND]
        .map(|flags| fs.open(&cx(), ino, flags).unwrap());
    let mut place = [0; 100];
    for _ in 0..3 {
        assert_eq!(fs.read(&cx(), ino, handle, 0, &mut place), Ok(100));
        assert_eq!(fs.write(&cx(), ino, to_read, 0, b"no"), Err(Errno::EBADF));
        assert_eq!(fs.read(&cx(), ino, to_write, 0, &mut place), Err(Errno::EBADF));
        let end = fs.getattr(&cx(), ino).unwrap().size;
        let appended = fs.write(&cx(), ino, to_append, 0, b"end").unwrap();
        assert_eq!(appended, Written { len: 3, offset: end });
        // Another file's handle, and none.
        assert!(fs.read(&cx(), Ino::ROOT, handle, 0, &mut place).is_err());
        assert!(fs.read(&cx(), ino, Handle(9999), 0, &mut place).is_err());
    }
    assert!(fs.copied() > 0);
}

/// Few calls do not bring a range into the window, however long they are; more do.
#[test]
fn what_is_worth_it() {
    let guest = Guest::default();
    let policy =
        Policy { range: RANGE, least: 512, least_asked: 1000, worth: 4, ahead: 2, batch: 4 };
    let mut fs = Windowed::new(guest.clone(), Some(Shown(guest.clone(), 8)), policy);
    let (ino, handle) = file(&mut fs, "f", 20 * RANGE as usize + 10);
    let again = fs.open(&cx(), ino, OpenFlags::READ).unwrap();
    let pass = |fs: &mut Windowed<Guest, Shown>, len: usize| {
        let mut place = vec![0; len];
        (0..20 * RANGE / len as u64).for_each(|at| {
            assert_eq!(fs.read(&cx(), ino, again, at * len as u64, &mut place), Ok(len));
        });
        let mut host = guest.0.borrow_mut();
        let Host { reads, maps, unmaps, getattrs, .. } = &mut *host;
        let counts = (*reads, *maps, unmaps.len(), *getattrs);
        (*reads, *maps, *getattrs) = (0, 0, 0);
        counts
    };
    // The file was written, which was the first message for each; short reads count for nothing.
    guest.0.borrow_mut().getattrs = 0;
    let short = pass(&mut fs, 256);
    assert_eq!((short.1, short.2, short.3), (0, 0, 0));
    assert_eq!(pass(&mut fs, RANGE as usize), (20, 0, 0, 0), "long ones are as good as one");
    let again = pass(&mut fs, 1024);
    assert_eq!(again.0, 40, "two more of each range are messages");
    assert_eq!((again.1, again.2), (20, 3), "each range once, four at a time");
    // They have to be worth it anew, but for those that are there.
    let third = pass(&mut fs, 1024);
    assert!(third.0 > 40 && third.1 < 10, "{third:?}");
    fs.release(&cx(), ino, handle).unwrap();
}

/// Times are right before they are looked at or set, and when the file is closed.
#[test]
fn stores_are_written_back() {
    let guest = Guest::default();
    let mut fs = client(&guest, 4);
    let (ino, handle) = file(&mut fs, "f", 2 * RANGE as usize);
    let seeks = || guest.0.borrow().seeks;
    let store = |fs: &mut Windowed<Guest, Shown>| {
        let writes = guest.0.borrow().writes;
        fs.write(&cx(), ino, handle, 10, b"stored").unwrap();
        assert_eq!(guest.0.borrow().writes, writes, "it goes by the window");
    };
    store(&mut fs);
    assert_eq!(seeks(), 0);
    fs.getattr(&cx(), ino).unwrap();
    fs.getattr(&cx(), ino).unwrap();
    assert_eq!(seeks(), 1);
    // By its names too, which is how stat(2) asks.
    store(&mut fs);
    let before = guest.0.borrow().getattrs;
    assert_eq!(fs.lookup(&cx(), Ino::ROOT, name("f")).unwrap().ino, ino);
    fs.lookup(&cx(), Ino::ROOT, name("f")).unwrap();
    assert_eq!((seeks(), guest.0.borrow().getattrs), (2, before + 1));
    store(&mut fs);
    fs.link(&cx(), ino, Ino::ROOT, name("other")).unwrap();
    assert_eq!(seeks(), 3);
    store(&mut fs);
    let again = fs.create(&cx(), Ino::ROOT, name("other"), 0o644, RW).unwrap();
    assert_eq!((again.0.ino, seeks()), (ino, 4));
    fs.release(&cx(), ino, again.1).unwrap();
    store(&mut fs);
    fs.setattr(&cx(), ino, None, &SetAttr::default()).unwrap();
    assert_eq!(seeks(), 5);
    store(&mut fs);
    fs.fsync(&cx(), ino, handle, true).unwrap();
    fs.getattr(&cx(), ino).unwrap();
    assert_eq!(seeks(), 5, "a sync has done so");
    store(&mut fs);
    fs.release(&cx(), ino, handle).unwrap();
    assert_eq!(seeks(), 6);
    assert_eq!(guest.0.borrow().unmaps, [1], "the ranges go with the last handle");
}

/// What a write has to say, or to take away, goes by a message.
#[test]
fn writes_that_the_server_has_to_see() {
    let guest = Guest::default();
    let mut fs = client(&guest, 4);
    let (ino, handle) = file(&mut fs, "f", 2 * RANGE as usize);
    let by_message = |fs: &mut Windowed<Guest, Shown>, ino, handle| {
        let before = guest.0.borrow().writes;
        fs.write(&cx(), ino, handle, 10, b"text").unwrap();
        guest.0.borrow().writes > before
    };
    assert!(!by_message(&mut fs, ino, handle));
    let set = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
    fs.setattr(&cx(), ino, None, &set).unwrap();
    assert!(by_message(&mut fs, ino, handle), "it has a set-ID bit");
    let (ino, handle) = file(&mut fs, "g", RANGE as usize);
    let set = SetAttr { size: Some(100 * RANGE), ..SetAttr::default() };
    fs.setattr(&cx(), ino, None, &set).unwrap();
    assert!(by_message(&mut fs, ino, handle), "it has a hole");
}

/// A device that refuses is not asked all the time.
#[test]
fn a_device_that_refuses() {
    let guest = Guest::default();
    let mut fs = client(&guest, 4);
    let (ino, handle) = file(&mut fs, "f", 4 * RANGE as usize);
    let mut place = [0; 100];
    for (error, most) in [(Errno::ENOMEM, 12), (Errno::EACCES, 1)] {
        guest.0.borrow_mut().refuses = vec![error; 100];
        guest.0.borrow_mut().maps = 0;
        for _ in 0..1000 {
            assert_eq!(fs.read(&cx(), ino, handle, 0, &mut place), Ok(100));
        }
        let maps = guest.0.borrow().maps;
        assert!((1..=most).contains(&maps), "{maps} questions");
        let rest = core::mem::take(&mut fs.rest);
        assert!(rest > 0 || error == Errno::EACCES);
        guest.0.borrow_mut().refuses.clear();
    }
}

/// What the server says of attributes counts as long as it says so, and until they are changed.
#[test]
fn lengths_that_count_for_a_while() {
    let guest = Guest::default();
    let mut fs = client(&guest, 8);
    let valid = Duration::from_millis(1500);
    guest.0.borrow_mut().valid = Valid(Validity::For(valid));
    let (ino, handle) = file(&mut fs, "f", 4 * RANGE as usize);
    let at = |sec, nsec| Context { now: Timespec { sec, nsec }, ..cx() };
    let mut place = [0; 100];
    let mut read = |fs: &mut Windowed<Guest, Shown>, sec, nsec| {
        let before = guest.0.borrow().getattrs;
        fs.read(&at(sec, nsec), ino, handle, 4 * RANGE - 50, &mut place).unwrap();
        guest.0.borrow().getattrs - before
    };
    assert_eq!(read(&mut fs, 10, 800_000_000), 1);
    assert_eq!(read(&mut fs, 10, 800_000_000), 0);
    assert_eq!(read(&mut fs, 12, 299_999_999), 0);
    assert_eq!(read(&mut fs, 12, 300_000_000), 1, "that is over");
    assert_eq!(read(&mut fs, 12, 299_999_999), 1, "the clock was set");
    assert_eq!(read(&mut fs, 12, 299_999_999), 0);
    let cx = at(12, 299_999_999);
    let other = fs.open(&cx, ino, OpenFlags::WRITE | OpenFlags::APPEND).unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let both = |offset| FileAt { ino, handle, offset };
    type Change<'a> = &'a dyn Fn(&mut Windowed<Guest, Shown>);
    let changes: [Change<'_>; 5] = [
        &|fs| assert!(fs.write(&cx, ino, other, 0, b"at the end").is_ok()),
        &|fs| assert!(fs.write(&cx, ino, handle, 5 * RANGE, b"behind it").is_ok()),
        &|fs| assert!(fs.setattr(&cx, ino, None, &set).is_ok()),
        &|fs| fs.fallocate(&cx, ino, handle, 0, 9 * RANGE, FallocateMode::empty()).unwrap(),
        &|fs| assert!(fs.copy_file_range(&cx, both(0), both(9 * RANGE), 10).is_ok()),
    ];
    for change in changes {
        change(&mut fs);
        assert_eq!(read(&mut fs, 12, 299_999_999), 1);
        assert_eq!(read(&mut fs, 12, 299_999_999), 0);
    }
    fs.open(&cx, ino, OpenFlags::WRITE | OpenFlags::TRUNC).unwrap();
    let mut place = [0; 10];
    assert_eq!(fs.read(&cx, ino, handle, 0, &mut place), Ok(0));
    // By a clock of the layer below, where callers say no time.
    fs.setattr(&cx, ino, None, &SetAttr { size: Some(4 * RANGE), ..SetAttr::default() }).unwrap();
    for (millis, asked) in [(1000, 1), (2499, 0), (2500, 1), (3999, 0), (4000, 1)] {
        guest.0.borrow_mut().clock = Some(Duration::from_millis(millis));
        assert_eq!(read(&mut fs, 0, 0), asked, "{millis}");
    }
    // Where a layer below keeps them it is asked each time.
    guest.0.borrow_mut().valid = Valid(Validity::Kept);
    fs.setattr(&cx, ino, None, &SetAttr { size: Some(4 * RANGE), ..SetAttr::default() }).unwrap();
    assert_eq!((read(&mut fs, 12, 0), read(&mut fs, 12, 0)), (1, 1));
}

#[test]
fn what_was_used_least_lately_goes_first() {
    let mut ranges = Ranges::new(4);
    for number in 0..4 {
        let place = ranges.free().unwrap();
        ranges.coming(place, (Ino::ROOT, number));
        if number != 2 {
            ranges.shown(place);
        }
    }
    assert_eq!(ranges.free(), None);
    let Some(Found::Shown(first)) = ranges.find((Ino::ROOT, 0)) else { panic!() };
    ranges.used(first);
    let numbers = |ranges: &Ranges, most| -> Vec<u64> {
        ranges.least_used(most).into_iter().map(|(_, (_, number))| number).collect()
    };
    // One that is on its way is not given back.
    assert_eq!(numbers(&ranges, 9), [1, 3, 0]);
    assert_eq!(numbers(&ranges, 2), [1, 3]);
    ranges.lost(first);
    assert_eq!((ranges.free(), numbers(&ranges, 9)), (None, vec![1, 3]));
    assert_eq!(ranges.of(Ino::ROOT).len(), 2);
}

/// A range that is pinned stays where it is, whatever else goes on, and goes when it is not.
#[test]
fn what_is_pinned_stays() {
    let guest = Guest::default();
    guest.0.borrow_mut().pins = true;
    let mut fs = client(&guest, 3);
    let (ino, handle) = file(&mut fs, "f", 10 * RANGE as usize + 5);
    let last = fs.pin(&cx(), ino, 10).unwrap();
    assert_eq!((fs.pin(&cx(), ino, 10), guest.0.borrow().maps), (Ok(last), 1));
    let (other, other_handle) = file(&mut fs, "g", 10 * RANGE as usize);
    let mut place = [0; 100];
    let shown = |guest: &Guest| guest.0.borrow().shown.contains_key(&last);
    for at in (0..10).chain(0..10) {
        fs.read(&cx(), ino, handle, at * RANGE, &mut place).unwrap();
        fs.read(&cx(), other, other_handle, at * RANGE, &mut place).unwrap();
        assert!(shown(&guest));
    }
    // What is stored there is told nobody: each read asks the layer below to keep nothing.
    let before = guest.0.borrow().stored;
    fs.read(&cx(), ino, handle, 0, &mut place).unwrap();
    assert_eq!(guest.0.borrow().stored, before + 1);
    fs.read(&cx(), other, other_handle, 0, &mut place).unwrap();
    assert_eq!(guest.0.borrow().stored, before + 1);
    // The window is full of what is pinned.
    let places = [fs.pin(&cx(), other, 0), fs.pin(&cx(), other, 1)];
    assert!(places.iter().all(Result::is_ok), "{places:?}");
    assert_eq!(fs.pin(&cx(), other, 2), Err(Errno::ENOMEM));
    assert_eq!(fs.read(&cx(), ino, handle, 5 * RANGE, &mut place), Ok(100));
    // Pinned twice.
    fs.unpin(ino, 10, None);
    fs.read(&cx(), ino, handle, 5 * RANGE, &mut place).unwrap();
    assert!(shown(&guest));
    let seeks = guest.0.borrow().seeks;
    fs.unpin(ino, 10, Some(handle));
    fs.release(&cx(), ino, handle).unwrap();
    assert!(!shown(&guest));
    assert_eq!(guest.0.borrow().seeks, seeks + 1, "what was stored is written back");
    assert_eq!(fs.pin(&cx(), ino, 10), Err(Errno::EBADF), "it is not open");
    guest.0.borrow_mut().refuses = vec![Errno::EACCES];
    assert_eq!(fs.pin(&cx(), other, 2), Err(Errno::EACCES));
    assert_eq!(
        Windowed::new(guest, None::<Shown>, Policy::default()).pin(&cx(), other, 0),
        Err(Errno::ENODEV)
    );
}
