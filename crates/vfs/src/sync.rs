//! A sync in halves: what is to be waited for, apart from the file system.

use alloc::boxed::Box;
use core::fmt;

use crate::errno::Result;
use crate::types::Ino;

/// Names a sync that has begun to the file system that began it.
#[derive(Debug, PartialEq, Eq)]
pub struct SyncId(pub u64);

/// A sync that has begun: what there is to be waited for, without the file system, from any thread.
pub struct PendingSync {
    id: SyncId,
    /// None for a turn of others.
    flush: Option<Box<dyn FnOnce() -> Result<()> + Send>>,
}

impl PendingSync {
    /// The sync `id`, of which `flush` does the waiting.
    pub fn new(id: SyncId, flush: impl FnOnce() -> Result<()> + Send + 'static) -> PendingSync {
        PendingSync { id, flush: Some(Box::new(flush)) }
    }

    /// The sync `id`, which would take the file system for long, and goes on after a turn of
    /// others.
    pub fn turn(id: SyncId) -> PendingSync {
        PendingSync { id, flush: None }
    }

    /// Whether it waits for nothing but that others, who want the file system, have had it.
    pub fn is_turn(&self) -> bool {
        self.flush.is_none()
    }

    /// Waits. Its result is for [`FileSystem::end_sync`](crate::FileSystem::end_sync).
    pub fn flush(self) -> (SyncId, Result<()>) {
        (self.id, self.flush.map_or(Ok(()), |flush| flush()))
    }
}

/// The part of a call that is left when the file system works [in
/// steps](crate::FileSystem::work_in_steps).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The call has done what it says; blocks of this inode are left to be
    /// [freed](crate::FileSystem::free_step), which nobody can see but by the space they take.
    Blocks(Ino),
    /// Nothing was done: the call can be made when the blocks that this inode has left are freed.
    After(Ino),
    /// Nothing was done: the call can be made when the work on this inode has ended that
    /// [goes on](crate::FileSystem::begin_free) without the file system.
    Until(Ino),
    /// All was done of the range of the call that lies before this offset.
    From(u64),
    /// What clients have stored into mapped files is written back, for a call that comes after
    /// that, of all files before this one and of this one before this offset. Not of a file system.
    Stored(Ino, u64),
}

/// The outcome of a [`checkpoint_step`](crate::FileSystem::checkpoint_step).
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
