//! The calls of the system: what programs use today.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;

use crate::calls::{Calls, Stat};

/// The file system that holds the working directory, by system calls of the C library.
pub struct System;

/// The result of a call that returns -1 on failure.
fn checked(result: i64) -> io::Result<u64> {
    u64::try_from(result).map_err(|_| io::Error::last_os_error())
}

impl Calls for System {
    fn open(&mut self, path: &CStr, flags: i32) -> io::Result<i32> {
        // SAFETY: the path ends with NUL.
        let file = unsafe { libc::open(path.as_ptr(), flags, 0o644) };
        if file < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
    }

    fn close(&mut self, file: i32) -> io::Result<()> {
        // SAFETY: workloads close what they opened, once.
        checked(unsafe { libc::close(file) }.into()).map(drop)
    }

    fn pread(&mut self, file: i32, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // SAFETY: the buffer is as long as said.
        let result =
            unsafe { libc::pread(file, buf.as_mut_ptr().cast(), buf.len(), offset as i64) };
        checked(result as i64).map(|n| n as usize)
    }

    fn pwrite(&mut self, file: i32, data: &[u8], offset: u64) -> io::Result<usize> {
        // SAFETY: the data is as long as said.
        let result = unsafe { libc::pwrite(file, data.as_ptr().cast(), data.len(), offset as i64) };
        checked(result as i64).map(|n| n as usize)
    }

    fn read(&mut self, file: i32, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer is as long as said.
        let result = unsafe { libc::read(file, buf.as_mut_ptr().cast(), buf.len()) };
        checked(result as i64).map(|n| n as usize)
    }

    fn write(&mut self, file: i32, data: &[u8]) -> io::Result<usize> {
        // SAFETY: the data is as long as said.
        let result = unsafe { libc::write(file, data.as_ptr().cast(), data.len()) };
        checked(result as i64).map(|n| n as usize)
    }

    fn seek(&mut self, file: i32, offset: i64, whence: i32) -> io::Result<u64> {
        // SAFETY: takes no memory.
        checked(unsafe { libc::lseek(file, offset, whence) })
    }

    fn stat(&mut self, file: i32) -> io::Result<Stat> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the call fills the structure when it succeeds.
        let stat = unsafe {
            checked(libc::fstat(file, stat.as_mut_ptr()).into())?;
            stat.assume_init()
        };
        Ok(Stat { ino: stat.st_ino, size: stat.st_size as u64 })
    }

    fn sync(&mut self, file: i32) -> io::Result<()> {
        // SAFETY: takes no memory.
        checked(unsafe { libc::fsync(file) }.into()).map(drop)
    }

    fn unlink(&mut self, path: &CStr) -> io::Result<()> {
        // SAFETY: the path ends with NUL.
        checked(unsafe { libc::unlink(path.as_ptr()) }.into()).map(drop)
    }

    fn mkdir(&mut self, path: &CStr) -> io::Result<()> {
        // SAFETY: the path ends with NUL.
        checked(unsafe { libc::mkdir(path.as_ptr(), 0o755) }.into()).map(drop)
    }

    fn list(&mut self, path: &CStr, mut each: impl FnMut(u64)) -> io::Result<()> {
        // SAFETY: the path ends with NUL; entries are looked at before the next call replaces them;
        // the stream is closed once.
        unsafe {
            let stream = libc::opendir(path.as_ptr());
            if stream.is_null() {
                return Err(io::Error::last_os_error());
            }
            *libc::__errno_location() = 0;
            loop {
                let entry = libc::readdir(stream);
                if entry.is_null() {
                    break;
                }
                each((*entry).d_ino);
            }
            let error = *libc::__errno_location();
            libc::closedir(stream);
            if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
        }
    }
}

/// Writes back what the file system at `folder` holds in memory, so that one measurement does not
/// pay for the one before it.
pub fn settle(folder: &std::path::Path) {
    use std::os::fd::AsRawFd;
    if let Ok(folder) = std::fs::File::open(folder) {
        // SAFETY: takes no memory; a failure only makes the next measurement noisier.
        unsafe { libc::syncfs(folder.as_raw_fd()) };
    }
}

/// The name of the file system at `folder`, when it is one that is known.
pub fn file_system_name(folder: &CStr) -> Option<&'static str> {
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path ends with NUL and the call fills the structure when it succeeds.
    let stat = unsafe {
        if libc::statfs(folder.as_ptr(), stat.as_mut_ptr()) != 0 {
            return None;
        }
        stat.assume_init()
    };
    Some(match stat.f_type {
        libc::EXT4_SUPER_MAGIC => "ext4",
        libc::TMPFS_MAGIC => "tmpfs",
        libc::BTRFS_SUPER_MAGIC => "btrfs",
        libc::XFS_SUPER_MAGIC => "xfs",
        libc::OVERLAYFS_SUPER_MAGIC => "overlayfs",
        _ => return None,
    })
}

/// Keeps the calling thread on the processor `cpu`.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: a set of processors is plain memory, and the call reads as many bytes as it has.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        libc::CPU_SET(cpu, &mut set);
        checked(libc::sched_setaffinity(0, size_of_val(&set), &set).into()).map(drop)
    }
}

/// The processors that the calling thread may use.
pub fn processors() -> Vec<usize> {
    // SAFETY: as in `pin`; the call fills the set.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, size_of_val(&set), &mut set) != 0 {
            return vec![0];
        }
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// Takes, or with F_UNLCK lets go of, the lock of the open file `file` on the byte at `start`.
pub fn lock(file: &std::fs::File, kind: i32, start: i64, wait: bool) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    // SAFETY: plain memory, of which zeros are values.
    let mut lock = unsafe { std::mem::zeroed::<libc::flock>() };
    (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, start, 1);
    // SAFETY: the call reads the structure.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), command, &lock) }.into()).map(drop)
}
