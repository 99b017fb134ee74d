//! Requests: from bytes to what is asked, and back.

use super::adopt::AdoptIn;
use super::attributes::{GetattrIn, SetattrIn};
use super::files::{
    CreateIn, FallocateIn, FlushIn, FsyncIn, IoctlIn, LseekIn, OpenIn, ReadIn, ReleaseIn, SyncfsIn,
    WriteIn,
};
use super::fixed::Fixed;
use super::header::{EXT_TIME_SIZE, InHeader, find_time, put_time};
use super::locks::LkIn;
use super::names::{
    AccessIn, BatchForgetIn, ForgetIn, Forgets, LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn,
    name, string,
};
use super::opcode::*;
use super::session::{INIT_IN_OLD_SIZE, InitIn, InterruptIn};
use super::xattrs::{GetxattrIn, SetxattrIn};
use crate::errno::{Errno, Result};
use crate::types::{Name, Timespec};

/// A request that is none: what came is no FUSE, and neither will be what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// What is asked: the arguments as they came, names checked, nothing copied but numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Request<'a> {
    Lookup {
        name: Name<'a>,
    },
    Forget(ForgetIn),
    BatchForget(Forgets<'a>),
    Getattr(GetattrIn),
    Setattr(SetattrIn),
    Readlink,
    /// `target` ends with its NUL, and is data.
    Symlink {
        name: Name<'a>,
        target: &'a [u8],
    },
    Mknod {
        args: MknodIn,
        name: Name<'a>,
    },
    Mkdir {
        args: MkdirIn,
        name: Name<'a>,
    },
    Unlink {
        name: Name<'a>,
    },
    Rmdir {
        name: Name<'a>,
    },
    /// RENAME too, which has no flags.
    Rename {
        args: Rename2In,
        name: Name<'a>,
        new_name: Name<'a>,
    },
    Link {
        args: LinkIn,
        new_name: Name<'a>,
    },
    Open(OpenIn),
    Create {
        args: CreateIn,
        name: Name<'a>,
    },
    Tmpfile(CreateIn),
    Read(ReadIn),
    /// `data` has the length that `args` say.
    Write {
        args: WriteIn,
        data: &'a [u8],
    },
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    Flush(FlushIn),
    Fsync(FsyncIn),
    Release(ReleaseIn),
    Opendir(OpenIn),
    Readdir(ReadIn),
    Readdirplus(ReadIn),
    Releasedir(ReleaseIn),
    Fsyncdir(FsyncIn),
    Syncfs,
    Statfs,
    /// `value` has the length that `args` say, and is data. `name` is 1 byte or more.
    Setxattr {
        args: SetxattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    /// `name` is 1 byte or more.
    Getxattr {
        args: GetxattrIn,
        name: &'a [u8],
    },
    Listxattr(GetxattrIn),
    /// `name` is 1 byte or more.
    Removexattr {
        name: &'a [u8],
    },
    Access(AccessIn),
    Getlk(LkIn),
    Setlk(LkIn),
    Setlkw(LkIn),
    Init(InitIn),
    Destroy,
    Interrupt(InterruptIn),
    /// Data is not read.
    Ioctl(IoctlIn),
    Adopt(AdoptIn),
    AdoptOpen(OpenIn),
}

/// A message of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message<'a> {
    /// What is in front.
    pub header: InHeader,
    /// The client's time, if it said one.
    pub time: Option<Timespec>,
    /// What it asks, or the error to answer.
    pub request: Result<Request<'a>>,
}

#[inline]
fn args<T: Fixed>(bytes: &[u8]) -> Result<(T, &[u8])> {
    T::get(bytes).ok_or(Errno::EINVAL)
}

/// What is data: at the end of the message, or beside it.
#[inline]
fn payload<'a>(rest: &'a [u8], data: &'a [u8]) -> Result<&'a [u8]> {
    match (rest.is_empty(), data.is_empty()) {
        (true, _) => Ok(data),
        (false, true) => Ok(rest),
        (false, false) => Err(Errno::EINVAL),
    }
}

fn xattr(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let (name, rest) = string(bytes)?;
    if name.is_empty() {
        return Err(Errno::ERANGE);
    }
    Ok((name, rest))
}

impl<'a> Message<'a> {
    /// Reads a message and its data. Bytes that a newer FUSE has added after what is known are passed
    /// over.
    ///
    /// # Errors
    /// [`Malformed`] when the header is cut off, or counts other lengths than these.
    #[inline]
    pub fn decode(message: &'a [u8], data: &'a [u8]) -> core::result::Result<Self, Malformed> {
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
    /// What `opcode` asks with the arguments in `body` and with `data`.
    ///
    /// # Errors
    /// `ENOSYS` for an opcode that is not known; `EINVAL` for arguments that are cut off; the errors of
    /// [`Name::new`].
    #[inline]
    pub fn decode(opcode: u32, body: &'a [u8], data: &'a [u8]) -> Result<Request<'a>> {
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

    /// What is asked less often.
    fn decode_other(opcode: u32, body: &'a [u8], data: &'a [u8]) -> Result<Request<'a>> {
        Ok(match opcode {
            FUSE_FORGET => Request::Forget(args(body)?.0),
            FUSE_BATCH_FORGET => {
                let (args, rest) = args::<BatchForgetIn>(body)?;
                let ones = Forgets::new(rest).ok_or(Errno::EINVAL)?;
                if ones.count() != args.count as usize {
                    return Err(Errno::EINVAL);
                }
                Request::BatchForget(ones)
            }
            FUSE_SETATTR => Request::Setattr(args(body)?.0),
            FUSE_READLINK => Request::Readlink,
            FUSE_SYMLINK => {
                let (name, rest) = name(body)?;
                let target = payload(rest, data)?;
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
            FUSE_FALLOCATE => Request::Fallocate(args(body)?.0),
            FUSE_FLUSH => Request::Flush(args(body)?.0),
            FUSE_FSYNC => Request::Fsync(args(body)?.0),
            FUSE_OPENDIR => Request::Opendir(args(body)?.0),
            FUSE_READDIR => Request::Readdir(args(body)?.0),
            FUSE_READDIRPLUS => Request::Readdirplus(args(body)?.0),
            FUSE_RELEASEDIR => Request::Releasedir(args(body)?.0),
            FUSE_FSYNCDIR => Request::Fsyncdir(args(body)?.0),
            FUSE_SYNCFS => Request::Syncfs,
            FUSE_STATFS => Request::Statfs,
            FUSE_SETXATTR => {
                let (args, rest) = args::<SetxattrIn>(body)?;
                let (name, rest) = xattr(rest)?;
                let value = payload(rest, data)?;
                if value.len() != args.size as usize {
                    return Err(Errno::EINVAL);
                }
                Request::Setxattr { args, name, value }
            }
            FUSE_GETXATTR => {
                let (args, rest) = args(body)?;
                Request::Getxattr { args, name: xattr(rest)?.0 }
            }
            FUSE_LISTXATTR => Request::Listxattr(args(body)?.0),
            FUSE_REMOVEXATTR => Request::Removexattr { name: xattr(body)?.0 },
            FUSE_ACCESS => Request::Access(args(body)?.0),
            FUSE_GETLK => Request::Getlk(args(body)?.0),
            FUSE_SETLK => Request::Setlk(args(body)?.0),
            FUSE_SETLKW => Request::Setlkw(args(body)?.0),
            FUSE_INIT if body.len() < InitIn::SIZE => {
                // What came before FUSE 7.36, and what another major version begins with.
                let mut whole = [0; InitIn::SIZE];
                let old = body.get(..INIT_IN_OLD_SIZE).ok_or(Errno::EINVAL)?;
                whole[..INIT_IN_OLD_SIZE].copy_from_slice(old);
                Request::Init(InitIn::load(&whole))
            }
            FUSE_INIT => Request::Init(args(body)?.0),
            FUSE_DESTROY => Request::Destroy,
            FUSE_INTERRUPT => Request::Interrupt(args(body)?.0),
            FUSE_IOCTL => Request::Ioctl(args(body)?.0),
            ATOLL_ADOPT => Request::Adopt(args(body)?.0),
            ATOLL_ADOPT_OPEN => Request::AdoptOpen(args(body)?.0),
            _ => return Err(Errno::ENOSYS),
        })
    }

    /// The number that asks this.
    pub const fn opcode(&self) -> u32 {
        match self {
            Request::Lookup { .. } => FUSE_LOOKUP,
            Request::Forget(_) => FUSE_FORGET,
            Request::BatchForget(_) => FUSE_BATCH_FORGET,
            Request::Getattr(_) => FUSE_GETATTR,
            Request::Setattr(_) => FUSE_SETATTR,
            Request::Readlink => FUSE_READLINK,
            Request::Symlink { .. } => FUSE_SYMLINK,
            Request::Mknod { .. } => FUSE_MKNOD,
            Request::Mkdir { .. } => FUSE_MKDIR,
            Request::Unlink { .. } => FUSE_UNLINK,
            Request::Rmdir { .. } => FUSE_RMDIR,
            Request::Rename { .. } => FUSE_RENAME2,
            Request::Link { .. } => FUSE_LINK,
            Request::Open(_) => FUSE_OPEN,
            Request::Create { .. } => FUSE_CREATE,
            Request::Tmpfile(_) => FUSE_TMPFILE,
            Request::Read(_) => FUSE_READ,
            Request::Write { .. } => FUSE_WRITE,
            Request::Fallocate(_) => FUSE_FALLOCATE,
            Request::Lseek(_) => FUSE_LSEEK,
            Request::Flush(_) => FUSE_FLUSH,
            Request::Fsync(_) => FUSE_FSYNC,
            Request::Release(_) => FUSE_RELEASE,
            Request::Opendir(_) => FUSE_OPENDIR,
            Request::Readdir(_) => FUSE_READDIR,
            Request::Readdirplus(_) => FUSE_READDIRPLUS,
            Request::Releasedir(_) => FUSE_RELEASEDIR,
            Request::Fsyncdir(_) => FUSE_FSYNCDIR,
            Request::Syncfs => FUSE_SYNCFS,
            Request::Statfs => FUSE_STATFS,
            Request::Setxattr { .. } => FUSE_SETXATTR,
            Request::Getxattr { .. } => FUSE_GETXATTR,
            Request::Listxattr(_) => FUSE_LISTXATTR,
            Request::Removexattr { .. } => FUSE_REMOVEXATTR,
            Request::Access(_) => FUSE_ACCESS,
            Request::Getlk(_) => FUSE_GETLK,
            Request::Setlk(_) => FUSE_SETLK,
            Request::Setlkw(_) => FUSE_SETLKW,
            Request::Init(_) => FUSE_INIT,
            Request::Destroy => FUSE_DESTROY,
            Request::Interrupt(_) => FUSE_INTERRUPT,
            Request::Ioctl(_) => FUSE_IOCTL,
            Request::Adopt(_) => ATOLL_ADOPT,
            Request::AdoptOpen(_) => ATOLL_ADOPT_OPEN,
        }
    }

    /// Whether a reply comes.
    pub const fn is_answered(&self) -> bool {
        !matches!(self, Request::Forget(_) | Request::BatchForget(_))
    }

    /// What goes as data.
    pub const fn data(&self) -> &'a [u8] {
        match *self {
            Request::Write { data, .. } => data,
            Request::Symlink { target, .. } => target,
            Request::Setxattr { value, .. } => value,
            _ => &[],
        }
    }

    /// Writes the message that asks this to the front of `out`. Of `header` counts what the message
    /// itself does not say. Returns its length, or `None` when `out` is too short or the whole longer
    /// than 4 GiB; [`REQUEST_MAX`](super::REQUEST_MAX) bytes are enough for all but a long BATCH_FORGET.
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
            Request::Forget(args) => w.put(args),
            Request::BatchForget(ones) => {
                w.put(&BatchForgetIn { count: u32::try_from(ones.count()).ok()?, dummy: 0 })?;
                w.bytes(ones.bytes())
            }
            Request::Getattr(args) => w.put(args),
            Request::Setattr(args) => w.put(args),
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
            Request::Open(args) | Request::Opendir(args) => w.put(args),
            Request::Read(args) | Request::Readdir(args) | Request::Readdirplus(args) => {
                w.put(args)
            }
            Request::Write { args, .. } => w.put(args),
            Request::Fallocate(args) => w.put(args),
            Request::Lseek(args) => w.put(args),
            Request::Flush(args) => w.put(args),
            Request::Fsync(args) | Request::Fsyncdir(args) => w.put(args),
            Request::Release(args) | Request::Releasedir(args) => w.put(args),
            Request::Syncfs => w.put(&SyncfsIn { padding: 0 }),
            Request::Setxattr { args, name, .. } => w.put(args).and_then(|()| w.string(name)),
            Request::Getxattr { args, name } => w.put(args).and_then(|()| w.string(name)),
            Request::Listxattr(args) => w.put(args),
            Request::Removexattr { name } => w.string(name),
            Request::Access(args) => w.put(args),
            Request::Getlk(args) | Request::Setlk(args) | Request::Setlkw(args) => w.put(args),
            Request::Init(args) => w.put(args),
            Request::Interrupt(args) => w.put(args),
            Request::Ioctl(args) => w.put(args),
            Request::Adopt(args) => w.put(args),
            Request::AdoptOpen(args) => w.put(args),
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
