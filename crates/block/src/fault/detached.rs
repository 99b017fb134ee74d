//! The fault device's flushers: what each was taken for, and what has become of it.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering};

use super::media::Event;
use crate::error::BlockError;
use crate::flusher::Flusher;

/// Taken, and not asked.
const PENDING: u8 = 0;
/// Asked.
const ASKED: u8 = 1;
/// Asked, and has said that it failed.
const FAILED: u8 = 2;
/// Taken when the device had stopped, or not asked before that: it fails, and nothing happens.
const STOPPED: u8 = 3;
/// Dropped without being asked, or asked of a device that had stopped.
const OVER: u8 = 4;

/// The device's half of a [`Flusher`].
#[derive(Clone, Debug)]
pub(super) struct Detached {
    blocks: Range<u64>,
    before: u64,
    state: Arc<AtomicU8>,
}

/// Replaces one state by another, if it is that one.
fn change(state: &AtomicU8, from: u8, to: u8) -> bool {
    state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Tells the device, at the latest when it is dropped.
struct Asker(Arc<AtomicU8>);

impl Drop for Asker {
    fn drop(&mut self) {
        if !change(&self.0, PENDING, OVER) {
            change(&self.0, STOPPED, OVER);
        }
    }
}

impl Detached {
    /// A flusher of `blocks` for what was written before the moment `before`, and what the device
    /// keeps of it.
    pub fn new(blocks: Range<u64>, before: u64, fails: bool) -> (Detached, Flusher) {
        let state = Arc::new(AtomicU8::new(PENDING));
        let asker = Asker(Arc::clone(&state));
        let flusher = Flusher::new(move || {
            let asked = change(&asker.0, PENDING, if fails { FAILED } else { ASKED });
            if asked && !fails { Ok(()) } else { Err(BlockError::Io) }
        });
        (Detached { blocks, before, state }, flusher)
    }

    /// Whether it may still be asked.
    pub fn is_pending(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), PENDING | STOPPED)
    }

    /// The device has stopped.
    pub fn stop(&self) {
        change(&self.state, PENDING, STOPPED);
    }

    /// Its effect on the media.
    pub fn event(&self) -> Option<Event> {
        let failed = match self.state.load(Ordering::Acquire) {
            ASKED => false,
            FAILED => true,
            _ => return None,
        };
        Some(Event::Flush { blocks: self.blocks.clone(), failed, before: Some(self.before) })
    }
}
