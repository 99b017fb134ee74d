//! New files that get their name once they are what it says: made and locked beside it, so that
//! nobody meets a file that is not ready, and nobody's file is replaced or removed.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::error::{OpenError, host};

/// Symbolic links that are followed to a name, as the kernel does.
const LINKS_MAX: u32 = 40;

/// A new, empty file beside the name that it is to get. Without [`give`](NewFile::give) it is
/// removed when this is dropped; one that a killed process leaves is named `.atoll-new-...`.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    name: PathBuf,
}

impl NewFile {
    /// Makes a file that is to be named `name`, or if that is a symbolic link which leads nowhere,
    /// what it leads to.
    ///
    /// # Errors
    /// `Exists` if something has that name; the host's.
    pub fn make(name: &Path) -> Result<NewFile, OpenError> {
        let name = followed(name)?;
        if rustix::fs::lstat(&name).is_ok() {
            return Err(OpenError::Exists);
        }
        let mut number = 0;
        loop {
            let beside = OsString::from(format!(".atoll-new-{}-{number}", std::process::id()));
            let path = name.with_file_name(beside);
            match exclusively(&path) {
                Err(Errno::EXIST) => number += 1,
                made => return made.map_err(host("open")).map(|_| NewFile { path, name }),
            }
        }
    }

    /// Where it is meanwhile.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name, if nothing has it.
    ///
    /// # Errors
    /// `Exists` if something has; the host's. The file is removed then.
    pub fn give(self) -> Result<(), OpenError> {
        let (path, name) = (&self.path, &self.name);
        match rustix::fs::renameat_with(CWD, path, CWD, name, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
            Ok(()) => {
                // The name beside is another's from now on.
                std::mem::forget(self);
                return Ok(());
            }
            Err(errno) => return Err(host("rename")(errno)),
        }
        // A file system of the network, or of old. The other name is removed on drop.
        match rustix::fs::link(path, name) {
            Err(Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP | Errno::MLINK) => {}
            linked => return linked.map_err(host("link")),
        }
        // Neither: the name is taken by a file of our own, which is replaced.
        exclusively(name).map_err(host("open"))?;
        rustix::fs::rename(path, name).map_err(host("rename"))?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Nobody else's: this process made it.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn exclusively(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))
}

/// The path that the symbolic links at `name` lead to.
fn followed(name: &Path) -> Result<PathBuf, OpenError> {
    let mut name = name.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(link) = std::fs::read_link(&name) else { return Ok(name) };
        // From the directory that the link is in.
        name.pop();
        name.push(link);
    }
    Err(host("open")(Errno::LOOP))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name is whoever's has it, and what was made for it is gone or has it.
    #[test]
    fn a_name_is_given_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let (first, second) = (NewFile::make(&at("f")).unwrap(), NewFile::make(&at("f")).unwrap());
        std::fs::write(first.path(), "first").unwrap();
        assert_eq!((names(), at("f").exists()), (2, false));
        first.give().unwrap();
        assert_eq!(second.give(), Err(OpenError::Exists));
        assert_eq!(names(), 1);
        assert_eq!(std::fs::read(at("f")).unwrap(), b"first");
        assert_eq!(NewFile::make(&at("f")).err(), Some(OpenError::Exists));
        drop(NewFile::make(&at("g")).unwrap());
        assert_eq!(names(), 1);
        assert_eq!(NewFile::make(&at("no/g")).err(), Some(OpenError::NotFound));
        // Links stay, and lead to what is made.
        std::fs::create_dir(at("sub")).unwrap();
        std::os::unix::fs::symlink("sub/aim", at("one")).unwrap();
        std::os::unix::fs::symlink("one", at("two")).unwrap();
        NewFile::make(&at("two")).unwrap().give().unwrap();
        assert!(at("two").is_symlink() && at("one").is_symlink() && at("sub/aim").is_file());
        assert_eq!(NewFile::make(&at("two")).err(), Some(OpenError::Exists));
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        assert!(NewFile::make(&at("loop")).is_err() && at("loop").is_symlink());
    }
}
