//! A volume as a mount would see it, without writing: the blocks at home, and over them the
//! journal's changes.
//!
//! Only the places of the journal's byte ranges are kept in memory, in at most twice the ring's
//! size on the device.

use alloc::vec::Vec;

use atoll_block::{Addressable, BLOCK_SIZE, BlockError, BlockIndex};
use hashbrown::HashSet;

use super::report::{Finding, NodeFault, Report};
use crate::error::{FsError, Result};
use crate::journal::{self, Header, Headers, Journal, Position, ScanEnd};
use crate::layout::{self, Block, Superblock, VolumeState, common, get32, get64, record};
use crate::opening::{Found, Opening};
use crate::pair;
use crate::recovery::{self, Change, Proof, Replay, is_sound};
use crate::report::MountNote;

/// An entry of the journal for a metadata block.
#[derive(Clone, Copy, Debug)]
struct Patch {
    block: u64,
    kind: PatchKind,
}

#[derive(Clone, Copy, Debug)]
enum PatchKind {
    /// It puts bytes there, which are in the ring at `at`.
    Bytes { at: Position, offset: u16, len: u16, init: bool },
    /// The block was about to be written home, with this checksum.
    Listed(u64),
}

/// The recovered volume.
pub(crate) struct View<'d, M> {
    pub device: &'d mut M,
    pub sb: Superblock,
    /// The newer of the journal headers, if one is valid.
    pub header: Option<Header>,
    /// The state after the journal's last record.
    pub state: Option<VolumeState>,
    /// By block, then in the journal's order.
    patches: Vec<Patch>,
    tail: ScanEnd,
    /// The end of the records that count.
    end: ScanEnd,
    /// The end of the records.
    chain_end: ScanEnd,
    trusted: bool,
    void_before: Position,
    /// The highest number of a record in the ring.
    latest: u64,
}

impl<'d, M: Addressable> View<'d, M> {
    /// Reads superblock and journal, to change the volume or not: see [`Opening::begin`]. Their
    /// faults go to `report`.
    ///
    /// # Errors
    /// There is no volume, or the device fails in the journal.
    pub fn open(
        device: &'d mut M,
        incarnation: [u8; 16],
        writes: bool,
        report: &mut Report,
    ) -> Result<View<'d, M>> {
        let opening = Opening::begin(device, writes)?;
        let header = opening.header.ok();
        let start = ScanEnd { position: 0, sequence: 1, chain: 0 };
        let mut view = View {
            device,
            sb: opening.sb().clone(),
            header,
            state: None,
            patches: Vec::new(),
            tail: start,
            end: start,
            chain_end: start,
            trusted: false,
            void_before: 0,
            latest: 0,
        };
        let found = match header {
            Some(header) => Some(opening.journal(view.device, &header, incarnation)?),
            None => None,
        };
        // While a volume grows the first superblock is written over; no mount has begun by then. A
        // crash leaves other bytes in what was being written, and nothing that cannot be read.
        let grows = header.is_some_and(|h| !h.clean && h.incarnation == [0; 16]);
        for note in opening.notes(found.as_ref()) {
            match note {
                MountNote::Superblock { copy }
                    if copy || !grows || opening.superblocks.is_unreadable(copy) =>
                {
                    report.add(Finding::Superblock { copy });
                }
                MountNote::JournalHeader { block } if opening.headers.is_unreadable(block) => {
                    report.add(Finding::JournalHeader { block });
                }
                note => report.notes.push(note),
            }
        }
        report.failed = opening.failed;
        if header.is_none() {
            report.add(Finding::JournalHeaders);
        }
        if header.is_some_and(|h| is_worn(&h)) {
            report.add(Finding::JournalNumbers);
        }
        if let (Some(header), Some(found)) = (header, found) {
            view.read_journal(&header, found, report)?;
        }
        Ok(view)
    }

    /// As in a mount: goes through the journal's records that count.
    fn read_journal(&mut self, header: &Header, found: Found, report: &mut Report) -> Result<()> {
        let sb = self.sb.clone();
        let Found { tail, extent, trusted, end, is_cut } = found;
        self.trusted = trusted;
        if is_cut {
            report.add(Finding::JournalCut { sequence: extent.end.sequence });
        }
        self.latest = extent.latest;
        let mut state = header.state;
        let mut applied = tail;
        let patches = &mut self.patches;
        let mut changed = HashSet::new();
        if end != tail {
            let result = journal::scan(self.device, &sb, tail, |_, record| {
                let before = (state, patches.len());
                let result = note_record(record, &sb, &mut state, patches, &mut changed);
                if let Err(e) = result {
                    state = before.0;
                    patches.truncate(before.1);
                    return Err(e);
                }
                report.journal_records += 1;
                applied = record.end;
                Ok(record.end.position < end.position)
            });
            match result {
                Err(FsError::Corrupt(_)) => {
                    report.add(Finding::JournalRecord { sequence: applied.sequence });
                }
                other => {
                    other?;
                }
            }
        }
        if applied == end && end != tail {
            // The blocks that a recovery was about to write home are listed behind the records that
            // count.
            journal::scan(self.device, &sb, end, |_, record| {
                note_lists(record, end.position, patches, &changed);
                Ok(true)
            })?;
        }
        self.chain_end = if applied == end { extent.end } else { applied };
        // A stable sort: the ranges of one block stay in the order of the journal.
        self.patches.sort_by_key(|p| p.block);
        self.tail = tail;
        self.end = applied;
        self.void_before = extent.void_before;
        self.state = Some(state);
        report.clean_unmount = header.clean && applied == tail;
        Ok(())
    }

    fn patches_of(&self, block: u64) -> core::ops::Range<usize> {
        let first = self.patches.partition_point(|p| p.block < block);
        let count = self.patches[first..].partition_point(|p| p.block == block);
        first..first + count
    }

    /// Whether the journal changes `block`.
    pub fn is_patched(&self, block: u64) -> bool {
        !self.patches_of(block).is_empty()
    }

    /// The content of a metadata block of kind `magic`, with checksum and index checked.
    pub fn read(&mut self, block: u64, magic: u32) -> core::result::Result<Block, NodeFault> {
        let mut b = [0; BLOCK_SIZE];
        let patches = self.patches_of(block);
        if patches.is_empty() {
            self.device.read(BlockIndex(block), &mut b).map_err(|_| NodeFault::Unreadable)?;
            layout::verify(&b, BlockIndex(block), magic).map_err(|_| NodeFault::Checksum)?;
            return Ok(b);
        }
        self.patched(block, patches, &mut b).map_err(|e| match e {
            FsError::Corrupt(_) => NodeFault::Checksum,
            _ => NodeFault::Unreadable,
        })?;
        if get32(&b, common::MAGIC) != magic || get64(&b, common::BLOCK) != block {
            return Err(NodeFault::Checksum);
        }
        Ok(b)
    }

    /// The content of the block `first` of those that stand twice, from whichever of the two is
    /// right. Also says which is damaged.
    pub fn read_pair(
        &mut self,
        first: BlockIndex,
        magic: u32,
    ) -> core::result::Result<(Block, [bool; 2]), NodeFault> {
        if self.is_patched(first.0) {
            return self.read(first.0, magic).map(|b| (b, [false; 2]));
        }
        match pair::read_settled(self.device, first, magic) {
            Ok(pair) => Ok((pair.data, pair.damaged)),
            Err(FsError::Corrupt(_)) => Err(NodeFault::Checksum),
            Err(_) => Err(NodeFault::Unreadable),
        }
    }

    /// The content of a block as the journal makes it, sealed. Returns whether the last list says
    /// so.
    fn patched(
        &mut self,
        block: u64,
        patches: core::ops::Range<usize>,
        b: &mut Block,
    ) -> Result<bool> {
        let patches = &self.patches[patches];
        let is_init = |p: &Patch| matches!(p.kind, PatchKind::Bytes { init: true, .. });
        let from = patches.iter().rposition(is_init);
        let mut proof = Proof::new(true);
        if from.is_none() {
            recovery::read_home(self.device, &self.sb, BlockIndex(block), b)?;
            proof = Proof::new(is_sound(b, block));
        }
        for p in &patches[from.unwrap_or(0)..] {
            match p.kind {
                PatchKind::Bytes { at, offset, len, .. } => {
                    let bytes = &mut b[offset as usize..offset as usize + len as usize];
                    journal::load(self.device, &self.sb, at, bytes)?;
                }
                PatchKind::Listed(checksum) => proof.listed(b, checksum),
            }
        }
        proof.verify(b)
    }

    /// Recovers the volume: makes the journal's records a commit, puts everything in its place and
    /// empties the journal.
    ///
    /// A crash within leaves a journal that says the same. Without a valid header an empty journal
    /// is begun by [`write_state`](Self::write_state).
    pub fn settle(&mut self) -> Result<()> {
        let (Some(header), Some(state)) = (self.header, self.state) else {
            return Ok(());
        };
        if self.end == self.tail {
            return Ok(());
        }
        let sb = self.sb.clone();
        let mut journal = Journal::new(&sb, header.tail, &self.chain_end);
        if self.trusted {
            self.device.flush()?;
            journal.begin(record::MARK | record::FLUSHED, None);
            // Without room for the mark, power loss within this repair brings back less.
            if journal.append(self.device).is_ok() {
                journal.flush(self.device)?;
            }
        } else {
            let patches = &self.patches;
            let is_metadata = |block| patches.binary_search_by_key(&block, |p| p.block).is_ok();
            let replay = Replay { tail: self.tail, end: self.end, data_after: self.void_before };
            replay.for_each(self.device, &sb, state, |device, _, change| {
                if let Change::Entry(entry) = change
                    && entry.data
                    && !is_metadata(entry.block.0)
                {
                    device.store(entry.block.byte_offset() + entry.offset as u64, entry.bytes)?;
                }
                Ok(())
            })?;
        }
        let state_at = if self.trusted { journal.head() } else { self.end.position };
        let mut blocks = Vec::new();
        self.for_patched(|_, block, b, listed| {
            if !listed {
                blocks.push((block, get64(b, common::CHECKSUM)));
            }
            Ok(())
        })?;
        journal.append_home(self.device, Some(state_at), blocks.into_iter())?;
        journal.stop(self.device)?;
        self.device.flush()?;
        self.for_patched(|device, block, b, _| {
            recovery::write_home(device, &sb, BlockIndex(block), b)
        })?;
        self.device.flush()?;
        let (sequence, _) = journal.next();
        self.patches.clear();
        self.end = ScanEnd { position: journal.head(), sequence, chain: journal.next().1 };
        self.write_state(&state)
    }

    /// The blocks that the journal changes, but that are damaged at home.
    pub fn damaged(&mut self) -> Vec<u64> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.patches.len() {
            let block = self.patches[at].block;
            let patches = self.patches_of(block);
            at = patches.end;
            if self.patched(block, patches, &mut [0; BLOCK_SIZE]).is_err() {
                found.push(block);
            }
        }
        found
    }

    /// Calls `each` for every block that the journal changes, sealed, and whether it is listed. A
    /// block that the device has lost is left out: the check will find missing what depends on it.
    fn for_patched(
        &mut self,
        mut each: impl FnMut(&mut M, u64, &mut Block, bool) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < self.patches.len() {
            let block = self.patches[at].block;
            let patches = self.patches_of(block);
            at = patches.end;
            let mut b = [0; BLOCK_SIZE];
            if let Ok(listed) = self.patched(block, patches, &mut b) {
                each(self.device, block, &mut b, listed)?;
            }
        }
        Ok(())
    }

    /// Empties the journal and makes `state` the volume's. The volume has to be flushed before, and
    /// is after.
    pub fn write_state(&mut self, state: &VolumeState) -> Result<()> {
        let sb = self.sb.clone();
        let fresh = self.header.is_none_or(|h| is_worn(&h));
        // Both slots, so that no copy of a header stays damaged.
        let times = 2;
        let last = self.header.filter(|_| !fresh).map_or(0, |h| h.generation);
        if fresh {
            self.latest = 0;
            self.end = ScanEnd { position: 0, sequence: 1, chain: sb.chain_seed() };
            // Nothing that an older journal left must look as if it continued the new one.
            journal::clear_ring(self.device, &sb)?;
            self.device.flush()?;
        }
        self.stop_ring()?;
        for generation in last + 1..=last + times {
            let mut journal = Journal::new(&sb, self.end.position, &self.end);
            journal.note_sequence(self.latest);
            journal.begin_numbers();
            let (sequence, chain) = journal.next();
            self.end.sequence = sequence;
            let header = Header {
                generation,
                incarnation: [0; 16],
                tail: self.end.position,
                sequence,
                chain,
                state: *state,
                clean: true,
                failed: false,
                owner: [0; 32],
                block_count: sb.block_count,
            };
            header.write(self.device, &sb)?;
            self.device.flush()?;
            self.header = Some(header);
        }
        self.tail = self.end;
        self.state = Some(*state);
        Ok(())
    }

    /// Makes sure that no old record begins where the new journal will. Where a header was lost the
    /// numbers of the journal that it began may come a second time.
    fn stop_ring(&mut self) -> Result<()> {
        let end = self.end.position;
        let tail = self.header.map_or(end, |h| h.tail.min(end));
        Journal::new(&self.sb, tail, &self.end).stop(self.device)?;
        Ok(self.device.flush()?)
    }

    /// Reads the journal again, of which no record counts that has no commit mark after it.
    pub fn reload(&mut self) -> Result<()> {
        let opening = Opening::begin(self.device, true)?;
        let header = opening.header?;
        self.header = Some(header);
        self.patches.clear();
        let found = opening.journal(self.device, &header, [0; 16])?;
        self.read_journal(&header, found, &mut Report::default())
    }

    /// Notes on the medium that the device failed, if it did and if it can: blocks in the memory
    /// above the medium may look as if they had reached it. As in a mount.
    pub fn fail<T>(&mut self, error: FsError) -> Result<T> {
        if error == FsError::Device(BlockError::Io) {
            // Where all headers were damaged, one of those that were being written may be whole.
            let header = self.header.or_else(|| Headers::read(self.device, &self.sb).newest().ok());
            let _ = header.map(|h| h.following_failure().write(self.device, &self.sb));
        }
        Err(error)
    }

    /// Where the empty journal of a settled volume begins.
    pub fn journal(&self) -> Journal {
        Journal::new(&self.sb, self.end.position, &self.end)
    }
}

/// Whether the header's numbers are too great to go on from, as no use of a volume makes them.
fn is_worn(header: &Header) -> bool {
    header.generation.max(header.tail).max(header.sequence) > 1 << 61
}

/// Notes the entries of a record. `changed`: the blocks that it and those before put bytes into.
fn note_record(
    record: &journal::Record<'_>,
    sb: &Superblock,
    state: &mut VolumeState,
    patches: &mut Vec<Patch>,
    changed: &mut HashSet<u64>,
) -> Result<()> {
    if let Some(s) = record.state(sb)? {
        *state = s;
    }
    note_lists(record, Position::MAX, patches, changed);
    let mut at = record.entries();
    record.for_each(sb, |entry| {
        at += record::ENTRY_LEN as u64;
        if !entry.data {
            changed.insert(entry.block.0);
            let (offset, len) = (entry.offset as u16, entry.bytes.len() as u16);
            let kind = PatchKind::Bytes { at, offset, len, init: entry.init };
            patches.push(Patch { block: entry.block.0, kind });
        }
        at += entry.bytes.len() as u64;
        Ok(())
    })
}

/// Notes the blocks that a record lists as about to be written home, as the records before `end`
/// make them. For a block that no record before changes the list says nothing: it was as it is at
/// home.
fn note_lists(
    record: &journal::Record<'_>,
    end: Position,
    patches: &mut Vec<Patch>,
    changed: &HashSet<u64>,
) {
    for (block, checksum) in record.home(end) {
        if changed.contains(&block) {
            patches.push(Patch { block, kind: PatchKind::Listed(checksum) });
        }
    }
}
