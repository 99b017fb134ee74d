//! Ranges of files for the window of a virtual machine.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use atoll_vfs::filesystem::{FILE_SIZE_MAX, Object};
use atoll_vfs::{Errno, Handle, Ino, OpenFlags, Result};
use rustix::fs::{self as sys, OFlags};

use super::{HostDirectory, errno};

/// What [`mappable`](atoll_vfs::FileSystem::mappable) gives: a file to be mapped by who is handed
/// its descriptor.
#[derive(Debug)]
pub struct Piece {
    /// The file.
    pub file: OwnedFd,
    /// Where the range begins in it.
    pub offset: u64,
    /// To be kept as long as it is mapped.
    pub kept: Option<Object>,
}

impl HostDirectory {
    /// The file itself where it has all of the range, else, and wherever that is wanted, a copy.
    pub(super) fn piece(
        &mut self,
        ino: Ino,
        handle: Handle,
        (offset, len): (u64, u64),
        copied: bool,
    ) -> Result<Piece> {
        let fd = Arc::clone(&self.file(ino, handle, OpenFlags::READ | OpenFlags::WRITE)?.fd);
        let size = sys::fstat(&fd).map_err(errno)?.st_size as u64;
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX);
        let range = offset..end.ok_or(Errno::EFBIG)?;
        if range.end <= size && !copied && !self.copies.covers(ino, &range) {
            // A description of its own: whoever has it can set its flags.
            let file = self.anew(&fd, OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY)?;
            return Ok(Piece { file, offset, kept: None });
        }
        // It would be read for the copy. Linux asks again.
        if self.steps && self.apart.is_cut(ino) {
            return Err(Errno::EAGAIN);
        }
        let copied = self.copies.get(ino, &range, &fd)?;
        let file = copied.memory.as_fd().try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
        Ok(Piece { file, offset: 0, kept: Some(Box::new(copied)) })
    }
}
