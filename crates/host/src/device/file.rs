//! A host file or block device reached by pread64(2) and pwrite64(2) alone.

use core::ops::Range;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use atoll_block::device::{block_range, checked_blocks};
use atoll_block::{BLOCK_SIZE, BlockDevice, BlockError, BlockIndex, Flusher};
use rustix::fs::Advice;

use super::ahead::{Entry, Recent};
use super::claims::Claims;
use super::dirty::DirtyRanges;
use super::lengthened::{Held, Lengthened};
use super::openings::{OPENINGS, Openings};
use super::past_cache::PastCache;
use super::reserve::{self, Reserve, SEQUENCE};
use super::{io, writeback};
use crate::{medium, memory};

/// Ranges of unflushed blocks that are remembered; with more, the device flushes by itself.
const DIRTY_RANGES: usize = 1024;
/// Bytes that are made durable by one pair of calls.
const REWRITE_BYTES: usize = 128 * 1024;

/// How a flush reaches the medium.
#[derive(Debug)]
enum Durability {
    /// fdatasync(2).
    Sync,
    /// No call but pread64 and pwrite64: what was written since the last flush is read (from the
    /// host's cache) and written again, through a descriptor opened with O_DSYNC.
    Rewrite { synced: File, dirty: DirtyRanges, buffer: Vec<u8> },
}

/// A host file or block device as a block device, by positioned reads and writes.
///
/// A write is in the host's page cache when it returns: it survives the end of the process. Flush
/// makes it durable.
///
/// Calls on the host, once open: pread64, pwrite64, and, unless opened for sealing, fdatasync for a
/// flush, lseek before it, and fallocate for a discard and for storage of the host, a mebibyte at a
/// time; and where the process has little memory, sync_file_range and posix_fadvise, 128 KiB at a
/// time. Flushers make the first two, on descriptors of their own.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    block_count: u64,
    writable: bool,
    durability: Durability,
    reserve: Reserve,
    /// Where memory is so little that what is written must not pile up, nor what is read ahead.
    watched: Option<Recent>,
    /// What was written behind could not be: for the next flush to say.
    late: Option<BlockError>,
    flushed_by: Option<Arc<Openings<File>>>,
    past_cache: Option<Box<PastCache>>,
    held: Box<Held>,
}

impl FileDevice {
    /// Its flushers use `flushed_by`, the same file opened once more each.
    pub(super) fn new(
        file: File,
        block_count: u64,
        writable: bool,
        flushed_by: Option<[File; OPENINGS]>,
    ) -> Self {
        let reserve = Reserve::new(&file, BlockIndex(block_count).byte_offset(), writable);
        let watched = (memory::is_little() && !reserve.is_never()).then(Recent::new);
        if watched.is_some() {
            // The host may read more ahead than all the memory.
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        }
        let flushed_by = flushed_by.map(|files| Arc::new(Openings::new(files)));
        let durability = Durability::Sync;
        FileDevice {
            file,
            block_count,
            writable,
            durability,
            reserve,
            watched,
            late: None,
            flushed_by,
            past_cache: None,
            held: Box::default(),
        }
    }

    /// The device with the calls that a sealed process has; `synced` is the same file opened with
    /// O_DSYNC. All memory that it will need is allocated here.
    pub(super) fn sealable(file: File, synced: File, block_count: u64, writable: bool) -> Self {
        let dirty = DirtyRanges::new(DIRTY_RANGES);
        let buffer = vec![0; REWRITE_BYTES];
        let durability = Durability::Rewrite { synced, dirty, buffer };
        let reserve = Reserve::never(BlockIndex(block_count).byte_offset());
        FileDevice {
            file,
            block_count,
            writable,
            durability,
            reserve,
            watched: None,
            late: None,
            flushed_by: None,
            past_cache: None,
            held: Box::default(),
        }
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

    /// The file that it reads and writes.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The descriptors on which it calls pread64 and pwrite64.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut descriptors = vec![self.file.as_raw_fd()];
        if let Durability::Rewrite { synced, .. } = &self.durability {
            descriptors.push(synced.as_raw_fd());
        }
        descriptors
    }

    /// Whether it makes no calls but pread64 and pwrite64.
    pub(crate) fn is_sealable(&self) -> bool {
        matches!(self.durability, Durability::Rewrite { .. })
    }

    fn check_writable(&self) -> Result<(), BlockError> {
        if self.writable { Ok(()) } else { Err(BlockError::ReadOnly) }
    }

    /// Writes `data` at `at`, the beginning of a block, and notes what was written for the flush. A
    /// block that was not written, for lack of room, must not be: writing it again would fail too.
    fn write_noted(&mut self, at: u64, data: &[u8]) -> Result<(), BlockError> {
        if let Durability::Rewrite { dirty, .. } = &self.durability
            && !dirty.has_room()
        {
            // Everything before may as well be durable now. If that fails, it stays listed, and
            // this write does not happen.
            self.rewrite(0..self.block_count)?;
        }
        let bytes = at..at + data.len() as u64;
        if !self.reserve.covers(&bytes) {
            self.reserve.ask(&self.file, &bytes, false);
        }
        self.enter(&bytes, false);
        let (done, outcome) = io::write_counted(self.file.as_fd(), at, data);
        if let Durability::Rewrite { dirty, .. } = &mut self.durability {
            let first = at / BLOCK_SIZE as u64;
            let blocks = first..first + done.div_ceil(BLOCK_SIZE) as u64;
            dirty.insert(blocks).map_err(|_| BlockError::Io)?;
        }
        outcome
    }

    /// Notes an access where memory is little.
    fn enter(&mut self, bytes: &Range<u64>, is_read: bool) {
        let Some(recent) = &mut self.watched else { return };
        for piece in reserve::pieces(bytes) {
            let entry = recent.enter(piece);
            if let Err(error) = writeback::behind(self.file.as_fd(), piece, entry) {
                self.late = Some(error);
            }
            if is_read && entry == Entry::Next {
                reserve::will_need(&self.file, piece, SEQUENCE);
            }
        }
    }

    /// Makes the unflushed blocks among `blocks` durable by writing them again. A block for which
    /// that fails stays listed, and the next flush tries again.
    fn rewrite(&mut self, blocks: Range<u64>) -> Result<(), BlockError> {
        let Durability::Rewrite { synced, dirty, buffer } = &mut self.durability else {
            return Ok(());
        };
        let most = (buffer.len() / BLOCK_SIZE) as u64;
        while let Some(range) = dirty.first_within(&blocks) {
            let piece = range.start..range.end.min(range.start + most);
            let at = BlockIndex(piece.start).byte_offset();
            let bytes = &mut buffer[..(piece.end - piece.start) as usize * BLOCK_SIZE];
            io::read_at(self.file.as_fd(), at, bytes)?;
            io::write_at(synced.as_fd(), at, bytes)?;
            if dirty.remove(&piece).is_err() {
                // A piece out of the middle of a range, and no room to list both ends. From the
                // first range on every piece is the beginning of one, which needs no room.
                return self.rewrite(0..blocks.end);
            }
        }
        Ok(())
    }

    /// Writes zeros where there are none yet.
    fn write_zeros(&mut self, at: u64, len: u64) -> Result<(), BlockError> {
        const PIECE: usize = 16 * BLOCK_SIZE;
        static ZEROS: [u8; PIECE] = [0; PIECE];
        let mut buffer = [0; BLOCK_SIZE];
        let mut done = 0;
        while done < len {
            let mut n = 0;
            while done + n < len && n < PIECE as u64 {
                io::read_at(self.file.as_fd(), at + done + n, &mut buffer)?;
                if buffer == ZEROS[..BLOCK_SIZE] {
                    break;
                }
                n += BLOCK_SIZE as u64;
            }
            if n == 0 {
                done += BLOCK_SIZE as u64;
                continue;
            }
            self.write_noted(at + done, &ZEROS[..n as usize])?;
            done += n;
        }
        Ok(())
    }
}

impl BlockDevice for FileDevice {
    fn block_count(&self) -> u64 {
        self.block_count
    }

    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<(), BlockError> {
        let at = block_range(self.block_count, first, buf.len())?;
        if let Some(past_cache) = &mut self.past_cache {
            return past_cache.read(self.file.as_fd(), at, buf);
        }
        self.enter(&(at..at + buf.len() as u64), true);
        io::read_at(self.file.as_fd(), at, buf)
    }

    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<(), BlockError> {
        let at = block_range(self.block_count, first, data.len())?;
        self.check_writable()?;
        self.write_noted(at, data)
    }

    fn flush(&mut self) -> Result<(), BlockError> {
        if let Some(error) = self.late.take() {
            return Err(error);
        }
        if let Durability::Rewrite { .. } = self.durability {
            return self.rewrite(0..self.block_count);
        }
        io::check_length(self.file.as_fd(), BlockIndex(self.block_count).byte_offset())?;
        medium::wait_for(|| rustix::fs::fdatasync(&self.file)).map_err(io::block_error)
    }

    fn flush_range(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        let blocks = checked_blocks(self.block_count, first, count)?;
        if let Durability::Rewrite { .. } = self.durability {
            return self.rewrite(blocks);
        }
        self.flush()
    }

    fn flusher(&mut self, first: BlockIndex, count: u64) -> Option<Flusher> {
        checked_blocks(self.block_count, first, count).ok()?;
        let by = Arc::clone(self.flushed_by.as_ref()?);
        let length = BlockIndex(self.block_count).byte_offset();
        if let Some(error) = self.late.take() {
            return Some(Flusher::new(move || Err(error)));
        }
        let flush = move |file: &File| {
            io::check_length(file.as_fd(), length)?;
            medium::wait_for(|| rustix::fs::fdatasync(file)).map_err(io::block_error)
        };
        Some(Flusher::new(move || by.flush(flush)))
    }

    fn reserve(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        let blocks = checked_blocks(self.block_count, first, count)?;
        self.check_writable()?;
        if blocks.is_empty() {
            return Ok(());
        }
        if self.is_sealable() {
            return Err(BlockError::Unsupported);
        }
        io::reserve(self.file.as_fd(), first.byte_offset(), BlockIndex(count).byte_offset())
    }

    fn forget_cached(&mut self) -> Result<(), BlockError> {
        io::forget_cached(self.file.as_fd())
    }

    fn read_past_cache(&mut self) -> Result<(), BlockError> {
        self.past_cache = PastCache::new(self.file.as_fd())?;
        Ok(())
    }

    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        let blocks = checked_blocks(self.block_count, first, count)?;
        self.check_writable()?;
        if blocks.is_empty() {
            return Ok(());
        }
        let (at, len) = (first.byte_offset(), BlockIndex(count).byte_offset());
        if !self.is_sealable() && io::punch_hole(self.file.as_fd(), at, len)? {
            self.reserve.forget(&(at..at + len));
            return Ok(());
        }
        self.write_zeros(at, len)
    }
}
