//! A volume's worker: one thread that answers the requests of all rings.
//!
//! It goes round: a batch of requests of each lane ([`Lanes::turn`]), then the next client, so that
//! nobody waits longer than for one batch of every other lane. With nothing to do it spins for some
//! time, then tells all clients that it sleeps, looks once more, and blocks until a doorbell rings.
//! From the processor of a client that waits for it, it moves away (`placement`). A client that
//! breaks the protocol loses its connection; the others notice nothing.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_server::revocable::Revocable;
use atoll_server::{Credentials, Identity, Session, Volume};
use atoll_transport::channel::Limits;
use atoll_vfs::FileSystem;
use rustix::event::{PollFd, PollFlags, poll};

use super::control::{self, Answer};
use super::lanes::{Broken, Lanes, Latest};
use super::listen::{hang_up, refuse, session};
use super::machine;
use super::placement::{self, Placement};
use super::rules::Grant;
use crate::shm::{Doorbell, SharedMemory};
use crate::spin::Spin;

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
    lanes: Lanes,
    doorbell: Doorbell,
    newcomer: Newcomer<F>,
}

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
    let mut round = Round {
        spin: Spin::new(),
        limit: spin,
        placement: Placement::new(),
        latest: Latest::default(),
    };
    loop {
        loop {
            match arriving.try_recv() {
                Ok(newcomer) => clients.extend(begin(volume, bell, newcomer)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        clients.retain(|client| client.newcomer.place.with(|_| ()).is_some());
        if poll_rings(&mut clients, &mut round) {
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

/// Answers until nothing has come for as long as `round` says, and then returns true, but only for
/// so many rounds, since there may be newcomers.
fn poll_rings<F: FileSystem + Send>(clients: &mut Vec<RingClient<F>>, round: &mut Round) -> bool {
    for _ in 0..ROUNDS_MAX {
        if clients.is_empty() {
            return true;
        }
        let mut any = false;
        clients.retain_mut(|RingClient { lanes, newcomer, .. }| {
            match lanes.turn(&newcomer.place, &mut round.latest) {
                Ok(answered) => {
                    any |= answered;
                    true
                }
                Err(Broken(why)) => {
                    let peer = &newcomer.peer;
                    log::warn!("process {} of user {} {why}; its session ends", peer.pid, peer.uid);
                    // The control thread ends the session.
                    hang_up(&newcomer.socket);
                    false
                }
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
    // All clients see that the worker sleeps: one that submits from here on rings.
    let mut quiet = true;
    for client in clients.iter_mut() {
        quiet &= client.lanes.fall_asleep();
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
        client.lanes.wake_up();
        client.doorbell.silence();
    }
}

/// Begins a session and tells the client.
fn begin<F: FileSystem + Send + 'static>(
    volume: &Arc<Volume<F>>,
    bell: &Doorbell,
    newcomer: Newcomer<F>,
) -> Option<RingClient<F>> {
    let attempt = |newcomer: &Newcomer<F>| -> Result<_, String> {
        let memory = newcomer.memory.try_clone().map_err(|error| error.to_string())?;
        let memory = SharedMemory::attach(memory, Limits::default().total)
            .map_err(|error| format!("the memory cannot be used: {error}"))?;
        let lanes = Lanes::attach(memory, newcomer.socket.as_raw_fd(), bell.clone())
            .map_err(|error| error.to_string())?;
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
        Ok((lanes, doorbell))
    };
    match attempt(&newcomer) {
        Ok((lanes, doorbell)) => Some(RingClient { lanes, doorbell, newcomer }),
        Err(why) => {
            refuse(&newcomer.socket, &newcomer.peer, &why);
            hang_up(&newcomer.socket);
            None
        }
    }
}
