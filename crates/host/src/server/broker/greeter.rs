//! The broker's children, one for each thing that may block.
//!
//! Each first closes all descriptors but its own, while the broker, which waits for that, still has
//! them all: so this blocks nobody, and no child keeps alive what belongs to others.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, SealFlags};
use rustix::net::RecvFlags;
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::process;
use crate::server::control;
use crate::server::line::{Head, Kind};
use crate::server::mount::is_fuse;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The server has it.
    Handed,
    /// There was none.
    Silence,
    /// It cannot be received, or the client has gone.
    Broken,
}

const READY: u8 = b'r';

/// Has a child run `work` that has open `kept` and the line to the broker that `work` is given, and
/// whose other end is returned. All else is closed in the child when this returns.
fn begin(kept: &[&OwnedFd], work: impl FnOnce(&OwnedFd) -> u8) -> io::Result<(Pid, OwnedFd)> {
    let (ours, theirs) = control::pair()?;
    // The child closes everything by number, and drops nothing.
    let theirs = ManuallyDrop::new(theirs);
    let child = || {
        let all: Vec<_> = kept.iter().map(|fd| fd.as_fd()).chain([theirs.as_fd()]).collect();
        process::close_others(&all);
        match rustix::io::write(&*theirs, &[READY]) {
            Ok(_) => work(&theirs),
            Err(_) => 1,
        }
    };
    // SAFETY: the broker has one thread, and starts none.
    let forked = unsafe { process::split(child) };
    drop(ManuallyDrop::into_inner(theirs));
    let pid = forked?;
    // The child has nothing to wait for before it says so; that it has died is said as well.
    match rustix::io::retry_on_intr(|| rustix::io::read(&ours, &mut [0; 1])) {
        Ok(1) => Ok((pid, ours)),
        _ => {
            // It has received nothing that its end could wait for.
            let _ = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// Has a child receive one message from `socket`, and hand it to the server by `line`: that of a
/// newcomer by a door, or of a session. It may hang.
pub(super) fn start(
    socket: &OwnedFd,
    line: &OwnedFd,
    door: Option<u32>,
    id: u64,
) -> io::Result<(Pid, OwnedFd)> {
    begin(&[socket, line], |sync| {
        let outcome = greet(socket, line, door, id);
        // The broker is there, or nobody cares.
        let _ = rustix::io::write(sync, &[outcome as u8]);
        0
    })
}

/// How the child did that has the other end of `sync`, once it has said so.
pub(super) fn outcome(sync: &OwnedFd) -> Option<Outcome> {
    let mut said = [0; 1];
    match rustix::net::recv(sync, &mut said, RecvFlags::DONTWAIT) {
        Ok((1, _)) if said[0] == Outcome::Handed as u8 => Some(Outcome::Handed),
        Ok((1, _)) if said[0] == Outcome::Silence as u8 => Some(Outcome::Silence),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
        _ => Some(Outcome::Broken),
    }
}

fn greet(socket: &OwnedFd, line: &OwnedFd, door: Option<u32>, id: u64) -> Outcome {
    let (message, descriptors) = match control::receive(socket) {
        // From here on the end of this process may take as long as the client likes.
        Ok((message, descriptors)) => (message, ManuallyDrop::new(descriptors)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Outcome::Silence,
        Err(_) => return Outcome::Broken,
    };
    let (kind, mut handed) = match door {
        Some(_) => (Kind::Newcomer, vec![socket.as_fd()]),
        None => (Kind::Said, Vec::new()),
    };
    if let (Some(_), [one]) = (door, &descriptors[..])
        && may_be_closed(one)
    {
        handed.push(one.as_fd());
    }
    let head = Head { kind, door: door.unwrap_or_default(), id };
    match control::send(line, &head.encode(&message), &handed) {
        Ok(()) => Outcome::Handed,
        Err(_) => Outcome::Broken,
    }
}

/// Whether `fd` is what the server has use for: memory whose length is sealed, or the device of
/// FUSE. To close these never waits for anybody.
fn may_be_closed(fd: &OwnedFd) -> bool {
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    // Not even a look at another file's attributes is safe, but for this process.
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(fixed))
        || rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| !flags.contains(OFlags::PATH))
            && is_fuse(fd)
}

/// Closes `sockets`, of which there may be no other descriptors: a child closes them last, by its
/// end. Gives them back where there is no child.
pub(super) fn close_last(sockets: Vec<OwnedFd>) -> Result<Pid, Vec<OwnedFd>> {
    let kept: Vec<&OwnedFd> = sockets.iter().collect();
    let begun = begin(&kept, |sync| {
        // Until the broker has closed its own.
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(sync, &mut [0; 1]));
        0
    });
    match begun {
        Ok((pid, sync)) => {
            drop(sockets);
            drop(sync);
            Ok(pid)
        }
        Err(_) => Err(sockets),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    #[test]
    fn only_what_the_server_has_use_for() {
        let memory = |seals| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let memory = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::fcntl_add_seals(&memory, seals).map(|()| memory).unwrap()
        };
        assert!(may_be_closed(&memory(SealFlags::SHRINK | SealFlags::GROW)));
        assert!(!may_be_closed(&memory(SealFlags::GROW)));
        for path in ["/dev/null", "/proc/self/stat", "/"] {
            assert!(!may_be_closed(&std::fs::File::open(path).unwrap().into()), "{path}");
        }
        assert!(!may_be_closed(&control::pair().unwrap().0));
        let open = |flags| rustix::fs::open("/dev/fuse", flags, rustix::fs::Mode::empty());
        if let Ok(device) = open(OFlags::RDWR | OFlags::CLOEXEC) {
            assert!(may_be_closed(&device));
            assert!(!may_be_closed(&open(OFlags::PATH | OFlags::CLOEXEC).unwrap()));
        }
    }
}
