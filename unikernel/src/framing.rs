//! Standard input with an end: a serial line has none. The byte 0x10 begins a pair; 0x10 and 0x10
//! are that byte, 0x10 and `e` the end of input. All other bytes are themselves.

use alloc::vec::Vec;

/// Begins a pair (ASCII's data link escape).
const ESCAPE: u8 = 0x10;
/// The end of input, after [`ESCAPE`].
const END: u8 = b'e';
/// The mark of the end of input.
pub const ENDED: [u8; 2] = [ESCAPE, END];

/// Appends `data` to `out` as it is sent.
pub fn encode(data: &[u8], out: &mut Vec<u8>) {
    for &byte in data {
        if byte == ESCAPE {
            out.push(ESCAPE);
        }
        out.push(byte);
    }
}

/// Takes what was sent byte by byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decoder {
    escaped: bool,
    /// The end has come.
    pub ended: bool,
}

impl Decoder {
    /// The byte that `sent` completes, if it does. Nothing comes after the end.
    pub fn take(&mut self, sent: u8) -> Option<u8> {
        if self.ended {
            return None;
        }
        if core::mem::take(&mut self.escaped) {
            self.ended = sent == END;
            return (!self.ended).then_some(sent);
        }
        self.escaped = sent == ESCAPE;
        (!self.escaped).then_some(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_comes_and_ends() {
        let data: Vec<u8> = (0..=255).chain([ESCAPE, ESCAPE, END]).collect();
        let mut sent = Vec::new();
        encode(&data, &mut sent);
        sent.extend(ENDED);
        sent.push(b'x');
        let mut decoder = Decoder::default();
        let came: Vec<u8> = sent.iter().filter_map(|&byte| decoder.take(byte)).collect();
        assert_eq!(came, data);
        assert!(decoder.ended);
    }
}
