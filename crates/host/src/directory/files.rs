//! Open files and directories, and the data of files.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use atoll_vfs::filesystem::{FILE_SIZE_MAX, checked_end};
use atoll_vfs::{
    Attr, Context, Data, Errno, FallocateMode, FileType, Handle, Ino, Name, OpenFlags, Rest,
    Result, Room, SeekTo, Written,
};
use rustix::fs::{self as sys, OFlags};

use super::attributes::{self, bits};
use super::copies::size_if;
use super::reach::{open_in, ordinary};
use super::{HostDirectory, errno};

/// An open file or directory.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) ino: Ino,
    pub(super) fd: Arc<OwnedFd>,
    /// `None` for a directory.
    flags: Option<OpenFlags>,
    _place: Taken,
}

/// The most pieces of one system call (UIO_MAXIOV).
const PIECES: usize = 1024;
/// How many files and directories this process has open for clients, of all directories.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// One of them, and how many there were with it. It counts as long as this lives.
#[derive(Debug)]
pub(super) struct Taken(usize);

impl Taken {
    pub(super) fn new() -> Taken {
        Taken(OPEN.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes of a file that are set aside or given back before others have their turn: the host's file
/// system may have to fill or free each page of them, which takes milliseconds.
const PART: u64 = 32 << 20;

impl Open {
    /// Its rights to the data; a directory is open for reading.
    pub(super) fn rights(&self) -> OpenFlags {
        self.flags.map_or(OpenFlags::READ, |flags| flags & (OpenFlags::READ | OpenFlags::WRITE))
    }

    /// It is a directory.
    pub(super) fn is_dir(&self) -> bool {
        self.flags.is_none()
    }
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
        let place = self.place()?;
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC) {
            self.take_set_ids(&attr, &fd)?;
        }
        let how = open_flags(flags);
        if flags.contains(OpenFlags::TRUNC) {
            self.settled(ino)?;
            if self.cuts_apart(&attr, 0) {
                self.cut_to(&attr, 0, |this| this.anew(&fd, open_flags(OpenFlags::WRITE)))?;
            }
        }
        if self.copies.has(ino) {
            self.copies.meet(ino, 0..u64::MAX)?;
        }
        // Reading leaves the time of last access as it is, unless the layers above say otherwise.
        let fd = match self.anew(&fd, how | OFlags::NOATIME) {
            Err(Errno::EPERM) => self.anew(&fd, how)?,
            fd => fd?,
        };
        if flags.contains(OpenFlags::TRUNC) {
            self.copies.zeroed(ino, 0..u64::MAX);
        }
        Ok(self.add_handle(ino, Arc::new(fd), Some(flags), place))
    }

    pub(super) fn open_dir(&mut self, ino: Ino) -> Result<Handle> {
        let (attr, fd) = self.stat(ino)?;
        if !attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let place = self.place()?;
        let fd = self.anew(&fd, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(self.add_handle(ino, Arc::new(fd), None, place))
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
                    Ok((Attr { ino, .. }, _)) => {
                        let handle = self.open_file(ino, flags)?;
                        self.table.given(ino);
                        return Ok((self.attr(cx, ino)?, handle));
                    }
                    Err(Errno::ENOENT) => {}
                    Err(error) => return Err(error),
                }
            }
            self.may_change()?;
            let place = self.place()?;
            let how = open_flags(flags & !OpenFlags::TRUNC);
            match self.make_file(cx, (parent, &dir), name, mode, how) {
                Ok((ino, fd)) => {
                    let attr = attributes::of(ino, &fd)?;
                    let handle = self.add_handle(ino, fd, Some(flags), place);
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
        let place = self.place()?;
        let mode = self.mode_for(mode);
        let how = open_flags(flags & !OpenFlags::TRUNC) | OFlags::TMPFILE;
        let fd = {
            let makes = self.owners.make_as(cx)?;
            let fd = self.with_room(|_| open_in(&dir, b".", how, bits(mode)))?;
            drop(makes);
            Arc::new(fd)
        };
        self.set_missing(&fd, mode)?;
        let identity = self.identify(&fd)?;
        // It has no name by which it could be found again, but its handle keeps it known.
        let ino = self.table.register(identity, (parent, b"."), false, Arc::clone(&fd))?;
        let attr = attributes::of(ino, &fd)?;
        let handle = self.add_handle(ino, fd, Some(flags), place);
        self.table.given(ino);
        Ok((self.owners.shown(cx, attr), handle))
    }

    /// A place for one more open file.
    ///
    /// # Errors
    /// `ENFILE` when this process has none left.
    fn place(&self) -> Result<Taken> {
        let taken = Taken::new();
        if taken.0 > self.most_open { Err(Errno::ENFILE) } else { Ok(taken) }
    }

    fn add_handle(
        &mut self,
        ino: Ino,
        fd: Arc<OwnedFd>,
        flags: Option<OpenFlags>,
        place: Taken,
    ) -> Handle {
        self.table.opened(ino, &fd);
        let handle = self.next_handle;
        self.next_handle += 1;
        self.open.insert(handle, Open { ino, fd, flags, _place: place });
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
        if self.copies.has(ino) {
            // What cannot be written back is said where it is synced, or when nobody has it mapped.
            let _ = self.copies.meet(ino, 0..u64::MAX);
            self.copies.drop_unused();
        }
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
        // Its handles may have been all that kept it known.
        self.table.forget(ino, 0);
        Ok(())
    }

    pub(super) fn read_at(
        &mut self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        room: &mut Room<'_>,
    ) -> Result<usize> {
        self.settled(ino)?;
        if self.copies.has(ino) {
            self.copies.meet(ino, offset..offset.saturating_add(room.len() as u64))?;
        }
        let open = self.file(ino, handle, OpenFlags::READ)?;
        room.truncate(usize::try_from(FILE_SIZE_MAX.saturating_sub(offset)).unwrap_or(usize::MAX));
        let mut pieces: Vec<_> = room.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
        let mut pieces = &mut pieces[..];
        let mut done = 0;
        while !pieces.is_empty() {
            let now = pieces.len().min(PIECES);
            match rustix::io::preadv(&open.fd, &mut pieces[..now], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    IoSliceMut::advance_slices(&mut pieces, n);
                }
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
        data: Data<'_>,
    ) -> Result<Written> {
        self.settled(ino)?;
        let copied = self.copies.has(ino);
        let open = self.file(ino, handle, OpenFlags::WRITE)?;
        let append = open.flags.is_some_and(|flags| flags.contains(OpenFlags::APPEND));
        let was = size_if(copied, &open.fd)?;
        // The file and the copy take the same, whoever changes the data meanwhile.
        let own = if copied { data.to_vec() } else { Vec::new() };
        let data = if copied { Data::from(&own[..]) } else { data };
        let written = match append {
            true => append_to(&open.fd, data)?,
            false => write_to(&open.fd, offset, data)?,
        };
        if copied {
            self.copies.written(ino, was, written.offset, data.limit(written.len));
        }
        Ok(written)
    }

    pub(super) fn allocate(
        &mut self,
        ino: Ino,
        handle: Handle,
        (offset, len): (u64, u64),
        mode: FallocateMode,
    ) -> Result<()> {
        self.settled(ino)?;
        let copied = self.copies.has(ino);
        let open = self.file(ino, handle, OpenFlags::WRITE)?;
        checked_end(offset, len)?;
        let was = size_if(copied, &open.fd)?;
        let fd = Arc::clone(&open.fd);
        let part = if self.steps { len.min(PART) } else { len };
        let to = sys::FallocateFlags::from_bits_retain(mode.bits());
        sys::fallocate(&fd, to, offset, part).map_err(errno)?;
        if copied {
            // Behind the old end there are zeros, and wherever the mode says so.
            let from = if mode.is_empty() { was } else { was.min(offset) };
            if mode != FallocateMode::KEEP_SIZE {
                self.copies.zeroed(ino, from..offset + part);
            }
        }
        if part < len {
            self.rest = Some(Rest::From(offset + part));
        }
        Ok(())
    }

    pub(super) fn next(
        &mut self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64> {
        self.settled(ino)?;
        if self.copies.has(ino) {
            self.copies.meet(ino, offset..u64::MAX)?;
        }
        let open = self.file(ino, handle, OpenFlags::empty())?;
        checked_end(offset, 0).map_err(|_| Errno::ENXIO)?;
        let to = match to {
            SeekTo::Data => sys::SeekFrom::Data(offset),
            SeekTo::Hole => sys::SeekFrom::Hole(offset),
        };
        sys::seek(&open.fd, to).map_err(errno)
    }
}

/// Writes at `offset`.
fn write_to(fd: &OwnedFd, offset: u64, data: Data<'_>) -> Result<Written> {
    checked_end(offset, data.len() as u64)?;
    let mut pieces: Vec<_> = data.iter().map(IoSlice::new).collect();
    let mut pieces = &mut pieces[..];
    let mut len = 0;
    while len < data.len() {
        let now = pieces.len().min(PIECES);
        match rustix::io::pwritev(fd, &pieces[..now], offset + len as u64) {
            Ok(0) => break,
            Ok(n) => {
                len += n;
                IoSlice::advance_slices(&mut pieces, n);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) if len == 0 => return Err(errno(error)),
            Err(_) => break,
        }
    }
    Ok(Written { len, offset })
}

/// Writes at the end of a file that is open for that alone: the host finds it, so that its programs
/// may append too.
fn append_to(fd: &OwnedFd, data: Data<'_>) -> Result<Written> {
    if data.is_empty() {
        let offset = sys::fstat(fd).map_err(errno)?.st_size as u64;
        return Ok(Written { len: 0, offset });
    }
    let pieces: Vec<_> = data.iter().take(PIECES).map(IoSlice::new).collect();
    let len = rustix::io::writev(fd, &pieces).map_err(errno)?;
    // The position is this handle's alone.
    let end = sys::seek(fd, sys::SeekFrom::Current(0)).map_err(errno)?;
    Ok(Written { len, offset: end.saturating_sub(len as u64) })
}
