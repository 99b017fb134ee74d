//! How many inodes clients know of a volume that keeps something for each of them: a directory of
//! the host.
//!
//! The file system's table of them is one for all. So that no user's clients fill it for others,
//! each inode that a session was given and has not forgotten is one of its user's, and one of all.
//! A session of a user who has no more forgets the one that it has named least lately
//! ([`inodes`](crate::open::inodes)). It has a few beyond those bounds, whatever other sessions
//! have.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The inodes that a session may know in any case: enough to work.
pub const ASSURED: usize = 1024;
/// Bytes that the file system takes for an inode which clients know.
pub(crate) const KNOWN_INODE_BYTES: u64 = 288;
/// The places that are taken at a time, so that few sessions meet at the counts.
const PIECE: usize = 64;

/// The bounds, beside what each session is assured of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownMost {
    /// The most inodes that the sessions of one user know.
    pub of_user: usize,
    /// The most that all sessions know together.
    pub of_all: usize,
}

impl Default for KnownMost {
    fn default() -> KnownMost {
        KnownMost { of_user: 1 << 20, of_all: 2 << 20 }
    }
}

/// The inodes that clients know of one volume, counted.
#[derive(Debug)]
pub(crate) struct Known {
    most: KnownMost,
    all: AtomicUsize,
    users: Mutex<HashMap<u32, Arc<AtomicUsize>>>,
}

impl Known {
    pub fn new(most: KnownMost) -> Arc<Known> {
        Arc::new(Known { most, all: AtomicUsize::new(0), users: Mutex::default() })
    }

    /// The part of a session of `uid`, which has nothing yet.
    pub fn part(self: &Arc<Self>, uid: u32) -> Part {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|_, user| Arc::strong_count(user) > 1);
        let user = Arc::clone(users.entry(uid).or_default());
        Part { known: Arc::clone(self), user, taken: 0 }
    }
}

fn take(count: &AtomicUsize, places: usize, most: usize) -> bool {
    let add = |taken: usize| taken.checked_add(places).filter(|&sum| sum <= most);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

/// A session's part, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Part {
    known: Arc<Known>,
    user: Arc<AtomicUsize>,
    /// The places that it has beyond those that it is assured of.
    taken: usize,
}

impl Part {
    /// Has room for `places` in all. Returns whether it has.
    #[inline]
    pub fn have(&mut self, places: usize) -> bool {
        let wanted = places.saturating_sub(ASSURED);
        wanted <= self.taken || self.grow(wanted)
    }

    #[cold]
    fn grow(&mut self, wanted: usize) -> bool {
        let KnownMost { of_user, of_all } = self.known.most;
        // Where no whole piece is left, what there is.
        [wanted.next_multiple_of(PIECE), wanted].into_iter().any(|wanted| {
            let more = wanted - self.taken;
            if !take(&self.user, more, of_user) {
                return false;
            }
            let taken = take(&self.known.all, more, of_all);
            if taken {
                self.taken = wanted;
            } else {
                self.user.fetch_sub(more, Ordering::Relaxed);
            }
            taken
        })
    }

    /// Gives back what `places` do not need, if that is much.
    #[inline]
    pub fn keep(&mut self, places: usize) {
        let needed = places.saturating_sub(ASSURED).next_multiple_of(PIECE);
        if self.taken > needed + PIECE {
            self.give_back(self.taken - needed);
        }
    }

    fn give_back(&mut self, places: usize) {
        self.taken -= places;
        self.user.fetch_sub(places, Ordering::Relaxed);
        self.known.all.fetch_sub(places, Ordering::Relaxed);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.give_back(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_bound_and_all_have_one() {
        let known = Known::new(KnownMost { of_user: 100, of_all: 150 });
        let mut one = known.part(7);
        assert!(one.have(ASSURED) && one.have(ASSURED + 70));
        let mut again = known.part(7);
        assert!(again.have(ASSURED), "each session has a few");
        // The first has two pieces, or rather what the user may have.
        assert!(!again.have(ASSURED + 31) && one.have(ASSURED + 100) && !one.have(ASSURED + 101));
        let mut other = known.part(8);
        assert!(other.have(ASSURED + 50) && !other.have(ASSURED + 51));
        one.keep(ASSURED);
        assert!(other.have(ASSURED + 100) && again.have(ASSURED + 50));
        assert!(!again.have(ASSURED + 51));
        drop((one, other));
        assert!(again.have(ASSURED + 100) && !again.have(ASSURED + 101));
        drop(again);
        assert_eq!(known.all.load(Ordering::Relaxed), 0);
        drop(known.part(9));
        drop(known.part(10));
        assert!(known.users.lock().unwrap().len() <= 2, "who has gone is forgotten");
    }
}
