//! The same calls on the host's kernel and on the layer above the model, for comparison.
#![allow(dead_code, reason = "each test uses its part")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "system calls on valid paths, buffers and structures of this module"
)]

use std::ffi::CString;
use std::os::fd::AsRawFd;

use atoll_posix::attributes::Target;
use atoll_posix::{AT_FDCWD, AccessMode, AtFlags, Attr, OFlags, Options, Posix, Whence};
use atoll_vfs::model::ModelFs;
use atoll_vfs::{FallocateMode, RenameFlags, SetTime, Timespec};

/// The result of a call: its value, or the number of its error.
pub type Answer = Result<i64, i32>;

/// Two implementors of the same calls, relative to a directory of each.
pub trait Calls {
    fn open(&mut self, path: &[u8], flags: u32, mode: u32) -> Answer;
    fn close(&mut self, fd: i64) -> Answer;
    fn dup(&mut self, fd: i64) -> Answer;
    fn dup2(&mut self, fd: i64, to: i64) -> Answer;
    fn read(&mut self, fd: i64, buf: &mut [u8]) -> Answer;
    fn write(&mut self, fd: i64, data: &[u8]) -> Answer;
    fn pread(&mut self, fd: i64, buf: &mut [u8], offset: i64) -> Answer;
    fn pwrite(&mut self, fd: i64, data: &[u8], offset: i64) -> Answer;
    fn lseek(&mut self, fd: i64, offset: i64, whence: i32) -> Answer;
    fn ftruncate(&mut self, fd: i64, length: i64) -> Answer;
    fn fallocate(&mut self, fd: i64, mode: u32, offset: i64, len: i64) -> Answer;
    fn fsync(&mut self, fd: i64) -> Answer;
    fn set_append(&mut self, fd: i64, append: bool) -> Answer;
    fn fsize(&mut self, fd: i64) -> Answer;
    fn fchmod(&mut self, fd: i64, mode: u32) -> Answer;
    /// Type and permission bits, and links except of directories, in one number.
    fn stat(&mut self, path: &[u8], follow: bool) -> Answer;
    fn access(&mut self, path: &[u8], mode: u32) -> Answer;
    fn chmod(&mut self, path: &[u8], mode: u32) -> Answer;
    fn chown(&mut self, path: &[u8], uid: u32, gid: u32, follow: bool) -> Answer;
    fn utimens(&mut self, path: &[u8], follow: bool) -> Answer;
    fn truncate(&mut self, path: &[u8], length: i64) -> Answer;
    fn mkdir(&mut self, path: &[u8], mode: u32) -> Answer;
    fn mknod(&mut self, path: &[u8], mode: u32) -> Answer;
    fn symlink(&mut self, target: &[u8], path: &[u8]) -> Answer;
    fn readlink(&mut self, path: &[u8], buf: &mut [u8]) -> Answer;
    fn unlink(&mut self, path: &[u8]) -> Answer;
    fn rmdir(&mut self, path: &[u8]) -> Answer;
    fn link(&mut self, old: &[u8], new: &[u8], flags: u32) -> Answer;
    fn rename(&mut self, old: &[u8], new: &[u8], flags: u32) -> Answer;
    fn chdir_and_back(&mut self, path: &[u8]) -> Answer;
    fn getdents(&mut self, fd: i64, buf: &mut [u8]) -> Answer;
}

/// The host's kernel, in an empty directory.
pub struct Host {
    _temporary: tempfile::TempDir,
    dir: std::fs::File,
    at: i32,
    /// The lowest descriptor, as the layer starts at 0.
    base: i64,
}

fn answer(result: i64) -> Answer {
    if result < 0 {
        Err(std::io::Error::last_os_error().raw_os_error().expect("a system call failed"))
    } else {
        Ok(result)
    }
}

fn c(path: &[u8]) -> CString {
    CString::new(path).expect("paths without NUL")
}

impl Host {
    /// On tmpfs if there is one, whose errors are those of the generic code.
    pub fn new() -> Host {
        let temporary = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let temporary = temporary.expect("a temporary directory");
        std::fs::create_dir(temporary.path().join("w")).expect("a directory");
        let dir = std::fs::File::open(temporary.path().join("w")).expect("the directory opens");
        let at = dir.as_raw_fd();
        Host { _temporary: temporary, dir, at, base: 0 }
    }

    /// Begins again in another empty directory.
    pub fn reset(&mut self, name: &str) {
        let path = self._temporary.path().join(name);
        std::fs::create_dir(&path).expect("a directory");
        std::fs::create_dir(path.join("w")).expect("a directory");
        self.dir = std::fs::File::open(path.join("w")).expect("the directory opens");
        self.at = self.dir.as_raw_fd();
    }

    /// Numbers descriptors from 0: those given out from now on. Closes all that the process was
    /// started with and does not use, whose numbers would be missing.
    pub fn rebase(&mut self) {
        self.base = i64::from(self.dir.as_raw_fd()) + 1;
        unsafe { libc::syscall(libc::SYS_close_range, self.base, u32::MAX, 0) };
    }

    fn fd(&self, fd: i64) -> i32 {
        if fd < 0 { -1 } else { (fd + self.base) as i32 }
    }
}

impl Calls for Host {
    fn open(&mut self, path: &[u8], flags: u32, mode: u32) -> Answer {
        let fd = unsafe { libc::openat(self.at, c(path).as_ptr(), flags as i32, mode) };
        answer(fd.into()).map(|fd| fd - self.base)
    }
    fn close(&mut self, fd: i64) -> Answer {
        answer(unsafe { libc::close(self.fd(fd)) }.into())
    }
    fn dup(&mut self, fd: i64) -> Answer {
        answer(unsafe { libc::dup(self.fd(fd)) }.into()).map(|fd| fd - self.base)
    }
    fn dup2(&mut self, fd: i64, to: i64) -> Answer {
        answer(unsafe { libc::dup2(self.fd(fd), self.fd(to)) }.into()).map(|fd| fd - self.base)
    }
    fn read(&mut self, fd: i64, buf: &mut [u8]) -> Answer {
        answer(unsafe { libc::read(self.fd(fd), buf.as_mut_ptr().cast(), buf.len()) } as i64)
    }
    fn write(&mut self, fd: i64, data: &[u8]) -> Answer {
        answer(unsafe { libc::write(self.fd(fd), data.as_ptr().cast(), data.len()) } as i64)
    }
    fn pread(&mut self, fd: i64, buf: &mut [u8], offset: i64) -> Answer {
        let fd = self.fd(fd);
        answer(unsafe { libc::pread(fd, buf.as_mut_ptr().cast(), buf.len(), offset) } as i64)
    }
    fn pwrite(&mut self, fd: i64, data: &[u8], offset: i64) -> Answer {
        let fd = self.fd(fd);
        answer(unsafe { libc::pwrite(fd, data.as_ptr().cast(), data.len(), offset) } as i64)
    }
    fn lseek(&mut self, fd: i64, offset: i64, whence: i32) -> Answer {
        answer(unsafe { libc::lseek(self.fd(fd), offset, whence) })
    }
    fn ftruncate(&mut self, fd: i64, length: i64) -> Answer {
        answer(unsafe { libc::ftruncate(self.fd(fd), length) }.into())
    }
    fn fallocate(&mut self, fd: i64, mode: u32, offset: i64, len: i64) -> Answer {
        answer(unsafe { libc::fallocate(self.fd(fd), mode as i32, offset, len) }.into())
    }
    fn fsync(&mut self, fd: i64) -> Answer {
        answer(unsafe { libc::fsync(self.fd(fd)) }.into())
    }
    fn set_append(&mut self, fd: i64, append: bool) -> Answer {
        let flags = if append { libc::O_APPEND } else { 0 };
        answer(unsafe { libc::fcntl(self.fd(fd), libc::F_SETFL, flags) }.into())
    }
    fn fsize(&mut self, fd: i64) -> Answer {
        let mut stat = unsafe { core::mem::zeroed::<libc::stat>() };
        answer(unsafe { libc::fstat(self.fd(fd), &mut stat) }.into())?;
        Ok(if stat.st_mode & libc::S_IFMT == libc::S_IFREG { stat.st_size } else { 0 })
    }
    fn fchmod(&mut self, fd: i64, mode: u32) -> Answer {
        answer(unsafe { libc::fchmod(self.fd(fd), mode) }.into())
    }
    fn stat(&mut self, path: &[u8], follow: bool) -> Answer {
        let mut stat = unsafe { core::mem::zeroed::<libc::stat>() };
        let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        answer(unsafe { libc::fstatat(self.at, c(path).as_ptr(), &mut stat, flags) }.into())?;
        Ok(summary(stat.st_mode, stat.st_nlink as u32, stat.st_size))
    }
    fn access(&mut self, path: &[u8], mode: u32) -> Answer {
        answer(unsafe { libc::faccessat(self.at, c(path).as_ptr(), mode as i32, 0) }.into())
    }
    fn chmod(&mut self, path: &[u8], mode: u32) -> Answer {
        answer(unsafe { libc::fchmodat(self.at, c(path).as_ptr(), mode, 0) }.into())
    }
    fn chown(&mut self, path: &[u8], uid: u32, gid: u32, follow: bool) -> Answer {
        let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        answer(unsafe { libc::fchownat(self.at, c(path).as_ptr(), uid, gid, flags) }.into())
    }
    fn utimens(&mut self, path: &[u8], follow: bool) -> Answer {
        let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        let times = [libc::timespec { tv_sec: 5, tv_nsec: 7 }; 2];
        let path = c(path);
        answer(unsafe { libc::utimensat(self.at, path.as_ptr(), times.as_ptr(), flags) }.into())
    }
    fn truncate(&mut self, path: &[u8], length: i64) -> Answer {
        // There is no truncateat: the path goes through the directory's place in /proc, whose
        // links do not change what the rest of the path means.
        if path.is_empty() {
            return answer(unsafe { libc::truncate(c"".as_ptr(), length) }.into());
        }
        let through = [format!("/proc/self/fd/{}/", self.at).as_bytes(), path].concat();
        answer(unsafe { libc::truncate(c(&through).as_ptr(), length) }.into())
    }
    fn mkdir(&mut self, path: &[u8], mode: u32) -> Answer {
        answer(unsafe { libc::mkdirat(self.at, c(path).as_ptr(), mode) }.into())
    }
    fn mknod(&mut self, path: &[u8], mode: u32) -> Answer {
        answer(unsafe { libc::mknodat(self.at, c(path).as_ptr(), mode, 0) }.into())
    }
    fn symlink(&mut self, target: &[u8], path: &[u8]) -> Answer {
        let (target, path) = (c(target), c(path));
        answer(unsafe { libc::symlinkat(target.as_ptr(), self.at, path.as_ptr()) }.into())
    }
    fn readlink(&mut self, path: &[u8], buf: &mut [u8]) -> Answer {
        let (path, len) = (c(path), buf.len());
        let buf = buf.as_mut_ptr().cast();
        answer(unsafe { libc::readlinkat(self.at, path.as_ptr(), buf, len) } as i64)
    }
    fn unlink(&mut self, path: &[u8]) -> Answer {
        answer(unsafe { libc::unlinkat(self.at, c(path).as_ptr(), 0) }.into())
    }
    fn rmdir(&mut self, path: &[u8]) -> Answer {
        answer(unsafe { libc::unlinkat(self.at, c(path).as_ptr(), libc::AT_REMOVEDIR) }.into())
    }
    fn link(&mut self, old: &[u8], new: &[u8], flags: u32) -> Answer {
        let (old, new, at) = (c(old), c(new), self.at);
        let flags = flags as i32;
        answer(unsafe { libc::linkat(at, old.as_ptr(), at, new.as_ptr(), flags) }.into())
    }
    fn rename(&mut self, old: &[u8], new: &[u8], flags: u32) -> Answer {
        let (old, new, at) = (c(old), c(new), self.at);
        answer(unsafe {
            libc::syscall(libc::SYS_renameat2, at, old.as_ptr(), at, new.as_ptr(), flags)
        })
    }
    fn chdir_and_back(&mut self, path: &[u8]) -> Answer {
        // The working directory belongs to all threads of the test: an open for searching fails
        // in the same ways.
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let fd = answer(unsafe { libc::openat(self.at, c(path).as_ptr(), flags) }.into())?;
        answer(unsafe { libc::close(fd as i32) }.into())
    }
    fn getdents(&mut self, fd: i64, buf: &mut [u8]) -> Answer {
        let (fd, len) = (self.fd(fd), buf.len());
        let n = unsafe { libc::syscall(libc::SYS_getdents64, fd, buf.as_mut_ptr(), len) };
        answer(n).map(|n| i64::from(n > 0))
    }
}

/// The attributes that both sides agree on. Links and sizes of directories are each file system's
/// own.
fn summary(mode: u32, nlink: u32, size: i64) -> i64 {
    let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
    let (nlink, size) = if is_dir { (0, 0) } else { (nlink, size) };
    i64::from(mode) | i64::from(nlink) << 20 | size << 30
}

/// The layer under test, over the model.
pub struct Layer(pub Posix<ModelFs, fn() -> Timespec>);

impl Layer {
    pub fn new() -> Layer {
        let now: fn() -> Timespec = || Timespec { sec: 1, nsec: 2 };
        let umask = unsafe { libc::umask(0o022) };
        unsafe { libc::umask(umask) };
        let options = Options { umask, sole_user: true, ..Options::default() };
        let mut posix = Posix::new(ModelFs::default(), now, &options);
        posix.mkdir(b"/w", 0o755).expect("an empty volume");
        posix.chdir(b"/w").expect("it was made");
        Layer(posix)
    }
}

fn layer<T>(result: atoll_posix::Result<T>, value: impl FnOnce(T) -> i64) -> Answer {
    result.map(value).map_err(|error| error.raw())
}

fn follow(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

impl Calls for Layer {
    fn open(&mut self, path: &[u8], flags: u32, mode: u32) -> Answer {
        layer(self.0.open(path, OFlags::from_bits_truncate(flags), mode), i64::from)
    }
    fn close(&mut self, fd: i64) -> Answer {
        layer(self.0.close(fd as i32), |()| 0)
    }
    fn dup(&mut self, fd: i64) -> Answer {
        layer(self.0.dup(fd as i32), i64::from)
    }
    fn dup2(&mut self, fd: i64, to: i64) -> Answer {
        layer(self.0.dup2(fd as i32, to as i32), i64::from)
    }
    fn read(&mut self, fd: i64, buf: &mut [u8]) -> Answer {
        layer(self.0.read(fd as i32, buf), |n| n as i64)
    }
    fn write(&mut self, fd: i64, data: &[u8]) -> Answer {
        layer(self.0.write(fd as i32, data), |n| n as i64)
    }
    fn pread(&mut self, fd: i64, buf: &mut [u8], offset: i64) -> Answer {
        layer(self.0.pread(fd as i32, buf, offset), |n| n as i64)
    }
    fn pwrite(&mut self, fd: i64, data: &[u8], offset: i64) -> Answer {
        layer(self.0.pwrite(fd as i32, data, offset), |n| n as i64)
    }
    fn lseek(&mut self, fd: i64, offset: i64, whence: i32) -> Answer {
        let whence = match whence {
            libc::SEEK_SET => Whence::Set,
            libc::SEEK_CUR => Whence::Current,
            libc::SEEK_END => Whence::End,
            libc::SEEK_DATA => Whence::Data,
            _ => Whence::Hole,
        };
        layer(self.0.lseek(fd as i32, offset, whence), |n| n)
    }
    fn ftruncate(&mut self, fd: i64, length: i64) -> Answer {
        layer(self.0.ftruncate(fd as i32, length), |()| 0)
    }
    fn fallocate(&mut self, fd: i64, mode: u32, offset: i64, len: i64) -> Answer {
        let mode = FallocateMode::from_bits(mode).ok_or(libc::EOPNOTSUPP)?;
        layer(self.0.fallocate(fd as i32, mode, offset, len), |()| 0)
    }
    fn fsync(&mut self, fd: i64) -> Answer {
        layer(self.0.fsync(fd as i32, false), |()| 0)
    }
    fn set_append(&mut self, fd: i64, append: bool) -> Answer {
        let flags = if append { OFlags::APPEND } else { OFlags::empty() };
        layer(self.0.set_status_flags(fd as i32, flags), |()| 0)
    }
    fn fsize(&mut self, fd: i64) -> Answer {
        let regular = |a: &Attr| a.file_type() == atoll_vfs::FileType::Regular;
        layer(self.0.fstat(fd as i32), |a| if regular(&a) { a.size as i64 } else { 0 })
    }
    fn fchmod(&mut self, fd: i64, mode: u32) -> Answer {
        layer(self.0.chmod(Target::Descriptor(fd as i32), mode), |()| 0)
    }
    fn stat(&mut self, path: &[u8], follow_links: bool) -> Answer {
        let found = self.0.fstatat(AT_FDCWD, path, follow(follow_links));
        layer(found, |a| summary(a.mode, a.nlink, a.size as i64))
    }
    fn access(&mut self, path: &[u8], mode: u32) -> Answer {
        let mode = AccessMode::from_bits_truncate(mode);
        layer(self.0.faccessat(AT_FDCWD, path, mode, AtFlags::empty()), |()| 0)
    }
    fn chmod(&mut self, path: &[u8], mode: u32) -> Answer {
        layer(self.0.chmod(Target::path(path), mode), |()| 0)
    }
    fn chown(&mut self, path: &[u8], uid: u32, gid: u32, follow_links: bool) -> Answer {
        let target = Target::Path(AT_FDCWD, path, follow(follow_links));
        layer(self.0.chown(target, Some(uid), Some(gid)), |()| 0)
    }
    fn utimens(&mut self, path: &[u8], follow_links: bool) -> Answer {
        let target = Target::Path(AT_FDCWD, path, follow(follow_links));
        let time = Some(SetTime::To(Timespec { sec: 5, nsec: 7 }));
        layer(self.0.utimens(target, [time; 2]), |()| 0)
    }
    fn truncate(&mut self, path: &[u8], length: i64) -> Answer {
        layer(self.0.truncate(path, length), |()| 0)
    }
    fn mkdir(&mut self, path: &[u8], mode: u32) -> Answer {
        layer(self.0.mkdir(path, mode), |()| 0)
    }
    fn mknod(&mut self, path: &[u8], mode: u32) -> Answer {
        layer(self.0.mknodat(AT_FDCWD, path, mode, 0), |()| 0)
    }
    fn symlink(&mut self, target: &[u8], path: &[u8]) -> Answer {
        layer(self.0.symlinkat(target, AT_FDCWD, path), |()| 0)
    }
    fn readlink(&mut self, path: &[u8], buf: &mut [u8]) -> Answer {
        layer(self.0.readlinkat(AT_FDCWD, path, buf), |n| n as i64)
    }
    fn unlink(&mut self, path: &[u8]) -> Answer {
        layer(self.0.unlink(path), |()| 0)
    }
    fn rmdir(&mut self, path: &[u8]) -> Answer {
        layer(self.0.rmdir(path), |()| 0)
    }
    fn link(&mut self, old: &[u8], new: &[u8], flags: u32) -> Answer {
        let flags = AtFlags::from_bits_retain(flags);
        layer(self.0.linkat(AT_FDCWD, old, AT_FDCWD, new, flags), |()| 0)
    }
    fn rename(&mut self, old: &[u8], new: &[u8], flags: u32) -> Answer {
        let flags = RenameFlags::from_bits(flags).ok_or(libc::EINVAL)?;
        layer(self.0.renameat2(AT_FDCWD, old, AT_FDCWD, new, flags), |()| 0)
    }
    fn chdir_and_back(&mut self, path: &[u8]) -> Answer {
        layer(self.0.chdir(path), |()| 0)?;
        layer(self.0.chdir(b"/w"), |()| 0)
    }
    fn getdents(&mut self, fd: i64, buf: &mut [u8]) -> Answer {
        layer(self.0.getdents(fd as i32, buf), |n| i64::from(n > 0))
    }
}
