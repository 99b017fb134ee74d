//! The locks that are held, of one kind of one file: found by their owner, and by their bytes.
//!
//! Locks of one owner do not overlap, and neither do exclusive ones of all owners. Shared ones may.

use std::collections::BTreeMap;

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
    /// The shared ones.
    shared: Ranges<Owner>,
}

impl Default for HeldLocks {
    fn default() -> Self {
        let owners = (first(SessionId(0)).0, last(SessionId(u64::MAX)).0);
        let shared = Ranges::new(owners.0, owners.1);
        HeldLocks { all: BTreeMap::new(), exclusive: BTreeMap::new(), shared }
    }
}

impl HeldLocks {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
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
            }
            LockKind::Shared => {
                self.shared.remove(range, owner);
            }
        }
    }

    /// The locks that keep `ask` from being granted.
    pub fn in_the_way<'a>(&'a self, ask: &'a Ask) -> impl Iterator<Item = &'a Held> {
        let range = ask.range;
        let exclusive = self.exclusive.range(..=range.end).rev();
        let exclusive = exclusive.map(steps::count);
        let exclusive = exclusive.take_while(move |(_, (end, _))| *end >= range.start);
        let exclusive = exclusive.map(|(&start, &(_, owner))| (owner, start));
        let lengths = self.shared.lengths().filter(|_| ask.kind == LockKind::Exclusive);
        let shared = lengths.flat_map(move |length| self.shared.reaching(length, range));
        exclusive
            .chain(shared)
            .filter(|(owner, _)| *owner != ask.owner)
            .filter_map(|place| self.all.get(&place))
    }

    /// Whether the owner of `ask`, for whom nothing is in the way, has an exclusive lock of some of
    /// its bytes: no other has.
    pub fn has_exclusive(&self, ask: &Ask) -> bool {
        let last = self.exclusive.range(..=ask.range.end).next_back();
        last.is_some_and(|(_, (end, _))| *end >= ask.range.start)
    }

    /// The first lock, in the order of bytes, that keeps `ask` from being granted.
    pub fn first_in_the_way(&self, ask: &Ask) -> Option<&Held> {
        let range = ask.range;
        let anothers = |(owner, _): &(Owner, u64)| *owner != ask.owner;
        // They do not overlap: one that begins before may reach into it.
        let before = self.exclusive.range(..range.start).next_back();
        let within = self.exclusive.range(range.start..=range.end);
        let exclusive = before.into_iter().chain(within).map(steps::count);
        let mut exclusive = exclusive
            .filter(|(_, (end, _))| *end >= range.start)
            .map(|(&start, &(_, owner))| (owner, start));
        let lengths = self.shared.lengths().filter(|_| ask.kind == LockKind::Exclusive);
        let shared =
            lengths.filter_map(|length| self.shared.reaching(length, range).find(anothers));
        let first =
            exclusive.find(anothers).into_iter().chain(shared).min_by_key(|place| place.1)?;
        self.all.get(&first)
    }
}
