//! The requests for syncs of one file each. Users take turns, and no user has more than [`EACH`] of
//! the tasks that take them, so that one whose file takes long holds up none but its own.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_vfs::Errno;

use crate::host::Bell;
use crate::syncs::queue::{QUEUE_MAX, Waiter};

/// How many tasks one user may have at a time.
const EACH: usize = 2;

/// The requests of a user.
#[derive(Default)]
pub(crate) struct OfUser {
    waiters: VecDeque<Waiter>,
    /// How many tasks sync for the user.
    under_way: usize,
}

/// Those of all users.
#[derive(Default)]
pub(crate) struct Queue {
    pub users: HashMap<u32, OfUser>,
    /// The users with requests, the one whose turn is next first.
    turns: VecDeque<u32>,
    /// Whether there is a task that takes them.
    pub served: bool,
    /// The tasks that wait for a request.
    pub idle: Vec<Arc<dyn Bell>>,
    /// The server ends: the requests so far are still served.
    pub closed: bool,
}

impl Queue {
    /// Takes the requests of the next user that are for one open file.
    pub fn next(&mut self) -> Option<(u32, Vec<Waiter>)> {
        let users = &self.users;
        let at = self.turns.iter().position(|uid| users[uid].under_way < EACH)?;
        let uid = self.turns.remove(at)?;
        let user = self.users.get_mut(&uid)?;
        let one = user.waiters.front()?.wanted.one;
        let all = user.waiters.drain(..);
        let (taken, left): (Vec<_>, _) = all.partition(|waiter| waiter.wanted.one == one);
        (user.waiters, user.under_way) = (left.into(), user.under_way + 1);
        if !user.waiters.is_empty() {
            self.turns.push_back(uid);
        }
        Some((uid, taken))
    }

    /// A task has synced for `uid`.
    pub fn done(&mut self, uid: u32) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.under_way -= 1;
            if user.under_way == 0 && user.waiters.is_empty() {
                self.users.remove(&uid);
            }
        }
    }
}

/// The requests that wait for the sync of a file.
#[derive(Default)]
pub(crate) struct FileQueue(Mutex<Queue>);

impl FileQueue {
    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        // No caller's code runs under this lock, and each change is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a waiter, or gives it back with an outcome: too many of its user wait. Without one it
    /// is for everything, or files are not synced by themselves here.
    pub fn ask(&self, waiter: Waiter) -> Result<(), (Waiter, Option<Errno>)> {
        let (Some(uid), Some(_)) = (waiter.uid, waiter.wanted.one) else {
            return Err((waiter, None));
        };
        let mut queue = self.queue();
        if !queue.served || queue.closed {
            return Err((waiter, None));
        }
        let user = queue.users.entry(uid).or_default();
        if user.waiters.len() >= QUEUE_MAX {
            return Err((waiter, Some(Errno::EAGAIN)));
        }
        user.waiters.push_back(waiter);
        if user.waiters.len() == 1 {
            queue.turns.push_back(uid);
        }
        let idle = queue.idle.pop();
        drop(queue);
        if let Some(bell) = idle {
            bell.ring();
        }
        Ok(())
    }

    pub fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        let idle = std::mem::take(&mut queue.idle);
        drop(queue);
        idle.iter().for_each(|bell| bell.ring());
    }
}
