//! What is kept of file systems whose devices tell of changes.
//!
//! Others wait until a notice has been taken, and a second without an answer costs the image its
//! session. So notices are taken before each use of what is kept; while the image waits, for a
//! device, for input or for a time; and, when the program runs and calls nothing, by an interrupt
//! ([`interrupts`](crate::interrupts)). To look costs no exit.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;

use atoll_transport::{Lost, Shared};
use atoll_vfs::{Keeper, Kept};
use atoll_virtio::fs::Notices;
use atoll_virtio::pci::Bell;

use crate::virtio::Counted;
use crate::{clock, frames};

/// The most bytes of files that are kept, and which part of memory at most.
const PAGES: u64 = 32 << 20;
const PART: u64 = 8;
/// A device that has so many rounds of notices at once is taken for one that never ends.
const ROUNDS: usize = 1024;

/// What is kept, with the queue by which the image is told of it.
#[derive(Debug)]
struct State {
    notices: Notices<Shared<'static>>,
    bell: Bell<Counted>,
    kept: Kept,
    message: Vec<u8>,
    /// The device has broken the rules.
    is_lost: bool,
}

impl State {
    /// Takes the notices that have come.
    fn take(&mut self) {
        for _ in 0..ROUNDS {
            if self.is_lost {
                return;
            }
            let kept = &mut self.kept;
            match self.notices.take_all(&mut self.message, |message| kept.take(message)) {
                Ok(taken) => {
                    if taken.rings {
                        self.bell.ring();
                    }
                    if !taken.more {
                        return;
                    }
                }
                Err(Lost) => break,
            }
        }
        self.kept.clear();
        self.is_lost = true;
    }
}

type Place = &'static RefCell<State>;

/// All of them.
struct All(RefCell<Vec<Place>>);
// SAFETY: there is one processor, and the interrupt comes only while the program runs.
unsafe impl Sync for All {}
static ALL: All = All(RefCell::new(Vec::new()));

/// Takes the notices that have come from all devices.
pub fn take_all() {
    // What is in use takes them itself.
    let Ok(all) = ALL.0.try_borrow() else { return };
    for place in all.iter() {
        if let Ok(mut state) = place.try_borrow_mut() {
            state.take();
        }
    }
}

/// The way to what is kept of one file system, if its device tells of changes.
#[derive(Debug)]
pub struct Told(Option<Place>);

impl Told {
    /// Of a device that tells of nothing nothing is kept.
    pub fn of_nothing() -> Told {
        Told(None)
    }

    /// Takes `notices` from now on, by a queue that is rung so.
    pub fn begin(notices: Notices<Shared<'static>>, bell: Bell<Counted>) -> Told {
        let message = vec![0; notices.buffer_len()];
        let (memory, _) = frames::sizes();
        let kept = Kept::new(PAGES.min(memory / PART) as usize);
        let state = State { notices, bell, kept, message, is_lost: false };
        let place: Place = Box::leak(Box::new(RefCell::new(state)));
        ALL.0.borrow_mut().push(place);
        Told(Some(place))
    }
}

impl Keeper for Told {
    fn with<R>(&self, act: impl FnOnce(&mut Kept) -> R) -> Option<R> {
        let mut state = self.0?.borrow_mut();
        state.take();
        (!state.is_lost).then(|| act(&mut state.kept))
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(clock::monotonic())
    }
}
