//! The server's half of a View.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_transport::Shared;
use hashbrown::{DefaultHashBuilder, HashMap};

use super::copy::copy_in;
use super::layout::*;
use super::sequence::{hold, publish};
use super::ways::Ways;
use crate::types::Attr;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// Writes a View: one for each session. The thread that has the lock of the volume calls it.
///
/// # How a change is made
/// With the volume locked all the while:
///
/// 1. change the file system;
/// 2. in the Views of *all* sessions, drop every attribute, entry and page that it may have
///    altered;
/// 3. put what is true now.
///
/// So nobody sees any of what a change made in a View while somebody can still see any of what it
/// ended, and whoever asks the server in between waits for the lock. A change of a file's content
/// or length, however small, drops its attributes, even if they come out the same:
/// [`read`](super::ViewReader::read) relies on it.
///
/// A record that is only found out (by a lookup, getattr or read that a session asked for and was
/// allowed) is put without more, under the lock too.
#[derive(Debug)]
pub struct ViewWriter<'a> {
    tables: Tables<'a>,
    attrs: Ways<u64, WAYS>,
    entries: Ways<u64, WAYS>,
    long_entries: Ways<u64, WAYS>,
    pages: Ways<(u64, u64), PAGE_WAYS>,
    generations: Vec<u64>,
    /// The pages of each inode: the first of a list, and how many.
    files: HashMap<u64, (u32, u32)>,
    /// Each page's neighbours in that list.
    links: Vec<[u32; 2]>,
}

fn record(words: &[AtomicU64], number: usize, count: usize) -> &[AtomicU64] {
    &words[number * count..][..count]
}

fn put(record: &[AtomicU64], word: usize, value: u64) {
    record[word].store(value, Ordering::Relaxed);
}

/// Makes a record one that cannot be read and that no reader finds.
fn empty(record: &[AtomicU64]) {
    hold(&record[0]);
    put(record, 1, 0);
}

impl<'a> ViewWriter<'a> {
    /// A View of `size` in `memory`, of exactly [`Size::bytes`], which is all zeros.
    ///
    /// All memory that this half ever uses is allocated now.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn new(memory: Shared<'a>, size: Size) -> Result<Self, Malformed> {
        let tables = Tables::format(memory, size)?;
        let layout = tables.layout;
        let pages = layout.pages.records();
        Ok(ViewWriter {
            tables,
            attrs: Ways::new(layout.attrs),
            entries: Ways::new(layout.entries),
            long_entries: Ways::new(layout.long_entries),
            pages: Ways::new(layout.pages),
            generations: vec![0; tables.generations.len()],
            files: HashMap::with_capacity_and_hasher(2 * pages, DefaultHashBuilder::default()),
            links: vec![[NONE; 2]; pages],
        })
    }

    /// Bytes of private memory of a View of `size` at most.
    #[cfg(test)]
    pub(super) fn private_bytes(size: Size) -> usize {
        let [generations, attrs, entries, long_entries, pages] =
            [size.generations, size.attrs, size.entries, size.long_entries, size.pages]
                .map(|count| count as usize);
        // The table has room for twice its content, so that it never grows, rounded up to a power
        // of two.
        let file = (16 + 1) * 2 * 2 * 8 / 7;
        generations * 8
            + (attrs + entries + long_entries) * (8 + 1)
            + pages * (16 + 1 + 8 + file)
            + PAGE
    }

    /// Nothing can be read from here on. So it is when the writer is dropped.
    pub fn close(&mut self) {
        self.tables.state.store(0, Ordering::Release);
    }

    /// The attributes of `ino` are `attr`, whatever number is in it. Its pages can be read only
    /// while they are here.
    pub fn put_attr(&mut self, ino: u64, attr: &Attr) {
        assert!(ino != 0);
        let number = match self.attrs.find(ino, ino) {
            Some(number) => number,
            None => self.attrs.insert(ino, ino).0,
        };
        let record = record(self.tables.attrs, number, ATTR_WORDS);
        hold(&record[attr::SEQUENCE]);
        put(record, attr::INO, ino);
        for (word, value) in attr_words(attr).into_iter().enumerate().skip(attr::SIZE) {
            put(record, word, value);
        }
        publish(&record[attr::SEQUENCE]);
    }

    /// In the directory `parent`, `name` is the inode `child`. Names that cannot be are ignored.
    pub fn put_entry(&mut self, parent: u64, name: &[u8], child: u64) {
        assert!(child != 0);
        self.put_name(parent, name, child);
    }

    /// In the directory `parent` is no `name`.
    pub fn put_missing(&mut self, parent: u64, name: &[u8]) {
        self.put_name(parent, name, 0);
    }

    fn put_name(&mut self, parent: u64, name: &[u8], child: u64) {
        assert!(parent != 0);
        if name.is_empty() || name.len() > NAME_MAX {
            return;
        }
        let hash = entry_hash(parent, name);
        let generation = self.generations[parent as usize & (self.generations.len() - 1)];
        let (ways, records, words) = self.entry_table(name);
        // A key is only a hash. Where two names have the same, the one takes the other's place.
        let number = match ways.find(hash, hash) {
            Some(number) => number,
            None => ways.insert(hash, hash).0,
        };
        let record = record(records, number, words);
        hold(&record[entry::SEQUENCE]);
        put(record, entry::PARENT, parent);
        put(record, entry::HASH_LENGTH, hash_length(hash, name));
        put(record, entry::GENERATION, generation);
        put(record, entry::CHILD, child);
        for (nth, word) in name_words(name).enumerate() {
            put(record, entry::NAME + nth, word);
        }
        publish(&record[entry::SEQUENCE]);
    }

    /// The page `block` of `ino` is `data`, at most a page, and zeros after it.
    ///
    /// `data` is in the server's own memory: what a client can still change must not become what
    /// others read.
    pub fn put_page(&mut self, ino: u64, block: u64, data: &[u8]) {
        assert!(ino != 0 && data.len() <= PAGE);
        let number = match self.pages.find(page_position(ino, block), (ino, block)) {
            Some(number) => number,
            None => self.insert_page(ino, block),
        };
        let record = record(self.tables.pages, number, PAGE_WORDS);
        hold(&record[page::SEQUENCE]);
        put(record, page::INO, ino);
        put(record, page::BLOCK, block);
        copy_in(&self.tables.data, number * PAGE, data);
        copy_in(&self.tables.data, number * PAGE + data.len(), &ZEROS[data.len()..]);
        publish(&record[page::SEQUENCE]);
    }

    /// Whether the page `block` of `ino` is here.
    pub fn has_page(&self, ino: u64, block: u64) -> bool {
        self.pages.find(page_position(ino, block), (ino, block)).is_some()
    }

    /// Whether the attributes of `ino` are here.
    pub fn has_attr(&self, ino: u64) -> bool {
        self.attrs.find(ino, ino).is_some()
    }

    /// The number of pages of `ino` that are here.
    #[cfg(test)]
    pub(super) fn pages_of(&self, ino: u64) -> usize {
        self.files.get(&ino).map_or(0, |&(_, count)| count as usize)
    }

    /// Drops the attributes of `ino`.
    pub fn drop_attr(&mut self, ino: u64) {
        if let Some(number) = self.attrs.find(ino, ino) {
            self.remove_attr(number);
        }
    }

    /// Drops what is known of `name` in `parent`.
    pub fn drop_entry(&mut self, parent: u64, name: &[u8]) {
        let hash = entry_hash(parent, name);
        let (ways, records, words) = self.entry_table(name);
        if let Some(number) = ways.find(hash, hash) {
            empty(record(records, number, words));
            ways.remove(number);
        }
    }

    /// Drops all entries of the directory `parent`: one store. Others may lose theirs too.
    pub fn drop_entries(&mut self, parent: u64) {
        let slot = parent as usize & (self.generations.len() - 1);
        self.generations[slot] += 1;
        // The change that follows is seen by nobody who does not see this: a reader learns of it by
        // way of a release.
        self.tables.generations[slot].store(self.generations[slot], Ordering::Release);
    }

    /// Drops the pages of `ino` whose numbers are in `blocks`, in time proportional to the range or
    /// to the pages of `ino` that are here, whichever are fewer.
    pub fn drop_pages(&mut self, ino: u64, blocks: Range<u64>) {
        self.each_page(ino, blocks, Self::remove_page);
    }

    /// Drops attributes, pages and entries of `ino`.
    pub fn drop_inode(&mut self, ino: u64) {
        self.drop_attr(ino);
        self.drop_pages(ino, 0..u64::MAX);
        self.drop_entries(ino);
    }

    /// The room of all that could grow. (A map that has had removals in the wrong places says that
    /// its capacity is less.)
    #[cfg(test)]
    pub(super) fn private_capacity(&self) -> [usize; 2] {
        [self.files.allocation_size(), self.links.capacity()]
    }

    fn entry_table(&mut self, name: &[u8]) -> (&mut Ways<u64, WAYS>, &'a [AtomicU64], usize) {
        if name.len() <= SHORT_NAME_MAX {
            (&mut self.entries, self.tables.entries, ENTRY_WORDS)
        } else {
            (&mut self.long_entries, self.tables.long_entries, LONG_ENTRY_WORDS)
        }
    }

    fn remove_attr(&mut self, number: usize) {
        empty(record(self.tables.attrs, number, ATTR_WORDS));
        self.attrs.remove(number);
    }

    fn remove_page(&mut self, number: usize) {
        empty(record(self.tables.pages, number, PAGE_WORDS));
        self.unlink(number, self.pages.key(number).0);
        self.pages.remove(number);
    }

    /// Calls `f` with the record of each page of `ino` in `blocks` that is here; `f` may remove it.
    fn each_page(&mut self, ino: u64, blocks: Range<u64>, mut f: impl FnMut(&mut Self, usize)) {
        let Some(&(first, count)) = self.files.get(&ino) else { return };
        if blocks.end.saturating_sub(blocks.start) <= u64::from(count) {
            for block in blocks {
                if let Some(number) = self.pages.find(page_position(ino, block), (ino, block)) {
                    f(self, number);
                }
            }
            return;
        }
        let mut next = first;
        for _ in 0..count {
            let number = next as usize;
            next = self.links[number][1];
            if blocks.contains(&self.pages.key(number).1) {
                f(self, number);
            }
        }
    }

    /// A record for a page that has none.
    fn insert_page(&mut self, ino: u64, block: u64) -> usize {
        let (number, before) = self.pages.insert(page_position(ino, block), (ino, block));
        if let Some((ino, _)) = before {
            self.unlink(number, ino);
        }
        let file = self.files.entry(ino).or_insert((NONE, 0));
        let [first, count] = [file.0, file.1];
        *file = (number as u32, count + 1);
        self.links[number] = [NONE, first];
        if first != NONE {
            self.links[first as usize][0] = number as u32;
        }
        number
    }

    /// Takes the page out of the list of `ino`.
    fn unlink(&mut self, number: usize, ino: u64) {
        let [before, after] = self.links[number];
        if after != NONE {
            self.links[after as usize][0] = before;
        }
        if before != NONE {
            self.links[before as usize][1] = after;
        }
        if let Some(file) = self.files.get_mut(&ino) {
            file.1 -= 1;
            if before == NONE {
                file.0 = after;
            }
            if file.1 == 0 {
                self.files.remove(&ino);
            }
        }
    }
}

impl Drop for ViewWriter<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

static ZEROS: [u8; PAGE] = [0; PAGE];
