//! The ring and the handshakes of sleep, in every order that the accesses of two threads can have.
//!
//! The model takes the place of the memory.

use std::collections::HashMap;
use std::sync::Arc as StdArc;

use atoll_transport::channel::layout::{answer, header, request};
use atoll_transport::channel::{
    ClientChannel, Config, Layout, Limits, ServerChannel, WaitStrategy,
};
use atoll_transport::ring::{self, Consumer, LINE, Producer};
use atoll_transport::{Lost, Memory, Transport};
use loom::sync::atomic::Ordering::{self, AcqRel, Acquire, Release, SeqCst};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

enum Word {
    Four(AtomicU32),
    Eight(AtomicU64),
    /// Written before there are threads, and never again.
    Fixed(u64),
}

/// loom treats a sequentially consistent access as weaker than it is. Such an access is a fence and
/// the access in the order `otherwise`: the mapping by which compilers make it where the processor
/// has none.
fn lead(order: Ordering, otherwise: Ordering) -> Ordering {
    if order == SeqCst {
        fence(SeqCst);
        return otherwise;
    }
    order
}

/// Memory of the words that a model uses, all zero, or fixed.
#[derive(Clone)]
struct Words {
    words: Arc<HashMap<usize, Word>>,
    len: usize,
}

impl Words {
    fn new(len: usize, words: impl IntoIterator<Item = (usize, Word)>) -> Self {
        Words { words: Arc::new(words.into_iter().collect()), len }
    }

    fn four(&self, at: usize) -> &AtomicU32 {
        match self.words.get(&at) {
            Some(Word::Four(word)) => word,
            _ => panic!("no 32-bit word at {at}"),
        }
    }

    fn eight(&self, at: usize) -> &AtomicU64 {
        match self.words.get(&at) {
            Some(Word::Eight(word)) => word,
            _ => panic!("no 64-bit word at {at}"),
        }
    }
}

impl Memory for Words {
    fn len(&self) -> usize {
        self.len
    }

    fn load16(&self, _: usize, _: Ordering) -> u16 {
        unreachable!("words of 32 and 64 bits only");
    }

    fn store16(&self, _: usize, _: u16, _: Ordering) {
        unreachable!("words of 32 and 64 bits only");
    }

    fn load32(&self, at: usize, order: Ordering) -> u32 {
        match self.words.get(&at) {
            Some(Word::Fixed(value)) => *value as u32,
            _ => self.four(at).load(lead(order, Acquire)),
        }
    }

    fn store32(&self, at: usize, value: u32, order: Ordering) {
        match self.words.get(&at) {
            Some(Word::Fixed(fixed)) => assert_eq!(*fixed, u64::from(value)),
            _ => self.four(at).store(value, lead(order, Release)),
        }
    }

    fn swap32(&self, at: usize, value: u32, order: Ordering) -> u32 {
        self.four(at).swap(value, lead(order, AcqRel))
    }

    fn replace32(&self, at: usize, old: u32, new: u32) -> Result<u32, u32> {
        self.four(at).compare_exchange(old, new, lead(SeqCst, AcqRel), Acquire)
    }

    fn load64(&self, at: usize, order: Ordering) -> u64 {
        match self.words.get(&at) {
            Some(Word::Fixed(value)) => *value,
            _ => self.eight(at).load(lead(order, Acquire)),
        }
    }

    fn store64(&self, at: usize, value: u64, order: Ordering) {
        match self.words.get(&at) {
            Some(Word::Fixed(fixed)) => assert_eq!(*fixed, value),
            _ => self.eight(at).store(value, lead(order, Release)),
        }
    }

    fn fence(&self) {
        fence(SeqCst);
    }

    fn read(&self, _: usize, _: &mut [u8]) {
        unreachable!("messages only");
    }

    fn write(&self, _: usize, _: &[u8]) {
        unreachable!("messages only");
    }
}

/// The words of a ring at `at`: of each line the first two.
fn ring_words(at: usize, count: u32) -> impl Iterator<Item = (usize, Word)> {
    let words = (0..ring::bytes(count)).step_by(8).filter(|word| word % LINE < 16);
    words.map(move |word| (at + word, Word::Eight(AtomicU64::new(0))))
}

/// A ring at 0.
fn ring(count: u32) -> Words {
    let words = Words::new(ring::bytes(count), ring_words(0, count));
    ring::format(&words, 0, count);
    words
}

/// Runs `model` in every order with at most `preemptions` forced changes of thread, and says how
/// many orders there were.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let count = StdArc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = count.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("{} orders", count.load(Ordering::Relaxed));
}

/// One producer, one consumer, a ring that comes round: indices arrive in order, each with its mark
/// and its line.
#[test]
fn indices_arrive_in_order() {
    check(3, || {
        let memory = ring(2);
        let taken = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let producer = {
            let (memory, taken) = (memory.clone(), taken.clone());
            thread::spawn(move || {
                let mut ring = Producer::new(memory.clone(), 0, 2);
                for number in 0..3 {
                    let index = number % 2;
                    // The index comes back before it goes out again.
                    while number >= 2 && taken[index].load(Acquire) == 0 {
                        thread::yield_now();
                    }
                    let line = ring.line();
                    memory.store64(line + 8, number as u64 + 10, Ordering::Relaxed);
                    ring.enqueue(index as u32, number as u32 + 20);
                }
            })
        };
        let mut ring = Consumer::new(memory.clone(), 0, 2);
        for number in 0..3 {
            let found = loop {
                match ring.dequeue().unwrap() {
                    Some(found) => break found,
                    None => thread::yield_now(),
                }
            };
            let index = found.index as usize;
            assert_eq!((index, found.mark), (number % 2, number as u32 + 20));
            assert_eq!(memory.load64(found.line + 8, Ordering::Relaxed), number as u64 + 10);
            taken[index].store(1, Release);
        }
        producer.join().unwrap();
        assert!(!ring.pending() || ring.dequeue() == Ok(None));
    });
}

/// The futex and the doorbell.
struct Kernel {
    bell: Notify,
    futex: Notify,
}

struct Client(Arc<Kernel>);

impl WaitStrategy<Words> for Client {
    fn spin(&mut self, _: u32) -> bool {
        false
    }

    fn park(&mut self, memory: &Words, at: usize, value: u32) -> Result<(), Lost> {
        // The kernel compares and queues as one step; a wake after it is kept by `Notify`. That it
        // also orders the accesses around it the argument does not need.
        if memory.load32(at, Acquire) == value {
            self.0.futex.wait();
        }
        Ok(())
    }

    fn ring(&mut self) {
        self.0.bell.notify();
    }
}

/// A whole connection of one slot, whose sides both sleep as soon as they have nothing to do: every
/// call ends. A lost wake-up is a deadlock, which loom finds.
#[test]
fn no_wake_up_is_lost() {
    let calls = 2;
    let config = Config { lanes: 1, slots: 1, area: 1024, window: 0 };
    let layout = Layout::new(&config).unwrap();
    check(3, move || {
        let fixed = [
            (header::MAGIC, header::MAGIC_VALUE),
            (header::VERSION, header::VERSION_VALUE.into()),
            (header::RING, header::RING_SPSC.into()),
            (header::LANES, 1),
            (header::SLOTS, 1),
            (header::AREA, 1024),
            (header::WINDOW, 0),
            (header::TOTAL, layout.total() as u64),
        ]
        .map(|(at, value)| (at, Word::Fixed(value)));
        let place = layout.answer(0, 0);
        let four =
            [header::STATUS, place + answer::MARK, place + answer::DATA_LEN, layout.sleeper(0, 0)]
                .map(|at| (at, Word::Four(AtomicU32::new(0))));
        // The words behind the first ones of the request's line, and the first of the answer's
        // message.
        let line = place - request::LEN;
        let eight = [line + request::ROOM, line + request::MESSAGE, place + answer::MESSAGE]
            .map(|at| (at, Word::Eight(AtomicU64::new(0))));
        let words = fixed.into_iter().chain(four).chain(eight);
        let memory = Words::new(layout.total(), words.chain(ring_words(layout.ring(0), 1)));

        let kernel = Arc::new(Kernel { bell: Notify::new(), futex: Notify::new() });
        let mut client = ClientChannel::create(memory.clone(), &config).unwrap();
        let mut lane = client.lane(0, Client(kernel.clone())).unwrap();
        let server = {
            let kernel = kernel.clone();
            let mut server = ServerChannel::attach(memory, &Limits::default()).unwrap();
            thread::spawn(move || {
                let mut message = [0; 2048];
                let mut done = 0;
                while done < calls {
                    match server.poll(0, &mut message).unwrap() {
                        Some(request) => {
                            let answer = [message[0] + 1];
                            server.complete(request, &answer, 0, |_, _| kernel.futex.notify());
                            done += 1;
                        }
                        None if server.fall_asleep() => {
                            kernel.bell.wait();
                            server.wake_up();
                        }
                        None => {}
                    }
                }
            })
        };
        for call in 0..calls as u8 {
            let token = lane.send(&[call], &[], 0).unwrap();
            let mut answer = [0; 8];
            let received = lane.receive(token, &mut answer, &mut []).unwrap();
            assert_eq!(answer[..received.message], [call + 1]);
        }
        server.join().unwrap();
    });
}
