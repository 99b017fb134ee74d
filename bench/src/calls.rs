//! The calls of POSIX that workloads make of a measured file system: one trait for all subjects.
//!
//! Workloads are generic over [`Calls`], so that every subject runs exactly the same code and a
//! call is a direct call.

use std::ffi::CStr;
use std::io;

/// The answer of fstat(2), as far as workloads look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
}

/// Where [`Calls::seek`] counts from.
pub use libc::{O_APPEND, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_WRONLY, SEEK_SET};

/// The calls of POSIX on a fresh file system whose root is the working directory. Paths are
/// relative.
///
/// # Errors
/// Those of the system call of the same name.
pub trait Calls {
    /// open(2), with the permission bits 0644.
    fn open(&mut self, path: &CStr, flags: i32) -> io::Result<i32>;
    /// close(2).
    fn close(&mut self, file: i32) -> io::Result<()>;
    /// pread(2).
    fn pread(&mut self, file: i32, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// pwrite(2).
    fn pwrite(&mut self, file: i32, data: &[u8], offset: u64) -> io::Result<usize>;
    /// read(2).
    fn read(&mut self, file: i32, buf: &mut [u8]) -> io::Result<usize>;
    /// write(2).
    fn write(&mut self, file: i32, data: &[u8]) -> io::Result<usize>;
    /// lseek(2).
    fn seek(&mut self, file: i32, offset: i64, whence: i32) -> io::Result<u64>;
    /// fstat(2).
    fn stat(&mut self, file: i32) -> io::Result<Stat>;
    /// fsync(2).
    fn sync(&mut self, file: i32) -> io::Result<()>;
    /// unlink(2).
    fn unlink(&mut self, path: &CStr) -> io::Result<()>;
    /// mkdir(2), with the permission bits 0755.
    fn mkdir(&mut self, path: &CStr) -> io::Result<()>;
    /// opendir(3), readdir(3) to the end, closedir(3): gives the inode number of every entry, `.`
    /// and `..` among them.
    fn list(&mut self, path: &CStr, each: impl FnMut(u64)) -> io::Result<()>;
}
