//! Directory entries.

use atoll_block::Memory;
use atoll_vfs::{Errno, FileType, Ino};

use crate::error::{Corruption, Result};
use crate::key::{DIRENT_TIES, Key, Kind, dirent_offset};
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

/// Reads and checks a directory entry's value: inode, type, name.
///
/// # Errors
/// [`Corruption::Item`].
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

impl<M: Memory> Store<M> {
    /// Finds the entry `name` of directory `dir`, or else the key that it would get.
    ///
    /// # Errors
    /// `ENOSPC` if too many names of the directory have the same hash.
    #[inline]
    pub fn search_entry(
        &mut self,
        dir: Ino,
        name: &[u8],
    ) -> Result<core::result::Result<Entry, Key>> {
        let base = dirent_offset(self.superblock.hash_seed(), name);
        let mut free = None;
        let mut offset = base;
        while offset < base + DIRENT_TIES {
            let key = Key::new(dir.0, Kind::Dirent, offset);
            let found = self
                .seek(key)?
                .filter(|p| p.key.is(dir.0, Kind::Dirent) && p.key.offset() < base + DIRENT_TIES);
            let Some(place) = found else {
                return Ok(Err(free.unwrap_or(key)));
            };
            if place.key != key {
                free = free.or(Some(key));
            }
            let (ino, file_type, found) = parse(self.value(&place))?;
            if found == name {
                return Ok(Ok(Entry { key: place.key, ino, file_type }));
            }
            offset = place.key.offset() + 1;
        }
        Ok(Err(free.ok_or(Errno::ENOSPC)?))
    }

    /// Finds the entry `name` of directory `dir`.
    #[inline]
    pub fn find_entry(&mut self, dir: Ino, name: &[u8]) -> Result<Option<Entry>> {
        Ok(self.search_entry(dir, name)?.ok())
    }

    /// Adds an entry under the key that [`search_entry`](Self::search_entry) gave for its name.
    pub fn insert_entry(
        &mut self,
        key: Key,
        name: &[u8],
        ino: Ino,
        file_type: FileType,
    ) -> Result<()> {
        let mut value = [0; dirent::NAME + atoll_vfs::NAME_MAX];
        put64(&mut value, dirent::INO, ino.0);
        value[dirent::TYPE] = file_type.dirent_type();
        value[dirent::NAME..dirent::NAME + name.len()].copy_from_slice(name);
        self.insert(key, &value[..dirent::NAME + name.len()])
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
