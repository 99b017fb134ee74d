//! A sync in halves: what is to be waited for, apart from the file system.

use alloc::boxed::Box;
use core::fmt;

use crate::errno::Result;

/// Names a sync that has begun to the file system that began it.
#[derive(Debug, PartialEq, Eq)]
pub struct SyncId(pub u64);

/// A sync that has begun: what there is to be waited for, without the file system, from any thread.
pub struct PendingSync {
    id: SyncId,
    flush: Box<dyn FnOnce() -> Result<()> + Send>,
}

impl PendingSync {
    /// The sync `id`, of which `flush` does the waiting.
    pub fn new(id: SyncId, flush: impl FnOnce() -> Result<()> + Send + 'static) -> PendingSync {
        PendingSync { id, flush: Box::new(flush) }
    }

    /// Waits. What it returns is for [`FileSystem::end_sync`](crate::FileSystem::end_sync).
    pub fn flush(self) -> (SyncId, Result<()>) {
        (self.id, (self.flush)())
    }
}

/// What a [`checkpoint_step`](crate::FileSystem::checkpoint_step) came to.
#[derive(Debug)]
pub enum CheckpointStep {
    /// The checkpoint has ended: the next step begins another.
    Idle,
    /// There is more to do.
    More,
    /// There is more to do after a sync, whoever makes it.
    Sync,
    /// There is more to do after this flush, of which the next step is told.
    Wait(PendingSync),
}

impl fmt::Debug for PendingSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PendingSync").field(&self.id).finish()
    }
}
