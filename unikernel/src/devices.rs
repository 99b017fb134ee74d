//! Devices as files: what a program finds in `/dev`.
//!
//! The standard streams are opened here like any file, so that descriptors, dup(2) and redirections
//! need nothing of their own. They are found as regular files, which is what the POSIX layer opens,
//! and are character devices to who asks for the attributes of an open one.

use alloc::vec::Vec;

use atoll_vfs::{
    Attr, Context, DirEntry, Errno, FallocateMode, FileSystem, FileType, Handle, Ino, Name,
    OpenFlags, RenameFlags, Result, SeekTo, SetAttr, StatFs, Timespec, Written, XattrFlags,
};

/// What the machine has to offer to programs.
pub trait Machine {
    /// Waits for standard input, and takes what has come. 0: it has ended.
    ///
    /// # Errors
    /// `EIO`.
    fn input(&mut self, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `data` to standard output or, with `error`, to standard error.
    fn output(&mut self, data: &[u8], error: bool);

    /// Fills `buf` with random bytes.
    ///
    /// # Errors
    /// `EIO` where there are none.
    fn random(&mut self, buf: &mut [u8]) -> Result<()>;
}

/// The devices, each with its number as Linux has it (major, minor), by their inode numbers from 2
/// on.
const NODES: [(&[u8], u32); 8] = [
    (b"stdin", 0x0440),
    (b"stdout", 0x0440),
    (b"stderr", 0x0441),
    (b"tty", 0x0500),
    (b"null", 0x0103),
    (b"zero", 0x0105),
    (b"random", 0x0108),
    (b"urandom", 0x0109),
];
/// The inode number of the first.
const FIRST: u64 = 2;

/// The directory of devices.
#[derive(Debug)]
pub struct Devices<M> {
    machine: M,
    started: Timespec,
}

impl<M: Machine> Devices<M> {
    /// Those of `machine`, which exist since `now`.
    pub fn new(machine: M, now: Timespec) -> Self {
        Devices { machine, started: now }
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        let node = ino.0.checked_sub(FIRST).and_then(|index| NODES.get(index as usize));
        let (mode, nlink, rdev) = match node {
            Some((_, number)) => (FileType::CharDevice.mode_bits() | 0o666, 1, *number),
            None if ino == Ino::ROOT => (FileType::Directory.mode_bits() | 0o555, 2, 0),
            None => return Err(Errno::ESTALE),
        };
        let time = self.started;
        Ok(Attr {
            ino,
            mode,
            nlink,
            uid: 0,
            gid: 0,
            rdev,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        })
    }

    /// The name of a device by its inode number.
    fn name(ino: Ino) -> &'static [u8] {
        let node = ino.0.checked_sub(FIRST).and_then(|index| NODES.get(index as usize));
        node.map_or(b"", |(name, _)| name)
    }
}

impl<M: Machine> FileSystem for Devices<M> {
    fn lookup(&mut self, _: &Context, _: Ino, name: Name<'_>) -> Result<Attr> {
        if name.is_dot_or_dot_dot() {
            return self.attr(Ino::ROOT);
        }
        let index = NODES.iter().position(|(known, _)| *known == name.bytes());
        let attr = self.attr(Ino(FIRST + index.ok_or(Errno::ENOENT)? as u64))?;
        Ok(Attr { mode: FileType::Regular.mode_bits() | 0o666, ..attr })
    }

    fn getattr(&mut self, _: &Context, ino: Ino) -> Result<Attr> {
        self.attr(ino)
    }

    fn setattr(&mut self, _: &Context, ino: Ino, _: Option<Handle>, set: &SetAttr) -> Result<Attr> {
        // O_TRUNC and the like mean nothing to a device.
        let only_size = SetAttr { size: set.size, ..SetAttr::default() };
        if *set == only_size { self.attr(ino) } else { Err(Errno::EPERM) }
    }

    fn readlink(&mut self, _: &Context, _: Ino, _: &mut Vec<u8>) -> Result<()> {
        Err(Errno::EINVAL)
    }

    fn mknod(&mut self, _: &Context, _: Ino, _: Name<'_>, _: u32, _: u32) -> Result<Attr> {
        Err(Errno::EROFS)
    }

    fn mkdir(&mut self, _: &Context, _: Ino, _: Name<'_>, _: u32) -> Result<Attr> {
        Err(Errno::EROFS)
    }

    fn symlink(&mut self, _: &Context, _: Ino, _: Name<'_>, _: &[u8]) -> Result<Attr> {
        Err(Errno::EROFS)
    }

    fn unlink(&mut self, _: &Context, _: Ino, _: Name<'_>) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn rmdir(&mut self, _: &Context, _: Ino, _: Name<'_>) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn rename(
        &mut self,
        _: &Context,
        _: Ino,
        _: Name<'_>,
        _: Ino,
        _: Name<'_>,
        _: RenameFlags,
    ) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn link(&mut self, _: &Context, _: Ino, _: Ino, _: Name<'_>) -> Result<Attr> {
        Err(Errno::EROFS)
    }

    fn open(&mut self, _: &Context, ino: Ino, _: OpenFlags) -> Result<Handle> {
        if ino == Ino::ROOT { Err(Errno::EISDIR) } else { self.attr(ino).map(|_| Handle(0)) }
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        _: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        match self.lookup(cx, parent, name) {
            Ok(_) if flags.contains(OpenFlags::EXCL) => Err(Errno::EEXIST),
            Ok(attr) if attr.ino == Ino::ROOT => Err(Errno::EISDIR),
            Ok(attr) => Ok((attr, Handle(0))),
            Err(_) => Err(Errno::EROFS),
        }
    }

    fn tmpfile(&mut self, _: &Context, _: Ino, _: u32, _: OpenFlags) -> Result<(Attr, Handle)> {
        Err(Errno::EROFS)
    }

    fn read(&mut self, _: &Context, ino: Ino, _: Handle, _: u64, buf: &mut [u8]) -> Result<usize> {
        match Self::name(ino) {
            _ if buf.is_empty() => Ok(0),
            b"stdin" | b"tty" => self.machine.input(buf),
            b"zero" => {
                buf.fill(0);
                Ok(buf.len())
            }
            b"random" | b"urandom" => self.machine.random(buf).map(|()| buf.len()),
            _ => Ok(0),
        }
    }

    fn write(
        &mut self,
        _: &Context,
        ino: Ino,
        _: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        match Self::name(ino) {
            b"stdin" => return Err(Errno::EBADF),
            b"stdout" | b"tty" => self.machine.output(data, false),
            b"stderr" => self.machine.output(data, true),
            _ => {}
        }
        Ok(Written { len: data.len(), offset })
    }

    fn fallocate(
        &mut self,
        _: &Context,
        _: Ino,
        _: Handle,
        _: u64,
        _: u64,
        _: FallocateMode,
    ) -> Result<()> {
        Err(Errno::ENODEV)
    }

    fn seek(&mut self, _: &Context, _: Ino, _: Handle, _: u64, _: SeekTo) -> Result<u64> {
        Err(Errno::ESPIPE)
    }

    fn fsync(&mut self, _: &Context, _: Ino, _: Handle, _: bool) -> Result<()> {
        Err(Errno::EINVAL)
    }

    fn release(&mut self, _: &Context, _: Ino, _: Handle) -> Result<()> {
        Ok(())
    }

    fn opendir(&mut self, _: &Context, ino: Ino) -> Result<Handle> {
        if ino == Ino::ROOT { Ok(Handle(0)) } else { Err(Errno::ENOTDIR) }
    }

    fn readdir(
        &mut self,
        _: &Context,
        _: Ino,
        _: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dots = [&b"."[..], b".."].map(|name| (name, Ino::ROOT, FileType::Directory));
        let nodes = NODES
            .iter()
            .enumerate()
            .map(|(index, (name, _))| (*name, Ino(FIRST + index as u64), FileType::CharDevice));
        for (place, (name, ino, file_type)) in
            dots.into_iter().chain(nodes).enumerate().skip(cookie as usize)
        {
            if !emit(&DirEntry { ino, file_type, cookie: place as u64 + 1, name }) {
                break;
            }
        }
        Ok(())
    }

    fn releasedir(&mut self, _: &Context, _: Ino, _: Handle) -> Result<()> {
        Ok(())
    }

    fn fsyncdir(&mut self, _: &Context, _: Ino, _: Handle) -> Result<()> {
        Ok(())
    }

    fn syncfs(&mut self, _: &Context) -> Result<()> {
        Ok(())
    }

    fn statfs(&mut self, _: &Context) -> Result<StatFs> {
        Ok(StatFs { block_size: 4096, name_max: 255, ..StatFs::default() })
    }

    fn setxattr(&mut self, _: &Context, _: Ino, _: &[u8], _: &[u8], _: XattrFlags) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn getxattr(&mut self, _: &Context, _: Ino, _: &[u8], _: &mut Vec<u8>) -> Result<()> {
        Err(Errno::ENODATA)
    }

    fn listxattr(&mut self, _: &Context, _: Ino, _: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    fn removexattr(&mut self, _: &Context, _: Ino, _: &[u8]) -> Result<()> {
        Err(Errno::ENODATA)
    }
}
