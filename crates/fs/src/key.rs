//! The keys of the tree: the items of one inode lie together, in a fixed order of kinds.

use atoll_vfs::Ino;

/// The kind of an item, the top 8 bits of a key's second half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// The inode record; offset 0.
    Inode = 1,
    /// A directory entry; the offset comes from the hash of its name.
    Dirent = 2,
    /// An extent; the offset is the first file block.
    Extent = 3,
    /// A piece of an extended attribute.
    Xattr = 4,
    /// A piece of a symbolic link's target; the offset counts the pieces.
    Symlink = 5,
    /// Under inode number 0: a file without links that may still be open; the offset is its number.
    Orphan = 6,
    /// Under inode number 0: a project; the offset is its number.
    Project = 7,
}

const OFFSET_BITS: u32 = 56;
/// The largest offset of a key.
pub const OFFSET_MAX: u64 = (1 << OFFSET_BITS) - 1;

/// A key of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The inode number that the item belongs to.
    pub ino: u64,
    /// Kind and offset.
    pub item: u64,
}

impl Key {
    /// Less than every other key.
    pub const MIN: Key = Key { ino: 0, item: 0 };

    /// A key of `kind` at `offset`.
    #[inline]
    pub const fn new(ino: u64, kind: Kind, offset: u64) -> Key {
        debug_assert!(offset <= OFFSET_MAX);
        Key { ino, item: ((kind as u64) << OFFSET_BITS) | offset }
    }

    /// The key as one number, in the same order: one comparison without a branch.
    #[inline]
    pub const fn wide(self) -> u128 {
        (self.ino as u128) << 64 | self.item as u128
    }

    /// The inode record of `ino`.
    #[inline]
    pub const fn inode(ino: u64) -> Key {
        Key::new(ino, Kind::Inode, 0)
    }

    /// The mark of an unlinked file.
    pub const fn orphan(ino: Ino) -> Key {
        Key::new(0, Kind::Orphan, ino.0)
    }

    /// The item of a project.
    pub const fn project(number: u32) -> Key {
        Key::new(0, Kind::Project, number as u64)
    }

    /// The kind, if the key has a known one.
    #[inline]
    pub const fn kind(self) -> Option<Kind> {
        Some(match self.item >> OFFSET_BITS {
            1 => Kind::Inode,
            2 => Kind::Dirent,
            3 => Kind::Extent,
            4 => Kind::Xattr,
            5 => Kind::Symlink,
            6 => Kind::Orphan,
            7 => Kind::Project,
            _ => return None,
        })
    }

    /// Whether the key is of `kind` under `ino`.
    #[inline]
    pub const fn is(self, ino: u64, kind: Kind) -> bool {
        self.ino == ino && self.item >> OFFSET_BITS == kind as u64
    }

    /// The offset.
    #[inline]
    pub const fn offset(self) -> u64 {
        self.item & OFFSET_MAX
    }

    /// The key after this one.
    #[inline]
    pub const fn next(self) -> Key {
        match self.item.checked_add(1) {
            Some(item) => Key { ino: self.ino, item },
            None => Key { ino: self.ino.saturating_add(1), item: 0 },
        }
    }
}

/// How many names of a directory may share a hash. With a secret key nobody can search for such
/// names: of 2^30 names one in 300,000 shares its hash with another, and a third with the same hash
/// is not to be expected.
pub const DIRENT_TIES: u64 = 128;

/// How many attributes of an inode may share a hash.
pub const XATTR_TIES: u64 = 256;
/// How many pieces an attribute may have.
pub const XATTR_PIECES: u64 = 256;
