//! Rings of indices in shared memory: what a producer has put in, a consumer takes out in order.
//!
//! [`spsc`] is for one producer and one consumer, [`scq`] for any number of either. Both hold as many
//! indices as there are, so that a producer which owns what it enqueues never finds a ring full.
//! With each index travels a *line* of [`LINE`] bytes. Its first word is the ring's, which puts there what
//! the producer says, the *mark*; the producer fills the rest beforehand. In the ring for one producer the
//! lines are the entries, so that a consumer has everything with the word that it was looking at.
//!
//! Rings are not repaired after a crash of either side but formatted anew and filled again by who owns
//! the requests.

pub mod scq;
pub mod spsc;

pub use scq::Scq;

use crate::memory::Memory;

/// The bytes of a line: two of a processor's cache, which it fetches together.
pub const LINE: usize = 128;

/// What a consumer has taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Below the ring's count.
    pub index: u32,
    /// What the producer gave with it.
    pub mark: u32,
    /// The place of its line. What the producer wrote there stays until one of the indices that were
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

/// Which ring a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// [`spsc`].
    Spsc,
    /// [`scq`].
    Scq,
}

impl RingKind {
    /// The bytes that a ring for `count` indices takes, a multiple of [`LINE`]. `count` is a power of two.
    pub const fn bytes(self, count: u32) -> usize {
        match self {
            RingKind::Spsc => spsc::bytes(count),
            RingKind::Scq => scq::bytes(count),
        }
    }

    /// Makes the memory at `at` an empty ring.
    pub fn format<M: Memory>(self, memory: &M, at: usize, count: u32) {
        match self {
            RingKind::Spsc => spsc::format(memory, at, count),
            RingKind::Scq => scq::format(memory, at, count),
        }
    }
}

/// The end that puts indices in.
pub trait Enqueue {
    /// The place of the line that travels with `index` if that is enqueued next. The producer fills all
    /// but the first word before. The index is not in the ring now.
    fn line(&self, index: u32) -> usize;

    /// Puts `index` in, with `mark`. It is not in the ring now, so that there is room.
    ///
    /// # Errors
    /// [`Broken`] when there is none nevertheless.
    fn enqueue(&mut self, index: u32, mark: u32) -> Result<(), Broken>;
}

/// The end that takes indices out. Every call ends after a bounded number of steps, whatever the
/// memory holds and whoever changes it meanwhile.
pub trait Dequeue {
    /// The next index and what travels with it.
    ///
    /// # Errors
    /// [`Broken`].
    fn dequeue(&mut self) -> Result<Option<Taken>, Broken>;

    /// Whether there may be something to take out. What was put in before this looks is seen: never
    /// `false` wrongly. A `true` that was wrong becomes `false` after a bounded number of calls of
    /// [`dequeue`](Self::dequeue).
    fn pending(&self) -> bool;
}

/// The producer's end of a ring of either kind.
#[derive(Debug)]
pub enum Producer<M> {
    /// Of [`spsc`].
    Spsc(spsc::Producer<M>),
    /// Of [`scq`].
    Scq(Scq<M>),
}

impl<M: Memory> Producer<M> {
    /// The end of the ring that was formatted at `at`.
    pub fn new(kind: RingKind, memory: M, at: usize, count: u32) -> Self {
        match kind {
            RingKind::Spsc => Producer::Spsc(spsc::Producer::new(memory, at, count)),
            RingKind::Scq => Producer::Scq(Scq::new(memory, at, count)),
        }
    }
}

impl<M: Memory> Enqueue for Producer<M> {
    #[inline]
    fn line(&self, index: u32) -> usize {
        match self {
            Producer::Spsc(ring) => ring.line(index),
            Producer::Scq(ring) => ring.line(index),
        }
    }

    #[inline]
    fn enqueue(&mut self, index: u32, mark: u32) -> Result<(), Broken> {
        match self {
            Producer::Spsc(ring) => ring.enqueue(index, mark),
            Producer::Scq(ring) => ring.enqueue(index, mark),
        }
    }
}

/// The consumer's end of a ring of either kind.
#[derive(Debug)]
pub enum Consumer<M> {
    /// Of [`spsc`].
    Spsc(spsc::Consumer<M>),
    /// Of [`scq`].
    Scq(Scq<M>),
}

impl<M: Memory> Consumer<M> {
    /// The end of the ring that was formatted at `at` and from which nothing was taken.
    pub fn new(kind: RingKind, memory: M, at: usize, count: u32) -> Self {
        match kind {
            RingKind::Spsc => Consumer::Spsc(spsc::Consumer::new(memory, at, count)),
            RingKind::Scq => Consumer::Scq(Scq::new(memory, at, count)),
        }
    }
}

impl<M: Memory> Dequeue for Consumer<M> {
    #[inline]
    fn dequeue(&mut self) -> Result<Option<Taken>, Broken> {
        match self {
            Consumer::Spsc(ring) => ring.dequeue(),
            Consumer::Scq(ring) => ring.dequeue(),
        }
    }

    #[inline]
    fn pending(&self) -> bool {
        match self {
            Consumer::Spsc(ring) => ring.pending(),
            Consumer::Scq(ring) => ring.pending(),
        }
    }
}
