//! Attributes: the stat, access, chmod, chown, utimens, truncate and statvfs families.

use core::ffi::{c_char, c_int, c_ulong};

use atoll_posix::attributes::Target;
use atoll_posix::{AT_FDCWD, AccessMode, AtFlags};
use atoll_vfs::{AccessTimes, Attr, SetTime, StatFs, Timespec};
use libc::{gid_t, mode_t, off_t, uid_t};

use super::{at_flags, bytes, on_descriptor, on_path, zero};
use crate::process::Error;

/// Writes `attr` as the C library's structure.
///
/// # Safety
/// `buf` is null or may be written to.
#[inline(always)]
unsafe fn put_stat(attr: &Attr, buf: *mut libc::stat) -> Result<c_int, Error> {
    if buf.is_null() {
        return Err(Error(libc::EFAULT));
    }
    // SAFETY: not null, writable as the caller says, and all zeros are a valid structure of
    // integers.
    let stat = unsafe {
        buf.write_bytes(0, 1);
        &mut *buf
    };
    stat.st_ino = attr.ino.0;
    stat.st_mode = attr.mode;
    stat.st_nlink = attr.nlink.into();
    stat.st_uid = attr.uid;
    stat.st_gid = attr.gid;
    stat.st_rdev = attr.rdev.into();
    stat.st_size = attr.size as off_t;
    stat.st_blksize = 4096;
    stat.st_blocks = attr.blocks as libc::blkcnt_t;
    stat.st_atime = attr.atime.sec;
    stat.st_atime_nsec = attr.atime.nsec.into();
    stat.st_mtime = attr.mtime.sec;
    stat.st_mtime_nsec = attr.mtime.nsec.into();
    stat.st_ctime = attr.ctime.sec;
    stat.st_ctime_nsec = attr.ctime.nsec.into();
    Ok(0)
}

calls! {
    /// fstat(2). `st_dev` is 0: a volume is no device of the host.
    fn atoll_fstat(fd: c_int, buf: *mut libc::stat) -> c_int
        = on_descriptor |volume| put_stat(&volume.fstat(fd)?, buf);

    /// stat(2).
    fn atoll_stat(path: *const c_char, buf: *mut libc::stat) -> c_int
        = atoll_fstatat(AT_FDCWD, path, buf, 0);

    /// lstat(2).
    fn atoll_lstat(path: *const c_char, buf: *mut libc::stat) -> c_int
        = atoll_fstatat(AT_FDCWD, path, buf, libc::AT_SYMLINK_NOFOLLOW);

    /// fstatat(2).
    fn atoll_fstatat(
        dirfd: c_int,
        path: *const c_char,
        buf: *mut libc::stat,
        flags: c_int,
    ) -> c_int = on_path |volume| {
        let flags = at_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
        put_stat(&volume.fstatat(dirfd, bytes(path)?, flags)?, buf)
    };

    /// access(2).
    fn atoll_access(path: *const c_char, mode: c_int) -> c_int
        = atoll_faccessat(AT_FDCWD, path, mode, 0);

    /// faccessat(2).
    fn atoll_faccessat(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int
        = on_path |volume| {
        let path = bytes(path)?;
        let mode = AccessMode::from_bits(mode as u32).ok_or(Error(libc::EINVAL))?;
        let known = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        zero(volume.faccessat(dirfd, path, mode, at_flags(flags, known)?))
    };

    /// chmod(2).
    fn atoll_chmod(path: *const c_char, mode: mode_t) -> c_int
        = atoll_fchmodat(AT_FDCWD, path, mode, 0);

    /// fchmod(2).
    safe fn atoll_fchmod(fd: c_int, mode: mode_t) -> c_int
        = on_descriptor |volume| zero(volume.chmod(Target::Descriptor(fd), mode));

    /// fchmodat(2).
    fn atoll_fchmodat(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int
        = on_path |volume| {
        let path = bytes(path)?;
        let flags = at_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
        zero(volume.chmod(Target::Path(dirfd, path, flags), mode))
    };
}

/// An identity to set: all ones leave it as it is.
fn id(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

calls! {
    /// chown(2).
    fn atoll_chown(path: *const c_char, owner: uid_t, group: gid_t) -> c_int
        = atoll_fchownat(AT_FDCWD, path, owner, group, 0);

    /// lchown(2).
    fn atoll_lchown(path: *const c_char, owner: uid_t, group: gid_t) -> c_int
        = atoll_fchownat(AT_FDCWD, path, owner, group, libc::AT_SYMLINK_NOFOLLOW);

    /// fchown(2).
    safe fn atoll_fchown(fd: c_int, owner: uid_t, group: gid_t) -> c_int
        = on_descriptor |volume| zero(volume.chown(Target::Descriptor(fd), id(owner), id(group)));

    /// fchownat(2).
    fn atoll_fchownat(
        dirfd: c_int,
        path: *const c_char,
        owner: uid_t,
        group: gid_t,
        flags: c_int,
    ) -> c_int = on_path |volume| {
        let path = bytes(path)?;
        let flags = at_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
        zero(volume.chown(Target::Path(dirfd, path, flags), id(owner), id(group)))
    };
}

/// The flag of statvfs(3), which the crate libc does not have for every C library.
const ST_RELATIME: c_ulong = 4096;

/// One time of utimensat(2).
fn set_time(time: &libc::timespec) -> Result<Option<SetTime>, Error> {
    match time.tv_nsec {
        libc::UTIME_OMIT => Ok(None),
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        nsec @ 0..1_000_000_000 => {
            Ok(Some(SetTime::To(Timespec { sec: time.tv_sec, nsec: nsec as u32 })))
        }
        _ => Err(Error(libc::EINVAL)),
    }
}

/// # Safety
/// `times` is null, which means now, or points to two times.
unsafe fn set_times(times: *const libc::timespec) -> Result<[Option<SetTime>; 2], Error> {
    if times.is_null() {
        return Ok([Some(SetTime::Now); 2]);
    }
    // SAFETY: two times, as the caller says.
    unsafe { Ok([set_time(&*times)?, set_time(&*times.add(1))?]) }
}

calls! {
    /// utimensat(2). A null path means the descriptor itself.
    fn atoll_utimensat(
        dirfd: c_int,
        path: *const c_char,
        times: *const libc::timespec,
        flags: c_int,
    ) -> c_int = on_path |volume| {
        let times = set_times(times)?;
        let flags = at_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
        let target = if path.is_null() {
            Target::Descriptor(dirfd)
        } else {
            Target::Path(dirfd, bytes(path)?, flags)
        };
        zero(volume.utimens(target, times))
    };

    /// futimens(3).
    fn atoll_futimens(fd: c_int, times: *const libc::timespec) -> c_int = on_descriptor |volume| {
        let times = set_times(times)?;
        zero(volume.utimens(Target::Descriptor(fd), times))
    };

    /// utimes(2).
    fn atoll_utimes(path: *const c_char, times: *const libc::timeval) -> c_int = on_path |volume| {
        let converted = if times.is_null() {
            [Some(SetTime::Now); 2]
        } else {
            let times = [*times, *times.add(1)];
            if times.iter().any(|t| !(0..1_000_000).contains(&t.tv_usec)) {
                return Err(Error(libc::EINVAL));
            }
            times.map(|t| {
                Some(SetTime::To(Timespec { sec: t.tv_sec, nsec: t.tv_usec as u32 * 1000 }))
            })
        };
        zero(volume.utimens(Target::path(bytes(path)?), converted))
    };
}

/// umask(2). Without a volume it changes nothing and returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn atoll_umask(mask: mode_t) -> mode_t {
    let before = crate::process::with_volume(libc::ENODEV, |volume| Ok(volume.umask(mask)));
    before.unwrap_or(0)
}

calls! {
    /// truncate(2).
    fn atoll_truncate(path: *const c_char, length: off_t) -> c_int
        = on_path |volume| zero(volume.truncate(bytes(path)?, length));
}

/// # Safety
/// `buf` is null or may be written to.
unsafe fn put_statvfs(
    stat: &StatFs,
    access_times: AccessTimes,
    buf: *mut libc::statvfs,
) -> Result<c_int, Error> {
    if buf.is_null() {
        return Err(Error(libc::EFAULT));
    }
    // SAFETY: not null, writable as the caller says, and all zeros are a valid structure of
    // integers.
    let out = unsafe {
        buf.write_bytes(0, 1);
        &mut *buf
    };
    out.f_bsize = stat.block_size.into();
    out.f_frsize = stat.block_size.into();
    out.f_blocks = stat.blocks;
    out.f_bfree = stat.blocks_free;
    out.f_bavail = stat.blocks_available;
    out.f_files = stat.files;
    out.f_ffree = stat.files_free;
    out.f_favail = stat.files_free;
    out.f_namemax = stat.name_max.into();
    out.f_flag = match access_times {
        AccessTimes::Noatime => libc::ST_NOATIME,
        AccessTimes::Relatime => ST_RELATIME,
    };
    Ok(0)
}

calls! {
    /// statvfs(3).
    fn atoll_statvfs(path: *const c_char, buf: *mut libc::statvfs) -> c_int
        = on_path |volume| put_statvfs(&volume.statvfs(bytes(path)?)?, volume.access_times(), buf);

    /// fstatvfs(3).
    fn atoll_fstatvfs(fd: c_int, buf: *mut libc::statvfs) -> c_int
        = on_descriptor |volume| put_statvfs(&volume.fstatvfs(fd)?, volume.access_times(), buf);
}
