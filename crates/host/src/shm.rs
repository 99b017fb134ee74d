//! Memory that two processes share and neither can pull away from the other: sealed memfds, the
//! doorbell of a sleeping server, and how a client waits.
//!
//! Memory that a peer made is checked before it is mapped: [`SharedMemory::attach`]. A stranger's
//! is used only when none of its pages can go any more, nor come for the server to pay for:
//! `SharedMemory::is_fixed`.
#![allow(unsafe_code)]

mod view;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_transport::channel::{Mapped, WaitStrategy};
use atoll_transport::{Lost, Memory, Shared};
use rustix::event::EventfdFlags;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

use crate::spin::{Limit, SPIN_MAX, Spin};

pub use view::MappedView;
#[cfg(feature = "server")]
pub(crate) use view::WrittenView;

/// The `f_type` of a memfd, unless its pages are huge: such may be missing when they are touched.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const PAGE: usize = 4096;
/// Of memory whose length does not change.
const LENGTH: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Of memory that nobody maps for writing any more, nor writes to by system calls, nor punches
/// holes into. Mappings made before go on.
const MAPPED: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

fn refused(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

/// The same open file under the number `lowest` or a higher one.
///
/// # Errors
/// The error of fcntl(2).
pub(crate) fn above(file: OwnedFd, lowest: i32) -> rustix::io::Result<OwnedFd> {
    if file.as_raw_fd() >= lowest {
        Ok(file)
    } else {
        rustix::io::fcntl_dupfd_cloexec(file, lowest)
    }
}

/// A mapped memfd. Its length never changes, so that no access can fault for lack of it.
///
/// Clones mean the same mapping, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    shared: Shared<'static>,
    map: Arc<Map>,
}

#[derive(Debug)]
struct Map {
    file: OwnedFd,
    pages: Pages,
}

/// Pages that are mapped as long as this lives.
#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; access is by `Shared`.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `Pages::map`, and used only through what keeps `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Pages {
    /// Maps `len` bytes of `file`, whose length must not change any more. The view that
    /// is returned beside them is not to be used for longer than they live.
    fn map(
        file: &OwnedFd,
        len: usize,
        protection: ProtFlags,
    ) -> io::Result<(Self, Shared<'static>)> {
        // SAFETY: a new mapping, which takes no address that is in use.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| refused("mapped at address 0"))?;
        // SAFETY: mapped as long as the caller keeps the pages; their length stays.
        Ok((Pages { base, len }, unsafe { Shared::new(base, len) }))
    }

    fn keep_from_children(&self) -> io::Result<()> {
        let Pages { base, len } = *self;
        // SAFETY: mapped; this changes nothing in this process.
        unsafe {
            rustix::mm::madvise(base.as_ptr().cast(), len, rustix::mm::Advice::LinuxDontFork)?;
        }
        Ok(())
    }
}

/// The memory of a peer, mapped for reading. Nothing else is left of its descriptor.
#[derive(Debug)]
pub(crate) struct ReadOnlyMemory {
    /// Not really for ever: as long as `pages`.
    shared: Shared<'static>,
    pages: Pages,
}

impl ReadOnlyMemory {
    /// As [`SharedMemory::attach`], for reading. A store through it would end this process.
    fn attach(file: OwnedFd, most: usize) -> io::Result<Self> {
        let len = SharedMemory::checked_len(&file, most, PAGE)?;
        let (pages, shared) = Pages::map(&file, len, ProtFlags::READ)?;
        Ok(ReadOnlyMemory { shared, pages })
    }
}

impl SharedMemory {
    /// `len` zero bytes, a multiple of 4096, which any holder of the descriptor may write. Neither
    /// side can change the length. `name` shows in /proc.
    ///
    /// # Errors
    /// The errors of memfd_create(2), ftruncate(2), mmap(2) and fcntl(2).
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        Self::make(name, len, LENGTH | SealFlags::SEAL, 0)
    }

    /// As [`create`](Self::create); the descriptor has the number `lowest` or a higher one. For a
    /// server that `demands` it all pages are there at once, so that they are this process's, and
    /// [`fix`](Self::fix) is to be called when the server has mapped them.
    ///
    /// # Errors
    /// As there, and `ENOSPC` or `ENOMEM` for the pages.
    pub(crate) fn create_above(
        name: &str,
        len: usize,
        lowest: i32,
        demands: bool,
    ) -> io::Result<Self> {
        if !demands {
            return Self::make(name, len, LENGTH | SealFlags::SEAL, lowest);
        }
        let memory = Self::make(name, len, LENGTH, lowest)?;
        let fill = || {
            rustix::fs::fallocate(&memory.map.file, FallocateFlags::empty(), 0, memory.len() as u64)
        };
        rustix::io::retry_on_intr(fill)?;
        Ok(memory)
    }

    /// Has nobody map the memory for writing any more, write to it by system calls or punch holes
    /// into it. It can still be written through the mappings that there are.
    ///
    /// # Errors
    /// `EPERM` when it was made for a server that does not demand it.
    pub(crate) fn fix(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(&self.map.file, MAPPED)?)
    }

    /// Whether its peer has [fixed](Self::fix) it, with all of its pages there: then an access
    /// never allocates one, and never waits for one that is being taken away. Never blocks.
    #[cfg(feature = "server")]
    pub(crate) fn is_fixed(&self) -> bool {
        let file = &self.map.file;
        let sealed =
            rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(LENGTH | MAPPED));
        // After the seals: none goes any more.
        sealed && self.is_whole()
    }

    /// Whether all of its pages are there now.
    #[cfg(feature = "server")]
    pub(crate) fn is_whole(&self) -> bool {
        rustix::fs::fstat(&self.map.file)
            .is_ok_and(|stat| stat.st_blocks as u64 * 512 >= self.len() as u64)
    }

    /// Whether its peer can never fix it, since it can be sealed no more.
    #[cfg(feature = "server")]
    pub(crate) fn never_fixed(&self) -> bool {
        rustix::fs::fcntl_get_seals(&self.map.file)
            .is_ok_and(|seals| seals.contains(SealFlags::SEAL) && !self.is_fixed())
    }

    /// Has no child inherit the mapping: it would be the parent's.
    ///
    /// # Errors
    /// The error of madvise(2).
    pub fn keep_from_children(&self) -> io::Result<()> {
        self.map.pages.keep_from_children()
    }

    /// As [`create`](Self::create), but only this mapping can be written: who gets the descriptor
    /// can map it for reading alone, and cannot write by system calls either. Nor can its maker
    /// take its pages back from whoever keeps it.
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "server")]
    pub(crate) fn create_read_only(name: &str, len: usize) -> io::Result<Self> {
        Self::make(name, len, LENGTH | MAPPED, 0)
    }

    /// As [`create_read_only`](Self::create_read_only), but by its owner and mode, so that this
    /// process's user is not kept from writing it, and this process can [`clear`](Self::clear) it.
    ///
    /// # Errors
    /// As there; `ENOSYS` where descriptors cannot be opened anew; `EMFILE`, `ENFILE`.
    #[cfg(feature = "server")]
    pub(crate) fn create_shown(name: &str, len: usize) -> io::Result<Self> {
        let mut memory = Self::make(name, len, LENGTH | SealFlags::SEAL, 0)?;
        let map = Arc::get_mut(&mut memory.map).expect("nobody else has it yet");
        rustix::fs::fchmod(&map.file, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        map.file = crate::anew::reopen(&map.file, false)?;
        Ok(memory)
    }

    /// Makes all of it zeros, which take no memory, whoever has it: for memory of
    /// [`create_shown`](Self::create_shown).
    ///
    /// # Errors
    /// The error of madvise(2).
    #[cfg(feature = "server")]
    pub(crate) fn clear(&self) -> io::Result<()> {
        let Pages { base, len } = self.map.pages;
        // SAFETY: mapped, and shared memory may change at any time.
        let remove = || unsafe {
            rustix::mm::madvise(base.as_ptr().cast(), len, rustix::mm::Advice::LinuxRemove)
        };
        Ok(rustix::io::retry_on_intr(remove)?)
    }

    fn make(name: &str, len: usize, seals: SealFlags, lowest: i32) -> io::Result<Self> {
        if len == 0 || !len.is_multiple_of(PAGE) {
            return Err(refused("shared memory has whole pages"));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 do not know that nobody is to execute it.
        let file = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
            made => made?,
        };
        let file = above(file, lowest)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        let memory = Self::map(file, len, ProtFlags::READ | ProtFlags::WRITE)?;
        rustix::fs::fcntl_add_seals(&memory.map.file, seals)?;
        Ok(memory)
    }

    /// Maps the memory that a peer made, of at most `most` bytes, for reading and writing.
    ///
    /// # Errors
    /// `InvalidInput` when it is not a memfd, its length could change, or is none, no multiple of
    /// 4096 or more than `most`; what mmap(2) says when it may not be written.
    pub fn attach(file: OwnedFd, most: usize) -> io::Result<Self> {
        let len = Self::checked_len(&file, most, PAGE)?;
        Self::map(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The same for memory of whole words of 8 bytes.
    ///
    /// # Errors
    /// As there, with 8 for 4096.
    #[cfg(feature = "server")]
    pub(crate) fn attach_words(file: OwnedFd, most: usize) -> io::Result<Self> {
        let len = Self::checked_len(&file, most, 8)?;
        Self::map(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The length, a multiple of `unit`.
    fn checked_len(file: &OwnedFd, most: usize, unit: usize) -> io::Result<usize> {
        if rustix::fs::fstatfs(file)?.f_type as u64 != TMPFS_MAGIC {
            return Err(refused("shared memory must be a memfd with pages of the usual size"));
        }
        // Only memfds can have them, and nobody takes them away.
        if !rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(LENGTH)) {
            return Err(refused("shared memory must be sealed against changes of its length"));
        }
        // After the seals: it does not change any more.
        let len = usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(usize::MAX);
        if len == 0 || len > most || !len.is_multiple_of(unit) {
            return Err(refused("shared memory has a length that is not allowed"));
        }
        Ok(len)
    }

    fn map(file: OwnedFd, len: usize, protection: ProtFlags) -> io::Result<Self> {
        let (pages, shared) = Pages::map(&file, len, protection)?;
        // Every copy of this value keeps the pages, and `shared` is not let out for longer.
        Ok(SharedMemory { shared, map: Arc::new(Map { file, pages }) })
    }
}

impl AsFd for SharedMemory {
    /// The memfd, for the peer.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.file.as_fd()
    }
}

impl Mapped for SharedMemory {
    #[inline]
    fn shared(&self) -> Shared<'_> {
        self.shared
    }
}

impl Memory for SharedMemory {
    #[inline]
    fn len(&self) -> usize {
        self.shared.len()
    }

    #[inline]
    fn load16(&self, at: usize, order: Ordering) -> u16 {
        self.shared.load16(at, order)
    }

    #[inline]
    fn store16(&self, at: usize, value: u16, order: Ordering) {
        self.shared.store16(at, value, order);
    }

    #[inline]
    fn load32(&self, at: usize, order: Ordering) -> u32 {
        self.shared.load32(at, order)
    }

    #[inline]
    fn store32(&self, at: usize, value: u32, order: Ordering) {
        self.shared.store32(at, value, order);
    }

    #[inline]
    fn swap32(&self, at: usize, value: u32, order: Ordering) -> u32 {
        self.shared.swap32(at, value, order)
    }

    #[inline]
    fn replace32(&self, at: usize, old: u32, new: u32) -> Result<u32, u32> {
        self.shared.replace32(at, old, new)
    }

    #[inline]
    fn load64(&self, at: usize, order: Ordering) -> u64 {
        self.shared.load64(at, order)
    }

    #[inline]
    fn store64(&self, at: usize, value: u64, order: Ordering) {
        self.shared.store64(at, value, order);
    }

    #[inline]
    fn fence(&self) {
        self.shared.fence();
    }

    #[inline]
    fn read(&self, at: usize, out: &mut [u8]) {
        self.shared.read(at, out);
    }

    #[inline]
    fn write(&self, at: usize, data: &[u8]) {
        self.shared.write(at, data);
    }

    #[inline]
    fn read_message(&self, at: usize, out: &mut [u8]) {
        self.shared.read_message(at, out);
    }

    #[inline]
    fn write_message(&self, at: usize, message: &[u8]) {
        self.shared.write_message(at, message);
    }
}

/// Wakes a thread that sleeps on the word at `at`, in any process: what
/// [`complete`](atoll_transport::channel::ServerChannel::complete) asks for. A slot is one
/// thread's: a client that has others sleep there waits for them itself.
pub fn wake<M: Mapped>(memory: &M, at: usize) {
    // Fails only for addresses that are not mapped.
    let _ = futex::wake(memory.shared().u32(at), futex::Flags::empty(), 1);
}

/// An eventfd that wakes a sleeping server; the server makes it and its client gets it, or threads
/// of the server ring it. Clones mean the same one.
#[derive(Clone, Debug)]
pub struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// A new one.
    ///
    /// # Errors
    /// The error of eventfd(2).
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Doorbell(Arc::new(rustix::event::eventfd(0, flags)?)))
    }

    /// The one that a server sent.
    pub(crate) fn from_server(file: OwnedFd) -> Self {
        Doorbell(Arc::new(file))
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        // Full means that it has been rung often enough.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable again; returns whether it had been rung. Not for one that a
    /// client has.
    pub fn silence(&self) -> bool {
        rustix::io::read(&*self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Doorbell {
    /// To be sent to the client; to be polled for input, unless a client has it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How long a client sleeps before it looks whether its server lives.
const SLEEP: Duration = Duration::from_millis(100);

/// The wait strategy of a client's thread: it spins while that has helped lately, then sleeps on a
/// futex.
#[derive(Debug)]
pub struct SpinThenSleep<F> {
    doorbell: Doorbell,
    alive: F,
    spin: Spin,
    limit: Limit,
    /// How long it spins in this wait.
    now: Duration,
    /// Whether it slept in the last wait, and has rung since.
    slept: bool,
    rung: bool,
}

impl<F: FnMut() -> bool> SpinThenSleep<F> {
    /// `alive` is asked every 100 ms of waiting whether the server lives.
    pub fn new(doorbell: Doorbell, alive: F) -> Self {
        Self::with_spin(doorbell, alive, SPIN_MAX)
    }

    /// As [`new`](Self::new), spinning at most `most`, or four times that for a server that sleeps.
    pub(crate) fn with_spin(doorbell: Doorbell, alive: F, most: Duration) -> Self {
        let (spin, limit) = (Spin::new(), Limit::new(most));
        SpinThenSleep { doorbell, alive, spin, limit, now: most, slept: false, rung: false }
    }
}

impl<M: Mapped, F: FnMut() -> bool> WaitStrategy<M> for SpinThenSleep<F> {
    #[inline]
    fn spin(&mut self, round: u32) -> bool {
        if round == 0 {
            self.now = self.limit.next(self.slept, self.rung);
            (self.slept, self.rung) = (false, false);
            self.spin.begin();
        }
        !self.now.is_zero() && self.spin.turn(self.now)
    }

    fn park(&mut self, memory: &M, at: usize, value: u32) -> Result<(), Lost> {
        self.slept = true;
        let timeout = futex::Timespec { tv_sec: 0, tv_nsec: SLEEP.as_nanos() as _ };
        let word = memory.shared().u32(at);
        match futex::wait(word, futex::Flags::empty(), value, Some(&timeout)) {
            Err(rustix::io::Errno::TIMEDOUT) if !(self.alive)() => Err(Lost),
            _ => Ok(()),
        }
    }

    fn ring(&mut self) {
        self.rung = true;
        self.doorbell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use atoll_transport::channel::{ClientChannel, Config, Layout, Limits, ServerChannel};
    use atoll_transport::transport::Transport;
    use rustix::io::dup;

    #[test]
    fn both_sides_see_it_and_neither_changes_the_length() {
        let ours = SharedMemory::create("test", 8192).unwrap();
        let theirs = SharedMemory::attach(dup(&ours).unwrap(), 8192).unwrap();
        ours.store32(4096, 7, Ordering::Relaxed);
        assert_eq!(theirs.load32(4096, Ordering::Relaxed), 7);
        for len in [0, 4096, 12288] {
            assert!(rustix::fs::ftruncate(&theirs, len).is_err());
        }
        assert!(rustix::fs::fcntl_add_seals(&theirs, SealFlags::FUTURE_WRITE).is_err());
        drop(ours);
        assert_eq!(theirs.clone().load32(4096, Ordering::Relaxed), 7);
    }

    #[cfg(feature = "server")]
    #[test]
    fn only_its_maker_writes() {
        let ours = SharedMemory::create_read_only("test", 4096).unwrap();
        let fd = || dup(&ours).unwrap();
        assert!(SharedMemory::attach(fd(), 4096).is_err());
        assert!(rustix::io::write(fd(), b"x").is_err());
        let theirs = ReadOnlyMemory::attach(fd(), 4096).unwrap();
        ours.store64(64, 9, Ordering::Relaxed);
        assert_eq!(theirs.shared.load64(64, Ordering::Relaxed), 9);
    }

    #[test]
    fn what_a_peer_must_not_send() {
        let kind = |file: OwnedFd| SharedMemory::attach(file, 8192).unwrap_err().kind();
        let refused = io::ErrorKind::InvalidInput;
        let memfd = |flags, len, seals| {
            let file = rustix::fs::memfd_create("test", flags | MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, len).unwrap();
            rustix::fs::fcntl_add_seals(&file, seals).map(|()| file).unwrap()
        };
        let fixed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let sealing = MemfdFlags::ALLOW_SEALING;
        assert!(SharedMemory::attach(memfd(sealing, 8192, fixed), 8192).is_ok());
        for missing in [SealFlags::SHRINK, SealFlags::GROW] {
            assert_eq!(kind(memfd(sealing, 8192, fixed - missing)), refused);
        }
        for len in [0, 4095, 4097, 12288] {
            assert_eq!(kind(memfd(sealing, len, fixed)), refused);
        }
        assert_eq!(kind(tempfile::tempfile().unwrap().into()), refused);
        assert_eq!(kind(Doorbell::new().unwrap().as_fd().try_clone_to_owned().unwrap()), refused);
    }

    /// Once both sides have mapped it, no page goes and none has to come.
    #[cfg(feature = "server")]
    #[test]
    fn fixed_memory_has_its_pages_and_keeps_them() {
        let len = 64 << 10;
        let make = |demands| SharedMemory::create_above("test", len, 0, demands).unwrap();
        let attach = |ours: &SharedMemory| SharedMemory::attach(dup(ours).unwrap(), len).unwrap();
        let punch = |memory: &SharedMemory| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(memory, flags, 4096, 4096)
        };
        let ours = make(true);
        let theirs = attach(&ours);
        assert!(!theirs.is_fixed() && !theirs.never_fixed());
        ours.fix().unwrap();
        assert!(theirs.is_fixed() && !theirs.never_fixed());
        assert_eq!(punch(&ours), Err(rustix::io::Errno::PERM));
        let Pages { base, len: mapped } = ours.map.pages;
        // SAFETY: it takes pages out of the memory, if it may; nobody has a reference to them.
        let removed = unsafe {
            rustix::mm::madvise(base.as_ptr().cast(), mapped, rustix::mm::Advice::LinuxRemove)
        };
        assert_eq!(removed, Err(rustix::io::Errno::PERM));
        assert!(rustix::io::pwrite(&ours, b"x", 0).is_err());
        assert!(SharedMemory::attach(dup(&ours).unwrap(), len).is_err(), "mapped for writing");
        ours.store32(8192, 7, Ordering::Relaxed);
        theirs.store32(8196, 8, Ordering::Relaxed);
        assert_eq!(
            (theirs.load32(8192, Ordering::Relaxed), ours.load32(8196, Ordering::Relaxed)),
            (7, 8)
        );
        // With a hole it is sealed, and not fixed.
        let ours = make(true);
        let theirs = attach(&ours);
        punch(&ours).unwrap();
        ours.fix().unwrap();
        assert!(!theirs.is_fixed() && theirs.never_fixed());
        // For a server that does not ask for it.
        let ours = make(false);
        let theirs = attach(&ours);
        assert!(!theirs.is_fixed() && theirs.never_fixed() && ours.fix().is_err());
    }

    #[test]
    fn a_doorbell_rings_until_it_is_silenced() {
        let bell = Doorbell::new().unwrap();
        assert!(!bell.silence());
        bell.ring();
        bell.ring();
        assert!(bell.silence());
        assert!(!bell.silence());
    }

    /// Calls between two mappings whose sides always sleep.
    #[test]
    fn calls_between_sleepers() {
        let config = Config { lanes: 1, window: 4096, ..Config::default() };
        let memory = SharedMemory::create("test", Layout::new(&config).unwrap().total()).unwrap();
        let bell = Doorbell::new().unwrap();
        let mut client = ClientChannel::create(memory.clone(), &config).unwrap();
        let strategy = SpinThenSleep::with_spin(bell.clone(), || true, Duration::ZERO);
        let mut lane = client.lane(0, strategy).unwrap();
        let theirs = SharedMemory::attach(dup(&memory).unwrap(), memory.len()).unwrap();
        let mut server = ServerChannel::attach(theirs, &Limits::default()).unwrap();
        let calls = 2000;
        let thread = std::thread::spawn(move || {
            let mut message = vec![0; server.layout().message_max()];
            let mut done = 0;
            while done < calls {
                if let Some(request) = server.poll(0, &mut message).unwrap() {
                    let len = request.message_len();
                    server.complete(request, &message[..len], 0, wake);
                    done += 1;
                } else if server.fall_asleep() {
                    let mut ready =
                        [rustix::event::PollFd::new(&bell, rustix::event::PollFlags::IN)];
                    let timeout = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
                    let count = rustix::event::poll(&mut ready, Some(&timeout)).unwrap();
                    assert_eq!(count, 1, "the doorbell was not rung");
                    bell.silence();
                    server.wake_up();
                }
            }
        });
        for call in 0u32..calls {
            let token = lane.send(&call.to_le_bytes(), &[], 0).unwrap();
            let mut answer = [0; 4];
            lane.receive(token, &mut answer, &mut []).unwrap();
            assert_eq!(u32::from_le_bytes(answer), call);
        }
        thread.join().unwrap();
    }

    #[test]
    fn who_has_rung_looks_longer() {
        let most = Duration::from_millis(3);
        let mut strategy = SpinThenSleep::with_spin(Doorbell::new().unwrap(), || true, most);
        let mut wait = |rings: bool| {
            if rings {
                WaitStrategy::<SharedMemory>::ring(&mut strategy);
            }
            let begin = Instant::now();
            let mut spin = |round| WaitStrategy::<SharedMemory>::spin(&mut strategy, round);
            assert!((0..u32::MAX).any(|round| !spin(round)));
            begin.elapsed()
        };
        assert!(wait(false) >= most);
        assert!(wait(true) >= most * 4);
        assert!(wait(false) >= most);
    }

    #[test]
    fn a_dead_server_is_noticed() {
        let config = Config::default();
        let memory = SharedMemory::create("test", Layout::new(&config).unwrap().total()).unwrap();
        let mut client = ClientChannel::create(memory, &config).unwrap();
        let mut alive = 2;
        let strategy = SpinThenSleep::new(Doorbell::new().unwrap(), move || {
            alive -= 1;
            alive > 0
        });
        let mut lane = client.lane(0, strategy).unwrap();
        let begin = Instant::now();
        let token = lane.send(b"", &[], 0).unwrap();
        assert_eq!(lane.wait(&token), Err(Lost));
        assert!(begin.elapsed() >= SLEEP);
    }
}
