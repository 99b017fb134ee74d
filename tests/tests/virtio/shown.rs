//! A process as the guest of a device with a window: what it reads and writes there.

use std::time::Duration;

use atoll_host::guest::{GuestFs, attach_with};
use atoll_server::route::kernel::KernelOptions;
use atoll_tests::{Quirks, Subject, filesystem_conformance_subjects, fixtures};
use atoll_vfs::model::ModelFs;
use atoll_vfs::windowed::Policy;
use atoll_vfs::{Errno, FileSystem, Handle, Ino, Locks, Name, OpenFlags, SetAttr, verbs};

use super::{Ids, Options, Served};

const RANGE: u64 = 2 << 20;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// All that can go by the window does.
const ALL: Policy = Policy { range: RANGE, least: 1, least_asked: 1, worth: 0, ahead: 2, batch: 2 };
/// Nothing does.
const NONE: Policy = Policy { least: usize::MAX, least_asked: usize::MAX, ..ALL };

/// A server with a window of so many ranges.
fn served(ranges: u64) -> Served {
    Served::new(with_window(ranges))
}

fn with_window(ranges: u64) -> Options {
    Options { window: ranges * RANGE, ids: Ids::Guest, ..Options::default() }
}

fn guest(served: &Served, socket: &str, policy: Policy) -> GuestFs {
    attach_with(&served.folder.path().join(socket), policy).unwrap()
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// So many bytes, of which each mebibyte differs.
fn data(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 3) as u8 ^ (at >> 16) as u8).collect()
}

/// A new file with this content, whose first read and write have been made.
fn fill(fs: &mut GuestFs, called: &str, content: &[u8]) -> (Ino, Handle) {
    let cx = fixtures::cx();
    let (attr, handle) = fs.create(&cx, Ino::ROOT, name(called), 0o666, RW).unwrap();
    assert_eq!(fs.write(&cx, attr.ino, handle, 0, content).unwrap().len, content.len());
    fs.read(&cx, attr.ino, handle, 0, &mut [0]).unwrap();
    (attr.ino, handle)
}

/// Opens a file, and makes the first read and write.
fn find(fs: &mut GuestFs, called: &str, flags: OpenFlags) -> (Ino, Handle) {
    let cx = fixtures::cx();
    let ino = fs.lookup(&cx, Ino::ROOT, name(called)).unwrap().ino;
    (ino, fs.open(&cx, ino, flags).unwrap())
}

fn read(fs: &mut GuestFs, (ino, handle): (Ino, Handle), at: u64, len: usize) -> Vec<u8> {
    let mut found = vec![0xee; len];
    let read = fs.read(&fixtures::cx(), ino, handle, at, &mut found).unwrap();
    found.truncate(read);
    found
}

fn write(fs: &mut GuestFs, (ino, handle): (Ino, Handle), at: u64, data: &[u8]) {
    let written = fs.write(&fixtures::cx(), ino, handle, at, data).unwrap();
    assert_eq!((written.len, written.offset), (data.len(), at));
}

fn cut(fs: &mut GuestFs, ino: Ino, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    assert_eq!(fs.setattr(&fixtures::cx(), ino, None, &set).unwrap().size, size);
}

/// A client that ends with its server.
struct Attached {
    fs: GuestFs,
    _served: Served,
}

macro_rules! inner {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        FileSystem::$verb(&mut $self.fs, $($arg),*)
    };
}

impl FileSystem for Attached {
    verbs!(inner: all);

    fn shared_locks(&mut self) -> Option<&mut dyn Locks> {
        self.fs.shared_locks()
    }
}

fn client() -> Option<Subject> {
    client_of(with_window(4))
}

/// One that is told of changes too, and keeps how long files are.
fn told_client() -> Option<Subject> {
    client_of(Options { tells: true, ..with_window(4) })
}

fn client_of(options: Options) -> Option<Subject> {
    let served = Served::with(fixtures::volume(16 << 10), options);
    let fs = guest(&served, "guest", ALL);
    let quirks =
        Quirks { caller_time: false, ownership: false, finds_itself: true, ..Quirks::default() };
    Some(Subject::new(Attached { fs, _served: served }, quirks))
}

filesystem_conformance_subjects!(conformance, client);
filesystem_conformance_subjects!(told_conformance, told_client);

/// Two guests, one of which has a window, and the model: the same comes of each call.
#[test]
fn two_guests_by_chance() {
    two_guests(served(3));
}

/// The same where each keeps what it has not been told to forget.
#[test]
fn two_told_guests_by_chance() {
    two_guests(Served::new(Options { tells: true, ..with_window(3) }));
}

fn two_guests(served: Served) {
    let mut own = guest(&served, "guest", ALL);
    let mut other = guest(&served, "other", NONE);
    let mut model = ModelFs::default();
    let cx = fixtures::cx();
    let content = data(5 * RANGE as usize);
    let file = fill(&mut own, "f", &content);
    let theirs = find(&mut other, "f", RW);
    let (attr, handle) = model.create(&cx, Ino::ROOT, name("f"), 0o666, RW).unwrap();
    model.write(&cx, attr.ino, handle, 0, &content).unwrap();
    let mut rng = atoll_tests::rng::Rng::new(7);
    for step in 0..600u64 {
        let (at, len) = (rng.within(0..5 * RANGE), 1 + rng.within(0..300_000) as usize);
        let bytes: Vec<u8> = (0..len).map(|byte| (byte as u64 + 31 * step) as u8).collect();
        match rng.within(0..12) {
            0 => {
                cut(&mut own, file.0, at + RANGE);
                cut_model(&mut model, attr.ino, at + RANGE);
            }
            1 => {
                cut(&mut other, file.0, at);
                cut_model(&mut model, attr.ino, at);
            }
            2 | 3 => {
                write(&mut other, theirs, at, &bytes);
                model.write(&cx, attr.ino, handle, at, &bytes).unwrap();
            }
            4..=7 => {
                write(&mut own, file, at, &bytes);
                model.write(&cx, attr.ino, handle, at, &bytes).unwrap();
            }
            _ => {
                let mut expected = vec![0; len];
                let read_there = model.read(&cx, attr.ino, handle, at, &mut expected).unwrap();
                expected.truncate(read_there);
                assert!(read(&mut own, file, at, len) == expected, "{step}: {at} {len}");
                assert!(read(&mut other, theirs, at, len) == expected, "{step}: {at} {len}");
            }
        }
    }
    assert!(own.copied() > 4 << 20, "{} bytes went by the window", own.copied());
    assert_eq!(other.copied(), 0);
    // All of it is in the volume when the guests have gone.
    let size = model.getattr(&cx, attr.ino).unwrap().size;
    let mut expected = vec![0; size as usize];
    model.read(&cx, attr.ino, handle, 0, &mut expected).unwrap();
    drop((own.into_inner().disconnect(), other.into_inner().disconnect()));
    let mut fs = served.end();
    let ino = fs.lookup(&cx, Ino::ROOT, name("f")).unwrap().ino;
    let handle = fs.open(&cx, ino, OpenFlags::READ).unwrap();
    let mut found = vec![0; size as usize + 10];
    assert_eq!(fs.read(&cx, ino, handle, 0, &mut found), Ok(size as usize));
    assert!(found[..size as usize] == expected);
}

fn cut_model(model: &mut ModelFs, ino: Ino, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    model.setattr(&fixtures::cx(), ino, None, &set).unwrap();
}

/// What a guest may not write it is not shown: copies would not follow the file.
#[test]
fn of_a_device_to_read() {
    let options = Options { window: 4 * RANGE, read_only: true, ..Options::default() };
    let served = Served::new(options);
    let mut other = guest(&served, "other", ALL);
    let content = data(3 * RANGE as usize);
    let theirs = fill(&mut other, "f", &content);
    let mut own = guest(&served, "guest", ALL);
    let file = find(&mut own, "f", OpenFlags::READ);
    for round in 0..4u8 {
        write(&mut other, theirs, RANGE, &[round; 1000]);
        assert_eq!(read(&mut own, file, RANGE, 1000), [round; 1000]);
    }
    assert_eq!(own.copied(), 0);
    assert!(other.copied() > 0);
}

/// A file that is unlinked takes no storage when its last handle has gone, shown or not.
#[test]
fn what_is_unlinked_goes_with_its_last_handle() {
    let served = served(4);
    let mut fs = guest(&served, "guest", ALL);
    let cx = fixtures::cx();
    let free = fs.statfs(&cx).unwrap().blocks_free;
    let file = fill(&mut fs, "f", &data(3 * RANGE as usize));
    write(&mut fs, file, 100, b"stored");
    fs.unlink(&cx, Ino::ROOT, name("f")).unwrap();
    assert_eq!(read(&mut fs, file, 100, 6), b"stored");
    assert!(fs.copied() >= 12);
    fs.release(&cx, file.0, file.1).unwrap();
    let begin = std::time::Instant::now();
    loop {
        let left = free - fs.statfs(&cx).unwrap().blocks_free;
        // Tables may have grown.
        if left < 16 {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{left} blocks are not free");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Who closes a file that it wrote by the window leaves the time of that, and no later one.
#[test]
fn times_are_right_when_the_file_is_closed() {
    let served = served(4);
    let mut fs = guest(&served, "guest", ALL);
    let mut other = guest(&served, "other", NONE);
    let cx = fixtures::cx();
    let file = fill(&mut fs, "f", &data(2 * RANGE as usize));
    let before = other.getattr(&cx, file.0).unwrap().mtime;
    let copied = fs.copied();
    write(&mut fs, file, 100, b"stored");
    assert_eq!(fs.copied(), copied + 6);
    let seen = fs.getattr(&cx, file.0).unwrap().mtime;
    assert!(seen > before, "its own program sees it");
    write(&mut fs, file, 200, b"stored");
    fs.release(&cx, file.0, file.1).unwrap();
    let closed = other.getattr(&cx, file.0).unwrap().mtime;
    assert!(closed > seen, "everybody does once it is closed");
    // The server writes stores back every second.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(other.getattr(&cx, file.0).unwrap().mtime, closed);
    // A time that is set stays.
    let file = find(&mut fs, "f", RW);
    write(&mut fs, file, 0, b"first");
    write(&mut fs, file, 0, b"by the window");
    let set = SetAttr { mtime: Some(atoll_vfs::SetTime::To(before)), ..SetAttr::default() };
    fs.setattr(&cx, file.0, Some(file.1), &set).unwrap();
    fs.release(&cx, file.0, file.1).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(other.getattr(&cx, file.0).unwrap().mtime, before);
}

/// The end of the server is an error, also of what is shown.
#[test]
fn a_device_that_goes_with_its_window() {
    let served = served(4);
    let mut fs = guest(&served, "guest", ALL);
    let file = fill(&mut fs, "f", &data(2 * RANGE as usize));
    write(&mut fs, file, 100, b"stored");
    assert_eq!(read(&mut fs, file, 100, 6), b"stored");
    drop(served.end());
    let cx = fixtures::cx();
    assert_eq!(fs.read(&cx, file.0, file.1, 100, &mut [0; 6]), Err(Errno::EIO));
    assert_eq!(fs.write(&cx, file.0, file.1, 100, b"more"), Err(Errno::EIO));
    assert_eq!(fs.fsync(&cx, file.0, file.1, false), Err(Errno::EIO));
    let _ = fs.release(&cx, file.0, file.1);
    fs.into_inner().disconnect();
}

/// Prints how long reads and writes take by messages and by the window.
#[test]
#[ignore = "measures"]
fn how_long_calls_take() {
    const LEN: u64 = 24 << 20;
    let served = |seconds| {
        let kernel = KernelOptions { untold: Some(seconds), ..KernelOptions::default() };
        let window = 32 * RANGE;
        let options = Options { window, kernel, ids: Ids::Guest, ..Options::default() };
        Served::with(fixtures::volume(128 << 10), options)
    };
    let (asked, kept) = (served(0), served(1));
    let ways =
        [(&asked, NONE, "messages"), (&asked, ALL, "window, asking"), (&kept, ALL, "window")];
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    for len in [512, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 1 << 20] {
        for (served, policy, way) in ways {
            let mut fs = guest(served, "guest", policy);
            let mut cx = fixtures::cx();
            let file = fill(&mut fs, "f", &data(LEN as usize));
            let mut buf = vec![1; len];
            let calls = LEN / len as u64;
            let mut pass = |fs: &mut GuestFs, write: bool| {
                let begun = std::time::Instant::now();
                for at in 0..calls {
                    let at = (at * 7919 % calls) * len as u64;
                    let now = clock();
                    cx.now.sec = now.as_secs() as i64;
                    cx.now.nsec = now.subsec_nanos();
                    match write {
                        true => {
                            assert_eq!(fs.write(&cx, file.0, file.1, at, &buf).unwrap().len, len)
                        }
                        false => assert_eq!(fs.read(&cx, file.0, file.1, at, &mut buf), Ok(len)),
                    }
                }
                begun.elapsed().as_secs_f64() * 1e6 / calls as f64
            };
            let first = pass(&mut fs, false);
            let reads: Vec<f64> = (0..7).map(|_| pass(&mut fs, false)).collect();
            let writes: Vec<f64> = (0..7).map(|_| pass(&mut fs, true)).collect();
            let median = |mut all: Vec<f64>| {
                all.sort_unstable_by(f64::total_cmp);
                all[all.len() / 2]
            };
            println!(
                "{len} bytes by {way}: read {:.1} us (first {first:.1}), write {:.1} us; copied {}",
                median(reads),
                median(writes),
                fs.copied() >> 20
            );
            fs.release(&cx, file.0, file.1).unwrap();
            fs.unlink(&cx, Ino::ROOT, name("f")).unwrap();
            fs.into_inner().disconnect();
        }
    }
}
