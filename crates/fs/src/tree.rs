//! The B+tree: sorted items, found, inserted and removed in logarithmic time.
//!
//! Nodes have no pointers to their siblings; the next leaf is found by descending to the least
//! separator above. The first cell of an inner node covers everything below its key as well.

use atoll_block::Addressable;

use crate::cache::{Frame, FrameId};
use crate::error::{Corruption, Result};
use crate::key::Key;
use crate::layout::{cell, magic, node as layout};
use crate::node::{self, COMPACTION_GAIN, merged_max};
use crate::store::Store;

/// A node with less than this in live cells is merged with a neighbour if both fit in one.
const MERGE_BELOW: usize = layout::CAPACITY / 3;
/// A leaf that was not merged tries again when it has lost about so many bytes more: its neighbours
/// are looked at once for several removals.
const MERGE_STEP: usize = layout::CAPACITY / 16;
/// Bytes of an inode's cells that a split at the right edge moves at most, so that those of a large
/// file fill nodes.
const MOVED_MAX: usize = layout::CAPACITY / 8;

/// The way from the root to a leaf: frame at each level, leaf first, and slot above the leaves.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    steps: [(FrameId, u32); layout::HEIGHT_MAX],
    /// The key that separates the leaf from the one before it.
    lower: Key,
    /// The least key that belongs to the next leaf, if there is one.
    pub upper: Option<Key>,
}

/// The last ways through the tree, one for each of the common kinds of keys. An item that an
/// operation asks for twice, or that the next operation finds beside it, needs no further descent.
#[derive(Debug)]
pub struct Fingers([Finger; 4]);

#[derive(Clone, Copy, Debug)]
struct Finger {
    path: Path,
    /// The cache's shape when the way was found: the way is good as long as that stays.
    shape: u64,
    operation: u64,
}

impl Fingers {
    /// None yet.
    pub fn new() -> Fingers {
        let path = Path { steps: [(0, 0); layout::HEIGHT_MAX], lower: Key::MIN, upper: None };
        Fingers([Finger { path, shape: u64::MAX, operation: 0 }; 4])
    }

    #[inline]
    fn of(&mut self, key: Key) -> &mut Finger {
        &mut self.0[(key.item >> 56) as usize % 4]
    }

    /// The way that the last descent to `key` went, if the tree has not changed since.
    #[inline]
    pub fn path(&mut self, key: Key) -> &Path {
        &self.of(key).path
    }
}

/// The slot at which a full node at the right edge of the tree is split for a cell with `key`.
///
/// The node stays nearly full. The new node begins with the last cell of another inode, so that it
/// is not empty, and stays, when everything of `key`'s inode is removed: a file that is made and
/// removed again and again allocates and frees no node each time.
fn edge_point(frame: &Frame, key: Key) -> usize {
    let count = frame.count();
    let same_inode = frame.lower_bound(Key::inode(key.ino));
    let bytes: usize = (same_inode..count).map(|slot| frame.cell(slot).len()).sum();
    if same_inode > 1 && bytes <= MOVED_MAX { same_inode - 1 } else { count - 1 }
}

/// An item's place, good within the operation until the tree changes.
#[derive(Clone, Copy, Debug)]
pub struct ItemPlace {
    /// Its key.
    pub key: Key,
    /// The leaf.
    pub frame: FrameId,
    /// The slot in the leaf.
    pub slot: usize,
}

impl<M: Addressable> Store<M> {
    /// Goes down to the leaf that has or would have `key`, and to the first slot not below. The way
    /// is in [`Fingers::path`] until the next descent.
    #[inline]
    pub fn descend(&mut self, key: Key) -> Result<(FrameId, usize)> {
        let finger = self.fingers.of(key);
        let wide = key.wide();
        let is_within = finger.shape == self.cache.shape
            && finger.path.lower.wide() <= wide
            && finger.path.upper.is_none_or(|upper| wide < upper.wide());
        if !is_within {
            return self.descend_from_root(key);
        }
        let Path { lower, upper, .. } = finger.path;
        let leaf = finger.path.steps[0].0;
        if finger.operation != self.cache.operation() {
            finger.operation = self.cache.operation();
            for (id, _) in &finger.path.steps[..self.state.height as usize] {
                self.cache.touch(*id);
            }
        }
        Ok((leaf, self.cache.frame(leaf).lower_bound_within(key, lower, upper)))
    }

    fn descend_from_root(&mut self, key: Key) -> Result<(FrameId, usize)> {
        let finger = self.fingers.of(key);
        finger.shape = u64::MAX;
        let (mut lower, mut upper) = (Key::MIN, None);
        let mut block = self.state.root;
        let mut level = self.state.height - 1;
        let mut hint = self.root_hint;
        let mut above = None;
        loop {
            let id = match self.hinted(hint, block, level) {
                Some(id) => id,
                None => {
                    let id = self.node(block, level)?;
                    match above {
                        Some((parent, slot)) => self.cache.frame_mut(parent).set_hint(slot, id),
                        None => self.root_hint = id,
                    }
                    id
                }
            };
            let frame = self.cache.frame(id);
            let path = &mut self.fingers.of(key).path;
            if level == 0 {
                path.steps[0] = (id, 0);
                path.lower = lower;
                path.upper = upper;
                let slot = frame.lower_bound_within(key, lower, upper);
                let finger = self.fingers.of(key);
                finger.shape = self.cache.shape;
                finger.operation = self.cache.operation();
                return Ok((id, slot));
            }
            let slot = frame.child_slot(key);
            if slot > 0 {
                lower = frame.keys()[slot];
            }
            if let Some(&next) = frame.keys().get(slot + 1) {
                upper = Some(next);
            }
            path.steps[level as usize] = (id, slot as u32);
            block = frame.child(slot);
            hint = frame.hint(slot);
            above = Some((id, slot));
            level -= 1;
        }
    }

    /// The item with exactly `key`.
    #[inline]
    pub fn find(&mut self, key: Key) -> Result<Option<ItemPlace>> {
        let (frame, slot) = self.descend(key)?;
        let found = self.cache.frame(frame).keys().get(slot) == Some(&key);
        Ok(found.then_some(ItemPlace { key, frame, slot }))
    }

    /// The first item at or after `key`.
    pub fn seek(&mut self, key: Key) -> Result<Option<ItemPlace>> {
        let mut key = key;
        loop {
            let (frame, slot) = self.descend(key)?;
            if let Some(&found) = self.cache.frame(frame).keys().get(slot) {
                return Ok(Some(ItemPlace { key: found, frame, slot }));
            }
            match self.fingers.path(key).upper {
                // Separators grow from leaf to leaf; a damaged tree must not send us in circles.
                Some(upper) if upper > key => key = upper,
                Some(_) => return Err(Corruption::Node.into()),
                None => return Ok(None),
            }
        }
    }

    /// The last item at or before `key`, if it is of the same inode.
    pub fn seek_back(&mut self, key: Key) -> Result<Option<ItemPlace>> {
        let (id, slot) = self.descend(key)?;
        let frame = self.cache.frame(id);
        if frame.keys().get(slot) == Some(&key) {
            return Ok(Some(ItemPlace { key, frame: id, slot }));
        }
        if slot > 0 {
            let key = frame.keys()[slot - 1];
            return Ok(Some(ItemPlace { key, frame: id, slot: slot - 1 }));
        }
        // The leaf begins after the key: the item before is the last of the leaf before.
        self.last_before(key)
    }

    /// The last item of the leaf before the one that the descent to `key` led to.
    pub fn last_before(&mut self, key: Key) -> Result<Option<ItemPlace>> {
        let path = *self.fingers.path(key);
        let height = self.state.height as usize;
        let Some(turn) = (1..height).find(|&l| path.steps[l].1 > 0) else {
            return Ok(None);
        };
        let (id, slot) = path.steps[turn];
        let mut block = self.cache.frame(id).child(slot as usize - 1);
        for level in (0..turn).rev() {
            let id = self.node(block, level as u32)?;
            let frame = self.cache.frame(id);
            let Some(last) = frame.count().checked_sub(1) else {
                return Err(Corruption::Node.into());
            };
            if level == 0 {
                return Ok(Some(ItemPlace { key: frame.keys()[last], frame: id, slot: last }));
            }
            block = frame.child(last);
        }
        Ok(None)
    }

    /// The value of an item.
    #[inline]
    pub fn value(&self, place: &ItemPlace) -> &[u8] {
        self.cache.frame(place.frame).value(place.slot)
    }

    /// Overwrites bytes of an item's value, `offset` bytes into it.
    #[inline]
    pub fn update(&mut self, place: &ItemPlace, offset: usize, bytes: &[u8]) {
        let range = self.cache.frame(place.frame).value_range(place.slot);
        debug_assert!(offset + bytes.len() <= range.len());
        self.put(place.frame, range.start + offset, bytes);
    }

    /// Inserts an item whose key is not in the tree.
    pub fn insert(&mut self, key: Key, value: &[u8]) -> Result<()> {
        debug_assert!(value.len() <= layout::VALUE_MAX);
        let (id, slot) = self.descend(key)?;
        if self.cache.frame(id).keys().get(slot) == Some(&key) {
            return Err(Corruption::Item.into());
        }
        if self.append_if_room(id, slot, key, value) {
            return Ok(());
        }
        let path = *self.fingers.path(key);
        let at = self.split_point(&path, 0, key);
        self.split(&path, 0, at, key, value)
    }

    /// As [`insert`](Self::insert), for an item that follows the one inserted before and has others
    /// to follow it: they fill nodes of their own, so that little else is moved.
    pub fn insert_next(&mut self, key: Key, value: &[u8]) -> Result<()> {
        let (id, slot) = self.descend(key)?;
        let frame = self.cache.frame(id);
        let count = frame.count();
        if frame.keys().get(slot) == Some(&key) {
            return Err(Corruption::Item.into());
        }
        if slot == 0 {
            return self.insert(key, value);
        }
        if self.append_if_room(id, slot, key, value) {
            return Ok(());
        }
        let path = *self.fingers.path(key);
        if slot == count {
            return self.split(&path, 0, slot, key, value);
        }
        // The cells after it go to a node of their own first.
        self.cut(&path, slot)?;
        self.insert_next(key, value)
    }

    /// Adds a cell to a node that has room for it, or would have without its dead cells.
    fn append_if_room(&mut self, id: FrameId, slot: usize, key: Key, value: &[u8]) -> bool {
        let len = cell::VALUE + value.len();
        let frame = self.cache.frame(id);
        if frame.room() < len {
            if frame.live as usize + len + COMPACTION_GAIN > layout::CAPACITY {
                return false;
            }
            self.compact(id);
        }
        self.append_cell(id, slot, key, value);
        true
    }

    /// Adds a cell to a node that has room for it.
    fn append_cell(&mut self, id: FrameId, slot: usize, key: Key, value: &[u8]) {
        let at = node::end(&self.cache.frame(id).data);
        let len = cell::VALUE + value.len();
        self.put_with(id, at, len, |bytes| node::build_cell(bytes, key, value));
        self.put(id, layout::END, &((at + len) as u16).to_le_bytes());
        let frame = self.cache.frame_mut(id);
        frame.insert_slot(slot, key, at, len);
        if frame.level > 0 {
            self.cache.shape += 1;
        }
    }

    /// Takes the cell in `slot` out of its node.
    fn drop_cell(&mut self, id: FrameId, slot: usize) {
        let at = self.cache.frame(id).cell_at(slot);
        self.put(id, at + cell::LIVE, &[0]);
        let frame = self.cache.frame_mut(id);
        let len = frame.value_range(slot).end - at;
        frame.remove_slot(slot, len);
        if frame.level > 0 {
            self.cache.shape += 1;
        }
        // A remembered position in this node may be that of the cell.
        self.cache.bump(id);
    }

    /// Rewrites a node without its dead cells.
    fn compact(&mut self, id: FrameId) {
        let count = self.cache.frame(id).count();
        self.rewrite(id, 0..count);
    }

    /// Rewrites a node with only the cells in `slots`.
    fn rewrite(&mut self, id: FrameId, slots: core::ops::Range<usize>) {
        let frame = self.cache.frame(id);
        let bytes = node::image(node::level(&frame.data), slots.map(|s| frame.cell(s)));
        self.replace(id, &bytes);
    }

    /// Replaces a node's content by an image that [`node::image`] made of checked cells.
    fn replace(&mut self, id: FrameId, bytes: &[u8]) {
        self.put(id, layout::LEVEL, bytes);
        let indexed = node::index(self.cache.frame_mut(id), |_| true);
        assert!(indexed.is_ok(), "a node made of checked cells is sound");
        self.cache.bump(id);
        self.cache.shape += 1;
    }

    /// A new node.
    fn new_node(&mut self) -> Result<(u64, FrameId)> {
        let block = self.allocate_metadata()?;
        let id = self.init_frame(block, magic::NODE)?;
        Ok((block, id))
    }

    /// The slot at which the node at `level` of `path` is split for a cell with `key`.
    fn split_point(&self, path: &Path, level: usize, key: Key) -> usize {
        let left = path.steps[level].0;
        if self.is_at_edge(path, level, key) {
            return edge_point(self.cache.frame(left), key);
        }
        self.middle(left)
    }

    /// Whether a cell with `key` is to be the last at its level of the tree, as those of new inodes
    /// are.
    fn is_at_edge(&self, path: &Path, level: usize, key: Key) -> bool {
        let frame = self.cache.frame(path.steps[level].0);
        path.upper.is_none() && frame.lower_bound(key) == frame.count()
    }

    /// Splits the node at `level` of `path` in two at the slot `at` and inserts the cell in the
    /// right one of them.
    fn split(
        &mut self,
        path: &Path,
        level: usize,
        at: usize,
        key: Key,
        value: &[u8],
    ) -> Result<()> {
        let left = path.steps[level].0;
        let count = self.cache.frame(left).count();
        let is_at_edge = self.is_at_edge(path, level, key);
        let (right_block, right) = self.divide(left, level, at)?;
        if is_at_edge {
            // Little will be added to the left node: it needs no image without the cells that go.
            (at..count).rev().for_each(|slot| self.drop_cell(left, slot));
        } else if at < count {
            self.rewrite(left, 0..at);
        }
        let count = self.cache.frame(right).count();
        let separator = if count == 0 { key } else { self.cache.frame(right).keys()[0] };
        let target = if key >= separator { right } else { left };
        let slot = self.cache.frame(target).lower_bound(key);
        self.append_cell(target, slot, key, value);
        self.add_child(path, level, separator, right_block)
    }

    /// Moves the cells of the leaf of `path` from the slot `at` on, of which there is one, to a new
    /// leaf.
    fn cut(&mut self, path: &Path, at: usize) -> Result<()> {
        let left = path.steps[0].0;
        let (right_block, right) = self.divide(left, 0, at)?;
        self.rewrite(left, 0..at);
        let separator = self.cache.frame(right).keys()[0];
        self.add_child(path, 0, separator, right_block)
    }

    /// Copies the cells from the slot `at` on to a new node, which may be left without any.
    fn divide(&mut self, left: FrameId, level: usize, at: usize) -> Result<(u64, FrameId)> {
        let (right_block, right) = self.new_node()?;
        let frame = self.cache.frame(left);
        let bytes = node::image(level as u32, (at..frame.count()).map(|s| frame.cell(s)));
        self.replace_empty(right, level, &bytes);
        Ok((right_block, right))
    }

    /// Adds a node that was split off the one at `level` of `path` to the node above.
    fn add_child(
        &mut self,
        path: &Path,
        level: usize,
        separator: Key,
        right_block: u64,
    ) -> Result<()> {
        if level + 1 < self.state.height as usize {
            let parent = path.steps[level + 1].0;
            let slot = self.cache.frame(parent).lower_bound(separator);
            let child = right_block.to_le_bytes();
            if self.append_if_room(parent, slot, separator, &child) {
                return Ok(());
            }
            let at = self.split_point(path, level + 1, separator);
            return self.split(path, level + 1, at, separator, &child);
        }
        if level + 1 == layout::HEIGHT_MAX {
            return Err(atoll_vfs::Errno::ENOSPC.into());
        }
        let old_root = self.state.root;
        let (root_block, root) = self.new_node()?;
        self.put(root, layout::LEVEL, &[level as u8 + 1]);
        self.put(root, layout::END, &(layout::CELLS as u16).to_le_bytes());
        self.cache.frame_mut(root).level = level as u8 + 1;
        self.append_cell(root, 0, Key::MIN, &old_root.to_le_bytes());
        self.append_cell(root, 1, separator, &right_block.to_le_bytes());
        self.state.root = root_block;
        self.state.height += 1;
        Ok(())
    }

    /// Fills a new node; it may stay without cells until the caller adds one.
    fn replace_empty(&mut self, id: FrameId, level: usize, bytes: &[u8]) {
        self.put(id, layout::LEVEL, bytes);
        if bytes.len() > layout::CELLS - layout::LEVEL {
            let indexed = node::index(self.cache.frame_mut(id), |_| true);
            assert!(indexed.is_ok(), "a node made of checked cells is sound");
        }
        self.cache.frame_mut(id).level = level as u8;
    }

    /// The slot that halves a node's bytes, neither half being empty.
    fn middle(&self, id: FrameId) -> usize {
        let frame = self.cache.frame(id);
        let mut sum = 0;
        for slot in 0..frame.count() {
            let len = frame.cell(slot).len();
            // The cell in the middle goes to the side that it makes the less uneven, so that either
            // has room for one more of the largest.
            if (sum + len / 2) * 2 >= frame.live as usize {
                return slot.clamp(1, frame.count() - 1);
            }
            sum += len;
        }
        frame.count() - 1
    }

    /// Removes the item with exactly `key`, which must be there.
    pub fn remove(&mut self, key: Key) -> Result<()> {
        let (id, slot) = self.descend(key)?;
        if self.cache.frame(id).keys().get(slot) != Some(&key) {
            return Err(Corruption::Item.into());
        }
        let before = self.cache.frame(id).live as usize;
        self.drop_cell(id, slot);
        let live = self.cache.frame(id).live as usize;
        let is_due = live == 0 || live / MERGE_STEP != before / MERGE_STEP;
        if live >= MERGE_BELOW || !is_due {
            return Ok(());
        }
        let path = *self.fingers.path(key);
        self.mend(&path, 0)
    }

    /// As [`remove`](Self::remove), for one of many items that follow one another: a leaf that
    /// keeps any stays as it is. [`mend_at`](Self::mend_at) comes after the last.
    pub fn remove_next(&mut self, key: Key) -> Result<()> {
        let (id, slot) = self.descend(key)?;
        if self.cache.frame(id).keys().get(slot) != Some(&key) {
            return Err(Corruption::Item.into());
        }
        self.drop_cell(id, slot);
        if self.cache.frame(id).count() > 0 {
            return Ok(());
        }
        let path = *self.fingers.path(key);
        self.mend(&path, 0)
    }

    /// Merges the leaf that has or would have `key` with a neighbour, if it is nearly empty.
    pub fn mend_at(&mut self, key: Key) -> Result<()> {
        self.descend(key)?;
        let path = *self.fingers.path(key);
        self.mend(&path, 0)
    }

    /// After a removal: lets go of a node that is empty, or merges one that is nearly so.
    fn mend(&mut self, path: &Path, level: usize) -> Result<()> {
        let top = self.state.height as usize - 1;
        let (id, _) = path.steps[level];
        let frame = self.cache.frame(id);
        if level == top {
            // The root stays while it is a leaf or has a choice of children.
            if top > 0 && frame.count() == 1 {
                return self.lower_root();
            }
            return Ok(());
        }
        let live = frame.live as usize;
        if live >= MERGE_BELOW {
            return Ok(());
        }
        let (parent, slot) = path.steps[level + 1];
        let slot = slot as usize;
        if frame.count() == 0 {
            let block = frame.block.0;
            self.free(block, 1, true)?;
            self.drop_child(parent, slot);
            return self.mend(path, level + 1);
        }
        for left_slot in [Some(slot), slot.checked_sub(1)].into_iter().flatten() {
            let parent_frame = self.cache.frame(parent);
            if left_slot + 1 >= parent_frame.count() {
                continue;
            }
            let left = self.child(parent, left_slot, level as u32)?;
            let right = self.child(parent, left_slot + 1, level as u32)?;
            if left == right {
                return Err(Corruption::Node.into());
            }
            let together = self.cache.frame(left).live + self.cache.frame(right).live;
            if together as usize > merged_max(level) {
                continue;
            }
            self.merge(level, left, right)?;
            self.drop_cell(parent, left_slot + 1);
            return self.mend(path, level + 1);
        }
        Ok(())
    }

    /// The frame of the child in `slot` of an inner node, which must have `level`.
    fn child(&mut self, parent: FrameId, slot: usize, level: u32) -> Result<FrameId> {
        let frame = self.cache.frame(parent);
        let (block, hint) = (frame.child(slot), frame.hint(slot));
        match self.hinted(hint, block, level) {
            Some(id) => Ok(id),
            None => self.node(block, level),
        }
    }

    /// The frame of the node at `block`, if that is where it was last and has `level`.
    #[inline]
    fn hinted(&mut self, hint: FrameId, block: u64, level: u32) -> Option<FrameId> {
        let id = self.cache.hinted(hint, block)?;
        (u32::from(self.cache.frame(id).level) == level).then_some(id)
    }

    /// Takes the child in `slot` out of an inner node. The first key of an inner node is the least
    /// that the node covers and stays so: the next child takes over the range of the first.
    fn drop_child(&mut self, id: FrameId, slot: usize) {
        let frame = self.cache.frame(id);
        if slot == 0 && frame.count() > 1 {
            let key = frame.keys()[0];
            let at = frame.cell_at(1);
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&key.ino.to_le_bytes());
            bytes[8..].copy_from_slice(&key.item.to_le_bytes());
            self.put(id, at + cell::KEY_INO, &bytes);
            self.cache.frame_mut(id).set_key(1, key);
        }
        self.drop_cell(id, slot);
    }

    /// Moves the cells of `right` to `left`.
    fn merge(&mut self, level: usize, left: FrameId, right: FrameId) -> Result<()> {
        let (l, r) = (self.cache.frame(left), self.cache.frame(right));
        if l.keys().last() >= r.keys().first() {
            return Err(Corruption::Node.into());
        }
        let cells = (0..l.count()).map(|s| l.cell(s)).chain((0..r.count()).map(|s| r.cell(s)));
        let bytes = node::image(level as u32, cells);
        let block = r.block.0;
        self.replace(left, &bytes);
        self.free(block, 1, true)
    }

    /// Makes the only child of the root the root.
    fn lower_root(&mut self) -> Result<()> {
        while self.state.height > 1 {
            let id = self.node(self.state.root, self.state.height - 1)?;
            let frame = self.cache.frame(id);
            if frame.count() != 1 {
                return Ok(());
            }
            let child = frame.child(0);
            self.free(self.state.root, 1, true)?;
            self.state.root = child;
            self.state.height -= 1;
            self.cache.shape += 1;
        }
        Ok(())
    }
}
