//! The broker's children, one for each thing that may block.
//!
//! Each first closes all descriptors but its own, while the broker, which waits for that, still has
//! them all: so this blocks nobody, and no child keeps alive what belongs to others.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, SealFlags};
use rustix::net::RecvFlags;
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};

use atoll_transport::channel::Limits;

use crate::process;
use crate::server::control;
use crate::server::line::{Head, Kind};
use crate::server::mount::is_fuse;
use crate::server::porch::tell;

use super::Grave;

/// The outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The server has it.
    Handed,
    /// There was none.
    Silence,
    /// It cannot be received, or the client has gone.
    Broken,
    /// The server could not be told.
    Unheard,
}

const READY: u8 = b'r';

const GO: u8 = b'g';

/// A child, and the way to learn of its end.
pub(super) struct Child {
    pid: Pid,
    pub(super) pidfd: OwnedFd,
}

impl Child {
    pub(super) fn is_over(&self) -> bool {
        matches!(waitpid(Some(self.pid), WaitOptions::NOHANG), Ok(Some(_)) | Err(_))
    }
}

/// Has a child run `work` that has open `kept` and the line to the broker that `work` is given, and
/// whose other end is returned. All else is closed in the child when this returns. It does not
/// begin before the broker can learn of its end.
fn begin(kept: &[&OwnedFd], work: impl FnOnce(&OwnedFd) -> u8) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = control::pair()?;
    // The child closes everything by number, and drops nothing.
    let theirs = ManuallyDrop::new(theirs);
    let child = || {
        let all: Vec<_> = kept.iter().map(|fd| fd.as_fd()).chain([theirs.as_fd()]).collect();
        process::close_others(&all);
        let told = rustix::io::write(&*theirs, &[READY]);
        let mut said = [0; 1];
        match told.and_then(|_| rustix::io::retry_on_intr(|| rustix::io::read(&*theirs, &mut said)))
        {
            Ok(1) => work(&theirs),
            // The broker has no use for it.
            _ => 1,
        }
    };
    // SAFETY: the broker has one thread, and starts none.
    let forked = unsafe { process::split(child) };
    drop(ManuallyDrop::into_inner(theirs));
    let pid = forked?;
    // The child has nothing to wait for before it says so; that it has died is said as well.
    let ready = match rustix::io::retry_on_intr(|| rustix::io::read(&ours, &mut [0; 1])) {
        Ok(1) => pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    };
    let begun = ready.and_then(|pidfd| {
        rustix::io::write(&ours, &[GO])?;
        Ok(pidfd)
    });
    match begun {
        Ok(pidfd) => Ok((Child { pid, pidfd }, ours)),
        Err(error) => {
            // It has received nothing that its end could wait for, and ends when it hears nothing.
            drop(ours);
            let _ = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
            Err(error)
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
) -> io::Result<(Child, OwnedFd)> {
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
        Ok((1, _)) if said[0] == Outcome::Unheard as u8 => Some(Outcome::Unheard),
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
        && is_fit(one)
    {
        handed.push(one.as_fd());
    }
    let head = Head { kind, door: door.unwrap_or_default(), id };
    match control::send(line, &head.encode(&message), &handed) {
        Ok(()) => Outcome::Handed,
        Err(_) => Outcome::Unheard,
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

/// Whether `fd`, if it is memory, is as long as a ring may be: to free more takes the server long.
/// Pages beyond its end are taken away, of which none can come back: by what remains the server
/// sees whether all within are there. May wait for the client, which has the same memory.
fn is_fit(fd: &OwnedFd) -> bool {
    let Ok(seals) = rustix::fs::fcntl_get_seals(fd) else { return true };
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return true;
    }
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        let length = stat.st_size as u64;
        length <= Limits::default().total as u64 && rustix::fs::ftruncate(fd, length).is_ok()
    })
}

/// Says in the sockets of `graves` what there is to say, hangs up and closes them, of which there
/// may be no other descriptors: a child does, which closes them last, by its end. Gives them back
/// where there is no child.
pub(super) fn close_last(graves: Vec<Grave>) -> Result<Child, Vec<Grave>> {
    let kept: Vec<&OwnedFd> = graves.iter().map(|grave| &grave.socket).collect();
    let begun = begin(&kept, |sync| {
        for Grave { socket, why } in &graves {
            tell(socket, why.clone());
        }
        // Until the broker has closed its own.
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(sync, &mut [0; 1]));
        0
    });
    match begun {
        Ok((child, sync)) => {
            drop(graves);
            drop(sync);
            Ok(child)
        }
        Err(_) => Err(graves),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    /// Pages beyond the end made memory with holes look whole.
    #[test]
    fn memory_is_handed_on_without_pages_beyond_its_end() {
        use rustix::fs::{FallocateFlags, fallocate};
        let fixed = SealFlags::SHRINK | SealFlags::GROW;
        let memory = |length| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let memory = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::ftruncate(&memory, length).unwrap();
            memory
        };
        let stored = |memory: &OwnedFd| rustix::fs::fstat(memory).unwrap().st_blocks as u64 * 512;
        let hollow = memory(1 << 20);
        fallocate(&hollow, FallocateFlags::KEEP_SIZE, 1 << 20, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&hollow, fixed).unwrap();
        assert_eq!(stored(&hollow), 2 << 20);
        assert!(is_fit(&hollow));
        assert_eq!(stored(&hollow), 0);
        // They stay away.
        assert!(fallocate(&hollow, FallocateFlags::KEEP_SIZE, 1 << 20, 4096).is_err());
        let whole = memory(1 << 20);
        fallocate(&whole, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&whole, fixed).unwrap();
        assert!(is_fit(&whole));
        assert_eq!(stored(&whole), 1 << 20);
        let long = memory(Limits::default().total as u64 + 4096);
        rustix::fs::fcntl_add_seals(&long, fixed).unwrap();
        assert!(!is_fit(&long));
    }

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
