//! Work on one file that takes the host's file system as long as the file is large: cuts, and the
//! last close of a removed file. Where calls [work in
//! steps](atoll_vfs::FileSystem::work_in_steps) it is left, and done without the directory by the
//! one who asks for it ([`begin_free`](atoll_vfs::FileSystem::begin_free)).
//!
//! The host locks the inode for as long as a cut takes, so that nearly every other call on the file
//! would wait there, and keep the directory from all others. Such a call is refused
//! ([`Rest::Until`]) and made again when the cut is done, and so is the call that cuts: it finds
//! what came of it.
//!
//! The end of the process in the middle is for the host what it is for any program: a cut was made
//! or was not, and a removed file that nobody has open gives its space back.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_vfs::{Attr, Errno, FileType, Ino, PendingSync, Rest, Result, SyncId};
use rustix::fs as sys;
use rustix::io::retry_on_intr;

use super::files::Taken;
use super::{HostDirectory, errno};

/// Bytes that are freed at once, which takes some milliseconds.
const AT_ONCE: u64 = 4 << 20;
/// How many cuts are left at a time, or remembered whose callers have not come back.
const CUTS_MAX: usize = 256;
/// How many files are left to be closed that somebody may wait for.
const CLOSES_MAX: usize = 1024;

/// Whether it takes long to free what is behind `size` of a file that has `blocks` of 512 bytes.
fn takes_long(had: u64, blocks: u64, size: u64) -> bool {
    had.max(blocks.saturating_mul(512)).saturating_sub(size) > AT_ONCE
}

/// A cut that was left.
#[derive(Debug)]
struct Cut {
    size: u64,
    outcome: Mutex<Option<Result<()>>>,
}

impl Cut {
    fn outcome(&self) -> Option<Result<()>> {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A cut, for the one who makes it: if that is dropped without, the cut has failed.
#[derive(Debug)]
struct Making(Arc<Cut>);

impl Making {
    fn end(&self, outcome: Result<()>) {
        let mut place = self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        place.get_or_insert(outcome);
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.end(Err(Errno::EIO));
    }
}

/// A piece of work that was left.
#[derive(Debug)]
enum Work {
    /// To cut the file that is open as this.
    Cut(OwnedFd, Making),
    /// To close this; it is an open file, and one of those that are left, until it is closed.
    Close(Arc<OwnedFd>, Taken, Arc<()>),
}

impl Work {
    fn do_it(self) -> Result<()> {
        match self {
            Work::Cut(fd, making) => {
                let made = retry_on_intr(|| sys::ftruncate(&fd, making.0.size)).map_err(errno);
                // It may have been removed meanwhile: then this closes it, as part of the cut.
                drop(fd);
                making.end(made);
                made
            }
            Work::Close(fd, taken, left) => {
                drop(fd);
                drop((taken, left));
                Ok(())
            }
        }
    }
}

/// What calls have left, and what has become of it.
#[derive(Debug, Default)]
pub(super) struct Apart {
    left: HashMap<Ino, VecDeque<Work>>,
    /// Cuts that are left, being made, or made for callers that have not come back.
    cuts: HashMap<Ino, Arc<Cut>>,
    closes: Arc<()>,
    begun: u64,
    /// Closes what nobody waits for.
    closer: Option<Sender<Arc<OwnedFd>>>,
}

impl Apart {
    fn leave(&mut self, ino: Ino, work: Work) {
        self.left.entry(ino).or_default().push_back(work);
    }

    /// Whether a cut of `ino` is left, or being made.
    pub(super) fn is_cut(&self, ino: Ino) -> bool {
        // Mostly there are none.
        !self.cuts.is_empty() && self.cuts.get(&ino).is_some_and(|cut| cut.outcome().is_none())
    }

    /// Whether there are any cuts.
    pub(super) fn cuts_any(&self) -> bool {
        !self.cuts.is_empty()
    }

    /// What has come of a cut of `ino` to `size`, which was left and has been made.
    fn made(&mut self, ino: Ino, size: u64) -> Option<Result<()>> {
        let outcome = self.cuts.get(&ino).filter(|cut| cut.size == size)?.outcome()?;
        self.cuts.remove(&ino);
        Some(outcome)
    }

    /// The inode whose cut one more has to wait for, if there are too many.
    fn first(&mut self) -> Option<Ino> {
        if self.cuts.len() < CUTS_MAX {
            return None;
        }
        self.cuts.retain(|_, cut| cut.outcome().is_none());
        self.cuts.keys().next().copied().filter(|_| self.cuts.len() >= CUTS_MAX)
    }

    fn close_later(&mut self, fd: Arc<OwnedFd>) {
        if self.closer.is_none() {
            let (closer, files) = channel::<Arc<OwnedFd>>();
            let close = move || files.into_iter().for_each(drop);
            let started = std::thread::Builder::new().name("closer".to_owned()).spawn(close);
            self.closer = started.is_ok().then_some(closer);
        }
        if let Some(closer) = &self.closer {
            // Where there is no thread it is closed here.
            let _ = closer.send(fd);
        }
    }
}

impl HostDirectory {
    /// Refuses a call that would wait until a cut of `ino` is made.
    ///
    /// # Errors
    /// `EAGAIN`, with a rest.
    pub(super) fn settled(&mut self, ino: Ino) -> Result<()> {
        // A caller who cannot come back waits where the host has it wait.
        if self.steps && self.apart.is_cut(ino) {
            self.rest = Some(Rest::Until(ino));
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }

    /// Whether a cut of a file with the attributes `old` to `size` is left.
    pub(super) fn cuts_apart(&self, old: &Attr, size: u64) -> bool {
        // A copy is kept the same as the file.
        let long = takes_long(old.size, old.blocks, size) || self.apart.cuts.contains_key(&old.ino);
        self.steps && long && !self.copies.has(old.ino)
    }

    /// Whether the storage of a file with the attributes `attr` is freed apart when its last name
    /// goes.
    pub(super) fn frees_apart(&self, attr: &Attr) -> bool {
        let is_last = attr.nlink == 1 && attr.file_type() == FileType::Regular;
        self.steps && is_last && takes_long(attr.size, attr.blocks, 0)
    }

    /// Cuts a file, or makes it longer, which had the attributes `old`; `open` gives a descriptor
    /// that may write it.
    ///
    /// # Errors
    /// Those of ftruncate(2); `EAGAIN`, with a rest, for what is left.
    pub(super) fn cut_to(
        &mut self,
        old: &Attr,
        size: u64,
        open: impl FnOnce(&mut HostDirectory) -> Result<OwnedFd>,
    ) -> Result<()> {
        if let Some(made) = self.apart.made(old.ino, size) {
            made?;
            if old.size == size {
                return Ok(());
            }
        }
        let fd = open(self)?;
        if self.cuts_apart(old, size) {
            if let Some(other) = self.apart.first() {
                self.rest = Some(Rest::Until(other));
                return Err(Errno::EAGAIN);
            }
            let cut = Arc::new(Cut { size, outcome: Mutex::default() });
            self.apart.cuts.insert(old.ino, Arc::clone(&cut));
            self.apart.leave(old.ino, Work::Cut(fd, Making(cut)));
            self.rest = Some(Rest::Until(old.ino));
            return Err(Errno::EAGAIN);
        }
        retry_on_intr(|| sys::ftruncate(&fd, size)).map_err(errno)
    }

    /// `ino`, which was open as `fd` with the attributes `stat`, has no names any more, and nobody
    /// knows it: its storage goes with this descriptor, or with one that is open elsewhere.
    pub(super) fn close_last(&mut self, ino: Ino, fd: Arc<OwnedFd>, stat: &sys::Stat) {
        if !self.steps || !takes_long(stat.st_size as u64, stat.st_blocks as u64, 0) {
            return;
        }
        if Arc::strong_count(&self.apart.closes) > CLOSES_MAX {
            return self.apart.close_later(fd);
        }
        let under = match self.rest {
            None => ino,
            Some(Rest::Blocks(other) | Rest::Until(other)) => other,
            Some(_) => return,
        };
        self.rest.get_or_insert(Rest::Blocks(ino));
        let left = Arc::clone(&self.apart.closes);
        self.apart.leave(under, Work::Close(fd, Taken::new(), left));
    }

    /// Closes the descriptors that the table has let go of. A program of the host may have removed
    /// the file meanwhile, whose storage goes then.
    pub(super) fn close_dropped(&mut self) {
        for fd in self.table.take_dropped() {
            let long = Arc::strong_count(&fd) == 1
                && sys::fstat(&fd).is_ok_and(|stat| {
                    let (size, blocks) = (stat.st_size as u64, stat.st_blocks as u64);
                    stat.st_nlink == 0 && takes_long(size, blocks, 0)
                });
            if long {
                self.apart.close_later(fd);
            }
        }
    }

    /// Begins the next piece of the work that calls have left of `ino`.
    pub(super) fn begin_apart(&mut self, ino: Ino) -> Option<PendingSync> {
        let left = self.apart.left.get_mut(&ino)?;
        let work = left.pop_front();
        if left.is_empty() {
            self.apart.left.remove(&ino);
        }
        let work = work?;
        self.apart.begun += 1;
        Some(PendingSync::new(SyncId(self.apart.begun), move || work.do_it()))
    }
}
