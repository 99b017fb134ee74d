//! Several file systems as one, each at a directory of another: what mounts are in a kernel.
//!
//! The upper bits of an inode number say which file system it is of, those below are the file
//! system's own. The first has zeros there, so that an image with one volume pays next to nothing.

use alloc::vec::Vec;

use atoll_vfs::filesystem::copy_by_hand;
use atoll_vfs::{
    Attr, Context, DirEntry, Errno, FileAt, FileSystem, Handle, Ino, Name, RenameFlags, Result,
    StatFs,
};

/// Where the number of the file system begins in an inode number. A volume's own numbers stay below
/// for 2^56 files.
const SHIFT: u32 = 56;
/// The most file systems.
const MOUNTS_MAX: usize = 32;

/// A file system, and where it is.
#[derive(Debug)]
struct Mount<F> {
    fs: F,
    /// The directory that its root stands in place of; the first has none.
    covered: Ino,
}

/// File systems in one tree.
#[derive(Debug)]
pub struct Tree<F> {
    mounts: Vec<Mount<F>>,
}

#[inline]
fn index(ino: Ino) -> usize {
    (ino.0 >> SHIFT) as usize
}

#[inline]
fn local(ino: Ino) -> Ino {
    Ino(ino.0 & ((1 << SHIFT) - 1))
}

#[inline]
fn global(index: usize, ino: Ino) -> Ino {
    Ino(local(ino).0 | (index as u64) << SHIFT)
}

/// Fails for a number that has no place here: cut off it would be another inode's. A server may say
/// any.
#[inline]
fn fits(ino: Ino) -> Result<()> {
    if ino.0 >> SHIFT == 0 { Ok(()) } else { Err(Errno::EOVERFLOW) }
}

#[inline]
fn outside(index: usize, mut attr: Attr) -> Result<Attr> {
    fits(attr.ino)?;
    attr.ino = global(index, attr.ino);
    Ok(attr)
}

impl<F: FileSystem> Tree<F> {
    /// With `root` at the top.
    pub fn new(root: F) -> Self {
        Tree { mounts: alloc::vec![Mount { fs: root, covered: Ino::ROOT }] }
    }

    /// Attaches `fs` at the directory `at`, whose content is hidden from now on.
    ///
    /// # Errors
    /// `EBUSY` where one is attached already, `ENOMEM` for too many.
    pub fn attach(&mut self, at: Ino, fs: F) -> Result<()> {
        if local(at) == Ino::ROOT {
            return Err(Errno::EBUSY);
        }
        if self.mounts.len() >= MOUNTS_MAX {
            return Err(Errno::ENOMEM);
        }
        // It is known by its number as long as there is something attached.
        self.of(at)?.recall(local(at), 1);
        self.mounts.push(Mount { fs, covered: at });
        Ok(())
    }

    /// The file systems, the root first.
    pub fn into_parts(self) -> impl Iterator<Item = F> {
        self.mounts.into_iter().map(|mount| mount.fs)
    }

    /// The file system that has this inode, and the inode's own number there.
    ///
    /// # Errors
    /// `ESTALE` where there is none.
    pub fn part(&mut self, ino: Ino) -> Result<(&mut F, Ino)> {
        Ok((self.of(ino)?, local(ino)))
    }

    #[inline]
    fn of(&mut self, ino: Ino) -> Result<&mut F> {
        self.mounts.get_mut(index(ino)).map(|mount| &mut mount.fs).ok_or(Errno::ESTALE)
    }

    /// What a program finds at a directory: the root of what is attached there.
    #[inline]
    fn cross(&mut self, cx: &Context, attr: Attr) -> Result<Attr> {
        if self.mounts.len() == 1 || !attr.is_dir() {
            return Ok(attr);
        }
        match self.mounts.iter().skip(1).position(|mount| mount.covered == attr.ino) {
            Some(at) => self.getattr(cx, global(at + 1, Ino::ROOT)),
            None => Ok(attr),
        }
    }

    /// Whether something is attached at the name, which then can be neither moved nor removed.
    fn is_covered(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> bool {
        if self.mounts.len() == 1 {
            return false;
        }
        let found = self.of(parent).and_then(|fs| fs.lookup(cx, local(parent), name));
        let ino = found.map(|attr| global(index(parent), attr.ino));
        ino.is_ok_and(|ino| self.mounts.iter().skip(1).any(|mount| mount.covered == ino))
    }
}

/// Verbs on one inode, which go to its file system.
macro_rules! to_one {
    ($self:ident $verb:ident ($cx:ident, $ino:ident $(, $arg:ident)*)) => {
        $self.of($ino)?.$verb($cx, local($ino) $(, $arg)*)
    };
}

/// The same for those that return attributes, whose number is changed where they are: they are
/// large.
macro_rules! attributes {
    ($self:ident $verb:ident ($cx:ident, $ino:ident $(, $arg:ident)*)) => {{
        let mut found = $self.of($ino)?.$verb($cx, local($ino) $(, $arg)*);
        if let Ok(attr) = &mut found {
            fits(attr.ino)?;
            attr.ino = global(index($ino), attr.ino);
        }
        found
    }};
}

/// The same for those that return attributes and a handle.
macro_rules! opened {
    ($self:ident $verb:ident ($cx:ident, $ino:ident $(, $arg:ident)*)) => {
        $self
            .of($ino)?
            .$verb($cx, local($ino) $(, $arg)*)
            .and_then(|(attr, handle)| Ok((outside(index($ino), attr)?, handle)))
    };
}

impl<F: FileSystem> FileSystem for Tree<F> {
    atoll_vfs::verbs!(to_one: readlink open read write fallocate seek fsync release
        opendir releasedir fsyncdir setxattr getxattr listxattr removexattr);
    atoll_vfs::verbs!(attributes: getattr setattr mknod mkdir symlink);
    atoll_vfs::verbs!(opened: create tmpfile);

    #[inline]
    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let mount = self.mounts.get_mut(index(parent)).ok_or(Errno::ESTALE)?;
        if local(parent) == Ino::ROOT && index(parent) > 0 && name.bytes() == b".." {
            let covered = mount.covered;
            return self.lookup(cx, covered, name);
        }
        let attr = outside(index(parent), mount.fs.lookup(cx, local(parent), name)?)?;
        self.cross(cx, attr)
    }

    fn forget(&mut self, ino: Ino, count: u64) {
        if let Ok(fs) = self.of(ino) {
            fs.forget(local(ino), count);
        }
    }

    fn recall(&mut self, ino: Ino, count: u64) {
        if let Ok(fs) = self.of(ino) {
            fs.recall(local(ino), count);
        }
    }

    fn accessed(&mut self, cx: &Context, ino: Ino) -> bool {
        self.of(ino).is_ok_and(|fs| fs.accessed(cx, local(ino)))
    }

    fn unlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.of(parent)?.unlink(cx, local(parent), name)
    }

    fn rmdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        if self.is_covered(cx, parent, name) {
            return Err(Errno::EBUSY);
        }
        self.of(parent)?.rmdir(cx, local(parent), name)
    }

    fn rename(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        new_parent: Ino,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        if index(parent) != index(new_parent) {
            return Err(Errno::EXDEV);
        }
        if self.is_covered(cx, parent, name) || self.is_covered(cx, new_parent, new_name) {
            return Err(Errno::EBUSY);
        }
        let fs = self.of(parent)?;
        fs.rename(cx, local(parent), name, local(new_parent), new_name, flags)
    }

    fn link(
        &mut self,
        cx: &Context,
        ino: Ino,
        new_parent: Ino,
        new_name: Name<'_>,
    ) -> Result<Attr> {
        if index(ino) != index(new_parent) {
            return Err(Errno::EXDEV);
        }
        let attr = self.of(ino)?.link(cx, local(ino), local(new_parent), new_name)?;
        outside(index(ino), attr)
    }

    fn copy_file_range(&mut self, cx: &Context, from: FileAt, to: FileAt, len: u64) -> Result<u64> {
        if index(from.ino) != index(to.ino) {
            return copy_by_hand(self, cx, from, to, len);
        }
        let inside = |at: FileAt| FileAt { ino: local(at.ino), ..at };
        self.of(from.ino)?.copy_file_range(cx, inside(from), inside(to), len)
    }

    fn readdir(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let at = index(ino);
        // A root is found by its own number, as `lookup` says it: getcwd(3) goes by that.
        let covered: Vec<Ino> = self.mounts.iter().skip(1).map(|mount| mount.covered).collect();
        self.of(ino)?.readdir(cx, local(ino), handle, cookie, &mut |entry| {
            let ino = global(at, entry.ino);
            let attached = covered.iter().position(|covered| *covered == ino);
            let ino = attached.map_or(ino, |mount| global(mount + 1, Ino::ROOT));
            emit(&DirEntry { ino, ..*entry })
        })
    }

    fn syncfs(&mut self, cx: &Context) -> Result<()> {
        let mut outcome = Ok(());
        for mount in &mut self.mounts {
            outcome = outcome.and(mount.fs.syncfs(cx));
        }
        outcome
    }

    fn statfs(&mut self, cx: &Context) -> Result<StatFs> {
        self.of(Ino::ROOT)?.statfs(cx)
    }

    fn statfs_below(&mut self, cx: &Context, dir: Ino) -> Result<StatFs> {
        self.of(dir)?.statfs_below(cx, local(dir))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_posix::{OFlags, Options, Posix};
    use atoll_vfs::Timespec;
    use atoll_vfs::model::ModelFs;

    type Files = Posix<Tree<ModelFs>, fn() -> Timespec>;

    fn model() -> ModelFs {
        ModelFs::new(0o755, Timespec::default())
    }

    #[test]
    fn a_number_that_is_too_large_is_no_other_inodes() {
        assert_eq!(fits(Ino((1 << 56) - 1)), Ok(()));
        assert_eq!(fits(Ino(1 << 56 | 5)), Err(Errno::EOVERFLOW));
        let attr =
            model().getattr(&Context { uid: 0, gid: 0, now: Timespec::default() }, Ino::ROOT);
        let attr = Attr { ino: Ino(u64::MAX), ..attr.unwrap() };
        assert_eq!(outside(1, attr).map(|attr| attr.ino), Err(Errno::EOVERFLOW));
    }

    /// A tree with a file system at /m and another at /m/d/n.
    fn tree() -> Files {
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
        let mut tree = Tree::new(model());
        let m = tree.mkdir(&cx, Ino::ROOT, name("m"), 0o755).unwrap();
        tree.attach(m.ino, model()).unwrap();
        let m = tree.lookup(&cx, Ino::ROOT, name("m")).unwrap();
        let d = tree.mkdir(&cx, m.ino, name("d"), 0o755).unwrap();
        let n = tree.mkdir(&cx, d.ino, name("n"), 0o755).unwrap();
        tree.attach(n.ino, model()).unwrap();
        assert_eq!(tree.attach(Ino::ROOT, model()), Err(Errno::EBUSY));
        Posix::new(tree, Timespec::default, &Options::default())
    }

    #[test]
    fn paths_cross_between_file_systems() {
        let mut files = tree();
        let write = |files: &mut Files, path: &[u8]| {
            let fd = files.open(path, OFlags::CREAT | OFlags::RDWR, 0o644).unwrap();
            assert_eq!(files.write(fd, path), Ok(path.len()));
            files.close(fd).unwrap();
        };
        for path in [&b"/f"[..], b"/m/f", b"/m/d/f", b"/m/d/n/f"] {
            write(&mut files, path);
        }
        let mut seen: Vec<u64> = Vec::new();
        for path in [&b"/f"[..], b"/m/f", b"/m/d/f", b"/m/d/n/f", b"/m/d/n/../../f/../f"] {
            if let Ok(attr) = files.stat(path) {
                seen.push(attr.ino.0);
                assert_eq!(attr.size, path.len() as u64);
            }
        }
        assert_eq!(seen.len(), 4);
        seen.dedup();
        assert_eq!(seen.len(), 4);
        // Up again over both borders.
        assert_eq!(files.stat(b"/m/d/n/../f").unwrap().size, 6);
        assert_eq!(files.stat(b"/m/d/n/../../../f").unwrap().size, 2);
        files.chdir(b"/m/d/n").unwrap();
        assert_eq!(files.getcwd().unwrap(), b"/m/d/n");
        assert_eq!(files.stat(b"../../../f").unwrap().size, 2);
    }

    #[test]
    fn what_crosses_a_border_is_refused() {
        let mut files = tree();
        let fd = files.open(b"/f", OFlags::CREAT | OFlags::RDWR, 0o644).unwrap();
        files.write(fd, b"content").unwrap();
        assert_eq!(files.rename(b"/f", b"/m/f"), Err(Errno::EXDEV));
        let at = atoll_posix::AT_FDCWD;
        let linked = files.linkat(at, b"/f", at, b"/m/f", atoll_posix::AtFlags::empty());
        assert_eq!(linked, Err(Errno::EXDEV));
        assert_eq!(files.rmdir(b"/m/d/n"), Err(Errno::EBUSY));
        assert_eq!(files.rename(b"/m/d/n", b"/m/o"), Err(Errno::EBUSY));
        assert_eq!(files.rename(b"/m", b"/o"), Err(Errno::EBUSY));
        // Copies do cross.
        let to = files.open(b"/m/f", OFlags::CREAT | OFlags::RDWR, 0o644).unwrap();
        assert_eq!(files.copy_file_range((fd, Some(&mut 0)), (to, None), 100), Ok(7));
        assert_eq!(files.stat(b"/m/f").unwrap().size, 7);
    }
}
