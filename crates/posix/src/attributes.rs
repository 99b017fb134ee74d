//! Attributes: the stat, access, chmod, chown, utimens, truncate and statvfs families.

use atoll_vfs::{Attr, Errno, FileSystem, FileType, OpenFlags, Result, SetAttr, SetTime, StatFs};

use crate::flags::{AT_FDCWD, AccessMode, AtFlags};
use crate::policy::Policy;
use crate::{Clock, Posix};

/// The file of a call that changes attributes, named by a path or a descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Target<'p> {
    /// The open file, as in fchmod.
    Descriptor(i32),
    /// The path from a directory, as in fchmodat.
    Path(i32, &'p [u8], AtFlags),
}

impl<'p> Target<'p> {
    /// The path from the working directory, symbolic links followed.
    pub fn path(path: &'p [u8]) -> Self {
        Target::Path(AT_FDCWD, path, AtFlags::empty())
    }
}

impl<F: FileSystem, C: Clock, P: Policy> Posix<F, C, P> {
    /// fstat(2).
    ///
    /// # Errors
    /// `EBADF`, `EIO`.
    #[inline]
    pub fn fstat(&mut self, fd: i32) -> Result<Attr> {
        let cx = self.reading();
        let file = self.table.get(fd)?;
        self.fs.getattr(&cx, file.ino)
    }

    /// stat(2).
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn stat(&mut self, path: &[u8]) -> Result<Attr> {
        self.find(AT_FDCWD, path, AtFlags::empty())
    }

    /// lstat(2).
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn lstat(&mut self, path: &[u8]) -> Result<Attr> {
        self.find(AT_FDCWD, path, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// fstatat(2) with SYMLINK_NOFOLLOW and EMPTY_PATH.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn fstatat(&mut self, dirfd: i32, path: &[u8], flags: AtFlags) -> Result<Attr> {
        self.find(dirfd, path, flags)
    }

    /// faccessat(2): whether the caller may use the file so. Without a checking policy, the
    /// superuser's answer.
    ///
    /// # Errors
    /// `EACCES`, and those of the path.
    pub fn faccessat(
        &mut self,
        dirfd: i32,
        path: &[u8],
        mode: AccessMode,
        flags: AtFlags,
    ) -> Result<()> {
        let attr = self.find(dirfd, path, flags)?;
        if mode.is_empty() {
            return Ok(());
        }
        self.policy.access(self.credentials, &attr, mode)
    }

    fn resolve(&mut self, target: Target<'_>) -> Result<Attr> {
        match target {
            Target::Descriptor(fd) => {
                self.table.get(fd)?.not_path_only()?;
                self.find_descriptor(fd)
            }
            Target::Path(dirfd, path, flags) => self.find(dirfd, path, flags),
        }
    }

    fn set(&mut self, attr: &Attr, set: &SetAttr) -> Result<()> {
        let cx = self.context();
        self.fs.setattr(&cx, attr.ino, None, set).map(drop)
    }

    /// The chmod(2) family.
    ///
    /// # Errors
    /// Those of chmod(2); `EOPNOTSUPP` for a symbolic link.
    pub fn chmod(&mut self, target: Target<'_>, mode: u32) -> Result<()> {
        let attr = self.resolve(target)?;
        if attr.file_type() == FileType::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        self.policy.own(self.credentials, &attr)?;
        let mode = self.policy.permitted_mode(self.credentials, &attr, mode & 0o7777);
        self.set(&attr, &SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    /// The chown(2) family; `None` leaves as is. Takes the set-ID bits away from a file.
    ///
    /// # Errors
    /// Those of chown(2).
    pub fn chown(&mut self, target: Target<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let attr = self.resolve(target)?;
        self.policy.chown(self.credentials, &attr, uid, gid)?;
        let mut set = SetAttr { uid, gid, ..SetAttr::default() };
        if !matches!(attr.file_type(), FileType::Directory | FileType::Symlink) {
            // A set-group-ID bit without group execution meant mandatory locking: it stays.
            let group_executes = attr.mode & 0o010 != 0;
            let cleared = if group_executes { 0o6000 } else { 0o4000 };
            if attr.mode & cleared != 0 {
                set.mode = Some(attr.mode & 0o7777 & !cleared);
            }
        }
        self.set(&attr, &set)
    }

    /// The utimensat(2) family: times of access and of modification; `None` leaves as is.
    ///
    /// # Errors
    /// Those of utimensat(2).
    pub fn utimens(&mut self, target: Target<'_>, times: [Option<SetTime>; 2]) -> Result<()> {
        let attr = self.resolve(target)?;
        let [atime, mtime] = times;
        if atime.is_none() && mtime.is_none() {
            return Ok(());
        }
        if P::CHECKS && self.policy.own(self.credentials, &attr).is_err() {
            // A caller that may write a file may set its times to the present.
            if times != [Some(SetTime::Now); 2] {
                return Err(Errno::EPERM);
            }
            self.policy.access(self.credentials, &attr, AccessMode::WRITE)?;
        }
        self.set(&attr, &SetAttr { atime, mtime, ..SetAttr::default() })
    }

    /// truncate(2).
    ///
    /// # Errors
    /// Those of truncate(2): `EISDIR`, `EINVAL` for a file without a length, or a negative length.
    pub fn truncate(&mut self, path: &[u8], length: i64) -> Result<()> {
        let size = u64::try_from(length).map_err(|_| Errno::EINVAL)?;
        let attr = self.find(AT_FDCWD, path, AtFlags::empty())?;
        match attr.file_type() {
            FileType::Regular => (),
            FileType::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if P::CHECKS {
            self.policy.access(self.credentials, &attr, AccessMode::WRITE)?;
        }
        self.set(&attr, &SetAttr { size: Some(size), ..SetAttr::default() })
    }

    /// ftruncate(2).
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` for a descriptor not open for writing or a negative length, `EFBIG`,
    /// `ENOSPC`.
    pub fn ftruncate(&mut self, fd: i32, length: i64) -> Result<()> {
        let size = u64::try_from(length).map_err(|_| Errno::EINVAL)?;
        let cx = self.context();
        let file = self.table.get(fd)?;
        file.not_path_only()?;
        let handle = file.handle(OpenFlags::WRITE).map_err(|_| Errno::EINVAL)?;
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.fs.setattr(&cx, file.ino, Some(handle), &set).map(drop)
    }

    /// statvfs(3), which needs the path to exist.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn statvfs(&mut self, path: &[u8]) -> Result<StatFs> {
        let attr = self.find(AT_FDCWD, path, AtFlags::empty())?;
        let cx = self.reading();
        self.fs.statfs_below(&cx, attr.ino)
    }

    /// fstatvfs(3).
    ///
    /// # Errors
    /// `EBADF`, `EIO`.
    pub fn fstatvfs(&mut self, fd: i32) -> Result<StatFs> {
        let ino = self.table.get(fd)?.ino;
        let cx = self.reading();
        self.fs.statfs_below(&cx, ino)
    }
}
