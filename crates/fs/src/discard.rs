//! Freed space goes back to the host.
//!
//! The volume notes freed blocks in chunks, one bit each, and discards them after a checkpoint that
//! began afterwards: then no crash can bring back an earlier use of a block that the maps call
//! free, and the journal has nothing for it, so that recovery never writes to a discarded block,
//! for which the host might have no storage any more. A chunk of which a part is in use is
//! forgotten, and noted again when that part is freed; a chunk that was noted again meanwhile waits
//! for the next checkpoint. A crash loses the notes; [`Store::trim`] discards all free space.
//!
//! Where the host has no storage left for a block that was just allocated, the volume does the same
//! at once; then it searches on among blocks that may have storage: those in gaps too small to
//! discard.

use alloc::boxed::Box;

use atoll_block::{Addressable, BlockIndex};
use hashbrown::HashMap;

use crate::error::Result;
use crate::layout::{Block, get64, map};
use crate::space::Run;
use crate::store::Store;

/// Blocks that are noted together, and the fewest that are discarded: 64 KiB.
const CHUNK: usize = 16;
const WORDS: usize = (map::GROUP_BLOCKS as usize).div_ceil(CHUNK * 64);
/// Chunks of which a commit makes a checkpoint, so that the space goes back: 64 MiB.
const DUE: u64 = 1024;
/// Blocks that are discarded by one call of the host, which takes a fraction of a millisecond: 4
/// MiB.
const CALL: usize = 1024;
/// Calls after a whole checkpoint; the rest waits for the next.
pub(crate) const BATCH: usize = 64;
/// Groups that are noted; blocks freed in others stay until a [`Store::trim`].
const GROUPS_MAX: usize = 4096;
/// Places that one operation tries where the host has no storage.
const TRIES: u32 = 64;

/// The chunks of some groups, a bit each.
type Chunks = HashMap<u64, Box<[u64; WORDS]>>;

/// Which chunks had blocks freed in them.
#[derive(Debug, Default)]
pub struct Discards {
    enabled: bool,
    /// Since the last checkpoint began.
    groups: Chunks,
    /// Before the one that is under way began.
    settling: Chunks,
    /// Before one that has ended began.
    settled: Chunks,
    /// How many were noted since the last checkpoint began.
    recent: u64,
}

impl Discards {
    /// Notes nothing unless `enabled`.
    pub fn new(enabled: bool) -> Discards {
        Discards { enabled, ..Discards::default() }
    }

    /// Notes that blocks were freed.
    #[inline]
    pub fn note(&mut self, group: u64, run: Run) {
        if self.enabled {
            self.note_run(group, run);
        }
    }

    fn note_run(&mut self, group: u64, run: Run) {
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&group) {
            // Earlier notes may cover blocks that have just been freed again.
            self.settling.remove(&group);
            self.settled.remove(&group);
            return;
        }
        let bits = self.groups.entry(group).or_insert_with(|| Box::new([0; WORDS]));
        for chunk in run.first / CHUNK..(run.first + run.len).div_ceil(CHUNK) {
            let (word, bit) = (chunk / 64, 1 << (chunk % 64));
            self.recent += u64::from(bits[word] & bit == 0);
            bits[word] |= bit;
        }
    }

    /// Notes the beginning of a checkpoint, when none is under way.
    pub fn checkpoint_begun(&mut self) {
        self.settling = core::mem::take(&mut self.groups);
        self.recent = 0;
    }

    /// Notes its end.
    pub fn checkpoint_ended(&mut self) {
        for (group, bits) in self.settling.drain() {
            if self.settled.len() >= GROUPS_MAX && !self.settled.contains_key(&group) {
                continue;
            }
            let settled = self.settled.entry(group).or_insert_with(|| Box::new([0; WORDS]));
            settled.iter_mut().zip(bits.iter()).for_each(|(word, more)| *word |= more);
        }
    }

    /// Whether there is something to be discarded now.
    #[inline]
    pub fn has_settled(&self) -> bool {
        !self.settled.is_empty()
    }

    /// Takes the chunks of a group that may be discarded if they are free.
    fn take_settled(&mut self) -> Option<(u64, Box<[u64; WORDS]>)> {
        let group = *self.settled.keys().next()?;
        let mut bits = self.settled.remove(&group)?;
        // Blocks freed since may come back by a crash, or be in the journal.
        for since in [&self.groups, &self.settling] {
            if let Some(since) = since.get(&group) {
                bits.iter_mut().zip(since.iter()).for_each(|(word, bits)| *word &= !bits);
            }
        }
        Some((group, bits))
    }

    /// Forgets the notes of a group.
    fn forget(&mut self, group: u64) {
        for chunks in [&mut self.groups, &mut self.settling, &mut self.settled] {
            chunks.remove(&group);
        }
    }

    /// Whether so much was freed that it is worth a checkpoint.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.recent >= DUE
    }

    fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.settling.is_empty() && self.settled.is_empty()
    }
}

/// The first run of whole chunks, from the place `from` on, that are noted and of which all blocks
/// are free in a group of `len` blocks. The chunks that were looked at are taken out of `bits`.
fn next_run(bits: &mut [u64; WORDS], map: &Block, len: usize, from: usize) -> Option<Run> {
    let mut run = None::<Run>;
    for chunk in from / CHUNK..len / CHUNK {
        let (word, bit) = (chunk / 64, 1 << (chunk % 64));
        let first = chunk * CHUNK;
        let used = get64(map, map::BITS + first / 64 * 8) >> (first % 64) & ((1 << CHUNK) - 1);
        let is_noted = bits[word] & bit != 0;
        match (&mut run, is_noted && used == 0) {
            (Some(run), true) if run.len < CALL => run.len += CHUNK,
            (None, true) => run = Some(Run { first, len: CHUNK }),
            (Some(_), _) => return run,
            (None, false) => {}
        }
        bits[word] &= !bit;
    }
    run
}

/// The first run of at least a chunk of free blocks from `from` on.
fn next_free(map: &Block, len: usize, from: usize) -> Option<Run> {
    let is_used = |at: usize| get64(map, map::BITS + at / 64 * 8) >> (at % 64) & 1 != 0;
    let mut first = from;
    while first < len {
        if is_used(first) {
            first += 1;
            continue;
        }
        let free = (first..len).take_while(|&at| !is_used(at)).count();
        if free >= CHUNK {
            return Some(Run { first, len: free });
        }
        first += free;
    }
    None
}

impl<M: Addressable> Store<M> {
    /// Discards the settled chunks, in at most `calls` calls; a group with nothing to discard
    /// counts as one.
    ///
    /// A block that cannot be discarded stays as it is: nothing refers to it. A crash within leaves
    /// the rest.
    pub(crate) fn discard_settled(&mut self, calls: usize) {
        let mut left = calls;
        while left > 0
            && let Some((group, mut bits)) = self.discards.take_settled()
        {
            left -= 1;
            let Ok(id) = self.map(group) else { continue };
            let len = self.superblock.group_len(group);
            let mut from = 0;
            while let Some(run) = next_run(&mut bits, &self.cache.frame(id).data, len, from) {
                from = run.first + run.len;
                let first = BlockIndex(self.superblock.map_block(group).0 + run.first as u64);
                if self.device.discard(first, run.len as u64).is_err() {
                    // If the medium fails, an operation that needs it gets the error.
                    return;
                }
                if left == 0 {
                    // The rest of the group comes next.
                    self.discards.settled.insert(group, bits);
                    return;
                }
                left -= 1;
            }
        }
    }

    /// Discards all free space in runs of 64 KiB or more, with a checkpoint before. Returns how
    /// many blocks.
    ///
    /// # Errors
    /// Those of a checkpoint; the device's.
    pub(crate) fn trim(&mut self) -> Result<u64> {
        self.check_changeable()?;
        self.checkpoint()?;
        let mut done = 0;
        // In groups without maps nothing is used, unless the journal is there.
        let mut unused = self.superblock.map_block(self.state.groups).0;
        let end = self.superblock.area_end();
        let (ring, ring_end) =
            (self.superblock.ring_start, self.superblock.ring_start + self.superblock.ring_blocks);
        if (unused..end).contains(&ring) {
            self.device.discard(BlockIndex(unused), ring - unused)?;
            done += ring - unused;
            unused = ring_end;
        }
        if unused < end {
            self.device.discard(BlockIndex(unused), end - unused)?;
            done += end - unused;
        }
        for group in 0..self.state.groups {
            let (start, len) = (self.superblock.map_block(group), self.superblock.group_len(group));
            let id = self.map(group)?;
            let mut from = 0;
            while let Some(run) = next_free(&self.cache.frame(id).data, len, from) {
                from = run.first + run.len;
                self.device.discard(BlockIndex(start.0 + run.first as u64), run.len as u64)?;
                done += run.len as u64;
            }
            self.discards.forget(group);
        }
        self.device.flush()?;
        Ok(done)
    }

    /// The host had no storage for the writes of an operation, which was aborted and whose last
    /// allocation was `failed`. Returns whether another try is worth it; `tries` counts them.
    #[cold]
    pub(crate) fn find_storage(
        &mut self,
        failed: Option<(u64, u64)>,
        tries: &mut u32,
    ) -> Result<bool> {
        let Some((start, _)) = failed else { return Ok(false) };
        *tries += 1;
        if *tries == 1 {
            let freed = self.allocator.has_pending() || self.allocator.has_held();
            if freed || !self.discards.is_empty() {
                self.checkpoint()?;
                self.discard_settled(usize::MAX);
                return Ok(true);
            }
        }
        // The rest of this gap most likely has none either.
        let (group, at) = self.superblock.locate(start);
        let len = self.superblock.group_len(group);
        let gap = if group < self.state.groups {
            let id = self.map(group)?;
            self.allocator.available_at(group, &self.cache.frame(id).data, at, len)
        } else {
            // The aborted operation had made the group: it has no map.
            len - at
        };
        let next = start + gap.max(1) as u64;
        self.allocator.frugal_from = Some(next);
        self.allocator.metadata_hint = next;
        Ok(*tries <= TRIES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn map_with(used: &[core::ops::Range<usize>]) -> Block {
        let mut block = [0; atoll_block::BLOCK_SIZE];
        for at in used.iter().cloned().flatten() {
            block[map::BITS + at / 8] |= 1 << (at % 8);
        }
        block
    }

    #[test]
    fn whole_chunks_that_are_free_are_found_once() {
        let mut discards = Discards::new(true);
        discards.note(0, Run { first: 20, len: 100 });
        discards.note(0, Run { first: 300, len: 1 });
        discards.note(0, Run { first: 1000, len: 60 });
        assert!(!discards.is_empty() && !discards.is_due());
        let mut bits = discards.groups.remove(&0).unwrap();
        let map = map_with(&[0..16, 70..71, 1000..1001]);
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(run) = next_run(&mut bits, &map, 1040, from) {
            from = run.first + run.len;
            found.push((run.first, run.len));
        }
        // A chunk that reaches beyond the end of the group is not whole.
        assert_eq!(found, [(16, 48), (80, 48), (288, 16), (1008, 32)]);
        Discards::new(false).note(0, Run { first: 0, len: 64 });
    }

    /// However many groups are noted: a chunk that was freed again since it settled is not given.
    #[test]
    fn what_is_freed_again_waits() {
        let run = Run { first: 0, len: 64 };
        for others in [0, GROUPS_MAX - 1, GROUPS_MAX] {
            let mut discards = Discards::new(true);
            discards.note(7, run);
            discards.checkpoint_begun();
            discards.checkpoint_ended();
            assert!(discards.has_settled());
            (0..others).for_each(|group| discards.note(100 + group as u64, run));
            discards.note(7, run);
            let given = discards.take_settled();
            assert!(given.is_none_or(|(_, bits)| bits.iter().all(|&word| word == 0)), "{others}");
        }
    }

    #[test]
    fn free_runs_are_found_unless_short() {
        let map = map_with(&[0..5, 20..21, 36..40, 90..91]);
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(run) = next_free(&map, 100, from) {
            from = run.first + run.len;
            found.push((run.first, run.len));
        }
        assert_eq!(found, [(40, 50)]);
        assert_eq!(next_free(&map_with(&[]), 100, 0).map(|run| run.len), Some(100));
    }
}
