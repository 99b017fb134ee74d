//! Many clients on one volume.
//!
//! A request comes by a carrier, and goes one way: [`route`] -> [`session`] -> [`volume`] -> the
//! file system, and what it has changed to [`leases`]. Read in this order:
//!
//! 1. [`host`]: the machine below; [`task`]: the work beside the requests.
//! 2. [`volume`]: what all clients share; `guarded`, what its lock guards.
//! 3. [`rights`]: what a client may do. `open`: which inodes and open files it may name.
//! 4. [`session`]: one client's view of the volume, and its calls: `concerns`, what each verb is
//!    about; `call`, how one begins; `permission`, what it may do; `shown`, what comes of it; then
//!    `verbs`. [`session::moving`] is its state for another session, which `departures` knows of.
//! 5. [`leases`]: the observers of changes, and the answers that wait until kernels are
//!    invalidated.
//! 6. [`locks`], those of fcntl(2) and flock(2), and [`lock_retries`]; [`mapped`], the files that
//!    clients have mapped; [`syncs`] and [`checkpoints`], which make durable.
//! 7. [`route`]: carriers, the router above them, and what a client needs that is a kernel.
//!
//! # What holds
//!
//! - A client reaches the volume through its [`Session`] alone, whatever carries its requests.
//!   All sessions of a volume work on one file system behind one lock: what a call has done is
//!   seen by every later call of every client.
//! - A handle or an inode number that a client names was given to this very session; any other is
//!   `EBADF` or `ESTALE`.
//! - When a session ends, however its client ended, its files are closed, its locks dropped.
//! - A panic in the file system ends the volume, not the process: every later call is `EIO`, and
//!   what is half changed in memory is never written.
//! - Nothing here reads a clock, starts a thread or makes a system call.
#![forbid(unsafe_code)]

pub mod checkpoints;
mod departures;
mod guarded;
pub mod host;
pub mod leases;
pub mod lock_retries;
pub mod locks;
pub mod mapped;
mod open;
pub mod removals;
pub mod revocable;
pub mod rights;
pub mod route;
pub mod session;
pub mod syncs;
pub mod task;
#[cfg(test)]
mod testing;
pub mod volume;

pub use locks::{Holder, LockKind, LockOwner, LockRange, LockRequest, WaitId, Waited, Wake};
pub use mapped::{MapToken, Mapping};
pub use open::known::KnownMost;
pub use rights::identity::{Access, Identity, SessionId};
pub use rights::limits::Limits;
pub use rights::permissions::Credentials;
pub use session::Session;
pub use volume::Volume;
