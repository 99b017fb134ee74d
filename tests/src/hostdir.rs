//! A directory of a Linux file system as a [`FileSystem`], through system calls.
//!
//! It exists to hold the model against Linux, so it translates as little as it can. Where Linux
//! differs from the contract the difference is either a [`Quirk`](Quirks), or evened out here and
//! nowhere else:
//!
//! - Inode numbers are the adapter's own, since Linux uses them again. Every inode that was seen is
//!   pinned by an `O_PATH` descriptor until it is gone.
//! - Owner: creating calls are followed by chown(2), and the set-ID bits that it clears are set
//!   again, because here no privilege is to be taken away.
//! - The root is its own parent; `.` and `..` are `EINVAL` where Linux says `EEXIST`, `EBUSY` or
//!   `ENOTEMPTY`.
//! - Handles are checked here: a wrong one is `EBADF`, and ftruncate(2) of a handle that may not
//!   write is not `EINVAL`. Opening a directory, a link, a pipe or a device is refused before
//!   Linux would do it.
//! - A range that no file can have is `EFBIG`, where fallocate(2) says `EINVAL`; seeks past the
//!   largest offset are `ENXIO`.
//! - A read that would end past the largest offset is cut there, where pread(2) says `EINVAL`.
//! - A removed directory lists nothing, where getdents(2) says `ENOENT`.
//! - A temporary file in a removed directory is `ENOENT`, where O_TMPFILE says `EPERM`.
//! - mkdir(2) ignores all but the permission and sticky bits; the others are set afterwards.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::path::Path;

use atoll_vfs::filesystem::checked_end;
use atoll_vfs::*;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs as sys;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use tempfile::TempDir;

use crate::subject::Quirks;

/// An inode that was seen.
struct Known {
    /// Opened with `O_PATH`: names the inode, allows nothing else, keeps its number from being
    /// given to another.
    path: OwnedFd,
    host_ino: u64,
    handles: u32,
}

struct Open {
    ino: Ino,
    fd: OwnedFd,
    /// `None` for a directory.
    flags: Option<OpenFlags>,
}

/// A fresh directory on a host file system, removed when this is dropped.
pub struct HostDir {
    known: HashMap<Ino, Known>,
    by_host: HashMap<u64, Ino>,
    open: HashMap<u64, Open>,
    next_ino: u64,
    next_handle: u64,
    ownership: bool,
    _dir: TempDir,
}

/// The magic numbers that statfs(2) gives.
const EXT4_MAGIC: i64 = 0xef53;
const TMPFS_MAGIC: i64 = 0x0102_1994;

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error()).unwrap_or(Errno::EIO)
}

fn magic_link(fd: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn mode_of(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

fn ordinary(name: Name<'_>) -> Result<()> {
    if name.is_dot_or_dot_dot() { Err(Errno::EINVAL) } else { Ok(()) }
}

impl HostDir {
    /// Makes a directory in `parent`, with the quirks of the file system there; or says why tests
    /// cannot be run on it.
    ///
    /// # Errors
    /// A sentence for people: the file system is one whose quirks are not known, or the process
    /// is not root and so cannot make files for others.
    pub fn new(parent: &Path) -> std::result::Result<(HostDir, Quirks), String> {
        if !parent.is_dir() {
            return Err(format!("{} is no directory", parent.display()));
        }
        if !rustix::process::geteuid().is_root() {
            return Err("only root can give files to other users".into());
        }
        let statfs = sys::statfs(parent).map_err(|error| error.to_string())?;
        let magic = statfs.f_type as i64;
        let quirks = Quirks {
            caller_time: false,
            relink: false,
            link_modes: false,
            xattr_everywhere: false,
            xattr_value_max: 2000,
            many_inodes: false,
            ..Quirks::default()
        };
        let quirks = match magic {
            EXT4_MAGIC if statfs.f_bsize == 4096 => {
                Quirks { file_size_max: (16 << 40) - 4096, ..quirks }
            }
            TMPFS_MAGIC => {
                Quirks { zero_range: false, link_max: None, stable_cookies: false, ..quirks }
            }
            _ => return Err(format!("the quirks of file system {magic:#x} are not known")),
        };
        let dir = tempfile::Builder::new()
            .prefix("atoll-hostdir-")
            .tempdir_in(parent)
            .map_err(|error| format!("{}: {error}", parent.display()))?;
        rustix::process::umask(Mode::empty());
        raise_descriptor_limit();
        let root = sys::open(dir.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| error.to_string())?;
        sys::chmodat(CWD, magic_link(root.as_fd()), mode_of(0o755), AtFlags::empty())
            .map_err(|error| error.to_string())?;
        let mut fs = HostDir {
            known: HashMap::new(),
            by_host: HashMap::new(),
            open: HashMap::new(),
            next_ino: Ino::ROOT.0,
            next_handle: 1,
            ownership: quirks.ownership,
            _dir: dir,
        };
        fs.register(root).map_err(|error| error.to_string())?;
        Ok((fs, quirks))
    }

    /// The number of the inode that `path`, opened with `O_PATH`, names.
    fn register(&mut self, path: OwnedFd) -> Result<Ino> {
        let host_ino = sys::fstat(&path).map_err(errno)?.st_ino;
        if let Some(&ino) = self.by_host.get(&host_ino) {
            return Ok(ino);
        }
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        self.known.insert(ino, Known { path, host_ino, handles: 0 });
        self.by_host.insert(host_ino, ino);
        Ok(ino)
    }

    /// Forgets an inode that has neither links nor handles.
    fn reap(&mut self, ino: Ino) {
        let Some(known) = self.known.get(&ino) else { return };
        let unlinked = sys::fstat(&known.path).is_ok_and(|stat| stat.st_nlink == 0);
        if unlinked
            && known.handles == 0
            && let Some(known) = self.known.remove(&ino)
        {
            self.by_host.remove(&known.host_ino);
        }
    }

    fn path(&self, ino: Ino) -> Result<BorrowedFd<'_>> {
        self.known.get(&ino).map(|known| known.path.as_fd()).ok_or(Errno::ESTALE)
    }

    /// A path that leads to the inode itself, links not followed any further.
    fn link_to(&self, ino: Ino) -> Result<String> {
        self.path(ino).map(magic_link)
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        let stat = sys::statx(
            self.path(ino)?,
            c"",
            AtFlags::EMPTY_PATH,
            sys::StatxFlags::BASIC_STATS | sys::StatxFlags::BTIME,
        )
        .map_err(errno)?;
        let time = |time: sys::StatxTimestamp| Timespec { sec: time.tv_sec, nsec: time.tv_nsec };
        let mode = u32::from(stat.stx_mode);
        let is_device =
            matches!(FileType::from_mode(mode), Some(FileType::CharDevice | FileType::BlockDevice));
        let rdev = sys::makedev(stat.stx_rdev_major, stat.stx_rdev_minor) as u32;
        Ok(Attr {
            ino,
            mode,
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: if is_device { rdev } else { 0 },
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            btime: time(stat.stx_btime),
        })
    }

    /// The inode that `name` is in `parent`.
    fn find(&mut self, parent: Ino, name: Name<'_>) -> Result<Ino> {
        if parent == Ino::ROOT && name.bytes() == b".." {
            return Ok(Ino::ROOT);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path =
            sys::openat(self.path(parent)?, name.bytes(), flags, Mode::empty()).map_err(errno)?;
        self.register(path)
    }

    /// The inode that the descriptor is open on.
    fn inode_of(&mut self, fd: BorrowedFd<'_>) -> Result<Ino> {
        let path = sys::open(magic_link(fd), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(errno)?;
        self.register(path)
    }

    /// Gives a new inode the owner and the mode that it should have.
    fn adopt(&mut self, cx: &Context, parent: Ino, ino: Ino, mode: u32) -> Result<Attr> {
        let of_parent = self.attr(parent)?;
        let inherits = of_parent.mode & 0o2000 != 0;
        let file_type = self.attr(ino)?.file_type();
        if self.ownership {
            let gid = if inherits { of_parent.gid } else { cx.gid };
            self.chown(ino, Some(cx.uid), Some(gid))?;
        }
        if file_type != FileType::Symlink {
            let is_dir = file_type == FileType::Directory;
            let mode = mode & 0o7777 | if is_dir && inherits { 0o2000 } else { 0 };
            if self.attr(ino)?.mode & 0o7777 != mode {
                self.chmod(ino, mode)?;
            }
        }
        self.attr(ino)
    }

    fn chown(&self, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let uid = uid.map(sys::Uid::from_raw);
        let gid = gid.map(sys::Gid::from_raw);
        sys::chownat(CWD, self.link_to(ino)?, uid, gid, AtFlags::empty()).map_err(errno)
    }

    fn chmod(&self, ino: Ino, mode: u32) -> Result<()> {
        sys::chmodat(CWD, self.link_to(ino)?, mode_of(mode), AtFlags::empty()).map_err(errno)
    }

    fn add_handle(&mut self, ino: Ino, fd: OwnedFd, flags: Option<OpenFlags>) -> Handle {
        if let Some(known) = self.known.get_mut(&ino) {
            known.handles += 1;
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        self.open.insert(handle, Open { ino, fd, flags });
        Handle(handle)
    }

    fn handle(&self, ino: Ino, handle: Handle, dir: bool) -> Result<&Open> {
        self.path(ino)?;
        self.open
            .get(&handle.0)
            .filter(|open| open.ino == ino && open.flags.is_none() == dir)
            .ok_or(Errno::EBADF)
    }

    fn file(&self, ino: Ino, handle: Handle, right: OpenFlags) -> Result<&Open> {
        let open = self.handle(ino, handle, false)?;
        let flags = open.flags.unwrap_or(OpenFlags::empty());
        if flags.contains(right) { Ok(open) } else { Err(Errno::EBADF) }
    }

    fn close(&mut self, ino: Ino, handle: Handle) {
        self.open.remove(&handle.0);
        if let Some(known) = self.known.get_mut(&ino) {
            known.handles -= 1;
        }
        self.reap(ino);
    }

    fn reopen(&self, ino: Ino, flags: OFlags) -> Result<OwnedFd> {
        sys::open(self.link_to(ino)?, flags | OFlags::CLOEXEC, Mode::empty()).map_err(errno)
    }
}

/// Tests that run side by side pin thousands of inodes.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it cannot be raised, a test that needs more fails with ENFILE or EMFILE.
    let _ = setrlimit(Resource::Nofile, limit);
}

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
    to
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

impl FileSystem for HostDir {
    fn lookup(&mut self, _: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        if parent == Ino::ROOT && name.bytes() == b".." {
            return self.attr(Ino::ROOT);
        }
        let ino = self.find(parent, name)?;
        self.attr(ino)
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
        let before = self.attr(ino)?;
        if let Some(size) = set.size {
            match before.file_type() {
                FileType::Regular => {}
                FileType::Directory => return Err(Errno::EISDIR),
                _ => return Err(Errno::EINVAL),
            }
            checked_end(size, 0)?;
            match handle {
                Some(handle) => sys::ftruncate(&self.file(ino, handle, OpenFlags::WRITE)?.fd, size),
                None => sys::ftruncate(self.reopen(ino, OFlags::WRONLY)?, size),
            }
            .map_err(errno)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            self.chown(ino, set.uid, set.gid)?;
            if before.file_type() != FileType::Symlink {
                self.chmod(ino, before.mode)?;
            }
        }
        if let Some(mode) = set.mode {
            self.chmod(ino, mode)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let time = |set: Option<SetTime>| {
                let (tv_sec, tv_nsec) = match set {
                    None => (0, sys::UTIME_OMIT),
                    Some(SetTime::Now) => (0, sys::UTIME_NOW),
                    Some(SetTime::To(time)) => (time.sec, time.nsec.into()),
                };
                sys::Timespec { tv_sec, tv_nsec }
            };
            let times = sys::Timestamps {
                last_access: time(set.atime),
                last_modification: time(set.mtime),
            };
            sys::utimensat(CWD, self.link_to(ino)?, &times, AtFlags::empty()).map_err(errno)?;
        }
        self.attr(ino)
    }

    fn readlink(&mut self, _: &Context, ino: Ino, target: &mut Vec<u8>) -> Result<()> {
        if self.attr(ino)?.file_type() != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        let bytes = sys::readlinkat(self.path(ino)?, c"", Vec::new()).map_err(errno)?;
        target.extend_from_slice(bytes.as_bytes());
        Ok(())
    }

    fn mknod(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        ordinary(name)?;
        let file_type = match FileType::from_mode(mode) {
            None | Some(FileType::Directory | FileType::Symlink) => return Err(Errno::EINVAL),
            Some(_) => sys::FileType::from_raw_mode(mode),
        };
        let dir = self.path(parent)?;
        sys::mknodat(dir, name.bytes(), file_type, mode_of(mode), rdev.into()).map_err(errno)?;
        let ino = self.find(parent, name)?;
        self.adopt(cx, parent, ino, mode)
    }

    fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr> {
        ordinary(name)?;
        sys::mkdirat(self.path(parent)?, name.bytes(), mode_of(mode)).map_err(errno)?;
        let ino = self.find(parent, name)?;
        self.adopt(cx, parent, ino, mode)
    }

    fn symlink(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        target: &[u8],
    ) -> Result<Attr> {
        ordinary(name)?;
        sys::symlinkat(target, self.path(parent)?, name.bytes()).map_err(errno)?;
        let ino = self.find(parent, name)?;
        self.adopt(cx, parent, ino, 0o777)
    }

    fn unlink(&mut self, _: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        ordinary(name)?;
        let ino = self.find(parent, name)?;
        sys::unlinkat(self.path(parent)?, name.bytes(), AtFlags::empty()).map_err(errno)?;
        self.reap(ino);
        Ok(())
    }

    fn rmdir(&mut self, _: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        ordinary(name)?;
        let ino = self.find(parent, name)?;
        sys::unlinkat(self.path(parent)?, name.bytes(), AtFlags::REMOVEDIR).map_err(errno)?;
        self.reap(ino);
        Ok(())
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
        ordinary(name)?;
        ordinary(new_name)?;
        let (from, to) = (self.path(parent)?, self.path(new_parent)?);
        // Known, so that it is noticed when it goes.
        let replaced = sys::openat(
            to,
            new_name.bytes(),
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let flags = sys::RenameFlags::from_bits_retain(flags.bits());
        sys::renameat_with(from, name.bytes(), to, new_name.bytes(), flags).map_err(errno)?;
        if let Ok(replaced) = replaced {
            let ino = self.register(replaced)?;
            self.reap(ino);
        }
        Ok(())
    }

    fn link(&mut self, _: &Context, ino: Ino, new_parent: Ino, new_name: Name<'_>) -> Result<Attr> {
        ordinary(new_name)?;
        let (from, to) = (self.link_to(ino)?, self.path(new_parent)?);
        let follow = AtFlags::SYMLINK_FOLLOW;
        sys::linkat(CWD, from, to, new_name.bytes(), follow).map_err(errno)?;
        self.attr(ino)
    }

    fn open(&mut self, _: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        openable(self.attr(ino)?.file_type())?;
        let fd = self.reopen(ino, open_flags(flags))?;
        Ok(self.add_handle(ino, fd, Some(flags)))
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        ordinary(name)?;
        if !flags.contains(OpenFlags::EXCL) {
            match self.find(parent, name) {
                Ok(ino) => {
                    let handle = self.open(cx, ino, flags)?;
                    return Ok((self.attr(ino)?, handle));
                }
                Err(Errno::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        let how = open_flags(flags) | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd =
            sys::openat(self.path(parent)?, name.bytes(), how, mode_of(mode)).map_err(errno)?;
        let ino = self.inode_of(fd.as_fd())?;
        let attr = self.adopt(cx, parent, ino, mode)?;
        Ok((attr, self.add_handle(ino, fd, Some(flags))))
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let of_parent = self.attr(parent)?;
        if of_parent.file_type() == FileType::Directory && of_parent.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        let how = open_flags(flags) | OFlags::TMPFILE | OFlags::CLOEXEC;
        let fd = sys::openat(self.path(parent)?, c".", how, mode_of(mode)).map_err(errno)?;
        let ino = self.inode_of(fd.as_fd())?;
        let attr = self.adopt(cx, parent, ino, mode)?;
        Ok((attr, self.add_handle(ino, fd, Some(flags))))
    }

    fn read(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let open = self.file(ino, handle, OpenFlags::READ)?;
        let room = filesystem::FILE_SIZE_MAX.saturating_sub(offset);
        let len = buf.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let buf = &mut buf[..len];
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            match rustix::io::pread(&open.fd, rest, offset + done as u64).map_err(errno)? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    fn write(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        let open = self.file(ino, handle, OpenFlags::WRITE)?;
        let append = open.flags.is_some_and(|flags| flags.contains(OpenFlags::APPEND));
        let offset = if append { self.attr(ino)?.size } else { offset };
        checked_end(offset, data.len() as u64)?;
        let mut len = 0;
        while len < data.len() {
            match rustix::io::pwrite(&open.fd, &data[len..], offset + len as u64) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(error) if len == 0 => return Err(errno(error)),
                Err(_) => break,
            }
        }
        Ok(Written { len, offset })
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
        let open = self.file(ino, handle, OpenFlags::WRITE)?;
        checked_end(offset, len)?;
        let mode = sys::FallocateFlags::from_bits_retain(mode.bits());
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
        let open = self.file(ino, handle, OpenFlags::empty())?;
        checked_end(offset, 0).map_err(|_| Errno::ENXIO)?;
        let to = match to {
            SeekTo::Data => sys::SeekFrom::Data(offset),
            SeekTo::Hole => sys::SeekFrom::Hole(offset),
        };
        sys::seek(&open.fd, to).map_err(errno)
    }

    fn fsync(&mut self, _: &Context, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        let open = self.file(ino, handle, OpenFlags::empty())?;
        if data_only { sys::fdatasync(&open.fd) } else { sys::fsync(&open.fd) }.map_err(errno)
    }

    fn release(&mut self, _: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.handle(ino, handle, false)?;
        self.close(ino, handle);
        Ok(())
    }

    fn opendir(&mut self, _: &Context, ino: Ino) -> Result<Handle> {
        if self.attr(ino)?.file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        let fd = self.reopen(ino, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(self.add_handle(ino, fd, None))
    }

    fn readdir(
        &mut self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let open = self.handle(ino, handle, true)?;
        // A description of its own for each call: a cookie has to be enough to go on from.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match sys::openat(&open.fd, c".", flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            fd => fd.map_err(errno)?,
        };
        sys::seek(&fd, sys::SeekFrom::Start(cookie)).map_err(errno)?;
        let mut buf = [MaybeUninit::uninit(); 32 << 10];
        let mut entries = sys::RawDir::new(&fd, &mut buf);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Err(rustix::io::Errno::NOENT) => return Ok(()),
                entry => entry.map_err(errno)?,
            };
            let name = entry.file_name().to_bytes();
            let child = match name {
                b"." => ino,
                _ => self.find(ino, Name::new(name)?)?,
            };
            let file_type = self.attr(child)?.file_type();
            let cookie = entry.next_entry_cookie();
            if !emit(&DirEntry { ino: child, file_type, cookie, name }) {
                break;
            }
        }
        Ok(())
    }

    fn releasedir(&mut self, _: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.handle(ino, handle, true)?;
        self.close(ino, handle);
        Ok(())
    }

    fn fsyncdir(&mut self, _: &Context, ino: Ino, handle: Handle) -> Result<()> {
        sys::fsync(&self.handle(ino, handle, true)?.fd).map_err(errno)
    }

    fn syncfs(&mut self, _: &Context) -> Result<()> {
        // fsync of the root and not syncfs(2): other files of the host are not the test's to sync.
        sys::fsync(self.reopen(Ino::ROOT, OFlags::RDONLY)?).map_err(errno)
    }

    fn statfs(&mut self, _: &Context) -> Result<StatFs> {
        let stat = sys::fstatvfs(self.path(Ino::ROOT)?).map_err(errno)?;
        Ok(StatFs {
            block_size: stat.f_frsize as u32,
            blocks: stat.f_blocks,
            blocks_free: stat.f_bfree,
            files: stat.f_files,
            files_free: stat.f_ffree,
            name_max: stat.f_namemax as u32,
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
        let flags = sys::XattrFlags::from_bits_retain(flags.bits());
        sys::setxattr(self.link_to(ino)?, name, value, flags).map_err(errno)
    }

    fn getxattr(&mut self, _: &Context, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        let mut buf = vec![0; XATTR_SIZE_MAX];
        let len = sys::getxattr(self.link_to(ino)?, name, &mut buf[..]).map_err(errno)?;
        value.extend_from_slice(&buf[..len]);
        Ok(())
    }

    fn listxattr(&mut self, _: &Context, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        let mut buf = vec![0; XATTR_LIST_MAX];
        let len = match sys::listxattr(self.link_to(ino)?, &mut buf[..]) {
            // Special files on some file systems.
            Err(rustix::io::Errno::OPNOTSUPP) => 0,
            len => len.map_err(errno)?,
        };
        names.extend_from_slice(&buf[..len]);
        Ok(())
    }

    fn removexattr(&mut self, _: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        sys::removexattr(self.link_to(ino)?, name).map_err(errno)
    }
}
