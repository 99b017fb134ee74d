//! Checkpoints: made in steps by a thread of the volume, between the calls of its clients.
//!
//! Without it some client's call finds the journal full, and everybody waits until all changed metadata is
//! home and flushed. Whoever leaves the volume looks whether a checkpoint is due, and wakes the thread, the
//! volume's checkpointer. That takes step after step, each under the lock, and waits for the device and for
//! the syncer without it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use atoll_vfs::{CheckpointStep, FileSystem, Result};

use super::volume::Volume;
use crate::fuse::now;

/// The pause between two steps, of a checkpoint or a sync, for those who wait for the lock: it goes to whoever
/// asks first, and without a pause that is mostly who had it.
pub(super) const PAUSE: Duration = Duration::from_micros(50);

/// What wakes a volume's checkpointer.
#[derive(Default)]
pub(super) struct Checkpoints {
    /// Somebody has asked since the last checkpoint.
    asked: AtomicBool,
    /// The server ends.
    closed: AtomicBool,
    guard: Mutex<()>,
    bell: Condvar,
}

impl Checkpoints {
    /// Asks for a checkpoint.
    #[inline]
    pub fn ask(&self) {
        if !self.asked.load(Ordering::Relaxed) {
            self.wake(&self.asked);
        }
    }

    #[cold]
    fn wake(&self, why: &AtomicBool) {
        let _guard = self.guard();
        why.store(true, Ordering::Relaxed);
        self.bell.notify_one();
    }

    fn guard(&self) -> MutexGuard<'_, ()> {
        // Nothing of others runs inside.
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Waits until somebody asks. Returns false when nobody will.
    fn next(&self) -> bool {
        let mut guard = self.guard();
        while !self.is_closed() && !self.asked.load(Ordering::Relaxed) {
            guard = self.bell.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        !self.is_closed()
    }
}

/// A volume's checkpointer. It ends with this; the unmount does what it leaves.
pub(super) struct Checkpointer<F: FileSystem + Send> {
    volume: Arc<Volume<F>>,
    thread: Option<JoinHandle<()>>,
}

impl<F: FileSystem + Send + 'static> Checkpointer<F> {
    /// Starts the one checkpointer of `volume`.
    ///
    /// # Errors
    /// When there are no threads left.
    pub fn start(volume: &Arc<Volume<F>>) -> std::io::Result<Checkpointer<F>> {
        let served = Arc::clone(volume);
        let thread = std::thread::Builder::new()
            .name("checkpointer".to_owned())
            .spawn(move || serve(&served))?;
        Ok(Checkpointer { volume: Arc::clone(volume), thread: Some(thread) })
    }
}

impl<F: FileSystem + Send> Drop for Checkpointer<F> {
    fn drop(&mut self) {
        let checkpoints = &self.volume.checkpoints;
        checkpoints.wake(&checkpoints.closed);
        if let Some(thread) = self.thread.take() {
            // Panics of others have been caught there.
            let _ = thread.join();
        }
    }
}

fn serve<F: FileSystem + Send>(volume: &Volume<F>) {
    while volume.checkpoints.next() {
        // A panic in the file system ends the volume: its lock says so to whoever comes.
        let made = catch_unwind(AssertUnwindSafe(|| volume.checkpoint_in_steps()));
        if !matches!(made, Ok(Ok(()))) {
            log::error!("a checkpoint of {} failed", volume.name());
            return;
        }
    }
}

impl<F: FileSystem + Send> Volume<F> {
    /// Makes checkpoints until none is due.
    fn checkpoint_in_steps(&self) -> Result<()> {
        let mut flushed = None;
        while !self.checkpoints.is_closed() {
            let mut state = self.lock()?;
            match state.fs.checkpoint_step(flushed.take())? {
                CheckpointStep::Idle => {
                    if !state.fs.checkpoint_due() {
                        // Under the lock, so that whoever makes one due afterwards asks again.
                        self.checkpoints.asked.store(false, Ordering::Relaxed);
                        return Ok(());
                    }
                }
                CheckpointStep::More => {
                    drop(state);
                    std::thread::sleep(PAUSE);
                }
                CheckpointStep::Sync => {
                    drop(state);
                    self.sync(true, now())?;
                }
                CheckpointStep::Wait(flush) => {
                    drop(state);
                    flushed = Some(flush.flush());
                }
            }
        }
        Ok(())
    }
}
