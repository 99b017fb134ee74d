//! The privileges that a change of a file's content or owner takes from it: set-ID bits and
//! capabilities.

use std::collections::{HashMap, HashSet};

use atoll_vfs::{Context, Errno, FileSystem, FileType, Ino, Result, SetAttr, Timespec};

/// The attribute that holds a file's capabilities.
const CAPABILITY: &[u8] = b"security.capability";
/// The set-user-ID bit.
const SET_UID: u32 = 0o4000;
/// The set-group-ID bit.
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
/// How many files are remembered as plain. Forgetting one costs a look at its next write.
const PLAIN_MAX: usize = 1 << 16;

/// How long a file that others may change is taken for one without capabilities, in nanoseconds: a
/// tenth of a second. Its set-ID bits, which the host's own programs obey, are looked at each time.
const BARE_FOR: i128 = 100_000_000;

/// Regular files known to have neither set-ID bits nor capabilities: a write need not look.
#[derive(Default)]
pub(crate) struct Plain {
    files: HashSet<Ino>,
    /// The one of them that was asked for last: to find it in the set takes 200 instructions.
    latest: Option<Ino>,
    /// Others change modes and attributes too: no file is known for longer than a moment.
    unknown: bool,
    /// Regular files of such a file system that had no capabilities at that time.
    bare: HashMap<Ino, Timespec>,
}

impl Plain {
    /// Forgets `ino`, which is given a mode or an attribute, or is gone.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.files.remove(&ino);
        self.bare.remove(&ino);
        self.latest = None;
    }

    /// Of a file system that others change too.
    pub(crate) fn unknown() -> Plain {
        Plain { unknown: true, ..Plain::default() }
    }

    fn insert(&mut self, ino: Ino) {
        if self.unknown {
            return;
        }
        if self.files.len() >= PLAIN_MAX {
            self.files.clear();
        }
        self.files.insert(ino);
        self.latest = Some(ino);
    }

    /// Notes that `ino` has no capabilities.
    fn note_bare(&mut self, ino: Ino, now: Timespec) {
        if !self.unknown {
            return;
        }
        if self.bare.len() >= PLAIN_MAX {
            self.bare.clear();
        }
        self.bare.insert(ino, now);
    }

    /// Whether `ino` had no capabilities a moment before `now`.
    fn was_bare(&self, ino: Ino, now: Timespec) -> bool {
        let nanoseconds =
            |time: Timespec| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
        // A clock that was set back says nothing.
        self.bare
            .get(&ino)
            .is_some_and(|&then| (0..BARE_FOR).contains(&(nanoseconds(now) - nanoseconds(then))))
    }

    /// Whether a write to `ino` would not look.
    #[cfg(test)]
    pub(crate) fn finds(&mut self, ino: Ino) -> bool {
        self.contains(ino)
    }

    #[inline]
    fn contains(&mut self, ino: Ino) -> bool {
        let contains = self.latest == Some(ino) || self.files.contains(&ino);
        if contains {
            self.latest = Some(ino);
        }
        contains
    }
}

/// `mode` without the bits that a change of content or owner takes from a regular file: the
/// set-group-ID bit only where it has that meaning, or where the caller is not in the group.
pub(crate) fn without_set_ids(mode: u32, in_group: bool) -> u32 {
    let mut mode = mode & !SET_UID;
    if mode & GROUP_EXECUTE != 0 || !in_group {
        mode &= !SET_GID;
    }
    mode
}

/// Takes the capabilities of a file. Returns whether it had any.
pub(crate) fn drop_capabilities(fs: &mut impl FileSystem, cx: &Context, ino: Ino) -> Result<bool> {
    match fs.removexattr(cx, ino, CAPABILITY) {
        Ok(()) => Ok(true),
        // A file system that keeps no extended attributes has none either.
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes the capabilities of a regular file whose content or owner changes, and with `set_ids` also
/// its set-user-ID and set-group-ID bits; `in_group` says whether the caller is in a group. Returns
/// whether anything of its attributes changed.
pub(crate) fn drop_privileges(
    fs: &mut impl FileSystem,
    plain: &mut Plain,
    cx: &Context,
    ino: Ino,
    set_ids: bool,
    in_group: impl FnOnce(&atoll_vfs::Attr) -> bool,
) -> Result<bool> {
    if plain.contains(ino) {
        return Ok(false);
    }
    let bare = plain.was_bare(ino, cx.now);
    if bare && !set_ids {
        return Ok(false);
    }
    let attr = fs.getattr(cx, ino)?;
    if attr.file_type() != FileType::Regular {
        return Ok(false);
    }
    let mut changed = false;
    if !bare {
        changed = drop_capabilities(fs, cx, ino)?;
        plain.note_bare(ino, cx.now);
    }
    let mut mode = attr.mode & 0o7777;
    if set_ids && mode & (SET_UID | SET_GID) != 0 {
        let dropped = without_set_ids(mode, in_group(&attr));
        if dropped != mode {
            fs.setattr(cx, ino, None, &SetAttr { mode: Some(dropped), ..SetAttr::default() })?;
            (mode, changed) = (dropped, true);
        }
    }
    if mode & (SET_UID | SET_GID) == 0 {
        plain.insert(ino);
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{Name, XattrFlags};

    use super::*;

    fn at(nsec: u32) -> Context {
        Context { uid: 1000, gid: 1000, now: Timespec { sec: 5, nsec } }
    }

    /// What others give a file: set-ID bits are taken by the next write, capabilities by one that
    /// comes a moment later.
    #[test]
    fn files_that_others_change_are_looked_at_again() {
        let (mut fs, mut plain) = (ModelFs::default(), Plain::unknown());
        let name = Name::new(b"f").unwrap();
        let ino = fs.mknod(&at(0), Ino::ROOT, name, 0o100_755, 0).unwrap().ino;
        let mut drops = |fs: &mut ModelFs, nsec| {
            drop_privileges(fs, &mut plain, &at(nsec), ino, true, |_| true).unwrap()
        };
        assert!(!drops(&mut fs, 0));
        fs.setxattr(&at(0), ino, CAPABILITY, b"c", XattrFlags::empty()).unwrap();
        let set = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
        fs.setattr(&at(0), ino, None, &set).unwrap();
        assert!(drops(&mut fs, 50_000_000));
        assert_eq!(fs.getattr(&at(0), ino).unwrap().mode & 0o7777, 0o755);
        fs.getxattr(&at(0), ino, CAPABILITY, &mut Vec::new()).expect("not yet");
        assert!(drops(&mut fs, 100_000_000));
        let gone = fs.getxattr(&at(0), ino, CAPABILITY, &mut Vec::new());
        assert_eq!(gone, Err(Errno::ENODATA));
        // A clock that was set back says nothing.
        fs.setxattr(&at(0), ino, CAPABILITY, b"c", XattrFlags::empty()).unwrap();
        assert!(drops(&mut fs, 99_999_999));
    }
}
