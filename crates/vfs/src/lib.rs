//! The file seam: files as FUSE's verbs on inode numbers and single name components.
//!
//! Read in this order: [`types`] the nouns, [`errno`] the errors, [`filesystem`] the trait and its
//! contract, [`model`] the in-memory oracle that every implementor is compared with.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod errno;
pub mod filesystem;
pub mod model;
pub mod types;

pub use errno::{Errno, Result};
pub use filesystem::FileSystem;
pub use types::*;
