//! The cookies of directory listings.
//!
//! A cookie stands for an entry's offset, which comes from the secret hash of its name. It is the
//! offset under a permutation that only the volume's key gives: a client goes on from a cookie's
//! place, on this mount or a later one, and learns nothing from its value.

use crate::hash::{DIRENT_END, hash};
use crate::key::OFFSET_MAX;

/// The cookies of `.` and `..`; those of names are larger.
pub const DOT: u64 = 1;
/// See [`DOT`].
pub const DOT_DOT: u64 = 2;

const BITS: u32 = OFFSET_MAX.count_ones();

/// A permutation of the offsets, drawn from the volume's key: a multiplication and an addition,
/// half of the bits over the other half, and both again.
#[derive(Clone, Copy, Debug)]
pub struct Cookies {
    rounds: [Round; 2],
}

#[derive(Clone, Copy, Debug)]
struct Round {
    factor: u64,
    /// The factor's inverse modulo 2^64, and so modulo the number of offsets.
    inverse: u64,
    summand: u64,
}

#[inline]
fn fold(offset: u64) -> u64 {
    offset ^ offset >> (BITS / 2)
}

impl Round {
    fn new(factor: u64, summand: u64) -> Round {
        let factor = factor | 1;
        // Newton's method: an odd number is its own inverse modulo 8, and each step doubles the
        // bits.
        let mut inverse = factor;
        for _ in 0..5 {
            inverse = inverse.wrapping_mul(2u64.wrapping_sub(factor.wrapping_mul(inverse)));
        }
        Round { factor, inverse, summand }
    }

    #[inline]
    fn forward(&self, offset: u64) -> u64 {
        fold(offset.wrapping_mul(self.factor).wrapping_add(self.summand) & OFFSET_MAX)
    }

    fn back(&self, offset: u64) -> u64 {
        // Half of the bits stay as they are, so the fold undoes itself.
        fold(offset).wrapping_sub(self.summand).wrapping_mul(self.inverse) & OFFSET_MAX
    }
}

impl Cookies {
    /// Those of the volume with this key.
    pub fn new(hash_key: &[u8; 16]) -> Cookies {
        // No name has a NUL, so these hashes are of no use to a client that chooses names.
        let word = |text: &[u8]| hash(hash_key, text);
        Cookies {
            rounds: [
                Round::new(word(b"cookie\0factor 0"), word(b"cookie\0summand 0")),
                Round::new(word(b"cookie\0factor 1"), word(b"cookie\0summand 1")),
            ],
        }
    }

    /// The cookie of the entry at `offset`.
    #[inline]
    pub fn of(&self, offset: u64) -> u64 {
        self.rounds.iter().fold(offset, |offset, round| round.forward(offset)) + DOT_DOT + 1
    }

    /// The offset from which a listing goes on behind the entry whose cookie this is or was: the
    /// first for one that no entry can have had, and none for one beyond all cookies.
    pub fn after(&self, cookie: u64) -> Option<u64> {
        let Some(cookie) = cookie.checked_sub(DOT_DOT + 1) else { return Some(0) };
        if cookie > OFFSET_MAX {
            return None;
        }
        let offset = self.rounds.iter().rfold(cookie, |offset, round| round.back(offset));
        Some(if offset < DIRENT_END { offset + 1 } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cookie_leads_to_what_comes_after(key: [u8; 16], offset in 0..OFFSET_MAX) {
            let cookies = Cookies::new(&key);
            let cookie = cookies.of(offset);
            prop_assert!(cookie > DOT_DOT && cookie < 1 << 63);
            let after = if offset < DIRENT_END { offset + 1 } else { 0 };
            prop_assert_eq!(cookies.after(cookie), Some(after));
        }

        #[test]
        fn any_cookie_is_harmless(key: [u8; 16], cookie: u64) {
            let after = Cookies::new(&key).after(cookie);
            prop_assert!(after.is_none_or(|after| after <= OFFSET_MAX));
        }

        /// Offsets that are near to each other, or differ in one bit, give unrelated cookies, and
        /// another key gives other cookies.
        #[test]
        fn a_cookie_says_nothing_of_its_offset(
            key: [u8; 16],
            other: [u8; 16],
            base in 0..OFFSET_MAX
        ) {
            prop_assume!(key != other);
            let cookies = Cookies::new(&key);
            let of = |offset: u64| cookies.of(offset & OFFSET_MAX) - DOT_DOT - 1;
            let changed = |a: u64, b: u64| u64::from((a ^ b).count_ones());
            let (mut bits, mut increasing) = (0, 0);
            for bit in 0..BITS {
                bits += changed(of(base), of(base ^ 1 << bit));
                let step = u64::from(bit);
                increasing += u64::from(of(base + step) < of(base + step + 1));
            }
            // Half of 56 on average for each of 56.
            prop_assert!((56 * 14..56 * 42).contains(&bits), "{}", bits);
            prop_assert!((4..53).contains(&increasing), "{}", increasing);
            prop_assert!(changed(of(base), Cookies::new(&other).of(base) - DOT_DOT - 1) > 5);
        }
    }

    #[test]
    fn the_ends_are_where_they_were() {
        let cookies = Cookies::new(&[9; 16]);
        assert_eq!([0, DOT, DOT_DOT].map(|cookie| cookies.after(cookie)), [Some(0); 3]);
        assert_eq!(cookies.after(cookies.of(DIRENT_END - 1)), Some(DIRENT_END));
        assert_eq!(cookies.after(cookies.of(OFFSET_MAX)), Some(0));
        assert_eq!(cookies.after(u64::MAX), None);
    }
}
