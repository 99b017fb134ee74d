//! Checkpoints: they write changed metadata home, so that the journal before need not be kept.
//!
//! A checkpoint runs in steps. Each takes the volume for a moment only; operations and commits may
//! run between two of them.
//!
//! 1. **Begin.** The journal's present head becomes its tail, with the present state. All blocks
//!    that have changed until now have to go home.
//! 2. **Capture.** The checkpoint seals each changed block, and lists it in the journal with its
//!    checksum: if power loss leaves the block half written, the list tells that from damage. The
//!    captured content goes home. A block that changes again is copied first.
//! 3. **Commit.** A commit makes all lists durable, and with them the records of all captured
//!    changes: home never is ahead of the journal. Any commit will do.
//! 4. **Write** the captured blocks home, and flush them.
//! 5. **Header.** It says where the journal begins. When it is durable, blocks that were freed
//!    before the checkpoint began may be used again, and so may the ring before the new tail.
//!
//! A block goes home as it was when it was captured, later than the new tail. Records between the
//! two are in the journal all the same, and putting their bytes there once more changes nothing:
//! recovery goes at least as far as the commit, and so past the capture.
//!
//! A host with a thread to spare takes the steps, and waits for the device, on that thread. Without
//! one, an operation that finds the ring full takes all steps at once.

use alloc::vec::Vec;

use atoll_block::{Addressable, BlockIndex};
use atoll_vfs::Errno;

use crate::commit::Begun;
use crate::discard;
use crate::error::Result;
use crate::journal::{Header, Position, ScanEnd};
use crate::layout::{VolumeState, common, get64};
use crate::pair;
use crate::store::Store;

/// Blocks that one step captures, or writes: a fraction of a millisecond.
const PIECE: usize = 64;
/// The most that is written in one call.
const RUN_BYTES: usize = 64 << 10;

/// A checkpoint that has begun.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// Where the journal will begin, and the state there.
    tail: ScanEnd,
    state: VolumeState,
    /// The blocks that had changed when it began.
    blocks: Vec<u64>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The blocks from this one on have to be captured.
    Capture(usize),
    /// Everything before this position has to be committed.
    Commit(Position),
    /// The blocks from this one on have to be written. When the writing began the journal's head
    /// was at `head`.
    Write { at: usize, head: Position },
    /// The written blocks have to be flushed.
    Flush { head: Position },
    /// So has the header.
    Header(Header),
}

impl Checkpoint {
    /// How many blocks have yet to be listed.
    fn unlisted(&self) -> usize {
        match self.stage {
            Stage::Capture(at) => self.blocks.len() - at,
            _ => 0,
        }
    }
}

/// The outcome of a step of a checkpoint.
#[derive(Debug)]
pub(crate) enum Step {
    /// The checkpoint has ended.
    Idle,
    /// There is more to do.
    More,
    /// There is more to do after a commit.
    Commit,
    /// There is more to do after this flush, whose number the next step is told.
    Flush(Begun),
}

impl<M: Addressable> Store<M> {
    /// Whether an operation has to make room before it: the journal is nearly full, or has hardly
    /// any storage left, or memory is nearly full.
    #[inline]
    pub(crate) fn must_checkpoint(&self) -> bool {
        self.journal.is_full(self.to_list()) || self.cache.is_full()
    }

    /// Whether a host that takes checkpoints in steps should begin one: half of what forces one is
    /// reached, or much was freed that the device may have back.
    #[inline]
    pub(crate) fn should_checkpoint(&self) -> bool {
        self.checkpoint.is_some()
            || self.discards.is_due()
            || self.journal.is_half_full(self.to_list())
            || self.cache.is_half_full()
            || self.discards.has_settled()
    }

    /// The blocks that this checkpoint and the next have to list, or more.
    fn to_list(&self) -> usize {
        self.cache.changed() + self.checkpoint.as_ref().map_or(0, Checkpoint::unlisted)
    }

    // ---- whole checkpoints ----

    /// Commits, writes all changed metadata home, and empties the journal.
    ///
    /// A crash within leaves the journal as it was, or shorter, or empty.
    pub fn checkpoint(&mut self) -> Result<()> {
        self.checkpoint_as(false)
    }

    /// The last checkpoint before the volume is let go.
    pub fn checkpoint_clean(&mut self) -> Result<()> {
        self.checkpoint_as(true)
    }

    /// Makes room in the journal and the cache: has storage set aside, if that is enough, or ends
    /// the checkpoint that is under way, or makes one.
    #[cold]
    pub(crate) fn make_room(&mut self) -> Result<()> {
        if self.reserve_journal()? && !self.must_checkpoint() {
            return Ok(());
        }
        if self.checkpoint.is_some() {
            self.finish_checkpoint(false)?;
            if !self.must_checkpoint() {
                return Ok(());
            }
        }
        self.checkpoint()
    }

    fn checkpoint_as(&mut self, clean: bool) -> Result<()> {
        if self.has_failed() {
            return Err(Errno::EIO.into());
        }
        if self.is_read_only() {
            return Ok(());
        }
        self.finish_checkpoint(false)?;
        self.begin_checkpoint();
        self.finish_checkpoint(clean)?;
        self.discard_settled(if clean { usize::MAX } else { discard::BATCH });
        if !clean && !self.reserve_journal()? {
            self.begin_lap()?;
        }
        Ok(())
    }

    /// Has storage set aside for the records until room is made the next time. Returns false where
    /// the host has none left.
    fn reserve_journal(&mut self) -> Result<bool> {
        if self.is_read_only() {
            return Ok(true);
        }
        let listed = self.to_list();
        self.journal.reserve(&mut self.device, listed)
    }

    /// Goes on at the beginning of the ring, which has storage from the start: the host has none
    /// for the next records. After a whole checkpoint nothing in the ring is needed.
    ///
    /// A crash within finds the journal empty in either place.
    fn begin_lap(&mut self) -> Result<()> {
        if !self.journal.is_empty() {
            return Ok(());
        }
        let tail = self.journal.next_lap();
        let header = self.commits.next_header(&tail, self.state, false);
        // Records in the new place count only where a header leads to it: it has to be durable
        // before them.
        if let Err(e) = header.write(&mut self.device, &self.superblock) {
            return self.fail(e);
        }
        self.commits.set_header(&header);
        self.journal.begin_lap();
        self.reserve_journal().map(drop)
    }

    /// Takes all steps that are left of the checkpoint that is under way.
    fn finish_checkpoint(&mut self, clean: bool) -> Result<()> {
        while let Some(checkpoint) = &self.checkpoint {
            match checkpoint.stage {
                Stage::Capture(_) | Stage::Write { .. } => self.advance()?,
                Stage::Commit(_) => {
                    self.commit_now()?;
                    self.advance()?;
                }
                Stage::Flush { head } => {
                    if let Err(e) = self.device.flush() {
                        return self.fail(e.into());
                    }
                    self.store_header(head, clean)?;
                }
                Stage::Header(header) => {
                    if let Err(e) = header.flush(&mut self.device, &self.superblock) {
                        return self.fail(e);
                    }
                    self.end_checkpoint(&header);
                }
            }
        }
        Ok(())
    }

    // ---- checkpoints in steps ----

    /// Takes one step of the checkpoint that is under way, or begins one if there is anything to
    /// write. `flushed`: the result of the flush that the last step left to the caller.
    ///
    /// # Errors
    /// That of the flush, or of the device: the volume takes no more changes, as after a
    /// [`commit`](Self::commit) that fails. `EIO` if another has failed meanwhile.
    pub(crate) fn checkpoint_step(&mut self, flushed: Option<(u64, Result<()>)>) -> Result<Step> {
        if let Some((_, Err(e))) = flushed {
            return self.fail(e);
        }
        if self.has_failed() {
            return Err(Errno::EIO.into());
        }
        if self.is_read_only() {
            return Ok(Step::Idle);
        }
        let Some(checkpoint) = &self.checkpoint else {
            if self.discards.has_settled() {
                self.discard_settled(1);
                return Ok(self.discards_left());
            }
            if self.journal.is_empty() && self.cache.changed() == 0 {
                return Ok(Step::Idle);
            }
            self.begin_checkpoint();
            return Ok(Step::More);
        };
        // A flush for a checkpoint that another caller has ended says nothing of this one.
        let is_flushed = flushed.is_some_and(|(number, _)| number == self.checkpoint_flushes);
        match checkpoint.stage {
            Stage::Capture(_) | Stage::Write { .. } => self.advance()?,
            Stage::Commit(position) if self.journal.committed() < position => {
                return Ok(Step::Commit);
            }
            Stage::Commit(_) => self.advance()?,
            Stage::Flush { head } => {
                let whole = (BlockIndex(0), self.device.block_count());
                if !is_flushed && let Some(waiting) = self.waiting(whole)? {
                    return Ok(Step::Flush(waiting));
                }
                self.store_header(head, false)?;
            }
            Stage::Header(header) => {
                if !is_flushed
                    && let Some(waiting) = self.waiting(header.blocks(&self.superblock))?
                {
                    return Ok(Step::Flush(waiting));
                }
                self.end_checkpoint(&header);
                return Ok(self.discards_left());
            }
        }
        Ok(Step::More)
    }

    /// Whether the checkpoints so far left something to discard.
    fn discards_left(&self) -> Step {
        if self.discards.has_settled() { Step::More } else { Step::Idle }
    }

    /// The flush of these blocks, for the caller to make; `None` if it is done.
    fn waiting(&mut self, (first, count): (BlockIndex, u64)) -> Result<Option<Begun>> {
        self.checkpoint_flushes += 1;
        if let Some(flusher) = self.device.flusher(first, count) {
            return Ok(Some(Begun { number: self.checkpoint_flushes, flusher }));
        }
        match self.device.flush_range(first, count) {
            Ok(()) => Ok(None),
            Err(e) => self.fail(e.into()),
        }
    }

    // ---- the steps ----

    fn begin_checkpoint(&mut self) {
        let mut blocks = self.cache.take_changed();
        blocks.sort_unstable();
        blocks.dedup();
        let (sequence, chain) = self.journal.next();
        let tail = ScanEnd { position: self.journal.head(), sequence, chain };
        self.allocator.checkpoint_begun();
        self.discards.checkpoint_begun();
        // A flush that a caller still waits for began earlier, and must not count for this
        // checkpoint.
        self.checkpoint_flushes += 1;
        let stage = Stage::Capture(0);
        self.checkpoint = Some(Checkpoint { tail, state: self.state, blocks, stage });
    }

    /// Takes the next step that needs no waiting.
    fn advance(&mut self) -> Result<()> {
        let Some(mut checkpoint) = self.checkpoint.take() else { return Ok(()) };
        let result = match checkpoint.stage {
            Stage::Capture(at) => self.capture(&mut checkpoint, at),
            Stage::Commit(_) => {
                checkpoint.stage = Stage::Write { at: 0, head: self.journal.head() };
                Ok(())
            }
            Stage::Write { at, head } => self.write_home(&mut checkpoint, at, head),
            Stage::Flush { .. } | Stage::Header(_) => Ok(()),
        };
        if let Err(e) = result {
            return self.fail(e);
        }
        self.checkpoint = Some(checkpoint);
        Ok(())
    }

    /// Captures some blocks, and lists them.
    fn capture(&mut self, checkpoint: &mut Checkpoint, at: usize) -> Result<()> {
        let end = checkpoint.blocks.len().min(at + PIECE);
        let mut captured = Vec::with_capacity(end - at);
        for &block in &checkpoint.blocks[at..end] {
            if let Some(data) = self.cache.capture(block) {
                captured.push((block, get64(data, common::CHECKSUM)));
            }
        }
        self.journal.append_home(&mut self.device, None, captured.into_iter())?;
        checkpoint.stage = match end < checkpoint.blocks.len() {
            true => Stage::Capture(end),
            false => Stage::Commit(self.journal.head()),
        };
        Ok(())
    }

    /// Writes some blocks home as they were captured. A block that was not captured had gone
    /// before.
    fn write_home(&mut self, checkpoint: &mut Checkpoint, at: usize, head: Position) -> Result<()> {
        let end = checkpoint.blocks.len().min(at + PIECE);
        let mut bytes: Vec<u8> = Vec::new();
        // The first blocks of runs of neighbours, and where the bytes of each begin.
        let mut runs: Vec<(BlockIndex, usize)> = Vec::new();
        let mut next = BlockIndex(0);
        for &block in &checkpoint.blocks[at..end] {
            let Some(data) = self.cache.captured(block) else { continue };
            let is_long = |&(_, start): &(BlockIndex, usize)| bytes.len() - start >= RUN_BYTES;
            if next.0 != block || runs.last().is_none_or(is_long) {
                runs.push((BlockIndex(block), bytes.len()));
            }
            bytes.extend_from_slice(data);
            next = BlockIndex(block + 1);
            if pair::is_pair(data) {
                bytes.extend_from_slice(&pair::second(data));
                next.0 += 1;
            }
        }
        let ends = runs.iter().skip(1).map(|&(_, start)| start).chain([bytes.len()]);
        let writes =
            runs.iter().zip(ends).map(|(&(first, start), end)| (first, &bytes[start..end]));
        self.device.write_all(&writes.collect::<Vec<_>>())?;
        for &block in &checkpoint.blocks[at..end] {
            self.cache.written(block);
        }
        checkpoint.stage = match end < checkpoint.blocks.len() {
            true => Stage::Write { at: end, head },
            false => Stage::Flush { head },
        };
        Ok(())
    }

    /// Stores the header after everything is home. If the journal's head still is `head`, no record
    /// was appended since, and the journal is empty.
    fn store_header(&mut self, head: Position, clean: bool) -> Result<()> {
        let Some(checkpoint) = &mut self.checkpoint else { return Ok(()) };
        let (sequence, chain) = self.journal.next();
        let is_idle = self.journal.head() == head && self.journal.committed() == head;
        let is_empty = is_idle && self.cache.dirty() == 0;
        let (tail, state) = match is_empty {
            true => (ScanEnd { position: head, sequence, chain }, self.state),
            false => (checkpoint.tail, checkpoint.state),
        };
        let header = self.commits.next_header(&tail, state, clean && is_empty);
        checkpoint.stage = Stage::Header(header);
        if let Err(e) = header.store(&mut self.device, &self.superblock) {
            return self.fail(e);
        }
        Ok(())
    }

    /// The header is durable.
    fn end_checkpoint(&mut self, header: &Header) {
        self.checkpoint = None;
        self.commits.set_header(header);
        self.journal.set_tail(header.tail);
        self.discards.checkpoint_ended();
        let superblock = &self.superblock;
        self.allocator.checkpoint_ended(|group| superblock.map_block(group).0);
    }
}
