//! Recovery: what a mount does with the journal that it finds.
//!
//! Each block that the journal changes is put together in memory and goes home once, at the end of a
//! pass over the journal. Where memory is too small for all of them there are several passes, each for
//! a range of blocks, so that no block is read back half-way.
//!
//! File data counts after power loss only, and never in a block that the journal has metadata for:
//! such a block was freed and became a node afterwards, and stays one until the next checkpoint.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use atoll_block::{BLOCK_SIZE, BlockIndex, Memory};

use crate::error::Result;
use crate::journal::{self, Entry, Position, ScanEnd};
use crate::layout::{self, Block, Superblock, VolumeState};
use crate::pair;
use crate::store::Store;

/// What counts of a journal.
#[derive(Clone, Copy, Debug)]
pub struct Replay {
    /// Where it begins.
    pub tail: ScanEnd,
    /// The end of the last record that counts.
    pub end: ScanEnd,
    /// Data entries count in the records that end after this.
    pub data_after: Position,
}

impl Replay {
    /// Calls `each` for every entry that counts, as far as one record can tell, with the place where
    /// its record begins. Returns the state after the last, which is `state` if none changes it.
    ///
    /// # Errors
    /// The device's, those of `each`, and [`Corruption::JournalRecord`](crate::Corruption).
    pub fn for_each<M: Memory>(
        &self,
        device: &mut M,
        sb: &Superblock,
        state: VolumeState,
        mut each: impl FnMut(&mut M, ScanEnd, &Entry<'_>) -> Result<()>,
    ) -> Result<VolumeState> {
        let mut state = state;
        let mut begin = self.tail;
        if self.end == self.tail {
            return Ok(state);
        }
        journal::scan(device, sb, self.tail, |device, record| {
            if record.end.position > self.end.position {
                return Ok(false);
            }
            if let Some(s) = record.state(sb)? {
                state = s;
            }
            let with_data = record.end.position > self.data_after;
            record.for_each(sb, |entry| match entry.data && !with_data {
                true => Ok(()),
                false => each(device, begin, &entry),
            })?;
            begin = record.end;
            Ok(record.end.position < self.end.position)
        })?;
        Ok(state)
    }
}

/// The content that a block gets from the journal.
struct Image {
    data: Box<Block>,
    metadata: bool,
}

/// The lowest blocks from one on that the journal changes, as many as there is memory for.
struct Window {
    from: u64,
    /// Blocks from here on are left to a later pass.
    limit: Option<u64>,
    capacity: usize,
    images: BTreeMap<u64, Image>,
}

impl Window {
    fn new(from: u64, capacity: usize) -> Window {
        Window { from, limit: None, capacity, images: BTreeMap::new() }
    }

    fn covers(&self, block: u64) -> bool {
        block >= self.from && self.limit.is_none_or(|limit| block < limit)
    }

    /// Puts an entry's bytes into the image of its block.
    fn apply<M: Memory>(
        &mut self,
        device: &mut M,
        sb: &Superblock,
        entry: &Entry<'_>,
    ) -> Result<()> {
        let block = entry.block.0;
        if !self.covers(block) {
            return Ok(());
        }
        let known = self.images.get(&block).map(|image| image.metadata);
        match known {
            Some(true) if entry.data => return Ok(()),
            Some(metadata) if metadata != entry.data => {}
            _ => {
                let mut data = Box::new([0; BLOCK_SIZE]);
                if !entry.init {
                    match entry.data {
                        true => device.read(entry.block, &mut data[..])?,
                        false => read_home(device, sb, entry.block, &mut data)?,
                    }
                }
                self.images.insert(block, Image { data, metadata: !entry.data });
            }
        }
        if let Some(image) = self.images.get_mut(&block) {
            entry.apply(&mut image.data);
        }
        if self.images.len() > self.capacity {
            self.limit = self.images.pop_last().map(|(block, _)| block);
        }
        Ok(())
    }

    /// Writes the images home.
    fn settle<M: Memory>(&mut self, device: &mut M, sb: &Superblock) -> Result<()> {
        for (&block, image) in &mut self.images {
            if image.metadata {
                layout::seal(&mut image.data);
            }
            if image.metadata && sb.pair_magic(BlockIndex(block)).is_some() {
                pair::write(device, &image.data)?;
                continue;
            }
            device.write(BlockIndex(block), &image.data[..])?;
        }
        Ok(())
    }
}

/// Reads a metadata block as it is at home; one that stands twice from the copy that is whole.
pub(crate) fn read_home<M: Memory>(
    device: &mut M,
    sb: &Superblock,
    block: BlockIndex,
    data: &mut Block,
) -> Result<()> {
    if let Some(magic) = sb.pair_magic(block)
        && let Ok(pair) = pair::read(device, block, magic)
    {
        *data = pair.data;
        return Ok(());
    }
    Ok(device.read(block, &mut data[..])?)
}

impl<M: Memory> Store<M> {
    /// Puts what counts of the journal in its place, `blocks_max` blocks at a time. The records have
    /// to be durable.
    ///
    /// A crash within leaves a journal that says the same, and blocks that are as it says, as they
    /// were, or a mixture by sector.
    pub(crate) fn recover(&mut self, replay: &Replay, blocks_max: usize) -> Result<()> {
        let mut from = Some(0);
        while let Some(first) = from {
            let mut window = Window::new(first, blocks_max);
            let device = &mut self.device;
            let sb = &self.superblock;
            self.state = replay.for_each(device, sb, self.state, |device, _, entry| {
                window.apply(device, sb, entry)
            })?;
            window.settle(device, sb)?;
            from = window.limit;
        }
        Ok(())
    }
}
