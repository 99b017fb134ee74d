//! The queue by itself, whose device is the test; and with a device that answers in any order.

use alloc::vec::Vec;

use atoll_transport::Shared;

use super::*;
use crate::device::{Device, DeviceError, features};
use crate::requests::Requests;
use crate::testing::{FakeDevice, Lie, Machine};

const OPTIONS: QueueOptions =
    QueueOptions { size: 8, parts_max: 3, indirect: false, event_index: false };

fn parts(region: &Region<Shared<'static>>, lens: &[usize]) -> Vec<Part> {
    lens.iter().map(|&len| region.part(0, len)).collect()
}

/// Writes an entry of the used ring, and the index.
fn give(queue: &Queue<Shared<'static>>, index: u16, id: u32, len: u32) {
    let at = queue.layout.used + 4 + 8 * usize::from(index % queue.options.size);
    queue.memory().u32(at).store(id.to_le(), Relaxed);
    queue.memory().u32(at + 4).store(len.to_le(), Relaxed);
    queue.memory().u16(queue.layout.used + 2).store(index.wrapping_add(1).to_le(), Release);
}

#[test]
fn descriptors_are_neither_lost_nor_used_twice() {
    for indirect in [false, true] {
        let mut machine = Machine::default();
        let region = machine.share(4096).unwrap();
        let options = QueueOptions { indirect, ..OPTIONS };
        let mut queue = Queue::new(&mut machine, options).unwrap();
        let (mut index, mut held) = (0u16, Vec::new());
        // Past the point where the indices begin anew.
        for round in 0..70_000usize {
            let lens = [1, 2, 3];
            let own = parts(&region, &lens[..1 + round % 2]);
            match queue.offer(&own, &parts(&region, &lens[..round % 2])) {
                Ok(head) => held.push((head, round % 2)),
                Err(error) => {
                    assert_eq!(error, OfferError::Full);
                    assert!(queue.outstanding() >= if indirect { 8 } else { 3 });
                }
            }
            if round % 5 > 1 && !held.is_empty() {
                let (head, written) = held.remove(round % held.len());
                give(&queue, index, head.index() as u32, written as u32);
                index = index.wrapping_add(1);
                assert_eq!(queue.take(), Ok(Some(Used { head, written })));
                queue.free(head);
                // Once more changes nothing.
                queue.free(head);
            }
            assert_eq!(usize::from(queue.outstanding()), held.len());
        }
        assert!(index > 1000);
    }
}

#[test]
fn shapes_that_no_chain_has() {
    let mut machine = Machine::default();
    let region = machine.share(4096).unwrap();
    for wrong in [
        QueueOptions { size: 0, ..OPTIONS },
        QueueOptions { size: 3, ..OPTIONS },
        QueueOptions { parts_max: 9, ..OPTIONS },
        QueueOptions { parts_max: 0, ..OPTIONS },
    ] {
        assert!(Queue::new(&mut machine, wrong).is_none(), "{wrong:?}");
    }
    let mut queue = Queue::new(&mut machine, OPTIONS).unwrap();
    assert_eq!(queue.offer(&[], &[]), Err(OfferError::Shape));
    let long = parts(&region, &[1; 4]);
    assert_eq!(queue.offer(&long, &[]), Err(OfferError::Shape));
    assert_eq!(queue.offer(&[Part::shared(0, 1 << 32)], &[]), Err(OfferError::Shape));
    assert_eq!(queue.outstanding(), 0);
}

/// Whatever the device writes, it is found out before anything is done with it, and for ever.
#[test]
fn a_device_that_lies_is_found_out() {
    type Mischief = fn(&Queue<Shared<'static>>, u16);
    let cases: [(&str, Mischief); 7] = [
        ("no such chain", |queue, _| give(queue, 0, 8, 0)),
        ("a number far off", |queue, head| give(queue, 0, u32::from(head) + (1 << 16), 0)),
        ("the largest number", |queue, _| give(queue, 0, u32::MAX, 0)),
        ("a descriptor within a chain", |queue, head| give(queue, 0, u32::from(head) + 1, 0)),
        ("a byte too many", |queue, head| give(queue, 0, head.into(), 101)),
        ("all bytes", |queue, head| give(queue, 0, head.into(), u32::MAX)),
        ("an index that runs on", |queue, head| {
            give(queue, 0, head.into(), 0);
            store_index(queue, 3);
        }),
    ];
    fn store_index(queue: &Queue<Shared<'static>>, index: u16) {
        queue.memory().u16(queue.layout.used + 2).store(index, Relaxed);
    }
    for (name, mischief) in cases {
        let mut machine = Machine::default();
        let region = machine.share(4096).unwrap();
        let mut queue = Queue::new(&mut machine, OPTIONS).unwrap();
        let other = queue.offer(&parts(&region, &[5]), &parts(&region, &[100])).unwrap();
        let head = queue.offer(&parts(&region, &[5]), &parts(&region, &[60, 40])).unwrap();
        assert_ne!(other, head);
        mischief(&queue, head.0);
        assert_eq!(queue.take(), Err(Broken), "{name}");
        // What it says afterwards does not count.
        give(&queue, 0, head.index() as u32, 1);
        assert_eq!(queue.take(), Err(Broken), "{name}");
        assert_eq!(queue.offer(&parts(&region, &[5]), &[]), Err(OfferError::Broken), "{name}");
    }
    // The same chain again, although it was not offered again.
    let mut machine = Machine::default();
    let region = machine.share(4096).unwrap();
    let mut queue = Queue::new(&mut machine, OPTIONS).unwrap();
    let head = queue.offer(&parts(&region, &[5]), &parts(&region, &[100])).unwrap();
    let other = queue.offer(&parts(&region, &[5]), &parts(&region, &[100])).unwrap();
    give(&queue, 0, head.index() as u32, 100);
    assert_eq!(queue.take(), Ok(Some(Used { head, written: 100 })));
    give(&queue, 1, head.index() as u32, 100);
    assert_eq!(queue.take(), Err(Broken));
    assert_ne!(head, other);
}

#[test]
fn indices_are_passed_by_distance() {
    for base in [0u16, 1, 100, 65_530, 65_535] {
        let at = |by: u16| base.wrapping_add(by);
        assert!(passed(at(0), at(0), at(1)));
        assert!(passed(at(2), at(0), at(3)));
        assert!(!passed(at(3), at(0), at(3)));
        assert!(!passed(at(u16::MAX), at(0), at(3)));
        assert!(!passed(at(0), at(0), at(0)));
    }
}

/// A device that falls asleep is rung; one that said that it looks by itself is not.
#[test]
fn the_device_is_rung_when_it_wants_to_be() {
    for event_index in [false, true] {
        let mut machine = Machine::default();
        let region = machine.share(4096).unwrap();
        let options = QueueOptions { event_index, ..OPTIONS };
        let mut queue = Queue::new(&mut machine, options).unwrap();
        assert!(!queue.must_ring());
        queue.offer(&parts(&region, &[5]), &[]).unwrap();
        assert!(queue.must_ring());
        assert!(!queue.must_ring(), "once for each");
        let silence = if event_index { 0 } else { NO_NOTIFY };
        let at = queue.layout.used + if event_index { 4 + 8 * 8 } else { 0 };
        // By the index: it wants to hear of the first, which was.
        queue.memory().u16(at).store(silence, Relaxed);
        queue.offer(&parts(&region, &[5]), &[]).unwrap();
        assert!(!queue.must_ring());
        queue.memory().u16(at).store(if event_index { 3 } else { 0 }, Relaxed);
        queue.offer(&parts(&region, &[5]), &[]).unwrap();
        assert_eq!(queue.must_ring(), !event_index);
        queue.offer(&parts(&region, &[5]), &[]).unwrap();
        assert!(queue.must_ring());
    }
}

#[test]
fn an_answer_that_has_come_needs_no_interrupt() {
    for event_index in [false, true] {
        let mut machine = Machine::default();
        let region = machine.share(4096).unwrap();
        let options = QueueOptions { event_index, ..OPTIONS };
        let mut queue = Queue::new(&mut machine, options).unwrap();
        let head = queue.offer(&parts(&region, &[5]), &[]).unwrap();
        let at = queue.layout.available + if event_index { 4 + 2 * 8 } else { 0 };
        let says = |queue: &Queue<Shared<'static>>| {
            let word = queue.memory().u16(at).load(Relaxed);
            if event_index { passed(word, 0, 1) } else { word & NO_INTERRUPT == 0 }
        };
        assert!(!queue.want_interrupt(false));
        assert!(!says(&queue));
        assert!(!queue.want_interrupt(true));
        assert!(says(&queue));
        give(&queue, 0, head.index() as u32, 0);
        assert!(queue.want_interrupt(true));
    }
}

fn echo(_: u16, request: &[u8], room: usize) -> Option<Vec<u8>> {
    Some(request.iter().rev().copied().take(room).collect())
}

/// Many requests at a time, whose answers come by chance: each gets its own.
#[test]
fn answers_in_any_order() {
    for agreed in [0, features::INDIRECT, features::EVENT_INDEX, crate::requests::QUEUE_FEATURES] {
        let mut machine = Machine::default();
        let region = machine.share(4096 * 4).unwrap();
        let mut device = FakeDevice::new(&machine, 1, agreed, echo);
        let offered = device.begin().unwrap();
        device.accept(agreed & offered).unwrap();
        let mut requests = Requests::begin(&mut device, &mut machine, 0, 64, 2, agreed).unwrap();
        device.start().unwrap();
        let mut held: Vec<(usize, Head, u32)> = Vec::new();
        for round in 0..2000u32 {
            let place = |slot: usize| 512 * slot;
            let free = (0..16).find(|slot| held.iter().all(|&(held, ..)| held != *slot));
            if let Some(slot) = free {
                let at = place(slot);
                region.memory().write(at, &round.to_le_bytes());
                let sent =
                    requests.send(&mut device, &[region.part(at, 4)], &[region.part(at + 256, 4)]);
                match sent {
                    Ok(head) => held.push((slot, head, round)),
                    Err(error) => assert_eq!(error, OfferError::Full),
                }
            }
            if round % 3 > 0 && !held.is_empty() {
                let (slot, head, number) = held.remove(round as usize % held.len());
                assert_eq!(requests.wait(&mut device, head), Ok(4));
                let mut answer = [0; 4];
                region.memory().read(place(slot) + 256, &mut answer);
                answer.reverse();
                assert_eq!(u32::from_le_bytes(answer), number);
            }
        }
        let wanted = agreed & features::EVENT_INDEX == 0;
        assert!(device.rung > 1000 || wanted, "{}", device.rung);
    }
}

#[test]
fn lies_end_a_queue_that_is_used() {
    let lies = [
        Lie::NoSuchChain(16),
        Lie::NoSuchChain(u32::MAX),
        Lie::NotOutstanding,
        Lie::TooLong,
        Lie::IndexAhead(2),
        Lie::IndexAhead(u16::MAX),
    ];
    for lie in lies {
        let mut machine = Machine::default();
        let region = machine.share(4096).unwrap();
        let mut device = FakeDevice::new(&machine, 1, features::INDIRECT, echo);
        let features = device.begin().unwrap();
        device.accept(features).unwrap();
        let mut requests = Requests::begin(&mut device, &mut machine, 0, 64, 2, features).unwrap();
        device.start().unwrap();
        let mut ask = |device: &mut FakeDevice<_>| {
            let sent = requests.send(device, &[region.part(0, 4)], &[region.part(8, 4)]);
            match sent {
                Ok(head) => requests.wait(device, head),
                Err(_) => Err(DeviceError::Broken),
            }
        };
        assert_eq!(ask(&mut device), Ok(4));
        device.lie = Some(lie);
        assert_eq!(ask(&mut device), Err(DeviceError::Broken), "{lie:?}");
        assert_eq!(ask(&mut device), Err(DeviceError::Broken), "{lie:?}");
    }
}
