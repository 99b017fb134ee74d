//! The system's own tree of files.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use atoll_vfs::{Attr, FileType, Ino, Timespec};
use rustix::fs::{AtFlags, CWD, Mode, SeekFrom, Timestamps, XattrFlags};

use super::{Meta, Tree};
use crate::volume;

/// The system's file tree, as this process sees it.
#[derive(Default)]
pub struct HostTree {
    /// The open files, by their descriptors.
    open: HashMap<i32, File>,
}

impl HostTree {
    fn file(&self, file: i32) -> io::Result<&File> {
        self.open.get(&file).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn opened(&mut self, file: File) -> i32 {
        let descriptor = file.as_raw_fd();
        self.open.insert(descriptor, file);
        descriptor
    }
}

fn timespec(time: Timespec) -> rustix::fs::Timespec {
    rustix::fs::Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() }
}

impl Tree for HostTree {
    fn meta(&mut self, path: &Path, follow: bool) -> io::Result<Meta> {
        let found = if follow { path.metadata()? } else { path.symlink_metadata()? };
        let time = |sec, nsec| Timespec { sec, nsec: nsec as u32 };
        let attr = Attr {
            ino: Ino(found.ino()),
            mode: found.mode(),
            nlink: found.nlink() as u32,
            uid: found.uid(),
            gid: found.gid(),
            // As the kernel has it, which is the lower half of what C has.
            rdev: found.rdev() as u32,
            size: found.size(),
            blocks: found.blocks(),
            atime: time(found.atime(), found.atime_nsec()),
            mtime: time(found.mtime(), found.mtime_nsec()),
            ctime: time(found.ctime(), found.ctime_nsec()),
            btime: Timespec::default(),
        };
        Ok(Meta { attr, device: found.dev() })
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

    fn open(&mut self, path: &Path) -> io::Result<i32> {
        let file = File::open(path)?;
        Ok(self.opened(file))
    }

    fn create(&mut self, path: &Path, mode: u32) -> io::Result<i32> {
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        Ok(self.opened(file))
    }

    fn overwrite(&mut self, path: &Path) -> io::Result<i32> {
        let file = OpenOptions::new().write(true).truncate(true).open(path)?;
        Ok(self.opened(file))
    }

    fn read(&mut self, file: i32, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let file = self.file(file)?;
        loop {
            match file.read_at(buf, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn write(&mut self, file: i32, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut file = self.file(file)?;
        match file.write_all_at(data, offset) {
            // Pipes and terminals have no offsets; what is written to them comes in order.
            Err(error) if error.raw_os_error() == Some(libc::ESPIPE) => file.write_all(data),
            written => written,
        }
    }

    fn next_data(&mut self, file: i32, offset: u64) -> io::Result<Option<(u64, u64)>> {
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

    fn len(&mut self, file: i32) -> io::Result<u64> {
        Ok(self.file(file)?.metadata()?.len())
    }

    fn set_len(&mut self, file: i32, len: u64) -> io::Result<()> {
        self.file(file)?.set_len(len)
    }

    fn close(&mut self, file: i32) -> io::Result<()> {
        self.open.remove(&file).map(drop).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn make_dir(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::mkdir(path, Mode::from_raw_mode(mode))?)
    }

    fn make_link(&mut self, path: &Path, target: &OsStr) -> io::Result<()> {
        std::os::unix::fs::symlink(target, path)
    }

    fn hard_link(&mut self, existing: &Path, path: &Path) -> io::Result<()> {
        std::fs::hard_link(existing, path)
    }

    fn make_node(&mut self, path: &Path, attr: &Attr) -> io::Result<()> {
        let kind = rustix::fs::FileType::from_raw_mode(attr.mode);
        Ok(rustix::fs::mknodat(
            CWD,
            path,
            kind,
            Mode::from_raw_mode(attr.mode & 0o7777),
            attr.rdev.into(),
        )?)
    }

    fn set_meta(&mut self, path: &Path, attr: &Attr, owner: bool) -> io::Result<()> {
        if owner {
            std::os::unix::fs::lchown(path, Some(attr.uid), Some(attr.gid))?;
        }
        // After the owner, whose change takes the set-user-ID bit.
        if attr.file_type() != FileType::Symlink {
            std::fs::set_permissions(path, Permissions::from_mode(attr.mode & 0o7777))?;
        }
        let times = Timestamps {
            last_access: timespec(attr.atime),
            last_modification: timespec(attr.mtime),
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

    fn set_attribute(&mut self, path: &Path, name: &OsStr, value: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::lsetxattr(path, name.as_bytes(), value, XattrFlags::empty())?)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn is_volume(&mut self, path: &Path) -> io::Result<bool> {
        volume::is_volume(path)
    }

    fn unlink(&mut self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
}
