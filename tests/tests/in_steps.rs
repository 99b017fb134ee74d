//! Calls of ring clients that take long: the worker does a part of one in a turn, and goes on with
//! it in the next.
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use atoll_block::RamDevice;
use atoll_fs::{FormatOptions, Fs, MountOptions, format};
use atoll_host::server::lanes::{Lanes, Latest};
use atoll_host::shm::{Doorbell, SharedMemory};
use atoll_server::host::Bell;
use atoll_server::removals::Remover;
use atoll_server::revocable::Revocable;
use atoll_server::{Access, Credentials, Identity};
use atoll_tests::subject::{RW, name};
use atoll_transport::Lost;
use atoll_transport::channel::{ClientChannel, Config, Layout, WaitStrategy};
use atoll_vfs::client::{Client, ClientOptions};
use atoll_vfs::{Context, Errno, FallocateMode, FileSystem, Ino, SeekTo, Timespec};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };
const CLIENTS: u32 = 6;
/// Extents of each file, of one block each, and the bytes from one to the next.
const EXTENTS: u64 = 1000;
const STRIDE: u64 = 8192;

/// Nobody sleeps here.
struct Silent;

impl Bell for Silent {
    fn ring(&self) {}
}

/// Says that its client waits, until the test is over.
struct Says<'a> {
    waits: &'a AtomicBool,
    over: &'a AtomicBool,
}

/// Ends the waiting, also where the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl WaitStrategy<SharedMemory> for Says<'_> {
    fn spin(&mut self, _: u32) -> bool {
        self.waits.store(true, Ordering::SeqCst);
        std::thread::yield_now();
        !self.over.load(Ordering::SeqCst)
    }

    fn park(&mut self, _: &SharedMemory, _: usize, _: u32) -> Result<(), Lost> {
        Err(Lost)
    }

    fn ring(&mut self) {}
}

/// However many of its requests are done in part, a client's turn is no longer than it may be; each
/// is done whole in the end.
#[test]
fn a_turn_takes_as_many_parts_as_it_may() {
    let mut device = RamDevice::new(1 << 15);
    format(&mut device, &FormatOptions::default()).unwrap();
    let fs = Fs::mount(device, &MountOptions::default()).unwrap();
    let volume = atoll_host::server::volume(fs, "v");
    let _remover = Remover::new(&volume, Arc::new(Silent));
    let access = Access { identity: Identity::Caller, ..Access::default() };
    let mut session = volume.session(Credentials::default(), access).unwrap();
    session.carried();
    for file in 0..CLIENTS {
        let text = format!("{file}");
        let (attr, handle) = session.create(&CX, Ino::ROOT, name(&text), 0o644, RW).unwrap();
        for at in 0..EXTENTS {
            session.write(&CX, attr.ino, handle, at * STRIDE, b"data").unwrap();
        }
        session.release(&CX, attr.ino, handle).unwrap();
    }

    let config = Config { lanes: CLIENTS, ..Config::default() };
    let memory = SharedMemory::create("test", Layout::new(&config).unwrap().total()).unwrap();
    let mut channel = ClientChannel::create(memory.clone(), &config).unwrap();
    let mut lanes = Lanes::attach(memory, 0, Doorbell::new().unwrap()).unwrap();
    let place = Revocable::default();
    assert!(place.begin(session));
    let (waits, over, ready, done) = (
        [const { AtomicBool::new(false) }; CLIENTS as usize],
        AtomicBool::new(false),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for number in 0..CLIENTS {
            let (waits, over) = (&waits[number as usize], &over);
            let lane = channel.lane(number, Says { waits, over }).unwrap();
            let (ready, done) = (&ready, &done);
            scope.spawn(move || {
                let mut client = Client::connect(lane, ClientOptions::default()).unwrap();
                let ino = client.lookup(&CX, Ino::ROOT, name(&format!("{number}"))).unwrap().ino;
                let handle = client.open(&CX, ino, RW).unwrap();
                waits.store(false, Ordering::SeqCst);
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) < CLIENTS as usize {
                    assert!(!over.load(Ordering::SeqCst));
                    std::thread::yield_now();
                }
                // All is a hole to those who read, in as many pieces.
                let zeros = FallocateMode::ZERO_RANGE;
                client.fallocate(&CX, ino, handle, 0, EXTENTS * STRIDE, zeros).unwrap();
                let data = client.seek(&CX, ino, handle, 0, SeekTo::Data);
                assert_eq!(data, Err(Errno::ENXIO));
                let punches = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                client.fallocate(&CX, ino, handle, 0, EXTENTS * STRIDE, punches).unwrap();
                assert_eq!(client.getattr(&CX, ino).unwrap().blocks, 0);
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        let all = CLIENTS as usize;
        let mut latest = Latest::default();
        let mut turn = |most| lanes.turn(&place, &mut latest, most).unwrap().units;
        while ready.load(Ordering::SeqCst) < all {
            turn(1);
        }
        while !waits.iter().all(|waits| waits.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
        // While nobody knew what they cost, the worker took one from each lane.
        let mut turns = turn(CLIENTS);
        assert_eq!(turns, CLIENTS, "one of each");
        while done.load(Ordering::SeqCst) < all {
            let units = turn(1);
            assert!(units <= 1, "{units} parts in one turn");
            turns += units;
        }
        assert!(turns > 2 * CLIENTS, "{turns}: nothing was done in parts");
    });
}
