//! Opening, reading, writing and what else acts on descriptors.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

use atoll_posix::{AT_FDCWD, OFlags, Whence};
use atoll_vfs::{Errno, FallocateMode};
use libc::{iovec, mode_t, off_t, size_t, ssize_t};

use super::locks::record_lock;
use super::{Outcome, bytes, finish, input, on_descriptor, on_path, output, zero};
use crate::process::Error;
use crate::volume::Volume;

/// The most buffers of one call (limits.h).
const IOV_MAX: c_int = 1024;

/// The host's flags and the core's, which differ on some machines.
const FLAGS: [(c_int, OFlags); 15] = [
    (libc::O_WRONLY, OFlags::WRONLY),
    (libc::O_RDWR, OFlags::RDWR),
    (libc::O_CREAT, OFlags::CREAT),
    (libc::O_EXCL, OFlags::EXCL),
    (libc::O_TRUNC, OFlags::TRUNC),
    (libc::O_APPEND, OFlags::APPEND),
    (libc::O_NONBLOCK, OFlags::NONBLOCK),
    (libc::O_DSYNC, OFlags::DSYNC),
    (libc::O_SYNC & !libc::O_DSYNC, OFlags::SYNC_BIT),
    (libc::O_DIRECTORY, OFlags::DIRECTORY),
    (libc::O_NOFOLLOW, OFlags::NOFOLLOW),
    (libc::O_NOATIME, OFlags::NOATIME),
    (libc::O_CLOEXEC, OFlags::CLOEXEC),
    (libc::O_PATH, OFlags::PATH),
    (libc::O_TMPFILE & !libc::O_DIRECTORY, OFlags::TMPFILE_BIT),
];

/// Whether the two numberings are the same here, so that no translation is needed.
const SAME_FLAGS: bool = {
    let mut same = true;
    let mut i = 0;
    while i < FLAGS.len() {
        same &= FLAGS[i].0 as u32 == FLAGS[i].1.bits();
        i += 1;
    }
    same
};

#[inline]
fn flags_from_host(flags: c_int) -> OFlags {
    if SAME_FLAGS {
        return OFlags::from_bits_truncate(flags as u32);
    }
    let set = FLAGS.iter().filter(|(host, _)| flags & host != 0);
    set.fold(OFlags::empty(), |all, (_, flag)| all | *flag)
}

fn flags_to_host(flags: OFlags) -> c_int {
    let set = FLAGS.iter().filter(|(_, flag)| flags.contains(*flag));
    set.fold(0, |all, (host, _)| all | host)
}

calls! {
    /// open(2). In C `mode` is given only with `O_CREAT` or `O_TMPFILE`, and not looked at
    /// otherwise.
    fn atoll_open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        = atoll_openat(AT_FDCWD, path, flags, mode);

    /// openat(2).
    fn atoll_openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        = on_path |volume| {
        let path = bytes(path)?;
        Ok(volume.openat(dirfd, path, flags_from_host(flags), mode)?)
    };

    /// creat(2).
    fn atoll_creat(path: *const c_char, mode: mode_t) -> c_int
        = atoll_open(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode);

    /// close(2).
    safe fn atoll_close(fd: c_int) -> c_int = on_descriptor |volume| zero(volume.close(fd));

    /// dup(2).
    safe fn atoll_dup(fd: c_int) -> c_int = on_descriptor |volume| Ok(volume.dup(fd)?);

    /// dup2(2).
    safe fn atoll_dup2(fd: c_int, to: c_int) -> c_int
        = on_descriptor |volume| Ok(volume.dup2(fd, to)?);
}

/// dup3(2).
#[unsafe(no_mangle)]
pub extern "C" fn atoll_dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if flags & !libc::O_CLOEXEC != 0 {
        return finish(Err(Error(libc::EINVAL)));
    }
    on_descriptor(|volume| Ok(volume.dup3(fd, to, flags_from_host(flags))?))
}

/// fcntl(2): `F_DUPFD`, `F_DUPFD_CLOEXEC`, `F_GETFD`, `F_SETFD`, `F_GETFL`, `F_SETFL`, and the
/// record locks, of the process and (`F_OFD_`) of open file descriptions.
///
/// # Safety
/// See [`c`](super); `argument` is a pointer where the command takes one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the argument of a command for locks points to a struct flock.
    if let Some(result) = unsafe { record_lock(fd, command, argument as *mut libc::flock) } {
        return finish(result);
    }
    let value = argument as c_int;
    on_descriptor(|volume| match command {
        libc::F_DUPFD => Ok(volume.dup_from(fd, value, false)?),
        libc::F_DUPFD_CLOEXEC => Ok(volume.dup_from(fd, value, true)?),
        libc::F_GETFD => Ok(c_int::from(volume.descriptor_flags(fd)?)),
        libc::F_SETFD => zero(volume.set_descriptor_flags(fd, value & libc::FD_CLOEXEC != 0)),
        libc::F_GETFL => Ok(flags_to_host(volume.status_flags(fd)?)),
        libc::F_SETFL => zero(volume.set_status_flags(fd, flags_from_host(value))),
        _ => Err(Error(libc::EINVAL)),
    })
}

calls! {
    /// read(2).
    fn atoll_read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t = on_descriptor |volume| {
        let buf = output(buf, count)?;
        Ok(volume.read(fd, buf)? as ssize_t)
    };

    /// write(2).
    fn atoll_write(fd: c_int, data: *const c_void, count: size_t) -> ssize_t
        = on_descriptor |volume| {
        let data = input(data, count)?;
        Ok(volume.write(fd, data)? as ssize_t)
    };

    /// pread(2).
    fn atoll_pread(fd: c_int, buf: *mut c_void, count: size_t, offset: off_t) -> ssize_t
        = on_descriptor |volume| {
        let buf = output(buf, count)?;
        Ok(volume.pread(fd, buf, offset)? as ssize_t)
    };

    /// pwrite(2).
    fn atoll_pwrite(fd: c_int, data: *const c_void, count: size_t, offset: off_t) -> ssize_t
        = on_descriptor |volume| {
        let data = input(data, count)?;
        Ok(volume.pwrite(fd, data, offset)? as ssize_t)
    };
}

/// Runs `call` on checked buffers: not too many, and of a total that the result can tell.
///
/// # Safety
/// `iov` is null or points to `count` structures whose buffers are as the call needs them.
unsafe fn vectored<R: Outcome>(
    iov: *const iovec,
    count: c_int,
    call: impl FnOnce(&mut Volume, &[iovec]) -> Result<R, Errno>,
) -> R {
    on_descriptor(|volume| {
        if !(0..=IOV_MAX).contains(&count) {
            return Err(Error(libc::EINVAL));
        }
        if count == 0 {
            return Ok(call(volume, &[])?);
        }
        if iov.is_null() {
            return Err(Error(libc::EFAULT));
        }
        // SAFETY: `count` structures, as the caller says.
        let buffers = unsafe { core::slice::from_raw_parts(iov, count as usize) };
        let mut total = 0usize;
        for buffer in buffers {
            super::check_buffer(buffer.iov_base, buffer.iov_len)?;
            total = total.checked_add(buffer.iov_len).ok_or(Error(libc::EINVAL))?;
        }
        if total > isize::MAX as usize {
            return Err(Error(libc::EINVAL));
        }
        Ok(call(volume, buffers)?)
    })
}

/// The buffers of a checked `iovec` to write to.
///
/// # Safety
/// Each buffer was checked, may be written to, and none overlaps another.
unsafe fn outputs<'a>(buffers: &[iovec]) -> impl Iterator<Item = &'a mut [u8]> {
    buffers.iter().filter(|b| b.iov_len > 0).map(|b| {
        // SAFETY: as the caller says.
        unsafe { core::slice::from_raw_parts_mut(b.iov_base.cast(), b.iov_len) }
    })
}

/// The buffers of a checked `iovec` to read from.
///
/// # Safety
/// Each buffer was checked and may be read from.
unsafe fn inputs<'a>(buffers: &[iovec]) -> impl Iterator<Item = &'a [u8]> {
    buffers.iter().filter(|b| b.iov_len > 0).map(|b| {
        // SAFETY: as the caller says.
        unsafe { core::slice::from_raw_parts(b.iov_base.cast(), b.iov_len) }
    })
}

calls! {
    /// readv(2).
    fn atoll_readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t
        = vectored(iov, count, |v, bufs| Ok(v.readv(fd, outputs(bufs))? as ssize_t));

    /// writev(2).
    fn atoll_writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t
        = vectored(iov, count, |v, bufs| Ok(v.writev(fd, inputs(bufs))? as ssize_t));

    /// preadv(2).
    fn atoll_preadv(fd: c_int, iov: *const iovec, count: c_int, offset: off_t) -> ssize_t
        = vectored(iov, count, |v, bufs| Ok(v.preadv(fd, outputs(bufs), offset)? as ssize_t));

    /// pwritev(2).
    fn atoll_pwritev(fd: c_int, iov: *const iovec, count: c_int, offset: off_t) -> ssize_t
        = vectored(iov, count, |v, bufs| Ok(v.pwritev(fd, inputs(bufs), offset)? as ssize_t));

    /// lseek(2).
    safe fn atoll_lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t = on_descriptor |volume| {
        let whence = match whence {
            libc::SEEK_SET => Whence::Set,
            libc::SEEK_CUR => Whence::Current,
            libc::SEEK_END => Whence::End,
            libc::SEEK_DATA => Whence::Data,
            libc::SEEK_HOLE => Whence::Hole,
            _ => return Err(Error(libc::EINVAL)),
        };
        Ok(volume.lseek(fd, offset, whence)?)
    };

    /// fsync(2).
    safe fn atoll_fsync(fd: c_int) -> c_int = on_descriptor |volume| zero(volume.fsync(fd, false));

    /// fdatasync(2).
    safe fn atoll_fdatasync(fd: c_int) -> c_int
        = on_descriptor |volume| zero(volume.fsync(fd, true));

    /// syncfs(2).
    safe fn atoll_syncfs(fd: c_int) -> c_int = on_descriptor |volume| {
        volume.status_flags(fd)?;
        zero(volume.sync())
    };

    /// sync(2), which tells of failure here.
    safe fn atoll_sync() -> c_int = on_path |volume| zero(volume.sync());

    /// ftruncate(2).
    safe fn atoll_ftruncate(fd: c_int, length: off_t) -> c_int
        = on_descriptor |volume| zero(volume.ftruncate(fd, length));

    /// copy_file_range(2), within the volume. There are no flags.
    fn atoll_copy_file_range(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t,
        count: size_t, flags: c_uint) -> ssize_t = on_descriptor |volume| {
        if flags != 0 {
            return Err(Error(libc::EINVAL));
        }
        // They may be one and the same. The caller gives offsets that can be read and written, or
        // null.
        let [mut from_offset, mut to_offset] = [from_at, to_at].map(|at| at.as_ref().copied());
        let copied = volume.copy_file_range(
            (from, from_offset.as_mut()), (to, to_offset.as_mut()), count)?;
        for (at, offset) in [(from_at, from_offset), (to_at, to_offset)] {
            if let Some(offset) = offset {
                *at = offset;
            }
        }
        Ok(copied as ssize_t)
    };

    /// fallocate(2): the modes 0, `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE` and
    /// `FALLOC_FL_ZERO_RANGE`.
    safe fn atoll_fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int
        = on_descriptor |volume| {
        let mode = FallocateMode::from_bits(mode as u32).ok_or(Error(libc::EOPNOTSUPP))?;
        zero(volume.fallocate(fd, mode, offset, len))
    };
}

/// posix_fallocate(3), which returns the error's number and leaves errno alone.
#[unsafe(no_mangle)]
pub extern "C" fn atoll_posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int {
    let result = crate::process::with_volume(libc::EBADF, |volume| {
        zero(volume.fallocate(fd, FallocateMode::empty(), offset, len))
    });
    result.unwrap_or_else(|error| error.0)
}
