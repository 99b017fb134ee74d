//! Memory that stands for a file's content and that clients map: a memfd for each mapped file.
//!
//! A client that has its descriptor may change it at any time. So the server only copies from and
//! to it, by system calls, which fail where a mapping would fault. Its length is fixed from the
//! start, beyond any file's: nobody's mapping of it can lose its pages, and it takes memory only
//! where something was written.
//!
//! Each client gets an open file description of its own, with no more rights than its open file
//! has. By these the kernel knows, also after fork, exec and SIGKILL, whether any client still has
//! the memory, mapped or not: a write lease (fcntl(2), F_SETLEASE) is only given where there is no
//! other.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use atoll_server::host::PAGES_LEN;
use atoll_vfs::{Errno, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags, SeekFrom};
use rustix::io::Errno as RawErrno;

use super::machine::errno_of;
use crate::anew::reopen;

/// The request of fcntl(2) that says which signal a lease sends (asm-generic/fcntl.h).
pub(super) const F_SETSIG: libc::c_int = 10;

/// The memory of one file.
#[derive(Debug)]
pub(super) struct Pages(OwnedFd);

impl Pages {
    /// Zeros.
    ///
    /// # Errors
    /// `ENOSYS` where descriptors cannot be opened anew; `EMFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Pages> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let first = rustix::fs::memfd_create("atoll-mapped", flags)?;
        // So that no other user can open it for more than it was given for.
        rustix::fs::fchmod(&first, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::ftruncate(&first, PAGES_LEN)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&first, seals)?;
        // The kernel does not count the description that memfd_create(2) makes.
        let own = reopen(&first, true)?;
        // A client that opens the memory once more while the lease is held has this signal sent,
        // which is ignored, and not SIGIO, which would end the process. SAFETY: takes two numbers.
        if unsafe { libc::fcntl(own.as_raw_fd(), F_SETSIG, libc::SIGURG) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Pages(own))
    }

    /// A descriptor to map, and if `writable` to change it.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn grant(&self, writable: bool) -> io::Result<OwnedFd> {
        reopen(&self.0, writable)
    }
}

impl atoll_server::host::Pages for Pages {
    fn is_shared(&self) -> bool {
        let fd = self.0.as_raw_fd();
        // SAFETY: takes two numbers.
        if unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) } != 0 {
            return true;
        }
        // SAFETY: as above. Without it the lease ends with the descriptor.
        let _ = unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
        false
    }

    fn read(&self, mut at: u64, mut to: &mut [u8]) -> Result<()> {
        while !to.is_empty() {
            let read = rustix::io::retry_on_intr(|| rustix::io::pread(&self.0, &mut *to, at))
                .map_err(|errno| errno_of(errno.into()))?;
            if read == 0 {
                return Err(Errno::EIO);
            }
            at += read as u64;
            to = &mut to[read..];
        }
        Ok(())
    }

    fn write(&self, mut at: u64, mut from: &[u8]) -> Result<()> {
        while !from.is_empty() {
            let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.0, from, at))
                .map_err(|errno| errno_of(errno.into()))?;
            at += written as u64;
            from = &from[written..];
        }
        Ok(())
    }

    fn zero(&self, from: u64, to: u64) -> Result<()> {
        let to = to.min(PAGES_LEN);
        if from >= to {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punch = || rustix::fs::fallocate(&self.0, flags, from, to - from);
        rustix::io::retry_on_intr(punch).map_err(|errno| errno_of(errno.into()))
    }

    fn next_data(&self, at: u64) -> Result<u64> {
        match rustix::fs::seek(&self.0, SeekFrom::Data(at)) {
            Ok(next) => Ok(next),
            Err(RawErrno::NXIO) => Ok(PAGES_LEN),
            Err(errno) => Err(errno_of(errno.into())),
        }
    }
}

impl AsFd for Pages {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use atoll_server::host::Pages as _;

    use super::*;

    #[test]
    fn the_kernel_says_whether_it_is_shared() {
        let pages = Pages::new().unwrap();
        assert!(!pages.is_shared());
        for writable in [false, true] {
            let granted = pages.grant(writable).unwrap();
            assert!(pages.is_shared());
            let copy = granted.try_clone().unwrap();
            drop(granted);
            assert!(pages.is_shared(), "a duplicate counts");
            let wrote = rustix::io::pwrite(&copy, b"x", 5);
            assert_eq!(wrote.is_ok(), writable, "{wrote:?}");
            drop(copy);
            assert!(!pages.is_shared());
        }
        let mut byte = [0];
        pages.read(5, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
        assert_eq!(pages.next_data(0).unwrap(), 0);
        pages.zero(0, 4096).unwrap();
        assert_eq!(pages.next_data(0).unwrap(), PAGES_LEN);
        assert!(rustix::fs::ftruncate(&pages.0, 0).is_err());
    }
}
