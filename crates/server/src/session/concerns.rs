//! The concerns of each verb, which its session checks before it does anything: a line for each.
//!
//! The right to use an inode or a handle at all is checked for each that a verb names (`open`); its
//! caller's rights on files, apart from the directory that the verb works in, depend on what it
//! finds there and are checked in the verb itself.

use atoll_posix::AccessMode;

/// The parts of a verb that its session may refuse.
#[derive(Clone, Copy)]
pub(crate) struct Concerns {
    /// It changes something: `EROFS` for a session that may only look.
    pub changes: bool,
    /// It opens one more file: `EMFILE` beyond the session's limit.
    pub opens: bool,
    /// It works in a directory, which has to allow its caller this: `EACCES`.
    pub rights: AccessMode,
}

/// The rights on a directory that making a name needs.
pub(crate) const MAKING: AccessMode = AccessMode::WRITE.union(AccessMode::EXECUTE);

const SEARCH: AccessMode = AccessMode::EXECUTE;
const NONE: AccessMode = AccessMode::empty();

const fn verb(changes: bool, opens: bool, rights: AccessMode) -> Concerns {
    Concerns { changes, opens, rights }
}

//                                        changes opens  rights
pub(crate) const LOOKUP: Concerns = verb(false, false, SEARCH);
/// Looks at one inode or open file: getattr, read, seek, readlink, readdir, getxattr, syncs and so
/// on.
pub(crate) const LOOK: Concerns = verb(false, false, NONE);
/// Changes one inode or open file: setattr, write, copy_file_range, fallocate,
/// setxattr, removexattr.
pub(crate) const CHANGE: Concerns = verb(true, false, NONE);
/// mknod, mkdir, symlink.
pub(crate) const MAKE: Concerns = verb(true, false, SEARCH);
/// unlink, rmdir.
pub(crate) const REMOVE: Concerns = verb(true, false, SEARCH);
pub(crate) const RENAME: Concerns = verb(true, false, SEARCH);
pub(crate) const LINK: Concerns = verb(true, false, SEARCH);
/// Opening to write or to cut is a change too.
pub(crate) const OPEN: Concerns = verb(false, true, NONE);
/// Making the name, writing and cutting are changes too.
pub(crate) const CREATE: Concerns = verb(false, true, SEARCH);
pub(crate) const TMPFILE: Concerns = verb(true, true, MAKING);
pub(crate) const OPENDIR: Concerns = verb(false, true, AccessMode::READ);
