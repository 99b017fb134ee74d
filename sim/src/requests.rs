//! What clients ask for and are answered.

use std::sync::PoisonError;

use atoll_server::host::Host;
use atoll_server::leases::gate::Ticket;
use atoll_server::syncs::Ask;
use atoll_server::{LockKind, LockOwner, LockRange, LockRequest, Waited};
use atoll_vfs::{Errno, FileSystem, OpenFlags, Result};

use crate::call::{Answer, Call, File, Node, Side, Twin};
use crate::generate;
use crate::locks::{Asked, BYTES};
use crate::plant::Plant;
use crate::seat::{Lesson, Made, Opened, Pending, Role, Seat, What};
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

impl World {
    /// The client number `at` asks for something.
    pub(crate) fn request(&mut self, at: usize) -> Outcome<()> {
        // No two calls are at the same time.
        self.machine.pass(std::time::Duration::from_micros(1));
        if self.seats[at].role == Role::Hostile {
            return self.hostile_request(at);
        }
        match self.rng.within(0..100) {
            0..5 => self.request_sync(at),
            5..50 if self.habits.meets => self.request_lock(at),
            5..10 => self.request_lock(at),
            _ => {
                let files: Vec<File> = self.seats[at].usable().map(|open| open.file).collect();
                let nodes = &self.seats[at].nodes;
                let reads = self.habits.meets && self.seats[at].role.is_mount();
                let call = if reads && self.rng.chance(50) {
                    generate::reading(&mut self.rng, nodes, &files)
                } else {
                    generate::call(&mut self.rng, &self.habits, nodes, &files)
                };
                self.request_call(at, call)
            }
        }
    }

    fn request_call(&mut self, at: usize, mut call: Call) -> Outcome<()> {
        if self.seats[at].kernel.is_some() && self.is_locked_out(at, &call) {
            return Ok(());
        }
        if let Call::Release { file } = call {
            if self.waits_for_lock_of(at, &file) {
                return Ok(());
            }
            self.close_locks(at, &file);
        }
        let seat = &mut self.seats[at];
        let buffered = match &call {
            Call::Read { file, .. } => seat.is_buffered(file),
            _ => false,
        };
        let node = call.nodes()[0].map(|node| node.served);
        let mut lesson = Lesson { for_cache: buffered, ..Lesson::default() };
        if let (Some(kernel), Some(ino)) = (&seat.kernel, node) {
            let is_shown = match &call {
                Call::Getattr { .. } => kernel.attributes(ino).is_some(),
                Call::Read { .. } => buffered && kernel.pages(ino).is_some(),
                _ => false,
            };
            // The kernel says what it knows; that is judged whether somebody asks or not.
            if is_shown {
                return Ok(());
            }
            lesson.version = kernel.version();
            if let Call::Release { file } = &call {
                kernel.cache.closed(file.handle.served.0);
            }
        }
        let cx = seat.role.context(self.machine.now());
        seat.session.reads_for_cache(buffered);
        let _ = seat.session.take_needs();
        // Sometimes it is the last that the process does, or does in part.
        let cut = self.options.turns > 0 && self.rng.chance(1);
        if cut {
            let mut device = self.disk.device();
            let after = device.events() + self.rng.within(1..5);
            device.faults.stop_after = Some(after);
        }
        let answer = call.ask(&mut seat.session, &cx, Side::Served);
        if cut {
            let mut device = self.disk.device();
            device.note_flushers();
            if device.is_stopped() {
                drop(device);
                trace!(self, "the process ends within {call:?}");
                return self.process_end(Some((cx, call)));
            }
            device.faults.stop_after = None;
        }
        let lent = seat.session.take_lent();
        let ticket = seat.session.take_needs();
        self.counts.calls += 1;
        trace!(self, "session {} of {:?} asks {call:?}: {answer:?}", seat.id.0, seat.role);
        let (id, role) = (seat.id, seat.role);
        self.note(&[8, id.0, number_of(&answer)]);
        if let Err(error) = &answer
            && role.may_be_refused(&call, *error)
        {
            // The model has no part in it.
            return self.queue_refusal(at, call, *error, ticket);
        }
        if let (Call::Write { len, .. }, Ok(Answer::Wrote(wrote))) = (&mut call, &answer) {
            // The volume was full.
            *len = (*len).min(*wrote as u32);
        }
        let judged = self.mirror.judge(&cx, &call, &answer)?;
        // The last to close a file without a name ends it.
        let closes = matches!(call, Call::Release { .. });
        if role == Role::ReadOnly && !judged.changed.is_empty() && !closes {
            return Err(format!("a client that may only look was allowed {call:?}"));
        }
        let seat = &mut self.seats[at];
        let node = seat.learned(&call, &answer, &judged.model);
        if let (Some(kernel), Ok(_), Some(node)) = (&seat.kernel, &answer, node)
            && matches!(call, Call::Open { .. } | Call::Create { .. })
        {
            let (keep, cached) = seat.session.keeps_pages(node.served);
            let open = seat.files.last_mut().expect("it was just opened");
            let to_read = matches!(call, Call::Open { flags, .. } if flags == OpenFlags::READ);
            lesson.drops = !keep;
            open.buffered = to_read && cached;
            if open.buffered {
                kernel.cache.buffered(node.served.0, open.file.handle.served.0);
            }
        }
        // What a notice may have to wait for is answered at once.
        let at_once = buffered && seat.kernel.is_some() || matches!(call, Call::Release { .. });
        let ticket = ticket.filter(|_| !(at_once && seat.kernel.is_some()));
        lesson.valid = ticket.is_none() && lent.is_some_and(|lent| lent.valid) && answer.is_ok();
        if let (true, Some(kernel), Some(node)) = (buffered, &mut seat.kernel, node_of(&call)) {
            kernel.begin_reading(node.served);
        }
        let cut = match (&call, &seat.kernel) {
            (Call::Setattr { node, set, .. }, Some(kernel)) if set.size.is_some() => {
                Some(kernel.cache.cut(node.served.0))
            }
            _ => None,
        };
        let held = lent.filter(|lent| lent.entry && answer.is_ok() && ticket.is_some());
        let cache = seat.kernel.as_ref().map(|kernel| std::sync::Arc::clone(&kernel.cache));
        if let (Some(lent), Some(cache)) = (held, &cache) {
            cache.hold(lent.ino);
        }
        let made = Made {
            call,
            answer,
            number: self.mirror.now(),
            sees: judged.sees,
            changed: judged.changed,
            node,
            lesson,
        };
        let number = self.queue(at, What::Call(Box::new(made)));
        let outbox = std::sync::Arc::clone(&self.outbox);
        let then = move || {
            if let (Some(lent), Some(cache)) = (held, cache) {
                cache.release(lent.ino);
            }
            outbox.lock().unwrap_or_else(PoisonError::into_inner).push((number, Ok(())));
        };
        match ticket.filter(|_| self.options.plant != Some(Plant::HastyAnswer)) {
            Some(ticket) => self.gate().after_cut(ticket, cut, then),
            None => then(),
        }
        Ok(())
    }

    /// A kernel locks the directory whose names a call of its own changes.
    fn is_locked_out(&self, at: usize, call: &Call) -> bool {
        let seat = self.seats[at].id;
        let names = |call: &Call| call.names()[0].is_some();
        names(call)
            && self.pending.iter().filter(|pending| pending.seat == seat).any(|pending| {
                let What::Call(other) = &pending.what else { return false };
                names(&other.call) && (other.call.has_effect() || call.has_effect())
            })
    }

    pub(crate) fn gate(&self) -> std::sync::Arc<atoll_server::leases::gate::Gate> {
        let volume = self.volume.as_ref().expect("somebody has a session of it");
        std::sync::Arc::clone(volume.gate())
    }

    /// Takes note of a request that is to be answered.
    fn queue(&mut self, at: usize, what: What) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.pending.push(Pending { id, seat: self.seats[at].id, what });
        id
    }

    fn queue_refusal(
        &mut self,
        at: usize,
        call: Call,
        error: Errno,
        ticket: Option<Ticket>,
    ) -> Outcome<()> {
        let made = Made {
            call,
            answer: Err(error),
            number: self.mirror.now(),
            sees: Default::default(),
            changed: Vec::new(),
            node: None,
            lesson: Lesson::default(),
        };
        let id = self.queue(at, What::Call(Box::new(made)));
        self.answer_after(id, ticket, Ok(()));
        Ok(())
    }

    /// The answer to `id` may be given when what `ticket` says is done.
    fn answer_after(&mut self, id: u64, ticket: Option<Ticket>, outcome: Result<()>) {
        let outbox = std::sync::Arc::clone(&self.outbox);
        let then = move || {
            outbox.lock().unwrap_or_else(PoisonError::into_inner).push((id, outcome));
        };
        match ticket {
            Some(ticket) => self.gate().after(ticket, then),
            None => then(),
        }
    }

    fn request_sync(&mut self, at: usize) -> Outcome<()> {
        let seat = &mut self.seats[at];
        let cx = seat.role.context(self.machine.now());
        let _ = seat.session.take_needs();
        let files: Vec<File> = seat.usable().map(|open| open.file).collect();
        let (ino, ask) = match files.first() {
            Some(file) if self.rng.chance(60) => {
                let data_only = self.rng.chance(40);
                (file.node.served, Ask::File { handle: file.handle.served, data_only })
            }
            _ => (seat.nodes[0].served, Ask::All),
        };
        let data_only = match seat.session.prepare_sync(&cx, ino, ask) {
            Ok(data_only) => data_only,
            // The file is not the client's to name any more.
            Err(Errno::ESTALE | Errno::EBADF) if seat.role.uid() != 0 => return Ok(()),
            Err(error) => return Err(format!("a sync is refused: {error}")),
        };
        let ticket = seat.session.take_needs();
        let volume = std::sync::Arc::clone(seat.session.volume());
        trace!(self, "session {} asks for a sync", seat.id.0);
        let id = self.queue(at, What::Sync(self.mirror.effects()));
        self.counts.syncs += 1;
        self.note(&[9, id]);
        let (outbox, gate) = (std::sync::Arc::clone(&self.outbox), self.gate());
        let then = move |outcome| {
            let answer = move || {
                outbox.lock().unwrap_or_else(PoisonError::into_inner).push((id, outcome));
            };
            match ticket {
                Some(ticket) => gate.after(ticket, answer),
                None => answer(),
            }
        };
        volume.sync_later(data_only, Box::new(then));
        Ok(())
    }

    fn waits_for_lock_of(&self, at: usize, file: &File) -> bool {
        let seat = self.seats[at].id;
        self.pending.iter().any(|pending| {
            pending.seat == seat
                && matches!(&pending.what, What::Lock(asked) if asked.ino == file.node.model)
        })
    }

    /// What closing a descriptor does to locks, as a kernel or a library asks for it.
    fn close_locks(&mut self, at: usize, file: &File) {
        let seat = &mut self.seats[at];
        for process in 0..2 {
            let _ = seat.session.flush(file.node.served, file.handle.served, process);
        }
        self.locks.close(seat.id, file.node.model, file.handle.served.0);
        // Who waited for them is answered first.
        self.look_into_outbox();
    }

    fn request_lock(&mut self, at: usize) -> Outcome<()> {
        let files: Vec<File> = self.seats[at].usable().map(|open| open.file).collect();
        if files.is_empty() {
            // All meet at one file.
            let nodes = &self.seats[at].nodes;
            let flags = OpenFlags::READ | OpenFlags::WRITE;
            let call = match self.seats[at].role.is_mount() {
                true => generate::reading(&mut self.rng, nodes, &files),
                false => Call::Create { parent: nodes[0], name: b'a', mode: 0o666, flags },
            };
            return self.request_call(at, call);
        }
        let file = files[self.rng.within(0..files.len() as u64) as usize];
        let start = self.rng.within(0..BYTES);
        let end = if self.rng.chance(20) { u64::MAX } else { self.rng.within(start..BYTES) };
        let is_flock = self.rng.chance(40);
        let owner = match is_flock {
            true => LockOwner::OpenFile,
            false => LockOwner::Process(self.rng.within(0..2)),
        };
        let kind = self.rng.pick(&[
            Some(LockKind::Shared),
            Some(LockKind::Exclusive),
            Some(LockKind::Exclusive),
            None,
        ]);
        let request = LockRequest { owner, range: LockRange { start, end }, kind, pid: 1 };
        let waits = self.rng.chance(60);
        let seat = &mut self.seats[at];
        // One open file's or process's requests come one after the other.
        let busy = self
            .pending
            .iter()
            .any(|pending| pending.seat == seat.id && matches!(pending.what, What::Lock(_)));
        if busy {
            return Ok(());
        }
        let number = if is_flock { file.handle.served.0 } else { 0 };
        let asked = Asked { ino: file.node.model, owner: (seat.id, owner, number), request };
        self.counts.locks += 1;
        let id = self.queue(at, What::Lock(asked));
        let outbox = std::sync::Arc::clone(&self.outbox);
        let seat = &mut self.seats[at];
        let result = if waits {
            let wake = Box::new(move |outcome| {
                outbox.lock().unwrap_or_else(PoisonError::into_inner).push((id, outcome));
            });
            seat.session.setlkw(file.node.served, file.handle.served, &request, wake)
        } else {
            let set = seat.session.setlk(file.node.served, file.handle.served, &request);
            set.map(|()| Waited::Granted)
        };
        trace!(self, "session {} asks for {request:?}: {result:?}", seat.id.0);
        self.note(&[10, id, result.is_ok().into()]);
        if !matches!(result, Err(Errno::EBADF | Errno::ESTALE)) {
            self.locks.convert(&asked);
            // Those whom that has let in come first.
            self.look_into_outbox();
        }
        let blocked = kind.is_some() && self.locks.is_blocked(&asked);
        match result {
            Ok(Waited::Queued(_)) => return Ok(()),
            Ok(Waited::Granted) if blocked => {
                return Err(format!("two have a lock of the same bytes: {asked:?}"));
            }
            Ok(Waited::Granted) => self.locks.set(&asked),
            Err(Errno::EAGAIN | Errno::EDEADLK) if blocked => {}
            // Not open for it, or not the client's to name any more.
            Err(Errno::EBADF | Errno::ESTALE) => {}
            Err(error) => return Err(format!("{asked:?} is refused: {error}")),
        }
        self.pending.retain(|pending| pending.id != id);
        Ok(())
    }

    /// The answer to the request `id` is given.
    pub(crate) fn answer(&mut self, id: u64, outcome: Result<()>) -> Outcome<()> {
        let Some(at) = self.pending.iter().position(|pending| pending.id == id) else {
            return Ok(());
        };
        let Pending { seat, what, .. } = self.pending.swap_remove(at);
        trace!(self, "session {} gets an answer: {outcome:?}", seat.0);
        self.note(&[11, id, outcome.is_ok().into()]);
        match what {
            What::Sync(effects) => match outcome {
                Ok(()) => self.mirror.synced(effects),
                Err(error) => return Err(format!("a sync failed: {error}")),
            },
            What::Lock(_) => {}
            What::Call(made) => {
                // Two who read one page through two kernels may see a change in either order; and that a
                // file is closed says nothing of it.
                if !made.lesson.for_cache && !matches!(made.call, Call::Release { .. }) {
                    self.mirror.told(&made.sees);
                }
                if let Some(seat) = self.seat(seat) {
                    seat.told(*made);
                }
            }
        }
        Ok(())
    }

    /// A kernel forgets an inode that nobody uses.
    pub(crate) fn forget(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        if seat.nodes.len() < 2 || self.pending.iter().any(|pending| pending.seat == seat.id) {
            return;
        }
        let which = self.rng.within(1..seat.nodes.len() as u64) as usize;
        let node = seat.nodes[which];
        if seat.files.iter().any(|open| open.file.node == node) {
            return;
        }
        let Some(kernel) = &mut seat.kernel else { return };
        if let Some(count) = kernel.forget(node.served) {
            seat.nodes.remove(which);
            seat.session.forget(node.served, count);
            trace!(self, "session {} forgets inode {}", seat.id.0, node.served);
            self.note(&[12, node.served.0]);
        }
    }
}

fn node_of(call: &Call) -> Option<Node> {
    call.nodes()[0]
}

impl Seat {
    /// The open files that the client knows of.
    pub fn usable(&self) -> impl Iterator<Item = &Opened> {
        self.files.iter().filter(|open| open.usable)
    }

    fn is_buffered(&self, file: &File) -> bool {
        self.files.iter().any(|open| open.buffered && open.file == *file)
    }

    /// What the server has given, before the client is told: files count as open from now on.
    fn learned(
        &mut self,
        call: &Call,
        answer: &Result<Answer>,
        model: &Result<Answer>,
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
                (node_of(call)?, Some(Twin { served: *handle, model: *other }))
            }
            (Ok(_), _) => {
                if let Call::Release { file } = call {
                    self.files.retain(|open| open.file != *file);
                }
                return None;
            }
            _ => return None,
        };
        if let Some(handle) = handle {
            let file = File { node, handle };
            self.files.push(Opened { file, buffered: false, usable: false });
        }
        Some(node)
    }

    /// The client is told.
    fn told(&mut self, made: Made) {
        let Made { call, answer, number, changed, node, lesson, .. } = made;
        let asked = call.nodes()[0];
        if let Some(kernel) = &mut self.kernel {
            if lesson.for_cache
                && let Some(node) = asked
            {
                kernel.end_reading(node.served, answer.is_ok().then_some(number));
            }
            let gives = !matches!(call, Call::Getattr { .. } | Call::Setattr { .. });
            let is_entry = matches!(answer, Ok(Answer::Attr(_) | Answer::Created(..))) && gives;
            let fresh = node.is_some_and(|node| kernel.is_fresh(node.served, lesson.version));
            if is_entry && let Some(node) = node {
                kernel.given(node);
            }
            for ino in changed {
                kernel.changed(ino, true);
            }
            if let Some(node) = node {
                if lesson.valid && fresh {
                    kernel.learn(node.served, number);
                }
                if lesson.drops {
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
            for open in self.files.iter_mut().filter(|open| open.file.node == node) {
                open.usable = true;
            }
        }
    }
}
