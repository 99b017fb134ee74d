//! The server process of `atoll run`: owns the volumes, serves them, closes them. For volumes of a
//! server that runs already it holds the sessions there.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use atoll_host::client::{Address, Connection};
use atoll_host::control;
use atoll_host::server::rules::Mode;
use atoll_host::server::sole::{Ended, SoleOptions};
use atoll_vfs::AccessTimes;
use rustix::event::{PollFd, PollFlags, poll};

use crate::failure::{Failure, RUN_FAILED};
use crate::served::{OfDirectory, Served};
use crate::sole;
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
    /// The kernel keeps what programs write.
    pub writes_back: bool,
}

/// The command's side of the conversation: it waits for a go before every step, and hands each
/// device over once it is mounted.
pub struct CommandSide<'a>(pub &'a OwnedFd);

impl CommandSide<'_> {
    /// Waits until the server is ready for the next step. Fails without words: the server has said
    /// why. Returns a mount of what is to be mounted next, if its server makes one: it is attached
    /// in place of one of the command's own.
    pub fn wait(&self) -> Result<Option<OwnedFd>, Failure> {
        let (_, handed) = control::receive(self.0).map_err(|_| Failure::new(""))?;
        Ok(handed.into_iter().next())
    }

    /// Hands over what can be read when the mount has gone that was attached as it came.
    pub fn attached(&self, watch: BorrowedFd<'_>) -> Result<(), Failure> {
        control::send(self.0, ATTACHED, &[watch]).map_err(|_| Failure::new(""))
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

/// The message of [`CommandSide::attached`].
const ATTACHED: &[u8] = b"a";

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
    let mut opened = Vec::new();
    for attachment in attachments {
        match Opened::open(attachment) {
            Ok(one) => opened.push((attachment, one)),
            Err(failure) => {
                complain(failure);
                break;
            }
        }
    }
    let mut served = Vec::new();
    let mut waiting = VecDeque::from(opened);
    if waiting.len() == attachments.len() {
        let _ = serve_all(&mut waiting, line, &mut served).map_err(&mut complain);
    }
    for (attachment, one) in waiting {
        let _ = one.close(attachment).map_err(&mut complain);
    }
    for (attachment, serving) in served {
        let _ = serving.finish(&attachment.volume).map_err(&mut complain);
    }
    status
}

/// Serves each of those that are `waiting` once the command has mounted it, the first first, until
/// the command closes its end: it has mounted all, or has failed and said why.
fn serve_all<'a>(
    waiting: &mut VecDeque<(&'a Attachment, Opened)>,
    line: &OwnedFd,
    served: &mut Vec<(&'a Attachment, Serving)>,
) -> Result<(), Failure> {
    loop {
        let mount = match waiting.front_mut() {
            Some((attachment, one)) => one.shared(attachment)?,
            None => None,
        };
        let handed: Vec<_> = mount.iter().map(AsFd::as_fd).collect();
        if control::send(line, b"+", &handed).is_err() {
            return Ok(());
        }
        let shared = mount.is_some();
        drop(mount);
        let Ok((message, mut devices)) = control::receive(line) else { return Ok(()) };
        let Some(device) = devices.pop() else { return Ok(()) };
        let Some((attachment, one)) = waiting.pop_front() else { return Ok(()) };
        let serving = match one {
            Opened::AtServer(connection) if message == ATTACHED => {
                Serving::Attached(connection, device)
            }
            // The mount that the server made cannot be used.
            Opened::AtServer(_) if shared => {
                Opened::open(attachment)?.serve(attachment, device, owner(&message))?
            }
            one => one.serve(attachment, device, owner(&message))?,
        };
        served.push((attachment, serving));
    }
}

/// What an attachment is of, before it is mounted.
// There are few of them.
#[allow(clippy::large_enum_variant)]
enum Opened {
    /// A volume of a server's.
    AtServer(Connection),
    /// This process's own.
    Own(Served),
}

impl Opened {
    fn open(attachment: &Attachment) -> Result<Opened, Failure> {
        let Attachment { volume, access, .. } = attachment;
        match &attachment.served {
            Some(place) => Connection::open(place).map(Opened::AtServer).map_err(Failure::new),
            None => Served::open(volume, *access, OfDirectory::default()).map(Opened::Own),
        }
    }

    /// A mount that the server makes, if it makes any. Else this begins anew.
    fn shared(&mut self, attachment: &Attachment) -> Result<Option<OwnedFd>, Failure> {
        let (Opened::AtServer(connection), Some(place)) = (self, &attachment.served) else {
            return Ok(None);
        };
        let mount = connection.attached(mode(attachment)).map_err(Failure::new)?;
        if mount.is_none() {
            *connection = Connection::open(place).map_err(Failure::new)?;
        }
        Ok(mount)
    }

    /// Has what is mounted on `device` served until it is unmounted everywhere; `owner` as in
    /// [`CommandSide::hand_over`].
    fn serve(
        self,
        attachment: &Attachment,
        device: OwnedFd,
        owner: Option<(u32, u32)>,
    ) -> Result<Serving, Failure> {
        let Attachment { volume, access, access_times, writes_back, .. } = attachment;
        match self {
            Opened::AtServer(connection) => {
                connection
                    .mount(device.as_fd(), mode(attachment), owner.is_some())
                    .map_err(Failure::new)?;
                // Only the server may have the device now, so that its end is the mount's.
                Ok(Serving::AtServer(connection))
            }
            Opened::Own(fs) => {
                let read_only = *access == Access::Read;
                let (access_times, writes_back) = (*access_times, *writes_back);
                let options = SoleOptions { read_only, access_times, owner, writes_back };
                let server = sole::start(fs, device, &options, volume)?;
                let run = move || server.run();
                let thread = std::thread::Builder::new().spawn(run).map_err(|error| {
                    Failure::new(format!("cannot serve {}: {error}", volume.display()))
                })?;
                Ok(Serving::Own(thread))
            }
        }
    }

    fn close(self, attachment: &Attachment) -> Result<(), Failure> {
        match self {
            Opened::AtServer(_) => Ok(()),
            Opened::Own(fs) => fs.close(&attachment.volume),
        }
    }
}

fn mode(attachment: &Attachment) -> Mode {
    match attachment.access {
        Access::Read => Mode::Read,
        Access::Write => Mode::Write,
    }
}

/// An attachment in use.
enum Serving {
    AtServer(Connection),
    /// It was attached as its server made it: what can be read when the mount has gone.
    Attached(Connection, OwnedFd),
    Own(JoinHandle<Ended<Served>>),
}

impl Serving {
    /// Waits until it is unmounted, and closes what is at `path` if it is this process's own.
    fn finish(self, path: &Path) -> Result<(), Failure> {
        let there = match self {
            Serving::AtServer(connection) => connection.wait(),
            Serving::Attached(connection, gone) => {
                let mut watched =
                    [PollFd::new(&gone, PollFlags::IN), PollFd::new(&connection, PollFlags::IN)];
                let _ = rustix::io::retry_on_intr(|| poll(&mut watched, None));
                !watched[0].revents().is_empty()
            }
            Serving::Own(thread) => {
                let ended = thread.join().unwrap_or(Ended { fs: None, error: None });
                return sole::close(ended, path);
            }
        };
        match there {
            true => Ok(()),
            false => Err(Failure::new(format!(
                "the server of {} has gone; what had been written is safe",
                path.display()
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
