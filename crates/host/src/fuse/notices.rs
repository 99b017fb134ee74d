//! Notifications to the kernel of a mount: what it is to forget, and how long a file has become.

use std::os::fd::OwnedFd;

use atoll_vfs::wire::Fixed;
use atoll_vfs::wire::header::OutHeader;
use atoll_vfs::wire::notices::{
    FUSE_NOTIFY_INVAL_ENTRY, FUSE_NOTIFY_INVAL_INODE, FUSE_NOTIFY_STORE, NotifyInvalEntryOut,
    NotifyInvalInodeOut, NotifyStoreOut,
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

/// The longest notification, in bytes: about a name, which a zero ends.
pub(crate) const MAX: usize = OutHeader::SIZE + NotifyInvalEntryOut::SIZE + 255 + 1;

/// Has the kernel forget what `notice` says. Blocks while pages that it is to forget are being read
/// or written back.
pub(super) fn tell(device: &OwnedFd, notice: &Notice) -> Told {
    match rustix::io::write(device, &message(notice)) {
        Err(Errno::NOENT) => Told::Unknown,
        Ok(_) | Err(Errno::NODEV) => Told::Done,
        Err(error) => {
            log::warn!("a mount does not take notifications: {error}");
            Told::Done
        }
    }
}

/// The message that says `notice`.
pub(crate) fn message(notice: &Notice) -> Vec<u8> {
    if let Some(name) = &notice.name {
        let (parent, namelen) = (notice.ino, name.len() as u32);
        let body = NotifyInvalEntryOut { parent, namelen, flags: 0 };
        return notification(FUSE_NOTIFY_INVAL_ENTRY, &body, &[name, &[0]]);
    }
    if let Some((size, last)) = notice.grown {
        // That a file is of `size` bytes and not fewer, by storing the last one.
        let body = NotifyStoreOut { nodeid: notice.ino, offset: size - 1, size: 1, padding: 0 };
        return notification(FUSE_NOTIFY_STORE, &body, &[&[last]]);
    }
    // The attributes go in any case, and the pages unless the offset is negative.
    let off = if notice.pages { 0 } else { u64::MAX };
    let body = NotifyInvalInodeOut { ino: notice.ino, off, len: 0 };
    notification(FUSE_NOTIFY_INVAL_INODE, &body, &[])
}

fn notification<B: Fixed>(code: u32, body: &B, rest: &[&[u8]]) -> Vec<u8> {
    let mut message = vec![0; OutHeader::SIZE + B::SIZE];
    body.store(&mut message[OutHeader::SIZE..]);
    rest.iter().for_each(|part| message.extend_from_slice(part));
    let len = message.len() as u32;
    OutHeader { len, error: code as i32, unique: 0 }.store(&mut message);
    message
}
