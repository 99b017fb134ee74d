//! Bytes that lie in several pieces of memory, as the data of requests does that a guest's driver
//! has gathered page by page. Moved where they lie they are copied once; put together first, twice.

use alloc::vec::Vec;
use core::mem::take;

/// Bytes to be written: pieces of memory, one behind the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Data<'a> {
    first: &'a [u8],
    rest: &'a [&'a [u8]],
    /// How many bytes of these count.
    len: usize,
}

impl<'a> Data<'a> {
    /// The bytes in `pieces`, of which there are at most [`isize::MAX`].
    pub fn new(pieces: &'a [&'a [u8]]) -> Data<'a> {
        let (first, rest) = pieces.split_first().map_or((&[][..], &[][..]), |(a, b)| (*a, b));
        Data { first, rest, len: pieces.iter().map(|piece| piece.len()).sum() }
    }

    /// How many bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, if they lie in one piece.
    #[inline]
    pub fn one(&self) -> Option<&'a [u8]> {
        self.first.get(..self.len)
    }

    /// The first `len` bytes, or all.
    #[inline]
    #[must_use]
    pub fn limit(self, len: usize) -> Data<'a> {
        Data { len: self.len.min(len), ..self }
    }

    /// The bytes after the first `count`, or none.
    #[must_use]
    pub fn skip(self, count: usize) -> Data<'a> {
        let Data { mut first, mut rest, len } = self;
        let mut left = count;
        while left >= first.len()
            && let Some((next, others)) = rest.split_first()
        {
            left -= first.len();
            (first, rest) = (next, others);
        }
        Data { first: first.get(left..).unwrap_or_default(), rest, len: len.saturating_sub(count) }
    }

    /// The pieces.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut left = self.len;
        core::iter::once(self.first).chain(self.rest.iter().copied()).map_while(move |piece| {
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            (!piece.is_empty() || left > 0).then_some(piece)
        })
    }

    /// The last byte.
    pub fn last(&self) -> Option<u8> {
        self.iter().filter_map(|piece| piece.last().copied()).last()
    }

    /// A copy, in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len);
        self.iter().for_each(|piece| copy.extend_from_slice(piece));
        copy
    }
}

impl<'a> From<&'a [u8]> for Data<'a> {
    #[inline]
    fn from(first: &'a [u8]) -> Data<'a> {
        Data { first, rest: &[], len: first.len() }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Data<'a> {
    fn from(first: &'a [u8; N]) -> Data<'a> {
        first[..].into()
    }
}

impl PartialEq for Data<'_> {
    /// Whether they are the same bytes, wherever they lie.
    fn eq(&self, other: &Data<'_>) -> bool {
        self.len == other.len && self.iter().flatten().eq(other.iter().flatten())
    }
}

/// A place to be filled: pieces of memory, one behind the other.
#[derive(Debug, Default)]
pub struct Room<'a> {
    first: &'a mut [u8],
    rest: Vec<&'a mut [u8]>,
}

impl<'a> Room<'a> {
    /// The place that `pieces` are.
    pub fn new(mut pieces: Vec<&'a mut [u8]>) -> Room<'a> {
        if pieces.is_empty() {
            return Room::default();
        }
        Room { first: pieces.remove(0), rest: pieces }
    }

    /// How many bytes it has.
    #[inline]
    pub fn len(&self) -> usize {
        self.first.len() + self.rest.iter().map(|piece| piece.len()).sum::<usize>()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place, if it is in one piece.
    #[inline]
    pub fn one(&mut self) -> Option<&mut [u8]> {
        if self.rest.is_empty() { Some(self.first) } else { None }
    }

    /// Makes it `len` bytes long, if it is longer.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if self.rest.is_empty() {
            if len < self.first.len() {
                self.first = &mut take(&mut self.first)[..len];
            }
        } else {
            self.truncate_pieces(len);
        }
    }

    fn truncate_pieces(&mut self, len: usize) {
        let mut left = len;
        for piece in self.iter_mut() {
            let now = left.min(piece.len());
            if now < piece.len() {
                *piece = &mut take(piece)[..now];
            }
            left -= now;
        }
        // What is in one piece now says so.
        while self.rest.last().is_some_and(|piece| piece.is_empty()) {
            self.rest.pop();
        }
    }

    /// The pieces.
    #[inline]
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut &'a mut [u8]> {
        core::iter::once(&mut self.first).chain(&mut self.rest)
    }

    /// Copies `data`, which fits, to the front.
    pub fn fill(&mut self, mut data: &[u8]) {
        for piece in self.iter_mut() {
            let (now, later) = data.split_at(data.len().min(piece.len()));
            piece[..now.len()].copy_from_slice(now);
            data = later;
        }
        debug_assert!(data.is_empty());
    }
}

impl<'a> From<&'a mut [u8]> for Room<'a> {
    #[inline]
    fn from(first: &'a mut [u8]) -> Room<'a> {
        Room { first, rest: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    /// All ways to cut a few bytes into pieces, empty ones among them.
    fn cuts(len: usize) -> impl Iterator<Item = Vec<(usize, usize)>> {
        (0..1 << (2 * len)).map(move |bits: u32| {
            let mut pieces = Vec::new();
            let mut from = 0;
            for at in 0..len {
                let cut = bits >> (2 * at) & 3;
                if cut > 1 {
                    pieces.push((from, at));
                    from = at;
                }
                if cut > 2 {
                    pieces.push((at, at));
                }
            }
            pieces.push((from, len));
            pieces
        })
    }

    #[test]
    fn data_is_the_same_however_it_is_cut() {
        let bytes = *b"12345";
        for cut in cuts(bytes.len()) {
            let pieces: Vec<&[u8]> = cut.iter().map(|&(from, to)| &bytes[from..to]).collect();
            let data = Data::new(&pieces);
            assert_eq!(data, Data::from(&bytes[..]), "{cut:?}");
            for from in 0..7 {
                for len in 0..7 {
                    let wanted = &bytes[from.min(5)..(from + len).clamp(from.min(5), 5)];
                    let part = data.skip(from).limit(len);
                    assert_eq!(part.len(), wanted.len());
                    assert_eq!(part.to_vec(), wanted, "{cut:?} {from} {len}");
                    assert_eq!(data.limit(from + len).skip(from).to_vec(), wanted);
                    assert_eq!(part.is_empty(), wanted.is_empty());
                    assert_eq!(part.last(), wanted.last().copied());
                    assert!(part.one().is_none_or(|one| one == wanted));
                }
            }
        }
        assert_eq!(Data::new(&[]).one(), Some(&[][..]));
        assert_ne!(Data::from(&b"1"[..]), Data::from(&b"2"[..]));
    }

    #[test]
    fn a_place_is_filled_however_it_is_cut() {
        for cut in cuts(5) {
            for len in 0..7 {
                let mut bytes = [0; 5];
                let (mut rest, mut pieces) = (&mut bytes[..], vec![]);
                for (from, to) in &cut {
                    let (piece, others) = take(&mut rest).split_at_mut(to - from);
                    pieces.push(piece);
                    rest = others;
                }
                let mut room = Room::new(pieces);
                room.truncate(len);
                let len = len.min(5);
                assert_eq!((room.len(), room.is_empty()), (len, len == 0), "{cut:?}");
                room.fill(&b"12345"[..len]);
                assert!(room.one().is_none_or(|one| one.len() == len));
                assert_eq!(bytes[..len], b"12345"[..len]);
                assert_eq!(bytes[len..], [0; 5][len..]);
            }
        }
    }
}
