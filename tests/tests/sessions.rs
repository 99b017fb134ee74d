//! Sessions of a shared volume: the contract of the file seam, subtrees, limits, what one session
//! sees of another, and what a session leaves behind.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use atoll_block::RamDevice;
use atoll_fs::Fs;
use atoll_host::shm::MappedView;
use atoll_server::rights::accounts::{Accounts, Resource, Shares};
use atoll_server::{
    Access, Credentials, Identity, Limits, LockKind, LockOwner, LockRange, LockRequest, Session,
    Volume, Waited,
};
use atoll_tests::fixtures::{cx, root, user, volume};
use atoll_tests::subject::{RW, name};
use atoll_tests::{Quirks, filesystem_conformance};
use atoll_vfs::model::ModelFs;
use atoll_vfs::*;

type Real = Fs<RamDevice>;
const ROOT: Ino = Ino::ROOT;

// Root whose calls act for others, as a FUSE mount's do: the whole contract.
filesystem_conformance!(checked, || {
    let access = Access { identity: Identity::Checked, ..Access::default() };
    atoll_host::server::volume(volume(16 << 10), "v").session(root(), access).unwrap()
});

// Root itself: everything belongs to it, whatever the context says.
filesystem_conformance!(
    attested,
    || atoll_host::server::volume(volume(16 << 10), "v")
        .session(root(), Access::default())
        .unwrap(),
    Quirks { ownership: false, ..Quirks::default() }
);

// An ordinary user below a directory of its own.
filesystem_conformance!(
    subtree,
    || {
        let volume = atoll_host::server::volume(volume(16 << 10), "v");
        let mut all = volume.session(root(), Access::default()).unwrap();
        all.mkdir(&cx(), ROOT, name("beside"), 0o755).unwrap();
        let own = all.mkdir(&cx(), ROOT, name("own"), 0o755).unwrap().ino;
        let owner = SetAttr { uid: Some(1000), gid: Some(1000), ..SetAttr::default() };
        all.setattr(&cx(), own, None, &owner).unwrap();
        let access = Access { subtree: Some(PathBuf::from("/own")), ..Access::default() };
        volume.session(user(), access).unwrap()
    },
    Quirks { ownership: false, devices: false, xattr_everywhere: false, ..Quirks::default() }
);

fn walk<F: FileSystem>(fs: &mut F, path: &str) -> Result<Attr> {
    let mut attr = fs.getattr(&cx(), ROOT)?;
    for component in path.split('/').filter(|component| !component.is_empty()) {
        attr = fs.lookup(&cx(), attr.ino, name(component))?;
    }
    Ok(attr)
}

// ---- Subtrees ----

/// A volume with `/a/in/f`, `/a/in/deep/g` and `/secret`, which is 0644.
fn nested() -> (Arc<Volume<ModelFs>>, Session<ModelFs>) {
    let volume = atoll_host::server::volume(ModelFs::default(), "v");
    let mut all = volume.session(root(), Access::default()).unwrap();
    let a = all.mkdir(&cx(), ROOT, name("a"), 0o755).unwrap().ino;
    let inside = all.mkdir(&cx(), a, name("in"), 0o777).unwrap().ino;
    let deep = all.mkdir(&cx(), inside, name("deep"), 0o777).unwrap().ino;
    for (parent, at) in [(ROOT, "secret"), (inside, "f"), (deep, "g")] {
        all.mknod(&cx(), parent, name(at), 0o100644, 0).unwrap();
    }
    (volume, all)
}

fn below(volume: &Arc<Volume<ModelFs>>, peer: Credentials, at: &str) -> Session<ModelFs> {
    let access = Access { subtree: Some(PathBuf::from(at)), ..Access::default() };
    volume.session(peer, access).unwrap()
}

#[test]
fn nothing_outside_a_subtree_is_reachable() {
    let (volume, mut all) = nested();
    let secret = walk(&mut all, "secret").unwrap().ino;
    for peer in [root(), user()] {
        let mut s = below(&volume, peer, "/a/in");
        assert_eq!(walk(&mut s, "").unwrap().ino, ROOT);
        assert_eq!(walk(&mut s, "..").unwrap().ino, ROOT);
        assert_eq!(walk(&mut s, "deep/../..").unwrap().ino, ROOT);
        assert!(walk(&mut s, "deep/g").is_ok());
        assert_eq!(walk(&mut s, "secret").err(), Some(Errno::ENOENT));
        // Every number that the volume has ever given, tried in every call that takes one.
        let given = [walk(&mut s, "f").unwrap().ino, walk(&mut s, "deep/g").unwrap().ino];
        let deep = walk(&mut s, "deep").unwrap().ino;
        for ino in (2..40).map(Ino).filter(|ino| !given.contains(ino) && *ino != deep) {
            assert_eq!(s.getattr(&cx(), ino).err(), Some(Errno::ESTALE), "{ino}");
            assert_eq!(s.open(&cx(), ino, OpenFlags::READ).err(), Some(Errno::ESTALE));
            assert_eq!(s.opendir(&cx(), ino).err(), Some(Errno::ESTALE));
            assert_eq!(s.lookup(&cx(), ino, name("..")).err(), Some(Errno::ESTALE));
            assert_eq!(s.lookup(&cx(), ino, name("secret")).err(), Some(Errno::ESTALE));
            assert_eq!(s.link(&cx(), ino, ROOT, name("stolen")).err(), Some(Errno::ESTALE));
            assert_eq!(s.mkdir(&cx(), ino, name("made"), 0o755).err(), Some(Errno::ESTALE));
            assert_eq!(s.unlink(&cx(), ino, name("secret")).err(), Some(Errno::ESTALE));
            assert_eq!(s.getxattr(&cx(), ino, b"user.a", &mut Vec::new()), Err(Errno::ESTALE));
            let (from, to) = ((ino, name("secret")), (ROOT, name("stolen")));
            let none = RenameFlags::empty();
            assert_eq!(s.rename(&cx(), from.0, from.1, to.0, to.1, none), Err(Errno::ESTALE));
            assert_eq!(s.rename(&cx(), to.0, name("f"), ino, from.1, none), Err(Errno::ESTALE));
        }
        // The listing of the root names nothing above it.
        let handle = s.opendir(&cx(), ROOT).unwrap();
        let mut inos = Vec::new();
        s.readdir(&cx(), ROOT, handle, 0, &mut |entry| {
            inos.push((entry.name.to_vec(), entry.ino));
            true
        })
        .unwrap();
        for (dots, ino) in inos.iter().filter(|(at, _)| at.starts_with(b".")) {
            assert_eq!(*ino, ROOT, "{dots:?}");
        }
    }
    assert!(all.getattr(&cx(), secret).is_ok());
}

#[test]
fn what_is_moved_out_of_a_subtree_is_outside() {
    let (volume, mut all) = nested();
    let mut s = below(&volume, user(), "/a/in");
    let deep = walk(&mut s, "deep").unwrap().ino;
    let g = walk(&mut s, "deep/g").unwrap().ino;
    let handle = s.open(&cx(), g, OpenFlags::READ).unwrap();
    let inside = walk(&mut all, "a/in").unwrap().ino;
    let none = RenameFlags::empty();
    all.rename(&cx(), inside, name("deep"), ROOT, name("moved"), none).unwrap();
    assert_eq!(s.lookup(&cx(), deep, name("..")).err(), Some(Errno::ESTALE));
    assert_eq!(s.lookup(&cx(), deep, name("g")).err(), Some(Errno::ESTALE));
    assert_eq!(s.opendir(&cx(), deep).err(), Some(Errno::ESTALE));
    // An open file stays open.
    assert_eq!(s.read(&cx(), g, handle, 0, &mut [0; 4]), Ok(0));
    // Back inside it is as before.
    all.rename(&cx(), ROOT, name("moved"), inside, name("deep"), none).unwrap();
    assert_eq!(s.lookup(&cx(), deep, name("g")).map(|attr| attr.ino), Ok(g));
}

#[test]
fn an_unsearchable_directory_hides_its_files_from_guesses() {
    let volume = atoll_host::server::volume(ModelFs::default(), "v");
    let mut all = volume.session(root(), Access::default()).unwrap();
    let private = all.mkdir(&cx(), ROOT, name("private"), 0o700).unwrap().ino;
    let file = all.mknod(&cx(), private, name("f"), 0o100666, 0).unwrap().ino;
    let inner = all.mkdir(&cx(), private, name("d"), 0o777).unwrap().ino;
    let mut s = volume.session(user(), Access::default()).unwrap();
    assert_eq!(s.open(&cx(), file, OpenFlags::READ).err(), Some(Errno::ESTALE));
    assert_eq!(s.mkdir(&cx(), inner, name("x"), 0o755).err(), Some(Errno::ESTALE));
    assert_eq!(walk(&mut s, "private/f").err(), Some(Errno::EACCES));
}

// ---- Limits ----

#[test]
fn limits_hold() {
    let volume = atoll_host::server::volume(ModelFs::default(), "v");
    let limits = Limits { open_files: 4, inodes: 8, locks: 2, transfer: 10, ..Limits::default() };
    let mut all = volume.session(root(), Access::default()).unwrap();
    let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    all.setattr(&cx(), ROOT, None, &set).unwrap();
    let mut s = volume.session(user(), Access { limits, ..Access::default() }).unwrap();
    let files: Vec<(Attr, Handle)> =
        (0..4).map(|i| s.create(&cx(), ROOT, name(&format!("f{i}")), 0o644, RW).unwrap()).collect();
    assert_eq!(s.create(&cx(), ROOT, name("f4"), 0o644, RW).err(), Some(Errno::EMFILE));
    assert_eq!(walk(&mut all, "f4").err(), Some(Errno::ENOENT), "made, and then refused");
    assert_eq!(s.opendir(&cx(), ROOT).err(), Some(Errno::EMFILE));
    let (first, handle) = (files[0].0.ino, files[0].1);
    assert_eq!(s.write(&cx(), first, handle, 0, &[7; 100]).map(|w| w.len), Ok(10));
    assert_eq!(s.read(&cx(), first, handle, 0, &mut [0; 100]), Ok(10));
    // Inodes that are not open are forgotten, those that are open never.
    for i in 0..100 {
        s.mknod(&cx(), ROOT, name(&format!("n{i}")), 0o100644, 0).unwrap();
    }
    let known = (0..100).filter(|i| {
        let ino = walk(&mut all, &format!("n{i}")).unwrap().ino;
        s.getattr(&cx(), ino).is_ok()
    });
    assert!(known.count() <= 4);
    for (attr, handle) in &files {
        assert!(s.getattr(&cx(), attr.ino).is_ok());
        s.release(&cx(), attr.ino, *handle).unwrap();
    }
    // A forgotten inode is found again by its name.
    assert!(walk(&mut s, "n50").and_then(|attr| s.getattr(&cx(), attr.ino)).is_ok());
    let lock = |byte| LockRequest {
        owner: LockOwner::Process(1),
        range: LockRange { start: byte, end: byte },
        kind: Some(LockKind::Shared),
        pid: 1,
    };
    let handle = s.open(&cx(), first, RW);
    let first = walk(&mut s, "f0").unwrap().ino;
    let handle = handle.or_else(|_| s.open(&cx(), first, RW)).unwrap();
    assert_eq!(s.setlk(first, handle, &lock(0)), Ok(()));
    assert_eq!(s.setlk(first, handle, &lock(2)), Ok(()));
    assert_eq!(s.setlk(first, handle, &lock(4)), Err(Errno::ENOLCK));
}

#[test]
fn read_only_sessions_change_nothing() {
    let (volume, mut all) = nested();
    let before = model::snapshot(&mut all).unwrap();
    let mut s = volume.session(root(), Access { read_only: true, ..Access::default() }).unwrap();
    let f = walk(&mut s, "secret").unwrap().ino;
    let none = RenameFlags::empty();
    let erofs = Some(Errno::EROFS);
    assert_eq!(s.create(&cx(), ROOT, name("n"), 0o644, RW).err(), erofs);
    assert_eq!(s.create(&cx(), ROOT, name("secret"), 0o644, RW).err(), erofs);
    assert_eq!(s.open(&cx(), f, OpenFlags::WRITE).err(), erofs);
    assert_eq!(s.open(&cx(), f, OpenFlags::READ | OpenFlags::TRUNC).err(), erofs);
    assert_eq!(s.tmpfile(&cx(), ROOT, 0o644, RW).err(), erofs);
    assert_eq!(s.mkdir(&cx(), ROOT, name("n"), 0o755).err(), erofs);
    assert_eq!(s.mknod(&cx(), ROOT, name("n"), 0o100644, 0).err(), erofs);
    assert_eq!(s.symlink(&cx(), ROOT, name("n"), b"t").err(), erofs);
    assert_eq!(s.link(&cx(), f, ROOT, name("n")).err(), erofs);
    assert_eq!(s.unlink(&cx(), ROOT, name("secret")).err(), erofs);
    assert_eq!(s.rmdir(&cx(), ROOT, name("a")).err(), erofs);
    assert_eq!(s.rename(&cx(), ROOT, name("a"), ROOT, name("b"), none).err(), erofs);
    assert_eq!(s.setattr(&cx(), f, None, &SetAttr::default()).err(), erofs);
    assert_eq!(s.setxattr(&cx(), f, b"user.a", b"v", XattrFlags::empty()).err(), erofs);
    assert_eq!(s.removexattr(&cx(), f, b"user.a").err(), erofs);
    let (attr, handle) = s.create(&cx(), ROOT, name("secret"), 0, OpenFlags::READ).unwrap();
    assert_eq!(s.write(&cx(), attr.ino, handle, 0, b"x").err(), erofs);
    let mode = FallocateMode::empty();
    assert_eq!(s.fallocate(&cx(), attr.ino, handle, 0, 1, mode).err(), erofs);
    assert_eq!(s.read(&cx(), attr.ino, handle, 0, &mut [0; 4]), Ok(0));
    drop(s);
    assert!(model::snapshot(&mut all).unwrap().differences(&before, 3).is_empty());
}

// ---- Identities ----

/// A volume with `/own`, a directory of the user's alone, and `/shared`, of the group 2000.
fn owned() -> (Arc<Volume<ModelFs>>, Session<ModelFs>) {
    let volume = atoll_host::server::volume(ModelFs::default(), "v");
    let mut all = volume.session(root(), Access::default()).unwrap();
    for (dir, mode, uid, gid) in [("own", 0o700, 1000, 1000), ("shared", 0o770, 0, 2000)] {
        let ino = all.mkdir(&cx(), ROOT, name(dir), mode).unwrap().ino;
        let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        all.setattr(&cx(), ino, None, &set).unwrap();
        all.mknod(&cx(), ino, name("f"), 0o100600, 0).unwrap();
    }
    (volume, all)
}

fn by(uid: u32, gid: u32) -> Context {
    Context { uid, gid, ..cx() }
}

#[test]
fn a_peer_that_speaks_for_others_is_judged_as_they_are() {
    let (volume, mut all) = owned();
    let access = || Access { identity: Identity::Caller, ..Access::default() };
    let mut s = volume.session(root(), access()).unwrap();
    let own = walk(&mut all, "own").unwrap().ino;
    let shared = walk(&mut all, "shared").unwrap().ino;
    let (me, other) = (by(1000, 1000), by(1001, 1001));
    // A new file belongs to the caller, and the other user may not even look.
    let (attr, _) = s.create(&me, own, name("mine"), 0o600, RW).unwrap();
    assert_eq!((attr.uid, attr.gid), (1000, 1000));
    assert_eq!(s.lookup(&other, own, name("mine")).err(), Some(Errno::EACCES));
    assert_eq!(s.unlink(&other, own, name("mine")).err(), Some(Errno::EACCES));
    assert_eq!(s.opendir(&other, own).err(), Some(Errno::EACCES));
    assert_eq!(s.open(&other, attr.ino, OpenFlags::READ).err(), Some(Errno::EACCES));
    let mode = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    assert_eq!(s.setattr(&other, attr.ino, None, &mode).err(), Some(Errno::EPERM));
    // Root, as whom it can speak as well, may do everything.
    assert!(s.open(&cx(), attr.ino, RW).is_ok());
    // A group in the context is the caller's; groups beside it are not known of others.
    assert!(s.lookup(&by(1000, 2000), shared, name("f")).is_ok());
    assert_eq!(s.lookup(&me, shared, name("f")).err(), Some(Errno::EACCES));

    // The peer's supplementary groups are the peer's own.
    let mut s = volume.session(user(), access()).unwrap();
    walk(&mut s, "").unwrap();
    let shared = s.lookup(&me, ROOT, name("shared")).unwrap().ino;
    assert!(s.lookup(&me, shared, name("f")).is_ok());
    assert_eq!(s.lookup(&other, shared, name("f")).err(), Some(Errno::EACCES));
    assert_eq!(s.lookup(&by(1001, 1000), shared, name("f")).err(), Some(Errno::EACCES));
}

#[test]
fn any_other_peer_is_who_the_kernel_says() {
    let (volume, mut all) = owned();
    let mut s = volume.session(user(), Access::default()).unwrap();
    // The caller in a call's context does not count, root above all.
    for says in [cx(), by(1000, 1000), by(1001, 2000)] {
        let own = s.lookup(&says, ROOT, name("own")).unwrap().ino;
        let file = format!("by{}", says.uid);
        let (attr, _) = s.create(&says, own, name(&file), 0o600, RW).unwrap();
        assert_eq!((attr.uid, attr.gid), (1000, 1000));
        let shared = s.lookup(&says, ROOT, name("shared")).unwrap().ino;
        let f = s.lookup(&says, shared, name("f")).unwrap().ino;
        assert_eq!(s.open(&says, f, OpenFlags::READ).err(), Some(Errno::EACCES));
        assert_eq!(s.mkdir(&says, ROOT, name("d"), 0o755).err(), Some(Errno::EACCES));
    }
    assert_eq!(walk(&mut all, "d").err(), Some(Errno::ENOENT));
}

/// Names that a peer looks up for others do not enter its own View.
#[test]
fn a_view_is_the_peers_own() {
    let (volume, mut all) = owned();
    let own = walk(&mut all, "own").unwrap().ino;
    let access = Access { identity: Identity::Caller, ..Access::default() };
    let mut s = volume.session(Credentials { uid: 5, ..root() }, access).unwrap();
    let memory = atoll_host::server::open_view(&mut s, 1 << 20).unwrap().unwrap();
    let view = MappedView::attach(memory, || true).unwrap();
    let seen = |file: &str| view.reader().unwrap().lookup(own.0, file.as_bytes()).is_some();
    let own_ino = s.lookup(&by(1000, 1000), ROOT, name("own")).unwrap().ino;
    assert_eq!(own_ino, own);
    s.lookup(&by(1000, 1000), own, name("f")).unwrap();
    s.lookup(&by(1000, 1000), own, name("none")).unwrap_err();
    assert!(!seen("f") && !seen("none"));
    assert_eq!(s.lookup(&by(5, 0), own, name("f")).err(), Some(Errno::EACCES));
    let open = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    all.setattr(&cx(), own, None, &open).unwrap();
    s.lookup(&by(5, 0), own, name("f")).unwrap();
    assert!(seen("f"));
}

/// The memory that a View takes is given back when its session ends, and then nobody has it any
/// more, though the client keeps its descriptor and a mapping.
#[test]
fn a_view_that_is_kept_takes_nothing() {
    let (volume, _all) = owned();
    let accounts = Accounts::new(Shares::UNLIMITED);
    let account = accounts.open(1000, Shares { memory: 1 << 30, ..Shares::UNLIMITED });
    let access = Access { account: Some(Arc::clone(&account)), ..Access::default() };
    let mut s = volume.session(user(), access).unwrap();
    let memory = atoll_host::server::open_view(&mut s, 1 << 20).unwrap().unwrap();
    let kept = memory.try_clone().unwrap();
    let view = MappedView::attach(memory, || true).unwrap();
    let own = walk(&mut s, "own").unwrap().ino;
    assert!(view.reader().unwrap().attr(own.0).is_some());
    let blocks = || std::fs::File::from(kept.try_clone().unwrap()).metadata().unwrap().blocks();
    assert!(blocks() > 0 && account.has(Resource::Memory) > 1 << 20);
    drop(s);
    assert_eq!((blocks(), account.has(Resource::Memory)), (0, 0));
    assert!(view.reader().unwrap().attr(own.0).is_none());
}

// ---- Sharing ----

#[test]
fn sessions_see_each_other_and_not_each_others_handles() {
    let volume = atoll_host::server::volume(volume(16 << 10), "v");
    let mut a = volume.session(root(), Access::default()).unwrap();
    let mut b = volume.session(root(), Access::default()).unwrap();
    let (attr, handle) = a.create(&cx(), ROOT, name("f"), 0o644, RW).unwrap();
    a.write(&cx(), attr.ino, handle, 0, b"seen at once").unwrap();
    let found = walk(&mut b, "f").unwrap();
    assert_eq!(found.size, 12);
    assert_eq!(b.read(&cx(), attr.ino, handle, 0, &mut [0; 12]), Err(Errno::EBADF));
    assert_eq!(b.release(&cx(), attr.ino, handle), Err(Errno::EBADF));
    let own = b.open(&cx(), found.ino, OpenFlags::READ).unwrap();
    let mut bytes = [0; 12];
    b.read(&cx(), found.ino, own, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"seen at once");
    b.unlink(&cx(), ROOT, name("f")).unwrap();
    assert_eq!(walk(&mut a, "f").err(), Some(Errno::ENOENT));
    // Appends of both end up one after the other.
    let (attr, first) = a.create(&cx(), ROOT, name("log"), 0o644, RW).unwrap();
    let second = b.open(&cx(), attr.ino, RW).unwrap();
    for i in 0..10 {
        a.append(&cx(), attr.ino, first, (&[i]).into()).unwrap();
        b.append(&cx(), attr.ino, second, (&[i + 100]).into()).unwrap();
    }
    let mut bytes = [0; 30];
    assert_eq!(a.read(&cx(), attr.ino, first, 0, &mut bytes), Ok(20));
    assert_eq!(bytes[..4], [0, 100, 1, 101]);
    // Pages of a mapping make no file longer.
    let back = b.write_back(&cx(), attr.ino, second, 15, (&[9; 4096]).into()).unwrap();
    assert_eq!((back.len, walk(&mut a, "log").unwrap().size), (4096, 20));
}

#[test]
fn a_session_leaves_nothing_behind() {
    let volume = atoll_host::server::volume(volume(16 << 10), "v");
    let mut kept = volume.session(root(), Access::default()).unwrap();
    let free = |s: &mut Session<Real>| s.statfs(&cx()).unwrap().blocks_free;
    // So that the directory has its storage.
    kept.mknod(&cx(), ROOT, name("warm"), 0o100644, 0).unwrap();
    let before = free(&mut kept);
    let mut s = volume.session(root(), Access::default()).unwrap();
    let (attr, handle) = s.create(&cx(), ROOT, name("f"), 0o644, RW).unwrap();
    s.write(&cx(), attr.ino, handle, 0, &vec![1; 1 << 20]).unwrap();
    s.open(&cx(), attr.ino, RW).unwrap();
    s.opendir(&cx(), ROOT).unwrap();
    s.unlink(&cx(), ROOT, name("f")).unwrap();
    assert!(free(&mut kept) <= before - 256, "the file has no storage to give back");
    let warm = walk(&mut kept, "warm").unwrap().ino;
    let file = kept.open(&cx(), warm, RW).unwrap();
    let others = s.open(&cx(), warm, RW).unwrap();
    let all = LockRequest {
        owner: LockOwner::Process(5),
        range: LockRange::ALL,
        kind: Some(LockKind::Exclusive),
        pid: 5,
    };
    s.setlk(warm, others, &all).unwrap();
    s.setlk(warm, others, &LockRequest { owner: LockOwner::OpenFile, ..all }).unwrap();
    assert_eq!(kept.getlk(warm, file, &all).unwrap().map(|holder| holder.pid), Some(5));
    let outcome = Arc::new(Mutex::new(None));
    let told = Arc::clone(&outcome);
    let waited =
        kept.setlkw(warm, file, &all, Box::new(move |result| *told.lock().unwrap() = Some(result)));
    assert!(matches!(waited, Ok(Waited::Queued(_))));
    drop(s);
    assert_eq!(*outcome.lock().unwrap(), Some(Ok(())), "the lock of the dead is still held");
    kept.setlk(warm, file, &LockRequest { owner: LockOwner::OpenFile, ..all }).unwrap();
    assert_eq!(free(&mut kept), before);
    // Closing a descriptor drops the process's locks, releasing drops those of flock(2).
    let mut other = volume.session(root(), Access::default()).unwrap();
    let theirs = other.open(&cx(), warm, RW).unwrap();
    assert_eq!(other.setlk(warm, theirs, &all), Err(Errno::EAGAIN));
    kept.flush(warm, file, 5).unwrap();
    assert_eq!(other.setlk(warm, theirs, &all), Ok(()));
    let whole = LockRequest { owner: LockOwner::OpenFile, ..all };
    assert_eq!(other.setlk(warm, theirs, &whole), Err(Errno::EAGAIN));
    kept.release(&cx(), warm, file).unwrap();
    assert_eq!(other.setlk(warm, theirs, &whole), Ok(()));
    drop((kept, other));
    assert!(matches!(volume.into_inner(), Ok(Some(_))));
}
