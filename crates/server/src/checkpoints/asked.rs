//! Whether a checkpoint was asked for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::host::Bell;

/// Requests to a volume's checkpointer, and its bell.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// Somebody has asked since the last checkpoint.
    pub asked: AtomicBool,
    /// The server ends.
    pub closed: AtomicBool,
    pub checkpointer: OnceLock<Arc<dyn Bell>>,
}

impl Checkpoints {
    /// Asks for a checkpoint.
    #[inline]
    pub fn ask(&self) {
        if !self.asked.load(Ordering::Relaxed) {
            self.begin();
        }
    }

    #[cold]
    fn begin(&self) {
        if let Some(checkpointer) = self.checkpointer.get() {
            self.asked.store(true, Ordering::Relaxed);
            checkpointer.ring();
        }
    }
}
