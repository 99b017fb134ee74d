//! The server process of `atoll run`: owns the volumes, serves them, closes them. For volumes of a
//! server that runs already it holds the sessions there.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use atoll_host::client::{Address, Connection};
use atoll_host::control;
use atoll_host::server::rules::Mode;
use atoll_vfs::AccessTimes;

use crate::failure::{Failure, RUN_FAILED};
use crate::private::PrivateServer;
use crate::volume::Access;

/// A volume and where it is to appear.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The volume's file, absolute; or a server's socket, and its name there.
    pub volume: PathBuf,
    /// The same, if it is at a server.
    pub served: Option<Address>,
    /// The mount point, absolute.
    pub target: PathBuf,
    /// Whether it may be changed.
    pub access: Access,
    /// The effect of reading on times of last access, as far as it is known here.
    pub access_times: AccessTimes,
}

/// The command's side of the conversation: it waits for a go before every step, and hands each
/// device over once it is mounted.
pub struct CommandSide<'a>(pub &'a OwnedFd);

impl CommandSide<'_> {
    /// Waits until the server is ready for the next step, and returns the place of a server for
    /// what was mounted last that was started for it. Fails without words: the server has said why.
    pub fn wait(&self) -> Result<Option<Address>, Failure> {
        let (message, _) = control::receive(self.0).map_err(|_| Failure::new(""))?;
        let socket = message.get(1..).filter(|socket| !socket.is_empty());
        let socket = socket.map(|socket| PathBuf::from(OsStr::from_bytes(socket)));
        Ok(socket.map(|socket| Address { socket, volume: String::new() }))
    }

    /// Hands over a mounted `device`. In a user namespace `owner` is the user and group that own
    /// all.
    pub fn hand_over(
        &self,
        device: BorrowedFd<'_>,
        owner: Option<(u32, u32)>,
    ) -> Result<(), Failure> {
        let mut message = vec![u8::from(owner.is_some())];
        let (uid, gid) = owner.unwrap_or_default();
        message.extend_from_slice(&uid.to_ne_bytes());
        message.extend_from_slice(&gid.to_ne_bytes());
        control::send(self.0, &message, &[device]).map_err(|_| Failure::new(""))
    }
}

/// Reads the owner out of a message of [`CommandSide::hand_over`].
fn owner(message: &[u8]) -> Option<(u32, u32)> {
    let (&[1, uid @ ..], gid) = message.split_first_chunk::<5>()? else { return None };
    Some((u32::from_ne_bytes(uid), u32::from_ne_bytes(gid.try_into().ok()?)))
}

/// Opens the volumes, serves each as it is handed over, and returns once all are unmounted and
/// closed, with the status to end with.
pub fn attend(attachments: &[Attachment], line: &OwnedFd) -> u8 {
    let mut status = 0;
    let mut complain = |failure: Failure| {
        say!("{failure}");
        status = RUN_FAILED;
    };
    leave_terminal();
    let hidden: Vec<&Path> = attachments.iter().map(|a| a.target.as_path()).collect();
    let mut opened = Vec::new();
    for (number, attachment) in attachments.iter().enumerate() {
        match Session::open(attachment, number, &hidden) {
            Ok(session) => opened.push((attachment, session)),
            Err(failure) => {
                complain(failure);
                break;
            }
        }
    }
    let all = opened.len() == attachments.len();
    let mut waiting = opened.into_iter();
    let mut served: Vec<Serving> = Vec::new();
    // The command's end closes when it has mounted all, or has failed and said why.
    while all && control::send(line, &go(served.last()), &[]).is_ok() {
        let Ok((message, mut devices)) = control::receive(line) else { break };
        let Some(device) = devices.pop() else { break };
        let Some((attachment, session)) = waiting.next() else { break };
        match session.serve(attachment, device, owner(&message)) {
            Ok(serving) => served.push(serving),
            Err(failure) => {
                complain(failure);
                break;
            }
        }
    }
    for (_, session) in waiting {
        let _ = session.close().map_err(&mut complain);
    }
    for serving in served {
        let _ = serving.finish().map_err(&mut complain);
    }
    status
}

/// The word to go on, with the place of the server that this process has for what was mounted last.
fn go(last: Option<&Serving>) -> Vec<u8> {
    let place = last.and_then(|serving| serving.session.own.as_ref()).map(PrivateServer::place);
    let mut message = b"+".to_vec();
    message.extend(place.map_or(&b""[..], |place| place.socket.as_os_str().as_bytes()));
    message
}

/// A session with the server of an attachment, for its mount.
struct Session {
    connection: Connection,
    /// The server, if it is this process's own.
    own: Option<PrivateServer>,
}

impl Session {
    /// Begins it, with a server of its own if need be: this process's server `number`, whose socket
    /// is not below one of `hidden`.
    fn open(attachment: &Attachment, number: usize, hidden: &[&Path]) -> Result<Session, Failure> {
        if let Some(place) = &attachment.served {
            let connection = Connection::open(place).map_err(Failure::new)?;
            return Ok(Session { connection, own: None });
        }
        let Attachment { volume, access, access_times, .. } = attachment;
        let own = PrivateServer::start(volume, *access, *access_times, number, hidden)?;
        match Connection::open(own.place()) {
            Ok(connection) => Ok(Session { connection, own: Some(own) }),
            Err(error) => {
                own.end()?;
                Err(Failure::new(error))
            }
        }
    }

    /// Has what is mounted on `device` served until it is unmounted everywhere; `owner` as in
    /// [`CommandSide::hand_over`]. Where that fails, the session is closed.
    fn serve(
        self,
        attachment: &Attachment,
        device: OwnedFd,
        owner: Option<(u32, u32)>,
    ) -> Result<Serving, Failure> {
        let mode = match attachment.access {
            Access::Read => Mode::Read,
            Access::Write => Mode::Write,
        };
        if let Err(error) = self.connection.mount(device.as_fd(), mode, owner.is_some()) {
            self.close()?;
            return Err(Failure::new(error));
        }
        // Only the server may have it now, so that its end is the mount's.
        drop(device);
        Ok(Serving { path: attachment.volume.clone(), session: self })
    }

    fn close(self) -> Result<(), Failure> {
        drop(self.connection);
        self.own.map_or(Ok(()), PrivateServer::end)
    }
}

/// An attachment in use.
struct Serving {
    path: PathBuf,
    session: Session,
}

impl Serving {
    /// Waits until it is unmounted, and ends a server of its own.
    fn finish(self) -> Result<(), Failure> {
        let there = self.session.connection.wait();
        match self.session.own {
            Some(_) => self.session.close(),
            None if there => Ok(()),
            None => Err(Failure::new(format!(
                "the server of {} has gone; what had been written is safe",
                self.path.display()
            ))),
        }
    }
}

/// Steps out of the terminal's reach: its signals, job control, and streams but for messages.
fn leave_terminal() {
    // Each of these only makes the server easier to disturb when it fails.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"atoll-server");
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}
