//! rename, with all that can be in its way.

use atoll_vfs::*;

use super::refused;
use crate::subject::{Subject, name};

const ROOT: Ino = Ino::ROOT;
const NOREPLACE: RenameFlags = RenameFlags::NOREPLACE;
const EXCHANGE: RenameFlags = RenameFlags::EXCHANGE;
const WHITEOUT: RenameFlags = RenameFlags::WHITEOUT;

fn refuse(
    s: &mut Subject,
    from: (Ino, &str),
    to: (Ino, &str),
    flags: RenameFlags,
    allowed: &[Errno],
) {
    let result = s.rename_with(from, to, flags);
    assert!(
        matches!(result, Err(error) if allowed.contains(&error)),
        "rename {from:?} to {to:?} with {flags:?} gave {result:?}, expected {allowed:?}"
    );
}

/// A file moves with its inode and content, within a directory and between two.
pub fn rename_moves_a_file(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let file = s.file_with(ROOT, "a", b"content");
    s.rename((ROOT, "a"), (ROOT, "b"));
    refused!(s.lookup(ROOT, "a"), ENOENT);
    assert_eq!(s.lookup(ROOT, "b").unwrap().ino, file);
    s.rename((ROOT, "b"), (dir, "c"));
    refused!(s.lookup(ROOT, "b"), ENOENT);
    assert_eq!(s.lookup(dir, "c").unwrap().ino, file);
    assert_eq!(s.content(file), b"content");
    assert_eq!(s.attr(file).nlink, 1);
}

/// A directory moves with everything in it; its `..` and its parents' link counts follow.
pub fn rename_moves_a_directory(s: &mut Subject) {
    let (a, b) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"));
    let dir = s.dir(a, "dir");
    let inner = s.dir(dir, "inner");
    let file = s.file(inner, "file");
    assert_eq!((s.attr(a).nlink, s.attr(b).nlink, s.attr(dir).nlink), (3, 2, 3));
    s.rename((a, "dir"), (b, "moved"));
    assert_eq!((s.attr(a).nlink, s.attr(b).nlink, s.attr(dir).nlink), (2, 3, 3));
    assert_eq!(s.lookup(dir, "..").unwrap().ino, b);
    assert_eq!(s.lookup(inner, "file").unwrap().ino, file);
    assert_eq!(s.names(a), []);
    assert_eq!(s.names(b), [(b"moved".to_vec(), dir)]);
    s.rename((b, "moved"), (b, "again"));
    assert_eq!(s.attr(b).nlink, 3);
}

/// A file takes the place of another, which is gone then.
pub fn rename_replaces_a_file(s: &mut Subject) {
    let new = s.file_with(ROOT, "new", b"new");
    let old = s.file_with(ROOT, "old", b"old");
    s.rename((ROOT, "new"), (ROOT, "old"));
    assert_eq!(s.names(ROOT), [(b"old".to_vec(), new)]);
    assert_eq!(s.content(new), b"new");
    let cx = s.cx();
    refused!(s.fs.getattr(&cx, old), ESTALE);
}

/// A replaced file that is open stays readable until it is closed; its other names stay.
pub fn rename_replaces_an_open_file(s: &mut Subject) {
    s.file_with(ROOT, "new", b"new");
    let old = s.file_with(ROOT, "old", b"old");
    s.link(old, ROOT, "other");
    let open = s.open(old, OpenFlags::READ);
    s.rename((ROOT, "new"), (ROOT, "old"));
    assert_eq!(s.attr(old).nlink, 1);
    s.unlink(ROOT, "other");
    assert_eq!(s.attr(old).nlink, 0);
    assert_eq!(s.read(open, 0, 10), b"old");
    s.close(open);
    let cx = s.cx();
    refused!(s.fs.getattr(&cx, old), ESTALE);
}

/// Files, links and special files replace one another.
pub fn rename_replaces_across_types(s: &mut Subject) {
    let file = s.file(ROOT, "file");
    s.symlink(ROOT, "link", "file");
    let fifo = s.fifo(ROOT, "fifo");
    s.rename((ROOT, "file"), (ROOT, "link"));
    assert_eq!(s.lookup(ROOT, "link").unwrap().ino, file);
    s.rename((ROOT, "fifo"), (ROOT, "link"));
    assert_eq!(s.names(ROOT), [(b"link".to_vec(), fifo)]);
}

/// A directory takes the place of an empty one, in the same directory and in another.
pub fn rename_replaces_an_empty_directory(s: &mut Subject) {
    let (a, b) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"));
    let moved = s.dir(a, "moved");
    s.file(moved, "file");
    let replaced = s.dir(b, "empty");
    s.rename((a, "moved"), (b, "empty"));
    assert_eq!(s.names(b), [(b"empty".to_vec(), moved)]);
    assert_eq!((s.attr(a).nlink, s.attr(b).nlink), (2, 3));
    let cx = s.cx();
    refused!(s.fs.getattr(&cx, replaced), ESTALE);
    s.dir(b, "second");
    s.rename((b, "empty"), (b, "second"));
    assert_eq!(s.attr(b).nlink, 3);
    assert_eq!(s.names(b), [(b"second".to_vec(), moved)]);
}

/// A directory replaces nothing but an empty directory, and a file no directory.
pub fn rename_replaces_the_same_kind_only(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    s.file(dir, "file");
    s.dir(ROOT, "empty");
    s.file(ROOT, "file");
    s.symlink(ROOT, "link", "empty");
    let none = RenameFlags::empty();
    s.unchanged(|s| {
        refuse(s, (ROOT, "empty"), (ROOT, "dir"), none, &[Errno::ENOTEMPTY, Errno::EEXIST]);
        refuse(s, (ROOT, "empty"), (ROOT, "file"), none, &[Errno::ENOTDIR]);
        refuse(s, (ROOT, "empty"), (ROOT, "link"), none, &[Errno::ENOTDIR]);
        refuse(s, (ROOT, "file"), (ROOT, "empty"), none, &[Errno::EISDIR]);
        refuse(s, (ROOT, "link"), (ROOT, "empty"), none, &[Errno::EISDIR]);
        refuse(s, (ROOT, "file"), (ROOT, "dir"), none, &[Errno::EISDIR, Errno::ENOTEMPTY]);
    });
}

/// `ENOENT` for a missing source.
pub fn rename_of_nothing(s: &mut Subject) {
    s.file(ROOT, "file");
    s.unchanged(|s| {
        for flags in [RenameFlags::empty(), EXCHANGE] {
            refuse(s, (ROOT, "missing"), (ROOT, "file"), flags, &[Errno::ENOENT]);
            refuse(s, (ROOT, "missing"), (ROOT, "other"), flags, &[Errno::ENOENT]);
            refuse(s, (ROOT, "missing"), (ROOT, "missing"), flags, &[Errno::ENOENT]);
        }
        refuse(s, (ROOT, "missing"), (ROOT, "other"), NOREPLACE, &[Errno::ENOENT]);
    });
}

/// A directory never gets into itself: `EINVAL`.
pub fn rename_into_itself(s: &mut Subject) {
    let a = s.dir(ROOT, "a");
    let b = s.dir(a, "b");
    let c = s.dir(b, "c");
    s.dir(c, "target");
    s.unchanged(|s| {
        for flags in [RenameFlags::empty(), NOREPLACE] {
            for parent in [a, b, c] {
                refuse(s, (ROOT, "a"), (parent, "x"), flags, &[Errno::EINVAL]);
            }
        }
        refuse(s, (ROOT, "a"), (c, "target"), EXCHANGE, &[Errno::EINVAL]);
        refuse(s, (c, "target"), (ROOT, "a"), EXCHANGE, &[Errno::EINVAL]);
        let none = RenameFlags::empty();
        refuse(s, (c, "target"), (ROOT, "a"), none, &[Errno::ENOTEMPTY, Errno::EEXIST]);
        refuse(s, (a, "b"), (ROOT, "a"), none, &[Errno::ENOTEMPTY, Errno::EEXIST]);
    });
}

/// A rename to itself does nothing, nor does one between two names of one file.
pub fn rename_to_the_same_file(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let file = s.file_with(ROOT, "a", b"x");
    s.link(file, dir, "b");
    s.unchanged(|s| {
        for flags in [RenameFlags::empty(), EXCHANGE] {
            s.rename_with((ROOT, "a"), (ROOT, "a"), flags).unwrap();
            s.rename_with((ROOT, "dir"), (ROOT, "dir"), flags).unwrap();
            s.rename_with((ROOT, "a"), (dir, "b"), flags).unwrap();
        }
        refuse(s, (ROOT, "a"), (ROOT, "a"), NOREPLACE, &[Errno::EEXIST]);
        refuse(s, (ROOT, "a"), (dir, "b"), NOREPLACE, &[Errno::EEXIST]);
    });
    assert_eq!(s.attr(file).nlink, 2);
}

/// NOREPLACE moves, but replaces nothing: `EEXIST`.
pub fn rename_noreplace(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    s.dir(ROOT, "empty");
    let file = s.file(ROOT, "a");
    s.file(ROOT, "b");
    s.unchanged(|s| {
        refuse(s, (ROOT, "a"), (ROOT, "b"), NOREPLACE, &[Errno::EEXIST]);
        refuse(s, (ROOT, "a"), (ROOT, "empty"), NOREPLACE, &[Errno::EEXIST, Errno::EISDIR]);
        refuse(s, (ROOT, "dir"), (ROOT, "empty"), NOREPLACE, &[Errno::EEXIST]);
    });
    s.rename_with((ROOT, "a"), (dir, "a"), NOREPLACE).unwrap();
    assert_eq!(s.lookup(dir, "a").unwrap().ino, file);
    refused!(s.lookup(ROOT, "a"), ENOENT);
}

/// EXCHANGE swaps any two names, directories and files alike; link counts and `..` follow.
pub fn rename_exchange(s: &mut Subject) {
    let (a, b) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"));
    let dir = s.dir(a, "x");
    let inner = s.file(dir, "inner");
    let file = s.file_with(b, "y", b"content");
    s.rename_with((a, "x"), (b, "y"), EXCHANGE).unwrap();
    assert_eq!(s.names(a), [(b"x".to_vec(), file)]);
    assert_eq!(s.names(b), [(b"y".to_vec(), dir)]);
    assert_eq!((s.attr(a).nlink, s.attr(b).nlink), (2, 3));
    assert_eq!(s.lookup(dir, "..").unwrap().ino, b);
    assert_eq!(s.lookup(dir, "inner").unwrap().ino, inner);
    assert_eq!(s.content(file), b"content");
    // Two directories, not empty, and two files.
    let other = s.dir(ROOT, "other");
    s.file(other, "file");
    s.rename_with((b, "y"), (ROOT, "other"), EXCHANGE).unwrap();
    assert_eq!(s.lookup(ROOT, "other").unwrap().ino, dir);
    assert_eq!(s.lookup(dir, "..").unwrap().ino, ROOT);
    assert_eq!(s.lookup(other, "..").unwrap().ino, b);
    assert_eq!(s.attr(ROOT).nlink, 5);
    let second = s.file(a, "z");
    s.rename_with((a, "x"), (a, "z"), EXCHANGE).unwrap();
    assert_eq!(s.names(a), [(b"x".to_vec(), second), (b"z".to_vec(), file)]);
}

/// WHITEOUT leaves a device that is none in the place of whatever moves, and replaces as a rename
/// does.
pub fn rename_whiteout(s: &mut Subject) {
    let (dir, above) = (s.dir(ROOT, "dir"), s.attr(ROOT).nlink);
    let file = s.file_with(ROOT, "a", b"content");
    s.file_with(dir, "old", b"old");
    // The caller's, as what it makes.
    let of = s.attr(file);
    let left = |s: &mut Subject, parent: Ino, at: &str| {
        let attr = s.lookup(parent, at).expect("what is left");
        assert_eq!((attr.mode, attr.rdev), (FileType::CharDevice.mode_bits(), 0), "{at}");
        assert_eq!((attr.nlink, attr.uid, attr.gid), (1, of.uid, of.gid), "{at}");
        attr.ino
    };
    s.rename_with((ROOT, "a"), (dir, "b"), WHITEOUT).unwrap();
    let first = left(s, ROOT, "a");
    s.rename_with((dir, "b"), (dir, "old"), WHITEOUT).unwrap();
    let second = left(s, dir, "b");
    assert_eq!((s.lookup(dir, "old").unwrap().ino, s.content(file)), (file, b"content".to_vec()));
    // Of a directory, whose link is one of its parent's.
    s.rename_with((ROOT, "dir"), (ROOT, "moved"), WHITEOUT | NOREPLACE).unwrap();
    let third = left(s, ROOT, "dir");
    assert_eq!(s.attr(ROOT).nlink, above);
    let is = |at: &str, ino| (at.as_bytes().to_vec(), ino);
    assert_eq!(s.names(ROOT), [is("a", first), is("dir", third), is("moved", dir)]);
    assert_eq!(s.names(dir), [is("b", second), is("old", file)]);
    // Two names of one file: nothing.
    s.link(file, ROOT, "again");
    s.rename_with((ROOT, "again"), (dir, "old"), WHITEOUT).unwrap();
    assert_eq!(s.lookup(ROOT, "again").unwrap().ino, file);
    s.unchanged(|s| {
        refuse(s, (ROOT, "moved"), (ROOT, "a"), WHITEOUT, &[Errno::ENOTDIR]);
        refuse(s, (ROOT, "again"), (ROOT, "a"), WHITEOUT | NOREPLACE, &[Errno::EEXIST]);
        refuse(s, (ROOT, "none"), (ROOT, "new"), WHITEOUT, &[Errno::ENOENT]);
    });
    // A whiteout is replaced by what takes the name again.
    s.rename((ROOT, "again"), (ROOT, "a"));
    assert_eq!(s.lookup(ROOT, "a").unwrap().ino, file);
}

/// EXCHANGE needs both names, and goes with no other flag.
pub fn rename_flag_errors(s: &mut Subject) {
    s.file(ROOT, "a");
    s.file(ROOT, "b");
    s.unchanged(|s| {
        refuse(s, (ROOT, "a"), (ROOT, "missing"), EXCHANGE, &[Errno::ENOENT]);
        refuse(s, (ROOT, "a"), (ROOT, "c"), EXCHANGE | NOREPLACE, &[Errno::EINVAL]);
        let both = EXCHANGE | NOREPLACE;
        refuse(s, (ROOT, "a"), (ROOT, "b"), both, &[Errno::EINVAL, Errno::EEXIST]);
        refuse(s, (ROOT, "a"), (ROOT, "b"), EXCHANGE | WHITEOUT, &[Errno::EINVAL]);
    });
}

/// Handles and inode numbers do not care about the names' moves.
pub fn rename_keeps_handles(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let file = s.create(dir, "a");
    s.write(file, 0, b"before");
    s.rename((dir, "a"), (ROOT, "b"));
    s.rename((ROOT, "dir"), (ROOT, "moved"));
    s.write(file, 0, b"after ");
    assert_eq!(s.read(file, 0, 10), b"after ");
    let cx = s.cx();
    s.fs.mkdir(&cx, dir, name("still here"), 0o755).unwrap();
    s.close(file);
}

/// A thousand renames of one name leave one name.
pub fn rename_back_and_forth(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let file = s.file(ROOT, "n0");
    let mut at = (ROOT, String::from("n0"));
    for i in 1..1000 {
        let to = (if i % 3 == 0 { dir } else { ROOT }, format!("n{}", i % 7));
        s.rename((at.0, &at.1), (to.0, &to.1));
        at = to;
    }
    assert_eq!(s.lookup(at.0, &at.1).unwrap().ino, file);
    assert_eq!(s.names(ROOT).len() + s.names(dir).len(), 2);
    assert_eq!(s.attr(file).nlink, 1);
}
