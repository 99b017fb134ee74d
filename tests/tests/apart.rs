//! Cuts and removals of large files of a directory of the host: those wait for them who asked, and
//! who uses the same file, and nobody else.
//!
//! What the host would take long for waits until the test lets it go on, so that what happens
//! meanwhile does not depend on how fast the machine is.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use atoll_host::directory::Options;
use atoll_tests::hostdir::HostDir;
use atoll_tests::linear::run::within;
use atoll_tests::served::{Served, guest, in_namespace, ring};
use atoll_tests::subject::{RW, name};
use atoll_vfs::{
    Context, Errno, FallocateMode, FileAt, FileSystem, Handle, Ino, OpenFlags, PendingSync,
    RenameFlags, Rest, Result, SeekTo, SetAttr, SyncId, Timespec, XattrFlags, verbs,
};

const ROOT: Ino = Ino::ROOT;
/// More than enough for anything that is to happen at once.
const SOON: Duration = Duration::from_secs(30);
/// How long a test waits for an event that must not happen.
const A_WHILE: Duration = Duration::from_millis(150);
/// The length of a large file.
const LARGE: u64 = 64 << 20;

fn cx() -> Context {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    Context { uid, gid, now: Timespec::default() }
}

/// A test's control of the work, and its counts.
#[derive(Default)]
struct Control {
    state: Mutex<Works>,
    changed: Condvar,
}

#[derive(Default)]
struct Works {
    held: bool,
    begun: u64,
    ended: u64,
    /// The next one is dropped, and not done.
    lost: bool,
}

impl Control {
    fn state(&self) -> MutexGuard<'_, Works> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, held: bool) {
        self.state().held = held;
        self.changed.notify_all();
    }

    /// Waits until `count` works have begun.
    fn wait_for(&self, count: u64) {
        let wait = self.changed.wait_timeout_while(self.state(), SOON, |s| s.begun < count);
        let (state, timed_out) = wait.unwrap();
        assert!(!timed_out.timed_out(), "{} began instead of {count}", state.begun);
    }

    fn work(&self, work: PendingSync) -> Result<()> {
        let mut state = self.state();
        state.begun += 1;
        self.changed.notify_all();
        let lost = std::mem::take(&mut state.lost);
        drop(self.changed.wait_while(state, |state| state.held).unwrap());
        if lost {
            drop(work);
            return Ok(());
        }
        let (_, outcome) = work.flush();
        self.state().ended += 1;
        outcome
    }
}

/// A directory whose work waits for the test.
struct Held {
    dir: HostDir,
    control: Arc<Control>,
}

macro_rules! pass {
    ($self:ident $verb:ident ($($arg:ident),*)) => { $self.dir.$verb($($arg),*) };
}

impl FileSystem for Held {
    verbs!(pass: lookup forget getattr setattr readlink mknod mkdir symlink unlink rmdir rename link
        open create tmpfile read read_vectored accessed write write_vectored copy_file_range
        fallocate seek fsync mappable release opendir readdir readdir_names releasedir fsyncdir
        syncfs begin_sync begin_fsync end_sync checkpoint_step work_in_steps take_rest free_step
        statfs setxattr getxattr listxattr removexattr);

    fn begin_free(&mut self, ino: Ino) -> Result<Option<PendingSync>> {
        let control = Arc::clone(&self.control);
        let begun = self.dir.begin_free(ino)?;
        Ok(begun.map(|work| PendingSync::new(SyncId(0), move || control.work(work))))
    }
}

struct Scene {
    served: Served<Held>,
    control: Arc<Control>,
    /// Where the directory is.
    path: PathBuf,
}

fn scene(devices: usize) -> Scene {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (dir, _) = HostDir::with(parent, &Options::default()).unwrap();
    let (path, control) = (dir.path().to_owned(), Arc::<Control>::default());
    let served = Served::of_directory(Held { dir, control: Arc::clone(&control) }, devices);
    Scene { served, control, path }
}

/// A large file of zeros, but for its first bytes.
fn large(path: &Path, name: &str) -> PathBuf {
    let path = path.join(name);
    fs::write(&path, b"first").unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(LARGE).unwrap();
    path
}

fn client<F: FileSystem + Send + 'static>(served: &Served<F>) -> Box<dyn FileSystem + Send> {
    Box::new(ring(&served.socket(), 1).client().expect("a lane"))
}

/// A call that is under way in a thread of its own.
struct Call<T>(Receiver<T>);

impl<T: Send + 'static> Call<T> {
    fn begin(call: impl FnOnce() -> T + Send + 'static) -> Call<T> {
        let (tell, told) = channel();
        thread::spawn(move || {
            let _ = tell.send(call());
        });
        Call(told)
    }

    fn assert_waits(&self) {
        assert!(matches!(self.0.recv_timeout(A_WHILE), Err(RecvTimeoutError::Timeout)));
    }

    #[track_caller]
    fn end(self) -> T {
        self.0.recv_timeout(SOON).expect("it waits, or has failed")
    }
}

fn cut(fs: &mut dyn FileSystem, file: &str, size: u64) -> Result<u64> {
    let ino = fs.lookup(&cx(), ROOT, name(file))?.ino;
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&cx(), ino, None, &set).map(|attr| attr.size)
}

/// Uses the directory in every way, but for one file, of which it looks at what can be seen.
fn use_the_rest(fs: &mut dyn FileSystem, being_cut: &str) {
    let looked = fs.lookup(&cx(), ROOT, name(being_cut)).unwrap();
    fs.getattr(&cx(), looked.ino).unwrap();
    let handle = fs.open(&cx(), looked.ino, OpenFlags::READ).unwrap();
    fs.release(&cx(), looked.ino, handle).unwrap();
    let (attr, handle) = fs.create(&cx(), ROOT, name("other"), 0o600, RW).unwrap();
    fs.write(&cx(), attr.ino, handle, 0, b"text").unwrap();
    assert_eq!(fs.read(&cx(), attr.ino, handle, 0, &mut [0; 9]), Ok(4));
    assert_eq!(cut(fs, "other", 2), Ok(2));
    fs.fsync(&cx(), attr.ino, handle, false).unwrap();
    fs.release(&cx(), attr.ino, handle).unwrap();
    fs.rename(&cx(), ROOT, name("other"), ROOT, name("another"), RenameFlags::empty()).unwrap();
    fs.unlink(&cx(), ROOT, name("another")).unwrap();
}

/// A call on a file that is open.
type Verb = fn(&mut dyn FileSystem, Ino, Handle) -> Result<()>;

/// Every call on a file that the host has wait while it is cut.
const WAITING: [(&str, Verb); 12] = [
    ("read", |fs, ino, handle| fs.read(&cx(), ino, handle, 0, &mut [0; 9]).map(drop)),
    ("write", |fs, ino, handle| fs.write(&cx(), ino, handle, 9, b"last").map(drop)),
    ("seek", |fs, ino, handle| fs.seek(&cx(), ino, handle, 0, SeekTo::Data).map(drop)),
    ("fallocate", |fs, ino, handle| {
        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        fs.fallocate(&cx(), ino, handle, 1 << 20, 4096, mode)
    }),
    ("copy", |fs, ino, handle| {
        let at = |offset| FileAt { ino, handle, offset };
        fs.copy_file_range(&cx(), at(0), at(100), 3).map(drop)
    }),
    ("chmod", |fs, ino, _| {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        fs.setattr(&cx(), ino, None, &set).map(drop)
    }),
    ("cut", |fs, ino, handle| {
        let set = SetAttr { size: Some(1000), ..SetAttr::default() };
        fs.setattr(&cx(), ino, Some(handle), &set).map(drop)
    }),
    ("open", |fs, ino, _| {
        let flags = OpenFlags::WRITE | OpenFlags::TRUNC;
        let handle = fs.open(&cx(), ino, flags)?;
        fs.release(&cx(), ino, handle)
    }),
    ("setxattr", |fs, ino, _| fs.setxattr(&cx(), ino, b"user.a", b"b", XattrFlags::empty())),
    ("link", |fs, ino, _| fs.link(&cx(), ino, ROOT, name("g")).map(drop)),
    ("rename", |fs, _, _| fs.rename(&cx(), ROOT, name("f"), ROOT, name("h"), RenameFlags::empty())),
    ("rename over", |fs, _, _| {
        fs.rename(&cx(), ROOT, name("small"), ROOT, name("f"), RenameFlags::empty())
    }),
];

/// While one client cuts a file others go on, with the file too as far as the host lets them; what
/// has to come after the cut comes after it.
#[test]
fn a_cut_holds_up_its_file_alone() {
    within(20 * SOON, || {
        for (what, verb) in WAITING {
            let Scene { served, control, path } = scene(1);
            let large = large(&path, "f");
            fs::write(path.join("small"), b"small").unwrap();
            let mut client = client(&served);
            let ino = client.lookup(&cx(), ROOT, name("f")).unwrap().ino;
            let handle = client.open(&cx(), ino, RW).unwrap();
            control.hold(true);
            let mut cutter = self::client(&served);
            let cutting = Call::begin(move || cut(&mut *cutter, "f", 100));
            control.wait_for(1);
            let waiting = Call::begin(move || verb(&mut *client, ino, handle));
            let mut of_ring = self::client(&served);
            Call::begin(move || use_the_rest(&mut *of_ring, "f")).end();
            let mut of_guest = guest(&served.folder().join("d0"));
            Call::begin(move || use_the_rest(&mut of_guest, "f")).end();
            cutting.assert_waits();
            assert!(waiting.0.try_recv().is_err(), "{what} does not wait");
            assert_eq!(fs::metadata(&large).unwrap().len(), LARGE, "it is not made yet");
            control.hold(false);
            assert_eq!(waiting.end(), Ok(()), "{what}");
            let size = cutting.end();
            assert!(size == Ok(100) || size.is_ok_and(|_| what == "write"), "{what}: {size:?}");
            assert!(served.end().is_some());
        }
    });
}

/// A guest whose requests wait for a cut goes on with others, and so do programs of a mount but for
/// those of the same mount.
#[test]
fn whoever_waits_for_a_cut_holds_up_nobody_else() {
    within(10 * SOON, || {
        let Scene { mut served, control, path } = scene(1);
        let large = large(&path, "f");
        let mounted = in_namespace().then(|| served.mount());
        let mut of_guest = guest(&served.folder().join("d0"));
        let mut other = client(&served);
        control.hold(true);
        let cutting = Call::begin(move || {
            let size = cut(&mut of_guest, "f", 7);
            (size, of_guest)
        });
        control.wait_for(1);
        let of_mount = mounted.map(|mounted| {
            Call::begin(move || {
                // As a program does that writes the file anew.
                fs::write(mounted.join("f"), b"of a mount").map_err(|error| error.kind())
            })
        });
        if let Some(call) = &of_mount {
            call.assert_waits();
        }
        Call::begin(move || use_the_rest(&mut *other, "f")).end();
        cutting.assert_waits();
        control.hold(false);
        let (size, of_guest) = cutting.end();
        assert!(size == Ok(7) || size.is_ok_and(|_| of_mount.is_some()), "{size:?}");
        let expected: &[u8] = if let Some(call) = of_mount {
            assert_eq!(call.end(), Ok(()));
            b"of a mount"
        } else {
            b"first\0\0"
        };
        let found = fs::read(&large).unwrap();
        assert!(found == expected || found == expected[..7], "{found:?}");
        drop(of_guest);
        assert!(served.end().is_some());
    });
}

/// The storage of a removed file goes without the directory, and the answer waits for that, but not
/// the one of a close. So many users, or files, as there are, others go on.
#[test]
fn what_is_removed_goes_without_the_directory() {
    within(10 * SOON, || {
        let Scene { served, control, path } = scene(0);
        for file in ["unlinked", "replaced", "open", "kept"] {
            large(&path, file);
        }
        fs::write(path.join("small"), b"small").unwrap();
        let gone = |file: &str| !descriptors_of(&path.join(file));
        let mut keeper = client(&served);
        let opened = |client: &mut Box<dyn FileSystem + Send>, file: &str| {
            let ino = client.lookup(&cx(), ROOT, name(file)).unwrap().ino;
            (ino, client.open(&cx(), ino, OpenFlags::READ).unwrap())
        };
        let (ino, handle) = opened(&mut keeper, "open");
        // One of them is known, and not open any more: others have been used since.
        thread::sleep(Duration::from_millis(100));
        keeper.lookup(&cx(), ROOT, name("unlinked")).unwrap();
        for number in 0..200 {
            let other = format!("other{number}");
            fs::write(path.join(&other), b"").unwrap();
            keeper.lookup(&cx(), ROOT, name(&other)).unwrap();
        }
        control.hold(true);
        let mut first = client(&served);
        let unlinking = Call::begin(move || first.unlink(&cx(), ROOT, name("unlinked")));
        control.wait_for(1);
        let mut second = client(&served);
        let replacing = Call::begin(move || {
            let flags = RenameFlags::empty();
            second.rename(&cx(), ROOT, name("small"), ROOT, name("replaced"), flags)
        });
        control.wait_for(2);
        assert!(!path.join("unlinked").exists(), "it has its effect at once");
        assert_eq!(fs::read(path.join("replaced")).unwrap(), b"small");
        // Both tasks that one user may have are at work: these wait for one.
        keeper.unlink(&cx(), ROOT, name("open")).unwrap();
        keeper.release(&cx(), ino, handle).unwrap();
        let kept = opened(&mut keeper, "kept");
        keeper.unlink(&cx(), ROOT, name("kept")).unwrap();
        use_the_rest(&mut *keeper, "replaced");
        unlinking.assert_waits();
        assert!(!gone("unlinked") && !gone("replaced") && !gone("open"));
        // A session that ends has its files closed in the same way.
        let _ = kept;
        drop(keeper);
        let mut last = client(&served);
        Call::begin(move || use_the_rest(&mut *last, "replaced")).end();
        control.hold(false);
        assert_eq!((unlinking.end(), replacing.end()), (Ok(()), Ok(())));
        control.wait_for(4);
        assert!(served.end().is_some());
        assert!(["unlinked", "replaced", "open", "kept"].map(gone).iter().all(|gone| *gone));
    });
}

/// Whether this process has a descriptor of what was removed at `path`.
fn descriptors_of(path: &Path) -> bool {
    let removed = format!("{} (deleted)", path.display());
    let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|at| at.as_os_str() == &*removed)
}

/// A client that goes away while its file is cut takes nothing with it: the cut is made, and who
/// waits for it goes on. One that was begun and not made is an error for its caller, once.
#[test]
fn a_cut_outlives_its_client() {
    within(10 * SOON, || {
        let Scene { served, control, path } = scene(1);
        let large = large(&path, "f");
        control.hold(true);
        let mut of_guest = guest(&served.folder().join("d0"));
        let (mut own, mut other) = (client(&served), client(&served));
        let first = Call::begin(move || cut(&mut of_guest, "f", 7));
        control.wait_for(1);
        let second = Call::begin(move || cut(&mut *own, "f", 6));
        let third = Call::begin(move || {
            let read = other.lookup(&cx(), ROOT, name("f")).unwrap().ino;
            let handle = other.open(&cx(), read, OpenFlags::READ).unwrap();
            other.read(&cx(), read, handle, 0, &mut [0; 99])
        });
        third.assert_waits();
        // Nobody hears of the answers.
        drop((first, second));
        control.hold(false);
        assert!(third.end().is_ok_and(|len| len == 6 || len == 7));
        drop(fs::remove_file(&large));
        self::large(&path, "f");
        control.state().lost = true;
        let mut cutter = client(&served);
        assert_eq!(cut(&mut *cutter, "f", 7), Err(Errno::EIO));
        assert_eq!(fs::metadata(&large).unwrap().len(), LARGE);
        assert_eq!(cut(&mut *cutter, "f", 7), Ok(7));
        drop(cutter);
        assert!(served.end().is_some());
    });
}

/// A server that ends makes nobody wait, and leaves nothing undone that was answered.
#[test]
fn the_end_of_a_server_waits_for_no_client() {
    within(10 * SOON, || {
        let Scene { mut served, control, path } = scene(1);
        let large = large(&path, "f");
        control.hold(true);
        let mut of_guest = guest(&served.folder().join("d0"));
        let cutting = Call::begin(move || cut(&mut of_guest, "f", 7));
        control.wait_for(1);
        let mut own = client(&served);
        let waiting = Call::begin(move || cut(&mut *own, "f", 6));
        waiting.assert_waits();
        served.stop();
        thread::sleep(A_WHILE);
        control.hold(false);
        let ended = served.end();
        let size = fs::metadata(&large).unwrap().len();
        assert!([6, 7].contains(&size), "{size}");
        for call in [cutting, waiting] {
            // Whether it was answered or not, it waits no more.
            let _ = call.end();
        }
        assert!(ended.is_some());
    });
}

/// However many cuts are left, none is made in the call: one too many waits for another.
#[test]
fn cuts_without_end_are_made_one_after_the_other() {
    const CUTS: usize = 300;
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (mut dir, _) = HostDir::with(parent, &Options::default()).unwrap();
    let path = dir.path().to_owned();
    let files: Vec<String> = (0..CUTS).map(|number| number.to_string()).collect();
    files.iter().for_each(|file| drop(large(&path, file)));
    let inos = files.iter().map(|file| dir.lookup(&cx(), ROOT, name(file)).unwrap().ino);
    let inos: Vec<Ino> = inos.collect();
    dir.work_in_steps(true);
    let mut left: Vec<usize> = (0..CUTS).collect();
    let mut most = 0;
    while !left.is_empty() {
        let mut waits_for = Vec::new();
        left.retain(|number| {
            let done = match cut(&mut dir, &files[*number], 3) {
                Ok(size) => size == 3,
                Err(error) => {
                    assert_eq!(error, Errno::EAGAIN);
                    let Some(Rest::Until(ino)) = dir.take_rest() else {
                        panic!("it says how long")
                    };
                    waits_for.push(ino);
                    false
                }
            };
            !done
        });
        let own = waits_for.iter().filter(|ino| inos.contains(ino)).count();
        assert_eq!(own, left.len());
        waits_for.sort();
        waits_for.dedup();
        most = most.max(waits_for.len());
        for ino in waits_for {
            if let Some(work) = dir.begin_free(ino).unwrap() {
                assert_eq!(work.flush().1, Ok(()));
            }
            assert!(matches!(dir.begin_free(ino), Ok(None)));
        }
    }
    assert!(most < CUTS, "{most}");
    assert!(files.iter().all(|file| fs::metadata(path.join(file)).unwrap().len() == 3));
    // A caller that cannot come back has its cut made.
    dir.work_in_steps(false);
    large(&path, "0");
    assert_eq!(cut(&mut dir, "0", 1), Ok(1));
    assert_eq!(dir.take_rest(), None);
}

/// While a cut is left, nothing is asked of the host that would wait for it: neither that a time of
/// last access is set, nor what a copy for a guest takes.
#[test]
fn what_would_wait_for_a_cut_is_not_asked_of_the_host() {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (mut dir, _) = HostDir::with(parent, &Options::default()).unwrap();
    large(dir.path(), "f");
    let ino = dir.lookup(&cx(), ROOT, name("f")).unwrap().ino;
    let handle = dir.open(&cx(), ino, RW).unwrap();
    let late = Context { now: Timespec { sec: 1 << 33, nsec: 0 }, ..cx() };
    let copy =
        |dir: &mut HostDir| dir.inner().mappable(&cx(), ino, handle, 0, 2 << 20, true).map(drop);
    dir.work_in_steps(true);
    assert!(dir.accessed(&late, ino));
    assert_eq!(cut(&mut dir, "f", 3), Err(Errno::EAGAIN));
    assert_eq!(dir.take_rest(), Some(Rest::Until(ino)));
    assert!(!dir.accessed(&late, ino));
    assert_eq!(copy(&mut dir), Err(Errno::EAGAIN));
    assert_eq!(dir.take_rest(), None, "a guest's kernel asks again by itself");
    let work = dir.begin_free(ino).unwrap().unwrap();
    assert_eq!(work.flush().1, Ok(()));
    assert_eq!(cut(&mut dir, "f", 3), Ok(3));
    assert!(dir.accessed(&late, ino));
    assert_eq!(copy(&mut dir), Ok(()));
    dir.release(&cx(), ino, handle).unwrap();
}

/// A directory of which every call does all of its work itself, as without tasks.
struct Whole(HostDir);

macro_rules! whole {
    ($self:ident $verb:ident ($($arg:ident),*)) => { $self.0.$verb($($arg),*) };
}

impl FileSystem for Whole {
    verbs!(whole: lookup forget getattr setattr readlink mknod mkdir symlink unlink rmdir rename
        link open create tmpfile read read_vectored accessed write write_vectored copy_file_range
        fallocate seek fsync mappable release opendir readdir readdir_names releasedir fsyncdir
        syncfs begin_sync begin_fsync end_sync checkpoint_step take_rest begin_free free_step
        statfs setxattr getxattr listxattr removexattr);

    fn work_in_steps(&mut self, _: bool) -> bool {
        false
    }
}

/// How long calls of one client take while another cuts and removes files of 1 GiB, with the work
/// in the calls and apart from them; in ATOLL_DIRECTORY, or where tests have their files.
///
/// `cargo test --release -p atoll-tests --test apart -- --ignored --nocapture in_figures`
#[test]
#[ignore = "takes minutes, and 2 GiB"]
fn cuts_in_figures() {
    let parent = std::env::var_os("ATOLL_DIRECTORY");
    let parent = parent.map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
    for what in ["nothing", "cuts", "removals"] {
        for apart in [false, true] {
            let (dir, _) = HostDir::with(&parent, &Options::default()).unwrap();
            let path = dir.path().to_owned();
            let (times, longest) = if apart {
                let served = Served::of_directory(dir, 0);
                beside(what, &path, client(&served), client(&served))
            } else {
                let served = Served::of_directory(Whole(dir), 0);
                beside(what, &path, client(&served), client(&served))
            };
            let at = |part: usize| times[(times.len() - 1) * part / 1000].as_secs_f64() * 1e6;
            println!(
                "{} {}: p50 {:.0} us, p99 {:.0}, p99.9 {:.0}, longest {:.0}; longest cut {:.2} s",
                what,
                if apart { "apart" } else { "in the call" },
                at(500),
                at(990),
                at(999),
                at(1000),
                longest.as_secs_f64()
            );
        }
    }
}

/// The times of `victim`'s calls, in order, while `cutter` cuts or removes large files; and the
/// longest of the latter.
fn beside(
    what: &str,
    path: &Path,
    mut cutter: Box<dyn FileSystem + Send>,
    mut victim: Box<dyn FileSystem + Send>,
) -> (Vec<Duration>, Duration) {
    let mut times = Vec::new();
    let mut longest = Duration::ZERO;
    let (attr, handle) = victim.create(&cx(), ROOT, name("own"), 0o600, RW).unwrap();
    for _ in 0..5 {
        let data = vec![7; 1 << 20];
        let mut file = fs::File::create(path.join("f")).unwrap();
        for _ in 0..1024 {
            std::io::Write::write_all(&mut file, &data).unwrap();
        }
        drop(file);
        // Others' writing back is not measured.
        thread::sleep(Duration::from_secs(2));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let begun = Instant::now();
                match what {
                    "removals" => cutter.unlink(&cx(), ROOT, name("f")).unwrap(),
                    "cuts" => assert_eq!(cut(&mut *cutter, "f", 0), Ok(0)),
                    _ => {}
                }
                longest = longest.max(begun.elapsed());
                over.store(true, Ordering::Relaxed);
            });
            // Calls at a rate: those that would have come meanwhile wait too.
            let begun = Instant::now();
            let mut count = 0;
            while !over.load(Ordering::Relaxed) || begun.elapsed() < Duration::from_secs(1) {
                let due = begun + Duration::from_millis(1) * count;
                count += 1;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                victim.lookup(&cx(), ROOT, name("own")).unwrap();
                victim.write(&cx(), attr.ino, handle, 0, &data[..4096]).unwrap();
                times.push(due.elapsed());
            }
        });
    }
    times.sort();
    (times, longest)
}
