//! One client's view of a volume: its beginning, its locks and its end.

pub(crate) mod call;
pub(crate) mod concerns;
mod copies;
mod implicit;
pub mod moving;
mod names;
mod own;
mod permission;
pub mod ranges;
mod reads;
mod removed;
mod shown;
mod syncs;
mod verbs;
mod writes;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::{Component, Path};
use std::sync::{Arc, MutexGuard, PoisonError};

use atoll_vfs::{
    Context, Errno, FileSystem, FileType, Handle, Ino, Name, OpenFlags, Rest, Result, Timespec,
};

use crate::guarded::Guarded;
use crate::leases::caches::{KNOWN_BYTES, KernelCache, Lends};
use crate::leases::gate::{Mount, Ticket};
use crate::leases::trust::Party;
use crate::locks::outside::Through;
use crate::locks::{
    Ask, Family, Holder, LockKind, LockOwner, LockRange, LockRequest, LockTable, Owner, WaitId,
    Waited, Wake, Wakes,
};
use crate::open::handles::{Handles, OPEN_BYTES};
use crate::open::inodes::{Inodes, SLOT_BYTES};
use crate::open::known::KNOWN_INODE_BYTES;
use crate::rights::accounts::{Account, Charge, Resource, Room};
use crate::rights::identity::{Access, SessionId};
use crate::rights::permissions::{Credentials, Judge};
use crate::rights::rates::Meter;
use crate::session::own::{Holds, Own};
use crate::volume::Volume;

pub use own::Lent;

/// The smallest View that is worth having, in bytes.
const VIEW_MIN: usize = 64 << 10;
/// The server's index of a View takes no more than such a part of it.
const VIEW_INDEX: u64 = 16;

/// One client's view of a [`Volume`]: a [`FileSystem`] of its own, in which handles and inode
/// numbers are those that this session gave out, permissions are enforced and the root is the
/// directory that the client was granted.
///
/// To the errors of [`FileSystem`] the session adds `EACCES` and `EPERM` where permissions refuse,
/// `EROFS` for a read-only session, `EMFILE` beyond its open files, and `ESTALE` for an inode
/// number that it does not know.
///
/// Dropping it closes its files, upon which unlinked ones give their space back, drops its locks
/// and ends its waiting requests with `EINTR`.
pub struct Session<F: FileSystem + Send> {
    pub(crate) volume: Arc<Volume<F>>,
    pub(crate) judge: Judge,
    /// Whether a call returns only when the kernels of mounts have taken the notices that it waits
    /// for. Otherwise the carrier of the answer waits, for the ticket in `needs`.
    pub(crate) waits: bool,
    pub(crate) needs: RefCell<Option<Ticket>>,
    /// The rest of the last call that left one.
    pub(crate) left: Cell<Option<Rest>>,
    /// Where the part of a call begins that is to be done now.
    from: Option<u64>,
    /// Up to where stores into mapped files have been written back for a call.
    pub(crate) stored: Option<(Ino, u64)>,
    /// Whether the carrier takes requests back.
    yields: bool,
    meter: Option<Arc<Meter>>,
    /// Whether it has ever asked for a lock.
    locks: bool,
    pub(crate) own: Own,
}

impl<F: FileSystem + Send> Session<F> {
    pub(crate) fn begin(
        volume: Arc<Volume<F>>,
        id: SessionId,
        peer: Credentials,
        access: Access,
    ) -> Result<Self> {
        let top = match &access.subtree {
            Some(path) => find_directory(&mut volume.lock()?.fs, path)?,
            None => Ino::ROOT,
        };
        // A client that may search every directory of the whole volume can reach every inode.
        let all = peer.uid == 0;
        let limit = access.limits.inodes.max(access.limits.open_files.saturating_mul(2)).max(2);
        let now = volume.host.uptime();
        volume.counts(peer.uid, !access.read_only, false);
        let account = access.account.as_ref();
        let meter = account.and_then(|account| account.meter(access.limits.rates, now));
        let room = |each| Room::new(account, Resource::Memory, each);
        let known = volume.known.get().map(|known| known.part(peer.uid));
        let place = SLOT_BYTES + known.as_ref().map_or(0, |_| KNOWN_INODE_BYTES);
        let mut inodes = Inodes::new(top, all, limit, room(place));
        if let Some(part) = known {
            inodes.count(part);
        }
        let opens = [Room::new(account, Resource::OpenFiles, 1), room(OPEN_BYTES)];
        Ok(Session {
            meter,
            locks: false,
            judge: Judge::new(&peer, access.identity),
            waits: true,
            needs: RefCell::default(),
            left: Cell::default(),
            from: None,
            stored: None,
            yields: false,
            own: Own {
                inodes,
                handles: Handles::default(),
                opens,
                holds: Holds::default(),
                held: HashMap::new(),
                view: None,
                cache: None,
                lent: None,
                for_cache: false,
                noatime: false,
                implicit: None,
                id,
                peer,
                access,
            },
            volume,
        })
    }

    /// The session's name in its volume.
    pub fn id(&self) -> SessionId {
        self.own.id
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume<F>> {
        &self.volume
    }

    /// The client's identity, as the kernel attests it.
    pub fn peer(&self) -> &Credentials {
        &self.own.peer
    }

    /// Measures what the client's user asks for, if its rate is limited: its carrier heeds it.
    pub fn meter(&self) -> Option<&Arc<Meter>> {
        self.meter.as_ref()
    }

    /// The access that the session was granted.
    pub fn access(&self) -> &Access {
        &self.own.access
    }

    /// Begins the session's View, of at most `most` bytes, and returns what `give` makes of its
    /// memory, for the client to map: what the client asks for from here on is put there and kept
    /// true until the session ends. `None` when `most` or the limits leave no room for one, or the
    /// session has one. Where the user's share does not allow it the View is smaller.
    ///
    /// # Errors
    /// `ENOMEM` when the user's share has nothing left for one, `ENOSYS` when the machine has none
    /// for those who are bound by a share; those of making the memory, and of `give`;
    /// `EIO` after a panic in the file system.
    pub fn begin_view<T>(
        &mut self,
        most: usize,
        give: impl FnOnce(&dyn Any) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.own.view.is_some() || self.volume.is_foreign() {
            return Ok(None);
        }
        let mut state = self.volume.lock()?;
        let most = most.min(self.own.access.limits.view);
        let (most, charge) = match &self.own.access.account {
            // That is no lack of what the user may have.
            Some(_) if most < VIEW_MIN => return Ok(None),
            Some(account) => {
                let (most, charge) = view_within(most, account)?;
                (most, Some(charge))
            }
            None => (most, None),
        };
        let Some(view) = self.volume.host.view(most, charge.is_some())? else { return Ok(None) };
        let given = give(&*view)?;
        let id = state.views.begin(view, self.own.inodes.top(), charge);
        self.own.view = Some(id);
        self.own.inodes.tell_forgotten();
        for open in self.own.handles.iter() {
            state.begin_reading(self.own.view, open);
        }
        Ok(Some(given))
    }

    /// From now on the carrier of the answers waits before it gives them, for the ticket of
    /// [`take_needs`](Self::take_needs), so that this session does not.
    pub fn carried(&mut self) {
        self.waits = false;
    }

    /// The ticket of the answer to the calls since the last time.
    #[inline]
    pub fn take_needs(&mut self) -> Option<Ticket> {
        self.needs.get_mut().take()
    }

    /// The inode whose blocks the answer to the last call waits for.
    #[inline]
    pub(crate) fn take_left(&self) -> Option<Ino> {
        match self.left.get() {
            Some(Rest::Blocks(ino)) => {
                self.left.take();
                Some(ino)
            }
            _ => None,
        }
    }

    /// A request begins, of which all was done but this `rest`, if there is one. With `yields` a
    /// call that takes long does a part, and leaves a rest; without, it does all, and others have
    /// the volume between the parts.
    #[inline]
    pub(crate) fn begins(&mut self, rest: Option<Rest>, yields: bool) {
        // The rest of a call that no request made is not this one's.
        self.left.set(None);
        self.from = match rest {
            Some(Rest::From(offset)) => Some(offset),
            _ => None,
        };
        self.stored = match rest {
            Some(Rest::Stored(ino, offset)) => Some((ino, offset)),
            _ => None,
        };
        self.yields = yields;
    }

    /// Where the part of the call begins that is to be done now, if it is not the first.
    pub(crate) fn goes_on_from(&mut self) -> Option<u64> {
        self.from.take()
    }

    /// Whether the rest of the call is for the next turn of its client.
    pub(crate) fn yields(&self) -> bool {
        self.yields
    }

    /// From now on the session's client is a kernel, which may have the leases that `lends` says:
    /// attributes for users who are not trusted; none where others change the volume too.
    /// To be called before any request. `mount` is woken when there is a notice for it, and fenced
    /// when its kernel does not forget in time.
    ///
    /// # Errors
    /// `EIO` after a panic in the file system.
    pub fn begin_cache(&mut self, lends: Lends, mount: Arc<dyn Mount>) -> Result<Arc<KernelCache>> {
        let top = self.own.inodes.top();
        let lends = if self.volume.is_foreign() { Lends::Nothing } else { lends };
        let mut state = self.volume.lock()?;
        let untrusted = match mount.machine() {
            Some(machine) => Some(Party::Machine(machine)),
            None => (lends == Lends::Attributes).then_some(Party::User(self.own.peer.uid)),
        };
        let room = Room::new(self.own.access.account.as_ref(), Resource::Memory, KNOWN_BYTES);
        let (id, gate) = (self.own.id, &self.volume.gate);
        let writers = Arc::clone(&self.volume.writers);
        let whose = (id, top, writers);
        let cache = Arc::new(KernelCache::new(whose, gate, lends, untrusted, mount, room));
        state.caches.begin(&cache);
        self.own.cache = Some(Arc::clone(&cache));
        Ok(cache)
    }

    /// The next read is for the kernel's page cache, if `yes`.
    pub fn reads_for_cache(&mut self, yes: bool) {
        self.own.for_cache = yes;
    }

    /// The inode that the answer to the last call gives the kernel, with its lease.
    pub fn take_lent(&mut self) -> Option<Lent> {
        self.own.lent.take()
    }

    /// Whether the kernel may keep pages of `ino`, the client's number, beyond an open file of it,
    /// and whether it may read it through its page cache.
    pub fn keeps_pages(&self, ino: Ino) -> (bool, bool) {
        let (Some(cache), Ok(ino)) = (&self.own.cache, self.own.inodes.inner(ino)) else {
            return (false, false);
        };
        if !cache.keeps_pages(ino) {
            return (false, false);
        }
        let Ok(mut state) = self.volume.lock() else { return (true, false) };
        // A read that is to be counted has to come here.
        let cx = Context { uid: 0, gid: 0, now: self.volume.host.now() };
        let counts = !self.own.access.read_only && state.access_is_due(&cx, ino);
        (!counts, !state.is_mapped(ino))
    }

    /// The lock in the way of `request`, if there is one: F_GETLK. The request's kind must be one
    /// to hold.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL`.
    pub fn getlk(
        &mut self,
        ino: Ino,
        handle: Handle,
        request: &LockRequest,
    ) -> Result<Option<Holder>> {
        let (key, owner, range) = self.place(ino, handle, request)?;
        let kind = request.kind.ok_or(Errno::EINVAL)?;
        let ask = Ask { key, owner, range, kind, pid: request.pid, through: handle.0 };
        let outside = self.outside(ino, handle)?;
        self.locks().get(&ask, &outside)
    }

    /// Takes or lets go of a lock without waiting: F_SETLK, and flock(2) with LOCK_NB.
    ///
    /// # Errors
    /// `EAGAIN` when another's is in the way; `EBADF` also for a lock of fcntl(2) that the file is
    /// not open for; `EINVAL` for an empty range; `ENOLCK` beyond the session's limit.
    pub fn setlk(&mut self, ino: Ino, handle: Handle, request: &LockRequest) -> Result<()> {
        let (result, wakes) = {
            let (key, owner, range) = self.place(ino, handle, request)?;
            self.begin_locks();
            let limit = self.own.access.limits.locks;
            match request.kind {
                None => self.locks().unset(key, owner, range, limit),
                Some(kind) => {
                    self.check_right(ino, handle, request.owner, kind)?;
                    let ask = Ask { key, owner, range, kind, pid: request.pid, through: handle.0 };
                    let outside = self.outside(ino, handle)?;
                    self.locks().set(&ask, &outside, limit)
                }
            }
        };
        wakes.call();
        result
    }

    /// Takes a lock, or waits for it: F_SETLKW, and flock(2) without LOCK_NB. `wake` is told of the
    /// outcome unless it is known at once.
    ///
    /// # Errors
    /// As [`setlk`](Self::setlk), and `EDEADLK` when the owners in the way wait for this owner.
    pub fn setlkw(
        &mut self,
        ino: Ino,
        handle: Handle,
        request: &LockRequest,
        wake: Wake,
    ) -> Result<Waited> {
        let Some(kind) = request.kind else {
            return self.setlk(ino, handle, request).map(|()| Waited::Granted);
        };
        let (key, owner, range) = self.place(ino, handle, request)?;
        self.check_right(ino, handle, request.owner, kind)?;
        self.begin_locks();
        let ask = Ask { key, owner, range, kind, pid: request.pid, through: handle.0 };
        let outside = self.outside(ino, handle)?;
        let limit = self.own.access.limits.locks;
        let (result, wakes) = self.locks().set_or_wait(&ask, &outside, limit, wake);
        wakes.call();
        result
    }

    /// Ends a request of this session that waits; its callback is told `EINTR`. One that has been
    /// granted meanwhile is left as it is.
    pub fn cancel(&mut self, id: WaitId) {
        let wakes = self.locks().cancel(self.own.id, id);
        wakes.call();
    }

    /// A process has closed a descriptor of `ino`: its locks of fcntl(2) on the file go, as POSIX
    /// has it, whatever other descriptors it has.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn flush(&mut self, ino: Ino, handle: Handle, process: u64) -> Result<()> {
        let ino = self.own.inodes.inner(ino)?;
        self.own.handles.get(ino, handle)?;
        if self.locks {
            let owner = Owner { session: self.own.id, number: process };
            self.unlock_all(ino, Family::Fcntl, owner);
        }
        Ok(())
    }

    /// Drops what was locked through `handle`, which was closed.
    pub(crate) fn unlock_closed(&self, ino: Ino, handle: Handle) {
        if !self.locks {
            return;
        }
        let wakes = {
            let mut locks = self.locks();
            [Family::Fcntl, Family::Flock]
                .map(|family| locks.release((ino, family), self.own.id, handle.0))
        };
        wakes.into_iter().for_each(Wakes::call);
    }

    /// The table is to know the session.
    fn begin_locks(&mut self) {
        if !self.locks {
            self.locks().begin(self.own.id, self.own.peer.uid);
            self.locks = true;
        }
    }

    /// Drops whatever `owner` holds of one kind on a file.
    fn unlock_all(&self, ino: Ino, family: Family, owner: Owner) {
        let (result, wakes) = self.locks().unset((ino, family), owner, LockRange::ALL, usize::MAX);
        debug_assert!(result.is_ok(), "letting go of everything leaves no pieces");
        wakes.call();
    }

    fn place(
        &self,
        ino: Ino,
        handle: Handle,
        request: &LockRequest,
    ) -> Result<((Ino, Family), Owner, LockRange)> {
        let ino = self.own.inodes.inner(ino)?;
        self.own.handles.get(ino, handle)?;
        let (family, number, range) = match request.owner {
            LockOwner::Process(number) => (Family::Fcntl, number, request.range),
            LockOwner::OpenFile => (Family::Flock, handle.0, LockRange::ALL),
        };
        if range.start > range.end {
            return Err(Errno::EINVAL);
        }
        Ok(((ino, family), Owner { session: self.own.id, number }, range))
    }

    /// The file system's part of a lock, where others use the files too.
    fn outside(&mut self, ino: Ino, handle: Handle) -> Result<Through> {
        if !self.volume.is_foreign() {
            return Ok(None);
        }
        let open = self.own.handles.get(self.own.inodes.inner(ino)?, handle)?;
        self.volume.take_turn(self.own.peer.uid)?.fs.outside_locks(open.ino, open.handle)
    }

    /// A shared lock of fcntl(2) needs the file open for reading, an exclusive one for writing.
    fn check_right(
        &self,
        ino: Ino,
        handle: Handle,
        owner: LockOwner,
        kind: LockKind,
    ) -> Result<()> {
        if owner == LockOwner::OpenFile {
            return Ok(());
        }
        let open = self.own.handles.get(self.own.inodes.inner(ino)?, handle)?;
        let right = match kind {
            LockKind::Shared => OpenFlags::READ,
            LockKind::Exclusive => OpenFlags::WRITE,
        };
        // A directory is open for reading.
        let flags = open.flags.unwrap_or(OpenFlags::READ);
        if flags.contains(right) { Ok(()) } else { Err(Errno::EBADF) }
    }

    fn locks(&self) -> MutexGuard<'_, LockTable> {
        // No caller's code runs under this lock, and each change is whole.
        self.volume.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: FileSystem + Send> Volume<F> {
    /// Begins a session of `peer`.
    ///
    /// # Errors
    /// For the subtree `ENOENT`, `ENOTDIR`, `EINVAL` for `..` in it; `EIO` after a panic in the
    /// file system.
    pub fn session(self: &Arc<Self>, peer: Credentials, access: Access) -> Result<Session<F>> {
        let id = self.next_session();
        Session::begin(Arc::clone(self), id, peer, access)
    }
}

/// The largest View within `most` bytes that `account` allows, and what it takes with the server's
/// index of it.
fn view_within(most: usize, account: &Arc<Account>) -> Result<(usize, Charge)> {
    let mut most = most;
    while most >= VIEW_MIN {
        let bytes = most as u64 + most as u64 / VIEW_INDEX;
        if let Ok(charge) = account.charge_spare(Resource::Memory, bytes) {
            return Ok((most, charge));
        }
        most /= 2;
    }
    Err(Errno::ENOMEM)
}

/// The directory at `path` from the volume's root.
fn find_directory(fs: &mut impl FileSystem, path: &Path) -> Result<Ino> {
    // Nothing is changed, and the file system judges nobody.
    let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
    let mut at = Ino::ROOT;
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => {
                let attr = fs.lookup(&cx, at, Name::new(name.as_encoded_bytes())?)?;
                if attr.file_type() != FileType::Directory {
                    return Err(Errno::ENOTDIR);
                }
                at = attr.ino;
            }
            Component::ParentDir | Component::Prefix(_) => return Err(Errno::EINVAL),
        }
    }
    Ok(at)
}

/// How many inodes it forgets before: as long.
const FORGOTTEN_AT_ONCE: usize = 512;

impl<F: FileSystem + Send> Drop for Session<F> {
    fn drop(&mut self) {
        self.volume.counts(self.own.peer.uid, !self.own.access.read_only, true);
        self.ends_departure();
        if self.locks {
            let wakes = self.locks().end(self.own.id);
            wakes.call();
        }
        let (id, uid) = (self.own.id, self.own.peer.uid);
        self.volume.write_back_session(id, uid, self.volume.host.now());
        // Dropped when the lock has been released: to take memory from those who have mapped it
        // takes long when they have mapped it often.
        let _view;
        // After a panic in the file system there is nothing left to be closed but the View and the
        // leases.
        let mut guard = match self.volume.state.lock() {
            Ok(guard) => guard,
            Err(poisoned) => {
                let state = &mut *poisoned.into_inner();
                _view = state.views.end(self.own.view);
                return self.own.cache.iter().for_each(|cache| state.caches.end(cache));
            }
        };
        let state: &mut Guarded<F> = &mut guard;
        _view = state.views.end(self.own.view);
        self.own.cache.iter().for_each(|cache| state.caches.end(cache));
        // Closing stamps nothing.
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let uid = self.own.peer.uid;
        let at_once = self.own.access.limits.closed_at_once.max(1);
        let held = self.own.held.drain().map(|(_, open)| open);
        let mut handles = self.own.handles.drain().chain(held).peekable();
        // No other file system wants to know what its clients know.
        let given = if self.volume.is_foreign() { self.own.inodes.drain() } else { Vec::new() };
        let mut given = given.into_iter().peekable();
        loop {
            let state: &mut Guarded<F> = &mut guard;
            for open in handles.by_ref().take(at_once) {
                state.end_reading(self.own.view, &open);
                // The rest are closed, whatever one says.
                let _ = state.close(&cx, (self.own.id, uid), &open);
            }
            // A file that is closed can be forgotten.
            if handles.peek().is_none() {
                let forgotten = given.by_ref().take(FORGOTTEN_AT_ONCE);
                forgotten.for_each(|(ino, count)| state.fs.forget(ino, count));
            }
            drop(guard);
            if handles.peek().is_none() && given.peek().is_none() {
                return;
            }
            // Others have their turn.
            guard = match self.volume.take_turn(uid) {
                Ok(guard) => guard,
                // After a panic nothing is left to be closed.
                Err(_) => return,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use atoll_vfs::OpenFlags;
    use atoll_vfs::model::ModelFs;

    use crate::KnownMost;
    use crate::rights::accounts::{Accounts, Shares};
    use crate::rights::limits::Limits;

    use super::*;

    /// Others have their turn while a session closes what it has open.
    #[test]
    fn many_open_files_are_closed_in_steps() {
        const FILES: u64 = 2000;
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let volume = crate::testing::volume();
        let there = |guard: &mut Guarded<ModelFs>| {
            let all = guard.fs.statfs(&cx).unwrap();
            all.files - all.files_free
        };
        let begun = Instant::now();
        // The other thread may not come in time, with little luck several times.
        let seen = loop {
            let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
            for _ in 0..FILES {
                let name = Name::new(b"f").unwrap();
                let both = OpenFlags::READ | OpenFlags::WRITE;
                session.create(&cx, Ino::ROOT, name, 0o600, both).unwrap();
                session.unlink(&cx, Ino::ROOT, name).unwrap();
            }
            let full = there(&mut volume.lock().unwrap());
            assert!(full > FILES);
            let seen = std::thread::scope(|scope| {
                scope.spawn(move || drop(session));
                loop {
                    let now = there(&mut volume.lock().unwrap());
                    if now < full {
                        break now;
                    }
                }
            });
            let none = there(&mut volume.lock().unwrap());
            assert_eq!(none, full - FILES);
            if seen > none || begun.elapsed() > Duration::from_secs(30) {
                break seen > none;
            }
        };
        assert!(seen, "all are closed at once");
    }

    /// Where others change the volume too no client keeps anything.
    #[test]
    fn a_foreign_volume_is_lent_to_nobody() {
        let volume = crate::testing::volume();
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let both = OpenFlags::READ | OpenFlags::WRITE;
        for foreign in [false, true] {
            if foreign {
                volume.set_foreign(KnownMost::default()).unwrap();
            }
            let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
            let mount = Arc::<crate::testing::Noted>::default();
            let cache = session.begin_cache(Lends::Pages, mount).unwrap();
            let name = Name::new(b"f").unwrap();
            let (attr, handle) = session.create(&cx, Ino::ROOT, name, 0o600, both).unwrap();
            session.getattr(&cx, attr.ino).unwrap();
            assert_eq!(session.take_lent().is_some_and(|lent| lent.valid), !foreign);
            assert_eq!(cache.keeps_pages(attr.ino), !foreign);
            let mapped = session.map(&cx, attr.ino, handle, 0, 1).map(drop);
            assert_eq!(mapped, if foreign { Err(Errno::ENOSYS) } else { Ok(()) });
            // Another may have made it a program that takes its owner's rights.
            session.write(&cx, attr.ino, handle, 0, b"x").unwrap();
            assert_eq!(volume.lock().unwrap().plain.finds(attr.ino), !foreign);
        }
    }

    #[test]
    fn no_view_is_another_thing_than_no_memory() {
        let volume = crate::testing::volume();
        let begin = |memory, view| {
            let most = Shares { memory, ..Shares::UNLIMITED };
            let account = Some(Accounts::new(Shares::UNLIMITED).open(1, most));
            let limits = Limits { view, ..Limits::default() };
            let access = Access { limits, account, ..Access::default() };
            let mut session = volume.session(Credentials::default(), access).unwrap();
            session.begin_view(VIEW_MIN, |_| Ok(()))
        };
        assert_eq!(begin(u64::MAX, VIEW_MIN - 1), Ok(None), "the limits leave no room");
        assert_eq!(begin(0, VIEW_MIN), Err(Errno::ENOMEM), "the share has nothing left");
        // However many there are, what cannot be done without has half of a share, and of all.
        let memory = 64 * VIEW_MIN as u64;
        let all = Accounts::new(Shares { memory: 2 * memory, ..Shares::UNLIMITED });
        let accounts: Vec<_> =
            (1..5).map(|uid| all.open(uid, Shares { memory, ..Shares::UNLIMITED })).collect();
        let mut views = Vec::new();
        for account in &accounts {
            while let Ok((most, charge)) = view_within(16 * VIEW_MIN, account) {
                assert!(most >= VIEW_MIN);
                views.push(charge);
            }
            let has = account.has(Resource::Memory);
            assert!(has <= memory / 2, "{has}");
        }
        assert!(views.len() > 4);
        for account in &accounts[..2] {
            assert!(account.charge(Resource::Memory, memory / 2).is_ok());
        }
    }
}
