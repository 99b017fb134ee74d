//! The half that sends: lanes, each used by one thread at a time.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use super::layout::{Config, Layout, Mark, Span, answer, header, request, sleeper};
use crate::memory::Memory;
use crate::ring::{Enqueue, Producer};
use crate::transport::{Lost, Received, SendError, Token, Transport};

/// How a client waits, and wakes its server.
pub trait Patience<M> {
    /// Passes a moment of waiting, the `round`th since it began; `false` when the thread should rather
    /// sleep.
    fn spin(&mut self, round: u32) -> bool;

    /// Sleeps until the word at `at` is not `value`, or somebody wakes its sleepers, or some time has
    /// passed. May return early.
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
    epoch: u64,
    /// How many handles each lane has been divided into; 0 before the first is taken.
    handles: Box<[u32]>,
    /// How many handles have been taken.
    taken: usize,
}

impl<M: Memory> ClientChannel<M> {
    /// Makes `memory`, which nobody else uses yet, a connection as `config` says, of the first epoch.
    /// None when the sizes are not allowed or need another length than `memory` has.
    pub fn create(memory: M, config: &Config) -> Option<Self> {
        let layout = Layout::new(config).filter(|layout| layout.total() == memory.len())?;
        let epoch = 1;
        layout.format(&memory, epoch);
        let handles = (0..config.lanes).map(|_| 0).collect();
        Some(ClientChannel { memory, layout, epoch, handles, taken: 0 })
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// What stands where.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The life of the connection.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The handle of `lane`, which has all of its slots and of its data window. None the second time.
    pub fn lane<P: Patience<M>>(&mut self, lane: u32, patience: P) -> Option<Lane<M, P>> {
        self.lanes(lane, [patience]).map(|[lane]| lane)
    }

    /// `N` handles of `lane`, for as many threads: each has its part of the slots and of the data window,
    /// and all submit to the lane's ring. `N` is a power of two, at most the number of slots, and 1
    /// unless the ring is for many producers; none otherwise, or the second time.
    pub fn lanes<P: Patience<M>, const N: usize>(
        &mut self,
        lane: u32,
        patience: [P; N],
    ) -> Option<[Lane<M, P>; N]> {
        let config = self.layout.config();
        let count = u32::try_from(N).ok().filter(|n| n.is_power_of_two() && *n <= config.slots)?;
        let shared = config.ring == super::RingKind::Scq;
        let handles = self.handles.get_mut(lane as usize).filter(|handles| **handles == 0)?;
        if count > 1 && !shared {
            return None;
        }
        *handles = count;
        self.taken += N;
        let slots = config.slots / count;
        let window = self.layout.window(lane);
        // A part begins on a cache line.
        let part = window.len / N / 64 * 64;
        let mut number = 0;
        Some(patience.map(|patience| {
            let window = Span { offset: window.offset + number as usize * part, len: part };
            let first = number * slots;
            number += 1;
            Lane::new(
                self.memory.clone(),
                self.layout,
                lane,
                first..first + slots,
                window,
                patience,
                self.epoch,
            )
        }))
    }

    /// Begins a new life of the connection, for a new server, after the old one is gone for good: all
    /// rings are made anew, and every request in `lanes` whose answer has not come is submitted
    /// again, in the order in which its lane sent them. Tokens stay valid; answers that have
    /// come stay.
    ///
    /// To be called before the new server attaches to the memory.
    ///
    /// # Panics
    /// Unless `lanes` are all handles that were taken.
    pub fn rebuild<P: Patience<M>>(&mut self, lanes: &mut [&mut Lane<M, P>]) {
        assert_eq!(lanes.len(), self.taken, "a ring is made anew for all who use it");
        self.epoch += 1;
        self.layout.format(&self.memory, self.epoch);
        for lane in lanes {
            lane.resubmit(self.epoch);
        }
    }
}

/// A request as its client keeps it: what the rings and slots are made from again.
#[derive(Debug, Default)]
struct Entry {
    message: Vec<u8>,
    data: Span,
    room: Span,
    /// The part of the lane's window that is taken for it.
    window: Span,
    /// Which request of the handle it is: the token.
    number: u64,
    /// Which use of the slot it is: what its answer bears.
    tag: u16,
}

/// A part of a lane: a [`Transport`] for one thread at a time.
///
/// A token's value is the request's number, times 64, plus the slot's number within the handle.
#[derive(Debug)]
pub struct Lane<M, P> {
    memory: M,
    layout: Layout,
    lane: u32,
    /// The first slot of the handle.
    first: u32,
    ring: Producer<M>,
    table: Box<[Entry]>,
    /// The entries in use, by bits.
    used: u64,
    window: Span,
    patience: P,
    /// How many requests were sent.
    sent: u64,
    epoch: u64,
    lost: bool,
}

impl<M: Memory, P: Patience<M>> Lane<M, P> {
    fn new(
        memory: M,
        layout: Layout,
        lane: u32,
        slots: core::ops::Range<u32>,
        window: Span,
        patience: P,
        epoch: u64,
    ) -> Self {
        let config = layout.config();
        let ring = Producer::new(config.ring, memory.clone(), layout.ring(lane), config.slots);
        let table = slots.clone().map(|_| Entry::default()).collect();
        let first = slots.start;
        Lane {
            memory,
            layout,
            lane,
            first,
            ring,
            table,
            used: 0,
            window,
            patience,
            sent: 0,
            epoch,
            lost: false,
        }
    }

    /// How this lane waits.
    pub fn patience(&mut self) -> &mut P {
        &mut self.patience
    }

    /// As [`send`](Transport::send), with data that lies in the connection's memory already and an answer
    /// whose data is to be stored there: no byte of either is copied. Whoever owns these places leaves
    /// them alone until the answer is received.
    ///
    /// # Errors
    /// [`SendError`].
    ///
    /// # Panics
    /// When a place does not lie inside the memory, or they overlap.
    pub fn send_shared(
        &mut self,
        message: &[u8],
        data: Span,
        room: Span,
    ) -> Result<Token, SendError> {
        let inside = |place: Span| {
            place.offset.checked_add(place.len).is_some_and(|end| end <= self.layout.total())
        };
        assert!(inside(data) && inside(room) && !data.overlaps(&room));
        let slot = self.free_slot(message)?;
        self.post(slot, message, data, room, Span::default())
    }

    /// The data of the answer to `token`, where it lies; after [`wait`](Transport::wait). It stays until
    /// the token is given to [`receive`](Transport::receive).
    ///
    /// # Errors
    /// [`Lost`].
    pub fn answer_data(&mut self, token: &Token) -> Result<Span, Lost> {
        self.wait(token)?;
        let slot = self.slot_of(token);
        let (_, data) = self.lengths(slot)?;
        Ok(Span { len: data, ..self.table[slot as usize].room })
    }

    /// A slot for `message`, its number within the handle.
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
        if len > self.window.len {
            return Err(SendError::TooLarge);
        }
        let mut place = Span { offset: self.window.offset, len };
        // First fit. Every turn passes at least one of the requests in flight.
        'next: while place.offset + len <= self.window.offset + self.window.len {
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
    fn post(
        &mut self,
        slot: u32,
        message: &[u8],
        data: Span,
        room: Span,
        window: Span,
    ) -> Result<Token, SendError> {
        let number = self.sent;
        self.sent += 1;
        let entry = &mut self.table[slot as usize];
        entry.message.clear();
        entry.message.extend_from_slice(message);
        (entry.data, entry.room, entry.window, entry.number) = (data, room, window, number);
        entry.tag = entry.tag.wrapping_add(1);
        self.used |= 1 << slot;
        if self.submit(slot).is_err() {
            self.used &= !(1 << slot);
            return Err(SendError::Lost);
        }
        Ok(Token(number << 6 | u64::from(slot)))
    }

    /// Puts the request that the table has for `slot` into the ring.
    #[inline]
    fn submit(&mut self, slot: u32) -> Result<(), Lost> {
        let (memory, index) = (&self.memory, self.first + slot);
        let entry = &self.table[slot as usize];
        let line = self.ring.line(index);
        self.layout.request_message(line, self.lane, index).write(memory, &entry.message);
        memory.store64(line + request::DATA, entry.data.pack(), Relaxed);
        memory.store64(line + request::ROOM, entry.room.pack(), Relaxed);
        let mark = Mark { tag: entry.tag, len: entry.message.len() as u16 };
        if self.ring.enqueue(index, mark.pack()).is_err() {
            self.lost = true;
            return Err(Lost);
        }
        // After the entry, so that either the server's last look before it sleeps finds the entry or
        // this look finds it asleep. Only one of all clients' threads rings.
        memory.fence();
        if memory.load32(header::STATUS, Relaxed) == header::ASLEEP
            && memory.replace32(header::STATUS, header::ASLEEP, header::AWAKE).is_ok()
        {
            self.patience.ring();
        }
        Ok(())
    }

    /// What [`ClientChannel::rebuild`] does for one handle.
    fn resubmit(&mut self, epoch: u64) {
        let config = self.layout.config();
        let ring = self.layout.ring(self.lane);
        self.ring = Producer::new(config.ring, self.memory.clone(), ring, config.slots);
        self.epoch = epoch;
        self.lost = false;
        let mut unanswered: Vec<u32> = Vec::new();
        for slot in 0..self.table.len() as u32 {
            let in_use = self.used & 1 << slot != 0;
            if in_use && self.answered(slot) == Ok(true) && self.lengths(slot).is_ok() {
                continue;
            }
            // Whatever the old server left there: an answer is known by the tag that follows.
            let tag = self.table[slot as usize].tag.wrapping_sub(in_use.into());
            self.memory.store32(self.mark_of(slot), Mark { tag, len: 0 }.pack(), Relaxed);
            if in_use {
                unanswered.push(slot);
            }
        }
        unanswered.sort_by_key(|&slot| self.table[slot as usize].number);
        for slot in unanswered {
            // A ring that was just made has room.
            let _ = self.submit(slot);
        }
    }

    /// The word that changes when the answer to the request in `slot` comes.
    fn mark_of(&self, slot: u32) -> usize {
        self.layout.answer(self.lane, self.first + slot) + answer::MARK
    }

    /// The slot of `token`, its number within the handle.
    #[inline]
    fn slot_of(&self, token: &Token) -> u32 {
        let slot = (token.0 & 63) as u32;
        let in_use = self.used & 1 << slot != 0;
        assert!(in_use && self.table[slot as usize].number == token.0 >> 6, "a token of this lane");
        slot
    }

    /// Whether `mark` is that of the answer to the request in `slot`. Until that comes, it is the one of
    /// the slot's use before.
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
        let at = self.layout.answer(self.lane, self.first + slot);
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
            if self.patience.spin(round) {
                round = round.saturating_add(1);
            } else {
                self.sleep(slot)?;
            }
        }
        Ok(())
    }

    /// Sleeps until the answer is in `slot`, or until the patience ends.
    #[cold]
    fn sleep(&mut self, slot: u32) -> Result<(), Lost> {
        let sleeper = self.layout.sleeper(self.lane, self.first + slot);
        self.memory.store32(sleeper, sleeper::ASLEEP, Relaxed);
        // Before the look at the mark, so that either this look finds the answer or the server, which
        // looks after it has written the mark, finds the sleeper.
        self.memory.fence();
        let at = self.mark_of(slot);
        let mark = self.memory.load32(at, Acquire);
        let slept = match self.answers(slot, mark) {
            Ok(false) => self.patience.park(&self.memory, at, mark),
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
        let index = self.first + slot;
        let place = self.layout.answer_message(self.lane, index);
        place.read(&self.memory, &mut message[..received.message]);
        if received.data > 0 {
            let room = self.table[slot as usize].room;
            self.memory.read(room.offset, &mut data[..received.data]);
        }
        Ok(received)
    }
}

impl<M: Memory, P: Patience<M>> Transport for Lane<M, P> {
    fn epoch(&self) -> u64 {
        self.epoch
    }

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
        self.post(slot, message, from, to, window)
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
