//! The content of a whole device, cheap to copy.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::device::{BLOCK_SIZE, SECTOR_SIZE};

/// Blocks that share one reference count, so that a copy of an image costs a count for each of
/// these and not for each block.
const CHUNK_BLOCKS: usize = 64;

type Block = [u8; BLOCK_SIZE];
type Chunk = [Option<Arc<Block>>; CHUNK_BLOCKS];
/// The content of one sector.
pub type Sector = [u8; SECTOR_SIZE];

/// The content of a device. Copies share the blocks that neither has changed since.
///
/// Offsets and lengths must lie on the image: it is a test's tool and panics otherwise.
#[derive(Clone, Debug)]
pub struct Image {
    block_count: u64,
    chunks: Vec<Option<Arc<Chunk>>>,
    fingerprint: u64,
}

impl Image {
    /// An image of `block_count` blocks that were never written.
    pub fn new(block_count: u64) -> Self {
        let chunks = (block_count as usize).div_ceil(CHUNK_BLOCKS);
        Image { block_count, chunks: vec![None; chunks], fingerprint: 0 }
    }

    /// An image that holds `bytes`, padded with zeros to a whole block. Blocks of zeros are holes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut image = Image::new(bytes.len().div_ceil(BLOCK_SIZE) as u64);
        for (i, block) in bytes.chunks(BLOCK_SIZE).enumerate() {
            if block.iter().any(|&b| b != 0) {
                image.write((i * BLOCK_SIZE) as u64, block);
            }
        }
        image
    }

    /// The whole content.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.block_count as usize * BLOCK_SIZE];
        self.read(0, &mut bytes);
        bytes
    }

    /// The number of blocks.
    pub fn block_count(&self) -> u64 {
        self.block_count
    }

    /// The same number for the same content, and by all odds another one for another. It costs
    /// nothing to ask.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Makes the image longer by blocks that were never written, or shorter.
    pub fn resize(&mut self, block_count: u64) {
        for block in block_count..self.block_count {
            self.discard(block);
        }
        self.chunks.resize((block_count as usize).div_ceil(CHUNK_BLOCKS), None);
        self.block_count = block_count;
    }

    /// Whether `block` has storage: it was written, and not discarded since.
    pub fn is_stored(&self, block: u64) -> bool {
        self.block(block).is_some()
    }

    fn block(&self, block: u64) -> Option<&Arc<Block>> {
        assert!(block < self.block_count, "block {block} of {}", self.block_count);
        let chunk = self.chunks[block as usize / CHUNK_BLOCKS].as_ref()?;
        chunk[block as usize % CHUNK_BLOCKS].as_ref()
    }

    /// Copies the bytes from `at` on to `buf`.
    pub fn read(&self, at: u64, buf: &mut [u8]) {
        let mut done = 0;
        while done < buf.len() {
            let (block, within, n) = piece(at + done as u64, buf.len() - done);
            let to = &mut buf[done..done + n];
            match self.block(block) {
                Some(bytes) => to.copy_from_slice(&bytes[within..within + n]),
                None => to.fill(0),
            }
            done += n;
        }
    }

    /// Whether the bytes from `at` on are `data`, which lies within a block.
    pub(super) fn is(&self, at: u64, data: &[u8]) -> bool {
        let (block, within, n) = piece(at, data.len());
        debug_assert!(n == data.len());
        match self.block(block) {
            Some(bytes) => bytes[within..within + n] == *data,
            None => data.iter().all(|&byte| byte == 0),
        }
    }

    /// Copies `data` to the bytes from `at` on.
    pub fn write(&mut self, at: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let (block, within, n) = piece(at + done as u64, data.len() - done);
            assert!(block < self.block_count, "block {block} of {}", self.block_count);
            let chunk = self.chunks[block as usize / CHUNK_BLOCKS]
                .get_or_insert_with(|| Arc::new([const { None }; CHUNK_BLOCKS]));
            let slot = &mut Arc::make_mut(chunk)[block as usize % CHUNK_BLOCKS];
            let bytes = Arc::make_mut(slot.get_or_insert_with(|| Arc::new([0; BLOCK_SIZE])));
            let sectors = within / SECTOR_SIZE..(within + n).div_ceil(SECTOR_SIZE);
            self.fingerprint ^= fingerprint_of(block, bytes, sectors.clone());
            bytes[within..within + n].copy_from_slice(&data[done..done + n]);
            self.fingerprint ^= fingerprint_of(block, bytes, sectors);
            done += n;
        }
    }

    /// Makes `block` a hole.
    pub fn discard(&mut self, block: u64) {
        if let Some(bytes) = self.block(block) {
            self.fingerprint ^= fingerprint_of(block, bytes, 0..BLOCK_SIZE / SECTOR_SIZE);
            let chunk = self.chunks[block as usize / CHUNK_BLOCKS].as_mut();
            let chunk = Arc::make_mut(chunk.expect("a stored block has a chunk"));
            chunk[block as usize % CHUNK_BLOCKS] = None;
        }
    }

    /// The content of a sector.
    pub fn sector(&self, sector: u64) -> Sector {
        let mut content = [0; SECTOR_SIZE];
        self.read(sector * SECTOR_SIZE as u64, &mut content);
        content
    }
}

/// The block of offset `at`, the offset within it, and how many of `len` bytes it holds.
fn piece(at: u64, len: usize) -> (u64, usize, usize) {
    let within = (at % BLOCK_SIZE as u64) as usize;
    (at / BLOCK_SIZE as u64, within, len.min(BLOCK_SIZE - within))
}

/// The part of some sectors of a block in the fingerprint of an image; nothing if they are zeros,
/// as sectors are that were never written.
fn fingerprint_of(block: u64, bytes: &Block, sectors: Range<usize>) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    sectors.fold(0, |sum, sector| {
        let bytes = &bytes[sector * SECTOR_SIZE..(sector + 1) * SECTOR_SIZE];
        // Four lanes, that need not wait for each other.
        let mut lanes = [0_u64; 4];
        for words in bytes.as_chunks::<8>().0.as_chunks::<4>().0 {
            for (lane, word) in lanes.iter_mut().zip(words) {
                *lane = (lane.rotate_left(29) ^ u64::from_le_bytes(*word)).wrapping_mul(ODD);
            }
        }
        if lanes == [0; 4] {
            return sum;
        }
        let place = block * (BLOCK_SIZE / SECTOR_SIZE) as u64 + sector as u64;
        let sum_of_lanes = lanes.iter().fold(mix(place), |sum, &lane| mix(sum ^ lane));
        sum ^ sum_of_lanes
    })
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", 2014): every bit of the result depends on every bit of the input.
pub(super) fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
