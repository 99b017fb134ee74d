//! The requests that wait for the next sync.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use atoll_vfs::wire::Request;
use atoll_vfs::wire::files::FUSE_FSYNC_FDATASYNC;
use atoll_vfs::{Errno, Handle, Ino, Result};

use crate::host::Bell;
use crate::open::handles::Open;

/// The most requests of one user that wait for the next sync; one more is `EAGAIN`. To sync for it
/// at once would hold up all others, under the lock.
pub(crate) const QUEUE_MAX: usize = 4096;

/// Called with the outcome of a sync, by the syncer: it must not block.
pub type Then = Box<dyn FnOnce(Result<()>) + Send>;

/// The data that a request asks to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A file: fsync(2), fdatasync(2).
    File {
        /// The handle by which it is open.
        handle: Handle,
        /// Timestamps may be left behind.
        data_only: bool,
    },
    /// A directory, by a handle.
    Directory(Handle),
    /// Everything: syncfs(2).
    All,
}

impl Ask {
    /// The sync that `request` asks for, if it asks for one.
    pub fn of(request: &Request<'_>) -> Option<Ask> {
        match request {
            Request::Fsync(args) => Some(Ask::File {
                handle: Handle(args.fh),
                data_only: args.fsync_flags & FUSE_FSYNC_FDATASYNC != 0,
            }),
            Request::Fsyncdir(args) => Some(Ask::Directory(Handle(args.fh))),
            Request::Syncfs => Some(Ask::All),
            _ => None,
        }
    }
}

/// The sync that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Timestamps may be left behind.
    pub data_only: bool,
    /// All that has to be durable: an open file or directory, by the file system's numbers. `None`:
    /// everything.
    pub one: Option<(Ino, Handle)>,
}

impl Wanted {
    /// What is open.
    pub fn of(open: &Open, data_only: bool) -> Wanted {
        Wanted { data_only, one: Some((open.ino, open.handle)) }
    }
}

/// A request that waits for a sync.
pub(crate) struct Waiter {
    /// The user; `None` for the server's own.
    pub uid: Option<u32>,
    pub wanted: Wanted,
    pub then: Then,
}

#[derive(Default)]
pub(crate) struct Queue {
    pub waiters: Vec<Waiter>,
    /// How many of them are each user's.
    of_users: HashMap<u32, usize>,
    /// The server ends: the requests so far are still served.
    pub closed: bool,
}

impl Queue {
    /// Takes the requests so far.
    pub fn take(&mut self) -> Vec<Waiter> {
        self.of_users.clear();
        std::mem::take(&mut self.waiters)
    }
}

/// The requests that wait for a sync of a volume.
#[derive(Default)]
pub(crate) struct Syncs {
    pub queue: Mutex<Queue>,
    /// Wakes the syncer, if there is one.
    pub syncer: OnceLock<Arc<dyn Bell>>,
}

impl Syncs {
    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        // No caller's code runs under this lock, and each change is whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a waiter, or gives it back with an outcome: too many of its user wait. Without one
    /// there is no syncer.
    pub fn ask(&self, waiter: Waiter) -> std::result::Result<(), (Then, Option<Errno>)> {
        let Some(syncer) = self.syncer.get() else { return Err((waiter.then, None)) };
        let mut queue = self.queue();
        if queue.closed {
            return Err((waiter.then, None));
        }
        if let Some(uid) = waiter.uid {
            let own = queue.of_users.entry(uid).or_default();
            if *own >= QUEUE_MAX {
                return Err((waiter.then, Some(Errno::EAGAIN)));
            }
            *own += 1;
        }
        queue.waiters.push(waiter);
        drop(queue);
        syncer.ring();
        Ok(())
    }

    pub fn is_served(&self) -> bool {
        self.syncer.get().is_some()
    }

    /// Refuses requests from now on. Those so far are still served.
    pub fn close(&self) {
        self.queue().closed = true;
        if let Some(syncer) = self.syncer.get() {
            syncer.ring();
        }
    }
}
