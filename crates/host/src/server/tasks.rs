//! The threads that take the steps of a volume's tasks.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use atoll_server::host::Bell;
use atoll_server::task::{Step, Task};

use crate::medium::{self, Waits};

/// A bell that one thread waits for and any may ring. It stays rung until the thread has waited.
#[derive(Debug, Default)]
pub(crate) struct ThreadBell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl ThreadBell {
    fn rung(&self) -> MutexGuard<'_, bool> {
        // Nothing of others runs inside.
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until somebody has rung since the last time, at most for `longest`.
    pub(crate) fn wait(&self, longest: Option<Duration>) {
        let (rung, heard) = (self.rung(), &self.heard);
        let mut rung = match longest {
            None => heard.wait_while(rung, |rung| !*rung).unwrap_or_else(PoisonError::into_inner),
            Some(longest) => {
                let waited = heard.wait_timeout_while(rung, longest, |rung| !*rung);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        *rung = false;
    }
}

impl Bell for ThreadBell {
    fn ring(&self) {
        *self.rung() = true;
        self.heard.notify_one();
    }
}

/// A task on its thread. When this is dropped the task is closed, and its end waited for.
pub(super) struct Running {
    waits: Waits,
    close: Box<dyn Fn() + Send>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts the thread of the task that `make` makes of its bell; `close` has it end.
    ///
    /// # Errors
    /// When there are no threads left.
    pub(super) fn start<T: Task + 'static>(
        make: impl FnOnce(Arc<dyn Bell>) -> T,
        close: impl Fn() + Send + 'static,
    ) -> io::Result<Running> {
        let bell = Arc::new(ThreadBell::default());
        let task = make(Arc::<ThreadBell>::clone(&bell));
        let name = task.name().to_owned();
        let waits = Waits::default();
        let own = waits.clone();
        let run = move || {
            own.be_own();
            run(task, &bell);
        };
        let thread = std::thread::Builder::new().name(name).spawn(run)?;
        Ok(Running { waits, close: Box::new(close), thread: Some(thread) })
    }

    /// Whether it waits for its medium just now.
    pub(super) fn waits(&self) -> bool {
        self.waits.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        (self.close)();
        if let Some(thread) = self.thread.take() {
            // Panics of others have been caught there.
            let _ = thread.join();
        }
    }
}

fn run(mut task: impl Task, bell: &ThreadBell) {
    let mut flushed = None;
    loop {
        match task.step(flushed.take()) {
            Step::Wait => bell.wait(None),
            Step::Pause(pause) => {
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
            }
            Step::Flush(flush) => {
                // A panic in the device is none of the file system's.
                let flush = || medium::wait_for(|| flush.flush());
                flushed = catch_unwind(AssertUnwindSafe(flush)).ok();
            }
            Step::Over => return,
        }
    }
}
