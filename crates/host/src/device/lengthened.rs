//! A file that was made longer for a volume, and is to be as it was if nothing comes of that.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::SeekFrom;

use super::claims::Claims;
use super::error::{OpenError, host};

/// What a device keeps of its opening until it is closed.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// How its file was made longer for it.
    pub lengthened: Option<Lengthened>,
    pub _claims: Claims,
}

/// A file that [`open`](super::open()) has made longer.
#[derive(Debug)]
pub(super) struct Lengthened {
    file: OwnedFd,
    /// Its lengths in bytes before and now.
    from: u64,
    to: u64,
}

impl Lengthened {
    /// Makes `file` longer, from `from` bytes, by a hole.
    pub(super) fn make(file: BorrowedFd<'_>, from: u64, to: u64) -> Result<Lengthened, OpenError> {
        let again = rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(host("fcntl"))?;
        rustix::fs::ftruncate(file, to).map_err(host("ftruncate"))?;
        Ok(Lengthened { file: again, from, to })
    }

    /// Makes the file as long as it was, unless another has changed its length since. Best effort:
    /// a file that is longer than its volume does no harm.
    pub(super) fn undo(&self) {
        if rustix::fs::seek(self.file.as_fd(), SeekFrom::End(0)) == Ok(self.to) {
            let _ = rustix::fs::ftruncate(self.file.as_fd(), self.from);
        }
    }
}
