//! Handles: their rights, their lives, and files that only they keep.

use atoll_vfs::*;

use super::refused;
use crate::subject::{File, RW, Subject, name, pattern};

const ROOT: Ino = Ino::ROOT;

/// A handle allows the access that it was opened for.
pub fn handles_have_rights(s: &mut Subject) {
    let file = s.file_with(ROOT, "file", b"content");
    let read_only = s.open(file, OpenFlags::READ);
    let write_only = s.open(file, OpenFlags::WRITE);
    assert_eq!(s.read(read_only, 0, 10), b"content");
    s.unchanged(|s| {
        let cx = s.cx();
        refused!(s.fs.write(&cx, file, read_only.handle, 0, b"x"), EBADF);
        refused!(s.fs.read(&cx, file, write_only.handle, 0, &mut [0; 4]), EBADF);
    });
    s.write(write_only, 0, b"C");
    assert_eq!(s.read(read_only, 0, 10), b"Content");
    let cx = s.cx();
    s.fs.fsync(&cx, file, read_only.handle, false).unwrap();
    s.fs.fsync(&cx, file, write_only.handle, true).unwrap();
}

/// TRUNC empties an existing file, by open and by create.
pub fn opening_with_trunc(s: &mut Subject) {
    let file = s.file_with(ROOT, "file", &pattern(1, 10_000));
    let f = s.open(file, RW | OpenFlags::TRUNC);
    assert_eq!(s.attr(file).size, 0);
    s.write(f, 5000, b"x");
    assert_eq!(s.read(f, 0, 5000), [0; 5000]);
    s.close(f);
    let cx = s.cx();
    let (attr, handle) =
        s.fs.create(&cx, ROOT, name("file"), 0o600, RW | OpenFlags::TRUNC).unwrap();
    assert_eq!((attr.ino, attr.size, attr.mode & 0o777), (file, 0, 0o644));
    s.close(File { ino: file, handle });
}

/// create opens an existing file, unless EXCL, and makes a missing one.
pub fn create_opens_or_makes(s: &mut Subject) {
    let cx = s.cx();
    let (made, h1) = s.fs.create(&cx, ROOT, name("a"), 0o600, RW).unwrap();
    let f = File { ino: made.ino, handle: h1 };
    s.write(f, 0, b"content");
    let (found, h2) = s.fs.create(&cx, ROOT, name("a"), 0o777, OpenFlags::READ).unwrap();
    assert_eq!(found.ino, made.ino);
    assert_eq!((found.mode & 0o777, found.size), (0o600, 7));
    assert_ne!(h1, h2);
    let g = File { ino: found.ino, handle: h2 };
    assert_eq!(s.read(g, 0, 10), b"content");
    s.unchanged(|s| {
        let cx = s.cx();
        refused!(s.fs.create(&cx, ROOT, name("a"), 0o600, RW | OpenFlags::EXCL), EEXIST);
        refused!(s.fs.write(&cx, found.ino, h2, 0, b"x"), EBADF);
    });
    // A mode without rights is about the next opener, not this one.
    let (_, handle) = s.fs.create(&cx, ROOT, name("b"), 0o000, RW).unwrap();
    let b = File { ino: s.lookup(ROOT, "b").unwrap().ino, handle };
    s.write(b, 0, b"x");
}

/// An inode that is no regular file cannot be opened as one.
pub fn opening_other_types(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let link = s.symlink(ROOT, "link", "dir");
    let fifo = s.fifo(ROOT, "fifo");
    s.unchanged(|s| {
        let cx = s.cx();
        refused!(s.fs.open(&cx, dir, RW), EISDIR);
        refused!(s.fs.open(&cx, dir, OpenFlags::WRITE), EISDIR);
        refused!(s.fs.open(&cx, dir, OpenFlags::READ | OpenFlags::TRUNC), EISDIR);
        refused!(s.fs.open(&cx, link, OpenFlags::READ), ELOOP);
        refused!(s.fs.open(&cx, fifo, OpenFlags::READ), ENXIO);
        refused!(s.fs.create(&cx, ROOT, name("dir"), 0o644, RW), EISDIR);
        refused!(s.fs.create(&cx, ROOT, name("link"), 0o644, RW), ELOOP);
        refused!(s.fs.create(&cx, ROOT, name("fifo"), 0o644, RW), ENXIO);
    });
}

/// A closed handle, one of another file and one of a directory are none: `EBADF`.
pub fn bad_handles(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    let other = s.create(ROOT, "other");
    s.write(f, 0, b"content");
    s.write(other, 0, b"other");
    let closed = s.open(f.ino, RW);
    s.close(closed);
    let cx = s.cx();
    let dir = s.fs.opendir(&cx, ROOT).unwrap();
    s.unchanged(|s| {
        let cx = s.cx();
        for h in [closed.handle, other.handle, dir, Handle(u64::MAX), Handle(u64::MAX / 2)] {
            refused!(s.fs.read(&cx, f.ino, h, 0, &mut [0; 4]), EBADF);
            refused!(s.fs.write(&cx, f.ino, h, 0, b"x"), EBADF);
            refused!(s.fs.fsync(&cx, f.ino, h, false), EBADF);
            refused!(s.fs.seek(&cx, f.ino, h, 0, SeekTo::Data), EBADF);
            refused!(s.fs.fallocate(&cx, f.ino, h, 0, 1, FallocateMode::empty()), EBADF);
            refused!(s.fs.release(&cx, f.ino, h), EBADF);
        }
        let none = &mut |_: &DirEntry<'_>| true;
        for h in [f.handle, closed.handle, Handle(u64::MAX)] {
            refused!(s.fs.readdir(&cx, ROOT, h, 0, none), EBADF);
            refused!(s.fs.fsyncdir(&cx, ROOT, h), EBADF);
            refused!(s.fs.releasedir(&cx, ROOT, h), EBADF);
        }
        refused!(s.fs.read(&cx, ROOT, dir, 0, &mut [0; 4]), EISDIR | EBADF);
        refused!(s.fs.write(&cx, ROOT, dir, 0, b"x"), EISDIR | EBADF);
    });
    assert_eq!(s.read(f, 0, 10), b"content");
    let cx = s.cx();
    s.fs.releasedir(&cx, ROOT, dir).unwrap();
    refused!(s.fs.releasedir(&cx, ROOT, dir), EBADF);
    s.close(f);
    refused!(s.fs.release(&cx, f.ino, f.handle), EBADF);
}

/// An unlinked file lives on in its handles, and is gone with the last.
pub fn unlinked_files_live_in_their_handles(s: &mut Subject) {
    let f = s.create(ROOT, "file");
    let g = s.open(f.ino, RW);
    s.write(f, 0, b"content");
    s.unlink(ROOT, "file");
    refused!(s.lookup(ROOT, "file"), ENOENT);
    let attr = s.attr(f.ino);
    assert_eq!((attr.nlink, attr.size), (0, 7));
    s.write(g, 7, &pattern(1, 100_000));
    assert_eq!(s.read(f, 0, 8)[..7], *b"content");
    s.truncate(f.ino, 3);
    let cx = s.cx();
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(s.fs.setattr(&cx, f.ino, None, &mode).unwrap().mode & 0o777, 0o600);
    s.fs.setxattr(&cx, f.ino, b"user.a", b"b", XattrFlags::empty()).unwrap();
    s.fs.fsync(&cx, f.ino, f.handle, false).unwrap();
    // Its name is free, and a file made there is another.
    let new = s.file_with(ROOT, "file", b"new");
    assert_ne!(new, f.ino);
    assert_eq!(s.read(g, 0, 10), b"con");
    s.close(f);
    assert_eq!(s.read(g, 0, 10), b"con");
    let again = s.open(g.ino, OpenFlags::READ);
    s.close(g);
    assert_eq!(s.read(again, 0, 10), b"con");
    s.close(again);
    let cx = s.cx();
    refused!(s.fs.getattr(&cx, f.ino), ESTALE);
    refused!(s.fs.open(&cx, f.ino, OpenFlags::READ), ESTALE);
    assert_eq!(s.content(new), b"new");
}

/// A removed directory lives on in its handles, empty.
pub fn removed_directories_live_in_their_handles(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let cx = s.cx();
    let handle = s.fs.opendir(&cx, dir).unwrap();
    s.rmdir(ROOT, "dir");
    assert_eq!(s.attr(dir).nlink, 0);
    let mut names = Vec::new();
    let listed = s.fs.readdir(&cx, dir, handle, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    });
    listed.unwrap();
    names.retain(|name| name != b"." && name != b"..");
    assert!(names.is_empty(), "{names:?}");
    s.fs.fsyncdir(&cx, dir, handle).unwrap();
    s.fs.releasedir(&cx, dir, handle).unwrap();
    refused!(s.fs.getattr(&cx, dir), ESTALE);
}

/// A temporary file has no name until it is linked, and then it is like any other.
pub fn tmpfiles_can_be_linked(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let before = s.snapshot();
    let cx = s.cx();
    let (attr, handle) = s.fs.tmpfile(&cx, dir, 0o640, RW).unwrap();
    assert_eq!((attr.nlink, attr.size, attr.mode), (0, 0, FileType::Regular.mode_bits() | 0o640));
    let f = File { ino: attr.ino, handle };
    s.write(f, 0, b"temporary");
    assert_eq!(s.read(f, 0, 20), b"temporary");
    let differences = s.snapshot().differences(&before, 5);
    assert!(differences.is_empty(), "a file without a name shows: {differences:?}");
    s.link(f.ino, ROOT, "named");
    assert_eq!(s.attr(f.ino).nlink, 1);
    s.close(f);
    assert_eq!(s.content(f.ino), b"temporary");
    assert_eq!(s.lookup(ROOT, "named").unwrap().ino, f.ino);
    s.unlink(ROOT, "named");
    let cx = s.cx();
    refused!(s.fs.getattr(&cx, f.ino), ESTALE);
}

/// A temporary file that is never linked goes with its handle.
pub fn tmpfiles_go_with_their_handles(s: &mut Subject) {
    s.unchanged(|s| {
        let cx = s.cx();
        let (attr, handle) = s.fs.tmpfile(&cx, ROOT, 0o600, RW).unwrap();
        let f = File { ino: attr.ino, handle };
        s.write(f, 0, &pattern(1, 50_000));
        s.close(f);
        refused!(s.fs.getattr(&cx, f.ino), ESTALE);
        refused!(s.fs.link(&cx, f.ino, ROOT, name("late")), ESTALE);
    });
}

/// A file whose last name is gone gets a new one while it is open.
pub fn unlinked_files_can_be_linked_again(s: &mut Subject) {
    if !s.quirks.relink {
        return;
    }
    let f = s.create(ROOT, "file");
    s.write(f, 0, b"content");
    s.unlink(ROOT, "file");
    s.link(f.ino, ROOT, "again");
    assert_eq!(s.attr(f.ino).nlink, 1);
    s.close(f);
    assert_eq!(s.content(f.ino), b"content");
    s.unlink(ROOT, "again");
    let cx = s.cx();
    refused!(s.fs.getattr(&cx, f.ino), ESTALE);
}

/// Many handles at once, of one file and of many, all work.
pub fn many_handles(s: &mut Subject) {
    let mut open = Vec::new();
    for i in 0..500u64 {
        let f = s.create(ROOT, &format!("f{i}"));
        s.write(f, 0, &i.to_le_bytes());
        open.push((f, i));
        open.push((s.open(f.ino, OpenFlags::READ), i));
    }
    for i in (0..500).step_by(2) {
        s.unlink(ROOT, &format!("f{i}"));
    }
    for (f, i) in &open {
        assert_eq!(s.read(*f, 0, 100), i.to_le_bytes());
    }
    open.iter().for_each(|(f, _)| s.close(*f));
    assert_eq!(s.names(ROOT).len(), 250);
}

/// Space of deleted files comes back, whether they were open or not.
pub fn deleted_files_give_their_space_back(s: &mut Subject) {
    if !s.quirks.caller_time {
        return; // Others use the host's space too.
    }
    let cx = s.cx();
    s.file_with(ROOT, "warm", b"up");
    s.unlink(ROOT, "warm");
    s.fs.syncfs(&cx).unwrap();
    let before = s.fs.statfs(&cx).unwrap();
    let mut after = before;
    for round in 0..8 {
        let f = s.create(ROOT, "file");
        s.write(f, 0, &pattern(round, 1 << 20));
        if round % 2 == 0 {
            s.unlink(ROOT, "file");
            s.close(f);
        } else {
            s.close(f);
            s.unlink(ROOT, "file");
        }
        s.fs.syncfs(&cx).unwrap();
        after = s.fs.statfs(&cx).unwrap();
    }
    assert!(
        after.blocks_free + 16 >= before.blocks_free,
        "8 MiB were written and deleted: {} blocks free before, {} after",
        before.blocks_free,
        after.blocks_free
    );
}
