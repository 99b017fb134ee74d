//! Reading, writing, seeking and making durable.

use atoll_vfs::filesystem::FILE_SIZE_MAX;
use atoll_vfs::{Errno, FallocateMode, FileSystem, OpenFlags, Result, SeekTo};

use crate::flags::{OFlags, Whence};
use crate::policy::Policy;
use crate::table::Held;
use crate::{Clock, Posix};

/// Checks a file offset of the caller.
#[inline]
fn checked_offset(offset: i64) -> Result<u64> {
    u64::try_from(offset).map_err(|_| Errno::EINVAL)
}

impl<F: FileSystem, C: Clock, P: Policy> Posix<F, C, P> {
    /// read(2).
    ///
    /// # Errors
    /// `EBADF`, `EISDIR`, `EIO`.
    #[inline]
    pub fn read(&mut self, fd: i32, buf: &mut [u8]) -> Result<usize> {
        let cx = self.reading();
        let file = self.table.get_mut(fd)?;
        let handle = file.handle(OpenFlags::READ)?;
        let n = self.fs.read(&cx, file.ino, handle, file.offset, buf)?;
        file.offset += n as u64;
        let (ino, status) = (file.ino, file.status);
        if !buf.is_empty() {
            self.accessed(ino, status);
        }
        Ok(n)
    }

    /// pread(2).
    ///
    /// # Errors
    /// As [`read`](Self::read); `EINVAL` for a negative offset.
    #[inline]
    pub fn pread(&mut self, fd: i32, buf: &mut [u8], offset: i64) -> Result<usize> {
        let offset = checked_offset(offset)?;
        let cx = self.reading();
        let file = self.table.get(fd)?;
        let handle = file.handle(OpenFlags::READ)?;
        let (ino, status) = (file.ino, file.status);
        let n = self.fs.read(&cx, ino, handle, offset, buf)?;
        if !buf.is_empty() {
            self.accessed(ino, status);
        }
        Ok(n)
    }

    /// readv(2): fills the buffers in order until the end of file.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn readv<'b>(
        &mut self,
        fd: i32,
        bufs: impl IntoIterator<Item = &'b mut [u8]>,
    ) -> Result<usize> {
        let offset = self.table.get(fd)?.offset;
        let n = self.preadv(fd, bufs, offset as i64)?;
        self.table.get_mut(fd)?.offset = offset + n as u64;
        Ok(n)
    }

    /// preadv(2).
    ///
    /// # Errors
    /// As [`pread`](Self::pread).
    pub fn preadv<'b>(
        &mut self,
        fd: i32,
        bufs: impl IntoIterator<Item = &'b mut [u8]>,
        offset: i64,
    ) -> Result<usize> {
        let offset = checked_offset(offset)?;
        let cx = self.reading();
        let file = self.table.get(fd)?;
        let handle = file.handle(OpenFlags::READ)?;
        let (ino, status) = (file.ino, file.status);
        let (mut done, mut asked) = (0, false);
        for buf in bufs {
            asked |= !buf.is_empty();
            let n = match self.fs.read(&cx, ino, handle, offset + done as u64, buf) {
                Err(_) if done > 0 => break,
                read => read?,
            };
            done += n;
            if n < buf.len() {
                break;
            }
        }
        if asked {
            self.accessed(ino, status);
        }
        Ok(done)
    }

    /// write(2).
    ///
    /// # Errors
    /// `EBADF`, `EFBIG`, `ENOSPC`, `EIO`.
    #[inline]
    pub fn write(&mut self, fd: i32, data: &[u8]) -> Result<usize> {
        let cx = self.context();
        let file = self.table.get_mut(fd)?;
        let handle = file.handle(OpenFlags::WRITE)?;
        if data.is_empty() {
            return Ok(0);
        }
        let written = self.fs.write(&cx, file.ino, handle, file.offset, data)?;
        file.offset = written.offset + written.len as u64;
        if file.status.contains(OFlags::DSYNC) {
            let data_only = !file.status.contains(OFlags::SYNC);
            self.fs.fsync(&cx, file.ino, handle, data_only)?;
        }
        Ok(written.len)
    }

    /// pwrite(2). A descriptor with O_APPEND appends, as on Linux.
    ///
    /// # Errors
    /// As [`write`](Self::write); `EINVAL` for a negative offset.
    #[inline]
    pub fn pwrite(&mut self, fd: i32, data: &[u8], offset: i64) -> Result<usize> {
        let offset = checked_offset(offset)?;
        let cx = self.context();
        let file = self.table.get(fd)?;
        let handle = file.handle(OpenFlags::WRITE)?;
        if data.is_empty() {
            return Ok(0);
        }
        let written = self.fs.write(&cx, file.ino, handle, offset, data)?;
        if file.status.contains(OFlags::DSYNC) {
            let data_only = !file.status.contains(OFlags::SYNC);
            self.fs.fsync(&cx, file.ino, handle, data_only)?;
        }
        Ok(written.len)
    }

    /// writev(2): the buffers in order. No other call comes between them, but a crash may.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn writev<'b>(
        &mut self,
        fd: i32,
        bufs: impl IntoIterator<Item = &'b [u8]>,
    ) -> Result<usize> {
        let offset = self.table.get(fd)?.offset;
        let (n, end) = self.write_each(fd, bufs, offset)?;
        self.table.get_mut(fd)?.offset = end;
        Ok(n)
    }

    /// pwritev(2).
    ///
    /// # Errors
    /// As [`pwrite`](Self::pwrite).
    pub fn pwritev<'b>(
        &mut self,
        fd: i32,
        bufs: impl IntoIterator<Item = &'b [u8]>,
        offset: i64,
    ) -> Result<usize> {
        let (n, _) = self.write_each(fd, bufs, checked_offset(offset)?)?;
        Ok(n)
    }

    /// Writes the buffers; returns the number of bytes, and the offset where the last one ends.
    fn write_each<'b>(
        &mut self,
        fd: i32,
        bufs: impl IntoIterator<Item = &'b [u8]>,
        offset: u64,
    ) -> Result<(usize, u64)> {
        let cx = self.context();
        let file = self.table.get(fd)?;
        let handle = file.handle(OpenFlags::WRITE)?;
        let (mut done, mut end) = (0, offset);
        for data in bufs {
            if data.is_empty() {
                continue;
            }
            let written = match self.fs.write(&cx, file.ino, handle, end, data) {
                Err(_) if done > 0 => break,
                written => written?,
            };
            done += written.len;
            end = written.offset + written.len as u64;
            if written.len < data.len() {
                break;
            }
        }
        if done > 0 && file.status.contains(OFlags::DSYNC) {
            let data_only = !file.status.contains(OFlags::SYNC);
            self.fs.fsync(&cx, file.ino, handle, data_only)?;
        }
        Ok((done, end))
    }

    /// lseek(2). On a directory the offsets are cookies that getdents gave.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` for a place before the beginning or counted from a directory's end,
    /// `EOVERFLOW`, `ENXIO`.
    #[inline]
    pub fn lseek(&mut self, fd: i32, offset: i64, whence: Whence) -> Result<i64> {
        let file = self.table.get_mut(fd)?;
        file.not_path_only()?;
        let base = match whence {
            Whence::Set => 0,
            Whence::Current => file.offset as i64,
            _ => return self.lseek_by_content(fd, offset, whence),
        };
        let to = base.checked_add(offset).ok_or(Errno::EOVERFLOW)?;
        file.offset = checked_offset(to)?;
        Ok(to)
    }

    fn lseek_by_content(&mut self, fd: i32, offset: i64, whence: Whence) -> Result<i64> {
        let cx = self.reading();
        let file = self.table.get_mut(fd)?;
        let to = match (whence, file.held) {
            // A directory has no end that a cookie could be counted from.
            (_, Held::Directory(_)) => return Err(Errno::EINVAL),
            (Whence::End, _) => {
                let size = self.fs.getattr(&cx, file.ino)?.size as i64;
                checked_offset(size.checked_add(offset).ok_or(Errno::EOVERFLOW)?)?
            }
            (_, Held::File(handle)) => {
                let to = if whence == Whence::Data { SeekTo::Data } else { SeekTo::Hole };
                let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                self.fs.seek(&cx, file.ino, handle, from, to)?
            }
            _ => return Err(Errno::EINVAL),
        };
        file.offset = to;
        Ok(to as i64)
    }

    /// fsync(2) or, with `data_only`, fdatasync(2), of files and directories.
    ///
    /// # Errors
    /// `EBADF`, `EIO`.
    pub fn fsync(&mut self, fd: i32, data_only: bool) -> Result<()> {
        let cx = self.context();
        let file = self.table.get(fd)?;
        file.not_path_only()?;
        match file.held {
            Held::File(handle) => self.fs.fsync(&cx, file.ino, handle, data_only),
            Held::Directory(handle) => self.fs.fsyncdir(&cx, file.ino, handle),
            Held::Nothing => Err(Errno::EINVAL),
        }
    }

    /// sync(2): everything on the volume.
    ///
    /// # Errors
    /// `EIO`.
    pub fn sync(&mut self) -> Result<()> {
        let cx = self.context();
        self.fs.syncfs(&cx)
    }

    /// fallocate(2).
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` for an empty or negative range, `ENODEV` for a file that is not regular,
    /// `EOPNOTSUPP` for modes that do not go together, `EFBIG`, `ENOSPC`.
    pub fn fallocate(&mut self, fd: i32, mode: FallocateMode, offset: i64, len: i64) -> Result<()> {
        if offset < 0 || len <= 0 {
            return Err(Errno::EINVAL);
        }
        let exclusive = FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE;
        let punches = mode.contains(FallocateMode::PUNCH_HOLE);
        if mode.contains(exclusive) || punches && !mode.contains(FallocateMode::KEEP_SIZE) {
            return Err(Errno::EOPNOTSUPP);
        }
        let (offset, len) = (offset as u64, len as u64);
        let cx = self.context();
        let file = self.table.get(fd)?;
        let handle = file.handle(OpenFlags::WRITE)?;
        if offset + len > FILE_SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        self.fs.fallocate(&cx, file.ino, handle, offset, len, mode)
    }
}
