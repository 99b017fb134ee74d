//! Reading a file past what the host caches of it, which stays as it is.

use std::os::fd::BorrowedFd;

use atoll_block::{BLOCK_SIZE, BlockError};
use rustix::fs::OFlags;

use super::io;

/// Bytes that are read at a time.
const PIECE: usize = 16 * BLOCK_SIZE;

/// Memory that the host can have a medium write to.
#[repr(align(4096))]
struct Aligned([u8; PIECE]);

/// An opening of a file whose reads go to the medium (O_DIRECT). The kernel first writes the
/// cache's dirty pages.
pub(super) struct PastCache {
    buffer: Box<Aligned>,
}

impl core::fmt::Debug for PastCache {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PastCache").finish_non_exhaustive()
    }
}

impl PastCache {
    /// Makes `file` such an opening; nothing where memory is the medium. A file system that has no
    /// way past its cache is an error.
    pub(super) fn new(file: BorrowedFd<'_>) -> Result<Option<Box<PastCache>>, BlockError> {
        if super::life::is_memory(file) {
            return Ok(None);
        }
        let flags = rustix::fs::fcntl_getfl(file).map_err(io::block_error)?;
        rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT).map_err(io::block_error)?;
        Ok(Some(Box::new(PastCache { buffer: Box::new(Aligned([0; PIECE])) })))
    }

    /// Fills `buf` from the offset `at` of `file`, in its whole blocks.
    pub(super) fn read(
        &mut self,
        file: BorrowedFd<'_>,
        at: u64,
        buf: &mut [u8],
    ) -> Result<(), BlockError> {
        let mut done = 0;
        while done < buf.len() {
            let from = at + done as u64;
            let within = (from % BLOCK_SIZE as u64) as usize;
            let len = (buf.len() - done).min(PIECE - within);
            let blocks = &mut self.buffer.0[..(within + len).next_multiple_of(BLOCK_SIZE)];
            io::read_at(file, from - within as u64, blocks)?;
            buf[done..done + len].copy_from_slice(&blocks[within..within + len]);
            done += len;
        }
        Ok(())
    }
}
