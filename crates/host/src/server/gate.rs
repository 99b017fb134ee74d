//! What the kernels of a volume's mounts are being told, and who waits for it.
//!
//! What is told to a mount is written by a thread of its own, its notifier: the kernel may make it wait
//! for the mount's own requests. Answers that depend on it wait here, as calls to make when it is
//! done: the threads that serve go on, since it may be their next answer that the kernel waits for.
//!
//! Nobody waits for longer than [`BACKSTOP`]. A mount that has not taken a notification by then is
//! not waited for any more until it has taken all: a client that has its requests read by somebody
//! who does not answer them has old data to show, and nobody else has.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest that an answer waits for the kernels of other mounts.
pub(crate) const BACKSTOP: Duration = Duration::from_secs(1);

/// What a mount's kernel is to forget of the inode with the mount's number `ino`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub ino: u64,
    /// The content too, not only the attributes.
    pub pages: bool,
}

/// Names a mount in its volume's [`Gate`]; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortId(u64);

/// What is on the way to one mount.
struct Port {
    id: PortId,
    queue: VecDeque<Notice>,
    /// Notices that were ever queued, and that the kernel has taken.
    queued: u64,
    done: u64,
    /// It kept somebody waiting for too long, and has not caught up since.
    slow: bool,
    bell: Arc<Condvar>,
}

/// What has to be done before an answer is given: for each mount, how many of its notices.
pub(crate) struct Ticket(Vec<(PortId, u64)>);

type Then = Box<dyn FnOnce() + Send>;

struct Waiting {
    ticket: Ticket,
    deadline: Instant,
    then: Then,
}

#[derive(Default)]
struct Inner {
    ports: Vec<Port>,
    waiting: Vec<Waiting>,
    next: u64,
    /// Whether the thread that looks after deadlines runs.
    kept: bool,
}

impl Inner {
    fn port(&mut self, id: PortId) -> Option<&mut Port> {
        self.ports.iter_mut().find(|port| port.id == id)
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        ticket.0.iter().all(|(id, seq)| {
            let port = self.ports.iter().find(|port| port.id == *id);
            port.is_none_or(|port| port.slow || port.done >= *seq)
        })
    }

    /// Takes out what waits no more.
    fn ready(&mut self) -> Vec<Then> {
        let all = std::mem::take(&mut self.waiting);
        let (done, waiting): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|waiting| self.is_done(&waiting.ticket));
        self.waiting = waiting;
        done.into_iter().map(|waiting| waiting.then).collect()
    }
}

/// A volume's notifications, and the answers that wait for them.
#[derive(Default)]
pub(crate) struct Gate {
    /// How many notices somebody would have to wait for.
    busy: AtomicUsize,
    inner: Mutex<Inner>,
    /// Rung when there is a new deadline, or no mount any more.
    alarm: Condvar,
}

impl Gate {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing of others runs inside, and each change is whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everything that has been told has arrived.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }

    /// A new mount.
    pub fn begin(self: &Arc<Self>) -> PortId {
        let mut inner = self.inner();
        let id = PortId(inner.next);
        inner.next += 1;
        let (queue, bell) = (VecDeque::new(), Arc::default());
        inner.ports.push(Port { id, queue, queued: 0, done: 0, slow: false, bell });
        if !std::mem::replace(&mut inner.kept, true) {
            let gate = Arc::clone(self);
            let spawned = std::thread::Builder::new().name("gate".to_owned());
            inner.kept = spawned.spawn(move || gate.keep()).is_ok();
        }
        id
    }

    /// The mount is served no more: nobody waits for it.
    pub fn end(&self, id: PortId) {
        let ready = {
            let mut inner = self.inner();
            let Some(at) = inner.ports.iter().position(|port| port.id == id) else { return };
            let port = inner.ports.swap_remove(at);
            if !port.slow {
                self.busy.fetch_sub((port.queued - port.done) as usize, Ordering::AcqRel);
            }
            port.bell.notify_all();
            self.alarm.notify_all();
            inner.ready()
        };
        ready.into_iter().for_each(|then| then());
    }

    /// Whether the mount was not waited for in the end, and has not caught up.
    pub fn is_slow(&self, id: PortId) -> bool {
        self.inner().port(id).is_none_or(|port| port.slow)
    }

    /// Has the mount told `notice`. Returns at once.
    pub fn tell(&self, id: PortId, notice: Notice) {
        let mut inner = self.inner();
        if let Some(port) = inner.port(id) {
            port.queue.push_back(notice);
            port.queued += 1;
            if !port.slow {
                self.busy.fetch_add(1, Ordering::AcqRel);
            }
            port.bell.notify_one();
        }
    }

    /// The next notice of a mount, for its notifier, when there is one; `None` when the mount has
    /// ended.
    pub fn next(&self, id: PortId) -> Option<Notice> {
        let mut inner = self.inner();
        loop {
            let port = inner.port(id)?;
            if let Some(notice) = port.queue.pop_front() {
                return Some(notice);
            }
            let bell = Arc::clone(&port.bell);
            inner = bell.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The kernel has taken what [`next`](Self::next) gave.
    pub fn told(&self, id: PortId) {
        let ready = {
            let mut inner = self.inner();
            let Some(port) = inner.port(id) else { return };
            port.done += 1;
            if !port.slow {
                self.busy.fetch_sub(1, Ordering::AcqRel);
            } else if port.done == port.queued {
                port.slow = false;
            }
            inner.ready()
        };
        ready.into_iter().for_each(|then| then());
    }

    /// What an answer that has just been found out has to wait for; `None` for nothing.
    #[inline]
    pub fn ticket(&self) -> Option<Ticket> {
        if self.is_open() { None } else { self.closed() }
    }

    #[cold]
    fn closed(&self) -> Option<Ticket> {
        let inner = self.inner();
        let busy = inner.ports.iter().filter(|port| !port.slow && port.done < port.queued);
        let needs: Vec<_> = busy.map(|port| (port.id, port.queued)).collect();
        (!needs.is_empty()).then_some(Ticket(needs))
    }

    /// Calls `then` when what `ticket` says is done, from another thread, or now. It must not block.
    pub fn after(&self, ticket: Ticket, then: impl FnOnce() + Send + 'static) {
        let mut inner = self.inner();
        if inner.is_done(&ticket) || !inner.kept {
            drop(inner);
            return then();
        }
        let deadline = Instant::now() + BACKSTOP;
        inner.waiting.push(Waiting { ticket, deadline, then: Box::new(then) });
        if inner.waiting.len() == 1 {
            self.alarm.notify_all();
        }
    }

    /// Waits until everything has arrived that has been told until now.
    pub fn wait(&self) {
        if let Some(ticket) = self.ticket() {
            let (done, waiting) = std::sync::mpsc::channel();
            self.after(ticket, move || {
                let _ = done.send(());
            });
            let _ = waiting.recv_timeout(2 * BACKSTOP);
        }
    }

    /// Looks after deadlines, as long as there are mounts.
    fn keep(&self) {
        let mut inner = self.inner();
        while !inner.ports.is_empty() || !inner.waiting.is_empty() {
            // They are in the order of their deadlines.
            let now = Instant::now();
            let next = inner.waiting.first().map(|waiting| waiting.deadline);
            inner = match next {
                None => self.alarm.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(next) if next > now => {
                    let waited = self.alarm.wait_timeout(inner, next - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    self.give_up(&mut inner, now);
                    let ready = inner.ready();
                    drop(inner);
                    ready.into_iter().for_each(|then| then());
                    self.inner()
                }
            };
        }
        inner.kept = false;
    }

    /// Those who are waited for since before their deadline are not waited for any more.
    fn give_up(&self, inner: &mut Inner, now: Instant) {
        let Inner { ports, waiting, .. } = inner;
        let late = waiting.iter().filter(|waiting| waiting.deadline <= now);
        for (id, seq) in late.flat_map(|waiting| &waiting.ticket.0) {
            let port = ports.iter_mut().find(|port| port.id == *id);
            if let Some(port) = port.filter(|port| !port.slow && port.done < *seq) {
                log::warn!("a mount does not let go of what it caches; it may see old data");
                port.slow = true;
                self.busy.fetch_sub((port.queued - port.done) as usize, Ordering::AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTICE: Notice = Notice { ino: 7, pages: true };

    #[test]
    fn answers_wait_for_what_was_told_before() {
        let gate = Arc::new(Gate::default());
        let (a, b) = (gate.begin(), gate.begin());
        assert!(gate.is_open() && gate.ticket().is_none());
        gate.tell(a, NOTICE);
        gate.tell(b, NOTICE);
        let (done, waiting) = std::sync::mpsc::channel();
        let ticket = gate.ticket().unwrap();
        gate.after(ticket, move || done.send(()).unwrap());
        // What comes later is not waited for.
        gate.tell(a, NOTICE);
        assert_eq!(gate.next(a), Some(NOTICE));
        gate.told(a);
        assert!(waiting.try_recv().is_err());
        gate.end(b);
        waiting.recv_timeout(BACKSTOP / 2).unwrap();
        assert!(!gate.is_open());
        gate.next(a);
        gate.told(a);
        assert!(gate.is_open());
        gate.end(a);
        assert_eq!(gate.next(a), None);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let gate = Arc::new(Gate::default());
        let (a, b) = (gate.begin(), gate.begin());
        gate.tell(a, NOTICE);
        let began = Instant::now();
        gate.wait();
        let waited = began.elapsed();
        assert!(waited >= BACKSTOP && waited < 2 * BACKSTOP, "{waited:?}");
        assert!(gate.is_slow(a) && !gate.is_slow(b) && gate.is_open());
        // Nor again, until it has caught up.
        gate.tell(a, NOTICE);
        assert!(gate.ticket().is_none());
        for _ in 0..2 {
            gate.next(a);
            gate.told(a);
        }
        assert!(!gate.is_slow(a) && gate.is_open());
        gate.tell(a, NOTICE);
        assert!(gate.ticket().is_some());
        gate.end(a);
        gate.end(b);
        assert!(gate.is_open());
    }
}
