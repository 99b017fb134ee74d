//! The View's use of memory under every interleaving, and every stale load, that its orderings
//! allow.
//!
//! Data are words here, as they are under Miri. Readers try once: what a retry sees is another run.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

use core::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

use super::sequence::{Word, begin, hold, publish, unchanged};

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    fn fence(order: Ordering) {
        fence(order);
    }
}

/// A sequence word and two words that change together.
#[derive(Default)]
struct Record {
    sequence: AtomicU64,
    words: [AtomicU64; 2],
}

impl Record {
    fn fill(&self, value: u64) {
        self.words.iter().for_each(|word| word.store(value, Relaxed));
    }

    fn put(&self, value: u64) {
        hold(&self.sequence);
        self.fill(value);
        publish(&self.sequence);
    }

    fn get(&self) -> Option<u64> {
        let sequence = begin(&self.sequence)?;
        let words = self.words.each_ref().map(|word| word.load(Relaxed));
        unchanged(&self.sequence, sequence).then(|| {
            assert_eq!(words[0], words[1], "torn");
            words[0]
        })
    }
}

fn with<T: Send + Sync + 'static>(
    shared: T,
    write: impl FnOnce(&T) + Send + 'static,
    read: impl FnOnce(&T),
) {
    let shared = Arc::new(shared);
    let other = Arc::clone(&shared);
    let writer = thread::spawn(move || write(&other));
    read(&shared);
    assert!(writer.join().is_ok());
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Every run of these few steps is tried; more of them than expected is an error, not a long
    // wait.
    builder.max_branches = 200;
    builder.check(model);
}

/// A record is read whole, and never goes back.
#[test]
fn a_record_is_read_whole() {
    check(|| {
        with(
            Record::default(),
            |record| {
                record.put(1);
                record.put(2);
            },
            |record| {
                record.get();
            },
        );
    });
}

/// A record that was read once is not read as it was before.
#[test]
fn a_record_never_goes_back() {
    check(|| {
        with(
            Record::default(),
            |record| record.put(1),
            |record| {
                let first = record.get();
                let second = record.get();
                if first == Some(1) {
                    assert_ne!(second, Some(0));
                }
            },
        );
    });
}

/// A change of two records that are both emptied before either is put: nobody sees the new state of
/// one and then the old state of the other.
#[test]
fn a_change_is_seen_at_once() {
    check(|| {
        with(
            <[Record; 2]>::default(),
            |[a, b]| {
                hold(&a.sequence);
                hold(&b.sequence);
                a.fill(1);
                publish(&a.sequence);
                b.fill(1);
                publish(&b.sequence);
            },
            |[a, b]| {
                // Either order of reading.
                let first = b.get();
                let second = a.get();
                if first == Some(1) {
                    assert_ne!(second, Some(0));
                }
                if second == Some(1) {
                    assert_ne!(b.get(), Some(0));
                }
            },
        );
    });
}

/// Reading a page between the two loads of the attributes' sequence word: size and content belong
/// together.
#[test]
fn a_read_has_one_size() {
    check(|| {
        with(
            <[Record; 2]>::default(),
            |[attr, page]| {
                hold(&attr.sequence);
                hold(&page.sequence);
                attr.fill(1);
                page.fill(1);
                publish(&page.sequence);
                publish(&attr.sequence);
            },
            |[attr, page]| {
                let Some(sequence) = begin(&attr.sequence) else { return };
                let size = attr.words[0].load(Relaxed);
                let Some(content) = page.get() else { return };
                if unchanged(&attr.sequence, sequence) {
                    assert_eq!(size, content);
                }
            },
        );
    });
}

/// An entry counts only under the generation that it was put under; whoever sees what came after
/// the next one began does not find it.
#[test]
fn a_generation_ends_its_entries() {
    #[derive(Default)]
    struct Memory {
        generation: AtomicU64,
        entry: Record,
        after: AtomicU64,
    }
    check(|| {
        with(
            Memory::default(),
            |memory| {
                memory.generation.store(1, Release);
                memory.after.store(1, Release);
                memory.entry.put(1);
            },
            |memory| {
                let after = memory.after.load(Acquire);
                let generation = memory.generation.load(Acquire);
                let entry = memory.entry.get();
                if after == 1 && entry == Some(generation) {
                    assert_eq!(entry, Some(1));
                }
            },
        );
    });
}
