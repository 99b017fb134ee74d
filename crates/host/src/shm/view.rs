//! A View and the memory that it is in, as one: the server's half, and the client's.

use std::io;
use std::os::fd::OwnedFd;
#[cfg(feature = "server")]
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use atoll_vfs::LiveView;
use atoll_vfs::view::ViewReader;
#[cfg(feature = "server")]
use atoll_vfs::view::{Size, ViewWriter};

use super::ReadOnlyMemory;
#[cfg(feature = "server")]
use super::SharedMemory;

/// The largest View that a client maps, in bytes.
const VIEW_MAX: usize = 1 << 30;

/// A View that this process writes. When it is dropped, nothing in it counts any more.
#[cfg(feature = "server")]
#[derive(Debug)]
pub(crate) struct WrittenView {
    /// Not really for ever: as long as `memory`, which is dropped after it. Nothing of it may be
    /// moved out.
    writer: ViewWriter<'static>,
    memory: SharedMemory,
    size: Size,
}

#[cfg(feature = "server")]
impl WrittenView {
    /// The largest View within `bytes`; `None` when that is too little for any.
    ///
    /// # Errors
    /// The error of making its memory.
    pub(crate) fn new(bytes: usize) -> io::Result<Option<Self>> {
        let Some(size) = Size::within(bytes) else { return Ok(None) };
        let memory = SharedMemory::create_read_only("atoll-view", size.bytes())?;
        let writer = ViewWriter::new(memory.shared, size)
            .map_err(|_| io::Error::other("memory does not fit a View"))?;
        Ok(Some(WrittenView { writer, memory, size }))
    }

    /// Its writer.
    #[inline]
    pub(crate) fn writer(&mut self) -> &mut ViewWriter<'static> {
        &mut self.writer
    }

    /// How many records it has.
    pub(crate) fn size(&self) -> Size {
        self.size
    }
}

#[cfg(feature = "server")]
impl AsFd for WrittenView {
    /// The memory, for the client: it can only be read.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// How often a View is read between two looks whether its server lives.
const READS: u32 = 256;

/// A View that a server writes and this process reads, while the server lives. Threads share one by
/// [`Arc`].
pub struct MappedView {
    /// Not really for ever: as long as `memory`. Given out for as long as `self`.
    reader: ViewReader<'static>,
    memory: ReadOnlyMemory,
    lost: AtomicBool,
    reads: AtomicU32,
    alive: Box<dyn Fn() -> bool + Send + Sync>,
}

impl std::fmt::Debug for MappedView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappedView").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl MappedView {
    /// Maps the View that a server sent, and closes its descriptor. `alive` says whether the server
    /// is still there, without blocking.
    ///
    /// # Errors
    /// `InvalidInput` for what is no View or could change its length; what mmap(2) says.
    pub fn attach(
        file: OwnedFd,
        alive: impl Fn() -> bool + Send + Sync + 'static,
    ) -> io::Result<Arc<Self>> {
        let memory = ReadOnlyMemory::attach(file, VIEW_MAX)?;
        let reader = ViewReader::new(memory.shared)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "not a View"))?;
        let (lost, reads, alive) = (AtomicBool::new(false), AtomicU32::new(0), Box::new(alive));
        Ok(Arc::new(MappedView { reader, memory, lost, reads, alive }))
    }

    /// Has no child inherit the mapping: it would be the parent's View.
    ///
    /// # Errors
    /// Those of madvise(2).
    pub fn keep_from_children(&self) -> io::Result<()> {
        self.memory.pages.keep_from_children()
    }

    #[cold]
    fn look(&self) {
        if !(self.alive)() {
            self.lost.store(true, Ordering::Release);
        }
    }
}

impl LiveView for MappedView {
    /// A server that shuts down or ends the session closes the View by itself. Of one that was
    /// killed this learns after at most 256 reads; until then the View says what was true when it
    /// died.
    #[inline]
    fn reader(&self) -> Option<&ViewReader<'_>> {
        // Counts that are lost between threads only put a look off.
        let reads = self.reads.load(Ordering::Relaxed).wrapping_add(1);
        self.reads.store(reads, Ordering::Relaxed);
        if reads.is_multiple_of(READS) {
            self.look();
        }
        (!self.lost.load(Ordering::Acquire)).then_some(&self.reader)
    }

    fn suspect(&self) {
        self.look();
    }
}
