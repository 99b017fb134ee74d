//! The trait of the file seam.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::any::Any;

use crate::errno::{Errno, Result};
use crate::locks::{Locks, OutsideLocks};
use crate::pieces::{Data, Room};
use crate::sync::{CheckpointStep, PendingSync, Rest, SyncId};
use crate::types::*;

/// An object of the host, which those know that made it and that use it.
pub type Object = Box<dyn Any + Send>;

/// A file system: FUSE's verbs on inode numbers and one name component at a time.
///
/// # Contract
///
/// - A call is atomic: it does all of what it says or, when it returns an error, nothing
///   (a write that runs out of space may return the bytes that it did write).
/// - Once a call has returned, every later call sees what it did.
/// - Errors are those of the system call of the same name in POSIX and Linux. Where a call could
///   fail for several reasons any of them may be returned.
/// - An inode lives as long as it has a link or an open [`Handle`]. After that its number is
///   `ESTALE` for ever. A caller's handles stay valid whatever happens to the names.
/// - Crashes: see docs/RELIABILITY.md. A returned call survives the end of the process; what
///   [`fsync`](Self::fsync) covered survives power loss; what survives is always a prefix of the
///   calls that changed names and attributes.
/// - No permissions are checked here; read, write and append rights of a handle are.
/// - Timestamps: a call that changes content sets mtime and ctime, one that changes attributes or
///   links ctime, one that changes a directory its mtime and ctime, all to [`Context::now`].
///   atime changes by `setattr` and [`accessed`](Self::accessed), reading alone leaves it.
/// - Names in `name` arguments are never `.` or `..` except in [`lookup`](Self::lookup); elsewhere
///   they are `EINVAL` (`rmdir` of `..` and `rename` are refused in the layers above with the
///   errors of POSIX).
pub trait FileSystem {
    /// Finds `name` in the directory `parent`. `.` is the directory, `..` its parent, the root its
    /// own.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ESTALE`, `EIO`.
    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr>;

    /// Drops `count` references that [`lookup`](Self::lookup) and creating calls gave, for
    /// implementors that hold resources for each inode a caller knows. Most hold none.
    fn forget(&mut self, ino: Ino, count: u64) {
        let _ = (ino, count);
    }

    /// Whether `ino`, which [`lookup`](Self::lookup) has given, is the root of another file system
    /// that is mounted in this one. Names and links do not cross.
    fn is_submount(&mut self, ino: Ino) -> bool {
        let _ = ino;
        false
    }

    /// The attributes of `ino`.
    ///
    /// # Errors
    /// `ESTALE`, `EIO`.
    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr>;

    /// Changes attributes, size included, and returns the new ones. With `handle` given, a change
    /// of size needs its right to write.
    ///
    /// # Errors
    /// `EISDIR` and `EINVAL` for the size of what is no regular file, `EFBIG`, `ENOSPC`, `EBADF`.
    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr>;

    /// Appends the target of a symbolic link to `target`.
    ///
    /// # Errors
    /// `EINVAL` for what is no symbolic link.
    fn readlink(&mut self, cx: &Context, ino: Ino, target: &mut Vec<u8>) -> Result<()>;

    /// Makes a regular file, pipe, socket or device with the type and permission bits of `mode`.
    /// The caller has applied its umask.
    ///
    /// # Errors
    /// `EEXIST`, `ENOSPC`, `ENOTDIR`, `EINVAL` for another type; `ENOENT` in a removed directory.
    fn mknod(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr>;

    /// Makes a directory with the permission bits of `mode`. It inherits the group and the
    /// set-group-ID bit of a directory that has the bit.
    ///
    /// # Errors
    /// As [`mknod`](Self::mknod), and `EMLINK`.
    fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr>;

    /// Makes a symbolic link to `target`, 1 to [`SYMLINK_MAX`] bytes.
    ///
    /// # Errors
    /// As [`mknod`](Self::mknod); `ENAMETOOLONG` and `ENOENT` for the length of the target.
    fn symlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>, target: &[u8])
    -> Result<Attr>;

    /// Removes a name of what is no directory.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `ENOTDIR`.
    fn unlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`.
    fn rmdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()>;

    /// Moves `name` in `parent` to `new_name` in `new_parent`, replacing what is there if it is of
    /// the same kind and, if a directory, empty; or as `flags` say. Two names of one file: nothing.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`, `EMLINK`; `EINVAL` for moving a
    /// directory into itself or for flags that do not [agree](RenameFlags::agree), or that the file
    /// system lacks.
    fn rename(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        new_parent: Ino,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()>;

    /// Gives the file `ino` another name. An unlinked file that is still open (made by
    /// [`tmpfile`](Self::tmpfile) or not) may be linked again.
    ///
    /// # Errors
    /// `EPERM` for a directory, `EEXIST`, `EMLINK` beyond [`LINK_MAX`], `ENOSPC`.
    fn link(&mut self, cx: &Context, ino: Ino, new_parent: Ino, new_name: Name<'_>)
    -> Result<Attr>;

    /// Opens a regular file.
    ///
    /// # Errors
    /// `EISDIR` when writing or truncating a directory, `ESTALE`, `ENFILE`; `ENXIO` for pipes,
    /// sockets and devices, which callers open themselves; `ELOOP` for a symbolic link.
    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle>;

    /// Opens `name`, made as a regular file with the permission bits of `mode` if it was missing.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`mknod`](Self::mknod); `EEXIST` with EXCL.
    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)>;

    /// Opens a new regular file that has no name, in the file system of `parent`.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)>;

    /// Fills `buf` from `offset`, short only at the end of file. Returns the bytes read.
    ///
    /// # Errors
    /// `EBADF` for a handle without READ, `EISDIR`, `EIO`.
    fn read(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize>;

    /// As [`read`](Self::read), to several pieces of memory. The default reads to one, and copies.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_vectored(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        room: &mut Room<'_>,
    ) -> Result<usize> {
        if let Some(buf) = room.one() {
            return self.read(cx, ino, handle, offset, buf);
        }
        let mut buf = vec![0; room.len()];
        let len = self.read(cx, ino, handle, offset, &mut buf)?;
        room.fill(&buf[..len]);
        Ok(len)
    }

    /// `ino` has been read, listed or followed: sets atime to [`Context::now`], and nothing else,
    /// if it [is due](Attr::access_is_due). Returns whether it has.
    ///
    /// For who has access times [`Relatime`](AccessTimes::Relatime), after each call that reads.
    /// Where it cannot be set (a volume that takes no changes, an error of the device) it is not,
    /// and nobody is told: what was read is read. A crash may lose it, as any time that a call sets
    /// by itself. Implementors whose other side does this leave it out.
    #[inline]
    fn accessed(&mut self, cx: &Context, ino: Ino) -> bool {
        let _ = (cx, ino);
        false
    }

    /// Writes `data` at `offset`, or at the end of file if the handle has APPEND.
    ///
    /// # Errors
    /// `EBADF` for a handle without WRITE, `EFBIG`, `ENOSPC` if not one byte had room, `EIO`.
    fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written>;

    /// As [`write`](Self::write), from several pieces of memory. The default copies them to one,
    /// and writes that.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn write_vectored(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: Data<'_>,
    ) -> Result<Written> {
        match data.one() {
            Some(data) => self.write(cx, ino, handle, offset, data),
            None => self.write(cx, ino, handle, offset, &data.to_vec()),
        }
    }

    /// Copies `len` bytes or fewer, as far as the file that they are `from` has them. Returns how
    /// many: 0 at its end, otherwise at least one. Callers go on from there: a call copies as much
    /// as it can at once. Holes may become zeros, or holes.
    ///
    /// The default reads and writes. It finds a handle with APPEND by where a
    /// [`write`](Self::write) of nothing would go.
    ///
    /// # Errors
    /// `EBADF` for handles without READ and WRITE, or for one `to` which is only appended;
    /// `EISDIR`; `EINVAL` where the ranges overlap; those of [`write`](Self::write).
    fn copy_file_range(&mut self, cx: &Context, from: FileAt, to: FileAt, len: u64) -> Result<u64> {
        copy_by_hand(self, cx, from, to, len)
    }

    /// Allocates, punches or zeroes a range, as fallocate(2).
    ///
    /// # Errors
    /// `EOPNOTSUPP` for other modes, `EINVAL` for an empty range, `EFBIG`, `ENOSPC`, `EBADF`.
    fn fallocate(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()>;

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    /// `ENXIO` when there is none before the end of file.
    fn seek(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64>;

    /// Makes the file's content, and all metadata of the file system up to now, durable. With
    /// `data_only`, timestamps may be left behind.
    ///
    /// # Errors
    /// `EIO`: what was not durable before may never be, and the file system stops taking changes.
    fn fsync(&mut self, cx: &Context, ino: Ino, handle: Handle, data_only: bool) -> Result<()>;

    /// What another process can map to have `len` bytes of a file from `offset` on, whole pages,
    /// which is open for reading and writing: an object of the host's, by whose type it is told
    /// apart. What is stored there is the file's, and may reach it as late as the file is synced,
    /// or the handle released after the object was dropped. With `copied` it is in any case
    /// something of its own, of which nobody takes pages away who cuts the file short.
    ///
    /// # Errors
    /// `ENOSYS` where the file system has no such thing; `EBADF`.
    fn mappable(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
        copied: bool,
    ) -> Result<Object> {
        let _ = (cx, ino, handle, offset, len, copied);
        Err(Errno::ENOSYS)
    }

    /// Closes a handle of [`open`](Self::open), [`create`](Self::create) or
    /// [`tmpfile`](Self::tmpfile). The storage of an unlinked file goes with its last handle.
    ///
    /// # Errors
    /// `EBADF`.
    fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()>;

    /// Opens a directory for listing.
    ///
    /// # Errors
    /// `ENOTDIR`, `ESTALE`, `ENFILE`.
    fn opendir(&mut self, cx: &Context, ino: Ino) -> Result<Handle>;

    /// Lists entries, `.` and `..` among them, from the place that `cookie` names (0: the
    /// beginning), until `emit` returns false, which means that it did not take the entry, or the
    /// directory ends. Entries that exist throughout are given exactly once.
    ///
    /// # Errors
    /// `EBADF`, `EIO`.
    fn readdir(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()>;

    /// The same for who looks each name up then, or needs names alone: the numbers of entries may
    /// be others than their inodes have, where to find those out takes work.
    ///
    /// # Errors
    /// Those of [`readdir`](Self::readdir).
    fn readdir_names(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.readdir(cx, ino, handle, cookie, emit)
    }

    /// Closes a handle of [`opendir`](Self::opendir).
    ///
    /// # Errors
    /// `EBADF`.
    fn releasedir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()>;

    /// Makes the directory durable: [`fsync`](Self::fsync) for a directory handle.
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync).
    fn fsyncdir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()>;

    /// Makes everything durable.
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync).
    fn syncfs(&mut self, cx: &Context) -> Result<()>;

    /// Begins a [`syncfs`](Self::syncfs) of which the waiting is done without the file system:
    /// other calls use it meanwhile. With `data_only`, timestamps may be left behind. Changes made
    /// before this call are durable when the sync has ended; later ones may or may not be.
    ///
    /// `None`: the sync has ended already. A file system that cannot wait elsewhere answers so,
    /// after a whole [`syncfs`](Self::syncfs); one that can does too while another sync is under
    /// way, so a caller that shares one sync among many clients has one at a time. A sync that is
    /// never ended holds up nothing and promises nothing.
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync).
    fn begin_sync(&mut self, cx: &Context, data_only: bool) -> Result<Option<PendingSync>> {
        let _ = data_only;
        self.syncfs(cx).map(|()| None)
    }

    /// Begins an [`fsync`](Self::fsync) or [`fsyncdir`](Self::fsyncdir) of which the waiting is
    /// done without the file system. Several may be under way at a time, and a sync of everything
    /// beside them.
    ///
    /// `None`: what is open is made durable with everything else, by
    /// [`begin_sync`](Self::begin_sync), and nothing has begun. A file system that says nothing
    /// else is one that always answers so.
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync).
    fn begin_fsync(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        data_only: bool,
    ) -> Result<Option<PendingSync>> {
        let _ = (cx, ino, handle, data_only);
        Ok(None)
    }

    /// Ends what [`begin_sync`](Self::begin_sync) or [`begin_fsync`](Self::begin_fsync) began and
    /// [`PendingSync::flush`] waited for, which came to `flushed`. There may be more to be waited
    /// for, and ended in the same way; `None`: what it covers is durable.
    ///
    /// # Errors
    /// That of `flushed`, and as [`fsync`](Self::fsync): the sync has failed.
    fn end_sync(&mut self, sync: SyncId, flushed: Result<()>) -> Result<Option<PendingSync>> {
        let _ = sync;
        flushed.map(|()| None)
    }

    /// Whether [`checkpoint_step`](Self::checkpoint_step)s are worth their while: some call will
    /// have to do the work, with everybody waiting, unless it is done before.
    fn checkpoint_due(&self) -> bool {
        false
    }

    /// Takes a step of the checkpoint that is under way, or begins one: the work that keeps the
    /// file system's journal short, done between the calls of others, by whoever has a thread to
    /// spare. `flushed`: what the flush came to that the last step left to the caller. A step takes
    /// a fraction of a millisecond.
    ///
    /// A crash between two steps loses nothing.
    ///
    /// # Errors
    /// That of `flushed`, and as [`fsync`](Self::fsync).
    fn checkpoint_step(&mut self, flushed: Option<(SyncId, Result<()>)>) -> Result<CheckpointStep> {
        flushed.map_or(Ok(()), |(_, outcome)| outcome).map(|()| CheckpointStep::Idle)
    }

    /// With `yes`, calls that free or change more extents than one transaction takes do a part, a
    /// fraction of a millisecond's work, and say in [`take_rest`](Self::take_rest) what is left:
    /// for a caller who lets others have the file system between. Without it, as at first, each
    /// call does all. Most implementors have no such calls. Returns what held until now, to which a
    /// part of a call that wants the other goes back.
    #[inline]
    fn work_in_steps(&mut self, yes: bool) -> bool {
        let _ = yes;
        false
    }

    /// The rest of the call that was made last, whatever it returned.
    #[inline]
    fn take_rest(&mut self) -> Option<Rest> {
        None
    }

    /// Begins some of the work that calls have left of `ino`, if it is of a kind that is done
    /// without the file system: other calls use it meanwhile, but for those that have to come after
    /// ([`Rest::Until`]). The caller has it [done](PendingSync::flush), of which the file system
    /// finds the outcome, and then asks again. `None`: there is no such work.
    ///
    /// Work that has begun and is never done holds up nobody once it is dropped.
    ///
    /// # Errors
    /// `EIO`.
    fn begin_free(&mut self, ino: Ino) -> Result<Option<PendingSync>> {
        let _ = ino;
        Ok(None)
    }

    /// Frees some of the blocks that calls have left of `ino`. Returns whether none are left.
    ///
    /// # Errors
    /// `EIO`, `EUCLEAN`: they stay until the next mount.
    fn free_step(&mut self, ino: Ino) -> Result<bool> {
        let _ = ino;
        Ok(true)
    }

    /// The state of the whole file system.
    ///
    /// # Errors
    /// `EIO`.
    fn statfs(&mut self, cx: &Context) -> Result<StatFs>;

    /// As [`statfs`](Self::statfs), of the part of the volume below the directory `dir`, or of what
    /// that counts to which is no directory: the same, or less where a quota is for that part, or
    /// that of the file system that is mounted there.
    ///
    /// # Errors
    /// `EIO`.
    fn statfs_below(&mut self, cx: &Context, dir: Ino) -> Result<StatFs> {
        let _ = dir;
        self.statfs(cx)
    }

    /// Sets the extended attribute `name` (1 to 255 bytes without NUL, namespace included).
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `ERANGE` for the name's length, `E2BIG` for the value's, `ENOSPC` (also
    /// when all names together would exceed [`XATTR_LIST_MAX`]).
    fn setxattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()>;

    /// Appends the value of an extended attribute to `value`.
    ///
    /// # Errors
    /// `ENODATA`.
    fn getxattr(&mut self, cx: &Context, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()>;

    /// Appends the names of all extended attributes, each ended by NUL, to `names`.
    ///
    /// # Errors
    /// `ESTALE`, `EIO`.
    fn listxattr(&mut self, cx: &Context, ino: Ino, names: &mut Vec<u8>) -> Result<()>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`.
    fn removexattr(&mut self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()>;

    /// The locks of what is open as `handle` against programs that are no clients, where others use
    /// the files too. `None`: nobody else does.
    ///
    /// # Errors
    /// `EBADF`, `ESTALE`.
    fn outside_locks(&mut self, ino: Ino, handle: Handle) -> Result<Option<Arc<dyn OutsideLocks>>> {
        let _ = (ino, handle);
        Ok(None)
    }

    /// Names this file system: one with another name is another, in which numbers of inodes stand
    /// for other files. Zeros where it has no name.
    fn identity(&self) -> [u8; 16] {
        [0; 16]
    }

    /// The directory where `ino` was found last, and its name there, for implementors that know an
    /// inode only as long as a caller does: another process has to look it up before it uses its
    /// number. Others may have moved it since.
    fn place(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let _ = ino;
        None
    }

    /// Counts `count` more references of an inode that was looked up, as so many lookups would: the
    /// opposite of [`forget`](Self::forget).
    fn recall(&mut self, ino: Ino, count: u64) {
        let _ = (ino, count);
    }

    /// The locks of files, where processes share the file system through a server. `None`: whoever
    /// calls this is alone, and keeps locks himself.
    fn shared_locks(&mut self) -> Option<&mut dyn Locks> {
        None
    }
}

/// The largest size of a file that implementors accept, in bytes: lseek(2) offsets are signed.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// The most that one [`copy_file_range`](FileSystem::copy_file_range) copies of what is no hole, in
/// bytes.
pub const COPY_MAX: u64 = 1 << 20;

/// How many of `len` bytes are copied to where they may be, if the file that they are `from` has
/// `size` bytes.
///
/// # Errors
/// `EINVAL` where the ranges overlap; `EFBIG`.
pub fn copied_len(from: FileAt, to: FileAt, len: u64, size: u64) -> Result<u64> {
    let len = len.min(size.saturating_sub(from.offset));
    if len == 0 {
        return Ok(0);
    }
    let apart = from.offset.abs_diff(to.offset);
    if from.ino == to.ino && apart < len {
        return Err(Errno::EINVAL);
    }
    match FILE_SIZE_MAX.saturating_sub(to.offset) {
        0 => Err(Errno::EFBIG),
        room => Ok(len.min(room)),
    }
}

/// [`copy_file_range`](FileSystem::copy_file_range) by reading and writing.
///
/// # Errors
/// As there.
pub fn copy_by_hand<F: FileSystem + ?Sized>(
    fs: &mut F,
    cx: &Context,
    from: FileAt,
    to: FileAt,
    len: u64,
) -> Result<u64> {
    // Both handles are judged before anything is changed.
    fs.read(cx, from.ino, from.handle, from.offset, &mut [])?;
    if fs.write(cx, to.ino, to.handle, to.offset, &[])?.offset != to.offset {
        return Err(Errno::EBADF);
    }
    let size = fs.getattr(cx, from.ino)?.size;
    let len = copied_len(from, to, len, size)?.min(COPY_MAX);
    let mut data = vec![0; len as usize];
    let got = fs.read(cx, from.ino, from.handle, from.offset, &mut data)?;
    if got == 0 {
        return Ok(0);
    }
    Ok(fs.write(cx, to.ino, to.handle, to.offset, &data[..got])?.len as u64)
}

/// Checks that `len` bytes at `offset` end within [`FILE_SIZE_MAX`].
///
/// # Errors
/// `EFBIG`.
#[inline]
pub fn checked_end(offset: u64, len: u64) -> Result<u64> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_SIZE_MAX => Ok(end),
        _ => Err(Errno::EFBIG),
    }
}
