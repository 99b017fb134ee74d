//! A ring for one producer and one consumer, who share nothing but the entries.
//!
//! An entry carries its turn, how often the ring had come round when it was written: by this the
//! consumer knows a new entry from an old one, and it finds and takes an entry with one cache line.
//! There is no shared head for the producer to look at. It needs none: as many indices exist as the
//! ring has entries, and an index is enqueued again only after it was handed back, which the consumer
//! does after taking it. So when all but one position since some entry have been handed back, that
//! entry too has been taken, since the consumer takes in order, and may be overwritten.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::{Broken, Dequeue, Enqueue};
use crate::memory::Memory;

/// Entry: the turn in the high half, the index in the low half.
const ENTRY: usize = 8;

/// The bytes of a ring for `count` indices.
pub const fn bytes(count: u32) -> usize {
    (count as usize * ENTRY).next_multiple_of(64)
}

/// Makes the memory at `at` an empty ring: no entry has had its first turn, which is 1.
pub fn format<M: Memory>(memory: &M, at: usize, count: u32) {
    for entry in 0..count as usize {
        memory.store64(at + entry * ENTRY, 0, Relaxed);
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
        assert!(count.is_power_of_two());
        Cursor { memory, at, count, position: 0 }
    }

    #[inline]
    fn entry(&self) -> usize {
        let index = self.position & u64::from(self.count - 1);
        self.at + index as usize * ENTRY
    }

    /// Turns wrap around: the entry found at a position is at most one turn old.
    #[inline]
    fn turn(&self) -> u32 {
        ((self.position >> self.count.trailing_zeros()) as u32).wrapping_add(1)
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
    fn enqueue(&mut self, index: u32) -> Result<(), Broken> {
        let Producer(cursor) = self;
        let entry = u64::from(cursor.turn()) << 32 | u64::from(index);
        // Sequentially consistent, for the producer then looks whether the consumer sleeps.
        cursor.memory.store64(cursor.entry(), entry, SeqCst);
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
    fn look(&self) -> Option<u32> {
        let Consumer(cursor) = self;
        let entry = cursor.memory.load64(cursor.entry(), SeqCst);
        ((entry >> 32) as u32 == cursor.turn()).then_some(entry as u32)
    }
}

impl<M: Memory> Dequeue for Consumer<M> {
    #[inline]
    fn dequeue(&mut self) -> Result<Option<u32>, Broken> {
        let Some(index) = self.look() else { return Ok(None) };
        let Consumer(cursor) = self;
        if index >= cursor.count {
            return Err(Broken);
        }
        cursor.position = cursor.position.wrapping_add(1);
        Ok(Some(index))
    }

    #[inline]
    fn pending(&self) -> bool {
        self.look().is_some()
    }
}
