//! The one volume that the C calls of a process share: its lock, and what becomes of it in fork.
//!
//! # Threads
//! One lock around the volume, a word of memory. While the process has a single thread, as the C
//! library tells, taking it is a load, a comparison and a store.
//!
//! # Signals
//! The calls are not async-signal-safe. One made by a signal handler that interrupted another one
//! of its thread is refused with `EDEADLK`: the word of the lock says which thread has it.
//!
//! # Fork
//! A volume belongs to the process that mounted it. The lock and the pointer to the volume lie in
//! a page that the kernel gives to a child filled with zeros, so that the child finds no volume
//! mounted: calls on descriptors are `EBADF`, others `ENODEV`, and neither memory nor volume is
//! touched. It may mount a volume of its own. A child closes its copies of what connects its parent
//! with a server, so that the server sees the parent's end.

use core::cell::Cell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use atoll_vfs::Errno;

use crate::volume::Volume;

/// The number that goes into errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(pub i32);

impl From<Errno> for Error {
    #[inline]
    fn from(errno: Errno) -> Self {
        Error(errno.raw())
    }
}

const UNLOCKED: u32 = 0;
/// Locked by the only thread. Other numbers name the thread that has the lock.
const ALONE: u32 = 1;
/// Set where someone sleeps until it is not locked.
const CONTENDED: u32 = 1 << 31;

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(UNLOCKED) };
}

/// The number of this thread, from 2 on.
#[inline]
fn thread() -> u32 {
    match THREAD.get() {
        UNLOCKED => number_thread(),
        number => number,
    }
}

#[cold]
fn number_thread() -> u32 {
    static THREADS: AtomicU32 = AtomicU32::new(0);
    let number = THREADS.fetch_add(1, Ordering::Relaxed) % (CONTENDED - 2) + 2;
    THREAD.set(number);
    number
}

/// The state that threads share and a child does not inherit.
struct Shared {
    lock: AtomicU32,
    /// Whether waiters may sleep in the kernel: no longer once the process is sealed.
    may_sleep: AtomicBool,
    /// A call panicked: the volume may be half changed in memory and is not used any more.
    broken: AtomicBool,
    /// Guarded by `lock`.
    volume: Cell<*mut Volume>,
    /// The number of the mount. Guarded by `lock`.
    mount: Cell<u64>,
    /// The number of the process that mounted, which a sealed one could not ask for.
    process: AtomicU32,
}

/// Null until the first mount.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

#[cfg(target_env = "gnu")]
mod single_threaded {
    unsafe extern "C" {
        /// Non-zero while the process has no second thread (sys/single_threaded.h).
        static __libc_single_threaded: core::ffi::c_char;
    }

    #[inline(always)]
    pub fn get() -> bool {
        // SAFETY: the C library defines the variable and changes it only in the thread that starts
        // the second one, and when all others are gone.
        unsafe { ptr_read() != 0 }
    }

    #[inline(always)]
    unsafe fn ptr_read() -> core::ffi::c_char {
        // SAFETY: as above. Volatile, since it changes without Rust's knowing.
        unsafe { (&raw const __libc_single_threaded).read_volatile() }
    }
}

#[cfg(not(target_env = "gnu"))]
mod single_threaded {
    /// Other C libraries do not tell.
    #[inline(always)]
    pub fn get() -> bool {
        false
    }
}

impl Shared {
    #[inline(always)]
    fn acquire(&self) -> Result<(), Error> {
        if single_threaded::get() {
            if self.lock.load(Ordering::Relaxed) != UNLOCKED {
                return Err(Error(libc::EDEADLK));
            }
            self.lock.store(ALONE, Ordering::Relaxed);
            return Ok(());
        }
        let thread = thread();
        let free =
            self.lock.compare_exchange(UNLOCKED, thread, Ordering::Acquire, Ordering::Relaxed);
        if free.is_ok() { Ok(()) } else { self.wait(thread) }
    }

    #[cold]
    fn wait(&self, thread: u32) -> Result<(), Error> {
        // The word tells the owner and is set in one step: a handler of a signal cannot find the
        // lock taken by its own thread and not know it.
        if self.lock.load(Ordering::Relaxed) & !CONTENDED == thread {
            return Err(Error(libc::EDEADLK));
        }
        // Most calls are over within a microsecond.
        for _ in 0..200 {
            if self.take(UNLOCKED, thread) {
                return Ok(());
            }
            core::hint::spin_loop();
        }
        loop {
            let now = self.lock.load(Ordering::Relaxed);
            // Others may sleep still, which the word does not say any more.
            if now == UNLOCKED && self.take(now, thread | CONTENDED) {
                return Ok(());
            }
            if now == UNLOCKED {
                continue;
            }
            if !self.may_sleep.load(Ordering::Relaxed) {
                core::hint::spin_loop();
                continue;
            }
            if now & CONTENDED == 0 && !self.take(now, now | CONTENDED) {
                continue;
            }
            // SAFETY: the futex word lives as long as the process; no timeout is given.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.lock.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    now | CONTENDED,
                    ptr::null::<libc::timespec>(),
                );
            }
        }
    }

    #[inline]
    fn take(&self, from: u32, to: u32) -> bool {
        self.lock.load(Ordering::Relaxed) == from
            && self.lock.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    fn release(&self) {
        if single_threaded::get() {
            self.lock.store(UNLOCKED, Ordering::Relaxed);
        } else if self.lock.swap(UNLOCKED, Ordering::Release) & CONTENDED != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.may_sleep.load(Ordering::Relaxed) {
            // SAFETY: the futex word lives as long as the process.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.lock.as_ptr(),
                    libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                    1,
                );
            }
        }
    }
}

/// Why a call finds no volume: `errno` when there is none, `EIO` when it broke.
#[cold]
fn missing(shared: Option<&Shared>, errno: i32) -> Error {
    match shared {
        Some(shared) if shared.broken.load(Ordering::Relaxed) => Error(libc::EIO),
        _ => Error(errno),
    }
}

/// Runs `call` on the mounted volume, alone; without one, fails with `errno`.
///
/// # Errors
/// The error of `call`, `errno`, `EDEADLK` from a signal handler, `EIO` after a panic.
#[inline(always)]
pub fn with_volume<R>(
    errno: i32,
    call: impl FnOnce(&mut Volume) -> Result<R, Error>,
) -> Result<R, Error> {
    let shared = SHARED.load(Ordering::Acquire);
    if shared.is_null() {
        return Err(missing(None, errno));
    }
    // SAFETY: once set, the pointer is never freed.
    let shared = unsafe { &*shared };
    shared.acquire()?;
    let volume = shared.volume.get();
    if volume.is_null() {
        shared.release();
        return Err(missing(Some(shared), errno));
    }
    // SAFETY: the pointer came from Box::into_raw and is freed only after it was taken out, under
    // the lock that this thread holds.
    let volume = unsafe { &mut *volume };
    let result = catch_unwind(AssertUnwindSafe(|| call(volume)));
    match result {
        Ok(result) => {
            shared.release();
            result
        }
        Err(_) => Err(abandon(shared)),
    }
}

/// After a panic the volume is not used again: what is on the device is whole, as after a crash.
#[cold]
fn abandon(shared: &Shared) -> Error {
    shared.broken.store(true, Ordering::Relaxed);
    shared.volume.set(ptr::null_mut());
    shared.release();
    Error(libc::EIO)
}

/// Runs `body`, whose panic becomes `EIO`.
pub(crate) fn guarded<R>(body: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Error(libc::EIO)))
}

/// Makes `volume` the process's volume, if it has none.
///
/// # Errors
/// `EBUSY` with the volume back, if one is mounted; `ENOMEM`.
pub fn install(volume: Box<Volume>) -> Result<(), (Box<Volume>, Error)> {
    let shared = match shared() {
        Ok(shared) => shared,
        Err(error) => return Err((volume, error)),
    };
    if let Err(error) = shared.acquire() {
        return Err((volume, error));
    }
    let busy = !shared.volume.get().is_null();
    if busy {
        shared.release();
        return Err((volume, Error(libc::EBUSY)));
    }
    shared.volume.set(Box::into_raw(volume));
    shared.mount.set(shared.mount.get() + 1);
    shared.process.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: set just now, and guarded by the lock.
    shared.keep_from_children(crate::volume::descriptors(unsafe { &*shared.volume.get() }));
    shared.broken.store(false, Ordering::Relaxed);
    shared.may_sleep.store(true, Ordering::Relaxed);
    shared.release();
    Ok(())
}

/// Whether this process has a volume mounted.
pub fn is_mounted() -> bool {
    with_pointer(|_, pointer| !pointer.is_null()).unwrap_or(false)
}

/// The number of the process's mount, the first of which is 1: to be asked within
/// [`with_volume`], by those who keep something of a volume.
pub fn mount_number() -> u64 {
    let shared = SHARED.load(Ordering::Acquire);
    // SAFETY: once set, the pointer is never freed, and the caller has the lock.
    if shared.is_null() { 0 } else { unsafe { &*shared }.mount.get() }
}

/// The number of this process, without a system call where it has mounted a volume.
pub fn process_number() -> u32 {
    let shared = SHARED.load(Ordering::Acquire);
    // SAFETY: once set, the pointer is never freed. A child finds 0 there.
    let mounted = unsafe { shared.as_ref() }.map(|shared| shared.process.load(Ordering::Relaxed));
    mounted.filter(|&number| number != 0).unwrap_or_else(std::process::id)
}

/// Takes the process's volume out.
///
/// # Errors
/// `ENODEV` if there is none.
pub fn remove() -> Result<Volume, Error> {
    let taken = with_pointer(|shared, pointer| {
        // Before they are closed: the numbers may be those of other files then. Another thread may
        // mount as soon as the lock is free, and has descriptors to keep.
        shared.keep_from_children(&[]);
        core::mem::replace(pointer, ptr::null_mut())
    })?;
    if taken.is_null() {
        return Err(Error(libc::ENODEV));
    }
    // SAFETY: the pointer came from Box::into_raw in `install`, and nobody else can have it now.
    Ok(*unsafe { Box::from_raw(taken) })
}

fn with_pointer<R>(body: impl FnOnce(&Shared, &mut *mut Volume) -> R) -> Result<R, Error> {
    let shared = SHARED.load(Ordering::Acquire);
    if shared.is_null() {
        return Err(Error(libc::ENODEV));
    }
    // SAFETY: once set, the pointer is never freed.
    let shared = unsafe { &*shared };
    shared.acquire()?;
    let mut pointer = shared.volume.get();
    let result = body(shared, &mut pointer);
    shared.volume.set(pointer);
    shared.release();
    Ok(result)
}

/// Descriptors that children of fork(3) close, or -1. A server takes a client for ended when the
/// last copy is closed.
static KEPT: [AtomicI32; 3] = [const { AtomicI32::new(-1) }; 3];

impl Shared {
    /// Has the children that are made from here on close `descriptors`, and no others. The caller
    /// has the lock.
    fn keep_from_children(&self, descriptors: &[RawFd]) {
        static REGISTERED: AtomicBool = AtomicBool::new(false);
        debug_assert_ne!(self.lock.load(Ordering::Relaxed), UNLOCKED, "they are the volume's");
        for (index, kept) in KEPT.iter().enumerate() {
            kept.store(descriptors.get(index).copied().unwrap_or(-1), Ordering::Relaxed);
        }
        if !descriptors.is_empty() && !REGISTERED.swap(true, Ordering::Relaxed) {
            // SAFETY: the function is one for a child with one thread.
            unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
        }
    }
}

unsafe extern "C" fn close_in_child() {
    for kept in &KEPT {
        let descriptor = kept.swap(-1, Ordering::Relaxed);
        if descriptor >= 0 {
            // SAFETY: it is the child's copy, whose owner it does not have: its volume's pointer
            // lay in the page that is zeros now.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// From now on no thread of the process may sleep in the kernel: waiters spin.
pub fn forbid_sleep() {
    let shared = SHARED.load(Ordering::Acquire);
    if !shared.is_null() {
        // SAFETY: once set, the pointer is never freed.
        unsafe { &*shared }.may_sleep.store(false, Ordering::Relaxed);
    }
}

/// Whether waiters may sleep in the kernel.
pub fn may_sleep() -> bool {
    let shared = SHARED.load(Ordering::Acquire);
    // SAFETY: once set, the pointer is never freed.
    unsafe { shared.as_ref() }.is_none_or(|shared| shared.may_sleep.load(Ordering::Relaxed))
}

/// The shared state, made by the first caller.
fn shared() -> Result<&'static Shared, Error> {
    let existing = SHARED.load(Ordering::Acquire);
    if !existing.is_null() {
        // SAFETY: once set, the pointer is never freed.
        return Ok(unsafe { &*existing });
    }
    let page = private_page()?.cast::<Shared>();
    // All zeros are what a child finds: unlocked, unbroken, no volume. The page is that already.
    match SHARED.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: a page is larger than `Shared`, aligned, zeroed, and never unmapped from here on.
        Ok(_) => Ok(unsafe { &*page }),
        Err(first) => {
            // SAFETY: nobody has seen this page. The other thread's is never freed.
            unsafe {
                libc::munmap(page.cast(), PAGE);
                Ok(&*first)
            }
        }
    }
}

const PAGE: usize = 4096;
const _: () = assert!(size_of::<Shared>() <= PAGE);

/// A page of zeros that is zeros again in every child.
fn private_page() -> Result<*mut libc::c_void, Error> {
    // SAFETY: a new mapping at an address of the kernel's choice; nothing else is touched.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(Error(libc::ENOMEM));
    }
    // SAFETY: the page was mapped just now. Where the kernel is too old for the advice, the C
    // library's own hook clears it in children that fork(3) makes.
    unsafe {
        if libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) != 0 {
            libc::pthread_atfork(None, None, Some(clear_in_child));
        }
    }
    Ok(page)
}

unsafe extern "C" fn clear_in_child() {
    let shared = SHARED.load(Ordering::Relaxed);
    if !shared.is_null() {
        // SAFETY: the child has one thread, and zeros are a valid `Shared`.
        unsafe { shared.write_bytes(0, 1) };
    }
}
