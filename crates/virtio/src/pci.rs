//! Devices on PCI, by the modern interface alone (VIRTIO 1.2, 4.1).
//!
//! Read in this order: [`space`], the configuration space and what is in it; [`bars`], the ranges
//! of a function's memory, which get addresses where the firmware has given none;
//! [`capabilities`], where virtio's structures are; [`function`], a device made of these.

pub mod bars;
pub mod capabilities;
pub mod function;
pub mod space;

pub use bars::Gap;
pub use function::{Bell, PciDevice};
pub use space::{ConfigSpace, Found, Function, scan};

#[cfg(test)]
pub(crate) mod chance;
#[cfg(test)]
mod tests;
