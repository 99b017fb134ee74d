//! Splitting a process in two, and who is meant by a name.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// Room for what is known of a user or group: a group may have tens of thousands of members.
const NAMES: usize = 1 << 20;

/// Runs `child` in a new process and returns its number. The child ends with the status that
/// `child` returns; it never returns into its caller's code.
///
/// # Errors
/// When this process has more than one thread, whose locks the child would inherit locked for
/// ever; or what fork(2) says.
pub fn fork(child: impl FnOnce() -> u8) -> io::Result<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("/proc is not mounted"),
        _ => error,
    })?;
    if threads.count() != 1 {
        return Err(io::Error::other("a process with threads cannot be split"));
    }
    // SAFETY: this is the only thread.
    unsafe { split(child) }
}

/// As [`fork`], without a look at the threads.
///
/// # Errors
/// The error of fork(2).
///
/// # Safety
/// This process has one thread, so that no lock can be held by another and everything that the
/// child finds in memory is whole.
pub(crate) unsafe fn split(child: impl FnOnce() -> u8) -> io::Result<Pid> {
    // SAFETY: as the caller promises.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // A panic must not unwind into frames that belong to the parent.
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            std::process::exit(status.unwrap_or(125).into())
        }
        child => Pid::from_raw(child).ok_or_else(|| io::ErrorKind::InvalidData.into()),
    }
}

/// Closes all descriptors of this process but `kept`, and never waits where others have what they
/// stand for open too. Values that own them are forgotten with this process: it ends without
/// running destructors of what it has inherited.
pub(crate) fn close_others(kept: &[BorrowedFd<'_>]) {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().unsigned_abs()).collect();
    kept.sort_unstable();
    let mut from = 0;
    for end in kept.into_iter().chain([u32::MAX]) {
        if from < end {
            close_range(from, end - 1);
        }
        from = end.saturating_add(1);
    }
}

fn close_range(from: u32, to: u32) {
    // SAFETY: nothing in this process uses these numbers again.
    if unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) } == 0 {
        return;
    }
    // Before Linux 5.9.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = u32::try_from(limit.unwrap_or(1 << 20)).unwrap_or(u32::MAX);
    for fd in from..=to.min(most) {
        // SAFETY: as above.
        unsafe { libc::close(fd.cast_signed()) };
    }
}

/// Has this process killed when its parent ends, if that is still `parent`.
///
/// # Errors
/// Those of prctl(2); `NotFound` when the parent has ended before.
pub(crate) fn die_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if rustix::process::getppid() != Some(parent) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(())
}

/// Closes descriptors that this process has inherited by [`fork`] and another uses. Nothing in this
/// process uses their numbers again: it ends without running destructors.
pub fn close<const N: usize>(inherited: [BorrowedFd<'_>; N]) {
    for fd in inherited {
        // SAFETY: as above.
        unsafe { rustix::io::close(fd.as_raw_fd()) };
    }
}

/// Gives this process, which must have one thread, namespaces of its own.
pub(crate) fn unshare(namespaces: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: no descriptors are left, and no other thread goes by what this one sees.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }
}

/// The processor that this thread runs on. The C library asks the kernel's vDSO, which it has found
/// when the process began; rustix would look for it only now, by calls that a confined server may
/// not make.
pub(crate) fn processor() -> io::Result<usize> {
    // SAFETY: it takes nothing.
    let number = unsafe { libc::sched_getcpu() };
    usize::try_from(number).map_err(|_| io::Error::last_os_error())
}

/// The number of the user `name`, if there is one.
pub(crate) fn user(name: &CStr) -> Option<u32> {
    let mut found = std::ptr::null_mut();
    let mut buf = vec![0; NAMES];
    let mut entry = MaybeUninit::uninit();
    let (at, len) = (buf.as_mut_ptr(), buf.len());
    // SAFETY: there is room for what it writes; where it says that it has found the user, the entry
    // is whole.
    unsafe {
        libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), at, len, &mut found);
        (!found.is_null()).then(|| entry.assume_init().pw_uid)
    }
}

/// The number of the group `name`, if there is one.
pub(crate) fn group(name: &CStr) -> Option<u32> {
    let mut found = std::ptr::null_mut();
    let mut buf = vec![0; NAMES];
    let mut entry = MaybeUninit::uninit();
    let (at, len) = (buf.as_mut_ptr(), buf.len());
    // SAFETY: as for a user.
    unsafe {
        libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), at, len, &mut found);
        (!found.is_null()).then(|| entry.assume_init().gr_gid)
    }
}
