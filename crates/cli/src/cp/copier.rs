//! Copying one tree. The source is opened before its target is touched, and what a target held is
//! there until its copy is whole: a copy of what exists is made beside it, as
//! `.atoll-cp-PROCESS-NUMBER`, and takes its name then. A process that is killed leaves it there.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use atoll_vfs::{Attr, FileType};
use indicatif::ProgressBar;

use crate::failure::Failure;
use crate::location::Location;
use crate::progress;
use crate::tree::{Meta, Tree};
use crate::volume;

/// How much is read and written at once, in bytes.
const PIECE: usize = 1 << 20;

/// A tree of files that copiers share.
pub type SharedTree = Rc<RefCell<dyn Tree>>;

/// The options of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Copy directories with all that is in them.
    pub recursive: bool,
    /// Show no progress.
    pub quiet: bool,
    /// Replace volumes.
    pub force: bool,
    /// Keep owners.
    pub owner: bool,
    /// The command line names the target itself, and not the directory that it is in: a link or
    /// a device of that name is meant as what it leads to.
    pub named: bool,
}

/// One end of a copy: a tree, and the place in it.
#[derive(Clone)]
pub struct End {
    /// The tree.
    pub tree: SharedTree,
    /// The place in it.
    pub path: PathBuf,
    /// How the place is written.
    pub shown: Location,
}

impl End {
    fn path_of(&self, item: &Item) -> PathBuf {
        join(&self.path, &item.below)
    }

    fn show(&self, path: &Path) -> Location {
        self.shown.at(path)
    }
}

/// How a copy ended. Errors have been said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// All is there.
    All,
    /// Something is missing.
    Some,
    /// The destination takes no more.
    Full,
}

/// Copies one file, or a directory with all that is in it.
pub struct Copier {
    from: End,
    to: End,
    options: Options,
    /// The copies of files that have more names, by the original: each by a name that it has.
    links: HashMap<(u64, u64), PathBuf>,
    failed: bool,
    buffer: Vec<u8>,
}

/// A file to be copied: its path below the source, empty for the source itself.
struct Item {
    below: PathBuf,
    meta: Meta,
}

/// How the bytes of a file are put down.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Put {
    /// Into a new file.
    New,
    /// Into the file that is there.
    Over,
    /// Into a device or pipe, one after the other.
    Stream,
}

impl Copier {
    pub fn new(from: End, to: End, options: Options) -> Copier {
        let (links, buffer) = (HashMap::new(), vec![0; PIECE]);
        Copier { from, to, options, links, failed: false, buffer }
    }

    /// Copies.
    pub fn copy(mut self) -> Result<Copied, Failure> {
        let source = self.from.shown.clone();
        let cannot = |error| Failure::new(format!("cannot copy {source}: {error}"));
        let meta = self.from.tree.borrow_mut().meta(&self.from.path, true).map_err(cannot)?;
        if meta.is_dir() && !self.options.recursive {
            return Err(Failure::new(format!("{source} is a directory; copy directories with -r")));
        }
        if self.one_tree() {
            let there = self.to.tree.borrow_mut().meta(&self.to.path, true);
            if there.is_ok_and(|there| there.id() == meta.id()) {
                let target = self.to.show(&self.to.path);
                return Err(Failure::new(format!("{source} and {target} are the same file")));
            }
            if meta.is_dir() && self.is_inside(meta.id()) {
                return Err(Failure::new(format!("{source} cannot be copied into itself")));
            }
        }
        let items = self.survey(meta);
        let total = items.iter().map(|item| bytes_of(&item.meta)).sum();
        let bar = match self.options.quiet {
            true => ProgressBar::hidden(),
            false => progress::bytes(total, "copying"),
        };
        let mut full = false;
        for item in &items {
            if let Err(error) = self.item(item, &bar) {
                bar.suspend(|| self.complain(item, &error));
                full =
                    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EROFS | libc::EDQUOT));
                if full {
                    break;
                }
            }
        }
        // Last, since entries change the times of their directory and may need its permissions.
        for item in items.iter().rev().filter(|item| item.meta.is_dir()) {
            if let Err(error) = self.finish(item) {
                bar.suspend(|| self.complain(item, &error));
            }
        }
        bar.finish_and_clear();
        Ok(match (full, self.failed) {
            (true, _) => Copied::Full,
            (false, true) => Copied::Some,
            (false, false) => Copied::All,
        })
    }

    /// Whether source and target are in one tree, so that they can be one file.
    fn one_tree(&self) -> bool {
        Rc::ptr_eq(&self.from.tree, &self.to.tree)
    }

    /// Whether the target is somewhere below the directory `id`. A directory above that cannot be
    /// looked at ends the search: all there is to copy is known before anything is made.
    fn is_inside(&self, id: (u64, u64)) -> bool {
        let mut tree = self.to.tree.borrow_mut();
        let mut dir = self.to.path.clone();
        if !tree.meta(&dir, true).is_ok_and(|meta| meta.is_dir()) {
            dir.pop();
            if dir.as_os_str().is_empty() {
                dir.push(".");
            }
        }
        let mut last = None;
        while let Ok(meta) = tree.meta(&dir, true) {
            if meta.id() == id {
                return true;
            }
            // The root is its own parent.
            if last.replace(meta.id()) == Some(meta.id()) {
                break;
            }
            dir.push("..");
        }
        false
    }

    /// Everything that is to be copied, directories before what is in them.
    fn survey(&mut self, meta: Meta) -> Vec<Item> {
        let mut items = Vec::new();
        let mut ahead = vec![Item { below: PathBuf::new(), meta }];
        while let Some(item) = ahead.pop() {
            if item.meta.is_dir() {
                let dir = self.from.path_of(&item);
                let names = self.from.tree.borrow_mut().list(&dir);
                match names {
                    Ok(names) => {
                        for name in names.into_iter().rev() {
                            let path = dir.join(&name);
                            let found = self.from.tree.borrow_mut().meta(&path, false);
                            match found {
                                Ok(meta) => ahead.push(Item { below: item.below.join(name), meta }),
                                Err(error) => self.cannot_read(&path, &error),
                            }
                        }
                    }
                    Err(error) => self.cannot_read(&dir, &error),
                }
            }
            items.push(item);
        }
        items
    }

    fn cannot_read(&mut self, path: &Path, error: &io::Error) {
        say!("cannot read {}: {error}", self.from.show(path));
        self.failed = true;
    }

    fn complain(&mut self, item: &Item, error: &io::Error) {
        let source = self.from.show(&self.from.path_of(item));
        let target = self.to.show(&self.to.path_of(item));
        say!("cannot copy {source} to {target}: {error}");
        self.failed = true;
    }

    fn item(&mut self, item: &Item, bar: &ProgressBar) -> io::Result<()> {
        let (source, target) = (self.from.path_of(item), self.to.path_of(item));
        let there = match self.to.tree.borrow_mut().meta(&target, false) {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if item.meta.is_dir() {
            return match there {
                Some(there) if there.is_dir() => Ok(()),
                Some(_) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
                // Entries can be made in it whatever its own mode, which comes last.
                None => self.to.tree.borrow_mut().make_dir(&target, item.meta.mode | 0o700),
            };
        }
        let Some(there) = there else {
            self.make(item, &source, &target, bar)?;
            let whole = self.attributes_of_new(item, &source, &target);
            self.note_name(item, &target);
            return whole;
        };
        if there.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        }
        if self.one_tree() && there.id() == item.meta.id() {
            return Err(io::Error::other("they are the same file"));
        }
        let named = self.options.named && item.below.as_os_str().is_empty();
        if named && there.file_type() != FileType::Regular {
            return self.through(item, &source, &target, bar);
        }
        if there.file_type() == FileType::Regular {
            self.spare_volumes(&target)?;
        }
        let beside = self.beside(&target);
        self.make(item, &source, &beside, bar)?;
        let whole = self.attributes_of_new(item, &source, &beside);
        // Another name of what was there keeps it.
        let renamed = self.to.tree.borrow_mut().rename(&beside, &target);
        match renamed {
            Ok(()) => self.note_name(item, &target),
            Err(_) => {
                // The reason that it has no other name is said.
                let _ = self.to.tree.borrow_mut().unlink(&beside);
            }
        }
        renamed.and(whole)
    }

    /// Has the other names of the original become names of its copy, which is at `target` now.
    fn note_name(&mut self, item: &Item, target: &Path) {
        if item.meta.nlink > 1 {
            self.links.entry(item.meta.id()).or_insert_with(|| target.to_owned());
        }
    }

    /// A name beside `target` that nothing has.
    fn beside(&self, target: &Path) -> PathBuf {
        let mut tree = self.to.tree.borrow_mut();
        let free = |name: &PathBuf| tree.meta(name, false).is_err();
        let names = (0..).map(|n| format!(".atoll-cp-{}-{n}", std::process::id()));
        names.map(|name| target.with_file_name(name)).find(free).unwrap_or_default()
    }

    /// Refuses a target that is a volume: whoever names one means a place in it.
    fn spare_volumes(&self, target: &Path) -> io::Result<()> {
        if !self.to.tree.borrow_mut().is_volume(target)? {
            return Ok(());
        }
        if volume::is_in_use(target) {
            return Err(io::Error::other("it is an Atoll volume that is in use"));
        }
        if self.options.force {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "it is an Atoll volume; write {}:/ for what is in it, or replace all of it with --force",
            target.display()
        )))
    }

    /// Copies to what `target` leads to, or into the device that it is, as cp(1) does. The file
    /// there keeps its attributes.
    fn through(
        &mut self,
        item: &Item,
        source: &Path,
        target: &Path,
        bar: &ProgressBar,
    ) -> io::Result<()> {
        let found = self.to.tree.borrow_mut().meta(target, true);
        let there = match found {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(io::Error::other("it is a symbolic link that leads nowhere"));
            }
            found => found?,
        };
        if item.meta.file_type() != FileType::Regular {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        match there.file_type() {
            FileType::Regular => {
                self.spare_volumes(target)?;
                self.content(source, target, Put::Over, bar)
            }
            FileType::BlockDevice => {
                self.spare_volumes(target)?;
                self.content(source, target, Put::Stream, bar)
            }
            _ => self.content(source, target, Put::Stream, bar),
        }
    }

    /// Makes a copy of what is no directory with the new name `name`, without its attributes. A
    /// copy whose bytes are not all there does not stay.
    fn make(
        &mut self,
        item: &Item,
        source: &Path,
        name: &Path,
        bar: &ProgressBar,
    ) -> io::Result<()> {
        let meta = &item.meta;
        if meta.nlink > 1
            && let Some(first) = self.links.get(&meta.id())
        {
            bar.inc(bytes_of(meta));
            return self.to.tree.borrow_mut().hard_link(first, name);
        }
        match meta.file_type() {
            FileType::Regular => self.content(source, name, Put::New, bar),
            FileType::Symlink => {
                let link = self.from.tree.borrow_mut().read_link(source)?;
                self.to.tree.borrow_mut().make_link(name, &link)
            }
            _ => self.to.tree.borrow_mut().make_node(name, meta),
        }
    }

    /// Gives what [`make`](Copier::make) has made its attributes, unless it is another name of a
    /// copy, which has them.
    fn attributes_of_new(&mut self, item: &Item, source: &Path, name: &Path) -> io::Result<()> {
        if self.links.contains_key(&item.meta.id()) {
            return Ok(());
        }
        self.attributes(source, name, &item.meta)
    }

    fn content(
        &mut self,
        source: &Path,
        target: &Path,
        put: Put,
        bar: &ProgressBar,
    ) -> io::Result<()> {
        let (from, to) = (Rc::clone(&self.from.tree), Rc::clone(&self.to.tree));
        let input = from.borrow_mut().open(source)?;
        let opened = match put {
            Put::New => to.borrow_mut().create(target, 0o600),
            Put::Over | Put::Stream => to.borrow_mut().overwrite(target),
        };
        let output = match opened {
            Ok(output) => output,
            Err(error) => {
                let _ = from.borrow_mut().close(input);
                return Err(error);
            }
        };
        let result = self.bytes(input, output, put, bar);
        let closed = to.borrow_mut().close(output);
        let result = from.borrow_mut().close(input).and(result).and(closed);
        if result.is_err() && put == Put::New {
            // The reason it is not whole is said.
            let _ = to.borrow_mut().unlink(target);
        }
        result
    }

    /// Copies the bytes of the open file `input` to `output`, without the holes. The length that a
    /// file says it has is believed only of holes: files that a kernel makes up say none, or one
    /// that is too large.
    fn bytes(&mut self, input: i32, output: i32, put: Put, bar: &ProgressBar) -> io::Result<()> {
        let (from, to) = (Rc::clone(&self.from.tree), Rc::clone(&self.to.tree));
        let mut offset = 0;
        loop {
            let data = match put {
                Put::Stream => None,
                Put::New | Put::Over => from.borrow_mut().next_data(input, offset)?,
            };
            // Behind the last data is a hole, or bytes that nobody has announced.
            let (start, end) = match (data, put) {
                (Some(data), _) => data,
                (None, Put::Stream) => (offset, u64::MAX),
                (None, _) => (offset.max(from.borrow_mut().len(input)?), u64::MAX),
            };
            offset = start;
            while offset < end {
                let piece = self.buffer.len().min(usize::try_from(end - offset).unwrap_or(PIECE));
                let got = from.borrow_mut().read(input, offset, &mut self.buffer[..piece])?;
                if got == 0 {
                    return match put {
                        Put::Stream => Ok(()),
                        Put::New | Put::Over => to.borrow_mut().set_len(output, offset),
                    };
                }
                to.borrow_mut().write(output, offset, &self.buffer[..got])?;
                offset += got as u64;
                bar.inc(got as u64);
            }
        }
    }

    fn attributes(&mut self, source: &Path, target: &Path, meta: &Attr) -> io::Result<()> {
        let attributes = if meta.file_type() == FileType::Regular || meta.is_dir() {
            self.from.tree.borrow_mut().attributes(source)?
        } else {
            Vec::new()
        };
        let mut to = self.to.tree.borrow_mut();
        for (name, value) in attributes {
            match to.set_attribute(target, &name, &value) {
                // The destination's file system has none.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                other => other?,
            }
        }
        let mut meta = *meta;
        if !self.options.owner {
            // They gave the rights of an owner who is another now.
            meta.mode &= !0o6000;
        }
        to.set_meta(target, &meta, self.options.owner)
    }

    fn finish(&mut self, item: &Item) -> io::Result<()> {
        let (source, target) = (self.from.path_of(item), self.to.path_of(item));
        match self.to.tree.borrow_mut().meta(&target, false) {
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
fn bytes_of(meta: &Attr) -> u64 {
    if meta.file_type() == FileType::Regular { meta.size.min(meta.blocks * 512) } else { 0 }
}
