//! Directories: listings, cookies, sizes and depths.

use std::collections::{BTreeMap, BTreeSet};

use atoll_vfs::*;

use super::refused;
use crate::subject::{Subject, name};

const ROOT: Ino = Ino::ROOT;

/// An entry as it was listed.
struct Listed {
    ino: Ino,
    file_type: FileType,
    cookie: u64,
    name: Vec<u8>,
}

/// Up to `count` entries from `cookie` on.
fn list(s: &mut Subject, dir: Ino, handle: Handle, cookie: u64, count: usize) -> Vec<Listed> {
    let cx = s.cx();
    let mut entries = Vec::new();
    let mut refusals = 0;
    s.fs.readdir(&cx, dir, handle, cookie, &mut |entry| {
        if entries.len() == count {
            refusals += 1;
            return false;
        }
        let DirEntry { ino, file_type, cookie, name } = *entry;
        entries.push(Listed { ino, file_type, cookie, name: name.to_vec() });
        true
    })
    .expect("readdir");
    assert!(refusals <= 1, "readdir went on after an entry was refused");
    entries
}

fn opendir(s: &mut Subject, dir: Ino) -> Handle {
    let cx = s.cx();
    s.fs.opendir(&cx, dir).expect("opendir")
}

/// A listing has everything once, `.` and `..` with it, with types and inodes.
pub fn listings_are_complete(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let mut wanted = BTreeMap::from([
        (b".".to_vec(), (dir, FileType::Directory)),
        (b"..".to_vec(), (ROOT, FileType::Directory)),
    ]);
    wanted.insert(b"file".to_vec(), (s.file(dir, "file"), FileType::Regular));
    wanted.insert(b"sub".to_vec(), (s.dir(dir, "sub"), FileType::Directory));
    wanted.insert(b"link".to_vec(), (s.symlink(dir, "link", "x"), FileType::Symlink));
    wanted.insert(b"fifo".to_vec(), (s.fifo(dir, "fifo"), FileType::Fifo));
    let long = "n".repeat(255);
    wanted.insert(long.clone().into_bytes(), (s.file(dir, &long), FileType::Regular));
    let handle = opendir(s, dir);
    let entries = list(s, dir, handle, 0, usize::MAX);
    assert_eq!(entries.len(), wanted.len());
    for entry in entries {
        assert!(entry.cookie != 0 && entry.cookie < 1 << 63, "cookie {}", entry.cookie);
        let found = wanted.remove(&entry.name);
        assert_eq!(found, Some((entry.ino, entry.file_type)), "{:?}", entry.name);
    }
}

/// Listing goes on from any cookie, in pieces of any size, with the same result.
pub fn listings_continue_from_cookies(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    for i in 0..300 {
        s.file(dir, &format!("file {i}"));
    }
    let handle = opendir(s, dir);
    let whole = list(s, dir, handle, 0, usize::MAX);
    assert_eq!(whole.len(), 302);
    let cookies: BTreeSet<u64> = whole.iter().map(|entry| entry.cookie).collect();
    assert_eq!(cookies.len(), 302, "cookies differ");
    for piece in [1, 2, 7, 100, 301, 302, 303] {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let entries = list(s, dir, handle, cookie, piece);
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            names.extend(entries.into_iter().map(|entry| entry.name));
        }
        assert!(names.iter().eq(whole.iter().map(|entry| &entry.name)), "pieces of {piece}");
    }
    for (i, entry) in whole.iter().enumerate().step_by(37) {
        let rest = list(s, dir, handle, entry.cookie, usize::MAX);
        assert!(rest.iter().map(|e| &e.name).eq(whole[i + 1..].iter().map(|e| &e.name)));
    }
    // Cookies do not belong to one handle.
    let other = opendir(s, dir);
    let rest = list(s, dir, other, whole[150].cookie, usize::MAX);
    assert!(rest.iter().map(|e| &e.name).eq(whole[151..].iter().map(|e| &e.name)));
}

/// Entries that exist throughout a listing are given exactly once, whatever comes and goes.
pub fn listings_survive_changes(s: &mut Subject) {
    for piece in [1, 3, 16] {
        let dir = s.dir(ROOT, &format!("dir{piece}"));
        let mut existing: BTreeSet<Vec<u8>> = BTreeSet::new();
        for i in 0..200 {
            s.file(dir, &format!("old{i}"));
            existing.insert(format!("old{i}").into_bytes());
        }
        let mut throughout = existing.clone();
        let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        let handle = opendir(s, dir);
        let (mut cookie, mut step) = (0, 0);
        loop {
            let entries = list(s, dir, handle, cookie, piece);
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            for entry in &entries {
                *seen.entry(entry.name.clone()).or_default() += 1;
                assert!(
                    existing.contains(&entry.name)
                        || [b".".to_vec(), b"..".to_vec()].contains(&entry.name),
                    "{} does not exist",
                    String::from_utf8_lossy(&entry.name)
                );
            }
            // Bounded: files made during the listing may be listed too.
            if step < 60 {
                let (victim, new) = (format!("old{}", step * 3), format!("new{step}"));
                s.unlink(dir, &victim);
                throughout.remove(victim.as_bytes());
                existing.remove(victim.as_bytes());
                if step % 4 == 0 {
                    let moved = format!("old{}", step * 3 + 1);
                    s.rename((dir, &moved), (dir, &new));
                    throughout.remove(moved.as_bytes());
                    existing.remove(moved.as_bytes());
                } else {
                    s.file(dir, &new);
                }
                existing.insert(new.into_bytes());
            }
            step += 1;
            assert!(step < 2000, "the listing does not end");
        }
        for name in throughout {
            let times = seen.get(&name).copied().unwrap_or(0);
            assert_eq!(times, 1, "{} in pieces of {piece}", String::from_utf8_lossy(&name));
        }
    }
}

/// Removing every entry as it is listed (`rm -r`) removes all.
pub fn removing_while_listing(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    for i in 0..500 {
        s.file(dir, &format!("{i}"));
    }
    let handle = opendir(s, dir);
    let mut cookie = 0;
    loop {
        let entries = list(s, dir, handle, cookie, 20);
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        let cx = s.cx();
        for entry in entries.iter().filter(|e| e.name != b"." && e.name != b"..") {
            s.fs.unlink(&cx, dir, name(&entry.name)).unwrap();
        }
    }
    assert_eq!(s.names(dir), []);
    s.rmdir(ROOT, "dir");
}

/// A cookie whose entry is gone still names its place.
pub fn cookies_of_removed_entries(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    for i in 0..100 {
        s.file(dir, &format!("{i}"));
    }
    let handle = opendir(s, dir);
    let whole = list(s, dir, handle, 0, usize::MAX);
    let mut wanted: Vec<Vec<u8>> = whole[50..].iter().map(|entry| entry.name.clone()).collect();
    let removed = &whole[49];
    let cx = s.cx();
    if removed.name != b"." && removed.name != b".." {
        s.fs.unlink(&cx, dir, name(&removed.name)).unwrap();
    }
    // So do those of its neighbours.
    for entry in whole[45..49].iter().filter(|e| e.name != b"." && e.name != b"..") {
        s.fs.unlink(&cx, dir, name(&entry.name)).unwrap();
    }
    let mut rest: Vec<Vec<u8>> =
        list(s, dir, handle, removed.cookie, usize::MAX).into_iter().map(|e| e.name).collect();
    wanted.sort();
    rest.sort();
    assert_eq!(rest, wanted);
}

/// The end stays the end, and any cookie is harmless.
pub fn odd_cookies(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    s.file(dir, "a");
    let handle = opendir(s, dir);
    let last = list(s, dir, handle, 0, usize::MAX).pop().unwrap();
    assert!(list(s, dir, handle, last.cookie, usize::MAX).is_empty());
    if !s.quirks.caller_time {
        return; // A host's file system may do anything with a cookie that it never gave.
    }
    for cookie in [1, 2, 3, 12_345, u64::from(u32::MAX), i64::MAX as u64, u64::MAX] {
        assert!(list(s, dir, handle, cookie, usize::MAX).len() <= 3);
    }
}

/// Only directories can be listed.
pub fn opendir_errors(s: &mut Subject) {
    let others = [s.file(ROOT, "file"), s.symlink(ROOT, "link", "."), s.fifo(ROOT, "fifo")];
    let cx = s.cx();
    for ino in others {
        refused!(s.fs.opendir(&cx, ino), ENOTDIR);
    }
}

/// Directories nest as deep as anyone likes.
pub fn deep_nesting(s: &mut Subject) {
    const DEPTH: usize = 600;
    let mut chain = vec![ROOT];
    for _ in 0..DEPTH {
        let inner = s.dir(*chain.last().unwrap(), "d");
        chain.push(inner);
    }
    let file = s.file_with(*chain.last().unwrap(), "file", b"deep");
    for pair in chain.windows(2) {
        assert_eq!(s.lookup(pair[1], "..").unwrap().ino, pair[0]);
        assert_eq!(s.lookup(pair[0], "d").unwrap().ino, pair[1]);
    }
    assert_eq!(s.content(file), b"deep");
    // Its middle moves to the top, the top into its end is refused.
    s.rename((chain[DEPTH / 2 - 1], "d"), (ROOT, "half"));
    assert_eq!(s.lookup(chain[DEPTH / 2], "..").unwrap().ino, ROOT);
    refused!(s.rename_with((ROOT, "half"), (chain[DEPTH], "x"), RenameFlags::empty()), EINVAL);
    s.unlink(chain[DEPTH], "file");
    for i in (DEPTH / 2 + 1..=DEPTH).rev() {
        s.rmdir(chain[i - 1], "d");
    }
    s.rmdir(ROOT, "half");
}

/// A directory of many thousand entries finds, lists and removes each.
pub fn many_entries(s: &mut Subject) {
    let count = if s.quirks.many_inodes { 20_000 } else { 3_000 };
    let dir = s.dir(ROOT, "dir");
    let cx = s.cx();
    let at = |i: u32| format!("entry number {i}");
    let mut inodes = Vec::new();
    for i in 0..count {
        let attr = s.fs.mknod(&cx, dir, name(&at(i)), 0o100644, 0).unwrap();
        inodes.push(attr.ino);
    }
    for i in (0..count).step_by(11) {
        assert_eq!(s.lookup(dir, &at(i)).unwrap().ino, inodes[i as usize]);
        refused!(s.lookup(dir, &format!("entry number {i}x")), ENOENT);
    }
    let names = s.names(dir);
    assert_eq!(names.len(), count as usize);
    let listed: BTreeSet<Ino> = names.iter().map(|(_, ino)| *ino).collect();
    assert_eq!(listed, inodes.iter().copied().collect());
    for i in (0..count).filter(|i| i % 3 != 0) {
        s.fs.unlink(&cx, dir, name(&at(i))).unwrap();
    }
    assert_eq!(s.names(dir).len(), (count as usize).div_ceil(3));
    for i in 0..count {
        let found = s.fs.lookup(&cx, dir, name(&at(i))).map(|attr| attr.ino);
        let wanted = if i % 3 == 0 { Ok(inodes[i as usize]) } else { Err(Errno::ENOENT) };
        assert_eq!(found, wanted);
    }
    for i in (0..count).step_by(3) {
        s.fs.unlink(&cx, dir, name(&at(i))).unwrap();
    }
    assert_eq!(s.names(dir), []);
    s.rmdir(ROOT, "dir");
}

/// Many entries with the longest names.
pub fn many_long_names(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let cx = s.cx();
    let at = |i: u32| format!("{i:0>255}");
    for i in 0..600 {
        s.fs.mknod(&cx, dir, name(&at(i)), 0o100644, 0).unwrap();
    }
    let names = s.names(dir);
    assert_eq!(names.len(), 600);
    assert!(names.iter().zip(0..).all(|((bytes, _), i)| bytes == at(i).as_bytes()));
    for i in 0..600 {
        s.fs.unlink(&cx, dir, name(&at(i))).unwrap();
    }
    s.rmdir(ROOT, "dir");
}

/// Many subdirectories, each counted in the link count.
pub fn many_subdirectories(s: &mut Subject) {
    let dir = s.dir(ROOT, "dir");
    let cx = s.cx();
    for i in 0..1000 {
        let inner = s.fs.mkdir(&cx, dir, name(&format!("{i}")), 0o755).unwrap();
        s.fs.mknod(&cx, inner.ino, name("file"), 0o100644, 0).unwrap();
    }
    assert_eq!(s.attr(dir).nlink, 1002);
    let names = s.names(dir);
    for (bytes, ino) in names {
        s.fs.unlink(&cx, ino, name("file")).unwrap();
        s.fs.rmdir(&cx, dir, name(&bytes)).unwrap();
    }
    assert_eq!(s.attr(dir).nlink, 2);
}
