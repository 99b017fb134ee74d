//! A client that looks into a View before it asks the server: what is there costs no request.
//!
//! Read in this order: [`LiveView`] what keeps a View readable, [`OpenFiles`] which files are
//! open for reading, [`Answers`] what the two say, [`Cached`] the file system.
//!
//! The View is the truth at the moment it is read (docs/PROTOCOL.md), so that nothing here ever has
//! to be dropped: not after a write of this client's own, not after one of another's.

mod open;

use alloc::sync::Arc;
use alloc::vec::Vec;

pub use self::open::OpenFiles;
use crate::errno::{Errno, Result};
use crate::filesystem::FileSystem;
use crate::locks::Locks;
use crate::types::*;
use crate::view::ViewReader;

/// The most bytes of a read that are looked for in the View: what is longer is worth a request. It
/// bounds how long a read takes that is overtaken by writes again and again.
pub const READ_MAX: usize = 64 << 10;

/// A View with what keeps it readable: its memory mapped, its server alive.
pub trait LiveView {
    /// A reader of the View; `None` for ever once the connection to the server is known to be lost.
    fn reader(&self) -> Option<&ViewReader<'_>>;

    /// The server gave no answer: the implementor should find out whether the connection is lost.
    fn suspect(&self) {}
}

impl LiveView for ViewReader<'_> {
    #[inline]
    fn reader(&self) -> Option<&ViewReader<'_>> {
        Some(self)
    }
}

impl<V: LiveView> LiveView for Option<V> {
    #[inline]
    fn reader(&self) -> Option<&ViewReader<'_>> {
        self.as_ref()?.reader()
    }

    fn suspect(&self) {
        if let Some(view) = self {
            view.suspect();
        }
    }
}

impl<V: LiveView + ?Sized> LiveView for Arc<V> {
    #[inline]
    fn reader(&self) -> Option<&ViewReader<'_>> {
        (**self).reader()
    }

    fn suspect(&self) {
        (**self).suspect();
    }
}

/// The answers of a View. Threads share it; a thread that gets `None` asks the server.
///
/// The View shows only what the session's own identity may see.
#[derive(Debug)]
pub struct Answers<V> {
    view: V,
    open: Arc<OpenFiles>,
}

impl<V: LiveView> Answers<V> {
    /// The answers of `view`; `open` is one for all who share the session.
    pub fn new(view: V, open: Arc<OpenFiles>) -> Self {
        Answers { view, open }
    }

    /// The attributes of `name` in `parent`; `ENOENT` if there is none.
    #[inline]
    pub fn lookup(&self, parent: Ino, name: Name<'_>) -> Option<Result<Attr>> {
        match self.view.reader()?.lookup_attr(parent.0, name.bytes())? {
            Some(attr) => Some(Ok(attr)),
            None => Some(Err(Errno::ENOENT)),
        }
    }

    /// The attributes of `ino`.
    #[inline]
    pub fn getattr(&self, ino: Ino) -> Option<Attr> {
        self.view.reader()?.attr(ino.0)
    }

    /// Reads from `offset` on through a handle that is known to be open for reading: the number of
    /// bytes, fewer than `buf` has at the end of the file.
    #[inline]
    pub fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Option<usize> {
        if buf.len() > READ_MAX {
            return None;
        }
        let view = self.view.reader()?;
        if self.open.contains(ino, handle) { view.read(ino.0, offset, buf) } else { None }
    }

    /// `handle` of `ino` is open for reading.
    pub fn opened(&self, ino: Ino, handle: Handle) {
        if !self.open.contains(ino, handle) {
            self.open.insert(ino, handle);
        }
    }

    /// `handle` is about to be closed.
    pub fn closed(&self, ino: Ino, handle: Handle) {
        self.open.remove(ino, handle);
    }
}

/// A [`FileSystem`] whose lookup, getattr and read are answered from a View where it has the
/// answer, and by `F`, a client of the server that fills the View, where it has not.
///
/// The View says what the session's own identity may see; the [`Context`] of a call that the View
/// answers has no part in it. A client that acts for others looks names up in it for itself only:
/// [`for_caller`](Self::for_caller).
///
/// Threads of one program share a View and [`OpenFiles`], each with a client of its own.
#[derive(Debug)]
pub struct Cached<F, V> {
    inner: F,
    answers: Answers<V>,
    caller: Option<(u32, u32)>,
}

impl<F: FileSystem, V: LiveView> Cached<F, V> {
    /// Looks into `view` before it asks `inner`; `open` is one for all clients of the session.
    pub fn new(inner: F, view: V, open: Arc<OpenFiles>) -> Self {
        Cached { inner, answers: Answers::new(view, open), caller: None }
    }

    /// Looks names up in the View only for calls of this user and group: where the server lets the
    /// client act for others, it judges them by what they may see, and the View is the client's
    /// own.
    #[must_use]
    pub fn for_caller(self, uid: u32, gid: u32) -> Self {
        Cached { caller: Some((uid, gid)), ..self }
    }

    /// The file system that is asked for what the View does not have.
    pub fn inner(&mut self) -> &mut F {
        &mut self.inner
    }

    /// The file system that is asked, alone.
    pub fn into_inner(self) -> F {
        self.inner
    }

    /// The View.
    pub fn view(&self) -> &V {
        &self.answers.view
    }

    /// The answers of the View.
    pub fn answers(&self) -> &Answers<V> {
        &self.answers
    }

    /// Looks at an answer of the server for signs that the server is gone.
    #[inline]
    fn answered<T>(&self, answer: Result<T>) -> Result<T> {
        if matches!(answer, Err(Errno::EIO)) {
            self.answers.view.suspect();
        }
        answer
    }

    /// Notes what a handle may be used for.
    fn opened(&self, ino: Ino, handle: Handle, flags: OpenFlags) {
        if flags.contains(OpenFlags::READ) {
            self.answers.opened(ino, handle);
        }
    }
}

/// Asks the file system below.
macro_rules! answered {
    ($self:ident $verb:ident ($($arg:ident),*)) => {{
        let answer = $self.inner.$verb($($arg),*);
        $self.answered(answer)
    }};
}

impl<F: FileSystem, V: LiveView> FileSystem for Cached<F, V> {
    crate::verbs!(answered: setattr readlink mknod mkdir symlink unlink rmdir rename link write
        copy_file_range fallocate seek fsync opendir readdir releasedir fsyncdir syncfs statfs setxattr getxattr
        listxattr removexattr);

    fn statfs_below(&mut self, cx: &Context, dir: Ino) -> Result<StatFs> {
        let answer = self.inner.statfs_below(cx, dir);
        self.answered(answer)
    }

    fn shared_locks(&mut self) -> Option<&mut dyn Locks> {
        self.inner.shared_locks()
    }

    #[inline]
    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        if self.caller.is_none_or(|caller| caller == (cx.uid, cx.gid))
            && let Some(found) = self.answers.lookup(parent, name)
        {
            return found;
        }
        let answer = self.inner.lookup(cx, parent, name);
        self.answered(answer)
    }

    /// Does nothing while there is a View: what it answered was not counted by the server, which
    /// bounds what it remembers by itself.
    fn forget(&mut self, ino: Ino, count: u64) {
        if self.answers.view.reader().is_none() {
            self.inner.forget(ino, count);
        }
    }

    #[inline]
    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        if let Some(found) = self.answers.getattr(ino) {
            return Ok(found);
        }
        let answer = self.inner.getattr(cx, ino);
        self.answered(answer)
    }

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let answer = self.inner.open(cx, ino, flags);
        let handle = self.answered(answer)?;
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
        let answer = self.inner.create(cx, parent, name, mode, flags);
        let (attr, handle) = self.answered(answer)?;
        self.opened(attr.ino, handle, flags);
        Ok((attr, handle))
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let answer = self.inner.tmpfile(cx, parent, mode, flags);
        let (attr, handle) = self.answered(answer)?;
        self.opened(attr.ino, handle, flags);
        Ok((attr, handle))
    }

    #[inline]
    fn read(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        if let Some(len) = self.answers.read(ino, handle, offset, buf) {
            return Ok(len);
        }
        let answer = self.inner.read(cx, ino, handle, offset, buf);
        self.answered(answer)
    }

    fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        // Before the server can give the number to another file.
        self.answers.closed(ino, handle);
        let answer = self.inner.release(cx, ino, handle);
        self.answered(answer)
    }
}
