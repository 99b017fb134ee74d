//! The rings that carry requests, alone: indices, then calls, from many threads to one.
//!
//! Clients are threads here. Where the machine has a processor for each, each stays on its own.

use std::hint::spin_loop;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use atoll_host::shm::{Doorbell, SharedMemory, SpinThenSleep, wake};
use atoll_transport::channel::{ClientChannel, Config, Lane, Layout, Limits, ServerChannel};
use atoll_transport::ring::{self, Consumer, Producer, Taken};
use atoll_transport::{Memory, Transport};

use super::Run;
use crate::machine;
use crate::record::Broken;
use crate::scq::{self, Scq};
use crate::subject::Subject;
use crate::system;

/// The indices of a ring.
const COUNT: u32 = 64;
/// How long a pass may take; an index or an answer that has not come then is lost.
const PATIENCE: Duration = Duration::from_secs(30);

impl From<ring::Broken> for Broken {
    fn from(broken: ring::Broken) -> Self {
        Broken(broken.to_string())
    }
}

/// A moment of waiting, the `round`th. Now and then it gives the processor to another thread, which
/// may be the one that is waited for.
fn pause(round: &mut u32) {
    *round = round.wrapping_add(1);
    if round.is_multiple_of(256) { thread::yield_now() } else { spin_loop() }
}

/// Keeps the calling thread, number `number` of `threads`, on its processor if there are enough.
fn spread(processors: &[usize], number: usize, threads: u64) {
    if threads <= processors.len() as u64 {
        // Elsewhere it is only noisier.
        let _ = system::pin(processors[number]);
    }
}

/// The index of an entry that was taken.
fn index(taken: Result<Option<Taken>, ring::Broken>) -> Result<Option<u32>, ring::Broken> {
    Ok(taken?.map(|taken| taken.index))
}

/// An empty ring in memory of its own.
fn ring() -> Result<SharedMemory, Broken> {
    let memory = SharedMemory::create("ring", ring::bytes(COUNT).next_multiple_of(4096))?;
    ring::format(&memory, 0, COUNT);
    Ok(memory)
}

/// The point is the number of threads: one passes indices to itself, else all but one to that one.
pub fn throughput(subject: Subject, run: &mut Run) -> Result<(), Broken> {
    let producers = run.point.saturating_sub(1).max(1);
    let processors = system::processors();
    run.steady(|run| match subject {
        // A ring for each producer, as a connection has lanes.
        Subject::Spsc => {
            let rings: Vec<_> = (0..producers).map(|_| ring()).collect::<Result<_, _>>()?;
            let end = |memory: &SharedMemory| Consumer::new(memory.clone(), 0, COUNT);
            let mut lanes: Vec<_> = rings.iter().map(end).collect();
            let mut lane = 0;
            let dequeue = move || {
                for _ in 0..lanes.len() {
                    if let Some(taken) = lanes[lane].dequeue()? {
                        return Ok(Some(taken.index));
                    }
                    lane = (lane + 1) % lanes.len();
                }
                Ok(None)
            };
            let enqueue = |memory| {
                let mut ring = Producer::new(memory, 0, COUNT);
                move |index| {
                    ring.enqueue(index, 0);
                    Ok(())
                }
            };
            pass(rings.into_iter().map(enqueue).collect(), dequeue, &processors, run)
        }
        Subject::Scq => {
            let memory = SharedMemory::create("ring", scq::bytes(COUNT).next_multiple_of(4096))?;
            let ring = Scq::new(memory, COUNT);
            let enqueue = |_| {
                let ring = ring.clone();
                move |index| ring.enqueue(index)
            };
            let enqueues = (0..producers).map(enqueue).collect();
            pass(enqueues, || ring.dequeue(), &processors, run)
        }
        // As Xen's drivers do it: producers take turns by a spin lock, the other side needs none.
        Subject::Locked => {
            let memory = ring()?;
            let mut consumer = Consumer::new(memory.clone(), 0, COUNT);
            let shared = &Mutex::new(Producer::new(memory, 0, COUNT));
            let enqueue = |_| {
                move |index| {
                    let mut round = 0;
                    loop {
                        match shared.try_lock() {
                            Ok(mut ring) => {
                                ring.enqueue(index, 0);
                                return Ok(());
                            }
                            Err(_) => pause(&mut round),
                        }
                    }
                }
            };
            let enqueues = (0..producers).map(enqueue).collect();
            pass(enqueues, move || index(consumer.dequeue()), &processors, run)
        }
        other => Err(Broken(format!("{other} is no ring"))),
    })
}

/// How many indices of a producer came out. A line of memory has one alone.
#[derive(Default)]
#[repr(align(128))]
struct Out(AtomicU64);

/// Has indices go in by each of `enqueues` and come out by `dequeue`; records how many each second.
/// A producer has a part of the indices and puts each in when it has come out: exactly the one
/// after the producer's last must come next, and nothing after the last.
fn pass<E: FnMut(u32) -> Result<(), ring::Broken> + Send>(
    mut enqueues: Vec<E>,
    mut dequeue: impl FnMut() -> Result<Option<u32>, ring::Broken>,
    processors: &[usize],
    run: &mut Run,
) -> Result<(), Broken> {
    let threads = run.point;
    let count = if run.smoke { 2000 } else { 300_000 } / enqueues.len() as u64;
    let all = count * enqueues.len() as u64;
    let part = u64::from(COUNT) / enqueues.len() as u64;
    let outs: Vec<Out> = enqueues.iter().map(|_| Out::default()).collect();
    // Takes out one, if there is one.
    let mut take = || -> Result<bool, Broken> {
        let Some(index) = dequeue()?.map(u64::from) else { return Ok(false) };
        let wrong = || Broken(format!("index {index} came out of turn"));
        let Out(out) = outs.get((index / part) as usize).ok_or_else(wrong)?;
        let number = out.load(Ordering::Relaxed);
        if number == count || index % part != number % part {
            return Err(wrong());
        }
        out.store(number + 1, Ordering::Release);
        Ok(true)
    };
    let stop = AtomicBool::new(false);
    let time = if let (1, [enqueue]) = (threads, &mut enqueues[..]) {
        spread(processors, 0, 1);
        let begin = Instant::now();
        for number in 0..count {
            enqueue((number % part) as u32)?;
            if !take()? {
                return Err(Broken("an index did not come out".into()));
            }
        }
        begin.elapsed()
    } else {
        let ready = Barrier::new(enqueues.len() + 1);
        thread::scope(|scope| {
            let producers = enqueues.into_iter().zip(&outs).enumerate().map(|(producer, at)| {
                let (mut enqueue, Out(out)) = at;
                let (ready, stop) = (&ready, &stop);
                scope.spawn(move || {
                    spread(processors, producer + 1, threads);
                    ready.wait();
                    let (mut known, mut round) = (0, 0);
                    for number in 0..count {
                        while number - known == part {
                            known = out.load(Ordering::Acquire);
                            if stop.load(Ordering::Relaxed) {
                                return Ok(());
                            }
                            pause(&mut round);
                        }
                        let index = producer as u64 * part + number % part;
                        enqueue(index as u32)
                            .inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
                    }
                    Ok(())
                })
            });
            let producers: Vec<ScopedJoinHandle<'_, Result<(), Broken>>> = producers.collect();
            spread(processors, 0, threads);
            ready.wait();
            let begin = Instant::now();
            let mut consume = || {
                let (mut taken, mut round) = (0, 0);
                while taken < all {
                    if take()? {
                        taken += 1;
                        continue;
                    }
                    pause(&mut round);
                    if round.is_multiple_of(256)
                        && (stop.load(Ordering::Relaxed) || begin.elapsed() > PATIENCE)
                    {
                        return Err(Broken(format!("{taken} of {all} indices came out")));
                    }
                }
                Ok(begin.elapsed())
            };
            let time = consume();
            stop.store(true, Ordering::Relaxed);
            for producer in producers {
                producer.join().map_err(|_| Broken("a producer panicked".into()))??;
            }
            time
        })?
    };
    if take()? {
        return Err(Broken("more indices came out than went in".into()));
    }
    run.record.add("indices", all as f64 / time.as_secs_f64());
    Ok(())
}

/// Calls that do nothing over a connection; the point is the number of threads, one of which
/// answers. A message of the length of FUSE's header goes each way. Clients wait as they always do;
/// who answers does not sleep. In turns with the way of a cache line, since a hypervisor may move
/// the processors together and apart.
pub fn calls(run: &mut Run) -> Result<(), Broken> {
    run.steady(|run| {
        if let Some(time) = machine::ping_pong() {
            run.record.add("ping-pong", time);
        }
        // A thread of its own, so that only it is bound to a processor.
        thread::scope(|scope| scope.spawn(|| round_of_calls(run)).join())
            .map_err(|_| Broken("who answers panicked".into()))?
    })
}

fn round_of_calls(run: &mut Run) -> Result<(), Broken> {
    let processors = &system::processors();
    let threads = run.point;
    let clients = threads.saturating_sub(1).clamp(1, 16) as u32;
    let begin = Instant::now();
    let bell = Doorbell::new()?;
    let strategy = || SpinThenSleep::new(bell.clone(), move || begin.elapsed() < PATIENCE);
    let config = Config { lanes: clients, window: 0, ..Config::default() };
    let sizes = || Broken("no connection has such sizes".into());
    let memory = SharedMemory::create("ring", Layout::new(&config).ok_or_else(sizes)?.total())?;
    let theirs = SharedMemory::attach(memory.as_fd().try_clone_to_owned()?, memory.len())?;
    let mut client = ClientChannel::create(memory, &config).ok_or_else(sizes)?;
    let lanes: Vec<_> = (0..clients).filter_map(|lane| client.lane(lane, strategy())).collect();
    let mut server = ServerChannel::attach(theirs, &Limits::default())
        .map_err(|error| Broken(error.to_string()))?;

    let count = if run.smoke { 100 } else { 20_000 } / u64::from(clients);
    let mut times = thread::scope(|scope| {
        let ask = |(number, mut lane): (usize, Lane<_, _>)| {
            scope.spawn(move || {
                spread(processors, number + 1, threads);
                let (mut message, mut answer) = ([number as u8; 40], [0; 40]);
                let mut times = Vec::with_capacity(count as usize);
                for call in 0..count {
                    message[..8].copy_from_slice(&call.to_le_bytes());
                    let lost = |_| Broken("the server is lost".into());
                    let begin = Instant::now();
                    let token =
                        lane.send(&message, &[], 0).map_err(|_| Broken("no room".into()))?;
                    lane.receive(token, &mut answer, &mut []).map_err(lost)?;
                    times.push(begin.elapsed().as_nanos() as f64);
                    if answer != message {
                        return Err(Broken("the answer of another call came".into()));
                    }
                }
                // The first tenth warms up.
                Ok(times.split_off(times.len() / 10))
            })
        };
        let asking: Vec<_> = lanes.into_iter().enumerate().map(ask).collect();
        spread(processors, 0, threads);
        let mut message = vec![0; server.layout().message_max()];
        let mut round = 0;
        loop {
            let mut found = false;
            for lane in 0..clients {
                while let Some(request) = server.poll(lane, &mut message)? {
                    let len = request.message_len();
                    server.complete(request, &message[..len], 0, wake);
                    found = true;
                }
            }
            if found {
                continue;
            }
            pause(&mut round);
            if round.is_multiple_of(256) && asking.iter().all(ScopedJoinHandle::is_finished) {
                break;
            }
        }
        let mut times = Vec::new();
        for client in asking {
            times.extend(client.join().map_err(|_| Broken("a client panicked".into()))??);
        }
        Ok::<_, Broken>(times)
    })?;
    times.sort_by(f64::total_cmp);
    run.record.add("p50", times[times.len() / 2]);
    run.record.add("p99", times[times.len() * 99 / 100]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use std::collections::VecDeque;

    fn run(point: u64) -> Run {
        Run { point, smoke: true, record: Record::default() }
    }

    #[test]
    fn rings_and_calls() {
        for point in [1, 2, 16] {
            for subject in [Subject::Spsc, Subject::Scq, Subject::Locked] {
                let mut run = run(point);
                throughput(subject, &mut run).unwrap();
                assert!(run.record.0["indices"][0] > 0.0);
            }
            if point > 1 {
                let mut run = run(point);
                calls(&mut run).unwrap();
                assert!(run.record.0["p50"] <= run.record.0["p99"]);
            }
        }
    }

    /// A pass through a queue that puts in the 100th index of all `times` times.
    fn faulty(point: u64, times: usize) -> Result<(), Broken> {
        let queue = &Mutex::new(VecDeque::new());
        let put = AtomicU64::new(0);
        let enqueue = |index| {
            let times = if put.fetch_add(1, Ordering::Relaxed) == 100 { times } else { 1 };
            queue.lock().unwrap().extend(std::iter::repeat_n(index, times));
            Ok(())
        };
        let enqueues = (0..point.saturating_sub(1).max(1)).map(|_| &enqueue);
        let dequeue = || Ok(queue.lock().unwrap().pop_front());
        pass(enqueues.collect(), dequeue, &[], &mut run(point))
    }

    #[test]
    fn lost_and_doubled_indices_are_found() {
        for point in [1, 2, 4] {
            faulty(point, 1).unwrap();
            assert!(faulty(point, 0).is_err());
            assert!(faulty(point, 2).unwrap_err().0.contains("out of turn"));
        }
    }
}
