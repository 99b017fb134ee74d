//! Who is told of changes.
//!
//! Nothing is looked up, allocated or called for the sake of observers while a volume has none.

use atoll_vfs::Ino;

use crate::rights::identity::SessionId;

/// What a call has changed. Inode numbers are the volume's own, whatever a session's subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Attributes of the inode: mode, owner, times, links, extended attributes; after a
    /// [`Change::Data`] its size.
    Attributes(Ino),
    /// The content of a file from `offset` for `len` bytes (`u64::MAX`: to the end, wherever it was
    /// or is). An [`Change::Attributes`] follows.
    Data {
        /// The file.
        ino: Ino,
        /// The first byte.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// What `name` stands for in the directory `parent`, existence included. The attributes of the
    /// directory and of the inodes concerned follow.
    Entry {
        /// The directory.
        parent: Ino,
        /// The name.
        name: &'a [u8],
    },
    /// The inode exists no more; its number is never used again.
    Gone(Ino),
}

/// Is told of every change before the call that made it returns to its client.
pub trait Observer: Send + Sync {
    /// `by` has made `change`. Called with the volume locked: it must not call the volume or a
    /// session, nor wait for one who might.
    fn changed(&self, by: SessionId, change: &Change<'_>);
}

/// Names an observer, to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObserverId(pub(crate) u64);
