//! Which inodes a session may name.
//!
//! A client names inodes by number, and numbers can be guessed. A client that may search every
//! directory of the volume anyway, root with the whole volume, may name every inode. All others may
//! name the inodes that the session has given out: the results of lookup and of the calls that make
//! files.
//!
//! The session remembers these in a table of bounded size. When it is full, inodes get a second
//! chance in turn, directories some more: one that was not named in the last rounds and is not open
//! is forgotten. Naming a forgotten file is `ESTALE`, upon which a client looks its path up again.
//! A forgotten directory is admitted again if the caller may search the way up from it to the
//! session's root.
//!
//! Where the file system keeps something for each inode that clients know (a directory of the
//! host), the table is kept for every session, whatever it may name, and its places count for the
//! user too ([`known`](crate::open::known)). There a forgotten inode is the file system's to forget
//! as well.
//!
//! A directory that another client moves out of the subtree of a session is no longer inside, and
//! with it all beneath: moves are counted, and after one a directory's way up is walked again
//! before anything is looked up, listed or made in it. Where others than clients move directories
//! too, a directory that they move outside is the session's still, as it would be for a process
//! that has it open; what `..` leads to from there is not.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use atoll_vfs::{Attr, Context, Errno, FileSystem, Ino, Name, Result};

use crate::leases::needs::Involved;
use crate::open::known::Part;
use crate::rights::accounts::Room;
use crate::rights::permissions::Caller;

/// The longest way up that is walked, so that a deep tree cannot hold up all others: less than a
/// millisecond.
const DEPTH_MAX: usize = 1024;

/// The rounds that pass before an inode is forgotten which is not named any more.
const CHANCES: u8 = 1;
/// The same for a directory: other inodes are found by it.
const CHANCES_OF_DIRECTORY: u8 = 3;

/// Bytes of the server's memory that a slot takes, with what finds it.
pub(crate) const SLOT_BYTES: u64 = 112;

#[derive(Debug)]
struct Slot {
    /// `None` for a free slot.
    ino: Option<Ino>,
    /// References given and not taken back by forget.
    count: u64,
    /// Open handles.
    open: u32,
    is_dir: bool,
    /// How often the hand passes before it is forgotten.
    chances: u8,
    /// The count of moves when the directory was last known to be inside.
    moves: u64,
}

impl Slot {
    /// It is named.
    #[inline]
    fn named(&mut self) {
        self.chances = if self.is_dir { CHANCES_OF_DIRECTORY } else { CHANCES };
    }
}

/// The inodes that a session may name.
#[derive(Debug)]
pub(crate) struct Inodes {
    /// The volume's number for the session's root, which its client calls 1.
    top: Ino,
    /// Whether every inode of the volume may be named.
    all: bool,
    limit: usize,
    /// The inodes that the user's share allows within that.
    room: Room,
    slot_of: HashMap<Ino, usize>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    hand: usize,
    /// Inodes forgotten and not asked for yet, if anybody asks, and how often the client was given
    /// each where the file system counts that.
    forgotten: Option<Vec<(Ino, u64)>>,
    /// The user's part of what clients know, where the file system counts it.
    known: Option<Part>,
    /// How often a kernel was given each inode, where it may name all and the table is not kept.
    lookups: Option<HashMap<Ino, u64>>,
}

impl Inodes {
    pub(crate) fn new(top: Ino, all: bool, limit: usize, room: Room) -> Self {
        Inodes {
            top,
            all: all && top == Ino::ROOT,
            limit,
            room,
            slot_of: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            hand: 0,
            forgotten: None,
            known: None,
            lookups: None,
        }
    }

    /// From here on it is known which inodes the client [knows](Self::knows).
    pub(crate) fn count_lookups(&mut self) {
        if !self.is_counted() {
            self.lookups.get_or_insert_default();
        }
    }

    /// The client is given `ino` once more, which is not the file system's to count.
    #[inline]
    pub(crate) fn looked_up(&mut self, ino: Ino) {
        if let Some(lookups) = &mut self.lookups {
            let count = lookups.entry(ino).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// From here on it is known how often each inode was given, also where all may be named, and
    /// each counts as `part` of what its user knows.
    pub(crate) fn count(&mut self, part: Part) {
        self.known = Some(part);
        self.tell_forgotten();
    }

    /// The inodes that the client was given and has not forgotten, and how often; they are not its
    /// any more.
    pub(crate) fn drain(&mut self) -> Vec<(Ino, u64)> {
        let given = self.given();
        self.slot_of.clear();
        self.slots.clear();
        given
    }

    /// The inodes that the client was given, and how often, where that is known.
    pub(crate) fn given(&self) -> Vec<(Ino, u64)> {
        self.slots.iter().filter_map(|slot| slot.ino.map(|ino| (ino, slot.count))).collect()
    }

    /// Takes note that the client was given `ino`, which it was given once, `count` times more.
    /// Returns how many of these count.
    pub(crate) fn recall(&mut self, ino: Ino, count: u64) -> u64 {
        let Some(&slot) = self.slot_of.get(&ino) else { return 0 };
        self.slots[slot].count = self.slots[slot].count.saturating_add(count);
        count
    }

    /// Whether it is known which inodes were given: nobody wants to where the session may name all,
    /// unless the file system counts them.
    #[inline]
    pub(crate) fn is_counted(&self) -> bool {
        !self.all || self.known.is_some()
    }

    /// The volume's number of the session's root.
    pub(crate) fn top(&self) -> Ino {
        self.top
    }

    /// The volume's number for the client's number `ino`, whether or not it may name it.
    ///
    /// # Errors
    /// `ESTALE` for a number that can stand for nothing.
    #[inline]
    pub(crate) fn inner(&self, ino: Ino) -> Result<Ino> {
        match ino {
            Ino::ROOT => Ok(self.top),
            ino if ino == self.top => Err(Errno::ESTALE),
            ino => Ok(ino),
        }
    }

    /// The client's number for the volume's number `ino`.
    #[inline]
    pub(crate) fn outer(&self, ino: Ino) -> Ino {
        if ino == self.top { Ino::ROOT } else { ino }
    }

    /// `attr` with the client's number.
    #[inline]
    pub(crate) fn shown(&self, attr: Attr) -> Attr {
        Attr { ino: self.outer(attr.ino), ..attr }
    }

    /// The volume's number for the client's number `ino`, which it may name.
    ///
    /// # Errors
    /// `ESTALE` for an inode that this session was not given.
    pub(crate) fn named(&mut self, ino: Ino) -> Result<Ino> {
        let ino = self.inner(ino)?;
        if !self.is_counted() || ino == self.top {
            return Ok(ino);
        }
        match self.slot_of.get(&ino) {
            Some(&slot) => self.slots[slot].named(),
            None if self.all => {}
            None => return Err(Errno::ESTALE),
        }
        Ok(ino)
    }

    /// As [`named`](Self::named) for a directory in which something is looked up, listed or made;
    /// `moves` is the volume's count of moves.
    ///
    /// # Errors
    /// `ESTALE` for one that this session was not given or that is outside of it; `ENOTDIR`.
    pub(crate) fn directory(
        &mut self,
        (fs, involved): (&mut impl FileSystem, &mut Involved),
        cx: &Context,
        caller: &Caller<'_>,
        moves: u64,
        ino: Ino,
    ) -> Result<Ino> {
        if self.all {
            return self.named(ino);
        }
        let ino = self.inner(ino)?;
        if ino == self.top {
            return Ok(ino);
        }
        if let Some(&slot) = self.slot_of.get(&ino) {
            let slot = &mut self.slots[slot];
            slot.named();
            // In a whole volume nothing can be moved outside.
            if slot.moves == moves || self.top == Ino::ROOT {
                return Ok(ino);
            }
            involved.add_all();
            self.climb(fs, cx, None, ino)?;
        } else {
            involved.add_all();
            self.climb(fs, cx, Some(caller), ino)?;
            self.remember(ino, true, 0)?;
        }
        let slot = self.slot_of[&ino];
        self.slots[slot].moves = moves;
        Ok(ino)
    }

    /// Whether the directory `ino`, to which `..` has led from one of the session's, is inside.
    ///
    /// # Errors
    /// `ESTALE`.
    pub(crate) fn led_up(&self, fs: &mut impl FileSystem, cx: &Context, ino: Ino) -> Result<()> {
        if self.top == Ino::ROOT || ino == self.top {
            Ok(())
        } else {
            self.climb(fs, cx, None, ino)
        }
    }

    /// Walks up from the directory `ino` to the session's root; with `caller`, that caller must be
    /// allowed to search every directory on the way.
    fn climb(
        &self,
        fs: &mut impl FileSystem,
        cx: &Context,
        caller: Option<&Caller<'_>>,
        ino: Ino,
    ) -> Result<()> {
        let up = Name::new(b"..")?;
        let mut at = ino;
        for _ in 0..DEPTH_MAX {
            let above = match fs.lookup(cx, at, up) {
                Ok(above) => above,
                // An inode that cannot be proven to be inside must look like one that does not
                // exist.
                Err(Errno::EIO) => return Err(Errno::EIO),
                Err(Errno::ENOTDIR) if caller.is_none() => return Err(Errno::ENOTDIR),
                Err(_) => return Err(Errno::ESTALE),
            };
            // The client is not given it.
            fs.forget(above.ino, 1);
            if above.ino == at {
                return Err(Errno::ESTALE);
            }
            if caller.is_some_and(|caller| caller.search(&above).is_err()) {
                return Err(Errno::ESTALE);
            }
            if above.ino == self.top {
                return Ok(());
            }
            at = above.ino;
        }
        Err(Errno::ESTALE)
    }

    /// Notes that the client is given `ino`, a directory or not, once more.
    ///
    /// # Errors
    /// `ENFILE` when every inode in the table is open: the user's share has no room for more.
    pub(crate) fn give(&mut self, ino: Ino, is_dir: bool, moves: u64) -> Result<()> {
        if ino == self.top || !self.is_counted() {
            self.looked_up(ino);
            return Ok(());
        }
        let slot = match self.slot_of.get(&ino) {
            Some(&slot) => slot,
            None => self.remember(ino, is_dir, moves)?,
        };
        let slot = &mut self.slots[slot];
        slot.count = slot.count.saturating_add(1);
        slot.named();
        slot.moves = moves;
        Ok(())
    }

    /// Notes that a directory was moved, at the count `moves`, to a place that is inside.
    pub(crate) fn moved_inside(&mut self, ino: Ino, moves: u64) {
        if let Some(&slot) = self.slot_of.get(&ino) {
            self.slots[slot].moves = moves;
        }
    }

    /// Takes back `count` of the times that the client was given `ino`, or as many as there were.
    /// Returns the volume's number, and how many those are: what other clients were given is not
    /// this one's to forget.
    pub(crate) fn forget(&mut self, ino: Ino, count: u64) -> Option<(Ino, u64)> {
        let ino = self.inner(ino).ok()?;
        if let Some(lookups) = &mut self.lookups
            && let Entry::Occupied(mut left) = lookups.entry(ino)
        {
            *left.get_mut() = left.get().saturating_sub(count);
            if *left.get() == 0 {
                left.remove();
            }
        }
        let &slot = self.slot_of.get(&ino)?;
        let given = self.slots[slot].count;
        let taken = count.min(given);
        self.slots[slot].count = given - taken;
        if given == taken && self.slots[slot].open == 0 {
            self.vacate(slot);
            self.keep();
        }
        Some((ino, taken))
    }

    /// Notes that a handle of `ino`, the volume's number, is open.
    pub(crate) fn opened(&mut self, ino: Ino) {
        if let Some(&slot) = self.slot_of.get(&ino) {
            self.slots[slot].open += 1;
        }
    }

    /// Notes that a handle of `ino` was closed.
    pub fn closed(&mut self, ino: Ino) {
        let Some(&slot) = self.slot_of.get(&ino) else { return };
        let slot_ref = &mut self.slots[slot];
        slot_ref.open = slot_ref.open.saturating_sub(1);
        if slot_ref.open == 0 && slot_ref.count == 0 {
            self.vacate(slot);
            self.keep();
        }
    }

    /// Whether the client was given `ino`, the volume's number, and has not forgotten it, where
    /// that is counted.
    pub(crate) fn knows(&self, ino: Ino) -> bool {
        match &self.lookups {
            Some(lookups) => lookups.contains_key(&ino),
            None => self.slot_of.get(&ino).is_some_and(|&slot| self.slots[slot].count > 0),
        }
    }

    /// Whether this session has `ino`, the volume's number, open.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.slot_of.get(&ino).is_some_and(|&slot| self.slots[slot].open > 0)
    }

    /// From here on, [`forgotten`](Self::forgotten) is asked after each call.
    pub(crate) fn tell_forgotten(&mut self) {
        self.forgotten = Some(Vec::new());
    }

    /// Takes the number of an inode that may not be named any more, as long as there are such, and
    /// how often the file system is to forget it.
    #[inline]
    pub(crate) fn forgotten(&mut self) -> Option<(Ino, u64)> {
        self.forgotten.as_mut()?.pop()
    }

    /// Whether every inode of the volume may be named.
    pub(crate) fn all(&self) -> bool {
        self.all
    }

    fn remember(&mut self, ino: Ino, is_dir: bool, moves: u64) -> Result<usize> {
        let full = self.slot_of.len() >= self.limit
            || self.known.as_mut().is_some_and(|known| !known.have(self.slot_of.len() + 1));
        if full || self.free.is_empty() && self.room.have(self.slots.len() + 1).is_err() {
            self.make_room()?;
        }
        let new = Slot { ino: Some(ino), count: 0, open: 0, is_dir, chances: CHANCES, moves };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = new;
                slot
            }
            None => {
                self.slots.push(new);
                self.slots.len() - 1
            }
        };
        self.slots[slot].named();
        self.slot_of.insert(ino, slot);
        Ok(slot)
    }

    fn make_room(&mut self) -> Result<()> {
        // Some rounds to take the chances, once more to find one without.
        for _ in 0..(usize::from(CHANCES_OF_DIRECTORY) + 1) * self.slots.len() {
            let at = self.hand % self.slots.len();
            self.hand = at + 1;
            let slot = &mut self.slots[at];
            if slot.ino.is_none() || slot.open > 0 {
                continue;
            }
            if slot.chances == 0 {
                self.vacate(at);
                return Ok(());
            }
            slot.chances -= 1;
        }
        Err(Errno::ENFILE)
    }

    fn vacate(&mut self, slot: usize) {
        let Slot { ino, count, .. } = &mut self.slots[slot];
        let count = std::mem::take(count);
        if let Some(ino) = ino.take() {
            self.slot_of.remove(&ino);
            self.free.push(slot);
            if let Some(forgotten) = &mut self.forgotten {
                forgotten.push((ino, if self.known.is_some() { count } else { 0 }));
            }
        }
    }

    /// Gives back what the table does not need of the user's part.
    fn keep(&mut self) {
        if let Some(known) = &mut self.known {
            known.keep(self.slot_of.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::known::{ASSURED, Known, KnownMost};

    /// Files are forgotten before directories, and what is open never is; where it is counted the
    /// file system hears how often.
    #[test]
    fn directories_last_longer() {
        for (all, counted) in [(false, false), (false, true), (true, true)] {
            let mut inodes = Inodes::new(Ino::ROOT, all, 8, Room::default());
            if counted {
                inodes.count(Known::new(KnownMost::default()).part(7));
            } else {
                inodes.tell_forgotten();
            }
            inodes.give(Ino(2), true, 0).unwrap();
            inodes.give(Ino(3), false, 0).unwrap();
            inodes.opened(Ino(3));
            let mut forgotten = Vec::new();
            for file in 10..30 {
                inodes.give(Ino(file), false, 0).unwrap();
                inodes.give(Ino(file), false, 0).unwrap();
                forgotten.extend(std::iter::from_fn(|| inodes.forgotten()));
                assert!(inodes.named(Ino(2)).is_ok() && inodes.slot_of.len() <= 8);
            }
            let times = if counted { 2 } else { 0 };
            let expected: Vec<_> = (10..24).map(|file| (Ino(file), times)).collect();
            assert_eq!(forgotten, expected);
            assert_eq!(inodes.named(Ino(10)).is_ok(), all);
            // Nor is one of those that are open.
            (24..30).for_each(|file| inodes.opened(Ino(file)));
            inodes.give(Ino(30), false, 0).unwrap();
            inodes.opened(Ino(30));
            assert_eq!(inodes.give(Ino(31), true, 0), Err(Errno::ENFILE));
            // The directory was the last to go.
            assert_eq!(inodes.forgotten(), Some((Ino(2), u64::from(counted))));
        }
    }

    /// What a user knows by one session it does not know by another, but for a few.
    #[test]
    fn sessions_of_a_user_share() {
        let known = Known::new(KnownMost { of_user: 100, of_all: 1000 });
        let mut sessions = [7, 7, 8].map(|uid| {
            let mut inodes = Inodes::new(Ino::ROOT, true, usize::MAX, Room::default());
            inodes.count(known.part(uid));
            inodes
        });
        let has = sessions.each_mut().map(|inodes| {
            (2..3000).for_each(|ino| inodes.give(Ino(ino), false, 0).unwrap());
            inodes.slot_of.len()
        });
        assert_eq!(has, [ASSURED + 100, ASSURED, ASSURED + 100]);
        let [first, second, _] = &mut sessions;
        for ino in 2..3000 {
            assert_eq!(first.forget(Ino(ino), 9), (ino >= 3000 - 1124).then_some((Ino(ino), 1)));
        }
        (2..3000).for_each(|ino| second.give(Ino(ino), false, 0).unwrap());
        assert_eq!(second.slot_of.len(), ASSURED + 100);
    }
}
