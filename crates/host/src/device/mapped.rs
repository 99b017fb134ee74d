//! A host file or block device mapped into memory.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use atoll_block::device::{block_range, byte_range, checked_blocks, store_each};
use atoll_block::{Addressable, BLOCK_SIZE, BlockDevice, BlockError, BlockIndex, Flusher};
use rustix::fs::{Advice, SeekFrom};

use super::ahead::{Entry, Recent};
use super::claims::Claims;
use super::io;
use super::lengthened::{Held, Lengthened};
use super::mapping::Mapping;
use super::openings::{OPENINGS, Openings};
use super::past_cache::PastCache;
use super::reserve::{self, PIECE, Reserve, SEQUENCE};
use super::shortage::Shortage;
use super::writeback;
use crate::memory;

/// Stores of at least this many bytes to pages that were not stored to before go by pwrite64: one
/// call, for which the host can take large folios, instead of a page fault for each page.
const COLD_STORE_MIN: usize = 32 * 1024;

static ZEROS: [u8; 16 * BLOCK_SIZE] = [0; 16 * BLOCK_SIZE];

/// A host file or block device as addressable memory, through a shared mapping.
///
/// A store is in the host's page cache when it returns: it survives the end of the process,
/// without a system call. Flush makes it durable.
///
/// Where the mapping cannot give or take a page (the file was made shorter, the host's disk is
/// full, the medium failed) the range is tried again with pread64 or pwrite64, whose error is
/// returned. A process that holds a `MappedDevice` has a handler for SIGBUS that knows the copies
/// of mapped devices and passes everything else on to the handler that was there; who replaces it
/// afterwards loses that.
///
/// Calls on the host, once open: none but page faults for loads and stores, except that the first
/// store of 32 KiB or more to a place is a pwrite64; msync for a flush; pread64 and pwrite64 after
/// a fault; and, unless opened for sealing, lseek before a flush, fallocate for a discard and for
/// storage of the host, a mebibyte at a time, and posix_fadvise to read ahead, 128 KiB at a time.
/// Also unless opened for sealing, mincore now and then, at most once in some thousand loads and
/// stores, to notice that memory is short. While it is, loads and stores of 4 KiB or more are
/// calls, and what was stored is written back by sync_file_range, 128 KiB at a time. Flushers make
/// lseek and msync, on descriptors and mappings of their own.
#[derive(Debug)]
pub struct MappedDevice {
    mapping: Mapping,
    file: File,
    block_count: u64,
    writable: bool,
    sealable: bool,
    /// One bit for each page that a large store went to.
    warm: Vec<u64>,
    reserve: Reserve,
    shortage: Shortage,
    /// Apart: it is looked at where memory is short only.
    recent: Box<Recent>,
    flushed_by: Option<Arc<Openings<FlushedBy>>>,
    past_cache: Option<Box<PastCache>>,
    /// What was written behind could not be: for the next flush to say.
    late: Option<BlockError>,
    held: Box<Held>,
}

/// The same file opened and mapped once more: of a mapping a range can be flushed alone.
#[derive(Debug)]
struct FlushedBy {
    file: File,
    mapping: Mapping,
}

impl FlushedBy {
    fn flush(&self, at: usize, length: usize) -> Result<(), BlockError> {
        io::check_length(self.file.as_fd(), (at + length) as u64)?;
        if length == 0 {
            return Ok(());
        }
        self.mapping.sync(at, length).map_err(io::block_error)
    }
}

impl MappedDevice {
    pub(super) fn new(
        file: File,
        block_count: u64,
        writable: bool,
        sealable: bool,
    ) -> Result<Self, rustix::io::Errno> {
        let length = usize::try_from(BlockIndex(block_count).byte_offset())
            .map_err(|_| rustix::io::Errno::NOMEM)?;
        let mapping = Mapping::new(file.as_fd(), length, writable)?;
        // Untouched zeros cost no memory.
        let warm = vec![0; block_count.div_ceil(64) as usize];
        let reserve = match sealable {
            true => Reserve::never(length as u64),
            false => {
                // `reserve` knows better what to read ahead, for faults and for calls.
                mapping.single_pages(0, length)?;
                let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
                Reserve::new(&file, length as u64, writable)
            }
        };
        let shortage = match reserve.is_never() {
            true => Shortage::never(),
            false => Shortage::new(memory::is_little()),
        };
        let recent = Box::new(Recent::new());
        Ok(MappedDevice {
            mapping,
            file,
            block_count,
            writable,
            sealable,
            warm,
            reserve,
            shortage,
            recent,
            flushed_by: None,
            past_cache: None,
            late: None,
            held: Box::default(),
        })
    }

    /// The device, whose flushers use `files`, the same file opened once more each.
    pub(super) fn flushed_by(
        mut self,
        files: Option<[File; OPENINGS]>,
    ) -> Result<Self, rustix::io::Errno> {
        if let Some([one, other]) = files {
            let length = BlockIndex(self.block_count).byte_offset() as usize;
            let map = |file: File| {
                let mapping = Mapping::new(file.as_fd(), length, false)?;
                Ok::<_, rustix::io::Errno>(FlushedBy { file, mapping })
            };
            self.flushed_by = Some(Arc::new(Openings::new([map(one)?, map(other)?])));
        }
        Ok(self)
    }

    /// The device, which keeps others away by `claims`, and whose file was made longer for it.
    pub(super) fn holding(mut self, claims: Claims, lengthened: Option<Lengthened>) -> Self {
        self.held = Box::new(Held { lengthened, _claims: claims });
        self
    }

    /// What was done to the file's length to open it.
    pub(super) fn lengthened(&self) -> Option<&Lengthened> {
        self.held.lengthened.as_ref()
    }

    /// The mapping.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The descriptor on which it calls pread64 and pwrite64 after a fault.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// The addresses that it maps, on which it calls msync.
    pub fn addresses(&self) -> core::ops::Range<usize> {
        let start = self.mapping.address();
        start..start + self.block_count as usize * BLOCK_SIZE
    }

    /// Whether it makes only the calls that a sealed process has.
    pub(crate) fn is_sealable(&self) -> bool {
        self.sealable
    }

    fn check_writable(&self) -> Result<(), BlockError> {
        if self.writable { Ok(()) } else { Err(BlockError::ReadOnly) }
    }

    /// A load that the mapping could not serve.
    #[cold]
    fn load_by_call(&mut self, at: usize, buf: &mut [u8]) -> Result<(), BlockError> {
        match &mut self.past_cache {
            Some(past_cache) => past_cache.read(self.file.as_fd(), at as u64, buf),
            None => io::read_at(self.file.as_fd(), at as u64, buf),
        }
    }

    pub(super) fn unmap_pages(&self) {
        // It need not succeed. Through the other mappings nothing is looked at.
        let _ = self.mapping.unmap_all();
    }

    /// A store that the mapping could not serve. If the file ends before the range's end, a write
    /// would make it longer again, and hide that what was there is lost.
    #[cold]
    fn store_by_call(&self, at: usize, data: &[u8]) -> Result<(), BlockError> {
        let Some(last) = data.len().checked_sub(1) else {
            return Ok(());
        };
        // Asked by reading where nothing else is allowed: in a hole that makes pages of zeros.
        match self.sealable {
            true => io::read_at(self.file.as_fd(), (at + last) as u64, &mut [0])?,
            false => io::check_length(self.file.as_fd(), (at + data.len()) as u64)?,
        }
        io::write_at(self.file.as_fd(), at as u64, data)
    }

    /// Whether a large store was made to every page of the range before; from now on it was.
    fn warm_up(&mut self, range: &core::ops::Range<usize>) -> bool {
        let mut was_warm = true;
        for page in range.start / BLOCK_SIZE..range.end.div_ceil(BLOCK_SIZE) {
            let bit = 1 << (page % 64);
            was_warm &= self.warm[page / 64] & bit != 0;
            self.warm[page / 64] |= bit;
        }
        was_warm
    }

    /// Notes that large stores to `blocks` need new pages.
    fn cool_down(&mut self, blocks: &core::ops::Range<u64>) {
        let mut at = blocks.start;
        while at < blocks.end {
            let end = blocks.end.min((at / 64 + 1) * 64);
            let word = &mut self.warm[at as usize / 64];
            // Memory that was never touched stays so.
            if *word != 0 {
                let bits = u64::MAX >> (64 - (end - at)) << (at % 64);
                *word &= !bits;
            }
            at = end;
        }
    }

    /// Looks whether memory is short, if that is due, and while it is, whether to move `range` by a
    /// call. While it is short, accesses that go through the mapping from piece to piece are read
    /// ahead.
    #[cold]
    fn attend(&mut self, range: &core::ops::Range<usize>, is_load: bool) -> bool {
        if self.past_cache.is_some() {
            return true;
        }
        let bytes = range.start as u64..range.end as u64;
        // A page that was not used before is not missed. The next access is looked at instead.
        if self.shortage.is_due() && self.reserve.has_seen(&bytes) {
            self.shortage.saw(self.mapping.has_page(range.start));
        }
        if !self.shortage.wants_attention() {
            return false;
        }
        let by_call = self.shortage.is_short() && range.len() >= BLOCK_SIZE;
        for piece in reserve::pieces(&bytes) {
            self.enter(piece, bytes.start.max(piece * PIECE), is_load || !by_call);
        }
        if by_call {
            self.shortage.called();
        }
        by_call
    }

    /// Notes an access to a piece, at `at`, while memory is short or may become so. Content
    /// is read ahead for a sequence that needs it, by this device alone: the host's own way to read
    /// ahead may take more than all the memory.
    fn enter(&mut self, piece: u64, at: u64, needs_content: bool) {
        let entry = self.recent.enter(piece);
        if let Err(error) = writeback::behind(self.file.as_fd(), piece, entry) {
            self.late = Some(error);
        }
        if entry == Entry::Known || !self.shortage.is_short() {
            return;
        }
        let is_next = entry == Entry::Next;
        if is_next && needs_content {
            reserve::will_need(&self.file, piece, SEQUENCE);
        }
        // In a sequence, where nothing was read ahead yet.
        let look_at = if is_next { (piece + SEQUENCE) * PIECE } else { at };
        if look_at < BlockIndex(self.block_count).byte_offset()
            && self.reserve.has_seen(&(look_at..look_at + 1))
        {
            self.shortage.saw(self.mapping.has_page(look_at as usize));
        }
    }

    fn sync(&mut self, blocks: core::ops::Range<u64>) -> Result<(), BlockError> {
        if let Some(error) = self.late.take() {
            return Err(error);
        }
        let end = BlockIndex(blocks.end).byte_offset();
        if !self.sealable {
            io::check_length(self.file.as_fd(), end)?;
        }
        let at = BlockIndex(blocks.start).byte_offset();
        if at == end {
            return Ok(());
        }
        self.mapping.sync(at as usize, (end - at) as usize).map_err(io::block_error)
    }

    /// Stores zeros in the blocks that hold anything else, so that holes stay holes.
    fn clear(&mut self, blocks: core::ops::Range<u64>) -> Result<(), BlockError> {
        let mut buffer = [0; BLOCK_SIZE];
        for block in blocks {
            let at = BlockIndex(block).byte_offset();
            self.load(at, &mut buffer)?;
            if buffer != ZEROS[..BLOCK_SIZE] {
                self.store(at, &ZEROS[..BLOCK_SIZE])?;
            }
        }
        Ok(())
    }

    /// Gives every hole within the range storage, filled with zeros, so that flushing a store
    /// there changes no metadata of the host's file system.
    fn fill_holes(&mut self, at: u64, end: u64) -> Result<(), BlockError> {
        let mut at = at;
        while at < end {
            // A host that cannot tell has no holes, as far as it says.
            let Ok(hole) = rustix::fs::seek(&self.file, SeekFrom::Hole(at)) else {
                break;
            };
            if hole >= end {
                break;
            }
            let data = match rustix::fs::seek(&self.file, SeekFrom::Data(hole)) {
                Ok(data) => data.min(end),
                Err(_) => end,
            };
            let mut done = hole;
            while done < data {
                let n = (data - done).min(ZEROS.len() as u64);
                io::write_at(self.file.as_fd(), done, &ZEROS[..n as usize])?;
                done += n;
            }
            at = data;
        }
        Ok(())
    }
}

impl BlockDevice for MappedDevice {
    fn block_count(&self) -> u64 {
        self.block_count
    }

    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<(), BlockError> {
        let at = block_range(self.block_count, first, buf.len())?;
        self.load(at, buf)
    }

    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<(), BlockError> {
        let at = block_range(self.block_count, first, data.len())?;
        self.store(at, data)
    }

    fn flush(&mut self) -> Result<(), BlockError> {
        self.sync(0..self.block_count)
    }

    fn flush_range(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        self.sync(checked_blocks(self.block_count, first, count)?)
    }

    fn flusher(&mut self, first: BlockIndex, count: u64) -> Option<Flusher> {
        let blocks = checked_blocks(self.block_count, first, count).ok()?;
        let by = Arc::clone(self.flushed_by.as_ref()?);
        let at = BlockIndex(blocks.start).byte_offset() as usize;
        let length = BlockIndex(count).byte_offset() as usize;
        if let Some(error) = self.late.take() {
            return Some(Flusher::new(move || Err(error)));
        }
        Some(Flusher::new(move || by.flush(|opening| opening.flush(at, length))))
    }

    /// The kernel writes back whole folios: where it caches the file in large ones, a store of a
    /// few bytes costs the writing of up to a mebibyte. Here the range is dropped from its cache
    /// and brought back by the one kind of read-ahead that uses single pages; and holes are
    /// filled, since storage allocated by a flush makes that a transaction of the host's file
    /// system. Measured in docs/PERFORMANCE.md.
    fn expect_commits(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        let blocks = checked_blocks(self.block_count, first, count)?;
        if !self.writable || self.sealable || blocks.is_empty() {
            return Ok(());
        }
        let (at, end) = (first.byte_offset(), BlockIndex(blocks.end).byte_offset());
        let length = end - at;
        io::check_length(self.file.as_fd(), end)?;
        self.fill_holes(at, end)?;
        // Only clean pages that are not mapped leave the cache. None of this needs to succeed.
        self.sync(blocks)?;
        let _ = self.mapping.single_pages(at as usize, length as usize);
        let length = core::num::NonZeroU64::new(length);
        let _ = rustix::fs::fadvise(&self.file, at, length, Advice::DontNeed);
        let _ = rustix::fs::fadvise(&self.file, at, length, Advice::WillNeed);
        Ok(())
    }

    fn reserve(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        let blocks = checked_blocks(self.block_count, first, count)?;
        self.check_writable()?;
        if blocks.is_empty() {
            return Ok(());
        }
        if self.sealable {
            return Err(BlockError::Unsupported);
        }
        io::reserve(self.file.as_fd(), first.byte_offset(), BlockIndex(count).byte_offset())
    }

    fn forget_cached(&mut self) -> Result<(), BlockError> {
        // Pages that are mapped stay in the cache.
        let length = BlockIndex(self.block_count).byte_offset() as usize;
        self.mapping.single_pages(0, length).map_err(io::block_error)?;
        io::forget_cached(self.file.as_fd())
    }

    fn read_past_cache(&mut self) -> Result<(), BlockError> {
        self.past_cache = PastCache::new(self.file.as_fd())?;
        if self.past_cache.is_some() {
            // Every load is to be by a call.
            self.shortage = Shortage::always();
        }
        Ok(())
    }

    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        let blocks = checked_blocks(self.block_count, first, count)?;
        self.check_writable()?;
        if blocks.is_empty() {
            return Ok(());
        }
        let (at, len) = (first.byte_offset(), BlockIndex(count).byte_offset());
        if !self.sealable && io::punch_hole(self.file.as_fd(), at, len)? {
            self.reserve.forget(&(at..at + len));
            self.cool_down(&blocks);
            return Ok(());
        }
        self.clear(blocks)
    }
}

impl Addressable for MappedDevice {
    #[inline]
    fn load(&mut self, at: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        let range = byte_range(self.block_count, at, buf.len())?;
        let bytes = range.start as u64..range.end as u64;
        if self.shortage.count() && self.attend(&range, true) {
            return self.load_by_call(range.start, buf);
        }
        if !self.reserve.has_seen(&bytes) {
            self.reserve.read_ahead(&self.file, &bytes);
        }
        match self.mapping.load(range.start, buf) {
            Ok(()) => Ok(()),
            Err(_) => self.load_by_call(range.start, buf),
        }
    }

    #[inline]
    fn store(&mut self, at: u64, data: &[u8]) -> Result<(), BlockError> {
        let range = byte_range(self.block_count, at, data.len())?;
        self.check_writable()?;
        let bytes = range.start as u64..range.end as u64;
        let is_short = self.shortage.count() && self.attend(&range, false);
        let is_large = is_short || data.len() >= COLD_STORE_MIN;
        if !self.reserve.covers(&bytes) || !is_large && !self.reserve.has_seen(&bytes) {
            // Pages for what goes through the mapping: a call makes its own.
            self.reserve.ask(&self.file, &bytes, !is_large);
        }
        if is_large && (is_short || !self.warm_up(&range)) {
            return self.store_by_call(range.start, data);
        }
        match self.mapping.store(range.start, data) {
            Ok(()) => Ok(()),
            Err(_) => self.store_by_call(range.start, data),
        }
    }

    /// Pieces are a large store together, as the pages are that a guest's kernel gathers: each
    /// through the mapping would fault in a page that one call makes with the others.
    fn store_pieces(&mut self, at: u64, pieces: &[&[u8]]) -> Result<(), BlockError> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        // A sealed process has no call for several pieces. While memory is short pieces are looked
        // at one by one.
        if self.sealable || len < COLD_STORE_MIN || self.shortage.wants_attention() {
            return store_each(self, at, pieces);
        }
        let range = byte_range(self.block_count, at, len)?;
        self.check_writable()?;
        if self.warm_up(&range) {
            return store_each(self, at, pieces);
        }
        let bytes = range.start as u64..range.end as u64;
        if !self.reserve.covers(&bytes) {
            self.reserve.ask(&self.file, &bytes, false);
        }
        io::check_length(self.file.as_fd(), bytes.end)?;
        io::write_pieces_at(self.file.as_fd(), bytes.start, pieces)
    }

    fn store_zeros(&mut self, at: u64, len: u64) -> Result<(), BlockError> {
        let len = usize::try_from(len).map_err(|_| BlockError::OutOfRange)?;
        let range = byte_range(self.block_count, at, len)?;
        let mut at = range.start;
        while at < range.end {
            let n = (range.end - at).min(ZEROS.len());
            self.store(at as u64, &ZEROS[..n])?;
            at += n;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_block::conformance::{BLOCKS, limits, random_operations};
    use std::os::unix::fs::FileExt;

    /// A device that takes memory for short throughout a short test.
    fn short(blocks: u64) -> MappedDevice {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BlockIndex(blocks).byte_offset()).unwrap();
        let mut device = MappedDevice::new(file, blocks, true, false).unwrap();
        device.shortage = Shortage::new(true);
        (0..100).for_each(|_| device.shortage.saw(false));
        device
    }

    #[test]
    fn conforms_while_memory_is_short() {
        limits(&mut short(BLOCKS));
        random_operations("atoll-host --lib", "conforms_while_memory_is_short", 60, || {
            short(BLOCKS)
        });
    }

    /// Pages that a guest has gathered, each by itself, go to a fresh place by one call, and to one
    /// that was stored to before by none.
    #[test]
    fn pieces_are_one_store() {
        let written = || {
            let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
            let of = |key: &str| -> u64 {
                text.lines().find_map(|line| line.strip_prefix(key)?.parse().ok()).unwrap()
            };
            (of("syscw: "), of("wchar: "))
        };
        let blocks = 2 * PIECE / BLOCK_SIZE as u64;
        let file = tempfile::tempfile().unwrap();
        file.set_len(BlockIndex(blocks).byte_offset()).unwrap();
        let mut device = MappedDevice::new(file, blocks, true, false).unwrap();
        let page = [7; BLOCK_SIZE];
        let pieces = [&page[..]; 16];
        for calls in [1, 0] {
            let before = written();
            device.store_pieces(4096, &pieces).unwrap();
            let after = written();
            let wanted = (calls, calls * 16 * BLOCK_SIZE as u64);
            assert_eq!((after.0 - before.0, after.1 - before.1), wanted);
        }
        let mut found = [0; 16 * BLOCK_SIZE];
        device.load(4096, &mut found).unwrap();
        assert_eq!(found, [7; 16 * BLOCK_SIZE]);
    }

    /// The kernel tells an opening once that what was written cannot be: whoever hears it says so.
    #[test]
    fn what_fails_behind_is_the_next_flushs_to_say() {
        let mut device = short(16);
        device.store(0, b"stored").unwrap();
        device.late = Some(BlockError::Io);
        assert_eq!(device.flush(), Err(BlockError::Io));
        assert_eq!(device.flush(), Ok(()));
        device.late = Some(BlockError::NoSpace);
        assert_eq!(device.flush_range(BlockIndex(0), 1), Err(BlockError::NoSpace));
        assert_eq!(device.flush_range(BlockIndex(0), 1), Ok(()));
    }

    /// A look is all that a device does where pages stay.
    #[test]
    fn enough_memory_costs_looks_alone() {
        let mut device = short(4 * PIECE / BLOCK_SIZE as u64);
        device.shortage = Shortage::new(false);
        for i in 0..20_000u64 {
            let at = i * 1000 % (4 * PIECE - 8);
            device.store(at, &i.to_le_bytes()).unwrap();
            device.load(at, &mut [0; 8]).unwrap();
        }
        assert!(!device.shortage.is_short());
        assert_eq!(*device.recent, Recent::new());
    }

    /// Blocks go by calls, smaller pieces through the mapping; both are the same pages.
    #[test]
    fn calls_and_copies_meet_while_memory_is_short() {
        let mut device = short(3 * PIECE / BLOCK_SIZE as u64);
        let mut found = [0; 2 * BLOCK_SIZE];
        for at in (0..3 * PIECE - 2 * BLOCK_SIZE as u64).step_by(BLOCK_SIZE) {
            device.store(at, &[1; BLOCK_SIZE]).unwrap();
            device.store(at + 10, b"small").unwrap();
            device.load(at, &mut found).unwrap();
            assert_eq!(found[..17], *b"\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01small\x01\x01");
            device.load(at + 11, &mut found[..3]).unwrap();
            assert_eq!(&found[..3], b"mal");
        }
        assert!(device.shortage.is_short());
    }

    /// Bytes that this thread has read by calls.
    fn read_by_calls() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        text.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap()
    }

    /// Pages that were read ahead and have left the host's cache again are missed, and the blocks
    /// then read by calls; the same blocks are not, once they stay.
    #[test]
    fn pages_that_go_are_noticed() {
        let pieces = 64;
        let file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..pieces * PIECE).map(|i| (i / 4096 % 251) as u8 + 1).collect();
        file.write_all_at(&content, 0).unwrap();
        let other = file.try_clone().unwrap();
        let blocks = pieces * PIECE / BLOCK_SIZE as u64;
        let drop_pages = || {
            other.sync_data().unwrap();
            rustix::fs::fadvise(&other, 0, None, Advice::DontNeed).unwrap();
        };
        let mut device = MappedDevice::new(file, blocks, true, false).unwrap();
        if device.reserve.is_never() {
            return eprintln!("not tested: the folder for temporary files is on a tmpfs");
        }
        device.shortage = Shortage::new(false);
        // All are read ahead, and then leave, as soon as they were read.
        (0..pieces).for_each(|piece| device.load(piece * PIECE, &mut [0]).unwrap());
        let present = |device: &MappedDevice| {
            let mut pages = (0..blocks).map(|block| BlockIndex(block).byte_offset() as usize);
            pages.any(|page| device.mapping.has_page(page))
        };
        for _ in 0..500 {
            device.mapping.single_pages(0, content.len()).unwrap();
            drop_pages();
            if !present(&device) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!present(&device), "pages that nobody maps stay");

        let pass = |device: &mut MappedDevice, range: core::ops::Range<u64>| {
            let before = read_by_calls();
            let mut found = [0; BLOCK_SIZE];
            for block in range {
                let at = BlockIndex(block).byte_offset();
                device.load(at, &mut found).unwrap();
                assert_eq!(found, content[at as usize..][..BLOCK_SIZE]);
            }
            (read_by_calls() - before) / BLOCK_SIZE as u64
        };
        let calls = pass(&mut device, 0..blocks);
        assert!(calls > blocks * 3 / 4, "{calls} calls for {blocks} blocks");
        assert!(device.shortage.is_short());
        // Now that all are there: what misses were worth, and no more.
        let calls = pass(&mut device, 0..blocks);
        assert!(!device.shortage.is_short(), "after {calls} calls");
        assert_eq!(pass(&mut device, 0..blocks), 0);
    }
}
