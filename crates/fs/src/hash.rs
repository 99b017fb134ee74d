//! The hash of names: where they stand in a directory, or among the attributes of an inode.
//!
//! A client that makes names must not be able to choose where they stand: a hash has room for a
//! bounded number of names. So the hash is a pseudo-random function with a secret key of 128 bits,
//! SipHash (Aumasson, Bernstein 2012), with one round for each word and three at the end, as hash
//! tables use it against the same threat. Two and four rounds would cost a quarter more
//! (docs/PERFORMANCE.md), for a margin that matters where an attacker sees the hashes, which nobody
//! does.
//!
//! It is written out here, since every path has names, and a hasher that takes its bytes piece by
//! piece costs half as much again.

use crate::key::{DIRENT_TIES, XATTR_PIECES, XATTR_TIES};

/// The state of SipHash.
struct State([u64; 4]);

impl State {
    #[inline]
    fn round(&mut self) {
        let State([a, b, c, d]) = self;
        *a = a.wrapping_add(*b);
        *c = c.wrapping_add(*d);
        *b = b.rotate_left(13) ^ *a;
        *d = d.rotate_left(16) ^ *c;
        *a = a.rotate_left(32).wrapping_add(*d);
        *c = c.wrapping_add(*b);
        *d = d.rotate_left(21) ^ *a;
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }

    #[inline]
    fn word(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }
}

/// SipHash-1-3 of `bytes`.
#[inline]
pub fn hash(key: &[u8; 16], bytes: &[u8]) -> u64 {
    let key = u128::from_le_bytes(*key);
    let (low, high) = (key as u64, (key >> 64) as u64);
    let mut state = State([
        low ^ 0x736f_6d65_7073_6575,
        high ^ 0x646f_7261_6e64_6f6d,
        low ^ 0x6c79_6765_6e65_7261,
        high ^ 0x7465_6462_7974_6573,
    ]);
    let (words, rest) = bytes.as_chunks();
    words.iter().for_each(|word| state.word(u64::from_le_bytes(*word)));
    let rest = match bytes.last_chunk() {
        // They are the highest of the last eight bytes.
        Some(last) if !rest.is_empty() => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
        _ => rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    // The last word ends with the length.
    state.word((bytes.len() as u64) << 56 | rest);
    state.0[2] ^= 0xff;
    (0..3).for_each(|_| state.round());
    state.0.iter().fold(0, |hash, word| hash ^ word)
}

/// The first of the [`DIRENT_TIES`] offsets at which `name` may stand: 48 bits of its hash, and
/// never 0.
#[inline]
pub fn dirent_offset(key: &[u8; 16], name: &[u8]) -> u64 {
    (hash(key, name) >> 16).max(1) * DIRENT_TIES
}

/// The first offset at which the attribute `name` may stand: 40 bits of its hash, a tie, a piece.
#[inline]
pub fn xattr_offset(key: &[u8; 16], name: &[u8]) -> u64 {
    (hash(key, name) >> 24) * (XATTR_TIES * XATTR_PIECES)
}

#[cfg(test)]
mod tests {
    use siphasher::sip::SipHasher13;

    use super::*;

    /// Volumes must be found by every later version: SipHash-1-3 with the key's bytes in order.
    #[test]
    fn the_hash_is_what_the_format_says() {
        let key = core::array::from_fn(|i| i as u8);
        let bytes: [u8; 64] = core::array::from_fn(|i| i as u8);
        // From an implementation of the paper that gives the paper's value with 2 and 4 rounds.
        const EXPECTED: [(usize, u64); 7] = [
            (0, 0xabac_0158_050f_c4dc),
            (1, 0xc9f4_9bf3_7d57_ca93),
            (7, 0xd392_7d98_9bb1_1140),
            (8, 0x3690_9511_8d29_9a8e),
            (15, 0xd320_d86d_2a51_9956),
            (16, 0xcc4f_dd1a_7d90_8b66),
            (63, 0x9d19_9062_b7bb_b3a8),
        ];
        for (len, expected) in EXPECTED {
            assert_eq!(hash(&key, &bytes[..len]), expected, "{len} bytes");
        }
    }

    #[test]
    fn the_hash_is_that_of_another_implementation() {
        let bytes: [u8; 300] = core::array::from_fn(|i| (i * i * 31 + i) as u8);
        for key in [[0; 16], [0xff; 16], core::array::from_fn(|i| (i * 37 + 201) as u8)] {
            for from in 0..9 {
                for text in (from..bytes.len()).map(|to| &bytes[from..to]) {
                    let expected = SipHasher13::new_with_key(&key).hash(text);
                    assert_eq!(hash(&key, text), expected, "{} bytes", text.len());
                }
            }
        }
    }
}
