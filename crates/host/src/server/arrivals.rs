//! Clients of rings that have a session, and memory that is not fixed yet.
//!
//! A stranger's memory is not touched before all of its pages are there and none can go: a page
//! that the worker were the first to touch would be the server's to pay for, also when the client
//! has gone, and one that is taken away meanwhile makes the worker wait. So the server maps the
//! memory, tells the client, and the client seals it, which nobody may map for writing from then
//! on. The server cannot seal it itself: the client may hold what fcntl(2) waits for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use atoll_server::rights::accounts::Charge;
use atoll_transport::channel::AttachError;
use atoll_transport::channel::layout::header;
use atoll_vfs::FileSystem;

use super::bells::ClientBell;
use super::newcomer::{Kept, Newcomer};
use crate::shm::SharedMemory;

/// How long a client may take to fix its memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why memory that can be fixed no more is refused.
pub(super) const UNFIT: &str = "its memory has to have all pages, and to be sealed with \
     F_SEAL_FUTURE_WRITE and F_SEAL_SEAL when the session is granted; this client is too old";

/// A client that is about to fix its memory.
pub(super) struct Arriving<F: FileSystem + Send> {
    pub memory: SharedMemory,
    pub newcomer: Newcomer<F>,
    pub charge: Option<Charge>,
    until: Instant,
    /// Dropped last, when nothing else has the memory.
    pub kept: Kept,
}

impl<F: FileSystem + Send> Arriving<F> {
    /// Of a client that is told so now.
    pub fn new(
        memory: SharedMemory,
        bell: ClientBell,
        newcomer: Newcomer<F>,
        charge: Option<Charge>,
    ) -> Self {
        let kept = Kept::new(memory.clone(), bell, &newcomer.remains);
        Arriving { memory, newcomer, charge, until: Instant::now() + PATIENCE, kept }
    }
}

/// All of a worker's.
pub(super) struct Arrivals<F: FileSystem + Send> {
    waiting: Vec<Arriving<F>>,
    /// The one that is looked at next.
    next: usize,
}

impl<F: FileSystem + Send> Default for Arrivals<F> {
    fn default() -> Self {
        Arrivals { waiting: Vec::new(), next: 0 }
    }
}

impl<F: FileSystem + Send> Arrivals<F> {
    /// One more.
    pub fn add(&mut self, arriving: Arriving<F>) {
        self.waiting.push(arriving);
    }

    /// Looks at one of them, in turn: whether it has fixed its memory, or never will.
    #[inline]
    pub fn look(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        self.next = (self.next + 1) % self.waiting.len();
        let memory = &self.waiting[self.next].memory;
        memory.is_fixed() || memory.never_fixed()
    }

    /// Takes those out that have fixed their memory, and drops those whose session has been
    /// revoked. Those that take too long, or that can fix it no more, are taken out too.
    pub fn ready(&mut self) -> Vec<Arriving<F>> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        self.waiting.retain(|one| one.newcomer.place.with(|_| ()).is_some());
        let done = |one: &mut Arriving<F>| {
            one.memory.is_fixed() || one.memory.never_fixed() || one.until <= now
        };
        self.waiting.extract_if(.., done).collect()
    }

    /// The doorbells, which the clients ring when they have done it; none has a request before.
    pub fn doorbells(&self) -> impl Iterator<Item = &ClientBell> {
        self.waiting.iter().filter_map(|one| one.kept.bell())
    }

    /// Makes the doorbells silent again.
    pub fn silence(&self) {
        for bell in self.doorbells() {
            bell.silence();
        }
    }

    /// How long to sleep at most, until one has taken too long.
    pub fn sleep(&self) -> Option<Duration> {
        let until = self.waiting.iter().map(|one| one.until).min()?;
        Some(until.saturating_duration_since(Instant::now()))
    }
}

/// Whether `memory` begins as this version demands, for a client that is to hear the reason: by a
/// system call, since it is not fixed yet.
///
/// # Errors
/// The error that attaching to it would give.
pub(super) fn front(memory: &OwnedFd) -> Result<(), AttachError> {
    let mut bytes = [0; header::VERSION + 4];
    let file: BorrowedFd<'_> = memory.as_fd();
    if rustix::io::pread(file, &mut bytes, 0) != Ok(bytes.len()) {
        return Err(AttachError::Broken);
    }
    let (magic, version) = bytes.split_at(header::VERSION);
    let magic = u64::from_ne_bytes(magic.try_into().unwrap_or_default());
    let version = u32::from_ne_bytes(version.try_into().unwrap_or_default());
    match (magic, version) {
        (header::MAGIC_VALUE, header::VERSION_VALUE) => Ok(()),
        (header::MAGIC_VALUE, other) => Err(AttachError::Version(other)),
        _ => Err(AttachError::Broken),
    }
}
