//! The tree of files in a volume: the POSIX calls, for this process's user.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use atoll_posix::attributes::Target;
use atoll_posix::{AT_FDCWD, AtFlags, Credentials, OFlags, Options, PATH_MAX, Posix, Whence};
use atoll_vfs::{
    Attr, Errno, FileSystem, FileType, Result, SetTime, Timespec, XATTR_LIST_MAX, XATTR_SIZE_MAX,
    XattrFlags,
};

use super::{Meta, Tree};

/// A volume's tree of files, used by this process's user.
pub type VolumeTree<F> = Posix<F, fn() -> Timespec>;

/// The tree of `fs`.
pub fn tree<F: FileSystem>(fs: F) -> VolumeTree<F> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let credentials = Credentials { uid, gid };
    let options = Options { umask: 0, credentials, ..Options::default() };
    Posix::new(fs, atoll_host::server::now, &options)
}

/// A file system's error as the system's of the same number.
pub fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw())
}

/// The path as the calls take it.
pub fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// The names in the open directory `fd`, without the dots, sorted.
pub fn names<F: FileSystem>(tree: &mut VolumeTree<F>, fd: i32) -> Result<Vec<OsString>> {
    let mut stream = tree.fdopendir(fd)?;
    let mut names = Vec::new();
    while let Some(entry) = stream.next(tree)? {
        if !matches!(entry.name, b"." | b"..") {
            names.push(OsStr::from_bytes(entry.name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The bytes with which `call` fills a buffer of `len` bytes.
fn filled(len: usize, call: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut buf = vec![0; len];
    let len = call(&mut buf)?;
    buf.truncate(len);
    Ok(buf)
}

/// `path` itself, if it is a symbolic link.
fn unfollowed(path: &Path) -> Target<'_> {
    Target::Path(AT_FDCWD, bytes(path), AtFlags::SYMLINK_NOFOLLOW)
}

impl<F: FileSystem> Tree for VolumeTree<F> {
    fn meta(&mut self, path: &Path, follow: bool) -> io::Result<Meta> {
        let path = bytes(path);
        let attr = if follow { self.stat(path) } else { self.lstat(path) }.map_err(error)?;
        Ok(Meta { attr, device: 0 })
    }

    fn list(&mut self, path: &Path) -> io::Result<Vec<OsString>> {
        let fd = self.open(bytes(path), OFlags::DIRECTORY, 0).map_err(error)?;
        let names = names(self, fd).map_err(error);
        self.close(fd).map_err(error)?;
        names
    }

    fn read_link(&mut self, path: &Path) -> io::Result<OsString> {
        let target = filled(PATH_MAX, |buf| self.readlinkat(AT_FDCWD, bytes(path), buf));
        target.map(OsString::from_vec).map_err(error)
    }

    fn open(&mut self, path: &Path) -> io::Result<i32> {
        self.open(bytes(path), OFlags::empty(), 0).map_err(error)
    }

    fn create(&mut self, path: &Path, mode: u32) -> io::Result<i32> {
        let flags = OFlags::WRONLY | OFlags::CREAT | OFlags::EXCL;
        self.open(bytes(path), flags, mode).map_err(error)
    }

    fn overwrite(&mut self, path: &Path) -> io::Result<i32> {
        let flags = OFlags::WRONLY | OFlags::TRUNC;
        self.open(bytes(path), flags, 0).map_err(error)
    }

    fn read(&mut self, file: i32, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.pread(file, buf, offset as i64).map_err(error)
    }

    fn write(&mut self, file: i32, mut offset: u64, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let written = self.pwrite(file, data, offset as i64).map_err(error)?;
            data = &data[written..];
            offset += written as u64;
        }
        Ok(())
    }

    fn next_data(&mut self, file: i32, offset: u64) -> io::Result<Option<(u64, u64)>> {
        let start = match self.lseek(file, offset as i64, Whence::Data) {
            Ok(start) => start,
            Err(Errno::ENXIO) => return Ok(None),
            Err(errno) => return Err(error(errno)),
        };
        let end = self.lseek(file, start, Whence::Hole).map_err(error)?;
        Ok(Some((start as u64, end as u64)))
    }

    fn len(&mut self, file: i32) -> io::Result<u64> {
        self.fstat(file).map(|attr| attr.size).map_err(error)
    }

    fn set_len(&mut self, file: i32, len: u64) -> io::Result<()> {
        self.ftruncate(file, len as i64).map_err(error)
    }

    fn close(&mut self, file: i32) -> io::Result<()> {
        self.close(file).map_err(error)
    }

    fn make_dir(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        self.mkdir(bytes(path), mode).map_err(error)
    }

    fn make_link(&mut self, path: &Path, target: &OsStr) -> io::Result<()> {
        self.symlinkat(target.as_bytes(), AT_FDCWD, bytes(path)).map_err(error)
    }

    fn hard_link(&mut self, existing: &Path, path: &Path) -> io::Result<()> {
        let (existing, path) = (bytes(existing), bytes(path));
        self.linkat(AT_FDCWD, existing, AT_FDCWD, path, AtFlags::empty()).map_err(error)
    }

    fn make_node(&mut self, path: &Path, attr: &Attr) -> io::Result<()> {
        self.mknodat(AT_FDCWD, bytes(path), attr.mode, attr.rdev).map_err(error)
    }

    fn set_meta(&mut self, path: &Path, attr: &Attr, owner: bool) -> io::Result<()> {
        let target = unfollowed(path);
        if owner {
            self.chown(target, Some(attr.uid), Some(attr.gid)).map_err(error)?;
        }
        // After the owner, whose change takes the set-user-ID bit.
        if attr.file_type() != FileType::Symlink {
            self.chmod(target, attr.mode).map_err(error)?;
        }
        let times = [attr.atime, attr.mtime].map(|time| Some(SetTime::To(time)));
        self.utimens(target, times).map_err(error)
    }

    fn attributes(&mut self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let target = unfollowed(path);
        let names = filled(XATTR_LIST_MAX, |buf| self.listxattr(target, buf)).map_err(error)?;
        let user = names.split(|&b| b == 0).filter(|name| name.starts_with(b"user."));
        user.map(|name| {
            let value = filled(XATTR_SIZE_MAX, |buf| self.getxattr(target, name, buf));
            Ok((OsStr::from_bytes(name).to_owned(), value.map_err(error)?))
        })
        .collect()
    }

    fn set_attribute(&mut self, path: &Path, name: &OsStr, value: &[u8]) -> io::Result<()> {
        let flags = XattrFlags::empty();
        self.setxattr(unfollowed(path), name.as_bytes(), value, flags).map_err(error)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.rename(bytes(from), bytes(to)).map_err(error)
    }

    fn is_volume(&mut self, _path: &Path) -> io::Result<bool> {
        // A file like any other: no command takes a volume within a volume.
        Ok(false)
    }

    fn unlink(&mut self, path: &Path) -> io::Result<()> {
        self.unlink(bytes(path)).map_err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_vfs::model::ModelFs;

    #[test]
    fn one_tree_of_a_volume() {
        let p = Path::new;
        let mut volume = tree(ModelFs::default());
        let tree: &mut dyn Tree = &mut volume;
        tree.make_dir(p("/a"), 0o755).unwrap();
        tree.make_link(p("/abs"), "/a/".as_ref()).unwrap();
        assert_eq!(tree.read_link(p("/abs")).unwrap(), "/a/");
        assert_eq!(tree.meta(p("/abs"), false).unwrap().file_type(), FileType::Symlink);
        let file = tree.create(p("/abs/f"), 0o600).unwrap();
        tree.write(file, 5000, b"end").unwrap();
        tree.set_len(file, 100_000).unwrap();
        tree.close(file).unwrap();
        let file = tree.open(p("/a/f")).unwrap();
        let (start, end) = tree.next_data(file, 0).unwrap().unwrap();
        assert!(start <= 5000 && (5003..100_000).contains(&end));
        assert_eq!(tree.next_data(file, end).unwrap(), None);
        let mut buf = [0; 8];
        assert_eq!(tree.read(file, 5000, &mut buf).unwrap(), 8);
        assert_eq!(&buf, b"end\0\0\0\0\0");
        tree.close(file).unwrap();
        tree.set_attribute(p("/a/f"), "user.x".as_ref(), b"value").unwrap();
        let attributes = tree.attributes(p("/a/f")).unwrap();
        assert_eq!(attributes, [("user.x".into(), b"value".to_vec())]);
        let mut attr = tree.meta(p("/a/f"), true).unwrap().attr;
        (attr.mode, attr.uid, attr.gid) = (FileType::Regular.mode_bits() | 0o6755, 7, 8);
        attr.mtime = Timespec { sec: 5, nsec: 6 };
        tree.set_meta(p("/a/f"), &attr, true).unwrap();
        let set = tree.meta(p("/a/f"), true).unwrap();
        let told = |attr: &Attr| (attr.mode, attr.uid, attr.gid, attr.mtime);
        assert_eq!(told(&set), told(&attr));
        assert_eq!(tree.list(p("/abs")).unwrap(), ["f"]);
        let refused = tree.list(p("/a/f")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::ENOTDIR.raw()));
    }
}
