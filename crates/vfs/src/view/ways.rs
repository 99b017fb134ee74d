//! Which record of a set holds what, and which is given up for another: the server's own copy.
//!
//! A full set gives up the record that its new key looks at first. Of consecutive pages that is the
//! oldest. The server does not see what clients find in a View, so it cannot keep what they use.

use alloc::vec;
use alloc::vec::Vec;

use super::layout::Table;

/// The keys of a table's records. The default of `K` is the key of an empty record.
#[derive(Debug)]
pub struct Ways<K, const W: usize> {
    table: Table<W>,
    keys: Vec<K>,
}

impl<K: Copy + Default + PartialEq, const W: usize> Ways<K, W> {
    pub fn new(table: Table<W>) -> Self {
        Ways { table, keys: vec![K::default(); table.records()] }
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
        let free = self.find(position, K::default());
        let record = free.unwrap_or_else(|| self.table.record(position, 0));
        let before = core::mem::replace(&mut self.keys[record], key);
        (record, (before != K::default()).then_some(before))
    }

    /// `record` is empty from now on.
    pub fn remove(&mut self, record: usize) {
        self.keys[record] = K::default();
    }
}
