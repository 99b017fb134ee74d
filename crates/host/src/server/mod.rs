//! Many clients on one volume.
//!
//! Read in this order: [`volume`] is what all share, [`session`] one client's view of it and `verbs`
//! its calls (`writes` has those that write data), made of the steps in `state`; [`permissions`] says
//! what a client may do, `inodes` and `handles` which inodes and open files it may name, [`tokens`] how
//! it may use those of another, [`limits`] how much; [`locks`] are those of fcntl(2) and flock(2),
//! [`observer`] tells who asks what has changed, `view` keeps what clients read without asking, and
//! `caches` what the kernels of mounts do, for whom others wait at the `gate`.
//! [`mapped`] has the files that clients have mapped, `pages` the memory for it.
//!
//! How clients come to a session: [`bind`] makes the socket, [`listen`] is the thread that watches
//! it, [`control`] has the messages, `mount` and `worker` serve, [`peer`] says who a client is and [`rules`] what it may do;
//! [`notify`] tells the service manager, and [`confine`] leaves the process nothing but this.
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

pub mod bind;
#[cfg(feature = "server")]
pub(crate) mod caches;
#[cfg(all(
    feature = "server",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub mod confine;
pub mod control;
#[cfg(feature = "server")]
pub(crate) mod gate;
#[cfg(feature = "server")]
mod handles;
#[cfg(feature = "server")]
mod inodes;
#[cfg(feature = "server")]
pub mod limits;
#[cfg(feature = "server")]
pub mod listen;
#[cfg(feature = "server")]
pub mod locks;
#[cfg(feature = "server")]
pub mod mapped;
#[cfg(feature = "server")]
mod mount;
#[cfg(feature = "server")]
pub mod notify;
#[cfg(feature = "server")]
pub mod observer;
#[cfg(feature = "server")]
mod pages;
#[cfg(feature = "server")]
pub mod peer;
#[cfg(feature = "server")]
pub mod permissions;
#[cfg(feature = "server")]
pub(crate) mod revocable;
#[cfg(feature = "server")]
pub mod rules;
#[cfg(feature = "server")]
pub mod session;
#[cfg(feature = "server")]
mod state;
#[cfg(feature = "server")]
pub mod tokens;
#[cfg(feature = "server")]
mod verbs;
#[cfg(feature = "server")]
mod view;
#[cfg(feature = "server")]
pub mod volume;
#[cfg(feature = "server")]
mod worker;
#[cfg(feature = "server")]
mod writes;

pub use control::MapToken;
#[cfg(feature = "server")]
pub use limits::Limits;
#[cfg(feature = "server")]
pub use locks::{Holder, LockKind, LockOwner, LockRange, LockRequest, WaitId, Waited, Wake};
#[cfg(feature = "server")]
pub use mapped::Mapping;
#[cfg(feature = "server")]
pub use observer::{Change, Observer, ObserverId};
#[cfg(feature = "server")]
pub use permissions::Credentials;
#[cfg(feature = "server")]
pub use session::Session;
#[cfg(feature = "server")]
pub use tokens::Token;
#[cfg(feature = "server")]
pub use volume::{Access, Identity, SessionId, Volume};
#[cfg(feature = "server")]
pub use worker::SPIN;
