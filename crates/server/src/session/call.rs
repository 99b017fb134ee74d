//! A call under way: how each begins and ends under the volume's lock.
//!
//! A call passes through steps on one thing, and not through file systems over each other: each
//! step needs what the one before has looked up. If the judge of permissions and the observers of
//! changes looked for themselves, an unlink would have two lookups, and take a tenth longer.

use atoll_posix::AccessMode;
use atoll_vfs::{Attr, Context, Errno, FileSystem, Ino, Rest, Result};

use crate::guarded::Guarded;
use crate::open::handles::Open;
use crate::rights::permissions::Caller;
use crate::session::Session;
use crate::session::concerns::Concerns;
use crate::session::own::Own;
use crate::volume::{Entered, Waits};

/// A call that holds the volume's lock, until it is dropped.
pub(crate) struct Call<'a, F: FileSystem> {
    /// The state that the lock guards.
    pub state: Entered<'a, F>,
    /// With the identity by which the call is judged.
    pub cx: Context,
    /// The caller that it speaks for.
    pub caller: Caller<'a>,
    /// The session's own state.
    pub own: &'a mut Own,
    /// The rights that its verb needs on the directory that it works in.
    pub rights: AccessMode,
}

impl<F: FileSystem + Send> Session<F> {
    /// Begins a call within the session's limits.
    ///
    /// # Errors
    /// `EMFILE`, `EPERM`, `EROFS`; `EIO` after a panic in the file system.
    #[inline(always)]
    pub(crate) fn call(&mut self, cx: &Context, verb: Concerns) -> Result<Call<'_, F>> {
        self.own.may_begin(verb)?;
        self.enter(cx, verb)
    }

    /// Begins a call that names the inode `ino`; returns the volume's number of it.
    ///
    /// # Errors
    /// As [`call`](Self::call); `ESTALE`.
    #[inline(always)]
    pub(crate) fn call_on(
        &mut self,
        cx: &Context,
        verb: Concerns,
        ino: Ino,
    ) -> Result<(Call<'_, F>, Ino)> {
        self.own.may_begin(verb)?;
        let inner = self.own.inodes.named(ino)?;
        let mut call = self.enter(cx, verb)?;
        call.state.involved.add(inner);
        Ok((call, inner))
    }

    /// Begins a call that works in the directory `ino`; returns the volume's number of it, and its
    /// attributes if the caller is judged by them.
    ///
    /// # Errors
    /// As [`call`](Self::call); `ESTALE`, `ENOTDIR`, `EACCES`.
    #[inline(always)]
    pub(crate) fn call_in(
        &mut self,
        cx: &Context,
        verb: Concerns,
        ino: Ino,
    ) -> Result<(Call<'_, F>, Ino, Option<Attr>)> {
        let mut call = self.call(cx, verb)?;
        let dir = call.inside(ino)?;
        let attr = call.allowed(dir)?;
        Ok((call, dir, attr))
    }

    /// Makes a call through `open`, which another session may have closed: `act`, which gets the
    /// call where it stands. Moving a call takes longer than the rest of its beginning, and these
    /// calls are the shortest.
    ///
    /// # Errors
    /// As [`call`](Self::call); `EBADF`; those of `act`.
    #[inline(always)]
    pub(crate) fn call_by<T>(
        &mut self,
        cx: &Context,
        verb: Concerns,
        open: &Open,
        act: impl FnOnce(&mut Call<'_, F>) -> Result<T>,
    ) -> Result<T> {
        if verb.changes {
            self.own.may_change()?;
        }
        let waits = if self.waits { Waits::Here } else { Waits::Carrier(&self.needs) };
        let state = self.volume.enter(waits, self.own.peer.uid, &self.left)?;
        let cx = self.judge.context(cx);
        let caller = self.judge.caller(&cx);
        let own = &mut self.own;
        let mut call = Call { state, cx, caller, own, rights: verb.rights };
        call.state.changed |= verb.changes;
        call.state.involved.add(open.ino);
        act(&mut call)
    }

    /// Takes the volume's lock.
    ///
    /// # Errors
    /// `EROFS` for a change by a session that may only look; `EIO` after a panic in the file
    /// system.
    #[inline(always)]
    pub(crate) fn enter(&mut self, cx: &Context, verb: Concerns) -> Result<Call<'_, F>> {
        if verb.changes {
            self.own.may_change()?;
        }
        let waits = if self.waits { Waits::Here } else { Waits::Carrier(&self.needs) };
        let mut state = self.volume.enter(waits, self.own.peer.uid, &self.left)?;
        if verb.changes {
            state.changed = true;
        }
        let cx = self.judge.context(cx);
        let caller = self.judge.caller(&cx);
        Ok(Call { state, cx, caller, own: &mut self.own, rights: verb.rights })
    }

    /// Refuses a call that may cut a file, as long as its user has too many cuts under way: it is
    /// made again when one of those has been made. So nobody waits for the cuts of others.
    ///
    /// # Errors
    /// `EAGAIN`, with a rest.
    pub(crate) fn may_cut(&self) -> Result<()> {
        if self.volume.is_foreign()
            && let Some(ino) = self.volume.removals.too_many(self.own.peer.uid)
        {
            self.left.set(Some(Rest::Until(ino)));
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }
}

impl<F: FileSystem> Call<'_, F> {
    /// The volume's number of a directory in which the call works.
    ///
    /// # Errors
    /// `ESTALE`, `ENOTDIR`.
    #[inline]
    pub fn inside(&mut self, ino: Ino) -> Result<Ino> {
        let Call { state, cx, caller, own, .. } = self;
        let Guarded { fs, involved, moves, views, .. } = &mut **state;
        let dir = own.inodes.directory((&mut *fs, involved), cx, caller, *moves, ino);
        own.drop_forgotten(fs, views);
        let dir = dir?;
        involved.add(dir);
        Ok(dir)
    }

    /// `..` of a directory of the session's has led to `ino`, where others move directories too,
    /// without a call of the server that would count.
    ///
    /// # Errors
    /// `ESTALE` for what is outside: the directory has been moved there.
    pub fn led_up(&mut self, ino: Ino) -> Result<()> {
        let Call { state, cx, own, .. } = self;
        let inside = own.inodes.led_up(&mut state.fs, cx, ino);
        if inside.is_err() {
            // The client is not given it.
            state.fs.forget(ino, 1);
        }
        inside
    }
}

#[cfg(test)]
mod tests {
    use atoll_vfs::{Errno, Handle, Name, OpenFlags, SetAttr};

    use super::*;
    use crate::rights::limits::Limits;
    use crate::{Access, Credentials};

    const CX: Context = Context { uid: 0, gid: 0, now: atoll_vfs::Timespec { sec: 0, nsec: 0 } };

    /// The concerns of a verb decide what refuses it, and in which order.
    #[test]
    fn refusals() {
        let volume = crate::testing::volume();
        let name = Name::new(b"n").unwrap();
        let session = |read_only, open_files| {
            let limits = Limits { open_files, ..Limits::default() };
            let access = Access { read_only, limits, ..Access::default() };
            volume.session(Credentials { uid: 1000, ..Credentials::default() }, access).unwrap()
        };
        let (root, stranger) = (Ino::ROOT, Ino(999));
        let mut full = session(true, 0);
        assert_eq!(full.tmpfile(&CX, root, 0, OpenFlags::READ), Err(Errno::EMFILE));
        assert_eq!(full.open(&CX, stranger, OpenFlags::READ), Err(Errno::EMFILE));
        assert_eq!(full.opendir(&CX, root), Err(Errno::EMFILE));
        let mut looking = session(true, 1);
        assert_eq!(looking.link(&CX, stranger, root, name), Err(Errno::ESTALE));
        assert_eq!(looking.open(&CX, stranger, OpenFlags::WRITE), Err(Errno::ESTALE));
        assert_eq!(looking.mkdir(&CX, stranger, name, 0), Err(Errno::EROFS));
        assert_eq!(looking.setattr(&CX, root, None, &SetAttr::default()), Err(Errno::EROFS));
        assert_eq!(looking.tmpfile(&CX, root, 0, OpenFlags::READ), Err(Errno::EROFS));
        assert_eq!(looking.create(&CX, root, name, 0, OpenFlags::READ), Err(Errno::EROFS));
        assert_eq!(looking.write(&CX, root, Handle(1), 0, b""), Err(Errno::EBADF));
        assert!(looking.getattr(&CX, root).is_ok());
        // The directory belongs to another, who lets nobody write.
        let mut user = session(false, 1);
        assert_eq!(user.mkdir(&CX, root, name, 0), Err(Errno::EACCES));
        assert_eq!(user.tmpfile(&CX, root, 0, OpenFlags::READ), Err(Errno::EACCES));
        assert!(user.opendir(&CX, root).is_ok());
        assert_eq!(user.opendir(&CX, root), Err(Errno::EMFILE));
    }
}
