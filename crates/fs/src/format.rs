//! Making a volume.

use atoll_block::{Addressable, BLOCK_SIZE, BlockIndex};
use atoll_vfs::{Ino, Timespec};

use crate::error::{FsError, Result};
use crate::inode::InodeRecord;
use crate::journal::{Header, clear_ring};
use crate::key::Key;
use crate::layout::{
    self, Block, GROUP_AREA_MIN, RING_BLOCKS_DEFAULT_MAX, RING_BLOCKS_MIN, Superblock, VolumeState,
    cell, inode, magic, map, node, put64, superblock,
};
use crate::node::{build_cell, image};
use crate::pair;

/// How to make a volume.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions<'a> {
    /// The volume's UUID: random.
    pub uuid: [u8; 16],
    /// A name for people, at most 64 bytes.
    pub label: &'a str,
    /// The secret key of the hashes of names and of the journal's checksums: random, so that nobody
    /// can make names collide.
    pub hash_key: [u8; 16],
    /// The time now.
    pub now: Timespec,
    /// The owner of the root directory.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Blocks for the journal; `None` takes a sixteenth of the volume, 512 KiB to 256 MiB.
    pub journal_blocks: Option<u64>,
}

/// The smallest volume, in blocks: 1 MiB.
pub const BLOCK_COUNT_MIN: u64 = 256;

/// Makes an empty volume on the whole of `device`. Its old content is lost.
///
/// Only the first group gets its map blocks; the others get theirs when they are first used. So
/// this takes as long, and as much storage, as the part of the journal that gets storage now: 48
/// MiB, or all of a smaller one.
///
/// The superblock is written last: a crash within leaves no volume.
///
/// # Errors
/// [`FsError::Unsuitable`] for a device below [`BLOCK_COUNT_MIN`], a label that is too long or a
/// journal that does not fit; the device's.
pub fn format<M: Addressable>(device: &mut M, options: &FormatOptions<'_>) -> Result<()> {
    let block_count = device.block_count().min(layout::BLOCK_COUNT_MAX);
    let ring_blocks = options.journal_blocks.unwrap_or(default_ring_blocks(block_count));
    let ring_start = 3;
    let fits = ring_blocks >= RING_BLOCKS_MIN
        && ring_blocks < block_count
        && block_count - ring_blocks >= ring_start + 2 + GROUP_AREA_MIN;
    if block_count < BLOCK_COUNT_MIN || !fits || options.label.len() > superblock::LABEL_LEN {
        return Err(FsError::Unsuitable);
    }
    let mut label = [0; superblock::LABEL_LEN];
    label[..options.label.len()].copy_from_slice(options.label.as_bytes());
    let sb = Superblock {
        block_count,
        ring_start,
        ring_blocks,
        group_start: ring_start + ring_blocks + 2,
        generation: 1,
        compatible: 0,
        read_compatible: 0,
        incompatible: 0,
        hash_key: options.hash_key,
        uuid: options.uuid,
        label,
        created: options.now,
    };

    // The old volume goes first: a crash from here on leaves none until the new one is whole.
    let mut b = [0; BLOCK_SIZE];
    device.write(BlockIndex(0), &b)?;
    device.write(sb.copy_index(), &b)?;
    device.flush()?;

    clear_ring(device, &sb)?;

    let front = sb.front_len(0);
    let root = sb.map_block(0).0 + front as u64;
    let (len, ring) = (sb.group_len(0), sb.ring_in(0));
    emit_map(&mut b, sb.map_block(0), len, front + 1, ring, 1);
    pair::write(device, &b)?;
    layout::init_block(&mut b, sb.summary_block(0), magic::SUMMARY);
    layout::seal(&mut b);
    pair::write(device, &b)?;

    let record = InodeRecord {
        mode: 0o040755,
        nlink: 2,
        uid: options.uid,
        gid: options.gid,
        parent: Ino::ROOT.0,
        ..InodeRecord::new(options.now)
    };
    emit_root(&mut b, BlockIndex(root), &record);
    device.write(BlockIndex(root), &b)?;

    let state = VolumeState {
        root,
        height: 1,
        next_ino: Ino::ROOT.0 + 1,
        free_blocks: sb.usable_blocks() - 1,
        inodes: 1,
        groups: 1,
    };
    for generation in [1, 2] {
        let header = Header {
            generation,
            incarnation: [0; 16],
            tail: 0,
            sequence: 1,
            chain: sb.chain_seed(),
            state,
            clean: true,
            failed: false,
            owner: [0; 32],
            block_count,
        };
        header.write(device, &sb)?;
    }
    sb.emit(&mut b, sb.copy_index());
    device.write(sb.copy_index(), &b)?;
    device.flush()?;
    sb.emit(&mut b, BlockIndex(0));
    device.write(BlockIndex(0), &b)?;
    Ok(device.flush()?)
}

/// The blocks that the journal's ring gets in a volume of `block_count` blocks.
pub(crate) fn default_ring_blocks(block_count: u64) -> u64 {
    (block_count / 16).clamp(RING_BLOCKS_MIN, RING_BLOCKS_DEFAULT_MAX)
}

/// A map block of a group of `len` blocks of which the first `used` are in use, and those of
/// `ring`.
pub(crate) fn emit_map(
    b: &mut Block,
    index: BlockIndex,
    len: usize,
    used: usize,
    ring: Option<(usize, usize)>,
    generation: u64,
) {
    layout::init_block(b, index, magic::MAP);
    put64(b, map::GENERATION, generation);
    let (first, count) = ring.unwrap_or((0, 0));
    for at in (0..used).chain(first..first + count).chain(len..map::GROUP_BLOCKS as usize) {
        b[map::BITS + at / 8] |= 1 << (at % 8);
    }
    layout::seal(b);
}

/// The tree of an empty volume: a leaf with the root directory.
fn emit_root(b: &mut Block, index: BlockIndex, record: &InodeRecord) {
    layout::init_block(b, index, magic::NODE);
    let mut cell = [0; cell::VALUE + inode::LEN];
    build_cell(&mut cell, Key::inode(Ino::ROOT.0), &record.emit());
    let bytes = image(0, core::iter::once(&cell[..]));
    b[node::LEVEL..node::LEVEL + bytes.len()].copy_from_slice(&bytes);
    layout::seal(b);
}
