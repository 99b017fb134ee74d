//! The connection by which a device asks its front end, one thing at a time: to map a file into the
//! window, and to take it out. The front end hands it over by a message of its own.
//!
//! Nothing here waits: what a front end leaves unanswered is left.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, send, sendmsg,
};

use super::Broken;

// Numbers of messages: of the front end's, and of the device's.
const SET_BACKEND_REQ_FD: u32 = 21;
const SHMEM_MAP: u32 = 9;
const SHMEM_UNMAP: u32 = 10;
// Bits of a message's flags.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// Number, flags and the length of what follows, each of 4 bytes.
const HEADER: usize = 12;
/// A header and an acknowledgement, which is 0 for success.
const ACKNOWLEDGED: usize = HEADER + 8;
/// The flag of a mapping that is to be written.
const WRITABLE: u64 = 1;

fn header(number: u32, flags: u32, len: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    for (place, word) in bytes.chunks_exact_mut(4).zip([number, flags | VERSION, len as u32]) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

fn words(bytes: &[u8; HEADER]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_ne_bytes)
}

/// A range of the window, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub at: u64,
    pub len: u64,
}

/// A file that is to be mapped.
#[derive(Debug)]
pub(super) struct Source {
    pub file: OwnedFd,
    /// Where the range begins in it.
    pub offset: u64,
    pub writable: bool,
}

/// The connection.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    /// The number of what has been asked and has no answer yet.
    asked: Option<u32>,
    /// The part of the answer that has come.
    came: Vec<u8>,
}

/// What became of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

impl Channel {
    /// Takes the next message of the front end at `socket`, if that is the one that hands over the
    /// connection; acknowledges it if `acknowledges`.
    ///
    /// # Errors
    /// When it hands over no descriptor, or goes away.
    pub fn take(socket: &UnixStream, acknowledges: bool) -> Result<Option<Channel>, Broken> {
        let mut bytes = [0; HEADER];
        match recv(socket, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, HEADER)) => {}
            // Whoever receives the whole of it sees to the rest.
            _ => return Ok(None),
        }
        let [number, flags, len] = words(&bytes);
        if number != SET_BACKEND_REQ_FD || len != 0 {
            return Ok(None);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        let mut files = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = part {
                files.extend(more);
            }
        }
        let whole = received.is_ok_and(|received| received.bytes == HEADER);
        let (Some(file), true, true) = (files.pop(), files.is_empty(), whole) else {
            return Err(Broken("handed over no connection"));
        };
        if acknowledges && flags & NEED_REPLY != 0 {
            let answer = header(SET_BACKEND_REQ_FD, REPLY, 8);
            let answer: [u8; ACKNOWLEDGED] =
                std::array::from_fn(|at| answer.get(at).copied().unwrap_or(0));
            let sent = send(socket, &answer, SendFlags::NOSIGNAL);
            if sent != Ok(answer.len()) {
                return Err(Broken("takes no answer"));
            }
        }
        Ok(Some(Channel { socket: file, asked: None, came: Vec::new() }))
    }

    /// Asks for `range` to show `source`; without one, to show nothing. The answer to what was
    /// asked before has come.
    pub fn ask(&mut self, range: Range, source: Option<&Source>) -> Result<(), Lost> {
        let number = if source.is_some() { SHMEM_MAP } else { SHMEM_UNMAP };
        let offset = source.map_or(0, |source| source.offset);
        let flags = if source.is_some_and(|source| source.writable) { WRITABLE } else { 0 };
        // The region's number, which is 0, with its padding.
        let body = [0, offset, range.at, range.len, flags].map(u64::to_ne_bytes).concat();
        let message = [&header(number, NEED_REPLY, body.len())[..], &body].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let file = source.map(|source| [source.file.as_fd()]);
        if let Some(file) = &file {
            control.push(SendAncillaryMessage::ScmRights(file));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = sendmsg(&self.socket, &[IoSlice::new(&message)], &mut control, flags);
        if sent != Ok(message.len()) {
            return Err(Lost);
        }
        self.asked = Some(number);
        Ok(())
    }

    /// Whether what was asked has been done, once the answer has come.
    pub fn answer(&mut self) -> Result<Option<bool>, Lost> {
        let Some(asked) = self.asked else { return Ok(None) };
        let mut bytes = [0; ACKNOWLEDGED];
        let room = &mut bytes[self.came.len()..];
        match recv(&self.socket, &mut *room, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(Lost),
            Ok((_, read)) => self.came.extend_from_slice(&room[..read]),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(_) => return Err(Lost),
        }
        let Some((first, value)) = self.came.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [number, flags, len] = words(first);
        if number != asked || flags & REPLY == 0 || len as usize != ACKNOWLEDGED - HEADER {
            return Err(Lost);
        }
        if value.len() < len as usize {
            return Ok(None);
        }
        let done = value.iter().all(|byte| *byte == 0);
        self.came.clear();
        self.asked = None;
        Ok(Some(done))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
