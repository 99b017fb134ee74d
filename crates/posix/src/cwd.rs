//! The working directory.

use alloc::vec::Vec;

use atoll_vfs::{Errno, FileSystem, FileType, Handle, Ino, Name, Result};

use crate::flags::{AT_FDCWD, AccessMode, AtFlags};
use crate::policy::Policy;
use crate::table::Held;
use crate::{Clock, Posix};

/// The most directories between the working directory and the root.
const DEPTH_MAX: usize = 1 << 14;

/// Where relative paths begin.
#[derive(Debug)]
pub(crate) struct WorkingDirectory {
    pub ino: Ino,
    /// Keeps the directory from going away when it is removed; the root cannot be.
    handle: Option<Handle>,
    /// The path that [`Posix::getcwd`] found last: tried first the next time.
    path: Vec<u8>,
}

impl WorkingDirectory {
    pub fn root() -> Self {
        WorkingDirectory { ino: Ino::ROOT, handle: None, path: Vec::new() }
    }
}

impl<F: FileSystem, C: Clock, P: Policy> Posix<F, C, P> {
    /// chdir(2).
    ///
    /// # Errors
    /// Those of chdir(2).
    pub fn chdir(&mut self, path: &[u8]) -> Result<()> {
        let attr = self.find(AT_FDCWD, path, AtFlags::empty())?;
        if attr.file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        if P::CHECKS {
            self.policy.access(self.credentials, &attr, AccessMode::EXECUTE)?;
        }
        self.enter_cwd(attr.ino)
    }

    /// fchdir(2).
    ///
    /// # Errors
    /// `EBADF`, `ENOTDIR`, `EACCES`.
    pub fn fchdir(&mut self, fd: i32) -> Result<()> {
        let file = self.table.get(fd)?;
        let Held::Directory(_) = file.held else { return Err(Errno::ENOTDIR) };
        let ino = file.ino;
        if P::CHECKS {
            let attr = self.getattr(ino)?;
            self.policy.access(self.credentials, &attr, AccessMode::EXECUTE)?;
        }
        self.enter_cwd(ino)
    }

    fn enter_cwd(&mut self, ino: Ino) -> Result<()> {
        let cx = self.context();
        let handle = if ino == Ino::ROOT { None } else { Some(self.fs.opendir(&cx, ino)?) };
        self.leave_cwd();
        self.cwd.ino = ino;
        self.cwd.handle = handle;
        Ok(())
    }

    /// Goes to the root.
    pub(crate) fn leave_cwd(&mut self) {
        let cx = self.context();
        if let Some(handle) = self.cwd.handle.take() {
            // The directory was only listed, so nothing can be lost by a failure.
            let _ = self.fs.releasedir(&cx, self.cwd.ino, handle);
        }
        self.cwd.ino = Ino::ROOT;
    }

    /// getcwd(3): the absolute path of the working directory, without symbolic links.
    ///
    /// # Errors
    /// `ENOENT` if it was removed; `ENAMETOOLONG` if it lies below more than 16,384 others.
    pub fn getcwd(&mut self) -> Result<&[u8]> {
        let known = core::mem::take(&mut self.cwd.path);
        self.cwd.path = match self.leads_to_cwd(&known) {
            true => known,
            false => self.climb()?,
        };
        Ok(&self.cwd.path)
    }

    /// Whether `path`, absolute and without symbolic links when it was found, still is right.
    fn leads_to_cwd(&mut self, path: &[u8]) -> bool {
        let cx = self.reading();
        let mut ino = Ino::ROOT;
        for component in path.split(|&b| b == b'/').filter(|c| !c.is_empty()) {
            let attr = Name::new(component).and_then(|name| self.fs.lookup(&cx, ino, name));
            match attr {
                Ok(attr) if attr.file_type() == FileType::Directory => ino = attr.ino,
                _ => return false,
            }
        }
        !path.is_empty() && ino == self.cwd.ino
    }

    /// Finds the path from the working directory upwards.
    fn climb(&mut self) -> Result<Vec<u8>> {
        let cx = self.reading();
        let mut names = Vec::new();
        let mut ino = self.cwd.ino;
        while ino != Ino::ROOT {
            // A file system that lies has no root above a directory.
            if names.len() == DEPTH_MAX {
                return Err(Errno::ENAMETOOLONG);
            }
            let gone = |_| Errno::ENOENT;
            if self.fs.getattr(&cx, ino).map_err(gone)?.nlink == 0 {
                return Err(Errno::ENOENT);
            }
            let parent = self.fs.lookup(&cx, ino, Name::new(b"..")?)?.ino;
            let mut name = Vec::new();
            self.name_of(parent, ino, &mut name)?;
            names.push(name);
            ino = parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }
}
