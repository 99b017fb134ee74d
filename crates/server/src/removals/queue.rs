//! The inodes whose blocks are left to be freed, and the answers that wait for that.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use atoll_vfs::Ino;

use crate::host::Bell;
use crate::syncs::queue::Then;

#[derive(Default)]
pub(crate) struct Queue {
    /// The inodes that each user has left, the user whose turn is next first.
    pub users: VecDeque<(u32, VecDeque<Ino>)>,
    /// Those of all users, and the answers that wait for each.
    pub waiting: HashMap<Ino, Vec<Then>>,
    /// The server ends: the unmount does the rest.
    pub closed: bool,
}

impl Queue {
    /// Takes the inode whose step is next, and its user.
    pub fn next(&mut self) -> Option<(u32, Ino)> {
        let (uid, mut inos) = self.users.pop_front()?;
        let ino = inos.pop_front()?;
        if !inos.is_empty() {
            self.users.push_back((uid, inos));
        }
        Some((uid, ino))
    }

    /// Puts an inode behind those of the same user, and a user who had none behind the others.
    pub fn put(&mut self, uid: u32, ino: Ino) {
        match self.users.iter_mut().find(|user| user.0 == uid) {
            Some((_, inos)) => inos.push_back(ino),
            None => self.users.push_back((uid, VecDeque::from([ino]))),
        }
    }
}

/// The inodes that calls have left.
#[derive(Default)]
pub(crate) struct Removals {
    pub queue: Mutex<Queue>,
    pub remover: OnceLock<Arc<dyn Bell>>,
}

impl Removals {
    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        // No caller's code runs under this lock, and each change is whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a remover, so that calls may leave something.
    #[inline]
    pub fn are_served(&self) -> bool {
        self.remover.get().is_some()
    }

    /// A call of the user `uid` has left blocks of `ino`.
    pub fn add(&self, uid: u32, ino: Ino) {
        let mut queue = self.queue();
        if queue.closed || queue.waiting.contains_key(&ino) {
            return;
        }
        queue.waiting.insert(ino, Vec::new());
        queue.put(uid, ino);
        drop(queue);
        if let Some(remover) = self.remover.get() {
            remover.ring();
        }
    }

    /// Calls `then` when nothing is left of `ino`; at once, if that is so.
    pub fn after(&self, ino: Ino, then: Then) {
        if let Some(waiting) = self.queue().waiting.get_mut(&ino) {
            return waiting.push(then);
        }
        then(Ok(()));
    }

    /// Nothing is left of `ino`, or nothing more can be done. Returns the answers that wait for it.
    pub fn end(&self, ino: Ino) -> Vec<Then> {
        self.queue().waiting.remove(&ino).unwrap_or_default()
    }

    /// The server ends, and the remover with it.
    pub fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        // The calls have done what they said.
        let all = std::mem::take(&mut queue.waiting);
        drop(queue);
        all.into_values().flatten().for_each(|then| then(Ok(())));
        if let Some(remover) = self.remover.get() {
            remover.ring();
        }
    }
}
