//! Every offset on disk. docs/FORMAT.md says the same in prose; a test holds the two together.
//!
//! All integers are little-endian. The first 24 bytes of every metadata block are alike: checksum,
//! own block index, magic number.

use atoll_block::{BLOCK_SIZE, BlockIndex};
use atoll_vfs::Timespec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{Corruption, Result};

/// The content of a block.
pub type Block = [u8; BLOCK_SIZE];

/// The format's version; another major version is not mounted.
pub const VERSION: u32 = 1;

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
    /// `u64`: features that a reader must know; none are defined.
    pub const FEATURES: usize = 24;
    /// `u64`: blocks in the volume.
    pub const BLOCK_COUNT: usize = 32;
    /// `u64`: first block of the journal ring; its two headers are the blocks before it.
    pub const RING_START: usize = 40;
    /// `u64`: blocks in the journal ring.
    pub const RING_BLOCKS: usize = 48;
    /// `u64`: first block of group 0.
    pub const GROUP_START: usize = 56;
    /// `u64`: seed of the directory hash.
    pub const HASH_SEED: usize = 64;
    /// `[u8; 16]`: the volume's UUID.
    pub const UUID: usize = 72;
    /// `[u8; 64]`: the label, UTF-8, padded with zeros.
    pub const LABEL: usize = 88;
    /// Bytes of the label.
    pub const LABEL_LEN: usize = 64;
    /// `i64`, `u32`: when the volume was made.
    pub const CREATED: usize = 152;
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
    /// The [`VolumeState`](super::VolumeState) before the record at the tail.
    pub const STATE: usize = 72;
    /// `u8`: 1 after a clean unmount.
    pub const CLEAN: usize = 112;
    /// `u64`: blocks in the volume that the header belongs to. With another number in the
    /// superblock the header does not count, so that a volume grows in one step.
    pub const BLOCK_COUNT: usize = 120;
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
    /// Length of the state.
    pub const LEN: usize = 40;
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
    /// `u64`: XXH3-64 of the record without this field, seeded with that of the record before.
    pub const CHECKSUM: usize = 16;
    /// Length of the header.
    pub const HEADER_LEN: usize = 24;

    /// A [`VolumeState`](super::VolumeState) follows the header.
    pub const HAS_STATE: u8 = 1;
    /// The record is a commit mark: all before it was made durable, or is in it.
    pub const MARK: u8 = 2;
    /// A commit mark after a flush of the whole device: data entries before it are void.
    pub const FLUSHED: u8 = 4;
    /// A commit mark for what is before the position that follows header and state; of the records from
    /// there on it says nothing.
    pub const COVERS: u8 = 8;
    /// Length of that position, a `u64`.
    pub const COVERS_LEN: usize = 8;

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

/// Offsets of a map block, the first block of each group.
pub mod map {
    /// One bit a block of the group, the map block itself first, 1 in use. Bits beyond the volume
    /// are 1.
    pub const BITS: usize = 64;
    /// Blocks in a group.
    pub const GROUP_BLOCKS: u64 = ((super::BLOCK_SIZE - BITS) * 8) as u64;
}

/// Offsets of a tree node.
pub mod node {
    /// `u8`: 0 for a leaf, one more than its children otherwise.
    pub const LEVEL: usize = 20;
    /// `u16`: where the next cell would begin.
    pub const END: usize = 22;
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
    /// `u32`: reserved, 0.
    pub const FLAGS: usize = 20;
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

const _: () = {
    assert!(superblock::CREATED + 12 <= BLOCK_SIZE);
    assert!(superblock::LABEL + superblock::LABEL_LEN == superblock::CREATED);
    assert!(journal_header::STATE + VolumeState::LEN == journal_header::CLEAN);
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

/// The volume's variables that are in no block: each journal record that changes them carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VolumeState {
    /// The tree's root node.
    pub root: u64,
    /// Levels of the tree, 1 when the root is a leaf.
    pub height: u32,
    /// The number that the next inode gets.
    pub next_ino: u64,
    /// Blocks that no map block marks as in use.
    pub free_blocks: u64,
    /// Inodes that exist, unlinked ones included.
    pub inodes: u64,
}

impl VolumeState {
    /// Bytes on disk.
    pub const LEN: usize = state::LEN;

    /// Writes the state to the first [`LEN`](Self::LEN) bytes of `b`.
    pub fn emit(&self, b: &mut [u8]) {
        b[..Self::LEN].fill(0);
        put64(b, state::ROOT, self.root);
        put32(b, state::HEIGHT, self.height);
        put64(b, state::NEXT_INO, self.next_ino);
        put64(b, state::FREE_BLOCKS, self.free_blocks);
        put64(b, state::INODES, self.inodes);
    }

    /// Reads a state and checks it against the volume.
    pub fn parse(b: &[u8], superblock: &Superblock) -> Option<VolumeState> {
        let found = VolumeState {
            root: get64(b, state::ROOT),
            height: get32(b, state::HEIGHT),
            next_ino: get64(b, state::NEXT_INO),
            free_blocks: get64(b, state::FREE_BLOCKS),
            inodes: get64(b, state::INODES),
        };
        let sound = superblock.holds(found.root, 1)
            && (1..=node::HEIGHT_MAX as u32).contains(&found.height)
            && found.next_ino > 1
            && found.inodes <= crate::key::OFFSET_MAX
            && found.free_blocks < superblock.block_count;
        sound.then_some(found)
    }
}

/// The superblock, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Blocks in the volume.
    pub block_count: u64,
    /// First block of the journal ring.
    pub ring_start: u64,
    /// Blocks in the journal ring.
    pub ring_blocks: u64,
    /// First block of group 0.
    pub group_start: u64,
    /// Seed of the directory hash.
    pub hash_seed: u64,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The label, padded with zeros.
    pub label: [u8; superblock::LABEL_LEN],
    /// When the volume was made.
    pub created: Timespec,
}

impl Superblock {
    /// The block that holds the copy.
    pub fn copy_index(&self) -> BlockIndex {
        BlockIndex(self.block_count - 1)
    }

    /// The two blocks of the journal's headers.
    pub fn journal_headers(&self) -> [BlockIndex; 2] {
        [BlockIndex(self.ring_start - 2), BlockIndex(self.ring_start - 1)]
    }

    /// The number of groups; the last may be short.
    pub fn group_count(&self) -> u64 {
        (self.block_count - 1 - self.group_start).div_ceil(map::GROUP_BLOCKS)
    }

    /// The map block of group `group`.
    pub fn map_block(&self, group: u64) -> BlockIndex {
        BlockIndex(self.group_start + group * map::GROUP_BLOCKS)
    }

    /// The group of a block in the group area and its place there.
    #[inline]
    pub fn locate(&self, block: u64) -> (u64, usize) {
        let at = block - self.group_start;
        (at / map::GROUP_BLOCKS, (at % map::GROUP_BLOCKS) as usize)
    }

    /// The blocks of group `group`, its map block included.
    pub fn group_len(&self, group: u64) -> usize {
        let start = group * map::GROUP_BLOCKS;
        (self.block_count - 1 - self.group_start - start).min(map::GROUP_BLOCKS) as usize
    }

    /// Whether `len` blocks from `start` lie in the group area.
    #[inline]
    pub fn holds(&self, start: u64, len: u64) -> bool {
        start >= self.group_start
            && len <= self.block_count
            && start < self.block_count
            && len < self.block_count - start
    }

    /// Whether `len` blocks from `start` can hold file data or a node: they lie in one group, the
    /// map block not among them.
    #[inline]
    pub fn holds_data(&self, start: u64, len: u64) -> bool {
        self.holds(start, len) && {
            let (_, first) = self.locate(start);
            first > 0 && len <= map::GROUP_BLOCKS - first as u64
        }
    }

    /// Writes the superblock as the content of block `index`.
    pub fn emit(&self, b: &mut Block, index: BlockIndex) {
        init_block(b, index, magic::SUPERBLOCK);
        put32(b, superblock::VERSION, VERSION);
        put64(b, superblock::FEATURES, 0);
        put64(b, superblock::BLOCK_COUNT, self.block_count);
        put64(b, superblock::RING_START, self.ring_start);
        put64(b, superblock::RING_BLOCKS, self.ring_blocks);
        put64(b, superblock::GROUP_START, self.group_start);
        put64(b, superblock::HASH_SEED, self.hash_seed);
        b[superblock::UUID..superblock::UUID + 16].copy_from_slice(&self.uuid);
        b[superblock::LABEL..superblock::LABEL + superblock::LABEL_LEN]
            .copy_from_slice(&self.label);
        put_time(b, superblock::CREATED, self.created);
        seal(b);
    }

    /// Reads and checks the superblock in block `index` of a device of `device_blocks`.
    ///
    /// # Errors
    /// The [`Corruption`] that it shows.
    pub fn parse(b: &Block, index: BlockIndex, device_blocks: u64) -> Result<Superblock> {
        if get32(b, common::MAGIC) != magic::SUPERBLOCK {
            return Err(Corruption::NotAVolume.into());
        }
        verify(b, index, magic::SUPERBLOCK).map_err(|_| Corruption::Superblock)?;
        if get32(b, superblock::VERSION) != VERSION || get64(b, superblock::FEATURES) != 0 {
            return Err(Corruption::Version.into());
        }
        let mut sb = Superblock {
            block_count: get64(b, superblock::BLOCK_COUNT),
            ring_start: get64(b, superblock::RING_START),
            ring_blocks: get64(b, superblock::RING_BLOCKS),
            group_start: get64(b, superblock::GROUP_START),
            hash_seed: get64(b, superblock::HASH_SEED),
            uuid: [0; 16],
            label: [0; superblock::LABEL_LEN],
            created: get_time(b, superblock::CREATED),
        };
        sb.uuid.copy_from_slice(&b[superblock::UUID..superblock::UUID + 16]);
        sb.label.copy_from_slice(&b[superblock::LABEL..superblock::LABEL + superblock::LABEL_LEN]);
        let sound = sb.ring_start >= 3
            && sb.ring_blocks >= RING_BLOCKS_MIN
            && sb.ring_start.checked_add(sb.ring_blocks) == Some(sb.group_start)
            && sb.group_start < sb.block_count
            && sb.block_count - sb.group_start >= GROUP_AREA_MIN
            && sb.block_count <= BLOCK_COUNT_MAX;
        if !sound {
            return Err(Corruption::Superblock.into());
        }
        if sb.block_count > device_blocks {
            return Err(Corruption::Truncated.into());
        }
        Ok(sb)
    }
}

/// The length that a directory tells, whatever is in it.
pub const DIRECTORY_SIZE: u64 = 4096;
/// The smallest journal ring, in blocks: the largest record must fit twice.
pub const RING_BLOCKS_MIN: u64 = 128;
/// The fewest blocks after the journal.
pub const GROUP_AREA_MIN: u64 = 64;
/// The most blocks of a volume: 2^50 blocks are 4 EiB.
pub const BLOCK_COUNT_MAX: u64 = 1 << 50;
