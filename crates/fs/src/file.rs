//! Reading and writing file content.
//!
//! Data goes straight to its blocks. A block that was just allocated is reachable only by the
//! record that the operation appends after the data is stored, so no crash shows the block's old
//! content. Bytes of the last block beyond the end of file are never trusted: they are zeroed when
//! the file grows over them.

use arrayvec::ArrayVec;
use atoll_block::{Addressable, BLOCK_SIZE, BlockError, BlockIndex};
use atoll_vfs::Data;

use crate::allocation::Goal;
use crate::error::Result;
use crate::extent::Mapping;
use crate::inode::Extent;
use crate::store::Store;
use crate::table::Inode;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The most that one transaction writes, in bytes: records stay small.
pub const WRITE_MAX: u64 = 1 << 20;

/// Places with blocks to which one transaction writes.
const IN_PLACE_MAX: usize = 32;

/// A write into a hole of a file that is mostly there fills the hole this many blocks wide, with
/// zeros around the data: a file written in any order then takes one transaction for so many
/// blocks.
const WINDOW: u64 = 16;
/// Mostly there: not small, and one block in so many up to the end of file.
const WINDOW_FILE_MIN: u64 = 2 * WINDOW;
const WINDOW_DENSITY: u64 = 8;
/// With less free space a write takes only the blocks that it needs.
const WINDOW_FREE_MIN: u64 = 16 * WINDOW;

/// The extents that one transaction frees, if its record takes so many.
pub const FREE_BUDGET: usize = 128;
/// How many extents and holes one search for data or a hole looks at: some 100 microseconds.
pub const SEEK_BUDGET: usize = 512;

/// The outcome of a search in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// It is here.
    Found(u64),
    /// There is none before this offset, where the search has ended.
    NotBefore(u64),
}

impl Sought {
    /// The first byte that is it, as far as is known.
    pub fn at(self) -> u64 {
        match self {
            Sought::Found(at) | Sought::NotBefore(at) => at,
        }
    }
}

#[inline]
fn address(e: &Extent, offset: u64) -> u64 {
    BlockIndex(e.start).byte_offset() + (offset - e.file_block * BLOCK)
}

impl<M: Addressable> Store<M> {
    /// Reads from a file. `buf` must end at or before the end of file.
    pub fn read_file(&mut self, inode: &mut Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let rest = &mut buf[done..];
            match self.mapping(inode, at / BLOCK)? {
                Mapping::Mapped(e) => {
                    let n = (e.end() * BLOCK - at).min(rest.len() as u64) as usize;
                    if e.unwritten {
                        rest[..n].fill(0);
                    } else {
                        self.load_data(address(&e, at), &mut rest[..n])?;
                    }
                    done += n;
                }
                Mapping::Hole { end, .. } => {
                    let n = end.saturating_mul(BLOCK).saturating_sub(at);
                    let n = n.min(rest.len() as u64) as usize;
                    rest[..n].fill(0);
                    done += n;
                }
            }
        }
        Ok(())
    }

    /// Writes at most [`WRITE_MAX`] bytes to a file within a transaction and updates its record.
    /// Returns how many were written: all, unless they go to so many places that their record would
    /// become too long, or to [`IN_PLACE_MAX`] that have blocks already. After an error the file is
    /// what it was.
    pub fn write_file(&mut self, inode: &mut Inode, offset: u64, data: Data<'_>) -> Result<usize> {
        debug_assert!(data.len() as u64 <= WRITE_MAX);
        let size = inode.record.size;
        let blocks = inode.record.blocks;
        if offset > size {
            self.zero_tail(inode, offset)?;
        }
        let mut found = self.mapping(inode, offset / BLOCK)?;
        let mut done = 0;
        // Data stored in place cannot be taken back: it comes when there was space for all the
        // rest.
        let mut in_place = ArrayVec::<_, IN_PLACE_MAX>::new();
        let mut last = None;
        while done < data.len() {
            let at = offset + done as u64;
            done += match found {
                Mapping::Mapped(e) if !e.unwritten => {
                    let left = data.len() - done;
                    let n = (e.end() * BLOCK - at).min(left as u64) as usize;
                    if n == left {
                        last = Some((address(&e, at), done));
                    } else {
                        in_place.push((address(&e, at), done, n));
                    }
                    n
                }
                found => self.write_run(inode, found, at, data.skip(done))?,
            };
            if done == data.len() || done > 0 && (in_place.is_full() || !self.has_room()) {
                break;
            }
            found = self.mapping(inode, (offset + done as u64) / BLOCK)?;
        }
        let end = offset + done as u64;
        inode.record.size = size.max(end);
        if inode.record.size != size || inode.record.blocks != blocks {
            self.update_size(inode)?;
        }
        for &(to, from, n) in &in_place {
            self.store_pieces(to, data.skip(from).limit(n))?;
        }
        if let Some((to, from)) = last {
            self.store_pieces(to, data.skip(from))?;
        }
        Ok(done)
    }

    /// Writes to one unwritten extent or hole and returns how many bytes went there.
    fn write_run(
        &mut self,
        inode: &mut Inode,
        found: Mapping,
        at: u64,
        data: Data<'_>,
    ) -> Result<usize> {
        let file_block = at / BLOCK;
        let blocks_end = (at + data.len() as u64).div_ceil(BLOCK);
        match found {
            Mapping::Mapped(e) => {
                let part = e.clip(file_block, blocks_end).unwrap_or(e);
                let n = self.fill(&part, at, data)?;
                self.set_unwritten(inode, &e, part, false)?;
                Ok(n)
            }
            Mapping::Hole { start, end, goal } => {
                let (first, last) = self.span(inode, file_block, blocks_end);
                let (first, last) = (first.max(start), last.min(end));
                let goal = match goal {
                    Goal::At(block) => Goal::At(block.saturating_sub(file_block - first)),
                    other => other,
                };
                let (start, len) = self.allocate_data(goal, last - first)?;
                self.charge_blocks(inode.record.project, len)?;
                let part = Extent { file_block: first, start, len, unwritten: false };
                // The blocks may end before the data: then the rest of the hole is next.
                let n = match part.end() > file_block {
                    true => self.fill(&part, at, data)?,
                    false => {
                        self.store_data_zeros(address(&part, first * BLOCK), len * BLOCK)?;
                        0
                    }
                };
                self.insert_extent(inode, part)?;
                inode.record.blocks += len;
                Ok(n)
            }
        }
    }

    /// The file blocks to allocate for a write to the blocks `from..to`, which begin in a hole.
    fn span(&self, inode: &Inode, from: u64, to: u64) -> (u64, u64) {
        let blocks = inode.record.size.div_ceil(BLOCK);
        let is_dense = inode.record.blocks >= WINDOW_FILE_MIN
            && inode.record.blocks.saturating_mul(WINDOW_DENSITY) >= blocks;
        let last = (from / WINDOW + 1) * WINDOW;
        let free = self.state.free_blocks.min(self.blocks_left(inode.record.project));
        if !is_dense || to > blocks.min(last) || free < WINDOW_FREE_MIN {
            return (from, to);
        }
        (from / WINDOW * WINDOW, last.min(blocks))
    }

    /// Stores data that begins at the file offset `at` in blocks whose content does not count, with
    /// zeros around it. Returns how much of it fitted.
    fn fill(&mut self, part: &Extent, at: u64, data: Data<'_>) -> Result<usize> {
        let first = part.file_block * BLOCK;
        let end = part.end() * BLOCK;
        let n = (end - at).min(data.len() as u64);
        let (before, after) = (at - first, end - at - n);
        if before < BLOCK && after < BLOCK {
            let data = data.limit(n as usize);
            self.store_padded(address(part, first), before as usize, data, after as usize)?;
            return Ok(n as usize);
        }
        if at > first {
            self.store_data_zeros(address(part, first), at - first)?;
        }
        self.store_pieces(address(part, at), data.limit(n as usize))?;
        if at + n < end {
            self.store_data_zeros(address(part, at + n), end - at - n)?;
        }
        Ok(n as usize)
    }

    /// Zeroes the file's last block beyond the end of file, as far as `to`: these bytes are about
    /// to become part of the file.
    pub fn zero_tail(&mut self, inode: &mut Inode, to: u64) -> Result<()> {
        let size = inode.record.size;
        let to = to.min(size.next_multiple_of(BLOCK));
        if to <= size {
            return Ok(());
        }
        let file_block = size / BLOCK;
        let e = match self.mapping(inode, file_block)? {
            Mapping::Mapped(e) if !e.unwritten => e,
            _ => return Ok(()),
        };
        let block = e.start + (file_block - e.file_block);
        if inode.shortened <= self.durable_window() || self.is_fresh(block) {
            return self.store_data_zeros(address(&e, size), to - size);
        }
        // A crash may still bring back the longer file, to which these bytes belong: leave them
        // where they are and go on in another block.
        let mut content = [0; BLOCK_SIZE];
        let keep = (size % BLOCK) as usize;
        self.load_data(BlockIndex(block).byte_offset(), &mut content[..keep])?;
        let (copy, _) = self.allocate_data(Goal::Anywhere, 1)?;
        self.store_data(BlockIndex(copy).byte_offset(), &content)?;
        self.move_block(inode, &e, file_block, copy)
    }

    /// Zeroes bytes of a file within one block, where it has any.
    fn zero_within_block(&mut self, inode: &mut Inode, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        match self.mapping(inode, from / BLOCK)? {
            Mapping::Mapped(e) if !e.unwritten => {
                self.store_data_zeros(address(&e, from), to - from)
            }
            _ => Ok(()),
        }
    }

    /// Makes `from..to` read as zeros, all but whole blocks by writing zeros. Returns the file
    /// blocks that lie wholly within, which the caller frees.
    pub fn zero_edges(&mut self, inode: &mut Inode, from: u64, to: u64) -> Result<(u64, u64)> {
        // Bytes beyond the end of file do not count.
        let stop = to.min(inode.record.size);
        let (first, last) = (from.div_ceil(BLOCK), to / BLOCK);
        if first > last {
            // Both ends in one block.
            self.zero_within_block(inode, from, stop)?;
            return Ok((0, 0));
        }
        self.zero_within_block(inode, from, (first * BLOCK).min(stop))?;
        self.zero_within_block(inode, (last * BLOCK).max(from), stop)?;
        Ok((first, last))
    }

    /// Has the host set storage aside, if it can.
    fn set_aside(&mut self, start: u64, len: u64) -> Result<()> {
        match self.device.reserve(BlockIndex(start), len) {
            Err(BlockError::Unsupported) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Allocates unwritten blocks for a part of the holes in the file blocks `from..to`, and has
    /// the host set storage aside for all of that part. Returns where to go on.
    pub fn preallocate(&mut self, inode: &mut Inode, from: u64, to: u64) -> Result<u64> {
        let mut at = from;
        for _ in 0..FREE_BUDGET {
            if at >= to || !self.has_room() {
                break;
            }
            match self.mapping(inode, at)? {
                Mapping::Mapped(e) => {
                    if let Some(part) = e.clip(at, to) {
                        self.set_aside(part.start, part.len)?;
                    }
                    at = e.end();
                }
                Mapping::Hole { end, goal, .. } => {
                    let (start, len) = self.allocate_data(goal, end.min(to) - at)?;
                    self.charge_blocks(inode.record.project, len)?;
                    self.set_aside(start, len)?;
                    let e = Extent { file_block: at, start, len, unwritten: true };
                    self.insert_extent(inode, e)?;
                    inode.record.blocks += len;
                    at += len;
                }
            }
        }
        Ok(at)
    }

    /// Makes a part of the file blocks `from..to` read as zeros without writing to them. Returns
    /// where to go on.
    pub fn mark_unwritten(&mut self, inode: &mut Inode, from: u64, to: u64) -> Result<u64> {
        self.over_extents(inode, from, to, |store, inode, whole, part| match whole.unwritten {
            true => Ok(()),
            false => store.set_unwritten(inode, whole, part, true),
        })
    }

    /// The next byte at or after `at` and before `until` that is stored (`data`) or in a hole.
    /// Looks at [`SEEK_BUDGET`] extents and holes, and no further.
    pub fn seek_file(
        &mut self,
        inode: &mut Inode,
        at: u64,
        until: u64,
        data: bool,
    ) -> Result<Sought> {
        let until = until.min(inode.record.size);
        let mut at = at;
        for _ in 0..SEEK_BUDGET {
            if at >= until {
                break;
            }
            let (is_data, end) = match self.mapping(inode, at / BLOCK)? {
                Mapping::Mapped(e) => (!e.unwritten, e.end()),
                Mapping::Hole { end, .. } => (false, end),
            };
            if is_data == data {
                return Ok(Sought::Found(at));
            }
            at = end.saturating_mul(BLOCK);
        }
        Ok(Sought::NotBefore(at.min(until)))
    }
}
