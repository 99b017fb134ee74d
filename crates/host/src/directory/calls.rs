//! The system calls of which the libraries have no safe form: the handle of an inode, and as whom
//! a thread makes files.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

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

/// The handle of what `name` is in `dir`; symbolic links are not followed.
pub(super) fn handle(
    dir: BorrowedFd<'_>,
    name: &CStr,
    flags: i32,
) -> rustix::io::Result<FileHandle> {
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
    if result == 0 { Ok(handle) } else { Err(last_error()) }
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

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
