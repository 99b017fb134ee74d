//! Attributes: modes, owners, link counts, times.

use atoll_vfs::*;

use super::refused;
use crate::subject::{File, RW, Subject, name};

const ROOT: Ino = Ino::ROOT;

/// A new file has the caller's owner, the mode that was asked for, and one time.
pub fn new_files_belong_to_the_caller(s: &mut Subject) {
    let cx = s.cx();
    for mode in [0o644, 0o000, 0o777, 0o4755, 0o1777] {
        let at = format!("f{mode:o}");
        let bits = FileType::Regular.mode_bits() | mode;
        let attr = s.fs.mknod(&cx, ROOT, name(&at), bits, 0).unwrap();
        assert_eq!(attr.mode, bits);
        assert_eq!((attr.nlink, attr.size), (1, 0));
        if s.quirks.ownership {
            assert_eq!((attr.uid, attr.gid), (cx.uid, cx.gid));
        }
        if s.quirks.caller_time {
            assert_eq!([attr.atime, attr.mtime, attr.ctime, attr.btime], [cx.now; 4]);
        }
    }
    let dir = s.fs.mkdir(&cx, ROOT, name("dir"), 0o750).unwrap();
    assert_eq!(dir.mode, FileType::Directory.mode_bits() | 0o750);
    assert_eq!(dir.nlink, 2);
    let (file, handle) = s.fs.create(&cx, ROOT, name("created"), 0o640, RW).unwrap();
    assert_eq!(file.mode, FileType::Regular.mode_bits() | 0o640);
    s.close(File { ino: file.ino, handle });
}

/// setattr changes the attributes that it names, returns the attributes as getattr then does, and
/// leaves the rest.
pub fn setattr_changes_what_it_names(s: &mut Subject) {
    let file = s.file_with(ROOT, "file", b"12345");
    let before = s.attr(file);
    let cx = s.cx();
    let mode = SetAttr { mode: Some(0o4711), ..SetAttr::default() };
    let after = s.fs.setattr(&cx, file, None, &mode).unwrap();
    assert_eq!(after, s.attr(file));
    assert_eq!(after.mode, FileType::Regular.mode_bits() | 0o4711);
    let same = Attr { mode: before.mode, ctime: before.ctime, ..after };
    assert_eq!(same, before, "setattr of the mode changed something else");

    if s.quirks.ownership {
        let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
        let after = s.fs.setattr(&cx, file, None, &owner).unwrap();
        assert_eq!((after.uid, after.gid), (7, before.gid));
        let group = SetAttr { gid: Some(8), ..SetAttr::default() };
        let after = s.fs.setattr(&cx, file, None, &group).unwrap();
        assert_eq!((after.uid, after.gid), (7, 8));
        let most = SetAttr { uid: Some(u32::MAX - 1), gid: Some(0x1_0000), ..SetAttr::default() };
        let after = s.fs.setattr(&cx, file, None, &most).unwrap();
        assert_eq!((after.uid, after.gid), (u32::MAX - 1, 0x1_0000));
    }

    let nothing = s.attr(file);
    assert_eq!(s.fs.setattr(&cx, file, None, &SetAttr::default()).unwrap(), nothing);
}

/// The type cannot be changed through the mode.
pub fn setattr_keeps_the_type(s: &mut Subject) {
    let file = s.file(ROOT, "file");
    let dir = s.dir(ROOT, "dir");
    let cx = s.cx();
    for (ino, file_type) in [(file, FileType::Regular), (dir, FileType::Directory)] {
        let set = SetAttr { mode: Some(0o1705), ..SetAttr::default() };
        let attr = s.fs.setattr(&cx, ino, None, &set).unwrap();
        assert_eq!(attr.mode, file_type.mode_bits() | 0o1705);
    }
}

/// Times are set to any nanosecond, before 1970 and after 2038 too.
pub fn setattr_sets_times(s: &mut Subject) {
    let file = s.file(ROOT, "file");
    let times = [(0, 0), (1, 999_999_999), (-1, 1), (4_294_967_295, 5), (-2_000_000_000, 500)];
    for (sec, nsec) in times {
        let (atime, mtime) = (Timespec { sec, nsec }, Timespec { sec: sec + 1, nsec });
        let cx = s.cx();
        let set = SetAttr {
            atime: Some(SetTime::To(atime)),
            mtime: Some(SetTime::To(mtime)),
            ..SetAttr::default()
        };
        let attr = s.fs.setattr(&cx, file, None, &set).unwrap();
        assert_eq!((attr.atime, attr.mtime), (atime, mtime));
        if s.quirks.caller_time {
            assert_eq!(attr.ctime, cx.now);
        }
    }
    let cx = s.cx();
    let before = s.attr(file);
    let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let attr = s.fs.setattr(&cx, file, None, &set).unwrap();
    assert_eq!(attr.atime, before.atime);
    assert_ne!(attr.mtime, before.mtime);
    if s.quirks.caller_time {
        assert_eq!(attr.mtime, cx.now);
    }
}

/// Directories and links have settable owners and times too.
pub fn setattr_of_other_types(s: &mut Subject) {
    let others = [s.dir(ROOT, "dir"), s.symlink(ROOT, "link", "x"), s.fifo(ROOT, "fifo")];
    for ino in others {
        let cx = s.cx();
        let mtime = Timespec { sec: 5, nsec: 6 };
        let (uid, gid) = if s.quirks.ownership { (Some(3), Some(4)) } else { (None, None) };
        let set = SetAttr { uid, gid, mtime: Some(SetTime::To(mtime)), ..SetAttr::default() };
        let attr = s.fs.setattr(&cx, ino, None, &set).unwrap();
        assert_eq!(attr.mtime, mtime);
        if s.quirks.ownership {
            assert_eq!((attr.uid, attr.gid), (3, 4));
        }
    }
}

/// Only regular files have a size to set, within bounds and through a handle that may write.
pub fn setattr_size_errors(s: &mut Subject) {
    let file = s.file_with(ROOT, "file", b"content");
    let dir = s.dir(ROOT, "dir");
    let link = s.symlink(ROOT, "link", "file");
    let fifo = s.fifo(ROOT, "fifo");
    let read_only = s.open(file, OpenFlags::READ);
    let other = s.create(ROOT, "other");
    s.unchanged(|s| {
        let cx = s.cx();
        let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        refused!(s.fs.setattr(&cx, dir, None, &size(0)), EISDIR);
        refused!(s.fs.setattr(&cx, link, None, &size(0)), EINVAL);
        refused!(s.fs.setattr(&cx, fifo, None, &size(0)), EINVAL);
        refused!(s.fs.setattr(&cx, file, None, &size(1 << 63)), EFBIG | EINVAL);
        refused!(s.fs.setattr(&cx, file, None, &size(u64::MAX)), EFBIG | EINVAL);
        refused!(s.fs.setattr(&cx, file, Some(read_only.handle), &size(0)), EBADF | EINVAL);
        refused!(s.fs.setattr(&cx, file, Some(other.handle), &size(0)), EBADF);
        // All or nothing: the mode does not change either.
        let both = SetAttr { mode: Some(0o7), ..size(1 << 63) };
        refused!(s.fs.setattr(&cx, file, None, &both), EFBIG | EINVAL);
    });
    let cx = s.cx();
    let set = SetAttr { size: Some(3), mode: Some(0o600), ..SetAttr::default() };
    let attr = s.fs.setattr(&cx, other.ino, Some(other.handle), &set).unwrap();
    assert_eq!((attr.size, attr.mode & 0o7777), (3, 0o600));
}

/// In a directory with the set-group-ID bit everything gets its group, and directories the bit.
pub fn setgid_directories(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let group = if s.quirks.ownership { 77 } else { s.attr(dir).gid };
    let gid = s.quirks.ownership.then_some(group);
    let cx = s.cx();
    let set = SetAttr { mode: Some(0o2775), gid, ..SetAttr::default() };
    s.fs.setattr(&cx, dir, None, &set).unwrap();
    let file = s.file(dir, "file");
    let inner = s.dir(dir, "inner");
    let deeper = s.dir(inner, "deeper");
    let link = s.symlink(dir, "link", "x");
    for ino in [file, inner, deeper, link] {
        assert_eq!(s.attr(ino).gid, group);
    }
    assert_eq!(s.attr(inner).mode & 0o7777, 0o2755);
    assert_eq!(s.attr(deeper).mode & 0o7777, 0o2755);
    assert_eq!(s.attr(file).mode & 0o7777, 0o644);
    let cx = s.cx();
    let (attr, handle) = s.fs.tmpfile(&cx, dir, 0o600, RW).unwrap();
    assert_eq!(attr.gid, group);
    s.close(File { ino: attr.ino, handle });
    // A file's bit means something else and is not inherited by its siblings.
    let outside = s.dir(ROOT, "outside");
    assert_eq!(s.attr(outside).mode & 0o7777, 0o755);
}

/// A directory's link count is 2 and its subdirectories.
pub fn directory_link_counts(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    assert_eq!(s.attr(dir).nlink, 2);
    for i in 0..5 {
        s.dir(dir, &format!("d{i}"));
        s.file(dir, &format!("f{i}"));
    }
    assert_eq!(s.attr(dir).nlink, 7);
    for i in 0..5 {
        s.rmdir(dir, &format!("d{i}"));
    }
    assert_eq!(s.attr(dir).nlink, 2);
    assert_eq!(s.attr(ROOT).nlink, 3);
}

/// The effect of a call on the timestamps of an inode.
#[derive(Debug, PartialEq)]
struct Stamped {
    atime: bool,
    mtime: bool,
    ctime: bool,
}

const NOTHING: Stamped = Stamped { atime: false, mtime: false, ctime: false };
const CONTENT: Stamped = Stamped { atime: false, mtime: true, ctime: true };
const CHANGE: Stamped = Stamped { atime: false, mtime: false, ctime: true };

/// Makes a call and checks its effect on the times of `inodes`, which must all still live.
fn stamps<T>(
    s: &mut Subject,
    what: &str,
    call: impl FnOnce(&mut dyn FileSystem, &Context) -> T,
    inodes: &[(Ino, Stamped)],
) {
    if !s.quirks.caller_time {
        // More than a tick of the coarse clock that some host file systems stamp with.
        std::thread::sleep(std::time::Duration::from_millis(11));
    }
    let before: Vec<Attr> = inodes.iter().map(|(ino, _)| s.attr(*ino)).collect();
    let cx = s.cx();
    let _ = call(&mut *s.fs, &cx);
    for ((ino, wanted), before) in inodes.iter().zip(before) {
        let after = s.attr(*ino);
        let stamped = Stamped {
            atime: after.atime != before.atime,
            mtime: after.mtime != before.mtime,
            ctime: after.ctime != before.ctime,
        };
        assert_eq!(stamped, *wanted, "{what} of inode {ino}");
        assert_eq!(after.btime, before.btime, "{what} changed the creation time");
        if s.quirks.caller_time {
            assert!(!stamped.mtime || after.mtime == cx.now, "{what}: mtime is not the caller's");
            assert!(!stamped.ctime || after.ctime == cx.now, "{what}: ctime is not the caller's");
        }
    }
}

/// Calls that change names stamp the directories and the inodes that the names stood for.
pub fn names_stamp_times(s: &mut Subject) {
    let (a, b) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"));
    let file = s.file(a, "file");
    stamps(
        s,
        "mknod",
        |fs, cx| fs.mknod(cx, a, name("n"), 0o100644, 0).unwrap(),
        &[(a, CONTENT), (ROOT, NOTHING)],
    );
    stamps(s, "mkdir", |fs, cx| fs.mkdir(cx, a, name("d"), 0o755).unwrap(), &[(a, CONTENT)]);
    stamps(s, "symlink", |fs, cx| fs.symlink(cx, a, name("s"), b"t").unwrap(), &[(a, CONTENT)]);
    stamps(
        s,
        "link",
        |fs, cx| fs.link(cx, file, b, name("l")).unwrap(),
        &[(b, CONTENT), (file, CHANGE), (a, NOTHING)],
    );
    stamps(
        s,
        "unlink",
        |fs, cx| fs.unlink(cx, b, name("l")).unwrap(),
        &[(b, CONTENT), (file, CHANGE)],
    );
    stamps(s, "rmdir", |fs, cx| fs.rmdir(cx, a, name("d")).unwrap(), &[(a, CONTENT)]);
    let none = RenameFlags::empty();
    stamps(
        s,
        "rename",
        |fs, cx| fs.rename(cx, a, name("file"), b, name("moved"), none).unwrap(),
        &[(a, CONTENT), (b, CONTENT), (file, CHANGE)],
    );
    let other = s.file(a, "other");
    s.link(other, ROOT, "keep");
    stamps(
        s,
        "rename over",
        |fs, cx| fs.rename(cx, b, name("moved"), a, name("other"), none).unwrap(),
        &[(a, CONTENT), (b, CONTENT), (file, CHANGE), (other, CHANGE)],
    );
    let swap = RenameFlags::EXCHANGE;
    stamps(
        s,
        "exchange",
        |fs, cx| fs.rename(cx, a, name("other"), ROOT, name("keep"), swap).unwrap(),
        &[(a, CONTENT), (ROOT, CONTENT), (file, CHANGE), (other, CHANGE)],
    );
    stamps(s, "lookup", |fs, cx| fs.lookup(cx, a, name("n")).unwrap(), &[(a, NOTHING)]);
    stamps(s, "lookup of nothing", |fs, cx| fs.lookup(cx, a, name("none")), &[(a, NOTHING)]);
}

/// Calls on content and attributes stamp the file and nothing else.
pub fn content_stamps_times(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let f = s.create(dir, "file");
    s.write(f, 0, &[1; 100]);
    let (i, h) = (f.ino, f.handle);
    stamps(
        s,
        "write",
        |fs, cx| fs.write(cx, i, h, 0, b"x").unwrap(),
        &[(i, CONTENT), (dir, NOTHING)],
    );
    stamps(s, "extending write", |fs, cx| fs.write(cx, i, h, 5000, b"x").unwrap(), &[(i, CONTENT)]);
    stamps(s, "empty write", |fs, cx| fs.write(cx, i, h, 0, b"").unwrap(), &[(i, NOTHING)]);
    if s.quirks.caller_time {
        // The host directory's reads may stamp atime, as its mount says.
        stamps(s, "read", |fs, cx| fs.read(cx, i, h, 0, &mut [0; 10]).unwrap(), &[(i, NOTHING)]);
    }
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    stamps(
        s,
        "truncate",
        |fs, cx| fs.setattr(cx, i, None, &size(10)).unwrap(),
        &[(i, CONTENT), (dir, NOTHING)],
    );
    stamps(s, "extension", |fs, cx| fs.setattr(cx, i, None, &size(9999)).unwrap(), &[(i, CONTENT)]);
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    stamps(
        s,
        "chmod",
        |fs, cx| fs.setattr(cx, i, None, &mode).unwrap(),
        &[(i, CHANGE), (dir, NOTHING)],
    );
    let flags = XattrFlags::empty();
    stamps(
        s,
        "setxattr",
        |fs, cx| fs.setxattr(cx, i, b"user.x", b"y", flags).unwrap(),
        &[(i, CHANGE), (dir, NOTHING)],
    );
    stamps(s, "removexattr", |fs, cx| fs.removexattr(cx, i, b"user.x").unwrap(), &[(i, CHANGE)]);
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    stamps(s, "punch", |fs, cx| fs.fallocate(cx, i, h, 0, 4096, punch).unwrap(), &[(i, CONTENT)]);
    stamps(
        s,
        "growing fallocate",
        |fs, cx| fs.fallocate(cx, i, h, 0, 20000, FallocateMode::empty()).unwrap(),
        &[(i, CONTENT)],
    );
    stamps(
        s,
        "open for truncation",
        |fs, cx| {
            let h = fs.open(cx, i, RW | OpenFlags::TRUNC).unwrap();
            fs.release(cx, i, h).unwrap();
        },
        &[(i, CONTENT), (dir, NOTHING)],
    );
    stamps(
        s,
        "open",
        |fs, cx| {
            let h = fs.open(cx, i, RW).unwrap();
            fs.release(cx, i, h).unwrap();
        },
        &[(i, NOTHING)],
    );
    stamps(s, "fsync", |fs, cx| fs.fsync(cx, i, h, false).unwrap(), &[(i, NOTHING)]);
}

/// The block count covers stored data: nothing for holes, everything for data.
pub fn blocks_count_storage(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    assert_eq!(s.attr(f.ino).blocks, 0);
    s.write(f, 0, &crate::subject::pattern(1, 1 << 20));
    let cx = s.cx();
    s.fs.fsync(&cx, f.ino, f.handle, false).unwrap();
    let full = s.attr(f.ino).blocks;
    assert!((2048..2048 + 512).contains(&full), "1 MiB takes {full} sectors");
    s.truncate(f.ino, 0);
    assert_eq!(s.attr(f.ino).blocks, 0);
    s.truncate(f.ino, 1 << 40);
    assert_eq!(s.attr(f.ino).blocks, 0);
    s.close(f);
}

/// statfs describes the volume, and a deleted file's space is free again.
pub fn statfs_counts_space(s: &mut Subject) {
    let cx = s.cx();
    let before = s.fs.statfs(&cx).unwrap();
    assert_eq!(before.name_max, 255);
    assert!(before.block_size.is_power_of_two() && before.block_size >= 512);
    assert!(before.blocks > 0 && before.blocks_free <= before.blocks);
    assert!(before.blocks_available <= before.blocks_free);
    assert!(before.files_free <= before.files);
    if !s.quirks.caller_time {
        return; // Others use the host's space too.
    }
    let f = s.create(ROOT, "file");
    s.write(f, 0, &crate::subject::pattern(1, 1 << 20));
    s.fs.syncfs(&cx).unwrap();
    let used = s.fs.statfs(&cx).unwrap();
    let taken = (before.blocks_free - used.blocks_free) * u64::from(used.block_size);
    assert!(taken >= 1 << 20, "1 MiB took {taken} bytes");
    assert_eq!((used.blocks, used.block_size), (before.blocks, before.block_size));
    s.close(f);
    s.unlink(ROOT, "file");
    s.fs.syncfs(&cx).unwrap();
    let after = s.fs.statfs(&cx).unwrap();
    assert!(after.blocks_free >= before.blocks_free.saturating_sub(16), "{before:?} {after:?}");
}
