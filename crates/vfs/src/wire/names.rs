//! Names: what makes, moves and forgets them.

use super::fixed::{Fixed, fixed};
use crate::errno::{Errno, Result};
use crate::types::Name;

fixed! {
    /// The arguments of FORGET.
    ForgetIn = "fuse_forget_in" 8 {
        nlookup: u64,
    }
    /// The arguments of BATCH_FORGET; `count` [`ForgetOne`]s follow.
    BatchForgetIn = "fuse_batch_forget_in" 8 {
        count: u32,
        dummy: u32,
    }
    /// One inode to forget.
    ForgetOne = "fuse_forget_one" 16 {
        nodeid: u64,
        nlookup: u64,
    }
    /// The arguments of MKNOD; the name follows.
    MknodIn = "fuse_mknod_in" 16 {
        mode: u32,
        rdev: u32,
        umask: u32,
        padding: u32,
    }
    /// The arguments of MKDIR; the name follows.
    MkdirIn = "fuse_mkdir_in" 8 {
        mode: u32,
        umask: u32,
    }
    /// The arguments of RENAME; both names follow.
    RenameIn = "fuse_rename_in" 8 {
        newdir: u64,
    }
    /// The arguments of RENAME2; both names follow.
    Rename2In = "fuse_rename2_in" 16 {
        newdir: u64,
        flags: u32,
        padding: u32,
    }
    /// The arguments of LINK; the name follows.
    LinkIn = "fuse_link_in" 8 {
        oldnodeid: u64,
    }
    /// The arguments of ACCESS.
    AccessIn = "fuse_access_in" 8 {
        mask: u32,
        padding: u32,
    }
}

/// The bytes up to the NUL that ends them, and what follows it.
///
/// # Errors
/// `EINVAL` when there is no NUL.
#[inline]
pub(super) fn string(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(Errno::EINVAL)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// The name at the front of `bytes`, and what follows its NUL.
///
/// # Errors
/// `EINVAL` when no NUL ends it, or as [`Name::new`].
#[inline]
pub(super) fn name(bytes: &[u8]) -> Result<(Name<'_>, &[u8])> {
    let (name, rest) = string(bytes)?;
    Ok((Name::new(name)?, rest))
}

/// The inodes of a BATCH_FORGET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl<'a> Forgets<'a> {
    /// The [`ForgetOne`]s in `bytes`, or `None` if they are not a whole number of them.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.len().is_multiple_of(ForgetOne::SIZE).then_some(Forgets(bytes))
    }

    /// Their bytes.
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// How many they are.
    pub const fn count(self) -> usize {
        self.0.len() / ForgetOne::SIZE
    }

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = ForgetOne> + 'a {
        self.0.chunks_exact(ForgetOne::SIZE).map(ForgetOne::load)
    }
}
