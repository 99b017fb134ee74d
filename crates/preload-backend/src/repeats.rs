//! Whether a process asks for the same again and again: only then is a View worth what it costs.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// Requests that are remembered: about as many as the View will have room for.
const PLACES: usize = 1024;
/// Repeated requests after which there should be a View. To begin one costs 180 us, as much as some
/// 300 requests that it answers instead; most processes make fewer in their lives.
const ENOUGH: u32 = 256;

/// The latest requests. Threads share this; what they lose between them only puts the View off.
pub struct Repeats {
    /// In the place of its hash, some other bits of that.
    lately: [AtomicU16; PLACES],
    again: AtomicU32,
}

impl Repeats {
    /// Nothing yet.
    pub const fn new() -> Repeats {
        Repeats { lately: [const { AtomicU16::new(0) }; PLACES], again: AtomicU32::new(0) }
    }

    /// Takes note of a request for `part` of `ino`. Says true once: when enough were repeated.
    #[inline]
    pub fn asked(&self, ino: u64, part: u64) -> bool {
        let hash = (ino.rotate_left(32) ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = &self.lately[(hash >> 48) as usize % PLACES];
        // Never 0, which is nothing.
        let mark = (hash >> 32) as u16 | 1;
        if place.load(Ordering::Relaxed) != mark {
            place.store(mark, Ordering::Relaxed);
            return false;
        }
        self.again.fetch_add(1, Ordering::Relaxed) + 1 == ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_and_only_for_what_is_repeated() {
        let repeats = Repeats::new();
        // A long file from its beginning to its end: nearly nothing twice.
        assert!(!(0..100_000).any(|part| repeats.asked(7, part)));
        let repeats = Repeats::new();
        let said = (0..1000).filter(|_| repeats.asked(7, u64::MAX)).count();
        assert_eq!(said, 1);
        // Some pages in turns.
        let repeats = Repeats::new();
        let until = (0..10_000).position(|n| repeats.asked(9, n % 50));
        assert!(until.is_some_and(|until| until < 600), "{until:?}");
    }
}
