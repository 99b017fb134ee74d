//! Ranges of files that a client maps by what the server hands to its machine, and not by a call of
//! its own: those in the window of a virtual machine.

use atoll_vfs::filesystem::Object;
use atoll_vfs::{Context, Errno, FileSystem, Handle, Ino, OpenFlags, Result};

use crate::mapped::MapToken;
use crate::session::Session;
use crate::session::concerns::{LOOK, OPEN};

/// What is mapped to have a range of a file.
pub enum Mappable {
    /// The memory of a mapped file, which `Volume::mapped_memory` gives for this: an offset in it
    /// is the same offset in the file.
    Memory(MapToken),
    /// An object of the file system's own ([`FileSystem::mappable`]).
    Object(Object),
}

impl<F: FileSystem + Send> Session<F> {
    /// Opens the file `ino` for its ranges: to be written too, if the session has it open so or
    /// may open it so, else to be read. Returns whether it is to be written.
    ///
    /// # Errors
    /// Those of [`FileSystem::open`] to read it.
    pub fn open_ranges(&mut self, cx: &Context, ino: Ino) -> Result<(Handle, bool)> {
        let both = OpenFlags::READ | OpenFlags::WRITE;
        match self.open_once_more(cx, ino, both) {
            Ok(handle) => Ok((handle, true)),
            Err(Errno::EACCES | Errno::EPERM | Errno::EROFS | Errno::ETXTBSY) => {
                self.open_once_more(cx, ino, OpenFlags::READ).map(|handle| (handle, false))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a file with rights that its open files have together, or that the caller has now.
    fn open_once_more(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let inner = self.own.inodes.inner(ino)?;
        let files = self.own.handles.iter().filter(|open| open.ino == inner);
        let held = files.filter_map(|open| open.flags).fold(OpenFlags::empty(), |a, b| a | b);
        if !held.contains(flags) {
            return self.open(cx, ino, flags);
        }
        let (mut call, inner) = self.call_on(cx, OPEN, ino)?;
        if flags.contains(OpenFlags::WRITE) {
            call.own.may_change()?;
        }
        let handle = call.state.fs.open(&call.cx, inner, flags)?;
        let open = call.opened(inner, handle, flags);
        drop(call);
        Ok(self.own.opened(open))
    }

    /// What is mapped to have `len` bytes of an open file from `offset` on; with `copied` nothing
    /// that others can cut short. Before the client is
    /// told, the answer waits as [`after_needs`](Self::after_needs) says.
    ///
    /// # Errors
    /// As [`map`](Self::map); of a volume `EINVAL` for a range that is in two pieces
    /// ([`PIECE`](crate::mapped::PIECE)), since each may have a memory of its own.
    pub fn map_range(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        (offset, len): (u64, u64),
        copied: bool,
    ) -> Result<Mappable> {
        if !self.volume.is_foreign() {
            let mapping = self.map_piece(cx, (ino, handle), (offset, len))?;
            // A range of one piece is in one memory.
            return Ok(Mappable::Memory(mapping.token));
        }
        let open = self.file(ino, handle)?;
        let object = self.call_by(cx, LOOK, &open, |call| {
            call.state.fs.mappable(&call.cx, open.ino, open.handle, offset, len, copied)
        });
        object.map(Mappable::Object)
    }

    /// Calls `then` when the kernels of mounts have taken what the answer to the last call waits
    /// for: at once, or later by another thread.
    pub fn after_needs(&mut self, then: impl FnOnce() + Send + 'static) {
        match self.take_needs() {
            None => then(),
            Some(ticket) => self.volume.gate().after_cut(ticket, None, then),
        }
    }
}
