//! Storage of the host, asked for ahead.
//!
//! A store to a hole of a sparse file makes the host find one block, under locks of its own, and if
//! it goes through a mapping also a fault that reads the hole. Storage asked for a mebibyte at a time
//! by fallocate(2), and pages brought to its cache by a write of zeros, cost a fraction of that
//! (docs/PERFORMANCE.md).

use std::fs::File;
use std::ops::Range;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use super::io;

/// Bytes that are looked at at a time.
const PIECE: u64 = 128 << 10;
/// Bytes of storage asked for at a time: few enough not to matter as waste. One byte of the bitmap.
const REGION: u64 = 8 * PIECE;

/// tmpfs: storage is memory there, and a page of it costs the same whenever it is asked for.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

static ZEROS: [u8; PIECE as usize] = [0; PIECE as usize];

/// Which pieces of a file were asked for.
#[derive(Debug)]
pub(super) struct Reserve {
    /// One bit for each piece.
    asked: Vec<u8>,
    /// Those in which nothing was stored when their region was asked for. It is too late to tell
    /// after that: a fault reads ahead, and what the host has in its cache counts as data.
    empty: Vec<u8>,
    length: u64,
}

impl Reserve {
    /// For a file of `length` bytes. Nothing is ever asked for where that gains nothing.
    pub(super) fn new(file: &File, length: u64, writable: bool) -> Reserve {
        let regular = file.metadata().is_ok_and(|found| found.is_file());
        let disk = rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type != TMPFS_MAGIC);
        match regular && disk && writable {
            true => Reserve::with(length, 0),
            false => Reserve::never(length),
        }
    }

    /// Asks for nothing.
    pub(super) fn never(length: u64) -> Reserve {
        Reserve::with(length, u8::MAX)
    }

    fn with(length: u64, byte: u8) -> Reserve {
        let regions = length.div_ceil(REGION) as usize;
        Reserve { asked: vec![byte; regions], empty: vec![0; regions], length }
    }

    /// Whether the bytes of `range`, which lie in the file, were asked for.
    #[inline]
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        let first = range.start / PIECE;
        let last = range.end.saturating_sub(1) / PIECE;
        // What spans several pieces is looked at in `ask`.
        first == last
            && self.asked.get((first / 8) as usize).is_some_and(|b| b & (1 << (first % 8)) != 0)
    }

    /// Asks for the pieces that hold `range`, each once; with `fill`, also for pages in the host's
    /// cache, where the file has nothing yet. A host that refuses does so again, with a reason, when
    /// something is stored.
    #[cold]
    pub(super) fn ask(&mut self, file: &File, range: &Range<u64>, fill: bool) {
        for piece in range.start / PIECE..range.end.div_ceil(PIECE) {
            let (region, bit) = ((piece / 8) as usize, 1 << (piece % 8));
            let Some(byte) = self.asked.get_mut(region) else { return };
            if *byte & bit != 0 {
                continue;
            }
            if *byte == 0 {
                let at = piece / 8 * REGION;
                let end = self.length.min(at + REGION);
                for piece in 0..8 {
                    let at = at + piece * PIECE;
                    let is_empty = at < end && is_hole(file, at, end.min(at + PIECE));
                    self.empty[region] |= u8::from(is_empty) << piece;
                }
                let _ = rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, end - at);
            }
            *byte |= bit;
            let at = piece * PIECE;
            let end = self.length.min(at + PIECE);
            if fill && self.empty[region] & bit != 0 {
                // Zeros over zeros: if they do not fit, nothing is wrong yet.
                use std::os::fd::AsFd;
                let _ = io::write_at(file.as_fd(), at, &ZEROS[..(end - at) as usize]);
            }
        }
    }
}

/// Whether nothing was ever stored in a range. A host that cannot tell says no.
fn is_hole(file: &File, at: u64, end: u64) -> bool {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => data >= end,
        Err(errno) => errno == Errno::NXIO,
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
        let mut reserve = Reserve::with(length, 0);
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
        assert!(Reserve::never(length).covers(&(5..6)));
        assert_eq!(file.metadata().unwrap().len(), length);
    }

    /// What an earlier process stored is not touched, wherever in a piece it is.
    #[test]
    fn content_stays() {
        let file = tempfile::tempfile().unwrap();
        let length = 4 * REGION;
        file.set_len(length).unwrap();
        let places = [0, 1, PIECE - 1, PIECE + 4096, 3 * PIECE - 1, 2 * REGION + 5, length - 1];
        for at in places {
            file.write_all_at(b"x", at).unwrap();
        }
        let mut reserve = Reserve::with(length, 0);
        reserve.ask(&file, &(0..length), true);
        let mut content = vec![0; length as usize];
        file.read_exact_at(&mut content, 0).unwrap();
        let found: Vec<u64> = (0..length).filter(|&at| content[at as usize] != 0).collect();
        assert_eq!(found, places);
    }
}
