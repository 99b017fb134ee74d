//! The locks that are held, of one kind of one file: found by their owner, and by their bytes.
//!
//! Locks of one owner do not overlap, and neither do exclusive ones of all owners. Shared ones may.
//! An owner may have thousands, which are in its own way nowhere: those of one owner that follow
//! each other are passed over at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::lengths::Ranges;
use super::steps;
use super::{Ask, LockKind, LockRange, Owner};
use crate::rights::identity::SessionId;

/// A lock that is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub range: LockRange,
    pub kind: LockKind,
    pub owner: Owner,
    pub pid: u32,
    pub through: u64,
}

/// The lock before all others of a session.
fn first(session: SessionId) -> (Owner, u64) {
    (Owner { session, number: 0 }, 0)
}

/// The lock behind all others of a session.
fn last(session: SessionId) -> (Owner, u64) {
    (Owner { session, number: u64::MAX }, u64::MAX)
}

/// Locks that are held.
pub(super) struct HeldLocks {
    /// By owner and first byte.
    all: BTreeMap<(Owner, u64), Held>,
    /// The exclusive ones by first byte: the last, and the owner.
    exclusive: BTreeMap<u64, (u64, Owner)>,
    /// The first bytes of those that follow none of the same owner.
    runs: BTreeSet<u64>,
    /// The shared ones.
    shared: Ranges<Owner>,
}

impl Default for HeldLocks {
    fn default() -> Self {
        let owners = (first(SessionId(0)).0, last(SessionId(u64::MAX)).0);
        let shared = Ranges::new(owners.0, owners.1);
        let (all, exclusive, runs) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        HeldLocks { all, exclusive, runs, shared }
    }
}

impl HeldLocks {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// All of them, in the order of owners.
    pub fn all(&self) -> impl Iterator<Item = &Held> {
        self.all.values()
    }

    /// Those of all owners that overlap `range`, in the order of bytes.
    pub fn within(&self, range: LockRange) -> Vec<Held> {
        let exclusive = self.exclusive.range(..=range.end).rev().map(steps::count);
        let exclusive = exclusive.take_while(|(_, (end, _))| *end >= range.start);
        let exclusive = exclusive.map(|(&start, &(_, owner))| (owner, start));
        // Nobody's name, so that no lock is left out.
        let nobody = last(SessionId(u64::MAX)).0;
        let lengths = self.shared.lengths();
        let shared = lengths.flat_map(|length| self.shared.others(length, range, nobody));
        // Some are found twice.
        let places: BTreeSet<_> = exclusive.chain(shared).collect();
        let found = places.iter().filter_map(|place| self.all.get(place));
        let mut found: Vec<Held> = found.copied().collect();
        found.sort_by_key(|held| held.range.start);
        found
    }

    /// Those of `session`, in the order of owners and bytes.
    pub fn of_session(&self, session: SessionId) -> impl Iterator<Item = &Held> {
        self.all.range(first(session)..=last(session)).map(|(_, held)| steps::count(held))
    }

    /// Those of `owner` that overlap `range` or touch it, in the order of bytes.
    pub fn around(&self, owner: Owner, range: LockRange) -> Vec<Held> {
        let (from, to) = ((owner, 0), (owner, range.end.saturating_add(1)));
        let near = self.all.range(from..=to).rev().map(|(_, held)| steps::count(held));
        let near = near.take_while(|held| held.range.end.saturating_add(1) >= range.start);
        let mut near: Vec<Held> = near.copied().collect();
        near.reverse();
        near
    }

    pub fn insert(&mut self, held: Held) {
        let Held { range, owner, .. } = held;
        self.all.insert((owner, range.start), held);
        match held.kind {
            LockKind::Exclusive => {
                self.exclusive.insert(range.start, (range.end, owner));
                self.note_runs(range.start);
            }
            LockKind::Shared => {
                self.shared.insert(range, owner);
            }
        }
    }

    pub fn remove(&mut self, held: &Held) {
        let Held { range, owner, .. } = *held;
        self.all.remove(&(owner, range.start));
        match held.kind {
            LockKind::Exclusive => {
                self.exclusive.remove(&range.start);
                self.note_runs(range.start);
            }
            LockKind::Shared => {
                self.shared.remove(range, owner);
            }
        }
    }

    /// Takes note of whether the exclusive locks at `start`, where one came or went, and behind it
    /// follow one of their owner.
    fn note_runs(&mut self, start: u64) {
        let mut before = self.exclusive.range(..start).next_back().map(|(_, lock)| lock.1);
        self.runs.remove(&start);
        for (&start, &(_, owner)) in self.exclusive.range(start..).take(2) {
            if before.replace(owner) == Some(owner) {
                self.runs.remove(&start);
            } else {
                self.runs.insert(start);
            }
        }
    }

    /// The exclusive locks of others than `owner` that overlap `range`, in the order of bytes.
    fn exclusive_of_others(
        &self,
        owner: Owner,
        range: LockRange,
    ) -> impl Iterator<Item = (Owner, u64)> {
        // They do not overlap: one that begins before may reach into it.
        let before = self.exclusive.range(..range.start).next_back().map(steps::count);
        let before = before.filter(move |(_, (end, other))| *end >= range.start && *other != owner);
        let before = before.map(|(&start, &(_, other))| (other, start));
        let mut from = Bound::Included(range.start);
        let within = std::iter::from_fn(move || {
            let until = Bound::Included(range.end);
            let (&start, &(_, other)) = steps::count(self.exclusive.range((from, until)).next()?);
            from = Bound::Excluded(start);
            if other != owner {
                return Some((other, start));
            }
            // The run that follows is another's.
            let start = *steps::count(self.runs.range((from, until)).next()?);
            from = Bound::Excluded(start);
            Some((self.exclusive.get(&start)?.1, start))
        });
        before.into_iter().chain(within)
    }

    /// The locks that keep `ask` from being granted, some twice.
    pub fn in_the_way<'a>(&'a self, ask: &'a Ask) -> impl Iterator<Item = &'a Held> {
        let range = ask.range;
        let exclusive = self.exclusive_of_others(ask.owner, range);
        let lengths = self.shared.lengths().filter(|_| ask.kind == LockKind::Exclusive);
        let shared = lengths.flat_map(move |length| self.shared.others(length, range, ask.owner));
        exclusive.chain(shared).filter_map(|place| self.all.get(&place))
    }

    /// Whether the owner of `ask`, for whom nothing is in the way, has an exclusive lock of some of
    /// its bytes: no other has.
    pub fn has_exclusive(&self, ask: &Ask) -> bool {
        let last = self.exclusive.range(..=ask.range.end).next_back();
        last.is_some_and(|(_, (end, _))| *end >= ask.range.start)
    }

    /// A lock that keeps `ask` from the first byte that it cannot have.
    pub fn first_in_the_way(&self, ask: &Ask) -> Option<&Held> {
        let range = ask.range;
        let exclusive = self.exclusive_of_others(ask.owner, range).next();
        let lengths = self.shared.lengths().filter(|_| ask.kind == LockKind::Exclusive);
        let shared =
            lengths.filter_map(|length| self.shared.others(length, range, ask.owner).next());
        let first =
            exclusive.into_iter().chain(shared).min_by_key(|place| place.1.max(range.start));
        self.all.get(&first?)
    }
}
