//! Making, moving and removing names.

use core::ffi::{c_char, c_int, c_uint};

use atoll_posix::{AT_FDCWD, AtFlags};
use atoll_vfs::RenameFlags;
use libc::{dev_t, mode_t, size_t, ssize_t};

use super::{at_flags, bytes, on_path, output, zero};
use crate::process::Error;

calls! {
    /// mkdir(2).
    fn atoll_mkdir(path: *const c_char, mode: mode_t) -> c_int
        = atoll_mkdirat(AT_FDCWD, path, mode);

    /// mkdirat(2).
    fn atoll_mkdirat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int
        = on_path |volume| zero(volume.mkdirat(dirfd, bytes(path)?, mode));

    /// mknod(2).
    fn atoll_mknod(path: *const c_char, mode: mode_t, dev: dev_t) -> c_int
        = atoll_mknodat(AT_FDCWD, path, mode, dev);

    /// mknodat(2).
    fn atoll_mknodat(dirfd: c_int, path: *const c_char, mode: mode_t, dev: dev_t) -> c_int
        = on_path |volume| {
        let path = bytes(path)?;
        // The volume keeps device numbers in 32 bits, as the kernel does.
        let dev = u32::try_from(dev).map_err(|_| Error(libc::EINVAL))?;
        zero(volume.mknodat(dirfd, path, mode, dev))
    };

    /// symlink(2).
    fn atoll_symlink(target: *const c_char, path: *const c_char) -> c_int
        = atoll_symlinkat(target, AT_FDCWD, path);

    /// symlinkat(2).
    fn atoll_symlinkat(target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int
        = on_path |volume| {
        let (target, path) = (bytes(target)?, bytes(path)?);
        zero(volume.symlinkat(target, dirfd, path))
    };

    /// link(2), which does not follow a symbolic link.
    fn atoll_link(old: *const c_char, new: *const c_char) -> c_int
        = atoll_linkat(AT_FDCWD, old, AT_FDCWD, new, 0);

    /// linkat(2).
    fn atoll_linkat(
        old_dirfd: c_int,
        old: *const c_char,
        new_dirfd: c_int,
        new: *const c_char,
        flags: c_int,
    ) -> c_int = on_path |volume| {
        let (old, new) = (bytes(old)?, bytes(new)?);
        let flags = at_flags(flags, AtFlags::SYMLINK_FOLLOW | AtFlags::EMPTY_PATH)?;
        zero(volume.linkat(old_dirfd, old, new_dirfd, new, flags))
    };

    /// readlink(2), to which an empty path means nothing.
    fn atoll_readlink(path: *const c_char, buf: *mut c_char, size: size_t) -> ssize_t
        = if !path.is_null() && *path == 0 {
            super::fail(Error(libc::ENOENT))
        } else {
            atoll_readlinkat(AT_FDCWD, path, buf, size)
        };

    /// readlinkat(2).
    fn atoll_readlinkat(
        dirfd: c_int,
        path: *const c_char,
        buf: *mut c_char,
        size: size_t,
    ) -> ssize_t = on_path |volume| {
        let (path, buf) = (bytes(path)?, output(buf.cast(), size)?);
        Ok(volume.readlinkat(dirfd, path, buf)? as ssize_t)
    };

    /// unlink(2).
    fn atoll_unlink(path: *const c_char) -> c_int = atoll_unlinkat(AT_FDCWD, path, 0);

    /// unlinkat(2).
    fn atoll_unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int = on_path |volume| {
        let path = bytes(path)?;
        zero(volume.unlinkat(dirfd, path, at_flags(flags, AtFlags::REMOVEDIR)?))
    };

    /// rmdir(2).
    fn atoll_rmdir(path: *const c_char) -> c_int
        = atoll_unlinkat(AT_FDCWD, path, libc::AT_REMOVEDIR);

    /// remove(3): a file or an empty directory.
    fn atoll_remove(path: *const c_char) -> c_int = on_path |volume| {
        let path = bytes(path)?;
        match volume.unlink(path) {
            Err(atoll_vfs::Errno::EISDIR) => zero(volume.rmdir(path)),
            done => zero(done),
        }
    };

    /// rename(2).
    fn atoll_rename(old: *const c_char, new: *const c_char) -> c_int
        = atoll_renameat2(AT_FDCWD, old, AT_FDCWD, new, 0);

    /// renameat(2).
    fn atoll_renameat(
        old_dirfd: c_int,
        old: *const c_char,
        new_dirfd: c_int,
        new: *const c_char,
    ) -> c_int = atoll_renameat2(old_dirfd, old, new_dirfd, new, 0);

    /// renameat2(2).
    fn atoll_renameat2(
        old_dirfd: c_int,
        old: *const c_char,
        new_dirfd: c_int,
        new: *const c_char,
        flags: c_uint,
    ) -> c_int = on_path |volume| {
        let (old, new) = (bytes(old)?, bytes(new)?);
        let flags = RenameFlags::from_bits(flags).ok_or(Error(libc::EINVAL))?;
        zero(volume.renameat2(old_dirfd, old, new_dirfd, new, flags))
    };
}
