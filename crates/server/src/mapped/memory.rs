//! A memory: what clients map to have the content of a file, or of a piece of one.
//!
//! Programs map what they like of a file, so that all they have of it is in one memory, the file's
//! whole one. The window of a guest shows pieces, [`PIECE`] bytes each, that begin at a multiple
//! of that, and takes one back for another all the time: each has a memory of its own, which can
//! go when nobody has it, though others of the file stay. The kernel says who has a memory, and
//! frees all of it with its last descriptor. To free a part of one would take the lock of its
//! inode, which clients can hold.
//!
//! In each of them byte *n* is byte *n* of the file. No byte is in two of them: which one it is in
//! is settled when it is first mapped.

use std::collections::HashMap;
use std::ops::Range;

use atoll_vfs::{Errno, Result};

use super::parts::{Parts, length};
use crate::host::Pages;
use crate::rights::accounts::{Account, Charge, Resource};
use crate::rights::identity::{Access, SessionId};

/// Sixteen random bytes that name the memory of a mapped file, for loads or for stores too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MapToken(pub [u8; 16]);

/// Bytes of a piece: what Linux shows its guest at once.
pub const PIECE: u64 = 2 << 20;

/// How many times a memory is found unused before it is let go of: a client that was told the
/// token needs time to come for it.
pub(crate) const GRACE: u32 = 2;

/// Which memory of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// That of all but the pieces.
    Whole,
    /// That of the piece that begins here.
    Piece(u64),
}

impl Place {
    /// What is in no other memory may be in this one.
    pub fn range(self) -> Range<u64> {
        match self {
            Place::Whole => 0..u64::MAX,
            Place::Piece(start) => start..start.saturating_add(PIECE),
        }
    }
}

/// Where the piece begins in which `at` is.
pub(crate) fn piece_of(at: u64) -> u64 {
    at / PIECE * PIECE
}

/// A session that has a memory mapped.
pub(crate) struct Mapper {
    /// The user on whose behalf it last did.
    pub uid: u32,
    /// Bytes of memory that count as the session's.
    pub bytes: u64,
    /// The most that it may have in all files.
    pub most: u64,
    /// Their part of its user's share.
    pub charge: Option<Charge>,
}

impl Mapper {
    pub fn new(uid: u32, access: &Access) -> Result<Mapper> {
        let none = |account| Account::charge(account, Resource::Memory, 0);
        let charge = access.account.as_ref().map(none).transpose().map_err(|_| Errno::ENOMEM)?;
        Ok(Mapper { uid, bytes: 0, most: access.limits.mapped, charge })
    }

    /// Counts `bytes` more.
    ///
    /// # Errors
    /// `ENOMEM` beyond the user's share.
    pub fn count(&mut self, bytes: u64) -> Result<()> {
        self.charge
            .as_mut()
            .map_or(Ok(()), |charge| charge.grow(bytes))
            .map_err(|_| Errno::ENOMEM)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts `bytes` no more.
    pub fn uncount(&mut self, bytes: u64) {
        if let Some(charge) = &mut self.charge {
            charge.shrink(bytes);
        }
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// A memory.
pub(crate) struct Memory {
    pub pages: Box<dyn Pages>,
    /// The parts of the file in it: elsewhere it says nothing.
    pub covered: Parts,
    /// The parts of these that may take memory and are counted: not what is beyond the end of the
    /// file, and what has never been written. All of a piece is.
    pub counted: Parts,
    pub reader: MapToken,
    pub writer: MapToken,
    /// Sessions that have mapped it.
    pub sessions: HashMap<SessionId, Mapper>,
    /// Whether a client could have stored something.
    pub stores: bool,
    /// How many times it is to be found unused before it goes.
    pub grace: u32,
    /// Nobody has it, nor has been given it since this was found.
    pub unused: bool,
    /// A number that is larger the later it was last asked for.
    pub used: u64,
}

impl Memory {
    /// One in which there is nothing yet.
    pub fn new(pages: Box<dyn Pages>, reader: MapToken, writer: MapToken) -> Memory {
        Memory {
            pages,
            covered: Parts::default(),
            counted: Parts::default(),
            reader,
            writer,
            sessions: HashMap::new(),
            stores: false,
            grace: 0,
            unused: false,
            used: 0,
        }
    }

    /// Somebody has asked for it.
    pub fn touch(&mut self, used: u64) {
        self.grace = GRACE;
        self.unused = false;
        self.used = used;
    }

    /// Counts what of `range`, in whole units of `unit`, will take memory and is not counted yet,
    /// as that of a session that has it mapped. `others` says how many bytes that session has in
    /// other memories; `room` is left for all.
    ///
    /// # Errors
    /// `ENOMEM` where there is no room for it.
    pub fn count(
        &mut self,
        range: &Range<u64>,
        unit: u64,
        others: impl Fn(SessionId) -> u64,
        room: u64,
    ) -> Result<()> {
        // A write may end behind every byte that a file can have, and then fails later.
        let end = range.end.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
        let range = range.start / unit * unit..end;
        let covered: Vec<_> = self.covered.within(range).collect();
        let mut room = room;
        for part in covered {
            while let Some(gap) = self.counted.gap(&part) {
                // Nothing is charged for what cannot be noted.
                if !self.counted.takes(&gap) {
                    return Err(Errno::ENOMEM);
                }
                let bytes = length(&gap);
                // The first that has room for it, in an order that depends on nothing else.
                let mut mappers: Vec<_> = self.sessions.iter_mut().collect();
                mappers.sort_by_key(|(id, _)| **id);
                let fits = |id: SessionId, mapper: &Mapper| {
                    others(id).saturating_add(mapper.bytes).saturating_add(bytes) <= mapper.most
                };
                let counts = |(id, mapper): (&SessionId, &mut Mapper)| {
                    fits(*id, mapper) && mapper.count(bytes).is_ok()
                };
                if bytes > room || !mappers.into_iter().any(counts) {
                    return Err(Errno::ENOMEM);
                }
                room -= bytes;
                self.counted.add(gap)?;
            }
        }
        Ok(())
    }
}
