//! Open files.

use super::fixed::{constants, fixed};
use crate::types::OpenFlags;

fixed! {
    /// The arguments of OPEN and OPENDIR.
    OpenIn = "fuse_open_in" 8 {
        flags: u32,
        open_flags: u32,
    }
    /// The arguments of CREATE and TMPFILE; the name follows.
    CreateIn = "fuse_create_in" 16 {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }
    /// The answer to what opens.
    OpenOut = "fuse_open_out" 16 {
        fh: u64,
        open_flags: u32,
        backing_id: i32,
    }
    /// The arguments of READ, READDIR and READDIRPLUS.
    ReadIn = "fuse_read_in" 40 {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// The arguments of WRITE; the data follows.
    WriteIn = "fuse_write_in" 40 {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// The answer to WRITE. When agreed, the offset of the first byte follows in eight bytes.
    WriteOut = "fuse_write_out" 8 {
        size: u32,
        padding: u32,
    }
    /// The arguments of IOCTL; data follows.
    IoctlIn = "fuse_ioctl_in" 32 {
        fh: u64,
        flags: u32,
        cmd: u32,
        arg: u64,
        in_size: u32,
        out_size: u32,
    }
    /// A piece of a program's memory that IOCTL is to be asked again with.
    IoctlIovec = "fuse_ioctl_iovec" 16 {
        base: u64,
        len: u64,
    }
    /// The answer to IOCTL; data follows.
    IoctlOut = "fuse_ioctl_out" 16 {
        result: i32,
        flags: u32,
        in_iovs: u32,
        out_iovs: u32,
    }
    /// The arguments of FALLOCATE.
    FallocateIn = "fuse_fallocate_in" 32 {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
        padding: u32,
    }
    /// The arguments of LSEEK.
    LseekIn = "fuse_lseek_in" 24 {
        fh: u64,
        offset: u64,
        whence: u32,
        padding: u32,
    }
    /// The answer to LSEEK.
    LseekOut = "fuse_lseek_out" 8 {
        offset: u64,
    }
    /// The arguments of COPY_FILE_RANGE and COPY_FILE_RANGE_64; the header names the inode that is
    /// read.
    CopyFileRangeIn = "fuse_copy_file_range_in" 56 {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }
    /// The answer to COPY_FILE_RANGE_64. COPY_FILE_RANGE has that of WRITE.
    CopyFileRangeOut = "fuse_copy_file_range_out" 8 {
        bytes_copied: u64,
    }
    /// The arguments of FSYNC and FSYNCDIR.
    FsyncIn = "fuse_fsync_in" 16 {
        fh: u64,
        fsync_flags: u32,
        padding: u32,
    }
    /// The arguments of FLUSH.
    FlushIn = "fuse_flush_in" 24 {
        fh: u64,
        unused: u32,
        padding: u32,
        lock_owner: u64,
    }
    /// The arguments of RELEASE and RELEASEDIR.
    ReleaseIn = "fuse_release_in" 24 {
        fh: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    }
    /// The arguments of POLL.
    PollIn = "fuse_poll_in" 24 {
        fh: u64,
        kh: u64,
        flags: u32,
        events: u32,
    }
    /// The answer to POLL.
    PollOut = "fuse_poll_out" 8 {
        revents: u32,
        padding: u32,
    }
    /// The arguments of BMAP.
    BmapIn = "fuse_bmap_in" 16 {
        block: u64,
        blocksize: u32,
        padding: u32,
    }
    /// The answer to BMAP.
    BmapOut = "fuse_bmap_out" 8 {
        block: u64,
    }
    /// The arguments of SYNCFS.
    SyncfsIn = "fuse_syncfs_in" 8 {
        padding: u64,
    }
}

constants! { u32:
    FOPEN_DIRECT_IO = 1 << 0, "Of an answer that opens: reads and writes pass the page cache by.";
    FOPEN_KEEP_CACHE = 1 << 1, "The pages of the file that are cached stay.";
    FOPEN_CACHE_DIR = 1 << 3, "The listing may be cached.";
    FUSE_WRITE_CACHE = 1 << 0, "Of WRITE: the kernel writes back pages of a shared mapping.";
    FUSE_READ_LOCKOWNER = 1 << 1, "Of READ: a program reads, by a descriptor.";
    FUSE_IOCTL_DIR = 1 << 4, "Of IOCTL: by a descriptor of a directory.";
    FUSE_FSYNC_FDATASYNC = 1 << 0, "Of FSYNC: timestamps may be left behind.";
}

/// Of [`LseekIn::whence`].
pub const SEEK_DATA: u32 = 3;
/// Of [`LseekIn::whence`].
pub const SEEK_HOLE: u32 = 4;

// Flags of open(2), as asm-generic/fcntl.h numbers them.
const O_ACCMODE: u32 = 3;
const O_WRONLY: u32 = 1;
const O_RDWR: u32 = 2;
/// Of [`CreateIn::flags`]: always there, and means nothing more than the request does.
pub const O_CREAT: u32 = 0o100;
const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;
/// Of open(2) on Linux: in [`WriteIn::flags`], to be written at the end of the file.
pub const O_APPEND: u32 = 0o2000;
/// Flag of open(2): a write returns when what is needed to read it is durable.
pub const O_DSYNC: u32 = 0o10000;
/// Flag of open(2): when everything about it is.
pub const O_SYNC: u32 = 0o4000000 | O_DSYNC;
/// Of open(2) on Linux: in [`ReadIn::flags`], a read that sets no time of last access.
pub const O_NOATIME: u32 = 0o1000000;

/// The flags of open(2) that say `flags`. The access mode 3, which Linux has for descriptors that
/// can neither be read nor written, says just that.
#[inline]
pub fn open_bits(flags: OpenFlags) -> u32 {
    let mut bits = match (flags.contains(OpenFlags::READ), flags.contains(OpenFlags::WRITE)) {
        (true, false) => 0,
        (false, true) => O_WRONLY,
        (true, true) => O_RDWR,
        (false, false) => O_ACCMODE,
    };
    for (flag, bit) in [
        (OpenFlags::EXCL, O_EXCL),
        (OpenFlags::TRUNC, O_TRUNC),
        (OpenFlags::APPEND, O_APPEND),
        (OpenFlags::NOATIME, O_NOATIME),
    ] {
        if flags.contains(flag) {
            bits |= bit;
        }
    }
    bits
}

/// The seam's flags for those of open(2).
#[inline]
pub fn open_flags(bits: u32) -> OpenFlags {
    let mut flags = match bits & O_ACCMODE {
        0 => OpenFlags::READ,
        O_WRONLY => OpenFlags::WRITE,
        O_RDWR => OpenFlags::READ | OpenFlags::WRITE,
        _ => OpenFlags::empty(),
    };
    flags.set(OpenFlags::EXCL, bits & O_EXCL != 0);
    flags.set(OpenFlags::TRUNC, bits & O_TRUNC != 0);
    flags.set(OpenFlags::APPEND, bits & O_APPEND != 0);
    flags.set(OpenFlags::NOATIME, bits & O_NOATIME != 0);
    flags
}
