//! Reads and writes that never wait, of what a front end has handed over: it has the other end of
//! the same open file description, or a copy of this one, and can set its flags at any time.
//!
//! Linux before 6.5 does so for eventfds alone. Of pipes and sockets the flag of the description
//! counts there, which is set here, and which the front end can take away: then its device's thread
//! waits for it.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{self, Errno, ReadWriteFlags, Result};

/// No place in a file, but what comes next.
const NEXT: u64 = u64::MAX;

/// Has calls on `file` not wait where the kernel can only be told so.
pub(super) fn never_waits(file: impl AsFd) -> Result<()> {
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags | OFlags::NONBLOCK)
}

/// Reads what is there, of any file.
///
/// # Errors
/// `EAGAIN` when nothing is; `EOPNOTSUPP` where the kernel cannot be told not to wait; those of
/// read(2).
pub(super) fn read_any(file: impl AsFd, out: &mut [u8]) -> Result<usize> {
    io::preadv2(file, &mut [IoSliceMut::new(out)], NEXT, ReadWriteFlags::NOWAIT)
}

/// Reads what is there, of an eventfd, a pipe or a socket.
///
/// # Errors
/// `EAGAIN` when nothing is; those of read(2).
pub(super) fn read(file: impl AsFd, out: &mut [u8]) -> Result<usize> {
    match read_any(&file, out) {
        Err(Errno::OPNOTSUPP) => io::read(file, out),
        done => done,
    }
}

/// Writes what there is room for, to a pipe or a socket.
///
/// # Errors
/// `EAGAIN` when there is none; those of write(2).
pub(super) fn write(file: impl AsFd, bytes: &[u8]) -> Result<usize> {
    match io::pwritev2(&file, &[IoSlice::new(bytes)], NEXT, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP) => io::write(file, bytes),
        done => done,
    }
}
