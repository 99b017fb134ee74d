//! Requests for locks, of kernels and of programs alike. One that waits is answered when the lock
//! is granted, by the thread that freed it; INTERRUPT and the session's end have it answered with
//! `EINTR`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_vfs::wire::header::OutHeader;
use atoll_vfs::wire::locks::{
    F_UNLCK, FUSE_LK_FLOCK, FileLock, LK_END, LkIn, LkOut, code_of, kind_of,
};
use atoll_vfs::wire::{Fixed, Request};
use atoll_vfs::{Errno, FileSystem, Handle, Ino, Result};

use crate::locks::{Holder, LockOwner, LockRange, LockRequest, WaitId, Waited};
use crate::route::answer::Later;
use crate::route::wait::Wait;
use crate::session::Session;

/// The requests of a client that wait for locks, by the client's number of the request: at most as
/// many as its session may have locks. The wait has its own number once it is queued.
#[derive(Clone, Default)]
pub(crate) struct LockRequests(Arc<Mutex<HashMap<u64, Option<WaitId>>>>);

impl LockRequests {
    /// Whether `request` is one that [`answer`](Self::answer) answers.
    #[inline]
    pub fn takes(request: &Request<'_>) -> bool {
        matches!(
            request,
            Request::Getlk(_) | Request::Setlk(_) | Request::Setlkw(_) | Request::Flush(_)
        )
    }

    /// Carries out a request for a lock. Returns the length of the answer's body, which it writes;
    /// what the answer waits for goes into `later`.
    pub fn answer<F: FileSystem + Send>(
        &self,
        session: &mut Session<F>,
        (unique, ino): (u64, Ino),
        request: &Request<'_>,
        reply: &mut [u8],
        later: &mut Later,
    ) -> Result<usize> {
        match request {
            Request::Flush(args) => session.flush(ino, Handle(args.fh), args.lock_owner)?,
            Request::Getlk(args) => {
                let lk = getlk(session, ino, args)?;
                LkOut { lk }.store(&mut reply[OutHeader::SIZE..]);
                return Ok(LkOut::SIZE);
            }
            Request::Setlk(args) => session.setlk(ino, Handle(args.fh), &wanted(args)?)?,
            Request::Setlkw(args) => later.lock = self.wait(session, unique, ino, args)?,
            _ => return Err(Errno::ENOSYS),
        }
        Ok(0)
    }

    /// Gives up the request that the client numbered `unique`. One that waits no longer has its
    /// answer on the way.
    pub fn interrupt<F: FileSystem + Send>(&self, session: &mut Session<F>, unique: u64) {
        let waiting = self.table().get(&unique).copied().flatten();
        if let Some(id) = waiting {
            session.cancel(id);
        }
    }

    /// Takes a lock; returns what it waits for, if it does.
    fn wait<F: FileSystem + Send>(
        &self,
        session: &mut Session<F>,
        unique: u64,
        ino: Ino,
        args: &LkIn,
    ) -> Result<Option<Arc<Wait>>> {
        let wanted = wanted(args)?;
        match self.table().entry(unique) {
            // A client that numbers two alike could have neither given up.
            Entry::Occupied(_) => return Err(Errno::EINVAL),
            Entry::Vacant(place) => place.insert(None),
        };
        let wait = Wait::new(None);
        let (requests, one) = (self.clone(), wait.more());
        let wake = move |outcome| {
            requests.table().remove(&unique);
            one.come(outcome);
        };
        let waited = session.setlkw(ino, Handle(args.fh), &wanted, Box::new(wake));
        let mut table = self.table();
        match waited {
            Ok(Waited::Queued(id)) => {
                // It is not there any more if it was granted before this thread came here.
                if let Some(place) = table.get_mut(&unique) {
                    *place = Some(id);
                }
                Ok(Some(wait))
            }
            known => {
                table.remove(&unique);
                known.map(|_| None)
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, Option<WaitId>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn getlk<F: FileSystem + Send>(
    session: &mut Session<F>,
    ino: Ino,
    args: &LkIn,
) -> Result<FileLock> {
    Ok(match session.getlk(ino, Handle(args.fh), &wanted(args)?)? {
        Some(Holder { kind, range, pid }) => FileLock {
            start: range.start,
            end: range.end.min(LK_END),
            kind: code_of(Some(kind)),
            pid,
        },
        None => FileLock { kind: F_UNLCK, ..args.lk },
    })
}

fn wanted(args: &LkIn) -> Result<LockRequest> {
    let kind = kind_of(args.lk.kind).ok_or(Errno::EINVAL)?;
    let owner = if args.lk_flags & FUSE_LK_FLOCK != 0 {
        LockOwner::OpenFile
    } else {
        LockOwner::Process(args.owner)
    };
    let end = if args.lk.end >= LK_END { u64::MAX } else { args.lk.end };
    // No file has such a byte, and no answer could name it.
    if args.lk.start > LK_END {
        return Err(Errno::EINVAL);
    }
    let range = LockRange { start: args.lk.start, end };
    Ok(LockRequest { owner, range, kind, pid: args.lk.pid })
}

#[cfg(test)]
mod tests {
    use atoll_vfs::model::ModelFs;
    use atoll_vfs::wire::REPLY_MAX;
    use atoll_vfs::wire::locks::F_WRLCK;
    use atoll_vfs::{Context, Name, OpenFlags, Timespec};

    use super::*;
    use crate::{Access, Credentials};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };

    fn ask(
        requests: &LockRequests,
        session: &mut Session<ModelFs>,
        of: (u64, Ino),
        request: &Request<'_>,
    ) -> (Result<usize>, bool) {
        assert!(LockRequests::takes(request));
        let (mut reply, mut later) = ([0; REPLY_MAX], Later::default());
        let answered = requests.answer(session, of, request, &mut reply, &mut later);
        (answered, later.lock.is_some())
    }

    #[test]
    fn a_lock_begins_where_files_have_bytes() {
        let at = |start| {
            let lk = FileLock { start, end: u64::MAX, kind: F_WRLCK, pid: 1 };
            wanted(&LkIn { lk, ..LkIn::default() }).map(|wanted| wanted.range)
        };
        assert_eq!(at(LK_END), Ok(LockRange { start: LK_END, end: u64::MAX }));
        assert_eq!(at(LK_END + 1), Err(Errno::EINVAL));
        assert_eq!(at(u64::MAX), Err(Errno::EINVAL));
    }

    #[test]
    fn what_a_client_has_waiting_is_kept_no_longer() {
        let volume = crate::testing::volume();
        let session = || volume.session(Credentials::default(), Access::default()).unwrap();
        let (mut holder, mut client) = (session(), session());
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let name = Name::new(b"f").unwrap();
        let (attr, held) = holder.create(&CX, Ino::ROOT, name, 0o600, flags).unwrap();
        let ino = client.lookup(&CX, Ino::ROOT, name).unwrap().ino;
        let handle = client.open(&CX, ino, flags).unwrap();
        let lock = |handle: Handle, at, kind| LkIn {
            fh: handle.0,
            lk: FileLock { start: at, end: at, kind, pid: 1 },
            ..LkIn::default()
        };
        let (ours, requests) = (LockRequests::default(), LockRequests::default());
        for at in 0..3 {
            let request = Request::Setlk(lock(held, at, F_WRLCK));
            assert_eq!(ask(&ours, &mut holder, (at, attr.ino), &request), (Ok(0), false));
        }
        let wanted = |at| Request::Setlkw(lock(handle, at, F_WRLCK));
        assert_eq!(ask(&requests, &mut client, (7, ino), &wanted(0)), (Ok(0), true));
        // A second of the same number could take the first one's place in the table.
        let twice = ask(&requests, &mut client, (7, ino), &wanted(1));
        assert_eq!(twice, (Err(Errno::EINVAL), false));
        assert_eq!(ask(&requests, &mut client, (8, ino), &wanted(1)), (Ok(0), true));
        assert_eq!(ask(&requests, &mut client, (9, ino), &wanted(2)), (Ok(0), true));
        assert_eq!(requests.table().len(), 3);
        // Granted, given up, ended with its session; and what never waited.
        let free = Request::Setlk(lock(held, 0, F_UNLCK));
        assert_eq!(ask(&ours, &mut holder, (5, attr.ino), &free), (Ok(0), false));
        assert_eq!(requests.table().len(), 2);
        requests.interrupt(&mut client, 8);
        requests.interrupt(&mut client, 8);
        assert_eq!(requests.table().len(), 1);
        assert_eq!(ask(&requests, &mut client, (8, ino), &wanted(0)), (Ok(0), false));
        let refused = Request::Setlkw(lock(Handle(99), 0, F_WRLCK));
        assert_eq!(ask(&requests, &mut client, (8, ino), &refused).0, Err(Errno::EBADF));
        drop(client);
        assert!(requests.table().is_empty());
    }
}
