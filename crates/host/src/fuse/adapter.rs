//! One request of the kernel after another, as calls of the file seam.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use atoll_vfs::{
    Attr, Context, Errno, FallocateMode, FileSystem, Handle, Ino, Name, OpenFlags, RenameFlags,
    Result, SeekTo, SetAttr, XattrFlags,
};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, PollEvents, PollFlags, PollNotifier,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};

use super::convert::{NO_INODE, errno, file_attr, file_type, now, open_flags, set_time, storable};
use super::state::{Open, State, lock};

/// How long the kernel may rely on an answer: as long as it likes. Nothing changes behind its back.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Inode numbers are never used twice, so that every inode is of the first generation.
const GENERATION: Generation = Generation(0);
/// The largest write, and with it read, that the kernel may send at once, in bytes.
pub(super) const MAX_WRITE: u32 = 1 << 20;
/// Directory entries that are looked up together for a listing with attributes.
const BATCH: usize = 32;

/// A [`FileSystem`] as `fuser` wants it.
pub(super) struct Adapter<F> {
    state: Arc<Mutex<State<F>>>,
    owner: Option<(u32, u32)>,
}

fn context(req: &Request) -> Context {
    Context { uid: req.uid(), gid: req.gid(), now: now() }
}

fn name(bytes: &OsStr) -> Result<Name<'_>> {
    Name::new(bytes.as_bytes())
}

impl<F: FileSystem> Adapter<F> {
    pub(super) fn new(state: Arc<Mutex<State<F>>>, owner: Option<(u32, u32)>) -> Self {
        Adapter { state, owner }
    }

    fn state(&self) -> MutexGuard<'_, State<F>> {
        lock(&self.state)
    }

    /// The state, for a request that changes something.
    fn changing(&self) -> MutexGuard<'_, State<F>> {
        let mut state = self.state();
        state.changed = true;
        state
    }

    fn shown(&self, attr: &Attr) -> fuser::FileAttr {
        let mut shown = file_attr(attr);
        if let Some((uid, gid)) = self.owner {
            (shown.uid, shown.gid) = (uid, gid);
        }
        shown
    }

    fn entry(&self, reply: ReplyEntry, result: Result<Attr>) {
        match result {
            Ok(attr) => reply.entry(&FOREVER, &self.shown(&attr), GENERATION),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn attr(&self, reply: ReplyAttr, result: Result<Attr>) {
        match result {
            Ok(attr) => reply.attr(&FOREVER, &self.shown(&attr)),
            Err(error) => reply.error(errno(error)),
        }
    }
}

fn empty(reply: ReplyEmpty, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// Answers a request for an extended attribute or their list: its length when `size` is 0.
fn xattr(reply: ReplyXattr, size: u32, result: Result<Vec<u8>>) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(error)),
    }
}

impl<F: FileSystem + Send + 'static> Filesystem for Adapter<F> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_ASYNC_DIO,
        ] {
            // A kernel that lacks one of them works as well, only slower.
            let _ = config.add_capabilities(wanted);
        }
        if !self.state().relatime {
            // What is followed in the kernel's memory would not be counted.
            let _ = config.add_capabilities(InitFlags::FUSE_CACHE_SYMLINKS);
        }
        let _ = config.set_max_write(MAX_WRITE);
        if let Err(most) = config.set_max_readahead(MAX_WRITE) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEntry) {
        let result =
            name(child).and_then(|child| self.state().lookup(&context(req), Ino(parent.0), child));
        if let Err(Errno::ENOENT) = result {
            // Inode 0 tells the kernel to remember that the name is missing.
            return reply.entry(&FOREVER, &file_attr(&NO_INODE), GENERATION);
        }
        self.entry(reply, result);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let mut state = self.state();
        let ino = Ino(ino.0);
        state.plain.forget(ino);
        state.fs.forget(ino, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let result = self.state().fs.getattr(&context(req), Ino(ino.0));
        self.attr(reply, result);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let cx = context(req);
        let ino = Ino(ino.0);
        let mut state = self.changing();
        let set = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        if set.mode.is_some() {
            state.plain.forget(ino);
        }
        let result = (|| {
            if uid.is_some() || gid.is_some() {
                state.drop_privileges(&cx, ino, true)?;
            } else if size.is_some() {
                // The kernel says with each request whether its process may keep the bits;
                // fuser does not pass that on, and the superuser is who usually may.
                state.drop_privileges(&cx, ino, cx.uid != 0)?;
            }
            state.fs.setattr(&cx, ino, fh.map(|fh| Handle(fh.0)), &set)
        })();
        drop(state);
        self.attr(reply, result);
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let mut target = Vec::new();
        let cx = context(req);
        let mut state = self.state();
        match state.fs.readlink(&cx, Ino(ino.0), &mut target) {
            Ok(()) => {
                state.accessed(&cx, Ino(ino.0));
                reply.data(&target);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        child: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let result = name(child).and_then(|child| {
            self.changing().fs.mknod(&context(req), Ino(parent.0), child, mode, rdev)
        });
        self.entry(reply, result);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        child: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let result = name(child).and_then(|child| {
            self.changing().fs.mkdir(&context(req), Ino(parent.0), child, mode & 0o7777)
        });
        self.entry(reply, result);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEmpty) {
        let result = name(child)
            .and_then(|child| self.changing().fs.unlink(&context(req), Ino(parent.0), child));
        empty(reply, result);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEmpty) {
        let result = name(child)
            .and_then(|child| self.changing().fs.rmdir(&context(req), Ino(parent.0), child));
        empty(reply, result);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        child: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        let result = name(child).and_then(|child| {
            self.changing().fs.symlink(&context(req), Ino(parent.0), child, target)
        });
        self.entry(reply, result);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        child: &OsStr,
        new_parent: INodeNo,
        new_child: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        let result = (|| {
            // RENAME_WHITEOUT, which makes overlay file systems, is not supported.
            let flags = RenameFlags::from_bits(flags.bits()).ok_or(Errno::EINVAL)?;
            let (from, to) = (name(child)?, name(new_child)?);
            self.changing().fs.rename(
                &context(req),
                Ino(parent.0),
                from,
                Ino(new_parent.0),
                to,
                flags,
            )
        })();
        empty(reply, result);
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        new_parent: INodeNo,
        new_child: &OsStr,
        reply: ReplyEntry,
    ) {
        let result = name(new_child).and_then(|child| {
            self.changing().fs.link(&context(req), Ino(ino.0), Ino(new_parent.0), child)
        });
        self.entry(reply, result);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: fuser::OpenFlags, reply: ReplyOpen) {
        let cx = context(req);
        let ino = Ino(ino.0);
        // The kernel has answered O_EXCL itself: without O_CREAT it means nothing.
        let asked = flags.0;
        let flags = open_flags(asked) - OpenFlags::EXCL;
        let mut state = self.state();
        let result = (|| {
            if flags.contains(OpenFlags::TRUNC) {
                state.changed = true;
                state.drop_privileges(&cx, ino, cx.uid != 0)?;
            }
            state.fs.open(&cx, ino, flags)
        })();
        match result {
            Ok(handle) => {
                state.opened(Open::File(handle), ino, asked);
                let mut keeps = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
                if state.access_is_due(&cx, ino) {
                    keeps -= FopenFlags::FOPEN_KEEP_CACHE;
                }
                drop(state);
                reply.opened(FileHandle(handle.0), keeps);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        child: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mut state = self.changing();
        let result = name(child).and_then(|child| {
            let flags = open_flags(flags);
            state.fs.create(&context(req), Ino(parent.0), child, mode & 0o7777, flags)
        });
        match result {
            Ok((attr, handle)) => {
                state.opened(Open::File(handle), attr.ino, flags);
                drop(state);
                reply.created(
                    &FOREVER,
                    &self.shown(&attr),
                    GENERATION,
                    FileHandle(handle.0),
                    FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH,
                );
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let cx = context(req);
        let ino = Ino(ino.0);
        let mut state = self.state();
        let State { fs, buffer, .. } = &mut *state;
        let size = size as usize;
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        match fs.read(&cx, ino, Handle(fh.0), offset, &mut buffer[..size]) {
            Ok(got) => {
                if flags.0 & libc::O_NOATIME == 0 {
                    state.accessed(&cx, ino);
                }
                reply.data(&state.buffer[..got]);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let cx = context(req);
        let (ino, handle) = (Ino(ino.0), Handle(fh.0));
        let mut state = self.changing();
        let result = (|| {
            let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
            state.drop_privileges(&cx, ino, kill)?;
            let written = state.fs.write(&cx, ino, handle, offset, data)?;
            // The kernel follows a cached write of an O_DSYNC file with fsync, but not a direct one.
            if flags.0 & libc::O_DIRECT != 0 && flags.0 & libc::O_DSYNC != 0 {
                let data_only = flags.0 & libc::O_SYNC != libc::O_SYNC;
                state.fs.fsync(&cx, ino, handle, data_only)?;
            }
            Ok(written.len)
        })();
        drop(state);
        match result {
            Ok(len) => reply.written(len as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Nothing is held back that close(2) would have to push, and the kernel keeps the locks: it need not
        // ask again.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let handle = Handle(fh.0);
        let mut state = self.changing();
        state.released(Open::File(handle));
        let result = state.fs.release(&context(req), Ino(ino.0), handle);
        drop(state);
        empty(reply, result);
    }

    fn fsync(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        let result = self.state().fs.fsync(&context(req), Ino(ino.0), Handle(fh.0), datasync);
        empty(reply, result);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, flags: fuser::OpenFlags, reply: ReplyOpen) {
        let cx = context(req);
        let ino = Ino(ino.0);
        let mut state = self.state();
        match state.fs.opendir(&cx, ino) {
            Ok(handle) => {
                state.opened(Open::Directory(handle), ino, flags.0);
                let keeps = match state.access_is_due(&cx, ino) {
                    true => FopenFlags::empty(),
                    false => FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR,
                };
                drop(state);
                reply.opened(FileHandle(handle.0), keeps);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let cx = context(req);
        let (ino, handle) = (Ino(ino.0), Handle(fh.0));
        let mut state = self.state();
        let result = state.fs.readdir(&cx, ino, handle, offset, &mut |entry| {
            !reply.add(
                INodeNo(entry.ino.0),
                entry.cookie,
                file_type(entry.file_type),
                OsStr::from_bytes(entry.name),
            )
        });
        match result {
            Ok(()) => {
                state.listed(&cx, ino, handle);
                reply.ok();
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let cx = context(req);
        let (ino, handle) = (Ino(ino.0), Handle(fh.0));
        let mut state = self.state();
        state.listed(&cx, ino, handle);
        let mut cookie = offset;
        let mut any = false;
        loop {
            let mut batch: Vec<(Vec<u8>, Ino, u64)> = Vec::with_capacity(BATCH);
            let listed = state.fs.readdir(&cx, ino, handle, cookie, &mut |entry| {
                let room = batch.len() < BATCH;
                if room {
                    batch.push((entry.name.to_vec(), entry.ino, entry.cookie));
                }
                room
            });
            if let Err(error) = listed {
                // What has been listed already must reach the kernel, which counts lookups.
                return if any { reply.ok() } else { reply.error(errno(error)) };
            }
            let last = batch.len() < BATCH;
            for (child, child_ino, next) in batch {
                let dots = matches!(&child[..], b"." | b"..");
                // Every entry but the dots counts as a lookup, and is forgotten as one.
                let attr = if dots {
                    state.fs.getattr(&cx, child_ino)
                } else {
                    Name::new(&child).and_then(|child| state.fs.lookup(&cx, ino, child))
                };
                let attr = match attr {
                    Ok(attr) => attr,
                    Err(error) if !any => return reply.error(errno(error)),
                    Err(_) => return reply.ok(),
                };
                let shown = self.shown(&attr);
                let full = reply.add(
                    INodeNo(attr.ino.0),
                    next,
                    OsStr::from_bytes(&child),
                    &FOREVER,
                    &shown,
                    GENERATION,
                );
                if full {
                    if !dots {
                        state.fs.forget(attr.ino, 1);
                    }
                    return reply.ok();
                }
                any = true;
                cookie = next;
            }
            if last {
                return reply.ok();
            }
        }
    }

    fn releasedir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: fuser::OpenFlags,
        reply: ReplyEmpty,
    ) {
        let handle = Handle(fh.0);
        let mut state = self.state();
        state.released(Open::Directory(handle));
        let result = state.fs.releasedir(&context(req), Ino(ino.0), handle);
        drop(state);
        empty(reply, result);
    }

    fn fsyncdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let result = self.state().fs.fsyncdir(&context(req), Ino(ino.0), Handle(fh.0));
        empty(reply, result);
    }

    fn statfs(&self, req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.state().fs.statfs(&context(req)) {
            Ok(s) => reply.statfs(
                s.blocks,
                s.blocks_free,
                s.blocks_free,
                s.files,
                s.files_free,
                s.block_size,
                s.name_max,
                s.block_size,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        attribute: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let ino = Ino(ino.0);
        let mut state = self.changing();
        state.plain.forget(ino);
        let result = (|| {
            let attribute = storable(attribute.as_bytes())?;
            let flags = XattrFlags::from_bits(flags as u32).ok_or(Errno::EINVAL)?;
            state.fs.setxattr(&context(req), ino, attribute, value, flags)
        })();
        drop(state);
        empty(reply, result);
    }

    fn getxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        attribute: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let result = storable(attribute.as_bytes()).and_then(|attribute| {
            let mut value = Vec::new();
            self.state().fs.getxattr(&context(req), Ino(ino.0), attribute, &mut value)?;
            Ok(value)
        });
        xattr(reply, size, result);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let mut names = Vec::new();
        let result = self.state().fs.listxattr(&context(req), Ino(ino.0), &mut names);
        xattr(reply, size, result.map(|()| names));
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, attribute: &OsStr, reply: ReplyEmpty) {
        let result = storable(attribute.as_bytes()).and_then(|attribute| {
            self.changing().fs.removexattr(&context(req), Ino(ino.0), attribute)
        });
        empty(reply, result);
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks permissions itself.
        reply.ok();
    }

    fn ioctl(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        flags: IoctlFlags,
        cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        if cmd != atoll_server::route::identify::REQUEST
            || flags.contains(IoctlFlags::FUSE_IOCTL_DIR)
        {
            return reply.error(fuser::Errno::ENOTTY);
        }
        let identity = atoll_server::route::identify::Identity {
            session: 0,
            ino: ino.0,
            handle: fh.0,
            token: [0; 2],
        };
        reply.ioctl(0, &identity.to_bytes());
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // The kernel then takes files as always ready, as poll(2) has it, and asks no more.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let cx = context(req);
        let ino = Ino(ino.0);
        let result =
            FallocateMode::from_bits(mode as u32).ok_or(Errno::EOPNOTSUPP).and_then(|mode| {
                let mut state = self.changing();
                state.drop_privileges(&cx, ino, cx.uid != 0)?;
                state.fs.fallocate(&cx, ino, Handle(fh.0), offset, length, mode)
            });
        empty(reply, result);
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let result = (|| {
            let to = match whence {
                libc::SEEK_DATA => SeekTo::Data,
                libc::SEEK_HOLE => SeekTo::Hole,
                _ => return Err(Errno::EINVAL),
            };
            let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            self.state().fs.seek(&context(req), Ino(ino.0), Handle(fh.0), offset, to)
        })();
        match result {
            Ok(at) => reply.offset(at as i64),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let cx = context(req);
        let from = (Ino(ino_in.0), Handle(fh_in.0), offset_in);
        let to = (Ino(ino_out.0), Handle(fh_out.0), offset_out);
        let mut state = self.changing();
        let result = state
            .drop_privileges(&cx, to.0, cx.uid != 0)
            .and_then(|()| state.copy(&cx, from, to, len));
        drop(state);
        match result {
            Ok(len) => reply.written(len as u32),
            Err(error) => reply.error(errno(error)),
        }
    }
}
