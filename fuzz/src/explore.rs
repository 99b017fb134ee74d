//! Everything that a user may do with a volume, whatever is in it, within bounds.

use atoll_vfs::{
    Context, FallocateMode, FileSystem, FileType, Ino, Name, OpenFlags, RenameFlags, SeekTo,
    SetAttr, XattrFlags,
};

/// The most inodes that are looked at.
const INODES: usize = 400;
/// The most entries that are taken of one directory.
const ENTRIES: usize = 400;

/// Counts of an exploration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Inodes that were looked at.
    pub inodes: usize,
    /// Calls that failed.
    pub failures: usize,
}

/// Counts a call's failure and goes on.
macro_rules! tried {
    ($found:expr, $call:expr) => {
        match $call {
            Ok(value) => Some(value),
            Err(_) => {
                $found.failures += 1;
                None
            }
        }
    };
}

/// Looks at the whole tree through every verb that changes nothing. Failures are fine.
pub fn look(fs: &mut impl FileSystem, cx: &Context) -> Found {
    let mut found = Found::default();
    let mut pending = vec![Ino::ROOT];
    tried!(found, fs.statfs(cx));
    while let Some(dir) = pending.pop() {
        let mut entries = Vec::new();
        if let Some(handle) = tried!(found, fs.opendir(cx, dir)) {
            tried!(
                found,
                fs.readdir(cx, dir, handle, 0, &mut |entry| {
                    entries.push((entry.ino, entry.name.to_vec()));
                    entries.len() < ENTRIES
                })
            );
            tried!(found, fs.releasedir(cx, dir, handle));
        }
        for (_, bytes) in entries {
            if bytes == b"." || bytes == b".." || found.inodes >= INODES {
                continue;
            }
            let Some(name) = tried!(found, Name::new(&bytes)) else { continue };
            let Some(attr) = tried!(found, fs.lookup(cx, dir, name)) else { continue };
            found.inodes += 1;
            let mut buf = Vec::new();
            tried!(found, fs.getattr(cx, attr.ino));
            if tried!(found, fs.listxattr(cx, attr.ino, &mut buf)).is_some() {
                for xattr in buf.split(|&byte| byte == 0).filter(|name| !name.is_empty()).take(20) {
                    tried!(found, fs.getxattr(cx, attr.ino, xattr, &mut Vec::new()));
                }
            }
            match attr.file_type() {
                FileType::Directory => pending.push(attr.ino),
                FileType::Symlink => {
                    tried!(found, fs.readlink(cx, attr.ino, &mut Vec::new()));
                }
                FileType::Regular => read(fs, cx, attr.ino, attr.size, &mut found),
                _ => {}
            }
        }
    }
    found
}

/// Reads a file at its beginning, its end, and where its data begins and ends.
fn read(fs: &mut impl FileSystem, cx: &Context, ino: Ino, size: u64, found: &mut Found) {
    let Some(handle) = tried!(found, fs.open(cx, ino, OpenFlags::READ)) else { return };
    let mut buf = [0; 5000];
    let mut at = 0;
    for _ in 0..24 {
        tried!(found, fs.read(cx, ino, handle, at, &mut buf));
        let data = fs.seek(cx, ino, handle, at, SeekTo::Data);
        let Ok(data) = data else { break };
        let Ok(hole) = fs.seek(cx, ino, handle, data, SeekTo::Hole) else { break };
        tried!(found, fs.read(cx, ino, handle, data, &mut buf));
        at = hole;
    }
    for offset in [size.saturating_sub(10), size, size / 2] {
        tried!(found, fs.read(cx, ino, handle, offset, &mut buf));
    }
    // May fail on a sound volume.
    let _ = fs.read(cx, ino, handle, u64::MAX, &mut buf);
    tried!(found, fs.release(cx, ino, handle));
}

/// Changes a little of everything. Failures are fine.
pub fn change(fs: &mut impl FileSystem, cx: &Context) -> Found {
    let mut found = Found::default();
    let mut names = Vec::new();
    let mut dirs = vec![Ino::ROOT];
    for index in 0..8 {
        let Some(&dir) = dirs.get(index) else { break };
        let Some(handle) = tried!(found, fs.opendir(cx, dir)) else { continue };
        tried!(
            found,
            fs.readdir(cx, dir, handle, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    names.push((dir, entry.ino, entry.file_type, entry.name.to_vec()));
                    if entry.file_type == FileType::Directory {
                        dirs.push(entry.ino);
                    }
                }
                names.len() < 64 * (index + 1)
            })
        );
        tried!(found, fs.releasedir(cx, dir, handle));
    }
    let both = OpenFlags::READ | OpenFlags::WRITE;
    for &dir in dirs.iter().take(8) {
        for number in 0..30 {
            let text = format!("new file number {number}");
            let Some(name) = tried!(found, Name::new(text.as_bytes())) else { continue };
            if let Some((attr, handle)) = tried!(found, fs.create(cx, dir, name, 0o644, both)) {
                tried!(found, fs.write(cx, attr.ino, handle, number * 5000, &[7; 3000]));
                tried!(found, fs.release(cx, attr.ino, handle));
            }
        }
        if let Some(name) = tried!(found, Name::new(b"new dir")) {
            tried!(found, fs.mkdir(cx, dir, name, 0o755));
        }
    }
    for (number, (dir, ino, file_type, bytes)) in names.iter().enumerate() {
        let Some(name) = tried!(found, Name::new(bytes)) else { continue };
        found.inodes += 1;
        match (number % 6, file_type) {
            (0, FileType::Directory) => {
                tried!(found, fs.rmdir(cx, *dir, name));
            }
            (0, _) => {
                tried!(found, fs.unlink(cx, *dir, name));
            }
            (1, FileType::Regular) => {
                let set = SetAttr { size: Some(number as u64 * 1000), ..SetAttr::default() };
                tried!(found, fs.setattr(cx, *ino, None, &set));
            }
            (2, FileType::Regular) => {
                if let Some(handle) = tried!(found, fs.open(cx, *ino, both)) {
                    tried!(found, fs.write(cx, *ino, handle, 3, &[5; 9000]));
                    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                    tried!(found, fs.fallocate(cx, *ino, handle, 4096, 1 << 40, punch));
                    tried!(
                        found,
                        fs.fallocate(cx, *ino, handle, 0, 70_000, FallocateMode::empty())
                    );
                    tried!(found, fs.fsync(cx, *ino, handle, false));
                    tried!(found, fs.release(cx, *ino, handle));
                }
            }
            (3, _) => {
                let text = format!("renamed {number}");
                if let Some(new) = tried!(found, Name::new(text.as_bytes())) {
                    let flags = RenameFlags::empty();
                    tried!(found, fs.rename(cx, *dir, name, Ino::ROOT, new, flags));
                }
            }
            (4, _) => {
                let value = [3; 2000];
                tried!(found, fs.setxattr(cx, *ino, b"user.new", &value, XattrFlags::empty()));
                tried!(found, fs.removexattr(cx, *ino, b"user.short"));
            }
            _ => {
                if let Some(new) = tried!(found, Name::new(b"linked")) {
                    tried!(found, fs.link(cx, *ino, Ino::ROOT, new));
                }
            }
        }
    }
    tried!(found, fs.syncfs(cx));
    found
}
