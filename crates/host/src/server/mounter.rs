//! The mounter: a process that keeps the right to mount, for a server that gives it up.
//!
//! It makes FUSE superblocks, whose device the server gets, and hands out mounts of them that are
//! attached nowhere yet. It is started before the server has anything, reads nothing but what the
//! server says, has an empty root directory, no network and `CAP_SYS_ADMIN` alone, and ends with
//! the server. Each request is done by a child, since a directory is found, and a superblock let go
//! of, by asking the server; the answer goes to a socket that came with the request.
//!
//! Who attaches a mount in a user namespace of his own is its master there: he could make it
//! writable, and have set-user-ID bits and device files count, by mounting it anew. The kernel
//! locks these flags of mounts that it copies with a mount namespace into a user namespace. So each
//! mount is copied out of such a namespace, of a user namespace in which all users have their
//! numbers.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use atoll_vfs::AccessTimes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, OpenTreeFlags, UnmountFlags};
use rustix::process::{Pid, WaitOptions, getpid, waitpid};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::broker::block_signals;
use super::control;
use super::{confine, jail};
use crate::fuse::mount::{self, MountOptions};
use crate::process;

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most requests of a user that are done at a time. One that is not the superuser's can have a
/// directory found late, for as long as he likes: by listing the one above it into slow memory.
const OF_USER: usize = 8;
/// The user namespace in which all users have their numbers, as /proc/self/uid_map shows it.
const ALL: [&str; 3] = ["0", "0", "4294967295"];

/// A mounter, which ends with this value.
#[derive(Debug)]
pub struct Mounter {
    line: OwnedFd,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Make the superblock of that number; the text is the source that tables of mounts show.
    Make = 1,
    /// Hand out a mount of the directory that the text says.
    HandOut,
    /// Let go of the superblock: it goes with the last mount and open file.
    LetGo,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    kind: Kind,
    /// The user for whom it is.
    uid: u32,
    number: u32,
    read_only: bool,
    access_times: AccessTimes,
    text: String,
}

impl Request {
    fn encode(&self) -> Vec<u8> {
        let relatime = self.access_times == AccessTimes::Relatime;
        let mut out = vec![self.kind as u8, u8::from(self.read_only), u8::from(relatime)];
        out.extend_from_slice(&self.uid.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(self.text.as_bytes());
        out
    }

    fn decode(message: &[u8]) -> Option<Request> {
        let (&[kind, read_only, relatime], rest) = message.split_first_chunk()?;
        let (uid, rest) = rest.split_first_chunk()?;
        let (number, text) = rest.split_first_chunk()?;
        let kinds = [Kind::Make, Kind::HandOut, Kind::LetGo];
        Some(Request {
            kind: kinds.into_iter().find(|&known| known as u8 == kind)?,
            uid: u32::from_le_bytes(*uid),
            number: u32::from_le_bytes(*number),
            read_only: read_only != 0,
            access_times: match relatime {
                0 => AccessTimes::Noatime,
                _ => AccessTimes::Relatime,
            },
            text: String::from_utf8(text.to_vec()).ok()?,
        })
    }

    fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
        flags.set(MountFlags::RDONLY, self.read_only);
        flags
            | match self.access_times {
                AccessTimes::Noatime => MountFlags::NOATIME,
                AccessTimes::Relatime => MountFlags::RELATIME,
            }
    }
}

/// Starts one, if this process may mount for all users: it is the superuser's of the first user
/// namespace, and has one thread.
///
/// # Errors
/// `PermissionDenied` if it may not; that a step was refused, user namespaces among them.
pub fn start() -> io::Result<Mounter> {
    let had = rustix::thread::capabilities(None)?;
    let numbers = std::fs::read_to_string("/proc/self/uid_map")?;
    if !had.effective.contains(CapabilitySet::SYS_ADMIN)
        || !rustix::process::geteuid().is_root()
        || !numbers.split_whitespace().eq(ALL)
    {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (ours, theirs) = control::pair()?;
    let server = getpid();
    let child = process::fork(move || match keep(&theirs, server) {
        Ok(()) => 0,
        Err(error) => {
            let _ = control::send(&theirs, error.to_string().as_bytes(), &[]);
            1
        }
    })?;
    let (said, _) = control::receive(&ours)?;
    if said != [READY] {
        let _ = waitpid(Some(child), WaitOptions::empty());
        return Err(io::Error::other(String::from_utf8_lossy(&said).into_owned()));
    }
    Ok(Mounter { line: ours })
}

impl Mounter {
    /// Makes the superblock `number`, which no other has, and returns its device. Tables of mounts
    /// show `source`.
    ///
    /// # Errors
    /// Those of mounting; `TimedOut`; `BrokenPipe` when there is no mounter any more.
    pub(super) fn make(
        &self,
        number: u32,
        source: &str,
        access_times: AccessTimes,
    ) -> io::Result<OwnedFd> {
        let (kind, uid, read_only, text) = (Kind::Make, 0, false, source.to_owned());
        self.ask(&Request { kind, uid, number, read_only, access_times, text })
    }

    /// A mount for the user `uid` of the directory `path` of the superblock `number`, attached
    /// nowhere.
    ///
    /// # Errors
    /// As [`make`](Self::make); those of finding `path`, in which nothing is a symbolic link;
    /// `WouldBlock` where too many of the user's are waited for.
    pub(super) fn hand_out(
        &self,
        (uid, number): (u32, u32),
        path: &str,
        read_only: bool,
        access_times: AccessTimes,
    ) -> io::Result<OwnedFd> {
        let (kind, text) = (Kind::HandOut, path.to_owned());
        self.ask(&Request { kind, uid, number, read_only, access_times, text })
    }

    /// Lets go of the superblock `number`: it ends when nobody uses it.
    pub(super) fn let_go(&self, number: u32) {
        let (kind, uid, read_only, text) = (Kind::LetGo, 0, false, String::new());
        let access_times = AccessTimes::default();
        let request = Request { kind, uid, number, read_only, access_times, text };
        // With the mounter its mounts have gone.
        let _ = control::send(&self.line, &request.encode(), &[]);
    }

    fn ask(&self, request: &Request) -> io::Result<OwnedFd> {
        let (ours, theirs) = control::pair()?;
        control::send(&self.line, &request.encode(), &[theirs.as_fd()])?;
        drop(theirs);
        let wait = Timespec::try_from(PATIENCE).ok();
        let mut answer = [PollFd::new(&ours, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut answer, wait.as_ref()))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (said, handed) = control::receive(&ours)?;
        let error = said.first_chunk().map_or(0, |code| i32::from_le_bytes(*code));
        handed.into_iter().next().ok_or_else(|| io::Error::from_raw_os_error(error))
    }
}

const READY: u8 = b'r';

/// The mounter's life.
fn keep(line: &OwnedFd, server: Pid) -> io::Result<()> {
    process::die_with(server)?;
    process::close_others(&[line.as_fd(), rustix::stdio::stderr()]);
    // Only for who looks.
    let _ = rustix::thread::set_name(c"atoll-mounter");
    // Signals of a terminal and of a service manager are for the server, whose end is this one's.
    block_signals()?;
    let numbers = all_numbers()?;
    let look = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let devices = rustix::fs::open("/dev", look, Mode::empty())?;
    jail::empty(MountFlags::NOSUID | MountFlags::NOEXEC, c"size=64k,mode=700")?;
    confine::drop_privileges_but(CapabilitySet::SYS_ADMIN)
        .map_err(|error| io::Error::other(error.to_string()))?;
    let keeper = Keeper { mounter: getpid(), numbers, devices };
    // The children, and the user for whom each works.
    let mut children = HashMap::<Pid, u32>::new();
    control::send(line, &[READY], &[])?;
    loop {
        let (message, handed) = match control::receive(line) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(request) = Request::decode(&message) else { continue };
        let answer = handed.into_iter().next();
        while let Ok(Some((child, _))) = waitpid(None, WaitOptions::NOHANG) {
            children.remove(&child);
        }
        let of_user = children.values().filter(|&&uid| uid == request.uid).count();
        if request.uid != 0 && of_user >= OF_USER {
            tell(answer.as_ref(), Err(Errno::AGAIN.into()));
            continue;
        }
        // SAFETY: this process has one thread, and starts none.
        match unsafe { process::split(|| keeper.answer(&request, answer.as_ref())) } {
            Ok(child) => drop(children.insert(child, request.uid)),
            Err(error) => tell(answer.as_ref(), Err(error)),
        }
    }
}

/// A user namespace in which each user and group has its own number.
fn all_numbers() -> io::Result<OwnedFd> {
    let (mut ours, theirs) = io::pipe().map(|(ours, theirs)| (ours, Some(theirs)))?;
    let (theirs_end, ours_end) = io::pipe()?;
    let parent = getpid();
    let enter = || {
        process::die_with(parent)?;
        process::unshare(UnshareFlags::NEWUSER)?;
        theirs.as_ref().map_or(Ok(()), |mut end| end.write_all(b"+"))?;
        // Until the namespace is held by another.
        (&theirs_end).read_exact(&mut [0])
    };
    // SAFETY: this process has one thread.
    let child = unsafe { process::split(|| u8::from(enter().is_err())) }?;
    drop(theirs);
    let held = (|| {
        ours.read_exact(&mut [0])?;
        let of = format!("/proc/{}", child.as_raw_pid());
        for map in ["uid_map", "gid_map"] {
            std::fs::write(format!("{of}/{map}"), ALL.join(" "))?;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(format!("{of}/ns/user"), flags, Mode::empty())?)
    })();
    let _ = (&ours_end).write_all(b"+");
    let _ = waitpid(Some(child), WaitOptions::empty());
    held
}

/// What is left of the system to the mounter.
struct Keeper {
    mounter: Pid,
    numbers: OwnedFd,
    /// The directory /dev.
    devices: OwnedFd,
}

impl Keeper {
    /// In a child: does what is asked, and says how it went.
    fn answer(&self, request: &Request, answer: Option<&OwnedFd>) -> u8 {
        let done = process::die_with(self.mounter).and_then(|()| self.obey(request));
        let failed = done.is_err();
        tell(answer, done);
        u8::from(failed)
    }

    fn obey(&self, request: &Request) -> io::Result<Option<OwnedFd>> {
        let place = format!("/{}", request.number);
        match request.kind {
            Kind::Make => {
                std::fs::create_dir(&place)?;
                let flags = OFlags::RDWR | OFlags::CLOEXEC;
                let device = rustix::fs::openat(&self.devices, "fuse", flags, Mode::empty())?;
                let options = MountOptions {
                    source: request.text.as_ref(),
                    read_only: false,
                    owner: (0, 0),
                    checked: true,
                    access_times: request.access_times,
                };
                mount::mount(&device, place.as_ref(), &options).map_err(|error| {
                    let _ = std::fs::remove_dir(&place);
                    io::Error::other(error.to_string())
                })?;
                Ok(Some(device))
            }
            Kind::HandOut => self.hand_out(request, &place).map(Some),
            Kind::LetGo => {
                rustix::mount::unmount(&place, UnmountFlags::DETACH)?;
                std::fs::remove_dir(&place)?;
                Ok(None)
            }
        }
    }

    fn hand_out(&self, request: &Request, place: &str) -> io::Result<OwnedFd> {
        if request.read_only {
            process::unshare(UnshareFlags::NEWNS)?;
            rustix::mount::mount_remount(place, MountFlags::BIND | request.flags(), "")?;
        }
        move_into_link_name_space(self.numbers.as_fd(), Some(LinkNameSpaceType::User))?;
        // What is copied here has its flags locked.
        process::unshare(UnshareFlags::NEWNS | UnshareFlags::FS)?;
        let path = match request.text.as_str() {
            "/" => place.to_owned(),
            below => format!("{place}{below}"),
        };
        let look = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let plain = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let directory = rustix::fs::openat2(CWD, path, look, Mode::empty(), plain)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        Ok(rustix::mount::open_tree(&directory, "", flags)?)
    }
}

/// Says how a request went. Who asked may be there no more.
fn tell(answer: Option<&OwnedFd>, done: io::Result<Option<OwnedFd>>) {
    let Some(answer) = answer else { return };
    let code = match &done {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
    };
    let handed = done.ok().flatten();
    let handed: Vec<_> = handed.iter().map(AsFd::as_fd).collect();
    let _ = control::send(answer, &code.to_le_bytes(), &handed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back() {
        for kind in [Kind::Make, Kind::HandOut, Kind::LetGo] {
            let (read_only, access_times) = (kind == Kind::Make, AccessTimes::Relatime);
            let text = "/a/b".to_owned();
            let (uid, number) = (80_000, 70_000);
            let request = Request { kind, uid, number, read_only, access_times, text };
            let message = request.encode();
            assert_eq!(Request::decode(&message), Some(request));
            for cut in [2, 6, 10] {
                assert_eq!(Request::decode(&message[..cut]), None);
            }
        }
        assert_eq!(Request::decode(&[9; 8]), None);
    }
}
