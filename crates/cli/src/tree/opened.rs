//! The files of a volume that is opened for one command.

use std::path::Path;

use super::{VolumeTree, tree};
use crate::failure::Failure;
use crate::served::Served;
use crate::volume::Access;

/// The files of the volume at `path`, for looking.
pub fn read_tree(path: &Path) -> Result<VolumeTree<Served>, Failure> {
    Served::open_for_command(path, Access::Read).map(tree)
}

/// The files of the volume at `path`, for changes.
pub fn write_tree(path: &Path) -> Result<VolumeTree<Served>, Failure> {
    Served::open_for_command(path, Access::Write).map(tree)
}

/// Closes what [`read_tree`] or [`write_tree`] opened.
pub fn close_tree(path: &Path, tree: VolumeTree<Served>) -> Result<(), Failure> {
    tree.into_fs().close(path)
}
