//! Whether a device's thread hangs, for the watchdog.
//!
//! The thread may wait for ever for its front end, whose affair that is: for a message's rest, for
//! memory and descriptors that are handed over. It sleeps where there is nothing to do. Neither
//! counts: only while it does what the server alone has a hand in, it has to come to an end.

use std::sync::atomic::{AtomicU64, Ordering};

/// The pulse of a thread: the thread says what it does, another asks whether it lives.
#[derive(Debug, Default)]
pub struct Pulse {
    /// How often it has begun or ended work of the server: odd while it is at it.
    count: AtomicU64,
    /// The count when it was asked last.
    seen: AtomicU64,
}

impl Pulse {
    /// The thread is at work of the server from now on, or not. Returns whether it was before.
    pub(super) fn set(&self, works: bool) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        let before = count % 2 == 1;
        if before != works {
            self.count.store(count + 1, Ordering::Relaxed);
        }
        before
    }

    /// Whether the thread is not at the same piece of work as when this was asked last.
    pub fn lives(&self) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        let seen = self.seen.swap(count, Ordering::Relaxed);
        count.is_multiple_of(2) || count != seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_end_its_work_hangs() {
        let pulse = Pulse::default();
        assert!(pulse.lives() && pulse.lives(), "it waits for nothing");
        for _ in 0..3 {
            assert!(!pulse.set(true) && pulse.set(true));
            assert!(pulse.lives(), "it may have begun just now");
            assert!(!pulse.lives() && !pulse.lives());
            assert!(pulse.set(false));
            assert!(pulse.lives() && pulse.lives());
        }
        for _ in 0..3 {
            pulse.set(true);
            assert!(pulse.lives(), "another piece of work");
            pulse.set(false);
            pulse.set(true);
        }
    }
}
