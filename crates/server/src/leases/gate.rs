//! The notices to the kernels of a volume's mounts, and the answers that wait for them.
//!
//! A mount's notices are written by a thread of its own, its notifier: the kernel may make it wait
//! for the mount's own requests. Answers that depend on a notice wait here, as callbacks for when
//! it is done; the threads that serve go on, since the kernel may wait for their next answer.
//! `needs` says which answers depend on which notices.
//!
//! How long a notice takes must not decide what clients see. A mount for which an answer has waited
//! longer than `PATIENCE` is *fenced*: its requests are answered with errors from then on, all its
//! leases are invalidated, and the answers go out when that is done, or when its device is given
//! up. So old data is left only to a process that has taken the mount's requests for itself and
//! does not answer them.
//!
//! Anybody who may mount can build a kernel that never forgets, or take from it the requests that
//! say so. So a mount of a user who is not trusted is waited for `UNTRUSTED` at most; and when it
//! is fenced, trust in its user is withdrawn: mounts of that user get no leases for a while, so
//! that nothing waits for them, and are hardly waited for where they still have some.
//!
//! A virtual machine has no kernel of this host that could be made to forget: it takes notices by
//! itself or not at all. It is waited for as a user who is not trusted is, and when it is fenced
//! nobody waits for it any more: its session has ended for it, and what it shows is its own affair.
//!
//! Two mounts that cut the same file wait for each other if both have stores to write back, which
//! the kernel holds back until the cut is answered. Where that is so for `STUCK`, the older cut is
//! answered.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_vfs::Ino;

use crate::host::{Bell, Done as Then, Host};
use crate::leases::needs::{Involved, Needs};
pub use crate::leases::needs::{PortId, Ticket};
use crate::leases::trust::{Party, Trust};

/// The longest that an answer waits for the kernel of a mount that is not fenced: far longer than
/// one that is alive takes on the busiest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The same for a mount of a user who is not trusted. Its leases are of attributes, which its
/// kernel keeps for no longer than that.
const UNTRUSTED: Duration = Duration::from_secs(1);
/// The same for one of a user in whom trust is withdrawn.
const DISTRUSTED: Duration = Duration::from_millis(20);
/// The time after which two mounts that seem to wait for each other are taken to do so.
const STUCK: Duration = Duration::from_secs(1);

/// An order to a mount's kernel to forget what it has of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The mount's number of the inode.
    pub ino: u64,
    /// The content too, not only the attributes.
    pub pages: bool,
    /// The file is as long as this now, and was shorter; and its last byte.
    pub grown: Option<(u64, u8)>,
    /// What this name in the directory stands for, and nothing else.
    pub name: Option<Box<[u8]>>,
    /// Nothing that could be said: it is taken when the host's uptime is this, by which the kernel
    /// has forgotten by itself.
    pub until: Option<Duration>,
}

/// The notices on the way to one mount.
struct Port {
    id: PortId,
    queue: VecDeque<Notice>,
    /// How many notices were ever queued, and how many of them the kernel has taken.
    queued: u64,
    done: u64,
    /// The notices that are being written just now, the first first.
    telling: VecDeque<Notice>,
    /// It kept an answer waiting for too long, and is to end.
    fenced: bool,
    /// Nothing more is queued: it ends with its last notice.
    ending: bool,
    /// Whose it is, if that is not a user who is trusted whatever he does.
    party: Option<Party>,
    mount: Arc<dyn Mount>,
}

/// A mount, as far as it is told of changes. Neither call may block.
pub trait Mount: Bell {
    /// It has kept an answer waiting for too long: it is to end, soon and by itself.
    fn fence(&self);

    /// The number of the virtual machine that it is, if it is one.
    fn machine(&self) -> Option<u64> {
        None
    }
}

/// The next step of a mount's notifier, which is woken when there is more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Write this notice to the kernel, then call [`told`](Gate::told).
    Tell(Notice),
    /// Wait until it is woken.
    Nothing,
    /// End: there will be no more notices.
    Over,
}

/// A file that a call has cut, to which a mount's kernel writes nothing back until it has the
/// answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The mount.
    pub port: PortId,
    /// The file, by the mount's number.
    pub ino: u64,
}

struct Waiting {
    ticket: Ticket,
    /// The host's uptime when it began.
    since: Duration,
    cut: Option<Cut>,
    then: Then,
}

/// Whether the kernels of the mounts at `ports` have taken the notices of `ticket`.
fn is_done(ports: &[Port], ticket: &Ticket) -> bool {
    ticket.0.iter().all(|(id, seq)| {
        let port = ports.iter().find(|port| port.id == *id);
        port.is_none_or(|port| port.done >= *seq)
    })
}

#[derive(Default)]
struct Inner {
    ports: Vec<Port>,
    waiting: Vec<Waiting>,
    needs: Needs,
    trust: Trust,
    next: u64,
    /// Wakes the keeper, which looks after deadlines.
    keeper: Option<Arc<dyn Bell>>,
    /// The host's uptime when the keeper looks next without being woken.
    look: Option<Duration>,
}

impl Inner {
    fn port(&mut self, id: PortId) -> Option<&mut Port> {
        self.ports.iter_mut().find(|port| port.id == id)
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        is_done(&self.ports, ticket)
    }

    fn wake_keeper(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.ring();
        }
    }

    /// How long answers wait for the mount at `port` when those for a trusted one wait `patience`.
    fn patience(&self, port: &Port, now: Duration, patience: Duration) -> Duration {
        match port.party {
            None => patience,
            Some(party) if self.trust.is_withdrawn(party, now) => patience.min(DISTRUSTED),
            Some(_) => patience.min(UNTRUSTED),
        }
    }

    /// The mounts that `waiting` waits for and that are not fenced, and when they are to be.
    fn deadlines(
        &self,
        waiting: &Waiting,
        now: Duration,
        patience: Duration,
    ) -> impl Iterator<Item = (PortId, Duration)> {
        waiting.ticket.0.iter().filter_map(move |(id, seq)| {
            let port = self.ports.iter().find(|port| port.id == *id)?;
            let waits = !port.fenced && port.done < *seq;
            waits.then(|| (*id, waiting.since + self.patience(port, now, patience)))
        })
    }

    /// Marks the mounts that an answer has waited for too long as fenced, and returns them to be
    /// told.
    fn fence_late(&mut self, now: Duration, patience: Duration) -> Vec<(PortId, Arc<dyn Mount>)> {
        let all = self.waiting.iter().flat_map(|waiting| self.deadlines(waiting, now, patience));
        let late: Vec<PortId> = all.filter(|(_, until)| now >= *until).map(|(id, _)| id).collect();
        let mut fences = Vec::new();
        for id in late {
            let Some(port) = self.port(id).filter(|port| !port.fenced) else { continue };
            port.fenced = true;
            fences.push((id, Arc::clone(&port.mount)));
            let Some(party) = port.party else {
                log::warn!("a mount does not let go of what it caches; it is cut off");
                continue;
            };
            match party {
                Party::User(uid) => log::warn!(
                    "a mount of user {uid} does not let go of what it caches; it is cut off"
                ),
                Party::Machine(_) => {
                    log::warn!("a virtual machine takes no notices; its session ends");
                }
            }
            self.trust.withdraw(party, now);
        }
        fences
    }

    /// Takes out the oldest cut that waits only for mounts that themselves wait for the answer to a
    /// cut of the file that their notice is about.
    fn stuck(&mut self, now: Duration) -> Option<Then> {
        let at = self.waiting.iter().position(|waiting| {
            let old = waiting.cut.is_some() && now >= waiting.since + STUCK;
            old && waiting.ticket.0.iter().all(|(id, seq)| {
                let port = self.ports.iter().find(|port| port.id == *id);
                port.is_none_or(|port| port.done >= *seq || self.is_cutting(port))
            })
        })?;
        Some(self.waiting.remove(at).then)
    }

    fn is_cutting(&self, port: &Port) -> bool {
        port.telling.iter().any(|notice| {
            let cut = Some(Cut { port: port.id, ino: notice.ino });
            notice.pages && self.waiting.iter().any(|waiting| waiting.cut == cut)
        })
    }

    /// The host's uptime when `waiting` may be late or stuck.
    fn look_at(&self, waiting: &Waiting, now: Duration, patience: Duration) -> Option<Duration> {
        let cut = waiting.cut.map(|_| (waiting.since + STUCK).max(now + STUCK / 10));
        let late = self.deadlines(waiting, now, patience).map(|(_, until)| until);
        late.chain(cut).min()
    }

    /// How long it takes until something may be late or stuck.
    fn next_look(&mut self, now: Duration, patience: Duration) -> Option<Duration> {
        let next = |waiting: &Waiting| self.look_at(waiting, now, patience);
        self.look = self.waiting.iter().filter_map(next).min();
        self.look.map(|next| next.saturating_sub(now))
    }

    /// Takes out the answers that need not wait any more.
    fn ready(&mut self) -> Vec<Then> {
        let all = std::mem::take(&mut self.waiting);
        let (done, waiting): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|waiting| self.is_done(&waiting.ticket));
        self.waiting = waiting;
        done.into_iter().map(|waiting| waiting.then).collect()
    }
}

/// A volume's notices, and the answers that wait for them.
pub struct Gate {
    /// How many notices are queued and not done.
    busy: AtomicUsize,
    inner: Mutex<Inner>,
    /// In milliseconds.
    patience: AtomicU64,
    host: Arc<dyn Host>,
}

impl Gate {
    pub(crate) fn new(host: Arc<dyn Host>) -> Self {
        Gate {
            busy: AtomicUsize::new(0),
            inner: Mutex::default(),
            patience: AtomicU64::new(PATIENCE.as_millis() as u64),
            host,
        }
    }

    /// The uptime of the host.
    pub(crate) fn uptime(&self) -> Duration {
        self.host.uptime()
    }

    /// Has mounts fenced after another time than `PATIENCE`.
    pub fn set_patience(&self, patience: Duration) {
        self.patience.store(patience.as_millis() as u64, Ordering::Relaxed);
    }

    /// How long answers wait for a mount until it is fenced.
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.patience.load(Ordering::Relaxed))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // No caller's code runs under this lock, and each change is whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every notice is done.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }

    /// A new mount, which is fenced at most once; of `party` unless that is a user who is trusted
    /// whatever he does.
    pub(crate) fn begin(&self, mount: Arc<dyn Mount>, party: Option<Party>) -> PortId {
        let mut inner = self.inner();
        let id = PortId(inner.next);
        inner.next += 1;
        let queue = VecDeque::new();
        let (telling, fenced, ending) = (VecDeque::new(), false, false);
        let port = Port { id, queue, queued: 0, done: 0, telling, fenced, ending, party, mount };
        inner.ports.push(port);
        id
    }

    /// The mount gets no more notices: it ends with the last one.
    pub fn finish(&self, id: PortId) {
        if let Some(port) = self.inner().port(id) {
            port.ending = true;
            port.mount.ring();
        }
    }

    /// The mount is served no more: nobody waits for it.
    pub fn end(&self, id: PortId) {
        let ready = {
            let mut inner = self.inner();
            let Some(at) = inner.ports.iter().position(|port| port.id == id) else { return };
            let port = inner.ports.swap_remove(at);
            self.less_busy(&mut inner, port.queued - port.done);
            port.mount.ring();
            inner.wake_keeper();
            inner.ready()
        };
        ready.into_iter().for_each(|then| then());
    }

    /// Whether the mount is fenced, or gone.
    pub(crate) fn is_fenced(&self, id: PortId) -> bool {
        self.inner().port(id).is_none_or(|port| port.fenced)
    }

    /// Whether the mount may have new leases.
    pub(crate) fn lends(&self, id: PortId) -> bool {
        let mut inner = self.inner();
        let Some(port) = inner.port(id).filter(|port| !port.fenced) else { return false };
        // Only for those who may lose trust is the time of any use.
        port.party.is_none_or(|party| !inner.trust.is_withdrawn(party, self.uptime()))
    }

    /// Whether the mount ends with its last notice, or is gone.
    pub fn is_ending(&self, id: PortId) -> bool {
        self.inner().port(id).is_none_or(|port| port.ending)
    }

    /// Queues `notice`, about the volume's inode `ino`, for the mount. Returns at once.
    pub fn tell(&self, id: PortId, ino: Ino, notice: Notice) {
        let mut inner = self.inner();
        if let Some(port) = inner.port(id) {
            port.queue.push_back(notice);
            port.queued += 1;
            let need = (id, port.queued);
            self.busy.fetch_add(1, Ordering::AcqRel);
            port.mount.ring();
            let Inner { ports, needs, .. } = &mut *inner;
            needs.add(ino, need, |ticket| is_done(ports, ticket));
        }
    }

    fn less_busy(&self, inner: &mut Inner, notices: u64) {
        let before = self.busy.fetch_sub(notices as usize, Ordering::AcqRel);
        if before == notices as usize {
            inner.needs.clear();
        }
    }

    /// The next notice of a mount, for its notifier.
    pub(crate) fn next(&self, id: PortId) -> Next {
        let mut inner = self.inner();
        let Some(port) = inner.port(id) else { return Next::Over };
        match port.queue.pop_front() {
            Some(notice) => {
                port.telling.push_back(notice.clone());
                Next::Tell(notice)
            }
            None if port.ending => Next::Over,
            None => Next::Nothing,
        }
    }

    /// How many notices the mount has not taken yet.
    pub(crate) fn behind(&self, id: PortId) -> u64 {
        self.inner().port(id).map_or(0, |port| port.queued - port.done)
    }

    /// The kernel has taken the oldest of the notices that `next` gave.
    pub fn told(&self, id: PortId) {
        let ready = {
            let mut inner = self.inner();
            let Some(port) = inner.port(id) else { return };
            port.done += 1;
            port.telling.pop_front();
            self.less_busy(&mut inner, 1);
            inner.ready()
        };
        ready.into_iter().for_each(|then| then());
    }

    /// The ticket for the answer to a call that goes by `involved`; `None` if it need not wait. To
    /// be asked for when the notices of all its changes are queued, and before the next call.
    #[inline]
    pub(crate) fn ticket(&self, involved: &Involved) -> Option<Ticket> {
        if self.is_open() { None } else { self.closed(involved) }
    }

    #[cold]
    fn closed(&self, involved: &Involved) -> Option<Ticket> {
        let mut inner = self.inner();
        let Inner { ports, needs, .. } = &mut *inner;
        let ticket = match involved.is_open() {
            true => Ticket(ports.iter().map(|port| (port.id, port.queued)).collect()),
            false => needs.of(involved.inodes()),
        };
        if is_done(ports, &ticket) {
            return None;
        }
        if involved.changes() {
            needs.join(involved, &ticket);
        }
        Some(ticket)
    }

    /// Whether no kernel shows old data of `ino`.
    #[inline]
    pub fn is_free(&self, ino: Ino) -> bool {
        self.is_open() || {
            let inner = self.inner();
            inner.is_done(&inner.needs.of(&[ino]))
        }
    }

    /// The barrier: calls `then` when the notices of `ticket` are done, from another thread, or
    /// now. `then` must not block.
    pub fn after(&self, ticket: Ticket, then: impl FnOnce() + Send + 'static) {
        self.after_cut(ticket, None, then);
    }

    /// The same for an answer that a kernel waits for, which may have cut a file.
    pub fn after_cut(
        &self,
        ticket: Ticket,
        cut: Option<Cut>,
        then: impl FnOnce() + Send + 'static,
    ) {
        let mut inner = self.inner();
        if inner.is_done(&ticket) || inner.keeper.is_none() {
            drop(inner);
            return then();
        }
        let since = self.uptime();
        let waiting = Waiting { ticket, since, cut, then: Box::new(then) };
        let look = inner.look_at(&waiting, since, self.patience());
        inner.waiting.push(waiting);
        // A keeper that sleeps until an earlier time comes by itself.
        if let Some(look) = look
            && inner.look.is_none_or(|next| look < next)
        {
            inner.look = Some(look);
            inner.wake_keeper();
        }
    }

    /// From now on `keeper` is woken when there is a new deadline to look after, by
    /// [`tend`](Self::tend). Returns false if the gate has a keeper already.
    pub fn keep(&self, keeper: Arc<dyn Bell>) -> bool {
        let mut inner = self.inner();
        let is_first = inner.keeper.is_none();
        if is_first {
            inner.look = None;
        }
        inner.keeper.get_or_insert(keeper);
        is_first
    }

    /// Looks after deadlines: fences the mounts that are late. Returns when to look again unless
    /// the keeper is woken before; `None` when there is no mount any more, upon which the gate has
    /// no keeper.
    pub fn tend(&self) -> Option<Option<Duration>> {
        let mut inner = self.inner();
        while !inner.ports.is_empty() || !inner.waiting.is_empty() {
            let now = self.uptime();
            let patience = self.patience();
            let late = inner.fence_late(now, patience);
            let stuck = inner.stuck(now);
            if late.is_empty() && stuck.is_none() {
                return Some(inner.next_look(now, patience));
            }
            drop(inner);
            for (id, mount) in late {
                mount.fence();
                if mount.machine().is_some() {
                    self.end(id);
                }
            }
            stuck.into_iter().for_each(|then| then());
            inner = self.inner();
        }
        inner.keeper = None;
        None
    }
}

#[cfg(test)]
mod tests;
