//! What each verb asks of its session before it does anything: a line for each.
//!
//! Who may use an inode or a handle at all is asked for each that a verb names (`open`); what its
//! caller may do with files, apart from the directory that the verb works in, depends on what it
//! finds there and stands in the verb itself.

use atoll_posix::AccessMode;

/// What a verb is about.
#[derive(Clone, Copy)]
pub(crate) struct Concerns {
    /// Something: `EROFS` for a session that may only look.
    pub changes: bool,
    /// Names: `EPERM` for a session that may not change any.
    pub names: bool,
    /// An open file more: `EMFILE` beyond the session's limit.
    pub opens: bool,
    /// Working in a directory, which has to allow its caller this: `EACCES`.
    pub rights: AccessMode,
}

/// The bits of directories that make new names.
pub(crate) const MAKING: AccessMode = AccessMode::WRITE.union(AccessMode::EXECUTE);

const SEARCH: AccessMode = AccessMode::EXECUTE;
const NONE: AccessMode = AccessMode::empty();

const fn verb(changes: bool, names: bool, opens: bool, rights: AccessMode) -> Concerns {
    Concerns { changes, names, opens, rights }
}

//                                        changes names  opens  rights
pub(crate) const LOOKUP: Concerns = verb(false, false, false, SEARCH);
/// Looks at one inode or open file: getattr, read, seek, readlink, readdir, getxattr, syncs and so
/// on.
pub(crate) const LOOK: Concerns = verb(false, false, false, NONE);
/// Changes one inode or open file: setattr, write, fallocate, setxattr, removexattr.
pub(crate) const CHANGE: Concerns = verb(true, false, false, NONE);
/// mknod, mkdir, symlink.
pub(crate) const MAKE: Concerns = verb(true, true, false, SEARCH);
/// unlink, rmdir.
pub(crate) const REMOVE: Concerns = verb(true, true, false, SEARCH);
pub(crate) const RENAME: Concerns = verb(true, true, false, SEARCH);
pub(crate) const LINK: Concerns = verb(true, true, false, SEARCH);
/// To write or cut it is a change too.
pub(crate) const OPEN: Concerns = verb(false, false, true, NONE);
/// To make the name, to write and to cut are changes too.
pub(crate) const CREATE: Concerns = verb(false, false, true, SEARCH);
pub(crate) const TMPFILE: Concerns = verb(true, false, true, MAKING);
pub(crate) const OPENDIR: Concerns = verb(false, false, true, AccessMode::READ);
