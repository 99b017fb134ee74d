//! A session's open files: the numbers that its client has for them, and what they stand for.

use std::sync::Arc;

use atoll_vfs::{Errno, Handle, Ino, OpenFlags, Result};

use crate::rights::accounts::{Account, Charge, Resource};

/// The open file or directory that a client's handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    /// The volume's number of the inode.
    pub ino: Ino,
    /// The file system's own handle.
    pub handle: Handle,
    /// The rights of an open file; `None` for a directory.
    pub flags: Option<OpenFlags>,
}

impl Open {
    /// Whether it is a file that may be read, so that a View may have pages of it.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.flags.is_some_and(|flags| flags.contains(OpenFlags::READ))
    }

    /// The same, if it is a file, or else a directory.
    ///
    /// # Errors
    /// `EBADF`.
    #[inline]
    pub fn of_kind(self, file: bool) -> Result<Open> {
        if self.flags.is_some() == file { Ok(self) } else { Err(Errno::EBADF) }
    }
}

/// Bytes of the server's memory that an open file takes: here, and in the file system.
pub(crate) const OPEN_BYTES: u64 = 256;

/// Bytes of a slot, and of its number among those that are free.
const SLOT_BYTES: u64 = (size_of::<(u32, Option<Open>)>() + size_of::<u32>()) as u64;

/// The most slots of a table whose numbers come from outside.
const SLOTS_MAX: usize = 1 << 20;

/// Slots of open files. A client's handle is the slot's number and how often it was used, so that
/// one that was closed is not taken for the next in its place.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    slots: Vec<(u32, Option<Open>)>,
    free: Vec<u32>,
    open: usize,
    /// Pays for slots that no file of this session was ever in, since their numbers came from
    /// outside.
    _empty: Option<Charge>,
}

impl Handles {
    /// How many are open.
    pub fn len(&self) -> usize {
        self.open
    }

    /// Gives `open` a number.
    pub fn insert(&mut self, open: Open) -> Handle {
        self.open += 1;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push((0, None));
                (self.slots.len() - 1) as u32
            }
        };
        let (turn, place) = &mut self.slots[slot as usize];
        *turn = turn.wrapping_add(1);
        *place = Some(open);
        Handle(u64::from(*turn) << 32 | u64::from(slot))
    }

    /// A table in which each file has the number that another one gave it; numbers of slots are
    /// below `most`, and [`SLOTS_MAX`]. Slots that are empty count for `account`, if there is one,
    /// as long as the table lives.
    ///
    /// # Errors
    /// `EBADF` for a number that no table so large gives, or that comes twice; `ENFILE` when the
    /// account has no room for the slots.
    pub fn with(
        files: &[(Handle, Open)],
        most: usize,
        account: Option<&Arc<Account>>,
    ) -> Result<Handles> {
        let slot = |&(Handle(number), _): &(Handle, Open)| number as u32 as usize;
        let count = files.iter().map(|file| slot(file) + 1).max().unwrap_or(0);
        if count > most.min(SLOTS_MAX) {
            return Err(Errno::EBADF);
        }
        let bytes = count.saturating_sub(files.len()) as u64 * SLOT_BYTES;
        let charge = account.map(|account| account.charge(Resource::Memory, bytes)).transpose();
        let _empty = charge.map_err(|_| Errno::ENFILE)?;
        let slots = vec![(0, None); count];
        let mut handles = Handles { slots, open: files.len(), _empty, ..Handles::default() };
        for file in files {
            let (slot, turn, open) = (slot(file), (file.0.0 >> 32) as u32, file.1);
            if turn == 0 {
                return Err(Errno::EBADF);
            }
            match &mut handles.slots[slot] {
                (_, Some(_)) => return Err(Errno::EBADF),
                free => *free = (turn, Some(open)),
            }
        }
        let slots = handles.slots.iter().enumerate();
        let free = slots.filter(|(_, (_, open))| open.is_none()).map(|(slot, _)| slot as u32);
        handles.free = free.collect();
        Ok(handles)
    }

    /// Every open file, with its number.
    pub fn numbered(&self) -> impl Iterator<Item = (Handle, &Open)> {
        let number = |slot: usize, turn: u32| Handle(u64::from(turn) << 32 | slot as u64);
        let all = self.slots.iter().enumerate();
        all.filter_map(move |(slot, (turn, open))| Some((number(slot, *turn), open.as_ref()?)))
    }

    /// The open file or directory that `handle` of `ino` stands for.
    ///
    /// # Errors
    /// `EBADF`.
    #[inline]
    pub fn get(&self, ino: Ino, handle: Handle) -> Result<Open> {
        let (slot, turn) = (handle.0 as u32, (handle.0 >> 32) as u32);
        match self.slots.get(slot as usize) {
            Some(&(used, Some(open))) if used == turn && open.ino == ino => Ok(open),
            _ => Err(Errno::EBADF),
        }
    }

    /// As [`get`](Self::get), for a handle of a file if `file`, else of a directory.
    ///
    /// # Errors
    /// `EBADF`.
    #[inline]
    pub fn of_kind(&self, ino: Ino, handle: Handle, file: bool) -> Result<Open> {
        self.get(ino, handle)?.of_kind(file)
    }

    /// Takes `handle` of `ino` out.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn remove(&mut self, ino: Ino, handle: Handle, file: bool) -> Result<Open> {
        let open = self.of_kind(ino, handle, file)?;
        self.slots[handle.0 as u32 as usize].1 = None;
        self.free.push(handle.0 as u32);
        self.open -= 1;
        Ok(open)
    }

    /// Every open file.
    pub fn iter(&self) -> impl Iterator<Item = &Open> {
        self.slots.iter().filter_map(|(_, open)| open.as_ref())
    }

    /// Every open file, taken out.
    pub fn drain(&mut self) -> impl Iterator<Item = Open> + '_ {
        self.open = 0;
        self.free.clear();
        self.slots.drain(..).filter_map(|(_, open)| open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::accounts::{Accounts, Shares};

    #[test]
    fn numbers_of_another_table() {
        let open = |ino| Open { ino: Ino(ino), handle: Handle(9), flags: None };
        let mut first = Handles::default();
        let numbers: Vec<Handle> = (0..5).map(|ino| first.insert(open(ino))).collect();
        first.remove(Ino(1), numbers[1], false).unwrap();
        let all: Vec<(Handle, Open)> =
            first.numbered().map(|(handle, open)| (handle, *open)).collect();
        let mut second = Handles::with(&all, 5, None).unwrap();
        assert_eq!((second.len(), second.get(Ino(4), numbers[4])), (4, Ok(open(4))));
        assert_eq!(second.get(Ino(1), numbers[1]), Err(Errno::EBADF));
        let new = second.insert(open(7));
        assert!(!all.iter().any(|(handle, _)| *handle == new));
        assert_eq!(second.insert(open(8)).0 as u32, 5);
        for wrong in [vec![all[0], all[0]], vec![(Handle(1 << 32 | 5), open(1))]] {
            assert!(Handles::with(&wrong, 5, None).is_err(), "{wrong:?}");
        }
        assert!(Handles::with(&[(Handle(3), open(1))], 5, None).is_err());
        assert!(Handles::with(&[(Handle(u64::MAX), open(1))], usize::MAX, None).is_err());
    }

    /// One file with a large number takes a large table, for which its user pays.
    #[test]
    fn empty_slots_are_paid_for() {
        let open = Open { ino: Ino(1), handle: Handle(9), flags: None };
        let file = [(Handle(1 << 32 | 500_000), open)];
        let account = |memory| {
            let most = Shares { memory, ..Shares::UNLIMITED };
            Accounts::new(Shares::UNLIMITED).open(1, most)
        };
        let poor = account(1 << 20);
        let refused = Handles::with(&file, usize::MAX, Some(&poor)).err();
        assert_eq!((refused, poor.has(Resource::Memory)), (Some(Errno::ENFILE), 0));
        let rich = account(1 << 30);
        let table = Handles::with(&file, usize::MAX, Some(&rich)).unwrap();
        assert_eq!(rich.has(Resource::Memory), 500_000 * SLOT_BYTES);
        drop(table);
        assert_eq!(rich.has(Resource::Memory), 0);
        // Those with files in them are paid for where files are.
        let table = Handles::with(&[(Handle(1 << 32), open)], 5, Some(&poor)).unwrap();
        assert_eq!((table.len(), poor.has(Resource::Memory)), (1, 0));
    }
}
