//! Attributes of inodes and of the file system.

use super::fixed::{Fixed, constants, fixed};
use crate::filesystem::FILE_SIZE_MAX;
use crate::types::{Attr, FileType, Ino, SetAttr, SetTime, StatFs, Timespec};

fixed! {
    /// Attributes of an inode.
    RawAttr = "fuse_attr" 88 {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    /// The answer to what finds or makes a name.
    EntryOut = "fuse_entry_out" 128 {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: RawAttr,
    }
    /// The answer to GETATTR and SETATTR.
    AttrOut = "fuse_attr_out" 104 {
        attr_valid: u64,
        attr_valid_nsec: u32,
        dummy: u32,
        attr: RawAttr,
    }
    /// The arguments of GETATTR.
    GetattrIn = "fuse_getattr_in" 16 {
        getattr_flags: u32,
        dummy: u32,
        fh: u64,
    }
    /// The arguments of SETATTR.
    SetattrIn = "fuse_setattr_in" 88 {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    /// The answer to STATFS.
    StatfsOut = "fuse_kstatfs" 80 {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }
    /// A time after what FUSE defines: the btime that follows a [`RawAttr`] when that is agreed,
    /// and the client's time in a request. Named after the structure of the same layout, which FUSE
    /// uses for STATX.
    Time = "fuse_sx_time" 16 {
        tv_sec: u64,
        tv_nsec: u32,
        reserved: u32,
    }
    /// The arguments of STATX.
    StatxIn = "fuse_statx_in" 24 {
        getattr_flags: u32,
        reserved: u32,
        fh: u64,
        sx_flags: u32,
        sx_mask: u32,
    }
    /// Attributes of an inode as statx(2) has them.
    RawStatx = "fuse_statx" 256 {
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0: [u16; 1],
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: Time,
        btime: Time,
        ctime: Time,
        mtime: Time,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }
    /// The answer to STATX: its front is that of [`AttrOut`].
    StatxOut = "fuse_statx_out" 288 {
        attr_valid: u64,
        attr_valid_nsec: u32,
        flags: u32,
        spare: [u64; 2],
        stat: RawStatx,
    }
}

constants! { u32:
    FUSE_ATTR_SUBMOUNT = 1 << 0, "Of `RawAttr::flags`: the root of another file system.";
    FUSE_ATTR_DAX = 1 << 1, "Of `RawAttr::flags`: to be mapped into a virtual machine's window.";
    FATTR_MODE = 1 << 0, "Set the permission bits.";
    FATTR_UID = 1 << 1, "Set the owner.";
    FATTR_GID = 1 << 2, "Set the group.";
    FATTR_SIZE = 1 << 3, "Set the length.";
    FATTR_ATIME = 1 << 4, "Set the time of last access.";
    FATTR_MTIME = 1 << 5, "Set the time of the last change of content.";
    FATTR_FH = 1 << 6, "`fh` is a handle.";
    FATTR_ATIME_NOW = 1 << 7, "The time of last access becomes that of the call.";
    FATTR_MTIME_NOW = 1 << 8, "The time of the last change of content becomes that of the call.";
    FATTR_LOCKOWNER = 1 << 9, "`lock_owner` is valid. Ignored.";
    FATTR_CTIME = 1 << 10, "Set the time of the last change. Ignored: it is that of the call.";
    FATTR_KILL_SUIDGID = 1 << 11, "Drop the set-ID bits. Ignored: a layer above decides that.";
}

const FATTR_ALL: u32 = (1 << 12) - 1;

impl From<Timespec> for Time {
    #[inline]
    fn from(time: Timespec) -> Self {
        Time { tv_sec: time.sec as u64, tv_nsec: time.nsec, reserved: 0 }
    }
}

impl Time {
    /// The time, if it is one.
    #[inline]
    pub fn checked(self) -> Option<Timespec> {
        timespec(self.tv_sec, self.tv_nsec)
    }
}

#[inline]
fn timespec(sec: u64, nsec: u32) -> Option<Timespec> {
    (nsec < 1_000_000_000).then_some(Timespec { sec: sec as i64, nsec })
}

impl From<&Attr> for RawAttr {
    #[inline]
    fn from(attr: &Attr) -> Self {
        RawAttr {
            ino: attr.ino.0,
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.sec as u64,
            mtime: attr.mtime.sec as u64,
            ctime: attr.ctime.sec as u64,
            atimensec: attr.atime.nsec,
            mtimensec: attr.mtime.nsec,
            ctimensec: attr.ctime.nsec,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            blksize: BLOCK,
            flags: 0,
        }
    }
}

impl RawAttr {
    /// The attributes of the inode that requests name `ino` (servers may show users another
    /// number), or `None` if they are none: times that do not exist, a mode without a type, lengths
    /// that no file has.
    #[inline]
    pub fn checked(&self, ino: Ino, btime: Timespec) -> Option<Attr> {
        FileType::from_mode(self.mode)?;
        // Users count in bytes what is stored in blocks.
        let is_long = self.size > FILE_SIZE_MAX || self.blocks > FILE_SIZE_MAX / 512;
        if self.mode >> 16 != 0 || ino.0 == 0 || is_long {
            return None;
        }
        Some(Attr {
            ino,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.blocks,
            atime: timespec(self.atime, self.atimensec)?,
            mtime: timespec(self.mtime, self.mtimensec)?,
            ctime: timespec(self.ctime, self.ctimensec)?,
            btime,
        })
    }
}

/// How a client is told of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// For how many seconds it may rely on names.
    pub names: u64,
    /// For how many seconds on attributes.
    pub attributes: u64,
    /// For how many seconds on those of a file with a set-ID bit, which a write of the client may
    /// take.
    pub set_id: u64,
    /// The length of reads and writes that suits it (st_blksize), in bytes: a power of two.
    pub block: u32,
}

impl Default for Terms {
    /// Nothing may be relied on.
    fn default() -> Self {
        Terms::all(0)
    }
}

impl Terms {
    /// All may be relied on as long.
    pub const fn all(seconds: u64) -> Terms {
        Terms { names: seconds, attributes: seconds, set_id: seconds, block: BLOCK }
    }

    /// For how many seconds it may rely on the attributes of a file of this mode.
    #[inline]
    pub const fn of(&self, mode: u32) -> u64 {
        if mode & SET_ID == 0 { self.attributes } else { self.set_id }
    }
}

/// The length of reads and writes that suits a client for which a call is cheap.
const BLOCK: u32 = 4096;
/// The set-user-ID and set-group-ID bits of a mode.
const SET_ID: u32 = 0o6000;

impl EntryOut {
    /// The answer that tells of `attr`, and that the name and this may be relied on as `terms`
    /// say.
    #[inline]
    pub fn new(attr: &Attr, terms: Terms) -> Self {
        EntryOut {
            nodeid: attr.ino.0,
            entry_valid: terms.names,
            attr_valid: terms.of(attr.mode),
            attr: RawAttr { blksize: terms.block, ..attr.into() },
            ..EntryOut::default()
        }
    }
}

impl SetattrIn {
    /// The arguments that ask for the changes in `set`.
    pub fn new(handle: Option<u64>, set: &SetAttr) -> Self {
        let mut args = SetattrIn::default();
        if let Some(fh) = handle {
            (args.valid, args.fh) = (args.valid | FATTR_FH, fh);
        }
        if let Some(mode) = set.mode {
            (args.valid, args.mode) = (args.valid | FATTR_MODE, mode);
        }
        if let Some(uid) = set.uid {
            (args.valid, args.uid) = (args.valid | FATTR_UID, uid);
        }
        if let Some(gid) = set.gid {
            (args.valid, args.gid) = (args.valid | FATTR_GID, gid);
        }
        if let Some(size) = set.size {
            (args.valid, args.size) = (args.valid | FATTR_SIZE, size);
        }
        match set.atime {
            Some(SetTime::Now) => args.valid |= FATTR_ATIME | FATTR_ATIME_NOW,
            Some(SetTime::To(time)) => {
                args.valid |= FATTR_ATIME;
                (args.atime, args.atimensec) = (time.sec as u64, time.nsec);
            }
            None => {}
        }
        match set.mtime {
            Some(SetTime::Now) => args.valid |= FATTR_MTIME | FATTR_MTIME_NOW,
            Some(SetTime::To(time)) => {
                args.valid |= FATTR_MTIME;
                (args.mtime, args.mtimensec) = (time.sec as u64, time.nsec);
            }
            None => {}
        }
        args
    }

    /// The handle and the changes asked for, or `None` if they are none: bits that are not known,
    /// times that do not exist.
    pub fn changes(&self) -> Option<(Option<u64>, SetAttr)> {
        if self.valid & !FATTR_ALL != 0 {
            return None;
        }
        let has = |bit| self.valid & bit != 0;
        let time = |set, now, sec, nsec| {
            Some(match (has(set), has(now)) {
                (_, true) => Some(SetTime::Now),
                (true, false) => Some(SetTime::To(timespec(sec, nsec)?)),
                (false, false) => None,
            })
        };
        let set = SetAttr {
            // The kernel sends the type along.
            mode: has(FATTR_MODE).then_some(self.mode & 0o7777),
            uid: has(FATTR_UID).then_some(self.uid),
            gid: has(FATTR_GID).then_some(self.gid),
            size: has(FATTR_SIZE).then_some(self.size),
            atime: time(FATTR_ATIME, FATTR_ATIME_NOW, self.atime, self.atimensec)?,
            mtime: time(FATTR_MTIME, FATTR_MTIME_NOW, self.mtime, self.mtimensec)?,
        };
        Some((has(FATTR_FH).then_some(self.fh), set))
    }
}

impl From<&StatFs> for StatfsOut {
    fn from(state: &StatFs) -> Self {
        StatfsOut {
            blocks: state.blocks,
            bfree: state.blocks_free,
            bavail: state.blocks_available,
            files: state.files,
            ffree: state.files_free,
            bsize: state.block_size,
            namelen: state.name_max,
            frsize: state.block_size,
            ..StatfsOut::default()
        }
    }
}

impl From<&StatfsOut> for StatFs {
    fn from(raw: &StatfsOut) -> Self {
        StatFs {
            // Blocks are counted in units of frsize, which old servers leave 0.
            block_size: if raw.frsize != 0 { raw.frsize } else { raw.bsize },
            blocks: raw.blocks,
            blocks_free: raw.bfree,
            blocks_available: raw.bavail,
            files: raw.files,
            files_free: raw.ffree,
            name_max: raw.namelen,
        }
    }
}

const _: () = assert!(RawAttr::SIZE + 40 == EntryOut::SIZE);
