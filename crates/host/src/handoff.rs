//! A line between two processes of one program, which carries short messages and descriptors.

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// The longest message, in bytes.
pub const MESSAGE_MAX: usize = 128;

/// One end of the line. Closing it, or the end of its process, ends what the other can receive.
#[derive(Debug)]
pub struct Handoff {
    socket: OwnedFd,
}

impl Handoff {
    /// Both ends of a new line. Programs that are executed do not inherit them.
    ///
    /// # Errors
    /// What socketpair(2) says.
    pub fn pair() -> io::Result<(Handoff, Handoff)> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Handoff { socket: a }, Handoff { socket: b }))
    }

    /// A line whose other end another program speaks into, as a stream.
    ///
    /// # Errors
    /// What socketpair(2) says.
    pub(crate) fn stream() -> io::Result<(Handoff, OwnedFd)> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Handoff { socket: a }, b))
    }

    /// Sends `message`, of at least one and at most [`MESSAGE_MAX`] bytes, and a duplicate of
    /// `descriptor`.
    ///
    /// # Errors
    /// `EPIPE` when the other end is gone.
    pub fn send(&self, message: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors;
        if let Some(descriptor) = descriptor {
            descriptors = [descriptor];
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let message = [IoSlice::new(message)];
        rustix::net::sendmsg(&self.socket, &message, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for a message and the descriptor that came with it.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other end is gone.
    pub fn receive(&self) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut message = vec![0; MESSAGE_MAX];
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut message)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )
        })?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        message.truncate(received.bytes);
        let mut descriptor = None;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = part {
                descriptor = descriptors.next();
            }
        }
        Ok((message, descriptor))
    }
}

impl AsFd for Handoff {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_descriptors() {
        let (a, b) = Handoff::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        a.send(b"x", None).unwrap();
        a.send(b"with", Some(file.as_fd())).unwrap();
        assert_eq!(b.receive().unwrap().0, b"x");
        let (message, descriptor) = b.receive().unwrap();
        assert_eq!(message, b"with");
        let there = rustix::fs::fstat(descriptor.unwrap()).unwrap();
        assert_eq!(there.st_rdev, rustix::fs::fstat(&file).unwrap().st_rdev);
        drop(a);
        assert_eq!(b.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(b.send(b"x", None).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
