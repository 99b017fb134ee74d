//! Allocating and freeing blocks within a transaction.
//!
//! A search looks at one map after the other, from a hint on. A search that passes a full group
//! notes that in a summary, one bit for each group: five blocks say where a volume of 16 TiB has
//! room, and the maps of full groups are not read. A group gets its map blocks when it is first
//! used.

use atoll_block::{Addressable, BLOCK_SIZE, BlockIndex};

use crate::bounds;
use crate::cache::FrameId;
use crate::error::{Corruption, FsError, Result};
use crate::format::emit_map;
use crate::layout::{self, common, magic, map, summary};
use crate::pair;
use crate::recovery;
use crate::report::MountNote;
use crate::space::{Run, is_map_full};
use crate::store::{Freed, Store};

/// Blocks reserved for operations that free space.
pub const RESERVED_BLOCKS: u64 = 32;

/// The preferred place of file data.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// At this block.
    At(u64),
    /// This many blocks beyond the first free one, which leaves room for blocks before it.
    Ahead(u64),
    /// Wherever there is room.
    Anywhere,
}

impl<M: Addressable> Store<M> {
    /// Allocates up to `want` consecutive blocks for file data, at `goal` if that is free.
    pub fn allocate_data(&mut self, goal: Goal, want: u64) -> Result<(u64, u64)> {
        if let Some(from) = self.allocator.frugal_from {
            let (start, len, _) = self.allocate_from(from, 1)?;
            self.allocator.frugal_from = Some(start + len);
            return Ok((start, len));
        }
        let goal = match goal {
            Goal::At(block) => block,
            Goal::Ahead(distance) => self.find_ahead(distance, want)?,
            Goal::Anywhere => 0,
        };
        let want = want.min(map::GROUP_BLOCKS / 2) as usize;
        if goal != 0
            && self.is_made(goal)
            && let Some(found) = self.allocate_at(goal, want)?
        {
            return Ok(found);
        }
        let hint = self.allocator.data_hint;
        let (start, len, first_seen) = self.allocate_from(hint, want)?;
        if first_seen >= hint {
            // Nothing between the hint and here is available.
            self.allocator.data_hint = if first_seen == start { start + len } else { first_seen };
        }
        Ok((start, len))
    }

    /// The block `distance` blocks into a run that has room for those and `want` more, or 0.
    fn find_ahead(&mut self, distance: u64, want: u64) -> Result<u64> {
        let hint = self.allocator.data_hint;
        if distance == 0 || !self.is_made(hint) {
            return Ok(0);
        }
        let (group, from) = self.superblock.locate(hint);
        let id = self.map(group)?;
        let len = self.superblock.group_len(group);
        let whole = (distance + want) as usize;
        let found = self.allocator.find(group, &self.cache.frame(id).data, len, from, whole);
        Ok(match found {
            Some((run, _)) if run.len == whole => {
                self.superblock.map_block(group).0 + run.first as u64 + distance
            }
            _ => 0,
        })
    }

    /// Allocates one block for metadata.
    pub fn allocate_metadata(&mut self) -> Result<u64> {
        let (start, ..) = self.allocate_from(self.allocator.metadata_hint, 1)?;
        self.allocator.metadata_hint = start + 1;
        Ok(start)
    }

    /// Frees `len` blocks from `start`; the bits are cleared when the transaction ends.
    pub fn free(&mut self, start: u64, len: u64, metadata: bool) -> Result<()> {
        if !self.superblock.holds(start, len) {
            return Err(Corruption::Item.into());
        }
        self.transaction.bytes += bounds::bits(len);
        self.transaction.freed.push(Freed { start, len, metadata });
        Ok(())
    }

    fn check_reserve(&self, want: usize) -> Result<()> {
        let reserve = if self.transaction.frees_space { 0 } else { RESERVED_BLOCKS };
        if self.state.free_blocks < reserve + want as u64 {
            return Err(FsError::Full);
        }
        Ok(())
    }

    /// Takes up to `want` blocks at exactly `goal`, if that is available.
    fn allocate_at(&mut self, goal: u64, want: usize) -> Result<Option<(u64, u64)>> {
        self.check_reserve(1)?;
        let (group, first) = self.superblock.locate(goal);
        let id = self.map(group)?;
        let limit = self.superblock.group_len(group).min(first + want);
        let len = self.allocator.available_at(group, &self.cache.frame(id).data, first, limit);
        Ok(if len == 0 { None } else { Some(self.take(id, group, Run { first, len })?) })
    }

    /// Takes up to `want` blocks, searching from `hint` on and around. Also returns the first
    /// available block that was seen.
    fn allocate_from(&mut self, hint: u64, want: usize) -> Result<(u64, u64, u64)> {
        self.check_reserve(1)?;
        let hint = if self.superblock.in_area(hint) { hint } else { self.superblock.group_start };
        let (first_group, from) = self.superblock.locate(hint);
        if first_group < self.state.groups
            && let Some(found) = self.allocate_in(first_group, from, want)?
        {
            return Ok(found);
        }
        // Then the groups after it, those before it, and one that was never used.
        let start = (first_group + 1).min(self.state.groups);
        for (mut group, end) in [(start, self.state.groups), (0, start)] {
            while let Some(next) = self.next_with_space(group, end)? {
                if let Some(found) = self.allocate_in(next, 0, want)? {
                    return Ok(found);
                }
                group = next + 1;
            }
        }
        if self.state.groups < self.superblock.group_count() {
            let group = self.state.groups;
            self.make_group()?;
            if let Some(found) = self.allocate_in(group, 0, want)? {
                return Ok(found);
            }
        }
        Err(FsError::Full)
    }

    fn take(&mut self, map: FrameId, group: u64, mut run: Run) -> Result<(u64, u64)> {
        // The reserve holds for every block of the run.
        let reserve = if self.transaction.frees_space { 0 } else { RESERVED_BLOCKS };
        run.len = run.len.min(self.state.free_blocks.saturating_sub(reserve) as usize);
        if run.len == 0 {
            return Err(FsError::Full);
        }
        self.set_bits(map, run, true)?;
        self.state.free_blocks -= run.len as u64;
        let start = self.superblock.map_block(group).0 + run.first as u64;
        self.transaction.allocated.push((start, run.len as u64));
        Ok((start, run.len as u64))
    }

    /// Changes the bits of a run, each of which must have the other value.
    fn set_bits(&mut self, id: FrameId, run: Run, value: bool) -> Result<()> {
        self.raise_generation(id);
        let mut at = run.first;
        let end = run.first + run.len;
        if run.len > 0 && at / 8 == (end - 1) / 8 {
            // The common case of one block, or a few.
            let byte = self.cache.frame(id).data[map::BITS + at / 8];
            let bits = u8::MAX >> (8 - run.len) << (at % 8);
            if byte & bits != if value { 0 } else { bits } {
                return Err(Corruption::Map.into());
            }
            self.put(id, map::BITS + at / 8, &[byte ^ bits]);
            return Ok(());
        }
        while at < end {
            // 64 bytes at a time.
            let first = at / 8;
            let last = ((end - 1) / 8).min(first + 63);
            let mut bytes = [0; 64];
            let bytes = &mut bytes[..last - first + 1];
            bytes.copy_from_slice(
                &self.cache.frame(id).data[map::BITS + first..map::BITS + last + 1],
            );
            let stop = end.min((last + 1) * 8);
            while at < stop {
                let byte = &mut bytes[at / 8 - first];
                let bit = 1 << (at % 8);
                if (*byte & bit != 0) == value {
                    return Err(Corruption::Map.into());
                }
                *byte ^= bit;
                at += 1;
            }
            self.put(id, map::BITS + first, bytes);
        }
        Ok(())
    }

    /// Gives a block that stands twice a generation above that of the content that is at home, or
    /// is about to go there: an older content that is put back in one of the two is then known by
    /// its generation.
    #[inline(always)]
    fn raise_generation(&mut self, id: FrameId) {
        if !self.cache.frame(id).raised {
            self.raise_generation_now(id);
        }
    }

    #[cold]
    fn raise_generation_now(&mut self, id: FrameId) {
        let last = layout::get64(&self.cache.frame(id).data[..], map::GENERATION);
        let generation = self.commits.generation().max(last.saturating_add(1));
        self.put(id, map::GENERATION, &generation.to_le_bytes());
        self.cache.frame_mut(id).raised = true;
    }

    /// Clears the bits of the blocks that the transaction freed. That happens last, so that the
    /// same transaction does not take the blocks again.
    pub(crate) fn clear_freed_bits(&mut self) -> Result<()> {
        for i in 0..self.transaction.freed.len() {
            let Freed { start, len, .. } = self.transaction.freed[i];
            let (group, first) = self.superblock.locate(start);
            if group >= self.state.groups
                || first < self.superblock.front_len(group)
                || first as u64 + len > map::GROUP_BLOCKS
            {
                return Err(Corruption::Item.into());
            }
            let id = self.map(group)?;
            self.set_full(group, false)?;
            let run = Run { first, len: len as usize };
            self.set_bits(id, run, false)?;
            self.state.free_blocks += len;
        }
        Ok(())
    }

    /// Whether a block of file data was allocated after the last commit, so that no crash can bring
    /// back a state in which it is reachable.
    pub fn is_fresh(&self, block: u64) -> bool {
        let (group, at) = self.superblock.locate(block);
        self.allocator.is_fresh(group, at)
            || self.transaction.allocated.iter().any(|&(s, n)| (s..s + n).contains(&block))
    }

    // ---- maps and summaries ----

    /// Whether `block` lies in a group whose map blocks have been made.
    fn is_made(&self, block: u64) -> bool {
        self.superblock.in_area(block) && self.superblock.locate(block).0 < self.state.groups
    }

    /// The frame of the map block of `group`.
    pub(crate) fn map(&mut self, group: u64) -> Result<FrameId> {
        if group >= self.state.groups {
            return Err(Corruption::Map.into());
        }
        self.paired(self.superblock.map_block(group), magic::MAP, group)
    }

    /// The frame of the summary that has the bit of `group`.
    fn summary(&mut self, group: u64) -> Result<FrameId> {
        self.paired(self.superblock.summary_block(group), magic::SUMMARY, group)
    }

    /// The frame of a block that stands twice.
    #[inline]
    fn paired(&mut self, block: BlockIndex, magic: u32, group: u64) -> Result<FrameId> {
        match self.cache.lookup(block.0) {
            Some(id) if layout::get32(&self.cache.frame(id).data[..], common::MAGIC) == magic => {
                Ok(id)
            }
            Some(_) => Err(Corruption::Map.into()),
            None => self.load_paired(block, magic, group),
        }
    }

    #[cold]
    fn load_paired(&mut self, block: BlockIndex, magic: u32, group: u64) -> Result<FrameId> {
        let mut data = [0; BLOCK_SIZE];
        if let Some(overlay) = &self.overlay {
            let read = recovery::read_home(&mut self.device, &self.superblock, block, &mut data);
            if overlay.patch(&mut self.device, &self.superblock, block.0, &mut data)? {
                read?;
                layout::seal(&mut data);
                layout::verify(&data, block, magic)?;
                return Ok(self.cache.insert(block, &data));
            }
        }
        let pair = pair::read_settled(&mut self.device, block, magic)?;
        let id = self.cache.insert(block, &pair.data);
        for copy in [false, true] {
            if pair.damaged[usize::from(copy)] {
                self.note(match magic {
                    magic::MAP => MountNote::Map { group, copy },
                    _ => MountNote::Summary { group: group - group % summary::GROUPS, copy },
                });
                // The next checkpoint writes both.
                if !self.is_read_only() {
                    self.cache.mark_dirty(id);
                }
            }
        }
        Ok(id)
    }

    /// Makes the map blocks of the first group that has none.
    fn make_group(&mut self) -> Result<()> {
        let group = self.state.groups;
        let sb = &self.superblock;
        let (index, len) = (sb.map_block(group), sb.group_len(group));
        let (front, ring) = (sb.front_len(group), sb.ring_in(group));
        let generation = self.commits.generation();
        if front > 2 {
            let summary = self.init_pair(sb.summary_block(group), magic::SUMMARY)?;
            self.put(summary, summary::GENERATION, &generation.to_le_bytes());
        }
        let id = self.init_pair(index, magic::MAP)?;
        let mut b = [0; BLOCK_SIZE];
        emit_map(&mut b, index, len, front, ring, generation);
        self.put(id, map::GENERATION, &generation.to_le_bytes());
        // Most of a map is zeros, and so is a frame that begins.
        let mut at = map::BITS;
        while at < BLOCK_SIZE {
            let zeros = b[at..].iter().take_while(|&&byte| byte == 0).count();
            at += zeros;
            let bytes = b[at..].iter().take_while(|&&byte| byte != 0).count();
            if bytes > 0 {
                self.put(id, at, &b[at..at + bytes]);
            }
            at += bytes;
        }
        self.state.groups += 1;
        Ok(())
    }

    /// As [`init_frame`](Self::init_frame), for a block that stands twice.
    fn init_pair(&mut self, first: BlockIndex, magic: u32) -> Result<FrameId> {
        let second = BlockIndex(first.0 + 1).byte_offset();
        self.device.store_zeros(second, BLOCK_SIZE as u64)?;
        self.init_frame(first.0, magic)
    }

    /// The first group from `from` up to `end` whose map is worth a search, as far as is known: a
    /// few blocks tell it of a whole volume.
    fn next_with_space(&mut self, from: u64, end: u64) -> Result<Option<u64>> {
        let mut from = from;
        while from < end {
            if !self.allocator.knows_summary(from) {
                let id = self.summary(from)?;
                self.allocator.learn_summary(from, &self.cache.frame(id).data);
            }
            // One summary at a time, so that no more are read than needed.
            let stop = end.min((from / summary::GROUPS + 1) * summary::GROUPS);
            if let Some(group) = self.allocator.next_with_space(from, stop) {
                return Ok(Some(group));
            }
            from = stop;
        }
        Ok(None)
    }

    /// Takes up to `want` blocks of `group`, from the place `from` on.
    fn allocate_in(
        &mut self,
        group: u64,
        from: usize,
        want: usize,
    ) -> Result<Option<(u64, u64, u64)>> {
        if self.allocator.next_with_space(group, group + 1).is_none() {
            return Ok(None);
        }
        let id = self.map(group)?;
        let len = self.superblock.group_len(group);
        let data = &self.cache.frame(id).data;
        if let Some((run, seen)) = self.allocator.find(group, data, len, from, want) {
            let (start, len) = self.take(id, group, run)?;
            return Ok(Some((start, len, self.superblock.map_block(group).0 + seen as u64)));
        }
        if is_map_full(data) {
            self.set_full(group, true)?;
        } else if from == 0 {
            self.allocator.set_exhausted(group);
        }
        Ok(None)
    }

    /// Notes in its summary whether `group` is full, within the transaction.
    fn set_full(&mut self, group: u64, full: bool) -> Result<()> {
        if !self.allocator.knows_summary(group) {
            let id = self.summary(group)?;
            self.allocator.learn_summary(group, &self.cache.frame(id).data);
        }
        if self.allocator.is_full(group) == full {
            return Ok(());
        }
        let id = self.summary(group)?;
        self.raise_generation(id);
        let at = (group % summary::GROUPS) as usize;
        let byte = self.cache.frame(id).data[summary::BITS + at / 8] ^ 1 << (at % 8);
        self.put(id, summary::BITS + at / 8, &[byte]);
        self.transaction.refilled.push((group, !full));
        self.allocator.set_full(group, full);
        Ok(())
    }
}
