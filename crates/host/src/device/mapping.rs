//! A file mapped into memory, as bytes that can be copied in and out.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use atoll_block::BLOCK_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};

use super::guarded::{Guarded, PageFault};

/// A shared mapping of the first bytes of a file.
///
/// The file may change and shrink under it: no reference into it exists anywhere, only copies.
#[derive(Debug)]
pub(super) struct Mapping {
    base: *mut u8,
    length: usize,
    guarded: Guarded,
}

// SAFETY: the mapping belongs to the value, is reached only through it, and may be used from any
// thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `length` bytes, not 0, of `file`.
    pub(super) fn new(file: BorrowedFd<'_>, length: usize, writable: bool) -> Result<Self, Errno> {
        let protection =
            if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(core::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0)
        }?;
        Ok(Mapping { base: base.cast(), length, guarded: Guarded::new() })
    }

    /// Where the mapping begins.
    pub(super) fn address(&self) -> usize {
        self.base as usize
    }

    /// Copies the bytes from `at` on to `buf`, which must lie in the mapping.
    #[inline]
    pub(super) fn load(&self, at: usize, buf: &mut [u8]) -> Result<(), PageFault> {
        debug_assert!(at + buf.len() <= self.length);
        // SAFETY: the caller has checked the range; a buffer never overlaps a mapping to which no
        // reference exists.
        unsafe { self.guarded.copy(buf.as_mut_ptr(), self.base.add(at), buf.len()) }
    }

    /// Copies `data` to the bytes from `at` on, which must lie in the mapping, made writable.
    #[inline]
    pub(super) fn store(&mut self, at: usize, data: &[u8]) -> Result<(), PageFault> {
        debug_assert!(at + data.len() <= self.length);
        // SAFETY: as in `load`.
        unsafe { self.guarded.copy(self.base.add(at), data.as_ptr(), data.len()) }
    }

    /// Whether the page at `at`, which must lie in the mapping, is in memory. Asking changes
    /// nothing, not even what the host reads ahead.
    pub(super) fn has_page(&self, at: usize) -> bool {
        debug_assert!(at < self.length);
        let mut found = 0u8;
        let start = self.base.wrapping_add(at / BLOCK_SIZE * BLOCK_SIZE);
        // SAFETY: the range is one page of the mapping, for which the kernel sets one byte.
        let result = unsafe { libc::mincore(start.cast(), 1, &mut found) };
        // A host that does not tell has memory, as far as it says.
        result != 0 || found & 1 != 0
    }

    /// Makes the pages of a range of whole pages durable.
    pub(super) fn sync(&self, at: usize, length: usize) -> Result<(), Errno> {
        debug_assert!(at + length <= self.length);
        // SAFETY: the range is mapped; MS_SYNC changes nothing in memory.
        unsafe { rustix::mm::msync(self.base.add(at).cast(), length, MsyncFlags::SYNC) }
    }

    /// Unmaps the pages of a range of whole pages until they are next accessed, and has them
    /// brought in one by one from then on.
    pub(super) fn single_pages(&self, at: usize, length: usize) -> Result<(), Errno> {
        debug_assert!(at + length <= self.length);
        // SAFETY: the range is mapped, shared and backed by a file: what was stored is in the
        // page cache and stays there.
        unsafe {
            let start = self.base.add(at).cast();
            rustix::mm::madvise(start, length, Advice::LinuxDontNeed)?;
            rustix::mm::madvise(start, length, Advice::Random)
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, which ends here. It fails for no valid mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}
