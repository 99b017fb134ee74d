//! Metadata as transactions: an operation changes frames through [`Store::put`], allocates and
//! frees blocks, and then commits, which appends one record to the journal, or aborts, which leaves
//! everything as it was.

use alloc::vec::Vec;

use atoll_block::{Addressable, BLOCK_SIZE, BlockError, BlockIndex};
use atoll_vfs::{Data, Ino};

use crate::bounds;
use crate::cache::{Cache, FrameId};
use crate::checkpoint::Checkpoint;
use crate::commit::Commits;
use crate::discard::Discards;
use crate::error::{Corruption, FsError, Result};
use crate::inode::{READS_REMEMBERED, Remembered};
use crate::journal::{Entry, Header, Journal};
use crate::layout::{self, Block, Superblock, VolumeState, magic, record};
use crate::node;
use crate::overlay::Overlay;
use crate::project::{Charge, Project};
use crate::report::{Listener, MountNote};
use crate::space::{Allocator, Run};
use crate::tree::Fingers;

/// A byte range of a frame that the running transaction changed.
#[derive(Clone, Copy, Debug)]
struct Change {
    frame: FrameId,
    offset: u16,
    len: u16,
    /// Where the old bytes are; a fresh block has none.
    undo: u32,
    init: bool,
}

/// Blocks that the running transaction freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    pub start: u64,
    pub len: u64,
    pub metadata: bool,
}

/// The changes of the running transaction.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    changes: Vec<Change>,
    undo: Vec<u8>,
    pub allocated: Vec<(u64, u64)>,
    pub freed: Vec<Freed>,
    /// Groups whose bit in the summary has changed, with the old bit.
    pub refilled: Vec<(u64, bool)>,
    state: VolumeState,
    /// The bytes of the entries in the record, those for freed blocks included.
    pub bytes: usize,
    /// May take the reserved blocks, and what a quota does not leave.
    pub frees_space: bool,
    /// The changes of what projects take.
    pub charges: Vec<Charge>,
}

/// The volume below the tree: device, journal, cached metadata blocks, free space.
#[derive(Debug)]
pub struct Store<M> {
    pub(crate) device: M,
    pub(crate) superblock: Superblock,
    pub(crate) state: VolumeState,
    pub(crate) cache: Cache,
    /// The frame that the root had when it was last visited.
    pub(crate) root_hint: FrameId,
    /// The ways through the tree that were gone last.
    pub(crate) fingers: Fingers,
    /// Where inode records are that were read last.
    pub(crate) last_read: [(Ino, Remembered); READS_REMEMBERED],
    pub(crate) journal: Journal,
    pub(crate) allocator: Allocator,
    pub(crate) discards: Discards,
    pub(crate) transaction: Transaction,
    /// The state of commits.
    pub(crate) commits: Commits,
    /// The volume's projects, by number.
    pub(crate) projects: Vec<Project>,
    /// The checkpoint that is under way.
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Counts the flushes that checkpoints have waited for.
    pub(crate) checkpoint_flushes: u64,
    /// The notes since the mount began.
    pub(crate) notes: Vec<MountNote>,
    /// The listener to which they are told.
    pub(crate) listener: Option<&'static dyn Listener>,
    /// The journal's changes, if it was not replayed.
    pub(crate) overlay: Option<Overlay>,
}

impl<M: Addressable> Store<M> {
    /// A store whose journal ends where `journal` says.
    pub(crate) fn new(
        device: M,
        superblock: Superblock,
        header: &Header,
        journal: Journal,
        state: VolumeState,
        cache: Cache,
        read_only: bool,
    ) -> Self {
        let mut allocator = Allocator::new();
        allocator.data_hint = superblock.group_start;
        allocator.metadata_hint = superblock.group_start;
        Store {
            cache,
            root_hint: FrameId::MAX,
            fingers: Fingers::new(),
            last_read: [(Ino(0), Remembered::default()); READS_REMEMBERED],
            allocator,
            journal,
            state,
            discards: Discards::default(),
            transaction: Transaction::default(),
            commits: Commits::new(header, read_only),
            projects: Vec::new(),
            checkpoint: None,
            checkpoint_flushes: 0,
            notes: Vec::new(),
            listener: None,
            overlay: None,
            device,
            superblock,
        }
    }

    /// Takes note of something that was found, and tells it, once.
    #[cold]
    pub(crate) fn note(&mut self, note: MountNote) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
            if let Some(listener) = self.listener {
                listener.tell(&note);
            }
        }
    }

    // ---- frames ----

    /// The frame of the tree node in `block`, which must have `level`.
    #[inline]
    pub fn node(&mut self, block: u64, level: u32) -> Result<FrameId> {
        if let Some(id) = self.cache.lookup(block) {
            // A map block, or a node of another level, has no place here.
            if u32::from(self.cache.frame(id).level) != level {
                return Err(Corruption::Node.into());
            }
            return Ok(id);
        }
        self.load_node(block, level)
    }

    #[cold]
    fn load_node(&mut self, block: u64, level: u32) -> Result<FrameId> {
        if !self.superblock.holds(block, 1) {
            return Err(Corruption::Node.into());
        }
        let data = self.load_block(block, magic::NODE)?;
        if node::level(&data) != level {
            return Err(Corruption::Node.into());
        }
        let id = self.cache.insert(BlockIndex(block), &data);
        let superblock = &self.superblock;
        if let Err(e) = node::index(self.cache.frame_mut(id), |child| superblock.holds(child, 1)) {
            self.cache.remove(block);
            return Err(e);
        }
        Ok(id)
    }

    fn load_block(&mut self, block: u64, magic: u32) -> Result<Block> {
        let mut data = [0; BLOCK_SIZE];
        self.device.read(BlockIndex(block), &mut data)?;
        if let Some(overlay) = &self.overlay {
            overlay.patch(&mut self.device, &self.superblock, block, &mut data)?;
        }
        layout::verify(&data, BlockIndex(block), magic)?;
        Ok(data)
    }

    /// Changes bytes of a frame within the transaction.
    #[inline]
    pub fn put(&mut self, id: FrameId, offset: usize, bytes: &[u8]) {
        self.put_with(id, offset, bytes.len(), |place| place.copy_from_slice(bytes));
    }

    /// As [`put`](Self::put), the new bytes written by `fill`.
    #[inline]
    pub fn put_with(
        &mut self,
        id: FrameId,
        offset: usize,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) {
        self.cache.mark_dirty(id);
        let transaction = &mut self.transaction;
        let frame = self.cache.frame_mut(id);
        let place = &mut frame.data[offset..offset + len];
        transaction.changes.push(Change {
            frame: id,
            offset: offset as u16,
            len: len as u16,
            undo: transaction.undo.len() as u32,
            init: false,
        });
        transaction.bytes += record::ENTRY_LEN + len;
        transaction.undo.extend_from_slice(place);
        fill(place);
    }

    /// A frame for the fresh block `block`, which begins as an empty metadata block of `magic`.
    pub fn init_frame(&mut self, block: u64, magic: u32) -> Result<FrameId> {
        // The block is free on every state that a crash can bring back, so writing it is harmless;
        // a host that has no room for it says so now, and not at a checkpoint.
        self.device.store_zeros(BlockIndex(block).byte_offset(), BLOCK_SIZE as u64)?;
        self.cache.remove(block);
        let index = BlockIndex(block);
        let id = self.cache.insert_with(index, |data| layout::init_block(data, index, magic));
        self.cache.mark_dirty(id);
        self.transaction.changes.push(Change {
            frame: id,
            offset: 0,
            len: node::HEADER_LEN as u16,
            undo: 0,
            init: true,
        });
        self.transaction.bytes += record::ENTRY_LEN + node::HEADER_LEN;
        Ok(id)
    }

    // ---- transactions ----

    /// Runs `body` as one transaction: all of it, or nothing and an error. If the volume is full,
    /// makes the commit or checkpoint that returns blocks and tries again; if the host is full,
    /// looks for blocks that have storage.
    #[inline]
    pub fn transact<T>(
        &mut self,
        frees_space: bool,
        mut body: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.check_changeable()?;
        if self.must_checkpoint() {
            self.make_room()?;
        }
        let mut tries = 0;
        loop {
            self.begin(frees_space);
            let result = match body(self) {
                Ok(value) => self.end().map(|()| value),
                Err(e) => Err(e),
            };
            match result {
                Ok(value) => return Ok(value),
                Err(e) => {
                    let allocated = self.transaction.allocated.last().copied();
                    self.abort();
                    if e == FsError::Device(BlockError::NoSpace)
                        && self.find_storage(allocated, &mut tries)?
                    {
                        continue;
                    }
                    if e != FsError::Full {
                        return Err(e);
                    }
                    if self.allocator.has_pending() {
                        self.commit()?;
                    } else if self.allocator.has_held() {
                        self.checkpoint()?;
                    } else {
                        return Err(e);
                    }
                }
            }
        }
    }

    #[inline]
    fn begin(&mut self, frees_space: bool) {
        self.cache.begin_operation();
        let t = &mut self.transaction;
        debug_assert!(t.changes.is_empty());
        t.state = self.state;
        t.bytes = 0;
        t.frees_space = frees_space;
    }

    /// Whether the running transaction has room in its record for a further step of an operation
    /// that can be cut into several transactions, and for the changes that may follow the last
    /// step.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.transaction.bytes <= bounds::steps_max(self.journal.record_max())
    }

    fn end(&mut self) -> Result<()> {
        self.put_charges()?;
        self.clear_freed_bits()?;
        let t = &mut self.transaction;
        let state = (t.state != self.state).then_some(&self.state);
        if !t.changes.is_empty() || state.is_some() {
            self.journal.begin(0, state);
            for change in &t.changes {
                let frame = self.cache.frame(change.frame);
                let from = change.offset as usize;
                self.journal.add(&Entry {
                    block: frame.block,
                    offset: from,
                    bytes: &frame.data[from..from + change.len as usize],
                    init: change.init,
                    data: false,
                });
            }
            self.journal.append(&mut self.device)?;
        }
        // From here on nothing can fail.
        t.changes.clear();
        // Most of these lists are empty most of the time, which `pop` finds sooner than `drain`.
        while let Some(charge) = t.charges.pop() {
            charge.settle(&mut self.projects);
        }
        t.undo.clear();
        t.refilled.clear();
        while let Some((start, len)) = t.allocated.pop() {
            let (group, first) = self.superblock.locate(start);
            self.allocator.allocated(group, Run { first, len: len as usize });
        }
        while let Some(freed) = t.freed.pop() {
            if freed.metadata {
                self.cache.remove(freed.start);
            } else {
                self.commits.dirty_data.forget(freed.start, freed.len);
            }
            let (group, first) = self.superblock.locate(freed.start);
            let run = Run { first, len: freed.len as usize };
            self.discards.note(group, run);
            if let Some(at) = self.allocator.freed(group, run, freed.metadata) {
                let block = self.superblock.map_block(group).0 + at as u64;
                self.allocator.data_hint = self.allocator.data_hint.min(block);
            }
        }
        Ok(())
    }

    #[cold]
    fn abort(&mut self) {
        let mut t = core::mem::take(&mut self.transaction);
        for change in t.changes.drain(..).rev() {
            if change.init {
                let block = self.cache.frame(change.frame).block.0;
                self.cache.remove(block);
                continue;
            }
            let at = change.offset as usize;
            let len = change.len as usize;
            let undo = change.undo as usize;
            let frame = self.cache.frame_mut(change.frame);
            frame.data[at..at + len].copy_from_slice(&t.undo[undo..undo + len]);
            // Its generation may have been raised within.
            frame.raised = false;
            // Rebuilt once for each change: aborts are rare.
            if layout::get32(&self.cache.frame(change.frame).data[..], layout::common::MAGIC)
                == magic::NODE
            {
                self.cache.bump(change.frame);
                let rebuilt = node::index(self.cache.frame_mut(change.frame), |_| true);
                // Between two changes of one edit a node may be half-way; it is whole at the last.
                let _ = rebuilt;
            }
        }
        for (start, len) in t.allocated.drain(..) {
            // No file's any more: a commit that carried what was stored there would have recovery
            // write it over what the blocks come to hold.
            self.commits.dirty_data.forget(start, len);
            self.allocator.data_hint = self.allocator.data_hint.min(start);
        }
        for (group, full) in t.refilled.drain(..).rev() {
            self.allocator.set_full(group, full);
        }
        t.undo.clear();
        t.freed.clear();
        t.charges.clear();
        self.state = t.state;
        self.cache.shape += 1;
        self.transaction = t;
    }

    // ---- file data ----

    /// Copies file data from the device.
    #[inline]
    pub fn load_data(&mut self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.device.load(at, buf)?;
        match &self.overlay {
            None => Ok(()),
            Some(overlay) => overlay.patch_data(&mut self.device, &self.superblock, at, buf),
        }
    }

    /// Copies file data to the device.
    #[inline]
    pub fn store_data(&mut self, at: u64, data: &[u8]) -> Result<()> {
        self.device.store(at, data)?;
        self.commits.dirty_data.note(at, data.len() as u64);
        Ok(())
    }

    /// The same for data in several pieces.
    #[inline]
    pub fn store_pieces(&mut self, at: u64, data: Data<'_>) -> Result<()> {
        if let Some(data) = data.one() {
            return self.store_data(at, data);
        }
        let pieces: Vec<&[u8]> = data.iter().collect();
        let stored = self.device.store_pieces(at, &pieces);
        // Some may have been stored where not all were.
        self.commits.dirty_data.note(at, data.len() as u64);
        Ok(stored?)
    }

    /// The same with so many zeros before it and behind it, less than a block each.
    pub fn store_padded(
        &mut self,
        at: u64,
        before: usize,
        data: Data<'_>,
        after: usize,
    ) -> Result<()> {
        static ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];
        if before == 0 && after == 0 {
            return self.store_pieces(at, data);
        }
        let (before, after) = (&ZEROS[..before], &ZEROS[..after]);
        let len = before.len() + data.len() + after.len();
        let stored = match data.one() {
            Some(data) if before.is_empty() => self.device.store_pieces(at, &[data, after]),
            Some(data) if after.is_empty() => self.device.store_pieces(at, &[before, data]),
            Some(data) => self.device.store_pieces(at, &[before, data, after]),
            None => {
                let pieces = [before].into_iter().chain(data.iter()).chain([after]);
                let pieces = pieces.filter(|piece| !piece.is_empty());
                self.device.store_pieces(at, &pieces.collect::<Vec<_>>())
            }
        };
        // Some may have been stored where not all were.
        self.commits.dirty_data.note(at, len as u64);
        Ok(stored?)
    }

    /// Zeroes file data on the device.
    pub fn store_data_zeros(&mut self, at: u64, len: u64) -> Result<()> {
        self.device.store_zeros(at, len)?;
        self.commits.dirty_data.note(at, len);
        Ok(())
    }
}
