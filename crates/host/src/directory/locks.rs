//! Locks of the host's files, which its programs see and whose locks hold for clients: those of
//! open file descriptions, fcntl(2) with F_OFD_SETLK and flock(2).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use atoll_vfs::{Errno, Handle, Ino, LockKind, OpenFlags, OutsideLocks, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};

use super::{HostDirectory, calls, errno};

/// An open file through which locks are taken.
struct Lockable {
    fd: Arc<OwnedFd>,
    rights: OpenFlags,
    descriptors: BorrowedFd<'static>,
}

impl HostDirectory {
    /// What is open as `handle`, to be locked.
    pub(super) fn lockable(&mut self, ino: Ino, handle: Handle) -> Result<Arc<dyn OutsideLocks>> {
        self.table.get(ino)?;
        let open = self.open.get(&handle.0).filter(|open| open.ino == ino).ok_or(Errno::EBADF)?;
        let (fd, rights, descriptors) = (Arc::clone(&open.fd), open.rights(), self.descriptors);
        Ok(Arc::new(Lockable { fd, rights, descriptors }))
    }
}

/// The outcome of a call about locks. A file system that has none leaves the clients their own.
fn outcome(result: rustix::io::Result<()>) -> Result<()> {
    use rustix::io::Errno as Raw;
    match result {
        Err(Raw::INVAL | Raw::NOSYS | Raw::OPNOTSUPP) => Ok(()),
        Err(Raw::AGAIN | Raw::ACCESS) => Err(Errno::EAGAIN),
        result => result.map_err(errno),
    }
}

impl OutsideLocks for Lockable {
    fn allows(&self, kind: LockKind) -> bool {
        self.rights.contains(match kind {
            LockKind::Shared => OpenFlags::READ,
            LockKind::Exclusive => OpenFlags::WRITE,
        })
    }

    fn for_both(&self) -> Result<Arc<dyn OutsideLocks>> {
        let number = self.fd.as_raw_fd().to_string();
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self.descriptors, number.as_str(), flags, Mode::empty());
        let fd = Arc::new(fd.map_err(errno)?);
        let rights = OpenFlags::READ | OpenFlags::WRITE;
        Ok(Arc::new(Lockable { fd, rights, descriptors: self.descriptors }))
    }

    fn set(&self, kind: Option<LockKind>, start: u64, end: u64) -> Result<()> {
        outcome(calls::set_lock(self.fd.as_fd(), kind, start, end))
    }

    fn test(&self, kind: LockKind, start: u64, end: u64) -> Result<Option<(LockKind, u64, u64)>> {
        let mut found = None;
        let tested = calls::test_lock(self.fd.as_fd(), kind, start, end);
        outcome(tested.map(|lock| found = lock))?;
        Ok(found)
    }

    fn set_whole(&self, kind: Option<LockKind>) -> Result<()> {
        outcome(rustix::fs::flock(
            &self.fd,
            match kind {
                Some(LockKind::Shared) => FlockOperation::NonBlockingLockShared,
                Some(LockKind::Exclusive) => FlockOperation::NonBlockingLockExclusive,
                None => FlockOperation::NonBlockingUnlock,
            },
        ))
    }
}
