//! Tests of the View: the layout as documented, one thread against a naive map, and threads that
//! hammer.
#[cfg(not(miri))]
use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(miri))]
use std::boxed::Box;
use std::collections::HashMap;
use std::vec::Vec;
use std::{format, thread, vec};

use atoll_transport::Shared;
use proptest::prelude::*;

use super::layout::*;
use super::*;
use crate::types::{Attr, Ino, Timespec};

#[cfg(not(miri))]
std::thread_local! {
    /// Calls in the middle of this thread's next copies out of a page.
    static MIDDLE: RefCell<Vec<Box<dyn FnOnce()>>> = const { RefCell::new(Vec::new()) };
}

/// Called there.
#[cfg(not(miri))]
pub fn in_the_middle() {
    let next = MIDDLE.with_borrow_mut(Vec::pop);
    if let Some(next) = next {
        next();
    }
}

/// A change in the middle of a copy is noticed, whether of the page alone or of the file.
#[test]
#[cfg(not(miri))]
fn a_change_during_a_copy() {
    let start = || {
        let (mut w, r) = pair(SMALL);
        w.put_attr(5, &sized(8192));
        w.put_page(5, 0, &[1; PAGE]);
        w.put_page(5, 1, &[1; PAGE]);
        (w, r)
    };
    let during = |what: Box<dyn FnOnce()>| MIDDLE.with_borrow_mut(|middle| middle.push(what));
    let mut buf = vec![0; 8192];

    // The page's place is given to another file.
    let (mut w, r) = start();
    during(Box::new(move || {
        for block in 0..1000 {
            w.put_page(6, block, &[6; PAGE]);
        }
        core::mem::forget(w);
    }));
    assert_eq!(r.read(5, 0, &mut buf[..PAGE]), None);

    // The page is overwritten: the reader tries again.
    let (mut w, r) = start();
    during(Box::new(move || {
        w.put_page(5, 0, &[2; PAGE]);
        core::mem::forget(w);
    }));
    assert_eq!(r.read(5, 0, &mut buf[..PAGE]), Some(PAGE));
    assert_eq!(buf[..PAGE], [2; PAGE]);

    // While the second page is copied the first is written: neither its old content nor the old
    // size.
    let (mut w, r) = start();
    during(Box::new(move || {
        w.drop_attr(5);
        w.drop_pages(5, 0..1);
        w.put_page(5, 0, &[2; PAGE]);
        w.put_attr(5, &sized(8000));
        core::mem::forget(w);
    }));
    during(Box::new(|| {}));
    assert_eq!(r.read(5, 0, &mut buf), Some(8000));
    assert_eq!(buf[..8000], [[2; PAGE], [1; PAGE]].concat()[..8000]);

    // It changes all the time: no answer, and no wait for ever.
    let (w, r) = start();
    let w = std::rc::Rc::new(RefCell::new(w));
    for n in 0..100 {
        let w = w.clone();
        during(Box::new(move || w.borrow_mut().put_attr(5, &sized(n))));
    }
    assert_eq!(r.read(5, 0, &mut buf[..1]), None);
    assert!(MIDDLE.take().len() > 50);
}

/// Zeroed memory, a page of which begins with it, that lives as long as the tests.
fn memory(len: usize) -> Shared<'static> {
    let len = len.next_multiple_of(PAGE);
    let bytes = vec![0u8; len + PAGE].leak();
    let before = bytes.as_ptr().align_offset(PAGE);
    Shared::from_slice(&mut bytes[before..][..len])
}

fn pair(size: Size) -> (ViewWriter<'static>, ViewReader<'static>) {
    let memory = memory(size.bytes());
    let writer = ViewWriter::new(memory, size).unwrap();
    (writer, ViewReader::new(memory).unwrap())
}

const SMALL: Size = Size { generations: 8, attrs: 8, entries: 8, long_entries: 8, pages: 16 };

fn sized(size: u64) -> Attr {
    Attr { size, ..numbered(0, 0) }
}

fn numbered(ino: u64, n: u64) -> Attr {
    let word = n as u32;
    let time = |nth: u32| Timespec { sec: n as i64 + i64::from(nth), nsec: word + nth };
    Attr {
        ino: Ino(ino),
        mode: word,
        nlink: word + 1,
        uid: word + 2,
        gid: word + 3,
        rdev: word + 4,
        size: n,
        blocks: n,
        atime: time(0),
        mtime: time(1),
        ctime: time(2),
        btime: time(3),
    }
}

#[test]
fn reads_what_was_put() {
    let (mut w, r) = pair(SMALL);
    assert_eq!(r.attr(5), None);
    w.put_attr(5, &numbered(5, 5000));
    assert_eq!(r.attr(5), Some(numbered(5, 5000)));
    assert_eq!(r.size(5), Some(5000));
    let mut buf = [0u8; 8192];
    assert_eq!(r.read(5, 0, &mut buf), None);
    assert_eq!(r.read(5, 5000, &mut buf), Some(0));
    assert_eq!(r.read(5, u64::MAX, &mut buf), Some(0));
    assert_eq!(r.read(5, 0, &mut []), Some(0));
    w.put_page(5, 0, &[7; 4096]);
    assert_eq!(r.read(5, 0, &mut buf), None);
    assert_eq!(r.read(5, 90, &mut buf[..100]), Some(100));
    w.put_page(5, 1, &[8; 904]);
    let content = [[7u8; 4096].as_slice(), &[8; 904]].concat();
    for offset in [0, 1, 4095, 4096, 4097, 4999] {
        assert_eq!(r.read(5, offset as u64, &mut buf), Some(5000 - offset));
        assert_eq!(buf[..5000 - offset], content[offset..]);
    }
    // Longer without new pages: what follows the end are zeros.
    w.put_attr(5, &sized(6000));
    assert_eq!(r.read(5, 4096, &mut buf), Some(1904));
    assert_eq!(buf[904..1904], [0; 1000]);
    w.put_page(5, 1, b"again");
    assert_eq!(r.read(5, 4096, &mut buf), Some(1904));
    assert_eq!(buf[..1904], *[b"again".as_slice(), &[0; 1899]].concat());
    w.drop_attr(5);
    assert_eq!(r.read(5, 0, &mut buf), None);
}

#[test]
#[cfg_attr(miri, ignore = "one thread, much memory")]
fn names_of_every_length() {
    let size = Size { entries: 8192, long_entries: 8192, ..SMALL };
    let (mut w, r) = pair(size);
    let name = |len: usize| vec![b'n'; len];
    for len in 1..=NAME_MAX {
        assert_eq!(r.lookup(1, &name(len)), None);
        w.put_entry(1, &name(len), len as u64);
        let mut other = name(len);
        other[len - 1] = b'o';
        assert_eq!(r.lookup(1, &other), None);
        w.put_missing(1, &other);
        assert_eq!(r.lookup(1, &other), Some(Entry::Missing));
        assert_eq!(r.lookup_attr(1, &other), Some(None));
    }
    for len in 1..=NAME_MAX {
        assert_eq!(r.lookup(1, &name(len)), Some(Entry::Found(len as u64)));
        assert_eq!(r.lookup_attr(1, &name(len)), None);
    }
    for len in [0, 256, 300, 512] {
        w.put_entry(1, &name(len), 7);
        assert_eq!(r.lookup(1, &name(len)), None);
    }
    w.put_attr(88, &numbered(1, 3));
    assert_eq!(r.lookup_attr(1, &name(88)), Some(Some(numbered(88, 3))));
    w.drop_entry(1, &name(88));
    w.drop_entry(1, &name(89));
    assert_eq!(r.lookup(1, &name(88)), None);
    assert_eq!(r.lookup(1, &name(89)), None);
    w.drop_entries(1);
    for len in 1..=NAME_MAX {
        assert_eq!(r.lookup(1, &name(len)), None);
    }
    w.put_entry(1, &name(9), 9);
    assert_eq!(r.lookup(1, &name(9)), Some(Entry::Found(9)));
}

#[test]
fn nothing_is_read_after_the_end() {
    let (mut w, r) = pair(SMALL);
    w.put_attr(5, &sized(10));
    w.put_page(5, 0, &[1; 10]);
    w.put_entry(1, b"a", 5);
    assert_eq!(r.read(5, 0, &mut [0; 10]), Some(10));
    w.close();
    assert!(!r.is_open());
    assert_eq!((r.attr(5), r.read(5, 0, &mut [0; 10]), r.lookup(1, b"a")), (None, None, None));
}

#[test]
#[cfg_attr(miri, ignore = "one thread, many pages")]
fn pages_are_dropped_with_their_inode() {
    let size = Size { pages: 2048, ..SMALL };
    let (mut w, r) = pair(size);
    w.put_attr(5, &sized(2048 * 4096));
    for block in 0..2048 {
        w.put_page(5, block, &[1]);
    }
    assert_eq!(w.pages_of(5), 2048);
    // By its number, and by the list of the file's.
    w.drop_pages(5, 7..8);
    w.drop_pages(5, 2000..1 << 40);
    assert_eq!(w.pages_of(5), 1999);
    assert_eq!(r.read(5, 7 * 4096, &mut [0]), None);
    assert_eq!(r.read(5, 8 * 4096, &mut [0]), Some(1));
    w.drop_inode(5);
    assert_eq!(w.pages_of(5), 0);
    assert!(!w.has_attr(5) && !w.has_page(5, 8));
    assert_eq!(r.attr(5), None);
}

/// A file as large as the View fits; of what is put beyond that, each drives out what is oldest.
#[test]
#[cfg_attr(miri, ignore = "one thread, many pages")]
fn the_oldest_is_given_up() {
    let size = Size { pages: 256, ..SMALL };
    let (mut w, r) = pair(size);
    w.put_attr(5, &sized(1 << 40));
    for block in 0..256 {
        w.put_page(5, block, &[5]);
    }
    assert_eq!(w.pages_of(5), 256);
    for block in 256..1000 {
        w.put_page(5, block, &[5]);
        assert!(!w.has_page(5, block - 256), "{block}");
        assert_eq!(w.pages_of(5), 256);
        let (oldest, newest) = (block - 255, block);
        for block in [oldest, newest] {
            assert_eq!(r.read(5, block * 4096, &mut [0]), Some(1), "{block}");
        }
    }
}

#[test]
fn other_memory_is_refused() {
    let memory = memory(SMALL.bytes());
    assert_eq!(ViewReader::new(memory).err(), Some(Malformed::Magic));
    let short = memory.part(0, 64).unwrap();
    assert_eq!(ViewReader::new(short).err(), Some(Malformed::Length));
    assert_eq!(ViewWriter::new(short, SMALL).err(), Some(Malformed::Length));
    for pages in [0, 4, 9, 1 << 25] {
        let size = Size { pages, ..SMALL };
        assert_eq!(ViewWriter::new(memory, size).err(), Some(Malformed::Size));
    }
    let _writer = ViewWriter::new(memory, SMALL).unwrap();
    assert!(ViewReader::new(memory).is_ok());
    for (at, value, error) in [
        (header::VERSION, 2, Malformed::Version(2)),
        (header::PAGES, 24, Malformed::Size),
        (header::PAGES, 32, Malformed::Length),
        (header::ATTRS, u32::MAX, Malformed::Size),
        (header::LENGTH, 4096, Malformed::Length),
    ] {
        let word = memory.u32(at);
        let before = word.swap(value, Ordering::Relaxed);
        assert_eq!(ViewReader::new(memory).err(), Some(error));
        word.store(before, Ordering::Relaxed);
    }
}

#[test]
#[cfg_attr(miri, ignore = "one thread, much memory")]
fn memory_is_bounded() {
    assert_eq!(Size::within(40_000), None);
    for bytes in [50_000, 1 << 20, 3 << 20, 64 << 20, 1 << 30] {
        let size = Size::within(bytes).unwrap();
        assert!(size.bytes() <= bytes && size.bytes() * 5 / 2 > bytes, "{bytes} {size:?}");
        assert!(ViewWriter::private_bytes(size) < size.bytes() / 8 + (32 << 10));
    }
    // As much memory is used, whatever is put.
    let (mut w, _) = pair(SMALL);
    let links = w.private_capacity();
    for n in 1..5000u64 {
        w.put_attr(n, &numbered(n, n));
        w.put_entry(n % 7 + 1, format!("{n}").as_bytes(), n);
        w.put_page(n, n, &[1]);
    }
    assert_eq!(w.private_capacity(), links);
}

#[derive(Clone, Debug)]
enum Step {
    Attr(u64, u64),
    Entry(u64, u8, u64),
    Page(u64, u64, u8, usize),
    DropAttr(u64),
    DropEntry(u64, u8),
    DropEntries(u64),
    DropPages(u64, u64, u64),
    DropInode(u64),
    Use(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (ino, name, block) = (1..12u64, 0..12u8, 0..12u64);
    let step = prop_oneof![
        4 => (ino.clone(), 0..60_000u64).prop_map(|(i, s)| Step::Attr(i, s)),
        4 => (ino.clone(), name.clone(), 0..5u64).prop_map(|(i, n, c)| Step::Entry(i, n, c)),
        8 => (ino.clone(), block.clone(), any::<u8>(), 0..=PAGE)
            .prop_map(|(i, b, v, l)| Step::Page(i, b, v, l)),
        1 => ino.clone().prop_map(Step::DropAttr),
        1 => (ino.clone(), name).prop_map(|(i, n)| Step::DropEntry(i, n)),
        1 => ino.clone().prop_map(Step::DropEntries),
        1 => (ino.clone(), block.clone(), 0..20u64).prop_map(|(i, b, c)| Step::DropPages(i, b, c)),
        1 => ino.clone().prop_map(Step::DropInode),
        4 => (ino, block).prop_map(|(i, b)| Step::Use(i, b)),
    ];
    prop::collection::vec(step, 1..120)
}

/// The true records, and how many of them may be found.
#[derive(Default)]
struct Naive {
    attrs: HashMap<u64, Attr>,
    entries: HashMap<(u64, Vec<u8>), u64>,
    pages: HashMap<(u64, u64), Vec<u8>>,
}

/// Long names too.
fn name_of(n: u8) -> Vec<u8> {
    vec![n + b'a'; 1 + usize::from(n) * 20]
}

impl Naive {
    fn apply(&mut self, step: &Step, w: &mut ViewWriter<'_>, r: &ViewReader<'_>) {
        match *step {
            Step::Attr(ino, size) => {
                w.put_attr(ino, &numbered(ino, size));
                self.attrs.insert(ino, numbered(ino, size));
            }
            Step::Entry(parent, n, child) => {
                match child {
                    0 => w.put_missing(parent, &name_of(n)),
                    _ => w.put_entry(parent, &name_of(n), child),
                }
                self.entries.insert((parent, name_of(n)), child);
            }
            Step::Page(ino, block, value, len) => {
                w.put_page(ino, block, &vec![value; len]);
                let mut page = vec![value; len];
                page.resize(PAGE, 0);
                self.pages.insert((ino, block), page);
            }
            Step::DropAttr(ino) => {
                w.drop_attr(ino);
                self.attrs.remove(&ino);
            }
            Step::DropEntry(parent, n) => {
                w.drop_entry(parent, &name_of(n));
                self.entries.remove(&(parent, name_of(n)));
            }
            Step::DropEntries(parent) => {
                w.drop_entries(parent);
                self.entries.retain(|(p, _), _| *p != parent);
            }
            Step::DropPages(ino, first, count) => {
                w.drop_pages(ino, first..first + count);
                self.pages.retain(|&(i, b), _| i != ino || b < first || b >= first + count);
            }
            Step::DropInode(ino) => {
                w.drop_inode(ino);
                self.attrs.remove(&ino);
                self.entries.retain(|(p, _), _| *p != ino);
                self.pages.retain(|&(i, _), _| i != ino);
            }
            Step::Use(ino, block) => {
                r.read(ino, block * PAGE as u64, &mut [0; 10]);
            }
        }
    }

    fn check(&self, r: &ViewReader<'_>) {
        for ino in 1..12 {
            if let Some(found) = r.attr(ino) {
                assert_eq!(self.attrs.get(&ino), Some(&found));
            }
            for n in 0..12 {
                if let Some(found) = r.lookup(ino, &name_of(n)) {
                    let child = self.entries.get(&(ino, name_of(n))).copied();
                    let found = match found {
                        Entry::Found(child) => child,
                        Entry::Missing => 0,
                    };
                    assert_eq!(child, Some(found));
                    if let Some(Some(attr)) = r.lookup_attr(ino, &name_of(n)) {
                        assert_eq!((attr.ino.0, Some(&attr)), (found, self.attrs.get(&found)));
                    }
                }
            }
            let mut buf = [0; 3 * PAGE];
            for offset in [0, 100, PAGE, 5 * PAGE - 7] {
                if let Some(len) = r.read(ino, offset as u64, &mut buf) {
                    let size = self.attrs[&ino].size as usize;
                    assert_eq!(len, size.saturating_sub(offset).min(buf.len()));
                    for (at, byte) in (offset..).zip(&buf[..len]) {
                        let page = &self.pages[&(ino, (at / PAGE) as u64)];
                        assert_eq!(page[at % PAGE], *byte);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A reader finds what was put last and not dropped.
    #[test]
    #[cfg_attr(miri, ignore = "takes hours")]
    fn as_a_naive_map(steps in steps()) {
        let (mut w, r) = pair(SMALL);
        let mut naive = Naive::default();
        for step in &steps {
            naive.apply(step, &mut w, &r);
            naive.check(&r);
        }
    }
}

/// Two Views of one volume; a change writes one number as a file's size and all over its content,
/// and gives it to a name. A reader that has seen a number, in either View, sees none before it.
#[test]
fn readers_see_the_truth_in_order() {
    const ROUNDS: u64 = if cfg!(miri) { 2 } else { 20_000 };
    const INO: u64 = 5;
    let size = Size { generations: 8, attrs: 8, entries: 8, long_entries: 8, pages: 16 };
    let mut views = [pair(size), pair(size)];
    let readers = [views[0].1, views[1].1];
    // The number that has been returned to somebody, and the one that is being written.
    let (done, begun) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let hits = AtomicU64::new(0);
    let content = |n: u64| n.to_le_bytes().repeat(2 * PAGE / 8);
    // Any length that says which number it belongs to.
    let length = |n: u64| PAGE as u64 + 8 * (n % 512) + 8;
    thread::scope(|scope| {
        for (mine, other) in [(0, 1), (1, 0)] {
            let (readers, done, begun, stop, hits) = (&readers, &done, &begun, &stop, &hits);
            scope.spawn(move || {
                let mut seen = 0;
                let mut buf = vec![0u8; 2 * PAGE];
                let mut see = |n: u64, earliest: u64| {
                    assert!(n >= earliest.max(seen), "{n} after {seen}, {earliest} returned");
                    assert!(n <= begun.load(Ordering::SeqCst), "{n} before it was");
                    seen = n;
                    hits.fetch_add(1, Ordering::Relaxed);
                };
                while !stop.load(Ordering::Relaxed) {
                    for reader in [&readers[mine], &readers[other]] {
                        let earliest = done.load(Ordering::SeqCst);
                        if let Some(len) = reader.read(INO, 0, &mut buf) {
                            let (numbers, rest) = buf[..len].as_chunks::<8>();
                            assert!(rest.is_empty());
                            let n = u64::from_le_bytes(numbers[0]);
                            assert!(numbers.iter().all(|&other| other == numbers[0]), "torn");
                            assert_eq!(len as u64, length(n), "size of another moment");
                            see(n, earliest);
                        }
                        let earliest = done.load(Ordering::SeqCst);
                        if let Some(Entry::Found(n)) = reader.lookup(1, b"name") {
                            see(n - 100, earliest);
                        }
                        let earliest = done.load(Ordering::SeqCst);
                        if let Some(attributes) = reader.attr(INO) {
                            let n = attributes.blocks;
                            assert_eq!(attributes, Attr { size: length(n), ..numbered(INO, n) });
                            see(n, earliest);
                        }
                        thread::yield_now();
                    }
                }
            });
        }
        for n in 1..=ROUNDS {
            begun.store(n, Ordering::SeqCst);
            for (w, _) in &mut views {
                w.drop_attr(INO);
                w.drop_pages(INO, 0..2);
                match n % 2 {
                    0 => w.drop_entry(1, b"name"),
                    _ => w.drop_entries(1),
                }
            }
            let data = content(n);
            for (w, _) in &mut views {
                w.put_entry(1, b"name", n + 100);
                w.put_attr(INO, &Attr { size: length(n), ..numbered(INO, n) });
                // Sometimes nobody asks for all of it.
                for block in 0..if n % 5 == 0 { 1 } else { 2 } {
                    w.put_page(INO, block, &data[..PAGE]);
                }
            }
            done.store(n, Ordering::SeqCst);
            if n % 4 == 0 {
                thread::yield_now();
            }
        }
        // The last state is found, whatever the schedule was.
        let (w, r) = &mut views[0];
        w.put_page(INO, 1, &content(ROUNDS)[..PAGE]);
        assert!(r.read(INO, 0, &mut [0; 10]).is_some());
        stop.store(true, Ordering::Relaxed);
    });
}

/// docs/PROTOCOL.md names every field with its place, and no other.
#[test]
#[cfg(not(miri))]
fn the_document_is_true() {
    let document = include_str!("../../../../docs/PROTOCOL.md");
    let fields = [
        ("header::MAGIC", header::MAGIC, 8),
        ("header::VERSION", header::VERSION, 4),
        ("header::GENERATIONS", header::GENERATIONS, 4),
        ("header::ATTRS", header::ATTRS, 4),
        ("header::ENTRIES", header::ENTRIES, 4),
        ("header::LONG_ENTRIES", header::LONG_ENTRIES, 4),
        ("header::PAGES", header::PAGES, 4),
        ("header::LENGTH", header::LENGTH, 8),
        ("header::STATE", header::STATE, 8),
        ("attr::SEQUENCE", attr::SEQUENCE, 0),
        ("attr::INO", attr::INO, 0),
        ("attr::SIZE", attr::SIZE, 0),
        ("attr::BLOCKS", attr::BLOCKS, 0),
        ("attr::MODE_NLINK", attr::MODE_NLINK, 0),
        ("attr::UID_GID", attr::UID_GID, 0),
        ("attr::RDEV", attr::RDEV, 0),
        ("attr::ATIME_MTIME_NSEC", attr::ATIME_MTIME_NSEC, 0),
        ("attr::CTIME_BTIME_NSEC", attr::CTIME_BTIME_NSEC, 0),
        ("attr::SECONDS", attr::SECONDS, 0),
        ("entry::SEQUENCE", entry::SEQUENCE, 0),
        ("entry::PARENT", entry::PARENT, 0),
        ("entry::HASH_LENGTH", entry::HASH_LENGTH, 0),
        ("entry::GENERATION", entry::GENERATION, 0),
        ("entry::CHILD", entry::CHILD, 0),
        ("entry::NAME", entry::NAME, 0),
        ("page::SEQUENCE", page::SEQUENCE, 0),
        ("page::INO", page::INO, 0),
        ("page::BLOCK", page::BLOCK, 0),
    ];
    for (name, place, bytes) in fields {
        let row = match bytes {
            0 => format!("\n| `{name}` | {place} | "),
            _ => format!("\n| `{name}` | {place} | {bytes} | "),
        };
        assert_eq!(document.matches(&row).count(), 1, "{row}");
    }
    // Every constant of the source is in the list above.
    let source = include_str!("layout.rs");
    let constants = source
        .lines()
        .filter(|line| line.starts_with("    pub const ") && line.contains(": usize = "));
    assert_eq!(constants.count(), fields.len());
    for (what, bytes) in [
        ("attribute records", ATTR_WORDS * 8),
        ("entry records, short names", ENTRY_WORDS * 8),
        ("entry records, long names", LONG_ENTRY_WORDS * 8),
        ("page records", PAGE_WORDS * 8),
        ("generations", 8),
    ] {
        assert!(document.contains(&format!("\n| {what} | {bytes} each | ")), "{what}");
    }
    assert!(document.contains(&format!("for names to {SHORT_NAME_MAX} bytes")));
    assert!(document.contains(&format!("sets of *w* ({WAYS}; for pages {PAGE_WAYS})")));
    // The parts follow one another as the document says.
    let layout = Layout::of(SMALL);
    assert_eq!(layout.generations_at, 4096);
    assert_eq!(layout.attrs_at, 4096 + 8 * 8);
    assert_eq!(layout.entries_at, layout.attrs_at + 8 * 128);
    assert_eq!(layout.long_entries_at, layout.entries_at + 8 * 128);
    assert_eq!(layout.pages_at, layout.long_entries_at + 8 * 320);
    assert_eq!(layout.data_at, (layout.pages_at + 16 * 32).next_multiple_of(4096));
    assert_eq!(layout.length, layout.data_at + 16 * 4096);
}
