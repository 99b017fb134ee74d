//! The one mount of a volume: the work that its kernel does by itself, counted in the requests that
//! it sends.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use atoll_fs::{FormatOptions, Fs, MountOptions, format};
use atoll_host::fuse::mount;
use atoll_host::fuse::shared::{SharedMount, SharedOptions};
use atoll_server::route::kernel::{KernelOptions, Others};
use atoll_server::{Access, Credentials, Identity};
use atoll_tests::served;
use rustix::fs::{FlockOperation, copy_file_range, fcntl_lock, flock};

const ROUNDS: u64 = 100;
/// Longer than the kernel reads ahead, and no multiple of anything.
const LONG: usize = 300_007;

/// Of the volume's one mount.
fn beside(others: Others, unchanging: bool) -> SharedOptions {
    let kernel = KernelOptions { others, unchanging, ..KernelOptions::default() };
    SharedOptions { kernel, ..SharedOptions::default() }
}

/// How many requests the kernel has sent.
struct Requests(Arc<AtomicU64>);

impl Requests {
    /// The count when no more are coming: the kernel sends some that no call waits for.
    fn settled(&self) -> u64 {
        let mut before = self.0.load(Ordering::Relaxed);
        loop {
            sleep(Duration::from_millis(50));
            let now = self.0.load(Ordering::Relaxed);
            if now == before {
                return now;
            }
            before = now;
        }
    }

    /// How many requests `what` takes, done often enough that a few more or less do not count.
    fn each(&self, mut what: impl FnMut()) -> u64 {
        // The kernel asks once for all that it does not know yet.
        what();
        let before = self.settled();
        for _ in 0..ROUNDS {
            what();
        }
        (self.settled() - before + ROUNDS / 2) / ROUNDS
    }
}

fn content() -> Vec<u8> {
    (0..LONG).map(|i| (i % 251) as u8).collect()
}

/// Runs `test` with a mount of a volume in which there are the files `short`, `long` and `dir/0` to
/// `dir/9`, in a mount namespace that ends with it. Where mounting is not permitted it is skipped.
fn with_mount(options: SharedOptions, test: fn(&Path, &Requests)) {
    let tester = move || {
        if !served::in_namespace() {
            return;
        }
        let mut device = atoll_block::RamDevice::new(16 << 10);
        format(&mut device, &FormatOptions { hash_key: [7; 16], ..FormatOptions::default() })
            .unwrap();
        let volume =
            atoll_host::server::volume(Fs::mount(device, &MountOptions::default()).unwrap(), "v");
        let place = tempfile::tempdir().unwrap();
        let serve = |options: &SharedOptions| {
            let device = mount::open_device().unwrap();
            let how = served::mount_options(options.kernel.unchanging);
            mount::mount(&device, place.path(), &how).unwrap();
            let access = Access {
                identity: Identity::Checked,
                read_only: options.kernel.unchanging,
                ..Access::default()
            };
            let session = volume.session(Credentials::default(), access).unwrap();
            let served = SharedMount::start(session, device, options).unwrap();
            let requests = Requests(served.requests());
            (requests, thread::spawn(move || served.run()))
        };
        let end = |server: thread::JoinHandle<io::Result<()>>| {
            mount::detach(place.path()).unwrap();
            server.join().unwrap().unwrap();
        };
        let (_, maker) = serve(&SharedOptions::default());
        fs::write(place.path().join("short"), "short").unwrap();
        fs::write(place.path().join("long"), content()).unwrap();
        fs::create_dir(place.path().join("dir")).unwrap();
        for i in 0..10 {
            fs::write(place.path().join(format!("dir/{i}")), i.to_string()).unwrap();
        }
        end(maker);
        let (requests, server) = serve(&options);
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| test(place.path(), &requests)));
        mount::detach(place.path()).unwrap();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
        server.join().unwrap().unwrap();
    };
    thread::spawn(tester).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn open_and_close(path: &Path) {
    let mut text = String::new();
    let mut file = File::open(path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5);
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "short");
}

#[test]
fn one_of_several_asks_for_all() {
    with_mount(SharedOptions::default(), |root, requests| {
        // LOOKUP, OPEN, FLUSH, RELEASE, and the attributes where they were found out by no LOOKUP.
        assert!(requests.each(|| open_and_close(&root.join("short"))) >= 4);
    });
}

#[test]
fn one_that_is_alone_keeps_locks_and_closes_by_itself() {
    let alone = beside(Others::None, false);
    with_mount(alone, |root, requests| {
        let path = root.join("short");
        // OPEN and RELEASE.
        assert_eq!(requests.each(|| open_and_close(&path)), 2);

        let [a, b] = [(); 2].map(|()| File::options().read(true).write(true).open(&path).unwrap());
        let attempt = |kind| {
            let program = "import fcntl, sys; \
                           fcntl.lockf(open(sys.argv[1], 'r+'), int(sys.argv[2]) | fcntl.LOCK_NB)";
            let mut command = Command::new("python3");
            command.args(["-c", program]).arg(&path).arg(format!("{kind}"));
            command.output().unwrap().status.success()
        };
        let (shared, exclusive) = (1, 2);
        let count = requests.each(|| {
            flock(&a, FlockOperation::LockExclusive).unwrap();
            let other = flock(&b, FlockOperation::NonBlockingLockShared);
            assert_eq!(other, Err(rustix::io::Errno::WOULDBLOCK));
            flock(&a, FlockOperation::Unlock).unwrap();
            fcntl_lock(&a, FlockOperation::NonBlockingLockShared).unwrap();
            fcntl_lock(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
            fcntl_lock(&a, FlockOperation::Unlock).unwrap();
        });
        assert_eq!(count, 0);
        fcntl_lock(&a, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(attempt(shared) && !attempt(exclusive));
        flock(&a, FlockOperation::LockExclusive).unwrap();
        // A process loses its record locks with any descriptor of the file; flock(2) with its last.
        drop(a.try_clone().unwrap());
        assert!(attempt(exclusive));
        assert!(flock(&b, FlockOperation::NonBlockingLockShared).is_err());
        drop(a);
        flock(&b, FlockOperation::NonBlockingLockExclusive).unwrap();
    });
}

#[test]
fn the_only_client_keeps_all_that_it_learns() {
    let sole = beside(Others::None, false);
    with_mount(sole, |root, requests| {
        let path = root.join("short");
        let list = || assert_eq!(fs::read_dir(root.join("dir")).unwrap().count(), 10);
        // OPENDIR and RELEASEDIR, OPEN and RELEASE.
        assert_eq!(requests.each(list), 2);
        assert_eq!(requests.each(|| open_and_close(&path)), 2);
        // The kernel relies on a listing's entries longer than it would on a shared volume's.
        let before = requests.settled();
        sleep(Duration::from_millis(1500));
        assert!(!root.join("missing").exists() && !root.join("missing").exists());
        for i in 0..10 {
            assert_eq!(fs::metadata(root.join(format!("dir/{i}"))).unwrap().len(), 1);
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), 5);
        assert!(requests.settled() - before <= 1);

        // The kernel need not read what it has written.
        let file = File::options().read(true).write(true).open(root.join("long")).unwrap();
        assert_eq!(fs::read(root.join("long")).unwrap(), content());
        let mut part = [0; 4096];
        let count = requests.each(|| {
            file.write_all_at(&[7; 4096], 8192).unwrap();
            file.read_exact_at(&mut part, 8192).unwrap();
            assert_eq!(part, [7; 4096]);
        });
        assert_eq!(count, 1);

        // Set-ID bits go with a write by a user, and are seen to be gone.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777);
        let as_user = "import os, sys; os.setuid(65534); open(sys.argv[1], 'r+').write('S')";
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        let status = Command::new("python3").args(["-c", as_user]).arg(&path).status().unwrap();
        assert!(status.success());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
        assert_eq!(fs::read(&path).unwrap(), b"Short");
    });
}

/// The bytes of a copy stay in the server: no requests bring them to the kernel and back.
#[test]
fn copies_do_not_pass_the_kernel() {
    for others in [Others::None, Others::Any] {
        let test = |root: &Path, requests: &Requests| {
            let from = File::open(root.join("long")).unwrap();
            let copy = root.join("copy");
            let to = File::options().read(true).write(true).create_new(true).open(&copy).unwrap();
            // The request, and where others may change the files how long they are.
            let count = requests.each(|| {
                let (mut at, mut there) = (7, 3);
                let copied = copy_file_range(&from, Some(&mut at), &to, Some(&mut there), LONG);
                assert_eq!(copied, Ok(LONG - 7));
            });
            assert!(count <= 3, "{count} requests");
            let copied = fs::read(&copy).unwrap();
            assert_eq!(copied[..3], [0; 3]);
            assert!(copied[3..] == content()[7..]);
        };
        with_mount(beside(others, false), test);
    }
}

#[test]
fn what_does_not_change_is_opened_without_a_word() {
    let still = beside(Others::None, true);
    with_mount(still, |root, requests| {
        assert_eq!(requests.each(|| open_and_close(&root.join("short"))), 0);
        let list = || {
            let mut names: Vec<_> = fs::read_dir(root.join("dir"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            assert_eq!(names.concat(), "0123456789");
        };
        assert_eq!(requests.each(list), 0);
        // Longer than the kernel would rely on it, were the volume shared.
        let before = requests.settled();
        sleep(Duration::from_millis(1500));
        open_and_close(&root.join("short"));
        assert!(!root.join("missing").exists() && !root.join("missing").exists());
        assert!(requests.settled() - before <= 1);

        let long = File::open(root.join("long")).unwrap();
        let mut part = [0; 1000];
        long.read_exact_at(&mut part, LONG as u64 - 1000).unwrap();
        assert_eq!(part[..], content()[LONG - 1000..]);
        assert_eq!(fs::read(root.join("long")).unwrap(), content());
        let end = rustix::fs::seek(&long, rustix::fs::SeekFrom::Hole(0)).unwrap();
        assert_eq!(end, LONG as u64);
        assert_eq!((&long).seek(SeekFrom::End(0)).unwrap(), LONG as u64);
        // Nothing is to be done.
        long.sync_all().unwrap();
        File::open(root).unwrap().sync_all().unwrap();
        flock(&long, FlockOperation::NonBlockingLockExclusive).unwrap();
        // Every call that would change something.
        let refused = |result: io::Result<()>| {
            assert_eq!(
                result.unwrap_err().raw_os_error(),
                Some(rustix::io::Errno::ROFS.raw_os_error())
            );
        };
        refused(File::options().write(true).open(root.join("long")).map(drop));
        refused(File::create(root.join("long")).map(drop));
        refused(File::create(root.join("new")).map(drop));
        refused(fs::remove_file(root.join("long")));
        refused(fs::set_permissions(root.join("long"), fs::Permissions::from_mode(0o777)));
        assert_eq!(fs::metadata(root.join("long")).unwrap().size(), LONG as u64);
        // Directories are not files.
        let mut buffer = Vec::new();
        let error = File::open(root.join("dir")).unwrap().read_to_end(&mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    });
}

/// A volume that is written needs no request for an open either, and keeps what was removed.
#[test]
fn the_only_client_opens_without_a_word() {
    let mut sole = beside(Others::None, false);
    sole.kernel.implicit_opens = true;
    with_mount(sole, |root, requests| {
        let path = root.join("short");
        assert_eq!(requests.each(|| open_and_close(&path)), 0);
        let list = || assert_eq!(fs::read_dir(root.join("dir")).unwrap().count(), 10);
        assert_eq!(requests.each(list), 0);
        // WRITE, and the attributes that it changes.
        let count = requests.each(|| {
            let file = File::options().read(true).write(true).open(&path).unwrap();
            file.write_all_at(b"s", 0).unwrap();
        });
        assert!(count <= 2, "{count} requests");
        // LOOKUP, MKNOD, and the directory's attributes, which that has changed.
        let mut number = 0;
        let count = requests.each(|| {
            number += 1;
            drop(File::create_new(root.join(format!("new{number}"))).unwrap());
        });
        assert!(count <= 3, "{count} requests");
        // SETATTR: what was there does not come back.
        fs::write(root.join("long"), "now short").unwrap();
        assert_eq!(fs::read(root.join("long")).unwrap(), b"now short");
        assert_eq!(fs::metadata(root.join("long")).unwrap().len(), 9);

        // Removed, replaced, without a name from the first.
        let replaced = File::options().read(true).write(true).open(root.join("dir/0")).unwrap();
        fs::rename(root.join("dir/1"), root.join("dir/0")).unwrap();
        let removed = File::options().read(true).write(true).open(root.join("dir/2")).unwrap();
        fs::remove_file(root.join("dir/2")).unwrap();
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
        let never = rustix::fs::open(root, flags, rustix::fs::Mode::RWXU).unwrap();
        let never = File::from(never);
        for (file, before) in [(&replaced, "0"), (&removed, "2"), (&never, "")] {
            let mut text = String::new();
            { file }.read_to_string(&mut text).unwrap();
            assert_eq!(text, before);
            file.write_all_at(&[9; 5000], 10_000).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 15_000);
            file.set_len(7).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 7);
        }
        assert_eq!(fs::read_to_string(root.join("dir/0")).unwrap(), "1");
        // Appends find the end.
        let mut log = File::options().append(true).create(true).open(root.join("log")).unwrap();
        for _ in 0..3 {
            io::Write::write_all(&mut log, &[1; 3000]).unwrap();
        }
        assert_eq!(fs::read(root.join("log")).unwrap(), [1; 9000]);
    });
}
