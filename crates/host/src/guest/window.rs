//! The window of a process that is a guest: the files that the device shows in it, and the
//! connection by which it says so.
//!
//! There is no memory in which a file is mapped for its bytes to be looked at. The device hands
//! over descriptors, and what is shown is copied by calls that fail where the file has been cut
//! short, or memory is: so nothing that a device hands over, or does to it later, is a signal here.
//! Bytes are read by pread(2). Memory whose length is fixed is written through a mapping, with
//! copies that may fail ([`Mapping`]): write(2) takes the lock of its inode, which another who
//! has the memory can hold for ever. Other files are written by pwrite(2).
//!
//! A device that does not keep the rules is told so, and hears no more when it speaks nonsense:
//! what it does not show goes by messages.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_vfs::windowed;
use rustix::fs::{FileType, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};

use crate::device::mapping::Mapping;
use crate::virtio::device::RANGE;

// Numbers of the device's messages (vhost-user, back-end message types).
const SHMEM_MAP: u32 = 9;
const SHMEM_UNMAP: u32 = 10;
// Bits of a message's flags, and the mask of its version.
const VERSION_MASK: u32 = 3;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// Number, flags and the length of what follows, each of 4 bytes.
const HEADER: usize = 12;
/// The region's number with its padding, offset in the file, offset in the window, length, flags,
/// each of 8 bytes.
const BODY: usize = 40;
const MESSAGE: usize = HEADER + BODY;
/// The flag of a range that is to be written.
const WRITABLE: u64 = 1;
/// The unit of ranges.
const PAGE: u64 = 4096;
/// The most messages that are answered at once.
const AT_ONCE: usize = 16;

/// A range that is shown.
#[derive(Debug)]
struct Range {
    len: u64,
    file: OwnedFd,
    /// Where it begins in the file.
    offset: u64,
    how: How,
}

/// How it is written.
#[derive(Debug)]
enum How {
    Not,
    ByCall,
    Mapped(Mapping),
}

/// What is shown where. Clones mean the same.
#[derive(Clone, Debug)]
pub struct Shown {
    len: u64,
    ranges: Arc<Mutex<BTreeMap<u64, Range>>>,
}

fn whole(bytes: u64) -> bool {
    bytes.is_multiple_of(PAGE)
}

impl Shown {
    /// Nothing yet, in a window of `len` bytes.
    pub(super) fn new(len: u64) -> Shown {
        Shown { len, ranges: Arc::default() }
    }

    fn ranges(&self) -> MutexGuard<'_, BTreeMap<u64, Range>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device shows nothing any more.
    pub(super) fn clear(&self) {
        self.ranges().clear();
    }

    /// Shows `len` bytes of `file` from `offset` on at `at`; `None` where that makes no sense.
    fn show(&self, at: u64, len: u64, file: OwnedFd, offset: u64, writable: bool) -> Option<()> {
        let end = at.checked_add(len).filter(|end| *end <= self.len)?;
        let file_end = offset.checked_add(len)?;
        if len == 0 || ![at, len, offset].into_iter().all(whole) || i64::try_from(file_end).is_err()
        {
            return None;
        }
        let mut ranges = self.ranges();
        let before = ranges.range(..end).next_back();
        if before.is_some_and(|(start, range)| start + range.len > at)
            || ranges.len() as u64 >= self.len / RANGE
        {
            return None;
        }
        let stat = rustix::fs::fstat(&file).ok()?;
        // A file of any other kind may block who reads it, or read something else each time.
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        let flags = rustix::fs::fcntl_getfl(&file).ok()?;
        let mode = flags & OFlags::RWMODE;
        let may_write = mode == OFlags::RDWR && !flags.contains(OFlags::APPEND);
        let odd = flags.intersects(OFlags::DIRECT | OFlags::PATH);
        if mode == OFlags::WRONLY || odd || (writable && !may_write) {
            return None;
        }
        let is_fixed = rustix::fs::fcntl_get_seals(&file)
            .is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
            && stat.st_size as u64 >= file_end;
        let how = match (writable, is_fixed) {
            (false, _) => How::Not,
            (true, false) => How::ByCall,
            (true, true) => {
                let len = usize::try_from(len).ok()?;
                How::Mapped(Mapping::part(file.as_fd(), offset, len).ok()?)
            }
        };
        ranges.insert(at, Range { len, file, offset, how });
        Some(())
    }

    /// Shows a range no more.
    fn hide(&self, at: u64, len: u64) -> Option<()> {
        let mut ranges = self.ranges();
        ranges.get(&at).filter(|range| range.len == len)?;
        ranges.remove(&at).map(drop)
    }
}

/// The range in which `len` bytes from `at` on lie, and where they begin in it.
fn within(ranges: &mut BTreeMap<u64, Range>, at: u64, len: usize) -> Option<(&mut Range, u64)> {
    let (start, range) = ranges.range_mut(..=at).next_back()?;
    let begin = at - start;
    (begin.checked_add(len as u64)? <= range.len).then_some((range, begin))
}

/// Makes a call that moves bytes, and has to move some.
fn again(call: impl FnMut() -> rustix::io::Result<usize>) -> Option<usize> {
    rustix::io::retry_on_intr(call).ok().filter(|done| *done > 0)
}

impl windowed::Window for Shown {
    fn len(&self) -> u64 {
        self.len
    }

    fn copy_out(&self, at: u64, out: &mut [u8]) -> bool {
        let mut ranges = self.ranges();
        let Some((range, begin)) = within(&mut ranges, at, out.len()) else { return false };
        let (mut from, mut rest) = (range.offset + begin, out);
        while !rest.is_empty() {
            let read = again(|| rustix::io::pread(&range.file, &mut *rest, from));
            let Some(read) = read else { return false };
            from += read as u64;
            rest = &mut rest[read..];
        }
        true
    }

    fn copy_in(&self, at: u64, data: &[u8]) -> bool {
        let mut ranges = self.ranges();
        let Some((range, begin)) = within(&mut ranges, at, data.len()) else { return false };
        let (mut to, mut rest) = (range.offset + begin, data);
        match &mut range.how {
            How::Not => return false,
            How::Mapped(mapping) => return mapping.provide(begin as usize, data).is_ok(),
            How::ByCall => {}
        }
        // A write beyond the limit would be answered by SIGXFSZ.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if limit.is_some_and(|limit| to + data.len() as u64 > limit) {
            return false;
        }
        while !rest.is_empty() {
            let wrote = again(|| rustix::io::pwrite(&range.file, rest, to));
            let Some(wrote) = wrote else { return false };
            to += wrote as u64;
            rest = &rest[wrote..];
        }
        true
    }
}

/// The connection by which the device says what it shows. Nothing here waits.
#[derive(Debug)]
pub(super) struct Questions {
    socket: UnixStream,
    shown: Shown,
    /// The part of a message that has come, and the files that came with it.
    came: Vec<u8>,
    files: Vec<OwnedFd>,
}

/// The device has hung up, or spoken nonsense: it is heard no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Over;

impl Questions {
    /// A connection, and its other end, which is the device's.
    ///
    /// # Errors
    /// Those of socketpair(2).
    pub fn new(shown: Shown) -> io::Result<(Questions, UnixStream)> {
        let (socket, other) = UnixStream::pair()?;
        Ok((Questions { socket, shown, came: Vec::new(), files: Vec::new() }, other))
    }

    /// Answers what has been asked, some of it if it is much.
    ///
    /// # Errors
    /// [`Over`].
    pub fn answer(&mut self) -> Result<(), Over> {
        for _ in 0..AT_ONCE {
            if !self.receive()? {
                return Ok(());
            }
            if self.came.len() < MESSAGE {
                continue;
            }
            let came = std::mem::take(&mut self.came);
            let files = std::mem::take(&mut self.files);
            let (number, flags) = (word(&came, 0), word(&came, 4));
            let done = self.done(number, &came[HEADER..], files);
            if flags & NEED_REPLY != 0 {
                self.acknowledge(number, done.is_some())?;
            }
        }
        Ok(())
    }

    /// Receives a part of a message, no byte of the next. Returns whether something was there.
    fn receive(&mut self) -> Result<bool, Over> {
        let mut bytes = [0; MESSAGE];
        let room = MESSAGE - self.came.len();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut bytes[..room])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, parts, &mut control, flags);
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = part {
                self.files.extend(more);
            }
        }
        let read = match received {
            Ok(received) if received.bytes > 0 => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            _ => return Err(Over),
        };
        self.came.extend_from_slice(&bytes[..read]);
        if self.files.len() > 1 {
            return Err(Over);
        }
        if self.came.len() >= HEADER {
            let (number, flags) = (word(&self.came, 0), word(&self.came, 4));
            let is_known = matches!(number, SHMEM_MAP | SHMEM_UNMAP)
                && flags & VERSION_MASK == VERSION
                && flags & REPLY == 0
                && word(&self.came, 8) as usize == BODY;
            if !is_known {
                return Err(Over);
            }
        }
        Ok(true)
    }

    /// Does what is asked.
    fn done(&self, number: u32, body: &[u8], mut files: Vec<OwnedFd>) -> Option<()> {
        let [region, offset, at, len, flags] = [0, 8, 16, 24, 32].map(|from| long(body, from));
        if region != 0 || flags & !WRITABLE != 0 {
            return None;
        }
        match (number, files.pop()) {
            (SHMEM_MAP, Some(file)) => self.shown.show(at, len, file, offset, flags == WRITABLE),
            (SHMEM_UNMAP, None) => self.shown.hide(at, len),
            _ => None,
        }
    }

    fn acknowledge(&self, number: u32, done: bool) -> Result<(), Over> {
        let header = [number, VERSION | REPLY, 8].map(u32::to_ne_bytes).concat();
        let message = [&header[..], &u64::from(!done).to_ne_bytes()].concat();
        let sent = send(&self.socket, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        if sent == Ok(message.len()) { Ok(()) } else { Err(Over) }
    }
}

impl AsFd for Questions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The word at `at`, which is there.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

#[cfg(test)]
mod tests;
