//! Free space: the map blocks on disk, and beside them in memory which blocks may not be written
//! yet although they are free, and which groups are full.
//!
//! A freed block is written again only when no crash can bring its old use back:
//!
//! - file data, when the free is committed; at once if the block was allocated after the last
//!   commit, or the first half of one, since a crash brings back either both or neither;
//! - metadata, when a checkpoint is done that began afterwards, since replaying the journal writes
//!   to the block.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::layout::{Block, map, summary};

const WORDS: usize = map::GROUP_BLOCKS as usize / 64;

/// One bit for each block of a group.
type Bits = Box<[u64; WORDS]>;

fn no_bits() -> Bits {
    Box::new([0; WORDS])
}

fn set_range(bits: &mut [u64; WORDS], first: usize, len: usize, value: bool) {
    for at in first..first + len {
        if value {
            bits[at / 64] |= 1 << (at % 64);
        } else {
            bits[at / 64] &= !(1 << (at % 64));
        }
    }
}

fn get_bit(bits: &[u64; WORDS], at: usize) -> bool {
    bits[at / 64] & (1 << (at % 64)) != 0
}

/// The word with the bit of `at`; bits that were never put are 0.
#[inline]
fn word(bits: &[u64], at: u64) -> u64 {
    bits.get((at / 64) as usize).copied().unwrap_or(0)
}

fn put_bit(bits: &mut Vec<u64>, at: u64, value: bool) {
    let index = (at / 64) as usize;
    if value && bits.len() <= index {
        bits.resize(index + 1, 0);
    }
    if let Some(word) = bits.get_mut(index) {
        let bit = 1 << (at % 64);
        *word = if value { *word | bit } else { *word & !bit };
    }
}

/// Whether no bit of a map block is 0.
pub fn is_map_full(block: &Block) -> bool {
    block[map::BITS..].iter().all(|&byte| byte == u8::MAX)
}

/// The state of a group's blocks that is not in its map block.
#[derive(Debug, Default)]
struct Overlay {
    /// Allocated since the last commit, or its first half.
    fresh: Option<Bits>,
    /// Freed, and not to be written before the next commit.
    pending: Option<Bits>,
    /// Freed before the first half of a commit, and not to be written before its second.
    committing: Option<Bits>,
    /// Freed, and not to be written before the next checkpoint that begins has ended.
    held: Option<Bits>,
    /// Freed before the checkpoint that is under way began, and not to be written before its end.
    settling: Option<Bits>,
}

impl Overlay {
    /// Whether it says anything.
    fn is_needed(&self) -> bool {
        [&self.fresh, &self.pending, &self.committing, &self.held, &self.settling]
            .iter()
            .any(|bits| bits.is_some())
    }
}

/// A run of blocks within a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its first block, counted from the group's.
    pub first: usize,
    /// Its length in blocks.
    pub len: usize,
}

/// The knowledge in memory about free space.
#[derive(Debug)]
pub struct Allocator {
    overlays: HashMap<u64, Overlay>,
    /// Groups in which a search found nothing; a bit is cleared when blocks come free. It grows up
    /// to the highest such group.
    exhausted: Vec<u64>,
    /// Groups that a summary calls full: their maps are not even read.
    full: Vec<u64>,
    /// The summaries that `full` has taken over.
    summaries: Vec<u64>,
    /// Where searches for file data begin: no block before is known to be free.
    pub data_hint: u64,
    /// Where these searches begin, and take one block at a time, while the host may have storage
    /// only for blocks that had some before. A checkpoint ends that.
    pub frugal_from: Option<u64>,
    /// Where searches for metadata begin.
    pub metadata_hint: u64,
    pending: u64,
    committing: u64,
    held: u64,
    settling: u64,
}

impl Allocator {
    /// Knows nothing yet.
    pub fn new() -> Allocator {
        Allocator {
            overlays: HashMap::new(),
            exhausted: Vec::new(),
            full: Vec::new(),
            summaries: Vec::new(),
            data_hint: 0,
            frugal_from: None,
            metadata_hint: 0,
            pending: 0,
            committing: 0,
            held: 0,
            settling: 0,
        }
    }

    /// Whether a commit would make blocks available.
    pub fn has_pending(&self) -> bool {
        self.pending > 0 || self.committing > 0
    }

    /// Whether a checkpoint would make blocks available.
    pub fn has_held(&self) -> bool {
        self.held > 0 || self.settling > 0
    }

    /// The first group from `from` up to `end` whose search is worth its while.
    pub fn next_with_space(&self, from: u64, end: u64) -> Option<u64> {
        let mut group = from;
        while group < end {
            let none = word(&self.exhausted, group) | word(&self.full, group);
            let rest = !none >> (group % 64);
            if rest != 0 {
                let found = group + u64::from(rest.trailing_zeros());
                return (found < end).then_some(found);
            }
            group = (group / 64 + 1) * 64;
        }
        None
    }

    /// Notes that a search of all of `group` found nothing.
    pub fn set_exhausted(&mut self, group: u64) {
        put_bit(&mut self.exhausted, group, true);
    }

    fn clear_exhausted(&mut self, group: u64) {
        put_bit(&mut self.exhausted, group, false);
    }

    /// Whether the summary of `group` has been taken over.
    #[inline]
    pub fn knows_summary(&self, group: u64) -> bool {
        let summary = group / summary::GROUPS;
        word(&self.summaries, summary) & (1 << (summary % 64)) != 0
    }

    /// Takes over the summary of `group`.
    pub fn learn_summary(&mut self, group: u64, block: &Block) {
        let first = group - group % summary::GROUPS;
        for at in (0..WORDS).map(|word| word * 8) {
            let bits = crate::layout::get64(block, summary::BITS + at);
            let index = first as usize / 64 + at / 8;
            if bits != 0 {
                if self.full.len() <= index {
                    self.full.resize(index + 1, 0);
                }
                self.full[index] = bits;
            }
        }
        put_bit(&mut self.summaries, group / summary::GROUPS, true);
    }

    /// Whether the summary calls `group` full, if it was asked.
    #[inline]
    pub fn is_full(&self, group: u64) -> bool {
        word(&self.full, group) & (1 << (group % 64)) != 0
    }

    /// Notes what the summary says of `group` now.
    pub fn set_full(&mut self, group: u64, full: bool) {
        put_bit(&mut self.full, group, full);
    }

    /// The blocks of `group` from 64 * `word` on that are not available, as a word of bits.
    #[inline]
    fn used(overlay: Option<&Overlay>, map: &Block, word: usize) -> u64 {
        let mut v = crate::layout::get64(map, map::BITS + word * 8);
        if let Some(o) = overlay {
            v |= o.pending.as_ref().map_or(0, |b| b[word]);
            v |= o.committing.as_ref().map_or(0, |b| b[word]);
            v |= o.held.as_ref().map_or(0, |b| b[word]);
            v |= o.settling.as_ref().map_or(0, |b| b[word]);
        }
        v
    }

    /// How many blocks are available from `at` on, up to `limit`, in the group with the map block
    /// `map`.
    pub fn available_at(&self, group: u64, map: &Block, at: usize, limit: usize) -> usize {
        let overlay = self.overlays.get(&group);
        let first = at;
        let mut at = at;
        while at < limit {
            let rest = Self::used(overlay, map, at / 64) >> (at % 64);
            if rest != 0 {
                at += rest.trailing_zeros() as usize;
                break;
            }
            at = (at / 64 + 1) * 64;
        }
        at.min(limit) - first
    }

    /// Finds a run of up to `want` available blocks at or after `from` in a group of `len` blocks
    /// with the map block `map`: the first that is long enough, or the longest of the first few.
    /// Also returns the first available block seen.
    pub fn find(
        &self,
        group: u64,
        map: &Block,
        len: usize,
        from: usize,
        want: usize,
    ) -> Option<(Run, usize)> {
        const RUNS_MAX: usize = 64;
        let overlay = self.overlays.get(&group);
        let mut best = None::<Run>;
        let mut first_seen = None;
        let mut runs = 0;
        let mut at = from;
        while at < len && runs < RUNS_MAX {
            let rest = !Self::used(overlay, map, at / 64) >> (at % 64);
            if rest == 0 {
                at = (at / 64 + 1) * 64;
                continue;
            }
            at += rest.trailing_zeros() as usize;
            if at >= len {
                break;
            }
            let found = self.available_at(group, map, at, len.min(at + want));
            first_seen = first_seen.or(Some(at));
            if best.is_none_or(|b| found > b.len) {
                best = Some(Run { first: at, len: found });
            }
            if found >= want {
                break;
            }
            at += found;
            runs += 1;
        }
        best.zip(first_seen)
    }

    /// Notes a committed allocation.
    pub fn allocated(&mut self, group: u64, run: Run) {
        let fresh = self.overlays.entry(group).or_default().fresh.get_or_insert_with(no_bits);
        set_range(fresh, run.first, run.len, true);
    }

    /// Notes a committed free.
    pub fn freed(&mut self, group: u64, run: Run, metadata: bool) -> Option<usize> {
        let overlay = self.overlays.entry(group).or_default();
        let mut available = None;
        for at in run.first..run.first + run.len {
            if metadata {
                set_range(overlay.held.get_or_insert_with(no_bits), at, 1, true);
                self.held += 1;
            } else if overlay.fresh.as_ref().is_some_and(|b| get_bit(b, at)) {
                available = available.or(Some(at));
            } else {
                set_range(overlay.pending.get_or_insert_with(no_bits), at, 1, true);
                self.pending += 1;
            }
        }
        if available.is_some() {
            self.clear_exhausted(group);
        }
        available
    }

    /// Whether a block was allocated after the last commit.
    pub fn is_fresh(&self, group: u64, at: usize) -> bool {
        self.overlays.get(&group).and_then(|o| o.fresh.as_ref()).is_some_and(|b| get_bit(b, at))
    }

    /// Notes the first half of a commit, when none is in halves: a crash may bring back what was
    /// allocated before it.
    pub fn commit_begun(&mut self) {
        for overlay in self.overlays.values_mut() {
            overlay.fresh = None;
            overlay.committing = overlay.pending.take();
        }
        self.committing = core::mem::take(&mut self.pending);
        self.overlays.retain(|_, o| o.is_needed());
    }

    /// Notes its second half: blocks freed before the first half may be written again. `start_of`
    /// tells the first block of a group.
    pub fn commit_ended(&mut self, start_of: impl Fn(u64) -> u64) {
        let mut lowest = u64::MAX;
        for (&group, overlay) in &mut self.overlays {
            if let Some(bits) = overlay.committing.take() {
                put_bit(&mut self.exhausted, group, false);
                lowest = lowest.min(first_set(&bits, start_of(group)));
            }
        }
        self.committing = 0;
        self.data_hint = self.data_hint.min(lowest);
    }

    /// Notes a commit: blocks freed before it may be written again. `start_of` tells the first
    /// block of a group.
    pub fn committed(&mut self, start_of: impl Fn(u64) -> u64) {
        self.commit_ended(&start_of);
        let mut lowest = u64::MAX;
        for (&group, overlay) in &mut self.overlays {
            overlay.fresh = None;
            if let Some(bits) = overlay.pending.take() {
                put_bit(&mut self.exhausted, group, false);
                lowest = lowest.min(first_set(&bits, start_of(group)));
            }
        }
        self.overlays.retain(|_, o| o.is_needed());
        self.pending = 0;
        self.data_hint = self.data_hint.min(lowest);
    }

    /// Notes the beginning of a checkpoint, when none is under way.
    pub fn checkpoint_begun(&mut self) {
        for overlay in self.overlays.values_mut() {
            overlay.settling = overlay.held.take();
        }
        self.settling = core::mem::take(&mut self.held);
    }

    /// Notes its end: metadata that was freed before it began may be written again. `start_of`
    /// tells the first block of a group.
    pub fn checkpoint_ended(&mut self, start_of: impl Fn(u64) -> u64) {
        self.frugal_from = None;
        let mut lowest = u64::MAX;
        for (&group, overlay) in &mut self.overlays {
            if let Some(bits) = overlay.settling.take() {
                put_bit(&mut self.exhausted, group, false);
                lowest = lowest.min(first_set(&bits, start_of(group)));
            }
        }
        self.overlays.retain(|_, o| o.is_needed());
        self.settling = 0;
        self.data_hint = self.data_hint.min(lowest);
        self.metadata_hint = self.metadata_hint.min(lowest);
    }
}

fn first_set(bits: &[u64; WORDS], start: u64) -> u64 {
    match bits.iter().position(|&w| w != 0) {
        Some(word) => start + word as u64 * 64 + u64::from(bits[word].trailing_zeros()),
        None => u64::MAX,
    }
}
