//! Sessions with Views: a client reads from the View what the server would have answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_host::shm::MappedView;
use atoll_server::{Access, Credentials, Identity, Limits, Session, Volume};
use atoll_tests::differential::{replay, seeds};
use atoll_tests::fixtures::{cx, root, user, volume};
use atoll_tests::linear::clients::Dawdling;
use atoll_tests::linear::history::Mix;
use atoll_tests::linear::run::{self, linearizable};
use atoll_tests::loopback::Loopback;
use atoll_tests::ops::{Profile, World, seeded_ops};
use atoll_tests::subject::{RW, name};
use atoll_tests::{Quirks, filesystem_conformance};
use atoll_vfs::model::{ModelFs, snapshot};
use atoll_vfs::*;

type Viewing<F> = Cached<F, Arc<MappedView>>;
const ROOT: Ino = Ino::ROOT;

/// A session with a View of at most `bytes`, and the View.
fn begin<F: FileSystem + Send>(
    volume: &Arc<Volume<F>>,
    peer: Credentials,
    access: Access,
    bytes: usize,
) -> (Session<F>, Arc<MappedView>) {
    let access = Access { limits: Limits { view: bytes, ..access.limits }, ..access };
    let mut session = volume.session(peer, access).expect("a session");
    let memory =
        atoll_host::server::open_view(&mut session, usize::MAX).expect("memory").expect("a View");
    (session, MappedView::attach(memory, || true).expect("a View"))
}

fn viewing<F: FileSystem + Send>(
    volume: &Arc<Volume<F>>,
    peer: Credentials,
    access: Access,
    bytes: usize,
) -> Viewing<Session<F>> {
    let (session, view) = begin(volume, peer, access, bytes);
    Cached::new(session, view, Arc::default())
}

/// A View in which little has room for long.
const TIGHT: usize = 100 << 10;
const WIDE: usize = 4 << 20;

fn attested() -> Quirks {
    Quirks { ownership: false, ..Quirks::default() }
}

filesystem_conformance!(
    model_with_a_view,
    || viewing(
        &atoll_host::server::volume(ModelFs::default(), "v"),
        root(),
        Access::default(),
        WIDE
    ),
    attested()
);

filesystem_conformance!(
    volume_with_a_tight_view,
    || viewing(
        &atoll_host::server::volume(volume(16 << 10), "v"),
        root(),
        Access::default(),
        TIGHT
    ),
    attested()
);

// Through messages, as a ring carries them, below a directory of a user's own.
filesystem_conformance!(
    subtree_with_a_view,
    || {
        let volume = atoll_host::server::volume(volume(16 << 10), "v");
        let mut all = volume.session(root(), Access::default()).unwrap();
        let own = all.mkdir(&cx(), ROOT, name("own"), 0o755).unwrap().ino;
        let owner = SetAttr { uid: Some(1000), gid: Some(1000), ..SetAttr::default() };
        all.setattr(&cx(), own, None, &owner).unwrap();
        let access = Access { subtree: Some("/own".into()), ..Access::default() };
        let (session, view) = begin(&volume, user(), access, WIDE);
        let trusting = ServerOptions::default();
        let options = ServerOptions { extensions: wire::Extensions::all(), ..trusting };
        let wire = Loopback::new(session, options);
        let client = Client::connect(wire, ClientOptions::default()).expect("connect");
        Cached::new(client, view, Arc::default())
    },
    Quirks { ownership: false, devices: false, xattr_everywhere: false, ..Quirks::default() }
);

#[test]
fn linearizable_with_views() {
    for (bytes, count) in [(WIDE, 150), (TIGHT, 150)] {
        linearizable("--test views linearizable_with_views", count, &Mix::ALL, |_, n| {
            let volume = atoll_host::server::volume(Dawdling::new(volume(2048)), "v");
            let client = |_| viewing(&volume, root(), Access::default(), bytes);
            run::World::new((0..n).map(client).collect())
        });
    }
}

// ---- What the View has, and what it must have dropped ----

struct Scene {
    volume: Arc<Volume<ModelFs>>,
    /// Another client, whose calls the View has to follow.
    other: Session<ModelFs>,
    session: Session<ModelFs>,
    view: Arc<MappedView>,
    /// Belongs to the user.
    dir: Ino,
    file: Ino,
}

const PAGE: usize = 4096;

impl Scene {
    /// `/d/f` of two pages of the byte 1, which the user has open for reading.
    fn new() -> (Scene, Handle) {
        Self::with(Access::default(), "d")
    }

    fn with(access: Access, path: &str) -> (Scene, Handle) {
        let volume = atoll_host::server::volume(ModelFs::default(), "v");
        let mut other = volume.session(root(), Access::default()).unwrap();
        let dir = other.mkdir(&cx(), ROOT, name("d"), 0o755).unwrap().ino;
        let owner = SetAttr { uid: Some(1000), ..SetAttr::default() };
        other.setattr(&cx(), dir, None, &owner).unwrap();
        let (attr, handle) = other.create(&cx(), dir, name("f"), 0o644, RW).unwrap();
        other.write(&cx(), attr.ino, handle, 0, &[1; 2 * PAGE]).unwrap();
        other.release(&cx(), attr.ino, handle).unwrap();
        let (mut session, view) = begin(&volume, user(), access, WIDE);
        let mut at = ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            at = session.lookup(&cx(), at, name(part)).unwrap().ino;
        }
        let file = session.lookup(&cx(), at, name("f")).unwrap().ino;
        let handle = session.open(&cx(), file, OpenFlags::READ).unwrap();
        let mut world = Scene { volume, other, session, view, dir: at, file };
        world.fill(handle);
        (world, handle)
    }

    /// Reads both pages, after which the View has them.
    fn fill(&mut self, handle: Handle) {
        self.session.read(&cx(), self.file, handle, 0, &mut [0; 2 * PAGE]).unwrap();
        assert_eq!(self.pages(), [true; 2]);
        assert!(self.named("f") && self.view.reader().unwrap().attr(self.file.0).is_some());
    }

    /// Which pages the View has.
    fn pages(&self) -> [bool; 2] {
        let view = self.view.reader().unwrap();
        let page = |n: usize| view.read(self.file.0, (n * PAGE) as u64, &mut [0; PAGE]).is_some();
        [page(0), page(1)]
    }

    /// Whether the View says that there is such a file.
    fn named(&self, file: &str) -> bool {
        let found = self.view.reader().unwrap().lookup_attr(self.dir.0, file.as_bytes());
        found.is_some_and(|found| found.is_some())
    }

    /// Whether the View says that there is no such file.
    fn missing(&self, file: &str) -> bool {
        self.view.reader().unwrap().lookup_attr(self.dir.0, file.as_bytes()) == Some(None)
    }
}

/// A file system that cannot be asked.
fn silent() -> Client<Inline<ModelFs, fn() -> Timespec>> {
    let clock: fn() -> Timespec = Timespec::default;
    let options = ServerOptions { extensions: wire::Extensions::all(), ..ServerOptions::default() };
    let wire = Inline::new(ModelFs::default(), options, clock);
    Client::connect(wire, ClientOptions::default()).unwrap()
}

#[test]
fn a_mapped_file_has_no_pages_in_a_view() {
    let (mut world, handle) = Scene::new();
    let writing = world.other.open(&cx(), world.file, RW).unwrap();
    let mapping = world.other.map(&cx(), world.file, writing, 0, 2 * PAGE as u64).unwrap();
    assert_eq!(world.pages(), [false; 2]);
    let (memory, _) = atoll_host::server::mapped_memory(&world.volume, mapping.token).unwrap();
    for n in [2, 3] {
        rustix::io::pwrite(&memory, &[n; PAGE], PAGE as u64).unwrap();
        let mut page = [0; PAGE];
        world.session.read(&cx(), world.file, handle, PAGE as u64, &mut page).unwrap();
        assert_eq!(page, [n; PAGE]);
        world.other.write(&cx(), world.file, writing, 0, &[n]).unwrap();
        world.volume.tend_mappings(cx().now, &|| {}).unwrap();
        assert_eq!(world.pages(), [false; 2]);
    }
    drop(memory);
    for _ in 0..4 {
        world.volume.tend_mappings(cx().now, &|| {}).unwrap();
    }
    world.fill(handle);
}

#[test]
fn what_is_in_the_view_needs_no_server() {
    let (mut world, handle) = Scene::new();
    // The silent file system's own answers would be wrong.
    let open = Arc::new(OpenFiles::default());
    let (file, dir) = (world.file, world.dir);
    let attr = world.session.getattr(&cx(), file).unwrap();
    let mut cached = Cached::new(silent(), Arc::clone(&world.view), Arc::clone(&open));
    assert_eq!(cached.getattr(&cx(), file), Ok(attr));
    assert_eq!(cached.lookup(&cx(), dir, name("f")), Ok(attr));
    // It has not seen the file being opened.
    let mut buf = [0; PAGE];
    assert_ne!(cached.read(&cx(), file, handle, 1, &mut buf), Ok(PAGE));
    let (session, other) = (world.session, &mut world.other);
    let mut whole = Cached::new(session, Arc::clone(&world.view), open);
    let handle = whole.open(&cx(), file, OpenFlags::READ).unwrap();
    assert_eq!(cached.read(&cx(), file, handle, 1, &mut buf), Ok(PAGE));
    assert_eq!(buf, [1; PAGE]);
    assert_eq!(cached.read(&cx(), file, handle, 2 * PAGE as u64, &mut buf), Ok(0));
    // A name that does not exist is known too, until a client makes it.
    assert_eq!(whole.lookup(&cx(), dir, name("g")), Err(Errno::ENOENT));
    assert_eq!(cached.lookup(&cx(), dir, name("g")), Err(Errno::ENOENT));
    let made = other.mkdir(&cx(), dir, name("g"), 0o700).unwrap();
    assert_eq!(whole.lookup(&cx(), dir, name("g")).unwrap().ino, made.ino);
    // For other callers the server is asked.
    let mut strict = cached.for_caller(1000, 1000);
    assert_ne!(strict.lookup(&cx(), dir, name("f")), Ok(attr));
    let mine = Context { uid: 1000, gid: 1000, ..cx() };
    assert_eq!(strict.lookup(&mine, dir, name("f")), Ok(attr));
    whole.release(&cx(), file, handle).unwrap();
    assert_ne!(strict.read(&cx(), file, handle, 1, &mut buf), Ok(PAGE));
}

#[test]
fn changes_of_others_are_followed() {
    let (mut world, handle) = Scene::new();
    let (dir, file) = (world.dir, world.file);
    let writer = world.other.open(&cx(), file, RW).unwrap();
    world.other.write(&cx(), file, writer, PAGE as u64 + 5, &[2]).unwrap();
    assert_eq!(world.pages(), [false; 2], "the length is not known");
    assert_eq!(world.session.getattr(&cx(), file).unwrap().size, 2 * PAGE as u64);
    assert_eq!(world.pages(), [true, false]);
    world.fill(handle);
    let cut = SetAttr { size: Some(PAGE as u64 + 1), ..SetAttr::default() };
    world.other.setattr(&cx(), file, None, &cut).unwrap();
    world.session.getattr(&cx(), file).unwrap();
    assert_eq!(world.pages(), [true, false]);
    world.session.read(&cx(), file, handle, PAGE as u64, &mut [0; PAGE]).unwrap();
    let mut buf = [9; PAGE];
    let view = Arc::clone(&world.view);
    let view = view.reader().unwrap();
    assert_eq!(view.read(file.0, PAGE as u64, &mut buf), Some(1));
    world.other.fallocate(&cx(), file, writer, 0, 8, FallocateMode::ZERO_RANGE).unwrap();
    world.session.read(&cx(), file, handle, 0, &mut buf).unwrap();
    assert_eq!(view.read(file.0, 0, &mut buf), Some(PAGE));
    assert_eq!(buf[..9], [0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let truncating = world.other.open(&cx(), file, RW | OpenFlags::TRUNC).unwrap();
    assert_eq!(world.pages(), [false; 2]);
    world.other.release(&cx(), file, truncating).unwrap();
    // Names.
    world.session.getattr(&cx(), file).unwrap();
    let none = RenameFlags::empty();
    assert!(world.named("f"));
    world.other.rename(&cx(), dir, name("f"), dir, name("g"), none).unwrap();
    assert!(!world.named("f"));
    assert!(world.session.lookup(&cx(), dir, name("f")).is_err());
    assert!(world.missing("f"));
    world.other.link(&cx(), file, dir, name("f")).unwrap();
    assert!(!world.missing("f") && world.view.reader().unwrap().attr(file.0).is_none());
    assert_eq!(world.session.lookup(&cx(), dir, name("f")).unwrap().nlink, 2);
    assert!(world.named("f"));
    world.other.unlink(&cx(), dir, name("f")).unwrap();
    assert!(!world.named("f"));
    // Extended attributes change the time of change.
    world.session.getattr(&cx(), file).unwrap();
    let any = XattrFlags::empty();
    world.other.setxattr(&cx(), file, b"user.a", b"b", any).unwrap();
    assert!(world.view.reader().unwrap().attr(file.0).is_none());
}

#[test]
fn a_write_is_read_back_from_the_view() {
    let (mut world, _) = Scene::new();
    let file = world.file;
    let set = SetAttr { mode: Some(0o666), ..SetAttr::default() };
    world.other.setattr(&cx(), file, None, &set).unwrap();
    let handle = world.session.open(&cx(), file, RW).unwrap();
    world.fill(handle);
    world.session.write(&cx(), file, handle, 10, &[7; 3]).unwrap();
    let mut buf = [0; 5];
    assert_eq!(world.view.reader().unwrap().read(file.0, 9, &mut buf), Some(5));
    assert_eq!(buf, [1, 7, 7, 7, 1]);
}

#[test]
fn without_permission_nothing_is_found() {
    // The search of the directory.
    let (mut world, handle) = Scene::new();
    let closed = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert!(world.named("f"));
    world.other.setattr(&cx(), world.dir, None, &closed).unwrap();
    assert!(!world.named("f"));
    assert_eq!(world.session.lookup(&cx(), world.dir, name("f")), Err(Errno::EACCES));
    assert!(!world.named("f") && !world.missing("f"));
    // An open file stays readable, as everywhere, until it is closed.
    assert_eq!(world.pages(), [true; 2]);
    world.session.release(&cx(), world.file, handle).unwrap();
    assert_eq!(world.pages(), [false; 2]);

    // The last handle that may read counts, not others.
    let (mut world, handle) = Scene::new();
    let open = SetAttr { mode: Some(0o666), ..SetAttr::default() };
    world.other.setattr(&cx(), world.file, None, &open).unwrap();
    let second = world.session.open(&cx(), world.file, OpenFlags::READ).unwrap();
    let writing = world.session.open(&cx(), world.file, OpenFlags::WRITE).unwrap();
    world.session.release(&cx(), world.file, handle).unwrap();
    world.fill(second);
    world.session.release(&cx(), world.file, second).unwrap();
    world.session.getattr(&cx(), world.file).unwrap();
    assert_eq!(world.pages(), [false; 2]);
    world.session.write(&cx(), world.file, writing, 0, &[3; PAGE]).unwrap();
    world.session.getattr(&cx(), world.file).unwrap();
    assert_eq!(world.pages(), [false; 2]);

    // An owner that changes.
    let (mut world, _) = Scene::new();
    let given = SetAttr { uid: Some(5), mode: Some(0o700), ..SetAttr::default() };
    world.other.setattr(&cx(), world.dir, None, &given).unwrap();
    assert!(!world.named("f"));
}

#[test]
fn what_leaves_the_subtree_is_not_found() {
    let access = Access { subtree: Some("/d".into()), ..Access::default() };
    let (mut world, _) = Scene::with(access, "");
    assert_eq!(world.dir, ROOT, "the root of the session");
    // The volume's root is another inode, whose changes are not the session's.
    world.other.mkdir(&cx(), ROOT, name("beside"), 0o755).unwrap();
    assert!(world.view.reader().unwrap().lookup(ROOT.0, b"beside").is_none());
    assert!(world.named("f"));
    let d = world.other.lookup(&cx(), ROOT, name("d")).unwrap().ino;
    let inner = world.other.mkdir(&cx(), d, name("inner"), 0o755).unwrap().ino;
    world.other.mkdir(&cx(), inner, name("x"), 0o755).unwrap();
    let inner_ino = world.session.lookup(&cx(), ROOT, name("inner")).unwrap().ino;
    world.session.lookup(&cx(), inner_ino, name("x")).unwrap();
    let view = Arc::clone(&world.view);
    let found = || view.reader().unwrap().lookup(inner_ino.0, b"x").is_some();
    assert!(found());
    let none = RenameFlags::empty();
    world.other.rename(&cx(), d, name("inner"), ROOT, name("out"), none).unwrap();
    assert!(!found());
    assert_eq!(world.session.lookup(&cx(), inner_ino, name("x")), Err(Errno::ESTALE));
    assert!(!found());
}

#[test]
fn what_the_server_forgets_is_not_found() {
    let limits = Limits { open_files: 4, inodes: 8, ..Limits::default() };
    let (mut world, handle) = Scene::with(Access { limits, ..Access::default() }, "d");
    world.session.release(&cx(), world.file, handle).unwrap();
    assert!(world.named("f"));
    for number in 0..20 {
        let file = format!("n{number}");
        world.other.mkdir(&cx(), world.dir, name(&file), 0o755).unwrap();
        world.session.lookup(&cx(), world.dir, name(&file)).unwrap();
        assert!(world.named(&file));
        // The server knows every inode that the View finds.
        for number in 0..=number {
            let file = format!("n{number}");
            let found = world.view.reader().unwrap().lookup_attr(world.dir.0, file.as_bytes());
            if let Some(Some(attr)) = found {
                assert!(world.session.getattr(&cx(), attr.ino).is_ok(), "{file}");
            }
        }
    }
    assert!(!world.named("f"));
}

#[test]
fn the_end_is_seen() {
    let (world, _) = Scene::new();
    let view = Arc::clone(&world.view);
    assert!(view.reader().unwrap().is_open());
    drop(world.session);
    assert!(!view.reader().unwrap().is_open());
    assert!(view.reader().unwrap().attr(world.file.0).is_none());
    // No View is left to invalidate, nor any use for one.
    drop((world.other, world.volume));

    // A server that was killed closes nothing.
    let volume = atoll_host::server::volume(ModelFs::default(), "v");
    let mut session = volume.session(root(), Access::default()).unwrap();
    let memory = atoll_host::server::open_view(&mut session, usize::MAX).unwrap().unwrap();
    let alive = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&alive);
    let view = MappedView::attach(memory, move || seen.load(Ordering::Relaxed)).unwrap();
    session.getattr(&cx(), ROOT).unwrap();
    assert!(view.reader().unwrap().attr(1).is_some());
    alive.store(false, Ordering::Relaxed);
    let left = (0..1000).take_while(|_| view.reader().is_some()).count();
    assert!(left <= 256, "{left}");
    alive.store(true, Ordering::Relaxed);
    assert!(view.reader().is_none(), "for ever");
}

/// After random operations of its own a client finds what the server would have answered.
#[test]
fn random_operations_leave_nothing_stale() {
    for seed in seeds(30) {
        let access = || Access { identity: Identity::Checked, ..Access::default() };
        let bytes = if seed % 2 == 0 { TIGHT } else { WIDE };
        let mut fs =
            viewing(&atoll_host::server::volume(volume(16 << 10), "v"), root(), access(), bytes);
        let mut world = World::new(true);
        for (i, op) in seeded_ops(seed, 600, &Profile::DIFFERENTIAL).iter().enumerate() {
            let cx = Context { uid: 1, gid: 2, now: Timespec { sec: i as i64, nsec: 1 } };
            world.apply(&mut fs, &cx, op);
            if i % 4 != 0 {
                continue;
            }
            let found = snapshot(&mut fs).expect("a snapshot");
            let told = snapshot(fs.inner()).expect("a snapshot");
            let differences = told.differences(&found, 10);
            let again = replay(seed, "--test views random_operations_leave_nothing_stale");
            assert!(differences.is_empty(), "seed {seed}, {i}: {op:?}: {differences:#?}{again}");
        }
    }
}
