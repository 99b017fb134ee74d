//! The storage of volumes on a host: files and block devices as devices of the block seam.
//!
//! Read in this order: [`open()`] and its options; [`FileDevice`], pread64 and pwrite64; then
//! [`MappedDevice`], a mapping, whose copies survive SIGBUS;
//! [`GuestDisk`], which another process offers; `claims`, which
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
mod guest_disk;
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
mod sender;
mod shortage;
mod writeback;

pub use blank::is_blank;
pub use error::OpenError;
pub use file::FileDevice;
pub use guest_disk::GuestDisk;
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
    /// By a back end of vhost-user-blk, through a cache.
    Guest(Box<Cached<GuestDisk>>),
}

memory_of_variants!(HostDevice { Mapped, Direct, Guest });

impl HostDevice {
    /// Names the life of the memory that holds what was stored here and not flushed. While it is
    /// the same, nothing that any process stored has been lost: not by a crash of the machine, nor
    /// by that of the host's file system, nor by a disk that was taken away. Zeros where that
    /// cannot be known.
    pub fn incarnation(&self) -> [u8; 16] {
        match self.kind() {
            Kind::File(file) => life::incarnation(file),
            Kind::Guest(disk) => disk.incarnation(),
        }
    }

    /// The storage, whose claims on it last as long as any copy of this is open: for a process that
    /// uses the storage on behalf of this one, and may outlive it.
    pub fn claim(&self) -> BorrowedFd<'_> {
        match self.kind() {
            Kind::File(file) => file.as_fd(),
            Kind::Guest(disk) => disk.claim(),
        }
    }

    /// Lets others have the storage, also while a process that was forked since it was opened has
    /// copies of the descriptor or the mapping. It is not to be changed any more.
    pub fn unlock(&self) {
        // Closing does the same if this is the last copy.
        match self.kind() {
            Kind::File(file) => {
                let _ = rustix::fs::flock(file, rustix::fs::FlockOperation::Unlock);
            }
            Kind::Guest(disk) => disk.release(),
        }
    }

    /// Whether discards give storage back at little cost: it is a file, in a file system that can
    /// have holes made in it, open for writing, and not to be sealed; or a back end that offers it.
    pub fn gives_back(&self) -> bool {
        let sealable = match self {
            HostDevice::Mapped(device) => device.is_sealable(),
            HostDevice::Direct(device) => device.device().is_sealable(),
            HostDevice::Guest(device) => return device.device().gives_back(),
        };
        let Kind::File(file) = self.kind() else { return false };
        let Ok(found) = file.metadata() else { return false };
        if sealable || !found.is_file() {
            return false;
        }
        // Beyond the end of the file there is nothing to lose. The bytes behind its last whole
        // block are no part of the device, but the file's all the same.
        let end = found.len().next_multiple_of(BLOCK_SIZE as u64);
        io::punch_hole(file.as_fd(), end, BLOCK_SIZE as u64) == Ok(true)
    }

    /// Closes the device of which nothing is to become: a file that was made longer for it
    /// ([`OpenOptions::blocks`]) is as long as [`open()`] found it. Nothing may count on what lies
    /// beyond.
    pub fn close_as_found(self) {
        let lengthened = match &self {
            HostDevice::Mapped(device) => device.lengthened(),
            HostDevice::Direct(device) => device.device().lengthened(),
            HostDevice::Guest(_) => None,
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

    fn kind(&self) -> Kind<'_> {
        match self {
            HostDevice::Mapped(device) => Kind::File(device.file()),
            HostDevice::Direct(device) => Kind::File(device.device().file()),
            HostDevice::Guest(device) => Kind::Guest(device.device()),
        }
    }
}

/// What a device is made of.
enum Kind<'a> {
    /// A file or block device.
    File(&'a File),
    /// Another process.
    Guest(&'a GuestDisk),
}
