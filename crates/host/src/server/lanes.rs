//! The lanes of one client's ring, each a [`Carrier`], and the answers that wait.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use atoll_server::Session;
use atoll_server::revocable::Revocable;
use atoll_server::rights::rates::Work;
use atoll_server::route::answer::fail;
use atoll_server::route::carrier::{Carrier, Held, Incoming};
use atoll_server::route::router::{Ended, Router, serve_from};
use atoll_server::route::share::UNIT;
use atoll_transport::channel::{AttachError, Limits, Request as Slot, ServerChannel};
use atoll_vfs::server::ServerOptions;
use atoll_vfs::{FileSystem, Rest};

use super::outcome::Outcome;
use super::porter::{Porter, Sleepers};
use crate::shm::{Doorbell, SharedMemory, wake};

/// Requests of one lane that are answered before the next lane has its turn.
const BATCH: u32 = 8;
/// Bytes that a client of a ring takes: descriptors, its session, this.
pub(super) const CLIENT_BYTES: u64 = 16 << 10;
/// Bytes that a lane takes: its router, with what that keeps of its buffer.
const LANE_BYTES: u64 = 5 << 10;
/// Bytes that an answer takes while it waits.
const HELD_BYTES: u64 = 384;
/// Bytes that a byte of page tables maps.
const MAPPED_BY_A_BYTE: u64 = 512;
/// A client that has sent so many requests in a row is alone.
const ALONE: u32 = 64;

/// Why a client is served no more, in words for the log.
#[derive(Debug)]
pub struct Broken(pub &'static str);

/// A worker's knowledge while it goes round: whether others wait for it, and the lane that the
/// latest requests came by. A sync of a client that has been alone for a while holds up nobody, and
/// is made at once: the syncer would have to be woken, and to wake this thread. A lane has one
/// producer, so that what comes behind the sync is from the client that asked for it.
#[derive(Debug, Default)]
pub struct Latest {
    /// Whether several users have sessions.
    pub shared: bool,
    /// The client's socket, and its lane.
    from: Option<(RawFd, u32)>,
    /// How many in a row, up to a bound.
    requests: u32,
}

impl Latest {
    /// Takes note of a request.
    #[inline]
    fn note(&mut self, from: (RawFd, u32)) {
        if self.from == Some(from) {
            self.requests = (self.requests + 1).min(ALONE);
        } else {
            (self.from, self.requests) = (Some(from), 1);
        }
    }

    /// Whether the one whose request was noted last is alone.
    #[inline]
    fn is_alone(&self) -> bool {
        self.requests == ALONE
    }
}

/// The work of a client's turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    /// Units of work, see [`share`](atoll_server::route::share).
    pub units: u32,
    /// Requests, and bytes of their data and of the places for their answers'.
    pub work: Work,
}

impl Turn {
    #[inline]
    fn note(&mut self, slot: &Slot) {
        let bytes = slot.data().len + slot.room().len;
        self.units += 1 + (bytes / UNIT) as u32;
        self.work.operations += 1;
        self.work.bytes += bytes as u64;
    }
}

/// The server's half of one client's ring.
pub struct Lanes {
    channel: ServerChannel<SharedMemory>,
    /// One for each lane, since each begins with an INIT of its own.
    routers: Vec<Router>,
    /// The lane whose turn is next.
    next: usize,
    /// The message of the request that is being served.
    message: Vec<u8>,
    held: Vec<Waiting>,
    /// Requests that are done in part.
    parts: VecDeque<Part>,
    /// Rung when an answer waits no more.
    bell: Doorbell,
    socket: RawFd,
    wakes: Wakes,
}

impl Lanes {
    /// The lanes in the `memory` of the client at `socket`, which is trusted. `bell` is rung when
    /// answers that waited are to be given: by the next [`turn`](Self::turn).
    ///
    /// # Errors
    /// When the memory makes no sense.
    pub fn attach(
        memory: SharedMemory,
        socket: RawFd,
        bell: Doorbell,
    ) -> Result<Lanes, AttachError> {
        Lanes::attach_by(memory, socket, bell, Porter::none())
    }

    /// As [`attach`](Self::attach), for any client: while others wait, its threads are woken by
    /// `porter`.
    ///
    /// # Errors
    /// As there.
    pub(super) fn attach_by(
        memory: SharedMemory,
        socket: RawFd,
        bell: Doorbell,
        porter: Porter,
    ) -> Result<Lanes, AttachError> {
        let channel = ServerChannel::attach(memory, &Limits::default())?;
        let lanes = channel.layout().config().lanes;
        let routers = (0..lanes).map(|_| Router::new(ServerOptions::default())).collect();
        let message = vec![0; channel.layout().message_max()];
        let (next, held, parts) = (0, Vec::new(), VecDeque::new());
        let sleepers = porter.sleepers(channel.memory(), channel.layout());
        let wakes = Wakes { porter, sleepers };
        Ok(Lanes { channel, routers, next, message, held, parts, bell, socket, wakes })
    }

    /// Bytes of the server's memory that the client takes at most by its lanes, beside
    /// [`CLIENT_BYTES`].
    pub(super) fn cost(&self) -> u64 {
        let layout = self.channel.layout();
        let (lanes, slots) = (u64::from(layout.config().lanes), u64::from(layout.config().slots));
        let tables = layout.total() as u64 / MAPPED_BY_A_BYTE;
        tables + lanes * (LANE_BYTES + slots * HELD_BYTES)
    }

    /// Gives the lanes their batches, as many as `most` units of work allow. Returns the work.
    ///
    /// # Errors
    /// The client is to be served no more.
    pub fn turn<F: FileSystem + Send>(
        &mut self,
        place: &Revocable<Session<F>>,
        latest: &mut Latest,
        most: u32,
    ) -> Result<Turn, Broken> {
        // A panic costs this client its session, and nobody else.
        let turn = catch_unwind(AssertUnwindSafe(|| self.serve(place, latest, most)));
        turn.unwrap_or(Err(Broken("met an internal error")))
    }

    fn serve<F: FileSystem + Send>(
        &mut self,
        place: &Revocable<Session<F>>,
        latest: &mut Latest,
        most: u32,
    ) -> Result<Turn, Broken> {
        let mut turn = Turn::default();
        if !self.held.is_empty() && self.release(latest.shared)? {
            turn.units = 1;
        }
        let Lanes { channel, routers, next, message, held, parts, bell, socket, wakes } = self;
        // Each once, as many as the turn allows: one that is put back comes last.
        for _ in 0..parts.len() {
            if turn.units >= most {
                break;
            }
            let Some(part) = parts.pop_front() else { break };
            if part.waits() {
                parts.push_back(part);
                continue;
            }
            let Part { lane: number, slot, message: whole, rest, .. } = part;
            let Some(router) = routers.get_mut(number as usize) else { continue };
            message[..whole.len()].copy_from_slice(&whole);
            let socket = *socket;
            let mut lane =
                Lane { channel, lane: number, message, held, parts, bell, latest, socket, wakes };
            turn.units += 1;
            served(serve_from(&mut lane, slot, Some(rest), router, place))?;
        }
        if turn.units >= most {
            return Ok(turn);
        }
        for _ in 0..routers.len() {
            let at = if *next < routers.len() { *next } else { 0 };
            *next = at + 1;
            let router = &mut routers[at];
            let lane = at as u32;
            let socket = *socket;
            let mut lane =
                Lane { channel, lane, message, held, parts, bell, latest, socket, wakes };
            for _ in 0..BATCH {
                // A look that finds nothing sets up nothing.
                let Some(slot) = lane.take()? else { break };
                turn.note(&slot);
                served(serve_from(&mut lane, slot, None, router, place))?;
                if turn.units >= most {
                    return Ok(turn);
                }
            }
        }
        Ok(turn)
    }

    /// Gives the answers that wait no more. Returns whether there were any.
    #[cold]
    fn release(&mut self, shared: bool) -> Result<bool, Broken> {
        let Lanes { channel, held, wakes, .. } = self;
        let mut any = false;
        for mut waiting in held.extract_if(.., |waiting| waiting.outcome.get().is_some()) {
            any = true;
            waiting.settle();
            if waiting.reply.len() > channel.layout().message_max() {
                return Err(Broken("left no place for an answer"));
            }
            let wake = wakes.of(&waiting.slot, shared);
            channel.complete(waiting.slot, &waiting.reply, waiting.data, wake);
        }
        Ok(any)
    }

    /// Says that nobody looks; returns whether that may be so. If not, a request has come
    /// meanwhile.
    pub fn fall_asleep(&mut self) -> bool {
        self.channel.fall_asleep()
    }

    /// Says that somebody looks.
    pub fn wake_up(&mut self) {
        self.channel.wake_up();
    }
}

/// How threads of a client are woken.
struct Wakes {
    porter: Porter,
    /// None where the client is trusted.
    sleepers: Option<Arc<Sleepers>>,
}

impl Wakes {
    /// The call that wakes the thread that sleeps at `slot`: by the porter while others wait for
    /// the worker, since the client may make it last.
    #[inline]
    fn of(&self, slot: &Slot, shared: bool) -> impl FnOnce(&SharedMemory, usize) + use<'_> {
        let (lane, slot) = slot.place();
        move |memory, at| match &self.sleepers {
            Some(sleepers) if shared => self.porter.wake(sleepers, lane, slot),
            _ => wake(memory, at),
        }
    }
}

/// The consequence for its client of a request that was served.
fn served(outcome: Result<(), Ended<Broken>>) -> Result<(), Broken> {
    match outcome {
        Ok(()) | Err(Ended::Destroyed) => Ok(()),
        Err(Ended::Carrier(broken)) => Err(broken),
        Err(Ended::Malformed) => Err(Broken("sent no FUSE message")),
        Err(Ended::Revoked) => Err(Broken("was not expected any more")),
    }
}

/// A request that is done in part.
struct Part {
    lane: u32,
    slot: Slot,
    message: Vec<u8>,
    rest: Rest,
    /// Nothing more of it can be done until this is known.
    until: Option<Arc<Outcome>>,
}

impl Part {
    /// Whether it is not to be served yet.
    fn waits(&self) -> bool {
        self.until.as_ref().is_some_and(|until| until.get().is_none())
    }
}

/// An answer that waits.
struct Waiting {
    slot: Slot,
    reply: Vec<u8>,
    data: usize,
    outcome: Arc<Outcome>,
}

impl Waiting {
    /// Makes the reply what has become of it.
    fn settle(&mut self) {
        if let Some(Err(error)) = self.outcome.get() {
            fail(&mut self.reply, error);
            self.data = 0;
        }
    }
}

/// One lane, while it has its turn.
struct Lane<'a> {
    channel: &'a mut ServerChannel<SharedMemory>,
    lane: u32,
    message: &'a mut [u8],
    held: &'a mut Vec<Waiting>,
    parts: &'a mut VecDeque<Part>,
    bell: &'a Doorbell,
    latest: &'a mut Latest,
    socket: RawFd,
    wakes: &'a Wakes,
}

impl Lane<'_> {
    /// Keeps a request that is done in part, until its rest is served.
    fn keep(&mut self, slot: Slot, rest: Rest, until: Option<Arc<Outcome>>) {
        let message = self.message[..slot.message_len()].to_vec();
        self.parts.push_back(Part { lane: self.lane, slot, message, rest, until });
    }
}

impl Carrier for Lane<'_> {
    type Slot = Slot;
    type Error = Broken;

    #[inline]
    fn take(&mut self) -> Result<Option<Slot>, Broken> {
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
        Incoming {
            message: &self.message[..slot.message_len()],
            data: data.into(),
            room: room.into(),
        }
    }

    #[inline]
    fn is_alone(&self) -> bool {
        self.latest.is_alone() && self.held.is_empty()
    }

    #[inline]
    fn takes_back(&self) -> bool {
        true
    }

    fn put_back(&mut self, slot: Slot, rest: Rest) {
        self.keep(slot, rest, None);
    }

    fn put_back_until(&mut self, slot: Slot, rest: Rest) -> Result<Box<dyn Held>, Slot> {
        let outcome = Outcome::new(self.bell.clone());
        let release = outcome.release();
        self.keep(slot, rest, Some(outcome));
        Ok(release)
    }

    #[inline]
    fn answer(&mut self, slot: Slot, message: &[u8], data: usize) -> Result<bool, Broken> {
        if message.len() > self.channel.layout().message_max() {
            return Err(Broken("left no place for an answer"));
        }
        let wake = self.wakes.of(&slot, self.latest.shared);
        self.channel.complete(slot, message, data, wake);
        Ok(true)
    }

    fn hold(&mut self, slot: Slot, message: &[u8], data: usize) -> Box<dyn Held> {
        let outcome = Outcome::new(self.bell.clone());
        let release = outcome.release();
        self.held.push(Waiting { slot, reply: message.to_vec(), data, outcome });
        release
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::porter::Porters;
    use crate::shm::SpinThenSleep;
    use atoll_transport::channel::{ClientChannel, Config, Layout};
    use atoll_transport::transport::Transport;

    #[test]
    fn while_others_wait_the_porter_wakes() {
        let config = Config { lanes: 1, window: 4096, ..Config::default() };
        let memory = SharedMemory::create("test", Layout::new(&config).unwrap().total()).unwrap();
        let mut client = ClientChannel::create(memory.clone(), &config).unwrap();
        let strategy = SpinThenSleep::new(Doorbell::new().unwrap(), || true);
        let token = client.lane(0, strategy).unwrap().send(b"", &[], 0).unwrap();
        let mut server = ServerChannel::attach(memory.clone(), &Limits::default()).unwrap();
        let mut message = vec![0; server.layout().message_max()];
        let slot = server.poll(0, &mut message).unwrap().unwrap();
        let porter = Porters::default().of(7).unwrap();
        let sleepers = porter.sleepers(&memory, server.layout());
        let wakes = Wakes { porter: porter.clone(), sleepers };
        // The porter has something else to do.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        porter.run(move || assert!(wait.recv().is_err()));
        let at = server.layout().answer(0, 0);
        for (shared, open) in [(false, 1), (true, 2), (true, 2)] {
            wakes.of(&slot, shared)(&memory, at);
            assert_eq!(porter.open(), open);
        }
        let trusted = Wakes { porter: Porter::none(), sleepers: None };
        trusted.of(&slot, true)(&memory, at);
        drop((go, token));
    }

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
