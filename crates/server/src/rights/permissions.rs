//! The rights of a caller: Linux's rules where identities differ.
//!
//! The permission bits themselves are judged by [`ModeBits`]; here is which of them each verb asks
//! for, what a caller may set, and what it loses by setting.

use std::sync::Arc;

use atoll_posix::{AccessMode, ModeBits, Policy};
use atoll_vfs::{Attr, Context, Errno, FileType, Result, SetAttr, SetTime};

use crate::rights::identity::Identity;
use crate::rights::privileges::without_set_ids;

/// A client's identity, as the kernel attests it (`SO_PEERCRED`, `SO_PEERGROUPS`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Credentials {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups. There may be 65,536: they are kept once.
    pub groups: Arc<[u32]>,
    /// Process, for messages.
    pub pid: u32,
}

/// The identity by which the calls of a session are judged.
pub(crate) struct Judge {
    peer: atoll_posix::Credentials,
    identity: Identity,
    /// With the peer's groups.
    own: ModeBits,
    /// With no groups, for other users for whom the peer speaks.
    other: ModeBits,
}

/// The identity by which one call is judged.
pub(crate) struct Caller<'j> {
    who: atoll_posix::Credentials,
    bits: &'j ModeBits,
    checked: bool,
}

impl Judge {
    pub(crate) fn new(peer: &Credentials, identity: Identity) -> Judge {
        // The kernel gives them in order.
        let groups = match peer.groups.is_sorted() {
            true => Arc::clone(&peer.groups),
            false => {
                let mut groups = peer.groups.to_vec();
                groups.sort_unstable();
                groups.into()
            }
        };
        Judge {
            peer: atoll_posix::Credentials { uid: peer.uid, gid: peer.gid },
            identity,
            own: ModeBits { groups },
            other: ModeBits::default(),
        }
    }

    /// `cx` with the identity that the call has.
    #[inline]
    pub(crate) fn context(&self, cx: &Context) -> Context {
        match self.identity {
            Identity::Peer => Context { uid: self.peer.uid, gid: self.peer.gid, now: cx.now },
            Identity::Caller | Identity::Checked => *cx,
        }
    }

    /// The caller that `cx`, a result of [`context`](Self::context), speaks for.
    #[inline]
    pub(crate) fn caller(&self, cx: &Context) -> Caller<'_> {
        let who = atoll_posix::Credentials { uid: cx.uid, gid: cx.gid };
        let bits = if who == self.peer { &self.own } else { &self.other };
        Caller { who, bits, checked: self.identity == Identity::Checked }
    }
}

impl Caller<'_> {
    /// Whether nothing is refused for permission bits or ownership, so that attributes need not be
    /// fetched for their sake.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.checked || self.is_root()
    }

    /// Whether the caller has the superuser's capabilities.
    #[inline]
    pub(crate) fn is_root(&self) -> bool {
        self.who.uid == 0
    }

    /// Whether the caller is in the group of `attr`, or may act as if.
    pub(crate) fn in_group(&self, attr: &Attr) -> bool {
        self.bits.permitted_mode(self.who, attr, 0o2000) != 0
    }

    /// Whether the caller may use `attr` as `mode` says.
    ///
    /// # Errors
    /// `EACCES`.
    pub(crate) fn access(&self, attr: &Attr, mode: AccessMode) -> Result<()> {
        if self.is_free() { Ok(()) } else { self.bits.access(self.who, attr, mode) }
    }

    /// Whether the caller may set what only the owner of a file may.
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn own(&self, attr: &Attr) -> Result<()> {
        if self.is_free() { Ok(()) } else { self.bits.own(self.who, attr) }
    }

    /// Whether the caller may look names up in `dir`. The file system refuses anything but a
    /// directory.
    ///
    /// # Errors
    /// `EACCES`.
    pub(crate) fn search(&self, dir: &Attr) -> Result<()> {
        if dir.file_type() != FileType::Directory {
            return Ok(());
        }
        self.access(dir, AccessMode::EXECUTE)
    }

    /// Whether the caller may take the name of `victim` out of `dir`.
    ///
    /// # Errors
    /// `EACCES`, `EPERM`.
    pub(crate) fn remove(&self, dir: &Attr, victim: &Attr) -> Result<()> {
        if self.is_free() {
            return Ok(());
        }
        self.access(dir, AccessMode::WRITE | AccessMode::EXECUTE)?;
        self.bits.remove(self.who, dir, victim)
    }

    /// Whether the caller may give the file of `attr` one more name: its owner, and whoever could
    /// copy it as well, as Linux has it with `fs.protected_hardlinks`. Others would keep a file
    /// from being deleted, and a set-user-ID program from being replaced.
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn link(&self, attr: &Attr) -> Result<()> {
        let mode = attr.mode;
        let plain = attr.file_type() == FileType::Regular
            && mode & 0o4000 == 0
            && mode & 0o2010 != 0o2010
            && self.access(attr, AccessMode::READ | AccessMode::WRITE).is_ok();
        if plain || self.is_free() { Ok(()) } else { self.bits.own(self.who, attr) }
    }

    /// The permission bits that the caller gives a new file in `dir` by asking for `mode`: no
    /// set-group-ID bit for a group that it is not in and that `dir` would pass on.
    pub(crate) fn new_mode(&self, dir: &Attr, mode: u32) -> u32 {
        if dir.mode & 0o2000 != 0 && mode & 0o2010 == 0o2010 && !self.in_group(dir) {
            mode & !0o2000
        } else {
            mode
        }
    }

    /// Whether the caller may make a file of this type. Anybody may make the device that is none,
    /// which overlay file systems leave in the place of a name.
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn make(&self, mode: u32, rdev: u32) -> Result<()> {
        let device = match FileType::from_mode(mode) {
            Some(FileType::CharDevice) => rdev != 0,
            made => made == Some(FileType::BlockDevice),
        };
        if device && !self.is_free() { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Judges a change of attributes of `attr`, and adds to `set` what follows from it. `writing`
    /// says that the size is set through an open file with the right to write.
    ///
    /// # Errors
    /// `EACCES`, `EPERM`.
    pub(crate) fn set(&self, attr: &Attr, set: &mut SetAttr, writing: bool) -> Result<()> {
        if !self.is_free() {
            if set.size.is_some() && !writing && attr.file_type() == FileType::Regular {
                self.bits.access(self.who, attr, AccessMode::WRITE)?;
            }
            if set.uid.is_some() || set.gid.is_some() {
                self.bits.chown(self.who, attr, set.uid, set.gid)?;
            }
            if let Some(mode) = set.mode {
                self.bits.own(self.who, attr)?;
                // Judged by the group that the file will have.
                let after = Attr { gid: set.gid.unwrap_or(attr.gid), ..*attr };
                set.mode = Some(self.bits.permitted_mode(self.who, &after, mode));
            }
            self.set_times(attr, set, writing)?;
        }
        let owner_changes = set.uid.is_some() || set.gid.is_some();
        let content_changes = set.size.is_some() && !self.is_root();
        if (owner_changes || content_changes)
            && set.mode.is_none()
            && attr.file_type() != FileType::Directory
        {
            let mode = attr.mode & 0o7777;
            let kept = without_set_ids(mode, self.in_group(attr));
            set.mode = (kept != mode).then_some(kept);
        }
        Ok(())
    }

    /// A caller that may write a file may set both its times to the present; else only its owner
    /// sets any.
    fn set_times(&self, attr: &Attr, set: &SetAttr, writing: bool) -> Result<()> {
        match (set.atime, set.mtime) {
            (None, None) => Ok(()),
            // A change of size brings its own time.
            (None, Some(SetTime::Now)) if set.size.is_some() => Ok(()),
            (Some(SetTime::Now), Some(SetTime::Now)) => {
                if writing || self.bits.own(self.who, attr).is_ok() {
                    return Ok(());
                }
                self.bits.access(self.who, attr, AccessMode::WRITE)
            }
            _ => self.bits.own(self.who, attr),
        }
    }

    /// Whether the caller may see the extended attribute `name` of `attr`, or with `change` set or
    /// remove it: xattr(7).
    ///
    /// # Errors
    /// `ENODATA` for what it may not see, `EPERM`, `EACCES`; `EOPNOTSUPP` for other namespaces;
    /// `EINVAL` for nothing but one, `ERANGE`.
    pub(crate) fn xattr(&self, attr: &Attr, name: &[u8], change: bool) -> Result<()> {
        let refused = if change { Errno::EPERM } else { Errno::ENODATA };
        if name.is_empty() || name.len() > 255 {
            return Err(Errno::ERANGE);
        }
        // Others are the kernel's own, such as access control lists, which nothing here would judge
        // by, or nobody's.
        let spaces = [&b"user."[..], b"trusted.", b"security."];
        let space = spaces.into_iter().find(|space| name.starts_with(space));
        let space = space.ok_or(Errno::EOPNOTSUPP)?;
        if name == space {
            return Err(Errno::EINVAL);
        }
        if space == b"user." {
            // Anybody could fill the disk through a link or a device that all may write.
            if !matches!(attr.file_type(), FileType::Regular | FileType::Directory) {
                return Err(refused);
            }
            if self.is_free() {
                return Ok(());
            }
            let sticky = attr.file_type() == FileType::Directory && attr.mode & 0o1000 != 0;
            if change && sticky && self.bits.own(self.who, attr).is_err() {
                return Err(Errno::EPERM);
            }
            let mode = if change { AccessMode::WRITE } else { AccessMode::READ };
            return self.access(attr, mode);
        }
        let may = self.is_free() || space == b"security." && !change;
        if may { Ok(()) } else { Err(refused) }
    }

    /// Whether a list of extended attributes shows the caller `name`.
    pub(crate) fn lists(&self, name: &[u8]) -> bool {
        self.is_free() || !name.starts_with(b"trusted.")
    }
}
