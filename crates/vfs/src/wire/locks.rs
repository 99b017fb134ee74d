//! Locks: messages only, for servers that keep a table of locks. No file system behind the seam
//! does; the asking side is [`Locks`](crate::locks::Locks).

use super::fixed::fixed;
use crate::locks::LockKind;

fixed! {
    /// A range and how it is locked.
    FileLock = "fuse_file_lock" 24 {
        start: u64,
        end: u64,
        kind: u32,
        pid: u32,
    }
    /// The arguments of GETLK, SETLK and SETLKW.
    LkIn = "fuse_lk_in" 48 {
        fh: u64,
        owner: u64,
        lk: FileLock,
        lk_flags: u32,
        padding: u32,
    }
    /// The answer to GETLK.
    LkOut = "fuse_lk_out" 24 {
        lk: FileLock,
    }
}

/// Of [`LkIn::lk_flags`]: a lock of flock(2), not of fcntl(2).
pub const FUSE_LK_FLOCK: u32 = 1;

/// Of [`FileLock::kind`]: shared.
pub const F_RDLCK: u32 = 0;
/// Of [`FileLock::kind`]: exclusive.
pub const F_WRLCK: u32 = 1;
/// Of [`FileLock::kind`]: none.
pub const F_UNLCK: u32 = 2;
/// The kind that `code`, of [`FileLock::kind`], stands for, with `None` for [`F_UNLCK`]; `None` for
/// a code that stands for nothing.
pub fn kind_of(code: u32) -> Option<Option<LockKind>> {
    match code {
        F_RDLCK => Some(Some(LockKind::Shared)),
        F_WRLCK => Some(Some(LockKind::Exclusive)),
        F_UNLCK => Some(None),
        _ => None,
    }
}

/// The value of [`FileLock::kind`] for `kind`.
pub fn code_of(kind: Option<LockKind>) -> u32 {
    match kind {
        Some(LockKind::Shared) => F_RDLCK,
        Some(LockKind::Exclusive) => F_WRLCK,
        None => F_UNLCK,
    }
}

/// Of [`FileLock::end`]: the end of the file, wherever it will be.
pub const LK_END: u64 = i64::MAX as u64;
