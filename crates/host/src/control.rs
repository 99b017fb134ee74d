//! The messages of the control socket: a client says what it wants, the server what it gets.
//!
//! The socket is SEQPACKET: each message is one packet, sent and received whole, with the
//! descriptors that belong to it. Numbers are little-endian.
//!
//! ```text
//! client: magic u32 | version u16 | kind u8 | mode u8 | flags u32 | volume's name, UTF-8
//!         with descriptors: Mount the device of FUSE; Ring the memory
//! server: magic u32 | version u16 | status u8 | mode u8 | text, UTF-8
//!         with descriptors, to a Ring that is granted: the eventfd, and the View if there is one
//! ```
//!
//! A client that may mount in its own namespaces asks for a mount that is made already (kind 6,
//! [`Kind::Attached`]); with the answer comes the descriptor of one that is attached nowhere yet,
//! for move_mount(2). A server that makes none, or not for this client, answers that the session
//! has ended, and the client mounts by itself (kind 1) over a new connection. What it has attached
//! is served as long as anything of it is in use; by its end of the socket it says that its mount
//! is gone.
//!
//! The session lasts until either side closes its end. A client with a ring may ask for a View when
//! it has none (kind 5), with the most bytes that it wants; it is answered as above, with the
//! View's descriptor if it gets one, and has its session whatever the answer:
//!
//! ```text
//! client: magic u32 | version u16 | kind u8 | 0 u8 | bytes u32
//! ```
//!
//! The client sends nothing else, the server at the most one more message, that the session has
//! ended as it should.

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// The beginning of every message.
pub const MAGIC: u32 = u32::from_le_bytes(*b"atol");
/// The version of these messages and of what the descriptors carry. Another is refused.
pub const VERSION: u16 = 1;
/// The longest name of a volume, in bytes.
pub const NAME_MAX: usize = 255;
/// The longest message, in bytes.
pub const MESSAGE_MAX: usize = 1024;
/// The most descriptors with a message.
pub const DESCRIPTORS_MAX: usize = 4;

/// A socket of the kind that control messages go through.
///
/// # Errors
/// The error of socket(2).
pub(crate) fn socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The rights of a client on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Look.
    Read,
    /// Look and change.
    Write,
}

/// The way in which files are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By the kernel: the client hands over the device of a FUSE file system that it has mounted.
    Mount,
    /// By the kernel, through a mount that the server makes and hands over.
    Attached,
    /// By the client itself, through a ring in memory that it shares.
    Ring,
}

/// The request of a client for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// How files will be asked for.
    pub kind: Kind,
    /// The access that it asks for; it gets that or less.
    pub mode: Mode,
    /// The volume; empty for the only one.
    pub volume: String,
    /// With [`Kind::Mount`]: the file system is mounted in a user namespace that knows one user and
    /// one group, as the owners of everything. These are the client's own.
    pub single_owner: bool,
    /// With [`Kind::Ring`]: it wants a View.
    pub view: bool,
}

/// The server's messages to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The session has begun.
    Granted(Mode),
    /// There is none; why, in words for a person.
    Refused(String),
    /// The session has come to its proper end: with [`Kind::Mount`], nothing is mounted any more.
    /// Without this the connection was lost.
    Ended,
}

const SINGLE_OWNER: u32 = 1;
const VIEW: u32 = 2;

/// Why a message could not be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It is none of this protocol's.
    Foreign,
    /// It is of this other version.
    Version(u16),
    /// A field has a value that has no meaning.
    Field,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::Foreign => f.write_str("what arrived is no message of Atoll"),
            Malformed::Version(version) => write!(
                f,
                "the client speaks version {version} of the protocol and the server version {VERSION}; \
                 use the same release of Atoll for both"
            ),
            Malformed::Field => f.write_str("the message has a value that has no meaning"),
        }
    }
}

fn mode_byte(mode: Mode) -> u8 {
    match mode {
        Mode::Read => 0,
        Mode::Write => 1,
    }
}

fn mode_from(byte: u8) -> Result<Mode, Malformed> {
    match byte {
        0 => Ok(Mode::Read),
        1 => Ok(Mode::Write),
        _ => Err(Malformed::Field),
    }
}

fn head() -> Vec<u8> {
    let mut out = MAGIC.to_le_bytes().to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out
}

/// Takes the magic number and the version off the front.
fn body(message: &[u8]) -> Result<&[u8], Malformed> {
    let (magic, rest) = message.split_first_chunk::<4>().ok_or(Malformed::Foreign)?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or(Malformed::Foreign)?;
    if u32::from_le_bytes(*magic) != MAGIC {
        return Err(Malformed::Foreign);
    }
    match u16::from_le_bytes(*version) {
        VERSION => Ok(rest),
        other => Err(Malformed::Version(other)),
    }
}

impl Hello {
    /// The message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = head();
        out.push(match self.kind {
            Kind::Mount => 1,
            Kind::Ring => 2,
            Kind::Attached => 6,
        });
        out.push(mode_byte(self.mode));
        let flags =
            if self.single_owner { SINGLE_OWNER } else { 0 } | if self.view { VIEW } else { 0 };
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(self.volume.as_bytes());
        out
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(message: &[u8]) -> Result<Hello, Malformed> {
        let (&[kind, mode, f0, f1, f2, f3], name) =
            body(message)?.split_first_chunk::<6>().ok_or(Malformed::Field)?;
        let kind = match kind {
            1 => Kind::Mount,
            2 => Kind::Ring,
            6 => Kind::Attached,
            _ => return Err(Malformed::Field),
        };
        let flags = u32::from_le_bytes([f0, f1, f2, f3]);
        if flags & !(SINGLE_OWNER | VIEW) != 0 || name.len() > NAME_MAX {
            return Err(Malformed::Field);
        }
        Ok(Hello {
            kind,
            mode: mode_from(mode)?,
            volume: std::str::from_utf8(name).map_err(|_| Malformed::Field)?.to_owned(),
            single_owner: flags & SINGLE_OWNER != 0,
            view: flags & VIEW != 0,
        })
    }
}

/// That the client of a ring wants a View after all, of at most so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewAsk(pub u32);

impl ViewAsk {
    /// The message.
    pub fn encode(self) -> Vec<u8> {
        let mut out = head();
        out.extend_from_slice(&[5, 0]);
        out.extend_from_slice(&self.0.to_le_bytes());
        out
    }

    /// Reads a message, if it is this.
    pub fn decode(message: &[u8]) -> Option<ViewAsk> {
        match body(message).ok()? {
            &[5, 0, b0, b1, b2, b3] => Some(ViewAsk(u32::from_le_bytes([b0, b1, b2, b3]))),
            _ => None,
        }
    }
}

impl Answer {
    /// The message. A longer text than fits is cut.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = head();
        match self {
            Answer::Granted(mode) => out.extend_from_slice(&[0, mode_byte(*mode)]),
            Answer::Ended => out.extend_from_slice(&[2, 0]),
            Answer::Refused(text) => {
                out.extend_from_slice(&[1, 0]);
                let end = text.floor_char_boundary(MESSAGE_MAX - out.len());
                out.extend_from_slice(&text.as_bytes()[..end]);
            }
        }
        out
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(message: &[u8]) -> Result<Answer, Malformed> {
        let (&[status, mode], text) =
            body(message)?.split_first_chunk::<2>().ok_or(Malformed::Field)?;
        match status {
            0 => mode_from(mode).map(Answer::Granted),
            // It will be shown on a terminal.
            1 => Ok(Answer::Refused(
                String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).collect(),
            )),
            2 => Ok(Answer::Ended),
            _ => Err(Malformed::Field),
        }
    }
}

/// Both ends of a line between two processes of one program. Programs that are executed do not
/// inherit them.
///
/// # Errors
/// Those of socketpair(2).
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends `message` with `descriptors`, of which there are at most [`DESCRIPTORS_MAX`].
///
/// # Errors
/// The error of sendmsg(2): `EPIPE` when the other end is gone, `EAGAIN` when it does not read and
/// the socket does not block.
pub fn send(socket: impl AsFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Receives one message and its descriptors.
///
/// # Errors
/// `UnexpectedEof` when the other end is gone; `InvalidData` for a message or descriptors beyond
/// the limits; what recvmsg(2) says.
pub fn receive(socket: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    receive_most(socket, MESSAGE_MAX, true)
}

/// As [`receive`], a message of at most `most` bytes. Without `all` a message is good of which this
/// process had no descriptors left for some.
pub(crate) fn receive_most(
    socket: impl AsFd,
    most: usize,
    all: bool,
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = vec![0; most];
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut message)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let cut = received.flags.contains(ReturnFlags::TRUNC);
    if cut || all && received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    message.truncate(received.bytes);
    Ok((message, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            kind: Kind::Mount,
            mode: Mode::Write,
            volume: "däta".to_owned(),
            single_owner: true,
            view: false,
        }
    }

    #[test]
    fn messages_come_back() {
        let other = Hello {
            kind: Kind::Ring,
            mode: Mode::Read,
            volume: String::new(),
            single_owner: false,
            view: true,
        };
        let attached = Hello { kind: Kind::Attached, ..hello() };
        for hello in [hello(), attached, other] {
            assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
        let view = ViewAsk(5 << 20).encode();
        assert_eq!(ViewAsk::decode(&view), Some(ViewAsk(5 << 20)));
        assert!(Hello::decode(&view).is_err());
        for wrong in [&view[..view.len() - 1], &[&view[..], &[0]].concat(), &hello().encode()] {
            assert_eq!(ViewAsk::decode(wrong), None);
        }
        let refused = Answer::Refused("no, because".to_owned());
        for answer in
            [Answer::Granted(Mode::Read), Answer::Granted(Mode::Write), refused, Answer::Ended]
        {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
        let long = Answer::Refused("ä".repeat(MESSAGE_MAX)).encode();
        assert!(long.len() <= MESSAGE_MAX);
        assert!(matches!(Answer::decode(&long), Ok(Answer::Refused(text)) if text.ends_with('ä')));
        let sly = Answer::Refused("a\u{1b}[2Jb\n".to_owned()).encode();
        assert_eq!(Answer::decode(&sly), Ok(Answer::Refused("a[2Jb".to_owned())));
    }

    #[test]
    fn what_is_wrong_is_told_apart() {
        let good = hello().encode();
        for length in 0..good.len() {
            // Only the name may be shorter.
            let cut = Hello::decode(&good[..length]);
            assert!(length >= 12 || cut.is_err(), "{length}: {cut:?}");
        }
        let mut other = good.clone();
        other[4] = 9;
        assert_eq!(Hello::decode(&other), Err(Malformed::Version(9)));
        for (at, value) in [(6, 0), (6, 5), (7, 2), (8, 4), (11, 1), (12, 0xff)] {
            let mut other = good.clone();
            other[at] = value;
            assert_eq!(Hello::decode(&other), Err(Malformed::Field), "{at}");
        }
        let mut long = good;
        long.resize(12 + NAME_MAX + 1, b'a');
        assert_eq!(Hello::decode(&long), Err(Malformed::Field));
        assert_eq!(Hello::decode(b"GET / HTTP/1.1"), Err(Malformed::Foreign));
    }

    #[test]
    fn more_than_the_limits_is_refused_and_nothing_leaks() {
        let (a, b) = pair().unwrap();
        send(&a, &[1; MESSAGE_MAX], &[a.as_fd(); DESCRIPTORS_MAX]).unwrap();
        let (message, descriptors) = receive(&b).unwrap();
        assert_eq!((message.len(), descriptors.len()), (MESSAGE_MAX, DESCRIPTORS_MAX));
        drop(descriptors);
        send(&a, &[1; MESSAGE_MAX + 1], &[a.as_fd()]).unwrap();
        assert_eq!(receive(&b).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(a);
        // A leaked duplicate of the other end would keep this from seeing its end.
        assert_eq!(receive(&b).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(send(&b, b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
