//! The effects of signals as whoever started this process left them: what nohup(1), or a shell that
//! starts something in the background, has ignored stays ignored, here and in the program that
//! `atoll run` becomes.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, Signal, getpgid, getpgrp, getpid, kill_process};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Signals that belong together.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

/// The result of a call of the C library that returns -1 when it fails.
fn done(result: i32) -> io::Result<i32> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl SignalSet {
    /// These.
    pub fn new(signals: impl IntoIterator<Item = Signal>) -> SignalSet {
        let mut set = MaybeUninit::uninit();
        // SAFETY: it makes all of the set.
        let mut set = SignalSet(unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        });
        signals.into_iter().for_each(|signal| set.add(signal));
        set
    }

    /// One more.
    pub fn add(&mut self, signal: Signal) {
        // SAFETY: it was made whole; all signals fit in.
        unsafe { libc::sigaddset(&mut self.0, signal.as_raw()) };
    }

    /// Blocks them in this thread, and those that it will start. Returns what was blocked before.
    ///
    /// # Errors
    /// Those of sigprocmask(2).
    pub fn block(&self) -> io::Result<SignalSet> {
        let mut before = SignalSet::new([]);
        // SAFETY: two sets. The number of an error is returned.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &self.0, &mut before.0) } {
            0 => Ok(before),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Blocks these in this thread, and no others.
    ///
    /// # Errors
    /// Those of sigprocmask(2).
    pub fn block_only(&self) -> io::Result<()> {
        // SAFETY: a set, and nothing to write to.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Waits for one of them, which are blocked; false if that cannot be.
    pub fn wait(&self) -> bool {
        // SAFETY: a set, and a number to write to.
        unsafe { libc::sigwait(&self.0, &mut 0) == 0 }
    }

    /// A descriptor that gives these signals to its reader while they are blocked; [`next`] reads
    /// it without waiting.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: a set; the descriptor is new, and nobody's yet.
        unsafe {
            let fd = done(libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
            Ok(OwnedFd::from_raw_fd(fd))
        }
    }
}

/// The next signal out of `descriptor`, and whether the kernel has sent it, as it does for a
/// terminal.
pub fn next(descriptor: &OwnedFd) -> Option<(Signal, bool)> {
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    rustix::io::read(descriptor, &mut info).ok().filter(|&len| len == info.len())?;
    // The number, that of an error, and where it is from.
    let number = |at: usize| info[at..].first_chunk().map(|&bytes| i32::from_ne_bytes(bytes));
    Some((Signal::from_named_raw(number(0)?)?, number(8)? > 0))
}

/// The signals that were ignored when the process began: bit n - 1 for signal n.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Looks before the language's runtime ignores SIGPIPE, which it does before `main`.
extern "C" fn look() {
    for number in [libc::SIGPIPE, libc::SIGCHLD, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: it changes nothing, and there is room for what it writes; zeros are an action
        // too.
        let action = unsafe {
            libc::sigaction(number, std::ptr::null(), action.as_mut_ptr());
            action.assume_init()
        };
        if action.sa_sigaction == libc::SIG_IGN {
            IGNORED.fetch_or(1 << (number - 1), Ordering::Relaxed);
        }
    }
}

// SAFETY: the C library calls what stands in this section once, before `main`, and `look` needs
// nothing that is made ready later.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Whether SIGPIPE, SIGCHLD, SIGHUP, SIGINT or SIGQUIT was ignored when this process began.
pub fn was_ignored(signal: Signal) -> bool {
    IGNORED.load(Ordering::Relaxed) & 1 << (signal.as_raw() - 1) != 0
}

/// The signals that ask a server or a mount to end: SIGTERM, and of `others` those that were not
/// ignored.
pub fn ending(others: &[Signal]) -> SignalSet {
    let heard = others.iter().copied().filter(|&signal| !was_ignored(signal));
    SignalSet::new(heard.chain([Signal::TERM]))
}

/// Has `signal` met by `action`.
///
/// # Safety
/// The action runs no code, or may be run at any time.
unsafe fn act(signal: Signal, action: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: as the caller promises.
    let before = unsafe { libc::signal(signal.as_raw(), action) };
    if before == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has this process told of the end of its children: where whoever started it ignored SIGCHLD, they
/// would end without a status, and nobody could wait for them.
///
/// # Errors
/// Those of sigaction(2).
pub fn mind_children() -> io::Result<()> {
    // SAFETY: the default action runs no code.
    unsafe { act(Signal::CHILD, libc::SIG_DFL) }
}

/// Becomes `program`, which finds ignored what was ignored. Returns only to say why not.
pub fn exec(program: &mut Command) -> io::Error {
    let ignore = || {
        for ignored in [Signal::CHILD, Signal::PIPE] {
            if was_ignored(ignored) {
                // SAFETY: ignoring runs no code.
                unsafe { act(ignored, libc::SIG_IGN) }?;
            }
        }
        Ok(())
    };
    // SAFETY: it runs in this process, after the language's library has put SIGPIPE to its default.
    unsafe { program.pre_exec(ignore) };
    program.exec()
}

/// The terminal of this process and the group in its foreground, if `child` has a group of its own
/// and one of the two is that: a shell with jobs of its own, which suspends itself alone.
fn shared_terminal(child: Pid) -> Option<(File, Pid)> {
    let group = getpgid(Some(child)).ok().filter(|&group| group != getpgrp())?;
    let terminal = File::open("/dev/tty").ok()?;
    let foreground = tcgetpgrp(&terminal).ok()?;
    [group, getpgrp()].contains(&foreground).then_some((terminal, foreground))
}

/// Whether `child`, which has stopped, is what somebody at the terminal of this process works with,
/// though it has a group of its own.
pub fn has_terminal(child: Pid) -> bool {
    shared_terminal(child).is_some()
}

/// Stops this process as `child` was stopped. When it goes on, and somebody has given it the
/// terminal, `child` has that again if it had it.
pub fn stop_with(child: Pid) {
    let shared = shared_terminal(child);
    // It cannot fail.
    let _ = kill_process(getpid(), Signal::STOP);
    if let Some((terminal, foreground)) = shared
        && tcgetpgrp(&terminal) == Ok(getpgrp())
    {
        let _ = tcsetpgrp(&terminal, foreground);
    }
}
