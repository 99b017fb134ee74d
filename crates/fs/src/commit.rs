//! Commits make operations durable, in one piece or in two halves.
//!
//! A commit in one piece waits for the device. With a commit in halves the caller waits, without
//! the volume: the first half does everything that needs the volume and says what to flush, the
//! second half notes that the flush is done. Operations, checkpoints and other commits may run
//! between the two. That is sound because the two halves mean two moments:
//!
//! - **From the first half on a crash may bring the volume back as it was then.** A block that was
//!   allocated before it counts as old when it is freed later, and a file that is made shorter
//!   after it may be the longer one again until a later commit has ended.
//! - **Until the second half a crash may bring it back as it was before.** Blocks that were freed
//!   before the first half are not written yet, nor are bytes zeroed that a longer file had.
//!
//! There are two kinds. With little data dirty the mark goes to the journal in the first half, with
//! the data, and one flush of the journal ends it. With much, the data has to be durable before a
//! mark may say so: the device is flushed first, the mark comes after, and a second flush ends it.
//! Meanwhile records may have been appended whose data nobody flushed. So that mark covers the
//! records that were there at the first half, and no more.
//!
//! A commit in one piece between the halves covers theirs: the second half then finds nothing to
//! do. One commit at a time is in halves.

use alloc::vec::Vec;

use atoll_block::{Addressable, BLOCK_SIZE, BlockIndex, Flusher};
use atoll_vfs::Errno;

use crate::error::{FsError, Result};
use crate::journal::{Entry, Header, Position, ScanEnd};
use crate::layout::{VolumeState, record};
use crate::store::Store;

/// File data stored since the last commit, or its first half, as byte ranges of the device while
/// they are few.
#[derive(Debug, Default)]
pub struct DirtyData {
    ranges: Vec<(u64, u64)>,
    bytes: u64,
    overflow: bool,
}

impl DirtyData {
    /// Beyond these a flush of the device beats copying the data to the journal.
    const RANGES_MAX: usize = 16;
    const BYTES_MAX: u64 = 64 * 1024;

    #[inline]
    pub fn note(&mut self, at: u64, len: u64) {
        if self.overflow {
            return;
        }
        self.note_slow(at, len);
    }

    fn note_slow(&mut self, at: u64, len: u64) {
        if len > Self::BYTES_MAX {
            self.overflow = true;
            return;
        }
        for range in &mut self.ranges {
            let (start, end) = *range;
            if at <= end && at + len >= start {
                *range = (start.min(at), end.max(at + len));
                self.bytes += range.1 - range.0 - (end - start);
                self.overflow = self.bytes > Self::BYTES_MAX;
                return;
            }
        }
        self.bytes += len;
        self.overflow = self.bytes > Self::BYTES_MAX || self.ranges.len() == Self::RANGES_MAX;
        if !self.overflow {
            self.ranges.push((at, at + len));
        }
    }

    /// Takes `count` blocks from `first` out: they were freed, and may become metadata before the
    /// next commit, which must not carry their old data.
    #[inline]
    pub fn forget(&mut self, first: u64, count: u64) {
        if !self.ranges.is_empty() && !self.overflow {
            self.forget_slow(
                BlockIndex(first).byte_offset(),
                BlockIndex(first + count).byte_offset(),
            );
        }
    }

    fn forget_slow(&mut self, from: u64, to: u64) {
        for at in (0..self.ranges.len()).rev() {
            let (start, end) = self.ranges[at];
            if end <= from || to <= start {
                continue;
            }
            self.bytes -= end.min(to) - start.max(from);
            let before = (start < from).then_some((start, from));
            let after = (to < end).then_some((to, end));
            match (before, after) {
                (Some(left), Some(right)) => {
                    self.ranges[at] = left;
                    self.overflow |= self.ranges.len() == Self::RANGES_MAX;
                    if !self.overflow {
                        self.ranges.push(right);
                    }
                }
                (Some(rest), None) | (None, Some(rest)) => self.ranges[at] = rest,
                (None, None) => _ = self.ranges.swap_remove(at),
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && !self.overflow
    }

    fn clear(&mut self) {
        self.ranges.clear();
        self.bytes = 0;
        self.overflow = false;
    }
}

/// A commit of which the first half is done.
#[derive(Debug)]
struct Half {
    number: u64,
    /// The window that it ends.
    window: u64,
    waits: WaitsFor,
}

/// The things that a commit in halves may wait for.
#[derive(Clone, Copy, Debug)]
enum WaitsFor {
    /// All data and records before the position; the mark comes after.
    Data(Position),
    /// The mark, and with it the journal before `flushed`; everything before `covered` is then
    /// committed.
    Mark { flushed: Position, covered: Position },
}

/// An operation that has begun and goes on after a flush: a commit, or a checkpoint.
#[derive(Debug)]
pub struct Begun {
    /// Names it to [`Store::end_commit`], or [`Store::checkpoint_step`].
    pub number: u64,
    /// The flush that the caller makes first.
    pub flusher: Flusher,
}

/// The state of a volume's commits.
#[derive(Debug)]
pub struct Commits {
    pub dirty_data: DirtyData,
    incarnation: [u8; 16],
    owner: [u8; 32],
    /// The header that was last made durable, or found.
    header: Header,
    /// Counts commits, from their first half on: tells whether something happened since the last
    /// one.
    window: u64,
    /// The last window of which everything is durable.
    durable: u64,
    half: Option<Half>,
    /// Counts the commits in halves.
    halves: u64,
    /// A write or flush failed so that the medium may lack acknowledged changes: no more changes
    /// are taken.
    failed: bool,
    read_only: bool,
}

impl Commits {
    /// The commits of a volume whose newest header is `header`.
    pub fn new(header: &Header, read_only: bool) -> Commits {
        Commits {
            dirty_data: DirtyData::default(),
            incarnation: header.incarnation,
            owner: header.owner,
            header: *header,
            window: 1,
            durable: 0,
            half: None,
            halves: 0,
            failed: false,
            read_only,
        }
    }

    /// Whether data from before the first half of a commit has yet to be flushed where it is.
    fn waits_for_data(&self) -> bool {
        matches!(&self.half, Some(Half { waits: WaitsFor::Data(_), .. }))
    }

    /// The generation of the last journal header.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.header.generation
    }

    /// A header for a journal that begins at `tail`, where the volume's state was `state`.
    pub fn next_header(&self, tail: &ScanEnd, state: VolumeState, clean: bool) -> Header {
        Header {
            generation: self.header.generation + 1,
            incarnation: self.incarnation,
            tail: tail.position,
            sequence: tail.sequence,
            chain: tail.chain,
            state,
            clean,
            failed: false,
            owner: if clean { [0; 32] } else { self.owner },
            block_count: self.header.block_count,
        }
    }

    /// Notes that `header` is durable.
    pub fn set_header(&mut self, header: &Header) {
        self.header = *header;
    }
}

impl<M: Addressable> Store<M> {
    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.commits.read_only || self.commits.failed
    }

    /// Whether changes are refused because the device failed.
    pub fn has_failed(&self) -> bool {
        self.commits.failed
    }

    /// Refuses a change, if changes are refused.
    #[inline]
    pub(crate) fn check_changeable(&self) -> Result<()> {
        if self.commits.read_only {
            return Err(Errno::EROFS.into());
        }
        if self.commits.failed {
            return Err(Errno::EIO.into());
        }
        Ok(())
    }

    /// The number of the commit window that is running.
    #[inline]
    pub fn window(&self) -> u64 {
        self.commits.window
    }

    /// The last commit window of which everything is durable: no crash brings back a state from
    /// before its end.
    #[inline]
    pub fn durable_window(&self) -> u64 {
        self.commits.durable
    }

    /// Refuses changes from now on, and tries to note that on the medium: blocks in the memory
    /// above the medium may look as if they had reached it.
    #[cold]
    pub(crate) fn fail<T>(&mut self, error: FsError) -> Result<T> {
        if !self.commits.failed {
            self.commits.failed = true;
            self.checkpoint = None;
            let header = self.commits.header.following_failure();
            // The device has failed already; if this write fails too, nothing changes.
            let _ = header.write(&mut self.device, &self.superblock);
        }
        Err(error)
    }

    // ---- commits in one piece ----

    /// Whether anything happened since the last commit, or the first half of one.
    fn is_dirty(&self) -> bool {
        self.journal.has_uncommitted()
            || !self.commits.dirty_data.is_empty()
            || self.commits.half.is_some()
    }

    /// Makes every operation so far durable: all data and records, then a commit mark.
    ///
    /// Little data goes to the journal with the mark, which costs one flush of a few blocks; more
    /// is flushed where it is, and the mark after it.
    ///
    /// A crash within leaves the commit before this one, or this one.
    pub fn commit(&mut self) -> Result<()> {
        if self.must_checkpoint() {
            self.make_room()?;
        }
        if self.discards.is_due() {
            return self.checkpoint();
        }
        self.commit_now()
    }

    /// As [`commit`](Self::commit), never as a checkpoint.
    pub(crate) fn commit_now(&mut self) -> Result<()> {
        if self.commits.failed {
            return Err(Errno::EIO.into());
        }
        if !self.is_dirty() || self.commits.read_only {
            return Ok(());
        }
        let flushed = self.commits.dirty_data.overflow || self.commits.waits_for_data();
        let result = if flushed { self.commit_flushed() } else { self.commit_journaled() };
        match result {
            Ok(()) => self.committed(),
            Err(e) => return self.fail(e),
        }
        Ok(())
    }

    /// Notes that everything up to now is committed.
    fn committed(&mut self) {
        let commits = &mut self.commits;
        commits.dirty_data.clear();
        commits.half = None;
        commits.durable = commits.window;
        commits.window += 1;
        self.journal.set_committed(self.journal.head());
        let superblock = &self.superblock;
        self.allocator.committed(|group| superblock.map_block(group).0);
    }

    fn commit_flushed(&mut self) -> Result<()> {
        self.device.flush()?;
        self.journal.set_flushed(self.journal.head());
        self.journal.begin(record::MARK | record::FLUSHED, None);
        self.journal.append(&mut self.device)?;
        self.journal.flush(&mut self.device)
    }

    fn commit_journaled(&mut self) -> Result<()> {
        self.append_data_and_mark()?;
        self.journal.flush(&mut self.device)
    }

    /// Appends a mark, with the data that is dirty.
    fn append_data_and_mark(&mut self) -> Result<()> {
        self.journal.begin(record::MARK, None);
        let mut data = [0; BLOCK_SIZE];
        for &(start, end) in &self.commits.dirty_data.ranges {
            let mut at = start;
            while at < end {
                let offset = (at % BLOCK_SIZE as u64) as usize;
                let n = (end - at).min((BLOCK_SIZE - offset) as u64) as usize;
                self.device.load(at, &mut data[..n])?;
                let block = BlockIndex(at / BLOCK_SIZE as u64);
                self.journal.add(&Entry {
                    block,
                    offset,
                    bytes: &data[..n],
                    init: false,
                    data: true,
                });
                at += n as u64;
            }
        }
        self.journal.append(&mut self.device)
    }

    // ---- commits in halves ----

    /// The first half of a [`commit`](Self::commit): everything but waiting until it is durable.
    /// `None` if nothing is left to wait for: then it was a whole commit, as it is where the device
    /// has no flusher, or another commit is in halves.
    ///
    /// A crash from here to the end of the second half leaves the commit before this one, or this
    /// one. If there never is a second half, the next commit covers this one.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit).
    pub fn begin_commit(&mut self) -> Result<Option<Begun>> {
        if self.must_checkpoint() {
            self.make_room()?;
        }
        let is_idle = self.commits.failed || self.commits.read_only || !self.is_dirty();
        if is_idle || self.commits.half.is_some() {
            return self.commit_now().map(|()| None);
        }
        let (waits, flusher) = if self.commits.dirty_data.overflow {
            let whole = self.device.block_count();
            let Some(flusher) = self.device.flusher(BlockIndex(0), whole) else {
                return self.commit_now().map(|()| None);
            };
            (WaitsFor::Data(self.journal.head()), flusher)
        } else {
            if let Err(e) = self.append_data_and_mark() {
                return self.fail(e);
            }
            let Some(flusher) = self.flush_mark()? else {
                self.committed();
                return Ok(None);
            };
            let head = self.journal.head();
            (WaitsFor::Mark { flushed: head, covered: head }, flusher)
        };
        let number = self.number_commit();
        let commits = &mut self.commits;
        let window = commits.window;
        commits.half = Some(Half { number, window, waits });
        commits.dirty_data.clear();
        commits.window += 1;
        self.allocator.commit_begun();
        Ok(Some(Begun { number, flusher }))
    }

    /// A number for a commit in halves, which no other has.
    pub fn number_commit(&mut self) -> u64 {
        self.commits.halves += 1;
        self.commits.halves
    }

    /// The flush of the mark that was just appended, for the caller to make; `None` if it is done.
    fn flush_mark(&mut self) -> Result<Option<Flusher>> {
        let (first, count) = self.journal.unflushed_blocks();
        let flusher = self.device.flusher(first, count);
        if flusher.is_none()
            && let Err(e) = self.journal.flush(&mut self.device)
        {
            return self.fail(e);
        }
        Ok(flusher)
    }

    /// Goes on with the commit `number` after its flush, whose result is `flushed`. There may be
    /// another flush to wait for, once; else the commit is done.
    ///
    /// # Errors
    /// That of the flush, or of the device: the commit has failed, and the volume takes no more
    /// changes, as after a [`commit`](Self::commit) that fails. `EIO` if another has failed
    /// meanwhile.
    pub fn end_commit(&mut self, number: u64, flushed: Result<()>) -> Result<Option<Begun>> {
        if let Err(e) = flushed {
            return self.fail(e);
        }
        if self.commits.failed {
            return Err(Errno::EIO.into());
        }
        let Some(half) = self.commits.half.take_if(|half| half.number == number) else {
            // A commit in one piece has covered it.
            return Ok(None);
        };
        match half.waits {
            WaitsFor::Data(head) => {
                self.journal.set_flushed(head);
                let alone = self.journal.head() == head;
                if alone {
                    self.journal.begin(record::MARK | record::FLUSHED, None);
                } else {
                    self.journal.begin_covering(head);
                }
                if let Err(e) = self.journal.append(&mut self.device) {
                    return self.fail(e);
                }
                let flushed = self.journal.head();
                let covered = if alone { flushed } else { head };
                let half = Half { waits: WaitsFor::Mark { flushed, covered }, ..half };
                match self.flush_mark()? {
                    Some(flusher) => {
                        self.commits.half = Some(half);
                        Ok(Some(Begun { number, flusher }))
                    }
                    None => self.end_half(&half, flushed, covered),
                }
            }
            WaitsFor::Mark { flushed, covered } => self.end_half(&half, flushed, covered),
        }
    }

    /// Notes that everything before `flushed` is durable, and so is a mark that covers the records
    /// before `covered`.
    fn end_half(
        &mut self,
        half: &Half,
        flushed: Position,
        covered: Position,
    ) -> Result<Option<Begun>> {
        self.journal.set_flushed(flushed);
        self.journal.set_committed(covered);
        self.commits.durable = half.window;
        let superblock = &self.superblock;
        self.allocator.commit_ended(|group| superblock.map_block(group).0);
        match self.journal.prepare(&mut self.device) {
            Ok(()) => Ok(None),
            Err(e) => self.fail(e),
        }
    }

    // ---- recovery ----

    /// Refuses changes, or takes them.
    pub(crate) fn set_read_only(&mut self, read_only: bool) {
        self.commits.read_only = read_only;
    }

    /// Makes the records that recovery is about to apply a commit.
    pub(crate) fn commit_recovered(&mut self) -> Result<()> {
        self.commit_flushed()?;
        self.journal.set_committed(self.journal.head());
        Ok(())
    }

    /// Lists blocks that recovery is about to write home, as the records before `end` make them,
    /// durably. The lists stand behind all records, those that do not count included: a mark among
    /// these may decide which records count.
    pub(crate) fn list_recovered(
        &mut self,
        end: Position,
        blocks: impl Iterator<Item = (u64, u64)>,
    ) -> Result<()> {
        let head = self.journal.head();
        self.journal.append_home(&mut self.device, Some(end), blocks)?;
        if self.journal.head() != head {
            self.journal.stop(&mut self.device)?;
            self.journal.flush(&mut self.device)?;
        }
        Ok(())
    }

    /// Begins the journal anew after recovery, with nothing in it.
    ///
    /// Records that recovery left aside stay in the ring behind the head; so the new ones have
    /// numbers above all of theirs.
    pub(crate) fn begin_journal(&mut self) -> Result<()> {
        self.device.flush()?;
        self.journal.begin_numbers();
        let (sequence, chain) = self.journal.next();
        let tail = ScanEnd { position: self.journal.head(), sequence, chain };
        self.journal.set_tail(tail.position);
        let header = self.commits.next_header(&tail, self.state, false);
        header.write(&mut self.device, &self.superblock)?;
        self.commits.set_header(&header);
        Ok(())
    }

    /// Notes that the volume is mounted by `owner`, in the life of memory that `incarnation` names.
    pub(crate) fn set_incarnation(&mut self, incarnation: [u8; 16], owner: [u8; 32]) {
        self.commits.incarnation = incarnation;
        self.commits.owner = owner;
    }

    /// Gives the device back.
    pub(crate) fn into_device(self) -> M {
        self.device
    }
}
