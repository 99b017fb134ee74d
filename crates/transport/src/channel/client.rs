//! The half that sends: lanes, each used by one thread at a time.

use alloc::boxed::Box;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use super::layout::{Config, Layout, Mark, Span, answer, header, request, sleeper};
use crate::memory::Memory;
use crate::ring::Producer;
use crate::transport::{Lost, Received, SendError, Token, Transport};

/// The wait strategy of a client: how long it spins, how it sleeps, how it wakes its server.
pub trait WaitStrategy<M> {
    /// Passes a moment of waiting, the `round`th since the wait began; `false` when the thread
    /// should rather sleep.
    fn spin(&mut self, round: u32) -> bool;

    /// Sleeps until the word at `at` is not `value`, or the server wakes its sleepers, or some time
    /// has passed. May return early.
    ///
    /// # Errors
    /// [`Lost`] when the server is known to be gone.
    fn park(&mut self, memory: &M, at: usize, value: u32) -> Result<(), Lost>;

    /// Rings the doorbell of the server, which sleeps.
    fn ring(&mut self);
}

/// The client's half of a connection, from which the lanes come.
#[derive(Debug)]
pub struct ClientChannel<M> {
    memory: M,
    layout: Layout,
    /// The lanes that were given out, by bits.
    given: u64,
}

impl<M: Memory> ClientChannel<M> {
    /// Makes `memory`, which nobody else uses yet, a connection as `config` says.
    /// None when the sizes are not allowed or need another length than `memory` has.
    pub fn create(memory: M, config: &Config) -> Option<Self> {
        let layout = Layout::new(config).filter(|layout| layout.total() == memory.len())?;
        layout.format(&memory);
        Some(ClientChannel { memory, layout, given: 0 })
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The layout of the memory.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The lane of that number. None when there is none, or the second time.
    pub fn lane<P: WaitStrategy<M>>(&mut self, lane: u32, strategy: P) -> Option<Lane<M, P>> {
        if lane >= self.layout.config().lanes || self.given & 1 << lane != 0 {
            return None;
        }
        self.given |= 1 << lane;
        Some(Lane::new(self.memory.clone(), self.layout, lane, strategy))
    }
}

/// A client's record of a request until it has received the answer.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    room: Span,
    /// The part of the lane's window that is taken for it.
    window: Span,
    /// Which request of the lane it is: the token.
    number: u64,
    /// Which use of the slot it is: what its answer bears.
    tag: u16,
}

/// A [`Transport`] for one thread at a time.
///
/// A token's value is the request's number, times 64, plus the slot's number.
#[derive(Debug)]
pub struct Lane<M, P> {
    memory: M,
    layout: Layout,
    lane: u32,
    ring: Producer<M>,
    table: Box<[Entry]>,
    /// The entries in use, by bits.
    used: u64,
    strategy: P,
    /// How many requests were sent.
    sent: u64,
    lost: bool,
}

impl<M: Memory, P: WaitStrategy<M>> Lane<M, P> {
    fn new(memory: M, layout: Layout, lane: u32, strategy: P) -> Self {
        let slots = layout.config().slots;
        let ring = Producer::new(memory.clone(), layout.ring(lane), slots);
        let table = (0..slots).map(|_| Entry::default()).collect();
        Lane { memory, layout, lane, ring, table, used: 0, strategy, sent: 0, lost: false }
    }

    /// A slot for `message`.
    fn free_slot(&self, message: &[u8]) -> Result<u32, SendError> {
        if self.lost {
            return Err(SendError::Lost);
        }
        if message.len() > self.layout.message_max() {
            return Err(SendError::TooLarge);
        }
        let slot = self.used.trailing_ones();
        if slot < self.table.len() as u32 { Ok(slot) } else { Err(SendError::Full) }
    }

    /// Free bytes in the data window, beginning on a cache line.
    fn free_window(&self, len: usize) -> Result<Span, SendError> {
        let window = self.layout.window(self.lane);
        if len > window.len {
            return Err(SendError::TooLarge);
        }
        let mut place = Span { offset: window.offset, len };
        // First fit. Every turn passes at least one of the requests in flight.
        'next: while place.offset + len <= window.offset + window.len {
            let mut used = self.used;
            while used != 0 {
                let taken = self.table[used.trailing_zeros() as usize].window;
                if taken.overlaps(&place) {
                    place.offset = taken.offset + taken.len;
                    continue 'next;
                }
                used &= used - 1;
            }
            return Ok(place);
        }
        Err(SendError::Full)
    }

    /// Enters a request into the table and sends it.
    #[inline]
    fn post(&mut self, slot: u32, message: &[u8], data: Span, room: Span, window: Span) -> Token {
        let number = self.sent;
        self.sent += 1;
        let entry = &mut self.table[slot as usize];
        let tag = entry.tag.wrapping_add(1);
        *entry = Entry { room, window, number, tag };
        self.used |= 1 << slot;
        let (memory, line) = (&self.memory, self.ring.line());
        self.layout.request_message(line, self.lane, slot).write(memory, message);
        memory.store64(line + request::DATA, data.pack(), Relaxed);
        memory.store64(line + request::ROOM, room.pack(), Relaxed);
        let mark = Mark { tag, len: message.len() as u16 };
        self.ring.enqueue(slot, mark.pack());
        // After the entry, so that either the server's last look before it sleeps finds the entry
        // or this look finds it asleep. Only one of all clients' threads rings.
        memory.fence();
        if memory.load32(header::STATUS, Relaxed) == header::ASLEEP
            && memory.replace32(header::STATUS, header::ASLEEP, header::AWAKE).is_ok()
        {
            self.strategy.ring();
        }
        Token(number << 6 | u64::from(slot))
    }

    /// The word that changes when the answer to the request in `slot` comes.
    fn mark_of(&self, slot: u32) -> usize {
        self.layout.answer(self.lane, slot) + answer::MARK
    }

    /// The slot of `token`.
    #[inline]
    fn slot_of(&self, token: &Token) -> u32 {
        let slot = (token.0 & 63) as u32;
        let in_use = self.used & 1 << slot != 0;
        assert!(in_use && self.table[slot as usize].number == token.0 >> 6, "a token of this lane");
        slot
    }

    /// Whether `mark` is that of the answer to the request in `slot`. Until that comes, it is the
    /// one of the slot's use before.
    #[inline]
    fn answers(&self, slot: u32, mark: u32) -> Result<bool, Lost> {
        match self.table[slot as usize].tag.wrapping_sub(Mark::unpack(mark).tag) {
            0 => Ok(true),
            1 if !self.lost => Ok(false),
            _ => Err(Lost),
        }
    }

    /// Whether the answer is in `slot`.
    #[inline]
    fn answered(&self, slot: u32) -> Result<bool, Lost> {
        self.answers(slot, self.memory.load32(self.mark_of(slot), Acquire))
    }

    /// The lengths of the answer in `slot`: of its message and of its data.
    #[inline]
    fn lengths(&self, slot: u32) -> Result<(usize, usize), Lost> {
        let at = self.layout.answer(self.lane, slot);
        let message = Mark::unpack(self.memory.load32(at + answer::MARK, Relaxed)).len.into();
        let data = self.memory.load32(at + answer::DATA_LEN, Relaxed) as usize;
        if message > self.layout.message_max() || data > self.table[slot as usize].room.len {
            return Err(Lost);
        }
        Ok((message, data))
    }

    /// Waits until the answer is in `slot`.
    #[inline]
    fn wait_for(&mut self, slot: u32) -> Result<(), Lost> {
        let mut round = 0;
        while !self.answered(slot)? {
            if self.strategy.spin(round) {
                round = round.saturating_add(1);
            } else {
                self.sleep(slot)?;
            }
        }
        Ok(())
    }

    /// Sleeps until the answer is in `slot`, or until the strategy gives up.
    #[cold]
    fn sleep(&mut self, slot: u32) -> Result<(), Lost> {
        let sleeper = self.layout.sleeper(self.lane, slot);
        self.memory.store32(sleeper, sleeper::ASLEEP, Relaxed);
        // Before the look at the mark, so that either this look finds the answer or the server,
        // which looks after it has written the mark, finds the sleeper.
        self.memory.fence();
        let at = self.mark_of(slot);
        let mark = self.memory.load32(at, Acquire);
        let slept = match self.answers(slot, mark) {
            Ok(false) => self.strategy.park(&self.memory, at, mark),
            answered => answered.map(drop),
        };
        self.memory.store32(sleeper, sleeper::AWAKE, Relaxed);
        slept
    }

    /// Takes the answer from `slot`.
    fn take(&mut self, slot: u32, message: &mut [u8], data: &mut [u8]) -> Result<Received, Lost> {
        self.wait_for(slot)?;
        let (message_len, data_len) = self.lengths(slot)?;
        let received =
            Received { message: message_len.min(message.len()), data: data_len.min(data.len()) };
        let place = self.layout.answer_message(self.lane, slot);
        place.read(&self.memory, &mut message[..received.message]);
        if received.data > 0 {
            let room = self.table[slot as usize].room;
            self.memory.read(room.offset, &mut data[..received.data]);
        }
        Ok(received)
    }
}

impl<M: Memory, P: WaitStrategy<M>> Transport for Lane<M, P> {
    #[inline]
    fn send(&mut self, message: &[u8], data: &[u8], room: usize) -> Result<Token, SendError> {
        let slot = self.free_slot(message)?;
        let (mut from, mut to, mut window) = Default::default();
        if data.len() | room != 0 {
            let first = data.len().checked_next_multiple_of(64).ok_or(SendError::TooLarge)?;
            let both = first.checked_add(room).and_then(|len| len.checked_next_multiple_of(64));
            window = self.free_window(both.ok_or(SendError::TooLarge)?)?;
            from = Span { offset: window.offset, len: data.len() };
            to = Span { offset: window.offset + first, len: room };
            self.memory.write(from.offset, data);
        }
        Ok(self.post(slot, message, from, to, window))
    }

    #[inline]
    fn ready(&mut self, token: &Token) -> Result<bool, Lost> {
        let slot = self.slot_of(token);
        self.answered(slot)
    }

    #[inline]
    fn wait(&mut self, token: &Token) -> Result<(), Lost> {
        let slot = self.slot_of(token);
        let waited = self.wait_for(slot);
        self.lost |= waited.is_err();
        waited
    }

    #[inline]
    fn receive(
        &mut self,
        token: Token,
        message: &mut [u8],
        data: &mut [u8],
    ) -> Result<Received, Lost> {
        let slot = self.slot_of(&token);
        let received = self.take(slot, message, data);
        self.lost |= received.is_err();
        self.used &= !(1 << slot);
        received
    }
}
