//! Implicit opens: files that a kernel uses without having opened them.
//!
//! The kernel of a mount where nothing changes opens and closes by itself: it has looked at the
//! permissions, and asks for the content of an inode with handle 0, which is nobody's otherwise.
//! The session then opens the inode for reading, once, and its handle *stands* for all that the
//! kernel has open of it, until the kernel forgets the inode or has used many others since. Closing
//! it takes nothing from anybody: no file goes, and the session opens the inode again when it is
//! asked for.

use atoll_vfs::{Context, FileSystem, Handle, Ino, OpenFlags, Result};

use crate::session::Session;

/// The most files and directories that stand at the same time.
const STANDING_MAX: usize = if cfg!(test) { 4 } else { 16_384 };

impl<F: FileSystem + Send> Session<F> {
    /// From now on handle 0 stands for a file that may be read, or a directory. For a client that
    /// has checked the permissions, of a volume that nobody changes.
    pub fn open_nothing(&mut self) {
        self.own.standing.get_or_insert_default();
    }

    /// Whether the client's opens are implicit.
    pub fn opens_nothing(&self) -> bool {
        self.own.standing.is_some()
    }

    /// The handle that the client means by `handle` of `ino`, a file or else a directory.
    #[inline]
    pub(crate) fn meant(&mut self, ino: Ino, handle: Handle, file: bool) -> Result<Handle> {
        if handle != Handle(0) || self.own.standing.is_none() {
            return Ok(handle);
        }
        self.stand(ino, file)
    }

    fn stand(&mut self, ino: Ino, file: bool) -> Result<Handle> {
        let Some(standing) = &mut self.own.standing else { return Ok(Handle(0)) };
        if let Some(&(handle, _)) = standing.handles.get(&ino) {
            return Ok(handle);
        }
        if standing.order.len() >= STANDING_MAX
            && let Some(oldest) = standing.order.pop_front()
        {
            self.stand_down(oldest);
        }
        let cx = Context { uid: 0, gid: 0, now: self.volume.host.now() };
        let handle =
            if file { self.open(&cx, ino, OpenFlags::READ)? } else { self.opendir(&cx, ino)? };
        if let Some(standing) = &mut self.own.standing {
            standing.handles.insert(ino, (handle, file));
            standing.order.push_back(ino);
        }
        Ok(handle)
    }

    /// Closes the implicit open of `ino`, the client's number.
    pub(crate) fn stand_down(&mut self, ino: Ino) {
        let stood = self.own.standing.as_mut().and_then(|standing| standing.handles.remove(&ino));
        let Some((handle, file)) = stood else { return };
        let cx = Context { uid: 0, gid: 0, now: self.volume.host.now() };
        // Nothing more can be done, whatever it says.
        let _ =
            if file { self.release(&cx, ino, handle) } else { self.releasedir(&cx, ino, handle) };
    }
}

#[cfg(test)]
mod tests {
    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{Errno, Name};

    use super::*;
    use crate::{Access, Credentials};

    const CX: Context = Context { uid: 0, gid: 0, now: atoll_vfs::Timespec { sec: 0, nsec: 0 } };
    const NONE: Handle = Handle(0);

    #[test]
    fn handle_0_stands_for_what_is_asked_for() {
        let volume = crate::testing::volume();
        let session = || volume.session(Credentials::default(), Access::default()).unwrap();
        let mut maker = session();
        let inos: Vec<Ino> = (0..3 * STANDING_MAX)
            .map(|i| {
                let name = format!("f{i}");
                let name = Name::new(name.as_bytes()).unwrap();
                let (attr, handle) =
                    maker.create(&CX, Ino::ROOT, name, 0o600, OpenFlags::WRITE).unwrap();
                maker.write(&CX, attr.ino, handle, 0, &[i as u8]).unwrap();
                maker.release(&CX, attr.ino, handle).unwrap();
                attr.ino
            })
            .collect();

        let mut kernel = session();
        let read = |who: &mut Session<ModelFs>, ino, handle| {
            let mut byte = [0; 8];
            who.read(&CX, ino, handle, 0, &mut byte).map(|len| (len, byte[0]))
        };
        assert_eq!(read(&mut kernel, inos[0], NONE), Err(Errno::EBADF));
        assert_eq!(kernel.readdir(&CX, Ino::ROOT, NONE, 0, &mut |_| true), Err(Errno::EBADF));
        kernel.open_nothing();
        for _ in 0..2 {
            for (i, &ino) in inos.iter().enumerate() {
                assert_eq!(read(&mut kernel, ino, NONE), Ok((1, i as u8)));
                assert!(kernel.own.handles.len() <= STANDING_MAX);
            }
        }
        let mut listed = 0;
        let mut count = |_: &atoll_vfs::DirEntry<'_>| {
            listed += 1;
            true
        };
        kernel.readdir(&CX, Ino::ROOT, NONE, 0, &mut count).unwrap();
        assert!(listed >= inos.len());
        assert_eq!(kernel.write(&CX, inos[0], NONE, 0, b"x"), Err(Errno::EBADF));
        assert_eq!(read(&mut kernel, Ino::ROOT, NONE), Err(Errno::EBADF));
        assert_eq!(read(&mut kernel, Ino(999), NONE), Err(Errno::ESTALE));

        // An implicit open can be adopted until it is closed.
        let token = kernel.token(inos[0], NONE).unwrap();
        let mut adopter = session();
        let (ino, adopted) = adopter.adopt(token).unwrap();
        assert_eq!(read(&mut adopter, ino, adopted), Ok((1, 0)));
        let open = kernel.own.handles.len();
        kernel.forget(inos[0], 1);
        assert_eq!(kernel.own.handles.len(), open - 1);
        assert_eq!(read(&mut adopter, ino, adopted), Err(Errno::EBADF));
        assert_eq!(read(&mut kernel, inos[0], NONE), Ok((1, 0)));
    }
}
