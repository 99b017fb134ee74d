//! `atoll cp`: copies files into volumes, out of them, and between them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use atoll_vfs::{Attr, FileType};
use indicatif::ProgressBar;

use crate::failure::{FAILED, Failure, Outcome};
use crate::location::{Location, LocationArg};
use crate::progress;
use crate::tree::{HostTree, Tree, VolumeTree};
use crate::volume::{self, Volume};

/// How much is read and written at once, in bytes.
const PIECE: usize = 1 << 20;

/// Copy files into volumes, out of them, and between them.
///
/// Permissions, times, holes, hard links among what is copied, symbolic links and users' extended
/// attributes are kept; owners too when the superuser copies, or from volume to volume. What a
/// command line names is copied even where a symbolic link stands for it.
#[derive(clap::Args)]
pub struct Args {
    /// Copy directories with all that is in them.
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Show no progress.
    #[arg(short, long)]
    quiet: bool,
    /// What to copy, and last where to: VOLUME:/PATH inside a volume, PATH outside.
    #[arg(required = true, num_args = 2.., value_name = "PLACE")]
    places: Vec<LocationArg>,
}

type SharedTree = Rc<RefCell<dyn Tree>>;

/// The trees in use. A volume is opened once, for writing if it is the destination.
struct Trees {
    host: SharedTree,
    volumes: Vec<(PathBuf, Rc<RefCell<VolumeTree<Volume>>>)>,
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
                let tree = if write { volume::write_tree(path)? } else { volume::read_tree(path)? };
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
                volume::close_tree(&path, tree.into_inner())?;
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
        let (from, path) = trees.of(&source, false)?;
        let mut target = target.clone();
        if into && let Some(name) = path.file_name() {
            target.push(name);
        }
        let same = Rc::ptr_eq(&from, &to);
        let both_volumes =
            matches!((&source, &destination), (Location::Volume(..), Location::Volume(..)));
        let copier = Copier {
            from,
            to: Rc::clone(&to),
            owner: rustix::process::geteuid().is_root() || both_volumes,
            links: HashMap::new(),
            failed: false,
            buffer: vec![0; PIECE],
        };
        if same && target == path {
            return Err(Failure::new(format!("{source} and {destination} are the same file")));
        }
        if !copier.copy(args, &source, &path, &target, same)? {
            status = FAILED;
        }
    }
    Ok(status)
}

struct Copier {
    from: SharedTree,
    to: SharedTree,
    owner: bool,
    /// The copies of files that have more names, by the original's number.
    links: HashMap<u64, PathBuf>,
    failed: bool,
    buffer: Vec<u8>,
}

/// A file to be copied: its path below the source, empty for the source itself.
struct Item {
    below: PathBuf,
    meta: Attr,
}

impl Copier {
    /// Copies `path` to `target`. Returns whether all went well; what did not has been said.
    fn copy(
        mut self,
        args: &Args,
        source: &Location,
        path: &Path,
        target: &Path,
        same: bool,
    ) -> Result<bool, Failure> {
        let cannot = |error| Failure::new(format!("cannot copy {source}: {error}"));
        let meta = self.from.borrow_mut().meta(path, true).map_err(cannot)?;
        if meta.is_dir() && !args.recursive {
            return Err(Failure::new(format!("{source} is a directory; copy directories with -r")));
        }
        if meta.is_dir() && same && target.starts_with(path) {
            return Err(Failure::new(format!("{source} cannot be copied into itself")));
        }
        let items = self.survey(path, meta);
        let total = items.iter().map(|item| volume_of(&item.meta)).sum();
        let bar =
            if args.quiet { ProgressBar::hidden() } else { progress::bytes(total, "copying") };
        for item in &items {
            if let Err(error) = self.item(item, path, target, &bar) {
                let stop =
                    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EROFS | libc::EDQUOT));
                bar.suspend(|| {
                    eprintln!("atoll: cannot copy {}: {error}", path.join(&item.below).display());
                });
                self.failed = true;
                if stop {
                    break;
                }
            }
        }
        // Last, since entries change the times of their directory and may need its permissions.
        for item in items.iter().rev().filter(|item| item.meta.is_dir()) {
            if let Err(error) = self.finish(path, target, item) {
                bar.suspend(|| {
                    eprintln!("atoll: {}: {error}", join(target, &item.below).display())
                });
                self.failed = true;
            }
        }
        bar.finish_and_clear();
        Ok(!self.failed)
    }

    /// Everything that is to be copied, directories before what is in them.
    fn survey(&mut self, path: &Path, meta: Attr) -> Vec<Item> {
        let mut items = Vec::new();
        let mut ahead = vec![Item { below: PathBuf::new(), meta }];
        while let Some(item) = ahead.pop() {
            if item.meta.is_dir() {
                let dir = join(path, &item.below);
                let names = self.from.borrow_mut().list(&dir);
                match names {
                    Ok(names) => {
                        for name in names.into_iter().rev() {
                            let below = item.below.join(name);
                            let found = self.from.borrow_mut().meta(&path.join(&below), false);
                            match found {
                                Ok(meta) => ahead.push(Item { below, meta }),
                                Err(error) => self.complain(&path.join(&below), &error),
                            }
                        }
                    }
                    Err(error) => self.complain(&dir, &error),
                }
            }
            items.push(item);
        }
        items
    }

    fn complain(&mut self, path: &Path, error: &io::Error) {
        eprintln!("atoll: cannot read {}: {error}", path.display());
        self.failed = true;
    }

    fn item(
        &mut self,
        item: &Item,
        path: &Path,
        target: &Path,
        bar: &ProgressBar,
    ) -> io::Result<()> {
        let (source, target) = (join(path, &item.below), join(target, &item.below));
        let meta = &item.meta;
        let there = match self.to.borrow_mut().meta(&target, false) {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if meta.is_dir() {
            return match there {
                Some(there) if there.is_dir() => Ok(()),
                Some(_) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
                // Entries can be made in it whatever its own mode, which comes last.
                None => self.to.borrow_mut().make_dir(&target, meta.mode | 0o700),
            };
        }
        if let Some(there) = there {
            if there.is_dir() {
                return Err(io::Error::from_raw_os_error(libc::EISDIR));
            }
            // Another name of it keeps what it has.
            self.to.borrow_mut().unlink(&target)?;
        }
        if meta.nlink > 1 {
            if let Some(first) = self.links.get(&meta.ino.0) {
                bar.inc(volume_of(meta));
                return self.to.borrow_mut().hard_link(first, &target);
            }
            self.links.insert(meta.ino.0, target.clone());
        }
        match meta.file_type() {
            FileType::Regular => self.content(&source, &target, meta, bar)?,
            FileType::Symlink => {
                let link = self.from.borrow_mut().read_link(&source)?;
                self.to.borrow_mut().make_link(&target, &link)?;
            }
            _ => self.to.borrow_mut().make_node(&target, meta)?,
        }
        self.attributes(&source, &target, meta)
    }

    fn content(
        &mut self,
        source: &Path,
        target: &Path,
        meta: &Attr,
        bar: &ProgressBar,
    ) -> io::Result<()> {
        let (from, to) = (Rc::clone(&self.from), Rc::clone(&self.to));
        let input = from.borrow_mut().open(source)?;
        let output = match to.borrow_mut().create(target, 0o600) {
            Ok(output) => output,
            Err(error) => {
                let _ = from.borrow_mut().close(input);
                return Err(error);
            }
        };
        let mut copy = || -> io::Result<()> {
            let mut offset = 0;
            loop {
                let data = from.borrow_mut().next_data(input, offset)?;
                let Some((start, end)) = data else { break };
                offset = start;
                while offset < end {
                    let piece = PIECE.min((end - offset) as usize);
                    let got = from.borrow_mut().read(input, offset, &mut self.buffer[..piece])?;
                    if got == 0 {
                        break;
                    }
                    to.borrow_mut().write(output, offset, &self.buffer[..got])?;
                    offset += got as u64;
                    bar.inc(got as u64);
                }
                if offset < end {
                    break;
                }
            }
            to.borrow_mut().set_len(output, meta.size.max(offset))
        };
        let result = copy();
        let closed = to.borrow_mut().close(output);
        from.borrow_mut().close(input)?;
        result.and(closed)
    }

    fn attributes(&mut self, source: &Path, target: &Path, meta: &Attr) -> io::Result<()> {
        let attributes = if meta.file_type() == FileType::Regular || meta.is_dir() {
            self.from.borrow_mut().attributes(source)?
        } else {
            Vec::new()
        };
        let mut to = self.to.borrow_mut();
        for (name, value) in attributes {
            match to.set_attribute(target, &name, &value) {
                // The destination's file system has none.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                other => other?,
            }
        }
        let mut meta = *meta;
        if !self.owner {
            // They gave the rights of an owner who is another now.
            meta.mode &= !0o6000;
        }
        to.set_meta(target, &meta, self.owner)
    }

    fn finish(&mut self, path: &Path, target: &Path, item: &Item) -> io::Result<()> {
        let (source, target) = (join(path, &item.below), join(target, &item.below));
        match self.to.borrow_mut().meta(&target, false) {
            Ok(meta) if meta.is_dir() => {}
            // It could not be made, which has been said.
            _ => return Ok(()),
        }
        self.attributes(&source, &target, &item.meta)
    }
}

/// `path` itself if `below` is empty: joining would add a slash, and with it follow a link.
fn join(path: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { path.to_owned() } else { path.join(below) }
}

/// The bytes that copying a file moves.
fn volume_of(meta: &Attr) -> u64 {
    if meta.file_type() == FileType::Regular { meta.size.min(meta.blocks * 512) } else { 0 }
}
