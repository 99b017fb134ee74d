//! Guests that take notices of changes: what they keep is never old, and who does not say that it
//! has forgotten is not waited for.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use atoll_host::client::Ring;
use atoll_tests::guest::NOTICE_ROOM;
use atoll_tests::guest_cache::Caching;
use atoll_vfs::{OpenFlags, RenameFlags};

use super::*;

const FUSE_RENAME: u32 = 12;
const FUSE_RELEASE: u32 = 18;

pub(super) const TAKES: Setup = Setup {
    size: 64,
    queues: 3,
    sealed: true,
    indirect: true,
    event_index: true,
    slots: true,
    window: false,
    notices: true,
};

fn told() -> Served {
    Served::new(Options { tells: true, ids: Ids::Guest, ..Options::default() })
}

impl Served {
    fn caching(&self, socket: &str, buffers: u16) -> Caching {
        Caching::new(self.begin(socket, TAKES), buffers)
    }

    pub(super) fn ring(&self) -> Ring {
        let place = Address { socket: self.folder.path().join("s"), volume: String::new() };
        let config = Config { lanes: 1, ..Config::default() };
        Connection::open(&place).unwrap().ring(Mode::Write, &config).unwrap()
    }
}

/// Changes by a guest.
trait Changes {
    fn make(&mut self, called: &str) -> (u64, u64);
    fn store(&mut self, file: (u64, u64), offset: u64, data: &[u8]);
    fn replace(&mut self, from: &str, to: &str);
    fn close(&mut self, file: (u64, u64));
}

impl Changes for Caching {
    fn make(&mut self, called: &str) -> (u64, u64) {
        let words = [2u32, 0o100666, 0, 0].map(u32::to_le_bytes).concat();
        let ((error, body), _) = self.ask(FUSE_CREATE, 1, &[words, name(called)].concat(), 0);
        assert_eq!(error, 0, "{called}");
        self.forget(1);
        (word(&body, 0), word(&body, 128))
    }

    fn store(&mut self, (ino, handle): (u64, u64), offset: u64, data: &[u8]) {
        let head = [handle.to_le_bytes(), offset.to_le_bytes()].concat();
        let words = [data.len() as u32, 0].map(u32::to_le_bytes).concat();
        let body = [&head[..], &words, &[0; 16], data].concat();
        let ((error, _), _) = self.ask(FUSE_WRITE, ino, &body, 0);
        assert_eq!(error, 0);
        self.forget(ino);
    }

    fn replace(&mut self, from: &str, to: &str) {
        let body = [&1u64.to_le_bytes()[..], &name(from), &name(to)].concat();
        let ((error, _), _) = self.ask(FUSE_RENAME, 1, &body, 0);
        assert_eq!(error, 0);
        self.forget(1);
    }

    fn close(&mut self, (ino, handle): (u64, u64)) {
        let body = [&handle.to_le_bytes()[..], &[0; 16]].concat();
        assert_eq!(self.ask(FUSE_RELEASE, ino, &body, 0).0.0, 0);
    }
}

/// What has returned: each of three clients changes a file and a name of its own.
struct Returned {
    /// All have opened what they read.
    ready: Barrier,
    /// Writes at the beginning, and bytes at the end.
    written: [AtomicU64; 3],
    sizes: [AtomicU64; 3],
    /// The number in the file that the name stands for.
    names: [AtomicU64; 3],
    stop: AtomicBool,
}

impl Returned {
    fn goes_on(&self, begun: Instant) -> bool {
        !self.stop.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(4)
    }
}

/// A guest looks at all that the others change, by what it has kept, and changes its own.
fn live(guest: &mut Caching, own: usize, returned: &Returned, files: [u64; 3]) -> u64 {
    let handles = files.map(|ino| guest.open(ino));
    assert!(handles.iter().all(|(_, cached)| *cached), "it keeps pages");
    let mine = open_rw(guest, files[own]);
    returned.ready.wait();
    let mut rng = Rng::new(own as u64 + 1);
    // The files that names have stood for, with the numbers in them.
    let mut known: Vec<(u64, u64)> = Vec::new();
    let (begun, mut rounds) = (Instant::now(), 0);
    while returned.goes_on(begun) {
        rounds += 1;
        let at = rng.within(0..3) as usize;
        match rng.within(0..16) {
            0..5 => {
                let least = returned.written[at].load(Ordering::SeqCst);
                let data = guest.read(files[at], handles[at].0);
                let seen = word(&data, 0);
                assert!(seen >= least, "guest {own} read {seen} of {at}, {least} had returned");
            }
            5..9 => {
                let least = returned.sizes[at].load(Ordering::SeqCst);
                let size = guest.size(files[at]).unwrap();
                assert!(size >= least, "guest {own} sees {size} bytes of {at}, not {least}");
            }
            9..13 => {
                let least = returned.names[at].load(Ordering::SeqCst);
                let ino = guest.lookup(1, &format!("n{at}")).unwrap();
                let number = match known.iter().find(|(known, _)| *known == ino) {
                    Some((_, number)) => *number,
                    None => {
                        // Its size is its number: that never changes.
                        let Ok(number) = guest.size(ino) else { continue };
                        known.push((ino, number));
                        number
                    }
                };
                assert!(number >= least, "guest {own}: n{at} is {number}, not {least}");
            }
            13 => {
                let next = returned.written[own].load(Ordering::SeqCst) + 1;
                guest.store((files[own], mine), 0, &next.to_le_bytes());
                returned.written[own].store(next, Ordering::SeqCst);
                let size = returned.sizes[own].load(Ordering::SeqCst);
                guest.store((files[own], mine), size, b"more");
                returned.sizes[own].store(size + 4, Ordering::SeqCst);
            }
            14 if rng.within(0..4) == 0 => {
                let next = returned.names[own].load(Ordering::SeqCst) + 1;
                let file = guest.make(&format!("t{own}"));
                guest.store(file, next - 1, b"x");
                guest.close(file);
                guest.replace(&format!("t{own}"), &format!("n{own}"));
                returned.names[own].store(next, Ordering::SeqCst);
            }
            // What has come is heeded late.
            _ => while guest.heed() {},
        }
    }
    // Others may wait for it.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        if !guest.heed() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    rounds
}

fn open_rw(guest: &mut Caching, ino: u64) -> u64 {
    let ((error, body), _) =
        guest.ask(FUSE_OPEN, ino, &[2u32, 0].map(u32::to_le_bytes).concat(), 0);
    assert_eq!(error, 0);
    word(&body, 0)
}

/// Two guests that keep what they learn and a client of a ring: whatever has returned to one is
/// what the others see, though they look at what they have kept.
#[test]
fn what_guests_keep_is_never_old() {
    for buffers in [1, 16] {
        let served = told();
        let mut ring = served.ring();
        let mut client = ring.client().unwrap();
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let cx = fixtures::cx();
        let mut make = |called: &str, data: &[u8]| {
            let called = Name::new(called.as_bytes()).unwrap();
            let (attr, handle) = client.create(&cx, Ino::ROOT, called, 0o666, both).unwrap();
            client.write(&cx, attr.ino, handle, 0, data).unwrap();
            (attr.ino, handle)
        };
        let opened = [0, 1, 2].map(|at| make(&format!("f{at}"), &0u64.to_le_bytes()));
        let files = opened.map(|(ino, _)| ino.0);
        for at in 0..3 {
            make(&format!("n{at}"), b"x");
        }
        let returned = Returned {
            ready: Barrier::new(3),
            written: Default::default(),
            sizes: [8, 8, 8].map(AtomicU64::new),
            names: [1, 1, 1].map(AtomicU64::new),
            stop: AtomicBool::new(false),
        };
        let mut guests = [served.caching("guest", buffers), served.caching("other", buffers)];
        for guest in &mut guests {
            for (at, file) in files.into_iter().enumerate() {
                assert_eq!(guest.lookup(1, &format!("f{at}")), Ok(file));
            }
        }
        let [first, second] = &mut guests;
        let changes = std::thread::scope(|scope| {
            let ends = |guest, own| {
                let returned = &returned;
                scope.spawn(move || {
                    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        live(guest, own, returned, files)
                    }));
                    returned.stop.store(true, Ordering::Relaxed);
                    lived.unwrap_or_else(|why| std::panic::resume_unwind(why))
                })
            };
            let threads = [ends(first, 0), ends(second, 1)];
            returned.ready.wait();
            let (begun, mut changes) = (Instant::now(), 0u64);
            let handle = opened[2].1;
            let mut slowest = Duration::ZERO;
            while returned.goes_on(begun) {
                changes += 1;
                let change = Instant::now();
                let (ino, next) = (opened[2].0, changes);
                client.write(&cx, ino, handle, 0, &next.to_le_bytes()).unwrap();
                returned.written[2].store(next, Ordering::SeqCst);
                let size = returned.sizes[2].load(Ordering::SeqCst);
                client.write(&cx, ino, handle, size, b"more").unwrap();
                returned.sizes[2].store(size + 4, Ordering::SeqCst);
                let temporary = Name::new(b"t2").unwrap();
                let (attr, handle) = client.create(&cx, Ino::ROOT, temporary, 0o666, both).unwrap();
                client.write(&cx, attr.ino, handle, changes, b"x").unwrap();
                client.release(&cx, attr.ino, handle).unwrap();
                let to = Name::new(b"n2").unwrap();
                let none = RenameFlags::empty();
                client.rename(&cx, Ino::ROOT, temporary, Ino::ROOT, to, none).unwrap();
                returned.names[2].store(changes + 1, Ordering::SeqCst);
                slowest = slowest.max(change.elapsed());
                std::thread::sleep(Duration::from_millis(3));
            }
            for thread in threads {
                assert!(thread.join().unwrap() > 100);
            }
            println!("{changes} changes, the slowest took {slowest:?}");
            changes
        });
        for guest in &guests {
            let Caching { hits, heeded, .. } = guest;
            println!("{hits:?} answered by what was kept, {heeded} notices");
            assert!(*heeded > 20 && hits.iter().all(|hits| *hits > 20), "{hits:?} {heeded}");
        }
        assert!(changes > 20);
        drop((guests, client, ring));
        served.end();
    }
}

/// How long a change of what the guest has kept takes, by a client of a ring.
fn change(served: &Served, size: u64) -> Duration {
    let mut ring = served.ring();
    let mut client = ring.client().unwrap();
    let cx = fixtures::cx();
    let attr = client.lookup(&cx, Ino::ROOT, Name::new(b"f").unwrap()).unwrap();
    let set = atoll_vfs::SetAttr { size: Some(size), ..atoll_vfs::SetAttr::default() };
    let begun = Instant::now();
    client.setattr(&cx, attr.ino, None, &set).unwrap();
    begun.elapsed()
}

/// The same, while these guests take notices.
pub(super) fn changed(served: &Served, size: u64, guests: &mut [&mut Caching]) -> Duration {
    std::thread::scope(|scope| {
        let change = scope.spawn(move || change(served, size));
        while !change.is_finished() {
            guests.iter_mut().for_each(|guest| while guest.heed() {});
            std::thread::sleep(Duration::from_micros(100));
        }
        change.join().unwrap()
    })
}

/// Who does not say that it has forgotten is waited for, for a second, and then has no session; it
/// may begin again, and keeps nothing then.
#[test]
fn who_takes_no_notices_is_not_waited_for() {
    for (buffers, acknowledges) in [(0, true), (4, false), (1, false)] {
        let served = told();
        let mut other = served.caching("other", 4);
        let (ino, _) = other.make("f");
        let mut guest = served.caching("guest", buffers);
        guest.acknowledges = acknowledges;
        assert_eq!(guest.lookup(1, "f"), Ok(ino));
        assert_eq!(guest.lookup(1, "f"), Ok(ino));
        assert_eq!(guest.hits, [1, 0, 0], "it keeps the name");
        assert_eq!(guest.size(ino), Ok(0));
        assert_eq!(guest.hits, [1, 1, 0], "and the attributes");
        let heeds = changed(&served, 100, &mut [&mut guest]);
        assert!(heeds > Duration::from_millis(900), "{heeds:?}: nobody waited");
        assert!(heeds < Duration::from_secs(5), "{heeds:?}");
        // Its session has ended; that it kept something is its own affair.
        assert_eq!(guest.ask(FUSE_GETATTR, ino, &[0; 16], 0).0.0, EIO);
        assert_eq!(other.size(ino), Ok(100), "nobody else notices");
        guest.guest.init();
        guest.forget(1);
        guest.forget(ino);
        assert_eq!(guest.lookup(1, "f"), Ok(ino));
        assert_eq!(guest.size(ino), Ok(100));
        assert_eq!(guest.size(ino), Ok(100));
        assert_eq!(guest.hits, [1, 1, 0], "it keeps nothing any more");
        let again = changed(&served, 200, &mut [&mut guest, &mut other]);
        assert!(again < Duration::from_millis(500), "{again:?}: it has kept nothing");
        assert_eq!(guest.size(ino), Ok(200));
        // Another machine is another. It has rested.
        std::thread::sleep(Duration::from_millis(150));
        assert_eq!(other.lookup(1, "f"), Ok(ino));
        let hits = other.hits[1];
        assert_eq!((other.size(ino), other.size(ino)), (Ok(200), Ok(200)));
        assert!(other.hits[1] > hits, "it keeps what it learns");
        drop((guest, other));
        served.end();
    }
}

/// The thread of a device hangs, since its front end has said half of a message: others wait for
/// its guest no longer than for any other.
#[test]
fn a_device_that_hangs_is_not_waited_for() {
    use std::io::Write;
    let served = told();
    let mut guest = served.caching("guest", 4);
    let (ino, _) = guest.make("f");
    assert_eq!(guest.size(ino), Ok(0));
    guest.guest.socket().write_all(&[1, 0, 0]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let took = change(&served, 5);
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(guest);
    served.end();
}

/// A driver that takes no notices, on a device that has them: it keeps nothing. And a device that
/// has none says so.
#[test]
fn a_driver_without_notices_keeps_nothing() {
    let served = told();
    let mut guest = served.guest();
    assert!(guest.is_offered_notices());
    create(&mut guest, "f");
    let (_, entry) = guest.ask(FUSE_LOOKUP, 1, &name("f"), 0).unwrap();
    assert_eq!((word(&entry, 16), word(&entry, 24)), (0, 0));
    let begun = Instant::now();
    change(&served, 9);
    assert!(begun.elapsed() < Duration::from_millis(900));
    drop(guest);
    served.end();
    let served = Served::new(Options::default());
    assert!(!served.guest().is_offered_notices());
}

/// A queue for notices that stops and starts goes on where it was, and so does the guest.
#[test]
fn notices_go_on_when_the_queue_does() {
    let served = told();
    let mut guest = served.caching("guest", 8);
    let (ino, handle) = guest.make("f");
    guest.close((ino, handle));
    for round in 1..20u64 {
        assert_eq!(guest.size(ino), Ok(round - 1));
        // Nothing on the way is lost either.
        let base = (round % 3 == 0).then(|| guest.guest.stop(1));
        std::thread::scope(|scope| {
            let served = &served;
            let changed = scope.spawn(move || change(served, round));
            if let Some(base) = base {
                std::thread::sleep(Duration::from_millis(150));
                assert!(!changed.is_finished() && !guest.heed(), "it was told of nothing");
                guest.guest.start(1, base);
            }
            while !changed.is_finished() {
                guest.heed();
            }
            assert!(changed.join().unwrap() < Duration::from_millis(900));
        });
        // It is not leased again for 100 ms.
        std::thread::sleep(Duration::from_millis(110));
    }
    assert!(guest.heeded >= 19, "{}", guest.heeded);
    drop(guest);
    served.end();
}

/// Buffers that make no sense cost their guest its connection, and nobody else anything.
#[test]
fn hostile_buffers_cost_their_guest() {
    let served = told();
    create(&mut served.guest(), "f");
    broken("too short", &served, TAKES, |guest| guest.offer_buffer(0, 100));
    broken("nothing", &served, TAKES, |guest| guest.offer_buffer(0, 0));
    broken("to be read", &served, TAKES, |guest| {
        guest.describe(guest.table(1), 0, (PLACE, NOTICE_ROOM, 0, 0));
        guest.offer(1, 0);
    });
    broken("offered twice", &served, TAKES, |guest| {
        guest.offer_buffer(3, NOTICE_ROOM);
        guest.offer_buffer(3, NOTICE_ROOM);
    });
    broken("a loop", &served, TAKES, |guest| {
        guest.describe(guest.table(1), 0, (PLACE, NOTICE_ROOM, WRITE | NEXT, 0));
        guest.offer(1, 0);
    });
    broken("an index that runs on", &served, TAKES, |guest| guest.set_available(1, 5000));
    // What is outside of its memory is met when there is something to be said.
    broken("outside", &served, TAKES, |guest| {
        guest.describe(guest.table(1), 0, (8, NOTICE_ROOM, WRITE, 0));
        guest.offer(1, 0);
        let found = guest.ask(FUSE_LOOKUP, 1, &name("f"), 0).unwrap();
        assert_eq!(word(&found.1, 24), 1);
        change(&served, 77);
    });
}

/// A guest that reads what others have mapped is told with each read, before it has the answer: it
/// keeps the page for no moment. One that takes no notices has no session any more after the first.
#[test]
fn what_others_have_mapped_is_kept_for_no_moment() {
    let served = told();
    let mut guest = served.caching("guest", 8);
    let (ino, handle) = guest.make("f");
    guest.store((ino, handle), 0, &[1; 4096]);
    let (reads, cached) = guest.open(ino);
    assert!(cached);
    let volume = Arc::clone(served.volume.as_ref().unwrap());
    let access = atoll_server::Access {
        identity: atoll_server::Identity::Checked,
        ..atoll_server::Access::default()
    };
    let mut session = volume.session(atoll_server::Credentials::default(), access).unwrap();
    let cx = fixtures::cx();
    let both = OpenFlags::READ | OpenFlags::WRITE;
    session.lookup(&cx, Ino::ROOT, Name::new(b"f").unwrap()).unwrap();
    let opened = session.open(&cx, Ino(ino), both).unwrap();
    session.map(&cx, Ino(ino), opened, 0, 4096).unwrap();
    let read = |guest: &mut Caching, (ino, handle): (u64, u64)| {
        let body = [&handle.to_le_bytes()[..], &[0; 8], &4096u32.to_le_bytes(), &[0; 20]].concat();
        let ((error, _), keeps) = guest.ask(FUSE_READ, ino, &body, 4096);
        (error, keeps)
    };
    for _ in 0..200 {
        guest.forget(ino);
        assert_eq!(read(&mut guest, (ino, reads)), (0, false));
    }
    drop(guest);
    let mut deaf = served.caching("guest", 0);
    let found = deaf.lookup(1, "f").unwrap();
    let (reads, _) = deaf.open(found);
    let ends = (0..3).find(|_| read(&mut deaf, (found, reads)).0 == EIO);
    assert!(ends.is_some(), "it takes no notice and reads on");
    drop(deaf);
    drop((session, volume));
    served.end();
}
