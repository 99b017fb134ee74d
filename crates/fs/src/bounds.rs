//! How long the record of an operation can be, so that each fits the smallest journal.
//!
//! A change of the tree can split a node at every level, or merge two. An operation without a bound
//! of its own, such as the removal of a file, is cut into transactions by the length of their
//! records.

use crate::layout::{cell, dirent, inode, map, node, record};
use crate::node::{HEADER_LEN, merged_max};

/// The height of the trees for which the bounds are stated. A volume of 16 TiB that is all nodes,
/// each as empty as can be, has no more.
pub const HEIGHT: usize = 7;

/// The bytes that one transaction may have in its record when it begins a further step.
#[inline]
pub const fn steps_max(record_max: usize) -> usize {
    record_max / 2
}

/// The entries for the bits of `len` blocks in one group, and for the other changes to its map and
/// summary.
#[inline]
pub const fn bits(len: u64) -> usize {
    // 64 bytes of a map block go to one entry; at both ends a byte may be shared.
    let bytes = len as usize / 8 + 2;
    bytes + (bytes / 64 + 1) * record::ENTRY_LEN + 3 * (record::ENTRY_LEN + 8)
}

/// The usage of the projects whose inodes the operation changes: two directories, and an inode that
/// is replaced.
const USAGE: usize = 3 * (record::ENTRY_LEN + crate::project::USAGE_LEN);
/// A header, the state and padding; and usage, which changes with all that is added or removed.
const FRAME: usize = record::HEADER_LEN + crate::layout::state::LEN + 8 + USAGE;
/// An inode record.
const RECORD: usize = record::ENTRY_LEN + inode::LEN;
/// A cell with a value of `len` bytes, and the node's new end.
const fn added(len: usize) -> usize {
    2 * record::ENTRY_LEN + cell::VALUE + len + 2
}
/// A node split in two, and the new child in the node above.
const SPLIT: usize = node::CAPACITY + 3 * (record::ENTRY_LEN + HEADER_LEN) + added(8) + bits(1);
/// Two nodes made one, and the child taken out of the node above.
const MERGE: usize = merged_max(1) + 3 * (record::ENTRY_LEN + HEADER_LEN) + bits(1);

/// An item of `len` bytes that is added, every node on its way split, the root too.
const fn insert(len: usize) -> usize {
    added(len) + (HEIGHT + 1) * SPLIT
}
/// An item that is removed, every node on its way merged.
const REMOVE: usize = record::ENTRY_LEN + 1 + HEIGHT * MERGE;
const ENTRY: usize = insert(dirent::NAME + 255);
const ORPHAN: usize = insert(0);

/// The last step of a removal: an extent with all of a group's blocks, and the changes that follow.
pub const LAST_STEP: usize = REMOVE + bits(map::GROUP_BLOCKS) + RECORD + ORPHAN + FRAME;
/// A name that replaces another one: the old one goes, four inodes change, and the inode that was
/// replaced is removed as far as one step does, or listed. Where an inode is left in the place of
/// the old name that is not removed, and either nothing is replaced or no name is added: this takes
/// less.
pub const RENAME: usize = REMOVE + ENTRY + 4 * RECORD + LAST_STEP;
/// An inode with its name, its target cut into pieces that follow one another.
pub const MAKE: usize = insert(inode::LEN) + ENTRY + pieces(atoll_vfs::SYMLINK_MAX) + FRAME;
/// The largest attribute. One that replaces another has pieces that are overwritten where they are.
pub const SET_ATTRIBUTE: usize = pieces(atoll_vfs::XATTR_SIZE_MAX + 255) + RECORD + FRAME;

/// Pieces of `len` bytes together: the node where they begin is split twice, and those above once,
/// and they fill nodes of their own, three to each.
const fn pieces(len: usize) -> usize {
    let count = len / node::VALUE_MAX + 2;
    len + count * added(0) + insert(0) + SPLIT + (count / 3 + 1) * (FRAME + added(8))
}

const _: () = {
    let record_max = crate::journal::record_max(crate::layout::RING_BLOCKS_MIN * 4096);
    assert!(steps_max(record_max) + LAST_STEP <= record_max);
    assert!(RENAME <= record_max);
    assert!(insert(inode::LEN) <= REMOVE + LAST_STEP - FRAME && insert(inode::LEN) <= ENTRY);
    assert!(MAKE <= record_max);
    assert!(SET_ATTRIBUTE <= record_max);
};
