//! Ranges that may overlap, found by the bytes that they reach into.
//!
//! A range is one or two pieces whose length is a power of two, the largest that it has room for:
//! at its beginning and at its end, so that they may overlap. Those of one length that reach into
//! other bytes begin in these, or less than their length before them: none is looked at in vain.
//! Where the pieces of a length are in order, the first of each run of one name is known, so that
//! those of one name are passed over at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::LockRange;
use super::steps;

/// A piece: the power of two that it is long, its first byte, and the name.
type Piece<N> = (u32, u64, N);

/// Ranges, each of which has a name. Those of one name do not begin at one byte.
pub(super) struct Ranges<N> {
    /// The first byte of each piece's range.
    all: BTreeMap<Piece<N>, u64>,
    /// The first of each run.
    runs: BTreeSet<Piece<N>>,
    /// The lengths that there are.
    lengths: u128,
    /// All names are from one to the other.
    names: (N, N),
}

/// The pieces of `range`, which may be the same: their length, and where they begin.
fn pieces(range: LockRange) -> (u32, [u64; 2]) {
    let length = (u128::from(range.end - range.start) + 1).ilog2();
    let last = u128::from(range.end) + 1 - (1 << length);
    (length, [range.start, last as u64])
}

impl<N: Ord + Copy> Ranges<N> {
    /// None. All names are from `first` to `last`.
    pub fn new(first: N, last: N) -> Self {
        Ranges { all: BTreeMap::new(), runs: BTreeSet::new(), lengths: 0, names: (first, last) }
    }

    pub fn insert(&mut self, range: LockRange, name: N) {
        let (length, starts) = pieces(range);
        for start in starts {
            let piece = (length, start, name);
            if self.all.insert(piece, range.start).is_none() {
                let (before, behind) = self.beside(piece);
                self.begins_run(before, piece);
                if let Some(behind) = behind {
                    self.begins_run(Some(piece), behind);
                }
            }
        }
        self.lengths |= 1 << length;
    }

    pub fn remove(&mut self, range: LockRange, name: N) {
        let (length, starts) = pieces(range);
        for start in starts {
            let piece = (length, start, name);
            if self.all.remove(&piece).is_some() {
                self.runs.remove(&piece);
                let (before, behind) = self.beside(piece);
                if let Some(behind) = behind {
                    self.begins_run(before, behind);
                }
            }
        }
        let next = self.all.range((length, 0, self.names.0)..).next();
        if next.is_none_or(|((other, ..), _)| *other != length) {
            self.lengths &= !(1 << length);
        }
    }

    /// The pieces before and behind `piece`, of the same length.
    fn beside(&self, piece: Piece<N>) -> (Option<Piece<N>>, Option<Piece<N>>) {
        let same = |(other, _): (&Piece<N>, &u64)| (other.0 == piece.0).then_some(*other);
        let behind = (Bound::Excluded(piece), Bound::Unbounded);
        let before = self.all.range(..piece).next_back().and_then(same);
        (before, self.all.range(behind).next().and_then(same))
    }

    /// Takes note of whether `piece`, which comes after `before`, is the first of a run.
    fn begins_run(&mut self, before: Option<Piece<N>>, piece: Piece<N>) {
        if before.is_some_and(|before| before.2 == piece.2) {
            self.runs.remove(&piece);
        } else {
            self.runs.insert(piece);
        }
    }

    /// The lengths that there are.
    pub fn lengths(&self) -> impl Iterator<Item = u32> + use<N> {
        let lengths = self.lengths;
        (0..=64).filter(move |length| lengths & 1 << length != 0)
    }

    /// The first and the last piece of one length that can overlap `range`: all between do.
    fn between(&self, length: u32, range: LockRange) -> (Piece<N>, Piece<N>) {
        let before = u64::try_from((1u128 << length) - 1).unwrap_or(u64::MAX);
        let first = (length, range.start.saturating_sub(before), self.names.0);
        (first, (length, range.end, self.names.1))
    }

    /// The names of those of one length that overlap `range`, some twice.
    pub fn names(&self, length: u32, range: LockRange) -> impl Iterator<Item = N> {
        let (first, last) = self.between(length, range);
        self.all.range(first..=last).map(|((.., name), _)| *steps::count(name))
    }

    /// Those of one length that overlap `range` and have another name than `but`, by the bytes in
    /// which that begins, and some twice: name and first byte.
    pub fn others(&self, length: u32, range: LockRange, but: N) -> impl Iterator<Item = (N, u64)> {
        let (first, last) = self.between(length, range);
        let mut from = Bound::Included(first);
        std::iter::from_fn(move || {
            let ((_, start, name), begin) = self.all.range((from, Bound::Included(last))).next()?;
            let found = (*steps::count(name), *begin);
            let mut place = (length, *start, *name);
            from = Bound::Excluded(place);
            if found.0 != but {
                return Some(found);
            }
            // The run that follows is another's.
            place = *steps::count(self.runs.range((from, Bound::Included(last))).next()?);
            from = Bound::Excluded(place);
            Some((place.2, *self.all.get(&place)?))
        })
    }
}
