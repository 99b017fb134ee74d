//! The upkeep of a volume while it is served: its syncs, checkpoints and removals, and commits at
//! intervals.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_server::Volume;
use atoll_server::checkpoints::Checkpointer;
use atoll_server::lock_retries::LockRetrier;
use atoll_server::mapped::WRITE_BACK_INTERVAL;
use atoll_server::removals::{REMOVERS, Remover};
use atoll_server::syncs::{FileSyncer, SYNCERS, Syncer};
use atoll_vfs::FileSystem;

use super::machine::now;
use super::tasks::Running;

/// How often changes are made durable that no client has asked to be: the kernel does not tell a
/// FUSE server of sync(2) or syncfs(2).
const COMMIT_INTERVAL: Duration = Duration::from_secs(30);

/// The threads of one volume. When this is dropped they end, in this order: each may need those
/// after it.
pub(super) struct Upkeep {
    committer: Committer,
    _removers: Vec<Running>,
    checkpointer: Running,
    _files: Vec<Running>,
    _retrier: Option<Running>,
    syncer: Running,
}

impl Upkeep {
    /// Starts them.
    ///
    /// # Errors
    /// When there are no threads left.
    pub(super) fn start<F: FileSystem + Send + 'static>(
        volume: &Arc<Volume<F>>,
    ) -> io::Result<Upkeep> {
        Upkeep::at_intervals(volume, COMMIT_INTERVAL)
    }

    /// As [`start`](Self::start), with commits at other intervals.
    fn at_intervals<F: FileSystem + Send + 'static>(
        volume: &Arc<Volume<F>>,
        interval: Duration,
    ) -> io::Result<Upkeep> {
        let closed = Arc::clone(volume);
        let syncer =
            Running::start(|bell| Syncer::new(volume, bell), move || closed.close_syncs())?;
        let files = || {
            let closed = Arc::clone(volume);
            Running::start(|bell| FileSyncer::new(volume, bell), move || closed.close_file_syncs())
        };
        let count = if volume.is_foreign() { SYNCERS } else { 0 };
        let files = (0..count).map(|_| files()).collect::<io::Result<Vec<Running>>>()?;
        let retrier = || {
            let closed = Arc::clone(volume);
            let close = move || closed.close_lock_retries();
            Running::start(|bell| LockRetrier::new(volume, bell), close)
        };
        let retrier = if volume.is_foreign() { Some(retrier()?) } else { None };
        let closed = Arc::clone(volume);
        let close = move || closed.close_checkpoints();
        let checkpointer = Running::start(|bell| Checkpointer::new(volume, bell), close)?;
        let remover = || {
            let closed = Arc::clone(volume);
            let close = move || closed.close_removals();
            Running::start(|bell| Remover::new(volume, bell), close)
        };
        let count = if volume.is_foreign() { REMOVERS } else { 1 };
        let removers = (0..count).map(|_| remover()).collect::<io::Result<Vec<Running>>>()?;
        let committer = Committer::start(volume, interval)?;
        Ok(Upkeep {
            committer,
            _removers: removers,
            checkpointer,
            _files: files,
            _retrier: retrier,
            syncer,
        })
    }

    /// Whether the thread that commits, which needs the volume and those of syncs, has gone round
    /// since this was asked last, or what it may wait for waits for the medium. It goes round every
    /// second.
    pub(super) fn lives(&self) -> bool {
        let went_round = self.committer.lives.swap(false, Ordering::Relaxed);
        went_round || [&self.checkpointer, &self.syncer].into_iter().any(Running::waits)
    }
}

struct Committer {
    /// Set in each round.
    lives: Arc<AtomicBool>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    fn start<F: FileSystem + Send + 'static>(
        volume: &Arc<Volume<F>>,
        interval: Duration,
    ) -> io::Result<Committer> {
        let (stop, stopped) = channel();
        let lives = Arc::new(AtomicBool::new(true));
        let (volume, rounds) = (Arc::clone(volume), Arc::clone(&lives));
        let commit = move || commit_at_intervals(&volume, interval, &stopped, &rounds);
        let thread = std::thread::Builder::new().name("committer".to_owned()).spawn(commit)?;
        Ok(Committer { lives, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has ended the volume, which is reported when the file system is taken
            // out.
            let _ = thread.join();
        }
    }
}

/// Makes changes durable at intervals, until `stopped`'s other end is dropped. Stores into mapped
/// files are written back more often. Each round, and each step of what takes long, sets `lives`.
fn commit_at_intervals<F: FileSystem + Send>(
    volume: &Volume<F>,
    interval: Duration,
    stopped: &Receiver<()>,
    lives: &AtomicBool,
) {
    let mut committed = Instant::now();
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(WRITE_BACK_INTERVAL) {
        let live = || lives.store(true, Ordering::Relaxed);
        live();
        if let Err(error) = volume.tend_mappings(now(), &live) {
            log::error!("stores into files of {} could not be written: {error}", volume.name());
        }
        if committed.elapsed() < interval {
            continue;
        }
        committed = Instant::now();
        if let Err(error) = volume.commit(now()) {
            log::error!("changes of {} could not be made durable: {error}", volume.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use atoll_server::{Access, Credentials};
    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{
        Attr, Context, FileSystem, Ino, Name, OpenFlags, PendingSync, Result, SyncId, Timespec,
    };

    use super::*;

    /// A place where a thread is held.
    #[derive(Default)]
    struct Hold {
        /// Whether it holds, and whether somebody is held.
        state: Mutex<(bool, bool)>,
        changed: Condvar,
    }

    impl Hold {
        fn set(&self, holds: bool) {
            self.state.lock().unwrap().0 = holds;
            self.changed.notify_all();
        }

        fn pass(&self) {
            let mut state = self.state.lock().unwrap();
            state.1 = state.0;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| state.0).unwrap());
        }

        fn wait_until_held(&self) {
            drop(self.changed.wait_while(self.state.lock().unwrap(), |state| !state.1).unwrap());
        }
    }

    /// A file system whose medium, or whose calls, take as long as a test says.
    struct Slow {
        fs: ModelFs,
        medium: Arc<Hold>,
        calls: Arc<Hold>,
    }

    macro_rules! pass {
        ($self:ident $verb:ident ($($arg:ident),*)) => { $self.fs.$verb($($arg),*) };
    }

    impl FileSystem for Slow {
        atoll_vfs::verbs!(pass: lookup forget setattr readlink mknod mkdir symlink unlink rmdir
            rename link open create tmpfile read write copy_file_range fallocate seek fsync release
            opendir readdir releasedir fsyncdir syncfs statfs setxattr getxattr listxattr
            removexattr);

        fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
            self.calls.pass();
            self.fs.getattr(cx, ino)
        }

        fn begin_sync(&mut self, _: &Context, _: bool) -> Result<Option<PendingSync>> {
            let medium = Arc::clone(&self.medium);
            Ok(Some(PendingSync::new(SyncId(1), move || {
                medium.pass();
                Ok(())
            })))
        }
    }

    /// A medium that takes long is no hang, however long that is, and a call that does not end is.
    #[test]
    fn a_slow_medium_is_no_hang() {
        let (medium, calls) = (Arc::<Hold>::default(), Arc::<Hold>::default());
        let fs = ModelFs::default();
        let fs = Slow { fs, medium: Arc::clone(&medium), calls: Arc::clone(&calls) };
        let volume = crate::server::volume(fs, "v");
        let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let upkeep = Upkeep::at_intervals(&volume, Duration::ZERO).unwrap();
        let looks = || {
            // What went round before this was asked is over.
            upkeep.lives();
            std::thread::sleep(2 * WRITE_BACK_INTERVAL);
            upkeep.lives()
        };
        let idle = looks();
        medium.set(true);
        let name = Name::new(b"f").unwrap();
        session.create(&cx, Ino::ROOT, name, 0o600, OpenFlags::WRITE).unwrap();
        medium.wait_until_held();
        let slow = [looks(), looks()];
        let goes_round = upkeep.committer.lives.load(Ordering::Relaxed);
        medium.set(false);
        let after = looks();
        // Somebody keeps the volume.
        calls.set(true);
        let keeper = std::thread::spawn(move || session.getattr(&cx, Ino::ROOT).map(drop));
        calls.wait_until_held();
        let hangs = [looks(), looks()];
        calls.set(false);
        assert!(keeper.join().unwrap().is_ok());
        assert!(idle && after && looks());
        assert_eq!((slow, goes_round), ([true; 2], false), "it waits for the medium");
        assert!(!hangs[1], "it hangs");
    }
}
