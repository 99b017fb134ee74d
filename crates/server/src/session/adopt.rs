//! Using files that other sessions have open, which only a carrier of requests knows to ask for.

use atoll_vfs::{Errno, FileSystem, Handle, Ino, OpenFlags, Result};

use crate::open::handles::Open;
use crate::open::tokens::{Token, Tokens};
use crate::session::Session;

impl<F: FileSystem + Send> Session<F> {
    /// The token of an open file, by which another session can [`adopt`](Self::adopt) it. To be
    /// told to a program that has a descriptor of it, and to nobody else.
    ///
    /// # Errors
    /// `EBADF`, also for a handle that was adopted.
    pub fn token(&mut self, ino: Ino, handle: Handle) -> Result<Token> {
        let open = self.file(ino, handle)?;
        let (token, origin) =
            self.volume.lock()?.tokens.lend(&*self.volume.host, &open, self.own.inodes.top())?;
        self.own.handles.set_origin(handle, origin);
        Ok(token)
    }

    /// Makes another session's open file one of this session's too: a handle with the same rights,
    /// which is `EBADF` from the moment that the original is closed. It counts as an open file
    /// until it is released. A session that may only look cannot write to it either (`EROFS`); one
    /// with a subtree adopts only from sessions with the same.
    ///
    /// # Errors
    /// `EBADF` for a token that is none, has ended or comes from outside of the subtree; `EMFILE`.
    pub fn adopt(&mut self, token: Token) -> Result<(Ino, Handle)> {
        self.adopt_by(|tokens, top| tokens.adopt(token, top))
    }

    /// The same for a file of inode `ino` that a session of the same owner has open with these
    /// rights, READ and WRITE, if `Access::adopts_offered`.
    ///
    /// # Errors
    /// `EBADF` when there is none or this session may not; `EMFILE`.
    pub fn adopt_open(&mut self, ino: Ino, rights: OpenFlags) -> Result<(Ino, Handle)> {
        if !self.own.access.adopts_offered {
            return Err(Errno::EBADF);
        }
        let ino = self.own.inodes.inner(ino)?;
        self.adopt_by(|tokens, top| tokens.adopt_offered(ino, rights, top))
    }

    fn adopt_by(
        &mut self,
        find: impl FnOnce(&Tokens, Ino) -> Result<Open>,
    ) -> Result<(Ino, Handle)> {
        self.own.check_room()?;
        let open = {
            let mut guard = self.volume.lock()?;
            let state = &mut *guard;
            let open = find(&state.tokens, self.own.inodes.top())?;
            self.own.inodes.adopt(open.ino, state.moves)?;
            self.own.drop_forgotten(&mut state.fs, &mut state.views);
            state.begin_reading(self.own.view, &open);
            open
        };
        Ok((self.own.inodes.outer(open.ino), self.own.handles.insert(open)))
    }
}

#[cfg(test)]
mod tests {
    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{Context, Name, Timespec};

    use super::*;
    use crate::{Access, Credentials};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
    const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

    #[test]
    fn what_an_owners_mount_has_open_its_programs_adopt() {
        let volume = crate::testing::volume();
        let session = |adopts_offered| {
            let access = Access { adopts_offered, ..Access::default() };
            volume.session(Credentials::default(), access).unwrap()
        };
        let (mut mount, mut own, mut other) = (session(true), session(true), session(false));
        let read = |who: &mut Session<ModelFs>, ino, handle| {
            let mut bytes = [0; 4];
            who.read(&CX, ino, handle, 0, &mut bytes).map(|len| bytes[..len].to_vec())
        };
        let name = Name::new(b"f").unwrap();
        // A file that was opened before the offer is not offered.
        let (attr, before) = mount.create(&CX, Ino::ROOT, name, 0o600, RW).unwrap();
        assert_eq!(own.adopt_open(attr.ino, RW), Err(Errno::EBADF));
        mount.offer();
        let looking = mount.open(&CX, attr.ino, OpenFlags::READ).unwrap();
        let (_, writing) = mount.create(&CX, Ino::ROOT, name, 0o600, OpenFlags::WRITE).unwrap();
        assert_eq!(own.adopt_open(attr.ino, RW), Err(Errno::EBADF));
        assert_eq!(other.adopt_open(attr.ino, OpenFlags::READ), Err(Errno::EBADF));
        assert_eq!(own.adopt_open(Ino(999), OpenFlags::READ), Err(Errno::EBADF));
        let (ino, write) = own.adopt_open(attr.ino, OpenFlags::WRITE).unwrap();
        own.write(&CX, ino, write, 0, b"text").unwrap();
        assert_eq!(read(&mut own, ino, write), Err(Errno::EBADF));
        let (_, look) = own.adopt_open(ino, OpenFlags::READ).unwrap();
        assert_eq!(read(&mut own, ino, look).unwrap(), b"text");
        assert_eq!(own.write(&CX, ino, look, 0, b"x").map(drop), Err(Errno::EBADF));
        // The adopted handle goes with its original, which alone keeps the file.
        mount.unlink(&CX, Ino::ROOT, name).unwrap();
        for handle in [before, writing, looking] {
            assert_eq!(read(&mut own, ino, look).unwrap(), b"text");
            mount.release(&CX, ino, handle).unwrap();
        }
        assert_eq!(read(&mut own, ino, look), Err(Errno::EBADF));
        assert_eq!(own.adopt_open(ino, OpenFlags::READ), Err(Errno::EBADF));
        assert_eq!(mount.getattr(&CX, ino), Err(Errno::ESTALE));
        own.release(&CX, ino, look).unwrap();
    }
}
