//! The files of a volume that is opened for one command.

use std::path::Path;

use super::{VolumeTree, tree};
use crate::failure::Failure;
use crate::volume::{self, Access, Volume};

/// The files of the volume at `path`, for looking.
pub fn read_tree(path: &Path) -> Result<VolumeTree<Volume>, Failure> {
    volume::open(path, Access::Read).map(tree)
}

/// The files of the volume at `path`, for changes.
pub fn write_tree(path: &Path) -> Result<VolumeTree<Volume>, Failure> {
    volume::open(path, Access::Write).map(tree)
}

/// Closes what [`read_tree`] or [`write_tree`] opened.
pub fn close_tree(path: &Path, tree: VolumeTree<Volume>) -> Result<(), Failure> {
    volume::close(path, tree.into_fs())
}
