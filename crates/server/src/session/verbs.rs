//! The calls of a session: which inodes they name, whether they are allowed, what they change.
//!
//! Each begins by what it is about ([`concerns`](crate::session::concerns)): within the session's
//! limits, with the volume's lock, on inodes that the client may name
//! ([`call`](crate::session::call)). It judges the caller
//! ([`permission`](crate::session::permission)), calls the file system, and tells what it has
//! changed and shows what it has found ([`shown`](crate::session::shown)), so that nothing can come
//! between the judgement and the act. Each says which inodes it goes by (`involved`): one that does
//! not waits for all notices.

use atoll_posix::AccessMode;
use atoll_vfs::filesystem::checked_end;
use atoll_vfs::{
    Attr, Context, Data, DirEntry, Errno, FallocateMode, FileAt, FileSystem, FileType, Handle, Ino,
    Name, OpenFlags, RenameFlags, Rest, Result, Room, SeekTo, SetAttr, StatFs, Written, XattrFlags,
};

use crate::leases::observer::{Change, Content, Now};
use crate::mapped::write_back::Stores;
use crate::open::handles::Open;
use crate::rights::privileges::drop_capabilities;
use crate::session::Session;
use crate::session::call::Call;
use crate::session::concerns::{
    CHANGE, CREATE, LINK, LOOK, LOOKUP, MAKING, OPEN, OPENDIR, RENAME, TMPFILE,
};
use crate::session::permission::open_mode;
use crate::session::reads::Entries;
use crate::session::writes::At;

/// How often a name is tried that others make and remove meanwhile.
const CREATE_ATTEMPTS: usize = 16;

/// `ino` has no content any more.
fn emptied(ino: Ino) -> Content<'static> {
    Content { ino, offset: 0, len: u64::MAX, now: Now::Zeros, grew: None }
}

impl<F: FileSystem + Send> Session<F> {
    pub(crate) fn file(&mut self, ino: Ino, handle: Handle) -> Result<Open> {
        self.meant(ino, handle, true)
    }

    pub(crate) fn listing(&mut self, ino: Ino, handle: Handle) -> Result<Open> {
        self.meant(ino, handle, false)
    }

    fn close(&mut self, cx: &Context, ino: Ino, handle: Handle, file: bool) -> Result<()> {
        if handle == Handle(0) && self.opens_implicitly() {
            return Ok(());
        }
        let ino = self.own.inodes.inner(ino)?;
        let open = self.own.handles.remove(ino, handle, file)?;
        self.unlock_closed(ino, handle);
        self.own.closed();
        self.own.inodes.closed(ino);
        let mut guard = self.volume.lock()?;
        let state = &mut *guard;
        self.own.drop_forgotten(&mut state.fs, &mut state.views);
        state.end_reading(self.own.view, &open);
        state.close(cx, (self.own.id, self.own.peer.uid), &open)
    }

    /// Whether a call whose result this is has to be made once more: it could not be made before
    /// blocks were freed that its file had left, which now they are. If the carrier takes requests
    /// back it is made in a later turn.
    pub(crate) fn goes_on<T>(&self, result: &Result<T>) -> Result<bool> {
        match self.left.get() {
            Some(Rest::After(ino)) if result.is_err() => {
                if self.yields() {
                    return self.volume.free_part(self.own.peer.uid, ino).map(|()| false);
                }
                self.left.take();
                self.volume.free_first(self.own.peer.uid, ino).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Sets attributes, once they can be set.
    fn set(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        // The descriptor of an implicit open says nothing that the kernel has not judged.
        let handle = handle.filter(|&handle| handle != Handle(0) || !self.opens_implicitly());
        let by = |handle| self.own.handles.get(self.own.inodes.inner(ino)?, handle);
        let open = handle.map(by).transpose()?;
        let inner = match &open {
            Some(open) => open.ino,
            None => self.own.inodes.named(ino)?,
        };
        let mut call = self.enter(cx, CHANGE)?;
        call.state.involved.add(inner);
        let writing =
            open.and_then(|open| open.flags).is_some_and(|flags| flags.contains(OpenFlags::WRITE));
        let mut set = *set;
        let needs_old = set != SetAttr::default();
        let old = if needs_old { Some(call.state.fs.getattr(&call.cx, inner)?) } else { None };
        if let Some(old) = &old {
            call.caller.set(old, &mut set, writing)?;
            let content = set.size.is_some() || set.uid.is_some() || set.gid.is_some();
            if content
                && old.file_type() == FileType::Regular
                && drop_capabilities(&mut call.state.fs, &call.cx, inner)?
            {
                call.tell(Change::Attributes(inner));
            }
        }
        if set.mode.is_some() {
            call.state.plain.forget(inner);
        }
        // A handle of a directory says nothing that the file system would want to know.
        let handle = open.filter(|open| open.flags.is_some()).map(|open| open.handle);
        if let (Some(is), Some(old)) = (set.size, &old) {
            call.state.before_growth(&call.cx, inner, old.size, is)?;
        }
        let attr = call.state.fs.setattr(&call.cx, inner, handle, &set)?;
        if call.state.content_observed(inner) {
            let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
            match (set.size, old) {
                (Some(is), Some(Attr { size: was, .. })) => {
                    let (offset, grew) = (is.min(was), (is > was).then_some((was, is)));
                    let (len, now) = (u64::MAX, Now::Zeros);
                    call.tell_content(Content { ino: inner, offset, len, now, grew });
                }
                _ if rights && attr.file_type() == FileType::Directory => {
                    call.tell(Change::Rights(inner));
                }
                _ => call.tell(Change::Attributes(inner)),
            }
        }
        Ok(call.shown(attr))
    }

    /// Opens `name` in `parent`, made if it was missing.
    ///
    /// Where others change the file system too, the name may be another file's by the time that the
    /// file system comes to it: what was judged is opened by its inode, what was missing is made,
    /// and not found.
    ///
    /// # Errors
    /// Those of create; `EEXIST` for what others have made meanwhile.
    fn create_or_open(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let foreign = self.volume.is_foreign();
        let (mut call, dir, above) = self.call_in(cx, CREATE, parent)?;
        let refuses = call.own.access.read_only;
        let judged = above.is_some() || refuses || call.state.observed();
        let cuts = flags.contains(OpenFlags::TRUNC);
        let found = match (judged || cuts).then(|| call.state.peek(&call.cx, dir, name)) {
            None | Some(Err(Errno::ENOENT)) => None,
            Some(Ok(attr)) => Some(attr),
            Some(Err(error)) => return Err(error),
        };
        found.iter().for_each(|found| call.state.involved.add(found.ino));
        if found.is_some() && flags.contains(OpenFlags::EXCL) {
            return Err(Errno::EEXIST);
        }
        if found.is_none() || cuts || flags.contains(OpenFlags::WRITE) {
            call.own.may_change()?;
        }
        let mut mode = mode;
        match (&found, &above) {
            (Some(attr), _) if attr.file_type() == FileType::Regular => {
                call.caller.access(attr, open_mode(flags))?;
                if cuts {
                    call.drop_privileges(attr.ino)?;
                }
            }
            (None, Some(above)) => {
                call.caller.access(above, MAKING)?;
                mode = call.caller.new_mode(above, mode);
            }
            _ => {}
        }
        call.state.changed = true;
        let (attr, handle) = match &found {
            Some(found) if foreign => {
                let opened = call.open_found(found.ino, flags)?;
                // From here on it is what the client is given.
                call.state.peeked.retain(|ino| *ino != found.ino);
                opened
            }
            None if foreign && above.is_some() => {
                let missing = flags | OpenFlags::EXCL;
                call.state.fs.create(&call.cx, dir, name, mode, missing)?
            }
            _ => call.state.fs.create(&call.cx, dir, name, mode, flags)?,
        };
        call.state.involved.add(attr.ino);
        if found.is_none() && call.state.observed() {
            call.tell_entry(dir, name);
            call.show_again(dir);
        }
        if found.is_some() && cuts {
            call.tell_content(emptied(attr.ino));
        }
        call.give_open(attr.ino, handle, flags)?;
        // A guest that opens it to write will change its attributes; a mount's kernel asks for them
        // before it lets its program have the file.
        let lend = !flags.contains(OpenFlags::WRITE) || !call.own.hears_always();
        let shown = call.entry(dir, name, attr, lend);
        let open = call.opened(attr.ino, handle, flags);
        drop(call);
        Ok((shown, self.own.opened(open)))
    }

    /// A part of a fallocate. Returns where the next one begins, if there is one.
    fn allocate(
        &mut self,
        cx: &Context,
        open: &Open,
        (offset, len): (u64, u64),
        mode: FallocateMode,
    ) -> Result<Option<u64>> {
        self.call_by(cx, CHANGE, open, |call| {
            if open.flags.is_some_and(|flags| flags.contains(OpenFlags::WRITE)) {
                call.drop_privileges(open.ino)?;
            }
            let zeros = mode.intersects(FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE);
            let (mut len, mut next) = (len, None);
            if zeros && let Ok(end) = checked_end(offset, len) {
                let stop = call.state.hole_at_once(open.ino, &(offset..end))?;
                next = Some(stop).filter(|stop| *stop < end);
                len = stop - offset;
            }
            let grows = |end| if mode.contains(FallocateMode::KEEP_SIZE) { 0 } else { end };
            let was = call.size_before(open.ino, grows(offset.saturating_add(len)))?;
            call.state.fs.fallocate(&call.cx, open.ino, open.handle, offset, len, mode)?;
            if let Some(Rest::From(from)) = call.state.fs.take_rest() {
                (len, next) = (from.saturating_sub(offset), Some(from));
            }
            let grows = grows(offset.saturating_add(len));
            if call.state.content_observed(open.ino) {
                let now = if zeros { Now::Zeros } else { Now::Same };
                let grew = was.map(|was| (was, grows)).filter(|(was, is)| is > was);
                call.tell_content(Content { ino: open.ino, offset, len, now, grew });
            }
            Ok(next)
        })
    }
}

impl<F: FileSystem> Call<'_, F> {
    /// Opens an inode that a lookup has given, and finds its attributes then.
    fn open_found(&mut self, ino: Ino, flags: OpenFlags) -> Result<(Attr, Handle)> {
        let handle = self.state.fs.open(&self.cx, ino, flags)?;
        match self.state.fs.getattr(&self.cx, ino) {
            Ok(attr) => Ok((attr, handle)),
            Err(error) => {
                let _ = self.state.fs.release(&self.cx, ino, handle);
                Err(error)
            }
        }
    }
}

impl<F: FileSystem + Send> FileSystem for Session<F> {
    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        if self.own.cache.is_some()
            && name.bytes() == b"."
            && let Some(attr) = self.itself(cx, parent)?
        {
            return Ok(attr);
        }
        let foreign = self.volume.is_foreign();
        let (mut call, dir, _) = self.call_in(cx, LOOKUP, parent)?;
        let found = if dir == call.own.inodes.top() && name.bytes() == b".." {
            call.state.fs.getattr(&call.cx, dir)
        } else {
            call.state.fs.lookup(&call.cx, dir, name)
        };
        if found == Err(Errno::ENOENT) {
            let view = call.own.view_of(&call.cx);
            call.state.views.found_missing(view, dir, name);
        }
        let attr = found?;
        call.state.involved.add(attr.ino);
        if foreign && name.bytes() == b".." {
            call.led_up(attr.ino)?;
        }
        call.given(dir, name, attr)
    }

    fn forget(&mut self, ino: Ino, count: u64) {
        let taken = self.own.inodes.forget(ino, count);
        if let (Ok(inner), Ok(mut state)) = (self.own.inodes.inner(ino), self.volume.lock()) {
            let state = &mut *state;
            self.own.drop_forgotten(&mut state.fs, &mut state.views);
            if let Some((inner, taken)) = taken {
                state.fs.forget(inner, taken);
            }
            if let Some(cache) = &self.own.cache {
                cache.forget(inner, count);
            }
        }
        if let Ok(inner) = self.own.inodes.inner(ino) {
            self.let_go(inner);
        }
    }

    fn is_submount(&mut self, ino: Ino) -> bool {
        let inner = self.own.inodes.named(ino);
        inner.is_ok_and(|inner| self.volume.lock().is_ok_and(|mut s| s.fs.is_submount(inner)))
    }

    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        let (mut call, inner) = self.call_on(cx, LOOK, ino)?;
        let attr = call.state.fs.getattr(&call.cx, inner)?;
        Ok(call.shown(attr))
    }

    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        if set.size.is_some() {
            self.may_cut()?;
        }
        loop {
            let result = self.set(cx, ino, handle, set);
            if !self.goes_on(&result)? {
                return result;
            }
        }
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
        self.make(cx, parent, name, (mode, rdev), |fs, cx, dir, mode| {
            fs.mknod(cx, dir, name, mode, rdev)
        })
    }

    fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr> {
        let typed = FileType::Directory.mode_bits() | mode & 0o7777;
        self.make(cx, parent, name, (typed, 0), |fs, cx, dir, _| fs.mkdir(cx, dir, name, mode))
    }

    fn symlink(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        target: &[u8],
    ) -> Result<Attr> {
        let mode = FileType::Symlink.mode_bits();
        self.make(cx, parent, name, (mode, 0), |fs, cx, dir, _| fs.symlink(cx, dir, name, target))
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
        let mut call = self.call(cx, RENAME)?;
        let from = call.inside(parent)?;
        let to = call.inside(new_parent)?;
        if name.is_dot_or_dot_dot() || new_name.is_dot_or_dot_dot() || !flags.agree() {
            return Err(Errno::EINVAL);
        }
        let above = call.allowed(from)?;
        let new_above = call.allowed(to)?;
        let moved = call.state.peek(&call.cx, from, name)?;
        call.state.involved.add(moved.ino);
        let replaced = match call.state.peek(&call.cx, to, new_name) {
            Ok(attr) => Some(attr),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        replaced.iter().for_each(|replaced| call.state.involved.add(replaced.ino));
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if replaced.is_some() && flags.contains(RenameFlags::NOREPLACE) {
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
            call.caller.remove(above, &moved)?;
            match &replaced {
                Some(replaced) => call.caller.remove(new_above, replaced)?,
                None => call.caller.access(new_above, MAKING)?,
            }
            // A directory that changes its parent has its `..` rewritten.
            if from != to {
                for attr in directories() {
                    call.caller.access(attr, AccessMode::WRITE)?;
                }
            }
        }
        let goes = replaced.filter(|_| !same && !exchange);
        let held = call.hold(goes.as_ref())?;
        let renamed = call.state.fs.rename(&call.cx, from, name, to, new_name, flags);
        call.removed(held, renamed.is_ok());
        renamed?;
        if same && !exchange {
            return Ok(());
        }
        if from != to && directories().next().is_some() {
            call.state.moves += 1;
            call.tell(Change::Moved);
            // This session can name entries of both directories, so they are inside, and so is what
            // it moved.
            for attr in directories() {
                call.own.inodes.moved_inside(attr.ino, call.state.moves);
            }
        }
        if call.state.observed() {
            call.tell_entry(from, name);
            call.tell_entry(to, new_name);
            call.tell(Change::Attributes(moved.ino));
            if let Some(replaced) = replaced {
                call.tell_unlinked(replaced.ino);
            }
            if from != to {
                for attr in directories() {
                    let entry = Change::Entry { parent: attr.ino, name: b".." };
                    call.tell(entry);
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
        let (mut call, source) = self.call_on(cx, LINK, ino)?;
        let dir = call.inside(new_parent)?;
        let above = call.allowed(dir)?;
        call.may_make(dir, new_name, above.as_ref())?;
        if !call.own.inodes.all() || !call.caller.is_free() {
            let attr = call.state.fs.getattr(&call.cx, source)?;
            call.caller.link(&attr)?;
            // Only a session that has it open may give a name to a file without one.
            if attr.nlink == 0 && !call.own.inodes.all() && !call.own.inodes.is_open(source) {
                return Err(Errno::ENOENT);
            }
        }
        let attr = call.state.fs.link(&call.cx, source, dir, new_name)?;
        call.tell_entry(dir, new_name);
        call.tell(Change::Attributes(source));
        call.given(dir, new_name, attr)
    }

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        if flags.contains(OpenFlags::TRUNC) {
            self.may_cut()?;
        }
        let (mut call, inner) = self.call_on(cx, OPEN, ino)?;
        let cuts = flags.contains(OpenFlags::TRUNC);
        if cuts || flags.contains(OpenFlags::WRITE) {
            call.own.may_change()?;
        }
        if !call.caller.is_free() {
            let attr = call.state.fs.getattr(&call.cx, inner)?;
            if attr.file_type() == FileType::Regular {
                call.caller.access(&attr, open_mode(flags))?;
            }
        }
        if cuts {
            call.state.changed = true;
            call.drop_privileges(inner)?;
        }
        let handle = call.state.fs.open(&call.cx, inner, flags)?;
        if cuts {
            call.tell_content(emptied(inner));
        }
        let open = call.opened(inner, handle, flags);
        drop(call);
        Ok(self.own.opened(open))
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        if flags.contains(OpenFlags::TRUNC) {
            self.may_cut()?;
        }
        for _ in 0..CREATE_ATTEMPTS {
            match self.create_or_open(cx, parent, name, mode, flags) {
                // Others have made it since it was looked for.
                Err(Errno::EEXIST) if !flags.contains(OpenFlags::EXCL) => {}
                result => return result,
            }
        }
        Err(Errno::EAGAIN)
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let (mut call, dir, above) = self.call_in(cx, TMPFILE, parent)?;
        let mode = above.map_or(mode, |above| call.caller.new_mode(&above, mode));
        let (attr, handle) = call.state.fs.tmpfile(&call.cx, dir, mode, flags)?;
        call.give_open(attr.ino, handle, flags)?;
        call.state.views.found(call.own.view, &attr);
        let lend = !call.own.hears_always();
        call.own.lend_entry(attr.ino, lend);
        let open = call.opened(attr.ino, handle, flags);
        drop(call);
        let handle = self.own.opened(open);
        Ok((self.own.inodes.shown(attr), handle))
    }

    fn read(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.read_at(cx, ino, handle, offset, &mut buf.into())
    }

    fn read_vectored(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        room: &mut Room<'_>,
    ) -> Result<usize> {
        self.read_at(cx, ino, handle, offset, room)
    }

    fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        self.write_vectored(cx, ino, handle, offset, data.into())
    }

    fn write_vectored(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: Data<'_>,
    ) -> Result<Written> {
        self.write_to(cx, ino, handle, At::Offset(offset), data)
    }

    fn copy_file_range(&mut self, cx: &Context, from: FileAt, to: FileAt, len: u64) -> Result<u64> {
        let (source, target) = (self.file(from.ino, from.handle)?, self.file(to.ino, to.handle)?);
        loop {
            let result = self.copy_once(cx, (&source, from.offset), (&target, to.offset), len);
            if !self.goes_on(&result)? {
                return result;
            }
        }
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
        let end = offset.saturating_add(len);
        let from = self.goes_on_from();
        let (mut offset, mut len) = (from.map_or(offset, |from| from.max(offset)), len);
        if len > 0 {
            len = end.saturating_sub(offset);
        }
        loop {
            let result = self.allocate(cx, &open, (offset, len), mode);
            match result {
                Ok(Some(next)) if self.yields() => {
                    self.left.set(Some(Rest::From(next)));
                    return Ok(());
                }
                Ok(Some(next)) => {
                    len = end.saturating_sub(next);
                    offset = next;
                }
                _ if self.goes_on(&result)? => {}
                _ => return result.map(drop),
            }
        }
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
        let goes_on = self.goes_on_from();
        if goes_on.is_none() {
            self.write_back_stores(cx, Stores::Of(open.ino))?;
        }
        let mut at = goes_on.map_or(offset, |from| from.max(offset));
        loop {
            let (found, rest) = self.call_by(cx, LOOK, &open, |call| {
                let found = call.state.fs.seek(&call.cx, open.ino, open.handle, at, to);
                Ok((found, call.state.fs.take_rest()))
            })?;
            if let Some(Rest::Until(ino)) = rest {
                self.volume.removals.add(self.own.peer.uid, ino);
                self.left.set(rest);
            }
            let Some(Rest::From(next)) = rest else { return found };
            if self.yields() {
                self.left.set(rest);
                return found;
            }
            at = next;
        }
    }

    fn fsync(&mut self, cx: &Context, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        let open = self.file(ino, handle)?;
        self.write_back_stores(cx, Stores::Of(open.ino))?;
        self.call_by(cx, LOOK, &open, |call| {
            call.state.fs.fsync(&call.cx, open.ino, open.handle, data_only)
        })
    }

    fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.close(cx, ino, handle, true)
    }

    fn opendir(&mut self, cx: &Context, ino: Ino) -> Result<Handle> {
        let (mut call, dir, _) = self.call_in(cx, OPENDIR, ino)?;
        let handle = call.state.fs.opendir(&call.cx, dir)?;
        drop(call);
        Ok(self.own.opened(Open { ino: dir, handle, flags: None }))
    }

    fn readdir(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(cx, ino, handle, cookie, Entries::Numbered, emit)
    }

    fn readdir_names(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(cx, ino, handle, cookie, Entries::Names, emit)
    }

    fn releasedir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.close(cx, ino, handle, false)
    }

    fn fsyncdir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        let open = self.listing(ino, handle)?;
        let mut call = self.enter(cx, LOOK)?;
        call.state.involved.add(open.ino);
        call.state.fs.fsyncdir(&call.cx, open.ino, open.handle)
    }

    fn syncfs(&mut self, cx: &Context) -> Result<()> {
        self.write_back_stores(cx, Stores::All)?;
        let mut call = self.enter(cx, LOOK)?;
        call.state.fs.syncfs(&call.cx)
    }

    fn statfs(&mut self, cx: &Context) -> Result<StatFs> {
        let top = self.own.inodes.inner(Ino::ROOT)?;
        let mut call = self.enter(cx, LOOK)?;
        call.state.fs.statfs_below(&call.cx, top)
    }

    fn statfs_below(&mut self, cx: &Context, dir: Ino) -> Result<StatFs> {
        let (mut call, dir) = self.call_on(cx, LOOK, dir)?;
        call.state.fs.statfs_below(&call.cx, dir)
    }

    fn setxattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let (mut call, inner) = self.call_on(cx, CHANGE, ino)?;
        let attr = call.state.fs.getattr(&call.cx, inner)?;
        call.caller.xattr(&attr, name, true)?;
        call.state.plain.forget(inner);
        call.state.fs.setxattr(&call.cx, inner, name, value, flags)?;
        call.tell(Change::Attributes(inner));
        Ok(())
    }

    fn getxattr(&mut self, cx: &Context, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        let (mut call, inner) = self.call_on(cx, LOOK, ino)?;
        let attr = call.state.fs.getattr(&call.cx, inner)?;
        call.caller.xattr(&attr, name, false)?;
        call.state.fs.getxattr(&call.cx, inner, name, value)
    }

    fn listxattr(&mut self, cx: &Context, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        let (mut call, inner) = self.call_on(cx, LOOK, ino)?;
        let from = names.len();
        call.state.fs.listxattr(&call.cx, inner, names)?;
        if !call.caller.is_free() {
            let all = names.split_off(from);
            for name in all.split_inclusive(|&b| b == 0).filter(|name| call.caller.lists(name)) {
                names.extend_from_slice(name);
            }
        }
        Ok(())
    }

    fn removexattr(&mut self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        let (mut call, inner) = self.call_on(cx, CHANGE, ino)?;
        let attr = call.state.fs.getattr(&call.cx, inner)?;
        call.caller.xattr(&attr, name, true)?;
        call.state.fs.removexattr(&call.cx, inner, name)?;
        call.tell(Change::Attributes(inner));
        Ok(())
    }
}
