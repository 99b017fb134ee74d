//! Volumes served on this machine: what a server of `atoll_server` volumes needs of a host.
//!
//! How clients come to a session: [`bind`] makes the socket, `porch` is where they wait until they
//! have said what they want, [`broker`] the process that receives it, by a [`mod@line`] to
//! [`listen`], the thread that begins and ends sessions. [`control`] has the messages, `mount` and
//! `worker` serve, the latter [`lanes`] of rings, whose doorbells are `bells`; [`guests`] are
//! virtual machines; `placement` says where a worker runs, in `ends` sessions end, a `porter` makes
//! the calls whose cost a client sets. [`sole`] serves a volume to one mount alone, `superblocks`
//! serve the one that all mounts of a host share, which a [`mounter`] makes. `upkeep` has the
//! threads that every served volume needs, of which `tasks` runs what makes syncs and checkpoints;
//! `keeper` looks after deadlines of notices; `machine` is the machine below the volumes, `pages`
//! the memory of mapped files; [`peer`] says who a client is and [`rules`] what it may do and take,
//! `newcomer` is one on its way to a worker, `granted` its session; [`notify`] tells the service
//! manager, `watchdog` that the threads live; [`confine`] leaves the process nothing but this, in a
//! place of its own ([`jail`]).

mod arrivals;
mod bells;
pub mod bind;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod broker;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod confine;
mod ends;
mod granted;
pub mod guests;
pub mod jail;
pub(crate) mod keeper;
pub mod lanes;
pub mod line;
pub mod listen;
pub(crate) mod machine;
mod mount;
pub mod mounter;
mod newcomer;
pub mod notify;
pub(crate) mod outcome;
mod pages;
pub mod peer;
pub(crate) mod placement;
mod porch;
pub(crate) mod porter;
pub mod rules;
mod shares;
pub mod sole;
mod superblocks;
pub(crate) mod tasks;
mod upkeep;
mod watchdog;
mod worker;

use std::sync::Arc;

use atoll_vfs::FileSystem;

use crate::control;
pub use crate::spin::SPIN_MAX as SPIN;
pub use machine::{Machine, mapped_memory, now, open_view};

/// Shares `fs` on this machine; `name` is what clients and messages call it.
pub fn volume<F: FileSystem + Send>(
    fs: F,
    name: impl Into<String>,
) -> Arc<atoll_server::Volume<F>> {
    atoll_server::Volume::new(fs, name, Arc::new(Machine))
}
