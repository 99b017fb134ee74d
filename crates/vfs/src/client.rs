//! The asking side of the file seam: a [`FileSystem`] whose calls go as FUSE messages over a
//! [`Transport`].
//!
//! Nothing that the server says is trusted further than its meaning: lengths, places in files,
//! names, times and types are checked, and what is none of these is `EIO`.

mod call;
mod kernels;
mod locks;
mod mappings;
mod session;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use atoll_transport::{Token, Transport};

use crate::errno::{Errno, Result};
use crate::filesystem::{FILE_SIZE_MAX, FileSystem, checked_end, copy_by_hand};
use crate::lent::{Lends, Lent, Pages};
use crate::locks::Locks;
use crate::types::*;
use crate::wire::attributes::{AttrOut, EntryOut, GetattrIn, SetattrIn, StatfsOut, Time};
use crate::wire::directory::{DIRENT_MAX, get_dirent};
use crate::wire::files::{
    CopyFileRangeIn, CreateIn, FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FUSE_FSYNC_FDATASYNC,
    FUSE_READ_LOCKOWNER, FallocateIn, FsyncIn, LseekIn, LseekOut, O_APPEND, O_CREAT, OpenIn,
    OpenOut, ReadIn, ReleaseIn, SEEK_DATA, SEEK_HOLE, WriteIn, WriteOut, open_bits,
};
use crate::wire::names::{LinkIn, MkdirIn, MknodIn, Rename2In};
use crate::wire::xattrs::{GetxattrIn, SetxattrIn, xattr_name};
use crate::wire::{Extensions, Fixed, REPLY_MAX, REQUEST_MAX, Request};
use call::Failed;
use kernels::Tree;
pub use session::ClientOptions;

/// The most bytes of one READDIR.
const LISTING: usize = 32 << 10;
/// The least that a transport must carry as data, in bytes.
const DATA_MIN: usize = 4096;
/// The first try at an extended attribute, or their names: most are shorter.
const XATTR_FIRST: usize = 512;
/// How many answers that nobody needs may be under way: fewer than any transport holds.
const UNREAD: usize = 4;
/// How many inodes wait to be forgotten together.
const FORGETS: usize = 32;

/// A file system on the other side of a [`Transport`].
///
/// Differences from the contract of [`FileSystem`]:
/// - A call whose server is lost, or breaks the protocol, is `EIO`; it may have been carried out or
///   not. Error numbers that [`Errno`] does not know are `EIO` too. A call that the server has not
///   implemented is `EOPNOTSUPP`.
/// - Reads and writes larger than server and transport carry at once are several requests, each
///   atomic by itself.
/// - [`forget`](FileSystem::forget) gathers forgotten inodes and tells the server now and then.
/// - [`release`](FileSystem::release) of an open file does not wait for the server, as in Linux:
///   the storage of an unlinked file may come back a moment later.
/// - The time of a call is the server's unless [`Extensions::TIME`] was agreed, the identity
///   whatever the server knows of this process.
///
/// With a server that has none of Atoll's extensions, also:
/// - [`Attr::btime`] is 0.
/// - A write to a handle with APPEND asks for the length first: two clients that append at once may
///   overwrite one another, unless the server appends by itself.
/// - A listing has the inode numbers that the server shows to users, which may differ from those of
///   [`lookup`](FileSystem::lookup).
#[derive(Debug)]
pub struct Client<T> {
    transport: T,
    agreed: Extensions,
    /// Whether the server empties files that are opened with TRUNC.
    truncates: bool,
    /// Whether the server copies from file to file, as far as is known.
    copies: bool,
    max_data: usize,
    /// The unit of what is mapped by SETUPMAPPING, in bytes.
    map_unit: u64,
    unique: u64,
    /// Open files by their handles, and whether they have APPEND at a server that does not say
    /// where appended data went.
    open: BTreeMap<u64, (Ino, bool)>,
    /// What the last answer said of how long it holds.
    lent: Lent,
    /// Requests whose answer nobody needs, the oldest first.
    unread: VecDeque<Token>,
    /// How many requests wait for locks.
    waits: u32,
    forgets: Vec<u8>,
    /// What a server for kernels does not say.
    tree: Tree,
    listing: Vec<u8>,
    request: [u8; REQUEST_MAX],
    reply: [u8; REPLY_MAX],
}

/// For how long an answer holds.
fn seconds(whole: u64, nanoseconds: u32) -> Duration {
    Duration::from_secs(whole).saturating_add(Duration::from_nanos(nanoseconds.into()))
}

impl<T: Transport> Client<T> {
    fn attr(&mut self, cx: &Context, ino: Ino, request: &Request<'_>) -> Result<Attr> {
        self.call(cx, ino, request, AttrOut::SIZE + self.btime_size(), &mut [])?;
        let body = AttrOut::load(self.body());
        self.lent.attributes = seconds(body.attr_valid, body.attr_valid_nsec);
        let btime = self.btime(AttrOut::SIZE)?;
        body.attr.checked(ino, btime).ok_or(Errno::EIO)
    }

    /// Sends what finds or makes a name; `more` bytes of answer follow those of the entry.
    fn entry(
        &mut self,
        cx: &Context,
        parent: Ino,
        request: &Request<'_>,
        more: usize,
    ) -> Result<Attr> {
        self.call(cx, parent, request, EntryOut::SIZE + self.btime_size() + more, &mut [])?;
        let body = EntryOut::load(self.body());
        if body.nodeid == 0 && matches!(request, Request::Lookup { .. }) {
            // That a name is missing, told in a way that lets it be remembered.
            return Err(Errno::ENOENT);
        }
        self.lent.name = seconds(body.entry_valid, body.entry_valid_nsec);
        self.lent.attributes = seconds(body.attr_valid, body.attr_valid_nsec);
        let btime = self.btime(EntryOut::SIZE)?;
        body.attr.checked(Ino(body.nodeid), btime).ok_or(Errno::EIO)
    }

    fn btime_size(&self) -> usize {
        if self.agreed.contains(Extensions::BTIME) { Time::SIZE } else { 0 }
    }

    fn btime(&self, at: usize) -> Result<Timespec> {
        if !self.agreed.contains(Extensions::BTIME) {
            return Ok(Timespec::default());
        }
        Time::load(&self.body()[at..]).checked().ok_or(Errno::EIO)
    }

    fn opened(&mut self, at: usize, ino: Ino, flags: OpenFlags) -> Handle {
        let OpenOut { fh, open_flags, .. } = OpenOut::load(&self.body()[at..]);
        let handle = Handle(fh);
        self.lent.pages = match open_flags & (FOPEN_DIRECT_IO | FOPEN_KEEP_CACHE) {
            0 => Pages::Fresh,
            FOPEN_KEEP_CACHE => Pages::Kept,
            _ => Pages::Direct,
        };
        let finds_end =
            flags.contains(OpenFlags::APPEND) && !self.agreed.contains(Extensions::APPEND);
        self.open.insert(handle.0, (ino, finds_end));
        handle
    }

    fn created(
        &mut self,
        cx: &Context,
        parent: Ino,
        request: &Request<'_>,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let attr = self.entry(cx, parent, request, OpenOut::SIZE)?;
        let handle = self.opened(EntryOut::SIZE + self.btime_size(), attr.ino, flags);
        Ok((attr, handle))
    }

    /// Makes a file, or opens what is there where the server knows how.
    fn create_new(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let args = CreateIn { flags: open_bits(flags) | O_CREAT, mode, ..CreateIn::default() };
        self.created(cx, parent, &Request::Create { args, name }, flags)
    }

    /// Writes at the end of the file, wherever that is by then, through a handle without APPEND.
    /// Data larger than server and transport carry at once is written in part.
    ///
    /// # Errors
    /// Those of [`write`](FileSystem::write); `EOPNOTSUPP` when the server does not append.
    pub fn append_to(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        data: &[u8],
    ) -> Result<Written> {
        if !self.agreed.contains(Extensions::APPEND) {
            return Err(Errno::EOPNOTSUPP);
        }
        loop {
            let piece = &data[..data.len().min(self.max_data)];
            match self.write_piece(cx, ino, handle, 0, piece, O_APPEND) {
                Err(Failed::TooLarge) if self.narrower(piece.len()) => {}
                result => return Ok(result?),
            }
        }
    }

    /// Writes what one request carries, with these flags of open(2). Returns where it went.
    fn write_piece(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: u32,
    ) -> core::result::Result<Written, Failed> {
        let told = self.agreed.contains(Extensions::APPEND);
        let size = data.len() as u32;
        let args = WriteIn { fh: handle.0, offset, size, flags, ..WriteIn::default() };
        let body = WriteOut::SIZE + if told { u64::SIZE } else { 0 };
        self.try_call(cx, ino, &Request::Write { args, data: data.into() }, body, &mut [])?;
        let len = WriteOut::load(self.body()).size as usize;
        if len > data.len() {
            return Err(Failed::With(Errno::EIO));
        }
        let offset = if told { u64::load(&self.body()[WriteOut::SIZE..]) } else { offset };
        // Callers go on from where it ends.
        if told && checked_end(offset, len as u64).is_err() {
            return Err(Failed::With(Errno::EIO));
        }
        Ok(Written { len, offset })
    }

    /// Appends what `request` answers to `out`: at most `most` bytes.
    fn append(
        &mut self,
        cx: &Context,
        ino: Ino,
        request: &Request<'_>,
        most: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let before = out.len();
        out.resize(before + most, 0);
        let result = self.call(cx, ino, request, 0, &mut out[before..]);
        out.truncate(before + result.unwrap_or(0));
        result.map(drop)
    }

    /// Appends what `request`, given a length, answers to `out`: a short length first.
    fn append_sized<'r>(
        &mut self,
        cx: &Context,
        ino: Ino,
        request: impl Fn(GetxattrIn) -> Request<'r>,
        most: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let args = |size: usize| GetxattrIn { size: size as u32, padding: 0 };
        match self.append(cx, ino, &request(args(XATTR_FIRST)), XATTR_FIRST, out) {
            Err(Errno::ERANGE) => self.append(cx, ino, &request(args(most)), most, out),
            result => result,
        }
    }

    /// Reads by requests with these flags.
    fn read_with(
        &mut self,
        cx: &Context,
        (ino, handle): (Ino, Handle),
        offset: u64,
        buf: &mut [u8],
        read_flags: u32,
    ) -> Result<usize> {
        let mut done = 0;
        loop {
            let size = (buf.len() - done).min(self.max_data);
            let Some(offset) = offset.checked_add(done as u64) else { return Ok(done) };
            let size32 = size as u32;
            let args =
                ReadIn { fh: handle.0, offset, size: size32, read_flags, ..ReadIn::default() };
            let place = &mut buf[done..done + size];
            match self.try_call(cx, ino, &Request::Read(args), 0, place) {
                Ok(got) => {
                    done += got;
                    if got < size || done == buf.len() {
                        return Ok(done);
                    }
                }
                Err(Failed::TooLarge) if self.narrower(size) => {}
                // Bytes that were read before count, as with read(2).
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Lists one batch of entries, to the end of `emit`'s patience. Returns where to go on, or
    /// `None` when that is over.
    fn list(
        &mut self,
        cx: &Context,
        ino: Ino,
        args: ReadIn,
        place: &mut [u8],
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> core::result::Result<Option<u64>, Failed> {
        let len = self.try_call(cx, ino, &Request::Readdir(args), 0, place)?;
        let mut rest = &place[..len];
        let mut cookie = args.offset;
        while !rest.is_empty() {
            let (entry, after) = get_dirent(rest).ok_or(Errno::EIO)?;
            if entry.cookie == 0 {
                return Err(Errno::EIO.into());
            }
            if !emit(&entry) {
                return Ok(None);
            }
            (cookie, rest) = (entry.cookie, after);
        }
        // A batch that ends where it began would be listed for ever.
        match (len, cookie == args.offset) {
            (0, _) => Ok(None),
            (_, true) => Err(Errno::EIO.into()),
            // An Atoll server would have given any further entry that has room: the list is
            // complete, and of one moment. Others may give as few as they like.
            (_, false) if len + DIRENT_MAX <= place.len() && !self.agreed().is_empty() => Ok(None),
            (_, false) => Ok(Some(cookie)),
        }
    }
}

impl<T: Transport> Lends for Client<T> {
    fn lent(&self) -> Lent {
        self.lent
    }

    fn read_to_keep(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.read_with(cx, (ino, handle), offset, buf, 0)
    }
}

impl<T: Transport> FileSystem for Client<T> {
    fn shared_locks(&mut self) -> Option<&mut dyn Locks> {
        Some(self)
    }

    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        if self.is_for_kernels() && name.is_dot_or_dot_dot() {
            return self.lookup_dots(cx, parent, name);
        }
        let answer = self.entry(cx, parent, &Request::Lookup { name }, 0);
        self.note(parent, answer)
    }

    fn forget(&mut self, ino: Ino, count: u64) {
        // A kernel never forgets the root, and servers count on that.
        if ino != Ino::ROOT {
            self.forget_known(ino, count);
        }
    }

    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        self.attr(cx, ino, &Request::Getattr(GetattrIn::default()))
    }

    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        let args = SetattrIn::new(handle.map(|handle| handle.0), set);
        self.attr(cx, ino, &Request::Setattr(args))
    }

    fn readlink(&mut self, cx: &Context, ino: Ino, target: &mut Vec<u8>) -> Result<()> {
        self.append(cx, ino, &Request::Readlink, SYMLINK_MAX + 1, target)
    }

    fn mknod(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let args = MknodIn { mode, rdev, ..MknodIn::default() };
        self.entry(cx, parent, &Request::Mknod { args, name }, 0)
    }

    fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr> {
        let args = MkdirIn { mode, umask: 0 };
        let answer = self.entry(cx, parent, &Request::Mkdir { args, name }, 0);
        self.note(parent, answer)
    }

    fn symlink(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        target: &[u8],
    ) -> Result<Attr> {
        if target.len() > SYMLINK_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if target.contains(&0) {
            return Err(Errno::EINVAL);
        }
        let mut ended = Vec::with_capacity(target.len() + 1);
        ended.extend_from_slice(target);
        ended.push(0);
        self.entry(cx, parent, &Request::Symlink { name, target: &ended }, 0)
    }

    fn unlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        let done = self.simple(cx, parent, &Request::Unlink { name });
        self.or_missing(cx, parent, name, done)
    }

    fn rmdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        let done = self.simple(cx, parent, &Request::Rmdir { name });
        self.or_missing(cx, parent, name, done)
    }

    fn rename(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        new_parent: Ino,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let args = Rename2In { newdir: new_parent.0, flags: flags.bits(), padding: 0 };
        let done = self.simple(cx, parent, &Request::Rename { args, name, new_name });
        self.or_missing(cx, parent, name, done)?;
        if parent != new_parent {
            self.moved(cx, new_parent, new_name);
            if flags.contains(RenameFlags::EXCHANGE) {
                self.moved(cx, parent, name);
            }
        }
        Ok(())
    }

    fn link(
        &mut self,
        cx: &Context,
        ino: Ino,
        new_parent: Ino,
        new_name: Name<'_>,
    ) -> Result<Attr> {
        let args = LinkIn { oldnodeid: ino.0 };
        self.entry(cx, new_parent, &Request::Link { args, new_name }, 0)
    }

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let sent = if self.truncates { flags } else { flags - OpenFlags::TRUNC };
        let args = OpenIn { flags: open_bits(sent), open_flags: 0 };
        self.call(cx, ino, &Request::Open(args), OpenOut::SIZE, &mut [])?;
        let handle = self.opened(0, ino, flags);
        if sent != flags {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            if let Err(error) = self.setattr(cx, ino, Some(handle), &set) {
                let _ = self.release(cx, ino, handle);
                return Err(error);
            }
        }
        Ok(handle)
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let asks = self.is_for_kernels() && !name.is_dot_or_dot_dot();
        if !asks || flags.contains(OpenFlags::EXCL) {
            return self.create_new(cx, parent, name, mode, flags);
        }
        // Some such servers end at a request to create what is there.
        match self.lookup(cx, parent, name) {
            Err(Errno::ENOENT) => {
                let made = self.create_new(cx, parent, name, mode, flags | OpenFlags::EXCL);
                match made {
                    // Another client was faster.
                    Err(Errno::EEXIST) => self.lookup(cx, parent, name),
                    made => return made,
                }
            }
            found => found,
        }
        .and_then(|attr| {
            let opened = self.open_found(cx, attr, flags);
            if opened.is_err() {
                // The caller does not learn that it was given.
                self.forget(attr.ino, 1);
            }
            opened
        })
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let flags = flags - OpenFlags::EXCL;
        let args = CreateIn { flags: open_bits(flags), mode, ..CreateIn::default() };
        self.created(cx, parent, &Request::Tmpfile(args), flags)
    }

    fn read(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        // As a kernel says of a read that passes its page cache by.
        let flags = if self.is_for_kernels() { FUSE_READ_LOCKOWNER } else { 0 };
        self.read_with(cx, (ino, handle), offset, buf, flags)
    }

    fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        let (mut at, mut flags) = (offset, 0);
        if !self.agreed.contains(Extensions::APPEND)
            && self.open.get(&handle.0).is_some_and(|open| open.1)
        {
            // As a kernel does: some servers look at the flag, and find the end themselves.
            (at, flags) = (self.getattr(cx, ino)?.size, O_APPEND);
        }
        let mut all = Written { len: 0, offset: at };
        loop {
            let piece = &data[all.len..data.len().min(all.len + self.max_data)];
            let to = at.checked_add(all.len as u64).ok_or(Errno::EFBIG)?;
            match self.write_piece(cx, ino, handle, to, piece, flags) {
                Ok(written) => {
                    if all.len == 0 {
                        all.offset = written.offset;
                    }
                    all.len += written.len;
                    if written.len < piece.len() || all.len == data.len() {
                        return Ok(all);
                    }
                }
                Err(Failed::TooLarge) if self.narrower(piece.len()) => {}
                Err(_) if all.len > 0 => return Ok(all),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn copy_file_range(&mut self, cx: &Context, from: FileAt, to: FileAt, len: u64) -> Result<u64> {
        if self.open.get(&to.handle.0).is_some_and(|open| open.1) {
            return Err(Errno::EBADF);
        }
        if self.copies {
            let args = CopyFileRangeIn {
                fh_in: from.handle.0,
                off_in: from.offset,
                nodeid_out: to.ino.0,
                fh_out: to.handle.0,
                off_out: to.offset,
                len: len.min(u32::MAX.into()),
                flags: 0,
            };
            let request = Request::CopyFileRange(args);
            match self.call(cx, from.ino, &request, WriteOut::SIZE, &mut []) {
                Ok(_) => {
                    let copied = WriteOut::load(self.body()).size.into();
                    return if copied <= len { Ok(copied) } else { Err(Errno::EIO) };
                }
                Err(Errno::EOPNOTSUPP) => self.copies = false,
                Err(error) => return Err(error),
            }
        }
        copy_by_hand(self, cx, from, to, len)
    }

    fn fallocate(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        let args = FallocateIn { fh: handle.0, offset, length: len, mode: mode.bits(), padding: 0 };
        self.simple(cx, ino, &Request::Fallocate(args))
    }

    fn seek(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64> {
        let whence = match to {
            SeekTo::Data => SEEK_DATA,
            SeekTo::Hole => SEEK_HOLE,
        };
        let args = LseekIn { fh: handle.0, offset, whence, padding: 0 };
        self.call(cx, ino, &Request::Lseek(args), LseekOut::SIZE, &mut [])?;
        let found = LseekOut::load(self.body()).offset;
        // A caller that goes from one piece of data to the next would go round for ever.
        if found < offset || found > FILE_SIZE_MAX { Err(Errno::EIO) } else { Ok(found) }
    }

    fn fsync(&mut self, cx: &Context, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        let fsync_flags = if data_only { FUSE_FSYNC_FDATASYNC } else { 0 };
        let args = FsyncIn { fh: handle.0, fsync_flags, padding: 0 };
        self.simple(cx, ino, &Request::Fsync(args))
    }

    fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        let args = ReleaseIn { fh: handle.0, ..ReleaseIn::default() };
        if self.open.get(&handle.0).is_some_and(|open| open.0 == ino) {
            self.open.remove(&handle.0);
            self.send_only(cx, ino, &Request::Release(args))
        } else {
            // The server knows what is wrong with it.
            self.simple(cx, ino, &Request::Release(args))
        }
    }

    fn opendir(&mut self, cx: &Context, ino: Ino) -> Result<Handle> {
        self.call(cx, ino, &Request::Opendir(OpenIn::default()), OpenOut::SIZE, &mut [])?;
        Ok(Handle(OpenOut::load(self.body()).fh))
    }

    fn readdir(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut place = core::mem::take(&mut self.listing);
        let mut cookie = cookie;
        let result = loop {
            let size = self.max_data.min(LISTING);
            place.resize(size, 0);
            let args =
                ReadIn { fh: handle.0, offset: cookie, size: size as u32, ..ReadIn::default() };
            match self.list(cx, ino, args, &mut place, emit) {
                Ok(Some(next)) => cookie = next,
                Ok(None) => break Ok(()),
                Err(Failed::TooLarge) if self.narrower(size) => {}
                Err(error) => break Err(error.into()),
            }
        };
        self.listing = place;
        result
    }

    fn releasedir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        let args = ReleaseIn { fh: handle.0, ..ReleaseIn::default() };
        self.simple(cx, ino, &Request::Releasedir(args))
    }

    fn fsyncdir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        let args = FsyncIn { fh: handle.0, ..FsyncIn::default() };
        self.simple(cx, ino, &Request::Fsyncdir(args))
    }

    fn syncfs(&mut self, cx: &Context) -> Result<()> {
        self.simple(cx, Ino::ROOT, &Request::Syncfs)
    }

    fn statfs(&mut self, cx: &Context) -> Result<StatFs> {
        self.statfs_below(cx, Ino::ROOT)
    }

    fn statfs_below(&mut self, cx: &Context, dir: Ino) -> Result<StatFs> {
        self.call(cx, dir, &Request::Statfs, StatfsOut::SIZE, &mut [])?;
        Ok(StatFs::from(&StatfsOut::load(self.body())))
    }

    fn setxattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::E2BIG);
        }
        let args = SetxattrIn { size: value.len() as u32, flags: flags.bits() };
        self.simple(cx, ino, &Request::Setxattr { args, name: xattr_name(name)?, value })
    }

    fn getxattr(&mut self, cx: &Context, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        let name = xattr_name(name)?;
        let request = |args| Request::Getxattr { args, name };
        self.append_sized(cx, ino, request, XATTR_SIZE_MAX, value)
    }

    fn listxattr(&mut self, cx: &Context, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        let before = names.len();
        self.append_sized(cx, ino, Request::Listxattr, XATTR_LIST_MAX, names)?;
        if names.len() > before && names.last() != Some(&0) {
            names.truncate(before);
            return Err(Errno::EIO);
        }
        Ok(())
    }

    fn removexattr(&mut self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.simple(cx, ino, &Request::Removexattr { name: xattr_name(name)? })
    }
}

const _: () = assert!(DATA_MIN >= DIRENT_MAX && DATA_MIN > SYMLINK_MAX);

#[cfg(test)]
mod tests;
