//! The verbs of the file seam.

use std::sync::Arc;

use atoll_vfs::{
    Attr, Context, DirEntry, FallocateMode, FileSystem, Handle, Ino, Name, OpenFlags, PendingSync,
    RenameFlags, Result, SeekTo, SetAttr, StatFs, SyncId, Written, XattrFlags,
};

use super::{HostDirectory, errno};

impl FileSystem for HostDirectory {
    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        self.look_up(cx, parent, name)
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

    fn unlink(&mut self, _: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.remove(parent, name, false)
    }

    fn rmdir(&mut self, _: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.remove(parent, name, true)
    }

    fn rename(
        &mut self,
        _: &Context,
        parent: Ino,
        name: Name<'_>,
        new_parent: Ino,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.move_name((parent, name), (new_parent, new_name), flags)
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
        self.read_at(ino, handle, offset, buf)
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
        let fd = &self.file(ino, handle, OpenFlags::empty())?.fd;
        if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) }.map_err(errno)
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
        self.list(ino, handle, cookie, emit)
    }

    fn releasedir(&mut self, _: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.close(ino, handle, true)
    }

    fn fsyncdir(&mut self, _: &Context, ino: Ino, handle: Handle) -> Result<()> {
        rustix::fs::fsync(&self.handle(ino, handle, true)?.fd).map_err(errno)
    }

    fn syncfs(&mut self, _: &Context) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        rustix::fs::syncfs(&self.root).map_err(errno)
    }

    /// The whole file system of the host is synced: which files clients have changed since the last
    /// time nobody remembers.
    fn begin_sync(&mut self, _: &Context, _: bool) -> Result<Option<PendingSync>> {
        if self.read_only {
            return Ok(None);
        }
        let root = Arc::clone(&self.root);
        let flush = move || rustix::fs::syncfs(&root).map_err(errno);
        Ok(Some(PendingSync::new(SyncId(0), flush)))
    }

    fn statfs(&mut self, _: &Context) -> Result<StatFs> {
        self.state()
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
