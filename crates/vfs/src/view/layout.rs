//! The layout of a View.
//!
//! A header of one page, a table of generations, four set-associative tables of records and the
//! pages that the last of them describes. All integers are in the byte order of the machine, which
//! both sides share. docs/PROTOCOL.md describes every field; a test holds it to this file.

use core::mem::size_of;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_transport::Shared;

use crate::types::{Attr, Ino, Timespec};

/// The number that a View begins with.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ATOLVIEW");
/// The version of this layout.
pub const VERSION: u32 = 1;
/// Bytes in a page of file data, and in the header.
pub const PAGE: usize = 4096;
/// The longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// The longest name that the table of short names takes, in bytes.
pub const SHORT_NAME_MAX: usize = (ENTRY_WORDS - entry::NAME) * 8;

/// Offsets in the header, in bytes.
pub mod header {
    /// [`MAGIC`](super::MAGIC), 8 bytes.
    pub const MAGIC: usize = 0;
    /// [`VERSION`](super::VERSION), 4 bytes.
    pub const VERSION: usize = 8;
    /// Number of generations, 4 bytes.
    pub const GENERATIONS: usize = 12;
    /// Number of attribute records, 4 bytes.
    pub const ATTRS: usize = 16;
    /// Number of entry records for short names, 4 bytes.
    pub const ENTRIES: usize = 20;
    /// Number of entry records for long names, 4 bytes.
    pub const LONG_ENTRIES: usize = 24;
    /// Number of page records and of pages, 4 bytes.
    pub const PAGES: usize = 28;
    /// Bytes of the whole View, 8 bytes.
    pub const LENGTH: usize = 32;
    /// 1 while the server keeps the View true, then 0; 8 bytes, on a cache line of its own.
    pub const STATE: usize = 64;
}

/// Words of an attribute record.
pub mod attr {
    /// Sequence.
    pub const SEQUENCE: usize = 0;
    /// Inode number; 0: none.
    pub const INO: usize = 1;
    /// Length in bytes.
    pub const SIZE: usize = 2;
    /// Storage in units of 512 bytes.
    pub const BLOCKS: usize = 3;
    /// Type and permission bits, and above them the number of links.
    pub const MODE_NLINK: usize = 4;
    /// Owner, and above it the group.
    pub const UID_GID: usize = 5;
    /// Device number.
    pub const RDEV: usize = 6;
    /// Nanoseconds of the last access, and above them of the last change of content.
    pub const ATIME_MTIME_NSEC: usize = 7;
    /// Nanoseconds of the last change of attributes, and above them of creation.
    pub const CTIME_BTIME_NSEC: usize = 8;
    /// Seconds of the last access, then of the changes of content and of attributes, then of
    /// creation.
    pub const SECONDS: usize = 9;
}

/// Words of an entry record.
pub mod entry {
    /// Sequence.
    pub const SEQUENCE: usize = 0;
    /// Inode number of the directory; 0: none.
    pub const PARENT: usize = 1;
    /// The name's hash, with the name's length in the lowest 8 bits.
    pub const HASH_LENGTH: usize = 2;
    /// The directory's generation when the record was written.
    pub const GENERATION: usize = 3;
    /// Inode number of what the name names; 0: no such name.
    pub const CHILD: usize = 4;
    /// The name, filled with zeros to a multiple of 8 bytes; what follows is left as it was.
    pub const NAME: usize = 5;
}

/// Words of a page record.
pub mod page {
    /// Sequence.
    pub const SEQUENCE: usize = 0;
    /// Inode number; 0: none.
    pub const INO: usize = 1;
    /// The page's offset in the file, divided by the size of a page.
    pub const BLOCK: usize = 2;
}

/// Words in an attribute record: two cache lines, of which a read needs one.
pub const ATTR_WORDS: usize = 16;
/// Words in an entry record for short names: two cache lines, of which names to 24 bytes need one.
pub const ENTRY_WORDS: usize = 16;
/// Words in an entry record for long names.
pub const LONG_ENTRY_WORDS: usize = 40;
/// Words in a page record: two to a cache line.
pub const PAGE_WORDS: usize = 4;
/// Records in a set of attributes and of entries: a miss looks at a cache line for each.
pub const WAYS: usize = 4;
/// Records in a set of pages.
pub const PAGE_WAYS: usize = 8;

const _: () = assert!((LONG_ENTRY_WORDS - entry::NAME) * 8 >= NAME_MAX);
const _: () = assert!(attr::SECONDS + 4 <= ATTR_WORDS && page::BLOCK < PAGE_WORDS);
const _: () = assert!(size_of::<AtomicU64>() == 8);

/// Why memory is no View that this code can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It does not begin as a View does.
    Magic,
    /// It has another version, which is given.
    Version(u32),
    /// Its numbers of records are none that [`Size`] allows.
    Size,
    /// It is shorter or longer than they say.
    Length,
}

/// How many records a View has. Each number is a power of two from 8 to 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Directories that share a generation share their invalidations.
    pub generations: u32,
    /// Inodes whose attributes fit.
    pub attrs: u32,
    /// Names to [`SHORT_NAME_MAX`] bytes that fit.
    pub entries: u32,
    /// Longer names that fit.
    pub long_entries: u32,
    /// Pages of file data that fit.
    pub pages: u32,
}

impl Size {
    /// The largest View within `bytes`, most of it pages; `None` if `bytes` is less than about 50
    /// KiB.
    pub fn within(bytes: usize) -> Option<Size> {
        (3..=24).rev().map(|bits| Size::for_pages(1 << bits)).find(|size| size.bytes() <= bytes)
    }

    /// A View of `pages` pages, and of names and attributes in proportion.
    pub fn for_pages(pages: u32) -> Size {
        let of = |count: u32| count.clamp(8, 1 << 24);
        Size {
            generations: of(pages),
            attrs: of(pages.saturating_mul(2)),
            entries: of(pages.saturating_mul(2)),
            long_entries: of(pages / 8),
            pages: of(pages),
        }
    }

    /// Bytes of the View.
    pub fn bytes(&self) -> usize {
        Layout::of(*self).length
    }

    fn valid(&self) -> bool {
        [self.generations, self.attrs, self.entries, self.long_entries, self.pages]
            .iter()
            .all(|count| count.is_power_of_two() && (8..=1 << 24).contains(count))
    }
}

/// The records of a table, in sets of `W`.
#[derive(Clone, Copy, Debug)]
pub struct Table<const W: usize> {
    records: usize,
    set_bits: u32,
}

impl<const W: usize> Table<W> {
    fn new(records: u32) -> Self {
        Table { records: records as usize, set_bits: (records as usize / W).trailing_zeros() }
    }

    /// The number of records.
    pub const fn records(&self) -> usize {
        self.records
    }

    /// The record to be looked at `nth`, below `W`, for what belongs at `position`. Consecutive
    /// positions have consecutive sets, so that as many as there are records all find room.
    #[inline(always)]
    pub fn record(&self, position: u64, nth: usize) -> usize {
        let position = position as usize;
        let set = position & ((1 << self.set_bits) - 1);
        set * W + ((position >> self.set_bits) + nth) % W
    }
}

/// The places that follow from a [`Size`].
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub attrs: Table<WAYS>,
    pub entries: Table<WAYS>,
    pub long_entries: Table<WAYS>,
    pub pages: Table<PAGE_WAYS>,
    pub generations_at: usize,
    pub attrs_at: usize,
    pub entries_at: usize,
    pub long_entries_at: usize,
    pub pages_at: usize,
    pub data_at: usize,
    pub length: usize,
}

impl Layout {
    /// The layout of a View of `size`.
    pub fn of(size: Size) -> Layout {
        let [generations, attrs, entries, long_entries, pages] =
            [size.generations, size.attrs, size.entries, size.long_entries, size.pages]
                .map(|count| count as usize);
        let generations_at = PAGE;
        let attrs_at = (generations_at + generations * 8).next_multiple_of(64);
        let entries_at = attrs_at + attrs * ATTR_WORDS * 8;
        let long_entries_at = entries_at + entries * ENTRY_WORDS * 8;
        let pages_at = long_entries_at + long_entries * LONG_ENTRY_WORDS * 8;
        let data_at = (pages_at + pages * PAGE_WORDS * 8).next_multiple_of(PAGE);
        Layout {
            attrs: Table::new(size.attrs),
            entries: Table::new(size.entries),
            long_entries: Table::new(size.long_entries),
            pages: Table::new(size.pages),
            generations_at,
            attrs_at,
            entries_at,
            long_entries_at,
            pages_at,
            data_at,
            length: data_at + pages * PAGE,
        }
    }
}

/// The tables in memory.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    pub layout: Layout,
    pub state: &'a AtomicU64,
    pub generations: &'a [AtomicU64],
    pub attrs: &'a [AtomicU64],
    pub entries: &'a [AtomicU64],
    pub long_entries: &'a [AtomicU64],
    pub pages: &'a [AtomicU64],
    pub data: Shared<'a>,
}

impl<'a> Tables<'a> {
    fn new(memory: Shared<'a>, size: Size) -> Result<Self, Malformed> {
        if !size.valid() {
            return Err(Malformed::Size);
        }
        let layout = Layout::of(size);
        let data = memory
            .part(layout.data_at, size.pages as usize * PAGE)
            .filter(|_| memory.len() == layout.length)
            .ok_or(Malformed::Length)?;
        let table = |at, count: usize, words_each| memory.words(at, count * words_each);
        Ok(Tables {
            layout,
            state: memory.u64(header::STATE),
            generations: table(layout.generations_at, size.generations as usize, 1),
            attrs: table(layout.attrs_at, layout.attrs.records(), ATTR_WORDS),
            entries: table(layout.entries_at, layout.entries.records(), ENTRY_WORDS),
            long_entries: table(
                layout.long_entries_at,
                layout.long_entries.records(),
                LONG_ENTRY_WORDS,
            ),
            pages: table(layout.pages_at, layout.pages.records(), PAGE_WORDS),
            data,
        })
    }

    /// Writes the header of a View of `size`. `memory` is all zeros.
    pub fn format(memory: Shared<'a>, size: Size) -> Result<Self, Malformed> {
        let tables = Self::new(memory, size)?;
        let put = |at, value| memory.u32(at).store(value, Ordering::Relaxed);
        put(header::VERSION, VERSION);
        put(header::GENERATIONS, size.generations);
        put(header::ATTRS, size.attrs);
        put(header::ENTRIES, size.entries);
        put(header::LONG_ENTRIES, size.long_entries);
        put(header::PAGES, size.pages);
        memory.u64(header::LENGTH).store(memory.len() as u64, Ordering::Relaxed);
        tables.state.store(1, Ordering::Relaxed);
        memory.u64(header::MAGIC).store(MAGIC, Ordering::Release);
        Ok(tables)
    }

    /// Reads the header and the numbers in it, once.
    pub fn open(memory: Shared<'a>) -> Result<Self, Malformed> {
        if memory.len() < PAGE {
            return Err(Malformed::Length);
        }
        if memory.u64(header::MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(Malformed::Magic);
        }
        let get = |at| memory.u32(at).load(Ordering::Relaxed);
        let version = get(header::VERSION);
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        if memory.u64(header::LENGTH).load(Ordering::Relaxed) != memory.len() as u64 {
            return Err(Malformed::Length);
        }
        let size = Size {
            generations: get(header::GENERATIONS),
            attrs: get(header::ATTRS),
            entries: get(header::ENTRIES),
            long_entries: get(header::LONG_ENTRIES),
            pages: get(header::PAGES),
        };
        Self::new(memory, size)
    }

    /// The generation of the directory `ino`, which others may share.
    #[inline(always)]
    pub fn generation(&self, ino: u64) -> &'a AtomicU64 {
        &self.generations[ino as usize & (self.generations.len() - 1)]
    }
}

/// Words of an attribute record that are in use.
pub const ATTR_FIELDS: usize = attr::SECONDS + 4;

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// The words of the record of `attr`; sequence and inode number are left out.
pub fn attr_words(attr: &Attr) -> [u64; ATTR_FIELDS] {
    let times = [attr.atime, attr.mtime, attr.ctime, attr.btime];
    let [atime, mtime, ctime, btime] = times.map(|time| time.nsec);
    let mut words = [0; ATTR_FIELDS];
    words[attr::SIZE] = attr.size;
    words[attr::BLOCKS] = attr.blocks;
    words[attr::MODE_NLINK] = pair(attr.mode, attr.nlink);
    words[attr::UID_GID] = pair(attr.uid, attr.gid);
    words[attr::RDEV] = pair(attr.rdev, 0);
    words[attr::ATIME_MTIME_NSEC] = pair(atime, mtime);
    words[attr::CTIME_BTIME_NSEC] = pair(ctime, btime);
    for (word, time) in words[attr::SECONDS..].iter_mut().zip(times) {
        *word = time.sec as u64;
    }
    words
}

/// The reverse, for the inode `ino`.
#[inline]
pub fn attr_from(ino: u64, words: &[u64; ATTR_FIELDS]) -> Attr {
    let (mode, nlink) = halves(words[attr::MODE_NLINK]);
    let (uid, gid) = halves(words[attr::UID_GID]);
    let (atime, mtime) = halves(words[attr::ATIME_MTIME_NSEC]);
    let (ctime, btime) = halves(words[attr::CTIME_BTIME_NSEC]);
    let time = |nth, nsec| Timespec { sec: words[attr::SECONDS + nth] as i64, nsec };
    Attr {
        ino: Ino(ino),
        mode,
        nlink,
        uid,
        gid,
        rdev: halves(words[attr::RDEV]).0,
        size: words[attr::SIZE],
        blocks: words[attr::BLOCKS],
        atime: time(0, atime),
        mtime: time(1, mtime),
        ctime: time(2, ctime),
        btime: time(3, btime),
    }
}

/// Where the page `block` of `ino` belongs: pages of one file side by side.
#[inline(always)]
pub fn page_position(ino: u64, block: u64) -> u64 {
    mix(ino).wrapping_add(block)
}

/// The hash of `name`, 1 to 255 bytes, in the directory `parent`: where its entry belongs; never 0.
#[inline]
pub fn entry_hash(parent: u64, name: &[u8]) -> u64 {
    let mut hash = parent.wrapping_mul(MULTIPLIER) ^ name.len() as u64;
    for word in name_words(name) {
        hash = mix(hash ^ word);
    }
    // The length takes the lowest byte where the hash is stored.
    hash >> 8 | 1 << 63
}

/// The value of [`entry::HASH_LENGTH`] for a name with that [`entry_hash`].
#[inline(always)]
pub fn hash_length(hash: u64, name: &[u8]) -> u64 {
    hash << 8 | (name.len() as u64 & 0xff)
}

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline(always)]
fn mix(value: u64) -> u64 {
    let product = u128::from(value ^ 0x2545_f491_4f6c_dd1d) * u128::from(MULTIPLIER);
    product as u64 ^ (product >> 64) as u64
}

/// `name` in words, the last filled with zeros.
#[inline(always)]
pub fn name_words(name: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (whole, rest) = name.as_chunks::<8>();
    let last = (!rest.is_empty())
        .then(|| rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    whole.iter().map(|chunk| u64::from_le_bytes(*chunk)).chain(last)
}
