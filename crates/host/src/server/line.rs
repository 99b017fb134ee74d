//! The line between a server and its broker: a pair of sockets, and the messages on it.
//!
//! Each message is a packet that begins with a `Head`. A descriptor of a client's socket is
//! always on its way, or with the broker, when the server closes its own: the last one of a socket
//! is never closed by the server (see [`broker`](super::broker)).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;

use super::control;

/// Messages that either end reads before it looks at anything else.
pub(super) const BATCH: usize = 64;

/// How long what cannot be sent is not tried again.
const RETRY: Duration = Duration::from_millis(100);

/// The subject of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// To the broker: a listener, of the door that is named.
    Door = 1,
    /// To the broker: the socket of a session, from which a message is to be received.
    Receive,
    /// To the broker: the socket of a client that has gone, to be closed.
    Bury,
    /// From the broker: it has begun, and knows no door and no client.
    Began,
    /// From the broker: text for the log.
    Note,
    /// From a greeter: what a newcomer has said, with its socket and what else it has handed over.
    Newcomer,
    /// From a greeter: what was said in a session.
    Said,
    /// From a greeter: nothing was said in the session after all.
    Silence,
    /// From a greeter: what was said cannot be received, or that the client has gone.
    Broken,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::Door,
        Kind::Receive,
        Kind::Bury,
        Kind::Began,
        Kind::Note,
        Kind::Newcomer,
        Kind::Said,
        Kind::Silence,
        Kind::Broken,
    ];
}

/// The beginning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub kind: Kind,
    /// Which door.
    pub door: u32,
    /// Which client, by a number that is never used twice.
    pub id: u64,
}

impl Head {
    const LEN: usize = 16;

    /// The message that begins with it.
    pub(super) fn encode(self, rest: &[u8]) -> Vec<u8> {
        let mut out = (self.kind as u32).to_le_bytes().to_vec();
        out.extend_from_slice(&self.door.to_le_bytes());
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(rest);
        out
    }

    /// Reads a message.
    pub(super) fn decode(message: &[u8]) -> Option<(Head, &[u8])> {
        let (kind, rest) = message.split_first_chunk()?;
        let (door, rest) = rest.split_first_chunk()?;
        let (id, rest) = rest.split_first_chunk()?;
        let kind = u32::from_le_bytes(*kind);
        let kind = Kind::ALL.into_iter().find(|&known| known as u32 == kind)?;
        Some((Head { kind, door: u32::from_le_bytes(*door), id: u64::from_le_bytes(*id) }, rest))
    }
}

/// One message, and its descriptors.
pub(super) struct Mail {
    pub head: Head,
    pub message: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Receives one from either end; `None` for what is not one.
///
/// # Errors
/// `UnexpectedEof` when the other end has gone; `WouldBlock`; what recvmsg(2) says.
pub(super) fn receive(line: &OwnedFd) -> io::Result<Option<Mail>> {
    let (message, descriptors) =
        control::receive_most(line, Head::LEN + control::MESSAGE_MAX, false)?;
    let read = Head::decode(&message);
    Ok(read.map(|(head, rest)| Mail { head, message: rest.to_vec(), descriptors }))
}

/// The server's end, and the way to know that nobody is at the other.
pub struct Line {
    end: OwnedFd,
    /// The process that keeps a broker there.
    cradle: OwnedFd,
    /// Messages that the broker has not taken yet.
    out: VecDeque<(Head, Option<Arc<OwnedFd>>)>,
    /// The system cannot send it, though there is room on the line.
    stuck: bool,
    /// As [`descriptors`] said before the server was confined.
    pub(super) limit: u64,
}

/// The most descriptors that this process may have.
pub(super) fn descriptors() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

impl Line {
    pub(super) fn new(end: OwnedFd, cradle: OwnedFd) -> io::Result<Line> {
        let flags = rustix::fs::fcntl_getfl(&end)?;
        rustix::fs::fcntl_setfl(&end, flags | OFlags::NONBLOCK)?;
        Ok(Line { end, cradle, out: VecDeque::new(), stuck: false, limit: descriptors() })
    }

    /// The descriptors to be watched: the line, and the cradle, by which to see whether anybody
    /// keeps it.
    pub(super) fn watched(&self) -> [PollFd<'_>; 2] {
        let waits = self.out.is_empty() || self.stuck;
        let out = if waits { PollFlags::empty() } else { PollFlags::OUT };
        let line = PollFd::new(&self.end, PollFlags::IN | out);
        [line, PollFd::new(&self.cradle, PollFlags::IN)]
    }

    /// Says `head`, with a descriptor. Where the broker does not listen just now it is said later.
    pub(super) fn say(&mut self, head: Head, descriptor: Option<Arc<OwnedFd>>) {
        self.out.push_back((head, descriptor));
        self.flush();
    }

    /// When to try again what the system cannot send for want of memory, or of descriptors that may
    /// be on their way.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.stuck.then_some(RETRY)
    }

    /// Says what has not been said.
    pub(super) fn flush(&mut self) {
        self.stuck = false;
        while let Some((head, descriptor)) = self.out.front() {
            let handed: Option<BorrowedFd<'_>> = descriptor.as_ref().map(|fd| fd.as_fd());
            if let Err(error) = control::send(&self.end, &head.encode(&[]), handed.as_slice()) {
                self.stuck = error.kind() != io::ErrorKind::WouldBlock;
                return;
            }
            // A descriptor on its way is open there.
            self.out.pop_front();
        }
    }

    /// The next message, if there is one.
    pub(super) fn next(&self) -> Option<Mail> {
        loop {
            match receive(&self.end) {
                Ok(Some(mail)) => return Some(mail),
                // It is none that this server knows.
                Ok(None) => {}
                Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back() {
        for kind in Kind::ALL {
            let head = Head { kind, door: 3, id: 1 << 40 | 5 };
            assert_eq!(Head::decode(&head.encode(b"rest")), Some((head, &b"rest"[..])));
            assert_eq!(Head::decode(&head.encode(&[])[..Head::LEN - 1]), None);
        }
        let mut unknown = Head { kind: Kind::Broken, door: 0, id: 0 }.encode(&[]);
        unknown[0] += 1;
        assert_eq!(Head::decode(&unknown), None);
        assert_eq!(Head::decode(&[0; Head::LEN]), None);
    }

    #[test]
    fn what_cannot_be_said_yet_is_said_later() {
        let (ours, theirs) = control::pair().unwrap();
        let (cradle, _kept) = control::pair().unwrap();
        let mut line = Line::new(ours, cradle).unwrap();
        let (client, other) = control::pair().unwrap();
        let client = Arc::new(client);
        let count = 3000;
        for id in 0..count {
            let head = Head { kind: Kind::Receive, door: 0, id };
            line.say(head, (id % 2 == 0).then(|| Arc::clone(&client)));
        }
        assert!(!line.out.is_empty());
        drop(client);
        for id in 0..count {
            let mail = receive(&theirs).unwrap().unwrap();
            assert_eq!((mail.head.id, mail.descriptors.len() as u64), (id, 1 - id % 2));
            line.flush();
        }
        assert!(line.out.is_empty());
        // Nobody is at the other end, and room for more does not change that.
        assert!(line.retry().is_none());
        drop(theirs);
        line.say(Head { kind: Kind::Bury, door: 0, id: 0 }, None);
        assert!(line.retry().is_some());
        // All descriptors of the client's have gone by now.
        assert_eq!(control::receive(&other).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
