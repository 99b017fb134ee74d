//! Writing back what the host caches of a file, before anything needs it to be durable.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::ahead::Entry;
use super::reserve::PIECE;

/// Keeps what is stored from piling up where memory is short: as a sequence of stores enters
/// `piece`, the piece that it left is written, and the one before that waited for. Pages under
/// writeback are no use to a host that needs one at once, for the memory of a call, and then ends
/// the process.
pub(super) fn behind(file: BorrowedFd<'_>, piece: u64, entry: Entry) {
    match entry {
        Entry::Known | Entry::Elsewhere(None) => {}
        Entry::Elsewhere(Some(left)) => start(file, left * PIECE..(left + 1) * PIECE),
        Entry::Next => {
            let at = piece * PIECE;
            finish(file, at.saturating_sub(2 * PIECE)..at - PIECE);
            start(file, at - PIECE..at);
        }
    }
}

/// Has what was stored in `bytes` of the file written to the medium, without waiting for it: pages
/// that are written can be taken back. Nothing is durable by that, and a failure is the next
/// flush's to report.
fn start(file: BorrowedFd<'_>, bytes: Range<u64>) {
    call(file, bytes, libc::SYNC_FILE_RANGE_WRITE);
}

/// Waits for what is being written.
fn finish(file: BorrowedFd<'_>, bytes: Range<u64>) {
    call(file, bytes, libc::SYNC_FILE_RANGE_WAIT_BEFORE);
}

fn call(file: BorrowedFd<'_>, bytes: Range<u64>, flags: u32) {
    let length = bytes.end.saturating_sub(bytes.start);
    // To the call, no bytes are all up to the end.
    if length > 0 {
        // SAFETY: the call takes numbers and a descriptor that is open; it touches no memory.
        unsafe {
            libc::sync_file_range(file.as_raw_fd(), bytes.start as i64, length as i64, flags);
        }
    }
}
