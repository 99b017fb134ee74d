//! Damage to an image, as a script says: as a faulty medium makes it, or an attacker who knows the
//! format.

use atoll_block::BLOCK_SIZE;
use atoll_fs::layout::{cell, common, get16, get32, magic, node};
use atoll_fs::testing::reseal;

use crate::Script;
use crate::image::{INCARNATION, Image, images};

/// A hostile image, and the incarnation to mount it with: the one that it was left with, so that
/// the whole journal counts, or another, so that its durable part does.
pub fn hostile(script: &mut Script<'_>) -> (Vec<u8>, [u8; 16]) {
    // Mostly the clean one: a journal would replace the damaged bytes in place by sound ones.
    let image = &images()[[0, 0, 0, 1, 2][script.byte() as usize % 5]];
    let choices = script.byte();
    let mut bytes = image.bytes.clone();
    let damages = 1 + script.below(8);
    for _ in 0..damages {
        damage(&mut bytes, image, script);
    }
    // Mostly with right checksums; without, to see that they are looked at.
    if !choices.is_multiple_of(8) {
        reseal(&mut bytes);
    }
    if choices & 0x70 == 0x70 {
        let blocks = bytes.len() / BLOCK_SIZE;
        bytes.truncate(script.below(blocks as u64 + 1) as usize * BLOCK_SIZE);
    }
    let incarnation = if choices & 128 == 0 { INCARNATION } else { [9; 16] };
    (bytes, incarnation)
}

/// Numbers that programs get wrong.
fn telling(script: &mut Script<'_>) -> u64 {
    match script.byte() % 12 {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => 1 << 63,
        4 => u64::from(u32::MAX),
        5 => i64::MAX as u64,
        6 => 1 << script.below(64),
        7 => (1 << script.below(64)) - 1,
        // The number of a block or an inode.
        8 | 9 => script.below(600),
        // An offset within a block.
        10 => script.below(BLOCK_SIZE as u64 + 1),
        _ => script.number(),
    }
}

/// A place in one of the cells of the node in `block`, if it is one: a field of it, or the first
/// bytes of its value, which are fields too.
fn place_in_cell(block: &[u8], script: &mut Script<'_>) -> Option<usize> {
    if get32(block, common::MAGIC) != magic::NODE {
        return None;
    }
    let end = usize::from(get16(block, node::END)).min(block.len());
    let mut cells = Vec::new();
    let mut at = node::CELLS;
    while at + cell::VALUE <= end {
        cells.push(at);
        at += usize::from(get16(block, at + cell::LEN)).max(1);
    }
    let cell = *cells.get(script.below(cells.len().max(1) as u64) as usize)?;
    let fields = [cell::LEN, cell::LIVE, cell::KEY_INO, cell::KEY_ITEM, cell::VALUE];
    let field = match script.byte() % 8 {
        choice @ 0..=4 => fields[usize::from(choice)],
        _ => cell::VALUE + script.below(100) as usize,
    };
    Some((cell + field).min(block.len() - 1))
}

fn damage(bytes: &mut [u8], image: &Image, script: &mut Script<'_>) {
    let choose = |script: &mut Script<'_>| {
        let blocks = if script.byte().is_multiple_of(4) { &image.used } else { &image.tree };
        blocks[script.below(blocks.len() as u64) as usize]
    };
    let (block, other) = (choose(script), choose(script));
    // The beginning of a block matters most, but in nodes the cells do.
    let in_cell = match script.byte() % 4 {
        0 => None,
        _ => place_in_cell(&bytes[block..block + BLOCK_SIZE], script),
    };
    let span = if script.byte().is_multiple_of(2) { 160 } else { BLOCK_SIZE as u64 };
    let at = block + in_cell.unwrap_or_else(|| script.below(span) as usize);
    match script.byte() % 16 {
        0..=2 => bytes[at] = script.byte(),
        3 => bytes[at] ^= 1 << script.below(8),
        4 | 5 => put(bytes, at, &(telling(script) as u16).to_le_bytes()),
        6 | 7 => put(bytes, at, &(telling(script) as u32).to_le_bytes()),
        8..=10 => put(bytes, at, &telling(script).to_le_bytes()),
        11 => {
            // A little more or less than was there.
            let mut number = [0; 8];
            let place = at;
            let end = (place + 8).min(bytes.len());
            number[..end - place].copy_from_slice(&bytes[place..end]);
            let change = i64::from(script.byte() as i8);
            put(
                bytes,
                place,
                &u64::from_le_bytes(number).wrapping_add_signed(change).to_le_bytes(),
            );
        }
        12 => bytes[block..block + BLOCK_SIZE].fill(0),
        13 => {
            // Another block's content, which still has that block's index, or claims to belong
            // here.
            bytes.copy_within(other..other + BLOCK_SIZE, block);
            if script.byte().is_multiple_of(2) {
                put(bytes, block + 8, &((block / BLOCK_SIZE) as u64).to_le_bytes());
            }
        }
        14 => {
            // A piece of the block, elsewhere in a block.
            let len = script.below(64) as usize;
            let to = other + script.below((BLOCK_SIZE - len) as u64) as usize;
            let from = at.min(block + BLOCK_SIZE - len);
            bytes.copy_within(from..from + len, to);
        }
        _ => {
            let len = script.below((block + BLOCK_SIZE - at) as u64 + 1) as usize;
            let value = script.byte();
            bytes[at..at + len].fill(value);
        }
    }
}

/// Puts `value` at `at`, as much of it as the image has room for.
fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    let len = value.len().min(bytes.len() - at);
    bytes[at..at + len].copy_from_slice(&value[..len]);
}
