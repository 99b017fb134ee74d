//! A FUSE mount: one [`Session`] of a volume, served to the kernel.
//!
//! The device is a [`Carrier`]; what the kernel asks and what it may keep is the server's
//! ([`kernel`](atoll_server::route::kernel)). One thread reads requests: the volume has one lock.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_server::Session;
use atoll_server::host::{Bell, Host};
use atoll_server::leases::caches::{KernelCache, Lends};
use atoll_server::leases::gate::{Mount, Next};
use atoll_server::revocable::Revocable;
use atoll_server::rights::accounts::{Account, Charge, Resource};
use atoll_server::rights::rates::{Meter, Work};
use atoll_server::route::answer::{fail, finish};
use atoll_server::route::carrier::{Carrier, Held, Incoming};
use atoll_server::route::kernel::{Kernel, KernelOptions, Others};
use atoll_server::route::router::Router;
use atoll_server::route::router::{Ended, serve_next};
use atoll_vfs::server::ServerOptions;
use atoll_vfs::wire::header::OutHeader;
use atoll_vfs::wire::session::Extensions;
use atoll_vfs::wire::{Fixed, Message, Request, opcode};
use atoll_vfs::{Data, Errno, FileSystem, Result, Room};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::notices::{self, Told};
use crate::server::keeper;
use crate::server::porter::Porter;
use crate::server::tasks::ThreadBell;
use crate::shm::Doorbell;
use crate::spin::Spin;

/// The largest read or write of one request, in bytes.
pub const MAX_WRITE: u32 = 1 << 20;
/// The room for what precedes a request's data: the kernel wants this much beside it.
const REQUEST_ROOM: usize = 4096;
/// Bytes that a mount takes: its two buffers, its two threads and what they have of the server.
const MOUNT_BYTES: u64 = 2 * MAX_WRITE as u64 + (128 << 10);
/// Bytes that an answer takes while it waits, without its data.
const HELD: usize = 512;

/// How long requests are still answered, with an error, so that a notification that waits for them
/// ends.
const DRAIN: Duration = Duration::from_secs(2);
/// The pause before a notice about an inode that the kernel does not know yet is sent again; the
/// next pause is twice as long, up to the longest.
const RETRY: Duration = Duration::from_micros(20);
const RETRY_MAX: Duration = Duration::from_millis(5);

/// How a session is served to the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct SharedOptions {
    /// The options that say what the kernel may rely on.
    pub kernel: KernelOptions,
    /// How long to look for the next request before sleeping, which takes a processor as long.
    pub spin: Duration,
}

/// The state that the threads that answer requests share.
struct Line {
    device: OwnedFd,
    /// The mount is to end: said for a thread that is awake, and for one that sleeps.
    fenced: AtomicBool,
    fence: Doorbell,
    /// Rung when a request that was set aside is due.
    due: Doorbell,
    /// Rung when the notifier has notices to send.
    told: ThreadBell,
}

impl Bell for Line {
    fn ring(&self) {
        self.told.ring();
    }
}

impl Mount for Line {
    fn fence(&self) {
        self.fenced.store(true, Ordering::Relaxed);
        self.fence.ring();
    }
}

impl Line {
    /// Sends a reply. A request that the kernel has given up meanwhile is no error; then this is
    /// false.
    fn send(&self, message: &[u8], data: &[u8]) -> io::Result<bool> {
        let parts = [IoSlice::new(message), IoSlice::new(data)];
        match rustix::io::writev(&self.device, &parts) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Answers with nothing but an error.
    fn refuse(&self, unique: u64, error: Errno) -> io::Result<bool> {
        let mut message = [0; OutHeader::SIZE];
        let refused = finish(unique, Err(error), &mut message);
        self.send(&message[..refused.message], &[])
    }
}

/// An answer that waits.
struct Waiting {
    line: Arc<Line>,
    message: Vec<u8>,
    data: Vec<u8>,
    /// Gives the answer, if to give it may last.
    porter: Option<Porter>,
    charge: Option<Charge>,
}

impl Held for Waiting {
    fn release(mut self: Box<Self>, outcome: Result<()>) -> bool {
        if let Err(error) = outcome {
            fail(&mut self.message, error);
            self.data.clear();
        }
        let Waiting { line, message, data, porter, charge } = *self;
        // An error of the device is met by the thread that reads it.
        let send = move || {
            let _charge = charge;
            line.send(&message, &data).unwrap_or(true)
        };
        match porter {
            Some(porter) => {
                porter.run(move || {
                    let _ = send();
                });
                // None of these answers gives the kernel an inode.
                true
            }
            None => send(),
        }
    }
}

/// Whether the kernel may have sent `request` in the background. An answer to such a one has it
/// send the next, which goes over all who watch the device: the client may have it watched a
/// million times.
fn is_background(request: &[u8]) -> bool {
    let opcode = request.get(4..8).and_then(|bytes| bytes.try_into().ok());
    let opcode = opcode.map(u32::from_ne_bytes);
    let all = [opcode::FUSE_READ, opcode::FUSE_WRITE, opcode::FUSE_RELEASE];
    opcode.is_some_and(|opcode| all.contains(&opcode))
}

/// The FUSE device of a mount.
struct Device {
    line: Arc<Line>,
    /// Gives answers that waited, where the client sets how long that takes.
    porter: Porter,
    hang_up: Option<Arc<OwnedFd>>,
    request: Vec<u8>,
    len: usize,
    room: Vec<u8>,
    requests: Arc<AtomicU64>,
    /// Measures the user, if its rate is limited, by the uptime of the host.
    meter: Option<(Arc<Meter>, Arc<dyn Host>)>,
    /// Pays for answers that wait.
    account: Option<Arc<Account>>,
    spin: Spin,
    /// How long it looks for the next request before it sleeps.
    limit: Duration,
    aside: Aside,
}

/// Requests that are served again after others, each once that is said.
#[derive(Default)]
struct Aside {
    requests: VecDeque<(Vec<u8>, Arc<AtomicBool>)>,
    /// How many others were served since the first of these came to stand first.
    passed: usize,
    /// The request that is being served is one of them.
    again: bool,
}

/// A request that was set aside.
struct Due {
    line: Arc<Line>,
    due: Arc<AtomicBool>,
}

impl Held for Due {
    fn release(self: Box<Self>, _: Result<()>) -> bool {
        self.due.store(true, Ordering::Release);
        self.line.due.ring();
        true
    }
}

/// Why the thread of a device goes on.
enum Woken {
    /// There is a request.
    Asked,
    /// One that was set aside is due.
    Due,
    /// The client has hung up, or the mount is to end.
    Over,
}

/// The most requests that are set aside, and the most that are served before each: others go on
/// sending. Linux gives out all FORGETs that stand before the tenth of other requests.
const ASIDE_MAX: usize = 64;
const PASSED_MAX: usize = 64;

impl Carrier for Device {
    type Slot = ();
    /// Nothing went wrong: there will be no more.
    type Error = Option<io::Error>;

    /// Waits for a request.
    fn take(&mut self) -> std::result::Result<Option<()>, Option<io::Error>> {
        use rustix::io::Errno;
        loop {
            if self.come_again() {
                return Ok(Some(()));
            }
            match self.wait().map_err(Some)? {
                Woken::Asked => {}
                Woken::Due => continue,
                Woken::Over => return Err(None),
            }
            match rustix::io::read(&self.line.device, &mut self.request) {
                Ok(len) => {
                    self.requests.fetch_add(1, Ordering::Relaxed);
                    self.len = len;
                    self.note(Work { operations: 1, bytes: len as u64 });
                    return Ok(Some(()));
                }
                // The request was interrupted before it could be read; or whoever passed the device
                // has made it non-blocking, and has read the request himself.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Err(None),
                Err(errno) => return Err(Some(errno.into())),
            }
        }
    }

    fn incoming(&mut self, (): &()) -> Incoming<'_> {
        Incoming {
            message: &self.request[..self.len],
            data: Data::default(),
            room: Room::from(&mut self.room[..]),
        }
    }

    fn set_aside(&mut self, (): ()) -> std::result::Result<Box<dyn Held>, ()> {
        let Aside { requests, again, .. } = &mut self.aside;
        if *again || requests.len() >= ASIDE_MAX {
            return Err(());
        }
        let due = Arc::<AtomicBool>::default();
        requests.push_back((self.request[..self.len].to_vec(), Arc::clone(&due)));
        Ok(Box::new(Due { line: Arc::clone(&self.line), due }))
    }

    fn is_again(&self) -> bool {
        self.aside.again
    }

    fn answer(
        &mut self,
        (): (),
        message: &[u8],
        data: usize,
    ) -> std::result::Result<bool, Option<io::Error>> {
        if message.is_empty() {
            return Ok(true);
        }
        self.note(Work { operations: 0, bytes: data as u64 });
        self.line.send(message, &self.room[..data]).map_err(Some)
    }

    fn hold(&mut self, (): (), message: &[u8], data: usize) -> Box<dyn Held> {
        let line = Arc::clone(&self.line);
        let porter = is_background(&self.request[..self.len]).then(|| self.porter.clone());
        let mut message = message.to_vec();
        // An answer without data is kept in any case: what it is about has been done. There are no
        // more of them than threads that wait.
        let bytes = (HELD + data) as u64;
        let account = self.account.as_ref().filter(|_| data > 0);
        let charge = account.map(|account| account.charge(Resource::Memory, bytes));
        match charge.transpose() {
            Ok(charge) => {
                let data = self.room[..data].to_vec();
                Box::new(Waiting { line, message, data, porter, charge })
            }
            // There is no place to keep it.
            Err(_) => {
                fail(&mut message, Errno::ENOMEM);
                Box::new(Waiting { line, message, data: Vec::new(), porter, charge: None })
            }
        }
    }
}

/// A session on a mounted FUSE device, ready to be served.
pub struct SharedMount<F: FileSystem + Send + 'static> {
    session: Revocable<Session<F>>,
    router: Router,
    device: Device,
    /// Writes notifications until the session ends.
    notifier: Option<JoinHandle<()>>,
    /// The kernel's leases.
    cache: Arc<KernelCache>,
    _charge: Option<Charge>,
}

impl<F: FileSystem + Send + 'static> SharedMount<F> {
    /// Answers the kernel's first request on `device`, which [`mount`](super::mount::mount) has
    /// mounted, here or in the process that sent it.
    ///
    /// # Errors
    /// When `device` is not mounted, or the kernel's FUSE is too old.
    pub fn start(
        session: Session<F>,
        device: OwnedFd,
        options: &SharedOptions,
    ) -> io::Result<SharedMount<F>> {
        let place = Revocable::default();
        place.begin(session);
        Self::begin(place, device, None, Porter::none(), options)
    }

    /// The same for a session that may be revoked; serving ends then, and when `hang_up` can be
    /// read or is hung up. `porter` is that of the session's user.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn begin(
        session: Revocable<Session<F>>,
        device: OwnedFd,
        hang_up: Option<Arc<OwnedFd>>,
        porter: Porter,
        options: &SharedOptions,
    ) -> io::Result<SharedMount<F>> {
        let (fence, due) = (Doorbell::new()?, Doorbell::new()?);
        let (fenced, told) = (AtomicBool::new(false), ThreadBell::default());
        let line = Arc::new(Line { device, fenced, fence, due, told });
        let mount = Arc::<Line>::clone(&line);
        let begun = session.with(|session| {
            session.carried();
            let mut kernel = options.kernel;
            if session.volume().is_foreign() {
                // The host changes it too, whoever has it mounted.
                let (KernelOptions { owner, ids, .. }, others) = (kernel, Others::Host);
                kernel = KernelOptions { owner, ids, others, ..KernelOptions::default() };
            }
            // See `caches` for why not everybody's.
            let uid = session.peer().uid;
            let host = Arc::clone(session.volume().host());
            let meter = session.meter().map(|meter| (Arc::clone(meter), Arc::clone(&host)));
            let lends = match kernel.others {
                // Its FORGETs are read late, and answers would wait for them.
                _ if meter.is_some() => Lends::Nothing,
                Others::None => Lends::All,
                Others::Joining => Lends::Timed,
                _ if uid == 0 || uid == rustix::process::geteuid().as_raw() => Lends::Pages,
                _ => Lends::Attributes,
            };
            let cache = session
                .begin_cache(lends, mount)
                .map_err(|error| io::Error::from_raw_os_error(error.raw()))?;
            session.hold_removed();
            let account = session.access().account.clone();
            let gate = Arc::clone(session.volume().gate());
            Ok::<_, io::Error>((kernel, cache, (gate, host), meter, account))
        });
        let (kernel_options, cache, (gate, host), meter, account) =
            begun.ok_or(io::ErrorKind::NotConnected)??;
        let charge = account.as_ref().map(|account| account.charge(Resource::Memory, MOUNT_BYTES));
        let charge = charge.transpose().map_err(|error| io::Error::other(error.to_string()))?;
        let (told, way) = (Arc::clone(&cache), Arc::clone(&line));
        let notifier = std::thread::Builder::new()
            .name("notifier".to_owned())
            .spawn(move || notify(&told, &way, &*host))?;
        keeper::keep(&gate)?;
        let kernel = Kernel::new(Arc::clone(&cache), kernel_options);
        let valid = kernel_options.valid();
        let agrees = ServerOptions { max_data: MAX_WRITE, extensions: Extensions::empty(), valid };
        let device = Device {
            line,
            porter,
            hang_up,
            request: vec![0; MAX_WRITE as usize + REQUEST_ROOM],
            len: 0,
            room: vec![0; MAX_WRITE as usize],
            account,
            requests: Arc::default(),
            meter,
            spin: Spin::of_calls(),
            limit: options.spin,
            aside: Aside::default(),
        };
        let router = Router::of_kernel(agrees, kernel);
        let notifier = Some(notifier);
        let mut mount = SharedMount { session, router, device, notifier, cache, _charge: charge };
        // A kernel of a later major version asks twice.
        for _ in 0..2 {
            if !mount.router.has_begun() && !mount.turn()? {
                return Err(io::ErrorKind::NotConnected.into());
            }
        }
        match mount.router.has_begun() {
            true => Ok(mount),
            false => Err(io::Error::other("the kernel's FUSE is too old")),
        }
    }

    /// How many requests the kernel has sent, which goes on counting while it is served.
    pub fn requests(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.device.requests)
    }

    /// Serves until the file system is unmounted everywhere or its connection aborted. The session
    /// ends with it.
    ///
    /// # Errors
    /// When the device fails; what was not answered then fails in the programs that asked.
    pub fn run(mut self) -> io::Result<()> {
        let result = loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.session.revoke();
        self.drain();
        result
    }

    /// Lets the notifier end, which may wait in the kernel for requests that nobody would answer.
    fn drain(&mut self) {
        let until = Instant::now() + DRAIN;
        let Some(notifier) = self.notifier.take() else { return };
        while !notifier.is_finished() {
            if Instant::now() > until {
                log::warn!("the kernel keeps a thread of a mount that has ended");
                self.cache.give_up();
                return;
            }
            let mut device = [PollFd::new(&self.device.line.device, PollFlags::IN)];
            let wait = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
            if poll(&mut device, Some(&wait)) != Ok(1) {
                continue;
            }
            if !device[0].revents().contains(PollFlags::IN) {
                // Nothing is mounted any more, which the device says at once.
                std::thread::sleep(Duration::from_millis(2));
            } else if let Ok(len) =
                rustix::io::read(&self.device.line.device, &mut self.device.request)
                && let Ok(message) = Message::decode(&self.device.request[..len], &[])
                && message.request.as_ref().map_or(true, Request::is_answered)
            {
                let _ = self.device.line.refuse(message.header.unique, Errno::EIO);
            }
        }
        let _ = notifier.join();
    }

    /// Answers one request; false when there will be no more.
    fn turn(&mut self) -> io::Result<bool> {
        match serve_next(&mut self.device, &mut self.router, &self.session) {
            Ok(_) => Ok(true),
            Err(Ended::Carrier(None) | Ended::Revoked | Ended::Destroyed) => Ok(false),
            Err(Ended::Carrier(Some(error))) => Err(error),
            Err(Ended::Malformed) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "not a FUSE request"))
            }
        }
    }
}

impl Device {
    /// Takes note of what the user has had done.
    fn note(&self, work: Work) {
        if let Some((meter, _)) = &self.meter {
            meter.note(work);
        }
    }

    /// Takes a request that was set aside, once none stands before it.
    fn come_again(&mut self) -> bool {
        let Aside { requests, passed, again } = &mut self.aside;
        *again = false;
        if requests.is_empty() {
            return false;
        }
        self.line.due.silence();
        let is_due = |(_, due): &(_, Arc<AtomicBool>)| due.load(Ordering::Acquire);
        let Some(first) = requests.iter().position(is_due) else { return false };
        let mut device = [PollFd::new(&self.line.device, PollFlags::IN)];
        let stands = poll(&mut device, Some(&Timespec::default())) == Ok(1)
            && device[0].revents() == PollFlags::IN;
        if stands && *passed < PASSED_MAX {
            *passed += 1;
            return false;
        }
        let Some((request, _)) = requests.remove(first) else { return false };
        self.request[..request.len()].copy_from_slice(&request);
        (self.len, *again) = (request.len(), true);
        *passed = 0;
        true
    }

    /// Waits until the user may ask for more; false when the client has hung up, or the mount is to
    /// end.
    fn rest(&self) -> io::Result<bool> {
        let Some((meter, host)) = &self.meter else { return Ok(true) };
        loop {
            let wait = meter.wait(host.uptime());
            if wait.is_zero() {
                return Ok(true);
            }
            let wait = Timespec::try_from(wait).ok();
            let mut watched = vec![PollFd::new(&self.line.fence, PollFlags::IN)];
            watched.extend(self.hang_up.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            match poll(&mut watched, wait.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits for a request.
    fn wait(&mut self) -> io::Result<Woken> {
        if !self.rest()? {
            return Ok(Woken::Over);
        }
        let Device { line, spin, limit, hang_up, .. } = self;
        let device = || PollFd::new(&line.device, PollFlags::IN);
        if line.fenced.load(Ordering::Relaxed) {
            return Ok(Woken::Over);
        }
        // A program that asks for one thing after the other finds this thread awake. A hang-up also
        // revokes the session, so this loop need not look for one.
        spin.begin();
        while !limit.is_zero() {
            if poll(&mut [device()], Some(&Timespec::default())) == Ok(1) {
                return Ok(Woken::Asked);
            }
            if !spin.turn(*limit) {
                break;
            }
        }
        let watch = |bell| PollFd::new(bell, PollFlags::IN);
        // The fence stands for a client that cannot hang up.
        let hang_up = hang_up.as_deref().map_or(line.fence.as_fd(), OwnedFd::as_fd);
        let mut watched = [
            device(),
            watch(&line.due),
            watch(&line.fence),
            PollFd::from_borrowed_fd(hang_up, PollFlags::IN),
        ];
        match poll(&mut watched, None) {
            Err(rustix::io::Errno::INTR) => return Ok(Woken::Due),
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        let [asked, due, ends @ ..] = watched.map(|fd| !fd.revents().is_empty());
        Ok(match (ends.contains(&true), asked, due) {
            (true, ..) => Woken::Over,
            (_, _, true) => Woken::Due,
            _ => Woken::Asked,
        })
    }
}

/// Sends notices to the kernel, until the session has ended and all are sent.
fn notify(cache: &KernelCache, line: &Line, host: &dyn Host) {
    loop {
        match cache.next() {
            Next::Tell(notice) => {
                if let Some(until) = notice.until {
                    std::thread::sleep(until.saturating_sub(host.uptime()));
                    cache.told();
                    continue;
                }
                let began = Instant::now();
                let mut pause = RETRY;
                while notices::tell(&line.device, &notice) == Told::Unknown
                    && cache.is_coming(&notice, began.elapsed())
                {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(RETRY_MAX);
                }
                cache.told();
            }
            Next::Nothing => line.told.wait(None),
            Next::Over => break,
        }
    }
    cache.give_up();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::porter::Porters;
    use std::io::Read;

    #[test]
    fn what_waited_is_given_by_the_porter() {
        let (mut answers, device) = io::pipe().unwrap();
        let (fenced, told) = (AtomicBool::new(false), ThreadBell::default());
        let [fence, due] = [(); 2].map(|()| Doorbell::new().unwrap());
        let line = Arc::new(Line { device: device.into(), fenced, fence, due, told });
        let waiting = |porter| {
            let (line, message, data) = (Arc::clone(&line), b"answer".to_vec(), b" data".to_vec());
            Box::new(Waiting { line, message, data, porter, charge: None })
        };
        let porter = Porters::default().of(7).unwrap();
        // It has something else to do, for which nobody waits who releases an answer.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        porter.run(move || assert!(wait.recv().is_err()));
        assert!(waiting(Some(porter.clone())).release(Ok(())));
        assert_eq!(porter.open(), 2);
        assert!(waiting(None).release(Ok(())));
        let mut answer = [0; 11];
        answers.read_exact(&mut answer).unwrap();
        drop(go);
        answers.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer data");
    }

    #[test]
    fn what_the_kernel_sends_in_the_background() {
        let request = |opcode: u32| [[40, 0, 0, 0], opcode.to_ne_bytes(), [0; 4]].concat();
        assert!(is_background(&request(opcode::FUSE_WRITE)));
        assert!(!is_background(&request(opcode::FUSE_LOOKUP)));
        assert!(!is_background(&[]));
    }
}
