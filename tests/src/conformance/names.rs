//! Making, finding and removing names.

use atoll_vfs::*;

use super::refused;
use crate::subject::{RW, Subject, name};

const ROOT: Ino = Ino::ROOT;

/// The root is a directory that is its own parent.
pub fn root_is_its_own_parent(s: &mut Subject) {
    let root = s.attr(ROOT);
    assert_eq!(root.ino, ROOT);
    assert_eq!(root.file_type(), FileType::Directory);
    assert_eq!(root.mode & 0o777, 0o755);
    assert_eq!(root.nlink, 2);
    assert_eq!(s.lookup(ROOT, ".").unwrap().ino, ROOT);
    assert_eq!(s.lookup(ROOT, "..").unwrap().ino, ROOT);
    assert_eq!(s.names(ROOT), []);
}

/// Later calls find the inode that a creating call returned.
pub fn lookup_finds_what_was_made(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let file = s.file(dir, "file");
    let link = s.symlink(dir, "link", "target");
    let fifo = s.fifo(dir, "fifo");
    for (at, ino, file_type) in [
        ("file", file, FileType::Regular),
        ("link", link, FileType::Symlink),
        ("fifo", fifo, FileType::Fifo),
    ] {
        let attr = s.lookup(dir, at).unwrap();
        assert_eq!((attr.ino, attr.file_type()), (ino, file_type));
        assert_eq!(s.attr(ino), attr);
    }
    assert_eq!(s.lookup(dir, ".").unwrap().ino, dir);
    assert_eq!(s.lookup(dir, "..").unwrap().ino, ROOT);
}

/// Inode numbers are never 0 and never shared.
pub fn inode_numbers_differ(s: &mut Subject) {
    let mut seen = std::collections::BTreeSet::from([ROOT]);
    for i in 0..50 {
        let ino = s.file(ROOT, &format!("f{i}"));
        assert_ne!(ino.0, 0);
        assert!(seen.insert(ino), "inode {ino} was given twice");
    }
}

/// A number is stale for ever once its file is gone, whatever is made afterwards.
pub fn inode_numbers_are_never_used_again(s: &mut Subject) {
    let mut gone = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let file = s.file(ROOT, "x");
        assert!(gone.insert(file), "inode {file} was used again");
        s.unlink(ROOT, "x");
        let dir = s.dir(ROOT, "x");
        assert!(gone.insert(dir), "inode {dir} was used again");
        s.rmdir(ROOT, "x");
    }
    let cx = s.cx();
    for ino in gone {
        refused!(s.fs.getattr(&cx, ino), ESTALE);
    }
}

/// `ENOENT` and `ENOTDIR` from lookup.
pub fn lookup_errors(s: &mut Subject) {
    let file = s.file(ROOT, "file");
    let link = s.symlink(ROOT, "link", ".");
    s.unchanged(|s| {
        refused!(s.lookup(ROOT, "missing"), ENOENT);
        refused!(s.lookup(ROOT, "fil"), ENOENT);
        refused!(s.lookup(ROOT, "file2"), ENOENT);
        refused!(s.lookup(ROOT, "FILE"), ENOENT);
        refused!(s.lookup(file, "x"), ENOTDIR);
        if !s.quirks.finds_itself {
            refused!(s.lookup(file, "."), ENOTDIR);
        }
        refused!(s.lookup(file, ".."), ENOTDIR);
        refused!(s.lookup(link, "file"), ENOTDIR);
    });
}

/// Every call on an inode that is gone says `ESTALE`.
pub fn stale_inodes(s: &mut Subject) {
    let file = s.file(ROOT, "file");
    let dir = s.dir(ROOT, "dir");
    s.unlink(ROOT, "file");
    s.rmdir(ROOT, "dir");
    s.unchanged(|s| {
        let cx = s.cx();
        for ino in [file, dir, Ino(u64::MAX), Ino(0), Ino(1 << 40)] {
            refused!(s.fs.getattr(&cx, ino), ESTALE);
            refused!(
                s.fs.setattr(&cx, ino, None, &SetAttr { mode: Some(0), ..SetAttr::default() }),
                ESTALE
            );
            refused!(s.fs.lookup(&cx, ino, name("x")), ESTALE);
            refused!(s.fs.lookup(&cx, ino, name(".")), ESTALE);
            refused!(s.fs.open(&cx, ino, OpenFlags::READ), ESTALE);
            refused!(s.fs.opendir(&cx, ino), ESTALE);
            refused!(s.fs.readlink(&cx, ino, &mut Vec::new()), ESTALE);
            refused!(s.fs.mkdir(&cx, ino, name("x"), 0o755), ESTALE);
            refused!(s.fs.mknod(&cx, ino, name("x"), 0o100644, 0), ESTALE);
            refused!(s.fs.symlink(&cx, ino, name("x"), b"t"), ESTALE);
            refused!(s.fs.create(&cx, ino, name("x"), 0o644, RW), ESTALE);
            refused!(s.fs.tmpfile(&cx, ino, 0o644, RW), ESTALE);
            refused!(s.fs.unlink(&cx, ino, name("x")), ESTALE);
            refused!(s.fs.rmdir(&cx, ino, name("x")), ESTALE);
            refused!(s.fs.link(&cx, ino, ROOT, name("x")), ESTALE);
            let none = RenameFlags::empty();
            refused!(s.fs.rename(&cx, ino, name("x"), ROOT, name("y"), none), ESTALE | ENOENT);
            refused!(s.fs.listxattr(&cx, ino, &mut Vec::new()), ESTALE);
            refused!(s.fs.getxattr(&cx, ino, b"user.x", &mut Vec::new()), ESTALE);
            refused!(s.fs.removexattr(&cx, ino, b"user.x"), ESTALE);
            refused!(s.fs.setxattr(&cx, ino, b"user.x", b"", XattrFlags::empty()), ESTALE);
        }
    });
}

/// A name exists once: `EEXIST`, whatever it stands for.
pub fn names_are_unique(s: &mut Subject) {
    s.dir(ROOT, "dir");
    let file = s.file(ROOT, "file");
    s.symlink(ROOT, "link", "nowhere");
    s.unchanged(|s| {
        for at in ["dir", "file", "link"] {
            let cx = s.cx();
            refused!(s.fs.mkdir(&cx, ROOT, name(at), 0o755), EEXIST);
            refused!(s.fs.mknod(&cx, ROOT, name(at), 0o100644, 0), EEXIST);
            refused!(s.fs.symlink(&cx, ROOT, name(at), b"t"), EEXIST);
            refused!(s.fs.link(&cx, file, ROOT, name(at)), EEXIST);
            refused!(s.fs.create(&cx, ROOT, name(at), 0o644, RW | OpenFlags::EXCL), EEXIST);
        }
    });
}

/// `.` and `..` can be neither made nor removed.
pub fn dot_names_are_refused(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let file = s.file(ROOT, "file");
    s.unchanged(|s| {
        for at in [".", ".."] {
            let cx = s.cx();
            refused!(s.fs.mkdir(&cx, dir, name(at), 0o755), EINVAL | EEXIST);
            refused!(s.fs.mknod(&cx, dir, name(at), 0o100644, 0), EINVAL | EEXIST);
            refused!(s.fs.symlink(&cx, dir, name(at), b"t"), EINVAL | EEXIST);
            refused!(s.fs.create(&cx, dir, name(at), 0o644, RW), EINVAL | EISDIR | EEXIST);
            refused!(s.fs.link(&cx, file, dir, name(at)), EINVAL | EEXIST);
            refused!(s.fs.unlink(&cx, dir, name(at)), EINVAL | EISDIR);
            refused!(s.fs.rmdir(&cx, dir, name(at)), EINVAL | ENOTEMPTY);
            let none = RenameFlags::empty();
            refused!(s.fs.rename(&cx, dir, name(at), ROOT, name("x"), none), EINVAL | EBUSY);
            refused!(s.fs.rename(&cx, ROOT, name("file"), dir, name(at), none), EINVAL | EBUSY);
        }
    });
}

/// Names are made in directories only: `ENOTDIR`.
pub fn parents_are_directories(s: &mut Subject) {
    let file = s.file(ROOT, "file");
    s.symlink(ROOT, "link", ".");
    let link = s.lookup(ROOT, "link").unwrap().ino;
    s.unchanged(|s| {
        for parent in [file, link] {
            let cx = s.cx();
            refused!(s.fs.mkdir(&cx, parent, name("x"), 0o755), ENOTDIR);
            refused!(s.fs.mknod(&cx, parent, name("x"), 0o100644, 0), ENOTDIR);
            refused!(s.fs.symlink(&cx, parent, name("x"), b"t"), ENOTDIR);
            refused!(s.fs.create(&cx, parent, name("x"), 0o644, RW), ENOTDIR);
            refused!(s.fs.tmpfile(&cx, parent, 0o644, RW), ENOTDIR);
            refused!(s.fs.link(&cx, file, parent, name("x")), ENOTDIR);
            refused!(s.fs.unlink(&cx, parent, name("x")), ENOTDIR);
            refused!(s.fs.rmdir(&cx, parent, name("x")), ENOTDIR);
            let none = RenameFlags::empty();
            refused!(s.fs.rename(&cx, parent, name("x"), ROOT, name("y"), none), ENOTDIR);
            refused!(s.fs.rename(&cx, ROOT, name("file"), parent, name("y"), none), ENOTDIR);
        }
    });
}

/// Nothing can be made in a directory that was removed while open: `ENOENT`.
pub fn removed_directories_take_no_names(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let file = s.file(ROOT, "file");
    let cx = s.cx();
    let handle = s.fs.opendir(&cx, dir).unwrap();
    s.rmdir(ROOT, "dir");
    s.unchanged(|s| {
        let cx = s.cx();
        refused!(s.fs.mkdir(&cx, dir, name("x"), 0o755), ENOENT);
        refused!(s.fs.mknod(&cx, dir, name("x"), 0o100644, 0), ENOENT);
        refused!(s.fs.symlink(&cx, dir, name("x"), b"t"), ENOENT);
        refused!(s.fs.create(&cx, dir, name("x"), 0o644, RW), ENOENT);
        refused!(s.fs.link(&cx, file, dir, name("x")), ENOENT);
        refused!(s.fs.lookup(&cx, dir, name("x")), ENOENT);
        refused!(s.fs.unlink(&cx, dir, name("x")), ENOENT);
        let none = RenameFlags::empty();
        refused!(s.fs.rename(&cx, ROOT, name("file"), dir, name("x"), none), ENOENT);
    });
    assert_eq!(s.attr(dir).nlink, 0);
    let cx = s.cx();
    s.fs.releasedir(&cx, dir, handle).unwrap();
    refused!(s.fs.getattr(&cx, dir), ESTALE);
}

/// unlink removes one name of a file; the file goes with its last.
pub fn unlink_removes_one_name(s: &mut Subject) {
    let file = s.file_with(ROOT, "a", b"content");
    s.link(file, ROOT, "b");
    s.unlink(ROOT, "a");
    refused!(s.lookup(ROOT, "a"), ENOENT);
    assert_eq!(s.attr(file).nlink, 1);
    assert_eq!(s.content(file), b"content");
    s.unlink(ROOT, "b");
    let cx = s.cx();
    refused!(s.fs.getattr(&cx, file), ESTALE);
}

/// `ENOENT` and `EISDIR` from unlink.
pub fn unlink_errors(s: &mut Subject) {
    s.dir(ROOT, "dir");
    s.unchanged(|s| {
        let cx = s.cx();
        refused!(s.fs.unlink(&cx, ROOT, name("missing")), ENOENT);
        refused!(s.fs.unlink(&cx, ROOT, name("dir")), EISDIR);
    });
}

/// unlink of a symbolic link leaves its target alone, and removes special files too.
pub fn unlink_of_links_and_special_files(s: &mut Subject) {
    let file = s.file_with(ROOT, "file", b"x");
    s.symlink(ROOT, "link", "file");
    s.fifo(ROOT, "fifo");
    s.unlink(ROOT, "link");
    s.unlink(ROOT, "fifo");
    assert_eq!(s.names(ROOT), [(b"file".to_vec(), file)]);
    assert_eq!(s.content(file), b"x");
}

/// rmdir removes an empty directory and nothing else.
pub fn rmdir_removes_empty_directories(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    s.file(dir, "file");
    s.file(ROOT, "plain");
    s.symlink(ROOT, "link", "dir");
    s.unchanged(|s| {
        let cx = s.cx();
        refused!(s.fs.rmdir(&cx, ROOT, name("dir")), ENOTEMPTY);
        refused!(s.fs.rmdir(&cx, ROOT, name("missing")), ENOENT);
        refused!(s.fs.rmdir(&cx, ROOT, name("plain")), ENOTDIR);
        refused!(s.fs.rmdir(&cx, ROOT, name("link")), ENOTDIR);
    });
    s.unlink(dir, "file");
    s.rmdir(ROOT, "dir");
    refused!(s.lookup(ROOT, "dir"), ENOENT);
    let cx = s.cx();
    refused!(s.fs.getattr(&cx, dir), ESTALE);
}

/// Hard links are equal names of one file.
pub fn hard_links_are_one_file(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let file = s.file(ROOT, "a");
    s.link(file, dir, "b");
    s.link(file, ROOT, "c");
    assert_eq!(s.attr(file).nlink, 3);
    for (parent, at) in [(ROOT, "a"), (dir, "b"), (ROOT, "c")] {
        assert_eq!(s.lookup(parent, at).unwrap().ino, file);
    }
    let by_one_name = s.lookup(dir, "b").unwrap().ino;
    let open = s.open(by_one_name, RW);
    s.write(open, 0, b"shared");
    s.close(open);
    let by_other_name = s.lookup(ROOT, "c").unwrap().ino;
    assert_eq!(s.content(by_other_name), b"shared");
}

/// Everything but a directory can have hard links.
pub fn hard_links_to_what_is_no_directory(s: &mut Subject) {
    let link = s.symlink(ROOT, "link", "target");
    let fifo = s.fifo(ROOT, "fifo");
    let dir = s.dir(ROOT, "dir");
    s.link(link, ROOT, "link2");
    s.link(fifo, ROOT, "fifo2");
    assert_eq!(s.attr(link).nlink, 2);
    assert_eq!(s.attr(fifo).nlink, 2);
    s.unchanged(|s| {
        let cx = s.cx();
        refused!(s.fs.link(&cx, dir, ROOT, name("dir2")), EPERM);
        refused!(s.fs.link(&cx, dir, dir, name("dir2")), EPERM);
    });
}

/// A file can have LINK_MAX links and not one more: `EMLINK`.
pub fn links_are_limited(s: &mut Subject) {
    let Some(max) = s.quirks.link_max else { return };
    let file = s.file(ROOT, "l1");
    let dir = s.dir(ROOT, "d");
    let cx = s.cx();
    for i in 2..=max {
        s.fs.link(&cx, file, dir, name(&format!("l{i}"))).unwrap();
    }
    assert_eq!(s.attr(file).nlink, max);
    refused!(s.fs.link(&cx, file, ROOT, name("more")), EMLINK);
    refused!(s.lookup(ROOT, "more"), ENOENT);
    assert_eq!(s.attr(file).nlink, max);
    s.unlink(ROOT, "l1");
    s.link(file, ROOT, "more");
}

/// Symbolic links hold up to SYMLINK_MAX bytes, any but none.
pub fn symlink_targets(s: &mut Subject) {
    let longest = "t".repeat(SYMLINK_MAX);
    for (at, target) in [
        ("a", "x"),
        ("b", "/an/absolute/../path"),
        ("c", "\u{1}\u{ff} bytes\n"),
        ("d", &longest[..59]),
        ("e", &longest[..60]),
        ("f", &longest[..1000]),
        ("g", &longest),
    ] {
        let link = s.symlink(ROOT, at, target);
        let cx = s.cx();
        let mut read = b"appended to ".to_vec();
        s.fs.readlink(&cx, link, &mut read).unwrap();
        assert_eq!(read.strip_prefix(b"appended to ").unwrap(), target.as_bytes());
        let attr = s.attr(link);
        assert_eq!(attr.size, target.len() as u64);
        assert_eq!(attr.nlink, 1);
        assert_eq!(attr.mode & 0o777, 0o777);
    }
    s.unchanged(|s| {
        let cx = s.cx();
        refused!(s.fs.symlink(&cx, ROOT, name("x"), b""), ENOENT);
        let long = vec![b't'; SYMLINK_MAX + 1];
        refused!(s.fs.symlink(&cx, ROOT, name("x"), &long), ENAMETOOLONG);
    });
}

/// readlink of anything else is `EINVAL`.
pub fn readlink_errors(s: &mut Subject) {
    let others = [ROOT, s.file(ROOT, "file"), s.fifo(ROOT, "fifo")];
    let cx = s.cx();
    for ino in others {
        let mut target = Vec::new();
        refused!(s.fs.readlink(&cx, ino, &mut target), EINVAL);
        assert_eq!(target, b"");
    }
}

/// mknod makes pipes, sockets and devices, which keep their number.
pub fn mknod_makes_special_files(s: &mut Subject) {
    let cx = s.cx();
    for (at, file_type) in [
        ("fifo", FileType::Fifo),
        ("socket", FileType::Socket),
        ("char", FileType::CharDevice),
        ("block", FileType::BlockDevice),
    ] {
        let device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
        if !s.quirks.devices && device {
            continue;
        }
        let rdev = if device { 0x103 } else { 0 };
        let mode = file_type.mode_bits() | 0o640;
        let made = s.fs.mknod(&cx, ROOT, name(at), mode, rdev).unwrap();
        assert_eq!(made.mode, mode);
        assert_eq!(made.rdev, rdev);
        assert_eq!(made.size, 0);
        assert_eq!(made.nlink, 1);
        assert_eq!(s.attr(made.ino), made);
        refused!(s.fs.open(&cx, made.ino, OpenFlags::READ), ENXIO);
        refused!(s.fs.create(&cx, ROOT, name(at), 0o644, RW), ENXIO);
    }
}

/// mknod makes neither directories nor links nor unknown types: `EINVAL`.
pub fn mknod_errors(s: &mut Subject) {
    s.unchanged(|s| {
        let cx = s.cx();
        for mode in [0o040755, 0o120777, 0o170000, 0o030000, 0o160000] {
            refused!(s.fs.mknod(&cx, ROOT, name("x"), mode, 0), EINVAL);
        }
    });
}

/// Names are bytes: every one but `/` and NUL, up to 255 of them.
pub fn names_are_bytes(s: &mut Subject) {
    let mut all: Vec<Vec<u8>> =
        (1..=255).filter(|&byte| byte != b'/' && byte != b'.').map(|byte| vec![byte]).collect();
    all.extend([b"...".to_vec(), b" ".repeat(255), vec![0xff; 255], b"-rf *".to_vec()]);
    all.push((1..=255).filter(|&byte| byte != b'/').collect());
    let mut wanted = Vec::new();
    let cx = s.cx();
    for bytes in &all {
        let attr = s.fs.mknod(&cx, ROOT, name(bytes), 0o100644, 0).unwrap();
        wanted.push((bytes.clone(), attr.ino));
    }
    for (bytes, ino) in &wanted {
        assert_eq!(s.lookup(ROOT, bytes).unwrap().ino, *ino);
    }
    wanted.sort();
    assert_eq!(s.names(ROOT), wanted);
}

/// Long names that differ in their last byte only are different names.
pub fn long_names_differ(s: &mut Subject) {
    let cx = s.cx();
    let mut files = Vec::new();
    for len in [1, 8, 25, 26, 60, 128, 254, 255] {
        for last in *b"abc" {
            let mut bytes = vec![b'n'; len];
            bytes[len - 1] = last;
            let attr = s.fs.mknod(&cx, ROOT, name(&bytes), 0o100644, 0).unwrap();
            files.push((bytes, attr.ino));
        }
    }
    for (bytes, ino) in &files {
        assert_eq!(s.lookup(ROOT, bytes).unwrap().ino, *ino);
    }
    for (bytes, _) in files.iter().step_by(2) {
        s.fs.unlink(&cx, ROOT, name(bytes)).unwrap();
    }
    for (i, (bytes, ino)) in files.iter().enumerate() {
        let found = s.lookup(ROOT, bytes).map(|attr| attr.ino);
        assert_eq!(found, if i % 2 == 0 { Err(Errno::ENOENT) } else { Ok(*ino) });
    }
}
