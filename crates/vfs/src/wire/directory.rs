//! Entries of listings.

use super::attributes::{EntryOut, Terms, Time};
use super::fixed::{Fixed, fixed};
use crate::types::{Attr, DirEntry, FileType, Ino, NAME_MAX};

fixed! {
    /// The front of an entry. The name follows, and zeros up to a multiple of eight bytes.
    Dirent = "fuse_dirent" 24 {
        ino: u64,
        off: u64,
        namelen: u32,
        kind: u32,
    }
}

/// The longest entry of READDIR, in bytes.
pub const DIRENT_MAX: usize = (Dirent::SIZE + NAME_MAX).next_multiple_of(8);

/// Writes `entry` to `out` from `at`, if it fits. Returns where it ends.
#[inline]
pub fn put_dirent(entry: &DirEntry<'_>, out: &mut [u8], at: usize) -> Option<usize> {
    let len = Dirent::SIZE + entry.name.len();
    let out = out.get_mut(at..at.checked_add(len.next_multiple_of(8))?)?;
    let (front, rest) = out.split_at_mut(Dirent::SIZE);
    Dirent {
        ino: entry.ino.0,
        off: entry.cookie,
        namelen: entry.name.len() as u32,
        kind: entry.file_type.dirent_type().into(),
    }
    .store(front);
    let (name, padding) = rest.split_at_mut(entry.name.len());
    name.copy_from_slice(entry.name);
    padding.fill(0);
    Some(at + out.len())
}

/// Writes `entry` with its attributes, if they are known, to `out` from `at`, if that fits: they
/// may be relied on as `terms` say. With `btime`, the time of creation follows the attributes.
/// Returns where it ends.
pub fn put_direntplus(
    entry: &DirEntry<'_>,
    attr: Option<&Attr>,
    terms: Terms,
    btime: bool,
    out: &mut [u8],
    at: usize,
) -> Option<usize> {
    let front = EntryOut::SIZE + if btime { Time::SIZE } else { 0 };
    let end = put_dirent(entry, out, at.checked_add(front)?)?;
    // Inode 0 says that nothing is known, and counts as no lookup.
    let known = attr.map_or(EntryOut::default(), |attr| EntryOut::new(attr, terms));
    known.store(&mut out[at..]);
    if btime {
        Time::from(attr.map_or_else(Default::default, |attr| attr.btime))
            .store(&mut out[at + EntryOut::SIZE..]);
    }
    Some(end)
}

/// How long [`put_direntplus`] makes an entry whose name has `name` bytes.
pub const fn direntplus_size(name: usize, btime: bool) -> usize {
    let front = EntryOut::SIZE + if btime { Time::SIZE } else { 0 };
    front + (Dirent::SIZE + name).next_multiple_of(8)
}

/// The entry at the front of `bytes` and what follows it, or `None` if it is none: cut off, a name
/// that is empty or longer than [`NAME_MAX`] or has `/` or NUL in it, no inode. A type that is not
/// known is taken for a regular file, as `stat` would have to say what it is.
#[inline]
pub fn get_dirent(bytes: &[u8]) -> Option<(DirEntry<'_>, &[u8])> {
    let (front, rest) = Dirent::get(bytes)?;
    let len = front.namelen as usize;
    if len == 0 || len > NAME_MAX || front.ino == 0 {
        return None;
    }
    let name = rest.get(..len)?;
    if name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return None;
    }
    // The last one need not be filled up.
    let end = ((Dirent::SIZE + len).next_multiple_of(8) - Dirent::SIZE).min(rest.len());
    let file_type = u8::try_from(front.kind)
        .ok()
        .and_then(FileType::from_dirent_type)
        .unwrap_or(FileType::Regular);
    let entry = DirEntry { ino: Ino(front.ino), file_type, cookie: front.off, name };
    Some((entry, &rest[end..]))
}
