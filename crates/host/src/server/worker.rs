//! A volume's worker: one thread that answers the requests of all rings.
//!
//! It goes round: some requests of a client ([`Lanes::turn`]), then the next client; [`Share`] says
//! how many, so that users share its time. One whose rate is limited, and used up, is left alone.
//! With nothing to do it spins for some time, then tells all clients that it sleeps, looks once
//! more, and blocks until a doorbell rings.
//! From the processor of a client that waits for it, it moves away (`placement`). A client that
//! breaks the protocol loses its connection; the others notice nothing.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_server::host::Host;
use atoll_server::rights::accounts::{Account, Charge, Resource};
use atoll_server::rights::rates::Meter;
use atoll_server::route::share::{Served, Share};
use atoll_server::{Credentials, Identity, Volume};
use atoll_transport::channel::Limits;
use atoll_vfs::{Errno, FileSystem};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::arrivals::{self, Arrivals, Arriving};
use super::bells::ClientBell;
use super::control::{self, Answer};
use super::granted::session;
use super::lanes::{self, Broken, Lanes, Latest};
use super::machine;
use super::newcomer::{Kept, Newcomer};
use super::placement::{self, Placement};
use super::porter::{hang_up, refuse};
use crate::medium::Waits;
use crate::shm::{Doorbell, SharedMemory};
use crate::spin::Spin;

/// Rounds between two looks at one of those whose memory is not fixed yet.
const ROUNDS_OF_ARRIVALS: u32 = 16;

struct RingClient<F: FileSystem + Send> {
    lanes: Lanes,
    newcomer: Newcomer<F>,
    /// Measures the client's user, if its rate is limited.
    meter: Option<Arc<Meter>>,
    /// It is not looked at before.
    resumes: Option<Duration>,
    _charges: [Option<Charge>; 2],
    /// Dropped last, when nothing else has the memory.
    kept: Kept,
}

impl<F: FileSystem + Send> RingClient<F> {
    /// A client that has a session.
    fn new(lanes: Lanes, newcomer: Newcomer<F>, _charges: [Option<Charge>; 2], kept: Kept) -> Self {
        let meter = newcomer.place.with(|session| session.meter().cloned()).flatten();
        RingClient { lanes, newcomer, meter, resumes: None, _charges, kept }
    }
}

/// Calls the worker to look at who has come and gone: said for one that is awake, and for one that
/// sleeps.
#[derive(Clone)]
struct Call {
    called: Arc<AtomicBool>,
    /// Set each time that the worker looks.
    looked: Arc<AtomicBool>,
    bell: Doorbell,
}

impl Call {
    fn new() -> std::io::Result<Call> {
        Ok(Call { called: Arc::default(), looked: Arc::default(), bell: Doorbell::new()? })
    }

    fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// The worker is about to look.
    fn answer(&self) {
        self.called.swap(false, Ordering::AcqRel);
        self.looked.store(true, Ordering::Relaxed);
    }

    /// Whether the worker has looked since this was asked last.
    fn has_looked(&self) -> bool {
        self.looked.swap(false, Ordering::Relaxed)
    }
}

/// The way to a volume's worker, which ends with it.
pub(super) struct Worker<F: FileSystem + Send> {
    newcomers: Option<Sender<Newcomer<F>>>,
    call: Call,
    waits: Waits,
    thread: Option<JoinHandle<()>>,
}

impl<F: FileSystem + Send + 'static> Worker<F> {
    /// Starts the worker of `volume`, which looks for requests for `spin` before it sleeps.
    ///
    /// # Errors
    /// When there are no descriptors or threads left.
    pub fn start(volume: &Arc<Volume<F>>, spin: Duration) -> std::io::Result<Worker<F>> {
        let (newcomers, arriving) = channel();
        let call = Call::new()?;
        let (volume, called) = (Arc::clone(volume), call.clone());
        let waits = Waits::default();
        let own = waits.clone();
        let work = move || {
            own.be_own();
            work(&volume, &arriving, &called, spin);
        };
        let thread = std::thread::Builder::new().name("worker".to_owned()).spawn(work)?;
        Ok(Worker { newcomers: Some(newcomers), call, waits, thread: Some(thread) })
    }

    /// Has the worker begin a session; it tells the client.
    pub fn admit(&self, newcomer: Newcomer<F>) {
        if let Some(newcomers) = &self.newcomers {
            // It takes them as long as this value lives.
            let _ = newcomers.send(newcomer);
        }
        self.call.call();
    }

    /// Whether it has looked around since this was asked last. It does when it is called.
    pub fn lives(&self) -> bool {
        self.call.has_looked()
    }

    /// Whether it waits for the medium just now: it syncs for a client that is alone.
    pub fn waits(&self) -> bool {
        self.waits.wait()
    }

    /// Called, it has the worker let go of the clients whose session has been revoked.
    pub fn sweep(&self) -> impl FnOnce() + Send + 'static {
        let call = self.call.clone();
        move || call.call()
    }
}

impl<F: FileSystem + Send> Drop for Worker<F> {
    fn drop(&mut self) {
        self.newcomers = None;
        self.call.call();
        if let Some(thread) = self.thread.take() {
            // A panic there has been caught, or is ours: its clients are hung up by their sockets.
            let _ = thread.join();
        }
    }
}

fn work<F: FileSystem + Send + 'static>(
    volume: &Arc<Volume<F>>,
    arriving: &Receiver<Newcomer<F>>,
    call: &Call,
    spin: Duration,
) {
    let mut clients: Share<RingClient<F>> = Share::default();
    let mut arrivals = Arrivals::default();
    let mut round = Round {
        spin: Spin::new(),
        limit: spin,
        placement: Placement::new(),
        latest: Latest::default(),
        host: Arc::clone(volume.host()),
    };
    loop {
        // Before the looks: a call that this takes away has sent what they find.
        call.answer();
        loop {
            match arriving.try_recv() {
                Ok(newcomer) => match begin(volume, &call.bell, newcomer) {
                    Some(Begun::Serving(client)) => {
                        clients.begin(client.newcomer.peer.uid, *client);
                    }
                    Some(Begun::Arriving(arriving)) => arrivals.add(*arriving),
                    None => {}
                },
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        clients.retain(|client| client.newcomer.place.with(|_| ()).is_some());
        // Sessions of rings begin here, and of those that have ended the worker is told.
        round.latest.shared = volume.is_shared();
        for arriving in arrivals.ready() {
            if let Some(client) = arrive(&call.bell, arriving) {
                clients.begin(client.newcomer.peer.uid, client);
            }
        }
        if poll_rings(&mut clients, &mut arrivals, &mut round, &call.called) {
            sleep(&mut clients, &arrivals, &round, &call.bell);
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
    /// By whose uptime it shares time.
    host: Arc<dyn Host>,
}

/// Answers until nothing has come for as long as `round` says, and then returns true; or until it
/// is `called`.
fn poll_rings<F: FileSystem + Send>(
    clients: &mut Share<RingClient<F>>,
    arrivals: &mut Arrivals<F>,
    round: &mut Round,
    called: &AtomicBool,
) -> bool {
    let mut rounds = 0u32;
    while !called.load(Ordering::Acquire) {
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(ROUNDS_OF_ARRIVALS) && arrivals.look() {
            return false;
        }
        if clients.is_empty() {
            return true;
        }
        let Round { spin, placement, latest, host, .. } = round;
        let clock = || host.uptime();
        let serve = |client: &mut RingClient<F>, most: u32| {
            let served = turn(client, most, latest, clock);
            // Of the turns of a round only the first may be of a request that came while another
            // thread had this processor.
            if matches!(served, Served::Units(1..)) {
                if placement.served(spin.gives_way(), Instant::now) {
                    // Where it may not move it stays.
                    let _ = placement::leave();
                    spin.moved();
                }
                spin.begin();
            }
            served
        };
        if clients.round(clock, serve) {
            round.spin.begin();
        } else if round.limit.is_zero() || !round.spin.turn(round.limit) {
            return true;
        }
    }
    false
}

/// Serves a client for at most so many units of work.
fn turn<F: FileSystem + Send>(
    client: &mut RingClient<F>,
    most: u32,
    latest: &mut Latest,
    clock: impl Fn() -> Duration,
) -> Served {
    if let Some(meter) = &client.meter {
        let now = clock();
        if client.resumes.is_some_and(|resumes| now < resumes) {
            return Served::Units(0);
        }
        let wait = meter.wait(now);
        client.resumes = (!wait.is_zero()).then(|| now + wait);
        if client.resumes.is_some() {
            return Served::Units(0);
        }
    }
    let RingClient { lanes, newcomer, .. } = client;
    match lanes.turn(&newcomer.place, latest, most) {
        Ok(turn) => {
            if let Some(meter) = &client.meter {
                meter.note(turn.work);
            }
            Served::Units(turn.units)
        }
        Err(Broken(why)) => {
            let Credentials { pid, uid, .. } = &newcomer.peer;
            log::warn!(user = *uid; "process {pid} of user {uid} {why}; its session ends");
            // The control thread ends the session.
            newcomer.porter.hang_up(&newcomer.socket);
            Served::Gone
        }
    }
}

/// Blocks until somebody rings, or a client may be served again, unless a request has come
/// meanwhile.
fn sleep<F: FileSystem + Send>(
    clients: &mut Share<RingClient<F>>,
    arrivals: &Arrivals<F>,
    round: &Round,
    bell: &Doorbell,
) {
    // All clients see that the worker sleeps: one that submits from here on rings. One that is left
    // alone need not.
    let mut quiet = true;
    for client in clients.clients().filter(|client| client.resumes.is_none()) {
        quiet &= client.lanes.fall_asleep();
    }
    if quiet {
        let resumes = clients.clients().filter_map(|client| client.resumes).min();
        let wait = resumes.map(|at| at.saturating_sub(round.host.uptime()));
        let wait = wait.into_iter().chain(arrivals.sleep()).min();
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let mut watched = vec![PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)];
        let bells = clients.clients().filter(|client| client.resumes.is_none());
        let bells = bells.filter_map(|client| client.kept.bell());
        watched.extend(bells.map(|bell| PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)));
        watched.extend(
            arrivals.doorbells().map(|bell| PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)),
        );
        // The next round looks at everything, whatever this says.
        let _ = poll(&mut watched, wait.as_ref());
        arrivals.silence();
    }
    bell.silence();
    for client in clients.clients() {
        client.lanes.wake_up();
        client.kept.bell().map(ClientBell::silence);
    }
}

/// A client that has a session.
enum Begun<F: FileSystem + Send> {
    Serving(Box<RingClient<F>>),
    /// When its memory is fixed.
    Arriving(Box<Arriving<F>>),
}

/// Begins a session and tells the client.
fn begin<F: FileSystem + Send + 'static>(
    volume: &Arc<Volume<F>>,
    bell: &Doorbell,
    newcomer: Newcomer<F>,
) -> Option<Begun<F>> {
    let attempt = |newcomer: &Newcomer<F>| -> Result<_, String> {
        // The client is charged at once for what it takes in any case, so that it hears the reason.
        let charge = charge(newcomer, lanes::CLIENT_BYTES)?;
        let memory = newcomer.memory.try_clone().map_err(|error| error.to_string())?;
        let memory = SharedMemory::attach(memory, Limits::default().total)
            .map_err(|error| format!("the memory cannot be used: {error}"))?;
        let lanes = if newcomer.trusted || memory.is_fixed() {
            Some(attach(memory.clone(), newcomer, bell)?)
        } else if memory.never_fixed() || !memory.is_whole() {
            return Err(arrivals::UNFIT.to_owned());
        } else {
            arrivals::front(&newcomer.memory).map_err(|error| error.to_string())?;
            None
        };
        let (bell, doorbell) = ClientBell::new().map_err(|error| error.to_string())?;
        let grant = &newcomer.grant;
        let root = newcomer.peer.uid == 0;
        let identity = if root { Identity::Caller } else { Identity::Peer };
        let mut session =
            session(volume, &newcomer.peer, grant, identity, newcomer.account.as_ref())?;
        let view = match newcomer.view.then(|| machine::open_view(&mut session, usize::MAX)) {
            Some(Ok(view)) => view,
            // It goes on without.
            None | Some(Err(Errno::ENOMEM | Errno::ENOSYS)) => None,
            Some(Err(error)) => return Err(error.to_string()),
        };
        session.carried();
        if !newcomer.place.begin(session) {
            return Err("its connection has ended".to_owned());
        }
        // The worker keeps no descriptor of what the client can have watched.
        tell(newcomer, doorbell, view);
        Ok((memory, lanes, bell, charge))
    };
    match attempt(&newcomer) {
        Ok((memory, Some((lanes, of_lanes)), bell, charge)) => {
            let (charges, kept) = ([charge, of_lanes], Kept::new(memory, bell, &newcomer.remains));
            let client = RingClient::new(lanes, newcomer, charges, kept);
            Some(Begun::Serving(Box::new(client)))
        }
        Ok((memory, None, bell, charge)) => {
            let arriving = Arriving::new(memory, bell, newcomer, charge);
            Some(Begun::Arriving(Box::new(arriving)))
        }
        Err(why) => {
            let (socket, peer) = (Arc::clone(&newcomer.socket), newcomer.peer);
            newcomer.porter.run(move || {
                refuse(&socket, &peer, &why);
                hang_up(&socket);
            });
            let _ = newcomer.remains.send(Box::new(newcomer.memory));
            None
        }
    }
}

/// Hands a client its doorbell and, if it has one, its View: with them it has a session.
fn tell<F: FileSystem + Send>(newcomer: &Newcomer<F>, doorbell: Doorbell, view: Option<OwnedFd>) {
    let (socket, peer) = (Arc::clone(&newcomer.socket), newcomer.peer.clone());
    let granted = Answer::Granted(newcomer.grant.mode).encode();
    newcomer.porter.run(move || {
        let mut handed = vec![doorbell.as_fd()];
        handed.extend(view.as_ref().map(AsFd::as_fd));
        if let Err(error) = control::send(&*socket, &granted, &handed) {
            refuse(&socket, &peer, &error.to_string());
            // The control thread ends the session.
            hang_up(&socket);
        }
    });
}

/// The lanes in a client's memory, and what they take of its user's share.
fn attach<F: FileSystem + Send>(
    memory: SharedMemory,
    newcomer: &Newcomer<F>,
    bell: &Doorbell,
) -> Result<(Lanes, Option<Charge>), String> {
    let porter = newcomer.porter.clone();
    let lanes = Lanes::attach_by(memory, newcomer.socket.as_raw_fd(), bell.clone(), porter)
        .map_err(|error| error.to_string())?;
    let charge = charge(newcomer, lanes.cost())?;
    Ok((lanes, charge))
}

/// So many bytes of the share of a client's user.
fn charge<F: FileSystem + Send>(
    newcomer: &Newcomer<F>,
    bytes: u64,
) -> Result<Option<Charge>, String> {
    let charge = |account: &Arc<Account>| account.charge(Resource::Memory, bytes);
    newcomer.account.as_ref().map(charge).transpose().map_err(|error| error.to_string())
}

/// Begins to serve a client whose memory is fixed; one that took too long is dropped.
fn arrive<F: FileSystem + Send>(bell: &Doorbell, arriving: Arriving<F>) -> Option<RingClient<F>> {
    let Arriving { memory, newcomer, charge, kept, .. } = arriving;
    let why = match memory.is_fixed() {
        true => match attach(memory, &newcomer, bell) {
            Ok((lanes, of_lanes)) => {
                let charges = [charge, of_lanes];
                return Some(RingClient::new(lanes, newcomer, charges, kept));
            }
            Err(why) => why,
        },
        false => "the memory was not sealed in time, or has holes".to_owned(),
    };
    let Credentials { pid, uid, .. } = &newcomer.peer;
    log::warn!(user = *uid; "process {pid} of user {uid}: {why}; its session ends");
    // The control thread ends the session.
    newcomer.porter.hang_up(&newcomer.socket);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls come as often as sessions end: one that has not been heard yet says nothing about the
    /// worker, and one that has been heard does.
    #[test]
    fn a_worker_lives_if_it_has_looked() {
        let call = Call::new().unwrap();
        assert!(!call.has_looked());
        call.answer();
        call.call();
        assert!(call.has_looked(), "it is busy");
        assert!(!call.has_looked(), "it hangs");
        call.answer();
        assert!(call.has_looked());
        assert!(!call.called.load(Ordering::Relaxed));
    }

    #[test]
    fn memory_is_freed_by_others() {
        let memory = SharedMemory::create("test", 4096).unwrap();
        let file = memory.as_fd().try_clone_to_owned().unwrap();
        let (remains, left) = channel();
        let bell = || ClientBell::new().unwrap().0;
        let kept = Kept::new(memory, bell(), &remains);
        drop(remains);
        assert!(left.try_recv().is_err());
        drop(kept);
        assert!(left.recv().is_ok(), "the memory");
        assert!(left.recv().is_err(), "all of it");
        drop(file);
        // A server that ends takes nothing.
        let (remains, left) = channel();
        drop(left);
        drop(Kept::new(SharedMemory::create("test", 4096).unwrap(), bell(), &remains));
    }
}
