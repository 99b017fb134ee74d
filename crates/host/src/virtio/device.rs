//! One device, as long as one front end has it: a thread that hears the front end, takes requests
//! from its queues and gives answers.
//!
//! Nobody else waits for this thread. It receives what the front end says, and it alone touches the
//! front end's memory, never with a volume locked: requests are copied out of it, answers into it.
//! Only what a front end's guest reads and writes, if no limit binds it, goes between the volume
//! and its place at once (`pieces`). An answer that waits is given by this thread too, which is
//! rung when it may go.
//!
//! A guest begins with INIT; when it is started anew it does so again, and what its last life had
//! open is closed. It is a kernel that hears of no change, so that nobody waits for it; or one that
//! takes notices (`notices`), and is waited for as a mount is.

mod away;
mod moving;

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
use atoll_server::rights::accounts::Account;
use atoll_server::rights::rates::{Meter, Work};
use atoll_server::route::answer::{fail, finish};
use atoll_server::route::kernel::{Kernel, KernelOptions};
use atoll_server::route::router::{Ended, Router, serve_from};
use atoll_vfs::server::ServerOptions;
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::opcode::{
    FUSE_FSYNC, FUSE_INIT, FUSE_OPEN, FUSE_REMOVEMAPPING, FUSE_SETUPMAPPING,
};
use atoll_vfs::wire::session::Extensions;
use atoll_vfs::wire::{Fixed, Message, Request};
use atoll_vfs::{Context, Errno, FileSystem, Rest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost::vhost_user::{BackendReqHandler, Error};

use self::moving::Move;
use super::Broken;
use super::back_end::BackEnd;
pub use super::back_end::{REQUEST_QUEUES, TAG};
use super::carried::{Buffers, Carried, MAX_WRITE, Part, Unanswered, Waiting, data_of};
use super::channel::Channel;
use super::memory::{GONE, GuestMemory};
use super::notices::{self, Notices};
use super::pulse::Pulse;
use super::queue::{Chain, Queue};
use super::window::{Due, Window};
pub use super::window::{RANGE, WINDOW_MAX};
use crate::server::keeper;
use crate::server::placement::{self, Placement};
use crate::shm::Doorbell;
use crate::spin::Spin;

/// The room for what precedes a request's data.
const REQUEST_ROOM: usize = 4096;
/// Bytes that a device takes: its two buffers, its thread and what it has of the server.
pub const DEVICE_BYTES: u64 = 2 * MAX_WRITE as u64 + (256 << 10);
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
    /// Bytes of the window in which files are mapped into the guest: a power of two from [`RANGE`]
    /// to [`WINDOW_MAX`], or 0 for none.
    pub window: u64,
    /// Whether files of a directory are shown there as copies: others cut them short, upon which a
    /// front end that touches what was cut off would die.
    pub copies: bool,
    /// Whether a guest that takes notices is told of changes, and so may keep what it learns; all
    /// others are as `kernel` says.
    pub tells: bool,
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
    /// What the guest is told, if it is.
    notices: Option<Notices>,
    /// The guest's INIT, and its answer.
    began: (Vec<u8>, Vec<u8>),
}

impl<F: FileSystem + Send> Drop for Life<F> {
    fn drop(&mut self) {
        self.place.revoke();
        self.cache.give_up();
    }
}

impl<F: FileSystem + Send> Life<F> {
    /// Begins a session with a guest, which takes notices if there is a `line` for it.
    fn begin(
        place: Revocable<Session<F>>,
        options: &KernelOptions,
        line: Option<Arc<notices::Line>>,
    ) -> Result<Life<F>, String> {
        let mut options = *options;
        let lends = match &line {
            Some(_) => Lends::Names,
            None => Lends::Nothing,
        };
        if line.is_some() {
            options.untold = None;
        }
        let begun = place.with(|session| {
            session.carried();
            let host = session.volume().host();
            let meter = session.meter().map(|meter| (Arc::clone(meter), Arc::clone(host)));
            let cache = match &line {
                Some(line) => session.begin_cache(lends, Arc::<notices::Line>::clone(line)),
                None => session.begin_cache(lends, Arc::new(Untold)),
            };
            let gate = Arc::clone(session.volume().gate());
            cache.map(|cache| (cache, gate, meter, session.access().account.clone()))
        });
        let begun = begun.ok_or("the server shuts down")?;
        let (cache, gate, meter, account) = begun.map_err(|error| error.to_string())?;
        let notices = line.map(|line| Notices::new(Arc::clone(&cache), line));
        if notices.is_some() {
            keeper::keep(&gate).map_err(|error| error.to_string())?;
        }
        let kernel = Kernel::new(Arc::clone(&cache), options);
        let (extensions, valid) = (Extensions::empty(), options.valid());
        let agrees = ServerOptions { max_data: MAX_WRITE, extensions, valid };
        let router = Router::of_kernel(agrees, kernel);
        let began = (Vec::new(), Vec::new());
        Ok(Life { place, router, cache, account, meter, notices, began })
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

/// The session of a guest whose front end went away, for when it connects again.
pub struct Kept<F: FileSystem + Send> {
    life: Life<F>,
    unanswered: Vec<Unanswered>,
    /// What those ring that the session waits for.
    bell: Doorbell,
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
    window: Window,
    /// The front end has stopped the device since the guest began.
    stopped: bool,
    /// The number of the machine, and its empty buffers for notices.
    machine: u64,
    empty: notices::Buffers,
    /// The session was begun with another connection, which left these requests.
    is_kept: bool,
    unanswered: Vec<Unanswered>,
    pulse: Arc<Pulse>,
    moves: Move,
    /// Pays for the states of guests that move.
    account: Option<Arc<Account>>,
}

impl<F: FileSystem + Send> Service<F> {
    /// Serves some requests of each queue. Returns whether there were any.
    fn turn(&mut self, device: &mut BackEnd) -> Result<bool, Broken> {
        self.stopped |= std::mem::take(&mut device.stopped);
        if std::mem::take(&mut device.reset) {
            self.end();
        }
        let mut any = self.go_on_moving(device);
        any |= self.tell(device)?;
        any |= self.release(device)?;
        any |= self.go_on_showing(device)?;
        for part in std::mem::take(&mut self.parts) {
            if !device.queues[part.queue].has(&part.chain) {
                continue;
            }
            // As answers do, it waits for a guest that is stopped: its memory may be another's.
            if part.waits() || !device.queues[part.queue].runs() {
                self.parts.push(part);
                continue;
            }
            let Part { queue, chain, message, rest, .. } = part;
            any = true;
            self.buffers.request[..message.len()].copy_from_slice(&message);
            self.buffers.len = message.len();
            self.serve(device, queue, chain, Some(rest))?;
            device.queues[queue].tell(&device.memory)?;
        }
        let notices = device.notices();
        for number in (0..device.queues.len()).filter(|number| Some(*number) != notices) {
            any |= self.batch(device, number)?;
        }
        Ok(any)
    }

    /// Tells the guest of changes, if it takes notices. Returns whether anything was done.
    fn tell(&mut self, device: &mut BackEnd) -> Result<bool, Broken> {
        let Some(number) = device.notices() else { return Ok(false) };
        let BackEnd { memory, queues, .. } = device;
        let queue = &mut queues[number];
        let came = self.empty.take(queue, memory)?;
        let Some(notices) = self.life.as_mut().and_then(|life| life.notices.as_mut()) else {
            return Ok(!came.is_empty());
        };
        notices.came(&came);
        let sent = notices.send(&mut self.empty, queue, memory)?;
        if notices.is_over() {
            self.end();
            return Ok(true);
        }
        Ok(sent || !came.is_empty())
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
            // What was in flight is known by the record alone.
            if self.is_kept && !queue.has_record() {
                self.end();
            }
            let most = self.buffers.request.len();
            // Those of another back end come first: they are older.
            let taken = match resumed.iter().position(|&(queue, _)| queue == number) {
                Some(at) => {
                    let (_, head) = resumed.remove(at);
                    let chain = queue.resume(memory, head, most)?;
                    any = true;
                    if self.is_kept {
                        self.go_on_with(device, number, chain)?;
                        continue;
                    }
                    Some(chain)
                }
                None => queue.take(memory, most)?,
            };
            let Some(chain) = taken else { break };
            any = true;
            if let Some(life) = &self.life {
                life.note(Work { operations: 1, bytes: chain.sent() });
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
        let tells = device.notices().is_some();
        let BackEnd { memory, queues, .. } = device;
        let queue = &mut queues[number];
        let data = match rest {
            None => {
                let unbound = self.life.as_ref().is_some_and(|life| life.account.is_none());
                self.buffers.fetch(memory, &chain, unbound)?
            }
            Some(_) if self.buffers.len as u64 == chain.sent() => Vec::new(),
            Some(_) => data_of(memory, &chain, self.buffers.len).ok_or(GONE)?,
        };
        let request = &self.buffers.request[..self.buffers.len];
        if request.len() < InHeader::SIZE {
            return Err(Broken("sent no FUSE message"));
        }
        let opcode = InHeader::load(request).opcode;
        match opcode {
            FUSE_INIT if rest.is_none() => self.anew(tells),
            FUSE_SETUPMAPPING | FUSE_REMOVEMAPPING if self.window.is_there() => {
                return self.show(device, number, chain);
            }
            FUSE_FSYNC if self.window.is_there() && rest.is_none() => {
                let header = InHeader::load(request);
                let lost = self.life.as_ref().and_then(|life| {
                    life.place.with(|session| self.window.is_lost(header.nodeid, session))
                });
                if lost == Some(true) {
                    let due = Due { queue: number, chain, unique: header.unique };
                    self.window.refuse(due, Errno::EIO);
                    return self.go_on_showing(device).map(drop);
                }
            }
            FUSE_OPEN if self.window.is_there() => {
                let header = InHeader::load(request);
                let caller = caller(&self.options.kernel, &header);
                if let Some(life) = &self.life {
                    life.place.with(|session| {
                        let cx = Context { now: session.volume().host().now(), ..caller };
                        self.window.refresh(&cx, header.nodeid, session);
                    });
                }
            }
            _ => {}
        }
        let Service { life, buffers, held, parts, bell, pulse, .. } = self;
        let Some(life) = life else {
            return refuse(memory, queue, chain, &buffers.request[..buffers.len]);
        };
        let Life { router, place, account, began, .. } = life;
        if opcode == FUSE_INIT {
            began.0 = buffers.request[..buffers.len].to_vec();
        }
        let account = account.as_ref();
        let answered = (opcode == FUSE_INIT).then_some(&mut began.1);
        let (bytes, in_place, placed) = (0, false, None);
        let mut carried = Carried {
            memory,
            queue,
            number,
            buffers,
            data,
            in_place,
            placed,
            held,
            parts,
            bell,
            account,
            bytes,
            pulse,
            answered,
        };
        pulse.set(true);
        let served = serve_from(&mut carried, chain, rest, router, place);
        pulse.set(false);
        carried.mark()?;
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

    /// Serves the request in the buffers, which is about the window.
    fn show(&mut self, device: &mut BackEnd, queue: usize, chain: Chain) -> Result<(), Broken> {
        let request = &self.buffers.request[..self.buffers.len];
        let message = Message::decode(request, &[]).map_err(|_| Broken("sent no FUSE message"))?;
        let InHeader { unique, nodeid, .. } = message.header;
        let caller = caller(&self.options.kernel, &message.header);
        let due = Due { queue, chain, unique };
        let (window, bell) = (&mut self.window, &self.bell);
        let life = self.life.as_ref().filter(|life| life.router.has_begun());
        match (&message.request, life) {
            (_, None) => window.refuse(due, Errno::EIO),
            (Ok(Request::Setupmapping(args)), Some(life)) => {
                let shown = life.place.with(|session| {
                    let cx = Context { now: session.volume().host().now(), ..caller };
                    window.show(due, (&cx, nodeid, args), session, bell);
                });
                shown.ok_or(Broken("was not expected any more"))?;
            }
            (Ok(Request::Removemapping(ranges)), Some(_)) => window.hide(due, ranges),
            (Ok(_), Some(_)) => window.refuse(due, Errno::ENOSYS),
            (Err(error), Some(_)) => window.refuse(due, *error),
        }
        self.go_on_showing(device).map(drop)
    }

    /// Goes on with what the guest is to be shown. Returns whether something was done.
    fn go_on_showing(&mut self, device: &mut BackEnd) -> Result<bool, Broken> {
        if !self.window.is_there() {
            return Ok(false);
        }
        if self.window.wants_room()
            && let Some(life) = &self.life
        {
            let (window, bell) = (&mut self.window, &self.bell);
            life.place.with(|session| window.show_more(session, bell));
        }
        let mut any = self.window.turn(device.tells_memory.then_some(device.grown));
        let BackEnd { memory, queues, .. } = device;
        self.window.drop_answers(|due| !queues[due.queue].has(&due.chain));
        // A guest that is stopped for a while gets them afterwards.
        while let Some((due, done)) = self.window.answered(|due| queues[due.queue].runs()) {
            let Due { queue, chain, unique } = due;
            let mut answer = [0; OutHeader::SIZE];
            let finished = finish(unique, done.map(|()| 0), &mut answer);
            queues[queue].give(memory, chain, &[&answer[..finished.message]], 0)?;
            queues[queue].tell(memory)?;
            any = true;
        }
        if let Some(life) = &self.life {
            let idle = self.window.take_idle();
            life.place.with(|session| {
                let cx = Context { uid: 0, gid: 0, now: session.volume().host().now() };
                // It is closed, whatever that says.
                idle.into_iter().for_each(|(ino, handle)| {
                    let _ = session.release(&cx, ino, handle);
                });
            });
        }
        Ok(any)
    }

    /// A guest's kernel begins, which is told of changes if it `tells`: for it there is nothing
    /// before.
    fn anew(&mut self, tells: bool) {
        self.end();
        let line = || Arc::new(notices::Line::new(self.machine, self.bell.clone()));
        let line = tells.then(line);
        self.pulse.set(true);
        let begun = (self.begin)().and_then(|place| Life::begin(place, &self.options.kernel, line));
        self.pulse.set(false);
        match begun {
            Ok(life) => self.life = Some(life),
            Err(why) => log::warn!("the guest of {} is refused: {why}", self.options.tag),
        }
    }

    /// The guest's session ends.
    fn end(&mut self) {
        // Waiting requests are answered with an error now, if anybody wants it.
        self.window.forget(std::mem::take(&mut self.stopped));
        let before = self.pulse.set(true);
        self.life = None;
        self.pulse.set(before);
        self.parts.clear();
        self.is_kept = false;
        self.unanswered.clear();
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
        for Waiting { queue, chain, mut message, mut data, mut placed, outcome, .. } in ready {
            if let Some(Err(error)) = outcome.get() {
                fail(&mut message, error);
                data.clear();
                placed = 0;
            }
            let queue = &mut queues[queue];
            queue.give(memory, chain, &[&message, &data], placed)?;
            queue.tell(memory)?;
        }
        Ok(any)
    }
}

/// The caller of a request, at no time.
fn caller(options: &KernelOptions, header: &InHeader) -> Context {
    let named = (header.uid, header.gid);
    let (uid, gid) = options.ids.map_or(named, |ids| ids.caller(named.0, named.1));
    Context { uid, gid, now: atoll_vfs::Timespec::default() }
}

/// Answers a request of a guest that has no session with an error, if an answer is due.
fn refuse(
    memory: &GuestMemory,
    queue: &mut Queue,
    chain: Chain,
    request: &[u8],
) -> Result<(), Broken> {
    let message = Message::decode(request, &[]).map_err(|_| Broken("sent no FUSE message"))?;
    if !message.request.as_ref().map_or(true, Request::is_answered) {
        return queue.give(memory, chain, &[], 0);
    }
    let mut answer = [0; OutHeader::SIZE];
    let refused = finish(message.header.unique, Err(Errno::EIO), &mut answer);
    queue.give(memory, chain, &[&answer[..refused.message]], 0)
}

/// Why a device ends.
enum Over {
    /// The front end went away.
    Left,
    /// It was told to.
    Stopped,
}

/// What came of [`Device::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Requests were served, or answers given.
    Served,
    /// There were none.
    Idle,
    /// The front end has gone.
    Gone,
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
    /// The device for the front end at `socket`, of the machine with this number, whose session of
    /// before it goes on with if that was `kept`. Its thread says by `pulse` when it is at work.
    /// Each time that its guest begins, `begin` begins a session. States of guests that move count
    /// for `account`, if the front end's user has one.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new(
        socket: UnixStream,
        options: DeviceOptions,
        machine: u64,
        kept: Option<Kept<F>>,
        pulse: Arc<Pulse>,
        begin: Begin<F>,
        account: Option<Arc<Account>>,
    ) -> io::Result<Device<F>> {
        let DeviceOptions { tag, queues, window, tells, .. } = &options;
        let state = Arc::new(Mutex::new(BackEnd::new(tag, *queues, *window, *tells)));
        let front_end = BackendReqHandler::from_stream(socket.try_clone()?, Arc::clone(&state));
        let buffers = Buffers {
            request: vec![0; MAX_WRITE as usize + REQUEST_ROOM],
            len: 0,
            room: vec![0; MAX_WRITE as usize],
        };
        let is_kept = kept.is_some();
        let (life, unanswered, bell) = match kept {
            Some(Kept { life, unanswered, bell }) => (Some(life), unanswered, bell),
            None => (None, Vec::new(), Doorbell::new()?),
        };
        // Some may have been rung for while nobody heard.
        bell.ring();
        let (held, parts) = (Vec::new(), Vec::new());
        let (window, stopped) = (Window::new(options.window, options.copies), false);
        let empty = notices::Buffers::default();
        let service = Service {
            options,
            begin,
            life,
            buffers,
            held,
            parts,
            bell,
            window,
            stopped,
            machine,
            empty,
            is_kept,
            unanswered,
            pulse,
            moves: Move::default(),
            account,
        };
        Ok(Device { front_end, socket, state, service })
    }

    /// Serves until the front end goes away, or `stop` can be read. The session has ended then,
    /// unless it is returned: the front end may connect again.
    ///
    /// # Errors
    /// When the front end or its guest breaks a rule.
    pub fn serve(mut self, stop: BorrowedFd<'_>) -> Result<Option<Kept<F>>, String> {
        // A panic costs this guest its session, and nobody else.
        let served = catch_unwind(AssertUnwindSafe(|| self.run(stop)));
        let kept = match served {
            Ok(Ok(Over::Left)) => Ok(self.service.keep(&Self::state(&self.state))),
            Ok(Ok(Over::Stopped)) => Ok(None),
            Ok(Err(why)) => Err(why),
            Err(_) => Err("met an internal error".to_owned()),
        };
        self.service.end();
        kept
    }

    /// Does what there is to do now. It waits for nothing if the front end has sent whole messages.
    /// For tests, which have front end and device in one thread; a panic is theirs.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub fn step(&mut self, stop: BorrowedFd<'_>) -> Result<Step, String> {
        let broken = |Broken(why): Broken| why.to_owned();
        let any = self.service.turn(&mut Self::state(&self.state)).map_err(broken)?;
        match self.wait(stop, true).map_err(broken)? {
            Some(_) => Ok(Step::Gone),
            None if any => Ok(Step::Served),
            None => Ok(Step::Idle),
        }
    }

    fn state(state: &Mutex<BackEnd>) -> MutexGuard<'_, BackEnd> {
        // Only this thread has it.
        state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&mut self, stop: BorrowedFd<'_>) -> Result<Over, String> {
        let broken = |Broken(why): Broken| why.to_owned();
        let limit = self.service.options.spin;
        let (mut spin, mut placement) = (Spin::meek(), Placement::new());
        let mut turns = 0u32;
        loop {
            let any = self.service.turn(&mut Self::state(&self.state)).map_err(broken)?;
            if any {
                turns = turns.wrapping_add(1);
                if placement.served(spin.gives_way(), Instant::now) {
                    // Where it may not move it stays.
                    let _ = placement::leave();
                    spin.moved();
                }
                spin.begin();
                if !turns.is_multiple_of(TURNS) {
                    continue;
                }
            } else if !limit.is_zero() && self.service.rest().is_zero() && spin.turn(limit) {
                continue;
            }
            if let Some(over) = self.wait(stop, any).map_err(broken)? {
                return Ok(over);
            }
            spin.begin();
        }
    }

    /// Waits until there is something to do, or only looks if it is `busy`, and hears the front
    /// end. Returns why the device is to end, if it is.
    fn wait(&mut self, stop: BorrowedFd<'_>, busy: bool) -> Result<Option<Over>, Broken> {
        let rest = self.service.rest();
        let settles = self.service.window.settles();
        let settles = settles.map(|until| until.saturating_duration_since(Instant::now()));
        let (stopped, heard) = {
            let mut state = Self::state(&self.state);
            let notices = state.notices();
            let BackEnd { memory, queues, .. } = &mut *state;
            let mut quiet = !busy;
            // What the guest has done of what it was told counts at any time.
            let heeds = |number| rest.is_zero() || Some(number) == notices;
            if quiet {
                let all = queues.iter_mut().enumerate();
                for (number, queue) in all.filter(|(_, queue)| queue.runs()) {
                    quiet &= !heeds(number) || queue.fall_asleep(memory)?;
                }
            }
            let mut watched = vec![
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::new(&self.socket, PollFlags::IN),
            ];
            watched.push(PollFd::from_borrowed_fd(self.service.bell.as_fd(), PollFlags::IN));
            let heeded = queues.iter().enumerate().filter(|(number, _)| heeds(*number));
            let kicks = heeded.filter_map(|(_, queue)| queue.kick());
            watched.extend(kicks.map(|kick| PollFd::from_borrowed_fd(kick, PollFlags::IN)));
            if let Some((pipe, flags)) = self.service.moves.awaited() {
                watched.push(PollFd::from_borrowed_fd(pipe, flags));
            }
            if let Some(heard) = self.service.window.heard() {
                watched.push(PollFd::from_borrowed_fd(heard, PollFlags::IN));
            }
            let wait = match quiet {
                false => Some(Duration::ZERO),
                true => [(!rest.is_zero()).then_some(rest), settles].into_iter().flatten().min(),
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
            return Ok(Some(Over::Stopped));
        }
        if !heard {
            return Ok(None);
        }
        if self.service.window.is_there() {
            let acknowledges = Self::state(&self.state).acknowledges;
            if let Some(channel) = Channel::take(&self.socket, acknowledges)? {
                self.service.window.connect(channel);
                return Ok(None);
            }
        }
        // A front end that asks what became of a state has given all of it.
        self.service.go_on_moving(&mut Self::state(&self.state));
        match self.front_end.handle_request() {
            Ok(()) | Err(Error::SocketRetry(_)) => Ok(None),
            Err(Error::Disconnected | Error::SocketBroken(_)) => Ok(Some(Over::Left)),
            Err(error) => {
                log::debug!("vhost-user: {error}");
                Err(Broken("broke the rules of vhost-user"))
            }
        }
    }
}
