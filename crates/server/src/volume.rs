//! The state that all clients of one volume share.

mod turns;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use atoll_vfs::{AccessTimes, Errno, FileSystem, Rest, Result, Timespec};

use crate::checkpoints::asked::Checkpoints;
use crate::departures::Departures;
use crate::guarded::Guarded;
use crate::host::Host;
use crate::leases::caches::Caches;
use crate::leases::gate::{Gate, Ticket};
use crate::leases::needs::Involved;
use crate::leases::view::Views;
use crate::locks::LockTable;
use crate::mapped::files::Mappings;
use crate::open::known::{Known, KnownMost};
use crate::removals::queue::Removals;
use crate::rights::identity::SessionId;
use crate::rights::privileges::Plain;
use crate::syncs::queue::Syncs;
use crate::syncs::turns::FileQueue;
use turns::Turns;

/// A mounted file system that many sessions share. It lives as long as a session or a holder of
/// the [`Arc`].
pub struct Volume<F> {
    name: String,
    pub(crate) state: Mutex<Guarded<F>>,
    turns: Turns,
    pub(crate) locks: Mutex<LockTable>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) syncs: Syncs,
    /// Those for one file each, where files are synced by themselves.
    pub(crate) file_syncs: FileQueue,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) removals: Arc<Removals>,
    /// Sessions that go on elsewhere.
    pub(crate) departures: Mutex<Departures>,
    next_session: AtomicU64,
    /// The sessions that may change anything.
    pub(crate) writers: Arc<AtomicUsize>,
    /// The sessions of each user.
    users: Mutex<HashMap<u32, usize>>,
    /// Whether several users have sessions.
    shared: AtomicBool,
    /// Whether others change the file system too.
    foreign: AtomicBool,
    /// Whether other file systems are mounted in it.
    submounts: AtomicBool,
    /// What clients know of it, if others do.
    pub(crate) known: OnceLock<Arc<Known>>,
}

/// The number by which the volume's own work stands in line, which no user has.
pub(crate) const ITSELF: u32 = u32::MAX;

/// The side that waits for the ticket of a call.
#[derive(Clone, Copy)]
pub(crate) enum Waits<'a> {
    /// The call.
    Here,
    /// The carrier of a session's answers.
    Carrier(&'a RefCell<Option<Ticket>>),
}

/// The lock of a volume during a call.
pub(crate) struct Entered<'a, F: FileSystem> {
    state: Option<MutexGuard<'a, Guarded<F>>>,
    volume: &'a Volume<F>,
    waits: Waits<'a>,
    uid: u32,
    /// The call works in steps.
    steps: bool,
    /// Gets the rest that the call leaves.
    left: &'a Cell<Option<Rest>>,
}

impl<F: FileSystem> Deref for Entered<'_, F> {
    type Target = Guarded<F>;

    #[inline]
    fn deref(&self) -> &Guarded<F> {
        self.state.as_ref().expect("held until it is dropped")
    }
}

impl<F: FileSystem> DerefMut for Entered<'_, F> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Guarded<F> {
        self.state.as_mut().expect("held until it is dropped")
    }
}

impl<F: FileSystem> Entered<'_, F> {
    /// Takes the rest of the call; what is to be freed goes to the remover.
    #[inline]
    fn leave(&self, state: &mut Guarded<F>) -> Option<Rest> {
        if !self.steps {
            return None;
        }
        state.fs.work_in_steps(false);
        let left = state.mapped.left.take().map(Rest::Blocks);
        let rest = state.fs.take_rest().or(left);
        if let Some(Rest::Blocks(ino) | Rest::Until(ino)) = rest {
            self.volume.removals.add(self.uid, ino);
        }
        rest.or(state.mapped.first.take().map(Rest::After))
    }
}

impl<F: FileSystem> Drop for Entered<'_, F> {
    #[inline]
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        if state.fs.checkpoint_due() {
            self.volume.checkpoints.ask();
        }
        state.forget_peeked();
        let rest = self.leave(&mut state);
        let ticket = self.volume.gate.ticket(&state.involved);
        drop(state);
        if let (Some(Rest::Blocks(ino)), Waits::Here) = (rest, self.waits) {
            let Volume { host, removals, .. } = self.volume;
            host.wait(&mut |done| removals.after(ino, Box::new(move |_| done())));
        } else if rest.is_some() {
            self.left.set(rest);
        }
        let Some(ticket) = ticket else { return };
        match self.waits {
            Waits::Here => {
                let Volume { host, gate, .. } = self.volume;
                host.wait(&mut |done| gate.after(ticket.clone(), done));
            }
            Waits::Carrier(place) => place.borrow_mut().get_or_insert_default().merge(&ticket),
        }
    }
}

impl<F: FileSystem + Send> Volume<F> {
    /// Shares `fs` on `host`; `name` is what clients and messages call it.
    pub fn new(fs: F, name: impl Into<String>, host: Arc<dyn Host>) -> Arc<Volume<F>> {
        let gate = Arc::new(Gate::new(Arc::clone(&host)));
        let removals = Arc::<Removals>::default();
        Arc::new(Volume {
            name: name.into(),
            state: Mutex::new(Guarded {
                fs,
                changed: false,
                relatime: false,
                plain: Plain::default(),
                moves: 0,
                mapped: Mappings::default(),
                views: Views::new(&gate),
                caches: Caches::default(),
                involved: Involved::default(),
                counts: false,
                peeked: Vec::new(),
                removals: Arc::clone(&removals),
                gate: Arc::clone(&gate),
                host: Arc::clone(&host),
                #[cfg(test)]
                told: None,
            }),
            turns: Turns::default(),
            locks: Mutex::new(LockTable::default()),
            host,
            gate,
            syncs: Syncs::default(),
            file_syncs: FileQueue::default(),
            checkpoints: Checkpoints::default(),
            removals,
            departures: Mutex::default(),
            next_session: AtomicU64::new(1),
            writers: Arc::default(),
            users: Mutex::default(),
            shared: AtomicBool::new(false),
            foreign: AtomicBool::new(false),
            submounts: AtomicBool::new(false),
            known: OnceLock::new(),
        })
    }

    /// Has a mount fenced when its kernel has not forgotten what it caches this long after others
    /// have changed it. At first that is ten seconds.
    pub fn set_patience(&self, patience: std::time::Duration) {
        self.gate.set_patience(patience);
    }

    /// Sets what reading does to times of last access; at first nothing. To be called before there
    /// are sessions.
    ///
    /// # Errors
    /// `EIO` after a panic in the file system.
    pub fn set_access_times(&self, access_times: AccessTimes) -> Result<()> {
        let mut state = self.lock()?;
        state.relatime = access_times == AccessTimes::Relatime;
        let relatime = state.relatime;
        state.views.set_relatime(relatime);
        Ok(())
    }

    /// What reading does to times of last access: what was set.
    pub fn access_times(&self) -> AccessTimes {
        match self.lock() {
            Ok(state) if !state.relatime => AccessTimes::Noatime,
            // Or nobody can say.
            _ => AccessTimes::Relatime,
        }
    }

    /// Others change the file system too, without a call of this server: a directory of the host.
    /// Then no client keeps anything of what it is told. There are no Views, no leases and no
    /// memory of mapped files; each call asks the file system, and what others have done before it
    /// is seen. The file system keeps something for each inode that clients know, which are no more
    /// than `most` says. To be called once, before there are sessions.
    ///
    /// # Errors
    /// `EIO` after a panic in the file system.
    pub fn set_foreign(&self, most: KnownMost) -> Result<()> {
        let mut state = self.lock()?;
        (state.plain, state.counts) = (Plain::unknown(), true);
        self.known.get_or_init(|| Known::new(most));
        self.foreign.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Other file systems are mounted in it, or may be
    /// ([`is_submount`](FileSystem::is_submount)): kernels that want to know hear which directories
    /// are their roots. To be called before there are sessions.
    pub fn set_submounts(&self) {
        self.submounts.store(true, Ordering::Relaxed);
    }

    /// Whether other file systems may be mounted in it.
    pub fn has_submounts(&self) -> bool {
        self.submounts.load(Ordering::Relaxed)
    }

    /// Whether others change the file system too.
    pub fn is_foreign(&self) -> bool {
        self.foreign.load(Ordering::Relaxed)
    }

    /// The machine that it is served on.
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// The notices to its mounts, and the answers that wait for them.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// The name that clients have for the volume.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A session of the user `uid` begins, or with `ends` ends, which may change the volume if it
    /// `writes`.
    pub(crate) fn counts(&self, uid: u32, writes: bool, ends: bool) {
        match (writes, ends) {
            (true, false) => _ = self.writers.fetch_add(1, Ordering::SeqCst),
            (true, true) => _ = self.writers.fetch_sub(1, Ordering::SeqCst),
            (false, _) => {}
        }
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let count = users.entry(uid).or_default();
        *count = if ends { count.saturating_sub(1) } else { *count + 1 };
        users.retain(|_, count| *count > 0);
        self.shared.store(users.len() > 1, Ordering::Relaxed);
    }

    /// Whether several users have sessions: what takes long is then not done under the lock.
    pub fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    pub(crate) fn next_session(&self) -> SessionId {
        SessionId(self.next_session.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes the file system out, when every session has ended and every other holder of this
    /// volume has let go of it; otherwise gives the volume back. `Ok(None)` after a panic in the
    /// file system: what it holds in memory may be half of a change and must not be written. It
    /// then has been dropped, and recovers from its journal when it is mounted again.
    pub fn into_inner(self: Arc<Self>) -> std::result::Result<Option<F>, Arc<Self>> {
        let Volume { state, host, .. } = Arc::try_unwrap(self)?;
        Ok(match state.into_inner() {
            Ok(mut state) => {
                state.finish_mappings(host.now());
                Some(state.fs)
            }
            Err(_) => None,
        })
    }

    /// Makes everything durable if anything has changed since the last time. `now` is the time of
    /// the call.
    ///
    /// # Errors
    /// Those of [`FileSystem::syncfs`] and [`write_back`](Self::write_back).
    pub fn commit(&self, now: Timespec) -> Result<()> {
        // One client's stores that find no space take nothing from what all others have done.
        let stores = self.write_back(now);
        if !std::mem::take(&mut self.lock()?.changed) {
            return stores;
        }
        self.sync(false).and(stores)
    }

    /// As [`lock`](Self::lock), for a call of the user `uid` whose answer waits until the kernels
    /// of all mounts have forgotten what the answer belies. The call says which inodes it goes by.
    ///
    /// # Errors
    /// `EIO` after a panic in the file system.
    #[inline]
    pub(crate) fn enter<'a>(
        &'a self,
        waits: Waits<'a>,
        uid: u32,
        left: &'a Cell<Option<Rest>>,
    ) -> Result<Entered<'a, F>> {
        let mut state = self.take_turn(uid)?;
        state.involved.begin();
        let steps = self.removals.are_served();
        if steps {
            state.fs.work_in_steps(true);
        }
        Ok(Entered { state: Some(state), volume: self, waits, uid, steps, left })
    }

    /// The state that the lock guards, when it is the turn of the user `uid`.
    ///
    /// # Errors
    /// `EIO` after a panic in the file system.
    #[inline]
    pub(crate) fn take_turn(&self, uid: u32) -> Result<MutexGuard<'_, Guarded<F>>> {
        self.turns.take(&self.state, uid, |begin| self.host.wait(begin))
    }

    /// The state that the lock guards.
    ///
    /// # Errors
    /// `EIO` after a panic in the file system.
    #[inline]
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Guarded<F>>> {
        self.state.lock().map_err(|_| Errno::EIO)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Access, Credentials};

    /// A client that sends much is alone only while no other user is there, who may be idle now.
    #[test]
    fn several_users_share_a_volume() {
        let volume = crate::testing::volume();
        let session = |uid| {
            volume
                .session(Credentials { uid, ..Credentials::default() }, Access::default())
                .unwrap()
        };
        let (_a, _b) = (session(1), session(1));
        assert!(!volume.is_shared());
        let other = session(2);
        assert!(volume.is_shared());
        drop(other);
        assert!(!volume.is_shared());
    }
}
