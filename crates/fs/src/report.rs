//! The notes of a mount: damage that it mended, or had to leave out.

use core::fmt;

/// One thing about a volume that its operator should know, although the volume can be used.
///
/// A mount for reading works around it; one for writing also mends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountNote {
    /// A superblock was damaged; the other was used, and is written over it.
    Superblock {
        /// The copy at the end of the volume, not the first.
        copy: bool,
    },
    /// A journal header was damaged; another was used, and is written over it.
    JournalHeader {
        /// Its block.
        block: u64,
    },
    /// One of the two map blocks of a group was damaged or old; the other was used, and is written
    /// over it.
    Map {
        /// The group.
        group: u64,
        /// The second of the two, not the first.
        copy: bool,
    },
    /// The journal ends before commit marks that are there: power was lost before they were
    /// durable, or the missing records are damaged. The records that the marks covered are lost.
    Journal,
    /// A file that was to be removed, or made shorter, is damaged and was left as it is.
    Orphan {
        /// Its inode number.
        ino: u64,
    },
    /// As [`Map`](Self::Map), of the two blocks that say which groups are full.
    Summary {
        /// The group that has them.
        group: u64,
        /// The second of the two, not the first.
        copy: bool,
    },
    /// A write or flush had failed while the volume was mounted last: no operation after the last
    /// commit counts.
    Failed,
}

impl MountNote {
    /// Whether the next mount that may write mends it.
    pub(crate) fn is_mended(&self) -> bool {
        !matches!(self, MountNote::Journal | MountNote::Failed | MountNote::Orphan { .. })
    }
}

/// A listener to which the volume tells each note when it comes.
///
/// The operation that made the finding calls it; no other operation runs before it returns.
pub trait Listener: fmt::Debug + Sync {
    /// Takes note.
    fn tell(&self, note: &MountNote);
}

impl fmt::Display for MountNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountNote::Superblock { copy: false } => {
                f.write_str("the superblock was damaged; its copy was used")
            }
            MountNote::Superblock { copy: true } => {
                f.write_str("the copy of the superblock was damaged; the first was used")
            }
            MountNote::JournalHeader { block } => {
                write!(f, "the journal header in block {block} was damaged; its copy was used")
            }
            MountNote::Map { group, copy } => {
                let which = if *copy { "second" } else { "first" };
                write!(f, "the {which} map block of group {group} was damaged; the other was used")
            }
            MountNote::Journal => f.write_str(
                "the last sync before power was lost had not ended, or the journal is damaged; \
                 what that sync covered is not there",
            ),
            MountNote::Orphan { ino } => {
                write!(f, "inode {ino} could not be removed, and was left: check the volume")
            }
            MountNote::Summary { group, copy } => {
                let which = if *copy { "second" } else { "first" };
                write!(f, "the {which} summary in group {group} was damaged; the other was used")
            }
            MountNote::Failed => f.write_str(
                "the device had failed when the volume was mounted last; \
                 only what was synced before is there",
            ),
        }
    }
}
