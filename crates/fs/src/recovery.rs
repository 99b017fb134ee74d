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
use alloc::vec::Vec;

use atoll_block::{BLOCK_SIZE, BlockIndex, Memory};

use crate::error::{Corruption, Result};
use crate::journal::{self, Entry, Position, ScanEnd};
use crate::layout::{self, Block, Superblock, VolumeState, common, get32, get64, magic, map};
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
    /// Calls `each` for everything that counts, as far as one record can tell, with the place where
    /// its record begins. Returns the state after the last, which is `state` if none changes it.
    ///
    /// # Errors
    /// The device's, those of `each`, and [`Corruption::JournalRecord`](crate::Corruption).
    pub fn for_each<M: Memory>(
        &self,
        device: &mut M,
        sb: &Superblock,
        state: VolumeState,
        mut each: impl FnMut(&mut M, ScanEnd, &Change<'_>) -> Result<()>,
    ) -> Result<VolumeState> {
        let mut state = state;
        let mut begin = self.tail;
        if self.end == self.tail {
            return Ok(state);
        }
        journal::scan(device, sb, self.tail, |device, record| {
            if record.end.position > self.end.position {
                // What a recovery before this one was about to write home is listed behind.
                for (block, checksum) in record.home(self.end.position) {
                    each(device, begin, &Change::Home(block, checksum))?;
                }
                return Ok(true);
            }
            if let Some(s) = record.state(sb)? {
                state = s;
            }
            let with_data = record.end.position > self.data_after;
            record.for_each(sb, |entry| match entry.data && !with_data {
                true => Ok(()),
                false => each(device, begin, &Change::Entry(entry)),
            })?;
            for (block, checksum) in record.home(self.end.position) {
                each(device, begin, &Change::Home(block, checksum))?;
            }
            begin = record.end;
            Ok(true)
        })?;
        Ok(state)
    }
}

/// What a record says about a block.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Bytes of it.
    Entry(Entry<'a>),
    /// It was about to be written home, with this checksum.
    Home(u64, u64),
}

/// Whether `b` is a whole node or map block, as it was written to `block`.
pub fn is_sound(b: &Block, block: u64) -> bool {
    let magic = get32(b, common::MAGIC);
    matches!(magic, magic::NODE | magic::MAP | magic::SUMMARY)
        && layout::verify(b, BlockIndex(block), magic).is_ok()
}

/// Checks a block of metadata as the journal makes it of what was at home, which was `sound` or not: if
/// not, the block was being written home, and the journal has made it what it was to be. Seals it.
///
/// # Errors
/// [`Corruption::Checksum`].
pub fn verify_patched(b: &mut Block, sound: bool, listed: Option<u64>) -> Result<()> {
    layout::seal(b);
    match listed {
        Some(checksum) if checksum == get64(b, common::CHECKSUM) => Ok(()),
        None if sound => Ok(()),
        _ => Err(Corruption::Checksum.into()),
    }
}

/// The content that a block gets from the journal.
struct Image {
    data: Box<Block>,
    metadata: bool,
    /// What was at home had its checksum, or does not matter.
    sound: bool,
    /// The checksum that it was to have when it was about to be written home.
    listed: Option<u64>,
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
        change: &Change<'_>,
    ) -> Result<()> {
        let entry = match change {
            Change::Entry(entry) => entry,
            Change::Home(block, checksum) => {
                if let Some(image) = self.images.get_mut(block) {
                    image.listed = Some(*checksum);
                }
                return Ok(());
            }
        };
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
                let sound = entry.init || entry.data || is_sound(&data, block);
                let image = Image { data, metadata: !entry.data, sound, listed: None };
                self.images.insert(block, image);
            }
        }
        if let Some(image) = self.images.get_mut(&block) {
            if let Some(listed) = image.listed.take() {
                // It went home then, and was changed again.
                verify_patched(&mut image.data, image.sound, Some(listed))?;
                image.sound = true;
            }
            image.sound |= entry.init;
            entry.apply(&mut image.data);
        }
        if self.images.len() > self.capacity {
            self.limit = self.images.pop_last().map(|(block, _)| block);
        }
        Ok(())
    }

    /// Checks and seals the images. Those that are damaged are left out, and added to `damaged`.
    fn verify(&mut self, damaged: &mut Vec<u64>) {
        self.images.retain(|&block, image| {
            let checked = match image.metadata {
                true => verify_patched(&mut image.data, image.sound, image.listed),
                false => Ok(()),
            };
            if checked.is_err() {
                damaged.push(block);
            }
            checked.is_ok()
        });
    }

    /// The blocks of metadata that are not listed, each with its checksum.
    fn unlisted(&self) -> impl Iterator<Item = (u64, u64)> {
        self.images
            .iter()
            .filter(|(_, image)| image.metadata && image.listed.is_none())
            .map(|(&block, image)| (block, get64(&image.data[..], common::CHECKSUM)))
    }

    /// Writes the images home.
    fn settle<M: Memory>(&mut self, device: &mut M, sb: &Superblock) -> Result<()> {
        for (&block, image) in &self.images {
            if image.metadata {
                write_home(device, sb, BlockIndex(block), &image.data)?;
                continue;
            }
            device.write(BlockIndex(block), &image.data[..])?;
        }
        Ok(())
    }
}

/// Writes a metadata block home, sealed.
pub(crate) fn write_home<M: Memory>(
    device: &mut M,
    sb: &Superblock,
    block: BlockIndex,
    data: &Block,
) -> Result<()> {
    match sb.pair_magic(block) {
        Some(_) => pair::write(device, data),
        None => Ok(device.write(block, data)?),
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
    /// were, or a mixture by sector; the journal lists those.
    ///
    /// # Errors
    /// The device's; [`Corruption::Checksum`] if a block is damaged that the journal changes, and is in
    /// use. The journal is as before then.
    pub(crate) fn recover(&mut self, replay: &Replay, blocks_max: usize) -> Result<()> {
        let mut damaged = Vec::new();
        let mut from = Some(0);
        while let Some(first) = from {
            let mut window = Window::new(first, blocks_max);
            let device = &mut self.device;
            let sb = &self.superblock;
            self.state = replay.for_each(device, sb, self.state, |device, _, change| {
                window.apply(device, sb, change)
            })?;
            window.verify(&mut damaged);
            self.list_recovered(replay.end.position, window.unlisted())?;
            window.settle(&mut self.device, &self.superblock)?;
            from = window.limit;
        }
        for block in damaged {
            self.check_unused(block)?;
        }
        Ok(())
    }

    /// Makes sure that nothing uses a block that is damaged, now that the maps are home.
    fn check_unused(&mut self, block: u64) -> Result<()> {
        let (group, at) = self.superblock.locate(block);
        if group >= self.state.groups {
            return Ok(());
        }
        let b = pair::read(&mut self.device, self.superblock.map_block(group), magic::MAP)?.data;
        if b[map::BITS + at / 8] & 1 << (at % 8) != 0 {
            return Err(Corruption::Checksum.into());
        }
        Ok(())
    }
}
