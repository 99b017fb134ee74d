//! The sequence word of a record: even while the record can be read, odd while it cannot.
//!
//! Boehm, "Can Seqlocks Get Along with Programming Language Memory Models?", MSPC 2012: the
//! reader's first load acquires, so that it sees what was written before the word became even; the
//! fence before its second load, with the one behind [`hold`], makes it see the word odd, or later,
//! if it saw a single byte of what was written after.
//!
//! There is one writer. The functions are generic so that a model checker can stand in for memory.

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// A word of memory that several threads use.
pub trait Word {
    /// Loads it.
    fn load(&self, order: Ordering) -> u64;
    /// Stores to it.
    fn store(&self, value: u64, order: Ordering);
    /// A fence among such words.
    fn fence(order: Ordering);
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    #[inline(always)]
    fn fence(order: Ordering) {
        fence(order);
    }
}

/// Writer: from here the record cannot be read, and may be changed by relaxed stores.
#[inline]
pub fn hold<W: Word>(sequence: &W) {
    sequence.store(sequence.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
    W::fence(Ordering::Release);
}

/// Writer: the record, which is held, can be read.
#[inline]
pub fn publish<W: Word>(sequence: &W) {
    sequence.store((sequence.load(Ordering::Relaxed) | 1).wrapping_add(1), Ordering::Release);
}

/// Reader: the word to give to [`unchanged`], or `None` while the record is held.
#[inline(always)]
pub fn begin<W: Word>(sequence: &W) -> Option<u64> {
    let value = sequence.load(Ordering::Acquire);
    (value & 1 == 0).then_some(value)
}

/// Reader: whether all that was loaded from the record since [`begin`] gave `value` was there at
/// one and the same time.
#[inline(always)]
pub fn unchanged<W: Word>(sequence: &W, value: u64) -> bool {
    W::fence(Ordering::Acquire);
    sequence.load(Ordering::Relaxed) == value
}
