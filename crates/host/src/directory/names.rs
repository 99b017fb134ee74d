//! Names: making, linking, moving and removing them.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use atoll_vfs::{Attr, Context, Errno, FileType, Ino, Name, RenameFlags, Result};
use rustix::fs::{self as sys, AtFlags, OFlags};

use super::attributes::{self, bits};
use super::owners::MakesAs;
use super::reach::{open_in, ordinary};
use super::{HostDirectory, errno};

/// The bit of a directory from which only their owners remove names, and its own.
const STICKY: u32 = 0o1000;

impl HostDirectory {
    pub(super) fn look_up(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let ino = match name.bytes() {
            b"." => parent,
            b".." => self.above(parent)?,
            _ => {
                let attr = self.look(parent, name)?;
                self.table.given(attr.ino);
                return Ok(self.owners.shown(cx, attr));
            }
        };
        let attr = self.attr(cx, ino)?;
        if name.bytes() == b"." && !attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        self.table.given(ino);
        Ok(attr)
    }

    /// The descriptor of a directory in which something is to be made or removed.
    fn writable_dir(&mut self, parent: Ino, name: Name<'_>) -> Result<Arc<OwnedFd>> {
        ordinary(name)?;
        self.may_change()?;
        self.fd(parent)
    }

    /// The attributes of a new inode, as which `name` in `parent` was made, with the permission
    /// bits of `mode`.
    fn made(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        made: FileType,
        mode: u32,
    ) -> Result<Attr> {
        self.unsynced.changed(parent);
        let (mut attr, fd) = self.find(parent, name)?;
        let ino = attr.ino;
        // Bits that the host's call does not set. A name that another has put there meanwhile is
        // left as it is.
        let missing = mode & 0o7000 & !attr.mode;
        let fresh = attr.file_type() == made && attr.nlink <= 2 && made != FileType::Symlink;
        if missing != 0 && fresh {
            let _makes = self.owners.make_as(cx)?;
            self.chmod(&fd, attr.mode | missing)?;
            attr = attributes::of(ino, &fd)?;
        }
        self.table.given(ino);
        Ok(self.owners.shown(cx, attr))
    }

    pub(super) fn make_node(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let dir = self.writable_dir(parent, name)?;
        let made = match FileType::from_mode(mode) {
            Some(FileType::Regular) => {
                let flags = OFlags::WRONLY;
                let (ino, fd) = self.make_file(cx, (parent, &dir), name, mode, flags)?;
                let attr = attributes::of(ino, &fd)?;
                // The descriptor can write: a program of the host could not be executed meanwhile.
                let by_name = self.anew(&fd, OFlags::PATH)?;
                self.table.keep(ino, Arc::new(by_name));
                self.table.given(ino);
                return Ok(self.owners.shown(cx, attr));
            }
            Some(made @ (FileType::Fifo | FileType::Socket)) => made,
            // The node that overlay file systems put in the place of a removed name is no device.
            Some(made @ FileType::CharDevice) if rdev == 0 => made,
            Some(made @ (FileType::CharDevice | FileType::BlockDevice)) => {
                self.keep_node(cx, (parent, &dir), name, (mode, rdev))?;
                return self.made(cx, parent, name, made, mode);
            }
            None | Some(FileType::Directory | FileType::Symlink) => return Err(Errno::EINVAL),
        };
        {
            let _makes = self.owners.make_as(cx)?;
            let kind = sys::FileType::from_raw_mode(mode);
            sys::mknodat(&dir, name.bytes(), kind, bits(mode), rdev.into()).map_err(errno)?;
        }
        self.made(cx, parent, name, made, mode)
    }

    /// Makes a regular file and opens it with `flags`.
    pub(super) fn make_file(
        &mut self,
        cx: &Context,
        (parent, dir): (Ino, &OwnedFd),
        name: Name<'_>,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Ino, Arc<OwnedFd>)> {
        let flags = flags | OFlags::CREATE | OFlags::EXCL;
        let mode = self.mode_for(mode);
        let fd = {
            let makes = self.owners.make_as(cx)?;
            let fd = self.with_room(|_| open_in(dir, name.bytes(), flags, bits(mode)))?;
            drop(makes);
            Arc::new(fd)
        };
        self.unsynced.changed(parent);
        self.set_missing(&fd, mode)?;
        let identity = self.identify(&fd)?;
        let ino = self.table.number(identity).ok_or(Errno::EIO)?;
        let by_name = Arc::new(self.anew(&fd, OFlags::PATH)?);
        let registered = self.table.register(identity, (parent, name.bytes()), false, by_name)?;
        debug_assert_eq!(ino, registered);
        Ok((ino, fd))
    }

    /// Gives a new file the bits of `mode` that the host's call did not.
    pub(super) fn set_missing(&self, fd: impl AsFd, mode: u32) -> Result<()> {
        let is = sys::fstat(&fd).map_err(errno)?.st_mode;
        let missing = mode & 0o7000 & !is;
        if missing == 0 {
            return Ok(());
        }
        sys::fchmod(fd, bits(is | missing)).map_err(errno)
    }

    pub(super) fn make_dir(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
    ) -> Result<Attr> {
        let dir = self.writable_dir(parent, name)?;
        {
            let _makes = self.owners.make_as(cx)?;
            sys::mkdirat(&dir, name.bytes(), bits(mode)).map_err(errno)?;
        }
        self.made(cx, parent, name, FileType::Directory, mode)
    }

    pub(super) fn make_link(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        target: &[u8],
    ) -> Result<Attr> {
        let dir = self.writable_dir(parent, name)?;
        {
            let _makes = self.owners.make_as(cx)?;
            sys::symlinkat(target, &dir, name.bytes()).map_err(errno)?;
        }
        self.made(cx, parent, name, FileType::Symlink, 0)
    }

    pub(super) fn target(&mut self, ino: Ino, target: &mut Vec<u8>) -> Result<()> {
        let (attr, fd) = self.stat(ino)?;
        if attr.file_type() != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        let bytes = sys::readlinkat(&fd, c"", Vec::new()).map_err(errno)?;
        target.extend_from_slice(bytes.as_bytes());
        Ok(())
    }

    pub(super) fn add_name(
        &mut self,
        cx: &Context,
        ino: Ino,
        new_parent: Ino,
        new_name: Name<'_>,
    ) -> Result<Attr> {
        let dir = self.writable_dir(new_parent, new_name)?;
        let (attr, fd) = self.stat(ino)?;
        if attr.is_dir() {
            return Err(Errno::EPERM);
        }
        self.settled(ino)?;
        let number = fd.as_raw_fd().to_string();
        let follow = AtFlags::SYMLINK_FOLLOW;
        sys::linkat(self.descriptors, number.as_str(), &dir, new_name.bytes(), follow)
            .map_err(errno)?;
        self.unsynced.changed(new_parent);
        self.table.get(ino)?.seen((new_parent, new_name.bytes()));
        self.table.given(ino);
        self.attr(cx, ino)
    }

    /// Has the host judge a removal from `dirs` once more if one of them is sticky.
    fn removes_as(&self, cx: &Context, dirs: &[&Arc<OwnedFd>]) -> Result<Option<MakesAs>> {
        for dir in dirs {
            if sys::fstat(dir).map_err(errno)?.st_mode & STICKY != 0 {
                return self.owners.remove_as(cx);
            }
        }
        Ok(None)
    }

    pub(super) fn remove(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        directory: bool,
    ) -> Result<()> {
        let dir = self.writable_dir(parent, name)?;
        let attr = self.look(parent, name)?;
        let ino = attr.ino;
        self.settled(ino)?;
        // By a descriptor it is seen to be gone, and a large file is freed when that is closed.
        let fd = match self.frees_apart(&attr) {
            true => Some(self.fd(ino)?),
            false => self.table.get(ino)?.fd().map(Arc::clone),
        };
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        {
            let _removes = self.removes_as(cx, &[&dir])?;
            sys::unlinkat(&dir, name.bytes(), flags).map_err(errno)?;
        }
        self.unsynced.changed(parent);
        match fd {
            Some(fd) => self.gone(ino, &fd),
            // Should a program of the host have given it another name, it is unknown until that is
            // looked up.
            None if directory || attr.nlink == 1 => self.table.gone(ino),
            None => {}
        }
        Ok(())
    }

    /// A name of `ino` has been removed, `fd` is open on it.
    fn gone(&mut self, ino: Ino, fd: &Arc<OwnedFd>) {
        self.table.keep(ino, Arc::clone(fd));
        self.reap(ino);
    }

    pub(super) fn move_name(
        &mut self,
        cx: &Context,
        (parent, name): (Ino, Name<'_>),
        (new_parent, new_name): (Ino, Name<'_>),
        flags: RenameFlags,
    ) -> Result<()> {
        if !flags.agree() {
            return Err(Errno::EINVAL);
        }
        let from = self.writable_dir(parent, name)?;
        let to = self.writable_dir(new_parent, new_name)?;
        let replaced = self.find(new_parent, new_name).ok();
        if self.apart.cuts_any() {
            let moved = self.find(parent, name).ok();
            for (Attr { ino, .. }, _) in [&moved, &replaced].into_iter().flatten() {
                self.settled(*ino)?;
            }
        }
        let how = sys::RenameFlags::from_bits_retain(flags.bits());
        {
            let mut _as = self.removes_as(cx, &[&from, &to])?;
            if _as.is_none() && flags.contains(RenameFlags::WHITEOUT) {
                _as = Some(self.owners.make_as(cx)?);
            }
            sys::renameat_with(&from, name.bytes(), &to, new_name.bytes(), how).map_err(errno)?;
        }
        self.unsynced.changed(parent);
        self.unsynced.changed(new_parent);
        // Known by their new names. A file that the host has put there instead is known by its own.
        let _ = self.find(new_parent, new_name);
        if flags.contains(RenameFlags::EXCHANGE) {
            let _ = self.find(parent, name);
        } else if let Some((Attr { ino, .. }, fd)) = replaced {
            self.gone(ino, &fd);
        }
        Ok(())
    }
}
