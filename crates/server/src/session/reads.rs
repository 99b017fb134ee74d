//! The calls that read, and which of them count as accesses.

use atoll_vfs::{Context, DirEntry, FileSystem, Handle, Ino, OpenFlags, Result};

use crate::guarded::Guarded;
use crate::open::handles::Open;
use crate::session::Session;
use crate::session::enter::enter;
use crate::volume::Waits;

impl<F: FileSystem + Send> Session<F> {
    /// The next call is by a descriptor with O_NOATIME, if `yes`.
    pub fn reads_without_trace(&mut self, yes: bool) {
        self.noatime = yes;
    }

    /// Whether reading through this session sets times of last access.
    pub fn sets_access_times(&self) -> bool {
        !self.access.read_only && self.volume.lock().is_ok_and(|state| state.relatime)
    }

    /// Whether a read through this session by `open` counts as an access. A kernel says with each whether it
    /// does, since O_NOATIME can be changed; others say so when they open.
    #[inline]
    pub(crate) fn counts(&self, open: &Open) -> bool {
        let without_trace = match self.cache {
            Some(_) => self.noatime,
            None => open.flags.is_some_and(|flags| flags.contains(OpenFlags::NOATIME)),
        };
        !without_trace && !self.access.read_only
    }

    #[inline]
    pub(crate) fn read_at(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let open = self.file(ino, handle)?;
        let len = buf.len().min(self.access.limits.transfer);
        enter!(self, cx, state, _caller, reading);
        state.go_by(&open)?;
        let asked = len > 0;
        let len = state.fs.read(cx, open.ino, open.handle, offset, &mut buf[..len])?;
        if state.relatime && asked && self.counts(&open) {
            state.accessed(cx, self.id, open.ino);
        }
        if self.for_cache
            && let Some(cache) = &self.cache
        {
            cache.sent_pages(open.ino, state.is_mapped(open.ino));
        }
        if state.read_mapped(open.ino, offset, &mut buf[..len])? {
            return Ok(len);
        }
        if self.view.is_some() && open.is_readable() {
            let Guarded { fs, views, .. } = state;
            views.filled(fs, cx, self.view, &open, offset, len);
        }
        Ok(len)
    }

    pub(crate) fn list(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let open = self.listing(ino, handle)?;
        let inodes = &self.inodes;
        let top = inodes.top();
        let at_top = open.ino == top;
        enter!(self, cx, state, _caller, reading);
        state.involved.add(open.ino);
        state.fs.readdir(cx, open.ino, open.handle, cookie, &mut |entry| {
            let ino = if at_top && entry.name == b".." { top } else { entry.ino };
            emit(&DirEntry { ino: inodes.outer(ino), ..*entry })
        })?;
        if state.relatime && self.counts(&open) {
            state.accessed(cx, self.id, open.ino);
        }
        Ok(())
    }

    pub(crate) fn follow(&mut self, cx: &Context, ino: Ino, target: &mut Vec<u8>) -> Result<()> {
        let inner = self.inodes.named(ino)?;
        enter!(self, cx, state, _caller, reading);
        state.involved.add(inner);
        state.fs.readlink(cx, inner, target)?;
        if state.relatime && !self.access.read_only {
            state.accessed(cx, self.id, inner);
        }
        Ok(())
    }
}
