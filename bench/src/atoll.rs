//! The calls of Atoll's C library, and the volumes that they act on.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use atoll::c::mounting::{
    ATOLL_PREAD, ATOLL_RAM, AtollOptions, atoll_error, atoll_mkfs, atoll_mount, atoll_unmount,
};
use atoll::c::{attributes, directories, files, names};

use crate::calls::{Calls, Stat};
use crate::record::Broken;
use crate::subject::Subject;

/// The volume that this process has mounted.
pub struct Atoll(());

/// The volume's file in the fresh folder of a measurement.
pub fn volume_in(folder: &Path) -> PathBuf {
    folder.join("bench.vol")
}

/// The options of the library for a volume of `bytes`, with at most `cache` bytes of memory for
/// cached blocks, the library's default if 0.
fn options(flags: u32, bytes: u64, cache: usize) -> AtollOptions {
    AtollOptions {
        size: size_of::<AtollOptions>(),
        flags,
        first_descriptor: 0,
        volume_bytes: bytes,
        cache_bytes: cache,
        uid: 0,
        gid: 0,
    }
}

/// The message of the library's last call, if `result` is a failure.
fn explained(result: i32) -> Result<(), Broken> {
    if result == 0 {
        return Ok(());
    }
    // SAFETY: the message ends with NUL and stays until the next failure.
    let message = unsafe { CStr::from_ptr(atoll_error()) };
    Err(Broken(message.to_string_lossy().into_owned()))
}

/// Makes a volume of `bytes` in `folder`.
pub fn make(folder: &Path, bytes: u64) -> Result<(), Broken> {
    let path = c_path(&volume_in(folder))?;
    // SAFETY: the path ends with NUL and the options are whole.
    explained(unsafe { atoll_mkfs(path.as_ptr(), &options(0, bytes, 0)) })
}

fn c_path(path: &Path) -> Result<CString, Broken> {
    CString::new(path.as_os_str().as_bytes()).map_err(|error| Broken(error.to_string()))
}

/// The result of a call that returns -1 on failure.
#[inline(always)]
fn checked(result: i64) -> io::Result<u64> {
    u64::try_from(result).map_err(|_| io::Error::last_os_error())
}

impl Atoll {
    /// Mounts the volume in `folder` as `subject` says; one in memory is made, of `bytes`. At most
    /// `cache` bytes are for cached blocks, the library's default if 0.
    pub fn mount(
        subject: Subject,
        folder: &Path,
        bytes: u64,
        cache: usize,
    ) -> Result<Atoll, Broken> {
        let flags = match subject {
            Subject::AtollPread => ATOLL_PREAD,
            Subject::AtollRam => ATOLL_RAM,
            _ => 0,
        };
        let path = c_path(&volume_in(folder))?;
        // SAFETY: the path ends with NUL and the options are whole.
        explained(unsafe { atoll_mount(path.as_ptr(), &options(flags, bytes, cache)) })?;
        Ok(Atoll(()))
    }

    /// Unmounts the volume, after which it is durable and clean.
    pub fn unmount(self) -> Result<(), Broken> {
        explained(atoll_unmount())
    }
}

impl Calls for Atoll {
    #[inline]
    fn open(&mut self, path: &CStr, flags: i32) -> io::Result<i32> {
        // SAFETY: the path ends with NUL.
        let file = unsafe { files::atoll_open(path.as_ptr(), flags, 0o644) };
        if file < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
    }

    #[inline]
    fn close(&mut self, file: i32) -> io::Result<()> {
        checked(files::atoll_close(file).into()).map(drop)
    }

    #[inline]
    fn pread(&mut self, file: i32, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // SAFETY: the buffer is as long as said.
        let result =
            unsafe { files::atoll_pread(file, buf.as_mut_ptr().cast(), buf.len(), offset as i64) };
        checked(result as i64).map(|n| n as usize)
    }

    #[inline]
    fn pwrite(&mut self, file: i32, data: &[u8], offset: u64) -> io::Result<usize> {
        // SAFETY: the data is as long as said.
        let result =
            unsafe { files::atoll_pwrite(file, data.as_ptr().cast(), data.len(), offset as i64) };
        checked(result as i64).map(|n| n as usize)
    }

    #[inline]
    fn read(&mut self, file: i32, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer is as long as said.
        let result = unsafe { files::atoll_read(file, buf.as_mut_ptr().cast(), buf.len()) };
        checked(result as i64).map(|n| n as usize)
    }

    #[inline]
    fn write(&mut self, file: i32, data: &[u8]) -> io::Result<usize> {
        // SAFETY: the data is as long as said.
        let result = unsafe { files::atoll_write(file, data.as_ptr().cast(), data.len()) };
        checked(result as i64).map(|n| n as usize)
    }

    #[inline]
    fn seek(&mut self, file: i32, offset: i64, whence: i32) -> io::Result<u64> {
        checked(files::atoll_lseek(file, offset, whence))
    }

    #[inline]
    fn stat(&mut self, file: i32) -> io::Result<Stat> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the call fills the structure when it succeeds.
        let stat = unsafe {
            checked(attributes::atoll_fstat(file, stat.as_mut_ptr()).into())?;
            stat.assume_init()
        };
        Ok(Stat { ino: stat.st_ino, size: stat.st_size as u64 })
    }

    #[inline]
    fn sync(&mut self, file: i32) -> io::Result<()> {
        checked(files::atoll_fsync(file).into()).map(drop)
    }

    #[inline]
    fn unlink(&mut self, path: &CStr) -> io::Result<()> {
        // SAFETY: the path ends with NUL.
        checked(unsafe { names::atoll_unlink(path.as_ptr()) }.into()).map(drop)
    }

    #[inline]
    fn mkdir(&mut self, path: &CStr) -> io::Result<()> {
        // SAFETY: the path ends with NUL.
        checked(unsafe { names::atoll_mkdir(path.as_ptr(), 0o755) }.into()).map(drop)
    }

    #[inline]
    fn list(&mut self, path: &CStr, mut each: impl FnMut(u64)) -> io::Result<()> {
        // SAFETY: the path ends with NUL; entries are looked at before the next call replaces them;
        // the stream is closed once.
        unsafe {
            let stream = directories::atoll_opendir(path.as_ptr());
            if stream.is_null() {
                return Err(io::Error::last_os_error());
            }
            *libc::__errno_location() = 0;
            loop {
                let entry = directories::atoll_readdir(stream);
                if entry.is_null() {
                    break;
                }
                each((*entry).d_ino);
            }
            let error = *libc::__errno_location();
            directories::atoll_closedir(stream);
            if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
        }
    }
}
