//! A session that can be taken away from the thread that serves it.
//!
//! The thread that answers a FUSE mount sleeps in the kernel until a program asks for something.
//! When the client goes, its files are to be closed at once, whatever that thread is doing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

enum Contents<S> {
    /// Not begun yet.
    Empty,
    Live(S),
    /// Ended, for ever.
    Revoked,
}

/// A place for one session, which several threads hold: one serves it, another may end it.
pub struct Revocable<S>(Arc<Mutex<Contents<S>>>);

impl<S> Clone for Revocable<S> {
    fn clone(&self) -> Self {
        Revocable(Arc::clone(&self.0))
    }
}

impl<S> Default for Revocable<S> {
    fn default() -> Self {
        Revocable(Arc::new(Mutex::new(Contents::Empty)))
    }
}

impl<S> Revocable<S> {
    fn place(&self) -> MutexGuard<'_, Contents<S>> {
        // A session that panicked is dropped like any other.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the session in, unless its place has been revoked meanwhile: then it is dropped and
    /// false returned.
    pub fn begin(&self, session: S) -> bool {
        let mut place = self.place();
        let empty = matches!(*place, Contents::Empty);
        if empty {
            *place = Contents::Live(session);
        }
        empty
    }

    /// Calls `f` with the session, if it is there.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut S) -> T) -> Option<T> {
        match &mut *self.place() {
            Contents::Live(session) => Some(f(session)),
            Contents::Empty | Contents::Revoked => None,
        }
    }

    /// Ends the session, after the call that it is in.
    pub fn revoke(&self) {
        let session = std::mem::replace(&mut *self.place(), Contents::Revoked);
        // With its place unlocked: its end may answer other clients, which wait for its locks.
        drop(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_revoked_stays_so() {
        let place = Revocable::default();
        assert_eq!(place.with(|number: &mut i32| *number), None);
        assert!(place.begin(5));
        assert!(!place.begin(6));
        let other = place.clone();
        assert_eq!(other.with(|number| *number), Some(5));
        place.revoke();
        assert_eq!(other.with(|number| *number), None);
        assert!(!other.begin(7));
    }
}
