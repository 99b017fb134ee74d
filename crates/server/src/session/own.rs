//! A session's own state, without the volume.

use std::collections::HashMap;
use std::sync::Arc;

use atoll_vfs::{Context, Errno, FileSystem, Handle, Ino, Name, OpenFlags, Result};

use crate::leases::caches::KernelCache;
use crate::leases::view::{ViewId, Views};
use crate::open::handles::{Handles, Open};
use crate::open::implicit::Implicit;
use crate::open::inodes::Inodes;
use crate::rights::accounts::Room;
use crate::rights::identity::{Access, Identity, SessionId};
use crate::rights::permissions::Credentials;
use crate::session::concerns::Concerns;

/// An inode that an answer gives a mount's kernel, and the lease on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The inode, by the volume's number.
    pub ino: Ino,
    /// The kernel is given the inode once more.
    pub entry: bool,
    /// The kernel may keep the attributes.
    pub valid: bool,
    /// The kernel may keep the name by which it was given the inode.
    pub named: bool,
}

/// What a session [holds](crate::session::removed) of what its client removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Holds {
    #[default]
    Nothing,
    Directories,
    All,
}

/// A session's own state.
pub(crate) struct Own {
    pub id: SessionId,
    pub peer: Credentials,
    pub access: Access,
    pub inodes: Inodes,
    pub handles: Handles,
    /// The user's share of what they take, as open files and as memory.
    pub opens: [Room; 2],
    /// Of a mount of this host: what is held of what its kernel removes.
    pub holds: Holds,
    /// What is held: its kernel has removed it and still knows it. By the volume's numbers.
    pub held: HashMap<Ino, Open>,
    pub view: Option<ViewId>,
    /// Of a mount: the leases of its kernel.
    pub cache: Option<Arc<KernelCache>>,
    /// Of a mount: the inode that the last call has found for its kernel.
    pub lent: Option<Lent>,
    /// Of a mount: the next read is for its kernel's page cache.
    pub for_cache: bool,
    /// Of a mount: the next call is by a descriptor with O_NOATIME.
    pub noatime: bool,
    /// Of a mount whose opens are implicit.
    pub implicit: Option<Implicit>,
}

impl Own {
    /// Refuses a verb beyond the session's limits: one more open file.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    #[inline]
    pub fn may_begin(&mut self, verb: Concerns) -> Result<()> {
        if verb.opens { self.check_room() } else { Ok(()) }
    }

    /// Refuses one more open file, if it is one too many: for the session `EMFILE`, for its user
    /// `ENFILE`.
    pub fn check_room(&mut self) -> Result<()> {
        let count = self.handles.len() + self.held.len();
        if count >= self.access.limits.open_files {
            return Err(Errno::EMFILE);
        }
        self.opens.iter_mut().try_for_each(|room| room.have(count + 1)).map_err(|_| Errno::ENFILE)
    }

    /// A file has been closed.
    pub fn closed(&mut self) {
        let count = self.handles.len() + self.held.len();
        self.opens.iter_mut().for_each(|room| room.keep(count));
    }

    /// Refuses a session that may only look.
    #[inline]
    pub fn may_change(&self) -> Result<()> {
        if self.access.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Takes note of an open file.
    pub fn opened(&mut self, open: Open) -> Handle {
        self.inodes.opened(open.ino);
        self.handles.insert(open)
    }

    /// Whether a read by `open` counts as an access. A kernel says with each read whether it does,
    /// since O_NOATIME can be changed; other clients say so when they open.
    #[inline]
    pub fn counts(&self, open: &Open) -> bool {
        let without_trace = match self.cache {
            Some(_) => self.noatime,
            None => open.flags.is_some_and(|flags| flags.contains(OpenFlags::NOATIME)),
        };
        !without_trace && !self.access.read_only
    }

    /// The View, if the client itself may see the entries that a caller with `cx` may see.
    #[inline]
    pub fn view_of(&self, cx: &Context) -> Option<ViewId> {
        let checked = self.access.identity == Identity::Checked;
        let own = (self.peer.uid, self.peer.gid);
        self.view.filter(|_| checked || (cx.uid, cx.gid) == own)
    }

    /// Drops from the session's View what it may not name any more, now that it was given something
    /// else, and has the file system forget that it was given.
    #[inline]
    pub fn drop_forgotten(&mut self, fs: &mut impl FileSystem, views: &mut Views) {
        while let Some((ino, count)) = self.inodes.forgotten() {
            views.forgotten(self.view, ino);
            if count > 0 {
                fs.forget(ino, count);
            }
        }
    }

    /// Whether the client is a virtual machine that takes notices at any time.
    pub fn hears_always(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.hears_always())
    }

    /// Takes note that the client, if it is a kernel, is given `ino` once more, to keep its
    /// attributes if `lend`.
    #[inline]
    pub fn lend_entry(&mut self, ino: Ino, lend: bool) {
        if let Some(cache) = &self.cache {
            let valid = cache.given(ino, lend);
            self.lent = Some(Lent { ino, entry: true, valid, named: false });
        }
    }

    /// The same by its name in a directory, which the client may keep too.
    #[inline]
    pub fn lend_name(&mut self, dir: Ino, name: Name<'_>, ino: Ino, lend: bool) {
        if let Some(cache) = &self.cache {
            let valid = cache.given(ino, lend);
            let named = cache.named(dir, name.bytes(), ino);
            self.lent = Some(Lent { ino, entry: true, valid, named });
        }
    }

    /// Takes note that the client, if it is a kernel, is given the attributes of `ino`.
    #[inline]
    pub fn lend_attributes(&mut self, ino: Ino) {
        if let Some(cache) = &self.cache {
            self.lent = Some(Lent { ino, entry: false, valid: cache.shown(ino), named: false });
        }
    }
}
