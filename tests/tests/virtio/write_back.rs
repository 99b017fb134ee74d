//! A guest that has its volume alone and writes back: the driver sends what Linux sends with
//! FUSE_WRITEBACK_CACHE.

use atoll_vfs::{Context, OpenFlags, SetAttr};

use super::*;

const FUSE_SETATTR: u32 = 4;
const FUSE_FLUSH: u32 = 25;
const FUSE_LSEEK: u32 = 46;

const WRITEBACK_CACHE: u32 = 1 << 16;
const WRITE_CACHE: u32 = 1;
const DIRECT_IO: u32 = 1;

const O_WRONLY: u32 = 1;
const O_APPEND: u32 = 0o2000;

const FATTR_SIZE: u32 = 1 << 3;
const FATTR_ATIME: u32 = 1 << 4;
const FATTR_ATIMES_NOW: u32 = FATTR_ATIME | 1 << 7;
const FATTR_MTIME: u32 = 1 << 5;
const FATTR_FH: u32 = 1 << 6;
const FATTR_CTIME: u32 = 1 << 10;

const EBADF: i32 = 9;
const ENOSPC: i32 = 28;
const ENOSYS: i32 = 38;

type File = (u64, u64);

fn alone() -> Options {
    let kernel =
        KernelOptions { others: Others::None, untold: Some(0), ..KernelOptions::default() };
    Options { kernel, ..Options::default() }
}

/// A guest that offers to write back, and whether that is agreed.
fn offering(served: &Served) -> (Guest, bool) {
    let mut guest = Guest::connect(&served.socket(), Setup::default());
    let agreed = guest.init_offering(WRITEBACK_CACHE);
    (guest, agreed & WRITEBACK_CACHE != 0)
}

/// Makes a file that is open for writing alone.
fn create_to_write(guest: &mut Guest, called: &str) -> File {
    let words = [O_WRONLY, 0o100644, 0, 0].map(u32::to_le_bytes).concat();
    let (error, body) = guest.ask(FUSE_CREATE, 1, &[words, name(called)].concat(), 0).unwrap();
    assert_eq!(error, 0, "{called}");
    (word(&body, 0), word(&body, 128))
}

/// Opens a file for writing alone; the file, and the flags of the answer.
fn open_to_write(guest: &mut Guest, ino: u64) -> (File, u32) {
    let flags = [O_WRONLY, 0].map(u32::to_le_bytes).concat();
    let (error, body) = guest.ask(FUSE_OPEN, ino, &flags, 0).unwrap();
    assert_eq!(error, 0);
    ((ino, word(&body, 0)), word(&body, 8) as u32)
}

/// Writes with these flags of the request, and of the open file.
fn write_with(
    guest: &mut Guest,
    file: File,
    (cache, flags): (u32, u32),
    to: u64,
    data: &[u8],
) -> i32 {
    let head = [file.1, to].map(u64::to_le_bytes).concat();
    let words = [data.len() as u32, cache].map(u32::to_le_bytes).concat();
    let tail = [flags, 0].map(u32::to_le_bytes).concat();
    let body = [&head[..], &words, &0u64.to_le_bytes(), &tail, data].concat();
    guest.ask(FUSE_WRITE, file.0, &body, 0).unwrap().0
}

/// Writes pages back.
fn back(guest: &mut Guest, file: File, offset: u64, data: &[u8]) -> i32 {
    write_with(guest, file, (WRITE_CACHE, 0), offset, data)
}

fn try_read(guest: &mut Guest, (ino, handle): File, offset: u64, size: usize) -> (i32, Vec<u8>) {
    let head = [handle, offset].map(u64::to_le_bytes).concat();
    let words = [size as u32, 0].map(u32::to_le_bytes).concat();
    let body = [&head[..], &words, &[0; 16]].concat();
    guest.ask(FUSE_READ, ino, &body, size).unwrap()
}

/// Sets size or times; what the file has then.
fn set(guest: &mut Guest, file: File, valid: u32, size: u64, mtime: (u64, u32)) -> (i32, Vec<u8>) {
    let head = [valid, 0].map(u32::to_le_bytes).concat();
    // Handle, size, owner of locks, times.
    let long = [file.1, size, 0, 0, mtime.0, 5].map(u64::to_le_bytes).concat();
    let short = [0, mtime.1, 5, 0, 0, 0, 0, 0].map(u32::to_le_bytes).concat();
    guest.ask(FUSE_SETATTR, file.0, &[head, long, short].concat(), 0).unwrap()
}

/// The length and the mtime in an answer with attributes.
fn size_and_mtime(attr: &[u8]) -> (u64, (u64, u32)) {
    let nanoseconds = word(attr, 68) as u32;
    (word(attr, 24), (word(attr, 48), nanoseconds))
}

/// What the volume has in the file `called`, its mtime beside it.
fn found(fs: &mut Fs<RamDevice>, called: &str) -> (Vec<u8>, (i64, u32)) {
    let cx = fixtures::cx();
    let attr = fs.lookup(&cx, Ino::ROOT, Name::new(called.as_bytes()).unwrap()).unwrap();
    let handle = fs.open(&cx, attr.ino, OpenFlags::READ).unwrap();
    let mut bytes = vec![0; attr.size as usize];
    assert_eq!(fs.read(&cx, attr.ino, handle, 0, &mut bytes), Ok(bytes.len()));
    (bytes, (attr.mtime.sec, attr.mtime.nsec))
}

/// The kernel says what a file has, how long it is and when that was.
#[test]
fn a_guest_that_is_alone_writes_back() {
    let served = Served::new(alone());
    let (mut guest, agreed) = offering(&served);
    assert!(agreed);
    let file = create_to_write(&mut guest, "f");
    // Pages make it longer, in any order, and it reads the rest of one that it writes in part.
    assert_eq!(back(&mut guest, file, 8192, &[3; 1000]), 0);
    assert_eq!(back(&mut guest, file, 0, &[1; 4096]), 0);
    assert_eq!(try_read(&mut guest, file, 4096, 4096), (0, vec![0; 4096]));
    assert_eq!(try_read(&mut guest, file, 8192, 4096), (0, vec![3; 1000]));
    // An append goes where the kernel says, which has pages that are not here yet.
    let appends = (0, O_APPEND);
    assert_eq!(write_with(&mut guest, file, appends, 20_000, b"append"), 0);
    assert_eq!(back(&mut guest, file, 9192, &[4; 10_808]), 0);
    // The times come after the pages.
    let times = FATTR_MTIME | FATTR_CTIME | FATTR_FH;
    let (error, attr) = set(&mut guest, file, times, 0, (1_000_000_000, 123_456_789));
    assert_eq!((error, size_and_mtime(&attr)), (0, (20_006, (1_000_000_000, 123_456_789))));
    // What it would ask for beside its pages.
    let body = [file.1, 0].map(u64::to_le_bytes).concat();
    let seek = [&body[..], &3u32.to_le_bytes(), &[0; 4]].concat();
    assert_eq!(guest.ask(FUSE_LSEEK, file.0, &seek, 0).unwrap().0, ENOSYS);
    let flush = [&file.1.to_le_bytes()[..], &[0; 16]].concat();
    assert_eq!(guest.ask(FUSE_FLUSH, file.0, &flush, 0).unwrap().0, ENOSYS);
    // Opened to be written alone, by an inode that it knows; cut, and longer again.
    let (second, flags) = open_to_write(&mut guest, file.0);
    assert_eq!(flags & DIRECT_IO, 0);
    let (error, attr) = set(&mut guest, second, FATTR_SIZE | FATTR_FH, 5000, (0, 0));
    assert_eq!((error, size_and_mtime(&attr).0), (0, 5000));
    assert_eq!(back(&mut guest, second, 8192, b"end"), 0);
    assert_eq!(try_read(&mut guest, second, 4090, 2000), (0, [vec![1; 6], vec![0; 1994]].concat()));
    let (error, _) = set(&mut guest, second, times, 0, (1_000_000_001, 5));
    assert_eq!(error, 0);
    // Written in the tick of the kernel's clock that it has sent already.
    assert_eq!(back(&mut guest, second, 8195, b", end"), 0);
    assert_eq!(write_with(&mut guest, second, (0, 0), 8200, b", end"), 0);
    let sync = [&second.1.to_le_bytes()[..], &[0; 8]].concat();
    assert_eq!(guest.ask(FUSE_FSYNC, second.0, &sync, 0).unwrap().0, 0);
    drop(guest);
    let expected = [vec![1; 4096], vec![0; 4096], b"end, end, end".to_vec()].concat();
    assert_eq!(found(&mut served.end(), "f"), (expected, (1_000_000_001, 5)));
}

/// A guest that does not offer it, or is not alone, or has a window, is served as before.
#[test]
fn others_write_through() {
    let shared = |untold| Options {
        kernel: KernelOptions { untold: Some(untold), ..KernelOptions::default() },
        ..Options::default()
    };
    let window = 16 << 20;
    let in_window = KernelOptions { window: true, ..alone().kernel };
    let cases = [
        ("does not offer it", alone(), 0),
        ("shares it", shared(0), WRITEBACK_CACHE),
        ("caches for a while", shared(5), WRITEBACK_CACHE),
        ("has a window", Options { kernel: in_window, window, ..alone() }, WRITEBACK_CACHE),
    ];
    for (case, options, offers) in cases {
        let served = Served::new(options);
        let mut guest = Guest::connect(&served.socket(), Setup::default());
        assert_eq!(guest.init_offering(offers) & WRITEBACK_CACHE, 0, "{case}");
        let file = create_to_write(&mut guest, "f");
        assert_eq!(write_with(&mut guest, file, (0, 0), 0, b"0123"), 0, "{case}");
        // Pages of a mapping make no file longer, an append goes to the end.
        assert_eq!(back(&mut guest, file, 2, b"abcd"), 0, "{case}");
        assert_eq!(write_with(&mut guest, file, (0, O_APPEND), 100, b"end"), 0, "{case}");
        assert_eq!(try_read(&mut guest, file, 0, 10).0, EBADF, "{case}");
        let body = [file.1, 0].map(u64::to_le_bytes).concat();
        let seek = [&body[..], &3u32.to_le_bytes(), &[0; 4]].concat();
        assert_eq!(guest.ask(FUSE_LSEEK, file.0, &seek, 0).unwrap().0, 0, "{case}");
        drop(guest);
        assert_eq!(found(&mut served.end(), "f").0, b"01abend", "{case}");
    }
    // A guest that may only look has nothing to write.
    let unchanging = KernelOptions { unchanging: true, ..alone().kernel };
    for kernel in [unchanging, alone().kernel] {
        let served = Served::new(Options { kernel, read_only: true, ..Options::default() });
        assert!(!offering(&served).1);
        served.end();
    }
}

/// What does not fit is said of the whole request: Linux does not look how much of one it was.
#[test]
fn a_full_volume_says_so() {
    let mut fs = fixtures::volume(1 << 10);
    let all = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    fs.setattr(&fixtures::cx(), Ino::ROOT, None, &all).unwrap();
    let served = Served::with(fs, alone());
    let (mut guest, agreed) = offering(&served);
    assert!(agreed);
    let file = create_to_write(&mut guest, "f");
    let chunk = vec![7; 48 << 10];
    let mut size = 0;
    let error = loop {
        match back(&mut guest, file, size, &chunk) {
            0 => size += chunk.len() as u64,
            error => break error,
        }
        assert!(size < 8 << 20, "a volume of 4 MiB holds it");
    };
    assert_eq!(error, ENOSPC);
    // There is room again, and it goes on.
    assert_eq!(set(&mut guest, file, FATTR_SIZE | FATTR_FH, 0, (0, 0)).0, 0);
    assert_eq!(back(&mut guest, file, 0, &chunk), 0);
    drop(guest);
    assert_eq!(found(&mut served.end(), "f").0, chunk);
}

/// A guest that acts as a user who may write a file, and neither read nor own it: its kernel gets
/// no page of it, and the time of the write-back is that of the file.
#[test]
fn rights_stay_what_they_are() {
    let mut fs = fixtures::open_to_all();
    let cx = Context { uid: 7, gid: 7, ..fixtures::cx() };
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let (attr, _) = fs.create(&cx, Ino::ROOT, Name::new(b"f").unwrap(), 0o622, both).unwrap();
    let served = Served::with(fs, Options { ids: Ids::Fixed(1000, 1000), ..alone() });
    let (mut guest, agreed) = offering(&served);
    assert!(agreed);
    let (error, entry) = guest.ask(FUSE_LOOKUP, 1, &name("f"), 0).unwrap();
    assert_eq!((error, word(&entry, 0)), (0, attr.ino.0));
    let (file, flags) = open_to_write(&mut guest, attr.ino.0);
    assert_eq!(flags & DIRECT_IO, DIRECT_IO);
    assert_eq!(try_read(&mut guest, file, 0, 10).0, EBADF);
    assert_eq!(write_with(&mut guest, file, (0, 0), 0, b"written"), 0);
    let times = FATTR_MTIME | FATTR_CTIME | FATTR_FH;
    let (error, set_to) = set(&mut guest, file, times, 0, (1, 1));
    assert_eq!(error, 0, "Linux would have fsync(2) fail");
    let (size, mtime) = size_and_mtime(&set_to);
    assert!(size == 7 && mtime.0 > 1, "{mtime:?}");
    // A program that asks for it is refused.
    assert_ne!(set(&mut guest, file, FATTR_MTIME | FATTR_CTIME, 0, (1, 1)).0, 0);
    // A file of its own has the times that it says.
    let own = create_to_write(&mut guest, "own");
    let (error, attr) = set(&mut guest, own, times, 0, (1, 1));
    assert_eq!((error, size_and_mtime(&attr).1), (0, (1, 1)));
    drop(guest);
    assert_eq!(found(&mut served.end(), "f").0, b"written");
}

/// A guest that acts as a user who may read and write a file, and does not own it. Linux says times
/// by its clock where without write-back it asks for the present.
#[test]
fn who_may_write_sets_the_times_of_writing() {
    let mut fs = fixtures::open_to_all();
    let cx = Context { uid: 7, gid: 7, ..fixtures::cx() };
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let (attr, _) = fs.create(&cx, Ino::ROOT, Name::new(b"f").unwrap(), 0o666, both).unwrap();
    let made = (attr.mtime.sec as u64, attr.mtime.nsec);
    let served = Served::with(fs, Options { ids: Ids::Fixed(1000, 1000), ..alone() });
    let (mut guest, agreed) = offering(&served);
    assert!(agreed);
    let (error, entry) = guest.ask(FUSE_LOOKUP, 1, &name("f"), 0).unwrap();
    assert_eq!((error, word(&entry, 0)), (0, attr.ino.0));
    let (file, flags) = open_to_write(&mut guest, attr.ino.0);
    assert_eq!(flags & DIRECT_IO, 0);
    assert_eq!(back(&mut guest, file, 0, b"written"), 0);
    let times = FATTR_MTIME | FATTR_CTIME;
    let written = |guest: &mut Guest, time| {
        let (error, attr) = set(guest, file, times | FATTR_FH, 0, time);
        assert_eq!(error, 0, "Linux would have fsync(2) fail");
        size_and_mtime(&attr)
    };
    // The time at which the kernel says that it was written, if that can be.
    let said = (made.0 + 100, 7);
    assert_eq!(written(&mut guest, said), (7, said));
    assert_eq!(written(&mut guest, made), (7, said), "it was written later");
    let (_, now) = written(&mut guest, (1 << 33, 0));
    assert!(said < now && now.0 < 1 << 33, "{now:?} is to come");
    // truncate(2) and ftruncate(2), and utimes(2) with no times.
    for (valid, size) in [(FATTR_SIZE, 5), (FATTR_SIZE | FATTR_FH, 3), (FATTR_ATIMES_NOW, 3)] {
        let (error, attr) = set(&mut guest, file, valid | times, size, said);
        assert_eq!(error, 0, "{valid:#x}");
        let (found, mtime) = size_and_mtime(&attr);
        assert!(found == size && mtime >= now, "{valid:#x}: {found}, {mtime:?}");
    }
    // A program that asks for a time is refused.
    assert_ne!(set(&mut guest, file, times, 0, said).0, 0);
    assert_ne!(set(&mut guest, file, times | FATTR_ATIME, 0, said).0, 0);
    // So is one that has the file open to read it alone.
    let reads = [0u32, 0].map(u32::to_le_bytes).concat();
    let (error, body) = guest.ask(FUSE_OPEN, file.0, &reads, 0).unwrap();
    assert_eq!(error, 0);
    assert_ne!(set(&mut guest, (file.0, word(&body, 0)), times | FATTR_FH, 0, said).0, 0);
    drop(guest);
    assert_eq!(found(&mut served.end(), "f").0, b"wri");
}

/// A guest that goes on at another server, which agrees to the same.
#[test]
fn it_moves() {
    let first = Served::new(alone());
    let (mut guest, agreed) = offering(&first);
    assert!(agreed);
    let file = create_to_write(&mut guest, "f");
    assert_eq!(back(&mut guest, file, 0, &[1; 4096]), 0);
    let state = guest.save().unwrap();
    guest.go_away();
    let second = Served::with(first.end(), alone());
    guest.move_to(&second.socket(), &state).unwrap();
    assert_eq!(back(&mut guest, file, 4096, &[2; 4096]), 0);
    assert_eq!(
        try_read(&mut guest, file, 4000, 200),
        (0, [[1; 96].to_vec(), [2; 104].to_vec()].concat())
    );
    assert_eq!(write_with(&mut guest, file, (0, O_APPEND), 10_000, b"x"), 0);
    drop(guest);
    assert_eq!(found(&mut second.end(), "f").0.len(), 10_001);
}
