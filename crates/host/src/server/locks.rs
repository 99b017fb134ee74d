//! The locks of fcntl(2) and flock(2).

use atoll_vfs::{Ino, Result};

use super::volume::SessionId;

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// F_RDLCK, LOCK_SH.
    Shared,
    /// F_WRLCK, LOCK_EX.
    Exclusive,
}

/// The bytes that a lock of fcntl(2) covers, both ends included; `u64::MAX` is the end of the file
/// wherever it will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
}

/// Whose lock is in the way: what F_GETLK tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its kind.
    pub kind: LockKind,
    /// Its bytes.
    pub range: LockRange,
    /// The process that its client named.
    pub pid: u32,
}

/// Names a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaitId(pub(super) u64);

/// What became of a request that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It was granted at once; its callback is dropped uncalled.
    Granted,
    /// It waits; its callback will be called once, with the outcome.
    Queued(WaitId),
}

/// Told of the outcome of a request that waited: `EINTR` when it was cancelled. Called on the
/// thread of whoever freed the lock, with no lock of the volume held; it must not block.
pub type Wake = Box<dyn FnOnce(Result<()>) + Send>;

/// All locks of one volume.
#[derive(Default)]
pub(super) struct LockTable {
    _private: Option<(Ino, SessionId)>,
}
