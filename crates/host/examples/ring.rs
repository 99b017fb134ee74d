//! What a call over shared memory costs, beside what the machine charges for passing a cache line to and
//! fro: `cargo run --release -p atoll-host --example ring [THREADS]`.
//!
//! Client and server are threads here, with a mapping each. `share` is the null call's median by that of
//! the ping-pong in the same run.

use std::hint::spin_loop;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atoll_host::shm::{Doorbell, FutexPatience, SPIN_MAX, SharedMemory, wake};
use atoll_transport::channel::{ClientChannel, Config, Layout, Limits, RingKind, ServerChannel};
use atoll_transport::ring::{Consumer, Dequeue, Enqueue, Producer};
use atoll_transport::{Memory, Transport};

const CALLS: usize = 20_000;
/// How often ping-pong and null call are measured, in turns: the least median of each counts.
const ROUNDS: usize = 7;
/// Looks at empty rings before a server that spins goes to sleep.
const LOOKS: u32 = 20_000;

/// The `part` quantile in nanoseconds.
fn quantile(times: &mut [u32], part: f64) -> u32 {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * part) as usize]
}

/// Times of `count` runs of `call`, in nanoseconds.
fn times(count: usize, mut call: impl FnMut()) -> Vec<u32> {
    (0..count)
        .map(|_| {
            let begin = Instant::now();
            call();
            begin.elapsed().as_nanos() as u32
        })
        .collect()
}

fn print(name: &str, times: &mut [u32], line: u32) {
    let (half, most) = (quantile(times, 0.5), quantile(times, 0.99));
    println!(
        "{name:<36} p50 {half:>7} ns   p99 {most:>7} ns   share {:.2}",
        f64::from(half) / f64::from(line)
    );
}

/// One cache line each way.
fn ping_pong() -> Vec<u32> {
    #[repr(align(128))]
    struct Line(AtomicU32);
    let (ping, pong) = (Line(AtomicU32::new(0)), Line(AtomicU32::new(0)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 1..=CALLS as u32 {
                while ping.0.load(Ordering::Acquire) != turn {
                    spin_loop();
                }
                pong.0.store(turn, Ordering::Release);
            }
        });
        let mut turn = 0;
        times(CALLS, || {
            turn += 1;
            ping.0.store(turn, Ordering::Release);
            while pong.0.load(Ordering::Acquire) != turn {
                spin_loop();
            }
        })
    })
}

/// Null calls of `threads` clients, each waiting in turn for its answer: a message of the length of a FUSE
/// header each way. With a ring for one producer each has a lane.
fn calls(ring: RingKind, threads: usize, spin: Duration, polls: bool, count: usize) -> Vec<u32> {
    let shared = ring == RingKind::Scq;
    let lanes = if shared { 1 } else { threads as u32 };
    let config = Config { ring, lanes, slots: 16, ..Config::default() };
    let memory = SharedMemory::create("ring", Layout::new(&config).map_or(0, |l| l.total()));
    let memory = memory.expect("a memfd");
    let bell = Doorbell::new().expect("an eventfd");
    let descriptor = rustix::io::dup(&memory).expect("a descriptor");
    let theirs = SharedMemory::attach(descriptor, memory.len()).expect("sealed");
    let mut client = ClientChannel::create(memory, &config).expect("sizes that fit");
    let patience = || FutexPatience::with_spin(bell.clone(), || true, spin);
    let mut handles = Vec::new();
    if shared {
        let patience: [_; 16] = std::array::from_fn(|_| patience());
        handles.extend(client.lanes(0, patience).into_iter().flatten().take(threads));
    } else {
        handles.extend((0..lanes).filter_map(|lane| client.lane(lane, patience())));
    }
    let mut server = ServerChannel::attach(theirs, &Limits::default()).expect("a header that fits");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut message = vec![0; server.layout().message_max()];
            let looks = if spin.is_zero() { 0 } else { LOOKS };
            let mut idle = 0;
            while !stop.load(Ordering::Relaxed) {
                let mut found = false;
                for lane in 0..lanes {
                    while let Ok(Some(request)) = server.poll(lane, &mut message) {
                        let len = request.message_len();
                        server.complete(request, &message[..len], 0, wake);
                        found = true;
                    }
                }
                idle = if found { 0 } else { idle + 1 };
                if polls || idle <= looks {
                    spin_loop();
                } else if server.fall_asleep() {
                    let mut ready =
                        [rustix::event::PollFd::new(&bell, rustix::event::PollFlags::IN)];
                    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                    let _ = rustix::event::poll(&mut ready, Some(&timeout));
                    bell.silence();
                    server.wake_up();
                }
            }
        });
        let clients: Vec<_> = handles
            .into_iter()
            .map(|mut lane| {
                scope.spawn(move || {
                    let mut answer = [0; 40];
                    times(count / threads, || {
                        let token = lane.send(&[1; 40], &[], 0).expect("sent");
                        lane.receive(token, &mut answer, &mut []).expect("answered");
                    })
                })
            })
            .collect();
        let times =
            clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect();
        stop.store(true, Ordering::Relaxed);
        times
    })
}

/// A ring behind a lock with head and tail, as Xen's are, in the same kind of memory.
struct Locked {
    lock: AtomicBool,
    head: AtomicU64,
    tail: AtomicU64,
    entries: [AtomicU32; 64],
}

impl Locked {
    fn new() -> Self {
        let entries = std::array::from_fn(|_| AtomicU32::new(0));
        Locked { lock: AtomicBool::new(false), head: 0.into(), tail: 0.into(), entries }
    }

    fn locked<T>(&self, work: impl FnOnce(u64, u64) -> T) -> T {
        let mut spins = 0u32;
        while self.lock.swap(true, Ordering::Acquire) {
            spin_loop();
            spins += 1;
            if spins.is_multiple_of(1000) {
                std::thread::yield_now();
            }
        }
        let done = work(self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
        self.lock.store(false, Ordering::Release);
        done
    }

    fn enqueue(&self, index: u32) {
        self.locked(|_, tail| {
            self.entries[tail as usize % 64].store(index, Ordering::Relaxed);
            self.tail.store(tail + 1, Ordering::Relaxed);
        });
    }

    fn dequeue(&self) -> Option<u32> {
        self.locked(|head, tail| {
            (head < tail).then(|| {
                self.head.store(head + 1, Ordering::Relaxed);
                self.entries[head as usize % 64].load(Ordering::Relaxed)
            })
        })
    }
}

/// Million indices per second from as many producers as `enqueues` to one consumer. Each producer has
/// an equal part of the 64 indices, which it gets back in order.
fn rate<E: FnMut(u32) + Send>(enqueues: Vec<E>, mut dequeue: impl FnMut() -> Option<u32>) -> f64 {
    const EACH: u64 = 50_000;
    let threads = enqueues.len() as u64;
    let part = 64 / threads;
    let back: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let ready = Barrier::new(enqueues.len() + 1);
    std::thread::scope(|scope| {
        for (number, mut enqueue) in enqueues.into_iter().enumerate() {
            let (back, ready) = (&back[number], &ready);
            scope.spawn(move || {
                ready.wait();
                for sent in 0..EACH {
                    while sent - back.load(Ordering::Acquire) >= part {
                        std::thread::yield_now();
                    }
                    enqueue((number as u64 * part + sent % part) as u32);
                }
            });
        }
        ready.wait();
        let begin = Instant::now();
        let mut got = 0;
        let mut idle = 0u32;
        while got < EACH * threads {
            match dequeue() {
                Some(index) => {
                    back[(u64::from(index) / part) as usize].fetch_add(1, Ordering::Release);
                    got += 1;
                    idle = 0;
                }
                None => {
                    idle += 1;
                    if idle.is_multiple_of(256) {
                        std::thread::yield_now();
                    }
                }
            }
        }
        got as f64 / begin.elapsed().as_secs_f64() / 1e6
    })
}

fn ring_memory(kind: RingKind) -> SharedMemory {
    let memory =
        SharedMemory::create("ring", kind.bytes(64).next_multiple_of(4096)).expect("a memfd");
    kind.format(&memory, 0, 64);
    memory
}

fn spsc_rate(threads: usize) -> f64 {
    let kind = RingKind::Spsc;
    let rings: Vec<_> = (0..threads).map(|_| ring_memory(kind)).collect();
    let end = |memory: &SharedMemory| Consumer::new(kind, memory.clone(), 0, 64);
    let mut consumers: Vec<_> = rings.iter().map(end).collect();
    let producers = rings.into_iter().map(|memory| {
        let mut ring = Producer::new(kind, memory, 0, 64);
        move |index| ring.enqueue(index).expect("room")
    });
    rate(producers.collect(), || {
        consumers.iter_mut().find_map(|ring| ring.dequeue().expect("sound"))
    })
}

fn scq_rate(threads: usize) -> f64 {
    let kind = RingKind::Scq;
    let memory = ring_memory(kind);
    let mut consumer = Consumer::new(kind, memory.clone(), 0, 64);
    let producers = (0..threads).map(|_| {
        let mut ring = Producer::new(kind, memory.clone(), 0, 64);
        move |index| ring.enqueue(index).expect("room")
    });
    rate(producers.collect(), || consumer.dequeue().expect("sound"))
}

fn locked_rate(threads: usize) -> f64 {
    let ring = Locked::new();
    rate((0..threads).map(|_| |index| ring.enqueue(index)).collect(), || ring.dequeue())
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    let most = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(cores).clamp(1, 16);
    println!("{cores} processors");
    let mut lines = Vec::new();
    let mut nulls = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        lines.push(ping_pong());
        for (nulls, ring) in nulls.iter_mut().zip([RingKind::Spsc, RingKind::Scq]) {
            nulls.push(calls(ring, 1, Duration::from_secs(1), true, CALLS));
        }
    }
    let best = |rounds: Vec<Vec<u32>>| {
        rounds.into_iter().min_by_key(|times| quantile(&mut times.clone(), 0.5)).unwrap_or_default()
    };
    let mut line = best(lines);
    let base = quantile(&mut line, 0.5).max(1);
    print("cache-line ping-pong", &mut line, base);
    for (nulls, ring) in nulls.into_iter().zip([RingKind::Spsc, RingKind::Scq]) {
        print(&format!("null call, {ring:?}, polling"), &mut best(nulls), base);
        let name = format!("null call, {ring:?}, blocking");
        print(&name, &mut calls(ring, 1, Duration::ZERO, false, CALLS), base);
    }
    let powers = || (0..5).map(|bit| 1 << bit).take_while(|&threads| threads <= most);
    for threads in powers() {
        for ring in [RingKind::Spsc, RingKind::Scq] {
            let name = format!("{threads} threads, {ring:?}, adaptive");
            print(&name, &mut calls(ring, threads, SPIN_MAX, false, CALLS), base);
        }
    }
    for threads in powers() {
        let (spsc, scq, locked) = (spsc_rate(threads), scq_rate(threads), locked_rate(threads));
        println!("{threads} producers: Spsc {spsc:.1}, Scq {scq:.1}, locked {locked:.1} M/s");
    }
}
