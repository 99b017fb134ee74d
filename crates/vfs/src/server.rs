//! The serving side of the file seam: one request as bytes, one call of a [`FileSystem`], one reply
//! as bytes.
//!
//! Straight from bytes to the call: no request but those for a link's target, for extended
//! attributes and for a listing with attributes allocates. Those use one buffer, which the file
//! system itself fills (to at most [`XATTR_SIZE_MAX`] bytes), or a listing (to at most
//! `LISTING_MAX`), however much room the client has. Of the buffer only `KEPT` bytes stay:
//! there is one for each lane of each client.

mod listing;

use alloc::vec::Vec;

use crate::errno::{Errno, Result};
use crate::filesystem::FileSystem;
use crate::pieces::Room;
use crate::types::*;
use crate::wire::attributes::{AttrOut, EntryOut, RawAttr, StatfsOut, Terms, Time};
use crate::wire::files::{
    CopyFileRangeIn, CopyFileRangeOut, FUSE_FSYNC_FDATASYNC, LseekOut, OpenOut, SEEK_DATA,
    SEEK_HOLE, WriteOut, open_flags,
};
use crate::wire::header::OutHeader;
use crate::wire::request::is_unanswered;
use crate::wire::session::*;
use crate::wire::xattrs::GetxattrOut;
use crate::wire::{Extensions, Fixed, Malformed, Message, REPLY_MAX, Request};

/// The most bytes of one answer that lists a directory, whatever room there is for it.
const LISTING_MAX: usize = 64 << 10;
/// The most bytes of a session's buffer that stay after a request.
const KEPT: usize = 4096;

/// The FUSE features that a server agrees to.
const FEATURES: u64 = FUSE_ASYNC_READ
    | FUSE_ATOMIC_O_TRUNC
    | FUSE_EXPORT_SUPPORT
    | FUSE_BIG_WRITES
    | FUSE_DO_READDIRPLUS
    | FUSE_READDIRPLUS_AUTO
    | FUSE_PARALLEL_DIROPS
    | FUSE_MAX_PAGES
    | FUSE_INIT_EXT;

/// The terms that a server agrees to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// The most data of one request or reply, in bytes.
    pub max_data: u32,
    /// The extensions to agree to. With [`Extensions::TIME`] the client says what time it is: only
    /// for clients that are trusted.
    pub extensions: Extensions,
    /// For how many seconds the client may rely on names and attributes.
    pub valid: u64,
}

impl Default for ServerOptions {
    /// 1 MiB; all extensions but the client's time; nothing may be relied on.
    fn default() -> Self {
        let extensions = Extensions::BTIME | Extensions::APPEND;
        ServerOptions { max_data: 1 << 20, extensions, valid: 0 }
    }
}

/// The caller, by what is known beside the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// This user and group, whatever the message says.
    Attested {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
    },
    /// The identity that the message names: for a peer that may be anybody, such as the kernel.
    FromHeader,
}

/// The server's knowledge of a request beside its message.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The caller.
    pub identity: Identity,
    /// The time of the call, unless [`Extensions::TIME`] was agreed.
    pub now: Timespec,
}

/// The lengths of a reply. A message of length 0: none is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Bytes of the message, at the front of its place.
    pub message: usize,
    /// Bytes of data, at the front of its place.
    pub data: usize,
}

/// The state of one session: what was agreed, and a buffer.
#[derive(Debug)]
pub struct Server {
    options: ServerOptions,
    terms: Terms,
    /// The extensions that INIT agreed on.
    agreed: Option<Extensions>,
    scratch: Vec<u8>,
}

/// A reply that is being written: the body of the message so far.
struct Out<'r> {
    message: &'r mut [u8],
    at: usize,
    data: usize,
    terms: Terms,
}

impl Out<'_> {
    #[inline]
    fn put<T: Fixed>(&mut self, value: &T) {
        value.store(&mut self.message[self.at..]);
        self.at += T::SIZE;
    }
}

impl Server {
    /// A session that begins.
    pub fn new(options: ServerOptions) -> Self {
        let terms = Terms::all(options.valid);
        Server { options, terms, agreed: None, scratch: Vec::new() }
    }

    /// Has the client be told of files on other `terms` from now on.
    #[inline]
    pub fn set_terms(&mut self, terms: Terms) {
        self.terms = terms;
    }

    /// The extensions to FUSE that the client and this server have agreed to; `None` before INIT.
    pub fn agreed(&self) -> Option<Extensions> {
        self.agreed
    }

    /// Carries out the request in `message` and `data`, and writes the reply to the front of
    /// `reply`, and of `room`, if it brings data. Both are only written, and `data` is only passed
    /// on, so that `data` and `room` may be memory that the client changes meanwhile; `message`
    /// must not be.
    ///
    /// # Errors
    /// [`Malformed`], when there is nothing that an answer could be addressed to: what to do is to
    /// end the session. Every other fault is answered with an error.
    ///
    /// # Panics
    /// When `reply` is shorter than [`REPLY_MAX`].
    #[inline]
    pub fn serve<F: FileSystem + ?Sized>(
        &mut self,
        fs: &mut F,
        caller: &Caller,
        message: &[u8],
        data: &[u8],
        reply: &mut [u8],
        room: &mut [u8],
    ) -> core::result::Result<Reply, Malformed> {
        let message = Message::decode(message, data)?;
        self.answer(fs, caller, &message, reply, room.into())
    }

    /// As [`serve`](Self::serve), for a message that was decoded already by a caller that answers
    /// some requests itself, such as those for locks. A read's room and a write's data may be in
    /// several pieces; all other requests with such are `EINVAL`.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    ///
    /// # Panics
    /// As [`serve`](Self::serve).
    #[inline]
    pub fn answer<F: FileSystem + ?Sized>(
        &mut self,
        fs: &mut F,
        caller: &Caller,
        message: &Message<'_>,
        reply: &mut [u8],
        room: Room<'_>,
    ) -> core::result::Result<Reply, Malformed> {
        assert!(reply.len() >= REPLY_MAX);
        let header = &message.header;
        let terms = self.terms;
        let mut out = Out { message: reply, at: OutHeader::SIZE, data: 0, terms };
        let result = match &message.request {
            Ok(request) => {
                if !request.is_answered() {
                    self.forget(fs, Ino(header.nodeid), request);
                    return Ok(Reply { message: 0, data: 0 });
                }
                let mut cx = Context { uid: header.uid, gid: header.gid, now: caller.now };
                if let Identity::Attested { uid, gid } = caller.identity {
                    (cx.uid, cx.gid) = (uid, gid);
                }
                match (message.time, self.agreed) {
                    (Some(time), Some(agreed)) if agreed.contains(Extensions::TIME) => {
                        cx.now = time;
                    }
                    _ => {}
                }
                self.carry_out(fs, &cx, Ino(header.nodeid), request, &mut out, room)
            }
            Err(_) if is_unanswered(header.opcode) => {
                return Ok(Reply { message: 0, data: 0 });
            }
            Err(error) => Err(*error),
        };
        Ok(finish(header.unique, result, out))
    }

    fn forget<F: FileSystem + ?Sized>(&mut self, fs: &mut F, ino: Ino, request: &Request<'_>) {
        match request {
            Request::Forget(args) => fs.forget(ino, args.nlookup),
            Request::BatchForget(ones) => {
                ones.iter().for_each(|one| fs.forget(Ino(one.nodeid), one.nlookup));
            }
            _ => {}
        }
    }

    #[inline]
    fn carry_out<F: FileSystem + ?Sized>(
        &mut self,
        fs: &mut F,
        cx: &Context,
        ino: Ino,
        request: &Request<'_>,
        out: &mut Out<'_>,
        mut room: Room<'_>,
    ) -> Result<()> {
        let Some(agreed) = self.agreed else {
            return match request {
                Request::Init(args) => self.init(args, out),
                // Nothing has been agreed on.
                _ => Err(Errno::EIO),
            };
        };
        let btime = agreed.contains(Extensions::BTIME);
        match *request {
            Request::Read(args) => {
                let (handle, len) = (Handle(args.fh), args.size as usize);
                if len > room.len() {
                    return Err(Errno::EINVAL);
                }
                room.truncate(len);
                out.data = fs.read_vectored(cx, ino, handle, args.offset, &mut room)?;
            }
            Request::Write { args, data } => {
                let handle = Handle(args.fh);
                let written = fs.write_vectored(cx, ino, handle, args.offset, data)?;
                out.put(&WriteOut { size: written.len as u32, padding: 0 });
                if agreed.contains(Extensions::APPEND) {
                    out.put(&written.offset);
                }
            }
            Request::Getattr(_) => put_attr(out, &fs.getattr(cx, ino)?, btime),
            Request::Lookup { name } => put_entry(out, &fs.lookup(cx, ino, name)?, btime),
            Request::Lseek(args) => {
                let to = match args.whence {
                    SEEK_DATA => SeekTo::Data,
                    SEEK_HOLE => SeekTo::Hole,
                    _ => return Err(Errno::EINVAL),
                };
                let offset = fs.seek(cx, ino, Handle(args.fh), args.offset, to)?;
                out.put(&LseekOut { offset });
            }
            Request::Open(args) => {
                // Without CREAT, which is another request, O_EXCL means nothing.
                let flags = opened(args.flags, agreed) - OpenFlags::EXCL;
                put_open(out, fs.open(cx, ino, flags)?);
            }
            Request::Release(args) => fs.release(cx, ino, Handle(args.fh))?,
            _ => {
                let room = room.one().ok_or(Errno::EINVAL)?;
                let result = self.carry_out_other(fs, cx, ino, request, agreed, out, room);
                self.scratch.clear();
                self.scratch.shrink_to(KEPT);
                return result;
            }
        }
        Ok(())
    }

    /// The rarer requests.
    #[allow(clippy::too_many_arguments)]
    fn carry_out_other<F: FileSystem + ?Sized>(
        &mut self,
        fs: &mut F,
        cx: &Context,
        ino: Ino,
        request: &Request<'_>,
        agreed: Extensions,
        out: &mut Out<'_>,
        room: &mut [u8],
    ) -> Result<()> {
        let btime = agreed.contains(Extensions::BTIME);
        match *request {
            Request::Setattr(args) => {
                let (handle, set) = args.changes().ok_or(Errno::EINVAL)?;
                put_attr(out, &fs.setattr(cx, ino, handle.map(Handle), &set)?, btime);
            }
            Request::Readlink => {
                self.scratch.clear();
                fs.readlink(cx, ino, &mut self.scratch)?;
                out.data = copy(&self.scratch, room).ok_or(Errno::EINVAL)?;
            }
            Request::Symlink { name, target } => {
                let target = target.strip_suffix(&[0]).unwrap_or(target);
                put_entry(out, &fs.symlink(cx, ino, name, target)?, btime);
            }
            Request::Mknod { args, name } => {
                put_entry(out, &fs.mknod(cx, ino, name, args.mode, args.rdev)?, btime);
            }
            Request::Mkdir { args, name } => {
                put_entry(out, &fs.mkdir(cx, ino, name, args.mode & 0o7777)?, btime);
            }
            Request::Unlink { name } => fs.unlink(cx, ino, name)?,
            Request::Rmdir { name } => fs.rmdir(cx, ino, name)?,
            Request::Rename { args, name, new_name } => {
                let flags = RenameFlags::from_bits(args.flags).ok_or(Errno::EINVAL)?;
                fs.rename(cx, ino, name, Ino(args.newdir), new_name, flags)?;
            }
            Request::Link { args, new_name } => {
                put_entry(out, &fs.link(cx, Ino(args.oldnodeid), ino, new_name)?, btime);
            }
            Request::Create { args, name } => {
                let flags = opened(args.flags, agreed);
                let (attr, handle) = fs.create(cx, ino, name, args.mode & 0o7777, flags)?;
                put_entry(out, &attr, btime);
                put_open(out, handle);
            }
            Request::Tmpfile(args) => {
                // O_EXCL says that the file is never to get a name, which the seam does not.
                let flags = opened(args.flags, agreed) - OpenFlags::EXCL;
                let (attr, handle) = fs.tmpfile(cx, ino, args.mode & 0o7777, flags)?;
                put_entry(out, &attr, btime);
                put_open(out, handle);
            }
            Request::Fallocate(args) => {
                let mode = FallocateMode::from_bits(args.mode).ok_or(Errno::EOPNOTSUPP)?;
                fs.fallocate(cx, ino, Handle(args.fh), args.offset, args.length, mode)?;
            }
            Request::CopyFileRange(args) => {
                // The answer counts in 32 bits.
                let size = self.copy(fs, cx, ino, &args, u32::MAX.into())?;
                out.put(&WriteOut { size: size as u32, padding: 0 });
            }
            Request::CopyFileRange64(args) => {
                let bytes_copied = self.copy(fs, cx, ino, &args, u64::MAX)?;
                out.put(&CopyFileRangeOut { bytes_copied });
            }
            Request::Fsync(args) => {
                let data_only = args.fsync_flags & FUSE_FSYNC_FDATASYNC != 0;
                fs.fsync(cx, ino, Handle(args.fh), data_only)?;
            }
            Request::Opendir(_) => put_open(out, fs.opendir(cx, ino)?),
            Request::Readdir(args) => {
                let room = listed(room, args.size)?;
                out.data = listing::plain(fs, cx, ino, Handle(args.fh), args.offset, room)?;
            }
            Request::Readdirplus(args) => {
                let room = listed(room, args.size)?;
                let from = (ino, Handle(args.fh), args.offset);
                let how = (out.terms, btime);
                out.data = listing::with_attributes(fs, cx, from, how, &mut self.scratch, room)?;
            }
            Request::Releasedir(args) => fs.releasedir(cx, ino, Handle(args.fh))?,
            Request::Fsyncdir(args) => fs.fsyncdir(cx, ino, Handle(args.fh))?,
            Request::Syncfs => fs.syncfs(cx)?,
            Request::Statfs => out.put(&StatfsOut::from(&fs.statfs_below(cx, ino)?)),
            Request::Setxattr { args, name, value } => {
                let flags = XattrFlags::from_bits(args.flags).ok_or(Errno::EINVAL)?;
                fs.setxattr(cx, ino, name, value, flags)?;
            }
            Request::Getxattr { args, name } => {
                self.scratch.clear();
                fs.getxattr(cx, ino, name, &mut self.scratch)?;
                self.sized(args.size, out, room)?;
            }
            Request::Listxattr(args) => {
                self.scratch.clear();
                fs.listxattr(cx, ino, &mut self.scratch)?;
                self.sized(args.size, out, room)?;
            }
            Request::Removexattr { name } => fs.removexattr(cx, ino, name)?,
            Request::Init(args) => return self.init(&args, out),
            Request::Destroy => self.agreed = None,
            // Answered above, or not at all; the rest is for servers that know of locks, requests
            // under way and permissions. The kernel asks none of these again.
            _ => return Err(Errno::ENOSYS),
        }
        Ok(())
    }

    fn copy<F: FileSystem + ?Sized>(
        &mut self,
        fs: &mut F,
        cx: &Context,
        ino: Ino,
        args: &CopyFileRangeIn,
        most: u64,
    ) -> Result<u64> {
        if args.flags != 0 {
            return Err(Errno::EINVAL);
        }
        let from = FileAt { ino, handle: Handle(args.fh_in), offset: args.off_in };
        let to =
            FileAt { ino: Ino(args.nodeid_out), handle: Handle(args.fh_out), offset: args.off_out };
        fs.copy_file_range(cx, from, to, args.len.min(most))
    }

    /// Answers with the buffer, if the client has room, or with its length, if `size` is 0.
    fn sized(&mut self, size: u32, out: &mut Out<'_>, room: &mut [u8]) -> Result<()> {
        if size == 0 {
            out.put(&GetxattrOut { size: self.scratch.len() as u32, padding: 0 });
            return Ok(());
        }
        let room = room.get_mut(..size as usize).ok_or(Errno::EINVAL)?;
        out.data = copy(&self.scratch, room).ok_or(Errno::ERANGE)?;
        Ok(())
    }

    fn init(&mut self, args: &InitIn, out: &mut Out<'_>) -> Result<()> {
        if args.major < MAJOR || (args.major == MAJOR && args.minor < MINOR_MIN) {
            return Err(Errno::EIO);
        }
        let mut answer = InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() };
        if args.major == MAJOR {
            let features = args.features() & FEATURES;
            let extensions = args.extensions() & self.options.extensions;
            answer.minor = MINOR.min(args.minor);
            answer.max_readahead = args.max_readahead.min(self.options.max_data);
            answer.flags = features as u32;
            answer.flags2 = (features >> 32) as u32;
            answer.max_background = 64;
            answer.congestion_threshold = 48;
            answer.max_write = self.options.max_data;
            answer.max_pages =
                u16::try_from(self.options.max_data.div_ceil(4096)).unwrap_or(u16::MAX);
            answer.time_gran = 1;
            if !extensions.is_empty() {
                answer.flags2 |= FLAGS2_ATOLL;
                answer.atoll = extensions.bits();
            }
            self.agreed = Some(extensions);
        }
        // A client of a later major version begins again with ours.
        out.put(&answer);
        Ok(())
    }
}

/// The part of `room` that a listing may fill.
fn listed(room: &mut [u8], size: u32) -> Result<&mut [u8]> {
    let room = room.get_mut(..size as usize).ok_or(Errno::EINVAL)?;
    let most = room.len().min(LISTING_MAX);
    Ok(&mut room[..most])
}

/// The flags of an open. A client that did not agree to [`Extensions::APPEND`] finds the end of the
/// file itself, as the kernel does, and may clear O_APPEND at any time without saying so.
#[inline]
fn opened(bits: u32, agreed: Extensions) -> OpenFlags {
    let flags = open_flags(bits);
    if agreed.contains(Extensions::APPEND) { flags } else { flags - OpenFlags::APPEND }
}

#[inline]
fn put_attr(out: &mut Out<'_>, attr: &Attr, btime: bool) {
    let attr_valid = out.terms.of(attr.mode);
    let attr_raw = RawAttr { blksize: out.terms.block, ..RawAttr::from(attr) };
    out.put(&AttrOut { attr_valid, attr: attr_raw, ..AttrOut::default() });
    if btime {
        out.put(&Time::from(attr.btime));
    }
}

#[inline]
fn put_entry(out: &mut Out<'_>, attr: &Attr, btime: bool) {
    out.put(&EntryOut::new(attr, out.terms));
    if btime {
        out.put(&Time::from(attr.btime));
    }
}

#[inline]
fn put_open(out: &mut Out<'_>, handle: Handle) {
    out.put(&OpenOut { fh: handle.0, ..OpenOut::default() });
}

fn copy(from: &[u8], to: &mut [u8]) -> Option<usize> {
    to.get_mut(..from.len())?.copy_from_slice(from);
    Some(from.len())
}

#[inline]
fn finish(unique: u64, result: Result<()>, out: Out<'_>) -> Reply {
    let (reply, error) = match result {
        Ok(()) => (Reply { message: out.at, data: out.data }, 0),
        Err(error) => (Reply { message: OutHeader::SIZE, data: 0 }, -error.raw()),
    };
    let len = (reply.message + reply.data) as u32;
    OutHeader { len, error, unique }.store(out.message);
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelFs;
    use crate::wire::files::ReadIn;
    use crate::wire::header::InHeader;
    use crate::wire::opcode::{FUSE_GETXATTR, FUSE_READDIR, FUSE_READDIRPLUS};
    use crate::wire::xattrs::GetxattrIn;

    /// However much room a client has, what one request takes of the server's memory is bounded,
    /// and hardly any of it stays.
    #[test]
    fn room_costs_the_server_nothing() {
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let mut fs = ModelFs::new(0o755, cx.now);
        let names = 2000;
        for i in 0..names {
            let name = alloc::format!("a-name-of-some-length-{i}");
            fs.mkdir(&cx, Ino::ROOT, Name::new(name.as_bytes()).unwrap(), 0o700).unwrap();
        }
        fs.setxattr(&cx, Ino::ROOT, b"user.long", &[7; 40_000], XattrFlags::empty()).unwrap();
        let handle = fs.opendir(&cx, Ino::ROOT).unwrap();
        let mut server = Server::new(ServerOptions::default());
        server.agreed = Some(Extensions::empty());
        let mut room = alloc::vec![0; 4 << 20];
        let mut reply = [0; REPLY_MAX];
        let caller = Caller { identity: Identity::FromHeader, now: cx.now };
        let mut ask = |opcode, args: &[u8], room: &mut [u8]| {
            let len = InHeader::SIZE + args.len();
            let mut message = alloc::vec![0; len];
            InHeader { len: len as u32, opcode, unique: 1, nodeid: 1, ..InHeader::default() }
                .store(&mut message);
            message[InHeader::SIZE..].copy_from_slice(args);
            let answer = server.serve(&mut fs, &caller, &message, &[], &mut reply, room).unwrap();
            assert_eq!(OutHeader::load(&reply).error, 0);
            assert!(server.scratch.capacity() <= KEPT, "{}", server.scratch.capacity());
            answer.data
        };
        for (opcode, front) in [(FUSE_READDIR, 0), (FUSE_READDIRPLUS, EntryOut::SIZE)] {
            let (mut offset, mut found) = (0, 0);
            loop {
                let size = room.len() as u32;
                let args = ReadIn { fh: handle.0, offset, size, ..ReadIn::default() };
                let mut bytes = [0; ReadIn::SIZE];
                args.store(&mut bytes);
                let len = ask(opcode, &bytes, &mut room);
                assert!(len <= LISTING_MAX, "{len}");
                if len == 0 {
                    break;
                }
                let mut at = 0;
                while at < len {
                    let (entry, rest) =
                        crate::wire::directory::get_dirent(&room[at + front..len]).unwrap();
                    (offset, found) = (entry.cookie, found + 1);
                    at = len - rest.len();
                }
            }
            assert_eq!(found, names + 2);
        }
        let mut args = alloc::vec![0; GetxattrIn::SIZE];
        GetxattrIn { size: room.len() as u32, padding: 0 }.store(&mut args);
        args.extend(b"user.long\0");
        assert_eq!(ask(FUSE_GETXATTR, &args, &mut room), 40_000);
    }
}
