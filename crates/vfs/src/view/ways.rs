//! Which record of a set holds what, and which is given up for another: the server's own copy.
//!
//! Static re-reference interval prediction (SRRIP; Jaleel, Theobald, Steely, Emer, "High
//! Performance Cache Replacement Using Re-Reference Interval Prediction", ISCA 2010): two bits a
//! record, made for sets. What is new is expected to be used late, so that a scan replaces itself;
//! what was used is kept. `atoll-block`'s S3-FIFO does not fit here: it orders one pool in queues
//! and is told of each hit, whereas the hits of a View happen in another process, which leaves a
//! word behind at most.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use atoll_transport::Shared;

use super::layout::Table;

/// How far away the next use of a record is expected: 0 to this.
const DISTANT: u8 = 3;
/// What is expected of a record that is new.
const NEW: u8 = 2;

/// What the client has used, in its own memory: words that are not 0. Nothing but the choice of
/// what to give up depends on them.
#[derive(Clone, Copy, Debug)]
pub struct Used<'a> {
    pub memory: Option<Shared<'a>>,
    /// The number of this table's first word.
    pub first: usize,
}

impl<'a> Used<'a> {
    #[inline(always)]
    fn word(&self, record: usize) -> Option<&'a AtomicU32> {
        self.memory.map(|memory| memory.u32((self.first + record) * 4))
    }

    /// Client: `record` was used.
    #[inline(always)]
    pub fn mark(&self, record: usize) {
        if let Some(word) = self.word(record)
            && word.load(Ordering::Relaxed) == 0
        {
            word.store(1, Ordering::Relaxed);
        }
    }

    fn take(&self, record: usize) -> bool {
        self.word(record).is_some_and(|word| {
            let used = word.load(Ordering::Relaxed) != 0;
            if used {
                word.store(0, Ordering::Relaxed);
            }
            used
        })
    }
}

/// The keys of a table's records, and how far away the next use of each is expected. The default of
/// `K` is the key of an empty record.
#[derive(Debug)]
pub struct Ways<'a, K, const W: usize> {
    table: Table<W>,
    keys: Vec<K>,
    distances: Vec<u8>,
    used: Used<'a>,
}

impl<'a, K: Copy + Default + PartialEq, const W: usize> Ways<'a, K, W> {
    pub fn new(table: Table<W>, used: Used<'a>) -> Self {
        let count = table.records();
        Ways { table, keys: vec![K::default(); count], distances: vec![0; count], used }
    }

    /// The record that holds `key`, which belongs at `position`.
    #[inline]
    pub fn find(&self, position: u64, key: K) -> Option<usize> {
        (0..W).map(|nth| self.table.record(position, nth)).find(|&record| self.keys[record] == key)
    }

    /// The key that `record` holds.
    pub fn key(&self, record: usize) -> K {
        self.keys[record]
    }

    /// A record for `key`, which none holds, and the key that it held before, if any.
    pub fn insert(&mut self, position: u64, key: K) -> (usize, Option<K>) {
        let record = self.find(position, K::default()).unwrap_or_else(|| self.give_up(position));
        let before = core::mem::replace(&mut self.keys[record], key);
        self.distances[record] = NEW;
        self.used.take(record);
        (record, (before != K::default()).then_some(before))
    }

    fn give_up(&mut self, position: u64) -> usize {
        let table = self.table;
        let set = || (0..W).map(|nth| table.record(position, nth));
        for record in set() {
            if self.used.take(record) {
                self.distances[record] = 0;
            }
        }
        let furthest = set().map(|record| self.distances[record]).max().unwrap_or(DISTANT);
        let mut chosen = None;
        for record in set() {
            // As if time passed until the one expected last is expected never.
            self.distances[record] += DISTANT - furthest;
            if chosen.is_none() && self.distances[record] == DISTANT {
                chosen = Some(record);
            }
        }
        chosen.unwrap_or_else(|| table.record(position, 0))
    }

    /// `record` is empty from now on.
    pub fn remove(&mut self, record: usize) {
        self.keys[record] = K::default();
        self.distances[record] = 0;
    }
}
