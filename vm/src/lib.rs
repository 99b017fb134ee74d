//! Virtual machines for tests: a Linux guest that runs scripts, and what it is made of.
//!
//! Read in this order: [`parts`] what this machine has to have, and where it lies; [`cpio`] an
//! archive, as the kernel reads it; [`modules`] the kernel's modules and what they need; [`image`]
//! the files of a guest; [`machine`] its devices; [`guest`] one that runs; [`monitor`] what its
//! emulator is told; [`virtiofsd`] the stock file servers and
//! [`storage_daemon`] the stock back end of disks, as peers; [`programs`] what tests run in
//! a guest; [`probes`] what its kernel sends, and [`system_calls`] what a server does for it,
//! counted.
//!
//! Guests are emulated (`-accel tcg`), so that tests run where hardware virtualisation is not to be
//! had: good for what is right and wrong, not for measuring.
#![forbid(unsafe_code)]

pub mod cpio;
pub mod guest;
pub mod image;
pub mod machine;
pub mod modules;
pub mod monitor;
pub mod parts;
pub mod probes;
pub mod programs;
pub mod storage_daemon;
pub mod system_calls;
pub mod virtiofsd;

pub use guest::{Guest, Moved, Ran};
pub use image::Image;
pub use machine::Machine;
pub use monitor::Monitor;
pub use probes::{Counts, Probes, Protocol};
pub use storage_daemon::StorageDaemon;
pub use system_calls::SystemCalls;
pub use virtiofsd::Virtiofsd;
