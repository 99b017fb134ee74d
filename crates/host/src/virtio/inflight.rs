//! The record of requests in flight, which the front end keeps for the next back end: what was
//! taken from a queue and not answered when this one ended. vhost-user, "Inflight I/O tracking".
//!
//! The order of the stores is that of the specification, so that at each instruction the record
//! and the queue together say which requests have no answer.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use atoll_transport::channel::Mapped;
use atoll_transport::{Memory, Shared};

use super::{Broken, SIZE_MAX};
use crate::shm::SharedMemory;

// Of a queue: features u64 | version u16 | entries u16 | last_batch_head u16 | used_idx u16, then
// each descriptor: inflight u8, five bytes, next u16 | counter u64.
const VERSION: (usize, u16) = (8, 1);
const ENTRIES: usize = 10;
const LAST_HEAD: usize = 12;
const USED: usize = 14;
const DESCRIPTORS: usize = 16;
const DESCRIPTOR: usize = 16;
const NEXT: usize = 6;
const COUNTER: usize = 8;

const PAGE: usize = 4096;

/// The bytes of one queue's record.
fn stride(entries: u16) -> usize {
    (DESCRIPTORS + DESCRIPTOR * usize::from(entries)).next_multiple_of(64)
}

/// The bytes of the records of so many queues.
pub(super) fn len(queues: u16, entries: u16) -> usize {
    (usize::from(queues) * stride(entries)).next_multiple_of(PAGE)
}

/// Memory for such records.
pub(super) fn create(queues: u16, entries: u16) -> std::io::Result<SharedMemory> {
    SharedMemory::create("in flight", len(queues, entries))
}

/// The record of one queue.
#[derive(Debug)]
pub(super) struct Record {
    memory: SharedMemory,
    at: usize,
    entries: u16,
    /// The number of the next request.
    counter: u64,
}

impl Record {
    /// The records in memory that [`create`] has made, here or in another process.
    pub fn open(
        file: OwnedFd,
        offset: u64,
        (queues, entries): (u16, u16),
    ) -> Result<Vec<Record>, Broken> {
        const WRONG: Broken = Broken("handed over a record of requests that is none");
        let memory = SharedMemory::attach(file, 1 << 30).map_err(|_| WRONG)?;
        let start = usize::try_from(offset).map_err(|_| WRONG)?;
        let end = start.checked_add(len(queues, entries)).ok_or(WRONG)?;
        if entries > SIZE_MAX || !start.is_multiple_of(8) || end > memory.len() {
            return Err(WRONG);
        }
        let at = |queue: u16| start + usize::from(queue) * stride(entries);
        let record = |queue| Record { memory: memory.clone(), at: at(queue), entries, counter: 0 };
        Ok((0..queues).map(record).collect())
    }

    fn shared(&self) -> Shared<'_> {
        self.memory.shared()
    }

    fn store(&self, at: usize, value: u16) {
        self.shared().u16(self.at + at).store(value.to_le(), Ordering::SeqCst);
    }

    fn load(&self, at: usize) -> u16 {
        u16::from_le(self.shared().u16(self.at + at).load(Ordering::SeqCst))
    }

    fn descriptor(head: u16) -> usize {
        DESCRIPTORS + DESCRIPTOR * usize::from(head)
    }

    /// The requests in flight of a queue with `size` entries whose used ring has this index, the
    /// first first. `None` for a record that nobody has used yet, which is begun.
    pub fn recover(&mut self, size: u16, used: u16) -> Result<Option<Vec<u16>>, Broken> {
        if size > self.entries {
            return Err(Broken("handed over a record of requests that is too short"));
        }
        if self.load(VERSION.0) != VERSION.1 {
            self.store(VERSION.0, VERSION.1);
            self.store(ENTRIES, size);
            self.store(USED, used);
            return Ok(None);
        }
        // The last answer's note may be missing.
        if self.load(USED) != used {
            let head = self.load(LAST_HEAD);
            if head < size {
                self.store(Self::descriptor(head), 0);
            }
            self.store(USED, used);
        }
        let counter = |head| {
            let at = self.at + Self::descriptor(head) + COUNTER;
            u64::from_le(self.shared().u64(at).load(Ordering::SeqCst))
        };
        let in_flight = |head: &u16| self.load(Self::descriptor(*head)) & 1 != 0;
        let mut heads: Vec<u16> = (0..size).filter(in_flight).collect();
        heads.sort_by_key(|&head| counter(head));
        self.counter = heads.last().map_or(0, |&head| counter(head).wrapping_add(1));
        Ok(Some(heads))
    }

    /// The request `head` has been taken.
    pub fn taken(&mut self, head: u16) {
        let at = Self::descriptor(head);
        let counter = self.shared().u64(self.at + at + COUNTER);
        counter.store(self.counter.to_le(), Ordering::SeqCst);
        self.counter = self.counter.wrapping_add(1);
        self.store(at, 1);
    }

    /// Its answer is about to be given.
    pub fn ending(&mut self, head: u16) {
        self.store(Self::descriptor(head) + NEXT, self.load(LAST_HEAD));
        self.store(LAST_HEAD, head);
    }

    /// Its answer has been given, with which the used ring has this index.
    pub fn ended(&mut self, head: u16, used: u16) {
        self.store(Self::descriptor(head), 0);
        self.store(USED, used);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_another_finds() {
        let memory = create(2, 64).unwrap();
        let open = || {
            let file = memory.as_fd().try_clone_to_owned().unwrap();
            Record::open(file, 0, (2, 64)).unwrap()
        };
        let mut first = open();
        assert_eq!(first[1].recover(64, 10).unwrap(), None);
        for head in [5, 63, 0, 7] {
            first[1].taken(head);
        }
        first[1].ending(63);
        first[1].ended(63, 11);
        assert_eq!(open()[1].recover(64, 11).unwrap(), Some(vec![5, 0, 7]));
        // It ended between the answer and the note of it.
        first[1].ending(0);
        let mut second = open();
        assert_eq!(second[1].recover(64, 12).unwrap(), Some(vec![5, 7]));
        second[1].taken(9);
        assert_eq!(open()[1].recover(64, 12).unwrap(), Some(vec![5, 7, 9]));
        // It ended before the answer.
        second[1].ending(5);
        assert_eq!(open()[1].recover(64, 12).unwrap(), Some(vec![5, 7, 9]));
        assert_eq!(open()[0].recover(64, 0).unwrap(), None);
        assert_eq!(open()[0].recover(64, 0).unwrap(), Some(vec![]));
        assert!(open()[1].recover(128, 12).is_err());
    }

    #[test]
    fn what_is_no_record() {
        let memory = create(2, 64).unwrap();
        let file = || memory.as_fd().try_clone_to_owned().unwrap();
        for (offset, shape) in [(0, (9, 64)), (8, (2, 1024)), (4096, (1, 1)), (4, (1, 8))] {
            assert!(Record::open(file(), offset, shape).is_err(), "{offset} {shape:?}");
        }
        assert!(Record::open(file(), u64::MAX, (1, 8)).is_err());
        let unsealed = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(Record::open(unsealed, 0, (1, 8)).is_err());
    }
}
