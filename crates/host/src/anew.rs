//! Memory that is handed out with fewer rights than its maker has: its descriptor is opened anew.
//!
//! A memfd has one owner and a mode like any file. With the mode 0600 no other user opens it for
//! more than what it is handed.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as RawErrno;

/// /proc/self/fd, by which descriptors are opened anew: opened before the process is confined.
static DESCRIPTORS: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// How descriptors are opened anew, for reading only and for both: the seccomp filter lets pass
/// just these flags.
pub(crate) const REOPEN: [OFlags; 2] = {
    // The system call layer adds the second.
    let always = OFlags::CLOEXEC.union(OFlags::LARGEFILE);
    [OFlags::RDONLY.union(always), OFlags::RDWR.union(always)]
};

/// The directory through which descriptors are opened anew; `None` without /proc, or where files
/// are limited in length (RLIMIT_FSIZE), which would limit the memory too.
pub(crate) fn descriptors() -> Option<&'static OwnedFd> {
    let open = || {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        if limit.current.is_some() {
            return None;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open("/proc/self/fd", flags, Mode::empty()).ok()
    };
    DESCRIPTORS.get_or_init(open).as_ref()
}

/// Opens the file of `fd` anew, with an open file description of its own.
///
/// # Errors
/// `ENOSYS` where that cannot be done; `EMFILE`, `ENFILE`.
pub(crate) fn reopen(fd: &OwnedFd, writable: bool) -> io::Result<OwnedFd> {
    let directory = descriptors().ok_or(RawErrno::NOSYS)?;
    let number = fd.as_raw_fd().to_string();
    Ok(rustix::fs::openat(directory, number, REOPEN[usize::from(writable)], Mode::empty())?)
}
