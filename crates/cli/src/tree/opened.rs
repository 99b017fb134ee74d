//! The files of a volume that is opened for one command.

use std::path::Path;

use atoll_vfs::Forgetting;

use super::{VolumeTree, tree};
use crate::failure::Failure;
use crate::served::Served;
use crate::volume::Access;

/// A volume that is used by paths.
pub type Opened = Forgetting<Served>;

fn open(path: &Path, access: Access) -> Result<VolumeTree<Opened>, Failure> {
    Served::open_for_command(path, access).map(|served| tree(Forgetting::new(served)))
}

/// The files of the volume at `path`, for looking.
pub fn read_tree(path: &Path) -> Result<VolumeTree<Opened>, Failure> {
    open(path, Access::Read)
}

/// The files of the volume at `path`, for changes.
pub fn write_tree(path: &Path) -> Result<VolumeTree<Opened>, Failure> {
    open(path, Access::Write)
}

/// Closes what [`read_tree`] or [`write_tree`] opened.
pub fn close_tree(path: &Path, tree: VolumeTree<Opened>) -> Result<(), Failure> {
    tree.into_fs().into_inner().close(path)
}
