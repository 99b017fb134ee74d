//! A directory of the host as a file system: the files of the host as they are, beneath one root.
//!
//! Read in this order: `identity`, which inode is which, and `births`, by what one is recognised;
//! `known`, the table of inodes and its bounds; `reach`, the one place where names are followed;
//! `owners`, whose what is made is; then the calls by kind, `attributes`, `names`, `files`,
//! `nodes`, `listing`, `xattrs`, `syncs`, `locks`, which `verbs` gives the form of
//! [`FileSystem`](atoll_vfs::FileSystem). `apart` is what takes so long that it is done while
//! others go on. `pieces` is what guests map, `copies` where that is not the file itself. `calls`
//! has the system calls that the libraries lack.
//!
//! # Nothing outside
//!
//! An inode is reached by a descriptor of its directory and one component of a name, by
//! openat2(2), which follows no symbolic link, goes up to no parent and into no other mount
//! (`reach`). A descriptor, once open, is the inode, whatever the host renames; one that is opened
//! anew must be the same inode (`identity`), or it is `ESTALE`. Every call
//! acts on a descriptor, or on one name in a directory that is one. `..` leads to the directory in
//! which a client has found its child, or nowhere. A directory that the host moves out of the root
//! while clients know it is theirs still, as it would be for a process that has it open; what is
//! around it is not.
//!
//! # Where it differs from the contract
//!
//! Others change these files too. So
//!
//! - times are the host's clock's, and mode and size are what the host's file system allows
//! - a call is atomic as the host's system call is. A program of the host may see a new file before
//!   it has all of its mode, and come between the parts of a call that is several system calls; a
//!   file has its owner from the start
//! - what survives power loss is what the host's file system says. fsync covers its file, and the
//!   names by which clients made it and what is above it (`syncs`), and nothing else
//! - a file that the host renames or removes between two calls is `ESTALE` until it is looked up
//!   again, unless it is open
//! - where the host's file system has neither handles nor times of birth (overlayfs), a number that
//!   the host uses again is used again here
//! - what is mounted in the directory is not shown: its names are `EXDEV`, or, where a server of
//!   the superuser's has gone to a mount of its own, the directories that lie beneath. Where it is
//!   served too (`mounts`), names and links do not cross
//! - devices that clients make are devices to clients alone (`nodes`), but for the one of number 0
//!   that overlay file systems make
//! - an unlinked file gets no name again, unless it never had one
//! - extended attributes are those of Linux: on regular files and directories only

mod apart;
mod attributes;
mod births;
mod calls;
mod copies;
mod files;
mod identity;
mod known;
mod listing;
mod locks;
mod mounts;
mod names;
mod nodes;
mod owners;
mod pieces;
mod reach;
mod syncs;
mod verbs;
mod xattrs;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use atoll_vfs::{Errno, Ino, Rest, Result};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit, setrlimit};

use apart::Apart;
use births::Births;
use copies::Copies;
use files::Open;
use identity::Means;
pub use known::Bounds;
use known::Table;
use mounts::Mounts;
pub use owners::Owners;
pub use pieces::Piece;
use syncs::Unsynced;

use crate::anew;

/// The part of this process's descriptors that is the number of files that clients may have open,
/// each of which takes two: others are for what is known, and for whoever connects.
const OPEN_PART: usize = 4;

/// The set-user-ID and set-group-ID bits.
const SET_IDS: u32 = 0o6000;

/// Has this process have as many descriptors as it may; returns how many.
fn raise_descriptor_limit() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With less, clients open fewer files.
    let _ = setrlimit(Resource::Nofile, limit);
    let most = getrlimit(Resource::Nofile).current;
    most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX)
}

/// How a directory is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Every change is `EROFS`.
    pub read_only: bool,
    /// Whose the files are; not given: as they are on the host where this process may say so, and
    /// otherwise all this process's user's.
    pub owners: Option<Owners>,
    /// How much is remembered.
    pub bounds: Bounds,
    /// Mounts in the directory are served too, as file systems of their own.
    pub submounts: bool,
}

/// A directory of the host.
pub struct HostDirectory {
    table: Table,
    means: Means,
    mounts: Mounts,
    owners: Owners,
    /// This process's user, whose what it makes for itself is.
    user: u32,
    read_only: bool,
    /// Clients are others than this process's user.
    strangers: bool,
    /// The most files and directories that this process has open for clients.
    most_open: usize,
    /// Long calls do a part and leave a rest.
    steps: bool,
    rest: Option<Rest>,
    /// The root, open for reading: for calls on the whole file system.
    root: Arc<OwnedFd>,
    open: HashMap<u64, Open>,
    copies: Copies,
    apart: Apart,
    next_handle: u64,
    unsynced: Unsynced,
    /// /proc/self/fd, through which a descriptor is opened anew.
    descriptors: BorrowedFd<'static>,
}

impl fmt::Debug for HostDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostDirectory").field("root", &self.root).finish_non_exhaustive()
    }
}

impl HostDirectory {
    /// Opens the directory at `path`. From then on the process's umask is 0, since modes are the
    /// clients', and it may have as many descriptors as its hard limit says.
    ///
    /// # Errors
    /// Those of opening it; `Unsupported` without /proc.
    pub fn open(path: &Path, options: &Options) -> io::Result<HostDirectory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        let descriptors = anew::descriptors().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "there is no /proc, or the length of files is limited (ulimit -f)",
            )
        })?;
        let means = Means::of(root.as_fd())?;
        let found = means.identify(&root)?;
        rustix::process::umask(Mode::empty());
        let root = Arc::new(root);
        let descriptors_max = raise_descriptor_limit();
        let births = Births::of(root.as_fd(), !options.submounts);
        let mut table = Table::new(options.bounds.within(descriptors_max), births);
        table.put_root(found.identity, Arc::clone(&root));
        Ok(HostDirectory {
            table,
            means,
            mounts: Mounts::new(options.submounts, found.mount),
            owners: options.owners.unwrap_or_else(Owners::of_process),
            user: rustix::process::geteuid().as_raw(),
            read_only: options.read_only,
            strangers: false,
            most_open: descriptors_max / OPEN_PART,
            steps: false,
            rest: None,
            root,
            open: HashMap::new(),
            copies: Copies::default(),
            apart: Apart::default(),
            next_handle: 1,
            unsynced: Unsynced::default(),
            descriptors: descriptors.as_fd(),
        })
    }

    /// Goes to a mount of its own of the directory, above which there is nothing, and where nothing
    /// is mounted but what is now, if that is served. To be called before it is used; it takes the
    /// superuser's rights.
    ///
    /// # Errors
    /// Those of open_tree(2); then everything is as it was.
    pub fn isolate(&mut self) -> io::Result<()> {
        use rustix::mount::{OpenTreeFlags, open_tree};
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let all = if self.mounts.are_served { OpenTreeFlags::AT_RECURSIVE } else { flags };
        let tree = open_tree(&*self.root, c"", flags | all)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Arc::new(rustix::fs::openat(&tree, c".", flags, Mode::empty())?);
        let found = self.means.identify(&root)?;
        self.mounts = Mounts::new(self.mounts.are_served, found.mount);
        self.table.put_root(found.identity, Arc::clone(&root));
        self.root = root;
        Ok(())
    }

    /// Whether what is mounted in it is served too.
    pub fn has_submounts(&self) -> bool {
        self.mounts.are_served
    }

    /// From now on clients are others than this process's user. Where all files are one user's on
    /// the host they get no set-ID bits: what a client has written would run with that user's
    /// rights.
    pub fn serve_strangers(&mut self) {
        self.strangers = true;
    }

    /// The permission bits that a file, which is no directory, gets for `mode`.
    fn mode_for(&self, mode: u32) -> u32 {
        let is_anothers = self.strangers && self.owners != Owners::Kept;
        if is_anothers { mode & !SET_IDS } else { mode }
    }

    /// The root.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// How many inodes it remembers, and how many descriptors of those it has.
    pub fn known(&self) -> (usize, usize) {
        self.table.len()
    }

    /// # Errors
    /// `EROFS` where nothing may be changed.
    fn may_change(&self) -> Result<()> {
        if self.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// The directory is the root.
    fn is_root(ino: Ino) -> bool {
        ino == Ino::ROOT
    }
}

/// The host's error as the seam's.
fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error()).unwrap_or(Errno::EIO)
}
