//! `atoll cp`: copies files into volumes, out of them, and between them.

mod copier;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::failure::{FAILED, Failure, Outcome};
use crate::location::{Location, LocationArg};
use crate::tree::{self, HostTree, Opened, VolumeTree};

use copier::{Copied, Copier, End, Options, SharedTree};

/// Copy files into volumes, out of them, and between them.
///
/// Permissions, times, holes, hard links among what is copied, symbolic links and users' extended
/// attributes are kept; owners too when the superuser copies, or from volume to volume. What a
/// command line names is copied even where a symbolic link stands for it.
///
/// What is there is replaced once its copy is whole; but what the last place leads to, if it is a
/// symbolic link or a device, is written over. A place without `:/` is a file of the system, also
/// where it is a volume: that is not replaced without --force.
#[derive(clap::Args)]
pub struct Args {
    /// Copy directories with all that is in them.
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Show no progress.
    #[arg(short, long)]
    quiet: bool,
    /// Replace files that are Atoll volumes.
    #[arg(long)]
    force: bool,
    /// What to copy, and last where to: VOLUME:/PATH inside a volume, PATH outside.
    #[arg(required = true, num_args = 2.., value_name = "PLACE")]
    places: Vec<LocationArg>,
}

/// The trees in use. A volume is opened once, for writing if it is the destination.
struct Trees {
    host: SharedTree,
    volumes: Vec<(PathBuf, Rc<RefCell<VolumeTree<Opened>>>)>,
}

impl Trees {
    fn of(&mut self, place: &Location, write: bool) -> Result<(SharedTree, PathBuf), Failure> {
        let (path, inside) = match place {
            Location::Host(path) => return Ok((Rc::clone(&self.host), path.clone())),
            Location::Volume(path, inside) => (path, inside),
        };
        let canonical = path.canonicalize().unwrap_or_else(|_| path.clone());
        let known = self.volumes.iter().find(|(path, _)| *path == canonical);
        let tree = match known {
            Some((_, tree)) => Rc::clone(tree),
            None => {
                let tree = if write { tree::write_tree(path)? } else { tree::read_tree(path)? };
                let tree = Rc::new(RefCell::new(tree));
                self.volumes.push((canonical, Rc::clone(&tree)));
                tree
            }
        };
        Ok((tree, inside.clone()))
    }

    fn close(self) -> Result<(), Failure> {
        for (path, tree) in self.volumes {
            // All other owners of the tree were copiers, which are gone.
            if let Some(tree) = Rc::into_inner(tree) {
                tree::close_tree(&path, tree.into_inner())?;
            }
        }
        Ok(())
    }
}

/// Copies.
pub fn run(args: &Args) -> Outcome {
    let Some((last, sources)) = args.places.split_last() else { return Ok(FAILED) };
    let mut trees = Trees { host: Rc::new(RefCell::new(HostTree::default())), volumes: Vec::new() };
    let result = copy_all(args, sources, last, &mut trees);
    trees.close()?;
    result
}

fn copy_all(args: &Args, sources: &[LocationArg], last: &OsStr, trees: &mut Trees) -> Outcome {
    let destination = Location::parse(last);
    // First, since a volume that is also read must be opened for writing.
    let (to, target) = trees.of(&destination, true)?;
    let into = to.borrow_mut().meta(&target, true).is_ok_and(|meta| meta.is_dir());
    if !into && (sources.len() > 1 || last.as_bytes().ends_with(b"/")) {
        return Err(Failure::new(format!(
            "{destination} is no directory; make it first, or copy to a name in one that is there"
        )));
    }
    let mut status = 0;
    for text in sources {
        let source = Location::parse(text);
        match copy_one(args, source, &destination, (&to, &target, into), trees) {
            Ok(Copied::All) => {}
            Ok(Copied::Some) => status = FAILED,
            Ok(Copied::Full) => return Ok(FAILED),
            Err(failure) => {
                say!("{failure}");
                status = FAILED;
            }
        }
    }
    Ok(status)
}

/// Copies `source` to the place `target` in the tree `to`, or `into` the directory that is there.
fn copy_one(
    args: &Args,
    source: Location,
    destination: &Location,
    (to, target, into): (&SharedTree, &Path, bool),
    trees: &mut Trees,
) -> Result<Copied, Failure> {
    let (from, path) = trees.of(&source, false)?;
    let mut target = target.to_owned();
    if into && let Some(name) = path.file_name() {
        target.push(name);
    }
    let both_volumes =
        matches!((&source, destination), (Location::Volume(..), Location::Volume(..)));
    let options = Options {
        recursive: args.recursive,
        quiet: args.quiet,
        force: args.force,
        owner: rustix::process::geteuid().is_root() || both_volumes,
        named: !into,
    };
    let to = End { tree: Rc::clone(to), path: target, shown: destination.clone() };
    Copier::new(End { tree: from, path, shown: source }, to, options).copy()
}
