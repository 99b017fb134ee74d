//! Listing directories, and the working directory.

use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr;

use atoll_posix::{DirStream, OFlags};
use libc::{size_t, ssize_t};

use super::{bytes, fail, finish, on_descriptor, on_path, output, zero};
use crate::process::{self, Error};
use crate::volume::Volume;

/// An open directory: `ATOLL_DIR` in C. One stream is used by one thread at a time.
#[derive(Debug)]
pub struct Dir {
    stream: DirStream,
    /// The mount whose volume it is of: after that its descriptor may be another file.
    mount: u64,
}

impl Dir {
    fn new(stream: DirStream) -> *mut Dir {
        Box::into_raw(Box::new(Dir { stream, mount: process::mount_number() }))
    }
}

/// Runs `call` if the volume of a stream is still mounted.
fn on_its_volume<R>(
    mount: u64,
    call: impl FnOnce(&mut Volume) -> Result<R, Error>,
) -> Result<R, Error> {
    process::with_volume(libc::EBADF, |volume| {
        if process::mount_number() == mount { call(volume) } else { Err(Error(libc::EBADF)) }
    })
}

// Records are handed out as the C library's structure.
const _: () = assert!(
    core::mem::offset_of!(libc::dirent, d_ino) == 0
        && core::mem::offset_of!(libc::dirent, d_off) == 8
        && core::mem::offset_of!(libc::dirent, d_reclen) == 16
        && core::mem::offset_of!(libc::dirent, d_type) == 18
        && core::mem::offset_of!(libc::dirent, d_name) == atoll_posix::directory::RECORD_HEADER
        && align_of::<libc::dirent>() <= 8
);

calls! {
    /// getdents64(2): fills `buf` with `struct dirent64` records of their own lengths.
    fn atoll_getdents64(fd: c_int, buf: *mut c_void, size: size_t) -> ssize_t
        = on_descriptor |volume| Ok(volume.getdents(fd, output(buf, size)?)? as ssize_t);

    /// opendir(3).
    fn atoll_opendir(path: *const c_char) -> *mut Dir = on_path |volume| {
        let path = bytes(path)?;
        let fd = volume.open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, 0)?;
        let stream = volume.fdopendir(fd)?;
        Ok(Dir::new(stream))
    };

    /// fdopendir(3).
    safe fn atoll_fdopendir(fd: c_int) -> *mut Dir
        = on_descriptor |volume| Ok(Dir::new(volume.fdopendir(fd)?));
}

/// readdir(3). The entry stays until the next call on the stream.
///
/// # Safety
/// See [`c`](super); `dir` came from `atoll_opendir` and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_readdir(dir: *mut Dir) -> *mut libc::dirent {
    // SAFETY: as the caller says.
    match unsafe { dir.as_mut() } {
        Some(dir) if dir.stream.has_buffered() => next_buffered(dir),
        dir => read_ahead(dir),
    }
}

#[inline(always)]
fn next_buffered(dir: &mut Dir) -> *mut libc::dirent {
    match dir.stream.next_record() {
        Some(record) => record.as_mut_ptr().cast(),
        None => ptr::null_mut(),
    }
}

/// The next entry when none is left of those read before. Apart, so that the other calls are short.
#[cold]
#[inline(never)]
fn read_ahead(dir: Option<&mut Dir>) -> *mut libc::dirent {
    let Some(dir) = dir else { return fail(Error(libc::EBADF)) };
    match on_its_volume(dir.mount, |volume| Ok(dir.stream.fill(volume)?)) {
        Ok(true) => next_buffered(dir),
        Ok(false) => ptr::null_mut(),
        Err(error) => fail(error),
    }
}

/// closedir(3).
///
/// # Safety
/// See [`c`](super); `dir` came from `atoll_opendir` and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_closedir(dir: *mut Dir) -> c_int {
    if dir.is_null() {
        return fail(Error(libc::EBADF));
    }
    // SAFETY: as the caller says.
    let dir = unsafe { Box::from_raw(dir) };
    finish(on_its_volume(dir.mount, |volume| zero(volume.closedir(dir.stream))))
}

/// rewinddir(3).
///
/// # Safety
/// See [`c`](super); `dir` came from `atoll_opendir` and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_rewinddir(dir: *mut Dir) {
    // SAFETY: as the caller says.
    unsafe { atoll_seekdir(dir, 0) };
}

/// telldir(3).
///
/// # Safety
/// See [`c`](super); `dir` came from `atoll_opendir` and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_telldir(dir: *mut Dir) -> c_long {
    // SAFETY: as the caller says.
    match unsafe { dir.as_ref() } {
        Some(dir) => dir.stream.tell() as c_long,
        None => fail(Error(libc::EBADF)),
    }
}

/// seekdir(3).
///
/// # Safety
/// See [`c`](super); `dir` came from `atoll_opendir` and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_seekdir(dir: *mut Dir, place: c_long) {
    // SAFETY: as the caller says.
    let Some(dir) = (unsafe { dir.as_mut() }) else { return };
    // The call cannot tell of a failure; a stream whose descriptor is gone fails at its next read.
    let _ = on_its_volume(dir.mount, |volume| Ok(dir.stream.seek(volume, place.max(0) as u64)?));
}

/// dirfd(3).
///
/// # Safety
/// See [`c`](super); `dir` came from `atoll_opendir` and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_dirfd(dir: *mut Dir) -> c_int {
    // SAFETY: as the caller says.
    finish(unsafe { dir.as_ref() }.map(|dir| dir.stream.fd()).ok_or(Error(libc::EINVAL)))
}

calls! {
    /// getcwd(3). With a null `buf`, memory for the path is taken from malloc(3): `size` bytes, or
    /// as many as needed if that is 0.
    fn atoll_getcwd(buf: *mut c_char, size: size_t) -> *mut c_char = on_path |volume| {
        if size == 0 && !buf.is_null() {
            return Err(Error(libc::EINVAL));
        }
        let path = volume.getcwd()?;
        let needed = path.len() + 1;
        if size < needed && (size > 0 || !buf.is_null()) {
            return Err(Error(libc::ERANGE));
        }
        let out = if buf.is_null() {
            // SAFETY: any size may be asked of malloc.
            libc::malloc(size.max(needed)).cast::<c_char>()
        } else {
            buf
        };
        if out.is_null() {
            return Err(Error(libc::ENOMEM));
        }
        // SAFETY: at least `needed` bytes, the caller's or malloc's.
        let text = output(out.cast(), needed)?;
        text[..path.len()].copy_from_slice(path);
        text[path.len()] = 0;
        Ok(out)
    };

    /// chdir(2).
    fn atoll_chdir(path: *const c_char) -> c_int
        = on_path |volume| zero(volume.chdir(bytes(path)?));

    /// fchdir(2).
    safe fn atoll_fchdir(fd: c_int) -> c_int = on_descriptor |volume| zero(volume.fchdir(fd));
}
