//! The work of a session before a sync.

use atoll_vfs::{Context, FileSystem, Handle, Ino, Result};

use crate::mapped::write_back::Stores;
use crate::session::Session;
use crate::session::concerns::LOOK;
use crate::syncs::queue::{Ask, Wanted};

impl<F: FileSystem + Send> Session<F> {
    /// Does everything that `ask` takes but the sync itself. Returns the sync that is left.
    ///
    /// # Errors
    /// Those of [`FileSystem::fsync`] and of writing back what was stored into mappings; `EAGAIN`
    /// when a part of that was done.
    pub(crate) fn prepare_sync(&mut self, cx: &Context, ino: Ino, ask: Ask) -> Result<Wanted> {
        match ask {
            Ask::File { handle, data_only } => {
                let open = self.file(ino, handle)?;
                self.write_back_stores(cx, Stores::Of(open.ino))?;
                self.call_by(cx, LOOK, &open, |_| Ok(Wanted::of(&open, data_only)))
            }
            Ask::Directory(handle) => {
                self.listing(ino, handle).map(|open| Wanted::of(&open, false))
            }
            Ask::All => {
                self.write_back_stores(cx, Stores::All)?;
                // The stores written back may be of any file.
                self.enter(cx, LOOK).map(|_| Wanted { data_only: false, one: None })
            }
        }
    }

    /// The sync of a file that the client has open.
    ///
    /// # Errors
    /// `EBADF`, `ESTALE`.
    pub(crate) fn sync_of(&mut self, ino: Ino, handle: Handle, data_only: bool) -> Result<Wanted> {
        self.file(ino, handle).map(|open| Wanted::of(&open, data_only))
    }
}
