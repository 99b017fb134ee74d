//! A client's and a server's half over the same memory: what is sent arrives, in any order, with
//! any lengths; sleep and wake.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use atoll_transport::channel::layout::{LANES_MAX, MESSAGE_MIN, answer, header, sleeper};
use atoll_transport::channel::{
    AttachError, ClientChannel, Config, Lane, Layout, Limits, Request, ServerChannel, Span,
};
use atoll_transport::{Lost, Memory, Received, SendError, Shared, Transport, ring};

use support::{Pages, Random, Yielding};

type Client<'a> = Lane<Shared<'a>, Yielding>;

const SMALL: Config = Config { lanes: 1, slots: 4, area: 1024, window: 8192 };

fn pages(config: &Config) -> Pages {
    Pages::new(Layout::new(config).unwrap().total())
}

fn connect<'a>(
    pages: &'a Pages,
    config: &Config,
) -> (ClientChannel<Shared<'a>>, Client<'a>, ServerChannel<Shared<'a>>) {
    let mut client = ClientChannel::create(pages.shared(), config).unwrap();
    let lane = client.lane(0, Yielding::default()).unwrap();
    let server = ServerChannel::attach(pages.shared(), &Limits::default()).unwrap();
    (client, lane, server)
}

/// The next request of lane 0 and its message.
fn next(server: &mut ServerChannel<Shared<'_>>) -> Option<(Request, Vec<u8>)> {
    let mut message = vec![0; server.layout().message_max()];
    let request = server.poll(0, &mut message).unwrap()?;
    message.truncate(request.message_len());
    Some((request, message))
}

/// The request's data.
fn data_of(memory: &impl Memory, request: &Request) -> Vec<u8> {
    let mut data = vec![0; request.data().len];
    memory.read(request.data().offset, &mut data);
    data
}

/// Nobody sleeps.
fn nobody(_: &Shared<'_>, _: usize) {
    panic!("nobody sleeps");
}

#[test]
fn every_length_arrives() {
    let pages = pages(&SMALL);
    let (_client, mut lane, mut server) = connect(&pages, &SMALL);
    let max = server.layout().message_max();
    assert_eq!(max, MESSAGE_MIN);
    let bytes: Vec<u8> = (0..max + 1).map(|i| (i * 7 + 3) as u8).collect();
    for len in (0..=200).chain(max - 9..=max) {
        let token = lane.send(&bytes[..len], &bytes[..len], 100).unwrap();
        assert_eq!(lane.ready(&token), Ok(false));
        let (request, message) = next(&mut server).unwrap();
        assert_eq!(message, bytes[..len]);
        assert_eq!(data_of(&pages.shared(), &request), bytes[..len]);
        assert_eq!(request.room().len, 100);
        // SAFETY: copied only, one at a time.
        unsafe { server.room(&request) }.copy_from_slice(&bytes[5..105]);
        server.complete(request, &bytes[1..=len], len % 101, nobody);
        assert_eq!(lane.ready(&token), Ok(true));
        let (mut message, mut data) = (vec![0; max], vec![0; 100]);
        let received = lane.receive(token, &mut message, &mut data).unwrap();
        assert_eq!(received, Received { message: len, data: len % 101 });
        assert_eq!(message[..len], bytes[1..=len]);
        assert_eq!(data[..len % 101], bytes[5..5 + len % 101]);
    }
    assert_eq!(lane.send(&bytes, &[], 0), Err(SendError::TooLarge));
    assert_eq!(lane.send(&[], &[], 8193), Err(SendError::TooLarge));
    assert_eq!(lane.send(&[], &[], usize::MAX), Err(SendError::TooLarge));
    assert!(next(&mut server).is_none());
}

#[test]
fn out_of_order_for_many_turns() {
    let pages = pages(&SMALL);
    let (_client, mut lane, mut server) = connect(&pages, &SMALL);
    let mut random = Random(1);
    let (mut tokens, mut requests) = (Vec::new(), Vec::new());
    let (mut sent, mut received) = (0u64, 0u64);
    while received < if cfg!(miri) { 200 } else { 20_000 } {
        match random.below(4) {
            0 => match lane.send(&sent.to_le_bytes(), &[1; 700], 700) {
                Ok(token) => {
                    tokens.push((token, sent));
                    sent += 1;
                }
                Err(error) => assert!(error == SendError::Full && tokens.len() == 4),
            },
            1 => requests.extend(next(&mut server)),
            2 if !requests.is_empty() => {
                let index = random.below(requests.len() as u64) as usize;
                let (request, message) = requests.swap_remove(index);
                pages.shared().write(request.room().offset, &message);
                server.complete(request, &message, 8, nobody);
            }
            _ if !tokens.is_empty() => {
                let index = random.below(tokens.len() as u64) as usize;
                if lane.ready(&tokens[index].0).unwrap() {
                    let (token, number) = tokens.swap_remove(index);
                    let (mut message, mut data) = ([0; 8], [0; 8]);
                    lane.receive(token, &mut message, &mut data).unwrap();
                    assert_eq!(u64::from_le_bytes(message), number);
                    assert_eq!(data, message);
                    received += 1;
                }
            }
            _ => {}
        }
    }
}

#[test]
fn the_window_is_used_again() {
    let pages = pages(&SMALL);
    let (_client, mut lane, mut server) = connect(&pages, &SMALL);
    let big = lane.send(b"", &[1; 4096], 0).unwrap();
    let other = lane.send(b"", &[2; 4000], 64).unwrap();
    // Slots are free, bytes are not.
    assert_eq!(lane.send(b"", &[3; 64], 0), Err(SendError::Full));
    let (first, _) = next(&mut server).unwrap();
    server.complete(first, b"", 0, nobody);
    lane.receive(big, &mut [], &mut []).unwrap();
    let again = lane.send(b"", &[], 4096).unwrap();
    for token in [other, again] {
        let (request, _) = next(&mut server).unwrap();
        server.complete(request, b"", 0, nobody);
        lane.receive(token, &mut [], &mut []).unwrap();
    }
}

#[test]
fn only_a_sleeping_side_is_woken() {
    let pages = pages(&SMALL);
    let mut client = ClientChannel::create(pages.shared(), &SMALL).unwrap();
    let strategy = Yielding::default();
    let rung = strategy.rung.clone();
    let mut lane = client.lane(0, strategy).unwrap();
    let mut server = ServerChannel::attach(pages.shared(), &Limits::default()).unwrap();
    let first = lane.send(b"", &[], 0).unwrap();
    assert_eq!(rung.load(Ordering::Relaxed), 0);
    assert!(!server.fall_asleep(), "a request is there");
    let (request, _) = next(&mut server).unwrap();
    assert!(server.fall_asleep());
    let second = lane.send(b"", &[], 0).unwrap();
    let third = lane.send(b"", &[], 0).unwrap();
    let rung = rung.load(Ordering::Relaxed);
    assert_eq!(rung, 1, "the first to see it asleep rings, nobody else");
    server.wake_up();
    server.complete(request, b"", 0, nobody);
    lane.receive(first, &mut [], &mut []).unwrap();

    // A client that says it waits is woken, with the right word.
    let (request, _) = next(&mut server).unwrap();
    let mark = server.layout().answer(0, 1) + answer::MARK;
    let sleeping = pages.shared().u32(server.layout().sleeper(0, 1));
    sleeping.store(sleeper::ASLEEP, Ordering::SeqCst);
    let mut woken = None;
    server.complete(request, b"", 0, |_, at| woken = Some(at));
    assert_eq!(woken, Some(mark));
    sleeping.store(sleeper::AWAKE, Ordering::SeqCst);
    lane.receive(second, &mut [], &mut []).unwrap();
    let (request, _) = next(&mut server).unwrap();
    server.complete(request, b"", 0, nobody);
    lane.receive(third, &mut [], &mut []).unwrap();
}

/// A slot's tags come round after 65,536 uses.
#[test]
#[cfg_attr(miri, ignore)]
fn tags_come_round() {
    let config = Config { slots: 1, ..SMALL };
    let pages = pages(&config);
    let (_client, mut lane, mut server) = connect(&pages, &config);
    for call in 0u32..140_000 {
        let token = lane.send(&call.to_le_bytes(), &[], 0).unwrap();
        assert_eq!(lane.ready(&token), Ok(false));
        let (request, message) = next(&mut server).unwrap();
        server.complete(request, &message, 0, nobody);
        let mut answer = [0; 4];
        lane.receive(token, &mut answer, &mut []).unwrap();
        assert_eq!(u32::from_le_bytes(answer), call);
    }
}

#[test]
fn a_server_that_lies_is_lost() {
    let pages = pages(&SMALL);
    type Lie = fn(&Shared<'_>, usize);
    let lies: [Lie; 3] = [
        // A message that is too long, more data than there is room, a tag of no request.
        |memory, at| {
            memory.u32(at + answer::MARK).fetch_or(0xffff, Ordering::Relaxed);
        },
        |memory, at| memory.u32(at + answer::DATA_LEN).store(11, Ordering::Relaxed),
        |memory, at| {
            memory.u32(at + answer::MARK).fetch_add(1 << 16, Ordering::Relaxed);
        },
    ];
    for lie in lies {
        let (_client, mut lane, mut server) = connect(&pages, &SMALL);
        let token = lane.send(b"", &[], 10).unwrap();
        let (request, _) = next(&mut server).unwrap();
        server.complete(request, b"", 0, nobody);
        lie(&pages.shared(), server.layout().answer(0, 0));
        assert_eq!(lane.receive(token, &mut [], &mut [0; 64]), Err(Lost));
        assert_eq!(lane.send(b"", &[], 0), Err(SendError::Lost));
    }
}

/// Words of 64 bits are damaged by halves, which Miri's model of atomics has no room for.
#[test]
#[cfg_attr(miri, ignore)]
fn headers_that_make_no_sense() {
    let pages = pages(&SMALL);
    let memory = pages.shared();
    let attach = |len: usize, limits: &Limits| {
        ServerChannel::attach(memory.part(0, len).unwrap(), limits).map(|_| ())
    };
    let whole = memory.len();
    let mut damaged = 0;
    for at in (0..56).step_by(4) {
        for value in [0u32, 3, 63, 65, 4096, 8191, 1 << 16, 1 << 31, u32::MAX] {
            ClientChannel::create(memory, &SMALL).unwrap();
            let old = memory.u32(at).swap(value, Ordering::Relaxed);
            // From 16 to 24 and at 36 is padding.
            let fine = (16..header::LANES).contains(&at) || at == 36;
            if old != value && !fine {
                let why = match at {
                    header::VERSION => AttachError::Version(value),
                    _ => AttachError::Broken,
                };
                assert_eq!(attach(whole, &Limits::default()), Err(why), "{at} {value}");
                damaged += 1;
            }
        }
    }
    assert!(damaged > 80);
    ClientChannel::create(memory, &SMALL).unwrap();
    assert_eq!(attach(whole, &Limits::default()), Ok(()));
    for len in [0, 64, 4096, whole - 4096, whole - 64] {
        assert_eq!(attach(len, &Limits::default()), Err(AttachError::Broken));
    }
    assert_eq!(
        attach(whole, &Limits { requests: 3, ..Limits::default() }),
        Err(AttachError::Broken)
    );
    assert_eq!(
        attach(whole, &Limits { total: whole - 1, ..Limits::default() }),
        Err(AttachError::Broken)
    );
}

#[test]
fn another_version_is_named() {
    let pages = pages(&SMALL);
    ClientChannel::create(pages.shared(), &SMALL).unwrap();
    // That version may have any field anywhere.
    pages.shared().u32(header::RING).store(u32::MAX, Ordering::Relaxed);
    pages.shared().u32(header::VERSION).store(1, Ordering::Relaxed);
    let error = ServerChannel::attach(pages.shared(), &Limits::default()).map(drop).unwrap_err();
    assert_eq!(error, AttachError::Version(1));
    let text = error.to_string();
    assert!(text.contains("version 1 ") && text.ends_with("version 2"), "{text}");
}

#[test]
fn sizes() {
    let good = |config: Config| Layout::new(&config).is_some();
    assert!(good(SMALL));
    assert!(!good(Config { lanes: 0, ..SMALL }));
    assert!(!good(Config { lanes: LANES_MAX + 1, ..SMALL }));
    assert!(!good(Config { slots: 0, ..SMALL }));
    assert!(!good(Config { slots: 3, ..SMALL }));
    assert!(!good(Config { slots: 128, ..SMALL }));
    assert!(!good(Config { area: 512, ..SMALL }));
    assert!(!good(Config { area: 1032, ..SMALL }));
    assert!(!good(Config { window: 100, ..SMALL }));
    assert!(!good(Config { window: u64::MAX - 4095, ..SMALL }));
    assert!(!good(Config { lanes: 4, window: 1 << 30, ..SMALL }), "more than offsets can name");
    // Nothing overlaps, in any shape.
    for (lanes, slots) in [(1, 1), (3, 2), (2, 64)] {
        let config = Config { lanes, slots, ..SMALL };
        let layout = Layout::new(&config).unwrap();
        let mut places = vec![Span { offset: 0, len: header::LEN }];
        for lane in 0..lanes {
            places.push(Span { offset: layout.ring(lane), len: ring::bytes(slots) });
            places.push(layout.window(lane));
            for index in 0..slots {
                places.push(Span { offset: layout.answer(lane, index), len: answer::LEN });
                places.push(Span { offset: layout.sleeper(lane, index), len: sleeper::LEN });
                places.push(Span { offset: layout.area(lane, index), len: 1024 });
            }
        }
        places.sort_by_key(|place| place.offset);
        assert!(places.windows(2).all(|pair| pair[0].offset + pair[0].len <= pair[1].offset));
        let aligned = |place: &Span| place.offset.is_multiple_of(place.len.min(64));
        assert!(places.iter().all(aligned));
        let last = places.last().unwrap();
        assert_eq!(last.offset + last.len, layout.total());
    }
}

#[test]
fn lanes_are_given_once() {
    let config = Config { lanes: 2, ..SMALL };
    let pages = pages(&config);
    let mut client = ClientChannel::create(pages.shared(), &config).unwrap();
    for lane in [0, 1] {
        assert!(client.lane(lane, Yielding::default()).is_some());
        assert!(client.lane(lane, Yielding::default()).is_none());
    }
    assert!(client.lane(2, Yielding::default()).is_none());
    assert!(client.lane(64, Yielding::default()).is_none());
}

/// A thread for each lane, and a server that answers out of order.
fn threads(config: &Config, handles: Vec<Client<'_>>, server: &mut ServerChannel<Shared<'_>>) {
    let calls = if cfg!(miri) { 30 } else { 20_000 };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = handles
            .into_iter()
            .enumerate()
            .map(|(number, mut lane)| {
                scope.spawn(move || {
                    for call in 0..calls {
                        let sent = [number as u64, call].map(u64::to_le_bytes).concat();
                        let token = lane.send(&sent, &sent, 16).unwrap();
                        let (mut message, mut data) = ([0; 16], [0; 16]);
                        let received = lane.receive(token, &mut message, &mut data).unwrap();
                        assert_eq!(received, Received { message: 16, data: 16 });
                        assert_eq!(message, *sent);
                        assert_eq!(data, *sent);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut message = vec![0; server.layout().message_max()];
            let mut held = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let mut found = false;
                for lane in 0..config.lanes {
                    if let Some(request) = server.poll(lane, &mut message).unwrap() {
                        let data = data_of(server.memory(), &request);
                        held.push((request, data));
                        found = true;
                    }
                }
                if !found || held.len() > 2 {
                    while let Some((request, data)) = held.pop() {
                        server.memory().write(request.room().offset, &data);
                        server.complete(request, &data, 16, |_, _| {});
                    }
                    std::thread::yield_now();
                }
            }
        });
        let results: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok));
    });
}

#[test]
fn a_lane_for_each_thread() {
    let config = Config { lanes: 3, ..SMALL };
    let pages = pages(&config);
    let mut client = ClientChannel::create(pages.shared(), &config).unwrap();
    let strategy = Yielding { spins: 3, ..Yielding::default() };
    let handles = (0..3).map(|lane| client.lane(lane, strategy.clone()).unwrap()).collect();
    let mut server = ServerChannel::attach(pages.shared(), &Limits::default()).unwrap();
    threads(&config, handles, &mut server);
}
