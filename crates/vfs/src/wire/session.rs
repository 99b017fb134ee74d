//! The beginning of a session: version, features, Atoll's extensions.

use bitflags::bitflags;

use super::fixed::{constants, fixed};

/// The major version of the protocol.
pub const MAJOR: u32 = 7;
/// The minor version that Atoll speaks.
pub const MINOR: u32 = 46;
/// The oldest minor version of a peer: the first with the layouts of today.
pub const MINOR_MIN: u32 = 23;

fixed! {
    /// The arguments of INIT. `atoll` is the last of the words that FUSE does not use.
    InitIn = "fuse_init_in" 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags2: u32,
        unused: [u32; 10],
        atoll: u32,
    }
    /// The answer to INIT. `atoll` is the last of the words that FUSE does not use.
    InitOut = "fuse_init_out" 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 9],
        atoll: u32,
    }
    /// The arguments of INTERRUPT.
    InterruptIn = "fuse_interrupt_in" 8 {
        unique: u64,
    }
}

/// The length of INIT's arguments before FUSE 7.36, in bytes.
pub const INIT_IN_OLD_SIZE: usize = 16;

constants! { u64:
    FUSE_ASYNC_READ = 1 << 0, "Reads may be answered in any order.";
    FUSE_POSIX_LOCKS = 1 << 1, "The server keeps the locks of fcntl(2).";
    FUSE_FILE_OPS = 1 << 2, "Nothing: GETATTR says for itself whether it has a handle.";
    FUSE_ATOMIC_O_TRUNC = 1 << 3, "The server empties files that are opened with O_TRUNC.";
    FUSE_EXPORT_SUPPORT = 1 << 4, "The server finds `.` and `..`.";
    FUSE_BIG_WRITES = 1 << 5, "Writes may be larger than a page.";
    FUSE_DONT_MASK = 1 << 6, "The server applies umasks.";
    FUSE_SPLICE_WRITE = 1 << 7, "The device takes pages of pipes.";
    FUSE_SPLICE_MOVE = 1 << 8, "The device moves pages of pipes.";
    FUSE_SPLICE_READ = 1 << 9, "The device gives pages to pipes.";
    FUSE_FLOCK_LOCKS = 1 << 10, "The server keeps the locks of flock(2).";
    FUSE_HAS_IOCTL_DIR = 1 << 11, "Directories take ioctl(2).";
    FUSE_AUTO_INVAL_DATA = 1 << 12, "Pages go when attributes say that the file has changed.";
    FUSE_DO_READDIRPLUS = 1 << 13, "The server answers READDIRPLUS.";
    FUSE_READDIRPLUS_AUTO = 1 << 14, "The client chooses between READDIR and READDIRPLUS.";
    FUSE_ASYNC_DIO = 1 << 15, "Direct requests of one call may overlap.";
    FUSE_WRITEBACK_CACHE = 1 << 16, "The kernel keeps writes back.";
    FUSE_NO_OPEN_SUPPORT = 1 << 17, "The kernel can do without OPEN.";
    FUSE_PARALLEL_DIROPS = 1 << 18, "Lookups and listings of a directory may overlap.";
    FUSE_HANDLE_KILLPRIV = 1 << 19, "The server takes set-ID bits and capabilities from what is changed.";
    FUSE_POSIX_ACL = 1 << 20, "The kernel judges by access lists that the server stores.";
    FUSE_ABORT_ERROR = 1 << 21, "The device says that its connection was aborted.";
    FUSE_MAX_PAGES = 1 << 22, "`max_pages` is valid.";
    FUSE_CACHE_SYMLINKS = 1 << 23, "The kernel keeps targets of symbolic links.";
    FUSE_NO_OPENDIR_SUPPORT = 1 << 24, "The kernel can do without OPENDIR.";
    FUSE_EXPLICIT_INVAL_DATA = 1 << 25, "Pages go only when the server says so.";
    FUSE_MAP_ALIGNMENT = 1 << 26, "`map_alignment` is valid.";
    FUSE_SUBMOUNTS = 1 << 27, "The server marks roots of other file systems.";
    FUSE_HANDLE_KILLPRIV_V2 = 1 << 28, "The server takes set-ID bits as Linux does, where a request asks for it.";
    FUSE_SETXATTR_EXT = 1 << 29, "SETXATTR has its longer arguments.";
    FUSE_INIT_EXT = 1 << 30, "`flags2` is valid.";
    FUSE_INIT_RESERVED = 1 << 31, "Nothing.";
    FUSE_SECURITY_CTX = 1 << 32, "What makes a file says its security label.";
    FUSE_HAS_INODE_DAX = 1 << 33, "The server says which files are mapped.";
    FUSE_CREATE_SUPP_GROUP = 1 << 34, "What makes a file says the caller's group that its directory has.";
    FUSE_HAS_EXPIRE_ONLY = 1 << 35, "A name can be made to expire by a notification.";
    FUSE_DIRECT_IO_ALLOW_MMAP = 1 << 36, "Files with FOPEN_DIRECT_IO can be mapped shared.";
    FUSE_PASSTHROUGH = 1 << 37, "The kernel reads and writes files of another file system instead.";
    FUSE_NO_EXPORT_SUPPORT = 1 << 38, "The kernel makes no file handles of its own.";
    FUSE_HAS_RESEND = 1 << 39, "The kernel sends again what has no answer.";
    FUSE_ALLOW_IDMAP = 1 << 40, "The mount may show other owners.";
    FUSE_OVER_IO_URING = 1 << 41, "Requests come by io_uring.";
    FUSE_REQUEST_TIMEOUT = 1 << 42, "`request_timeout` is valid.";
    FUSE_HAS_IO_URING_BUFPOOL = 1 << 43, "Queues of io_uring have pools of buffers.";
}

/// The highest bit of `flags2`: [`InitIn::atoll`] or [`InitOut::atoll`] is valid. Both are needed,
/// so that FUSE may give either out some day and nothing is misunderstood.
pub const FLAGS2_ATOLL: u32 = 1 << 31;

bitflags! {
    /// Atoll's extensions of FUSE. The client offers, the server answers with those that count.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Extensions: u32 {
        /// Every `fuse_attr` that ends an `fuse_entry_out` or `fuse_attr_out` is followed by the
        /// btime in 16 bytes: a [`Time`](super::attributes::Time).
        const BTIME = 1;
        /// The server appends what is written to a file that was opened with O_APPEND, and says
        /// where the first byte went: eight bytes after `fuse_write_out`.
        const APPEND = 2;
        /// Requests end with the client's time, which is the time of the call: see
        /// [`EXT_TIME`](super::header::EXT_TIME).
        const TIME = 4;
    }
}

impl InitIn {
    /// The offer of a client.
    pub fn new(flags: u64, extensions: Extensions) -> Self {
        let mut args = InitIn {
            major: MAJOR,
            minor: MINOR,
            max_readahead: u32::MAX,
            flags: (flags | FUSE_INIT_EXT) as u32,
            flags2: (flags >> 32) as u32,
            ..InitIn::default()
        };
        if !extensions.is_empty() {
            args.flags2 |= FLAGS2_ATOLL;
            args.atoll = extensions.bits();
        }
        args
    }

    /// The features offered.
    pub fn features(&self) -> u64 {
        features(self.flags, self.flags2)
    }

    /// The extensions offered.
    pub fn extensions(&self) -> Extensions {
        extensions(self.features(), self.atoll)
    }
}

impl InitOut {
    /// The features that count.
    pub fn features(&self) -> u64 {
        features(self.flags, self.flags2)
    }

    /// The extensions that count.
    pub fn extensions(&self) -> Extensions {
        extensions(self.features(), self.atoll)
    }
}

fn features(flags: u32, flags2: u32) -> u64 {
    let high = if u64::from(flags) & FUSE_INIT_EXT != 0 { flags2 } else { 0 };
    u64::from(flags) | u64::from(high) << 32
}

fn extensions(features: u64, atoll: u32) -> Extensions {
    if features >> 32 & u64::from(FLAGS2_ATOLL) == 0 {
        return Extensions::empty();
    }
    Extensions::from_bits_truncate(atoll)
}
