//! A process as the guest of a device that tells of changes: it keeps what it learns, asks nothing
//! twice, and whoever changes something does not wait for it to call.

use atoll_host::guest::{GuestFs, attach};
use atoll_vfs::{Errno, Handle, OpenFlags, RenameFlags, SetAttr};

use super::*;

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// A server leases nothing again for 100 ms of what it has told of.
const REST: Duration = Duration::from_millis(110);

fn told() -> Served {
    Served::new(Options { tells: true, ids: Ids::Guest, ..Options::default() })
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
    atoll_vfs::verbs!(inner: all);

    fn shared_locks(&mut self) -> Option<&mut dyn atoll_vfs::Locks> {
        self.fs.shared_locks()
    }
}

fn client() -> Option<Subject> {
    let options = Options { tells: true, ids: Ids::Guest, ..Options::default() };
    let served = Served::with(fixtures::volume(16 << 10), options);
    let fs = attach(&served.socket()).unwrap();
    let quirks =
        Quirks { caller_time: false, ownership: false, finds_itself: true, ..Quirks::default() };
    Some(Subject::new(Attached { fs, _served: served }, quirks))
}

filesystem_conformance_subjects!(conformance, client);

fn called(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// Makes a file with `data`, and returns it open.
fn make(fs: &mut dyn FileSystem, name: &str, data: &[u8]) -> (Ino, Handle) {
    let cx = fixtures::cx();
    let (attr, handle) = fs.create(&cx, Ino::ROOT, called(name), 0o666, BOTH).unwrap();
    assert_eq!(fs.write(&cx, attr.ino, handle, 0, data).unwrap().len, data.len());
    (attr.ino, handle)
}

fn read(fs: &mut dyn FileSystem, (ino, handle): (Ino, Handle)) -> Result<Vec<u8>, Errno> {
    let mut data = vec![0; 60_000];
    let len = fs.read(&fixtures::cx(), ino, handle, 0, &mut data)?;
    data.truncate(len);
    Ok(data)
}

#[test]
fn what_is_known_takes_no_request() {
    let served = told();
    let mut ring = served.ring();
    let mut other = ring.client().unwrap();
    let data: Vec<u8> = (0..50_000u32).map(|at| (at / 9) as u8).collect();
    let (ino, _) = make(&mut other, "f", &data);
    let mut fs = attach(&served.socket()).unwrap();
    let cx = fixtures::cx();
    let use_all = |fs: &mut GuestFs, handle| {
        assert_eq!(fs.lookup(&cx, Ino::ROOT, called("f")).unwrap().ino, ino);
        assert_eq!(fs.getattr(&cx, ino).unwrap().size, 50_000);
        assert!(read(fs, (ino, handle)).unwrap() == data);
    };
    fs.getattr(&cx, Ino::ROOT).unwrap();
    fs.lookup(&cx, Ino::ROOT, called("f")).unwrap();
    let handle = fs.open(&cx, ino, OpenFlags::READ).unwrap();
    use_all(&mut fs, handle);
    let (begun, before) = (Instant::now(), fs.inner().requests());
    for _ in 0..5000 {
        use_all(&mut fs, handle);
    }
    // What is known is known for a second.
    let (seconds, sent) = (begun.elapsed().as_secs(), fs.inner().requests() - before);
    assert!(sent <= 5 * (seconds + 1), "{sent} requests in {seconds} s");
    fs.into_inner().disconnect();

    // Of a device that tells of nothing nothing is kept.
    let served = Served::new(Options::default());
    let mut fs = attach(&served.socket()).unwrap();
    let (ino, _) = make(&mut fs, "f", &data);
    let handle = fs.open(&cx, ino, OpenFlags::READ).unwrap();
    let before = fs.inner().requests();
    for _ in 0..10 {
        fs.lookup(&cx, Ino::ROOT, called("f")).unwrap();
        fs.getattr(&cx, ino).unwrap();
        assert!(read(&mut fs, (ino, handle)).unwrap() == data);
    }
    assert_eq!(fs.inner().requests() - before, 30);
}

/// A guest that calls nothing does what it is told all the same: its session would end otherwise.
#[test]
fn a_guest_that_rests_holds_nobody_up() {
    let served = told();
    let mut ring = served.ring();
    let mut other = ring.client().unwrap();
    let cx = fixtures::cx();
    let mut fs = attach(&served.socket()).unwrap();
    let mut numbers = Vec::new();
    for number in 0..100u8 {
        let name = format!("f{number}");
        let (ino, handle) = make(&mut other, &name, &[number; 100]);
        assert_eq!(fs.lookup(&cx, Ino::ROOT, called(&name)).unwrap().size, 100);
        let reads = fs.open(&cx, ino, OpenFlags::READ).unwrap();
        assert_eq!(read(&mut fs, (ino, reads)).unwrap(), [number; 100]);
        numbers.push((name, ino, handle, reads));
    }
    for (name, ino, handle, _) in &numbers {
        other.write(&cx, *ino, *handle, 50, &[200; 100]).unwrap();
        let to = format!("{name}-moved");
        let none = RenameFlags::empty();
        other.rename(&cx, Ino::ROOT, called(name), Ino::ROOT, called(&to), none).unwrap();
    }
    fs.statfs(&cx).expect("its session goes on");
    for (number, (name, ino, _, reads)) in numbers.iter().enumerate() {
        assert_eq!(fs.lookup(&cx, Ino::ROOT, called(name)), Err(Errno::ENOENT));
        assert_eq!(fs.getattr(&cx, *ino).unwrap().size, 150);
        let data = read(&mut fs, (*ino, *reads)).unwrap();
        assert_eq!((data[49], data[50], data.len()), (number as u8, 200, 150));
    }
    // That a server has ended is found out, though all is kept.
    drop((other, ring));
    std::thread::sleep(REST);
    fs.getattr(&cx, numbers[0].1).unwrap();
    served.end();
    let begun = Instant::now();
    while fs.getattr(&cx, numbers[0].1).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it goes on showing what it had");
    }
    assert_eq!(read(&mut fs, (numbers[0].1, numbers[0].3)), Err(Errno::EIO));
}

/// Two such guests and a client of a ring: what has returned to one the others see at once, and
/// what has not changed they do not ask for.
#[test]
fn what_one_has_changed_all_see() {
    let served = told();
    let mut ring = served.ring();
    let mut guests = ["guest", "other"].map(|socket| {
        let mut fs = attach(&served.folder.path().join(socket)).unwrap();
        fs.getattr(&fixtures::cx(), Ino::ROOT).unwrap();
        fs
    });
    let mut plain = ring.client().unwrap();
    let cx = fixtures::cx();
    let mut content = vec![1; 40_000];
    let (ino, handle) = make(&mut plain, "f", &content);
    let mut named = make(&mut plain, "n", b"").0;
    let [first, second] = &mut guests;
    let (mut writes, mut reads) = (vec![handle], Vec::new());
    for fs in [&mut *first, &mut *second] {
        assert_eq!(fs.lookup(&cx, Ino::ROOT, called("f")).unwrap().ino, ino);
        writes.push(fs.open(&cx, ino, OpenFlags::WRITE).unwrap());
        reads.push(fs.open(&cx, ino, OpenFlags::READ).unwrap());
    }
    reads.insert(0, handle);
    let mut rng = Rng::new(5);
    let mut quiet = 0;
    for round in 0..300u32 {
        let by = rng.within(0..3) as usize;
        {
            let all: [&mut dyn FileSystem; 3] = [&mut plain, first, second];
            match rng.within(0..4) {
                0 => {
                    let (at, byte) = (rng.within(0..50_000) as usize, round as u8);
                    let len = rng.within(1..5000) as usize;
                    let piece = vec![byte; len];
                    let written = all[by].write(&cx, ino, writes[by], at as u64, &piece).unwrap();
                    assert_eq!(written.len, len);
                    content.resize(content.len().max(at + len), 0);
                    content[at..at + len].copy_from_slice(&piece);
                }
                1 => {
                    let size = rng.within(0..50_000);
                    let set = SetAttr { size: Some(size), ..SetAttr::default() };
                    all[by].setattr(&cx, ino, None, &set).unwrap();
                    content.resize(size as usize, 0);
                }
                2 => {
                    let made = make(all[by], "t", b"");
                    all[by].release(&cx, made.0, made.1).unwrap();
                    named = made.0;
                    let (from, to) = (called("t"), called("n"));
                    let none = RenameFlags::empty();
                    all[by].rename(&cx, Ino::ROOT, from, Ino::ROOT, to, none).unwrap();
                }
                _ if round % 10 == 0 => std::thread::sleep(REST),
                _ => {}
            }
        }
        let look = |fs: &mut dyn FileSystem, handle| {
            assert_eq!(fs.lookup(&cx, Ino::ROOT, called("n")).unwrap().ino, named, "{round}");
            assert_eq!(fs.getattr(&cx, ino).unwrap().size, content.len() as u64, "{round}");
            assert!(read(fs, (ino, handle)).unwrap() == content, "{round}");
        };
        look(&mut plain, reads[0]);
        for (fs, handle) in [&mut *first, &mut *second].into_iter().zip(&reads[1..]) {
            look(fs, *handle);
            look(fs, *handle);
            let before = fs.inner().requests();
            look(fs, *handle);
            quiet += u32::from(fs.inner().requests() == before);
        }
    }
    println!("{quiet} times of 600 nothing was asked");
    assert!(quiet > 10, "{quiet}");
}
