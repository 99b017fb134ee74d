//! The driver's side of virtio (VIRTIO 1.2): what a guest needs for devices that its machine, or a
//! process beside it, offers.
//!
//! Read in this order: [`platform`], what a guest gives: memory that the device sees, a way to
//! wait; [`queue`], a split virtqueue; [`lent`], buffers of a caller that are the device's for one
//! call; [`device`], a device by whichever transport; [`registers`] and [`machine`], what both of
//! these need: [`pci`], the usual one, and [`mmio`], that of microVMs; [`requests`], a queue with
//! its device; then the drivers: [`fs`], [`disk`], [`entropy`].
//!
//! The device is hostile. Each word of its half of a queue is read once and checked against a
//! private copy of what the driver has asked for: numbers of chains that are not outstanding, or
//! lengths beyond what was writable, break the queue, which is an error for the driver's user and
//! nothing else. What the driver itself has written is never read again.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "testing"))]
extern crate std;

pub mod device;
pub mod disk;
pub mod entropy;
pub mod fs;
pub mod lent;
pub mod machine;
pub mod mmio;
pub mod pci;
pub mod platform;
pub mod queue;
pub mod registers;
pub mod requests;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use device::{Device, DeviceError};
pub use machine::Machine;
pub use platform::{Platform, Region};
pub use queue::Queue;
pub use registers::{Mmio, Registers};
