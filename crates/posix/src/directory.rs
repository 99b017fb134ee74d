//! Listing directories: getdents, and a stream of entries over it.

use alloc::boxed::Box;

use atoll_vfs::{DirEntry, Errno, FileSystem, FileType, Ino, Result};

use crate::policy::Policy;
use crate::table::Held;
use crate::{Clock, Posix};

/// Bytes of a record before its name: inode number, offset, length, type.
pub const RECORD_HEADER: usize = 19;
/// Records begin at multiples of this many bytes.
const RECORD_ALIGN: usize = 8;

/// Bytes that the record of a name takes: header, name, NUL, padding.
#[inline]
const fn record_len(name: usize) -> usize {
    (RECORD_HEADER + name + 1).next_multiple_of(RECORD_ALIGN)
}

/// Writes the record of `entry`, as getdents64(2) lays it out, at the front of `buf`.
#[inline]
fn pack(entry: &DirEntry<'_>, buf: &mut [u8]) -> Option<usize> {
    let len = record_len(entry.name.len());
    let record = buf.get_mut(..len)?;
    // The padding first, the rest over it.
    *record.last_chunk_mut::<RECORD_ALIGN>()? = [0; RECORD_ALIGN];
    let header = record.first_chunk_mut::<RECORD_HEADER>()?;
    header[..8].copy_from_slice(&entry.ino.0.to_ne_bytes());
    header[8..16].copy_from_slice(&entry.cookie.to_ne_bytes());
    header[16..18].copy_from_slice(&(len as u16).to_ne_bytes());
    header[18] = entry.file_type.dirent_type();
    copy_short(&mut record[RECORD_HEADER..], entry.name);
    Some(len)
}

/// Copies `from` to the front of `to`, which is longer, in words: names are short, and a call of
/// memcpy would take longer than the copy.
#[inline]
fn copy_short(to: &mut [u8], from: &[u8]) {
    let to = &mut to[..from.len()];
    if let (Some(last), true) = (from.last_chunk::<8>(), from.len() <= 64) {
        let words = to.chunks_exact_mut(8).zip(from.chunks_exact(8));
        words.for_each(|(to, from)| to.copy_from_slice(from));
        // The bytes left over, and some of the last whole word again.
        if let Some(to) = to.last_chunk_mut::<8>() {
            *to = *last;
        }
    } else {
        to.copy_from_slice(from);
    }
}

impl<F: FileSystem, C: Clock, P: Policy> Posix<F, C, P> {
    /// getdents64(2): fills `buf` with records of the host's `struct linux_dirent64` (which is
    /// glibc's `struct dirent` on 64-bit machines), in one call of the file system. Returns the
    /// bytes filled, 0 at the end.
    ///
    /// # Errors
    /// `EBADF`, `ENOTDIR`, `EINVAL` when not even one record fits.
    pub fn getdents(&mut self, fd: i32, buf: &mut [u8]) -> Result<usize> {
        let cx = self.reading();
        let file = self.table.get_mut(fd)?;
        file.not_path_only()?;
        let Held::Directory(handle) = file.held else { return Err(Errno::ENOTDIR) };
        let (mut filled, mut cookie, mut full) = (0, file.offset, false);
        self.fs.readdir(&cx, file.ino, handle, cookie, &mut |entry| match pack(
            entry,
            &mut buf[filled..],
        ) {
            Some(len) => {
                filled += len;
                cookie = entry.cookie;
                true
            }
            None => {
                full = true;
                false
            }
        })?;
        if filled == 0 && full {
            return Err(Errno::EINVAL);
        }
        file.offset = cookie;
        let (ino, status) = (file.ino, file.status);
        self.accessed(ino, status);
        Ok(filled)
    }
}

/// Records lie in memory as C reads them.
#[repr(C, align(8))]
pub(crate) struct Buffer([u8; DirStream::BUFFER]);

impl core::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Buffer")
    }
}

/// How many buffers of closed streams are kept for the next ones.
const SPARE_BUFFERS: usize = 2;

/// A directory being read entry by entry: what `DIR` is in C. It reads ahead through
/// [`Posix::getdents`], so that the file system is asked once for many entries.
#[derive(Debug)]
pub struct DirStream {
    fd: i32,
    buf: Box<Buffer>,
    position: usize,
    filled: usize,
    /// The place of the entry to be read next.
    cookie: u64,
}

impl<F: FileSystem, C: Clock, P: Policy> Posix<F, C, P> {
    /// Reads the directory open as `fd` from its current place on (fdopendir(3)). The stream's
    /// user leaves `fd` alone until [`closedir`](Self::closedir).
    ///
    /// # Errors
    /// `EBADF`, `ENOTDIR`.
    pub fn fdopendir(&mut self, fd: i32) -> Result<DirStream> {
        let file = self.table.get(fd)?;
        file.not_path_only()?;
        if !matches!(file.held, Held::Directory(_)) {
            return Err(Errno::ENOTDIR);
        }
        let cookie = file.offset;
        let buf = match self.spare_buffers.pop() {
            Some(buf) => buf,
            None => Box::new(Buffer([0; DirStream::BUFFER])),
        };
        Ok(DirStream { fd, buf, position: 0, filled: 0, cookie })
    }

    /// Ends a stream and closes its descriptor.
    ///
    /// # Errors
    /// `EBADF` if the descriptor was closed already.
    pub fn closedir(&mut self, stream: DirStream) -> Result<()> {
        if self.spare_buffers.len() < SPARE_BUFFERS {
            self.spare_buffers.push(stream.buf);
        }
        self.close(stream.fd)
    }
}

impl DirStream {
    /// Bytes that a stream reads ahead.
    pub const BUFFER: usize = 32 * 1024;

    /// The descriptor (dirfd(3)).
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Whether the next entry has been read ahead, so that
    /// [`next_record`](Self::next_record) will not need the file system.
    #[inline]
    pub fn has_buffered(&self) -> bool {
        self.position < self.filled
    }

    /// Reads ahead if nothing is left. False at the end of the directory.
    ///
    /// # Errors
    /// `EBADF` once the descriptor was closed, `EIO`.
    pub fn fill<F: FileSystem, C: Clock, P: Policy>(
        &mut self,
        posix: &mut Posix<F, C, P>,
    ) -> Result<bool> {
        if !self.has_buffered() {
            self.position = 0;
            self.filled = 0;
            self.filled = posix.getdents(self.fd, &mut self.buf.0)?;
        }
        Ok(self.filled > 0)
    }

    /// The next record that was read ahead, laid out as [`Posix::getdents`] says, at an address
    /// that is a multiple of 8. It stays until the next [`fill`](Self::fill).
    #[inline]
    pub fn next_record(&mut self) -> Option<&mut [u8]> {
        let rest = self.buf.0[..self.filled].get_mut(self.position..)?;
        let header = rest.first_chunk::<RECORD_HEADER>()?;
        let len = u16::from_ne_bytes([header[16], header[17]]) as usize;
        self.cookie = u64::from_ne_bytes(*header[8..].first_chunk()?);
        self.position += len;
        rest.get_mut(..len)
    }

    /// The next entry, or `None` at the end (readdir(3)).
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn next<F: FileSystem, C: Clock, P: Policy>(
        &mut self,
        posix: &mut Posix<F, C, P>,
    ) -> Result<Option<DirEntry<'_>>> {
        if !self.fill(posix)? {
            return Ok(None);
        }
        Ok(self.next_record().and_then(|record| parse(record)))
    }

    /// The place of the entry to be read next (telldir(3)).
    pub fn tell(&self) -> u64 {
        self.cookie
    }

    /// Goes to a place that [`tell`](Self::tell) named, or with 0 to the beginning (seekdir(3),
    /// rewinddir(3)).
    ///
    /// # Errors
    /// `EBADF` once the descriptor was closed.
    pub fn seek<F: FileSystem, C: Clock, P: Policy>(
        &mut self,
        posix: &mut Posix<F, C, P>,
        cookie: u64,
    ) -> Result<()> {
        posix.table.get_mut(self.fd)?.offset = cookie;
        self.position = 0;
        self.filled = 0;
        self.cookie = cookie;
        Ok(())
    }
}

/// Reads a record that `pack` wrote.
fn parse(record: &[u8]) -> Option<DirEntry<'_>> {
    let header = record.first_chunk::<RECORD_HEADER>()?;
    let rest = &record[RECORD_HEADER..];
    let end = rest.iter().position(|&b| b == 0)?;
    Some(DirEntry {
        ino: Ino(u64::from_ne_bytes(*header.first_chunk()?)),
        cookie: u64::from_ne_bytes(*header[8..].first_chunk()?),
        file_type: FileType::from_dirent_type(header[18])?,
        name: &rest[..end],
    })
}
