//! A ring for one producer and one consumer, who share nothing but the entries.
//!
//! An entry carries its turn, how often the ring had come round when it was written: by this the
//! consumer knows a new entry from an old one, and it finds and takes an entry with the lines that it
//! has been looking at. There is no shared head for the producer to look at. It needs none: as many
//! indices exist as the ring has entries, and an index is enqueued again only after it was handed back,
//! which the consumer does after taking it. So when all but one position since some entry have been
//! handed back, that entry too has been taken, since the consumer takes in order, and may be
//! overwritten.

use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use super::{Broken, Dequeue, Enqueue, LINE, Taken};
use crate::memory::Memory;

/// The first word of an entry: the mark from bit 0 on, the index and the turn from these on.
const INDEX_SHIFT: u32 = 32;
const TURN_SHIFT: u32 = 48;

/// The most indices: the word of an entry has 16 bits for one.
pub const COUNT_MAX: u32 = 1 << 16;

/// The bytes of a ring for `count` indices.
pub const fn bytes(count: u32) -> usize {
    count as usize * LINE
}

/// Makes the memory at `at` an empty ring: no entry has had its first turn, which is 1.
pub fn format<M: Memory>(memory: &M, at: usize, count: u32) {
    for entry in 0..count as usize {
        memory.store64(at + entry * LINE, 0, Relaxed);
    }
}

/// Where an end stands.
#[derive(Debug)]
struct Cursor<M> {
    memory: M,
    at: usize,
    count: u32,
    /// Entries that this end has passed.
    position: u64,
}

impl<M: Memory> Cursor<M> {
    fn new(memory: M, at: usize, count: u32) -> Self {
        assert!(count.is_power_of_two() && count <= COUNT_MAX);
        Cursor { memory, at, count, position: 0 }
    }

    #[inline]
    fn line(&self) -> usize {
        let index = self.position & u64::from(self.count - 1);
        self.at + index as usize * LINE
    }

    /// Turns wrap around: the entry found at a position is at most one turn old.
    #[inline]
    fn turn(&self) -> u16 {
        ((self.position >> self.count.trailing_zeros()) as u16).wrapping_add(1)
    }
}

/// The producer's end.
#[derive(Debug)]
pub struct Producer<M>(Cursor<M>);

impl<M: Memory> Producer<M> {
    /// The end of the ring that was formatted at `at`, for `count` indices, a power of two.
    pub fn new(memory: M, at: usize, count: u32) -> Self {
        Producer(Cursor::new(memory, at, count))
    }
}

impl<M: Memory> Enqueue for Producer<M> {
    #[inline]
    fn line(&self, _: u32) -> usize {
        self.0.line()
    }

    #[inline]
    fn enqueue(&mut self, index: u32, mark: u32) -> Result<(), Broken> {
        let Producer(cursor) = self;
        let turn = u64::from(cursor.turn()) << TURN_SHIFT;
        let entry = turn | u64::from(index) << INDEX_SHIFT | u64::from(mark);
        cursor.memory.store64(cursor.line(), entry, Release);
        cursor.position = cursor.position.wrapping_add(1);
        Ok(())
    }
}

/// The consumer's end.
#[derive(Debug)]
pub struct Consumer<M>(Cursor<M>);

impl<M: Memory> Consumer<M> {
    /// The end of the ring that was formatted at `at`, from which nothing was taken yet.
    pub fn new(memory: M, at: usize, count: u32) -> Self {
        Consumer(Cursor::new(memory, at, count))
    }

    #[inline]
    fn look(&self) -> Option<Taken> {
        let Consumer(cursor) = self;
        let line = cursor.line();
        let entry = cursor.memory.load64(line, SeqCst);
        let index = u32::from((entry >> INDEX_SHIFT) as u16);
        let taken = Taken { index, mark: entry as u32, line };
        ((entry >> TURN_SHIFT) as u16 == cursor.turn()).then_some(taken)
    }
}

impl<M: Memory> Dequeue for Consumer<M> {
    #[inline]
    fn dequeue(&mut self) -> Result<Option<Taken>, Broken> {
        let Some(taken) = self.look() else { return Ok(None) };
        let Consumer(cursor) = self;
        if taken.index >= cursor.count {
            return Err(Broken);
        }
        cursor.position = cursor.position.wrapping_add(1);
        Ok(Some(taken))
    }

    #[inline]
    fn pending(&self) -> bool {
        self.look().is_some()
    }
}
