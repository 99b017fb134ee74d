//! A server that is killed in the middle of its work, and the next one on the same volume: the
//! history goes on, and every answered operation is there.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use atoll_fs::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};
use atoll_host::client::{Address, Connection};
use atoll_host::device::{self, Access, Create, HostDevice, OpenOptions};
use atoll_host::server::bind::bind;
use atoll_host::server::listen::{Door, SocketServer};
use atoll_host::server::rules::Rules as Grants;
use atoll_tests::differential::{replay, seeds};
use atoll_tests::linear::checker;
use atoll_tests::linear::clients::{SeamClient, prepare};
use atoll_tests::linear::history::Mix;
use atoll_tests::linear::processes::{Plan, processes};
use atoll_tests::linear::run::{Overlap, inspect, within};
use atoll_tests::linear::spec::{Kernel, Rules};
use atoll_vfs::Errno;

use super::LIMIT;
use super::served::{SPIN, owned, ring};

/// How a server's process learns which volume it serves.
const TASK: &str = "ATOLL_SHARED_VOLUME";
/// How long a server may take to begin.
const SOON: Duration = Duration::from_secs(20);

fn open(folder: &Path, mapped: bool) -> HostDevice {
    let access = if mapped { Access::Mapped } else { Access::Direct { cache_bytes: 1 << 20 } };
    let create = Create::IfMissing;
    let options = OpenOptions { access, create, blocks: Some(4096), ..OpenOptions::default() };
    device::open(&folder.join("volume"), &options).expect("a device")
}

fn options(device: &HostDevice) -> MountOptions {
    let incarnation = device.incarnation();
    // Few cached blocks, so that there are checkpoints.
    MountOptions { incarnation, cache_bytes: 0, ..MountOptions::default() }
}

/// A server's process: serves until it is killed, or its standard input closes.
#[test]
fn server() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (mapped, folder) = task.split_once(' ').expect("an access and a folder");
    let folder = Path::new(folder);
    let device = open(folder, mapped == "true");
    let options = options(&device);
    let fs = Fs::mount(device, &options).expect("mount");
    let listener = bind(&folder.join("s"), false).expect("a socket");
    let grants = Grants::new(Vec::new(), nix::unistd::getuid().as_raw());
    let door = Door { listener, rules: grants };
    let server =
        SocketServer::new(vec![door], None, vec![atoll_host::server::volume(fs, "v")], SPIN)
            .expect("a server");
    server.run(std::io::stdin().as_fd()).expect("to serve");
}

/// A running server.
struct Running(Child);

impl Running {
    fn start(folder: &Path, mapped: bool) -> Running {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "restarted::server", "--test-threads=1"])
            .env(TASK, format!("{mapped} {}", folder.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        let mut running = Running(child);
        let place = Address { socket: folder.join("s"), volume: String::new() };
        let begin = Instant::now();
        while Connection::open(&place).is_err() {
            let ended = running.0.try_wait().expect("a child");
            assert!(ended.is_none() && begin.elapsed() < SOON, "no server: {ended:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills two servers, inspects the world through a third, and kills that too. Returns how many
/// calls never got their outcome.
fn one(seed: u64, folder: &Path) -> Result<(usize, Overlap), String> {
    let mapped = seed.is_multiple_of(2);
    let mut device = open(folder, mapped);
    format(&mut device, &FormatOptions { journal_blocks: Some(128), ..owned() }).expect("format");
    drop(device);
    let mut running = Running::start(folder, mapped);
    let socket: PathBuf = folder.join("s");
    let client = || ring(&socket, 1).client().expect("a lane");
    prepare(&mut client(), true).expect("an empty volume");
    let (mut calls, mut end) = (Vec::new(), 0);
    for clients in [(0, 3), (3, 6)] {
        let plan = Plan {
            test: "killed::sharer",
            place: &format!("plain:{}", socket.display()),
            seed,
            clients,
            mix: Mix::ALL,
            lost: &[Errno::EIO.raw()],
        };
        let played = processes(&plan, end, || {}, Some(&mut || running.0.kill().expect("a child")));
        calls.extend(played.calls);
        end = played.end;
        drop(running);
        running = Running::start(folder, mapped);
    }
    let mut last = SeamClient::new(client()).expect("the world");
    inspect(&mut last, &Mix::ALL, end, &mut calls);
    drop(running);
    checker::check(&calls, Rules { kernel: Kernel::None, kept: true })?;

    let mut device = open(folder, mapped);
    let clean = |device: &mut HostDevice| {
        let incarnation = device.incarnation();
        let report = check(device, &CheckOptions { incarnation, ..CheckOptions::default() });
        let report = report.map_err(|error| error.to_string())?;
        if report.is_clean() { Ok(()) } else { Err(format!("{:#?}", report.findings)) }
    };
    clean(&mut device)?;
    let options = options(&device);
    let fs = Fs::mount(device, &options).map_err(|error| error.to_string())?;
    clean(&mut fs.unmount().map_err(|error| error.to_string())?)?;
    let unanswered = calls.iter().filter(|call| call.returned.is_none()).count();
    Ok((unanswered, Overlap::of(&calls, &Mix::ALL)))
}

#[test]
fn servers() {
    within(LIMIT, || {
        let (mut runs, mut unanswered, mut overlap) = (0, 0, Overlap::default());
        for seed in seeds(8) {
            let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
            match one(seed, folder.path()) {
                Ok((more, overlapped)) => {
                    (runs, unanswered) = (runs + 1, unanswered + more);
                    overlap.add(overlapped);
                }
                Err(error) => {
                    let again = replay(seed, "--test sharing restarted::servers");
                    panic!("seed {seed}: {error}{again}")
                }
            }
        }
        println!("{} servers killed, {unanswered} calls not answered", 2 * runs);
        assert!(runs == 1 || unanswered >= runs, "servers were hardly killed at work");
        overlap.judge("restarted::servers");
    });
}
