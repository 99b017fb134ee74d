//! Searches in short texts, eight bytes at a time: every call that has a path goes through names
//! byte by byte otherwise.

const ONES: u64 = u64::MAX / 0xff;
const HIGHS: u64 = ONES << 7;

/// The highest bit of each byte of `word` that is `byte`. Above the lowest of these bytes others
/// may be marked as well.
#[inline]
const fn marked(word: u64, byte: u8) -> u64 {
    let zeros = word ^ (ONES * byte as u64);
    zeros.wrapping_sub(ONES) & !zeros & HIGHS
}

/// Where the first `byte` is in `text`.
#[inline]
pub fn position(text: &[u8], byte: u8) -> Option<usize> {
    let (words, rest) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let found = marked(u64::from_le_bytes(*word), byte);
        if found != 0 {
            return Some(index * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|&b| b == byte)?;
    Some(words.len() * 8 + at)
}

/// Whether `text` has any of two bytes.
#[inline]
pub fn has_any(text: &[u8], bytes: [u8; 2]) -> bool {
    let has = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        marked(word, bytes[0]) | marked(word, bytes[1]) != 0
    };
    match text.last_chunk() {
        // The last word may overlap the one before it.
        Some(last) => has(last) || text.as_chunks().0.iter().any(has),
        None => text.iter().any(|byte| bytes.contains(byte)),
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    /// Every place in texts of every length up to some words, among bytes that differ from the one
    /// sought by a bit, by one, or in the highest bit.
    #[test]
    fn a_byte_is_found_where_it_is() {
        for byte in [b'/', 0, 1, 0x80, 0xff] {
            for other in [byte ^ 1, byte ^ 0x80, byte.wrapping_add(1), byte.wrapping_sub(1)] {
                for len in 0..40 {
                    let mut text = vec![other; len];
                    assert_eq!(position(&text, byte), None);
                    assert!(!has_any(&text, [byte, byte]));
                    for at in (0..len).rev() {
                        text[at] = byte;
                        assert_eq!(position(&text, byte), Some(at));
                        let third = byte ^ 0x55;
                        assert!(has_any(&text, [byte, third]) && has_any(&text, [third, byte]));
                        assert!(!has_any(&text[..at], [byte, third]));
                    }
                }
            }
        }
    }
}
