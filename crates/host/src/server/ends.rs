//! The ends of sessions, which nobody waits for.
//!
//! A session that ends may have much to write back of the files that it has mapped. So it ends in
//! a thread of its user's: others, whose sessions end at the same time, do not wait for that, and
//! there are no more threads than users.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type End = Box<dyn FnOnce() + Send>;

/// The ends that each user has still before it; without an entry there is no thread.
#[derive(Default)]
struct Queues(Mutex<HashMap<u32, VecDeque<End>>>);

impl Queues {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, VecDeque<End>>> {
        // Nothing of others runs inside.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next end of `uid`; after `None` there is no thread for it.
    fn next(&self, uid: u32) -> Option<End> {
        let mut users = self.lock();
        let next = users.get_mut(&uid).and_then(VecDeque::pop_front);
        if next.is_none() {
            users.remove(&uid);
        }
        next
    }

    fn work(&self, uid: u32) {
        while let Some(end) = self.next(uid) {
            // A panic in one session is nothing to the next.
            let _ = catch_unwind(AssertUnwindSafe(end));
        }
    }
}

/// The threads in which sessions end. When this is dropped, all have ended.
#[derive(Default)]
pub(super) struct Ends {
    queues: Arc<Queues>,
    threads: Vec<JoinHandle<()>>,
}

impl Ends {
    /// Has `end` run soon, after those of the same user that were given before.
    pub(super) fn run(&mut self, uid: u32, end: impl FnOnce() + Send + 'static) {
        let begun = {
            let mut users = self.queues.lock();
            let begun = users.contains_key(&uid);
            users.entry(uid).or_default().push_back(Box::new(end));
            begun
        };
        if begun {
            return;
        }
        self.threads.retain(|thread| !thread.is_finished());
        let queues = Arc::clone(&self.queues);
        let name = std::thread::Builder::new().name("ends".to_owned());
        match name.spawn(move || queues.work(uid)) {
            Ok(thread) => self.threads.push(thread),
            // No thread is left: better here than never.
            Err(_) => self.queues.work(uid),
        }
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        for thread in self.threads.drain(..) {
            // Panics have been caught there.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn one_user_does_not_wait_for_another() {
        let mut ends = Ends::default();
        let (done, ended) = channel();
        let (go, wait) = channel::<()>();
        // It ends when this test says so.
        let said = done.clone();
        ends.run(1, move || {
            let _ = wait.recv();
            said.send(1).unwrap();
        });
        for number in [2, 3] {
            let said = done.clone();
            ends.run(1, move || said.send(number).unwrap());
        }
        ends.run(9, || panic!("of a session"));
        for number in [10, 11] {
            let said = done.clone();
            ends.run(9, move || said.send(number).unwrap());
        }
        assert_eq!([(); 2].map(|()| ended.recv().unwrap()), [10, 11]);
        assert!(ended.try_recv().is_err());
        drop(go);
        drop(ends);
        assert_eq!(ended.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }
}
