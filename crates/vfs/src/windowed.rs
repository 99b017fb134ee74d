//! A client whose server shows it ranges of files in a window (DAX): what lies there is read and
//! written by copying, without READ and WRITE.
//!
//! Read in this order: [`Window`] the memory, [`Mapper`] who shows ranges in it, [`Policy`] which
//! ranges are worth it, [`Windowed`] the file system.
//!
//! # What holds
//! - The bytes are the file's own at that moment, whoever wrote them last: the window *is* the
//!   file. How long the file is the server is asked before anything is copied, so that a read ends
//!   where the file ended when it began; what it answers counts for other calls as long as it says
//!   so ([`Validity`]), and no longer than until this client changes the file. If another client
//!   cuts the file in that time, or while the read is under way, a read may find zeros instead of
//!   an earlier end, and what is written behind the new end is lost.
//! - Attributes count by the clock of the file system below ([`Mapper::now`]).
//! - A range is asked for only where all of it lies in the file: the one in which the file ends
//!   goes by messages. So does what makes a file longer, what is appended, what goes into a file
//!   with holes (it may find no space, which the write has to say), and what goes into one with a
//!   set-ID bit (which a write has to take away).
//! - Ranges are asked for to be written, always: of a file that its user may not write a server may
//!   show copies, which others' writes do not reach. Where it refuses, the file goes by messages.
//!   What a handle may do is judged here: through one that is not open for writing nothing is.
//! - The first read and the first write of each handle are messages, by which the server keeps the
//!   time of the last access, and takes set-ID bits.
//! - What was stored is the server's to write back, as of mapped files: it is durable after
//!   [`fsync`](FileSystem::fsync), and lost if the server is killed before it has written it back.
//!   The file's times change with that. This client has it done (by a SEEK) before it closes the
//!   file, before it shows or sets its attributes: so times are right for who wrote, and for
//!   everybody once the file is closed. [`release`](FileSystem::release) says an error of it.
//! - The ranges of a file are given back when the last handle is closed, so that the storage of a
//!   file that is unlinked goes with the last handle, as always.
//! - A range can be [pinned](Windowed::pin), for who maps it: whatever happens, it is shown until
//!   it is unpinned. While there is one nothing is kept of the file's content below.
//! - Nothing depends on the window: what cannot be shown, or copied, goes by messages, and whatever
//!   error those bring is the caller's.

mod length;
mod pins;
mod ranges;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use atoll_transport::Token;

use self::length::{Kept, Length, clock};
use self::ranges::{Found, Key, Ranges, Seen};
use crate::errno::{Errno, Result};
use crate::filesystem::FileSystem;
use crate::locks::Locks;
use crate::types::*;

/// Memory in which a device shows ranges of files.
///
/// Whoever is shown what is the [`Mapper`]'s affair. Bytes of a range that are not shown, or that
/// the file has no more, cannot be copied.
pub trait Window {
    /// Its length in bytes.
    fn len(&self) -> u64;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies what is shown from byte `at` on to `out`. Returns whether all of it was there; if
    /// not, anything may be in `out`.
    fn copy_out(&self, at: u64, out: &mut [u8]) -> bool;

    /// Copies `data` to what is shown from byte `at` on. Returns whether all of it was there; if
    /// not, a part may have been written.
    fn copy_in(&self, at: u64, data: &[u8]) -> bool;
}

/// A part of the window, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub at: u64,
    /// Its length.
    pub len: u64,
}

/// A range of a file that is to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Where it is shown.
    pub span: Span,
    /// Whether it is to be written.
    pub write: bool,
}

/// A range that was asked for.
#[derive(Debug)]
pub struct Asked {
    /// The request.
    pub token: Token,
    /// Its number.
    pub unique: u64,
}

/// How long attributes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// At that moment: another client may change the file any time.
    Moment,
    /// For so long: others do not change the file, or may be seen as late.
    For(Duration),
    /// Until the file system below says otherwise, which keeps them: to ask again costs nothing.
    Kept,
}

/// A file system that shows ranges of its files in a [`Window`].
pub trait Mapper: FileSystem {
    /// How long what [`getattr`](FileSystem::getattr) has answered last counts.
    fn validity(&self) -> Validity;

    /// The clock by which that is: how long it is since some moment. Without one of its own it is
    /// that of the callers, which has to go in each call.
    fn now(&self, cx: &Context) -> Duration {
        clock(cx.now)
    }

    /// Asks for a range of `ino` to be shown, and does not wait.
    ///
    /// # Errors
    /// `EINVAL` when the server shows no ranges of that length; `EIO`.
    fn begin_map(&mut self, cx: &Context, ino: Ino, mapping: &Mapping) -> Result<Asked>;

    /// Whether there is an answer.
    fn is_mapped(&mut self, asked: &Asked) -> bool;

    /// Waits for the answer: whether the range is shown.
    ///
    /// # Errors
    /// `EACCES` when the caller may not have it so; `ENOMEM` or `ENOSPC` when there is no room;
    /// `EOPNOTSUPP` when the server shows nothing; `EIO` when it is lost.
    fn end_map(&mut self, asked: Asked) -> Result<()>;

    /// Gives ranges back, all of them or, with an error, none.
    ///
    /// # Errors
    /// `EINVAL` when one is not shown so; `EIO`.
    fn unmap(&mut self, cx: &Context, ino: Ino, spans: &[Span]) -> Result<()>;

    /// Something was stored in what is shown of `ino`: what is kept of its content is old.
    fn stored(&mut self, ino: Ino);

    /// What was stored in `ino` was written back, so that its attributes have changed.
    fn written_back(&mut self, ino: Ino);
}

/// What goes by the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The length of a range, in bytes: of servers of volumes the only one is 2 MiB.
    pub range: u64,
    /// The shortest read or write, in bytes.
    pub least: usize,
    /// The same where the server is asked for each how long the file is, which costs as much as a
    /// message that brings the data.
    pub least_asked: usize,
    /// So many reads and writes in a range have to be messages before it is shown: the server has
    /// to bring the whole range into memory first, which few calls, however long, are not worth.
    pub worth: u32,
    /// So many ranges that follow are asked for ahead where a file is read or written in sequence.
    pub ahead: u64,
    /// So many ranges are given back at once when the window is full.
    pub batch: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { range: 2 << 20, least: 512, least_asked: 1 << 20, worth: 512, ahead: 2, batch: 8 }
    }
}

/// After a range was refused so many calls go by messages, at first.
const REST: u32 = 16;
/// And at most, when one range after the other is.
const REST_MAX: u32 = 1 << 14;

/// A handle.
#[derive(Clone, Copy, Debug)]
struct Open {
    ino: Ino,
    flags: OpenFlags,
    /// What a message has been sent for by this handle.
    done: OpenFlags,
}

/// A file that is open.
#[derive(Clone, Copy, Debug, Default)]
struct File {
    handles: usize,
    /// The server shows nothing of it.
    refused: bool,
    /// Where the last call ended.
    next: u64,
    /// By which handle something was stored that may not be written back.
    stored: Option<Handle>,
    kept: Option<Kept>,
    /// How many ranges are pinned, each as often as it is.
    pins: usize,
}

/// A [`FileSystem`] whose reads and writes go by a window where `F` shows the range, and by `F`
/// where it does not. The module says what holds.
#[derive(Debug)]
pub struct Windowed<F, W> {
    inner: F,
    window: Option<W>,
    policy: Policy,
    ranges: Ranges,
    seen: Seen,
    open: BTreeMap<u64, Open>,
    files: BTreeMap<Ino, File>,
    /// Ranges that were asked for ahead, and their places.
    coming: Vec<(usize, Ino, Asked)>,
    /// So many calls go by messages, and so many the next time.
    rest: u32,
    rests: u32,
    copied: u64,
    /// Each call has to ask how long the file is, as far as is known.
    asks: bool,
}

impl<F: Mapper, W: Window> Windowed<F, W> {
    /// Uses `window`, if there is one, in which `inner` shows ranges.
    pub fn new(inner: F, window: Option<W>, policy: Policy) -> Self {
        let len = window.as_ref().map_or(0, Window::len);
        let places = len.checked_div(policy.range).unwrap_or(0) as usize;
        Windowed {
            inner,
            window: window.filter(|_| places > 0),
            policy,
            ranges: Ranges::new(places),
            seen: Seen::new(),
            open: BTreeMap::new(),
            files: BTreeMap::new(),
            coming: Vec::new(),
            rest: 0,
            rests: REST,
            copied: 0,
            asks: false,
        }
    }

    /// The file system that shows the ranges.
    pub fn inner(&mut self) -> &mut F {
        &mut self.inner
    }

    /// The same, alone. What is shown stays so until its session ends.
    pub fn into_inner(self) -> F {
        self.inner
    }

    /// How many bytes have been read and written by the window.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    fn opened(&mut self, ino: Ino, handle: Handle, flags: OpenFlags) {
        // It may have been emptied.
        self.changes(ino);
        if self.window.is_some() {
            let done = OpenFlags::empty();
            if self.open.insert(handle.0, Open { ino, flags, done }).is_none() {
                self.files.entry(ino).or_default().handles += 1;
            }
        }
    }

    /// Whether a call on `len` bytes from `offset` on, for which a handle needs this `right`, may
    /// have to do with the window. Takes note of it where it has not.
    fn goes(
        &mut self,
        (ino, handle): (Ino, Handle),
        right: OpenFlags,
        (offset, len): (u64, usize),
    ) -> bool {
        let Some(open) = self.open.get_mut(&handle.0).filter(|open| open.ino == ino) else {
            return false;
        };
        let appends = right == OpenFlags::WRITE && open.flags.contains(OpenFlags::APPEND);
        let refused = self.files.get(&ino).is_none_or(|file| file.refused);
        let least = if self.asks { self.policy.least_asked } else { self.policy.least };
        if !open.flags.contains(right) || appends || refused || len < least.max(1) {
            return false;
        }
        let first = !open.done.contains(right);
        open.done |= right;
        let Some(last) = offset.checked_add(len as u64 - 1) else { return false };
        let numbers = offset / self.policy.range..=last / self.policy.range;
        let shown = numbers.clone().any(|number| self.ranges.find((ino, number)).is_some());
        let mut is_worth = |number| self.seen.calls((ino, number)) >= self.policy.worth;
        if !first && (shown || numbers.clone().any(&mut is_worth)) {
            if shown || self.rest == 0 {
                return true;
            }
            self.rest -= 1;
        }
        for number in numbers {
            self.seen.add((ino, number));
        }
        false
    }

    /// How long a file is at this moment, or a moment ago as far as that counts.
    fn length(&mut self, cx: &Context, ino: Ino) -> Result<Length> {
        let file = self.files.get(&ino);
        let now = self.inner.now(cx);
        if let Some(kept) = file.and_then(|file| file.kept).filter(|kept| kept.counts(now)) {
            return Ok(kept.length);
        }
        let length = Length::of(&self.inner.getattr(cx, ino)?);
        let validity = self.inner.validity();
        self.asks = validity == Validity::Moment;
        if let (Validity::For(valid), Some(file)) = (validity, self.files.get_mut(&ino)) {
            file.kept = Some(Kept { length, from: now, valid });
        }
        Ok(length)
    }

    /// This client changes the file.
    fn changes(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.kept = None;
        }
    }

    /// Where in the window a range of a file that is `size` bytes long is shown; it is asked for if
    /// that is worth it.
    fn place(&mut self, cx: &Context, key: Key, size: u64) -> Option<usize> {
        self.hear();
        let place = match self.ranges.find(key) {
            Some(Found::Shown(place)) => place,
            Some(Found::Coming(place)) => self.wait_for(place)?,
            None => {
                let place = self.ask(cx, key, size)?;
                self.wait_for(place)?
            }
        };
        self.ranges.used(place);
        Some(place)
    }

    /// Asks for a range, if it is worth it: its place.
    fn ask(&mut self, cx: &Context, key: Key, size: u64) -> Option<usize> {
        let range = self.policy.range;
        let (offset, end) = (key.1.checked_mul(range)?, key.1.checked_add(1)?.checked_mul(range)?);
        if self.rest > 0 || self.seen.calls(key) < self.policy.worth {
            return None;
        }
        if end > size {
            // Else each call would ask how long the file is.
            self.seen.forget(key);
            return None;
        }
        let place = self.vacant(cx)?;
        let span = self.span(place);
        match self.inner.begin_map(cx, key.0, &Mapping { offset, span, write: true }) {
            Ok(asked) => {
                self.ranges.coming(place, key);
                self.coming.push((place, key.0, asked));
                Some(place)
            }
            Err(error) => {
                self.refused(key.0, error);
                None
            }
        }
    }

    /// A place with no range, after others were given back if there was none.
    fn vacant(&mut self, cx: &Context) -> Option<usize> {
        if self.ranges.free().is_none() {
            self.make_room(cx);
        }
        self.ranges.free()
    }

    fn span(&self, place: usize) -> Span {
        Span { at: place as u64 * self.policy.range, len: self.policy.range }
    }

    /// Takes the answers that are there.
    fn hear(&mut self) {
        while let Some(at) = self.coming.iter().position(|(.., asked)| self.inner.is_mapped(asked))
        {
            self.come(at);
        }
    }

    /// Waits for the range that is to come to `place`: the place, if it has.
    fn wait_for(&mut self, place: usize) -> Option<usize> {
        let at = self.coming.iter().position(|(comes, ..)| *comes == place)?;
        self.come(at).then_some(place)
    }

    /// Takes an answer, and waits for it. Returns whether the range is shown.
    fn come(&mut self, at: usize) -> bool {
        let (place, ino, asked) = self.coming.swap_remove(at);
        match self.inner.end_map(asked) {
            Ok(()) => {
                self.ranges.shown(place);
                self.rests = REST;
                true
            }
            Err(error) => {
                self.ranges.freed(place);
                self.refused(ino, error);
                false
            }
        }
    }

    fn refused(&mut self, ino: Ino, error: Errno) {
        match error {
            // Others of its files may be shown, and this one when it is opened anew.
            Errno::EACCES | Errno::EPERM | Errno::EROFS | Errno::ETXTBSY => {
                if let Some(file) = self.files.get_mut(&ino) {
                    file.refused = true;
                }
            }
            _ => {
                self.rest = self.rests;
                self.rests = (2 * self.rests).min(REST_MAX);
            }
        }
    }

    /// Gives some ranges back that were used least lately.
    fn make_room(&mut self, cx: &Context) {
        let most = self.policy.batch.min(self.ranges.len() / 2).max(1);
        let least = self.ranges.least_used(most);
        let Some(&(_, (ino, _))) = least.first() else { return };
        for (_, key) in &least {
            self.seen.forget(*key);
        }
        self.give_back(cx, ino, least.into_iter().map(|(place, _)| place).collect());
    }

    fn give_back(&mut self, cx: &Context, ino: Ino, places: Vec<usize>) {
        if places.is_empty() {
            return;
        }
        let spans: Vec<Span> = places.iter().map(|place| self.span(*place)).collect();
        let done = self.inner.unmap(cx, ino, &spans);
        for place in places {
            match done {
                Ok(()) => self.ranges.freed(place),
                Err(_) => self.ranges.lost(place),
            }
        }
    }

    /// Gives all ranges of a file back.
    fn give_back_all(&mut self, cx: &Context, ino: Ino) {
        while let Some(at) = self.coming.iter().position(|(_, of, _)| *of == ino) {
            self.come(at);
        }
        let places = self.ranges.of(ino);
        self.give_back(cx, ino, places);
    }

    /// A call on a file has ended at `end`, and gone by the window: asks for what follows, if it
    /// goes on where the last one ended.
    fn go_ahead(&mut self, cx: &Context, ino: Ino, (offset, end): (u64, u64), size: u64) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let goes_on = core::mem::replace(&mut file.next, end) == offset;
        if !goes_on || file.refused || end == 0 {
            return;
        }
        let number = (end - 1) / self.policy.range;
        for key in (1..=self.policy.ahead).map(|more| (ino, number + more)) {
            if self.ranges.find(key).is_none() && (self.coming.len() as u64) < self.policy.ahead {
                self.ask(cx, key, size);
            }
        }
    }

    /// Has the server write back what was stored in `ino`, so that its attributes are right.
    fn settle(&mut self, cx: &Context, ino: Ino) -> Result<()> {
        let stored = self.files.get_mut(&ino).and_then(|file| file.stored.take());
        let Some(handle) = stored else { return Ok(()) };
        let sought = self.inner.seek(cx, ino, handle, 0, SeekTo::Hole);
        self.inner.written_back(ino);
        match sought {
            // It was cut to nothing; or the server knows no SEEK.
            Ok(_) | Err(Errno::ENXIO | Errno::EOPNOTSUPP) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The attributes that came with a name of a file, with what was stored in it by then.
    fn settled(&mut self, cx: &Context, attr: Attr) -> Attr {
        if self.files.get(&attr.ino).is_none_or(|file| file.stored.is_none()) {
            return attr;
        }
        // The name is there whatever comes of this; an error of it is told by fsync and release.
        let _ = self.settle(cx, attr.ino);
        self.inner.getattr(cx, attr.ino).unwrap_or(attr)
    }

    /// The part of `len` bytes from `offset` on that lies in one range: the range's number, where
    /// the part begins in it, its length.
    fn part(&self, offset: u64, len: usize) -> (u64, u64, usize) {
        let (number, within) = (offset / self.policy.range, offset % self.policy.range);
        let part = (self.policy.range - within).min(len as u64) as usize;
        (number, within, part)
    }

    /// Copies what range `key` has from `within` on to `out`, if it is shown.
    fn copy_out(
        &mut self,
        cx: &Context,
        (key, within): (Key, u64),
        size: u64,
        out: &mut [u8],
    ) -> bool {
        let Some(place) = self.place(cx, key, size) else { return false };
        let at = self.span(place).at + within;
        let all = self.window.as_ref().is_some_and(|window| window.copy_out(at, out));
        self.copied += if all { out.len() as u64 } else { 0 };
        all
    }

    /// Copies `data` to range `key` from `within` on, if it is shown.
    fn copy_in(
        &mut self,
        cx: &Context,
        (key, within): (Key, u64),
        (size, handle): (u64, Handle),
        data: &[u8],
    ) -> bool {
        let Some(place) = self.place(cx, key, size) else { return false };
        let at = self.span(place).at + within;
        if let Some(file) = self.files.get_mut(&key.0) {
            file.stored = Some(handle);
        }
        let all = self.window.as_ref().is_some_and(|window| window.copy_in(at, data));
        // A part may have been.
        self.inner.stored(key.0);
        self.copied += if all { data.len() as u64 } else { 0 };
        all
    }
}

/// Asks the file system below.
macro_rules! inner {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        $self.inner.$verb($($arg),*)
    };
}

impl<F: Mapper, W: Window> FileSystem for Windowed<F, W> {
    crate::verbs!(inner: forget readlink mknod mkdir symlink unlink rmdir rename
        seek opendir readdir releasedir fsyncdir syncfs statfs setxattr
        getxattr listxattr removexattr);

    fn statfs_below(&mut self, cx: &Context, dir: Ino) -> Result<StatFs> {
        self.inner.statfs_below(cx, dir)
    }

    fn shared_locks(&mut self) -> Option<&mut dyn Locks> {
        self.inner.shared_locks()
    }

    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let attr = self.inner.lookup(cx, parent, name)?;
        Ok(self.settled(cx, attr))
    }

    fn link(
        &mut self,
        cx: &Context,
        ino: Ino,
        new_parent: Ino,
        new_name: Name<'_>,
    ) -> Result<Attr> {
        let attr = self.inner.link(cx, ino, new_parent, new_name)?;
        Ok(self.settled(cx, attr))
    }

    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        // An error of it is told by fsync and release.
        let _ = self.settle(cx, ino);
        self.inner.getattr(cx, ino)
    }

    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        // Else the times that are set would be those of the write-back a moment later.
        let _ = self.settle(cx, ino);
        self.changes(ino);
        self.inner.setattr(cx, ino, handle, set)
    }

    fn copy_file_range(&mut self, cx: &Context, from: FileAt, to: FileAt, len: u64) -> Result<u64> {
        self.changes(to.ino);
        self.inner.copy_file_range(cx, from, to, len)
    }

    fn fallocate(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        self.changes(ino);
        self.inner.fallocate(cx, ino, handle, offset, len, mode)
    }

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let handle = self.inner.open(cx, ino, flags)?;
        self.opened(ino, handle, flags);
        Ok(handle)
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let (attr, handle) = self.inner.create(cx, parent, name, mode, flags)?;
        self.opened(attr.ino, handle, flags);
        // It may have been there.
        Ok((self.settled(cx, attr), handle))
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let (attr, handle) = self.inner.tmpfile(cx, parent, mode, flags)?;
        self.opened(attr.ino, handle, flags);
        Ok((attr, handle))
    }

    fn read(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.keep_nothing(ino);
        if !self.goes((ino, handle), OpenFlags::READ, (offset, buf.len())) {
            return self.inner.read(cx, ino, handle, offset, buf);
        }
        let size = match self.length(cx, ino) {
            Ok(length) => length.size,
            // The server says what is wrong.
            Err(_) => return self.inner.read(cx, ino, handle, offset, buf),
        };
        let len = size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut done = 0;
        while done < len {
            let from = offset + done as u64;
            let (number, within, part) = self.part(from, len - done);
            let place = &mut buf[done..done + part];
            if self.copy_out(cx, ((ino, number), within), size, place) {
                done += part;
                continue;
            }
            match self.inner.read(cx, ino, handle, from, place) {
                Ok(got) => {
                    self.seen.add((ino, number));
                    done += got;
                    if got < part {
                        return Ok(done);
                    }
                }
                // Bytes that were read before count, as with read(2).
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
        self.go_ahead(cx, ino, (offset, offset + done as u64), size);
        Ok(done)
    }

    fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        if !self.goes((ino, handle), OpenFlags::WRITE, (offset, data.len())) {
            self.changes(ino);
            return self.inner.write(cx, ino, handle, offset, data);
        }
        let within = |length: &Length| {
            let end = offset.checked_add(data.len() as u64);
            end.is_some_and(|end| end <= length.size) && length.is_plain
        };
        let size = match self.length(cx, ino) {
            Ok(length) if within(&length) => length.size,
            _ => {
                // Else each call would ask.
                let last = offset + (data.len() as u64 - 1);
                let numbers = offset / self.policy.range..=last / self.policy.range;
                numbers.for_each(|number| self.seen.forget((ino, number)));
                self.changes(ino);
                return self.inner.write(cx, ino, handle, offset, data);
            }
        };
        let mut done = 0;
        while done < data.len() {
            let to = offset + done as u64;
            let (number, within, part) = self.part(to, data.len() - done);
            let piece = &data[done..done + part];
            if self.copy_in(cx, ((ino, number), within), (size, handle), piece) {
                done += part;
                continue;
            }
            self.changes(ino);
            match self.inner.write(cx, ino, handle, to, piece) {
                Ok(written) => {
                    self.seen.add((ino, number));
                    done += written.len;
                    if written.len < part {
                        return Ok(Written { len: done, offset });
                    }
                }
                Err(_) if done > 0 => return Ok(Written { len: done, offset }),
                Err(error) => return Err(error),
            }
        }
        self.go_ahead(cx, ino, (offset, offset + done as u64), size);
        Ok(Written { len: done, offset })
    }

    fn fsync(&mut self, cx: &Context, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        let done = self.inner.fsync(cx, ino, handle, data_only);
        match done {
            Ok(()) => {
                let file = self.files.get_mut(&ino);
                if file.and_then(|file| file.stored.take()).is_some() {
                    self.inner.written_back(ino);
                }
            }
            // What is shown may be the file's content no more.
            Err(_) => self.give_back_all(cx, ino),
        }
        done
    }

    fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        let is_own = self.open.get(&handle.0).is_some_and(|open| open.ino == ino);
        let mut settled = Ok(());
        if is_own {
            self.open.remove(&handle.0);
            if self.files.get(&ino).is_some_and(|file| file.stored.is_some()) {
                settled = self.settle(cx, ino);
            }
            if let Some(file) = self.files.get_mut(&ino) {
                file.handles -= 1;
                if file.handles == 0 {
                    self.files.remove(&ino);
                    self.give_back_all(cx, ino);
                }
            }
        }
        self.inner.release(cx, ino, handle).and(settled)
    }
}

#[cfg(test)]
mod tests;
