//! A session's open files: the numbers that its client has for them, and what they stand for.

use atoll_vfs::{Errno, Handle, Ino, OpenFlags, Result};

/// The open file or directory that a client's handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    /// The volume's number of the inode.
    pub ino: Ino,
    /// The file system's own handle.
    pub handle: Handle,
    /// The rights of an open file; `None` for a directory.
    pub flags: Option<OpenFlags>,
    /// The session that opened it.
    pub origin: Origin,
}

/// The session that opened a file; see [`Tokens`](crate::open::tokens::Tokens).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The session's own.
    Own,
    /// The session's own, which others may adopt from this place.
    Lent(u32),
    /// Another session's, which had the place's turn.
    Adopted {
        /// The place.
        slot: u32,
        /// Its turn.
        turn: u32,
    },
}

impl Open {
    /// Whether it is a file that may be read, so that a View may have pages of it.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.flags.is_some_and(|flags| flags.contains(OpenFlags::READ))
    }
}

/// Bytes of the server's memory that an open file takes: here, in the file system, and for those
/// that adopt it.
pub(crate) const OPEN_BYTES: u64 = 256;

/// Slots of open files. A client's handle is the slot's number and how often it was used, so that
/// one that was closed is not taken for the next in its place.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    slots: Vec<(u32, Option<Open>)>,
    free: Vec<u32>,
    open: usize,
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
        self.get(ino, handle).and_then(|open| {
            if open.flags.is_some() == file { Ok(open) } else { Err(Errno::EBADF) }
        })
    }

    /// Sets the origin of `handle`, which is open.
    pub fn set_origin(&mut self, handle: Handle, origin: Origin) {
        if let Some((_, Some(open))) = self.slots.get_mut(handle.0 as u32 as usize) {
            open.origin = origin;
        }
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
