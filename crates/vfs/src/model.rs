//! A file system in memory that is simple enough to be right by reading: the oracle that every
//! other implementor is compared with.
//!
//! Where the contract of [`FileSystem`] leaves a choice, the model takes one and this list names
//! it; comparisons have to allow the others:
//!
//! - Where several errors apply, the model returns one; [`ModelFs::admissible`] lists all.
//! - A block that was allocated or zeroed with `fallocate` and not written since is a hole to
//!   [`SeekTo`]; [`ModelFs::seek_admits`] accepts data as well. It also accepts data for a hole in
//!   the same 64 KiB of a file as something that is stored: a file system may allocate around a
//!   write.
//! - Setting a size, and opening with TRUNC, set mtime and ctime even when the size was the same,
//!   as ftruncate(2) does. So does every `fallocate` that succeeds.
//! - A write of no bytes changes nothing.
//! - A removed directory that is still open lists nothing.
//! - Directories are 4096 bytes long and take no blocks.
//! - A name that is replaced by `rename` keeps its cookie.

mod content;
mod snapshot;
mod verbs;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use self::content::Content;
pub use self::snapshot::{
    FileContent, Node, Snapshot, SnapshotError, Times, file_content, snapshot,
};
use crate::errno::{Errno, Result};
use crate::filesystem::{COPY_MAX, FILE_SIZE_MAX, FileSystem, checked_end, copied_len};
use crate::types::*;

/// The blocks that the model pretends to have.
const CAPACITY: u64 = 1 << 22;

#[derive(Clone, Debug)]
enum Body {
    File(Content),
    Directory(Directory),
    Symlink(Vec<u8>),
    /// A pipe, socket or device: all that there is to it is in the attributes.
    Special,
}

#[derive(Clone, Debug)]
struct Directory {
    parent: Ino,
    entries: BTreeMap<Vec<u8>, Entry>,
    /// The order of listing: names by cookie.
    order: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ino: Ino,
    cookie: u64,
}

const COOKIE_DOT: u64 = 1;
const COOKIE_DOT_DOT: u64 = 2;

impl Directory {
    fn new(parent: Ino) -> Self {
        Directory {
            parent,
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
            next_cookie: COOKIE_DOT_DOT + 1,
        }
    }

    fn get(&self, name: Name<'_>) -> Option<Ino> {
        self.entries.get(name.bytes()).map(|entry| entry.ino)
    }

    /// Makes `name` stand for `ino`, in its old place of the listing if it exists.
    fn set(&mut self, name: Name<'_>, ino: Ino) {
        if let Some(entry) = self.entries.get_mut(name.bytes()) {
            entry.ino = ino;
            return;
        }
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.entries.insert(name.bytes().to_vec(), Entry { ino, cookie });
        self.order.insert(cookie, name.bytes().to_vec());
    }

    fn remove(&mut self, name: Name<'_>) {
        if let Some(entry) = self.entries.remove(name.bytes()) {
            self.order.remove(&entry.cookie);
        }
    }
}

#[derive(Clone, Debug)]
struct Inode {
    /// The attributes, except size and blocks, which follow from the body.
    attr: Attr,
    body: Body,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    handles: u32,
}

impl Inode {
    fn attr(&self) -> Attr {
        let (size, blocks) = match &self.body {
            Body::File(content) => (content.size(), content.allocated() * (content::BLOCK / 512)),
            Body::Directory(_) => (content::BLOCK, 0),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Special => (0, 0),
        };
        Attr { size, blocks, ..self.attr }
    }

    fn is_dir(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    fn changed(&mut self, now: Timespec) {
        self.attr.ctime = now;
    }

    fn content_changed(&mut self, now: Timespec) {
        self.attr.mtime = now;
        self.attr.ctime = now;
    }
}

#[derive(Clone, Copy, Debug)]
struct Open {
    ino: Ino,
    /// `None` for a directory handle.
    flags: Option<OpenFlags>,
}

/// The in-memory model. A clone is a copy that shares file blocks until one side writes them.
///
/// There is no crash to survive: whatever was done is in this value.
#[derive(Clone, Debug)]
pub struct ModelFs {
    inodes: BTreeMap<Ino, Inode>,
    open: BTreeMap<u64, Open>,
    next_ino: u64,
    next_handle: u64,
    admissible: Vec<Errno>,
}

impl Default for ModelFs {
    fn default() -> Self {
        Self::new(0o755, Timespec::default())
    }
}

impl ModelFs {
    /// An empty file system whose root has the permission bits of `mode`, belongs to 0:0 and was
    /// made at `now`.
    pub fn new(mode: u32, now: Timespec) -> Self {
        let mut fs = ModelFs {
            inodes: BTreeMap::new(),
            open: BTreeMap::new(),
            next_ino: Ino::ROOT.0,
            next_handle: 1,
            admissible: Vec::new(),
        };
        let cx = Context { uid: 0, gid: 0, now };
        fs.add_inode(&cx, FileType::Directory, mode, 0, Body::Directory(Directory::new(Ino::ROOT)));
        fs.inodes.get_mut(&Ino::ROOT).expect("the root was just made").attr.nlink = 2;
        fs
    }

    /// All errors that the last call could have returned for the arguments that it got; empty
    /// after a call that succeeded.
    pub fn admissible(&self) -> &[Errno] {
        &self.admissible
    }

    /// Whether `answer` is a right one for [`seek`](FileSystem::seek) on the regular file `ino`,
    /// where the contract leaves a choice. False if there is no such file.
    pub fn seek_admits(&self, ino: Ino, offset: u64, to: SeekTo, answer: Result<u64>) -> bool {
        match self.inodes.get(&ino).map(|inode| &inode.body) {
            Some(Body::File(content)) => content.seek_admits(offset, to, answer),
            _ => false,
        }
    }

    /// The same file system after the end of all processes that used it: every handle closed,
    /// unlinked files gone.
    pub fn without_handles(&self) -> ModelFs {
        let mut fs = self.clone();
        fs.open.clear();
        fs.inodes.retain(|_, inode| {
            inode.handles = 0;
            inode.attr.nlink > 0
        });
        fs
    }

    /// The content of every regular file, whether it has a name or only a handle.
    pub fn contents(&self) -> BTreeMap<Ino, FileContent> {
        let files = self.inodes.iter().filter_map(|(&ino, inode)| match &inode.body {
            Body::File(content) => Some((ino, content.to_file_content())),
            _ => None,
        });
        files.collect()
    }

    /// The inode that `handle` is open on, and for regular files how.
    pub fn handle(&self, handle: Handle) -> Option<(Ino, Option<OpenFlags>)> {
        self.open.get(&handle.0).map(|open| (open.ino, open.flags))
    }

    /// Fails with the first error whose condition holds, and remembers all that do.
    fn refuse(&mut self, reasons: &[(bool, Errno)]) -> Result<()> {
        self.admissible.clear();
        self.admissible.extend(reasons.iter().filter(|(holds, _)| *holds).map(|&(_, error)| error));
        self.admissible.first().map_or(Ok(()), |&error| Err(error))
    }

    fn fail<T>(&mut self, error: Errno) -> Result<T> {
        self.refuse(&[(true, error)])?;
        Err(error)
    }

    fn inode(&mut self, ino: Ino) -> Result<&mut Inode> {
        if !self.inodes.contains_key(&ino) {
            return self.fail(Errno::ESTALE);
        }
        self.admissible.clear();
        Ok(self.inodes.get_mut(&ino).expect("looked up above"))
    }

    fn dir(&mut self, ino: Ino) -> Result<&mut Directory> {
        let is_dir = self.inode(ino)?.is_dir();
        self.refuse(&[(!is_dir, Errno::ENOTDIR)])?;
        match &mut self.inode(ino)?.body {
            Body::Directory(dir) => Ok(dir),
            _ => unreachable!("checked above"),
        }
    }

    fn file(&mut self, ino: Ino) -> &mut Content {
        match self.inodes.get_mut(&ino).map(|inode| &mut inode.body) {
            Some(Body::File(content)) => content,
            _ => unreachable!("the caller holds a handle of a regular file"),
        }
    }

    /// The inode of `name` in `parent`, if that is a directory which has it.
    fn peek(&self, parent: Ino, name: Name<'_>) -> Option<Ino> {
        match self.inodes.get(&parent).map(|inode| &inode.body) {
            Some(Body::Directory(dir)) => dir.get(name),
            _ => None,
        }
    }

    fn parent_reasons(&self, parent: Ino, name: Name<'_>) -> Vec<(bool, Errno)> {
        let inode = self.inodes.get(&parent);
        Vec::from([
            (inode.is_none(), Errno::ESTALE),
            (inode.is_some_and(|inode| !inode.is_dir()), Errno::ENOTDIR),
            (name.is_dot_or_dot_dot(), Errno::EINVAL),
        ])
    }

    /// The inode of `name` in the directory `parent`.
    fn entry(&mut self, parent: Ino, name: Name<'_>) -> Result<Ino> {
        let mut reasons = self.parent_reasons(parent, name);
        let found = self.peek(parent, name);
        if !reasons.iter().any(|(holds, _)| *holds) {
            reasons.push((found.is_none(), Errno::ENOENT));
        }
        self.refuse(&reasons)?;
        Ok(found.expect("refused above"))
    }

    /// Checks that `name` can be made in `parent`.
    fn vacancy(&mut self, parent: Ino, name: Name<'_>, others: &[(bool, Errno)]) -> Result<()> {
        let mut reasons = self.parent_reasons(parent, name);
        let target = self.peek(parent, name);
        let removed = self.inodes.get(&parent).is_some_and(|i| i.is_dir() && i.attr.nlink == 0);
        reasons.extend([(removed, Errno::ENOENT), (target.is_some(), Errno::EEXIST)]);
        reasons.extend_from_slice(others);
        self.refuse(&reasons)
    }

    fn add_inode(
        &mut self,
        cx: &Context,
        file_type: FileType,
        mode: u32,
        rdev: u32,
        body: Body,
    ) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let attr = Attr {
            ino,
            mode: file_type.mode_bits() | mode & 0o7777,
            nlink: 0,
            uid: cx.uid,
            gid: cx.gid,
            rdev,
            size: 0,
            blocks: 0,
            atime: cx.now,
            mtime: cx.now,
            ctime: cx.now,
            btime: cx.now,
        };
        self.inodes.insert(ino, Inode { attr, body, xattrs: BTreeMap::new(), handles: 0 });
        ino
    }

    /// Makes an inode in the file system of `parent`, which decides about its group.
    fn add_inode_in(
        &mut self,
        cx: &Context,
        parent: Ino,
        file_type: FileType,
        mode: u32,
        rdev: u32,
        body: Body,
    ) -> Result<Ino> {
        let of_parent = self.inode(parent)?.attr;
        let (mut cx, mut mode) = (*cx, mode);
        if of_parent.mode & S_ISGID != 0 {
            cx.gid = of_parent.gid;
            if file_type == FileType::Directory {
                mode |= S_ISGID;
            }
        }
        Ok(self.add_inode(&cx, file_type, mode, rdev, body))
    }

    /// Makes `name` in `parent` stand for `ino`, and counts the link.
    fn add_name(&mut self, cx: &Context, parent: Ino, name: Name<'_>, ino: Ino) -> Result<()> {
        self.dir(parent)?.set(name, ino);
        let inode = self.inode(ino)?;
        inode.attr.nlink += 1;
        if let Body::Directory(dir) = &mut inode.body {
            inode.attr.nlink = 2;
            dir.parent = parent;
            self.inode(parent)?.attr.nlink += 1;
        }
        self.inode(parent)?.content_changed(cx.now);
        Ok(())
    }

    /// Takes the link of `ino` away that was a name in `parent`, which the caller has removed or
    /// replaced.
    fn drop_link(&mut self, cx: &Context, parent: Ino, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        inode.changed(cx.now);
        if inode.is_dir() {
            inode.attr.nlink = 0;
            self.inode(parent)?.attr.nlink -= 1;
        } else {
            inode.attr.nlink -= 1;
        }
        self.drop_if_dead(ino);
        Ok(())
    }

    fn drop_if_dead(&mut self, ino: Ino) {
        if self.inodes.get(&ino).is_some_and(|i| i.attr.nlink == 0 && i.handles == 0) {
            self.inodes.remove(&ino);
        }
    }

    fn add_handle(&mut self, ino: Ino, flags: Option<OpenFlags>) -> Result<Handle> {
        self.inode(ino)?.handles += 1;
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.open.insert(handle.0, Open { ino, flags });
        Ok(handle)
    }

    /// Checks that `handle` is one of the regular file `ino` and has one of `rights`.
    fn file_handle(&mut self, ino: Ino, handle: Handle, rights: OpenFlags) -> Result<()> {
        self.refuse(&self.file_handle_reasons(ino, handle, rights))
    }

    fn file_handle_reasons(
        &self,
        ino: Ino,
        handle: Handle,
        rights: OpenFlags,
    ) -> Vec<(bool, Errno)> {
        let flags = self.file_flags(ino, handle);
        let right = flags.is_some_and(|flags| rights.is_empty() || flags.intersects(rights));
        let is_dir = self.inodes.get(&ino).is_some_and(Inode::is_dir);
        Vec::from([
            (!self.inodes.contains_key(&ino), Errno::ESTALE),
            (is_dir, Errno::EISDIR),
            (!right, Errno::EBADF),
        ])
    }

    /// How the regular file `ino` is open as `handle`, if it is.
    fn file_flags(&self, ino: Ino, handle: Handle) -> Option<OpenFlags> {
        self.open.get(&handle.0).filter(|open| open.ino == ino).and_then(|open| open.flags)
    }

    fn dir_handle(&mut self, ino: Ino, handle: Handle) -> Result<()> {
        let open = self.open.get(&handle.0);
        let is_it = open.is_some_and(|open| open.ino == ino && open.flags.is_none());
        let is_dir = self.inodes.get(&ino).is_some_and(Inode::is_dir);
        self.refuse(&[
            (!is_it, Errno::EBADF),
            (!self.inodes.contains_key(&ino), Errno::ESTALE),
            (!is_dir, Errno::ENOTDIR),
        ])
    }

    fn close(&mut self, ino: Ino, handle: Handle) {
        self.open.remove(&handle.0);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.handles -= 1;
        }
        self.drop_if_dead(ino);
    }

    /// Counts the move of `ino`, whose names have been changed, from one directory to another.
    fn moved(&mut self, cx: &Context, ino: Ino, from: Ino, to: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        inode.changed(cx.now);
        if let Body::Directory(dir) = &mut inode.body {
            dir.parent = to;
            self.inode(from)?.attr.nlink -= 1;
            self.inode(to)?.attr.nlink += 1;
        }
        Ok(())
    }

    /// Whether the directory `ancestor` is `ino` or above it.
    fn is_above(&self, ancestor: Ino, mut ino: Ino) -> bool {
        loop {
            if ino == ancestor {
                return true;
            }
            match self.inodes.get(&ino).map(|inode| &inode.body) {
                Some(Body::Directory(dir)) if dir.parent != ino => ino = dir.parent,
                _ => return false,
            }
        }
    }
}

/// The set-group-ID bit of `st_mode`.
const S_ISGID: u32 = 0o2000;
