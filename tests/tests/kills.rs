//! The crash contract on real files: a process that works on a volume is killed with SIGKILL, again
//! and again, and the volume's content is then compared with the answers that the process had got.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_block::BLOCK_SIZE;
use atoll_fs::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};
use atoll_host::device::{self, Access, Create, HostDevice, OpenOptions};
use atoll_tests::crash::judge::History;
use atoll_tests::crash::judge::without_lag;
use atoll_tests::crash::{State, process_crash};
use atoll_tests::differential::Differential;
use atoll_tests::ops::{Op, Profile, seeded_ops};
use atoll_tests::rng::{Rng, environment};
use atoll_tests::subject::Quirks;
use atoll_vfs::Timespec;
use atoll_vfs::model::{ModelFs, snapshot};
use atoll_vm::StorageDaemon;

/// Kills of each device.
const KILLS: u64 = 1000;
/// Operations that the victim would do if it lived.
const OPERATIONS: usize = 150;
/// Workloads; each is killed at many places.
const WORKLOADS: u64 = 20;
const BLOCKS: u64 = 4096;

/// A process that is being started holds, for a moment, the files that other threads have open,
/// locks on volumes among them.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// How the victim learns what to do.
const VICTIM: &str = "ATOLL_VICTIM";

fn open(path: &Path, access: Access) -> HostDevice {
    let options = OpenOptions {
        access,
        create: Create::IfMissing,
        blocks: Some(BLOCKS),
        ..OpenOptions::default()
    };
    device::open(path, &options).unwrap()
}

fn mount_options(incarnation: [u8; 16]) -> MountOptions {
    // Few cached blocks, so that there are checkpoints.
    MountOptions { incarnation, cache_bytes: 0, ..MountOptions::default() }
}

fn operations(seed: u64) -> Vec<Op> {
    seeded_ops(seed, OPERATIONS, &Profile::CRASH)
}

fn model() -> ModelFs {
    ModelFs::new(0o755, Timespec::default())
}

/// The victim: works on a volume and writes a byte to standard error after each operation that
/// has returned. Does nothing when it runs as a test.
#[test]
fn victim() {
    let Ok(task) = std::env::var(VICTIM) else { return };
    let parts: Vec<&str> = task.splitn(3, ' ').collect();
    let [access, seed, path] = parts[..] else { panic!("{task}") };
    let device = open(Path::new(path), access_of(access));
    let options = mount_options(device.incarnation());
    let fs = Fs::mount(device, &options).unwrap();
    let mut pair = Differential::with_model(fs, model(), Quirks::default());
    for op in operations(seed.parse().unwrap()) {
        pair.step(&op).unwrap();
        std::io::stderr().write_all(b".").unwrap();
    }
    // Wait for the end with the volume mounted: unmounting is no part of this.
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn access_of(name: &str) -> Access {
    match name {
        "mapped" | "back_end" => Access::Mapped,
        _ => Access::Direct { cache_bytes: 1 << 20 },
    }
}

/// The state before the first operation of a workload and after each.
fn states(ops: &[Op]) -> Vec<State> {
    let mut pair = Differential::with_model(model(), model(), Quirks::default());
    let mut states = vec![State::of(&pair.model, None)];
    for op in ops {
        pair.step(op).unwrap();
        states.push(State::of(&pair.model, states.last()));
    }
    states
}

/// Starts a victim, kills it some time after `acknowledged` operations, and returns how many it had
/// done.
fn kill_one(access: &str, seed: u64, path: &Path, acknowledged: usize, delay: Duration) -> usize {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture", "--test-threads=1"])
        .env(VICTIM, format!("{access} {seed} {}", path.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stderr.take().unwrap();
    let mut said = vec![0; acknowledged];
    let complete = pipe.read_exact(&mut said).is_ok();
    let start = Instant::now();
    while start.elapsed() < delay {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    pipe.read_to_end(&mut said).unwrap();
    assert!(
        complete && said.iter().all(|&byte| byte == b'.'),
        "the victim failed: {}",
        String::from_utf8_lossy(&said)
    );
    said.len()
}

fn kill_many(access: &str) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("volume");
    kill_many_at(access, &path, KILLS);
}

/// Kills `kills` processes that work on a volume at `path`.
fn kill_many_at(access: &str, path: &Path, kills: u64) {
    let workloads: Vec<(Vec<Op>, Vec<State>)> = (0..WORKLOADS)
        .map(|seed| {
            let ops = operations(seed);
            let states = states(&ops);
            (ops, states)
        })
        .collect();
    let only = environment("ATOLL_SEED");
    let mut in_the_middle = 0;
    for kill in only.map_or(0..kills, |kill| kill..kill + 1) {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rng = Rng::new(kill);
        let seed = kill % WORKLOADS;
        let acknowledged = rng.within(0..OPERATIONS as u64 + 1) as usize;
        let delay = Duration::from_nanos(rng.within(0..100_000));
        let _ = std::fs::remove_file(path);
        let mut device = open(path, access_of(access));
        let options = FormatOptions {
            hash_key: [7; 16],
            journal_blocks: Some(128),
            ..FormatOptions::default()
        };
        format(&mut device, &options).unwrap();
        drop(device);

        let returned = kill_one(access, seed, path, acknowledged, delay);
        in_the_middle += usize::from(returned < OPERATIONS);
        let (ops, states) = &workloads[seed as usize];
        let verdict = examine(path, access, ops, states, returned);
        if let Err(error) = verdict {
            panic!(
                "kill {kill}, workload {seed}, {returned} operations had returned: {error}\n\
                 try again with: ATOLL_SEED={kill} cargo test -p atoll-tests --test kills {access}"
            );
        }
    }
    assert!(only.is_some() || in_the_middle > kills as usize / 2, "{in_the_middle} kills at work");
}

/// Checks, mounts and compares the volume that a victim left.
fn examine(
    path: &Path,
    access: &str,
    ops: &[Op],
    states: &[State],
    returned: usize,
) -> Result<(), String> {
    let mut device = open(path, access_of(access));
    let incarnation = device.incarnation();
    let options = CheckOptions { incarnation, ..CheckOptions::default() };
    let clean = |device: &mut HostDevice| match check(device, &options) {
        Ok(report) if report.is_clean() => Ok(()),
        Ok(report) => Err(format!("check: {:#?}", report.findings)),
        Err(error) => Err(format!("check: {error}")),
    };
    clean(&mut device)?;
    let mut fs = Fs::mount(device, &mount_options(incarnation)).map_err(|e| e.to_string())?;
    let found = snapshot(&mut fs).map_err(|e| e.to_string())?;
    let has_parts = |operation: usize| ops[operation].has_parts();
    let history = History { states, has_parts: &has_parts };
    process_crash(history, returned, &without_lag(found))?;
    let mut device = fs.unmount().map_err(|e| e.to_string())?;
    clean(&mut device)
}

#[test]
fn mapped() {
    kill_many("mapped");
}

#[test]
fn direct() {
    kill_many("direct");
}

/// A back end of vhost-user-blk has all that was written, and lives on.
#[test]
fn back_end() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("image");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(BLOCKS * BLOCK_SIZE as u64).unwrap();
    let daemon = StorageDaemon::start(&image);
    kill_many_at("back_end", &daemon.place(), KILLS / 5);
}
