//! The clients that execute operations: on the file seam, or on a directory of the host by plain
//! calls.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_vfs::*;
use rustix::fs as sys;

use super::history::{DIRS, FILES, NAMES, Op, Outcome, Page, Place, Seen};
use crate::rng::Rng;
use crate::subject::{RW, name};

/// One client of the world.
pub trait Client {
    /// Does `op` and returns its outcome.
    fn call(&mut self, op: &Op) -> Outcome;

    /// Waits before the next call, if it does.
    fn rest(&mut self) {}
}

/// The name of the directory that is not the root.
const DIRECTORY: &str = "d";
/// Names in each directory.
const NAMED: [&str; NAMES] = ["n0", "n1", "n2", "n3"];
/// Bytes that are read and written at once: one page.
pub const PAGE: usize = 4096;
/// The same on Linux's own file systems, not all of which copy pages in one piece.
pub const WORD: usize = 8;
/// Where the files of a world have one more name that stays, if they have.
const KEPT: &str = "kept";

/// The caller: the time plays no part here.
const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };

/// The page that `bytes` show, read where `full` bytes were asked for.
fn page(bytes: &[u8], full: usize) -> Page {
    match bytes {
        [] => Page::Absent,
        [first, ..] if bytes.len() == full && bytes.iter().all(|b| b == first) => {
            Page::Filled(*first)
        }
        _ => Page::Torn,
    }
}

/// A client that is a [`FileSystem`] of its own, whatever lies between it and the volume.
pub struct SeamClient<F> {
    fs: F,
    dirs: [Ino; DIRS],
    files: Vec<(Ino, Handle, Handle)>,
    /// The files once more, opened to be read only, if that is how they are read.
    reading: Vec<Handle>,
    /// Whether the server says where appended data went, and that a listing is of one moment.
    told: bool,
}

/// Makes the world on an empty file system, through any one client. `kept`: the files have one
/// more name, by which clients find them whatever happens to the others.
///
/// # Errors
/// The file system's.
pub fn prepare(fs: &mut impl FileSystem, kept: bool) -> Result<()> {
    fs.mkdir(&CX, Ino::ROOT, name(DIRECTORY), 0o777)?;
    let keep = if kept { Some(fs.mkdir(&CX, Ino::ROOT, name(KEPT), 0o777)?.ino) } else { None };
    for named in &NAMED[..FILES] {
        let mode = FileType::Regular.mode_bits() | 0o666;
        let file = fs.mknod(&CX, Ino::ROOT, name(named), mode, 0)?.ino;
        if let Some(keep) = keep {
            fs.link(&CX, file, keep, name(named))?;
        }
    }
    Ok(())
}

impl<F: FileSystem> SeamClient<F> {
    /// Opens the files of the world.
    ///
    /// # Errors
    /// The file system's.
    pub fn new(mut fs: F) -> Result<Self> {
        let dirs = [Ino::ROOT, fs.lookup(&CX, Ino::ROOT, name(DIRECTORY))?.ino];
        let mut files = Vec::new();
        let found = fs.lookup(&CX, Ino::ROOT, name(KEPT)).map_or(Ino::ROOT, |attr| attr.ino);
        for named in &NAMED[..FILES] {
            let ino = fs.lookup(&CX, found, name(named))?.ino;
            let append = OpenFlags::WRITE | OpenFlags::APPEND;
            files.push((ino, fs.open(&CX, ino, RW)?, fs.open(&CX, ino, append)?));
        }
        Ok(SeamClient { fs, dirs, files, reading: Vec::new(), told: true })
    }

    /// The same, but pages are read through files opened to be read only, which a client may do by
    /// what it has kept.
    ///
    /// # Errors
    /// The file system's.
    pub fn caching(fs: F) -> Result<Self> {
        let mut client = SeamClient::new(fs)?;
        let SeamClient { fs, files, .. } = &mut client;
        let open = files.iter().map(|(ino, ..)| fs.open(&CX, *ino, OpenFlags::READ));
        client.reading = open.collect::<Result<_>>()?;
        Ok(client)
    }

    /// The same, of a server that has none of Atoll's extensions: it does not say where appended
    /// data went, and for a listing it is asked twice, so that this may show both names of what is
    /// renamed between.
    #[must_use]
    pub fn untold(self) -> Self {
        SeamClient { told: false, ..self }
    }

    fn list(&mut self, dir: usize) -> Result<Seen> {
        let ino = self.dirs[dir];
        let handle = self.fs.opendir(&CX, ino)?;
        let mut list = [None; NAMES];
        let listed = self.fs.readdir(&CX, ino, handle, 0, &mut |entry| {
            if let Some(i) = NAMED.iter().position(|named| named.as_bytes() == entry.name) {
                list[i] = Some(entry.ino.0);
            }
            true
        });
        self.fs.releasedir(&CX, ino, handle)?;
        listed?;
        Ok(Seen { list: self.told.then_some(list), ..Seen::default() })
    }

    fn rename(&mut self, a: Place, b: Place, flags: RenameFlags) -> Result<Seen> {
        let (from, to) = (self.dirs[a.0], self.dirs[b.0]);
        self.fs.rename(&CX, from, name(NAMED[a.1]), to, name(NAMED[b.1]), flags)?;
        Ok(Seen::default())
    }

    fn execute(&mut self, op: &Op) -> Result<Seen> {
        let named =
            |attr: Attr| Seen { ino: Some(attr.ino.0), nlink: Some(attr.nlink), ..Seen::default() };
        let nothing = |()| Seen::default();
        let at = |place: Place| (self.dirs[place.0], name(NAMED[place.1]));
        let fs = &mut self.fs;
        match *op {
            Op::Create(a) => {
                let mode = FileType::Regular.mode_bits() | 0o644;
                fs.mknod(&CX, at(a).0, at(a).1, mode, 0).map(named)
            }
            Op::Mkdir(a) => fs.mkdir(&CX, at(a).0, at(a).1, 0o755).map(named),
            Op::Unlink(a) => fs.unlink(&CX, at(a).0, at(a).1).map(nothing),
            Op::Rmdir(a) => fs.rmdir(&CX, at(a).0, at(a).1).map(nothing),
            Op::Rename(a, b) => self.rename(a, b, RenameFlags::empty()),
            Op::RenameNew(a, b) => self.rename(a, b, RenameFlags::NOREPLACE),
            Op::Exchange(a, b) => self.rename(a, b, RenameFlags::EXCHANGE),
            Op::Link(file, a) => fs.link(&CX, self.files[file].0, at(a).0, at(a).1).map(named),
            Op::Lookup(a) => fs.lookup(&CX, at(a).0, at(a).1).map(named),
            Op::List(dir) => self.list(dir),
            Op::Stat(file) => {
                let attr = fs.getattr(&CX, self.files[file].0)?;
                // A size that no operation makes becomes one that no file has.
                let whole = attr.size.is_multiple_of(PAGE as u64);
                let size = if whole { attr.size / PAGE as u64 } else { u64::MAX };
                Ok(Seen { size: Some(size), ..named(attr) })
            }
            Op::Read(file, at) => {
                let mut buf = [0; PAGE];
                let (ino, handle, _) = self.files[file];
                let handle = self.reading.get(file).copied().unwrap_or(handle);
                let len = fs.read(&CX, ino, handle, at * PAGE as u64, &mut buf)?;
                Ok(Seen { page: Some(page(&buf[..len], PAGE)), ..Seen::default() })
            }
            Op::Write(file, page, byte) => {
                let (ino, handle, _) = self.files[file];
                fs.write(&CX, ino, handle, page * PAGE as u64, &[byte; PAGE])?;
                Ok(Seen::default())
            }
            Op::Append(file, byte) => {
                let (ino, _, handle) = self.files[file];
                let written = fs.write(&CX, ino, handle, 0, &[byte; PAGE])?;
                let at = self.told.then_some(written.offset / PAGE as u64);
                Ok(Seen { at, ..Seen::default() })
            }
            Op::Truncate(file, pages) => {
                let set = SetAttr { size: Some(pages * PAGE as u64), ..SetAttr::default() };
                let (ino, handle, _) = self.files[file];
                fs.setattr(&CX, ino, Some(handle), &set).map(|_| Seen::default())
            }
        }
    }
}

impl<F: FileSystem> Client for SeamClient<F> {
    fn call(&mut self, op: &Op) -> Outcome {
        self.execute(op).map_err(Errno::raw)
    }
}

/// A client of a directory of the host by plain calls: a FUSE mount, or a file system of Linux.
pub struct PosixClient {
    dirs: [PathBuf; DIRS],
    files: Vec<(File, File)>,
    /// The files once more, opened to be read only, if that is how they are read.
    reading: Vec<File>,
    /// Bytes that are read and written at once.
    page: usize,
}

/// Makes the world in an empty directory of the host.
///
/// # Errors
/// The host's.
pub fn prepare_directory(root: &Path) -> std::io::Result<()> {
    std::fs::create_dir(root.join(DIRECTORY))?;
    NAMED[..FILES].iter().try_for_each(|named| File::create_new(root.join(named)).map(drop))
}

impl PosixClient {
    /// Opens the files of the world at `root`; their pages are of `page` bytes, which are read and
    /// written at once.
    ///
    /// # Errors
    /// The host's.
    pub fn new(root: &Path, page: usize) -> std::io::Result<Self> {
        let open = |named: &&str| {
            let path = root.join(named);
            let both = File::options().read(true).write(true).open(&path)?;
            Ok((both, File::options().append(true).open(&path)?))
        };
        let files = NAMED[..FILES].iter().map(open).collect::<std::io::Result<_>>()?;
        let dirs = [root.to_owned(), root.join(DIRECTORY)];
        Ok(PosixClient { dirs, files, reading: Vec::new(), page })
    }

    /// The same, but pages are read through files opened to be read only, which the kernel of a
    /// mount may do by its page cache.
    ///
    /// # Errors
    /// The host's.
    pub fn caching(root: &Path, page: usize) -> std::io::Result<Self> {
        let reading = NAMED[..FILES].iter().map(|named| File::open(root.join(named)));
        let reading = reading.collect::<std::io::Result<_>>()?;
        Ok(PosixClient { reading, ..PosixClient::new(root, page)? })
    }

    fn execute(&mut self, op: &Op) -> std::io::Result<Seen> {
        let at = |place: Place| self.dirs[place.0].join(NAMED[place.1]);
        let rename = |a, b, flags| sys::renameat_with(sys::CWD, at(a), sys::CWD, at(b), flags);
        let mut seen = Seen::default();
        let len = self.page;
        match *op {
            Op::Create(a) => {
                let file = File::create_new(at(a))?;
                seen.ino = Some(sys::fstat(&file)?.st_ino);
            }
            Op::Mkdir(a) => std::fs::create_dir(at(a))?,
            Op::Unlink(a) => sys::unlink(at(a))?,
            Op::Rmdir(a) => sys::rmdir(at(a))?,
            Op::Rename(a, b) => rename(a, b, sys::RenameFlags::empty())?,
            Op::RenameNew(a, b) => rename(a, b, sys::RenameFlags::NOREPLACE)?,
            Op::Exchange(a, b) => rename(a, b, sys::RenameFlags::EXCHANGE)?,
            Op::Link(file, a) => {
                let fd = self.files[file].0.as_fd().as_raw_fd();
                let follow = sys::AtFlags::SYMLINK_FOLLOW;
                sys::linkat(sys::CWD, format!("/proc/self/fd/{fd}"), sys::CWD, at(a), follow)?;
            }
            // Links and size are of a later moment than the walk.
            Op::Lookup(a) => seen.ino = Some(lookup(&at(a))?),
            Op::List(dir) => seen.list = Some(list(&self.dirs[dir])?),
            Op::Stat(file) => {
                let stat = sys::fstat(&self.files[file].0)?;
                let size = stat.st_size as u64;
                let whole = size.is_multiple_of(len as u64);
                seen.ino = Some(stat.st_ino);
                seen.nlink = u32::try_from(stat.st_nlink).ok();
                seen.size = Some(if whole { size / len as u64 } else { u64::MAX });
            }
            Op::Read(file, at) => {
                let mut buf = vec![0; len];
                let from = self.reading.get(file).unwrap_or(&self.files[file].0);
                let got = from.read_at(&mut buf, at * len as u64)?;
                // Linux does not say whether a page of zeros that it reads into its cache while
                // another cuts the file is one of the file, or beyond its end.
                let unclear =
                    !self.reading.is_empty() && got > 0 && buf.iter().all(|&byte| byte == 0);
                seen.page = (!unclear).then(|| page(&buf[..got], len));
            }
            Op::Write(file, page, byte) => {
                self.files[file].0.write_all_at(&vec![byte; len], page * len as u64)?;
            }
            Op::Append(file, byte) => {
                rustix::io::write(&self.files[file].1, &vec![byte; len])?;
            }
            Op::Truncate(file, pages) => self.files[file].0.set_len(pages * len as u64)?,
        }
        Ok(seen)
    }
}

/// The inode number at `path`. A name that is replaced between the kernel's two questions for it is
/// looked up again.
fn lookup(path: &Path) -> rustix::io::Result<u64> {
    for _ in 0..100 {
        match sys::lstat(path) {
            Err(rustix::io::Errno::STALE) => {}
            found => return found.map(|stat| stat.st_ino),
        }
    }
    Err(rustix::io::Errno::STALE)
}

/// The entries of a small directory, by the one call that gives all of them.
fn list(dir: &Path) -> std::io::Result<[Option<u64>; NAMES]> {
    let dir = File::open(dir)?;
    let mut buf = [const { MaybeUninit::uninit() }; 4096];
    let mut entries = sys::RawDir::new(&dir, &mut buf);
    let mut list = [None; NAMES];
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let named = |named: &&str| named.as_bytes() == entry.file_name().to_bytes();
        if let Some(i) = NAMED.iter().position(named) {
            list[i] = Some(entry.ino());
        }
        if entries.is_buffer_empty() {
            break;
        }
    }
    Ok(list)
}

impl<C: Client + ?Sized> Client for Box<C> {
    fn call(&mut self, op: &Op) -> Outcome {
        (**self).call(op)
    }

    fn rest(&mut self) {
        (**self).rest();
    }
}

/// A client that waits before each call, some time below `most`: beside one that is slow.
pub struct Paced<C> {
    client: C,
    rng: Rng,
    most: Duration,
}

impl<C> Paced<C> {
    /// Slows `client` down.
    pub fn new(client: C, seed: u64, most: Duration) -> Paced<C> {
        Paced { client, rng: Rng::new(seed), most }
    }
}

impl<C: Client> Client for Paced<C> {
    fn call(&mut self, op: &Op) -> Outcome {
        self.client.call(op)
    }

    fn rest(&mut self) {
        let nanoseconds = self.rng.within(0..self.most.as_nanos() as u64);
        std::thread::sleep(Duration::from_nanos(nanoseconds));
    }
}

impl Client for PosixClient {
    fn call(&mut self, op: &Op) -> Outcome {
        self.execute(op).map_err(|error| error.raw_os_error().unwrap_or(0))
    }
}

/// Hands a call of [`FileSystem`] on to what `self.inner()` gives.
macro_rules! to_inner {
    ($self:ident $verb:ident ($($arg:ident),*)) => { $self.inner().$verb($($arg),*) };
}
pub(crate) use to_inner;

/// The calls that no planted defect changes.
macro_rules! forward_common {
    () => {
        atoll_vfs::verbs!(to_inner: readlink mknod mkdir symlink unlink link getattr create tmpfile
            copy_file_range fallocate seek fsync release opendir releasedir fsyncdir syncfs statfs setxattr getxattr
            listxattr removexattr);
    };
}
pub(crate) use forward_common;

/// All calls of [`FileSystem`] that programs make.
macro_rules! forward_all {
    () => {
        forward_common!();
        atoll_vfs::verbs!(to_inner: rmdir readdir open lookup setattr rename read write);
    };
}

/// One file system for several threads, behind a lock.
pub struct Locked<F>(Arc<Mutex<F>>);

impl<F> Locked<F> {
    /// `n` clients of `fs`.
    pub fn clients(fs: F, n: usize) -> Vec<Self> {
        let fs = Arc::new(Mutex::new(fs));
        (0..n).map(|_| Locked(fs.clone())).collect()
    }

    fn inner(&self) -> MutexGuard<'_, F> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: FileSystem> FileSystem for Locked<F> {
    forward_all!();
}

/// A file system that takes its time in the middle of some calls, so that others come meanwhile.
#[derive(Debug)]
pub struct Dawdling<F> {
    fs: F,
    calls: u32,
}

impl<F> Dawdling<F> {
    /// Slows `fs` down.
    pub fn new(fs: F) -> Self {
        Dawdling { fs, calls: 0 }
    }

    /// The file system itself.
    pub fn into_inner(self) -> F {
        self.fs
    }

    fn inner(&mut self) -> &mut F {
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(4) {
            std::thread::sleep(Duration::from_micros(10));
        }
        &mut self.fs
    }
}

impl<F: FileSystem> FileSystem for Dawdling<F> {
    forward_all!();
}
