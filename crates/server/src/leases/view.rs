//! The Views of a volume's sessions, kept true.
//!
//! # Why a View says the truth
//!
//! Every call of every session holds the volume's lock from before it looks or changes to after it
//! has done what follows, and nobody else touches the Views: they are guarded by the same lock.
//!
//! - *Data that a call has found* is put into the View of its own session before the lock is
//!   released: no change can come between the finding and the putting.
//! - *Data that a call has changed* is dropped from the Views of all sessions, its own included,
//!   before the lock is released; its own then gets what is true after the change. Between the
//!   change and the last drop nothing new is put anywhere, and clients that ask the server wait for
//!   the lock. So nobody learns of the change while a View still has the old data: a read from a
//!   View meanwhile is ordered before the change.
//! - A reader that copies several records compares the sequence of the first in the end. A change
//!   of content drops the attributes with the pages, so that a reader of pages of which some were
//!   dropped and filled again finds the attributes changed.
//!
//! # Why a client sees nothing that it may not
//!
//! - Numbers in a View are the session's own; what is outside of its subtree has none.
//! - Attributes are put only for inodes that the session may name, and dropped when it may not any
//!   more. A name is found only with the attributes of what it names ([`ViewReader::lookup_attr`]),
//!   so that a client never finds in its View an inode that the server would refuse.
//! - Entries are put after search permission was granted to the session's own identity; when the
//!   directory's mode or owner changes all its entries are dropped. When a directory is moved, a
//!   session with a subtree loses all entries, since the directory may be outside now.
//! - Pages are put by a read through a handle with the right to read, and dropped when the last
//!   such handle is closed, or for an adopted one its original: [`Guarded::begin_reading`],
//!   [`Guarded::end_reading`]. They are copied from the server's memory, never from memory that a
//!   client can change.
//!
//! [`ViewReader::lookup_attr`]: atoll_vfs::view::ViewReader::lookup_attr

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use atoll_vfs::view::{PAGE, ViewWriter};
use atoll_vfs::{Attr, Context, FileSystem, FileType, Ino, Name};

use crate::host::ViewMemory;
use crate::leases::gate::Gate;
use crate::leases::observer::{Change, Content, Observer};
use crate::open::handles::Open;
use crate::rights::accounts::Charge;
use crate::rights::identity::SessionId;

/// The most bytes of a read or write that are put into the View: a longer one is worth a request.
const FILL_MAX: usize = 32 << 10;

/// Names a View of a volume: its place in [`Views`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ViewId(usize);

pub(crate) struct SessionView {
    view: Box<dyn ViewMemory>,
    /// The volume's number of the session's root.
    top: Ino,
    /// How many handles of each inode may be read, by which it may have pages.
    readable: HashMap<Ino, usize>,
    /// The View's part of its user's share; given back after its memory is.
    _charge: Option<Charge>,
}

impl SessionView {
    /// The session's number for the volume's inode `ino`, if it can have one.
    #[inline]
    fn key(&self, ino: Ino) -> Option<u64> {
        match ino {
            ino if ino == self.top => Some(Ino::ROOT.0),
            Ino::ROOT => None,
            ino => Some(ino.0),
        }
    }

    #[inline]
    fn changed(&mut self, change: &Change<'_>) {
        let Some(ino) = change.ino() else { return self.moved() };
        let Some(key) = self.key(ino) else { return };
        let writer = self.view.writer();
        match *change {
            Change::Attributes(_) | Change::Unexpected(_) => writer.drop_attr(key),
            Change::Rights(_) => {
                writer.drop_attr(key);
                writer.drop_entries(key);
            }
            Change::Content(Content { offset, len, .. }) => {
                writer.drop_pages(key, blocks(offset, len));
                writer.drop_attr(key);
            }
            Change::Entry { name, .. } => {
                writer.drop_entry(key, name);
                writer.drop_attr(key);
            }
            Change::Gone(_) => writer.drop_inode(key),
            Change::Moved => {}
        }
    }

    /// Directories have been moved: a session with a subtree loses all entries.
    fn moved(&mut self) {
        if self.top != Ino::ROOT {
            for generation in 0..self.view.size().generations {
                self.view.writer().drop_entries(u64::from(generation));
            }
        }
    }
}

/// The pages that `len` bytes from `offset` touch.
fn blocks(offset: u64, len: u64) -> Range<u64> {
    let end = offset.saturating_add(len);
    offset / PAGE as u64..end.div_ceil(PAGE as u64)
}

/// Whether the attributes, without which nothing is read from a View, may be put there.
#[inline]
fn shows(relatime: bool, attr: &Attr) -> bool {
    let due = relatime && attr.changed_since_access();
    !due || attr.file_type() != FileType::Regular
}

/// The Views of a volume's sessions. Every function that takes a session's [`ViewId`] does nothing
/// without one.
pub(crate) struct Views {
    places: Vec<Option<SessionView>>,
    count: usize,
    /// A page on its way; allocated with the first View.
    page: Vec<u8>,
    /// Nothing is put of an inode of which a kernel may still show old data: clients see at once
    /// what is put.
    gate: Arc<Gate>,
    /// Reading sets times of last access: files whose next read would set it are not shown, so that
    /// the read comes here.
    relatime: bool,
}

impl Views {
    pub fn new(gate: &Arc<Gate>) -> Self {
        let gate = Arc::clone(gate);
        Views { places: Vec::new(), count: 0, page: Vec::new(), gate, relatime: false }
    }

    pub fn set_relatime(&mut self, relatime: bool) {
        self.relatime = relatime;
    }

    /// Begins a View in memory of its own for a session whose root is `top`.
    pub fn begin(&mut self, view: Box<dyn ViewMemory>, top: Ino, charge: Option<Charge>) -> ViewId {
        let free = self.places.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[at] =
            Some(SessionView { view, top, readable: HashMap::new(), _charge: charge });
        self.count += 1;
        self.page.resize(PAGE, 0);
        ViewId(at)
    }

    /// Ends a View: nothing in it counts any more. Its memory, which is returned, is to be dropped
    /// where nobody waits for that.
    #[must_use]
    pub fn end(&mut self, id: Option<ViewId>) -> Option<SessionView> {
        let ViewId(at) = id?;
        let mut view = self.places[at].take()?;
        view.view.writer().close();
        self.count -= 1;
        Some(view)
    }

    /// The View, if something of `inodes` may be put there.
    #[inline]
    fn filling(&self, id: Option<ViewId>, inodes: &[Ino]) -> Option<Option<ViewId>> {
        (id.is_some() && inodes.iter().all(|&ino| self.gate.is_free(ino))).then_some(id)
    }

    #[inline]
    fn of(&mut self, id: Option<ViewId>) -> Option<&mut SessionView> {
        self.places[id?.0].as_mut()
    }

    fn writer(&mut self, id: Option<ViewId>, ino: Ino) -> Option<(u64, &mut ViewWriter<'static>)> {
        let view = self.of(id)?;
        Some((view.key(ino)?, view.view.writer()))
    }

    /// The attributes of an inode that the session may name.
    #[inline]
    pub fn found(&mut self, id: Option<ViewId>, attr: &Attr) {
        let shows = shows(self.relatime, attr);
        if let Some((key, writer)) =
            self.filling(id, &[attr.ino]).and_then(|id| self.writer(id, attr.ino))
            && shows
            && !writer.has_attr(key)
        {
            writer.put_attr(key, attr);
        }
    }

    /// The session, which may search `dir`, has found `name` in it, and may name the inode found.
    pub fn found_entry(&mut self, id: Option<ViewId>, dir: Ino, name: Name<'_>, attr: &Attr) {
        let shows = shows(self.relatime, attr);
        let Some(view) = self.filling(id, &[dir, attr.ino]).and_then(|id| self.of(id)) else {
            return;
        };
        if let (Some(parent), Some(child)) = (view.key(dir), view.key(attr.ino)) {
            let writer = view.view.writer();
            if !name.is_dot_or_dot_dot() {
                writer.put_entry(parent, name.bytes(), child);
            }
            if shows && !writer.has_attr(child) {
                writer.put_attr(child, attr);
            }
        }
    }

    /// The session, which may search `dir`, has found no `name` in it.
    pub fn found_missing(&mut self, id: Option<ViewId>, dir: Ino, name: Name<'_>) {
        if let Some((parent, writer)) = self.filling(id, &[dir]).and_then(|id| self.writer(id, dir))
            && !name.is_dot_or_dot_dot()
        {
            writer.put_missing(parent, name.bytes());
        }
    }

    /// The session may not name `ino` any more.
    pub fn forgotten(&mut self, id: Option<ViewId>, ino: Ino) {
        if let Some((key, writer)) = self.writer(id, ino) {
            writer.drop_attr(key);
        }
    }

    /// The session has one handle more by which `ino` may be read.
    pub fn readable(&mut self, id: ViewId, ino: Ino) {
        if let Some(view) = self.of(Some(id)) {
            *view.readable.entry(ino).or_default() += 1;
        }
    }

    /// The session has `count` handles less by which `ino` may be read. With the last one its pages
    /// go.
    pub fn unreadable(&mut self, id: ViewId, ino: Ino, count: usize) {
        let Some(view) = self.of(Some(id)) else { return };
        let Some(readable) = view.readable.get_mut(&ino) else { return };
        *readable = readable.saturating_sub(count);
        if *readable == 0 {
            view.readable.remove(&ino);
            if let Some(key) = view.key(ino) {
                view.view.writer().drop_pages(key, 0..u64::MAX);
            }
        }
    }

    /// Whether the pages that a write of `len` bytes at `offset` of `ino` will drop are worth
    /// putting back.
    #[inline]
    pub fn has(&mut self, id: Option<ViewId>, ino: Ino, offset: u64, len: usize) -> bool {
        len <= FILL_MAX
            && self
                .writer(id, ino)
                .is_some_and(|(key, writer)| writer.has_page(key, offset / PAGE as u64))
    }

    /// The session has read or written `len` bytes of `open` at `offset`, and may read them: puts
    /// the pages and the attributes that are not there, read from `fs`.
    pub fn filled(
        &mut self,
        fs: &mut impl FileSystem,
        cx: &Context,
        id: Option<ViewId>,
        open: &Open,
        offset: u64,
        len: usize,
    ) {
        let Some(Some(ViewId(at))) = self.filling(id, &[open.ino]) else { return };
        let Some(view) = self.places[at].as_mut() else { return };
        let Some(key) = view.key(open.ino) else { return };
        if len > FILL_MAX {
            return;
        }
        debug_assert!(view.readable.contains_key(&open.ino), "pages that nothing would drop");
        let writer = view.view.writer();
        // Data that cannot be read is not put; a client that wants to know why will ask.
        if !writer.has_attr(key) {
            let Ok(attr) = fs.getattr(cx, open.ino) else { return };
            if !shows(self.relatime, &attr) {
                return;
            }
            writer.put_attr(key, &attr);
        }
        for block in blocks(offset, len as u64) {
            if !writer.has_page(key, block) {
                let at = block * PAGE as u64;
                match fs.read(cx, open.ino, open.handle, at, &mut self.page) {
                    Ok(len) if len > 0 => writer.put_page(key, block, &self.page[..len]),
                    _ => return,
                }
            }
        }
    }
}

impl Observer for Views {
    #[inline]
    fn listens(&self) -> bool {
        self.count > 0
    }

    /// Drops what `change` has made untrue from the Views of all sessions.
    #[inline]
    fn changed(&mut self, _by: SessionId, change: &Change<'_>) {
        for view in self.places.iter_mut().flatten() {
            view.changed(change);
        }
    }
}
