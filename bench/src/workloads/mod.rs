//! The workloads: each one generic function over the calls of a subject, but for those of
//! [`rings`].
//!
//! Every one checks all that it reads. The cost of a check is part of the time, for all subjects
//! alike.

pub mod chunks;
pub mod clients;
pub mod directory;
pub mod files;
pub mod one_file;
pub mod programs;
pub mod rings;
pub mod sequential;
pub mod stops;
pub mod sync;

use std::ffi::CString;
use std::time::{Duration, Instant};

use crate::record::{Broken, Record};

/// The circumstances of one measurement.
pub struct Run {
    /// The quantity that the workload's definition varies: a size, a number of files, a number of
    /// calls.
    pub point: u64,
    /// Whether it only has to be shown that the workload works.
    pub smoke: bool,
    /// Where samples go.
    pub record: Record,
}

impl Run {
    /// Runs `pass` again and again in this process, for steady figures: until a second has passed
    /// or it ran 30 times, but at least 3 times; once in a smoke run.
    pub fn steady(
        &mut self,
        mut pass: impl FnMut(&mut Self) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let begin = Instant::now();
        for done in 0..30 {
            let enough = if self.smoke { 1 } else { 3 };
            if done >= enough && (self.smoke || begin.elapsed() > Duration::from_secs(1)) {
                break;
            }
            pass(self)?;
        }
        Ok(())
    }
}

/// Bytes to write and to compare with: a slice that differs from one index to the next.
pub struct Pattern(Vec<u8>);

/// How many different slices a pattern has.
const SLICES: usize = 4096;

impl Pattern {
    /// A pattern with slices of up to `longest` bytes.
    pub fn new(longest: usize) -> Self {
        let mut random = Random(0x243f_6a88_85a3_08d3);
        Pattern((0..longest + SLICES).map(|_| random.next() as u8).collect())
    }

    /// The `len` bytes that belong to `index`.
    pub fn slice(&self, index: u64, len: usize) -> &[u8] {
        // 61 is odd: neighbours differ, and all slices are used before one comes again.
        let begin = index.wrapping_mul(61) as usize % SLICES;
        &self.0[begin..begin + len]
    }
}

/// Checks bytes that were read.
pub fn check(read: &[u8], expected: &[u8], what: &str) -> Result<(), Broken> {
    if read == expected {
        return Ok(());
    }
    let at = read.iter().zip(expected).take_while(|(a, b)| a == b).count();
    Err(Broken(format!(
        "{what}: {} bytes read, {} expected, different from byte {at} on",
        read.len(),
        expected.len(),
    )))
}

/// Checks that a call moved as many bytes as asked.
pub fn whole(moved: usize, asked: usize, what: &str) -> Result<(), Broken> {
    if moved == asked {
        return Ok(());
    }
    Err(Broken(format!("{what}: {moved} of {asked} bytes")))
}

/// Pseudo-random numbers (SplitMix64), the same in every run.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The numbers below `count` in an order of Fisher and Yates.
    pub fn order(&mut self, count: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
        order
    }
}

/// A path without NUL.
pub fn path(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_permutations() {
        let mut order = Random(1).order(1000);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn slices_differ() {
        let pattern = Pattern::new(64);
        for index in 0..SLICES as u64 {
            assert_ne!(pattern.slice(index, 64), pattern.slice(index + 1, 64));
        }
    }

    #[test]
    fn wrong_bytes_are_found() {
        assert!(check(b"abc", b"abc", "file").is_ok());
        assert!(check(b"abd", b"abc", "file").unwrap_err().0.contains("from byte 2"));
        assert!(check(b"ab", b"abc", "file").is_err());
    }
}
