//! Work of a volume that no request waits for in its carrier: syncs and checkpoints. A thread of
//! the host, or the one of a simulation, takes one step after the other, and waits for devices
//! between them.

use std::time::Duration;

use atoll_vfs::{PendingSync, Result, SyncId};

/// The pause between two pieces of work, for those who wait for the volume's lock: it goes to
/// whoever asks first, and without a pause that is mostly who had it.
pub(crate) const PAUSE: Duration = Duration::from_micros(50);

/// What a [`Task`] is to be given before its next step.
#[derive(Debug)]
pub enum Step {
    /// A reason: somebody wakes it.
    Wait,
    /// Some time, in which others have their turn.
    Pause(Duration),
    /// What this flush came to. It is waited for without any lock.
    Flush(PendingSync),
    /// Nothing: it has ended.
    Over,
}

/// Work in steps.
pub trait Task: Send {
    /// What it does, in a word.
    fn name(&self) -> &'static str;

    /// Takes the next step, which waits for locks and nothing else. `flushed` is what the flush
    /// came to that the last one asked for; after one of which nobody knows, and without a flush,
    /// it is `None`.
    fn step(&mut self, flushed: Option<(SyncId, Result<()>)>) -> Step;
}
