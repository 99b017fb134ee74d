//! Serves any [`FileSystem`] to the Linux kernel, so that every program can use it.
//!
//! Read in this order: [`mount`] is the system's side, the device and the mount point; of the
//! private modules `state` is what requests work on, `adapter` translates one request after another,
//! and `convert` the types.
//!
//! That is for a volume that has no other client. [`shared`] serves one of several clients.
//!
//! # Choices
//!
//! - **The kernel's caches are kept for ever** (entries, missing entries, attributes, pages,
//!   directory listings, link targets): a volume has one owner, and all its changes pass through
//!   this one kernel.
//! - **No write-back cache.** A write(2) that has returned has reached the file system, so that it
//!   survives the end of this process; dirty pages in the kernel would be lost with it. Stores
//!   into a shared mapping reach the file system at msync(2), munmap(2) or exit, as POSIX has it.
//! - **Permissions are checked by the kernel** (`default_permissions`), which knows the identities.
//! - **Set-user-ID and set-group-ID bits and file capabilities are dropped here** on write, truncate and chown
//!   (FUSE's HANDLE_KILLPRIV_V2), which saves the kernel a request per write.
//! - **One thread**: the file system behind the seam is single-threaded, and a second thread would
//!   only wait for its lock.
//! - **Everything is made durable at intervals** ([`Options::commit_interval`]), since the kernel
//!   does not tell a FUSE server of sync(2) or syncfs(2).

mod adapter;
mod convert;
pub mod mount;
mod notices;
pub mod shared;
mod state;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_vfs::{AccessTimes, Context, FileSystem};

use adapter::Adapter;
pub(crate) use convert::now;
use state::{Open, State, lock};

/// How a file system is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// Show every file as owned by this user and group. For a user namespace, which knows only one
    /// of each: what the namespace cannot name, its programs could not use.
    pub owner: Option<(u32, u32)>,
    /// How often everything is made durable if anything has changed; `None` for never.
    pub commit_interval: Option<Duration>,
    /// What reading does to times of last access. What the kernel has in its caches it reads without a word:
    /// a file or directory whose time is due is dropped from them when it is opened.
    pub access_times: AccessTimes,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            owner: None,
            commit_interval: Some(Duration::from_secs(30)),
            access_times: AccessTimes::default(),
        }
    }
}

/// A mounted file system, ready to be served.
pub struct Server<F: FileSystem + Send + 'static> {
    session: fuser::Session<Adapter<F>>,
    state: Arc<Mutex<State<F>>>,
    commit_interval: Option<Duration>,
}

/// How serving ended: the file system, if it can still be trusted, and what went wrong.
pub struct Ended<F> {
    /// The file system, every handle closed, to be unmounted. `None` after a panic in it: what it
    /// holds in memory may be half of a change, and must not be written.
    pub fs: Option<F>,
    /// Why serving ended, other than by unmounting.
    pub error: Option<io::Error>,
}

impl<F: FileSystem + Send + 'static> Server<F> {
    /// Answers the kernel's first request on `device`, which [`mount::mount`] has mounted: when
    /// this returns, programs can use the mount point as soon as [`run`](Self::run) is called.
    ///
    /// # Errors
    /// When `device` is not mounted or the kernel's FUSE is too old.
    pub fn start(fs: F, device: OwnedFd, options: &Options) -> io::Result<Server<F>> {
        let state = Self::state(fs, options);
        let adapter = Adapter::new(Arc::clone(&state), options.owner);
        let session = fuser::Session::from_fd(
            adapter,
            device,
            fuser::SessionACL::All,
            fuser::Config::default(),
        )?;
        Ok(Self::ready(session, state, options))
    }

    /// Mounts `fs` at `target` and gets ready to serve it, for a user who may not mount: by the helper
    /// fusermount3, which may. Only this user will see the files. `source` is what the table of
    /// mounts shows.
    ///
    /// # Errors
    /// When the helper is missing or refuses, which it explains.
    pub fn mount_by_helper(
        fs: F,
        source: &Path,
        target: &Path,
        read_only: bool,
        options: &Options,
    ) -> io::Result<Server<F>> {
        mount::helper()?;
        let state = Self::state(fs, options);
        let adapter = Adapter::new(Arc::clone(&state), options.owner);
        let mut config = fuser::Config::default();
        config.mount_options = vec![
            // A comma in the name would end it.
            fuser::MountOption::FSName(source.to_string_lossy().replace(',', "_")),
            fuser::MountOption::Subtype("atoll".to_owned()),
            fuser::MountOption::DefaultPermissions,
            fuser::MountOption::NoSuid,
            fuser::MountOption::NoDev,
            if read_only { fuser::MountOption::RO } else { fuser::MountOption::RW },
        ];
        if options.access_times == AccessTimes::Noatime {
            config.mount_options.push(fuser::MountOption::NoAtime);
        }
        let session = fuser::Session::new(adapter, target, &config)?;
        Ok(Self::ready(session, state, options))
    }

    fn state(fs: F, options: &Options) -> Arc<Mutex<State<F>>> {
        let relatime = options.access_times == AccessTimes::Relatime;
        Arc::new(Mutex::new(State { relatime, ..State::new(fs) }))
    }

    fn ready(
        session: fuser::Session<Adapter<F>>,
        state: Arc<Mutex<State<F>>>,
        options: &Options,
    ) -> Server<F> {
        lock(&state).notifier = Some(session.notifier());
        Server { session, state, commit_interval: options.commit_interval }
    }

    /// Serves until the file system is unmounted everywhere, or its connection aborted.
    pub fn run(self) -> Ended<F> {
        let Server { session, state, commit_interval } = self;
        let (stop, stopped) = channel::<()>();
        let committer = commit_interval.map(|interval| {
            let state = Arc::clone(&state);
            std::thread::spawn(move || commit_at_intervals(&state, interval, &stopped))
        });
        let error = session.run().err();
        drop::<Sender<()>>(stop);
        if let Some(committer) = committer {
            // A panic there has poisoned the lock, which is looked at below.
            let _ = committer.join();
        }
        let poisoned = state.is_poisoned();
        let state = match Arc::try_unwrap(state) {
            Ok(state) if !poisoned => state.into_inner().unwrap_or_else(PoisonError::into_inner),
            _ => return Ended { fs: None, error },
        };
        let State { mut fs, open, .. } = state;
        let cx = Context { uid: 0, gid: 0, now: now() };
        for (handle, ino) in open {
            // Unmounting goes on whatever a single handle says.
            let _ = match handle {
                Open::File(handle) => fs.release(&cx, ino, handle),
                Open::Directory(handle) => fs.releasedir(&cx, ino, handle),
            };
        }
        Ended { fs: Some(fs), error }
    }
}

/// Makes changes durable every `interval`, until `stopped`'s other end is dropped.
fn commit_at_intervals<F: FileSystem>(
    state: &Mutex<State<F>>,
    interval: Duration,
    stopped: &Receiver<()>,
) {
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
        let mut state = lock(state);
        if std::mem::take(&mut state.changed) {
            let cx = Context { uid: 0, gid: 0, now: now() };
            // An error stops the file system from taking changes, which programs are told by
            // their own calls.
            let _ = state.fs.syncfs(&cx);
        }
    }
}
