//! The requests of clients. A request is encoded and put into the client's line, from which the
//! server takes it when the world comes to it (`serve`).

use atoll_server::{LockKind, LockOwner, LockRange, LockRequest};
use atoll_vfs::OpenFlags;

use crate::call::{Call, File};
use crate::codec::{Manners, opened_with};
use crate::generate;
use crate::locks::{Asked, BYTES};
use crate::seat::{Made, Pending, Seat, Stage, What};
use crate::world::{World, trace};

impl World {
    /// The client number `at` asks for something.
    pub(crate) fn request(&mut self, at: usize) {
        // No two calls are at the same time.
        self.machine.pass(std::time::Duration::from_micros(1));
        let Seat { role, hoards, is_lost, .. } = self.seats[at];
        if role.is_hostile() && !hoards && (is_lost || self.rng.chance(60)) {
            return self.hostile_request(at);
        }
        match self.rng.within(0..100) {
            0..5 => self.request_sync(at),
            _ if hoards => self.request_lock(at),
            5..50 if self.habits.meets && role.is_mount() => self.request_lock(at),
            5..12 if role.is_mount() => self.request_lock(at),
            _ => self.request_any_call(at),
        }
    }

    fn request_any_call(&mut self, at: usize) {
        let seat = &self.seats[at];
        let usable = |is_dir: bool| {
            let files = seat.usable().filter(move |open| open.is_dir == is_dir);
            files.map(|open| open.file).collect::<Vec<File>>()
        };
        let (files, dirs) = (usable(false), usable(true));
        let (rng, nodes) = (&mut self.rng, &seat.nodes);
        let call = match self.habits.meets && rng.chance(50) {
            true if seat.role.is_mount() => generate::reading(rng, nodes, &files),
            true => generate::writing(rng, nodes, &files),
            false => generate::call(rng, &self.habits, nodes, &files, &dirs),
        };
        self.request_call(at, call);
    }

    fn request_call(&mut self, at: usize, mut call: Call) {
        let seat = &self.seats[at];
        if seat.kernel.is_some() && self.is_locked_out(at, &call) {
            return;
        }
        if seat.kernel.is_some() && call.closes() {
            return self.close(at, &call);
        }
        let mut manners = Manners::default();
        let open = call.file().and_then(|file| seat.opened(&file).copied());
        if let Call::Write { append, .. } = &mut call {
            // A kernel says so with each write, a client may.
            let appends = open.is_some_and(|open| open.appends);
            *append = if seat.kernel.is_some() { appends } else { self.rng.chance(10) };
            manners.dsync = seat.kernel.is_some() && self.rng.chance(5);
        }
        if let Call::Read { .. } = &call {
            manners.for_cache = open.is_some_and(|open| open.buffered);
        }
        let node = call.nodes()[0].map(|node| node.served);
        if let (Some(kernel), Some(ino)) = (&self.seats[at].kernel, node) {
            let is_shown = match &call {
                Call::Getattr { .. } => kernel.attributes(ino).is_some(),
                Call::Read { .. } => manners.for_cache && kernel.pages(ino).is_some(),
                _ => false,
            };
            // The kernel answers from its cache, which is judged whether somebody asks or not.
            if is_shown {
                return;
            }
        }
        self.send_call(at, call, manners);
    }

    /// Sends `call`, whatever is known of it already.
    pub(crate) fn send_call(&mut self, at: usize, call: Call, mut manners: Manners) {
        let id = self.next_id;
        let dialect = self.seats[at].role.dialect();
        let sent = self.seats[at].asker(id).call(&call, manners);
        if let Call::Open { flags, .. } | Call::Create { flags, .. } = call {
            manners.appends = flags.contains(OpenFlags::APPEND);
        }
        // The model is asked what the server is asked.
        let call = match call {
            Call::Open { node, flags } => {
                Call::Open { node, flags: opened_with(flags, dialect) - OpenFlags::EXCL }
            }
            Call::Create { parent, name, mode, flags } => {
                Call::Create { parent, name, mode, flags: opened_with(flags, dialect) }
            }
            call => call,
        };
        let seat = &mut self.seats[at];
        trace!(self, "session {} of {:?} asks {call:?} ({id})", seat.id.0, seat.role);
        let version = match &mut seat.kernel {
            Some(kernel) => {
                if let (true, Some(file)) = (manners.for_cache, call.file()) {
                    kernel.begin_reading(file.node.served);
                }
                kernel.version()
            }
            None => 0,
        };
        let made = Made {
            call,
            manners,
            answer: Err(atoll_vfs::Errno::EIO),
            beside: Default::default(),
            number: None,
            sees: Default::default(),
            changed: Vec::new(),
            node: None,
            version,
            durable: None,
            held: None,
        };
        seat.line.push(sent);
        self.queue(at, What::Call(Box::new(made)));
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

    /// Takes note of a request that was sent under the next number.
    pub(crate) fn queue(&mut self, at: usize, what: What) {
        let id = self.next_id;
        self.next_id += 1;
        let (seat, stage) = (self.seats[at].id, Stage::Sent);
        self.pending.push(Pending { id, seat, what, stage, interrupted: false });
        self.note(&[8, id, seat.0]);
    }

    /// A program of a mount closes a file, when no request for it is under way: its processes let
    /// go of their locks one after the other, and then the kernel of the file.
    fn close(&mut self, at: usize, call: &Call) {
        let Some(file) = call.file() else { return };
        let seat = self.seats[at].id;
        let is_busy =
            self.pending.iter().filter(|pending| pending.seat == seat).any(
                |pending| match &pending.what {
                    What::Call(made) => made.call.file() == Some(file),
                    What::Sync(of, _) => *of == Some(file),
                    What::Lock(asked) => asked.ino == file.node.model,
                    What::Flush(of, _) => *of == file,
                    What::Raw(_) => false,
                },
            );
        if is_busy {
            return;
        }
        let seat = &mut self.seats[at];
        let Some(open) = seat.files.iter_mut().find(|open| open.file == file) else { return };
        open.usable = false;
        match open.is_dir {
            true => self.send_call(at, *call, Manners::default()),
            false => self.send_flush(at, file, 0),
        }
    }

    /// The process `process` closes its descriptor of `file`.
    pub(crate) fn send_flush(&mut self, at: usize, file: File, process: u64) {
        let id = self.next_id;
        let seat = &mut self.seats[at];
        trace!(self, "session {} flushes {file:?} of process {process} ({id})", seat.id.0);
        let sent = seat.asker(id).flush(file.node.served, file.handle.served, process);
        seat.line.push(sent);
        self.queue(at, What::Flush(file, process));
    }

    fn request_sync(&mut self, at: usize) {
        let files: Vec<File> =
            self.seats[at].usable().filter(|open| !open.is_dir).map(|open| open.file).collect();
        let file = files.first().copied().filter(|_| self.rng.chance(60));
        let data_only = self.rng.chance(40);
        let id = self.next_id;
        let seat = &mut self.seats[at];
        trace!(self, "session {} asks for a sync of {file:?} ({id})", seat.id.0);
        let of = file.map(|file| (file.node.served, file.handle.served, data_only));
        let sent = seat.asker(id).sync(of);
        seat.line.push(sent);
        self.counts.syncs += 1;
        self.queue(at, What::Sync(file, None));
    }

    fn request_lock(&mut self, at: usize) {
        let files: Vec<File> =
            self.seats[at].usable().filter(|open| !open.is_dir).map(|open| open.file).collect();
        if files.is_empty() {
            // All meet at one file.
            let flags = OpenFlags::READ | OpenFlags::WRITE;
            let seat = &self.seats[at];
            let call = match (&seat.nodes[..], seat.role.is_read_only()) {
                ([_, .., node], false) if self.rng.chance(70) => Call::Open { node: *node, flags },
                (nodes, _) => generate::reading(&mut self.rng, nodes, &files),
            };
            return self.request_call(at, call);
        }
        let file = files[self.rng.within(0..files.len() as u64) as usize];
        let seat = &self.seats[at];
        // One open file's or process's requests come one after the other.
        let busy = self
            .pending
            .iter()
            .any(|pending| pending.seat == seat.id && matches!(pending.what, What::Lock(_)));
        if busy {
            return;
        }
        let hoards = seat.role.is_hostile();
        let start = self.rng.within(0..BYTES);
        let end = match self.rng.within(0..10) {
            0 | 1 => u64::MAX,
            _ => self.rng.within(start..BYTES),
        };
        // Each a piece of its own.
        let far = BYTES + 2 * self.rng.within(0..1 << 20);
        let (start, end) = if hoards { (far, far) } else { (start, end) };
        let is_flock = !hoards && self.rng.chance(40);
        let owner = match is_flock {
            true => LockOwner::OpenFile,
            false => LockOwner::Process(self.rng.within(0..2)),
        };
        let kind = match hoards {
            true => Some(LockKind::Shared),
            false => self.rng.pick(&[
                Some(LockKind::Shared),
                Some(LockKind::Exclusive),
                Some(LockKind::Exclusive),
                None,
            ]),
        };
        let request = LockRequest { owner, range: LockRange { start, end }, kind, pid: 1 };
        let waits = self.rng.chance(60);
        let id = self.next_id;
        let seat = &mut self.seats[at];
        trace!(self, "session {} asks for {request:?} of {file:?} ({id})", seat.id.0);
        let number = if is_flock { file.handle.served.0 } else { 0 };
        let asked = Asked { ino: file.node.model, owner: (seat.id, owner, number), request };
        self.counts.locks += 1;
        let sent = seat.asker(id).lock(file.node.served, file.handle.served, &request, waits);
        seat.line.push(sent);
        self.queue(at, What::Lock(asked));
    }

    /// A signal comes for the program whose answer is held.
    pub(crate) fn interrupt(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        let held = |pending: &&mut Pending| {
            pending.seat == seat.id && pending.stage == Stage::Held && !pending.interrupted
        };
        let Some(pending) = self.pending.iter_mut().find(held) else { return };
        pending.interrupted = true;
        let id = pending.id;
        trace!(self, "session {} interrupts {id}", seat.id.0);
        let sent = seat.asker(0).interrupt(id);
        seat.line.push_interrupt(sent);
        self.note(&[18, id]);
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
            let sent = seat.asker(0).forget(node.served, count, self.rng.chance(50));
            seat.line.push_forget(sent);
            trace!(self, "session {} forgets inode {}", seat.id.0, node.served);
            self.note(&[12, node.served.0]);
        }
    }
}
