//! A tree node: a block of cells in the order of their arrival.
//!
//! An insertion appends a cell and a removal clears its live byte, so that either changes few bytes
//! and makes a short journal record. The sorted order is kept in memory only, in the frame's index,
//! built and checked when the block is read.

use alloc::vec::Vec;

use crate::cache::Frame;
use crate::error::{Corruption, Result};
use crate::key::Key;
use crate::layout::{Block, cell, get16, get64, inode, node, put16, put64};

/// Bytes of a node before its first cell.
pub const HEADER_LEN: usize = node::CELLS;

/// Bytes that compaction must gain to be worth it; otherwise the node is split.
pub const COMPACTION_GAIN: usize = node::CAPACITY / 8;

/// The most bytes of live cells in a node at `level` that is made of two: room stays for
/// insertions. In a leaf that is the largest item and its inode's record, so that a leaf merged
/// when they were removed need not be split when they come back.
pub const fn merged_max(level: usize) -> usize {
    const COME_BACK: usize = cell::VALUE + node::VALUE_MAX + cell::VALUE + inode::LEN;
    if level > 0 { node::CAPACITY * 3 / 4 } else { node::CAPACITY - COMPACTION_GAIN - COME_BACK }
}

/// The node's level: 0 for a leaf.
#[inline]
pub fn level(data: &Block) -> u32 {
    u32::from(data[node::LEVEL])
}

/// Where the next cell begins.
#[inline]
pub fn end(data: &Block) -> usize {
    // An empty node has no end written yet.
    (get16(&data[..], node::END) as usize).max(node::CELLS)
}

/// Builds the index of a frame from its block and checks the block as [`cells`] does.
///
/// # Errors
/// [`Corruption::Node`].
pub fn index(frame: &mut Frame, is_child: impl Fn(u64) -> bool) -> Result<()> {
    frame.clear_index();
    let found = cells(&frame.data, is_child)?;
    frame.level = level(&frame.data) as u8;
    for (slot, (key, at)) in found.into_iter().enumerate() {
        let len = get16(&frame.data[..], at as usize + cell::LEN) as usize;
        frame.insert_slot(slot, key, at as usize, len);
    }
    Ok(())
}

/// The live cells of a node by key, and where each begins, once the block has been checked: cells
/// within bounds, keys unique, children where `is_child` allows.
///
/// # Errors
/// [`Corruption::Node`].
pub fn cells(data: &Block, is_child: impl Fn(u64) -> bool) -> Result<Vec<(Key, u16)>> {
    let end = end(data);
    let inner = level(data) > 0;
    if end > data.len() || level(data) >= node::HEIGHT_MAX as u32 {
        return Err(Corruption::Node.into());
    }
    let mut found: Vec<(Key, u16)> = Vec::with_capacity(64);
    let mut at = node::CELLS;
    while at < end {
        if end - at < cell::VALUE {
            return Err(Corruption::Node.into());
        }
        let len = get16(&data[..], at + cell::LEN) as usize;
        let sound = (cell::VALUE..=cell::VALUE + node::VALUE_MAX).contains(&len)
            && len <= end - at
            && data[at + cell::LIVE] <= 1;
        if !sound {
            return Err(Corruption::Node.into());
        }
        if data[at + cell::LIVE] == 1 {
            let key = cell_key(data, at);
            if inner && (len != cell::VALUE + 8 || !is_child(get64(&data[..], at + cell::VALUE))) {
                return Err(Corruption::Node.into());
            }
            found.push((key, at as u16));
        }
        at += len;
    }
    if inner && found.is_empty() {
        return Err(Corruption::Node.into());
    }
    found.sort_unstable();
    if found.windows(2).any(|w| w[0].0 == w[1].0) {
        return Err(Corruption::Node.into());
    }
    Ok(found)
}

/// The value of the cell at `at`, a place that [`cells`] gave.
pub fn value_at(data: &Block, at: u16) -> &[u8] {
    let at = at as usize;
    &data[at + cell::VALUE..at + get16(&data[..], at + cell::LEN) as usize]
}

fn cell_key(data: &Block, at: usize) -> Key {
    Key { ino: get64(&data[..], at + cell::KEY_INO), item: get64(&data[..], at + cell::KEY_ITEM) }
}

/// Where among `count` even steps from `lower` to `upper` a number would be.
#[inline]
fn interpolate(at: u64, lower: u64, upper: u64, count: usize) -> usize {
    let part = at.saturating_sub(lower) as f64 / upper.saturating_sub(lower) as f64;
    // Saturating, and 0 if it is not a number.
    (part * count as f64) as usize
}

impl Frame {
    /// The number of live cells.
    #[inline]
    pub fn count(&self) -> usize {
        self.keys().len()
    }

    /// The first slot whose key is not below `key`.
    #[inline]
    pub fn lower_bound(&self, key: Key) -> usize {
        let key = key.wide();
        self.keys().partition_point(|k| k.wide() < key)
    }

    /// The same in a leaf that covers the keys from `lower` up to `upper`, or to the end.
    ///
    /// Hashes of names and inode numbers lie evenly, so a good guess is near the place, and only
    /// the memory there is touched; from the guess on the steps double.
    #[inline]
    pub fn lower_bound_within(&self, key: Key, lower: Key, upper: Option<Key>) -> usize {
        const STEP: usize = 3;
        let keys = self.keys();
        let end = keys.len();
        if end == 0 {
            return 0;
        }
        let guess = match upper {
            Some(upper) if lower.ino == upper.ino => {
                interpolate(key.item, lower.item, upper.item, end)
            }
            Some(upper) => interpolate(key.ino, lower.ino, upper.ino, end),
            // The right edge of the tree, where new inodes go.
            None => end,
        };
        let guess = guess.min(end - 1);
        let key = key.wide();
        let is_below = |slot: usize| keys[slot].wide() < key;
        let (mut from, mut to) = (guess, guess);
        let mut step = STEP;
        if is_below(guess) {
            from = guess + 1;
            loop {
                to = (from + step).min(end);
                if to == end || !is_below(to) {
                    break;
                }
                from = to + 1;
                step *= 2;
            }
        } else {
            while to > 0 {
                from = to.saturating_sub(step);
                if is_below(from) {
                    from += 1;
                    break;
                }
                to = from;
                step *= 2;
            }
        }
        from + keys[from..to].partition_point(|k| k.wide() < key)
    }

    /// The slot of the child that covers `key`: the last whose key is not above it, or the first,
    /// which covers everything below as well.
    #[inline]
    pub fn child_slot(&self, key: Key) -> usize {
        let key = key.wide();
        self.keys().partition_point(|k| k.wide() <= key).saturating_sub(1)
    }

    /// The block of the child in `slot`.
    #[inline]
    pub fn child(&self, slot: usize) -> u64 {
        get64(&self.data[..], self.cell_at(slot) + cell::VALUE)
    }

    /// Where the value of `slot` is in the block.
    #[inline]
    pub fn value_range(&self, slot: usize) -> core::ops::Range<usize> {
        let at = self.cell_at(slot);
        at + cell::VALUE..at + get16(&self.data[..], at + cell::LEN) as usize
    }

    /// The value in `slot`.
    #[inline]
    pub fn value(&self, slot: usize) -> &[u8] {
        &self.data[self.value_range(slot)]
    }

    /// The whole cell in `slot`.
    pub fn cell(&self, slot: usize) -> &[u8] {
        let at = self.cell_at(slot);
        &self.data[at..at + get16(&self.data[..], at + cell::LEN) as usize]
    }

    /// Bytes after the last cell.
    #[inline]
    pub fn room(&self) -> usize {
        self.data.len() - end(&self.data)
    }
}

/// Builds a cell in `buf`, which has its length.
#[inline]
pub fn build_cell(buf: &mut [u8], key: Key, value: &[u8]) {
    let len = buf.len() as u16;
    put16(buf, cell::LEN, len);
    buf[cell::LIVE] = 1;
    buf[cell::LIVE + 1] = 0;
    put64(buf, cell::KEY_INO, key.ino);
    put64(buf, cell::KEY_ITEM, key.item);
    buf[cell::VALUE..].copy_from_slice(value);
}

/// The content of a node with the given cells, one after the other, as bytes from
/// [`node::LEVEL`](layout::node::LEVEL) on: the form in which
/// [`Store::put`](crate::store::Store::put) replaces a node.
pub fn image<'c>(level: u32, cells: impl Iterator<Item = &'c [u8]>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(node::CAPACITY);
    bytes.resize(node::CELLS - node::LEVEL, 0);
    for cell in cells {
        bytes.extend_from_slice(cell);
    }
    bytes[0] = level as u8;
    let end = (node::LEVEL + bytes.len()) as u16;
    put16(&mut bytes, node::END - node::LEVEL, end);
    bytes
}
