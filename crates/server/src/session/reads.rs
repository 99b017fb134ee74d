//! The calls that read, and which of them count as accesses.

use atoll_posix::AccessMode;
use atoll_vfs::{Attr, Context, DirEntry, FileSystem, Handle, Ino, Result, Room};

use crate::guarded::Guarded;
use crate::rights::permissions::Caller;
use crate::session::Session;
use crate::session::call::Call;
use crate::session::concerns::LOOK;

/// What a listing is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entries {
    /// Each entry has its inode's number.
    Numbered,
    /// Each name is looked up then.
    Names,
}

impl<F: FileSystem + Send> Session<F> {
    /// The next call is by a descriptor with O_NOATIME, if `yes`.
    pub fn reads_without_trace(&mut self, yes: bool) {
        self.own.noatime = yes;
    }

    /// Whether reading through this session sets times of last access.
    pub fn sets_access_times(&self) -> bool {
        !self.own.access.read_only && self.volume.lock().is_ok_and(|state| state.relatime)
    }

    /// Whether a caller with `cx` may open `ino` to read it.
    pub(crate) fn may_read(&mut self, cx: &Context, ino: Ino) -> bool {
        self.judges(cx, ino, |caller, attr| caller.access(attr, AccessMode::READ).is_ok())
    }

    /// Whether a caller with `cx` may set what only the owner of `ino` may set.
    pub(crate) fn owns(&mut self, cx: &Context, ino: Ino) -> bool {
        self.judges(cx, ino, |caller, attr| caller.own(attr).is_ok())
    }

    /// Whether `judge` allows it to a caller with `cx`, if one is judged, of an inode that it may
    /// name.
    fn judges(
        &mut self,
        cx: &Context,
        ino: Ino,
        judge: impl FnOnce(&Caller<'_>, &Attr) -> bool,
    ) -> bool {
        if self.judge.caller(&self.judge.context(cx)).is_free() {
            return true;
        }
        let Ok((mut call, inner)) = self.call_on(cx, LOOK, ino) else { return false };
        call.state.fs.getattr(&call.cx, inner).is_ok_and(|attr| judge(&call.caller, &attr))
    }

    #[inline(always)]
    pub(crate) fn read_at(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        room: &mut Room<'_>,
    ) -> Result<usize> {
        let open = self.file(ino, handle)?;
        self.call_by(cx, LOOK, &open, |call| {
            let Call { state, cx, own, .. } = call;
            let state: &mut Guarded<F> = state;
            room.truncate(own.access.limits.transfer);
            let asked = !room.is_empty();
            let (ino, handle) = (open.ino, open.handle);
            let len = state.fs.read_vectored(cx, ino, handle, offset, room)?;
            if state.relatime && asked && own.counts(&open) {
                state.accessed(cx, own.id, open.ino);
            }
            if own.for_cache
                && let Some(cache) = &own.cache
            {
                cache.sent_pages(open.ino, state.is_mapped(open.ino));
            }
            room.truncate(len);
            if state.read_mapped(open.ino, offset, room)? {
                return Ok(len);
            }
            if own.view.is_some() && open.is_readable() {
                let Guarded { fs, views, .. } = state;
                views.filled(fs, cx, own.view, &open, offset, len);
            }
            Ok(len)
        })
    }

    pub(crate) fn list(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        entries: Entries,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let open = self.listing(ino, handle)?;
        let mut call = self.enter(cx, LOOK)?;
        let Call { state, cx, own, .. } = &mut call;
        let state: &mut Guarded<F> = state;
        let inodes = &own.inodes;
        let top = inodes.top();
        let at_top = open.ino == top;
        state.involved.add(open.ino);
        let mut emit = |entry: &DirEntry<'_>| {
            let ino = if at_top && entry.name == b".." { top } else { entry.ino };
            emit(&DirEntry { ino: inodes.outer(ino), ..*entry })
        };
        match entries {
            Entries::Numbered => {
                state.fs.readdir(cx, open.ino, open.handle, cookie, &mut emit)?;
            }
            Entries::Names => {
                state.fs.readdir_names(cx, open.ino, open.handle, cookie, &mut emit)?;
            }
        }
        if state.relatime && own.counts(&open) {
            state.accessed(cx, own.id, open.ino);
        }
        Ok(())
    }

    pub(crate) fn follow(&mut self, cx: &Context, ino: Ino, target: &mut Vec<u8>) -> Result<()> {
        let (mut call, inner) = self.call_on(cx, LOOK, ino)?;
        call.state.fs.readlink(&call.cx, inner, target)?;
        if call.state.relatime && !call.own.access.read_only {
            call.state.accessed(&call.cx, call.own.id, inner);
        }
        Ok(())
    }
}
