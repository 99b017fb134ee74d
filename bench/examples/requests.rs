//! The cost of a request without waiting: client, ring, router, session and file system in one
//! thread, for a profiler.
//! `cargo run --release -p atoll-bench --example requests [OPERATION [COUNT]]`

use std::time::Instant;

use atoll::clock::HostClock;
use atoll_block::RamDevice;
use atoll_fs::{FormatOptions, Fs, MountOptions, format};
use atoll_host::server::lanes::{Lanes, Latest};
use atoll_host::shm::{Doorbell, SharedMemory};
use atoll_posix::{Clock, OFlags, Options, Posix};
use atoll_server::revocable::Revocable;
use atoll_server::route::share::BATCH;
use atoll_server::{Access, Credentials, Identity, Session};
use atoll_transport::Lost;
use atoll_transport::channel::{ClientChannel, Config, Layout, WaitStrategy};
use atoll_vfs::client::{Client, ClientOptions};
use atoll_vfs::{Context, FileSystem, Handle, Ino, SeekTo, Timespec};

/// Serves the request instead of waiting for somebody who does, as a volume's worker would.
struct Inline {
    lanes: Lanes,
    place: Revocable<Session<Fs<RamDevice>>>,
    latest: Latest,
}

impl WaitStrategy<SharedMemory> for Inline {
    fn spin(&mut self, _round: u32) -> bool {
        let turn = self.lanes.turn(&self.place, &mut self.latest, BATCH);
        turn.expect("the client keeps to the rules").units > 0
    }

    fn park(&mut self, _: &SharedMemory, _: usize, _: u32) -> Result<(), Lost> {
        Err(Lost)
    }

    fn ring(&mut self) {}
}

fn now() -> Timespec {
    HostClock.now()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let operation = arguments.next();
    let count: u64 = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(20_000);

    let mut device = RamDevice::new(65_536);
    format(&mut device, &FormatOptions::default()).expect("formats");
    let fs = Fs::mount(device, &MountOptions::default()).expect("mounts");
    let volume = atoll_host::server::volume(fs, "v");
    let access = Access { identity: Identity::Caller, ..Access::default() };
    let mut session = volume.session(Credentials::default(), access).expect("a session");
    session.carried();

    let config = Config::default();
    let layout = Layout::new(&config).expect("sizes are allowed");
    let memory = SharedMemory::create("requests", layout.total()).expect("memory");
    let mut channel = ClientChannel::create(memory.clone(), &config).expect("a channel");
    let lanes = Lanes::attach(memory, 0, Doorbell::new().expect("a doorbell")).expect("lanes");
    let place = Revocable::default();
    assert!(place.begin(session));
    let inline = Inline { lanes, place, latest: Latest::default() };
    let lane = channel.lane(0, inline).expect("a lane");
    let mut client = Client::connect(lane, ClientOptions::default()).expect("agrees");
    let cx = Context { uid: 0, gid: 0, now: now() };
    let time = |name: &str, call: &mut dyn FnMut(u64)| {
        if operation.as_deref().is_none_or(|wanted| wanted == name) {
            let begin = Instant::now();
            (0..count).for_each(call);
            println!("{name:<12} {:>8.0} ns", begin.elapsed().as_nanos() as f64 / count as f64);
        }
    };

    time("null", &mut |_| {
        let _ = client.seek(&cx, Ino::ROOT, Handle(u64::MAX), 0, SeekTo::Data);
    });
    let mut posix = Posix::new(client, now, &Options::default());
    let flags = OFlags::RDWR | OFlags::CREAT;
    let file = posix.open(b"/file", flags, 0o644).expect("opens");
    let block = vec![7; 4096];
    for at in 0..256 {
        posix.pwrite(file, &block, at * 4096).expect("writes");
    }
    let mut buf = vec![0; 4096];
    let at = |call: u64| (call * 37 % 256 * 4096) as i64;
    time("pwrite", &mut |call| {
        posix.pwrite(file, &block, at(call)).expect("writes");
    });
    time("pread", &mut |call| {
        posix.pread(file, &mut buf, at(call)).expect("reads");
    });
    time("fstat", &mut |_| {
        posix.fstat(file).expect("stats");
    });
    time("open+close", &mut |_| {
        let file = posix.open(b"/file", OFlags::empty(), 0).expect("opens");
        posix.close(file).expect("closes");
    });
    let log = posix.open(b"/log", flags | OFlags::APPEND, 0o644).expect("opens");
    time("append", &mut |_| {
        posix.write(log, &block).expect("appends");
    });
    posix.ftruncate(log, 0).expect("truncates");
    let wanted = operation.as_deref();
    if wanted.is_none_or(|wanted| wanted == "create" || wanted == "unlink") {
        let names: Vec<String> = (0..count).map(|call| format!("/file-{call}")).collect();
        let mut create = |call: u64| {
            let name = names[call as usize].as_bytes();
            let file = posix.open(name, flags | OFlags::EXCL, 0o644).expect("creates");
            posix.close(file).expect("closes");
        };
        let begin = Instant::now();
        (0..count).for_each(&mut create);
        println!("create       {:>8.0} ns", begin.elapsed().as_nanos() as f64 / count as f64);
        let begin = Instant::now();
        for name in &names {
            posix.unlink(name.as_bytes()).expect("unlinks");
        }
        println!("unlink       {:>8.0} ns", begin.elapsed().as_nanos() as f64 / count as f64);
    }
}
