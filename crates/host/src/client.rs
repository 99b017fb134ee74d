//! The client's end of the control socket: finding a server, and beginning a session with it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_transport::channel::{ClientChannel, Config, Lane, Layout};
use atoll_vfs::client::{Client, ClientOptions};
use atoll_vfs::{Cached, OpenFiles};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{SocketAddrUnix, SocketFlags};

use crate::control::{self, Answer, Hello, Kind, Mode, ViewAsk, socket};
#[cfg(feature = "server")]
use crate::expected::{self, Unexpected};
use crate::shm::{Doorbell, MappedView, SharedMemory, SpinThenSleep, above};

/// How a client connects to its server.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// How long the server may take for an answer of the control socket.
    pub timeout: Duration,
    /// The least number of the descriptors that are kept: in a program that does not know of them,
    /// they must not have those that it expects to get next.
    pub lowest: i32,
    /// Whether a client of a ring wants a View, which costs memory on both sides.
    pub view: bool,
}

impl Default for ConnectOptions {
    /// 30 s; any numbers; a View.
    fn default() -> Self {
        ConnectOptions { timeout: Duration::from_secs(30), lowest: 0, view: true }
    }
}

/// Why there is no session, in words for the person who asked.
#[derive(Debug)]
pub enum ConnectError {
    /// Nobody listens at the socket.
    NoServer(PathBuf),
    /// The socket cannot be used.
    Failed(PathBuf, io::Error),
    /// The server is not one that this process expects.
    #[cfg(feature = "server")]
    Unexpected(PathBuf, Unexpected),
    /// The server said no, and why.
    Refused(PathBuf, String),
    /// The server has gone, or what it said could not be understood.
    Lost(PathBuf, String),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::NoServer(path) => write!(
                f,
                "no server is at {0}; start it with `atoll serve VOLUME --socket {0}`",
                path.display()
            ),
            ConnectError::Failed(path, error) => {
                write!(f, "cannot connect to the server at {}: {error}", path.display())?;
                if error.kind() == io::ErrorKind::PermissionDenied {
                    f.write_str("; whoever runs it can let others in with --allow")?;
                }
                Ok(())
            }
            #[cfg(feature = "server")]
            ConnectError::Unexpected(path, why) => {
                write!(f, "the server at {} is not trusted: {why}", path.display())
            }
            ConnectError::Refused(path, why) => {
                write!(f, "the server at {} refused: {why}", path.display())
            }
            ConnectError::Lost(path, why) => {
                write!(f, "the server at {} did not answer: {why}", path.display())
            }
        }
    }
}

impl std::error::Error for ConnectError {}

/// A volume of a server: its socket, and its name there, empty for the only one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The socket.
    pub socket: PathBuf,
    /// The name.
    pub volume: String,
}

impl Address {
    /// Reads `SOCKET` or `SOCKET/VOLUME`, if there is a socket; otherwise `path` is something else.
    pub fn find(path: &Path) -> Option<Address> {
        use std::os::unix::fs::FileTypeExt;
        let is_socket =
            |path: &Path| std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
        if is_socket(path) {
            return Some(Address { socket: path.to_owned(), volume: String::new() });
        }
        let (socket, volume) = (path.parent()?, path.file_name()?.to_str()?);
        is_socket(socket).then(|| Address { socket: socket.to_owned(), volume: volume.to_owned() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.display().fmt(f)?;
        if self.volume.is_empty() { Ok(()) } else { write!(f, "/{}", self.volume) }
    }
}

/// A connection to a server, and once it has begun, the session.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    place: Address,
    options: ConnectOptions,
}

/// The usual number of users that a user namespace does not have (/proc/sys/kernel/overflowuid).
/// Where it is another one, such a client is refused a ring by servers that do not trust it.
const OVERFLOW_UID: u32 = 65534;

impl Connection {
    /// Connects to a server of whom this process expects there ([`SERVER_USER`]). The server learns
    /// who this process is.
    ///
    /// [`SERVER_USER`]: crate::expected::SERVER_USER
    ///
    /// # Errors
    /// [`ConnectError::NoServer`], [`ConnectError::Failed`], [`ConnectError::Unexpected`].
    #[cfg(feature = "server")]
    pub fn open(place: &Address) -> Result<Connection, ConnectError> {
        let connection = Connection::open_with(place, ConnectOptions::default())?;
        expected::check(&connection.socket, &place.socket)
            .map_err(|why| ConnectError::Unexpected(place.socket.clone(), why))?;
        Ok(connection)
    }

    /// Connects with `options`, whoever the server is: to one that is known by other means.
    ///
    /// # Errors
    /// [`ConnectError::NoServer`], [`ConnectError::Failed`].
    pub fn open_with(place: &Address, options: ConnectOptions) -> Result<Connection, ConnectError> {
        let path = &place.socket;
        let failed =
            |errno: rustix::io::Errno| ConnectError::Failed(path.clone(), io::Error::from(errno));
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let socket = socket(SocketFlags::empty()).map_err(failed)?;
        let socket = above(socket, options.lowest).map_err(failed)?;
        // Connecting too: many others may wait to be accepted.
        set_socket_timeout(&socket, Timeout::Send, Some(options.timeout)).map_err(failed)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {}
            Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT) => {
                return Err(ConnectError::NoServer(path.clone()));
            }
            Err(errno) => return Err(failed(errno)),
        }
        Ok(Connection { socket, place: place.clone(), options })
    }

    /// Begins a session for the file system that is mounted on `device`, the only copy of which
    /// must go to the server: the kernel takes it for gone when the last one is closed. With
    /// `single_owner` it is mounted in a user namespace that knows one user and group, this
    /// process's own.
    ///
    /// # Errors
    /// [`ConnectError::Refused`], [`ConnectError::Lost`].
    pub fn mount(
        &self,
        device: BorrowedFd<'_>,
        mode: Mode,
        single_owner: bool,
    ) -> Result<(), ConnectError> {
        let volume = self.place.volume.clone();
        let hello = Hello { kind: Kind::Mount, mode, volume, single_owner, view: false };
        self.ask(&hello.encode(), &[device]).map(drop)
    }

    /// Asks for a mount that the server makes, to be attached in this process's namespaces by
    /// `fuse::mount::attach`. This connection is to stay for as long as it is
    /// mounted. `None` if the server makes none here: then [`mount`](Self::mount) over another
    /// connection does.
    ///
    /// # Errors
    /// [`ConnectError::Refused`], [`ConnectError::Lost`].
    pub fn attached(&self, mode: Mode) -> Result<Option<OwnedFd>, ConnectError> {
        let volume = self.place.volume.clone();
        let (kind, single_owner, view) = (Kind::Attached, false, false);
        let hello = Hello { kind, mode, volume, single_owner, view };
        let (granted, mount) = self.exchange(&hello.encode(), &[])?;
        let mount = mount.into_iter().next().filter(|_| granted);
        let lost = || ConnectError::Lost(self.place.socket.clone(), "it has sent no mount".into());
        if granted { mount.ok_or_else(lost).map(Some) } else { Ok(None) }
    }

    /// Begins a session through a ring of the sizes in `config`.
    ///
    /// # Errors
    /// [`ConnectError::Refused`], [`ConnectError::Lost`]; [`ConnectError::Failed`] when there is no
    /// memory for it or the sizes are not allowed.
    pub fn ring(self, mode: Mode, config: &Config) -> Result<Ring, ConnectError> {
        let failed = |error| ConnectError::Failed(self.place.socket.clone(), error);
        let unfit = || failed(io::ErrorKind::InvalidInput.into());
        let layout = Layout::new(config).ok_or_else(unfit)?;
        // A server of another user may not trust this one. In a user namespace that has no number
        // for it, it seems to be the user of this number, which this one may have as well. Nor does
        // the superuser's server trust the superuser where its operator says so.
        let peer = socket_peercred(&self.socket).map_err(|errno| failed(errno.into()))?;
        let own = peer.uid == rustix::process::geteuid();
        let demands = !own || peer.uid.is_root() || peer.uid.as_raw() == OVERFLOW_UID;
        let lowest = self.options.lowest;
        let memory = SharedMemory::create_above("atoll-ring", layout.total(), lowest, demands)
            .map_err(failed)?;
        let channel = ClientChannel::create(memory.clone(), config).ok_or_else(unfit)?;
        let volume = self.place.volume.clone();
        let hello =
            Hello { kind: Kind::Ring, mode, volume, single_owner: false, view: self.options.view };
        let mut received = self.ask(&hello.encode(), &[memory.as_fd()])?.into_iter();
        let Some(doorbell) = received.next() else {
            let path = self.place.socket.clone();
            return Err(ConnectError::Lost(path, "it has sent no doorbell".to_owned()));
        };
        let doorbell = above(doorbell, lowest).map_err(|errno| failed(errno.into()))?;
        let doorbell = Doorbell::from_server(doorbell);
        if demands {
            memory.fix().map_err(failed)?;
            // The server looks at it now.
            doorbell.ring();
        }
        let connection = Arc::new(self);
        let view = received.next().map(|memory| map_view(&connection, memory)).transpose()?;
        Ok(Ring { connection, channel, doorbell, view, open: Arc::default(), next: 0, spin: None })
    }

    /// Whether the server has not hung up.
    fn is_alive(&self) -> bool {
        // There may be an answer that nobody has read yet.
        let mut watched = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut watched, Some(&Timespec::default())) == Ok(0)
    }

    /// Returns the descriptors that came with the answer.
    fn ask(
        &self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Vec<OwnedFd>, ConnectError> {
        let lost = "it has ended the session".to_owned();
        match self.exchange(message, descriptors)? {
            (true, received) => Ok(received),
            (false, _) => Err(ConnectError::Lost(self.place.socket.clone(), lost)),
        }
    }

    /// Says `message`. Returns whether the answer is that a session has begun, not that it has
    /// ended, and the descriptors that came with it.
    fn exchange(
        &self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(bool, Vec<OwnedFd>), ConnectError> {
        let path = &self.place.socket;
        let lost = |why: &dyn fmt::Display| ConnectError::Lost(path.clone(), why.to_string());
        // One that refuses at once has closed its end before this; its reason is read all the same.
        let sent = control::send(&self.socket, message, descriptors);
        let wait = |time| set_socket_timeout(&self.socket, Timeout::Recv, time);
        wait(Some(self.options.timeout)).map_err(|errno| lost(&errno))?;
        let (answer, received) = match (control::receive(&self.socket), sent) {
            (Ok((message, received)), _) => {
                (Answer::decode(&message).map_err(|error| lost(&error))?, received)
            }
            (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(lost(&error)),
        };
        wait(None).map_err(|errno| lost(&errno))?;
        match answer {
            Answer::Granted(_) => Ok((true, received)),
            Answer::Refused(why) => Err(ConnectError::Refused(path.clone(), why)),
            Answer::Ended => Ok((false, received)),
        }
    }

    /// Waits for the end of the session: true if it is the proper one, because nothing is mounted
    /// any more; false if the server has gone.
    pub fn wait(&self) -> bool {
        control::receive(&self.socket)
            .is_ok_and(|(message, _)| Answer::decode(&message) == Ok(Answer::Ended))
    }
}

/// Maps the View that came through `connection`.
fn map_view(
    connection: &Arc<Connection>,
    memory: OwnedFd,
) -> Result<Arc<MappedView>, ConnectError> {
    let watched = Arc::clone(connection);
    MappedView::attach(memory, move || watched.is_alive())
        .map_err(|error| ConnectError::Failed(connection.place.socket.clone(), error))
}

/// How a thread of a client waits for its server.
pub type Wait = SpinThenSleep<Box<dyn FnMut() -> bool + Send>>;

/// A session through a ring. It ends with this value and all clients made of it.
pub struct Ring {
    connection: Arc<Connection>,
    channel: ClientChannel<SharedMemory>,
    doorbell: Doorbell,
    view: Option<Arc<MappedView>>,
    open: Arc<OpenFiles>,
    next: u32,
    /// How long its threads look for an answer before they sleep, if not as usual.
    spin: Option<Duration>,
}

/// A client for one thread that looks into its session's View, if it has one, before it asks.
pub type CachedClient = Cached<Client<Lane<SharedMemory, Wait>>, Option<Arc<MappedView>>>;

impl Ring {
    /// Has the clients that are made from here on look for an answer for at most `spin` before they
    /// sleep.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = Some(spin);
    }

    /// Asks for a View of at most `most` bytes, which this session does not have yet. Clients that
    /// are made from here on by [`cached`](Self::cached) look into it.
    ///
    /// # Errors
    /// [`ConnectError::Refused`], upon which the session goes on; [`ConnectError::Lost`];
    /// [`ConnectError::Failed`] when it cannot be mapped.
    pub fn begin_view(&mut self, most: u32) -> Result<Arc<MappedView>, ConnectError> {
        let received = self.connection.ask(&ViewAsk(most).encode(), &[])?;
        let Some(memory) = received.into_iter().next() else {
            let path = self.connection.place.socket.clone();
            return Err(ConnectError::Lost(path, "it has sent no View".to_owned()));
        };
        let view = map_view(&self.connection, memory)?;
        self.view = Some(Arc::clone(&view));
        Ok(view)
    }

    /// The descriptors that it needs: of the socket, the memory and the doorbell.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.connection.as_fd(), self.channel.memory().as_fd(), self.doorbell.as_fd()]
    }

    /// The memory that is shared with the server.
    pub fn memory(&self) -> &SharedMemory {
        self.channel.memory()
    }

    /// Whether the server has not hung up.
    pub fn is_alive(&self) -> bool {
        self.connection.is_alive()
    }

    /// A file system for one thread: it has a lane of its own. `None` when all lanes are taken, or
    /// the server is lost.
    pub fn client(&mut self) -> Option<Client<Lane<SharedMemory, Wait>>> {
        Client::connect(self.lane()?, ClientOptions::default()).ok()
    }

    fn lane(&mut self) -> Option<Lane<SharedMemory, Wait>> {
        let connection = Arc::clone(&self.connection);
        let alive: Box<dyn FnMut() -> bool + Send> = Box::new(move || connection.is_alive());
        let doorbell = self.doorbell.clone();
        let wait = match self.spin {
            Some(spin) => SpinThenSleep::with_spin(doorbell, alive, spin),
            None => SpinThenSleep::new(doorbell, alive),
        };
        if self.next >= self.channel.layout().config().lanes {
            return None;
        }
        let lane = self.channel.lane(self.next, wait)?;
        self.next += 1;
        Some(lane)
    }

    /// As [`client`](Self::client), with the session's View, in which names are found for this
    /// process's own user and group.
    pub fn cached(&mut self) -> Option<CachedClient> {
        let client = self.client()?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let cached = Cached::new(client, self.view.clone(), Arc::clone(&self.open));
        Some(cached.for_caller(uid.as_raw(), gid.as_raw()))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
