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

    fn enter<P: Policy>(&mut self, attr: &Attr) {
        self.dir = attr.ino;
        if P::CHECKS {
            self.dir_attr = Some(*attr);
        }
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

    /// Goes to the directory that the last component is looked up in.
    #[inline]
    pub(crate) fn last_of(&mut self, walk: &mut Walk<'_>) -> Result<Last> {
        loop {
            let text = walk.text();
            let start = skip_slashes(text, walk.position);
            if start == text.len() {
                return Ok(Last::Root);
            }
            let rest = &text[start..];
            let length = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
            let end = start + length;
            let next = skip_slashes(text, end);
            let at_end = next == text.len();
            if P::CHECKS {
                self.check_dir(walk, AccessMode::EXECUTE)?;
            }
            let component = &walk.text()[start..end];
            if at_end {
                let last = match component {
                    b"." => Last::Dot,
                    b".." => Last::DotDot,
                    _ => Last::Name,
                };
                walk.last = start..end;
                walk.trailing = end < next;
                if walk.looked_up && walk.links == 0 {
                    self.remembered.keep(walk.start, &walk.path[..start], walk.dir);
                }
                return Ok(last);
            }
            if component == b"." {
                walk.position = next;
                continue;
            }
            let cx = self.reading();
            let attr = self.fs.lookup(&cx, walk.dir, Name::new(component)?)?;
            match attr.file_type() {
                FileType::Directory => {
                    walk.position = next;
                    walk.looked_up = true;
                    walk.enter::<P>(&attr);
                }
                FileType::Symlink => self.expand(walk, attr.ino, next)?,
                _ => return Err(Errno::ENOTDIR),
            }
        }
    }

    /// The attributes of what the path names; of a symbolic link at its end only without `follow`.
    pub(crate) fn target_of(&mut self, walk: &mut Walk<'_>, follow: bool) -> Result<Attr> {
        loop {
            let last = self.last_of(walk)?;
            if last != Last::Name {
                return self.dot_of(walk, last);
            }
            let cx = self.reading();
            let attr = self.fs.lookup(&cx, walk.dir, walk.name()?)?;
            if !self.settle(walk, &attr, follow)? {
                return Ok(attr);
            }
        }
    }

    /// The attributes of a last component that is no name.
    pub(crate) fn dot_of(&mut self, walk: &mut Walk<'_>, last: Last) -> Result<Attr> {
        if last == Last::DotDot {
            let cx = self.reading();
            return self.fs.lookup(&cx, walk.dir, Name::new(b"..")?);
        }
        self.getattr(walk.dir)
    }

    /// Decides on what the last name turned out to be. True: it was a symbolic link, and the walk
    /// goes on.
    pub(crate) fn settle(
        &mut self,
        walk: &mut Walk<'_>,
        attr: &Attr,
        follow: bool,
    ) -> Result<bool> {
        match attr.file_type() {
            FileType::Symlink if follow || walk.trailing => {
                let rest = walk.last.end;
                self.expand(walk, attr.ino, rest)?;
                Ok(true)
            }
            FileType::Directory => Ok(false),
            _ if walk.trailing => Err(Errno::ENOTDIR),
            _ => Ok(false),
        }
    }

    /// Follows the link `link`: its target takes the place of the path up to `rest`.
    #[cold]
    fn expand(&mut self, walk: &mut Walk<'_>, link: Ino, rest: usize) -> Result<()> {
        walk.links += 1;
        if walk.links > SYMLOOP_MAX {
            return Err(Errno::ELOOP);
        }
        let mut text = Vec::new();
        let cx = self.reading();
        self.fs.readlink(&cx, link, &mut text)?;
        self.accessed(link, OFlags::empty());
        let absolute = match text.first() {
            None => return Err(Errno::ENOENT),
            Some(first) => *first == b'/',
        };
        let rest = &walk.text()[rest..];
        if !rest.is_empty() {
            text.push(b'/');
            text.extend_from_slice(rest);
        }
        walk.expanded = text;
        walk.position = 0;
        if absolute {
            walk.dir = Ino::ROOT;
            walk.dir_attr = None;
        }
        Ok(())
    }

    /// Asks the policy for `mode` on the directory reached.
    pub(crate) fn check_dir(&mut self, walk: &mut Walk<'_>, mode: AccessMode) -> Result<()> {
        if !P::CHECKS {
            return Ok(());
        }
        let attr = match walk.dir_attr {
            Some(attr) => attr,
            None => self.getattr(walk.dir)?,
        };
        walk.dir_attr = Some(attr);
        self.policy.access(self.credentials, &attr, mode)
    }

    /// The attributes of what `dirfd` and `path` name, for calls with `AT_` flags.
    pub(crate) fn find(&mut self, dirfd: i32, path: &[u8], flags: AtFlags) -> Result<Attr> {
        if path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
            return self.find_descriptor(dirfd);
        }
        let mut walk = self.walk(dirfd, path)?;
        self.target_of(&mut walk, !flags.contains(AtFlags::SYMLINK_NOFOLLOW))
    }

    /// The attributes of an open file, or of the working directory.
    pub(crate) fn find_descriptor(&mut self, fd: i32) -> Result<Attr> {
        let ino = if fd == AT_FDCWD { self.cwd.ino } else { self.table.get(fd)?.ino };
        self.getattr(ino)
    }
}
