//! Locks at a server. A server that keeps none says so, and that is `ENOLCK`.

use atoll_transport::Transport;

use super::Client;
use super::call::error;
use crate::errno::{Errno, Result};
use crate::filesystem::FileSystem;
use crate::locks::{Lock, LockOwner, LockWait, Locks};
use crate::types::{Context, Handle, Ino, Timespec};
use crate::wire::files::FlushIn;
use crate::wire::header::OutHeader;
use crate::wire::locks::{FUSE_LK_FLOCK, FileLock, LK_END, LkIn, LkOut, code_of, kind_of};
use crate::wire::session::InterruptIn;
use crate::wire::{Fixed, Request};

/// How many requests for locks may wait at the same time: with those whose answer nobody needs they
/// leave room for others, in a lane of the usual 16 slots.
const WAITS: u32 = 8;
/// After so many looks for an answer the server is asked for something else, which finds out
/// whether it is there at all.
const LOOKS: u32 = 256;

const NOBODY: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };

fn no_locks(error: Errno) -> Errno {
    if error == Errno::EOPNOTSUPP { Errno::ENOLCK } else { error }
}

fn arguments(handle: Handle, lock: &Lock) -> LkIn {
    let kind = code_of(lock.kind);
    let (owner, lk_flags) = match lock.owner {
        LockOwner::Record(number) => (number, 0),
        LockOwner::OpenFile => (0, FUSE_LK_FLOCK),
    };
    let lk = FileLock { start: lock.start, end: lock.end.min(LK_END), kind, pid: lock.pid };
    LkIn { fh: handle.0, owner, lk, lk_flags, padding: 0 }
}

impl<T: Transport> Locks for Client<T> {
    fn getlk(&mut self, ino: Ino, handle: Handle, lock: &Lock) -> Result<Option<Lock>> {
        let request = Request::Getlk(arguments(handle, lock));
        self.call(&NOBODY, ino, &request, LkOut::SIZE, &mut []).map_err(no_locks)?;
        let FileLock { start, end, kind, pid } = LkOut::load(self.body()).lk;
        let Some(kind) = kind_of(kind).ok_or(Errno::EIO)? else { return Ok(None) };
        if start > end {
            return Err(Errno::EIO);
        }
        let end = if end >= LK_END { u64::MAX } else { end };
        Ok(Some(Lock { owner: lock.owner, kind: Some(kind), start, end, pid }))
    }

    fn setlk(&mut self, ino: Ino, handle: Handle, lock: &Lock) -> Result<()> {
        let request = Request::Setlk(arguments(handle, lock));
        self.simple(&NOBODY, ino, &request).map_err(no_locks)
    }

    fn setlkw(&mut self, ino: Ino, handle: Handle, lock: &Lock) -> Result<Option<LockWait>> {
        match self.setlk(ino, handle, lock) {
            Err(Errno::EAGAIN) if self.waits < WAITS => {}
            known => return known.map(|()| None),
        }
        let request = Request::Setlkw(arguments(handle, lock));
        let token = self.send(&NOBODY, ino, &request, 0).map_err(Errno::from)?;
        self.waits += 1;
        Ok(Some(LockWait { token, unique: self.unique, looks: 0 }))
    }

    fn waited(&mut self, mut wait: LockWait) -> Result<Option<LockWait>> {
        if !self.transport.ready(&wait.token).map_err(|_| Errno::EIO)? {
            wait.looks = wait.looks.wrapping_add(1);
            if wait.looks.is_multiple_of(LOOKS) {
                // An error is an answer too. Of a server that is lost the transport tells, here at
                // the latest: the lock may be granted as long as it does not.
                let _ = self.statfs(&NOBODY);
                self.transport.ready(&wait.token).map_err(|_| Errno::EIO)?;
            }
            return Ok(Some(wait));
        }
        self.waits -= 1;
        let mut message = [0; OutHeader::SIZE];
        let got = self.transport.receive(wait.token, &mut message, &mut []);
        let got = got.map_err(|_| Errno::EIO)?;
        let header = OutHeader::load(&message);
        if got.message != OutHeader::SIZE || header.unique != wait.unique {
            return Err(Errno::EIO);
        }
        if header.error == 0 { Ok(None) } else { Err(no_locks(error(header.error))) }
    }

    fn interrupt(&mut self, wait: &LockWait) {
        let request = Request::Interrupt(InterruptIn { unique: wait.unique });
        // Of a server that is lost `waited` tells.
        let _ = self.send_only(&NOBODY, Ino(0), &request);
    }

    fn flush(&mut self, ino: Ino, handle: Handle, owner: u64) -> Result<()> {
        let args = FlushIn { fh: handle.0, lock_owner: owner, ..FlushIn::default() };
        self.simple(&NOBODY, ino, &Request::Flush(args)).map_err(no_locks)
    }
}
