//! Devices that keep the rules, and others.

use std::io::{IoSlice, Read, Write};

use atoll_vfs::windowed::Window as _;
use rustix::fs::{MemfdFlags, Mode};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};

use super::*;

const WINDOW: u64 = 4 * RANGE;

/// A device's end.
struct Device {
    questions: Questions,
    socket: UnixStream,
    shown: Shown,
}

fn device() -> Device {
    let shown = Shown::new(WINDOW);
    let (questions, socket) = Questions::new(shown.clone()).unwrap();
    socket.set_nonblocking(true).unwrap();
    Device { questions, socket, shown }
}

fn message(number: u32, flags: u32, body: [u64; 5]) -> Vec<u8> {
    let header = [number, flags, BODY as u32].map(u32::to_ne_bytes).concat();
    [header, body.map(u64::to_ne_bytes).concat()].concat()
}

impl Device {
    fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags);
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// The acknowledgement of the last message.
    fn acknowledged(&mut self, number: u32) -> bool {
        assert_eq!(self.questions.answer(), Ok(()));
        let mut bytes = [0; 20];
        self.socket.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..12], [number, 5, 8].map(u32::to_ne_bytes).concat());
        long(&bytes, 12) == 0
    }

    /// Shows a file, to be written: whether that was done.
    fn shows(&mut self, file: &OwnedFd, (at, len): (u64, u64), offset: u64, flags: u64) -> bool {
        let body = [0, offset, at, len, flags];
        self.send(&message(SHMEM_MAP, VERSION | NEED_REPLY, body), &[file.as_fd()]);
        self.acknowledged(SHMEM_MAP)
    }

    fn hides(&mut self, (at, len): (u64, u64)) -> bool {
        self.send(&message(SHMEM_UNMAP, VERSION | NEED_REPLY, [0, 0, at, len, 0]), &[]);
        self.acknowledged(SHMEM_UNMAP)
    }
}

/// Memory of so many bytes, whose length is fixed or not.
fn memory(len: u64, fixed: bool) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    if fixed {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    }
    file
}

fn at(file: &OwnedFd, from: u64, len: usize) -> Vec<u8> {
    let mut found = vec![0; len];
    let read = rustix::io::pread(file, &mut found, from).unwrap();
    found.truncate(read);
    found
}

#[test]
fn what_is_shown_is_copied() {
    for fixed in [true, false] {
        let mut device = device();
        let file = memory(8 * RANGE, fixed);
        assert!(device.shows(&file, (RANGE, RANGE), 4 * RANGE, WRITABLE));
        assert!(device.shows(&file, (2 * RANGE, RANGE), 0, 0));
        let shown = device.shown.clone();
        assert!(shown.copy_in(RANGE + 5, b"stored"));
        assert_eq!(at(&file, 4 * RANGE + 5, 6), b"stored");
        rustix::io::pwrite(&file, b"theirs", 7).unwrap();
        let mut found = [0; 6];
        assert!(shown.copy_out(2 * RANGE + 7, &mut found));
        assert_eq!(&found, b"theirs");
        // Across an end, where nothing is, in what is to be read.
        assert!(!shown.copy_out(2 * RANGE - 3, &mut found));
        assert!(!shown.copy_out(3 * RANGE - 3, &mut found));
        assert!(!shown.copy_out(0, &mut found) && !shown.copy_out(WINDOW, &mut found));
        assert!(!shown.copy_out(u64::MAX, &mut found));
        assert!(!shown.copy_in(2 * RANGE, b"no") && !shown.copy_in(2 * RANGE - 1, b"no"));
        assert_eq!(at(&file, 0, 2), [0; 2]);
        assert!(shown.copy_out(2 * RANGE - 6, &mut found));
        assert!(device.hides((RANGE, RANGE)));
        assert!(!shown.copy_out(RANGE + 5, &mut found) && !shown.copy_in(RANGE, b"no"));
        assert!(device.shows(&file, (RANGE, RANGE), RANGE, WRITABLE));
    }
}

#[test]
fn ranges_that_make_no_sense() {
    let mut device = device();
    let file = memory(1 << 40, true);
    assert!(device.shows(&file, (RANGE, RANGE), 0, WRITABLE));
    for (at, len, offset, flags) in [
        (WINDOW, RANGE, 0, 0),
        (WINDOW - RANGE, 2 * RANGE, 0, 0),
        (u64::MAX - PAGE + 1, PAGE, 0, 0),
        (0, u64::MAX - PAGE + 1, 0, 0),
        (0, 0, 0, 0),
        (5, RANGE, 0, 0),
        (0, RANGE - 5, 0, 0),
        (0, PAGE, 5, 0),
        (0, PAGE, u64::MAX - PAGE + 1, 0),
        (0, PAGE, 1 << 63, 0),
        (0, PAGE, 0, 2),
        // Over what is there.
        (RANGE, RANGE, 0, 0),
        (0, RANGE + PAGE, 0, 0),
        (2 * RANGE - PAGE, PAGE, 0, 0),
        (0, WINDOW, 0, 0),
    ] {
        assert!(!device.shows(&file, (at, len), offset, flags), "{at} {len} {offset} {flags}");
    }
    for span in [(0, RANGE), (RANGE, PAGE), (RANGE + PAGE, PAGE), (RANGE, 0), (WINDOW, RANGE)] {
        assert!(!device.hides(span), "{span:?}");
    }
    // No more than there are places.
    for number in 0..3 {
        assert!(device.shows(&file, (number * PAGE, PAGE), 0, 0));
    }
    assert!(!device.shows(&file, (3 * PAGE, PAGE), 0, 0));
    // Another region, no file, a file where there is none to be.
    device.send(&message(SHMEM_MAP, VERSION | NEED_REPLY, [1, 0, 0, PAGE, 0]), &[file.as_fd()]);
    assert!(!device.acknowledged(SHMEM_MAP));
    device.send(&message(SHMEM_MAP, VERSION | NEED_REPLY, [0, 0, 3 * RANGE, PAGE, 0]), &[]);
    assert!(!device.acknowledged(SHMEM_MAP));
    let hide = message(SHMEM_UNMAP, VERSION | NEED_REPLY, [0, 0, RANGE, RANGE, 0]);
    device.send(&hide, &[file.as_fd()]);
    assert!(!device.acknowledged(SHMEM_UNMAP));
    assert!(device.hides((RANGE, RANGE)));
}

#[test]
fn files_that_are_none() {
    let mut device = device();
    let (pipe, _writer) = io::pipe().unwrap();
    let zero =
        |flags| rustix::fs::open("/dev/zero", flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    std::fs::write(&path, vec![1; RANGE as usize]).unwrap();
    let open = |flags| rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
    for file in [pipe.into(), zero(OFlags::RDWR), open(OFlags::WRONLY), open(OFlags::PATH)] {
        assert!(!device.shows(&file, (0, RANGE), 0, 0));
    }
    assert!(!device.shows(&open(OFlags::RDONLY), (0, RANGE), 0, WRITABLE));
    assert!(!device.shows(&open(OFlags::RDWR | OFlags::APPEND), (0, RANGE), 0, WRITABLE));
    assert!(device.shows(&open(OFlags::RDONLY), (0, RANGE), 0, 0));
}

/// Whoever cuts a file short has nobody killed: a copy fails.
#[test]
fn files_that_are_cut_short() {
    let mut device = device();
    for number in [0, 1] {
        let file = memory(RANGE, false);
        let begin = number * RANGE;
        assert!(device.shows(&file, (begin, RANGE), 0, WRITABLE));
        rustix::fs::ftruncate(&file, 100).unwrap();
        let mut found = [7; 100];
        assert!(device.shown.copy_out(begin, &mut found));
        assert!(!device.shown.copy_out(begin + 1, &mut found));
        assert!(!device.shown.copy_out(begin + PAGE, &mut found));
    }
    // Memory that seems to be fixed, shorter than it is said to be.
    let file = memory(PAGE, true);
    assert!(device.shows(&file, (2 * RANGE, RANGE), 0, WRITABLE));
    let mut found = [7; 100];
    assert!(!device.shown.copy_out(2 * RANGE + PAGE, &mut found));
    assert!(!device.shown.copy_in(2 * RANGE + PAGE, &found));
}

#[test]
fn messages_in_pieces_and_nonsense() {
    let file = memory(RANGE, true);
    let whole = message(SHMEM_MAP, VERSION | NEED_REPLY, [0, 0, 0, RANGE, 0]);
    let mut one = device();
    one.send(&whole[..5], &[file.as_fd()]);
    assert_eq!(one.questions.answer(), Ok(()));
    one.send(&whole[5..50], &[]);
    assert_eq!(one.questions.answer(), Ok(()));
    assert!(!one.shown.copy_out(0, &mut [0]));
    one.send(&whole[50..], &[]);
    assert!(one.acknowledged(SHMEM_MAP) && one.shown.copy_out(0, &mut [0]));
    // Without a wish for an answer there is none; two at once are two.
    let quiet = message(SHMEM_UNMAP, VERSION, [0, 0, 0, RANGE, 0]);
    one.send(&[quiet.clone(), message(SHMEM_UNMAP, VERSION | NEED_REPLY, [0; 5])].concat(), &[]);
    assert!(!one.acknowledged(SHMEM_UNMAP) && !one.shown.copy_out(0, &mut [0]));
    for bytes in [
        message(7, VERSION, [0; 5]),
        message(SHMEM_MAP, VERSION | REPLY, [0; 5]),
        message(SHMEM_MAP, 2, [0; 5]),
        [&whole[..8], &39u32.to_ne_bytes(), &[0; 40]].concat(),
        [&whole[..8], &u32::MAX.to_ne_bytes()].concat(),
    ] {
        let mut device = device();
        device.send(&bytes, &[]);
        assert_eq!(device.questions.answer(), Err(Over), "{bytes:?}");
    }
    let mut two = device();
    two.send(&whole, &[file.as_fd(), file.as_fd()]);
    assert_eq!(two.questions.answer(), Err(Over));
    let Device { mut questions, socket, .. } = device();
    drop(socket);
    assert_eq!(questions.answer(), Err(Over));
    // One that takes no answers.
    let mut full = device();
    let empty = message(SHMEM_UNMAP, VERSION | NEED_REPLY, [0; 5]);
    let ended = (0..100_000).any(|_| {
        let _ = (&full.socket).write(&empty);
        full.questions.answer() == Err(Over)
    });
    assert!(ended);
}
