//! The calls that make and remove names, one way for all.

use atoll_vfs::{Attr, Context, Errno, FileSystem, FileType, Ino, Name, Result};

use crate::session::Session;
use crate::session::concerns::{LOOK, MAKE, REMOVE};

impl<F: FileSystem + Send> Session<F> {
    /// Makes a name with `make`, which gets the mode that the caller may give.
    pub(crate) fn make(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        make: impl FnOnce(&mut F, &Context, Ino, u32) -> Result<Attr>,
    ) -> Result<Attr> {
        let (mut call, dir, above) = self.call_in(cx, MAKE, parent)?;
        call.may_make(dir, name, above.as_ref())?;
        call.caller.make(mode)?;
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
        // The file system has not given it once more, so that it is not counted once more either.
        call.own.lend_entry(inner, true);
        Ok(Some(call.own.inodes.shown(attr)))
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
        remove(&mut call.state.fs, &call.cx, dir)?;
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
