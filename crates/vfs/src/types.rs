//! The nouns of the file seam.

use core::fmt;

use bitflags::bitflags;

use crate::errno::{Errno, Result};

/// The longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// The longest target of a symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// The largest value of an extended attribute, in bytes (xattr(7)).
pub const XATTR_SIZE_MAX: usize = 65536;
/// The largest total of the names of a file's extended attributes, each with its NUL, in bytes.
pub const XATTR_LIST_MAX: usize = 65536;
/// The most hard links to what is no directory (what ext4's successors and the field's tools expect
/// to fit).
pub const LINK_MAX: u32 = 65000;

/// An inode number. 0 is never one; a number is never used again after its file is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory, as FUSE numbers it.
    pub const ROOT: Ino = Ino(1);
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An open file or directory, as [`FileSystem::open`](crate::FileSystem::open) returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// A point in time: seconds and nanoseconds (0..1,000,000,000) since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timespec {
    /// Seconds since the epoch, negative before it.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

/// The caller of an operation, and its time. Implementors never read a clock and never ask who the
/// process is.
///
/// Nothing behind the seam checks permissions by itself: that is a layer above, where identities
/// are known to be true.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The owner of what the call creates.
    pub uid: u32,
    /// The group of what the call creates (unless its directory has the set-group-ID bit).
    pub gid: u32,
    /// The time that the call's timestamps take.
    pub now: Timespec,
}

/// One checked component of a path: 1 to 255 bytes, neither `/` nor NUL among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Checks `bytes`.
    ///
    /// # Errors
    /// `ENOENT` when empty, `ENAMETOOLONG` beyond [`NAME_MAX`], `EINVAL` for `/` or NUL inside.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Err(Errno::ENOENT);
        }
        if bytes.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if bytes.iter().any(|&b| b == b'/' || b == 0) {
            return Err(Errno::EINVAL);
        }
        Ok(Name(bytes))
    }

    /// The name's bytes.
    #[inline]
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether the name is `.` or `..`, which exist in every directory and can be neither made nor
    /// removed.
    #[inline]
    pub fn is_dot_or_dot_dot(self) -> bool {
        matches!(self.0, b"." | b"..")
    }
}

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    /// A regular file.
    Regular = 8,
    /// A directory.
    Directory = 4,
    /// A symbolic link.
    Symlink = 10,
    /// A named pipe.
    Fifo = 1,
    /// A UNIX-domain socket.
    Socket = 12,
    /// A character device.
    CharDevice = 2,
    /// A block device.
    BlockDevice = 6,
}

impl FileType {
    /// The type in the format bits (`S_IFMT`) of `mode`, if they name one.
    #[inline]
    pub const fn from_mode(mode: u32) -> Option<FileType> {
        Self::from_dirent_type((mode >> 12) as u8 & 0xf)
    }

    /// The type that getdents(2) writes as `d_type`.
    #[inline]
    pub const fn from_dirent_type(value: u8) -> Option<FileType> {
        Some(match value {
            1 => FileType::Fifo,
            2 => FileType::CharDevice,
            4 => FileType::Directory,
            6 => FileType::BlockDevice,
            8 => FileType::Regular,
            10 => FileType::Symlink,
            12 => FileType::Socket,
            _ => return None,
        })
    }

    /// `d_type` of getdents(2).
    #[inline]
    pub const fn dirent_type(self) -> u8 {
        self as u8
    }

    /// The format bits of `st_mode`.
    #[inline]
    pub const fn mode_bits(self) -> u32 {
        (self as u32) << 12
    }
}

/// The attributes of an inode, as of stat(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Hard links; for a directory 2 plus its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a character or block device.
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Storage in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change of content or attributes.
    pub ctime: Timespec,
    /// Creation.
    pub btime: Timespec,
}

impl Attr {
    /// The type in `mode`.
    #[inline]
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).unwrap_or(FileType::Regular)
    }

    /// Whether it is a directory.
    #[inline]
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Whether the file or its attributes have changed since atime was set, or at the same moment.
    #[inline]
    pub fn changed_since_access(&self) -> bool {
        self.mtime >= self.atime || self.ctime >= self.atime
    }

    /// Whether reading at `now` sets atime where access times are [`AccessTimes::Relatime`]:
    /// Linux's `relatime_need_update`, and not to what it is.
    #[inline]
    pub fn access_is_due(&self, now: Timespec) -> bool {
        (self.changed_since_access() || now.sec.saturating_sub(self.atime.sec) >= A_DAY)
            && self.atime != now
    }
}

/// After how many seconds reading sets atime again, though nothing has changed.
const A_DAY: i64 = 24 * 60 * 60;

/// The effect of reading on [`Attr::atime`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// Nothing.
    #[default]
    Noatime,
    /// The first read after a change sets it, and one when it is a day old.
    Relatime,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This time.
    To(Timespec),
}

/// The changes of [`FileSystem::setattr`](crate::FileSystem::setattr); `None` leaves as is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (the low 12 bits).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length: shorter drops, longer reads as zeros.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
}

bitflags! {
    /// How a file is opened.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// Reads are allowed on the handle.
        const READ = 1;
        /// Writes are allowed on the handle.
        const WRITE = 2;
        /// Every write goes to the end of the file, atomically.
        const APPEND = 4;
        /// The file is emptied.
        const TRUNC = 8;
        /// With create: fail with `EEXIST` when the name exists.
        const EXCL = 16;
        /// Reads by the handle do not count as accesses. That is for who calls
        /// [`FileSystem::accessed`](crate::FileSystem::accessed); below it means nothing.
        const NOATIME = 32;
    }

    /// Flags of renameat2(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail with `EEXIST` instead of replacing.
        const NOREPLACE = 1;
        /// Swap the two names, both of which must exist. Goes with no other flag.
        const EXCHANGE = 2;
        /// Leave a character device of number 0 and mode 0, the caller's, in the place of the old
        /// name: overlay file systems know by it that what lies below is removed.
        const WHITEOUT = 4;
    }

    /// Flags of fallocate(2), as Linux numbers them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FallocateMode: u32 {
        /// Leave the file's length as it is.
        const KEEP_SIZE = 1;
        /// Make the range a hole; with KEEP_SIZE only.
        const PUNCH_HOLE = 2;
        /// Make the range read as zeros, allocated.
        const ZERO_RANGE = 16;
    }

    /// Flags of setxattr(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct XattrFlags: u32 {
        /// Fail with `EEXIST` when the attribute exists.
        const CREATE = 1;
        /// Fail with `ENODATA` when it does not.
        const REPLACE = 2;
    }
}

impl RenameFlags {
    /// Whether they go together.
    pub const fn agree(self) -> bool {
        !self.contains(RenameFlags::EXCHANGE) || self.bits() == RenameFlags::EXCHANGE.bits()
    }
}

/// The target of lseek(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The first byte at or after the offset that is stored.
    Data,
    /// The first byte at or after the offset in a hole; the end of file counts as one.
    Hole,
}

/// A place in an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAt {
    /// The file.
    pub ino: Ino,
    /// The handle that it is open by.
    pub handle: Handle,
    /// The byte.
    pub offset: u64,
}

/// Where a write went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes written, from the front of the data; less than asked only when space ran out.
    pub len: usize,
    /// Where the first byte went: the offset asked for, or the end of file with APPEND.
    pub offset: u64,
}

/// One entry of a directory listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: Ino,
    /// Type.
    pub file_type: FileType,
    /// Where to continue after this entry. Never 0, below 2^63; stays valid and names the same
    /// place whatever is created or removed meanwhile.
    pub cookie: u64,
    /// Name.
    pub name: &'a [u8],
}

/// The answer of statfs(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StatFs {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks in the file system.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Those of them that are not kept for the superuser.
    pub blocks_available: u64,
    /// Inodes that exist or could.
    pub files: u64,
    /// Inodes that could still be made.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}
