//! Notifications to the kernel of a mount: what it is to forget, and how long a file has become.

use std::os::fd::OwnedFd;

use atoll_vfs::wire::Fixed;
use atoll_vfs::wire::header::OutHeader;

use crate::server::caches::Told;
use crate::server::gate::{Grown, Notice};

// Numbers of linux/fuse.h.
const FUSE_NOTIFY_INVAL_INODE: i32 = 2;
const FUSE_NOTIFY_STORE: i32 = 4;

/// Has the kernel forget what `notice` says. Blocks while pages that it is to forget are being read
/// or written back.
pub(super) fn tell(device: &OwnedFd, notice: Notice) -> Told {
    if let Some(grown) = notice.grown {
        return tell_grown(device, notice.ino, grown);
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

/// Has the kernel learn that a file is longer: it takes a byte that it is given as a part of the file.
fn tell_grown(device: &OwnedFd, ino: u64, grown: Grown) -> Told {
    const BODY: usize = OutHeader::SIZE;
    let mut message = [0; BODY + 24 + 1];
    let len = message.len() as u32;
    OutHeader { len, error: FUSE_NOTIFY_STORE, unique: 0 }.store(&mut message);
    // One byte, and padding.
    let fields = [ino.to_ne_bytes(), (grown.size - 1).to_ne_bytes()];
    message[BODY..BODY + 16].copy_from_slice(fields.as_flattened());
    message[BODY + 16..BODY + 20].copy_from_slice(&1u32.to_ne_bytes());
    message[BODY + 24] = grown.last;
    notify(device, &message)
}

fn notify(device: &OwnedFd, message: &[u8]) -> Told {
    match nix::unistd::write(device, message) {
        Err(nix::errno::Errno::ENOENT) => Told::Unknown,
        Ok(_) | Err(nix::errno::Errno::ENODEV) => Told::Done,
        Err(error) => {
            log::warn!("a mount does not take notifications: {error}");
            Told::Done
        }
    }
}
