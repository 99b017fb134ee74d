//! The superblock, and the state of the volume that goes with it: both parsed.

use atoll_block::BlockIndex;
use atoll_vfs::Timespec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{Corruption, Result};
use crate::layout::{
    BLOCK_COUNT_MAX, Block, GROUP_AREA_MIN, RING_BLOCKS_MIN, VERSION, common, get_time, get32,
    get64, init_block, magic, map, node, put_time, put32, put64, seal, state, summary, superblock,
    verify,
};

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
    /// Groups whose map blocks have been made, from the first on; all blocks after them are free.
    pub groups: u64,
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
        put64(b, state::GROUPS, self.groups);
    }

    /// Reads a state and checks it against the volume.
    pub fn parse(b: &[u8], superblock: &Superblock) -> Option<VolumeState> {
        let found = VolumeState {
            root: get64(b, state::ROOT),
            height: get32(b, state::HEIGHT),
            next_ino: get64(b, state::NEXT_INO),
            free_blocks: get64(b, state::FREE_BLOCKS),
            inodes: get64(b, state::INODES),
            groups: get64(b, state::GROUPS),
        };
        let sound = superblock.holds(found.root, 1)
            && (1..=node::HEIGHT_MAX as u32).contains(&found.height)
            && found.next_ino > 1
            && found.inodes <= crate::key::OFFSET_MAX
            && found.free_blocks < superblock.block_count
            && (1..=superblock.group_count()).contains(&found.groups);
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
    /// Counts how often the superblock was changed.
    pub generation: u64,
    /// Features that a version without them may ignore.
    pub compatible: u64,
    /// Features with which a version without them may read, but not write.
    pub read_compatible: u64,
    /// Features with which a version without them must not open the volume.
    pub incompatible: u64,
    /// The secret key of the hashes of names and of the journal's checksums.
    pub hash_key: [u8; 16],
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The label, padded with zeros.
    pub label: [u8; superblock::LABEL_LEN],
    /// When the volume was made.
    pub created: Timespec,
}

impl Superblock {
    /// Whether inodes may belong to projects.
    #[inline]
    pub fn has_projects(&self) -> bool {
        self.incompatible & superblock::PROJECTS != 0
    }

    /// The block that holds the copy.
    pub fn copy_index(&self) -> BlockIndex {
        BlockIndex(self.block_count - 1)
    }

    /// The blocks of the journal's headers: both slots, then the second copies of both.
    pub fn journal_headers(&self) -> [BlockIndex; 4] {
        [1, 2, self.group_start - 2, self.group_start - 1].map(BlockIndex)
    }

    /// The two blocks that get the header of `generation`, far apart.
    pub fn header_slot(&self, generation: u64) -> [BlockIndex; 2] {
        let slot = generation % 2;
        [BlockIndex(1 + slot), BlockIndex(self.group_start - 2 + slot)]
    }

    /// The checksum that a journal's first record is chained to: from the key, so that a client
    /// that only writes files cannot make up a record.
    pub fn chain_seed(&self) -> u64 {
        xxh3_64_with_seed(&self.hash_key, u64::from(magic::JOURNAL_RECORD))
    }

    /// The end of the group area. A rest that is too short for a group is left over.
    #[inline]
    pub fn area_end(&self) -> u64 {
        let end = self.block_count - 1;
        let rest = (end - self.group_start) % map::GROUP_BLOCKS;
        if rest < map::GROUP_BLOCKS_MIN { end - rest } else { end }
    }

    /// The number of groups; the last may be short.
    pub fn group_count(&self) -> u64 {
        (self.area_end() - self.group_start).div_ceil(map::GROUP_BLOCKS)
    }

    /// The map block of group `group`; its second copy is the block after it.
    pub fn map_block(&self, group: u64) -> BlockIndex {
        BlockIndex(self.group_start + group * map::GROUP_BLOCKS)
    }

    /// The summary that has the bit of group `group`; its second copy is the block after it.
    pub fn summary_block(&self, group: u64) -> BlockIndex {
        BlockIndex(self.map_block(group - group % summary::GROUPS).0 + 2)
    }

    /// The magic number of a block that stands twice, if `block` is the first of such two.
    pub fn pair_magic(&self, block: BlockIndex) -> Option<u32> {
        let (group, at) = self.in_area(block.0).then(|| self.locate(block.0))?;
        match at {
            0 => Some(magic::MAP),
            2 if self.front_len(group) > 2 => Some(magic::SUMMARY),
            _ => None,
        }
    }

    /// How many blocks at the beginning of `group` are for its maps and summaries.
    pub fn front_len(&self, group: u64) -> usize {
        if group.is_multiple_of(summary::GROUPS) { 4 } else { 2 }
    }

    /// The group of a block in the group area and its place there.
    #[inline]
    pub fn locate(&self, block: u64) -> (u64, usize) {
        let at = block - self.group_start;
        (at / map::GROUP_BLOCKS, (at % map::GROUP_BLOCKS) as usize)
    }

    /// The blocks of group `group`, its map blocks included.
    pub fn group_len(&self, group: u64) -> usize {
        let start = group * map::GROUP_BLOCKS;
        (self.area_end() - self.group_start - start).min(map::GROUP_BLOCKS) as usize
    }

    /// The part of `group` that the journal's ring takes, if it lies there: a first block, counted
    /// from the group's, and a number.
    pub fn ring_in(&self, group: u64) -> Option<(usize, usize)> {
        if self.ring_start < self.group_start {
            return None;
        }
        let (of, first) = self.locate(self.ring_start);
        (of == group).then_some((first, self.ring_blocks as usize))
    }

    /// The blocks that files and the tree can have.
    pub fn usable_blocks(&self) -> u64 {
        let groups = self.group_count();
        let fronts = 2 * (groups + groups.div_ceil(summary::GROUPS));
        let ring = if self.ring_start < self.group_start { 0 } else { self.ring_blocks };
        (self.area_end() - self.group_start).saturating_sub(fronts + ring)
    }

    /// Whether `block` lies in the group area, the ring included if that does.
    #[inline]
    pub fn in_area(&self, block: u64) -> bool {
        block >= self.group_start && block < self.area_end()
    }

    /// Whether `len` blocks from `start` lie in the group area, and not in the ring.
    #[inline]
    pub fn holds(&self, start: u64, len: u64) -> bool {
        self.in_area(start)
            && len <= self.area_end() - start
            && (start + len <= self.ring_start || start >= self.ring_start + self.ring_blocks)
    }

    /// Whether `len` blocks from `start` can hold file data or a node: they lie in one group, the
    /// map blocks not among them.
    #[inline]
    pub fn holds_data(&self, start: u64, len: u64) -> bool {
        self.holds(start, len) && {
            let (group, first) = self.locate(start);
            first >= self.front_len(group) && len <= map::GROUP_BLOCKS - first as u64
        }
    }

    /// Whether the ring is where one can be: before the group area, between the headers, or within
    /// one group.
    fn ring_is_sound(&self) -> bool {
        let Some(end) = self.ring_start.checked_add(self.ring_blocks) else { return false };
        if self.ring_start < self.group_start {
            return self.ring_start >= 3 && end <= self.group_start - 2;
        }
        let (group, first) = self.locate(self.ring_start);
        group < self.group_count()
            && first >= self.front_len(group)
            && self.ring_blocks <= (self.group_len(group) - first.min(self.group_len(group))) as u64
    }

    /// Writes the superblock as the content of block `index`.
    pub fn emit(&self, b: &mut Block, index: BlockIndex) {
        init_block(b, index, magic::SUPERBLOCK);
        put32(b, superblock::VERSION, VERSION);
        put64(b, superblock::COMPATIBLE, self.compatible);
        put64(b, superblock::READ_COMPATIBLE, self.read_compatible);
        put64(b, superblock::INCOMPATIBLE, self.incompatible);
        put64(b, superblock::GENERATION, self.generation);
        put64(b, superblock::BLOCK_COUNT, self.block_count);
        put64(b, superblock::RING_START, self.ring_start);
        put64(b, superblock::RING_BLOCKS, self.ring_blocks);
        put64(b, superblock::GROUP_START, self.group_start);
        b[superblock::HASH_KEY..superblock::HASH_KEY + 16].copy_from_slice(&self.hash_key);
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
        match get32(b, superblock::VERSION) {
            VERSION => {}
            1 => return Err(Corruption::EarlierVersion.into()),
            _ => return Err(Corruption::Version.into()),
        }
        if get64(b, superblock::INCOMPATIBLE) & !superblock::PROJECTS != 0 {
            return Err(Corruption::Version.into());
        }
        let mut sb = Superblock {
            block_count: get64(b, superblock::BLOCK_COUNT),
            ring_start: get64(b, superblock::RING_START),
            ring_blocks: get64(b, superblock::RING_BLOCKS),
            group_start: get64(b, superblock::GROUP_START),
            generation: get64(b, superblock::GENERATION),
            compatible: get64(b, superblock::COMPATIBLE),
            read_compatible: get64(b, superblock::READ_COMPATIBLE),
            incompatible: get64(b, superblock::INCOMPATIBLE),
            hash_key: [0; 16],
            uuid: [0; 16],
            label: [0; superblock::LABEL_LEN],
            created: get_time(b, superblock::CREATED),
        };
        sb.hash_key.copy_from_slice(&b[superblock::HASH_KEY..superblock::HASH_KEY + 16]);
        sb.uuid.copy_from_slice(&b[superblock::UUID..superblock::UUID + 16]);
        sb.label.copy_from_slice(&b[superblock::LABEL..superblock::LABEL + superblock::LABEL_LEN]);
        let sound = sb.group_start >= 5
            && sb.group_start < sb.block_count
            && sb.block_count - sb.group_start >= GROUP_AREA_MIN
            && sb.block_count <= BLOCK_COUNT_MAX
            && sb.ring_blocks >= RING_BLOCKS_MIN
            && sb.ring_is_sound();
        if !sound {
            return Err(Corruption::Superblock.into());
        }
        if sb.block_count > device_blocks {
            return Err(Corruption::Truncated.into());
        }
        Ok(sb)
    }
}
