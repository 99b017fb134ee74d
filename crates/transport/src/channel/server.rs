//! The half that answers. Nothing in the memory is trusted: every word is read once, then checked;
//! what goes on is kept in private memory.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use super::layout::{AttachError, Layout, Mark, Span, answer, header, request, sleeper};
use crate::memory::Memory;
use crate::ring::{Broken, Consumer, Taken};

/// A server's bounds for a client's memory.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most requests in flight: lanes times slots.
    pub requests: u32,
    /// The most bytes of memory.
    pub total: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { requests: 1024, total: 256 << 20 }
    }
}

/// A request that was taken and must be completed. There is one for a slot at a time.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    lane: u32,
    slot: u32,
    tag: u16,
    message: usize,
    data: Span,
    room: Span,
}

impl Request {
    /// Its lane, and its slot there.
    pub fn place(&self) -> (u32, u32) {
        (self.lane, self.slot)
    }

    /// Bytes of its message.
    pub fn message_len(&self) -> usize {
        self.message
    }

    /// Its data, within the memory.
    pub fn data(&self) -> Span {
        self.data
    }

    /// The place for the answer's data, within the memory, and apart from the request's.
    pub fn room(&self) -> Span {
        self.room
    }
}

struct ServerLane<M> {
    ring: Consumer<M>,
    /// The slots whose requests were taken and not completed.
    taken: u64,
}

/// The server's half of a connection.
pub struct ServerChannel<M> {
    memory: M,
    layout: Layout,
    lanes: Vec<ServerLane<M>>,
}

impl<M: Memory> ServerChannel<M> {
    /// The half over `memory`, all of what the client shares and whose length does not change.
    ///
    /// # Errors
    /// [`AttachError`]; what asks for more than `limits` makes no sense either.
    pub fn attach(memory: M, limits: &Limits) -> Result<Self, AttachError> {
        if memory.len() > limits.total {
            return Err(AttachError::Broken);
        }
        let layout = Layout::read(&memory)?;
        let config = *layout.config();
        if config.lanes * config.slots > limits.requests {
            return Err(AttachError::Broken);
        }
        let lane = |lane| ServerLane {
            ring: Consumer::new(memory.clone(), layout.ring(lane), config.slots),
            taken: 0,
        };
        let lanes = (0..config.lanes).map(lane).collect();
        Ok(ServerChannel { memory, layout, lanes })
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The layout of the memory, as the header said when it was read.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Takes the next request of `lane`, if there is one, and copies its message to the front of
    /// `message`, which holds [`message_max`](Layout::message_max) bytes. Takes a bounded number of
    /// steps.
    ///
    /// # Errors
    /// [`Broken`]: the connection is to be dropped. It stays usable, without sense.
    ///
    /// # Panics
    /// When there is no such lane or `message` is too short.
    #[inline]
    pub fn poll(&mut self, lane: u32, message: &mut [u8]) -> Result<Option<Request>, Broken> {
        let ServerLane { ring, taken } = &mut self.lanes[lane as usize];
        let Some(Taken { index, mark, line }) = ring.dequeue()? else { return Ok(None) };
        if *taken & 1 << index != 0 {
            return Err(Broken);
        }
        let (memory, Mark { tag, len }) = (&self.memory, Mark::unpack(mark));
        let len = usize::from(len);
        let data = memory.load64(line + request::DATA, Relaxed);
        let room = memory.load64(line + request::ROOM, Relaxed);
        let data = Span::unpack(data, self.layout.total()).ok_or(Broken)?;
        let room = Span::unpack(room, self.layout.total()).ok_or(Broken)?;
        if len > self.layout.message_max() || data.overlaps(&room) {
            return Err(Broken);
        }
        self.layout.request_message(line, lane, index).read(memory, &mut message[..len]);
        *taken |= 1 << index;
        Ok(Some(Request { lane, slot: index, tag, message: len, data, room }))
    }

    /// Answers `request` with `message` and the first `data` bytes of the place for the answer's
    /// data, and calls `wake` with the offset of the word that the client sleeps on, if it does.
    ///
    /// # Panics
    /// When `message` is longer than [`message_max`](Layout::message_max), which is never below
    /// [`MESSAGE_MIN`](super::layout::MESSAGE_MIN), or `data` than the place, or the request is of
    /// another connection.
    #[inline]
    pub fn complete(
        &mut self,
        request: Request,
        message: &[u8],
        data: usize,
        wake: impl FnOnce(&M, usize),
    ) {
        let Request { lane, slot: index, tag, room, .. } = request;
        assert!(message.len() <= self.layout.message_max() && data <= room.len);
        let taken = &mut self.lanes[lane as usize].taken;
        assert!(*taken & 1 << index != 0);
        *taken &= !(1 << index);
        let (memory, at) = (&self.memory, self.layout.answer(lane, index));
        self.layout.answer_message(lane, index).write(memory, message);
        memory.store32(at + answer::DATA_LEN, data as u32, Relaxed);
        let mark = Mark { tag, len: message.len() as u16 };
        memory.store32(at + answer::MARK, mark.pack(), Release);
        // Before the look at the sleeper, which first says that it sleeps and then looks at the
        // mark.
        memory.fence();
        if memory.load32(self.layout.sleeper(lane, index), Relaxed) != sleeper::AWAKE {
            wake(memory, at + answer::MARK);
        }
    }

    /// Whether any lane may have a request.
    pub fn pending(&self) -> bool {
        self.lanes.iter().any(|lane| lane.ring.pending())
    }

    /// Says that this side sleeps, so that the next request rings the doorbell; returns whether it
    /// may go to sleep. If not, a request has come meanwhile, and this side counts as awake.
    pub fn fall_asleep(&mut self) -> bool {
        // Before the look at the rings; clients first submit, then look at the status.
        self.memory.swap32(header::STATUS, header::ASLEEP, SeqCst);
        let quiet = !self.pending();
        if !quiet {
            self.wake_up();
        }
        quiet
    }

    /// Says that this side polls, so that nobody needs to ring.
    pub fn wake_up(&mut self) {
        self.memory.store32(header::STATUS, header::AWAKE, Relaxed);
    }
}
