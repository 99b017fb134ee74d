//! The journal: a ring of redo records, each chained to the one before by checksum.
//!
//! A record is stored with one copy to the device when its operation commits; from then on the
//! operation survives the end of the process. Commit marks say what survives power loss.

use alloc::vec;
use alloc::vec::Vec;

use atoll_block::{BLOCK_SIZE, BlockIndex, Memory};
use atoll_vfs::Errno;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use self::header::Header;
pub(crate) use self::header::Headers;
use crate::error::{Corruption, Result};
use crate::layout::{
    Block, Superblock, VolumeState, get16, get32, get64, magic, put16, put32, put64, record,
};

mod header;

/// A place in the ring, in bytes, ever growing; its place on the device is that modulo the ring.
pub type Position = u64;

/// The writing end of the ring.
#[derive(Debug)]
pub struct Journal {
    base: u64,
    len: u64,
    tail: Position,
    head: Position,
    flushed: Position,
    /// What is before needs no further commit mark.
    committed: Position,
    /// How far the device was told to expect commits.
    prepared: Position,
    sequence: u64,
    chain: u64,
    buf: Vec<u8>,
    /// The longest record so far, in bytes.
    pub longest: usize,
}

/// More than a commit appends: a mark, up to 64 KiB of data, and an entry for each of its pieces.
const COMMIT_MAX: u64 = 128 << 10;
/// How much of the ring is prepared for commits at a time: enough for a few hundred small ones,
/// little enough to cost no memory worth naming.
const PREPARE: u64 = 1 << 20;

/// One byte range in a record.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The block that the bytes go to.
    pub block: BlockIndex,
    /// Where in the block.
    pub offset: usize,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Whether the block is zeroed before.
    pub init: bool,
    /// Whether this is file data, needed after power loss only.
    pub data: bool,
}

impl Entry<'_> {
    /// Puts the bytes where they belong in the content of the block.
    pub fn apply(&self, content: &mut Block) {
        if self.init {
            content.fill(0);
        }
        content[self.offset..self.offset + self.bytes.len()].copy_from_slice(self.bytes);
    }
}

impl Journal {
    /// The end of the ring that [`scan`] found.
    pub fn new(superblock: &Superblock, tail: Position, end: &ScanEnd) -> Journal {
        Journal {
            base: superblock.ring_start * BLOCK_SIZE as u64,
            len: superblock.ring_blocks * BLOCK_SIZE as u64,
            tail,
            head: end.position,
            flushed: end.position,
            committed: end.position,
            prepared: end.position,
            sequence: end.sequence,
            chain: end.chain,
            buf: Vec::new(),
            longest: 0,
        }
    }

    /// Where the next record goes.
    pub fn head(&self) -> Position {
        self.head
    }

    /// The next record's sequence number and what it is chained to.
    pub fn next(&self) -> (u64, u64) {
        (self.sequence, self.chain)
    }

    /// The longest record that may be appended: what an operation and its checkpoint append must fit
    /// when a checkpoint has just not been due.
    pub fn record_max(&self) -> usize {
        record_max(self.len)
    }

    /// Begins a new chain, for which no record in the ring is valid.
    pub fn rechain(&mut self, salt: u64) {
        self.chain = xxh3_64_with_seed(&salt.to_le_bytes(), self.chain);
    }

    /// As [`rechain`](Self::rechain), with what stands where the next record will begin. The header
    /// of a mount may rot away; the mount after it begins where that one did, with the same numbers,
    /// but not with the same bytes before it if that one left a record there.
    pub fn rechain_at_head<M: Memory>(&mut self, device: &mut M, salt: u64) -> Result<()> {
        let mut next = [0; record::HEADER_LEN];
        load_wrapped(device, self.base, self.len, self.head, &mut next)?;
        self.rechain(salt ^ xxh3_64_with_seed(&next, 0));
        Ok(())
    }

    /// Whether a checkpoint is due: the ring is so full that no more than the longest record and two
    /// commits must fit, or half full if that is more.
    #[inline]
    pub fn wants_checkpoint(&self) -> bool {
        self.head - self.tail > self.len - kept(self.len)
    }

    /// Whether there are records that no durable mark covers.
    pub fn has_uncommitted(&self) -> bool {
        self.committed != self.head
    }

    /// Notes that a mark which covers everything before `position` is durable.
    pub fn set_committed(&mut self, position: Position) {
        self.committed = position;
    }

    /// Notes that everything before `position` is durable.
    pub fn set_flushed(&mut self, position: Position) {
        self.flushed = position;
    }

    /// The blocks in which records lie that are not durable, as a first one and a number.
    pub fn unflushed_blocks(&self) -> (BlockIndex, u64) {
        let (mut start, mut end) = (u64::MAX, 0);
        // Those of a ring that wraps around there are all of its blocks.
        let noted = self.for_blocks(self.flushed, self.head, |first, count| {
            (start, end) = (start.min(first.0), end.max(first.0 + count));
            Ok(())
        });
        debug_assert!(noted.is_ok() && self.flushed < self.head);
        (BlockIndex(start), end - start)
    }

    /// Notes that nothing before the head is needed any more.
    pub fn set_tail_to_head(&mut self) {
        self.tail = self.head;
    }

    /// Begins a record.
    #[inline]
    pub fn begin(&mut self, flags: u8, state: Option<&VolumeState>) {
        self.buf.clear();
        self.buf.resize(record::HEADER_LEN, 0);
        let mut flags = flags;
        if let Some(state) = state {
            flags |= record::HAS_STATE;
            let at = self.buf.len();
            self.buf.resize(at + VolumeState::LEN, 0);
            state.emit(&mut self.buf[at..]);
        }
        self.buf[record::FLAGS] = flags;
    }

    /// Begins a commit mark after a flush of the device, for what is before `position` alone.
    pub fn begin_covering(&mut self, position: Position) {
        self.begin(record::MARK | record::FLUSHED | record::COVERS, None);
        self.buf.extend_from_slice(&position.to_le_bytes());
    }

    /// Adds a byte range to the record.
    #[inline]
    pub fn add(&mut self, entry: &Entry<'_>) {
        debug_assert!(entry.offset + entry.bytes.len() <= BLOCK_SIZE);
        let mut head = [0; record::ENTRY_LEN];
        let flags =
            if entry.init { record::INIT } else { 0 } | if entry.data { record::DATA } else { 0 };
        put64(&mut head, record::ENTRY_BLOCK, entry.block.0 | flags);
        put16(&mut head, record::ENTRY_OFFSET, entry.offset as u16);
        put16(&mut head, record::ENTRY_BYTES, entry.bytes.len() as u16);
        self.buf.extend_from_slice(&head);
        self.buf.extend_from_slice(entry.bytes);
    }

    /// Stores the record at the head of the ring. If this fails nothing was appended.
    ///
    /// # Errors
    /// The device's. `EIO` for a record that the ring can't take, which no operation makes in a tree
    /// that is sound.
    #[inline]
    pub fn append<M: Memory>(&mut self, device: &mut M) -> Result<()> {
        let len = self.buf.len().next_multiple_of(8);
        if len > self.record_max() || len as u64 > self.len - (self.head - self.tail) {
            return Err(Errno::EIO.into());
        }
        self.longest = self.longest.max(len);
        self.buf.resize(len, 0);
        put16(&mut self.buf, record::MAGIC, magic::JOURNAL_RECORD);
        put32(&mut self.buf, record::LEN, len as u32);
        put64(&mut self.buf, record::SEQUENCE, self.sequence);
        let sum = checksum(&self.buf, self.chain);
        put64(&mut self.buf, record::CHECKSUM, sum);
        let at = self.head % self.len;
        let first = len.min((self.len - at) as usize);
        device.store(self.base + at, &self.buf[..first])?;
        if first < len {
            device.store(self.base, &self.buf[first..])?;
        }
        self.head += len as u64;
        self.sequence += 1;
        self.chain = sum;
        Ok(())
    }

    /// Makes the appended records durable.
    pub fn flush<M: Memory>(&mut self, device: &mut M) -> Result<()> {
        self.for_blocks(self.flushed, self.head, |first, count| {
            Ok(device.flush_range(first, count)?)
        })?;
        self.flushed = self.head;
        self.prepare(device)
    }

    /// Tells the device where the next commits go, some time ahead of them.
    pub fn prepare<M: Memory>(&mut self, device: &mut M) -> Result<()> {
        if self.head + PREPARE / 4 <= self.prepared {
            return Ok(());
        }
        let from = self.prepared.max(self.head.next_multiple_of(BLOCK_SIZE as u64));
        let to = from + PREPARE.min(self.len / 4);
        self.for_blocks(from, to, |first, count| Ok(device.expect_commits(first, count)?))?;
        self.prepared = to;
        Ok(())
    }

    /// Calls `each` for the blocks that hold the ring's bytes from `from` to `to`.
    fn for_blocks(
        &self,
        from: Position,
        to: Position,
        mut each: impl FnMut(BlockIndex, u64) -> Result<()>,
    ) -> Result<()> {
        let block = BLOCK_SIZE as u64;
        let ring_first = self.base / block;
        let mut from = from;
        while from < to {
            let at = from % self.len;
            let n = (to - from).min(self.len - at);
            let first = at / block;
            let count = (at + n).div_ceil(block) - first;
            each(BlockIndex(ring_first + first), count)?;
            from += n;
        }
        Ok(())
    }
}

/// The longest record in a ring of `ring` bytes.
pub(crate) const fn record_max(ring: u64) -> usize {
    let quarter = ring / 4;
    if quarter < 16 << 20 { quarter as usize } else { 16 << 20 }
}

/// The bytes of a ring that are not filled before a checkpoint.
fn kept(ring: u64) -> u64 {
    (record_max(ring) as u64 + 2 * COMMIT_MAX).min(ring / 2)
}

fn checksum(buf: &[u8], chain: u64) -> u64 {
    // The checksum's own field is zero while it is computed.
    xxh3_64_with_seed(buf, chain)
}

/// Where a scan of the ring ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanEnd {
    /// The end of the last valid record.
    pub position: Position,
    /// The sequence number of the next.
    pub sequence: u64,
    /// The checksum that the next is chained to.
    pub chain: u64,
}

/// A record read back.
#[derive(Debug)]
pub struct Record<'a> {
    flags: u8,
    /// What follows the header, and the state and the position covered if there are.
    body: &'a [u8],
    state: &'a [u8],
    covers: Option<Position>,
    /// Where the record ends.
    pub end: ScanEnd,
}

impl<'a> Record<'a> {
    /// Whether the record is a commit mark.
    pub fn is_mark(&self) -> bool {
        self.flags & record::MARK != 0
    }

    /// Whether the record is a commit mark after a flush of the whole device.
    pub fn is_flushed_mark(&self) -> bool {
        self.flags & record::FLUSHED != 0
    }

    /// What a commit mark covers: everything before this position.
    pub fn covers(&self) -> Option<Position> {
        self.is_mark().then(|| self.covers.unwrap_or(self.end.position))
    }

    /// The state that the record carries, if it does.
    ///
    /// # Errors
    /// [`Corruption::JournalRecord`].
    pub fn state(&self, superblock: &Superblock) -> Result<Option<VolumeState>> {
        if self.state.is_empty() {
            return Ok(None);
        }
        match VolumeState::parse(self.state, superblock) {
            Some(state) => Ok(Some(state)),
            None => Err(Corruption::JournalRecord.into()),
        }
    }

    /// Where in the ring the record's byte ranges begin.
    pub fn entries(&self) -> Position {
        self.end.position - self.body.len() as u64
    }

    /// Calls `each` for every byte range.
    ///
    /// # Errors
    /// [`Corruption::JournalRecord`] for a range outside its block or the group area; those of
    /// `each`.
    pub fn for_each(
        &self,
        superblock: &Superblock,
        mut each: impl FnMut(Entry<'a>) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        // What is left at the end is padding.
        while self.body.len() - at >= record::ENTRY_LEN {
            let word = get64(self.body, at + record::ENTRY_BLOCK);
            let block = word & record::BLOCK_MASK;
            let offset = get16(self.body, at + record::ENTRY_OFFSET) as usize;
            let len = get16(self.body, at + record::ENTRY_BYTES) as usize;
            at += record::ENTRY_LEN;
            if offset + len > BLOCK_SIZE
                || len > self.body.len() - at
                || !superblock.holds(block, 1)
            {
                return Err(Corruption::JournalRecord.into());
            }
            each(Entry {
                block: BlockIndex(block),
                offset,
                bytes: &self.body[at..at + len],
                init: word & record::INIT != 0,
                data: word & record::DATA != 0,
            })?;
            at += len;
        }
        Ok(())
    }
}

/// Reads the ring from `from` and calls `each` for every record of the unbroken chain, until `each`
/// returns false or the chain ends. Returns where the last record that was given ended.
///
/// # Errors
/// The device's, and those of `each`.
pub fn scan<M: Memory>(
    device: &mut M,
    superblock: &Superblock,
    from: ScanEnd,
    mut each: impl FnMut(&mut M, &Record<'_>) -> Result<bool>,
) -> Result<ScanEnd> {
    let base = superblock.ring_start * BLOCK_SIZE as u64;
    let ring = superblock.ring_blocks * BLOCK_SIZE as u64;
    let mut end = from;
    let mut buf = vec![0; record::HEADER_LEN];
    loop {
        let room = ring - (end.position - from.position);
        if room < record::HEADER_LEN as u64 {
            return Ok(end);
        }
        load_wrapped(device, base, ring, end.position, &mut buf[..record::HEADER_LEN])?;
        let len = get32(&buf, record::LEN) as usize;
        let flags = buf[record::FLAGS];
        let state_len = if flags & record::HAS_STATE != 0 { VolumeState::LEN } else { 0 };
        let covers_len = if flags & record::COVERS != 0 { record::COVERS_LEN } else { 0 };
        if get16(&buf, record::MAGIC) != magic::JOURNAL_RECORD
            || get64(&buf, record::SEQUENCE) != end.sequence
            || !len.is_multiple_of(8)
            || len < record::HEADER_LEN + state_len + covers_len
            || len > record_max(ring)
            || len as u64 > room
        {
            return Ok(end);
        }
        let stored = get64(&buf, record::CHECKSUM);
        buf.resize(len.max(record::HEADER_LEN), 0);
        load_wrapped(device, base, ring, end.position, &mut buf[..len])?;
        put64(&mut buf, record::CHECKSUM, 0);
        if checksum(&buf[..len], end.chain) != stored {
            return Ok(end);
        }
        let next = ScanEnd {
            position: end.position + len as u64,
            sequence: end.sequence.wrapping_add(1),
            chain: stored,
        };
        let (state, body) = buf[record::HEADER_LEN..len].split_at(state_len);
        let (covers, body) = body.split_at(covers_len);
        let covers = (!covers.is_empty()).then(|| get64(covers, 0));
        let record = Record { flags, body, state, covers, end: next };
        if !each(device, &record)? {
            return Ok(next);
        }
        end = next;
    }
}

/// What a journal holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The end of the last record.
    pub end: ScanEnd,
    /// The end of what a commit mark covers, or the beginning.
    pub committed: ScanEnd,
    /// The data entries before are void: the device was flushed after them.
    pub void_before: Position,
}

/// Finds out what the journal that begins at `from` holds.
///
/// # Errors
/// The device's.
pub fn extent<M: Memory>(device: &mut M, superblock: &Superblock, from: ScanEnd) -> Result<Extent> {
    let mut committed = from;
    let mut void_before = from.position;
    // Where a mark covers less than what is before it, what it covers ends somewhere before.
    let mut before = None;
    let end = scan(device, superblock, from, |_, record| {
        if let Some(position) = record.covers() {
            if position == record.end.position {
                (committed, before) = (record.end, None);
            } else if position < record.end.position
                && position > before.unwrap_or(committed.position)
            {
                before = Some(position);
            } else {
                return Ok(true);
            }
            if record.is_flushed_mark() {
                void_before = position;
            }
        }
        Ok(true)
    })?;
    if let Some(position) = before {
        scan(device, superblock, from, |_, record| {
            if record.end.position <= position {
                committed = record.end;
            }
            Ok(record.end.position < position)
        })?;
    }
    Ok(Extent { end, committed, void_before })
}

/// Copies bytes from a place in the ring.
pub fn load<M: Memory>(
    device: &mut M,
    superblock: &Superblock,
    position: Position,
    buf: &mut [u8],
) -> Result<()> {
    let base = superblock.ring_start * BLOCK_SIZE as u64;
    load_wrapped(device, base, superblock.ring_blocks * BLOCK_SIZE as u64, position, buf)
}

fn load_wrapped<M: Memory>(
    device: &mut M,
    base: u64,
    ring: u64,
    position: Position,
    buf: &mut [u8],
) -> Result<()> {
    let at = position % ring;
    let first = buf.len().min((ring - at) as usize);
    device.load(base + at, &mut buf[..first])?;
    if first < buf.len() {
        device.load(base, &mut buf[first..])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::RING_BLOCKS_MIN;

    #[test]
    fn what_comes_before_a_checkpoint_fits_the_ring() {
        for blocks in RING_BLOCKS_MIN..20_000 {
            let ring = blocks * BLOCK_SIZE as u64;
            // An operation, and the checkpoint's commit.
            let needed = record_max(ring) as u64 + COMMIT_MAX;
            assert!((needed..=ring / 2).contains(&kept(ring)), "{blocks} blocks");
        }
    }
}
