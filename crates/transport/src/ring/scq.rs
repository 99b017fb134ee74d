//! A ring for many producers and consumers: the Scalable Circular Queue.
//!
//! After R. Nikolaev, "A Scalable, Portable, and Memory-Efficient Lock-Free FIFO Queue" (DISC 2019). A
//! ring for `n` indices has `2n` entries. Producers and consumers take positions by fetch-and-add; an
//! entry says in which cycle it was written, so that who comes late or early notices. A consumer that
//! overtakes a producer spoils the entry for it, and the producer takes the next position. The
//! threshold bounds how many positions consumers spoil: after `3n - 1` without an index there is none.
//!
//! An entry is one 64-bit word, which needs no double-width compare-and-swap:
//!
//! | bits | |
//! |---|---|
//! | 0..24 | index; all ones: none |
//! | 24 | safe: a producer may use the entry without looking at the head |
//! | 25..64 | cycle, compared by wrapping distance |
//!
//! Only indices go round. The line of each has a place of its own behind the entries: it is written by
//! who enqueues the index, and read by who has taken it.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::{Broken, Dequeue, Enqueue, LINE, Taken};
use crate::memory::Memory;

/// Each on a cache line of its own, and away from the line that a processor fetches along with it.
const HEAD: usize = 0;
const TAIL: usize = 128;
const THRESHOLD: usize = 256;
const ENTRIES: usize = 384;

const NONE: u64 = (1 << 24) - 1;
const SAFE: u64 = 1 << 24;
const CYCLE_SHIFT: u32 = 25;

/// The most indices.
pub const COUNT_MAX: u32 = 1 << 23;

/// The bytes of a ring for `count` indices.
pub const fn bytes(count: u32) -> usize {
    lines(count) + count as usize * LINE
}

/// Where the lines begin.
const fn lines(count: u32) -> usize {
    ENTRIES + (2 * count as usize * 8).next_multiple_of(LINE)
}

/// Makes the memory at `at` an empty ring.
pub fn format<M: Memory>(memory: &M, at: usize, count: u32) {
    let entries = 2 * u64::from(count);
    memory.store64(at + HEAD, entries, Relaxed);
    memory.store64(at + TAIL, entries, Relaxed);
    memory.store64(at + THRESHOLD, u64::MAX, Relaxed);
    for entry in 0..entries as usize {
        memory.store64(at + ENTRIES + entry * 8, SAFE | NONE, Relaxed);
    }
}

/// An end of a ring. Every producer and consumer has one of its own; all mean the same ring.
#[derive(Clone, Debug)]
pub struct Scq<M> {
    memory: M,
    at: usize,
    count: u32,
}

/// How `position` compares with `other`, both counted without end.
#[inline]
fn after(position: u64, other: u64) -> i64 {
    position.wrapping_sub(other) as i64
}

impl<M: Memory> Scq<M> {
    /// An end of the ring that was formatted at `at`, for `count` indices, a power of two.
    pub fn new(memory: M, at: usize, count: u32) -> Self {
        assert!(count.is_power_of_two() && count <= COUNT_MAX);
        Scq { memory, at, count }
    }

    /// The place of the entry for `position`: neighbours stand on different cache lines.
    #[inline]
    fn entry(&self, position: u64) -> usize {
        let index = (position & u64::from(2 * self.count - 1)) as usize;
        let lines = self.count as usize / 4;
        let index = if lines > 1 { (index % lines) * 8 + index / lines } else { index };
        self.at + ENTRIES + index * 8
    }

    /// The cycle of `position`, where an entry has it.
    #[inline]
    fn cycle(&self, position: u64) -> u64 {
        (position >> (self.count.trailing_zeros() + 1)) << CYCLE_SHIFT
    }

    /// How the cycle of `entry` compares with `cycle`.
    #[inline]
    fn compare(entry: u64, cycle: u64) -> i64 {
        (entry >> CYCLE_SHIFT << CYCLE_SHIFT).wrapping_sub(cycle) as i64
    }

    #[inline]
    fn threshold_full(&self) -> u64 {
        3 * u64::from(self.count) - 1
    }

    /// The most steps of one call. A ring that is used honestly needs far fewer: head and tail are less
    /// than three rounds apart, and an entry changes once per position that leads to it.
    fn steps(&self) -> u32 {
        16 * self.count + 256
    }

    /// Moves the tail to where a consumer found that nothing is. Only spares others the way there.
    fn catch_up(&self, mut tail: u64, mut head: u64) {
        for _ in 0..8 {
            if self.memory.replace64(self.at + TAIL, tail, head).is_ok() {
                return;
            }
            head = self.memory.load64(self.at + HEAD, SeqCst);
            tail = self.memory.load64(self.at + TAIL, SeqCst);
            if after(tail, head) >= 0 {
                return;
            }
        }
    }
}

impl<M: Memory> Enqueue for Scq<M> {
    #[inline]
    fn line(&self, index: u32) -> usize {
        self.at + lines(self.count) + index as usize * LINE
    }

    fn enqueue(&mut self, index: u32, mark: u32) -> Result<(), Broken> {
        debug_assert!(index < self.count);
        self.memory.store64(self.line(index), mark.into(), Relaxed);
        let mut steps = self.steps();
        loop {
            let tail = self.memory.add64(self.at + TAIL, 1, SeqCst);
            let (place, cycle) = (self.entry(tail), self.cycle(tail));
            let mut entry = self.memory.load64(place, SeqCst);
            loop {
                steps = steps.checked_sub(1).ok_or(Broken)?;
                let usable = Self::compare(entry, cycle) < 0
                    && entry & NONE == NONE
                    && (entry & SAFE != 0
                        || after(self.memory.load64(self.at + HEAD, SeqCst), tail) <= 0);
                if !usable {
                    break;
                }
                match self.memory.replace64(place, entry, cycle | SAFE | u64::from(index)) {
                    Ok(_) => {
                        let full = self.threshold_full();
                        if self.memory.load64(self.at + THRESHOLD, SeqCst) != full {
                            self.memory.store64(self.at + THRESHOLD, full, SeqCst);
                        }
                        return Ok(());
                    }
                    Err(found) => entry = found,
                }
            }
        }
    }
}

impl<M: Memory> Dequeue for Scq<M> {
    fn dequeue(&mut self) -> Result<Option<Taken>, Broken> {
        // Who polls an empty ring changes nothing in it.
        if !self.pending() {
            return Ok(None);
        }
        let mut steps = self.steps();
        loop {
            let head = self.memory.add64(self.at + HEAD, 1, SeqCst);
            let (place, cycle) = (self.entry(head), self.cycle(head));
            let mut entry = self.memory.load64(place, SeqCst);
            loop {
                steps = steps.checked_sub(1).ok_or(Broken)?;
                let age = Self::compare(entry, cycle);
                if age == 0 {
                    let entry = self.memory.or64(place, NONE, SeqCst);
                    let index = (entry & NONE) as u32;
                    if index >= self.count {
                        return Err(Broken);
                    }
                    let line = self.line(index);
                    let mark = self.memory.load64(line, Relaxed) as u32;
                    return Ok(Some(Taken { index, mark, line }));
                }
                if age > 0 {
                    break;
                }
                // Early: an empty entry is passed on to the producer of the next cycle, one in use is
                // marked, so that its index is not taken for one of this cycle.
                let spoilt = match entry & NONE {
                    NONE => cycle | (entry & SAFE) | NONE,
                    _ => entry & !SAFE,
                };
                match self.memory.replace64(place, entry, spoilt) {
                    Ok(_) => break,
                    Err(found) => entry = found,
                }
            }
            let tail = self.memory.load64(self.at + TAIL, SeqCst);
            let next = head.wrapping_add(1);
            if after(tail, next) <= 0 {
                self.catch_up(tail, next);
                self.memory.add64(self.at + THRESHOLD, u64::MAX, SeqCst);
                return Ok(None);
            }
            if self.memory.add64(self.at + THRESHOLD, u64::MAX, SeqCst) as i64 <= 0 {
                return Ok(None);
            }
        }
    }

    fn pending(&self) -> bool {
        // The head only grows: a tail that is not beyond it, seen later, is not beyond it at all.
        let head = self.memory.load64(self.at + HEAD, SeqCst);
        after(self.memory.load64(self.at + TAIL, SeqCst), head) > 0
            && self.memory.load64(self.at + THRESHOLD, SeqCst) as i64 >= 0
    }
}
