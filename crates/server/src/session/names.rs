//! The calls that make and remove names, one way for all.

use atoll_vfs::{Attr, Context, Errno, FileSystem, FileType, Ino, Name, Result};

use crate::guarded::Guarded;
use crate::session::enter::changing;
use crate::session::enter::{directory, enter, forgotten, lend};
use crate::session::{Lent, Session};
use crate::volume::Waits;

impl<F: FileSystem + Send> Session<F> {
    /// Refuses a session that may not change names.
    pub(crate) fn may_name(&self) -> Result<()> {
        if self.access.names_fixed { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Makes a name with `make`, which gets the mode that the caller may give.
    pub(crate) fn make(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        make: impl FnOnce(&mut F, &Context, Ino, u32) -> Result<Attr>,
    ) -> Result<Attr> {
        self.may_name()?;
        enter!(self, cx, state, caller, changing);
        let dir = directory!(self, cx, state, caller, parent);
        let above = state.may_make(cx, &caller, dir, name)?;
        caller.make(mode)?;
        let is_directory = FileType::from_mode(mode) == Some(FileType::Directory);
        let mode = match above {
            Some(above) if !is_directory => caller.new_mode(&above, mode),
            _ => mode,
        };
        let attr = make(&mut state.fs, cx, dir, mode)?;
        state.involved.add(attr.ino);
        state.tell_entry(self.id, dir, name);
        state.show_again(cx, self.view, dir);
        self.inodes.give(attr.ino, state.moves)?;
        forgotten!(self, state);
        state.views.found_entry(self.view_of(cx), dir, name, &attr);
        lend!(self, entry attr.ino, true);
        Ok(self.inodes.shown(attr))
    }

    /// What `.` is of what is no directory: the kernel of a mount so finds the inode of a file handle.
    pub(crate) fn itself(&mut self, cx: &Context, ino: Ino) -> Result<Option<Attr>> {
        let Ok(inner) = self.inodes.named(ino) else { return Ok(None) };
        enter!(self, cx, state, _caller, reading);
        state.involved.add(inner);
        let attr = state.fs.getattr(cx, inner)?;
        if attr.file_type() == FileType::Directory {
            return Ok(None);
        }
        self.inodes.give(inner, state.moves)?;
        forgotten!(self, state);
        lend!(self, entry attr.ino, true);
        Ok(Some(self.inodes.shown(attr)))
    }

    pub(crate) fn remove(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        remove: impl FnOnce(&mut F, &Context, Ino) -> Result<()>,
    ) -> Result<()> {
        self.may_name()?;
        enter!(self, cx, state, caller, changing);
        let dir = directory!(self, cx, state, caller, parent);
        let victim = state.may_remove(cx, &caller, dir, name)?;
        remove(&mut state.fs, cx, dir)?;
        if state.observed() {
            state.tell_entry(self.id, dir, name);
            if let Some(victim) = victim {
                state.tell_unlinked(cx, self.id, victim.ino);
            }
            state.show_again(cx, self.view, dir);
        }
        Ok(())
    }
}
