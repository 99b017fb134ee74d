//! Locks: those of fcntl(2), of a process or of an open file description, and those of flock(2).
//!
//! Where processes share the file system through a server, the server keeps them. Otherwise this
//! process is alone: what its open file descriptions have is kept here, and none is in the way of
//! a lock of the process but theirs.

use alloc::vec::Vec;

use atoll_vfs::{Errno, FileSystem, Handle, Ino, Lock, LockKind, LockOwner, LockWait, OpenFlags};

use crate::table::{Held, OpenFile};
use crate::{Clock, Policy, Posix, Result, Whence};

/// The owner of the locks of the process; those of open file descriptions have numbers above.
const PROCESS: u64 = 0;

/// A lock of fcntl(2) that is asked for, or in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLock {
    /// Its kind; `None` to let go.
    pub kind: Option<LockKind>,
    /// The place that `start` counts from: Set, Current or End.
    pub whence: Whence,
    /// The first byte.
    pub start: i64,
    /// Bytes; 0 to the end of the file wherever it will be, negative for those before `start`.
    pub len: i64,
    /// The process that holds it: of a lock to be taken, this one.
    pub pid: u32,
    /// It belongs to the open file description, not to the process.
    pub of_description: bool,
}

/// A lock that is waited for: `waited` has to be called until it is given or refused.
#[derive(Debug)]
pub struct Waiting {
    wait: LockWait,
    file: usize,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    ino: Ino,
    owner: u64,
    kind: LockKind,
    start: u64,
    end: u64,
}

/// A process's knowledge of its locks.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// There was a lock once: closing has to look.
    any: bool,
    /// The numbers of the owners that are open file descriptions.
    owners: u64,
    /// Where the process may have locks that a server keeps.
    at_server: Vec<Ino>,
    /// Locks that nobody else keeps.
    own: Vec<Taken>,
}

impl Locks {
    /// The first lock of another owner in the way.
    fn in_the_way(&self, ino: Ino, owner: u64, lock: &Lock) -> Option<&Taken> {
        let exclusive = |kind| kind == LockKind::Exclusive;
        self.own.iter().find(|held| {
            held.ino == ino
                && held.owner != owner
                && held.start <= lock.end
                && lock.start <= held.end
                && (exclusive(held.kind) || lock.kind.is_some_and(exclusive))
        })
    }

    /// Makes the bytes of `lock` what it asks, with nothing in the way.
    fn set(&mut self, ino: Ino, owner: u64, lock: &Lock) -> Result<()> {
        // Two pieces may be left of one, and one comes.
        self.own.try_reserve(2).map_err(|_| Errno::ENOLCK)?;
        let mut new =
            Taken { ino, owner, kind: LockKind::Shared, start: lock.start, end: lock.end };
        let mut right = None;
        self.own.retain_mut(|held| {
            if held.ino != ino || held.owner != owner {
                return true;
            }
            if lock.kind == Some(held.kind)
                && held.start <= new.end.saturating_add(1)
                && new.start <= held.end.saturating_add(1)
            {
                // One lock with what it touches.
                (new.start, new.end) = (new.start.min(held.start), new.end.max(held.end));
                return false;
            }
            if held.start > lock.end || lock.start > held.end {
                return true;
            }
            if held.end > lock.end {
                let rest = Taken { start: lock.end + 1, ..*held };
                if held.start >= lock.start {
                    *held = rest;
                    return true;
                }
                right = Some(rest);
            }
            if held.start < lock.start {
                held.end = lock.start - 1;
                return true;
            }
            false
        });
        self.own.extend(right);
        if let Some(kind) = lock.kind {
            self.own.push(Taken { kind, ..new });
        }
        Ok(())
    }
}

impl<F: FileSystem, C: Clock, P: Policy> Posix<F, C, P> {
    /// fcntl(2) with F_GETLK or F_OFD_GETLK: the lock in the way of `lock`, which has a kind.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL`, `EOVERFLOW`; `ENOLCK` of a server without locks.
    pub fn lock_in_the_way(&mut self, fd: i32, lock: &RecordLock) -> Result<Option<RecordLock>> {
        let (ino, handle, wanted) = self.wanted(fd, lock)?;
        let LockOwner::Record(owner) = wanted.owner else { return Err(Errno::EINVAL) };
        let found = match self.fs.shared_locks() {
            Some(locks) => locks.getlk(ino, handle, &wanted)?,
            None => self.locks.in_the_way(ino, owner, &wanted).map(|held| Lock {
                owner: LockOwner::Record(held.owner),
                kind: Some(held.kind),
                start: held.start,
                end: held.end,
                pid: if held.owner == PROCESS { lock.pid } else { u32::MAX },
            }),
        };
        Ok(found.map(|found| RecordLock {
            kind: found.kind,
            whence: Whence::Set,
            start: found.start as i64,
            len: if found.end == u64::MAX { 0 } else { (found.end - found.start + 1) as i64 },
            pid: found.pid,
            of_description: lock.of_description,
        }))
    }

    /// fcntl(2) with F_SETLK and F_OFD_SETLK, or with `waits` F_SETLKW and F_OFD_SETLKW, where what
    /// comes back is to be waited for.
    ///
    /// # Errors
    /// `EAGAIN` when another's is in the way, with `waits` to be tried again in a while; `EBADF`,
    /// also for a lock that the file is not open for; `EINVAL`, `EOVERFLOW`, `EDEADLK`, `ENOLCK`.
    pub fn lock(&mut self, fd: i32, lock: &RecordLock, waits: bool) -> Result<Option<Waiting>> {
        if let Some(kind) = lock.kind {
            let right = match kind {
                LockKind::Shared => OpenFlags::READ,
                LockKind::Exclusive => OpenFlags::WRITE,
            };
            let file = self.table.get(fd)?;
            let directory = matches!(file.held, Held::Directory(_)) && right == OpenFlags::READ;
            if !directory && !file.rights.contains(right) {
                return Err(Errno::EBADF);
            }
        }
        let (ino, handle, wanted) = self.wanted(fd, lock)?;
        let LockOwner::Record(owner) = wanted.owner else { return Err(Errno::EINVAL) };
        self.locks.any = true;
        if self.fs.shared_locks().is_some() {
            if owner == PROCESS && lock.kind.is_some() && !self.locks.at_server.contains(&ino) {
                self.locks.at_server.push(ino);
            }
            return self.ask(fd, ino, handle, &wanted, waits);
        }
        if lock.kind.is_some() && self.locks.in_the_way(ino, owner, &wanted).is_some() {
            return Err(Errno::EAGAIN);
        }
        self.locks.set(ino, owner, &wanted).map(|()| None)
    }

    /// flock(2): `kind` is `None` to let go. With `waits` what comes back is to be waited for.
    ///
    /// # Errors
    /// `EBADF`; `EAGAIN` (EWOULDBLOCK) if another open file description has a lock in the way, with
    /// `waits` to be tried again in a while; `ENOLCK`.
    pub fn flock(
        &mut self,
        fd: i32,
        kind: Option<LockKind>,
        waits: bool,
    ) -> Result<Option<Waiting>> {
        let file = self.table.get(fd)?;
        file.not_path_only()?;
        let (ino, held) = (file.ino, file.held);
        if self.fs.shared_locks().is_none() {
            return self.table.set_flock(fd, kind).map(|()| None);
        }
        let handle = handle(held)?;
        // Closing asks the server, whatever comes of this request.
        self.table.get_mut(fd)?.flock = Some(LockKind::Shared);
        self.locks.any = true;
        let wanted = Lock { owner: LockOwner::OpenFile, kind, start: 0, end: u64::MAX, pid: 0 };
        let asked = self.ask(fd, ino, handle, &wanted, waits)?;
        if kind.is_none() {
            self.table.get_mut(fd)?.flock = None;
        }
        Ok(asked)
    }

    /// Looks for the outcome of a lock that is waited for. It comes back while there is none. The
    /// descriptor may be closed meanwhile: the open file stays until the outcome is there.
    ///
    /// # Errors
    /// As the call that began it; `EINTR` after [`interrupt`](Self::interrupt).
    pub fn waited(&mut self, Waiting { wait, file }: Waiting) -> Result<Option<Waiting>> {
        let locks = self.fs.shared_locks().ok_or(Errno::ENOLCK)?;
        let outcome = match locks.waited(wait) {
            Ok(Some(wait)) => return Ok(Some(Waiting { wait, file })),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        if let Some(closed) = self.table.let_go(file) {
            self.unlock_last(&closed);
            let _ = self.release(closed.ino, closed.held);
        }
        outcome
    }

    /// Gives up a lock that is waited for; its outcome comes soon, and may be success.
    pub fn interrupt(&mut self, waiting: &Waiting) {
        if let Some(locks) = self.fs.shared_locks() {
            locks.interrupt(&waiting.wait);
        }
    }

    fn ask(
        &mut self,
        fd: i32,
        ino: Ino,
        handle: Handle,
        wanted: &Lock,
        waits: bool,
    ) -> Result<Option<Waiting>> {
        let locks = self.fs.shared_locks().ok_or(Errno::ENOLCK)?;
        if !waits || wanted.kind.is_none() {
            return locks.setlk(ino, handle, wanted).map(|()| None);
        }
        let wait = locks.setlkw(ino, handle, wanted)?;
        Ok(wait.and_then(|wait| Some(Waiting { wait, file: self.table.hold(fd).ok()? })))
    }

    /// The file of `fd`, and `lock` as servers have it.
    fn wanted(&mut self, fd: i32, lock: &RecordLock) -> Result<(Ino, Handle, Lock)> {
        let file = self.table.get(fd)?;
        file.not_path_only()?;
        let (ino, held, offset) = (file.ino, file.held, file.offset);
        let from = match lock.whence {
            Whence::Set => 0,
            Whence::Current => offset as i64,
            Whence::End => self.getattr(ino)?.size as i64,
            Whence::Data | Whence::Hole => return Err(Errno::EINVAL),
        };
        let first = from.checked_add(lock.start).ok_or(Errno::EOVERFLOW)?;
        let (start, end) = match lock.len {
            0 => (first, None),
            len if len > 0 => (first, Some(first.checked_add(len - 1).ok_or(Errno::EOVERFLOW)?)),
            len => (first.checked_add(len).ok_or(Errno::EINVAL)?, Some(first - 1)),
        };
        let start = u64::try_from(start).map_err(|_| Errno::EINVAL)?;
        // The largest offset is the end of every file.
        let end = end.filter(|end| *end != i64::MAX).map_or(u64::MAX, |end| end as u64);
        let (owner, pid) =
            if lock.of_description { (self.owner_of(fd)?, u32::MAX) } else { (PROCESS, lock.pid) };
        let owner = LockOwner::Record(owner);
        Ok((ino, handle(held)?, Lock { owner, kind: lock.kind, start, end, pid }))
    }

    /// The number of the open file description of `fd` as an owner of locks.
    fn owner_of(&mut self, fd: i32) -> Result<u64> {
        let file = self.table.get_mut(fd)?;
        if file.owner == PROCESS {
            self.locks.owners += 1;
            file.owner = self.locks.owners;
        }
        Ok(file.owner)
    }

    /// Whether locks go with the handle of `file`.
    pub(crate) fn has_locks(&self, file: &OpenFile) -> bool {
        file.flock.is_some() || file.owner != PROCESS || self.locks.at_server.contains(&file.ino)
    }

    /// `fd` is about to be closed: the locks that the process has on its file go, whatever other
    /// descriptors it has.
    #[inline]
    pub(crate) fn unlock_closing(&mut self, fd: i32) {
        if self.locks.any {
            self.unlock_file(fd);
        }
    }

    #[cold]
    fn unlock_file(&mut self, fd: i32) {
        let Ok(file) = self.table.get(fd) else { return };
        let (ino, held) = (file.ino, file.held);
        let Ok(handle) = handle(held) else { return };
        self.locks.own.retain(|lock| lock.ino != ino || lock.owner != PROCESS);
        if let Some(at) = self.locks.at_server.iter().position(|other| *other == ino) {
            self.locks.at_server.swap_remove(at);
            if let Some(locks) = self.fs.shared_locks() {
                let _ = locks.flush(ino, handle, PROCESS);
            }
        }
    }

    /// The last descriptor of `file` is closed: its own locks go. The server would let them go with
    /// the handle, but that is not waited for, and the next process finds none from here on.
    pub(crate) fn unlock_last(&mut self, file: &OpenFile) {
        if !self.locks.any || file.flock.is_none() && file.owner == PROCESS {
            return;
        }
        self.locks.own.retain(|lock| lock.owner != file.owner || file.owner == PROCESS);
        let (Ok(handle), Some(locks)) = (handle(file.held), self.fs.shared_locks()) else { return };
        let owners = [
            file.flock.map(|_| LockOwner::OpenFile),
            Some(LockOwner::Record(file.owner)).filter(|_| file.owner != PROCESS),
        ];
        for owner in owners.into_iter().flatten() {
            let all = Lock { owner, kind: None, start: 0, end: u64::MAX, pid: 0 };
            let _ = locks.setlk(file.ino, handle, &all);
        }
    }
}

fn handle(held: Held) -> Result<Handle> {
    match held {
        Held::File(handle) | Held::Directory(handle) => Ok(handle),
        Held::Nothing => Err(Errno::EBADF),
    }
}
