//! The functions of `struct atoll_backend`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::slice;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use atoll_vfs::{Errno, FallocateMode, FileSystem, Handle, Ino, OpenFlags, SetAttr};

use crate::connection::{Session, TRANSFER};
use crate::lock::Lock;
use crate::servers::ServedMount;

/// Memory of this library's own; a test has its threads' panics to allocate for, and its own.
#[cfg(not(test))]
#[global_allocator]
static HEAP: crate::heap::Heap = crate::heap::Heap::new();

/// A number that C takes from the same header.
const fn number(name: &str) -> i64 {
    atoll_vfs::abi::number(include_str!("abi.h"), name)
}

/// Asserts that a structure is what C has: where each field lies, and that these are all.
macro_rules! same_in_c {
    ($structure:ident, $size:literal: $($field:ident $offset:literal),* $(,)?) => {
        const _: () = {
            const fn size<S, F>(_: fn(&S) -> &F) -> usize {
                size_of::<F>()
            }
            let mut sum = 0;
            $(
                assert!(offset_of!($structure, $field) == number($offset) as usize);
                sum += size(|structure: &$structure| &structure.$field);
            )*
            // Each field also ends where the next begins: otherwise the sum would be another.
            let size = number($size) as usize;
            assert!(sum == size && size_of::<$structure>() == size);
        };
    };
}

/// `struct atoll_file`.
#[repr(C)]
pub struct File {
    session: u64,
    ino: u64,
    handle: u64,
    token: [u64; 2],
    adopted: u64,
    connection: *const Session,
    device: libc::dev_t,
    fd: c_int,
    access: c_int,
}

same_in_c! { File, "ATOLL_FILE_SIZE":
    session "ATOLL_FILE_SESSION",
    ino "ATOLL_FILE_INO",
    handle "ATOLL_FILE_HANDLE",
    token "ATOLL_FILE_TOKEN",
    adopted "ATOLL_FILE_ADOPTED",
    connection "ATOLL_FILE_CONNECTION",
    device "ATOLL_FILE_DEVICE",
    fd "ATOLL_FILE_FD",
    access "ATOLL_FILE_ACCESS",
}

/// `struct atoll_backend`.
#[repr(C)]
pub struct Backend {
    begin: extern "C" fn(*const c_char) -> c_int,
    before_fork: extern "C" fn(),
    after_fork: extern "C" fn(),
    forked: extern "C" fn(),
    reserved: extern "C" fn(u32, u32) -> c_int,
    adopt: unsafe extern "C" fn(*mut File) -> c_int,
    closed: unsafe extern "C" fn(*const File),
    read: unsafe extern "C" fn(*const File, *const libc::iovec, c_int, i64) -> isize,
    write: unsafe extern "C" fn(*const File, *const libc::iovec, c_int, i64) -> isize,
    append: unsafe extern "C" fn(*const File, *const libc::iovec, c_int, *mut i64) -> isize,
    getattr: unsafe extern "C" fn(*const File, *mut libc::statx) -> c_int,
    truncate: unsafe extern "C" fn(*const File, i64) -> c_int,
    fsync: unsafe extern "C" fn(*const File, c_int) -> c_int,
    fallocate: unsafe extern "C" fn(*const File, c_int, i64, i64) -> c_int,
}

same_in_c! { Backend, "ATOLL_BACKEND_SIZE":
    begin "ATOLL_BACKEND_BEGIN",
    before_fork "ATOLL_BACKEND_BEFORE_FORK",
    after_fork "ATOLL_BACKEND_AFTER_FORK",
    forked "ATOLL_BACKEND_FORKED",
    reserved "ATOLL_BACKEND_RESERVED",
    adopt "ATOLL_BACKEND_ADOPT",
    closed "ATOLL_BACKEND_CLOSED",
    read "ATOLL_BACKEND_READ",
    write "ATOLL_BACKEND_WRITE",
    append "ATOLL_BACKEND_APPEND",
    getattr "ATOLL_BACKEND_GETATTR",
    truncate "ATOLL_BACKEND_TRUNCATE",
    fsync "ATOLL_BACKEND_FSYNC",
    fallocate "ATOLL_BACKEND_FALLOCATE",
}

const _: () = {
    assert!(size_of::<libc::iovec>() == number("ATOLL_IOVEC_SIZE") as usize);
    assert!(size_of::<libc::statx>() == number("ATOLL_STATX_SIZE") as usize);
    assert!(size_of::<libc::off_t>() == number("ATOLL_OFFSET_SIZE") as usize);
};

/// The way through rings.
#[unsafe(no_mangle)]
pub static atoll_by_rings: Backend = Backend {
    begin,
    before_fork,
    after_fork,
    forked,
    reserved,
    adopt,
    closed,
    read,
    write,
    append,
    getattr,
    truncate,
    fsync,
    fallocate,
};

const BY_KERNEL: isize = number("ATOLL_BY_KERNEL") as isize;
/// The same, since the original of what was adopted is closed.
const CLOSED: isize = number("ATOLL_CLOSED") as isize;
/// Servers that a process is connected to.
const SESSIONS: usize = 8;
/// Above what programs usually have, so that none expects to get these numbers; as a rule the
/// kernel's table has them without growing.
const DESCRIPTORS_END: u64 = 1024;
const DESCRIPTORS: usize = SESSIONS * 3;

static SERVERS: AtomicPtr<c_char> = AtomicPtr::new(null_mut());
static CONNECTING: Lock = Lock::new();
/// Never freed while the process lives: other threads may be using them.
static FOUND: [AtomicPtr<Session>; SESSIONS] = [const { AtomicPtr::new(null_mut()) }; SESSIONS];
/// Connections tried, those that failed included.
static TRIED: AtomicUsize = AtomicUsize::new(0);
/// The numbers of our descriptors; 0 for none.
static OURS: [AtomicI32; DESCRIPTORS] = [const { AtomicI32::new(0) }; DESCRIPTORS];

extern "C" fn begin(servers: *const c_char) -> c_int {
    forked();
    #[cfg(not(test))]
    // SAFETY: nobody in this process has been here, or it is a child whose other threads are gone.
    unsafe {
        HEAP.restart();
    }
    TRIED.store(0, Ordering::Relaxed);
    for place in &FOUND {
        place.store(null_mut(), Ordering::Relaxed);
    }
    SERVERS.store(servers.cast_mut(), Ordering::Release);
    0
}

/// The connections that there are.
fn sessions() -> impl Iterator<Item = &'static Session> {
    // SAFETY: made in `session`, and never freed.
    FOUND.iter().filter_map(|place| unsafe { place.load(Ordering::Acquire).as_ref() })
}

/// Nothing is being made from here until [`after_fork`], neither a connection nor a View.
extern "C" fn before_fork() {
    CONNECTING.take();
    sessions().for_each(Session::stand_still);
}

extern "C" fn after_fork() {
    sessions().for_each(Session::go_on);
    CONNECTING.reset();
}

/// In a child: lets go of what it has inherited.
extern "C" fn forked() {
    CONNECTING.reset();
    for place in &OURS {
        let fd = place.swap(0, Ordering::Relaxed);
        if fd > 0 {
            // SAFETY: ours, of the connection that is the parent's; nothing here uses it again.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
}

/// The lowest of our descriptors from `first` to `last`, or -1.
extern "C" fn reserved(first: u32, last: u32) -> c_int {
    let numbers = OURS.iter().map(|place| place.load(Ordering::Relaxed));
    let inside = |&fd: &i32| fd > 0 && (first..=last).contains(&(fd as u32));
    numbers.filter(inside).min().unwrap_or(-1)
}

/// The session of `device`, which is made if need be.
fn session(device: u64) -> Option<&'static Session> {
    let find = || sessions().find(|session| session.device == device);
    if let Some(found) = find() {
        return Some(found);
    }
    let _held = CONNECTING.lock();
    if let Some(found) = find() {
        return Some(found);
    }
    // Each is tried once.
    let at = TRIED.load(Ordering::Relaxed);
    let place = FOUND.get(at)?;
    TRIED.store(at + 1, Ordering::Relaxed);
    let text = SERVERS.load(Ordering::Acquire);
    if text.is_null() {
        return None;
    }
    // SAFETY: as `begin` was told, a string that stays.
    let text = unsafe { CStr::from_ptr(text) }.to_str().ok()?;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let end = limit.unwrap_or(DESCRIPTORS_END).min(DESCRIPTORS_END);
    let lowest = i32::try_from(end).ok()?.checked_sub(DESCRIPTORS as i32).filter(|&n| n > 2)?;
    let made = Session::begin(&ServedMount::find(text, device)?, lowest)?;
    for (place, fd) in OURS[at * 3..].iter().zip(made.descriptors()) {
        place.store(fd, Ordering::Relaxed);
    }
    let made = Box::leak(Box::new(made));
    place.store(made, Ordering::Release);
    Some(made)
}

/// Adopts the file: 0, or negative if its calls are the kernel's.
unsafe extern "C" fn adopt(file: *mut File) -> c_int {
    // SAFETY: the caller's, valid during the call.
    let file = unsafe { &mut *file };
    let Some(session) = session(file.device) else { return BY_KERNEL as c_int };
    let rights = match file.access {
        libc::O_RDONLY => Some(OpenFlags::READ),
        libc::O_WRONLY => Some(OpenFlags::WRITE),
        libc::O_RDWR => Some(OpenFlags::READ | OpenFlags::WRITE),
        _ => None,
    };
    let adopted = match rights {
        Some(rights) => session.adopt_open(Ino(file.ino), rights),
        None => session.adopt(file.token),
    };
    let Some(handle) = adopted else { return BY_KERNEL as c_int };
    (file.adopted, file.connection) = (handle.0, session);
    0
}

unsafe extern "C" fn closed(file: *const File) {
    // SAFETY: as above.
    if let Some((session, ino, handle)) = unsafe { parts(file) } {
        session.closed(ino, handle);
    }
}

/// # Safety
/// `file` is valid, and was adopted in this process or never.
unsafe fn parts<'f>(file: *const File) -> Option<(&'f Session, Ino, Handle)> {
    // SAFETY: as the caller says; sessions are never freed.
    let (file, session) = unsafe { (&*file, (*file).connection.as_ref()?) };
    Some((session, Ino(file.ino), Handle(file.adopted)))
}

fn answer(result: Option<Result<usize, Errno>>) -> isize {
    match result {
        None => BY_KERNEL,
        Some(Ok(count)) => count as isize,
        Some(Err(Errno::EBADF | Errno::ESTALE)) => CLOSED,
        Some(Err(error)) => -(error.raw() as isize),
    }
}

/// # Safety
/// As readv(2) has it; the buffers are used only as the caller of that allows.
unsafe fn buffers<'b>(iov: *const libc::iovec, count: c_int) -> &'b [libc::iovec] {
    // SAFETY: as the caller says.
    unsafe { slice::from_raw_parts(iov, count as usize) }
}

unsafe extern "C" fn read(
    file: *const File,
    iov: *const libc::iovec,
    count: c_int,
    at: i64,
) -> isize {
    // SAFETY: what the program has given to read(2); bytes are only written.
    let (parts, iov) = unsafe { (parts(file), buffers(iov, count)) };
    let Some((session, ino, handle)) = parts else { return BY_KERNEL };
    if let &[one] = iov {
        // SAFETY: as above.
        let buffer = unsafe { slice::from_raw_parts_mut(one.iov_base.cast::<u8>(), one.iov_len) };
        return answer(session.read(ino, handle, at as u64, buffer));
    }
    answer(session.call(|files, cx| {
        let mut done = 0;
        for part in iov.iter().filter(|part| part.iov_len > 0) {
            // SAFETY: as above.
            let buffer =
                unsafe { slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), part.iov_len) };
            match files.read(cx, ino, handle, at as u64 + done as u64, buffer) {
                Ok(got) => {
                    done += got;
                    if got < buffer.len() {
                        break;
                    }
                }
                // Bytes that were read before count.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }))
}

/// The bytes of `iov` in one piece, if there is one, or copied to `copy`; `None` if they are too
/// many.
///
/// # Safety
/// As [`buffers`].
unsafe fn gather<'b>(iov: &'b [libc::iovec], copy: &'b mut Vec<u8>) -> Option<&'b [u8]> {
    let mut parts = iov.iter().filter(|part| part.iov_len > 0).map(|part| {
        // SAFETY: what the program has given to write(2); bytes are only read.
        unsafe { slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) }
    });
    let first = parts.next()?;
    let Some(second) = parts.next() else { return Some(first) };
    if iov.iter().map(|part| part.iov_len).sum::<usize>() > TRANSFER {
        return None;
    }
    copy.extend_from_slice(first);
    copy.extend_from_slice(second);
    parts.for_each(|part| copy.extend_from_slice(part));
    Some(copy)
}

unsafe extern "C" fn write(
    file: *const File,
    iov: *const libc::iovec,
    count: c_int,
    at: i64,
) -> isize {
    let mut copy = Vec::new();
    // SAFETY: what the program has given to write(2).
    let (parts, data) = unsafe { (parts(file), gather(buffers(iov, count), &mut copy)) };
    let (Some((session, ino, handle)), Some(data)) = (parts, data) else { return BY_KERNEL };
    answer(
        session.call(|files, cx| {
            files.write(cx, ino, handle, at as u64, data).map(|written| written.len)
        }),
    )
}

unsafe extern "C" fn append(
    file: *const File,
    iov: *const libc::iovec,
    count: c_int,
    end: *mut i64,
) -> isize {
    let mut copy = Vec::new();
    // SAFETY: what the program has given to write(2).
    let (parts, data) = unsafe { (parts(file), gather(buffers(iov, count), &mut copy)) };
    let (Some((session, ino, handle)), Some(data)) = (parts, data) else { return BY_KERNEL };
    // In one piece.
    if data.len() > TRANSFER {
        return BY_KERNEL;
    }
    answer(
        session
            .call(|files, cx| {
                let written = match files.append_to(cx, ino, handle, data) {
                    // It may have been appended, and must not be twice: the error stays one.
                    Err(Errno::EIO) => return Ok(Err(Errno::EIO)),
                    result => result?,
                };
                // SAFETY: the caller's.
                unsafe { *end = (written.offset + written.len as u64) as i64 };
                Ok(Ok(written.len))
            })
            .map(|result| result.and_then(|result| result)),
    )
}

unsafe extern "C" fn getattr(file: *const File, out: *mut libc::statx) -> c_int {
    // SAFETY: the caller's.
    let (parts, device, out) = unsafe { (parts(file), (*file).device, &mut *out) };
    let Some((session, ino, _)) = parts else { return BY_KERNEL as c_int };
    let attr = match session.getattr(ino) {
        None => return BY_KERNEL as c_int,
        Some(Err(Errno::EBADF | Errno::ESTALE)) => return CLOSED as c_int,
        Some(Err(error)) => return -error.raw(),
        Some(Ok(attr)) => attr,
    };
    let time = |time: atoll_vfs::Timespec| {
        // SAFETY: numbers.
        let mut out: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        (out.tv_sec, out.tv_nsec) = (time.sec, time.nsec);
        out
    };
    // SAFETY: numbers.
    *out = unsafe { std::mem::zeroed() };
    out.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    out.stx_blksize = 4096;
    (out.stx_uid, out.stx_gid) = session.owner.unwrap_or((attr.uid, attr.gid));
    out.stx_nlink = attr.nlink;
    out.stx_mode = attr.mode as u16;
    out.stx_ino = ino.0;
    out.stx_size = attr.size;
    out.stx_blocks = attr.blocks;
    out.stx_atime = time(attr.atime);
    out.stx_mtime = time(attr.mtime);
    out.stx_ctime = time(attr.ctime);
    out.stx_btime = time(attr.btime);
    (out.stx_rdev_major, out.stx_rdev_minor) =
        (libc::major(attr.rdev.into()), libc::minor(attr.rdev.into()));
    (out.stx_dev_major, out.stx_dev_minor) = (libc::major(device), libc::minor(device));
    0
}

/// # Safety
/// As [`parts`].
unsafe fn simple(
    file: *const File,
    call: impl FnOnce(
        &mut crate::connection::Files,
        &atoll_vfs::Context,
        Ino,
        Handle,
    ) -> Result<(), Errno>,
) -> c_int {
    // SAFETY: as the caller says.
    let Some((session, ino, handle)) = (unsafe { parts(file) }) else { return BY_KERNEL as c_int };
    answer(session.call(|files, cx| call(files, cx, ino, handle).map(|()| 0))) as c_int
}

unsafe extern "C" fn truncate(file: *const File, size: i64) -> c_int {
    let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
    // SAFETY: the caller's.
    unsafe {
        simple(file, |files, cx, ino, handle| files.setattr(cx, ino, Some(handle), &set).map(drop))
    }
}

unsafe extern "C" fn fsync(file: *const File, data_only: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { simple(file, |files, cx, ino, handle| files.fsync(cx, ino, handle, data_only != 0)) }
}

unsafe extern "C" fn fallocate(file: *const File, mode: c_int, at: i64, length: i64) -> c_int {
    let Some(mode) = FallocateMode::from_bits(mode as u32) else { return BY_KERNEL as c_int };
    // SAFETY: the caller's.
    unsafe {
        simple(file, |files, cx, ino, handle| {
            files.fallocate(cx, ino, handle, at as u64, length as u64, mode)
        })
    }
}
