//! Which blocks are in use: one bit for each block of the groups in which any is.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_block::{Addressable, BLOCK_SIZE};
use hashbrown::HashMap;

use super::report::{Finding, Report};
use super::view::View;
use crate::error::Result;
use crate::format::emit_map;
use crate::layout::{self, Block, Superblock, get64, magic, map, put64, summary};
use crate::pair;

const WORDS: usize = map::GROUP_BLOCKS as usize / 64;

type Bits = Box<[u64; WORDS]>;

/// Which of two are damaged: whether it is the second.
fn damaged_copies(damaged: [bool; 2]) -> impl Iterator<Item = bool> {
    [false, true].into_iter().filter(move |&copy| damaged[usize::from(copy)])
}

/// Whether a summary calls `group` full.
fn is_called_full(block: &Block, group: u64) -> bool {
    let at = (group % summary::GROUPS) as usize;
    block[summary::BITS + at / 8] & (1 << (at % 8)) != 0
}

/// The blocks in use that were seen; map blocks are not among them.
#[derive(Clone, Default)]
pub(crate) struct Usage {
    groups: HashMap<u64, Bits>,
    count: u64,
}

/// The bits that a group's map block should have.
struct Expected<'a> {
    bits: Option<&'a [u64; WORDS]>,
    /// Blocks of the group.
    len: usize,
    /// Those of its maps and summaries.
    front: usize,
    /// The first block and the number of those that the ring takes.
    ring: Option<(usize, usize)>,
}

impl Expected<'_> {
    /// 64 of them from `word` * 64 on.
    fn word(&self, word: usize) -> u64 {
        let mut v = self.bits.map_or(0, |bits| bits[word]);
        if word == 0 {
            v |= (1 << self.front) - 1;
        }
        if let Some((start, count)) = self.ring {
            let from = start.max(word * 64);
            let to = (start + count).min(word * 64 + 64);
            if from < to {
                v |= (u64::MAX >> (64 - (to - from))) << (from % 64);
            }
        }
        let first = word * 64;
        if first + 64 > self.len {
            // Bits beyond the volume are in use.
            v |= if first >= self.len { u64::MAX } else { u64::MAX << (self.len - first) };
        }
        v
    }

    /// Whether no block is free.
    fn is_full(&self) -> bool {
        (0..WORDS).all(|word| self.word(word) == u64::MAX)
    }
}

impl Usage {
    /// Whether `block`, one of the group area, is in use.
    pub fn contains(&self, sb: &Superblock, block: u64) -> bool {
        let (group, at) = sb.locate(block);
        self.groups.get(&group).is_some_and(|bits| bits[at / 64] & (1 << (at % 64)) != 0)
    }

    /// Marks blocks that lie in one group, and calls `each` with every run of those that were not
    /// in use before: the offset from `start` and the length.
    pub fn mark(&mut self, sb: &Superblock, start: u64, len: u64, mut each: impl FnMut(u64, u64)) {
        let (group, first) = sb.locate(start);
        let bits = self.groups.entry(group).or_insert_with(|| Box::new([0; WORDS]));
        let end = first + len as usize;
        let mut run = None;
        let mut at = first;
        while at < end {
            let word = bits[at / 64] >> (at % 64);
            // As far as the bits are alike.
            let used = word & 1 != 0;
            let alike = if used { (!word).trailing_zeros() } else { word.trailing_zeros() };
            let n = (alike as usize).min(64 - at % 64).min(end - at);
            if used {
                if let Some(from) = run.take() {
                    each((from - first) as u64, (at - from) as u64);
                }
            } else {
                run = run.or(Some(at));
                bits[at / 64] |= (u64::MAX >> (64 - n)) << (at % 64);
                self.count += n as u64;
            }
            at += n;
        }
        if let Some(from) = run {
            each((from - first) as u64, (end - from) as u64);
        }
    }

    /// Marks a block and says whether it was free.
    pub fn take(&mut self, sb: &Superblock, block: u64) -> bool {
        let mut free = false;
        self.mark(sb, block, 1, |_, _| free = true);
        free
    }

    /// Marks a block as free.
    pub fn release(&mut self, sb: &Superblock, block: u64) {
        let (group, at) = sb.locate(block);
        if let Some(bits) = self.groups.get_mut(&group)
            && bits[at / 64] & (1 << (at % 64)) != 0
        {
            bits[at / 64] &= !(1 << (at % 64));
            self.count -= 1;
        }
    }

    /// The bits that the map block of `group` should have.
    fn expected(&self, sb: &Superblock, group: u64) -> Expected<'_> {
        Expected {
            bits: self.groups.get(&group).map(|bits| &**bits),
            len: sb.group_len(group),
            front: sb.front_len(group),
            ring: sb.ring_in(group),
        }
    }

    /// How many blocks are free on a volume on which these are in use.
    pub fn free_blocks(&self, sb: &Superblock) -> u64 {
        sb.usable_blocks().saturating_sub(self.count)
    }

    /// How many groups, from the first on, need map blocks for these.
    pub fn groups(&self) -> u64 {
        self.groups.keys().max().map_or(1, |&last| last + 1)
    }

    /// Compares with the map blocks, and those with the summaries.
    pub fn compare<M: Addressable>(&self, view: &mut View<'_, M>, report: &mut Report) {
        let sb = view.sb.clone();
        let made = view.state.map_or(0, |s| s.groups);
        let mut summary = None;
        for group in 0..made {
            if group.is_multiple_of(summary::GROUPS) {
                let read = view.read_pair(sb.summary_block(group), magic::SUMMARY);
                match &read {
                    Ok((_, damaged)) => damaged_copies(*damaged)
                        .for_each(|copy| report.add(Finding::SummaryCopy { group, copy })),
                    Err(_) => report.add(Finding::Summary { group }),
                }
                summary = read.ok().map(|(b, _)| b);
            }
            let Ok((b, damaged)) = view.read_pair(sb.map_block(group), magic::MAP) else {
                report.add(Finding::Map { group });
                continue;
            };
            damaged_copies(damaged).for_each(|copy| report.add(Finding::MapCopy { group, copy }));
            self.compare_group(&sb, group, &b, report);
            if summary.as_ref().is_some_and(|b| is_called_full(b, group))
                && !self.expected(&sb, group).is_full()
            {
                let group = group - group % summary::GROUPS;
                report.add(Finding::Summary { group });
                summary = None;
            }
        }
        // Groups without map blocks are free, all of them.
        let mut b = [0; BLOCK_SIZE];
        let mut beyond: Vec<u64> = self.groups.keys().copied().filter(|&g| g >= made).collect();
        beyond.sort_unstable();
        for group in beyond {
            let (index, len) = (sb.map_block(group), sb.group_len(group));
            emit_map(&mut b, index, len, sb.front_len(group), sb.ring_in(group), 0);
            self.compare_group(&sb, group, &b, report);
        }
    }

    fn compare_group(&self, sb: &Superblock, group: u64, b: &Block, report: &mut Report) {
        let start = sb.map_block(group).0;
        // The run of alike differences that is being collected.
        let mut run: Option<(bool, usize, usize)> = None;
        let mut end_run = |run: &mut Option<(bool, usize, usize)>| {
            if let Some((leaked, first, end)) = run.take() {
                let (start, len) = (start + first as u64, (end - first) as u64);
                report.add(match leaked {
                    true => Finding::Leaked { start, len },
                    false => Finding::Unmarked { start, len },
                });
            }
        };
        let expected = self.expected(sb, group);
        let len = expected.len;
        let mut beyond_differs = false;
        for word in 0..WORDS {
            let stored = get64(b, map::BITS + word * 8);
            let mut differ = stored ^ expected.word(word);
            if differ == 0 {
                continue;
            }
            if word * 64 + 64 > len {
                // Bits beyond the volume are no blocks.
                let beyond = u64::MAX << len.saturating_sub(word * 64);
                beyond_differs |= differ & beyond != 0;
                differ &= !beyond;
            }
            while differ != 0 {
                let bit = differ.trailing_zeros() as usize;
                differ &= differ - 1;
                let at = word * 64 + bit;
                let leaked = stored & (1 << bit) != 0;
                match &mut run {
                    Some((kind, _, end)) if *kind == leaked && *end == at => *end += 1,
                    _ => {
                        end_run(&mut run);
                        run = Some((leaked, at, at + 1));
                    }
                }
            }
        }
        end_run(&mut run);
        if beyond_differs {
            report.add(Finding::Map { group });
        }
    }

    /// Writes the wrong maps among those of the first `groups` groups, both blocks of each, and
    /// summaries; with `add_only` bits are set but none are cleared. The caller flushes.
    pub fn write_maps<M: Addressable>(
        &self,
        view: &mut View<'_, M>,
        groups: u64,
        add_only: bool,
    ) -> Result<()> {
        let sb = view.sb.clone();
        let generation = view.header.map_or(0, |h| h.generation) + 1;
        let mut b = [0; BLOCK_SIZE];
        for group in 0..groups {
            let index = sb.map_block(group);
            let old = view.read_pair(index, magic::MAP);
            layout::init_block(&mut b, index, magic::MAP);
            let expected = self.expected(&sb, group);
            for word in 0..WORDS {
                let at = map::BITS + word * 8;
                let mut v = expected.word(word);
                if add_only && let Ok((old, _)) = &old {
                    v |= get64(old, at);
                }
                put64(&mut b, at, v);
            }
            let same = |old: &Block| old[map::BITS..] == b[map::BITS..];
            if !matches!(&old, Ok((old, [false, false])) if same(old)) {
                let last = old.map_or(0, |(old, _)| get64(&old, map::GENERATION));
                put64(&mut b, map::GENERATION, generation.max(last.saturating_add(1)));
                layout::seal(&mut b);
                pair::write(view.device, &b)?;
            }
            if group.is_multiple_of(summary::GROUPS) {
                self.write_summary(view, group, generation)?;
            }
        }
        Ok(())
    }

    /// Writes the summary in `group` as one that calls nothing full, unless it is right.
    fn write_summary<M: Addressable>(
        &self,
        view: &mut View<'_, M>,
        group: u64,
        generation: u64,
    ) -> Result<()> {
        let sb = view.sb.clone();
        let index = sb.summary_block(group);
        let old = view.read_pair(index, magic::SUMMARY);
        if let Ok((b, [false, false])) = &old {
            let end = sb.group_count().min(group + summary::GROUPS);
            let may_be_full = |g| !is_called_full(b, g) || self.expected(&sb, g).is_full();
            if (group..end).all(may_be_full) {
                return Ok(());
            }
        }
        let mut b = [0; BLOCK_SIZE];
        layout::init_block(&mut b, index, magic::SUMMARY);
        let last = old.map_or(0, |(old, _)| get64(&old, summary::GENERATION));
        put64(&mut b, summary::GENERATION, generation.max(last.saturating_add(1)));
        layout::seal(&mut b);
        pair::write(view.device, &b)
    }

    /// The first free block at or after `from`, map blocks left out.
    pub fn find_free(&self, sb: &Superblock, from: u64) -> Option<u64> {
        let last = sb.area_end();
        let mut block = from.max(sb.group_start);
        while block < last {
            let (group, at) = sb.locate(block);
            let rest = !self.expected(sb, group).word(at / 64) >> (at % 64);
            if rest != 0 {
                return Some(block + u64::from(rest.trailing_zeros()));
            }
            block += (64 - at % 64) as u64;
        }
        None
    }
}
