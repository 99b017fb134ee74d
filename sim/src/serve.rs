//! The server takes requests out of clients' lines, and clients get their answers: both when the
//! seed says so, and the judges look at each.

use std::time::Duration;

use atoll_server::LockOwner;
use atoll_server::host::Host;
use atoll_server::route::router::{Ended, serve_next};
use atoll_vfs::{Context, Errno, OpenFlags, Result};

use crate::call::{Answer, Call, File, Node, Twin};
use crate::carrier::{Letter, Reply};
use crate::codec::{self, Manners, open_reply};
use crate::locks::Asked;
use crate::plant::Plant;
use crate::rights;
use crate::seat::{Arrived, Begun, HOSTILE_LOCKS, Made, Opened, Pending, Seat, Stage, What};
use crate::world::{Outcome, World, trace};

/// Inodes that a client remembers, but for its root.
const NODES_MAX: usize = 8;

/// A number for the digest.
fn number_of(answer: &Result<Answer>) -> u64 {
    match answer {
        Ok(Answer::Attr(attr) | Answer::Created(attr, _)) => {
            attr.size ^ u64::from(attr.mode) << 40 ^ u64::from(attr.nlink) << 20 ^ attr.ino.0 << 32
        }
        Ok(Answer::Opened(handle)) => handle.0,
        Ok(Answer::Bytes(bytes)) => xxhash_rust::xxh3::xxh3_64(bytes),
        Ok(Answer::Wrote(len)) => *len as u64,
        Ok(Answer::Names(names)) => names.len() as u64,
        Ok(Answer::Done) => 0,
        Err(error) => u64::MAX - error.raw() as u64,
    }
}

/// A request that was just served.
#[derive(Clone, Copy)]
pub(crate) struct Own {
    id: u64,
    cx: Context,
    /// The device failed meanwhile.
    failed: bool,
}

impl World {
    /// The server takes the next request of the client number `at`.
    pub(crate) fn serve(&mut self, at: usize) -> Outcome<()> {
        // No two calls are at the same time.
        self.machine.pass(Duration::from_micros(1));
        let forgets_first = self.seats[at].line.has_forgets() && self.rng.chance(50);
        let seat = &mut self.seats[at];
        let Some(id) = seat.line.choose(forgets_first) else { return Ok(()) };
        let cx = seat.role.context(self.machine.now());
        let what =
            self.pending.iter().find(|pending| pending.id == id).map(|pending| &pending.what);
        seat.line.waits_for_others = match what {
            Some(What::Sync(..) | What::Lock(_)) => true,
            Some(What::Call(made)) => made.manners.dsync,
            _ => false,
        };
        let flying = match what {
            Some(What::Call(made)) => Some((cx, made.call)),
            _ => None,
        };
        // A ring's lane says so when nobody else has asked for a while.
        let is_sync = matches!(what, Some(What::Sync(..)));
        seat.line.is_alone = is_sync && seat.kernel.is_none() && self.rng.chance(30);
        // Sometimes it is the last that the process does, or does in part.
        let cut = self.options.turns > 0 && id > 0 && self.rng.chance(1);
        if cut {
            let mut device = self.disk.device();
            let after = device.events() + self.rng.within(1..5);
            device.faults.stop_after = Some(after);
        }
        let errors = self.disk.errors();
        let Seat { line, router, place, .. } = &mut self.seats[at];
        let served = serve_next(line, router, place);
        if cut {
            let mut device = self.disk.device();
            device.note_flushers();
            if device.is_stopped() {
                drop(device);
                trace!(self, "the process ends within request {id}");
                return self.process_end(flying);
            }
            device.faults.stop_after = None;
        }
        self.counts.calls += 1;
        let failed = self.disk.errors() > errors;
        self.take_letters(Some(Own { id, cx, failed }))?;
        match served {
            Ok(true) => Ok(()),
            Ok(false) => Err("a request is not served".into()),
            Err(ended) => self.ended(at, &ended),
        }
    }

    /// The server says that it serves the client number `at` no more.
    fn ended(&mut self, at: usize, why: &Ended<std::convert::Infallible>) -> Outcome<()> {
        let seat = &mut self.seats[at];
        trace!(self, "session {} is served no more: {why:?}", seat.id.0);
        if !seat.role.is_hostile() {
            return Err(format!("session {} of {:?} is dropped: {why:?}", seat.id.0, seat.role));
        }
        match why {
            // A lane goes on, and a device does not.
            Ended::Destroyed if seat.kernel.is_none() => {}
            _ => {
                self.counts.dropped += 1;
                self.stand_up(at, true);
                if self.options.plant == Some(Plant::DroppedNeighbour) {
                    self.seats.iter().for_each(|seat| seat.place.revoke());
                }
            }
        }
        Ok(())
    }

    /// Takes what the outbox has got, in order. `own` is the request that was just served.
    pub(crate) fn take_letters(&mut self, own: Option<Own>) -> Outcome<()> {
        let letters = self.outbox.take();
        if let Some(own) = &own {
            self.let_go_first(own.id, &letters)?;
        }
        for letter in letters {
            match letter {
                Letter::Released { id, outcome } => self.released(id, outcome)?,
                Letter::Answered { id, reply } => self.arrived(id, &reply, false, own)?,
                Letter::Held { id, reply } => self.arrived(id, &reply, true, own)?,
            }
        }
        Ok(())
    }

    /// The request `own` lets go of its locks before it lets others in.
    fn let_go_first(&mut self, own: u64, letters: &[Letter]) -> Outcome<()> {
        let reply = letters.iter().find_map(|letter| match letter {
            Letter::Answered { id, reply } | Letter::Held { id, reply } if *id == own => {
                Some(reply)
            }
            _ => None,
        });
        let (Some(reply), Some(pending)) = (reply, self.pending(own)) else { return Ok(()) };
        let (session, what) = (pending.seat, &pending.what);
        match what {
            What::Lock(asked) => {
                let asked = *asked;
                let result = open_reply(own, reply)?.map(drop);
                if !matches!(result, Err(Errno::EBADF | Errno::ESTALE)) {
                    self.locks.convert(&asked);
                }
                let is_held = letters
                    .iter()
                    .any(|letter| matches!(letter, Letter::Held { id, .. } if *id == own));
                if result.is_ok() && !is_held {
                    if asked.request.kind.is_some() && self.locks.is_blocked(&asked) {
                        return Err(format!("two have a lock of the same bytes: {asked:?}"));
                    }
                    self.locks.set(&asked);
                    let held = self.locks.count(session);
                    let hoards = self.seats.iter().any(|seat| seat.id == session && seat.hoards);
                    if hoards && held > HOSTILE_LOCKS {
                        return Err(format!("a client has {held} locks of {HOSTILE_LOCKS}"));
                    }
                }
            }
            What::Flush(file, process) => {
                let owner = (session, LockOwner::Process(*process), 0);
                let ino = file.node.model;
                if open_reply(own, reply)?.is_ok() {
                    self.locks.drop_all(owner, ino);
                }
            }
            What::Call(made) => {
                if let Call::Release { file } = made.call {
                    let (handle, ino) = (file.handle.served.0, file.node.model);
                    // A close that cannot be noted on a device that failed closes the file all the
                    // same.
                    if matches!(open_reply(own, reply)?, Ok(_) | Err(Errno::EIO)) {
                        self.locks.drop_all((session, LockOwner::OpenFile, handle), ino);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn pending(&mut self, id: u64) -> Option<&mut Pending> {
        self.pending.iter_mut().find(|pending| pending.id == id)
    }

    /// There is an answer to the request `id`, which may be `held`.
    fn arrived(&mut self, id: u64, reply: &Reply, held: bool, own: Option<Own>) -> Outcome<()> {
        let Some(Own { cx, failed, .. }) = own.filter(|own| own.id == id) else {
            return Err(format!("request {id} is answered while another is served"));
        };
        let Some(at) = self.pending.iter().position(|pending| pending.id == id) else {
            return match reply.message.is_empty() {
                true => Ok(()),
                false => Err("what needs no answer has one".into()),
            };
        };
        let Pending { seat, what, .. } = &mut self.pending[at];
        let session = *seat;
        let Some(seat_at) = self.seats.iter().position(|seat| seat.id == session) else {
            return Ok(());
        };
        let what = std::mem::replace(what, What::Raw(0));
        let arrived = Arrived { id, reply, held, cx, failed };
        let what = match what {
            What::Call(made) => What::Call(self.call_arrived(seat_at, made, &arrived)?),
            What::Sync(file, _) => {
                let begun = self.sync_arrived(seat_at, file, &arrived)?;
                What::Sync(file, begun.then(|| self.begun()))
            }
            What::Lock(asked) => self.lock_arrived(seat_at, asked, &arrived)?,
            What::Flush(file, process) => {
                let gone = [Errno::EBADF, Errno::ESTALE];
                match open_reply(id, reply)? {
                    Err(error) if !self.seats[seat_at].role.is_free() && gone.contains(&error) => {}
                    Ok([]) => {}
                    other => return Err(format!("a flush is answered {other:?}")),
                }
                What::Flush(file, process)
            }
            What::Raw(unique) => {
                self.raw_arrived(seat_at, unique, &arrived)?;
                What::Raw(unique)
            }
        };
        let pending = &mut self.pending[at];
        pending.what = what;
        pending.stage = if held { Stage::Held } else { Stage::Due };
        if !held {
            self.due.push((id, Ok(())));
        }
        Ok(())
    }

    fn call_arrived(
        &mut self,
        at: usize,
        mut made: Box<Made>,
        arrived: &Arrived<'_>,
    ) -> Outcome<Box<Made>> {
        let role = self.seats[at].role;
        made.held = arrived.held.then(|| self.now());
        let (answer, beside) =
            codec::answer(&made.call, arrived.id, arrived.reply, role.dialect())?;
        trace!(self, "request {} is done: {answer:?}{}", arrived.id, held(arrived));
        self.note(&[19, arrived.id, number_of(&answer), u64::from(arrived.held)]);
        made.beside = beside;
        // A device that failed may keep a file that was to go with its last handle.
        let mut is_gone = |node| self.mirror.attr(node).is_none();
        if self.disk.has_failed() && made.call.nodes().into_iter().flatten().any(&mut is_gone) {
            made.answer = Err(Errno::EIO);
            return Ok(made);
        }
        let closed = made.call.file().filter(|file| self.seats[at].opened(file).is_none());
        if let (Some(file), Ok(_)) = (closed, &answer) {
            return Err(format!("{:?} was allowed though {file:?} is closed", made.call));
        }
        if let Err(Errno::EIO | Errno::EROFS) = answer
            && self.may_fail(&made.call, arrived)
        {
            self.counts.errors += 1;
            if let Some(open) = made.call.file().and_then(|file| self.seats[at].opened(&file))
                && made.call.closes()
            {
                self.mirror.close(open);
                self.seats[at].files.retain(|open| Some(open.file) != made.call.file());
            }
            made.answer = answer;
            return Ok(made);
        }
        if let Err(error) = &answer
            && (closed.is_some() || rights::may_refuse(&mut self.mirror, role, &made.call, *error))
        {
            // The model does not do this call.
            made.answer = answer;
            return Ok(made);
        }
        if answer.is_ok() && !rights::allows(&mut self.mirror, role, &made.call) {
            return Err(format!("user {} was allowed {:?}", role.uid(), made.call));
        }
        let judged = self.mirror.judge(&arrived.cx, &made.call, &answer, role.is_mount())?;
        // The last to close a file without a name ends it.
        if role.is_read_only() && !judged.changed.is_empty() && !made.call.closes() {
            return Err(format!("a client that may only look was allowed {:?}", made.call));
        }
        if made.manners.dsync && answer.is_ok() {
            if !arrived.held {
                return Err("a write by O_DSYNC is answered without a sync".into());
            }
            made.durable = Some(self.begun());
        }
        let seat = &mut self.seats[at];
        made.node = seat.learned(&made.call, &answer, &judged.model, beside.buffered);
        made.number = Some(self.mirror.now());
        (made.answer, made.sees, made.changed) = (answer, judged.sees, judged.changed);
        Ok(made)
    }

    /// Judges the answer to a sync. Returns whether it is more than an error.
    fn sync_arrived(
        &mut self,
        at: usize,
        file: Option<File>,
        arrived: &Arrived<'_>,
    ) -> Outcome<bool> {
        let seat = &self.seats[at];
        let gone = !seat.role.is_free() || file.is_some_and(|file| seat.opened(&file).is_none());
        match open_reply(arrived.id, arrived.reply)? {
            // The file is closed, or not the client's to name any more.
            Err(Errno::ESTALE | Errno::EBADF) if gone => Ok(false),
            Err(Errno::EIO) if self.disk.has_failed() => {
                self.counts.errors += 1;
                self.disk.lose();
                Ok(false)
            }
            Err(error) => Err(format!("a sync is refused: {error}")),
            Ok([]) if arrived.held => Ok(true),
            Ok([]) => self.durable(self.begun()).map(|()| true),
            Ok(more) => Err(format!("a sync is answered {more:?}")),
        }
    }

    fn begun(&self) -> Begun {
        Begun { effects: self.mirror.effects(), is_late: self.disk.is_lost() }
    }

    /// A client is told that all that a sync covers is durable.
    fn durable(&mut self, begun: Begun) -> Outcome<()> {
        if begun.is_late {
            return Err("a sync is answered as if none had failed".into());
        }
        self.mirror.synced(begun.effects);
        Ok(())
    }

    /// Whether `call` may be answered EIO: the device failed meanwhile, or before, and takes no
    /// changes any more.
    fn may_fail(&self, call: &Call, arrived: &Arrived<'_>) -> bool {
        arrived.failed || call.has_effect() && self.disk.has_failed()
    }

    fn lock_arrived(&mut self, at: usize, asked: Asked, arrived: &Arrived<'_>) -> Outcome<What> {
        let result = open_reply(arrived.id, arrived.reply)?.map(drop);
        trace!(self, "request {} is done: {result:?}{}", arrived.id, held(arrived));
        self.note(&[10, arrived.id, result.is_ok().into(), arrived.held.into()]);
        let blocked = asked.request.kind.is_some() && self.locks.is_blocked(&asked);
        match result {
            Ok(()) => {}
            Err(Errno::EAGAIN | Errno::EDEADLK) if blocked => {}
            // Not open for it, or not the client's to name any more.
            Err(Errno::EBADF | Errno::ESTALE) => {}
            Err(Errno::ENOLCK) if self.seats[at].role.is_hostile() => self.counts.bounded += 1,
            Err(error) => return Err(format!("{asked:?} is refused: {error}")),
        }
        Ok(What::Lock(asked))
    }

    /// The wait of the answer to the request `id` is over.
    fn released(&mut self, id: u64, outcome: Result<()>) -> Outcome<()> {
        let troubled = self.disk.has_failed();
        let Some(pending) = self.pending(id) else { return Ok(()) };
        if pending.stage != Stage::Held {
            return Err(format!("request {id} is released, and was not held"));
        }
        pending.stage = Stage::Due;
        match &pending.what {
            What::Lock(asked) => {
                let (asked, interrupted) = (*asked, pending.interrupted);
                match outcome {
                    Ok(()) if self.locks.is_blocked(&asked) => {
                        return Err(format!("two have a lock of the same bytes: {asked:?}"));
                    }
                    Ok(()) => self.locks.set(&asked),
                    Err(Errno::EINTR) if interrupted => self.counts.interrupted += 1,
                    Err(error) => return Err(format!("{asked:?} came to {error}")),
                }
            }
            What::Sync(_, begun) => {
                let begun = *begun;
                match outcome {
                    Ok(()) => begun.map_or(Ok(()), |begun| self.durable(begun))?,
                    Err(Errno::EIO) if troubled => {
                        self.counts.errors += 1;
                    }
                    Err(error) => return Err(format!("a sync failed: {error}")),
                }
            }
            What::Call(made) => match (made.durable, outcome) {
                (Some(begun), Ok(())) => self.durable(begun)?,
                (None, Ok(())) => {}
                (Some(_), Err(Errno::EIO)) if troubled => {
                    self.counts.errors += 1;
                }
                (_, Err(error)) => return Err(format!("{:?} came to {error}", made.call)),
            },
            What::Flush(..) | What::Raw(_) => {}
        }
        self.due.push((id, outcome));
        Ok(())
    }

    /// A mount's cut of a file is answered after a second, whatever its own kernel has not
    /// forgotten: that kernel may wait for the answer (docs/PROTOCOL.md, "What is not so").
    fn is_stuck_cut(&self, at: usize, made: &Made) -> bool {
        let cuts = matches!(made.call, Call::Setattr { set, .. } if set.size.is_some());
        let waited = made.held.is_some_and(|since| self.now() >= since + STUCK);
        cuts && waited && self.seats[at].kernel.is_some()
    }

    /// The answer to the request `id` is given.
    pub(crate) fn answer(&mut self, id: u64, outcome: Result<()>) {
        let Some(at) = self.pending.iter().position(|pending| pending.id == id) else { return };
        let Pending { seat, what, .. } = self.pending.swap_remove(at);
        trace!(self, "session {} gets the answer to {id}: {outcome:?}", seat.0);
        self.note(&[11, id, outcome.is_ok().into()]);
        let Some(at) = self.seats.iter().position(|other| other.id == seat) else { return };
        match what {
            What::Sync(..) | What::Lock(_) | What::Raw(_) => {}
            What::Flush(file, 0) => self.send_flush(at, file, 1),
            What::Flush(file, _) => {
                self.send_call(at, Call::Release { file }, Manners::default());
            }
            What::Call(made) => {
                // Two programs that read one page through two kernels may see a change in either
                // order; the close of a file says nothing of it.
                let silent = made.manners.for_cache || made.call.closes();
                if !silent && !self.is_stuck_cut(at, &made) {
                    self.mirror.told(&made.sees);
                }
                self.seats[at].told(*made);
            }
        }
    }
}

/// The time after which the older of two cuts that wait for each other is answered.
const STUCK: Duration = Duration::from_secs(1);

fn held(arrived: &Arrived<'_>) -> &'static str {
    if arrived.held { ", and waits" } else { "" }
}

impl Seat {
    /// The open files that the client knows of.
    pub fn usable(&self) -> impl Iterator<Item = &Opened> {
        self.files.iter().filter(|open| open.usable)
    }

    /// The record of an open file.
    pub fn opened(&self, file: &File) -> Option<&Opened> {
        self.files.iter().find(|open| open.file == *file)
    }

    /// Notes what the server has given, before the client is told: files count as open from now on.
    fn learned(
        &mut self,
        call: &Call,
        answer: &Result<Answer>,
        model: &Result<Answer>,
        buffered: bool,
    ) -> Option<Node> {
        let (node, handle) = match (answer, model) {
            (Ok(Answer::Attr(served)), Ok(Answer::Attr(model))) => {
                (Node { served: served.ino, model: model.ino }, None)
            }
            (Ok(Answer::Created(served, handle)), Ok(Answer::Created(model, other))) => {
                let node = Node { served: served.ino, model: model.ino };
                (node, Some(Twin { served: *handle, model: *other }))
            }
            (Ok(Answer::Opened(handle)), Ok(Answer::Opened(other))) => {
                (call.nodes()[0]?, Some(Twin { served: *handle, model: *other }))
            }
            (Ok(_), _) => {
                if call.closes() {
                    self.files.retain(|open| Some(open.file) != call.file());
                }
                return None;
            }
            _ => return None,
        };
        if let Some(handle) = handle {
            let file = File { node, handle };
            let is_dir = matches!(call, Call::Opendir { .. });
            let buffered = buffered && self.kernel.is_some() && !is_dir;
            let reads = match call {
                Call::Open { flags, .. } | Call::Create { flags, .. } => {
                    flags.contains(OpenFlags::READ)
                }
                _ => false,
            };
            let (appends, usable) = (false, false);
            self.files.push(Opened { file, is_dir, appends, reads, buffered, usable });
        }
        Some(node)
    }

    /// The client is told.
    fn told(&mut self, made: Made) {
        let Made { call, manners, answer, beside, number, changed, node, version, .. } = made;
        let asked = call.nodes()[0];
        if let Some(kernel) = &mut self.kernel {
            if manners.for_cache
                && let Some(node) = asked
            {
                kernel.end_reading(node.served, number.filter(|_| answer.is_ok()));
            }
            let gives = !matches!(call, Call::Getattr { .. } | Call::Setattr { .. });
            let is_entry = matches!(answer, Ok(Answer::Attr(_) | Answer::Created(..))) && gives;
            let fresh = node.is_some_and(|node| kernel.is_fresh(node.served, version));
            if is_entry && let Some(node) = node {
                kernel.given(node);
            }
            for ino in changed {
                kernel.changed(ino, true);
            }
            if let (Some(node), Some(number)) = (node, number) {
                if beside.valid && fresh {
                    kernel.learn(node.served, number);
                }
                let opens = matches!(call, Call::Open { .. } | Call::Create { .. });
                if opens && !beside.keeps {
                    kernel.drop_pages(node.served);
                }
            }
        }
        if answer.is_err() {
            return;
        }
        if let Some(node) = node {
            if !self.nodes.contains(&node) {
                if self.nodes.len() > NODES_MAX && self.kernel.is_none() {
                    self.nodes.remove(1);
                }
                self.nodes.push(node);
            }
            let handle = match answer {
                Ok(Answer::Opened(handle) | Answer::Created(_, handle)) => Some(handle),
                _ => None,
            };
            for open in self.files.iter_mut().filter(|open| open.file.node == node) {
                if Some(open.file.handle.served) == handle {
                    (open.usable, open.appends) = (true, manners.appends);
                }
            }
        }
    }
}
