//! open, close and the calls that share or describe descriptors.

use atoll_vfs::{Attr, Errno, FileSystem, FileType, Handle, Ino, OpenFlags, Result};

use crate::flags::{AT_FDCWD, AccessMode, OFlags};
use crate::policy::Policy;
use crate::table::{Held, OpenFile};
use crate::walk::{Last, Walk};
use crate::{Clock, Posix};

impl<F: FileSystem, C: Clock, P: Policy> Posix<F, C, P> {
    /// open(2).
    ///
    /// # Errors
    /// As [`openat`](Self::openat).
    pub fn open(&mut self, path: &[u8], flags: OFlags, mode: u32) -> Result<i32> {
        self.openat(AT_FDCWD, path, flags, mode)
    }

    /// openat(2): opens `path`, or creates it with the permission bits `mode` less the umask.
    ///
    /// # Errors
    /// Those of open(2); `ENXIO` for pipes, sockets and devices, which live outside a volume.
    pub fn openat(&mut self, dirfd: i32, path: &[u8], flags: OFlags, mode: u32) -> Result<i32> {
        let flags = checked(flags)?;
        self.table.check_room()?;
        let mut walk = self.walk(dirfd, path)?;
        let mode = mode & 0o7777 & !self.umask;
        let (ino, held) = if flags.contains(OFlags::TMPFILE) {
            self.open_unnamed(&mut walk, flags, mode)?
        } else {
            self.open_walked(&mut walk, flags, mode)?
        };
        self.table.insert(OpenFile::new(ino, held, flags), flags.contains(OFlags::CLOEXEC))
    }

    fn open_walked(
        &mut self,
        walk: &mut Walk<'_>,
        flags: OFlags,
        mode: u32,
    ) -> Result<(Ino, Held)> {
        let follow = !flags.contains(OFlags::NOFOLLOW);
        let create = flags.contains(OFlags::CREAT);
        loop {
            let last = self.last_of(walk)?;
            if last != Last::Name {
                if create {
                    let exclusive = flags.contains(OFlags::EXCL);
                    return Err(if exclusive { Errno::EEXIST } else { Errno::EISDIR });
                }
                let attr = self.dot_of(walk, last)?;
                return self.open_found(&attr, flags);
            }
            if create && walk.trailing {
                return Err(Errno::EISDIR);
            }
            if create && !P::CHECKS {
                let cx = self.context();
                let created = self.fs.create(&cx, walk.dir, walk.name()?, mode, rights(flags));
                match created {
                    Ok((attr, handle)) => return Ok((attr.ino, Held::File(handle))),
                    Err(Errno::ELOOP) if follow => (),
                    Err(error) => return Err(error),
                }
            }
            let cx = self.context();
            let attr = match self.fs.lookup(&cx, walk.dir, walk.name()?) {
                Err(Errno::ENOENT) if create => {
                    self.check_dir(walk, AccessMode::WRITE)?;
                    let rights = rights(flags) | OpenFlags::EXCL;
                    let (attr, handle) =
                        self.fs.create(&cx, walk.dir, walk.name()?, mode, rights)?;
                    return Ok((attr.ino, Held::File(handle)));
                }
                found => found?,
            };
            if create && flags.contains(OFlags::EXCL) {
                return Err(Errno::EEXIST);
            }
            if !self.settle(walk, &attr, follow)? {
                return self.open_found(&attr, flags);
            }
        }
    }

    /// Opens the inode that a path led to.
    fn open_found(&mut self, attr: &Attr, flags: OFlags) -> Result<(Ino, Held)> {
        let cx = self.context();
        let kind = attr.file_type();
        let path_only = flags.contains(OFlags::PATH);
        if flags.contains(OFlags::DIRECTORY) && kind != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
        if P::CHECKS && !path_only && kind != FileType::Symlink {
            let mut mode = AccessMode::empty();
            mode.set(AccessMode::READ, !flags.contains(OFlags::WRONLY));
            mode.set(AccessMode::WRITE, writes);
            self.policy.access(self.credentials, attr, mode)?;
            if flags.contains(OFlags::NOATIME) {
                self.policy.own(self.credentials, attr)?;
            }
        }
        let held = match kind {
            FileType::Directory if writes || flags.contains(OFlags::CREAT) => {
                return Err(Errno::EISDIR);
            }
            FileType::Directory => Held::Directory(self.fs.opendir(&cx, attr.ino)?),
            FileType::Symlink if !path_only => return Err(Errno::ELOOP),
            FileType::Regular => {
                // Under O_PATH the handle has no rights and keeps the file from going away.
                let rights = if path_only { OpenFlags::empty() } else { rights(flags) };
                Held::File(self.fs.open(&cx, attr.ino, rights)?)
            }
            _ if path_only => {
                self.fs.recall(attr.ino, 1);
                Held::Nothing
            }
            _ => return Err(Errno::ENXIO),
        };
        Ok((attr.ino, held))
    }

    fn open_unnamed(
        &mut self,
        walk: &mut Walk<'_>,
        flags: OFlags,
        mode: u32,
    ) -> Result<(Ino, Held)> {
        let attr = self.target_of(walk, true)?;
        if attr.file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        if P::CHECKS {
            let mode = AccessMode::WRITE | AccessMode::EXECUTE;
            self.policy.access(self.credentials, &attr, mode)?;
        }
        let cx = self.context();
        let (attr, handle) = self.fs.tmpfile(&cx, attr.ino, mode, rights(flags))?;
        Ok((attr.ino, Held::File(handle)))
    }

    /// close(2). The number is free again even when an error is returned.
    ///
    /// # Errors
    /// `EBADF`, `EIO`.
    pub fn close(&mut self, fd: i32) -> Result<()> {
        self.unlock_closing(fd);
        match self.table.remove(fd)? {
            Some(file) => {
                self.unlock_last(&file);
                self.release(file.ino, file.held)
            }
            None => Ok(()),
        }
    }

    pub(crate) fn release(&mut self, ino: Ino, held: Held) -> Result<()> {
        let cx = self.context();
        match held {
            Held::Nothing => {
                self.fs.forget(ino, 1);
                Ok(())
            }
            Held::File(handle) => self.fs.release(&cx, ino, handle),
            Held::Directory(handle) => self.fs.releasedir(&cx, ino, handle),
        }
    }

    /// Closes every descriptor marked close-on-exec, as exec does.
    pub fn close_on_exec(&mut self) {
        for fd in self.table.descriptors() {
            if self.table.close_on_exec(fd) == Ok(true) {
                let _ = self.close(fd);
            }
        }
    }

    /// dup(2).
    ///
    /// # Errors
    /// `EBADF`, `EMFILE`.
    pub fn dup(&mut self, fd: i32) -> Result<i32> {
        self.table.duplicate(fd, 0, false)
    }

    /// dup2(2).
    ///
    /// # Errors
    /// `EBADF`.
    pub fn dup2(&mut self, fd: i32, to: i32) -> Result<i32> {
        if fd == to {
            self.table.get(fd)?;
            return Ok(to);
        }
        self.dup3(fd, to, OFlags::empty())
    }

    /// dup3(2); the only flag is CLOEXEC.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` for equal numbers or other flags.
    pub fn dup3(&mut self, fd: i32, to: i32, flags: OFlags) -> Result<i32> {
        if fd == to || !OFlags::CLOEXEC.contains(flags) {
            return Err(Errno::EINVAL);
        }
        let close_on_exec = flags.contains(OFlags::CLOEXEC);
        self.table.get(fd)?;
        self.unlock_closing(to);
        if let Some(before) = self.table.replace(fd, to, close_on_exec)? {
            // As dup2(2) says, errors of the close are not reported.
            self.unlock_last(&before);
            let _ = self.release(before.ino, before.held);
        }
        Ok(to)
    }

    /// fcntl(2) with F_DUPFD or, with `close_on_exec`, F_DUPFD_CLOEXEC.
    ///
    /// # Errors
    /// `EBADF`, `EMFILE`, `EINVAL` for a minimum that no descriptor reaches.
    pub fn dup_from(&mut self, fd: i32, minimum: i32, close_on_exec: bool) -> Result<i32> {
        self.table.duplicate(fd, minimum, close_on_exec)
    }

    /// fcntl(2) with F_GETFD: whether exec closes the descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn descriptor_flags(&self, fd: i32) -> Result<bool> {
        self.table.close_on_exec(fd)
    }

    /// fcntl(2) with F_SETFD.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_descriptor_flags(&mut self, fd: i32, close_on_exec: bool) -> Result<()> {
        self.table.set_close_on_exec(fd, close_on_exec)
    }

    /// fcntl(2) with F_GETFL: access mode and status flags.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn status_flags(&self, fd: i32) -> Result<OFlags> {
        Ok(self.table.get(fd)?.status)
    }

    /// fcntl(2) with F_SETFL: [`OFlags::SETTABLE`] are taken from `flags`, others ignored.
    ///
    /// # Errors
    /// `EBADF`, `ENFILE`; `EPERM` for NOATIME of another's file; `EBUSY` for APPEND while a server
    /// keeps locks of the file.
    pub fn set_status_flags(&mut self, fd: i32, flags: OFlags) -> Result<()> {
        let file = self.table.get(fd)?;
        file.not_path_only()?;
        let (ino, held, before) = (file.ino, file.held, file.status);
        let status = before.difference(OFlags::SETTABLE) | flags & OFlags::SETTABLE;
        if P::CHECKS && (status - before).contains(OFlags::NOATIME) {
            let attr = self.getattr(ino)?;
            self.policy.own(self.credentials, &attr)?;
        }
        let append_changes = (before ^ status).contains(OFlags::APPEND);
        if let (Held::File(old), true) = (held, append_changes) {
            if self.fs.shared_locks().is_some() && self.has_locks(self.table.get(fd)?) {
                // The server lets go of what was locked through the handle.
                return Err(Errno::EBUSY);
            }
            let new = self.reopen(ino, old, status)?;
            self.table.get_mut(fd)?.held = Held::File(new);
        }
        self.table.get_mut(fd)?.status = status;
        Ok(())
    }

    /// A handle's O_APPEND is fixed when it is opened, so a change takes another handle.
    fn reopen(&mut self, ino: Ino, old: Handle, status: OFlags) -> Result<Handle> {
        let cx = self.context();
        let new = self.fs.open(&cx, ino, rights(status))?;
        self.fs.release(&cx, ino, old)?;
        Ok(new)
    }
}

/// The flags that count, or why they contradict each other.
fn checked(flags: OFlags) -> Result<OFlags> {
    if flags.contains(OFlags::PATH) {
        let kept = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        return Ok(flags & kept);
    }
    let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
    if flags.contains(OFlags::WRONLY | OFlags::RDWR) {
        return Err(Errno::EINVAL);
    }
    if flags.contains(OFlags::TMPFILE_BIT) {
        let whole = flags.contains(OFlags::TMPFILE) && !flags.contains(OFlags::CREAT);
        return if whole && writes { Ok(flags) } else { Err(Errno::EINVAL) };
    }
    if flags.contains(OFlags::CREAT | OFlags::DIRECTORY) {
        return Err(Errno::EINVAL);
    }
    Ok(flags)
}

/// How the file system is asked to open.
#[inline]
fn rights(flags: OFlags) -> OpenFlags {
    let mut rights = OpenFlags::empty();
    rights.set(OpenFlags::READ, !flags.contains(OFlags::WRONLY));
    rights.set(OpenFlags::WRITE, flags.intersects(OFlags::WRONLY | OFlags::RDWR));
    rights.set(OpenFlags::APPEND, flags.contains(OFlags::APPEND));
    rights.set(OpenFlags::TRUNC, flags.contains(OFlags::TRUNC));
    rights.set(OpenFlags::EXCL, flags.contains(OFlags::CREAT | OFlags::EXCL));
    rights.set(OpenFlags::NOATIME, flags.contains(OFlags::NOATIME));
    rights
}
