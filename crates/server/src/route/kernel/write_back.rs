//! A kernel that writes back: the one of a virtual machine that has a volume alone, or of a mount
//! that is asked for it.
//!
//! With `FUSE_WRITEBACK_CACHE` a write(2) ends in the guest's page cache. Linux then ignores what
//! answers say of the length and the times of a regular file, which it knows better. It sends pages
//! when it likes, at close(2) and at fsync(2), and its mtime after them.
//!
//! # Choices
//!
//! - **Not beside anybody.** Where others change files they have to see each write(2) that has
//!   returned. Of a directory the host's own programs may change files, whose lengths this kernel
//!   would never hear of; so it is agreed of volumes only.
//! - **Not with a window.** Linux sets no time when a program writes into one; it would show the
//!   old mtime until it forgets the inode.
//! - **What is open for writing is open for reading too**, since a kernel reads the rest of a page
//!   of which a program writes a part. A caller who may write a file and not read it gets a handle
//!   that passes the page cache by.
//! - **The kernel says where an append goes.** The end of the file here may be an old one.
//! - **The kernel says when a file was changed.** Linux sends no time for a write(2) in the tick of
//!   its clock whose time it has sent already. A WRITE that set one would have the file look newer
//!   once the guest has forgotten it.
//! - **A caller who may write a file and does not own it** sets no time but by writing. The kernel
//!   says such times as it says all, by the clock, where without write-back it asks for the
//!   present. So what comes with a new length, or with the present as time of last access (that is
//!   utimes(2) with no times), is taken for the present. What comes alone, by a handle, is the time
//!   of pages that came before: an error would be one of fsync(2).
//! - **LSEEK waits for what is kept, or is `ENOSYS`**: Linux does not write back before it asks for
//!   data and holes, so that a copy of an open file would lack what is still in its page cache. A
//!   mount's kernel is told to (INVAL_INODE), and LSEEK is served when it has. So it is where only
//!   stores into mappings are kept, as by all kernels. A guest's hears of nothing: by itself it
//!   takes the whole file for data.
//! - **So does a rename to a name that is there**, of a mount: programs replace a file by one that
//!   they have just written, and if the server died then neither would be there.

use atoll_vfs::wire::attributes::{
    FATTR_ATIME, FATTR_ATIME_NOW, FATTR_CTIME, FATTR_FH, FATTR_GID, FATTR_MODE, FATTR_MTIME,
    FATTR_MTIME_NOW, FATTR_SIZE, FATTR_UID, SetattrIn,
};
use atoll_vfs::wire::files::{SEEK_DATA, SEEK_HOLE};
use atoll_vfs::wire::session::FUSE_WRITEBACK_CACHE;
use atoll_vfs::wire::{Message, Request};
use atoll_vfs::{Context, FileSystem, Handle, Ino, Result, SeekTo, SetAttr, SetTime, Timespec};

use super::{KernelOptions, O_ACCMODE, O_RDWR, O_WRONLY, Others};
use crate::session::Session;

/// What a request sets that a kernel sends for times that it has kept, beside a handle.
const TIMES: u32 = FATTR_MTIME | FATTR_CTIME;
/// What it does not set.
const OTHERS: u32 = FATTR_MODE | FATTR_UID | FATTR_GID | FATTR_SIZE | FATTR_ATIME;

/// Whether a kernel that `offers` these features in INIT may write back.
pub(super) fn is_agreed<F: FileSystem + Send>(
    options: &KernelOptions,
    session: &Session<F>,
    offers: u64,
) -> bool {
    let KernelOptions { others, untold, window, unchanging, writes_back, .. } = *options;
    let is_alone = others == Others::None && (untold.is_some() || writes_back);
    let may_write = !unchanging && !session.access().read_only;
    let is_right = is_alone && may_write && !window && !session.volume().is_foreign();
    is_right && offers & FUSE_WRITEBACK_CACHE != 0
}

/// The file whose pages a kernel that hears of changes has to write back before it is answered what
/// it asks: what programs have stored into mappings, and all that they have written if it
/// `writes_back`. Where there is data already it changes nothing.
pub(super) fn awaits<F: FileSystem + Send>(
    session: &mut Session<F>,
    message: &Message<'_>,
    writes_back: bool,
) -> Option<Ino> {
    let ino = Ino(message.header.nodeid);
    let (new_parent, name, new_name) = match message.request.as_ref().ok()? {
        Request::Lseek(args) => {
            let cx = Context { uid: 0, gid: 0, now: session.volume().host().now() };
            let handle = Handle(args.fh);
            let mut seek = |to| session.seek(&cx, ino, handle, args.offset, to);
            let is_right = match args.whence {
                SEEK_DATA => seek(SeekTo::Data) == Ok(args.offset),
                SEEK_HOLE if writes_back => false,
                _ => {
                    let hole = seek(SeekTo::Hole);
                    let size = session.getattr(&cx, ino).map(|attr| attr.size);
                    hole.is_err() || hole == size
                }
            };
            return (!is_right).then_some(ino);
        }
        Request::Rename { args, name, new_name } if writes_back => (args.newdir, *name, *new_name),
        _ => return None,
    };
    session.replacing((ino, name), (Ino(new_parent), new_name))
}

/// Has a request be what a kernel that writes back needs.
pub(super) fn prepare<F: FileSystem + Send>(
    session: &mut Session<F>,
    message: &mut Message<'_>,
    now: Timespec,
) {
    let (header, Ok(request)) = (&message.header, &mut message.request) else { return };
    let cx = Context { uid: header.uid, gid: header.gid, now };
    let ino = Ino(header.nodeid);
    let flags = match request {
        Request::Open(args) if args.flags & O_ACCMODE == O_WRONLY => {
            session.may_read(&cx, ino).then_some(&mut args.flags)
        }
        // The caller who makes a file may do anything by this handle. That it is there already does
        // not come to pass, as nobody else makes any.
        Request::Create { args, .. } | Request::Tmpfile(args)
            if args.flags & O_ACCMODE == O_WRONLY =>
        {
            Some(&mut args.flags)
        }
        Request::Setattr(args) if args.valid & TIMES == TIMES && !session.owns(&cx, ino) => {
            if let Err(error) = written_by_another(session, &cx, ino, args) {
                message.request = Err(error);
                return;
            }
            None
        }
        _ => None,
    };
    if let Some(flags) = flags {
        *flags = *flags & !O_ACCMODE | O_RDWR;
    }
}

/// Has a request that sets times ask for no more than its caller may set, who does not own the file
/// and may write it.
///
/// # Errors
/// Those of [`Session::written_at`].
fn written_by_another<F: FileSystem + Send>(
    session: &mut Session<F>,
    cx: &Context,
    ino: Ino,
    args: &mut SetattrIn,
) -> Result<()> {
    const PRESENT: u32 = FATTR_ATIME | FATTR_ATIME_NOW;
    if args.valid & FATTR_SIZE != 0 || args.valid & PRESENT == PRESENT {
        args.valid |= FATTR_MTIME_NOW;
    } else if args.valid & FATTR_FH != 0
        && args.valid & OTHERS == 0
        && let Some((_, SetAttr { mtime: Some(SetTime::To(said)), .. })) = args.changes()
    {
        session.written_at(cx, ino, Handle(args.fh), said)?;
        args.valid &= !TIMES;
    }
    Ok(())
}
