//! The calls of a session: which inodes they name, whether they are allowed, what they change.
//!
//! Each takes the volume's lock, translates, judges, calls the file system and tells the observers,
//! so that nothing can come between the judgement and the act. Each says what inodes it goes by (`involved`): who
//! does not waits for more.

use atoll_posix::AccessMode;
use atoll_vfs::{
    Attr, Context, DirEntry, Errno, FallocateMode, FileSystem, FileType, Handle, Ino, Name,
    OpenFlags, RenameFlags, Result, SeekTo, SetAttr, StatFs, Written, XattrFlags,
};

use crate::guarded::Guarded;
use crate::guarded::{MAKE, open_mode};
use crate::leases::observer::{Change, Content, Now};
use crate::leases::view::ViewId;
use crate::open::handles::{Open, Origin};
use crate::rights::identity::Identity;
use crate::rights::privileges::drop_capabilities;
use crate::session::enter::{changing, directory, enter, forgotten, lend};
use crate::session::writes::At;
use crate::session::{Lent, Session};
use crate::volume::Waits;

/// Lets the owner's other sessions adopt what was just opened, if this one offers it.
macro_rules! offer {
    ($self:ident, $state:ident, $open:ident) => {
        if $self.offers {
            $open.origin = $state.tokens.offer(&$open, $self.inodes.top());
        }
    };
}

/// `ino` has no content any more.
fn emptied(ino: Ino) -> Content<'static> {
    Content { ino, offset: 0, len: u64::MAX, now: Now::Zeros, grew: None }
}

impl<F: FileSystem + Send> Session<F> {
    pub(crate) fn check_room(&self) -> Result<()> {
        if self.handles.len() >= self.access.limits.open_files {
            return Err(Errno::EMFILE);
        }
        Ok(())
    }

    /// Takes note of an open file.
    fn opened(&mut self, open: Open) -> Handle {
        self.inodes.opened(open.ino);
        self.handles.insert(open)
    }

    pub(crate) fn file(&mut self, ino: Ino, handle: Handle) -> Result<Open> {
        let handle = self.meant(ino, handle, true)?;
        self.handles.of_kind(self.inodes.inner(ino)?, handle, true)
    }

    pub(crate) fn listing(&mut self, ino: Ino, handle: Handle) -> Result<Open> {
        let handle = self.meant(ino, handle, false)?;
        self.handles.of_kind(self.inodes.inner(ino)?, handle, false)
    }

    fn close(&mut self, cx: &Context, ino: Ino, handle: Handle, file: bool) -> Result<()> {
        let ino = self.inodes.inner(ino)?;
        let open = self.handles.remove(ino, handle, file)?;
        self.unlock_closed(ino, handle);
        self.inodes.closed(ino);
        let mut state = self.volume.lock()?;
        forgotten!(self, state);
        state.end_reading(self.view, &open);
        state.close(cx, self.id, &open)
    }

    /// The View, if entries that a caller with `cx` may see are entries that the client itself may.
    pub(crate) fn view_of(&self, cx: &Context) -> Option<ViewId> {
        let peer = self.peer();
        let checked = self.access.identity == Identity::Checked;
        self.view.filter(|_| checked || (cx.uid, cx.gid) == (peer.uid, peer.gid))
    }
}

impl<F: FileSystem + Send> FileSystem for Session<F> {
    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        if self.cache.is_some()
            && name.bytes() == b"."
            && let Some(attr) = self.itself(cx, parent)?
        {
            return Ok(attr);
        }
        enter!(self, cx, state, caller, reading);
        let dir = directory!(self, cx, state, caller, parent);
        state.allowed(cx, &caller, dir, AccessMode::EXECUTE)?;
        let found = if dir == self.inodes.top() && name.bytes() == b".." {
            state.fs.getattr(cx, dir)
        } else {
            state.fs.lookup(cx, dir, name)
        };
        if found == Err(Errno::ENOENT) {
            state.views.found_missing(self.view_of(cx), dir, name);
        }
        let attr = found?;
        state.involved.add(attr.ino);
        self.inodes.give(attr.ino, state.moves)?;
        forgotten!(self, state);
        state.views.found_entry(self.view_of(cx), dir, name, &attr);
        lend!(self, entry attr.ino, true);
        Ok(self.inodes.shown(attr))
    }

    fn forget(&mut self, ino: Ino, count: u64) {
        self.stand_down(ino);
        self.inodes.forget(ino, count);
        if let (Ok(inner), Ok(mut state)) = (self.inodes.inner(ino), self.volume.lock()) {
            forgotten!(self, state);
            state.fs.forget(inner, count);
            if let Some(cache) = &self.cache {
                cache.forget(inner, count);
            }
        }
    }

    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        let inner = self.inodes.named(ino)?;
        enter!(self, cx, state, _caller, reading);
        state.involved.add(inner);
        let attr = state.fs.getattr(cx, inner)?;
        state.views.found(self.view, &attr);
        lend!(self, attributes inner);
        Ok(self.inodes.shown(attr))
    }

    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        let open = match handle {
            Some(handle) => Some(self.handles.get(self.inodes.inner(ino)?, handle)?),
            None => None,
        };
        let inner = match &open {
            Some(open) => open.ino,
            None => self.inodes.named(ino)?,
        };
        enter!(self, cx, state, caller, changing);
        state.involved.add(inner);
        if let Some(open) = &open {
            state.go_by(open)?;
        }
        let writing =
            open.and_then(|open| open.flags).is_some_and(|flags| flags.contains(OpenFlags::WRITE));
        let mut set = *set;
        let needs_old = set != SetAttr::default();
        let old = if needs_old { Some(state.fs.getattr(cx, inner)?) } else { None };
        if let Some(old) = &old {
            caller.set(old, &mut set, writing)?;
            let content = set.size.is_some() || set.uid.is_some() || set.gid.is_some();
            if content
                && old.file_type() == FileType::Regular
                && drop_capabilities(&mut state.fs, cx, inner)?
            {
                state.tell(self.id, Change::Attributes(inner));
            }
        }
        if set.mode.is_some() {
            state.plain.forget(inner);
        }
        // A handle of a directory says nothing that the file system would want to know.
        let handle = open.filter(|open| open.flags.is_some()).map(|open| open.handle);
        if let Some(size) = set.size {
            state.size_before(cx, self.id, inner, size)?;
        }
        let attr = state.fs.setattr(cx, inner, handle, &set)?;
        if state.observed() {
            let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
            match (set.size, old) {
                (Some(is), Some(Attr { size: was, .. })) => {
                    let (offset, grew) = (is.min(was), (is > was).then_some((was, is)));
                    let content =
                        Content { ino: inner, offset, len: u64::MAX, now: Now::Zeros, grew };
                    state.tell_content(cx, self.id, content);
                }
                _ if rights && attr.file_type() == FileType::Directory => {
                    state.tell(self.id, Change::Rights(inner));
                }
                _ => state.tell(self.id, Change::Attributes(inner)),
            }
        }
        state.views.found(self.view, &attr);
        lend!(self, attributes inner);
        Ok(self.inodes.shown(attr))
    }

    fn readlink(&mut self, cx: &Context, ino: Ino, target: &mut Vec<u8>) -> Result<()> {
        self.follow(cx, ino, target)
    }

    fn mknod(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        self.make(cx, parent, name, mode, |fs, cx, dir, mode| fs.mknod(cx, dir, name, mode, rdev))
    }

    fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr> {
        let typed = FileType::Directory.mode_bits() | mode & 0o7777;
        self.make(cx, parent, name, typed, |fs, cx, dir, _| fs.mkdir(cx, dir, name, mode))
    }

    fn symlink(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        target: &[u8],
    ) -> Result<Attr> {
        let mode = FileType::Symlink.mode_bits();
        self.make(cx, parent, name, mode, |fs, cx, dir, _| fs.symlink(cx, dir, name, target))
    }

    fn unlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.remove(cx, parent, name, |fs, cx, dir| fs.unlink(cx, dir, name))
    }

    fn rmdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.remove(cx, parent, name, |fs, cx, dir| fs.rmdir(cx, dir, name))
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
        self.may_name()?;
        enter!(self, cx, state, caller, changing);
        let from = directory!(self, cx, state, caller, parent);
        let to = directory!(self, cx, state, caller, new_parent);
        if name.is_dot_or_dot_dot() || new_name.is_dot_or_dot_dot() || flags == RenameFlags::all() {
            return Err(Errno::EINVAL);
        }
        let above = state.allowed(cx, &caller, from, AccessMode::EXECUTE)?;
        let new_above = state.allowed(cx, &caller, to, AccessMode::EXECUTE)?;
        let moved = state.fs.lookup(cx, from, name)?;
        state.involved.add(moved.ino);
        let replaced = match state.fs.lookup(cx, to, new_name) {
            Ok(attr) => Some(attr),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        replaced.iter().for_each(|replaced| state.involved.add(replaced.ino));
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if replaced.is_some() && flags == RenameFlags::NOREPLACE {
            return Err(Errno::EEXIST);
        }
        if replaced.is_none() && exchange {
            return Err(Errno::ENOENT);
        }
        let same = replaced.is_some_and(|replaced| replaced.ino == moved.ino);
        let directories = [Some(moved), replaced.filter(|_| exchange)];
        let directories = || {
            let attrs = directories.iter().flatten();
            attrs.filter(|attr| attr.file_type() == FileType::Directory)
        };
        if let (Some(above), Some(new_above)) = (&above, &new_above)
            && !same
        {
            caller.remove(above, &moved)?;
            match &replaced {
                Some(replaced) => caller.remove(new_above, replaced)?,
                None => caller.access(new_above, MAKE)?,
            }
            // A directory that changes its parent has its `..` rewritten.
            if from != to {
                for attr in directories() {
                    caller.access(attr, AccessMode::WRITE)?;
                }
            }
        }
        state.fs.rename(cx, from, name, to, new_name, flags)?;
        if same && !exchange {
            return Ok(());
        }
        if from != to && directories().next().is_some() {
            state.moves += 1;
            state.tell(self.id, Change::Moved);
            // What this session can name in both directories is inside, and so is what it moved.
            for attr in directories() {
                self.inodes.moved_inside(attr.ino, state.moves);
            }
        }
        if state.observed() {
            state.tell_entry(self.id, from, name);
            state.tell_entry(self.id, to, new_name);
            state.tell(self.id, Change::Attributes(moved.ino));
            if let Some(replaced) = replaced {
                state.tell_unlinked(cx, self.id, replaced.ino);
            }
            if from != to {
                for attr in directories() {
                    let entry = Change::Entry { parent: attr.ino, name: b".." };
                    state.tell(self.id, entry);
                }
            }
        }
        Ok(())
    }

    fn link(
        &mut self,
        cx: &Context,
        ino: Ino,
        new_parent: Ino,
        new_name: Name<'_>,
    ) -> Result<Attr> {
        self.may_name()?;
        let source = self.inodes.named(ino)?;
        enter!(self, cx, state, caller, changing);
        state.involved.add(source);
        let dir = directory!(self, cx, state, caller, new_parent);
        state.may_make(cx, &caller, dir, new_name)?;
        if !self.inodes.all() {
            // A file without a name is the affair of those who have it open.
            let attr = state.fs.getattr(cx, source)?;
            if attr.nlink == 0 && !self.inodes.is_open(source) {
                return Err(Errno::ENOENT);
            }
        }
        let attr = state.fs.link(cx, source, dir, new_name)?;
        state.tell_entry(self.id, dir, new_name);
        state.tell(self.id, Change::Attributes(source));
        self.inodes.give(attr.ino, state.moves)?;
        forgotten!(self, state);
        state.views.found_entry(self.view_of(cx), dir, new_name, &attr);
        lend!(self, entry attr.ino, true);
        Ok(self.inodes.shown(attr))
    }

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.check_room()?;
        let inner = self.inodes.named(ino)?;
        let open = {
            let changes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC);
            if changes && self.access.read_only {
                return Err(Errno::EROFS);
            }
            enter!(self, cx, state, caller, reading);
            state.involved.add(inner);
            if !caller.is_free() {
                let attr = state.fs.getattr(cx, inner)?;
                if attr.file_type() == FileType::Regular {
                    caller.access(&attr, open_mode(flags))?;
                }
            }
            if flags.contains(OpenFlags::TRUNC) {
                state.changed = true;
                state.drop_privileges(cx, self.id, &caller, inner)?;
            }
            let handle = state.fs.open(cx, inner, flags)?;
            if flags.contains(OpenFlags::TRUNC) {
                state.tell_content(cx, self.id, emptied(inner));
            }
            let mut open = Open { ino: inner, handle, flags: Some(flags), origin: Origin::Own };
            offer!(self, state, open);
            state.begin_reading(self.view, &open);
            open
        };
        Ok(self.opened(open))
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        self.check_room()?;
        let (attr, open) = {
            enter!(self, cx, state, caller, reading);
            let dir = directory!(self, cx, state, caller, parent);
            let above = state.allowed(cx, &caller, dir, AccessMode::EXECUTE)?;
            let refuses = self.access.read_only || self.access.names_fixed;
            let judged = above.is_some() || refuses || state.observed();
            let known = judged || flags.contains(OpenFlags::TRUNC);
            let found = match known.then(|| state.fs.lookup(cx, dir, name)) {
                None | Some(Err(Errno::ENOENT)) => None,
                Some(Ok(attr)) => Some(attr),
                Some(Err(error)) => return Err(error),
            };
            found.iter().for_each(|found| state.involved.add(found.ino));
            if found.is_some() && flags.contains(OpenFlags::EXCL) {
                return Err(Errno::EEXIST);
            }
            if found.is_none() {
                self.may_name()?;
            }
            let changes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC);
            if self.access.read_only && (found.is_none() || changes) {
                return Err(Errno::EROFS);
            }
            let mut mode = mode;
            match (&found, &above) {
                (Some(attr), _) if attr.file_type() == FileType::Regular => {
                    caller.access(attr, open_mode(flags))?;
                    if flags.contains(OpenFlags::TRUNC) {
                        state.drop_privileges(cx, self.id, &caller, attr.ino)?;
                    }
                }
                (None, Some(above)) => {
                    caller.access(above, MAKE)?;
                    mode = caller.new_mode(above, mode);
                }
                _ => {}
            }
            state.changed = true;
            let (attr, handle) = state.fs.create(cx, dir, name, mode, flags)?;
            state.involved.add(attr.ino);
            if state.observed() {
                if found.is_none() {
                    state.tell_entry(self.id, dir, name);
                    state.show_again(cx, self.view, dir);
                } else if flags.contains(OpenFlags::TRUNC) {
                    state.tell_content(cx, self.id, emptied(attr.ino));
                }
            }
            let mut open = Open { ino: attr.ino, handle, flags: Some(flags), origin: Origin::Own };
            if let Err(error) = self.inodes.give(attr.ino, state.moves) {
                let _ = state.close(cx, self.id, &open);
                return Err(error);
            }
            offer!(self, state, open);
            forgotten!(self, state);
            state.views.found_entry(self.view_of(cx), dir, name, &attr);
            // Whoever opens it to write will do so.
            lend!(self, entry attr.ino, !flags.contains(OpenFlags::WRITE));
            state.begin_reading(self.view, &open);
            (attr, open)
        };
        let handle = self.opened(open);
        Ok((self.inodes.shown(attr), handle))
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        self.check_room()?;
        let (attr, open) = {
            enter!(self, cx, state, caller, changing);
            let dir = directory!(self, cx, state, caller, parent);
            let above = state.allowed(cx, &caller, dir, MAKE)?;
            let mode = above.map_or(mode, |above| caller.new_mode(&above, mode));
            let (attr, handle) = state.fs.tmpfile(cx, dir, mode, flags)?;
            let mut open = Open { ino: attr.ino, handle, flags: Some(flags), origin: Origin::Own };
            if let Err(error) = self.inodes.give(attr.ino, state.moves) {
                let _ = state.close(cx, self.id, &open);
                return Err(error);
            }
            offer!(self, state, open);
            forgotten!(self, state);
            state.views.found(self.view, &attr);
            lend!(self, entry attr.ino, false);
            state.begin_reading(self.view, &open);
            (attr, open)
        };
        let handle = self.opened(open);
        Ok((self.inodes.shown(attr), handle))
    }

    fn read(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.read_at(cx, ino, handle, offset, buf)
    }

    fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        self.write_to(cx, ino, handle, At::Offset(offset), data)
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
        let open = self.file(ino, handle)?;
        enter!(self, cx, state, caller, changing);
        state.go_by(&open)?;
        if open.flags.is_some_and(|flags| flags.contains(OpenFlags::WRITE)) {
            state.drop_privileges(cx, self.id, &caller, open.ino)?;
        }
        let end = offset.saturating_add(len);
        let grows = if mode.contains(FallocateMode::KEEP_SIZE) { 0 } else { end };
        let was = state.size_before(cx, self.id, open.ino, grows)?;
        state.fs.fallocate(cx, open.ino, open.handle, offset, len, mode)?;
        if state.observed() {
            let zeros = mode.intersects(FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE);
            let now = if zeros { Now::Zeros } else { Now::Same };
            let grew = was.map(|was| (was, grows)).filter(|(was, is)| is > was);
            state.tell_content(cx, self.id, Content { ino: open.ino, offset, len, now, grew });
        }
        Ok(())
    }

    fn seek(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64> {
        let open = self.file(ino, handle)?;
        self.volume.write_back_file(open.ino, cx.now)?;
        enter!(self, cx, state, _caller, reading);
        state.go_by(&open)?;
        state.fs.seek(cx, open.ino, open.handle, offset, to)
    }

    fn fsync(&mut self, cx: &Context, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        let open = self.file(ino, handle)?;
        self.volume.write_back_file(open.ino, cx.now)?;
        enter!(self, cx, state, _caller, reading);
        state.go_by(&open)?;
        state.fs.fsync(cx, open.ino, open.handle, data_only)
    }

    fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.close(cx, ino, handle, true)
    }

    fn opendir(&mut self, cx: &Context, ino: Ino) -> Result<Handle> {
        self.check_room()?;
        let (dir, handle) = {
            enter!(self, cx, state, caller, reading);
            let dir = directory!(self, cx, state, caller, ino);
            state.allowed(cx, &caller, dir, AccessMode::READ)?;
            (dir, state.fs.opendir(cx, dir)?)
        };
        Ok(self.opened(Open { ino: dir, handle, flags: None, origin: Origin::Own }))
    }

    fn readdir(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(cx, ino, handle, cookie, emit)
    }

    fn releasedir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.close(cx, ino, handle, false)
    }

    fn fsyncdir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        let open = self.listing(ino, handle)?;
        enter!(self, cx, state, _caller, reading);
        state.involved.add(open.ino);
        state.fs.fsyncdir(cx, open.ino, open.handle)
    }

    fn syncfs(&mut self, cx: &Context) -> Result<()> {
        self.volume.write_back(cx.now)?;
        enter!(self, cx, state, _caller, reading);
        state.fs.syncfs(cx)
    }

    fn statfs(&mut self, cx: &Context) -> Result<StatFs> {
        enter!(self, cx, state, _caller, reading);
        state.fs.statfs(cx)
    }

    fn setxattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let inner = self.inodes.named(ino)?;
        enter!(self, cx, state, caller, changing);
        state.involved.add(inner);
        let attr = state.fs.getattr(cx, inner)?;
        caller.xattr(&attr, name, true)?;
        state.plain.forget(inner);
        state.fs.setxattr(cx, inner, name, value, flags)?;
        state.tell(self.id, Change::Attributes(inner));
        Ok(())
    }

    fn getxattr(&mut self, cx: &Context, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        let inner = self.inodes.named(ino)?;
        enter!(self, cx, state, caller, reading);
        state.involved.add(inner);
        let attr = state.fs.getattr(cx, inner)?;
        caller.xattr(&attr, name, false)?;
        state.fs.getxattr(cx, inner, name, value)
    }

    fn listxattr(&mut self, cx: &Context, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        let inner = self.inodes.named(ino)?;
        enter!(self, cx, state, caller, reading);
        state.involved.add(inner);
        let from = names.len();
        state.fs.listxattr(cx, inner, names)?;
        if !caller.is_free() {
            let all = names.split_off(from);
            for name in all.split_inclusive(|&b| b == 0).filter(|name| caller.lists(name)) {
                names.extend_from_slice(name);
            }
        }
        Ok(())
    }

    fn removexattr(&mut self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        let inner = self.inodes.named(ino)?;
        enter!(self, cx, state, caller, changing);
        state.involved.add(inner);
        let attr = state.fs.getattr(cx, inner)?;
        caller.xattr(&attr, name, true)?;
        state.fs.removexattr(cx, inner, name)?;
        state.tell(self.id, Change::Attributes(inner));
        Ok(())
    }
}
