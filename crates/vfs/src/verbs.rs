//! The verbs of [`FileSystem`](crate::FileSystem) as a list, for those who hand them on.

/// Within an `impl` of [`FileSystem`](crate::FileSystem), makes verbs that all do the same:
/// `verbs!(how: all)`, or some as `verbs!(how: lookup getattr)`. `how` is a macro of the caller's,
/// which gets `self`, the verb and its arguments: `how!(self getattr (cx, ino))`.
#[macro_export]
macro_rules! verbs {
    ($body:ident: all) => { $crate::verbs! { $body:
        lookup forget is_submount getattr setattr readlink mknod mkdir symlink unlink rmdir rename link open
        create tmpfile read read_vectored accessed write write_vectored copy_file_range fallocate
        seek fsync mappable release opendir readdir readdir_names releasedir fsyncdir syncfs
        begin_sync begin_fsync end_sync checkpoint_step work_in_steps take_rest begin_free free_step
        statfs setxattr getxattr listxattr removexattr
    } };
    ($body:ident: $($verb:ident)+) => { $($crate::verbs! { @$verb $body })+ };
    (@fn $body:ident $verb:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        #[inline]
        fn $verb(&mut self, $($arg: $type),*) -> $result {
            $body!(self $verb ($($arg),*))
        }
    };
    (@lookup $body:ident) => { $crate::verbs! { @fn $body
        lookup(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>)
            -> $crate::Result<$crate::Attr> } };
    (@forget $body:ident) => { $crate::verbs! { @fn $body
        forget(ino: $crate::Ino, count: u64) -> () } };
    (@is_submount $body:ident) => { $crate::verbs! { @fn $body
        is_submount(ino: $crate::Ino) -> bool } };
    (@getattr $body:ident) => { $crate::verbs! { @fn $body
        getattr(cx: &$crate::Context, ino: $crate::Ino) -> $crate::Result<$crate::Attr> } };
    (@setattr $body:ident) => { $crate::verbs! { @fn $body
        setattr(cx: &$crate::Context, ino: $crate::Ino, handle: Option<$crate::Handle>,
            set: &$crate::SetAttr) -> $crate::Result<$crate::Attr> } };
    (@readlink $body:ident) => { $crate::verbs! { @fn $body
        readlink(cx: &$crate::Context, ino: $crate::Ino, target: &mut Vec<u8>) -> $crate::Result<()>
    } };
    (@mknod $body:ident) => { $crate::verbs! { @fn $body
        mknod(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>, mode: u32,
            rdev: u32) -> $crate::Result<$crate::Attr> } };
    (@mkdir $body:ident) => { $crate::verbs! { @fn $body
        mkdir(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>, mode: u32)
            -> $crate::Result<$crate::Attr> } };
    (@symlink $body:ident) => { $crate::verbs! { @fn $body
        symlink(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>, target: &[u8])
            -> $crate::Result<$crate::Attr> } };
    (@unlink $body:ident) => { $crate::verbs! { @fn $body
        unlink(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>)
            -> $crate::Result<()> } };
    (@rmdir $body:ident) => { $crate::verbs! { @fn $body
        rmdir(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>)
            -> $crate::Result<()> } };
    (@rename $body:ident) => { $crate::verbs! { @fn $body
        rename(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>,
            new_parent: $crate::Ino, new_name: $crate::Name<'_>, flags: $crate::RenameFlags)
            -> $crate::Result<()> } };
    (@link $body:ident) => { $crate::verbs! { @fn $body
        link(cx: &$crate::Context, ino: $crate::Ino, new_parent: $crate::Ino,
            new_name: $crate::Name<'_>) -> $crate::Result<$crate::Attr> } };
    (@open $body:ident) => { $crate::verbs! { @fn $body
        open(cx: &$crate::Context, ino: $crate::Ino, flags: $crate::OpenFlags)
            -> $crate::Result<$crate::Handle> } };
    (@create $body:ident) => { $crate::verbs! { @fn $body
        create(cx: &$crate::Context, parent: $crate::Ino, name: $crate::Name<'_>, mode: u32,
            flags: $crate::OpenFlags) -> $crate::Result<($crate::Attr, $crate::Handle)> } };
    (@tmpfile $body:ident) => { $crate::verbs! { @fn $body
        tmpfile(cx: &$crate::Context, parent: $crate::Ino, mode: u32, flags: $crate::OpenFlags)
            -> $crate::Result<($crate::Attr, $crate::Handle)> } };
    (@read $body:ident) => { $crate::verbs! { @fn $body
        read(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, offset: u64,
            buf: &mut [u8]) -> $crate::Result<usize> } };
    (@read_vectored $body:ident) => { $crate::verbs! { @fn $body
        read_vectored(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, offset: u64,
            room: &mut $crate::Room<'_>) -> $crate::Result<usize> } };
    (@accessed $body:ident) => { $crate::verbs! { @fn $body
        accessed(cx: &$crate::Context, ino: $crate::Ino) -> bool } };
    (@write $body:ident) => { $crate::verbs! { @fn $body
        write(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, offset: u64,
            data: &[u8]) -> $crate::Result<$crate::Written> } };
    (@write_vectored $body:ident) => { $crate::verbs! { @fn $body
        write_vectored(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, offset: u64,
            data: $crate::Data<'_>) -> $crate::Result<$crate::Written> } };
    (@copy_file_range $body:ident) => { $crate::verbs! { @fn $body
        copy_file_range(cx: &$crate::Context, from: $crate::FileAt, to: $crate::FileAt, len: u64)
            -> $crate::Result<u64> } };
    (@fallocate $body:ident) => { $crate::verbs! { @fn $body
        fallocate(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, offset: u64,
            len: u64, mode: $crate::FallocateMode) -> $crate::Result<()> } };
    (@seek $body:ident) => { $crate::verbs! { @fn $body
        seek(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, offset: u64,
            to: $crate::SeekTo) -> $crate::Result<u64> } };
    (@fsync $body:ident) => { $crate::verbs! { @fn $body
        fsync(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, data_only: bool)
            -> $crate::Result<()> } };
    (@mappable $body:ident) => { $crate::verbs! { @fn $body
        mappable(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, offset: u64,
            len: u64, copied: bool) -> $crate::Result<$crate::filesystem::Object> } };
    (@release $body:ident) => { $crate::verbs! { @fn $body
        release(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle)
            -> $crate::Result<()> } };
    (@opendir $body:ident) => { $crate::verbs! { @fn $body
        opendir(cx: &$crate::Context, ino: $crate::Ino) -> $crate::Result<$crate::Handle> } };
    (@readdir $body:ident) => { $crate::verbs! { @fn $body
        readdir(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, cookie: u64,
            emit: &mut dyn FnMut(&$crate::DirEntry<'_>) -> bool) -> $crate::Result<()> } };
    (@readdir_names $body:ident) => { $crate::verbs! { @fn $body
        readdir_names(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle, cookie: u64,
            emit: &mut dyn FnMut(&$crate::DirEntry<'_>) -> bool) -> $crate::Result<()> } };
    (@releasedir $body:ident) => { $crate::verbs! { @fn $body
        releasedir(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle)
            -> $crate::Result<()> } };
    (@fsyncdir $body:ident) => { $crate::verbs! { @fn $body
        fsyncdir(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle)
            -> $crate::Result<()> } };
    (@syncfs $body:ident) => { $crate::verbs! { @fn $body
        syncfs(cx: &$crate::Context) -> $crate::Result<()> } };
    (@begin_sync $body:ident) => { $crate::verbs! { @fn $body
        begin_sync(cx: &$crate::Context, data_only: bool)
            -> $crate::Result<Option<$crate::PendingSync>> } };
    (@begin_fsync $body:ident) => { $crate::verbs! { @fn $body
        begin_fsync(cx: &$crate::Context, ino: $crate::Ino, handle: $crate::Handle,
            data_only: bool) -> $crate::Result<Option<$crate::PendingSync>> } };
    (@end_sync $body:ident) => { $crate::verbs! { @fn $body
        end_sync(sync: $crate::SyncId, flushed: $crate::Result<()>)
            -> $crate::Result<Option<$crate::PendingSync>> } };
    (@checkpoint_step $body:ident) => { $crate::verbs! { @fn $body
        checkpoint_step(flushed: Option<($crate::SyncId, $crate::Result<()>)>)
            -> $crate::Result<$crate::CheckpointStep> } };
    (@work_in_steps $body:ident) => { $crate::verbs! { @fn $body
        work_in_steps(yes: bool) -> bool } };
    (@take_rest $body:ident) => { $crate::verbs! { @fn $body
        take_rest() -> Option<$crate::Rest> } };
    (@begin_free $body:ident) => { $crate::verbs! { @fn $body
        begin_free(ino: $crate::Ino) -> $crate::Result<Option<$crate::PendingSync>> } };
    (@free_step $body:ident) => { $crate::verbs! { @fn $body
        free_step(ino: $crate::Ino) -> $crate::Result<bool> } };
    (@statfs $body:ident) => { $crate::verbs! { @fn $body
        statfs(cx: &$crate::Context) -> $crate::Result<$crate::StatFs> } };
    (@setxattr $body:ident) => { $crate::verbs! { @fn $body
        setxattr(cx: &$crate::Context, ino: $crate::Ino, name: &[u8], value: &[u8],
            flags: $crate::XattrFlags) -> $crate::Result<()> } };
    (@getxattr $body:ident) => { $crate::verbs! { @fn $body
        getxattr(cx: &$crate::Context, ino: $crate::Ino, name: &[u8], value: &mut Vec<u8>)
            -> $crate::Result<()> } };
    (@listxattr $body:ident) => { $crate::verbs! { @fn $body
        listxattr(cx: &$crate::Context, ino: $crate::Ino, names: &mut Vec<u8>) -> $crate::Result<()>
    } };
    (@removexattr $body:ident) => { $crate::verbs! { @fn $body
        removexattr(cx: &$crate::Context, ino: $crate::Ino, name: &[u8]) -> $crate::Result<()> } };
}
