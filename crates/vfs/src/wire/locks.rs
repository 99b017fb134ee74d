//! Locks: messages only, for servers that keep a table of locks. No file system behind the seam
//! does.

use super::fixed::fixed;

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
