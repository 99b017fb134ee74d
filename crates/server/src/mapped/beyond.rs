//! Which memory of a mapped file, beyond its end, may have something else than zeros.

use std::ops::Range;
use std::time::Duration;

use crate::host::PAGES_LEN;

/// The most parts that are told apart.
const PARTS_MAX: usize = 16;
/// What was swept for a change counts for so long after the last step: the call may never be made
/// again.
const SWEPT: Duration = Duration::from_secs(10);

/// The parts of the memory beyond the end that may have something else than zeros, as far as that
/// matters.
#[derive(Default)]
pub(crate) struct Beyond {
    /// In order, apart from each other.
    parts: Vec<Range<u64>>,
    /// All from the end of the file to here has been among the parts for a change that makes the
    /// file longer; when a step was last made for it.
    swept: Option<(u64, Duration)>,
}

impl Beyond {
    /// All of `range` may have something else than zeros.
    fn add(&mut self, mut range: Range<u64>) {
        let from = self.parts.partition_point(|part| part.end < range.start);
        let to = self.parts.partition_point(|part| part.start <= range.end);
        if let Some(joined) = self.parts.get(from..to).filter(|joined| !joined.is_empty()) {
            range.start = range.start.min(joined[0].start);
            range.end = range.end.max(joined[joined.len() - 1].end);
        }
        self.parts.splice(from..to, [range]);
        if self.parts.len() > PARTS_MAX
            && let Some(last) = self.parts.pop()
            && let Some(before) = self.parts.last_mut()
        {
            // What lies between is made zeros again.
            before.end = last.end;
        }
    }

    /// All before `to` is zeros.
    pub fn done(&mut self, to: u64) {
        self.parts.retain_mut(|part| {
            part.start = part.start.max(to);
            part.start < part.end
        });
    }

    /// Whether all before `to` is zeros.
    pub fn is_done(&self, to: u64) -> bool {
        self.parts.first().is_none_or(|part| part.start >= to)
    }

    /// The first part.
    pub fn first(&self) -> Option<&Range<u64>> {
        self.parts.first()
    }

    /// A step was made.
    pub fn stepped(&mut self, now: Duration) {
        if let Some(swept) = &mut self.swept {
            swept.1 = now;
        }
    }

    /// The file has been cut at `end`.
    pub fn cut(&mut self, end: u64) {
        self.add(end..PAGES_LEN);
        self.swept = None;
    }

    /// The file has become longer, and ends at `end`.
    pub fn grew(&mut self, end: u64) {
        self.done(end);
        self.swept = self.swept.filter(|swept| swept.0 > end);
    }

    /// A change is to make the file longer, from `size` to `end` bytes. Returns whether that has
    /// begun just now: what was stored before has to go.
    pub fn sweep(&mut self, size: u64, end: u64, now: Duration) -> bool {
        let is_swept =
            |swept: (u64, Duration)| swept.0 >= end && now.saturating_sub(swept.1) < SWEPT;
        if self.swept.is_some_and(is_swept) {
            return false;
        }
        self.add(size..end);
        self.swept = Some((end, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined() {
        let mut beyond = Beyond::default();
        beyond.add(10..20);
        beyond.add(30..40);
        assert!(!beyond.is_done(11) && beyond.is_done(10));
        beyond.add(20..25);
        assert_eq!(beyond.parts, [10..25, 30..40]);
        beyond.add(5..35);
        assert_eq!((beyond.parts.len(), beyond.first()), (1, Some(&(5..40))));
        beyond.done(7);
        assert_eq!((beyond.parts.len(), beyond.first()), (1, Some(&(7..40))));
        beyond.done(50);
        assert!(beyond.parts.is_empty());
        (0..100).for_each(|at| beyond.add(at * 10..at * 10 + 5));
        assert_eq!((beyond.parts.len(), beyond.parts[15].clone()), (PARTS_MAX, 150..995));
    }
}
