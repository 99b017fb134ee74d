//! The system calls of which the libraries have no safe form: the handle of an inode, as whom a
//! thread makes files, and locks of open file descriptions.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use atoll_vfs::LockKind;
use rustix::io::Errno;

/// The longest handle that a file system has (`MAX_HANDLE_SZ`), in bytes.
const HANDLE_MAX: usize = 128;
/// A handle that only tells inodes apart, which more file systems have (Linux 6.5).
pub(super) const AT_HANDLE_FID: i32 = 0x200;
/// The descriptor itself.
pub(super) const AT_EMPTY_PATH: i32 = 0x1000;

/// The handle of an inode: the same as long as the inode lives, and no other inode's before or
/// after. `file_handle` of open_by_handle_at(2).
#[repr(C)]
pub(super) struct FileHandle {
    len: u32,
    kind: i32,
    bytes: [u8; HANDLE_MAX],
}

impl FileHandle {
    /// The kind of the handle, and its bytes.
    pub(super) fn parts(&self) -> (i32, &[u8]) {
        (self.kind, &self.bytes[..(self.len as usize).min(HANDLE_MAX)])
    }
}

/// The handle of what `name` is in `dir`, and the number of its mount; symbolic links are not
/// followed.
pub(super) fn handle(
    dir: BorrowedFd<'_>,
    name: &CStr,
    flags: i32,
) -> rustix::io::Result<(FileHandle, u64)> {
    let mut handle = FileHandle { len: HANDLE_MAX as u32, kind: 0, bytes: [0; HANDLE_MAX] };
    let mut mount = 0i32;
    // SAFETY: the name ends by NUL, and the structure has room for as many bytes as it says.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_raw_fd(),
            name.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            flags,
        )
    };
    let mount = u64::try_from(mount).unwrap_or_default();
    if result == 0 { Ok((handle, mount)) } else { Err(last_error()) }
}

/// Has this thread make files as the user `uid`, and returns whether it does. It was another's.
pub(super) fn set_fs_user(uid: u32) -> bool {
    // SAFETY: the calls change this thread's credentials, on which no memory depends. The second
    // changes nothing, and says who the thread is.
    unsafe {
        libc::syscall(libc::SYS_setfsuid, uid);
        libc::syscall(libc::SYS_setfsuid, u32::MAX) == i64::from(uid)
    }
}

/// As [`set_fs_user`], for the group.
pub(super) fn set_fs_group(gid: u32) -> bool {
    // SAFETY: as in `set_fs_user`.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsgid, u32::MAX) == i64::from(gid)
    }
}

/// The lock of the bytes from `start` to `end`, as fcntl(2) has it.
fn described(kind: Option<LockKind>, start: u64, end: u64) -> libc::flock {
    let start = i64::try_from(start).unwrap_or(i64::MAX);
    // 0 is all that follows, wherever the file will end.
    let len = i64::try_from(end).map_or(0, |end| (end - start).checked_add(1).unwrap_or(0));
    let kind = match kind {
        Some(LockKind::Shared) => libc::F_RDLCK,
        Some(LockKind::Exclusive) => libc::F_WRLCK,
        None => libc::F_UNLCK,
    };
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Sets a lock of the open file description `fd`, without waiting: F_OFD_SETLK.
pub(super) fn set_lock(
    fd: BorrowedFd<'_>,
    kind: Option<LockKind>,
    start: u64,
    end: u64,
) -> rustix::io::Result<()> {
    let lock = described(kind, start, end);
    // SAFETY: the structure is one that the command takes, which reads it.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// The lock in the way of such a one of the open file description `fd`: F_OFD_GETLK.
pub(super) fn test_lock(
    fd: BorrowedFd<'_>,
    kind: LockKind,
    start: u64,
    end: u64,
) -> rustix::io::Result<Option<(LockKind, u64, u64)>> {
    let mut lock = described(Some(kind), start, end);
    // SAFETY: as in `set_lock`; this command writes it, too.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    if result != 0 {
        return Err(last_error());
    }
    let kind = match i32::from(lock.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_RDLCK => LockKind::Shared,
        _ => LockKind::Exclusive,
    };
    let start = lock.l_start.max(0) as u64;
    let end = if lock.l_len == 0 { u64::MAX } else { start + (lock.l_len.max(1) as u64 - 1) };
    Ok(Some((kind, start, end)))
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
