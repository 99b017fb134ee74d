//! Work of a volume that no request waits for in its carrier: syncs and checkpoints. A thread of
//! the host, or the one of a simulation, takes one step after the other, and waits for devices
//! between them.

use std::time::Duration;

use atoll_vfs::{PendingSync, Result, SyncId};

/// The pause between two pieces of work, for others that wait for the volume's lock: it goes to the
/// thread that asks first, and without a pause that is mostly the one that had it.
pub(crate) const PAUSE: Duration = Duration::from_micros(50);

/// The event that a [`Task`] waits for before its next step.
#[derive(Debug)]
pub enum Step {
    /// A wake-up.
    Wait,
    /// Some time, in which others have their turn.
    Pause(Duration),
    /// The outcome of this flush, which is waited for without any lock.
    Flush(PendingSync),
    /// Nothing: it has ended.
    Over,
}

/// Work in steps.
pub trait Task: Send {
    /// Its work, in a word.
    fn name(&self) -> &'static str;

    /// Takes the next step, which waits for locks and nothing else. `flushed` is the outcome of the
    /// flush that the last step asked for; without a flush, and after one whose outcome nobody
    /// knows, it is `None`.
    fn step(&mut self, flushed: Option<(SyncId, Result<()>)>) -> Step;
}
