//! Listings of directories, as much as there is room for.

use alloc::vec::Vec;

use crate::errno::{Errno, Result};
use crate::filesystem::FileSystem;
use crate::types::*;
use crate::wire::attributes::Terms;
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
/// and `..`, which is a lookup that the client forgets and that it may rely on as `terms` say.
/// An entry that may not be looked up comes without.
///
/// The names wait in `scratch` meanwhile, never in `room`, which the client may be changing.
pub(super) fn with_attributes<F: FileSystem + ?Sized>(
    fs: &mut F,
    cx: &Context,
    from: (Ino, Handle, u64),
    (terms, btime): (Terms, bool),
    scratch: &mut Vec<u8>,
    room: &mut [u8],
) -> Result<usize> {
    let (ino, handle, cookie) = from;
    scratch.clear();
    scratch.resize(room.len(), 0);
    let (mut at, mut size) = (0, 0);
    let mut full = false;
    let listed = fs.readdir_names(cx, ino, handle, cookie, &mut |entry| {
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
    while let Some((mut entry, rest)) = get_dirent(names) {
        names = rest;
        let attr = match Name::new(entry.name) {
            Ok(name) if !name.is_dot_or_dot_dot() => fs.lookup(cx, ino, name).ok(),
            _ => None,
        };
        // What was listed may have been replaced, and its number and type need not be right.
        if let Some(attr) = &attr {
            (entry.ino, entry.file_type) = (attr.ino, attr.file_type());
        }
        let Some(end) = put_direntplus(&entry, attr.as_ref(), terms, btime, room, done) else {
            break;
        };
        done = end;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelFs;
    use crate::wire::Fixed;
    use crate::wire::attributes::EntryOut;

    /// One whose names come with the numbers of others.
    struct Misnumbered(ModelFs);

    macro_rules! inner {
        ($self:ident $verb:ident ($($arg:ident),*)) => { $self.0.$verb($($arg),*) };
    }

    impl FileSystem for Misnumbered {
        crate::verbs!(inner: lookup getattr setattr readlink mknod mkdir symlink unlink rmdir rename
            link open create tmpfile read write fallocate seek fsync release opendir readdir
            releasedir fsyncdir syncfs statfs setxattr getxattr listxattr removexattr forget);

        fn readdir_names(
            &mut self,
            cx: &Context,
            ino: Ino,
            handle: Handle,
            cookie: u64,
            emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
        ) -> Result<()> {
            self.0.readdir(cx, ino, handle, cookie, &mut |entry| {
                emit(&DirEntry { ino: Ino(12345), ..*entry })
            })
        }
    }

    #[test]
    fn an_entry_has_the_number_of_what_was_looked_up() {
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let mut fs = Misnumbered(ModelFs::new(0o755, cx.now));
        for name in [b"a", b"b", b"c"] {
            fs.mkdir(&cx, Ino::ROOT, Name::new(name).unwrap(), 0o700).unwrap();
        }
        let handle = fs.opendir(&cx, Ino::ROOT).unwrap();
        let mut room = alloc::vec![0; 4096];
        let from = (Ino::ROOT, handle, 0);
        let mut scratch = Vec::new();
        let len =
            with_attributes(&mut fs, &cx, from, (Terms::default(), false), &mut scratch, &mut room)
                .unwrap();
        let (mut at, mut found) = (0, 0);
        while at < len {
            let front = EntryOut::load(&room[at..]);
            let (entry, rest) = get_dirent(&room[at + EntryOut::SIZE..len]).unwrap();
            if entry.name.len() == 1 && entry.name != b"." {
                assert_eq!(entry.ino.0, front.nodeid);
                found += 1;
            }
            at = len - rest.len();
        }
        assert_eq!(found, 3);
    }
}
