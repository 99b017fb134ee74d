//! A directory by the system calls of programs, as a file system: what the suites demand of a
//! [`FileSystem`] they then demand of whatever answers the calls. It needs no /proc and no handles
//! of inodes, so that it runs wherever a program does.
//!
//! A directory is known by a descriptor, and every other inode by the names that it has; nobody
//! else changes them. An inode that has neither a name nor an open handle is forgotten.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use atoll_vfs::*;
use rustix::fs::{self as sys, AtFlags, Mode, OFlags, StatxFlags};

mod data;
mod names;

/// An inode that was seen.
#[derive(Debug, Default)]
struct Known {
    /// The number that the calls say.
    number: u64,
    /// Of a directory.
    fd: Option<Rc<OwnedFd>>,
    /// In which directories it has which names.
    places: BTreeSet<(Ino, Vec<u8>)>,
    /// How many handles are open.
    handles: usize,
    /// Of an open file without a name: a descriptor for both reading and writing, since there is no
    /// other way to open it once more.
    keeper: Option<Rc<OwnedFd>>,
}

/// An open file or directory.
#[derive(Clone, Debug)]
struct Open {
    ino: Ino,
    fd: Rc<OwnedFd>,
    /// `None` for a directory.
    flags: Option<OpenFlags>,
    /// The descriptor has more rights than the handle, which is judged here: the file had no name
    /// when it was opened.
    judged: bool,
}

/// A directory by system calls.
#[derive(Debug)]
pub struct ByCalls {
    path: PathBuf,
    known: HashMap<Ino, Known>,
    /// By the numbers that the calls say.
    numbers: HashMap<u64, Ino>,
    open: HashMap<Handle, Open>,
    next_ino: u64,
    next_handle: u64,
}

/// The error of the file seam for that of a call.
fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error()).unwrap_or(Errno::EIO)
}

fn bits(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl ByCalls {
    /// The directory at `path`, which is empty and stays nobody else's.
    ///
    /// # Errors
    /// The call's that opens it.
    pub fn open(path: &Path) -> Result<ByCalls> {
        let fd = sys::open(path, DIRECTORY, Mode::empty()).map_err(errno)?;
        let mut this = ByCalls {
            path: path.to_owned(),
            known: HashMap::new(),
            numbers: HashMap::new(),
            open: HashMap::new(),
            next_ino: Ino::ROOT.0,
            next_handle: 1,
        };
        let number = sys::fstat(&fd).map_err(errno)?.st_ino;
        let root = this.number(number);
        this.known.entry(root).or_default().fd = Some(Rc::new(fd));
        Ok(this)
    }

    /// The inode of a number that a call says. Those that were forgotten never come again.
    fn number(&mut self, number: u64) -> Ino {
        *self.numbers.entry(number).or_insert_with(|| {
            let ino = Ino(self.next_ino);
            self.next_ino += 1;
            ino
        })
    }

    fn get(&self, ino: Ino) -> Result<&Known> {
        self.known.get(&ino).ok_or(Errno::ESTALE)
    }

    /// The descriptor of a directory.
    fn dir(&self, ino: Ino) -> Result<Rc<OwnedFd>> {
        self.get(ino)?.fd.clone().ok_or(Errno::ENOTDIR)
    }

    /// A name of an inode that has one: the directory and the name.
    fn place(&self, ino: Ino) -> Result<Option<(Rc<OwnedFd>, Vec<u8>)>> {
        let place = self.get(ino)?.places.first().cloned();
        place.map(|(parent, name)| Ok((self.dir(parent)?, name))).transpose()
    }

    /// A path from the root of all, where there are no calls but by paths.
    fn path(&self, ino: Ino) -> Result<Option<PathBuf>> {
        let (mut at, mut names) = (ino, Vec::new());
        while at != Ino::ROOT {
            let Some((parent, name)) = self.get(at)?.places.first() else { return Ok(None) };
            names.push(name.as_slice());
            at = *parent;
        }
        let names = names.iter().rev().map(|name| std::ffi::OsStr::from_bytes(name));
        Ok(Some(names.fold(self.path.clone(), |path, name| path.join(name))))
    }

    /// A descriptor of an inode that is open, or of a directory.
    fn any_fd(&self, ino: Ino) -> Result<Rc<OwnedFd>> {
        if let Some(fd) = &self.get(ino)?.fd {
            return Ok(Rc::clone(fd));
        }
        // The first that was opened, so that the same seed makes the same calls.
        let open = self.open.iter().filter(|(_, open)| open.ino == ino);
        let (_, open) = open.min_by_key(|(handle, _)| handle.0).ok_or(Errno::ESTALE)?;
        Ok(Rc::clone(&open.fd))
    }

    /// What `name` is in `parent`, which is known from now on.
    fn see(&mut self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let dir = self.dir(parent)?;
        let attr = self.stat(&dir, name)?;
        if attr.is_dir() && self.known.get(&attr.ino).is_none_or(|known| known.fd.is_none()) {
            let flags = DIRECTORY | OFlags::NOFOLLOW;
            let fd = sys::openat(&dir, name, flags, Mode::empty()).map_err(errno)?;
            self.known.entry(attr.ino).or_default().fd = Some(Rc::new(fd));
        }
        let known = self.known.entry(attr.ino).or_default();
        known.places.insert((parent, name.to_vec()));
        Ok(attr)
    }

    /// Attributes of a name, or of the descriptor itself where that is empty.
    fn stat(&mut self, fd: &OwnedFd, name: &[u8]) -> Result<Attr> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        let asked = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = sys::statx(fd, name, flags, asked).map_err(errno)?;
        let time = |time: sys::StatxTimestamp| Timespec { sec: time.tv_sec, nsec: time.tv_nsec };
        let ino = self.number(stat.stx_ino);
        self.known.entry(ino).or_default().number = stat.stx_ino;
        Ok(Attr {
            ino,
            mode: stat.stx_mode.into(),
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: sys::makedev(stat.stx_rdev_major, stat.stx_rdev_minor) as u32,
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            btime: time(stat.stx_btime),
        })
    }

    fn attr(&mut self, ino: Ino) -> Result<Attr> {
        match self.place(ino)? {
            Some((dir, name)) if self.get(ino)?.fd.is_none() => self.stat(&dir, &name),
            _ => {
                let fd = self.any_fd(ino)?;
                self.stat(&fd, b"")
            }
        }
    }

    /// Takes a name away from an inode, and forgets one that has nothing left.
    fn lost(&mut self, ino: Ino, place: &(Ino, Vec<u8>)) {
        if let Some(known) = self.known.get_mut(&ino) {
            known.places.remove(place);
        }
        self.forget_if_gone(ino);
    }

    /// Keeps a file that is open from being lost with its name.
    fn keep(&mut self, attr: &Attr) -> Result<()> {
        let known = self.get(attr.ino)?;
        if attr.file_type() != FileType::Regular || known.handles == 0 || known.keeper.is_some() {
            return Ok(());
        }
        let kept = match self.reopen(attr, OpenFlags::READ | OpenFlags::WRITE) {
            // As many are open as can be: it is not opened once more then.
            Err(Errno::EMFILE | Errno::ENFILE) => return Ok(()),
            kept => kept?,
        };
        self.known.entry(attr.ino).or_default().keeper = Some(kept);
        Ok(())
    }

    fn forget_if_gone(&mut self, ino: Ino) {
        let gone = self
            .known
            .get(&ino)
            .filter(|known| ino != Ino::ROOT && known.places.is_empty() && known.handles == 0);
        if let Some(number) = gone.map(|known| known.number) {
            self.known.remove(&ino);
            self.numbers.remove(&number);
        }
    }

    /// Gives what was made to the caller, but for the group where the directory says it.
    fn give(&mut self, cx: &Context, parent: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let dir = self.dir(parent)?;
        let inherits = self.stat(&dir, b"")?.mode & 0o2000 != 0;
        let made = self.stat(&dir, name)?;
        let group = if inherits { made.gid } else { cx.gid };
        if sys::fstat(&dir).is_ok_and(|_| rustix::process::geteuid().is_root()) {
            let (uid, gid) = (sys::Uid::from_raw(cx.uid), sys::Gid::from_raw(group));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            sys::chownat(&dir, name, Some(uid), Some(gid), flags).map_err(errno)?;
            // Giving a file away takes its set-ID bits.
            if mode & 0o6000 != 0 && made.file_type() != FileType::Symlink {
                let mode = bits(mode | made.mode & 0o2000);
                sys::chmodat(&dir, name, mode, AtFlags::empty()).map_err(errno)?;
            }
        }
        self.see(parent, name)
    }

    fn handle(&mut self, ino: Ino, fd: Rc<OwnedFd>, flags: Option<OpenFlags>) -> Handle {
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        let keeper = self.known.get(&ino).and_then(|known| known.keeper.as_ref());
        let judged = keeper.is_some_and(|keeper| Rc::ptr_eq(keeper, &fd));
        self.open.insert(handle, Open { ino, fd, flags, judged });
        self.known.entry(ino).or_default().handles += 1;
        handle
    }

    /// The open file, or with `dir` directory, of a handle.
    fn opened(&self, ino: Ino, handle: Handle, dir: bool) -> Result<Open> {
        let open = self.open.get(&handle);
        let open = open.filter(|open| open.ino == ino && open.flags.is_none() == dir);
        open.cloned().ok_or(Errno::EBADF)
    }

    fn close(&mut self, ino: Ino, handle: Handle, dir: bool) -> Result<()> {
        self.opened(ino, handle, dir)?;
        self.open.remove(&handle);
        if let Some(known) = self.known.get_mut(&ino) {
            known.handles -= 1;
        }
        self.forget_if_gone(ino);
        Ok(())
    }
}
