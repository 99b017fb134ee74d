//! Syncs: who asks for one is answered when it is done, and meanwhile nobody waits for it but who asked.
//!
//! A volume's syncer is one thread. It takes everybody who has asked, begins one sync for all of them
//! under the volume's lock, waits for the device without the lock, and ends it. Who asks meanwhile shares the
//! next one, so that however many ask, there are never more flushes than one under way and one to come:
//!
//! ```text
//!     ask, ask ---> queue ---> | begin |  flush  | end | ---> answers
//!     ask, ask, ask --> queue ---------------------->   | begin |  flush  | end | ---> answers
//!     other calls        ..........|.........|............        (under the lock: begin and end)
//! ```
//!
//! Every sync covers the whole volume, as the file seam has it: one that begins after a request covers what
//! the request asked for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use atoll_vfs::wire::Request;
use atoll_vfs::wire::files::FUSE_FSYNC_FDATASYNC;
use atoll_vfs::{Context, Errno, FileSystem, Handle, Ino, Result, Timespec};

use super::checkpoints::PAUSE;
use super::session::Session;
use super::verbs::enter;
use super::volume::{State, Volume, Waits};
use crate::fuse::now;

/// The most that wait for the next sync. Who comes then makes a whole one by itself, under the lock.
const QUEUE_MAX: usize = 4096;

/// Is told what a sync came to, by the syncer: it must not block.
pub(crate) type Then = Box<dyn FnOnce(Result<()>) + Send>;

/// What a request asks to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    File { handle: Handle, data_only: bool },
    Directory(Handle),
    All,
}

impl Ask {
    /// What `request` asks for, if it is one for a sync.
    pub fn of(request: &Request<'_>) -> Option<Ask> {
        match request {
            Request::Fsync(args) => Some(Ask::File {
                handle: Handle(args.fh),
                data_only: args.fsync_flags & FUSE_FSYNC_FDATASYNC != 0,
            }),
            Request::Fsyncdir(args) => Some(Ask::Directory(Handle(args.fh))),
            Request::Syncfs => Some(Ask::All),
            _ => None,
        }
    }
}

/// One that waits for a sync.
struct Waiter {
    data_only: bool,
    then: Then,
}

#[derive(Default)]
struct Queue {
    waiters: Vec<Waiter>,
    /// The server ends: whoever has asked is still served.
    closed: bool,
}

/// Those who wait for a sync of a volume.
#[derive(Default)]
pub(super) struct Syncs {
    queue: Mutex<Queue>,
    bell: Condvar,
    /// Whether there is a syncer.
    served: AtomicBool,
}

impl Syncs {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing of others runs inside, and each change is whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a waiter, or gives it back: there is no syncer, or too many wait.
    fn ask(&self, waiter: Waiter) -> std::result::Result<(), Then> {
        let mut queue = self.queue();
        if !self.is_served() || queue.closed || queue.waiters.len() >= QUEUE_MAX {
            return Err(waiter.then);
        }
        queue.waiters.push(waiter);
        self.bell.notify_one();
        Ok(())
    }

    fn is_served(&self) -> bool {
        self.served.load(Ordering::Acquire)
    }

    /// All who wait, when somebody does; `None` when nobody does and nobody will.
    fn next(&self) -> Option<Vec<Waiter>> {
        let mut queue = self.queue();
        while queue.waiters.is_empty() {
            if queue.closed {
                return None;
            }
            queue = self.bell.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        Some(std::mem::take(&mut queue.waiters))
    }
}

/// A volume's syncer, which ends with it, when everybody has been answered.
pub(super) struct Syncer<F: FileSystem + Send> {
    volume: Arc<Volume<F>>,
    thread: Option<JoinHandle<()>>,
}

impl<F: FileSystem + Send + 'static> Syncer<F> {
    /// Starts the one syncer of `volume`.
    ///
    /// # Errors
    /// When there are no threads left.
    pub fn start(volume: &Arc<Volume<F>>) -> std::io::Result<Syncer<F>> {
        let served = Arc::clone(volume);
        let thread =
            std::thread::Builder::new().name("syncer".to_owned()).spawn(move || serve(&served))?;
        volume.syncs.served.store(true, Ordering::Release);
        Ok(Syncer { volume: Arc::clone(volume), thread: Some(thread) })
    }
}

impl<F: FileSystem + Send> Drop for Syncer<F> {
    fn drop(&mut self) {
        self.volume.syncs.queue().closed = true;
        self.volume.syncs.bell.notify_one();
        if let Some(thread) = self.thread.take() {
            // Panics of others have been caught there.
            let _ = thread.join();
        }
    }
}

fn serve<F: FileSystem + Send>(volume: &Volume<F>) {
    while let Some(waiters) = volume.syncs.next() {
        let data_only = waiters.iter().all(|waiter| waiter.data_only);
        // One in the file system ends the volume: its lock says so to whoever comes.
        let synced = catch_unwind(AssertUnwindSafe(|| volume.sync_in_halves(data_only, now())));
        let outcome = synced.unwrap_or(Err(Errno::EIO));
        for waiter in waiters {
            let then = AssertUnwindSafe(|| (waiter.then)(outcome));
            if catch_unwind(then).is_err() {
                log::error!("an answer to a sync of {} was lost", volume.name());
            }
        }
    }
}

impl<F: FileSystem + Send> Volume<F> {
    /// Makes everything durable that has been done until now, holding the lock only to begin and to end.
    fn sync_in_halves(&self, data_only: bool, now: Timespec) -> Result<()> {
        let cx = Context { uid: 0, gid: 0, now };
        let mut begun = self.lock()?.fs.begin_sync(&cx, data_only)?;
        while let Some(sync) = begun {
            if sync.is_turn() {
                std::thread::sleep(PAUSE);
            }
            let (id, flushed) = sync.flush();
            begun = self.lock()?.fs.end_sync(id, flushed)?;
        }
        Ok(())
    }

    /// Whether syncs are made by a syncer.
    pub(crate) fn has_syncer(&self) -> bool {
        self.syncs.is_served()
    }

    /// Calls `then` when everything is durable that has been done until now: by the syncer later, or at
    /// once, where there is none to take it. With `data_only`, timestamps may be left behind.
    pub(crate) fn sync_later(&self, data_only: bool, then: Then) {
        if let Err(then) = self.syncs.ask(Waiter { data_only, then }) {
            then(self.sync_whole(now()));
        }
    }

    /// Waits until everything is durable that has been done until now. With `data_only`, timestamps may be
    /// left behind.
    ///
    /// # Errors
    /// Those of [`FileSystem::syncfs`].
    pub(super) fn sync(&self, data_only: bool, now: Timespec) -> Result<()> {
        let (tell, told) = sync_channel(1);
        let then: Then = Box::new(move |outcome| {
            // It waits below.
            let _ = tell.send(outcome);
        });
        match self.syncs.ask(Waiter { data_only, then }) {
            Ok(()) => told.recv().unwrap_or(Err(Errno::EIO)),
            Err(_) => self.sync_whole(now),
        }
    }

    fn sync_whole(&self, now: Timespec) -> Result<()> {
        self.lock()?.fs.syncfs(&Context { uid: 0, gid: 0, now })
    }
}

impl<F: FileSystem + Send> Session<F> {
    /// Does everything that `ask` takes but the sync itself, for [`Volume::sync_later`]. Returns whether
    /// timestamps may be left behind.
    ///
    /// # Errors
    /// Those of [`FileSystem::fsync`] and of writing back what was stored into mappings.
    pub(crate) fn prepare_sync(&mut self, cx: &Context, ino: Ino, ask: Ask) -> Result<bool> {
        match ask {
            Ask::File { handle, data_only } => {
                let open = self.file(ino, handle)?;
                self.volume.write_back_file(open.ino, cx.now)?;
                enter!(self, cx, state, _caller, reading);
                state.go_by(&open).map(|()| data_only)
            }
            Ask::Directory(handle) => self.listing(ino, handle).map(|_| false),
            Ask::All => {
                self.volume.write_back(cx.now)?;
                // What was written back may be of any file.
                enter!(self, cx, _state, _caller, reading);
                Ok(false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use atoll_vfs::model::ModelFs;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn volume() -> Arc<Volume<ModelFs>> {
        Volume::new(ModelFs::default(), "v")
    }

    fn answers() -> (impl Fn() -> Then, Receiver<Result<()>>) {
        let (tell, told): (Sender<Result<()>>, _) = channel();
        let then = move || -> Then {
            let tell = tell.clone();
            Box::new(move |outcome| tell.send(outcome).unwrap())
        };
        (then, told)
    }

    #[test]
    fn everybody_is_answered() {
        let volume = volume();
        let (then, told) = answers();
        volume.sync_later(false, then());
        assert_eq!(told.try_recv(), Ok(Ok(())), "without a syncer at once");
        let syncer = Syncer::start(&volume).unwrap();
        (0..100).for_each(|i| volume.sync_later(i % 2 == 0, then()));
        drop(syncer);
        assert_eq!(told.try_iter().filter(|outcome| *outcome == Ok(())).count(), 100);
        volume.sync_later(false, then());
        assert_eq!(told.try_recv(), Ok(Ok(())), "after the end at once");
        assert_eq!(volume.sync(false, now()), Ok(()));
        assert!(matches!(volume.into_inner(), Ok(Some(_))));
    }

    #[test]
    fn the_queue_is_bounded() {
        let volume = volume();
        let (then, told) = answers();
        let syncer = Syncer::start(&volume).unwrap();
        // The syncer takes a batch, and waits for the lock.
        let state = volume.lock().unwrap();
        let mut asked = 0;
        while volume.syncs.ask(Waiter { data_only: false, then: then() }).is_ok() {
            asked += 1;
            assert!(asked <= 3 * QUEUE_MAX, "nothing bounds it");
        }
        assert!(asked >= QUEUE_MAX);
        drop(state);
        for _ in 0..asked {
            assert_eq!(told.recv_timeout(SOON), Ok(Ok(())));
        }
        drop(syncer);
    }

    /// After a panic in the file system whoever asks is told, and whoever waits.
    #[test]
    fn a_lost_volume_syncs_nothing() {
        let volume = volume();
        let (then, told) = answers();
        let syncer = Syncer::start(&volume).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _state = volume.lock().unwrap();
            volume.sync_later(false, then());
            panic!("planned");
        }));
        assert!(panicked.is_err());
        assert_eq!(told.recv_timeout(SOON), Ok(Err(Errno::EIO)));
        assert_eq!(volume.sync(false, now()), Err(Errno::EIO));
        drop(syncer);
    }

    /// Whoever is answered may panic: the others are answered all the same.
    #[test]
    fn an_answer_that_panics_is_lost_alone() {
        let volume = volume();
        let (then, told) = answers();
        let syncer = Syncer::start(&volume).unwrap();
        volume.sync_later(false, Box::new(|_| panic!("planned")));
        volume.sync_later(false, then());
        assert_eq!(told.recv_timeout(SOON), Ok(Ok(())));
        drop(syncer);
    }
}
