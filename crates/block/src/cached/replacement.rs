//! Which block leaves a full cache: S3-FIFO.
//!
//! Yang, Zhang, Qiu, Yue, Vigfusson, "FIFO Queues are All You Need for Cache Eviction", SOSP 2023.
//! New blocks enter a small queue, a tenth of the cache, and move to the main queue only if they
//! are used again while there; a block that was driven out of the small queue a short while ago
//! (a ghost) enters the main queue at once. So a scan passes through the small queue and leaves
//! the main one alone, and a loop that is larger than the cache still hits what the main queue
//! holds, where LRU would hit nothing. A hit changes one counter and moves nothing.
//!
//! Chosen over 2Q and ARC because hits do no list work, and over SIEVE because that, simpler still,
//! does not resist scans, as its authors say.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::hash::{BuildHasherDefault, Hasher};

use hashbrown::{HashMap, HashSet};

/// A place in the cache that holds one block.
pub type Frame = u32;

/// Uses remembered for a block.
const USES_MAX: u8 = 3;
/// Uses in the small queue that move a block to the main queue.
const USES_TO_STAY: u8 = 2;

/// A hash for block numbers: one multiplication, folded so that the low bits depend on all.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        let product = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

type BuildHasher = BuildHasherDefault<BlockHasher>;

/// The directory of a cache: which block is in which frame, and which frame is next to be reused.
///
/// All memory is allocated by [`new`](Self::new).
#[derive(Debug)]
pub struct Directory {
    frames: HashMap<u64, Frame, BuildHasher>,
    /// The block in each frame, or `None` if it was forgotten.
    blocks: Vec<Option<u64>>,
    uses: Vec<u8>,
    unused: Vec<Frame>,
    small: VecDeque<Frame>,
    main: VecDeque<Frame>,
    small_target: usize,
    ghosts: HashSet<u64, BuildHasher>,
    ghost_order: VecDeque<u64>,
    ghost_max: usize,
}

impl Directory {
    /// The most bytes that one frame costs here: its share of the vectors and queues, and of the
    /// two tables, which have room for twice their content, so that they never grow, rounded up to
    /// a power of two.
    pub const BYTES_PER_FRAME: usize = (16 + 1 + 4 + 4 + 4 + 8) + (17 + 9) * 2 * 2 * 8 / 7;

    /// A directory for `frames` frames, all unused.
    pub fn new(frames: Frame) -> Self {
        let count = frames as usize;
        let small_target = (count / 10).max(1);
        let ghost_max = count - small_target;
        Directory {
            frames: HashMap::with_capacity_and_hasher(2 * count, BuildHasher::default()),
            blocks: vec![None; count],
            uses: vec![0; count],
            unused: (0..frames).rev().collect(),
            small: VecDeque::with_capacity(count),
            main: VecDeque::with_capacity(count),
            small_target,
            ghosts: HashSet::with_capacity_and_hasher(2 * ghost_max, BuildHasher::default()),
            ghost_order: VecDeque::with_capacity(ghost_max + 1),
            ghost_max,
        }
    }

    /// The frame that holds `block`; no use is counted.
    #[inline]
    pub fn find(&self, block: u64) -> Option<Frame> {
        self.frames.get(&block).copied()
    }

    /// Counts a use of the block in `frame`.
    #[inline]
    pub fn used(&mut self, frame: Frame) {
        let uses = &mut self.uses[frame as usize];
        *uses = (*uses + 1).min(USES_MAX);
    }

    /// Forgets `block` if it is there.
    pub fn forget(&mut self, block: u64) {
        if let Some(frame) = self.frames.remove(&block) {
            self.blocks[frame as usize] = None;
            self.uses[frame as usize] = 0;
        }
    }

    /// Forgets the blocks of `range`.
    pub fn forget_range(&mut self, range: core::ops::Range<u64>) {
        if range.end - range.start > self.blocks.len() as u64 {
            for frame in 0..self.blocks.len() {
                if let Some(block) = self.blocks[frame]
                    && range.contains(&block)
                {
                    self.forget(block);
                }
            }
        } else {
            range.for_each(|block| self.forget(block));
        }
    }

    /// Gives `block`, which is not there, a frame. The block that the frame held before is
    /// forgotten.
    pub fn insert(&mut self, block: u64) -> Frame {
        let frame = self.unused.pop().unwrap_or_else(|| self.evict());
        if self.ghosts.remove(&block) {
            self.main.push_back(frame);
        } else {
            self.small.push_back(frame);
        }
        self.blocks[frame as usize] = Some(block);
        self.uses[frame as usize] = 0;
        self.frames.insert(block, frame);
        frame
    }

    fn evict(&mut self) -> Frame {
        // Each round ends, moves a frame out of the small queue, or takes a use from one in the
        // main queue: there are at most (2 + USES_MAX) rounds for each frame, and every frame is in
        // one of the two queues when none is unused.
        loop {
            let from_small = self.small.len() >= self.small_target || self.main.is_empty();
            if from_small && let Some(frame) = self.small.pop_front() {
                if self.uses[frame as usize] >= USES_TO_STAY {
                    self.uses[frame as usize] = 0;
                    self.main.push_back(frame);
                    continue;
                }
                if let Some(block) = self.blocks[frame as usize] {
                    self.frames.remove(&block);
                    self.remember_ghost(block);
                }
                return frame;
            }
            if let Some(frame) = self.main.pop_front() {
                let uses = &mut self.uses[frame as usize];
                if *uses > 0 {
                    *uses -= 1;
                    self.main.push_back(frame);
                    continue;
                }
                if let Some(block) = self.blocks[frame as usize] {
                    self.frames.remove(&block);
                }
                return frame;
            }
        }
    }

    fn remember_ghost(&mut self, block: u64) {
        if self.ghost_order.len() >= self.ghost_max
            && let Some(oldest) = self.ghost_order.pop_front()
        {
            self.ghosts.remove(&oldest);
        }
        self.ghosts.insert(block);
        self.ghost_order.push_back(block);
    }
}
