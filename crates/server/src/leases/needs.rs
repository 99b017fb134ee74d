//! Which notices an answer waits for: those of the inodes that it goes by, and no others. A mount
//! that is late to forget one file holds up no client that works on another.
//!
//! # Why that is enough
//!
//! A kernel shows old data of an inode from a change until it has taken the notice of the change.
//! Until then nobody may learn of it. Only a client that has called for that inode could, since a
//! call goes by nothing but the inodes that it names and finds; a client that has not called for it
//! does not know whether the change was before its own call. The answer of each call waits for the
//! notices of all inodes that it went by ([`Involved`]): those that it has caused, and those that
//! were on the way.
//!
//! A change of several inodes is one: a client that sees it in one of them knows what it was made
//! from. So each inode that a change went by gets all notices that the change had to wait for
//! ([`Needs::join`]): after a link of a file that a kernel still shows as it was, a call that looks
//! into the directory waits for that kernel, though nobody has cached the directory. A call that
//! only looks joins nothing: its client learns what it saw from its answer, and that waits.
//!
//! Calls that say nothing of what they go by, such as statfs(2), wait for all notices.
//!
//! All of this happens under the volume's lock, under which notices are queued too: no other call
//! comes between.

use std::collections::HashMap;

use atoll_vfs::Ino;

/// The most inodes that a call goes by: a rename's two directories, what it moves and what it
/// replaces.
const INVOLVED_MAX: usize = 4;
/// This many inodes may be remembered before those whose notices are done are dropped.
const PRUNE_MIN: usize = 1024;

/// Names a mount in its volume's [`Gate`](crate::leases::gate::Gate); never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortId(pub(crate) u64);

/// The notices that have to be done before an answer is given: for each mount, how many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ticket(pub(crate) Vec<(PortId, u64)>);

impl Ticket {
    fn add(&mut self, (port, count): (PortId, u64)) {
        match self.0.iter_mut().find(|(other, _)| *other == port) {
            Some((_, other)) => *other = count.max(*other),
            None => self.0.push((port, count)),
        }
    }

    /// Adds all notices of `other`.
    pub fn merge(&mut self, other: &Ticket) {
        other.0.iter().for_each(|&need| self.add(need));
    }
}

/// The inodes, by the volume's numbers, that the call under way goes by.
#[derive(Debug)]
pub(crate) struct Involved {
    inodes: [Ino; INVOLVED_MAX],
    count: usize,
    /// There may be others.
    open: bool,
    changes: bool,
}

impl Default for Involved {
    fn default() -> Self {
        Involved { inodes: [Ino(0); INVOLVED_MAX], count: 0, open: false, changes: false }
    }
}

impl Involved {
    /// A call begins.
    #[inline]
    pub fn begin(&mut self) {
        (self.count, self.open, self.changes) = (0, false, false);
    }

    /// The call goes by `ino`.
    #[inline]
    pub fn add(&mut self, ino: Ino) {
        if self.inodes[..self.count].contains(&ino) {
            return;
        }
        match self.inodes.get_mut(self.count) {
            Some(place) => {
                *place = ino;
                self.count += 1;
            }
            None => self.open = true,
        }
    }

    /// The call goes by more than it says.
    pub fn add_all(&mut self) {
        self.open = true;
    }

    /// The call has changed `ino`.
    #[inline]
    pub fn change(&mut self, ino: Ino) {
        self.changes = true;
        self.add(ino);
    }

    /// The inodes that the call is known to go by.
    pub fn inodes(&self) -> &[Ino] {
        &self.inodes[..self.count]
    }

    /// Whether the call may go by others.
    pub fn is_open(&self) -> bool {
        self.open || self.count == 0
    }

    /// Whether the call has changed anything.
    pub fn changes(&self) -> bool {
        self.changes
    }
}

/// For each inode the notices on the way that a call which goes by it waits for.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    by_inode: HashMap<Ino, Ticket>,
    /// How many inodes there may be until those that are done are dropped.
    room: usize,
}

impl Needs {
    /// From now on a call that goes by `ino` waits for `need`. `is_done` says which tickets nobody
    /// has to wait for any more.
    pub fn add(&mut self, ino: Ino, need: (PortId, u64), is_done: impl Fn(&Ticket) -> bool) {
        if self.by_inode.len() >= self.room.max(PRUNE_MIN) {
            self.by_inode.retain(|_, ticket| !is_done(ticket));
            self.room = 2 * self.by_inode.len();
        }
        self.by_inode.entry(ino).or_default().add(need);
    }

    /// The notices that a call which goes by `inodes` waits for, done or not.
    pub fn of(&self, inodes: &[Ino]) -> Ticket {
        let mut all = Ticket::default();
        for ticket in inodes.iter().filter_map(|ino| self.by_inode.get(ino)) {
            all.merge(ticket);
        }
        all
    }

    /// From now on a call that goes by an inode of a changing call waits for `all`, as that call's
    /// answer does.
    pub fn join(&mut self, involved: &Involved, all: &Ticket) {
        for &ino in involved.inodes() {
            self.by_inode.insert(ino, all.clone());
        }
    }

    /// All notices are done.
    pub fn clear(&mut self) {
        if self.by_inode.len() > PRUNE_MIN {
            *self = Needs::default();
        } else {
            self.by_inode.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_call_goes_by() {
        let mut involved = Involved::default();
        assert!(involved.is_open(), "who says nothing goes by everything");
        for ino in [1, 2, 1, 3, 4, 2] {
            involved.add(Ino(ino));
            assert!(!involved.is_open());
        }
        assert_eq!(involved.inodes(), [1, 2, 3, 4].map(Ino));
        involved.change(Ino(5));
        assert!(involved.is_open() && involved.changes(), "more than there is room for");
        involved.begin();
        involved.add(Ino(9));
        assert!(!involved.is_open() && !involved.changes());
        involved.add_all();
        assert!(involved.is_open());
    }

    #[test]
    fn what_is_done_takes_no_room() {
        let mut needs = Needs::default();
        for ino in 0..100 * PRUNE_MIN as u64 {
            // Every second one is done.
            needs.add(Ino(ino), (PortId::default(), ino), |ticket| {
                ticket.0[0].1 % 2 == 0 || ticket.0[0].1 + 3000 < ino
            });
            assert!(needs.by_inode.len() <= 8 * PRUNE_MIN);
        }
        needs.clear();
        assert_eq!(needs.by_inode.capacity(), 0);
    }
}
