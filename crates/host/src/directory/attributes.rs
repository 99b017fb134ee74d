//! Attributes of inodes.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use atoll_vfs::filesystem::checked_end;
use atoll_vfs::{
    Attr, Context, Errno, FileType, Handle, Ino, OpenFlags, Result, SetAttr, SetTime, StatFs,
    Timespec,
};
use rustix::fs::{self as sys, AtFlags, Mode, OFlags, Statx, StatxFlags};

use super::{HostDirectory, errno};

/// The permission bits of `mode`.
pub(super) fn bits(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

/// What the host says of what `fd` is open on.
pub(super) fn said_of(fd: impl AsFd) -> Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_SYNC_AS_STAT;
    sys::statx(fd, c"", flags, asked()).map_err(errno)
}

/// What the host says of what `name` is in the directory `dir`, which is followed nowhere.
pub(super) fn said_of_name(dir: impl AsFd, name: &[u8]) -> Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_SYNC_AS_STAT;
    sys::statx(dir, name, flags, asked()).map_err(errno)
}

fn asked() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::BTIME
}

/// The attributes of what `fd` is open on, with the host's owners.
pub(super) fn of(ino: Ino, fd: impl AsFd) -> Result<Attr> {
    Ok(as_said(ino, &said_of(fd)?))
}

/// The attributes that the host says.
pub(super) fn as_said(ino: Ino, stat: &Statx) -> Attr {
    let time = |time: sys::StatxTimestamp| Timespec { sec: time.tv_sec, nsec: time.tv_nsec };
    let mode = u32::from(stat.stx_mode);
    let file_type = FileType::from_mode(mode);
    let is_device = matches!(file_type, Some(FileType::CharDevice | FileType::BlockDevice));
    let rdev = sys::makedev(stat.stx_rdev_major, stat.stx_rdev_minor) as u32;
    Attr {
        ino,
        mode,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: if is_device { rdev } else { 0 },
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime: time(stat.stx_btime),
    }
}

fn time(set: Option<SetTime>) -> sys::Timespec {
    let (tv_sec, tv_nsec) = match set {
        None => (0, sys::UTIME_OMIT),
        Some(SetTime::Now) => (0, sys::UTIME_NOW),
        Some(SetTime::To(time)) => (time.sec, time.nsec.into()),
    };
    sys::Timespec { tv_sec, tv_nsec }
}

impl HostDirectory {
    /// The attributes of `ino`, with the host's owners, and its descriptor.
    ///
    /// # Errors
    /// `ESTALE`, also for an inode that has neither names nor handles any more.
    pub(super) fn stat(&mut self, ino: Ino) -> Result<(Attr, Arc<OwnedFd>)> {
        let fd = self.fd(ino)?;
        let attr = of(ino, &fd)?;
        if attr.nlink == 0 && self.reap(ino) {
            return Err(Errno::ESTALE);
        }
        Ok((self.as_node(&fd, attr)?, fd))
    }

    /// The attributes of `ino` as the caller sees them.
    pub(super) fn attr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        let (attr, _) = self.stat(ino)?;
        Ok(self.owners.shown(cx, attr))
    }

    /// Sets the permission bits of what `fd` is open on, which is no symbolic link.
    pub(super) fn chmod(&self, fd: &OwnedFd, mode: u32) -> Result<()> {
        let number = fd.as_raw_fd().to_string();
        sys::chmodat(self.descriptors, number.as_str(), bits(mode), AtFlags::empty()).map_err(errno)
    }

    /// Takes the set-ID bits from a file, open as `fd`, that a client changes, where no client's
    /// files have any.
    pub(super) fn take_set_ids(&mut self, attr: &Attr, fd: &OwnedFd) -> Result<()> {
        let had = attr.mode & 0o7777;
        let has = self.mode_for(had);
        if has == had {
            return Ok(());
        }
        self.settled(attr.ino)?;
        self.chmod(fd, has)
    }

    pub(super) fn set(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        if *set == SetAttr::default() {
            return self.attr(cx, ino);
        }
        self.may_change()?;
        self.settled(ino)?;
        let (old, fd) = self.stat(ino)?;
        let (uid, gid) = self.owners.to_set(cx, &old, set)?;
        let is_link = old.file_type() == FileType::Symlink;
        if is_link && set.mode.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        if let Some(size) = set.size {
            self.cut(&old, &fd, handle, size)?;
            self.copies.zeroed(ino, old.size.min(size)..u64::MAX);
        }
        let is_kept = self.set_node((&old, &fd), (uid, gid), set)?;
        if !is_kept && (uid.is_some() || gid.is_some()) {
            let (uid, gid) = (uid.map(sys::Uid::from_raw), gid.map(sys::Gid::from_raw));
            sys::chownat(&fd, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(errno)?;
            // The layers above say which bits go with a change of owner.
            if !is_link && set.mode.is_none() && old.mode & 0o6000 != 0 {
                self.chmod(&fd, old.mode)?;
            }
        }
        if let Some(mode) = set.mode.filter(|_| !is_kept) {
            self.chmod(&fd, if old.is_dir() { mode } else { self.mode_for(mode) })?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = sys::Timestamps {
                last_access: time(set.atime),
                last_modification: time(set.mtime),
            };
            sys::utimensat(&fd, c"", &times, AtFlags::EMPTY_PATH).map_err(errno)?;
        }
        self.attr(cx, ino)
    }

    fn cut(&mut self, old: &Attr, fd: &OwnedFd, handle: Option<Handle>, size: u64) -> Result<()> {
        match old.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        checked_end(size, 0)?;
        self.take_set_ids(old, fd)?;
        if let Some(handle) = handle {
            self.file(old.ino, handle, OpenFlags::WRITE)?;
        }
        let by_handle = handle.and_then(|handle| self.open.get(&handle.0));
        let by_handle = by_handle.map(|open| Arc::clone(&open.fd));
        self.cut_to(old, size, |this| match &by_handle {
            // The description is the handle's, which may be closed meanwhile.
            Some(fd) => fd.try_clone().map_err(|_| Errno::EMFILE),
            None => this.anew(fd, OFlags::WRONLY | OFlags::NONBLOCK),
        })
    }

    /// Sets the time of last access, if that is due. Returns whether it has.
    pub(super) fn touch(&mut self, cx: &Context, ino: Ino) -> bool {
        if self.read_only || self.apart.is_cut(ino) {
            return false;
        }
        let Ok((attr, fd)) = self.stat(ino) else { return false };
        let times = sys::Timestamps {
            last_access: time(Some(SetTime::Now)),
            last_modification: time(None),
        };
        attr.access_is_due(cx.now) && sys::utimensat(&fd, c"", &times, AtFlags::EMPTY_PATH).is_ok()
    }

    pub(super) fn state(&self) -> Result<StatFs> {
        Self::state_of(&self.root)
    }

    /// The state of the file system as the host says it of `ino`: it may lie in another mount, or
    /// have a quota.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    pub(super) fn state_at(&mut self, ino: Ino) -> Result<StatFs> {
        let fd = self.fd(ino)?;
        Self::state_of(&fd)
    }

    fn state_of(fd: &OwnedFd) -> Result<StatFs> {
        let stat = sys::fstatvfs(fd).map_err(errno)?;
        Ok(StatFs {
            block_size: stat.f_frsize as u32,
            blocks: stat.f_blocks,
            blocks_free: stat.f_bfree,
            blocks_available: stat.f_bavail,
            files: stat.f_files,
            files_free: stat.f_ffree,
            name_max: stat.f_namemax as u32,
        })
    }
}
