//! Syncs of one file each, where the file system can make them: a directory of the host.
//!
//! One sync of everything for all who ask would have each wait for what others have written, and
//! for what the host's programs have. So each file is synced by itself, by one of [`SYNCERS`] tasks
//! that share a queue (`turns`). A task begins a sync under the volume's
//! lock, waits for the host without it, and ends it; requests for the same open file that came
//! meanwhile share the next.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use atoll_vfs::{Context, Errno, FileSystem, Handle, Ino, PendingSync, Result, SyncId};

use crate::host::Bell;
use crate::syncs::queue::Waiter;
use crate::task::{Step, Task};
use crate::volume::Volume;

/// How many tasks sync files.
pub const SYNCERS: usize = 4;
/// One of the tasks that sync the files of a volume.
pub struct FileSyncer<F: FileSystem + Send> {
    volume: Arc<Volume<F>>,
    bell: Arc<dyn Bell>,
    /// The user and the requests that are answered when the sync under way ends.
    serves: Option<(u32, Vec<Waiter>)>,
}

impl<F: FileSystem + Send> FileSyncer<F> {
    /// A task that syncs files of `volume`, whose syncer there is already; `bell` is rung when it
    /// has something to do.
    pub fn new(volume: &Arc<Volume<F>>, bell: Arc<dyn Bell>) -> FileSyncer<F> {
        volume.file_syncs.queue().served = true;
        FileSyncer { volume: Arc::clone(volume), bell, serves: None }
    }

    /// Begins a sync of what `one` is open.
    fn begin(&self, (ino, handle): (Ino, Handle), data_only: bool) -> Result<Option<PendingSync>> {
        let cx = Context { uid: 0, gid: 0, now: self.volume.host.now() };
        let fs = &mut self.volume.lock()?.fs;
        match fs.begin_fsync(&cx, ino, handle, data_only) {
            // It has been closed since, by another thread of its client: what it wrote is to be
            // durable all the same.
            Ok(None) | Err(Errno::EBADF | Errno::ESTALE) => fs.begin_sync(&cx, data_only),
            begun => begun,
        }
    }

    fn answer(&mut self, outcome: Result<()>) {
        let Some((uid, waiters)) = self.serves.take() else { return };
        self.volume.file_syncs.queue().done(uid);
        for waiter in waiters {
            if catch_unwind(AssertUnwindSafe(|| (waiter.then)(outcome))).is_err() {
                log::error!("an answer to a sync of {} was lost", self.volume.name());
            }
        }
    }
}

impl<F: FileSystem + Send> Task for FileSyncer<F> {
    fn name(&self) -> &'static str {
        "file syncer"
    }

    fn step(&mut self, flushed: Option<(SyncId, Result<()>)>) -> Step {
        // A panic in the file system ends the volume: its lock then gives every caller an error.
        let stepped = catch_unwind(AssertUnwindSafe(|| match flushed {
            Some((id, flushed)) => self.volume.lock()?.fs.end_sync(id, flushed),
            None if self.serves.is_some() => Err(Errno::EIO),
            None => {
                let mut queue = self.volume.file_syncs.queue();
                self.serves = queue.next();
                match &self.serves {
                    Some((_, waiters)) => {
                        drop(queue);
                        let data_only = waiters.iter().all(|waiter| waiter.wanted.data_only);
                        match waiters.first().and_then(|waiter| waiter.wanted.one) {
                            Some(one) => self.begin(one, data_only),
                            None => Ok(None),
                        }
                    }
                    None => {
                        if !queue.closed {
                            queue.idle.push(Arc::clone(&self.bell));
                        }
                        Ok(None)
                    }
                }
            }
        }));
        match stepped.unwrap_or(Err(Errno::EIO)) {
            Ok(Some(sync)) => return Step::Flush(sync),
            Ok(None) if self.serves.is_none() => {
                let closed = self.volume.file_syncs.queue().closed;
                return if closed { Step::Over } else { Step::Wait };
            }
            outcome => self.answer(outcome.map(drop)),
        }
        Step::Pause(Duration::ZERO)
    }
}

impl<F: FileSystem + Send> Volume<F> {
    /// Has the tasks that sync files end, when all requests so far are answered.
    pub fn close_file_syncs(&self) {
        self.file_syncs.close();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc::{Receiver, channel};

    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{Name, OpenFlags, Timespec};

    use super::*;
    use crate::syncs::queue::{QUEUE_MAX, Then, Wanted};
    use crate::syncs::{Ask, Syncer};
    use crate::testing::{Noted, StillHost};
    use crate::{Access, Credentials};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };

    /// Syncs files by themselves, and all of them.
    #[derive(Default)]
    struct Apart {
        fs: ModelFs,
        begun: Vec<Option<(Ino, Handle, bool)>>,
        ended: BTreeSet<u64>,
        closed: Vec<Handle>,
    }

    macro_rules! inner {
        ($self:ident $verb:ident ($($arg:ident),*)) => { $self.fs.$verb($($arg),*) };
    }

    impl FileSystem for Apart {
        atoll_vfs::verbs!(inner: lookup getattr setattr readlink mknod mkdir symlink unlink rmdir
            rename link open create tmpfile read write fallocate seek fsync release opendir readdir
            releasedir fsyncdir syncfs statfs setxattr getxattr listxattr removexattr);

        fn begin_sync(&mut self, _: &Context, _: bool) -> Result<Option<PendingSync>> {
            self.begun.push(None);
            Ok(Some(PendingSync::new(SyncId(self.begun.len() as u64), || Ok(()))))
        }

        fn begin_fsync(
            &mut self,
            _: &Context,
            ino: Ino,
            handle: Handle,
            data_only: bool,
        ) -> Result<Option<PendingSync>> {
            if self.closed.contains(&handle) {
                return Err(Errno::EBADF);
            }
            self.begun.push(Some((ino, handle, data_only)));
            let outcome = if ino == Ino(99) { Err(Errno::EIO) } else { Ok(()) };
            Ok(Some(PendingSync::new(SyncId(self.begun.len() as u64), move || outcome)))
        }

        fn end_sync(
            &mut self,
            SyncId(id): SyncId,
            flushed: Result<()>,
        ) -> Result<Option<PendingSync>> {
            assert!(self.ended.insert(id), "ended twice");
            flushed.map(|()| None)
        }
    }

    struct Scene {
        volume: Arc<Volume<Apart>>,
        syncer: Syncer<Apart>,
        bells: Vec<Arc<Noted>>,
        tasks: Vec<FileSyncer<Apart>>,
    }

    fn scene() -> Scene {
        let volume = Volume::new(Apart::default(), "v", Arc::new(StillHost::default()));
        let syncer = Syncer::new(&volume, Arc::new(Noted::default()));
        let bells: Vec<Arc<Noted>> = (0..SYNCERS).map(|_| Arc::default()).collect();
        let task = |bell: &Arc<Noted>| FileSyncer::new(&volume, Arc::<Noted>::clone(bell));
        let tasks = bells.iter().map(task).collect();
        Scene { volume, syncer, bells, tasks }
    }

    type Told = Receiver<(u32, Result<()>)>;

    fn answers() -> (impl Fn(u32) -> Then, Told) {
        let (tell, told) = channel();
        let then = move |which| -> Then {
            let tell = tell.clone();
            Box::new(move |outcome| tell.send((which, outcome)).unwrap())
        };
        (then, told)
    }

    fn file(ino: u64, handle: u64) -> Wanted {
        Wanted { data_only: true, one: Some((Ino(ino), Handle(handle))) }
    }

    /// Takes steps of a task until it has something to flush, or nothing to do.
    fn go(task: &mut impl Task, mut flushed: Option<PendingSync>) -> Option<PendingSync> {
        loop {
            match task.step(flushed.take().map(PendingSync::flush)) {
                Step::Flush(sync) => return Some(sync),
                Step::Pause(_) => {}
                Step::Wait | Step::Over => return None,
            }
        }
    }

    #[test]
    fn files_are_synced_one_by_one_and_users_take_turns() {
        let Scene { volume, bells, mut tasks, .. } = scene();
        let (then, told) = answers();
        assert!(tasks.iter_mut().all(|task| go(task, None).is_none()));
        // One user has much to sync, one open file twice; another comes later with a file.
        for (which, wanted) in [file(1, 1), file(2, 2), file(1, 1), file(3, 3)].iter().enumerate() {
            volume.sync_for(Some(7), *wanted, then(which as u32));
        }
        volume.sync_for(Some(8), file(4, 4), then(8));
        assert_eq!(bells.iter().filter(|bell| bell.was_rung()).count(), SYNCERS);
        let flushes: Vec<_> = tasks.iter_mut().map(|task| go(task, None)).collect();
        let begun = |ino: u64| Some((Ino(ino), Handle(ino), true));
        assert_eq!(volume.lock().unwrap().fs.begun, [begun(1), begun(4), begun(2)]);
        // The first has as many tasks as one user may, and one is left for a third.
        assert_eq!(flushes.iter().filter(|flush| flush.is_some()).count(), 3);
        volume.sync_for(Some(9), file(99, 5), then(9));
        assert_eq!(bells.iter().filter(|bell| bell.was_rung()).count(), 1);
        let last = go(&mut tasks[3], None);
        // Whoever is flushed for waits for no other.
        assert!(go(&mut tasks[3], last).is_none());
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(9, Err(Errno::EIO))]);
        let mut flushes = flushes.into_iter();
        // The task of the first file goes on with the third.
        let third = go(&mut tasks[0], flushes.next().unwrap());
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(0, Ok(())), (2, Ok(()))]);
        assert_eq!(volume.lock().unwrap().fs.begun[4], begun(3));
        assert!(go(&mut tasks[0], third).is_none());
        for (task, flush) in tasks[1..3].iter_mut().zip(flushes) {
            assert!(go(task, flush).is_none());
        }
        let rest: BTreeSet<u32> = told.try_iter().map(|(which, _)| which).collect();
        assert_eq!(rest, BTreeSet::from([1, 3, 8]));
        assert_eq!(volume.lock().unwrap().fs.ended.len(), 5);
        assert!(volume.file_syncs.queue().users.is_empty());
    }

    #[test]
    fn what_is_closed_meanwhile_is_synced_with_everything() {
        let Scene { volume, mut tasks, .. } = scene();
        let (then, told) = answers();
        volume.sync_for(Some(7), file(1, 1), then(1));
        volume.lock().unwrap().fs.closed.push(Handle(1));
        let flush = go(&mut tasks[0], None);
        assert_eq!(volume.lock().unwrap().fs.begun, [None]);
        assert!(told.try_recv().is_err() && go(&mut tasks[0], flush).is_none());
        assert_eq!(told.try_recv(), Ok((1, Ok(()))));
    }

    #[test]
    fn the_queue_of_a_user_is_bounded_and_emptied_at_the_end() {
        let Scene { volume, mut syncer, mut tasks, .. } = scene();
        let (then, told) = answers();
        for i in 0..QUEUE_MAX as u64 {
            volume.sync_for(Some(7), file(i + 100, i), then(1));
        }
        assert!(told.try_recv().is_err());
        volume.sync_for(Some(7), file(1, 1), then(2));
        assert_eq!(told.try_recv(), Ok((2, Err(Errno::EAGAIN))));
        volume.sync_for(Some(8), file(1, 1), then(3));
        assert!(told.try_recv().is_err());
        volume.close_file_syncs();
        let mut flushes: Vec<Option<PendingSync>> = tasks.iter().map(|_| None).collect();
        loop {
            for (task, flush) in tasks.iter_mut().zip(&mut flushes) {
                *flush = go(task, flush.take());
            }
            if flushes.iter().all(Option::is_none) {
                break;
            }
        }
        assert_eq!(told.try_iter().filter(|(_, outcome)| outcome.is_ok()).count(), QUEUE_MAX + 1);
        assert!(matches!(tasks[0].step(None), Step::Over));
        // From then on everything is synced for a file, as long as that goes.
        volume.sync_for(Some(7), file(1, 1), then(4));
        let flush = go(&mut syncer, None);
        assert!(flush.is_some() && go(&mut syncer, flush).is_none());
        assert_eq!(told.try_recv(), Ok((4, Ok(()))));
    }

    /// A client's requests come here by its open file, syncs of everything do not.
    #[test]
    fn a_session_asks_for_what_it_has_open() {
        let volume = Volume::new(Apart::default(), "v", Arc::new(StillHost::default()));
        let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let name = Name::new(b"f").unwrap();
        let (attr, handle) = session.create(&CX, Ino::ROOT, name, 0o600, both).unwrap();
        let ask = Ask::File { handle, data_only: true };
        let wanted = session.prepare_sync(&CX, attr.ino, ask).unwrap();
        let inner = session.sync_of(attr.ino, handle, true).unwrap();
        assert!(wanted == inner && wanted.data_only && wanted.one.is_some());
        let dir = session.opendir(&CX, Ino::ROOT).unwrap();
        let wanted = session.prepare_sync(&CX, Ino::ROOT, Ask::Directory(dir)).unwrap();
        assert_eq!(wanted.one.map(|one| one.0), Some(Ino::ROOT));
        let wanted = session.prepare_sync(&CX, Ino::ROOT, Ask::All).unwrap();
        assert_eq!(wanted, Wanted { data_only: false, one: None });
        let stranger = session.sync_of(attr.ino, Handle(99), false);
        assert_eq!(stranger, Err(Errno::EBADF));
    }
}
