//! What a process that is a guest keeps, and the thread that takes notices while the process does
//! something else.
//!
//! Whoever changes something that is kept here waits until the notice of it has been taken. A
//! program may call nothing for hours, so a thread takes notices: it sleeps until the device rings,
//! and what a notice costs others is a wakeup. A program that calls takes those that have come by
//! itself, and asks for the answer without a lock, so that the thread takes those that come
//! meanwhile.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_transport::Lost;
use atoll_vfs::{Keeper, Kept};
use atoll_virtio::DeviceError;
use atoll_virtio::fs::Notices;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::bells::{self, Kick};
use crate::server::broker::block_signals;
use crate::shm::SharedMemory;

/// The most bytes of files that are kept.
const PAGES: usize = 32 << 20;

/// What is kept, with the queue by which it is told of.
#[derive(Debug)]
struct State {
    notices: Notices<SharedMemory>,
    kept: Kept,
    message: Vec<u8>,
    /// The device has broken the rules.
    is_lost: bool,
}

/// What the thread and the program share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    kick: Kick,
    /// Rung by the program alone.
    wake: EventFd,
    /// Nobody keeps anything any more.
    ended: AtomicBool,
}

impl State {
    /// Takes the notices that have come. Returns whether there may be more.
    fn take(&mut self, kick: &Kick) -> Result<bool, Lost> {
        let kept = &mut self.kept;
        let taken = self.notices.take_all(&mut self.message, |message| kept.take(message))?;
        if taken.rings {
            kick.ring();
        }
        Ok(taken.more)
    }
}

impl Shared {
    /// Takes the notices that have come, and calls `act` with what is kept then.
    fn with<R>(&self, act: impl FnOnce(&mut Kept) -> R) -> Option<R> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_lost {
            match state.take(&self.kick) {
                Ok(false) => {}
                // The thread goes on with them.
                Ok(true) => drop(self.wake.write(1)),
                Err(Lost) => {
                    state.kept.clear();
                    state.is_lost = true;
                }
            }
        }
        (!state.is_lost).then(|| act(&mut state.kept))
    }

    /// The life of the thread.
    fn listen(&self, sleep: &Epoll) {
        let mut events = [EpollEvent::default()];
        while !self.ended.load(Ordering::Acquire) {
            // A signal ends it sooner.
            let _ = sleep.wait(-1, &mut events);
            let _ = self.wake.read();
            self.with(|_| ());
        }
    }
}

/// What is kept of a device's file system, if the device tells of changes.
#[derive(Debug)]
pub struct Told {
    shared: Option<Arc<Shared>>,
    begun: Instant,
}

impl Told {
    /// Of a device that tells of nothing nothing is kept.
    pub(super) fn of_nothing() -> Told {
        Told { shared: None, begun: Instant::now() }
    }

    /// Starts the thread that takes `notices`, by a queue with these bells: the driver's and the
    /// device's.
    ///
    /// # Errors
    /// [`DeviceError::NoMemory`] when there is no thread to be had.
    pub(super) fn begin(
        notices: Notices<SharedMemory>,
        (kick, call): (Kick, EventFd),
    ) -> Result<Told, DeviceError> {
        let message = vec![0; notices.buffer_len()];
        let state = State { notices, kept: Kept::new(PAGES), message, is_lost: false };
        let ended = AtomicBool::new(false);
        let none_left = |_| DeviceError::NoMemory;
        let wake = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(none_left)?;
        let sleep = Epoll::new().map_err(none_left)?;
        bells::hear(&sleep, &call).map_err(none_left)?;
        let event = EpollEvent::new(EventSet::IN, 0);
        sleep.ctl(ControlOperation::Add, wake.as_raw_fd(), event).map_err(none_left)?;
        let shared = Arc::new(Shared { state: Mutex::new(state), kick, wake, ended });
        let listener = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("atoll-notices".to_owned());
        let started = thread.spawn(move || {
            // They are the program's. One that comes before finds a thread as good as any other.
            let _ = block_signals();
            listener.listen(&sleep);
            drop(call);
        });
        started.map_err(|_| DeviceError::NoMemory)?;
        Ok(Told { shared: Some(shared), begun: Instant::now() })
    }
}

impl Keeper for Told {
    fn with<R>(&self, act: impl FnOnce(&mut Kept) -> R) -> Option<R> {
        self.shared.as_ref()?.with(act)
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl Drop for Told {
    /// Has the thread end, and does not wait for it: a child of fork(2) has none.
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.ended.store(true, Ordering::Release);
            let _ = shared.wake.write(1);
        }
    }
}

#[cfg(test)]
mod tests;
