//! copy_file_range(2).

use atoll_vfs::{Errno, FileAt, FileSystem, OpenFlags, Result};

use crate::flags::OFlags;
use crate::policy::Policy;
use crate::{Clock, Posix};

/// The most that one call copies, in bytes: as much as any call of Linux's moves.
const CALL_MAX: usize = 0x7fff_f000;

impl<F: FileSystem, C: Clock, P: Policy> Posix<F, C, P> {
    /// copy_file_range(2). Without an offset a descriptor's own counts, and moves on. Copies all of
    /// it unless there is an error on the way, which the next call returns.
    ///
    /// # Errors
    /// `EBADF` for descriptors of another access mode, or with O_APPEND for the copy; `EISDIR`;
    /// `EINVAL` where the ranges overlap, or for a negative offset; `EFBIG`, `ENOSPC`, `EIO`.
    pub fn copy_file_range(
        &mut self,
        from: (i32, Option<&mut i64>),
        to: (i32, Option<&mut i64>),
        len: usize,
    ) -> Result<usize> {
        let cx = self.context();
        let place = |fd, offset: &Option<&mut i64>, right| {
            let file = self.table.get(fd)?;
            let handle = file.handle(right)?;
            let offset = offset.as_deref().map_or(Ok(file.offset), |at| u64::try_from(*at));
            let at = FileAt { ino: file.ino, handle, offset: offset.map_err(|_| Errno::EINVAL)? };
            Ok::<_, Errno>((at, file.status))
        };
        let (source, read) = place(from.0, &from.1, OpenFlags::READ)?;
        let (target, written) = place(to.0, &to.1, OpenFlags::WRITE)?;
        if written.contains(OFlags::APPEND) {
            return Err(Errno::EBADF);
        }
        let len = len.min(CALL_MAX) as u64;
        // The whole must not overlap: a part that does not would be changed by the one before.
        let size = self.fs.getattr(&cx, source.ino)?.size;
        let len = atoll_vfs::filesystem::copied_len(source, target, len, size)?;
        let mut done = 0;
        loop {
            let (from, to) = (further(source, done), further(target, done));
            match self.fs.copy_file_range(&cx, from, to, len - done) {
                Err(_) if done > 0 => break,
                copied => match copied? {
                    0 => break,
                    copied => done += copied,
                },
            }
            if done >= len {
                break;
            }
        }
        for ((fd, offset), at) in [(from, source), (to, target)] {
            match offset {
                Some(offset) => *offset = (at.offset + done) as i64,
                None => self.table.get_mut(fd)?.offset = at.offset + done,
            }
        }
        if done > 0 {
            self.accessed(source.ino, read);
            if written.contains(OFlags::DSYNC) {
                let data_only = !written.contains(OFlags::SYNC);
                self.fs.fsync(&cx, target.ino, target.handle, data_only)?;
            }
        }
        Ok(done as usize)
    }
}

/// `by` bytes after a place.
fn further(at: FileAt, by: u64) -> FileAt {
    FileAt { offset: at.offset + by, ..at }
}
