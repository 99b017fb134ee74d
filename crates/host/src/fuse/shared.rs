//! A FUSE mount that is one of several clients of a volume: one [`Session`], served to the kernel.
//!
//! # Choices
//!
//! - **The kernel caches nothing**: entries and attributes are valid for no time, and files are
//!   read and written directly (`FOPEN_DIRECT_IO`), so that what another client has done is seen by
//!   the next system call. Shared mappings are allowed still (`FUSE_DIRECT_IO_ALLOW_MMAP`, Linux
//!   6.6); their pages are the kernel's, and are not told of what other clients write. A program
//!   that asks by ioctl(2) gets the server's memory of the file to map instead (`identify::MAP`).
//! - **O_APPEND is the server's**: the kernel says with each write whether the file has the flag
//!   just then, and the end of the file is found where the write happens. Its own idea of the end,
//!   which may be old, is not used. What one write(2) appends is in one piece up to
//!   [`MAX_WRITE`] bytes.
//! - **Locks are the volume's** (`FUSE_POSIX_LOCKS`, `FUSE_FLOCK_LOCKS`). A request that waits
//!   holds up nobody: it is answered when the lock is granted, by the thread that freed it. A
//!   signal makes the kernel send INTERRUPT, upon which the waiting request is answered with
//!   `EINTR`: the program's handler runs, or it dies.
//! - **One thread** reads requests: the volume has one lock.

use std::collections::{HashMap, HashSet};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_vfs::server::{Caller, Identity, Server, ServerOptions};
use atoll_vfs::wire::attributes::RawAttr;
use atoll_vfs::wire::files::{IoctlIn, IoctlOut, OpenOut, WriteIn, WriteOut};
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::locks::{FUSE_LK_FLOCK, FileLock, LkIn, LkOut};
use atoll_vfs::wire::opcode::{
    FUSE_CREATE, FUSE_GETATTR, FUSE_INIT, FUSE_LINK, FUSE_LOOKUP, FUSE_MKDIR, FUSE_MKNOD,
    FUSE_OPEN, FUSE_SETATTR, FUSE_SYMLINK, FUSE_TMPFILE,
};
use atoll_vfs::wire::session::{Extensions, InitOut};
use atoll_vfs::wire::{Fixed, Message, REPLY_MAX, Request};
use atoll_vfs::{Context, Errno, FileSystem, Handle, Ino, Result};

use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::convert::now;
use super::identify;
use crate::server::revocable::Revocable;
use crate::server::{
    Holder, LockKind, LockOwner, LockRange, LockRequest, Session, WaitId, Waited, Wake,
};

/// The largest read or write of one request, in bytes.
pub const MAX_WRITE: u32 = 1 << 20;
/// What may come before the data of a request: the kernel wants this much room beside it.
const REQUEST_ROOM: usize = 4096;

// Features of linux/fuse.h that only a server with locks, direct files and set-ID rules offers.
const FUSE_POSIX_LOCKS: u64 = 1 << 1;
const FUSE_FLOCK_LOCKS: u64 = 1 << 10;
const FUSE_HANDLE_KILLPRIV_V2: u64 = 1 << 28;
const FUSE_DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
const FEATURES: u64 =
    FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS | FUSE_HANDLE_KILLPRIV_V2 | FUSE_DIRECT_IO_ALLOW_MMAP;
/// Features that need caches.
const CACHING: u64 = 1 << 13 | 1 << 14; // READDIRPLUS, and by the kernel's choice

const FOPEN_DIRECT_IO: u32 = 1;
const FUSE_WRITE_CACHE: u32 = 1;
const FUSE_IOCTL_DIR: u32 = 1 << 4;

/// How a session is served to the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct SharedOptions {
    /// Show every file as owned by this user and group, for a user namespace that knows no others.
    pub owner: Option<(u32, u32)>,
}

/// The requests of the kernel that wait for locks.
#[derive(Default)]
struct Pending {
    /// By the kernel's number of the request.
    waits: HashMap<u64, WaitId>,
    /// Answered before the call that queued them returned.
    early: HashSet<u64>,
}

/// What those who answer requests share.
struct Line {
    device: OwnedFd,
    pending: Mutex<Pending>,
}

impl Line {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a reply. A request that the kernel has given up meanwhile is no error.
    fn send(&self, message: &[u8], data: &[u8]) -> io::Result<()> {
        let parts = [IoSlice::new(message), IoSlice::new(data)];
        match nix::sys::uio::writev(self.device.as_fd(), &parts) {
            Ok(_) | Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENODEV) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Answers with nothing but success or an error.
    fn send_result(&self, unique: u64, result: Result<()>) -> io::Result<()> {
        let error = result.map_or_else(|error| -error.raw(), |()| 0);
        let mut message = [0; OutHeader::SIZE];
        OutHeader { len: OutHeader::SIZE as u32, error, unique }.store(&mut message);
        self.send(&message, &[])
    }

    /// Answers an ioctl(2) with success and `data`.
    fn send_ioctl(&self, unique: u64, data: &[u8]) -> io::Result<()> {
        let mut message = [0; OutHeader::SIZE + IoctlOut::SIZE];
        let len = (message.len() + data.len()) as u32;
        OutHeader { len, error: 0, unique }.store(&mut message);
        IoctlOut::default().store(&mut message[OutHeader::SIZE..]);
        self.send(&message, data)
    }

    fn send_body<T: Fixed>(&self, unique: u64, body: &T) -> io::Result<()> {
        let mut message = [0; REPLY_MAX];
        let len = OutHeader::SIZE + T::SIZE;
        OutHeader { len: len as u32, error: 0, unique }.store(&mut message);
        body.store(&mut message[OutHeader::SIZE..]);
        self.send(&message[..len], &[])
    }
}

/// A session on a mounted FUSE device, ready to be served.
pub struct SharedMount<F: FileSystem + Send + 'static> {
    session: Revocable<Session<F>>,
    server: Server,
    line: Arc<Line>,
    hang_up: Option<Arc<OwnedFd>>,
    owner: Option<(u32, u32)>,
    request: Vec<u8>,
    room: Vec<u8>,
}

impl<F: FileSystem + Send + 'static> SharedMount<F> {
    /// Answers the kernel's first request on `device`, which [`mount`](super::mount::mount) has
    /// mounted, here or in the process that sent it.
    ///
    /// # Errors
    /// When `device` is not mounted, or the kernel's FUSE is too old.
    pub fn start(
        session: Session<F>,
        device: OwnedFd,
        options: &SharedOptions,
    ) -> io::Result<SharedMount<F>> {
        let place = Revocable::default();
        place.begin(session);
        Self::begin(place, device, None, options)
    }

    /// The same for a session that may be revoked; serving ends then, and when `hang_up` can be
    /// read or is hung up.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn begin(
        session: Revocable<Session<F>>,
        device: OwnedFd,
        hang_up: Option<Arc<OwnedFd>>,
        options: &SharedOptions,
    ) -> io::Result<SharedMount<F>> {
        let mut mount = SharedMount {
            session,
            server: Server::new(ServerOptions {
                max_data: MAX_WRITE,
                extensions: Extensions::empty(),
            }),
            line: Arc::new(Line { device, pending: Mutex::default() }),
            hang_up,
            owner: options.owner,
            request: vec![0; MAX_WRITE as usize + REQUEST_ROOM],
            room: vec![0; MAX_WRITE as usize],
        };
        // A kernel of a later major version asks twice.
        for _ in 0..2 {
            if mount.server.agreed().is_none() && !mount.turn()? {
                return Err(io::ErrorKind::NotConnected.into());
            }
        }
        match mount.server.agreed() {
            Some(_) => Ok(mount),
            None => Err(io::Error::other("the kernel's FUSE is too old")),
        }
    }

    /// Serves until the file system is unmounted everywhere or its connection aborted. The session
    /// ends with it.
    ///
    /// # Errors
    /// When the device fails; what was not answered then fails in the programs that asked.
    pub fn run(mut self) -> io::Result<()> {
        while self.turn()? {}
        Ok(())
    }

    /// Answers one request; false when there will be no more.
    fn turn(&mut self) -> io::Result<bool> {
        use nix::errno::Errno;
        let mut request = std::mem::take(&mut self.request);
        let goes_on = loop {
            match self.wait() {
                Ok(true) => {}
                Ok(false) => break Ok(false),
                Err(error) => break Err(error),
            }
            match nix::unistd::read(self.line.device.as_fd(), &mut request) {
                Ok(len) => break self.answer(&request[..len]),
                // The request was interrupted before it could be read; or whoever passed the device
                // has made it non-blocking, and has read the request himself.
                Err(Errno::ENOENT | Errno::EINTR | Errno::EAGAIN) => {}
                Err(Errno::ENODEV) => break Ok(false),
                Err(errno) => break Err(errno.into()),
            }
        };
        self.request = request;
        goes_on
    }

    /// Waits for a request; false when the client has hung up.
    fn wait(&self) -> io::Result<bool> {
        let device = PollFd::new(self.line.device.as_fd(), PollFlags::POLLIN);
        let polled = match &self.hang_up {
            Some(hang_up) => {
                let mut watched = [device, PollFd::new(hang_up.as_fd(), PollFlags::POLLIN)];
                nix::poll::poll(&mut watched, PollTimeout::NONE)
                    .map(|_| !watched[1].any().unwrap_or(true))
            }
            None => nix::poll::poll(&mut [device], PollTimeout::NONE).map(|_| true),
        };
        match polled {
            Err(nix::errno::Errno::EINTR) => Ok(true),
            other => other.map_err(io::Error::from),
        }
    }

    fn answer(&mut self, request: &[u8]) -> io::Result<bool> {
        let place = self.session.clone();
        place.with(|session| self.answer_for(session, request)).unwrap_or(Ok(false))
    }

    fn answer_for(&mut self, session: &mut Session<F>, request: &[u8]) -> io::Result<bool> {
        let Ok(message) = Message::decode(request, &[]) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a FUSE request"));
        };
        let header = &message.header;
        let (unique, ino) = (header.unique, Ino(header.nodeid));
        match &message.request {
            Ok(Request::Flush(args)) => {
                let result = session.flush(ino, Handle(args.fh), args.lock_owner);
                self.line.send_result(unique, result)?;
            }
            Ok(Request::Getlk(args)) => match getlk(session, ino, args) {
                Ok(lk) => self.line.send_body(unique, &LkOut { lk })?,
                Err(error) => self.line.send_result(unique, Err(error))?,
            },
            Ok(Request::Setlk(args)) => {
                let result = lock_request(args)
                    .and_then(|wanted| session.setlk(ino, Handle(args.fh), &wanted));
                self.line.send_result(unique, result)?;
            }
            Ok(Request::Setlkw(args)) => self.setlkw(session, unique, ino, args)?,
            Ok(Request::Ioctl(args)) => {
                let argument = request.get(InHeader::SIZE + IoctlIn::SIZE..).unwrap_or_default();
                match self.ioctl(session, header, args, argument) {
                    Ok(answer) => self.line.send_ioctl(unique, &answer)?,
                    Err(error) => self.line.send_result(unique, Err(error))?,
                }
            }
            Ok(Request::Interrupt(args)) => {
                // Not answered. What no longer waits has its answer on the way.
                let waiting = self.line.pending().waits.get(&args.unique).copied();
                if let Some(id) = waiting {
                    session.cancel(id);
                }
            }
            Ok(Request::Write { args, data })
                if args.flags & libc::O_APPEND as u32 != 0
                    || args.write_flags & FUSE_WRITE_CACHE != 0 =>
            {
                let cx = Context { uid: header.uid, gid: header.gid, now: now() };
                match write(session, &cx, ino, args, data) {
                    Ok(len) => {
                        let body = WriteOut { size: len as u32, padding: 0 };
                        self.line.send_body(unique, &body)?;
                    }
                    Err(error) => self.line.send_result(unique, Err(error))?,
                }
            }
            other => {
                let last = matches!(other, Ok(Request::Destroy));
                self.pass(session, &message)?;
                return Ok(!last);
            }
        }
        Ok(true)
    }

    /// The answer to what programs ask of a descriptor. The kernel copies as many bytes of `argument`, and
    /// of the answer, as the request's number says.
    fn ioctl(
        &self,
        session: &mut Session<F>,
        header: &InHeader,
        args: &IoctlIn,
        argument: &[u8],
    ) -> Result<Vec<u8>> {
        let (ino, handle) = (Ino(header.nodeid), Handle(args.fh));
        if args.flags & FUSE_IOCTL_DIR != 0 {
            return Err(Errno::ENOTTY);
        }
        match args.cmd {
            identify::REQUEST if args.out_size as usize >= identify::Identity::SIZE => {
                let token = session.token(ino, handle)?.0;
                let session = session.id().0;
                let identity = identify::Identity { session, ino: ino.0, handle: handle.0, token };
                Ok(identity.to_bytes().to_vec())
            }
            identify::MAP => {
                let (offset, len) = identify::map_range(argument).ok_or(Errno::ENOTTY)?;
                let cx = Context { uid: header.uid, gid: header.gid, now: now() };
                if session.volume().address().is_none() {
                    return Err(Errno::ENOTTY);
                }
                let mapping = session.map(&cx, ino, handle, offset, len)?;
                let address = session.volume().address().unwrap_or_default();
                let answer = identify::map_answer(&mapping, address).ok_or(Errno::ENOTTY)?;
                Ok(answer.to_vec())
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    /// Has the codec's server answer, and adds to its reply what is this mount's own.
    fn pass(&mut self, session: &mut Session<F>, message: &Message<'_>) -> io::Result<()> {
        let mut reply = [0; REPLY_MAX];
        let caller = Caller { identity: Identity::FromHeader, now: now() };
        let answered = self.server.answer(session, &caller, message, &mut reply, &mut self.room);
        let Ok(answered) = answered else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a FUSE request"));
        };
        if answered.message == 0 {
            return Ok(());
        }
        let reply = &mut reply[..answered.message];
        if OutHeader::load(reply).error == 0 {
            self.amend(message, reply);
        }
        self.line.send(reply, &self.room[..answered.data])
    }

    fn amend(&self, message: &Message<'_>, reply: &mut [u8]) {
        let end = reply.len();
        match message.header.opcode {
            FUSE_INIT => {
                let Ok(Request::Init(args)) = message.request else { return };
                let body = &mut reply[OutHeader::SIZE..];
                let mut out = InitOut::load(body);
                let features = (out.features() | args.features() & FEATURES) & !CACHING;
                (out.flags, out.flags2) = (features as u32, (features >> 32) as u32);
                out.store(body);
            }
            FUSE_OPEN | FUSE_CREATE | FUSE_TMPFILE => {
                let body = &mut reply[end - OpenOut::SIZE..];
                let mut out = OpenOut::load(body);
                out.open_flags |= FOPEN_DIRECT_IO;
                out.store(body);
            }
            _ => {}
        }
        let attr_ends = match message.header.opcode {
            FUSE_LOOKUP | FUSE_MKNOD | FUSE_MKDIR | FUSE_SYMLINK | FUSE_LINK | FUSE_GETATTR
            | FUSE_SETATTR => end,
            FUSE_CREATE | FUSE_TMPFILE => end - OpenOut::SIZE,
            _ => return,
        };
        if let Some((uid, gid)) = self.owner {
            let place = &mut reply[attr_ends - RawAttr::SIZE..attr_ends];
            let mut attr = RawAttr::load(place);
            (attr.uid, attr.gid) = (uid, gid);
            attr.store(place);
        }
    }

    fn setlkw(
        &self,
        session: &mut Session<F>,
        unique: u64,
        ino: Ino,
        args: &LkIn,
    ) -> io::Result<()> {
        let line = Arc::clone(&self.line);
        let wake: Wake = Box::new(move |outcome| {
            let mut pending = line.pending();
            if pending.waits.remove(&unique).is_none() {
                pending.early.insert(unique);
            }
            drop(pending);
            // An error of the device is met by the thread that reads it.
            let _ = line.send_result(unique, outcome);
        });
        let result = lock_request(args)
            .and_then(|wanted| session.setlkw(ino, Handle(args.fh), &wanted, wake));
        match result {
            Ok(Waited::Queued(id)) => {
                let mut pending = self.line.pending();
                if !pending.early.remove(&unique) {
                    pending.waits.insert(unique, id);
                }
                Ok(())
            }
            Ok(Waited::Granted) => self.line.send_result(unique, Ok(())),
            Err(error) => self.line.send_result(unique, Err(error)),
        }
    }
}

fn write<F: FileSystem + Send>(
    session: &mut Session<F>,
    cx: &Context,
    ino: Ino,
    args: &WriteIn,
    data: &[u8],
) -> Result<usize> {
    let handle = Handle(args.fh);
    let written = if args.write_flags & FUSE_WRITE_CACHE != 0 {
        session.write_back(cx, ino, handle, args.offset, data)?
    } else {
        session.append(cx, ino, handle, data)?
    };
    Ok(written.len)
}

fn getlk<F: FileSystem + Send>(
    session: &mut Session<F>,
    ino: Ino,
    args: &LkIn,
) -> Result<FileLock> {
    let wanted = lock_request(args)?;
    Ok(match session.getlk(ino, Handle(args.fh), &wanted)? {
        Some(Holder { kind, range, pid }) => FileLock {
            start: range.start,
            end: range.end.min(i64::MAX as u64),
            kind: match kind {
                LockKind::Shared => libc::F_RDLCK as u32,
                LockKind::Exclusive => libc::F_WRLCK as u32,
            },
            pid,
        },
        None => FileLock { kind: libc::F_UNLCK as u32, ..args.lk },
    })
}

fn lock_request(args: &LkIn) -> Result<LockRequest> {
    let kind = match args.lk.kind as i32 {
        libc::F_RDLCK => Some(LockKind::Shared),
        libc::F_WRLCK => Some(LockKind::Exclusive),
        libc::F_UNLCK => None,
        _ => return Err(Errno::EINVAL),
    };
    let owner = if args.lk_flags & FUSE_LK_FLOCK != 0 {
        LockOwner::OpenFile
    } else {
        LockOwner::Process(args.owner)
    };
    // The kernel's largest offset stands for the end of the file wherever it will be.
    let end = if args.lk.end >= i64::MAX as u64 { u64::MAX } else { args.lk.end };
    let range = LockRange { start: args.lk.start, end };
    Ok(LockRequest { owner, range, kind, pid: args.lk.pid })
}
