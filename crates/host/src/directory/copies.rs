//! Copies of ranges of files, for guests: memory that stands for a range that cannot be mapped
//! itself, since the file ends within it, or others may cut it short.
//!
//! A copy remembers what the file had when both were the same last, so that it can be told who has
//! changed something since: what the guest has stored is written into the file, what the host has
//! changed is brought into the copy ([`Copied::meet`]). Where both have, the guest's bytes stay.
//! They meet when a guest asks for the range, when a file is opened, read, synced or closed here,
//! and before every sync of all. Changes that are made here reach the file and the copy at once.
//!
//! What lies beyond the end of the file is zeros in the copy, whatever a guest has stored there.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_transport::Memory;
use atoll_transport::channel::Mapped;
use atoll_vfs::{Data, Errno, Ino, Result};
use rustix::fs as sys;

use super::errno;
use crate::errno::errno_of;
use crate::shm::SharedMemory;

/// The unit in which what has changed is looked for.
const PAGE: usize = 4096;
/// The longest copy, in bytes: what a guest maps at once.
pub(super) const COPY_MAX: u64 = 2 << 20;

/// One range.
#[derive(Debug)]
pub(super) struct Copied {
    /// Where it begins in the file.
    start: u64,
    pub memory: SharedMemory,
    /// The file's bytes when both were the same last.
    base: Mutex<Vec<u8>>,
    fd: Arc<OwnedFd>,
}

fn size(fd: &OwnedFd) -> Result<u64> {
    Ok(sys::fstat(fd).map_err(errno)?.st_size as u64)
}

impl Copied {
    fn new(range: &Range<u64>, fd: &Arc<OwnedFd>) -> Result<Copied> {
        let len = (range.end - range.start) as usize;
        let memory = SharedMemory::create("atoll-copied", len).map_err(errno_of)?;
        let base = Mutex::new(vec![0; len]);
        Ok(Copied { start: range.start, memory, base, fd: Arc::clone(fd) })
    }

    fn base(&self) -> MutexGuard<'_, Vec<u8>> {
        self.base.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn range(&self) -> Range<u64> {
        self.start..self.start + self.memory.len() as u64
    }

    fn touches(&self, range: &Range<u64>) -> bool {
        self.start < range.end && range.start < self.range().end
    }

    /// The file's bytes, with zeros behind its end; and how many are the file's.
    fn content(&self) -> Result<(Vec<u8>, usize)> {
        let mut bytes = vec![0; self.memory.len()];
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(&self.fd, &mut bytes[done..], self.start + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        Ok((bytes, done))
    }

    /// Brings what the guest has stored into the file, and what the host has changed into the copy.
    fn meet(&self) -> Result<()> {
        let mut base = self.base();
        let (mut content, there) = self.content()?;
        let mut memory = vec![0; content.len()];
        self.memory.shared().read(0, &mut memory);
        for at in (0..content.len()).step_by(PAGE) {
            let page = at..content.len().min(at + PAGE);
            let stored = &memory[page.clone()];
            let was = &mut base[page.clone()];
            let is = &mut content[page.clone()];
            let mut kept = 0..0;
            if stored != was {
                let differs = |at: &usize| stored[*at] != was[*at];
                let first = (0..stored.len()).find(differs).unwrap_or(0);
                let last = (0..stored.len()).rfind(differs).unwrap_or(0);
                // The file does not grow by what is stored behind its end.
                kept = first..(last + 1).min(there.saturating_sub(at)).max(first);
                let mut from = kept.start;
                while from < kept.end {
                    let place = self.start + (at + from) as u64;
                    match rustix::io::pwrite(&self.fd, &stored[from..kept.end], place) {
                        Ok(0) => return Err(Errno::EIO),
                        Ok(written) => from += written,
                        Err(rustix::io::Errno::INTR) => {}
                        Err(error) => return Err(errno(error)),
                    }
                }
                is[kept.clone()].copy_from_slice(&stored[kept.clone()]);
            }
            if stored != is {
                // Not what was just written: the guest may have stored there again.
                self.memory.shared().write(at, &is[..kept.start]);
                self.memory.shared().write(at + kept.end, &is[kept.end..]);
            }
            was.copy_from_slice(is);
        }
        Ok(())
    }

    /// Puts `data` at `offset` of the file into the copy; `None`: zeros up to `end`.
    fn put(&self, offset: u64, end: u64, data: Option<&[u8]>) {
        let range = self.range();
        let (from, to) = (offset.max(range.start), end.min(range.end));
        if from >= to {
            return;
        }
        let place = (from - range.start) as usize..(to - range.start) as usize;
        let mut base = self.base();
        match data {
            Some(data) => {
                let data = &data[(from - offset) as usize..(to - offset) as usize];
                base[place.clone()].copy_from_slice(data);
            }
            None => base[place.clone()].fill(0),
        }
        self.memory.shared().write(place.start, &base[place.clone()]);
    }
}

/// The copies of all files.
#[derive(Debug, Default)]
pub(super) struct Copies(HashMap<Ino, Vec<Arc<Copied>>>);

impl Copies {
    /// Whether `ino` has some.
    pub fn has(&self, ino: Ino) -> bool {
        !self.0.is_empty() && self.0.contains_key(&ino)
    }

    /// Whether a part of `range` is copied.
    pub fn covers(&self, ino: Ino, range: &Range<u64>) -> bool {
        self.0.get(&ino).is_some_and(|copies| copies.iter().any(|copied| copied.touches(range)))
    }

    /// The copy of a range of `ino`, which `fd` is open on for reading and writing: one for all
    /// who want it.
    ///
    /// # Errors
    /// `EINVAL` for one that is too long, or that another overlaps; those of making memory.
    pub fn get(&mut self, ino: Ino, range: &Range<u64>, fd: &Arc<OwnedFd>) -> Result<Arc<Copied>> {
        self.drop_unused();
        let there = self.0.get(&ino).into_iter().flatten().find(|one| one.range() == *range);
        let copied = match there {
            Some(copied) => Arc::clone(copied),
            None if range.end - range.start > COPY_MAX || self.covers(ino, range) => {
                return Err(Errno::EINVAL);
            }
            None => {
                let copied = Arc::new(Copied::new(range, fd)?);
                self.0.entry(ino).or_default().push(Arc::clone(&copied));
                copied
            }
        };
        copied.meet()?;
        Ok(copied)
    }

    /// Has the copies of `ino` that touch `range` meet with it.
    ///
    /// # Errors
    /// Those of reading and writing the file; the others meet it all the same.
    pub fn meet(&self, ino: Ino, range: Range<u64>) -> Result<()> {
        let Some(copies) = self.0.get(&ino) else { return Ok(()) };
        let touched = copies.iter().filter(|copied| copied.touches(&range));
        let mut result = Ok(());
        touched.for_each(|copied| result = result.and(copied.meet()));
        result
    }

    /// Has all copies meet with their files.
    ///
    /// # Errors
    /// As [`meet`](Self::meet).
    pub fn meet_all(&mut self) -> Result<()> {
        let mut result = Ok(());
        self.0.values().flatten().for_each(|copied| result = result.and(copied.meet()));
        self.drop_unused();
        result
    }

    /// `data` was written at `offset` of `ino`, whose size was `was`.
    pub fn written(&self, ino: Ino, was: u64, offset: u64, data: Data<'_>) {
        for copied in self.0.get(&ino).into_iter().flatten() {
            copied.put(was, offset, None);
            let mut at = offset;
            for piece in data.iter() {
                let end = at + piece.len() as u64;
                copied.put(at, end, Some(piece));
                at = end;
            }
        }
    }

    /// These bytes of `ino` are zeros now, or its end is before them.
    pub fn zeroed(&self, ino: Ino, range: Range<u64>) {
        for copied in self.0.get(&ino).into_iter().flatten() {
            copied.put(range.start, range.end, None);
        }
    }

    /// Lets go of copies that nobody has mapped any more. What was stored is in the files: they met
    /// when the last who had them closed the file.
    pub fn drop_unused(&mut self) {
        self.0.retain(|_, copies| {
            copies.retain(|copied| {
                let used = Arc::strong_count(copied) > 1;
                if !used && let Err(error) = copied.meet() {
                    log::error!("stores into a file of the host are lost: {error}");
                }
                used
            });
            !copies.is_empty()
        });
    }
}

/// The size of the file that `fd` is open on, where it is asked for.
pub(super) fn size_if(asked: bool, fd: &OwnedFd) -> Result<u64> {
    if asked { size(fd) } else { Ok(0) }
}
