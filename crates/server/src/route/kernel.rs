//! A client that is a kernel: the requests that only a kernel makes, and the leases that it gets.
//! `/dev/fuse` brings its requests, or a queue of a virtual machine.
//!
//! # Choices
//!
//! - **The kernel caches what can be invalidated**: attributes, and the pages of files. When
//!   another client changes them they are invalidated before that client's call returns
//!   ([`caches`](crate::leases::caches)), so that the next system call sees it. Names are looked up
//!   each time, unless no other client changes them ([`Others`]). Files opened only to be read go
//!   through the page cache, all others are read and written directly (`FOPEN_DIRECT_IO`); in a
//!   directory of the host all go through it, and the kernel asks before it reads there. Shared
//!   mappings are allowed (`FUSE_DIRECT_IO_ALLOW_MMAP`, Linux 6.6): what other clients write is
//!   seen in them, what is stored into them is seen by others when the kernel writes it back.
//! - **Where there is no other client the kernel's caches are kept for ever**: names, missing
//!   names, attributes, pages, listings, link targets. All files go through the page cache.
//!   One that hears of no change keeps attributes but those that its own calls may change without
//!   its expecting it (`terms`).
//! - **No write-back cache** but in a virtual machine that has a volume alone (`write_back`). A
//!   write(2) that has returned has reached the file system, so that it survives the end of this
//!   process; dirty pages in the kernel would be lost with it. Stores into a shared mapping reach
//!   the file system at msync(2), munmap(2) or exit, as POSIX has it.
//! - **Writes by O_DSYNC are durable when they are answered**: after one through the page cache the
//!   kernel asks for a sync, after a direct one it does not.
//! - **An answer that waits holds up nobody**: it is sent by the thread that ends the wait.
//!   Requests that a notice may wait for, reads for the page cache and its writing back, are
//!   answered at once. So two programs that read one page through the caches of two mounts, while a
//!   third is writing it, may see the change in either order. A guest that takes notices at any
//!   time waits for its pages as for all else.
//! - **O_APPEND is the server's**: the kernel says with each write whether the file has the flag
//!   just then, and the end of the file is found where the write happens. The kernel's own idea of
//!   the end, which may be old, is not used. One write(2) appends its data in one piece, up to what
//!   one request carries.
//! - **Locks are the volume's** (`FUSE_POSIX_LOCKS`, `FUSE_FLOCK_LOCKS`). A request that waits is
//!   answered when the lock is granted, by the thread that freed it. A signal makes the kernel send
//!   INTERRUPT, upon which the waiting request is answered with `EINTR`: the program's handler
//!   runs, or it dies. Where no other client takes locks the kernel keeps them itself, and closing
//!   a file needs no answer (FLUSH is `ENOSYS`).
//! - **Where nothing changes, and for the only client, opens are implicit**
//!   ([`KernelOptions::unchanging`], [`KernelOptions::implicit_opens`]): OPEN, OPENDIR and CREATE
//!   are `ENOSYS`, upon which the kernel asks no more, and names files by their inodes alone. For
//!   others they cannot be: the answer to OPEN says what passes the page cache by, and locks go
//!   with the files that are closed.

use std::sync::Arc;

use atoll_vfs::server::{Caller, Reply, Server};
use atoll_vfs::wire::attributes::{
    AttrOut, EntryOut, FATTR_SIZE, FUSE_ATTR_DAX, FUSE_ATTR_SUBMOUNT, RawAttr,
};
use atoll_vfs::wire::files::{
    FOPEN_CACHE_DIR, FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FUSE_READ_LOCKOWNER, FUSE_WRITE_CACHE,
    O_APPEND, O_DSYNC, O_NOATIME, O_SYNC, OpenOut, WriteOut,
};
use atoll_vfs::wire::header::OutHeader;
use atoll_vfs::wire::opcode::{
    FUSE_CREATE, FUSE_GETATTR, FUSE_INIT, FUSE_LINK, FUSE_LOOKUP, FUSE_MKDIR, FUSE_MKNOD,
    FUSE_OPEN, FUSE_OPENDIR, FUSE_RELEASE, FUSE_SETATTR, FUSE_SYMLINK, FUSE_TMPFILE,
};
use atoll_vfs::wire::session::*;
use atoll_vfs::wire::{Fixed, Malformed, Message, Request};
use atoll_vfs::{Context, Errno, FileSystem, Handle, Ino, Room, Timespec};

use crate::leases::caches::KernelCache;
use crate::leases::gate::Ticket;
use crate::rights::idmap::IdMap;
use crate::route::answer::{Later, Routed, finish};
use crate::route::locks::LockRequests;
use crate::session::{Lent, Session};
use openers::Openers;

// Features of linux/fuse.h that only a server with locks, direct files and set-ID rules offers.
const LOCKS: u64 = FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS;
const FEATURES: u64 = LOCKS | FUSE_HANDLE_KILLPRIV_V2 | FUSE_DIRECT_IO_ALLOW_MMAP | FORGETTING;
/// The same for the mount that all share. It drops no pages when it sees a time that its own write
/// has set: it hears of what others write. Where a file has become shorter, a short answer to a
/// read says so.
const JOINED_FEATURES: u64 =
    LOCKS | FUSE_HANDLE_KILLPRIV_V2 | FUSE_DIRECT_IO_ALLOW_MMAP | FUSE_CACHE_SYMLINKS;
/// The same for the only client.
const SOLE_FEATURES: u64 = FUSE_HANDLE_KILLPRIV_V2 | FUSE_ASYNC_DIO | FUSE_CACHE_SYMLINKS;
/// Offered by a kernel that can do without OPEN and without OPENDIR.
const OPENS_ALONE: u64 = FUSE_NO_OPEN_SUPPORT | FUSE_NO_OPENDIR_SUPPORT;
/// Features that need names to be kept.
const CACHING: u64 = FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO;

/// Before it reads through the page cache the kernel asks for the size where that was invalidated,
/// and it drops pages when it sees that the file has changed, also those that sendfile(2) has read.
/// The targets of symbolic links, which never change, are kept, unless following one is to be
/// counted.
const FORGETTING: u64 = FUSE_AUTO_INVAL_DATA | FUSE_CACHE_SYMLINKS;

// Flags of open(2) on every architecture that Atoll runs on (asm-generic/fcntl.h).
const O_ACCMODE: u32 = 3;
const O_WRONLY: u32 = 1;
const O_RDWR: u32 = 2;
const O_TRUNC: u32 = 0o1000;
const O_DIRECT: u32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };

// The type of a file in its mode, that of a regular one, and that of a directory.
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;

/// The longest file of a volume that goes into a window where the kernel lets the server choose:
/// what does not stay in a window of the usual size is copied into memory each time that it is
/// shown, some 2 ms for a range, and read and written by requests for less.
const WINDOW_FILE_MAX: u64 = 256 << 20;

/// How long the kernel relies on attributes, in seconds. Changes are invalidated: this only bounds
/// an error of the kernel itself, which takes the attributes of a directory from an answer that it
/// has overtaken by a change of its own. On names as long, where they have leases.
const ATTR_VALID: u64 = 1;
/// How long the kernel relies on what only it changes, or nobody, in seconds: as long as it likes.
const FOR_EVER: u64 = 365 * 24 * 60 * 60;

/// The other users of the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Others {
    /// Anybody.
    #[default]
    Any,
    /// Anybody by a ring, a virtual machine or a mount of its own, but nobody most of the time. As
    /// long as there is nobody the kernel keeps what it learns, names for a second at a time, and
    /// reads and writes all files through its page cache.
    Joining,
    /// Anybody, and programs of the host, of whose changes nobody hears: the kernel asks for the
    /// attributes before it reads by its page cache, and drops what it has of a file whose time or
    /// size is another.
    Host,
    /// Nobody: the kernel may rely on all that it learns.
    None,
}

/// How a session is served to a kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelOptions {
    /// Show every file as owned by this user and group, for a user namespace that knows no others.
    pub owner: Option<(u32, u32)>,
    /// The users and groups of the volume that the kernel's stand for, if they are not the same.
    pub ids: Option<IdMap>,
    /// The users of the volume beside this mount.
    pub others: Others,
    /// Nothing of the volume changes while it is mounted: the kernel may rely on all that it
    /// learns, and opens and closes by itself.
    pub unchanging: bool,
    /// The kernel opens and closes by itself, if it can: for the only client, on a kernel where
    /// that is safe.
    pub implicit_opens: bool,
    /// The kernel is to write back what programs have written, if it can: for the only client.
    pub writes_back: bool,
    /// The kernel hears of no change, as that of a virtual machine: where there are
    /// [others](Others::Any), for how many seconds it may rely on what it has learnt, and no
    /// longer.
    pub untold: Option<u64>,
    /// It is a virtual machine's, which has a window of memory: it is to map regular files into
    /// that, rather than to read and write them by requests.
    pub window: bool,
}

impl KernelOptions {
    /// For how many seconds the kernel may rely on all that it learns, whatever it is told.
    pub fn valid(&self) -> u64 {
        match (self.others, self.untold) {
            _ if self.unchanging => FOR_EVER,
            // Nobody says what its own calls change of a file without its expecting it.
            (Others::None, Some(_)) => ATTR_VALID,
            (Others::None, None) => FOR_EVER,
            (_, untold) => untold.unwrap_or(0),
        }
    }

    /// Whether files go through the page cache of a kernel that hears of no change: for as long as
    /// it may rely on what it has learnt.
    fn caches_untold(&self) -> bool {
        self.untold.is_some_and(|seconds| seconds > 0)
    }

    /// Whether others may take locks, which are the volume's then.
    fn shares_locks(&self) -> bool {
        self.others != Others::None
    }

    /// Whether a write by an open file with `flags` passes the page cache by.
    fn is_direct(&self, flags: u32) -> bool {
        !matches!(self.others, Others::None | Others::Host) || flags & O_DIRECT != 0
    }
}

/// The kernel at the other end.
pub struct Kernel {
    options: KernelOptions,
    /// Its leases.
    pub(crate) cache: Arc<KernelCache>,
    locks: LockRequests,
    /// It is told which directories are roots of other file systems.
    submounts: bool,
    /// It writes back what programs have written.
    writes_back: bool,
    /// Which of its users have files open.
    openers: Openers,
}

/// Whether `request` opens a file whose writes go to its end.
fn opens_to_append(request: &Request<'_>) -> bool {
    let flags = match request {
        Request::Open(args) => args.flags,
        Request::Create { args, .. } | Request::Tmpfile(args) => args.flags,
        _ => 0,
    };
    flags & O_APPEND != 0
}

/// Where an answer has attributes, and what the kernel learns by them.
type Shown = Option<(usize, Lent)>;

impl Kernel {
    /// The kernel of a session that has begun `cache`.
    pub fn new(cache: Arc<KernelCache>, options: KernelOptions) -> Kernel {
        let locks = LockRequests::default();
        let openers = Openers::default();
        Kernel { options, cache, locks, submounts: false, writes_back: false, openers }
    }

    /// Has a request be as the volume takes it.
    pub(crate) fn prepare<F: FileSystem + Send>(
        &self,
        session: &mut Session<F>,
        message: &mut Message<'_>,
        now: Timespec,
    ) {
        if session.opens_implicitly()
            && let Ok(Request::Tmpfile(args)) = &mut message.request
        {
            // Other descriptors use the same handle.
            args.flags = args.flags & !O_ACCMODE | O_RDWR;
        }
        self.map_ids(session, message, now);
        if self.writes_back {
            write_back::prepare(session, message, now);
        }
    }

    /// Has the users and groups that a request names be those of the volume.
    fn map_ids<F: FileSystem + Send>(
        &self,
        session: &mut Session<F>,
        message: &mut Message<'_>,
        now: Timespec,
    ) {
        let (Some(ids), Ok(request)) = (&self.options.ids, &mut message.request) else { return };
        let ino = Ino(message.header.nodeid);
        let owned = || session.getattr(&Context { uid: 0, gid: 0, now }, ino);
        if let Err(error) = ids.request(&mut message.header, request, owned) {
            message.request = Err(error);
        }
        // It was not asked for.
        let _ = session.take_lent();
    }

    /// Has the kernel write back the file that the outcome of a request depends on. Returns the
    /// ticket to wait for before the request is carried out.
    pub(crate) fn settle<F: FileSystem + Send>(
        &self,
        session: &mut Session<F>,
        message: &Message<'_>,
    ) -> Option<Ticket> {
        if self.options.untold.is_some() || !self.cache.invalidates_pages() {
            return None;
        }
        let ino = write_back::awaits(session, message, self.writes_back)?;
        session.has_written_back(ino)
    }

    pub(crate) fn route<F: FileSystem + Send>(
        &mut self,
        session: &mut Session<F>,
        codec: &mut Server,
        (message, request, caller): (&Message<'_>, &Request<'_>, &Caller),
        out: &mut Routed,
        room: Room<'_>,
    ) -> Result<(), Malformed> {
        let header = &message.header;
        let (mut later, reply) = (Later::default(), &mut out.message);
        let (unique, ino) = (header.unique, Ino(header.nodeid));
        let cx = Context { uid: header.uid, gid: header.gid, now: caller.now };
        // The kernel has a lock on what it writes back.
        let back = matches!(request,
            Request::Write { args, .. } if args.write_flags & FUSE_WRITE_CACHE != 0);
        // Nor may the answer wait for the kernel to forget the page that it is writing.
        let cached = !back
            && self.options.others == Others::Joining
            && matches!(request, Request::Write { args, .. }
                if args.flags & O_DIRECT == 0 && self.cache.is_cached(args.fh));
        let result = match request {
            // The kernel asks for it for the sake of locks, and once.
            Request::Flush(_) if !self.options.shares_locks() => Err(Errno::ENOSYS),
            // Without CREATE it makes files by MKNOD, and has nothing to release.
            Request::Open(_) | Request::Opendir(_) | Request::Create { .. }
                if session.opens_implicitly() =>
            {
                Err(Errno::ENOSYS)
            }
            request if self.openers.refuses(request, header.uid) => Err(Errno::ENFILE),
            Request::Lseek(_) if self.writes_back && self.options.untold.is_some() => {
                Err(Errno::ENOSYS)
            }
            request if LockRequests::takes(request) => {
                self.locks.answer(session, (unique, ino), request, reply, &mut later)
            }
            Request::Ioctl(_) => Err(Errno::ENOTTY),
            Request::Interrupt(args) => {
                self.locks.interrupt(session, args.unique);
                out.set(session, Reply { message: 0, data: 0 }, &mut later, None);
                return Ok(());
            }
            Request::Write { args, data }
                if back || cached || self.writes_back || args.flags & (O_APPEND | O_DSYNC) != 0 =>
            {
                let (handle, offset, data) = (Handle(args.fh), args.offset, *data);
                let written = match self.writes_back {
                    true if back => session.write_whole(&cx, ino, handle, offset, data),
                    true => session.write_untimed(&cx, ino, handle, offset, data),
                    false if back => session.write_back(&cx, ino, handle, offset, data),
                    false if cached => {
                        let at = (offset, args.flags & O_APPEND != 0);
                        session.write_cached(&cx, ino, handle, at, data)
                    }
                    false if args.flags & O_APPEND != 0 => session.append(&cx, ino, handle, data),
                    false => session.write_vectored(&cx, ino, handle, offset, data),
                };
                written.and_then(|written| {
                    let is_direct = self.options.is_direct(args.flags) && !back && !cached;
                    if args.flags & O_DSYNC != 0 && is_direct {
                        let data_only = args.flags & O_SYNC != O_SYNC;
                        later.sync = Some(session.sync_of(ino, handle, data_only)?);
                    }
                    let body = &mut reply[OutHeader::SIZE..];
                    WriteOut { size: written.len as u32, padding: 0 }.store(body);
                    Ok(WriteOut::SIZE)
                })
            }
            _ => return self.pass(session, codec, (message, request, caller), out, room),
        };
        // No kernel may have in its cache what is mapped from now on; and an error says as much of
        // a file as success. The kernel has a lock on what it writes back.
        later.ticket = session.take_needs().filter(|_| !back);
        if cached {
            later.ticket = later.ticket.and_then(|ticket| self.cache.of_others(ticket));
        }
        let answer = finish(unique, result, reply);
        out.set(session, answer, &mut later, None);
        Ok(())
    }

    /// Has the codec's server answer, and adds to its reply what is the kernel's own.
    fn pass<F: FileSystem + Send>(
        &mut self,
        session: &mut Session<F>,
        codec: &mut Server,
        (message, request, caller): (&Message<'_>, &Request<'_>, &Caller),
        out: &mut Routed,
        room: Room<'_>,
    ) -> Result<(), Malformed> {
        let opcode = message.header.opcode;
        let (mut later, reply) = (Later::default(), &mut out.message);
        // The kernel says whose lock it is with each read for a program.
        let for_cache =
            matches!(request, Request::Read(args) if args.read_flags & FUSE_READ_LOCKOWNER == 0);
        session.reads_for_cache(for_cache);
        session.reads_without_trace(match request {
            Request::Read(args) | Request::Readdir(args) | Request::Readdirplus(args) => {
                args.flags & O_NOATIME != 0
            }
            _ => false,
        });
        match request {
            Request::Init(args) if self.opens_alone(session, args.features()) => {
                session.open_implicitly();
            }
            Request::Release(args) => {
                self.openers.closed(args.fh);
                self.cache.closed(args.fh);
            }
            Request::Releasedir(args) => self.openers.closed(args.fh),
            _ => {}
        }
        if let Request::Init(args) = request {
            let offers = args.features() & FUSE_SUBMOUNTS != 0;
            self.submounts = offers && session.volume().has_submounts();
            self.writes_back = write_back::is_agreed(&self.options, session, args.features());
            // None of what they depend on changes while there are sessions.
            if let Some(terms) = terms::of(&self.options, session) {
                codec.set_terms(terms);
            }
        }
        let mut names = match opcode {
            FUSE_LOOKUP | FUSE_MKNOD | FUSE_MKDIR | FUSE_SYMLINK | FUSE_LINK | FUSE_CREATE
            | FUSE_TMPFILE => self.names_valid(),
            _ => 0,
        };
        let answered = codec.answer(session, caller, message, reply, room)?;
        if answered.message == 0 {
            let _ = session.take_needs();
            out.set(session, answered, &mut later, None);
            return Ok(());
        }
        let header = OutHeader::load(reply);
        let lent = session.take_lent();
        // A guest that takes notices meanwhile can wait: also for that of what it reads of a mapped
        // file, which it would keep for a moment otherwise, while others store there.
        let holds_page = for_cache && !self.cache.hears_always();
        let at_once = holds_page || opcode == FUSE_RELEASE;
        later.ticket = session.take_needs().filter(|_| !at_once);
        if self.options.others == Others::Joining
            && (later.ticket.is_some() || session.left.get().is_some())
        {
            // An answer that waits gives no lease.
            names = 0;
        }
        if names > 0 && header.error == -Errno::ENOENT.raw() && opcode == FUSE_LOOKUP {
            let len = OutHeader::SIZE + EntryOut::SIZE;
            OutHeader { len: len as u32, error: 0, ..header }.store(reply);
            // Inode number 0: there is no such name.
            let none = EntryOut { entry_valid: names, ..EntryOut::default() };
            none.store(&mut reply[OutHeader::SIZE..]);
            out.set(session, Reply { message: len, data: 0 }, &mut later, None);
            return Ok(());
        }
        let mut shown = None;
        if header.error == 0 {
            let reply = &mut reply[..answered.message];
            self.amend(session, (message, request), names, reply);
            let end = reply.len();
            let at = match opcode {
                FUSE_GETATTR | FUSE_SETATTR => Some(OutHeader::SIZE),
                FUSE_CREATE | FUSE_TMPFILE => Some(end - OpenOut::SIZE - EntryOut::SIZE),
                FUSE_LOOKUP | FUSE_MKNOD | FUSE_MKDIR | FUSE_SYMLINK | FUSE_LINK => {
                    Some(end - EntryOut::SIZE)
                }
                _ => None,
            };
            shown = at.and_then(|at| Some((at, lent?)));
            let opens = matches!(opcode, FUSE_OPEN | FUSE_OPENDIR | FUSE_CREATE | FUSE_TMPFILE);
            if opens && self.options.others == Others::Joining {
                let handle = OpenOut::load(&reply[end - OpenOut::SIZE..]).fh;
                self.openers.opened(handle, message.header.uid);
            }
        }
        if matches!(request, Request::Setattr(args) if args.valid & FATTR_SIZE != 0) {
            later.cut = Some(self.cache.cut(message.header.nodeid));
        }
        // An answer that waits gives no lease.
        if later.ticket.is_none() && session.left.get().is_none() {
            self.lend(shown, reply);
        }
        let entry = shown.filter(|(_, lent)| lent.entry).map(|(_, lent)| (&self.cache, lent.ino));
        out.set(session, answered, &mut later, entry);
        out.is_last = matches!(request, Request::Destroy);
        Ok(())
    }

    /// Whether a kernel with these features is to open and close by itself. A read that is to be
    /// counted has to come here, for which the kernel drops what it has at each OPEN.
    fn opens_alone<F: FileSystem + Send>(&self, session: &Session<F>, features: u64) -> bool {
        let KernelOptions { unchanging, implicit_opens, .. } = self.options;
        let may = unchanging || implicit_opens && !session.sets_access_times();
        may && features & OPENS_ALONE == OPENS_ALONE
    }

    /// Says in an answer how long the kernel may rely on the attributes and the name in it.
    fn lend(&self, shown: Shown, reply: &mut [u8]) {
        let Some((at, lent)) = shown else { return };
        let (least, valid) = (ATTR_VALID.max(self.options.valid()), &mut reply[at..]);
        if lent.entry {
            let mut entry = EntryOut::load(valid);
            entry.attr_valid =
                if lent.valid { least.max(entry.attr_valid) } else { entry.attr_valid };
            entry.entry_valid = if lent.named { ATTR_VALID } else { entry.entry_valid };
            entry.store(valid);
        } else if lent.valid {
            let out = AttrOut::load(valid);
            AttrOut { attr_valid: least.max(out.attr_valid), ..out }.store(valid);
        }
    }

    /// Whether the kernel may keep pages of an inode beyond an open file of it, and whether it may
    /// read it through its page cache.
    fn keeps_pages<F: FileSystem + Send>(&self, session: &Session<F>, ino: u64) -> (bool, bool) {
        match self.options {
            // There is nobody to hear of. A read that is to be counted has to come here.
            KernelOptions { others: Others::None, untold: Some(_), .. } => {
                (!session.sets_access_times(), true)
            }
            // What programs of the host store into mappings changes no time: an open shows it.
            KernelOptions { others: Others::Host, .. } => (false, true),
            _ => session.keeps_pages(Ino(ino)),
        }
    }

    /// For how many seconds the kernel may rely on the name in the answer to its next request.
    fn names_valid(&self) -> u64 {
        match self.options.others {
            Others::Any | Others::Host => 0,
            Others::Joining => self.cache.lends_names(),
            Others::None => FOR_EVER,
        }
    }

    fn amend<F: FileSystem + Send>(
        &self,
        session: &mut Session<F>,
        (message, request): (&Message<'_>, &Request<'_>),
        names: u64,
        reply: &mut [u8],
    ) {
        let KernelOptions { owner, ids, others, window, .. } = self.options;
        let end = reply.len();
        let opcode = message.header.opcode;
        match opcode {
            FUSE_INIT => {
                let Request::Init(args) = request else { return };
                let body = &mut reply[OutHeader::SIZE..];
                let mut out = InitOut::load(body);
                let sole = others == Others::None;
                let more = match others {
                    Others::None => SOLE_FEATURES,
                    Others::Joining => JOINED_FEATURES,
                    Others::Any | Others::Host => FEATURES,
                };
                let mut features = out.features() | args.features() & more;
                // The codec writes attributes into listings, which say nothing of the window, nor
                // of other file systems.
                if !sole || owner.is_some() || ids.is_some() || window || self.submounts {
                    features &= !CACHING;
                }
                if self.submounts {
                    features |= FUSE_SUBMOUNTS;
                }
                if window {
                    features |= args.features() & FUSE_HAS_INODE_DAX;
                }
                if self.writes_back {
                    features |= FUSE_WRITEBACK_CACHE;
                }
                if !self.options.shares_locks() {
                    features &= !LOCKS;
                }
                // It would cut what it has in its cache and send nothing.
                if session.opens_implicitly() {
                    features &= !FUSE_ATOMIC_O_TRUNC;
                }
                if session.sets_access_times() {
                    features &= !FUSE_CACHE_SYMLINKS;
                }
                (out.flags, out.flags2) = (features as u32, (features >> 32) as u32);
                out.store(body);
            }
            FUSE_OPEN | FUSE_CREATE | FUSE_TMPFILE => {
                let nodeid = match opcode {
                    FUSE_OPEN => message.header.nodeid,
                    _ => EntryOut::load(&reply[end - OpenOut::SIZE - EntryOut::SIZE..]).nodeid,
                };
                let body = &mut reply[end - OpenOut::SIZE..];
                let mut out = OpenOut::load(body);
                let to_read = matches!(request,
                    Request::Open(args) if args.flags & (O_ACCMODE | O_TRUNC | O_DIRECT) == 0);
                let (keep, cached) = self.keeps_pages(session, nodeid);
                let alone = others == Others::Joining && self.cache.is_alone();
                if opcode == FUSE_OPEN && keep {
                    out.open_flags |= FOPEN_KEEP_CACHE;
                }
                // It may not be read, as the kernel would to write a part of a page.
                let writes_only =
                    matches!(request, Request::Open(args) if args.flags & O_ACCMODE == O_WRONLY);
                if self.writes_back && writes_only {
                    out.open_flags |= FOPEN_DIRECT_IO;
                } else if others == Others::Host && opens_to_append(request) {
                    // Its kernel may know an old end, and would show what it appends there.
                    out.open_flags |= FOPEN_DIRECT_IO;
                } else if matches!(others, Others::None | Others::Host)
                    || self.options.caches_untold()
                {
                    // The kernel knows all that is written, or asks when it is to.
                } else if (to_read || alone) && cached {
                    self.cache.buffered(nodeid, out.fh);
                } else {
                    out.open_flags |= FOPEN_DIRECT_IO;
                }
                if session.opens_implicitly() {
                    let handle = Handle(std::mem::take(&mut out.fh));
                    out.store(body);
                    let entry = EntryOut::load(&reply[end - OpenOut::SIZE - EntryOut::SIZE..]);
                    session.made(Ino(entry.nodeid), handle);
                } else {
                    out.store(body);
                }
            }
            FUSE_OPENDIR if others == Others::None => {
                let body = &mut reply[OutHeader::SIZE..];
                let (keep, _) = self.keeps_pages(session, message.header.nodeid);
                if keep {
                    let open_flags = FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR;
                    OpenOut { open_flags, ..OpenOut::load(body) }.store(body);
                }
            }
            _ => {}
        }
        let attr_ends = match opcode {
            FUSE_LOOKUP | FUSE_MKNOD | FUSE_MKDIR | FUSE_SYMLINK | FUSE_LINK | FUSE_GETATTR
            | FUSE_SETATTR => end,
            FUSE_CREATE | FUSE_TMPFILE => end - OpenOut::SIZE,
            _ => return,
        };
        if opcode == FUSE_SETATTR && others == Others::Host {
            // The kernel takes this time without a look at its pages, which may be older: that it
            // is another one than the next answer's has it drop them. No program sees it.
            let place = &mut reply[attr_ends - RawAttr::SIZE..attr_ends];
            let mut attr = RawAttr::load(place);
            attr.mtimensec ^= 1;
            attr.store(place);
        }
        if names > 0 {
            let entry = &mut reply[attr_ends - EntryOut::SIZE..attr_ends];
            EntryOut { entry_valid: names, ..EntryOut::load(entry) }.store(entry);
        }
        if self.submounts && opcode == FUSE_LOOKUP {
            let place = &mut reply[attr_ends - EntryOut::SIZE..attr_ends];
            let mut entry = EntryOut::load(place);
            if entry.attr.mode & S_IFMT == S_IFDIR && session.is_submount(Ino(entry.nodeid)) {
                entry.attr.flags |= FUSE_ATTR_SUBMOUNT;
                entry.store(place);
            }
        }
        if owner.is_some() || ids.is_some() || window {
            let place = &mut reply[attr_ends - RawAttr::SIZE..attr_ends];
            let mut attr = RawAttr::load(place);
            if let Some(ids) = ids {
                (attr.uid, attr.gid) = (ids.shown(attr.uid), ids.shown(attr.gid));
            }
            (attr.uid, attr.gid) = owner.unwrap_or((attr.uid, attr.gid));
            let fits = session.volume().is_foreign() || attr.size <= WINDOW_FILE_MAX;
            if window && fits && attr.mode & S_IFMT == S_IFREG {
                attr.flags |= FUSE_ATTR_DAX;
            }
            attr.store(place);
        }
    }
}

mod openers;
mod terms;
#[cfg(test)]
mod tests;
mod write_back;
