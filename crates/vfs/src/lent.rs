//! What an answer says of how long it may be relied on.

use core::time::Duration;

use crate::errno::Result;
use crate::filesystem::FileSystem;
use crate::types::{Context, Handle, Ino};

/// Whether the pages of an open file may be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// No.
    #[default]
    Direct,
    /// Yes, but none that were kept before it was opened.
    Fresh,
    /// Yes.
    Kept,
}

/// For how long the answer of the last call holds, if it was one request. Nobody says for how long
/// an error does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// That a name stands for an inode.
    pub name: Duration,
    /// Attributes.
    pub attributes: Duration,
    /// What was opened.
    pub pages: Pages,
}

/// A file system whose answers may be kept.
pub trait Lends: FileSystem {
    /// What the last call's answer said.
    fn lent(&self) -> Lent;

    /// Reads for what is kept: the server has to know that.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    fn read_to_keep(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize>;
}
