//! Requests: from bytes to what is asked, and back.

use super::attributes::{GetattrIn, SetattrIn, StatxIn};
use super::files::{
    BmapIn, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, FsyncIn, IoctlIn, LseekIn, OpenIn,
    PollIn, ReadIn, ReleaseIn, SyncfsIn, WriteIn,
};
use super::fixed::Fixed;
use super::header::{EXT_TIME_SIZE, InHeader, find_time, put_time};
use super::locks::LkIn;
use super::mappings::{RemovemappingIn, SetupmappingIn, Unmapped};
use super::names::{
    AccessIn, BatchForgetIn, ForgetIn, Forgets, LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn,
    name, string,
};
use super::notices::NotifyRetrieveIn;
use super::opcode::*;
use super::session::{INIT_IN_OLD_SIZE, InitIn, InterruptIn};
use super::xattrs::{GetxattrIn, SetxattrIn};
use crate::errno::{Errno, Result};
use crate::pieces::Data;
use crate::types::{Name, Timespec};

/// A request that is none: what came is no FUSE, and neither will be what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Declares what can be asked, by which number. Those of which nothing but the arguments goes are
/// `plain`: they are read and written alike.
macro_rules! requests {
    (
        $(#[$meta:meta])*
        pub enum $name:ident<$a:lifetime> {
            $(
                $(#[$doc:meta])*
                $other:ident $(($one:ty))? $({ $($field:ident: $type:ty),* })? = $other_number:ident;
            )*
        }
        plain { $($(#[$plain_doc:meta])* $plain:ident($args:ty) = $number:ident;)* }
    ) => {
        $(#[$meta])*
        pub enum $name<$a> {
            $($(#[$doc])* $other $(($one))? $({ $($field: $type),* })?,)*
            $($(#[$plain_doc])* $plain($args),)*
        }

        impl<$a> $name<$a> {
            /// The number that asks this.
            pub const fn opcode(&self) -> u32 {
                match self {
                    $($name::$other { .. } => $other_number,)*
                    $($name::$plain(_) => $number,)*
                }
            }

            /// A plain request; `ENOSYS` for the number of another.
            fn decode_plain(opcode: u32, body: &$a [u8]) -> Result<$name<$a>> {
                Ok(match opcode {
                    $($number => $name::$plain(args(body)?.0),)*
                    _ => return Err(Errno::ENOSYS),
                })
            }

            /// Writes the arguments of a plain request.
            #[inline]
            fn encode_plain(&self, w: &mut Writer<'_>) -> Option<()> {
                match self {
                    $($name::$plain(args) => w.put(args),)*
                    _ => None,
                }
            }
        }
    };
}

requests! {
    /// A request: its arguments as they came, names checked, nothing copied but numbers.
    #[derive(Clone, Copy, Debug, PartialEq)]
    #[allow(missing_docs)]
    pub enum Request<'a> {
        Lookup { name: Name<'a> } = FUSE_LOOKUP;
        BatchForget(Forgets<'a>) = FUSE_BATCH_FORGET;
        Readlink = FUSE_READLINK;
        /// `target` ends with its NUL, and is data.
        Symlink { name: Name<'a>, target: &'a [u8] } = FUSE_SYMLINK;
        Mknod { args: MknodIn, name: Name<'a> } = FUSE_MKNOD;
        Mkdir { args: MkdirIn, name: Name<'a> } = FUSE_MKDIR;
        Unlink { name: Name<'a> } = FUSE_UNLINK;
        Rmdir { name: Name<'a> } = FUSE_RMDIR;
        /// RENAME too, which has no flags.
        Rename { args: Rename2In, name: Name<'a>, new_name: Name<'a> } = FUSE_RENAME2;
        Link { args: LinkIn, new_name: Name<'a> } = FUSE_LINK;
        Create { args: CreateIn, name: Name<'a> } = FUSE_CREATE;
        Tmpfile(CreateIn) = FUSE_TMPFILE;
        /// `data` has the length that `args` say.
        Write { args: WriteIn, data: Data<'a> } = FUSE_WRITE;
        Syncfs = FUSE_SYNCFS;
        Statfs = FUSE_STATFS;
        /// `value` has the length that `args` say, and is data. `name` is 1 byte or more.
        Setxattr { args: SetxattrIn, name: &'a [u8], value: &'a [u8] } = FUSE_SETXATTR;
        /// `name` is 1 byte or more.
        Getxattr { args: GetxattrIn, name: &'a [u8] } = FUSE_GETXATTR;
        /// `name` is 1 byte or more.
        Removexattr { name: &'a [u8] } = FUSE_REMOVEXATTR;
        Destroy = FUSE_DESTROY;
        Removemapping(Unmapped<'a>) = FUSE_REMOVEMAPPING;
        /// `data` has the length that `args` say.
        NotifyReply { args: NotifyRetrieveIn, data: &'a [u8] } = FUSE_NOTIFY_REPLY;
    }
    plain {
        Forget(ForgetIn) = FUSE_FORGET;
        Getattr(GetattrIn) = FUSE_GETATTR;
        Setattr(SetattrIn) = FUSE_SETATTR;
        Open(OpenIn) = FUSE_OPEN;
        Read(ReadIn) = FUSE_READ;
        Fallocate(FallocateIn) = FUSE_FALLOCATE;
        Lseek(LseekIn) = FUSE_LSEEK;
        CopyFileRange(CopyFileRangeIn) = FUSE_COPY_FILE_RANGE;
        CopyFileRange64(CopyFileRangeIn) = FUSE_COPY_FILE_RANGE_64;
        Statx(StatxIn) = FUSE_STATX;
        Setupmapping(SetupmappingIn) = FUSE_SETUPMAPPING;
        Poll(PollIn) = FUSE_POLL;
        Bmap(BmapIn) = FUSE_BMAP;
        Flush(FlushIn) = FUSE_FLUSH;
        Fsync(FsyncIn) = FUSE_FSYNC;
        Release(ReleaseIn) = FUSE_RELEASE;
        Opendir(OpenIn) = FUSE_OPENDIR;
        Readdir(ReadIn) = FUSE_READDIR;
        Readdirplus(ReadIn) = FUSE_READDIRPLUS;
        Releasedir(ReleaseIn) = FUSE_RELEASEDIR;
        Fsyncdir(FsyncIn) = FUSE_FSYNCDIR;
        Listxattr(GetxattrIn) = FUSE_LISTXATTR;
        Access(AccessIn) = FUSE_ACCESS;
        Getlk(LkIn) = FUSE_GETLK;
        Setlk(LkIn) = FUSE_SETLK;
        Setlkw(LkIn) = FUSE_SETLKW;
        Init(InitIn) = FUSE_INIT;
        Interrupt(InterruptIn) = FUSE_INTERRUPT;
        /// Data is not read.
        Ioctl(IoctlIn) = FUSE_IOCTL;
    }
}

/// A message of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message<'a> {
    /// The header in front.
    pub header: InHeader,
    /// The client's time, if it said one.
    pub time: Option<Timespec>,
    /// The request, or the error to answer.
    pub request: Result<Request<'a>>,
}

#[inline]
fn args<T: Fixed>(bytes: &[u8]) -> Result<(T, &[u8])> {
    T::get(bytes).ok_or(Errno::EINVAL)
}

/// The data of a request: at the end of the message, or beside it.
#[inline]
fn payload<'a>(rest: &'a [u8], data: Data<'a>) -> Result<Data<'a>> {
    match (rest.is_empty(), data.is_empty()) {
        (true, _) => Ok(data),
        (false, true) => Ok(rest.into()),
        (false, false) => Err(Errno::EINVAL),
    }
}

/// The same, of a request whose data always comes in one piece.
fn in_one<'a>(rest: &'a [u8], data: Data<'a>) -> Result<&'a [u8]> {
    payload(rest, data)?.one().ok_or(Errno::EINVAL)
}

fn xattr(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let (name, rest) = string(bytes)?;
    if name.is_empty() {
        return Err(Errno::ERANGE);
    }
    Ok((name, rest))
}

/// Whether a request with this number is one that gets no reply, whatever becomes of it.
pub const fn is_unanswered(opcode: u32) -> bool {
    matches!(opcode, FUSE_FORGET | FUSE_BATCH_FORGET | FUSE_NOTIFY_REPLY)
}

impl<'a> Message<'a> {
    /// Reads a message and its data, which may lie in several pieces where it is a write's. Bytes
    /// that a newer FUSE has added after what is known are passed over.
    ///
    /// # Errors
    /// [`Malformed`] when the header is cut off, or counts other lengths than these.
    #[inline]
    pub fn decode(
        message: &'a [u8],
        data: impl Into<Data<'a>>,
    ) -> core::result::Result<Self, Malformed> {
        let data = data.into();
        let (header, body) = InHeader::get(message).ok_or(Malformed)?;
        if header.len as usize != message.len() + data.len() {
            return Err(Malformed);
        }
        if header.total_extlen == 0 {
            let request = Request::decode(header.opcode, body, data);
            return Ok(Message { header, time: None, request });
        }
        let extensions = usize::from(header.total_extlen) * 8;
        let at = body.len().checked_sub(extensions).ok_or(Malformed)?;
        let (body, extensions) = body.split_at(at);
        let request = Request::decode(header.opcode, body, data);
        Ok(Message { header, time: find_time(extensions), request })
    }
}

impl<'a> Request<'a> {
    /// The request of `opcode` with the arguments in `body` and with `data`.
    ///
    /// # Errors
    /// `ENOSYS` for an opcode that is not known; `EINVAL` for arguments that are cut off; the
    /// errors of [`Name::new`].
    #[inline]
    pub fn decode(opcode: u32, body: &'a [u8], data: Data<'a>) -> Result<Request<'a>> {
        Ok(match opcode {
            FUSE_READ => Request::Read(args(body)?.0),
            FUSE_WRITE => {
                let (args, rest) = args::<WriteIn>(body)?;
                let data = payload(rest, data)?;
                if data.len() != args.size as usize {
                    return Err(Errno::EINVAL);
                }
                Request::Write { args, data }
            }
            FUSE_GETATTR => Request::Getattr(args(body)?.0),
            FUSE_LOOKUP => Request::Lookup { name: name(body)?.0 },
            FUSE_LSEEK => Request::Lseek(args(body)?.0),
            FUSE_OPEN => Request::Open(args(body)?.0),
            FUSE_RELEASE => Request::Release(args(body)?.0),
            _ => return Request::decode_other(opcode, body, data),
        })
    }

    /// The rarer requests.
    fn decode_other(opcode: u32, body: &'a [u8], data: Data<'a>) -> Result<Request<'a>> {
        Ok(match opcode {
            FUSE_BATCH_FORGET => {
                let (args, rest) = args::<BatchForgetIn>(body)?;
                let ones = Forgets::new(rest).ok_or(Errno::EINVAL)?;
                if ones.count() != args.count as usize {
                    return Err(Errno::EINVAL);
                }
                Request::BatchForget(ones)
            }
            FUSE_READLINK => Request::Readlink,
            FUSE_SYMLINK => {
                let (name, rest) = name(body)?;
                let target = in_one(rest, data)?;
                if target.last() != Some(&0) {
                    return Err(Errno::EINVAL);
                }
                Request::Symlink { name, target }
            }
            FUSE_MKNOD => {
                let (args, rest) = args(body)?;
                Request::Mknod { args, name: name(rest)?.0 }
            }
            FUSE_MKDIR => {
                let (args, rest) = args(body)?;
                Request::Mkdir { args, name: name(rest)?.0 }
            }
            FUSE_UNLINK => Request::Unlink { name: name(body)?.0 },
            FUSE_RMDIR => Request::Rmdir { name: name(body)?.0 },
            FUSE_RENAME => {
                let (args, rest) = args::<RenameIn>(body)?;
                let (name, rest) = name(rest)?;
                let new_name = super::names::name(rest)?.0;
                let args = Rename2In { newdir: args.newdir, flags: 0, padding: 0 };
                Request::Rename { args, name, new_name }
            }
            FUSE_RENAME2 => {
                let (args, rest) = args(body)?;
                let (name, rest) = name(rest)?;
                Request::Rename { args, name, new_name: super::names::name(rest)?.0 }
            }
            FUSE_LINK => {
                let (args, rest) = args(body)?;
                Request::Link { args, new_name: name(rest)?.0 }
            }
            FUSE_CREATE => {
                let (args, rest) = args(body)?;
                Request::Create { args, name: name(rest)?.0 }
            }
            // The kernel sends a name that means nothing.
            FUSE_TMPFILE => Request::Tmpfile(args(body)?.0),
            FUSE_SYNCFS => Request::Syncfs,
            FUSE_STATFS => Request::Statfs,
            FUSE_SETXATTR => {
                let (args, rest) = args::<SetxattrIn>(body)?;
                let (name, rest) = xattr(rest)?;
                let value = in_one(rest, data)?;
                if value.len() != args.size as usize {
                    return Err(Errno::EINVAL);
                }
                Request::Setxattr { args, name, value }
            }
            FUSE_GETXATTR => {
                let (args, rest) = args(body)?;
                Request::Getxattr { args, name: xattr(rest)?.0 }
            }
            FUSE_REMOVEXATTR => Request::Removexattr { name: xattr(body)?.0 },
            FUSE_INIT if body.len() < InitIn::SIZE => {
                // The whole message before FUSE 7.36, and its beginning in another major version.
                let mut whole = [0; InitIn::SIZE];
                let old = body.get(..INIT_IN_OLD_SIZE).ok_or(Errno::EINVAL)?;
                whole[..INIT_IN_OLD_SIZE].copy_from_slice(old);
                Request::Init(InitIn::load(&whole))
            }
            FUSE_DESTROY => Request::Destroy,
            FUSE_REMOVEMAPPING => {
                let (args, rest) = args::<RemovemappingIn>(body)?;
                let ones = Unmapped::new(rest).ok_or(Errno::EINVAL)?;
                if ones.count() != args.count as usize {
                    return Err(Errno::EINVAL);
                }
                Request::Removemapping(ones)
            }
            FUSE_NOTIFY_REPLY => {
                let (args, rest) = args::<NotifyRetrieveIn>(body)?;
                let data = in_one(rest, data)?;
                if data.len() != args.size as usize {
                    return Err(Errno::EINVAL);
                }
                Request::NotifyReply { args, data }
            }
            _ => return Request::decode_plain(opcode, body),
        })
    }

    /// Whether a reply comes.
    pub const fn is_answered(&self) -> bool {
        !is_unanswered(self.opcode())
    }

    /// The bytes that go as data.
    pub fn data(&self) -> Data<'a> {
        match *self {
            Request::Write { data, .. } => data,
            Request::NotifyReply { data, .. } => data.into(),
            Request::Symlink { target, .. } => target.into(),
            Request::Setxattr { value, .. } => value.into(),
            _ => Data::default(),
        }
    }

    /// Writes the message that asks this to the front of `out`. Of `header` counts what the message
    /// itself does not say. Returns its length, or `None` when `out` is too short or the whole
    /// longer than 4 GiB; [`REQUEST_MAX`](super::REQUEST_MAX) bytes are enough for all but a long
    /// BATCH_FORGET.
    #[inline]
    pub fn encode(
        &self,
        header: &InHeader,
        time: Option<Timespec>,
        out: &mut [u8],
    ) -> Option<usize> {
        let mut w = Writer { out, at: 0 };
        w.take(InHeader::SIZE)?;
        match self {
            Request::Lookup { name } | Request::Unlink { name } | Request::Rmdir { name } => {
                w.string(name.bytes())
            }
            Request::BatchForget(ones) => {
                w.put(&BatchForgetIn { count: u32::try_from(ones.count()).ok()?, dummy: 0 })?;
                w.bytes(ones.bytes())
            }
            Request::Readlink | Request::Statfs | Request::Destroy => Some(()),
            Request::Symlink { name, .. } => w.string(name.bytes()),
            Request::Mknod { args, name } => w.put(args).and_then(|()| w.string(name.bytes())),
            Request::Mkdir { args, name } => w.put(args).and_then(|()| w.string(name.bytes())),
            Request::Rename { args, name, new_name } => {
                w.put(args)?;
                w.string(name.bytes())?;
                w.string(new_name.bytes())
            }
            Request::Link { args, new_name } => {
                w.put(args).and_then(|()| w.string(new_name.bytes()))
            }
            Request::Create { args, name } => w.put(args).and_then(|()| w.string(name.bytes())),
            // As the kernel has it.
            Request::Tmpfile(args) => w.put(args).and_then(|()| w.string(b"/")),
            Request::Write { args, .. } => w.put(args),
            Request::Syncfs => w.put(&SyncfsIn { padding: 0 }),
            Request::Setxattr { args, name, .. } => w.put(args).and_then(|()| w.string(name)),
            Request::Getxattr { args, name } => w.put(args).and_then(|()| w.string(name)),
            Request::Removexattr { name } => w.string(name),
            Request::Removemapping(ones) => {
                w.put(&RemovemappingIn { count: u32::try_from(ones.count()).ok()? })?;
                w.bytes(ones.bytes())
            }
            Request::NotifyReply { args, .. } => w.put(args),
            plain => plain.encode_plain(&mut w),
        }?;
        if let Some(time) = time {
            put_time(time, w.take(EXT_TIME_SIZE)?);
        }
        let len = w.at;
        let header = InHeader {
            len: u32::try_from(len.checked_add(self.data().len())?).ok()?,
            opcode: self.opcode(),
            total_extlen: if time.is_some() { (EXT_TIME_SIZE / 8) as u16 } else { 0 },
            ..*header
        };
        header.store(out);
        Some(len)
    }
}

struct Writer<'o> {
    out: &'o mut [u8],
    at: usize,
}

impl Writer<'_> {
    #[inline]
    fn take(&mut self, len: usize) -> Option<&mut [u8]> {
        let begin = self.at;
        let end = begin.checked_add(len)?;
        let place = self.out.get_mut(begin..end)?;
        self.at = end;
        Some(place)
    }

    #[inline]
    fn put<T: Fixed>(&mut self, value: &T) -> Option<()> {
        value.store(self.take(T::SIZE)?);
        Some(())
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        self.take(bytes.len())?.copy_from_slice(bytes);
        Some(())
    }

    #[inline]
    fn string(&mut self, bytes: &[u8]) -> Option<()> {
        self.bytes(bytes)?;
        self.bytes(&[0])
    }
}
