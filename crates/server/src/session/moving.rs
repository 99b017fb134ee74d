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
use crate::locks::{Family, LockKind, LockOwner, LockRange, LockRequest};
use crate::open::handles::{Handles, Origin};
use crate::session::Session;

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
            let Ok(mut guard) = self.volume.lock() else { return Err("the volume has failed") };
            state.identity = guard.fs.identity();
            for (handle, open) in self.own.handles.numbered() {
                if matches!(open.origin, Origin::Adopted { .. }) {
                    return Err("a file is open that is another client's");
                }
                match guard.fs.getattr(&cx, open.ino) {
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
                let place = |ino| guard.fs.place(ino);
                state.known = known(self.own.inodes.given(), self.own.inodes.top(), place);
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

/// Where each of `given` is, and the directories that lead there, those before what is in them.
/// What has no place is left out.
fn known(
    given: Vec<(Ino, u64)>,
    top: Ino,
    place: impl Fn(Ino) -> Option<(Ino, Vec<u8>)>,
) -> Vec<Known> {
    let counts: HashMap<Ino, u64> = given.iter().copied().collect();
    let mut done = HashSet::from([top]);
    let mut all = Vec::new();
    for (ino, _) in given {
        // Up to what is known to be before, and down again.
        let mut way = Vec::new();
        let (mut at, mut seen) = (ino, HashSet::new());
        while !done.contains(&at) && seen.insert(at) {
            let Some((parent, name)) = place(at) else { break };
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
    all
}
