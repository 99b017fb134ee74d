//! Listings of directories, as much as there is room for.

use alloc::vec::Vec;

use crate::errno::{Errno, Result};
use crate::filesystem::FileSystem;
use crate::types::*;
use crate::wire::directory::{direntplus_size, get_dirent, put_dirent, put_direntplus};

/// Writes the entries from the place that `cookie` names to `room`. Returns the bytes written, 0 at
/// the end of the directory.
///
/// # Errors
/// `EINVAL` when there is no room for a single entry, and those of [`FileSystem::readdir`].
pub(super) fn plain<F: FileSystem + ?Sized>(
    fs: &mut F,
    cx: &Context,
    ino: Ino,
    handle: Handle,
    cookie: u64,
    room: &mut [u8],
) -> Result<usize> {
    let mut at = 0;
    let mut full = false;
    let listed = fs.readdir(cx, ino, handle, cookie, &mut |entry| {
        match put_dirent(entry, room, at) {
            Some(end) => at = end,
            None => full = true,
        }
        !full
    });
    match listed {
        // Entries already listed are answered; the next request will meet the error again.
        Err(error) if at == 0 => Err(error),
        _ if full && at == 0 => Err(Errno::EINVAL),
        _ => Ok(at),
    }
}

/// As [`plain`], from `(directory, handle, cookie)` and with the attributes of each entry but `.`
/// and `..`, which is a lookup that the client forgets and that it may rely on for `valid` seconds.
/// An entry that may not be looked up comes without.
///
/// The names wait in `scratch` meanwhile, never in `room`, which the client may be changing.
pub(super) fn with_attributes<F: FileSystem + ?Sized>(
    fs: &mut F,
    cx: &Context,
    from: (Ino, Handle, u64),
    (valid, btime): (u64, bool),
    scratch: &mut Vec<u8>,
    room: &mut [u8],
) -> Result<usize> {
    let (ino, handle, cookie) = from;
    scratch.clear();
    scratch.resize(room.len(), 0);
    let (mut at, mut size) = (0, 0);
    let mut full = false;
    let listed = fs.readdir(cx, ino, handle, cookie, &mut |entry| {
        let more = direntplus_size(entry.name.len(), btime);
        if size + more > room.len() {
            full = true;
            return false;
        }
        match put_dirent(entry, scratch, at) {
            Some(end) => (at, size) = (end, size + more),
            None => full = true,
        }
        !full
    });
    match listed {
        Err(error) if at == 0 => return Err(error),
        _ if full && at == 0 => return Err(Errno::EINVAL),
        _ => {}
    }
    let mut names = &scratch[..at];
    let mut done = 0;
    while let Some((entry, rest)) = get_dirent(names) {
        names = rest;
        let attr = match Name::new(entry.name) {
            Ok(name) if !name.is_dot_or_dot_dot() => fs.lookup(cx, ino, name).ok(),
            _ => None,
        };
        let Some(end) = put_direntplus(&entry, attr.as_ref(), valid, btime, room, done) else {
            break;
        };
        done = end;
    }
    Ok(done)
}
