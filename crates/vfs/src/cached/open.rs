//! Which handles are open with the right to read.

use alloc::boxed::Box;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::types::{Handle, Ino};

/// Handles that are remembered: those beyond are read through the server.
const SLOTS: usize = 4096;

/// A handle's place, by the low bits of its number, in which servers count their open files.
#[derive(Default)]
struct Slot {
    /// 0: none. Written last.
    ino: AtomicU64,
    handle: AtomicU64,
}

/// Open files of a program, shared by its threads, of fixed size. A handle may be missing, if
/// another has its place; it is then not read from the View.
pub struct OpenFiles {
    slots: Box<[Slot]>,
}

impl fmt::Debug for OpenFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFiles").finish_non_exhaustive()
    }
}

impl Default for OpenFiles {
    fn default() -> Self {
        OpenFiles { slots: (0..SLOTS).map(|_| Slot::default()).collect() }
    }
}

impl OpenFiles {
    #[inline]
    fn slot(&self, handle: Handle) -> &Slot {
        &self.slots[handle.0 as usize % SLOTS]
    }

    /// `handle` of `ino` is open for reading.
    pub(super) fn insert(&self, ino: Ino, handle: Handle) {
        let slot = self.slot(handle);
        slot.ino.store(0, Ordering::Relaxed);
        slot.handle.store(handle.0, Ordering::Release);
        slot.ino.store(ino.0, Ordering::Release);
    }

    /// `handle` is about to be closed.
    pub(super) fn remove(&self, ino: Ino, handle: Handle) {
        if self.contains(ino, handle) {
            self.slot(handle).ino.store(0, Ordering::Relaxed);
        }
    }

    /// Whether `handle` of `ino` is known to be open for reading. Threads that use a handle while
    /// others close it, or others put theirs in its place, may be told no.
    #[inline]
    pub(super) fn contains(&self, ino: Ino, handle: Handle) -> bool {
        let slot = self.slot(handle);
        // The number of a handle is not used twice, so that the two belong together, but for a
        // caller who takes the handle that is just being put here for one of the inode that was
        // here before.
        slot.ino.load(Ordering::Acquire) == ino.0 && slot.handle.load(Ordering::Relaxed) == handle.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_known_while_they_are_open() {
        let open = OpenFiles::default();
        let (ino, handle) = (Ino(7), Handle(1 << 32 | 3));
        assert!(!open.contains(ino, handle));
        open.insert(ino, handle);
        assert!(open.contains(ino, handle) && !open.contains(Ino(8), handle));
        // Another in the same place.
        let next = Handle(2 << 32 | 3);
        assert!(!open.contains(ino, next));
        open.insert(Ino(9), next);
        assert!(open.contains(Ino(9), next) && !open.contains(ino, handle));
        open.remove(ino, handle);
        assert!(open.contains(Ino(9), next));
        open.remove(Ino(9), next);
        assert!(!open.contains(Ino(9), next));
    }
}
