//! The state of a session that goes on in another one: of the same volume or directory, in this
//! process or in another, as when a virtual machine moves.
//!
//! A state grants nothing. The client that brings one may have made it up, so each inode is looked
//! up again, and each file opened again, as the client could do by requests, with the rights of the
//! session that takes it over; what the state adds is only the numbers by which the client knows
//! them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use atoll_vfs::{Context, Errno, FileSystem, Handle, Ino, Name, OpenFlags};

use crate::departures::{Departures, Secret};
use crate::guarded::Guarded;
use crate::locks::{Family, LockKind, LockOwner, LockRange, LockRequest};
use crate::open::handles::Handles;
use crate::session::Session;
use crate::volume::Volume;

/// An inode that the client knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The client's number.
    pub ino: Ino,
    /// How often the client was given it; 0 for a directory that only leads to others.
    pub count: u64,
    /// The directory in which it is, which comes before it.
    pub parent: Ino,
    /// Its name there.
    pub name: Vec<u8>,
}

/// A file or directory that the client has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// The client's number of the inode.
    pub ino: Ino,
    /// The client's number of the open file.
    pub handle: Handle,
    /// The rights of an open file; `None` for a directory.
    pub flags: Option<OpenFlags>,
}

/// A lock that the client holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The client's number of the inode.
    pub ino: Ino,
    /// The open file through which it was asked for.
    pub through: Handle,
    /// The owner.
    pub owner: LockOwner,
    /// The bytes.
    pub range: LockRange,
    /// The kind.
    pub kind: LockKind,
    /// The process, as others are told of it.
    pub pid: u32,
}

/// What goes with a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The name of the file system.
    pub identity: [u8; 16],
    /// The volume's number of the session's root.
    pub top: u64,
    /// By which the session is known where it was saved.
    pub secret: Secret,
    /// The inodes, directories before what is in them.
    pub known: Vec<Known>,
    /// Files and directories that are open.
    pub files: Vec<OpenFile>,
    /// Locks that are held.
    pub locks: Vec<HeldLock>,
}

/// Why a session cannot go on elsewhere, in words for the log.
pub type Refused = &'static str;

impl<F: FileSystem + Send> Session<F> {
    /// The session's state, and what is set once another session goes on with it; until then this
    /// one is as before.
    ///
    /// # Errors
    /// For what cannot be found again: files that have no name, files of other sessions; where
    /// inodes have to be named and it is not known how.
    pub fn save(&mut self) -> Result<(State, Arc<AtomicBool>), Refused> {
        let mut secret = Secret::default();
        self.volume.host.random(&mut secret).map_err(|_| "there is no random number")?;
        let cx = Context { uid: 0, gid: 0, now: self.volume.host.now() };
        let mut state = State { secret, top: self.own.inodes.top().0, ..State::default() };
        {
            let mut looks = Looks::new(&self.volume, self.own.peer.uid);
            state.identity = looks.next()?.fs.identity();
            for (handle, open) in self.own.handles.numbered() {
                match looks.next()?.fs.getattr(&cx, open.ino) {
                    Ok(attr) if attr.nlink > 0 => {}
                    _ => return Err("a file is open that has no name"),
                }
                let ino = self.own.inodes.outer(open.ino);
                state.files.push(OpenFile { ino, handle, flags: open.flags });
            }
            if self.own.inodes.is_counted() {
                if !self.volume.is_foreign() {
                    return Err("its user may not name every inode of the volume");
                }
                let place = |ino| Ok(looks.next()?.fs.place(ino));
                state.known = known(self.own.inodes.given(), self.own.inodes.top(), place)?;
            }
        }
        for known in &mut state.known {
            known.ino = self.own.inodes.outer(known.ino);
            known.parent = self.own.inodes.outer(known.parent);
        }
        if self.locks {
            state.locks = self
                .locks()
                .held(self.own.id)
                .into_iter()
                .map(|ask| HeldLock {
                    ino: self.own.inodes.outer(ask.key.0),
                    through: Handle(ask.through),
                    owner: match ask.key.1 {
                        Family::Fcntl => LockOwner::Process(ask.owner.number),
                        Family::Flock => LockOwner::OpenFile,
                    },
                    range: ask.range,
                    kind: ask.kind,
                    pid: ask.pid,
                })
                .collect();
        }
        let gone = self.departures().save(secret, self.own.id, self.own.peer.uid);
        Ok((state, gone))
    }

    /// Goes on with `state`. The session has done nothing yet, and after an error it has to end.
    ///
    /// # Errors
    /// For the state of another file system or directory, one that has been gone on with, what is
    /// open and cannot be opened, numbers that no session gives, and locks that others have.
    pub fn go_on(&mut self, state: &State) -> Result<(), Refused> {
        let cx =
            Context { uid: self.own.peer.uid, gid: self.own.peer.gid, now: self.volume.host.now() };
        let identity = match self.volume.lock() {
            Ok(guard) => guard.fs.identity(),
            Err(_) => return Err("the volume has failed"),
        };
        if (identity, self.own.inodes.top().0) != (state.identity, state.top) {
            return Err("the state is of another volume or directory");
        }
        if self.departures().is_over(&state.secret) {
            return Err("the state has been gone on with before");
        }
        self.look_up(&cx, &state.known);
        self.open_again(&cx, &state.files)?;
        self.lock_again(state)?;
        // What was done so far is nothing that the client waits for.
        let _ = (self.take_needs(), self.take_lent(), self.left.take());
        Ok(())
    }

    /// Looks up what the client knew, where it still is: the rest is unknown (`ESTALE`), as if
    /// others had removed it.
    fn look_up(&mut self, cx: &Context, all: &[Known]) {
        let mut only_led = Vec::new();
        for Known { ino, count, parent, name } in all {
            let Ok(name) = Name::new(name) else { continue };
            if name.is_dot_or_dot_dot() {
                continue;
            }
            let Ok(attr) = self.lookup(cx, *parent, name) else { continue };
            if attr.ino != *ino || *count == 0 {
                only_led.push(attr.ino);
                continue;
            }
            let Ok(inner) = self.own.inodes.inner(*ino) else { continue };
            let more = self.own.inodes.recall(inner, count - 1);
            if let Ok(mut guard) = self.volume.lock() {
                guard.fs.recall(inner, more);
            }
        }
        only_led.into_iter().for_each(|ino| self.forget(ino, 1));
    }

    fn open_again(&mut self, cx: &Context, files: &[OpenFile]) -> Result<(), Refused> {
        const LOST: Refused = "a file is open that cannot be opened again";
        let mut opened = Vec::new();
        for &OpenFile { ino, handle, flags } in files {
            let new = match flags {
                // It is there, and is not emptied once more.
                Some(flags) => {
                    self.open(cx, ino, flags.difference(OpenFlags::TRUNC | OpenFlags::EXCL))
                }
                None => self.opendir(cx, ino),
            };
            let new = new.map_err(|_| LOST)?;
            let inner = self.own.inodes.inner(ino).map_err(|_| LOST)?;
            opened.push((handle, self.own.handles.get(inner, new).map_err(|_| LOST)?));
        }
        let most = self.own.access.limits.open_files;
        let handles = Handles::with(&opened, most, self.own.access.account.as_ref());
        self.own.handles = handles.map_err(|error| match error {
            Errno::ENFILE => "its user has no memory left for it",
            _ => "an open file has a number that none can have",
        })?;
        Ok(())
    }

    /// Has the locks that the client held: from the session that was saved, if that is here.
    fn lock_again(&mut self, state: &State) -> Result<(), Refused> {
        let uid = self.own.peer.uid;
        self.begin_locks();
        {
            let mut departures = self.departures();
            let before = departures.find(&state.secret).filter(|saved| saved.uid == uid).cloned();
            if let Some(before) = before {
                departures.take_over(state.secret);
                // The first may end at any time, and says so to the departures before its locks go:
                // while they are held here it has them.
                self.locks().hand_over(before.session, self.own.id);
                before.gone.store(true, Ordering::SeqCst);
                return Ok(());
            }
        }
        for lock in &state.locks {
            let HeldLock { ino, through, owner, range, kind, pid } = *lock;
            let request = LockRequest { owner, range, kind: Some(kind), pid };
            let locked = self.setlk(ino, through, &request);
            locked.map_err(|_: Errno| "a lock cannot be had again")?;
        }
        self.departures().take_over(state.secret);
        Ok(())
    }

    fn departures(&self) -> MutexGuard<'_, Departures> {
        // Under this lock nobody's code runs but the lock table's, which knows nothing of it.
        self.volume.departures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session ends: nobody goes on with what it holds.
    pub(crate) fn ends_departure(&self) {
        self.departures().end(self.own.id);
    }
}

/// How many looks at a volume are taken before others have their turn: some 100 microseconds.
const LOOKS: usize = 256;

/// Looks at a volume, as many as a client has files, in the turn of its user: others have the
/// volume between them. The client itself changes nothing meanwhile.
struct Looks<'a, F: FileSystem> {
    volume: &'a Volume<F>,
    uid: u32,
    guard: Option<MutexGuard<'a, Guarded<F>>>,
    left: usize,
}

impl<'a, F: FileSystem + Send> Looks<'a, F> {
    fn new(volume: &'a Volume<F>, uid: u32) -> Looks<'a, F> {
        Looks { volume, uid, guard: None, left: 0 }
    }

    /// The volume, for one look.
    fn next(&mut self) -> Result<&mut Guarded<F>, Refused> {
        const FAILED: Refused = "the volume has failed";
        if self.left == 0 {
            self.guard = None;
            self.guard = Some(self.volume.take_turn(self.uid).map_err(|_| FAILED)?);
            self.left = LOOKS;
        }
        self.left -= 1;
        self.guard.as_deref_mut().ok_or(FAILED)
    }
}

/// Where each of `given` is, and the directories that lead there, those before what is in them.
/// What has no place is left out.
fn known(
    given: Vec<(Ino, u64)>,
    top: Ino,
    mut place: impl FnMut(Ino) -> Result<Option<(Ino, Vec<u8>)>, Refused>,
) -> Result<Vec<Known>, Refused> {
    let counts: HashMap<Ino, u64> = given.iter().copied().collect();
    let mut done = HashSet::from([top]);
    let mut all = Vec::new();
    for (ino, _) in given {
        // Up to what is known to be before, and down again.
        let mut way = Vec::new();
        let (mut at, mut seen) = (ino, HashSet::new());
        while !done.contains(&at) && seen.insert(at) {
            let Some((parent, name)) = place(at)? else { break };
            way.push((at, parent, name));
            at = parent;
        }
        if !done.contains(&at) {
            continue;
        }
        for (ino, parent, name) in way.into_iter().rev() {
            done.insert(ino);
            let count = counts.get(&ino).copied().unwrap_or(0);
            all.push(Known { ino, count, parent, name });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread;
    use std::time::Duration;

    use atoll_vfs::Timespec;
    use atoll_vfs::model::ModelFs;

    use super::*;
    use crate::testing::StillHost;
    use crate::{Access, Credentials, KnownMost};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
    /// More than is looked for in one turn.
    const FILES: usize = 3 * LOOKS;

    /// Says when it is asked for the first place, and goes on slowly until another has had it.
    struct Slow {
        fs: ModelFs,
        asked: Sender<()>,
        other: Arc<AtomicBool>,
    }

    macro_rules! inner {
        ($self:ident $verb:ident ($($arg:ident),*)) => { $self.fs.$verb($($arg),*) };
    }

    impl FileSystem for Slow {
        atoll_vfs::verbs!(inner: lookup getattr setattr readlink mknod mkdir symlink unlink rmdir
            rename link open create tmpfile read write fallocate seek fsync release opendir readdir
            releasedir fsyncdir syncfs statfs setxattr getxattr listxattr removexattr);

        fn place(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
            let _ = self.asked.send(());
            if !self.other.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(3));
            }
            Some((Ino::ROOT, ino.0.to_string().into_bytes()))
        }
    }

    /// However much a client knows, others have the volume while its state is saved.
    #[test]
    fn others_have_the_volume_meanwhile() {
        let (tell, asked) = channel();
        let other = Arc::<AtomicBool>::default();
        let fs = Slow { fs: ModelFs::default(), asked: tell, other: Arc::clone(&other) };
        let volume = Volume::new(fs, "v", Arc::new(StillHost::default()));
        volume.set_foreign(KnownMost::default()).unwrap();
        let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
        for number in 0..FILES {
            let text = number.to_string();
            let name = Name::new(text.as_bytes()).unwrap();
            session.mknod(&CX, Ino::ROOT, name, 0o100_644, 0).unwrap();
        }
        let (shared, had) = (&volume, &other);
        thread::scope(|scope| {
            scope.spawn(move || {
                asked.recv().unwrap();
                drop(shared.take_turn(8).unwrap());
                had.store(true, Ordering::SeqCst);
            });
            let (state, _) = session.save().unwrap();
            assert!(other.load(Ordering::SeqCst), "it waited until all was saved");
            assert_eq!(state.known.len(), FILES);
        });
    }

    /// A session may end at any moment while another one goes on with its state: its locks stay
    /// until they are the other's, and nobody comes in between.
    #[test]
    fn locks_are_somebodys_all_the_time() {
        let volume = Volume::new(ModelFs::default(), "v", Arc::new(StillHost::default()));
        let begin = || volume.session(Credentials::default(), Access::default()).unwrap();
        let (owner, range, pid) = (LockOwner::Process(1), LockRange::ALL, 1);
        let lock = LockRequest { owner, range, kind: Some(LockKind::Exclusive), pid };
        let (name, flags) = (Name::new(b"f").unwrap(), OpenFlags::READ | OpenFlags::WRITE);
        let mut first = begin();
        let (attr, handle) = first.create(&CX, Ino::ROOT, name, 0o600, flags).unwrap();
        first.setlk(attr.ino, handle, &lock).unwrap();
        let (state, gone) = first.save().unwrap();
        let mut second = begin();
        second.begin_locks();
        let table = volume.locks.lock().unwrap();
        thread::scope(|scope| {
            let second = &mut second;
            let goes_on = scope.spawn(move || second.go_on(&state));
            // It stands before the table, and the end of the first waits for it.
            let mut seen = 0;
            for _ in 0..10_000 {
                seen = if volume.departures.try_lock().is_err() { seen + 1 } else { 0 };
                if seen == 50 {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            let ends = scope.spawn(move || drop(first));
            drop(table);
            assert_eq!(goes_on.join().unwrap(), Ok(()));
            ends.join().unwrap();
            assert_eq!(seen, 50, "the first one could have ended, with its locks");
        });
        assert!(gone.load(Ordering::SeqCst));
        let mut third = begin();
        let theirs = third.open(&CX, attr.ino, flags).unwrap();
        assert_eq!(third.setlk(attr.ino, theirs, &lock), Err(Errno::EAGAIN));
        drop(second);
        assert_eq!(third.setlk(attr.ino, theirs, &lock), Ok(()));
    }
}
