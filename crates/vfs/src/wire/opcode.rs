//! The numbers of the requests.

super::fixed::constants! { u32:
    FUSE_LOOKUP = 1, "Find a name.";
    FUSE_FORGET = 2, "Drop references to an inode. Not answered.";
    FUSE_GETATTR = 3, "Attributes.";
    FUSE_SETATTR = 4, "Change attributes.";
    FUSE_READLINK = 5, "Target of a symbolic link.";
    FUSE_SYMLINK = 6, "Make a symbolic link.";
    FUSE_MKNOD = 8, "Make a file.";
    FUSE_MKDIR = 9, "Make a directory.";
    FUSE_UNLINK = 10, "Remove a name.";
    FUSE_RMDIR = 11, "Remove a directory.";
    FUSE_RENAME = 12, "Rename, without flags.";
    FUSE_LINK = 13, "Add a name.";
    FUSE_OPEN = 14, "Open a file.";
    FUSE_READ = 15, "Read a file.";
    FUSE_WRITE = 16, "Write a file.";
    FUSE_STATFS = 17, "State of the file system.";
    FUSE_RELEASE = 18, "Close a file.";
    FUSE_FSYNC = 20, "Make a file durable.";
    FUSE_SETXATTR = 21, "Set an extended attribute.";
    FUSE_GETXATTR = 22, "Value of an extended attribute.";
    FUSE_LISTXATTR = 23, "Names of extended attributes.";
    FUSE_REMOVEXATTR = 24, "Remove an extended attribute.";
    FUSE_FLUSH = 25, "A descriptor is closed.";
    FUSE_INIT = 26, "Agree on a version and on features.";
    FUSE_OPENDIR = 27, "Open a directory.";
    FUSE_READDIR = 28, "List a directory.";
    FUSE_RELEASEDIR = 29, "Close a directory.";
    FUSE_FSYNCDIR = 30, "Make a directory durable.";
    FUSE_GETLK = 31, "What lock stands in the way.";
    FUSE_SETLK = 32, "Take or drop a lock, if that needs no wait.";
    FUSE_SETLKW = 33, "Take or drop a lock.";
    FUSE_ACCESS = 34, "Check permissions.";
    FUSE_CREATE = 35, "Make and open a file.";
    FUSE_INTERRUPT = 36, "Give up a request.";
    FUSE_BMAP = 37, "The block of a device that a block of a file is.";
    FUSE_DESTROY = 38, "The end of the session.";
    FUSE_IOCTL = 39, "What only this kind of file system knows.";
    FUSE_POLL = 40, "Whether a descriptor is ready. Atoll's files always are.";
    FUSE_NOTIFY_REPLY = 41, "The answer to FUSE_NOTIFY_RETRIEVE. Not answered.";
    FUSE_BATCH_FORGET = 42, "Drop references to several inodes. Not answered.";
    FUSE_FALLOCATE = 43, "Allocate, punch or zero a range.";
    FUSE_READDIRPLUS = 44, "List a directory with attributes.";
    FUSE_RENAME2 = 45, "Rename.";
    FUSE_LSEEK = 46, "Find data or a hole.";
    FUSE_COPY_FILE_RANGE = 47, "Copy from file to file, less than 4 GiB.";
    FUSE_SETUPMAPPING = 48, "Show a range of a file in the window of memory of a virtual machine.";
    FUSE_REMOVEMAPPING = 49, "Take ranges out of that window.";
    FUSE_SYNCFS = 50, "Make everything durable.";
    FUSE_TMPFILE = 51, "Make and open a file without a name.";
    FUSE_STATX = 52, "Attributes, and the time of creation.";
    FUSE_COPY_FILE_RANGE_64 = 53, "Copy from file to file.";
}

/// Use an open file of another session. Atoll's own, far from what FUSE counts up from: see
/// [`AdoptIn`](super::adopt::AdoptIn).
pub const ATOLL_ADOPT: u32 = 0xa701_0001;
/// The same by its inode and the access mode that it is open with, in the arguments of OPEN.
pub const ATOLL_ADOPT_OPEN: u32 = 0xa701_0002;
