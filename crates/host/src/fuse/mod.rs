//! Serves volumes to the Linux kernel, so that every program can use them.
//!
//! Read in this order: [`mount`] is the system's side, the device and the mount point; [`shared`]
//! serves a session to the kernel, with `notices` for the notices that invalidate its caches;
//! `reclaim` says which kernels can do without OPEN, [`holders`] who has something of a mount.

pub mod holders;
pub mod mount;
pub(crate) mod notices;
pub(crate) mod reclaim;
pub mod shared;
