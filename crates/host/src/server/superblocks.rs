//! The superblocks that mounts share: for each volume one, of which each client that asks gets a
//! mount of its own. The kernel keeps these coherent without a word of the server's.
//!
//! A superblock is one session, served as a mount of the superuser's: its requests have the true
//! users, whose permissions the kernel has checked. What a rule says of its client lies in the
//! mount that this one gets: of which directory it is, and whether anything may be changed there.
//! It is made for the first client, and let go of with the last; while programs have files open
//! then, it goes on, and a client that comes gets a new one. Two are coherent by leases, as other
//! mounts are. Who keeps files open so can have no more made than `LEFT_MAX`: the next one stays.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use atoll_server::revocable::Revocable;
use atoll_server::route::kernel::{KernelOptions, Others};
use atoll_server::{Access, Credentials, Identity, Limits, Session, Volume};
use atoll_vfs::{AccessTimes, Errno, FileSystem};

use super::control;
use super::granted::TRANSFER;
use super::mounter::Mounter;
use super::porter::{Porter, hang_up};
use super::rules::{Grant, Mode};
use crate::fuse::shared::{SharedMount, SharedOptions};

/// The most open files, and locks, of all programs that use one.
const OPEN_FILES: usize = 1 << 20;
const LOCKS: usize = 1 << 16;

/// The most superblocks of a volume that go on without clients.
const LEFT_MAX: usize = 4;

/// A superblock that clients have mounted: it is let go of with this value.
pub(super) struct Superblock {
    mounter: Arc<Mounter>,
    number: u32,
    access_times: AccessTimes,
    /// It is served no more.
    over: AtomicBool,
    /// The sockets of its clients, which hear of it.
    clients: Mutex<Vec<Weak<OwnedFd>>>,
}

impl Drop for Superblock {
    fn drop(&mut self) {
        self.mounter.let_go(self.number);
    }
}

/// A superblock that is served.
struct Serving<F: FileSystem + Send> {
    /// The volume's place among all.
    at: usize,
    /// One that is not let go of.
    _stays: Option<Arc<Superblock>>,
    place: Revocable<Session<F>>,
    /// Its thread ends when this is closed.
    _end: OwnedFd,
    thread: JoinHandle<()>,
}

/// The superblocks of a server.
pub(super) struct Superblocks<F: FileSystem + Send> {
    mounter: Arc<Mounter>,
    /// Of each volume, what tables of mounts show, and the superblock that clients get.
    volumes: Vec<(String, Mutex<Weak<Superblock>>)>,
    serving: Mutex<Vec<Serving<F>>>,
    next: AtomicU32,
    spin: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: FileSystem + Send + 'static> Superblocks<F> {
    /// Those that `mounter` makes; `sources` are what tables of mounts show for each volume.
    pub fn new(mounter: Mounter, sources: Vec<String>, spin: Duration) -> Superblocks<F> {
        let (mounter, serving) = (Arc::new(mounter), Mutex::default());
        let volumes = sources.into_iter().map(|source| (source, Mutex::default())).collect();
        Superblocks { mounter, volumes, serving, next: AtomicU32::new(0), spin }
    }

    /// A mount for the client of `socket`, of the user `uid`, which `grant` allows, of the
    /// superblock of the volume `at`. May wait for the mounter, and for the volume.
    ///
    /// # Errors
    /// The mounter's; that the session or its thread cannot begin.
    pub fn hand_out(
        &self,
        at: usize,
        volume: &Arc<Volume<F>>,
        grant: &Grant,
        (uid, socket): (u32, &Arc<OwnedFd>),
    ) -> io::Result<(Arc<Superblock>, OwnedFd)> {
        let superblock = self.superblock(at, volume)?;
        let Superblock { number, access_times, .. } = *superblock;
        let read_only = grant.mode == Mode::Read;
        let who = (uid, number);
        let mount = self.mounter.hand_out(who, &grant.path, read_only, access_times)?;
        {
            let mut clients = lock(&superblock.clients);
            clients.retain(|client| client.strong_count() > 0);
            clients.push(Arc::downgrade(socket));
        }
        if superblock.over.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok((superblock, mount))
    }

    /// The superblock of the volume `at` that clients get, made if there is none.
    fn superblock(&self, at: usize, volume: &Arc<Volume<F>>) -> io::Result<Arc<Superblock>> {
        let (source, current) = &self.volumes[at];
        let mut current = lock(current);
        if let Some(superblock) = current.upgrade()
            && !superblock.over.load(Ordering::SeqCst)
        {
            return Ok(superblock);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let access_times = volume.access_times();
        let device = self.mounter.make(number, source, access_times)?;
        let (mounter, over) = (Arc::clone(&self.mounter), AtomicBool::new(false));
        let clients = Mutex::default();
        let superblock = Arc::new(Superblock { mounter, number, access_times, over, clients });
        self.serve(at, volume, device, &superblock)?;
        *current = Arc::downgrade(&superblock);
        Ok(superblock)
    }

    /// Serves the superblock on `device`, in a thread.
    fn serve(
        &self,
        at: usize,
        volume: &Arc<Volume<F>>,
        device: OwnedFd,
        superblock: &Arc<Superblock>,
    ) -> io::Result<()> {
        let other = |error: Errno| io::Error::from_raw_os_error(error.raw());
        let peer = Credentials { pid: std::process::id(), ..Credentials::default() };
        let limits = Limits {
            open_files: OPEN_FILES,
            locks: LOCKS,
            transfer: TRANSFER,
            ..Limits::default()
        };
        let access = Access { identity: Identity::Checked, limits, ..Access::default() };
        let session = volume.session(peer, access).map_err(other)?;
        let place = Revocable::default();
        place.begin(session);
        let (end, ends) = control::pair()?;
        let kernel = KernelOptions { others: Others::Joining, ..KernelOptions::default() };
        let options = SharedOptions { kernel, spin: self.spin };
        let (served, hang) = (place.clone(), Some(Arc::new(ends)));
        let mount = SharedMount::begin(served, device, hang, Porter::none(), &options)?;
        let (name, served_by) = (volume.name().to_owned(), Arc::downgrade(superblock));
        let serve = move || {
            if let Err(error) = mount.run() {
                log::warn!("the mount of {name} that clients share failed: {error}");
            }
            let Some(superblock) = served_by.upgrade() else { return };
            superblock.over.store(true, Ordering::SeqCst);
            // What they have mounted can only fail.
            lock(&superblock.clients).iter().filter_map(Weak::upgrade).for_each(|socket| {
                hang_up(&socket);
            });
        };
        let thread = std::thread::Builder::new().name("superblock".to_owned()).spawn(serve)?;
        let mut serving = lock(&self.serving);
        serving.retain(|serving| !serving.thread.is_finished());
        let left = serving.iter().filter(|serving| serving.at == at).count();
        let stays = (left >= LEFT_MAX).then(|| Arc::clone(superblock));
        serving.push(Serving { at, _stays: stays, place, _end: end, thread });
        Ok(())
    }

    /// Ends all: what uses them gets errors.
    pub fn end(&self) {
        for Serving { place, .. } in std::mem::take(&mut *lock(&self.serving)) {
            place.revoke();
        }
    }
}
