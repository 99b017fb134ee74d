//! A new tree from items in the order of their keys, written node by node.

use alloc::vec::Vec;

use crate::error::{Corruption, Result};
use crate::key::Key;
use crate::layout::{self, Block, cell, magic, node as layout_node};
use crate::node;

/// One level of the tree that is being built: the node that is being filled.
#[derive(Default)]
struct Level {
    cells: Vec<u8>,
    /// The first key of the node.
    first: Option<Key>,
    /// How many cells it has, and the block that the last gives.
    count: usize,
    last_child: u64,
    /// Nodes written, or taken over.
    written: u64,
}

/// Where finished nodes go.
pub(crate) trait Nodes {
    /// A block for a node.
    fn allocate(&mut self) -> Result<u64>;
    /// Stores a node.
    fn write(&mut self, block: u64, data: &Block) -> Result<()>;
}

/// Builds a tree.
pub(crate) struct Builder {
    levels: Vec<Level>,
    /// Bytes of cells that a node gets at most.
    fill: usize,
    last: Option<Key>,
}

impl Builder {
    /// Begins a tree whose nodes are filled to three quarters, or `tight`.
    pub fn new(tight: bool) -> Builder {
        let fill = if tight { layout_node::CAPACITY } else { layout_node::CAPACITY * 3 / 4 };
        Builder { levels: Vec::new(), fill, last: None }
    }

    /// Adds an item, whose key is above all before.
    ///
    /// # Errors
    /// [`Corruption::Item`] for a key out of order; those of `nodes`.
    pub fn push(&mut self, key: Key, value: &[u8], nodes: &mut impl Nodes) -> Result<()> {
        if self.last.is_some_and(|last| last >= key) {
            return Err(Corruption::Item.into());
        }
        self.last = Some(key);
        self.push_at(0, key, value, nodes)
    }

    /// Adds a leaf as it is, with the keys from `first` to `last`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_leaf(
        &mut self,
        first: Key,
        last: Key,
        block: u64,
        nodes: &mut impl Nodes,
    ) -> Result<()> {
        if self.last.is_some_and(|l| l >= first) {
            return Err(Corruption::Item.into());
        }
        self.last = Some(last);
        if self.levels.is_empty() {
            self.levels.push(Level::default());
        }
        if self.levels[0].count > 0 {
            let (first, block) = self.write(0, nodes)?;
            self.push_at(1, first, &block.to_le_bytes(), nodes)?;
        }
        let first = if self.levels[0].written == 0 { Key::MIN } else { first };
        self.levels[0].written += 1;
        self.push_at(1, first, &block.to_le_bytes(), nodes)
    }

    fn push_at(
        &mut self,
        level: usize,
        key: Key,
        value: &[u8],
        nodes: &mut impl Nodes,
    ) -> Result<()> {
        let mut buf = [0; cell::VALUE + layout_node::VALUE_MAX];
        let cell = &mut buf[..cell::VALUE + value.len()];
        node::build_cell(cell, key, value);
        if level == self.levels.len() {
            if level == layout_node::HEIGHT_MAX {
                return Err(Corruption::Node.into());
            }
            self.levels.push(Level::default());
        }
        let filled = self.levels[level].cells.len();
        if filled > 0 && filled + cell.len() > self.fill {
            let (first, block) = self.write(level, nodes)?;
            self.push_at(level + 1, first, &block.to_le_bytes(), nodes)?;
        }
        let level = &mut self.levels[level];
        level.first = level.first.or(Some(key));
        level.count += 1;
        level.last_child = if value.len() == 8 { layout::get64(value, 0) } else { 0 };
        level.cells.extend_from_slice(cell);
        Ok(())
    }

    /// Writes the node that is being filled; returns the least key that it covers, and its block.
    fn write(&mut self, level: usize, nodes: &mut impl Nodes) -> Result<(Key, u64)> {
        let block = nodes.allocate()?;
        let l = &mut self.levels[level];
        let mut data = [0; atoll_block::BLOCK_SIZE];
        layout::init_block(&mut data, atoll_block::BlockIndex(block), magic::NODE);
        let bytes = node::image(level as u32, core::iter::once(&l.cells[..]));
        data[layout_node::LEVEL..layout_node::LEVEL + bytes.len()].copy_from_slice(&bytes);
        layout::seal(&mut data);
        nodes.write(block, &data)?;
        let first = if l.written == 0 { Key::MIN } else { l.first.unwrap_or(Key::MIN) };
        l.cells.clear();
        l.first = None;
        l.count = 0;
        l.written += 1;
        Ok((first, block))
    }

    /// Writes the last nodes and returns the root and the height.
    ///
    /// # Errors
    /// Those of `nodes`.
    pub fn finish(mut self, nodes: &mut impl Nodes) -> Result<(u64, u32)> {
        let mut level = 0;
        loop {
            if level == self.levels.len() {
                return Err(Corruption::Node.into());
            }
            let is_top = level + 1 == self.levels.len() && self.levels[level].written == 0;
            let Level { count, last_child, .. } = self.levels[level];
            if level > 0 && is_top && count == 1 {
                // One child needs no parent.
                return Ok((last_child, level as u32));
            }
            if count == 0 {
                // All leaves, the last included, were taken over.
                level += 1;
                continue;
            }
            let (first, block) = self.write(level, nodes)?;
            if is_top {
                return Ok((block, level as u32 + 1));
            }
            self.push_at(level + 1, first, &block.to_le_bytes(), nodes)?;
            level += 1;
        }
    }
}
