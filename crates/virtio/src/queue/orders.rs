//! A queue whose two sides both sleep as soon as they have nothing to do, in every order that the
//! accesses of their two threads can have: no call is missed, and what comes with it is seen.
//!
//! The model takes the place of the memory. The device is what VIRTIO 1.2 demands of one, 2.7.13.
//! A driver whose fences are none, as those of a guest with one processor in an emulator that
//! leaves them out, ends up asleep beside a device that sleeps.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64 as Count;
use std::vec::Vec;

use core::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

use super::*;

enum Word {
    Two(AtomicU16),
    Four(AtomicU32),
    Eight(AtomicU64),
}

/// Memory of the words of a queue.
#[derive(Clone)]
struct Words {
    words: Arc<HashMap<usize, Word>>,
    len: usize,
}

impl Words {
    fn of(options: &QueueOptions, layout: &Layout) -> Words {
        let size = usize::from(options.size);
        let two = |at| (at, Word::Two(AtomicU16::new(0)));
        let four = |at| (at, Word::Four(AtomicU32::new(0)));
        let eight = |at| (at, Word::Eight(AtomicU64::new(0)));
        let shorts = (0..3 + size).map(|number| layout.available + 2 * number);
        let ends = [layout.used, layout.used + 2, layout.used + 4 + USED_ENTRY * size];
        let used = (0..2 * size).map(|number| layout.used + 4 + 4 * number);
        let descriptors = (0..2 * size).map(|number| 8 * number);
        let words = shorts.chain(ends).map(two).chain(used.map(four)).chain(descriptors.map(eight));
        Words { words: Arc::new(words.collect()), len: layout.len }
    }

    fn two(&self, at: usize) -> &AtomicU16 {
        let Some(Word::Two(word)) = self.words.get(&at) else { panic!("no 16-bit word at {at}") };
        word
    }

    fn four(&self, at: usize) -> &AtomicU32 {
        let Some(Word::Four(word)) = self.words.get(&at) else { panic!("no 32-bit word at {at}") };
        word
    }

    fn eight(&self, at: usize) -> &AtomicU64 {
        let Some(Word::Eight(word)) = self.words.get(&at) else { panic!("no 64-bit word at {at}") };
        word
    }
}

impl Memory for Words {
    fn len(&self) -> usize {
        self.len
    }

    fn load16(&self, at: usize, order: Ordering) -> u16 {
        self.two(at).load(order)
    }

    fn store16(&self, at: usize, value: u16, order: Ordering) {
        self.two(at).store(value, order);
    }

    fn load32(&self, at: usize, order: Ordering) -> u32 {
        self.four(at).load(order)
    }

    fn store32(&self, at: usize, value: u32, order: Ordering) {
        self.four(at).store(value, order);
    }

    fn swap32(&self, _: usize, _: u32, _: Ordering) -> u32 {
        unreachable!("no word is both sides'");
    }

    fn replace32(&self, _: usize, _: u32, _: u32) -> Result<u32, u32> {
        unreachable!("no word is both sides'");
    }

    fn load64(&self, at: usize, order: Ordering) -> u64 {
        self.eight(at).load(order)
    }

    fn store64(&self, at: usize, value: u64, order: Ordering) {
        self.eight(at).store(value, order);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn read(&self, _: usize, _: &mut [u8]) {
        unreachable!("words only");
    }

    fn write(&self, _: usize, _: &[u8]) {
        unreachable!("words only");
    }
}

/// What each side rings.
struct Bells {
    device: Notify,
    driver: Notify,
}

/// Answers so many chains, each with the length of its part.
fn serve(words: &Words, layout: Layout, options: QueueOptions, bells: &Bells, count: u16) {
    let size = options.size;
    let (event, used_event) = (
        layout.used + 4 + USED_ENTRY * usize::from(size),
        layout.available + 4 + 2 * usize::from(size),
    );
    let (mut next, mut used) = (0u16, 0u16);
    while next < count {
        if words.load16(layout.available + 2, Acquire) == next {
            // It wants to be rung, and looks once more.
            match options.event_index {
                true => words.store16(event, next, Relaxed),
                false => words.store16(layout.used, 0, Relaxed),
            }
            fence(Ordering::SeqCst);
            if words.load16(layout.available + 2, Acquire) == next {
                bells.device.wait();
            }
            if !options.event_index {
                words.store16(layout.used, NO_NOTIFY, Relaxed);
            }
            continue;
        }
        let head = words.load16(layout.available + 4 + 2 * usize::from(next % size), Relaxed);
        let rest = words.load64(DESCRIPTOR * usize::from(head) + 8, Relaxed);
        next += 1;
        let at = layout.used + 4 + USED_ENTRY * usize::from(used % size);
        words.store32(at, head.into(), Relaxed);
        words.store32(at + 4, rest as u32, Relaxed);
        used += 1;
        words.store16(layout.used + 2, used, Release);
        fence(Ordering::SeqCst);
        let wanted = match options.event_index {
            true => passed(words.load16(used_event, Relaxed), used - 1, used),
            false => words.load16(layout.available, Relaxed) & NO_INTERRUPT == 0,
        };
        if wanted {
            bells.driver.notify();
        }
    }
}

/// Calls of one chain each, of which up to `ahead` are under way.
fn call(options: QueueOptions, ahead: u16, calls: u16) {
    let layout = Layout::of(&options).expect("a queue");
    let words = Words::of(&options, &layout);
    let bells = Arc::new(Bells { device: Notify::new(), driver: Notify::new() });
    let device = {
        let (words, bells) = (words.clone(), bells.clone());
        thread::spawn(move || serve(&words, layout, options, &bells, calls))
    };
    let mut queue = Queue::over(Region::new(words, 0), options, layout);
    queue.want_interrupt(false);
    let (mut sent, mut back) = (0, Vec::new());
    while back.len() < usize::from(calls) {
        if sent < calls && usize::from(sent) - back.len() < usize::from(ahead) {
            sent += 1;
            queue.offer(&[], &[Part::shared(0, usize::from(sent) * 10)]).expect("there is room");
            if queue.must_ring() {
                bells.device.notify();
            }
            continue;
        }
        match queue.take().expect("the device keeps the rules") {
            Some(Used { head, written }) => {
                queue.free(head);
                back.push(written);
            }
            None => {
                if !queue.want_interrupt(true) {
                    bells.driver.wait();
                }
                queue.want_interrupt(false);
            }
        }
    }
    device.join().expect("it has answered all");
    let right: Vec<usize> = (1..=usize::from(calls)).map(|number| number * 10).collect();
    assert_eq!(back, right);
}

/// Runs `model` in every order with at most `preemptions` forced changes of thread.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let count = std::sync::Arc::new(Count::new(0));
    let counter = count.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(move || {
        counter.fetch_add(1, Relaxed);
        model();
    });
    std::println!("{} orders", count.load(Relaxed));
}

fn options(event_index: bool) -> QueueOptions {
    QueueOptions { size: 2, parts_max: 1, indirect: false, event_index }
}

#[test]
#[cfg_attr(miri, ignore = "loom's threads are not Miri's to follow")]
fn no_call_is_missed() {
    for event_index in [false, true] {
        check(3, move || call(options(event_index), 1, 2));
        check(2, move || call(options(event_index), 2, 3));
    }
}
