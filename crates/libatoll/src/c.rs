//! The calls, as C sees them: `include/atoll.h` describes each.
//!
//! Every function does what the POSIX or Linux call of its name does (without the prefix
//! `atoll_`), on the volume of the process: the same arguments, the same results, -1 or a null
//! pointer with `errno` set on failure. Beside the errors of those calls there are `EBADF` (for
//! descriptors) and `ENODEV` while no volume is mounted, and `EIO` after a defect of the library
//! itself was caught. Numbers of descriptors begin at 3 unless mounted otherwise, so that those
//! of the standard streams are never given out.
//!
//! # Safety
//! The same for all: pointers have to be what the C call asks for - strings that end in NUL,
//! buffers of the length given, structures of the C library's own layout. A null pointer is
//! `EFAULT`, except where the C call gives it a meaning.

/// Defines calls for C, each by what it does with the volume, `on_path` or `on_descriptor`, or by
/// the call that does it for others. One that takes no pointer is `safe`.
macro_rules! calls {
    () => {};
    (
        $(#[$doc:meta])*
        safe fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty
            = $on:ident |$volume:ident| $body:expr; $($rest:tt)*
    ) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> $result {
            $on(|$volume| $body)
        }
        calls! { $($rest)* }
    };
    (
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty
            = $on:ident |$volume:ident| $body:expr; $($rest:tt)*
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// See [`c`](crate::c).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            // SAFETY: as the caller says.
            $on(|$volume| unsafe { $body })
        }
        calls! { $($rest)* }
    };
    (
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty = $call:expr; $($rest:tt)*
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// See [`c`](crate::c).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            // SAFETY: as the caller says.
            unsafe { $call }
        }
        calls! { $($rest)* }
    };
}

pub mod attributes;
pub mod directories;
pub mod files;
pub mod locks;
pub mod mounting;
pub mod names;
pub mod xattr;

use core::ffi::{CStr, c_char, c_int, c_void};

use atoll_posix::AtFlags;
use atoll_vfs::Errno;

use crate::process::{self, Error};
use crate::volume::Volume;

/// The results that a C call may have: -1 for failure.
trait Outcome: Copy {
    const FAILURE: Self;
}

impl Outcome for c_int {
    const FAILURE: Self = -1;
}

impl Outcome for i64 {
    const FAILURE: Self = -1;
}

impl Outcome for isize {
    const FAILURE: Self = -1;
}

impl<T> Outcome for *mut T {
    const FAILURE: Self = core::ptr::null_mut();
}

/// Gives `result` to C.
#[inline(always)]
fn finish<R: Outcome>(result: Result<R, Error>) -> R {
    match result {
        Ok(value) => value,
        Err(error) => fail(error),
    }
}

#[cold]
fn fail<R: Outcome>(error: Error) -> R {
    // SAFETY: the address of the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() = error.0 };
    R::FAILURE
}

/// Runs a call that acts on a descriptor.
#[inline(always)]
fn on_descriptor<R: Outcome>(call: impl FnOnce(&mut Volume) -> Result<R, Error>) -> R {
    finish(process::with_volume(libc::EBADF, call))
}

/// Runs a call that acts on a path or on the whole volume.
#[inline(always)]
fn on_path<R: Outcome>(call: impl FnOnce(&mut Volume) -> Result<R, Error>) -> R {
    finish(process::with_volume(libc::ENODEV, call))
}

/// The bytes of a C string.
///
/// # Safety
/// `string` is null, or ends in NUL and stays unchanged while the result is used.
#[inline(always)]
unsafe fn bytes<'a>(string: *const c_char) -> Result<&'a [u8], Error> {
    if string.is_null() {
        return Err(Error(libc::EFAULT));
    }
    // SAFETY: as the caller says.
    Ok(unsafe { CStr::from_ptr(string) }.to_bytes())
}

/// A buffer that is read from.
///
/// # Safety
/// `data` is null or `len` bytes may be read from it while the result is used.
#[inline(always)]
unsafe fn input<'a>(data: *const c_void, len: usize) -> Result<&'a [u8], Error> {
    check_buffer(data, len)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, of a possible length, and readable as the caller says.
    Ok(unsafe { core::slice::from_raw_parts(data.cast(), len) })
}

/// A buffer that is written to.
///
/// # Safety
/// `data` is null or `len` bytes may be written to it, by nobody else while the result is used.
#[inline(always)]
unsafe fn output<'a>(data: *mut c_void, len: usize) -> Result<&'a mut [u8], Error> {
    check_buffer(data, len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not null, of a possible length, and writable as the caller says. Its earlier content
    // is never looked at.
    Ok(unsafe { core::slice::from_raw_parts_mut(data.cast(), len) })
}

#[inline(always)]
fn check_buffer(data: *const c_void, len: usize) -> Result<(), Error> {
    if len > isize::MAX as usize {
        return Err(Error(libc::EINVAL));
    }
    if data.is_null() && len > 0 {
        return Err(Error(libc::EFAULT));
    }
    Ok(())
}

/// The `AT_` flags of a call that knows those in `known`.
#[inline]
fn at_flags(flags: c_int, known: AtFlags) -> Result<AtFlags, Error> {
    // Linux has one numbering of these flags for all machines, and it is the core's.
    // AT_NO_AUTOMOUNT and the AT_STATX_ bits mean nothing here.
    let ignored = (libc::AT_NO_AUTOMOUNT | 0x6000) as u32;
    let flags = AtFlags::from_bits_retain(flags as u32 & !ignored);
    if known.contains(flags) { Ok(flags) } else { Err(Error(libc::EINVAL)) }
}

const _: () = assert!(
    AtFlags::SYMLINK_NOFOLLOW.bits() == libc::AT_SYMLINK_NOFOLLOW as u32
        && AtFlags::REMOVEDIR.bits() == libc::AT_REMOVEDIR as u32
        && AtFlags::EACCESS.bits() == libc::AT_EACCESS as u32
        && AtFlags::SYMLINK_FOLLOW.bits() == libc::AT_SYMLINK_FOLLOW as u32
        && AtFlags::EMPTY_PATH.bits() == libc::AT_EMPTY_PATH as u32
        && atoll_posix::AT_FDCWD == libc::AT_FDCWD
);

/// Success without a value.
#[inline(always)]
fn zero(result: Result<(), Errno>) -> Result<c_int, Error> {
    Ok(result.map(|()| 0)?)
}
