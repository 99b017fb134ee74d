//! The system's own tree of files.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use atoll_vfs::{FileType, Timespec};
use rustix::fs::{AtFlags, CWD, Mode, SeekFrom, Timestamps, XattrFlags};

use super::{FileId, Meta, Tree};

/// The system's file tree, as this process sees it.
#[derive(Default)]
pub struct HostTree {
    open: Vec<Option<File>>,
}

impl HostTree {
    fn file(&self, file: FileId) -> io::Result<&File> {
        self.open
            .get(file.0)
            .and_then(Option::as_ref)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn opened(&mut self, file: File) -> FileId {
        self.open.push(Some(file));
        FileId(self.open.len() - 1)
    }
}

fn timespec(time: Timespec) -> rustix::fs::Timespec {
    rustix::fs::Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() }
}

impl Tree for HostTree {
    fn meta(&mut self, path: &Path, follow: bool) -> io::Result<Meta> {
        let found = if follow { path.metadata()? } else { path.symlink_metadata()? };
        Ok(Meta {
            ino: found.ino(),
            kind: FileType::from_mode(found.mode()).unwrap_or(FileType::Regular),
            mode: found.mode() & 0o7777,
            nlink: found.nlink(),
            uid: found.uid(),
            gid: found.gid(),
            size: found.size(),
            stored: found.blocks() * 512,
            rdev: found.rdev(),
            atime: Timespec { sec: found.atime(), nsec: found.atime_nsec() as u32 },
            mtime: Timespec { sec: found.mtime(), nsec: found.mtime_nsec() as u32 },
        })
    }

    fn list(&mut self, path: &Path) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in path.read_dir()? {
            names.push(entry?.file_name());
        }
        names.sort();
        Ok(names)
    }

    fn read_link(&mut self, path: &Path) -> io::Result<OsString> {
        Ok(path.read_link()?.into_os_string())
    }

    fn open(&mut self, path: &Path) -> io::Result<FileId> {
        let file = File::open(path)?;
        Ok(self.opened(file))
    }

    fn create(&mut self, path: &Path, mode: u32) -> io::Result<FileId> {
        let file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
        Ok(self.opened(file))
    }

    fn read(&mut self, file: FileId, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let file = self.file(file)?;
        let mut done = 0;
        while done < buf.len() {
            match file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(got) => done += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write(&mut self, file: FileId, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file(file)?.write_all_at(data, offset)
    }

    fn next_data(&mut self, file: FileId, offset: u64) -> io::Result<Option<(u64, u64)>> {
        let file = self.file(file)?;
        let start = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            // A file system that does not know holes.
            Err(rustix::io::Errno::INVAL) => {
                let len = file.metadata()?.len();
                return Ok((offset < len).then_some((offset, len)));
            }
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        Ok(Some((start, end)))
    }

    fn set_len(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.file(file)?.set_len(len)
    }

    fn close(&mut self, file: FileId) -> io::Result<()> {
        self.file(file)?;
        self.open[file.0] = None;
        while let Some(None) = self.open.last() {
            self.open.pop();
        }
        Ok(())
    }

    fn make_dir(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::mkdir(path, Mode::from_raw_mode(mode))?)
    }

    fn make_link(&mut self, path: &Path, target: &OsString) -> io::Result<()> {
        std::os::unix::fs::symlink(target, path)
    }

    fn hard_link(&mut self, existing: &Path, path: &Path) -> io::Result<()> {
        std::fs::hard_link(existing, path)
    }

    fn make_node(&mut self, path: &Path, meta: &Meta) -> io::Result<()> {
        let kind = rustix::fs::FileType::from_raw_mode(meta.kind.mode_bits());
        Ok(rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(meta.mode), meta.rdev)?)
    }

    fn set_meta(&mut self, path: &Path, meta: &Meta, owner: bool) -> io::Result<()> {
        if owner {
            std::os::unix::fs::lchown(path, Some(meta.uid), Some(meta.gid))?;
        }
        // After the owner, whose change takes the set-user-ID bit.
        if meta.kind != FileType::Symlink {
            std::fs::set_permissions(path, Permissions::from_mode(meta.mode))?;
        }
        let times = Timestamps {
            last_access: timespec(meta.atime),
            last_modification: timespec(meta.mtime),
        };
        Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn attributes(&mut self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let mut names = vec![MaybeUninit::<u8>::uninit(); 65536];
        let names = match rustix::fs::llistxattr(path, &mut names) {
            Ok((names, _)) => names.to_vec(),
            Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let user = names.split(|&b| b == 0).filter(|name| name.starts_with(b"user."));
        user.map(|name| {
            let mut value = vec![MaybeUninit::<u8>::uninit(); 65536];
            let (value, _) = rustix::fs::lgetxattr(path, name, &mut value)?;
            Ok((OsString::from_vec(name.to_vec()), value.to_vec()))
        })
        .collect()
    }

    fn set_attribute(&mut self, path: &Path, name: &OsString, value: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::lsetxattr(path, name.as_bytes(), value, XattrFlags::empty())?)
    }

    fn unlink(&mut self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir(path)
    }
}
