//! Servers that are made for kernels, and count on what a kernel does by itself.

use alloc::collections::BTreeMap;

use atoll_transport::Transport;

use super::Client;
use crate::errno::{Errno, Result};
use crate::filesystem::FileSystem;
use crate::types::*;
use crate::wire::Request;

/// A directory that a server for kernels has given.
#[derive(Debug)]
struct Dir {
    parent: Ino,
    /// How often the server gave it, and how often the caller has it.
    server: u64,
    caller: u64,
    /// How many others have it for their parent.
    children: usize,
}

/// The directories that the caller knows, and those above them.
///
/// A kernel knows by itself what `..` is, and never asks: what servers made for kernels answer is
/// the directory itself (virtiofsd in Rust), or the root by another number (that in C).
#[derive(Debug, Default)]
pub(super) struct Tree {
    dirs: BTreeMap<Ino, Dir>,
}

impl Tree {
    fn adopt(&mut self, parent: Ino) {
        if let Some(parent) = self.dirs.get_mut(&parent) {
            parent.children += 1;
        }
    }

    fn leave(&mut self, parent: Ino) {
        if let Some(parent) = self.dirs.get_mut(&parent) {
            parent.children = parent.children.saturating_sub(1);
        }
    }

    /// The parent of a directory that is known.
    pub(super) fn parent(&self, ino: Ino) -> Option<Ino> {
        self.dirs.get(&ino).map(|dir| dir.parent)
    }

    /// Whether `ino` is `top`, or lies below it.
    fn is_below(&self, ino: Ino, top: Ino) -> bool {
        let mut at = ino;
        // It ends: no directory has ever been put below itself.
        while at != top {
            let Some(dir) = self.dirs.get(&at) else { return false };
            at = dir.parent;
        }
        true
    }

    /// The server gave `ino`, by a name in `parent`.
    pub(super) fn given(&mut self, parent: Ino, ino: Ino) {
        // Below itself it is where it was: others are moving it, or the server lies.
        let parent = match self.dirs.get(&ino) {
            _ if !self.is_below(parent, ino) => parent,
            Some(dir) => dir.parent,
            None => Ino::ROOT,
        };
        let before = match self.dirs.get_mut(&ino) {
            Some(dir) => {
                dir.server = dir.server.saturating_add(1);
                dir.caller = dir.caller.saturating_add(1);
                Some(core::mem::replace(&mut dir.parent, parent))
            }
            None => {
                let dir = Dir { parent, server: 1, caller: 1, children: 0 };
                self.dirs.insert(ino, dir);
                None
            }
        };
        if before != Some(parent) {
            self.adopt(parent);
            if let Some(before) = before {
                self.leave(before);
            }
        }
    }

    /// Removes a directory that nobody needs: how often the server gave it, and its parent.
    fn remove_unused(&mut self, ino: Ino) -> Option<(u64, Ino)> {
        let dir = self.dirs.get(&ino).filter(|dir| dir.caller == 0 && dir.children == 0)?;
        let (server, parent) = (dir.server, dir.parent);
        self.dirs.remove(&ino);
        self.leave(parent);
        Some((server, parent))
    }
}

impl<T: Transport> Client<T> {
    /// Whether the server knows none of the extensions, and so is made for kernels. Those look a
    /// name up before they use it, and such servers count on that.
    pub(super) fn is_for_kernels(&self) -> bool {
        self.agreed.is_empty()
    }

    /// Says that a name is missing where a server for kernels has failed by that.
    pub(super) fn or_missing(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        done: Result<()>,
    ) -> Result<()> {
        if done != Err(Errno::EIO) || !self.is_for_kernels() {
            return done;
        }
        match self.lookup(cx, parent, name) {
            Err(Errno::ENOENT) => return Err(Errno::ENOENT),
            Ok(attr) => self.forget(attr.ino, 1),
            Err(_) => {}
        }
        done
    }

    /// Looks `.` or `..` up where the server is made for kernels.
    pub(super) fn lookup_dots(&mut self, cx: &Context, dir: Ino, name: Name<'_>) -> Result<Attr> {
        let found = match self.tree.parent(dir) {
            Some(parent) if name.bytes() == b".." => {
                // One that was removed is stale itself, though its parent is not.
                self.getattr(cx, dir)?;
                parent
            }
            Some(_) => dir,
            None if dir == Ino::ROOT => dir,
            // It is no directory.
            None => return self.entry(cx, dir, &Request::Lookup { name }, 0),
        };
        let attr = self.getattr(cx, found)?;
        if let Some(known) = self.tree.dirs.get_mut(&found) {
            known.caller = known.caller.saturating_add(1);
        }
        Ok(attr)
    }

    /// Takes note of a directory that the server gave by a name in `parent`.
    pub(super) fn note(&mut self, parent: Ino, answer: Result<Attr>) -> Result<Attr> {
        if let Ok(attr) = &answer
            && attr.is_dir()
            && attr.ino != Ino::ROOT
            && self.is_for_kernels()
        {
            self.tree.given(parent, attr.ino);
        }
        answer
    }

    /// Takes note of what was moved to `name` in `parent`, if it is a directory.
    pub(super) fn moved(&mut self, cx: &Context, parent: Ino, name: Name<'_>) {
        if self.is_for_kernels()
            && let Ok(attr) = self.lookup(cx, parent, name)
        {
            self.forget(attr.ino, 1);
        }
    }

    /// The caller forgets `ino`: the server is told when that is no longer needed here either.
    pub(super) fn forget_known(&mut self, ino: Ino, count: u64) {
        let Some(known) = self.tree.dirs.get_mut(&ino) else {
            return self.forget_later(ino, count);
        };
        known.caller = known.caller.saturating_sub(count);
        let mut next = ino;
        while let Some((server, parent)) = self.tree.remove_unused(next) {
            self.forget_later(next, server);
            next = parent;
        }
    }

    /// Opens what `create` has found by a name.
    pub(super) fn open_found(
        &mut self,
        cx: &Context,
        attr: Attr,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        match attr.file_type() {
            FileType::Symlink => return Err(Errno::ELOOP),
            FileType::Directory => return Err(Errno::EISDIR),
            _ => {}
        }
        let handle = self.open(cx, attr.ino, flags)?;
        if !flags.contains(OpenFlags::TRUNC) {
            return Ok((attr, handle));
        }
        match self.getattr(cx, attr.ino) {
            Ok(emptied) => Ok((emptied, handle)),
            Err(error) => {
                let _ = self.release(cx, attr.ino, handle);
                Err(error)
            }
        }
    }
}
