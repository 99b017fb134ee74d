//! Extended attributes.

use std::collections::BTreeMap;

use atoll_vfs::*;

use super::refused;
use crate::subject::{Subject, pattern};

const ROOT: Ino = Ino::ROOT;
const ANY: XattrFlags = XattrFlags::empty();

fn set(s: &mut Subject, ino: Ino, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
    let cx = s.cx();
    s.fs.setxattr(&cx, ino, name, value, flags)
}

fn get(s: &mut Subject, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
    let cx = s.cx();
    let mut value = b"appended to".to_vec();
    let result = s.fs.getxattr(&cx, ino, name, &mut value);
    let value = value.strip_prefix(b"appended to").expect("the value is appended").to_vec();
    if result.is_err() {
        assert_eq!(value, b"");
    }
    result.map(|()| value)
}

/// The names, sorted.
fn names(s: &mut Subject, ino: Ino) -> Vec<Vec<u8>> {
    let cx = s.cx();
    let mut bytes = Vec::new();
    s.fs.listxattr(&cx, ino, &mut bytes).expect("listxattr");
    if bytes.is_empty() {
        return Vec::new();
    }
    assert_eq!(bytes.pop(), Some(0), "names end with NUL");
    let mut names: Vec<Vec<u8>> = bytes.split(|&b| b == 0).map(<[u8]>::to_vec).collect();
    names.sort();
    names
}

/// Set, read, list, replace, remove.
pub fn xattrs_are_kept(s: &mut Subject) {
    let inodes = [ROOT, s.file(ROOT, "file"), s.dir(ROOT, "dir")];
    for (i, ino) in inodes.into_iter().enumerate() {
        assert_eq!(names(s, ino), Vec::<Vec<u8>>::new());
        let value = pattern(i as u64, 10);
        set(s, ino, b"user.one", &value, ANY).unwrap();
        set(s, ino, b"user.two", b"", ANY).unwrap();
        assert_eq!(get(s, ino, b"user.one").unwrap(), value);
        assert_eq!(get(s, ino, b"user.two").unwrap(), b"");
        assert_eq!(names(s, ino), [b"user.one", b"user.two"]);
        set(s, ino, b"user.one", b"another, longer than before", ANY).unwrap();
        assert_eq!(get(s, ino, b"user.one").unwrap(), b"another, longer than before");
        set(s, ino, b"user.one", b"short", ANY).unwrap();
        assert_eq!(get(s, ino, b"user.one").unwrap(), b"short");
        let cx = s.cx();
        s.fs.removexattr(&cx, ino, b"user.one").unwrap();
        refused!(get(s, ino, b"user.one"), ENODATA);
        assert_eq!(names(s, ino), [b"user.two"]);
    }
}

/// CREATE and REPLACE do what they say.
pub fn xattr_flags(s: &mut Subject) {
    let file = s.file(ROOT, "file");
    refused!(set(s, file, b"user.x", b"1", XattrFlags::REPLACE), ENODATA);
    set(s, file, b"user.x", b"1", XattrFlags::CREATE).unwrap();
    s.unchanged(|s| {
        refused!(set(s, file, b"user.x", b"2", XattrFlags::CREATE), EEXIST);
        refused!(set(s, file, b"user.y", b"2", XattrFlags::REPLACE), ENODATA);
    });
    set(s, file, b"user.x", b"2", XattrFlags::REPLACE).unwrap();
    assert_eq!(get(s, file, b"user.x").unwrap(), b"2");
}

/// A missing attribute is `ENODATA`; names are 1 to 255 bytes; values end at their maximum.
pub fn xattr_errors(s: &mut Subject) {
    let file = s.file(ROOT, "file");
    set(s, file, b"user.there", b"value", ANY).unwrap();
    let mut long = b"user.".to_vec();
    long.resize(255, b'n');
    set(s, file, &long, b"x", ANY).unwrap();
    assert_eq!(get(s, file, &long).unwrap(), b"x");
    let mut too_long = long.clone();
    too_long.push(b'n');
    s.unchanged(|s| {
        let cx = s.cx();
        refused!(get(s, file, b"user.missing"), ENODATA);
        refused!(get(s, file, b"user.ther"), ENODATA);
        refused!(s.fs.removexattr(&cx, file, b"user.missing"), ENODATA);
        refused!(set(s, file, b"", b"x", ANY), ERANGE);
        refused!(set(s, file, &too_long, b"x", ANY), ERANGE);
        refused!(get(s, file, &too_long), ERANGE | ENODATA);
        refused!(set(s, file, b"user.big", &vec![1; XATTR_SIZE_MAX + 1], ANY), E2BIG);
        refused!(set(s, file, b"user.there", &vec![1; XATTR_SIZE_MAX + 1], ANY), E2BIG);
        if s.quirks.xattr_everywhere {
            refused!(set(s, file, b"user.\0nul", b"x", ANY), EINVAL | ERANGE);
        }
    });
}

/// Values of every size up to the maximum, growing and shrinking.
pub fn xattr_values_of_every_size(s: &mut Subject) {
    let file = s.file_with(ROOT, "file", b"content");
    let sizes = [0, 1, 100, 255, 256, 1000, 2000, 4096, 5000, 40_000, XATTR_SIZE_MAX];
    let sizes: Vec<usize> =
        sizes.into_iter().filter(|size| *size <= s.quirks.xattr_value_max).collect();
    for size in sizes.iter().chain(sizes.iter().rev()) {
        let value = pattern(*size as u64, *size);
        set(s, file, b"user.x", &value, ANY).unwrap();
        assert!(get(s, file, b"user.x").unwrap() == value, "value of {size} bytes");
    }
    assert_eq!(s.content(file), b"content");
}

/// Many attributes of one file, added and removed in any order, keep apart.
pub fn many_xattrs(s: &mut Subject) {
    let count = if s.quirks.xattr_value_max == XATTR_SIZE_MAX { 300 } else { 40 };
    let file = s.file(ROOT, "file");
    let mut wanted: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for i in 0..count {
        let name = format!("user.attribute {i}").into_bytes();
        let value = pattern(i, (i * 7 % 40) as usize);
        set(s, file, &name, &value, ANY).unwrap();
        wanted.insert(name, value);
    }
    for i in (0..count).step_by(3) {
        let name = format!("user.attribute {i}").into_bytes();
        let cx = s.cx();
        s.fs.removexattr(&cx, file, &name).unwrap();
        wanted.remove(&name);
    }
    assert_eq!(names(s, file), wanted.keys().cloned().collect::<Vec<_>>());
    for (name, value) in &wanted {
        assert_eq!(get(s, file, name).unwrap(), *value);
    }
}

/// All names together end at XATTR_LIST_MAX: `ENOSPC`.
pub fn xattr_names_are_limited(s: &mut Subject) {
    if s.quirks.xattr_value_max < XATTR_SIZE_MAX {
        return; // The host's file system runs out earlier.
    }
    let file = s.file(ROOT, "file");
    let at = |i: usize| format!("user.{i:0>250}").into_bytes();
    for i in 0..XATTR_LIST_MAX / 256 {
        set(s, file, &at(i), b"v", ANY).unwrap();
    }
    s.unchanged(|s| refused!(set(s, file, b"user.one more", b"v", ANY), ENOSPC));
    set(s, file, &at(7), b"replaced", ANY).unwrap();
    let cx = s.cx();
    s.fs.removexattr(&cx, file, &at(9)).unwrap();
    set(s, file, b"user.one more", b"v", ANY).unwrap();
    assert_eq!(names(s, file).len(), XATTR_LIST_MAX / 256);
}

/// Links and special files have attributes too.
pub fn xattrs_of_other_types(s: &mut Subject) {
    if !s.quirks.xattr_everywhere {
        return;
    }
    for ino in [s.symlink(ROOT, "link", "x"), s.fifo(ROOT, "fifo")] {
        set(s, ino, b"trusted.x", b"value", ANY).unwrap();
        assert_eq!(get(s, ino, b"trusted.x").unwrap(), b"value");
    }
}

/// Attributes belong to the file, not to a name, and go with it.
pub fn xattrs_follow_the_file(s: &mut Subject) {
    let file = s.file(ROOT, "a");
    set(s, file, b"user.x", b"1", ANY).unwrap();
    s.link(file, ROOT, "b");
    s.rename((ROOT, "a"), (ROOT, "c"));
    s.unlink(ROOT, "b");
    let found = s.lookup(ROOT, "c").unwrap().ino;
    assert_eq!(get(s, found, b"user.x").unwrap(), b"1");
    s.unlink(ROOT, "c");
    let new = s.file(ROOT, "a");
    refused!(get(s, new, b"user.x"), ENODATA);
    assert_eq!(names(s, new), Vec::<Vec<u8>>::new());
}
