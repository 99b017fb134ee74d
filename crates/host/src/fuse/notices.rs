//! Notifications to the kernel of a mount: what it is to forget, and how long a file has become.

use std::os::fd::OwnedFd;

use atoll_vfs::wire::Fixed;
use atoll_vfs::wire::header::OutHeader;
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

// Numbers of linux/fuse.h.
const FUSE_NOTIFY_INVAL_INODE: i32 = 2;
const FUSE_NOTIFY_STORE: i32 = 4;

/// Has the kernel forget what `notice` says. Blocks while pages that it is to forget are being read
/// or written back.
pub(super) fn tell(device: &OwnedFd, notice: Notice) -> Told {
    if let Some((size, last)) = notice.grown {
        return tell_size(device, notice.ino, size, last);
    }
    // The attributes go in any case.
    let (offset, len): (i64, i64) = if notice.pages { (0, 0) } else { (-1, 0) };
    let mut message = [0; OutHeader::SIZE + 24];
    let header = OutHeader { len: message.len() as u32, error: FUSE_NOTIFY_INVAL_INODE, unique: 0 };
    header.store(&mut message);
    let fields = [notice.ino.to_ne_bytes(), offset.to_ne_bytes(), len.to_ne_bytes()];
    message[OutHeader::SIZE..].copy_from_slice(fields.as_flattened());
    notify(device, &message)
}

/// Has the kernel know that a file is of `size` bytes and not fewer, by storing the last one.
fn tell_size(device: &OwnedFd, ino: u64, size: u64, last: u8) -> Told {
    let mut message = [0; OutHeader::SIZE + 25];
    let header = OutHeader { len: message.len() as u32, error: FUSE_NOTIFY_STORE, unique: 0 };
    header.store(&mut message);
    // One byte, and padding.
    let fields = [ino.to_ne_bytes(), (size - 1).to_ne_bytes()];
    message[OutHeader::SIZE..][..16].copy_from_slice(fields.as_flattened());
    message[OutHeader::SIZE + 16..][..4].copy_from_slice(&1u32.to_ne_bytes());
    message[OutHeader::SIZE + 24] = last;
    notify(device, &message)
}

fn notify(device: &OwnedFd, message: &[u8]) -> Told {
    match rustix::io::write(device, message) {
        Err(Errno::NOENT) => Told::Unknown,
        Ok(_) | Err(Errno::NODEV) => Told::Done,
        Err(error) => {
            log::warn!("a mount does not take notifications: {error}");
            Told::Done
        }
    }
}
