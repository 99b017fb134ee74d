//! Open files and directories, and the data of files.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use atoll_vfs::filesystem::{FILE_SIZE_MAX, checked_end};
use atoll_vfs::{
    Attr, Context, Errno, FallocateMode, FileType, Handle, Ino, Name, OpenFlags, Result, SeekTo,
    Written,
};
use rustix::fs::{self as sys, OFlags};

use super::attributes::{self, bits};
use super::reach::{open_in, ordinary};
use super::{HostDirectory, errno};

/// An open file or directory.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) ino: Ino,
    pub(super) fd: Arc<OwnedFd>,
    /// `None` for a directory.
    flags: Option<OpenFlags>,
}

/// How often a name is tried that comes and goes.
const ATTEMPTS: usize = 16;

/// Never waits for whoever has a lease on the file, and is no accident with a terminal.
const ALWAYS: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

fn open_flags(flags: OpenFlags) -> OFlags {
    let mut to = if flags.contains(OpenFlags::READ | OpenFlags::WRITE) {
        OFlags::RDWR
    } else if flags.contains(OpenFlags::WRITE) {
        OFlags::WRONLY
    } else {
        OFlags::RDONLY
    };
    to.set(OFlags::APPEND, flags.contains(OpenFlags::APPEND));
    to.set(OFlags::TRUNC, flags.contains(OpenFlags::TRUNC));
    to | ALWAYS
}

/// The error of opening an inode that is not a regular file.
fn openable(file_type: FileType) -> Result<()> {
    match file_type {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Errno::EISDIR),
        FileType::Symlink => Err(Errno::ELOOP),
        _ => Err(Errno::ENXIO),
    }
}

impl HostDirectory {
    pub(super) fn open_file(&mut self, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC) {
            self.may_change()?;
        }
        let (attr, fd) = self.stat(ino)?;
        openable(attr.file_type())?;
        let how = open_flags(flags);
        // Reading leaves the time of last access as it is, unless the layers above say otherwise.
        let fd = match self.anew(&fd, how | OFlags::NOATIME) {
            Err(Errno::EPERM) => self.anew(&fd, how)?,
            fd => fd?,
        };
        Ok(self.add_handle(ino, Arc::new(fd), Some(flags)))
    }

    pub(super) fn open_dir(&mut self, ino: Ino) -> Result<Handle> {
        let (attr, fd) = self.stat(ino)?;
        if !attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let fd = self.anew(&fd, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(self.add_handle(ino, Arc::new(fd), None))
    }

    pub(super) fn create_file(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        ordinary(name)?;
        let dir = self.fd(parent)?;
        for _ in 0..ATTEMPTS {
            if !flags.contains(OpenFlags::EXCL) || self.read_only {
                match self.find(parent, name) {
                    Ok(_) if flags.contains(OpenFlags::EXCL) => return Err(Errno::EEXIST),
                    Ok((ino, _)) => {
                        let handle = self.open_file(ino, flags)?;
                        self.table.given(ino);
                        return Ok((self.attr(cx, ino)?, handle));
                    }
                    Err(Errno::ENOENT) => {}
                    Err(error) => return Err(error),
                }
            }
            self.may_change()?;
            let how = open_flags(flags & !OpenFlags::TRUNC);
            match self.make_file(cx, (parent, &dir), name, mode, how) {
                Ok((ino, fd)) => {
                    let attr = attributes::of(ino, &fd)?;
                    let handle = self.add_handle(ino, fd, Some(flags));
                    self.table.given(ino);
                    return Ok((self.owners.shown(cx, attr), handle));
                }
                // A program of the host was faster.
                Err(Errno::EEXIST) if !flags.contains(OpenFlags::EXCL) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EAGAIN)
    }

    pub(super) fn make_nameless(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        self.may_change()?;
        let (of_parent, dir) = self.stat(parent)?;
        if !of_parent.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if of_parent.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        let how = open_flags(flags & !OpenFlags::TRUNC) | OFlags::TMPFILE;
        let fd = {
            let makes = self.owners.make_as(cx)?;
            let fd = self.with_room(|_| open_in(&dir, b".", how, bits(mode)))?;
            drop(makes);
            Arc::new(fd)
        };
        self.set_missing(&fd, mode)?;
        let identity = self.means.identify(&fd).map_err(errno)?;
        // It has no name by which it could be found again, but its handle keeps it known.
        let ino = self.table.register(identity, (parent, b"."), false, Arc::clone(&fd))?;
        let attr = attributes::of(ino, &fd)?;
        let handle = self.add_handle(ino, fd, Some(flags));
        self.table.given(ino);
        Ok((self.owners.shown(cx, attr), handle))
    }

    fn add_handle(&mut self, ino: Ino, fd: Arc<OwnedFd>, flags: Option<OpenFlags>) -> Handle {
        self.table.opened(ino, &fd);
        let handle = self.next_handle;
        self.next_handle += 1;
        self.open.insert(handle, Open { ino, fd, flags });
        Handle(handle)
    }

    /// The file that is open as `handle`, a directory or not.
    ///
    /// # Errors
    /// `EBADF`; `ESTALE` for an inode that is not known.
    pub(super) fn handle(&mut self, ino: Ino, handle: Handle, dir: bool) -> Result<&Open> {
        self.table.get(ino)?;
        let open = self.open.get(&handle.0);
        open.filter(|open| open.ino == ino && open.flags.is_none() == dir).ok_or(Errno::EBADF)
    }

    /// An open file that has `right`.
    pub(super) fn file(&mut self, ino: Ino, handle: Handle, right: OpenFlags) -> Result<&Open> {
        let open = self.handle(ino, handle, false)?;
        let flags = open.flags.unwrap_or(OpenFlags::empty());
        if flags.contains(right) { Ok(open) } else { Err(Errno::EBADF) }
    }

    pub(super) fn close(&mut self, ino: Ino, handle: Handle, dir: bool) -> Result<()> {
        self.handle(ino, handle, dir)?;
        let Some(open) = self.open.remove(&handle.0) else { return Err(Errno::EBADF) };
        let last = self.table.closed(ino);
        // Nobody else may keep it open for writing: it could not be executed.
        let kept = self.table.get(ino)?.fd().is_some_and(|fd| Arc::ptr_eq(fd, &open.fd));
        if last && self.reap(ino) {
            return Ok(());
        }
        if kept {
            match self.anew(&open.fd, OFlags::PATH) {
                Ok(fd) => self.table.get(ino)?.replace_fd(Arc::new(fd)),
                Err(_) if last => self.table.close(ino),
                Err(_) => {}
            }
        }
        Ok(())
    }

    pub(super) fn read_at(
        &mut self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let open = self.file(ino, handle, OpenFlags::READ)?;
        let room = usize::try_from(FILE_SIZE_MAX.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = buf.len().min(room);
        let mut done = 0;
        while done < len {
            match rustix::io::pread(&open.fd, &mut buf[done..len], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(done)
    }

    pub(super) fn write_at(
        &mut self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        let open = self.file(ino, handle, OpenFlags::WRITE)?;
        let append = open.flags.is_some_and(|flags| flags.contains(OpenFlags::APPEND));
        if append {
            return append_to(&open.fd, data);
        }
        checked_end(offset, data.len() as u64)?;
        let mut len = 0;
        while len < data.len() {
            match rustix::io::pwrite(&open.fd, &data[len..], offset + len as u64) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) if len == 0 => return Err(errno(error)),
                Err(_) => break,
            }
        }
        Ok(Written { len, offset })
    }

    pub(super) fn allocate(
        &mut self,
        ino: Ino,
        handle: Handle,
        (offset, len): (u64, u64),
        mode: FallocateMode,
    ) -> Result<()> {
        let open = self.file(ino, handle, OpenFlags::WRITE)?;
        checked_end(offset, len)?;
        let mode = sys::FallocateFlags::from_bits_retain(mode.bits());
        sys::fallocate(&open.fd, mode, offset, len).map_err(errno)
    }

    pub(super) fn next(
        &mut self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64> {
        let open = self.file(ino, handle, OpenFlags::empty())?;
        checked_end(offset, 0).map_err(|_| Errno::ENXIO)?;
        let to = match to {
            SeekTo::Data => sys::SeekFrom::Data(offset),
            SeekTo::Hole => sys::SeekFrom::Hole(offset),
        };
        sys::seek(&open.fd, to).map_err(errno)
    }
}

/// Writes at the end of a file that is open for that alone: the host finds it, so that its programs
/// may append too.
fn append_to(fd: &OwnedFd, data: &[u8]) -> Result<Written> {
    if data.is_empty() {
        let offset = sys::fstat(fd).map_err(errno)?.st_size as u64;
        return Ok(Written { len: 0, offset });
    }
    let len = rustix::io::write(fd, data).map_err(errno)?;
    // The position is this handle's alone.
    let end = sys::seek(fd, sys::SeekFrom::Current(0)).map_err(errno)?;
    Ok(Written { len, offset: end.saturating_sub(len as u64) })
}
