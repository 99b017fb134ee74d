//! POSIX calls over the file seam: the calls that a C library offers its program, above any
//! [`FileSystem`].
//!
//! [`Posix`] is the state that a process has in a kernel: descriptors, working directory, file
//! mode creation mask, identity. Its methods are the system calls of the same names, with the
//! errors that POSIX and Linux give them. Paths are bytes without the final NUL; descriptors are
//! `i32` as in C.
//!
//! Read in this order: [`flags`] the arguments, [`table`] descriptors and open file descriptions,
//! [`walk`] paths, [`open`], [`io`], [`copy`], [`locks`], [`names`], [`attributes`], [`xattr`],
//! [`directory`], [`cwd`]; [`policy`] judges permissions.
//!
//! Nothing here reads a clock: the owner gives a [`Clock`], asked once for each call that changes
//! something. Nothing here blocks, and no call allocates unless a path has symbolic links in it or
//! a table grows.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_vfs::{AccessTimes, Context, FileSystem, Ino, Timespec};

pub mod attributes;
pub mod copy;
pub mod cwd;
pub mod directory;
pub mod flags;
pub mod io;
pub mod locks;
pub mod names;
pub mod open;
pub mod policy;
pub mod table;
pub mod walk;
pub mod xattr;

pub use atoll_vfs::{Attr, Errno, Result};
pub use directory::DirStream;
pub use flags::{AT_FDCWD, AccessMode, AtFlags, OFlags, Whence};
pub use policy::{ModeBits, Policy, Unchecked};

use cwd::WorkingDirectory;
use table::Table;

/// The longest path a caller may give, in bytes, the final NUL of C included (limits.h).
pub const PATH_MAX: usize = 4096;
/// How many symbolic links one path may lead through, as in Linux.
pub const SYMLOOP_MAX: u32 = 40;

/// Where the time of a call comes from: any closure that returns it.
pub trait Clock {
    /// The time that the timestamps of a call take.
    fn now(&self) -> Timespec;
}

impl<T: Fn() -> Timespec> Clock for T {
    #[inline]
    fn now(&self) -> Timespec {
        self()
    }
}

/// The identity that makes the calls: the owner and group of new files, and the one that a
/// [`Policy`] judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Credentials {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// The initial state of a [`Posix`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The lowest descriptor number given out.
    pub first_descriptor: i32,
    /// How many descriptors may be open at once (`EMFILE` beyond).
    pub descriptor_limit: usize,
    /// The file mode creation mask.
    pub umask: u32,
    /// The identity.
    pub credentials: Credentials,
    /// No other process changes the file system: the layer may remember where a path led.
    pub sole_user: bool,
    /// The effect of reading on the time of last access. Where a server provides the file system,
    /// the server decides, and this stays at its default.
    pub access_times: AccessTimes,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            first_descriptor: 0,
            descriptor_limit: 1 << 20,
            umask: 0o022,
            credentials: Credentials::default(),
            sole_user: false,
            access_times: AccessTimes::Noatime,
        }
    }
}

/// One process's view of a file system: its descriptors, working directory, mask and identity.
#[derive(Debug)]
pub struct Posix<F: FileSystem, C: Clock, P: Policy = Unchecked> {
    fs: F,
    clock: C,
    policy: P,
    table: Table,
    locks: locks::Locks,
    cwd: WorkingDirectory,
    umask: u32,
    credentials: Credentials,
    relatime: bool,
    /// Holds values between the file system and a caller's buffer; kept so as not to allocate.
    scratch: Vec<u8>,
    spare_buffers: Vec<Box<directory::Buffer>>,
    remembered: walk::Remembered,
}

impl<F: FileSystem, C: Clock> Posix<F, C> {
    /// Begins in the root directory of `fs`, with no descriptor open and no permission checks.
    pub fn new(fs: F, clock: C, options: &Options) -> Self {
        Self::with_policy(fs, clock, options, Unchecked)
    }
}

impl<F: FileSystem, C: Clock, P: Policy> Posix<F, C, P> {
    /// As [`new`](Posix::new), with every call judged by `policy`.
    pub fn with_policy(fs: F, clock: C, options: &Options, policy: P) -> Self {
        Posix {
            fs,
            clock,
            policy,
            table: Table::new(options.first_descriptor, options.descriptor_limit),
            locks: locks::Locks::default(),
            cwd: WorkingDirectory::root(),
            umask: options.umask & 0o777,
            credentials: options.credentials,
            relatime: options.access_times == AccessTimes::Relatime,
            scratch: Vec::new(),
            spare_buffers: Vec::new(),
            remembered: walk::Remembered::new(options.sole_user && !P::CHECKS),
        }
    }

    /// The file system below.
    pub fn fs(&self) -> &F {
        &self.fs
    }

    /// The same, for what no call does: descriptors stay what they are.
    pub fn fs_mut(&mut self) -> &mut F {
        &mut self.fs
    }

    /// Closes every descriptor and gives the file system back. Errors of closing are dropped: a
    /// caller that needs durability has synced before.
    pub fn into_fs(mut self) -> F {
        for fd in self.table.descriptors() {
            let _ = self.close(fd);
        }
        self.leave_cwd();
        self.fs
    }

    /// Sets the file mode creation mask and returns the one before (umask(2)).
    pub fn umask(&mut self, mask: u32) -> u32 {
        core::mem::replace(&mut self.umask, mask & 0o777)
    }

    /// The identity in use.
    pub fn credentials(&self) -> Credentials {
        self.credentials
    }

    /// Changes the identity for the calls that follow.
    pub fn set_credentials(&mut self, credentials: Credentials) {
        self.credentials = credentials;
    }

    /// The effect of reading on the time of last access.
    pub fn access_times(&self) -> AccessTimes {
        if self.relatime { AccessTimes::Relatime } else { AccessTimes::Noatime }
    }

    /// `ino` was read, by a descriptor with the flags `status` if by one.
    #[inline]
    fn accessed(&mut self, ino: Ino, status: OFlags) {
        if self.relatime && !status.contains(OFlags::NOATIME) {
            self.note_access(ino);
        }
    }

    #[inline(never)]
    fn note_access(&mut self, ino: Ino) {
        let cx = self.context();
        self.fs.accessed(&cx, ino);
    }

    /// The context of a call that changes something.
    #[inline]
    fn context(&self) -> Context {
        self.context_at(self.clock.now())
    }

    /// The context of a call that changes nothing, for which the clock is not asked.
    #[inline]
    fn reading(&self) -> Context {
        self.context_at(Timespec::default())
    }

    #[inline]
    fn context_at(&self, now: Timespec) -> Context {
        Context { uid: self.credentials.uid, gid: self.credentials.gid, now }
    }

    #[inline]
    fn getattr(&mut self, ino: Ino) -> Result<Attr> {
        let cx = self.reading();
        self.fs.getattr(&cx, ino)
    }
}
