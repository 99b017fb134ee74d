//! The privileges that a change of a file's content or owner takes from it: set-ID bits and
//! capabilities.

use std::collections::HashSet;

use atoll_vfs::{Context, Errno, FileSystem, FileType, Ino, Result, SetAttr};

/// The attribute that holds a file's capabilities.
const CAPABILITY: &[u8] = b"security.capability";
/// The set-user-ID bit.
const SET_UID: u32 = 0o4000;
/// The set-group-ID bit.
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
/// How many files are remembered as plain. Forgetting one costs a look at its next write.
const PLAIN_MAX: usize = 1 << 16;

/// Regular files known to have neither set-ID bits nor capabilities: a write need not look.
#[derive(Default)]
pub(crate) struct Plain {
    files: HashSet<Ino>,
    /// The one of them that was asked for last: to find it in the set takes 200 instructions.
    latest: Option<Ino>,
    /// Others change modes and attributes too: no file is known.
    unknown: bool,
}

impl Plain {
    /// Forgets `ino`, which is given a mode or an attribute, or is gone.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.files.remove(&ino);
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
    let attr = fs.getattr(cx, ino)?;
    if attr.file_type() != FileType::Regular {
        return Ok(false);
    }
    let mut changed = drop_capabilities(fs, cx, ino)?;
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
