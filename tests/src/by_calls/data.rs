//! Open files and their data, and the verbs.

use rustix::fs::{FallocateFlags, FileType as SysType, SeekFrom};
use rustix::io;

use super::*;

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
    to.set(OFlags::EXCL, flags.contains(OpenFlags::EXCL));
    to | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC
}

fn openable(attr: &Attr) -> Result<()> {
    match attr.file_type() {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Errno::EISDIR),
        FileType::Symlink => Err(Errno::ELOOP),
        _ => Err(Errno::ENXIO),
    }
}

impl ByCalls {
    /// Opens an inode.
    pub(super) fn reopen(&mut self, attr: &Attr, flags: OpenFlags) -> Result<Rc<OwnedFd>> {
        let none = Mode::empty();
        // A named pipe would wait, or say that nobody has its other end.
        if !matches!(attr.file_type(), FileType::Directory | FileType::Symlink) {
            openable(attr)?;
        }
        if let Some((dir, name)) = self.place(attr.ino)? {
            return sys::openat(&dir, &*name, open_flags(flags), none).map(Rc::new).map_err(errno);
        }
        if attr.is_dir() {
            return Err(Errno::EISDIR);
        }
        let kept = self.get(attr.ino)?.keeper.clone().ok_or(Errno::ESTALE)?;
        if flags.contains(OpenFlags::TRUNC) {
            sys::ftruncate(&kept, 0).map_err(errno)?;
        }
        Ok(kept)
    }

    /// The open file of a handle that has this right.
    fn data(&self, ino: Ino, handle: Handle, right: OpenFlags) -> Result<Open> {
        if self.opened(ino, handle, true).is_ok() {
            return Err(Errno::EISDIR);
        }
        let open = self.opened(ino, handle, false)?;
        // The calls judge by what the descriptor was opened for.
        let has = open.flags.is_some_and(|flags| flags.contains(right));
        if has || !open.judged { Ok(open) } else { Err(Errno::EBADF) }
    }

    fn create_file(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let dir = self.dir(parent)?;
        let there = self.stat(&dir, name).ok();
        if let Some(there) = there.filter(|_| !flags.contains(OpenFlags::EXCL)) {
            openable(&there)?;
        }
        let how = open_flags(flags) | OFlags::CREATE;
        let fd = sys::openat(&dir, name, how, bits(mode)).map_err(errno)?;
        let attr = match there {
            Some(_) => self.see(parent, name)?,
            None => self.give(cx, parent, name, mode)?,
        };
        Ok((attr, self.handle(attr.ino, Rc::new(fd), Some(flags))))
    }
}

impl FileSystem for ByCalls {
    fn lookup(&mut self, _: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        self.find(parent, name)
    }

    fn getattr(&mut self, _: &Context, ino: Ino) -> Result<Attr> {
        self.attr(ino)
    }

    fn setattr(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        self.set(ino, handle, set)
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
        if matches!(FileType::from_mode(mode), None | Some(FileType::Directory | FileType::Symlink))
        {
            // The call has several errors for it.
            return Err(Errno::EINVAL);
        }
        self.make(cx, parent, name, mode, |dir, name| {
            sys::mknodat(dir, name, SysType::from_raw_mode(mode), bits(mode), rdev.into())
        })
    }

    fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr> {
        self.make(cx, parent, name, mode, |dir, name| sys::mkdirat(dir, name, bits(mode)))
    }

    fn symlink(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        target: &[u8],
    ) -> Result<Attr> {
        self.make(cx, parent, name, 0, |dir, name| sys::symlinkat(target, dir, name))
    }

    fn unlink(&mut self, _: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.remove(parent, name, AtFlags::empty())
    }

    fn rmdir(&mut self, _: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.remove(parent, name, AtFlags::REMOVEDIR)
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
        let whiteout = flags.contains(RenameFlags::WHITEOUT) && !name.is_dot_or_dot_dot();
        let before = whiteout.then(|| self.see(parent, name.bytes()).map(|attr| attr.ino));
        self.move_name((parent, name), (new_parent, new_name), flags)?;
        let left = before.map(|before| (before, self.see(parent, name.bytes())));
        // Two names of one file stay as they are.
        match left {
            Some((before, Ok(left))) if before != Ok(left.ino) => {
                self.give(cx, parent, name.bytes(), left.mode).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn link(&mut self, _: &Context, ino: Ino, new_parent: Ino, new_name: Name<'_>) -> Result<Attr> {
        self.add_name(ino, new_parent, new_name)
    }

    fn open(&mut self, _: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let attr = self.attr(ino)?;
        // The calls open a directory for reading.
        if attr.is_dir() {
            return Err(Errno::EISDIR);
        }
        let fd = self.reopen(&attr, flags - OpenFlags::EXCL)?;
        Ok(self.handle(ino, fd, Some(flags)))
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        if name.is_dot_or_dot_dot() {
            return Err(Errno::EINVAL);
        }
        self.create_file(cx, parent, name.bytes(), mode, flags)
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let dir = self.dir(parent)?;
        // By both rights, and nothing hinders that it gets a name: it is kept by this descriptor.
        let how = open_flags(OpenFlags::READ | OpenFlags::WRITE) | OFlags::TMPFILE;
        let fd = sys::openat(&dir, c".", how - OFlags::NOFOLLOW, bits(mode)).map_err(errno)?;
        if rustix::process::geteuid().is_root() {
            let inherits = self.stat(&dir, b"")?.mode & 0o2000 != 0;
            let gid = (!inherits).then(|| sys::Gid::from_raw(cx.gid));
            sys::fchown(&fd, Some(sys::Uid::from_raw(cx.uid)), gid).map_err(errno)?;
            if mode & 0o6000 != 0 {
                sys::fchmod(&fd, bits(mode)).map_err(errno)?;
            }
        }
        let attr = self.stat(&fd, b"")?;
        let fd = Rc::new(fd);
        self.known.entry(attr.ino).or_default().keeper = Some(Rc::clone(&fd));
        Ok((attr, self.handle(attr.ino, fd, Some(flags))))
    }

    fn read(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let open = self.data(ino, handle, OpenFlags::READ)?;
        io::pread(&open.fd, buf, offset).map_err(errno)
    }

    fn write(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        let open = self.data(ino, handle, OpenFlags::WRITE)?;
        if !open.flags.is_some_and(|flags| flags.contains(OpenFlags::APPEND)) {
            let len = io::pwrite(&open.fd, data, offset).map_err(errno)?;
            return Ok(Written { len, offset });
        }
        if open.judged {
            let end = sys::fstat(&open.fd).map_err(errno)?.st_size as u64;
            let len = io::pwrite(&open.fd, data, end).map_err(errno)?;
            return Ok(Written { len, offset: end });
        }
        let len = io::write(&open.fd, data).map_err(errno)?;
        let end = sys::seek(&open.fd, SeekFrom::Current(0)).map_err(errno)?;
        Ok(Written { len, offset: end - len as u64 })
    }

    fn copy_file_range(&mut self, _: &Context, from: FileAt, to: FileAt, len: u64) -> Result<u64> {
        let source = self.data(from.ino, from.handle, OpenFlags::READ)?;
        let target = self.data(to.ino, to.handle, OpenFlags::WRITE)?;
        let (mut at, mut to_at) = (from.offset, to.offset);
        // The call refuses a range that ends behind the largest offset; the contract ends it there.
        let room = (i64::MAX as u64).checked_sub(at.max(to_at)).ok_or(Errno::EINVAL)?;
        let len = usize::try_from(len.min(room.max(1))).unwrap_or(usize::MAX);
        let copied =
            sys::copy_file_range(&source.fd, Some(&mut at), &target.fd, Some(&mut to_at), len);
        copied.map(|copied| copied as u64).map_err(|error| match error {
            io::Errno::OVERFLOW => Errno::EFBIG,
            error => errno(error),
        })
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
        let open = self.data(ino, handle, OpenFlags::WRITE)?;
        let mode = FallocateFlags::from_bits_retain(mode.bits());
        sys::fallocate(&open.fd, mode, offset, len).map_err(errno)
    }

    fn seek(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64> {
        let open = self.data(ino, handle, OpenFlags::empty())?;
        let to = match to {
            SeekTo::Data => SeekFrom::Data(offset),
            SeekTo::Hole => SeekFrom::Hole(offset),
        };
        sys::seek(&open.fd, to).map_err(errno)
    }

    fn fsync(&mut self, _: &Context, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        let open = self.data(ino, handle, OpenFlags::empty())?;
        let synced = if data_only { sys::fdatasync(&open.fd) } else { sys::fsync(&open.fd) };
        synced.map_err(errno)
    }

    fn release(&mut self, _: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.close(ino, handle, false)
    }

    fn opendir(&mut self, _: &Context, ino: Ino) -> Result<Handle> {
        let dir = self.dir(ino)?;
        let fd = sys::openat(&dir, c".", DIRECTORY, Mode::empty()).map_err(errno)?;
        Ok(self.handle(ino, Rc::new(fd), None))
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
        sys::fsync(&*self.opened(ino, handle, true)?.fd).map_err(errno)
    }

    fn syncfs(&mut self, _: &Context) -> Result<()> {
        sys::syncfs(&*self.dir(Ino::ROOT)?).map_err(errno)
    }

    fn statfs(&mut self, _: &Context) -> Result<StatFs> {
        let found = sys::fstatfs(&*self.dir(Ino::ROOT)?).map_err(errno)?;
        Ok(StatFs {
            block_size: found.f_bsize as u32,
            blocks: found.f_blocks,
            blocks_free: found.f_bfree,
            blocks_available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            name_max: found.f_namelen as u32,
        })
    }

    fn setxattr(
        &mut self,
        _: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.set_xattr(ino, name, value, flags.bits())
    }

    fn getxattr(&mut self, _: &Context, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        self.get_xattr(ino, name, value)
    }

    fn listxattr(&mut self, _: &Context, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        self.list_xattrs(ino, names)
    }

    fn removexattr(&mut self, _: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.remove_xattr(ino, name)
    }
}
