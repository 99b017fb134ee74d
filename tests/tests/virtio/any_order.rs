//! A front end that says what vhost-user knows, in no order, with numbers and descriptors that no
//! front end has, while its guest's queues run: nobody but itself is harmed.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::*;

/// The requests, each with the length of its body, and how many descriptors go with it at most.
const MESSAGES: [(u32, usize, u64); 31] = [
    (1, 0, 0),
    (2, 8, 0),
    (3, 0, 0),
    (4, 0, 0),
    (5, 40, 1),
    (5, 72, 2),
    (6, 16, 1),
    (7, 0, 1),
    (8, 8, 0),
    (9, 40, 0),
    (10, 8, 0),
    (11, 8, 0),
    (12, 8, 1),
    (13, 8, 1),
    (14, 8, 1),
    (15, 0, 0),
    (16, 8, 0),
    (17, 0, 0),
    (18, 8, 0),
    (21, 0, 1),
    (24, 56, 0),
    (25, 56, 0),
    (31, 24, 0),
    (32, 24, 1),
    (34, 0, 0),
    (36, 0, 0),
    (37, 40, 1),
    (38, 40, 0),
    (42, 8, 1),
    (43, 0, 0),
    (44, 0, 0),
];

/// The places of those that seldom end the connection.
const MILD: [usize; 22] =
    [0, 1, 2, 3, 4, 26, 26, 6, 11, 12, 13, 14, 15, 16, 17, 18, 20, 22, 24, 25, 28, 29];

/// Numbers that mean something somewhere.
const NUMBERS: [u64; 20] = [
    0,
    1,
    2,
    3,
    9,
    63,
    64,
    1023,
    1024,
    1025,
    4096,
    1 << 20,
    48 << 20,
    MEMORY,
    0x7f00_0000_0000,
    1 << 26,
    1 << 32 | 1 << 30 | 1 << 26,
    u32::MAX as u64,
    u64::MAX - 4095,
    u64::MAX,
];

/// Front ends of each kind of device.
const ROUNDS: u64 = 60;
/// Where the eventfd is among the descriptors.
const COUNTER: u64 = 10;

fn memfd(len: u64, sealed: bool) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("any", flags).unwrap();
    ftruncate(&file, len).unwrap();
    if sealed {
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK).unwrap();
    }
    file
}

/// Descriptors of all kinds, whose other ends stay open, and full.
fn descriptors() -> Vec<OwnedFd> {
    let (empty, writer) = std::io::pipe().unwrap();
    let (reader, full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while rustix::io::write(&full, &[7; 4096]).is_ok() {}
    let (near, far) = UnixStream::pair().unwrap();
    let file = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
    let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    vec![
        memfd(48 << 20, true),
        memfd(48 << 20, false),
        memfd(4096, true),
        memfd(0, false),
        empty.into(),
        writer.into(),
        reader.into(),
        full.into(),
        near.into(),
        far.into(),
        counter,
        file("/dev/null"),
        file("/"),
    ]
}

fn body(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let number = match rng.within(0..10) {
            0 => rng.number(),
            1 | 2 => rng.pick(&NUMBERS).wrapping_add(rng.within(0..3) * 4096),
            _ => rng.pick(&NUMBERS),
        };
        match rng.chance(50) {
            true => bytes.extend(number.to_le_bytes()),
            false => bytes.extend((number as u32).to_le_bytes()),
        }
    }
    bytes.truncate(len);
    bytes
}

/// The body of a message as it could make sense, for one that a front end has to say so.
fn sound(rng: &mut Rng, number: u32) -> Option<Vec<u8>> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let halves = |halves: &[u32]| halves.iter().flat_map(|half| half.to_le_bytes()).collect();
    let mut some_of =
        |bits: &[u32]| bits.iter().filter(|_| rng.chance(70)).fold(0u64, |all, bit| all | 1 << bit);
    let features = some_of(&[26, 28, 29, 30, 32]);
    let protocol = some_of(&[0, 1, 3, 9, 10, 12, 15, 19]);
    let mut part = || 0x7f00_0000_0000 + rng.within(0..64) * 4096;
    let parts = [part(), part(), part()];
    let index = rng.within(0..2) as u32;
    let region = [MEMORY + rng.within(0..3) * (48 << 20), 48 << 20];
    let region = [region[0], region[1], 0x7f00_0000_0000 + region[0] - MEMORY, 0];
    Some(match number {
        2 => words(&[features]),
        16 => words(&[protocol]),
        5 => words(&[&[1], &region[..]].concat()),
        37 | 38 => words(&[&[0], &region[..]].concat()),
        6 => words(&[1600 << rng.within(0..4), 8 * rng.within(0..4)]),
        8 => halves(&[index, 1 << rng.within(3..11)]),
        9 => {
            let head: Vec<u8> = halves(&[index, rng.within(0..2) as u32]);
            let log = MEMORY + rng.within(0..32 << 20);
            [head, words(&[parts[0], parts[1], parts[2], log])].concat()
        }
        10 | 11 => halves(&[index, rng.within(0..70) as u32]),
        18 => halves(&[index, rng.within(0..4) as u32]),
        12..=14 => words(&[u64::from(index)]),
        31 | 32 => {
            let shape = [rng.within(1..4) as u16, 64].map(u16::to_le_bytes).concat();
            [words(&[4096 * rng.within(0..4), 0]), shape, vec![0; 4]].concat()
        }
        24 => {
            let head: Vec<u8> = halves(&[rng.within(0..20) as u32, rng.within(1..20) as u32, 0]);
            let size = word32(&head, 4) as usize;
            [head, vec![0; size]].concat()
        }
        42 => halves(&[rng.within(0..2) as u32, 0]),
        _ => return None,
    })
}

/// The descriptors that go with such a message, by their places.
fn sound_files(rng: &mut Rng, number: u32) -> Option<u64> {
    match number {
        5 | 37 => Some(rng.within(0..2)),
        6 | 32 => Some(rng.within(0..3)),
        12..=14 => Some(COUNTER),
        42 => Some(rng.within(4..10)),
        _ => None,
    }
}

/// Says one thing, and asks for something that is answered in any case. Returns whether it was.
fn say(rng: &mut Rng, mut socket: &UnixStream, descriptors: &[OwnedFd]) -> bool {
    let (number, len, most) = match rng.chance(85) {
        true => rng.pick(&MILD.map(|at| MESSAGES[at])),
        false => rng.pick(&MESSAGES),
    };
    // Now and then more or less than belongs to it.
    let len = if rng.chance(2) { rng.within(0..100) as usize } else { len };
    let count = if rng.chance(3) { rng.within(0..4) } else { most };
    let mut body = body(rng, len);
    let mut files: Vec<u64> = (0..count).map(|_| rng.within(0..descriptors.len() as u64)).collect();
    if rng.chance(95) {
        body = sound(rng, number).unwrap_or(body);
        // But for one number.
        if rng.chance(20) && body.len() >= 8 {
            let at = 8 * rng.within(0..body.len() as u64 / 8) as usize;
            body[at..at + 8].copy_from_slice(&rng.pick(&NUMBERS).to_le_bytes());
        }
        if let Some(file) = sound_files(rng, number) {
            files = vec![file];
        }
    }
    let flags = 1 | if rng.chance(50) { 8 } else { 0 };
    let head = [number, flags, body.len() as u32].map(u32::to_le_bytes).concat();
    let message = [head, body].concat();
    let files: Vec<BorrowedFd<'_>> =
        files.iter().map(|at| descriptors[*at as usize].as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    let sent = sendmsg(socket, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL);
    let ask = [1, 1, 0].map(u32::to_le_bytes).concat();
    if sent.is_err() || socket.write_all(&ask).is_err() {
        return false;
    }
    loop {
        let mut head = [0; 12];
        if socket.read_exact(&mut head).is_err() {
            return false;
        }
        let [is, _, len] = [0, 4, 8].map(|at| word32(&head, at));
        if socket.read_exact(&mut vec![0; len as usize]).is_err() {
            return false;
        }
        if is == 1 && number != 1 {
            return true;
        }
        // The first of two.
        if is == 1 {
            return socket.read_exact(&mut [0; 20]).is_ok();
        }
    }
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn a_front_end_in_no_order_harms_itself_alone() {
    // A device that meets an error of its own drops its guest too: the panic is what shows it.
    static PANICS: AtomicU64 = AtomicU64::new(0);
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let of_device = info.location().is_some_and(|at| at.file().contains("crates/"));
        PANICS.fetch_add(of_device.into(), Ordering::Relaxed);
        before(info);
    }));
    let mut said = 0;
    for (window, tells) in [(0, false), (16 << 20, false), (0, true)] {
        let ids = if tells { Ids::Guest } else { Ids::FrontEnd };
        let served = Served::new(Options { window, tells, ids, ..Options::default() });
        create(&mut served.guest(), "f");
        for seed in 0..ROUNDS {
            let mut rng = Rng::new(seed);
            let setup = Setup { sealed: rng.chance(50), ..Setup::default() };
            let mut guest = served.begin("guest", setup);
            let descriptors = descriptors();
            guest.socket().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let file = open(&mut guest, "f");
            let _waits = guest.submit(1, FUSE_SETLKW, file.0, &lock(file.1, 1, F_WRLCK), 0);
            let mut asked = 0;
            for _ in 0..rng.within(1..60) {
                if !say(&mut rng, guest.socket(), &descriptors) {
                    break;
                }
                said += 1;
                match rng.within(0..60) {
                    0 => guest.offer(rng.within(0..2) as usize, rng.within(0..70) as u16),
                    1 => guest.set_available(rng.within(0..2) as usize, rng.number() as u16),
                    2..6 => guest.ring(rng.within(0..2) as usize),
                    12..24 if asked < 8 => {
                        asked += 1;
                        guest.submit(1, FUSE_GETATTR, 1, &[0; 16], 0);
                    }
                    _ => {}
                }
            }
            drop((guest, descriptors));
            let mut other = served.other();
            let there = open(&mut other, "f");
            assert_eq!(write(&mut other, there, 0, &seed.to_le_bytes()), 0, "seed {seed}");
            assert_eq!(PANICS.load(Ordering::Relaxed), 0, "seed {seed}");
        }
        let mut guest = served.guest();
        let file = open(&mut guest, "f");
        assert_eq!(read(&mut guest, file, 0, 8), (ROUNDS - 1).to_le_bytes());
        drop(guest);
        served.end();
    }
    // Not all are dropped for the first thing that they say.
    assert!(said > 6 * ROUNDS, "{said}");
}
