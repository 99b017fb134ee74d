//! `atoll rm`: removes files of a volume.

use std::io;
use std::path::{Path, PathBuf};

use crate::failure::{FAILED, Outcome};
use crate::location::{self, Location, LocationArg};
use crate::tree::Tree;
use crate::volume;

/// Remove files of a volume.
#[derive(clap::Args)]
pub struct Args {
    /// Remove directories with all that is in them.
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Say nothing of files that do not exist.
    #[arg(short, long)]
    force: bool,
    /// The files.
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    places: Vec<LocationArg>,
}

/// Removes.
pub fn run(args: &Args) -> Outcome {
    let mut status = 0;
    for text in &args.places {
        let (volume, inside) = location::in_volume(text)?;
        let mut tree = volume::write_tree(&volume)?;
        let result = remove(&mut tree, &inside, args.recursive);
        volume::close_tree(&volume, tree)?;
        match result {
            Err((_, error)) if args.force && error.kind() == io::ErrorKind::NotFound => {}
            Err((path, error)) => {
                let place = Location::Volume(volume, path);
                let hint = match error.raw_os_error() {
                    Some(libc::EISDIR) => "; remove directories with -r",
                    _ => "",
                };
                eprintln!("atoll: cannot remove {place}: {error}{hint}");
                status = FAILED;
            }
            Ok(()) => {}
        }
    }
    Ok(status)
}

/// Removes `path`, and with `recursive` what is in it. The error says where it stopped.
pub fn remove(
    tree: &mut dyn Tree,
    path: &Path,
    recursive: bool,
) -> Result<(), (PathBuf, io::Error)> {
    let at = |error| (path.to_owned(), error);
    if !tree.meta(path, false).map_err(at)?.is_dir() {
        return tree.unlink(path).map_err(at);
    }
    if !recursive {
        return Err(at(io::Error::from_raw_os_error(libc::EISDIR)));
    }
    // Directories that are being emptied, the innermost last: a stack of our own, since a tree
    // may be deeper than a thread's.
    let mut ahead = vec![(path.to_owned(), false)];
    while let Some((path, emptied)) = ahead.pop() {
        let at = |error| (path.clone(), error);
        if emptied {
            // The root stays: it is empty, which is what could be asked for.
            if path.file_name().is_some() {
                tree.remove_dir(&path).map_err(at)?;
            }
        } else if tree.meta(&path, false).map_err(at)?.is_dir() {
            let names = tree.list(&path).map_err(at)?;
            ahead.push((path.clone(), true));
            ahead.extend(names.into_iter().rev().map(|name| (path.join(name), false)));
        } else {
            tree.unlink(&path).map_err(at)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::VolumeTree;
    use atoll_vfs::model::ModelFs;

    #[test]
    fn deep_trees() {
        let mut tree = VolumeTree::new(ModelFs::default());
        let mut path = PathBuf::from("/d");
        for _ in 0..300 {
            tree.make_dir(&path, 0o755).unwrap();
            let file = tree.create(&path.join("f"), 0o644).unwrap();
            tree.close(file).unwrap();
            path.push("d");
        }
        let refused = remove(&mut tree, Path::new("/d"), false).unwrap_err();
        assert_eq!(refused.1.raw_os_error(), Some(libc::EISDIR));
        remove(&mut tree, Path::new("/d/f"), false).unwrap();
        remove(&mut tree, Path::new("/d"), true).unwrap();
        assert!(tree.list(Path::new("/")).unwrap().is_empty());
        remove(&mut tree, Path::new("/"), true).unwrap();
    }
}
