//! Which blocks were written since the last flush: a bounded list of ranges.

use core::ops::Range;

/// Disjoint ranges of blocks, none next to another, in ascending order. All memory is allocated
/// when it is made.
#[derive(Debug)]
pub(super) struct DirtyRanges {
    ranges: Vec<Range<u64>>,
    capacity: usize,
}

/// The list has no room for one more range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl DirtyRanges {
    /// An empty list of at most `capacity` ranges.
    pub(super) fn new(capacity: usize) -> Self {
        DirtyRanges { ranges: Vec::with_capacity(capacity), capacity }
    }

    /// Whether any range can be added.
    pub(super) fn has_room(&self) -> bool {
        self.ranges.len() < self.capacity
    }

    /// Adds `range`, joined with those that it meets.
    pub(super) fn insert(&mut self, range: Range<u64>) -> Result<(), Full> {
        if range.is_empty() {
            return Ok(());
        }
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let after = self.ranges.partition_point(|r| r.start <= range.end);
        if first == after {
            if self.ranges.len() == self.capacity {
                return Err(Full);
            }
            self.ranges.insert(first, range);
            return Ok(());
        }
        let joined =
            range.start.min(self.ranges[first].start)..range.end.max(self.ranges[after - 1].end);
        self.ranges[first] = joined;
        self.ranges.drain(first + 1..after);
        Ok(())
    }

    /// The first range that meets `within`, cut to it.
    pub(super) fn first_within(&self, within: &Range<u64>) -> Option<Range<u64>> {
        let first = self.ranges.partition_point(|r| r.end <= within.start);
        let range = self.ranges.get(first)?;
        let cut = range.start.max(within.start)..range.end.min(within.end);
        (!cut.is_empty()).then_some(cut)
    }

    /// Takes out `range`, which lies within one of the ranges and includes its beginning or its
    /// end, or else there is room for one more.
    pub(super) fn remove(&mut self, range: &Range<u64>) -> Result<(), Full> {
        let i = self.ranges.partition_point(|r| r.end <= range.start);
        let Some(old) = self.ranges.get(i).cloned() else {
            return Ok(());
        };
        let left = old.start..range.start.max(old.start);
        let right = range.end.min(old.end)..old.end;
        match (left.is_empty(), right.is_empty()) {
            (true, true) => drop(self.ranges.remove(i)),
            (false, true) => self.ranges[i] = left,
            (true, false) => self.ranges[i] = right,
            (false, false) if self.ranges.len() == self.capacity => return Err(Full),
            (false, false) => {
                self.ranges[i] = left;
                self.ranges.insert(i + 1, right);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_part() {
        let mut dirty = DirtyRanges::new(3);
        for range in [10..12, 20..22, 30..32] {
            dirty.insert(range).unwrap();
        }
        assert_eq!(dirty.insert(40..41), Err(Full));
        dirty.insert(12..13).unwrap();
        dirty.insert(19..20).unwrap();
        assert_eq!(dirty.ranges, [10..13, 19..22, 30..32]);
        dirty.insert(11..30).unwrap();
        assert_eq!((dirty.ranges.len(), dirty.ranges[0].clone()), (1, 10..32));
        dirty.remove(&(15..20)).unwrap();
        dirty.remove(&(30..32)).unwrap();
        assert_eq!(dirty.ranges, [10..15, 20..30]);
        dirty.remove(&(22..23)).unwrap();
        assert_eq!(dirty.remove(&(25..26)), Err(Full));
        assert_eq!(dirty.first_within(&(0..100)), Some(10..15));
        assert_eq!(dirty.first_within(&(15..20)), None);
        assert_eq!(dirty.first_within(&(12..13)), Some(12..13));
        assert_eq!(dirty.first_within(&(15..21)), Some(20..21));
    }

    /// Against a plain set of block numbers, for every seed the same.
    #[test]
    fn ranges_are_the_set_of_blocks() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let mut dirty = DirtyRanges::new(1000);
        let mut model = std::collections::BTreeSet::new();
        for _ in 0..3000 {
            let start = random(200);
            let range = start..start + random(9);
            if random(2) == 0 {
                dirty.insert(range.clone()).unwrap();
                model.extend(range);
            } else if let Some(cut) = dirty.first_within(&range) {
                assert!(cut.clone().all(|block| model.remove(&block)));
                dirty.remove(&cut).unwrap();
            } else {
                assert!(range.clone().all(|block| !model.contains(&block)));
            }
            assert!(dirty.ranges.is_sorted_by(|a, b| a.end < b.start));
            assert!(dirty.ranges.iter().cloned().flatten().eq(model.iter().copied()));
        }
    }
}
