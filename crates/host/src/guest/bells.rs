//! The bells between a process that is a guest and its device.
//!
//! What both sides have of an eventfd is one open file description: the device can have the
//! driver's own calls block, by its flags, and fill or empty the counter. So the driver makes no
//! call on such a one that could block: it hears its own bell without reading it, and rings the
//! device's by its own end of a pipe, which reads like an eventfd.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// The device's bell.
#[derive(Debug)]
pub(super) struct Kick {
    ours: OwnedFd,
    /// The end that the device gets.
    pub theirs: EventFd,
}

impl Kick {
    /// A new one.
    ///
    /// # Errors
    /// Those of pipe(2).
    pub fn new() -> io::Result<Kick> {
        let (theirs, ours) = io::pipe()?;
        let (theirs, ours) = (OwnedFd::from(theirs), OwnedFd::from(ours));
        for end in [&theirs, &ours] {
            fcntl_setfl(end, OFlags::NONBLOCK)?;
        }
        // SAFETY: the descriptor is nobody else's. It is named here and never used.
        let theirs = unsafe { EventFd::from_raw_fd(theirs.into_raw_fd()) };
        Ok(Kick { ours, theirs })
    }

    /// The same, for another thread.
    ///
    /// # Errors
    /// Those of fcntl(2).
    pub fn try_clone(&self) -> io::Result<Kick> {
        Ok(Kick { ours: self.ours.try_clone()?, theirs: self.theirs.try_clone()? })
    }

    /// Wakes the device. Never blocks.
    pub fn ring(&self) {
        // Full means that it has been rung often enough.
        let _ = rustix::io::write(&self.ours, &1u64.to_ne_bytes());
    }
}

/// The driver's bell, which `sleep` hears.
///
/// # Errors
/// Those of eventfd(2) and epoll_ctl(2).
pub(super) fn heard_by(sleep: &Epoll) -> io::Result<EventFd> {
    let bell = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?;
    hear(sleep, &bell)?;
    Ok(bell)
}

/// Has `sleep` hear the driver's bell: once for each time that the device rings, so that it never
/// has to be read.
///
/// # Errors
/// Those of epoll_ctl(2).
pub(super) fn hear(sleep: &Epoll, bell: &EventFd) -> io::Result<()> {
    let file = bell.as_raw_fd();
    let event = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, file as u64);
    sleep.ctl(ControlOperation::Add, file, event)
}
