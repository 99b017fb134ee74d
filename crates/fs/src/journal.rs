//! The journal: a ring of redo records, each at a position and with a number that no other ever
//! had.
//!
//! A record is stored with one copy to the device when its operation commits; from then on the
//! operation survives the end of the process. Commit marks say what survives power loss.

use alloc::vec::Vec;

use atoll_block::{Addressable, BLOCK_SIZE, BlockError, BlockIndex, SECTOR_SIZE};
use atoll_vfs::Errno;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use self::header::Header;
pub(crate) use self::header::Headers;
pub use self::scan::{Beyond, Extent, Record, ScanEnd, extent, load, scan};
use crate::error::{FsError, Result};
use crate::layout::{
    Block, RING_BLOCKS_STORED, Superblock, VolumeState, magic, put16, put32, put64, record,
};

mod header;
mod scan;

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
    /// Records before this need no further commit mark.
    committed: Position,
    /// How far the device was told to expect commits.
    prepared: Position,
    /// Up to here the ring has storage.
    reserved: Position,
    /// An operation that begins beyond this has to make room first.
    limit: Position,
    sequence: u64,
    chain: u64,
    /// The highest number that a record in the ring is known to have.
    latest: u64,
    buf: Vec<u8>,
    /// The longest record so far, in bytes.
    pub longest: usize,
}

/// More than a commit appends: a mark, up to 64 KiB of data, and an entry for each of its pieces.
const COMMIT_MAX: u64 = 128 << 10;
/// A mount's records are numbered from the next multiple of this on.
const NUMBERS: u64 = 1 << 32;
/// How much of the ring is prepared for commits at a time: enough for a few hundred small ones,
/// little enough to cost no memory worth naming.
const PREPARE: u64 = 1 << 20;
/// The bytes of the ring that have storage from the start.
const STORED: u64 = RING_BLOCKS_STORED * BLOCK_SIZE as u64;
/// Storage for the others is set aside in such pieces.
const RESERVE: u64 = 4 << 20;
const _: () = assert!(STORED.is_multiple_of(RESERVE));

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
    /// Puts the bytes in their place in the content of the block.
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
        let len = superblock.ring_blocks * BLOCK_SIZE as u64;
        let mut journal = Journal {
            base: superblock.ring_start * BLOCK_SIZE as u64,
            len,
            tail,
            head: end.position,
            flushed: end.position,
            committed: end.position,
            prepared: end.position,
            reserved: if len > STORED { end.position } else { Position::MAX },
            limit: 0,
            sequence: end.sequence,
            chain: end.chain,
            latest: 0,
            buf: Vec::new(),
            longest: 0,
        };
        journal.set_limit();
        journal
    }

    /// Where the next record goes.
    pub fn head(&self) -> Position {
        self.head
    }

    /// The next record's sequence number, and the seed of checksums.
    pub fn next(&self) -> (u64, u64) {
        (self.sequence, self.chain)
    }

    /// The longest record that may be appended: the records of an operation and of its checkpoint
    /// must fit when a checkpoint has just not been due.
    pub fn record_max(&self) -> usize {
        record_max(self.len)
    }

    /// Notes that a record in the ring, or one that was there, has the number `sequence`.
    pub fn note_sequence(&mut self, sequence: u64) {
        self.latest = self.latest.max(sequence);
    }

    /// Gives the next record a number above those of all records in the ring, so that no old record
    /// continues the new ones.
    pub fn begin_numbers(&mut self) {
        let next = (self.latest.max(self.sequence) / NUMBERS + 1) * NUMBERS;
        // Beyond that no header may go.
        self.sequence = if next > 1 << 61 { self.sequence + 1 } else { next };
    }

    /// Whether nothing in the ring is needed.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether room must be made: with `listed` blocks listed twice, the records would reach into
    /// the part of the ring, or of its storage, that is kept for the longest record and two
    /// commits. That part is at most half of the ring.
    #[inline]
    pub fn is_full(&self, listed: usize) -> bool {
        self.end_with(listed) > self.limit
    }

    /// Whether half of the room for records is taken.
    #[inline]
    pub fn is_half_full(&self, listed: usize) -> bool {
        self.end_with(listed) - self.tail > (self.len - kept(self.len)) / 2
    }

    /// Whether storage for the records that must fit has yet to be set aside.
    fn lacks_storage(&self, listed: usize) -> bool {
        self.end_with(listed) > self.reserved.saturating_sub(kept(self.len))
    }

    /// The end of the records when `listed` blocks have been listed twice.
    #[inline]
    fn end_with(&self, listed: usize) -> Position {
        self.head + 2 * (listed * record::HOME_LEN) as u64
    }

    fn set_limit(&mut self) {
        self.limit = self.reserved.min(self.tail + self.len).saturating_sub(kept(self.len));
    }

    /// Whether there are records that no durable mark covers.
    pub fn has_uncommitted(&self) -> bool {
        self.committed != self.head
    }

    /// A durable mark covers every record before this position.
    pub fn committed(&self) -> Position {
        self.committed
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

    /// Notes that nothing before `position` is needed any more.
    pub fn set_tail(&mut self, position: Position) {
        self.tail = position;
        self.set_limit();
    }

    /// Has storage set aside for the records that must fit besides lists of `listed` blocks, so
    /// that no record fails for want of it. Returns false where the host has none left.
    ///
    /// # Errors
    /// The device's, but for [`BlockError::NoSpace`] and [`BlockError::Unsupported`].
    pub fn reserve<M: Addressable>(&mut self, device: &mut M, listed: usize) -> Result<bool> {
        while self.lacks_storage(listed) {
            let at = self.reserved % self.len;
            let end = (at / RESERVE + 1) * RESERVE;
            let end = end.min(self.len);
            if at >= STORED {
                let [first, end] =
                    [self.base + at, self.base + end].map(|at| at / BLOCK_SIZE as u64);
                match device.reserve(BlockIndex(first), end - first) {
                    Err(BlockError::NoSpace | BlockError::Unsupported) => return Ok(false),
                    other => other?,
                }
            }
            self.reserved += end - at;
            self.set_limit();
        }
        Ok(true)
    }

    /// Where the next lap begins: at the ring's first block.
    pub fn next_lap(&self) -> ScanEnd {
        let position = self.head.next_multiple_of(self.len);
        ScanEnd { position, sequence: self.sequence, chain: self.chain }
    }

    /// Begins the next lap. Nothing in the ring may be needed, and a durable header has to say that
    /// the journal begins there before anything is appended.
    pub fn begin_lap(&mut self) {
        let start = self.next_lap().position;
        self.head = start;
        self.flushed = start;
        self.committed = start;
        self.prepared = start;
        if self.len > STORED {
            self.reserved = start;
        }
        self.set_tail(start);
    }

    /// Begins a record.
    #[inline]
    pub fn begin(&mut self, flags: u8, state: Option<&VolumeState>) {
        // Every operation passes here: parts of fixed length are added without a call.
        self.buf.clear();
        self.buf.extend_from_slice(&[0; record::HEADER_LEN]);
        let mut flags = flags;
        if let Some(state) = state {
            flags |= record::HAS_STATE;
            let mut bytes = [0; VolumeState::LEN];
            state.emit(&mut bytes);
            self.buf.extend_from_slice(&bytes);
        }
        self.buf[record::FLAGS] = flags;
    }

    /// Begins a commit mark after a flush of the device, for the records before `position` alone.
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

    /// Stores the record at the head of the ring, and after a commit mark its echo. If this fails
    /// nothing was appended.
    ///
    /// # Errors
    /// The device's. `EIO` for a record that the ring can't take, which no operation makes in a
    /// tree that is sound.
    #[inline]
    pub fn append<M: Addressable>(&mut self, device: &mut M) -> Result<()> {
        let len = self.buf.len().next_multiple_of(8);
        let flags = self.buf[record::FLAGS];
        let end = record_end(self.head, len, flags);
        if len > self.record_max() || end - self.head > self.len - (self.head - self.tail) {
            return Err(Errno::EIO.into());
        }
        self.longest = self.longest.max(len);
        self.buf.extend_from_slice(&[0; 8]);
        self.buf.truncate(len);
        self.store(device, self.head)?;
        if flags & record::MARK != 0 {
            self.append_echo(device, end)?;
        }
        self.head = end;
        self.sequence += 1;
        Ok(())
    }

    /// Stores the echo of the commit mark that was just stored at the head, up to `end`.
    fn append_echo<M: Addressable>(&mut self, device: &mut M, end: Position) -> Result<()> {
        let flags = self.buf[record::FLAGS];
        let body = record::HEADER_LEN + covers_len(flags);
        let carries = if self.buf.len() > body { record::CARRIES } else { 0 };
        // Carried data follows the covered position, or the state: no mark has both of these.
        self.buf.truncate(body);
        self.buf[record::FLAGS] = flags & !record::HAS_STATE | record::ECHO | carries;
        self.buf.extend_from_slice(&self.head.to_le_bytes());
        self.store(device, end - self.buf.len() as u64)
    }

    /// Completes the record and stores it at `position`.
    #[inline]
    fn store<M: Addressable>(&mut self, device: &mut M, position: Position) -> Result<()> {
        let len = self.buf.len();
        put16(&mut self.buf, record::MAGIC, magic::JOURNAL_RECORD);
        put32(&mut self.buf, record::LEN, len as u32);
        put64(&mut self.buf, record::SEQUENCE, self.sequence);
        put64(&mut self.buf, record::COMMITTED, self.committed);
        put64(&mut self.buf, record::CHECKSUM, 0);
        let sum = checksum(&self.buf, self.chain, position);
        put64(&mut self.buf, record::CHECKSUM, sum);
        let at = position % self.len;
        let first = len.min((self.len - at) as usize);
        device.store(self.base + at, &self.buf[..first])?;
        if first < len {
            device.store(self.base, &self.buf[first..])?;
        }
        Ok(())
    }

    /// Appends lists of blocks that are about to be written home, each with the checksum of the
    /// content that it will have: with all records, or with those before the position `state_at`,
    /// as recovery makes them. A journal without room for them goes without, and so does recovery
    /// on a host without storage: power loss may have undone the reservation.
    pub fn append_home<M: Addressable>(
        &mut self,
        device: &mut M,
        state_at: Option<Position>,
        blocks: impl Iterator<Item = (u64, u64)>,
    ) -> Result<()> {
        let mut blocks = blocks.peekable();
        while blocks.peek().is_some() {
            self.begin(record::HOME, None);
            if let Some(position) = state_at {
                self.buf[record::FLAGS] |= record::COVERS;
                self.buf.extend_from_slice(&position.to_le_bytes());
            }
            while self.buf.len() + record::HOME_LEN <= self.record_max() / 2
                && let Some((block, checksum)) = blocks.next()
            {
                self.buf.extend_from_slice(&block.to_le_bytes());
                self.buf.extend_from_slice(&checksum.to_le_bytes());
            }
            match self.append(device) {
                Err(FsError::Refused(_)) => return Ok(()),
                Err(FsError::Device(BlockError::NoSpace)) if state_at.is_some() => return Ok(()),
                other => other?,
            }
        }
        Ok(())
    }

    /// Makes sure that no old record in the ring continues the present ones.
    pub fn stop<M: Addressable>(&mut self, device: &mut M) -> Result<()> {
        if self.len - (self.head - self.tail) >= record::HEADER_LEN as u64 {
            // Records begin at multiples of 8: the first eight bytes of one lie together. A block
            // without storage is zeros.
            match device.store(self.base + self.head % self.len, &[0; 8]) {
                Err(BlockError::NoSpace) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Makes the appended records durable.
    pub fn flush<M: Addressable>(&mut self, device: &mut M) -> Result<()> {
        self.for_blocks(self.flushed, self.head, |first, count| {
            Ok(device.flush_range(first, count)?)
        })?;
        self.flushed = self.head;
        self.prepare(device)
    }

    /// Tells the device where the next commits go, some time ahead of them.
    pub fn prepare<M: Addressable>(&mut self, device: &mut M) -> Result<()> {
        if self.head + PREPARE / 4 <= self.prepared {
            return Ok(());
        }
        let from = self.prepared.max(self.head.next_multiple_of(BLOCK_SIZE as u64));
        let to = self.reserved.min(from + PREPARE.min(self.len / 4));
        self.for_blocks(from, to, |first, count| Ok(device.expect_commits(first, count)?))?;
        self.prepared = self.prepared.max(to);
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

/// Makes the ring empty: the first blocks get their storage now and the others give back theirs, so
/// that none has a record of an older volume. The caller flushes the device.
///
/// # Errors
/// The device's.
pub(crate) fn clear_ring<M: Addressable>(device: &mut M, superblock: &Superblock) -> Result<()> {
    let (start, count) = (superblock.ring_start, superblock.ring_blocks);
    let stored = count.min(RING_BLOCKS_STORED);
    device.store_zeros(BlockIndex(start).byte_offset(), BlockIndex(stored).byte_offset())?;
    Ok(device.discard(BlockIndex(start + stored), count - stored)?)
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

/// The checksum of a record at `position`, whose field for it is zero.
fn checksum(buf: &[u8], seed: u64, position: Position) -> u64 {
    xxh3_64_with_seed(buf, seed.wrapping_add(position))
}

/// The bytes of the position that a record with `flags` covers.
const fn covers_len(flags: u8) -> usize {
    if flags & record::COVERS != 0 { record::COVERS_LEN } else { 0 }
}

/// Where the next record begins after the record of `len` bytes at `position`: after the echo of a
/// mark, which stands in another sector than the mark.
pub(crate) const fn record_end(position: Position, len: usize, flags: u8) -> Position {
    let end = position + len as u64;
    if flags & record::MARK == 0 {
        return end;
    }
    let echo_len = record::HEADER_LEN + covers_len(flags) + record::ECHO_LEN;
    end.next_multiple_of(SECTOR_SIZE as u64) + echo_len as u64
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
