//! Syncs through a server: they hold up only the clients that asked, share flushes, and fail for
//! these clients.
//!
//! The device is one whose flushes wait until the test lets them go on, so that what happens
//! meanwhile does not depend on how fast the machine is.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use atoll_block::fault::Survival;
use atoll_block::{Addressable, BlockDevice, BlockError, BlockIndex, FaultDevice, Flusher};
use atoll_fs::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};
use atoll_host::fuse::mount;
use atoll_host::server::sole::{SoleOptions, SoleServer};
use atoll_tests::linear::run::within;
use atoll_tests::served::{Served, in_namespace, mount_options, ring};
use atoll_tests::subject::{RW, name};
use atoll_vfs::{Context, Errno, FileSystem, Handle, Ino, OpenFlags, Result, Timespec};
use rustix::fs::OFlags;

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 9, nsec: 0 } };
/// More than enough for anything that is to happen at once.
const SOON: Duration = Duration::from_secs(20);
/// How long a test waits for an event that must not happen.
const A_WHILE: Duration = Duration::from_millis(150);

/// A test's control of the flushes, and its counts.
#[derive(Default)]
struct Control {
    state: Mutex<Flushes>,
    changed: Condvar,
}

#[derive(Default)]
struct Flushes {
    /// Flushes apart from the device wait while it is true.
    held: bool,
    /// Those that have begun.
    begun: u64,
    /// Flushes of the device itself, under the volume's lock.
    whole: u64,
    /// The next one panics.
    panics: bool,
}

impl Control {
    fn state(&self) -> MutexGuard<'_, Flushes> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flushes that have begun, and flushes of the device itself.
    fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.begun, state.whole)
    }

    fn hold(&self, held: bool) {
        self.state().held = held;
        self.changed.notify_all();
    }

    /// Waits until `count` flushes have begun.
    fn wait_for(&self, count: u64) {
        let (state, timed_out) = self
            .changed
            .wait_timeout_while(self.state(), SOON, |state| state.begun < count)
            .unwrap();
        assert!(!timed_out.timed_out(), "{} flushes began instead of {count}", state.begun);
    }

    fn flush(&self, flusher: Flusher) -> std::result::Result<(), BlockError> {
        let mut state = self.state();
        state.begun += 1;
        self.changed.notify_all();
        assert!(!std::mem::take(&mut state.panics), "planned");
        drop(self.changed.wait_while(state, |state| state.held));
        flusher.flush()
    }
}

/// A device whose flushers wait for the test.
struct Slow {
    device: FaultDevice,
    control: Arc<Control>,
}

impl BlockDevice for Slow {
    fn block_count(&self) -> u64 {
        self.device.block_count()
    }
    fn read(&mut self, at: BlockIndex, buf: &mut [u8]) -> std::result::Result<(), BlockError> {
        self.device.read(at, buf)
    }
    fn write(&mut self, at: BlockIndex, data: &[u8]) -> std::result::Result<(), BlockError> {
        self.device.write(at, data)
    }
    fn flush(&mut self) -> std::result::Result<(), BlockError> {
        self.control.state().whole += 1;
        self.device.flush()
    }
    fn flush_range(&mut self, at: BlockIndex, n: u64) -> std::result::Result<(), BlockError> {
        self.control.state().whole += 1;
        self.device.flush_range(at, n)
    }
    fn flusher(&mut self, at: BlockIndex, n: u64) -> Option<Flusher> {
        let flusher = self.device.flusher(at, n)?;
        let control = Arc::clone(&self.control);
        Some(Flusher::new(move || control.flush(flusher)))
    }
    fn discard(&mut self, at: BlockIndex, n: u64) -> std::result::Result<(), BlockError> {
        self.device.discard(at, n)
    }
}

impl Addressable for Slow {
    fn load(&mut self, at: u64, buf: &mut [u8]) -> std::result::Result<(), BlockError> {
        self.device.load(at, buf)
    }
    fn store(&mut self, at: u64, data: &[u8]) -> std::result::Result<(), BlockError> {
        self.device.store(at, data)
    }
}

/// A served volume on a slow device, of which `flusher_errors` flushes fail.
fn served(flusher_errors: u32) -> (Served<Fs<Slow>>, Arc<Control>) {
    served_as(&FormatOptions::default(), flusher_errors)
}

fn served_as(options: &FormatOptions, flusher_errors: u32) -> (Served<Fs<Slow>>, Arc<Control>) {
    let (fs, control) = slow(options, flusher_errors);
    (Served::new(fs), control)
}

fn slow(options: &FormatOptions, flusher_errors: u32) -> (Fs<Slow>, Arc<Control>) {
    let mut device = FaultDevice::new(8192);
    format(&mut device, options).unwrap();
    device.faults.flusher_errors = flusher_errors;
    let control = Arc::new(Control::default());
    let device = Slow { device, control: Arc::clone(&control) };
    let fs = Fs::mount(device, &MountOptions::default()).unwrap();
    control.state().whole = 0;
    (fs, control)
}

/// One client of a ring, with a file of its own.
struct Client {
    fs: Box<dyn FileSystem + Send>,
    file: (Ino, Handle),
}

impl Client {
    fn new(mut fs: impl FileSystem + Send + 'static, named: &str) -> Client {
        let (attr, handle) =
            fs.create(&CX, Ino::ROOT, name(named), 0o644, RW | OpenFlags::EXCL).unwrap();
        Client { fs: Box::new(fs), file: (attr.ino, handle) }
    }

    fn write(&mut self, data: &[u8]) -> Result<usize> {
        let (ino, handle) = self.file;
        self.fs.write(&CX, ino, handle, 0, data).map(|written| written.len)
    }

    fn fsync(&mut self) -> Result<()> {
        let (ino, handle) = self.file;
        self.fs.fsync(&CX, ino, handle, false)
    }

    fn read(&mut self) -> Result<u8> {
        let (ino, handle) = self.file;
        let mut byte = [0];
        self.fs.read(&CX, ino, handle, 0, &mut byte).map(|_| byte[0])
    }
}

/// Clients with connections of their own, named by their numbers.
fn clients(served: &Served<Fs<Slow>>, count: usize) -> Vec<Client> {
    let client = |i: usize| {
        let fs = ring(&served.socket(), 1).client().expect("a lane");
        Client::new(fs, &format!("f{i}"))
    };
    (0..count).map(client).collect()
}

/// The result of `call`, which must return although flushes are held.
fn at_once<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = channel();
    let thread = thread::spawn(move || {
        let _ = tell.send(call());
    });
    let result = told.recv_timeout(SOON).unwrap_or_else(|_| panic!("{what} waits for a flush"));
    thread.join().unwrap();
    result
}

/// A sync of `client` on a thread, and how it ends.
struct Syncing {
    thread: JoinHandle<Client>,
    outcome: std::sync::mpsc::Receiver<Result<()>>,
}

impl Syncing {
    fn begin(mut client: Client) -> Syncing {
        let (tell, outcome) = channel();
        let thread = thread::spawn(move || {
            let _ = tell.send(client.fsync());
            client
        });
        Syncing { thread, outcome }
    }

    fn assert_waits(&self) {
        assert_eq!(self.outcome.recv_timeout(A_WHILE), Err(RecvTimeoutError::Timeout));
    }

    fn end(self) -> (Client, Result<()>) {
        let outcome = self.outcome.recv_timeout(SOON).expect("an answer");
        (self.thread.join().unwrap(), outcome)
    }
}

/// The device after power loss, mounted again: reads the first byte of each file.
fn after_power_loss(fs: Fs<Slow>, files: &[&str]) -> Vec<Option<u8>> {
    let mut fs = fs;
    fs.device_mut().device.note_flushers();
    let mut device = FaultDevice::from_image(fs.device().device.power_loss(Survival::None));
    let report = check(&mut device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    let mut fs = Fs::mount(device, &MountOptions::default()).unwrap();
    let mut first = |named: &&str| {
        let ino = fs.lookup(&CX, Ino::ROOT, name(named)).ok()?.ino;
        let handle = fs.open(&CX, ino, OpenFlags::READ).unwrap();
        let mut byte = [0];
        (fs.read(&CX, ino, handle, 0, &mut byte).unwrap() == 1).then_some(byte[0])
    };
    files.iter().map(&mut first).collect()
}

#[test]
fn others_go_on_during_a_flush() {
    within(SOON * 3, || {
        let (served, control) = served(0);
        let mut all = clients(&served, 2);
        let (mut other, mut one) = (all.pop().unwrap(), all.pop().unwrap());
        one.write(&[1; 100]).unwrap();
        control.hold(true);
        let syncing = Syncing::begin(one);
        control.wait_for(1);
        other = at_once("another client", move || {
            other.write(&[2; 5000]).unwrap();
            assert_eq!(other.read(), Ok(2));
            other.fs.mkdir(&CX, Ino::ROOT, name("d"), 0o755).unwrap();
            other
        });
        let mut session = served.session();
        at_once("a session", move || session.lookup(&CX, Ino::ROOT, name("d")).unwrap());
        syncing.assert_waits();
        control.hold(false);
        let (one, outcome) = syncing.end();
        assert_eq!(outcome, Ok(()));
        assert_eq!(control.counts(), (1, 0));
        drop((one, other));
        let fs = served.end().unwrap();
        assert_eq!(after_power_loss(fs, &["f0"]), [Some(1)]);
    });
}

/// The journal fills up again and again, and nobody's operation waits for the checkpoint that
/// empties it. It is so large, and the client rests so often, that the checkpointer begins in time
/// however busy the machine is.
#[test]
fn others_go_on_during_a_checkpoint() {
    /// The sync's, that of the blocks written home, and that of both copies of the header.
    const FLUSHES: u64 = 3;
    let come_and_go = |client: &mut Client| {
        client.fs.mkdir(&CX, Ino::ROOT, name("d"), 0o755).unwrap();
        client.fs.rmdir(&CX, Ino::ROOT, name("d")).unwrap();
    };
    within(SOON * 6, move || {
        let options = FormatOptions { journal_blocks: Some(2048), ..FormatOptions::default() };
        let (served, control) = served_as(&options, 0);
        let mut client = clients(&served, 1).pop().unwrap();
        for _ in 0..3 {
            control.hold(true);
            let (before, _) = control.counts();
            for i in 0.. {
                come_and_go(&mut client);
                if control.counts().0 > before {
                    break;
                }
                assert!(i < 100_000, "no checkpoint begins");
                if i % 32 == 0 {
                    sleep(Duration::from_millis(1));
                }
            }
            client = at_once("the client", move || {
                (0..50).for_each(|_| come_and_go(&mut client));
                client
            });
            control.hold(false);
            control.wait_for(before + FLUSHES);
        }
        assert_eq!(control.counts().1, 0, "flushes with everybody waiting");
        drop(client);
        let fs = served.end().unwrap();
        assert_eq!(after_power_loss(fs, &["f0"]), [None]);
    });
}

/// A file so large that its data is flushed before its mark, while others go on.
#[test]
fn much_data_is_durable_too() {
    within(SOON * 3, || {
        let (served, control) = served(0);
        let mut all = clients(&served, 2);
        let (mut other, mut one) = (all.pop().unwrap(), all.pop().unwrap());
        one.write(&[7; 300_000]).unwrap();
        control.hold(true);
        let syncing = Syncing::begin(one);
        control.wait_for(1);
        other = at_once("another client", move || {
            other.write(&[8; 300_000]).unwrap();
            other
        });
        control.hold(false);
        let (one, outcome) = syncing.end();
        assert_eq!(outcome, Ok(()));
        assert_eq!(control.counts(), (2, 0));
        drop((one, other));
        let fs = served.end().unwrap();
        // The other's was not asked to last, and its record did not come with the first one's mark.
        assert_eq!(after_power_loss(fs, &["f0", "f1"]), [Some(7), None]);
    });
}

#[test]
fn many_share_few_flushes() {
    const CLIENTS: usize = 12;
    within(SOON * 3, || {
        let (served, control) = served(0);
        let mut all = clients(&served, CLIENTS);
        all[0].write(&[1; 20]).unwrap();
        control.hold(true);
        let mut syncing = vec![Syncing::begin(all.remove(0))];
        control.wait_for(1);
        // Their earlier writes are durable already when the first one's flush has ended.
        for (i, client) in all.iter_mut().enumerate() {
            client.write(&[i as u8 + 2; 20]).unwrap();
        }
        syncing.extend(all.into_iter().map(Syncing::begin));
        // Nothing tells that all have asked; a client that has not by then costs one flush more.
        sleep(Duration::from_millis(500));
        control.hold(false);
        let ended: Vec<_> = syncing.into_iter().map(Syncing::end).collect();
        assert!(ended.iter().all(|(_, outcome)| *outcome == Ok(())));
        let (begun, whole) = control.counts();
        assert!((2..=CLIENTS as u64 / 2).contains(&begun), "{begun} flushes for {CLIENTS} syncs");
        assert_eq!(whole, 0);
        drop(ended);
        let fs = served.end().unwrap();
        let names: Vec<String> = (0..CLIENTS).map(|i| format!("f{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let wanted: Vec<_> = (1..=CLIENTS as u8).map(Some).collect();
        assert_eq!(after_power_loss(fs, &names), wanted);
    });
}

/// Lanes of one connection, of which one waits.
#[test]
fn a_lane_waits_alone() {
    within(SOON * 3, || {
        let (served, control) = served(0);
        let mut shared = ring(&served.socket(), 2);
        let mut one = Client::new(shared.client().unwrap(), "one");
        let mut other = Client::new(shared.client().unwrap(), "other");
        one.write(b"1").unwrap();
        control.hold(true);
        let syncing = Syncing::begin(one);
        control.wait_for(1);
        let other = at_once("the other lane", move || {
            other.write(b"2").unwrap();
            other
        });
        syncing.assert_waits();
        control.hold(false);
        assert_eq!(syncing.end().1, Ok(()));
        drop((other, shared));
        assert!(served.end().is_some());
    });
}

/// The client that asked gets the error. The volume then takes no more changes, as after any flush
/// that failed, and can be read.
#[test]
fn an_error_reaches_who_asked() {
    within(SOON * 3, || {
        let (served, control) = served(1);
        let mut all = clients(&served, 4);
        all.iter_mut().for_each(|client| assert_eq!(client.write(b"x"), Ok(1)));
        control.hold(true);
        let mut reader = all.pop().unwrap();
        let mut later = all.split_off(1);
        let first = Syncing::begin(all.remove(0));
        control.wait_for(1);
        later.iter_mut().for_each(|client| assert_eq!(client.write(b"y"), Ok(1)));
        let later: Vec<_> = later.into_iter().map(Syncing::begin).collect();
        control.hold(false);
        assert_eq!(first.end().1, Err(Errno::EIO));
        for syncing in later {
            assert_eq!(syncing.end().1, Err(Errno::EIO), "what it wrote may never be durable");
        }
        assert_eq!(reader.read(), Ok(b'x'), "who did not ask goes on reading");
        assert_eq!(reader.write(b"z"), Err(Errno::EIO));
        // But for the two copies of the header in which the volume remembers it.
        assert!(control.state().whole <= 2);
        drop(reader);
        assert!(served.end().is_some());
    });
}

#[test]
fn a_panic_while_waiting_ends_one_sync() {
    within(SOON * 3, || {
        let (served, control) = served(0);
        let mut client = clients(&served, 1).remove(0);
        client.write(b"1").unwrap();
        control.state().panics = true;
        assert_eq!(client.fsync(), Err(Errno::EIO));
        client.write(b"2").unwrap();
        assert_eq!(client.fsync(), Ok(()));
        drop(client);
        assert_eq!(after_power_loss(served.end().unwrap(), &["f0"]), [Some(b'2')]);
    });
}

/// A server that is told to end while a sync is under way ends it first.
#[test]
fn shutting_down_waits_for_syncs() {
    within(SOON * 3, || {
        let (mut served, control) = served(0);
        let mut client = clients(&served, 1).remove(0);
        client.write(b"1").unwrap();
        control.hold(true);
        let syncing = Syncing::begin(client);
        control.wait_for(1);
        served.stop();
        // The connection may end before the answer comes.
        if let Ok(outcome) = syncing.outcome.recv_timeout(A_WHILE) {
            assert!(outcome.is_err(), "it was answered before it was durable");
        }
        control.hold(false);
        let fs = served.end().expect("nothing is left that uses it");
        assert_eq!(after_power_loss(fs, &["f0"]), [Some(b'1')]);
        syncing.thread.join().unwrap();
    });
}

#[test]
fn a_mount_goes_on_during_a_flush() {
    within(SOON * 3, || {
        if !in_namespace() {
            return;
        }
        let (mut served, control) = served(0);
        let at = served.mount();
        let synced = File::create(at.join("synced")).unwrap();
        synced.write_all_at(b"synced", 0).unwrap();
        control.hold(true);
        let (tell, outcome) = channel();
        let thread = thread::spawn(move || {
            let _ = tell.send(synced.sync_all());
        });
        control.wait_for(1);
        let path = at.clone();
        at_once("a program of the mount", move || {
            fs::write(path.join("other"), b"other").unwrap();
            assert_eq!(fs::read(path.join("synced")).unwrap(), b"synced");
            assert_eq!(fs::read_dir(&path).unwrap().count(), 2);
        });
        assert!(outcome.recv_timeout(A_WHILE).is_err(), "it does not wait for the flush");
        control.hold(false);
        outcome.recv_timeout(SOON).expect("an answer").unwrap();
        thread.join().unwrap();
        assert_eq!(control.counts(), (1, 0));
        let fs = served.end().unwrap();
        assert_eq!(after_power_loss(fs, &["synced"]), [Some(b's')]);
    });
}

/// Writes below `at` with O_DSYNC and O_SYNC, through the page cache where there is one and past
/// it: each is one flush.
fn write_durably(at: &Path, control: &Control) {
    for (i, flags) in [OFlags::DSYNC, OFlags::SYNC].into_iter().enumerate() {
        for (j, direct) in [OFlags::empty(), OFlags::DIRECT].into_iter().enumerate() {
            let mut options = File::options();
            options.write(true).create(true).custom_flags((flags | direct).bits() as i32);
            let file = options.open(at.join(format!("f{}", 2 * i + j))).unwrap();
            let (before, _) = control.counts();
            // Memory of O_DIRECT has to be aligned to what the host likes.
            let page = [0; 2 * 4096];
            let begin = page.as_ptr().align_offset(4096);
            file.write_all_at(&page[begin..begin + 4096], 0).unwrap();
            assert_eq!(control.counts(), (before + 1, 0), "{flags:?} {direct:?}");
        }
    }
}

#[test]
fn a_write_by_o_dsync_is_durable_when_it_returns() {
    within(SOON * 3, || {
        if !in_namespace() {
            return;
        }
        let files = ["f0", "f1", "f2", "f3"];
        let (mut served, control) = served(0);
        write_durably(&served.mount(), &control);
        assert_eq!(after_power_loss(served.end().unwrap(), &files), [Some(0); 4]);

        let (fs, control) = slow(&FormatOptions::default(), 0);
        let place = tempfile::tempdir().unwrap();
        let device = mount::open_device().unwrap();
        mount::mount(&device, place.path(), &mount_options(false)).unwrap();
        let volume = atoll_host::server::volume(fs, "volume");
        let server = SoleServer::start(volume, device, &SoleOptions::default()).unwrap();
        let thread = thread::spawn(move || server.run());
        write_durably(place.path(), &control);
        mount::detach(place.path()).unwrap();
        let ended = thread.join().unwrap();
        assert!(ended.error.is_none());
        assert_eq!(after_power_loss(ended.fs.unwrap(), &files), [Some(0); 4]);
    });
}
