//! The state that a volume's lock guards, and operations on several of its parts at once.

use std::sync::Arc;

use atoll_vfs::{Attr, Context, Errno, FileSystem, Ino, Name, Rest, Result};

use crate::host::Host;
use crate::leases::caches::Caches;
use crate::leases::gate::Gate;
use crate::leases::needs::Involved;
use crate::leases::observer::{Change, Observer};
use crate::leases::view::{ViewId, Views};
use crate::mapped::files::Mappings;
use crate::open::handles::Open;
use crate::removals::queue::Removals;
use crate::rights::identity::SessionId;
use crate::rights::privileges::Plain;

/// The state that the volume's lock guards.
pub(crate) struct Guarded<F> {
    pub(crate) fs: F,
    /// Whether anything has changed since everything was last durable.
    pub(crate) changed: bool,
    pub(crate) plain: Plain,
    /// Whether reading sets times of last access.
    pub(crate) relatime: bool,
    /// Counts moves of directories from one parent to another.
    pub(crate) moves: u64,
    pub(crate) mapped: Mappings,
    pub(crate) views: Views,
    pub(crate) caches: Caches,
    /// The inodes that the call under way goes by.
    pub(crate) involved: Involved,
    /// Whether the file system counts what clients know.
    pub(crate) counts: bool,
    /// The inodes that the call under way was given and its client was not.
    pub(crate) peeked: Vec<Ino>,
    pub(crate) removals: Arc<Removals>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) host: Arc<dyn Host>,
    /// The changes told, for tests that listen.
    #[cfg(test)]
    pub(crate) told: Option<Vec<String>>,
}

impl<F> Guarded<F> {
    /// Whether anybody must hear of changes of names and attributes.
    #[inline]
    pub(crate) fn observed(&self) -> bool {
        #[cfg(test)]
        if self.told.is_some() {
            return true;
        }
        // A mount that has ended is no longer among the caches, but its notices may not be done
        // yet.
        let kernels = self.caches.listens() || !self.gate.is_open();
        self.views.listens() || kernels
    }

    /// Whether anybody must hear of a change of the content of `ino`.
    #[inline]
    pub(crate) fn content_observed(&self, ino: Ino) -> bool {
        self.observed() || self.mapped.listens() && self.mapped.files.contains_key(&ino)
    }

    /// Tells all observers of `change`, which `by` has made. Nothing else tells them.
    #[inline]
    pub(crate) fn tell(&mut self, by: SessionId, change: Change<'_>) {
        if let Some(ino) = change.ino() {
            self.involved.change(ino);
        }
        self.views.changed(by, &change);
        self.caches.changed(by, &change);
        // Last: clients see mapped memory at once, and then nothing older anywhere.
        self.mapped.changed(by, &change);
        #[cfg(test)]
        if let Some(told) = &mut self.told {
            told.push(format!("{}: {}", by.0, change.words()));
        }
    }
}

impl<F: FileSystem> Guarded<F> {
    /// Looks `name` up in `dir` for the call itself: its client is not given what it finds.
    ///
    /// # Errors
    /// Those of [`FileSystem::lookup`].
    #[inline]
    pub(crate) fn peek(&mut self, cx: &Context, dir: Ino, name: Name<'_>) -> Result<Attr> {
        let attr = self.fs.lookup(cx, dir, name)?;
        if self.counts {
            self.peeked.push(attr.ino);
        }
        Ok(attr)
    }

    /// The call ends: the file system forgets what it was given.
    #[inline]
    pub(crate) fn forget_peeked(&mut self) {
        while let Some(ino) = self.peeked.pop() {
            self.fs.forget(ino, 1);
        }
    }

    /// Closes a handle for `by`, a session of the user `uid`, and tells of its inode if that is
    /// gone with it.
    pub(crate) fn close(
        &mut self,
        cx: &Context,
        (by, uid): (SessionId, u32),
        open: &Open,
    ) -> Result<()> {
        self.changed = true;
        let before = self.fs.work_in_steps(self.removals.are_served());
        let result = match open.flags {
            Some(_) => self.fs.release(cx, open.ino, open.handle),
            None => self.fs.releasedir(cx, open.ino, open.handle),
        };
        self.fs.work_in_steps(before);
        // A close is answered at once.
        if let Some(Rest::Blocks(ino)) = self.fs.take_rest() {
            self.removals.add(uid, ino);
        }
        if self.observed() {
            self.tell_gone(cx, by, open.ino);
        }
        result
    }

    /// `by` has read `ino` in a way that counts as an access: sets its time of last access, if that
    /// is due, and tells of it.
    pub(crate) fn accessed(&mut self, cx: &Context, by: SessionId, ino: Ino) {
        if self.fs.accessed(cx, ino) {
            self.changed = true;
            // A kernel knows that its own read may set the time, but not if it asks for the
            // attributes meanwhile.
            self.tell(by, Change::Unexpected(ino));
        }
    }

    /// Whether the next read of `ino` sets its time of last access.
    pub(crate) fn access_is_due(&mut self, cx: &Context, ino: Ino) -> bool {
        self.relatime && self.fs.getattr(cx, ino).is_ok_and(|attr| attr.access_is_due(cx.now))
    }

    /// Tells that `ino` is gone, if it is. Returns whether it is.
    pub(crate) fn tell_gone(&mut self, cx: &Context, by: SessionId, ino: Ino) -> bool {
        let is_gone = self.fs.getattr(cx, ino) == Err(Errno::ESTALE);
        if is_gone {
            self.plain.forget(ino);
            self.tell(by, Change::Gone(ino));
        }
        is_gone
    }

    /// A session with the View `id` has `open`: pages of it may be shown, if it can be read, until
    /// [`end_reading`](Self::end_reading).
    pub(crate) fn begin_reading(&mut self, id: Option<ViewId>, open: &Open) {
        let Some(id) = id.filter(|_| open.is_readable()) else { return };
        self.views.readable(id, open.ino);
    }

    /// The session no longer has `open`.
    pub(crate) fn end_reading(&mut self, id: Option<ViewId>, open: &Open) {
        let Some(id) = id.filter(|_| open.is_readable()) else { return };
        self.views.unreadable(id, open.ino, 1);
    }
}
