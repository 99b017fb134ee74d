//! The changes that a call tells of, and the data that its client is given: numbers of inodes,
//! records of its View, and, if it is a kernel, leases.

use atoll_vfs::{Attr, FileSystem, Handle, Ino, Name, OpenFlags, Result};

use crate::guarded::Guarded;
use crate::leases::observer::{Change, Content};
use crate::open::handles::Open;
use crate::session::call::Call;

impl<F: FileSystem> Call<'_, F> {
    /// Tells of a change that this call has made.
    #[inline]
    pub fn tell(&mut self, change: Change<'_>) {
        self.state.tell(self.own.id, change);
    }

    /// Tells of a change of content, and ends the mappings in which it could not be made.
    #[inline]
    pub fn tell_content(&mut self, content: Content<'_>) {
        self.state.tell_content(&self.cx, self.own.id, content);
    }

    /// As `Guarded::size_before`, for a change that stores nothing but zeros, up to `end`.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn size_before(&mut self, ino: Ino, end: u64) -> Result<Option<u64>> {
        self.state.size_before(&self.cx, self.own.id, ino, 0..0, end)
    }

    /// Tells of a name that came, went or changed in a directory.
    #[inline]
    pub fn tell_entry(&mut self, parent: Ino, name: Name<'_>) {
        self.tell(Change::Entry { parent, name: name.bytes() });
    }

    /// Tells that the link count of `ino` fell, by which it may be gone.
    pub fn tell_unlinked(&mut self, ino: Ino) {
        if !self.state.tell_gone(&self.cx, self.own.id, ino) {
            self.tell(Change::Attributes(ino));
        }
    }

    /// Shows a directory that has just changed to the session that changed it, and most likely goes
    /// on in it.
    pub fn show_again(&mut self, dir: Ino) {
        // The attributes tell of the call's other changes too, whose notices must be done.
        if self.own.view.is_some()
            && self.state.gate.is_open()
            && let Ok(attr) = self.state.fs.getattr(&self.cx, dir)
        {
            self.state.views.found(self.own.view, &attr);
        }
    }

    /// Gives the client the attributes of an inode that it may name. Returns them as the client
    /// sees them.
    #[inline]
    pub fn shown(&mut self, attr: Attr) -> Attr {
        let Call { state, own, .. } = self;
        state.views.found(own.view, &attr);
        own.lend_attributes(attr.ino);
        own.inodes.shown(attr)
    }

    /// The client may name `ino`, a directory or not, once more, which the file system has given it
    /// once more.
    ///
    /// # Errors
    /// `ENFILE` when every inode that the session can remember is open, which the limits rule out.
    #[inline]
    pub fn give(&mut self, ino: Ino, is_dir: bool) -> Result<()> {
        let Guarded { fs, views, moves, .. } = &mut *self.state;
        let given = self.own.inodes.give(ino, is_dir, *moves);
        self.own.drop_forgotten(fs, views);
        if given.is_err() {
            fs.forget(ino, 1);
        }
        given
    }

    /// The same for a file that has just been opened by the file system's `handle`, which is closed
    /// on an error.
    ///
    /// # Errors
    /// As [`give`](Self::give).
    pub fn give_open(&mut self, ino: Ino, handle: Handle, flags: OpenFlags) -> Result<()> {
        let given = self.give(ino, false);
        if given.is_err() {
            let open = Open { ino, handle, flags: Some(flags) };
            let _ = self.state.close(&self.cx, (self.own.id, self.own.peer.uid), &open);
        }
        given
    }

    /// Gives the client, which may name it, the inode that `name` is in `dir`, to keep its
    /// attributes if `lend`, and the name. Returns the attributes as the client sees them.
    #[inline]
    pub fn entry(&mut self, dir: Ino, name: Name<'_>, attr: Attr, lend: bool) -> Attr {
        let Call { state, cx, own, .. } = self;
        state.views.found_entry(own.view_of(cx), dir, name, &attr);
        own.lend_name(dir, name, attr.ino, lend);
        own.inodes.shown(attr)
    }

    /// Both: gives the client the inode that `name` is in `dir`, to name and to keep its
    /// attributes.
    ///
    /// # Errors
    /// As [`give`](Self::give).
    #[inline]
    pub fn given(&mut self, dir: Ino, name: Name<'_>, attr: Attr) -> Result<Attr> {
        self.give(attr.ino, attr.is_dir())?;
        Ok(self.entry(dir, name, attr, true))
    }

    /// The session has a file open, by the file system's `handle`: its View may show the file if it
    /// may be read.
    pub fn opened(&mut self, ino: Ino, handle: Handle, flags: OpenFlags) -> Open {
        let open = Open { ino, handle, flags: Some(flags) };
        self.state.begin_reading(self.own.view, &open);
        open
    }
}
