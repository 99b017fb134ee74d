//! From paths to inodes.

use alloc::vec::Vec;
use core::ops::Range;

use atoll_vfs::{Attr, Errno, FileSystem, FileType, Ino, Name, Result};

use crate::flags::{AT_FDCWD, AccessMode, AtFlags, OFlags};
use crate::policy::Policy;
use crate::table::Held;
use crate::{Clock, PATH_MAX, Posix, SYMLOOP_MAX};

/// The last component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// The path is `/`, or a symbolic link to it.
    Root,
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// A name, which may or may not exist.
    Name,
}

/// The directory that the last path led through, so that the next path with the same beginning need
/// not be walked from the start. Only paths without symbolic links are remembered, so that only
/// moving or removing a directory can make them wrong.
#[derive(Debug)]
pub(crate) struct Remembered {
    enabled: bool,
    /// Where the walk began.
    start: Ino,
    /// The path up to its last component, slashes included; empty if nothing is remembered.
    prefix: Vec<u8>,
    dir: Ino,
}

impl Remembered {
    /// Longer prefixes are not worth comparing.
    const PREFIX_MAX: usize = 512;

    pub fn new(enabled: bool) -> Self {
        Remembered { enabled, start: Ino::ROOT, prefix: Vec::new(), dir: Ino::ROOT }
    }

    /// To be called before a directory is moved or removed.
    pub fn forget(&mut self) {
        self.prefix.clear();
    }

    fn keep(&mut self, start: Ino, prefix: &[u8], dir: Ino) {
        if self.enabled && prefix.len() <= Self::PREFIX_MAX {
            self.start = start;
            self.dir = dir;
            self.prefix.clear();
            self.prefix.extend_from_slice(prefix);
        }
    }

    /// How much of `path` from `start` can be skipped, and where that leads. The rest begins with a
    /// component.
    #[inline]
    fn skip(&self, start: Ino, path: &[u8]) -> Option<(usize, Ino)> {
        let rest = path.strip_prefix(&self.prefix[..])?;
        let known = !self.prefix.is_empty() && self.start == start;
        (known && rest.first().is_some_and(|&b| b != b'/')).then_some((self.prefix.len(), self.dir))
    }
}

/// A path on its way. Components are slices of the caller's path until a symbolic link is met.
pub(crate) struct Walk<'p> {
    path: &'p [u8],
    /// The text that took the path's place when a link was followed; empty before.
    expanded: Vec<u8>,
    /// Where the next component begins.
    position: usize,
    links: u32,
    /// Where the walk began.
    start: Ino,
    /// Whether directories were looked up on the way.
    looked_up: bool,
    last: Range<usize>,
    /// The directory reached.
    pub dir: Ino,
    /// Its attributes, known only if the policy asks for them.
    pub dir_attr: Option<Attr>,
    /// Whether slashes follow the last component, which then has to be a directory.
    pub trailing: bool,
}

impl<'p> Walk<'p> {
    fn text(&self) -> &[u8] {
        if self.expanded.is_empty() { self.path } else { &self.expanded }
    }

    /// The last component, after [`Last::Name`].
    pub fn name(&self) -> Result<Name<'_>> {
        Name::new(&self.text()[self.last.clone()])
    }

    /// Goes to the directory that the last component is looked up in.
    #[inline]
    pub fn parent<F: FileSystem, C: Clock, P: Policy>(
        &mut self,
        posix: &mut Posix<F, C, P>,
    ) -> Result<Last> {
        loop {
            let text = self.text();
            let start = skip_slashes(text, self.position);
            if start == text.len() {
                return Ok(Last::Root);
            }
            let rest = &text[start..];
            let length = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
            let end = start + length;
            let next = skip_slashes(text, end);
            let at_end = next == text.len();
            if P::CHECKS {
                self.check_dir(posix, AccessMode::EXECUTE)?;
            }
            let component = &self.text()[start..end];
            if at_end {
                let last = match component {
                    b"." => Last::Dot,
                    b".." => Last::DotDot,
                    _ => Last::Name,
                };
                self.last = start..end;
                self.trailing = end < next;
                if self.looked_up && self.links == 0 {
                    posix.remembered.keep(self.start, &self.path[..start], self.dir);
                }
                return Ok(last);
            }
            if component == b"." {
                self.position = next;
                continue;
            }
            let cx = posix.reading();
            let attr = posix.fs.lookup(&cx, self.dir, Name::new(component)?)?;
            match attr.file_type() {
                FileType::Directory => {
                    self.position = next;
                    self.looked_up = true;
                    self.enter::<P>(&attr);
                }
                FileType::Symlink => self.expand(posix, attr.ino, next)?,
                _ => return Err(Errno::ENOTDIR),
            }
        }
    }

    /// The attributes of the inode that the path names; of a symbolic link at its end only without
    /// `follow`.
    pub fn target<F: FileSystem, C: Clock, P: Policy>(
        &mut self,
        posix: &mut Posix<F, C, P>,
        follow: bool,
    ) -> Result<Attr> {
        loop {
            let last = self.parent(posix)?;
            if last != Last::Name {
                return self.dot(posix, last);
            }
            let cx = posix.reading();
            let attr = posix.fs.lookup(&cx, self.dir, self.name()?)?;
            if !self.settle(posix, &attr, follow)? {
                return Ok(attr);
            }
        }
    }

    /// The attributes of a last component that is no name.
    pub fn dot<F: FileSystem, C: Clock, P: Policy>(
        &mut self,
        posix: &mut Posix<F, C, P>,
        last: Last,
    ) -> Result<Attr> {
        if last == Last::DotDot {
            let cx = posix.reading();
            return posix.fs.lookup(&cx, self.dir, Name::new(b"..")?);
        }
        posix.getattr(self.dir)
    }

    /// Handles the inode that the last name led to. True: it is a symbolic link, and the walk goes
    /// on.
    pub fn settle<F: FileSystem, C: Clock, P: Policy>(
        &mut self,
        posix: &mut Posix<F, C, P>,
        attr: &Attr,
        follow: bool,
    ) -> Result<bool> {
        match attr.file_type() {
            FileType::Symlink if follow || self.trailing => {
                let rest = self.last.end;
                self.expand(posix, attr.ino, rest)?;
                Ok(true)
            }
            FileType::Directory => Ok(false),
            _ if self.trailing => Err(Errno::ENOTDIR),
            _ => Ok(false),
        }
    }

    /// Follows the link `link`: its target takes the place of the path up to `rest`.
    #[cold]
    fn expand<F: FileSystem, C: Clock, P: Policy>(
        &mut self,
        posix: &mut Posix<F, C, P>,
        link: Ino,
        rest: usize,
    ) -> Result<()> {
        self.links += 1;
        if self.links > SYMLOOP_MAX {
            return Err(Errno::ELOOP);
        }
        let mut text = Vec::new();
        let cx = posix.reading();
        posix.fs.readlink(&cx, link, &mut text)?;
        posix.accessed(link, OFlags::empty());
        let absolute = match text.first() {
            None => return Err(Errno::ENOENT),
            Some(first) => *first == b'/',
        };
        let rest = &self.text()[rest..];
        if !rest.is_empty() {
            text.push(b'/');
            text.extend_from_slice(rest);
        }
        self.expanded = text;
        self.position = 0;
        if absolute {
            self.dir = Ino::ROOT;
            self.dir_attr = None;
        }
        Ok(())
    }

    fn enter<P: Policy>(&mut self, attr: &Attr) {
        self.dir = attr.ino;
        if P::CHECKS {
            self.dir_attr = Some(*attr);
        }
    }

    /// Asks the policy for `mode` on the directory reached.
    pub fn check_dir<F: FileSystem, C: Clock, P: Policy>(
        &mut self,
        posix: &mut Posix<F, C, P>,
        mode: AccessMode,
    ) -> Result<()> {
        if !P::CHECKS {
            return Ok(());
        }
        let attr = match self.dir_attr {
            Some(attr) => attr,
            None => posix.getattr(self.dir)?,
        };
        self.dir_attr = Some(attr);
        posix.policy.access(posix.credentials, &attr, mode)
    }
}

fn skip_slashes(text: &[u8], from: usize) -> usize {
    let mut at = from;
    while text.get(at) == Some(&b'/') {
        at += 1;
    }
    at
}

impl<F: FileSystem, C: Clock, P: Policy> Posix<F, C, P> {
    /// Begins a walk along `path` from the directory `dirfd`.
    #[inline]
    pub(crate) fn walk<'p>(&self, dirfd: i32, path: &'p [u8]) -> Result<Walk<'p>> {
        let Some(first) = path.first() else { return Err(Errno::ENOENT) };
        if path.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let dir = if *first == b'/' {
            Ino::ROOT
        } else if dirfd == AT_FDCWD {
            self.cwd.ino
        } else {
            let file = self.table.get(dirfd)?;
            match file.held {
                Held::Directory(_) => file.ino,
                _ => return Err(Errno::ENOTDIR),
            }
        };
        let start = dir;
        let (position, dir) = self.remembered.skip(start, path).unwrap_or((0, start));
        Ok(Walk {
            path,
            expanded: Vec::new(),
            position,
            links: 0,
            start,
            looked_up: false,
            last: 0..0,
            dir,
            dir_attr: None,
            trailing: false,
        })
    }

    /// The attributes of the inode that `dirfd` and `path` name, for calls with `AT_` flags.
    pub(crate) fn find(&mut self, dirfd: i32, path: &[u8], flags: AtFlags) -> Result<Attr> {
        if path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
            return self.find_descriptor(dirfd);
        }
        let mut walk = self.walk(dirfd, path)?;
        walk.target(self, !flags.contains(AtFlags::SYMLINK_NOFOLLOW))
    }

    /// The attributes of an open file, or of the working directory.
    pub(crate) fn find_descriptor(&mut self, fd: i32) -> Result<Attr> {
        let ino = if fd == AT_FDCWD { self.cwd.ino } else { self.table.get(fd)?.ino };
        self.getattr(ino)
    }
}
