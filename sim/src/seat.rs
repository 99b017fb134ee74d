//! The users of the volume: clients of their own, and mounts with a kernel between.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_fs::Fs;
use atoll_server::revocable::Revocable;
use atoll_server::rights::identity::{Access, SessionId};
use atoll_server::rights::limits::Limits;
use atoll_server::route::router::Router;
use atoll_server::{Credentials, Session};
use atoll_vfs::view::ViewReader;
use atoll_vfs::{Attr, Context, Ino, Result, Timespec};

use crate::call::{Answer, Call, File, Node};
use crate::carrier::{Line, Reply};
use crate::codec::{Asker, Beside, Dialect, Manners};
use crate::disk::Disk;
use crate::kernel::Kernel;
use crate::locks::Asked;
use crate::mirror::Clock;

/// The role of a client.
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
    /// A user who sends messages that nobody should, and names inodes that he was never given.
    Hostile,
    /// The same with the kernel of a mount, who may only look, and takes all locks that he gets.
    HostileMount,
}

/// All roles, the one that caches most twice as likely.
pub const ROLES: [Role; 9] = [
    Role::Root,
    Role::Mount,
    Role::Mount,
    Role::User,
    Role::SubtreeMount,
    Role::Subtree,
    Role::ReadOnly,
    Role::Hostile,
    Role::HostileMount,
];

/// The roles that meet at one file: mounts, and clients that change it.
pub const MEETING: [Role; 9] = [
    Role::Mount,
    Role::Mount,
    Role::Mount,
    Role::Mount,
    Role::Mount,
    Role::Root,
    Role::Root,
    Role::User,
    Role::HostileMount,
];

/// Locks that a hostile client gets.
pub const HOSTILE_LOCKS: usize = 3;

impl Role {
    /// The user that its calls name.
    pub fn uid(self) -> u32 {
        match self {
            Role::Root | Role::Mount | Role::ReadOnly => 0,
            Role::User | Role::Subtree | Role::SubtreeMount => 1000,
            Role::Hostile | Role::HostileMount => 2000,
        }
    }

    /// Whether a kernel is between.
    pub fn is_mount(self) -> bool {
        matches!(self, Role::Mount | Role::SubtreeMount | Role::HostileMount)
    }

    /// Whether it may name every inode of the volume.
    pub fn is_free(self) -> bool {
        self.uid() == 0
    }

    /// Whether it keeps to no rule.
    pub fn is_hostile(self) -> bool {
        matches!(self, Role::Hostile | Role::HostileMount)
    }

    /// Whether it may only look.
    pub fn is_read_only(self) -> bool {
        matches!(self, Role::ReadOnly | Role::HostileMount)
    }

    /// How it speaks.
    pub fn dialect(self) -> Dialect {
        if self.is_mount() { Dialect::Kernel } else { Dialect::Client }
    }

    /// Whether it has the directory `s` alone.
    pub fn is_subtree(self) -> bool {
        matches!(self, Role::Subtree | Role::SubtreeMount)
    }

    /// The access that it is granted.
    pub fn access(self) -> Access {
        let subtree = self.is_subtree().then(|| "s".into());
        let mut limits = Limits::default();
        if self.is_hostile() {
            limits.locks = HOSTILE_LOCKS;
        }
        Access { read_only: self.is_read_only(), subtree, limits, ..Access::default() }
    }

    /// Its credentials.
    pub fn peer(self) -> Credentials {
        Credentials { uid: self.uid(), gid: self.uid(), groups: [].into(), pid: 1 }
    }

    /// The context of its calls.
    pub fn context(self, now: Timespec) -> Context {
        Context { uid: self.uid(), gid: self.uid(), now }
    }
}

/// An open file or directory of a seat.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The file.
    pub file: File,
    /// It is a directory.
    pub is_dir: bool,
    /// Its program has opened it with O_APPEND.
    pub appends: bool,
    /// It is open for reading.
    pub reads: bool,
    /// It is read through the kernel's page cache.
    pub buffered: bool,
    /// Its client has been told of it, and does not close it.
    pub usable: bool,
}

/// One session, and the client on its other side.
pub struct Seat {
    /// The session, which serving it borrows and its end takes away.
    pub place: Revocable<Session<Fs<Disk>>>,
    /// The way of its requests.
    pub router: Router,
    /// The carrier of its requests.
    pub line: Line,
    /// Its name.
    pub id: SessionId,
    /// The role of its client.
    pub role: Role,
    /// The kernel of a mount.
    pub kernel: Option<Kernel>,
    /// The View that it reads without asking.
    pub view: Option<ViewReader<'static>>,
    /// Planted: what it saw there when it last looked.
    pub seen: BTreeMap<u64, Attr>,
    /// The nodes that the client may name; its root first.
    pub nodes: Vec<Node>,
    /// Its open files.
    pub files: Vec<Opened>,
    /// A hostile one that takes no answers.
    pub takes_none: bool,
    /// A hostile one that keeps to the rules, and takes all locks that it gets.
    pub hoards: bool,
    /// A hostile one that has broken off: its answers mean nothing any more.
    pub is_lost: bool,
}

impl Seat {
    /// The asker of the request `id`.
    pub fn asker(&self, id: u64) -> Asker {
        Asker { dialect: self.role.dialect(), uid: self.role.uid(), id }
    }
}

/// A call on its way, and then its answer.
pub struct Made {
    /// The call.
    pub call: Call,
    /// How it is asked.
    pub manners: Manners,
    /// The answer, by the client's numbers.
    pub answer: Result<Answer>,
    /// The parts of the answer beside the call's own.
    pub beside: Beside,
    /// Its number among the calls, when the server has done it.
    pub number: Option<u64>,
    /// The knowledge that the answer gives its client.
    pub sees: Clock,
    /// The inodes that it changed.
    pub changed: Vec<Ino>,
    /// The node that the client may name by it.
    pub node: Option<Node>,
    /// The version of the kernel when it was sent.
    pub version: u64,
    /// It is durable when it is answered.
    pub durable: Option<Begun>,
    /// Since when its answer has waited.
    pub held: Option<Duration>,
}

/// The thing that an unanswered request asks for.
pub enum What {
    /// A call.
    Call(Box<Made>),
    /// A sync: of what file, and what it covers when the server has begun it.
    Sync(Option<File>, Option<Begun>),
    /// A lock that may be waited for.
    Lock(Asked),
    /// A process closes a file; then the next process does, or the file is closed.
    Flush(File, u64),
    /// Something that means nothing, under this number.
    Raw(u64),
}

/// A sync that the server has begun.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// So many effects are durable when it is answered.
    pub effects: usize,
    /// A flush had failed before.
    pub is_late: bool,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The server has not taken it.
    Sent,
    /// Its answer waits.
    Held,
    /// Its answer may be given.
    Due,
}

/// A request that was not answered yet.
pub struct Pending {
    /// Its number.
    pub id: u64,
    /// The session.
    pub seat: SessionId,
    /// The thing asked for.
    pub what: What,
    /// How far it is.
    pub stage: Stage,
    /// Its program has been interrupted.
    pub interrupted: bool,
}

impl Pending {
    /// Whether its answer waits for a sync.
    pub fn syncs(&self) -> bool {
        matches!(&self.what, What::Call(made) if made.manners.dsync)
    }

    /// Of a call that is done: its number.
    pub fn number(&self) -> Option<u64> {
        match &self.what {
            What::Call(made) => made.number,
            _ => None,
        }
    }
}

/// The outcome of a request, by its answer.
pub struct Arrived<'a> {
    /// Its number.
    pub id: u64,
    /// The answer.
    pub reply: &'a Reply,
    /// It may not be given yet.
    pub held: bool,
    /// The context in which it was done.
    pub cx: Context,
    /// The device failed meanwhile.
    pub failed: bool,
}
