//! The verbs of the file seam.

use std::sync::Arc;

use atoll_vfs::filesystem::Object;
use atoll_vfs::{
    Attr, Context, Data, DirEntry, FallocateMode, FileSystem, Handle, Ino, Name, OpenFlags,
    OutsideLocks, PendingSync, RenameFlags, Rest, Result, Room, SeekTo, SetAttr, StatFs, SyncId,
    Written, XattrFlags,
};

use super::HostDirectory;

impl FileSystem for HostDirectory {
    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        self.look_up(cx, parent, name)
    }

    fn identity(&self) -> [u8; 16] {
        self.table.identity(Ino::ROOT)
    }

    fn place(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        self.table.place(ino)
    }

    fn recall(&mut self, ino: Ino, count: u64) {
        self.table.recall(ino, count);
    }

    fn forget(&mut self, ino: Ino, count: u64) {
        self.table.forget(ino, count);
    }

    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        self.attr(cx, ino)
    }

    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        self.set(cx, ino, handle, set)
    }

    fn readlink(&mut self, _: &Context, ino: Ino, target: &mut Vec<u8>) -> Result<()> {
        self.target(ino, target)
    }

    fn mknod(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        self.make_node(cx, parent, name, mode, rdev)
    }

    fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr> {
        self.make_dir(cx, parent, name, mode)
    }

    fn symlink(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        target: &[u8],
    ) -> Result<Attr> {
        self.make_link(cx, parent, name, target)
    }

    fn unlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.remove(cx, parent, name, false)
    }

    fn rmdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.remove(cx, parent, name, true)
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
        self.move_name(cx, (parent, name), (new_parent, new_name), flags)
    }

    fn link(
        &mut self,
        cx: &Context,
        ino: Ino,
        new_parent: Ino,
        new_name: Name<'_>,
    ) -> Result<Attr> {
        self.add_name(cx, ino, new_parent, new_name)
    }

    fn open(&mut self, _: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.open_file(ino, flags)
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        self.create_file(cx, parent, name, mode, flags)
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        self.make_nameless(cx, parent, mode, flags)
    }

    fn read(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.read_at(ino, handle, offset, &mut buf.into())
    }

    fn read_vectored(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        room: &mut Room<'_>,
    ) -> Result<usize> {
        self.read_at(ino, handle, offset, room)
    }

    fn accessed(&mut self, cx: &Context, ino: Ino) -> bool {
        self.touch(cx, ino)
    }

    fn write(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        self.write_at(ino, handle, offset, data.into())
    }

    fn write_vectored(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: Data<'_>,
    ) -> Result<Written> {
        self.write_at(ino, handle, offset, data)
    }

    fn fallocate(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        self.allocate(ino, handle, (offset, len), mode)
    }

    fn is_submount(&mut self, ino: Ino) -> bool {
        self.table.get(ino).is_ok_and(|known| known.is_mount)
    }

    fn work_in_steps(&mut self, yes: bool) -> bool {
        self.table.collect();
        std::mem::replace(&mut self.steps, yes)
    }

    fn take_rest(&mut self) -> Option<Rest> {
        self.close_dropped();
        self.rest.take()
    }

    fn begin_free(&mut self, ino: Ino) -> Result<Option<PendingSync>> {
        Ok(self.begin_apart(ino))
    }

    fn seek(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64> {
        self.next(ino, handle, offset, to)
    }

    fn fsync(&mut self, _: &Context, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        self.file(ino, handle, OpenFlags::empty())?;
        self.sync_one(ino, handle, data_only)
    }

    fn mappable(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
        copied: bool,
    ) -> Result<Object> {
        self.piece(ino, handle, (offset, len), copied).map(|piece| Box::new(piece) as Object)
    }

    fn release(&mut self, _: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.close(ino, handle, false)
    }

    fn opendir(&mut self, _: &Context, ino: Ino) -> Result<Handle> {
        self.open_dir(ino)
    }

    fn readdir(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(ino, handle, cookie, true, emit)
    }

    fn readdir_names(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(ino, handle, cookie, false, emit)
    }

    fn releasedir(&mut self, _: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.close(ino, handle, true)
    }

    fn fsyncdir(&mut self, _: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.handle(ino, handle, true)?;
        self.sync_one(ino, handle, false)
    }

    fn syncfs(&mut self, _: &Context) -> Result<()> {
        let Some(begun) = self.begin_all()? else { return Ok(()) };
        let (id, flushed) = begun.flush();
        self.synced(id, flushed)
    }

    fn begin_sync(&mut self, _: &Context, _: bool) -> Result<Option<PendingSync>> {
        self.begin_all()
    }

    fn begin_fsync(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        data_only: bool,
    ) -> Result<Option<PendingSync>> {
        self.begin_one(ino, handle, data_only)
    }

    fn end_sync(&mut self, sync: SyncId, flushed: Result<()>) -> Result<Option<PendingSync>> {
        self.synced(sync, flushed).map(|()| None)
    }

    fn outside_locks(&mut self, ino: Ino, handle: Handle) -> Result<Option<Arc<dyn OutsideLocks>>> {
        self.lockable(ino, handle).map(Some)
    }

    fn statfs(&mut self, _: &Context) -> Result<StatFs> {
        self.state()
    }

    fn statfs_below(&mut self, _: &Context, dir: Ino) -> Result<StatFs> {
        self.state_at(dir)
    }

    fn setxattr(
        &mut self,
        _: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.set_attribute(ino, name, value, flags)
    }

    fn getxattr(&mut self, _: &Context, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        self.attribute(ino, name, value)
    }

    fn listxattr(&mut self, _: &Context, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        self.list_attributes(ino, names)
    }

    fn removexattr(&mut self, _: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.remove_attribute(ino, name)
    }
}
