//! A flush apart from its device, for who must not hold the device while it waits.

use alloc::boxed::Box;
use core::fmt;

use crate::error::BlockError;

/// Makes the writes to a range of a device durable that were completed before it was taken, with
/// nothing of the device but itself: the device may be used meanwhile, from another thread.
///
/// # Contract
///
/// - When [`flush`](Self::flush) has returned `Ok`, those writes are durable. Of later ones nothing
///   is said: each may have become durable, or not.
/// - A crash within leaves what a crash within [`BlockDevice::flush_range`] leaves.
/// - An error means what an error of that means: it is unknown which of the writes are durable, and
///   a later flush that succeeds says nothing about them. The same failure is seen by a flush of
///   the device itself that runs at the same time: neither takes it from the other.
/// - Dropped without being asked it has done nothing.
///
/// [`BlockDevice::flush_range`]: crate::BlockDevice::flush_range
pub struct Flusher(Box<dyn FnOnce() -> Result<(), BlockError> + Send>);

impl Flusher {
    /// One that calls `flush`, which keeps the contract.
    pub fn new(flush: impl FnOnce() -> Result<(), BlockError> + Send + 'static) -> Flusher {
        Flusher(Box::new(flush))
    }

    /// Waits until the writes are durable.
    ///
    /// # Errors
    /// As [`BlockDevice::flush`](crate::BlockDevice::flush).
    pub fn flush(self) -> Result<(), BlockError> {
        (self.0)()
    }
}

impl fmt::Debug for Flusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flusher")
    }
}
