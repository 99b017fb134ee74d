//! Clients that are processes, some of which are killed.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use atoll_server::{LockKind, LockOwner, LockRange, LockRequest, Session, Waited};
use atoll_tests::differential::{replay, seeds};
use atoll_tests::linear::checker;
use atoll_tests::linear::clients::{
    Client, PAGE, PosixClient, SeamClient, WORD, prepare_directory,
};
use atoll_tests::linear::history::{Mix, Op, Outcome};
use atoll_tests::linear::processes::{Plan, play, processes};
use atoll_tests::linear::run::{AnyClient, Overlap, inspect, within};
use atoll_tests::linear::spec::{Kernel, Rules};
use atoll_tests::rng::environment;
use atoll_tests::subject::{RW, name};
use atoll_vfs::{Context, FileSystem, Handle, Ino, OpenFlags, Timespec};

use super::LIMIT;
use super::served::{Real, Served, examine, guest, in_namespace, ring, serve_to};

/// The bytes of a file without a name that a client holds when it dies.
const HELD: u64 = 1 << 20;
/// How long the server may take to notice.
const SOON: Duration = Duration::from_secs(10);
const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
const LOCKS: &str = "locks";

/// A client that is wrong: it appends to where the end was a moment ago.
struct Broken(PosixClient);

impl Client for Broken {
    fn call(&mut self, op: &Op) -> Outcome {
        let Op::Append(file, byte) = *op else { return self.0.call(op) };
        let size = self.0.call(&Op::Stat(file))?.size.unwrap_or(0);
        std::thread::sleep(Duration::from_micros(50));
        self.0.call(&Op::Write(file, size, byte))
    }
}

/// A client's process.
#[test]
fn sharer() {
    play(|place, i| -> AnyClient {
        let (kind, path) = place.split_once(':').expect("a kind and a path");
        let path = Path::new(path);
        let directory = |page| PosixClient::new(path, page).expect("the world");
        match kind {
            "directory" => Box::new(directory(WORD)),
            "broken" => Box::new(Broken(directory(WORD))),
            "mount" => {
                hold_in_directory(path, i);
                Box::new(directory(PAGE))
            }
            "guest" => {
                // Each has a device of its own.
                let mut client = guest(&path.join(format!("d{i}")));
                hold(&mut client, i);
                Box::new(SeamClient::new(client).expect("the world").untold())
            }
            _ => {
                let mut ring = ring(path, 1);
                if kind == "cached" {
                    let mut client = ring.cached().expect("a lane");
                    hold(&mut client, i);
                    return Box::new(SeamClient::new(client).expect("the world"));
                }
                let mut client = ring.client().expect("a lane");
                if kind == "ring" {
                    hold(&mut client, i);
                }
                Box::new(SeamClient::new(client).expect("the world"))
            }
        }
    });
}

/// Opens a file that has no name any more and takes space.
fn hold(fs: &mut impl FileSystem, i: usize) {
    let held = format!("held{i}");
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name(&held), 0o644, RW).expect("a file");
    let written = fs.write(&CX, attr.ino, handle, 0, &vec![1; HELD as usize]).expect("space");
    assert_eq!(written.len as u64, HELD);
    fs.unlink(&CX, Ino::ROOT, name(&held)).expect("its name");
}

/// The same by plain calls, and locks.
fn hold_in_directory(root: &Path, i: usize) {
    let path = root.join(format!("held{i}"));
    let file = std::fs::File::create_new(&path).expect("a file");
    file.write_all_at(&vec![1; HELD as usize], 0).expect("space");
    std::fs::remove_file(path).expect("its name");
    let locks = std::fs::File::options().read(true).write(true).open(root.join(LOCKS));
    let locks = locks.expect("the file of locks");
    let lock = nix::libc::flock {
        l_type: nix::libc::F_WRLCK as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: i as i64,
        l_len: 1,
        l_pid: 0,
    };
    nix::fcntl::fcntl(&locks, nix::fcntl::FcntlArg::F_SETLK(&lock)).expect("a lock");
    // Held to the end of the process, whichever it is.
    std::mem::forget((file, locks));
}

/// Waits for the locks and the space that every client holds.
struct Waiter {
    session: Session<Real>,
    file: (Ino, Handle),
    clients: usize,
    free: u64,
    granted: Option<Receiver<usize>>,
}

impl Waiter {
    fn new(served: &Served<Real>, clients: usize) -> Waiter {
        let mut session = served.session();
        let mode = 0o100_644;
        let ino = session.mknod(&CX, Ino::ROOT, name(LOCKS), mode, 0).expect("a file").ino;
        let handle = session.open(&CX, ino, OpenFlags::READ | OpenFlags::WRITE).expect("a file");
        Waiter { session, file: (ino, handle), clients, free: 0, granted: None }
    }

    /// Called when all clients hold their files and locks.
    fn wait(&mut self, locks: bool) {
        self.free = self.session.statfs(&CX).expect("statfs").blocks_free;
        if !locks {
            return;
        }
        let (grant, granted) = channel();
        for i in 0..self.clients {
            let at = i as u64;
            let request = LockRequest {
                owner: LockOwner::Process(1),
                range: LockRange { start: at, end: at },
                kind: Some(LockKind::Exclusive),
                pid: 1,
            };
            let grant = grant.clone();
            let wake = Box::new(move |outcome: atoll_vfs::Result<()>| {
                outcome.expect("a lock");
                let _ = grant.send(i);
            });
            let waited = self.session.setlkw(self.file.0, self.file.1, &request, wake);
            assert!(matches!(waited, Ok(Waited::Queued(_))), "client {i} holds no lock");
        }
        self.granted = Some(granted);
    }

    /// Everybody is gone: all of it comes back.
    fn end(mut self) {
        if let Some(granted) = self.granted.take() {
            let mut all: Vec<usize> = (0..self.clients)
                .map(|_| granted.recv_timeout(SOON).expect("a lock was not let go of"))
                .collect();
            all.sort_unstable();
            assert_eq!(all, (0..self.clients).collect::<Vec<_>>());
        }
        // The world itself takes little.
        let held = self.clients as u64 * HELD / PAGE as u64;
        let begin = Instant::now();
        loop {
            let free = self.session.statfs(&CX).expect("statfs").blocks_free;
            if free >= self.free + held - held / 4 {
                break;
            }
            assert!(begin.elapsed() < SOON, "files without names stay: {} to {free}", self.free);
            std::thread::sleep(Duration::from_millis(5));
        }
        self.session.release(&CX, self.file.0, self.file.1).expect("a handle");
    }
}

/// How many were killed part way, and in a call, and how much happened at the same time.
#[derive(Default)]
struct Sum {
    runs: usize,
    killed: (usize, usize),
    overlap: Overlap,
}

impl Sum {
    fn judge(self, test: &str) {
        let Sum { runs, killed: (killed, in_call), overlap } = self;
        println!("{test}: {runs} runs, {killed} clients killed, {in_call} of them in a call");
        let one = environment("ATOLL_SEED").is_some();
        assert!(one || killed > 0, "nobody was killed");
        overlap.judge(test);
    }
}

/// Processes on a served volume.
fn killed(test: &str, kind: &str, runs: u64) {
    let mut sum = Sum::default();
    for seed in seeds(runs) {
        let clients = 2 + seed as usize % 3;
        let devices = if kind == "guest" { clients } else { 0 };
        let mut served = serve_to(devices, false);
        let mounts = kind == "mount";
        let path = match kind {
            "mount" => served.mount(),
            "guest" => served.folder().to_owned(),
            _ => served.socket(),
        };
        let mut waiter = Waiter::new(&served, clients);
        let mix = Mix::ALL;
        let plan = Plan {
            test: "killed::sharer",
            place: &format!("{kind}:{}", path.display()),
            seed,
            clients: (0, clients),
            mix,
            lost: &[],
        };
        // It begins before the names can go.
        let mut last = SeamClient::new(served.session()).expect("the world");
        let mut played = processes(&plan, 0, || waiter.wait(mounts), None);
        waiter.end();
        inspect(&mut last, &mix, played.end, &mut played.calls);
        drop(last);
        examine(served);
        let kernel = if mounts { Kernel::Between } else { Kernel::None };
        if let Err(error) = checker::check(&played.calls, Rules { kernel, kept: false }) {
            panic!("seed {seed}: {error}{}", replay(seed, &format!("--test sharing {test}")));
        }
        sum.runs += 1;
        sum.killed.0 += played.killed.0;
        sum.killed.1 += played.killed.1;
        sum.overlap.add(Overlap::of(&played.calls, &mix));
    }
    let in_call = sum.killed.1 > 0 || environment("ATOLL_SEED").is_some();
    assert!(in_call, "nobody was killed in a call");
    sum.judge(test);
}

#[test]
fn rings() {
    within(LIMIT, || killed("killed::rings", "ring", 12));
}

#[test]
fn cached() {
    within(LIMIT, || killed("killed::cached", "cached", 12));
}

/// Front ends with their guests.
#[test]
fn guests() {
    within(LIMIT, || killed("killed::guests", "guest", 12));
}

/// Programs that use one mount.
#[test]
fn programs() {
    within(LIMIT, || {
        if in_namespace() {
            killed("killed::programs", "mount", 12);
        }
    });
}

/// The runner itself: Linux's own tmpfs is right, and a client that appends in two steps is not.
#[test]
fn runner() {
    within(LIMIT, || {
        if !in_namespace() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let mut sum = Sum::default();
        let mut run = |kind: &str, seed: u64| {
            let root = folder.path();
            let flags = nix::mount::MsFlags::empty();
            nix::mount::mount(Some("t"), root, Some("tmpfs"), flags, None::<&str>).expect("tmpfs");
            prepare_directory(root).expect("the world");
            let plan = Plan {
                test: "killed::sharer",
                place: &format!("{kind}:{}", root.display()),
                seed,
                clients: (0, 3),
                mix: Mix::LINUX,
                lost: &[],
            };
            let mut last = PosixClient::new(root, WORD).expect("the world");
            let mut played = processes(&plan, 0, || {}, None);
            inspect(&mut last, &plan.mix, played.end, &mut played.calls);
            drop(last);
            atoll_host::fuse::mount::detach(root).expect("tmpfs");
            sum.runs += 1;
            sum.killed.0 += played.killed.0;
            sum.killed.1 += played.killed.1;
            sum.overlap.add(Overlap::of(&played.calls, &plan.mix));
            checker::check(&played.calls, Rules { kernel: Kernel::Alone, kept: false })
        };
        for seed in seeds(10) {
            if let Err(error) = run("directory", seed) {
                panic!("seed {seed}: {error}{}", replay(seed, "--test sharing killed::runner"));
            }
        }
        let found = (0..300).find_map(|seed| run("broken", seed).err());
        let error = found.expect("lost appends were never seen");
        assert!(error.contains("no order explains"), "{error}");
        sum.judge("killed::runner");
    });
}
