//! Waiting for a program as if it were not there: signals, stops and the status pass through.

use std::io::{self, PipeReader, Read};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use atoll_host::namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, getsid, kill_process, wait};

use crate::failure::{Failure, Outcome, RUN_FAILED};
use crate::signals::{self, SignalSet, has_terminal, stop_with, was_ignored};

/// Signals that are passed on, and end what the program has left running.
const PASSED: [Signal; 14] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::WINCH,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
    Signal::CONT,
    Signal::URG,
    Signal::IO,
];

/// How long processes that the program left running are waited for in silence.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long they may take to end when they are asked to.
const GRACE: Duration = Duration::from_secs(5);

/// The signals of this process, taken over.
pub struct Job {
    signals: OwnedFd,
    before: SignalSet,
}

/// The known state of the two processes.
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
    /// Those of signalfd(2).
    pub fn prepare() -> io::Result<Job> {
        let taken = SignalSet::new(PASSED.into_iter().chain([Signal::CHILD]));
        let before = taken.block()?;
        Ok(Job { signals: taken.descriptor()?, before })
    }

    /// Blocks what was blocked and no more, in a process that is about to run a program.
    ///
    /// # Errors
    /// Those of sigprocmask(2).
    pub fn restore_signals(&self) -> io::Result<()> {
        self.before.block_only()
    }

    /// Waits for `command` and then for `server`, which ends when no process sees its volumes any
    /// more. `report` gives the number of the command's namespace once it is ready.
    pub fn run(self, command: Pid, server: Pid, report: PipeReader) -> Outcome {
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
            let mut watched = vec![PollFd::new(&self.signals, PollFlags::IN)];
            if let Some(report) = &report {
                watched.push(PollFd::new(report, PollFlags::IN));
            }
            match poll(&mut watched, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Failure::new(errno).with_status(RUN_FAILED)),
            }
            let reported = watched.get(1).is_some_and(|fd| !fd.revents().is_empty());
            drop(watched);
            if reported && let Some(mut report) = report.take() {
                let mut number = [0; 8];
                if report.read_exact(&mut number).is_ok() {
                    state.namespace = Some(u64::from_ne_bytes(number)).filter(|&n| n != 0);
                }
            }
            while let Some((signal, by_terminal)) = signals::next(&self.signals) {
                // Most signals of the terminal reach the command by themselves.
                if signal != Signal::CHILD {
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
        let flags = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
        while let Ok(Some((pid, status))) = wait(flags) {
            if let Some(code) = status.exit_status() {
                self.ended(pid, code as u8, None);
            } else if let Some(signal) = status.terminating_signal() {
                self.ended(pid, 128 + signal as u8, Some(signal));
            } else if pid == self.command && status.stopped() {
                self.stopped = true;
                self.asked_to_stop |= has_terminal(pid);
            } else if pid == self.command && status.continued() {
                (self.stopped, self.asked_to_stop) = (false, false);
            }
        }
    }

    /// Stops with the command, for the shell to see, which continues both; but not when somebody
    /// stopped the command alone: who does that continues it alone, and nobody would continue this
    /// process.
    fn stop_if_asked(&mut self) {
        if self.stopped && std::mem::take(&mut self.asked_to_stop) {
            stop_with(self.command);
        }
    }

    fn ended(&mut self, pid: Pid, status: u8, signal: Option<i32>) {
        if pid == self.command {
            self.status = Some(status);
            self.ended = Some(Instant::now());
        } else if pid == self.server {
            self.server_running = false;
            self.server_failed = status != 0;
            if let Some(signal) = signal {
                say!(
                    "the process that serves the volume was killed (signal {signal}); what had been \
                     written is safe, and is there when the volume is used again"
                );
            }
        }
    }

    /// How long to wait for the next event, if not for ever; `None` when there is nothing to wait
    /// for.
    fn next_wait(&mut self) -> Option<Option<Timespec>> {
        let Some(ended) = self.ended else { return Some(None) };
        if !self.server_running {
            return None;
        }
        let now = Instant::now();
        if !self.told && now >= ended + PATIENCE {
            self.told = true;
            self.tell();
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.end_rest(Signal::KILL);
            self.deadline = Some(now + GRACE);
        }
        let next = match self.deadline {
            Some(deadline) => deadline,
            None if !self.told => ended + PATIENCE,
            None => return Some(None),
        };
        Some(Timespec::try_from(next.saturating_duration_since(now)).ok())
    }

    /// Says what is waited for.
    fn tell(&self) {
        let rest = self.rest();
        if rest.is_empty() {
            say!("closing the volume");
            return;
        }
        let names: Vec<String> =
            rest.iter().take(8).map(|(pid, name)| format!("{name} ({pid})")).collect();
        let more = if rest.len() > names.len() { ", ..." } else { "" };
        say!(
            "the command has ended; waiting for what it left running on the volume: {}{more}. \
             Interrupt (Ctrl-C) to end it",
            names.join(", ")
        );
    }

    fn rest(&self) -> Vec<(i32, String)> {
        self.namespace.map(namespace::processes).unwrap_or_default()
    }

    fn end_rest(&self, signal: Signal) {
        for (pid, _) in self.rest() {
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, signal));
        }
    }

    /// Acts on a signal that this process was sent.
    fn take(&mut self, signal: Signal, by_terminal: bool) {
        if self.status.is_none() {
            let stops = [Signal::TSTP, Signal::TTIN, Signal::TTOU].contains(&signal);
            self.asked_to_stop = (self.asked_to_stop || stops) && signal != Signal::CONT;
            if !by_terminal || is_of_leader(signal) {
                let _ = kill_process(self.command, signal);
            }
            return;
        }
        let ends = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
        if ends.contains(&signal) && !was_ignored(signal) {
            // Asked twice, it is meant.
            let again = self.deadline.is_some();
            self.end_rest(if again { Signal::KILL } else { Signal::TERM });
            self.deadline = Some(Instant::now() + GRACE);
        }
    }
}

/// Whether a terminal that goes away sends `signal` to this process and not to the command: who
/// leads a session alone is told, and the others are when it ends.
fn is_of_leader(signal: Signal) -> bool {
    [Signal::HUP, Signal::CONT].contains(&signal) && getsid(None) == Ok(getpid())
}
