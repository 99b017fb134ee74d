//! A volume that one mount has, and nobody else: no socket, no rings.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use atoll_server::route::kernel::{KernelOptions, Others};
use atoll_server::{Access, Credentials, Identity, Limits, Volume};
use atoll_vfs::{AccessTimes, FileSystem};

use super::SPIN;
use super::upkeep::Upkeep;
use crate::fuse::reclaim;
use crate::fuse::shared::{SharedMount, SharedOptions};

/// A mounted volume, ready to be served.
pub struct SoleServer<F: FileSystem + Send + 'static> {
    volume: Arc<Volume<F>>,
    upkeep: Upkeep,
    mount: SharedMount<F>,
}

/// How it is served.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoleOptions {
    /// Nothing of the volume changes, unless others [change it too](Volume::set_foreign).
    pub read_only: bool,
    /// The effect of reading on times of last access.
    pub access_times: AccessTimes,
    /// Show every file as owned by this user and group, for a user namespace that knows no others.
    pub owner: Option<(u32, u32)>,
    /// The kernel keeps what programs write, until it is synced or some seconds old.
    pub writes_back: bool,
}

/// How serving ended: the file system, if it can still be trusted, and what went wrong.
pub struct Ended<F> {
    /// The file system, every handle closed, to be unmounted. `None` after a panic in it: what it
    /// holds in memory may be half of a change, and must not be written.
    pub fs: Option<F>,
    /// Why serving ended, other than by unmounting.
    pub error: Option<io::Error>,
}

impl<F: FileSystem + Send + 'static> SoleServer<F> {
    /// Answers the kernel's first request on `device`, which is mounted: when this returns,
    /// programs can use the mount point as soon as [`run`](Self::run) is called. The kernel checks
    /// permissions.
    ///
    /// # Errors
    /// When `device` is not mounted, the kernel's FUSE is too old, or there are no threads left;
    /// then its file system is left as a crash would leave it.
    pub fn start(
        volume: Arc<Volume<F>>,
        device: OwnedFd,
        options: &SoleOptions,
    ) -> io::Result<SoleServer<F>> {
        let SoleOptions { read_only, access_times, owner, writes_back } = *options;
        let error = |errno: atoll_vfs::Errno| io::Error::from_raw_os_error(errno.raw());
        volume.set_access_times(access_times).map_err(error)?;
        let access = Access {
            identity: Identity::Checked,
            read_only,
            // The kernel has its own.
            limits: Limits { open_files: usize::MAX, ..Limits::default() },
            ..Access::default()
        };
        // The kernel may name every inode, whoever mounts.
        let session = volume.session(Credentials::default(), access).map_err(error)?;
        let kernel = KernelOptions {
            owner,
            others: Others::None,
            unchanging: read_only,
            implicit_opens: reclaim::may_open_implicitly(),
            writes_back,
            ..KernelOptions::default()
        };
        let options = SharedOptions { kernel, spin: SPIN };
        let upkeep = Upkeep::start(&volume)?;
        let mount = SharedMount::start(session, device, &options)?;
        Ok(SoleServer { volume, upkeep, mount })
    }

    /// Serves until the file system is unmounted everywhere, or its connection aborted.
    pub fn run(self) -> Ended<F> {
        let SoleServer { volume, upkeep, mount } = self;
        let serve = move || mount.run();
        // A thread of its own, whose panic ends no more than the volume.
        let served = match std::thread::Builder::new().name("mount".to_owned()).spawn(serve) {
            Ok(thread) => {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("an internal error")))
            }
            Err(error) => Err(error),
        };
        drop(upkeep);
        Ended { fs: volume.into_inner().ok().flatten(), error: served.err() }
    }
}
