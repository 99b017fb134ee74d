//! A queue beside a model of it, by chance: what the driver offers, what the device makes of it,
//! and what a device writes that keeps no rules. The model says of each entry whether it can be.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use atoll_transport::Shared;

use super::*;
use crate::testing::Machine;

/// Numbers by chance, the same for each seed.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, below: usize) -> usize {
        (self.next() >> 11) as usize % below
    }
}

/// What the driver should know, and where the device is.
struct Model {
    machine: Machine,
    addresses: Addresses,
    options: QueueOptions,
    /// By number, the chains that are the device's: entries, and bytes that it may write.
    held: BTreeMap<u16, (u16, usize)>,
    /// Those that have come back and are not free yet.
    taken: Vec<(Head, u16)>,
    free: u16,
    used: u16,
    index: u16,
}

impl Model {
    fn word(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.machine.read(at, 4).try_into().unwrap())
    }

    fn entry(&self, index: u16) -> u64 {
        self.addresses.used + 4 + 8 * u64::from(index % self.options.size)
    }

    /// The device gives a chain back, as it says.
    fn give(&mut self, id: u32, len: u32, ahead: u16) {
        let at = self.entry(self.index);
        self.machine.write(at, &[id.to_le_bytes(), len.to_le_bytes()].concat());
        self.index = self.index.wrapping_add(ahead);
        self.machine.write(self.addresses.used + 2, &self.index.to_le_bytes());
    }

    /// What has to come of the next take, whoever wrote what is there.
    fn expected(&self) -> Result<Option<(u16, usize)>, Broken> {
        let bytes = self.machine.read(self.addresses.used + 2, 2);
        let ahead = u16::from_le_bytes(bytes.try_into().unwrap()).wrapping_sub(self.used);
        if ahead == 0 {
            return Ok(None);
        }
        let at = self.entry(self.used);
        let (id, len) = (self.word(at), self.word(at + 4) as usize);
        match u16::try_from(id).ok().and_then(|id| Some((id, self.held.get(&id)?))) {
            Some((id, &(_, room))) if usize::from(ahead) <= self.held.len() && len <= room => {
                Ok(Some((id, len)))
            }
            _ => Err(Broken),
        }
    }

    /// The chain of this number as the device reads it: where, how long, whether it is written.
    fn chain(&self, head: u16) -> Vec<(u64, u32, bool)> {
        let (mut table, mut index, mut parts) = (self.addresses.descriptors, head, Vec::new());
        for _ in 0..=usize::from(self.options.parts_max) {
            let at = table + 16 * u64::from(index);
            let bytes = self.machine.read(at, 8);
            let address = u64::from_le_bytes(bytes.try_into().unwrap());
            let (len, rest) = (self.word(at + 8), self.word(at + 12));
            if rest & 4 != 0 {
                assert!(self.options.indirect && parts.is_empty());
                (table, index) = (address, 0);
                continue;
            }
            parts.push((address, len, rest & 2 != 0));
            if rest & 1 == 0 {
                break;
            }
            index = (rest >> 16) as u16;
        }
        parts
    }
}

fn options(chance: &mut Chance) -> QueueOptions {
    let (size, indirect) = (1 << chance.below(5), chance.below(2) == 0);
    let most = if indirect { 6 } else { usize::from(size) };
    let parts_max = 1 + chance.below(most) as u16;
    QueueOptions { size, parts_max, indirect, event_index: chance.below(2) == 0 }
}

/// Offers a chain and looks at it as the device does.
fn offer(queue: &mut Queue<Shared<'static>>, model: &mut Model, chance: &mut Chance) {
    let count = chance.below(usize::from(model.options.parts_max) + 2);
    let readable = chance.below(count + 1);
    let parts: Vec<Part> =
        (0..count).map(|_| Part::shared(chance.next(), chance.below(1 << 20))).collect();
    let (reads, writes) = parts.split_at(readable);
    let entries = if model.options.indirect { 1 } else { count as u16 };
    let offered = queue.offer(reads, writes);
    if count == 0 || count > usize::from(model.options.parts_max) {
        assert_eq!(offered, Err(OfferError::Shape));
    } else if entries > model.free {
        assert_eq!(offered, Err(OfferError::Full));
    } else {
        let Head(head) = offered.unwrap();
        let room = writes.iter().map(Part::len).sum();
        assert_eq!(model.held.insert(head, (entries, room)), None, "it has this one");
        assert!(model.taken.iter().all(|&(taken, _)| taken != Head(head)), "not freed yet");
        model.free -= entries;
        let as_written = parts.iter().enumerate();
        let as_written = as_written.map(|(at, it)| (it.address, it.len as u32, at >= readable));
        assert_eq!(model.chain(head), as_written.collect::<Vec<_>>());
    }
}

/// Takes what has come; whether the queue lives.
fn take(queue: &mut Queue<Shared<'static>>, model: &mut Model) -> bool {
    let expected = model.expected();
    let taken = queue.take();
    assert_eq!(taken.map(|used| used.map(|used| (used.head.0, used.written))), expected);
    match expected {
        Ok(Some((id, _))) => {
            let (entries, _) = model.held.remove(&id).unwrap();
            model.taken.push((Head(id), entries));
            model.used = model.used.wrapping_add(1);
            true
        }
        Ok(None) => true,
        Err(Broken) => false,
    }
}

/// What a device writes that keeps no rules.
fn misbehave(model: &mut Model, chance: &mut Chance) {
    let (size, near) = (usize::from(model.options.size), chance.below(40) as u32);
    match chance.below(6) {
        // Entries of any kind: numbers that there are and that there are not, any length.
        0 => model.give(near, chance.below(2000) as u32, 1),
        1 => model.give(chance.next() as u32, 0, 1),
        2 => model.give(near % size as u32, u32::MAX, 1),
        // The index runs on, or back.
        3 => model.give(near % size as u32, 0, chance.below(4) as u16),
        4 => model.give(near % size as u32, 0, (chance.below(4) as u16).wrapping_neg()),
        // All of the used ring.
        _ => {
            let bytes: Vec<u8> = (0..6 + 8 * size).map(|_| chance.next() as u8).collect();
            model.machine.write(model.addresses.used, &bytes);
        }
    }
}

/// Uses a queue until it breaks, or for long enough: whether it broke, and what came back.
fn run(seed: u64, keeps_rules: bool) -> (bool, usize) {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let options = options(&mut chance);
    let mut machine = Machine::default();
    let mut queue = Queue::new(&mut machine, options).unwrap();
    let addresses = queue.addresses();
    let (held, taken, free) = (BTreeMap::new(), Vec::new(), options.size);
    let mut model = Model { machine, addresses, options, held, taken, free, used: 0, index: 0 };
    let mut come = 0;
    for _ in 0..if cfg!(miri) { 60 } else { 600 } {
        match chance.below(8) {
            0..3 => offer(&mut queue, &mut model, &mut chance),
            3..5 => {
                // Any chain that it has not given back yet.
                let behind = model.index.wrapping_sub(model.used);
                if behind == 0 && !model.held.is_empty() {
                    let which = chance.below(model.held.len());
                    let (&id, &(_, room)) = model.held.iter().nth(which).unwrap();
                    let len = chance.below(room + 1) as u32;
                    model.give(id.into(), len, 1);
                }
            }
            5 => {
                let before = model.used;
                if !take(&mut queue, &mut model) {
                    assert_eq!(queue.take(), Err(Broken));
                    assert_eq!(queue.offer(&[Part::shared(0, 1)], &[]), Err(OfferError::Broken));
                    return (true, come);
                }
                come += usize::from(model.used != before);
            }
            6 if !model.taken.is_empty() => {
                let (head, entries) = model.taken.swap_remove(chance.below(model.taken.len()));
                queue.free(head);
                model.free += entries;
            }
            6 => _ = (queue.must_ring(), queue.want_interrupt(chance.below(2) == 0)),
            _ if chance.below(8) > 0 => {}
            // The half that is the driver's: it is never read again.
            _ if chance.below(2) == 0 => {
                let len = addresses.used - addresses.descriptors;
                let bytes: Vec<u8> = (0..len).map(|_| chance.next() as u8).collect();
                model.machine.write(addresses.descriptors, &bytes);
            }
            _ if keeps_rules => {}
            _ => misbehave(&mut model, &mut chance),
        }
        assert_eq!(usize::from(queue.outstanding()), model.held.len());
    }
    (false, come)
}

#[test]
fn a_queue_does_as_its_model() {
    let seeds = if cfg!(miri) { 6 } else { 400 };
    let (mut broken, mut come) = (0, 0);
    for seed in 1..=seeds {
        let (ended, count) = run(seed, true);
        assert!(!ended, "{seed}: nothing was wrong");
        broken += u64::from(run(seed, false).0);
        come += count as u64;
    }
    assert!(broken > seeds / 3 && come > 10 * seeds / 2, "{broken} {come}");
}
