//! The table of implicit opens, of what a kernel uses without having opened it.

use std::collections::{HashMap, VecDeque};

use atoll_vfs::{Handle, Ino};

/// The most files and directories with a name that are open here at a time.
pub(crate) const NAMED_MAX: usize = if cfg!(test) { 4 } else { 16_384 };

/// What the kernel of a session knows, and what is open of it, by the client's numbers.
#[derive(Debug, Default)]
pub(crate) struct Implicit {
    /// How often the kernel was given each inode since it last forgot it.
    known: HashMap<Ino, u64>,
    /// Files, if true, and directories that have a name.
    named: HashMap<Ino, (Handle, bool)>,
    /// These, the oldest first. Those that were closed since are passed over.
    order: VecDeque<Ino>,
    /// Those that have none: only the handle keeps them.
    removed: HashMap<Ino, (Handle, bool)>,
}

impl Implicit {
    /// The kernel is given `ino` once more.
    pub fn given(&mut self, ino: Ino) {
        let count = self.known.entry(ino).or_default();
        *count = count.saturating_add(1);
    }

    /// Whether the kernel knows `ino`.
    pub fn knows(&self, ino: Ino) -> bool {
        self.known.contains_key(&ino)
    }

    /// The kernel forgets `ino` so many times. Returns what is to be closed.
    pub fn forgets(&mut self, ino: Ino, count: u64) -> Option<(Handle, bool)> {
        let left = self.known.get_mut(&ino)?;
        *left = left.saturating_sub(count);
        if *left > 0 {
            return None;
        }
        self.known.remove(&ino);
        self.named.remove(&ino).or_else(|| self.removed.remove(&ino))
    }

    /// The handle that is open of `ino`.
    pub fn handle(&self, ino: Ino) -> Option<Handle> {
        self.named.get(&ino).or_else(|| self.removed.get(&ino)).map(|&(handle, _)| handle)
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
        self.named.remove(&oldest).map(|(handle, file)| (oldest, handle, file))
    }

    /// The last name of `ino` goes. Returns whether something is open that keeps it.
    pub fn is_removed(&mut self, ino: Ino) -> bool {
        if let Some(open) = self.named.remove(&ino) {
            self.removed.insert(ino, open);
        }
        self.removed.contains_key(&ino)
    }

    /// Keeps `handle` of `ino`, which has no name.
    pub fn keep_removed(&mut self, ino: Ino, handle: Handle, file: bool) {
        self.removed.insert(ino, (handle, file));
    }

    /// Whether anything is kept that has no name.
    pub fn has_removed(&self) -> bool {
        !self.removed.is_empty()
    }
}
