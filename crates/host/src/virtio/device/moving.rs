//! A guest that goes on with another device, here or at another server: its state goes to the front
//! end, and comes from one.
//!
//! The queues are stopped meanwhile. A guest whose state has gone is as before until another device
//! here goes on with it: the move may come to nothing, and the guest goes on where it was.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_server::route::carrier::{Carrier, Held, Incoming};
use atoll_server::route::kernel::{KernelOptions, Others};
use atoll_server::route::router::serve_from;
use atoll_vfs::wire::Fixed;
use atoll_vfs::wire::header::InHeader;
use atoll_vfs::wire::opcode::{FUSE_INIT, FUSE_SETLKW};
use atoll_vfs::{Data, FileSystem, Result as VfsResult, Room};
use rustix::event::PollFlags;

use super::{Life, Service};
use crate::virtio::Broken;
use crate::virtio::back_end::{Asked, BackEnd};
use crate::virtio::state::{Begun, DeviceState, NONE, STATE_MAX};
use crate::virtio::transfer::{Progress, Transfer};

/// A guest's move.
#[derive(Default)]
pub(super) struct Move {
    transfer: Option<Transfer>,
    /// The state has gone; set when another device here has gone on with it.
    left: Option<Arc<AtomicBool>>,
}

impl Move {
    /// The pipe that is waited for.
    pub fn awaited(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.transfer.as_ref().map(Transfer::awaited)
    }

    /// Whether the state of the guest has gone.
    pub fn has_left(&self) -> bool {
        self.left.is_some()
    }
}

/// An INIT that comes of a state, and its answer.
struct Replayed<'a> {
    init: &'a [u8],
    answer: Vec<u8>,
}

/// Nobody waits for it.
struct Unwanted;

impl Held for Unwanted {
    fn release(self: Box<Self>, _: VfsResult<()>) -> bool {
        false
    }
}

impl Carrier for Replayed<'_> {
    type Slot = ();
    type Error = Broken;

    fn take(&mut self) -> Result<Option<()>, Broken> {
        Ok(None)
    }

    fn incoming(&mut self, (): &()) -> Incoming<'_> {
        Incoming { message: self.init, data: Data::new(&[]), room: Room::from(&mut [][..]) }
    }

    fn answer(&mut self, (): (), message: &[u8], _: usize) -> Result<bool, Broken> {
        self.answer = message.to_vec();
        Ok(true)
    }

    fn hold(&mut self, (): (), _: &[u8], _: usize) -> Box<dyn Held> {
        Box::new(Unwanted)
    }
}

/// How much a guest may keep, which has to be the same where it goes on: its kernel does not ask
/// again for what it has kept.
fn keeps(options: &KernelOptions) -> u64 {
    let others = match options.others {
        Others::Any | Others::Joining | Others::Host => 0,
        Others::None => 2,
    };
    let untold = options.untold.map_or(0, |seconds| seconds.saturating_add(1));
    others | u64::from(options.unchanging) << 2 | untold << 3
}

impl<F: FileSystem + Send> Service<F> {
    /// Goes on with the move of the guest, if it moves. Returns whether something was done.
    pub(super) fn go_on_moving(&mut self, device: &mut BackEnd) -> bool {
        if self.moves.left.as_ref().is_some_and(|left| left.load(Ordering::SeqCst)) {
            self.moves.left = None;
            log::info!("the guest of {} has gone on elsewhere", self.options.tag);
            self.end();
        }
        if let Some(asked) = device.asked.take() {
            device.moved_well = false;
            let account = self.account.clone();
            let begun = match asked {
                Asked::Save(pipe) => self
                    .save(device)
                    .and_then(|state| Transfer::give(pipe, state, account.as_ref())),
                Asked::Load(pipe) => Transfer::take(pipe, account.as_ref()),
            };
            self.moves.transfer = begun.inspect_err(|why| self.say(why)).ok();
        }
        let Some(transfer) = &mut self.moves.transfer else { return false };
        let done = match transfer.go_on() {
            Progress::Waits => return false,
            Progress::Gone => Ok(()),
            Progress::Came(bytes) => self.load(device, &bytes),
            Progress::Failed => Err("its transfer breaks off"),
        };
        // The front end hears of the end by this.
        self.moves.transfer = None;
        device.moved_well = done.is_ok();
        if let Err(why) = done {
            self.say(why);
        }
        true
    }

    fn say(&self, why: &str) {
        log::warn!("the guest of {} cannot move: {why}", self.options.tag);
    }

    /// The device's state.
    fn save(&mut self, device: &BackEnd) -> Result<Vec<u8>, &'static str> {
        if device.queues.iter().any(|queue| queue.started) {
            return Err("it has not been stopped");
        }
        let keeps = keeps(&self.options.kernel);
        let Some(life) = self.life.as_ref().filter(|life| life.router.has_begun()) else {
            return Ok(DeviceState { keeps, begun: None }.store());
        };
        if life.notices.is_some() {
            return Err("it is told of changes (cache=told)");
        }
        if self.window.is_there() {
            return Err("it has a window (dax)");
        }
        if !self.parts.is_empty() || !device.resumed.is_empty() {
            return Err("a request has been done in part");
        }
        // A guest that came here and moves on before it has run has its requests ahead of it.
        let ahead = device.waits.iter().map(|&(queue, head)| (queue as u16, head));
        let mut waits: Vec<(u16, u16)> = ahead.collect();
        for waiting in &self.held {
            let queue = &device.queues[waiting.queue];
            if !queue.has(&waiting.chain) {
                continue;
            }
            let mut header = [0; InHeader::SIZE];
            let there = waiting.chain.sent() >= header.len() as u64
                && waiting.chain.copy(&device.memory, 0, &mut header).is_ok();
            // Asking again for a lock does nothing twice.
            if !there || InHeader::load(&header).opcode != FUSE_SETLKW {
                return Err("a request waits for its answer");
            }
            waits.push((waiting.queue as u16, waiting.chain.head()));
        }
        let (init, answer) = life.began.clone();
        let saved = life.place.with(|session| session.save());
        let (session, left) = saved.ok_or("the server shuts down")??;
        let state = DeviceState { keeps, begun: Some(Begun { init, answer, session, waits }) };
        let bytes = state.store();
        if bytes.len() > STATE_MAX || DeviceState::load(&bytes).is_none() {
            return Err("it knows more than a state holds");
        }
        self.moves.left = Some(left);
        Ok(bytes)
    }

    /// Goes on with the state in `bytes`.
    fn load(&mut self, device: &mut BackEnd, bytes: &[u8]) -> Result<(), &'static str> {
        let state = DeviceState::load(bytes).ok_or(NONE)?;
        if device.queues.iter().any(|queue| queue.started) || self.life.is_some() {
            return Err("the device has a guest");
        }
        if state.keeps != keeps(&self.options.kernel) {
            return Err("it may keep less, or more, here (cache=)");
        }
        let Some(begun) = state.begun else { return Ok(()) };
        if self.window.is_there() || device.notices().is_some() {
            return Err("the device has a window, or tells of changes");
        }
        if begun.init.len() < InHeader::SIZE || InHeader::load(&begun.init).opcode != FUSE_INIT {
            return Err(NONE);
        }
        let place = (self.begin)();
        let life = place.and_then(|place| Life::begin(place, &self.options.kernel, None));
        let mut life = life.map_err(|why| {
            log::warn!("the guest of {} is refused: {why}", self.options.tag);
            "it is refused"
        })?;
        let mut replayed = Replayed { init: &begun.init, answer: Vec::new() };
        let Life { router, place, .. } = &mut life;
        serve_from(&mut replayed, (), None, router, place).map_err(|_| NONE)?;
        if replayed.answer != begun.answer || !life.router.has_begun() {
            return Err("other features are agreed here");
        }
        life.began = (begun.init, begun.answer);
        let gone_on = life.place.with(|session| session.go_on(&begun.session));
        gone_on.ok_or("the server shuts down")??;
        self.life = Some(life);
        device.waits = begun.waits.iter().map(|&(queue, head)| (queue.into(), head)).collect();
        Ok(())
    }
}
