//! Requests for locks that wait for programs which are no clients: nobody says when those let go,
//! so that one task of the volume tries again at intervals.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use atoll_vfs::{FileSystem, Result, SyncId};

use crate::host::Bell;
use crate::task::{Step, Task};
use crate::volume::Volume;

/// The time between two tries.
const RETRY: Duration = Duration::from_millis(10);

/// The task of a volume that tries again what waits for programs that are no clients.
pub struct LockRetrier<F: FileSystem + Send> {
    volume: Arc<Volume<F>>,
}

impl<F: FileSystem + Send> LockRetrier<F> {
    /// The one such task of `volume`; `bell` is rung when it has something to do.
    pub fn new(volume: &Arc<Volume<F>>, bell: Arc<dyn Bell>) -> LockRetrier<F> {
        let table = volume.locks.lock().unwrap_or_else(PoisonError::into_inner);
        // There is no other.
        let _ = table.retries.bell.set(bell);
        drop(table);
        LockRetrier { volume: Arc::clone(volume) }
    }
}

impl<F: FileSystem + Send> Task for LockRetrier<F> {
    fn name(&self) -> &'static str {
        "lock retrier"
    }

    fn step(&mut self, _: Option<(SyncId, Result<()>)>) -> Step {
        let mut table = self.volume.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let (wakes, more) = table.retry();
        let closed = table.retries.closed;
        drop(table);
        wakes.call();
        match (closed, more) {
            (true, _) => Step::Over,
            (false, true) => Step::Pause(RETRY),
            (false, false) => Step::Wait,
        }
    }
}

impl<F: FileSystem + Send> Volume<F> {
    /// Has the task that tries locks again end. Requests that wait are ended with their sessions.
    pub fn close_lock_retries(&self) {
        let mut table = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        table.retries.closed = true;
        if let Some(bell) = table.retries.bell.get() {
            bell.ring();
        }
    }
}
