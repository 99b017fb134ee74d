//! Why storage cannot be opened.

use atoll_virtio::DeviceError;
use rustix::io::Errno;

/// Why storage could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such file.
    NotFound,
    /// A file that was to be made exists.
    Exists,
    /// The file may not be accessed so by this user.
    PermissionDenied,
    /// The file is on a read-only file system, or the device is read-only.
    ReadOnlyMedium,
    /// Another process has it open as a volume, or the disk is claimed: mounted, or part of
    /// another.
    InUse {
        /// Which, if the kernel tells.
        pid: Option<u32>,
    },
    /// It is a directory, pipe, terminal or the like.
    NotStorage,
    /// It has not one whole block.
    TooSmall {
        /// Its length in bytes.
        bytes: u64,
        /// The length in bytes that was asked for.
        needed: u64,
    },
    /// Its file system cannot map files, or this process has no room for the mapping.
    NotMappable,
    /// There is no room for a file of that size, or the file system cannot have one.
    NoSpace,
    /// This process may not write files of the volume's size (RLIMIT_FSIZE).
    FileSizeLimit {
        /// The limit in bytes.
        limit: u64,
    },
    /// The back end of a disk cannot be used.
    BackEnd(DeviceError),
    /// It cannot be sealed: another process offers it.
    NotSealable,
    /// Another call on the host failed.
    Host {
        /// The name of the call.
        call: &'static str,
        /// The number of the error.
        errno: i32,
    },
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            OpenError::NotFound => f.write_str("no such file"),
            OpenError::Exists => f.write_str("the file exists already"),
            OpenError::PermissionDenied => f.write_str("permission denied"),
            OpenError::ReadOnlyMedium => f.write_str("the medium is read-only"),
            OpenError::InUse { pid: Some(pid) } => {
                write!(f, "the volume is in use by process {pid}; end that first")
            }
            OpenError::InUse { pid: None } => {
                f.write_str("the volume is in use by another process, or mounted; end that first")
            }
            OpenError::NotStorage => f.write_str("neither a regular file nor a block device"),
            OpenError::TooSmall { bytes, needed } => {
                write!(f, "{bytes} bytes long, where {needed} are needed")
            }
            OpenError::NotMappable => f.write_str(
                "it cannot be mapped into memory: its file system cannot, or this process may not have as much \
                 memory as the volume is large (`ulimit -v`)",
            ),
            OpenError::NoSpace => f.write_str("no space for a file of that size"),
            OpenError::FileSizeLimit { limit } => write!(
                f,
                "larger than the {limit} bytes that this process may write; raise `ulimit -f`"
            ),
            OpenError::BackEnd(error) => write!(f, "its back end: {error}"),
            OpenError::NotSealable => f.write_str("what another process offers cannot be sealed"),
            OpenError::Host { call, errno } => {
                write!(f, "{call}: {}", std::io::Error::from_raw_os_error(errno))
            }
        }
    }
}

impl core::error::Error for OpenError {}

/// What a failed `call` of the host means for who opens storage.
pub(super) fn host(call: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| match errno {
        Errno::NOENT | Errno::NOTDIR => OpenError::NotFound,
        Errno::EXIST => OpenError::Exists,
        Errno::ACCESS | Errno::PERM => OpenError::PermissionDenied,
        Errno::ROFS => OpenError::ReadOnlyMedium,
        Errno::ISDIR | Errno::NXIO => OpenError::NotStorage,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => OpenError::NoSpace,
        errno => OpenError::Host { call, errno: errno.raw_os_error() },
    }
}
