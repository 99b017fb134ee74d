//! The work of a session before a sync.

use atoll_vfs::{Context, FileSystem, Ino, Result};

use crate::session::Session;
use crate::session::concerns::LOOK;
use crate::syncs::queue::Ask;

impl<F: FileSystem + Send> Session<F> {
    /// Does everything that `ask` takes but the sync itself, for `Volume::sync_later`. Returns
    /// whether timestamps may be left behind.
    ///
    /// # Errors
    /// Those of [`FileSystem::fsync`] and of writing back what was stored into mappings.
    pub fn prepare_sync(&mut self, cx: &Context, ino: Ino, ask: Ask) -> Result<bool> {
        match ask {
            Ask::File { handle, data_only } => {
                let open = self.file(ino, handle)?;
                self.volume.write_back_file(open.ino, cx.now)?;
                self.call_by(cx, LOOK, &open, |_| Ok(data_only))
            }
            Ask::Directory(handle) => self.listing(ino, handle).map(|_| false),
            Ask::All => {
                self.volume.write_back(cx.now)?;
                // The stores written back may be of any file.
                self.enter(cx, LOOK).map(|_| false)
            }
        }
    }
}
