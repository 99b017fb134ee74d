//! Storage and pages of the host, asked for ahead.
//!
//! A store to a hole of a sparse file makes the host find one block, under locks of its own, and if
//! it goes through a mapping also a fault that reads the hole. Storage asked for a mebibyte at a
//! time by fallocate(2), and pages brought to its cache by a write of zeros, cost a fraction of
//! that (docs/PERFORMANCE.md).
//!
//! Content that is there already is read ahead, a piece at its first use; again only while memory
//! is short (`shortage`). The mapping itself brings in single pages: the kernel's own way to read
//! around a fault also makes pages of zeros around every fault on fresh storage, and where memory
//! is short it reads what goes again before it is used.

use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsFd;

use atoll_block::BLOCK_SIZE;
use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::Errno;

use super::io;

/// Bytes that are looked at at a time.
pub(super) const PIECE: u64 = 128 << 10;
/// Pieces read ahead at a time for a sequence of loads: the one that it enters, and the next.
pub(super) const SEQUENCE: u64 = 2;
/// Bytes of storage asked for at a time: few enough not to matter as waste. One byte of the bitmap.
const REGION: u64 = 8 * PIECE;

/// tmpfs: storage is memory there, and a page of it costs the same whenever it is asked for.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

static ZEROS: [u8; PIECE as usize] = [0; PIECE as usize];

/// Which pieces of a file were asked for.
#[derive(Debug)]
pub(super) struct Reserve {
    /// One bit for each piece that has storage.
    asked: Box<[u8]>,
    /// One for each whose pages are in the host's cache, or were.
    seen: Box<[u8]>,
    /// Those in which nothing was stored when their region was asked for. It is too late to tell
    /// after that: a fault reads ahead, and what the host has in its cache counts as data.
    empty: Box<[u8]>,
    /// Those whose storage was given back after it was asked for.
    given_back: Box<[u8]>,
    length: u64,
    never: bool,
    /// Storage can be asked for.
    asks: bool,
}

impl Reserve {
    /// For a file or block device of `length` bytes. Nothing is ever asked for where that gains
    /// nothing.
    pub(super) fn new(file: &File, length: u64, writable: bool) -> Reserve {
        let regular = file.metadata().is_ok_and(|found| found.is_file());
        if rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type == TMPFS_MAGIC) && regular {
            return Reserve::never(length);
        }
        Reserve::with(length, if regular && writable { 0 } else { u8::MAX }, 0)
    }

    /// Asks for nothing.
    pub(super) fn never(length: u64) -> Reserve {
        Reserve { never: true, ..Reserve::with(length, u8::MAX, u8::MAX) }
    }

    /// Whether it asks for nothing, ever.
    pub(super) fn is_never(&self) -> bool {
        self.never
    }

    fn with(length: u64, asked: u8, seen: u8) -> Reserve {
        let regions = length.div_ceil(REGION) as usize;
        let bits = |value: u8| vec![value; regions].into_boxed_slice();
        Reserve {
            asked: bits(asked),
            seen: bits(seen),
            empty: bits(0),
            given_back: bits(0),
            length,
            never: false,
            asks: asked == 0,
        }
    }

    /// Whether storage was asked for, for the bytes of `range`, which lie in the file.
    #[inline]
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        is_set(&self.asked, range)
    }

    /// Whether the pages of `range`, which lies in the file, were brought to the host's cache.
    #[inline]
    pub(super) fn has_seen(&self, range: &Range<u64>) -> bool {
        is_set(&self.seen, range)
    }

    /// Has the pieces that hold `range` read ahead, each once.
    #[cold]
    pub(super) fn read_ahead(&mut self, file: &File, range: &Range<u64>) {
        for piece in pieces(range) {
            let (region, bit) = place(piece);
            let Some(seen) = self.seen.get_mut(region) else { return };
            if *seen & bit == 0 {
                *seen |= bit;
                will_need(file, piece, 1);
            }
        }
    }

    /// Notes that the bytes of `range` have no storage any more.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        if self.never {
            return;
        }
        for piece in pieces(range) {
            let (region, bit) = place(piece);
            let Some(&asked) = self.asked.get(region) else { return };
            // Memory that was never touched stays so.
            if self.seen[region] & bit != 0 {
                self.seen[region] &= !bit;
            }
            if self.asks && asked & bit != 0 {
                self.asked[region] &= !bit;
                self.given_back[region] |= bit;
                self.empty[region] &= !bit;
            }
        }
    }

    /// Asks for storage for the pieces that hold `range`, each once, and if the mapping is stored
    /// to for `pages` in the host's cache. A host that refuses does so again, with a reason, when
    /// something is stored.
    #[cold]
    pub(super) fn ask(&mut self, file: &File, range: &Range<u64>, pages: bool) {
        for piece in pieces(range) {
            let (region, bit) = place(piece);
            let Some(byte) = self.asked.get_mut(region) else { return };
            if *byte & bit == 0 {
                let bytes = |from: u64, len: u64| from..self.length.min(from + len);
                let mut wanted = None;
                if *byte == 0 {
                    let whole = bytes(piece / 8 * REGION, REGION);
                    let mut data = 0;
                    for piece in 0..8 {
                        let at = whole.start + piece * PIECE;
                        if data <= at {
                            data = next_data(file, at);
                        }
                        let is_empty = at < whole.end && data >= whole.end.min(at + PIECE);
                        self.empty[region] |= u8::from(is_empty) << piece;
                    }
                    wanted = Some(whole);
                } else if self.given_back[region] & bit != 0 {
                    wanted = Some(bytes(piece * PIECE, PIECE));
                }
                if let Some(wanted) = wanted
                    && !allocate(file, &wanted)
                {
                    // A host that is nearly full: as much as is needed, so that it outlives a power
                    // loss. Whether it has more is asked every time.
                    allocate(file, range);
                    self.empty[region] &= *byte;
                    continue;
                }
                *byte |= bit;
                if pages && self.empty[region] & bit != 0 {
                    self.seen[region] |= bit;
                    let at = piece * PIECE;
                    let end = self.length.min(at + PIECE);
                    // Zeros over zeros: if they do not fit, nothing is wrong yet.
                    let _ = io::write_at(file.as_fd(), at, &ZEROS[..(end - at) as usize]);
                }
            }
        }
        if pages {
            self.read_ahead(file, range);
        }
    }
}

/// Asks for storage for the blocks that hold `bytes`; whether there was some.
fn allocate(file: &File, bytes: &Range<u64>) -> bool {
    let start = bytes.start / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
    let result = rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, start, bytes.end - start);
    result != Err(Errno::NOSPC)
}

/// Has `count` pieces read ahead, without waiting for them. Where this fails the load reads, page
/// by page.
pub(super) fn will_need(file: &File, piece: u64, count: u64) {
    let length = NonZeroU64::new(count * PIECE);
    let _ = rustix::fs::fadvise(file, piece * PIECE, length, Advice::WillNeed);
}

/// The numbers of the pieces that hold `range`.
pub(super) fn pieces(range: &Range<u64>) -> Range<u64> {
    range.start / PIECE..range.end.div_ceil(PIECE)
}

/// The byte of a bitmap, and the bit in it, for a piece.
fn place(piece: u64) -> (usize, u8) {
    ((piece / 8) as usize, 1 << (piece % 8))
}

/// Whether `range` lies in one piece, whose bit is set. A range over several pieces is looked at
/// when asking.
#[inline]
fn is_set(bits: &[u8], range: &Range<u64>) -> bool {
    let first = range.start / PIECE;
    let last = range.end.saturating_sub(1) / PIECE;
    let (byte, bit) = place(first);
    first == last && bits.get(byte).is_some_and(|bits| bits & bit != 0)
}

/// The first place from `at` on where something was stored. A host that cannot tell says at once.
fn next_data(file: &File, at: u64) -> u64 {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => data,
        Err(Errno::NXIO) => u64::MAX,
        Err(_) => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn pieces_are_asked_for_once() {
        let file = tempfile::tempfile().unwrap();
        let length = 65 * REGION + 4096;
        file.set_len(length).unwrap();
        let mut reserve = Reserve::with(length, 0, 0);
        for range in [0..1, PIECE - 1..PIECE, length - 1..length] {
            assert_eq!(reserve.covers(&range), range.start != 0 && range.end <= PIECE);
            reserve.ask(&file, &range, true);
            assert!(reserve.covers(&range));
        }
        assert!(!reserve.covers(&(PIECE..PIECE + 1)));
        assert!(!reserve.covers(&(PIECE - 1..PIECE + 1)), "two pieces");
        reserve.ask(&file, &(PIECE - 1..3 * PIECE), true);
        assert!(reserve.covers(&(PIECE..2 * PIECE)) && reserve.covers(&(2 * PIECE..3 * PIECE)));
        assert!(!reserve.covers(&(3 * PIECE..3 * PIECE + 1)));
        assert!(Reserve::never(length).covers(&(5..6)) && Reserve::never(length).has_seen(&(5..6)));
        assert_eq!(file.metadata().unwrap().len(), length);
    }

    /// Read ahead at the first load or store through the mapping, not for one by a call.
    #[test]
    fn pieces_are_read_ahead_once() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(REGION).unwrap();
        let mut reserve = Reserve::with(REGION, 0, 0);
        reserve.ask(&file, &(0..PIECE), false);
        assert!(reserve.covers(&(0..PIECE)) && !reserve.has_seen(&(0..PIECE)));
        reserve.ask(&file, &(0..1), true);
        assert!(reserve.has_seen(&(0..PIECE)));
        reserve.read_ahead(&file, &(PIECE..2 * PIECE));
        assert!(reserve.has_seen(&(PIECE..2 * PIECE)) && !reserve.covers(&(PIECE..2 * PIECE)));
        // A device that is only read.
        let mut reserve = Reserve::with(REGION, u8::MAX, 0);
        assert!(!reserve.has_seen(&(0..1)));
        reserve.read_ahead(&file, &(0..1));
        assert!(reserve.has_seen(&(0..1)));
    }

    /// Also what had been asked for and was given back: that piece alone.
    #[test]
    fn what_was_given_back_is_asked_for_again() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(REGION).unwrap();
        let mut reserve = Reserve::with(REGION, 0, 0);
        reserve.ask(&file, &(0..1), true);
        reserve.ask(&file, &(2 * PIECE..4 * PIECE), true);
        file.write_all_at(b"x", 3 * PIECE).unwrap();
        if !io::punch_hole(file.as_fd(), 2 * PIECE, PIECE).unwrap() {
            return eprintln!("not tested: no holes can be made in files here");
        }
        reserve.forget(&(2 * PIECE..3 * PIECE));
        assert!(reserve.covers(&(0..1)) && reserve.covers(&(3 * PIECE..4 * PIECE)));
        assert!(!reserve.covers(&(2 * PIECE..3 * PIECE)));
        assert!(!reserve.has_seen(&(2 * PIECE..3 * PIECE)));
        reserve.ask(&file, &(2 * PIECE..2 * PIECE + 1), true);
        assert!(reserve.covers(&(2 * PIECE..3 * PIECE)));
        let mut found = [0; 2];
        file.read_exact_at(&mut found, 3 * PIECE).unwrap();
        assert_eq!(&found, b"x\0");
        // Nothing is asked of a device that is only read, nor of a disk.
        let mut reserve = Reserve::with(REGION, u8::MAX, 0);
        reserve.forget(&(0..REGION));
        assert!(reserve.covers(&(0..1)));
    }

    /// The content that an earlier process stored is not touched, wherever in a piece it is.
    #[test]
    fn content_stays() {
        let file = tempfile::tempfile().unwrap();
        let length = 4 * REGION;
        file.set_len(length).unwrap();
        let places = [0, 1, PIECE - 1, PIECE + 4096, 3 * PIECE - 1, 2 * REGION + 5, length - 1];
        for at in places {
            file.write_all_at(b"x", at).unwrap();
        }
        let mut reserve = Reserve::with(length, 0, 0);
        reserve.ask(&file, &(0..length), true);
        let mut content = vec![0; length as usize];
        file.read_exact_at(&mut content, 0).unwrap();
        let found: Vec<u64> = (0..length).filter(|&at| content[at as usize] != 0).collect();
        assert_eq!(found, places);
    }
}
