//! The notices to a guest that takes them: VIRTIO 1.2, 5.11, the notification queue.
//!
//! The driver puts empty buffers there, and each notice goes into one. It offers a buffer again
//! when it has done what the notice in it says: that is how the device learns of it. So a driver
//! with one buffer is told one thing at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_server::host::Bell;
use atoll_server::leases::caches::KernelCache;
use atoll_server::leases::gate::{Mount, Next};

use super::Broken;
use super::memory::GuestMemory;
use super::queue::{Chain, Queue};
use crate::fuse::notices::{self, MAX};
use crate::shm::Doorbell;

/// The least bytes of a buffer.
pub(super) const BUFFER: u32 = MAX.next_multiple_of(64) as u32;

/// A guest, as those see it who tell it of changes.
pub(super) struct Line {
    /// The number of its machine.
    machine: u64,
    bell: Doorbell,
    /// There may be a notice.
    rung: AtomicBool,
    /// It has kept an answer waiting for too long.
    fenced: AtomicBool,
}

impl Line {
    /// That of the machine with this number, whose thread hears `bell`.
    pub fn new(machine: u64, bell: Doorbell) -> Line {
        Line { machine, bell, rung: AtomicBool::new(false), fenced: AtomicBool::new(false) }
    }
}

impl Bell for Line {
    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        self.bell.ring();
    }
}

impl Mount for Line {
    fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
        self.bell.ring();
    }

    fn machine(&self) -> Option<u64> {
        Some(self.machine)
    }
}

/// The buffers of the driver.
#[derive(Default)]
pub(super) struct Buffers {
    /// The empty ones, in the order in which they were offered.
    empty: VecDeque<Chain>,
}

impl Buffers {
    /// Takes what the driver has offered. Returns the names of those that have come.
    pub fn take(&mut self, queue: &mut Queue, memory: &GuestMemory) -> Result<Vec<u16>, Broken> {
        self.empty.retain(|buffer| queue.has(buffer));
        let mut came = Vec::new();
        while queue.runs() {
            // There is nothing in it to be read.
            let Some(buffer) = queue.take(memory, 0)? else { break };
            if buffer.room() < u64::from(BUFFER) {
                return Err(Broken("offered a buffer that is too short for a notice"));
            }
            came.push(buffer.head());
            self.empty.push_back(buffer);
        }
        Ok(came)
    }
}

/// The notices of a session.
pub(super) struct Notices {
    cache: Arc<KernelCache>,
    line: Arc<Line>,
    /// The buffers that have notices in them, the oldest first, and which of them have come back.
    told: VecDeque<(u16, bool)>,
    /// There may be more of them.
    more: bool,
}

impl Notices {
    /// Those of the session with this `cache`.
    pub fn new(cache: Arc<KernelCache>, line: Arc<Line>) -> Notices {
        Notices { cache, line, told: VecDeque::new(), more: true }
    }

    /// Whether the session is to end: the guest has not done what it was told, or cannot have.
    pub fn is_over(&self) -> bool {
        self.line.fenced.load(Ordering::Acquire) || self.more && self.cache.is_behind()
    }

    /// Buffers have come back.
    pub fn came(&mut self, buffers: &[u16]) {
        for (head, is_back) in &mut self.told {
            *is_back |= buffers.contains(head);
        }
        while self.told.pop_front_if(|(_, is_back)| *is_back).is_some() {
            self.cache.told();
        }
    }

    /// Sends what there is to be told, as far as there are buffers. Returns whether anything was.
    pub fn send(
        &mut self,
        buffers: &mut Buffers,
        queue: &mut Queue,
        memory: &GuestMemory,
    ) -> Result<bool, Broken> {
        self.more |= self.line.rung.swap(false, Ordering::AcqRel);
        let mut any = false;
        while self.more && queue.runs() && !buffers.empty.is_empty() {
            let Next::Tell(notice) = self.cache.next() else {
                self.more = false;
                break;
            };
            let Some(buffer) = buffers.empty.pop_front() else { break };
            self.told.push_back((buffer.head(), false));
            queue.give(memory, buffer, &[&notices::message(&notice)], 0)?;
            any = true;
        }
        if any {
            queue.tell(memory)?;
        }
        Ok(any)
    }
}
