//! Syncs: a request for one is answered when it is done, and meanwhile nobody waits for it but the
//! client that asked.
//!
//! A volume's syncer is one [`Task`]. It takes all requests so far, begins one sync for all of them
//! under the volume's lock, waits for the device without the lock, and ends it. Requests that come
//! meanwhile share the next one, so that however many come, there are never more flushes than one
//! under way and one to come:
//!
//! ```text
//!     ask, ask ---> queue ---> | begin |  flush  | end | ---> answers
//!     ask, ask, ask --> queue ---------------------->   | begin |  flush  | end | ---> answers
//!     other calls        ..........|.........|............        (under the lock: begin and end)
//! ```
//!
//! Every sync covers the whole volume, as the file seam has it: one that begins after a request
//! covers what the request asked for. Where the file system can sync a file by itself
//! ([`FileSystem::begin_fsync`]: a directory of the host), `files` has those.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_vfs::{Context, Errno, FileSystem, PendingSync, Result, SyncId, Timespec};

pub(crate) mod files;
pub(crate) mod queue;
pub(crate) mod turns;

pub use files::{FileSyncer, SYNCERS};
pub use queue::{Ask, Then};

use crate::host::Bell;
use crate::syncs::queue::{Waiter, Wanted};
use crate::task::{PAUSE, Step, Task};
use crate::volume::Volume;

/// A volume's syncer.
pub struct Syncer<F: FileSystem + Send> {
    volume: Arc<Volume<F>>,
    /// The requests that are answered when the sync under way ends.
    waiters: Vec<Waiter>,
    /// A flush has been asked for.
    flushes: bool,
    /// The sync that goes on after a turn of others.
    turn: Option<(SyncId, Result<()>)>,
}

impl<F: FileSystem + Send> Syncer<F> {
    /// The one syncer of `volume`; `bell` is rung when it has something to do.
    pub fn new(volume: &Arc<Volume<F>>, bell: Arc<dyn Bell>) -> Syncer<F> {
        // There is no other.
        let _ = volume.syncs.syncer.set(bell);
        Syncer { volume: Arc::clone(volume), waiters: Vec::new(), flushes: false, turn: None }
    }

    fn begin(&self) -> Result<Option<PendingSync>> {
        let cx = Context { uid: 0, gid: 0, now: self.volume.host.now() };
        let data_only = self.waiters.iter().all(|waiter| waiter.wanted.data_only);
        self.volume.lock()?.fs.begin_sync(&cx, data_only)
    }

    fn answer(&mut self, outcome: Result<()>) {
        for waiter in self.waiters.drain(..) {
            let then = AssertUnwindSafe(|| (waiter.then)(outcome));
            if catch_unwind(then).is_err() {
                log::error!("an answer to a sync of {} was lost", self.volume.name());
            }
        }
    }
}

impl<F: FileSystem + Send> Task for Syncer<F> {
    fn name(&self) -> &'static str {
        "syncer"
    }

    fn step(&mut self, flushed: Option<(SyncId, Result<()>)>) -> Step {
        // A panic in the file system ends the volume: its lock then gives every caller an error.
        if std::mem::take(&mut self.flushes) && flushed.is_none() {
            // Data that is not durable stays so until the next sync.
            self.answer(Err(Errno::EIO));
        }
        if flushed.is_none() {
            let mut queue = self.volume.syncs.queue();
            self.waiters.append(&mut queue.take());
            if self.waiters.is_empty() {
                return if queue.closed { Step::Over } else { Step::Wait };
            }
        }
        let stepped = catch_unwind(AssertUnwindSafe(|| match flushed {
            Some((id, flushed)) => self.volume.lock()?.fs.end_sync(id, flushed),
            None => self.begin(),
        }));
        match stepped.unwrap_or(Err(Errno::EIO)) {
            Ok(Some(sync)) if sync.is_turn() => {
                self.turn = Some(sync.flush());
                return Step::Pause(PAUSE);
            }
            Ok(Some(sync)) => {
                self.flushes = true;
                return Step::Flush(sync);
            }
            Ok(None) => self.answer(Ok(())),
            Err(error) => self.answer(Err(error)),
        }
        Step::Pause(Duration::ZERO)
    }
}

impl<F: FileSystem + Send> Volume<F> {
    /// Has the syncer end, when all requests so far are answered.
    pub fn close_syncs(&self) {
        self.syncs.close();
    }

    /// Whether syncs are made by a syncer.
    pub fn has_syncer(&self) -> bool {
        self.syncs.is_served()
    }

    /// Calls `then` when everything is durable that has been done until now: by the syncer later,
    /// or at once, where there is none to take it. With `data_only`, timestamps may be left behind.
    pub fn sync_later(&self, data_only: bool, then: Then) {
        self.sync_for(None, Wanted { data_only, one: None }, then);
    }

    /// The same for what the user `uid` asks to be durable; `EAGAIN` when too many requests of that
    /// user wait.
    pub(crate) fn sync_for(&self, uid: Option<u32>, wanted: Wanted, then: Then) {
        let waiter = match self.file_syncs.ask(Waiter { uid, wanted, then }) {
            Ok(()) => return,
            Err((waiter, None)) => waiter,
            Err((waiter, Some(error))) => return (waiter.then)(Err(error)),
        };
        match self.syncs.ask(waiter) {
            Ok(()) => {}
            Err((then, Some(error))) => then(Err(error)),
            Err((then, None)) => then(self.sync_whole(self.host.now())),
        }
    }

    /// Waits until everything is durable that has been done until now. With `data_only`, timestamps
    /// may be left behind.
    ///
    /// # Errors
    /// Those of [`FileSystem::syncfs`].
    pub fn sync(&self, data_only: bool) -> Result<()> {
        let outcome = Arc::new(Mutex::new(None));
        self.host.wait(&mut |done| {
            let outcome = Arc::clone(&outcome);
            let then = move |result| {
                *outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                done();
            };
            self.sync_later(data_only, Box::new(then));
        });
        let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        outcome.unwrap_or(Err(Errno::EIO))
    }

    fn sync_whole(&self, now: Timespec) -> Result<()> {
        self.lock()?.fs.syncfs(&Context { uid: 0, gid: 0, now })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::syncs::queue::QUEUE_MAX;
    use crate::testing::{Noted, volume};

    const ALL: Wanted = Wanted { data_only: false, one: None };

    fn answers() -> (impl Fn() -> Then, Receiver<Result<()>>) {
        let (tell, told): (Sender<Result<()>>, _) = channel();
        let then = move || -> Then {
            let tell = tell.clone();
            Box::new(move |outcome| tell.send(outcome).unwrap())
        };
        (then, told)
    }

    /// Takes steps until there is nothing to do. Returns whether the task is over.
    fn run(task: &mut impl Task) -> bool {
        let mut flushed = None;
        loop {
            match task.step(flushed.take()) {
                Step::Wait => return false,
                Step::Pause(_) => {}
                Step::Flush(flush) => flushed = Some(flush.flush()),
                Step::Over => return true,
            }
        }
    }

    #[test]
    fn everybody_is_answered() {
        let volume = volume();
        let (then, told) = answers();
        volume.sync_later(false, then());
        assert_eq!(told.try_recv(), Ok(Ok(())), "without a syncer at once");
        let bell = Arc::new(Noted::default());
        let mut syncer = Syncer::new(&volume, Arc::<Noted>::clone(&bell));
        assert!(!run(&mut syncer) && !bell.was_rung());
        (0..100).for_each(|i| volume.sync_later(i % 2 == 0, then()));
        assert!(bell.was_rung() && told.try_recv().is_err());
        volume.close_syncs();
        assert!(run(&mut syncer));
        assert_eq!(told.try_iter().filter(|outcome| *outcome == Ok(())).count(), 100);
        volume.sync_later(false, then());
        assert_eq!(told.try_recv(), Ok(Ok(())), "after the end at once");
        assert_eq!(volume.sync(false), Ok(()));
        drop(syncer);
        assert!(matches!(volume.into_inner(), Ok(Some(_))));
    }

    #[test]
    fn the_queue_is_bounded() {
        let volume = volume();
        let (then, told) = answers();
        let mut syncer = Syncer::new(&volume, Arc::new(Noted::default()));
        for _ in 0..2 {
            (0..QUEUE_MAX).for_each(|_| volume.sync_for(Some(7), ALL, then()));
            assert!(told.try_recv().is_err());
            volume.sync_for(Some(7), ALL, then());
            assert_eq!(told.try_recv(), Ok(Err(Errno::EAGAIN)), "and nothing is synced at once");
            // Others are not concerned.
            volume.sync_for(Some(8), ALL, then());
            volume.sync_later(false, then());
            run(&mut syncer);
            let done = told.try_iter().filter(|outcome| *outcome == Ok(())).count();
            assert_eq!(done, QUEUE_MAX + 2);
        }
    }

    /// After a panic in the file system each request gets an error, new or waiting.
    #[test]
    fn a_lost_volume_syncs_nothing() {
        let volume = volume();
        let (then, told) = answers();
        let mut syncer = Syncer::new(&volume, Arc::new(Noted::default()));
        volume.sync_later(false, then());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _state = volume.lock().unwrap();
            panic!("planned");
        }));
        assert!(panicked.is_err());
        run(&mut syncer);
        assert_eq!(told.try_recv(), Ok(Err(Errno::EIO)));
        volume.close_syncs();
        assert!(run(&mut syncer));
        assert_eq!(volume.sync(false), Err(Errno::EIO));
    }

    /// A callback that gets an answer may panic: the others are answered all the same.
    #[test]
    fn an_answer_that_panics_is_lost_alone() {
        let volume = volume();
        let (then, told) = answers();
        let mut syncer = Syncer::new(&volume, Arc::new(Noted::default()));
        volume.sync_later(false, Box::new(|_| panic!("planned")));
        volume.sync_later(false, then());
        run(&mut syncer);
        assert_eq!(told.try_recv(), Ok(Ok(())));
    }
}
