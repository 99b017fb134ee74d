//! Clients that keep what a server lends them, against the model that the server has: the server
//! tells of changes late and in the middle of requests, and no client shows what was before a
//! change of which it has been told.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec;
use core::cell::RefCell;

use super::*;
use crate::model::ModelFs;
use crate::wire::Fixed;
use crate::wire::header::OutHeader;
use crate::wire::notices::*;

const SECOND: Duration = Duration::from_secs(1);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// The client that keeps nothing.
const PLAIN: usize = 2;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn notice<B: Fixed>(code: u32, body: &B, rest: &[u8]) -> Vec<u8> {
    let mut message = vec![0; OutHeader::SIZE + B::SIZE];
    body.store(&mut message[OutHeader::SIZE..]);
    message.extend_from_slice(rest);
    let len = message.len() as u32;
    OutHeader { len, error: code as i32, unique: 0 }.store(&mut message);
    message
}

fn of_inode(ino: Ino, pages: bool) -> Vec<u8> {
    let off = if pages { 0 } else { u64::MAX };
    notice(FUSE_NOTIFY_INVAL_INODE, &NotifyInvalInodeOut { ino: ino.0, off, len: 0 }, &[])
}

fn of_name(parent: Ino, name: &[u8]) -> Vec<u8> {
    let (parent, namelen) = (parent.0, name.len() as u32);
    let body = NotifyInvalEntryOut { parent, namelen, flags: 0 };
    notice(FUSE_NOTIFY_INVAL_ENTRY, &body, &[name, &[0]].concat())
}

fn of_growth(ino: Ino, size: u64) -> Vec<u8> {
    let body = NotifyStoreOut { nodeid: ino.0, offset: size - 1, size: 1, padding: 0 };
    notice(FUSE_NOTIFY_STORE, &body, &[1])
}

/// What the server knows of a client, and what that keeps.
struct Side {
    kept: Kept,
    pending: VecDeque<Vec<u8>>,
    attributes: BTreeSet<Ino>,
    pages: BTreeSet<Ino>,
    names: BTreeMap<(Ino, Vec<u8>), Ino>,
    known: BTreeMap<Ino, u64>,
    messages: u64,
    lent: Lent,
    /// Its session has ended.
    over: bool,
}

struct World {
    model: ModelFs,
    sides: [Side; 2],
    seed: u64,
    time: Duration,
    now: i64,
    /// Others interfere with requests.
    busy: bool,
    /// Others have, since the server answered: what it said may be old by now.
    overtaken: bool,
    dir: Ino,
    files: Vec<Ino>,
}

type Shared = Rc<RefCell<World>>;

impl World {
    fn new(seed: u64) -> Shared {
        let side = || Side {
            kept: Kept::new(1 << 20),
            pending: VecDeque::new(),
            attributes: BTreeSet::new(),
            pages: BTreeSet::new(),
            names: BTreeMap::new(),
            known: BTreeMap::from([(Ino::ROOT, u64::MAX)]),
            messages: 0,
            lent: Lent::default(),
            over: false,
        };
        let (model, sides) = (ModelFs::new(0o755, Timespec::default()), [side(), side()]);
        let (time, files) = (SECOND, Vec::new());
        let seed = seed * 2 + 1;
        let mut world = World {
            model,
            sides,
            seed,
            time,
            now: 0,
            busy: false,
            overtaken: false,
            dir: Ino::ROOT,
            files,
        };
        let cx = world.cx();
        world.dir = world.model.mkdir(&cx, Ino::ROOT, name("dir"), 0o755).unwrap().ino;
        Rc::new(RefCell::new(world))
    }

    fn below(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) % below
    }

    fn cx(&mut self) -> Context {
        self.now += 1;
        Context { uid: 0, gid: 0, now: Timespec { sec: self.now, nsec: 0 } }
    }

    fn any_dir(&mut self) -> Ino {
        [Ino::ROOT, self.dir][self.below(2) as usize]
    }

    fn any_name(&mut self) -> Name<'static> {
        name(NAMES[self.below(4) as usize])
    }

    fn any_file(&mut self) -> Option<Ino> {
        let count = self.files.len() as u64;
        (count > 0).then(|| {
            let at = self.below(count) as usize;
            self.files[at]
        })
    }

    /// Has a client change something, and queues notices of what has become untrue.
    fn change<R>(&mut self, by: usize, act: impl FnOnce(&mut ModelFs) -> R) -> R {
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let World { model, sides, .. } = self;
        let before: Vec<_> = sides
            .iter()
            .map(|side| {
                let attributes = side.attributes.iter().map(|ino| model.getattr(&cx, *ino));
                let attributes: Vec<_> = attributes.collect();
                let contents = model.contents();
                let pages: Vec<_> =
                    side.pages.iter().map(|ino| contents.get(ino).cloned()).collect();
                (attributes, pages)
            })
            .collect();
        let result = act(model);
        let contents = self.model.contents();
        for (number, (attributes, pages)) in before.into_iter().enumerate() {
            let grows = self.below(2) == 0;
            let World { model, sides, .. } = self;
            let Side { attributes: leased, pages: lent, names, pending, .. } = &mut sides[number];
            let mut told = Vec::new();
            for (ino, before) in lent.clone().into_iter().zip(pages) {
                let now = contents.get(&ino);
                if now != before.as_ref() {
                    lent.remove(&ino);
                    let size = model.getattr(&cx, ino).map_or(0, |attr| attr.size);
                    told.push(match grows && size > 0 {
                        true => of_growth(ino, size),
                        false => of_inode(ino, true),
                    });
                }
            }
            for (ino, before) in leased.clone().into_iter().zip(attributes) {
                if number != by && model.getattr(&cx, ino) != before {
                    leased.remove(&ino);
                    told.push(of_inode(ino, false));
                }
            }
            names.retain(|(parent, called), ino| {
                let called = Name::new(called).unwrap();
                let holds = model.lookup(&cx, *parent, called).is_ok_and(|attr| attr.ino == *ino);
                if !holds && number != by {
                    told.push(of_name(*parent, called.bytes()));
                }
                holds
            });
            pending.extend(told);
        }
        result
    }

    /// A client that keeps nothing changes something.
    fn interfere(&mut self) {
        let cx = self.cx();
        let (parent, to, called, new) =
            (self.any_dir(), self.any_dir(), self.any_name(), self.any_name());
        let (file, size) = (self.any_file(), self.below(100_000));
        let byte = self.below(255) as u8;
        match self.below(8) {
            0 => {
                let made =
                    self.change(PLAIN, |model| model.mknod(&cx, parent, called, 0o100644, 0));
                self.files.extend(made.map(|attr| attr.ino));
                let more = self.files.len().saturating_sub(6);
                self.files.drain(..more);
            }
            1 => drop(self.change(PLAIN, |model| model.unlink(&cx, parent, called))),
            2 => {
                let none = RenameFlags::empty();
                let _ =
                    self.change(PLAIN, |model| model.rename(&cx, parent, called, to, new, none));
            }
            3 => {
                let Some(file) = file else { return };
                let _ = self.change(PLAIN, |model| model.link(&cx, file, parent, called));
            }
            4 => {
                let Some(file) = file else { return };
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                let _ = self.change(PLAIN, |model| model.setattr(&cx, file, None, &set));
            }
            _ => {
                let Some(file) = file else { return };
                let Ok(handle) = self.model.open(&cx, file, OpenFlags::WRITE) else { return };
                let data = vec![byte; 1 + size as usize / 3];
                let _ = self.change(PLAIN, |model| model.write(&cx, file, handle, size, &data));
                self.model.release(&cx, file, handle).unwrap();
            }
        }
    }

    /// The client takes some of its notices, perhaps none.
    fn deliver(&mut self, side: usize) {
        while self.below(3) > 0 {
            let Side { kept, pending, .. } = &mut self.sides[side];
            let Some(notice) = pending.pop_front() else { return };
            kept.take(&notice);
        }
    }

    /// The server gives an inode, with its attributes.
    fn given(&mut self, side: usize, ino: Ino, counts: bool) {
        let rests = self.busy && self.below(8) == 0;
        let side = &mut self.sides[side];
        if counts {
            *side.known.entry(ino).or_default() += 1;
        }
        if !rests && side.known.contains_key(&ino) {
            side.attributes.insert(ino);
            side.lent.attributes = SECOND;
        }
    }

    fn named(&mut self, side: usize, parent: Ino, called: &[u8], ino: Ino) {
        self.given(side, ino, true);
        if self.busy && self.below(8) == 0 {
            return;
        }
        let side = &mut self.sides[side];
        side.names.insert((parent, called.to_vec()), ino);
        side.lent.name = SECOND;
    }
}

/// A client's way to the server.
struct Way(Shared, usize);

impl Way {
    /// A request, upon whose answer the server does `lend`.
    fn ask<R>(
        &mut self,
        changes: bool,
        act: impl FnOnce(&mut ModelFs) -> Result<R>,
        lend: impl FnOnce(&mut World, &R),
    ) -> Result<R> {
        let world = &mut *self.0.borrow_mut();
        let Side { messages, lent, over, .. } = &mut world.sides[self.1];
        (*messages, *lent) = (*messages + 1, Lent::default());
        if *over {
            return Err(Errno::EIO);
        }
        if world.busy && world.below(4) == 0 {
            world.interfere();
        }
        let answer = match changes {
            true => world.change(self.1, act),
            false => act(&mut world.model),
        };
        if let Ok(told) = &answer {
            lend(world, told);
        }
        while world.busy && world.below(3) == 0 {
            world.overtaken = true;
            world.interfere();
            world.deliver(self.1);
        }
        answer
    }
}

macro_rules! at_server {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        $self.ask(true, |model| FileSystem::$verb(model, $($arg),*), |_, _| {})
    };
}

macro_rules! looks {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        $self.ask(false, |model| FileSystem::$verb(model, $($arg),*), |_, _| {})
    };
}

macro_rules! unasked {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        FileSystem::$verb(&mut $self.0.borrow_mut().model, $($arg),*)
    };
}

impl FileSystem for Way {
    crate::verbs!(at_server: unlink rmdir rename symlink mkdir tmpfile write fallocate release
        setxattr removexattr);
    crate::verbs!(looks: readlink read seek fsync opendir readdir releasedir fsyncdir syncfs statfs
        getxattr listxattr);
    crate::verbs!(unasked: is_submount accessed work_in_steps take_rest);

    fn lookup(&mut self, cx: &Context, parent: Ino, called: Name<'_>) -> Result<Attr> {
        let side = self.1;
        self.ask(
            false,
            |model| model.lookup(cx, parent, called),
            |world, attr| world.named(side, parent, called.bytes(), attr.ino),
        )
    }

    fn forget(&mut self, ino: Ino, count: u64) {
        let side = &mut self.0.borrow_mut().sides[self.1];
        let known = side.known.get_mut(&ino).expect("it was given");
        *known = known.checked_sub(count).expect("it was given so often");
        if *known == 0 {
            side.known.remove(&ino);
            side.attributes.remove(&ino);
            side.pages.remove(&ino);
            side.names.retain(|_, of| *of != ino);
        }
    }

    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        let side = self.1;
        self.ask(false, |model| model.getattr(cx, ino), |world, _| world.given(side, ino, false))
    }

    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        let side = self.1;
        self.ask(
            true,
            |model| model.setattr(cx, ino, handle, set),
            |world, _| world.given(side, ino, false),
        )
    }

    fn mknod(
        &mut self,
        cx: &Context,
        parent: Ino,
        called: Name<'_>,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let side = self.1;
        self.ask(
            true,
            |model| model.mknod(cx, parent, called, mode, rdev),
            |world, attr| world.named(side, parent, called.bytes(), attr.ino),
        )
    }

    fn link(&mut self, cx: &Context, ino: Ino, parent: Ino, called: Name<'_>) -> Result<Attr> {
        let side = self.1;
        self.ask(
            true,
            |model| model.link(cx, ino, parent, called),
            |world, attr| world.named(side, parent, called.bytes(), attr.ino),
        )
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        called: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let side = self.1;
        self.ask(
            true,
            |model| model.create(cx, parent, called, mode, flags),
            |world, (attr, _)| world.named(side, parent, called.bytes(), attr.ino),
        )
    }

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let side = self.1;
        let is_read = flags == OpenFlags::READ;
        self.ask(
            true,
            |model| model.open(cx, ino, flags),
            |world, _| {
                let fresh = world.busy && world.below(4) == 0;
                let known = world.sides[side].known.contains_key(&ino);
                world.sides[side].lent.pages = match (is_read && known, fresh) {
                    (false, _) => Pages::Direct,
                    (true, true) => Pages::Fresh,
                    (true, false) => Pages::Kept,
                };
            },
        )
    }
}

impl Lends for Way {
    fn lent(&self) -> Lent {
        self.0.borrow().sides[self.1].lent
    }

    fn read_to_keep(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let side = self.1;
        self.ask(
            false,
            |model| model.read(cx, ino, handle, offset, buf),
            |world, _| {
                if world.sides[side].known.contains_key(&ino) {
                    world.sides[side].pages.insert(ino);
                }
            },
        )
    }
}

/// The way to what is kept.
struct Hand(Shared, usize);

impl Keeper for Hand {
    fn with<R>(&self, act: impl FnOnce(&mut Kept) -> R) -> Option<R> {
        let world = &mut *self.0.borrow_mut();
        world.deliver(self.1);
        Some(act(&mut world.sides[self.1].kept))
    }

    fn now(&self) -> Duration {
        self.0.borrow().time
    }
}

type Keeps = Keeping<Way, Hand>;

fn client(world: &Shared, side: usize) -> Keeps {
    Keeping::new(Way(Rc::clone(world), side), Hand(Rc::clone(world), side))
}

/// A client, and what its caller has.
struct Caller {
    fs: Keeps,
    side: usize,
    world: Shared,
    refs: BTreeMap<Ino, u64>,
    open: Vec<(Ino, Handle)>,
    /// How often all was known to the client when it answered.
    judged: u64,
}

impl Caller {
    fn new(world: &Shared, side: usize) -> Caller {
        let (fs, world) = (client(world, side), Rc::clone(world));
        Caller { fs, side, world, refs: BTreeMap::new(), open: Vec::new(), judged: 0 }
    }

    /// Judges an answer, if the client has been told of all that was changed by then.
    fn judge<R: PartialEq + core::fmt::Debug>(
        &mut self,
        what: &str,
        answer: &R,
        right: impl FnOnce(&mut ModelFs) -> R,
    ) {
        let world = &mut *self.world.borrow_mut();
        if world.sides[self.side].pending.is_empty() && !world.overtaken {
            assert_eq!(*answer, right(&mut world.model), "{what} by {}", self.side);
            self.judged += 1;
        }
    }

    fn referred(&mut self, answer: Result<Attr>) {
        if let Ok(attr) = answer {
            *self.refs.entry(attr.ino).or_default() += 1;
            let mut world = self.world.borrow_mut();
            if !attr.is_dir() && !world.files.contains(&attr.ino) {
                world.files.push(attr.ino);
                if world.files.len() > 6 {
                    world.files.remove(0);
                }
            }
        }
    }

    fn step(&mut self) {
        let (cx, parent, to, called, new, file, what, size) = {
            let mut world = self.world.borrow_mut();
            let more = Duration::from_millis(world.below(10));
            world.time += more;
            world.overtaken = false;
            let quiet = if world.busy { 4 } else { world.below(4) as usize };
            (
                world.cx(),
                world.any_dir(),
                world.any_dir(),
                world.any_name(),
                world.any_name(),
                world.any_file(),
                // Quiet times, in which what is kept is used.
                [12, 26, 2, world.below(32), world.below(32)][quiet],
                world.below(100_000),
            )
        };
        let mut forgets = None;
        match (what, file) {
            (0..8, _) => {
                let answer = self.fs.lookup(&cx, parent, called);
                self.referred(answer);
                self.judge("lookup", &answer, |model| model.lookup(&cx, parent, called));
            }
            (8, _) => {
                let answer = self.fs.getattr(&cx, parent);
                self.judge("getattr", &answer, |model| model.getattr(&cx, parent));
            }
            (9..14, Some(file)) => {
                let answer = self.fs.getattr(&cx, file);
                self.judge("getattr", &answer, |model| model.getattr(&cx, file));
            }
            (14, _) => {
                let answer = self.fs.mknod(&cx, parent, called, 0o100_644, 0);
                self.referred(answer);
            }
            (15, _) => drop(self.fs.unlink(&cx, parent, called)),
            (16, _) => {
                let _ = self.fs.rename(&cx, parent, called, to, new, RenameFlags::empty());
            }
            (17, Some(file)) => {
                let answer = self.fs.link(&cx, file, parent, called);
                self.referred(answer);
            }
            (18, Some(file)) => {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                let _ = self.fs.setattr(&cx, file, None, &set);
            }
            (19, _) => {
                let flags = OpenFlags::WRITE | OpenFlags::TRUNC;
                if let Ok((attr, handle)) = self.fs.create(&cx, parent, called, 0o644, flags) {
                    self.referred(Ok(attr));
                    let data = vec![size as u8 | 1; 1 + size as usize];
                    let _ = self.fs.write(&cx, attr.ino, handle, size / 2, &data);
                    let _ = self.fs.release(&cx, attr.ino, handle);
                }
            }
            (20, Some(file)) => forgets = self.refs.get(&file).map(|count| (file, *count)),
            (21, Some(file)) => forgets = self.refs.get(&file).map(|_| (file, 1)),
            (22, Some(file)) => {
                if let Ok(handle) = self.fs.open(&cx, file, OpenFlags::WRITE) {
                    let _ = self.fs.write(&cx, file, handle, size, &[size as u8 | 1; 5000]);
                    let _ = self.fs.release(&cx, file, handle);
                }
            }
            (23 | 24, Some(file)) if self.open.len() < 4 => {
                if let Ok(handle) = self.fs.open(&cx, file, OpenFlags::READ) {
                    self.open.push((file, handle));
                }
            }
            (25, _) if !self.open.is_empty() => {
                let (ino, handle) = self.open.remove(size as usize % self.open.len());
                self.fs.release(&cx, ino, handle).unwrap();
            }
            (26.., _) if !self.open.is_empty() => {
                let (ino, handle) = self.open[size as usize % self.open.len()];
                let (offset, len) = ((size / 7) * 3, 1 + (size as usize * 7) % 70_000);
                let read = |fs: &mut dyn FileSystem| {
                    let mut data = vec![0; len];
                    let got = fs.read(&cx, ino, handle, offset, &mut data)?;
                    data.truncate(got);
                    Ok::<_, Errno>(data)
                };
                let answer = read(&mut self.fs);
                self.judge("read", &answer, |model| read(model));
            }
            _ => {}
        }
        if let Some((file, count)) = forgets {
            let left = self.refs[&file] - count;
            self.refs.insert(file, left);
            self.refs.retain(|_, count| *count > 0);
            self.fs.forget(file, count);
        }
        let world = self.world.borrow();
        for ino in self.refs.keys() {
            assert!(world.sides[self.side].known.contains_key(ino), "{ino} is forgotten");
        }
    }
}

#[test]
fn what_is_kept_is_what_there_is() {
    let (mut judged, mut kept) = (0, 0);
    for seed in 0..if cfg!(miri) { 1 } else { 60 } {
        let world = World::new(seed);
        let mut callers = [Caller::new(&world, 0), Caller::new(&world, 1)];
        for step in 0..if cfg!(miri) { 200 } else { 1500 } {
            world.borrow_mut().busy = step % 100 < 60;
            let which = world.borrow_mut().below(2) as usize;
            let before = world.borrow().sides[which].messages;
            let seen = callers[which].judged;
            callers[which].step();
            if callers[which].judged > seen {
                judged += 1;
                kept += u64::from(world.borrow().sides[which].messages == before);
            }
        }
    }
    assert!(cfg!(miri) || judged > 10_000 && kept > 2_000, "{judged} {kept}");
}

/// A file of 100,000 bytes, and a client that has looked it up and opened it.
fn opened() -> (Shared, Keeps, Ino, Handle) {
    let world = World::new(0);
    let cx = world.borrow_mut().cx();
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let (attr, handle) =
        world.borrow_mut().model.create(&cx, Ino::ROOT, name("a"), 0o644, both).unwrap();
    let data: Vec<u8> = (0..100_000).map(|at| (at / 100) as u8).collect();
    world.borrow_mut().model.write(&cx, attr.ino, handle, 0, &data).unwrap();
    let mut fs = client(&world, 0);
    fs.getattr(&cx, Ino::ROOT).unwrap();
    assert_eq!(fs.lookup(&cx, Ino::ROOT, name("a")).unwrap().size, 100_000);
    let handle = fs.open(&cx, attr.ino, OpenFlags::READ).unwrap();
    (world, fs, attr.ino, handle)
}

/// How many messages `act` takes.
fn messages<R>(world: &Shared, act: impl FnOnce() -> R) -> (u64, R) {
    let before = world.borrow().sides[0].messages;
    let result = act();
    (world.borrow().sides[0].messages - before, result)
}

#[test]
fn what_is_known_takes_no_message() {
    let (world, mut fs, ino, handle) = opened();
    let cx = world.borrow_mut().cx();
    let use_all = |fs: &mut Keeps| {
        messages(&world, || {
            let found = fs.lookup(&cx, Ino::ROOT, name("a"))?;
            assert_eq!(fs.getattr(&cx, ino)?, found);
            let mut data = [0; 50_000];
            assert_eq!(fs.read(&cx, ino, handle, 50_050, &mut data)?, 49_950);
            assert_eq!((data[0], data[49_949]), ((500 % 256) as u8, (999 % 256) as u8));
            fs.read(&cx, ino, handle, 100_000, &mut data)
        })
    };
    // One for what is around the first read.
    assert_eq!(use_all(&mut fs), (1, Ok(0)));
    assert_eq!(use_all(&mut fs), (0, Ok(0)));
    // Attributes hold for a second; pages need those.
    world.borrow_mut().time += SECOND;
    assert_eq!(use_all(&mut fs), (1, Ok(0)), "the name, with the attributes");
    assert_eq!(use_all(&mut fs), (1, Ok(0)), "what the directory is");
    assert_eq!(use_all(&mut fs), (0, Ok(0)));
    // Whoever takes rights away from a directory is heeded.
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    world.borrow_mut().change(PLAIN, |model| model.setattr(&cx, Ino::ROOT, None, &set)).unwrap();
    while !world.borrow().sides[0].pending.is_empty() {
        world.borrow_mut().deliver(0);
    }
    assert_eq!(use_all(&mut fs), (2, Ok(0)), "the directory, and then the name");
    // A server that has ended the session is found out.
    world.borrow_mut().sides[0].over = true;
    assert_eq!(use_all(&mut fs), (0, Ok(0)));
    world.borrow_mut().time += SECOND;
    assert_eq!(use_all(&mut fs).1, Err(Errno::EIO));
    let (asked, answer) = messages(&world, || fs.read(&cx, ino, handle, 0, &mut [0; 10]));
    assert_eq!((asked, answer), (1, Err(Errno::EIO)));
}

/// With an error that may be the session's end all goes at once.
#[test]
fn nothing_is_kept_after_the_session() {
    let (world, mut fs, ino, handle) = opened();
    let cx = world.borrow_mut().cx();
    fs.read(&cx, ino, handle, 0, &mut [0; 10]).unwrap();
    world.borrow_mut().sides[0].over = true;
    fs.read(&cx, ino, handle, 0, &mut [0; 10]).unwrap();
    assert_eq!(fs.statfs(&cx).unwrap_err(), Errno::EIO);
    assert_eq!(fs.getattr(&cx, ino), Err(Errno::EIO));
    assert_eq!(fs.read(&cx, ino, handle, 0, &mut [0; 10]), Err(Errno::EIO));
    assert_eq!(fs.lookup(&cx, Ino::ROOT, name("a")), Err(Errno::EIO));
}

/// What is no notice, or one that is not known, drops all.
#[test]
fn notices_are_checked() {
    let bad: [fn(&mut Vec<u8>); 6] = [
        |message| message.truncate(20),
        |message| message[8] = 1,
        |message| message[4] = 8,
        |message| message[7] = 0x80,
        |message| message.push(0),
        Vec::clear,
    ];
    for (number, spoil) in bad.iter().enumerate() {
        let (world, mut fs, ino, _) = opened();
        let cx = world.borrow_mut().cx();
        assert_eq!(messages(&world, || fs.getattr(&cx, ino)).0, 0);
        let mut message = of_inode(Ino(99), true);
        world.borrow_mut().sides[0].kept.take(&message);
        assert_eq!(messages(&world, || fs.getattr(&cx, ino)).0, 0, "of another inode");
        spoil(&mut message);
        world.borrow_mut().sides[0].kept.take(&message);
        assert_eq!(messages(&world, || fs.getattr(&cx, ino)).0, 1, "{number}");
    }
    let named = of_name(Ino(7), b"name");
    assert_eq!(Notice::get(&named), Some(Notice::Entry { parent: Ino(7), name: name("name") }));
    for (at, byte) in [(named.len() - 1, 1), (16 + 8, 3), (16 + 8, 5), (16 + 16, b'/')] {
        let mut message = named.clone();
        message[at] = byte;
        assert_eq!(Notice::get(&message), None, "{at}");
    }
}
