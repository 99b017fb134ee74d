//! Checkpoints: made in steps by a task of the volume, between the calls of its clients.
//!
//! Without the task some client's call finds the journal full, and all clients wait until all
//! changed metadata is home and flushed. Each call that leaves the volume looks whether a
//! checkpoint is due, and wakes the task, the volume's checkpointer. It takes one step after
//! another, each under the lock, and waits for the device and for the syncer without the lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_vfs::{CheckpointStep, FileSystem, Result, SyncId};

pub(crate) mod asked;

use crate::host::Bell;
use crate::task::{PAUSE, Step, Task};
use crate::volume::Volume;

/// A volume's checkpointer. When it ends, the unmount does the rest.
pub struct Checkpointer<F: FileSystem + Send> {
    volume: Arc<Volume<F>>,
    bell: Arc<dyn Bell>,
    /// The outcome of the sync that it waits for.
    sync: Option<Arc<Mutex<Option<Result<()>>>>>,
}

impl<F: FileSystem + Send> Checkpointer<F> {
    /// The one checkpointer of `volume`; `bell` is rung when it has something to do.
    pub fn new(volume: &Arc<Volume<F>>, bell: Arc<dyn Bell>) -> Checkpointer<F> {
        // There is no other.
        let _ = volume.checkpoints.checkpointer.set(Arc::clone(&bell));
        Checkpointer { volume: Arc::clone(volume), bell, sync: None }
    }

    /// Asks for the commit that the checkpoint needs, whoever makes it.
    fn begin_sync(&mut self) {
        let (told, bell) = (Arc::new(Mutex::new(None)), Arc::clone(&self.bell));
        self.sync = Some(Arc::clone(&told));
        let then = move |outcome| {
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            bell.ring();
        };
        self.volume.sync_later(true, Box::new(then));
    }

    fn advance(&mut self, flushed: Option<(SyncId, Result<()>)>) -> Result<Step> {
        if let Some(sync) = &self.sync {
            let told = sync.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(outcome) = told else { return Ok(Step::Wait) };
            self.sync = None;
            outcome?;
        }
        let checkpoints = &self.volume.checkpoints;
        let mut state = self.volume.lock()?;
        match state.fs.checkpoint_step(flushed)? {
            CheckpointStep::Idle if state.fs.checkpoint_due() => Ok(Step::Pause(Duration::ZERO)),
            CheckpointStep::Idle => {
                // Under the lock, so that a call that makes one due afterwards asks again.
                checkpoints.asked.store(false, Ordering::Relaxed);
                Ok(Step::Wait)
            }
            CheckpointStep::More => Ok(Step::Pause(PAUSE)),
            CheckpointStep::Sync => {
                drop(state);
                self.begin_sync();
                Ok(Step::Wait)
            }
            CheckpointStep::Wait(flush) => Ok(Step::Flush(flush)),
        }
    }
}

impl<F: FileSystem + Send> Task for Checkpointer<F> {
    fn name(&self) -> &'static str {
        "checkpointer"
    }

    fn step(&mut self, flushed: Option<(SyncId, Result<()>)>) -> Step {
        let checkpoints = &self.volume.checkpoints;
        if checkpoints.closed.load(Ordering::Relaxed) {
            return Step::Over;
        }
        if !checkpoints.asked.load(Ordering::Relaxed) {
            return Step::Wait;
        }
        // A panic in the file system ends the volume: its lock then gives every caller an error.
        let step = catch_unwind(AssertUnwindSafe(|| self.advance(flushed)));
        step.ok().and_then(Result::ok).unwrap_or_else(|| {
            log::error!("a checkpoint of {} failed", self.volume.name());
            Step::Over
        })
    }
}

impl<F: FileSystem + Send> Volume<F> {
    /// Has the checkpointer end, wherever it is.
    pub fn close_checkpoints(&self) {
        self.checkpoints.closed.store(true, Ordering::Relaxed);
        if let Some(checkpointer) = self.checkpoints.checkpointer.get() {
            checkpointer.ring();
        }
    }
}
