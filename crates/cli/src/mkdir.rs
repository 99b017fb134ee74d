//! `atoll mkdir`: makes directories in a volume.

use std::io;
use std::path::{Path, PathBuf};

use crate::failure::{FAILED, Outcome};
use crate::location::{self, Location, LocationArg};
use crate::tree::Tree;
use crate::volume;

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
        let mut tree = volume::write_tree(&volume)?;
        let result = make(&mut tree, &inside, args.parents);
        volume::close_tree(&volume, tree)?;
        if let Err(error) = result {
            let hint = match error.kind() {
                io::ErrorKind::NotFound => "; make missing parents with -p",
                _ => "",
            };
            eprintln!("atoll: cannot make {}: {error}{hint}", Location::Volume(volume, inside));
            status = FAILED;
        }
    }
    Ok(status)
}

fn make(tree: &mut dyn Tree, path: &Path, parents: bool) -> io::Result<()> {
    if !parents {
        return tree.make_dir(path, 0o755);
    }
    let mut prefix = PathBuf::new();
    for component in path.components() {
        prefix.push(component);
        match tree.meta(&prefix, true) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tree.make_dir(&prefix, 0o755)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
