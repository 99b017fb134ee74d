//! What the drivers need of the machine, or process, that they run in.

use atoll_transport::Memory;
use atoll_transport::channel::Mapped;

use crate::lent::Lent;
use crate::queue::Part;

/// Memory that the device sees as well, in one piece for both.
#[derive(Clone, Debug)]
pub struct Region<M> {
    memory: M,
    address: u64,
}

impl<M: Memory> Region<M> {
    /// `memory`, which the device finds at `address`. It stays the device's for as long as there
    /// is a device that was told of it.
    pub fn new(memory: M, address: u64) -> Self {
        Region { memory, address }
    }

    /// The memory, by the driver's addresses.
    #[inline]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there is nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Where the device finds the first byte.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The `len` bytes at `offset`, as a part of a chain.
    ///
    /// # Panics
    /// When they are not inside: offsets are the driver's own.
    #[inline]
    pub fn part(&self, offset: usize, len: usize) -> Part {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.memory.len()));
        Part::shared(self.address.wrapping_add(offset as u64), len)
    }
}

/// The machine, or process, that a driver runs in.
pub trait Platform {
    /// How it sees memory that the device sees too.
    type Memory: Mapped;

    /// Gives `len` bytes, all zero, that begin on a page for both sides and are in one piece for
    /// both. They are not given back: the device may write to them at any time. `None` where there
    /// is no memory.
    fn share(&mut self, len: usize) -> Option<Region<Self::Memory>>;

    /// Lets the device reach the caller's bytes until [`take_back`](Self::take_back), and returns
    /// where it finds them. `None` where it cannot, or would not find them in one piece: then the
    /// driver copies them through memory of its own.
    fn lend(&mut self, lent: &Lent) -> Option<u64> {
        let _ = lent;
        None
    }

    /// The bytes that were lent and that the device finds at `address` are the caller's alone
    /// again. A device that does not stop reaches them afterwards only where it reaches all memory
    /// whatever the platform does: that of a machine without an IOMMU.
    fn take_back(&mut self, lent: &Lent, address: u64) {
        let _ = (lent, address);
    }
}
