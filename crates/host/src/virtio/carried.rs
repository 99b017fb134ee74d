//! A request while a device has it: its place while it is served, in parts, or while its answer
//! waits. A queue is a carrier as long as one of its requests is served.

use std::sync::Arc;

use atoll_server::rights::accounts::{Account, Charge, Resource};
use atoll_server::route::answer::fail;
use atoll_server::route::carrier::{Carrier, Held, Incoming};
use atoll_vfs::wire::Fixed;
use atoll_vfs::wire::files::{ReadIn, WriteIn};
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::opcode::{FUSE_READ, FUSE_WRITE};
use atoll_vfs::{Data, Errno, Rest, Room};

use super::Broken;
use super::memory::GuestMemory;
use super::pieces::{self, WORTHWHILE};
use super::pulse::Pulse;
use super::queue::{Chain, Queue};
use crate::server::outcome::Outcome;
use crate::shm::Doorbell;

/// The largest read or write of one request, in bytes.
pub(super) const MAX_WRITE: u32 = 1 << 20;
/// The bytes before the data of a write.
const WRITE_FRONT: usize = InHeader::SIZE + WriteIn::SIZE;
/// Bytes that an answer takes while it waits, without its data.
const HELD: usize = 512;
/// The most data of answers that wait, of one guest, and of requests that do.
const HELD_MAX: usize = 16 << 20;
/// A request that has no data is no longer.
const SHORT: usize = 8 << 10;

/// The places of the request that is being served.
pub(super) struct Buffers {
    pub request: Vec<u8>,
    pub len: usize,
    pub room: Vec<u8>,
}

impl Buffers {
    /// Copies a request, but for the data of a write that can be had where it is: that is
    /// returned.
    pub fn fetch<'m>(
        &mut self,
        memory: &'m GuestMemory,
        chain: &Chain,
        in_place: bool,
    ) -> Result<Vec<&'m [u8]>, Broken> {
        let sent = chain.sent() as usize;
        let mut copied = 0;
        if in_place && sent >= WRITE_FRONT + WORTHWHILE {
            chain.copy(memory, 0, &mut self.request[..WRITE_FRONT])?;
            copied = WRITE_FRONT;
            let header = InHeader::load(&self.request);
            if header.opcode == FUSE_WRITE
                && header.total_extlen == 0
                && let Some(data) = data_of(memory, chain, copied)
            {
                self.len = copied;
                return Ok(data);
            }
        }
        // No byte is read twice: the guest may have changed it.
        chain.copy(memory, copied, &mut self.request[copied..sent])?;
        self.len = sent;
        Ok(Vec::new())
    }
}

/// What a request has after its first `front` bytes, if it can be had where it is.
pub(super) fn data_of<'m>(
    memory: &'m GuestMemory,
    chain: &Chain,
    front: usize,
) -> Option<Vec<&'m [u8]>> {
    pieces::data(memory, &chain.readable, front, chain.sent() as usize - front)
}

/// A request that is done in part.
pub(super) struct Part {
    pub queue: usize,
    pub chain: Chain,
    pub message: Vec<u8>,
    pub rest: Rest,
    /// Nothing more of it can be done until this is known.
    pub until: Option<Arc<Outcome>>,
    /// Pays for it meanwhile.
    pub _charge: Option<Charge>,
}

impl Part {
    /// Whether it is not to be served yet.
    pub fn waits(&self) -> bool {
        self.until.as_ref().is_some_and(|until| until.get().is_none())
    }
}

/// An answer that waits.
pub(super) struct Waiting {
    pub queue: usize,
    pub chain: Chain,
    pub message: Vec<u8>,
    pub data: Vec<u8>,
    /// Bytes of data that are in their place.
    pub placed: usize,
    pub outcome: Arc<Outcome>,
    pub _charge: Option<Charge>,
}

/// A request that had no answer when the front end went away.
pub(super) enum Unanswered {
    Waiting(Waiting),
    Part(Part),
}

impl Unanswered {
    pub fn place(&self) -> (usize, u16) {
        match self {
            Unanswered::Waiting(waiting) => (waiting.queue, waiting.chain.head()),
            Unanswered::Part(part) => (part.queue, part.chain.head()),
        }
    }

    pub fn unique(&self) -> u64 {
        match self {
            Unanswered::Waiting(waiting) => OutHeader::load(&waiting.message).unique,
            Unanswered::Part(part) => InHeader::load(&part.message).unique,
        }
    }
}

/// A queue, while one of its requests is served.
pub(super) struct Carried<'a> {
    pub memory: &'a GuestMemory,
    pub queue: &'a mut Queue,
    pub number: usize,
    pub buffers: &'a mut Buffers,
    /// The request's data, if that is not in the buffers.
    pub data: Vec<&'a [u8]>,
    /// Whether the answer's data is put in its place, and not into the buffers.
    pub in_place: bool,
    /// That place, while pages are marked: what the request may write, and how much of it behind
    /// the answer's header.
    pub placed: Option<(Vec<(u64, u32)>, usize)>,
    pub held: &'a mut Vec<Waiting>,
    pub parts: &'a mut Vec<Part>,
    pub bell: &'a Doorbell,
    pub pulse: &'a Pulse,
    /// Pays for answers that wait.
    pub account: Option<&'a Arc<Account>>,
    /// Bytes of data that have gone out.
    pub bytes: u64,
    /// Gets a copy of the answer's message.
    pub answered: Option<&'a mut Vec<u8>>,
}

impl Carried<'_> {
    /// Marks the pages of data that was put in its place, whatever became of the request: a read
    /// that fails may have put a part there.
    pub fn mark(&self) -> Result<(), Broken> {
        match &self.placed {
            Some((places, len)) => pieces::mark(self.memory, places, OutHeader::SIZE, *len),
            None => Ok(()),
        }
    }
}

impl Carrier for Carried<'_> {
    type Slot = Chain;
    type Error = Broken;

    /// The queue is asked by who has the buffers.
    fn take(&mut self) -> Result<Option<Chain>, Broken> {
        Ok(None)
    }

    fn incoming(&mut self, chain: &Chain) -> Incoming<'_> {
        let Carried { memory, buffers, account, .. } = self;
        let Buffers { request, len, room } = &mut **buffers;
        let message = &request[..*len];
        let asked = message.len() == InHeader::SIZE + ReadIn::SIZE
            && InHeader::load(message).opcode == FUSE_READ;
        let size = (asked && account.is_none())
            .then(|| ReadIn::load(&message[InHeader::SIZE..]).size.min(MAX_WRITE) as usize);
        let pieces =
            size.and_then(|size| pieces::room(memory, &chain.writable, OutHeader::SIZE, size));
        self.in_place = pieces.is_some();
        let placed = size.filter(|_| pieces.is_some() && memory.logs());
        self.placed = placed.map(|size| (chain.writable.clone(), size));
        let most = chain.room().min(room.len() as u64) as usize;
        let room = pieces.map_or_else(|| Room::from(&mut room[..most]), Room::new);
        Incoming { message, data: Data::new(&self.data), room }
    }

    fn takes_back(&self) -> bool {
        true
    }

    fn put_back(&mut self, chain: Chain, rest: Rest) {
        let message = self.buffers.request[..self.buffers.len].to_vec();
        let (until, _charge) = (None, None);
        self.parts.push(Part { queue: self.number, chain, message, rest, until, _charge });
    }

    fn put_back_until(&mut self, chain: Chain, rest: Rest) -> Result<Box<dyn Held>, Chain> {
        let message = &self.buffers.request[..self.buffers.len];
        // One without data has a place in any case: there are no more of them than descriptors.
        let waits: usize = self.parts.iter().map(|part| part.message.len()).sum();
        let is_short = message.len() <= SHORT;
        if !is_short && waits + message.len() > HELD_MAX {
            return Err(chain);
        }
        let charge = match self.account.filter(|_| !is_short) {
            Some(account) => account.charge(Resource::Memory, message.len() as u64).map(Some),
            None => Ok(None),
        };
        let Ok(_charge) = charge else { return Err(chain) };
        let outcome = Outcome::new(self.bell.clone());
        let release = outcome.release();
        let (queue, message, until) = (self.number, message.to_vec(), Some(outcome));
        self.parts.push(Part { queue, chain, message, rest, until, _charge });
        Ok(release)
    }

    fn answer(&mut self, chain: Chain, message: &[u8], data: usize) -> Result<bool, Broken> {
        self.bytes += data as u64;
        if let Some(copy) = &mut self.answered {
            **copy = message.to_vec();
        }
        let (data, placed) = if self.in_place { (0, data) } else { (data, 0) };
        // The memory is the front end's.
        self.pulse.set(false);
        self.queue.give(self.memory, chain, &[message, &self.buffers.room[..data]], placed)?;
        Ok(true)
    }

    fn hold(&mut self, chain: Chain, message: &[u8], data: usize) -> Box<dyn Held> {
        let (data, placed) = if self.in_place { (0, data) } else { (data, 0) };
        self.bytes += placed as u64;
        let outcome = Outcome::new(self.bell.clone());
        let release = outcome.release();
        let (queue, mut message) = (self.number, message.to_vec());
        // An answer without data is kept in any case: what it is about has been done. There are no
        // more of them than descriptors.
        let waits: usize = self.held.iter().map(|waiting| waiting.data.len()).sum();
        let charge = match self.account.filter(|_| data > 0) {
            Some(account) => account.charge(Resource::Memory, (HELD + data) as u64).map(Some),
            None => Ok(None),
        };
        let (data, _charge) = match charge {
            Ok(charge) if waits + data <= HELD_MAX => {
                self.bytes += data as u64;
                (self.buffers.room[..data].to_vec(), charge)
            }
            // There is no place to keep it.
            _ => {
                fail(&mut message, Errno::ENOMEM);
                (Vec::new(), None)
            }
        };
        self.held.push(Waiting { queue, chain, message, data, placed, outcome, _charge });
        release
    }
}
