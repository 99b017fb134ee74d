//! The locks of fcntl(2) and flock(2) where several processes share a file system: beside the
//! verbs, since no file system keeps locks. A client of a server asks for them.

use alloc::sync::Arc;

use atoll_transport::Token;

use crate::errno::Result;
use crate::types::{Handle, Ino};

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// F_RDLCK, LOCK_SH.
    Shared,
    /// F_WRLCK, LOCK_EX.
    Exclusive,
}

/// The owner of a lock. Those of one owner never stand in each other's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOwner {
    /// A lock of bytes, as fcntl(2) has them: the owner's number, which this client chose.
    Record(u64),
    /// A lock of flock(2): the open file through which it is asked for. Its range is the whole
    /// file.
    OpenFile,
}

/// A lock: wanted, held, or with no kind to let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Its owner.
    pub owner: LockOwner,
    /// Its kind; `None` to let go.
    pub kind: Option<LockKind>,
    /// The first byte.
    pub start: u64,
    /// The last byte; `u64::MAX` is the end of the file wherever it will be.
    pub end: u64,
    /// The process, for others who ask.
    pub pid: u32,
}

/// A request for a lock that waits.
#[derive(Debug)]
pub struct LockWait {
    pub(crate) token: Token,
    pub(crate) unique: u64,
    /// How often its answer was looked for.
    pub(crate) looks: u32,
}

/// The locks of the processes that share a file system.
///
/// The locks of an open file go when it is released, and all of a client's when it ends.
pub trait Locks {
    /// The lock of another owner in the way of `lock`, which has a kind: F_GETLK.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL`, `ENOLCK` where there are no locks, `EIO` when the server is lost.
    fn getlk(&mut self, ino: Ino, handle: Handle, lock: &Lock) -> Result<Option<Lock>>;

    /// Takes or lets go of a lock without waiting: F_SETLK, and flock(2) with LOCK_NB.
    ///
    /// # Errors
    /// As [`getlk`](Self::getlk); `EAGAIN` when another's is in the way; `ENOLCK` also for too many
    /// locks.
    fn setlk(&mut self, ino: Ino, handle: Handle, lock: &Lock) -> Result<()>;

    /// Takes a lock, or begins to wait for it: F_SETLKW. `None`: it is there.
    ///
    /// # Errors
    /// As [`setlk`](Self::setlk), where `EAGAIN` says that too many wait already; `EDEADLK` when
    /// the owners in the way wait for this one.
    fn setlkw(&mut self, ino: Ino, handle: Handle, lock: &Lock) -> Result<Option<LockWait>>;

    /// Looks for the outcome of a request that waits, without waiting. It comes back while there is
    /// none.
    ///
    /// # Errors
    /// As [`setlkw`](Self::setlkw); `EINTR` after [`interrupt`](Self::interrupt).
    fn waited(&mut self, wait: LockWait) -> Result<Option<LockWait>>;

    /// Gives up a request that waits: its outcome comes soon, and may be success all the same.
    fn interrupt(&mut self, wait: &LockWait);

    /// A process has closed a descriptor of `ino`: all locks of bytes that `owner` has there go.
    ///
    /// # Errors
    /// As [`getlk`](Self::getlk).
    fn flush(&mut self, ino: Ino, handle: Handle, owner: u64) -> Result<()>;
}

/// The locks that an open file can have against programs which are no clients: where others change
/// the file system too, their locks are to hold for clients, and those of clients for them. What is
/// locked through one open file is nobody's in particular: whoever shares it keeps its own clients
/// apart.
pub trait OutsideLocks: Send + Sync {
    /// Whether it can hold locks of bytes of this kind.
    fn allows(&self, kind: LockKind) -> bool;

    /// The same file, open anew for both kinds.
    ///
    /// # Errors
    /// Those of opening it.
    fn for_both(&self) -> Result<Arc<dyn OutsideLocks>>;

    /// Makes a lock of the bytes from `start` to `end` one of this kind, or none, without waiting.
    ///
    /// # Errors
    /// `EAGAIN` when another program's is in the way, upon which all is as before; `ENOLCK`.
    fn set(&self, kind: Option<LockKind>, start: u64, end: u64) -> Result<()>;

    /// The kind and the bytes of another program's lock in the way of such a one.
    ///
    /// # Errors
    /// `ENOLCK`, `EIO`.
    fn test(&self, kind: LockKind, start: u64, end: u64) -> Result<Option<(LockKind, u64, u64)>>;

    /// Makes the lock of flock(2) one of this kind, or none, without waiting.
    ///
    /// # Errors
    /// `EAGAIN` when another program's is in the way; `ENOLCK`.
    fn set_whole(&self, kind: Option<LockKind>) -> Result<()>;
}
