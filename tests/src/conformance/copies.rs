//! copy_file_range.

use atoll_vfs::*;

use super::refused;
use crate::subject::{File, RW, Subject, pattern};

const ROOT: Ino = Ino::ROOT;

fn at(file: File, offset: u64) -> FileAt {
    FileAt { ino: file.ino, handle: file.handle, offset }
}

fn copy(s: &mut Subject, from: (File, u64), to: (File, u64), len: u64) -> Result<u64> {
    let cx = s.cx();
    s.fs.copy_file_range(&cx, at(from.0, from.1), at(to.0, to.1), len)
}

/// Copies until all is copied, or the end is there. Returns how many bytes.
fn copy_all(s: &mut Subject, from: (File, u64), to: (File, u64), len: u64) -> u64 {
    let mut done = 0;
    while done < len {
        let (from, to) = ((from.0, from.1 + done), (to.0, to.1 + done));
        match copy(s, from, to, len - done).unwrap() {
            0 => break,
            copied => done += copied,
        }
        assert!(done <= len, "more was copied than there was to copy");
    }
    done
}

/// A copy is what was there, wherever it comes from and goes to, and nothing else changes.
pub fn copies_are_what_was_there(s: &mut Subject) {
    let data = pattern(5, 150_000);
    let source = s.create(ROOT, "source");
    s.write(source, 0, &data);
    let places = [
        (0, 0, 150_000),
        (0, 0, 1),
        (1, 4095, 2),
        (4096, 8192, 4096),
        (4095, 1, 70_000),
        (100_000, 300_000, 50_000),
    ];
    for (i, (from, to, len)) in places.into_iter().enumerate() {
        let old = pattern(6 + i as u64, 100_000);
        let target = s.create(ROOT, &format!("target{i}"));
        s.write(target, 0, &old);
        let copied = copy_all(s, (source, from as u64), (target, to as u64), len as u64);
        assert_eq!(copied, len as u64);
        let mut wanted = old;
        wanted.resize(wanted.len().max(to + len), 0);
        wanted[to..to + len].copy_from_slice(&data[from..from + len]);
        assert!(s.read(target, 0, wanted.len() + 1) == wanted, "copy {i}");
        s.close(target);
    }
    assert!(s.read(source, 0, 200_000) == data, "the source is as it was");
}

/// A copy ends with the file that it is from.
pub fn copies_end_at_the_end(s: &mut Subject) {
    let source = s.create(ROOT, "source");
    let target = s.create(ROOT, "target");
    s.write(source, 0, b"12345");
    assert_eq!(copy_all(s, (source, 2), (target, 0), u64::MAX - 1), 3);
    assert_eq!(s.read(target, 0, 10), b"345");
    s.unchanged(|s| {
        for from in [5, 6, 4096, 1 << 43] {
            assert_eq!(copy(s, (source, from), (target, 1), 10), Ok(0));
        }
        assert_eq!(copy(s, (source, 0), (target, 1), 0), Ok(0));
    });
}

/// Within one file ranges may touch and not overlap.
pub fn copies_within_a_file(s: &mut Subject) {
    let data = pattern(5, 30_000);
    let file = s.create(ROOT, "file");
    s.write(file, 0, &data);
    s.unchanged(|s| {
        for (from, to, len) in
            [(0, 0, 1), (0, 9_999, 10_000), (9_999, 0, 10_000), (20_000, 25_000, 50_000)]
        {
            refused!(copy(s, (file, from), (file, to), len), EINVAL);
        }
    });
    assert_eq!(copy_all(s, (file, 0), (file, 10_000), 10_000), 10_000);
    assert_eq!(copy_all(s, (file, 10_000), (file, 5_000), 5_000), 5_000);
    // The end of the file makes it short enough.
    assert_eq!(copy_all(s, (file, 25_000), (file, 30_000), 5_000), 5_000);
    let mut wanted = data;
    wanted.copy_within(0..10_000, 10_000);
    wanted.copy_within(10_000..15_000, 5_000);
    wanted.extend_from_within(25_000..);
    assert!(s.read(file, 0, 40_000) == wanted);
    // By two handles it is the same file.
    let other = s.open(file.ino, RW);
    refused!(copy(s, (file, 0), (other, 1), 2), EINVAL);
}

/// Holes read as zeros in the copy, also over what was there; and a copy that is nothing but a hole
/// makes the file longer.
pub fn copies_of_holes(s: &mut Subject) {
    let source = s.create(ROOT, "source");
    let len = 3 << 20;
    s.write(source, 1 << 20, b"island");
    s.truncate(source.ino, len);
    let mut wanted = vec![0; len as usize];
    wanted[1 << 20..][..6].copy_from_slice(b"island");
    let target = s.create(ROOT, "target");
    assert_eq!(copy_all(s, (source, 0), (target, 0), len), len);
    assert!(s.read(target, 0, wanted.len() + 1) == wanted);
    let full = s.create(ROOT, "full");
    s.write(full, 0, &pattern(1, 1 << 20));
    assert_eq!(copy_all(s, (source, 100), (full, 10), len - 100), len - 100);
    let read = s.read(full, 10, len as usize);
    assert!(read == wanted[100..]);
    let hole = s.create(ROOT, "hole");
    s.truncate(hole.ino, 1 << 30);
    let end = s.create(ROOT, "end");
    s.write(end, 0, b"x");
    assert!(copy(s, (hole, 7), (end, 3), 100 << 20).unwrap() > 0);
    let size = s.attr(end.ino).size;
    let tail = s.read(end, size - 10, 20);
    assert_eq!(tail, vec![0; 10]);
    assert_eq!(s.read(end, 0, 4), b"x\0\0\0");
}

/// Handles say what may be copied.
pub fn copy_errors(s: &mut Subject) {
    let source = s.create(ROOT, "source");
    let target = s.create(ROOT, "target");
    s.write(source, 0, b"source");
    s.write(target, 0, b"target");
    let [read, write, append] =
        [OpenFlags::READ, OpenFlags::WRITE, RW | OpenFlags::APPEND].map(|f| s.open(target.ino, f));
    let cx = s.cx();
    let dir = File { ino: ROOT, handle: s.fs.opendir(&cx, ROOT).unwrap() };
    let nowhere = File { ino: target.ino, handle: Handle(u64::MAX - 9) };
    s.unchanged(|s| {
        refused!(copy(s, (source, 0), (read, 0), 3), EBADF);
        refused!(copy(s, (write, 0), (source, 0), 3), EBADF);
        refused!(copy(s, (source, 0), (append, 0), 3), EBADF);
        refused!(copy(s, (dir, 0), (target, 0), 3), EISDIR | EBADF);
        refused!(copy(s, (source, 0), (dir, 0), 3), EISDIR | EBADF);
        refused!(copy(s, (source, 0), (nowhere, 0), 3), EBADF);
        refused!(copy(s, (nowhere, 0), (source, 0), 3), EBADF);
        let end = filesystem::FILE_SIZE_MAX;
        refused!(copy(s, (source, 0), (target, end), 3), EFBIG | EINVAL);
        refused!(copy(s, (source, 0), (target, u64::MAX), 3), EFBIG | EINVAL);
    });
    let cx = s.cx();
    s.fs.releasedir(&cx, ROOT, dir.handle).unwrap();
    assert_eq!(copy(s, (read, 0), (source, 6), 6), Ok(6));
    assert_eq!(s.read(source, 0, 20), b"sourcetarget");
}

/// A copy changes the content of one file, and nothing of the other.
pub fn copies_stamp_times(s: &mut Subject) {
    let source = s.create(ROOT, "source");
    let target = s.create(ROOT, "target");
    s.write(source, 0, b"source");
    let before = (s.attr(source.ino), s.attr(target.ino));
    assert_eq!(copy(s, (source, 0), (target, 0), 6), Ok(6));
    let after = (s.attr(source.ino), s.attr(target.ino));
    assert_eq!((after.0.mtime, after.0.ctime), (before.0.mtime, before.0.ctime));
    assert!(after.1.mtime > before.1.mtime && after.1.ctime > before.1.ctime);
}
