//! Any block device as [`Addressable`], through a bounded cache that writes through.
//!
//! [`replacement`] says which block leaves the cache.

pub mod replacement;

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::device::{
    Addressable, BLOCK_SIZE, BlockDevice, BlockIndex, block_range, checked_blocks, store_each,
};
use crate::error::BlockError;
use crate::flusher::Flusher;
use replacement::{Directory, Frame};

/// Whole blocks in one transfer from which on they go past the cache: moving them twice would cost
/// more than a later miss, and they would drive everything else out.
const BYPASS_BLOCKS: usize = 8;
/// The most bytes of pieces that are put together to be written in one call: copying them costs
/// less than a write for each.
const TOGETHER: usize = 1 << 20;
/// Blocks that a sequential reader's miss reads in one call of the device.
const READ_AHEAD_BLOCKS: usize = 8;
/// The smallest cache in which reading ahead does not drive out what was read ahead before.
const READ_AHEAD_FRAMES: usize = 16 * READ_AHEAD_BLOCKS;
/// The fewest frames that a cache has.
const FRAMES_MIN: usize = 4;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// A block device made byte-addressable by a cache of its blocks.
///
/// A store has been written to the device when it returns, whole blocks at a time; the cache holds
/// nothing that the device does not. After an error of the device the blocks concerned leave the
/// cache, so that what is read next is what the device holds.
///
/// A store of up to 8 blocks is one write of the device, and so are pieces that are
/// stored together. One that is cut off by the end of the process has stored what the device has.
///
/// Data is taken twice, for the device and for the cache: nobody may change it meanwhile.
#[derive(Debug)]
pub struct Cached<D> {
    device: D,
    directory: Directory,
    frames: Vec<u8>,
    /// The block of the last access and its frame: found without a search, and not counted as
    /// another use, since a run of small accesses to one block says no more than one.
    last: Option<(u64, Frame)>,
    /// The block after the last one that was missed: a miss there is a sequential read.
    next_miss: u64,
    read_ahead: Vec<u8>,
}

impl<D: BlockDevice> Cached<D> {
    /// A cache before `device` that takes `bytes` of memory, itself included, but no less than a
    /// few blocks. All of it is allocated here, and touched as it comes into use.
    pub fn new(device: D, bytes: usize) -> Self {
        let count = bytes / (BLOCK_SIZE + Directory::BYTES_PER_FRAME);
        let on_device = usize::try_from(device.block_count()).unwrap_or(usize::MAX);
        let count = count.min(on_device).clamp(FRAMES_MIN, Frame::MAX as usize);
        let ahead = if count >= READ_AHEAD_FRAMES { READ_AHEAD_BLOCKS } else { 0 };
        let count = count - ahead;
        Cached {
            device,
            directory: Directory::new(count as Frame),
            frames: vec![0; count * BLOCK_SIZE],
            last: None,
            next_miss: u64::MAX,
            read_ahead: vec![0; ahead * BLOCK_SIZE],
        }
    }

    /// The device behind the cache.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device behind the cache, to be changed: what was cached of `blocks` is forgotten.
    #[cfg(test)]
    fn device_mut(&mut self, blocks: Range<u64>) -> &mut D {
        self.forget(blocks);
        &mut self.device
    }

    /// Ends caching.
    pub fn into_device(self) -> D {
        self.device
    }

    fn forget(&mut self, blocks: Range<u64>) {
        if let Some((block, _)) = self.last
            && blocks.contains(&block)
        {
            self.last = None;
        }
        self.directory.forget_range(blocks);
    }

    /// The frame of a cached block, its use counted.
    #[inline]
    fn find(&mut self, block: u64) -> Option<Frame> {
        if let Some((last, frame)) = self.last
            && last == block
        {
            return Some(frame);
        }
        let frame = self.directory.find(block)?;
        self.directory.used(frame);
        self.last = Some((block, frame));
        Some(frame)
    }

    /// A frame for a block that is not cached, to be filled at once.
    fn insert(&mut self, block: u64) -> Frame {
        let frame = self.directory.insert(block);
        self.last = Some((block, frame));
        frame
    }

    /// The frame of a block, read from the device if need be.
    fn fetch(&mut self, block: u64) -> Result<Frame, BlockError> {
        if let Some(frame) = self.find(block) {
            return Ok(frame);
        }
        let sequential = block == self.next_miss;
        self.next_miss = block + 1;
        if sequential && self.read_ahead(block) {
            return self.fetch(block);
        }
        let frame = self.insert(block);
        let bytes = &mut self.frames[frame_range(frame)];
        match self.device.read(BlockIndex(block), bytes) {
            Ok(()) => Ok(frame),
            Err(error) => {
                self.forget(block..block + 1);
                Err(error)
            }
        }
    }

    /// Reads `block` and those after it that are not cached; false if that was not possible.
    fn read_ahead(&mut self, block: u64) -> bool {
        let most = (self.read_ahead.len() / BLOCK_SIZE) as u64;
        let most = most.min(self.device.block_count() - block);
        let ahead = (0..most).take_while(|i| self.directory.find(block + i).is_none()).count();
        let bytes = &mut self.read_ahead[..ahead * BLOCK_SIZE];
        if ahead < 2 || self.device.read(BlockIndex(block), bytes).is_err() {
            return false;
        }
        // From the last to the first, so that the one that is wanted leaves last.
        for i in (0..ahead).rev() {
            let frame = self.directory.insert(block + i as u64);
            let from = &self.read_ahead[i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE];
            self.frames[frame_range(frame)].copy_from_slice(from);
        }
        // An insertion may have reused the frame of the last access.
        self.last = None;
        self.next_miss = block + ahead as u64;
        self.directory.find(block).is_some()
    }

    /// Reads whole blocks from `block` on, each from the cache or, in runs, from the device.
    fn read_blocks(&mut self, block: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        let count = buf.len() / BLOCK_SIZE;
        let keep = count < BYPASS_BLOCKS;
        let mut i = 0;
        while i < count {
            if let Some(frame) = self.find(block + i as u64) {
                buf[i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE]
                    .copy_from_slice(&self.frames[frame_range(frame)]);
                i += 1;
                continue;
            }
            if count == 1 {
                let frame = self.fetch(block)?;
                buf.copy_from_slice(&self.frames[frame_range(frame)]);
                return Ok(());
            }
            let missing =
                (i..count).take_while(|&j| self.directory.find(block + j as u64).is_none());
            let run = i..i + missing.count();
            let bytes = &mut buf[run.start * BLOCK_SIZE..run.end * BLOCK_SIZE];
            self.device.read(BlockIndex(block + i as u64), bytes)?;
            if keep {
                for j in run.clone() {
                    let frame = self.insert(block + j as u64);
                    self.frames[frame_range(frame)]
                        .copy_from_slice(&buf[j * BLOCK_SIZE..(j + 1) * BLOCK_SIZE]);
                }
            }
            i = run.end;
            self.next_miss = block + i as u64;
        }
        Ok(())
    }

    /// Writes whole blocks from `block` on, to the device and then to their frames.
    fn write_blocks(&mut self, block: u64, data: &[u8]) -> Result<(), BlockError> {
        let count = data.len() / BLOCK_SIZE;
        if let Err(error) = self.device.write(BlockIndex(block), data) {
            self.forget(block..block + count as u64);
            return Err(error);
        }
        self.keep_blocks(block, data);
        Ok(())
    }

    /// Puts blocks from `block` on, which the device has, in their frames.
    fn keep_blocks(&mut self, block: u64, data: &[u8]) {
        let keep = data.len() / BLOCK_SIZE < BYPASS_BLOCKS;
        for (i, bytes) in data.chunks_exact(BLOCK_SIZE).enumerate() {
            let block = block + i as u64;
            let frame = match self.find(block) {
                Some(frame) => frame,
                None if keep => self.insert(block),
                None => continue,
            };
            self.frames[frame_range(frame)].copy_from_slice(bytes);
        }
    }

    /// Changes the bytes `within` of one block by `change`, on the device too.
    fn modify(
        &mut self,
        block: u64,
        within: Range<usize>,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<(), BlockError> {
        let frame = self.fetch(block)?;
        let bytes = &mut self.frames[frame_range(frame)];
        change(&mut bytes[within]);
        if let Err(error) = self.device.write(BlockIndex(block), bytes) {
            self.forget(block..block + 1);
            return Err(error);
        }
        Ok(())
    }

    /// Stores at `at` a part of a first block, whole blocks, and a part of a last.
    fn store_parts(&mut self, at: u64, parts: [&[u8]; 3]) -> Result<(), BlockError> {
        let [head, middle, tail] = parts;
        let within = (at % BLOCK) as usize;
        let (mut first, mut last) = ([0; BLOCK_SIZE], [0; BLOCK_SIZE]);
        if !head.is_empty() {
            let frame = self.fetch(at / BLOCK)?;
            first.copy_from_slice(&self.frames[frame_range(frame)]);
            first[within..].copy_from_slice(head);
        }
        let after_head = (at + head.len() as u64) / BLOCK;
        let after_middle = after_head + (middle.len() / BLOCK_SIZE) as u64;
        if !tail.is_empty() {
            let frame = self.fetch(after_middle)?;
            last.copy_from_slice(&self.frames[frame_range(frame)]);
            last[..tail.len()].copy_from_slice(tail);
        }
        let first: &[u8] = if head.is_empty() { &[] } else { &first };
        let last: &[u8] = if tail.is_empty() { &[] } else { &last };
        if middle.len() <= (BYPASS_BLOCKS - 2) * BLOCK_SIZE {
            return self.write_blocks(at / BLOCK, &[first, middle, last].concat());
        }
        let places = [at / BLOCK, after_head, after_middle].map(BlockIndex);
        let all = places.into_iter().zip([first, middle, last]);
        let whole = all.filter(|(_, data)| !data.is_empty());
        self.write_all(&whole.collect::<Vec<_>>())
    }

    fn checked(&self, at: u64, len: u64) -> Result<(), BlockError> {
        match at.checked_add(len) {
            Some(end) if end.div_ceil(BLOCK) <= self.device.block_count() => Ok(()),
            _ => Err(BlockError::OutOfRange),
        }
    }
}

/// Where the bytes of a frame are.
#[inline]
fn frame_range(frame: Frame) -> Range<usize> {
    frame as usize * BLOCK_SIZE..(frame as usize + 1) * BLOCK_SIZE
}

/// A byte range cut at the borders of blocks: part of a first block, whole blocks, part of a last.
#[derive(Debug, PartialEq)]
struct Cut {
    /// Bytes of the first part, none if the range begins with a whole block.
    head: usize,
    /// Bytes of the whole blocks.
    middle: usize,
}

impl Cut {
    fn new(at: u64, len: usize) -> Cut {
        let within = (at % BLOCK) as usize;
        let head = if within == 0 { 0 } else { len.min(BLOCK_SIZE - within) };
        Cut { head, middle: (len - head) / BLOCK_SIZE * BLOCK_SIZE }
    }
}

impl<D: BlockDevice> BlockDevice for Cached<D> {
    fn block_count(&self) -> u64 {
        self.device.block_count()
    }

    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<(), BlockError> {
        block_range(self.block_count(), first, buf.len())?;
        self.read_blocks(first.0, buf)
    }

    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<(), BlockError> {
        block_range(self.block_count(), first, data.len())?;
        if data.is_empty() { Ok(()) } else { self.write_blocks(first.0, data) }
    }

    fn write_all(&mut self, writes: &[(BlockIndex, &[u8])]) -> Result<(), BlockError> {
        for (first, data) in writes {
            block_range(self.block_count(), *first, data.len())?;
        }
        let stored = self.device.write_all(writes);
        for (first, data) in writes {
            match stored {
                Ok(()) => self.keep_blocks(first.0, data),
                Err(_) => self.forget(first.0..first.0 + (data.len() / BLOCK_SIZE) as u64),
            }
        }
        stored
    }

    fn flush(&mut self) -> Result<(), BlockError> {
        self.device.flush()
    }

    fn flush_range(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        self.device.flush_range(first, count)
    }

    fn flusher(&mut self, first: BlockIndex, count: u64) -> Option<Flusher> {
        self.device.flusher(first, count)
    }

    fn expect_commits(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        self.device.expect_commits(first, count)
    }

    fn reserve(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        self.device.reserve(first, count)
    }

    fn forget_cached(&mut self) -> Result<(), BlockError> {
        // It writes through, so nothing is lost with it.
        self.forget(0..self.device.block_count());
        self.device.forget_cached()
    }

    fn read_past_cache(&mut self) -> Result<(), BlockError> {
        self.forget(0..self.device.block_count());
        self.device.read_past_cache()
    }

    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        let blocks = checked_blocks(self.block_count(), first, count)?;
        self.forget(blocks);
        self.device.discard(first, count)
    }
}

impl<D: BlockDevice> Addressable for Cached<D> {
    #[inline]
    fn load(&mut self, at: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        let within = (at % BLOCK) as usize;
        if let Some((block, frame)) = self.last
            && block == at / BLOCK
            && within + buf.len() <= BLOCK_SIZE
        {
            let start = frame as usize * BLOCK_SIZE + within;
            buf.copy_from_slice(&self.frames[start..start + buf.len()]);
            return Ok(());
        }
        self.checked(at, buf.len() as u64)?;
        let cut = Cut::new(at, buf.len());
        let (head, rest) = buf.split_at_mut(cut.head);
        let (middle, tail) = rest.split_at_mut(cut.middle);
        if !head.is_empty() {
            let frame = self.fetch(at / BLOCK)?;
            head.copy_from_slice(&self.frames[frame_range(frame)][within..within + head.len()]);
        }
        let first = (at + head.len() as u64) / BLOCK;
        self.read_blocks(first, middle)?;
        if !tail.is_empty() {
            let frame = self.fetch(first + (middle.len() / BLOCK_SIZE) as u64)?;
            tail.copy_from_slice(&self.frames[frame_range(frame)][..tail.len()]);
        }
        Ok(())
    }

    fn store(&mut self, at: u64, data: &[u8]) -> Result<(), BlockError> {
        self.checked(at, data.len() as u64)?;
        let cut = Cut::new(at, data.len());
        let (head, rest) = data.split_at(cut.head);
        let (middle, tail) = rest.split_at(cut.middle);
        if [head, middle, tail].iter().filter(|part| !part.is_empty()).count() > 1 {
            return self.store_parts(at, [head, middle, tail]);
        }
        if !head.is_empty() {
            let within = (at % BLOCK) as usize;
            self.modify(at / BLOCK, within..within + head.len(), |b| b.copy_from_slice(head))?;
        }
        let first = (at + head.len() as u64) / BLOCK;
        if !middle.is_empty() {
            self.write_blocks(first, middle)?;
        }
        if !tail.is_empty() {
            let block = first + (middle.len() / BLOCK_SIZE) as u64;
            self.modify(block, 0..tail.len(), |bytes| bytes.copy_from_slice(tail))?;
        }
        Ok(())
    }

    fn store_pieces(&mut self, at: u64, pieces: &[&[u8]]) -> Result<(), BlockError> {
        let len = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if pieces.len() < 2 || len > TOGETHER {
            return store_each(self, at, pieces);
        }
        self.store(at, &pieces.concat())
    }

    fn store_zeros(&mut self, at: u64, len: u64) -> Result<(), BlockError> {
        static ZEROS: [u8; BYPASS_BLOCKS * BLOCK_SIZE] = [0; BYPASS_BLOCKS * BLOCK_SIZE];
        self.checked(at, len)?;
        let mut done = 0;
        while done < len {
            // Up to the next border of a block, then as many whole blocks as there are zeros.
            let to_border = (BLOCK - (at + done) % BLOCK) % BLOCK;
            let most = if to_border > 0 { to_border } else { ZEROS.len() as u64 };
            let n = (len - done).min(most);
            self.store(at + done, &ZEROS[..n as usize])?;
            done += n;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
