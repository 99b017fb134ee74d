//! Directories of the host that the host changes too: what clients find, and never outside.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_host::directory::{Bounds, HostDirectory, Options, Owners};
use atoll_tests::hostdir::HostDir;
use atoll_tests::subject::{RW, name};
use atoll_vfs::{
    Attr, Context, Errno, FileSystem, FileType, Handle, Ino, OpenFlags, RenameFlags, Result,
    SetAttr, Timespec, XattrFlags,
};

const ROOT: Ino = Ino::ROOT;

fn cx() -> Context {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    Context { uid, gid, now: Timespec::default() }
}

fn fresh(bounds: Bounds) -> HostDir {
    let options = Options { bounds, ..Options::default() };
    HostDir::with(Path::new(env!("CARGO_TARGET_TMPDIR")), &options).unwrap().0
}

fn look(fs: &mut HostDir, parent: Ino, at: &str) -> Result<Attr> {
    fs.lookup(&cx(), parent, name(at))
}

fn content(fs: &mut HostDir, ino: Ino) -> Result<Vec<u8>> {
    let handle = fs.open(&cx(), ino, OpenFlags::READ)?;
    let mut buf = vec![0; 4096];
    let read = fs.read(&cx(), ino, handle, 0, &mut buf);
    fs.release(&cx(), ino, handle)?;
    buf.truncate(read?);
    Ok(buf)
}

fn entries(fs: &mut HostDir, dir: Ino) -> Result<Vec<(String, Ino)>> {
    let handle: Handle = fs.opendir(&cx(), dir)?;
    let mut names = Vec::new();
    let listed = fs.readdir(&cx(), dir, handle, 0, &mut |entry| {
        names.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino));
        true
    });
    fs.releasedir(&cx(), dir, handle)?;
    listed?;
    names.sort();
    Ok(names)
}

#[test]
fn what_the_host_changes_is_seen() {
    let mut dir = fresh(Bounds::default());
    let root = dir.path().to_owned();
    assert_eq!(look(&mut dir, ROOT, "f"), Err(Errno::ENOENT));
    fs::write(root.join("f"), b"one").unwrap();
    let file = look(&mut dir, ROOT, "f").unwrap();
    assert_eq!((file.size, file.file_type()), (3, FileType::Regular));
    fs::write(root.join("f"), b"longer").unwrap();
    assert_eq!(dir.getattr(&cx(), file.ino).unwrap().size, 6);
    assert_eq!(content(&mut dir, file.ino).unwrap(), b"longer");
    // And the other way round.
    let (made, handle) = dir.create(&cx(), ROOT, name("g"), 0o640, RW).unwrap();
    dir.write(&cx(), made.ino, handle, 0, b"to the host").unwrap();
    assert_eq!(fs::read(root.join("g")).unwrap(), b"to the host");
    assert_eq!(fs::metadata(root.join("g")).unwrap().mode() & 0o7777, 0o640);
    dir.release(&cx(), made.ino, handle).unwrap();
    let listed = entries(&mut dir, ROOT).unwrap();
    let expected = [(".", ROOT), ("..", ROOT), ("f", file.ino), ("g", made.ino)];
    assert_eq!(listed, expected.map(|(name, ino)| (name.to_owned(), ino)));
}

/// A number is one inode's, whatever becomes of names: never that of what the host has put there.
#[test]
fn a_number_is_one_inode() {
    for bounds in [Bounds::default(), Bounds { files: 0, directories: 0, ..Bounds::default() }] {
        let mut dir = fresh(bounds);
        let root = dir.path().to_owned();
        fs::write(root.join("a"), b"first").unwrap();
        let first = look(&mut dir, ROOT, "a").unwrap().ino;
        let mut seen = vec![first];
        for _ in 0..100 {
            // The host's file system gives the same number again, at once.
            fs::remove_file(root.join("a")).unwrap();
            fs::write(root.join("a"), b"another").unwrap();
            let last = *seen.last().unwrap();
            assert_eq!(dir.getattr(&cx(), last), Err(Errno::ESTALE));
            assert_eq!(content(&mut dir, last), Err(Errno::ESTALE));
            let ino = look(&mut dir, ROOT, "a").unwrap().ino;
            assert!(!seen.contains(&ino));
            seen.push(ino);
        }
        // One that is moved by the host is found by its new name, with its number.
        let last = *seen.last().unwrap();
        fs::create_dir(root.join("d")).unwrap();
        fs::rename(root.join("a"), root.join("d/b")).unwrap();
        let sub = look(&mut dir, ROOT, "d").unwrap().ino;
        assert_eq!(look(&mut dir, sub, "b").unwrap().ino, last);
        assert_eq!(content(&mut dir, last).unwrap(), b"another");
        // Also after it was forgotten.
        dir.forget(last, u64::MAX);
        assert_eq!(dir.getattr(&cx(), last), Err(Errno::ESTALE));
        assert_eq!(look(&mut dir, sub, "b").unwrap().ino, last);
    }
}

#[test]
fn links_are_not_followed() {
    let mut dir = fresh(Bounds::default());
    let root = dir.path().to_owned();
    symlink("/etc", root.join("abs")).unwrap();
    symlink("../..", root.join("up")).unwrap();
    symlink("/proc/self/root", root.join("magic")).unwrap();
    for link in ["abs", "up", "magic"] {
        let attr = look(&mut dir, ROOT, link).unwrap();
        assert_eq!(attr.file_type(), FileType::Symlink);
        assert_eq!(look(&mut dir, attr.ino, "passwd"), Err(Errno::ENOTDIR));
        assert_eq!(dir.opendir(&cx(), attr.ino), Err(Errno::ENOTDIR));
        let made = dir.create(&cx(), ROOT, name(link), 0o600, RW);
        assert_eq!(made, Err(Errno::ELOOP));
    }
    assert_eq!(look(&mut dir, ROOT, "..").unwrap().ino, ROOT);
}

/// A directory that the host moves out takes nothing of what is outside with it.
#[test]
fn nothing_above_what_is_moved_out() {
    for bounds in [Bounds::default(), Bounds { files: 0, directories: 0, ..Bounds::default() }] {
        let mut dir = fresh(bounds);
        let root = dir.path().to_owned();
        let outside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::write(outside.path().join("secret"), b"secret").unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        let a = look(&mut dir, ROOT, "a").unwrap().ino;
        let b = look(&mut dir, a, "b").unwrap().ino;
        assert_eq!(look(&mut dir, b, "..").unwrap().ino, a);
        fs::rename(root.join("a/b"), outside.path().join("b")).unwrap();
        assert_eq!(look(&mut dir, b, ".."), Err(Errno::ESTALE));
        fs::rename(outside.path().join("b"), root.join("b")).unwrap();
        if bounds == Bounds::default() {
            // Its descriptor knows.
            assert_eq!(look(&mut dir, b, "..").unwrap().ino, ROOT);
        }
        assert_eq!(look(&mut dir, ROOT, "b").unwrap().ino, b);
        assert_eq!(look(&mut dir, b, "..").unwrap().ino, ROOT);
    }
}

/// A tree of any size takes the memory and the descriptors that the bounds say.
#[test]
fn the_bounds_hold() {
    let bounds = Bounds { inodes: 500, directories: 8, files: 4 };
    let mut dir = fresh(bounds);
    let root = dir.path().to_owned();
    for folder in 0..20 {
        fs::create_dir(root.join(format!("{folder}"))).unwrap();
        for file in 0..100 {
            fs::write(root.join(format!("{folder}/{file}")), b"x").unwrap();
        }
    }
    let mut numbers = HashMap::new();
    for round in 0..2 {
        for folder in 0..20 {
            let parent = look(&mut dir, ROOT, &folder.to_string()).unwrap().ino;
            for file in 0..100 {
                let ino = look(&mut dir, parent, &file.to_string()).unwrap().ino;
                assert_eq!(content(&mut dir, ino).unwrap(), b"x");
                let before = numbers.insert((folder, file), ino);
                assert!(round == 0 || before == Some(ino), "the number changed");
                let (inodes, descriptors) = dir.inner().known();
                assert!(inodes <= bounds.inodes + 1, "{inodes}");
                assert!(descriptors <= bounds.directories + bounds.files + 2, "{descriptors}");
            }
        }
    }
    for ((folder, _), ino) in numbers {
        dir.forget(ino, u64::MAX);
        let _ = folder;
    }
    assert!(dir.inner().known().0 <= 21, "{:?}", dir.inner().known());
}

/// The root's attributes of a client mean nothing to the host.
#[test]
fn attributes_of_clients_are_theirs() {
    let mut dir = fresh(Bounds::default());
    let root = dir.path().to_owned();
    fs::write(root.join("f"), b"").unwrap();
    let ino = look(&mut dir, ROOT, "f").unwrap().ino;
    let none = XattrFlags::empty();
    dir.setxattr(&cx(), ino, b"user.a", b"1", none).unwrap();
    dir.setxattr(&cx(), ino, b"security.capability", b"not one", none).unwrap();
    let refused = dir.setxattr(&cx(), ino, b"user.atoll.trusted.x", b"", none);
    assert_eq!(refused, Err(Errno::EPERM));
    let host = |name: &str| {
        let mut buf = [0; 64];
        let len = rustix::fs::getxattr(root.join("f"), name, &mut buf)?;
        Ok::<_, rustix::io::Errno>(buf[..len].to_vec())
    };
    assert_eq!(host("user.a"), Ok(b"1".to_vec()));
    assert_eq!(host("user.atoll.security.capability"), Ok(b"not one".to_vec()));
    assert_eq!(host("security.capability"), Err(rustix::io::Errno::NODATA));
    let mut names = Vec::new();
    dir.listxattr(&cx(), ino, &mut names).unwrap();
    let mut names: Vec<&[u8]> = names.split(|&b| b == 0).filter(|n| !n.is_empty()).collect();
    names.sort();
    assert_eq!(names, [&b"security.capability"[..], b"user.a"]);
}

#[test]
fn devices_are_not_made() {
    let mut dir = fresh(Bounds::default());
    for (mode, rdev) in [(0o020_600, 0x103), (0o060_600, 0x800)] {
        assert_eq!(dir.mknod(&cx(), ROOT, name("d"), mode, rdev), Err(Errno::EPERM));
    }
    assert_eq!(look(&mut dir, ROOT, "d"), Err(Errno::ENOENT));
}

/// Squashed, all is one user's on the host, and for each client its own.
#[test]
fn squashed_files_are_everybodys_own() {
    let (uid, gid) = match rustix::process::geteuid().is_root() {
        true => (4321, 4322),
        false => (cx().uid, cx().gid),
    };
    let options = Options { owners: Some(Owners::Squashed { uid, gid }), ..Options::default() };
    let (mut dir, _) = HostDir::with(Path::new(env!("CARGO_TARGET_TMPDIR")), &options).unwrap();
    let alice = Context { uid: 1000, gid: 1001, ..cx() };
    let bob = Context { uid: 2000, gid: 2001, ..cx() };
    let made = dir.mkdir(&alice, ROOT, name("d"), 0o755).unwrap();
    assert_eq!((made.uid, made.gid), (1000, 1001));
    let seen = dir.getattr(&bob, made.ino).unwrap();
    assert_eq!((seen.uid, seen.gid), (2000, 2001));
    let host = fs::metadata(dir.path().join("d")).unwrap();
    assert_eq!((host.uid(), host.gid()), (uid, gid));
    let set = |uid| SetAttr { uid: Some(uid), ..SetAttr::default() };
    assert!(dir.setattr(&bob, made.ino, None, &set(2000)).is_ok());
    assert_eq!(dir.setattr(&bob, made.ino, None, &set(7)), Err(Errno::EPERM));
}

#[test]
fn read_only_changes_nothing() {
    let mut dir = fresh(Bounds::default());
    fs::write(dir.path().join("f"), b"as it is").unwrap();
    let options = Options { read_only: true, ..Options::default() };
    let mut looking = HostDirectory::open(dir.path(), &options).unwrap();
    let looking: &mut dyn FileSystem = &mut looking;
    let ino = look(&mut dir, ROOT, "f").unwrap().ino;
    assert_eq!(looking.lookup(&cx(), ROOT, name("f")).unwrap().ino, ino);
    let set = SetAttr { mode: Some(0), size: Some(0), ..SetAttr::default() };
    let none = RenameFlags::empty();
    for refused in [
        looking.setattr(&cx(), ino, None, &set).map(drop),
        looking.mkdir(&cx(), ROOT, name("d"), 0o755).map(drop),
        looking.mknod(&cx(), ROOT, name("n"), 0o100_644, 0).map(drop),
        looking.symlink(&cx(), ROOT, name("l"), b"f").map(drop),
        looking.link(&cx(), ino, ROOT, name("h")).map(drop),
        looking.unlink(&cx(), ROOT, name("f")),
        looking.rename(&cx(), ROOT, name("f"), ROOT, name("g"), none),
        looking.open(&cx(), ino, RW).map(drop),
        looking.open(&cx(), ino, OpenFlags::READ | OpenFlags::TRUNC).map(drop),
        looking.create(&cx(), ROOT, name("c"), 0o644, OpenFlags::READ).map(drop),
        looking.tmpfile(&cx(), ROOT, 0o644, RW).map(drop),
        looking.setxattr(&cx(), ino, b"user.a", b"", XattrFlags::empty()),
        looking.removexattr(&cx(), ino, b"user.a"),
    ] {
        assert_eq!(refused, Err(Errno::EROFS));
    }
    let handle = looking.create(&cx(), ROOT, name("f"), 0, OpenFlags::READ).unwrap().1;
    looking.release(&cx(), ino, handle).unwrap();
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"as it is");
}

/// A program of the host puts links, directories from outside and other files where a client
/// walks, as fast as it can. Nothing that the client reads, lists, makes or changes is outside.
#[test]
fn a_racing_host_leads_nowhere() {
    for bounds in [Bounds::default(), Bounds { files: 0, directories: 0, ..Bounds::default() }] {
        race(bounds);
    }
}

/// Ends another thread's loop when it is dropped.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn race(bounds: Bounds) {
    let mut dir = fresh(bounds);
    let root = dir.path().to_owned();
    let outside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let out = outside.path().join("d");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("f"), b"outside").unwrap();
    let before = fs::metadata(out.join("f")).unwrap();
    fs::create_dir(root.join("real")).unwrap();
    fs::write(root.join("real/f"), b"inside").unwrap();
    let link = root.join("link");
    symlink(&out, &link).unwrap();
    // The host's program works in this directory, whatever becomes of its name.
    let real = fs::File::open(root.join("real")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use rustix::fs::{CWD, renameat_with};
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            while !stop.load(Ordering::Relaxed) {
                // The directory and the link to the one outside change places, within and without.
                let _ = renameat_with(CWD, root.join("real"), CWD, &link, exchange);
                let _ = rustix::fs::renameat(&real, "f", &real, "g");
                let _ = rustix::fs::symlinkat(out.join("f"), &real, "f");
                let _ = rustix::fs::renameat(&real, "g", &real, "f");
            }
        });
        // Also where an assertion fails.
        let _stops = Stops(&stop);
        let mut inside = 0;
        let mut known = None;
        for _ in 0..10_000 {
            if let Ok(real) = look(&mut dir, ROOT, "real") {
                known = Some(real.ino);
            }
            let Some(parent) = known else { continue };
            if let Ok(file) = look(&mut dir, parent, "f") {
                match content(&mut dir, file.ino) {
                    Ok(read) => {
                        assert_eq!(read, b"inside");
                        inside += 1;
                    }
                    Err(Errno::ESTALE | Errno::ENOENT | Errno::ELOOP) => {}
                    Err(error) => panic!("{error}"),
                }
                let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                let _ = dir.setattr(&cx(), file.ino, None, &set);
            }
            if let Ok(names) = entries(&mut dir, parent) {
                assert!(names.iter().all(|(name, _)| name != "d"), "{names:?}");
            }
            if let Ok((made, handle)) = dir.create(&cx(), parent, name("made"), 0o600, RW) {
                dir.release(&cx(), made.ino, handle).unwrap();
                let _ = dir.unlink(&cx(), parent, name("made"));
            }
            if let Ok(up) = look(&mut dir, parent, "..") {
                assert_eq!(up.ino, ROOT);
            }
        }
        assert!(inside > 0, "the client never got anywhere");
    });
    let after = fs::metadata(out.join("f")).unwrap();
    assert_eq!(fs::read(out.join("f")).unwrap(), b"outside");
    assert_eq!((before.mode(), before.ctime_nsec()), (after.mode(), after.ctime_nsec()));
    let names: Vec<_> = fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["f"]);
}
