//! Names, attributes, listings: calls on a directory and one name in it.

use std::mem::MaybeUninit;

use rustix::fs::{RawDir, SeekFrom, Timestamps, XattrFlags as SysXattrFlags};

use super::*;

/// Bytes of entries that are asked for at a time.
const BUFFER: usize = 16 << 10;

fn time(set: Option<SetTime>) -> sys::Timespec {
    let (tv_sec, tv_nsec) = match set {
        None => (0, sys::UTIME_OMIT),
        Some(SetTime::Now) => (0, sys::UTIME_NOW),
        Some(SetTime::To(time)) => (time.sec, time.nsec.into()),
    };
    sys::Timespec { tv_sec, tv_nsec }
}

/// Refuses `.` and `..`, of which a call of a kernel says other things than the contract.
fn ordinary(name: Name<'_>) -> Result<&[u8]> {
    if name.is_dot_or_dot_dot() { Err(Errno::EINVAL) } else { Ok(name.bytes()) }
}

impl ByCalls {
    pub(super) fn find(&mut self, parent: Ino, name: Name<'_>) -> Result<Attr> {
        match name.bytes() {
            b"." | b".." if self.get(parent)?.fd.is_none() => Err(Errno::ENOTDIR),
            b"." => self.attr(parent),
            b".." => {
                let above = self.get(parent)?.places.first().map_or(Ino::ROOT, |place| place.0);
                // By the call too, but for that of the root, which leads out.
                let dir = self.dir(parent)?;
                if parent != Ino::ROOT && self.stat(&dir, b"..")?.ino != above {
                    return Err(Errno::EIO);
                }
                self.attr(above)
            }
            name => self.see(parent, name),
        }
    }

    pub(super) fn make(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        make: impl FnOnce(&OwnedFd, &[u8]) -> rustix::io::Result<()>,
    ) -> Result<Attr> {
        let name = ordinary(name)?;
        make(&*self.dir(parent)?, name).map_err(errno)?;
        self.give(cx, parent, name, mode)
    }

    pub(super) fn remove(&mut self, parent: Ino, name: Name<'_>, flags: AtFlags) -> Result<()> {
        let name = ordinary(name)?;
        let dir = self.dir(parent)?;
        let was = self.see(parent, name);
        was.iter().try_for_each(|attr| self.keep(attr))?;
        sys::unlinkat(&dir, name, flags).map_err(errno)?;
        self.lost(was?.ino, &(parent, name.to_vec()));
        Ok(())
    }

    pub(super) fn move_name(
        &mut self,
        from: (Ino, Name<'_>),
        to: (Ino, Name<'_>),
        flags: RenameFlags,
    ) -> Result<()> {
        let (old, new) = (ordinary(from.1)?, ordinary(to.1)?);
        let (old_dir, new_dir) = (self.dir(from.0)?, self.dir(to.0)?);
        let places = [(from.0, old.to_vec()), (to.0, new.to_vec())];
        let was = [self.see(from.0, old), self.see(to.0, new)];
        was[1].iter().try_for_each(|attr| self.keep(attr))?;
        let flags = sys::RenameFlags::from_bits_retain(flags.bits());
        sys::renameat_with(&old_dir, old, &new_dir, new, flags).map_err(errno)?;
        for attr in was.iter().flatten() {
            if let Some(known) = self.known.get_mut(&attr.ino) {
                known.places.retain(|place| !places.contains(place));
            }
        }
        let now = [self.see(from.0, old), self.see(to.0, new)];
        debug_assert!(now[1].is_ok(), "what was renamed has its new name");
        was.iter().flatten().for_each(|attr| self.forget_if_gone(attr.ino));
        Ok(())
    }

    pub(super) fn add_name(&mut self, ino: Ino, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let name = ordinary(name)?;
        let dir = self.dir(parent)?;
        match self.place(ino)? {
            Some((old_dir, old)) => sys::linkat(&old_dir, &*old, &dir, name, AtFlags::empty()),
            None => sys::linkat(&*self.any_fd(ino)?, c"", &dir, name, AtFlags::EMPTY_PATH),
        }
        .map_err(errno)?;
        self.see(parent, name)
    }

    pub(super) fn set(&mut self, ino: Ino, handle: Option<Handle>, set: &SetAttr) -> Result<Attr> {
        let opened = handle.map(|handle| self.opened(ino, handle, false)).transpose()?;
        let attr = self.attr(ino)?;
        if let Some(size) = set.size {
            if !matches!(attr.file_type(), FileType::Regular | FileType::Directory) {
                // Opening them first says other things.
                return Err(Errno::EINVAL);
            }
            match opened {
                Some(open) if !open.flags.is_some_and(|flags| flags.contains(OpenFlags::WRITE)) => {
                    return Err(Errno::EBADF);
                }
                Some(open) => sys::ftruncate(&open.fd, size).map_err(errno)?,
                None => {
                    sys::ftruncate(self.reopen(&attr, OpenFlags::WRITE)?, size).map_err(errno)?
                }
            }
        }
        let (uid, gid) = (set.uid.map(sys::Uid::from_raw), set.gid.map(sys::Gid::from_raw));
        let owner = uid.is_some() || gid.is_some();
        let times = Timestamps { last_access: time(set.atime), last_modification: time(set.mtime) };
        let timed = set.atime.is_some() || set.mtime.is_some();
        // The call takes the set-ID bits from a file that it gives away.
        let takes = owner && attr.mode & 0o6000 != 0 && attr.file_type() == FileType::Regular;
        let mode = set.mode.or(takes.then_some(attr.mode)).map(bits);
        match self.place(ino)?.filter(|_| attr.file_type() != FileType::Directory) {
            Some((dir, name)) => {
                let link = AtFlags::SYMLINK_NOFOLLOW;
                if owner {
                    sys::chownat(&dir, &*name, uid, gid, link).map_err(errno)?;
                }
                if let Some(mode) = mode {
                    if attr.file_type() == FileType::Symlink {
                        return Err(Errno::EOPNOTSUPP);
                    }
                    sys::chmodat(&dir, &*name, mode, AtFlags::empty()).map_err(errno)?;
                }
                if timed {
                    sys::utimensat(&dir, &*name, &times, link).map_err(errno)?;
                }
            }
            None => {
                let fd = self.any_fd(ino)?;
                if owner {
                    sys::fchown(&fd, uid, gid).map_err(errno)?;
                }
                if let Some(mode) = mode {
                    sys::fchmod(&fd, mode).map_err(errno)?;
                }
                if timed {
                    sys::futimens(&fd, &times).map_err(errno)?;
                }
            }
        }
        self.attr(ino)
    }

    pub(super) fn target(&self, ino: Ino, to: &mut Vec<u8>) -> Result<()> {
        let (dir, name) = self.place(ino)?.ok_or(Errno::EINVAL)?;
        to.extend(sys::readlinkat(&dir, &*name, Vec::new()).map_err(errno)?.into_bytes());
        Ok(())
    }

    pub(super) fn list(
        &mut self,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let open = self.opened(ino, handle, true)?;
        let above = self.get(ino)?.places.first().map_or(Ino::ROOT, |place| place.0);
        sys::seek(&open.fd, SeekFrom::Start(cookie)).map_err(errno)?;
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(&open.fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                // The directory has been removed.
                Err(rustix::io::Errno::NOENT) => return Ok(()),
                entry => entry.map_err(errno)?,
            };
            let name = entry.file_name().to_bytes();
            let number = match name {
                b"." => ino,
                b".." => above,
                _ => self.number(entry.ino()),
            };
            let file_type = FileType::from_mode(entry.file_type().as_raw_mode());
            let file_type = file_type.ok_or(Errno::EIO)?;
            let cookie = entry.next_entry_cookie();
            if !emit(&DirEntry { ino: number, file_type, cookie, name }) {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let flags = SysXattrFlags::from_bits_retain(flags);
        match self.path(ino)? {
            Some(path) => sys::lsetxattr(path, name, value, flags),
            None => sys::fsetxattr(&*self.any_fd(ino)?, name, value, flags),
        }
        .map_err(errno)
    }

    pub(super) fn get_xattr(&self, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        let mut room = vec![0; XATTR_SIZE_MAX];
        let len = match self.path(ino)? {
            Some(path) => sys::lgetxattr(path, name, &mut room[..]),
            None => sys::fgetxattr(&*self.any_fd(ino)?, name, &mut room[..]),
        }
        .map_err(errno)?;
        value.extend_from_slice(&room[..len]);
        Ok(())
    }

    pub(super) fn list_xattrs(&self, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        let mut room = vec![0; XATTR_SIZE_MAX];
        let len = match self.path(ino)? {
            Some(path) => sys::llistxattr(path, &mut room[..]),
            None => sys::flistxattr(&*self.any_fd(ino)?, &mut room[..]),
        }
        .map_err(errno)?;
        names.extend_from_slice(&room[..len]);
        Ok(())
    }

    pub(super) fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        match self.path(ino)? {
            Some(path) => sys::lremovexattr(path, name),
            None => sys::fremovexattr(&*self.any_fd(ino)?, name),
        }
        .map_err(errno)
    }
}
