//! Many clients on one volume.
//!
//! Read in this order: [`volume`] is what all share, [`session`] one client's view of it and `verbs`
//! its calls (`names` has those that make and remove names, `reads` and `writes` those that move data), made of the
//! steps in `state`; [`permissions`] says what a client may do, `inodes` and `handles` which inodes and open files it
//! may name, `standing` those
//! that it uses without having opened them, [`tokens`] and `adopt` how it may use those of another,
//! [`limits`] how much; [`locks`] are those of fcntl(2) and flock(2),
//! [`observer`] tells who asks what has changed, `view` keeps what clients read without asking, and
//! [`caches`] what the kernels of mounts do, for whom others wait at the [`gate`] if `needs` says so.
//! [`mapped`] has the files that clients have mapped. [`syncs`] and [`checkpoints`] make durable, each a
//! [`task`] that somebody takes the steps of; [`host`] is the machine below.
//!
//! # What holds
//!
//! - A client reaches the volume through its [`Session`] alone, whatever carries its requests.
//!   All sessions of a volume work on one file system behind one lock: what a call has done is
//!   seen by every later call of every client.
//! - What a client names, a handle or an inode number, was given to this very session; anything
//!   else is `EBADF` or `ESTALE`.
//! - When a session ends, however its client ended, its files are closed, its locks dropped.
//! - A panic in the file system ends the volume, not the process: every later call is `EIO`, and
//!   what is half changed in memory is never written.
//! - Nothing here reads a clock, starts a thread or makes a system call.
#![forbid(unsafe_code)]

mod adopt;
pub mod caches;
pub mod carrier;
pub mod checkpoints;
pub mod gate;
mod handles;
pub mod host;
#[doc(hidden)]
pub mod identify;
mod inodes;
pub mod kernel;
pub mod limits;
pub mod locks;
pub mod mapped;
mod names;
mod needs;
pub mod observer;
pub mod permissions;
pub mod privileges;
mod reads;
pub mod revocable;
pub mod router;
pub mod session;
mod standing;
mod state;
pub mod syncs;
pub mod task;
#[cfg(test)]
mod testing;
pub mod tokens;
mod verbs;
mod view;
pub mod volume;
mod wait;
mod writes;

pub use limits::Limits;
pub use locks::{Holder, LockKind, LockOwner, LockRange, LockRequest, WaitId, Waited, Wake};
pub use mapped::{MapToken, Mapping};
pub use observer::{Change, Observer, ObserverId};
pub use permissions::Credentials;
pub use session::Session;
pub use tokens::Token;
pub use volume::{Access, Identity, SessionId, Volume};
