//! The file seam: files as FUSE's verbs on inode numbers and single name components.
//!
//! Read in this order: [`types`] the nouns, [`errno`] the errors, [`filesystem`] the trait and its
//! contract, [`pieces`] its data where that is in several places, [`sync`] what it hands out to be
//! waited for, [`locks`] beside it, [`model`] the in-memory oracle that every implementor is
//! compared with; then the cut: [`wire`] FUSE messages, [`server`] bytes to a call, [`client`] a
//! call to bytes, [`inline`] both in one process; [`view`], memory that answers without a request,
//! and [`cached`], a client that looks there first; [`lent`], how long an answer holds, and
//! [`kept`], a client that keeps it until it is told; [`windowed`], one that is shown ranges of
//! files; and [`forgetting`], for callers that never say what they are done with.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod cached;
pub mod client;
pub mod errno;
pub mod filesystem;
pub mod forgetting;
pub mod inline;
pub mod kept;
pub mod lent;
pub mod locks;
pub mod model;
pub mod pieces;
pub mod server;
pub mod sync;
pub mod types;
mod verbs;
pub mod view;
pub mod windowed;
pub mod wire;

pub use cached::{Answers, Cached, LiveView, OpenFiles};
pub use client::{Client, ClientOptions};
pub use errno::{Errno, Result};
pub use filesystem::FileSystem;
pub use forgetting::Forgetting;
pub use inline::Inline;
pub use kept::{Keeper, Keeping, Kept};
pub use locks::{Lock, LockKind, LockOwner, LockWait, Locks, OutsideLocks};
pub use pieces::{Data, Room};
pub use server::{Server, ServerOptions};
pub use sync::{CheckpointStep, PendingSync, Rest, SyncId};
pub use types::*;
pub use windowed::{Mapper, Window, Windowed};
