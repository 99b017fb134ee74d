//! Damage for tests: images that are wrong but whose checksums are right.
//!
//! A fuzzer that flips bytes finds only checksums. [`reseal`] puts them right again, so that the
//! checks behind them are reached; [`mutate`] damages metadata where it hurts.

use alloc::vec::Vec;

use atoll_block::{Addressable, BLOCK_SIZE, SECTOR_SIZE};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::bounds;
use crate::fs::Fs;
use crate::journal;
use crate::layout::{
    Block, cell, common, get16, get32, get64, journal_header, magic, map, node, put16, put32,
    put64, record, seal, state, superblock,
};

/// The longest record since this was asked last, in bytes.
pub fn take_longest_record<M: Addressable>(fs: &mut Fs<M>) -> usize {
    core::mem::take(&mut fs.store.journal.longest)
}

/// How many bytes the journal has taken since the volume was made, and where a tree node was
/// allocated last: that changes with each, and else with a commit only.
pub fn appended_and_node<M: Addressable>(fs: &Fs<M>) -> (u64, u64) {
    (fs.store.journal.head(), fs.store.allocator.metadata_hint)
}

/// The bounds of records: a step that ends a removal, a rename, a new name, an attribute.
pub const RECORD_BOUNDS: [usize; 4] =
    [bounds::LAST_STEP, bounds::RENAME, bounds::MAKE, bounds::SET_ATTRIBUTE];

const MAGICS: [u32; 5] =
    [magic::SUPERBLOCK, magic::JOURNAL_HEADER, magic::NODE, magic::MAP, magic::SUMMARY];

fn blocks(image: &mut [u8]) -> impl Iterator<Item = (u64, &mut Block)> {
    let blocks = image.chunks_exact_mut(BLOCK_SIZE);
    (0..).zip(blocks.filter_map(|b| <&mut Block>::try_from(b).ok()))
}

/// Recomputes the index and checksum of every block that has a magic number, and the checksums of
/// the journal's records.
pub fn reseal(image: &mut [u8]) {
    for (index, block) in blocks(image) {
        if MAGICS.contains(&get32(&block[..], common::MAGIC)) {
            put64(&mut block[..], common::BLOCK, index);
            seal(block);
        }
    }
    reseal_records(image);
}

/// The place of the journal's ring in the image, if the superblock gives one, and the newer header.
fn ring(image: &[u8]) -> Option<(usize, usize, usize)> {
    if image.len() < BLOCK_SIZE || get32(image, common::MAGIC) != magic::SUPERBLOCK {
        return None;
    }
    let field = |at| usize::try_from(get64(image, at)).ok();
    let start = field(superblock::RING_START)?.checked_mul(BLOCK_SIZE)?;
    let len = field(superblock::RING_BLOCKS)?.checked_mul(BLOCK_SIZE)?;
    let fits = start >= 3 * BLOCK_SIZE && len > 0 && start.checked_add(len)? <= image.len();
    let generation = |at: &usize| get64(image, at + journal_header::GENERATION);
    let headers = fits.then(|| [start - 2 * BLOCK_SIZE, start - BLOCK_SIZE])?;
    Some((start, len, headers.into_iter().max_by_key(generation)?))
}

fn reseal_records(image: &mut [u8]) {
    let Some((start, len, header)) = ring(image) else { return };
    let mut sequence = get64(image, header + journal_header::SEQUENCE);
    let seed = get64(image, header + journal_header::CHAIN);
    let tail = get64(image, header + journal_header::TAIL);
    let mut position = tail;
    loop {
        let room = (len as u64).saturating_sub(position.wrapping_sub(tail));
        let Some((size, flags)) =
            reseal_record(image, (start, len), position, sequence, seed, room)
        else {
            return;
        };
        let end = journal::record_end(position, size, flags);
        if flags & record::MARK != 0 {
            let echo_len = end - (position + size as u64).next_multiple_of(SECTOR_SIZE as u64);
            let room = (len as u64).saturating_sub((end - echo_len).wrapping_sub(tail));
            reseal_record(image, (start, len), end - echo_len, sequence, seed, room);
        }
        sequence = sequence.wrapping_add(1);
        position = end;
    }
}

/// Recomputes the checksum of the record at `position`, if there is one with that number. Returns
/// its length and its flags.
fn reseal_record(
    image: &mut [u8],
    (start, len): (usize, usize),
    position: u64,
    sequence: u64,
    seed: u64,
    room: u64,
) -> Option<(usize, u8)> {
    let byte = |i: usize| start + (position.wrapping_add(i as u64) % len as u64) as usize;
    if room < record::HEADER_LEN as u64 || position > 1 << 62 {
        return None;
    }
    let mut bytes: Vec<u8> = (0..record::HEADER_LEN).map(|i| image[byte(i)]).collect();
    let size = get32(&bytes, record::LEN) as usize;
    let is_there = get16(&bytes, record::MAGIC) == magic::JOURNAL_RECORD
        && get64(&bytes, record::SEQUENCE) == sequence
        && (record::HEADER_LEN..=room as usize).contains(&size);
    if !is_there {
        return None;
    }
    bytes.clear();
    bytes.extend((0..size).map(|i| image[byte(i)]));
    put64(&mut bytes, record::CHECKSUM, 0);
    let sum = xxh3_64_with_seed(&bytes, seed.wrapping_add(position));
    for (i, b) in sum.to_le_bytes().into_iter().enumerate() {
        image[byte(record::CHECKSUM + i)] = b;
    }
    Some((size, bytes[record::FLAGS]))
}

/// splitmix64 (Steele, Lea, Flood 2014): the same seed, the same damage.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Damages the metadata of `image` in one to four places, as `seed` says, and [`reseal`]s it; one
/// image in four also loses a metadata block to a wrong checksum.
pub fn mutate(image: &mut [u8], seed: u64) {
    let mut rng = Rng(seed);
    let found: Vec<(usize, u32)> = blocks(image)
        .map(|(index, b)| (index as usize, get32(&b[..], common::MAGIC)))
        .filter(|(_, m)| MAGICS.contains(m))
        .collect();
    if found.is_empty() {
        return;
    }
    for _ in 0..1 + rng.below(4) {
        let (index, kind) = found[rng.below(found.len())];
        let (other, _) = found[rng.below(found.len())];
        let limit = image.len() / BLOCK_SIZE;
        match rng.below(8) {
            0 => mutate_journal(image, &mut rng),
            1 => {
                // One block with the content of another.
                let from = other * BLOCK_SIZE;
                image.copy_within(from..from + BLOCK_SIZE, index * BLOCK_SIZE);
            }
            _ => {
                let b = &mut image[index * BLOCK_SIZE..(index + 1) * BLOCK_SIZE];
                mutate_block(b, kind, &mut rng, limit);
            }
        }
    }
    reseal(image);
    if rng.below(4) == 0 {
        let (index, _) = found[rng.below(found.len())];
        image[index * BLOCK_SIZE + 8 + rng.below(BLOCK_SIZE - 8)] ^= 1 << rng.below(8);
    }
}

/// A value that is likely to be a boundary of something.
fn value(rng: &mut Rng, old: u64, limit: usize) -> u64 {
    match rng.below(9) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => old.wrapping_add(1),
        4 => old.wrapping_sub(1),
        5 => rng.below(limit + 2) as u64,
        6 => 1 << rng.below(64),
        7 => old ^ 1 << rng.below(64),
        _ => rng.next(),
    }
}

fn mutate_field(b: &mut [u8], at: usize, rng: &mut Rng, limit: usize) {
    match rng.below(4) {
        0 => b[at] = value(rng, u64::from(b[at]), limit) as u8,
        1 if at + 2 <= b.len() => {
            let v = value(rng, u64::from(get16(b, at)), limit);
            put16(b, at, v as u16);
        }
        2 if at + 4 <= b.len() => {
            let v = value(rng, u64::from(get32(b, at)), limit);
            put32(b, at, v as u32);
        }
        3 if at + 8 <= b.len() => {
            let v = value(rng, get64(b, at), limit);
            put64(b, at, v);
        }
        _ => b[at] ^= 1 << rng.below(8),
    }
}

fn mutate_block(b: &mut [u8], kind: u32, rng: &mut Rng, limit: usize) {
    let at = match kind {
        magic::SUPERBLOCK => {
            superblock::VERSION + rng.below(superblock::CREATED - superblock::VERSION) / 4 * 4
        }
        magic::JOURNAL_HEADER => {
            journal_header::GENERATION
                + rng.below((journal_header::STATE + state::LEN - journal_header::GENERATION) / 4)
                    * 4
        }
        magic::MAP | magic::SUMMARY => map::BITS + rng.below(64),
        _ => {
            // The fields of one cell, or the node's own.
            let end = (get16(b, node::END) as usize).clamp(node::CELLS, b.len());
            let mut cells = Vec::new();
            let mut at = node::CELLS;
            while at + cell::VALUE <= end {
                cells.push(at);
                at += (get16(b, at + cell::LEN) as usize).max(cell::VALUE);
            }
            match (rng.below(12), cells.len()) {
                (0, _) | (_, 0) => node::LEVEL + rng.below(4),
                (_, n) => {
                    let at = cells[rng.below(n)];
                    const FIELDS: [usize; 4] =
                        [cell::LEN, cell::LIVE, cell::KEY_INO, cell::KEY_ITEM];
                    let within = match rng.below(8) {
                        n @ 0..4 => FIELDS[n],
                        4 => cell::KEY_ITEM + 7,
                        _ => cell::VALUE + rng.below(14) * 4,
                    };
                    (at + within).min(b.len() - 1)
                }
            }
        }
    };
    mutate_field(b, at, rng, limit);
}

fn mutate_journal(image: &mut [u8], rng: &mut Rng) {
    let Some((start, len, header)) = ring(image) else { return };
    let limit = image.len() / BLOCK_SIZE;
    let tail = (get64(image, header + journal_header::TAIL) % len as u64) as usize;
    // Walk some records, so that their headers and entries are met.
    let mut at = tail;
    for _ in 0..rng.below(40) {
        let size = get32(image, start + at.min(len - 8) + record::LEN) as usize;
        if !(record::HEADER_LEN..=len).contains(&size) {
            break;
        }
        at = (at + size) % len;
    }
    let at = (at + rng.below(80)).min(len - 1);
    mutate_field(&mut image[start..start + len], at, rng, limit);
}
