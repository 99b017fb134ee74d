//! The other half of a device's window: a front end that is asked to show files to its guest.

use std::fs::File;
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Shows a range.
pub const SHMEM_MAP: u32 = 9;
/// Shows it no more.
pub const SHMEM_UNMAP: u32 = 10;

/// How long a question may take to come.
const PATIENCE: Duration = Duration::from_secs(30);
/// A header, and what the device asks.
const ASKED: usize = 12 + 40;

/// What the device has asked.
#[derive(Debug)]
pub struct Asked {
    /// [`SHMEM_MAP`] or [`SHMEM_UNMAP`].
    pub number: u32,
    /// Where the range begins in the file.
    pub offset: u64,
    /// Where it begins in the window.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// Whether it is to be written.
    pub writable: bool,
    /// The file.
    pub file: Option<File>,
}

/// The connection by which the device asks.
pub struct Window(UnixStream);

impl Window {
    /// A connection; its other end is for the device.
    ///
    /// # Panics
    /// When there are no descriptors left.
    pub fn new() -> (Window, UnixStream) {
        let (own, other) = UnixStream::pair().expect("two sockets");
        (Window(own), other)
    }

    /// Waits for the next question.
    ///
    /// # Panics
    /// When it takes too long, or is none.
    pub fn asked(&self) -> Asked {
        self.asked_within(PATIENCE).expect("nothing is asked")
    }

    /// The same; `None` when none comes in time.
    ///
    /// # Panics
    /// When it is none.
    pub fn asked_within(&self, patience: Duration) -> Option<Asked> {
        self.0.set_read_timeout(Some(patience)).expect("a socket");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; ASKED];
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(&self.0, parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
        assert_eq!(received.bytes, ASKED);
        let mut files = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = part {
                files.extend(more.map(File::from));
            }
        }
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        // Version 1, and an answer is wanted.
        assert_eq!((word(4), word(8), long(12)), (1 | 8, 40, 0));
        assert!(long(44) <= 1 && files.len() <= 1);
        Some(Asked {
            number: word(0),
            offset: long(20),
            at: long(28),
            len: long(36),
            writable: long(44) == 1,
            file: files.pop(),
        })
    }

    /// Acknowledges what was asked; 0 says that it was done.
    ///
    /// # Panics
    /// When the device has gone.
    pub fn acknowledge(&self, asked: &Asked, value: u64) {
        let words = [asked.number, 1 | 4, 8].map(u32::to_ne_bytes).concat();
        self.say(&[&words[..], &value.to_ne_bytes()].concat());
    }

    /// Says anything.
    ///
    /// # Panics
    /// When the device has gone.
    pub fn say(&self, bytes: &[u8]) {
        (&self.0).write_all(bytes).expect("the device is there");
    }
}
