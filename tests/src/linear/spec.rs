//! The meaning of operations, one after the other: the names as one object, each file's data
//! another.
//!
//! Linearizability is local: a history is linearizable if its part on each object is. An
//! operation that shows two objects (`Stat`: links and size) is checked in both parts by itself.

use super::history::{Call, DIRS, FILES, NAMES, Op, Outcome, Page, Place, Seen};
use atoll_vfs::Errno;

/// A sequential object.
pub trait Spec: Clone + Eq + std::hash::Hash {
    /// Whether `op` is one on this object.
    fn concerns(&self, op: &Op) -> bool;

    /// Does `op`. False if it cannot have answered `seen` in this state; `None`: its client got no
    /// answer.
    fn apply(&mut self, op: &Op, seen: Option<&Outcome>) -> bool;

    /// Whether `op` can have answered this in this state without having been done.
    fn did_nothing(&self, op: &Op, seen: Option<&Outcome>) -> bool {
        let _ = (op, seen);
        false
    }
}

/// Whether the seen value, if there is one, is `value`.
fn is<T: PartialEq>(seen: Option<T>, value: T) -> bool {
    seen.is_none_or(|seen| seen == value)
}

/// The answer of an operation that succeeds, or `None` if it answered with an error.
fn success(seen: Option<&Outcome>) -> Option<Seen> {
    match seen {
        None => Some(Seen::default()),
        Some(outcome) => outcome.clone().ok(),
    }
}

/// The kernel's part in the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Nothing: the file seam.
    None,
    /// The file system is its own. It gives no name to a file that has lost all.
    Alone,
    /// Calls come through FUSE mounts of which each knows nothing of the others. The kernel's
    /// requests to the file system are linearizable; its conclusions from several answers may not
    /// be.
    Between,
}

/// The rules of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// The kernel's part.
    pub kernel: Kernel,
    /// The open files have one more name, which no operation touches: they outlive their clients.
    pub kept: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    is_dir: bool,
    nlink: u32,
    /// The inode number, once somebody saw it.
    ino: Option<u64>,
}

/// The names of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Names {
    entries: [[Option<usize>; NAMES]; DIRS],
    /// The first ones are the open files.
    nodes: Vec<Node>,
    rules: Rules,
}

impl Names {
    /// The world before the first operation.
    pub fn new(rules: Rules) -> Self {
        let mut entries = [[None; NAMES]; DIRS];
        for (file, entry) in entries[0].iter_mut().take(FILES).enumerate() {
            *entry = Some(file);
        }
        let node = Node { is_dir: false, nlink: 1 + u32::from(rules.kept), ino: None };
        Names { entries, nodes: vec![node; FILES], rules }
    }

    /// Whether the number `ino` can be that of `node`; from now on it is.
    fn identify(&mut self, node: usize, ino: Option<u64>) -> bool {
        let Some(ino) = ino else { return true };
        // Linux may give the number of a file that is gone to a new one.
        let live = |(i, other): (usize, &Node)| i < FILES || other.nlink > 0;
        let taken = self
            .nodes
            .iter()
            .enumerate()
            .any(|(i, other)| i != node && live((i, other)) && other.ino == Some(ino));
        !taken && *self.nodes[node].ino.get_or_insert(ino) == ino
    }

    fn drop_name(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.nlink = if node.is_dir { 0 } else { node.nlink - 1 };
    }

    /// The errors with which `op` may fail now. None: it succeeds.
    fn errors(&self, op: &Op) -> Vec<Errno> {
        let at = |place: (usize, usize)| self.entries[place.0][place.1];
        let is_dir = |node: usize| self.nodes[node].is_dir;
        let mut errors = Vec::new();
        let mut fails = |condition: bool, error: Errno| {
            if condition {
                errors.push(error);
            }
        };
        match *op {
            Op::Create(a) | Op::Mkdir(a) => fails(at(a).is_some(), Errno::EEXIST),
            Op::Lookup(a) => fails(at(a).is_none(), Errno::ENOENT),
            Op::Unlink(a) => {
                fails(at(a).is_none(), Errno::ENOENT);
                fails(at(a).is_some_and(is_dir), Errno::EISDIR);
            }
            Op::Rmdir(a) => {
                fails(at(a).is_none(), Errno::ENOENT);
                fails(at(a).is_some_and(|node| !is_dir(node)), Errno::ENOTDIR);
            }
            Op::Rename(a, b) => {
                fails(at(a).is_none(), Errno::ENOENT);
                if let (Some(a), Some(b)) = (at(a), at(b)) {
                    fails(!is_dir(a) && is_dir(b), Errno::EISDIR);
                    fails(is_dir(a) && !is_dir(b), Errno::ENOTDIR);
                }
            }
            Op::RenameNew(a, b) => {
                fails(at(a).is_none(), Errno::ENOENT);
                fails(at(b).is_some(), Errno::EEXIST);
            }
            Op::Exchange(a, b) => fails(at(a).is_none() || at(b).is_none(), Errno::ENOENT),
            Op::Link(file, b) => {
                fails(at(b).is_some(), Errno::EEXIST);
                fails(
                    self.rules.kernel == Kernel::Alone && self.nodes[file].nlink == 0,
                    Errno::ENOENT,
                );
            }
            _ => {}
        }
        errors
    }
}

impl Spec for Names {
    // The kernel of a mount may have answered by itself, from its last look.
    fn did_nothing(&self, op: &Op, outcome: Option<&Outcome>) -> bool {
        let Some(outcome) = outcome.filter(|_| self.rules.kernel == Kernel::Between) else {
            return false;
        };
        let failed = |errno: Errno| *outcome == Err(errno.raw());
        let target = |place: Place| self.entries[place.0][place.1];
        match *op {
            // The two names were looked up one after the other. With the same file found twice,
            // nothing is to be done.
            Op::Rename(a, b) => target(b).is_some_and(|node| match self.nodes[node].is_dir {
                true => failed(Errno::EISDIR),
                false => failed(Errno::ENOTDIR) || outcome.is_ok() && target(a) != Some(node),
            }),
            // It knows the number of links as of some time ago.
            Op::Link(..) => failed(Errno::ENOENT),
            _ => false,
        }
    }

    fn concerns(&self, op: &Op) -> bool {
        !matches!(op, Op::Read(..) | Op::Write(..) | Op::Append(..) | Op::Truncate(..))
    }

    fn apply(&mut self, op: &Op, outcome: Option<&Outcome>) -> bool {
        let errors = self.errors(op);
        if !errors.is_empty() {
            return match outcome {
                None => true,
                Some(Err(error)) => errors.iter().any(|e| e.raw() == *error),
                Some(Ok(_)) => false,
            };
        }
        let Some(seen) = success(outcome) else { return false };
        match *op {
            Op::Create(a) | Op::Mkdir(a) => {
                let is_dir = matches!(op, Op::Mkdir(_));
                let nlink = if is_dir { 2 } else { 1 };
                self.nodes.push(Node { is_dir, nlink, ino: None });
                let node = self.nodes.len() - 1;
                self.entries[a.0][a.1] = Some(node);
                is(seen.nlink, nlink) && self.identify(node, seen.ino)
            }
            Op::Unlink(a) | Op::Rmdir(a) => {
                let node = self.entries[a.0][a.1].take();
                node.into_iter().for_each(|node| self.drop_name(node));
                true
            }
            Op::Rename(a, b) | Op::RenameNew(a, b) => {
                let (from, to) = (self.entries[a.0][a.1], self.entries[b.0][b.1]);
                if from != to {
                    to.into_iter().for_each(|node| self.drop_name(node));
                    self.entries[a.0][a.1] = None;
                    self.entries[b.0][b.1] = from;
                }
                true
            }
            Op::Exchange(a, b) => {
                let (from, to) = (self.entries[a.0][a.1], self.entries[b.0][b.1]);
                self.entries[a.0][a.1] = to;
                self.entries[b.0][b.1] = from;
                true
            }
            Op::Link(file, b) => {
                self.entries[b.0][b.1] = Some(file);
                self.nodes[file].nlink += 1;
                is(seen.nlink, self.nodes[file].nlink) && self.identify(file, seen.ino)
            }
            Op::Lookup(a) => self.entries[a.0][a.1].is_some_and(|node| {
                is(seen.nlink, self.nodes[node].nlink) && self.identify(node, seen.ino)
            }),
            Op::List(dir) => seen.list.is_none_or(|list| {
                list.iter().zip(self.entries[dir]).all(|(ino, node)| match node {
                    None => ino.is_none(),
                    Some(node) => ino.is_some() && self.identify(node, *ino),
                })
            }),
            Op::Stat(file) => {
                is(seen.nlink, self.nodes[file].nlink) && self.identify(file, seen.ino)
            }
            _ => true,
        }
    }
}

/// The data of one open file, which begins empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Data {
    file: usize,
    pages: Vec<u8>,
}

impl Data {
    /// The file number `file`, empty.
    pub fn new(file: usize) -> Self {
        Data { file, pages: Vec::new() }
    }
}

impl Spec for Data {
    fn concerns(&self, op: &Op) -> bool {
        match *op {
            Op::Stat(file)
            | Op::Read(file, _)
            | Op::Write(file, ..)
            | Op::Append(file, _)
            | Op::Truncate(file, _) => file == self.file,
            _ => false,
        }
    }

    fn apply(&mut self, op: &Op, outcome: Option<&Outcome>) -> bool {
        let Some(seen) = success(outcome) else { return false };
        let size = self.pages.len();
        match *op {
            Op::Stat(_) => is(seen.size, size as u64),
            Op::Read(_, page) => {
                let byte = self.pages.get(page as usize);
                is(seen.page, byte.map_or(Page::Absent, |&byte| Page::Filled(byte)))
            }
            Op::Write(_, page, byte) => {
                self.pages.resize(size.max(page as usize + 1), 0);
                self.pages[page as usize] = byte;
                true
            }
            Op::Append(_, byte) => {
                self.pages.push(byte);
                is(seen.at, size as u64)
            }
            Op::Truncate(_, pages) => {
                self.pages.resize(pages as usize, 0);
                true
            }
            _ => true,
        }
    }
}

/// Whether a call changed nothing, so that a history without it is as right as with it.
pub fn is_observer(call: &Call) -> bool {
    let looks = matches!(call.op, Op::Lookup(_) | Op::List(_) | Op::Stat(_) | Op::Read(..));
    looks || matches!(call.returned, Some((_, Err(_))))
}
