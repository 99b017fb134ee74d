//! The judge of locks: every byte by itself, each with all its holders.

use atoll_server::{LockKind, LockOwner, LockRange, LockRequest, SessionId};
use atoll_vfs::Ino;

/// Locks of fcntl(2) are within this many bytes, or end with the file: all bytes beyond are one
/// more.
pub const BYTES: u64 = 8;

/// The owner of a lock: a session, and its number of a process or of an open file.
pub type Owner = (SessionId, LockOwner, u64);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    ino: Ino,
    owner: Owner,
    /// All bytes from [`BYTES`] on see each other.
    byte: u64,
    kind: LockKind,
}

/// A request, of an inode of the model.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The inode.
    pub ino: Ino,
    /// The owner that asks.
    pub owner: Owner,
    /// The kind and the range.
    pub request: LockRequest,
}

impl Asked {
    fn bytes(&self) -> std::ops::RangeInclusive<u64> {
        let LockRange { start, end } = self.request.range;
        match self.request.owner {
            LockOwner::OpenFile => 0..=0,
            // Beyond there are single bytes, or all of them.
            LockOwner::Process(_) if start > BYTES => start..=end,
            LockOwner::Process(_) => start..=end.min(BYTES),
        }
    }

    fn meets(&self, byte: u64) -> bool {
        let bytes = self.bytes();
        bytes.contains(&byte) || byte >= BYTES && *bytes.end() >= BYTES
    }

    fn is_flock(&self) -> bool {
        self.request.owner == LockOwner::OpenFile
    }
}

/// Whether two owners' locks see each other.
fn same_family(a: &Owner, b: &Owner) -> bool {
    (a.1 == LockOwner::OpenFile) == (b.1 == LockOwner::OpenFile)
}

/// All locks that are held.
#[derive(Default)]
pub struct Locks {
    held: Vec<Held>,
}

impl Locks {
    /// Whether something is in the way of `asked`.
    pub fn is_blocked(&self, asked: &Asked) -> bool {
        self.held.iter().any(|held| {
            held.ino == asked.ino
                && held.owner != asked.owner
                && same_family(&held.owner, &asked.owner)
                && asked.meets(held.byte)
                && (held.kind == LockKind::Exclusive
                    || asked.request.kind == Some(LockKind::Exclusive))
        })
    }

    /// flock(2) lets go of the other kind before it asks.
    pub fn convert(&mut self, asked: &Asked) {
        if asked.is_flock() {
            let other = |held: &Held| Some(held.kind) != asked.request.kind;
            self.held.retain(|held| {
                !(held.ino == asked.ino && held.owner == asked.owner && other(held))
            });
        }
    }

    /// The request is carried out.
    pub fn set(&mut self, asked: &Asked) {
        let bytes = asked.bytes();
        self.held.retain(|held| {
            !(held.ino == asked.ino && held.owner == asked.owner && bytes.contains(&held.byte))
        });
        if let Some(kind) = asked.request.kind {
            let (ino, owner) = (asked.ino, asked.owner);
            self.held.extend(asked.bytes().map(|byte| Held { ino, owner, byte, kind }));
        }
    }

    /// `owner` lets go of all its locks of a file.
    pub fn drop_all(&mut self, owner: Owner, ino: Ino) {
        self.held.retain(|held| !(held.owner == owner && held.ino == ino));
    }

    /// How many pieces `session` holds, whose locks are of a byte each.
    pub fn count(&self, session: SessionId) -> usize {
        self.held.iter().filter(|held| held.owner.0 == session).count()
    }

    /// A session ends.
    pub fn end(&mut self, session: SessionId) {
        self.held.retain(|held| held.owner.0 != session);
    }
}
