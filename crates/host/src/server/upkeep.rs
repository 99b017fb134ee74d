//! The upkeep of a volume while it is served: its syncs, checkpoints and removals, and commits at
//! intervals.
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
use atoll_server::removals::Remover;
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
    _remover: Running,
    _checkpointer: Running,
    _files: Vec<Running>,
    _retrier: Option<Running>,
    _syncer: Running,
}

impl Upkeep {
    /// Starts them.
    ///
    /// # Errors
    /// When there are no threads left.
    pub(super) fn start<F: FileSystem + Send + 'static>(
        volume: &Arc<Volume<F>>,
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
        let closed = Arc::clone(volume);
        let close = move || closed.close_removals();
        let remover = Running::start(|bell| Remover::new(volume, bell), close)?;
        let committer = Committer::start(volume)?;
        Ok(Upkeep {
            committer,
            _remover: remover,
            _checkpointer: checkpointer,
            _files: files,
            _retrier: retrier,
            _syncer: syncer,
        })
    }

    /// Whether the thread that commits, which needs the volume and those of syncs, has gone round
    /// since this was asked last. It does every second.
    pub(super) fn lives(&self) -> bool {
        self.committer.lives.swap(false, Ordering::Relaxed)
    }
}

struct Committer {
    /// Set in each round.
    lives: Arc<AtomicBool>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    fn start<F: FileSystem + Send + 'static>(volume: &Arc<Volume<F>>) -> io::Result<Committer> {
        let (stop, stopped) = channel();
        let lives = Arc::new(AtomicBool::new(true));
        let (volume, rounds) = (Arc::clone(volume), Arc::clone(&lives));
        let commit = move || commit_at_intervals(&volume, &stopped, &rounds);
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
/// files are written back more often. Each round sets `lives`.
fn commit_at_intervals<F: FileSystem + Send>(
    volume: &Volume<F>,
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
        if committed.elapsed() < COMMIT_INTERVAL {
            continue;
        }
        committed = Instant::now();
        if let Err(error) = volume.commit(now()) {
            log::error!("changes of {} could not be made durable: {error}", volume.name());
        }
    }
}
