//! Error numbers of the file seam: Linux's, since FUSE carries them on the wire.

use core::fmt;

/// The result of a [`FileSystem`](crate::FileSystem) call.
pub type Result<T> = core::result::Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        /// Why a file system call failed, with the number that Linux gives it (errno(3)).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        #[non_exhaustive]
        #[allow(clippy::upper_case_acronyms)]
        pub enum Errno {
            $(#[doc = $text] $name = $value,)*
        }

        impl Errno {
            /// The error with Linux's number `value`, or `None` for one that the seam does not use.
            pub const fn from_raw(value: i32) -> Option<Errno> {
                match value {
                    $($value => Some(Errno::$name),)*
                    _ => None,
                }
            }

            /// The symbolic name, as in errno(3).
            pub const fn name(self) -> &'static str {
                match self {
                    $(Errno::$name => stringify!($name),)*
                }
            }

            /// A sentence fragment for people.
            pub const fn message(self) -> &'static str {
                match self {
                    $(Errno::$name => $text,)*
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument list too long";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "cross-device link";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files in the system";
    EMFILE = 24, "too many open files";
    ENOTTY = 25, "inappropriate ioctl for device";
    ETXTBSY = 26, "text file busy";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left on device";
    ESPIPE = 29, "illegal seek";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    EPIPE = 32, "broken pipe";
    ERANGE = 34, "result too large";
    EDEADLK = 35, "resource deadlock would occur";
    ENAMETOOLONG = 36, "file name too long";
    ENOLCK = 37, "no locks available";
    ENOSYS = 38, "function not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many levels of symbolic links";
    ENODATA = 61, "no data available";
    EOVERFLOW = 75, "value too large for defined data type";
    EUCLEAN = 117, "structure needs cleaning";
    EOPNOTSUPP = 95, "operation not supported";
    ESTALE = 116, "stale file handle";
    EDQUOT = 122, "disk quota exceeded";
}

impl Errno {
    /// Linux's number.
    pub const fn raw(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl core::error::Error for Errno {}
