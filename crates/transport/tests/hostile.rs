//! A client that scribbles over all of the memory that it shares, while its server polls it and an
//! honest client. Nothing panics, nothing hangs, the honest client's answers are right, and nothing
//! is written outside.
#![cfg(not(miri))]

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atoll_transport::channel::layout::{answer, request};
use atoll_transport::channel::{
    Broken, ClientChannel, Config, Layout, Limits, Request, ServerChannel,
};
use atoll_transport::{Shared, Transport};

use support::{Pages, Random, Yielding};

const CONFIG: Config = Config { lanes: 2, slots: 4, area: 1024, window: 4096 };

/// How long the sides run, at least and at most.
const TIME: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_secs(30);
/// How many requests of the scribbler must make sense, how often its connection must be found
/// broken, and how many honest calls there must be: fewer show nothing.
const EVENTS: u64 = 50;

/// Changes one word: to anything, or to what might mean something.
fn scribble(memory: &Shared<'_>, layout: &Layout, random: &mut Random) {
    let lane = random.below(2) as u32;
    let slot = random.below(4) as u32;
    // An entry of the ring.
    let line = layout.answer(lane, 0) - (4 - slot as usize) * request::LEN;
    let words = (memory.len() / 8) as u64;
    let ring = layout.ring(lane);
    let ring_words = (layout.answer(lane, 0) - ring) as u64 / 8;
    let any = random.next();
    let store = |at: usize, value: u64| memory.u64(at).store(value, Ordering::Relaxed);
    match random.below(12) {
        0 => store(random.below(words) as usize * 8, any),
        1 => store(random.below(512) as usize * 8, any),
        2 => store(ring + random.below(ring_words) as usize * 8, any),
        // The first word of a line: of one of the first turns, with a mark that may make sense.
        3 => {
            let len = [0, 40, 1128, 1129, 0xffff][random.below(5) as usize];
            let mark = random.below(4) << 16 | len;
            store(line, random.below(4) << 48 | random.below(5) << 32 | mark);
        }
        4 => {
            let mark = [0, any as u32][random.below(2) as usize];
            memory.u32(layout.answer(lane, slot) + answer::MARK).store(mark, Ordering::Relaxed);
        }
        5 => {
            let asleep = random.below(3) as u32;
            memory.u32(layout.sleeper(lane, slot)).store(asleep, Ordering::Relaxed);
        }
        6 | 7 => {
            let total = memory.len() as u64;
            let len = [1, 4096, total, total + 1, any >> 32][random.below(5) as usize];
            let offset = [0, total - len.min(total), total, any as u32 as u64];
            let offset = offset[random.below(4) as usize];
            let word = [request::DATA, request::ROOM][random.below(2) as usize];
            store(line + word, len << 32 | offset);
        }
        // A whole request that makes sense, wherever its data may lie.
        _ => {
            store(line + request::DATA, 64 << 32 | random.below(memory.len() as u64 / 2));
            store(line + request::ROOM, 64 << 32 | (memory.len() as u64 - 64 - random.below(4096)));
            let turn = memory.u64(line).load(Ordering::Relaxed) >> 48;
            let turn = turn.wrapping_add(random.below(2)) & 0xffff;
            store(line, turn << 48 | random.below(4) << 32 | random.below(4) << 16 | 40);
        }
    }
}

/// Serves one request of `lane`: the answer is the message and the data again.
fn serve(server: &mut ServerChannel<Shared<'_>>, lane: u32) -> Result<bool, Broken> {
    let mut message = vec![0; server.layout().message_max()];
    let Some(request) = server.poll(lane, &mut message)? else { return Ok(false) };
    echo(server, request, &message);
    Ok(true)
}

fn echo(server: &mut ServerChannel<Shared<'_>>, request: Request, message: &[u8]) {
    let message = &message[..request.message_len()];
    let (from, to) = (request.data(), request.room());
    let len = from.len.min(to.len);
    let mut data = vec![0; len];
    server.memory().read(from.offset, &mut data);
    server.memory().write(to.offset, &data);
    server.complete(request, message, len, |memory, at| {
        assert!(memory.contains(at, 4));
    });
}

/// Runs the three sides for a while.
#[test]
fn scribbling_over_the_memory() {
    let seed = 1;
    let layout = Layout::new(&CONFIG).unwrap();
    let (bad, good) = (Pages::new(layout.total()), Pages::new(layout.total()));
    let stop = AtomicBool::new(false);
    let honest_calls = AtomicU64::new(0);
    let (mut made_sense, mut broken) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(seed);
            while !stop.load(Ordering::Relaxed) {
                scribble(&bad.shared(), &layout, &mut random);
            }
        });
        let mut client = ClientChannel::create(good.shared(), &CONFIG).unwrap();
        let mut server = ServerChannel::attach(good.shared(), &Limits::default()).unwrap();
        let mut lane = client.lane(1, Yielding { spins: 2, ..Yielding::default() }).unwrap();
        let honest = scope.spawn({
            let (stop, honest_calls) = (&stop, &honest_calls);
            move || {
                let mut random = Random(!seed);
                let mut result = Ok(());
                while !stop.load(Ordering::Relaxed) && result.is_ok() {
                    let sent: Vec<u8> =
                        (0..random.below(1000)).map(|_| random.next() as u8).collect();
                    let token = lane.send(&sent, &sent, sent.len()).unwrap();
                    let (mut message, mut data) = (vec![0; 1128], vec![0; 1128]);
                    let received = lane.receive(token, &mut message, &mut data);
                    let right = received.is_ok_and(|received| {
                        message[..received.message] == sent && data[..received.data] == sent
                    });
                    result = if right { Ok(()) } else { Err(sent) };
                    honest_calls.fetch_add(1, Ordering::Relaxed);
                }
                // The server sees to it that the last call is answered.
                result
            }
        });
        let begin = Instant::now();
        let mut longest = Duration::ZERO;
        let attach = || loop {
            // The header too is scribbled on: attaching fails, or works, and does not panic.
            ClientChannel::create(bad.shared(), &CONFIG).unwrap();
            if let Ok(server) = ServerChannel::attach(bad.shared(), &Limits::default()) {
                break server;
            }
        };
        let mut hostile = attach();
        let mut turns = 0;
        // Longer on a machine that has other things to do, but not for ever.
        let enough = |events: u64, calls: u64, spent: Duration| {
            spent > DEADLINE || spent > TIME && events > EVENTS && calls > EVENTS
        };
        while !enough(made_sense.min(broken), honest_calls.load(Ordering::Relaxed), begin.elapsed())
            && !honest.is_finished()
        {
            for lane in 0..hostile.layout().config().lanes {
                let polled = Instant::now();
                match serve(&mut hostile, lane) {
                    Ok(found) => made_sense += u64::from(found),
                    Err(Broken) => {
                        broken += 1;
                        hostile = attach();
                        break;
                    }
                }
                longest = longest.max(polled.elapsed());
            }
            hostile.fall_asleep();
            turns += 1;
            if turns % 1000 == 0 {
                // A connection whose ring has lost its way says nothing any more.
                hostile = attach();
            }
            for lane in 0..2 {
                serve(&mut server, lane).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        while !honest.is_finished() {
            serve(&mut server, 1).unwrap();
        }
        honest.join().unwrap().expect("the honest client got a wrong answer");
        assert!(longest < Duration::from_secs(5), "one poll took {longest:?}");
    });
    let calls = honest_calls.load(Ordering::Relaxed);
    println!("{made_sense} made sense, broken {broken} times, {calls} honest calls");
    assert!(made_sense.min(broken).min(calls) > EVENTS);
}

/// One thread, so that the same seed gives the same run: every step of the server ends, whatever is
/// there, with memory that is scribbled on between its steps.
#[test]
fn random_memory_between_the_steps() {
    let layout = Layout::new(&CONFIG).unwrap();
    let pages = Pages::new(layout.total());
    let memory = pages.shared();
    let (mut taken, mut broken) = (0, 0);
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut client = ClientChannel::create(memory, &CONFIG).unwrap();
        let mut server = ServerChannel::attach(memory, &Limits::default()).unwrap();
        let mut lane = client.lane(0, Yielding::default()).unwrap();
        let mut message = vec![0; layout.message_max()];
        let mut held: Vec<Request> = Vec::new();
        for _ in 0..100 {
            match random.below(4) {
                0 => drop(lane.send(b"honest so far", b"", 8)),
                1 => match held.pop() {
                    Some(request) => echo(&mut server, request, &message),
                    None => drop(server.fall_asleep()),
                },
                2 => scribble(&memory, &layout, &mut random),
                _ => match server.poll(0, &mut message) {
                    Ok(Some(request)) => {
                        held.push(request);
                        taken += 1;
                    }
                    Ok(None) => {}
                    Err(Broken) => broken += 1,
                },
            }
        }
    }
    println!("{taken} taken, broken {broken} times");
    assert!(taken > 500 && broken > 50);
}
