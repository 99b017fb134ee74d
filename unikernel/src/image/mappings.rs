//! Files that are mapped shared: pages of a window in the program's memory. What is stored there is
//! the file's at once, and everybody's.
//!
//! A mapping has its file open by itself, since the program may close its descriptor, and the
//! ranges of the window pinned. It has the pages that the file has when it is mapped, or when the
//! program sets the file's length: what lies behind is nothing, for the program a bus error and for
//! a call EFAULT.
#![allow(unsafe_code)]

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use atoll_unikernel::PAGE;
use atoll_unikernel::elf::Protection;
use atoll_vfs::{Context, Errno, FileSystem, FileType, Handle, Ino, OpenFlags};

use crate::calls::Error;
use crate::process::files;
use crate::virtio::Served;
use crate::volumes::Volume;
use crate::{clock, memory, paging};

/// A file that is open for its mappings.
#[derive(Debug)]
struct Open {
    /// By the number that the program sees.
    ino: Ino,
    handle: Handle,
    may_write: bool,
}

/// A part of a mapping.
#[derive(Clone, Debug)]
struct Piece {
    range: Range<u64>,
    /// Where it begins in the file.
    offset: u64,
    /// So many bytes of it, whole pages, are there.
    there: u64,
    file: Rc<Open>,
}

/// All pieces. They are taken out while a server is asked.
struct All(RefCell<Vec<Piece>>);
// SAFETY: there is one processor, and no interrupt while the image runs.
unsafe impl Sync for All {}
static ALL: All = All(RefCell::new(Vec::new()));
/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn context() -> Context {
    Context { uid: 0, gid: 0, now: clock::now() }
}

/// Calls `act` with the file system of `ino`, which a device serves, and the inode's number there.
fn served<R>(ino: Ino, act: impl FnOnce(&mut Served, Ino) -> R) -> Result<R, Errno> {
    match files().fs_mut().part(ino)? {
        (Volume::Served(client), ino) => Ok(act(client, ino)),
        _ => Err(Errno::ENODEV),
    }
}

/// Whether any piece in `range` is such.
fn any(range: &Range<u64>, is_so: impl Fn(&Piece) -> bool) -> bool {
    COUNT.load(Ordering::Relaxed) > 0
        && ALL.0.borrow().iter().any(|piece| overlap(&piece.range, range) && is_so(piece))
}

/// Whether a file is mapped in `range`.
pub fn touches(range: &Range<u64>) -> bool {
    any(range, |_| true)
}

/// Whether a page in `range` is one that its file does not have.
pub fn misses(range: &Range<u64>) -> bool {
    any(range, |piece| piece.range.start + piece.there < range.end.min(piece.range.end))
}

/// Whether all that is mapped in `range` may be used so.
pub fn allow(range: &Range<u64>, protection: Protection) -> bool {
    !protection.contains(Protection::WRITE) || !any(range, |piece| !piece.file.may_write)
}

impl Piece {
    /// The part in `range`, which lies within.
    fn part(&self, range: Range<u64>) -> Option<Piece> {
        let skip = range.start - self.range.start;
        let there = self.there.saturating_sub(skip).min(range.end.saturating_sub(range.start));
        let offset = self.offset + skip;
        (range.start < range.end).then(|| Piece { range, offset, there, ..self.clone() })
    }

    /// Calls `act` for each range of the window that it uses, by its number.
    fn each(
        &self,
        mut act: impl FnMut(&mut Served, Ino, u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if self.there == 0 {
            return Ok(());
        }
        served(self.file.ino, |client, ino| {
            let range = client.inner().range();
            let last = (self.offset + self.there - 1) / range;
            (self.offset / range..=last).try_for_each(|number| act(client, ino, number))
        })?
    }

    /// Pins its ranges; all or, with an error, none.
    fn pin(&self) -> Result<(), Errno> {
        let mut done = 0;
        let pinned = self.each(|client, ino, number| {
            client.inner().pin(&context(), ino, number)?;
            done += 1;
            Ok(())
        });
        if pinned.is_err() {
            let _ = self.each(|client, ino, number| {
                if done > 0 {
                    client.inner().unpin(ino, number, None);
                    done -= 1;
                }
                Ok(())
            });
        }
        pinned
    }

    fn unpin(&self) {
        let stored = self.file.may_write.then_some(self.file.handle);
        let _ = self.each(|client, ino, number| {
            client.inner().unpin(ino, number, stored);
            Ok(())
        });
    }

    /// Puts its pages from byte `from` on where they belong; its ranges are pinned.
    fn show(&self, from: u64, protection: Protection) -> Result<(), Errno> {
        self.each(|client, ino, number| {
            let windowed = client.inner();
            let range = windowed.range();
            // Once more, to be told where it is.
            let at = windowed.pin(&context(), ino, number)?;
            windowed.unpin(ino, number, None);
            let window = windowed.window().ok_or(Errno::ENODEV)?;
            let begin = (number * range).max(self.offset + from);
            let end = ((number + 1) * range).min(self.offset + self.there);
            for offset in (begin..end).step_by(PAGE as usize) {
                let page = window.physical(at + offset % range).ok_or(Errno::ENODEV)?;
                let address = self.range.start + (offset - self.offset);
                // SAFETY: the program's page, which is absent, and one that the device shows.
                if !unsafe { paging::map_foreign(address, page, protection) } {
                    return Err(Errno::ENOMEM);
                }
            }
            Ok(())
        })
    }
}

/// So many bytes of `len` from `offset` on a file of `size` bytes has pages for.
fn there(len: u64, offset: u64, size: u64) -> u64 {
    size.saturating_sub(offset).next_multiple_of(PAGE).min(len)
}

/// Closes a file that has no mapping any more.
fn let_go(file: Rc<Open>) {
    if let Ok(open) = Rc::try_unwrap(file) {
        // As munmap(2), which says nothing of it.
        let _ = served(open.ino, |client, ino| client.release(&context(), ino, open.handle));
    }
}

/// Maps a file that is open as `fd` from `offset` on at `place`, in place of what is there.
/// `may_write`: it is open for that.
///
/// # Errors
/// ENODEV where the file has no window, or its server does not show it; ENOMEM; EIO.
pub fn map(
    place: Range<u64>,
    protection: Protection,
    fd: i32,
    offset: u64,
    may_write: bool,
) -> Result<(), Error> {
    let attr = files().fstat(fd)?;
    if attr.file_type() != FileType::Regular {
        return Err(Errno::ENODEV.into());
    }
    let flags = if may_write { OpenFlags::READ | OpenFlags::WRITE } else { OpenFlags::READ };
    let opened = served(attr.ino, |client, ino| {
        client.inner().window().ok_or(Errno::ENODEV)?;
        client.open(&context(), ino, flags)
    });
    let file = Rc::new(Open { ino: attr.ino, handle: opened??, may_write });
    let there = there(place.end - place.start, offset, attr.size);
    let piece = Piece { range: place.clone(), offset, there, file };
    let pinned = piece.pin().map_err(|error| match error {
        Errno::ENOMEM | Errno::EIO => error,
        _ => Errno::ENODEV,
    });
    if let Err(error) =
        pinned.map_err(Error::from).and_then(|()| memory::lay(place.clone(), protection))
    {
        if pinned.is_ok() {
            piece.unpin();
        }
        let_go(piece.file);
        return Err(error);
    }
    let shown = piece.show(0, protection);
    ALL.0.borrow_mut().push(piece);
    COUNT.fetch_add(1, Ordering::Relaxed);
    if let Err(error) = shown {
        memory::unmap(place)?;
        return Err(error.into());
    }
    Ok(())
}

/// Takes all pieces out, and puts back what `act` makes of each.
fn each(mut act: impl FnMut(Piece, &mut Vec<Piece>)) {
    let pieces = ALL.0.take();
    let mut left = Vec::with_capacity(pieces.len() + 1);
    for piece in pieces {
        act(piece, &mut left);
    }
    COUNT.store(left.len(), Ordering::Relaxed);
    *ALL.0.borrow_mut() = left;
}

/// Forgets what was mapped in `range`, whose pages have been taken away.
pub fn remove(range: &Range<u64>) {
    if !touches(range) {
        return;
    }
    each(|piece, left| {
        if !overlap(&piece.range, range) {
            left.push(piece);
            return;
        }
        let before = piece.part(piece.range.start..range.start.max(piece.range.start));
        let behind = piece.part(range.end.min(piece.range.end)..piece.range.end);
        // They are shown: to pin them once more asks nobody.
        for part in [before, behind].into_iter().flatten() {
            if part.pin().is_ok() {
                left.push(part);
            } else {
                // SAFETY: nothing of it is to be used any more.
                unsafe { paging::unmap(part.range) };
            }
        }
        piece.unpin();
        let_go(piece.file);
    });
}

/// Gives all back: the program does not run any more. A session that ended with ranges shown would
/// leave it to the emulator, and QEMU 11.1 may crash of that.
pub fn end() {
    each(|piece, _| {
        piece.unpin();
        let_go(piece.file);
    });
}

/// The length of a file may have been set: mappings have the pages that it has now.
pub fn follow() {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    each(|piece, left| {
        let found = served(piece.file.ino, |client, ino| client.getattr(&context(), ino));
        let len = piece.range.end - piece.range.start;
        let Ok(Ok(attr)) = found else {
            left.push(piece);
            return;
        };
        let now = Piece { there: there(len, piece.offset, attr.size), ..piece.clone() };
        let protection = memory::area(piece.range.clone());
        let is_more = now.there > piece.there;
        // Of a mapping in several protections no more is shown.
        if now.there == piece.there || is_more && protection.is_none() || now.pin().is_err() {
            left.push(piece);
            return;
        }
        if let Some(protection) = protection.filter(|_| is_more) {
            if now.show(piece.there, protection).is_err() {
                let (start, end) = (piece.range.start + piece.there, piece.range.start + now.there);
                // SAFETY: pages that came just now, in ranges that do not stay shown.
                unsafe { paging::unmap(start..end) };
                now.unpin();
                left.push(piece);
                return;
            }
        } else {
            let (start, end) = (piece.range.start + now.there, piece.range.start + piece.there);
            // SAFETY: pages that the file has no more.
            unsafe { paging::unmap(start..end) };
        }
        piece.unpin();
        left.push(now);
    });
}

/// Makes what was stored in `range` durable.
///
/// # Errors
/// EIO.
pub fn sync(range: &Range<u64>) -> Result<(), Error> {
    let mut outcome = Ok(());
    if touches(range) {
        each(|piece, left| {
            if overlap(&piece.range, range) {
                let handle = piece.file.handle;
                let synced = served(piece.file.ino, |client, ino| {
                    client.fsync(&context(), ino, handle, true)
                });
                outcome = outcome.and(synced.flatten());
            }
            left.push(piece);
        });
    }
    Ok(outcome?)
}
