//! The extents of a file: which of its blocks are where.

use atoll_block::{Addressable, BLOCK_SIZE};
use atoll_vfs::filesystem::FILE_SIZE_MAX;

use crate::allocation::Goal;
use crate::error::{Corruption, Result};
use crate::file::FREE_BUDGET;
use crate::inode::Extent;
use crate::key::{Key, Kind, OFFSET_MAX};
use crate::layout::{Superblock, extent, get32, get64, put32, put64};
use crate::store::Store;
use crate::table::Inode;
use crate::tree::ItemPlace;

/// The extent or hole that a file has at some block.
#[derive(Clone, Copy, Debug)]
pub enum Mapping {
    /// An extent that covers the block.
    Mapped(Extent),
    /// Nothing.
    Hole {
        /// The file block at which the hole begins.
        start: u64,
        /// The file block at which the hole ends.
        end: u64,
        /// Where a block for it had best be.
        goal: Goal,
    },
}

/// The extents next to a file block.
struct Around {
    /// The one that covers or precedes it, and where.
    before: Option<(ItemPlace, Extent)>,
    /// The first after it.
    after: Option<Extent>,
}

impl Around {
    /// Where a block in a hole of the file had best be: where it continues the blocks before it, or
    /// leads up to those after. A file that is written in any order then ends up in one piece.
    fn goal(&self, file_block: u64) -> Goal {
        /// Room that is left before the block of a file that is written first.
        const AHEAD_MAX: u64 = 2048;
        match (&self.before, &self.after) {
            (Some((_, e)), _) => Goal::At(e.start.saturating_add(file_block - e.file_block)),
            (None, Some(e)) => Goal::At(e.start.saturating_sub(e.file_block - file_block)),
            (None, None) if file_block <= AHEAD_MAX => Goal::Ahead(file_block),
            (None, None) => Goal::Anywhere,
        }
    }
}

/// The end of the largest file, in blocks.
const FILE_BLOCKS_MAX: u64 = FILE_SIZE_MAX.div_ceil(BLOCK_SIZE as u64);

impl Extent {
    /// Reads and checks the extent of a file at `file_block`.
    ///
    /// # Errors
    /// [`Corruption::Item`].
    pub fn parse(file_block: u64, b: &[u8], superblock: &Superblock) -> Result<Extent> {
        if b.len() != extent::VALUE_LEN {
            return Err(Corruption::Item.into());
        }
        let start = get64(b, extent::START);
        let found = Extent {
            file_block,
            start: start & !extent::UNWRITTEN,
            len: u64::from(get32(b, extent::LEN)),
            unwritten: start & extent::UNWRITTEN != 0,
        };
        if found.len == 0
            || !superblock.holds_data(found.start, found.len)
            || found.end() > FILE_BLOCKS_MAX
        {
            return Err(Corruption::Item.into());
        }
        Ok(found)
    }

    /// The value of the extent's item.
    pub fn emit(&self) -> [u8; extent::VALUE_LEN] {
        let mut b = [0; extent::VALUE_LEN];
        let flag = if self.unwritten { extent::UNWRITTEN } else { 0 };
        put64(&mut b, extent::START, self.start | flag);
        put32(&mut b, extent::LEN, self.len as u32);
        b
    }

    fn key(&self, ino: u64) -> Key {
        Key::new(ino, Kind::Extent, self.file_block)
    }

    /// Whether `next` continues this extent in the file and on the device.
    fn joins(&self, next: &Extent) -> bool {
        self.end() == next.file_block
            && self.start + self.len == next.start
            && self.unwritten == next.unwritten
            && self.len + next.len <= u64::from(u32::MAX)
    }

    /// The part of the extent within file blocks `from..to`, if there is one.
    pub fn clip(&self, from: u64, to: u64) -> Option<Extent> {
        let first = self.file_block.max(from);
        let end = self.end().min(to);
        (first < end).then(|| Extent {
            file_block: first,
            start: self.start + (first - self.file_block),
            len: end - first,
            unwritten: self.unwritten,
        })
    }
}

impl<M: Addressable> Store<M> {
    /// Reads and checks the extent at `place`.
    ///
    /// # Errors
    /// [`Corruption::Item`].
    pub fn parse_extent(&self, place: &ItemPlace) -> Result<Extent> {
        Extent::parse(place.key.offset(), self.value(place), &self.superblock)
    }

    /// The extent that covers or precedes `file_block`.
    fn extent_before(&mut self, ino: u64, file_block: u64) -> Result<Option<Extent>> {
        match self.seek_back(Key::new(ino, Kind::Extent, file_block))? {
            Some(place) if place.key.is(ino, Kind::Extent) => {
                let e = self.parse_extent(&place)?;
                // In a damaged tree keys need not be in order.
                if e.file_block > file_block {
                    return Err(Corruption::Item.into());
                }
                Ok(Some(e))
            }
            _ => Ok(None),
        }
    }

    /// The extents around `file_block`, found on one way down the tree.
    fn around(&mut self, ino: u64, file_block: u64) -> Result<Around> {
        let key = Key::new(ino, Kind::Extent, file_block);
        let (id, slot) = self.descend(key)?;
        let upper = self.fingers.path(key).upper;
        let keys = self.cache.frame(id).keys();
        let exact = keys.get(slot) == Some(&key);
        let next = slot + usize::from(exact);
        let place = |slot: usize| ItemPlace { key: keys[slot], frame: id, slot };
        let after = keys.get(next).map(|_| place(next));
        let before = next.checked_sub(1).map(place);
        // A neighbour that is not in this leaf may be in the one before or after it.
        let before = match before {
            Some(place) => Some(place),
            None => self.last_before(key)?,
        };
        let after = match (after, upper) {
            (Some(place), _) => Some(place),
            (None, Some(upper)) if upper.is(ino, Kind::Extent) => self.seek(upper)?,
            _ => None,
        };
        let is_extent = |p: &ItemPlace| p.key.is(ino, Kind::Extent);
        let before = match before.filter(is_extent) {
            // Leaves out of order in a damaged tree.
            Some(place) if place.key > key => return Err(Corruption::Node.into()),
            Some(place) => Some((place, self.parse_extent(&place)?)),
            None => None,
        };
        let after = match after.filter(is_extent) {
            Some(place) => Some(self.parse_extent(&place)?),
            None => None,
        };
        Ok(Around { before, after })
    }

    /// The extent or hole that the file has at `file_block`.
    #[inline]
    pub fn mapping(&mut self, inode: &mut Inode, file_block: u64) -> Result<Mapping> {
        if let Some(e) = inode.extent
            && e.file_block <= file_block
            && file_block < e.end()
        {
            return Ok(Mapping::Mapped(e));
        }
        let around = self.around(inode.ino.0, file_block)?;
        if let Some((_, e)) = around.before
            && file_block < e.end()
        {
            inode.extent = Some(e);
            return Ok(Mapping::Mapped(e));
        }
        Ok(Mapping::Hole {
            start: around.before.map_or(0, |(_, e)| e.end()),
            end: around.after.map_or(OFFSET_MAX, |e| e.file_block),
            goal: around.goal(file_block),
        })
    }

    /// Adds an extent where the file has a hole, joined to its neighbours if it continues them.
    pub fn insert_extent(&mut self, inode: &mut Inode, new: Extent) -> Result<()> {
        let ino = inode.ino.0;
        let around = self.around(ino, new.file_block)?;
        let after = around.after.filter(|next| new.joins(next));
        let before = around.before.filter(|(_, e)| e.joins(&new));
        let mut joined = new;
        if let Some(next) = after {
            joined.len += next.len;
            self.remove(next.key(ino))?;
        }
        if let Some((place, e)) = before {
            joined = Extent { len: e.len + joined.len, ..e };
            // The removal may have moved the item.
            let place = match after {
                Some(_) => self.find(place.key)?.ok_or(Corruption::Item)?,
                None => place,
            };
            self.update(&place, 0, &joined.emit());
        } else {
            self.insert(joined.key(ino), &joined.emit())?;
        }
        inode.extent = Some(joined);
        Ok(())
    }

    /// Takes the file blocks `from..to` of `whole`, an extent of the file, out of the map. Their
    /// blocks stay allocated.
    fn cut_extent(&mut self, inode: &mut Inode, whole: &Extent, from: u64, to: u64) -> Result<()> {
        let ino = inode.ino.0;
        inode.extent = None;
        match whole.clip(0, from) {
            // The part that is left before the cut keeps its place: making a file shorter takes no
            // block.
            Some(rest) => {
                let place = self.find(rest.key(ino))?.ok_or(Corruption::Item)?;
                self.update(&place, 0, &rest.emit());
            }
            None => self.remove(whole.key(ino))?,
        }
        if let Some(rest) = whole.clip(to, u64::MAX) {
            self.insert(rest.key(ino), &rest.emit())?;
        }
        Ok(())
    }

    /// Marks a part of an extent as unwritten, or as written.
    pub fn set_unwritten(
        &mut self,
        inode: &mut Inode,
        whole: &Extent,
        part: Extent,
        unwritten: bool,
    ) -> Result<()> {
        self.cut_extent(inode, whole, part.file_block, part.end())?;
        self.insert_extent(inode, Extent { unwritten, ..part })
    }

    /// Replaces one block of an extent by another block.
    pub fn move_block(
        &mut self,
        inode: &mut Inode,
        whole: &Extent,
        file_block: u64,
        to: u64,
    ) -> Result<()> {
        self.cut_extent(inode, whole, file_block, file_block + 1)?;
        let old = whole.start + (file_block - whole.file_block);
        self.free(old, 1, false)?;
        self.insert_extent(inode, Extent { file_block, start: to, len: 1, unwritten: false })
    }

    /// Frees blocks of the file within `from..to`, the first first, and no more than one
    /// transaction takes. Returns where to go on.
    pub fn free_blocks(&mut self, inode: &mut Inode, from: u64, to: u64) -> Result<u64> {
        self.over_extents(inode, from, to, |store, inode, whole, part| {
            store.free_part(inode, whole, &part)
        })
    }

    /// Does `step` for the extents of the file within `from..to`, the first first, and for the part
    /// of each that lies there, for no more than one transaction takes. Returns where to go on.
    pub fn over_extents(
        &mut self,
        inode: &mut Inode,
        from: u64,
        to: u64,
        mut step: impl FnMut(&mut Self, &mut Inode, &Extent, Extent) -> Result<()>,
    ) -> Result<u64> {
        let mut at = from;
        for _ in 0..FREE_BUDGET {
            if at >= to || !self.has_room() {
                break;
            }
            at = match self.mapping(inode, at)? {
                Mapping::Mapped(e) => {
                    if let Some(part) = e.clip(at, to) {
                        step(self, inode, &e, part)?;
                    }
                    e.end()
                }
                Mapping::Hole { end, .. } => end,
            };
        }
        Ok(at.min(to))
    }

    /// Frees `part` of an extent of the file.
    fn free_part(&mut self, inode: &mut Inode, whole: &Extent, part: &Extent) -> Result<()> {
        self.cut_extent(inode, whole, part.file_block, part.end())?;
        self.free(part.start, part.len, false)?;
        self.discharge_blocks(inode.record.project, part.len);
        inode.record.blocks = inode.record.blocks.saturating_sub(part.len);
        Ok(())
    }

    /// Frees the blocks of the file within `from..to`, the last first: at most `budget` extents of
    /// them, and no more than one transaction takes. Returns whether all are gone.
    pub fn remove_blocks(
        &mut self,
        inode: &mut Inode,
        from: u64,
        to: u64,
        budget: usize,
    ) -> Result<bool> {
        inode.extent = None;
        let Some(last) = to.checked_sub(1) else { return Ok(true) };
        for _ in 0..budget {
            let Some(e) = self.extent_before(inode.ino.0, last.min(OFFSET_MAX))? else {
                return Ok(true);
            };
            let Some(part) = e.clip(from, to) else {
                return Ok(true);
            };
            self.free_part(inode, &e, &part)?;
            if !self.has_room() {
                break;
            }
        }
        Ok(match self.extent_before(inode.ino.0, last.min(OFFSET_MAX))? {
            Some(e) => e.clip(from, to).is_none(),
            None => true,
        })
    }
}
