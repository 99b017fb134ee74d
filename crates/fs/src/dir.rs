//! Directory entries.

use atoll_block::Addressable;
use atoll_vfs::{Errno, FileType, Ino};

use crate::error::{Corruption, Result};
use crate::hash::dirent_offset;
use crate::key::{DIRENT_TIES, Key, Kind};
use crate::layout::{dirent, get64, put64};
use crate::store::Store;

/// A directory entry found.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its key.
    pub key: Key,
    /// The inode that it names.
    pub ino: Ino,
    /// The inode's type.
    pub file_type: FileType,
}

/// The result of the search for a name.
#[derive(Clone, Copy, Debug)]
pub enum Search {
    /// The name is there.
    Found(Entry),
    /// It is not, and would get this key.
    Free(Key),
    /// It is not, and too many names of the directory have the same hash for it to be made.
    Full,
}

/// Reads and checks a directory entry's value: inode, type, name.
///
/// # Errors
/// [`Corruption::Item`].
#[inline]
pub fn parse(value: &[u8]) -> Result<(Ino, FileType, &[u8])> {
    if value.len() <= dirent::NAME || value.len() > dirent::NAME + atoll_vfs::NAME_MAX {
        return Err(Corruption::Item.into());
    }
    let ino = get64(value, dirent::INO);
    match FileType::from_dirent_type(value[dirent::TYPE]) {
        Some(file_type) if ino != 0 => Ok((Ino(ino), file_type, &value[dirent::NAME..])),
        _ => Err(Corruption::Item.into()),
    }
}

impl<M: Addressable> Store<M> {
    /// Finds the entry `name` of directory `dir`, or else the key that it would get.
    #[inline]
    pub fn search_entry(&mut self, dir: Ino, name: &[u8]) -> Result<Search> {
        let base = dirent_offset(&self.superblock.hash_key, name);
        let mut free = None;
        let mut offset = base;
        while offset < base + DIRENT_TIES {
            let key = Key::new(dir.0, Kind::Dirent, offset);
            let found = self
                .seek(key)?
                .filter(|p| p.key.is(dir.0, Kind::Dirent) && p.key.offset() < base + DIRENT_TIES);
            let Some(place) = found else {
                return Ok(Search::Free(free.unwrap_or(key)));
            };
            if place.key != key {
                free = free.or(Some(key));
            }
            let (ino, file_type, found) = parse(self.value(&place))?;
            if found == name {
                return Ok(Search::Found(Entry { key: place.key, ino, file_type }));
            }
            offset = place.key.offset() + 1;
        }
        Ok(free.map_or(Search::Full, Search::Free))
    }

    /// Finds the entry `name` of directory `dir`.
    #[inline]
    pub fn find_entry(&mut self, dir: Ino, name: &[u8]) -> Result<Option<Entry>> {
        Ok(match self.search_entry(dir, name)? {
            Search::Found(entry) => Some(entry),
            Search::Free(_) | Search::Full => None,
        })
    }

    /// The key for a new entry `name` of directory `dir`.
    ///
    /// # Errors
    /// `EEXIST`; `ENOSPC` if too many names of the directory have the same hash.
    #[inline]
    pub fn new_entry(&mut self, dir: Ino, name: &[u8]) -> Result<Key> {
        match self.search_entry(dir, name)? {
            Search::Found(_) => Err(Errno::EEXIST.into()),
            Search::Free(key) => Ok(key),
            Search::Full => Err(Errno::ENOSPC.into()),
        }
    }

    /// Adds an entry under the key that [`new_entry`](Self::new_entry) gave for its name, to a
    /// directory of `project`.
    pub fn insert_entry(
        &mut self,
        project: u32,
        key: Key,
        name: &[u8],
        ino: Ino,
        file_type: FileType,
    ) -> Result<()> {
        self.charge_item(project, dirent::NAME + name.len());
        let mut value = [0; dirent::NAME + atoll_vfs::NAME_MAX];
        put64(&mut value, dirent::INO, ino.0);
        value[dirent::TYPE] = file_type.dirent_type();
        value[dirent::NAME..dirent::NAME + name.len()].copy_from_slice(name);
        self.insert(key, &value[..dirent::NAME + name.len()])
    }

    /// Removes the entry `name` from a directory of `project`.
    pub fn remove_entry(&mut self, project: u32, key: Key, name: &[u8]) -> Result<()> {
        self.discharge_item(project, dirent::NAME + name.len());
        self.remove(key)
    }

    /// Makes an entry name another inode.
    pub fn replace_entry(&mut self, key: Key, ino: Ino, file_type: FileType) -> Result<()> {
        let place = self.find(key)?.ok_or(Corruption::Item)?;
        let mut value = [0; dirent::NAME];
        put64(&mut value, dirent::INO, ino.0);
        value[dirent::TYPE] = file_type.dirent_type();
        self.update(&place, 0, &value);
        Ok(())
    }

    /// Whether a directory has no entries.
    pub fn is_empty_directory(&mut self, dir: Ino) -> Result<bool> {
        let first = self.seek(Key::new(dir.0, Kind::Dirent, 0))?;
        Ok(!first.is_some_and(|p| p.key.is(dir.0, Kind::Dirent)))
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use atoll_block::RamDevice;
    use atoll_vfs::{
        Context, Errno, FileSystem, FileType, Ino, Name, OpenFlags, RenameFlags, Result, Timespec,
    };

    use crate::hash::dirent_offset;
    use crate::key::{DIRENT_TIES, Key, Kind};
    use crate::{FormatOptions, Fs, MountOptions, format};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    /// A volume with a file `here`, in whose root all but `left` of the places are taken at which
    /// `victim` could stand: only with the key could a client make such names.
    fn crowded(left: u64) -> Fs<RamDevice> {
        let mut device = RamDevice::new(1 << 10);
        format(&mut device, &FormatOptions { hash_key: [5; 16], ..Default::default() }).unwrap();
        let mut fs = Fs::mount(device, &MountOptions::default()).unwrap();
        let file = fs.mknod(&CX, Ino::ROOT, name("here"), 0o100_644, 0).unwrap().ino;
        let base = dirent_offset(&fs.store.superblock.hash_key, b"victim");
        fs.store
            .transact(false, |store| {
                for tie in left..DIRENT_TIES {
                    let key = Key::new(Ino::ROOT.0, Kind::Dirent, base + tie);
                    let text = format!("another{tie}");
                    store.insert_entry(0, key, text.as_bytes(), file, FileType::Regular)?;
                }
                Ok(())
            })
            .unwrap();
        fs
    }

    /// Every verb with a name. Returns those that refused it, each with its error.
    fn all_verbs(fs: &mut Fs<RamDevice>) -> std::vec::Vec<(&'static str, Errno)> {
        let (root, victim, here) = (Ino::ROOT, name("victim"), name("here"));
        let file = fs.lookup(&CX, root, here).unwrap().ino;
        let none = RenameFlags::empty();
        let answers: [(&'static str, Result<()>); 12] = [
            ("lookup", fs.lookup(&CX, root, victim).map(drop)),
            ("unlink", fs.unlink(&CX, root, victim)),
            ("rmdir", fs.rmdir(&CX, root, victim)),
            ("rename from", fs.rename(&CX, root, victim, root, name("new"), none)),
            ("exchange", fs.rename(&CX, root, here, root, victim, RenameFlags::EXCHANGE)),
            ("rename to", fs.rename(&CX, root, here, root, victim, none)),
            ("link", fs.link(&CX, file, root, victim).map(drop)),
            ("create", fs.create(&CX, root, victim, 0o644, OpenFlags::WRITE).map(drop)),
            ("mknod", fs.mknod(&CX, root, victim, 0o100_644, 0).map(drop)),
            ("mkdir", fs.mkdir(&CX, root, victim, 0o755).map(drop)),
            ("symlink", fs.symlink(&CX, root, victim, b"target").map(drop)),
            ("lookup of another", fs.lookup(&CX, root, name("here")).map(drop)),
        ];
        answers.into_iter().filter_map(|(verb, answer)| Some((verb, answer.err()?))).collect()
    }

    #[test]
    fn only_making_a_name_fails_for_want_of_a_place() {
        let (absent, full) = (Errno::ENOENT, Errno::ENOSPC);
        let expected = [
            ("lookup", absent),
            ("unlink", absent),
            ("rmdir", absent),
            ("rename from", absent),
            ("exchange", absent),
            ("rename to", full),
            ("link", full),
            ("create", full),
            ("mknod", full),
            ("mkdir", full),
            ("symlink", full),
        ];
        assert_eq!(all_verbs(&mut crowded(0)), expected);
    }

    #[test]
    fn a_name_takes_the_last_place_and_is_found_there() {
        for left in [1, 2, DIRENT_TIES] {
            let mut fs = crowded(left);
            let made = fs.mkdir(&CX, Ino::ROOT, name("victim"), 0o755).unwrap();
            assert_eq!(fs.lookup(&CX, Ino::ROOT, name("victim")).unwrap().ino, made.ino);
            fs.rmdir(&CX, Ino::ROOT, name("victim")).unwrap();
            assert_eq!(fs.lookup(&CX, Ino::ROOT, name("victim")), Err(Errno::ENOENT));
        }
    }
}
