//! The metadata blocks in memory: frames, found by block index, evicted when clean.
//!
//! A frame that has changed since its block was written home is dirty and stays until a checkpoint
//! (write-ahead); one that the running operation has touched stays until the next operation, so
//! that frame numbers are good for the length of an operation.
//!
//! A checkpoint captures dirty frames before it writes them. The content at capture goes home,
//! however the frames change meanwhile; the first change to a captured frame copies it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_block::{BLOCK_SIZE, BlockIndex};
use hashbrown::HashMap;

use crate::key::Key;
use crate::layout::{self, Block, cell, node};

/// The number of a frame, good within one operation.
pub type FrameId = u32;

/// The most cells that fit in a node: those without a value.
const CELLS_MAX: usize = node::CAPACITY / cell::VALUE;

/// [`Frame::level`] of a map block, and of a node that has not been checked.
pub const NOT_A_NODE: u8 = u8::MAX;

/// How a frame differs from its block at home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameState {
    /// Not at all.
    Clean,
    /// It has changed.
    Dirty,
    /// It had changed when a checkpoint captured it, and still is as the checkpoint will write it.
    Captured,
}

/// A metadata block in memory.
///
/// The fields that a descent reads come first, side by side: in large trees the cache lines that a
/// lookup touches bound its speed.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Frame {
    /// Which block this is.
    pub block: BlockIndex,
    /// Grows whenever a cell may have moved, so that remembered positions can be checked.
    pub version: u64,
    operation: u64,
    /// For a node: bytes of live cells.
    pub live: u32,
    count: u16,
    /// A node's level, or [`NOT_A_NODE`].
    pub level: u8,
    /// How it differs from its block at home.
    pub state: FrameState,
    /// For a block that stands twice: its generation is above that at home.
    pub raised: bool,
    referenced: bool,
    free: bool,
    keys: [Key; CELLS_MAX],
    cells: [u16; CELLS_MAX],
    hints: [FrameId; CELLS_MAX],
    /// Its content; the checksum is stale while dirty.
    pub data: Block,
}

/// The index of a node: its live cells in the order of their keys.
impl Frame {
    /// The keys.
    #[inline]
    pub fn keys(&self) -> &[Key] {
        &self.keys[..self.count as usize]
    }

    /// Where the cell in `slot` begins.
    #[inline]
    pub fn cell_at(&self, slot: usize) -> usize {
        debug_assert!(slot < self.count as usize);
        self.cells[slot] as usize
    }

    /// For a node above the leaves: the frame that the child in `slot` had when it was last
    /// visited.
    #[inline]
    pub fn hint(&self, slot: usize) -> FrameId {
        self.hints[slot]
    }

    /// Remembers the frame of the child in `slot`.
    #[inline]
    pub fn set_hint(&mut self, slot: usize, hint: FrameId) {
        self.hints[slot] = hint;
    }

    /// Gives the cell in `slot` another key, which does not change the order.
    pub fn set_key(&mut self, slot: usize, key: Key) {
        self.keys[slot] = key;
    }

    /// Empties the index.
    pub fn clear_index(&mut self) {
        self.count = 0;
        self.live = 0;
        self.level = NOT_A_NODE;
    }

    /// Adds the cell at `at` of `len` bytes to the index.
    #[inline]
    pub fn insert_slot(&mut self, slot: usize, key: Key, at: usize, len: usize) {
        let count = self.count as usize;
        if slot < count {
            self.keys.copy_within(slot..count, slot + 1);
            self.cells.copy_within(slot..count, slot + 1);
            if self.level > 0 {
                self.hints.copy_within(slot..count, slot + 1);
            }
        }
        self.keys[slot] = key;
        self.cells[slot] = at as u16;
        self.hints[slot] = FrameId::MAX;
        self.count += 1;
        self.live += len as u32;
    }

    /// Takes a cell of `len` bytes out of the index.
    pub fn remove_slot(&mut self, slot: usize, len: usize) {
        let count = self.count as usize;
        self.keys.copy_within(slot + 1..count, slot);
        self.cells.copy_within(slot + 1..count, slot);
        if self.level > 0 {
            self.hints.copy_within(slot + 1..count, slot);
        }
        self.count -= 1;
        self.live -= len as u32;
    }
}

/// The frames.
#[derive(Debug)]
pub struct Cache {
    /// The frames, in pieces that never move. A frame is one piece of memory and many lie side by
    /// side, so that the host can back them with huge pages.
    slabs: Vec<Vec<Frame>>,
    slab_len: usize,
    count: usize,
    new_slab: Option<fn(*const u8, usize)>,
    by_block: HashMap<u64, FrameId>,
    free: Vec<FrameId>,
    capacity: usize,
    hand: usize,
    /// Frames that are not clean.
    dirty: usize,
    /// The blocks of the frames that became dirty since the last checkpoint began.
    changed: Vec<u64>,
    /// The captured content of frames that have changed or gone since.
    copies: HashMap<u64, Box<Block>>,
    operation: u64,
    versions: u64,
    /// Grows whenever a way through the tree may have changed: a frame came or went, or the cells
    /// of a node above the leaves did.
    pub shape: u64,
}

impl Cache {
    /// The fewest frames that let every operation run.
    pub const CAPACITY_MIN: usize = 64;

    /// A cache that tries to stay below `bytes` of memory. `new_slab` is told of each piece of
    /// memory before it is used.
    pub fn new(bytes: usize, new_slab: Option<fn(*const u8, usize)>) -> Cache {
        const SLAB_LEN_MAX: usize = 2048;
        let capacity = (bytes / size_of::<Frame>()).max(Self::CAPACITY_MIN);
        Cache {
            slabs: Vec::new(),
            slab_len: capacity.min(SLAB_LEN_MAX).next_power_of_two(),
            count: 0,
            new_slab,
            by_block: HashMap::new(),
            free: Vec::new(),
            capacity,
            hand: 0,
            dirty: 0,
            changed: Vec::new(),
            copies: HashMap::new(),
            operation: 1,
            versions: 0,
            shape: 0,
        }
    }

    /// Begins an operation: frames touched before may be evicted.
    #[inline]
    pub fn begin_operation(&mut self) {
        self.operation += 1;
    }

    /// The running operation.
    #[inline]
    pub fn operation(&self) -> u64 {
        self.operation
    }

    /// Keeps a frame for the running operation.
    #[inline]
    pub fn touch(&mut self, id: FrameId) {
        let operation = self.operation;
        let frame = self.frame_mut(id);
        frame.operation = operation;
        frame.referenced = true;
    }

    /// Whether so many frames are dirty that a checkpoint must be made.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.dirty > self.capacity / 2
    }

    /// Whether half as many are.
    #[inline]
    pub fn is_half_full(&self) -> bool {
        self.dirty > self.capacity / 4
    }

    /// The frame of `block`, if it is here.
    #[inline]
    pub fn lookup(&mut self, block: u64) -> Option<FrameId> {
        let id = *self.by_block.get(&block)?;
        let operation = self.operation;
        let frame = self.frame_mut(id);
        frame.operation = operation;
        frame.referenced = true;
        Some(id)
    }

    /// The node of `block` if it is in frame `hint`, without a search.
    #[inline]
    pub fn hinted(&mut self, hint: FrameId, block: u64) -> Option<FrameId> {
        if hint as usize >= self.count {
            return None;
        }
        let operation = self.operation;
        let frame = self.frame_mut(hint);
        if frame.block.0 != block || frame.free {
            return None;
        }
        frame.operation = operation;
        frame.referenced = true;
        Some(hint)
    }

    /// A frame.
    #[inline]
    pub fn frame(&self, id: FrameId) -> &Frame {
        let id = id as usize;
        // A power of two, so this is a shift and a mask.
        &self.slabs[id >> self.slab_len.trailing_zeros()][id & (self.slab_len - 1)]
    }

    /// A frame to be changed; the caller keeps its index true.
    #[inline]
    pub fn frame_mut(&mut self, id: FrameId) -> &mut Frame {
        let id = id as usize;
        &mut self.slabs[id >> self.slab_len.trailing_zeros()][id & (self.slab_len - 1)]
    }

    /// Whether frame `id` has not changed since it had `version`.
    #[inline]
    pub fn is_current(&self, id: FrameId, version: u64) -> bool {
        (id as usize) < self.count && self.frame(id).version == version
    }

    /// Gives the frame a version that it never had.
    #[inline]
    pub fn bump(&mut self, id: FrameId) {
        self.versions += 1;
        self.frame_mut(id).version = self.versions;
    }

    /// Notes that a frame is about to change.
    #[inline]
    pub fn mark_dirty(&mut self, id: FrameId) {
        if self.frame(id).state != FrameState::Dirty {
            self.begin_changes(id);
        }
    }

    fn begin_changes(&mut self, id: FrameId) {
        let was = self.enter_state(id, FrameState::Dirty);
        self.dirty += usize::from(was == FrameState::Clean);
        self.changed.push(self.frame(id).block.0);
    }

    /// Gives a frame another state, and copies it if it is captured. Returns the state it had.
    fn enter_state(&mut self, id: FrameId, state: FrameState) -> FrameState {
        let frame = self.frame_mut(id);
        let was = core::mem::replace(&mut frame.state, state);
        if was == FrameState::Captured {
            let (block, copy) = (frame.block.0, Box::new(frame.data));
            self.copies.insert(block, copy);
        }
        was
    }

    /// How many blocks the next checkpoint has to write, or more.
    #[inline]
    pub fn changed(&self) -> usize {
        self.changed.len()
    }

    /// How many frames are not clean.
    pub fn dirty(&self) -> usize {
        self.dirty
    }

    /// Takes the blocks that have changed since this was last called, for a checkpoint to capture.
    pub fn take_changed(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.changed)
    }

    /// Captures the frame of `block` for a checkpoint, sealed. `None` if it has gone, or is
    /// captured.
    pub fn capture(&mut self, block: u64) -> Option<&Block> {
        let id = *self.by_block.get(&block)?;
        let frame = self.frame_mut(id);
        if frame.state != FrameState::Dirty {
            return None;
        }
        frame.state = FrameState::Captured;
        frame.raised = false;
        layout::seal(&mut frame.data);
        Some(&frame.data)
    }

    /// The content of `block` when it was captured, if it was.
    pub fn captured(&self, block: u64) -> Option<&Block> {
        if let Some(copy) = self.copies.get(&block) {
            return Some(copy);
        }
        let frame = self.frame(*self.by_block.get(&block)?);
        (frame.state == FrameState::Captured).then_some(&frame.data)
    }

    /// Notes that the captured content of `block` is home.
    pub fn written(&mut self, block: u64) {
        if self.copies.remove(&block).is_some() {
            return;
        }
        if let Some(&id) = self.by_block.get(&block)
            && self.frame(id).state == FrameState::Captured
        {
            self.frame_mut(id).state = FrameState::Clean;
            self.dirty -= 1;
        }
    }

    /// Puts `data` as the content of `block`, which is not here yet.
    pub fn insert(&mut self, block: BlockIndex, data: &Block) -> FrameId {
        self.insert_with(block, |content| content.copy_from_slice(data))
    }

    /// As [`insert`](Self::insert), the content written by `fill`.
    pub fn insert_with(&mut self, block: BlockIndex, fill: impl FnOnce(&mut Block)) -> FrameId {
        debug_assert!(!self.by_block.contains_key(&block.0));
        let id = self.vacate();
        self.versions += 1;
        self.shape += 1;
        let (versions, operation) = (self.versions, self.operation);
        let frame = self.frame_mut(id);
        frame.block = block;
        fill(&mut frame.data);
        frame.clear_index();
        frame.version = versions;
        frame.state = FrameState::Clean;
        frame.raised = false;
        frame.operation = operation;
        frame.referenced = true;
        frame.free = false;
        self.by_block.insert(block.0, id);
        id
    }

    /// Forgets the frame of `block`, dirty or not.
    pub fn remove(&mut self, block: u64) {
        if let Some(id) = self.by_block.remove(&block) {
            self.shape += 1;
            self.bump(id);
            let was = self.enter_state(id, FrameState::Clean);
            self.dirty -= usize::from(was != FrameState::Clean);
            self.frame_mut(id).free = true;
            self.free.push(id);
        }
    }

    fn vacate(&mut self) -> FrameId {
        if let Some(id) = self.free.pop() {
            return id;
        }
        if self.count >= self.capacity
            && let Some(id) = self.find_victim()
        {
            let block = self.frame(id).block;
            self.by_block.remove(&block.0);
            return id;
        }
        self.grow()
    }

    /// Adds a frame.
    fn grow(&mut self) -> FrameId {
        if self.count == self.slabs.len() * self.slab_len {
            let slab: Vec<Frame> = Vec::with_capacity(self.slab_len);
            if let Some(new_slab) = self.new_slab {
                new_slab(slab.as_ptr().cast(), self.slab_len * size_of::<Frame>());
            }
            self.slabs.push(slab);
        }
        let slab = &mut self.slabs[self.count / self.slab_len];
        slab.push(Frame {
            block: BlockIndex(0),
            version: 0,
            operation: 0,
            live: 0,
            count: 0,
            level: NOT_A_NODE,
            state: FrameState::Clean,
            raised: false,
            referenced: false,
            free: true,
            keys: [Key::MIN; CELLS_MAX],
            cells: [0; CELLS_MAX],
            hints: [FrameId::MAX; CELLS_MAX],
            data: [0; BLOCK_SIZE],
        });
        self.count += 1;
        (self.count - 1) as FrameId
    }

    /// CLOCK over the clean frames that the running operation has not touched. Looks at a bounded
    /// number of frames: if most are dirty it is cheaper to grow until the coming checkpoint.
    fn find_victim(&mut self) -> Option<FrameId> {
        for _ in 0..self.count.min(512) * 2 {
            self.hand = (self.hand + 1) % self.count;
            let operation = self.operation;
            let frame = self.frame_mut(self.hand as FrameId);
            if frame.state != FrameState::Clean || frame.operation == operation {
                continue;
            }
            if core::mem::take(&mut frame.referenced) {
                continue;
            }
            return Some(self.hand as FrameId);
        }
        None
    }
}
