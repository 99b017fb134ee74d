//! A map of bounded length: what was not used for longest goes first, nearly.

use alloc::collections::BTreeMap;
use core::borrow::Borrow;
use core::mem;
use core::ops::RangeInclusive;

/// Two maps, each of at most half of the length: what is used goes to the young one, and when that
/// is full the old one is dropped. So no order of use has to be kept.
#[derive(Debug)]
pub(super) struct Halves<K, V> {
    young: BTreeMap<K, V>,
    old: BTreeMap<K, V>,
    half: usize,
}

impl<K: Ord + Clone, V> Halves<K, V> {
    /// One with at most `most` entries, at least two.
    pub fn new(most: usize) -> Self {
        Halves { young: BTreeMap::new(), old: BTreeMap::new(), half: (most / 2).max(1) }
    }

    /// What there is for `key`, which is used now.
    pub fn get<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if let Some((key, value)) = self.old.remove_entry(key) {
            self.insert(key, value);
        }
        self.young.get_mut(key)
    }

    /// Has `value` for `key`, and nothing else.
    pub fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// There is nothing for `key` any more. Returns what there was.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.young.remove(key).or_else(|| self.old.remove(key))
    }

    /// There is nothing for these keys any more.
    pub fn remove_range(&mut self, keys: RangeInclusive<K>) {
        for half in [&mut self.young, &mut self.old] {
            while let Some((key, _)) = half.range(keys.clone()).next() {
                let key = key.clone();
                half.remove(&key);
            }
        }
    }

    /// There is nothing any more.
    pub fn clear(&mut self) {
        (self.young, self.old) = (BTreeMap::new(), BTreeMap::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_no_more_is_kept_than_may_be() {
        let mut kept = Halves::new(8);
        for number in 0..1000u32 {
            kept.insert(number, number * 2);
            kept.insert(0, 7);
            assert_eq!(kept.get(&0), Some(&mut 7));
            assert_eq!(kept.get(&number).copied(), Some(if number == 0 { 7 } else { number * 2 }));
            assert!(kept.young.len() + kept.old.len() <= 8);
        }
        assert_eq!(kept.get(&900), None);
        assert_eq!(kept.remove(&999), Some(1998));
        kept.insert(5, 1);
        kept.insert(6, 1);
        kept.remove_range(1..=5);
        assert_eq!([5, 6, 0].map(|key| kept.get(&key).copied()), [None, Some(1), Some(7)]);
        kept.clear();
        assert_eq!(kept.get(&0), None);
    }
}
