//! `atoll mkdir`: makes directories in a volume.

use std::path::{Path, PathBuf};

use atoll_vfs::{Errno, FileSystem, Result};

use crate::failure::{FAILED, Outcome};
use crate::location::{self, Location, LocationArg};
use crate::tree::{self, VolumeTree, bytes, error};

/// Make directories in a volume.
#[derive(clap::Args)]
pub struct Args {
    /// Make missing parents too, and say nothing of directories that exist.
    #[arg(short, long)]
    parents: bool,
    /// The directories.
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    places: Vec<LocationArg>,
}

/// Makes them.
pub fn run(args: &Args) -> Outcome {
    let mut status = 0;
    for text in &args.places {
        let (volume, inside) = location::in_volume(text)?;
        let mut tree = tree::write_tree(&volume)?;
        let result = make(&mut tree, &inside, args.parents);
        tree::close_tree(&volume, tree)?;
        if let Err(errno) = result {
            let error = error(errno);
            let hint = match errno {
                Errno::ENOENT => "; make missing parents with -p",
                _ => "",
            };
            say!("cannot make {}: {error}{hint}", Location::Volume(volume, inside));
            status = FAILED;
        }
    }
    Ok(status)
}

fn make<F: FileSystem>(tree: &mut VolumeTree<F>, path: &Path, parents: bool) -> Result<()> {
    if !parents {
        return tree.mkdir(bytes(path), 0o755);
    }
    let mut prefix = PathBuf::new();
    for component in path.components() {
        prefix.push(component);
        match tree.stat(bytes(&prefix)) {
            Ok(attr) if attr.is_dir() => {}
            Ok(_) => return Err(Errno::ENOTDIR),
            Err(Errno::ENOENT) => tree.mkdir(bytes(&prefix), 0o755)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
