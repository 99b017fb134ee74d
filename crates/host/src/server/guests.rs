//! The virtual machines that a server serves: each has a socket of its own, where one front end at
//! a time finds a virtio-fs device.
//!
//! Each device has a thread, which accepts its front ends and is their back end. A front end hands
//! over descriptors, and may have that thread hang when it receives or closes them; so nobody waits
//! for it, not even the server when it shuts down: what it has of a volume is taken away from
//! outside.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_server::revocable::Revocable;
use atoll_server::rights::accounts::{Accounts, Charge, Resource};
use atoll_server::rights::idmap::IdMap;
use atoll_server::route::kernel::Others;
use atoll_server::{Credentials, Identity, Session, Volume};
use atoll_vfs::FileSystem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, SocketFlags};

use super::granted::session;
use super::rules::{Mode, Rules};
use super::{peer, shares};
use crate::shm::Doorbell;
use crate::virtio::device::{DEVICE_BYTES, Device, DeviceOptions, Kept};
use crate::virtio::pulse::Pulse;

/// How long a device's thread may take to end before the server ends without it.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause after a front end could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a guest's session is kept for a front end that connects again.
pub const AWAY: Duration = Duration::from_secs(60);

/// As whom the requests of a guest act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ids {
    /// As whom the guest says, if its front end is the superuser's; else as its front end's user.
    #[default]
    FrontEnd,
    /// As whom the guest says.
    Guest,
    /// As this user and group.
    Fixed(u32, u32),
    /// As those whom this map has for the guest's.
    Mapped(IdMap),
}

/// A socket for front ends, and the device that they find there.
pub struct Guest {
    /// The socket, which listens.
    pub listener: OwnedFd,
    /// The rules for front ends that connect.
    pub rules: Rules,
    /// The volume's name.
    pub volume: String,
    /// Whether the guest may only look.
    pub read_only: bool,
    /// As whom its requests act.
    pub ids: Ids,
    /// The device.
    pub device: DeviceOptions,
    /// How long its session is kept for a front end that connects again: [`AWAY`].
    pub away: Duration,
}

/// The session of a guest whose front end has gone away.
struct Away<F: FileSystem + Send> {
    kept: Kept<F>,
    /// Who that was: nobody else gets it.
    peer: Credentials,
    until: Instant,
    /// It counts for its user as if it were here.
    _charge: Option<Charge>,
}

impl<F: FileSystem + Send> Away<F> {
    /// Whether it is that of `peer`, whichever process that is.
    fn is_of(&self, peer: &Credentials) -> bool {
        let Credentials { uid, gid, groups, pid: _ } = peer;
        (uid, gid, groups) == (&self.peer.uid, &self.peer.gid, &self.peer.groups)
    }
}

/// The state that a device's thread shares with those who end it.
struct Way<F: FileSystem + Send> {
    stopped: AtomicBool,
    stop: Doorbell,
    pulse: Arc<Pulse>,
    now: Mutex<Now<F>>,
}

struct Now<F: FileSystem + Send> {
    socket: Option<UnixStream>,
    place: Option<Revocable<Session<F>>>,
}

impl<F: FileSystem + Send> Way<F> {
    fn now(&self) -> MutexGuard<'_, Now<F>> {
        // Nothing of others runs inside.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread end, and its session at once.
    fn end(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.stop.ring();
        let (socket, place) = {
            let mut now = self.now();
            (now.socket.take(), now.place.take())
        };
        if let Some(socket) = socket {
            // It may be waiting for the rest of a message.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
        if let Some(place) = place {
            place.revoke();
        }
    }

    /// Takes note of the session that begins; false when the server shuts down.
    fn begins(&self, place: &Revocable<Session<F>>) -> bool {
        self.now().place = Some(place.clone());
        !self.stopped.load(Ordering::SeqCst)
    }
}

/// The virtual machines of a server.
pub(super) struct Guests<F: FileSystem + Send> {
    served: Vec<Served<F>>,
    /// The names of volumes that one has for itself, and that some share.
    alone: Vec<String>,
    shared: Vec<String>,
}

impl<F: FileSystem + Send> Default for Guests<F> {
    fn default() -> Self {
        Guests { served: Vec::new(), alone: Vec::new(), shared: Vec::new() }
    }
}

impl<F: FileSystem + Send + 'static> Guests<F> {
    /// Serves `guest` one of `volumes`; a guest whose kernel relies on being alone has it for
    /// itself.
    ///
    /// # Errors
    /// When there is no such volume, another guest has it, or no thread or descriptor is left.
    pub fn attach(
        &mut self,
        guest: Guest,
        volumes: &[Arc<Volume<F>>],
        accounts: &Arc<Accounts>,
    ) -> io::Result<()> {
        let (alone, name) = (guest.device.kernel.others == Others::None, guest.volume.clone());
        if self.alone.contains(&name) || alone && self.shared.contains(&name) {
            let why = format!("{name} is to be another's alone (cache=alone)");
            return Err(io::Error::other(why));
        }
        self.served.push(Served::start(guest, self.served.len() as u64, volumes, accounts)?);
        match alone {
            true => self.alone.push(name),
            false => self.shared.push(name),
        }
        Ok(())
    }

    /// Whether one of them has the volume `name` for itself.
    pub fn is_alone(&self, name: &str) -> bool {
        self.alone.iter().any(|alone| alone == name)
    }

    /// Whether no thread of theirs hangs in work of the server since this was asked last.
    pub fn live(&self) -> bool {
        // All are asked.
        self.served.iter().filter(|served| !served.way.pulse.lives()).count() == 0
    }

    /// Has all end, without waiting for it.
    pub fn end(&self) {
        self.served.iter().for_each(|served| served.way.end());
    }

    /// Waits for their end, but not for ever.
    pub fn wait(self) {
        self.served.into_iter().for_each(Served::wait);
    }
}

/// A device that is served.
struct Served<F: FileSystem + Send> {
    way: Arc<Way<F>>,
    thread: JoinHandle<()>,
}

impl<F: FileSystem + Send + 'static> Served<F> {
    /// Serves `guest` one of `volumes`.
    ///
    /// # Errors
    /// When there is no such volume, or no thread or descriptor left.
    fn start(
        guest: Guest,
        machine: u64,
        volumes: &[Arc<Volume<F>>],
        accounts: &Arc<Accounts>,
    ) -> io::Result<Served<F>> {
        let volume = volumes.iter().find(|volume| volume.name() == guest.volume);
        let volume = volume.ok_or(io::ErrorKind::NotFound)?;
        if guest.device.tells && volume.is_foreign() {
            let why = format!("{} is changed by others (cache=told)", guest.volume);
            return Err(io::Error::other(why));
        }
        let volume = Arc::downgrade(volume);
        let now = Mutex::new(Now { socket: None, place: None });
        let way = Arc::new(Way {
            stopped: AtomicBool::new(false),
            stop: Doorbell::new()?,
            pulse: Arc::default(),
            now,
        });
        let (accounts, way_in) = (Arc::clone(accounts), Arc::clone(&way));
        let door = Arc::new(Door { guest, machine, volume, accounts, way: way_in });
        let thread =
            std::thread::Builder::new().name("virtio".to_owned()).spawn(move || door.serve())?;
        Ok(Served { way, thread })
    }

    fn wait(self) {
        let until = Instant::now() + PATIENCE;
        while !self.thread.is_finished() {
            if Instant::now() > until {
                log::warn!("the thread of a virtual machine does not end");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Panics have been caught there.
        let _ = self.thread.join();
    }
}

/// The state of a device's thread.
struct Door<F: FileSystem + Send> {
    guest: Guest,
    /// Its number: whoever is behind its socket is one machine.
    machine: u64,
    /// Not for longer than a session: the server wants it back.
    volume: Weak<Volume<F>>,
    accounts: Arc<Accounts>,
    way: Arc<Way<F>>,
}

impl<F: FileSystem + Send + 'static> Door<F> {
    /// Serves one front end after the other.
    fn serve(self: Arc<Self>) {
        let mut away: Option<Away<F>> = None;
        while !self.way.stopped.load(Ordering::SeqCst) {
            let listener = PollFd::new(&self.guest.listener, PollFlags::IN);
            let stop = PollFd::new(&self.way.stop, PollFlags::IN);
            let wait =
                away.as_ref().map(|away| away.until.saturating_duration_since(Instant::now()));
            let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
            let _ = poll(&mut [listener, stop], wait.as_ref());
            if away.take_if(|away| Instant::now() >= away.until).is_some() {
                self.way.now().place = None;
                log::info!("the front end of {} stays away: its session ends", self.guest.volume);
            }
            let socket = match rustix::net::accept_with(&self.guest.listener, SocketFlags::CLOEXEC)
            {
                Ok(socket) => socket,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => continue,
                Err(_) => {
                    // It may have gone, or there is no descriptor left.
                    let pause = Timespec::try_from(PAUSE).ok();
                    let mut stop = [PollFd::new(&self.way.stop, PollFlags::IN)];
                    let _ = poll(&mut stop, pause.as_ref());
                    continue;
                }
            };
            let name = &self.guest.volume;
            match peer::credentials(&socket) {
                Ok(peer) => {
                    let peer = self.guest.rules.identify(peer);
                    let Credentials { pid, uid, .. } = peer;
                    let who = format!("the virtual machine of process {pid}");
                    let before = away.take();
                    match Self::attend(&self, socket.into(), peer, before) {
                        Ok(Some(left)) => {
                            log::info!(user = uid; "{who} went away from {name}; it may come back");
                            away = Some(left);
                        }
                        Ok(None) => log::info!(user = uid; "{who} has ended with {name}"),
                        // The server took its session from it.
                        Err(_) if self.way.stopped.load(Ordering::SeqCst) => {}
                        Err(why) => {
                            log::warn!(user = uid; "{who} of user {uid} {why}; its session ends");
                        }
                    }
                }
                // It has no name.
                Err(error) => log::warn!("a front end is refused: {error}"),
            }
            let mut now = self.way.now();
            now.socket = None;
            if away.is_none() {
                now.place = None;
            }
        }
    }

    /// Serves one front end, which may be the one that was `away`. Returns its session if it goes
    /// away again. The error is for the log.
    fn attend(
        self: &Arc<Self>,
        socket: UnixStream,
        peer: Credentials,
        away: Option<Away<F>>,
    ) -> Result<Option<Away<F>>, String> {
        let away = away.filter(|away| away.is_of(&peer));
        let kept = away.map(|away| away.kept);
        if kept.is_none() {
            self.way.now().place = None;
        }
        let Guest { rules, volume, read_only, device, .. } = &self.guest;
        let mut grant = rules
            .grant(&peer, volume)
            .ok_or_else(|| format!("is refused: {}", rules.refusal(&peer)))?;
        if *read_only {
            grant.mode = Mode::Read;
        }
        let account = shares::account(&self.accounts, rules, &peer);
        let account = rules.bind(&peer).then_some(account);
        // Of what is shown there may be a copy, and what the file had.
        let bytes = DEVICE_BYTES + 2 * device.window;
        let charge = account.as_ref().map(|account| account.charge(Resource::Memory, bytes));
        let charge = charge.transpose().map_err(|error| format!("is refused: {error}"))?;
        let failed = |error: io::Error| format!("cannot be served: {error}");
        self.way.now().socket = Some(socket.try_clone().map_err(failed)?);
        if self.way.stopped.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let Credentials { pid, uid, .. } = peer;
        log::info!(user = uid; "the virtual machine of process {pid} of user {uid} has {volume}");
        let door = Arc::clone(self);
        let (owner, before, payer) = (peer.clone(), peer, account.clone());
        let begin = move || {
            let peer = &owner;
            let volume = door.volume.upgrade().ok_or("the server shuts down")?;
            let (peer, identity) = door.identity(peer);
            let session = session(&volume, &peer, &grant, identity, account.as_ref())?;
            let place = Revocable::default();
            place.begin(session);
            match door.way.begins(&place) {
                true => Ok(place),
                false => {
                    place.revoke();
                    Err("the server shuts down".to_owned())
                }
            }
        };
        let (device, machine) = (device.clone(), self.machine);
        let (begin, pulse) = (Box::new(begin), Arc::clone(&self.way.pulse));
        let device =
            Device::new(socket, device, machine, kept, pulse, begin, payer).map_err(failed)?;
        let kept = device.serve(self.way.stop.as_fd())?;
        let until = Instant::now() + self.guest.away;
        Ok(kept.map(|kept| Away { kept, peer: before, until, _charge: charge }))
    }

    /// As whom the guest's requests act. Its kernel puts an identity into each and has checked
    /// permissions; whose word that is, is the front end's.
    fn identity(&self, peer: &Credentials) -> (Credentials, Identity) {
        match self.guest.ids {
            Ids::FrontEnd if peer.uid == 0 => (peer.clone(), Identity::Checked),
            Ids::FrontEnd => (peer.clone(), Identity::Peer),
            Ids::Guest | Ids::Mapped(_) => (peer.clone(), Identity::Checked),
            Ids::Fixed(uid, gid) => {
                let groups = Vec::new().into();
                (Credentials { uid, gid, groups, pid: peer.pid }, Identity::Peer)
            }
        }
    }
}
