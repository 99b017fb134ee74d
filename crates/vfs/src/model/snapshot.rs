//! A file system's whole namespace and content as one comparable value.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use super::content::BLOCK;
use crate::errno::{Errno, Result};
use crate::filesystem::FileSystem;
use crate::types::*;

/// The timestamps of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change of content or attributes.
    pub ctime: Timespec,
    /// Creation.
    pub btime: Timespec,
}

/// The bytes of a regular file. Equal if every byte is: a hole equals written zeros.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FileContent {
    /// Length in bytes.
    pub size: u64,
    /// The blocks of 4096 bytes that are not all zero, by index; past the end of file, zeros.
    pub blocks: BTreeMap<u64, Vec<u8>>,
}

impl FileContent {
    /// The byte at `offset`, zero past the end.
    pub fn byte(&self, offset: u64) -> u8 {
        self.blocks.get(&(offset / BLOCK)).map_or(0, |block| block[(offset % BLOCK) as usize])
    }

    fn digest(&self) -> u64 {
        let mut hash = Fnv::new();
        hash.number(self.size);
        for (index, block) in &self.blocks {
            hash.number(*index);
            hash.bytes(block);
        }
        hash.0
    }
}

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, digest {:016x}", self.size, self.digest())
    }
}

/// One name of the tree and the inode behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// The timestamps, unless they do not matter.
    pub times: Option<Times>,
    /// Of a regular file.
    pub content: Option<FileContent>,
    /// Of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of this inode in the order of paths: equal for the names of one file.
    pub identity: Vec<u8>,
}

/// A file system's whole namespace and content, by path (`b"/"` is the root, and paths begin with
/// a slash). Inode numbers, sizes of directories and storage are left out: they are the
/// implementor's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Every name.
    pub nodes: BTreeMap<Vec<u8>, Node>,
}

/// Why a walk of a file system failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotError {
    /// A call returned an error on something that the directory listing had just shown.
    Call {
        /// The verb.
        verb: &'static str,
        /// The path it was about.
        path: String,
        /// The error that it returned.
        error: Errno,
    },
    /// Two calls contradicted each other.
    Inconsistent {
        /// The path it was about.
        path: String,
        /// The contradiction.
        what: String,
    },
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Call { verb, path, error } => {
                write!(f, "{verb} of {path}: {error} ({})", error.name())
            }
            SnapshotError::Inconsistent { path, what } => write!(f, "{path}: {what}"),
        }
    }
}

impl core::error::Error for SnapshotError {}

impl Snapshot {
    /// The same tree with timestamps left out of comparisons.
    pub fn without_times(mut self) -> Snapshot {
        for node in self.nodes.values_mut() {
            node.times = None;
        }
        self
    }

    /// A number that is the same for equal snapshots and, but for a small chance, differs for
    /// others. The same on every machine.
    pub fn digest(&self) -> u64 {
        let mut hash = Fnv::new();
        for (path, node) in &self.nodes {
            hash.field(path);
            for number in [node.mode, node.nlink, node.uid, node.gid, node.rdev] {
                hash.number(number.into());
            }
            if let Some(Times { atime, mtime, ctime, btime }) = node.times {
                for time in [atime, mtime, ctime, btime] {
                    hash.number(time.sec as u64);
                    hash.number(time.nsec.into());
                }
            }
            hash.number(node.content.as_ref().map_or(0, FileContent::digest));
            hash.field(node.target.as_deref().unwrap_or_default());
            hash.number(node.xattrs.len() as u64);
            for (name, value) in &node.xattrs {
                hash.field(name);
                hash.field(value);
            }
            hash.field(&node.identity);
        }
        hash.0
    }

    /// The differences from `expected`, at most `limit` lines; empty if nothing does.
    pub fn differences(&self, expected: &Snapshot, limit: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, node) in &self.nodes {
            match expected.nodes.get(path) {
                None => lines.push(format!("{} should not exist: {node:?}", lossy(path))),
                Some(wanted) => node.differences(wanted, path, &mut lines),
            }
        }
        for (path, wanted) in &expected.nodes {
            if !self.nodes.contains_key(path) {
                lines.push(format!("{} is missing, expected {wanted:?}", lossy(path)));
            }
        }
        lines.truncate(limit);
        lines
    }
}

impl Node {
    fn differences(&self, wanted: &Node, path: &[u8], lines: &mut Vec<String>) {
        macro_rules! compare {
            ($($field:ident)*) => {$(
                if self.$field != wanted.$field {
                    lines.push(format!(
                        "{}: {} is {:?}, expected {:?}",
                        lossy(path), stringify!($field), self.$field, wanted.$field
                    ));
                }
            )*};
        }
        compare!(nlink uid gid rdev times target xattrs);
        if self.mode != wanted.mode {
            let name = lossy(path);
            lines.push(format!("{name}: mode is {:o}, expected {:o}", self.mode, wanted.mode));
        }
        if self.identity != wanted.identity {
            let (is, wanted) = (lossy(&self.identity), lossy(&wanted.identity));
            lines.push(format!("{}: one file with {is}, expected with {wanted}", lossy(path)));
        }
        if self.content != wanted.content {
            lines.push(format!(
                "{}: content is {:?}, expected {:?}{}",
                lossy(path),
                self.content,
                wanted.content,
                first_byte(self.content.as_ref(), wanted.content.as_ref()),
            ));
        }
    }
}

/// Where two contents first differ, for people.
fn first_byte(is: Option<&FileContent>, wanted: Option<&FileContent>) -> String {
    let (Some(is), Some(wanted)) = (is, wanted) else { return String::new() };
    let zeros = vec![0; BLOCK as usize];
    let mut indices: Vec<u64> = is.blocks.keys().chain(wanted.blocks.keys()).copied().collect();
    indices.sort_unstable();
    for index in indices {
        let (a, b) = (is.blocks.get(&index), wanted.blocks.get(&index));
        let (a, b) = (a.unwrap_or(&zeros), b.unwrap_or(&zeros));
        if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
            let offset = index * BLOCK + at as u64;
            return format!("; at {offset} {:#04x}, expected {:#04x}", a[at], b[at]);
        }
    }
    String::new()
}

/// Walks a file system from its root, through nothing but the trait, and returns all of it.
///
/// Opens and closes handles, changes nothing. A file's holes are skipped by
/// [`seek`](FileSystem::seek), so that it reads what is stored and no more.
///
/// # Errors
/// The first call that failed, or two that contradicted each other: an entry whose type or inode
/// is another in `lookup`, a name listed twice, `..` that is not the parent, content that is not as
/// long as the size.
pub fn snapshot(
    fs: &mut (impl FileSystem + ?Sized),
) -> core::result::Result<Snapshot, SnapshotError> {
    let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
    let mut snapshot = Snapshot::default();
    let mut identities: BTreeMap<Ino, Vec<u8>> = BTreeMap::new();
    let root = called("getattr", b"/", fs.getattr(&cx, Ino::ROOT))?;
    // Directories still to list, each with its parent.
    let mut pending = vec![(b"/".to_vec(), Ino::ROOT, Ino::ROOT)];
    let mut found = vec![(b"/".to_vec(), root)];
    while let Some((path, dir, parent)) = pending.pop() {
        for (name, listed, file_type) in list(fs, &cx, &path, dir, parent)? {
            let mut child = if path == b"/" { Vec::new() } else { path.clone() };
            child.push(b'/');
            child.extend_from_slice(&name);
            let checked = called("name", &child, Name::new(&name))?;
            let attr = called("lookup", &child, fs.lookup(&cx, dir, checked))?;
            if attr.ino != listed || attr.file_type() != file_type {
                return wrong(
                    &child,
                    format!(
                        "listed as {file_type:?} {listed}, looked up as {:?} {}",
                        attr.file_type(),
                        attr.ino
                    ),
                );
            }
            if file_type == FileType::Directory {
                pending.push((child.clone(), attr.ino, dir));
            }
            found.push((child, attr));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    for (path, attr) in found {
        let identity = identities.entry(attr.ino).or_insert_with(|| path.clone()).clone();
        let node = match snapshot.nodes.get(&identity) {
            // Another name of what has been read.
            Some(node) => node.clone(),
            None => node(fs, &cx, &path, &attr, identity)?,
        };
        snapshot.nodes.insert(path, node);
    }
    Ok(snapshot)
}

fn list(
    fs: &mut (impl FileSystem + ?Sized),
    cx: &Context,
    path: &[u8],
    dir: Ino,
    parent: Ino,
) -> core::result::Result<Vec<(Vec<u8>, Ino, FileType)>, SnapshotError> {
    let handle = called("opendir", path, fs.opendir(cx, dir))?;
    let mut names = BTreeMap::new();
    let mut twice = None;
    let listed = fs.readdir(cx, dir, handle, 0, &mut |entry| {
        if names.insert(entry.name.to_vec(), (entry.ino, entry.file_type)).is_some() {
            twice = Some(lossy(entry.name));
        }
        true
    });
    called("readdir", path, listed)?;
    called("releasedir", path, fs.releasedir(cx, dir, handle))?;
    if let Some(name) = twice {
        return wrong(path, format!("{name} is listed twice"));
    }
    for (name, ino) in [(&b"."[..], dir), (b"..", parent)] {
        if names.remove(name) != Some((ino, FileType::Directory)) {
            return wrong(path, format!("{} is not inode {ino}", lossy(name)));
        }
    }
    Ok(names.into_iter().map(|(name, (ino, file_type))| (name, ino, file_type)).collect())
}

fn node(
    fs: &mut (impl FileSystem + ?Sized),
    cx: &Context,
    path: &[u8],
    attr: &Attr,
    identity: Vec<u8>,
) -> core::result::Result<Node, SnapshotError> {
    let mut content = None;
    let mut target = None;
    match attr.file_type() {
        FileType::Regular => {
            let handle = called("open", path, fs.open(cx, attr.ino, OpenFlags::READ))?;
            let bytes = called("read", path, file_content(fs, attr.ino, handle))?;
            called("release", path, fs.release(cx, attr.ino, handle))?;
            if bytes.size != attr.size {
                return wrong(path, format!("{} bytes, but {} read", attr.size, bytes.size));
            }
            content = Some(bytes);
        }
        FileType::Symlink => {
            let mut bytes = Vec::new();
            called("readlink", path, fs.readlink(cx, attr.ino, &mut bytes))?;
            if bytes.len() as u64 != attr.size {
                return wrong(path, format!("{} bytes, but target {}", attr.size, bytes.len()));
            }
            target = Some(bytes);
        }
        _ => {}
    }
    let mut names = Vec::new();
    called("listxattr", path, fs.listxattr(cx, attr.ino, &mut names))?;
    let mut xattrs = BTreeMap::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = Vec::new();
        called("getxattr", path, fs.getxattr(cx, attr.ino, name, &mut value))?;
        xattrs.insert(name.to_vec(), value);
    }
    let Attr { mode, nlink, uid, gid, rdev, atime, mtime, ctime, btime, .. } = *attr;
    let times = Some(Times { atime, mtime, ctime, btime });
    Ok(Node { mode, nlink, uid, gid, rdev, times, content, target, xattrs, identity })
}

/// Reads all that is stored of the regular file `ino` through `handle`, which allows reads.
///
/// # Errors
/// Those of the calls that it makes; `EIO` if they contradict each other: a seek that goes
/// backward, a read that ends before the file does.
pub fn file_content(
    fs: &mut (impl FileSystem + ?Sized),
    ino: Ino,
    handle: Handle,
) -> Result<FileContent> {
    let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
    let size = fs.getattr(&cx, ino)?.size;
    let mut blocks = BTreeMap::new();
    let mut at = 0;
    while at < size {
        let data = match fs.seek(&cx, ino, handle, at, SeekTo::Data) {
            Ok(data) => data,
            Err(Errno::ENXIO) => break,
            Err(error) => return Err(error),
        };
        let hole = fs.seek(&cx, ino, handle, data, SeekTo::Hole)?;
        if data < at || hole <= data || hole > size {
            return Err(Errno::EIO);
        }
        for index in data / BLOCK..hole.div_ceil(BLOCK) {
            let mut block = vec![0; BLOCK as usize];
            let len = fs.read(&cx, ino, handle, index * BLOCK, &mut block)? as u64;
            if len != BLOCK.min(size - index * BLOCK) {
                return Err(Errno::EIO);
            }
            block[len as usize..].fill(0);
            if block.iter().any(|&byte| byte != 0) {
                blocks.insert(index, block);
            }
        }
        at = hole;
    }
    Ok(FileContent { size, blocks })
}

fn called<T>(
    verb: &'static str,
    path: &[u8],
    result: Result<T>,
) -> core::result::Result<T, SnapshotError> {
    result.map_err(|error| SnapshotError::Call { verb, path: lossy(path), error })
}

fn wrong<T>(path: &[u8], what: String) -> core::result::Result<T, SnapshotError> {
    Err(SnapshotError::Inconsistent { path: lossy(path), what })
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// FNV-1a: enough to tell two honest trees apart, and the same everywhere.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn field(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes(bytes);
    }
}
