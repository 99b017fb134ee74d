//! Which record of a set holds what, and which is given up for another: the server's own copy.
//!
//! The records of a full set are given up in turn, the one filled longest ago first. The server
//! does not see what clients find in a View, so that it cannot keep what they use most.

use alloc::vec;
use alloc::vec::Vec;

use super::layout::Table;

/// The keys of a table's records. The default of `K` is the key of an empty record.
#[derive(Debug)]
pub struct Ways<K, const W: usize> {
    table: Table<W>,
    keys: Vec<K>,
    /// Which record of each set is given up next.
    next: Vec<u8>,
}

impl<K: Copy + Default + PartialEq, const W: usize> Ways<K, W> {
    pub fn new(table: Table<W>) -> Self {
        let count = table.records();
        Ways { table, keys: vec![K::default(); count], next: vec![0; count / W] }
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
        (record, (before != K::default()).then_some(before))
    }

    fn give_up(&mut self, position: u64) -> usize {
        let set = self.table.record(position, 0) / W;
        let next = self.next[set];
        self.next[set] = (next + 1) % W as u8;
        set * W + next as usize
    }

    /// `record` is empty from now on.
    pub fn remove(&mut self, record: usize) {
        self.keys[record] = K::default();
    }
}
