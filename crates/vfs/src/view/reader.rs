//! The client's half of a View.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_transport::Shared;

use super::copy::copy_out;
use super::layout::*;
use super::sequence::{begin, unchanged};
use crate::types::Attr;

/// How often a record is looked at while the server is changing it. A round trip is the way out,
/// and waits for the change.
const TRIES: usize = 32;

/// A View's knowledge of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The name is that of this inode.
    Found(u64),
    /// There is no such name.
    Missing,
}

/// Reads a View. Any number of threads may use one.
///
/// Every answer was true at a moment between the call and its return. `None` says nothing: ask the
/// server. Inode number 0, which is none, is never known.
#[derive(Clone, Copy, Debug)]
pub struct ViewReader<'a> {
    tables: Tables<'a>,
}

/// An attempt that was not answered.
enum Not {
    /// Not in the View.
    There,
    /// Being changed.
    Now,
}

/// Tries until `attempt` is answered, a few times.
#[inline(always)]
fn retry<T>(mut attempt: impl FnMut() -> Result<T, Not>) -> Option<T> {
    for _ in 0..TRIES {
        match attempt() {
            Ok(answer) => return Some(answer),
            Err(Not::There) => return None,
            Err(Not::Now) => spin_loop(),
        }
    }
    None
}

#[inline(always)]
fn get(record: &[AtomicU64], word: usize) -> u64 {
    record[word].load(Ordering::Relaxed)
}

/// The words of an attribute record that [`Attr`] is made of.
#[inline(always)]
fn fields(record: &[AtomicU64]) -> [u64; ATTR_FIELDS] {
    core::array::from_fn(|word| if word < attr::SIZE { 0 } else { get(record, word) })
}

/// `value` if the record did not change since `begin` gave `sequence`.
#[inline(always)]
fn whole<T>(record: &[AtomicU64], sequence: u64, value: T) -> Result<T, Not> {
    if unchanged(&record[0], sequence) { Ok(value) } else { Err(Not::Now) }
}

impl<'a> ViewReader<'a> {
    /// Reads the View in `memory`, which the server made.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn new(memory: Shared<'a>) -> Result<Self, Malformed> {
        Ok(ViewReader { tables: Tables::open(memory)? })
    }

    /// Whether the server keeps the View true. Once false it stays so, and nothing is found.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.tables.state.load(Ordering::Acquire) == 1
    }

    /// The attributes of `ino`.
    #[inline]
    pub fn attr(&self, ino: u64) -> Option<Attr> {
        retry(|| {
            let (record, sequence) = self.begin_attr(ino)?;
            let words = fields(record);
            whole(record, sequence, words)
        })
        .map(|words| attr_from(ino, &words))
    }

    /// The length of `ino` in bytes.
    #[inline]
    pub fn size(&self, ino: u64) -> Option<u64> {
        retry(|| {
            let (record, sequence) = self.begin_attr(ino)?;
            let size = get(record, attr::SIZE);
            whole(record, sequence, size)
        })
    }

    /// The entry of `name` in the directory `parent`.
    #[inline]
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Option<Entry> {
        let hash = self.hash(parent, name)?;
        retry(|| {
            let (record, sequence) = self.begin_entry(parent, name, hash)?;
            let child = get(record, entry::CHILD);
            whole(record, sequence, child)
        })
        .map(|child| if child == 0 { Entry::Missing } else { Entry::Found(child) })
    }

    /// The attributes that `name` in the directory `parent` had at one moment; `None` inside if
    /// there is no such name.
    #[inline]
    pub fn lookup_attr(&self, parent: u64, name: &[u8]) -> Option<Option<Attr>> {
        let hash = self.hash(parent, name)?;
        retry(|| {
            // The generation before the entry is loaded, and again after the attributes are: at any
            // moment between the entry's loads all three were so.
            let generation = self.tables.generation(parent);
            let before = generation.load(Ordering::Acquire);
            let (record, sequence) = self.begin_entry(parent, name, hash)?;
            let child = get(record, entry::CHILD);
            if child == 0 {
                return whole(record, sequence, None);
            }
            if !unchanged(&record[0], sequence) {
                return Err(Not::Now);
            }
            let (attr_record, attr_sequence) = self.begin_attr(child)?;
            let words = fields(attr_record);
            let words = whole(attr_record, attr_sequence, words)?;
            if generation.load(Ordering::Relaxed) != before {
                return Err(Not::Now);
            }
            whole(record, sequence, Some((child, words)))
        })
        .map(|found| found.map(|(child, words)| attr_from(child, &words)))
    }

    /// Fills `buf` with the bytes of `ino` from `offset`, short only at the end of file, and
    /// returns how many: all of them, and the length of the file, as they were at one moment.
    /// `None` also when only some of the pages are there; `buf` may have been written to then.
    ///
    /// The View holds pages of what the session may read, not what each of its descriptors may:
    /// whoever calls has a descriptor that is open for reading.
    #[inline]
    pub fn read(&self, ino: u64, offset: u64, buf: &mut [u8]) -> Option<usize> {
        retry(|| {
            let (record, sequence) = self.begin_attr(ino)?;
            // Until the record is known to be whole this is any number, which `buf` bounds.
            let size = get(record, attr::SIZE);
            let len = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            let len = len.min(buf.len());
            let mut rest = &mut buf[..len];
            let mut at = offset;
            while !rest.is_empty() {
                let within = at as usize % PAGE;
                let (piece, after) = rest.split_at_mut(rest.len().min(PAGE - within));
                self.read_page(ino, at / PAGE as u64, within, piece)?;
                at += piece.len() as u64;
                rest = after;
            }
            // Every change of content or length drops the attributes too: that they were never
            // dropped means that all pages, each whole, were the file's throughout.
            whole(record, sequence, len)
        })
    }

    #[inline(always)]
    fn read_page(&self, ino: u64, block: u64, within: usize, out: &mut [u8]) -> Result<(), Not> {
        let position = page_position(ino, block);
        for nth in 0..PAGE_WAYS {
            let number = self.tables.layout.pages.record(position, nth);
            let record = &self.tables.pages[number * PAGE_WORDS..][..PAGE_WORDS];
            let matches = || get(record, page::BLOCK) == block && get(record, page::INO) == ino;
            if matches() {
                let sequence = begin(&record[page::SEQUENCE]).ok_or(Not::Now)?;
                if !matches() {
                    return Err(Not::Now);
                }
                copy_out(&self.tables.data, number * PAGE + within, out);
                whole(record, sequence, ())?;
                return Ok(());
            }
        }
        Err(Not::There)
    }

    /// The attributes' record, and its sequence word before anything else of it is loaded.
    #[inline(always)]
    fn begin_attr(&self, ino: u64) -> Result<(&'a [AtomicU64], u64), Not> {
        if ino == 0 || !self.is_open() {
            return Err(Not::There);
        }
        for nth in 0..WAYS {
            let number = self.tables.layout.attrs.record(ino, nth);
            let record = &self.tables.attrs[number * ATTR_WORDS..][..ATTR_WORDS];
            if get(record, attr::INO) == ino {
                let sequence = begin(&record[attr::SEQUENCE]).ok_or(Not::Now)?;
                if get(record, attr::INO) != ino {
                    return Err(Not::Now);
                }
                return Ok((record, sequence));
            }
        }
        Err(Not::There)
    }

    /// The hash of a name that can be an entry.
    #[inline(always)]
    fn hash(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let possible = parent != 0 && !name.is_empty() && name.len() <= NAME_MAX;
        (possible && self.is_open()).then(|| entry_hash(parent, name))
    }

    /// The entry's record, as [`begin_attr`](Self::begin_attr).
    #[inline(always)]
    fn begin_entry(
        &self,
        parent: u64,
        name: &[u8],
        hash: u64,
    ) -> Result<(&'a [AtomicU64], u64), Not> {
        // Before the record: an entry of this generation was put before the next one began, so it
        // was true now or later.
        let generation = self.tables.generation(parent).load(Ordering::Acquire);
        let layout = &self.tables.layout;
        let (table, words, records) = if name.len() <= SHORT_NAME_MAX {
            (layout.entries, ENTRY_WORDS, self.tables.entries)
        } else {
            (layout.long_entries, LONG_ENTRY_WORDS, self.tables.long_entries)
        };
        let key = hash_length(hash, name);
        for nth in 0..WAYS {
            let number = table.record(hash, nth);
            let record = &records[number * words..][..words];
            if get(record, entry::HASH_LENGTH) == key && get(record, entry::PARENT) == parent {
                let sequence = begin(&record[entry::SEQUENCE]).ok_or(Not::Now)?;
                let same = get(record, entry::HASH_LENGTH) == key
                    && get(record, entry::PARENT) == parent
                    && get(record, entry::GENERATION) == generation
                    && record[entry::NAME..]
                        .iter()
                        .zip(name_words(name))
                        .all(|(word, expected)| word.load(Ordering::Relaxed) == expected);
                if !same {
                    return Err(Not::There);
                }
                return Ok((record, sequence));
            }
        }
        Err(Not::There)
    }
}
