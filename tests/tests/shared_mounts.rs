//! Two FUSE mounts of one volume: what a program does through one, a program sees through the other
//! with its next system call, locks included.

#[path = "shared_mounts/caches.rs"]
mod caches;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use atoll_block::RamDevice;
use atoll_fs::{FormatOptions, Fs, MountOptions, format};
use atoll_host::fuse::mount;
use atoll_host::fuse::shared::{SharedMount, SharedOptions};
use atoll_server::{Access, Credentials, Identity, Volume};
use atoll_tests::served;
use rustix::fs::{FlockOperation, fcntl_lock, flock};

/// Held exclusively by a test that starts programs or leaves a mount unserved. A new program closes
/// the files that it inherited, also on mounts of other tests, which takes a request to each; and
/// while it has a copy of the device of a mount that nobody serves, that request waits for ever.
static PROCESS: RwLock<()> = RwLock::new(());

/// Runs `test` with two mounts of a new volume, in a mount namespace that ends with it. Where
/// mounting is not permitted it is skipped.
fn with_mounts(test: fn(&Path, &Path)) {
    with_world(move |world| test(&world.a, &world.b));
}

/// As [`with_mounts`], with no other test beside it.
fn with_mounts_alone(test: fn(&Path, &Path)) {
    with_world_alone(move |world| test(&world.a, &world.b));
}

/// A volume with two mounts.
struct World {
    volume: Arc<Volume<Fs<RamDevice>>>,
    a: PathBuf,
    b: PathBuf,
    /// How many requests the kernel has sent for the first.
    requests: Arc<AtomicU64>,
    /// A duplicate of the device of the second.
    device: OwnedFd,
}

/// As [`with_mounts`], with more to work on.
fn with_world(test: impl FnOnce(&World) + Send + 'static) {
    let _beside_others = PROCESS.read().unwrap_or_else(PoisonError::into_inner);
    in_time(test);
}

/// As [`with_world`], with no other test beside it.
fn with_world_alone(test: impl FnOnce(&World) + Send + 'static) {
    let _alone = PROCESS.write().unwrap_or_else(PoisonError::into_inner);
    in_time(test);
}

/// Ends the process when `test` does not end.
fn in_time(test: impl FnOnce(&World) + Send + 'static) {
    let (done, waiting) = channel();
    let tester = thread::spawn(move || {
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| {
            in_namespace(|world| {
                let _over = abort_later(&world.a, &world.b);
                test(world);
            });
        }));
        let _ = done.send(());
        result
    });
    // A request that is never answered could not be waited for.
    if waiting.recv_timeout(Duration::from_secs(60)).is_err() {
        eprintln!("the mounts did not answer within a minute");
        std::process::exit(101);
    }
    if let Err(panic) = tester.join().unwrap() {
        std::panic::resume_unwind(panic);
    }
}

/// Aborts the connections of two mounts after a while, unless the sender that it returns is dropped
/// before: a process cannot even be killed while one of its threads waits for an answer that the
/// process itself should give.
fn abort_later(a: &Path, b: &Path) -> Sender<()> {
    let mounts = [a.to_owned(), b.to_owned()];
    let (over, waiting) = channel();
    // A thread is in the mount namespace of the thread that starts it.
    thread::spawn(move || {
        if waiting.recv_timeout(Duration::from_secs(50)) == Err(RecvTimeoutError::Timeout) {
            for mount in &mounts {
                let _ = nix::mount::umount2(mount, nix::mount::MntFlags::MNT_FORCE);
            }
        }
    });
    over
}

fn in_namespace(test: impl FnOnce(&World)) {
    if !served::in_namespace() {
        return;
    }
    let mut device = RamDevice::new(16 << 10);
    format(&mut device, &FormatOptions { hash_key: [7; 16], ..FormatOptions::default() }).unwrap();
    let volume =
        atoll_host::server::volume(Fs::mount(device, &MountOptions::default()).unwrap(), "v");
    let places = tempfile::tempdir().unwrap();
    let mut servers = Vec::new();
    let mut duplicates = Vec::new();
    let mut requests = Vec::new();
    let targets: Vec<PathBuf> = ["a", "b"].iter().map(|at| places.path().join(at)).collect();
    for target in &targets {
        fs::create_dir(target).unwrap();
        let device = mount::open_device().unwrap();
        let options = served::mount_options(false);
        if let Err(error) = mount::mount(&device, target, &options) {
            println!("skipped: {error}");
            return;
        }
        let access = Access { identity: Identity::Checked, ..Access::default() };
        let session = volume.session(Credentials::default(), access).unwrap();
        duplicates.push(device.try_clone().unwrap());
        let served = SharedMount::start(session, device, &SharedOptions::default()).unwrap();
        requests.push(served.requests());
        servers.push(thread::spawn(move || served.run()));
    }
    let world = World {
        volume,
        a: targets[0].clone(),
        b: targets[1].clone(),
        requests: requests.swap_remove(0),
        device: duplicates.swap_remove(1),
    };
    drop(duplicates);
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| test(&world)));
    let World { volume, .. } = world;
    for target in &targets {
        mount::detach(target).unwrap();
    }
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
    for server in servers {
        server.join().unwrap().unwrap();
    }
    assert!(matches!(volume.into_inner(), Ok(Some(_))), "a session outlives its mount");
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn changes_are_seen_at_once() {
    with_mounts(|a, b| {
        let (fa, fb) = (a.join("f"), b.join("f"));
        assert!(!fb.exists());
        fs::write(&fa, b"one").unwrap();
        assert_eq!(fs::read(&fb).unwrap(), b"one");
        let (first, second) = (open(&fa), open(&fb));
        for i in 0..200u32 {
            let (from, to) = if i % 2 == 0 { (&first, &second) } else { (&second, &first) };
            from.write_all_at(&i.to_le_bytes(), u64::from(i) * 4096).unwrap();
            let mut bytes = [0; 4];
            to.read_exact_at(&mut bytes, u64::from(i) * 4096).unwrap();
            assert_eq!(bytes, i.to_le_bytes());
            assert_eq!(to.metadata().unwrap().len(), u64::from(i) * 4096 + 4);
        }
        first.set_len(10).unwrap();
        assert_eq!(second.metadata().unwrap().len(), 10);
        assert_eq!((&second).seek(SeekFrom::End(0)).unwrap(), 10);
        fs::set_permissions(&fa, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(fb.metadata().unwrap().mode() & 0o7777, 0o600);
        fs::rename(&fa, a.join("g")).unwrap();
        assert!(!fb.exists() && b.join("g").exists());
        fs::create_dir(b.join("d")).unwrap();
        fs::rename(b.join("g"), b.join("d/g")).unwrap();
        assert!(a.join("d/g").exists());
        fs::remove_file(a.join("d/g")).unwrap();
        assert_eq!(fs::read_dir(b.join("d")).unwrap().count(), 0);
        // The file is open still, in both.
        assert_eq!(second.metadata().unwrap().nlink(), 0);
        let mut bytes = Vec::new();
        (&first).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 10);
    });
}

#[test]
fn appends_of_both_are_kept() {
    with_mounts(|a, b| {
        let append = |at: &Path| {
            let path = at.join("log");
            OpenOptions::new().append(true).create(true).open(path).unwrap()
        };
        let (first, second) = (append(a), append(b));
        thread::scope(|scope| {
            for (file, letter) in [(&first, b'a'), (&second, b'b')] {
                scope.spawn(move || {
                    for _ in 0..300 {
                        let mut file = file;
                        file.write_all(&[letter; 100]).unwrap();
                    }
                });
            }
        });
        let all = fs::read(b.join("log")).unwrap();
        assert_eq!(all.len(), 60_000);
        let counted = all.chunks(100).filter(|piece| piece.iter().all(|&c| c == piece[0])).count();
        assert_eq!(counted, 600, "an append was torn");
        assert_eq!(all.iter().filter(|&&c| c == b'a').count(), 30_000);
    });
}

#[test]
fn programs_run_from_it() {
    with_mounts_alone(|a, b| {
        fs::copy("/bin/true", a.join("true")).unwrap();
        assert!(Command::new(b.join("true")).status().unwrap().success());
    });
}

type Lock = fn(&File, FlockOperation) -> rustix::io::Result<()>;
const BOTH: [Lock; 2] =
    [|f, operation| fcntl_lock(f, operation), |f, operation| flock(f, operation)];

#[test]
fn locks_hold_between_them() {
    with_mounts(|a, b| {
        use FlockOperation::*;
        for lock in BOTH {
            let (first, second) = (open(&a.join("f")), open(&b.join("f")));
            lock(&first, LockExclusive).unwrap();
            let busy = lock(&second, NonBlockingLockExclusive);
            assert_eq!(busy, Err(rustix::io::Errno::AGAIN));
            lock(&first, Unlock).unwrap();
            lock(&second, NonBlockingLockShared).unwrap();
            lock(&first, NonBlockingLockShared).unwrap();
            assert!(lock(&first, NonBlockingLockExclusive).is_err());
            lock(&first, Unlock).unwrap();
            lock(&second, LockExclusive).unwrap();
            // Others are served while one waits.
            let began = Instant::now();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    lock(&first, LockExclusive).unwrap();
                    began.elapsed()
                });
                sleep(Duration::from_millis(200));
                fs::write(a.join("other"), b"x").unwrap();
                assert_eq!(fs::read(b.join("other")).unwrap(), b"x");
                lock(&second, Unlock).unwrap();
                assert!(waiter.join().unwrap() >= Duration::from_millis(200));
            });
            // Closing lets go; of flock(2)'s soon, since close(2) does not wait for the server.
            drop(first);
            let until = Instant::now() + Duration::from_secs(10);
            while let Err(error) = lock(&second, NonBlockingLockExclusive) {
                assert!(error == rustix::io::Errno::AGAIN && Instant::now() < until, "{error}");
                sleep(Duration::from_millis(1));
            }
        }
    });
}

/// Waits for the lock of the file that the environment names: run as a process of its own.
#[test]
fn waiter() {
    let Some(path) = std::env::var_os("ATOLL_TEST_WAITER") else { return };
    let kind: usize = std::env::var("ATOLL_TEST_LOCK").unwrap().parse().unwrap();
    let file = open(Path::new(&path));
    BOTH[kind](&file, FlockOperation::LockExclusive).unwrap();
}

fn wait(child: &mut Child, most: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + most;
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return Some(status),
            None if Instant::now() > until => return None,
            None => sleep(Duration::from_millis(5)),
        }
    }
}

#[test]
fn who_waits_for_a_lock_can_be_interrupted() {
    with_mounts_alone(|a, b| {
        for (kind, lock) in BOTH.iter().enumerate() {
            for signal in [nix::sys::signal::SIGTERM, nix::sys::signal::SIGKILL] {
                let file = open(&a.join("f"));
                lock(&file, FlockOperation::LockExclusive).unwrap();
                // Where the tests run a signal may be ignored.
                let mut child = Command::new("env")
                    .arg("--default-signal")
                    .arg(std::env::current_exe().unwrap())
                    .args(["--exact", "waiter"])
                    .env("ATOLL_TEST_WAITER", b.join("f"))
                    .env("ATOLL_TEST_LOCK", kind.to_string())
                    .spawn()
                    .unwrap();
                let early = wait(&mut child, Duration::from_millis(400));
                assert_eq!(early, None, "the child got a lock that is held");
                let pid = nix::unistd::Pid::from_raw(child.id() as i32);
                nix::sys::signal::kill(pid, signal).unwrap();
                let ended = wait(&mut child, Duration::from_secs(10));
                if ended.is_none() {
                    // Lets it go, so that nothing is left behind.
                    lock(&file, FlockOperation::Unlock).unwrap();
                    let _ = child.wait();
                }
                let ended = ended.expect("a signal did not end the child");
                assert_eq!(ended.signal(), Some(signal as i32));
                // Its request is gone with it.
                lock(&file, FlockOperation::Unlock).unwrap();
                let other = open(&b.join("f"));
                lock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
            }
        }
    });
}
