//! The calls that write into files, one way for all.

use atoll_vfs::{
    Context, Data, Errno, FileSystem, Handle, Ino, OpenFlags, Result, SetAttr, SetTime, Timespec,
    Written,
};

use crate::guarded::Guarded;
use crate::leases::observer::{Change, Content, Now};
use crate::open::handles::Open;
use crate::session::Session;
use crate::session::call::Call;
use crate::session::concerns::CHANGE;

/// Where a write goes.
pub(crate) enum At {
    Offset(u64),
    /// The end of the file, found and written in one.
    End,
    /// Here, but not beyond the end of the file.
    Within(u64),
    /// Here, by a kernel that puts it into its page cache there; or at the end of the file.
    Cached {
        offset: u64,
        end: bool,
    },
    /// Here, by a kernel that sets the time of the change itself.
    Untimed(u64),
    /// The same, of pages that it has kept back.
    Kept(u64),
}

/// Writes that only a carrier of requests knows to ask for.
impl<F: FileSystem + Send> Session<F> {
    /// Writes at the end of the file, atomically, through a handle without APPEND: for a client
    /// that says O_APPEND with each write.
    ///
    /// # Errors
    /// Those of [`FileSystem::write`].
    pub fn append(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        data: Data<'_>,
    ) -> Result<Written> {
        self.write_to(cx, ino, handle, At::End, data)
    }

    /// Writes what the kernel puts into its page cache at `offset`; with `end` as
    /// [`append`](Self::append), which may be elsewhere. The kernel hears of it then.
    ///
    /// # Errors
    /// Those of [`FileSystem::write`].
    pub fn write_cached(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        (offset, end): (u64, bool),
        data: Data<'_>,
    ) -> Result<Written> {
        if let (Some(cache), Ok(ino)) = (&self.own.cache, self.own.inodes.inner(ino)) {
            // Before it is written: a change by others that comes between finds it.
            cache.writes_pages(ino);
        }
        self.write_to(cx, ino, handle, At::Cached { offset, end }, data)
    }

    /// Writes pages of a shared mapping, which never make a file longer: what lies beyond the end,
    /// because another client has cut the file, is dropped.
    ///
    /// # Errors
    /// Those of [`FileSystem::write`].
    pub fn write_back(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: Data<'_>,
    ) -> Result<Written> {
        let written = self.write_to(cx, ino, handle, At::Within(offset), data)?;
        Ok(Written { len: data.len().min(self.own.access.limits.transfer), ..written })
    }

    /// Writes for a kernel that writes back, and says itself when a file was changed: the time of
    /// the last change stays. Power loss before the kernel has said so leaves the bytes with that
    /// time. By a handle that cannot be read it is set, since that passes the page cache by.
    ///
    /// # Errors
    /// Those of [`FileSystem::write`].
    pub fn write_untimed(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: Data<'_>,
    ) -> Result<Written> {
        self.write_to(cx, ino, handle, At::Untimed(offset), data)
    }

    /// The same for pages that the kernel has kept back: all of them, since it does not look how
    /// many it was, and drops those that it takes for written. From a superuser they take no set-ID
    /// bits and capabilities, which the kernel has taken with write(2).
    ///
    /// # Errors
    /// Those of [`FileSystem::write`], also when a part was written; `EIO` where none can be and
    /// the file system does not say why.
    pub fn write_whole(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: Data<'_>,
    ) -> Result<Written> {
        let mut done = 0;
        loop {
            let at = offset.checked_add(done as u64).ok_or(Errno::EFBIG)?;
            let written = self.write_to(cx, ino, handle, At::Kept(at), data.skip(done))?;
            done += written.len;
            if done >= data.len() {
                return Ok(Written { offset, len: done });
            }
            if written.len == 0 {
                return Err(Errno::EIO);
            }
        }
    }

    /// Sets the time of the last change to when a kernel that writes back says that its caller has
    /// written by `handle`. The caller may not own the file: the time is one at which it can have
    /// been written, neither before the last change that is known nor later than now.
    ///
    /// # Errors
    /// `EBADF`; `EPERM` for a handle that writes nothing; those of [`FileSystem::setattr`].
    pub(crate) fn written_at(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        said: Timespec,
    ) -> Result<()> {
        let open = self.file(ino, handle)?;
        if !open.flags.is_some_and(|flags| flags.contains(OpenFlags::WRITE)) {
            return Err(Errno::EPERM);
        }
        self.call_by(cx, CHANGE, &open, |call| {
            let before = call.state.fs.getattr(&call.cx, open.ino)?.mtime;
            let mtime = Some(SetTime::To(said.min(call.cx.now).max(before)));
            let set = SetAttr { mtime, ..SetAttr::default() };
            call.state.fs.setattr(&call.cx, open.ino, Some(open.handle), &set)?;
            if call.state.content_observed(open.ino) {
                call.tell(Change::Attributes(open.ino));
            }
            Ok(())
        })
    }

    pub(crate) fn write_to(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        at: At,
        data: Data<'_>,
    ) -> Result<Written> {
        let open = self.file(ino, handle)?;
        loop {
            let result = self.write_once(cx, &open, &at, data);
            if !self.goes_on(&result)? {
                return result;
            }
        }
    }

    fn write_once(
        &mut self,
        cx: &Context,
        open: &Open,
        at: &At,
        data: Data<'_>,
    ) -> Result<Written> {
        self.call_by(cx, CHANGE, open, |call| {
            let mut data = data.limit(call.own.access.limits.transfer);
            // A write that cannot be made takes no privileges. A kernel that writes back has taken
            // them with write(2): those that the file has now it was given later. That is believed
            // of one that acts as the superuser, who may give a file any.
            let has_taken = matches!(at, At::Kept(_)) && call.caller.is_root();
            let writes = open.flags.is_some_and(|flags| flags.contains(OpenFlags::WRITE));
            if writes && !data.is_empty() && !has_taken {
                call.drop_privileges(open.ino)?;
            }
            let Call { state, cx, own, .. } = call;
            let state: &mut Guarded<F> = state;
            let offset = match *at {
                At::Offset(offset) | At::Untimed(offset) | At::Kept(offset) => offset,
                At::Cached { offset, end: false } => offset,
                At::End | At::Cached { .. } => state.fs.getattr(cx, open.ino)?.size,
                At::Within(offset) => {
                    let room = state.fs.getattr(cx, open.ino)?.size.saturating_sub(offset);
                    data = data.limit(usize::try_from(room).unwrap_or(usize::MAX));
                    offset
                }
            };
            let end = offset.saturating_add(data.len() as u64);
            let of_cache = match *at {
                At::Within(_) => true,
                At::Cached { offset: at, .. } => at == offset && !state.is_mapped(open.ino),
                _ => false,
            };
            let was = state.size_before(cx, own.id, open.ino, offset..end, offset)?;
            let had = state.views.has(own.view, open.ino, offset, data.len());
            let copy;
            if was.is_some() || state.is_mapped(open.ino) {
                // More than one takes the data, and all have to take the same: its client may be
                // changing it.
                copy = data.to_vec();
                data = copy[..].into();
            }
            let untimed = matches!(at, At::Untimed(_) | At::Kept(_)) && open.is_readable();
            let before = if untimed { Some(state.fs.getattr(cx, open.ino)?.mtime) } else { None };
            let written = state.fs.write_vectored(cx, open.ino, open.handle, offset, data)?;
            if let Some(before) = before {
                let mtime = Some(SetTime::To(before));
                // What was written is, whatever becomes of the time.
                let set = SetAttr { mtime, ..SetAttr::default() };
                let _ = state.fs.setattr(cx, open.ino, Some(open.handle), &set);
            }
            if written.len > 0 && state.content_observed(open.ino) {
                let (offset, len) = (written.offset, written.len as u64);
                let now = Now::Bytes { data: data.limit(written.len), cached: of_cache };
                let grew = was.map(|was| (was, offset + len)).filter(|(was, is)| is > was);
                let content = Content { ino: open.ino, offset, len, now, grew };
                state.tell_content(cx, own.id, content);
            }
            if had && !state.is_mapped(open.ino) {
                let Guarded { fs, views, .. } = state;
                views.filled(fs, cx, own.view, open, written.offset, written.len);
            }
            Ok(written)
        })
    }
}

#[cfg(test)]
mod tests {
    use atoll_vfs::{Name, XattrFlags};

    use super::*;
    use crate::rights::limits::Limits;
    use crate::{Access, Credentials};

    /// However little is written at once, and with the time that the file had.
    #[test]
    fn what_a_kernel_has_kept_back_is_written_whole() {
        let cx = |sec| Context { uid: 0, gid: 0, now: Timespec { sec, nsec: 0 } };
        let volume = crate::testing::volume();
        let limits = Limits { transfer: 1000, ..Limits::default() };
        let access = Access { limits, ..Access::default() };
        let mut session = volume.session(Credentials::default(), access).unwrap();
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let name = Name::new(b"f").unwrap();
        let (attr, handle) = session.create(&cx(5), Ino::ROOT, name, 0o600, both).unwrap();
        let data = [7; 2500];
        let written = session.write_whole(&cx(9), attr.ino, handle, 100, data[..].into());
        assert_eq!(written, Ok(Written { offset: 100, len: 2500 }));
        let found = session.getattr(&cx(9), attr.ino).unwrap();
        assert_eq!((found.size, found.mtime.sec, found.ctime.sec), (2600, 5, 9));
    }

    /// A program that copies a file gives the copy its capabilities before it closes it, upon which
    /// the kernel sends the pages.
    #[test]
    fn pages_that_were_kept_back_take_no_privileges() {
        let cx = |uid| Context { uid, gid: uid, now: Timespec { sec: 5, nsec: 0 } };
        let volume = crate::testing::volume();
        let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let (file, capability) = (Name::new(b"f").unwrap(), b"security.capability");
        let (attr, handle) = session.create(&cx(0), Ino::ROOT, file, 0o6777, both).unwrap();
        let give = |session: &mut Session<_>| {
            let flags = XattrFlags::empty();
            session.setxattr(&cx(0), attr.ino, capability, &[7; 20], flags).unwrap();
        };
        let has = |session: &mut Session<_>| {
            let is_there = session.getxattr(&cx(0), attr.ino, capability, &mut Vec::new()).is_ok();
            (is_there, session.getattr(&cx(0), attr.ino).unwrap().mode & 0o7777)
        };
        give(&mut session);
        session.write_whole(&cx(0), attr.ino, handle, 0, b"page"[..].into()).unwrap();
        assert_eq!(has(&mut session), (true, 0o6777));
        // A write(2) takes them, and so do pages of one who may not give them.
        session.write_untimed(&cx(0), attr.ino, handle, 0, b"now"[..].into()).unwrap();
        assert_eq!(has(&mut session), (false, 0o6777));
        give(&mut session);
        let user = Credentials { uid: 1000, gid: 1000, ..Credentials::default() };
        let mut user = volume.session(user, Access::default()).unwrap();
        let ino = user.lookup(&cx(1000), Ino::ROOT, file).unwrap().ino;
        let handle = user.open(&cx(1000), ino, both).unwrap();
        user.write_whole(&cx(1000), ino, handle, 0, b"page"[..].into()).unwrap();
        assert_eq!(has(&mut session), (false, 0o777));
    }
}
