//! Calls whose cost a client sets, made in a thread of its user's.
//!
//! To send something to a client, to hang up and to wake a thread of it: each of these goes over
//! all who wait for it, and a client may have its socket watched a million times, or a million
//! futures wait in the place where the kernel looks for those who wait for one of its words. So
//! neither a worker nor the control thread, for which others wait, makes such a call for a user who
//! is not trusted. A thread of the user's does, the *porter*, which lasts as long as the user has
//! clients or errands.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use atoll_server::Credentials;
use atoll_transport::channel::Layout;
use atoll_transport::channel::layout::answer;
use rustix::net::Shutdown;

use super::control::{self, Answer};
use crate::shm::{SharedMemory, wake};

/// Errands of one user that wait, beyond which none is begun that can be done without.
const BUSY: usize = 64;

enum Errand {
    Wake(Arc<Sleepers>),
    Other(Box<dyn FnOnce() + Send>),
}

/// The way to a user's porter.
struct Way {
    errands: Sender<Errand>,
    /// Errands that have been given and are not done.
    open: Arc<AtomicUsize>,
}

/// The porter of a client's user. Clones mean the same one.
#[derive(Clone)]
pub(crate) struct Porter(Option<Arc<Way>>);

impl Porter {
    /// For a user who is trusted, and whose errands are done at once, by the caller.
    pub fn none() -> Porter {
        Porter(None)
    }

    /// Has `errand` done, after those that were given before.
    pub fn run(&self, errand: impl FnOnce() + Send + 'static) {
        match &self.0 {
            Some(way) => way.give(Errand::Other(Box::new(errand))),
            None => errand(),
        }
    }

    /// As [`run`](Self::run), for what need not be done if the porter is late with much else.
    pub fn run_if_idle(&self, errand: impl FnOnce() + Send + 'static) {
        if self.0.as_ref().is_none_or(|way| way.open.load(Ordering::Relaxed) < BUSY) {
            self.run(errand);
        }
    }

    /// Errands that are not done.
    #[cfg(test)]
    pub fn open(&self) -> usize {
        self.0.as_ref().map_or(0, |way| way.open.load(Ordering::Acquire))
    }

    /// Ends the connection at `socket`, after what was sent before.
    pub fn hang_up(&self, socket: &Arc<OwnedFd>) {
        let socket = Arc::clone(socket);
        self.run(move || hang_up(&socket));
    }

    /// Those of a client who sleep, for the worker to have them woken; none where the worker wakes
    /// them by itself.
    pub fn sleepers(&self, memory: &SharedMemory, layout: &Layout) -> Option<Arc<Sleepers>> {
        self.0.as_ref()?;
        let slots = (0..layout.config().lanes).map(|_| AtomicU64::new(0)).collect();
        let (memory, layout) = (memory.clone(), *layout);
        Some(Arc::new(Sleepers { memory, layout, slots, given: AtomicBool::new(false) }))
    }

    /// Has the thread woken that sleeps at `slot` of `lane`.
    pub fn wake(&self, sleepers: &Arc<Sleepers>, lane: u32, slot: u32) {
        let Some(way) = &self.0 else { return };
        // Before the look whether the porter is going to look.
        sleepers.slots[lane as usize].fetch_or(1 << slot, Ordering::Release);
        if !sleepers.given.swap(true, Ordering::AcqRel) {
            way.give(Errand::Wake(Arc::clone(sleepers)));
        }
    }
}

impl Way {
    fn give(&self, errand: Errand) {
        self.open.fetch_add(1, Ordering::Relaxed);
        // The porter takes errands as long as there is a way to it.
        let _ = self.errands.send(errand);
    }
}

/// The slots of a client at which threads sleep whose answers are there. However many come, they
/// are one errand.
pub(crate) struct Sleepers {
    memory: SharedMemory,
    layout: Layout,
    /// A bit for each slot, of each lane.
    slots: Vec<AtomicU64>,
    /// The porter has been told, and has not looked yet.
    given: AtomicBool,
}

impl Sleepers {
    fn wake(&self) {
        // Before the looks: what is added from here on is told anew.
        self.given.swap(false, Ordering::AcqRel);
        for (lane, slots) in (0..).zip(&self.slots) {
            let mut slots = slots.swap(0, Ordering::AcqRel);
            while slots != 0 {
                let slot = slots.trailing_zeros();
                slots &= slots - 1;
                wake(&self.memory, self.layout.answer(lane, slot) + answer::MARK);
            }
        }
    }
}

/// The porters of all users.
#[derive(Default)]
pub(crate) struct Porters(HashMap<u32, Arc<Way>>);

impl Porters {
    /// The porter of `uid`. One that has neither clients nor errands goes.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn of(&mut self, uid: u32) -> io::Result<Porter> {
        self.0.retain(|&user, way| {
            // No errand is given by anybody else then.
            user == uid || Arc::strong_count(way) > 1 || way.open.load(Ordering::Acquire) > 0
        });
        if let Some(way) = self.0.get(&uid) {
            return Ok(Porter(Some(Arc::clone(way))));
        }
        let (sender, errands) = channel();
        let open = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&open);
        let work = move || {
            for errand in errands {
                // A panic costs the one errand.
                let _ = catch_unwind(AssertUnwindSafe(|| match errand {
                    Errand::Wake(sleepers) => sleepers.wake(),
                    Errand::Other(errand) => errand(),
                }));
                left.fetch_sub(1, Ordering::Release);
            }
        };
        std::thread::Builder::new().name("porter".to_owned()).spawn(work)?;
        let way = Arc::new(Way { errands: sender, open });
        self.0.insert(uid, Arc::clone(&way));
        Ok(Porter(Some(way)))
    }
}

/// Ends a connection for both sides, and for any thread of this process that waits for its end.
/// Data sent before still arrives. The client sets how long this takes.
pub(super) fn hang_up(socket: &OwnedFd) {
    // Fails where the other side was faster.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// Tells a client why it gets nothing. One that does not listen is not waited for. The client sets
/// how long this takes.
pub(super) fn refuse(socket: &OwnedFd, peer: &Credentials, why: &str) {
    note_refusal(peer, why);
    say_refused(socket, why.to_owned());
}

pub(super) fn note_refusal(peer: &Credentials, why: &str) {
    let Credentials { pid, uid, .. } = peer;
    log::warn!(user = *uid; "process {pid} of user {uid} is refused: {why}");
}

fn say_refused(socket: &OwnedFd, why: String) {
    let _ = control::send(socket, &Answer::Refused(why).encode(), &[]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::current;
    use std::time::{Duration, Instant};

    use atoll_transport::channel::{Config, Mapped};
    use rustix::thread::futex;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn each_user_has_a_thread() {
        let mut porters = Porters::default();
        let (done, heard) = channel();
        let run = |porter: &Porter| {
            let done = done.clone();
            porter.run(move || done.send(current().id()).unwrap());
            heard.recv_timeout(LONG).unwrap()
        };
        let [one, same, other] = [7, 7, 8].map(|uid| porters.of(uid).unwrap());
        let thread = run(&one);
        assert_eq!(run(&same), thread);
        let others = run(&other);
        assert!(others != thread && thread != current().id() && others != current().id());
        assert_eq!(run(&Porter::none()), current().id());
        one.run(|| panic!("of an errand"));
        assert_eq!(run(&one), thread);
    }

    #[test]
    fn porters_go_with_their_users() {
        let mut porters = Porters::default();
        let (go, wait) = channel::<()>();
        let busy = porters.of(7).unwrap();
        let (done, heard) = channel();
        busy.run(move || {
            let _ = wait.recv();
            let _ = done.send(());
        });
        for _ in 1..BUSY {
            busy.run(|| {});
        }
        // The other end is dropped, done or not.
        let (late, never) = channel::<()>();
        busy.run_if_idle(move || late.send(()).unwrap());
        assert!(never.recv_timeout(LONG).is_err());
        drop(busy);
        porters.of(8).unwrap();
        assert_eq!(porters.0.len(), 2, "it has errands");
        drop(go);
        heard.recv_timeout(LONG).unwrap();
        let begin = Instant::now();
        while porters.0[&7].open.load(Ordering::Acquire) > 0 {
            assert!(begin.elapsed() < LONG);
            std::thread::yield_now();
        }
        porters.of(9).unwrap();
        assert_eq!(porters.0.keys().collect::<Vec<_>>(), [&9]);
    }

    #[test]
    fn sleepers_are_woken_however_many_there_are() {
        let config = Config { lanes: 2, window: 4096, ..Config::default() };
        let layout = Layout::new(&config).unwrap();
        let memory = SharedMemory::create("test", layout.total()).unwrap();
        let porter = Porters::default().of(7).unwrap();
        let sleepers = porter.sleepers(&memory, &layout).unwrap();
        assert!(Porter::none().sleepers(&memory, &layout).is_none());
        let (woken, all) = channel();
        let places = [(0, 0), (0, 3), (1, 1)];
        for (lane, slot) in places {
            let (memory, woken) = (memory.clone(), woken.clone());
            std::thread::spawn(move || {
                let word = memory.shared().u32(layout.answer(lane, slot) + answer::MARK);
                let wait = futex::Timespec::try_from(LONG).unwrap();
                let slept = futex::wait(word, futex::Flags::empty(), 0, Some(&wait));
                woken.send((lane, slot, slept)).unwrap();
            });
        }
        let mut left = places.to_vec();
        let begin = Instant::now();
        // They may not sleep yet.
        while !left.is_empty() {
            assert!(begin.elapsed() < LONG);
            left.iter().for_each(|&(lane, slot)| porter.wake(&sleepers, lane, slot));
            if let Ok((lane, slot, slept)) = all.recv_timeout(Duration::from_millis(1)) {
                assert_eq!(slept, Ok(()));
                left.retain(|&place| place != (lane, slot));
            }
        }
    }
}
