//! The doorbells of clients, which the server hears without having them.
//!
//! An eventfd is dear to touch for whoever has it once somebody has it watched a million times, by
//! epoll: each read of it, as each write, goes over all who watch it, poll(2) waits for those who
//! do, and the last close(2) takes the watches away one by one, each under a lock of whoever has
//! made it. So the worker does none of that: it watches a client's bell by an epoll instance that
//! no client has, and keeps no descriptor of the bell itself. The client's write(2) does all the
//! work.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};

use crate::shm::Doorbell;

/// The server's side of a doorbell.
#[derive(Debug)]
pub(super) struct ClientBell {
    watch: OwnedFd,
}

impl ClientBell {
    /// A new one, with the bell to be handed to the client, of which nobody else is to have one.
    ///
    /// # Errors
    /// The errors of eventfd(2), epoll_create(2) and epoll_ctl(2).
    pub fn new() -> io::Result<(ClientBell, Doorbell)> {
        let bell = Doorbell::new()?;
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Once for each ring, so that the bell never has to be silenced.
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&watch, &bell, epoll::EventData::new_u64(0), events)?;
        Ok((ClientBell { watch }, bell))
    }

    /// Makes the descriptor unreadable until the client rings again; returns whether it had rung.
    pub fn silence(&self) -> bool {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        epoll::wait(&self.watch, &mut events, Some(&Timespec::default())) == Ok(1)
    }
}

impl AsFd for ClientBell {
    /// To be polled for input.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::OFlags;

    fn is_ready(bell: &ClientBell) -> bool {
        let mut watched = [PollFd::new(bell, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn each_ring_is_heard_once() {
        let (bell, theirs) = ClientBell::new().unwrap();
        assert!(!is_ready(&bell) && !bell.silence());
        for rings in [1, 2] {
            (0..rings).for_each(|_| theirs.ring());
            assert!(is_ready(&bell) && bell.silence());
            assert!(!is_ready(&bell) && !bell.silence());
        }
        // The client has nobody wait, whatever it does with its bell.
        rustix::fs::fcntl_setfl(&theirs, OFlags::empty()).unwrap();
        assert!(!bell.silence());
        theirs.ring();
        assert!(theirs.silence());
        assert!(!bell.silence());
        theirs.ring();
        drop(theirs);
        assert!(!is_ready(&bell) && !bell.silence());
    }
}
