//! The caches of mounts' kernels: no program sees cached data once another client has changed it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use atoll_block::RamDevice;
use atoll_fs::Fs;
use atoll_server::{Access, Credentials, Identity, Session};
use atoll_vfs::{
    Context, FallocateMode, FileAt, FileSystem, Ino, Name, OpenFlags, RenameFlags, SetAttr,
    Timespec,
};
use nix::mount::{MntFlags, umount2};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{World, open, with_world, with_world_alone};

/// Longer than the server waits before it gives a kernel a new lease on an invalidated file.
const REST: Duration = Duration::from_millis(120);

fn cx() -> Context {
    Context { uid: 0, gid: 0, now: Timespec { sec: 2_000_000_000, nsec: 0 } }
}

/// Changes of the file `f` in the directory `d`, through one client.
trait Changer {
    fn write(&mut self, at: u64, data: &[u8]);
    fn set_len(&mut self, len: u64);
    fn punch(&mut self, at: u64, len: u64);
    fn copy(&mut self, from: u64, to: u64, len: u64);
    fn chmod(&mut self, path: &str, mode: u32);
    fn chmod_open(&mut self, mode: u32);
    fn rename(&mut self, from: &str, to: &str);
    fn create(&mut self, name: &str, data: &[u8]);
    fn unlink(&mut self, name: &str);
    fn mkdir(&mut self, name: &str);
    fn rmdir(&mut self, name: &str);
}

/// A session in this process, as a ring has one.
struct Direct {
    session: Session<Fs<RamDevice>>,
    dir: Ino,
    file: Ino,
}

impl Direct {
    fn new(world: &World) -> Direct {
        let access = Access { identity: Identity::Checked, ..Access::default() };
        let mut session = world.volume.session(Credentials::default(), access).unwrap();
        let dir = session.lookup(&cx(), Ino::ROOT, Name::new(b"d").unwrap()).unwrap().ino;
        let file = session.lookup(&cx(), dir, Name::new(b"f").unwrap()).unwrap().ino;
        Direct { session, dir, file }
    }

    fn with_file(&mut self, f: impl FnOnce(&mut Session<Fs<RamDevice>>, Ino, atoll_vfs::Handle)) {
        let handle = self.session.open(&cx(), self.file, OpenFlags::WRITE).unwrap();
        f(&mut self.session, self.file, handle);
        self.session.release(&cx(), self.file, handle).unwrap();
    }
}

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}

impl Changer for Direct {
    fn write(&mut self, at: u64, data: &[u8]) {
        self.with_file(|fs, ino, handle| {
            fs.write(&cx(), ino, handle, at, data).unwrap();
        });
    }
    fn set_len(&mut self, len: u64) {
        let set = SetAttr { size: Some(len), ..SetAttr::default() };
        self.session.setattr(&cx(), self.file, None, &set).unwrap();
    }
    fn punch(&mut self, at: u64, len: u64) {
        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        self.with_file(|fs, ino, handle| {
            fs.fallocate(&cx(), ino, handle, at, len, mode).unwrap();
        });
    }
    fn copy(&mut self, from: u64, to: u64, len: u64) {
        let fs = &mut self.session;
        let handle = fs.open(&cx(), self.file, OpenFlags::READ | OpenFlags::WRITE).unwrap();
        let [from, to] = [from, to].map(|offset| FileAt { ino: self.file, handle, offset });
        assert_eq!(fs.copy_file_range(&cx(), from, to, len), Ok(len));
        fs.release(&cx(), self.file, handle).unwrap();
    }
    fn chmod(&mut self, path: &str, mode: u32) {
        let ino = match path {
            "." => self.dir,
            path => self.session.lookup(&cx(), self.dir, name(path)).unwrap().ino,
        };
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.session.setattr(&cx(), ino, None, &set).unwrap();
    }
    fn chmod_open(&mut self, mode: u32) {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.session.setattr(&cx(), self.file, None, &set).unwrap();
    }
    fn rename(&mut self, from: &str, to: &str) {
        let (dir, flags) = (self.dir, RenameFlags::empty());
        self.session.rename(&cx(), dir, name(from), dir, name(to), flags).unwrap();
    }
    fn create(&mut self, file: &str, data: &[u8]) {
        let flags = OpenFlags::WRITE;
        let made = self.session.create(&cx(), self.dir, name(file), 0o644, flags).unwrap();
        self.session.write(&cx(), made.0.ino, made.1, 0, data).unwrap();
        self.session.release(&cx(), made.0.ino, made.1).unwrap();
    }
    fn unlink(&mut self, file: &str) {
        self.session.unlink(&cx(), self.dir, name(file)).unwrap();
    }
    fn mkdir(&mut self, dir: &str) {
        self.session.mkdir(&cx(), self.dir, name(dir), 0o755).unwrap();
    }
    fn rmdir(&mut self, dir: &str) {
        self.session.rmdir(&cx(), self.dir, name(dir)).unwrap();
    }
}

/// A mount.
struct Through<'a>(&'a Path, File);

impl Through<'_> {
    fn new(mount: &Path) -> Through<'_> {
        Through(mount, open(&mount.join("d/f")))
    }
    fn at(&self, name: &str) -> std::path::PathBuf {
        self.0.join("d").join(name)
    }
}

impl Changer for Through<'_> {
    fn write(&mut self, at: u64, data: &[u8]) {
        self.1.write_all_at(data, at).unwrap();
    }
    fn set_len(&mut self, len: u64) {
        self.1.set_len(len).unwrap();
    }
    fn punch(&mut self, at: u64, len: u64) {
        use rustix::fs::{FallocateFlags, fallocate};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.1, flags, at, len).unwrap();
    }
    fn copy(&mut self, mut from: u64, mut to: u64, len: u64) {
        let (file, from, to) = (&self.1, Some(&mut from), Some(&mut to));
        let copied = rustix::fs::copy_file_range(file, from, file, to, len as usize);
        assert_eq!(copied, Ok(len as usize));
    }
    fn chmod(&mut self, path: &str, mode: u32) {
        fs::set_permissions(self.at(path), PermissionsExt::from_mode(mode)).unwrap();
    }
    fn chmod_open(&mut self, mode: u32) {
        self.1.set_permissions(PermissionsExt::from_mode(mode)).unwrap();
    }
    fn rename(&mut self, from: &str, to: &str) {
        fs::rename(self.at(from), self.at(to)).unwrap();
    }
    fn create(&mut self, name: &str, data: &[u8]) {
        fs::write(self.at(name), data).unwrap();
    }
    fn unlink(&mut self, name: &str) {
        fs::remove_file(self.at(name)).unwrap();
    }
    fn mkdir(&mut self, name: &str) {
        fs::create_dir(self.at(name)).unwrap();
    }
    fn rmdir(&mut self, name: &str) {
        fs::remove_dir(self.at(name)).unwrap();
    }
}

fn byte(file: &File, at: u64) -> Option<u8> {
    let mut byte = [0];
    (file.read_at(&mut byte, at).unwrap() == 1).then_some(byte[0])
}

/// Changes everything once, and looks through the cached mount after each call. Of each kind twice,
/// since the second look has it from the cache.
fn round(changer: &mut dyn Changer, cached: &Path, value: u8, pause: Duration) {
    let dir = cached.join("d");
    let file = File::open(dir.join("f")).unwrap();
    let look = |what: &dyn Fn()| {
        what();
        what();
        sleep(pause);
        what();
    };
    for at in [0, 5000, 20_000] {
        changer.write(at, &[value]);
        look(&|| assert_eq!(byte(&file, at), Some(value), "written at {at}"));
    }
    let len = file.metadata().unwrap().len();
    changer.write(len, &[value; 10]);
    look(&|| {
        assert_eq!(file.metadata().unwrap().len(), len + 10, "appended");
        assert_eq!(byte(&file, len + 9), Some(value), "appended");
    });
    changer.copy(20_000, 3000, 1);
    look(&|| assert_eq!(byte(&file, 3000), Some(value), "copied"));
    let len = file.metadata().unwrap().len();
    changer.copy(len - 10, len + 5000, 10);
    look(&|| {
        assert_eq!(file.metadata().unwrap().len(), len + 5010, "copied beyond the end");
        assert_eq!(byte(&file, len + 4999), Some(0), "copied beyond the end");
        assert_eq!(byte(&file, len + 5009), Some(value), "copied beyond the end");
    });
    changer.set_len(4000);
    look(&|| {
        assert_eq!(byte(&file, 4000), None, "cut");
        assert_eq!(file.metadata().unwrap().len(), 4000, "cut");
    });
    changer.set_len(30_000);
    look(&|| assert_eq!(byte(&file, 4001), Some(0), "made longer"));
    changer.punch(0, 4096);
    look(&|| assert_eq!(byte(&file, 0), Some(0), "punched"));
    let other = 0o600 | u32::from(value) & 0o77;
    changer.chmod_open(other);
    look(&|| assert_eq!(file.metadata().unwrap().mode() & 0o777, other, "mode of a file"));
    changer.chmod(".", 0o700 | u32::from(value) & 0o77);
    look(&|| {
        let mode = fs::metadata(&dir).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o700 | u32::from(value) & 0o77, "mode of a directory");
    });
    changer.create("g", &[value, 1]);
    look(&|| assert_eq!(fs::read(dir.join("g")).unwrap(), [value, 1], "created"));
    changer.create("h", &[value, 2]);
    let replaced = File::open(dir.join("g")).unwrap();
    changer.rename("h", "g");
    look(&|| {
        assert_eq!(fs::read(dir.join("g")).unwrap(), [value, 2], "replaced");
        assert!(!dir.join("h").exists(), "renamed");
        assert_eq!(replaced.metadata().unwrap().nlink(), 0, "replaced");
        assert_eq!(byte(&replaced, 1), Some(1), "replaced, but open");
    });
    changer.unlink("g");
    look(&|| {
        let error = fs::metadata(dir.join("g")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "unlinked");
    });
    let links = fs::metadata(&dir).unwrap().nlink();
    changer.mkdir("s");
    look(&|| {
        assert!(dir.join("s").is_dir(), "made");
        assert_eq!(fs::metadata(&dir).unwrap().nlink(), links + 1, "made");
    });
    changer.rmdir("s");
    look(&|| {
        assert!(!dir.join("s").exists(), "removed");
        assert_eq!(fs::metadata(&dir).unwrap().nlink(), links, "removed");
    });
}

/// Once a call has returned, by any client, the mount that has cached the old state shows the
/// change.
#[test]
fn changes_are_seen_through_caches() {
    with_world(|world| {
        fs::create_dir(world.a.join("d")).unwrap();
        fs::write(world.a.join("d/f"), vec![1; 30_000]).unwrap();
        let mut clients: [Box<dyn Changer>; 3] = [
            Box::new(Direct::new(world)),
            Box::new(Through::new(&world.b)),
            Box::new(Through::new(&world.a)),
        ];
        for i in 0..60u8 {
            // Fast, so that caches rest, and slowly, so that they are full.
            let pause = if i < 3 { REST } else { Duration::ZERO };
            let client = &mut clients[usize::from(i) % 3];
            round(&mut **client, &world.a, i + 2, pause);
        }
    });
}

/// The kernel sends no request for cached data.
#[test]
fn the_kernel_does_cache() {
    with_world(|world| {
        fs::write(world.a.join("f"), vec![7; 1 << 20]).unwrap();
        sleep(REST);
        let file = File::open(world.a.join("f")).unwrap();
        let mut bytes = vec![0; 1 << 20];
        file.read_exact_at(&mut bytes, 0).unwrap();
        // The kernel relies on attributes for a second, so that it may have to be tried again.
        let quiet = (0..5).any(|_| {
            file.metadata().unwrap();
            let before = world.requests.load(Ordering::Relaxed);
            for _ in 0..10 {
                file.read_exact_at(&mut bytes, 0).unwrap();
                assert_eq!(file.metadata().unwrap().len(), 1 << 20);
            }
            world.requests.load(Ordering::Relaxed) == before
        });
        assert!(quiet, "what was read was asked for again");
        assert!(bytes.iter().all(|&byte| byte == 7));
        // Another open keeps the pages.
        drop(file);
        sleep(Duration::from_millis(20));
        let file = File::open(world.a.join("f")).unwrap();
        file.metadata().unwrap();
        let before = world.requests.load(Ordering::Relaxed);
        file.read_exact_at(&mut bytes, 0).unwrap();
        let asked = world.requests.load(Ordering::Relaxed) - before;
        // Requests that end the first open may come late.
        assert!(asked <= 2, "{asked} requests for a cached file");
    });
}

/// Pages of a shared mapping of one mount show what another client writes.
#[test]
fn mappings_show_what_others_write() {
    with_world(|world| {
        fs::write(world.a.join("f"), vec![0; 8192]).unwrap();
        let (mapped, other) = (open(&world.a.join("f")), open(&world.b.join("f")));
        let map = Map::new(&mapped, 8192);
        for i in 1..100u8 {
            other.write_all_at(&[i], 4096).unwrap();
            assert_eq!(map.get(4096), i);
        }
    });
}

/// A shared mapping of a file.
struct Map(*mut u8, usize);

// SAFETY: the memory is accessed by volatile loads and stores alone.
unsafe impl Sync for Map {}

impl Map {
    fn new(file: &File, len: usize) -> Map {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where there is room.
        let at = unsafe { mmap(std::ptr::null_mut(), len, both, MapFlags::SHARED, file, 0) };
        Map(at.unwrap().cast(), len)
    }
    fn get(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: within the mapping; the tests that call it keep the file as long.
        unsafe { self.0.add(at).read_volatile() }
    }
    fn set(&self, at: usize, value: u8) {
        assert!(at < self.1);
        // SAFETY: as above.
        unsafe { self.0.add(at).write_volatile(value) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody has a pointer into it.
        let _ = unsafe { munmap(self.0.cast(), self.1) };
    }
}

/// Calls of two mounts in one directory and on one file, each of which the other mount has cached,
/// wait for each other, but all get on. A machine may be slow at any one of them; if they waited
/// for the backstop now and then, a minute would not be enough.
#[test]
fn two_mounts_change_the_same() {
    with_world(|world| {
        for mount in [&world.a, &world.b] {
            let _ = fs::create_dir(mount.join("d"));
        }
        fs::write(world.a.join("d/f"), vec![1; 16 << 10]).unwrap();
        const CALLS: u32 = 1000;
        let until = Instant::now() + Duration::from_secs(60);
        let work = |mount: &Path, me: u8| {
            let dir = mount.join("d");
            let file = open(&dir.join("f"));
            let reader = File::open(dir.join("f")).unwrap();
            let mut longest = Duration::ZERO;
            let mut n = 0u32;
            while n < CALLS {
                let began = Instant::now();
                if began > until {
                    break;
                }
                n += 1;
                let own = dir.join(format!("{me}-{}", n % 4));
                match n % 8 {
                    0 => file.write_all_at(&[me], u64::from(n) % 16384).unwrap(),
                    1 => drop(fs::write(&own, b"x")),
                    2 => drop(fs::rename(&own, dir.join("both"))),
                    3 => drop(fs::remove_file(dir.join("both"))),
                    4 => file.set_len(8192 + u64::from(n % 2) * 8192).unwrap(),
                    5 => drop(byte(&reader, u64::from(n) % 16384)),
                    6 => drop(fs::read_dir(&dir).unwrap().count()),
                    _ => drop(fs::metadata(dir.join("both"))),
                }
                longest = longest.max(began.elapsed());
            }
            (longest, n)
        };
        thread::scope(|scope| {
            let workers = [(&world.a, 1), (&world.b, 2), (&world.a, 3), (&world.b, 4)]
                .map(|(mount, me)| scope.spawn(move || work(mount, me)));
            for worker in workers {
                let (longest, n) = worker.join().unwrap();
                assert_eq!(n, CALLS, "calls in a minute, of which the longest took {longest:?}");
            }
        });
    });
}

/// The kernel holds back its writing of stores while it cuts a file, and a notification waits for
/// the writing: the two mounts wait for each other, for no longer than the backstop.
#[test]
fn mappings_and_truncation_of_both() {
    with_world(|world| {
        fs::write(world.a.join("f"), vec![1; 16 << 10]).unwrap();
        let until = Instant::now() + Duration::from_secs(3);
        let longest = thread::scope(|scope| {
            let workers = [&world.a, &world.b].map(|mount| {
                scope.spawn(move || {
                    let file = open(&mount.join("f"));
                    let map = Map::new(&file, 4096);
                    let mut longest = Duration::ZERO;
                    for n in 0.. {
                        let began = Instant::now();
                        if began > until {
                            break;
                        }
                        // The first page is never cut off.
                        map.set(0, n as u8);
                        file.set_len(4096 + n % 3 * 4096).unwrap();
                        map.get(100);
                        longest = longest.max(began.elapsed());
                    }
                    longest
                })
            });
            workers.map(|worker| worker.join().unwrap()).into_iter().max().unwrap()
        });
        println!("the longest took {longest:?}");
        assert!(longest < Duration::from_secs(8), "{longest:?}");
    });
}

/// Until it is dropped, requests of a mount are swallowed.
struct Swallowing<'a> {
    stop: &'a AtomicBool,
    mount: &'a Path,
}

impl Drop for Swallowing<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Aborts its connection, which ends the calls that wait in the kernel.
        let _ = umount2(self.mount, MntFlags::MNT_FORCE);
    }
}

/// Takes requests of the second mount until it has a read of `cached`, a file of it, which stays
/// unanswered. Returns its number, and the threads that wait for it.
fn swallow(world: &World, stop: &AtomicBool, cached: &Arc<File>) -> (u64, Vec<JoinHandle<()>>) {
    // The mount's server reads requests too: this takes those for which it is quicker.
    let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(&world.device, flags).unwrap();
    let mut stuck = Vec::new();
    let unique = thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let mut request = vec![0; (1 << 20) + 4096];
            while !stop.load(Ordering::Relaxed) {
                if nix::unistd::read(&world.device, &mut request).is_ok() {
                    let opcode = u32::from_ne_bytes(request[4..8].try_into().unwrap());
                    if opcode == 15 {
                        return Some(u64::from_ne_bytes(request[8..16].try_into().unwrap()));
                    }
                }
            }
            None
        });
        let began = Instant::now();
        while !owner.is_finished() {
            if began.elapsed() > Duration::from_secs(30) {
                stop.store(true, Ordering::Relaxed);
            }
            // Closing is a request too: no thread closes the file.
            let cached = Arc::clone(cached);
            stuck.push(thread::spawn(move || {
                let (at, mut byte) = (1 << 19, [0]);
                let _ = rustix::fs::fadvise(&*cached, 0, None, rustix::fs::Advice::DontNeed);
                let _ = cached.read_at(&mut byte, at);
            }));
            sleep(Duration::from_millis(5));
        }
        owner.join().unwrap()
    });
    (unique.expect("nothing was swallowed"), stuck)
}

/// The owner of a mount keeps its device, and takes requests without answering: the other clients
/// wait for that mount once, until the server cuts it off.
#[test]
fn requests_that_are_swallowed_harm_only_their_mount() {
    with_world_alone(|world| {
        world.volume.set_patience(Duration::from_millis(700));
        fs::write(world.a.join("f"), vec![1; 1 << 20]).unwrap();
        fs::write(world.a.join("g"), b"g").unwrap();
        sleep(REST);
        let cached = Arc::new(File::open(world.b.join("f")).unwrap());
        assert_eq!(byte(&cached, 0), Some(1));
        let writer = open(&world.a.join("f"));
        let stop = AtomicBool::new(false);
        // Also when an assertion fails.
        let swallowing = Swallowing { stop: &stop, mount: &world.b };
        let (_, stuck) = swallow(world, &stop, &cached);
        let times: Vec<Duration> = (2..6)
            .map(|i| {
                let began = Instant::now();
                writer.write_all_at(&vec![i; 1 << 20], 0).unwrap();
                assert_eq!(fs::read(world.a.join("g")).unwrap(), b"g");
                began.elapsed()
            })
            .collect();
        println!("with a mount that does not answer: {times:?}");
        // The notification waits for the page that is being read.
        assert!(times[0] > Duration::from_millis(500), "{times:?}");
        assert!(times[0] < Duration::from_secs(20), "{times:?}");
        assert!(times[1..].iter().sum::<Duration>() < times[0], "{times:?}");
        drop(swallowing);
        for reader in stuck {
            reader.join().unwrap();
        }
        // The others go on.
        writer.write_all_at(&[9], 0).unwrap();
        assert_eq!(byte(&File::open(world.a.join("f")).unwrap(), 0), Some(9));
    });
}

/// Calls on files that nobody else has to do with, through one client: all that make, change, show
/// and remove.
fn work(changer: &mut dyn Changer, dir: &Path) {
    for i in 0..3 {
        changer.create("g", &[i; 5000]);
        assert_eq!(fs::read(dir.join("g")).unwrap(), [i; 5000]);
        changer.rename("g", "h");
        fs::hard_link(dir.join("h"), dir.join("g")).unwrap();
        changer.chmod("h", 0o600);
        assert_eq!(fs::metadata(dir.join("g")).unwrap().nlink(), 2);
        changer.unlink("g");
        changer.mkdir("s");
        assert_eq!(fs::read_dir(dir).unwrap().count(), 3);
        changer.rmdir("s");
        changer.write(0, &[i]);
        changer.set_len(10);
        open(&dir.join("f")).sync_all().unwrap();
        changer.unlink("h");
    }
}

/// A mount whose kernel is late to forget one file holds up clients that work on that file, and no
/// others.
#[test]
fn who_is_late_holds_up_nobody_else() {
    with_world_alone(|world| {
        // For ever, in a test.
        world.volume.set_patience(Duration::from_secs(1000));
        fs::write(world.a.join("late"), vec![1; 1 << 20]).unwrap();
        fs::create_dir(world.a.join("d")).unwrap();
        fs::write(world.a.join("d/f"), vec![1; 30_000]).unwrap();
        let mut clients: [Box<dyn Changer>; 2] =
            [Box::new(Direct::new(world)), Box::new(Through::new(&world.a))];
        let mut third = Direct::new(world);
        sleep(REST);
        let cached = Arc::new(File::open(world.b.join("late")).unwrap());
        assert_eq!(byte(&cached, 0), Some(1));
        let writer = open(&world.a.join("late"));
        let stop = AtomicBool::new(false);
        let swallowing = Swallowing { stop: &stop, mount: &world.b };
        let (unique, stuck) = swallow(world, &stop, &cached);
        let returned = AtomicBool::new(false);
        let gate = world.volume.gate();
        while !gate.is_open() {
            sleep(Duration::from_millis(1));
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all_at(&[2; 4096], 0).unwrap();
                returned.store(true, Ordering::Release);
            });
            // The change is made, and its answer waits.
            while gate.is_open() {
                sleep(Duration::from_millis(1));
            }
            scope.spawn(|| {
                third.session.lookup(&cx(), Ino::ROOT, name("late")).unwrap();
                returned.store(true, Ordering::Release);
            });
            for client in &mut clients {
                work(&mut **client, &world.a.join("d"));
            }
            let early = returned.load(Ordering::Acquire);
            let mut answer = [0; 16];
            answer[..4].copy_from_slice(&16u32.to_ne_bytes());
            answer[4..8].copy_from_slice(&(-rustix::io::Errno::IO.raw_os_error()).to_ne_bytes());
            answer[8..].copy_from_slice(&unique.to_ne_bytes());
            nix::unistd::write(&world.device, &answer).unwrap();
            assert!(!early, "somebody learned of a change that a mount does not show");
        });
        drop(swallowing);
        for reader in stuck {
            reader.join().unwrap();
        }
    });
}

/// A mount whose kernel takes too long to forget: no change returns while it shows old data, and
/// then it shows nothing, be it that it was told to forget, that it was about to be, or that nobody
/// has changed it.
#[test]
fn who_cannot_be_told_in_time_shows_nothing() {
    with_world_alone(|world| {
        world.volume.set_patience(Duration::from_millis(300));
        for name in ["f", "g", "h"] {
            fs::write(world.a.join(name), vec![1; 1 << 20]).unwrap();
        }
        sleep(REST);
        let cached = ["f", "g", "h"].map(|name| {
            let file = Arc::new(File::open(world.b.join(name)).unwrap());
            assert_eq!(byte(&file, 0), Some(1));
            file
        });
        let stop = AtomicBool::new(false);
        let swallowing = Swallowing { stop: &stop, mount: &world.b };
        let (unique, stuck) = swallow(world, &stop, &cached[0]);
        let returned = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for name in ["f", "g"] {
                    open(&world.a.join(name)).write_all_at(&[2; 4096], 0).unwrap();
                    returned.store(true, Ordering::Release);
                }
            });
            // The mount is fenced first; then the awaited answer comes.
            sleep(Duration::from_millis(800));
            let early = returned.load(Ordering::Acquire);
            let mut answer = [0; 16];
            answer[..4].copy_from_slice(&16u32.to_ne_bytes());
            answer[4..8].copy_from_slice(&(-rustix::io::Errno::IO.raw_os_error()).to_ne_bytes());
            answer[8..].copy_from_slice(&unique.to_ne_bytes());
            nix::unistd::write(&world.device, &answer).unwrap();
            assert!(!early, "a change returned that a mount does not show");
        });
        // Its server has gone, but the device is still open: a program that asked would wait for
        // ever. Without a connection the kernel goes on showing its cache.
        let _ = umount2(&world.b, MntFlags::MNT_FORCE);
        for (name, file) in ["f", "g", "h"].iter().zip(&cached) {
            assert!(file.read_at(&mut [0], 0).is_err(), "{name} is shown");
        }
        assert_eq!(fs::read(world.a.join("g")).unwrap()[..2], [2, 2]);
        drop(swallowing);
        for reader in stuck {
            reader.join().unwrap();
        }
    });
}

/// A kernel drops an answer about a file's size when a notification overtakes it, and then goes by
/// the size that it knew: which must not be from before a change that has returned.
#[test]
fn sizes_that_are_overtaken() {
    with_world(|world| {
        fs::create_dir(world.a.join("d")).unwrap();
        fs::write(world.a.join("d/f"), b"").unwrap();
        let mut others: [Box<dyn Changer>; 2] =
            [Box::new(Direct::new(world)), Box::new(Through::new(&world.a))];
        let file = File::open(world.b.join("d/f")).unwrap();
        assert_eq!(byte(&file, 0), None);
        let ino = file.metadata().unwrap().ino();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            // Of the attributes alone, again and again.
            scope.spawn(|| {
                let mut notice = Vec::new();
                notice.extend_from_slice(&40u32.to_ne_bytes());
                notice.extend_from_slice(&2i32.to_ne_bytes());
                notice.extend_from_slice(&[0; 8]);
                notice.extend_from_slice(&ino.to_ne_bytes());
                notice.extend_from_slice(&(-1i64).to_ne_bytes());
                notice.extend_from_slice(&[0; 8]);
                while !stop.load(Ordering::Relaxed) {
                    nix::unistd::write(&world.device, &notice).unwrap();
                }
            });
            let mut wrong = Vec::new();
            for i in 0..60 {
                let (changer, at) = (&mut others[i % 2], i as u64 * 3000);
                match i % 3 {
                    0 => changer.write(at + 2999, &[7]),
                    1 => changer.set_len(at + 3000),
                    _ => changer.write(at, &[7; 3000]),
                }
                let expected = if i % 3 == 1 { 0 } else { 7 };
                let got = byte(&file, at + 2999);
                if got != Some(expected) {
                    wrong.push((i, got));
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(wrong.is_empty(), "{wrong:?}");
        });
    });
}

/// No read returns bytes beyond the end of a file that another client has made shorter, whoever
/// else reads meanwhile.
#[test]
fn files_that_become_shorter() {
    with_world(|world| {
        fs::create_dir(world.a.join("d")).unwrap();
        fs::write(world.a.join("d/f"), [7; 28_672]).unwrap();
        let mut others: [Box<dyn Changer>; 2] =
            [Box::new(Direct::new(world)), Box::new(Through::new(&world.a))];
        let open = || File::open(world.b.join("d/f")).unwrap();
        let (file, read_too, stop) = (open(), open(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = byte(&read_too, 28_000);
                    let _ = read_too.metadata();
                }
            });
            let mut wrong = Vec::new();
            for i in 0..300 {
                let len = 1 + i * 257 % 28_000;
                others[i % 2].write(28_671, &[7]);
                others[i / 2 % 2].set_len(len as u64);
                let beyond = byte(&file, len as u64 + 3);
                if beyond.is_some() || byte(&file, len as u64 - 1).is_none() {
                    wrong.push((i, len));
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(wrong.is_empty(), "{wrong:?}");
        });
    });
}
