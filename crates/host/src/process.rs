//! What a process is: splitting it in two, and how it learns of the end of its children.
#![allow(unsafe_code)]

use std::io;

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{ForkResult, Pid};

/// Whether the end of children was ignored when the process began.
static CHILDREN_IGNORED: AtomicBool = AtomicBool::new(false);

/// Has this process told of the end of its children: where whoever started it ignored SIGCHLD, they would end
/// without a status, and nobody could wait for them.
///
/// # Errors
/// What sigaction(2) says.
pub fn mind_children() -> io::Result<()> {
    // SAFETY: the default action runs no code.
    let before = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    CHILDREN_IGNORED.fetch_or(matches!(before, SigHandler::SigIgn), Ordering::Relaxed);
    Ok(())
}

/// Undoes [`mind_children`], in a process that is about to run a program.
///
/// # Errors
/// What sigaction(2) says.
pub fn mind_children_as_before() -> io::Result<()> {
    if CHILDREN_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: ignoring runs no code.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }?;
    }
    Ok(())
}

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
