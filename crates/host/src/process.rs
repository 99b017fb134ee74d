//! Splitting a process in two.
#![allow(unsafe_code)]

use std::io;

use nix::unistd::{ForkResult, Pid};

/// Runs `child` in a new process and returns its number. The child ends with the status that
/// `child` returns; it never returns into its caller's code.
///
/// # Errors
/// When this process has more than one thread, whose locks the child would inherit locked for
/// ever; or what fork(2) says.
pub fn fork(child: impl FnOnce() -> u8) -> io::Result<Pid> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process with threads cannot be split"));
    }
    // SAFETY: this is the only thread, so that no lock can be held by another and everything that
    // the child finds in memory is whole.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            // A panic must not unwind into frames that belong to the parent.
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            std::process::exit(status.unwrap_or(125).into())
        }
    }
}
