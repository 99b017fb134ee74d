//! Reaching inodes: the one place where names of the host are followed, one component at a time.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use atoll_vfs::{Attr, Errno, Ino, Name, Result};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno as RawErrno;

use super::{HostDirectory, attributes, errno};

/// Nothing but what lies in the directory itself: no links, no parents, no other mounts.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The same where other mounts are served too.
const BENEATH_MOUNTS: ResolveFlags = BENEATH.difference(ResolveFlags::NO_XDEV);

/// Names the inode and allows nothing else.
const NAME_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How many directories lie above one another at most: more than the host's longest path has,
/// which trees that are made step by step may be deeper than.
const DEPTH_MAX: usize = 1 << 14;
/// The same where other mounts are served, and each step is one of its own.
const DEPTH_OF_MOUNTS: usize = 4096;
/// A way of more steps than this is gone by few calls.
const STEPS: usize = 8;
/// The bytes of the longest path that the host takes.
const PATH_MAX: usize = 4095;

/// Refuses `.` and `..`, which are no entries that could be made or removed.
pub(super) fn ordinary(name: Name<'_>) -> Result<()> {
    if name.is_dot_or_dot_dot() { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Opens what `name` is in `dir`.
pub(super) fn open_in(
    dir: impl AsFd,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    debug_assert!(!name.contains(&b'/') && name != b"..");
    openat2(dir, name, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode, BENEATH)
}

/// Names what `name` is in `dir`, also in another mount if those are served.
pub(super) fn name_in(dir: impl AsFd, name: &[u8], crosses: bool) -> rustix::io::Result<OwnedFd> {
    debug_assert!(!name.contains(&b'/') && name != b"..");
    let how = if crosses { BENEATH_MOUNTS } else { BENEATH };
    openat2(dir, name, NAME_ONLY, Mode::empty(), how)
}

/// Names what is at the end of `path` in `dir`, which leads to no other mount.
fn path_in(dir: impl AsFd, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    openat2(dir, path, NAME_ONLY, Mode::empty(), BENEATH)
}

impl HostDirectory {
    /// Has `open` make a descriptor. When there is none to be had, those that can be had again are
    /// closed first.
    pub(super) fn with_room<T>(
        &mut self,
        mut open: impl FnMut(&HostDirectory) -> rustix::io::Result<T>,
    ) -> Result<T> {
        match open(self) {
            Err(RawErrno::MFILE | RawErrno::NFILE) => {
                self.table.close_all();
                self.close_dropped();
                open(self)
            }
            result => result,
        }
        .map_err(errno)
    }

    /// A descriptor of the inode `ino`. It allows nothing but to name it, or what a handle of it
    /// does.
    ///
    /// # Errors
    /// `ESTALE` for one that is not known, or is no longer where it was seen.
    pub(super) fn fd(&mut self, ino: Ino) -> Result<Arc<OwnedFd>> {
        loop {
            match self.fd_by_place(ino) {
                // Each time one place less is known.
                Err((Errno::ESTALE, Some(at))) if self.table.get(at)?.not_there() => {}
                result => return result.map_err(|(error, _)| error),
            }
        }
    }

    /// As [`fd`](Self::fd), by the places where it and what is above it were seen last. An error is
    /// about the inode that is not there.
    fn fd_by_place(&mut self, ino: Ino) -> std::result::Result<Arc<OwnedFd>, (Errno, Option<Ino>)> {
        // Up to a directory that is open, at the latest the root; then down again.
        let mut way = Vec::new();
        let mut at = ino;
        let crosses = self.mounts.are_served;
        let most = if crosses { DEPTH_OF_MOUNTS } else { DEPTH_MAX };
        let mut fd = loop {
            // Without the directory of one of its names another may lead to it.
            let known = self.table.get(at).map_err(|error| (error, way.last().copied()))?;
            if let Some(fd) = known.fd() {
                break Arc::clone(fd);
            }
            if way.len() == most {
                return Err((Errno::ESTALE, None));
            }
            way.push(at);
            at = known.place.0;
        };
        if way.len() > STEPS && !crosses {
            return self.fd_by_way(fd, &way);
        }
        while let Some(child) = way.pop() {
            let known = self.table.get(child).map_err(|error| (error, None))?;
            let (identity, name) = (known.identity, known.place.1.clone());
            let parent = known.place.0;
            let opened = self.with_room(|_| name_in(&fd, &name, crosses));
            let opened = match opened {
                Ok(opened) => Arc::new(opened),
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => {
                    return Err((Errno::ESTALE, Some(child)));
                }
                Err(error) => return Err((error, None)),
            };
            match self.identify_in((parent, &fd), &name, &opened) {
                Ok((is, _)) if is == identity => {}
                Ok(_) | Err(Errno::EXDEV) => return Err((Errno::ESTALE, Some(child))),
                Err(error) => return Err((error, None)),
            }
            fd = opened;
            self.table.keep(child, Arc::clone(&fd));
        }
        Ok(fd)
    }

    /// A descriptor of the first of `way`, which lies below the directory `fd`: with as many names
    /// in one call as the host takes. Others wait for the directory meanwhile.
    ///
    /// What lies between may be another directory than was seen there, as long as the way ends at
    /// the same inode.
    fn fd_by_way(
        &mut self,
        fd: Arc<OwnedFd>,
        way: &[Ino],
    ) -> std::result::Result<Arc<OwnedFd>, (Errno, Option<Ino>)> {
        let ino = way[0];
        let follow = |this: &mut HostDirectory, fd: &OwnedFd, path: &[u8]| {
            this.with_room(|_| path_in(fd, path)).map(Arc::new).map_err(|error| match error {
                Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV => {
                    (Errno::ESTALE, Some(ino))
                }
                error => (error, None),
            })
        };
        let (mut fd, mut path) = (fd, Vec::with_capacity(PATH_MAX));
        for &step in way.iter().rev() {
            let name = &self.table.get(step).map_err(|error| (error, None))?.place.1;
            if path.len() + 1 + name.len() > PATH_MAX {
                let name = name.clone();
                fd = follow(self, &fd, &path)?;
                path.clear();
                path.extend_from_slice(&name);
                continue;
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        let fd = follow(self, &fd, &path)?;
        match self.identify(&fd) {
            Ok(is) if self.table.get(ino).is_ok_and(|known| known.identity == is) => {}
            Ok(_) | Err(Errno::EXDEV) => return Err((Errno::ESTALE, Some(ino))),
            Err(error) => return Err((error, None)),
        }
        self.table.keep(ino, Arc::clone(&fd));
        Ok(fd)
    }

    /// The attributes of the inode that `name`, which is neither `.` nor `..`, is in `parent`, and
    /// a descriptor of it.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ESTALE`; `EXDEV` for what is mounted there.
    pub(super) fn find(&mut self, parent: Ino, name: Name<'_>) -> Result<(Attr, Arc<OwnedFd>)> {
        let dir = self.fd(parent)?;
        let crosses = self.mounts.are_served;
        let fd = Arc::new(self.with_room(|_| name_in(&dir, name.bytes(), crosses))?);
        let (identity, is_mount) = self.identify_in((parent, &dir), name.bytes(), &fd)?;
        let stat = attributes::said_of(&fd)?;
        let attr = attributes::as_said(Ino::ROOT, &stat);
        let place = (parent, name.bytes());
        let ino = self.table.register(identity, place, attr.is_dir(), Arc::clone(&fd))?;
        if is_mount {
            self.table.get(ino)?.is_mount = true;
        }
        self.table.note_birth(ino, &stat);
        let attr = self.as_node(&fd, Attr { ino, ..attr })?;
        Ok((attr, fd))
    }

    /// The attributes of what `name` is in `parent`: as [`find`](Self::find), by one call where the
    /// inode is known by its birth.
    ///
    /// # Errors
    /// As there.
    pub(super) fn look(&mut self, parent: Ino, name: Name<'_>) -> Result<Attr> {
        if self.table.births().tell() {
            let dir = self.fd(parent)?;
            let stat = attributes::said_of_name(&dir, name.bytes())?;
            if let Some(ino) = self.table.births().find(&stat) {
                let attr = attributes::as_said(ino, &stat);
                // A node has to be opened to be seen.
                if !self.may_be_node(&attr) {
                    self.table.get(ino)?.seen((parent, name.bytes()));
                    return Ok(attr);
                }
            }
        }
        self.find(parent, name).map(|(attr, _)| attr)
    }

    /// The directory above `ino`: the one in which it was seen, if it is there still.
    ///
    /// # Errors
    /// `ENOTDIR`; `ESTALE` when it was moved to a directory that no client has seen.
    pub(super) fn above(&mut self, ino: Ino) -> Result<Ino> {
        if Self::is_root(ino) {
            return Ok(ino);
        }
        let known = self.table.get(ino)?;
        let parent = known.place.0;
        if !known.is_dir {
            return Err(Errno::ENOTDIR);
        }
        let fd = self.fd(ino)?;
        // A call that goes up: nothing is done with what it leads to but to see which it is.
        let flags = NAME_ONLY | OFlags::DIRECTORY;
        let above = self.with_room(|_| openat(&fd, c"..", flags, Mode::empty()))?;
        let identity = self.identify(&above)?;
        if self.table.get(parent).is_ok_and(|parent| parent.identity == identity) {
            return Ok(parent);
        }
        // The host has moved it.
        if self.table.get(Ino::ROOT)?.identity == identity {
            return Ok(Ino::ROOT);
        }
        let ino = self.table.number(identity).ok_or(Errno::ESTALE)?;
        match self.table.get(ino) {
            Ok(known) if known.identity == identity => Ok(ino),
            _ => Err(Errno::ESTALE),
        }
    }

    /// Opens the inode of `fd` anew with `flags`. It has to be one whose opening has no effects: a
    /// regular file or a directory.
    pub(super) fn anew(&mut self, fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
        let number = fd.as_raw_fd().to_string();
        let flags = flags | OFlags::CLOEXEC;
        self.with_room(|this| openat(this.descriptors, number.as_str(), flags, Mode::empty()))
    }

    /// Forgets an inode that has neither names nor handles any more. Returns whether it is gone.
    pub(super) fn reap(&mut self, ino: Ino) -> bool {
        let Ok(known) = self.table.get(ino) else { return true };
        if known.is_open() {
            return false;
        }
        let Some(fd) = known.fd().map(Arc::clone) else { return false };
        let stat = rustix::fs::fstat(&fd).ok().filter(|stat| stat.st_nlink == 0);
        let Some(stat) = stat else { return false };
        // What it was is known here: it is none of those that are dropped unseen.
        self.table.take_fd(ino);
        self.table.remove(ino);
        self.close_last(ino, fd, &stat);
        true
    }
}
