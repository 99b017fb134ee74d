//! The tree of files in a volume.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use atoll_vfs::{
    Attr, Context, Errno, FileSystem, FileType, Handle, Ino, Name, OpenFlags, SYMLINK_MAX, SeekTo,
    SetAttr, SetTime, Timespec, XattrFlags,
};

use super::{FileId, Meta, Tree};

/// How many symbolic links a path may lead through.
const LINKS_MAX: u32 = 40;

/// A file system's error as the system's of the same number.
pub fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw())
}

/// A volume's tree of files, used by this process's user.
pub struct VolumeTree<F: FileSystem> {
    fs: F,
    uid: u32,
    gid: u32,
    open: Vec<Option<(Ino, Handle)>>,
}

impl From<&Attr> for Meta {
    fn from(attr: &Attr) -> Meta {
        Meta {
            ino: attr.ino.0,
            kind: attr.file_type(),
            mode: attr.mode & 0o7777,
            nlink: attr.nlink.into(),
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            stored: attr.blocks * 512,
            rdev: attr.rdev.into(),
            atime: attr.atime,
            mtime: attr.mtime,
        }
    }
}

impl<F: FileSystem> VolumeTree<F> {
    /// The tree of `fs`.
    pub fn new(fs: F) -> Self {
        VolumeTree {
            fs,
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            open: Vec::new(),
        }
    }

    /// Gives the file system back.
    pub fn into_inner(self) -> F {
        self.fs
    }

    fn context(&self) -> Context {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Timespec { sec: since.as_secs() as i64, nsec: since.subsec_nanos() };
        Context { uid: self.uid, gid: self.gid, now }
    }

    /// Walks `path`. A final symbolic link is followed if `follow`.
    fn walk(&mut self, path: &Path, follow: bool) -> Result<Attr, Errno> {
        let cx = self.context();
        let mut links = 0;
        // Components still to be walked, the next one last.
        let mut ahead: Vec<Vec<u8>> = Vec::new();
        let push = |ahead: &mut Vec<Vec<u8>>, path: &[u8]| {
            let parts = path.split(|&b| b == b'/').filter(|part| !part.is_empty());
            ahead.extend(parts.map(<[u8]>::to_vec).rev());
        };
        let bytes = path.as_os_str().as_bytes();
        // A slash at the end asks for the directory that a link leads to.
        let follow = follow || bytes.ends_with(b"/");
        push(&mut ahead, bytes);
        let mut at = self.fs.getattr(&cx, Ino::ROOT)?;
        while let Some(part) = ahead.pop() {
            if at.file_type() != FileType::Directory {
                return Err(Errno::ENOTDIR);
            }
            let parent = at.ino;
            at = self.fs.lookup(&cx, at.ino, Name::new(&part)?)?;
            if at.file_type() == FileType::Symlink && (follow || !ahead.is_empty()) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::ELOOP);
                }
                let mut target = Vec::with_capacity(SYMLINK_MAX);
                self.fs.readlink(&cx, at.ino, &mut target)?;
                let from = if target.starts_with(b"/") { Ino::ROOT } else { parent };
                at = self.fs.getattr(&cx, from)?;
                push(&mut ahead, &target);
            }
        }
        Ok(at)
    }

    /// The directory that holds the last component of `path`, and that component.
    fn parent<'p>(&mut self, path: &'p Path) -> Result<(Ino, Name<'p>), Errno> {
        let name = path.file_name().ok_or(Errno::EEXIST)?;
        let dir = self.walk(path.parent().unwrap_or(Path::new("/")), true)?;
        Ok((dir.ino, Name::new(name.as_bytes())?))
    }

    fn handle(&self, file: FileId) -> Result<(Ino, Handle), Errno> {
        self.open.get(file.0).copied().flatten().ok_or(Errno::EBADF)
    }

    fn opened(&mut self, ino: Ino, handle: Handle) -> FileId {
        self.open.push(Some((ino, handle)));
        FileId(self.open.len() - 1)
    }

    fn create_file(&mut self, path: &Path, mode: u32) -> Result<FileId, Errno> {
        let cx = self.context();
        let flags = OpenFlags::WRITE | OpenFlags::TRUNC;
        // What a link leads to is written, if it is there.
        if let Ok(attr) = self.walk(path, true) {
            let handle = self.fs.open(&cx, attr.ino, flags)?;
            return Ok(self.opened(attr.ino, handle));
        }
        let (dir, name) = self.parent(path)?;
        let (attr, handle) = self.fs.create(&cx, dir, name, mode, flags)?;
        Ok(self.opened(attr.ino, handle))
    }

    fn entries(&mut self, path: &Path) -> Result<Vec<OsString>, Errno> {
        let cx = self.context();
        let attr = self.walk(path, true)?;
        let handle = self.fs.opendir(&cx, attr.ino)?;
        let mut names = Vec::new();
        let listed = self.fs.readdir(&cx, attr.ino, handle, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(OsString::from_vec(entry.name.to_vec()));
            }
            true
        });
        self.fs.releasedir(&cx, attr.ino, handle)?;
        listed?;
        names.sort();
        Ok(names)
    }
}

impl<F: FileSystem> Tree for VolumeTree<F> {
    fn meta(&mut self, path: &Path, follow: bool) -> io::Result<Meta> {
        self.walk(path, follow).map(|attr| Meta::from(&attr)).map_err(error)
    }

    fn list(&mut self, path: &Path) -> io::Result<Vec<OsString>> {
        self.entries(path).map_err(error)
    }

    fn read_link(&mut self, path: &Path) -> io::Result<OsString> {
        let cx = self.context();
        let mut target = Vec::new();
        let ino = self.walk(path, false).map_err(error)?.ino;
        self.fs.readlink(&cx, ino, &mut target).map_err(error)?;
        Ok(OsString::from_vec(target))
    }

    fn open(&mut self, path: &Path) -> io::Result<FileId> {
        let cx = self.context();
        let ino = self.walk(path, true).map_err(error)?.ino;
        let handle = self.fs.open(&cx, ino, OpenFlags::READ).map_err(error)?;
        Ok(self.opened(ino, handle))
    }

    fn create(&mut self, path: &Path, mode: u32) -> io::Result<FileId> {
        self.create_file(path, mode).map_err(error)
    }

    fn read(&mut self, file: FileId, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let cx = self.context();
        let (ino, handle) = self.handle(file).map_err(error)?;
        self.fs.read(&cx, ino, handle, offset, buf).map_err(error)
    }

    fn write(&mut self, file: FileId, offset: u64, data: &[u8]) -> io::Result<()> {
        let cx = self.context();
        let (ino, handle) = self.handle(file).map_err(error)?;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let written = self.fs.write(&cx, ino, handle, at, &data[done..]).map_err(error)?;
            if written.len == 0 {
                return Err(error(Errno::ENOSPC));
            }
            done += written.len;
        }
        Ok(())
    }

    fn next_data(&mut self, file: FileId, offset: u64) -> io::Result<Option<(u64, u64)>> {
        let cx = self.context();
        let (ino, handle) = self.handle(file).map_err(error)?;
        let start = match self.fs.seek(&cx, ino, handle, offset, SeekTo::Data) {
            Ok(start) => start,
            Err(Errno::ENXIO) => return Ok(None),
            Err(errno) => return Err(error(errno)),
        };
        let end = self.fs.seek(&cx, ino, handle, start, SeekTo::Hole).map_err(error)?;
        Ok(Some((start, end)))
    }

    fn set_len(&mut self, file: FileId, len: u64) -> io::Result<()> {
        let cx = self.context();
        let (ino, handle) = self.handle(file).map_err(error)?;
        let set = SetAttr { size: Some(len), ..SetAttr::default() };
        self.fs.setattr(&cx, ino, Some(handle), &set).map(drop).map_err(error)
    }

    fn close(&mut self, file: FileId) -> io::Result<()> {
        let cx = self.context();
        let (ino, handle) = self.handle(file).map_err(error)?;
        self.open[file.0] = None;
        while let Some(None) = self.open.last() {
            self.open.pop();
        }
        self.fs.release(&cx, ino, handle).map_err(error)
    }

    fn make_dir(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        let cx = self.context();
        let (dir, name) = self.parent(path).map_err(error)?;
        self.fs.mkdir(&cx, dir, name, mode).map(drop).map_err(error)
    }

    fn make_link(&mut self, path: &Path, target: &OsString) -> io::Result<()> {
        let cx = self.context();
        let (dir, name) = self.parent(path).map_err(error)?;
        self.fs.symlink(&cx, dir, name, target.as_bytes()).map(drop).map_err(error)
    }

    fn hard_link(&mut self, existing: &Path, path: &Path) -> io::Result<()> {
        let cx = self.context();
        let ino = self.walk(existing, false).map_err(error)?.ino;
        let (dir, name) = self.parent(path).map_err(error)?;
        self.fs.link(&cx, ino, dir, name).map(drop).map_err(error)
    }

    fn make_node(&mut self, path: &Path, meta: &Meta) -> io::Result<()> {
        let cx = self.context();
        let (dir, name) = self.parent(path).map_err(error)?;
        let mode = meta.kind.mode_bits() | meta.mode;
        let rdev = u32::try_from(meta.rdev).map_err(|_| error(Errno::EOVERFLOW))?;
        self.fs.mknod(&cx, dir, name, mode, rdev).map(drop).map_err(error)
    }

    fn set_meta(&mut self, path: &Path, meta: &Meta, owner: bool) -> io::Result<()> {
        let cx = self.context();
        let ino = self.walk(path, false).map_err(error)?.ino;
        let set = SetAttr {
            mode: (meta.kind != FileType::Symlink).then_some(meta.mode),
            uid: owner.then_some(meta.uid),
            gid: owner.then_some(meta.gid),
            size: None,
            atime: Some(SetTime::To(meta.atime)),
            mtime: Some(SetTime::To(meta.mtime)),
        };
        self.fs.setattr(&cx, ino, None, &set).map(drop).map_err(error)
    }

    fn attributes(&mut self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let cx = self.context();
        let ino = self.walk(path, false).map_err(error)?.ino;
        let mut names = Vec::new();
        self.fs.listxattr(&cx, ino, &mut names).map_err(error)?;
        let user = names.split(|&b| b == 0).filter(|name| name.starts_with(b"user."));
        user.map(|name| {
            let mut value = Vec::new();
            self.fs.getxattr(&cx, ino, name, &mut value).map_err(error)?;
            Ok((OsStr::from_bytes(name).to_owned(), value))
        })
        .collect()
    }

    fn set_attribute(&mut self, path: &Path, name: &OsString, value: &[u8]) -> io::Result<()> {
        let cx = self.context();
        let ino = self.walk(path, false).map_err(error)?.ino;
        let flags = XattrFlags::empty();
        self.fs.setxattr(&cx, ino, name.as_bytes(), value, flags).map_err(error)
    }

    fn unlink(&mut self, path: &Path) -> io::Result<()> {
        let cx = self.context();
        let (dir, name) = self.parent(path).map_err(error)?;
        self.fs.unlink(&cx, dir, name).map_err(error)
    }

    fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        let cx = self.context();
        let (dir, name) = self.parent(path).map_err(error)?;
        self.fs.rmdir(&cx, dir, name).map_err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_vfs::model::ModelFs;

    #[test]
    fn walking_links() {
        let mut tree = VolumeTree::new(ModelFs::default());
        let p = Path::new;
        tree.make_dir(p("/a"), 0o755).unwrap();
        tree.make_dir(p("/a/b"), 0o755).unwrap();
        tree.make_link(p("/a/up"), &"../a/b".into()).unwrap();
        tree.make_link(p("/abs"), &"/a/up/".into()).unwrap();
        tree.make_link(p("/loop"), &"loop".into()).unwrap();
        let b = tree.meta(p("/a/b"), false).unwrap();
        assert_eq!(tree.meta(p("/abs"), true).unwrap(), b);
        assert_eq!(tree.meta(p("/abs/../b/."), false).unwrap(), b);
        assert_eq!(tree.meta(p("/a/up/"), false).unwrap(), b);
        assert_eq!(tree.meta(p("/a/up"), false).unwrap().kind, FileType::Symlink);
        let errno = |result: io::Result<Meta>| result.unwrap_err().raw_os_error();
        assert_eq!(errno(tree.meta(p("/loop"), true)), Some(Errno::ELOOP.raw()));
        assert_eq!(errno(tree.meta(p("/none/x"), true)), Some(Errno::ENOENT.raw()));
        let file = tree.create(p("/abs/f"), 0o600).unwrap();
        tree.write(file, 5000, b"end").unwrap();
        tree.close(file).unwrap();
        assert_eq!(tree.meta(p("/a/b/f"), false).unwrap().size, 5003);
        assert_eq!(errno(tree.meta(p("/a/b/f/x"), false)), Some(Errno::ENOTDIR.raw()));
        assert_eq!(tree.list(p("/a/up")).unwrap(), ["f"]);
    }
}
