//! The control thread: hears what clients want, begins and ends their sessions.
//!
//! One thread watches all sockets and never waits for a single client: what a client is slow with
//! costs itself alone. Where it serves others than its own user's programs it neither receives from
//! clients nor closes what they have sent, nor the last descriptor of their sockets: the
//! [`broker`](super::broker) does. Each mounted session is served by a thread of its own, those
//! with rings by the worker of their volume.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_vfs::FileSystem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::control::{self, Answer, Hello, Kind as Asked};
use super::ends::Ends;
use super::guests::{Guest, Guests};
use super::line::{self, Head, Kind, Line, Mail};
use super::mount::{Mount, is_fuse};
use super::mounter::Mounter;
use super::newcomer::{Newcomer as RingNewcomer, Remains};
use super::peer;
use super::porch::{Caller, Porch};
use super::porter::{Porter, Porters, hang_up, note_refusal, refuse};
use super::rules::{Grant, Mode, Rules};
use super::shares;
use super::superblocks::{Superblock, Superblocks};
use super::upkeep::Upkeep;
use super::watchdog::Watchdog;
use super::worker::Worker;
use atoll_server::Credentials;
use atoll_server::Session;
use atoll_server::Volume;
use atoll_server::revocable::Revocable;
use atoll_server::rights::accounts::{Accounts, Charge, Resource, Shares};

mod said;
mod which;

use said::said;

/// The most sessions at a time. The last third is for the superuser and the server's own user.
pub const CONNECTIONS_MAX: usize = 1536;
/// Descriptors that a session takes at most, with those that it needs for a moment.
const DESCRIPTORS: u64 = 6;
/// How often sessions whose client has gone are looked at, until nothing uses them any more: soon
/// at first, then ever less often.
const SWEEP: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(200)];
/// How long a session that is just beginning may keep the server from shutting down.
const SHUTDOWN: Duration = Duration::from_secs(10);

/// A way in: a socket, and what those may do who come by it.
pub struct Door {
    /// The socket, which listens.
    pub listener: OwnedFd,
    /// The rules for it.
    pub rules: Rules,
}

/// A server of volumes to the clients of its sockets.
pub struct SocketServer<F: FileSystem + Send + 'static> {
    /// Before all else: its threads use what is below.
    ends: Ends,
    entrance: Entrance,
    doors: Vec<(Arc<OwnedFd>, Rules)>,
    volumes: Vec<Arc<Volume<F>>>,
    accounts: Arc<Accounts>,
    guests: Guests<F>,
    clients: Vec<Connected<F>>,
    parting: Vec<Parting>,
    /// How long until they are looked at again.
    pause: Duration,
    /// One for each volume, in their order.
    workers: Vec<Worker<F>>,
    /// One for each volume.
    upkeep: Vec<Upkeep>,
    porters: Porters,
    /// Those that mounts share, if there is who makes them.
    superblocks: Option<Arc<Superblocks<F>>>,
    spin: Duration,
    watchdog: Option<Watchdog>,
}

/// How it is learnt what clients want.
enum Entrance {
    /// They are this user's own programs, and this thread receives it.
    Own(Box<Porch>),
    /// A broker does, which has a name for each client.
    Broker(Line),
}

/// A client that has said what it wants.
struct Newcomer {
    id: u64,
    door: usize,
    socket: Arc<OwnedFd>,
    peer: Credentials,
    porter: Porter,
}

/// A client that has a session.
struct Connected<F: FileSystem + Send> {
    client: Newcomer,
    /// It has said something, which the broker is to receive.
    spoke: bool,
    place: Revocable<Session<F>>,
    by: By,
    charge: Charge,
}

/// A client that has none any more, until nothing uses its socket but this.
struct Parting {
    id: u64,
    door: usize,
    socket: Arc<OwnedFd>,
    porter: Porter,
    /// It may still serve: the kernel holds a mount of it somewhere.
    thread: Option<JoinHandle<()>>,
    trusted: bool,
    /// It counts for its user until it has received all that it was handed: what is on its way is
    /// the server's.
    charge: Option<Charge>,
}

/// The thread that serves a session.
enum By {
    /// A thread of its own.
    Thread(JoinHandle<()>),
    /// None but the superblock's, which others share; one of its own has it handed out.
    Superblock(JoinHandle<()>, Arc<OnceLock<Arc<Superblock>>>),
    /// The worker of this volume, and what it leaves of the client.
    Worker(usize, Receiver<Remains>),
}

/// Why a client has no session.
enum Not {
    /// For this reason, in words for it.
    Refused(String),
    /// It asked for a mount, and the server makes none for it: it may mount by itself.
    Made,
}

impl From<String> for Not {
    fn from(why: String) -> Not {
        Not::Refused(why)
    }
}

/// The next step for a client.
#[derive(PartialEq, Eq)]
enum Next {
    Stay,
    End,
}

impl<F: FileSystem + Send + 'static> SocketServer<F> {
    /// Serves `volumes`, each by its name, to those whom the rules of `doors` let in. The volumes'
    /// workers, and the threads that serve mounts, look for requests for `spin` before they sleep.
    ///
    /// The `broker`, which has been started with the same rules and names, receives what clients
    /// say; without one this server does itself, which is safe only if all clients are this user's
    /// own programs: any other could have it hang.
    ///
    /// # Errors
    /// When there are no descriptors or threads left.
    pub fn new(
        doors: Vec<Door>,
        broker: Option<Line>,
        volumes: Vec<Arc<Volume<F>>>,
        spin: Duration,
    ) -> io::Result<SocketServer<F>> {
        let start = |volume| Worker::start(volume, spin);
        let workers = volumes.iter().map(start).collect::<io::Result<_>>()?;
        let upkeep = volumes.iter().map(Upkeep::start).collect::<io::Result<_>>()?;
        let entrance = match broker {
            Some(line) => Entrance::Broker(line),
            None => {
                let rules = doors.iter().map(|door| door.rules.clone()).collect();
                let names = volumes.iter().map(|volume| volume.name().to_owned()).collect();
                Entrance::Own(Box::new(Porch::new(rules, names, 0)))
            }
        };
        let door = |Door { listener, rules }: Door| (Arc::new(listener), rules);
        let doors: Vec<_> = doors.into_iter().map(door).collect();
        let limit = match &entrance {
            Entrance::Own(_) => line::descriptors(),
            Entrance::Broker(line) => line.limit,
        };
        let connections = (limit / DESCRIPTORS).min(CONNECTIONS_MAX as u64);
        let of_all = Shares { connections, ..shares::of_all() };
        let totals = doors.iter().map(|(_, rules): &(_, Rules)| rules.total(of_all));
        let most = totals.fold(of_all, shares::least);
        Ok(SocketServer {
            ends: Ends::default(),
            entrance,
            doors,
            volumes,
            accounts: Arc::new(Accounts::new(most)),
            guests: Guests::default(),
            clients: Vec::new(),
            parting: Vec::new(),
            pause: SWEEP[0],
            workers,
            upkeep,
            porters: Porters::default(),
            superblocks: None,
            spin,
            watchdog: None,
        })
    }

    /// Serves the volume that it names to a virtual machine too; one whose kernel relies on being
    /// alone has it for itself.
    ///
    /// # Errors
    /// When there is no such volume, another machine has it, or no thread or descriptor is left.
    pub fn attach(&mut self, guest: Guest) -> io::Result<()> {
        self.guests.attach(guest, &self.volumes, &self.accounts)
    }

    /// Hands out mounts that `mounter` makes, all of one superblock for each volume, to clients who
    /// ask for them. Who reads the table of mounts finds the server by `socket`.
    pub fn share_mounts(&mut self, mounter: Mounter, socket: &Path) {
        let socket = socket.display();
        let names = self.volumes.iter().map(|volume| match &*self.volumes {
            [_] => socket.to_string(),
            _ => format!("{socket}/{}", volume.name()),
        });
        self.superblocks = Some(Arc::new(Superblocks::new(mounter, names.collect(), self.spin)));
    }

    /// Has it call `tell` at intervals of `every`, while neither its threads nor those of its
    /// volumes hang.
    pub fn watch(&mut self, every: Duration, tell: impl FnMut() + Send + 'static) {
        self.watchdog = Some(Watchdog::new(every, Box::new(tell)));
    }

    fn look_after_threads(&mut self, now: Instant) {
        let SocketServer { watchdog, workers, upkeep, guests, .. } = self;
        let live = || {
            // All are asked.
            let (live, waits) =
                workers.iter().zip(&*upkeep).fold((true, false), |all, (worker, upkeep)| {
                    // A medium that is slow is no fault of the server's. A worker that waits for it
                    // has the volume.
                    let (waits, looks) = (worker.waits(), worker.lives());
                    let goes_round = upkeep.lives();
                    (all.0 && (waits || looks && goes_round), all.1 || waits)
                });
            workers.iter().for_each(|worker| worker.sweep()());
            (guests.live() || waits) && live
        };
        if let Some(watchdog) = watchdog {
            watchdog.look(now, live);
        }
    }

    /// Serves until `stop` can be read, then ends all sessions and gives the file systems back, to
    /// be unmounted. `None` stands for one that can no longer be trusted (see
    /// [`Volume::into_inner`]).
    ///
    /// # Errors
    /// The error of poll(2), or that there is no broker any more and will be none; the file systems
    /// are then left as a crash would leave them.
    pub fn run(mut self, stop: BorrowedFd<'_>) -> io::Result<Vec<(String, Option<F>)>> {
        loop {
            match self.turn(stop) {
                Ok(false) => {}
                Ok(true) => return Ok(self.shut_down()),
                Err(error) => {
                    if let Entrance::Broker(_) = self.entrance {
                        // It has sockets that nobody closes but the end of this process.
                        std::mem::forget(self);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Waits for something to happen, and deals with it. Returns whether to stop.
    fn turn(&mut self, stop: BorrowedFd<'_>) -> io::Result<bool> {
        let now = Instant::now();
        self.look_after_threads(now);
        let mut watched = vec![PollFd::new(&stop, PollFlags::IN)];
        let deadline = match &mut self.entrance {
            Entrance::Own(porch) => {
                let accepts = porch.accepts(now);
                let callers = porch.callers.iter().map(|caller| &caller.socket);
                watched.extend(callers.map(|socket| PollFd::new(socket, PollFlags::IN)));
                let doors = self.doors.iter().filter(|_| accepts);
                watched.extend(doors.map(|(door, _)| PollFd::new(&**door, PollFlags::IN)));
                porch.deadline()
            }
            Entrance::Broker(line) => {
                watched.extend(line.watched());
                line.retry().map(|wait| now + wait)
            }
        };
        let clients = watched.len();
        watched.extend(self.clients.iter().map(|client| {
            let events = if client.spoke { PollFlags::empty() } else { PollFlags::IN };
            PollFd::new(&*client.client.socket, events)
        }));
        let sweep = (!self.parting.is_empty()).then(|| now + self.pause);
        let watchdog = self.watchdog.as_ref().map(Watchdog::due);
        let next = deadline.into_iter().chain(sweep).chain(watchdog).min();
        let wait = next.and_then(|at| Timespec::try_from(at.saturating_duration_since(now)).ok());
        match poll(&mut watched, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<PollFlags> = watched.iter().map(PollFd::revents).collect();
        drop(watched);
        if !ready[0].is_empty() {
            return Ok(true);
        }
        let mut remaining = Vec::with_capacity(self.clients.len());
        // They were watched in this order.
        for (mut client, &ready) in
            std::mem::take(&mut self.clients).into_iter().zip(&ready[clients..])
        {
            let next = if ready.is_empty() { Next::Stay } else { self.hear(&mut client, ready) };
            match next {
                Next::Stay => remaining.push(client),
                Next::End => self.end(client),
            }
        }
        self.clients = remaining;
        let ready: Vec<bool> = ready[1..clients].iter().map(|ready| !ready.is_empty()).collect();
        match &self.entrance {
            Entrance::Own(_) => self.look_at_porch(&ready),
            Entrance::Broker(_) if ready[1] => {
                return Err(io::Error::other("the process that keeps the broker has ended"));
            }
            Entrance::Broker(line) if ready[0] || line.retry().is_some() => self.hear_broker(),
            Entrance::Broker(_) => {}
        }
        self.let_go();
        Ok(false)
    }

    /// Receives from those that wait, where this thread does that; `ready` is of those that wait,
    /// then of the doors, if they were looked at.
    fn look_at_porch(&mut self, ready: &[bool]) {
        let Entrance::Own(porch) = &mut self.entrance else { return };
        let now = Instant::now();
        let (callers, doors) = ready.split_at(porch.callers.len());
        let mut news = Vec::new();
        for at in (0..callers.len()).rev().filter(|&at| callers[at]) {
            let received = control::receive(&porch.callers[at].socket);
            if !received.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
                news.push((porch.callers.remove(at), received));
            }
        }
        // The sockets of those that are late close here.
        drop(porch.overdue(now));
        for (at, _) in doors.iter().enumerate().filter(|(_, ready)| **ready) {
            for turned in porch.accept(&self.doors[at].0, at, now) {
                let (uid, pid, why) = (turned.uid, turned.pid, &turned.why);
                log::warn!(user = uid; "process {pid} of user {uid} is refused: {why}");
                // They are this user's own programs.
                turned.tell();
            }
        }
        for (Caller { id, door, socket, uid, pid, .. }, received) in news.into_iter().rev() {
            match received {
                Ok((message, descriptors)) => {
                    self.greet(id, door, socket, &message, descriptors);
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) => log::warn!(user = uid; "process {pid} of user {uid}: {error}"),
            }
        }
    }

    /// Does what the broker says.
    fn hear_broker(&mut self) {
        let Entrance::Broker(line) = &mut self.entrance else { return };
        line.flush();
        let mails: Vec<Mail> = std::iter::from_fn(|| line.next()).take(line::BATCH).collect();
        for Mail { head, message, descriptors } in mails {
            match head.kind {
                Kind::Began => self.introduce(head.id),
                Kind::Note => log::warn!("{}", String::from_utf8_lossy(&message)),
                Kind::Newcomer => {
                    let mut descriptors = descriptors.into_iter();
                    match descriptors.next() {
                        Some(socket) => {
                            let (door, rest) = (head.door as usize, descriptors.collect());
                            self.greet(head.id, door, socket, &message, rest);
                        }
                        // There was no descriptor left for it.
                        None => self.bury(head.id, head.door as usize, None),
                    }
                }
                Kind::Said | Kind::Silence | Kind::Broken => {
                    let Some(at) = self.clients.iter().position(|c| c.client.id == head.id) else {
                        continue;
                    };
                    let client = &mut self.clients[at];
                    client.spoke = false;
                    let next = match head.kind {
                        Kind::Said => said(client, &message),
                        Kind::Silence => Next::Stay,
                        _ => Next::End,
                    };
                    if next == Next::End {
                        let client = self.clients.swap_remove(at);
                        self.end(client);
                    }
                }
                Kind::Door | Kind::Receive | Kind::Bury => {}
            }
        }
    }

    /// Tells a broker that has begun all that it has to know.
    fn introduce(&mut self, life: u64) {
        let Entrance::Broker(line) = &mut self.entrance else { return };
        if life > 0 {
            log::warn!("the process that receives from clients has ended; another has begun");
        }
        for (at, (listener, _)) in self.doors.iter().enumerate() {
            let head = Head { kind: Kind::Door, door: at as u32, id: 0 };
            line.say(head, Some(Arc::clone(listener)));
        }
        for Connected { client, spoke, .. } in &self.clients {
            if *spoke {
                let head = Head { kind: Kind::Receive, door: client.door as u32, id: client.id };
                line.say(head, Some(Arc::clone(&client.socket)));
            }
        }
    }

    /// Deals with what a client has to say in its session, or that it has gone.
    fn hear(&mut self, client: &mut Connected<F>, ready: PollFlags) -> Next {
        if ready.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Next::End;
        }
        let Newcomer { id, door, socket, peer, .. } = &client.client;
        match &mut self.entrance {
            Entrance::Broker(line) => {
                client.spoke = true;
                let head = Head { kind: Kind::Receive, door: *door as u32, id: *id };
                line.say(head, Some(Arc::clone(socket)));
                Next::Stay
            }
            Entrance::Own(_) => match control::receive(&**socket) {
                Ok((message, _)) => said(client, &message),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Next::Stay,
                Err(error) => {
                    if error.kind() != io::ErrorKind::UnexpectedEof {
                        let Credentials { pid, uid, .. } = peer;
                        log::warn!(user = *uid; "process {pid} of user {uid}: {error}");
                    }
                    Next::End
                }
            },
        }
    }

    /// Deals with the first message of a client.
    fn greet(
        &mut self,
        id: u64,
        door: usize,
        socket: OwnedFd,
        message: &[u8],
        descriptors: Vec<OwnedFd>,
    ) {
        let socket = Arc::new(socket);
        let peer = match peer::credentials(&*socket) {
            Ok(peer) if door < self.doors.len() => self.doors[door].1.identify(peer),
            // It has no name.
            _ => return self.bury(id, door, Some(socket)),
        };
        let porter = match self.doors[door].1.is_trusted(&peer) {
            true => Ok(Porter::none()),
            false => self.porters.of(peer.uid),
        };
        let porter = match porter {
            Ok(porter) => porter,
            Err(error) => {
                let Credentials { pid, uid, .. } = peer;
                let why = format!("the server has no thread left: {error}");
                log::warn!(user = uid; "process {pid} of user {uid} is refused: {why}");
                self.ends.run(uid, move || drop(descriptors));
                return self.bury(id, door, Some(socket));
            }
        };
        let client = Newcomer { id, door, socket, peer, porter };
        let mut descriptors = descriptors;
        let begun = self.begin(&client, message, &mut descriptors);
        if !descriptors.is_empty() {
            // To free their pages may take long.
            self.ends.run(client.peer.uid, move || drop(descriptors));
        }
        match begun {
            Ok((place, by, charge)) => {
                self.clients.push(Connected { client, spoke: false, place, by, charge });
            }
            Err(not) => {
                let answer = match not {
                    Not::Refused(why) => {
                        note_refusal(&client.peer, &why);
                        Answer::Refused(why)
                    }
                    Not::Made => Answer::Ended,
                };
                let socket = Arc::clone(&client.socket);
                client.porter.run_if_idle(move || {
                    let _ = control::send(&*socket, &answer.encode(), &[]);
                });
                self.part(client, None, None);
            }
        }
    }

    /// Whether there is room for one more session of `peer`'s.
    fn admit(&self, door: usize, peer: &Credentials) -> Result<Charge, String> {
        let rules = &self.doors[door].1;
        let charge = shares::account(&self.accounts, rules, peer)
            .charge(Resource::Connections, 1)
            .map_err(|why| format!("too many clients: {why}"))?;
        let ruled = |door: usize, peer: &Credentials| !self.doors[door].1.is_trusted(peer);
        let counts = |parting: &&Parting| !parting.trusted && parting.charge.is_some();
        let others = self.clients.iter().filter(|c| ruled(c.client.door, &c.client.peer)).count()
            + self.parting.iter().filter(counts).count();
        let most = self.accounts.most(Resource::Connections) as usize;
        if !rules.is_trusted(peer) && others >= most - most / 3 {
            return Err(format!("too many clients: {others}"));
        }
        Ok(charge)
    }

    /// Begins the session that a client has asked for. The error is for the client.
    fn begin(
        &self,
        client: &Newcomer,
        message: &[u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<(Revocable<Session<F>>, By, Charge), Not> {
        let hello = Hello::decode(message).map_err(|error| error.to_string())?;
        let rules = &self.doors[client.door].1;
        let (at, volume) = which::volume(&self.volumes, rules, &client.peer, &hello.volume)?;
        let mut grant =
            rules.grant(&client.peer, volume.name()).ok_or_else(|| rules.refusal(&client.peer))?;
        if self.guests.is_alone(volume.name()) {
            return Err(format!("the volume {} is a virtual machine's alone", volume.name()).into());
        }
        if hello.mode == Mode::Write && grant.mode == Mode::Read {
            return Err(format!(
                "user {} may only look into the volume {}; ask for it read-only (`:ro`)",
                client.peer.uid,
                volume.name()
            )
            .into());
        }
        grant.mode = hello.mode;
        let charge = self.admit(client.door, &client.peer)?;
        let (trusted, account) = (rules.is_trusted(&client.peer), Arc::clone(charge.account()));
        let account = rules.bind(&client.peer).then_some(account);
        let place = Revocable::default();
        match hello.kind {
            Asked::Ring => {
                if descriptors.len() != 1 {
                    return Err("no memory that is fit for a ring was handed over"
                        .to_owned()
                        .into());
                }
                let memory = descriptors.remove(0);
                let peer = client.peer.clone();
                log::info!(
                    user = peer.uid;
                    "process {} of user {} connects to {}",
                    peer.pid,
                    peer.uid,
                    volume.name()
                );
                let socket = Arc::clone(&client.socket);
                let (view, kept) = (hello.view, place.clone());
                let (remains, left) = channel();
                self.workers[at].admit(RingNewcomer {
                    peer,
                    grant,
                    account,
                    memory,
                    socket,
                    place: kept,
                    view,
                    trusted,
                    remains,
                    porter: client.porter.clone(),
                });
                Ok((place, By::Worker(at, left), charge))
            }
            Asked::Attached => {
                let (by, place) = self.hand_out(client, at, grant)?;
                Ok((place, by, charge))
            }
            Asked::Mount => {
                let device = match &descriptors[..] {
                    [device] if is_fuse(device) => descriptors.remove(0),
                    _ => {
                        return Err("what was handed over is not the device of FUSE"
                            .to_owned()
                            .into());
                    }
                };
                let (peer, socket) = (client.peer.clone(), Arc::clone(&client.socket));
                let name = volume.name().to_owned();
                let mount = Mount {
                    volume: Arc::clone(volume),
                    peer: peer.clone(),
                    grant,
                    account,
                    single_owner: hello.single_owner,
                    device,
                    socket: Arc::clone(&socket),
                    place: place.clone(),
                    porter: client.porter.clone(),
                    spin: self.spin,
                };
                let serve = move || {
                    let Credentials { pid, uid, .. } = peer;
                    log::info!(user = uid; "process {pid} of user {uid} mounts {name}");
                    match mount.serve() {
                        Ok(()) => log::info!(user = uid; "process {pid} has ended with {name}"),
                        Err(why) => refuse(&socket, &peer, &why),
                    }
                    // This too the control thread sees.
                    hang_up(&socket);
                };
                let thread = std::thread::Builder::new()
                    .name("mount".to_owned())
                    .spawn(serve)
                    .map_err(|error| format!("the server has no thread left: {error}"))?;
                Ok((place, By::Thread(thread), charge))
            }
        }
    }

    /// Has a thread hand out a mount of the superblock of the volume `at`, as `grant` says. There
    /// is no session but the superblock's: the place stays empty.
    fn hand_out(
        &self,
        client: &Newcomer,
        at: usize,
        grant: Grant,
    ) -> Result<(By, Revocable<Session<F>>), Not> {
        let volume = Arc::clone(&self.volumes[at]);
        // Who has limits is told apart by a session. And who may open files by their handles, as
        // the superuser may, finds those outside of a directory that is all he is to have.
        let apart = self.doors[client.door].1.is_limited(&client.peer)
            || client.peer.uid == 0 && grant.path != "/";
        let superblocks = self.superblocks.as_ref().filter(|_| !apart && !volume.is_foreign());
        let superblocks = Arc::clone(superblocks.ok_or(Not::Made)?);
        let held = Arc::<OnceLock<_>>::default();
        let (peer, socket) = (client.peer.clone(), Arc::clone(&client.socket));
        let (place, kept) = (Revocable::default(), Arc::clone(&held));
        let serve = move || {
            let Credentials { pid, uid, .. } = peer;
            let (answer, mount) = match superblocks.hand_out(at, &volume, &grant, (uid, &socket)) {
                Ok((superblock, mount)) => {
                    log::info!(user = uid; "process {pid} of user {uid} mounts {}", volume.name());
                    let _ = kept.set(superblock);
                    (Answer::Granted(grant.mode), Some(mount))
                }
                Err(error) => {
                    log::warn!(user = uid; "no mount is made for user {uid}: {error}");
                    (Answer::Ended, None)
                }
            };
            let handed: Vec<_> = mount.iter().map(AsFd::as_fd).collect();
            let sent = control::send(&*socket, &answer.encode(), &handed);
            if sent.is_err() || mount.is_none() {
                // This the control thread sees.
                hang_up(&socket);
            }
        };
        let thread = std::thread::Builder::new()
            .name("mount".to_owned())
            .spawn(serve)
            .map_err(|error| format!("the server has no thread left: {error}"))?;
        Ok((By::Superblock(thread, held), place))
    }

    /// Ends a client's session and its connection, without waiting for either.
    fn end(&mut self, connected: Connected<F>) {
        let Connected { client, place, by, charge, .. } = connected;
        client.porter.hang_up(&client.socket);
        // The client is counted until its session has ended.
        let socket = Arc::clone(&client.socket);
        let (sweep, thread) = match by {
            By::Thread(thread) => (None, Some(thread)),
            By::Superblock(thread, held) => {
                // It is let go of with the last.
                drop(held);
                (None, Some(thread))
            }
            By::Worker(at, remains) => (Some((self.workers[at].sweep(), remains)), None),
        };
        self.ends.run(client.peer.uid, move || {
            // The worker lets go of it even if the session cannot be ended.
            let revoked = catch_unwind(AssertUnwindSafe(|| place.revoke()));
            if let Some((sweep, remains)) = sweep {
                sweep();
                // To free them may take long, which the worker has no time for.
                drop(remains.iter().collect::<Vec<Remains>>());
            }
            drop(socket);
            if let Err(panic) = revoked {
                resume_unwind(panic);
            }
        });
        self.part(client, thread, Some(charge));
    }

    /// Lets go of a client's socket once nothing uses it any more, `thread` included.
    fn part(&mut self, client: Newcomer, thread: Option<JoinHandle<()>>, charge: Option<Charge>) {
        let trusted = self.doors[client.door].1.is_trusted(&client.peer);
        let Newcomer { id, door, socket, porter, .. } = client;
        self.parting.push(Parting { id, door, socket, porter, thread, trusted, charge });
        self.pause = SWEEP[0];
    }

    /// Has the sockets closed that nothing else uses.
    fn let_go(&mut self) {
        let idle = |parting: &mut Parting| {
            // Nobody but this thread has one that it could make more of.
            Arc::strong_count(&parting.socket) == 1
                && parting.thread.as_ref().is_none_or(JoinHandle::is_finished)
                && (parting.charge.is_none() || peer::has_received(&*parting.socket))
        };
        let idle: Vec<Parting> = self.parting.extract_if(.., idle).collect();
        self.pause = if idle.is_empty() { (self.pause * 2).min(SWEEP[1]) } else { SWEEP[0] };
        for Parting { id, door, socket, porter, .. } in idle {
            match self.entrance {
                Entrance::Own(_) => porter.run(move || drop(socket)),
                Entrance::Broker(_) => self.bury(id, door, Some(socket)),
            }
        }
    }

    /// Has a socket closed for the last time: where strangers are let in, by another process.
    fn bury(&mut self, id: u64, door: usize, socket: Option<Arc<OwnedFd>>) {
        if let Entrance::Broker(line) = &mut self.entrance {
            line.say(Head { kind: Kind::Bury, door: door as u32, id }, socket);
        }
    }

    /// Ends everything and takes the file systems out.
    fn shut_down(mut self) -> Vec<(String, Option<F>)> {
        let guests = std::mem::take(&mut self.guests);
        guests.end();
        for client in std::mem::take(&mut self.clients) {
            self.end(client);
        }
        if let Some(superblocks) = self.superblocks.take() {
            superblocks.end();
        }
        let SocketServer { ends, entrance, doors, volumes, parting, workers, upkeep, .. } = self;
        for (listener, _) in &doors {
            // Others may have it too.
            let _ = rustix::net::shutdown(listener, Shutdown::Both);
        }
        drop(ends);
        if let Entrance::Broker(_) = entrance {
            // The end of this process closes them, which waits for nobody.
            std::mem::forget((parting, entrance));
        }
        drop(workers);
        drop(upkeep);
        guests.wait();
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
