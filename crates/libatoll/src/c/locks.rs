//! Locks: record locks of fcntl(2), and flock(2).

use core::ffi::{c_int, c_short};

use atoll_posix::Whence;
use atoll_posix::locks::{RecordLock, Waiting};
use atoll_vfs::{Errno, LockKind};

use super::finish;
use crate::process::{self, Error, with_volume};
use crate::volume::{self, Volume};

/// How long a call that waits sleeps between two looks for its lock.
const LOOK: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// fcntl(2) with one of the commands for record locks; `None` for any other command.
///
/// # Safety
/// `lock` is null or a structure to read and write, if the command is one for locks.
pub(super) unsafe fn record_lock(
    fd: c_int,
    command: c_int,
    lock: *mut libc::flock,
) -> Option<Result<c_int, Error>> {
    let of_description =
        matches!(command, libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW);
    let is_lock = matches!(command, libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW);
    if !is_lock && !of_description {
        return None;
    }
    // SAFETY: as the caller says.
    let Some(lock) = (unsafe { lock.as_mut() }) else { return Some(Err(Error(libc::EFAULT))) };
    let asks = matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
    let waits = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
    Some(asked(lock, of_description).and_then(|wanted| {
        if !asks {
            return locked(waits, |volume| volume.lock(fd, &wanted, waits));
        }
        if wanted.kind.is_none() {
            return Err(Error(libc::EINVAL));
        }
        let found = with_volume(libc::EBADF, |volume| Ok(volume.lock_in_the_way(fd, &wanted)?))?;
        match found {
            Some(RecordLock { kind, start, len, pid, .. }) => {
                let shared = kind == Some(LockKind::Shared);
                lock.l_type = if shared { libc::F_RDLCK } else { libc::F_WRLCK } as c_short;
                lock.l_whence = libc::SEEK_SET as c_short;
                (lock.l_start, lock.l_len, lock.l_pid) = (start, len, pid as libc::pid_t);
            }
            None => lock.l_type = libc::F_UNLCK as c_short,
        }
        Ok(0)
    }))
}

/// The lock that C asks for.
fn asked(lock: &libc::flock, of_description: bool) -> Result<RecordLock, Error> {
    let invalid = Err(Error(libc::EINVAL));
    let kind = match c_int::from(lock.l_type) {
        libc::F_RDLCK => Some(LockKind::Shared),
        libc::F_WRLCK => Some(LockKind::Exclusive),
        libc::F_UNLCK => None,
        _ => return invalid,
    };
    let whence = match c_int::from(lock.l_whence) {
        libc::SEEK_SET => Whence::Set,
        libc::SEEK_CUR => Whence::Current,
        libc::SEEK_END => Whence::End,
        _ => return invalid,
    };
    if of_description && lock.l_pid != 0 {
        return invalid;
    }
    let pid = process::process_number();
    Ok(RecordLock { kind, whence, start: lock.l_start, len: lock.l_len, pid, of_description })
}

/// Runs `call` on the volume that was mounted as number `mount`; if there is none yet, on that
/// which is mounted, whose number it becomes. A descriptor of one mount means nothing to the next.
fn with_mount<R>(
    mount: &mut Option<u64>,
    call: impl FnOnce(&mut Volume) -> Result<R, Error>,
) -> Result<R, Error> {
    with_volume(libc::EBADF, |volume| {
        let now = process::mount_number();
        if *mount.get_or_insert(now) != now {
            return Err(Error(libc::EBADF));
        }
        call(volume)
    })
}

/// Begins to take a lock, and waits for it. Other threads use the volume meanwhile; a signal whose
/// handler has run ends it with `EINTR`.
fn locked(
    waits: bool,
    mut begin: impl FnMut(&mut Volume) -> Result<Option<Waiting>, Errno>,
) -> Result<c_int, Error> {
    let mut mount = None;
    loop {
        match with_mount(&mut mount, |volume| Ok(begin(volume)?)) {
            Ok(None) => return Ok(0),
            Ok(Some(waiting)) => return wait(waiting, mount),
            // Nobody tells when it is free.
            Err(Error(libc::EAGAIN)) if waits && sleep() => {}
            Err(Error(libc::EAGAIN)) if waits => return Err(Error(libc::EINTR)),
            Err(error) => return Err(error),
        }
    }
}

/// Waits for a lock of the volume that was mounted as number `mount`.
fn wait(waiting: Waiting, mut mount: Option<u64>) -> Result<c_int, Error> {
    let mut waiting = Some(waiting);
    let mut given_up = false;
    while let Some(waits) = waiting {
        let interrupted = !sleep();
        waiting = with_mount(&mut mount, |volume| {
            if interrupted && !given_up {
                given_up = true;
                volume.interrupt(&waits);
            }
            Ok(volume.waited(waits)?)
        })?;
    }
    Ok(0)
}

/// Sleeps for a moment. False if a signal's handler has run. A sealed process spins: it has no call
/// to sleep by, and none to come back from a handler.
fn sleep() -> bool {
    if !process::may_sleep() {
        (0..10_000).for_each(|_| core::hint::spin_loop());
        return true;
    }
    // SAFETY: the time is a structure of ours, and nothing is to be written.
    unsafe { libc::nanosleep(&LOOK, core::ptr::null_mut()) == 0 }
}

/// flock(2).
#[unsafe(no_mangle)]
pub extern "C" fn atoll_flock(fd: c_int, operation: c_int) -> c_int {
    let kind = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => Some(LockKind::Shared),
        libc::LOCK_EX => Some(LockKind::Exclusive),
        libc::LOCK_UN => None,
        _ => return finish(Err(Error(libc::EINVAL))),
    };
    let waits = operation & libc::LOCK_NB == 0;
    finish(locked(waits, |volume| volume.flock(fd, kind, waits)))
}

/// Whether a server has the volume, so that other processes may use it at the same time: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn atoll_is_served() -> c_int {
    super::on_path(|volume| Ok(c_int::from(volume::is_served(volume))))
}
