//! File systems that are one of several.

/// Makes an enum of file systems, each variant with one, a [`FileSystem`](crate::FileSystem) itself:
/// `filesystem_of_variants!(Enum { Variant, Variant })`.
#[macro_export]
macro_rules! filesystem_of_variants {
    ($name:ident { $($variant:ident),+ $(,)? }) => {
        $crate::filesystem_of_variants! { @calls $name [$($variant)+]
            fn lookup(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>) -> $crate::Result<$crate::Attr>;
            fn forget(ino: $crate::Ino, count: u64) -> ();
            fn getattr(cx: &$crate::Context, ino: $crate::Ino) -> $crate::Result<$crate::Attr>;
            fn setattr(cx: &$crate::Context, ino: $crate::Ino, handle: Option<$crate::Handle>, set: &$crate::SetAttr) -> $crate::Result<$crate::Attr>;
            fn readlink(cx: &$crate::Context, ino: $crate::Ino, target: &mut Vec<u8>) -> $crate::Result<()>;
            fn mknod(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>, mode: u32, rdev: u32) -> $crate::Result<$crate::Attr>;
            fn mkdir(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>, mode: u32) -> $crate::Result<$crate::Attr>;
            fn symlink(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>, target: &[u8]) -> $crate::Result<$crate::Attr>;
            fn unlink(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>) -> $crate::Result<()>;
            fn rmdir(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>) -> $crate::Result<()>;
            fn rename(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>, new_parent: $crate::Ino, new_name: $crate::Name<'_>, flags: $crate::RenameFlags) -> $crate::Result<()>;
            fn link(cx: &$crate::Context, ino: $crate::Ino, new_parent: $crate::Ino, new_name: $crate::Name<'_>) -> $crate::Result<$crate::Attr>;
            fn open(cx: &$crate::Context, ino: $crate::Ino, flags: $crate::OpenFlags) -> $crate::Result<$crate::Handle>;
            fn create(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>, mode: u32, flags: $crate::OpenFlags) -> $crate::Result<($crate::Attr, $crate::Handle)>;
            fn tmpfile(cx: &$crate::Context, parent: $crate::Ino, mode: u32, flags: $crate::OpenFlags) -> $crate::Result<($crate::Attr, $crate::Handle)>;
            fn read(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, offset: u64, buf: &mut [u8]) -> $crate::Result<usize>;
            fn accessed(cx: &$crate::Context, ino: $crate::Ino) -> bool;
            fn write(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, offset: u64, data: &[u8]) -> $crate::Result<$crate::Written>;
            fn fallocate(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, offset: u64, len: u64, mode: $crate::FallocateMode) -> $crate::Result<()>;
            fn seek(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, offset: u64, to: $crate::SeekTo) -> $crate::Result<u64>;
            fn fsync(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, data_only: bool) -> $crate::Result<()>;
            fn release(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle) -> $crate::Result<()>;
            fn opendir(cx: &$crate::Context, ino: $crate::Ino) -> $crate::Result<$crate::Handle>;
            fn readdir(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, cookie: u64, emit: &mut dyn FnMut(&$crate::DirEntry<'_>) -> bool) -> $crate::Result<()>;
            fn releasedir(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle) -> $crate::Result<()>;
            fn fsyncdir(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle) -> $crate::Result<()>;
            fn syncfs(cx: &$crate::Context) -> $crate::Result<()>;
            fn begin_sync(cx: &$crate::Context, data_only: bool) -> $crate::Result<Option<$crate::PendingSync>>;
            fn end_sync(sync: $crate::SyncId, flushed: $crate::Result<()>) -> $crate::Result<Option<$crate::PendingSync>>;
            fn checkpoint_step(flushed: Option<($crate::SyncId, $crate::Result<()>)>) -> $crate::Result<$crate::CheckpointStep>;
            fn statfs(cx: &$crate::Context) -> $crate::Result<$crate::StatFs>;
            fn setxattr(cx: &$crate::Context, ino: $crate::Ino, name: &[u8], value: &[u8], flags: $crate::XattrFlags) -> $crate::Result<()>;
            fn getxattr(cx: &$crate::Context, ino: $crate::Ino, name: &[u8], value: &mut Vec<u8>) -> $crate::Result<()>;
            fn listxattr(cx: &$crate::Context, ino: $crate::Ino, names: &mut Vec<u8>) -> $crate::Result<()>;
            fn removexattr(cx: &$crate::Context, ino: $crate::Ino, name: &[u8]) -> $crate::Result<()>;
        }
    };
    (@calls $name:ident $variants:tt $($(#[$attr:meta])* fn $call:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        impl $crate::FileSystem for $name {
            #[inline]
            fn checkpoint_due(&self) -> bool {
                $crate::filesystem_of_variants! { @match self $name $variants checkpoint_due () }
            }

            $($crate::filesystem_of_variants! { @call $name $variants fn $call($($arg: $type),*) -> $result })*
        }
    };
    (@call $name:ident [$($variant:ident)+] fn $call:ident $args:tt -> $result:ty) => {
        $crate::filesystem_of_variants! { @body $name [$($variant)+] $call $args $result }
    };
    (@body $name:ident [$($variant:ident)+] $call:ident ($($arg:ident: $type:ty),*) $result:ty) => {
        #[inline]
        fn $call(&mut self, $($arg: $type),*) -> $result {
            $crate::filesystem_of_variants! { @match self $name [$($variant)+] $call ($($arg),*) }
        }
    };
    (@match $self:ident $name:ident [$($variant:ident)+] $call:ident $args:tt) => {
        match $self {
            $($name::$variant(fs) => $crate::filesystem_of_variants! { @forward fs $call $args },)+
        }
    };
    (@forward $fs:ident $call:ident ($($arg:ident),*)) => {
        $crate::FileSystem::$call($fs, $($arg),*)
    };
}
