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
//! Every entry, held or waiting, counts against its session's limit, so that the table is bounded
//! by the sessions' limits together.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use atoll_vfs::{Errno, Ino, Result};

use crate::rights::identity::SessionId;

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// F_RDLCK, LOCK_SH.
    Shared,
    /// F_WRLCK, LOCK_EX.
    Exclusive,
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

#[derive(Clone, Copy, Debug)]
struct Held {
    range: LockRange,
    kind: LockKind,
    owner: Owner,
    pid: u32,
    through: u64,
}

struct Waiting {
    id: WaitId,
    ask: Ask,
    limit: usize,
    wake: Wake,
}

#[derive(Default)]
struct FileLocks {
    held: Vec<Held>,
    waiting: VecDeque<Waiting>,
}

impl FileLocks {
    /// The locks that keep `ask` from being granted.
    fn in_the_way<'a>(&'a self, ask: &'a Ask) -> impl Iterator<Item = &'a Held> {
        self.held.iter().filter(|held| {
            held.owner != ask.owner
                && held.range.overlaps(ask.range)
                && (held.kind == LockKind::Exclusive || ask.kind == LockKind::Exclusive)
        })
    }

    /// The locks that `owner` would hold after setting `range` to what `new` asks, in order and
    /// merged.
    fn after(&self, owner: Owner, range: LockRange, new: Option<&Ask>) -> Vec<Held> {
        let mut own = Vec::new();
        for held in self.held.iter().filter(|held| held.owner == owner) {
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

/// How many waiting requests a search for a circle looks at. A circle that is longer is not found,
/// and its waiters have to be interrupted.
const SEARCH_MAX: usize = 1024;

/// All locks of one volume.
#[derive(Default)]
pub(crate) struct LockTable {
    files: HashMap<Key, FileLocks>,
    /// Entries held and waiting by session.
    counts: HashMap<SessionId, usize>,
    /// Where each waiting request is.
    waits: BTreeMap<WaitId, (Key, Owner)>,
    /// The requests that each owner waits for.
    waits_of: HashMap<Owner, Vec<WaitId>>,
    next_wait: u64,
}

impl LockTable {
    /// The lock that keeps `ask` from being granted, if one does.
    pub(crate) fn test(&self, ask: &Ask) -> Option<Holder> {
        let held = self.files.get(&ask.key)?.in_the_way(ask).next()?;
        Some(Holder { kind: held.kind, range: held.range, pid: held.pid })
    }

    /// Grants `ask` if nothing is in the way.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOLCK` beyond `limit` entries of the session.
    pub(crate) fn set(&mut self, ask: &Ask, limit: usize) -> (Result<()>, Wakes) {
        let mut wakes = Wakes::default();
        if self.convert(ask, &mut wakes) {
            return (Ok(()), wakes);
        }
        if self.test(ask).is_some() {
            return (Err(Errno::EAGAIN), wakes);
        }
        let result = self.apply(ask.key, ask.owner, ask.range, Some(ask), limit);
        // A lock that became a shared one may let others in.
        self.grant(ask.key, &mut wakes);
        (result, wakes)
    }

    /// As [`set`](Self::set), but waits for the locks that are in the way.
    ///
    /// # Errors
    /// `EDEADLK`, `ENOLCK`.
    pub(crate) fn set_or_wait(
        &mut self,
        ask: &Ask,
        limit: usize,
        wake: Wake,
    ) -> (Result<Waited>, Wakes) {
        match self.set(ask, limit) {
            (Err(Errno::EAGAIN), wakes) => (self.wait(ask, limit, wake).map(Waited::Queued), wakes),
            (result, wakes) => (result.map(|()| Waited::Granted), wakes),
        }
    }

    fn wait(&mut self, ask: &Ask, limit: usize, wake: Wake) -> Result<WaitId> {
        if self.count(ask.owner.session) >= limit {
            return Err(Errno::ENOLCK);
        }
        if ask.key.1 == Family::Fcntl && self.closes_circle(ask) {
            return Err(Errno::EDEADLK);
        }
        let id = WaitId(self.next_wait);
        self.next_wait += 1;
        let file = self.files.entry(ask.key).or_default();
        file.waiting.push_back(Waiting { id, ask: *ask, limit, wake });
        self.waits.insert(id, (ask.key, ask.owner));
        self.waits_of.entry(ask.owner).or_default().push(id);
        *self.counts.entry(ask.owner.session).or_default() += 1;
        Ok(id)
    }

    /// Whether an owner that `ask` would wait for waits, in the end, for the owner of `ask`.
    fn closes_circle(&self, ask: &Ask) -> bool {
        let mut seen = HashSet::new();
        let mut next: Vec<Owner> = match self.files.get(&ask.key) {
            Some(file) => file.in_the_way(ask).map(|held| held.owner).collect(),
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
                let Some(waiting) = file.waiting.iter().find(|waiting| waiting.id == *id) else {
                    continue;
                };
                next.extend(file.in_the_way(&waiting.ask).map(|held| held.owner));
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
        self.grant(key, &mut wakes);
        (result, wakes)
    }

    /// Drops the locks that `session` asked for through the open file `through`, which is closed:
    /// those of an open file description, whose owner is named nowhere else. Those of a process
    /// have gone when it closed its last descriptor of the file.
    pub fn release(&mut self, key: Key, session: SessionId, through: u64) -> Wakes {
        let mut wakes = Wakes::default();
        let Some(file) = self.files.get_mut(&key) else { return wakes };
        let before = file.held.len();
        file.held.retain(|held| held.owner.session != session || held.through != through);
        let gone = before - file.held.len();
        if gone > 0 {
            self.set_count(session, self.count(session).saturating_sub(gone));
            self.grant(key, &mut wakes);
        }
        wakes
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
        if self.count(session) == 0 {
            return wakes;
        }
        let own: Vec<WaitId> = self
            .waits
            .iter()
            .filter(|(_, (_, owner))| owner.session == session)
            .map(|(id, _)| *id)
            .collect();
        for id in own {
            let cancelled = self.cancel(session, id);
            wakes.0.extend(cancelled.0);
        }
        let mut freed = Vec::new();
        for (key, file) in &mut self.files {
            let before = file.held.len();
            file.held.retain(|held| held.owner.session != session);
            if file.held.len() != before {
                freed.push(*key);
            }
        }
        self.counts.remove(&session);
        // Waiting requests are woken in an order that depends on nothing but the requests.
        freed.sort_unstable();
        for key in freed {
            self.grant(key, &mut wakes);
        }
        wakes
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
        match file.held.iter().find(|held| held.owner == ask.owner) {
            Some(held) if held.kind == ask.kind => true,
            Some(_) => {
                // Letting go of a whole lock leaves no pieces, and so cannot fail.
                let _ = self.apply(ask.key, ask.owner, ask.range, None, usize::MAX);
                self.grant(ask.key, wakes);
                false
            }
            None => false,
        }
    }

    /// Makes `range` of `owner` what `new` asks.
    fn apply(
        &mut self,
        key: Key,
        owner: Owner,
        range: LockRange,
        new: Option<&Ask>,
        limit: usize,
    ) -> Result<()> {
        let file = self.files.entry(key).or_default();
        let own = file.after(owner, range, new);
        let before = file.held.iter().filter(|held| held.owner == owner).count();
        let total = self.counts.get(&owner.session).copied().unwrap_or(0);
        let after = total - before + own.len();
        if after > total && after > limit {
            self.drop_if_empty(key);
            return Err(Errno::ENOLCK);
        }
        file.held.retain(|held| held.owner != owner);
        file.held.extend(own);
        self.set_count(owner.session, after);
        Ok(())
    }

    fn set_count(&mut self, session: SessionId, count: usize) {
        if count == 0 {
            self.counts.remove(&session);
        } else {
            self.counts.insert(session, count);
        }
    }

    /// Grants the waiting requests that need not wait any more, in the order of asking.
    fn grant(&mut self, key: Key, wakes: &mut Wakes) {
        let mut at = 0;
        while let Some(file) = self.files.get(&key) {
            let Some(waiting) = file.waiting.get(at) else { break };
            if file.in_the_way(&waiting.ask).next().is_some() {
                at += 1;
                continue;
            }
            let id = waiting.id;
            let own = |held: &Held| held.owner == waiting.ask.owner;
            // A granted request may replace an exclusive lock of the same owner by a shared one,
            // for which requests before it in the queue waited.
            let again = waiting.ask.kind == LockKind::Shared && file.held.iter().any(own);
            let Some(Waiting { ask, limit, wake, .. }) = self.take_waiting(key, id) else { break };
            let granted = self.apply(key, ask.owner, ask.range, Some(&ask), limit);
            if again {
                at = 0;
            }
            wakes.0.push((wake, granted));
        }
        self.drop_if_empty(key);
    }

    fn take_waiting(&mut self, key: Key, id: WaitId) -> Option<Waiting> {
        let file = self.files.get_mut(&key)?;
        let at = file.waiting.iter().position(|waiting| waiting.id == id)?;
        let waiting = file.waiting.remove(at)?;
        self.waits.remove(&id);
        let owner = waiting.ask.owner;
        if let Some(own) = self.waits_of.get_mut(&owner) {
            own.retain(|other| *other != id);
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
