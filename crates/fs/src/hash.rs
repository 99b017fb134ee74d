//! The hash of names: where they stand in a directory, or among the attributes of an inode.
//!
//! A client that makes names must not be able to choose where they stand: a hash has room for a
//! bounded number of names. So the hash is a pseudo-random function with a secret key of 128 bits,
//! SipHash (Aumasson, Bernstein 2012), with one round for each word and three at the end, as hash
//! tables use it against the same threat. Two and four rounds would cost a quarter more
//! (docs/PERFORMANCE.md), for a margin that matters where an attacker sees the hashes, which nobody
//! does.

use siphasher::sip::SipHasher13;

use crate::key::{DIRENT_TIES, XATTR_PIECES, XATTR_TIES};

/// SipHash-1-3 of `bytes`.
#[inline]
pub fn hash(key: &[u8; 16], bytes: &[u8]) -> u64 {
    SipHasher13::new_with_key(key).hash(bytes)
}

/// The first of the [`DIRENT_TIES`] offsets at which `name` may stand: 48 bits of its hash, and
/// never 0.
#[inline]
pub fn dirent_offset(key: &[u8; 16], name: &[u8]) -> u64 {
    (hash(key, name) >> 16).max(1) * DIRENT_TIES
}

/// No name stands at this offset, or at a larger one.
pub const DIRENT_END: u64 = (1 << 48) * DIRENT_TIES;

/// The first offset at which the attribute `name` may stand: 40 bits of its hash, a tie, a piece.
#[inline]
pub fn xattr_offset(key: &[u8; 16], name: &[u8]) -> u64 {
    (hash(key, name) >> 24) * (XATTR_TIES * XATTR_PIECES)
}

#[cfg(test)]
mod tests {
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
}
