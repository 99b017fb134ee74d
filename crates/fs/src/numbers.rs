//! A table of small numbers by large ones that costs less than a hash table for any keys: the slots
//! of inodes by inode number, which every operation asks for several times.
//!
//! The numbers that fall into one bucket are in a chain. Who chooses which inodes are open could
//! make one chain of them all if they knew where numbers fall; so that goes by a secret
//! (Dietzfelbinger et al. 1997: for any two numbers the probability that they meet is at most twice
//! that of chance).

use alloc::vec::Vec;

/// The end of a chain.
const NONE: u32 = u32::MAX;

/// A slot's number, and the slot after it in its chain.
#[derive(Clone, Copy, Debug)]
struct Link {
    number: u64,
    next: u32,
}

/// Slots by number.
#[derive(Debug)]
pub struct Numbers {
    /// Odd.
    factor: u64,
    /// A number's chain is in the highest bits of its product with the factor.
    shift: u32,
    /// The first slot of each chain, a power of two of them.
    heads: Vec<u32>,
    /// By slot; those of slots that are in no chain mean nothing.
    links: Vec<Link>,
    len: usize,
}

impl Numbers {
    const HEADS_MIN: usize = 16;

    /// An empty table. Nobody who chooses numbers may know the `secret`.
    pub fn new(secret: u64) -> Numbers {
        Numbers { factor: secret | 1, shift: 63, heads: Vec::new(), links: Vec::new(), len: 0 }
    }

    /// A secret that makes such a table.
    pub fn secret(&self) -> u64 {
        self.factor
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The numbers, in any order.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let slots = self.heads.iter().flat_map(|&head| self.chain(head));
        slots.map(|slot| self.links[slot as usize].number)
    }

    /// The slots of a chain.
    #[cfg(test)]
    fn chain(&self, head: u32) -> impl Iterator<Item = u32> {
        let mut at = head;
        core::iter::from_fn(move || {
            let slot = (at != NONE).then_some(at)?;
            at = self.links[slot as usize].next;
            Some(slot)
        })
    }

    #[inline]
    fn bucket(&self, number: u64) -> usize {
        (number.wrapping_mul(self.factor) >> self.shift) as usize
    }

    /// The slot of `number`.
    #[inline]
    pub fn get(&self, number: u64) -> Option<u32> {
        let mut at = *self.heads.get(self.bucket(number))?;
        while at != NONE {
            let link = &self.links[at as usize];
            if link.number == number {
                return Some(at);
            }
            at = link.next;
        }
        None
    }

    /// Gives `number`, which has none, the slot `slot`, which no other number has.
    #[inline]
    pub fn insert(&mut self, number: u64, slot: u32) {
        debug_assert!(self.get(number).is_none());
        if self.len == self.heads.len() {
            self.grow();
        }
        let bucket = self.bucket(number);
        let link = Link { number, next: core::mem::replace(&mut self.heads[bucket], slot) };
        let at = slot as usize;
        if at >= self.links.len() {
            self.links.resize(at + 1, link);
        }
        self.links[at] = link;
        self.len += 1;
    }

    /// Takes `number` out. Returns its slot.
    #[inline]
    pub fn remove(&mut self, number: u64) -> Option<u32> {
        let bucket = self.bucket(number);
        let mut at = *self.heads.get(bucket)?;
        let mut before = NONE;
        while at != NONE {
            let link = self.links[at as usize];
            if link.number == number {
                match before {
                    NONE => self.heads[bucket] = link.next,
                    before => self.links[before as usize].next = link.next,
                }
                self.len -= 1;
                return Some(at);
            }
            (before, at) = (at, link.next);
        }
        None
    }

    /// Makes twice as many chains.
    #[cold]
    fn grow(&mut self) {
        let count = (self.heads.len() * 2).max(Self::HEADS_MIN);
        self.shift = 64 - count.trailing_zeros();
        let before = core::mem::replace(&mut self.heads, alloc::vec![NONE; count]);
        for head in before {
            let mut at = head;
            while at != NONE {
                let Link { number, next } = self.links[at as usize];
                let bucket = self.bucket(number);
                self.links[at as usize].next = core::mem::replace(&mut self.heads[bucket], at);
                at = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::vec::Vec;

    use super::*;

    /// Numbers that follow one another, that have great distances, and those at both ends.
    fn numbers(at: u64) -> u64 {
        match at % 3 {
            0 => at,
            1 => at << 40,
            _ => u64::MAX - at,
        }
    }

    #[test]
    fn it_answers_as_a_map_does() {
        for secret in [0, 1, 0x9e37_79b9_7f4a_7c15, u64::MAX] {
            let (mut table, mut model) = (Numbers::new(secret), HashMap::new());
            let mut free = (0..1000).rev().collect::<Vec<u32>>();
            let mut random = 1u64;
            for _ in 0..20_000 {
                random =
                    random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                let number = numbers(random >> 32 & 0x3ff);
                assert_eq!(table.get(number), model.get(&number).copied());
                let taken = table.remove(number);
                assert_eq!(taken, model.remove(&number));
                free.extend(taken);
                if random >> 20 & 3 != 0
                    && let Some(slot) = free.pop()
                {
                    table.insert(number, slot);
                    model.insert(number, slot);
                }
                assert_eq!(table.len(), model.len());
            }
            let (mut found, mut expected): (Vec<_>, Vec<_>) =
                (table.iter().collect(), model.keys().copied().collect());
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected);
            assert!(found.len() > 400);
        }
    }

    /// No chain is long, whatever the distances of the numbers, but for a secret without bits.
    #[test]
    fn chains_are_short() {
        for shift in [0, 1, 7, 16, 20, 32, 40] {
            let mut table = Numbers::new(0x9e37_79b9_7f4a_7c15);
            (0..10_000).for_each(|at| table.insert(u64::from(at) << shift, at));
            let longest = table.heads.iter().map(|&head| table.chain(head).count());
            assert!(longest.max() <= Some(16), "{shift}");
        }
    }
}
