//! The file seam: [`FileSystem`] for [`Fs`], each verb handed to the module that does it.

use alloc::vec::Vec;

use atoll_block::Addressable;
use atoll_vfs::{
    Attr, CheckpointStep, Context, Data, DirEntry, Errno, FallocateMode, FileAt, FileSystem,
    FileType, Handle, Ino, NAME_MAX, Name, OpenFlags, PendingSync, RenameFlags, Rest, Result, Room,
    SYMLINK_MAX, SeekTo, SetAttr, StatFs, SyncId, Written, XATTR_SIZE_MAX, XattrFlags,
};

use crate::checkpoint::Step;
use crate::commit::Begun;
use crate::cookie;
use crate::dir;
use crate::error::FsError;
use crate::fs::{Awaited, Fs};
use crate::key::{Key, Kind};
use crate::namespace::NewInode;

fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
        return Err(Errno::ERANGE);
    }
    Ok(())
}

/// A commit in halves as the file seam has it.
fn pending(begun: Begun) -> PendingSync {
    let flusher = begun.flusher;
    PendingSync::new(SyncId(begun.number), || Ok(flusher.flush().map_err(FsError::from)?))
}

/// The same, where it may be a turn of others.
fn awaited(awaited: Awaited) -> PendingSync {
    match awaited {
        Awaited::Turn(number) => PendingSync::turn(SyncId(number)),
        Awaited::Flush(begun) => pending(begun),
    }
}

impl<M: Addressable> Fs<M> {
    /// Makes an inode and returns its attributes.
    fn made(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        new: &NewInode<'_>,
    ) -> Result<Attr> {
        let (ino, record) = self.make(cx, parent, name, new)?;
        Ok(record.attr(ino))
    }

    /// Whether the inode in `slot` may be opened.
    #[inline]
    fn check_open(&self, slot: u32, flags: OpenFlags) -> Result<()> {
        match self.inodes.get(slot).record.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::EISDIR),
            FileType::Symlink => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        let changes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC);
        if changes && self.store.is_read_only() {
            return Err(Errno::EROFS);
        }
        Ok(())
    }

    /// Opens an existing inode.
    fn open_existing(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let slot = self.load(ino)?;
        if let Err(e) = self.check_open(slot, flags) {
            self.inodes.rest(slot, self.store.durable_window());
            return Err(e);
        }
        let handle = self.open_slot(ino, slot, flags)?;
        if flags.contains(OpenFlags::TRUNC) {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            if let Err(e) = self.set_attributes(cx, ino, None, &set) {
                self.close_handle(ino, handle)?;
                return Err(e.into());
            }
        }
        Ok(handle)
    }
}

impl<M: Addressable> FileSystem for Fs<M> {
    fn identity(&self) -> [u8; 16] {
        self.store.superblock.uuid
    }

    fn lookup(&mut self, _cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        Ok(self.do_lookup(parent, name)?)
    }

    #[inline]
    fn getattr(&mut self, _cx: &Context, ino: Ino) -> Result<Attr> {
        Ok(self.with_record(ino, |record| record.attr(ino))?)
    }

    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        Ok(self.set_attributes(cx, ino, handle, set)?)
    }

    fn readlink(&mut self, _cx: &Context, ino: Ino, target: &mut Vec<u8>) -> Result<()> {
        let record = self.record(ino)?;
        if record.file_type() != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        Ok(self.store.read_target(ino, record.size, target)?)
    }

    fn mknod(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let mode = mode & 0o177777;
        match FileType::from_mode(mode) {
            Some(FileType::Directory | FileType::Symlink) | None => Err(Errno::EINVAL),
            Some(FileType::CharDevice | FileType::BlockDevice) => {
                self.made(cx, parent, name, &NewInode { mode, rdev, target: &[] })
            }
            Some(_) => self.made(cx, parent, name, &NewInode { mode, rdev: 0, target: &[] }),
        }
    }

    fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr> {
        let mode = (mode & 0o7777) | FileType::Directory.mode_bits();
        self.made(cx, parent, name, &NewInode { mode, rdev: 0, target: &[] })
    }

    fn symlink(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        target: &[u8],
    ) -> Result<Attr> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.len() > SYMLINK_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let mode = 0o777 | FileType::Symlink.mode_bits();
        self.made(cx, parent, name, &NewInode { mode, rdev: 0, target })
    }

    fn unlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        Ok(self.remove_name(cx, parent, name, false)?)
    }

    fn rmdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        Ok(self.remove_name(cx, parent, name, true)?)
    }

    fn rename(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        new_parent: Ino,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        Ok(self.move_name(cx, (parent, name), (new_parent, new_name), flags)?)
    }

    fn link(
        &mut self,
        cx: &Context,
        ino: Ino,
        new_parent: Ino,
        new_name: Name<'_>,
    ) -> Result<Attr> {
        Ok(self.add_link(cx, ino, new_parent, new_name)?)
    }

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.open_existing(cx, ino, flags)
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let mode = (mode & 0o7777) | FileType::Regular.mode_bits();
        let new = NewInode { mode, rdev: 0, target: &[] };
        let (ino, record) = match self.make(cx, parent, name, &new) {
            Ok(made) => made,
            Err(FsError::Refused(Errno::EEXIST)) if !flags.contains(OpenFlags::EXCL) => {
                let attr = self.do_lookup(parent, name)?;
                let handle = self.open_existing(cx, attr.ino, flags)?;
                return Ok((self.record(attr.ino)?.attr(attr.ino), handle));
            }
            Err(e) => return Err(e.into()),
        };
        let slot = self.inodes.insert(ino, record);
        let handle = self.open_slot(ino, slot, flags)?;
        Ok((record.attr(ino), handle))
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let mode = (mode & 0o7777) | FileType::Regular.mode_bits();
        Ok(self.make_tmpfile(cx, parent, mode, flags)?)
    }

    #[inline]
    fn read(
        &mut self,
        _cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        Ok(self.do_read(ino, handle, offset, buf)?)
    }

    #[inline]
    fn read_vectored(
        &mut self,
        _cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        room: &mut Room<'_>,
    ) -> Result<usize> {
        Ok(self.do_read_vectored(ino, handle, offset, room)?)
    }

    fn accessed(&mut self, cx: &Context, ino: Ino) -> bool {
        self.note_access(ino, cx.now).unwrap_or(false)
    }

    #[inline]
    fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        Ok(self.do_write(cx, ino, handle, offset, data.into())?)
    }

    #[inline]
    fn write_vectored(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: Data<'_>,
    ) -> Result<Written> {
        Ok(self.do_write(cx, ino, handle, offset, data)?)
    }

    fn copy_file_range(&mut self, cx: &Context, from: FileAt, to: FileAt, len: u64) -> Result<u64> {
        Ok(self.do_copy(cx, from, to, len)?)
    }

    fn fallocate(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        Ok(self.do_fallocate(cx, ino, handle, (offset, len), mode)?)
    }

    fn seek(
        &mut self,
        _cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64> {
        Ok(self.do_seek(ino, handle, offset, to)?)
    }

    fn fsync(&mut self, _cx: &Context, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        self.handle(ino, handle)?;
        Ok(self.commit(data_only)?)
    }

    fn release(&mut self, _cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        Ok(self.close_handle(ino, handle)?)
    }

    fn opendir(&mut self, _cx: &Context, ino: Ino) -> Result<Handle> {
        self.directory(ino)?;
        Ok(self.open_handle(ino, OpenFlags::READ)?)
    }

    fn readdir(
        &mut self,
        _cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let file = self.handle(ino, handle)?;
        let record = self.inodes.get(file.slot).record;
        if !record.is_dir() {
            return Err(Errno::EBADF);
        }
        let directory = FileType::Directory;
        if cookie < cookie::DOT {
            let dot = DirEntry { ino, file_type: directory, cookie: cookie::DOT, name: b"." };
            if !emit(&dot) {
                return Ok(());
            }
        }
        if cookie < cookie::DOT_DOT {
            let parent = Ino(record.parent);
            let dot_dot = DirEntry {
                ino: parent,
                file_type: directory,
                cookie: cookie::DOT_DOT,
                name: b"..",
            };
            if !emit(&dot_dot) {
                return Ok(());
            }
        }
        self.store.cache.begin_operation();
        let Some(after) = self.cookies.after(cookie) else {
            return Ok(());
        };
        let mut from = Key::new(ino.0, Kind::Dirent, after);
        while let Some(place) = self.store.seek(from)? {
            // The rest of the leaf without going down the tree for each entry.
            let frame = self.store.cache.frame(place.frame);
            let keys = &frame.keys()[place.slot..];
            for (slot, key) in (place.slot..).zip(keys) {
                if !key.is(ino.0, Kind::Dirent) {
                    return Ok(());
                }
                let (entry, file_type, name) = dir::parse(frame.value(slot))?;
                let cookie = self.cookies.of(key.offset());
                if !emit(&DirEntry { ino: entry, file_type, cookie, name }) {
                    return Ok(());
                }
            }
            from = keys[keys.len() - 1].next();
        }
        Ok(())
    }

    fn releasedir(&mut self, _cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        Ok(self.close_handle(ino, handle)?)
    }

    fn fsyncdir(&mut self, _cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.handle(ino, handle)?;
        Ok(self.commit(false)?)
    }

    fn syncfs(&mut self, _cx: &Context) -> Result<()> {
        Ok(self.commit(false)?)
    }

    fn begin_sync(&mut self, _cx: &Context, data_only: bool) -> Result<Option<PendingSync>> {
        Ok(self.begin_commit(data_only)?.map(awaited))
    }

    fn end_sync(&mut self, sync: SyncId, flushed: Result<()>) -> Result<Option<PendingSync>> {
        let flushed = flushed.map_err(FsError::from);
        Ok(self.end_commit(sync.0, flushed)?.map(awaited))
    }

    #[inline]
    fn checkpoint_due(&self) -> bool {
        self.store.should_checkpoint() && !self.store.is_read_only()
    }

    fn checkpoint_step(&mut self, flushed: Option<(SyncId, Result<()>)>) -> Result<CheckpointStep> {
        let flushed = flushed.map(|(id, outcome)| (id.0, outcome.map_err(FsError::from)));
        Ok(match self.store.checkpoint_step(flushed)? {
            Step::Idle => CheckpointStep::Idle,
            Step::More => CheckpointStep::More,
            Step::Commit => CheckpointStep::Sync,
            Step::Flush(begun) => CheckpointStep::Wait(pending(begun)),
        })
    }

    #[inline]
    fn work_in_steps(&mut self, yes: bool) -> bool {
        core::mem::replace(&mut self.left.in_steps, yes)
    }

    #[inline]
    fn take_rest(&mut self) -> Option<Rest> {
        self.left.rest.take()
    }

    fn free_step(&mut self, ino: Ino) -> Result<bool> {
        Ok(self.free_some(ino)?)
    }

    fn statfs(&mut self, _cx: &Context) -> Result<StatFs> {
        Ok(self.stat_fs())
    }

    fn statfs_below(&mut self, _cx: &Context, dir: Ino) -> Result<StatFs> {
        let project = match self.store.projects.is_empty() {
            true => 0,
            // One that is gone has no quota.
            false => self.record(dir).map_or(0, |record| record.project),
        };
        Ok(self.store.within_quota(project, self.stat_fs()))
    }

    fn setxattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        check_xattr_name(name)?;
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::E2BIG);
        }
        let mut record = self.record(ino)?;
        record.ctime = cx.now;
        self.store.transact(false, |store| {
            store.set_attribute(record.project, ino, name, value, flags)?;
            store.write_inode(ino, &record)
        })?;
        self.adopt(ino, &record);
        Ok(())
    }

    fn getxattr(
        &mut self,
        _cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<()> {
        check_xattr_name(name)?;
        self.record(ino)?;
        self.store.cache.begin_operation();
        Ok(self.store.get_attribute(ino, name, value)?)
    }

    fn listxattr(&mut self, _cx: &Context, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        self.record(ino)?;
        self.store.cache.begin_operation();
        Ok(self.store.list_attributes(ino, names)?)
    }

    fn removexattr(&mut self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        check_xattr_name(name)?;
        let mut record = self.record(ino)?;
        record.ctime = cx.now;
        self.store.transact(true, |store| {
            store.remove_attribute(record.project, ino, name)?;
            store.write_inode(ino, &record)
        })?;
        self.adopt(ino, &record);
        Ok(())
    }
}
