//! The control thread: accepts clients, hears what they want, begins and ends their sessions.
//!
//! One thread watches all sockets and never waits for a single client: what a client is slow with
//! costs itself alone. Each mounted session is served by a thread of its own, those with rings by
//! the worker of their volume.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_vfs::FileSystem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags};

use super::control::{self, Answer, Ask, Hello, Kind, ViewAsk};
use super::machine::{self, now};
use super::mount::{Mount, is_fuse};
use super::peer;
use super::rules::{Grant, Mode, Rules};
use super::upkeep::Upkeep;
use super::worker::{Newcomer, Worker};
use atoll_server::Credentials;
use atoll_server::Session;
use atoll_server::revocable::Revocable;
use atoll_server::{Access, Identity, Volume};

/// The most clients at a time, those that have not yet said what they want included.
pub const CONNECTIONS_MAX: usize = 512;
/// The most of one user. The superuser and the server's own user may have all.
pub const CONNECTIONS_PER_USER: usize = 64;
/// How long a client may take to say what it wants.
const GREETING: Duration = Duration::from_secs(10);
/// The most clients that are accepted before the others are looked at again.
const ACCEPT_BATCH: usize = 16;
/// How often sessions whose client has gone are looked at, until their thread has ended too; and
/// how long nobody is accepted when the system had no descriptor for one.
const SWEEP: Duration = Duration::from_millis(200);
/// The most programs that wait for stores to be durable.
const SYNCS_MAX: usize = 64;
/// How long a session that is just beginning may keep the server from shutting down.
const SHUTDOWN: Duration = Duration::from_secs(10);

/// A server of volumes to the clients of one socket.
pub struct SocketServer<F: FileSystem + Send + 'static> {
    listener: OwnedFd,
    rules: Rules,
    volumes: Vec<Arc<Volume<F>>>,
    clients: Vec<Connected<F>>,
    /// Accepts nobody until then: accept(2) would fail, and poll(2) would report the client again
    /// at once.
    rests: Option<Instant>,
    /// Threads of sessions that have ended: the kernel still holds a mount of them somewhere.
    lingering: Vec<(u32, JoinHandle<()>)>,
    /// One for each volume, in their order.
    workers: Vec<Worker<F>>,
    /// One for each volume.
    upkeep: Vec<Upkeep>,
    /// Counts the programs that wait for stores to be durable.
    syncs: Arc<()>,
    /// Counts the mounts.
    mounts: Arc<()>,
    spin: Duration,
}

struct Connected<F: FileSystem + Send> {
    socket: Arc<OwnedFd>,
    peer: Credentials,
    stage: Stage<F>,
}

enum Stage<F: FileSystem + Send> {
    /// It has until then to say what it wants.
    Greeting(Instant),
    Serving {
        place: Revocable<Session<F>>,
        by: By,
    },
}

/// The thread that serves a session.
enum By {
    /// A thread of its own.
    Thread(JoinHandle<()>),
    /// The worker of this volume.
    Worker(usize),
}

/// The next step for a client.
#[derive(PartialEq, Eq)]
enum Next {
    Stay,
    End,
}

impl<F: FileSystem + Send + 'static> SocketServer<F> {
    /// Serves `volumes`, each by its name, to those whom `rules` let in through `listener`. Their
    /// workers, and the threads that serve mounts, look for requests for `spin` before they sleep.
    ///
    /// # Errors
    /// When there are no descriptors or threads left.
    pub fn new(
        listener: OwnedFd,
        rules: Rules,
        volumes: Vec<Arc<Volume<F>>>,
        spin: Duration,
    ) -> io::Result<SocketServer<F>> {
        let start = |volume| Worker::start(volume, spin);
        let workers = volumes.iter().map(start).collect::<io::Result<_>>()?;
        let upkeep = volumes.iter().map(Upkeep::start).collect::<io::Result<_>>()?;
        let (clients, lingering) = (Vec::new(), Vec::new());
        let syncs = Arc::new(());
        Ok(SocketServer {
            listener,
            rules,
            volumes,
            clients,
            rests: None,
            lingering,
            workers,
            upkeep,
            syncs,
            mounts: Arc::default(),
            spin,
        })
    }

    /// Serves until `stop` can be read, then ends all sessions and gives the file systems back, to
    /// be unmounted. `None` stands for one that can no longer be trusted (see
    /// [`Volume::into_inner`]).
    ///
    /// # Errors
    /// The error of poll(2); the file systems are then left as a crash would leave them.
    pub fn run(mut self, stop: BorrowedFd<'_>) -> io::Result<Vec<(String, Option<F>)>> {
        while !self.turn(stop)? {}
        Ok(self.shut_down())
    }

    /// Waits for something to happen, and deals with it. Returns whether to stop.
    fn turn(&mut self, stop: BorrowedFd<'_>) -> io::Result<bool> {
        let now = Instant::now();
        let deadline = self.clients.iter().filter_map(Connected::deadline).min();
        let sweep = (!self.lingering.is_empty()).then_some(now + SWEEP);
        self.rests = self.rests.filter(|&until| until > now);
        let next = deadline.into_iter().chain(sweep).chain(self.rests).min();
        let wait = next.and_then(|at| Timespec::try_from(at.saturating_duration_since(now)).ok());
        // Beyond the limit clients wait in the backlog.
        let all = self.clients.len() + self.lingering.len();
        let accepting = all < CONNECTIONS_MAX && self.rests.is_none();
        let mut watched = vec![PollFd::new(&stop, PollFlags::IN)];
        watched.extend(self.clients.iter().map(|c| PollFd::new(&*c.socket, PollFlags::IN)));
        if accepting {
            watched.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        match poll(&mut watched, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(watched);
        if ready[0] {
            return Ok(true);
        }
        let asked = accepting && ready.last() == Some(&true);
        let mut remaining = Vec::with_capacity(self.clients.len());
        // They were watched in this order, after `stop`.
        for (mut client, &ready) in std::mem::take(&mut self.clients).into_iter().zip(&ready[1..]) {
            let next = if ready { self.hear(&mut client) } else { client.overdue() };
            match next {
                Next::Stay => remaining.push(client),
                Next::End => self.end(client),
            }
        }
        self.clients = remaining;
        self.lingering.retain(|(_, thread)| !thread.is_finished());
        if asked {
            self.accept();
        }
        Ok(false)
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_BATCH {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    log::warn!("a client could not be accepted: {error}");
                    self.rests = Some(Instant::now() + SWEEP);
                    return;
                }
            };
            let peer = match peer::credentials(&socket) {
                Ok(peer) => peer,
                Err(error) => {
                    log::warn!("the kernel does not say who a client is: {error}");
                    continue;
                }
            };
            if let Err(why) = self.admit(&peer) {
                refuse(&socket, &peer, &why);
                continue;
            }
            let stage = Stage::Greeting(Instant::now() + GREETING);
            self.clients.push(Connected { socket: Arc::new(socket), peer, stage });
        }
    }

    /// Whether there is room for `peer`. Its access is answered only after its request: an earlier
    /// answer would be lost with the connection.
    fn admit(&self, peer: &Credentials) -> Result<(), String> {
        let all = self.clients.len() + self.lingering.len();
        let own = self.clients.iter().filter(|client| client.peer.uid == peer.uid).count()
            + self.lingering.iter().filter(|(uid, _)| *uid == peer.uid).count();
        let most = if self.rules.is_trusted(peer) { CONNECTIONS_MAX } else { CONNECTIONS_PER_USER };
        if own >= most || all >= CONNECTIONS_MAX {
            return Err(format!("too many clients: user {} has {own} of at most {most}", peer.uid));
        }
        Ok(())
    }

    fn unwelcome(&self, peer: &Credentials) -> String {
        format!(
            "user {} may not use it; whoever runs the server can allow it with --allow uid:{}=rw",
            peer.uid, peer.uid
        )
    }

    /// Deals with what a client has sent, or that it has gone.
    fn hear(&self, client: &mut Connected<F>) -> Next {
        let received = control::receive(&*client.socket);
        if let Err(error) = &received
            && error.kind() == io::ErrorKind::WouldBlock
        {
            return Next::Stay;
        }
        match (&client.stage, received) {
            (_, Err(error)) => {
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    log::warn!("process {} of user {}: {error}", client.peer.pid, client.peer.uid);
                }
                Next::End
            }
            (Stage::Serving { place, by }, Ok((message, _))) => {
                if let (By::Worker(_), Some(ask)) = (by, ViewAsk::decode(&message))
                    && show(&client.socket, place, ask)
                {
                    log::debug!("process {} has asked for a View", client.peer.pid);
                    return Next::Stay;
                }
                log::warn!(
                    "process {} of user {} broke the protocol; its session ends",
                    client.peer.pid,
                    client.peer.uid
                );
                Next::End
            }
            (Stage::Greeting(_), Ok((message, descriptors))) => {
                if let Some(ask) = Ask::decode(&message) {
                    if let Err(why) = self.answer(client, ask) {
                        let refused = Answer::Refused(why).encode();
                        // One that does not listen is not waited for.
                        let _ = control::send(&client.socket, &refused, &[]);
                    }
                    return Next::End;
                }
                match self.begin(client, &message, descriptors) {
                    Ok(stage) => {
                        client.stage = stage;
                        Next::Stay
                    }
                    Err(why) => {
                        refuse(&client.socket, &client.peer, &why);
                        Next::End
                    }
                }
            }
        }
    }

    /// Answers a program that has mapped a file. The token that it knows shows that it may ask.
    fn answer(&self, client: &Connected<F>, ask: Ask) -> Result<(), String> {
        let (Ask::Memory(token) | Ask::Sync(token)) = ask;
        let volume = self.volumes.iter().find(|volume| volume.has_mapped(token));
        let volume = volume.ok_or("it is not mapped any more")?;
        let say = |error: &dyn std::fmt::Display| error.to_string();
        if let Ask::Memory(_) = ask {
            let (memory, writable) =
                machine::mapped_memory(volume, token).map_err(|error| say(&error))?;
            let mode = if writable { Mode::Write } else { Mode::Read };
            return control::send(
                &client.socket,
                &Answer::Granted(mode).encode(),
                &[memory.as_fd()],
            )
            .map_err(|error| say(&error));
        }
        // It waits for the device, as others must not.
        let turn = Arc::clone(&self.syncs);
        if Arc::strong_count(&turn) > SYNCS_MAX {
            return Err("too many wait already".to_owned());
        }
        let (volume, socket) = (Arc::clone(volume), Arc::clone(&client.socket));
        let sync = move || {
            let answer = match volume.sync_mapped(token, now()) {
                Ok(()) => Answer::Granted(Mode::Write),
                Err(error) => Answer::Refused(error.to_string()),
            };
            drop(volume);
            let _ = control::send(&*socket, &answer.encode(), &[]);
            drop(turn);
        };
        let name = std::thread::Builder::new().name("msync".to_owned());
        name.spawn(sync).map(drop).map_err(|error| say(&error))
    }

    /// Begins the session that a client has asked for. The error is for the client.
    fn begin(
        &self,
        client: &Connected<F>,
        message: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Stage<F>, String> {
        let hello = Hello::decode(message).map_err(|error| error.to_string())?;
        let (at, volume) = self.volume(&client.peer, &hello.volume)?;
        let mut grant = self
            .rules
            .grant(&client.peer, volume.name())
            .ok_or_else(|| self.unwelcome(&client.peer))?;
        if hello.mode == Mode::Write && grant.mode == Mode::Read {
            return Err(format!(
                "user {} may only look into the volume {}; ask for it read-only (`:ro`)",
                client.peer.uid,
                volume.name()
            ));
        }
        grant.mode = hello.mode;
        let place = Revocable::default();
        match hello.kind {
            Kind::Ring => {
                let Ok([memory]) = <[OwnedFd; 1]>::try_from(descriptors) else {
                    return Err("no memory for a ring was handed over".to_owned());
                };
                let peer = client.peer.clone();
                log::info!(
                    "process {} of user {} connects to {}",
                    peer.pid,
                    peer.uid,
                    volume.name()
                );
                let socket = Arc::clone(&client.socket);
                let (view, kept) = (hello.view, place.clone());
                let newcomer = Newcomer { peer, grant, memory, socket, place: kept, view };
                self.workers[at].admit(newcomer);
                Ok(Stage::Serving { place, by: By::Worker(at) })
            }
            Kind::Mount => {
                let device = match <[OwnedFd; 1]>::try_from(descriptors) {
                    Ok([device]) if is_fuse(&device) => device,
                    _ => return Err("what was handed over is not the device of FUSE".to_owned()),
                };
                let turn = Arc::clone(&self.mounts);
                if grant.owns && Arc::strong_count(&turn) > 2 {
                    let why = "the volume has its one mount already; share it with `atoll serve`";
                    return Err(why.to_owned());
                }
                let (peer, socket) = (client.peer.clone(), Arc::clone(&client.socket));
                let name = volume.name().to_owned();
                let mount = Mount {
                    volume: Arc::clone(volume),
                    peer: peer.clone(),
                    grant,
                    single_owner: hello.single_owner,
                    device,
                    socket: Arc::clone(&socket),
                    place: place.clone(),
                    spin: self.spin,
                };
                let serve = move || {
                    log::info!("process {} of user {} mounts {name}", peer.pid, peer.uid);
                    match mount.serve() {
                        Ok(()) => log::info!("process {} has ended with {name}", peer.pid),
                        Err(why) => refuse(&socket, &peer, &why),
                    }
                    // This too the control thread sees.
                    hang_up(&socket);
                    drop(turn);
                };
                let thread = std::thread::Builder::new()
                    .name("mount".to_owned())
                    .spawn(serve)
                    .map_err(|error| format!("the server has no thread left: {error}"))?;
                Ok(Stage::Serving { place, by: By::Thread(thread) })
            }
        }
    }

    /// The volume of that name, or the only one.
    fn volume(&self, peer: &Credentials, name: &str) -> Result<(usize, &Arc<Volume<F>>), String> {
        if !self.volumes.iter().any(|volume| self.rules.grant(peer, volume.name()).is_some()) {
            return Err(self.unwelcome(peer));
        }
        if let Some(volume) =
            self.volumes.iter().enumerate().find(|(_, volume)| volume.name() == name)
        {
            return Ok(volume);
        }
        // A client that may not use a volume does not learn of it.
        let names: Vec<&str> = self
            .volumes
            .iter()
            .map(|volume| volume.name())
            .filter(|name| self.rules.grant(peer, name).is_some())
            .collect();
        match &*self.volumes {
            [only] if name.is_empty() => Ok((0, only)),
            _ if name.is_empty() => {
                Err(format!("it serves several volumes, name one of them: {}", names.join(", ")))
            }
            _ => Err(format!("it serves no volume {name}, but: {}", names.join(", "))),
        }
    }

    /// Ends a client's session, if it has one, and its connection.
    fn end(&mut self, client: Connected<F>) {
        if let Stage::Serving { place, by } = client.stage {
            hang_up(&client.socket);
            place.revoke();
            match by {
                By::Thread(thread) if thread.is_finished() => {}
                By::Thread(thread) => self.lingering.push((client.peer.uid, thread)),
                By::Worker(at) => self.workers[at].sweep(),
            }
        }
    }

    /// Ends everything and takes the file systems out.
    fn shut_down(self) -> Vec<(String, Option<F>)> {
        let SocketServer { listener, volumes, clients, workers, upkeep, .. } = self;
        drop(listener);
        for client in clients {
            if let Stage::Serving { place, .. } = client.stage {
                hang_up(&client.socket);
                place.revoke();
            }
        }
        drop(workers);
        drop(upkeep);
        let deadline = Instant::now() + SHUTDOWN;
        volumes
            .into_iter()
            .map(|mut volume| {
                let name = volume.name().to_owned();
                loop {
                    match volume.into_inner() {
                        Ok(fs) => return (name, fs),
                        Err(_) if Instant::now() > deadline => return (name, None),
                        Err(still_shared) => volume = still_shared,
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            })
            .collect()
    }
}

impl<F: FileSystem + Send> Connected<F> {
    fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Greeting(deadline) => Some(deadline),
            Stage::Serving { .. } => None,
        }
    }

    fn overdue(&self) -> Next {
        match self.deadline() {
            Some(deadline) if Instant::now() >= deadline => Next::End,
            _ => Next::Stay,
        }
    }
}

/// Gives the client of a ring, whose session is in `place`, the View that it asks for. Returns
/// whether it may: one that has a View, or takes no answers, breaks the protocol.
fn show<F: FileSystem + Send>(
    socket: &OwnedFd,
    place: &Revocable<Session<F>>,
    ViewAsk(most): ViewAsk,
) -> bool {
    let begun = place.with(|session| {
        let mode = if session.access().read_only { Mode::Read } else { Mode::Write };
        machine::open_view(session, most as usize).map(|memory| memory.map(|memory| (memory, mode)))
    });
    let sent = match begun {
        Some(Ok(Some((memory, mode)))) => {
            control::send(socket, &Answer::Granted(mode).encode(), &[memory.as_fd()])
        }
        Some(Err(error)) => {
            control::send(socket, &Answer::Refused(error.to_string()).encode(), &[])
        }
        Some(Ok(None)) | None => return false,
    };
    sent.is_ok()
}

/// Ends a connection for both sides, and for any thread of this process that waits for its end.
/// Data sent before still arrives.
pub(super) fn hang_up(socket: &OwnedFd) {
    // Fails where the other side was faster.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// Begins the session of `peer` that `grant` allows. The error is for the client.
pub(super) fn session<F: FileSystem + Send>(
    volume: &Arc<Volume<F>>,
    peer: &Credentials,
    grant: &Grant,
    identity: Identity,
) -> Result<Session<F>, String> {
    let access = Access {
        identity,
        read_only: grant.mode == Mode::Read,
        subtree: (grant.path != "/").then(|| PathBuf::from(&grant.path)),
        names_fixed: grant.owns && identity != Identity::Checked,
        adopts_offered: grant.owns,
        ..Access::default()
    };
    volume.session(peer.clone(), access).map_err(|error| {
        format!("the directory {} of the volume cannot be used: {error}", grant.path)
    })
}

/// Tells a client why it gets nothing. One that does not listen is not waited for.
pub(super) fn refuse(socket: &OwnedFd, peer: &Credentials, why: &str) {
    log::warn!("process {} of user {} is refused: {why}", peer.pid, peer.uid);
    let _ = control::send(socket, &Answer::Refused(why.to_owned()).encode(), &[]);
}
