//! The addresses that a program has: areas of pages, each with what it may be used for. Nothing
//! here touches memory; the image gives an area's pages memory when they are first used.

use alloc::collections::BTreeMap;
use core::ops::Range;

use crate::PAGE;
use crate::elf::{END, Protection, START};

/// Areas without a wish for an address are laid below this, each below the last. The stack lies
/// above.
const TOP: u64 = END - (1 << 32);
/// The most areas that a program may have, as Linux has it (vm.max_map_count).
const AREAS_MAX: usize = 65_530;

/// An area, up to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Area {
    end: u64,
    protection: Protection,
}

/// The areas of a program. None overlap, and neighbours differ in their protection.
#[derive(Debug, Default)]
pub struct Areas {
    by_start: BTreeMap<u64, Area>,
}

/// The pages that `len` bytes from `start` touch, if they are a program's.
pub fn pages(start: u64, len: u64) -> Option<Range<u64>> {
    let end = start.checked_add(len)?.checked_next_multiple_of(PAGE)?;
    let start = start & !(PAGE - 1);
    (start >= PAGE && end <= END && start < end).then_some(start..end)
}

impl Areas {
    /// None.
    pub const fn new() -> Areas {
        Areas { by_start: BTreeMap::new() }
    }

    /// The area that has `address`, and what it may be used for.
    pub fn find(&self, address: u64) -> Option<(Range<u64>, Protection)> {
        let (&start, area) = self.by_start.range(..=address).next_back()?;
        (address < area.end).then_some((start..area.end, area.protection))
    }

    /// Whether all of `range` may be used so.
    pub fn allow(&self, range: Range<u64>, protection: Protection) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.find(at) {
                Some((area, has)) if has.contains(protection) => at = area.end,
                _ => return false,
            }
        }
        true
    }

    /// How many areas there are.
    pub fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Whether there is room for more areas: any call here makes two more at most.
    pub fn has_room(&self) -> bool {
        self.count() + 2 <= AREAS_MAX
    }

    /// Bytes of memory that the pages of `range` may come to take: those that may be used at all.
    pub fn usable(&self, range: Range<u64>) -> u64 {
        let before = self.by_start.range(..range.start).next_back();
        let touched = before.into_iter().chain(self.by_start.range(range.clone()));
        let usable = touched.filter(|(_, area)| !area.protection.is_empty());
        let len = |(start, area): (&u64, &Area)| {
            area.end.min(range.end).saturating_sub((*start).max(range.start))
        };
        usable.map(len).sum()
    }

    /// The highest place where `len` bytes, whole pages, are free below all that has no wish of its
    /// own.
    pub fn free(&self, len: u64) -> Option<u64> {
        let mut end = TOP;
        for (&start, area) in self.by_start.range(..TOP).rev() {
            if area.end.checked_add(len).is_some_and(|above| above <= end) {
                break;
            }
            end = end.min(start);
        }
        // Below lie programs that cannot be moved, and what grows behind them.
        end.checked_sub(len).filter(|start| *start >= START)
    }

    /// Whether nothing lies in `range`.
    pub fn is_free(&self, range: Range<u64>) -> bool {
        let before = self.by_start.range(..range.end).next_back();
        before.is_none_or(|(_, area)| area.end <= range.start)
    }

    /// Takes `range` away.
    pub fn remove(&mut self, range: Range<u64>) {
        self.cut(range.start);
        self.cut(range.end);
        while let Some((&start, _)) = self.by_start.range(range.clone()).next() {
            self.by_start.remove(&start);
        }
    }

    /// Lays an area at `range`, in place of what is there.
    pub fn insert(&mut self, range: Range<u64>, protection: Protection) {
        self.remove(range.clone());
        self.by_start.insert(range.start, Area { end: range.end, protection });
        self.join(range.start);
        self.join(range.end);
    }

    /// Changes what `range` may be used for. False: part of it is no area, and nothing is changed.
    pub fn protect(&mut self, range: Range<u64>, protection: Protection) -> bool {
        if !self.allow(range.clone(), Protection::empty()) {
            return false;
        }
        self.insert(range, protection);
        true
    }

    /// Makes the area that has `at` within two.
    fn cut(&mut self, at: u64) {
        if let Some((range, protection)) = self.find(at).filter(|(range, _)| range.start < at) {
            self.by_start.insert(range.start, Area { end: at, protection });
            self.by_start.insert(at, Area { end: range.end, protection });
        }
    }

    /// Makes the two areas that meet at `at` one, if they differ in nothing.
    fn join(&mut self, at: u64) {
        let Some(above) = self.by_start.get(&at).copied() else { return };
        let Some((_, below)) = self.by_start.range_mut(..at).next_back() else { return };
        if below.end == at && below.protection == above.protection {
            below.end = above.end;
            self.by_start.remove(&at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Pages from here on are what the model has.
    const BASE: u64 = START;
    const PAGES: u64 = 32;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u64, u32),
        Remove(u64, u64),
        Protect(u64, u64, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let place = (0..PAGES, 1..8u64).prop_map(|(at, len)| (at, len.min(PAGES - at)));
        prop_oneof![
            (place.clone(), 0..4u32).prop_map(|((at, len), p)| Step::Insert(at, len, p * 2)),
            place.clone().prop_map(|(at, len)| Step::Remove(at, len)),
            (place, 0..4u32).prop_map(|((at, len), p)| Step::Protect(at, len, p * 2)),
        ]
    }

    fn range(at: u64, len: u64) -> Range<u64> {
        BASE + at * PAGE..BASE + (at + len) * PAGE
    }

    proptest! {
        #[test]
        fn areas_are_what_an_array_of_pages_is(steps in prop::collection::vec(step(), 1..60)) {
            let mut areas = Areas::new();
            let mut model = [None; PAGES as usize];
            for step in steps {
                match step {
                    Step::Insert(at, len, p) => {
                        let p = Protection::from_bits_truncate(p);
                        areas.insert(range(at, len), p);
                        model[at as usize..(at + len) as usize].fill(Some(p));
                    }
                    Step::Remove(at, len) => {
                        areas.remove(range(at, len));
                        model[at as usize..(at + len) as usize].fill(None);
                    }
                    Step::Protect(at, len, p) => {
                        let p = Protection::from_bits_truncate(p);
                        let part = &mut model[at as usize..(at + len) as usize];
                        let all = part.iter().all(Option::is_some);
                        prop_assert_eq!(areas.protect(range(at, len), p), all);
                        if all {
                            part.fill(Some(p));
                        }
                    }
                }
                let found: Vec<_> = (0..PAGES)
                    .map(|page| areas.find(BASE + page * PAGE + 5).map(|(_, p)| p))
                    .collect();
                prop_assert_eq!(&found[..], &model[..]);
                // As few as can be.
                let mut count = 0;
                for (at, page) in model.iter().enumerate() {
                    let before = at.checked_sub(1).and_then(|at| model[at]);
                    count += usize::from(page.is_some() && before != *page);
                }
                prop_assert_eq!(areas.count(), count);
                let usable = model.iter().flatten().filter(|p| !p.is_empty()).count() as u64;
                prop_assert_eq!(areas.usable(range(0, PAGES)), usable * PAGE);
                let inner = model[3..9].iter().flatten().filter(|p| !p.is_empty()).count() as u64;
                prop_assert_eq!(areas.usable(range(3, 6)), inner * PAGE);
                prop_assert_eq!(areas.is_free(range(3, 6)), model[3..9].iter().all(Option::is_none));
            }
        }
    }

    #[test]
    fn free_places_are_below_each_other() {
        let mut areas = Areas::new();
        let first = areas.free(3 * PAGE).unwrap();
        assert_eq!(first, TOP - 3 * PAGE);
        areas.insert(first..TOP, Protection::READ);
        let second = areas.free(PAGE).unwrap();
        assert_eq!(second, first - PAGE);
        areas.insert(second..first, Protection::WRITE);
        areas.remove(first..TOP);
        assert_eq!(areas.free(2 * PAGE), Some(TOP - 2 * PAGE));
        assert_eq!(areas.free(4 * PAGE), Some(second - 4 * PAGE));
        assert_eq!(areas.free(END), None);
        assert_eq!(areas.free(u64::MAX - PAGE + 1), None);
    }

    #[test]
    fn pages_of_a_program() {
        assert_eq!(pages(0x5001, 0x1000), Some(0x5000..0x7000));
        assert_eq!(pages(0, 1), None);
        assert_eq!(pages(0x5000, 0), None);
        assert_eq!(pages(END - PAGE, PAGE), Some(END - PAGE..END));
        assert_eq!(pages(END - PAGE, PAGE + 1), None);
        assert_eq!(pages(u64::MAX, 1), None);
        assert_eq!(pages(5, u64::MAX - 6), None);
    }
}
