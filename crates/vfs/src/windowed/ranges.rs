//! The table of ranges: which place of the window shows which range of which file.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::types::Ino;

/// A range of a file: the file, and how many ranges come before it.
pub(super) type Key = (Ino, u64);

/// How many ranges are remembered that go by messages.
const SEEN: usize = 1024;

/// A place of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    /// The device has been asked to show a range there.
    Coming(Key),
    /// It shows the range, which was used last at that time.
    Shown(Key, u64),
    /// Nobody knows what it shows.
    Lost,
}

/// What is known of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Shown(usize),
    Coming(usize),
}

/// The ranges that are shown.
#[derive(Debug)]
pub(super) struct Ranges {
    places: Vec<Place>,
    by: BTreeMap<Key, usize>,
    /// By place: how often it is pinned.
    pins: Vec<u32>,
    now: u64,
}

impl Ranges {
    /// None, in so many places.
    pub fn new(places: usize) -> Ranges {
        Ranges {
            places: vec![Place::Free; places],
            by: BTreeMap::new(),
            pins: vec![0; places],
            now: 0,
        }
    }

    /// How many places there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Where a range is, or is going to be.
    pub fn find(&self, key: Key) -> Option<Found> {
        let place = *self.by.get(&key)?;
        Some(match self.places[place] {
            Place::Coming(_) => Found::Coming(place),
            _ => Found::Shown(place),
        })
    }

    /// The range at `place` is used.
    pub fn used(&mut self, place: usize) {
        self.now += 1;
        if let Place::Shown(_, last) = &mut self.places[place] {
            *last = self.now;
        }
    }

    /// A place that shows nothing.
    pub fn free(&self) -> Option<usize> {
        self.places.iter().position(|place| *place == Place::Free)
    }

    /// The device is asked to show a range at a place that is free.
    pub fn coming(&mut self, place: usize, key: Key) {
        debug_assert!(self.places[place] == Place::Free && !self.by.contains_key(&key));
        self.places[place] = Place::Coming(key);
        self.by.insert(key, place);
    }

    /// The range that was coming is shown.
    pub fn shown(&mut self, place: usize) {
        if let Place::Coming(key) = self.places[place] {
            self.now += 1;
            self.places[place] = Place::Shown(key, self.now);
        }
    }

    /// The place shows nothing any more.
    pub fn freed(&mut self, place: usize) {
        self.leave(place, Place::Free);
    }

    /// What the place shows is not known any more: it is used no more.
    pub fn lost(&mut self, place: usize) {
        self.leave(place, Place::Lost);
    }

    fn leave(&mut self, place: usize, to: Place) {
        let before = core::mem::replace(&mut self.places[place], to);
        if let Place::Coming(key) | Place::Shown(key, _) = before {
            self.by.remove(&key);
        }
    }

    /// The range at `place` is not given back until it is unpinned as often.
    pub fn pin(&mut self, place: usize) {
        self.pins[place] += 1;
    }

    /// Takes one pin back.
    pub fn unpin(&mut self, place: usize) {
        self.pins[place] = self.pins[place].saturating_sub(1);
    }

    /// The places of at most `most` shown ranges that were used least lately and are not
    /// pinned, and the ranges.
    pub fn least_used(&self, most: usize) -> Vec<(usize, Key)> {
        let mut shown: Vec<(u64, usize, Key)> = Vec::new();
        for (place, what) in self.places.iter().enumerate() {
            if let (Place::Shown(key, last), 0) = (*what, self.pins[place]) {
                shown.push((last, place, key));
            }
        }
        shown.sort_unstable_by_key(|(last, ..)| *last);
        shown.truncate(most);
        shown.into_iter().map(|(_, place, key)| (place, key)).collect()
    }

    /// The places of the shown ranges of a file that are not pinned.
    pub fn of(&self, ino: Ino) -> Vec<usize> {
        let shown = |place: &usize| {
            matches!(self.places[*place], Place::Shown(..)) && self.pins[*place] == 0
        };
        self.by.range((ino, 0)..=(ino, u64::MAX)).map(|(_, place)| *place).filter(shown).collect()
    }
}

/// How many reads and writes in which range were messages lately: so many that the range is worth a
/// place, or not. Ranges that fall on one place of this table take turns there.
#[derive(Debug)]
pub(super) struct Seen(Vec<Option<(Key, u32)>>);

impl Seen {
    pub fn new() -> Seen {
        Seen(vec![None; SEEN])
    }

    fn place(&mut self, key: Key) -> &mut Option<(Key, u32)> {
        let mixed = (key.0.0 ^ key.1.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &mut self.0[(mixed >> 32) as usize % SEEN]
    }

    /// One in the range was a message.
    pub fn add(&mut self, key: Key) {
        match self.place(key) {
            Some((kept, sum)) if *kept == key => *sum = sum.saturating_add(1),
            other => *other = Some((key, 1)),
        }
    }

    /// How many were.
    pub fn calls(&mut self, key: Key) -> u32 {
        self.place(key).filter(|(kept, _)| *kept == key).map_or(0, |(_, sum)| sum)
    }

    /// The range has to be worth a place anew.
    pub fn forget(&mut self, key: Key) {
        let place = self.place(key);
        *place = place.filter(|(kept, _)| *kept != key);
    }
}
