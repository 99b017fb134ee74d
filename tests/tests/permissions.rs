//! The rights of an ordinary user in a session, against Linux: the same operations on a directory
//! of the host, by a thread that has taken the user's identity.

use std::os::fd::OwnedFd;

use atoll_server::{Access, Session};
use atoll_tests::fixtures::{cx, user};
use atoll_tests::subject::{RW, name};
use atoll_vfs::model::ModelFs;
use atoll_vfs::*;

const ROOT: Ino = Ino::ROOT;

/// An operation on the tree.
#[derive(Clone, Copy, Debug)]
enum Op {
    Lookup,
    Open(u32),
    Create(&'static str, u32),
    Unlink(&'static str),
    Rmdir,
    Mkdir(&'static str),
    Symlink(&'static str),
    Fifo,
    Device,
    Link,
    Rename(&'static str, &'static str),
    Chmod(&'static str, u32),
    Chown(Option<u32>, Option<u32>),
    TouchNow,
    TouchThen,
    Truncate,
    Write,
    List,
}

const O_RDONLY: u32 = 0;
const O_WRONLY: u32 = 1;
const O_RDWR: u32 = 2;
const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;

const OPS: &[Op] = &[
    Op::Lookup,
    Op::Open(O_RDONLY),
    Op::Open(O_WRONLY),
    Op::Open(O_RDWR),
    Op::Open(O_RDONLY | O_TRUNC),
    Op::Open(O_WRONLY | O_TRUNC),
    Op::Create("n", O_WRONLY),
    Op::Create("n", O_RDONLY | O_EXCL),
    Op::Create("f", O_RDWR),
    Op::Create("f", O_WRONLY | O_EXCL),
    Op::Unlink("f"),
    Op::Unlink("missing"),
    Op::Unlink("s"),
    Op::Rmdir,
    Op::Mkdir("n"),
    Op::Mkdir("f"),
    Op::Symlink("n"),
    Op::Symlink("s"),
    Op::Fifo,
    Op::Device,
    Op::Link,
    Op::Rename("d/f", "d/n"),
    Op::Rename("d/f", "e/x"),
    Op::Rename("d/s", "e/x"),
    Op::Rename("d/s", "d/n"),
    Op::Rename("e/g", "d/f"),
    Op::Rename("e/g", "d/n"),
    Op::Rename("d/missing", "d/n"),
    Op::Chmod("f", 0o600),
    Op::Chmod("f", 0o6775),
    Op::Chmod("s", 0o2755),
    Op::Chown(Some(1000), None),
    Op::Chown(Some(1001), None),
    Op::Chown(None, Some(2000)),
    Op::Chown(None, Some(3000)),
    Op::TouchNow,
    Op::TouchThen,
    Op::Truncate,
    Op::Write,
    Op::List,
];

type Outcome = std::result::Result<(), i32>;
/// Mode, user and group of each inode, by path.
type Tree = Vec<(&'static str, Option<(u32, u32, u32)>)>;
const PATHS: [&str; 9] = ["d", "d/f", "d/s", "d/n", "e", "e/g", "e/x", "d/missing", "d/x"];

#[derive(Clone, Copy, Debug)]
struct Owned {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl std::fmt::Display for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:o} {}:{}", self.mode, self.uid, self.gid)
    }
}

fn owned(mode: u32, uid: u32, gid: u32) -> Owned {
    Owned { mode, uid, gid }
}

// ---- On Linux ----

mod linux {
    use super::*;
    use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Timestamps, Uid};
    use rustix::io::Errno;
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

    fn own(base: &OwnedFd, path: &str, of: Owned) {
        let (uid, gid) = (Uid::from_raw(of.uid), Gid::from_raw(of.gid));
        fs::chownat(base, path, Some(uid), Some(gid), AtFlags::empty()).unwrap();
        fs::chmodat(base, path, Mode::from_raw_mode(of.mode), AtFlags::empty()).unwrap();
    }

    pub fn build(base: &OwnedFd, dir: Owned, file: Owned) {
        let write = OFlags::WRONLY | OFlags::CREATE;
        for at in ["d", "e", "d/s"] {
            fs::mkdirat(base, at, Mode::from_raw_mode(0o755)).unwrap();
        }
        for at in ["d/f", "e/g"] {
            let made = fs::openat(base, at, write, Mode::from_raw_mode(0o644)).unwrap();
            rustix::io::write(&made, b"x").unwrap();
        }
        own(base, "d/f", file);
        own(base, "d/s", owned(0o755, file.uid, file.gid));
        own(base, "e/g", owned(0o644, 1000, 1000));
        own(base, "d", dir);
        own(base, "e", owned(0o777, 0, 0));
    }

    pub fn clear(base: &OwnedFd) {
        for at in ["d/s", "d/n", "e/x"] {
            let _ = fs::unlinkat(base, at, AtFlags::REMOVEDIR);
        }
        for at in ["d/f", "d/n", "e/g", "e/x", "d/missing"] {
            let _ = fs::unlinkat(base, at, AtFlags::empty());
        }
        for at in ["d", "e"] {
            fs::unlinkat(base, at, AtFlags::REMOVEDIR).unwrap();
        }
    }

    pub fn tree(base: &OwnedFd) -> Tree {
        PATHS
            .iter()
            .map(|&path| {
                let stat = fs::statat(base, path, AtFlags::SYMLINK_NOFOLLOW).ok();
                (path, stat.map(|s| (s.st_mode, s.st_uid, s.st_gid)))
            })
            .collect()
    }

    pub fn done(base: &OwnedFd, op: Op) -> Outcome {
        std::thread::scope(|scope| {
            let ordinary = scope.spawn(|| {
                // The credentials of one thread, which ends with it.
                let who = user();
                let groups: Vec<Gid> = who.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
                set_thread_groups(&groups).unwrap();
                let gid = Gid::from_raw(who.gid);
                set_thread_res_gid(gid, gid, gid).unwrap();
                let uid = Uid::from_raw(who.uid);
                set_thread_res_uid(uid, uid, uid).unwrap();
                act(base, op).map_err(Errno::raw_os_error)
            });
            ordinary.join().unwrap()
        })
    }

    fn act(base: &OwnedFd, op: Op) -> std::result::Result<(), Errno> {
        let in_d = |name: &str| format!("d/{name}");
        let none = AtFlags::empty();
        match op {
            Op::Lookup => fs::statat(base, "d/f", none).map(drop),
            Op::Open(flags) => {
                fs::openat(base, "d/f", OFlags::from_bits_retain(flags), Mode::empty()).map(drop)
            }
            Op::Create(name, flags) => {
                let flags = OFlags::from_bits_retain(flags) | OFlags::CREATE;
                fs::openat(base, in_d(name), flags, Mode::from_raw_mode(0o2755)).map(drop)
            }
            Op::Unlink(name) => fs::unlinkat(base, in_d(name), none),
            Op::Rmdir => fs::unlinkat(base, "d/s", AtFlags::REMOVEDIR),
            Op::Mkdir(name) => fs::mkdirat(base, in_d(name), Mode::from_raw_mode(0o755)),
            Op::Symlink(name) => fs::symlinkat("t", base, in_d(name)),
            Op::Fifo => fs::mknodat(base, "d/n", FileType::Fifo, Mode::from_raw_mode(0o644), 0),
            Op::Device => {
                let null = fs::makedev(1, 3);
                fs::mknodat(
                    base,
                    "d/n",
                    FileType::CharacterDevice,
                    Mode::from_raw_mode(0o644),
                    null,
                )
            }
            Op::Link => fs::linkat(base, "d/f", base, "e/x", none),
            Op::Rename(from, to) => fs::renameat(base, from, base, to),
            Op::Chmod(name, mode) => fs::chmodat(base, in_d(name), Mode::from_raw_mode(mode), none),
            Op::Chown(uid, gid) => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                fs::chownat(base, "d/f", uid, gid, none)
            }
            Op::TouchNow | Op::TouchThen => {
                let mut time = fs::Timespec { tv_sec: 5, tv_nsec: 0 };
                if let Op::TouchNow = op {
                    time.tv_nsec = fs::UTIME_NOW as _;
                }
                let times = Timestamps { last_access: time, last_modification: time };
                fs::utimensat(base, "d/f", &times, none)
            }
            Op::Truncate => {
                // truncate(2) goes by a path from the current directory; opening for writing and
                // ftruncate(2) ask for the same right.
                let file = fs::openat(base, "d/f", OFlags::WRONLY, Mode::empty())?;
                fs::ftruncate(file, 0)
            }
            Op::Write => {
                let file = fs::openat(base, "d/f", OFlags::WRONLY, Mode::empty())?;
                rustix::io::write(file, b"more").map(drop)
            }
            Op::List => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                fs::openat(base, "d", flags, Mode::empty()).map(drop)
            }
        }
    }
}

// ---- On a session ----

fn walk<F: FileSystem>(fs: &mut F, path: &str) -> Result<Attr> {
    let mut attr = fs.getattr(&cx(), ROOT)?;
    for component in path.split('/').filter(|component| !component.is_empty()) {
        attr = fs.lookup(&cx(), attr.ino, name(component))?;
    }
    Ok(attr)
}

fn build(dir: Owned, file: Owned) -> ModelFs {
    let mut fs = ModelFs::default();
    let own = |fs: &mut ModelFs, ino: Ino, of: Owned| {
        let set = SetAttr {
            mode: Some(of.mode),
            uid: Some(of.uid),
            gid: Some(of.gid),
            ..SetAttr::default()
        };
        fs.setattr(&cx(), ino, None, &set).unwrap();
    };
    let d = fs.mkdir(&cx(), ROOT, name("d"), 0o755).unwrap().ino;
    let e = fs.mkdir(&cx(), ROOT, name("e"), 0o755).unwrap().ino;
    let s = fs.mkdir(&cx(), d, name("s"), 0o755).unwrap().ino;
    for (parent, at, of) in [(d, "f", file), (e, "g", owned(0o644, 1000, 1000))] {
        let (attr, handle) = fs.create(&cx(), parent, name(at), 0o644, RW).unwrap();
        fs.write(&cx(), attr.ino, handle, 0, b"x").unwrap();
        fs.release(&cx(), attr.ino, handle).unwrap();
        own(&mut fs, attr.ino, of);
    }
    own(&mut fs, s, owned(0o755, file.uid, file.gid));
    own(&mut fs, d, dir);
    own(&mut fs, e, owned(0o777, 0, 0));
    fs
}

fn act(fs: &mut Session<ModelFs>, op: Op) -> Result<()> {
    let cx = cx();
    let open_flags = |bits: u32| wire::files::open_flags(bits);
    let split = |path: &'static str| path.split_once('/').expect("a directory and a name");
    let set = |fs: &mut Session<ModelFs>, at: &str, set: SetAttr| {
        let ino = walk(fs, at)?.ino;
        fs.setattr(&cx, ino, None, &set).map(drop)
    };
    match op {
        Op::Lookup => walk(fs, "d/f").map(drop),
        Op::Open(flags) => {
            let ino = walk(fs, "d/f")?.ino;
            fs.open(&cx, ino, open_flags(flags)).map(drop)
        }
        Op::Create(at, flags) => {
            let d = walk(fs, "d")?.ino;
            fs.create(&cx, d, name(at), 0o2755, open_flags(flags)).map(drop)
        }
        Op::Unlink(at) => {
            let d = walk(fs, "d")?.ino;
            fs.unlink(&cx, d, name(at))
        }
        Op::Rmdir => {
            let d = walk(fs, "d")?.ino;
            fs.rmdir(&cx, d, name("s"))
        }
        Op::Mkdir(at) => {
            let d = walk(fs, "d")?.ino;
            fs.mkdir(&cx, d, name(at), 0o755).map(drop)
        }
        Op::Symlink(at) => {
            let d = walk(fs, "d")?.ino;
            fs.symlink(&cx, d, name(at), b"t").map(drop)
        }
        Op::Fifo | Op::Device => {
            let d = walk(fs, "d")?.ino;
            let kind =
                if let Op::Fifo = op { FileType::Fifo } else { FileType::CharDevice }.mode_bits();
            fs.mknod(&cx, d, name("n"), kind | 0o644, 0x103).map(drop)
        }
        Op::Link => {
            let ino = walk(fs, "d/f")?.ino;
            let e = walk(fs, "e")?.ino;
            fs.link(&cx, ino, e, name("x")).map(drop)
        }
        Op::Rename(from, to) => {
            let (from, to) = (split(from), split(to));
            let (a, b) = (walk(fs, from.0)?.ino, walk(fs, to.0)?.ino);
            fs.rename(&cx, a, name(from.1), b, name(to.1), RenameFlags::empty())
        }
        Op::Chmod(at, mode) => {
            set(fs, &format!("d/{at}"), SetAttr { mode: Some(mode), ..SetAttr::default() })
        }
        Op::Chown(uid, gid) => set(fs, "d/f", SetAttr { uid, gid, ..SetAttr::default() }),
        Op::TouchNow | Op::TouchThen => {
            let time = match op {
                Op::TouchNow => SetTime::Now,
                _ => SetTime::To(Timespec { sec: 5, nsec: 0 }),
            };
            let times = SetAttr { atime: Some(time), mtime: Some(time), ..SetAttr::default() };
            set(fs, "d/f", times)
        }
        Op::Truncate => set(fs, "d/f", SetAttr { size: Some(0), ..SetAttr::default() }),
        Op::Write => {
            let ino = walk(fs, "d/f")?.ino;
            let handle = fs.open(&cx, ino, OpenFlags::WRITE)?;
            fs.write(&cx, ino, handle, 0, b"more").map(drop)
        }
        Op::List => {
            let d = walk(fs, "d")?.ino;
            fs.opendir(&cx, d).map(drop)
        }
    }
}

fn sysctl(name: &str) -> bool {
    std::fs::read_to_string(format!("/proc/sys/fs/{name}")).is_ok_and(|value| value.trim() != "0")
}

/// Every operation, by an ordinary user on files and directories of many modes and owners, is
/// allowed or refused as Linux does it in a directory of its own, and leaves the same modes and
/// owners behind.
#[test]
fn permissions_are_those_of_linux() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can take another user's identity");
        return;
    }
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    let base = rustix::fs::open(place.path(), flags, rustix::fs::Mode::empty()).unwrap();
    rustix::fs::fchmod(&base, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
    let (links, regular) = (sysctl("protected_hardlinks"), sysctl("protected_regular"));

    let mut dirs = Vec::new();
    for mode in [0o755, 0o700, 0o777, 0o1777, 0o711, 0o744, 0o770, 0o707, 0o2777, 0o333] {
        for (uid, gid) in [(0, 0), (1000, 1000), (0, 2000), (1001, 3000)] {
            dirs.push(owned(mode, uid, gid));
        }
    }
    let mut files = Vec::new();
    for mode in [0o644, 0o600, 0o666, 0o640, 0o4777, 0o2777, 0o2767, 0o6755, 0o044, 0o466] {
        for (uid, gid) in [(0, 0), (1000, 1000), (0, 2000), (1001, 1001), (1000, 3000)] {
            files.push(owned(mode, uid, gid));
        }
    }
    let mut pairs: Vec<(Owned, Owned)> = Vec::new();
    for &dir in &dirs {
        pairs.extend([owned(0o644, 0, 0), owned(0o600, 1000, 3000)].map(|file| (dir, file)));
    }
    for &file in &files {
        pairs.extend([owned(0o755, 0, 0), owned(0o1777, 0, 0)].map(|dir| (dir, file)));
    }
    let (mut compared, mut refused) = (0, 0);
    let mut wrong = Vec::new();
    for &(dir, file) in &pairs {
        let model = build(dir, file);
        for &op in OPS {
            // Linux can be told to be stricter, or less so.
            let sticky = dir.mode & 0o1000 != 0;
            if matches!(op, Op::Link) && !links || matches!(op, Op::Create(..)) && regular && sticky
            {
                continue;
            }
            linux::build(&base, dir, file);
            let on_linux = linux::done(&base, op);
            let tree = linux::tree(&base);
            linux::clear(&base);

            let volume = atoll_host::server::volume(model.clone(), "v");
            let mut session = volume.session(user(), Access::default()).unwrap();
            let here = act(&mut session, op).map_err(Errno::raw);
            drop(session);
            let Ok(Some(mut fs)) = volume.into_inner() else { panic!("the volume is still held") };
            let left: Tree = PATHS
                .iter()
                .map(|&path| (path, walk(&mut fs, path).ok().map(|a| (a.mode, a.uid, a.gid))))
                .collect();
            if here != on_linux || left != tree {
                wrong.push(format!(
                    "{op:?} in {dir} on {file}: {here:?} for {on_linux:?}\n{left:?}\n{tree:?}"
                ));
            }
            compared += 1;
            refused += usize::from(on_linux.is_err());
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {compared} differ, such as:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(12)].join("\n")
    );
    assert!(compared > 4000 && refused > compared / 4, "{refused} of {compared} were refused");
}
