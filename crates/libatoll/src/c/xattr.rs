//! Extended attributes.

use core::ffi::{c_char, c_int, c_void};

use atoll_posix::attributes::Target;
use atoll_posix::{AT_FDCWD, AtFlags};
use atoll_vfs::XattrFlags;
use libc::{size_t, ssize_t};

use super::{bytes, input, on_descriptor, on_path, output, zero};
use crate::process::Error;
use crate::volume::Volume;

const FOLLOW: AtFlags = AtFlags::empty();
const NOFOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW;

/// # Safety
/// `path` is null or a C string that outlives the result.
unsafe fn path_target<'a>(path: *const c_char, flags: AtFlags) -> Result<Target<'a>, Error> {
    // SAFETY: as the caller says.
    Ok(Target::Path(AT_FDCWD, unsafe { bytes(path) }?, flags))
}

/// # Safety
/// `name` is null or a C string; `value` is null or `size` bytes long.
unsafe fn set(
    volume: &mut Volume,
    target: Target<'_>,
    name: *const c_char,
    value: *const c_void,
    size: size_t,
    flags: c_int,
) -> Result<c_int, Error> {
    let flags = XattrFlags::from_bits(flags as u32).ok_or(Error(libc::EINVAL))?;
    // SAFETY: as the caller says.
    let (name, value) = unsafe { (bytes(name)?, input(value, size)?) };
    zero(volume.setxattr(target, name, value, flags))
}

/// # Safety
/// `name` is null or a C string; `value` is null or `size` bytes long.
unsafe fn get(
    volume: &mut Volume,
    target: Target<'_>,
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
) -> Result<ssize_t, Error> {
    // SAFETY: as the caller says.
    let (name, value) = unsafe { (bytes(name)?, output(value, size)?) };
    Ok(volume.getxattr(target, name, value)? as ssize_t)
}

calls! {
    /// setxattr(2).
    fn atoll_setxattr(
        path: *const c_char,
        name: *const c_char,
        value: *const c_void,
        size: size_t,
        flags: c_int,
    ) -> c_int
        = on_path |volume| set(volume, path_target(path, FOLLOW)?, name, value, size, flags);

    /// lsetxattr(2).
    fn atoll_lsetxattr(
        path: *const c_char,
        name: *const c_char,
        value: *const c_void,
        size: size_t,
        flags: c_int,
    ) -> c_int
        = on_path |volume| set(volume, path_target(path, NOFOLLOW)?, name, value, size, flags);

    /// fsetxattr(2).
    fn atoll_fsetxattr(
        fd: c_int,
        name: *const c_char,
        value: *const c_void,
        size: size_t,
        flags: c_int,
    ) -> c_int
        = on_descriptor |volume| set(volume, Target::Descriptor(fd), name, value, size, flags);

    /// getxattr(2).
    fn atoll_getxattr(
        path: *const c_char,
        name: *const c_char,
        value: *mut c_void,
        size: size_t,
    ) -> ssize_t = on_path |volume| get(volume, path_target(path, FOLLOW)?, name, value, size);

    /// lgetxattr(2).
    fn atoll_lgetxattr(
        path: *const c_char,
        name: *const c_char,
        value: *mut c_void,
        size: size_t,
    ) -> ssize_t
        = on_path |volume| get(volume, path_target(path, NOFOLLOW)?, name, value, size);

    /// fgetxattr(2).
    fn atoll_fgetxattr(
        fd: c_int,
        name: *const c_char,
        value: *mut c_void,
        size: size_t,
    ) -> ssize_t
        = on_descriptor |volume| get(volume, Target::Descriptor(fd), name, value, size);
}

/// # Safety
/// `list` is null or `size` bytes long.
unsafe fn list(
    volume: &mut Volume,
    target: Target<'_>,
    list: *mut c_char,
    size: size_t,
) -> Result<ssize_t, Error> {
    // SAFETY: as the caller says.
    let list = unsafe { output(list.cast(), size) }?;
    Ok(volume.listxattr(target, list)? as ssize_t)
}

calls! {
    /// listxattr(2).
    fn atoll_listxattr(path: *const c_char, names: *mut c_char, size: size_t) -> ssize_t
        = on_path |volume| list(volume, path_target(path, FOLLOW)?, names, size);

    /// llistxattr(2).
    fn atoll_llistxattr(path: *const c_char, names: *mut c_char, size: size_t) -> ssize_t
        = on_path |volume| list(volume, path_target(path, NOFOLLOW)?, names, size);

    /// flistxattr(2).
    fn atoll_flistxattr(fd: c_int, names: *mut c_char, size: size_t) -> ssize_t
        = on_descriptor |volume| list(volume, Target::Descriptor(fd), names, size);

    /// removexattr(2).
    fn atoll_removexattr(path: *const c_char, name: *const c_char) -> c_int
        = on_path |volume| zero(volume.removexattr(path_target(path, FOLLOW)?, bytes(name)?));

    /// lremovexattr(2).
    fn atoll_lremovexattr(path: *const c_char, name: *const c_char) -> c_int
        = on_path |volume| zero(volume.removexattr(path_target(path, NOFOLLOW)?, bytes(name)?));

    /// fremovexattr(2).
    fn atoll_fremovexattr(fd: c_int, name: *const c_char) -> c_int
        = on_descriptor |volume| zero(volume.removexattr(Target::Descriptor(fd), bytes(name)?));
}
