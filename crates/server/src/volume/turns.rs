//! The order in which threads get a volume's lock while several want it: each user in turn, however
//! many threads ask for it.
//!
//! A lock of the system's goes to whoever finds it free. A thread that takes it again within a
//! microsecond, as a worker does, keeps it from threads that have slept, as those of mounts have.
//! So threads that do not get it at once stand in line, and who comes while there is a line joins
//! it. One of them at a time, the head, waits for the lock itself; it names the next when it has
//! the lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use atoll_vfs::{Errno, Result};

use crate::host::Done;

/// How often a thread tries to get the lock before it stands in line: a few microseconds, as long
/// as most calls hold it.
const TRIES: u32 = 64;

#[derive(Default)]
struct Line {
    /// Whether there is a head.
    head: bool,
    /// Those behind it: their users, in the order of asking.
    behind: Vec<(u32, Done)>,
    /// When users last got the lock, as long as there is a line.
    served: HashMap<u32, u64>,
    turns: u64,
}

impl Line {
    /// A thread of `uid` that has the lock leaves the line. Returns the new head.
    fn next(&mut self, uid: u32) -> Option<Done> {
        self.turns += 1;
        self.served.insert(uid, self.turns);
        let last = |at: &usize| self.served.get(&self.behind[*at].0).copied().unwrap_or(0);
        // Of several the first, which has waited longest.
        match (0..self.behind.len()).min_by_key(last) {
            Some(at) => Some(self.behind.remove(at).1),
            None => {
                self.head = false;
                self.served.clear();
                None
            }
        }
    }
}

/// The line before a volume's lock.
#[derive(Default)]
pub(super) struct Turns {
    /// How many stand in line.
    waiting: AtomicU32,
    line: Mutex<Line>,
}

impl Turns {
    /// Takes `lock` for a call of the user `uid`. `wait` is the host's way to
    /// [wait](crate::host::Host::wait).
    ///
    /// # Errors
    /// `EIO` after a panic of one who had it.
    #[inline]
    pub fn take<'a, T>(
        &self,
        lock: &'a Mutex<T>,
        uid: u32,
        wait: impl FnOnce(&mut dyn FnMut(Done)),
    ) -> Result<MutexGuard<'a, T>> {
        match self.attempt(lock) {
            Some(taken) => taken,
            None => self.stand(lock, uid, wait),
        }
    }

    /// The lock, if it is free and there is no line.
    #[inline]
    fn attempt<'a, T>(&self, lock: &'a Mutex<T>) -> Option<Result<MutexGuard<'a, T>>> {
        // A thread that sees the line late gets the lock once before it.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return None;
        }
        match lock.try_lock() {
            Ok(guard) => Some(Ok(guard)),
            Err(TryLockError::Poisoned(_)) => Some(Err(Errno::EIO)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[cold]
    fn stand<'a, T>(
        &self,
        lock: &'a Mutex<T>,
        uid: u32,
        wait: impl FnOnce(&mut dyn FnMut(Done)),
    ) -> Result<MutexGuard<'a, T>> {
        for _ in 0..TRIES {
            // A line does not end within so short a time.
            if self.waiting.load(Ordering::Relaxed) > 0 {
                break;
            }
            std::hint::spin_loop();
            if let Some(taken) = self.attempt(lock) {
                return taken;
            }
        }
        let mut stands = false;
        wait(&mut |done| {
            stands = true;
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let mut line = self.line();
            if line.head {
                line.behind.push((uid, done));
            } else {
                line.head = true;
                drop(line);
                done();
            }
        });
        let taken = lock.lock().map_err(|_| Errno::EIO);
        if stands {
            let next = self.line().next(uid);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            next.into_iter().for_each(|next| next());
        }
        taken
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        // Nothing of others runs under this lock, and each change is whole.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    /// A user with many threads is served as often as one with a single thread.
    #[test]
    fn users_take_turns() {
        let mut line = Line { head: true, ..Line::default() };
        let (served, order) = channel();
        let join = |line: &mut Line, uid: u32| {
            let served = served.clone();
            line.behind.push((uid, Box::new(move || served.send(uid).unwrap())));
        };
        (0..20).for_each(|_| join(&mut line, 1));
        join(&mut line, 2);
        join(&mut line, 3);
        let mut has_it = 1;
        for turn in 0..18 {
            line.next(has_it).unwrap()();
            has_it = order.try_recv().unwrap();
            let expected = [2, 3, 1][turn % 3];
            assert_eq!(has_it, expected, "turn {turn}");
            // It comes back at once.
            join(&mut line, has_it);
        }
        while let Some(next) = line.next(has_it) {
            next();
            has_it = order.try_recv().unwrap();
        }
        assert!(!line.head && line.served.is_empty());
    }

    /// Every thread that waits gets it, and one that has panicked with it leaves it to nobody.
    #[test]
    fn everybody_gets_the_lock() {
        let (turns, count) = (Turns::default(), Mutex::new(0));
        let wait = |begin: &mut dyn FnMut(Done)| {
            let (done, waiting) = channel();
            begin(Box::new(move || done.send(()).unwrap()));
            waiting.recv().unwrap();
        };
        std::thread::scope(|scope| {
            for uid in 0..4 {
                let (turns, count) = (&turns, &count);
                scope.spawn(move || {
                    for _ in 0..5000 {
                        *turns.take(count, uid, wait).unwrap() += 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock().unwrap(), 20_000);
        assert_eq!(turns.waiting.load(Ordering::Relaxed), 0);
        assert!(!turns.line().head);
        let (turns, count) = (Arc::new(turns), Arc::new(count));
        let held = Arc::clone(&count);
        let panics = std::thread::spawn(move || {
            let _held = held.lock();
            panic!("as a file system may");
        });
        assert!(panics.join().is_err());
        assert_eq!(turns.take(&count, 1, wait).err(), Some(Errno::EIO));
    }
}
