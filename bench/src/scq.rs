//! A ring for many producers and consumers, the Scalable Circular Queue, beside which the ring of a
//! connection is measured. No connection uses it: on the machines measured it is slower than a ring
//! for each producer.
//!
//! After R. Nikolaev, "A Scalable, Portable, and Memory-Efficient Lock-Free FIFO Queue" (DISC
//! 2019). A ring for `n` indices has `2n` entries. Producers and consumers take positions by
//! fetch-and-add; an entry says in which cycle it was written, by which a late or early side
//! notices that it is one. A consumer that overtakes a producer spoils the entry for it, and the
//! producer takes the next position. The threshold bounds how many positions consumers spoil: after
//! `3n - 1` without an index there is none.
//!
//! An entry is one 64-bit word, which needs no double-width compare-and-swap:
//!
//! | bits | |
//! |---|---|
//! | 0..24 | index; all ones: none |
//! | 24 | safe: a producer may use the entry without looking at the head |
//! | 25..64 | cycle, compared by wrapping distance |
//!
//! Only indices go round. The line of each has a place of its own behind the entries.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use atoll_host::shm::SharedMemory;
use atoll_transport::channel::Mapped;
use atoll_transport::ring::{Broken, LINE};

/// Each on a cache line of its own, and away from the line that a processor fetches along with it.
const HEAD: usize = 0;
const TAIL: usize = 128;
const THRESHOLD: usize = 256;
const ENTRIES: usize = 384;

const NONE: u64 = (1 << 24) - 1;
const SAFE: u64 = 1 << 24;
const CYCLE_SHIFT: u32 = 25;

/// The bytes of a ring for `count` indices.
pub const fn bytes(count: u32) -> usize {
    lines(count) + count as usize * LINE
}

/// Where the lines begin.
const fn lines(count: u32) -> usize {
    ENTRIES + (2 * count as usize * 8).next_multiple_of(LINE)
}

/// An end of a ring. Each producer and consumer has one of its own; clones mean the same ring.
#[derive(Clone, Debug)]
pub struct Scq {
    memory: SharedMemory,
    count: u32,
}

/// How `position` compares with `other`, both counted without end.
#[inline]
fn after(position: u64, other: u64) -> i64 {
    position.wrapping_sub(other) as i64
}

impl Scq {
    /// Makes the beginning of `memory` an empty ring for `count` indices, a power of two.
    pub fn new(memory: SharedMemory, count: u32) -> Self {
        assert!(count.is_power_of_two() && count < 1 << 23);
        let ring = Scq { memory, count };
        let entries = 2 * u64::from(count);
        ring.word(HEAD).store(entries, Relaxed);
        ring.word(TAIL).store(entries, Relaxed);
        ring.word(THRESHOLD).store(u64::MAX, Relaxed);
        for entry in 0..entries as usize {
            ring.word(ENTRIES + entry * 8).store(SAFE | NONE, Relaxed);
        }
        ring
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        self.memory.shared().u64(at)
    }

    /// The entry for `position`: neighbours stand on different cache lines.
    #[inline]
    fn entry(&self, position: u64) -> &AtomicU64 {
        let index = (position & u64::from(2 * self.count - 1)) as usize;
        let lines = self.count as usize / 4;
        let index = if lines > 1 { (index % lines) * 8 + index / lines } else { index };
        self.word(ENTRIES + index * 8)
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

    /// The most steps of one call, so that a lost index ends a measure and does not hang it.
    fn steps(&self) -> u32 {
        16 * self.count + 256
    }

    /// Moves the tail to where a consumer found that nothing is. Only spares others the way there.
    fn catch_up(&self, mut tail: u64, mut head: u64) {
        for _ in 0..8 {
            if self.word(TAIL).compare_exchange(tail, head, SeqCst, Acquire).is_ok() {
                return;
            }
            head = self.word(HEAD).load(SeqCst);
            tail = self.word(TAIL).load(SeqCst);
            if after(tail, head) >= 0 {
                return;
            }
        }
    }

    /// Puts `index` in, with a line. It is not in the ring now, so that there is room.
    ///
    /// # Errors
    /// [`Broken`] when there is none nevertheless.
    pub fn enqueue(&self, index: u32) -> Result<(), Broken> {
        self.word(lines(self.count) + index as usize * LINE).store(0, Relaxed);
        let mut steps = self.steps();
        loop {
            let tail = self.word(TAIL).fetch_add(1, SeqCst);
            let (place, cycle) = (self.entry(tail), self.cycle(tail));
            let mut entry = place.load(SeqCst);
            loop {
                steps = steps.checked_sub(1).ok_or(Broken)?;
                let usable = Self::compare(entry, cycle) < 0
                    && entry & NONE == NONE
                    && (entry & SAFE != 0 || after(self.word(HEAD).load(SeqCst), tail) <= 0);
                if !usable {
                    break;
                }
                let new = cycle | SAFE | u64::from(index);
                match place.compare_exchange(entry, new, SeqCst, Acquire) {
                    Ok(_) => {
                        let full = 3 * u64::from(self.count) - 1;
                        if self.word(THRESHOLD).load(SeqCst) != full {
                            self.word(THRESHOLD).store(full, SeqCst);
                        }
                        return Ok(());
                    }
                    Err(found) => entry = found,
                }
            }
        }
    }

    /// Takes out the next index.
    ///
    /// # Errors
    /// [`Broken`] when the entry has none.
    pub fn dequeue(&self) -> Result<Option<u32>, Broken> {
        // A consumer that polls an empty ring changes nothing in it.
        if !self.pending() {
            return Ok(None);
        }
        let mut steps = self.steps();
        loop {
            let head = self.word(HEAD).fetch_add(1, SeqCst);
            let (place, cycle) = (self.entry(head), self.cycle(head));
            let mut entry = place.load(SeqCst);
            loop {
                steps = steps.checked_sub(1).ok_or(Broken)?;
                let age = Self::compare(entry, cycle);
                if age == 0 {
                    let index = (place.fetch_or(NONE, SeqCst) & NONE) as u32;
                    if index >= self.count {
                        return Err(Broken);
                    }
                    let _ = self.word(lines(self.count) + index as usize * LINE).load(Relaxed);
                    return Ok(Some(index));
                }
                if age > 0 {
                    break;
                }
                // Early: an empty entry is passed on to the producer of the next cycle, one in use
                // is marked, so that its index is not taken for one of this cycle.
                let spoilt = match entry & NONE {
                    NONE => cycle | (entry & SAFE) | NONE,
                    _ => entry & !SAFE,
                };
                match place.compare_exchange(entry, spoilt, SeqCst, Acquire) {
                    Ok(_) => break,
                    Err(found) => entry = found,
                }
            }
            let tail = self.word(TAIL).load(SeqCst);
            let next = head.wrapping_add(1);
            if after(tail, next) <= 0 {
                self.catch_up(tail, next);
                self.word(THRESHOLD).fetch_sub(1, SeqCst);
                return Ok(None);
            }
            if self.word(THRESHOLD).fetch_sub(1, SeqCst) as i64 <= 0 {
                return Ok(None);
            }
        }
    }

    fn pending(&self) -> bool {
        // The head only grows: a tail that is not beyond it, seen later, is not beyond it at all.
        let head = self.word(HEAD).load(SeqCst);
        after(self.word(TAIL).load(SeqCst), head) > 0
            && self.word(THRESHOLD).load(SeqCst) as i64 >= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Each index arrives once, from two producers at two consumers, while the ring comes round.
    #[test]
    fn indices_arrive_once() {
        const COUNT: u32 = 8;
        let memory = SharedMemory::create("test", bytes(COUNT).next_multiple_of(4096)).unwrap();
        let ring = &Scq::new(memory, COUNT);
        assert_eq!(ring.dequeue(), Ok(None));
        let rounds = 2000;
        // An index is its owner's while it is not in the ring.
        let free = [0, 1].map(|part| Mutex::new((0..COUNT / 2).map(|i| part * 4 + i).collect()));
        let (free, left) = (&free, &AtomicU64::new(2 * rounds));
        std::thread::scope(|scope| {
            for part in free {
                scope.spawn(move || {
                    let mut put = 0;
                    while put < rounds {
                        let index: Option<u32> = Vec::pop(&mut part.lock().unwrap());
                        match index {
                            Some(index) => ring.enqueue(index).unwrap(),
                            None => std::thread::yield_now(),
                        }
                        put += u64::from(index.is_some());
                    }
                });
                scope.spawn(move || {
                    while left.load(SeqCst) > 0 {
                        let Some(index) = ring.dequeue().unwrap() else {
                            std::thread::yield_now();
                            continue;
                        };
                        let mut owner = free[index as usize / 4].lock().unwrap();
                        assert!(!owner.contains(&index), "{index} came twice");
                        owner.push(index);
                        assert!(left.fetch_sub(1, SeqCst) > 0, "more came out than went in");
                    }
                });
            }
        });
        assert_eq!(ring.dequeue(), Ok(None));
        assert!(free.iter().all(|part| part.lock().unwrap().len() == 4));
    }
}
