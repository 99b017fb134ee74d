//! The words of memory that two sides share, as rings and channels use them.
//!
//! A trait, so that a model checker can stand in for the memory and try every order of its
//! accesses.

use core::sync::atomic::Ordering;

use crate::Shared;

/// Memory that another side reads and writes at the same time. Clones mean the same memory.
///
/// Offsets come from this side's layout, never from the memory, and each word is only ever used in
/// one size. Access outside, or not aligned to the word's size, panics.
pub trait Memory: Clone {
    /// The length in bytes.
    fn len(&self) -> usize;
    /// Whether there is nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Loads the 16-bit word at `at`.
    fn load16(&self, at: usize, order: Ordering) -> u16;
    /// Stores it.
    fn store16(&self, at: usize, value: u16, order: Ordering);

    /// Loads the 32-bit word at `at`.
    fn load32(&self, at: usize, order: Ordering) -> u32;
    /// Stores it.
    fn store32(&self, at: usize, value: u32, order: Ordering);
    /// Stores it and returns what was there.
    fn swap32(&self, at: usize, value: u32, order: Ordering) -> u32;
    /// Stores `new` if `old` is there; `Err` is what is there instead. Success orders as
    /// [`Ordering::SeqCst`], failure as [`Ordering::Acquire`].
    fn replace32(&self, at: usize, old: u32, new: u32) -> Result<u32, u32>;

    /// Loads the 64-bit word at `at`.
    fn load64(&self, at: usize, order: Ordering) -> u64;
    /// Stores it.
    fn store64(&self, at: usize, value: u64, order: Ordering);

    /// A sequentially consistent fence: what was stored before it others see before this side loads
    /// anything after it. After a store to a line that another side looks at all the time it costs
    /// less than a sequentially consistent store, which first waits until what was stored there
    /// before is out, and then often for the line to come back.
    fn fence(&self);

    /// Copies the bytes at `at`, of any alignment, to `out`: for data that nobody looks at.
    fn read(&self, at: usize, out: &mut [u8]);
    /// Copies `data` to `at`.
    fn write(&self, at: usize, data: &[u8]);

    /// Copies the message at `at`, which begins a word, to `out`, word by word: what another side
    /// changes meanwhile arrives torn, but each word once.
    #[inline]
    fn read_message(&self, at: usize, out: &mut [u8]) {
        let mut at = at;
        let mut words = out.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.load64(at, Ordering::Relaxed).to_ne_bytes());
            at += 8;
        }
        let rest = words.into_remainder();
        if !rest.is_empty() {
            let word = self.load64(at, Ordering::Relaxed).to_ne_bytes();
            rest.copy_from_slice(&word[..rest.len()]);
        }
    }

    /// Copies `message` to `at`, which begins a word. A last word that it does not fill is filled
    /// with zeros.
    #[inline]
    fn write_message(&self, at: usize, message: &[u8]) {
        let mut at = at;
        let mut words = message.chunks_exact(8);
        for word in &mut words {
            let word = word.try_into().map_or(0, u64::from_ne_bytes);
            self.store64(at, word, Ordering::Relaxed);
            at += 8;
        }
        let rest = words.remainder();
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.store64(at, u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }
}

impl Memory for Shared<'_> {
    #[inline]
    fn len(&self) -> usize {
        Shared::len(self)
    }

    #[inline]
    fn load16(&self, at: usize, order: Ordering) -> u16 {
        self.u16(at).load(order)
    }

    #[inline]
    fn store16(&self, at: usize, value: u16, order: Ordering) {
        self.u16(at).store(value, order);
    }

    #[inline]
    fn load32(&self, at: usize, order: Ordering) -> u32 {
        self.u32(at).load(order)
    }

    #[inline]
    fn store32(&self, at: usize, value: u32, order: Ordering) {
        self.u32(at).store(value, order);
    }

    #[inline]
    fn swap32(&self, at: usize, value: u32, order: Ordering) -> u32 {
        self.u32(at).swap(value, order)
    }

    #[inline]
    fn replace32(&self, at: usize, old: u32, new: u32) -> Result<u32, u32> {
        self.u32(at).compare_exchange(old, new, Ordering::SeqCst, Ordering::Acquire)
    }

    #[inline]
    fn load64(&self, at: usize, order: Ordering) -> u64 {
        self.u64(at).load(order)
    }

    #[inline]
    fn store64(&self, at: usize, value: u64, order: Ordering) {
        self.u64(at).store(value, order);
    }

    #[inline]
    fn fence(&self) {
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    #[inline]
    fn read(&self, at: usize, out: &mut [u8]) {
        Shared::read(self, at, out);
    }

    #[inline]
    fn write(&self, at: usize, data: &[u8]) {
        Shared::write(self, at, data);
    }

    /// One look at the place for all words: one for each took a request and its answer 170
    /// instructions.
    #[inline]
    fn read_message(&self, at: usize, out: &mut [u8]) {
        let words = self.words(at, out.len().div_ceil(8));
        let (whole, rest) = out.as_chunks_mut();
        for (word, out) in words.iter().zip(whole) {
            *out = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        if let (Some(word), false) = (words.last(), rest.is_empty()) {
            let word = word.load(Ordering::Relaxed).to_ne_bytes();
            rest.copy_from_slice(&word[..rest.len()]);
        }
    }

    #[inline]
    fn write_message(&self, at: usize, message: &[u8]) {
        let words = self.words(at, message.len().div_ceil(8));
        let (whole, rest) = message.as_chunks();
        for (word, bytes) in words.iter().zip(whole) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        if let (Some(last), false) = (words.last(), rest.is_empty()) {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            last.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Lines([u8; 128]);

    #[test]
    fn messages_of_any_length() {
        let message: [u8; 41] = core::array::from_fn(|at| at as u8 + 1);
        for len in 0..=message.len() {
            let mut lines = Lines([0xff; 128]);
            let memory = Shared::from_slice(&mut lines.0);
            memory.write_message(8, &message[..len]);
            let mut read = [0; 41];
            memory.read_message(8, &mut read[..len]);
            assert_eq!(read[..len], message[..len]);
            // The last word is filled with zeros, and what lies around stays.
            let end = 8 + len.next_multiple_of(8);
            assert!(lines.0[8 + len..end].iter().all(|&byte| byte == 0));
            assert!(lines.0[..8].iter().chain(&lines.0[end..]).all(|&byte| byte == 0xff));
        }
    }

    #[test]
    #[should_panic = "len.is_some()"]
    fn no_message_ends_outside() {
        let mut lines = Lines([0; 128]);
        Shared::from_slice(&mut lines.0).read_message(120, &mut [0; 9]);
    }
}
