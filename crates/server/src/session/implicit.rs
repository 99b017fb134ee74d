//! Implicit opens: files that a kernel uses without having opened them.
//!
//! The kernel of a mount that is a volume's only client opens and closes by itself: it has looked
//! at the permissions, and asks for the content of an inode with handle 0, which is nobody's
//! otherwise. The session then opens the inode, once, for all that the kernel has open of it, until
//! the kernel forgets the inode or has used many others since. Closing it takes nothing from
//! anybody: the session opens the inode again when it is asked for.
//!
//! Only the session's handle keeps what has no name any more. Nobody says whether the kernel has it
//! open, so that what the kernel knows is opened before its last name goes, and closed when the
//! kernel forgets it. The kernel may be given an inode again while it forgets it: how often it was
//! given each is counted.

use atoll_vfs::{Attr, Context, FileSystem, FileType, Handle, Ino, OpenFlags, Rest, Result};

use crate::open::handles::Open;
use crate::session::Session;
use crate::session::call::Call;

/// The rights of an implicit open: the kernel looks at those of each descriptor.
const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

impl<F: FileSystem + Send> Session<F> {
    /// From now on handle 0 stands for whatever is open of an inode. For a client that has checked
    /// the permissions, of a volume that nobody else changes.
    pub fn open_implicitly(&mut self) {
        self.own.implicit.get_or_insert_default();
    }

    /// Whether the client's opens are implicit.
    pub fn opens_implicitly(&self) -> bool {
        self.own.implicit.is_some()
    }

    /// Whether the client keeps what has no name any more, which it may have forgotten without its
    /// having been read yet.
    pub(crate) fn keeps_removed(&self) -> bool {
        self.own.implicit.as_ref().is_some_and(|implicit| implicit.has_removed())
    }

    /// The call that was made is made again when nothing is left to be freed any more.
    pub(crate) fn waits_for_removals(&self) {
        if let Some(ino) = self.volume.removals.any() {
            self.left.set(Some(Rest::Until(ino)));
        }
    }

    /// The handle that the client means by `handle` of `ino`, a file or else a directory.
    #[inline]
    pub(crate) fn meant(&mut self, ino: Ino, handle: Handle, file: bool) -> Result<Handle> {
        match &self.own.implicit {
            Some(implicit) if handle == Handle(0) => match implicit.handle(ino) {
                Some(handle) => Ok(handle),
                None => self.open_for_client(ino, file),
            },
            _ => Ok(handle),
        }
    }

    fn open_for_client(&mut self, ino: Ino, file: bool) -> Result<Handle> {
        let cx = self.for_client();
        let flags = if self.own.access.read_only { OpenFlags::READ } else { BOTH };
        let handle = if file { self.open(&cx, ino, flags)? } else { self.opendir(&cx, ino)? };
        self.keep_open(ino, handle, file);
        Ok(handle)
    }

    /// The client has made `ino` without a name and opened it by `handle`.
    pub(crate) fn made(&mut self, ino: Ino, handle: Handle) {
        if let Some(implicit) = &mut self.own.implicit {
            implicit.keep_removed(ino, handle, true);
        }
    }

    fn keep_open(&mut self, ino: Ino, handle: Handle, file: bool) {
        let closed =
            self.own.implicit.as_mut().and_then(|implicit| implicit.keep(ino, handle, file));
        if let Some((ino, handle, file)) = closed {
            self.close_for_client(ino, handle, file);
        }
    }

    /// The client forgets `ino`, which it was given so many times.
    pub(crate) fn forgets(&mut self, ino: Ino, count: u64) {
        let closed = self.own.implicit.as_mut().and_then(|implicit| implicit.forgets(ino, count));
        if let Some((handle, file)) = closed {
            self.close_for_client(ino, handle, file);
        }
    }

    fn close_for_client(&mut self, ino: Ino, handle: Handle, file: bool) {
        let cx = self.for_client();
        // Nothing more can be done, whatever it says.
        let _ =
            if file { self.release(&cx, ino, handle) } else { self.releasedir(&cx, ino, handle) };
    }

    fn for_client(&self) -> Context {
        Context { uid: 0, gid: 0, now: self.volume.host.now() }
    }
}

impl<F: FileSystem> Call<'_, F> {
    /// The name by which `victim` was found goes: if it is the last one of something that the
    /// client's kernel knows, and opens implicitly, that is kept.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn keep_removed(&mut self, victim: &Attr) -> Result<()> {
        let Call { state, cx, own, .. } = self;
        let Some(implicit) = &mut own.implicit else { return Ok(()) };
        let file = !victim.is_dir();
        let last = !file || victim.nlink == 1;
        if !last || !implicit.knows(victim.ino) || implicit.is_removed(victim.ino) {
            return Ok(());
        }
        let (handle, flags) = match victim.file_type() {
            FileType::Directory => (state.fs.opendir(cx, victim.ino)?, None),
            FileType::Regular => (state.fs.open(cx, victim.ino, BOTH)?, Some(BOTH)),
            // Nothing is read of the others but what the kernel has.
            _ => return Ok(()),
        };
        let handle = own.opened(Open { ino: victim.ino, handle, flags });
        if let Some(implicit) = &mut own.implicit {
            implicit.keep_removed(victim.ino, handle, file);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{Errno, Name};

    use super::*;
    use crate::leases::caches::Lends;
    use crate::open::implicit::NAMED_MAX;
    use crate::testing::Noted;
    use crate::{Access, Credentials};

    const CX: Context = Context { uid: 0, gid: 0, now: atoll_vfs::Timespec { sec: 0, nsec: 0 } };
    const NONE: Handle = Handle(0);

    #[test]
    fn handle_0_stands_for_what_is_asked_for() {
        let volume = crate::testing::volume();
        let session = || volume.session(Credentials::default(), Access::default()).unwrap();
        let mut maker = session();
        let inos: Vec<Ino> = (0..3 * NAMED_MAX)
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
        kernel.open_implicitly();
        for _ in 0..2 {
            for (i, &ino) in inos.iter().enumerate() {
                assert_eq!(read(&mut kernel, ino, NONE), Ok((1, i as u8)));
                assert!(kernel.own.handles.len() <= NAMED_MAX);
            }
        }
        let mut listed = 0;
        let mut count = |_: &atoll_vfs::DirEntry<'_>| {
            listed += 1;
            true
        };
        kernel.readdir(&CX, Ino::ROOT, NONE, 0, &mut count).unwrap();
        assert!(listed >= inos.len());
        assert_eq!(read(&mut kernel, Ino::ROOT, NONE), Err(Errno::EBADF));
        assert_eq!(read(&mut kernel, Ino(999), NONE), Err(Errno::ESTALE));

        kernel.lookup(&CX, Ino::ROOT, Name::new(b"f0").unwrap()).unwrap();
        read(&mut kernel, inos[0], NONE).unwrap();
        let open = kernel.own.handles.len();
        kernel.forget(inos[0], 1);
        assert_eq!(kernel.own.handles.len(), open - 1);
        assert_eq!(read(&mut kernel, inos[0], NONE), Ok((1, 0)));
    }

    /// What has no name lives as long as the kernel knows it, and no longer.
    #[test]
    fn what_the_kernel_knows_outlives_its_name() {
        let volume = crate::testing::volume();
        let mut kernel = volume.session(Credentials::default(), Access::default()).unwrap();
        kernel.begin_cache(Lends::All, Arc::new(Noted::default())).unwrap();
        kernel.open_implicitly();
        let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let made = |kernel: &mut Session<ModelFs>, text| {
            let mode = FileType::Regular.mode_bits() | 0o600;
            // A name that is there already is used again.
            let made = kernel.mknod(&CX, Ino::ROOT, name(text), mode, 0);
            let attr = made.or_else(|_| kernel.lookup(&CX, Ino::ROOT, name(text))).unwrap();
            kernel.write(&CX, attr.ino, NONE, 0, b"x").unwrap();
            attr.ino
        };
        let is_there = |kernel: &mut Session<ModelFs>, ino| {
            let mut byte = [0; 8];
            let read = kernel.read(&CX, ino, NONE, 0, &mut byte);
            assert_eq!(read.is_ok(), kernel.getattr(&CX, ino).is_ok());
            read == Ok(1)
        };
        // It was given twice, by MKNOD and by LOOKUP.
        let unlinked = made(&mut kernel, "unlinked");
        kernel.lookup(&CX, Ino::ROOT, name("unlinked")).unwrap();
        kernel.unlink(&CX, Ino::ROOT, name("unlinked")).unwrap();
        let replaced = made(&mut kernel, "replaced");
        let new = made(&mut kernel, "new");
        let flags = atoll_vfs::RenameFlags::empty();
        kernel.rename(&CX, Ino::ROOT, name("new"), Ino::ROOT, name("replaced"), flags).unwrap();
        let linked = made(&mut kernel, "linked");
        kernel.link(&CX, linked, Ino::ROOT, name("again")).unwrap();
        kernel.unlink(&CX, Ino::ROOT, name("linked")).unwrap();
        kernel.unlink(&CX, Ino::ROOT, name("again")).unwrap();
        let dir = kernel.mkdir(&CX, Ino::ROOT, name("dir"), 0o700).unwrap().ino;
        kernel.rmdir(&CX, Ino::ROOT, name("dir")).unwrap();
        let (attr, handle) = kernel.tmpfile(&CX, Ino::ROOT, 0o600, both).unwrap();
        kernel.made(attr.ino, handle);
        // Those with a name are closed for these, the others are not.
        for i in 0..3 * NAMED_MAX {
            made(&mut kernel, ["a", "b", "c", "d", "e"][i % 5]);
        }
        assert!(kernel.keeps_removed());
        for ino in [unlinked, replaced, linked] {
            assert!(is_there(&mut kernel, ino));
            assert_eq!(kernel.lookup(&CX, ino, name(".")), Err(Errno::ESTALE));
            kernel.forget(ino, 1);
        }
        assert!(is_there(&mut kernel, unlinked) && is_there(&mut kernel, linked));
        assert!(!is_there(&mut kernel, replaced) && is_there(&mut kernel, new));
        kernel.getattr(&CX, dir).unwrap();
        kernel.readdir(&CX, dir, NONE, 0, &mut |_| true).unwrap();
        for ino in [unlinked, linked, dir, attr.ino] {
            kernel.forget(ino, 1);
            assert_eq!(kernel.getattr(&CX, ino), Err(Errno::ESTALE));
        }
        assert!(!kernel.keeps_removed());
    }
}
