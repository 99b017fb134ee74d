//! One client's view of a volume.

use std::sync::Arc;

use atoll_vfs::{
    Attr, Context, DirEntry, Errno, FallocateMode, FileSystem, Handle, Ino, Name, OpenFlags,
    RenameFlags, Result, SeekTo, SetAttr, StatFs, Timespec, Written, XattrFlags,
};

use super::handles::{Handles, Open};
use super::permissions::Credentials;
use super::volume::{Access, Identity, SessionId, State, Volume};

/// One client's view of a [`Volume`]: a [`FileSystem`] of its own.
pub struct Session<F: FileSystem + Send> {
    volume: Arc<Volume<F>>,
    id: SessionId,
    peer: Credentials,
    access: Access,
    handles: Handles,
}

impl<F: FileSystem + Send> Session<F> {
    pub(super) fn begin(
        volume: Arc<Volume<F>>,
        id: SessionId,
        peer: Credentials,
        access: Access,
    ) -> Result<Self> {
        Ok(Session { volume, id, peer, access, handles: Handles::default() })
    }

    /// The session's name in its volume.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume<F>> {
        &self.volume
    }

    /// Whom the kernel attests the client to be.
    pub fn peer(&self) -> &Credentials {
        &self.peer
    }

    /// What the session was granted.
    pub fn access(&self) -> &Access {
        &self.access
    }

    fn context(&self, cx: &Context) -> Context {
        match self.access.identity {
            Identity::Peer => Context { uid: self.peer.uid, gid: self.peer.gid, now: cx.now },
            Identity::Caller | Identity::Checked => *cx,
        }
    }

    fn state(&self) -> Result<std::sync::MutexGuard<'_, State<F>>> {
        self.volume.lock()
    }

    fn changing(&self) -> Result<std::sync::MutexGuard<'_, State<F>>> {
        let mut state = self.state()?;
        state.changed = true;
        Ok(state)
    }
}

impl<F: FileSystem + Send> FileSystem for Session<F> {
    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        self.state()?.fs.lookup(&self.context(cx), parent, name)
    }

    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        self.state()?.fs.getattr(&self.context(cx), ino)
    }

    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        let handle = match handle {
            Some(handle) => Some(self.handles.get(ino, handle)?.handle),
            None => None,
        };
        self.changing()?.fs.setattr(&self.context(cx), ino, handle, set)
    }

    fn readlink(&mut self, cx: &Context, ino: Ino, target: &mut Vec<u8>) -> Result<()> {
        self.state()?.fs.readlink(&self.context(cx), ino, target)
    }

    fn mknod(&mut self, cx: &Context, p: Ino, n: Name<'_>, mode: u32, rdev: u32) -> Result<Attr> {
        self.changing()?.fs.mknod(&self.context(cx), p, n, mode, rdev)
    }

    fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr> {
        self.changing()?.fs.mkdir(&self.context(cx), parent, name, mode)
    }

    fn symlink(&mut self, cx: &Context, p: Ino, n: Name<'_>, target: &[u8]) -> Result<Attr> {
        self.changing()?.fs.symlink(&self.context(cx), p, n, target)
    }

    fn unlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.changing()?.fs.unlink(&self.context(cx), parent, name)
    }

    fn rmdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.changing()?.fs.rmdir(&self.context(cx), parent, name)
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
        let cx = self.context(cx);
        self.changing()?.fs.rename(&cx, parent, name, new_parent, new_name, flags)
    }

    fn link(&mut self, cx: &Context, ino: Ino, p: Ino, n: Name<'_>) -> Result<Attr> {
        self.changing()?.fs.link(&self.context(cx), ino, p, n)
    }

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let handle = self.changing()?.fs.open(&self.context(cx), ino, flags)?;
        Ok(self.handles.insert(Open { ino, handle, flags: Some(flags) }))
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let cx = self.context(cx);
        let (attr, handle) = self.changing()?.fs.create(&cx, parent, name, mode, flags)?;
        Ok((attr, self.handles.insert(Open { ino: attr.ino, handle, flags: Some(flags) })))
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let cx = self.context(cx);
        let (attr, handle) = self.changing()?.fs.tmpfile(&cx, parent, mode, flags)?;
        Ok((attr, self.handles.insert(Open { ino: attr.ino, handle, flags: Some(flags) })))
    }

    fn read(
        &mut self,
        cx: &Context,
        ino: Ino,
        h: Handle,
        at: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let open = self.handles.of_kind(ino, h, true)?;
        self.state()?.fs.read(&self.context(cx), ino, open.handle, at, buf)
    }

    fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        h: Handle,
        at: u64,
        data: &[u8],
    ) -> Result<Written> {
        let open = self.handles.of_kind(ino, h, true)?;
        self.changing()?.fs.write(&self.context(cx), ino, open.handle, at, data)
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
        let open = self.handles.of_kind(ino, handle, true)?;
        self.changing()?.fs.fallocate(&self.context(cx), ino, open.handle, offset, len, mode)
    }

    fn seek(&mut self, cx: &Context, ino: Ino, h: Handle, offset: u64, to: SeekTo) -> Result<u64> {
        let open = self.handles.of_kind(ino, h, true)?;
        self.state()?.fs.seek(&self.context(cx), ino, open.handle, offset, to)
    }

    fn fsync(&mut self, cx: &Context, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        let open = self.handles.of_kind(ino, handle, true)?;
        self.state()?.fs.fsync(&self.context(cx), ino, open.handle, data_only)
    }

    fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        let open = self.handles.remove(ino, handle, true)?;
        self.changing()?.fs.release(&self.context(cx), ino, open.handle)
    }

    fn opendir(&mut self, cx: &Context, ino: Ino) -> Result<Handle> {
        let handle = self.state()?.fs.opendir(&self.context(cx), ino)?;
        Ok(self.handles.insert(Open { ino, handle, flags: None }))
    }

    fn readdir(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let open = self.handles.of_kind(ino, handle, false)?;
        self.state()?.fs.readdir(&self.context(cx), ino, open.handle, cookie, emit)
    }

    fn releasedir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        let open = self.handles.remove(ino, handle, false)?;
        self.changing()?.fs.releasedir(&self.context(cx), ino, open.handle)
    }

    fn fsyncdir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        let open = self.handles.of_kind(ino, handle, false)?;
        self.state()?.fs.fsyncdir(&self.context(cx), ino, open.handle)
    }

    fn syncfs(&mut self, cx: &Context) -> Result<()> {
        self.state()?.fs.syncfs(&self.context(cx))
    }

    fn statfs(&mut self, cx: &Context) -> Result<StatFs> {
        self.state()?.fs.statfs(&self.context(cx))
    }

    fn setxattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.changing()?.fs.setxattr(&self.context(cx), ino, name, value, flags)
    }

    fn getxattr(&mut self, cx: &Context, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        self.state()?.fs.getxattr(&self.context(cx), ino, name, value)
    }

    fn listxattr(&mut self, cx: &Context, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        self.state()?.fs.listxattr(&self.context(cx), ino, names)
    }

    fn removexattr(&mut self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.changing()?.fs.removexattr(&self.context(cx), ino, name)
    }
}

impl<F: FileSystem + Send> Drop for Session<F> {
    fn drop(&mut self) {
        let Ok(mut state) = self.volume.lock() else { return };
        // Closing stamps nothing.
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        for open in self.handles.drain() {
            // Whatever one handle says, the rest are closed.
            let _: std::result::Result<(), Errno> = match open.flags {
                Some(_) => state.fs.release(&cx, open.ino, open.handle),
                None => state.fs.releasedir(&cx, open.ino, open.handle),
            };
        }
    }
}
