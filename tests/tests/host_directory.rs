//! Directories of the host that the host changes too: what clients find, and never outside.

#[path = "host_directory/extremes.rs"]
mod extremes;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_host::directory::{Bounds, HostDirectory, Options, Owners, Piece};
use atoll_tests::hostdir::HostDir;
use atoll_tests::subject::{RW, name};
use atoll_vfs::{
    Attr, Context, DirEntry, Errno, FallocateMode, FileSystem, FileType, Handle, Ino, OpenFlags,
    RenameFlags, Rest, Result, SeekTo, SetAttr, SetTime, Timespec, XattrFlags,
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
    let handle = dir.opendir(&cx(), ROOT).unwrap();
    let mut names = Vec::new();
    let mut take = |entry: &DirEntry<'_>| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    };
    dir.readdir_names(&cx(), ROOT, handle, 0, &mut take).unwrap();
    dir.releasedir(&cx(), ROOT, handle).unwrap();
    names.sort();
    assert_eq!(names, expected.map(|(name, _)| name));
    assert_eq!(listed, expected.map(|(name, ino)| (name.to_owned(), ino)));
}

/// What clients look up and forget, again and again, however many there are, is known in between.
#[test]
fn what_is_met_again_is_known() {
    let mut dir = fresh(Bounds::default());
    for count in [1, 2, 31, 32, 33, 63, 64, 65, 66, 130] {
        for number in 0..count {
            fs::write(dir.path().join(number.to_string()), b"").unwrap();
        }
        for number in (0..count).cycle().take(400) {
            let ino = look(&mut dir, ROOT, &number.to_string()).unwrap().ino;
            assert_eq!(dir.getattr(&cx(), ino).map(|attr| attr.ino), Ok(ino), "of {count}");
            dir.forget(ino, 1);
        }
    }
}

/// So are files that are old enough to be recognised by their birth, one after another.
#[test]
fn a_number_is_one_old_inode() {
    let mut dir = fresh(Bounds::default());
    let root = dir.path().to_owned();
    let grow_old = || std::thread::sleep(std::time::Duration::from_millis(60));
    let mut seen = Vec::new();
    for round in 0..8 {
        fs::write(root.join("a"), [b'x'; 10]).unwrap();
        fs::write(root.join("other"), b"").unwrap();
        if round % 2 == 0 {
            grow_old();
        }
        let ino = look(&mut dir, ROOT, "a").unwrap().ino;
        assert!(!seen.contains(&ino));
        seen.push(ino);
        grow_old();
        for size in [10, 7] {
            let found = look(&mut dir, ROOT, "a").unwrap();
            assert_eq!((found.ino, found.size), (ino, size));
            fs::write(root.join("a"), [b'x'; 7]).unwrap();
        }
        // What the host puts in its place is seen, and where it has put the file.
        fs::rename(root.join("a"), root.join("b")).unwrap();
        fs::rename(root.join("other"), root.join("a")).unwrap();
        assert_eq!(look(&mut dir, ROOT, "b").unwrap().ino, ino);
        let other = look(&mut dir, ROOT, "a").unwrap().ino;
        assert!(other != ino && !seen.contains(&other));
        dir.unlink(&cx(), ROOT, name("a")).unwrap();
        assert_eq!(dir.getattr(&cx(), other), Err(Errno::ESTALE));
        // Removed here while it has another name: that one still leads to it.
        fs::hard_link(root.join("b"), root.join("c")).unwrap();
        dir.unlink(&cx(), ROOT, name("b")).unwrap();
        assert_eq!(look(&mut dir, ROOT, "c").unwrap().ino, ino);
        fs::remove_file(root.join("c")).unwrap();
        assert_eq!(dir.getattr(&cx(), ino), Err(Errno::ESTALE));
    }
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

/// A device that a client makes is one to clients, whoever serves the directory then, and an empty
/// file to the host, whose programs make none.
#[test]
fn devices_are_the_clients_alone() {
    let mut dir = fresh(Bounds::default());
    let root = dir.path().to_owned();
    let sub = dir.mkdir(&cx(), ROOT, name("sub"), 0o755).unwrap().ino;
    for (at, mode, rdev) in [("c", 0o020_640, 0x103), ("b", 0o064_611, 0x700c)] {
        let made = dir.mknod(&cx(), ROOT, name(at), mode, rdev).unwrap();
        assert_eq!((made.mode, made.rdev, made.size, made.nlink), (mode, rdev, 0, 1), "{at}");
        assert_eq!((made.uid, made.gid), (cx().uid, cx().gid));
        assert_eq!(look(&mut dir, ROOT, at), Ok(made));
        assert_eq!(dir.mknod(&cx(), ROOT, name(at), mode, rdev), Err(Errno::EEXIST));
        assert_eq!(dir.open(&cx(), made.ino, OpenFlags::READ), Err(Errno::ENXIO));
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        assert_eq!(dir.setattr(&cx(), made.ino, None, &cut), Err(Errno::EINVAL));
        let mut names = Vec::new();
        dir.listxattr(&cx(), made.ino, &mut names).unwrap();
        assert_eq!(names, b"");
        let host = fs::symlink_metadata(root.join(at)).unwrap();
        assert_eq!((host.mode(), host.len(), host.uid()), (0o101_600, 0, cx().uid), "{at}");
        // What a client changes of it is changed for clients.
        let set = SetAttr { mode: Some(0o600), mtime: Some(SetTime::Now), ..SetAttr::default() };
        let set = dir.setattr(&cx(), made.ino, None, &set).unwrap();
        assert_eq!((set.mode, set.rdev), (mode & !0o7777 | 0o600, rdev));
        if cx().uid == 0 {
            let set = SetAttr { uid: Some(1), gid: Some(2), ..SetAttr::default() };
            let set = dir.setattr(&cx(), made.ino, None, &set).unwrap();
            assert_eq!((set.uid, set.gid, set.mode & 0o7777), (1, 2, 0o600));
        }
        assert_eq!(fs::symlink_metadata(root.join(at)).unwrap().uid(), cx().uid);
        dir.rename(&cx(), ROOT, name(at), sub, name(at), RenameFlags::empty()).unwrap();
        dir.link(&cx(), made.ino, sub, name(&format!("{at}2"))).unwrap();
    }
    // Another server of the directory.
    let mut other = HostDirectory::open(&root, &Options::default()).unwrap();
    let there = other.lookup(&cx(), ROOT, name("sub")).unwrap().ino;
    for fs in [&mut dir as &mut dyn FileSystem, &mut other] {
        let handle = fs.opendir(&cx(), there).unwrap();
        let mut types = HashMap::new();
        fs.readdir(&cx(), there, handle, 0, &mut |entry| {
            types.insert(entry.name.to_vec(), entry.file_type);
            true
        })
        .unwrap();
        fs.releasedir(&cx(), there, handle).unwrap();
        for (at, is) in [("c", FileType::CharDevice), ("b", FileType::BlockDevice)] {
            for at in [at.to_owned(), format!("{at}2")] {
                let attr = fs.lookup(&cx(), there, name(&at)).unwrap();
                assert_eq!((types[at.as_bytes()], attr.file_type(), attr.nlink), (is, is, 2));
            }
        }
    }
    // One that a program of the host could have made is a file.
    let value = [0o020_666, 0x103, 0, 0].map(u32::to_le_bytes).concat();
    let none = rustix::fs::XattrFlags::empty();
    for (at, mode, content, value) in [
        ("mode", 0o600, &b""[..], &value[..]),
        ("content", 0o1600, b"x", &value),
        ("short", 0o1600, b"", &value[1..]),
        ("long", 0o1600, b"", &[&value[..], b"x"].concat()),
        ("type", 0o1600, b"", &[0; 16]),
    ] {
        fs::write(root.join(at), content).unwrap();
        fs::set_permissions(root.join(at), PermissionsExt::from_mode(mode)).unwrap();
        rustix::fs::setxattr(root.join(at), "user.atoll.node", value, none).unwrap();
        assert_eq!(look(&mut dir, ROOT, at).unwrap().mode, 0o100_000 | mode, "{at}");
    }
    if cx().uid == 0 {
        fs::write(root.join("another's"), b"").unwrap();
        fs::set_permissions(root.join("another's"), PermissionsExt::from_mode(0o1600)).unwrap();
        rustix::fs::setxattr(root.join("another's"), "user.atoll.node", &value, none).unwrap();
        assert!(look(&mut dir, ROOT, "another's").unwrap().file_type() == FileType::CharDevice);
        std::os::unix::fs::chown(root.join("another's"), Some(1), None).unwrap();
        assert_eq!(look(&mut dir, ROOT, "another's").unwrap().mode, 0o101_600);
    }
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

/// What one client has written does not run with the rights of the user who has all files.
#[test]
fn squashed_files_of_strangers_have_no_set_ids() {
    let (uid, gid) = (cx().uid, cx().gid);
    for owners in [Owners::Squashed { uid, gid }, Owners::of_process()] {
        for strangers in [true, false] {
            let options = Options { owners: Some(owners), ..Options::default() };
            let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
            let (mut dir, _) = HostDir::with(parent, &options).unwrap();
            if strangers {
                dir.inner().serve_strangers();
            }
            let root = dir.path().to_owned();
            let none = strangers && owners != Owners::Kept;
            let (made, handle) = dir.create(&cx(), ROOT, name("c"), 0o6755, RW).unwrap();
            dir.release(&cx(), made.ino, handle).unwrap();
            dir.mknod(&cx(), ROOT, name("n"), 0o106_755, 0).unwrap();
            let set = dir.mknod(&cx(), ROOT, name("s"), 0o100_755, 0).unwrap().ino;
            let change = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
            dir.setattr(&cx(), set, None, &change).unwrap();
            let (nameless, handle) = dir.tmpfile(&cx(), ROOT, 0o6755, RW).unwrap();
            dir.link(&cx(), nameless.ino, ROOT, name("t")).unwrap();
            dir.release(&cx(), nameless.ino, handle).unwrap();
            let is = |at: &str| fs::metadata(root.join(at)).unwrap().mode() & 0o7777;
            for at in ["c", "n", "s", "t"] {
                assert_eq!(is(at), if none { 0o755 } else { 0o6755 }, "{at} {owners:?}");
            }
            // Nor do programs of the host run what a client has changed with others' rights.
            for (at, cut) in [("w", false), ("x", true)] {
                fs::write(root.join(at), b"a program of the host").unwrap();
                let set_id = PermissionsExt::from_mode(0o6755);
                fs::set_permissions(root.join(at), set_id).unwrap();
                let ino = look(&mut dir, ROOT, at).unwrap().ino;
                content(&mut dir, ino).unwrap();
                assert_eq!(is(at), 0o6755, "it was only read");
                if cut {
                    let set = SetAttr { size: Some(0), ..SetAttr::default() };
                    dir.setattr(&cx(), ino, None, &set).unwrap();
                } else {
                    let handle = dir.open(&cx(), ino, RW).unwrap();
                    dir.release(&cx(), ino, handle).unwrap();
                }
                assert!(!none || is(at) == 0o755, "{at} {owners:?}");
            }
            // Of a directory they say whose group its files have.
            dir.mkdir(&cx(), ROOT, name("d"), 0o2755).unwrap();
            assert_eq!(is("d"), 0o2755);
        }
    }
}

/// A call that the host takes long for is several calls, between which others have theirs.
#[test]
fn much_is_set_aside_in_steps() {
    const LEN: u64 = 200 << 20;
    let mut dir = fresh(Bounds::default());
    let (file, handle) = dir.create(&cx(), ROOT, name("f"), 0o644, RW).unwrap();
    let path = dir.path().join("f");
    let blocks = || fs::metadata(&path).unwrap().blocks() * 512;
    // The host counts blocks of its own to the file, as many as it likes to find the pieces by.
    let near = |is: u64, wanted: u64| is >= wanted && is < wanted + (1 << 20);
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    for (mode, all, none) in [(FallocateMode::empty(), LEN, 0), (punch, 0, LEN)] {
        for steps in [true, false] {
            // As it is without.
            let whole = if mode == punch { FallocateMode::empty() } else { punch };
            dir.work_in_steps(false);
            dir.fallocate(&cx(), file.ino, handle, 0, LEN, whole).unwrap();
            assert_eq!(dir.take_rest(), None);
            assert!(near(blocks(), none));
            dir.work_in_steps(steps);
            let (mut at, mut count) = (0, 0);
            loop {
                let before = blocks();
                dir.fallocate(&cx(), file.ino, handle, at, LEN - at, mode).unwrap();
                let rest = dir.take_rest();
                count += 1;
                let step = before.abs_diff(blocks());
                assert!(!steps || step < 33 << 20, "{step} bytes at once");
                match rest {
                    Some(Rest::From(next)) => at = next,
                    rest => break assert_eq!(rest, None),
                }
            }
            assert!(near(blocks(), all));
            assert_eq!(count, if steps { 7 } else { 1 });
        }
    }
}

/// What was judged by its name may be another's file when the name goes: of a sticky directory the
/// host judges by what the name is then, and not by what the server may.
#[test]
fn a_sticky_directory_is_judged_by_the_host() {
    let (user, other) = (1234, 4321);
    if Owners::of_process() != Owners::Kept {
        println!("skipped: this needs the superuser's rights");
        return;
    }
    let caller = |uid| Context { uid, gid: 77, now: Timespec::default() };
    let mut dir = fresh(Bounds::default());
    let root = dir.path().to_owned();
    // Whose the directory is, whether it is sticky, who calls, and whether another's file goes.
    let cases = [
        (0, true, user, false),
        (other, true, user, false),
        (user, true, user, true),
        (0, false, user, true),
        (0, true, 0, true),
        (0, true, other, true),
    ];
    for (owner, sticky, uid, goes) in cases {
        let case = (owner, sticky, uid);
        let path = root.join("d");
        // Its group may write, which the server has judged and this thread is not in.
        fs::create_dir(&path).unwrap();
        let mode = if sticky { 0o1770 } else { 0o770 };
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&path, Some(owner), Some(55)).unwrap();
        let make = |at: &str, uid| {
            fs::write(path.join(at), b"").unwrap();
            std::os::unix::fs::chown(path.join(at), Some(uid), Some(55)).unwrap();
        };
        let d = look(&mut dir, ROOT, "d").unwrap().ino;
        let expected = if goes { Ok(()) } else { Err(Errno::EPERM) };
        let (own, theirs) = (name("own"), name("theirs"));
        let none = RenameFlags::empty();
        make("own", uid);
        make("theirs", other);
        let cx = caller(uid);
        let moved = dir.rename(&cx, d, theirs, ROOT, name("out"), none);
        assert_eq!(moved, expected, "{case:?}: moved out");
        make("theirs", other);
        assert_eq!(dir.rename(&cx, d, own, d, theirs, none), expected, "{case:?}: replaced");
        make("own", uid);
        make("theirs", other);
        let exchanged = dir.rename(&cx, d, own, d, theirs, RenameFlags::EXCHANGE);
        assert_eq!(exchanged, expected, "{case:?}: exchanged");
        make("own", uid);
        make("theirs", other);
        assert_eq!(dir.unlink(&cx, d, theirs), expected, "{case:?}: removed");
        assert_eq!(dir.unlink(&cx, d, own), Ok(()), "{case:?}: its own");
        fs::create_dir(path.join("sub")).unwrap();
        std::os::unix::fs::chown(path.join("sub"), Some(other), Some(55)).unwrap();
        assert_eq!(dir.rmdir(&cx, d, name("sub")), expected, "{case:?}: a directory");
        // The thread has all its rights again: what it makes is whose it is to be.
        let (made, handle) = dir.create(&caller(other), d, name("made"), 0o600, RW).unwrap();
        dir.release(&caller(other), made.ino, handle).unwrap();
        assert_eq!(fs::metadata(path.join("made")).unwrap().uid(), other);
        fs::remove_dir_all(&path).unwrap();
        let _ = fs::remove_file(root.join("out"));
    }
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

/// A range of a file as a guest has it, and stores there.
#[derive(Debug)]
struct Mapped(Piece);

impl Mapped {
    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.file_at(at, |file, at| file.read_exact_at(&mut bytes, at).unwrap());
        bytes
    }

    fn store(&self, at: u64, bytes: &[u8]) {
        self.0.file_at(at, |file, at| file.write_all_at(bytes, at).unwrap());
    }

    fn is_the_file(&self, path: &Path) -> bool {
        let mut same = false;
        let number = |attr: fs::Metadata| (attr.dev(), attr.ino());
        let of_path = number(fs::metadata(path).unwrap());
        self.0.file_at(0, |file, _| same = number(file.metadata().unwrap()) == of_path);
        same
    }
}

trait FileAt {
    fn file_at(&self, at: u64, act: impl FnOnce(&fs::File, u64));
}

impl FileAt for Piece {
    fn file_at(&self, at: u64, act: impl FnOnce(&fs::File, u64)) {
        act(&self.file.try_clone().unwrap().into(), self.offset + at);
    }
}

fn map(fs: &mut HostDir, ino: Ino, handle: Handle, offset: u64, copied: bool) -> Result<Mapped> {
    let object = fs.inner().mappable(&cx(), ino, handle, offset, 2 << 20, copied)?;
    Ok(Mapped(*object.downcast::<Piece>().unwrap()))
}

/// The file itself is mapped, but for its end and where that is not to be; and what is copied is
/// what the file has, whoever changes it.
#[test]
fn ranges_of_files_are_mapped() {
    const RANGE: u64 = 2 << 20;
    let mut fs = fresh(Bounds::default());
    let path = fs.path().join("f");
    let mut expected: Vec<u8> = (0..5_000_000u32).map(|at| (at / 4096 + at % 251) as u8).collect();
    fs::write(&path, &expected).unwrap();
    let ino = look(&mut fs, Ino::ROOT, "f").unwrap().ino;
    let handle = fs.open(&cx(), ino, RW).unwrap();
    let to_read = fs.open(&cx(), ino, OpenFlags::READ).unwrap();
    let refused = map(&mut fs, ino, to_read, 0, false);
    assert_eq!(refused.unwrap_err(), Errno::EBADF, "stores would be nobody's");
    let first = map(&mut fs, ino, handle, 0, false).unwrap();
    let end = map(&mut fs, ino, handle, 2 * RANGE, false).unwrap();
    assert!(first.is_the_file(&path) && !end.is_the_file(&path));
    let other = map(&mut fs, ino, handle, RANGE, true).unwrap();
    assert!(!other.is_the_file(&path), "others cut it");
    // Two who map a range have the same memory, and ranges that overlap have none.
    let again = map(&mut fs, ino, handle, 2 * RANGE, false).unwrap();
    assert_eq!(map(&mut fs, ino, handle, RANGE + 4096, true).unwrap_err(), Errno::EINVAL);
    let at = 2 * RANGE as usize;
    let rest = expected.len() - at;
    assert!(end.read(0, rest) == expected[at..]);
    assert_eq!(end.read(rest as u64, 100), [0; 100]);

    // A store is the file's with the next read, and by fsync.
    end.store(77, b"stored");
    expected[at + 77..at + 83].copy_from_slice(b"stored");
    assert_eq!(again.read(77, 6), b"stored");
    let mut found = [0; 6];
    fs.read(&cx(), ino, to_read, at as u64 + 77, &mut found).unwrap();
    assert_eq!(&found, b"stored");
    other.store(9, b"synced");
    expected[RANGE as usize + 9..RANGE as usize + 15].copy_from_slice(b"synced");
    fs.fsync(&cx(), ino, handle, false).unwrap();
    assert!(fs::read(&path).unwrap() == expected);
    // The host's change of other bytes of the page, and one's own, are neither lost nor do they
    // take a store away.
    end.store(200, b"both");
    expected[at + 200..at + 204].copy_from_slice(b"both");
    let host = fs::File::options().write(true).open(&path).unwrap();
    host.write_all_at(b"host", at as u64 + 300).unwrap();
    expected[at + 300..at + 304].copy_from_slice(b"host");
    fs.write(&cx(), ino, handle, at as u64 + 202, b"write").unwrap();
    expected[at + 202..at + 207].copy_from_slice(b"write");
    assert_eq!(end.read(200, 7), b"bowrite");
    let seen = fs.open(&cx(), ino, OpenFlags::READ).unwrap();
    assert_eq!(end.read(300, 4), b"host", "seen when the file is opened");
    assert!(fs::read(&path).unwrap() == expected);

    // What is stored behind the end is nobody's.
    end.store(rest as u64 + 10, b"behind");
    fs.write(&cx(), ino, handle, expected.len() as u64 + 50, b"!").unwrap();
    expected.resize(expected.len() + 50, 0);
    expected.push(b'!');
    assert!(end.read(0, expected.len() - at) == expected[at..]);
    end.store(rest as u64 + 12, b"now");
    let len = expected.len();
    expected[len - 39..len - 36].copy_from_slice(b"now");
    fs.syncfs(&cx()).unwrap();
    assert!(fs::read(&path).unwrap() == expected);
    // What is cut off, or made a hole, is zeros.
    let cut = SetAttr { size: Some(at as u64 + 1000), ..SetAttr::default() };
    fs.setattr(&cx(), ino, None, &cut).unwrap();
    let grown = SetAttr { size: Some(at as u64 + 9000), ..SetAttr::default() };
    fs.setattr(&cx(), ino, Some(handle), &grown).unwrap();
    let hole = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    fs.fallocate(&cx(), ino, handle, at as u64 + 100, 50, hole).unwrap();
    expected.truncate(at + 1000);
    expected.resize(at + 9000, 0);
    expected[at + 100..at + 150].fill(0);
    assert!(end.read(0, 9000) == expected[at..]);
    // The host cuts it: a copy stays whole.
    host.set_len(10).unwrap();
    assert_eq!(other.read(RANGE - 1, 1).len(), 1);
    end.store(5, b"gone");
    fs.release(&cx(), ino, seen).unwrap();
    assert_eq!((end.read(5, 4), fs::metadata(&path).unwrap().len()), (vec![0; 4], 10));

    // The last who lets go leaves nothing behind, and its stores are in the file.
    let last = map(&mut fs, ino, handle, 0, false).unwrap();
    last.store(2, b"last");
    drop((first, end, other, again, last));
    fs.release(&cx(), ino, handle).unwrap();
    fs.release(&cx(), ino, to_read).unwrap();
    assert_eq!(fs::read(&path).unwrap()[2..6], *b"last");
}
