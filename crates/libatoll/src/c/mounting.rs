//! The life of the process's volume.

use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_int, c_uint};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use atoll_host::client::Address;
use atoll_posix::Credentials;
use atoll_vfs::AccessTimes;

use super::{bytes, finish};
use crate::process::{self, Error, guarded};
use crate::volume::{self, FormatOptions, MountError, MountOptions, Storage};

/// `ATOLL_RDONLY`: refuse every change.
pub const ATOLL_RDONLY: c_uint = 1;
/// `ATOLL_PREAD`: reach the device by pread and pwrite alone, instead of mapping it.
pub const ATOLL_PREAD: c_uint = 2;
/// `ATOLL_RAM`: a new volume in memory; the path is not looked at.
pub const ATOLL_RAM: c_uint = 4;
/// `ATOLL_FORCE`: make the volume even where there is something else.
pub const ATOLL_FORCE: c_uint = 8;
/// `ATOLL_SEALABLE`: `atoll_seal` will be called.
pub const ATOLL_SEALABLE: c_uint = 16;
/// `ATOLL_RELATIME`: reading sets the time of last access, once after a change and once a day.
pub const ATOLL_RELATIME: c_uint = 32;

const FLAGS: c_uint =
    ATOLL_RDONLY | ATOLL_PREAD | ATOLL_RAM | ATOLL_FORCE | ATOLL_SEALABLE | ATOLL_RELATIME;

/// `struct atoll_options`: zeros mean the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AtollOptions {
    /// Of the structure, so that it may grow.
    pub size: usize,
    /// The `ATOLL_` flags.
    pub flags: c_uint,
    /// The lowest descriptor number given out, 3 if 0.
    pub first_descriptor: c_int,
    /// Bytes of a volume to be made.
    pub volume_bytes: u64,
    /// Bound of the memory for cached blocks, in bytes.
    pub cache_bytes: usize,
    /// Owner of what is created.
    pub uid: u32,
    /// Group of what is created.
    pub gid: u32,
}

thread_local! {
    /// The message of this thread's last call that failed.
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// Keeps the message for `atoll_error` and gives the number.
fn explain(error: MountError) -> Error {
    let text = CString::new(error.message).unwrap_or_default();
    MESSAGE.with(|message| *message.borrow_mut() = text);
    Error(error.errno)
}

/// The message of the last `atoll_mkfs`, `atoll_mount`, `atoll_unmount` or `atoll_seal` of this
/// thread that failed: what was wrong and what to do. Stays until the next failure.
#[unsafe(no_mangle)]
pub extern "C" fn atoll_error() -> *const c_char {
    MESSAGE.with(|message| message.borrow().as_ptr())
}

/// # Safety
/// `options` is null or points to a structure of the length that its first field says.
unsafe fn read_options(options: *const AtollOptions) -> Result<AtollOptions, MountError> {
    let defaults = AtollOptions {
        size: size_of::<AtollOptions>(),
        flags: 0,
        first_descriptor: 0,
        volume_bytes: 0,
        cache_bytes: 0,
        uid: 0,
        gid: 0,
    };
    if options.is_null() {
        return Ok(defaults);
    }
    // SAFETY: the first field is there, as the caller says; the others if it says so.
    let size = unsafe { (&raw const (*options).size).read() };
    if size != size_of::<AtollOptions>() {
        return Err(MountError::new(
            libc::EINVAL,
            "the size in struct atoll_options is not that of this library: \
             begin with ATOLL_OPTIONS and compile with the library's own atoll.h",
        ));
    }
    // SAFETY: the structure is whole.
    let options = unsafe { options.read() };
    if options.flags & !FLAGS != 0 {
        return Err(MountError::new(libc::EINVAL, "unknown flags in struct atoll_options"));
    }
    Ok(options)
}

/// # Safety
/// `path` is null or a C string.
unsafe fn storage(path: *const c_char, options: &AtollOptions) -> Result<Storage, MountError> {
    if options.flags & ATOLL_RAM != 0 {
        if options.volume_bytes == 0 {
            return Err(MountError::new(
                libc::EINVAL,
                "a volume in memory needs its size: set volume_bytes",
            ));
        }
        return Ok(Storage::Ram(options.volume_bytes));
    }
    // SAFETY: as the caller says.
    let path = unsafe { bytes(path) }
        .map_err(|error| MountError::new(error.0, "no path of a volume was given"))?;
    let path = PathBuf::from(OsStr::from_bytes(path));
    if let Some(place) = Address::find(&path) {
        return Ok(Storage::Served(place));
    }
    if let Some(socket) = atoll_host::guest::socket(&path) {
        return Ok(Storage::Guest(socket.to_owned()));
    }
    Ok(if options.flags & ATOLL_PREAD != 0 { Storage::Direct(path) } else { Storage::Mapped(path) })
}

/// Makes a volume in the host file `path`, which is created with `volume_bytes` if it is missing.
///
/// # Safety
/// See [`c`](super); `options` is null or a structure begun with `ATOLL_OPTIONS`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_mkfs(path: *const c_char, options: *const AtollOptions) -> c_int {
    finish(guarded(|| {
        let made = || {
            // SAFETY: as the caller says.
            let options = unsafe { read_options(options) }?;
            // SAFETY: as the caller says.
            let path = unsafe { CStr::from_ptr(path) };
            volume::mkfs(
                OsStr::from_bytes(path.to_bytes()).as_ref(),
                &FormatOptions {
                    volume_bytes: options.volume_bytes,
                    force: options.flags & ATOLL_FORCE != 0,
                    owner: Credentials { uid: options.uid, gid: options.gid },
                },
            )
        };
        if path.is_null() {
            return Err(explain(MountError::new(libc::EFAULT, "no path of a volume was given")));
        }
        made().map_err(explain).map(|()| 0)
    }))
}

/// Mounts the volume in the host file or block device `path` as the volume of this process.
///
/// # Safety
/// See [`c`](super); `options` is null or a structure begun with `ATOLL_OPTIONS`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atoll_mount(path: *const c_char, options: *const AtollOptions) -> c_int {
    finish(guarded(|| {
        let mounted = || {
            // SAFETY: as the caller says.
            let options = unsafe { read_options(options) }?;
            // SAFETY: as the caller says.
            let mut mount = MountOptions::new(unsafe { storage(path, &options) }?);
            mount.read_only = options.flags & ATOLL_RDONLY != 0;
            mount.sealable = options.flags & ATOLL_SEALABLE != 0;
            if options.flags & ATOLL_RELATIME != 0 {
                mount.access_times = AccessTimes::Relatime;
            }
            if options.cache_bytes > 0 {
                mount.cache_bytes = options.cache_bytes;
            }
            if options.first_descriptor > 0 {
                mount.first_descriptor = options.first_descriptor;
            }
            mount.credentials = Credentials { uid: options.uid, gid: options.gid };
            if process::is_mounted() {
                return Err(busy());
            }
            volume::mount(&mount)
        };
        let volume = mounted().map_err(explain)?;
        match process::install(Box::new(volume)) {
            Ok(()) => Ok(0),
            Err((volume, error)) => {
                // Nothing was done on this volume yet, so nothing can be lost.
                let _ = volume::unmount(*volume);
                Err(if error.0 == libc::EBUSY { explain(busy()) } else { error })
            }
        }
    }))
}

fn busy() -> MountError {
    MountError::new(
        libc::EBUSY,
        "this process has mounted a volume already: call atoll_unmount first",
    )
}

/// Explains why there is no volume to be used.
fn unmounted(error: Error) -> Error {
    match error.0 {
        libc::ENODEV => explain(MountError::new(error.0, "this process has mounted no volume")),
        _ => error,
    }
}

/// Closes every descriptor, makes everything durable and unmounts the volume. Streams of
/// `atoll_opendir` that are still open may only be given to `atoll_closedir` afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn atoll_unmount() -> c_int {
    finish(guarded(|| {
        let volume = process::remove().map_err(unmounted)?;
        volume::unmount(volume).map_err(explain).map(|()| 0)
    }))
}

/// Seals the process for ever: of the host it keeps its volume and writing to descriptors 1 and 2.
/// Any other system call ends it with SIGSYS, so that `reserve_bytes` of memory for what it will
/// allocate are made ready first. To be called in the thread that began the process, which ends by
/// `_exit`.
#[unsafe(no_mangle)]
pub extern "C" fn atoll_seal(reserve_bytes: usize) -> c_int {
    let sealed = process::with_volume(libc::ENODEV, |volume| {
        volume::seal(volume, reserve_bytes).map_err(explain)?;
        process::forbid_sleep();
        Ok(0)
    });
    // Memory is not to be asked for once it is sealed, but then there is a volume.
    finish(sealed.map_err(unmounted))
}
