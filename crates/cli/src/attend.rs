//! The server process of `atoll run`: owns the volumes, serves them, closes them. For volumes of a
//! server that runs already it holds the sessions there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use atoll_host::client::{Connection, Place};
use atoll_host::fuse::{Ended, Options, Server};
use atoll_host::handoff::Handoff;
use atoll_host::server::rules::Mode;

use crate::failure::{Failure, RUN_FAILED};
use crate::volume::{self, Access, Volume};

/// A volume and where it is to appear.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The volume's file, absolute; or a server's socket, and its name there.
    pub volume: PathBuf,
    /// The same, if it is at a server.
    pub served: Option<Place>,
    /// The mount point, absolute.
    pub target: PathBuf,
    /// Whether it may be changed.
    pub access: Access,
}

/// The command's side of the conversation: it waits for a go before every step, and hands each
/// device over once it is mounted.
pub struct CommandSide<'a>(pub &'a Handoff);

impl CommandSide<'_> {
    /// Waits until the server is ready for the next step. Fails without words: the server has said why.
    pub fn wait(&self) -> Result<(), Failure> {
        self.0.receive().map(drop).map_err(|_| Failure::new(""))
    }

    /// Hands over a mounted `device`. In a user namespace `owner` is the user and group that own all.
    pub fn hand_over(
        &self,
        device: BorrowedFd<'_>,
        owner: Option<(u32, u32)>,
    ) -> Result<(), Failure> {
        let mut message = vec![u8::from(owner.is_some())];
        let (uid, gid) = owner.unwrap_or_default();
        message.extend_from_slice(&uid.to_ne_bytes());
        message.extend_from_slice(&gid.to_ne_bytes());
        self.0.send(&message, Some(device)).map_err(|_| Failure::new(""))
    }
}

/// Reads the owner out of a message of [`CommandSide::hand_over`].
fn owner(message: &[u8]) -> Option<(u32, u32)> {
    let (&[1, uid @ ..], gid) = message.split_first_chunk::<5>()? else { return None };
    Some((u32::from_ne_bytes(uid), u32::from_ne_bytes(gid.try_into().ok()?)))
}

/// Opens the volumes, serves each as it is handed over, and returns once all are unmounted and
/// closed, with the status to end with.
pub fn attend(attachments: &[Attachment], line: &Handoff) -> u8 {
    let mut status = 0;
    let mut complain = |failure: Failure| {
        eprintln!("atoll: {failure}");
        status = RUN_FAILED;
    };
    leave_terminal();
    let mut opened = Vec::new();
    for attachment in attachments {
        match Source::open(attachment) {
            Ok(source) => opened.push((attachment, source)),
            Err(failure) => {
                complain(failure);
                close_all(opened, &mut complain);
                return status;
            }
        }
    }
    let mut waiting = opened.into_iter();
    let mut served = Vec::new();
    // The command's end closes when it has mounted all, or has failed and said why.
    while line.send(b"go", None).is_ok() {
        let Ok((message, Some(device))) = line.receive() else { break };
        let Some((attachment, source)) = waiting.next() else { break };
        match source.serve(attachment, device, owner(&message)) {
            Ok(serving) => served.push(serving),
            Err(failure) => {
                complain(failure);
                break;
            }
        }
    }
    close_all(waiting.collect(), &mut complain);
    for serving in served {
        let result = match serving {
            Serving::Here(path, server) => finish(path, server),
            Serving::There(path, session) => {
                session.join().unwrap_or(false).then_some(()).ok_or_else(|| {
                    Failure::new(format!(
                        "the server of {} has gone; what had been written is safe",
                        path.display()
                    ))
                })
            }
        };
        if let Err(failure) = result {
            complain(failure);
        }
    }
    status
}

/// Where an attachment's files come from.
enum Source {
    /// A volume that this process owns.
    Own(Box<Volume>),
    /// A server.
    Served(Connection),
}

/// An attachment in use.
enum Serving<'a> {
    Here(&'a Path, JoinHandle<Ended<Volume>>),
    /// Ends with whether the server was there to the end.
    There(&'a Path, JoinHandle<bool>),
}

impl Source {
    fn open(attachment: &Attachment) -> Result<Source, Failure> {
        match &attachment.served {
            Some(place) => Connection::open(place).map(Source::Served).map_err(Failure::new),
            None => volume::open(&attachment.volume, attachment.access)
                .map(|volume| Source::Own(Box::new(volume))),
        }
    }

    /// Serves what is mounted on `device`; `owner` as in [`CommandSide::hand_over`].
    fn serve(
        self,
        attachment: &Attachment,
        device: OwnedFd,
        owner: Option<(u32, u32)>,
    ) -> Result<Serving<'_>, Failure> {
        let path = attachment.volume.as_path();
        match self {
            Source::Own(volume) => {
                let options = Options { owner, ..Options::default() };
                let server = Server::start(*volume, device, &options).map_err(|error| {
                    Failure::new(format!("cannot serve {}: {error}", path.display()))
                })?;
                Ok(Serving::Here(path, std::thread::spawn(move || server.run())))
            }
            Source::Served(connection) => {
                let mode = match attachment.access {
                    Access::Read => Mode::Read,
                    Access::Write => Mode::Write,
                };
                connection.mount(device.as_fd(), mode, owner.is_some()).map_err(Failure::new)?;
                // Only the server may have it now, so that its end is the mount's.
                drop(device);
                Ok(Serving::There(path, std::thread::spawn(move || connection.wait())))
            }
        }
    }
}

fn close_all(opened: Vec<(&Attachment, Source)>, complain: &mut impl FnMut(Failure)) {
    for (attachment, source) in opened {
        if let Source::Own(volume) = source
            && let Err(failure) = volume::close(&attachment.volume, *volume)
        {
            complain(failure);
        }
    }
}

/// Waits until a volume is unmounted and closes it.
fn finish(path: &Path, server: JoinHandle<Ended<Volume>>) -> Result<(), Failure> {
    let unclean = |why: &dyn std::fmt::Display| {
        Failure::new(format!(
            "serving {} ended early: {why}; what had been written before is safe, and is taken up \
             when the volume is opened again",
            path.display()
        ))
    };
    let ended = server.join().map_err(|_| unclean(&"an internal error"))?;
    match (ended.fs, ended.error) {
        (Some(volume), error) => {
            volume::close(path, volume)?;
            error.map_or(Ok(()), |error| Err(unclean(&error)))
        }
        (None, _) => Err(unclean(&"an internal error")),
    }
}

/// Steps out of the terminal's reach: its signals, job control, and streams but for messages.
fn leave_terminal() {
    // Each of these only makes the server easier to disturb when it fails.
    let _ = nix::unistd::setsid();
    let _ = nix::sys::prctl::set_name(c"atoll-server");
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdin(&null);
        let _ = nix::unistd::dup2_stdout(&null);
    }
}
