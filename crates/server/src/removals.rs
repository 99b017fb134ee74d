//! Removals: the blocks of files that were removed or made shorter, freed in steps by a task of the
//! volume, between the calls of its clients.
//!
//! A file of any number of extents is removed, or cut, by one call, which has its effect at once
//! and leaves what is left of the file here. The call's answer waits until that is freed, so that
//! its client finds the space. The task, the volume's remover, stands in line for the volume's lock
//! as one more user, and takes one step for each user in turn.
//!
//! In a directory of the host a cut, or the last close of a removed file, is one call of the
//! host's, which takes as long as the file is large. One of [`REMOVERS`] tasks makes it without the
//! lock ([`FileSystem::begin_free`]). A call that has to come after it is made again when it has
//! been made ([`Rest::Until`](atoll_vfs::Rest::Until)), and so is the call that cuts: it finds that
//! nothing is left to be done.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use atoll_vfs::{Errno, FileSystem, Ino, PendingSync, Result, SyncId};

pub(crate) mod queue;

use crate::guarded::Guarded;
use crate::host::Bell;
use crate::syncs::queue::Then;
use crate::task::{Step, Task};
use crate::volume::{ITSELF, Volume};

/// How many removers a directory of the host has. No user has all of them at a time.
pub const REMOVERS: usize = 4;
/// The steps that a call takes in one turn of its client: some 100 microseconds.
const PART: u32 = 2;

/// A volume's remover, or one of several.
pub struct Remover<F: FileSystem + Send> {
    volume: Arc<Volume<F>>,
    /// The user and the inode of the work that is done without the volume.
    serves: Option<(u32, Ino)>,
}

impl<F: FileSystem + Send> Remover<F> {
    /// A remover of `volume`; `bell` is rung when there is something to do.
    pub fn new(volume: &Arc<Volume<F>>, bell: Arc<dyn Bell>) -> Remover<F> {
        volume.removals.serve(bell);
        Remover { volume: Arc::clone(volume), serves: None }
    }
}

/// The outcome of a step of what is left of an inode.
enum Freed {
    /// There is more to do.
    Some,
    /// There is more to do after this, which is done without the volume.
    Apart(PendingSync),
    /// Nothing is left; the answers that have waited.
    All(Vec<Then>),
}

impl<F: FileSystem + Send> Task for Remover<F> {
    fn name(&self) -> &'static str {
        "remover"
    }

    /// The file system finds the outcome of what it has had done, whether or not anybody knows it.
    fn step(&mut self, _: Option<(SyncId, Result<()>)>) -> Step {
        let removals = &self.volume.removals;
        let served = self.serves.take();
        let mut queue = removals.queue();
        let Some((uid, ino)) = served.or_else(|| if queue.closed { None } else { queue.next() })
        else {
            return if queue.closed { Step::Over } else { Step::Wait };
        };
        drop(queue);
        // A panic in the file system ends the volume: its lock then gives every caller an error.
        let stepped = catch_unwind(AssertUnwindSafe(|| self.volume.removal_step(ino)));
        let (outcome, waiting) = match stepped.unwrap_or(Err(Errno::EIO)) {
            Ok(Freed::Apart(work)) => {
                self.serves = Some((uid, ino));
                return Step::Flush(work);
            }
            Ok(Freed::Some) => {
                let mut queue = removals.queue();
                queue.done(uid);
                queue.put(uid, ino);
                return Step::Pause(Duration::ZERO);
            }
            Ok(Freed::All(waiting)) => (Ok(()), waiting),
            Err(error) => (Err(error), removals.end(ino)),
        };
        removals.queue().done(uid);
        waiting.into_iter().for_each(|then| then(outcome));
        Step::Pause(Duration::ZERO)
    }
}

impl<F: FileSystem + Send> Volume<F> {
    /// Has the removers end, wherever they are.
    pub fn close_removals(&self) {
        // A call that is made again when work has been done which nobody does would be made for
        // ever.
        if self.is_foreign() {
            self.removals.serve_no_more();
        }
        self.removals.close();
    }

    /// One step of what calls have left of `ino`, or of what a mapping of it has, when it is the
    /// turn of the user `uid`.
    fn free_step(&self, uid: u32, ino: Ino) -> Result<bool> {
        let mut state = self.take_turn(uid)?;
        match state.leave_step(ino) {
            Some(done) => Ok(done),
            None => self.step_of(&mut state, ino),
        }
    }

    /// The same for the remover. Returns the answers that have waited if nothing is left: a call
    /// that leaves something of `ino` again finds it in no queue.
    fn removal_step(&self, ino: Ino) -> Result<Freed> {
        let mut state = self.take_turn(ITSELF)?;
        if let Some(work) = state.fs.begin_free(ino)? {
            return Ok(Freed::Apart(work));
        }
        let done = self.step_of(&mut state, ino)?;
        // Under the lock, as each call adds what it leaves.
        Ok(if done { Freed::All(self.removals.end(ino)) } else { Freed::Some })
    }

    /// Calls `then` when the work on `ino` has ended that goes on without the file system.
    pub(crate) fn after_work(&self, ino: Ino, then: Then) {
        self.removals.after(ino, then);
    }

    fn step_of(&self, state: &mut Guarded<F>, ino: Ino) -> Result<bool> {
        if state.zero_step(ino) == Some(false) {
            return Ok(false);
        }
        state.changed = true;
        let done = state.fs.free_step(ino);
        if state.fs.checkpoint_due() {
            self.checkpoints.ask();
        }
        done
    }

    /// As [`free_first`](Self::free_first), a part of it.
    pub(crate) fn free_part(&self, uid: u32, ino: Ino) -> Result<()> {
        for _ in 0..PART {
            if self.free_step(uid, ino)? {
                break;
            }
        }
        Ok(())
    }

    /// Frees what calls have left of `ino`, for a call of the user `uid` that cannot be made
    /// before. Others have the volume between the steps.
    pub(crate) fn free_first(&self, uid: u32, ino: Ino) -> Result<()> {
        while !self.free_step(uid, ino)? {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::sync::mpsc::channel;

    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{Attr, Context, Handle, Name, OpenFlags, Rest, SetAttr, Timespec};

    use super::queue::LEFT_MAX;
    use super::*;
    use crate::mapped::data_from;
    use crate::open::handles::Open;
    use crate::rights::identity::SessionId;
    use crate::session::Session;
    use crate::testing::{Noted, StillHost};
    use crate::volume::Waits;
    use crate::{Access, Credentials, KnownMost};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
    /// The steps that each removal takes.
    const STEPS: u32 = 3;

    /// Removals of it take steps, and cuts are made apart.
    #[derive(Default)]
    struct Slow {
        fs: ModelFs,
        in_steps: bool,
        rest: Option<Rest>,
        left: HashMap<Ino, u32>,
        /// Files that are to be cut, and whether that has been done.
        cuts: HashMap<Ino, bool>,
    }

    macro_rules! inner {
        ($self:ident $verb:ident ($($arg:ident),*)) => { $self.fs.$verb($($arg),*) };
    }

    impl FileSystem for Slow {
        atoll_vfs::verbs!(inner: lookup getattr readlink mknod mkdir symlink rmdir rename
            link open create tmpfile read write fallocate seek fsync release opendir readdir
            releasedir fsyncdir syncfs statfs setxattr getxattr listxattr removexattr);

        fn unlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
            let ino = self.fs.lookup(cx, parent, name)?.ino;
            if self.in_steps {
                self.left.insert(ino, STEPS);
                self.rest = Some(Rest::Blocks(ino));
            }
            self.fs.unlink(cx, parent, name)
        }

        fn setattr(
            &mut self,
            cx: &Context,
            ino: Ino,
            handle: Option<Handle>,
            set: &SetAttr,
        ) -> Result<Attr> {
            if self.in_steps && set.size.is_some() && self.cuts.remove(&ino) != Some(true) {
                self.cuts.insert(ino, false);
                self.rest = Some(Rest::Until(ino));
                return Err(Errno::EAGAIN);
            }
            self.fs.setattr(cx, ino, handle, set)
        }

        fn begin_free(&mut self, ino: Ino) -> Result<Option<PendingSync>> {
            let left = self.cuts.get_mut(&ino).filter(|made| !**made);
            Ok(left.map(|made| {
                *made = true;
                PendingSync::new(SyncId(0), || Ok(()))
            }))
        }

        fn work_in_steps(&mut self, yes: bool) -> bool {
            std::mem::replace(&mut self.in_steps, yes)
        }

        fn take_rest(&mut self) -> Option<Rest> {
            self.rest.take()
        }

        fn free_step(&mut self, ino: Ino) -> Result<bool> {
            if self.cuts.contains_key(&ino) {
                return Ok(true);
            }
            let left = self.left.get_mut(&ino).ok_or(Errno::EIO)?;
            *left -= 1;
            Ok(*left == 0)
        }
    }

    /// Who looks for space finds what its own calls have left, and what was freed while it looked.
    #[test]
    fn space_is_looked_for_again() {
        let removals = queue::Removals::default();
        removals.serve(Arc::new(Noted::default()));
        let before = removals.ended();
        assert_eq!(removals.any(7, before), None);
        removals.add(7, Ino(9));
        assert_eq!(removals.any(7, before), Some(Ino(9)));
        assert_eq!(removals.any(8, before), None);
        removals.end(Ino(9));
        let left = removals.any(7, before).expect("it was freed meanwhile");
        let (tell, told) = channel();
        removals.after(left, Box::new(move |outcome| tell.send(outcome).unwrap()));
        assert_eq!(told.try_recv(), Ok(Ok(())));
        assert_eq!(removals.any(7, removals.ended()), None);
    }

    /// A call may leave something of an inode as soon as its last step has let go of the volume,
    /// before its answers have been told.
    #[test]
    fn what_is_left_again_is_freed_again() {
        let volume = Volume::new(Slow::default(), "v", Arc::new(StillHost::default()));
        let mut remover = Remover::new(&volume, Arc::new(Noted::default()));
        let ino = Ino(9);
        let leave = || {
            volume.lock().unwrap().fs.left.insert(ino, 1);
            volume.removals.add(7, ino);
        };
        leave();
        let (uid, next) = volume.removals.queue().next().unwrap();
        let Ok(Freed::All(waiting)) = volume.removal_step(next) else {
            panic!("it was the last step");
        };
        assert_eq!((uid, next, waiting.len()), (7, ino, 0));
        leave();
        assert!(matches!(remover.step(None), Step::Pause(_)));
        assert_eq!(volume.lock().unwrap().fs.left[&ino], 0);
        assert!(matches!(remover.step(None), Step::Wait));
    }

    /// What is done for a call in the middle of it, as where a mapping ends, works in steps or not,
    /// and the rest of the call as before.
    #[test]
    fn the_rest_of_a_call_is_in_steps_too() {
        let volume = Volume::new(Slow::default(), "v", Arc::new(StillHost::default()));
        let _remover = Remover::new(&volume, Arc::new(Noted::default()));
        let left = Cell::new(None);
        for in_steps in [true, false] {
            let mut state = volume.enter(Waits::Here, 0, &left).unwrap();
            state.fs.work_in_steps(in_steps);
            let name = Name::new(b"f").unwrap();
            let flags = OpenFlags::READ;
            let (attr, handle) = state.fs.create(&CX, Ino::ROOT, name, 0o600, flags).unwrap();
            let open = Open { ino: attr.ino, handle, flags: Some(flags) };
            data_from(&mut state.fs, &CX, open, 0).unwrap();
            assert_eq!(state.fs.in_steps, in_steps);
            state.close(&CX, (SessionId::VOLUME, 0), &open).unwrap();
            assert_eq!(state.fs.in_steps, in_steps);
            drop(state);
            assert!(!volume.lock().unwrap().fs.in_steps);
        }
    }

    /// Each user in turn, however much one has left; an answer waits for its own removal alone.
    #[test]
    fn removals_are_shared_out() {
        let volume = Volume::new(Slow::default(), "v", Arc::new(StillHost::default()));
        let bell = Arc::new(Noted::default());
        let mut remover = Remover::new(&volume, Arc::<Noted>::clone(&bell));
        let mut next = 0;
        let (tell, told) = channel();
        for (uid, files) in [(7, 5), (8, 1)] {
            let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
            session.own.peer.uid = uid;
            session.carried();
            for _ in 0..files {
                next += 1;
                let text = format!("{next}");
                let name = Name::new(text.as_bytes()).unwrap();
                session.mknod(&CX, Ino::ROOT, name, 0o100_644, 0).unwrap();
                assert_eq!(session.take_left(), None);
                session.unlink(&CX, Ino::ROOT, name).unwrap();
                let ino = session.take_left().expect("it leaves something");
                let tell = tell.clone();
                let then = move |outcome| tell.send((uid, outcome)).unwrap();
                volume.removals.after(ino, Box::new(then));
            }
        }
        assert!(bell.was_rung() && told.try_recv().is_err());
        let mut steps = 0;
        let mut done = Vec::new();
        while matches!(remover.step(None), Step::Pause(_)) {
            steps += 1;
            assert!(!volume.lock().unwrap().fs.in_steps);
            done.extend(told.try_iter().map(|(uid, outcome)| (uid, outcome, steps)));
        }
        assert_eq!(steps, 6 * STEPS);
        let other = done.iter().find(|done| done.0 == 8).unwrap();
        assert!(other.1 == Ok(()) && other.2 <= 2 * STEPS, "{done:?}");
        assert_eq!(done.len(), 6);
        // A removal that is left at the end is answered, and the unmount makes it.
        volume.removals.add(7, Ino(99));
        let then = move |outcome| tell.send((0, outcome)).unwrap();
        volume.removals.after(Ino(99), Box::new(then));
        volume.close_removals();
        assert_eq!(told.try_recv(), Ok((0, Ok(()))));
        assert!(matches!(remover.step(None), Step::Over));
    }

    /// A user who cuts files without end waits for cuts of its own, and has others wait for none.
    #[test]
    fn cuts_wait_for_those_of_the_same_user() {
        let volume = Volume::new(Slow::default(), "v", Arc::new(StillHost::default()));
        volume.set_foreign(KnownMost::default()).unwrap();
        let mut remover = Remover::new(&volume, Arc::new(Noted::default()));
        let mut sessions = [7, 8].map(|uid| {
            let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
            session.own.peer.uid = uid;
            session.carried();
            session
        });
        let mut make = |who: usize, text: &str| {
            let name = Name::new(text.as_bytes()).unwrap();
            sessions[who].mknod(&CX, Ino::ROOT, name, 0o100_644, 0).unwrap().ino
        };
        let mut left: Vec<Ino> = (0..3 * LEFT_MAX).map(|n| make(0, &n.to_string())).collect();
        let other = make(1, "other");
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        let mut cut = |who: usize, ino| {
            let session: &mut Session<Slow> = &mut sessions[who];
            session.begins(None, true);
            match session.setattr(&CX, ino, None, &set) {
                Ok(_) => None,
                Err(Errno::EAGAIN) => session.left.take(),
                Err(error) => panic!("{error}"),
            }
        };
        let first = left.clone();
        for (number, ino) in left.iter().enumerate() {
            let waits_for = first[number.min(LEFT_MAX - 1)];
            assert_eq!(cut(0, *ino), Some(Rest::Until(waits_for)), "{number}");
        }
        assert_eq!(volume.lock().unwrap().fs.cuts.len(), LEFT_MAX);
        // The other user's is left beside them.
        assert_eq!(cut(1, other), Some(Rest::Until(other)));
        let mut rounds = 0;
        while !left.is_empty() {
            let mut step = remover.step(None);
            while let Step::Flush(work) = step {
                step = remover.step(Some(work.flush()));
            }
            if matches!(step, Step::Wait) {
                left.retain(|ino| cut(0, *ino).is_some());
                rounds += 1;
            }
        }
        assert!((3..10).contains(&rounds), "{rounds}");
        assert_eq!(cut(1, other), None);
    }
}
