//! Windows of virtual machines, with front ends of these tests' own: what a program maps at the
//! same time, and front ends and guests that do anything.
#![allow(missing_docs)]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use atoll_tests::guest::{Guest, Setup};
use atoll_tests::rng::Rng;
use atoll_tests::window::{Asked, SHMEM_MAP, Window};
use common::serving::Served as Serving;
use common::{folder, volume};

const FUSE_LOOKUP: u32 = 1;
const FUSE_OPEN: u32 = 14;
const FUSE_READ: u32 = 15;
const FUSE_WRITE: u32 = 16;
const FUSE_FSYNC: u32 = 20;
const FUSE_CREATE: u32 = 35;
const FUSE_SETUPMAPPING: u32 = 48;
const FUSE_REMOVEMAPPING: u32 = 49;

const RANGE: u64 = 2 << 20;
const WINDOW: u64 = 4 * RANGE;
const PAGE: u64 = 4096;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn longs(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A guest of the device at `socket` that has begun.
fn begin(socket: &Path) -> (Guest, Window) {
    let setup = Setup { window: true, ..Setup::default() };
    let mut guest = Guest::connect(socket, setup);
    let window = guest.open_window(WINDOW);
    guest.init();
    (guest, window)
}

/// The file `called`, which is made if it is not there and may be: its inode and handle.
fn open(guest: &mut Guest, called: &str, makes: bool) -> Option<(u64, u64)> {
    let name = [called.as_bytes(), b"\0"].concat();
    if makes {
        // O_RDWR, mode, umask, flags.
        let words = [2u32, 0o100_644, 0, 0].map(u32::to_le_bytes).concat();
        let (error, body) = guest.ask(FUSE_CREATE, 1, &[words, name].concat(), 0)?;
        return (error == 0).then(|| (word(&body, 0), word(&body, 128)));
    }
    let (error, entry) = guest.ask(FUSE_LOOKUP, 1, &name, 0)?;
    if error != 0 {
        return None;
    }
    let ino = word(&entry, 0);
    let (_, body) = guest.ask(FUSE_OPEN, ino, &[0; 8], 0)?;
    Some((ino, if body.len() < 8 { 0 } else { word(&body, 0) }))
}

fn setup(offset: u64, len: u64, flags: u64, at: u64) -> Vec<u8> {
    longs(&[u64::MAX, offset, len, flags, at])
}

fn write_body(handle: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    [longs(&[handle, offset, data.len() as u64, 0, 0]), data.to_vec()].concat()
}

fn show(guest: &mut Guest, window: &Window, ino: u64, offset: u64) -> File {
    let asks = guest.submit(1, FUSE_SETUPMAPPING, ino, &setup(offset, RANGE, 3, 0), 0);
    let asked = window.asked();
    window.acknowledge(&asked, 0);
    assert_eq!(guest.answer(1, asks).unwrap().0, 0);
    asked.file.unwrap()
}

/// A program maps a whole file, of which a guest is shown a range: each sees what the other
/// stores, and what the program has synced is in the volume.
#[test]
fn a_program_maps_a_file_with_ranges_in_a_window() {
    let served = common::served::Served::with(&["--vhost-user", "g,tag=v,dax=8M"]);
    served.script("seq 1000000 > /vol/f; test $(stat -c %s /vol/f) -gt 6000000");
    let (mut guest, window) = begin(&served.path().join("g"));
    let (ino, _) = open(&mut guest, "f", false).unwrap();
    let shown = show(&mut guest, &window, ino, RANGE);
    shown.write_all_at(b"guest's", RANGE + 10).unwrap();
    served.script(
        r#"cat > map.py << 'END'
import mmap, os
fd = os.open("/vol/f", os.O_RDWR)
size = os.fstat(fd).st_size
before = os.pread(fd, size, 0)
assert len(before) == size
with mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as map:
    assert map[:] == before
    assert map[(2 << 20) + 10:][:7] == b"guest's"
    for at in range(5, size - 8, 512 << 10):
        map[at:at + 6] = b"stored"
    now = os.pread(fd, size, 0)
    assert map[:] == now and now != before
    map.flush()
    # Parts of it go, and what is left is right.
    rest = mmap.mmap(fd, 3 << 20, mmap.MAP_SHARED, mmap.PROT_READ, offset=1 << 20)
    assert rest[:] == now[1 << 20:4 << 20]
    rest.close()
END
python3 map.py"#,
    );
    let mut had = [0; 6];
    shown.read_exact_at(&mut had, RANGE + 5).unwrap();
    assert_eq!(&had, b"stored");
    drop((guest, window, shown));
    served.end();
}

/// How a front end does what it is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Habit {
    Honest,
    Refuses,
    NeverSays,
    SaysTwice,
    Nonsense,
    Closes,
    TakesMemoryAway,
}

const HABITS: [Habit; 7] = [
    Habit::Honest,
    Habit::Refuses,
    Habit::NeverSays,
    Habit::SaysTwice,
    Habit::Nonsense,
    Habit::Closes,
    Habit::TakesMemoryAway,
];

/// A front end, its guest, and what it was given.
struct Attack {
    guest: Guest,
    /// Asked and answered until it is spoiled.
    window: Option<Window>,
    habit: Habit,
    kept: Vec<Asked>,
    waits: Vec<u16>,
}

impl Attack {
    /// Does with a question what it is used to.
    fn hear(&mut self, rng: &mut Rng) {
        let Some(window) = &self.window else { return };
        let Some(asked) = window.asked_within(Duration::from_millis(20)) else { return };
        match self.habit {
            Habit::Honest | Habit::TakesMemoryAway => {
                window.acknowledge(&asked, 0);
                if rng.chance(20) {
                    self.guest.grow();
                }
            }
            Habit::Refuses => window.acknowledge(&asked, rng.number() % 2),
            Habit::NeverSays => self.window = self.window.take().filter(|_| rng.chance(70)),
            Habit::SaysTwice => {
                window.acknowledge(&asked, 0);
                window.acknowledge(&asked, 0);
                self.window = None;
            }
            Habit::Nonsense => {
                window.say(&[asked.number as u8; 40]);
                self.window = None;
            }
            Habit::Closes => self.window = None,
        }
        if asked.number == SHMEM_MAP && rng.chance(60) {
            self.kept.push(asked);
        }
    }

    /// Sends a request, and sees whether it has its answer. Returns false when the guest has no
    /// more to send.
    fn send(&mut self, opcode: u32, ino: u64, body: &[u8], room: usize, rng: &mut Rng) -> bool {
        let slot = self.guest.submit(1, opcode, ino, body, room);
        self.hear(rng);
        self.waits.push(slot);
        let guest = &mut self.guest;
        self.waits.retain(|slot| !guest.is_answered(1, *slot) || guest.answer(1, *slot).is_none());
        self.waits.len() < 7
    }

    fn step(&mut self, files: &[(u64, u64)], rng: &mut Rng) -> bool {
        let (ino, handle) = files[rng.within(0..files.len() as u64) as usize];
        let ino = if rng.chance(5) { rng.number() } else { ino };
        let edges = [0, 1, PAGE, RANGE, 3 * RANGE, WINDOW, 1 << 63, u64::MAX - PAGE + 1, u64::MAX];
        let odd = |rng: &mut Rng, usual: u64| {
            if rng.chance(15) { edges[rng.within(0..edges.len() as u64) as usize] } else { usual }
        };
        match rng.within(0..10) {
            0..=3 => {
                let (offset, at) = (rng.within(0..4) * RANGE, rng.within(0..4) * RANGE);
                let flags = rng.within(0..4);
                let args = [offset, RANGE, flags, at].map(|usual| odd(rng, usual));
                self.send(
                    FUSE_SETUPMAPPING,
                    ino,
                    &setup(args[0], args[1], args[2], args[3]),
                    0,
                    rng,
                )
            }
            4 | 5 => {
                let ranges = rng.within(0..3);
                let mut body = (ranges as u32).to_le_bytes().to_vec();
                for _ in 0..ranges {
                    let usual = rng.within(0..4) * RANGE;
                    body.extend(longs(&[odd(rng, usual), odd(rng, RANGE)]));
                }
                self.send(FUSE_REMOVEMAPPING, ino, &body, 0, rng)
            }
            6 => {
                self.send(FUSE_WRITE, ino, &write_body(handle, odd(rng, PAGE), &[7; 5000]), 0, rng)
            }
            7 => {
                let body = longs(&[handle, odd(rng, RANGE), 5000, 0, 0]);
                self.send(FUSE_READ, ino, &body, 5000, rng)
            }
            8 => self.send(FUSE_FSYNC, ino, &longs(&[handle, 0]), 0, rng),
            _ => {
                let page = vec![rng.number() as u8; PAGE as usize];
                for asked in &self.kept {
                    let file = asked.file.as_ref().unwrap();
                    // A file that was cut takes it too, and one that is open for reading does not.
                    let _ = file.write_at(&page, asked.offset + rng.within(0..500) * PAGE);
                }
                self.kept.truncate(6);
                true
            }
        }
    }
}

/// Descriptors of a process and its children, and how many of them are memory of mapped files.
fn descriptors(pid: u32) -> (usize, usize) {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let mut pids: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    pids.push(pid);
    let links = pids.iter().flat_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).into_iter());
    let links: Vec<String> = links
        .flatten()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    let memory = |link: &&String| link.contains("atoll-mapped") || link.contains("atoll-shown");
    (links.len(), links.iter().filter(memory).count())
}

/// Whatever a front end and its guest do, and whatever becomes of the files meanwhile, others go
/// on, and nothing of it is left when it has gone.
#[test]
fn front_ends_that_do_anything() {
    let dir = folder();
    fs::create_dir(dir.path().join("host")).unwrap();
    volume(dir.path(), "a.vol", "64M");
    let devices = ["v=a", "d=host", "c=host", "r=host:ro", "q=a:ro", "w=a", "x=host"];
    let mut arguments: Vec<String> = vec!["a.vol".into(), "host".into()];
    for device in devices {
        let copies = if device.starts_with('c') { ",copies" } else { "" };
        arguments.extend(["--vhost-user".into(), format!("{device},tag=t,dax=8M{copies}")]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let served = Serving::again(dir, &arguments);
    let pid = served.child.id();
    let at = |socket: &str| served.path().join(socket);
    let mut witnesses: Vec<(Guest, Window, (u64, u64))> = ["w", "x"]
        .iter()
        .map(|socket| {
            let (mut guest, window) = begin(&at(socket));
            let file = open(&mut guest, "witness", true).unwrap();
            for called in ["f", "g"] {
                let file = open(&mut guest, called, true).unwrap();
                let body = write_body(file.1, 3 * RANGE + 100, b"end");
                assert_eq!(guest.ask(FUSE_WRITE, file.0, &body, 0).unwrap().0, 0);
            }
            (guest, window, file)
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let before = descriptors(pid);
    for round in 0..35 {
        let mut rng = Rng::new(round);
        let (socket, habit) =
            (["v", "d", "c", "r", "q"][round as usize % 5], HABITS[round as usize / 5 % 7]);
        let (guest, window) = begin(&at(socket));
        let mut attack =
            Attack { guest, window: Some(window), habit, kept: Vec::new(), waits: Vec::new() };
        let files = ["f", "g"].map(|called| open(&mut attack.guest, called, false));
        let files: Vec<(u64, u64)> = files.into_iter().flatten().collect();
        for step in 0..40 {
            if files.is_empty() || !attack.step(&files, &mut rng) {
                break;
            }
            // Files are cut, grown, removed and replaced meanwhile, by others.
            if step % 5 == 4 {
                let host = served.path().join("host");
                let called = ["f", "g"][rng.within(0..2) as usize];
                match rng.within(0..5) {
                    0 | 1 => {
                        let file = File::options().write(true).open(host.join(called)).unwrap();
                        file.set_len(rng.within(0..4 * RANGE)).unwrap();
                    }
                    2 => fs::rename(host.join(called), host.join("old")).unwrap(),
                    3 => fs::write(host.join(called), vec![1; 3 << 20]).unwrap(),
                    _ => {}
                }
                let there = File::options().create(true).append(true).open(host.join(called));
                drop(there.unwrap());
                let (witness, _, _) = &mut witnesses[0];
                // SETATTR with a size; UNLINK, and CREATE.
                let name = [called.as_bytes(), b"\0"].concat();
                let (_, entry) = witness.ask(FUSE_LOOKUP, 1, &name, 0).unwrap();
                let mut set = vec![0; 88];
                set[0] = 1 << 3;
                set[16..24].copy_from_slice(&rng.within(0..4 * RANGE).to_le_bytes());
                witness.ask(4, word(&entry, 0), &set, 0).unwrap();
                if rng.chance(20) {
                    assert_eq!(witness.ask(10, 1, &name, 0).unwrap().0, 0);
                    open(witness, called, true).unwrap();
                }
            }
        }
        if habit == Habit::TakesMemoryAway {
            attack.guest.withdraw();
            attack.guest.ring(1);
        }
        for (witness, window, file) in &mut witnesses {
            let begun = Instant::now();
            let body = write_body(file.1, 0, &[round as u8; 5000]);
            assert_eq!(witness.ask(FUSE_WRITE, file.0, &body, 0).unwrap().0, 0);
            let shown = show(witness, window, file.0, 0);
            let mut had = [0; 5000];
            shown.read_exact_at(&mut had, 0).unwrap();
            assert_eq!(had, [round as u8; 5000], "{round} {habit:?}");
            let remove = [&1u32.to_le_bytes()[..], &longs(&[0, RANGE])].concat();
            let asks = witness.submit(1, FUSE_REMOVEMAPPING, file.0, &remove, 0);
            window.acknowledge(&window.asked(), 0);
            assert_eq!(witness.answer(1, asks).unwrap().0, 0);
            assert!(begun.elapsed() < Duration::from_secs(5), "{round} {habit:?}");
        }
    }
    let until = Instant::now() + Duration::from_secs(20);
    let mut after = descriptors(pid);
    while (after.0 > before.0 || after.1 > 0) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(200));
        after = descriptors(pid);
    }
    assert_eq!(after.1, 0, "memory that nobody has");
    assert!(after.0 <= before.0, "{before:?} {after:?}");
    drop(witnesses);
    let log = fs::read_to_string(served.path().join("log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
}
