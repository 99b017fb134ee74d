//! The locks of fcntl(2) and flock(2), of all clients of one volume.
//!
//! A lock of fcntl(2) covers bytes and belongs to a process, as its client names it; one of
//! flock(2) covers the file and belongs to an open file. The two kinds do not see each other, as on
//! Linux. Locks are advice: reading and writing does not look at them.
//!
//! Waiting requests are granted in the order of asking, as soon as no held lock is in the way; a
//! request that need not wait does not queue behind those that do. A request of fcntl(2) that would
//! close a circle of waiting owners is refused with `EDEADLK`.
//!
//! Every entry, held or waiting, counts against its session's limit, and against that of its user,
//! so that the table is bounded by the users' limits together. The cost of a call grows with what
//! its own session has and with what is in its way, and not with what others have: all calls of a
//! volume that are about locks wait for each other. A session that has never asked for a lock does
//! not come here at all. Where programs that are no clients use the files too, their locks count as
//! well (`outside`).

mod held;
mod lengths;
pub(crate) mod outside;
mod steps;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

pub use atoll_vfs::LockKind;
use atoll_vfs::{Errno, Ino, Result};

use crate::rights::identity::SessionId;
use held::{Held, HeldLocks};
use lengths::Ranges;
use outside::{Outside, RETRIES, Retries, Through};

/// The bytes that a lock of fcntl(2) covers, both ends included; `u64::MAX` is the end of the file
/// wherever it will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
}

impl LockRange {
    /// Every byte.
    pub const ALL: LockRange = LockRange { start: 0, end: u64::MAX };

    fn overlaps(self, other: LockRange) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// The owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockOwner {
    /// fcntl(2): a process, by a number that its client chose.
    Process(u64),
    /// flock(2): the open file through which it is asked for. Its range is the whole file.
    OpenFile,
}

/// A client's request for a lock of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The owner for whom it is.
    pub owner: LockOwner,
    /// Which bytes; not looked at for [`LockOwner::OpenFile`].
    pub range: LockRange,
    /// The kind to hold; `None` to let go.
    pub kind: Option<LockKind>,
    /// The process, for others' [`Holder`].
    pub pid: u32,
}

/// The lock that is in the way, as F_GETLK tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its kind.
    pub kind: LockKind,
    /// Its bytes.
    pub range: LockRange,
    /// The process that its client named.
    pub pid: u32,
}

/// Names a request that waits; never used twice in a volume's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaitId(u64);

/// The outcome of a request that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It was granted at once; its callback is dropped uncalled.
    Granted,
    /// It waits; its callback will be called once, with the outcome.
    Queued(WaitId),
}

/// Told of the outcome of a request that waited: `EINTR` when it was cancelled or its session
/// ended, `ENOLCK` when its session's limit was reached meanwhile. Called on the thread that freed
/// the lock, with no lock of the volume held; it must not wait for anything. It may be called
/// before the call that queued it has returned.
pub type Wake = Box<dyn FnOnce(Result<()>) + Send>;

/// The two kinds of locks of a file, which do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    Fcntl,
    Flock,
}

/// An owner, among those of all sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner {
    pub session: SessionId,
    pub number: u64,
}

/// The locks of one kind of one file.
pub(crate) type Key = (Ino, Family);

/// A request with its owner spelt out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub key: Key,
    pub owner: Owner,
    pub range: LockRange,
    pub kind: LockKind,
    pub pid: u32,
    /// The client's number of the open file through which it is asked for.
    pub through: u64,
}

struct Waiting {
    ask: Ask,
    through: Through,
    limit: usize,
    wake: Wake,
}

struct FileLocks {
    held: HeldLocks,
    outside: Outside,
    /// In the order of asking.
    waiting: BTreeMap<WaitId, Waiting>,
    /// Those for shared locks, and for exclusive ones, by their bytes.
    for_shared: Ranges<WaitId>,
    for_exclusive: Ranges<WaitId>,
}

impl Default for FileLocks {
    fn default() -> Self {
        let none = || Ranges::new(WaitId(0), WaitId(u64::MAX));
        let (held, waiting) = (HeldLocks::default(), BTreeMap::new());
        let outside = Outside::default();
        FileLocks { held, outside, waiting, for_shared: none(), for_exclusive: none() }
    }
}

impl FileLocks {
    fn waits(&mut self, kind: LockKind) -> &mut Ranges<WaitId> {
        match kind {
            LockKind::Shared => &mut self.for_shared,
            LockKind::Exclusive => &mut self.for_exclusive,
        }
    }
}

/// Adds to `next` those of `waits` that ask for bytes of `range`. Returns how many it looked at.
fn add_asking(waits: &Ranges<WaitId>, range: LockRange, next: &mut BTreeSet<WaitId>) -> usize {
    let mut looks = 0;
    for id in waits.lengths().flat_map(|length| waits.names(length, range)) {
        looks += 1;
        next.insert(id);
    }
    looks
}

/// The pieces that an owner has of what was `near`, after setting `range` to what `new` asks, in
/// order and merged.
fn after(near: &[Held], owner: Owner, range: LockRange, new: Option<&Ask>) -> Vec<Held> {
    let mut own = Vec::new();
    for held in near {
        if !held.range.overlaps(range) {
            own.push(*held);
            continue;
        }
        if held.range.start < range.start {
            let left = LockRange { start: held.range.start, end: range.start - 1 };
            own.push(Held { range: left, ..*held });
        }
        if held.range.end > range.end {
            let right = LockRange { start: range.end + 1, end: held.range.end };
            own.push(Held { range: right, ..*held });
        }
    }
    if let Some(&Ask { kind, pid, through, .. }) = new {
        own.push(Held { range, kind, owner, pid, through });
    }
    own.sort_by_key(|held| held.range.start);
    own.dedup_by(|next, held| {
        let joins =
            held.kind == next.kind && held.range.end.checked_add(1) == Some(next.range.start);
        if joins {
            held.range.end = next.range.end;
        }
        joins
    });
    own
}

/// The callbacks to call once the table is unlocked.
#[must_use]
#[derive(Default)]
pub(crate) struct Wakes(Vec<(Wake, Result<()>)>);

impl Wakes {
    /// Calls them.
    pub(crate) fn call(self) {
        for (wake, outcome) in self.0 {
            wake(outcome);
        }
    }
}

/// How many waiting requests and holders a search for a circle looks at. A circle that is longer is
/// not found, and its waiters have to be interrupted.
const SEARCH_MAX: usize = 1024;
/// How many waiting requests are looked at again, when one lock goes, since others have been
/// granted: that takes some 10 ms.
const LOOKS_MAX: usize = 1 << 16;
/// A user's sessions together may have so many times what one may.
const USER_SESSIONS: usize = 4;

/// All locks of one volume.
#[derive(Default)]
pub(crate) struct LockTable {
    files: HashMap<Key, FileLocks>,
    /// Entries held and waiting by session, and by user.
    counts: HashMap<SessionId, usize>,
    of_users: HashMap<u32, usize>,
    /// The sessions that came here, and their users.
    users: HashMap<SessionId, u32>,
    /// The files of which a session holds locks.
    files_of: BTreeSet<(SessionId, Key)>,
    /// Where each waiting request is.
    waits: BTreeMap<WaitId, (Key, Owner)>,
    /// The requests that each owner waits for, and each session.
    waits_of: HashMap<Owner, BTreeSet<WaitId>>,
    waits_by: BTreeSet<(SessionId, WaitId)>,
    next_wait: u64,
    /// Those in whose way only programs are that are no clients, and the last that was tried again.
    outside: BTreeSet<WaitId>,
    tried: u64,
    pub(crate) retries: Retries,
}

impl LockTable {
    /// Takes note of a session of the user `uid`, before its first request.
    pub(crate) fn begin(&mut self, session: SessionId, uid: u32) {
        self.users.insert(session, uid);
    }

    /// The first lock that keeps `ask` from being granted, if one does. That of a program that is
    /// no client has no process.
    ///
    /// # Errors
    /// Those of the host.
    pub(crate) fn get(&self, ask: &Ask, through: &Through) -> Result<Option<Holder>> {
        if let Some(holder) = self.test(ask) {
            return Ok(Some(holder));
        }
        let none = Outside::default();
        let outside = self.files.get(&ask.key).map_or(&none, |file| &file.outside);
        let found = outside.test(ask, through)?;
        Ok(found.map(|(kind, range)| Holder { kind, range, pid: 0 }))
    }

    /// The first lock of a client that keeps `ask` from being granted, if one does.
    fn test(&self, ask: &Ask) -> Option<Holder> {
        let held = self.files.get(&ask.key)?.held.first_in_the_way(ask)?;
        Some(Holder { kind: held.kind, range: held.range, pid: held.pid })
    }

    /// Grants `ask` if nothing is in the way.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOLCK` beyond `limit` entries of the session.
    pub(crate) fn set(
        &mut self,
        ask: &Ask,
        through: &Through,
        limit: usize,
    ) -> (Result<()>, Wakes) {
        let mut wakes = Wakes::default();
        if self.convert(ask, &mut wakes) {
            return (Ok(()), wakes);
        }
        if self.test(ask).is_some() {
            return (Err(Errno::EAGAIN), wakes);
        }
        let new = Some((ask, through));
        let result = self.apply(ask.key, ask.owner, ask.range, new, limit);
        if result == Ok(true) {
            // A lock that became a shared one may let others in.
            self.grant(ask.key, ask.range, &mut wakes);
        }
        (result.map(drop), wakes)
    }

    /// As [`set`](Self::set), but waits for the locks that are in the way.
    ///
    /// # Errors
    /// `EDEADLK`, `ENOLCK`.
    pub(crate) fn set_or_wait(
        &mut self,
        ask: &Ask,
        through: &Through,
        limit: usize,
        wake: Wake,
    ) -> (Result<Waited>, Wakes) {
        match self.set(ask, through, limit) {
            (Err(Errno::EAGAIN), wakes) => {
                (self.wait(ask, through, limit, wake).map(Waited::Queued), wakes)
            }
            (result, wakes) => (result.map(|()| Waited::Granted), wakes),
        }
    }

    fn wait(&mut self, ask: &Ask, through: &Through, limit: usize, wake: Wake) -> Result<WaitId> {
        if !self.has_room(ask.owner.session, self.count(ask.owner.session) + 1, limit) {
            return Err(Errno::ENOLCK);
        }
        if ask.key.1 == Family::Fcntl && self.closes_circle(ask) {
            return Err(Errno::EDEADLK);
        }
        let id = WaitId(self.next_wait);
        self.next_wait += 1;
        let file = self.files.entry(ask.key).or_default();
        file.waits(ask.kind).insert(ask.range, id);
        let waits_outside = file.held.in_the_way(ask).next().is_none();
        file.waiting.insert(id, Waiting { ask: *ask, through: through.clone(), limit, wake });
        self.waits.insert(id, (ask.key, ask.owner));
        self.waits_of.entry(ask.owner).or_default().insert(id);
        self.waits_by.insert((ask.owner.session, id));
        self.set_count(ask.owner.session, self.count(ask.owner.session) + 1);
        if waits_outside {
            self.wait_outside(id);
        }
        Ok(id)
    }

    /// Whether an owner that `ask` would wait for waits, in the end, for the owner of `ask`.
    fn closes_circle(&self, ask: &Ask) -> bool {
        let mut seen = HashSet::new();
        let mut next: Vec<Owner> = match self.files.get(&ask.key) {
            Some(file) => {
                file.held.in_the_way(ask).take(SEARCH_MAX).map(|held| held.owner).collect()
            }
            None => return false,
        };
        let mut looked_at = 0;
        while let Some(owner) = next.pop() {
            if owner == ask.owner {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for id in self.waits_of.get(&owner).into_iter().flatten() {
                looked_at += 1;
                if looked_at > SEARCH_MAX {
                    return false;
                }
                let Some(file) = self.waits.get(id).and_then(|(key, _)| self.files.get(key)) else {
                    continue;
                };
                let Some(waiting) = file.waiting.get(id) else { continue };
                let most = SEARCH_MAX - looked_at;
                let before = next.len();
                next.extend(file.held.in_the_way(&waiting.ask).take(most).map(|held| held.owner));
                looked_at += next.len() - before;
            }
        }
        false
    }

    /// Lets go of `range`.
    ///
    /// # Errors
    /// `ENOLCK` when that leaves more pieces than `limit`.
    pub(crate) fn unset(
        &mut self,
        key: Key,
        owner: Owner,
        range: LockRange,
        limit: usize,
    ) -> (Result<()>, Wakes) {
        let mut wakes = Wakes::default();
        if !self.files.contains_key(&key) {
            return (Ok(()), wakes);
        }
        let result = self.apply(key, owner, range, None, limit);
        if result == Ok(true) {
            self.grant(key, range, &mut wakes);
        }
        (result.map(drop), wakes)
    }

    /// Drops the locks that `session` asked for through the open file `through`, which is closed:
    /// those of an open file description, whose owner is named nowhere else. Those of a process
    /// have gone when it closed its last descriptor of the file.
    pub fn release(&mut self, key: Key, session: SessionId, through: u64) -> Wakes {
        let mut wakes = Wakes::default();
        if self.files_of.contains(&(session, key)) {
            self.drop_held(key, session, |held| held.through == through, &mut wakes);
        }
        wakes
    }

    /// Drops the locks of `session` of one file that are `such`.
    fn drop_held(
        &mut self,
        key: Key,
        session: SessionId,
        such: impl Fn(&Held) -> bool,
        wakes: &mut Wakes,
    ) {
        let Some(file) = self.files.get_mut(&key) else { return };
        let gone = file.held.of_session(session).filter(|held| such(held));
        let gone: Vec<Held> = gone.copied().collect();
        gone.iter().for_each(|held| file.held.remove(held));
        gone.iter().for_each(|gone| file.outside.settle(key.1, &file.held, gone.range));
        self.set_count(session, self.count(session).saturating_sub(gone.len()));
        self.note_file(key, session);
        let start = gone.iter().map(|held| held.range.start).min();
        let end = gone.iter().map(|held| held.range.end).max();
        if let (Some(start), Some(end)) = (start, end) {
            self.grant(key, LockRange { start, end }, wakes);
        }
    }

    /// Ends a waiting request of `session`. One that was granted meanwhile is left as it is.
    pub(crate) fn cancel(&mut self, session: SessionId, id: WaitId) -> Wakes {
        let mut wakes = Wakes::default();
        match self.waits.get(&id) {
            Some((key, owner)) if owner.session == session => {
                let key = *key;
                if let Some(waiting) = self.take_waiting(key, id) {
                    wakes.0.push((waiting.wake, Err(Errno::EINTR)));
                }
                self.drop_if_empty(key);
            }
            _ => {}
        }
        wakes
    }

    /// Drops everything of `session`.
    pub(crate) fn end(&mut self, session: SessionId) -> Wakes {
        let mut wakes = Wakes::default();
        let own = self.waits_by.range((session, WaitId(0))..=(session, WaitId(u64::MAX)));
        let own: Vec<WaitId> = own.map(|(_, id)| *steps::count(id)).collect();
        for id in own {
            let cancelled = self.cancel(session, id);
            wakes.0.extend(cancelled.0);
        }
        // Waiting requests are woken in an order that depends on nothing but the requests.
        let first = (session, (Ino(0), Family::Fcntl));
        let last = (session, (Ino(u64::MAX), Family::Flock));
        let files: Vec<Key> = self.files_of.range(first..=last).map(|(_, key)| *key).collect();
        for key in files {
            self.drop_held(key, session, |_| true, &mut wakes);
        }
        self.users.remove(&session);
        wakes
    }

    /// The files of which `session` holds locks.
    fn files_held(&self, session: SessionId) -> Vec<Key> {
        let first = (session, (Ino(0), Family::Fcntl));
        let last = (session, (Ino(u64::MAX), Family::Flock));
        self.files_of.range(first..=last).map(|(_, key)| *key).collect()
    }

    /// What `session` holds, as it would be asked for.
    pub(crate) fn held(&self, session: SessionId) -> Vec<Ask> {
        let mut all = Vec::new();
        for key in self.files_held(session) {
            let Some(file) = self.files.get(&key) else { continue };
            all.extend(file.held.of_session(session).map(|held| {
                let Held { range, kind, owner, pid, through } = *held;
                Ask { key, owner, range, kind, pid, through }
            }));
        }
        all
    }

    /// What `from` holds is held by `to` from now on, which has begun and holds nothing: nobody can
    /// come in between.
    pub(crate) fn hand_over(&mut self, from: SessionId, to: SessionId) {
        let mut moved = 0;
        for key in self.files_held(from) {
            let Some(file) = self.files.get_mut(&key) else { continue };
            let held: Vec<Held> = file.held.of_session(from).copied().collect();
            moved += held.len();
            for mut held in held {
                file.held.remove(&held);
                held.owner.session = to;
                file.held.insert(held);
            }
            self.note_file(key, from);
            self.note_file(key, to);
        }
        self.set_count(from, self.count(from).saturating_sub(moved));
        self.set_count(to, self.count(to) + moved);
    }

    fn count(&self, session: SessionId) -> usize {
        self.counts.get(&session).copied().unwrap_or(0)
    }

    /// flock(2) by an owner that holds a lock already: for the same kind nothing is done (true),
    /// for the other kind the old lock is let go of first, as Linux does, since two owners that
    /// each hold a shared lock and ask for an exclusive one would wait for each other.
    fn convert(&mut self, ask: &Ask, wakes: &mut Wakes) -> bool {
        if ask.key.1 != Family::Flock {
            return false;
        }
        let Some(file) = self.files.get(&ask.key) else { return false };
        match file.held.around(ask.owner, ask.range).first() {
            Some(held) if held.kind == ask.kind => true,
            Some(_) => {
                // Letting go of a whole lock leaves no pieces, and so cannot fail.
                let _ = self.apply(ask.key, ask.owner, ask.range, None, usize::MAX);
                self.grant(ask.key, ask.range, wakes);
                false
            }
            None => false,
        }
    }

    /// Makes `range` of `owner` what `new` asks. Returns whether that may let others in.
    fn apply(
        &mut self,
        key: Key,
        owner: Owner,
        range: LockRange,
        new: Option<(&Ask, &Through)>,
        limit: usize,
    ) -> Result<bool> {
        let session = owner.session;
        let file = self.files.entry(key).or_default();
        let near = file.held.around(owner, range);
        let (new, through) = new.unzip();
        let own = after(&near, owner, range, new);
        let total = self.counts.get(&session).copied().unwrap_or(0);
        let after = total - near.len() + own.len();
        if after > total && !self.has_room(session, after, limit) {
            self.drop_if_empty(key);
            return Err(Errno::ENOLCK);
        }
        let Some(file) = self.files.get_mut(&key) else { return Ok(false) };
        if let (Some(ask), Some(through)) = (new, through)
            && let Err(error) = file.outside.take(&file.held, ask, through)
        {
            self.drop_if_empty(key);
            return Err(error);
        }
        near.iter().for_each(|held| file.held.remove(held));
        own.into_iter().for_each(|held| file.held.insert(held));
        if new.is_none() {
            file.outside.settle(key.1, &file.held, range);
        }
        self.set_count(session, after);
        self.note_file(key, session);
        self.drop_if_empty(key);
        let weaker = |held: &Held| match new {
            None => true,
            Some(new) => new.kind == LockKind::Shared && held.kind == LockKind::Exclusive,
        };
        Ok(near.iter().any(|held| held.range.overlaps(range) && weaker(held)))
    }

    /// Takes note of whether `session` holds locks of a file.
    fn note_file(&mut self, key: Key, session: SessionId) {
        let holds = |file: &FileLocks| file.held.of_session(session).next().is_some();
        if self.files.get(&key).is_some_and(holds) {
            self.files_of.insert((session, key));
        } else {
            self.files_of.remove(&(session, key));
        }
    }

    fn user(&self, session: SessionId) -> u32 {
        self.users.get(&session).copied().unwrap_or_default()
    }

    /// Whether `session`, one of which may have at most `limit` entries, may have `count`.
    fn has_room(&self, session: SessionId, count: usize, limit: usize) -> bool {
        let user = self.of_users.get(&self.user(session)).copied().unwrap_or(0);
        let user = user - self.count(session) + count;
        count <= limit && user <= limit.saturating_mul(USER_SESSIONS)
    }

    fn set_count(&mut self, session: SessionId, count: usize) {
        let (user, before) = (self.user(session), self.count(session));
        let of_user = self.of_users.entry(user).or_default();
        *of_user = *of_user + count - before;
        if *of_user == 0 {
            self.of_users.remove(&user);
        }
        if count == 0 {
            self.counts.remove(&session);
        } else {
            self.counts.insert(session, count);
        }
    }

    /// Grants the waiting requests that need not wait any more, in the order of asking, when locks
    /// of `freed` have gone or become shared ones.
    ///
    /// Each request that asks for freed bytes is looked at once. One that is granted may replace an
    /// exclusive lock of the same owner by a shared one, for which requests for shared locks
    /// waited: those are looked at again, also if they come before it. After [`LOOKS_MAX`] such
    /// looks a request that lets others in is refused (`ENOLCK`).
    fn grant(&mut self, key: Key, freed: LockRange, wakes: &mut Wakes) {
        let mut next = BTreeSet::new();
        if let Some(file) = self.files.get(&key) {
            add_asking(&file.for_shared, freed, &mut next);
            add_asking(&file.for_exclusive, freed, &mut next);
        }
        let mut looks = 0;
        while let Some(id) = next.pop_first() {
            let Some(file) = self.files.get(&key) else { break };
            let Some(waiting) = file.waiting.get(steps::count(&id)) else { continue };
            let ask = waiting.ask;
            if file.held.in_the_way(&ask).next().is_some() {
                continue;
            }
            let lets_in = ask.kind == LockKind::Shared && file.held.has_exclusive(&ask);
            if lets_in && looks >= LOOKS_MAX {
                let Some(waiting) = self.take_waiting(key, id) else { break };
                wakes.0.push((waiting.wake, Err(Errno::ENOLCK)));
                continue;
            }
            if self.grant_one(key, id, wakes)
                && let Some(file) = self.files.get(&key)
            {
                looks += add_asking(&file.for_shared, ask.range, &mut next);
            }
        }
        self.drop_if_empty(key);
    }

    /// Ends the wait of a request in whose way no client's lock is, unless another program's is.
    /// Returns whether that may let others in.
    fn grant_one(&mut self, key: Key, id: WaitId, wakes: &mut Wakes) -> bool {
        let Some(file) = self.files.get_mut(&key) else { return false };
        let Some(Waiting { ask, through, limit, .. }) = file.waiting.get(&id) else { return false };
        let (ask, through, limit) = (*ask, through.clone(), *limit);
        // As the one that waits it does not count any more.
        let session = ask.owner.session;
        let count = self.count(session).saturating_sub(1);
        self.set_count(session, count);
        let granted = self.apply(key, ask.owner, ask.range, Some((&ask, &through)), limit);
        let count = self.count(session) + 1;
        self.set_count(session, count);
        if granted == Err(Errno::EAGAIN) {
            self.wait_outside(id);
            return false;
        }
        if let Some(waiting) = self.take_waiting(key, id) {
            wakes.0.push((waiting.wake, granted.map(drop)));
        }
        granted == Ok(true)
    }

    /// In the way of this request is only a program that is no client.
    fn wait_outside(&mut self, id: WaitId) {
        let first = self.outside.is_empty();
        if self.outside.insert(id)
            && first
            && let Some(bell) = self.retries.bell.get()
        {
            bell.ring();
        }
    }

    /// Tries some of the requests again that wait for programs which are no clients. Returns
    /// whether there are such.
    pub(crate) fn retry(&mut self) -> (Wakes, bool) {
        let mut wakes = Wakes::default();
        let next = self.outside.range(WaitId(self.tried)..).take(RETRIES);
        let next: Vec<WaitId> = next.copied().collect();
        self.tried = if next.len() < RETRIES { 0 } else { next[RETRIES - 1].0 + 1 };
        for id in next {
            let place = self.waits.get(&id).map(|(key, _)| *key);
            let Some(key) = place else { continue };
            let Some(file) = self.files.get(&key) else { continue };
            let Some(ask) = file.waiting.get(&id).map(|waiting| waiting.ask) else { continue };
            // A client's has come before: the grant that follows it tries again.
            if file.held.in_the_way(&ask).next().is_some() {
                self.outside.remove(&id);
                continue;
            }
            if self.grant_one(key, id, &mut wakes) {
                self.grant(key, ask.range, &mut wakes);
            }
        }
        (wakes, !self.outside.is_empty())
    }

    fn take_waiting(&mut self, key: Key, id: WaitId) -> Option<Waiting> {
        let file = self.files.get_mut(&key)?;
        let waiting = file.waiting.remove(&id)?;
        file.waits(waiting.ask.kind).remove(waiting.ask.range, id);
        self.waits.remove(&id);
        self.outside.remove(&id);
        self.waits_by.remove(&(waiting.ask.owner.session, id));
        let owner = waiting.ask.owner;
        if let Some(own) = self.waits_of.get_mut(&owner) {
            own.remove(&id);
            if own.is_empty() {
                self.waits_of.remove(&owner);
            }
        }
        let count = self.count(owner.session).saturating_sub(1);
        self.set_count(owner.session, count);
        Some(waiting)
    }

    fn drop_if_empty(&mut self, key: Key) {
        if self.files.get(&key).is_some_and(|f| f.held.is_empty() && f.waiting.is_empty()) {
            self.files.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
