//! The inodes that clients may know, within bounds: a table of where each was seen last, and a
//! descriptor for those that were used last.
//!
//! An inode without a descriptor is opened anew by its directory and its name there, and counts
//! only if it is still the same one ([`Identity`]). So neither descriptors nor memory grow with the
//! host's tree. One that has left the table is unknown (`ESTALE`) until its name is looked up
//! again, upon which it has the same number as before.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;

use atoll_vfs::{Errno, Ino, Result};
use rustix::fs::Statx;

use super::births::{Birth, Births};
use super::identity::Identity;

/// How many numbers an inode is tried to be given, before those of others are in its way.
const ATTEMPTS: u8 = 4;

/// How many inodes that no client was given are kept for the call that has met them, and those
/// after it.
const LOOSE_MAX: usize = 64;

/// The bounds of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Inodes that are known at a time, open ones aside. Each takes some 200 bytes. Where there are
    /// sessions they know fewer, each user within a bound of its own: nobody meets this one.
    pub inodes: usize,
    /// Descriptors of directories that are not open.
    pub directories: usize,
    /// Descriptors of other files that are not open. The host gives the space of a file that it
    /// removes back when its descriptor is closed, so these are few.
    pub files: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { inodes: 1 << 22, directories: 1024, files: 64 }
    }
}

impl Bounds {
    /// The same, or less where this process has only so many `descriptors`.
    pub(super) fn within(self, descriptors: usize) -> Bounds {
        let directories = self.directories.min(descriptors / 8);
        Bounds { directories, files: self.files.min(descriptors / 16), ..self }
    }
}

/// How many places of one inode are remembered beside the last.
const OTHERS_MAX: usize = 7;

/// A directory, and a name in it.
pub(super) type Place = (Ino, Box<[u8]>);

/// One inode.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) identity: Identity,
    /// The directory in which it was seen last, and its name there.
    pub(super) place: Place,
    /// Other places where it was seen, the latest last: a file has as many names as it has links.
    others: Vec<Place>,
    pub(super) is_dir: bool,
    /// By which it is recognised.
    birth: Option<Birth>,
    /// It is the root of a mount in the directory.
    pub(super) is_mount: bool,
    /// How often clients were given it, less how often they forgot it.
    count: u64,
    /// Open files and directories.
    handles: usize,
    /// The inode, open, and which item of the queue counts for it; with handles it stays.
    fd: Option<(Arc<OwnedFd>, u64)>,
    /// Used since the last look for one to drop.
    used: bool,
    /// Which item of the queue counts.
    stamp: u64,
}

/// Inodes in the order in which they are looked at for dropping.
#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<(Ino, u64)>,
    live: usize,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    bounds: Bounds,
    known: HashMap<Ino, Known>,
    births: Births,
    all: Queue,
    /// Those that no client was given when they were met, the first first, each with the stamp that
    /// it has had since.
    loose: VecDeque<(Ino, u64)>,
    /// Those with a descriptor: directories, then others.
    open: [Queue; 2],
    stamp: u64,
    /// Whether descriptors that are dropped are collected, to be closed later.
    collects: bool,
    dropped: Vec<Arc<OwnedFd>>,
}

impl Table {
    pub(super) fn new(bounds: Bounds, births: Births) -> Table {
        Table {
            bounds,
            known: HashMap::new(),
            births,
            all: Queue::default(),
            loose: VecDeque::new(),
            open: Default::default(),
            stamp: 0,
            collects: false,
            dropped: Vec::new(),
        }
    }

    /// The births of those that are known.
    pub(super) fn births(&self) -> &Births {
        &self.births
    }

    /// Notes the birth of `ino`, which has the attributes `stat` and was found by its handle.
    pub(super) fn note_birth(&mut self, ino: Ino, stat: &Statx) {
        let Some(known) = self.known.get_mut(&ino) else { return };
        if known.birth.is_none() && self.births.tell() {
            known.birth = self.births.note(ino, stat, SystemTime::now());
        }
    }

    /// From now on descriptors of files that are dropped are for
    /// [`take_dropped`](Self::take_dropped) after each call.
    pub(super) fn collect(&mut self) {
        self.collects = true;
    }

    /// The descriptors that were dropped since the last time.
    pub(super) fn take_dropped(&mut self) -> Vec<Arc<OwnedFd>> {
        std::mem::take(&mut self.dropped)
    }

    /// The number of what has been seen at `place`.
    ///
    /// # Errors
    /// `EIO` when others have all numbers that it could have, which does not happen.
    pub(super) fn register(
        &mut self,
        identity: Identity,
        place: (Ino, &[u8]),
        is_dir: bool,
        fd: Arc<OwnedFd>,
    ) -> Result<Ino> {
        let ino = self.number(identity).ok_or(Errno::EIO)?;
        self.stamp += 1;
        match self.known.entry(ino) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                known.used = true;
                known.seen(place);
            }
            Entry::Vacant(free) => {
                let place = (place.0, place.1.into());
                let stamp = self.stamp;
                free.insert(Known {
                    identity,
                    place,
                    others: Vec::new(),
                    is_dir,
                    birth: None,
                    is_mount: false,
                    count: 0,
                    handles: 0,
                    fd: None,
                    used: true,
                    stamp,
                });
                self.all.items.push_back((ino, stamp));
                self.loose.push_back((ino, stamp));
                self.drop_loose();
                self.shrink();
            }
        }
        self.keep(ino, fd);
        Ok(ino)
    }

    /// The number that `identity` has, or would have.
    pub(super) fn number(&self, identity: Identity) -> Option<Ino> {
        (0..ATTEMPTS)
            .map(|attempt| identity.ino(attempt))
            .find(|ino| self.known.get(ino).is_none_or(|known| known.identity == identity))
    }

    /// Keeps `fd`, by which the inode was opened, for the next calls.
    pub(super) fn keep(&mut self, ino: Ino, fd: Arc<OwnedFd>) {
        let Some(known) = self.known.get_mut(&ino) else { return };
        if known.fd.is_some() {
            return;
        }
        self.stamp += 1;
        known.fd = Some((fd, self.stamp));
        let kind = usize::from(!known.is_dir);
        let most = if known.is_dir { self.bounds.directories } else { self.bounds.files };
        let queue = &mut self.open[kind];
        queue.items.push_back((ino, self.stamp));
        queue.live += 1;
        if queue.items.len() > 2 * queue.live + 64 {
            let known = &self.known;
            queue.items.retain(|(ino, stamp)| known.get(ino).is_some_and(|k| k.has(*stamp)));
        }
        self.close_some(kind, most);
    }

    /// Closes the descriptor of `ino`.
    pub(super) fn close(&mut self, ino: Ino) {
        let is_dir = self.known.get(&ino).is_some_and(|known| known.is_dir);
        if let Some(fd) = self.take_fd(ino)
            && self.collects
            && !is_dir
        {
            self.dropped.push(fd);
        }
    }

    /// Takes the descriptor of `ino`, for its caller to close.
    pub(super) fn take_fd(&mut self, ino: Ino) -> Option<Arc<OwnedFd>> {
        let known = self.known.get_mut(&ino)?;
        let (fd, _) = known.fd.take()?;
        let queue = &mut self.open[usize::from(!known.is_dir)];
        queue.live = queue.live.saturating_sub(1);
        Some(fd)
    }

    /// Closes descriptors until there are no more than `most` of their kind, or all are in use.
    fn close_some(&mut self, kind: usize, most: usize) {
        let queue = &mut self.open[kind];
        let mut looks = 2 * queue.items.len();
        while queue.live > most && looks > 0 {
            looks -= 1;
            let Some((ino, stamp)) = queue.items.pop_front() else { return };
            let Some(known) = self.known.get_mut(&ino).filter(|known| known.has(stamp)) else {
                continue;
            };
            if known.handles > 0 || std::mem::take(&mut known.used) {
                queue.items.push_back((ino, stamp));
                continue;
            }
            let dropped = known.fd.take();
            queue.live -= 1;
            if self.collects && !known.is_dir {
                self.dropped.extend(dropped.map(|(fd, _)| fd));
            }
        }
    }

    /// Closes all descriptors that can be had again: the process has none left.
    pub(super) fn close_all(&mut self) {
        for kind in 0..self.open.len() {
            // The second time none counts as used.
            self.close_some(kind, 0);
            self.close_some(kind, 0);
        }
    }

    /// Drops inodes until there are no more than the bound, or all are open.
    fn shrink(&mut self) {
        let mut looks = 2 * self.all.items.len();
        while self.known.len() > self.bounds.inodes && looks > 0 {
            looks -= 1;
            let Some((ino, stamp)) = self.all.items.pop_front() else { return };
            let Some(known) = self.known.get_mut(&ino).filter(|known| known.stamp == stamp) else {
                continue;
            };
            if known.handles > 0 || ino == Ino::ROOT || std::mem::take(&mut known.used) {
                self.all.items.push_back((ino, stamp));
                continue;
            }
            self.remove(ino);
        }
        // A forgotten inode leaves an item behind.
        if self.all.items.len() > 2 * self.known.len() + 64 {
            let known = &self.known;
            let lives = |(ino, stamp): &(Ino, u64)| {
                known.get(ino).is_some_and(|known| known.stamp == *stamp)
            };
            self.all.items.retain(lives);
        }
    }

    /// Drops what calls met some time ago and no client was given.
    fn drop_loose(&mut self) {
        while self.loose.len() > LOOSE_MAX {
            let Some((ino, stamp)) = self.loose.pop_front() else { return };
            // One that was forgotten and has been met again is there anew.
            let same = self.known.get(&ino).filter(|known| known.stamp == stamp);
            if same.is_some_and(|known| known.count == 0 && known.handles == 0) {
                self.remove(ino);
            }
        }
    }

    /// Puts the root in.
    pub(super) fn put_root(&mut self, identity: Identity, fd: Arc<OwnedFd>) {
        let known = Known {
            identity,
            place: (Ino::ROOT, Box::default()),
            others: Vec::new(),
            is_dir: true,
            birth: None,
            is_mount: false,
            count: 0,
            // It is never closed.
            handles: 1,
            fd: Some((fd, 0)),
            used: true,
            stamp: 0,
        };
        self.known.insert(Ino::ROOT, known);
    }

    /// The inode `ino`.
    ///
    /// # Errors
    /// `ESTALE`.
    pub(super) fn get(&mut self, ino: Ino) -> Result<&mut Known> {
        let known = self.known.get_mut(&ino).ok_or(Errno::ESTALE)?;
        known.used = true;
        Ok(known)
    }

    /// The inode is nobody's any more.
    pub(super) fn remove(&mut self, ino: Ino) {
        self.close(ino);
        if let Some(Known { birth: Some(birth), .. }) = self.known.remove(&ino) {
            self.births.forget(birth);
        }
    }

    /// The inode has no names any more: unless it is open it is nobody's.
    pub(super) fn gone(&mut self, ino: Ino) {
        if self.known.get(&ino).is_some_and(|known| known.handles == 0) {
            self.remove(ino);
        }
    }

    /// A client is given `ino`.
    pub(super) fn given(&mut self, ino: Ino) {
        if let Some(known) = self.known.get_mut(&ino) {
            known.count = known.count.saturating_add(1);
        }
    }

    /// The same `count` times.
    pub(super) fn recall(&mut self, ino: Ino, count: u64) {
        if let Some(known) = self.known.get_mut(&ino) {
            known.count = known.count.saturating_add(count);
        }
    }

    /// The directory in which `ino` was seen last, and its name there.
    pub(super) fn place(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let known = self.known.get(&ino).filter(|_| ino != Ino::ROOT)?;
        Some((known.place.0, known.place.1.to_vec()))
    }

    /// The identity of `ino` in bytes; zeros for one that is not known.
    pub(super) fn identity(&self, ino: Ino) -> [u8; 16] {
        self.known.get(&ino).map_or([0; 16], |known| known.identity.to_bytes())
    }

    /// Clients have forgotten `ino`, which they had been given `count` times.
    pub(super) fn forget(&mut self, ino: Ino, count: u64) {
        let Some(known) = self.known.get_mut(&ino) else { return };
        known.count = known.count.saturating_sub(count);
        if known.count == 0 && known.handles == 0 && ino != Ino::ROOT {
            self.remove(ino);
        }
    }

    /// `ino` has one more open file, `fd` if it had no descriptor.
    pub(super) fn opened(&mut self, ino: Ino, fd: &Arc<OwnedFd>) {
        if let Some(known) = self.known.get_mut(&ino) {
            known.handles += 1;
        }
        self.keep(ino, Arc::clone(fd));
    }

    /// An open file `fd` of `ino` is closed. Returns whether it was the last.
    pub(super) fn closed(&mut self, ino: Ino) -> bool {
        let Some(known) = self.known.get_mut(&ino) else { return true };
        known.handles = known.handles.saturating_sub(1);
        known.handles == 0
    }

    /// How many there are: inodes, and descriptors of those.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.known.len(), self.open.iter().map(|queue| queue.live).sum())
    }
}

impl Known {
    /// Its descriptor, if it has one.
    pub(super) fn fd(&self) -> Option<&Arc<OwnedFd>> {
        self.fd.as_ref().map(|(fd, _)| fd)
    }

    /// Has it keep another descriptor in the place of the one it has.
    pub(super) fn replace_fd(&mut self, fd: Arc<OwnedFd>) {
        if let Some((kept, _)) = &mut self.fd {
            *kept = fd;
        }
    }

    fn has(&self, stamp: u64) -> bool {
        self.fd.as_ref().is_some_and(|(_, its)| *its == stamp)
    }

    /// It has been seen at `place`.
    pub(super) fn seen(&mut self, place: (Ino, &[u8])) {
        let is = |other: &Place| other.0 == place.0 && *other.1 == *place.1;
        if is(&self.place) {
            return;
        }
        // A directory has one name.
        if !self.is_dir {
            self.others.retain(|other| !is(other));
            if self.others.len() == OTHERS_MAX {
                self.others.remove(0);
            }
            self.others.push(std::mem::replace(&mut self.place, (place.0, place.1.into())));
        } else {
            self.place = (place.0, place.1.into());
        }
    }

    /// It is not where it was seen last. Returns whether it was seen elsewhere before, and may be
    /// there still.
    pub(super) fn not_there(&mut self) -> bool {
        let other = self.others.pop();
        let found = other.is_some();
        if let Some(other) = other {
            self.place = other;
        }
        found
    }

    /// The directories in which it was seen, the last first.
    pub(super) fn places(&self) -> Vec<Ino> {
        let others = self.others.iter().rev().map(|place| place.0);
        [self.place.0].into_iter().chain(others).collect()
    }

    /// Whether it is open.
    pub(super) fn is_open(&self) -> bool {
        self.handles > 0
    }
}
