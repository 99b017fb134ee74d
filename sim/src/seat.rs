//! Those who use the volume: clients of their own, and mounts with a kernel between.

use atoll_fs::Fs;
use atoll_server::rights::identity::{Access, SessionId};
use atoll_server::{Credentials, Session};
use atoll_vfs::{Context, Errno, Ino, Result, Timespec};

use crate::call::{Answer, Call, File, Node};
use crate::disk::Disk;
use crate::kernel::Kernel;
use crate::locks::Asked;
use crate::mirror::Clock;

/// Who a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The superuser, without a kernel.
    Root,
    /// A mount of the superuser, whose kernel caches pages.
    Mount,
    /// A user.
    User,
    /// A user's mount of the directory `s`, whose kernel caches attributes.
    SubtreeMount,
    /// A user who was granted the directory `s`.
    Subtree,
    /// The superuser, who may only look.
    ReadOnly,
    /// A user who names what he was never given.
    Hostile,
}

/// All who may be there, who caches most twice as likely.
pub const ROLES: [Role; 8] = [
    Role::Root,
    Role::Mount,
    Role::Mount,
    Role::User,
    Role::SubtreeMount,
    Role::Subtree,
    Role::ReadOnly,
    Role::Hostile,
];

impl Role {
    /// As whom it calls.
    pub fn uid(self) -> u32 {
        match self {
            Role::Root | Role::Mount | Role::ReadOnly => 0,
            Role::User | Role::Subtree | Role::SubtreeMount => 1000,
            Role::Hostile => 2000,
        }
    }

    /// Whether a kernel is between.
    pub fn is_mount(self) -> bool {
        matches!(self, Role::Mount | Role::SubtreeMount)
    }

    /// Whether it has the directory `s` alone.
    pub fn is_subtree(self) -> bool {
        matches!(self, Role::Subtree | Role::SubtreeMount)
    }

    /// What it is granted.
    pub fn access(self) -> Access {
        let subtree = self.is_subtree().then(|| "s".into());
        Access { read_only: self == Role::ReadOnly, subtree, ..Access::default() }
    }

    /// Its credentials.
    pub fn peer(self) -> Credentials {
        Credentials { uid: self.uid(), gid: self.uid(), groups: Vec::new(), pid: 1 }
    }

    /// The context of its calls.
    pub fn context(self, now: Timespec) -> Context {
        Context { uid: self.uid(), gid: self.uid(), now }
    }

    /// Whether the server may refuse it so what the model, which judges nobody, would do. The volume may
    /// be full, too, for all.
    pub fn may_be_refused(self, call: &Call, error: Errno) -> bool {
        match error {
            Errno::ENOSPC => call.has_effect(),
            Errno::EROFS => self == Role::ReadOnly && call.has_effect(),
            // Linux has no attributes of users at symbolic links.
            Errno::EPERM if matches!(call, Call::Setxattr { .. } | Call::Removexattr { .. }) => {
                true
            }
            // A file without a name is for those who have it open.
            Errno::ENOENT => self.uid() != 0 && matches!(call, Call::Link { .. }),
            // What it was not given, or not any more: a directory may have moved out of its sight.
            Errno::EACCES | Errno::EPERM | Errno::ESTALE => self.uid() != 0,
            _ => false,
        }
    }
}

/// An open file of a seat.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The file.
    pub file: File,
    /// It is read through the kernel's page cache.
    pub buffered: bool,
    /// Its client has been told of it.
    pub usable: bool,
}

/// One session, and who is on its other side.
pub struct Seat {
    /// The session.
    pub session: Session<Fs<Disk>>,
    /// Its name.
    pub id: SessionId,
    /// Who uses it.
    pub role: Role,
    /// Of a mount.
    pub kernel: Option<Kernel>,
    /// What the client may name; its root first.
    pub nodes: Vec<Node>,
    /// What it has open.
    pub files: Vec<Opened>,
}

/// A call that is done, and whose answer is on the way.
pub struct Made {
    /// The call.
    pub call: Call,
    /// The answer, by the client's numbers.
    pub answer: Result<Answer>,
    /// Its number.
    pub number: u64,
    /// What whoever gets the answer knows by it.
    pub sees: Clock,
    /// The inodes that it changed.
    pub changed: Vec<Ino>,
    /// What the client may name by it.
    pub node: Option<Node>,
    /// What the kernel may make of it.
    pub lesson: Lesson,
}

/// What a request that was not answered yet asked for.
pub enum What {
    /// A call.
    Call(Box<Made>),
    /// A sync that covers so many effects.
    Sync(usize),
    /// A lock that is waited for.
    Lock(Asked),
}

impl What {
    /// Of a call: its number.
    pub fn number(&self) -> Option<u64> {
        match self {
            What::Call(made) => Some(made.number),
            _ => None,
        }
    }
}

/// What an answer means to a kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lesson {
    /// The version of the inode when the request was sent.
    pub version: u64,
    /// The attributes may be kept.
    pub valid: bool,
    /// It is a read for the page cache.
    pub for_cache: bool,
    /// An open by which pages are not kept.
    pub drops: bool,
}

/// A request that was not answered yet.
pub struct Pending {
    /// Its number.
    pub id: u64,
    /// The session.
    pub seat: SessionId,
    /// What was asked.
    pub what: What,
}
