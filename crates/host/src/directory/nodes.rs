//! Device nodes that clients make. The host has none of them, since whoever reached one there would
//! have the host's device: each is kept as an empty file with an attribute that says what clients
//! see.
//!
//! Such a file belongs to this process's user, and others may neither read nor write it: no other
//! program of the host can make one, or turn one into another device. The mode that it has tells it
//! from other empty files, so that no attributes are asked for on their account. It gets its name
//! when it is complete.

use std::os::fd::{AsRawFd, OwnedFd};

use atoll_vfs::{Attr, Context, Errno, FileType, Ino, Name, Result, SetAttr};
use rustix::fs::{self as sys, AtFlags, OFlags};

use super::attributes::bits;
use super::reach::open_in;
use super::{HostDirectory, attributes, errno};

/// The attribute. Clients have no name that would be this one on the host.
const ATTRIBUTE: &str = "user.atoll.node";
/// The permission bits of the file. The sticky bit means nothing on files.
const MODE: u32 = 0o1600;

/// What the attribute says, four little-endian numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    mode: u32,
    rdev: u32,
    uid: u32,
    gid: u32,
}

impl Node {
    fn parse(bytes: &[u8]) -> Option<Node> {
        let (numbers, []) = bytes.as_chunks() else { return None };
        let [mode, rdev, uid, gid] =
            <[[u8; 4]; 4]>::try_from(numbers).ok()?.map(u32::from_le_bytes);
        is_device(mode).then_some(Node { mode, rdev, uid, gid })
    }

    fn keep(self, fd: &OwnedFd) -> Result<()> {
        let bytes = [self.mode, self.rdev, self.uid, self.gid].map(u32::to_le_bytes).concat();
        sys::fsetxattr(fd, ATTRIBUTE, &bytes, sys::XattrFlags::empty()).map_err(errno)
    }
}

fn is_device(mode: u32) -> bool {
    matches!(FileType::from_mode(mode), Some(FileType::CharDevice | FileType::BlockDevice))
}

impl HostDirectory {
    /// Whether the host's attributes are those of a node that is kept, which its attribute decides.
    pub(super) fn may_be_node(&self, said: &Attr) -> bool {
        said.mode == FileType::Regular.mode_bits() | MODE && said.size == 0 && said.uid == self.user
    }

    /// The node that `fd` is kept as, which has the host's attributes `said`.
    fn node(&mut self, fd: &OwnedFd, said: &Attr) -> Result<Option<Node>> {
        if !self.may_be_node(said) {
            return Ok(None);
        }
        let fd = self.anew(fd, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let mut bytes = [0; 17];
        Ok(match sys::fgetxattr(&fd, ATTRIBUTE, &mut bytes[..]) {
            Ok(len) => Node::parse(&bytes[..len]),
            Err(_) => None,
        })
    }

    /// What `fd` is to clients, which has the host's attributes `said`.
    pub(super) fn as_node(&mut self, fd: &OwnedFd, said: Attr) -> Result<Attr> {
        Ok(match self.node(fd, &said)? {
            Some(Node { mode, rdev, uid, gid }) => Attr { mode, rdev, uid, gid, ..said },
            None => said,
        })
    }

    /// Makes a node with the type and permission bits of `mode`, the caller's.
    ///
    /// # Errors
    /// `EEXIST`; `EPERM` where the host's file system has no attributes or nameless files.
    pub(super) fn keep_node(
        &mut self,
        cx: &Context,
        (parent, dir): (Ino, &OwnedFd),
        name: Name<'_>,
        (mode, rdev): (u32, u32),
    ) -> Result<()> {
        let above = attributes::of(parent, dir)?;
        let owner = self.owners.of_new(cx, &above);
        let flags = OFlags::TMPFILE | OFlags::WRONLY;
        let refused = |error| if error == Errno::EOPNOTSUPP { Errno::EPERM } else { error };
        let fd = self.with_room(|_| open_in(dir, b".", flags, bits(MODE))).map_err(refused)?;
        self.set_missing(&fd, MODE)?;
        let node = Node { mode: mode & 0o177_777, rdev, uid: owner.0, gid: owner.1 };
        node.keep(&fd).map_err(refused)?;
        let number = fd.as_raw_fd().to_string();
        let follow = AtFlags::SYMLINK_FOLLOW;
        sys::linkat(self.descriptors, number.as_str(), dir, name.bytes(), follow).map_err(errno)
    }

    /// Sets the owner and the mode of a node that is kept as `fd`, which clients see as `old`.
    /// Returns whether it is one.
    pub(super) fn set_node(
        &mut self,
        (old, fd): (&Attr, &OwnedFd),
        (uid, gid): (Option<u32>, Option<u32>),
        set: &SetAttr,
    ) -> Result<bool> {
        if !is_device(old.mode) {
            return Ok(false);
        }
        let said = attributes::of(old.ino, fd)?;
        let Some(node) = self.node(fd, &said)? else { return Ok(false) };
        let mode = set.mode.map_or(node.mode, |mode| node.mode & !0o7777 | mode & 0o7777);
        let now = Node { mode, uid: uid.unwrap_or(node.uid), gid: gid.unwrap_or(node.gid), ..node };
        if now != node {
            now.keep(&self.anew(fd, OFlags::RDONLY | OFlags::NONBLOCK)?)?;
        }
        Ok(true)
    }
}
