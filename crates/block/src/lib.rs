//! The block seam: storage as an array of 4 KiB blocks.
//!
//! Read in this order: [`device`] is the seam itself, two traits and their contract, [`error`] what
//! fails in it; [`flusher`] a
//! flush that does not hold the device; [`ram`] the simplest implementor; [`cached`] makes any
//! block device byte-addressable with a bounded cache; [`fault`] is the device that tests crash
//! against; `conformance` (a feature of that name) checks implementors against the contract.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "conformance"))]
extern crate std;

pub mod cached;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod device;
pub mod error;
pub mod fault;
pub mod flusher;
pub mod ram;

pub use cached::Cached;
pub use device::{Addressable, BLOCK_SIZE, BlockDevice, BlockIndex, SECTOR_SIZE};
pub use error::BlockError;
pub use fault::FaultDevice;
pub use flusher::Flusher;
pub use ram::RamDevice;
