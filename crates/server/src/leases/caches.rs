//! The leases of a volume's mounts: what their kernels may remember, and how it is invalidated.
//!
//! A kernel may remember the attributes of an inode that an answer said to be valid, and the pages
//! that it has read for its page cache. Each mount has a table of these leases. When a call changes
//! an inode, the leases on it are invalidated before that call, or any that could have seen the
//! change, is answered (see [`gate`](crate::leases::gate) and `needs`).
//!
//! # Why no kernel shows old data
//!
//! - A lease is noted under the volume's lock, by the call that found out its data; a change looks
//!   into the table under the same lock. So each answer is from before a change, and then the
//!   change finds the note, or from after it.
//! - *An answer on its way* that a notice overtakes: the kernel gives every inode a version that
//!   the notice raises, and does not take attributes that were asked for before. A page that is
//!   being read is locked, and the notice waits for it.
//! - *An inode that the kernel does not know yet*, since the answer with which it learns of it is
//!   on its way: the notice fails with ENOENT and is repeated until the kernel has learned of the
//!   inode, or has said that it has forgotten it (FORGET), for which the table counts how often it
//!   was given.
//! - *A size that is not taken*: the kernel drops attributes that a notice overtakes, and goes on
//!   with the size that it had, even one from before changes that have returned; then a read
//!   through the page cache ends too early. So a kernel that reads a file through its page cache is
//!   told when the file becomes longer, and how long (FUSE_NOTIFY_STORE of its last byte), and asks
//!   for the size before it reads where it has none (FUSE_AUTO_INVAL_DATA): a file may have become
//!   shorter too.
//! - *An answer that waits* for other notices gives no lease, see [`KernelCache::hold`].
//! - A mount's own kernel knows what the mount changes, except that a write through one descriptor
//!   may race with a read for the page cache through another, and that set-ID bits go: these are
//!   invalidated too.
//!
//! The kernels of mounts have no leases on names. Linux can invalidate one only with its
//! directory's lock held (FUSE_NOTIFY_INVAL_ENTRY), which a change in that directory through the
//! same mount holds until it is answered: two mounts that remove names from one directory would
//! wait for each other. It can be told without locks to look up all names again
//! (FUSE_NOTIFY_INC_EPOCH, Linux 6.16), but it does so by dropping them: an open file's name in
//! /proc is then `(deleted)`, getcwd(2) fails until somebody has walked to the directory again, and
//! what is mounted below is unmounted.
//!
//! # Virtual machines
//!
//! A guest that takes notices has leases of names too ([`Lends::Names`]): its driver has agreed to
//! take each notice without waiting for an answer to a request of its own, so that no two wait for
//! each other, and to keep nothing of an answer that a notice may have overtaken. A name has its
//! lease as long as the inode that it stands for is known; that there is no such name is not kept.
//!
//! # The mount that all share
//!
//! The mounts of a host may be one to the server ([`Lends::Timed`]): its kernel keeps them coherent
//! among themselves. While no other session may change the volume (`KernelCache::is_alone`) it is
//! lent names too, for `NAMES` and without account. Nobody can invalidate those: the lock of the
//! directory is held as long as a program likes that lists it into memory whose pages come late. So
//! a change of a name by another waits until all have run out; since none is lent while there is
//! another session, that is for its first changes, and for a second at most. A lease is noted
//! before its name is looked up and the others are counted after that; they are counted in before
//! they change anything, and look at the note after that: so one of the two sees the other.
//!
//! # What it costs
//!
//! A mount gets no new lease on what was invalidated for `REST`, so that leases and notices do not
//! chase each other. A volume without mounts pays one comparison for each change.
//!
//! Mounts of the superuser and of the server's own user get leases on pages. Those of a user whose
//! mount has not forgotten get none at all for a while (`trust`). A process that serves
//! a mount's page badly can make a notice wait for ever in the kernel, which no signal ends, and
//! with it a thread of the server. Notices of attributes wait for nobody.
//!
//! The mount that is a volume's only client has a lease on everything for ever ([`Lends::All`]), of
//! which no account is kept: it makes all changes itself. It gets notices of the attributes that
//! its own calls change without its kernel expecting it.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_vfs::Ino;

use crate::leases::gate::{Cut, Gate, Mount, Next, Notice, PortId, Ticket};
use crate::leases::observer::{Change, Content, Now, Observer};
use crate::leases::trust::Party;
use crate::rights::accounts::Room;
use crate::rights::identity::SessionId;

/// How long an invalidated inode is not leased again.
const REST: Duration = Duration::from_millis(100);
/// The most inodes in a mount's table; those that a kernel learns of beyond are never leased.
const TABLE_MAX: usize = 1 << 18;
/// Bytes of the server's memory that an inode in the table takes, with a notice of it.
pub(crate) const KNOWN_BYTES: u64 = 192;
/// How long a name is lent for a time, which is the longest that the first change of another waits.
const NAMES: Duration = Duration::from_secs(1);
/// How much later the kernel may begin to count it than this server.
const LATE: Duration = Duration::from_millis(200);
/// How long a notice is repeated after the end of the session.
const LAST_RETRIES: Duration = Duration::from_millis(100);

/// The leases that the kernel of a mount may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lends {
    /// Nothing.
    Nothing,
    /// Attributes.
    Attributes,
    /// The pages of files too.
    Pages,
    /// Names too, with the inodes that they stand for.
    Names,
    /// Pages, and names for a time while no other client may change anything.
    Timed,
    /// Everything that it asks for, names and listings included: the volume has no other client.
    All,
}

impl Lends {
    fn has_pages(self) -> bool {
        matches!(self, Lends::Pages | Lends::Names | Lends::Timed)
    }
}

/// A name in a directory, by its hash with a secret of the table's: names that have the same, which
/// nobody can choose, are told apart by nothing.
type Named = (Ino, u64);

/// The most names of one inode that are leased.
const NAMES_MAX: usize = 4;
/// Notices of which no account is kept, beside one for each inode that is known.
const BEHIND_MAX: u64 = 4096;

/// An inode that a kernel may know.
#[derive(Default)]
struct Known {
    /// How often it was given, less how often the kernel forgot it: with 0 the kernel has no such
    /// inode.
    count: u64,
    attributes: bool,
    pages: bool,
    /// Open files that are read through the page cache.
    buffered: u32,
    /// Names of it that are leased.
    names: Vec<Named>,
    /// Not leased again before this uptime of the host.
    rests: Option<Duration>,
}

impl Known {
    fn rests(&mut self, gate: &Gate) -> bool {
        let rests = self.rests.is_some_and(|until| gate.uptime() < until);
        if !rests {
            self.rests = None;
        }
        rests
    }
}

#[derive(Default)]
struct Table {
    /// By the volume's numbers.
    known: HashMap<Ino, Known>,
    /// There was no room once: the kernel may know inodes that are not in the table.
    full: bool,
    /// Handles of files that are read through the page cache.
    buffered: HashMap<u64, Ino>,
    /// The names that are leased, with what they stand for.
    names: HashMap<Named, Ino>,
    secret: RandomState,
    /// The inodes and names that the user's share allows.
    room: Room,
}

impl Table {
    fn len(&self) -> usize {
        self.known.len() + self.names.len()
    }

    fn named(&self, parent: Ino, name: &[u8]) -> Named {
        (parent, self.secret.hash_one(name))
    }

    /// A name is leased no more. Returns whether it was.
    fn drop_name(&mut self, named: Named) -> bool {
        let Some(ino) = self.names.remove(&named) else { return false };
        if let Some(known) = self.known.get_mut(&ino) {
            known.names.retain(|other| *other != named);
        }
        true
    }
}

/// The leases of one mount's kernel.
pub struct KernelCache {
    session: SessionId,
    /// The volume's number of the session's root.
    top: Ino,
    gate: Arc<Gate>,
    port: PortId,
    table: Mutex<Table>,
    lends: Lends,
    /// The sessions of the volume that may change it, this one among them.
    writers: Arc<AtomicUsize>,
    /// The names that were lent for a time have run out at this uptime of the host, in
    /// milliseconds.
    names_until: AtomicU64,
}

impl KernelCache {
    pub(crate) fn new(
        (session, top, writers): (SessionId, Ino, Arc<AtomicUsize>),
        gate: &Arc<Gate>,
        lends: Lends,
        untrusted: Option<Party>,
        mount: Arc<dyn Mount>,
        room: Room,
    ) -> Self {
        let mut table = Table { room, ..Table::default() };
        // The kernel has the root from the start, and never forgets it.
        table.known.insert(top, Known { count: u64::MAX, ..Known::default() });
        let (gate, port) = (Arc::clone(gate), gate.begin(mount, untrusted));
        let (table, names_until) = (Mutex::new(table), AtomicU64::new(0));
        KernelCache { session, top, port, gate, table, lends, writers, names_until }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No caller's code runs under this lock, and each change is whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether notices are taken while an answer is waited for, whatever it is.
    pub(crate) fn hears_always(&self) -> bool {
        self.lends == Lends::Names
    }

    /// Whether it is a mount's kernel whose pages may be invalidated, which has it write back those
    /// that programs have stored into, and may take as long as its user likes.
    pub(crate) fn invalidates_pages(&self) -> bool {
        matches!(self.lends, Lends::All | Lends::Pages | Lends::Timed)
    }

    /// Whether no other session may change the volume.
    pub(crate) fn is_alone(&self) -> bool {
        self.writers.load(Ordering::SeqCst) <= 1
    }

    /// For how many seconds the kernel may rely on the name that the answer to its next request
    /// gives it, or that there is none. To be asked for before the name is looked up.
    pub(crate) fn lends_names(&self) -> u64 {
        if self.lends != Lends::Timed || !self.is_alone() || !self.may_lend() {
            return 0;
        }
        let until = self.gate.uptime() + NAMES + LATE;
        self.names_until.fetch_max(until.as_millis() as u64, Ordering::SeqCst);
        // Who came meanwhile may not have seen that.
        if self.is_alone() { NAMES.as_secs() } else { 0 }
    }

    /// The notices of `ticket` that an answer waits for which the kernel waits for with a lock that
    /// its own notices need.
    pub(crate) fn of_others(&self, mut ticket: Ticket) -> Option<Ticket> {
        ticket.0.retain(|(port, _)| *port != self.port);
        (!ticket.0.is_empty()).then_some(ticket)
    }

    fn may_lend(&self) -> bool {
        self.lends != Lends::Nothing && self.gate.lends(self.port)
    }

    /// The kernel is given `ino` with its attributes. Returns whether it may keep them: with `lend`
    /// it may, if nothing is in the way.
    pub(crate) fn given(&self, ino: Ino, lend: bool) -> bool {
        if self.lends == Lends::All {
            return lend;
        }
        // Nothing is ever invalidated where nothing is lent.
        if self.lends == Lends::Nothing {
            return false;
        }
        let lend = lend && self.may_lend();
        let mut table = self.table();
        let count = table.len();
        let Table { known, full, room, .. } = &mut *table;
        let mut has_room = || !*full && count < TABLE_MAX && room.have(count).is_ok();
        let known = match known.entry(ino) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) if has_room() => place.insert(Known::default()),
            Entry::Vacant(_) => {
                *full = true;
                return false;
            }
        };
        known.count = known.count.saturating_add(1);
        let lend = lend && !known.rests(&self.gate);
        known.attributes |= lend;
        lend
    }

    /// The kernel is told that `name` in `parent` is `ino`, which it was just [given](Self::given).
    /// Returns whether it may keep that.
    pub(crate) fn named(&self, parent: Ino, name: &[u8], ino: Ino) -> bool {
        if self.lends != Lends::Names || !self.may_lend() {
            return false;
        }
        let mut table = self.table();
        let named = table.named(parent, name);
        let has_room = !table.full && table.len() < TABLE_MAX;
        let count = table.len();
        let Table { known, names, room, .. } = &mut *table;
        let rests = |ino| known.get_mut(ino).is_some_and(|known| known.rests(&self.gate));
        if [&parent, &ino].into_iter().any(rests) {
            return false;
        }
        let Some(known) = known.get_mut(&ino) else { return false };
        match names.get(&named) {
            Some(of) => *of == ino,
            None if known.names.len() >= NAMES_MAX || !has_room => false,
            None if room.have(count + 1).is_err() => false,
            None => {
                known.names.push(named);
                names.insert(named, ino);
                true
            }
        }
    }

    /// The kernel is given the attributes of `ino`. Returns whether it may keep them.
    pub(crate) fn shown(&self, ino: Ino) -> bool {
        if self.lends == Lends::All {
            return true;
        }
        if !self.may_lend() {
            return false;
        }
        let mut table = self.table();
        let Some(known) = table.known.get_mut(&ino) else { return false };
        let lend = !known.rests(&self.gate);
        known.attributes |= lend;
        lend
    }

    /// The kernel is sent a part of `ino` for its page cache. If clients change the file without a
    /// call, as `mapped` says, the part is invalidated at once.
    pub(crate) fn sent_pages(&self, ino: Ino, mapped: bool) {
        if !self.lends.has_pages() {
            return;
        }
        if mapped {
            if !self.gate.is_fenced(self.port) {
                self.gate.tell(self.port, ino, self.notice(ino, true));
            }
        } else if let Some(known) = self.table().known.get_mut(&ino) {
            known.pages = true;
        }
    }

    /// The kernel writes into `ino` through its page cache.
    pub(crate) fn writes_pages(&self, ino: Ino) {
        if let Some(known) = self.table().known.get_mut(&ino) {
            known.pages = true;
        }
    }

    /// Whether the kernel has the file of `handle` open through its page cache.
    pub(crate) fn is_cached(&self, handle: u64) -> bool {
        self.table().buffered.contains_key(&handle)
    }

    /// Whether the kernel may keep pages of `ino`, since it hears of all changes to them.
    pub fn keeps_pages(&self, ino: Ino) -> bool {
        match self.lends {
            Lends::Nothing | Lends::Attributes => false,
            Lends::Pages | Lends::Names | Lends::Timed => {
                // Nobody chases it where it is invalidated by its own changes alone.
                let alone = self.lends == Lends::Timed && self.is_alone();
                let mut table = self.table();
                let known = table.known.get_mut(&ino);
                let may = known.is_some_and(|known| alone || !known.rests(&self.gate));
                may && !self.gate.is_fenced(self.port)
            }
            Lends::All => true,
        }
    }

    /// The kernel has forgotten `ino`, which it had been given `count` times.
    pub(crate) fn forget(&self, ino: Ino, count: u64) {
        let mut table = self.table();
        if let Entry::Occupied(mut known) = table.known.entry(ino)
            && ino != self.top
        {
            let left = known.get().count.saturating_sub(count);
            known.get_mut().count = left;
            if left == 0 {
                // No name leads a kernel to an inode that it does not know.
                for named in known.remove().names {
                    table.names.remove(&named);
                }
                let count = table.len();
                table.room.keep(count);
            }
        }
    }

    /// The answer that gives `ino` is not sent yet: until [`release`](Self::release) the kernel
    /// cannot learn of the inode. The answer must not say that the attributes are valid.
    pub fn hold(&self, ino: Ino) {
        self.forget(ino, 1);
    }

    /// The answer is sent now.
    pub fn release(&self, ino: Ino) {
        self.given(ino, false);
    }

    fn outer(&self, ino: Ino) -> u64 {
        if ino == self.top { Ino::ROOT.0 } else { ino.0 }
    }

    fn inner(&self, ino: u64) -> Ino {
        if ino == Ino::ROOT.0 { self.top } else { Ino(ino) }
    }

    /// Invalidates the pages of `ino` and with them its attributes, or the attributes alone, if
    /// leased.
    fn revoke(&self, ino: Ino, pages: bool) {
        let mut table = self.table();
        if self.lends != Lends::All {
            let Some(known) = table.known.get_mut(&ino) else { return };
            let wanted = if pages { known.pages } else { known.attributes };
            if !wanted {
                return;
            }
            known.attributes = false;
            known.pages &= !pages;
            known.rests = Some(self.gate.uptime() + REST);
        }
        self.gate.tell(self.port, ino, self.notice(ino, pages));
    }

    /// Invalidates what `name` in `parent` stands for, if leased; or takes note that the kernel
    /// itself has changed that.
    fn revoke_name(&self, parent: Ino, name: &[u8], is_own: bool) {
        if self.lends == Lends::Timed && !is_own {
            let until = Duration::from_millis(self.names_until.load(Ordering::SeqCst));
            if self.gate.uptime() < until {
                let notice = Notice { until: Some(until), ..self.notice(parent, false) };
                self.gate.tell(self.port, parent, notice);
            }
        }
        if self.lends != Lends::Names {
            return;
        }
        let mut table = self.table();
        let named = table.named(parent, name);
        if table.drop_name(named) && !is_own {
            if let Some(known) = table.known.get_mut(&parent) {
                known.rests = Some(self.gate.uptime() + REST);
            }
            let notice = Notice { name: Some(name.into()), ..self.notice(parent, false) };
            self.gate.tell(self.port, parent, notice);
        }
    }

    /// Has the kernel write back the pages of `ino` that programs have written, and forget all.
    pub(crate) fn write_back(&self, ino: Ino) {
        self.gate.tell(self.port, ino, self.notice(ino, true));
    }

    fn notice(&self, ino: Ino, pages: bool) -> Notice {
        Notice { ino: self.outer(ino), pages, grown: None, name: None, until: None }
    }

    /// The kernel opens `ino`, the mount's number, to read it through its page cache.
    pub fn buffered(&self, ino: u64, handle: u64) {
        let ino = self.inner(ino);
        let mut table = self.table();
        if let Some(known) = table.known.get_mut(&ino) {
            known.buffered += 1;
            table.buffered.insert(handle, ino);
        }
    }

    /// The kernel closes a file that it had opened.
    pub fn closed(&self, handle: u64) {
        let mut table = self.table();
        if let Some(ino) = table.buffered.remove(&handle)
            && let Some(known) = table.known.get_mut(&ino)
        {
            known.buffered = known.buffered.saturating_sub(1);
        }
    }

    /// `ino` has grown to `size` bytes, of which `last` is the last one.
    fn grew(&self, ino: Ino, size: u64, last: u8) {
        let mut table = self.table();
        if let Some(known) = table.known.get_mut(&ino).filter(|known| known.buffered > 0) {
            // The byte may be the kernel's whole page.
            known.pages = true;
            let grown = Some((size, last));
            self.gate.tell(self.port, ino, Notice { grown, ..self.notice(ino, false) });
        }
    }

    fn is_buffered(&self, ino: Ino) -> bool {
        self.table().known.get(&ino).is_some_and(|known| known.buffered > 0)
    }

    /// A cut of `ino`, the mount's number, whose answer the kernel waits for.
    pub fn cut(&self, ino: u64) -> Cut {
        Cut { port: self.port, ino }
    }

    /// The session ends: all its leases are invalidated, since a file that is open, or mapped,
    /// shows its pages for as long as it likes.
    fn retire(&self) {
        let mut lent = Vec::new();
        // Those who have leases of names have ended, and nobody waits for them.
        self.table().names.clear();
        for (&ino, known) in &mut self.table().known {
            if known.attributes || known.pages {
                lent.push((ino, known.pages));
            }
            (known.attributes, known.pages) = (false, false);
            known.names.clear();
        }
        // In an order that depends on nothing but the leases.
        lent.sort_unstable();
        for (ino, pages) in lent {
            self.gate.tell(self.port, ino, self.notice(ino, pages));
        }
        self.gate.finish(self.port);
    }

    /// Nobody waits for the mount any more, whatever it shows.
    pub fn give_up(&self) {
        self.gate.end(self.port);
    }

    /// The next step of the mount's notifier.
    pub fn next(&self) -> Next {
        self.gate.next(self.port)
    }

    /// Whether to repeat `notice`, whose inode the kernel does not know, this long `after` it was
    /// first written.
    pub fn is_coming(&self, notice: &Notice, after: Duration) -> bool {
        // At the end no FORGET says what the kernel has forgotten.
        self.table().known.contains_key(&self.inner(notice.ino))
            && !(self.gate.is_ending(self.port) && after > LAST_RETRIES)
    }

    /// Whether so many notices wait that the kernel does not take them, since it had each by a
    /// lease of which account is kept.
    pub fn is_behind(&self) -> bool {
        let known = self.table().len() as u64;
        self.gate.behind(self.port) > 4 * known + BEHIND_MAX
    }

    /// The kernel has taken the oldest notice that [`next`](Self::next) gave.
    pub fn told(&self) {
        self.gate.told(self.port);
    }
}

/// The leases of all mounts of a volume.
#[derive(Default)]
pub(crate) struct Caches {
    mounts: Vec<Arc<KernelCache>>,
    /// The leases of the only client: nobody else changes anything.
    sole: Option<Arc<KernelCache>>,
}

impl Caches {
    pub fn begin(&mut self, cache: &Arc<KernelCache>) {
        match cache.lends {
            Lends::All => self.sole = Some(Arc::clone(cache)),
            _ => self.mounts.push(Arc::clone(cache)),
        }
    }

    /// The mount hears of no further change: its leases are invalidated, and it ends.
    pub fn end(&mut self, cache: &Arc<KernelCache>) {
        self.mounts.retain(|other| !Arc::ptr_eq(other, cache));
        self.sole.take_if(|other| Arc::ptr_eq(other, cache));
        cache.retire();
    }

    /// Whether a mount other than that of `by` reads `ino` through its page cache.
    pub fn is_buffered(&self, by: SessionId, ino: Ino) -> bool {
        self.others(by).any(|mount| mount.is_buffered(ino))
    }

    fn content_changed(&self, by: SessionId, content: &Content<'_>) {
        let ino = content.ino;
        for mount in self.others(by) {
            mount.revoke(ino, true);
            mount.revoke(ino, false);
        }
        let (last, of_cache) = match content.now {
            Now::Bytes { data, cached } => (data.last().unwrap_or(0), cached),
            Now::Until(last) => (last, false),
            Now::Zeros | Now::Same => (0, true),
        };
        if let Some((_, size)) = content.grew {
            self.others(by).for_each(|mount| mount.grew(ino, size, last));
        }
        // A read for the writer's own page cache may meanwhile have got the old content.
        if !of_cache {
            for mount in self.mounts.iter().filter(|mount| mount.session == by) {
                mount.revoke(ino, true);
            }
        }
    }

    fn others(&self, by: SessionId) -> impl Iterator<Item = &Arc<KernelCache>> {
        self.mounts.iter().filter(move |mount| mount.session != by)
    }
}

impl Observer for Caches {
    #[inline]
    fn listens(&self) -> bool {
        !self.mounts.is_empty()
    }

    /// Invalidates what `change` has made untrue, for all mounts but the one that has made it and
    /// so knows.
    #[inline]
    fn changed(&mut self, by: SessionId, change: &Change<'_>) {
        match change {
            Change::Unexpected(ino) => {
                let own = self.sole.iter().filter(|sole| sole.session == by);
                self.mounts.iter().chain(own).for_each(|mount| mount.revoke(*ino, false));
            }
            // Names follow, and no kernel can show an inode that is gone.
            Change::Moved | Change::Gone(_) => {}
            _ if self.mounts.is_empty() => {}
            Change::Content(content) => self.content_changed(by, content),
            Change::Attributes(ino) | Change::Rights(ino) => {
                self.others(by).for_each(|mount| mount.revoke(*ino, false));
            }
            Change::Entry { parent, name } => {
                for mount in &self.mounts {
                    mount.revoke_name(*parent, name, mount.session == by);
                }
                self.others(by).for_each(|mount| mount.revoke(*parent, false));
            }
        }
    }
}
