//! A file mapped into memory, as bytes that can be copied in and out.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use atoll_block::BLOCK_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};

use super::guarded::{Guarded, PageFault};
use crate::medium;

/// A shared mapping of a part of a file.
///
/// The file may change and shrink under it: no reference into it exists anywhere, only copies.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    length: usize,
    guarded: Guarded,
}

// SAFETY: the mapping belongs to the value, is reached only through it, and may be used from any
// thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes, not 0, of `file`.
    pub(super) fn new(file: BorrowedFd<'_>, length: usize, writable: bool) -> Result<Self, Errno> {
        let protection =
            if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        Self::map(file, 0, length, protection)
    }

    /// Maps `length` bytes, not 0, of `file` from `offset` on, of whole pages, to be written too.
    pub(crate) fn part(file: BorrowedFd<'_>, offset: u64, length: usize) -> Result<Self, Errno> {
        Self::map(file, offset, length, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map(
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        protection: ProtFlags,
    ) -> Result<Self, Errno> {
        let (anywhere, shared) = (core::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { rustix::mm::mmap(anywhere, length, protection, shared, file, offset) }?;
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

    /// As `store`, with the pages brought in before: memory that is short is an error, where a
    /// thread that touches a page would wait for memory, or the process end.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn provide(&mut self, at: usize, data: &[u8]) -> Result<(), Errno> {
        if data.is_empty() {
            return Ok(());
        }
        let from = at / BLOCK_SIZE * BLOCK_SIZE;
        let to = (at + data.len()).next_multiple_of(BLOCK_SIZE).min(self.length);
        debug_assert!(from < to);
        // SAFETY: whole pages of the mapping, whose bytes stay.
        let bring = || unsafe {
            let start = self.base.add(from).cast();
            rustix::mm::madvise(start, to - from, Advice::LinuxPopulateWrite)
        };
        rustix::io::retry_on_intr(bring).map_err(|_| Errno::NOMEM)?;
        // A page can be gone again.
        self.replace(at, data)
    }

    /// As `provide`, for pages that are there already.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn replace(&mut self, at: usize, data: &[u8]) -> Result<(), Errno> {
        // Not every processor has guarded copies.
        self.store(at, data).or_else(|PageFault| self.store_by_call(at, data))
    }

    /// As `store`, by the kernel, which says where a page cannot be had.
    ///
    /// # Errors
    /// `ENOMEM`; `ENOSYS` and the like where the call is refused.
    fn store_by_call(&mut self, at: usize, data: &[u8]) -> Result<(), Errno> {
        debug_assert!(at + data.len() <= self.length);
        let local = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
        let remote =
            libc::iovec { iov_base: self.base.wrapping_add(at).cast(), iov_len: data.len() };
        let this = std::process::id().cast_signed();
        // SAFETY: the kernel reads `data` and writes a range of the mapping of this process, to
        // which no reference exists.
        let stored = unsafe { libc::process_vm_writev(this, &local, 1, &remote, 1, 0) };
        match usize::try_from(stored) {
            Ok(stored) if stored == data.len() => Ok(()),
            Ok(_) => Err(Errno::NOMEM),
            Err(_) => match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EFAULT) | None => Err(Errno::NOMEM),
                Some(error) => Err(Errno::from_raw_os_error(error)),
            },
        }
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
        medium::wait_for(|| {
            // SAFETY: the range is mapped; MS_SYNC changes nothing in memory.
            unsafe { rustix::mm::msync(self.base.add(at).cast(), length, MsyncFlags::SYNC) }
        })
    }

    /// Unmaps the pages of a range of whole pages until they are next accessed.
    fn unmap(&self, at: usize, length: usize) -> Result<(), Errno> {
        debug_assert!(at + length <= self.length);
        // SAFETY: the range is mapped, shared and backed by a file: what was stored is in the
        // page cache and stays there.
        unsafe { rustix::mm::madvise(self.base.add(at).cast(), length, Advice::LinuxDontNeed) }
    }

    /// Unmaps all pages until they are next accessed.
    pub(super) fn unmap_all(&self) -> Result<(), Errno> {
        self.unmap(0, self.length)
    }

    /// Unmaps the pages of a range of whole pages until they are next accessed, and has them
    /// brought in one by one from then on.
    pub(super) fn single_pages(&self, at: usize, length: usize) -> Result<(), Errno> {
        self.unmap(at, length)?;
        // SAFETY: the range is mapped; how it is read ahead changes nothing in it.
        unsafe { rustix::mm::madvise(self.base.add(at).cast(), length, Advice::Random) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, which ends here. It fails for no valid mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// Both ways to store into a part of a file that is nowhere in memory yet.
    #[test]
    fn a_part_of_a_file_takes_what_is_stored() {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 1 << 40).unwrap();
        let (begin, length) = (1 << 39, 16 * BLOCK_SIZE);
        let mut part = Mapping::part(file.as_fd(), begin, length).unwrap();
        let data: Vec<u8> = (0..2 * BLOCK_SIZE).map(|byte| byte as u8).collect();
        let last = length - data.len();
        part.provide(5, &data).unwrap();
        part.provide(last, &data).unwrap();
        part.provide(last, &[]).unwrap();
        part.replace(2, b"xyz").unwrap();
        part.replace(5, &data[..1]).unwrap();
        part.store_by_call(8 * BLOCK_SIZE + 7, &data).unwrap();
        for at in [5, last, 8 * BLOCK_SIZE + 7] {
            let mut read = vec![0; data.len()];
            rustix::io::pread(&file, &mut read, begin + at as u64).unwrap();
            assert_eq!(read, data);
        }
        // Where the file ends there is no page, and no signal comes.
        rustix::fs::ftruncate(&file, begin).unwrap();
        assert_eq!(part.provide(0, &data), Err(Errno::NOMEM));
        assert_eq!(part.store_by_call(0, &data), Err(Errno::NOMEM));
    }
}
