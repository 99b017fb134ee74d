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
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_server::revocable::Revocable;
use atoll_server::route::carrier::{Carrier, Held, Incoming};
use atoll_server::route::router::Router;
use atoll_server::route::router::{Ended, serve_next};
use atoll_server::{Credentials, Identity, Session, Volume};
use atoll_transport::channel::{Limits, Request as Slot, RingKind, ServerChannel};
use atoll_vfs::server::ServerOptions;
use atoll_vfs::wire::Fixed;
use atoll_vfs::wire::header::OutHeader;
use atoll_vfs::{FileSystem, Result};
use rustix::event::{PollFd, PollFlags, poll};

use super::control::{self, Answer};
use super::listen::{hang_up, refuse, session};
use super::machine;
use super::placement::{self, Placement};
use super::rules::Grant;
use crate::shm::{Doorbell, SharedMemory, wake};
use crate::spin::Spin;

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

struct RingClient<F: FileSystem + Send> {
    channel: ServerChannel<SharedMemory>,
    doorbell: Doorbell,
    /// One for each lane, since each begins with an INIT of its own.
    routers: Vec<Router>,
    newcomer: Newcomer<F>,
    held: Vec<Waiting>,
}

/// An answer that waits.
struct Waiting {
    slot: Slot,
    reply: Vec<u8>,
    data: usize,
    outcome: Arc<Outcome>,
}

/// What the wait of an answer has come to.
struct Outcome {
    /// The number of the error that the answer has become, or 0; before it has come to anything [`WAITS`].
    error: AtomicI32,
    bell: Doorbell,
}

/// No number of an error.
const WAITS: i32 = -1;

impl Outcome {
    fn is_known(&self) -> bool {
        self.error.load(Ordering::Acquire) != WAITS
    }
}

/// What has the worker look for the outcome.
struct Release(Arc<Outcome>);

impl Held for Release {
    fn release(self: Box<Self>, outcome: Result<()>) -> bool {
        let error = outcome.map_or_else(|error| error.raw(), |()| 0);
        self.0.error.store(error, Ordering::Release);
        self.0.bell.ring();
        true
    }
}

impl Waiting {
    /// Makes the reply what has become of it.
    fn settle(&mut self) {
        let error = self.outcome.error.load(Ordering::Relaxed);
        if error != 0 {
            let header = OutHeader::load(&self.reply);
            self.reply.truncate(OutHeader::SIZE);
            OutHeader { len: OutHeader::SIZE as u32, error: -error, ..header }
                .store(&mut self.reply);
            self.data = 0;
        }
    }
}

/// One lane of a client's ring, while it has its turn.
struct Lane<'a> {
    channel: &'a mut ServerChannel<SharedMemory>,
    lane: u32,
    message: &'a mut [u8],
    held: &'a mut Vec<Waiting>,
    bell: &'a Doorbell,
    latest: &'a mut Latest,
    socket: RawFd,
}

impl Carrier for Lane<'_> {
    type Slot = Slot;
    type Error = Broken;

    #[inline]
    fn take(&mut self) -> std::result::Result<Option<Slot>, Broken> {
        let slot =
            self.channel.poll(self.lane, self.message).map_err(|_| Broken("broke the ring"))?;
        if slot.is_some() {
            self.latest.note((self.socket, self.lane));
        }
        Ok(slot)
    }

    #[inline]
    fn incoming(&mut self, slot: &Slot) -> Incoming<'_> {
        // SAFETY: one request is served at a time, whose two places do not overlap; both
        // slices end with the call. The router passes data on and does not look at it.
        let (data, room) = unsafe { (self.channel.data(slot), self.channel.room(slot)) };
        Incoming { message: &self.message[..slot.message_len()], data, room }
    }

    #[inline]
    fn is_alone(&self) -> bool {
        let serial = self.channel.layout().config().ring == RingKind::Spsc;
        serial && self.latest.is_alone() && self.held.is_empty()
    }

    #[inline]
    fn answer(
        &mut self,
        slot: Slot,
        message: &[u8],
        data: usize,
    ) -> std::result::Result<bool, Broken> {
        if message.len() > self.channel.layout().message_max() {
            return Err(Broken("left no place for an answer"));
        }
        self.channel.complete(slot, message, data, wake);
        Ok(true)
    }

    fn hold(&mut self, slot: Slot, message: &[u8], data: usize) -> Box<dyn Held> {
        let outcome = Outcome { error: AtomicI32::new(WAITS), bell: self.bell.clone() };
        let outcome = Arc::new(outcome);
        let reply = message.to_vec();
        self.held.push(Waiting { slot, reply, data, outcome: Arc::clone(&outcome) });
        Box::new(Release(outcome))
    }
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
    let mut clients: Vec<RingClient<F>> = Vec::new();
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
        if poll_rings(&mut clients, &mut message, bell, &mut round) {
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
    clients: &mut Vec<RingClient<F>>,
    message: &mut [u8],
    bell: &Doorbell,
    round: &mut Round,
) -> bool {
    for _ in 0..ROUNDS_MAX {
        if clients.is_empty() {
            return true;
        }
        let mut any = false;
        clients.retain_mut(|client| match client.turn(message, bell, &mut round.latest) {
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
fn sleep<F: FileSystem + Send>(clients: &mut [RingClient<F>], bell: &Doorbell) {
    // All are told: whoever submits from here on rings.
    let mut quiet = true;
    for client in clients.iter_mut() {
        quiet &= client.channel.fall_asleep();
    }
    if quiet {
        let mut watched = vec![PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)];
        watched.extend(
            clients.iter().map(|c| PollFd::from_borrowed_fd(c.doorbell.as_fd(), PollFlags::IN)),
        );
        // Whatever it says, the next round looks at everything.
        let _ = poll(&mut watched, None);
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
) -> Option<RingClient<F>> {
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
            let routers = (0..lanes).map(|_| Router::new(ServerOptions::default())).collect();
            Some(RingClient { channel, doorbell, routers, newcomer, held: Vec::new() })
        }
        Err(why) => {
            refuse(&newcomer.socket, &newcomer.peer, &why);
            hang_up(&newcomer.socket);
            None
        }
    }
}

impl<F: FileSystem + Send> RingClient<F> {
    /// Gives each lane its batch. Returns whether there was anything.
    fn turn(
        &mut self,
        message: &mut [u8],
        bell: &Doorbell,
        latest: &mut Latest,
    ) -> std::result::Result<bool, Broken> {
        let RingClient { channel, routers, newcomer, held, .. } = self;
        let mut any = false;
        if !held.is_empty() {
            for mut waiting in held.extract_if(.., |waiting| waiting.outcome.is_known()) {
                any = true;
                waiting.settle();
                if waiting.reply.len() > channel.layout().message_max() {
                    return Err(Broken("left no place for an answer"));
                }
                channel.complete(waiting.slot, &waiting.reply, waiting.data, wake);
            }
        }
        let socket = newcomer.socket.as_raw_fd();
        for (lane, router) in (0..).zip(routers) {
            let mut lane = Lane { channel, lane, message, held, bell, latest, socket };
            for _ in 0..BATCH {
                let served = catch_unwind(AssertUnwindSafe(|| {
                    serve_next(&mut lane, router, &newcomer.place)
                }));
                match served.map_err(|_| Broken("met an internal error"))? {
                    Ok(true) => any = true,
                    Ok(false) => break,
                    Err(Ended::Carrier(broken)) => return Err(broken),
                    Err(Ended::Malformed) => return Err(Broken("sent no FUSE message")),
                    Err(Ended::Revoked) => return Err(Broken("was not expected any more")),
                    Err(Ended::Destroyed) => {}
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
