//! Memory of a process that is a guest: each piece is a memfd of its own.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_transport::Memory;
use atoll_virtio::{Platform, Region};
use vhost::VhostUserMemoryRegionInfo;

use crate::shm::SharedMemory;

/// The guest's first address: the one at 0 is left out, since some take it for none.
const FIRST: u64 = 0x10_0000;
/// The same for the front end.
const USER: u64 = 0x7f00_0000_0000;
/// The most pieces, as many as any device takes.
const PIECES: usize = 8;

/// The front end's address of what the guest has at `address`.
pub(super) fn user_address(address: u64) -> u64 {
    USER + address
}

/// The memory that is shared with a device. Clones mean the same.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    pieces: Arc<Mutex<Vec<(u64, SharedMemory)>>>,
}

impl Shares {
    /// Calls `take` with all that there is, in the words of vhost-user.
    pub(super) fn with_regions<R>(
        &self,
        take: impl FnOnce(&[VhostUserMemoryRegionInfo]) -> R,
    ) -> R {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let region = |(address, memory): &(u64, SharedMemory)| VhostUserMemoryRegionInfo {
            guest_phys_addr: *address,
            memory_size: memory.len() as u64,
            userspace_addr: user_address(*address),
            mmap_offset: 0,
            mmap_handle: memory.as_fd().as_raw_fd(),
        };
        take(&pieces.iter().map(region).collect::<Vec<_>>())
    }
}

impl Platform for Shares {
    type Memory = SharedMemory;

    fn share(&mut self, len: usize) -> Option<Region<SharedMemory>> {
        let len = len.checked_next_multiple_of(4096)?;
        let memory = SharedMemory::create("virtio", len).ok()?;
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if pieces.len() == PIECES {
            return None;
        }
        let end = |(address, memory): &(u64, SharedMemory)| address + memory.len() as u64;
        let address = pieces.last().map_or(FIRST, end);
        pieces.push((address, memory.clone()));
        Some(Region::new(memory, address))
    }
}
