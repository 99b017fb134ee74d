//! The wait of an answer.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_vfs::{Errno, Ino, Result};

use crate::leases::caches::KernelCache;
use crate::route::carrier::Held;

/// An answer that waits, for several things at the same time.
pub(crate) struct Wait {
    /// How many events have not come; that the answer is held is one of them.
    left: AtomicU32,
    /// The number of the error that it has become, or 0.
    error: AtomicI32,
    held: Mutex<Option<Box<dyn Held>>>,
    /// The inode that the answer gives to a mount's kernel.
    entry: Option<(Arc<KernelCache>, Ino)>,
}

impl Wait {
    /// A wait for the events added by [`more`](Self::more), and for the answer to be held.
    pub fn new(entry: Option<(Arc<KernelCache>, Ino)>) -> Arc<Wait> {
        if let Some((cache, ino)) = &entry {
            cache.hold(*ino);
        }
        let (left, error) = (AtomicU32::new(1), AtomicI32::new(0));
        Arc::new(Wait { left, error, held: Mutex::default(), entry })
    }

    /// Adds an event to wait for, which is to call [`come`](Self::come).
    pub fn more(self: &Arc<Self>) -> Arc<Wait> {
        self.left.fetch_add(1, Ordering::Relaxed);
        Arc::clone(self)
    }

    /// An event has come.
    pub fn come(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.error.store(error.raw(), Ordering::Relaxed);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.release();
        }
    }

    /// The answer is held: it goes out when all has come.
    pub fn arm(&self, held: Box<dyn Held>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
        self.come(Ok(()));
    }

    fn release(&self) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(held) = held else { return };
        if let Some((cache, ino)) = &self.entry {
            cache.release(*ino);
        }
        let outcome = match self.error.load(Ordering::Relaxed) {
            0 => Ok(()),
            error => Err(Errno::from_raw(error).unwrap_or(Errno::EIO)),
        };
        // A kernel does not have to forget an inode that it never learns of.
        if !held.release(outcome)
            && let Some((cache, ino)) = &self.entry
        {
            cache.hold(*ino);
        }
    }
}
