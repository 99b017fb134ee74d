//! The storage of volumes on a host: files and block devices as devices of the block seam.
//!
//! Read in this order: [`open()`] and its options; [`FileDevice`], pread64 and pwrite64; then
//! [`MappedDevice`], a mapping, whose copies survive SIGBUS.

mod ahead;
mod dirty;
mod file;
#[cfg_attr(not(target_arch = "x86_64"), path = "device/unguarded.rs")]
mod guarded;
mod io;
mod mapped;
mod mapping;
mod open;
mod reserve;
mod shortage;
mod writeback;

pub use file::FileDevice;
pub use mapped::MappedDevice;
pub use open::{Access, Create, OpenError, OpenOptions, incarnation, open};

use atoll_block::{Cached, memory_of_variants};

/// A volume's storage as [`open()`] returns it.
#[derive(Debug)]
pub enum HostDevice {
    /// Mapped into memory.
    Mapped(MappedDevice),
    /// By positioned reads and writes, through a cache.
    Direct(Box<Cached<FileDevice>>),
}

memory_of_variants!(HostDevice { Mapped, Direct });
