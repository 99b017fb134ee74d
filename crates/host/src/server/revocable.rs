//! A session that can be taken away from whoever serves it.
//!
//! The thread that answers a FUSE mount sleeps in the kernel until a program asks for something. When
//! the client goes, its files are to be closed at once, not at the next request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_vfs::{
    Attr, Context, DirEntry, Errno, FallocateMode, FileSystem, Handle, Ino, Name, OpenFlags,
    RenameFlags, Result, SeekTo, SetAttr, StatFs, Written, XattrFlags,
};

enum Place<S> {
    /// Not begun yet.
    Empty,
    Live(S),
    /// Ended, for ever.
    Revoked,
}

/// A place for one session, which several hold: one serves it, one may end it. While there is
/// none, calls fail with `EIO`.
pub struct Revocable<S>(Arc<Mutex<Place<S>>>);

impl<S> Clone for Revocable<S> {
    fn clone(&self) -> Self {
        Revocable(Arc::clone(&self.0))
    }
}

impl<S> Default for Revocable<S> {
    fn default() -> Self {
        Revocable(Arc::new(Mutex::new(Place::Empty)))
    }
}

impl<S> Revocable<S> {
    fn place(&self) -> MutexGuard<'_, Place<S>> {
        // A session that panicked is dropped like any other.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the session in, unless its place has been revoked meanwhile: then it is dropped and false
    /// returned.
    pub fn begin(&self, session: S) -> bool {
        let mut place = self.place();
        let empty = matches!(*place, Place::Empty);
        if empty {
            *place = Place::Live(session);
        }
        empty
    }

    /// Ends the session, after the call that it is in.
    pub fn revoke(&self) {
        let session = std::mem::replace(&mut *self.place(), Place::Revoked);
        drop(session);
    }
}

macro_rules! forward {
    ($(fn $name:ident(&mut self, $($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(
            fn $name(&mut self, $($arg: $type),*) -> Result<$out> {
                match &mut *self.place() {
                    Place::Live(session) => session.$name($($arg),*),
                    Place::Empty | Place::Revoked => Err(Errno::EIO),
                }
            }
        )*
    };
}

type Emit<'a> = &'a mut dyn FnMut(&DirEntry<'_>) -> bool;

impl<S: FileSystem> FileSystem for Revocable<S> {
    fn forget(&mut self, ino: Ino, count: u64) {
        if let Place::Live(session) = &mut *self.place() {
            session.forget(ino, count);
        }
    }

    forward! {
        fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Attr;
        fn getattr(&mut self, cx: &Context, ino: Ino) -> Attr;
        fn setattr(&mut self, cx: &Context, ino: Ino, handle: Option<Handle>, set: &SetAttr) -> Attr;
        fn readlink(&mut self, cx: &Context, ino: Ino, target: &mut Vec<u8>) -> ();
        fn mknod(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32, rdev: u32) -> Attr;
        fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Attr;
        fn symlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>, target: &[u8]) -> Attr;
        fn unlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> ();
        fn rmdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> ();
        fn rename(&mut self, cx: &Context, from: Ino, name: Name<'_>, to: Ino, new_name: Name<'_>, flags: RenameFlags) -> ();
        fn link(&mut self, cx: &Context, ino: Ino, parent: Ino, name: Name<'_>) -> Attr;
        fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Handle;
        fn create(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32, flags: OpenFlags) -> (Attr, Handle);
        fn tmpfile(&mut self, cx: &Context, parent: Ino, mode: u32, flags: OpenFlags) -> (Attr, Handle);
        fn read(&mut self, cx: &Context, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> usize;
        fn write(&mut self, cx: &Context, ino: Ino, handle: Handle, offset: u64, data: &[u8]) -> Written;
        fn fallocate(&mut self, cx: &Context, ino: Ino, handle: Handle, offset: u64, len: u64, mode: FallocateMode) -> ();
        fn seek(&mut self, cx: &Context, ino: Ino, handle: Handle, offset: u64, to: SeekTo) -> u64;
        fn fsync(&mut self, cx: &Context, ino: Ino, handle: Handle, data_only: bool) -> ();
        fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> ();
        fn opendir(&mut self, cx: &Context, ino: Ino) -> Handle;
        fn readdir(&mut self, cx: &Context, ino: Ino, handle: Handle, cookie: u64, emit: Emit<'_>) -> ();
        fn releasedir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> ();
        fn fsyncdir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> ();
        fn syncfs(&mut self, cx: &Context) -> ();
        fn statfs(&mut self, cx: &Context) -> StatFs;
        fn setxattr(&mut self, cx: &Context, ino: Ino, name: &[u8], value: &[u8], flags: XattrFlags) -> ();
        fn getxattr(&mut self, cx: &Context, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> ();
        fn listxattr(&mut self, cx: &Context, ino: Ino, names: &mut Vec<u8>) -> ();
        fn removexattr(&mut self, cx: &Context, ino: Ino, name: &[u8]) -> ();
    }
}
