//! The front end's log of the pages that the device writes, and what a test has to know of them.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use vhost::vhost_user::Frontend;
use vhost::{VhostBackend, VhostUserDirtyLogRegion};

use super::{ANSWER, Guest, MEMORY, MEMORY_LEN, ROOM, SLOT, SLOTS, USED};

const F_LOG_ALL: u64 = 1 << 26;
/// Bytes of a page, by whose number pages are meant here.
pub const PAGE: u64 = 4096;

/// A log of all of the guest's memory.
#[derive(Debug)]
pub struct DirtyLog {
    file: File,
    /// Where it begins in its file, and its bytes.
    at: u64,
    len: u64,
    sealed: bool,
}

impl DirtyLog {
    /// A log that begins at `at` of its file, `less` bytes shorter than the guest's memory needs.
    ///
    /// # Panics
    /// When there is no memory.
    pub fn new(sealed: bool, at: u64, less: u64) -> DirtyLog {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("log", flags).expect("memory");
        let len = (MEMORY + MEMORY_LEN) / PAGE / 8 - less;
        rustix::fs::ftruncate(&file, at + len).expect("memory");
        if sealed {
            fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK).expect("seals");
        }
        DirtyLog { file: file.into(), at, len, sealed }
    }

    /// Whether the device can mark a page alone, and not all of a byte's.
    pub fn is_exact(&self) -> bool {
        self.sealed
    }

    /// Its file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The pages that have been marked since this was asked last. The device stands still.
    ///
    /// # Panics
    /// When the log cannot be read.
    pub fn take(&self) -> BTreeSet<u64> {
        let mut bytes = vec![0; self.len as usize];
        self.file.read_exact_at(&mut bytes, self.at).expect("the log");
        self.file.write_all_at(&vec![0; bytes.len()], self.at).expect("the log");
        let is_marked = |page: &u64| bytes[(page / 8) as usize] >> (page % 8) & 1 != 0;
        (0..self.len * 8).filter(is_marked).collect()
    }

    /// Tells `front_end`'s device where it is.
    fn tell(&self, front_end: &Frontend) -> Result<(), vhost::Error> {
        let (mmap_size, mmap_offset) = (self.len, self.at);
        let mmap_handle = self.file.as_raw_fd();
        let region = VhostUserDirtyLogRegion { mmap_size, mmap_offset, mmap_handle };
        front_end.set_log_base(0, Some(region))
    }
}

impl Guest {
    /// Has the device mark the pages that it writes in `log` from now on; those of the used rings
    /// so many bytes behind where they are, as if the guest saw them elsewhere.
    ///
    /// # Errors
    /// When the device does not.
    pub fn begin_log(&mut self, log: Option<&DirtyLog>, distance: u64) -> Result<(), vhost::Error> {
        log.map_or(Ok(()), |log| log.tell(&self.front_end))?;
        self.set_logs(Some(distance))
    }

    /// The same, no more.
    ///
    /// # Errors
    /// As [`begin_log`](Self::begin_log).
    pub fn end_log(&mut self) -> Result<(), vhost::Error> {
        self.set_logs(None)
    }

    fn set_logs(&mut self, logs: Option<u64>) -> Result<(), vhost::Error> {
        self.logs = logs;
        let features = self.setup.features() | if logs.is_some() { F_LOG_ALL } else { 0 };
        self.front_end.set_features(features)?;
        (0..self.rings.len())
            .try_for_each(|queue| self.front_end.set_vring_addr(queue, &self.parts(queue)))
    }

    /// Whether chains may lie in tables of their own.
    pub fn takes_tables(&self) -> bool {
        self.setup.indirect
    }

    /// Whether all that the driver has offered in a queue has been used. It writes nothing.
    pub fn is_all_used(&self, queue: usize) -> bool {
        self.word(self.table(queue) + USED + 2) == self.rings[queue].available
    }

    /// The pages of a queue's used ring.
    pub fn used_pages(&self, queue: usize) -> BTreeSet<u64> {
        let used = self.table(queue) + USED;
        (used / PAGE..=(used + 5 + 8 * u64::from(self.setup.size)) / PAGE).collect()
    }

    /// Fills the places of the answer of a slot with bytes that no answer has; the pages of it.
    pub fn scribble(&self, slot: u16) -> BTreeSet<u64> {
        let at = MEMORY + SLOTS + SLOT * u64::from(slot);
        let room = self.rooms.get(&slot).copied().unwrap_or(0);
        self.write(at + ANSWER, &[0xa5; PAGE as usize]);
        self.write(at + ROOM, &vec![0xa5; room]);
        let mut pages = BTreeSet::from([(at + ANSWER) / PAGE]);
        pages.extend((at + ROOM) / PAGE..(at + ROOM + room as u64).div_ceil(PAGE));
        pages
    }
}
