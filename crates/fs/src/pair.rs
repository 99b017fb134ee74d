//! Metadata blocks that stand twice, one after the other: maps, and the summaries of maps.
//!
//! A checkpoint writes both. If one is damaged, the other is read; of two that differ the one with
//! the higher generation is right, so that an older content put back is known.

use atoll_block::{Addressable, BLOCK_SIZE, BlockIndex};

use crate::error::{Corruption, Result};
use crate::layout::{self, Block, common, get32, get64, magic, map, put64};

/// A pair as it is at home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The content, as that of the first of the two.
    pub data: Block,
    /// Whether the first or the second is not as it should be, and has to be written anew.
    pub damaged: [bool; 2],
    /// They differ and do not say which is newer. A journal that changes the block makes the same
    /// of either.
    pub ambiguous: bool,
}

/// Whether a metadata block stands twice.
#[inline]
pub(crate) fn is_pair(data: &Block) -> bool {
    matches!(get32(data, common::MAGIC), magic::MAP | magic::SUMMARY)
}

/// The second of a pair whose first is `data`, sealed.
pub(crate) fn second(data: &Block) -> Block {
    let mut twin = *data;
    put64(&mut twin, common::BLOCK, get64(data, common::BLOCK) + 1);
    layout::seal(&mut twin);
    twin
}

/// Reads the pair that begins at `first`.
///
/// # Errors
/// [`Corruption::Checksum`] if both are damaged. The device's, if it gives neither.
pub(crate) fn read<M: Addressable>(device: &mut M, first: BlockIndex, magic: u32) -> Result<Pair> {
    let mut both = [[0; BLOCK_SIZE]; 2];
    let mut found = [Ok(()); 2];
    for (copy, index) in [(0, first), (1, BlockIndex(first.0 + 1))] {
        found[copy] = match device.read(index, &mut both[copy]) {
            Ok(()) => layout::verify(&both[copy], index, magic),
            Err(e) => Err(e.into()),
        };
    }
    let [mut one, mut two] = both;
    // As content of the first.
    put64(&mut two, common::BLOCK, first.0);
    layout::seal(&mut two);
    let mut ambiguous = false;
    let damaged = match found {
        [Ok(()), Ok(())] if one == two => [false, false],
        [Ok(()), Ok(())] => {
            let generation = |b: &Block| get64(b, map::GENERATION);
            match generation(&one).cmp(&generation(&two)) {
                core::cmp::Ordering::Greater => [false, true],
                core::cmp::Ordering::Less => [true, false],
                core::cmp::Ordering::Equal => {
                    ambiguous = true;
                    [false, true]
                }
            }
        }
        [Ok(()), Err(_)] => [false, true],
        [Err(_), Ok(())] => [true, false],
        [Err(e), Err(_)] => return Err(e),
    };
    if damaged[0] {
        one = two;
    }
    Ok(Pair { data: one, damaged, ambiguous })
}

/// As [`read`], for a volume whose journal does not change the block.
///
/// # Errors
/// As there, and [`Corruption::Map`] if nothing says which of two is right.
pub(crate) fn read_settled<M: Addressable>(
    device: &mut M,
    first: BlockIndex,
    magic: u32,
) -> Result<Pair> {
    match read(device, first, magic)? {
        Pair { ambiguous: true, .. } => Err(Corruption::Map.into()),
        pair => Ok(pair),
    }
}

/// Writes both of a pair whose first is `data`, sealed. The caller flushes.
///
/// # Errors
/// The device's.
pub(crate) fn write<M: Addressable>(device: &mut M, data: &Block) -> Result<()> {
    let index = get64(data, common::BLOCK);
    device.write(BlockIndex(index), data)?;
    Ok(device.write(BlockIndex(index + 1), &second(data))?)
}
