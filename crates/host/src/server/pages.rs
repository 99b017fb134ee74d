//! Memory that stands for a file's content and that clients map: a memfd for each mapped file.
//!
//! A client that has its descriptor may change it at any time. So the server only copies from and
//! to it. Its length is fixed from the start, beyond any file's: nobody's mapping of it can lose
//! its pages, and it takes memory only where something was written.
//!
//! A client that may write it can hold the lock of its inode for as long as it likes: write(2) has
//! it while it brings in what is to be written, which can come from the client itself, by FUSE.
//! From the moment that a client may have it, the server makes no call that takes that lock,
//! under which all clients would wait with it: it reads by pread(2), which takes none, stores into
//! a mapping ([`windows`]), and finds what is there by cachestat(2) ([`stored`]). So
//! what becomes zeros while clients have it keeps its memory until they have let go.
//!
//! Each client gets an open file description of its own, with no more rights than its open file
//! has. By these the kernel knows, also after fork, exec and SIGKILL, whether any client still has
//! the memory, mapped or not: a write lease (fcntl(2), F_SETLEASE) is only given where there is no
//! other.
#![allow(unsafe_code)]

mod stored;
mod windows;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use atoll_server::host::PAGES_LEN;
use atoll_vfs::{Errno, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags};
use rustix::io::Errno as RawErrno;

use self::windows::Windows;
use crate::anew::reopen;
use crate::errno::errno_of;

/// The request of fcntl(2) that says which signal a lease sends (asm-generic/fcntl.h).
pub(super) const F_SETSIG: libc::c_int = 10;

/// The most bytes that are made zeros by stores at once, which takes some 10 ms. Callers ask for a
/// small part of that: clients bring in what is more, meanwhile.
const ZEROED_MAX: u64 = 64 << 20;

/// The memory of one file.
#[derive(Debug)]
pub(super) struct Pages {
    file: OwnedFd,
    /// A client may have it, and its inode's lock.
    out: Cell<bool>,
    windows: RefCell<Windows>,
}

impl Pages {
    /// Zeros.
    ///
    /// # Errors
    /// `ENOSYS` where descriptors cannot be opened anew, or pages not be counted; `EMFILE`,
    /// `ENOMEM`.
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
        // Nothing else says where it has pages.
        stored::pages(own.as_fd(), &(0..PAGES_LEN)).map_err(|_| RawErrno::NOSYS)?;
        Ok(Pages { file: own, out: Cell::new(false), windows: RefCell::default() })
    }

    /// A descriptor to map, and if `writable` to change it.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn grant(&self, writable: bool) -> io::Result<OwnedFd> {
        self.out.set(true);
        reopen(&self.file, writable)
    }
}

impl atoll_server::host::Pages for Pages {
    fn is_shared(&self) -> bool {
        let fd = self.file.as_raw_fd();
        // SAFETY: takes two numbers.
        if unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) } != 0 {
            return true;
        }
        // SAFETY: as above. Without it the lease ends with the descriptor.
        let _ = unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
        self.out.set(false);
        false
    }

    fn read(&self, mut at: u64, mut to: &mut [u8]) -> Result<()> {
        while !to.is_empty() {
            let read = rustix::io::retry_on_intr(|| rustix::io::pread(&self.file, &mut *to, at))
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
        if self.out.get() {
            let wrote = self.windows.borrow_mut().write(self.file.as_fd(), at, from);
            return wrote.map_err(|errno| errno_of(errno.into()));
        }
        while !from.is_empty() {
            let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.file, from, at))
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
        if self.out.get() {
            let zeroed = self.windows.borrow_mut().zero(self.file.as_fd(), from..to, ZEROED_MAX);
            return zeroed.map_err(|errno| errno_of(errno.into()));
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punch = || rustix::fs::fallocate(&self.file, flags, from, to - from);
        rustix::io::retry_on_intr(punch).map_err(|errno| errno_of(errno.into()))
    }

    fn reach(&self, from: u64, to: u64, most: u64) -> Result<(u64, u64)> {
        let range = from..to.min(PAGES_LEN);
        if range.is_empty() {
            return Ok((to, 0));
        }
        let found = stored::reach(self.file.as_fd(), &range, most);
        found.map_err(|errno| errno_of(errno.into()))
    }

    fn next_data(&self, at: u64) -> Result<u64> {
        stored::next(self.file.as_fd(), at).map_err(|errno| errno_of(errno.into()))
    }

    fn rest(&self) -> bool {
        self.windows.borrow_mut().rest()
    }
}

impl AsFd for Pages {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
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
        assert_eq!(stored(&pages), 0);
        assert!(rustix::fs::ftruncate(&pages.file, 0).is_err());
    }

    fn stored(pages: &Pages) -> u64 {
        stored::pages(pages.as_fd(), &(0..PAGES_LEN)).unwrap()
    }

    fn byte(pages: &Pages, at: u64) -> u8 {
        let mut byte = [0];
        pages.read(at, &mut byte).unwrap();
        byte[0]
    }

    /// Stores change memory that a client may have, as far apart as they like.
    #[test]
    fn stores_are_as_calls() {
        let pages = Pages::new().unwrap();
        let client = pages.grant(true).unwrap();
        let far = [0, (64 << 20) - 3, 5 << 30, (1 << 43) + 7, PAGES_LEN - 6];
        for (at, n) in far.into_iter().zip(1..) {
            pages.write(at, &[n; 6]).unwrap();
        }
        for (at, n) in far.into_iter().zip(1..) {
            assert_eq!([byte(&pages, at), byte(&pages, at + 5)], [n; 2]);
            let mut seen = [0; 6];
            rustix::io::pread(&client, &mut seen, at).unwrap();
            assert_eq!(seen, [n; 6]);
        }
        assert_eq!(stored(&pages), 6, "one is in two windows");
        // A range is zeros to the byte, and takes no page that was not there.
        rustix::io::pwrite(&client, &[9; 3 * 4096], 5 << 30).unwrap();
        pages.zero((64 << 20) - 2, (5 << 30) + 4097).unwrap();
        let after = [(64 << 20) - 3, (64 << 20) - 2, (5 << 30) + 4096, (5 << 30) + 4097];
        assert_eq!(after.map(|at| byte(&pages, at)), [2, 0, 0, 9]);
        assert_eq!(stored(&pages), 8);
        pages.zero(0, u64::MAX).unwrap();
        assert!(far.into_iter().all(|at| byte(&pages, at) == 0 && byte(&pages, at + 5) == 0));
        assert_eq!(stored(&pages), 8);
        assert!(!pages.rest(), "all were used");
        let windows = std::iter::repeat_with(|| pages.rest()).take_while(|rested| *rested).count();
        assert_eq!(windows, 3, "some have the same place");
        pages.write(1, b"again").unwrap();
        assert_eq!(byte(&pages, 1), b'a');
        // When nobody has it, nothing of that is left.
        drop(client);
        assert!(!pages.is_shared());
        pages.zero(0, u64::MAX).unwrap();
        assert_eq!(stored(&pages), 0);
    }

    /// The answer is never beyond a page that is there, and gets to it.
    #[test]
    fn data_is_found() {
        let pages = Pages::new().unwrap();
        let places = [0, 1, 15, 16, 17, 40, 4096, 70_000, 1 << 20, (1 << 30) + 5, (1 << 32) - 1];
        places.iter().for_each(|page| pages.write(page * 4096 + 1, b"x").unwrap());
        for from in [0, 1, 4095, 4096, 65_537, 300_000, 1 << 33, 1 << 43] {
            let next = places.map(|page| page * 4096 + 4095).into_iter().find(|&at| at >= from);
            let mut at = from;
            loop {
                let found = pages.next_data(at).unwrap();
                assert!(found >= at && next.is_none_or(|next| found <= next), "{from} {found}");
                // Near it, or as far as one search goes.
                if found == PAGES_LEN || next.is_some_and(|next| next - found < 65_536) {
                    break;
                }
                assert!(found > at, "{from} {at}");
                at = found;
            }
        }
    }

    /// A part takes no more than it may, is found by a short search, and the next one goes on.
    #[test]
    fn parts_have_so_much_in_memory() {
        let pages = Pages::new().unwrap();
        let parts = |from, to, most| {
            let mut parts = vec![(from, 0)];
            while parts[parts.len() - 1].0 < to {
                let at = parts[parts.len() - 1].0;
                let (end, bytes) = pages.reach(at, to, most).unwrap();
                assert!(at < end && end <= to, "{at} {end}");
                assert_eq!(bytes, stored::pages(pages.as_fd(), &(at..end)).unwrap() * 4096);
                parts.push((end, bytes));
            }
            parts
        };
        assert!(parts(0, PAGES_LEN, 1 << 20).len() <= 600, "{}", parts(0, PAGES_LEN, 1).len());
        assert_eq!(parts(5, 4 << 20, 1 << 20), [(5, 0), (4 << 20, 0)]);
        assert_eq!(pages.reach(7, 7, 1).unwrap(), (7, 0));
        // Dense from 1 MiB to 9 MiB, then a page each 2 MiB.
        (1..9).for_each(|at| pages.write(at << 20, &[1; 1 << 20]).unwrap());
        (5..500).for_each(|at| pages.write(at << 21, b"x").unwrap());
        let found = parts(0, 1 << 30, 1 << 20);
        assert!(found.iter().all(|part| part.1 <= 1 << 20), "{found:?}");
        assert!(found.len() <= 2 * (8 + 2), "{found:?}");
        // One that has more than it may from its beginning is as short as can be.
        assert_eq!(parts(1 << 20, (1 << 20) + 100_000, 1)[1], ((1 << 20) + (64 << 10), 64 << 10));
    }

    /// Memory that takes longer to make zeros than others should wait.
    #[test]
    fn there_is_a_bound_to_what_is_made_zeros() {
        let pages = Pages::new().unwrap();
        pages.write(8192, &[1; 3 * 4096]).unwrap();
        let mut windows = pages.windows.borrow_mut();
        let zero = |windows: &mut Windows, most| windows.zero(pages.as_fd(), 0..PAGES_LEN, most);
        assert_eq!(zero(&mut windows, 2 * 4096), Err(RawErrno::NOMEM));
        assert_eq!(byte(&pages, 8192), 1);
        zero(&mut windows, 3 * 4096).unwrap();
        assert_eq!(byte(&pages, 8192), 0);
    }
}
