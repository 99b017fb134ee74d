//! The outcome of an answer's wait, which one thread finds out and another gives to the client:
//! what the client shares is touched by the thread that serves it alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use atoll_server::route::carrier::Held;
use atoll_vfs::{Errno, Result};

use crate::shm::Doorbell;

/// No number of an error.
const WAITS: i32 = -1;

/// The outcome of an answer that waits.
pub(crate) struct Outcome {
    /// The number of the error that the answer has become, or 0; before it has come to anything
    /// [`WAITS`].
    error: AtomicI32,
    bell: Doorbell,
}

impl Outcome {
    /// One that is not known yet; `bell` is rung when it is.
    pub fn new(bell: Doorbell) -> Arc<Outcome> {
        Arc::new(Outcome { error: AtomicI32::new(WAITS), bell })
    }

    /// The outcome, once it is known.
    pub fn get(&self) -> Option<Result<()>> {
        match self.error.load(Ordering::Acquire) {
            WAITS => None,
            0 => Some(Ok(())),
            error => Some(Err(Errno::from_raw(error).unwrap_or(Errno::EIO))),
        }
    }

    /// The answer's release, which has the serving thread look for the outcome.
    pub fn release(self: &Arc<Self>) -> Box<dyn Held> {
        Box::new(Release(Arc::clone(self)))
    }
}

struct Release(Arc<Outcome>);

impl Held for Release {
    fn release(self: Box<Self>, outcome: Result<()>) -> bool {
        let error = outcome.map_or_else(|error| error.raw(), |()| 0);
        self.0.error.store(error, Ordering::Release);
        self.0.bell.ring();
        true
    }
}
