//! A session's identity, and the access that it is granted.

use std::path::PathBuf;
use std::sync::Arc;

use crate::rights::accounts::Account;
use crate::rights::limits::Limits;

/// Names a session of a volume; never used twice in the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl SessionId {
    /// Stands for the volume where it does something by itself.
    pub const VOLUME: SessionId = SessionId(0);
}

/// The identity with which the calls of a session act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Identity {
    /// As the peer, whatever a call's [`Context`](atoll_vfs::Context) says.
    #[default]
    Peer,
    /// As the user and group in each call's [`Context`](atoll_vfs::Context), with the peer's
    /// supplementary groups if they are the peer's own. Only for a peer that may become any user:
    /// root in the initial user namespace.
    Caller,
    /// As [`Identity::Caller`], and permissions have been checked already: for a FUSE mount of such
    /// a peer with `default_permissions`, where the kernel, who knows all groups of the caller,
    /// does it.
    Checked,
}

/// The access that a session is granted.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The identity with which calls act.
    pub identity: Identity,
    /// Refuse changes with `EROFS`.
    pub read_only: bool,
    /// The directory that the session has as its root, a path from the volume's root; `None` for
    /// the whole volume. Symbolic links in it are not followed, and `..` is refused.
    pub subtree: Option<PathBuf>,
    /// How much it may use.
    pub limits: Limits,
    /// The account of its user, whose share bounds all sessions of the user; `None` for one that
    /// has no bound but `limits`.
    pub account: Option<Arc<Account>>,
}
