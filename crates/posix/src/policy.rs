//! Permissions: the rules that judge each call.
//!
//! An embedded volume belongs to its one program, which may do everything: [`Unchecked`], and the
//! checks cost nothing. Where identities differ, [`ModeBits`] or another policy judges.

use alloc::sync::Arc;

use atoll_vfs::{Attr, Errno, FileType, Result};

use crate::Credentials;
use crate::flags::AccessMode;

/// Judges each call by the caller's identity and the attributes of the inodes that it touches.
pub trait Policy {
    /// Whether this policy ever refuses. If not, attributes are not fetched for its sake.
    const CHECKS: bool;

    /// Whether `who` may use `attr` as `mode` says.
    ///
    /// # Errors
    /// `EACCES`.
    fn access(&self, who: Credentials, attr: &Attr, mode: AccessMode) -> Result<()>;

    /// Whether `who` may act as the owner of `attr`: change its mode or set its times.
    ///
    /// # Errors
    /// `EPERM`.
    fn own(&self, who: Credentials, attr: &Attr) -> Result<()>;

    /// Whether `who` may change the owner or group of `attr`.
    ///
    /// # Errors
    /// `EPERM`.
    fn chown(
        &self,
        who: Credentials,
        attr: &Attr,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()>;

    /// Whether `who`, who may write to the directory `parent`, may remove `victim` from it: the
    /// sticky bit.
    ///
    /// # Errors
    /// `EPERM`.
    fn remove(&self, who: Credentials, parent: &Attr, victim: &Attr) -> Result<()>;

    /// The permission bits that `who` may give `attr` when asking for `mode`.
    fn permitted_mode(&self, who: Credentials, attr: &Attr, mode: u32) -> u32;
}

/// The program may do everything, as the superuser may.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unchecked;

impl Policy for Unchecked {
    const CHECKS: bool = false;

    fn access(&self, _: Credentials, attr: &Attr, mode: AccessMode) -> Result<()> {
        // Even the superuser executes no file that nobody may execute.
        let executable = attr.file_type() == FileType::Directory || attr.mode & 0o111 != 0;
        if mode.contains(AccessMode::EXECUTE) && !executable {
            return Err(Errno::EACCES);
        }
        Ok(())
    }

    fn own(&self, _: Credentials, _: &Attr) -> Result<()> {
        Ok(())
    }

    fn chown(&self, _: Credentials, _: &Attr, _: Option<u32>, _: Option<u32>) -> Result<()> {
        Ok(())
    }

    fn remove(&self, _: Credentials, _: &Attr, _: &Attr) -> Result<()> {
        Ok(())
    }

    fn permitted_mode(&self, _: Credentials, _: &Attr, mode: u32) -> u32 {
        mode
    }
}

/// The permission bits of each file decide, as POSIX says; user 0 may do everything.
#[derive(Clone, Debug, Default)]
pub struct ModeBits {
    /// The groups of the caller beside its effective one, in ascending order.
    pub groups: Arc<[u32]>,
}

impl ModeBits {
    fn in_group(&self, who: Credentials, gid: u32) -> bool {
        who.gid == gid || self.groups.binary_search(&gid).is_ok()
    }
}

impl Policy for ModeBits {
    const CHECKS: bool = true;

    fn access(&self, who: Credentials, attr: &Attr, mode: AccessMode) -> Result<()> {
        if who.uid == 0 {
            return Unchecked.access(who, attr, mode);
        }
        let class = if who.uid == attr.uid {
            attr.mode >> 6
        } else if self.in_group(who, attr.gid) {
            attr.mode >> 3
        } else {
            attr.mode
        };
        if class & mode.bits() == mode.bits() { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn own(&self, who: Credentials, attr: &Attr) -> Result<()> {
        if who.uid == 0 || who.uid == attr.uid { Ok(()) } else { Err(Errno::EPERM) }
    }

    fn chown(
        &self,
        who: Credentials,
        attr: &Attr,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        // The owner may give the file to a group of its own, and to no other user.
        let same_owner = uid.is_none_or(|uid| uid == attr.uid);
        let own_group = gid.is_none_or(|gid| gid == attr.gid || self.in_group(who, gid));
        if who.uid == 0 || who.uid == attr.uid && same_owner && own_group {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    fn remove(&self, who: Credentials, parent: &Attr, victim: &Attr) -> Result<()> {
        let sticky = parent.mode & 0o1000 != 0;
        if sticky && who.uid != 0 && who.uid != victim.uid && who.uid != parent.uid {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    fn permitted_mode(&self, who: Credentials, attr: &Attr, mode: u32) -> u32 {
        if who.uid == 0 || self.in_group(who, attr.gid) { mode } else { mode & !0o2000 }
    }
}
