//! Waiting for a program as if it were not there: signals, stops and the status pass through.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use atoll_host::namespace;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::failure::{Failure, Outcome, RUN_FAILED};
use crate::signals::{has_terminal, stop_with, was_ignored};

/// Signals that are passed on, and end what the program has left running.
const PASSED: [Signal; 14] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGCONT,
    Signal::SIGURG,
    Signal::SIGIO,
];

/// How long processes that the program left running are waited for in silence.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long they may take to end when they are asked to.
const GRACE: Duration = Duration::from_secs(5);

/// The signals of this process, taken over.
pub struct Job {
    signals: SignalFd,
    before: SigSet,
}

/// What is known of the two processes.
struct JobState {
    command: Pid,
    server: Pid,
    /// How the command ended.
    status: Option<u8>,
    /// When it did.
    ended: Option<Instant>,
    server_running: bool,
    server_failed: bool,
    /// The command does not run just now.
    stopped: bool,
    /// This process was asked to stop, by the terminal or by kill(1), and has not yet.
    asked_to_stop: bool,
    namespace: Option<u64>,
    /// Whether the person has been told what is waited for.
    told: bool,
    /// When what was left is killed.
    deadline: Option<Instant>,
}

impl Job {
    /// Takes signals over from here on: they wait to be passed on.
    ///
    /// # Errors
    /// What signalfd(2) says.
    pub fn prepare() -> io::Result<Job> {
        let mut taken: SigSet = PASSED.into_iter().collect();
        taken.add(Signal::SIGCHLD);
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&taken), Some(&mut before))?;
        let signals = SignalFd::with_flags(&taken, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Job { signals, before })
    }

    /// Blocks what was blocked and no more, in a process that is about to run a program.
    ///
    /// # Errors
    /// What sigprocmask(2) says.
    pub fn restore_signals(&self) -> io::Result<()> {
        Ok(pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None)?)
    }

    /// Waits for `command` and then for `server`, which ends when no process sees its volumes any
    /// more. `report` gives the number of the command's namespace once it is ready.
    pub fn run(self, command: Pid, server: Pid, report: OwnedFd) -> Outcome {
        let mut state = JobState {
            command,
            server,
            status: None,
            ended: None,
            server_running: true,
            server_failed: false,
            stopped: false,
            asked_to_stop: false,
            namespace: None,
            told: false,
            deadline: None,
        };
        let mut report = Some(report);
        loop {
            state.reap();
            state.stop_if_asked();
            let Some(timeout) = state.next_wait() else { break };
            let mut watched = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            if let Some(report) = &report {
                watched.push(PollFd::new(report.as_fd(), PollFlags::POLLIN));
            }
            match nix::poll::poll(&mut watched, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(Failure::new(errno).with_status(RUN_FAILED)),
            }
            let reported = watched.get(1).and_then(PollFd::any).unwrap_or(false);
            drop(watched);
            if reported && let Some(report) = report.take() {
                let mut number = [0; 8];
                if let Ok(8) = nix::unistd::read(&report, &mut number) {
                    state.namespace = Some(u64::from_ne_bytes(number)).filter(|&n| n != 0);
                }
            }
            while let Ok(Some(info)) = self.signals.read_signal() {
                let Ok(signal) = Signal::try_from(info.ssi_signo as i32) else { continue };
                if signal != Signal::SIGCHLD {
                    // What the terminal sends reaches the command by itself.
                    let by_terminal = info.ssi_code > 0;
                    state.take(signal, by_terminal);
                }
            }
        }
        let status = state.status.unwrap_or(RUN_FAILED);
        Ok(if status == 0 && state.server_failed { RUN_FAILED } else { status })
    }
}

impl JobState {
    /// Learns what has become of the two processes.
    fn reap(&mut self) {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED;
        while let Ok(status) = waitpid(None, Some(flags)) {
            match status {
                WaitStatus::Exited(pid, code) => self.ended(pid, code as u8, None),
                WaitStatus::Signaled(pid, signal, _) => {
                    self.ended(pid, 128 + signal as u8, Some(signal));
                }
                WaitStatus::Stopped(pid, _) if pid == self.command => {
                    self.stopped = true;
                    self.asked_to_stop |= has_terminal(pid);
                }
                WaitStatus::Continued(pid) if pid == self.command => {
                    (self.stopped, self.asked_to_stop) = (false, false);
                }
                WaitStatus::StillAlive => break,
                _ => {}
            }
        }
    }

    /// Stops with the command, for the shell to see, which continues both; but not when somebody stopped the
    /// command alone: who does that continues it alone, and nobody would continue this process.
    fn stop_if_asked(&mut self) {
        if self.stopped && std::mem::take(&mut self.asked_to_stop) {
            stop_with(self.command);
        }
    }

    fn ended(&mut self, pid: Pid, status: u8, signal: Option<Signal>) {
        if pid == self.command {
            self.status = Some(status);
            self.ended = Some(Instant::now());
        } else if pid == self.server {
            self.server_running = false;
            self.server_failed = status != 0;
            if let Some(signal) = signal {
                eprintln!(
                    "atoll: the process that serves the volume was killed ({signal}); what had been \
                     written is safe, and is there when the volume is used again"
                );
            }
        }
    }

    /// How long to wait for the next event; `None` when there is nothing to wait for.
    fn next_wait(&mut self) -> Option<PollTimeout> {
        let Some(ended) = self.ended else { return Some(PollTimeout::NONE) };
        if !self.server_running {
            return None;
        }
        let now = Instant::now();
        if !self.told && now >= ended + PATIENCE {
            self.told = true;
            self.tell();
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.end_rest(Signal::SIGKILL);
            self.deadline = Some(now + GRACE);
        }
        let next = match self.deadline {
            Some(deadline) => deadline,
            None if !self.told => ended + PATIENCE,
            None => return Some(PollTimeout::NONE),
        };
        // One more, so as to wake after the moment and not before it.
        let millis = next.saturating_duration_since(now).as_millis() + 1;
        Some(PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX))
    }

    /// Says what is waited for.
    fn tell(&self) {
        let rest = self.rest();
        if rest.is_empty() {
            eprintln!("atoll: closing the volume");
            return;
        }
        let names: Vec<String> =
            rest.iter().take(8).map(|(pid, name)| format!("{name} ({pid})")).collect();
        let more = if rest.len() > names.len() { ", ..." } else { "" };
        eprintln!(
            "atoll: the command has ended; waiting for what it left running on the volume: {}{more}. \
             Interrupt (Ctrl-C) to end it",
            names.join(", ")
        );
    }

    fn rest(&self) -> Vec<(i32, String)> {
        self.namespace.map(namespace::processes).unwrap_or_default()
    }

    fn end_rest(&self, signal: Signal) {
        for (pid, _) in self.rest() {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Acts on a signal that this process was sent.
    fn take(&mut self, signal: Signal, by_terminal: bool) {
        if self.status.is_none() {
            let stops = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].contains(&signal);
            self.asked_to_stop = (self.asked_to_stop || stops) && signal != Signal::SIGCONT;
            if !by_terminal {
                let _ = kill(self.command, signal);
            }
            return;
        }
        let ends = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
        if ends.contains(&signal) && !was_ignored(signal) {
            // Asked twice, it is meant.
            let again = self.deadline.is_some();
            self.end_rest(if again { Signal::SIGKILL } else { Signal::SIGTERM });
            self.deadline = Some(Instant::now() + GRACE);
        }
    }
}
