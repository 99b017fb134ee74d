//! The calls of POSIX over a file system that this program reaches by itself, by whatever way.

use std::ffi::CStr;
use std::io;

use atoll::clock::HostClock;
use atoll_posix::{OFlags, Options, Posix, Whence};
use atoll_vfs::{Errno, FileSystem};

use crate::calls::{Calls, Stat};

/// The calls over the file system `F`.
pub struct Over<F: FileSystem>(Posix<F, HostClock>);

impl<F: FileSystem> Over<F> {
    /// Begins in the root of `fs`.
    pub fn new(fs: F) -> Over<F> {
        Over(Posix::new(fs, HostClock, &Options::default()))
    }
}

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw())
}

impl<F: FileSystem> Calls for Over<F> {
    fn open(&mut self, path: &CStr, flags: i32) -> io::Result<i32> {
        let flags = OFlags::from_bits_retain(flags as u32);
        self.0.open(path.to_bytes(), flags, 0o644).map_err(error)
    }

    fn close(&mut self, file: i32) -> io::Result<()> {
        self.0.close(file).map_err(error)
    }

    fn pread(&mut self, file: i32, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.pread(file, buf, offset as i64).map_err(error)
    }

    fn pwrite(&mut self, file: i32, data: &[u8], offset: u64) -> io::Result<usize> {
        self.0.pwrite(file, data, offset as i64).map_err(error)
    }

    fn read(&mut self, file: i32, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(file, buf).map_err(error)
    }

    fn write(&mut self, file: i32, data: &[u8]) -> io::Result<usize> {
        self.0.write(file, data).map_err(error)
    }

    fn seek(&mut self, file: i32, offset: i64, whence: i32) -> io::Result<u64> {
        let whence = match whence {
            libc::SEEK_SET => Whence::Set,
            libc::SEEK_CUR => Whence::Current,
            _ => Whence::End,
        };
        self.0.lseek(file, offset, whence).map(|at| at as u64).map_err(error)
    }

    fn stat(&mut self, file: i32) -> io::Result<Stat> {
        let attr = self.0.fstat(file).map_err(error)?;
        Ok(Stat { ino: attr.ino.0, size: attr.size })
    }

    fn sync(&mut self, file: i32) -> io::Result<()> {
        self.0.fsync(file, false).map_err(error)
    }

    fn unlink(&mut self, path: &CStr) -> io::Result<()> {
        self.0.unlink(path.to_bytes()).map_err(error)
    }

    fn mkdir(&mut self, path: &CStr) -> io::Result<()> {
        self.0.mkdir(path.to_bytes(), 0o755).map_err(error)
    }

    fn list(&mut self, path: &CStr, mut each: impl FnMut(u64)) -> io::Result<()> {
        let flags = OFlags::DIRECTORY;
        let file = self.0.open(path.to_bytes(), flags, 0).map_err(error)?;
        let mut stream = self.0.fdopendir(file).map_err(error)?;
        while let Some(entry) = stream.next(&mut self.0).map_err(error)? {
            each(entry.ino.0);
        }
        self.0.closedir(stream).map_err(error)
    }
}
