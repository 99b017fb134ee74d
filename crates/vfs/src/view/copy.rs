//! Bytes of the View's memory.
//!
//! Bytes are copied as the processor copies fastest, while the other process may be writing: what
//! arrives is looked at only after the sequence word says that nobody was. Under Miri, where such a
//! race within one process is an error, they are copied by atomic words.

use atoll_transport::Shared;

/// Copies the bytes at `offset` to `out`.
#[inline(always)]
#[cfg(not(miri))]
pub fn copy_out(memory: &Shared<'_>, offset: usize, out: &mut [u8]) {
    // Tests change the memory between the halves of a copy.
    #[cfg(test)]
    let (offset, out) = {
        let (first, second) = out.split_at_mut(out.len() / 2);
        memory.read(offset, first);
        super::tests::in_the_middle();
        (offset + first.len(), second)
    };
    memory.read(offset, out);
}

/// Copies `data` to `offset`.
#[inline(always)]
#[cfg(not(miri))]
pub fn copy_in(memory: &Shared<'_>, offset: usize, data: &[u8]) {
    memory.write(offset, data);
}

#[cfg(miri)]
pub fn copy_out(memory: &Shared<'_>, offset: usize, out: &mut [u8]) {
    use core::sync::atomic::Ordering::Relaxed;
    let (mut at, mut rest) = (offset, out);
    while !rest.is_empty() {
        let skip = at % 8;
        let (piece, after) = rest.split_at_mut(rest.len().min(8 - skip));
        let bytes = memory.u64(at - skip).load(Relaxed).to_ne_bytes();
        piece.copy_from_slice(&bytes[skip..skip + piece.len()]);
        at += piece.len();
        rest = after;
    }
}

#[cfg(miri)]
pub fn copy_in(memory: &Shared<'_>, offset: usize, data: &[u8]) {
    use core::sync::atomic::Ordering::Relaxed;
    let (mut at, mut rest) = (offset, data);
    while !rest.is_empty() {
        let skip = at % 8;
        let (piece, after) = rest.split_at(rest.len().min(8 - skip));
        let word = memory.u64(at - skip);
        let mut bytes = word.load(Relaxed).to_ne_bytes();
        bytes[skip..skip + piece.len()].copy_from_slice(piece);
        word.store(u64::from_ne_bytes(bytes), Relaxed);
        at += piece.len();
        rest = after;
    }
}
