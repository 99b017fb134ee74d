//! Calls as FUSE messages, by the client's half of the codec, and answers back. Unlike
//! [`Client`](atoll_vfs::client::Client) it waits for nothing, and it speaks as Linux does, too.

use atoll_tests::ops::fill_bytes;
use atoll_vfs::wire::attributes::{AttrOut, EntryOut, GetattrIn, SetattrIn, Time};
use atoll_vfs::wire::directory::get_dirent;
use atoll_vfs::wire::files::{
    CreateIn, FUSE_FSYNC_FDATASYNC, FallocateIn, FlushIn, FsyncIn, O_APPEND, O_CREAT, O_DSYNC,
    OpenIn, OpenOut, ReadIn, ReleaseIn, WriteIn, WriteOut, open_bits,
};
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::locks::{FUSE_LK_FLOCK, FileLock, LkIn};
use atoll_vfs::wire::names::{ForgetIn, ForgetOne, Forgets, LinkIn, MkdirIn, MknodIn, Rename2In};
use atoll_vfs::wire::session::{InitIn, InitOut, InterruptIn};
use atoll_vfs::wire::xattrs::{GetxattrIn, SetxattrIn};
use atoll_vfs::wire::{Extensions, Fixed, REQUEST_MAX, Request};
use atoll_vfs::{Attr, Errno, FileType, Handle, Ino, Name, OpenFlags, Result, Timespec};

use crate::call::{Answer, Call, Side};
use crate::carrier::{Parcel, Reply};
use crate::world::Outcome;

// Numbers of Linux's FUSE that the server does not tell of.
const F_RDLCK: u32 = 0;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;
const FUSE_READ_LOCKOWNER: u32 = 1 << 1;
const FOPEN_DIRECT_IO: u32 = 1;
const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// All that a kernel offers which the server might agree to.
const KERNEL_FEATURES: u64 = 1 << 37 | ((1 << 37) - 1) & !(1 << 17 | 1 << 24 | 1 << 16);

/// The most bytes of an extended attribute.
const XATTR_ROOM: usize = 65_536;
/// Bytes of one part of a listing: all names that there ever are fit.
const LIST_ROOM: usize = 4096;

/// How a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// As Atoll's client.
    Client,
    /// As Linux.
    Kernel,
}

/// The manner of a request beside the call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manners {
    /// It is read for the kernel's page cache.
    pub for_cache: bool,
    /// The file has O_DSYNC.
    pub dsync: bool,
    /// The file is opened with O_APPEND.
    pub appends: bool,
}

/// The client that asks, and the number of its request.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// How it speaks.
    pub dialect: Dialect,
    /// The user that asks.
    pub uid: u32,
    /// The world's number of the request.
    pub id: u64,
}

/// The parts of an answer beside the call's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside {
    /// The attributes may be kept.
    pub valid: bool,
    /// The file is to be read through the page cache.
    pub buffered: bool,
    /// Pages from before the open may be kept.
    pub keeps: bool,
}

/// The number of a request in its messages: a kernel's are even.
pub fn unique(id: u64) -> u64 {
    2 * id
}

impl Asker {
    /// The message that asks `request` of `ino`, whose answer may bring `room` bytes.
    pub fn pack(&self, ino: Ino, request: &Request<'_>, room: usize) -> Parcel {
        self.packed(self.id, ino, request, room)
    }

    fn packed(&self, id: u64, ino: Ino, request: &Request<'_>, room: usize) -> Parcel {
        let unique = match request {
            Request::Interrupt(args) => args.unique | 1,
            _ => unique(id),
        };
        let (uid, gid, pid) = (self.uid, self.uid, 1);
        let header = InHeader { unique, nodeid: ino.0, uid, gid, pid, ..InHeader::default() };
        let mut message = [0; REQUEST_MAX];
        let len = request.encode(&header, None, &mut message);
        let mut message = message[..len.expect("no request of a schedule is longer")].to_vec();
        let mut data = request.data().to_vec();
        if self.dialect == Dialect::Kernel {
            message.append(&mut data);
        }
        Parcel { id, message, data, room }
    }

    /// The request that a session begins with.
    pub fn init(&self) -> Parcel {
        let args = match self.dialect {
            Dialect::Client => InitIn::new(1 | 1 << 3 | 1 << 22, Extensions::all()),
            Dialect::Kernel => InitIn::new(KERNEL_FEATURES, Extensions::empty()),
        };
        self.pack(Ino(0), &Request::Init(args), 0)
    }

    /// The message of `call`.
    pub fn call(&self, call: &Call, manners: Manners) -> Parcel {
        let [first, second] = call.letters().map(|letter| [letter]);
        let name = Name::new(&first).expect("a letter is a name");
        let new_name = Name::new(&second).expect("a letter is a name");
        let node = call.nodes()[0].map_or(Ino(0), |node| node.served);
        let handle = call.file().map_or(0, |file| file.handle.served.0);
        let xattr = [b"user.", &first[..]].concat();
        let pack = |request: &Request<'_>, room| self.pack(node, request, room);
        match *call {
            Call::Lookup { .. } => pack(&Request::Lookup { name }, 0),
            Call::Getattr { .. } => pack(&Request::Getattr(GetattrIn::default()), 0),
            Call::Setattr { file, ref set, .. } => {
                let handle = file.map(|file| file.handle.served.0);
                pack(&Request::Setattr(SetattrIn::new(handle, set)), 0)
            }
            Call::Mknod { mode, .. } => {
                let mode = FileType::Regular.mode_bits() | mode;
                let args = MknodIn { mode, ..MknodIn::default() };
                pack(&Request::Mknod { args, name }, 0)
            }
            Call::Mkdir { mode, .. } => {
                pack(&Request::Mkdir { args: MkdirIn { mode, umask: 0 }, name }, 0)
            }
            Call::Symlink { len, .. } => {
                let mut target = fill_bytes(u32::from(len), 0, usize::from(len));
                target.push(0);
                pack(&Request::Symlink { name, target: &target }, 0)
            }
            Call::Readlink { .. } => pack(&Request::Readlink, 4096),
            Call::Unlink { .. } => pack(&Request::Unlink { name }, 0),
            Call::Rmdir { .. } => pack(&Request::Rmdir { name }, 0),
            Call::Rename { new_parent, flags, .. } => {
                let newdir = new_parent.served.0;
                let args = Rename2In { newdir, flags: flags.bits(), padding: 0 };
                pack(&Request::Rename { args, name, new_name }, 0)
            }
            Call::Link { node, parent, .. } => {
                let args = LinkIn { oldnodeid: node.served.0 };
                self.pack(parent.served, &Request::Link { args, new_name: name }, 0)
            }
            Call::Open { flags, .. } => {
                pack(&Request::Open(OpenIn { flags: open_bits(flags), open_flags: 0 }), 0)
            }
            Call::Create { mode, flags, .. } => {
                let flags = open_bits(flags) | O_CREAT;
                let args = CreateIn { flags, mode, ..CreateIn::default() };
                pack(&Request::Create { args, name }, 0)
            }
            Call::Read { offset, len, .. } => {
                let read_flags = if manners.for_cache { 0 } else { FUSE_READ_LOCKOWNER };
                let args =
                    ReadIn { fh: handle, offset, size: len, read_flags, ..ReadIn::default() };
                pack(&Request::Read(args), len as usize)
            }
            Call::Write { offset, len, fill, append, .. } => {
                let data = fill_bytes(fill, offset, len as usize);
                let mut flags = 1;
                if append {
                    flags |= O_APPEND;
                }
                if manners.dsync {
                    flags |= O_DSYNC;
                }
                let args = WriteIn { fh: handle, offset, size: len, flags, ..WriteIn::default() };
                pack(&Request::Write { args, data: data[..].into() }, 0)
            }
            Call::Fallocate { offset, len, mode, .. } => {
                let (length, mode) = (len, mode.bits());
                let args = FallocateIn { fh: handle, offset, length, mode, padding: 0 };
                pack(&Request::Fallocate(args), 0)
            }
            Call::Release { .. } => {
                pack(&Request::Release(ReleaseIn { fh: handle, ..ReleaseIn::default() }), 0)
            }
            Call::Opendir { .. } => pack(&Request::Opendir(OpenIn::default()), 0),
            Call::Readdir { .. } => {
                let args = ReadIn { fh: handle, size: LIST_ROOM as u32, ..ReadIn::default() };
                pack(&Request::Readdir(args), LIST_ROOM)
            }
            Call::Releasedir { .. } => {
                pack(&Request::Releasedir(ReleaseIn { fh: handle, ..ReleaseIn::default() }), 0)
            }
            Call::Setxattr { len, fill, .. } => {
                let value = fill_bytes(fill, 0, len as usize);
                let args = SetxattrIn { size: len, flags: 0 };
                pack(&Request::Setxattr { args, name: &xattr, value: &value }, 0)
            }
            Call::Getxattr { .. } => {
                let args = GetxattrIn { size: XATTR_ROOM as u32, padding: 0 };
                pack(&Request::Getxattr { args, name: &xattr }, XATTR_ROOM)
            }
            Call::Removexattr { .. } => pack(&Request::Removexattr { name: &xattr }, 0),
        }
    }

    /// A sync of an open file, or of everything.
    pub fn sync(&self, file: Option<(Ino, Handle, bool)>) -> Parcel {
        match file {
            Some((ino, handle, data_only)) => {
                let fsync_flags = if data_only { FUSE_FSYNC_FDATASYNC } else { 0 };
                let args = FsyncIn { fh: handle.0, fsync_flags, padding: 0 };
                self.pack(ino, &Request::Fsync(args), 0)
            }
            None => self.pack(Ino::ROOT, &Request::Syncfs, 0),
        }
    }

    /// A descriptor is closed by `process`.
    pub fn flush(&self, ino: Ino, handle: Handle, process: u64) -> Parcel {
        let args = FlushIn { fh: handle.0, lock_owner: process, ..FlushIn::default() };
        self.pack(ino, &Request::Flush(args), 0)
    }

    /// A request for a lock.
    pub fn lock(
        &self,
        ino: Ino,
        handle: Handle,
        request: &atoll_server::LockRequest,
        waits: bool,
    ) -> Parcel {
        use atoll_server::{LockKind, LockOwner};
        let kind = match request.kind {
            Some(LockKind::Shared) => F_RDLCK,
            Some(LockKind::Exclusive) => F_WRLCK,
            None => F_UNLCK,
        };
        let (owner, lk_flags) = match request.owner {
            LockOwner::Process(number) => (number, 0),
            LockOwner::OpenFile => (0, FUSE_LK_FLOCK),
        };
        let (start, end) = (request.range.start, request.range.end.min(i64::MAX as u64));
        let lk = FileLock { start, end, kind, pid: request.pid };
        let args = LkIn { fh: handle.0, owner, lk, lk_flags, padding: 0 };
        match waits {
            true => self.pack(ino, &Request::Setlkw(args), 0),
            false => self.pack(ino, &Request::Setlk(args), 0),
        }
    }

    /// The request `id` is given up.
    pub fn interrupt(&self, id: u64) -> Parcel {
        self.packed(0, Ino(0), &Request::Interrupt(InterruptIn { unique: unique(id) }), 0)
    }

    /// An inode is forgotten that was given `count` times; `batch`: with others.
    pub fn forget(&self, ino: Ino, count: u64, batch: bool) -> Parcel {
        if !batch {
            return self.packed(0, ino, &Request::Forget(ForgetIn { nlookup: count }), 0);
        }
        let mut one = [0; ForgetOne::SIZE];
        ForgetOne { nodeid: ino.0, nlookup: count }.store(&mut one);
        let ones = Forgets::new(&one).expect("it is one");
        self.packed(0, Ino(0), &Request::BatchForget(ones), 0)
    }
}

/// Reads an answer.
struct Reader<'a> {
    body: &'a [u8],
    btime: bool,
}

impl Reader<'_> {
    fn take<T: Fixed>(&mut self) -> Outcome<T> {
        let (value, rest) = T::get(self.body).ok_or("an answer is cut short")?;
        self.body = rest;
        Ok(value)
    }

    fn born(&mut self) -> Outcome<Timespec> {
        if !self.btime {
            return Ok(Timespec::default());
        }
        let time: Time = self.take()?;
        time.checked().ok_or_else(|| "an answer has a time that is none".into())
    }

    fn entry(&mut self, beside: &mut Beside) -> Outcome<Attr> {
        let entry: EntryOut = self.take()?;
        if entry.entry_valid != 0 {
            return Err("an answer lends a name".into());
        }
        beside.valid = entry.attr_valid > 0;
        let born = self.born()?;
        entry.attr.checked(Ino(entry.nodeid), born).ok_or_else(|| "attributes that are none".into())
    }

    fn open(&mut self, beside: &mut Beside) -> Outcome<Handle> {
        let open: OpenOut = self.take()?;
        beside.buffered = open.open_flags & FOPEN_DIRECT_IO == 0;
        beside.keeps = open.open_flags & FOPEN_KEEP_CACHE != 0;
        Ok(Handle(open.fh))
    }
}

/// The error of an answer to the request `id`, or its body.
///
/// # Errors
/// It is no answer to that request.
pub fn open_reply(id: u64, reply: &Reply) -> Outcome<Result<&[u8]>> {
    let (header, body) = OutHeader::get(&reply.message).ok_or("an answer without a header")?;
    if header.unique != unique(id) {
        return Err(format!("request {id} gets the answer to {}", header.unique / 2));
    }
    if header.len as usize != reply.message.len() + reply.data.len() {
        return Err(format!("an answer of {} bytes says {}", reply.message.len(), header.len));
    }
    if header.error == 0 {
        return Ok(Ok(body));
    }
    let error = header.error.checked_neg().and_then(Errno::from_raw);
    let error = error.ok_or_else(|| format!("error number {} is none", header.error))?;
    match (body, &reply.data[..]) {
        ([], []) => Ok(Err(error)),
        _ => Err("an error with a body".into()),
    }
}

/// Takes the answer to an INIT.
///
/// # Errors
/// Nothing was agreed.
pub fn begun(id: u64, reply: &Reply, dialect: Dialect) -> Outcome<()> {
    let body = open_reply(id, reply)?.map_err(|error| format!("no session: {error}"))?;
    let (out, _) = InitOut::get(body).ok_or("an INIT without a body")?;
    let wanted = match dialect {
        Dialect::Client => Extensions::BTIME | Extensions::APPEND,
        Dialect::Kernel => Extensions::empty(),
    };
    match out.extensions() == wanted {
        true => Ok(()),
        false => Err(format!("{:?} was agreed", out.extensions())),
    }
}

/// Reads the answer to `call`.
///
/// # Errors
/// It is no answer.
pub fn answer(
    call: &Call,
    id: u64,
    reply: &Reply,
    dialect: Dialect,
) -> Outcome<(Result<Answer>, Beside)> {
    let mut beside = Beside::default();
    let body = match open_reply(id, reply)? {
        Ok(body) => body,
        Err(error) => return Ok((Err(error), beside)),
    };
    let mut reader = Reader { body, btime: dialect == Dialect::Client };
    let data = &reply.data;
    let brings = matches!(
        call,
        Call::Readlink { .. } | Call::Read { .. } | Call::Readdir { .. } | Call::Getxattr { .. }
    );
    if !brings && !data.is_empty() {
        return Err(format!("{call:?} is answered with data"));
    }
    let answer = match call {
        Call::Lookup { .. }
        | Call::Mknod { .. }
        | Call::Mkdir { .. }
        | Call::Symlink { .. }
        | Call::Link { .. } => Answer::Attr(reader.entry(&mut beside)?),
        Call::Getattr { node } | Call::Setattr { node, .. } => {
            let out: AttrOut = reader.take()?;
            beside.valid = out.attr_valid > 0;
            let born = reader.born()?;
            let attr = out.attr.checked(node.on(Side::Served), born);
            Answer::Attr(attr.ok_or("attributes that are none")?)
        }
        Call::Open { .. } | Call::Opendir { .. } => Answer::Opened(reader.open(&mut beside)?),
        Call::Create { .. } => {
            let attr = reader.entry(&mut beside)?;
            Answer::Created(attr, reader.open(&mut beside)?)
        }
        Call::Readlink { .. } | Call::Read { .. } | Call::Getxattr { .. } => {
            Answer::Bytes(data.clone())
        }
        Call::Write { .. } => {
            let out: WriteOut = reader.take()?;
            if dialect == Dialect::Client {
                let _: u64 = reader.take()?;
            }
            Answer::Wrote(out.size as usize)
        }
        Call::Readdir { .. } => Answer::Names(names(data)?),
        Call::Unlink { .. }
        | Call::Rmdir { .. }
        | Call::Rename { .. }
        | Call::Fallocate { .. }
        | Call::Release { .. }
        | Call::Releasedir { .. }
        | Call::Setxattr { .. }
        | Call::Removexattr { .. } => Answer::Done,
    };
    match reader.body {
        [] => Ok((Ok(answer), beside)),
        more => Err(format!("the answer to {call:?} is {} bytes too long", more.len())),
    }
}

fn names(mut rest: &[u8]) -> Outcome<Vec<(Vec<u8>, FileType)>> {
    let mut names = Vec::new();
    while !rest.is_empty() {
        let (entry, after) = get_dirent(rest).ok_or("a listing that is none")?;
        names.push((entry.name.to_vec(), entry.file_type));
        rest = after;
    }
    names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(names)
}

/// The flags with which `dialect` has a file opened: a kernel says at each write where it goes.
pub fn opened_with(flags: OpenFlags, dialect: Dialect) -> OpenFlags {
    match dialect {
        Dialect::Client => flags,
        Dialect::Kernel => flags - OpenFlags::APPEND,
    }
}
