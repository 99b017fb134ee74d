//! Recovery: a mount applies the journal that it finds.
//!
//! Each block that the journal changes is put together in memory and goes home once, at the end of
//! a pass over the journal. Where memory is too small for all of them there are several passes,
//! each for a range of blocks, so that no block is read back half-way.
//!
//! File data counts after power loss only, and never in a block that the journal has metadata for:
//! such a block was freed and became a node afterwards, and stays one until the next checkpoint.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use atoll_block::{Addressable, BLOCK_SIZE, BlockIndex};

use crate::error::{Corruption, Result};
use crate::journal::{self, Entry, Position, ScanEnd};
use crate::layout::{self, Block, Superblock, VolumeState, common, get32, get64, magic, map};
use crate::pair;
use crate::store::Store;

/// Blocks that are written home in one call.
const BATCH: usize = 64;

/// The part of a journal that counts.
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
    /// Calls `each` for every change that counts, as far as one record can tell, with the place
    /// where its record begins. Returns the state after the last, which is `state` if none changes
    /// it.
    ///
    /// # Errors
    /// The device's, those of `each`, and [`Corruption::JournalRecord`](crate::Corruption).
    pub fn for_each<M: Addressable>(
        &self,
        device: &mut M,
        sb: &Superblock,
        state: VolumeState,
        mut each: impl FnMut(&mut M, ScanEnd, &Change<'_>) -> Result<()>,
    ) -> Result<VolumeState> {
        let state = self.for_records(device, sb, state, &mut each)?;
        if self.end != self.tail {
            // The blocks that an earlier recovery was about to write home are listed behind.
            journal::scan(device, sb, self.end, |device, record| {
                for (block, checksum) in record.home(self.end.position) {
                    each(device, self.end, &Change::Home(block, checksum))?;
                }
                Ok(true)
            })?;
        }
        Ok(state)
    }

    /// As [`for_each`](Self::for_each), without the lists that a recovery wrote behind the records.
    ///
    /// # Errors
    /// As there.
    pub fn for_records<M: Addressable>(
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
            Ok(record.end.position < self.end.position)
        })?;
        Ok(state)
    }
}

/// The change that a record makes to a block, or its entry in a list.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Bytes of it.
    Entry(Entry<'a>),
    /// It was about to be written home, with this checksum.
    Home(u64, u64),
}

impl Change<'_> {
    /// The block.
    pub fn block(&self) -> u64 {
        match self {
            Change::Entry(entry) => entry.block.0,
            Change::Home(block, _) => *block,
        }
    }
}

/// Whether `b` is a whole node or map block, as it was written to `block`.
pub fn is_sound(b: &Block, block: u64) -> bool {
    let magic = get32(b, common::MAGIC);
    matches!(magic, magic::NODE | magic::MAP | magic::SUMMARY)
        && layout::verify(b, BlockIndex(block), magic).is_ok()
}

/// Whether a block with the journal's changes applied can be believed.
///
/// The block at home is whole, or power was lost while it was being written home: then it is a
/// mixture, by sector, of old and new content, and the journal's changes make it the new content,
/// with the listed checksum. Whole or a mixture, a block that was about to be written home has the
/// checksum in some list once all records before that list are applied; if it never has, it is
/// damaged, or an older content.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    sound: bool,
    /// Whether a list has named the block, and the block then had that checksum.
    matched: Option<bool>,
    /// The checksum in the last list.
    last: Option<u64>,
}

impl Proof {
    /// For a block whose checksum at home is right, or not, as `sound` says.
    pub fn new(sound: bool) -> Proof {
        Proof { sound, matched: None, last: None }
    }

    /// Notes that the block begins anew.
    pub fn init(&mut self) {
        *self = Proof::new(true);
    }

    /// Notes that the block, as it is now, was about to be written home with `checksum`. Seals it.
    pub fn listed(&mut self, b: &mut Block, checksum: u64) {
        layout::seal(b);
        let matches = checksum == get64(b, common::CHECKSUM);
        self.matched = Some(self.matched == Some(true) || matches);
        self.last = Some(checksum);
    }

    /// Checks the block when everything is in place, and seals it. Returns whether it has the
    /// checksum in the last list.
    ///
    /// # Errors
    /// [`Corruption::Checksum`].
    pub fn verify(&self, b: &mut Block) -> Result<bool> {
        layout::seal(b);
        if !self.matched.unwrap_or(self.sound) {
            return Err(Corruption::Checksum.into());
        }
        Ok(self.last == Some(get64(b, common::CHECKSUM)))
    }
}

/// The content that a block gets from the journal.
struct Image {
    data: Box<Block>,
    metadata: bool,
    proof: Proof,
    /// It has the checksum in the last list.
    listed: bool,
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
    fn apply<M: Addressable>(
        &mut self,
        device: &mut M,
        sb: &Superblock,
        change: &Change<'_>,
    ) -> Result<()> {
        let entry = match change {
            Change::Entry(entry) => entry,
            Change::Home(block, checksum) => {
                if let Some(image) = self.images.get_mut(block)
                    && image.metadata
                {
                    image.proof.listed(&mut image.data, *checksum);
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
                let proof = Proof::new(entry.init || entry.data || is_sound(&data, block));
                let image = Image { data, metadata: !entry.data, proof, listed: false };
                self.images.insert(block, image);
            }
        }
        if let Some(image) = self.images.get_mut(&block) {
            if entry.init {
                image.proof.init();
            }
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
            if !image.metadata {
                return true;
            }
            match image.proof.verify(&mut image.data) {
                Ok(listed) => image.listed = listed,
                Err(_) => damaged.push(block),
            }
            damaged.last() != Some(&block)
        });
    }

    /// The blocks of metadata that are not listed, each with its checksum.
    fn unlisted(&self) -> impl Iterator<Item = (u64, u64)> {
        self.images
            .iter()
            .filter(|(_, image)| image.metadata && !image.listed)
            .map(|(&block, image)| (block, get64(&image.data[..], common::CHECKSUM)))
    }

    /// Writes the images home.
    fn settle<M: Addressable>(&mut self, device: &mut M, sb: &Superblock) -> Result<()> {
        let mut writes: Vec<(BlockIndex, &[u8])> = Vec::with_capacity(BATCH);
        for (&block, image) in &self.images {
            let index = BlockIndex(block);
            if image.metadata && sb.pair_magic(index).is_some() {
                write_home(device, sb, index, &image.data)?;
                continue;
            }
            writes.push((index, &image.data[..]));
            if writes.len() == BATCH {
                device.write_all(&writes)?;
                writes.clear();
            }
        }
        Ok(device.write_all(&writes)?)
    }
}

/// Writes a metadata block home, sealed.
pub(crate) fn write_home<M: Addressable>(
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
pub(crate) fn read_home<M: Addressable>(
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

impl<M: Addressable> Store<M> {
    /// Applies the records that count, `blocks_max` blocks at a time. The records have to be
    /// durable.
    ///
    /// A crash within leaves a journal that says the same, and blocks that are as it says, as they
    /// were, or a mixture by sector; the journal lists those.
    ///
    /// # Errors
    /// The device's; [`Corruption::Checksum`] if a block is damaged that the journal changes, and
    /// is in use. The journal is as before then.
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

    /// Makes sure that nothing uses the damaged block `block`, now that the maps are home.
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
