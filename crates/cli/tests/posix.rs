//! Tests of what programs may expect of files, on a volume that the kernel serves to them.
#![allow(missing_docs)]

mod common;

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use common::{enter, need};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;

/// Declares a test that runs its body within a volume.
macro_rules! inside {
    ($($(#[$doc:meta])* $name:ident in $size:literal $body:block)*) => {
        $(
            $(#[$doc])*
            mod $name {
                #[test]
                fn in_volume() {
                    crate::common::inside(concat!(stringify!($name), "::inner"), $size);
                }

                #[test]
                #[ignore = "run by in_volume, within a volume"]
                fn inner() {
                    super::enter();
                    super::bodies::$name();
                }
            }
        )*
        mod bodies {
            use super::*;
            $(pub fn $name() $body)*
        }
    };
}

#[track_caller]
fn refused<T>(result: io::Result<T>, errno: Errno) {
    let error = result.err().unwrap_or_else(|| panic!("{errno:?} was expected"));
    assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()), "{error}");
}

#[track_caller]
fn said<T>(result: rustix::io::Result<T>, errno: Errno) {
    assert_eq!(result.err(), Some(errno));
}

fn rw(path: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

inside! {
    unlinked_files_live_while_open in "16M" {
        let mut file = rw("f");
        file.write_all(b"still here").unwrap();
        let again = File::open("f").unwrap();
        fs::remove_file("f").unwrap();
        refused(File::open("f"), Errno::NOENT);
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        let mut content = String::new();
        (&again).read_to_string(&mut content).unwrap();
        assert_eq!(content, "still here");
        file.write_all_at(&pattern(300_000, 1), 0).unwrap();
        file.set_len(100_000).unwrap();
        assert_eq!(again.metadata().unwrap().len(), 100_000);
        file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        // Another file of the name is another file.
        fs::write("f", "new").unwrap();
        let mut buf = [0; 10];
        again.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(buf, pattern(10, 1)[..]);
        // One that replaces it does not reach whoever has it open.
        let old = File::open("f").unwrap();
        fs::write("g", "newer").unwrap();
        fs::rename("g", "f").unwrap();
        assert_eq!(fs::read("f").unwrap(), b"newer");
        let mut content = String::new();
        (&old).read_to_string(&mut content).unwrap();
        assert_eq!(content, "new");
    }

    files_without_a_name in "16M" {
        fs::create_dir("d").unwrap();
        let make = |flags| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | flags;
            File::from(rustix::fs::open("d", flags, Mode::RUSR | Mode::WUSR).unwrap())
        };
        let (kept, hidden) = (make(OFlags::empty()), make(OFlags::EXCL));
        for mut file in [&kept, &hidden] {
            file.write_all(b"content").unwrap();
            assert_eq!((file.metadata().unwrap().nlink(), file.metadata().unwrap().len()), (0, 7));
        }
        assert_eq!(fs::read_dir("d").unwrap().count(), 0);
        let link = |file: &File, to| {
            let from = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(CWD, &from, CWD, to, AtFlags::SYMLINK_FOLLOW)
        };
        link(&kept, "d/kept").unwrap();
        said(link(&hidden, "d/hidden"), Errno::NOENT);
        drop((kept, hidden));
        assert_eq!(fs::read("d/kept").unwrap(), b"content");
        assert_eq!(fs::metadata("d/kept").unwrap().nlink(), 1);
    }

    appending in "16M" {
        let open = || OpenOptions::new().append(true).create(true).open("log").unwrap();
        let (mut a, mut b) = (open(), open());
        for _ in 0..10 {
            a.write_all(b"a").unwrap();
            b.write_all(b"bb").unwrap();
        }
        assert_eq!(fs::read("log").unwrap(), b"abb".repeat(10));
        // The flag can be cleared, and then offsets count again.
        // (By the C library's function, as programs do.)
        nix::fcntl::fcntl(&a, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
        a.write_all_at(b"X", 0).unwrap();
        assert_eq!(fs::read("log").unwrap()[..4], *b"Xbba");
        assert_eq!(fs::metadata("log").unwrap().len(), 30);
        // And processes that append at once do not lose a line.
        let writers: Vec<_> = (0..4)
            .map(|_| {
                std::process::Command::new("sh")
                    .args(["-c", "for i in 1 2 3 4 5 6 7 8 9; do echo 123456789 >> lines; done"])
                    .spawn()
                    .unwrap()
            })
            .collect();
        for mut writer in writers {
            assert!(writer.wait().unwrap().success());
        }
        assert_eq!(fs::read("lines").unwrap(), b"123456789\n".repeat(36));
    }

    renaming in "16M" {
        fs::write("a", "a").unwrap();
        fs::write("b", "b").unwrap();
        said(rustix::fs::renameat_with(CWD, "a", CWD, "b", RenameFlags::NOREPLACE), Errno::EXIST);
        rustix::fs::renameat_with(CWD, "a", CWD, "c", RenameFlags::NOREPLACE).unwrap();
        fs::create_dir("d").unwrap();
        fs::write("d/in", "in").unwrap();
        rustix::fs::renameat_with(CWD, "c", CWD, "d", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read("d").unwrap(), b"a");
        assert_eq!(fs::read("c/in").unwrap(), b"in");
        said(rustix::fs::renameat_with(CWD, "c", CWD, "none", RenameFlags::EXCHANGE), Errno::NOENT);
        said(rustix::fs::renameat_with(CWD, "d", CWD, "c", RenameFlags::from_bits_retain(6)), Errno::INVAL);
        // Directories: not into themselves, not onto full ones, not onto files.
        fs::create_dir_all("c/sub/sub").unwrap();
        refused(fs::rename("c", "c/sub/sub/c"), Errno::INVAL);
        fs::create_dir("empty").unwrap();
        fs::create_dir("full").unwrap();
        fs::write("full/x", "").unwrap();
        refused(fs::rename("empty", "full"), Errno::NOTEMPTY);
        refused(fs::rename("empty", "d"), Errno::NOTDIR);
        refused(fs::rename("d", "empty"), Errno::ISDIR);
        fs::rename("full", "empty").unwrap();
        assert!(Path::new("empty/x").exists() && !Path::new("full").exists());
        // The parent of a directory that moved is another.
        fs::rename("c/sub", "empty/sub").unwrap();
        assert_eq!(
            fs::metadata("empty/sub/..").unwrap().ino(),
            fs::metadata("empty").unwrap().ino()
        );
        // Two names of one file: nothing happens.
        fs::hard_link("d", "d2").unwrap();
        fs::rename("d", "d2").unwrap();
        assert!(Path::new("d").exists() && fs::metadata("d2").unwrap().nlink() == 2);
    }

    extended_attributes in "16M" {
        fs::write("f", "").unwrap();
        let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr("f", name, value, flags);
        let get = |name: &str| {
            let mut value = vec![0; 70_000];
            rustix::fs::getxattr("f", name, &mut value[..]).map(|len| value[..len].to_vec())
        };
        said(get("user.a"), Errno::NODATA);
        set("user.a", b"1", XattrFlags::CREATE).unwrap();
        said(set("user.a", b"2", XattrFlags::CREATE), Errno::EXIST);
        said(set("user.b", b"2", XattrFlags::REPLACE), Errno::NODATA);
        set("user.a", b"22", XattrFlags::REPLACE).unwrap();
        assert_eq!(get("user.a").unwrap(), b"22");
        set("user.empty", b"", XattrFlags::empty()).unwrap();
        assert_eq!(get("user.empty").unwrap(), b"");
        let large = pattern(65_536, 7);
        set("user.large", &large, XattrFlags::empty()).unwrap();
        assert_eq!(get("user.large").unwrap(), large);
        said(rustix::fs::getxattr("f", "user.large", &mut [0u8; 10][..]), Errno::RANGE);
        let mut names = vec![0; 1000];
        let len = rustix::fs::listxattr("f", &mut names[..]).unwrap();
        let mut listed: Vec<_> = names[..len].split(|&b| b == 0).filter(|n| !n.is_empty()).collect();
        listed.sort();
        assert_eq!(listed, [&b"user.a"[..], b"user.empty", b"user.large"]);
        rustix::fs::removexattr("f", "user.large").unwrap();
        said(rustix::fs::removexattr("f", "user.large"), Errno::NODATA);
        // Access control lists are not supported, and programs are told so.
        said(get("system.posix_acl_access"), Errno::OPNOTSUPP);
        let directory = rustix::fs::setxattr(".", "user.dir", b"d", XattrFlags::empty());
        directory.unwrap();
    }

    space_in_files in "64M" {
        let file = rw("f");
        let fallocate = |mode, offset, len| rustix::fs::fallocate(&file, mode, offset, len);
        fallocate(FallocateFlags::empty(), 0, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        assert!(file.metadata().unwrap().blocks() >= 2048);
        fallocate(FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        let data = pattern(1 << 20, 3);
        file.write_all_at(&data, 0).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(punch, 4096 * 10 + 100, 4096 * 20).unwrap();
        fallocate(FallocateFlags::ZERO_RANGE, 600_000, 1000).unwrap();
        said(fallocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096), Errno::OPNOTSUPP);
        let mut expected = data;
        expected[4096 * 10 + 100..4096 * 30 + 100].fill(0);
        expected[600_000..601_000].fill(0);
        assert!(fs::read("f").unwrap() == expected);

        let file = rw("sparse");
        file.write_all_at(b"x", 10 << 20).unwrap();
        file.set_len(20 << 20).unwrap();
        assert!(file.metadata().unwrap().blocks() <= 16);
        let seek = |to| rustix::fs::seek(&file, to);
        let data = seek(rustix::fs::SeekFrom::Data(0)).unwrap();
        assert_eq!(data, 10 << 20);
        assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)).unwrap(), 0);
        let hole = seek(rustix::fs::SeekFrom::Hole(data)).unwrap();
        assert_eq!(hole, (10 << 20) + 4096);
        said(seek(rustix::fs::SeekFrom::Data(hole)), Errno::NXIO);
        said(seek(rustix::fs::SeekFrom::Hole(20 << 20)), Errno::NXIO);
        assert_eq!((&file).seek(SeekFrom::End(-1)).unwrap(), (20 << 20) - 1);
    }

    mapping in "64M" {
        // Through a program in C's place: the shell has no mmap, python3 does.
        need("python3", "python3");
        let program = r#"
import mmap, os
f = open("m", "w+b")
f.truncate(10000)
a = mmap.mmap(f.fileno(), 10000)
b = mmap.mmap(os.open("m", os.O_RDWR), 10000)
a[0:5] = b"hello"
assert b[0:5] == b"hello"
a.flush()
assert open("m", "rb").read(5) == b"hello"
os.pwrite(f.fileno(), b"world", 9000)
assert b[9000:9005] == b"world"
p = mmap.mmap(f.fileno(), 10000, mmap.MAP_PRIVATE)
p[0:5] = b"other"
assert a[0:5] == b"hello"
if os.fork() == 0:
    a[100:103] = b"kid"
    os._exit(0)
os.wait()
assert b[100:103] == b"kid"
a[200:203] = b"end"
del a, b, p
"#;
        let status = std::process::Command::new("python3").args(["-c", program]).status().unwrap();
        assert!(status.success());
        // Also once all mappings and the process are gone.
        assert_eq!(fs::read("m").unwrap()[200..203], *b"end");
        assert_eq!(fs::read("m").unwrap()[100..103], *b"kid");
    }

    large_transfers in "256M" {
        let data = pattern(5 * (1 << 20) + 12_345, 9);
        let file = rw("f");
        file.write_all_at(&data, 777).unwrap();
        for (offset, len) in [(777, data.len()), (778, 1 << 20), (3_000_001, 2 << 20), (4095, 4098)] {
            let mut got = vec![0; len];
            let end = (offset + len).min(777 + data.len());
            let got_len = end - offset;
            file.read_exact_at(&mut got[..got_len], offset as u64).unwrap();
            assert!(got[..got_len] == data[offset - 777..end - 777], "{offset} {len}");
        }
        // The same past the kernel's cache.
        let direct = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open("f")
            .unwrap();
        let mut space = vec![0u8; (1 << 20) + 4096];
        let start = space.as_ptr().align_offset(4096);
        let aligned = &mut space[start..start + (1 << 20)];
        assert_eq!(direct.read_at(aligned, 1 << 20).unwrap(), 1 << 20);
        assert!(*aligned == data[(1 << 20) - 777..(2 << 20) - 777]);
        aligned.fill(0xaa);
        assert_eq!(direct.write_at(aligned, 2 << 20).unwrap(), 1 << 20);
        let mut got = vec![0; 1 << 20];
        file.read_exact_at(&mut got, 2 << 20).unwrap();
        assert!(got.iter().all(|&byte| byte == 0xaa));
        // From file to file, without a copy through the program.
        let copy = rw("copy");
        let mut done = 0;
        while done < data.len() {
            let (mut from, mut to) = (777 + done as u64, done as u64);
            let n = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), data.len() - done)
                .unwrap();
            assert!(n > 0);
            done += n;
        }
        let mut copied = vec![0; data.len()];
        file.read_exact_at(&mut copied, 777).unwrap();
        assert!(fs::read("copy").unwrap() == copied);
        file.sync_all().unwrap();
        file.sync_data().unwrap();
    }

    listing in "64M" {
        fs::create_dir("d").unwrap();
        let count = 3000;
        for i in 0..count {
            fs::write(format!("d/{i:05}-{}", "n".repeat(i % 200)), "").unwrap();
        }
        let list = || {
            let mut names: Vec<_> =
                fs::read_dir("d").unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let all = list();
        assert_eq!(all.len(), count);
        assert_eq!(list(), all);
        // Entries that come and go show at once, also in listings that are kept.
        fs::write("d/new", "").unwrap();
        assert_eq!(list().len(), count + 1);
        fs::remove_file("d/new").unwrap();
        assert_eq!(list(), all);
        fs::rename(Path::new("d").join(&all[0]), "d/renamed").unwrap();
        assert!(list().iter().any(|name| name == "renamed"));
        fs::rename("d/renamed", Path::new("d").join(&all[0])).unwrap();
        // Removing while listing misses nothing.
        let mut removed = 0;
        for entry in fs::read_dir("d").unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
            removed += 1;
        }
        assert_eq!(removed, count);
        fs::remove_dir("d").unwrap();
        // Types are told with the entries, and so are the dots.
        fs::create_dir("e").unwrap();
        fs::create_dir("e/dir").unwrap();
        std::os::unix::fs::symlink("x", "e/link").unwrap();
        let dir = rustix::fs::open("e", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut found: Vec<_> = rustix::fs::Dir::read_from(&dir)
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.file_name().to_owned(), entry.file_type(), entry.ino())
            })
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let names: Vec<_> = found.iter().map(|(name, kind, _)| (name.as_c_str(), *kind)).collect();
        let (d, l) = (rustix::fs::FileType::Directory, rustix::fs::FileType::Symlink);
        assert_eq!(names, [(c".", d), (c"..", d), (c"dir", d), (c"link", l)]);
        assert_eq!(found[0].2, fs::metadata("e").unwrap().ino());
        assert_eq!(found[1].2, fs::metadata(".").unwrap().ino());
        assert_eq!(fs::metadata("e").unwrap().nlink(), 3);
    }

    names_and_links in "16M" {
        let longest = "n".repeat(255);
        fs::write(&longest, "x").unwrap();
        assert_eq!(fs::read(&longest).unwrap(), b"x");
        refused(fs::write("n".repeat(256), ""), Errno::NAMETOOLONG);
        refused(fs::write("missing/x", ""), Errno::NOENT);
        refused(fs::write(format!("{longest}/x"), ""), Errno::NOTDIR);
        refused(fs::remove_dir(&longest), Errno::NOTDIR);
        refused(fs::create_dir(&longest), Errno::EXIST);
        refused(File::create_new(&longest).map(drop), Errno::EXIST);
        fs::create_dir("dir").unwrap();
        refused(fs::remove_file("dir"), Errno::ISDIR);
        refused(fs::hard_link("dir", "dir2"), Errno::PERM);
        refused(OpenOptions::new().write(true).open("dir").map(drop), Errno::ISDIR);
        fs::write("dir/x", "").unwrap();
        refused(fs::remove_dir("dir"), Errno::NOTEMPTY);
        // Missing names are remembered, until they appear.
        for _ in 0..2 {
            assert!(!Path::new("later").exists());
        }
        fs::hard_link(&longest, "later").unwrap();
        assert_eq!(fs::metadata("later").unwrap().nlink(), 2);
        let target = "t".repeat(4095);
        std::os::unix::fs::symlink(&target, "link").unwrap();
        assert_eq!(fs::read_link("link").unwrap().as_os_str().len(), 4095);
        assert_eq!(fs::symlink_metadata("link").unwrap().len(), 4095);
        std::os::unix::fs::symlink("loop", "loop").unwrap();
        refused(File::open("loop").map(drop), Errno::LOOP);
        let bytes = CString::new(vec![0xff, 0xfe, b'a']).unwrap();
        rustix::fs::mkdirat(CWD, &bytes, Mode::RWXU).unwrap();
        rustix::fs::unlinkat(CWD, &bytes, AtFlags::REMOVEDIR).unwrap();
        // A file without a name, which gets one.
        let unnamed = rustix::fs::open(".", OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).unwrap();
        rustix::io::write(&unnamed, b"found").unwrap();
        let place = format!("/proc/self/fd/{}", unnamed.as_raw_fd());
        rustix::fs::linkat(CWD, place, CWD, "named", AtFlags::SYMLINK_FOLLOW).unwrap();
        assert_eq!(fs::read("named").unwrap(), b"found");
    }

    times_and_modes in "16M" {
        fs::write("f", "x").unwrap();
        let set = |sec, nsec| {
            let time = Timespec { tv_sec: sec, tv_nsec: nsec };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(CWD, "f", &times, AtFlags::empty()).unwrap();
            let meta = fs::metadata("f").unwrap();
            assert_eq!((meta.mtime(), meta.mtime_nsec()), (sec, nsec));
            assert_eq!((meta.atime(), meta.atime_nsec()), (sec, nsec));
        };
        for (sec, nsec) in [(0, 1), (1 << 33, 999_999_999), (-1, 0), (-5, 250_000_000), (-1, 999_999_999)] {
            set(sec, nsec);
        }
        let before = fs::metadata("f").unwrap();
        rw("f").write_all(b"y").unwrap();
        let after = fs::metadata("f").unwrap();
        assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()));
        assert!(after.ctime() > 0);
        let root = fs::metadata(".").unwrap();
        fs::write("g", "").unwrap();
        let changed = fs::metadata(".").unwrap();
        assert!((changed.mtime(), changed.mtime_nsec()) > (root.mtime(), root.mtime_nsec()));
        for mode in [0o000, 0o644, 0o4755, 0o2770, 0o1777] {
            fs::set_permissions("f", fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(fs::metadata("f").unwrap().mode() & 0o7777, mode);
        }
        let _umask = rustix::process::umask(Mode::from_raw_mode(0o027));
        fs::create_dir("masked").unwrap();
        fs::write("masked/f", "").unwrap();
        assert_eq!(fs::metadata("masked").unwrap().mode() & 0o7777, 0o750);
        assert_eq!(fs::metadata("masked/f").unwrap().mode() & 0o7777, 0o640);
    }

    special_files in "16M" {
        rustix::fs::mknodat(CWD, "fifo", rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(fs::symlink_metadata("fifo").unwrap().file_type().is_fifo());
        let writer = std::thread::spawn(|| fs::write("fifo", "through").unwrap());
        assert_eq!(fs::read("fifo").unwrap(), b"through");
        writer.join().unwrap();
        let listener = std::os::unix::net::UnixListener::bind("socket").unwrap();
        let client = std::thread::spawn(|| {
            let mut stream = std::os::unix::net::UnixStream::connect("socket").unwrap();
            stream.write_all(b"hi").unwrap();
        });
        let (mut stream, _) = listener.accept().unwrap();
        let mut got = String::new();
        stream.read_to_string(&mut got).unwrap();
        assert_eq!(got, "hi");
        client.join().unwrap();
        assert!(fs::symlink_metadata("socket").unwrap().file_type().is_socket());
    }

    running_programs in "64M" {
        fs::copy("/bin/true", "program").unwrap();
        for _ in 0..2 {
            assert!(std::process::Command::new("./program").status().unwrap().success());
        }
        fs::write("script", "#!/bin/sh\nexit 5\n").unwrap();
        refused(std::process::Command::new("./script").status().map(drop), Errno::ACCESS);
        fs::set_permissions("script", fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(std::process::Command::new("./script").status().unwrap().code(), Some(5));
        fs::copy("/bin/sleep", "busy").unwrap();
        let mut child = std::process::Command::new("./busy").arg("100").spawn().unwrap();
        refused(OpenOptions::new().write(true).open("busy").map(drop), Errno::TXTBSY);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    locking in "16M" {
        let (a, b) = (rw("f"), rw("f"));
        a.lock().unwrap();
        assert!(b.try_lock().is_err());
        a.unlock().unwrap();
        b.try_lock().unwrap();
        b.unlock().unwrap();
        // Record locks belong to processes.
        let lock = |fd: &File| {
            rustix::fs::fcntl_lock(fd.as_fd(), rustix::fs::FlockOperation::NonBlockingLockExclusive)
        };
        lock(&a).unwrap();
        need("python3", "python3");
        let program = "import fcntl; fcntl.lockf(open('f', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)";
        let other = || std::process::Command::new("python3").args(["-c", program]).output().unwrap();
        assert!(!other().status.success());
        rustix::fs::fcntl_lock(a.as_fd(), rustix::fs::FlockOperation::Unlock).unwrap();
        assert!(other().status.success());
    }

    full_volumes in "8M" {
        let free = || rustix::fs::statvfs(".").unwrap().f_bavail;
        let before = free();
        for round in 0..2 {
            fs::create_dir("fill").unwrap();
            let piece = pattern(100_000, round);
            let mut whole = 0;
            let error = loop {
                match fs::write(format!("fill/{whole}"), &piece) {
                    Ok(()) => whole += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
            assert!(whole > 50, "only {whole} files fit");
            for i in 0..whole {
                assert!(fs::read(format!("fill/{i}")).unwrap() == piece);
            }
            fs::remove_dir_all("fill").unwrap();
            assert!(free().abs_diff(before) <= 2, "{before} blocks were free, now {}", free());
        }
    }

    identities in "16M" {
        // The superuser's test: who may do what is the kernel's to say, by owner and mode.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        need("setpriv", "util-linux");
        fs::create_dir("open").unwrap();
        fs::set_permissions("open", fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write("open/secret", "s").unwrap();
        fs::set_permissions("open/secret", fs::Permissions::from_mode(0o600)).unwrap();
        let nobody = |script: &str| {
            let ids = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-ec", script];
            std::process::Command::new("setpriv").args(ids).status().unwrap().success()
        };
        assert!(!nobody("cat open/secret 2>/dev/null"));
        assert!(!nobody("rm -f open/secret 2>/dev/null"));
        assert!(!nobody("touch new 2>/dev/null"));
        assert!(nobody("echo x > open/mine; test $(stat -c %u:%g open/mine) = 65534:65534"));
        std::os::unix::fs::chown("open/secret", Some(65534), Some(65534)).unwrap();
        assert!(nobody("cat open/secret > /dev/null"));
        // Content or owner changed: the set-user-ID bit is gone, and the kernel knows.
        let bits = "chmod 6755 open/mine; test $(stat -c %a open/mine) = 6755; ";
        for change in ["echo y >> open/mine", ": > open/mine", "truncate -s 1 open/mine"] {
            assert!(nobody(&format!("{bits}{change}; test $(stat -c %a open/mine) = 755")), "{change}");
        }
        fs::set_permissions("open/mine", fs::Permissions::from_mode(0o6755)).unwrap();
        std::os::unix::fs::chown("open/mine", Some(0), Some(0)).unwrap();
        assert_eq!(fs::metadata("open/mine").unwrap().mode() & 0o7777, 0o755);
        // A directory with the set-group-ID bit hands its group on.
        fs::create_dir("group").unwrap();
        std::os::unix::fs::chown("group", Some(0), Some(1234)).unwrap();
        fs::set_permissions("group", fs::Permissions::from_mode(0o2777)).unwrap();
        fs::write("group/f", "").unwrap();
        fs::create_dir("group/d").unwrap();
        assert_eq!(fs::metadata("group/f").unwrap().gid(), 1234);
        let made = fs::metadata("group/d").unwrap();
        assert_eq!((made.gid(), made.mode() & 0o2000), (1234, 0o2000));
    }
}
