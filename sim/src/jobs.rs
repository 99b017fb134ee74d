//! The volume's own work, taken step by step: syncer and checkpointer, and the keeper of the gate.

use std::sync::Arc;
use std::time::Duration;

use atoll_server::leases::gate::Gate;
use atoll_server::task::{Step, Task};
use atoll_vfs::{PendingSync, Result, SyncId};

use crate::machine::Rung;

enum JobState {
    Ready,
    Waiting,
    Paused(Duration),
    Flushing(PendingSync),
    Flushed(SyncId, Result<()>),
    Over,
}

/// A task, and what it waits for.
pub struct Job {
    task: Box<dyn Task>,
    bell: Arc<Rung>,
    state: JobState,
}

impl Job {
    /// A job that has not begun.
    pub fn new(task: Box<dyn Task>, bell: Arc<Rung>) -> Job {
        Job { task, bell, state: JobState::Ready }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.task.name()
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.state, JobState::Over)
    }

    /// Whether a turn of it does something.
    pub fn is_ready(&self, now: Duration) -> bool {
        match self.state {
            JobState::Ready | JobState::Flushing(_) | JobState::Flushed(..) => true,
            JobState::Waiting => self.bell.is_rung(),
            JobState::Paused(until) => now >= until,
            JobState::Over => false,
        }
    }

    /// When it is ready if nothing else happens.
    pub fn until(&self) -> Option<Duration> {
        match self.state {
            JobState::Paused(until) => Some(until),
            _ => None,
        }
    }

    /// The device ends a flush, or the task takes a step. Returns false if a flush has failed; with
    /// `swallows` the task is not told.
    pub fn turn(&mut self, now: Duration, swallows: bool) -> bool {
        let flushed = match std::mem::replace(&mut self.state, JobState::Ready) {
            JobState::Flushing(flush) => {
                let (id, outcome) = flush.flush();
                self.state = JobState::Flushed(id, if swallows { Ok(()) } else { outcome });
                return outcome.is_ok();
            }
            JobState::Flushed(id, outcome) => Some((id, outcome)),
            JobState::Waiting => {
                self.bell.hear();
                None
            }
            _ => None,
        };
        self.state = match self.task.step(flushed) {
            Step::Wait => JobState::Waiting,
            Step::Pause(pause) if pause.is_zero() => JobState::Ready,
            Step::Pause(pause) => JobState::Paused(now + pause),
            Step::Flush(flush) => JobState::Flushing(flush),
            Step::Over => JobState::Over,
        };
        true
    }
}

/// The keeper of the gate, which looks after the deadlines of mounts.
pub struct Keeper {
    gate: Arc<Gate>,
    bell: Arc<Rung>,
    /// When to look if nobody rings; `None` for the time being if nothing is due.
    until: Option<Duration>,
    /// Mounts have gone, and with the last of them the keeper.
    over: bool,
}

impl Keeper {
    /// The keeper of `gate`, if it has none.
    pub fn of(gate: &Arc<Gate>) -> Option<Keeper> {
        let bell = Arc::new(Rung::default());
        let is_first = gate.keep(Arc::<Rung>::clone(&bell));
        let gate = Arc::clone(gate);
        is_first.then(|| Keeper { gate, bell, until: Some(Duration::ZERO), over: false })
    }

    /// Whether it has something to look after.
    pub fn is_ready(&self, now: Duration) -> bool {
        !self.over && (self.bell.is_rung() || self.until.is_some_and(|until| now >= until))
    }

    /// When it looks again.
    pub fn until(&self) -> Option<Duration> {
        self.until.filter(|_| !self.over)
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Looks.
    pub fn turn(&mut self, now: Duration) {
        self.bell.hear();
        match self.gate.tend() {
            Some(next) => self.until = next.map(|next| now + next),
            None => self.over = true,
        }
    }
}
