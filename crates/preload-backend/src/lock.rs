//! A lock that is a word: no thread is remembered, nothing allocated, and a child can make it anew.

use std::sync::atomic::{AtomicBool, Ordering};

/// Spins between two offers of the processor to others.
const SPINS: u32 = 100;

/// A lock. Threads hold it for short work only.
#[derive(Debug, Default)]
pub struct Lock(AtomicBool);

/// That a lock is held, until this goes.
#[derive(Debug)]
pub struct Held<'l>(&'l Lock);

impl Lock {
    /// A free one.
    pub const fn new() -> Lock {
        Lock(AtomicBool::new(false))
    }

    /// Takes it if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_>> {
        let taken = self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        // Not made otherwise: its end frees the lock.
        taken.is_ok().then(|| Held(self))
    }

    /// Takes it when it is free.
    #[inline]
    pub fn lock(&self) -> Held<'_> {
        let mut spins = 0u32;
        loop {
            if let Some(held) = self.try_lock() {
                return held;
            }
            spins += 1;
            if spins.is_multiple_of(SPINS) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// Takes it until [`reset`](Self::reset).
    pub fn take(&self) {
        std::mem::forget(self.lock());
    }

    /// Frees it: after [`take`](Self::take), or in a child, where whoever held it is not.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let lock = Lock::new();
        let held = lock.try_lock().unwrap();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "an attempt frees nothing");
        drop(held);
        let inside = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let _held = lock.lock();
                        assert!(!inside.swap(true, Ordering::Relaxed));
                        inside.store(false, Ordering::Relaxed);
                    }
                });
            }
        });
    }
}
