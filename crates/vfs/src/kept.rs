//! A client that keeps names, attributes and pages until it is told that they have changed.
//!
//! Read in this order: [`Lends`] what an answer says of how long it holds, [`Kept`] what is kept,
//! [`Keeper`] the way to it and to the notices, [`Keeping`] the file system.
//!
//! # Why nothing old is shown
//!
//! The server answers a change, and whatever depends on it, only when each client that has a lease
//! on what was changed has said that it has taken the notice. So what is kept may be shown until
//! the notice is taken. Of an answer to a request that was under way while a notice came nothing is
//! kept: it may be older than what the notice is about. A notice that is still on its way when an
//! answer is kept drops it when it is taken, which is before anybody is answered.
//!
//! What the client itself changes it is not told of, and drops by itself when its call returns.
//!
//! A server that has lost patience with a client ends its session. The client learns of it by an
//! error (`EIO`), upon which it drops all, and keeps no name and no attributes for longer than
//! their answer said, nor shows pages without valid attributes: so that is noticed in time even if
//! all that is asked for is kept.

mod halves;
mod store;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use atoll_transport::Transport;

use crate::client::Client;
use crate::errno::{Errno, Result};
use crate::filesystem::FileSystem;
use crate::lent::{Lends, Lent, Pages};
use crate::locks::{Locks, OutsideLocks};
use crate::pieces::Data;
use crate::types::*;
use crate::windowed::{Asked, Mapper, Mapping, Span, Validity};
pub use store::Kept;
use store::{BLOCK, Found, Piece};

/// The longest read that goes by the pages that are kept, in bytes: a longer one is worth a
/// request.
pub const READ_MAX: usize = 64 << 10;
/// The most inodes of which a name that is kept was given to the caller, which may forget it again.
const GIVEN_MAX: usize = 1 << 16;

/// The way to what is kept, which may be shared with a thread that takes notices meanwhile.
pub trait Keeper {
    /// Takes the notices that have come, and calls `act` with what is kept then. `None`: nothing
    /// may be kept, since there are no notices, or not any more.
    fn with<R>(&self, act: impl FnOnce(&mut Kept) -> R) -> Option<R>;

    /// A clock that nobody sets: how long it is since some moment. It goes also where nothing is
    /// kept.
    fn now(&self) -> Duration;
}

/// A [`FileSystem`] that keeps what `F` says it may.
///
/// What it answers by itself is judged by nobody but the server's answers to others: they have to
/// be the same for each [`Context`].
#[derive(Debug)]
pub struct Keeping<F, K> {
    inner: F,
    keeper: K,
    /// Open files whose pages may be kept.
    paged: BTreeMap<u64, Ino>,
    /// How often an inode was given to the caller without a request: so many of what the caller
    /// forgets the server has not counted.
    given: BTreeMap<Ino, u64>,
    /// A place for a read and what is around it.
    around: Vec<u8>,
}

/// When a request was sent, and how many notices had been taken by then.
#[derive(Clone, Copy, Debug)]
struct Begun {
    taken: u64,
    at: Duration,
}

impl<F: Lends, K: Keeper> Keeping<F, K> {
    /// Keeps what `inner` says, by the way of `keeper`.
    pub fn new(inner: F, keeper: K) -> Self {
        let (paged, given) = (BTreeMap::new(), BTreeMap::new());
        Keeping { inner, keeper, paged, given, around: Vec::new() }
    }

    /// The file system that is asked.
    pub fn inner(&mut self) -> &mut F {
        &mut self.inner
    }

    /// The file system that is asked, alone. Nothing is kept any more.
    pub fn into_inner(self) -> F {
        self.keeper.with(Kept::clear);
        self.inner
    }

    /// The way to what is kept.
    pub fn keeper(&self) -> &K {
        &self.keeper
    }

    fn begin(&self) -> Option<Begun> {
        let at = self.keeper.now();
        self.keeper.with(|kept| Begun { taken: kept.taken(), at })
    }

    /// Looks at an answer of the server: with an error that may be the end of the session nothing
    /// is kept any longer.
    fn answered<T>(&self, answer: Result<T>) -> Result<T> {
        if matches!(answer, Err(Errno::EIO)) {
            self.keeper.with(Kept::clear);
        }
        answer
    }

    /// The same of an answer that tells of something to be kept, after a request that has `changed`
    /// what was kept: whether it was carried out or not.
    fn learn<T>(
        &self,
        begun: Option<Begun>,
        answer: Result<T>,
        changed: impl FnOnce(&mut Kept),
        keep: impl FnOnce(&mut Kept, &T, Lent, Duration),
    ) -> Result<T> {
        let lent = self.inner.lent();
        self.keeper.with(|kept| {
            changed(kept);
            if let (Ok(told), Some(Begun { taken, at })) = (&answer, begun)
                && kept.taken() == taken
            {
                keep(kept, told, lent, at);
            }
        });
        self.answered(answer)
    }

    /// The same of an answer of which nothing is kept.
    fn change<T>(&self, answer: Result<T>, changed: impl FnOnce(&mut Kept)) -> Result<T> {
        self.learn(None, answer, changed, |_, _, _, _| {})
    }

    /// The same of the answer to what has made `name`.
    fn made(
        &self,
        begun: Option<Begun>,
        parent: Ino,
        name: Name<'_>,
        answer: Result<Attr>,
    ) -> Result<Attr> {
        let changed = |kept: &mut Kept| kept.drop_attributes(parent);
        self.learn(begun, answer, changed, |kept, attr, lent, at| {
            kept.keep_name(parent, name, attr, lent, at);
        })
    }

    /// Notes that the caller gets `ino` by a name that was kept. Returns whether that can be noted.
    fn give(&mut self, ino: Ino) -> bool {
        let has_room = self.given.len() < GIVEN_MAX;
        match self.given.get_mut(&ino) {
            Some(count) => *count = count.saturating_add(1),
            None if has_room => drop(self.given.insert(ino, 1)),
            None => return false,
        }
        true
    }

    fn name(&self, parent: Ino, name: Name<'_>) -> Found {
        let now = self.keeper.now();
        self.keeper.with(|kept| kept.name(parent, name, now)).unwrap_or(Found::Unknown)
    }

    /// Notes an open file.
    fn opened(&mut self, ino: Ino, handle: Handle) {
        match self.inner.lent().pages {
            Pages::Direct => return,
            Pages::Fresh => drop(self.keeper.with(|kept| kept.drop_pages(ino))),
            Pages::Kept => {}
        }
        self.paged.insert(handle.0, ino);
    }

    /// What is kept of a file, as much as `buf` has room for.
    fn kept_piece(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Piece {
        let now = self.keeper.now();
        self.keeper.with(|kept| kept.read(ino, offset, buf, now)).unwrap_or(Piece::Unknown)
    }

    /// Reads what is around a piece of a file, to be kept.
    fn read_around(
        &mut self,
        cx: &Context,
        (ino, handle): (Ino, Handle),
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let number = offset / BLOCK as u64;
        let skip = (offset % BLOCK as u64) as usize;
        let whole = (skip + buf.len()).next_multiple_of(BLOCK);
        let mut around = core::mem::take(&mut self.around);
        around.resize(whole, 0);
        let begun = self.begin();
        let answer = self.inner.read_to_keep(cx, ino, handle, offset - skip as u64, &mut around);
        let answer = self.learn(
            begun,
            answer,
            |_| {},
            |kept, got, _, _| {
                kept.keep_pages(ino, number, &around[..*got]);
            },
        );
        let answer = answer.map(|got| {
            let len = got.saturating_sub(skip).min(buf.len());
            buf[..len].copy_from_slice(&around[skip..skip + len]);
            len
        });
        self.around = around;
        answer
    }
}

impl<T: Transport, K: Keeper> Keeping<Client<T>, K> {
    /// How many requests were sent.
    pub fn requests(&self) -> u64 {
        self.inner.requests()
    }

    /// The way to the server.
    pub fn transport(&mut self) -> &mut T {
        self.inner.transport()
    }

    /// Ends the session, as [`Client::disconnect`]. Nothing is kept any more.
    pub fn disconnect(self) -> T {
        self.into_inner().disconnect()
    }
}

/// Asks the file system below.
macro_rules! asked {
    ($self:ident $verb:ident ($($arg:ident),*)) => {{
        let answer = $self.inner.$verb($($arg),*);
        $self.answered(answer)
    }};
}

/// The same, where there is no answer that could tell of the session's end.
macro_rules! passed {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        $self.inner.$verb($($arg),*)
    };
}

impl<F: Lends, K: Keeper> FileSystem for Keeping<F, K> {
    crate::verbs!(asked: readlink seek fsync mappable opendir readdir readdir_names releasedir
        fsyncdir syncfs begin_sync begin_fsync end_sync checkpoint_step begin_free free_step statfs
        getxattr listxattr);
    crate::verbs!(passed: is_submount accessed work_in_steps take_rest);

    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let mut found = self.name(parent, name);
        if found == Found::Unjudged && self.getattr(cx, parent).is_ok() {
            found = self.name(parent, name);
        }
        if let Found::Is(attr) = found
            && self.give(attr.ino)
        {
            return Ok(attr);
        }
        let begun = self.begin();
        let answer = self.inner.lookup(cx, parent, name);
        self.learn(
            begun,
            answer,
            |_| {},
            |kept, attr, lent, at| {
                kept.keep_name(parent, name, attr, lent, at);
            },
        )
    }

    fn forget(&mut self, ino: Ino, count: u64) {
        let mut left = count;
        if let Some(given) = self.given.get_mut(&ino) {
            left = count.saturating_sub(*given);
            *given = given.saturating_sub(count);
            if *given == 0 {
                self.given.remove(&ino);
            }
        }
        if left > 0 {
            // The server may tell of it no more, also of what is still open.
            self.keeper.with(|kept| kept.forget(ino));
            self.paged.retain(|_, of| *of != ino);
            self.inner.forget(ino, left);
        }
    }

    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        let now = self.keeper.now();
        if let Some(Some(attr)) = self.keeper.with(|kept| kept.attributes(ino, now)) {
            return Ok(attr);
        }
        let begun = self.begin();
        let answer = self.inner.getattr(cx, ino);
        self.learn(
            begun,
            answer,
            |_| {},
            |kept, attr, lent, at| {
                kept.keep_attributes(attr, lent, at);
            },
        )
    }

    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        let begun = self.begin();
        let answer = self.inner.setattr(cx, ino, handle, set);
        self.learn(
            begun,
            answer,
            |kept| kept.drop_content(ino),
            |kept, attr, lent, at| {
                kept.keep_attributes(attr, lent, at);
            },
        )
    }

    fn mknod(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let begun = self.begin();
        let answer = self.inner.mknod(cx, parent, name, mode, rdev);
        self.made(begun, parent, name, answer)
    }

    fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr> {
        let begun = self.begin();
        let answer = self.inner.mkdir(cx, parent, name, mode);
        self.made(begun, parent, name, answer)
    }

    fn symlink(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        target: &[u8],
    ) -> Result<Attr> {
        let begun = self.begin();
        let answer = self.inner.symlink(cx, parent, name, target);
        self.made(begun, parent, name, answer)
    }

    fn unlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        let answer = self.inner.unlink(cx, parent, name);
        self.change(answer, |kept| kept.drop_name(parent, name))
    }

    fn rmdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        let answer = self.inner.rmdir(cx, parent, name);
        self.change(answer, |kept| kept.drop_name(parent, name))
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
        let answer = self.inner.rename(cx, parent, name, new_parent, new_name, flags);
        self.change(answer, |kept| {
            kept.drop_name(parent, name);
            kept.drop_name(new_parent, new_name);
            // What was replaced may have had any number.
            kept.drop_all_attributes();
        })
    }

    fn link(
        &mut self,
        cx: &Context,
        ino: Ino,
        new_parent: Ino,
        new_name: Name<'_>,
    ) -> Result<Attr> {
        let begun = self.begin();
        let answer = self.inner.link(cx, ino, new_parent, new_name);
        self.keeper.with(|kept| kept.drop_attributes(ino));
        self.made(begun, new_parent, new_name, answer)
    }

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let answer = self.inner.open(cx, ino, flags);
        let handle = self.change(answer, |kept| {
            if flags.contains(OpenFlags::TRUNC) {
                kept.drop_content(ino);
            }
        })?;
        self.opened(ino, handle);
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
        let begun = self.begin();
        let answer = self.inner.create(cx, parent, name, mode, flags);
        if let Ok((attr, _)) = &answer {
            // It may have been there, and been emptied.
            self.keeper.with(|kept| kept.drop_content(attr.ino));
        }
        let changed = |kept: &mut Kept| kept.drop_attributes(parent);
        let made = self.learn(begun, answer, changed, |kept, (attr, _), lent, at| {
            kept.keep_name(parent, name, attr, lent, at);
        })?;
        self.opened(made.0.ino, made.1);
        Ok(made)
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let answer = self.inner.tmpfile(cx, parent, mode, flags);
        let made = self.answered(answer)?;
        self.opened(made.0.ino, made.1);
        Ok(made)
    }

    fn read(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let is_paged = self.paged.get(&handle.0) == Some(&ino);
        let ends = offset.checked_add((READ_MAX + 2 * BLOCK) as u64).is_some();
        if !is_paged || buf.is_empty() || buf.len() > READ_MAX || !ends {
            let answer = self.inner.read(cx, ino, handle, offset, buf);
            return self.answered(answer);
        }
        let mut piece = self.kept_piece(ino, offset, buf);
        if piece == Piece::Unmeasured && self.getattr(cx, ino).is_ok() {
            piece = self.kept_piece(ino, offset, buf);
        }
        match piece {
            Piece::Read(len) => Ok(len),
            Piece::Unmeasured | Piece::Unknown => self.read_around(cx, (ino, handle), offset, buf),
        }
    }

    fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        let answer = self.inner.write(cx, ino, handle, offset, data);
        self.change(answer, |kept| kept.drop_content(ino))
    }

    fn write_vectored(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: Data<'_>,
    ) -> Result<Written> {
        let answer = self.inner.write_vectored(cx, ino, handle, offset, data);
        self.change(answer, |kept| kept.drop_content(ino))
    }

    fn copy_file_range(&mut self, cx: &Context, from: FileAt, to: FileAt, len: u64) -> Result<u64> {
        let answer = self.inner.copy_file_range(cx, from, to, len);
        self.change(answer, |kept| kept.drop_content(to.ino))
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
        let answer = self.inner.fallocate(cx, ino, handle, offset, len, mode);
        self.change(answer, |kept| kept.drop_content(ino))
    }

    fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        // Before the server can give the number to another file.
        self.paged.remove(&handle.0);
        let answer = self.inner.release(cx, ino, handle);
        self.answered(answer)
    }

    fn setxattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let answer = self.inner.setxattr(cx, ino, name, value, flags);
        self.change(answer, |kept| kept.drop_attributes(ino))
    }

    fn removexattr(&mut self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        let answer = self.inner.removexattr(cx, ino, name);
        self.change(answer, |kept| kept.drop_attributes(ino))
    }

    fn statfs_below(&mut self, cx: &Context, dir: Ino) -> Result<StatFs> {
        let answer = self.inner.statfs_below(cx, dir);
        self.answered(answer)
    }

    fn outside_locks(&mut self, ino: Ino, handle: Handle) -> Result<Option<Arc<dyn OutsideLocks>>> {
        self.inner.outside_locks(ino, handle)
    }

    fn identity(&self) -> [u8; 16] {
        self.inner.identity()
    }

    fn place(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        self.inner.place(ino)
    }

    fn recall(&mut self, ino: Ino, count: u64) {
        self.inner.recall(ino, count);
    }

    fn shared_locks(&mut self) -> Option<&mut dyn Locks> {
        self.inner.shared_locks()
    }

    fn checkpoint_due(&self) -> bool {
        self.inner.checkpoint_due()
    }
}

/// Ranges that the server shows go through here. While attributes are kept those below count until
/// a notice comes.
impl<F: Lends + Mapper, K: Keeper> Mapper for Keeping<F, K> {
    fn validity(&self) -> Validity {
        match self.keeper.with(|_| ()) {
            Some(()) => Validity::Kept,
            None => self.inner.validity(),
        }
    }

    /// Callers have no clock in each call.
    fn now(&self, _: &Context) -> Duration {
        self.keeper.now()
    }

    fn begin_map(&mut self, cx: &Context, ino: Ino, mapping: &Mapping) -> Result<Asked> {
        let answer = self.inner.begin_map(cx, ino, mapping);
        self.answered(answer)
    }

    fn is_mapped(&mut self, asked: &Asked) -> bool {
        self.inner.is_mapped(asked)
    }

    fn end_map(&mut self, asked: Asked) -> Result<()> {
        let answer = self.inner.end_map(asked);
        self.answered(answer)
    }

    fn unmap(&mut self, cx: &Context, ino: Ino, spans: &[Span]) -> Result<()> {
        let answer = self.inner.unmap(cx, ino, spans);
        self.answered(answer)
    }

    fn stored(&mut self, ino: Ino) {
        self.keeper.with(|kept| kept.drop_pages(ino));
        self.inner.stored(ino);
    }

    fn written_back(&mut self, ino: Ino) {
        self.keeper.with(|kept| kept.drop_attributes(ino));
        self.inner.written_back(ino);
    }
}

#[cfg(test)]
mod tests;
