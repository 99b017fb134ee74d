//! Mappings of files into a window of memory that a virtual machine shares with its host. They are
//! the device's own, which has the window: elsewhere they are answered with ENOSYS.

use super::fixed::{Fixed, constants, fixed};

fixed! {
    /// The arguments of SETUPMAPPING.
    SetupmappingIn = "fuse_setupmapping_in" 40 {
        fh: u64,
        foffset: u64,
        len: u64,
        flags: u64,
        moffset: u64,
    }
    /// The arguments of REMOVEMAPPING; `count` [`RemovemappingOne`]s follow.
    RemovemappingIn = "fuse_removemapping_in" 4 {
        count: u32,
    }
    /// One range of the window.
    RemovemappingOne = "fuse_removemapping_one" 16 {
        moffset: u64,
        len: u64,
    }
}

constants! { u64:
    FUSE_SETUPMAPPING_FLAG_WRITE = 1 << 0, "Of SETUPMAPPING: to be written.";
    FUSE_SETUPMAPPING_FLAG_READ = 1 << 1, "Of SETUPMAPPING: to be read.";
}

/// The ranges of a REMOVEMAPPING.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmapped<'a>(&'a [u8]);

impl<'a> Unmapped<'a> {
    /// The [`RemovemappingOne`]s in `bytes`, or `None` if they are not a whole number of them.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.len().is_multiple_of(RemovemappingOne::SIZE).then_some(Unmapped(bytes))
    }

    /// Their bytes.
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// How many they are.
    pub const fn count(self) -> usize {
        self.0.len() / RemovemappingOne::SIZE
    }

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = RemovemappingOne> + 'a {
        self.0.chunks_exact(RemovemappingOne::SIZE).map(RemovemappingOne::load)
    }
}
