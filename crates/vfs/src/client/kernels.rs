//! Servers that are made for kernels, and count on what a kernel does by itself.

use atoll_transport::Transport;

use super::Client;
use crate::errno::{Errno, Result};
use crate::filesystem::FileSystem;
use crate::lent::Lent;
use crate::types::*;
use crate::wire::attributes::{AttrOut, EntryOut};
use crate::wire::{Fixed, Request};

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

    /// Looks `.` or `..` up at a server for kernels, which know both by themselves: such servers
    /// give the root by another number then, by which no caller would know it.
    pub(super) fn lookup_dots(&mut self, cx: &Context, dir: Ino, name: Name<'_>) -> Result<Attr> {
        let found = self.entry(cx, dir, &Request::Lookup { name }, 0)?;
        if found.ino == Ino::ROOT {
            return Ok(found);
        }
        let shown = EntryOut::load(self.body()).attr.ino;
        let root = self.getattr(cx, Ino::ROOT);
        let is_root = root.is_ok_and(|root| {
            let known = Attr { ino: Ino::ROOT, atime: root.atime, ..found };
            AttrOut::load(self.body()).attr.ino == shown && root == known
        });
        if is_root || root.is_err() {
            self.forget(found.ino, 1);
            return root;
        }
        // Said of the root.
        self.lent = Lent::default();
        Ok(found)
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
