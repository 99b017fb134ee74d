//! The effects of signals as whoever started this process left them: what nohup(1), or a shell that starts
//! something in the background, has ignored stays ignored, here and in the program that `atoll run` becomes.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{SigHandler, SigSet, Signal, raise, signal};
use nix::unistd::{Pid, getpgid, getpgrp};

/// The signals that were ignored when the process began: bit n - 1 for signal n.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Looks before the language's runtime ignores SIGPIPE, which it does before `main`.
extern "C" fn look() {
    for number in [libc::SIGPIPE, libc::SIGCHLD, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: it changes nothing, and there is room for what it writes; zeros are an action too.
        let action = unsafe {
            libc::sigaction(number, std::ptr::null(), action.as_mut_ptr());
            action.assume_init()
        };
        if action.sa_sigaction == libc::SIG_IGN {
            IGNORED.fetch_or(1 << (number - 1), Ordering::Relaxed);
        }
    }
}

// SAFETY: the C library calls what stands in this section once, before `main`, and `look` needs nothing that
// is made ready later.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Whether SIGPIPE, SIGCHLD, SIGHUP, SIGINT or SIGQUIT was ignored when this process began.
pub fn was_ignored(signal: Signal) -> bool {
    IGNORED.load(Ordering::Relaxed) & 1 << (signal as i32 - 1) != 0
}

/// The signals that ask a server or a mount to end: SIGTERM, and of `others` those that were not ignored.
pub fn ending(others: &[Signal]) -> SigSet {
    let heard = others.iter().copied().filter(|&signal| !was_ignored(signal));
    heard.chain([Signal::SIGTERM]).collect()
}

/// Has this process told of the end of its children: where whoever started it ignored SIGCHLD, they would end
/// without a status, and nobody could wait for them.
///
/// # Errors
/// What sigaction(2) says.
pub fn mind_children() -> io::Result<()> {
    // SAFETY: the default action runs no code.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

/// Becomes `program`, which finds ignored what was ignored. Returns only to say why not.
pub fn exec(program: &mut Command) -> io::Error {
    let ignore = || {
        for ignored in [Signal::SIGCHLD, Signal::SIGPIPE] {
            if was_ignored(ignored) {
                // SAFETY: ignoring runs no code.
                unsafe { signal(ignored, SigHandler::SigIgn) }?;
            }
        }
        Ok(())
    };
    // SAFETY: it runs in this process, after the language's library has put SIGPIPE to its default.
    unsafe { program.pre_exec(ignore) };
    program.exec()
}

/// The terminal of this process and the group in its foreground, if `child` has a group of its own and one of the
/// two is that: a shell with jobs of its own, which suspends itself alone.
fn shared_terminal(child: Pid) -> Option<(File, Pid)> {
    let group = getpgid(Some(child)).ok().filter(|&group| group != getpgrp())?;
    let terminal = File::open("/dev/tty").ok()?;
    // SAFETY: takes a number.
    let foreground = Pid::from_raw(unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) });
    [group, getpgrp()].contains(&foreground).then_some((terminal, foreground))
}

/// Whether `child`, which has stopped, is what somebody at the terminal of this process works with, though it has
/// a group of its own.
pub fn has_terminal(child: Pid) -> bool {
    shared_terminal(child).is_some()
}

/// Stops this process as `child` was stopped. When it goes on, and somebody has given it the terminal, `child` has
/// that again if it had it.
pub fn stop_with(child: Pid) {
    let shared = shared_terminal(child);
    // It cannot fail.
    let _ = raise(Signal::SIGSTOP);
    if let Some((terminal, foreground)) = shared {
        // SAFETY: takes two numbers.
        unsafe {
            let fd = terminal.as_raw_fd();
            if libc::tcgetpgrp(fd) == getpgrp().as_raw() {
                libc::tcsetpgrp(fd, foreground.as_raw());
            }
        }
    }
}
