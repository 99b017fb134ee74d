//! A client of two sessions, as a program with the interposer is: the one opens files, the other
//! adopts them and does everything else, with cached reads.

use std::collections::HashMap;
use std::sync::Arc;

use atoll_host::shm::MappedView;
use atoll_server::{Access, Credentials, Session, Volume};
use atoll_vfs::*;

use crate::linear::clients::to_inner;

/// The second session of an [`Adopting`] client.
pub type Adopter<F> = Cached<Session<F>, Arc<MappedView>>;

/// A [`FileSystem`] whose every open file was adopted. When one is closed, the original and the
/// adopted handle go in turns first.
pub struct Adopting<F: FileSystem + Send> {
    lender: Session<F>,
    adopter: Adopter<F>,
    /// The original of each adopted handle.
    originals: HashMap<Handle, Handle>,
    closed: u32,
}

impl<F: FileSystem + Send> Adopting<F> {
    /// A client of `volume` with a View of at most `bytes`.
    ///
    /// # Panics
    /// When there is no memory for the View.
    pub fn new(volume: &Arc<Volume<F>>, peer: &Credentials, bytes: usize) -> Self {
        let session = || volume.session(peer.clone(), Access::default()).expect("a session");
        let mut second = session();
        let memory =
            atoll_host::server::open_view(&mut second, bytes).expect("memory").expect("a View");
        let view = MappedView::attach(memory, || true).expect("a View");
        let adopter = Cached::new(second, view, Arc::default());
        Adopting { lender: session(), adopter, originals: HashMap::new(), closed: 0 }
    }

    fn inner(&mut self) -> &mut Adopter<F> {
        &mut self.adopter
    }

    fn adopt(&mut self, ino: Ino, original: Handle, flags: OpenFlags) -> Result<Handle> {
        let token = self.lender.token(ino, original)?;
        let (named, handle) = self.adopter.inner().adopt(token)?;
        assert_eq!(named, ino);
        if flags.contains(OpenFlags::READ) {
            self.adopter.answers().opened(ino, handle);
        }
        self.originals.insert(handle, original);
        Ok(handle)
    }
}

impl<F: FileSystem + Send> FileSystem for Adopting<F> {
    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let original = self.lender.open(cx, ino, flags)?;
        self.adopt(ino, original, flags)
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let (attr, original) = self.lender.create(cx, parent, name, mode, flags)?;
        Ok((attr, self.adopt(attr.ino, original, flags)?))
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let (attr, original) = self.lender.tmpfile(cx, parent, mode, flags)?;
        Ok((attr, self.adopt(attr.ino, original, flags)?))
    }

    fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        let &original = self.originals.get(&handle).ok_or(Errno::EBADF)?;
        self.closed += 1;
        if self.closed.is_multiple_of(2) {
            self.lender.release(cx, ino, original)?;
            // The View may still have the page, but this handle must not get it.
            let through = self.adopter.inner().read(cx, ino, handle, 0, &mut [0]);
            assert_eq!(through, Err(Errno::EBADF));
            self.adopter.release(cx, ino, handle)?;
        } else {
            self.adopter.release(cx, ino, handle)?;
            self.lender.release(cx, ino, original)?;
        }
        self.originals.remove(&handle);
        Ok(())
    }

    atoll_vfs::verbs!(to_inner: lookup getattr setattr readlink mknod mkdir symlink unlink rmdir
        rename link read write copy_file_range fallocate seek fsync opendir readdir releasedir fsyncdir syncfs statfs
        setxattr getxattr listxattr removexattr);
}
