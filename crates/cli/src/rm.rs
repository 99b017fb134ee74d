//! `atoll rm`: removes files of a volume.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::vec::IntoIter;

use atoll_posix::{AT_FDCWD, AtFlags, Errno, OFlags};
use atoll_vfs::FileSystem;

use crate::failure::{FAILED, Failure, Outcome};
use crate::location::{Location, LocationArg};
use crate::tree::{self, VolumeTree, error, names};

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
        // A user who names a file of the system does not mean all that is in it.
        let Location::Volume(volume, inside) = Location::parse(text) else {
            return Err(Failure::new(format!(
                "{0} names no place in a volume: write VOLUME:/PATH; {0}:/ is all that is in it",
                text.display()
            )));
        };
        let mut tree = tree::write_tree(&volume)?;
        let result = remove(&mut tree, &inside, args.recursive);
        tree::close_tree(&volume, tree)?;
        match result {
            Err((_, Errno::ENOENT)) if args.force => {}
            Err((path, errno)) => {
                let place = Location::Volume(volume, path);
                let error = error(errno);
                let hint = match errno {
                    Errno::EISDIR => "; remove directories with -r",
                    _ => "",
                };
                say!("cannot remove {place}: {error}{hint}");
                status = FAILED;
            }
            Ok(()) => {}
        }
    }
    Ok(status)
}

/// A directory that is being emptied.
struct Emptied {
    name: OsString,
    fd: i32,
    names: IntoIter<OsString>,
}

/// Removes `path`, and with `recursive` what is in it. The error says where it stopped.
fn remove<F: FileSystem>(
    tree: &mut VolumeTree<F>,
    path: &Path,
    recursive: bool,
) -> Result<(), (PathBuf, Errno)> {
    let (mut open, mut name) = (Vec::new(), path.as_os_str().to_owned());
    remove_all(tree, recursive, &mut open, &mut name)
        .map_err(|errno| (open.iter().map(|dir| &dir.name).chain([&name]).collect(), errno))
}

/// Removes `name`. Directories that are being emptied are in `open`, the innermost last: a stack of
/// our own and descriptors, since a tree may be deeper than a thread's stack and than a path.
fn remove_all<F: FileSystem>(
    tree: &mut VolumeTree<F>,
    recursive: bool,
    open: &mut Vec<Emptied>,
    name: &mut OsString,
) -> Result<(), Errno> {
    loop {
        let dirfd = open.last().map_or(AT_FDCWD, |dir| dir.fd);
        match tree.unlinkat(dirfd, name.as_bytes(), AtFlags::empty()) {
            Err(Errno::EISDIR) if recursive => {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
                let fd = tree.openat(dirfd, name.as_bytes(), flags, 0)?;
                let names = names(tree, fd)?.into_iter();
                open.push(Emptied { name: name.clone(), fd, names });
            }
            removed => removed?,
        }
        *name = loop {
            let Some(dir) = open.last_mut() else { return Ok(()) };
            if let Some(name) = dir.names.next() {
                break name;
            }
            tree.close(dir.fd)?;
            *name = std::mem::take(&mut dir.name);
            open.pop();
            let dirfd = open.last().map_or(AT_FDCWD, |dir| dir.fd);
            match tree.unlinkat(dirfd, name.as_bytes(), AtFlags::REMOVEDIR) {
                // The root stays: it is empty, which is what could be asked for.
                Err(Errno::EBUSY) if open.is_empty() => {}
                removed => removed?,
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree;
    use atoll_vfs::model::ModelFs;

    #[test]
    fn deep_trees() {
        let mut tree = tree(ModelFs::default());
        // Deeper than a path can say.
        for _ in 0..3000 {
            tree.mkdir(b"d", 0o755).unwrap();
            tree.chdir(b"d").unwrap();
            let fd = tree.open(b"f", OFlags::WRONLY | OFlags::CREAT, 0o644).unwrap();
            tree.close(fd).unwrap();
        }
        tree.chdir(b"/").unwrap();
        let refused = remove(&mut tree, Path::new("/d"), false).unwrap_err();
        assert_eq!(refused, ("/d".into(), Errno::EISDIR));
        remove(&mut tree, Path::new("/d/f"), false).unwrap();
        remove(&mut tree, Path::new("/d"), true).unwrap();
        assert_eq!(tree.stat(b"/d").unwrap_err(), Errno::ENOENT);
        remove(&mut tree, Path::new("/"), true).unwrap();
    }
}
