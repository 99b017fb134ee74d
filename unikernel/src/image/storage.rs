//! What a volume of the image is stored on.

use atoll_block::{Cached, RamDevice, memory_of_variants};

use crate::virtio::VirtioDisk;

/// The storage of a volume.
// There are few, and all are used all the time: no box.
#[allow(clippy::large_enum_variant)]
pub enum Storage {
    /// Memory of this machine.
    Memory(RamDevice<&'static mut [u8]>),
    /// A disk, behind a cache.
    Disk(Cached<VirtioDisk>),
}

memory_of_variants!(Storage { Memory, Disk });
