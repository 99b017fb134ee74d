//! Making, moving and removing names.

use alloc::vec::Vec;

use atoll_vfs::{Attr, Errno, FileSystem, FileType, Name, RenameFlags, Result};

use crate::flags::{AT_FDCWD, AccessMode, AtFlags, OFlags};
use crate::policy::Policy;
use crate::walk::{Last, Walk};
use crate::{Clock, Posix};

impl<F: FileSystem, C: Clock, P: Policy> Posix<F, C, P> {
    /// Walks to where a new name is to be made. `directory` allows slashes after the name.
    fn new_name<'p>(&mut self, dirfd: i32, path: &'p [u8], directory: bool) -> Result<Walk<'p>> {
        let mut walk = self.walk(dirfd, path)?;
        if self.last_of(&mut walk)? != Last::Name {
            return Err(Errno::EEXIST);
        }
        if walk.trailing && !directory {
            let cx = self.reading();
            let found = self.fs.lookup(&cx, walk.dir, walk.name()?);
            return Err(found.map_or_else(|error| error, |_| Errno::EEXIST));
        }
        if P::CHECKS {
            // The error for an existing name comes before that for a directory without write
            // permission.
            let cx = self.reading();
            if self.fs.lookup(&cx, walk.dir, walk.name()?).is_ok() {
                return Err(Errno::EEXIST);
            }
            self.check_dir(&mut walk, AccessMode::WRITE)?;
        }
        Ok(walk)
    }

    /// Asks the policy whether the name that `walk` ends in may be removed.
    fn check_removal(&mut self, walk: &mut Walk<'_>) -> Result<()> {
        if !P::CHECKS {
            return Ok(());
        }
        let cx = self.reading();
        let victim = self.fs.lookup(&cx, walk.dir, walk.name()?)?;
        self.check_dir(walk, AccessMode::WRITE)?;
        match &walk.dir_attr {
            Some(parent) => self.policy.remove(self.credentials, parent, &victim),
            None => Ok(()),
        }
    }

    /// mkdir(2).
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn mkdir(&mut self, path: &[u8], mode: u32) -> Result<()> {
        self.mkdirat(AT_FDCWD, path, mode)
    }

    /// mkdirat(2).
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn mkdirat(&mut self, dirfd: i32, path: &[u8], mode: u32) -> Result<()> {
        let walk = self.new_name(dirfd, path, true)?;
        let cx = self.context();
        self.fs.mkdir(&cx, walk.dir, walk.name()?, mode & 0o1777 & !self.umask).map(drop)
    }

    /// mknodat(2): a regular file, pipe, socket or device.
    ///
    /// # Errors
    /// Those of mknod(2); `EPERM` for a directory, `EINVAL` for no type at all.
    pub fn mknodat(&mut self, dirfd: i32, path: &[u8], mode: u32, rdev: u32) -> Result<()> {
        let format = match mode & 0o170000 {
            0 => FileType::Regular.mode_bits(),
            format => format,
        };
        match FileType::from_mode(format) {
            None | Some(FileType::Symlink) => return Err(Errno::EINVAL),
            Some(FileType::Directory) => return Err(Errno::EPERM),
            Some(_) => (),
        }
        let walk = self.new_name(dirfd, path, false)?;
        let cx = self.context();
        let mode = format | mode & 0o7777 & !self.umask;
        self.fs.mknod(&cx, walk.dir, walk.name()?, mode, rdev).map(drop)
    }

    /// symlinkat(2).
    ///
    /// # Errors
    /// Those of symlink(2).
    pub fn symlinkat(&mut self, target: &[u8], dirfd: i32, path: &[u8]) -> Result<()> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.len() >= crate::PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let walk = self.new_name(dirfd, path, false)?;
        let cx = self.context();
        self.fs.symlink(&cx, walk.dir, walk.name()?, target).map(drop)
    }

    /// linkat(2).
    ///
    /// # Errors
    /// Those of link(2).
    pub fn linkat(
        &mut self,
        old_dirfd: i32,
        old_path: &[u8],
        new_dirfd: i32,
        new_path: &[u8],
        flags: AtFlags,
    ) -> Result<()> {
        if !(AtFlags::SYMLINK_FOLLOW | AtFlags::EMPTY_PATH).contains(flags) {
            return Err(Errno::EINVAL);
        }
        let mut find = flags & AtFlags::EMPTY_PATH;
        find.set(AtFlags::SYMLINK_NOFOLLOW, !flags.contains(AtFlags::SYMLINK_FOLLOW));
        let attr = self.find(old_dirfd, old_path, find)?;
        let walk = self.new_name(new_dirfd, new_path, false)?;
        let cx = self.context();
        if attr.file_type() == FileType::Directory {
            // An error of the new name comes first.
            return Err(match self.fs.lookup(&cx, walk.dir, walk.name()?) {
                Ok(_) => Errno::EEXIST,
                Err(Errno::ENOENT) => Errno::EPERM,
                Err(error) => error,
            });
        }
        self.fs.link(&cx, attr.ino, walk.dir, walk.name()?).map(drop)
    }

    /// readlinkat(2): puts as much of the target as fits into `buf`. An empty path means `dirfd`
    /// itself.
    ///
    /// # Errors
    /// Those of readlink(2): `EINVAL` for an inode that is no symbolic link or an empty buffer.
    pub fn readlinkat(&mut self, dirfd: i32, path: &[u8], buf: &mut [u8]) -> Result<usize> {
        if buf.is_empty() {
            return Err(Errno::EINVAL);
        }
        let attr = self.find(dirfd, path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
        if attr.file_type() != FileType::Symlink {
            return Err(if path.is_empty() { Errno::ENOENT } else { Errno::EINVAL });
        }
        let cx = self.reading();
        self.scratch.clear();
        self.fs.readlink(&cx, attr.ino, &mut self.scratch)?;
        self.accessed(attr.ino, OFlags::empty());
        let n = self.scratch.len().min(buf.len());
        buf[..n].copy_from_slice(&self.scratch[..n]);
        Ok(n)
    }

    /// unlink(2).
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn unlink(&mut self, path: &[u8]) -> Result<()> {
        self.unlinkat(AT_FDCWD, path, AtFlags::empty())
    }

    /// rmdir(2).
    ///
    /// # Errors
    /// Those of rmdir(2).
    pub fn rmdir(&mut self, path: &[u8]) -> Result<()> {
        self.unlinkat(AT_FDCWD, path, AtFlags::REMOVEDIR)
    }

    /// unlinkat(2), with REMOVEDIR for directories.
    ///
    /// # Errors
    /// Those of unlink(2) and rmdir(2).
    pub fn unlinkat(&mut self, dirfd: i32, path: &[u8], flags: AtFlags) -> Result<()> {
        let directory = match flags {
            AtFlags::REMOVEDIR => true,
            _ if flags.is_empty() => false,
            _ => return Err(Errno::EINVAL),
        };
        let mut walk = self.walk(dirfd, path)?;
        match (self.last_of(&mut walk)?, directory) {
            (Last::Name, _) => (),
            (_, false) => return Err(Errno::EISDIR),
            (Last::Root, true) => return Err(Errno::EBUSY),
            (Last::Dot, true) => return Err(Errno::EINVAL),
            (Last::DotDot, true) => return Err(Errno::ENOTEMPTY),
        }
        let cx = self.context();
        if walk.trailing && !directory {
            let attr = self.fs.lookup(&cx, walk.dir, walk.name()?)?;
            let is_dir = attr.file_type() == FileType::Directory;
            return Err(if is_dir { Errno::EISDIR } else { Errno::ENOTDIR });
        }
        self.check_removal(&mut walk)?;
        let name = walk.name()?;
        if directory {
            self.remembered.forget();
            self.fs.rmdir(&cx, walk.dir, name)
        } else {
            self.fs.unlink(&cx, walk.dir, name)
        }
    }

    /// rename(2).
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn rename(&mut self, old: &[u8], new: &[u8]) -> Result<()> {
        self.renameat2(AT_FDCWD, old, AT_FDCWD, new, RenameFlags::empty())
    }

    /// renameat2(2).
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn renameat2(
        &mut self,
        old_dirfd: i32,
        old_path: &[u8],
        new_dirfd: i32,
        new_path: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        if !flags.agree() {
            return Err(Errno::EINVAL);
        }
        let mut old = self.walk(old_dirfd, old_path)?;
        let old_last = self.last_of(&mut old)?;
        let mut new = self.walk(new_dirfd, new_path)?;
        let new_last = self.last_of(&mut new)?;
        if old_last != Last::Name {
            return Err(Errno::EBUSY);
        }
        if new_last != Last::Name {
            let noreplace = flags.contains(RenameFlags::NOREPLACE);
            return Err(if noreplace { Errno::EEXIST } else { Errno::EBUSY });
        }
        let cx = self.context();
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if old.trailing || new.trailing || P::CHECKS || new.name().is_err() {
            let moved = self.fs.lookup(&cx, old.dir, old.name()?)?;
            let replaced = match self.fs.lookup(&cx, new.dir, new.name()?) {
                Err(Errno::ENOENT) if exchange => return Err(Errno::ENOENT),
                Err(Errno::ENOENT) => None,
                Ok(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EEXIST),
                found => Some(found?),
            };
            // Slashes after a name say that it is, or becomes, a directory.
            let is_dir = |attr: &Attr| attr.file_type() == FileType::Directory;
            let becomes_dir = match &replaced {
                Some(replaced) if exchange => is_dir(replaced),
                _ => is_dir(&moved),
            };
            if old.trailing && !is_dir(&moved) || new.trailing && !becomes_dir {
                return Err(Errno::ENOTDIR);
            }
            self.check_move(&mut old, &mut new, &moved, replaced.as_ref(), exchange)?;
        }
        self.remembered.forget();
        let renamed = self.fs.rename(&cx, old.dir, old.name()?, new.dir, new.name()?, flags);
        match renamed {
            // The error for an existing new name comes before that for one inside the old.
            Err(Errno::EINVAL) if flags.contains(RenameFlags::NOREPLACE) => {
                let exists = self.fs.lookup(&cx, new.dir, new.name()?).is_ok();
                Err(if exists { Errno::EEXIST } else { Errno::EINVAL })
            }
            renamed => renamed,
        }
    }

    fn check_move(
        &mut self,
        old: &mut Walk<'_>,
        new: &mut Walk<'_>,
        moved: &Attr,
        replaced: Option<&Attr>,
        exchange: bool,
    ) -> Result<()> {
        if !P::CHECKS {
            return Ok(());
        }
        self.check_removal(old)?;
        match replaced {
            Some(_) => self.check_removal(new)?,
            None => self.check_dir(new, AccessMode::WRITE)?,
        }
        // A directory that changes its parent has its `..` rewritten.
        let rewritten = |attr: &&Attr| attr.file_type() == FileType::Directory;
        if old.dir != new.dir {
            let other = if exchange { replaced } else { None };
            for attr in [Some(moved), other].into_iter().flatten().filter(rewritten) {
                self.policy.access(self.credentials, attr, AccessMode::WRITE)?;
            }
        }
        Ok(())
    }

    /// The name under which the directory `parent` holds `child`, a directory, appended to `name`.
    pub(crate) fn name_of(
        &mut self,
        parent: atoll_vfs::Ino,
        child: atoll_vfs::Ino,
        name: &mut Vec<u8>,
    ) -> Result<()> {
        let cx = self.reading();
        // One with its number first: listings of a file system may have other numbers.
        for by_number in [true, false] {
            let handle = self.fs.opendir(&cx, parent)?;
            let mut names = Vec::new();
            let listed = self.fs.readdir(&cx, parent, handle, 0, &mut |entry| {
                let dots = Name::new(entry.name).is_ok_and(Name::is_dot_or_dot_dot);
                let may_be = if by_number { entry.ino == child } else { true };
                if may_be && entry.file_type == FileType::Directory && !dots {
                    names.push(entry.name.to_vec());
                }
                !by_number || names.is_empty()
            });
            self.fs.releasedir(&cx, parent, handle)?;
            listed?;
            for called in &names {
                let found = match self.fs.lookup(&cx, parent, Name::new(called)?) {
                    Ok(attr) => attr.ino == child,
                    // Who may not search there can list all the same.
                    Err(error) => by_number && error == Errno::EACCES,
                };
                if found {
                    name.extend_from_slice(called);
                    return Ok(());
                }
            }
        }
        Err(Errno::ENOENT)
    }
}
