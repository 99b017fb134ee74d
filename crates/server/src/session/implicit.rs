//! Implicit opens: files that a kernel uses without having opened them.
//!
//! The kernel of a mount that is a volume's only client opens and closes by itself: it has looked
//! at the permissions, and asks for the content of an inode with handle 0, which is nobody's
//! otherwise. The session then opens the inode, once, for all that the kernel has open of it, until
//! the kernel forgets the inode or has used many others since. Closing it takes nothing from
//! anybody: the session opens the inode again when it is asked for. What has no name any more is
//! [held](crate::session::removed).

use atoll_vfs::{Context, FileSystem, Handle, Ino, OpenFlags, Result};

use crate::open::handles::Open;
use crate::session::Session;

/// The rights of an implicit open: the kernel looks at those of each descriptor.
pub(crate) const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

impl<F: FileSystem + Send> Session<F> {
    /// From now on handle 0 stands for whatever is open of an inode. For a client that has checked
    /// the permissions, of a volume that nobody else changes.
    pub fn open_implicitly(&mut self) {
        self.own.implicit.get_or_insert_default();
        self.hold_removed();
    }

    /// Whether the client's opens are implicit.
    pub fn opens_implicitly(&self) -> bool {
        self.own.implicit.is_some()
    }

    /// What the client means by `handle` of `ino`, a file or else a directory.
    ///
    /// # Errors
    /// `EBADF`; those of opening it.
    #[inline]
    pub(crate) fn meant(&mut self, ino: Ino, handle: Handle, file: bool) -> Result<Open> {
        let inner = self.own.inodes.inner(ino)?;
        let handle = match &self.own.implicit {
            Some(implicit) if handle == Handle(0) => match implicit.handle(inner) {
                Some(handle) => handle,
                None => match self.own.held.get(&inner) {
                    Some(open) => return open.of_kind(file),
                    None => self.open_for_client(ino, file)?,
                },
            },
            _ => handle,
        };
        self.own.handles.of_kind(inner, handle, file)
    }

    fn open_for_client(&mut self, ino: Ino, file: bool) -> Result<Handle> {
        let cx = self.for_client();
        let flags = if self.own.access.read_only { OpenFlags::READ } else { BOTH };
        let handle = if file { self.open(&cx, ino, flags)? } else { self.opendir(&cx, ino)? };
        self.keep_open(self.own.inodes.inner(ino)?, handle, file);
        Ok(handle)
    }

    /// The client, whose opens are implicit, has made `ino` without a name and opened it by
    /// `handle`.
    pub(crate) fn made(&mut self, ino: Ino, handle: Handle) {
        if let Ok(ino) = self.own.inodes.inner(ino)
            && let Ok(open) = self.own.handles.remove(ino, handle, true)
        {
            self.own.held.insert(ino, open);
        }
    }

    fn keep_open(&mut self, ino: Ino, handle: Handle, file: bool) {
        let implicit = self.own.implicit.as_mut();
        if let Some((ino, handle, file)) = implicit.and_then(|all| all.keep(ino, handle, file)) {
            self.close_for_client(ino, handle, file);
        }
    }

    /// Closes what is open of `ino`, the volume's number, which the client has forgotten.
    pub(crate) fn close_implicitly(&mut self, ino: Ino) {
        let implicit = self.own.implicit.as_mut();
        if let Some((handle, file)) = implicit.and_then(|all| all.remove(ino)) {
            self.close_for_client(ino, handle, file);
        }
    }

    fn close_for_client(&mut self, ino: Ino, handle: Handle, file: bool) {
        let (cx, ino) = (self.for_client(), self.own.inodes.outer(ino));
        // Nothing more can be done, whatever it says.
        let _ =
            if file { self.release(&cx, ino, handle) } else { self.releasedir(&cx, ino, handle) };
    }

    fn for_client(&self) -> Context {
        Context { uid: 0, gid: 0, now: self.volume.host.now() }
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
            let mode = atoll_vfs::FileType::Regular.mode_bits() | 0o600;
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
        assert!(kernel.holds_any());
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
        assert!(!kernel.holds_any());
    }
}
