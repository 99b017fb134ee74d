//! File systems that are mounted in the directory, where they are served too.
//!
//! A name that leads into another mount is followed once the mount is noted here by its place: a
//! directory and a name in it. Its inodes are told apart from all others by that place and by the
//! file system that is there, so that each has a number of its own, whatever numbers the file
//! systems use, also where one is mounted twice, or two are one after the other: the roots of all
//! file systems of a kind have the same handle. The kernel of a virtual machine is told which
//! directories are the roots of such mounts, and shows them as mounts of their own.
//!
//! Each mount that clients have come to is kept open, for syncs of all: the host cannot unmount it
//! meanwhile, but lazily. Such a one is let go of when another comes to its place, or has none.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use atoll_vfs::{Errno, Ino, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, fstatfs, fstatvfs, openat, statx};
use xxhash_rust::xxh3::xxh3_64;

use super::identity::{Found, Identity, Means};
use super::reach::name_in;
use super::{HostDirectory, errno};

/// The most mounts that are served. Those beyond are not.
const MOUNTS_MAX: usize = 256;

/// One mount.
#[derive(Debug)]
struct Mount {
    /// Tells its place from all others.
    place: u64,
    /// Tells its file system there from all others.
    tells: u64,
    root: Arc<OwnedFd>,
}

/// The mounts.
#[derive(Debug)]
pub(super) struct Mounts {
    /// Whether any are served but the root's.
    pub(super) are_served: bool,
    /// The number of the root's.
    root: u64,
    /// Those that clients have come to, by their numbers, which the host gives to others after
    /// them.
    met: HashMap<u64, Mount>,
}

impl Mounts {
    /// Those of a directory that lies in the mount `root`.
    pub(super) fn new(are_served: bool, root: u64) -> Mounts {
        Mounts { are_served, root, met: HashMap::new() }
    }

    /// The identity of what was found, whose mount clients have come to.
    fn identity(&self, found: Found) -> Option<Identity> {
        if !self.are_served || found.mount == self.root {
            return Some(found.identity);
        }
        self.met.get(&found.mount).map(|mount| found.identity.in_mount(mount.tells))
    }

    /// The roots of those that clients have come to.
    pub(super) fn roots(&self) -> Vec<Arc<OwnedFd>> {
        self.met.values().map(|mount| Arc::clone(&mount.root)).collect()
    }
}

/// The place of a mount: `name` in the directory `dir`.
fn place(dir: Identity, name: &[u8]) -> u64 {
    xxh3_64(&[&dir.to_bytes()[..], name].concat())
}

/// Tells the file system whose root `fd` is open on, at `place`, from all others that are there
/// before or after it, as far as file systems say which they are: by its kind, its name, and the
/// time at which it was made.
fn tells(place: u64, fd: &OwnedFd) -> Result<u64> {
    let kind = fstatfs(fd).map_err(errno)?.f_type as u64;
    let name = fstatvfs(fd).map_err(errno)?.f_fsid;
    let born = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).map_err(errno)?.stx_btime;
    let words = [place, kind, name, born.tv_sec as u64, born.tv_nsec.into()];
    Ok(xxh3_64(&words.map(u64::to_le_bytes).concat()))
}

/// Whether the mount `number`, whose root this is, is still mounted: the way up leads out of it.
/// Of a file that is mounted it is not known.
fn is_there(means: Means, number: u64, root: &OwnedFd) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(root, c"..", flags, Mode::empty()) {
        // Nothing is done with what it leads to but to see in which mount that is.
        Ok(above) => means.identify(&above).is_ok_and(|above| above.mount != number),
        Err(error) => error == rustix::io::Errno::NOTDIR,
    }
}

impl HostDirectory {
    /// The identity of the inode that `fd` is open on.
    ///
    /// # Errors
    /// `EXDEV` for one in a mount that clients have not come to.
    pub(super) fn identify(&self, fd: impl AsFd) -> Result<Identity> {
        let found = self.means.identify(fd).map_err(errno)?;
        self.mounts.identity(found).ok_or(Errno::EXDEV)
    }

    /// The identity of the inode that `fd` is open on, which was found as `name` in the directory
    /// `parent`, open as `dir`; and whether it is the root of another mount.
    ///
    /// # Errors
    /// `EXDEV` for a mount that cannot be served.
    pub(super) fn identify_in(
        &mut self,
        (parent, dir): (Ino, &OwnedFd),
        name: &[u8],
        fd: &OwnedFd,
    ) -> Result<(Identity, bool)> {
        let found = self.means.identify(fd).map_err(errno)?;
        if !self.mounts.are_served || found.mount == self.mounts.root {
            return Ok((found.identity, false));
        }
        let above = self.means.identify(dir).map_err(errno)?;
        if above.mount == found.mount {
            return self.mounts.identity(found).map(|is| (is, false)).ok_or(Errno::EXDEV);
        }
        let above = self.table.get(parent)?.identity;
        self.meet(found.mount, place(above, name), fd)?;
        self.mounts.identity(found).map(|is| (is, true)).ok_or(Errno::EXDEV)
    }

    /// Clients come to the mount `number` at `place`, whose root is open as `fd`.
    fn meet(&mut self, number: u64, place: u64, fd: &OwnedFd) -> Result<()> {
        if self.mounts.met.get(&number).is_some_and(|mount| mount.place == place) {
            return Ok(());
        }
        let stat = rustix::fs::fstat(fd).map_err(errno)?;
        let flags = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
            FileType::RegularFile => OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY,
            _ => return Err(Errno::EXDEV),
        };
        // What was mounted there before, and what had the number.
        let before = self.mounts.met.len();
        self.mounts.met.retain(|met, mount| *met != number && mount.place != place);
        if self.mounts.met.len() < before {
            // By a descriptor of the old mount the same file system would be what it was there:
            // read-only, for instance.
            self.table.close_all();
        }
        if self.mounts.met.len() >= MOUNTS_MAX {
            let means = self.means;
            self.mounts.met.retain(|met, mount| is_there(means, *met, &mount.root));
        }
        if self.mounts.met.len() >= MOUNTS_MAX {
            return Err(Errno::EXDEV);
        }
        let tells = tells(place, fd)?;
        let root = Arc::new(self.anew(fd, flags)?);
        self.mounts.met.insert(number, Mount { place, tells, root });
        Ok(())
    }

    /// The identity of what `name` is in the directory `dir`, open as `fd`, to be shown and not to
    /// be relied on.
    pub(super) fn identify_entry(
        &mut self,
        dir: Ino,
        fd: &OwnedFd,
        name: &std::ffi::CStr,
    ) -> Result<Identity> {
        let found = self.means.entry(fd.as_fd(), name).map_err(errno)?;
        if let Some(identity) = self.mounts.identity(found) {
            return Ok(identity);
        }
        let above = self.table.get(dir)?.identity;
        let root = self.with_room(|_| name_in(fd, name.to_bytes(), true))?;
        let tells = tells(place(above, name.to_bytes()), &root)?;
        Ok(found.identity.in_mount(tells))
    }
}
