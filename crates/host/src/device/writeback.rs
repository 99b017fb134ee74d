//! Writing back what the host caches of a file, before anything needs it to be durable.
#![allow(unsafe_code)]

use std::io::Error;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use atoll_block::BlockError;
use rustix::io::Errno;

use super::ahead::Entry;
use super::io;
use super::reserve::PIECE;

/// Keeps what is stored from piling up where memory is short: as a sequence of stores enters
/// `piece`, the piece that it left is written, and the one before that waited for. Pages under
/// writeback are no use to a host that needs one at once, for the memory of a call, and then ends
/// the process.
///
/// # Errors
/// What has been written could not be: the next flush has to say so, since the kernel tells each
/// opening of a file once.
pub(super) fn behind(file: BorrowedFd<'_>, piece: u64, entry: Entry) -> Result<(), BlockError> {
    match entry {
        Entry::Known | Entry::Elsewhere(None) => Ok(()),
        Entry::Elsewhere(Some(left)) => {
            start(file, left * PIECE..(left + 1) * PIECE);
            Ok(())
        }
        Entry::Next => {
            let at = piece * PIECE;
            let finished = finish(file, at.saturating_sub(2 * PIECE)..at - PIECE);
            start(file, at - PIECE..at);
            finished
        }
    }
}

/// Has what was stored in `bytes` of the file written to the medium, without waiting for it: pages
/// that are written can be taken back. Nothing is durable by that, and a failure is the next
/// flush's to report.
fn start(file: BorrowedFd<'_>, bytes: Range<u64>) {
    let _ = call(file, bytes, libc::SYNC_FILE_RANGE_WRITE);
}

/// Waits for what is being written. An error is told here, and not once more.
fn finish(file: BorrowedFd<'_>, bytes: Range<u64>) -> Result<(), BlockError> {
    match call(file, bytes, libc::SYNC_FILE_RANGE_WAIT_BEFORE) {
        Ok(()) => Ok(()),
        // The call cannot be made, or not of this file.
        Err(Errno::INVAL | Errno::NOSYS | Errno::PERM | Errno::SPIPE | Errno::INTR) => Ok(()),
        Err(error) => Err(io::block_error(error)),
    }
}

fn call(file: BorrowedFd<'_>, bytes: Range<u64>, flags: u32) -> Result<(), Errno> {
    let length = bytes.end.saturating_sub(bytes.start);
    // To the call, no bytes are all up to the end.
    if length == 0 {
        return Ok(());
    }
    let (at, length) = (bytes.start as i64, length as i64);
    // SAFETY: the call takes numbers and a descriptor that is open; it touches no memory.
    let failed = unsafe { libc::sync_file_range(file.as_raw_fd(), at, length, flags) } != 0;
    if failed {
        Err(Errno::from_io_error(&Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(())
    }
}
