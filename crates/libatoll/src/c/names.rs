//! Making, moving and removing names.

use core::ffi::{c_char, c_int, c_uint};

use atoll_posix::{AT_FDCWD, AtFlags};
use atoll_vfs::RenameFlags;
use libc::{dev_t, mode_t, size_t, ssize_t};

use super::{at_flags, bytes, on_path, output, zero};
use crate::process::Error;

/// mkdir(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_mkdir(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: as the caller says.
    unsafe { atoll_mkdirat(AT_FDCWD, path, mode) }
}

/// mkdirat(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_mkdirat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: as the caller says.
    on_path(|volume| zero(volume.mkdirat(dirfd, unsafe { bytes(path) }?, mode)))
}

/// mknod(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_mknod(path: *const c_char, mode: mode_t, dev: dev_t) -> c_int {
    // SAFETY: as the caller says.
    unsafe { atoll_mknodat(AT_FDCWD, path, mode, dev) }
}

/// mknodat(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_mknodat(
    dirfd: c_int,
    path: *const c_char,
    mode: mode_t,
    dev: dev_t,
) -> c_int {
    on_path(|volume| {
        // SAFETY: as the caller says.
        let path = unsafe { bytes(path) }?;
        // The volume keeps device numbers in 32 bits, as the kernel does.
        let dev = u32::try_from(dev).map_err(|_| Error(libc::EINVAL))?;
        zero(volume.mknodat(dirfd, path, mode, dev))
    })
}

/// symlink(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_symlink(target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    unsafe { atoll_symlinkat(target, AT_FDCWD, path) }
}

/// symlinkat(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_symlinkat(
    target: *const c_char,
    dirfd: c_int,
    path: *const c_char,
) -> c_int {
    on_path(|volume| {
        // SAFETY: as the caller says.
        let (target, path) = unsafe { (bytes(target)?, bytes(path)?) };
        zero(volume.symlinkat(target, dirfd, path))
    })
}

/// link(2), which does not follow a symbolic link.
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_link(old: *const c_char, new: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    unsafe { atoll_linkat(AT_FDCWD, old, AT_FDCWD, new, 0) }
}

/// linkat(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_linkat(
    old_dirfd: c_int,
    old: *const c_char,
    new_dirfd: c_int,
    new: *const c_char,
    flags: c_int,
) -> c_int {
    on_path(|volume| {
        // SAFETY: as the caller says.
        let (old, new) = unsafe { (bytes(old)?, bytes(new)?) };
        let flags = at_flags(flags, AtFlags::SYMLINK_FOLLOW | AtFlags::EMPTY_PATH)?;
        zero(volume.linkat(old_dirfd, old, new_dirfd, new, flags))
    })
}

/// readlink(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_readlink(
    path: *const c_char,
    buf: *mut c_char,
    size: size_t,
) -> ssize_t {
    // SAFETY: as the caller says.
    unsafe {
        // Only readlinkat gives an empty path a meaning.
        if !path.is_null() && *path == 0 {
            return super::fail(Error(libc::ENOENT));
        }
        atoll_readlinkat(AT_FDCWD, path, buf, size)
    }
}

/// readlinkat(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_readlinkat(
    dirfd: c_int,
    path: *const c_char,
    buf: *mut c_char,
    size: size_t,
) -> ssize_t {
    on_path(|volume| {
        // SAFETY: as the caller says.
        let (path, buf) = unsafe { (bytes(path)?, output(buf.cast(), size)?) };
        Ok(volume.readlinkat(dirfd, path, buf)? as ssize_t)
    })
}

/// unlink(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_unlink(path: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    unsafe { atoll_unlinkat(AT_FDCWD, path, 0) }
}

/// unlinkat(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
    on_path(|volume| {
        // SAFETY: as the caller says.
        let path = unsafe { bytes(path) }?;
        zero(volume.unlinkat(dirfd, path, at_flags(flags, AtFlags::REMOVEDIR)?))
    })
}

/// rmdir(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_rmdir(path: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    unsafe { atoll_unlinkat(AT_FDCWD, path, libc::AT_REMOVEDIR) }
}

/// remove(3): a file or an empty directory.
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_remove(path: *const c_char) -> c_int {
    on_path(|volume| {
        // SAFETY: as the caller says.
        let path = unsafe { bytes(path) }?;
        match volume.unlink(path) {
            Err(atoll_vfs::Errno::EISDIR) => zero(volume.rmdir(path)),
            done => zero(done),
        }
    })
}

/// rename(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_rename(old: *const c_char, new: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    unsafe { atoll_renameat2(AT_FDCWD, old, AT_FDCWD, new, 0) }
}

/// renameat(2).
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_renameat(
    old_dirfd: c_int,
    old: *const c_char,
    new_dirfd: c_int,
    new: *const c_char,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { atoll_renameat2(old_dirfd, old, new_dirfd, new, 0) }
}

/// renameat2(2) with `RENAME_NOREPLACE` and `RENAME_EXCHANGE`.
///
/// # Safety
/// See [`c`](super).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_renameat2(
    old_dirfd: c_int,
    old: *const c_char,
    new_dirfd: c_int,
    new: *const c_char,
    flags: c_uint,
) -> c_int {
    on_path(|volume| {
        // SAFETY: as the caller says.
        let (old, new) = unsafe { (bytes(old)?, bytes(new)?) };
        let flags = RenameFlags::from_bits(flags).ok_or(Error(libc::EINVAL))?;
        zero(volume.renameat2(old_dirfd, old, new_dirfd, new, flags))
    })
}
