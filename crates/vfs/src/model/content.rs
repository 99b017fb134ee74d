//! The content of a regular file: a length and a sparse map of blocks.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::ops::Range;

use super::FileContent;
use crate::errno::{Errno, Result};
use crate::types::SeekTo;

/// Bytes in a block, the granularity of holes.
pub(super) const BLOCK: u64 = 4096;
/// Blocks, counted from a multiple of so many, that may be allocated together.
const WINDOW: u64 = 16;

/// A block that takes storage. A block that is not in the map is a hole.
#[derive(Clone, Debug)]
enum Block {
    /// Written. Shared between clones of the model until one of them writes again.
    Data(Arc<[u8; BLOCK as usize]>),
    /// Allocated or zeroed, and not written since: reads as zeros. Whether SEEK_DATA stops here is
    /// the file system's choice.
    Zero,
}

/// A file's length and bytes. Bytes of a `Data` block past the length are always zero, so that
/// growing needs no work.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    size: u64,
    blocks: BTreeMap<u64, Block>,
    /// The [`WINDOW`]s that have been written into: other blocks of theirs may be there still when
    /// those that were written are not.
    written: BTreeSet<u64>,
}

/// The part of block `index` that `range` covers, relative to the block.
fn within(index: u64, range: &Range<u64>) -> Range<usize> {
    let start = index * BLOCK;
    let from = range.start.max(start) - start;
    let to = range.end.min(start + BLOCK) - start;
    from as usize..to as usize
}

/// The blocks that `range`, not empty, touches.
fn touched(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK..range.end.div_ceil(BLOCK)
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The number of blocks that take storage.
    pub(super) fn allocated(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        if offset >= self.size {
            return 0;
        }
        let len = (self.size - offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        buf.fill(0);
        let range = offset..offset + len as u64;
        if range.is_empty() {
            return 0;
        }
        for (&index, block) in self.blocks.range(touched(&range)) {
            if let Block::Data(bytes) = block {
                let part = within(index, &range);
                let at = (index * BLOCK + part.start as u64 - offset) as usize;
                buf[at..at + part.len()].copy_from_slice(&bytes[part]);
            }
        }
        len
    }

    /// Stores `data` at `offset`; the caller has checked that the end is in bounds.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let range = offset..offset + data.len() as u64;
        if range.is_empty() {
            return;
        }
        for index in touched(&range) {
            let part = within(index, &range);
            let at = (index * BLOCK + part.start as u64 - offset) as usize;
            let bytes = self.bytes_mut(index);
            let len = part.len();
            bytes[part].copy_from_slice(&data[at..at + len]);
        }
        self.size = self.size.max(range.end);
    }

    /// Takes the bytes `from` here for those at `offset`, which do not overlap them. Blocks that
    /// are copied from none, or from zeroed ones, may be holes in the copy.
    pub(super) fn take(&mut self, offset: u64, source: &Content, from: Range<u64>) {
        let mut at = from.start;
        while at < from.end {
            let to = offset + (at - from.start);
            // To the next end of a block, here or there.
            let n = (BLOCK - at % BLOCK).min(BLOCK - to % BLOCK).min(from.end - at);
            match source.blocks.get(&(at / BLOCK)) {
                Some(Block::Data(bytes)) => {
                    let begin = (at % BLOCK) as usize;
                    self.write(to, &bytes[begin..begin + n as usize]);
                }
                _ => match self.blocks.get_mut(&(to / BLOCK)) {
                    Some(Block::Data(bytes)) => {
                        let begin = (to % BLOCK) as usize;
                        Arc::make_mut(bytes)[begin..begin + n as usize].fill(0);
                    }
                    _ => {
                        self.written.insert(to / BLOCK / WINDOW);
                        self.blocks.entry(to / BLOCK).or_insert(Block::Zero);
                    }
                },
            }
            self.size = self.size.max(to + n);
            at += n;
        }
    }

    /// All of it, as snapshots hold it.
    pub(super) fn to_file_content(&self) -> FileContent {
        let blocks = self.blocks.iter().filter_map(|(&index, block)| match block {
            Block::Data(bytes) if bytes.iter().any(|&byte| byte != 0) => {
                Some((index, bytes.to_vec()))
            }
            _ => None,
        });
        FileContent { size: self.size, blocks: blocks.collect() }
    }

    /// The bytes of a block, made `Data` if it was not.
    fn bytes_mut(&mut self, index: u64) -> &mut [u8; BLOCK as usize] {
        self.written.insert(index / WINDOW);
        let block = self.blocks.entry(index).or_insert(Block::Zero);
        if matches!(block, Block::Zero) {
            *block = Block::Data(Arc::new([0; BLOCK as usize]));
        }
        match block {
            Block::Data(bytes) => Arc::make_mut(bytes),
            Block::Zero => unreachable!("made data above"),
        }
    }

    pub(super) fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.blocks.split_off(&size.div_ceil(BLOCK));
            self.written.split_off(&size.div_ceil(BLOCK * WINDOW));
            let rest = (size % BLOCK) as usize;
            if rest != 0
                && let Some(Block::Data(bytes)) = self.blocks.get_mut(&(size / BLOCK))
            {
                Arc::make_mut(bytes)[rest..].fill(0);
            }
        }
        self.size = size;
    }

    /// Gives every hole in `range` storage; the length stays.
    pub(super) fn allocate(&mut self, range: Range<u64>) {
        for index in touched(&range) {
            self.blocks.entry(index).or_insert(Block::Zero);
        }
    }

    /// Takes the storage of whole blocks in `range` away and zeroes the rest of it.
    pub(super) fn punch(&mut self, range: Range<u64>) {
        let window = BLOCK * WINDOW;
        let gone = range.start.div_ceil(window)..range.end / window;
        self.written.retain(|index| !gone.contains(index));
        self.zero(&range, true);
    }

    /// Makes `range` zeros that take storage.
    pub(super) fn zero_allocated(&mut self, range: Range<u64>) {
        self.allocate(range.clone());
        self.zero(&range, false);
    }

    fn zero(&mut self, range: &Range<u64>, free: bool) {
        let indices: alloc::vec::Vec<u64> =
            self.blocks.range(touched(range)).map(|(&index, _)| index).collect();
        for index in indices {
            let part = within(index, range);
            let start = index * BLOCK;
            if part.len() as u64 == BLOCK && free {
                self.blocks.remove(&index);
            } else if part.start == 0 && start + part.end as u64 >= self.size.min(start + BLOCK) {
                // Nothing but zeros is left of the block before the end of file.
                self.blocks.insert(index, Block::Zero);
            } else if let Some(Block::Data(bytes)) = self.blocks.get_mut(&index) {
                Arc::make_mut(bytes)[part].fill(0);
            }
        }
    }

    /// SEEK_DATA and SEEK_HOLE, with zeroed blocks as holes.
    pub(super) fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        if offset >= self.size {
            return Err(Errno::ENXIO);
        }
        let first = offset / BLOCK;
        let data = self
            .blocks
            .range(first..)
            .filter(|(_, b)| matches!(b, Block::Data(_)))
            .map(|(&i, _)| i);
        match to {
            SeekTo::Data => {
                for index in data {
                    if index * BLOCK < self.size {
                        return Ok(offset.max(index * BLOCK));
                    }
                }
                Err(Errno::ENXIO)
            }
            SeekTo::Hole => {
                let mut next = first;
                for index in data {
                    if index != next {
                        break;
                    }
                    next += 1;
                }
                Ok(offset.max(next * BLOCK).min(self.size))
            }
        }
    }

    /// Whether `answer` is a right one for a seek, given that a `Zero` block may count as either,
    /// and so may a hole that has, or had, a block beside it in the same [`WINDOW`].
    pub(super) fn seek_admits(&self, offset: u64, to: SeekTo, answer: Result<u64>) -> bool {
        if offset >= self.size {
            return answer == Err(Errno::ENXIO);
        }
        let end = self.size.div_ceil(BLOCK);
        let first = offset / BLOCK;
        match (to, answer) {
            (SeekTo::Data, Err(Errno::ENXIO)) => !self.any_data(first..end),
            (SeekTo::Data, Ok(at)) => {
                let index = at / BLOCK;
                at < self.size
                    && at == offset.max(index * BLOCK)
                    && self.may_be_stored(index)
                    && !self.any_data(first..index)
            }
            (SeekTo::Hole, Ok(at)) => {
                let index = at / BLOCK;
                let is_end = at == self.size;
                // All blocks that were passed over take storage.
                let passed = first..if is_end { end } else { index };
                let full = passed.clone().all(|index| self.may_be_stored(index));
                full && (is_end
                    || at < self.size
                        && at == offset.max(index * BLOCK)
                        && !matches!(self.blocks.get(&index), Some(Block::Data(_))))
            }
            _ => false,
        }
    }

    fn may_be_stored(&self, index: u64) -> bool {
        let first = index / WINDOW * WINDOW;
        self.written.contains(&(index / WINDOW))
            || self.blocks.range(first..first + WINDOW).next().is_some()
    }

    fn any_data(&self, range: Range<u64>) -> bool {
        !range.is_empty() && self.blocks.range(range).any(|(_, b)| matches!(b, Block::Data(_)))
    }
}
