//! Which of a device's pieces are used one after the other, where memory is short: the next is
//! worth reading ahead, and what was stored in the last has to be written before its memory is of
//! use.

/// Pieces that are remembered: the journal's, and those of some files.
const RECENT: usize = 4;

/// How an access came to a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It was among the last pieces already.
    Known,
    /// From the piece before it.
    Next,
    /// From anywhere else, in the place of the piece, if any, that was left longest ago.
    Elsewhere(Option<u64>),
}

/// The pieces that were accessed last.
#[derive(Debug, PartialEq)]
pub(super) struct Recent {
    pieces: [Option<u64>; RECENT],
    oldest: usize,
}

impl Recent {
    pub(super) fn new() -> Recent {
        Recent { pieces: [None; RECENT], oldest: 0 }
    }

    /// Notes an access to `piece`. The next one takes the place of the one before it, so that each
    /// sequence of accesses is remembered by one piece, however many there are of others.
    pub(super) fn enter(&mut self, piece: u64) -> Entry {
        if self.pieces.contains(&Some(piece)) {
            return Entry::Known;
        }
        if let Some(before) = piece.checked_sub(1)
            && let Some(place) = self.pieces.iter_mut().find(|known| **known == Some(before))
        {
            *place = Some(piece);
            return Entry::Next;
        }
        let left = self.pieces[self.oldest].replace(piece);
        self.oldest = (self.oldest + 1) % RECENT;
        Entry::Elsewhere(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_told_apart() {
        let mut recent = Recent::new();
        assert_eq!(recent.enter(0), Entry::Elsewhere(None));
        assert_eq!(recent.enter(100), Entry::Elsewhere(None));
        for i in 1..50 {
            assert_eq!(recent.enter(i), Entry::Next);
            assert_eq!(recent.enter(i), Entry::Known);
            assert_eq!(recent.enter(100 + i), Entry::Next);
        }
    }

    #[test]
    fn scattered_accesses_are_no_sequence() {
        let mut recent = Recent::new();
        assert!((0..1000).all(|i| recent.enter(i * 7919 % 1009 * 2) != Entry::Next));
        // Nor are those that go backwards.
        let backwards = (0..50).rev().map(|i| recent.enter(10_000 + i));
        assert!(
            backwards.skip(RECENT).eq((4..50).rev().map(|i| Entry::Elsewhere(Some(10_000 + i))))
        );
    }
}
