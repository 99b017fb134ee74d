//! Ranges that may overlap, found by the bytes that they reach into.
//!
//! They are kept by how long they are, in powers of two: those of one length that reach into a
//! range begin in it, or at most so far before it.

use std::collections::BTreeMap;

use super::LockRange;
use super::steps;

/// Ranges, each of which has its first byte and a name for a key. The names lie between two.
pub(super) struct Ranges<N> {
    /// By length, first byte and name: the last byte.
    all: BTreeMap<(u32, u64, N), u64>,
    /// The lengths that there are.
    lengths: u128,
    names: (N, N),
}

/// The power of two that `range` is at least as long as.
fn length(range: LockRange) -> u32 {
    (u128::from(range.end - range.start) + 1).ilog2()
}

impl<N: Ord + Copy> Ranges<N> {
    /// None. All names are from `first` to `last`.
    pub fn new(first: N, last: N) -> Self {
        Ranges { all: BTreeMap::new(), lengths: 0, names: (first, last) }
    }

    pub fn insert(&mut self, range: LockRange, name: N) {
        self.all.insert((length(range), range.start, name), range.end);
        self.lengths |= 1 << length(range);
    }

    pub fn remove(&mut self, range: LockRange, name: N) {
        let length = length(range);
        self.all.remove(&(length, range.start, name));
        let next = self.all.range((length, 0, self.names.0)..).next();
        if next.is_none_or(|((other, ..), _)| *other != length) {
            self.lengths &= !(1 << length);
        }
    }

    /// The lengths that there are.
    pub fn lengths(&self) -> impl Iterator<Item = u32> + use<N> {
        let lengths = self.lengths;
        (0..=64).filter(move |length| lengths & 1 << length != 0)
    }

    /// Those of one length that overlap `range`, by first bytes and names.
    pub fn reaching(&self, length: u32, range: LockRange) -> impl Iterator<Item = (N, u64)> {
        let near = self.near(length, range).filter(move |(_, own)| own.overlaps(range));
        near.map(|(name, own)| (name, own.start))
    }

    /// Those of one length that may overlap `range`.
    pub fn near(&self, length: u32, range: LockRange) -> impl Iterator<Item = (N, LockRange)> {
        let longest = (1u128 << (length + 1)) - 1;
        let before = u64::try_from(longest - 1).unwrap_or(u64::MAX);
        let from = (length, range.start.saturating_sub(before), self.names.0);
        let to = (length, range.end, self.names.1);
        let near = self.all.range(from..=to).map(steps::count);
        near.map(|(&(_, start, name), &end)| (name, LockRange { start, end }))
    }
}
