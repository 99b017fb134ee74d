//! The table of implicit opens, of what a kernel uses without having opened it.

use std::collections::{HashMap, VecDeque};

use atoll_vfs::{Handle, Ino};

/// The most files and directories with a name that are open here at a time.
pub(crate) const NAMED_MAX: usize = if cfg!(test) { 4 } else { 16_384 };

/// What is open of inodes that have a name, by the volume's numbers.
#[derive(Debug, Default)]
pub(crate) struct Implicit {
    /// Files, if true, and directories.
    named: HashMap<Ino, (Handle, bool)>,
    /// These, the oldest first. Those that were closed since are passed over.
    order: VecDeque<Ino>,
}

impl Implicit {
    /// The handle that is open of `ino`.
    pub fn handle(&self, ino: Ino) -> Option<Handle> {
        self.named.get(&ino).map(|&(handle, _)| handle)
    }

    /// Keeps `handle` of `ino`, of which none is open, a file or else a directory. Returns one that
    /// is to be closed for it, with its inode.
    pub fn keep(&mut self, ino: Ino, handle: Handle, file: bool) -> Option<(Ino, Handle, bool)> {
        self.named.insert(ino, (handle, file));
        self.order.push_back(ino);
        if self.order.len() <= NAMED_MAX {
            return None;
        }
        let oldest = self.order.pop_front()?;
        self.remove(oldest).map(|(handle, file)| (oldest, handle, file))
    }

    /// Takes out what is open of `ino`.
    pub fn remove(&mut self, ino: Ino) -> Option<(Handle, bool)> {
        self.named.remove(&ino)
    }
}
