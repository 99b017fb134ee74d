//! Calls that wait for a medium, which takes as long as it takes: a thread that is in one has
//! stopped going round, and does not hang.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a thread waits for a medium, as others see it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits(Arc<AtomicBool>);

thread_local!(static OWN: RefCell<Option<Waits>> = const { RefCell::new(None) });

impl Waits {
    /// From here on this is about the calling thread.
    pub fn be_own(&self) {
        OWN.set(Some(self.clone()));
    }

    /// Whether that thread waits just now.
    pub fn wait(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Takes back that a thread waits, when its call returns or panics, unless that is a part of
/// another such call.
struct Waiting {
    waits: Waits,
    before: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waits.0.store(self.before, Ordering::Relaxed);
    }
}

/// Makes `call`, which waits for a medium.
pub(crate) fn wait_for<T>(call: impl FnOnce() -> T) -> T {
    // A volume may be closed at a program's end, when what belongs to this thread has ended.
    let own = OWN.try_with(|own| own.borrow().clone()).ok().flatten();
    let _waiting = own.map(|waits| {
        let before = waits.0.swap(true, Ordering::Relaxed);
        Waiting { waits, before }
    });
    call()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_thread_waits_while_its_call_lasts() {
        let waits = Waits::default();
        assert!(!wait_for(|| waits.wait()), "nobody asked");
        waits.be_own();
        assert!(!waits.wait());
        assert!(wait_for(|| waits.wait()));
        assert!(wait_for(|| wait_for(|| waits.wait()) && waits.wait()));
        assert!(!waits.wait());
        let panicked = catch_unwind(AssertUnwindSafe(|| wait_for(|| panic!("planned"))));
        assert!(panicked.is_err() && !waits.wait());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!wait_for(|| waits.wait()), "another thread's call"));
        });
    }

    #[test]
    fn a_thread_that_ends_may_wait_yet() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        struct AtEnd;
        impl Drop for AtEnd {
            fn drop(&mut self) {
                wait_for(|| CALLS.fetch_add(1, Ordering::Relaxed));
            }
        }
        thread_local!(static FIRST: AtEnd = const { AtEnd });
        thread_local!(static LAST: AtEnd = const { AtEnd });
        let thread = std::thread::spawn(|| {
            // One of the two is dropped after the thread's own.
            FIRST.with(|_| Waits::default().be_own());
            LAST.with(|_| ());
        });
        thread.join().unwrap();
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
    }
}
