//! A ring of indices in shared memory: a consumer takes out in order what one producer has put in.
//!
//! It holds as many indices as there are, so that a producer which owns what it enqueues never
//! finds it full. With each index travels a *line* of [`LINE`] bytes, which is the ring's entry.
//! The first word of a line is the ring's, and has what the producer says with the index, the
//! *mark*; the producer fills the rest beforehand. So the consumer has everything with the word
//! that it was looking at.
//!
//! An entry carries its turn, how often the ring had come round when it was written: by this the
//! consumer knows a new entry from an old one. There is no shared head for the producer to look at.
//! It needs none: an index is enqueued again only after it was handed back, which the consumer does
//! after taking it. So when all but one position since some entry have been handed back, that entry
//! too has been taken, since the consumer takes in order, and may be overwritten.

use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use crate::memory::Memory;

/// The bytes of a line: two of a processor's cache, which it fetches together.
pub const LINE: usize = 128;

/// The first word of an entry: the mark from bit 0 on, the index and the turn from these on.
const INDEX_SHIFT: u32 = 32;
const TURN_SHIFT: u32 = 48;

/// The most indices: the word of an entry has 16 bits for one.
const COUNT_MAX: u32 = 1 << 16;

/// An index that a consumer has taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Below the ring's count.
    pub index: u32,
    /// The number that the producer gave with it.
    pub mark: u32,
    /// The place of its line. The producer's bytes there stay until one of the indices that were
    /// taken is handed back; a hostile producer changes it at any time.
    pub line: usize,
}

/// The memory holds what no honest peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl core::fmt::Display for Broken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the peer broke the protocol of the shared memory")
    }
}

impl core::error::Error for Broken {}

/// The bytes of a ring for `count` indices, a multiple of [`LINE`].
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

/// The end that puts indices in.
#[derive(Debug)]
pub struct Producer<M>(Cursor<M>);

impl<M: Memory> Producer<M> {
    /// The end of the ring that was formatted at `at`, for `count` indices, a power of two.
    pub fn new(memory: M, at: usize, count: u32) -> Self {
        Producer(Cursor::new(memory, at, count))
    }

    /// The place of the line that travels with the next index. The producer fills all but the first
    /// word before.
    #[inline]
    pub fn line(&self) -> usize {
        self.0.line()
    }

    /// Puts `index` in, with `mark`. It is not in the ring now, so that there is room.
    #[inline]
    pub fn enqueue(&mut self, index: u32, mark: u32) {
        let Producer(cursor) = self;
        let turn = u64::from(cursor.turn()) << TURN_SHIFT;
        let entry = turn | u64::from(index) << INDEX_SHIFT | u64::from(mark);
        cursor.memory.store64(cursor.line(), entry, Release);
        cursor.position = cursor.position.wrapping_add(1);
    }
}

/// The end that takes indices out. Each call is one look at one word, whatever the memory holds and
/// however it changes meanwhile.
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

    /// The next index and what travels with it.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    pub fn dequeue(&mut self) -> Result<Option<Taken>, Broken> {
        let Some(taken) = self.look() else { return Ok(None) };
        let Consumer(cursor) = self;
        if taken.index >= cursor.count {
            return Err(Broken);
        }
        cursor.position = cursor.position.wrapping_add(1);
        Ok(Some(taken))
    }

    /// Whether there is something to take out. An index that was put in before this call is seen.
    #[inline]
    pub fn pending(&self) -> bool {
        self.look().is_some()
    }
}
