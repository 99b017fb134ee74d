//! A FUSE mount: one [`Session`] of a volume, served to the kernel. There may be other clients ([`Others`]).
//!
//! # Choices
//!
//! - **The kernel caches what it can be told to forget**: attributes, and the pages of files. When another
//!   client changes them the kernel is notified before that client's call returns
//!   (`server/caches.rs`), so that the next system call sees it. Names are looked up each
//!   time, unless no other client changes them. Files opened to be read only go through the page cache, all others are read and written
//!   directly (`FOPEN_DIRECT_IO`). Shared mappings are allowed (`FUSE_DIRECT_IO_ALLOW_MMAP`, Linux 6.6):
//!   what other clients write is seen in them, what is stored into them is seen by others when the kernel
//!   writes it back. A program that asks by ioctl(2) gets the server's memory of the file to map instead
//!   (`identify::MAP`).
//! - **Where there is no other client the kernel's caches are kept for ever**: names, that there are none,
//!   attributes, pages, listings, link targets. All files go through the page cache.
//! - **No write-back cache.** A write(2) that has returned has reached the file system, so that it
//!   survives the end of this process; dirty pages in the kernel would be lost with it. Stores
//!   into a shared mapping reach the file system at msync(2), munmap(2) or exit, as POSIX has it.
//! - **The serving thread waits for no other mount**: an answer that has to is sent by whoever
//!   ends the wait. What a notification may wait for, reads for the page cache and its writing back, is
//!   answered at once. So two programs that read one page through the caches of two mounts, while a
//!   third is writing it, may see the change in either order.
//! - **O_APPEND is the server's**: the kernel says with each write whether the file has the flag
//!   just then, and the end of the file is found where the write happens. Its own idea of the end,
//!   which may be old, is not used. What one write(2) appends is in one piece up to
//!   [`MAX_WRITE`] bytes.
//! - **Locks are the volume's** (`FUSE_POSIX_LOCKS`, `FUSE_FLOCK_LOCKS`). A request that waits
//!   holds up nobody: it is answered when the lock is granted, by the thread that freed it. A
//!   signal makes the kernel send INTERRUPT, upon which the waiting request is answered with
//!   `EINTR`: the program's handler runs, or it dies. Where no other client takes any the kernel keeps
//!   them itself, and closing a file needs no answer (FLUSH is `ENOSYS`).
//! - **What never changes is opened without a word** ([`SharedOptions::unchanging`]): OPEN and OPENDIR are
//!   `ENOSYS`, upon which the kernel asks no more, and names files by their inodes alone. Where files
//!   are written it cannot be so: it is by the answer to OPEN that O_APPEND passes the page cache by,
//!   and RELEASE says when an unlinked file goes.
//! - **Syncs are the volume's too** (`server/syncs.rs`): the thread that serves goes on while the device
//!   flushes, and the request is answered by who ends the sync. After a write through the page cache to an O_DSYNC
//!   file the kernel asks for one; after a direct write it does not, and the write is answered when it is durable.
//! - **One thread** reads requests: the volume has one lock.

use std::collections::{HashMap, HashSet};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_vfs::server::{Caller, Identity, Server, ServerOptions};
use atoll_vfs::wire::attributes::{AttrOut, EntryOut, FATTR_SIZE, RawAttr};
use atoll_vfs::wire::files::{IoctlIn, IoctlOut, O_NOATIME, OpenOut, WriteIn, WriteOut};
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::locks::{FUSE_LK_FLOCK, FileLock, LkIn, LkOut};
use atoll_vfs::wire::opcode::{
    FUSE_CREATE, FUSE_GETATTR, FUSE_INIT, FUSE_LINK, FUSE_LOOKUP, FUSE_MKDIR, FUSE_MKNOD,
    FUSE_OPEN, FUSE_OPENDIR, FUSE_RELEASE, FUSE_SETATTR, FUSE_SYMLINK, FUSE_TMPFILE,
};
use atoll_vfs::wire::session::{Extensions, InitOut};
use atoll_vfs::wire::{Fixed, Message, REPLY_MAX, Request};
use atoll_vfs::{Context, Errno, FileSystem, Handle, Ino, Result};

use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::identify;
use super::notices::{self, Told};
use crate::server::machine::now;
use crate::server::tasks::ThreadBell;
use crate::shm::Doorbell;
use crate::spin::Spin;
use atoll_server::caches::{KernelCache, Lends};
use atoll_server::gate::{Cut, Gate, Mount, Next, Ticket};
use atoll_server::host::Bell;
use atoll_server::revocable::Revocable;
use atoll_server::session::Lent;
use atoll_server::syncs::Ask;
use atoll_server::{
    Holder, LockKind, LockOwner, LockRange, LockRequest, Session, WaitId, Waited, Wake,
};

/// The largest read or write of one request, in bytes.
pub const MAX_WRITE: u32 = 1 << 20;
/// What may come before the data of a request: the kernel wants this much room beside it.
const REQUEST_ROOM: usize = 4096;

// Features of linux/fuse.h that only a server with locks, direct files and set-ID rules offers.
const FUSE_POSIX_LOCKS: u64 = 1 << 1;
const FUSE_FLOCK_LOCKS: u64 = 1 << 10;
const LOCKS: u64 = FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS;
const FUSE_ASYNC_DIO: u64 = 1 << 15;
const FUSE_HANDLE_KILLPRIV_V2: u64 = 1 << 28;
const FUSE_DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
const FEATURES: u64 = LOCKS | FUSE_HANDLE_KILLPRIV_V2 | FUSE_DIRECT_IO_ALLOW_MMAP | FORGETTING;
/// The same for the only client.
const SOLE_FEATURES: u64 = FUSE_HANDLE_KILLPRIV_V2 | FUSE_ASYNC_DIO | FUSE_CACHE_SYMLINKS;
/// Offered by a kernel that can do without OPEN and without OPENDIR.
const OPENS_ALONE: u64 = 1 << 17 | 1 << 24;
/// Features that need names to be kept.
const CACHING: u64 = 1 << 13 | 1 << 14; // READDIRPLUS, and by the kernel's choice

/// Whoever reads through the page cache asks for the size first where it was told to forget that, and pages
/// go when the file is seen to have changed, as do those that sendfile(2) has read. The targets of symbolic
/// links, which never change, are kept, unless following one is to be counted.
const FORGETTING: u64 = FUSE_AUTO_INVAL_DATA | FUSE_CACHE_SYMLINKS;
const FUSE_AUTO_INVAL_DATA: u64 = 1 << 12;
const FUSE_CACHE_SYMLINKS: u64 = 1 << 23;

const FOPEN_DIRECT_IO: u32 = 1;
const FOPEN_KEEP_CACHE: u32 = 1 << 1;
const FOPEN_CACHE_DIR: u32 = 1 << 3;
const FUSE_READ_LOCKOWNER: u32 = 1 << 1;
/// How long the kernel relies on attributes, in seconds. Changes are told: this only bounds what the kernel
/// itself gets wrong, which takes the attributes of a directory from an answer that it has
/// overtaken by a change of its own.
const ATTR_VALID: u64 = 1;
/// How long the kernel relies on what only it changes, or nobody, in seconds: as long as it likes.
const FOR_EVER: u64 = 365 * 24 * 60 * 60;
/// How long requests are still answered, with an error, so that a notification that waits for them ends.
const DRAIN: Duration = Duration::from_secs(2);
/// The pause before the kernel is told once more of an inode that it does not know yet; the next is twice as
/// long, up to the longest.
const RETRY: Duration = Duration::from_micros(20);
const RETRY_MAX: Duration = Duration::from_millis(5);
const FUSE_WRITE_CACHE: u32 = 1;
const FUSE_IOCTL_DIR: u32 = 1 << 4;

/// Who else uses the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Others {
    /// Anybody.
    #[default]
    Any,
    /// Programs by rings, which change no names and take no locks: the kernel may remember names, and that there
    /// are none, and keeps the locks.
    Rings,
    /// Nobody: the kernel may rely on all that it learns.
    None,
}

/// How a session is served to the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct SharedOptions {
    /// Show every file as owned by this user and group, for a user namespace that knows no others.
    pub owner: Option<(u32, u32)>,
    /// Who uses the volume beside this mount.
    pub others: Others,
    /// Nothing of the volume changes while it is mounted: the kernel may rely on all that it learns, and
    /// opens and closes by itself.
    pub unchanging: bool,
    /// How long to look for the next request before sleeping, which takes a processor as long.
    pub spin: Duration,
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
    /// The mount is to end: said for a thread that is awake, and for one that sleeps.
    fenced: AtomicBool,
    fence: Doorbell,
    /// Rung when the notifier has something to tell.
    told: ThreadBell,
    pending: Mutex<Pending>,
}

impl Bell for Line {
    fn ring(&self) {
        self.told.ring();
    }
}

impl Mount for Line {
    fn fence(&self) {
        self.fenced.store(true, Ordering::Relaxed);
        self.fence.ring();
    }
}

impl Line {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a reply. A request that the kernel has given up meanwhile is no error; then this is false.
    fn send(&self, message: &[u8], data: &[u8]) -> io::Result<bool> {
        let parts = [IoSlice::new(message), IoSlice::new(data)];
        match nix::sys::uio::writev(self.device.as_fd(), &parts) {
            Ok(_) => Ok(true),
            Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENODEV) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Answers with nothing but success or an error.
    fn send_result(&self, unique: u64, result: Result<()>) -> io::Result<()> {
        let error = result.map_or_else(|error| -error.raw(), |()| 0);
        let mut message = [0; OutHeader::SIZE];
        OutHeader { len: OutHeader::SIZE as u32, error, unique }.store(&mut message);
        self.send(&message, &[]).map(drop)
    }

    fn send_body<T: Fixed>(&self, unique: u64, body: &T) -> io::Result<()> {
        let mut message = [0; REPLY_MAX];
        let len = OutHeader::SIZE + T::SIZE;
        OutHeader { len: len as u32, error: 0, unique }.store(&mut message);
        body.store(&mut message[OutHeader::SIZE..]);
        self.send(&message[..len], &[]).map(drop)
    }
}

/// A session on a mounted FUSE device, ready to be served.
pub struct SharedMount<F: FileSystem + Send + 'static> {
    session: Revocable<Session<F>>,
    server: Server,
    line: Arc<Line>,
    hang_up: Option<Arc<OwnedFd>>,
    owner: Option<(u32, u32)>,
    others: Others,
    unchanging: bool,
    /// For how many seconds the kernel may rely on what it learns, whatever it is told.
    valid: u64,
    request: Vec<u8>,
    room: Vec<u8>,
    /// Writes notifications until the session ends.
    notifier: Option<JoinHandle<()>>,
    /// What the kernel has been lent.
    cache: Arc<KernelCache>,
    gate: Arc<Gate>,
    requests: Arc<AtomicU64>,
    spin: Spin,
    /// How long it looks for the next request before it sleeps.
    limit: Duration,
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
        let fence = Doorbell::new()?;
        let line = Arc::new(Line {
            device,
            fenced: AtomicBool::new(false),
            fence,
            told: ThreadBell::default(),
            pending: Mutex::default(),
        });
        let mount = Arc::<Line>::clone(&line);
        let begun = session.with(|session| {
            session.carried();
            if options.others == Others::Rings {
                session.offer();
            }
            // See `caches` for why not everybody's.
            let uid = session.peer().uid;
            let lends = match options.others {
                Others::None => Lends::All,
                _ if uid == 0 || uid == nix::unistd::geteuid().as_raw() => Lends::Pages,
                _ => Lends::Attributes,
            };
            let cache = session
                .begin_cache(lends, mount)
                .map_err(|error| io::Error::from_raw_os_error(error.raw()))?;
            Ok::<_, io::Error>((cache, Arc::clone(session.volume().gate())))
        });
        let (cache, gate) = begun.ok_or(io::ErrorKind::NotConnected)??;
        let (told, way) = (Arc::clone(&cache), Arc::clone(&line));
        let notifier = std::thread::Builder::new()
            .name("notifier".to_owned())
            .spawn(move || notify(&told, &way))?;
        keep(&gate)?;
        let for_ever = options.unchanging || options.others == Others::None;
        let valid = if for_ever { FOR_EVER } else { 0 };
        let mut mount = SharedMount {
            session,
            server: Server::new(ServerOptions {
                max_data: MAX_WRITE,
                extensions: Extensions::empty(),
                valid,
            }),
            line,
            notifier: Some(notifier),
            cache,
            gate,
            requests: Arc::default(),
            spin: Spin::of_calls(),
            limit: options.spin,
            hang_up,
            owner: options.owner,
            others: options.others,
            unchanging: options.unchanging,
            valid,
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

    /// How many requests the kernel has sent, which goes on counting while it is served.
    pub fn requests(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.requests)
    }

    /// Serves until the file system is unmounted everywhere or its connection aborted. The session
    /// ends with it.
    ///
    /// # Errors
    /// When the device fails; what was not answered then fails in the programs that asked.
    pub fn run(mut self) -> io::Result<()> {
        let result = loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.session.revoke();
        self.drain();
        result
    }

    /// Lets the notifier end, which may wait in the kernel for requests that nobody would answer.
    fn drain(&mut self) {
        let until = Instant::now() + DRAIN;
        let Some(notifier) = self.notifier.take() else { return };
        while !notifier.is_finished() {
            if Instant::now() > until {
                log::warn!("the kernel keeps a thread of a mount that has ended");
                self.cache.give_up();
                return;
            }
            let mut device = [PollFd::new(self.line.device.as_fd(), PollFlags::POLLIN)];
            let asked = nix::poll::poll(&mut device, PollTimeout::from(2u8));
            if asked == Ok(1)
                && device[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN))
                && let Ok(len) = nix::unistd::read(self.line.device.as_fd(), &mut self.request)
                && let Ok(message) = Message::decode(&self.request[..len], &[])
                && message.request.as_ref().map_or(true, Request::is_answered)
            {
                let _ = self.line.send_result(message.header.unique, Err(Errno::EIO));
            }
        }
        let _ = notifier.join();
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
                Ok(len) => {
                    self.requests.fetch_add(1, Ordering::Relaxed);
                    break self.answer(&request[..len]);
                }
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

    /// Waits for a request; false when the client has hung up, or the mount is to end.
    fn wait(&mut self) -> io::Result<bool> {
        let SharedMount { line, spin, limit, hang_up, .. } = self;
        let device = || PollFd::new(line.device.as_fd(), PollFlags::POLLIN);
        if line.fenced.load(Ordering::Relaxed) {
            return Ok(false);
        }
        // A program that asks for one thing after the other finds this thread awake. Who hangs up revokes the
        // session as well, so that it need not be looked for here.
        spin.begin();
        while !limit.is_zero() {
            if nix::poll::poll(&mut [device()], PollTimeout::ZERO) == Ok(1) {
                return Ok(true);
            }
            if !spin.turn(*limit) {
                break;
            }
        }
        let fence = || PollFd::new(line.fence.as_fd(), PollFlags::POLLIN);
        let ends = |watched: &[PollFd<'_>]| watched.iter().any(|fd| fd.any().unwrap_or(true));
        let polled = match hang_up {
            Some(hang_up) => {
                let hang_up = PollFd::new(hang_up.as_fd(), PollFlags::POLLIN);
                let mut watched = [device(), fence(), hang_up];
                nix::poll::poll(&mut watched, PollTimeout::NONE).map(|_| !ends(&watched[1..]))
            }
            None => {
                let mut watched = [device(), fence()];
                nix::poll::poll(&mut watched, PollTimeout::NONE).map(|_| !ends(&watched[1..]))
            }
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
        // What was answered at once left it.
        let _ = session.take_needs();
        if let Ok(request) = &message.request
            && let Some(ask) = Ask::of(request)
            && session.volume().has_syncer()
        {
            self.sync(session, header, ask)?;
            return Ok(true);
        }
        match &message.request {
            // It is asked for the sake of locks, and once.
            Ok(Request::Flush(_)) if self.others != Others::Any => {
                self.line.send_result(unique, Err(Errno::ENOSYS))?;
            }
            Ok(Request::Open(_) | Request::Opendir(_)) if session.opens_nothing() => {
                self.line.send_result(unique, Err(Errno::ENOSYS))?;
            }
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
                    Ok(answer) => {
                        let mut reply = [0; OutHeader::SIZE + IoctlOut::SIZE];
                        let len = (reply.len() + answer.len()) as u32;
                        OutHeader { len, error: 0, unique }.store(&mut reply);
                        IoctlOut::default().store(&mut reply[OutHeader::SIZE..]);
                        // What is mapped from now on, no kernel may have in its cache.
                        self.give((None, session.take_needs()), &mut reply, &answer)?;
                    }
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
                if args.flags & (libc::O_APPEND | libc::O_DSYNC) as u32 != 0
                    || args.write_flags & FUSE_WRITE_CACHE != 0 =>
            {
                let cx = Context { uid: header.uid, gid: header.gid, now: now() };
                match write(session, &cx, ino, args, data) {
                    Ok(len) => self.wrote(session, unique, args, len)?,
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

    /// Has a sync made, and answers when it is done: the thread that serves goes on.
    fn sync(&self, session: &mut Session<F>, header: &InHeader, ask: Ask) -> io::Result<()> {
        let unique = header.unique;
        let cx = Context { uid: header.uid, gid: header.gid, now: now() };
        match session.prepare_sync(&cx, Ino(header.nodeid), ask) {
            Ok(data_only) => self.after_sync(session, data_only, move |line, outcome| {
                line.send_result(unique, outcome)
            }),
            Err(error) => self.line.send_result(unique, Err(error))?,
        }
        Ok(())
    }

    /// Has a sync made, and then the answer sent, when nothing else is in its way.
    fn after_sync(
        &self,
        session: &mut Session<F>,
        data_only: bool,
        answer: impl FnOnce(&Line, Result<()>) -> io::Result<()> + Send + 'static,
    ) {
        let (line, gate, ticket) =
            (Arc::clone(&self.line), Arc::clone(&self.gate), session.take_needs());
        let then = move |outcome| {
            // An error of the device is met by the thread that reads it.
            let answer = move || drop(answer(&line, outcome));
            match ticket {
                Some(ticket) => gate.after(ticket, answer),
                None => answer(),
            }
        };
        session.volume().sync_later(data_only, Box::new(then));
    }

    /// Answers a write of `len` bytes.
    fn wrote(
        &self,
        session: &mut Session<F>,
        unique: u64,
        args: &WriteIn,
        len: usize,
    ) -> io::Result<()> {
        let body = WriteOut { size: len as u32, padding: 0 };
        let flags = args.flags as i32;
        // The kernel has a lock on what it writes back.
        let at_once = args.write_flags & FUSE_WRITE_CACHE != 0;
        let direct = self.others != Others::None || flags & libc::O_DIRECT != 0;
        if direct && !at_once && flags & libc::O_DSYNC != 0 {
            let data_only = flags & libc::O_SYNC != libc::O_SYNC;
            self.after_sync(session, data_only, move |line, outcome| match outcome {
                Ok(()) => line.send_body(unique, &body),
                Err(error) => line.send_result(unique, Err(error)),
            });
            return Ok(());
        }
        let mut reply = [0; OutHeader::SIZE + WriteOut::SIZE];
        let len = reply.len() as u32;
        OutHeader { len, error: 0, unique }.store(&mut reply);
        body.store(&mut reply[OutHeader::SIZE..]);
        let needs = session.take_needs().filter(|_| !at_once);
        self.give((None, needs), &mut reply, &[])
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
                // What does not change the kernel may map as well.
                if session.volume().address().is_none() || self.unchanging {
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
        // The kernel says whose lock it is with each read for a program.
        let for_cache = matches!(&message.request,
            Ok(Request::Read(args)) if args.read_flags & FUSE_READ_LOCKOWNER == 0);
        session.reads_for_cache(for_cache);
        session.reads_without_trace(match &message.request {
            Ok(Request::Read(args) | Request::Readdir(args) | Request::Readdirplus(args)) => {
                args.flags & O_NOATIME != 0
            }
            _ => false,
        });
        if let Ok(Request::Init(args)) = &message.request
            && self.unchanging
            && args.features() & OPENS_ALONE == OPENS_ALONE
        {
            session.open_nothing();
        }
        if let Ok(Request::Release(args)) = &message.request {
            self.cache.closed(args.fh);
        }
        let answered = self.server.answer(session, &caller, message, &mut reply, &mut self.room);
        let Ok(answered) = answered else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a FUSE request"));
        };
        if answered.message == 0 {
            return Ok(());
        }
        let header = OutHeader::load(&reply);
        let is_missing = header.error == -Errno::ENOENT.raw();
        if self.others != Others::Any && is_missing && message.header.opcode == FUSE_LOOKUP {
            let len = OutHeader::SIZE + EntryOut::SIZE;
            OutHeader { len: len as u32, error: 0, ..header }.store(&mut reply);
            // Inode number 0: there is no such name.
            let none = EntryOut { entry_valid: FOR_EVER, ..EntryOut::default() };
            none.store(&mut reply[OutHeader::SIZE..]);
            return self.give((None, session.take_needs()), &mut reply[..len], &[]);
        }
        let reply = &mut reply[..answered.message];
        let lent = session.take_lent();
        let mut shown = None;
        if OutHeader::load(reply).error == 0 {
            self.amend(session, message, reply);
            let end = reply.len();
            shown = match message.header.opcode {
                FUSE_GETATTR | FUSE_SETATTR => Some((OutHeader::SIZE, lent)),
                FUSE_CREATE | FUSE_TMPFILE => Some((end - OpenOut::SIZE - EntryOut::SIZE, lent)),
                FUSE_LOOKUP | FUSE_MKNOD | FUSE_MKDIR | FUSE_SYMLINK | FUSE_LINK => {
                    Some((end - EntryOut::SIZE, lent))
                }
                _ => None,
            };
        }
        let shown = shown.and_then(|(at, lent)| Some((at, lent?)));
        let at_once = for_cache || message.header.opcode == FUSE_RELEASE;
        let cuts =
            matches!(&message.request, Ok(Request::Setattr(args)) if args.valid & FATTR_SIZE != 0);
        let cut = cuts.then(|| self.cache.cut(message.header.nodeid));
        let needs = session.take_needs().filter(|_| !at_once);
        self.give_cut((shown, needs), cut, reply, &self.room[..answered.data])
    }

    /// Gives the kernel an answer, when what `ticket` says is done. `shown` says where it has attributes, and
    /// what the kernel learns by them.
    fn give(
        &self,
        (shown, ticket): (Option<(usize, Lent)>, Option<Ticket>),
        reply: &mut [u8],
        data: &[u8],
    ) -> io::Result<()> {
        self.give_cut((shown, ticket), None, reply, data)
    }

    /// The same for what may have cut a file.
    fn give_cut(
        &self,
        (shown, ticket): (Option<(usize, Lent)>, Option<Ticket>),
        cut: Option<Cut>,
        reply: &mut [u8],
        data: &[u8],
    ) -> io::Result<()> {
        let given = shown.filter(|(_, lent)| lent.entry).map(|(_, lent)| lent.ino);
        let Some(ticket) = ticket else {
            if let Some((at, lent)) = shown
                && lent.valid
                && self.valid == 0
            {
                let (attr_valid, valid) = (ATTR_VALID, &mut reply[at..]);
                if lent.entry {
                    EntryOut { attr_valid, ..EntryOut::load(valid) }.store(valid);
                } else {
                    AttrOut { attr_valid, ..AttrOut::load(valid) }.store(valid);
                }
            }
            let taken = self.line.send(reply, data)?;
            if let Some(ino) = given.filter(|_| !taken) {
                self.cache.hold(ino);
            }
            return Ok(());
        };
        if let Some(ino) = given {
            self.cache.hold(ino);
        }
        let (line, cache) = (Arc::clone(&self.line), Arc::clone(&self.cache));
        let (reply, data) = (reply.to_vec(), data.to_vec());
        self.gate.after_cut(ticket, cut, move || {
            if let Some(ino) = given {
                cache.release(ino);
            }
            // An error of the device is met by the thread that reads it.
            if let (Ok(false), Some(ino)) = (line.send(&reply, &data), given) {
                cache.hold(ino);
            }
        });
        Ok(())
    }

    fn amend(&self, session: &Session<F>, message: &Message<'_>, reply: &mut [u8]) {
        let end = reply.len();
        match message.header.opcode {
            FUSE_INIT => {
                let Ok(Request::Init(args)) = message.request else { return };
                let body = &mut reply[OutHeader::SIZE..];
                let mut out = InitOut::load(body);
                let sole = self.others == Others::None;
                let more = if sole { SOLE_FEATURES } else { FEATURES };
                let mut features = out.features() | args.features() & more;
                if !sole || self.owner.is_some() {
                    features &= !CACHING;
                }
                if self.others != Others::Any {
                    features &= !LOCKS;
                }
                if session.sets_access_times() {
                    features &= !FUSE_CACHE_SYMLINKS;
                }
                (out.flags, out.flags2) = (features as u32, (features >> 32) as u32);
                out.store(body);
            }
            FUSE_OPEN | FUSE_CREATE | FUSE_TMPFILE => {
                let body = &mut reply[end - OpenOut::SIZE..];
                let mut out = OpenOut::load(body);
                let to_read = match &message.request {
                    Ok(Request::Open(args)) => {
                        let others = libc::O_ACCMODE | libc::O_TRUNC | libc::O_DIRECT;
                        args.flags as i32 & others == libc::O_RDONLY
                    }
                    _ => false,
                };
                let (keep, cached) = session.keeps_pages(Ino(message.header.nodeid));
                if message.header.opcode == FUSE_OPEN && keep {
                    out.open_flags |= FOPEN_KEEP_CACHE;
                }
                if self.others == Others::None {
                    // It knows all that is written.
                } else if to_read && cached {
                    self.cache.buffered(message.header.nodeid, out.fh);
                } else {
                    out.open_flags |= FOPEN_DIRECT_IO;
                }
                out.store(body);
            }
            FUSE_OPENDIR if self.others == Others::None => {
                let body = &mut reply[OutHeader::SIZE..];
                let (keep, _) = session.keeps_pages(Ino(message.header.nodeid));
                if keep {
                    let open_flags = FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR;
                    OpenOut { open_flags, ..OpenOut::load(body) }.store(body);
                }
            }
            _ => {}
        }
        let attr_ends = match message.header.opcode {
            FUSE_LOOKUP | FUSE_MKNOD | FUSE_MKDIR | FUSE_SYMLINK | FUSE_LINK | FUSE_GETATTR
            | FUSE_SETATTR => end,
            FUSE_CREATE | FUSE_TMPFILE => end - OpenOut::SIZE,
            _ => return,
        };
        if self.others != Others::Any
            && !matches!(message.header.opcode, FUSE_GETATTR | FUSE_SETATTR)
        {
            let entry = &mut reply[attr_ends - EntryOut::SIZE..attr_ends];
            EntryOut { entry_valid: FOR_EVER, ..EntryOut::load(entry) }.store(entry);
        }
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

/// Tells the kernel what there is to tell, until the session has ended and all is told.
fn notify(cache: &KernelCache, line: &Line) {
    loop {
        match cache.next() {
            Next::Tell(notice) => {
                let began = Instant::now();
                let mut pause = RETRY;
                while notices::tell(&line.device, notice) == Told::Unknown
                    && cache.is_coming(&notice, began.elapsed())
                {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(RETRY_MAX);
                }
                cache.told();
            }
            Next::Nothing => line.told.wait(None),
            Next::Over => break,
        }
    }
    cache.give_up();
}

/// Has a thread look after the deadlines of a volume's mounts, if none does.
fn keep(gate: &Arc<Gate>) -> io::Result<()> {
    let bell = Arc::new(ThreadBell::default());
    if !gate.keep(Arc::<ThreadBell>::clone(&bell)) {
        return Ok(());
    }
    let gate = Arc::clone(gate);
    let keeper = move || {
        while let Some(longest) = gate.tend() {
            bell.wait(longest);
        }
    };
    std::thread::Builder::new().name("gate".to_owned()).spawn(keeper).map(drop)
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
    } else if args.flags & libc::O_APPEND as u32 != 0 {
        session.append(cx, ino, handle, data)?
    } else {
        session.write(cx, ino, handle, args.offset, data)?
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
