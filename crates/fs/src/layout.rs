//! Every offset on disk. docs/FORMAT.md says the same in prose; a test holds the two together.
//!
//! All integers are little-endian. The first 24 bytes of every metadata block are alike: checksum,
//! own block index, magic number.

use atoll_block::{BLOCK_SIZE, BlockIndex, SECTOR_SIZE};
use atoll_vfs::Timespec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{Corruption, Result};

/// The content of a block.
pub type Block = [u8; BLOCK_SIZE];

pub use crate::superblock::{Superblock, VolumeState};

/// The format's version; another is not mounted.
pub const VERSION: u32 = 2;

/// Offsets common to all metadata blocks.
pub mod common {
    /// `u64`: XXH3-64 of the block from byte 8 on, seeded with the block's index.
    pub const CHECKSUM: usize = 0;
    /// `u64`: the block's own index.
    pub const BLOCK: usize = 8;
    /// `u32`: which kind of block this is.
    pub const MAGIC: usize = 16;
}

/// Magic numbers, ASCII when read as bytes.
pub mod magic {
    /// Superblock: `ASUP`.
    pub const SUPERBLOCK: u32 = u32::from_le_bytes(*b"ASUP");
    /// Journal header: `AJHD`.
    pub const JOURNAL_HEADER: u32 = u32::from_le_bytes(*b"AJHD");
    /// Journal record: `JR`.
    pub const JOURNAL_RECORD: u16 = u16::from_le_bytes(*b"JR");
    /// Tree node: `ANOD`.
    pub const NODE: u32 = u32::from_le_bytes(*b"ANOD");
    /// Map block: `AMAP`.
    pub const MAP: u32 = u32::from_le_bytes(*b"AMAP");
    /// Summary of which groups are full: `ASUM`.
    pub const SUMMARY: u32 = u32::from_le_bytes(*b"ASUM");
}

/// Reads a `u16`.
#[inline]
pub fn get16(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

/// Reads a `u32`.
#[inline]
pub fn get32(b: &[u8], at: usize) -> u32 {
    let mut v = [0; 4];
    v.copy_from_slice(&b[at..at + 4]);
    u32::from_le_bytes(v)
}

/// Reads a `u64`.
#[inline]
pub fn get64(b: &[u8], at: usize) -> u64 {
    let mut v = [0; 8];
    v.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(v)
}

/// Writes a `u16`.
#[inline]
pub fn put16(b: &mut [u8], at: usize, v: u16) {
    b[at..at + 2].copy_from_slice(&v.to_le_bytes());
}

/// Writes a `u32`.
#[inline]
pub fn put32(b: &mut [u8], at: usize, v: u32) {
    b[at..at + 4].copy_from_slice(&v.to_le_bytes());
}

/// Writes a `u64`.
#[inline]
pub fn put64(b: &mut [u8], at: usize, v: u64) {
    b[at..at + 8].copy_from_slice(&v.to_le_bytes());
}

/// Writes the checksum of a metadata block whose index and magic number are in place.
pub fn seal(block: &mut Block) {
    let sum = xxh3_64_with_seed(&block[8..], get64(block, common::BLOCK));
    put64(block, common::CHECKSUM, sum);
}

/// Checks checksum, index and magic number of a metadata block.
///
/// # Errors
/// [`Corruption::Checksum`].
pub fn verify(block: &Block, index: BlockIndex, magic: u32) -> Result<()> {
    if get32(block, common::MAGIC) != magic
        || get64(block, common::BLOCK) != index.0
        || get64(block, common::CHECKSUM) != xxh3_64_with_seed(&block[8..], index.0)
    {
        return Err(Corruption::Checksum.into());
    }
    Ok(())
}

/// Starts a metadata block: zeros, index and magic number.
pub fn init_block(block: &mut Block, index: BlockIndex, magic: u32) {
    block.fill(0);
    put64(block, common::BLOCK, index.0);
    put32(block, common::MAGIC, magic);
}

/// Offsets of the superblock, at block 0 and again at the volume's last block.
pub mod superblock {
    /// `u32`: [`VERSION`](super::VERSION).
    pub const VERSION: usize = 20;
    /// `u64`: features that a version without them may ignore; none are defined.
    pub const COMPATIBLE: usize = 24;
    /// `u64`: features with which a version without them may read, but not write; none are defined.
    pub const READ_COMPATIBLE: usize = 32;
    /// `u64`: features with which a version without them must not open the volume: [`PROJECTS`].
    pub const INCOMPATIBLE: usize = 40;
    /// `u64`: counts how often the superblock was changed; the copy with the higher one counts.
    pub const GENERATION: usize = 48;
    /// `u64`: blocks in the volume.
    pub const BLOCK_COUNT: usize = 56;
    /// `u64`: first block of the journal ring.
    pub const RING_START: usize = 64;
    /// `u64`: blocks in the journal ring.
    pub const RING_BLOCKS: usize = 72;
    /// `u64`: first block of group 0; the second copies of the journal headers are the two before
    /// it.
    pub const GROUP_START: usize = 80;
    /// `[u8; 16]`: the secret key of the hashes of names and of the journal's checksums.
    pub const HASH_KEY: usize = 88;
    /// `[u8; 16]`: the volume's UUID.
    pub const UUID: usize = 104;
    /// `[u8; 64]`: the label, UTF-8, padded with zeros.
    pub const LABEL: usize = 120;
    /// Bytes of the label.
    pub const LABEL_LEN: usize = 64;
    /// `i64`, `u32`: when the volume was made.
    pub const CREATED: usize = 184;
    /// From here to the end of the first sector: kept for snapshots, 0 until then.
    pub const RESERVED: usize = 200;

    /// Incompatible feature: inodes may belong to projects, of which the volume keeps the usage.
    pub const PROJECTS: u64 = 1;
}

/// Offsets of a journal header; the valid one with the highest generation counts.
pub mod journal_header {
    /// `u64`: counts the headers written.
    pub const GENERATION: usize = 24;
    /// `[u8; 16]`: the incarnation that has the volume mounted.
    pub const INCARNATION: usize = 32;
    /// `u64`: ring position of the oldest record that is needed, in bytes, ever growing.
    pub const TAIL: usize = 48;
    /// `u64`: the sequence number of the record at the tail.
    pub const SEQUENCE: usize = 56;
    /// `u64`: the checksum that the record at the tail is chained to.
    pub const CHAIN: usize = 64;
    /// `u32`: [`CLEAN`], [`FAILED`].
    pub const FLAGS: usize = 72;
    /// `u64`: blocks in the volume that the header belongs to. With another number in the
    /// superblock the header does not count, so that a volume grows in one step.
    pub const BLOCK_COUNT: usize = 80;
    /// `[u8; 16]`: the UUID of the volume that the header belongs to, so that no header of a volume
    /// that was here before counts.
    pub const UUID: usize = 88;
    /// `[u8; 32]`: the owner that has the volume mounted; zeros: none, or it gives no name.
    pub const OWNER: usize = 104;
    /// The [`VolumeState`](super::VolumeState) before the record at the tail.
    pub const STATE: usize = 136;

    /// Flag: the volume was unmounted cleanly.
    pub const CLEAN: u32 = 1;
    /// Flag: a write or flush failed, so that the medium may lack acknowledged changes.
    pub const FAILED: u32 = 2;
}

/// Offsets in a [`VolumeState`].
pub mod state {
    /// `u64`: the root node's block.
    pub const ROOT: usize = 0;
    /// `u32`: levels of the tree.
    pub const HEIGHT: usize = 8;
    /// `u64`: the number that the next inode gets.
    pub const NEXT_INO: usize = 16;
    /// `u64`: blocks that no map block marks as in use.
    pub const FREE_BLOCKS: usize = 24;
    /// `u64`: inodes that exist.
    pub const INODES: usize = 32;
    /// `u64`: groups whose map blocks have been made; in those after them every block is free.
    pub const GROUPS: usize = 40;
    /// Length of the state.
    pub const LEN: usize = 48;
}

/// Offsets in a journal record: header, optional state, entries, padding to 8 bytes.
pub mod record {
    /// `u16`: magic number.
    pub const MAGIC: usize = 0;
    /// `u8`: flags.
    pub const FLAGS: usize = 2;
    /// `u32`: length of the whole record in bytes, a multiple of 8.
    pub const LEN: usize = 4;
    /// `u64`: sequence number, one more than the record before.
    pub const SEQUENCE: usize = 8;
    /// `u64`: XXH3-64 of the record without this field, seeded with the header's seed plus the
    /// record's position.
    pub const CHECKSUM: usize = 16;
    /// `u64`: everything before this position was durable and committed when the record was stored.
    pub const COMMITTED: usize = 24;
    /// Length of the header.
    pub const HEADER_LEN: usize = 32;

    /// A [`VolumeState`](super::VolumeState) follows the header.
    pub const HAS_STATE: u8 = 1;
    /// The record is a commit mark: all before it was made durable, or is in it.
    pub const MARK: u8 = 2;
    /// A commit mark after a flush of the whole device: data entries before it are void.
    pub const FLUSHED: u8 = 4;
    /// A commit mark for the records before the position that follows header and state; it says
    /// nothing of the records from there on.
    pub const COVERS: u8 = 8;
    /// Length of that position, a `u64`.
    pub const COVERS_LEN: usize = 8;

    /// The echo of a commit mark: the position of the mark follows, after the position that it
    /// covers.
    pub const ECHO: u8 = 16;
    /// In an echo: the mark had more than the echo tells.
    pub const CARRIES: u8 = 32;
    /// The record is a list of blocks that are about to be written home, each with the checksum of
    /// the content that it will have.
    pub const HOME: u8 = 64;
    /// Length of the position of an echo's mark, a `u64`.
    pub const ECHO_LEN: usize = 8;
    /// Length of a block in a list: its index and the checksum, both `u64`.
    pub const HOME_LEN: usize = 16;

    /// `u64`: in an entry, block and flags.
    pub const ENTRY_BLOCK: usize = 0;
    /// `u16`: in an entry, where in the block the bytes go.
    pub const ENTRY_OFFSET: usize = 8;
    /// `u16`: in an entry, how many bytes follow.
    pub const ENTRY_BYTES: usize = 10;
    /// Length of an entry's header.
    pub const ENTRY_LEN: usize = 12;
    /// Entry flag: the block is zeroed before the bytes are put.
    pub const INIT: u64 = 1 << 63;
    /// Entry flag: file data, applied after power loss only.
    pub const DATA: u64 = 1 << 62;
    /// The block index in an entry.
    pub const BLOCK_MASK: u64 = (1 << 56) - 1;
}

/// Offsets of a map block, the first two blocks of each group: the same twice.
pub mod map {
    /// `u64`: the generation of the journal header before the last change. Of two that differ the
    /// one with the higher is newer.
    pub const GENERATION: usize = 24;
    /// One bit a block of the group, the map blocks themselves first, 1 in use. Bits beyond the
    /// group are 1.
    pub const BITS: usize = 64;
    /// Blocks in a group.
    pub const GROUP_BLOCKS: u64 = ((super::BLOCK_SIZE - BITS) * 8) as u64;
    /// The fewest blocks of a group; a shorter rest at the end of a volume belongs to none.
    pub const GROUP_BLOCKS_MIN: u64 = 8;
}

/// Offsets of a summary, the blocks after the map blocks of some groups: the same twice.
pub mod summary {
    /// `u64`: as in a map block.
    pub const GENERATION: usize = super::map::GENERATION;
    /// One bit a group, that of the summary first: 1 only if no block of it is free.
    pub const BITS: usize = super::map::BITS;
    /// Groups that one summary is for; the first of them has it.
    pub const GROUPS: u64 = super::map::GROUP_BLOCKS;
}

/// Offsets of a tree node.
pub mod node {
    /// `u8`: 0 for a leaf, one more than its children otherwise.
    pub const LEVEL: usize = 20;
    /// `u16`: where the next cell would begin.
    pub const END: usize = 22;
    /// `u64`: reserved, for the generation in which a node was written; written as 0, and not
    /// looked at.
    pub const RESERVED: usize = 24;
    /// The first cell.
    pub const CELLS: usize = 32;
    /// Bytes for cells.
    pub const CAPACITY: usize = super::BLOCK_SIZE - CELLS;
    /// The longest value of a cell.
    pub const VALUE_MAX: usize = 1000;
    /// The most levels a tree may have.
    pub const HEIGHT_MAX: usize = 12;
}

/// Offsets in a cell of a node.
pub mod cell {
    /// `u16`: length of the cell in bytes.
    pub const LEN: usize = 0;
    /// `u8`: 1 while the cell is part of the tree, 0 once it is removed.
    pub const LIVE: usize = 2;
    /// `u64`: inode number of the key.
    pub const KEY_INO: usize = 4;
    /// `u64`: kind (top 8 bits) and offset of the key.
    pub const KEY_ITEM: usize = 12;
    /// The value: in a node above the leaves the `u64` index of the child.
    pub const VALUE: usize = 20;
}

/// Offsets in the value of an inode item.
pub mod inode {
    /// `u32`: type and permission bits.
    pub const MODE: usize = 0;
    /// `u32`: hard links.
    pub const NLINK: usize = 4;
    /// `u32`: owner.
    pub const UID: usize = 8;
    /// `u32`: group.
    pub const GID: usize = 12;
    /// `u32`: device number.
    pub const RDEV: usize = 16;
    /// `u32`: the project that the inode belongs to; 0: none.
    pub const PROJECT: usize = 20;
    /// `u64`: length in bytes.
    pub const SIZE: usize = 24;
    /// `u64`: data blocks allocated.
    pub const BLOCKS: usize = 32;
    /// `u64`: the parent of a directory, else 0.
    pub const PARENT: usize = 40;
    /// `i64`, `u32`: last change of content.
    pub const MTIME: usize = 48;
    /// `i64`, `u32`: last change of attributes.
    pub const CTIME: usize = 60;
    /// `i64`, `u32`: last access.
    pub const ATIME: usize = 72;
    /// `i64`, `u32`: creation.
    pub const BTIME: usize = 84;
    /// Length of the value.
    pub const LEN: usize = 96;
}

/// Offsets in the value of a directory entry item.
pub mod dirent {
    /// `u64`: inode number.
    pub const INO: usize = 0;
    /// `u8`: type, as `d_type`.
    pub const TYPE: usize = 8;
    /// The name, to the end of the value.
    pub const NAME: usize = 9;
}

/// Offsets in the value of an extent item.
pub mod extent {
    /// `u64`: first block, bit 63 set if the blocks are allocated but read as zeros.
    pub const START: usize = 0;
    /// Bit of START.
    pub const UNWRITTEN: u64 = 1 << 63;
    /// `u32`: number of blocks.
    pub const LEN: usize = 8;
    /// Length of the value.
    pub const VALUE_LEN: usize = 12;
}

/// Offsets in the value of the first piece of an extended attribute.
pub mod xattr {
    /// `u32`: length of the attribute's value over all pieces.
    pub const VALUE_LEN: usize = 0;
    /// `u8`: length of the name.
    pub const NAME_LEN: usize = 4;
    /// The name, then the value's first bytes.
    pub const NAME: usize = 5;
}

/// Offsets in the value of a project item.
pub mod project {
    /// `u64`: inode number of the directory that the project is for.
    pub const ROOT: usize = 0;
    /// `u64`: bytes that its inodes take.
    pub const BYTES: usize = 8;
    /// `u64`: its inodes.
    pub const INODES: usize = 16;
    /// `u32`: [`COMPLETE`].
    pub const FLAGS: usize = 24;
    /// Length of the value.
    pub const LEN: usize = 28;

    /// Flag: all that lay below the directory when the project was made belongs to it.
    pub const COMPLETE: u32 = 1;
}

const _: () = {
    // Superblocks and journal headers lie within a sector, so that a crash never tears them.
    assert!(superblock::CREATED + 12 <= superblock::RESERVED);
    assert!(superblock::RESERVED <= SECTOR_SIZE);
    assert!(superblock::LABEL + superblock::LABEL_LEN == superblock::CREATED);
    assert!(journal_header::STATE + VolumeState::LEN <= SECTOR_SIZE);
    assert!(inode::BTIME + 12 == inode::LEN);
    // A node must hold three of the largest cells for splits to work.
    assert!(node::CAPACITY >= 3 * (cell::VALUE + node::VALUE_MAX));
    assert!(map::GROUP_BLOCKS == 32256);
};

/// Reads a time.
pub fn get_time(b: &[u8], at: usize) -> Timespec {
    Timespec { sec: get64(b, at) as i64, nsec: get32(b, at + 8) }
}

/// Writes a time.
pub fn put_time(b: &mut [u8], at: usize, t: Timespec) {
    put64(b, at, t.sec as u64);
    put32(b, at + 8, t.nsec);
}

/// The length that a directory tells, whatever is in it.
pub const DIRECTORY_SIZE: u64 = 4096;
/// The smallest journal ring, in blocks: the largest record must fit twice.
pub const RING_BLOCKS_MIN: u64 = 128;
/// The largest journal ring that a volume gets unless it is asked for, in blocks.
pub const RING_BLOCKS_DEFAULT_MAX: u64 = 65536;
/// The blocks from the ring's start that have storage from the start; the rest gets it when it is
/// used.
pub const RING_BLOCKS_STORED: u64 = 12288;
/// The fewest blocks after the journal.
pub const GROUP_AREA_MIN: u64 = 64;
/// The most blocks of a volume: 2^50 blocks are 4 EiB.
pub const BLOCK_COUNT_MAX: u64 = 1 << 50;
