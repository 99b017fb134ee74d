//! Reading the ring: the records from a position on, where they end, and those beyond.

use alloc::vec;
use alloc::vec::Vec;

use atoll_block::{Addressable, BLOCK_SIZE, BlockIndex, SECTOR_SIZE};

use super::{COMMIT_MAX, Entry, Position, checksum, covers_len, record_end, record_max};
use crate::error::{Corruption, Result};
use crate::layout::{Superblock, VolumeState, get16, get32, get64, magic, put64, record};

/// Where a scan of the ring ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanEnd {
    /// The end of the last valid record.
    pub position: Position,
    /// The sequence number of the next.
    pub sequence: u64,
    /// The seed of checksums.
    pub chain: u64,
}

/// A record read back.
#[derive(Debug)]
pub struct Record<'a> {
    flags: u8,
    /// The bytes after the header, and after the state and the covered position if there are.
    body: &'a [u8],
    state: &'a [u8],
    covers: Option<Position>,
    /// Where the body begins.
    body_at: Position,
    /// Where the next record begins.
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

    /// The position up to which a commit mark covers everything.
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
        self.body_at
    }

    /// The blocks that were about to be written home, each with the checksum that it was to have
    /// with no more than the records before `end`.
    pub fn home(&self, end: Position) -> impl Iterator<Item = (u64, u64)> + 'a {
        let is_list = self.flags & record::HOME != 0;
        let state_at = self.covers.unwrap_or(self.body_at);
        let list = if is_list && state_at <= end { self.body } else { &[] };
        list.chunks_exact(record::HOME_LEN).map(|pair| (get64(pair, 0), get64(pair, 8)))
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
        if self.flags & record::HOME != 0 {
            return Ok(());
        }
        let mut at = 0;
        // The rest at the end is padding.
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

/// The ring, and how records in it prove themselves.
struct Ring {
    base: u64,
    len: u64,
    seed: u64,
    /// No record reaches beyond this position.
    limit: Position,
}

impl Ring {
    fn new(superblock: &Superblock, from: &ScanEnd) -> Ring {
        let len = superblock.ring_blocks * BLOCK_SIZE as u64;
        Ring {
            base: superblock.ring_start * BLOCK_SIZE as u64,
            len,
            seed: from.chain,
            limit: from.position + len,
        }
    }

    fn load<M: Addressable>(
        &self,
        device: &mut M,
        position: Position,
        buf: &mut [u8],
    ) -> Result<()> {
        load_wrapped(device, self.base, self.len, position, buf)
    }

    /// Reads the record at `position` into `buf`, if there is one with a number in `numbers`.
    fn read<M: Addressable>(
        &self,
        device: &mut M,
        position: Position,
        numbers: core::ops::RangeInclusive<u64>,
        buf: &mut Vec<u8>,
    ) -> Result<bool> {
        let room = self.limit.saturating_sub(position);
        if room < record::HEADER_LEN as u64 {
            return Ok(false);
        }
        buf.resize(record::HEADER_LEN, 0);
        self.load(device, position, buf)?;
        let len = get32(buf, record::LEN) as usize;
        let flags = buf[record::FLAGS];
        if get16(buf, record::MAGIC) != magic::JOURNAL_RECORD
            || !numbers.contains(&get64(buf, record::SEQUENCE))
            || !len.is_multiple_of(8)
            || len < record::HEADER_LEN + extra_len(flags)
            || len > record_max(self.len)
            || len as u64 > room
        {
            return Ok(false);
        }
        let stored = get64(buf, record::CHECKSUM);
        buf.resize(len, 0);
        self.load(device, position, buf)?;
        put64(buf, record::CHECKSUM, 0);
        Ok(checksum(buf, self.seed, position) == stored)
    }

    /// Reads the echo of the commit mark at `position` with the number `sequence` into `buf`.
    fn read_echo<M: Addressable>(
        &self,
        device: &mut M,
        position: Position,
        sequence: u64,
        buf: &mut Vec<u8>,
    ) -> Result<Option<Position>> {
        let sector = SECTOR_SIZE as u64;
        let mut at = (position + record::HEADER_LEN as u64).next_multiple_of(sector);
        let last = position.saturating_add(COMMIT_MAX).min(self.limit);
        // A block is loaded at once, since most have no echo: a device that is asked for each
        // sector by itself takes hundreds of calls for that.
        let mut block = [0; BLOCK_SIZE];
        while at < last {
            let end = (at + 1).next_multiple_of(BLOCK_SIZE as u64);
            let block = &mut block[..(end - at) as usize];
            self.load(device, at, block)?;
            let sectors = block.as_chunks::<SECTOR_SIZE>().0;
            for (at, content) in (at..last).step_by(SECTOR_SIZE).zip(sectors) {
                let is_echo = content[record::FLAGS] & record::ECHO != 0
                    && get16(content, record::MAGIC) == magic::JOURNAL_RECORD
                    && get64(content, record::SEQUENCE) == sequence;
                if is_echo
                    && self.read(device, at, sequence..=sequence, buf)?
                    && echo_of(buf) == Some(position)
                {
                    return Ok(Some(at));
                }
            }
            at = end;
        }
        Ok(None)
    }
}

/// The length of state and positions between a record's header and its body.
fn extra_len(flags: u8) -> usize {
    let state_len = if flags & record::HAS_STATE != 0 { VolumeState::LEN } else { 0 };
    let echo_len = if flags & record::ECHO != 0 { record::ECHO_LEN } else { 0 };
    state_len + covers_len(flags) + echo_len
}

/// The position of the mark that the record in `buf` is the echo of.
fn echo_of(buf: &[u8]) -> Option<Position> {
    let flags = buf[record::FLAGS];
    (flags & record::ECHO != 0).then(|| get64(buf, record::HEADER_LEN + covers_len(flags)))
}

/// Reads the ring from `from` and calls `each` for every record up to the first that is not there,
/// until `each` returns false. Returns where the last record that was given ended.
///
/// A commit mark that is not there counts if its echo is and says that the mark carried nothing.
///
/// # Errors
/// The device's, and those of `each`.
pub fn scan<M: Addressable>(
    device: &mut M,
    superblock: &Superblock,
    from: ScanEnd,
    mut each: impl FnMut(&mut M, &Record<'_>) -> Result<bool>,
) -> Result<ScanEnd> {
    let ring = Ring::new(superblock, &from);
    let mut end = from;
    let mut buf = vec![0; record::HEADER_LEN];
    loop {
        let sequence = end.sequence;
        let is_there = ring.read(device, end.position, sequence..=sequence, &mut buf)?
            && buf[record::FLAGS] & record::ECHO == 0;
        let (start, next) = if is_there {
            let start = end.position;
            (start, record_end(start, buf.len(), buf[record::FLAGS]))
        } else {
            match ring.read_echo(device, end.position, sequence, &mut buf)? {
                Some(at) if buf[record::FLAGS] & record::CARRIES == 0 => {
                    (at, at + buf.len() as u64)
                }
                _ => return Ok(end),
            }
        };
        let flags = buf[record::FLAGS];
        let state_len = if flags & record::HAS_STATE != 0 { VolumeState::LEN } else { 0 };
        let (state, body) = buf[record::HEADER_LEN..].split_at(state_len);
        let (covers, body) = body.split_at(covers_len(flags));
        let covers = (!covers.is_empty()).then(|| get64(covers, 0));
        let body = if is_there { body } else { &[] };
        let next = ScanEnd { position: next, sequence: sequence.wrapping_add(1), chain: end.chain };
        let body_at = start + (buf.len() - body.len()) as u64;
        let record = Record { flags, body, state, covers, body_at, end: next };
        if !each(device, &record)? {
            return Ok(next);
        }
        end = next;
    }
}

/// The content of the ring beyond the end of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Beyond {
    /// No later records.
    Nothing,
    /// Records after a missing one.
    Records,
    /// A commit mark among those. Power was lost before it was durable, or records that it covers
    /// are damaged.
    Marks,
    /// Records that were stored when the missing ones had been committed: those are damaged.
    Committed,
}

/// The extent of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The end of the last record.
    pub end: ScanEnd,
    /// The end of the records that a commit mark covers, or the beginning.
    pub committed: ScanEnd,
    /// The data entries before are void: the device was flushed after them.
    pub void_before: Position,
    /// The content beyond the end.
    pub beyond: Beyond,
    /// The highest number of a record.
    pub latest: u64,
}

/// Finds the extent of the journal that begins at `from`. `clean`: its header says that it is
/// empty, so that only the first piece beyond the end is looked at.
///
/// # Errors
/// The device's.
pub fn extent<M: Addressable>(
    device: &mut M,
    superblock: &Superblock,
    from: ScanEnd,
    clean: bool,
) -> Result<Extent> {
    let mut committed = from;
    let mut void_before = from.position;
    // Where a mark covers less than all before it, its coverage ends at an earlier record.
    let mut before = None;
    let end = scan(device, superblock, from, |_, record| {
        // A mark cannot cover what comes behind it.
        let covered = record.covers().filter(|&position| position <= record.end.position);
        if let Some(position) = covered {
            if position == record.end.position {
                (committed, before) = (record.end, None);
            } else if position > before.unwrap_or(committed.position) {
                before = Some(position);
            }
            // Also where the mark covers no record that was not: what was flushed before it may be
            // data alone, newer than an entry of the journal.
            if record.is_flushed_mark() {
                void_before = void_before.max(position);
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
    let (beyond, latest) = look_beyond(device, superblock, from, end, clean)?;
    Ok(Extent { end, committed, void_before, beyond, latest })
}

/// Looks for records with higher numbers between `end` and the end of the ring.
///
/// Records follow each other: if one that was there is damaged or was lost, the next begins no
/// further than the longest record. So the whole ring, which may be large, is read only if there is
/// one within twice that length: a record that is missed then is behind damage, or a loss, of more
/// than the longest record.
fn look_beyond<M: Addressable>(
    device: &mut M,
    superblock: &Superblock,
    from: ScanEnd,
    end: ScanEnd,
    clean: bool,
) -> Result<(Beyond, u64)> {
    const PIECE: u64 = 64 << 10;
    const MANY: usize = 512;
    let ring = Ring::new(superblock, &from);
    let near = if clean { PIECE } else { 2 * record_max(ring.len) as u64 };
    let mut limit = ring.limit.min(end.position + near);
    let mut beyond = Beyond::Nothing;
    let mut latest = end.sequence.saturating_sub(1);
    let mut piece = vec![0; PIECE as usize];
    let mut buf = Vec::new();
    let mut at = end.position;
    while at < limit {
        let len = (limit - at).min(PIECE);
        let piece = &mut piece[..len as usize];
        ring.load(device, at, piece)?;
        let next = at + len;
        let mut skip_to = at;
        // Nearly all of it is no beginning of a record: many words are looked at together.
        for (start, words) in (at..).step_by(MANY).zip(piece.chunks(MANY)) {
            if is_blank(words) || !may_hold(words) {
                continue;
            }
            for (position, word) in (start..).step_by(8).zip(words.as_chunks::<8>().0) {
                if position < skip_to
                    || !may_begin(word)
                    || !ring.read(device, position, end.sequence..=u64::MAX, &mut buf)?
                {
                    continue;
                }
                skip_to = position + buf.len() as u64;
                limit = if clean { limit } else { ring.limit };
                latest = latest.max(get64(&buf, record::SEQUENCE));
                beyond = beyond.max(proves(&buf, position, end.position, end.sequence));
            }
        }
        at = next.max(skip_to);
    }
    Ok((beyond, latest))
}

/// Whether all is zeros, as it is where the ring was not used yet.
#[inline]
fn is_blank(words: &[u8]) -> bool {
    let (parts, rest) = words.as_chunks::<64>();
    let mut any = [0; 8];
    for part in parts {
        for (any, word) in any.iter_mut().zip(part.as_chunks::<8>().0) {
            *any |= u64::from_ne_bytes(*word);
        }
    }
    any == [0; 8] && rest.iter().all(|&byte| byte == 0)
}

/// Whether a record may begin at one of the words of eight bytes.
#[inline]
fn may_hold(words: &[u8]) -> bool {
    let (pairs, rest) = words.as_chunks::<16>();
    // All numbers of two bytes are compared, side by side: that is faster than leaving any out. Of
    // those the first and the fifth of sixteen bytes begin a word.
    let mut found = [0_u16; 8];
    for pair in pairs {
        for (found, number) in found.iter_mut().zip(pair.as_chunks::<2>().0) {
            *found |= u16::from(u16::from_le_bytes(*number) == magic::JOURNAL_RECORD);
        }
    }
    found[0] | found[4] != 0 || rest.as_chunks::<8>().0.iter().any(may_begin)
}

/// Whether the eight bytes that a record may begin with have its magic number.
#[inline]
fn may_begin(word: &[u8; 8]) -> bool {
    get16(word, record::MAGIC) == magic::JOURNAL_RECORD
}

/// The proof by the record in `buf`, which stands at `position`, about the missing record at `end`
/// with the number `sequence`.
fn proves(buf: &[u8], position: Position, end: Position, sequence: u64) -> Beyond {
    let flags = buf[record::FLAGS];
    let echo_of = echo_of(buf);
    let start = echo_of.unwrap_or(position);
    let is_missing = echo_of == Some(end) && get64(buf, record::SEQUENCE) == sequence;
    let covers = if flags & record::COVERS != 0 { get64(buf, record::HEADER_LEN) } else { start };
    let is_mark = flags & record::MARK != 0;
    // A mark after a flush of the device says that everything before it was durable by then.
    let flushed = is_mark && flags & record::FLUSHED != 0 && covers.min(start) > end;
    if flushed || get64(buf, record::COMMITTED) > end {
        Beyond::Committed
    } else if is_mark && (covers.min(start) > end || is_missing) {
        Beyond::Marks
    } else if start > end {
        Beyond::Records
    } else {
        Beyond::Nothing
    }
}

/// Copies bytes from a place in the ring.
pub fn load<M: Addressable>(
    device: &mut M,
    superblock: &Superblock,
    position: Position,
    buf: &mut [u8],
) -> Result<()> {
    let base = superblock.ring_start * BLOCK_SIZE as u64;
    load_wrapped(device, base, superblock.ring_blocks * BLOCK_SIZE as u64, position, buf)
}

fn load_wrapped<M: Addressable>(
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
