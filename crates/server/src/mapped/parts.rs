//! Parts of a file.

use std::ops::Range;

use atoll_vfs::{Errno, Result};

/// The most parts of a file that do not touch: an entry for each is searched and kept.
const PARTS_MAX: usize = 4096;

pub(crate) fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

pub(crate) fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

/// Parts of a file, in order and apart from each other.
#[derive(Default)]
pub(crate) struct Parts(Vec<Range<u64>>);

impl Parts {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first part of `range` that is not among them.
    pub fn gap(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let mut at = range.start;
        let from = self.0.partition_point(|part| part.end <= at);
        for part in &self.0[from..] {
            if part.start > at {
                return (at < range.end).then(|| at..part.start.min(range.end));
            }
            at = part.end;
        }
        (at < range.end).then_some(at..range.end)
    }

    /// Whether `range`, a gap, can be added.
    pub fn takes(&self, range: &Range<u64>) -> bool {
        let at = self.0.partition_point(|part| part.start < range.start);
        let joins = at > 0 && self.0[at - 1].end == range.start;
        let joined = self.0.get(at).is_some_and(|next| next.start == range.end);
        joins || joined || self.0.len() < PARTS_MAX
    }

    /// Adds `range`, a gap.
    ///
    /// # Errors
    /// `ENOMEM` when there are too many that do not touch.
    pub fn add(&mut self, range: Range<u64>) -> Result<()> {
        let at = self.0.partition_point(|part| part.start < range.start);
        let joins = at > 0 && self.0[at - 1].end == range.start;
        let joined = self.0.get(at).is_some_and(|next| next.start == range.end);
        match (joins, joined) {
            (true, true) => self.0[at - 1].end = self.0.remove(at).end,
            (true, false) => self.0[at - 1].end = range.end,
            (false, true) => self.0[at].start = range.start,
            (false, false) if self.0.len() >= PARTS_MAX => return Err(Errno::ENOMEM),
            (false, false) => self.0.insert(at, range),
        }
        Ok(())
    }

    /// Those within `range`.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let from = self.0.partition_point(|part| part.end <= range.start);
        self.0[from..]
            .iter()
            .map(move |part| overlap(part, &range))
            .take_while(|part| part.start < part.end)
    }
}
