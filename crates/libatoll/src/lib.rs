//! Atoll's C library: a volume inside one process, with no server, through POSIX's calls.
//!
//! C programs include `atoll.h`, mount one volume with `atoll_mount` and use `atoll_open`,
//! `atoll_read` and so on with the arguments, results and `errno` of the calls they are named
//! after ([`c`]). Rust programs may hold as many volumes as they like: [`volume::mount`] gives
//! each as a [`Posix`](atoll_posix::Posix) of its own.
//!
//! Read in this order: [`storage`] how volumes on this host are opened and made, for all programs;
//! [`volume`] which file system on which device, [`process`] the one volume
//! that the C calls share, its lock and fork; [`c`] the calls.

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "the calls take pointers from C")]
pub mod c;
#[allow(unsafe_code, reason = "asks the C library for the time")]
pub mod clock;
#[allow(unsafe_code, reason = "state shared by all threads of the process, behind its own lock")]
pub mod process;
pub mod storage;
pub mod volume;
#[allow(unsafe_code, reason = "takes memory that may not be had")]
mod zeros;

pub use volume::{MountError, MountOptions, Volume};
