//! Storage of the host, asked for ahead.
//!
//! A store to a hole of a sparse file makes the host find one block, under locks of its own. Asked
//! for a mebibyte at a time by fallocate(2), the same storage costs a tenth (docs/PERFORMANCE.md).

use std::fs::File;
use std::ops::Range;

use rustix::fs::FallocateFlags;

/// Bytes asked for at a time, as a power of two: few enough not to matter as waste.
const PIECE_BITS: u32 = 20;

/// tmpfs: storage is memory there, and a page of it costs the same whenever it is asked for.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Which pieces of a file were asked for.
#[derive(Debug)]
pub(super) struct Reserve {
    asked: Vec<u64>,
    length: u64,
}

impl Reserve {
    /// For a file of `length` bytes. Nothing is ever asked for where that gains nothing.
    pub(super) fn new(file: &File, length: u64, writable: bool) -> Reserve {
        let regular = file.metadata().is_ok_and(|found| found.is_file());
        let disk = rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type as i64 != TMPFS_MAGIC);
        match regular && disk && writable {
            true => Reserve::with(length, 0),
            false => Reserve::never(length),
        }
    }

    /// Asks for nothing.
    pub(super) fn never(length: u64) -> Reserve {
        Reserve::with(length, u64::MAX)
    }

    fn with(length: u64, word: u64) -> Reserve {
        Reserve { asked: vec![word; length.div_ceil(64 << PIECE_BITS) as usize], length }
    }

    /// Whether the bytes of `range`, which lie in the file, were asked for.
    #[inline]
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        let first = range.start >> PIECE_BITS;
        let last = range.end.saturating_sub(1) >> PIECE_BITS;
        // What spans several pieces is looked at in `ask`.
        first == last
            && self.asked.get((first / 64) as usize).is_some_and(|w| w & (1 << (first % 64)) != 0)
    }

    /// Asks for the pieces that hold `range`, each once. A host that refuses does so again, with a
    /// reason, when something is stored.
    #[cold]
    pub(super) fn ask(&mut self, file: &File, range: &Range<u64>) {
        for piece in range.start >> PIECE_BITS..range.end.div_ceil(1 << PIECE_BITS) {
            let bit = 1 << (piece % 64);
            let Some(word) = self.asked.get_mut((piece / 64) as usize) else { return };
            if *word & bit != 0 {
                continue;
            }
            *word |= bit;
            let at = piece << PIECE_BITS;
            let len = self.length.min(at + (1 << PIECE_BITS)) - at;
            let _ = rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_asked_for_once() {
        let file = tempfile::tempfile().unwrap();
        let length = (65 << 20) + 4096;
        file.set_len(length).unwrap();
        let mut reserve = Reserve::with(length, 0);
        let piece = 1u64 << PIECE_BITS;
        for range in [0..1, piece - 1..piece, length - 1..length] {
            assert_eq!(reserve.covers(&range), range.start != 0 && range.end <= piece);
            reserve.ask(&file, &range);
            assert!(reserve.covers(&range));
        }
        assert!(!reserve.covers(&(piece..piece + 1)));
        assert!(!reserve.covers(&(piece - 1..piece + 1)), "two pieces");
        reserve.ask(&file, &(piece - 1..3 * piece));
        assert!(reserve.covers(&(piece..2 * piece)) && reserve.covers(&(2 * piece..3 * piece)));
        assert!(!reserve.covers(&(3 * piece..3 * piece + 1)));
        assert!(Reserve::never(length).covers(&(5..6)));
    }
}
