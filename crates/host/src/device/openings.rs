//! The openings of a file by which it is flushed apart from the device.
//!
//! Linux tells an error of writing back once to each opening of a file. Of two flushes at a time by
//! one opening only one would hear of it, and the other promise what is lost. So each flush has an
//! opening for itself while it lasts, and after one that failed all fail.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use atoll_block::BlockError;

/// As many flushes as are under way at a time: a sync's and a checkpoint's. Another waits.
pub(super) const OPENINGS: usize = 2;

/// The openings.
#[derive(Debug)]
pub(super) struct Openings<T> {
    openings: [Mutex<T>; OPENINGS],
    failed: AtomicBool,
}

impl<T> Openings<T> {
    /// Those that are `openings`.
    pub fn new(openings: [T; OPENINGS]) -> Openings<T> {
        Openings { openings: openings.map(Mutex::new), failed: AtomicBool::new(false) }
    }

    /// One that nobody uses.
    fn take(&self) -> MutexGuard<'_, T> {
        // Nothing of others runs inside: who panicked there has left everything as it was.
        let free = self.openings.iter().find_map(|opening| match opening.try_lock() {
            Ok(opening) => Some(opening),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        });
        free.unwrap_or_else(|| self.openings[0].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Flushes by an opening of its own.
    ///
    /// # Errors
    /// That of `flush`; the device's, if an earlier one had one.
    pub fn flush(
        &self,
        flush: impl FnOnce(&T) -> Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        let opening = self.take();
        if self.failed.load(Ordering::Acquire) {
            return Err(BlockError::Io);
        }
        let outcome = flush(&opening);
        if outcome.is_err() {
            // Before anybody else has the opening.
            self.failed.store(true, Ordering::Release);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Flushes wait for each other only if there are more than openings; whichever is told of an
    /// error, none that ends later succeeds by the same opening.
    #[test]
    fn an_error_that_is_told_once_is_everybodys() {
        let errors = std::array::from_fn(|_| std::cell::Cell::new(Some(BlockError::Io)));
        let openings = Openings::new(errors);
        let tell = |error: &std::cell::Cell<Option<BlockError>>| error.take().map_or(Ok(()), Err);
        let mut inner = Ok(());
        let outer = openings.flush(|error| {
            // The other flush is under way beside, and hears of the error first.
            inner = openings.flush(tell);
            tell(error)
        });
        assert_eq!((inner, outer), (Err(BlockError::Io), Err(BlockError::Io)));
        for _ in 0..2 * OPENINGS {
            assert_eq!(openings.flush(|_| Ok(())), Err(BlockError::Io));
        }
    }

    #[test]
    fn flushes_beside_each_other_have_openings_of_their_own() {
        let openings = Openings::new([0, 1]);
        let (arrive, arrived) = channel();
        let (go, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        std::thread::scope(|scope| {
            for _ in 0..OPENINGS {
                let (arrive, openings, gate) = (arrive.clone(), &openings, &gate);
                scope.spawn(move || {
                    openings.flush(|opening| {
                        arrive.send(*opening).unwrap();
                        gate.lock().unwrap().recv().unwrap();
                        Ok(())
                    })
                });
            }
            let mut used: Vec<i32> = (0..OPENINGS).map(|_| arrived.recv().unwrap()).collect();
            used.sort_unstable();
            assert_eq!(used, [0, 1]);
            (0..OPENINGS).for_each(|_| go.send(()).unwrap());
        });
        assert_eq!(openings.flush(|_| Ok(())), Ok(()));
    }
}
