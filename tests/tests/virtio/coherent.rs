//! Guests that keep what they learn, one of them with a window, and a client of a ring that keeps
//! nothing. Each changes names, attributes and content by chance, in every way that there is; after
//! each change all three have to answer the same, whatever is asked.

use std::collections::{BTreeMap, BTreeSet};

use atoll_host::guest::{GuestFs, attach_with};
use atoll_tests::rng::Rng;
use atoll_vfs::windowed::Policy;
use atoll_vfs::{
    Attr, Errno, FallocateMode, FileAt, Handle, OpenFlags, RenameFlags, SetAttr, SetTime, Timespec,
    XattrFlags,
};

use super::*;

const RANGE: u64 = 2 << 20;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// All that can go by the window does, or nothing.
const ALL: Policy = Policy { range: RANGE, least: 1, least_asked: 1, worth: 0, ahead: 2, batch: 2 };
const NONE: Policy = Policy { least: usize::MAX, least_asked: usize::MAX, ..ALL };
/// A server leases nothing again for 100 ms of what it has told of.
const REST: Duration = Duration::from_millis(110);
/// What does not change meanwhile is leased anew before each round of changes.
const ROUNDS: u64 = 60;
const CHANGES: u64 = 4;
const NAMES: [&str; 5] = ["a", "b", "c", "x", "y"];
/// The longest file but for the first, which has ranges in the window.
const LONG: u64 = 150_000;
const FIRST: u64 = 5 * RANGE;

fn called(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// The client with a window, behind the one that keeps nothing.
const SHOWN: usize = 1;

struct World<'a> {
    clients: [&'a mut dyn FileSystem; 3],
    rng: Rng,
    dirs: [Ino; 3],
    /// Files, lately made, the first first.
    files: Vec<Ino>,
    /// By client and file: a handle to read by.
    open: BTreeMap<(usize, Ino), Handle>,
    /// A handle to write the first file by, which the window's client keeps.
    first: Handle,
    /// What each client has looked up.
    seen: [BTreeSet<Ino>; 3],
    /// Files that were written by the window: of these the times of stores come later.
    stored: BTreeSet<Ino>,
    now: i64,
    compared: u64,
}

type Answer<T> = Result<T, Errno>;

impl World<'_> {
    fn cx(&mut self) -> atoll_vfs::Context {
        self.now += 1;
        let now = Timespec { sec: self.now, nsec: 0 };
        atoll_vfs::Context { now, ..fixtures::cx() }
    }

    fn place(&mut self) -> (Ino, Name<'static>) {
        (self.rng.pick(&self.dirs), called(self.rng.pick(&NAMES)))
    }

    fn lookup(&mut self, by: usize, (dir, name): (Ino, Name<'_>)) -> Answer<Attr> {
        let cx = self.cx();
        let found = self.clients[by].lookup(&cx, dir, name);
        if let Ok(attr) = &found {
            self.seen[by].insert(attr.ino);
        }
        found
    }

    /// A file, as `by` finds it.
    fn file(&mut self, by: usize) -> Option<Ino> {
        let known: Vec<Ino> =
            self.files.iter().copied().filter(|ino| self.seen[by].contains(ino)).collect();
        (!known.is_empty()).then(|| self.rng.pick(&known))
    }

    fn made(&mut self, by: usize, ino: Ino) {
        self.seen[by].insert(ino);
        if !self.files.contains(&ino) {
            self.files.push(ino);
        }
        if self.files.len() > 8 {
            let gone = self.files.remove(1);
            for client in 0..3 {
                if let Some(handle) = self.open.remove(&(client, gone)) {
                    let cx = self.cx();
                    self.clients[client].release(&cx, gone, handle).unwrap();
                }
            }
        }
    }

    /// One change by one client, or an error.
    fn change(&mut self, by: usize) -> String {
        let cx = self.cx();
        let (from, to) = (self.place(), self.place());
        let (kind, size) = (self.rng.within(0..19), self.rng.within(0..LONG));
        let len = 1 + self.rng.within(0..20_000);
        let data = vec![self.now as u8 | 1; len as usize];
        let file = self.file(by);
        let other = self.file(by);
        let fs = &mut *self.clients[by];
        let text = format!("{kind} by {by} of {from:?} {to:?} {file:?} {size} {len}");
        let set = |set: SetAttr| Some(set);
        let changes = match (kind, file) {
            (0..=2, _) => {
                let flags = if kind == 0 { RW | OpenFlags::TRUNC } else { RW };
                if let Ok((attr, handle)) = fs.create(&cx, from.0, from.1, 0o644, flags) {
                    fs.write(&cx, attr.ino, handle, size, &data).unwrap();
                    fs.release(&cx, attr.ino, handle).unwrap();
                    if by == SHOWN {
                        self.stored.insert(attr.ino);
                    }
                    self.made(by, attr.ino);
                }
                None
            }
            (3, _) => {
                if let Ok(attr) = fs.symlink(&cx, from.0, from.1, &data[..20]) {
                    self.seen[by].insert(attr.ino);
                }
                None
            }
            (4, Some(file)) => {
                if fs.link(&cx, file, from.0, from.1).is_ok() {
                    self.seen[by].insert(file);
                }
                None
            }
            (5, _) => {
                let _ = fs.unlink(&cx, from.0, from.1);
                None
            }
            (6..=8, _) => {
                let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
                let flags = flags[kind as usize - 6];
                let _ = fs.rename(&cx, from.0, from.1, to.0, to.1, flags);
                None
            }
            (9, _) if size % 2 == 0 => {
                if let Ok(attr) = fs.mkdir(&cx, from.0, from.1, 0o755) {
                    self.seen[by].insert(attr.ino);
                }
                None
            }
            (9, _) => {
                let _ = fs.rmdir(&cx, from.0, from.1);
                None
            }
            (10, Some(_)) => set(SetAttr { size: Some(size), ..SetAttr::default() }),
            (11, Some(_)) => set(SetAttr {
                mode: Some(0o600 | size as u32 & 0o77),
                uid: (size % 3 == 0).then_some(size as u32 % 7),
                ..SetAttr::default()
            }),
            (12, Some(_)) => {
                let time = SetTime::To(Timespec { sec: size as i64, nsec: len as u32 });
                set(SetAttr { mtime: Some(time), atime: Some(time), ..SetAttr::default() })
            }
            (13, _) => {
                let mode = Some(0o700 | size as u32 & 0o77);
                let dir = from.0;
                let _ = fs.setattr(&cx, dir, None, &SetAttr { mode, ..SetAttr::default() });
                None
            }
            (14, Some(file)) => {
                let name = [&b"user.a"[..], b"user.b"][size as usize % 2];
                let _ = match len % 3 {
                    0 => fs.removexattr(&cx, file, name),
                    _ => fs.setxattr(&cx, file, name, &data[..9], XattrFlags::empty()),
                };
                None
            }
            (_, Some(file)) => {
                if by == SHOWN {
                    self.stored.insert(file);
                }
                let flags = match kind {
                    15 => RW | OpenFlags::APPEND,
                    16 if file != self.files[0] => RW | OpenFlags::TRUNC,
                    _ => RW,
                };
                let Ok(handle) = fs.open(&cx, file, flags) else { return text };
                let at = if file == self.files[0] { size * (FIRST / LONG) } else { size };
                let modes = [
                    FallocateMode::empty(),
                    FallocateMode::KEEP_SIZE,
                    FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE,
                    FallocateMode::ZERO_RANGE,
                    FallocateMode::ZERO_RANGE | FallocateMode::KEEP_SIZE,
                ];
                match kind {
                    17 => {
                        let mode = modes[len as usize % 5];
                        let _ = fs.fallocate(&cx, file, handle, at, len, mode);
                    }
                    18 if other.is_some_and(|other| other != file) => {
                        let from = other.unwrap();
                        if let Ok(source) = fs.open(&cx, from, OpenFlags::READ) {
                            let (from, to) = (
                                FileAt { ino: from, handle: source, offset: size / 2 },
                                FileAt { ino: file, handle, offset: at },
                            );
                            let _ = fs.copy_file_range(&cx, from, to, len * 3);
                            fs.release(&cx, from.ino, source).unwrap();
                        }
                    }
                    _ => drop(fs.write(&cx, file, handle, at, &data)),
                }
                fs.release(&cx, file, handle).unwrap();
                None
            }
            _ => None,
        };
        if let (Some(set), Some(file)) = (changes, file) {
            let _ = self.clients[by].setattr(&cx, file, None, &set);
        }
        text
    }

    /// What does not depend on when stores by the window are written back, and all are told of.
    fn known(&self, answer: Answer<Attr>) -> Answer<Attr> {
        let none = Timespec::default();
        answer.map(|attr| Attr { btime: none, ..attr }).map(|attr| {
            match self.stored.contains(&attr.ino) {
                true => Attr { mtime: none, ctime: none, atime: none, blocks: 0, ..attr },
                false => attr,
            }
        })
    }

    fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, answers: [T; 3]) {
        self.compared += 1;
        let [plain, shown, told] = answers;
        assert!(plain == shown, "with a window: {what}: {shown:?} and not {plain:?}");
        assert!(plain == told, "{what}: {told:?} and not {plain:?}");
    }

    fn read(&mut self, by: usize, file: Ino, at: u64, len: usize) -> Option<Answer<Vec<u8>>> {
        let cx = self.cx();
        let fs = &mut *self.clients[by];
        let handle = match self.open.get(&(by, file)) {
            Some(handle) => *handle,
            None => {
                let handle = fs.open(&cx, file, OpenFlags::READ).ok()?;
                self.open.insert((by, file), handle);
                handle
            }
        };
        let mut data = vec![0; len];
        Some(fs.read(&cx, file, handle, at, &mut data).map(|got| {
            data.truncate(got);
            data
        }))
    }

    /// All clients look at all that there is.
    fn compare(&mut self, after: &str) {
        for dir in self.dirs {
            for name in NAMES {
                let found = [2, 1, 0].map(|by| self.lookup(by, (dir, called(name))));
                let [told, shown, plain] = found.map(|answer| self.known(answer));
                self.same(&format!("{name} in {dir} after {after}"), [plain, shown, told]);
                if let Ok(attr) = plain
                    && attr.file_type() == atoll_vfs::FileType::Symlink
                {
                    let cx = self.cx();
                    let targets = [0, 1, 2].map(|by| {
                        let mut target = Vec::new();
                        let read = self.clients[by].readlink(&cx, attr.ino, &mut target);
                        read.map(|()| target)
                    });
                    self.same(&format!("link {name} after {after}"), targets);
                }
            }
            let cx = self.cx();
            let listed = [0, 1, 2].map(|by| {
                let fs = &mut *self.clients[by];
                let handle = fs.opendir(&cx, dir).unwrap();
                let mut names = Vec::new();
                fs.readdir(&cx, dir, handle, 0, &mut |entry| {
                    names.push((entry.name.to_vec(), entry.ino));
                    true
                })
                .unwrap();
                fs.releasedir(&cx, dir, handle).unwrap();
                names
            });
            self.same(&format!("listing of {dir} after {after}"), listed);
        }
        for file in self.files.clone().into_iter().chain(self.dirs) {
            let cx = self.cx();
            if self.seen.iter().any(|seen| !seen.contains(&file)) {
                continue;
            }
            let found = [2, 1, 0].map(|by| self.clients[by].getattr(&cx, file));
            let [told, shown, plain] = found.map(|answer| self.known(answer));
            self.same(&format!("attributes of {file} after {after}"), [plain, shown, told]);
            let values = [0, 1, 2].map(|by| {
                let mut names = Vec::new();
                let listed = self.clients[by].listxattr(&cx, file, &mut names);
                listed.map(|()| names)
            });
            self.same(&format!("attributes of {file} after {after}"), values);
            if self.dirs.contains(&file) {
                continue;
            }
            for _ in 0..3 {
                let most = if file == self.files[0] { FIRST } else { 2 * LONG };
                let (at, len) = (self.rng.within(0..most), self.rng.within(1..70_000) as usize);
                let read = [2, 1, 0].map(|by| self.read(by, file, at, len));
                let [Some(told), Some(shown), Some(plain)] = read else { continue };
                self.compared += 1;
                assert!(told == plain, "{len} bytes at {at} of {file} after {after}");
                assert!(shown == plain, "with a window: {len} at {at} of {file} after {after}");
            }
        }
    }
}

#[test]
fn after_each_change_all_answer_the_same() {
    let seeds = atoll_tests::rng::environment("ATOLL_SEEDS").unwrap_or(1);
    (0..seeds).for_each(run);
}

fn run(seed: u64) {
    let options = Options { tells: true, window: 3 * RANGE, ids: Ids::Guest, ..Options::default() };
    let served = Served::new(options);
    let mut ring = served.ring();
    let mut plain = ring.client().unwrap();
    let at = |socket: &str| served.folder.path().join(socket);
    let mut shown: GuestFs = attach_with(&at("guest"), ALL).unwrap();
    let mut told: GuestFs = attach_with(&at("other"), NONE).unwrap();
    let cx = fixtures::cx();
    let (first, handle) = shown.create(&cx, Ino::ROOT, called("first"), 0o666, RW).unwrap();
    let content: Vec<u8> = (0..FIRST).map(|at| (at / 3) as u8 ^ (at >> 16) as u8).collect();
    assert_eq!(shown.write(&cx, first.ino, handle, 0, &content).unwrap().len, content.len());
    shown.read(&cx, first.ino, handle, 0, &mut [0]).unwrap();
    let dirs = ["d", "e"].map(|name| {
        let made = plain.mkdir(&cx, Ino::ROOT, called(name), 0o755).unwrap().ino;
        for fs in [&mut shown, &mut told] {
            assert_eq!(fs.lookup(&cx, Ino::ROOT, called(name)).unwrap().ino, made);
        }
        made
    });
    plain.lookup(&cx, Ino::ROOT, called("first")).unwrap();
    told.lookup(&cx, Ino::ROOT, called("first")).unwrap();
    let known = || BTreeSet::from([Ino::ROOT, dirs[0], dirs[1], first.ino]);
    let mut world = World {
        clients: [&mut plain, &mut shown, &mut told],
        rng: Rng::new(seed),
        dirs: [Ino::ROOT, dirs[0], dirs[1]],
        files: vec![first.ino],
        open: BTreeMap::new(),
        first: handle,
        seen: [known(), known(), known()],
        stored: BTreeSet::from([first.ino]),
        now: 1_000_000_000,
        compared: 0,
    };
    for round in 0..ROUNDS {
        std::thread::sleep(REST);
        world.compare("a rest");
        for _ in 0..CHANGES {
            let by = world.rng.within(0..3) as usize;
            let mut what = format!("seed {seed}, round {round}: {}", world.change(by));
            if world.rng.chance(30) {
                let (at, cx) = (world.rng.within(0..FIRST - 9000), world.cx());
                let (first, handle) = (world.files[0], world.first);
                let data = vec![round as u8 | 1; 9000];
                world.clients[SHOWN].write(&cx, first, handle, at, &data).unwrap();
                what += &format!(", stored at {at}");
            }
            world.compare(&what);
        }
    }
    let compared = world.compared;
    drop(world);
    println!("seed {seed}: {compared} answers; {} bytes by the window", shown.copied());
    assert!(shown.copied() > 100_000);
    for fs in [&mut shown, &mut told] {
        fs.statfs(&cx).expect("its session goes on");
    }
}
