//! Telling a service manager that the server lives, as long as it does.
//!
//! The control thread tells it, and only if all threads that others wait for have gone round since
//! it looked last. The thread of a virtual machine need not go round, but has to end each piece of
//! work in which its front end has no hand. One that hangs takes the server with it: the manager
//! ends what does not tell it anything, and starts it anew.

use std::time::{Duration, Instant};

/// Looks at the threads of a server at intervals.
pub(super) struct Watchdog {
    every: Duration,
    due: Instant,
    tell: Box<dyn FnMut() + Send>,
}

impl Watchdog {
    /// Calls `tell` at intervals of `every`, the first time at once, as long as all live.
    pub(super) fn new(every: Duration, tell: Box<dyn FnMut() + Send>) -> Watchdog {
        Watchdog { every, due: Instant::now(), tell }
    }

    /// When it is to look next.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Looks, if it is time: `live` says whether all have gone round since it was asked last, and
    /// has them go round again.
    pub(super) fn look(&mut self, now: Instant, live: impl FnOnce() -> bool) {
        if now < self.due {
            return;
        }
        self.due = now + self.every;
        if live() {
            (self.tell)();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn it_tells_at_intervals_while_all_live() {
        let told = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&told);
        let every = Duration::from_secs(10);
        let tell = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        let mut watchdog = Watchdog::new(every, Box::new(tell));
        let begin = watchdog.due();
        let mut look = |seconds, live| {
            watchdog.look(begin + Duration::from_secs(seconds), || live);
            (told.load(Ordering::Relaxed), watchdog.due())
        };
        let due = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(look(0, true), (1, due(10)));
        assert_eq!(look(9, true), (1, due(10)), "not before it is due");
        assert_eq!(look(10, true), (2, due(20)));
        assert_eq!(look(20, false), (2, due(30)), "not for those who hang");
        assert_eq!(look(31, true), (3, due(41)));
    }
}
