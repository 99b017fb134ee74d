//! A volume's worker: one thread that answers the requests of all rings.
//!
//! It goes round: at most [`BATCH`] requests of each lane, then the next lane, then the next client, so
//! that nobody waits longer than for one batch of every other lane. With nothing to do it spins for
//! some time, then tells all clients that it sleeps, looks once more, and blocks until a doorbell
//! rings. From the processor of a client that waits for it, it moves away (`placement`). A client that
//! breaks the protocol loses its connection; the others notice nothing.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_transport::channel::{Limits, Request as Slot, RingKind, ServerChannel};
use atoll_vfs::server::{Caller, Identity as Named, Reply, Server, ServerOptions};
use atoll_vfs::wire::files::{O_APPEND, OpenOut, WriteOut, open_flags};
use atoll_vfs::wire::header::OutHeader;
use atoll_vfs::wire::{Extensions, Fixed, Malformed, Message, REPLY_MAX, Request};
use atoll_vfs::{Context, FileSystem, Handle, Ino, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::control::{self, Answer};
use super::listen::{hang_up, refuse, session};
use super::machine;
use super::machine::now;
use super::placement::{self, Placement};
use super::rules::Grant;
use crate::shm::{Doorbell, SharedMemory, wake};
use crate::spin::Spin;
use atoll_server::Credentials;
use atoll_server::Session;
use atoll_server::revocable::Revocable;
use atoll_server::syncs::Ask;
use atoll_server::tokens::Token;
use atoll_server::{Identity, Volume};

/// Requests of one lane that are answered before the next lane has its turn.
const BATCH: usize = 8;
/// Who has sent so many requests in a row is alone.
const ALONE: u32 = 64;
/// Rounds between two looks at who has come and gone.
const ROUNDS_MAX: u32 = 1 << 14;

/// A client that wants to be served through a ring in `memory`.
pub(super) struct Newcomer<F: FileSystem + Send> {
    pub peer: Credentials,
    pub grant: Grant,
    pub memory: OwnedFd,
    pub socket: Arc<OwnedFd>,
    pub place: Revocable<Session<F>>,
    pub view: bool,
}

struct Client<F: FileSystem + Send> {
    channel: ServerChannel<SharedMemory>,
    doorbell: Doorbell,
    /// One for each lane, since each begins with an INIT of its own.
    servers: Vec<Server>,
    newcomer: Newcomer<F>,
    held: Vec<Held>,
}

/// An answer that waits: until the kernels of mounts have forgotten what it belies, until what was asked to
/// be durable is.
struct Held {
    slot: Slot,
    reply: Vec<u8>,
    data: usize,
    waits: Arc<Waits>,
}

/// What an answer waits for, and what came of it.
struct Waits {
    left: AtomicU32,
    /// The number of an error that it has become, or 0.
    error: AtomicI32,
    bell: Doorbell,
}

impl Waits {
    /// One thing less to wait for.
    fn is_done(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.error.store(error.raw(), Ordering::Relaxed);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.bell.ring();
        }
    }

    fn is_over(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }
}

impl Held {
    /// Makes the reply what has become of it.
    fn settle(&mut self) {
        let error = self.waits.error.load(Ordering::Relaxed);
        if error != 0 {
            let header = OutHeader::load(&self.reply);
            self.reply.truncate(OutHeader::SIZE);
            OutHeader { len: OutHeader::SIZE as u32, error: -error, ..header }
                .store(&mut self.reply);
        }
    }
}

/// A sync that a request asks for.
struct Sync {
    data_only: bool,
}

/// Why a client is served no more, in words for the log.
struct Broken(&'static str);

/// The way to a volume's worker, which ends with it.
pub(super) struct Worker<F: FileSystem + Send> {
    newcomers: Option<Sender<Newcomer<F>>>,
    bell: Doorbell,
    thread: Option<JoinHandle<()>>,
}

impl<F: FileSystem + Send + 'static> Worker<F> {
    /// Starts the worker of `volume`, which looks for requests for `spin` before it sleeps.
    ///
    /// # Errors
    /// When there are no descriptors or threads left.
    pub fn start(volume: &Arc<Volume<F>>, spin: Duration) -> std::io::Result<Worker<F>> {
        let (newcomers, arriving) = channel();
        let bell = Doorbell::new()?;
        let (volume, woken) = (Arc::clone(volume), bell.clone());
        let thread = std::thread::Builder::new()
            .name("worker".to_owned())
            .spawn(move || work(&volume, &arriving, &woken, spin))?;
        Ok(Worker { newcomers: Some(newcomers), bell, thread: Some(thread) })
    }

    /// Has the worker begin a session; it tells the client.
    pub fn admit(&self, newcomer: Newcomer<F>) {
        if let Some(newcomers) = &self.newcomers {
            // It takes them as long as this value lives.
            let _ = newcomers.send(newcomer);
        }
        self.bell.ring();
    }

    /// Has the worker let go of the clients whose session has been revoked.
    pub fn sweep(&self) {
        self.bell.ring();
    }
}

impl<F: FileSystem + Send> Drop for Worker<F> {
    fn drop(&mut self) {
        self.newcomers = None;
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic there has been caught, or is ours: its clients are hung up by their sockets.
            let _ = thread.join();
        }
    }
}

fn work<F: FileSystem + Send + 'static>(
    volume: &Arc<Volume<F>>,
    arriving: &Receiver<Newcomer<F>>,
    bell: &Doorbell,
    spin: Duration,
) {
    let mut clients: Vec<Client<F>> = Vec::new();
    let mut message = Vec::new();
    let mut round = Round {
        spin: Spin::new(),
        limit: spin,
        placement: Placement::new(),
        latest: Latest::default(),
    };
    loop {
        loop {
            match arriving.try_recv() {
                Ok(newcomer) => clients.extend(begin(volume, newcomer)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        clients.retain(|client| client.newcomer.place.with(|_| ()).is_some());
        let longest = clients.iter().map(|client| client.channel.layout().message_max()).max();
        message.resize(longest.unwrap_or(0), 0);
        if poll_rings(&mut clients, &mut message, (volume, bell), &mut round) {
            sleep(&mut clients, bell);
            round.spin.begin();
        }
    }
}

/// How the worker waits, and where.
struct Round {
    spin: Spin,
    /// How long it looks for requests before it sleeps.
    limit: Duration,
    placement: Placement,
    latest: Latest,
}

/// From whom the latest requests came. A sync of one who has been alone for a while holds up nobody, and is
/// made at once: the syncer would have to be woken, and to wake this thread. It is so of lanes for one
/// producer only: who comes behind the sync is then the one who asked for it.
#[derive(Debug, Default)]
struct Latest {
    /// The client's socket, and its lane.
    from: Option<(RawFd, u32)>,
    /// How many in a row, up to a bound.
    requests: u32,
}

impl Latest {
    /// Takes note of a request.
    fn note(&mut self, from: (RawFd, u32)) {
        if self.from == Some(from) {
            self.requests = (self.requests + 1).min(ALONE);
        } else {
            (self.from, self.requests) = (Some(from), 1);
        }
    }

    /// Whether the one whose request was noted last is alone.
    fn is_alone(&self) -> bool {
        self.requests == ALONE
    }
}

/// Answers until nothing has come for as long as `round` says, and then returns true, but only for so
/// many rounds, since there may be newcomers.
fn poll_rings<F: FileSystem + Send>(
    clients: &mut Vec<Client<F>>,
    message: &mut [u8],
    waiting: (&Volume<F>, &Doorbell),
    round: &mut Round,
) -> bool {
    for _ in 0..ROUNDS_MAX {
        if clients.is_empty() {
            return true;
        }
        let mut any = false;
        clients.retain_mut(|client| match client.turn(message, waiting, &mut round.latest) {
            Ok(answered) => {
                any |= answered;
                true
            }
            Err(Broken(why)) => {
                let peer = &client.newcomer.peer;
                log::warn!("process {} of user {} {why}; its session ends", peer.pid, peer.uid);
                // The control thread ends the session.
                hang_up(&client.newcomer.socket);
                false
            }
        });
        if any {
            if round.placement.served(round.spin.gave_way(), Instant::now) {
                // Where it may not move it stays.
                let _ = placement::leave();
            }
            round.spin.begin();
        } else if round.limit.is_zero() || !round.spin.turn(round.limit) {
            return true;
        }
    }
    false
}

/// Blocks until somebody rings, unless a request has come meanwhile.
fn sleep<F: FileSystem + Send>(clients: &mut [Client<F>], bell: &Doorbell) {
    // All are told: whoever submits from here on rings.
    let mut quiet = true;
    for client in clients.iter_mut() {
        quiet &= client.channel.fall_asleep();
    }
    if quiet {
        let mut watched = vec![PollFd::new(bell.as_fd(), PollFlags::POLLIN)];
        watched.extend(clients.iter().map(|c| PollFd::new(c.doorbell.as_fd(), PollFlags::POLLIN)));
        // Whatever it says, the next round looks at everything.
        let _ = nix::poll::poll(&mut watched, PollTimeout::NONE);
    }
    bell.silence();
    for client in clients {
        client.channel.wake_up();
        client.doorbell.silence();
    }
}

/// Begins a session and tells the client.
fn begin<F: FileSystem + Send + 'static>(
    volume: &Arc<Volume<F>>,
    newcomer: Newcomer<F>,
) -> Option<Client<F>> {
    let attempt = |newcomer: &Newcomer<F>| -> std::result::Result<_, String> {
        let limits = Limits::default();
        let memory = newcomer.memory.try_clone().map_err(|error| error.to_string())?;
        let memory = SharedMemory::attach(memory, limits.total)
            .map_err(|error| format!("the memory cannot be used: {error}"))?;
        let channel = ServerChannel::attach(memory, &limits).map_err(|error| error.to_string())?;
        let doorbell = Doorbell::new().map_err(|error| error.to_string())?;
        let grant = &newcomer.grant;
        let root = newcomer.peer.uid == 0;
        let identity = if root { Identity::Caller } else { Identity::Peer };
        let mut session = session(volume, &newcomer.peer, grant, identity)?;
        let view = match newcomer.view {
            true => {
                machine::open_view(&mut session, usize::MAX).map_err(|error| error.to_string())?
            }
            false => None,
        };
        session.carried();
        if !newcomer.place.begin(session) {
            return Err("the server shuts down".to_owned());
        }
        let granted = Answer::Granted(grant.mode).encode();
        let mut handed = vec![doorbell.as_fd()];
        handed.extend(view.as_ref().map(AsFd::as_fd));
        control::send(&*newcomer.socket, &granted, &handed).map_err(|error| error.to_string())?;
        Ok((channel, doorbell))
    };
    match attempt(&newcomer) {
        Ok((channel, doorbell)) => {
            let lanes = channel.layout().config().lanes;
            let servers = (0..lanes).map(|_| Server::new(ServerOptions::default())).collect();
            Some(Client { channel, doorbell, servers, newcomer, held: Vec::new() })
        }
        Err(why) => {
            refuse(&newcomer.socket, &newcomer.peer, &why);
            hang_up(&newcomer.socket);
            None
        }
    }
}

/// Answers what only sessions know, and has the codec's server answer the rest. A reply that is due when
/// everything so far is durable comes with whether timestamps are to be, too; unless the client is `alone`.
fn answer<F: FileSystem + Send>(
    server: &mut Server,
    (session, alone): (&mut Session<F>, bool),
    caller: &Caller,
    message: &[u8],
    data: &[u8],
    reply: &mut [u8; REPLY_MAX],
    room: &mut [u8],
) -> std::result::Result<(Reply, Option<Sync>), Malformed> {
    let message = Message::decode(message, data)?;
    let header = &message.header;
    let cx = Context { uid: header.uid, gid: header.gid, now: caller.now };
    let ask = match &message.request {
        Ok(request) if !alone && session.volume().has_syncer() && server.agreed().is_some() => {
            Ask::of(request)
        }
        _ => None,
    };
    let mut sync = None;
    let result = match &message.request {
        _ if let Some(ask) = ask => {
            session.prepare_sync(&cx, Ino(header.nodeid), ask).map(|data_only| {
                sync = Some(Sync { data_only });
                0
            })
        }
        Ok(Request::Adopt(args)) => session.adopt(Token(args.token)).map(|(_, handle)| {
            let out = OpenOut { fh: handle.0, ..OpenOut::default() };
            out.store(&mut reply[OutHeader::SIZE..]);
            OpenOut::SIZE
        }),
        Ok(Request::AdoptOpen(args)) => {
            session.adopt_open(Ino(header.nodeid), open_flags(args.flags)).map(|(_, handle)| {
                let out = OpenOut { fh: handle.0, ..OpenOut::default() };
                out.store(&mut reply[OutHeader::SIZE..]);
                OpenOut::SIZE
            })
        }
        // It says at each write whether it is to be at the end, as the kernel does.
        Ok(Request::Write { args, data })
            if args.flags & O_APPEND != 0
                && server.agreed().is_some_and(|agreed| agreed.contains(Extensions::APPEND)) =>
        {
            session.append(&cx, Ino(header.nodeid), Handle(args.fh), data).map(|written| {
                let body = &mut reply[OutHeader::SIZE..];
                WriteOut { size: written.len as u32, padding: 0 }.store(body);
                written.offset.store(&mut body[WriteOut::SIZE..]);
                WriteOut::SIZE + u64::SIZE
            })
        }
        _ => {
            let answered = server.answer(session, caller, &message, reply, room)?;
            return Ok((answered, None));
        }
    };
    let (body, error) = result.map_or_else(|error| (0, -error.raw()), |body| (body, 0));
    let len = OutHeader::SIZE + body;
    OutHeader { len: len as u32, error, unique: header.unique }.store(reply);
    Ok((Reply { message: len, data: 0 }, sync))
}

impl<F: FileSystem + Send> Client<F> {
    /// Gives each lane its batch. Returns whether there was anything.
    fn turn(
        &mut self,
        message: &mut [u8],
        (volume, bell): (&Volume<F>, &Doorbell),
        latest: &mut Latest,
    ) -> std::result::Result<bool, Broken> {
        let mut any = false;
        let socket = self.newcomer.socket.as_raw_fd();
        let serial = self.channel.layout().config().ring == RingKind::Spsc;
        if !self.held.is_empty() {
            for mut held in self.held.extract_if(.., |held| held.waits.is_over()) {
                any = true;
                held.settle();
                self.channel.complete(held.slot, &held.reply, held.data, wake);
            }
        }
        for (lane, server) in (0..).zip(&mut self.servers) {
            for _ in 0..BATCH {
                let request =
                    self.channel.poll(lane, message).map_err(|_| Broken("broke the ring"))?;
                let Some(request) = request else { break };
                any = true;
                latest.note((socket, lane));
                let alone = serial && latest.is_alone() && self.held.is_empty();
                let mut reply = [0; REPLY_MAX];
                // SAFETY: one request is served at a time, whose two places do not overlap; both
                // slices end with the call. The server passes data on and does not look at it.
                let (data, room) =
                    unsafe { (self.channel.data(&request), self.channel.room(&request)) };
                let caller = Caller { identity: Named::FromHeader, now: now() };
                let message = &message[..request.message_len()];
                let served = catch_unwind(AssertUnwindSafe(|| {
                    self.newcomer.place.with(|session| {
                        let served = (&mut *session, alone);
                        let answered =
                            answer(server, served, &caller, message, data, &mut reply, room);
                        answered.map(|answered| (answered, session.take_needs()))
                    })
                }));
                let ((answered, sync), ticket) = match served {
                    Ok(Some(Ok(answered))) => answered,
                    Ok(Some(Err(_))) => return Err(Broken("sent no FUSE message")),
                    Ok(None) => return Err(Broken("was not expected any more")),
                    Err(_) => return Err(Broken("met an internal error")),
                };
                if answered.message > self.channel.layout().message_max() {
                    return Err(Broken("left no place for an answer"));
                }
                let reply = &reply[..answered.message];
                let left = u32::from(ticket.is_some()) + u32::from(sync.is_some());
                if left == 0 {
                    self.channel.complete(request, reply, answered.data, wake);
                    continue;
                }
                let (left, error) = (AtomicU32::new(left), AtomicI32::new(0));
                let waits = Arc::new(Waits { left, error, bell: bell.clone() });
                let (reply, data) = (reply.to_vec(), answered.data);
                self.held.push(Held { slot: request, reply, data, waits: Arc::clone(&waits) });
                if let Some(ticket) = ticket {
                    let waits = Arc::clone(&waits);
                    volume.gate().after(ticket, move || waits.is_done(Ok(())));
                }
                if let Some(Sync { data_only }) = sync {
                    volume.sync_later(data_only, Box::new(move |outcome| waits.is_done(outcome)));
                }
            }
        }
        Ok(any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone() {
        let mut latest = Latest::default();
        assert!(!latest.is_alone());
        for request in 1..3 * ALONE {
            latest.note((7, 0));
            assert_eq!(latest.is_alone(), request >= ALONE);
        }
        for other in [(7, 1), (8, 0)] {
            latest.note(other);
            assert!(!latest.is_alone());
            (0..ALONE).for_each(|_| latest.note(other));
            assert!(latest.is_alone());
        }
    }
}
