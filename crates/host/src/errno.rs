//! Errors of the system as those of the file seam.

use atoll_vfs::Errno;

/// The error of the file seam for one of the system.
pub fn errno_of(error: std::io::Error) -> Errno {
    error.raw_os_error().and_then(Errno::from_raw).unwrap_or(Errno::EIO)
}
