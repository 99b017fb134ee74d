//! Notifications: what a server says to a kernel without having been asked. Each is a reply's
//! header with `unique` 0 and the code in `error`, and one of these.

use super::fixed::{Fixed, constants, fixed};
use super::header::OutHeader;
use crate::types::{Ino, Name};

constants! { u32:
    FUSE_NOTIFY_POLL = 1, "A descriptor is ready.";
    FUSE_NOTIFY_INVAL_INODE = 2, "Forget the attributes of an inode, and pages of it.";
    FUSE_NOTIFY_INVAL_ENTRY = 3, "Forget a name.";
    FUSE_NOTIFY_STORE = 4, "Put bytes into the page cache.";
    FUSE_NOTIFY_RETRIEVE = 5, "Say what is in the page cache: by NOTIFY_REPLY.";
    FUSE_NOTIFY_DELETE = 6, "A name is gone.";
    FUSE_NOTIFY_RESEND = 7, "Send again what has no answer yet.";
    FUSE_NOTIFY_INC_EPOCH = 8, "Forget all names.";
    FUSE_NOTIFY_PRUNE = 9, "Give back inodes that nothing uses.";
}

fixed! {
    /// FUSE_NOTIFY_POLL.
    NotifyPollWakeupOut = "fuse_notify_poll_wakeup_out" 8 {
        kh: u64,
    }
    /// FUSE_NOTIFY_INVAL_INODE. A negative offset leaves the pages.
    NotifyInvalInodeOut = "fuse_notify_inval_inode_out" 24 {
        ino: u64,
        off: u64,
        len: u64,
    }
    /// FUSE_NOTIFY_INVAL_ENTRY; the name follows.
    NotifyInvalEntryOut = "fuse_notify_inval_entry_out" 16 {
        parent: u64,
        namelen: u32,
        flags: u32,
    }
    /// FUSE_NOTIFY_DELETE; the name follows.
    NotifyDeleteOut = "fuse_notify_delete_out" 24 {
        parent: u64,
        child: u64,
        namelen: u32,
        padding: u32,
    }
    /// FUSE_NOTIFY_STORE; the bytes follow.
    NotifyStoreOut = "fuse_notify_store_out" 24 {
        nodeid: u64,
        offset: u64,
        size: u32,
        padding: u32,
    }
    /// FUSE_NOTIFY_RETRIEVE.
    NotifyRetrieveOut = "fuse_notify_retrieve_out" 32 {
        notify_unique: u64,
        nodeid: u64,
        offset: u64,
        size: u32,
        padding: u32,
    }
    /// The arguments of NOTIFY_REPLY; the bytes follow.
    NotifyRetrieveIn = "fuse_notify_retrieve_in" 40 {
        dummy1: u64,
        offset: u64,
        size: u32,
        dummy2: u32,
        dummy3: u64,
        dummy4: u64,
    }
    /// FUSE_NOTIFY_PRUNE; `count` inode numbers follow.
    NotifyPruneOut = "fuse_notify_prune_out" 16 {
        count: u32,
        padding: u32,
        spare: u64,
    }
}

/// A notice that a client that keeps what it learns understands, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// The attributes of an inode have changed, and perhaps what it has in it.
    Inode {
        /// The inode.
        ino: Ino,
        /// What it has in it has changed too.
        pages: bool,
    },
    /// A name stands for something else, or nothing.
    Entry {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Name<'a>,
    },
    /// A file has become longer, as its last bytes say.
    Grown {
        /// The file.
        ino: Ino,
    },
}

impl<'a> Notice<'a> {
    /// The notice that is `message`, which begins with the header. `None` for anything else.
    pub fn get(message: &'a [u8]) -> Option<Notice<'a>> {
        let (header, body) = OutHeader::get(message)?;
        if header.unique != 0 || header.len as usize != message.len() {
            return None;
        }
        match u32::try_from(header.error).ok()? {
            FUSE_NOTIFY_INVAL_INODE => {
                let (args, _) = NotifyInvalInodeOut::get(body)?;
                Some(Notice::Inode { ino: Ino(args.ino), pages: args.off.cast_signed() >= 0 })
            }
            FUSE_NOTIFY_INVAL_ENTRY => {
                let (args, rest) = NotifyInvalEntryOut::get(body)?;
                let name = rest.strip_suffix(&[0])?;
                let is_whole = name.len() == args.namelen as usize;
                let name = Name::new(name).ok().filter(|_| is_whole)?;
                Some(Notice::Entry { parent: Ino(args.parent), name })
            }
            FUSE_NOTIFY_STORE => {
                let (args, _) = NotifyStoreOut::get(body)?;
                Some(Notice::Grown { ino: Ino(args.nodeid) })
            }
            _ => None,
        }
    }
}
