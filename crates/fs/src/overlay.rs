//! The journal's changes, for a mount that must not write: it reads the records again whenever it
//! reads a block that they change.
//!
//! It keeps in memory which blocks those are, and for each block which parts of the journal change
//! it. That is less than the journal takes on the device, whatever is in it.

use alloc::vec::Vec;

use atoll_block::{Addressable, BLOCK_SIZE};
use hashbrown::HashMap;

use crate::error::Result;
use crate::journal::{Position, ScanEnd};
use crate::layout::{Block, Superblock, VolumeState};
use crate::recovery::{Change, Proof, Replay, is_sound};
use crate::store::Store;

/// How many parts a journal is divided into.
const PARTS_MAX: u64 = 64;

/// The parts of the journal that have entries for a block, a bit each.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    metadata: u64,
    data: u64,
}

/// An index of a journal.
#[derive(Debug)]
pub(crate) struct Overlay {
    replay: Replay,
    /// Where each part begins.
    starts: Vec<ScanEnd>,
    blocks: HashMap<u64, Parts>,
    /// The blocks that a recovery before this mount was about to write home, with the checksums
    /// that they were to have.
    listed: HashMap<u64, u64>,
}

impl Overlay {
    /// Goes through the journal. Also returns the state after it, which is `state` if nothing
    /// changes it.
    fn new<M: Addressable>(
        device: &mut M,
        sb: &Superblock,
        replay: &Replay,
        state: VolumeState,
    ) -> Result<(Overlay, VolumeState)> {
        let part_len = (replay.end.position - replay.tail.position).div_ceil(PARTS_MAX);
        let (starts, blocks, listed) = (Vec::new(), HashMap::new(), HashMap::new());
        let mut overlay = Overlay { replay: *replay, starts, blocks, listed };
        let Overlay { starts, blocks, listed, .. } = &mut overlay;
        let mut next_part: Position = 0;
        let state = replay.for_each(device, sb, state, |_, begin, change| {
            if begin.position >= replay.end.position {
                if let Change::Home(block, checksum) = change {
                    listed.insert(*block, *checksum);
                }
                return Ok(());
            }
            if begin.position >= next_part {
                starts.push(begin);
                next_part = begin.position + part_len;
            }
            let part = 1 << (starts.len() - 1);
            match change {
                Change::Entry(entry) => {
                    let parts: &mut Parts = blocks.entry(entry.block.0).or_default();
                    let kind = if entry.data { &mut parts.data } else { &mut parts.metadata };
                    *kind |= part;
                }
                // A list says nothing of a block that no record before it changes: that block was
                // as it is at home.
                Change::Home(block, _) => {
                    if let Some(parts) = blocks.get_mut(block)
                        && parts.metadata != 0
                    {
                        parts.metadata |= part;
                    }
                }
            }
            Ok(())
        })?;
        Ok((overlay, state))
    }

    /// Calls `each` for everything about `block` in some parts of the journal.
    fn for_changes<M: Addressable>(
        &self,
        device: &mut M,
        sb: &Superblock,
        block: u64,
        parts: u64,
        mut each: impl FnMut(&Change<'_>),
    ) -> Result<()> {
        for (part, &tail) in self.starts.iter().enumerate() {
            if parts & 1 << part == 0 {
                continue;
            }
            let end = self.starts.get(part + 1).copied().unwrap_or(self.replay.end);
            let replay = Replay { tail, end, ..self.replay };
            replay.for_records(device, sb, VolumeState::default(), |_, _, change| {
                if change.block() == block {
                    each(change);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Applies the journal's changes to `content`, a metadata block as it is at home. Returns
    /// whether there are any.
    ///
    /// # Errors
    /// The device's; [`Corruption::Checksum`](crate::Corruption) if it is damaged at home.
    pub fn patch<M: Addressable>(
        &self,
        device: &mut M,
        sb: &Superblock,
        block: u64,
        content: &mut Block,
    ) -> Result<bool> {
        let parts = self.blocks.get(&block).copied().unwrap_or_default().metadata;
        if parts == 0 {
            return Ok(false);
        }
        let mut proof = Proof::new(is_sound(content, block));
        let mut is_changed = false;
        self.for_changes(device, sb, block, parts, |change| match change {
            Change::Entry(entry) if entry.data => {}
            Change::Entry(entry) => {
                if entry.init {
                    proof.init();
                }
                entry.apply(content);
                is_changed = true;
            }
            Change::Home(_, checksum) if is_changed => proof.listed(content, *checksum),
            Change::Home(..) => {}
        })?;
        if let Some(&checksum) = self.listed.get(&block) {
            proof.listed(content, checksum);
        }
        proof.verify(content)?;
        Ok(true)
    }

    /// As [`patch`](Self::patch), for bytes of file data from the byte `at` of the device on.
    #[cold]
    pub fn patch_data<M: Addressable>(
        &self,
        device: &mut M,
        sb: &Superblock,
        at: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let size = BLOCK_SIZE as u64;
        let end = at + buf.len() as u64;
        for block in at / size..end.div_ceil(size) {
            let Some(parts) = self.blocks.get(&block).filter(|parts| parts.metadata == 0) else {
                continue;
            };
            self.for_changes(device, sb, block, parts.data, |change| {
                let Change::Entry(entry) = change else { return };
                let start = entry.block.byte_offset() + entry.offset as u64;
                let from = start.max(at);
                let to = (start + entry.bytes.len() as u64).min(end);
                if from < to {
                    buf[(from - at) as usize..(to - at) as usize].copy_from_slice(
                        &entry.bytes[(from - start) as usize..(to - start) as usize],
                    );
                }
            })?;
        }
        Ok(())
    }
}

impl<M: Addressable> Store<M> {
    /// Shows the volume as if the journal's records that count were applied.
    pub(crate) fn lay_over(&mut self, replay: &Replay) -> Result<()> {
        let (overlay, state) =
            Overlay::new(&mut self.device, &self.superblock, replay, self.state)?;
        self.overlay = (!overlay.blocks.is_empty()).then_some(overlay);
        self.state = state;
        Ok(())
    }
}
