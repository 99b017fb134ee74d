//! The arguments of the calls, in the numbers of Linux's generic ABI (those of x86-64).

use bitflags::bitflags;

/// As a directory descriptor: the working directory.
pub const AT_FDCWD: i32 = -100;

bitflags! {
    /// Flags of open(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OFlags: u32 {
        /// Writing only (reading only is the absence of both).
        const WRONLY = 0o1;
        /// Reading and writing.
        const RDWR = 0o2;
        /// Create the file if it is missing.
        const CREAT = 0o100;
        /// With CREAT: fail if it exists.
        const EXCL = 0o200;
        /// Empty the file.
        const TRUNC = 0o1000;
        /// Write at the end, always.
        const APPEND = 0o2000;
        /// Accepted, no effect: files never block.
        const NONBLOCK = 0o4000;
        /// Each write is durable, with the metadata to read it back, before it returns.
        const DSYNC = 0o10000;
        /// Fail unless it is a directory.
        const DIRECTORY = 0o200000;
        /// Fail if the last component is a symbolic link.
        const NOFOLLOW = 0o400000;
        /// Reading does not set the time of last access.
        const NOATIME = 0o1000000;
        /// The descriptor is closed by exec.
        const CLOEXEC = 0o2000000;
        /// The part of SYNC beyond DSYNC.
        const SYNC_BIT = 0o4000000;
        /// Each write is durable, timestamps included, before it returns.
        const SYNC = Self::SYNC_BIT.bits() | Self::DSYNC.bits();
        /// Name the file only: neither reading nor writing.
        const PATH = 0o10000000;
        /// The part of TMPFILE beyond DIRECTORY.
        const TMPFILE_BIT = 0o20000000;
        /// Make a file without a name in the directory.
        const TMPFILE = Self::TMPFILE_BIT.bits() | Self::DIRECTORY.bits();
    }

    /// Flags of the calls whose names end in `at`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AtFlags: u32 {
        /// Act on a symbolic link itself.
        const SYMLINK_NOFOLLOW = 0x100;
        /// unlinkat: remove a directory.
        const REMOVEDIR = 0x200;
        /// faccessat: judge by the effective identity (the only one there is).
        const EACCESS = 0x200;
        /// linkat: follow a symbolic link.
        const SYMLINK_FOLLOW = 0x400;
        /// An empty path means the descriptor itself.
        const EMPTY_PATH = 0x1000;
    }

    /// The rights that access(2) asks for; empty asks whether the file exists.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AccessMode: u32 {
        /// Execute a file, search a directory.
        const EXECUTE = 1;
        /// Write.
        const WRITE = 2;
        /// Read.
        const READ = 4;
    }
}

impl OFlags {
    /// The flags that fcntl(2) with F_SETFL can change.
    pub const SETTABLE: OFlags = OFlags::APPEND.union(OFlags::NONBLOCK).union(OFlags::NOATIME);

    /// The flags that an open file description remembers and F_GETFL returns.
    pub(crate) const STATUS: OFlags = OFlags::WRONLY
        .union(OFlags::RDWR)
        .union(OFlags::APPEND)
        .union(OFlags::NONBLOCK)
        .union(OFlags::SYNC)
        .union(OFlags::DIRECTORY)
        .union(OFlags::NOFOLLOW)
        .union(OFlags::NOATIME)
        .union(OFlags::PATH);
}

/// Where lseek(2) counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The beginning.
    Set,
    /// The descriptor's offset.
    Current,
    /// The end of file.
    End,
    /// To the next data at or after the offset.
    Data,
    /// To the next hole at or after the offset.
    Hole,
}
