//! Notifications to the kernel of a mount: what it is to forget, and how long a file has become.

use std::os::fd::OwnedFd;

use atoll_vfs::wire::Fixed;
use atoll_vfs::wire::header::OutHeader;
use atoll_vfs::wire::notices::{
    FUSE_NOTIFY_INVAL_INODE, FUSE_NOTIFY_STORE, NotifyInvalInodeOut, NotifyStoreOut,
};
use rustix::io::Errno;

use atoll_server::leases::gate::Notice;

/// The kernel's answer to a [`Notice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It has forgotten.
    Done,
    /// It does not know such an inode.
    Unknown,
}

/// The longest notification, in bytes.
const MAX: usize = 64;

/// Has the kernel forget what `notice` says. Blocks while pages that it is to forget are being read
/// or written back.
pub(super) fn tell(device: &OwnedFd, notice: Notice) -> Told {
    if let Some((size, last)) = notice.grown {
        // That a file is of `size` bytes and not fewer, by storing the last one.
        let body = NotifyStoreOut { nodeid: notice.ino, offset: size - 1, size: 1, padding: 0 };
        return notify(device, FUSE_NOTIFY_STORE, &body, &[last]);
    }
    // The attributes go in any case, and the pages unless the offset is negative.
    let off = if notice.pages { 0 } else { u64::MAX };
    let body = NotifyInvalInodeOut { ino: notice.ino, off, len: 0 };
    notify(device, FUSE_NOTIFY_INVAL_INODE, &body, &[])
}

fn notify<B: Fixed>(device: &OwnedFd, code: u32, body: &B, rest: &[u8]) -> Told {
    let mut message = [0; MAX];
    let at = OutHeader::SIZE + B::SIZE;
    let len = at + rest.len();
    OutHeader { len: len as u32, error: code as i32, unique: 0 }.store(&mut message);
    body.store(&mut message[OutHeader::SIZE..]);
    message[at..len].copy_from_slice(rest);
    match rustix::io::write(device, &message[..len]) {
        Err(Errno::NOENT) => Told::Unknown,
        Ok(_) | Err(Errno::NODEV) => Told::Done,
        Err(error) => {
            log::warn!("a mount does not take notifications: {error}");
            Told::Done
        }
    }
}
