//! The errors below the file seam, and the one place where they become an [`Errno`].

use core::fmt;

use atoll_block::BlockError;
use atoll_vfs::Errno;

/// How an image differs from docs/FORMAT.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Corruption {
    /// Neither superblock carries the magic number: this is no Atoll volume.
    NotAVolume,
    /// The superblock's checksum or a field of it is wrong.
    Superblock,
    /// The volume was made by a version that this one does not know, or uses unknown features.
    Version,
    /// The volume is of version 1, which was never released.
    EarlierVersion,
    /// The device has fewer blocks than the volume.
    Truncated,
    /// No journal header is valid.
    JournalHeader,
    /// A journal record with a valid checksum does not parse.
    JournalRecord,
    /// Journal records are damaged in front of others that were committed.
    JournalCut,
    /// A metadata block's checksum, magic number or own index is wrong.
    Checksum,
    /// A tree node is malformed.
    Node,
    /// A map block is malformed.
    Map,
    /// An item of the tree is malformed or missing.
    Item,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Corruption::NotAVolume => "not an Atoll volume",
            Corruption::Superblock => "the superblock is damaged",
            Corruption::Version => "the volume's version or features are not known",
            Corruption::EarlierVersion => {
                "the volume was made by an earlier, unreleased format (version 1)"
            }
            Corruption::Truncated => "the volume is larger than its device",
            Corruption::JournalHeader => "all journal headers are damaged",
            Corruption::JournalRecord => "a journal record is malformed",
            Corruption::JournalCut => "journal records are damaged that were committed",
            Corruption::Checksum => "a metadata block fails its checksum",
            Corruption::Node => "a tree node is malformed",
            Corruption::Map => "a map block is malformed",
            Corruption::Item => "a tree item is malformed or missing",
        })
    }
}

/// Why an operation of the file system failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FsError {
    /// The device failed.
    Device(BlockError),
    /// The image is damaged.
    Corrupt(Corruption),
    /// No free block, though a commit may return some.
    Full,
    /// The device has too few blocks for a volume, or the options are impossible.
    Unsuitable,
    /// The volume has features that this version may only read.
    ReadOnlyFeatures,
    /// A quota leaves no room.
    Quota,
    /// The operation itself is refused.
    Refused(Errno),
}

/// The result of this crate's functions.
pub type Result<T> = core::result::Result<T, FsError>;

impl From<BlockError> for FsError {
    fn from(error: BlockError) -> Self {
        FsError::Device(error)
    }
}

impl From<Corruption> for FsError {
    fn from(what: Corruption) -> Self {
        FsError::Corrupt(what)
    }
}

impl From<Errno> for FsError {
    fn from(errno: Errno) -> Self {
        FsError::Refused(errno)
    }
}

impl From<FsError> for Errno {
    fn from(error: FsError) -> Self {
        match error {
            FsError::Device(BlockError::NoSpace) | FsError::Full => Errno::ENOSPC,
            FsError::Device(BlockError::ReadOnly) | FsError::ReadOnlyFeatures => Errno::EROFS,
            FsError::Device(_) => Errno::EIO,
            FsError::Quota => Errno::EDQUOT,
            FsError::Corrupt(_) => Errno::EUCLEAN,
            FsError::Unsuitable => Errno::EINVAL,
            FsError::Refused(errno) => errno,
        }
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FsError::Device(e) => e.fmt(f),
            FsError::Corrupt(c) => c.fmt(f),
            FsError::Full => f.write_str("no space left on the volume"),
            FsError::Quota => Errno::EDQUOT.fmt(f),
            FsError::Unsuitable => f.write_str("the device or the options do not suit a volume"),
            FsError::ReadOnlyFeatures => f.write_str(
                "the volume has features that this version can only read: mount it read-only",
            ),
            FsError::Refused(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for FsError {}
