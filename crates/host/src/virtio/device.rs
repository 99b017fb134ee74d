//! One device, as long as one front end has it: a thread that hears the front end, takes requests
//! from its queues and gives answers.
//!
//! Nobody else waits for this thread. It receives what the front end says, and it alone touches the
//! front end's memory, never with a volume locked: requests are copied out of it, answers into it.
//! An answer that waits is given by this thread too, which is rung when it may go.
//!
//! A guest begins with INIT; when it is started anew it does so again, and what its last life had
//! open is closed. It is a kernel that hears of no change, so that nobody waits for it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_server::Session;
use atoll_server::host::{Bell, Host};
use atoll_server::leases::caches::{KernelCache, Lends};
use atoll_server::leases::gate::Mount;
use atoll_server::revocable::Revocable;
use atoll_server::rights::accounts::{Account, Charge, Resource};
use atoll_server::rights::rates::{Meter, Work};
use atoll_server::route::answer::{fail, finish};
use atoll_server::route::carrier::{Carrier, Held, Incoming};
use atoll_server::route::kernel::{Kernel, KernelOptions};
use atoll_server::route::router::{Ended, Router, serve_from};
use atoll_vfs::server::ServerOptions;
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::opcode::FUSE_INIT;
use atoll_vfs::wire::session::Extensions;
use atoll_vfs::wire::{Fixed, Message, Request};
use atoll_vfs::{Errno, FileSystem, Rest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost::vhost_user::{BackendReqHandler, Error};

use super::Broken;
use super::back_end::BackEnd;
pub use super::back_end::{REQUEST_QUEUES, TAG};
use super::queue::{Chain, Queue};
use crate::server::outcome::Outcome;
use crate::server::placement::{self, Placement};
use crate::shm::Doorbell;
use crate::spin::Spin;

/// The largest read or write of one request, in bytes.
const MAX_WRITE: u32 = 1 << 20;
/// The room for what precedes a request's data.
const REQUEST_ROOM: usize = 4096;
/// Bytes that a device takes: its two buffers, its thread and what it has of the server.
pub const DEVICE_BYTES: u64 = 2 * MAX_WRITE as u64 + (256 << 10);
/// Bytes that an answer takes while it waits, without its data.
const HELD: usize = 512;
/// The most data of answers that wait, of one guest.
const HELD_MAX: usize = 16 << 20;
/// Requests of one queue that are answered before the next has its turn.
const BATCH: u32 = 16;
/// Turns between two looks at what the front end says, while there are requests.
const TURNS: u32 = 64;

/// How a device is served.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// The name by which the guest mounts it.
    pub tag: String,
    /// Queues for requests.
    pub queues: u16,
    /// How much the guest's kernel may keep.
    pub kernel: KernelOptions,
    /// How long to look for the next request before sleeping.
    pub spin: Duration,
}

/// Begins a session for a guest that begins. The error is for the log.
pub type Begin<F> = Box<dyn FnMut() -> Result<Revocable<Session<F>>, String> + Send>;

/// A guest hears of no change, and so is never waited for.
struct Untold;

impl Bell for Untold {
    fn ring(&self) {}
}

impl Mount for Untold {
    fn fence(&self) {}
}

/// The session of a guest, from INIT to DESTROY.
struct Life<F: FileSystem + Send> {
    place: Revocable<Session<F>>,
    router: Router,
    cache: Arc<KernelCache>,
    account: Option<Arc<Account>>,
    meter: Option<(Arc<Meter>, Arc<dyn Host>)>,
}

impl<F: FileSystem + Send> Drop for Life<F> {
    fn drop(&mut self) {
        self.place.revoke();
        self.cache.give_up();
    }
}

impl<F: FileSystem + Send> Life<F> {
    fn begin(place: Revocable<Session<F>>, options: &KernelOptions) -> Result<Life<F>, String> {
        let begun = place.with(|session| {
            session.carried();
            let host = session.volume().host();
            let meter = session.meter().map(|meter| (Arc::clone(meter), Arc::clone(host)));
            let cache = session.begin_cache(Lends::Nothing, Arc::new(Untold));
            cache.map(|cache| (cache, meter, session.access().account.clone()))
        });
        let begun = begun.ok_or("the server shuts down")?;
        let (cache, meter, account) = begun.map_err(|error| error.to_string())?;
        let kernel = Kernel::new(Arc::clone(&cache), *options);
        let (extensions, valid) = (Extensions::empty(), options.valid());
        let agrees = ServerOptions { max_data: MAX_WRITE, extensions, valid };
        let router = Router::of_kernel(agrees, kernel);
        Ok(Life { place, router, cache, account, meter })
    }

    /// How long until the user may ask for more.
    fn rest(&self) -> Duration {
        self.meter.as_ref().map_or(Duration::ZERO, |(meter, host)| meter.wait(host.uptime()))
    }

    fn note(&self, work: Work) {
        if let Some((meter, _)) = &self.meter {
            meter.note(work);
        }
    }
}

/// The places of the request that is being served.
struct Buffers {
    request: Vec<u8>,
    len: usize,
    room: Vec<u8>,
}

/// A request that is done in part.
struct Part {
    queue: usize,
    chain: Chain,
    message: Vec<u8>,
    rest: Rest,
}

/// An answer that waits.
struct Waiting {
    queue: usize,
    chain: Chain,
    message: Vec<u8>,
    data: Vec<u8>,
    outcome: Arc<Outcome>,
    _charge: Option<Charge>,
}

/// The service that the queues give.
struct Service<F: FileSystem + Send> {
    options: DeviceOptions,
    begin: Begin<F>,
    life: Option<Life<F>>,
    buffers: Buffers,
    held: Vec<Waiting>,
    parts: Vec<Part>,
    /// Rung when an answer waits no more.
    bell: Doorbell,
}

impl<F: FileSystem + Send> Service<F> {
    /// Serves some requests of each queue. Returns whether there were any.
    fn turn(&mut self, device: &mut BackEnd) -> Result<bool, Broken> {
        if std::mem::take(&mut device.reset) {
            self.end();
        }
        let mut any = self.release(device)?;
        for Part { queue, chain, message, rest } in std::mem::take(&mut self.parts) {
            if !device.queues[queue].has(&chain) {
                continue;
            }
            any = true;
            self.buffers.request[..message.len()].copy_from_slice(&message);
            self.buffers.len = message.len();
            self.serve(device, queue, chain, Some(rest))?;
        }
        for number in 0..device.queues.len() {
            any |= self.batch(device, number)?;
        }
        Ok(any)
    }

    /// Serves some requests of a queue.
    fn batch(&mut self, device: &mut BackEnd, number: usize) -> Result<bool, Broken> {
        let mut any = false;
        for _ in 0..BATCH {
            let BackEnd { memory, queues, resumed, .. } = device;
            let queue = &mut queues[number];
            if !queue.runs() || !self.rest().is_zero() {
                break;
            }
            let request = &mut self.buffers.request;
            // Those of another back end come first: they are older.
            let taken = match resumed.iter().position(|&(queue, _)| queue == number) {
                Some(at) => {
                    let (_, head) = resumed.remove(at);
                    Some(queue.resume(memory, head, request)?)
                }
                None => queue.take(memory, request)?,
            };
            let Some((chain, len)) = taken else { break };
            any = true;
            self.buffers.len = len;
            if let Some(life) = &self.life {
                life.note(Work { operations: 1, bytes: len as u64 });
            }
            self.serve(device, number, chain, None)?;
        }
        if any {
            device.queues[number].tell(&device.memory)?;
        }
        Ok(any)
    }

    /// How long until requests may be taken.
    fn rest(&self) -> Duration {
        self.life.as_ref().map_or(Duration::ZERO, Life::rest)
    }

    /// Serves the request in the buffers, or its `rest`.
    fn serve(
        &mut self,
        device: &mut BackEnd,
        number: usize,
        chain: Chain,
        rest: Option<Rest>,
    ) -> Result<(), Broken> {
        let request = &self.buffers.request[..self.buffers.len];
        if request.len() < InHeader::SIZE {
            return Err(Broken("sent no FUSE message"));
        }
        if rest.is_none() && InHeader::load(request).opcode == FUSE_INIT {
            self.anew();
        }
        let Service { life, buffers, held, parts, bell, .. } = self;
        let BackEnd { memory, queues, .. } = device;
        let queue = &mut queues[number];
        let Some(life) = life else {
            return refuse(memory, queue, chain, &buffers.request[..buffers.len]);
        };
        let Life { router, place, account, .. } = life;
        let account = account.as_ref();
        let mut carried =
            Carried { memory, queue, number, buffers, held, parts, bell, account, bytes: 0 };
        let served = serve_from(&mut carried, chain, rest, router, place);
        let bytes = carried.bytes;
        life.note(Work { operations: 0, bytes });
        match served {
            Ok(()) => Ok(()),
            Err(Ended::Destroyed) => {
                self.end();
                Ok(())
            }
            Err(Ended::Carrier(broken)) => Err(broken),
            Err(Ended::Malformed) => Err(Broken("sent no FUSE message")),
            Err(Ended::Revoked) => Err(Broken("was not expected any more")),
        }
    }

    /// A guest's kernel begins: for it there is nothing before.
    fn anew(&mut self) {
        self.end();
        let begun = (self.begin)().and_then(|place| Life::begin(place, &self.options.kernel));
        match begun {
            Ok(life) => self.life = Some(life),
            Err(why) => log::warn!("the guest of {} is refused: {why}", self.options.tag),
        }
    }

    /// The guest's session ends.
    fn end(&mut self) {
        // Waiting requests are answered with an error now, if anybody wants it.
        self.life = None;
        self.parts.clear();
    }

    /// Gives the answers that wait no more. Returns whether there were any.
    fn release(&mut self, device: &mut BackEnd) -> Result<bool, Broken> {
        let BackEnd { memory, queues, .. } = device;
        self.held.retain(|waiting| queues[waiting.queue].has(&waiting.chain));
        // A guest that is stopped for a while gets them afterwards.
        let ready =
            |waiting: &mut Waiting| queues[waiting.queue].runs() && waiting.outcome.get().is_some();
        let ready: Vec<Waiting> = self.held.extract_if(.., ready).collect();
        let any = !ready.is_empty();
        for Waiting { queue, chain, mut message, mut data, outcome, .. } in ready {
            if let Some(Err(error)) = outcome.get() {
                fail(&mut message, error);
                data.clear();
            }
            let queue = &mut queues[queue];
            queue.give(memory, chain, &[&message, &data])?;
            queue.tell(memory)?;
        }
        Ok(any)
    }
}

/// Answers a request of a guest that has no session with an error, if an answer is due.
fn refuse(
    memory: &super::memory::GuestMemory,
    queue: &mut Queue,
    chain: Chain,
    request: &[u8],
) -> Result<(), Broken> {
    let message = Message::decode(request, &[]).map_err(|_| Broken("sent no FUSE message"))?;
    if !message.request.as_ref().map_or(true, Request::is_answered) {
        return queue.give(memory, chain, &[]);
    }
    let mut answer = [0; OutHeader::SIZE];
    let refused = finish(message.header.unique, Err(Errno::EIO), &mut answer);
    queue.give(memory, chain, &[&answer[..refused.message]])
}

/// A queue, while one of its requests is served.
struct Carried<'a> {
    memory: &'a super::memory::GuestMemory,
    queue: &'a mut Queue,
    number: usize,
    buffers: &'a mut Buffers,
    held: &'a mut Vec<Waiting>,
    parts: &'a mut Vec<Part>,
    bell: &'a Doorbell,
    /// Pays for answers that wait.
    account: Option<&'a Arc<Account>>,
    /// Bytes of data that have gone out.
    bytes: u64,
}

impl Carrier for Carried<'_> {
    type Slot = Chain;
    type Error = Broken;

    /// The queue is asked by who has the buffers.
    fn take(&mut self) -> Result<Option<Chain>, Broken> {
        Ok(None)
    }

    fn incoming(&mut self, chain: &Chain) -> Incoming<'_> {
        let Buffers { request, len, room } = &mut *self.buffers;
        let most = chain.room().min(room.len() as u64) as usize;
        Incoming { message: &request[..*len], data: &[], room: &mut room[..most] }
    }

    fn takes_back(&self) -> bool {
        true
    }

    fn put_back(&mut self, chain: Chain, rest: Rest) {
        let message = self.buffers.request[..self.buffers.len].to_vec();
        self.parts.push(Part { queue: self.number, chain, message, rest });
    }

    fn answer(&mut self, chain: Chain, message: &[u8], data: usize) -> Result<bool, Broken> {
        self.bytes += data as u64;
        self.queue.give(self.memory, chain, &[message, &self.buffers.room[..data]])?;
        Ok(true)
    }

    fn hold(&mut self, chain: Chain, message: &[u8], data: usize) -> Box<dyn Held> {
        let outcome = Outcome::new(self.bell.clone());
        let release = outcome.release();
        let (queue, mut message) = (self.number, message.to_vec());
        // An answer without data is kept in any case: what it is about has been done. There are no
        // more of them than descriptors.
        let waits: usize = self.held.iter().map(|waiting| waiting.data.len()).sum();
        let charge = match self.account.filter(|_| data > 0) {
            Some(account) => account.charge(Resource::Memory, (HELD + data) as u64).map(Some),
            None => Ok(None),
        };
        let (data, _charge) = match charge {
            Ok(charge) if waits + data <= HELD_MAX => {
                self.bytes += data as u64;
                (self.buffers.room[..data].to_vec(), charge)
            }
            // There is no place to keep it.
            _ => {
                fail(&mut message, Errno::ENOMEM);
                (Vec::new(), None)
            }
        };
        self.held.push(Waiting { queue, chain, message, data, outcome, _charge });
        release
    }
}

/// A device with its front end.
pub struct Device<F: FileSystem + Send> {
    front_end: BackendReqHandler<Mutex<BackEnd>>,
    /// The same connection.
    socket: UnixStream,
    state: Arc<Mutex<BackEnd>>,
    service: Service<F>,
}

impl<F: FileSystem + Send> Device<F> {
    /// The device for the front end at `socket`. Each time that its guest begins, `begin` begins a
    /// session.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new(
        socket: UnixStream,
        options: DeviceOptions,
        begin: Begin<F>,
    ) -> io::Result<Device<F>> {
        let state = Arc::new(Mutex::new(BackEnd::new(&options.tag, options.queues)));
        let front_end = BackendReqHandler::from_stream(socket.try_clone()?, Arc::clone(&state));
        let buffers = Buffers {
            request: vec![0; MAX_WRITE as usize + REQUEST_ROOM],
            len: 0,
            room: vec![0; MAX_WRITE as usize],
        };
        let (life, held, parts, bell) = (None, Vec::new(), Vec::new(), Doorbell::new()?);
        let service = Service { options, begin, life, buffers, held, parts, bell };
        Ok(Device { front_end, socket, state, service })
    }

    /// Serves until the front end goes away, or `stop` can be read.
    ///
    /// # Errors
    /// When the front end or its guest breaks a rule. Either way the session has ended.
    pub fn serve(mut self, stop: BorrowedFd<'_>) -> Result<(), String> {
        // A panic costs this guest its session, and nobody else.
        let served = catch_unwind(AssertUnwindSafe(|| self.run(stop)));
        self.service.end();
        served.unwrap_or_else(|_| Err("met an internal error".to_owned()))
    }

    fn state(state: &Mutex<BackEnd>) -> MutexGuard<'_, BackEnd> {
        // Only this thread has it.
        state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), String> {
        let broken = |Broken(why): Broken| why.to_owned();
        let limit = self.service.options.spin;
        let (mut spin, mut placement) = (Spin::new(), Placement::new());
        let mut turns = 0u32;
        loop {
            let any = self.service.turn(&mut Self::state(&self.state)).map_err(broken)?;
            if any {
                turns = turns.wrapping_add(1);
                if placement.served(spin.gave_way(), Instant::now) {
                    // Where it may not move it stays.
                    let _ = placement::leave();
                }
                spin.begin();
                if !turns.is_multiple_of(TURNS) {
                    continue;
                }
            } else if !limit.is_zero() && self.service.rest().is_zero() && spin.turn(limit) {
                continue;
            }
            if !self.wait(stop, any).map_err(broken)? {
                return Ok(());
            }
            spin.begin();
        }
    }

    /// Waits until there is something to do, or only looks if it is `busy`, and hears the front
    /// end. Returns false when the device is to end.
    fn wait(&mut self, stop: BorrowedFd<'_>, busy: bool) -> Result<bool, Broken> {
        let rest = self.service.rest();
        let (stopped, heard) = {
            let mut state = Self::state(&self.state);
            let BackEnd { memory, queues, .. } = &mut *state;
            let mut quiet = !busy;
            if quiet && rest.is_zero() {
                for queue in queues.iter_mut().filter(|queue| queue.runs()) {
                    quiet &= queue.fall_asleep(memory)?;
                }
            }
            let mut watched = vec![
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::new(&self.socket, PollFlags::IN),
            ];
            watched.push(PollFd::from_borrowed_fd(self.service.bell.as_fd(), PollFlags::IN));
            if rest.is_zero() {
                let kicks = queues.iter().filter_map(Queue::kick);
                watched.extend(kicks.map(|kick| PollFd::from_borrowed_fd(kick, PollFlags::IN)));
            }
            let wait = match quiet {
                false => Some(Duration::ZERO),
                true => (!rest.is_zero()).then_some(rest),
            };
            let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
            // The next turn looks at all queues, whatever this says of them.
            let _ = poll(&mut watched, wait.as_ref());
            let ready = [0, 1].map(|at| !watched[at].revents().is_empty());
            self.service.bell.silence();
            for queue in queues.iter_mut().filter(|queue| queue.runs()) {
                queue.silence();
                queue.wake_up(memory)?;
            }
            (ready[0], ready[1])
        };
        if stopped {
            return Ok(false);
        }
        if !heard {
            return Ok(true);
        }
        match self.front_end.handle_request() {
            Ok(()) | Err(Error::SocketRetry(_)) => Ok(true),
            Err(Error::Disconnected | Error::SocketBroken(_)) => Ok(false),
            Err(error) => {
                log::debug!("vhost-user: {error}");
                Err(Broken("broke the rules of vhost-user"))
            }
        }
    }
}
