//! The tree from its root to its leaves, each node looked at once; and items salvaged from leaves
//! that no way leads to.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use atoll_block::{Addressable, BlockIndex};

use super::report::{Finding, NodeFault, Report};
use super::space::Usage;
use super::view::View;
use crate::error::{Corruption, Result};
use crate::inode::Extent;
use crate::key::{Key, Kind};
use crate::layout::{Block, common, get32, get64, magic, map, node as layout};
use crate::node;

/// The keys from `lo` up to but not `hi`.
#[derive(Clone, Copy, Debug)]
struct Keys {
    lo: Key,
    hi: Option<Key>,
}

impl Keys {
    fn contain(&self, key: Key) -> bool {
        key >= self.lo && self.hi.is_none_or(|hi| key < hi)
    }
}

/// A part of the tree, in the order of keys.
#[derive(Clone, Debug)]
enum Part {
    /// A sound leaf.
    Leaf { block: u64, keys: Keys },
    /// Leaves that can't be reached; the items salvaged from them.
    Gap { keys: Keys, found: Range<usize> },
}

/// The tree as found.
#[derive(Default)]
pub(crate) struct Tree {
    parts: Vec<Part>,
    /// The blocks of all nodes that were reached.
    pub nodes: Vec<u64>,
    /// Those of nodes that the device does not read.
    pub unreadable: Vec<u64>,
    /// Items of leaves that can't be reached: key, block, place in the block.
    salvaged: Vec<(Key, u64, u16)>,
}

/// One node that is to be visited.
struct Visit {
    block: u64,
    level: u32,
    keys: Keys,
}

/// The things that [`Tree::for_each`] comes across.
pub(crate) enum Step<'a> {
    /// An item in its place.
    Item(Key, &'a [u8]),
    /// An item outside the range of its leaf.
    Misplaced(Key),
    /// The end of a leaf, or of a part of one that was salvaged.
    End(Option<u64>),
}

impl Tree {
    /// Visits every node. Marks their blocks in `usage` and reports those that can't be used.
    pub fn walk<M: Addressable>(
        view: &mut View<'_, M>,
        usage: &mut Usage,
        report: &mut Report,
    ) -> Tree {
        let mut tree = Tree::default();
        let all = Keys { lo: Key::MIN, hi: None };
        let Some(state) = view.state else {
            tree.gap(all);
            return tree;
        };
        report.tree_height = state.height;
        let mut visits = vec![Visit { block: state.root, level: state.height - 1, keys: all }];
        while let Some(visit) = visits.pop() {
            let is_root = visit.level + 1 == state.height;
            match tree.visit(view, usage, &visit, is_root, &mut visits) {
                Ok(()) => {}
                Err(NodeFault::Empty) => {
                    // Nothing is lost with it.
                    let Visit { block, level, .. } = visit;
                    report.add(Finding::Node { block, level, fault: NodeFault::Empty });
                }
                Err(fault) => {
                    let Visit { block, level, keys } = visit;
                    if fault == NodeFault::Unreadable {
                        tree.unreadable.push(block);
                    }
                    report.add(Finding::Node { block, level, fault });
                    tree.gap(keys);
                }
            }
        }
        report.node_blocks = tree.nodes.len() as u64;
        tree
    }

    fn visit<M: Addressable>(
        &mut self,
        view: &mut View<'_, M>,
        usage: &mut Usage,
        visit: &Visit,
        is_root: bool,
        visits: &mut Vec<Visit>,
    ) -> core::result::Result<(), NodeFault> {
        let Visit { block, level, keys } = *visit;
        if !view.sb.holds_data(block, 1) {
            return Err(NodeFault::Place);
        }
        if usage.contains(&view.sb, block) {
            return Err(NodeFault::Shared);
        }
        let data = view.read(block, magic::NODE)?;
        if node::level(&data) != level {
            return Err(NodeFault::Level);
        }
        let cells = node::cells(&data, |_| true).map_err(|_| NodeFault::Cells)?;
        usage.take(&view.sb, block);
        self.nodes.push(block);
        if level == 0 {
            if cells.is_empty() && !is_root {
                return Err(NodeFault::Empty);
            }
            self.parts.push(Part::Leaf { block, keys });
            return Ok(());
        }
        if !cells.iter().all(|&(key, _)| keys.contain(key)) {
            return Err(NodeFault::Range);
        }
        // The last goes first, so that the first is taken from the stack first.
        let mut hi = keys.hi;
        for (slot, &(key, at)) in cells.iter().enumerate().rev() {
            let lo = if slot == 0 { keys.lo } else { key };
            let child = get64(node::value_at(&data, at), 0);
            visits.push(Visit { block: child, level: level - 1, keys: Keys { lo, hi } });
            hi = Some(lo);
        }
        Ok(())
    }

    fn gap(&mut self, keys: Keys) {
        if let Some(Part::Gap { keys: last, .. }) = self.parts.last_mut()
            && last.hi == Some(keys.lo)
        {
            last.hi = keys.hi;
            return;
        }
        self.parts.push(Part::Gap { keys, found: 0..0 });
    }

    /// Whether a part of the tree can't be reached.
    pub fn has_gaps(&self) -> bool {
        self.parts.iter().any(|p| matches!(p, Part::Gap { .. }))
    }

    /// Looks through all blocks in use for leaves that no way leads to, and takes from them the
    /// items that belong into gaps. Blocks that a file uses according to the sound part of the tree
    /// are left out.
    pub fn salvage<M: Addressable>(&mut self, view: &mut View<'_, M>, usage: &Usage) -> Result<()> {
        let mut used = usage.clone();
        self.for_each(view, |view, step| {
            if let Step::Item(key, value) = step
                && key.kind() == Some(Kind::Extent)
                && let Ok(e) = Extent::parse(key.offset(), value, &view.sb)
            {
                used.mark(&view.sb, e.start, e.len, |_, _| {});
            }
            Ok(())
        })?;
        let gaps: Vec<Keys> = self
            .parts
            .iter()
            .filter_map(|p| match p {
                Part::Gap { keys, .. } => Some(*keys),
                Part::Leaf { .. } => None,
            })
            .collect();
        let sb = view.sb.clone();
        // Where no header says how many groups have map blocks, those up to the last that is found.
        let made = match view.state {
            Some(state) => state.groups,
            None => (0..sb.group_count())
                .rev()
                .find(|&group| view.read_pair(sb.map_block(group), magic::MAP).is_ok())
                .map_or(1, |last| last + 1),
        };
        for group in 0..made {
            let map = view.read_pair(sb.map_block(group), magic::MAP).map(|(b, _)| b).ok();
            let (ring, ring_len) = sb.ring_in(group).unwrap_or((0, 0));
            for at in sb.front_len(group)..sb.group_len(group) {
                if (ring..ring + ring_len).contains(&at) {
                    continue;
                }
                let block = sb.map_block(group).0 + at as u64;
                let allocated =
                    map.as_ref().is_none_or(|m| m[map::BITS + at / 8] & (1 << (at % 8)) != 0);
                if allocated && !used.contains(&sb, block) {
                    self.salvage_block(view, block, &gaps);
                }
            }
        }
        // If several items claim a key, the one in the first block counts.
        self.salvaged.sort_unstable();
        self.salvaged.dedup_by_key(|&mut (key, ..)| key);
        for part in &mut self.parts {
            if let Part::Gap { keys, found } = part {
                let from = self.salvaged.partition_point(|&(k, ..)| k < keys.lo);
                let to = match keys.hi {
                    Some(hi) => self.salvaged.partition_point(|&(k, ..)| k < hi),
                    None => self.salvaged.len(),
                };
                *found = from..to;
            }
        }
        Ok(())
    }

    fn salvage_block<M: Addressable>(&mut self, view: &mut View<'_, M>, block: u64, gaps: &[Keys]) {
        // Most blocks are no nodes: a look at the magic number tells.
        let mut head = [0; layout::CELLS];
        if view.device.load(BlockIndex(block).byte_offset(), &mut head).is_err()
            || get32(&head, common::MAGIC) != magic::NODE
        {
            return;
        }
        let Ok(data) = view.read(block, magic::NODE) else { return };
        if node::level(&data) != 0 {
            return;
        }
        let Ok(cells) = node::cells(&data, |_| true) else { return };
        for (key, at) in cells {
            // Gaps are in order and do not overlap.
            let gap = gaps.partition_point(|g| g.lo <= key).checked_sub(1);
            if gap.is_some_and(|g| gaps[g].contain(key)) {
                self.salvaged.push((key, block, at));
            }
        }
    }

    /// How many items were salvaged.
    pub fn salvaged(&self) -> u64 {
        self.salvaged.len() as u64
    }

    /// The blocks of the leaves that items were salvaged from.
    pub fn salvaged_blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.salvaged.iter().map(|&(_, block, _)| block)
    }

    /// Calls `each` for every item in the order of keys.
    pub fn for_each<'d, M: Addressable>(
        &self,
        view: &mut View<'d, M>,
        mut each: impl FnMut(&mut View<'d, M>, Step<'_>) -> Result<()>,
    ) -> Result<()> {
        for part in &self.parts {
            match part {
                Part::Leaf { block, keys } => {
                    let (data, cells) = read_leaf(view, *block)?;
                    for (key, at) in cells {
                        let step = match keys.contain(key) {
                            true => Step::Item(key, node::value_at(&data, at)),
                            false => Step::Misplaced(key),
                        };
                        each(view, step)?;
                    }
                    each(view, Step::End(Some(*block)))?;
                }
                Part::Gap { found, .. } => {
                    let found = &self.salvaged[found.clone()];
                    for run in found.chunk_by(|a, b| a.1 == b.1) {
                        let block = run[0].1;
                        let (data, cells) = read_leaf(view, block)?;
                        for &(key, _, at) in run {
                            each(view, Step::Item(key, node::value_at(&data, at)))?;
                        }
                        // All that the leaf has, with nothing between.
                        let is_whole = run.len() == cells.len();
                        each(view, Step::End(is_whole.then_some(block)))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The value of one item.
    pub fn fetch<M: Addressable>(&self, view: &mut View<'_, M>, key: Key) -> Option<Vec<u8>> {
        let part = self.parts.partition_point(|p| match p {
            Part::Leaf { keys, .. } | Part::Gap { keys, .. } => keys.lo <= key,
        });
        let (block, at) = match &self.parts[part.checked_sub(1)?] {
            Part::Leaf { block, .. } => (*block, None),
            Part::Gap { found, .. } => {
                let found = &self.salvaged[found.clone()];
                let i = found.binary_search_by_key(&key, |&(k, ..)| k).ok()?;
                (found[i].1, Some(found[i].2))
            }
        };
        let (data, cells) = read_leaf(view, block).ok()?;
        let at = match at {
            Some(at) => at,
            None => cells[cells.binary_search_by_key(&key, |&(k, _)| k).ok()?].1,
        };
        Some(node::value_at(&data, at).to_vec())
    }
}

/// A leaf that was found sound before.
fn read_leaf<M: Addressable>(
    view: &mut View<'_, M>,
    block: u64,
) -> Result<(Block, Vec<(Key, u16)>)> {
    let data = view.read(block, magic::NODE).map_err(|_| Corruption::Checksum)?;
    let cells = node::cells(&data, |_| true)?;
    Ok((data, cells))
}
