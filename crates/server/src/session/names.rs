//! The calls that make and remove names, one way for all.

use atoll_vfs::{Attr, Context, Errno, FileSystem, FileType, Ino, Name, Result};

use crate::leases::gate::Ticket;
use crate::session::Session;
use crate::session::concerns::{LOOK, MAKE, REMOVE};

impl<F: FileSystem + Send> Session<F> {
    /// Makes a name with `make`, which gets the mode that the caller may give.
    pub(crate) fn make(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        (mode, rdev): (u32, u32),
        make: impl FnOnce(&mut F, &Context, Ino, u32) -> Result<Attr>,
    ) -> Result<Attr> {
        let (mut call, dir, above) = self.call_in(cx, MAKE, parent)?;
        call.may_make(dir, name, above.as_ref())?;
        call.caller.make(mode, rdev)?;
        let is_directory = FileType::from_mode(mode) == Some(FileType::Directory);
        let mode = match above {
            Some(above) if !is_directory => call.caller.new_mode(&above, mode),
            _ => mode,
        };
        let attr = make(&mut call.state.fs, &call.cx, dir, mode)?;
        call.state.involved.add(attr.ino);
        call.tell_entry(dir, name);
        call.show_again(dir);
        call.given(dir, name, attr)
    }

    /// Looks `.` up in an inode that is no directory: so the kernel of a mount finds the inode of a
    /// file handle.
    pub(crate) fn itself(&mut self, cx: &Context, ino: Ino) -> Result<Option<Attr>> {
        let (mut call, inner) = match self.call_on(cx, LOOK, ino) {
            Err(Errno::ESTALE) => return Ok(None),
            begun => begun?,
        };
        let attr = call.state.fs.getattr(&call.cx, inner)?;
        if attr.file_type() == FileType::Directory {
            return Ok(None);
        }
        // The kernel is about to forget it.
        if call.own.held.contains_key(&inner) {
            return Err(Errno::ESTALE);
        }
        call.own.inodes.looked_up(inner);
        // The file system has not given it once more, so that it is not counted once more either.
        call.own.lend_entry(inner, true);
        Ok(Some(call.own.inodes.shown(attr)))
    }

    /// The regular file at the name `from` in a directory, if a rename of it to `to` replaces
    /// another one.
    pub(crate) fn replacing(
        &mut self,
        (from, name): (Ino, Name<'_>),
        (to, new_name): (Ino, Name<'_>),
    ) -> Option<Ino> {
        // The kernel has judged whoever asks.
        let cx = Context { uid: 0, gid: 0, now: self.volume.host.now() };
        let (mut call, from) = self.call_on(&cx, LOOK, from).ok()?;
        let to = call.own.inodes.named(to).ok()?;
        let moved = call.state.peek(&call.cx, from, name).ok()?;
        let replaced = call.state.peek(&call.cx, to, new_name).ok()?;
        let replaces = moved.file_type() == FileType::Regular && moved.ino != replaced.ino;
        replaces.then_some(moved.ino)
    }

    /// Has the client's kernel write back what it has of `ino`. Returns the ticket to wait for.
    pub(crate) fn has_written_back(&mut self, ino: Ino) -> Option<Ticket> {
        let cx = Context { uid: 0, gid: 0, now: self.volume.host.now() };
        let (mut call, inner) = self.call_on(&cx, LOOK, ino).ok()?;
        if let Some(cache) = &call.own.cache {
            cache.write_back(inner);
            call.state.involved.change(inner);
        }
        drop(call);
        self.take_needs()
    }

    pub(crate) fn remove(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        remove: impl FnOnce(&mut F, &Context, Ino) -> Result<()>,
    ) -> Result<()> {
        let (mut call, dir, above) = self.call_in(cx, REMOVE, parent)?;
        let victim = call.may_remove(dir, name, above.as_ref())?;
        let held = call.hold(victim.as_ref())?;
        let removed = remove(&mut call.state.fs, &call.cx, dir);
        call.removed(held, removed.is_ok());
        removed?;
        if call.state.observed() {
            call.tell_entry(dir, name);
            if let Some(victim) = victim {
                call.tell_unlinked(victim.ino);
            }
            call.show_again(dir);
        }
        Ok(())
    }
}
