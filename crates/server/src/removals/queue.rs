//! The inodes whose blocks are left to be freed, or on which other work is left, and the answers
//! that wait for that.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_vfs::Ino;

use crate::host::Bell;
use crate::syncs::queue::Then;

/// How many tasks one user may have at a time: fewer than there are where there are several.
const EACH: usize = 2;
/// How many inodes one user may have left that no task has begun with: a directory of the host has
/// places for no more than those of some users.
pub(crate) const LEFT_MAX: usize = 32;

#[derive(Default)]
pub(crate) struct Queue {
    /// The inodes that each user has left, the user whose turn is next first.
    pub users: VecDeque<(u32, VecDeque<Ino>)>,
    /// How many tasks work for each user that has one.
    busy: HashMap<u32, usize>,
    /// Those of all users, the user of each, and the answers that wait for it.
    waiting: HashMap<Ino, (u32, Vec<Then>)>,
    /// The server ends: the unmount does the rest.
    pub closed: bool,
}

impl Queue {
    /// Takes the inode whose step is next, and its user, for whom a task is at work until
    /// [`done`](Self::done) says that it is not.
    pub fn next(&mut self) -> Option<(u32, Ino)> {
        let busy = |uid| self.busy.get(uid).copied().unwrap_or(0);
        let at = self.users.iter().position(|(uid, _)| busy(uid) < EACH)?;
        let (uid, mut inos) = self.users.remove(at)?;
        let ino = inos.pop_front()?;
        if !inos.is_empty() {
            self.users.push_back((uid, inos));
        }
        *self.busy.entry(uid).or_default() += 1;
        Some((uid, ino))
    }

    /// A task has worked for `uid`.
    pub fn done(&mut self, uid: u32) {
        if let Some(busy) = self.busy.get_mut(&uid) {
            *busy -= 1;
            if *busy == 0 {
                self.busy.remove(&uid);
            }
        }
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
    removers: Mutex<Vec<Arc<dyn Bell>>>,
    served: AtomicBool,
    /// How many have been ended.
    ended: AtomicU64,
}

impl Removals {
    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        // No caller's code runs under this lock, and each change is whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is one more task that takes them, woken by `bell`.
    pub fn serve(&self, bell: Arc<dyn Bell>) {
        self.removers.lock().unwrap_or_else(PoisonError::into_inner).push(bell);
        self.served.store(true, Ordering::Relaxed);
    }

    /// Whether there is a remover, so that calls may leave something.
    #[inline]
    pub fn are_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    fn ring(&self) {
        let removers = self.removers.lock().unwrap_or_else(PoisonError::into_inner);
        removers.iter().for_each(|bell| bell.ring());
    }

    /// A call of the user `uid` has left blocks of `ino`.
    pub fn add(&self, uid: u32, ino: Ino) {
        let mut queue = self.queue();
        if queue.closed || queue.waiting.contains_key(&ino) {
            return;
        }
        queue.waiting.insert(ino, (uid, Vec::new()));
        queue.put(uid, ino);
        drop(queue);
        self.ring();
    }

    /// The inode that the user `uid` has to wait for, who has left too many, before a call of its
    /// own leaves one more.
    pub fn too_many(&self, uid: u32) -> Option<Ino> {
        if !self.are_served() {
            return None;
        }
        let queue = self.queue();
        let (_, inos) = queue.users.iter().find(|user| user.0 == uid && !queue.closed)?;
        // The last one: when it is done there is room for as many.
        inos.back().copied().filter(|_| inos.len() >= LEFT_MAX)
    }

    /// How many were ended.
    #[inline]
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// One of the inodes that calls of the user `uid` have left, if there are any, or any number if
    /// some were ended since so many were.
    pub fn any(&self, uid: u32, ended: u64) -> Option<Ino> {
        let queue = self.queue();
        if !self.are_served() || queue.closed {
            return None;
        }
        let mut waiting = queue.waiting.iter();
        let left = waiting.find(|(_, (user, _))| *user == uid).map(|(ino, _)| *ino);
        left.or_else(|| (self.ended() != ended).then_some(Ino::ROOT))
    }

    /// Calls `then` when nothing is left of `ino`; at once, if that is so.
    pub fn after(&self, ino: Ino, then: Then) {
        if let Some((_, waiting)) = self.queue().waiting.get_mut(&ino) {
            return waiting.push(then);
        }
        then(Ok(()));
    }

    /// Nothing is left of `ino`, or nothing more can be done. Returns the answers that wait for it.
    pub fn end(&self, ino: Ino) -> Vec<Then> {
        let ended = self.queue().waiting.remove(&ino);
        self.ended.fetch_add(1, Ordering::Release);
        ended.map(|(_, waiting)| waiting).unwrap_or_default()
    }

    /// From now on calls do all of their work themselves.
    pub fn serve_no_more(&self) {
        self.served.store(false, Ordering::Relaxed);
    }

    /// The server ends, and the remover with it.
    pub fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        // The calls have done what they said.
        let all = std::mem::take(&mut queue.waiting);
        drop(queue);
        all.into_values().flat_map(|(_, waiting)| waiting).for_each(|then| then(Ok(())));
        self.ring();
    }
}
