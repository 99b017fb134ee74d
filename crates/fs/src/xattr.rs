//! Extended attributes and symbolic link targets: values cut into pieces that fit in a node.

use alloc::vec::Vec;

use atoll_block::Addressable;
use atoll_vfs::{Errno, Ino, XATTR_LIST_MAX, XATTR_SIZE_MAX, XattrFlags};

use crate::error::{Corruption, Result};
use crate::hash::xattr_offset;
use crate::key::{Key, Kind, XATTR_PIECES, XATTR_TIES};
use crate::layout::{get32, node, put32, xattr};
use crate::store::Store;
use crate::tree::ItemPlace;

/// The first piece of an attribute, parsed.
pub struct FirstPiece<'a> {
    /// The length of the attribute's value over all pieces.
    pub value_len: usize,
    /// Its name.
    pub name: &'a [u8],
    /// The first bytes of its value.
    pub value: &'a [u8],
}

/// Reads and checks the first piece of an attribute.
///
/// # Errors
/// [`Corruption::Item`].
pub fn parse_first(b: &[u8]) -> Result<FirstPiece<'_>> {
    if b.len() < xattr::NAME {
        return Err(Corruption::Item.into());
    }
    let value_len = get32(b, xattr::VALUE_LEN) as usize;
    let name_len = b[xattr::NAME_LEN] as usize;
    if name_len == 0 || xattr::NAME + name_len > b.len() || value_len > XATTR_SIZE_MAX {
        return Err(Corruption::Item.into());
    }
    let (name, value) = b[xattr::NAME..].split_at(name_len);
    Ok(FirstPiece { value_len, name, value })
}

impl<M: Addressable> Store<M> {
    /// Calls `visit` for the first piece of each attribute from `offset` on while it returns true.
    fn for_attributes(
        &mut self,
        ino: Ino,
        from: u64,
        mut visit: impl FnMut(Key, &[u8], usize) -> Result<bool>,
    ) -> Result<()> {
        let mut key = Key::new(ino.0, Kind::Xattr, from);
        while let Some(place) = self.seek(key)? {
            if !place.key.is(ino.0, Kind::Xattr) {
                break;
            }
            if place.key.offset() % XATTR_PIECES == 0 {
                let first = parse_first(self.value(&place))?;
                if !visit(place.key, first.name, first.value_len)? {
                    break;
                }
            }
            key = place.key.next();
        }
        Ok(())
    }

    /// The first piece of the attribute `name`, or else a free offset for it.
    fn find_attribute(
        &mut self,
        ino: Ino,
        name: &[u8],
    ) -> Result<core::result::Result<ItemPlace, Option<u64>>> {
        let base = xattr_offset(&self.superblock.hash_key, name);
        let mut free = None;
        for tie in 0..XATTR_TIES {
            let offset = base + tie * XATTR_PIECES;
            let Some(place) = self.find(Key::new(ino.0, Kind::Xattr, offset))? else {
                // A removal may leave a gap among ties: look on, up to the end of the run.
                free = free.or(Some(offset));
                let next = self.seek(Key::new(ino.0, Kind::Xattr, offset))?;
                let last = base + XATTR_TIES * XATTR_PIECES;
                match next {
                    Some(p) if p.key.is(ino.0, Kind::Xattr) && p.key.offset() < last => continue,
                    _ => break,
                }
            };
            if parse_first(self.value(&place))?.name == name {
                return Ok(Ok(place));
            }
        }
        Ok(Err(free))
    }

    /// Removes the pieces of an attribute from `first` on, all of which are before the offset
    /// `end`.
    fn remove_pieces(&mut self, project: u32, ino: Ino, first: u64, end: u64) -> Result<()> {
        let key = Key::new(ino.0, Kind::Xattr, first);
        while let Some(place) = self.seek(key)? {
            if !place.key.is(ino.0, Kind::Xattr) || place.key.offset() >= end {
                break;
            }
            self.discharge_item(project, self.value(&place).len());
            self.remove_next(place.key)?;
        }
        self.mend_at(key)
    }

    /// Stores a piece, in place of an old one of any length if `replaces`.
    fn put_piece(&mut self, project: u32, key: Key, bytes: &[u8], replaces: bool) -> Result<()> {
        if replaces && let Some(place) = self.find(key)? {
            if self.value(&place).len() == bytes.len() {
                self.update(&place, 0, bytes);
                return Ok(());
            }
            self.discharge_item(project, self.value(&place).len());
            self.remove_next(key)?;
        }
        self.charge_item(project, bytes.len());
        if key.offset().is_multiple_of(XATTR_PIECES) {
            self.insert(key, bytes)
        } else {
            self.insert_next(key, bytes)
        }
    }

    /// Sets an attribute of an inode of `project` within a transaction.
    pub fn set_attribute(
        &mut self,
        project: u32,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let found = self.find_attribute(ino, name)?;
        let replaces = found.is_ok();
        let offset = match found {
            Ok(_) if flags.contains(XattrFlags::CREATE) => return Err(Errno::EEXIST.into()),
            Err(_) if flags.contains(XattrFlags::REPLACE) => return Err(Errno::ENODATA.into()),
            Ok(place) => place.key.offset(),
            Err(free) => {
                let mut total = name.len() + 1;
                self.for_attributes(ino, 0, |_, name, _| {
                    total += name.len() + 1;
                    Ok(true)
                })?;
                match free {
                    Some(offset) if total <= XATTR_LIST_MAX => offset,
                    _ => return Err(Errno::ENOSPC.into()),
                }
            }
        };
        let mut b = [0; node::VALUE_MAX];
        put32(&mut b, xattr::VALUE_LEN, value.len() as u32);
        b[xattr::NAME_LEN] = name.len() as u8;
        let head = xattr::NAME + name.len();
        b[xattr::NAME..head].copy_from_slice(name);
        let first = value.len().min(node::VALUE_MAX - head);
        b[head..head + first].copy_from_slice(&value[..first]);
        let key = |piece| Key::new(ino.0, Kind::Xattr, offset + piece);
        self.put_piece(project, key(0), &b[..head + first], replaces)?;
        let mut next = 1;
        for bytes in value[first..].chunks(node::VALUE_MAX) {
            self.put_piece(project, key(next), bytes, replaces)?;
            next += 1;
        }
        if replaces {
            self.remove_pieces(project, ino, offset + next, offset + XATTR_PIECES)?;
        }
        Ok(())
    }

    /// Appends the value of an attribute to `value`.
    pub fn get_attribute(&mut self, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        let Ok(place) = self.find_attribute(ino, name)? else {
            return Err(Errno::ENODATA.into());
        };
        let first = parse_first(self.value(&place))?;
        let total = first.value_len;
        let before = value.len();
        value.extend_from_slice(first.value);
        let mut key = place.key;
        while value.len() - before < total {
            key = key.next();
            let place = self.find(key)?.ok_or(Corruption::Item)?;
            let piece = self.value(&place);
            if piece.is_empty() {
                return Err(Corruption::Item.into());
            }
            value.extend_from_slice(piece);
        }
        if value.len() - before != total {
            return Err(Corruption::Item.into());
        }
        Ok(())
    }

    /// Appends the names of all attributes, each ended by NUL, to `names`.
    pub fn list_attributes(&mut self, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        self.for_attributes(ino, 0, |_, name, _| {
            names.extend_from_slice(name);
            names.push(0);
            Ok(true)
        })
    }

    /// Removes an attribute of an inode of `project` within a transaction.
    pub fn remove_attribute(&mut self, project: u32, ino: Ino, name: &[u8]) -> Result<()> {
        match self.find_attribute(ino, name)? {
            Ok(place) => {
                let first = place.key.offset();
                self.remove_pieces(project, ino, first, first + XATTR_PIECES)
            }
            Err(_) => Err(Errno::ENODATA.into()),
        }
    }

    /// Stores the target of a symbolic link of `project`.
    pub fn insert_target(&mut self, project: u32, ino: Ino, target: &[u8]) -> Result<()> {
        for (piece, bytes) in (0..).zip(target.chunks(node::VALUE_MAX)) {
            self.charge_item(project, bytes.len());
            let key = Key::new(ino.0, Kind::Symlink, piece);
            if piece == 0 { self.insert(key, bytes)? } else { self.insert_next(key, bytes)? }
        }
        Ok(())
    }

    /// Appends a symbolic link's target of `len` bytes to `target`.
    pub fn read_target(&mut self, ino: Ino, len: u64, target: &mut Vec<u8>) -> Result<()> {
        let before = target.len();
        for (piece, _) in (0..).zip((0..len).step_by(node::VALUE_MAX)) {
            let place = self.find(Key::new(ino.0, Kind::Symlink, piece))?;
            let place = place.ok_or(Corruption::Item)?;
            target.extend_from_slice(self.value(&place));
            if target.len() - before > atoll_vfs::SYMLINK_MAX {
                return Err(Corruption::Item.into());
            }
        }
        if (target.len() - before) as u64 != len {
            return Err(Corruption::Item.into());
        }
        Ok(())
    }
}
