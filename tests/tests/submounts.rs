//! File systems that are mounted in a directory of the host which is served: shown where that is
//! asked for, each with numbers of its own, and never what lies outside.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use atoll_host::directory::{Bounds, Options};
use atoll_server::{Access, Credentials, KnownMost};
use atoll_tests::hostdir::HostDir;
use atoll_tests::served::{Served, in_namespace, ring};
use atoll_tests::subject::{RW, name};
use atoll_vfs::{
    Attr, Context, DirEntry, Errno, FileSystem, Ino, OpenFlags, RenameFlags, Result, Timespec,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

const ROOT: Ino = Ino::ROOT;
const NONE: Option<&str> = None;

fn cx() -> Context {
    Context { uid: 0, gid: 0, now: Timespec::default() }
}

fn tmpfs(at: &Path) {
    fs::create_dir_all(at).unwrap();
    mount(Some("t"), at, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
}

fn bind(from: &Path, at: &Path) {
    fs::create_dir_all(at).unwrap();
    mount(Some(from), at, NONE, MsFlags::MS_BIND, NONE).unwrap();
}

fn unmount(at: &Path) {
    umount2(at, MntFlags::MNT_DETACH).unwrap();
}

fn fresh(submounts: bool) -> (HostDir, PathBuf) {
    let options = Options { submounts, ..Options::default() };
    let (dir, _) = HostDir::with(Path::new(env!("CARGO_TARGET_TMPDIR")), &options).unwrap();
    let path = dir.path().to_owned();
    (dir, path)
}

fn look(fs: &mut impl FileSystem, parent: Ino, at: &str) -> Result<Attr> {
    fs.lookup(&cx(), parent, name(at))
}

/// Unmounts what a test has mounted, so that its folder can be removed.
struct Mounted(Vec<PathBuf>);

impl Drop for Mounted {
    fn drop(&mut self) {
        for at in self.0.iter().rev() {
            let _ = umount2(at, MntFlags::MNT_DETACH);
        }
    }
}

#[test]
fn what_is_mounted_is_not_served_unless_asked() {
    if !in_namespace() {
        return;
    }
    let (mut dir, path) = fresh(false);
    tmpfs(&path.join("t"));
    let _mounted = Mounted(vec![path.join("t")]);
    fs::write(path.join("t/f"), b"x").unwrap();
    assert_eq!(look(&mut dir, ROOT, "t"), Err(Errno::EXDEV));
    // In a mount of its own there is nothing mounted.
    dir.inner().isolate().unwrap();
    let below = look(&mut dir, ROOT, "t").unwrap().ino;
    assert_eq!(look(&mut dir, below, "f"), Err(Errno::ENOENT));
    assert!(!dir.is_submount(below));
}

/// Each inode has a number of its own, whatever file systems say; calls work in all of them, and
/// names do not cross.
#[test]
fn what_is_mounted_is_served_as_file_systems_of_their_own() {
    if !in_namespace() {
        return;
    }
    for isolated in [false, true] {
        let (mut dir, path) = fresh(true);
        fs::create_dir(path.join("d")).unwrap();
        fs::write(path.join("d/same"), b"below").unwrap();
        tmpfs(&path.join("t"));
        tmpfs(&path.join("t/deep/u"));
        // The same file system once more, and the directory itself in itself.
        bind(&path.join("t"), &path.join("again"));
        bind(&path, &path.join("d/loop"));
        let mounted = ["t", "t/deep/u", "again", "d/loop"].map(|at| path.join(at));
        let _mounted = Mounted(mounted.into());
        for at in ["t/same", "t/deep/u/same"] {
            fs::write(path.join(at), at).unwrap();
        }
        if isolated {
            dir.inner().isolate().unwrap();
        }
        let fs = &mut dir;
        let (d, t) = (look(fs, ROOT, "d").unwrap().ino, look(fs, ROOT, "t").unwrap().ino);
        let deep = look(fs, t, "deep").unwrap().ino;
        let u = look(fs, deep, "u").unwrap().ino;
        let again = look(fs, ROOT, "again").unwrap().ino;
        let within = look(fs, d, "loop").unwrap().ino;
        let inner = look(fs, within, "d").unwrap().ino;
        let all = [d, t, u, again, within, inner];
        assert_eq!(all.map(|ino| fs.is_submount(ino)), [false, true, true, true, true, false]);
        let same: Vec<Ino> =
            [d, t, u, again, inner].map(|at| look(fs, at, "same").unwrap().ino).into();
        let numbers: HashSet<Ino> = all.into_iter().chain(same.clone()).chain([deep]).collect();
        assert_eq!(numbers.len(), 12, "one number for two");
        for (ino, content) in same.iter().zip(["below", "t/same", "t/deep/u/same", "t/same"]) {
            let handle = fs.open(&cx(), *ino, OpenFlags::READ).unwrap();
            let mut found = [0; 32];
            let len = fs.read(&cx(), *ino, handle, 0, &mut found).unwrap();
            assert_eq!(&found[..len], content.as_bytes());
            fs.release(&cx(), *ino, handle).unwrap();
        }
        // Up again.
        for (at, above) in [(u, deep), (deep, t), (t, ROOT), (within, d), (inner, within)] {
            assert_eq!(look(fs, at, "..").map(|attr| attr.ino), Ok(above));
        }
        assert_eq!(look(fs, ROOT, "..").map(|attr| attr.ino), Ok(ROOT));
        // What listings say is what lookups do.
        for (at, names) in [(ROOT, vec!["d", "t", "again"]), (t, vec!["deep", "same"])] {
            let handle = fs.opendir(&cx(), at).unwrap();
            let mut listed = Vec::new();
            let mut note = |entry: &DirEntry<'_>| {
                listed.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino));
                true
            };
            fs.readdir(&cx(), at, handle, 0, &mut note).unwrap();
            fs.releasedir(&cx(), at, handle).unwrap();
            for name in names {
                let ino = look(fs, at, name).unwrap().ino;
                assert!(listed.contains(&(name.to_owned(), ino)), "{name} {listed:?}");
            }
        }
        // Everything that changes something.
        let (made, handle) = fs.create(&cx(), u, name("new"), 0o600, RW).unwrap();
        fs.write(&cx(), made.ino, handle, 0, b"new").unwrap();
        fs.fsync(&cx(), made.ino, handle, false).unwrap();
        assert_eq!(fs::read(path.join("t/deep/u/new")).unwrap(), b"new");
        fs.mkdir(&cx(), u, name("sub"), 0o700).unwrap();
        fs.rename(&cx(), u, name("new"), u, name("newer"), RenameFlags::empty()).unwrap();
        assert_eq!(fs.getattr(&cx(), made.ino).unwrap().ino, made.ino);
        let (loose, loosely) = fs.tmpfile(&cx(), t, 0o600, RW).unwrap();
        fs.link(&cx(), loose.ino, t, name("loose")).unwrap();
        assert_eq!(fs.link(&cx(), loose.ino, u, name("l")).map(drop), Err(Errno::EXDEV));
        fs.release(&cx(), loose.ino, loosely).unwrap();
        for (from, to) in [(u, t), (t, u), (d, t), (t, again)] {
            let at = if from == u { "newer" } else { "same" };
            let moved = fs.rename(&cx(), from, name(at), to, name("x"), RenameFlags::empty());
            assert_eq!(moved, Err(Errno::EXDEV));
        }
        // A mount's own place is not to be removed or moved.
        assert!(fs.rmdir(&cx(), deep, name("u")).is_err());
        let flags = RenameFlags::empty();
        assert!(fs.rename(&cx(), ROOT, name("t"), ROOT, name("x"), flags).is_err());
        fs.syncfs(&cx()).unwrap();
        let begun = fs.begin_sync(&cx(), false).unwrap().unwrap();
        let (id, flushed) = begun.flush();
        assert_eq!(flushed, Ok(()));
        assert!(matches!(fs.end_sync(id, flushed), Ok(None)));
        fs.release(&cx(), made.ino, handle).unwrap();
    }
}

/// Another file system at the same place, or none: what was known there is gone, and no number is
/// another file's.
#[test]
fn mounts_come_and_go() {
    if !in_namespace() {
        return;
    }
    let (mut dir, path) = fresh(true);
    let at = path.join("t");
    fs::create_dir(&at).unwrap();
    fs::write(at.join("f"), b"beneath").unwrap();
    let _mounted = Mounted(vec![at.clone(), at.clone()]);
    let known = |fs: &mut HostDir| {
        let t = look(fs, ROOT, "t").unwrap().ino;
        (t, look(fs, t, "f").unwrap())
    };
    let (beneath, first) = known(&mut dir);
    let mut before = vec![(beneath, first.ino)];
    for round in 0..5u64 {
        tmpfs(&at);
        fs::write(at.join("f"), vec![1; round as usize]).unwrap();
        let (t, f) = known(&mut dir);
        assert!(dir.is_submount(t) && f.size == round);
        // The old ones are there as long as they are open, else unknown, and never the new one.
        for (dir_before, file) in &before {
            if let Ok(attr) = dir.getattr(&cx(), *file) {
                assert!(attr.ino == *file && (attr.size != round || *file == f.ino));
            }
            let _ = dir.getattr(&cx(), *dir_before);
        }
        before.push((t, f.ino));
        unmount(&at);
        let (again, beneath_again) = known(&mut dir);
        assert_eq!((again, beneath_again.ino), (beneath, first.ino));
        assert_eq!(beneath_again.size, 7);
    }
}

/// Mounts that are gone hold no place that others need, nor a descriptor, however many there were.
#[test]
fn as_many_mounts_as_come_and_go() {
    if !in_namespace() {
        return;
    }
    const MANY: usize = 300;
    let bounds = Bounds { directories: 8, ..Bounds::default() };
    let options = Options { submounts: true, bounds, ..Options::default() };
    let (mut dir, _) = HostDir::with(Path::new(env!("CARGO_TARGET_TMPDIR")), &options).unwrap();
    let path = dir.path().to_owned();
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let comes_and_goes = |dir: &mut HostDir, at: &str| {
        let place = path.join(at);
        tmpfs(&place);
        let _mounted = Mounted(vec![place]);
        let t = look(dir, ROOT, at).map(|attr| attr.ino);
        assert!(t.is_ok_and(|t| dir.is_submount(t)), "{at}: {t:?}");
    };
    comes_and_goes(&mut dir, "t");
    let first = descriptors();
    for _ in 0..MANY {
        comes_and_goes(&mut dir, "t");
    }
    // Those that were met last may be there, and what other tests open meanwhile.
    assert!(descriptors() < first + MANY / 2, "{} descriptors, then {first}", descriptors());
    for number in 0..MANY {
        comes_and_goes(&mut dir, &format!("t{number}"));
    }
}

/// A kernel that wants to know hears which directory begins another file system, by a session.
#[test]
fn sessions_say_what_is_mounted() {
    if !in_namespace() {
        return;
    }
    let (dir, path) = fresh(true);
    tmpfs(&path.join("t"));
    let _mounted = Mounted(vec![path.join("t")]);
    fs::create_dir(path.join("t/sub")).unwrap();
    let volume = atoll_host::server::volume(dir, "v");
    volume.set_foreign(KnownMost::default()).unwrap();
    volume.set_submounts();
    let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
    let t = look(&mut session, ROOT, "t").unwrap().ino;
    let sub = look(&mut session, t, "sub").unwrap().ino;
    let is = [ROOT, t, sub, Ino(99)].map(|ino| session.is_submount(ino));
    assert_eq!(is, [false, true, false, false]);
}

/// How much room there is, is said of the file system that was asked about: to its own client, and
/// to one behind a server.
#[test]
fn each_mount_has_its_own_room() {
    if !in_namespace() {
        return;
    }
    for submounts in [true, false] {
        let (mut dir, path) = fresh(submounts);
        let at = path.join("t");
        fs::create_dir(&at).unwrap();
        mount(Some("t"), &at, Some("tmpfs"), MsFlags::empty(), Some("size=8m,nr_inodes=77"))
            .unwrap();
        let _mounted = Mounted(vec![at.clone()]);
        fs::create_dir(path.join("d")).unwrap();
        fs::write(at.join("f"), b"x").unwrap();
        let whole = dir.statfs(&cx()).unwrap();
        assert_ne!(whole.files, 77);
        let d = look(&mut dir, ROOT, "d").unwrap().ino;
        for ino in [ROOT, d] {
            assert_eq!(dir.statfs_below(&cx(), ino).unwrap().files, whole.files);
        }
        if !submounts {
            continue;
        }
        let t = look(&mut dir, ROOT, "t").unwrap().ino;
        let f = look(&mut dir, t, "f").unwrap().ino;
        for ino in [t, f] {
            let room = dir.statfs_below(&cx(), ino).unwrap();
            assert_eq!((room.files, room.blocks * u64::from(room.block_size)), (77, 8 << 20));
        }
        let served = Served::of_directory(dir, 0);
        let mut client = ring(&served.socket(), 1).client().expect("a lane");
        let t = look(&mut client, ROOT, "t").unwrap().ino;
        assert_eq!(client.statfs_below(&cx(), t).unwrap().files, 77);
        assert_eq!(client.statfs(&cx()).unwrap().files, whole.files);
        drop(client);
        served.end();
    }
}

/// File systems whose inodes have the same handles, one after the other at the same place, as two
/// disks of ext4: here those of the two versions of cgroups, which take no disk.
#[test]
fn file_systems_with_the_same_handles_are_told_apart() {
    if !in_namespace() {
        return;
    }
    let (mut dir, path) = fresh(true);
    let at = path.join("m");
    fs::create_dir(&at).unwrap();
    let put = |kind, data| mount(Some("x"), &at, Some(kind), MsFlags::empty(), data);
    let _mounted = Mounted(vec![at.clone(), at.clone()]);
    let old = "none,name=atoll-test";
    if put("cgroup", Some(old)).is_err() {
        // A kernel without the old version.
        return;
    }
    let first = look(&mut dir, ROOT, "m").unwrap().ino;
    assert!(look(&mut dir, first, "release_agent").is_ok());
    unmount(&at);
    put("cgroup2", NONE).unwrap();
    // A listing says the same as lookups do, before and after.
    let listed = |dir: &mut HostDir| {
        let handle = dir.opendir(&cx(), ROOT).unwrap();
        let mut found = None;
        let mut note = |entry: &DirEntry<'_>| {
            found = found.or((entry.name == b"m").then_some(entry.ino));
            true
        };
        dir.readdir(&cx(), ROOT, handle, 0, &mut note).unwrap();
        dir.releasedir(&cx(), ROOT, handle).unwrap();
        found.unwrap()
    };
    let before = listed(&mut dir);
    let second = look(&mut dir, ROOT, "m").unwrap().ino;
    assert_ne!(first, second, "a number names two directories");
    assert!(look(&mut dir, second, "cgroup.controllers").is_ok());
    assert_eq!(look(&mut dir, second, "release_agent").map(drop), Err(Errno::ENOENT));
    assert_eq!((before, listed(&mut dir)), (second, second));
}

/// A file system that is mounted once more is served as it is mounted then.
#[test]
fn a_mount_that_comes_again_is_as_it_is_then() {
    if !in_namespace() {
        return;
    }
    let (mut dir, path) = fresh(true);
    let (source, at) = (path.join("source"), path.join("m"));
    tmpfs(&source);
    let _mounted = Mounted(vec![source.clone(), at.clone()]);
    let make = |dir: &mut HostDir, file| {
        let m = look(dir, ROOT, "m").unwrap().ino;
        dir.mkdir(&cx(), m, name(file), 0o700).map(drop)
    };
    bind(&source, &at);
    let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(NONE, &at, NONE, read_only, NONE).unwrap();
    assert_eq!(make(&mut dir, "a"), Err(Errno::EROFS));
    unmount(&at);
    bind(&source, &at);
    assert_eq!(make(&mut dir, "b"), Ok(()));
}
