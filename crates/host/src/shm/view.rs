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
    memory: Taken,
    size: Size,
}

/// The memory of a View, whose pages are taken back when this is dropped. A client that keeps it
/// would else keep them, and the server would pay for them. A record that it reads meanwhile is all
/// zeros, or has a sequence that is another in the end.
#[cfg(feature = "server")]
#[derive(Debug)]
struct Taken {
    memory: SharedMemory,
    bounded: bool,
}

#[cfg(feature = "server")]
impl Drop for Taken {
    fn drop(&mut self) {
        // Sealed memory stays with the clients that have it, whom no limit binds. Not even a try:
        // their descriptor is for writing, and a write(2) that the seal will refuse can have the
        // inode's lock for as long as its writer likes.
        if self.bounded {
            let _ = self.memory.clear();
        }
    }
}

#[cfg(feature = "server")]
impl WrittenView {
    /// The largest View within `bytes`; `None` when that is too little for any. The memory of one
    /// that is `bounded` is free when it ends, whoever keeps it.
    ///
    /// # Errors
    /// The error of making its memory; `ENOSYS` where there is none such.
    pub(crate) fn new(bytes: usize, bounded: bool) -> io::Result<Option<Self>> {
        let Some(size) = Size::within(bytes) else { return Ok(None) };
        let (name, len) = ("atoll-view", size.bytes());
        let memory = match bounded {
            true => SharedMemory::create_shown(name, len)?,
            false => SharedMemory::create_read_only(name, len)?,
        };
        let memory = Taken { memory, bounded };
        let writer = ViewWriter::new(memory.memory.shared, size)
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
        self.memory.memory.as_fd()
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

#[cfg(all(test, feature = "server"))]
mod tests {
    use std::os::fd::AsRawFd;

    use atoll_vfs::{Attr, Ino, Timespec};
    use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags};
    use rustix::io::Errno;

    use super::super::Pages;
    use super::*;

    const LARGE: usize = 1 << 20;

    fn attr() -> Attr {
        let [atime, mtime, ctime, btime] = [Timespec::default(); 4];
        let (ino, mode, size) = (Ino(5), 0o100_644, 4096);
        let (nlink, uid, gid, rdev, blocks) = (1, 0, 0, 0, 8);
        Attr { ino, mode, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime, btime }
    }

    fn blocks(view: &OwnedFd) -> i64 {
        rustix::fs::fstat(view).unwrap().st_blocks as i64
    }

    /// A View of which something is put, the descriptor that a client gets, and its mapping.
    fn given(bounded: bool) -> (WrittenView, OwnedFd, Arc<MappedView>) {
        let mut view = WrittenView::new(LARGE, bounded).unwrap().unwrap();
        for ino in 1..100 {
            view.writer().put_attr(ino, &attr());
            view.writer().put_page(ino, 0, &[7; 4096]);
        }
        let kept = view.as_fd().try_clone_to_owned().unwrap();
        let mapped = MappedView::attach(kept.try_clone().unwrap(), || true).unwrap();
        assert!(mapped.reader().unwrap().attr(5).is_some());
        (view, kept, mapped)
    }

    #[test]
    fn one_that_is_kept_takes_no_memory() {
        let (view, kept, mapped) = given(true);
        assert!(blocks(&kept) > 0);
        drop(view);
        assert_eq!(blocks(&kept), 0);
        // The client reads zeros now.
        let reader = mapped.reader().unwrap();
        assert!(!reader.is_open() && reader.attr(5).is_none());
        assert_eq!(reader.read(5, 0, &mut [0; 10]), None);
        assert_eq!(reader.lookup(1, b"name"), None);
    }

    #[test]
    fn a_client_only_reads_it() {
        for bounded in [false, true] {
            let (_view, kept, mapped) = given(bounded);
            assert!(rustix::io::pwrite(&kept, b"x", 0).is_err());
            assert!(rustix::fs::ftruncate(&kept, 0).is_err());
            assert!(SharedMemory::attach(kept.try_clone().unwrap(), VIEW_MAX).is_err());
            for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SEAL] {
                assert_eq!(rustix::fs::fcntl_add_seals(&kept, seal), Err(Errno::PERM));
            }
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            assert!(rustix::fs::fallocate(&kept, flags, 0, 4096).is_err());
            let Pages { base, len } = mapped.memory.pages;
            let both = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
            // SAFETY: it is refused.
            let writable = unsafe { rustix::mm::mprotect(base.as_ptr().cast(), len, both) };
            assert_eq!(writable, Err(Errno::ACCESS));
        }
    }

    /// By the descriptor a client finds the file in /proc, which it does not own.
    #[test]
    fn no_other_user_opens_it_anew() {
        let (_view, kept, _mapped) = given(true);
        let stat = rustix::fs::fstat(&kept).unwrap();
        assert_eq!(stat.st_mode & 0o777, 0o600);
        assert_eq!(stat.st_uid, rustix::process::geteuid().as_raw());
        if stat.st_uid != 0 {
            return;
        }
        // A thread of another user, without the superuser's capabilities.
        let other = std::thread::spawn(move || {
            // SAFETY: takes numbers, and is about this thread alone.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, 4711, 4711, 4711) };
            assert_eq!(changed, 0);
            [OFlags::RDWR, OFlags::WRONLY, OFlags::RDONLY].map(|flags| {
                let path = format!("/proc/thread-self/fd/{}", kept.as_raw_fd());
                let opened = rustix::fs::open(path, flags, Mode::empty());
                (opened.err(), rustix::fs::fchmod(&kept, Mode::from_raw_mode(0o666)).err())
            })
        });
        for refused in other.join().unwrap() {
            assert_eq!(refused, (Some(Errno::ACCESS), Some(Errno::PERM)));
        }
    }
}
