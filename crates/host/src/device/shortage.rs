//! Whether the host has too little memory for the pages that a mapped device uses.
//!
//! A mapping is the fastest way to pages that stay, and the slowest to pages that were taken back:
//! each fault brings one. Nothing tells the process which it has, so the device looks now and then
//! whether a page that it used before is still there, before it uses it again. While pages go, it
//! moves whole blocks by calls, for which the host reads ahead, and stores without reading first.

/// Loads and stores until the first look, and after one that found a page missing.
const LOOKS_AT_FIRST: u64 = 64;
/// The most of them between two looks: a look costs as much as some 50 small ones.
const LOOKS_AT_LAST: u64 = 4096;
/// Calls that together cost what a missing page costs.
const MISS: u32 = 256;
/// How many of them are left after any number of misses.
const MISSES_MAX: u32 = 4 * MISS;

/// The findings of one device's looks.
#[derive(Debug)]
pub(super) struct Shortage {
    /// Loads and stores until the next look.
    left: u64,
    interval: u64,
    /// Calls to be made before memory counts as enough again.
    calls: u32,
    /// Each load and store wants attention.
    always: bool,
    /// Also while memory is enough.
    watched: bool,
}

impl Shortage {
    /// With enough memory until a look finds otherwise. A device is `watched` where there is so
    /// little that what it stores must not pile up.
    pub(super) fn new(watched: bool) -> Shortage {
        let left = LOOKS_AT_FIRST;
        Shortage { left, interval: LOOKS_AT_FIRST, calls: 0, always: watched, watched }
    }

    /// Never looks, and never finds memory short.
    pub(super) fn never() -> Shortage {
        Shortage { left: u64::MAX, ..Shortage::new(false) }
    }

    /// Wants attention for each load and store, for ever.
    pub(super) fn always() -> Shortage {
        Shortage { always: true, ..Shortage::never() }
    }

    /// Counts a load or store; whether it wants attention: a look is due, or memory is short.
    #[inline]
    pub(super) fn count(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0 || self.always
    }

    /// Whether to look at a page before it is used.
    pub(super) fn is_due(&self) -> bool {
        self.left == 0 && !self.is_short()
    }

    /// Whether each load and store wants attention.
    pub(super) fn wants_attention(&self) -> bool {
        self.always
    }

    /// Whether memory is short.
    pub(super) fn is_short(&self) -> bool {
        self.calls > 0
    }

    /// Counts a call that took the place of a copy.
    pub(super) fn called(&mut self) {
        self.calls = self.calls.saturating_sub(1);
        if self.calls == 0 {
            *self = Shortage::new(self.watched);
        }
    }

    /// Takes in what a look found at a page that was used before.
    pub(super) fn saw(&mut self, is_there: bool) {
        if !is_there {
            self.always = true;
            self.calls = (self.calls + MISS).min(MISSES_MAX);
        } else if !self.is_short() {
            self.interval = (self.interval * 2).min(LOOKS_AT_LAST);
            self.left = self.interval;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads until a look is due.
    fn until_due(shortage: &mut Shortage) -> u64 {
        (1..).find(|_| shortage.count() && shortage.is_due()).unwrap()
    }

    #[test]
    fn looks_become_rare_while_pages_stay() {
        for watched in [false, true] {
            let mut shortage = Shortage::new(watched);
            let mut found = Vec::new();
            for _ in 0..9 {
                assert_eq!(shortage.count(), watched);
                found.push(until_due(&mut shortage) + 1);
                shortage.saw(true);
                assert!(!shortage.is_short());
            }
            assert_eq!(found, [64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096]);
        }
    }

    #[test]
    fn a_missing_page_is_worth_so_many_calls() {
        let mut shortage = Shortage::new(false);
        until_due(&mut shortage);
        shortage.saw(false);
        for _ in 0..MISS {
            assert!(shortage.count() && shortage.is_short() && !shortage.is_due());
            // Pages that are there do not end it: the host may have read them ahead.
            shortage.saw(true);
            shortage.called();
        }
        assert!(!shortage.is_short());
        assert_eq!(until_due(&mut shortage), LOOKS_AT_FIRST);
    }

    #[test]
    fn misses_add_up_to_a_bound() {
        let mut shortage = Shortage::new(false);
        (0..100).for_each(|_| shortage.saw(false));
        let calls = (1..).find(|_| {
            shortage.called();
            !shortage.is_short()
        });
        assert_eq!(calls, Some(MISSES_MAX));
    }

    #[test]
    fn a_sealed_device_never_looks() {
        let mut shortage = Shortage::never();
        assert!((0..100_000).all(|_| !shortage.count()));
        assert!(!shortage.is_short());
    }
}
