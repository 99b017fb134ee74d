//! The storage of volumes on a host: files and block devices as devices of the block seam.
//!
//! Read in this order: [`open()`] and its options; [`FileDevice`], pread64 and pwrite64; then
//! [`MappedDevice`], a mapping, whose copies survive SIGBUS; `claims`, which
//! keep others away; `life`, which says whether what was
//! stored and not flushed is still there.

mod ahead;
mod blank;
mod claims;
mod dirty;
mod error;
mod file;
#[cfg_attr(not(target_arch = "x86_64"), path = "device/unguarded.rs")]
mod guarded;
mod io;
pub(crate) mod ioctls;
mod lengthened;
mod life;
mod mapped;
pub(crate) mod mapping;
mod naming;
mod open;
mod openings;
mod owner;
mod past_cache;
mod reserve;
mod shortage;
mod writeback;

pub use blank::is_blank;
pub use error::OpenError;
pub use file::FileDevice;
pub use mapped::MappedDevice;
pub use naming::NewFile;
pub use open::{Access, Create, OpenOptions, open};
pub use owner::{living_owner, owner};

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use atoll_block::{BLOCK_SIZE, Cached, memory_of_variants};

/// A volume's storage as [`open()`] returns it.
#[derive(Debug)]
pub enum HostDevice {
    /// Mapped into memory.
    Mapped(MappedDevice),
    /// By positioned reads and writes, through a cache.
    Direct(Box<Cached<FileDevice>>),
}

memory_of_variants!(HostDevice { Mapped, Direct });

impl HostDevice {
    /// Names the life of the memory that holds what was stored here and not flushed. While it is
    /// the same, nothing that any process stored has been lost: not by a crash of the machine, nor
    /// by that of the host's file system, nor by a disk that was taken away. Zeros where that
    /// cannot be known.
    pub fn incarnation(&self) -> [u8; 16] {
        life::incarnation(self.file())
    }

    /// The storage, whose claims on it last as long as any copy of this is open: for a process that
    /// uses the storage on behalf of this one, and may outlive it.
    pub fn claim(&self) -> BorrowedFd<'_> {
        self.file().as_fd()
    }

    /// Lets others have the storage, also while a process that was forked since it was opened has
    /// copies of the descriptor or the mapping. It is not to be changed any more.
    pub fn unlock(&self) {
        // Closing does the same if this is the last copy.
        let _ = rustix::fs::flock(self.file(), rustix::fs::FlockOperation::Unlock);
    }

    /// Whether discards give storage back at little cost: it is a file, in a file system that can
    /// have holes made in it, open for writing, and not to be sealed.
    pub fn gives_back(&self) -> bool {
        let sealable = match self {
            HostDevice::Mapped(device) => device.is_sealable(),
            HostDevice::Direct(device) => device.device().is_sealable(),
        };
        let Ok(found) = self.file().metadata() else { return false };
        if sealable || !found.is_file() {
            return false;
        }
        // Beyond the end of the file there is nothing to lose. The bytes behind its last whole
        // block are no part of the device, but the file's all the same.
        let end = found.len().next_multiple_of(BLOCK_SIZE as u64);
        io::punch_hole(self.file().as_fd(), end, BLOCK_SIZE as u64) == Ok(true)
    }

    /// Closes the device of which nothing is to become: a file that was made longer for it
    /// ([`OpenOptions::blocks`]) is as long as [`open()`] found it. Nothing may count on what lies
    /// beyond.
    pub fn close_as_found(self) {
        let lengthened = match &self {
            HostDevice::Mapped(device) => device.lengthened(),
            HostDevice::Direct(device) => device.device().lengthened(),
        };
        // While the claims on the file are held.
        if let Some(lengthened) = lengthened {
            lengthened.undo();
        }
    }

    /// Gives back the memory of this process in which the storage has been looked at so far. All
    /// of it stays in the host's cache.
    pub fn unmap_pages(&self) {
        if let HostDevice::Mapped(device) = self {
            device.unmap_pages();
        }
    }

    fn file(&self) -> &File {
        match self {
            HostDevice::Mapped(device) => device.file(),
            HostDevice::Direct(device) => device.device().file(),
        }
    }
}
