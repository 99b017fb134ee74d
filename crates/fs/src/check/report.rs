//! The findings of a check, in types and in words.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use atoll_vfs::FileType;

use crate::key::{Key, Kind, XATTR_PIECES};
use crate::project::Usage;
use crate::report::MountNote;

/// How many findings a report lists; more are counted.
pub const FINDINGS_MAX: usize = 1000;

/// The key of an item of the tree, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemKey {
    /// The inode number that the item is filed under.
    pub ino: u64,
    /// Its kind, as on disk.
    pub kind: u8,
    /// Its offset.
    pub offset: u64,
}

impl ItemKey {
    /// The kind in words.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            1 => "inode",
            2 => "directory entry",
            3 => "extent",
            4 => "extended attribute",
            5 => "link target",
            6 => "orphan",
            7 => "project",
            _ => "unknown",
        }
    }
}

impl From<Key> for ItemKey {
    fn from(key: Key) -> ItemKey {
        ItemKey { ino: key.ino, kind: (key.item >> 56) as u8, offset: key.offset() }
    }
}

impl fmt::Display for ItemKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} item {} of inode {}", self.kind_name(), self.offset, self.ino)
    }
}

/// A fault of a tree node, which puts everything below it out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeFault {
    /// The pointer leads out of the group area or to a map block.
    Place,
    /// The device does not give the block.
    Unreadable,
    /// Checksum, magic number or own index are wrong.
    Checksum,
    /// The level is not one less than the parent's.
    Level,
    /// The cells are malformed, or keys are not unique.
    Cells,
    /// Another node has led here already.
    Shared,
    /// Separators lie outside the range that the parent gives.
    Range,
    /// A leaf below the root holds nothing.
    Empty,
}

/// A fault of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ItemFault {
    /// It lies outside the range of its leaf, where no search finds it.
    Misplaced,
    /// Its kind is not known, or has no place under its inode number.
    Kind,
    /// Its value is malformed.
    Value,
    /// The inode that it belongs to has no record.
    NoInode,
    /// An inode of this type has no such items.
    Type,
    /// Its key is not that of its name's hash.
    Hash,
    /// Its name is not allowed.
    Name,
    /// Its name is there already.
    Duplicate,
    /// Its directory was removed.
    Removed,
    /// It overlaps the extent before it in the file.
    Overlap,
    /// A piece of the value is missing, or one too many.
    Pieces,
}

/// A counter of the volume's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Counter {
    /// Free blocks.
    FreeBlocks,
    /// Inodes.
    Inodes,
    /// The next inode's number.
    NextInode,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// A superblock (the `copy` at the end of the volume or the first) is damaged or differs.
    Superblock {
        /// Which one.
        copy: bool,
    },
    /// All journal headers are damaged: the root of the tree is not known.
    JournalHeaders,
    /// The device does not give the journal header in this block; another counts.
    JournalHeader {
        /// Where it is.
        block: u64,
    },
    /// The numbers in the journal's header are too great for the journal to go on from.
    JournalNumbers,
    /// Committed journal records are damaged: those after them are there, but of no use.
    JournalCut {
        /// The sequence number of the first.
        sequence: u64,
    },
    /// A block in use is damaged, and the journal would change it.
    JournalBlock {
        /// Which.
        block: u64,
    },
    /// A journal record whose checksum is right is malformed.
    JournalRecord {
        /// Its sequence number.
        sequence: u64,
    },
    /// A node can't be used.
    Node {
        /// Its block.
        block: u64,
        /// The level that it should have.
        level: u32,
        /// Why.
        fault: NodeFault,
    },
    /// An item can't be used.
    Item {
        /// Its key.
        key: ItemKey,
        /// Why.
        fault: ItemFault,
    },
    /// Blocks of a file that also belong to a node or another file.
    SharedBlocks {
        /// The file.
        ino: u64,
        /// The extent's first block on the device.
        start: u64,
        /// The extent's length.
        len: u64,
        /// How many of its blocks belong to others.
        shared: u64,
    },
    /// The root directory is missing.
    NoRoot,
    /// A directory entry names an inode that does not exist, or that was removed.
    Dangling {
        /// The directory.
        dir: u64,
        /// The name.
        name: Box<[u8]>,
        /// The inode.
        ino: u64,
    },
    /// A directory entry gives a type that is not the inode's.
    EntryType {
        /// The directory.
        dir: u64,
        /// The name.
        name: Box<[u8]>,
        /// The inode.
        ino: u64,
        /// The inode's type.
        is: FileType,
    },
    /// A directory has a second name, or the root has one.
    DirectoryNamed {
        /// The directory that holds the surplus name.
        dir: u64,
        /// The name.
        name: Box<[u8]>,
        /// The directory with the surplus name.
        ino: u64,
    },
    /// A directory lies within itself.
    Cycle {
        /// The directory.
        ino: u64,
    },
    /// No name leads to an inode.
    Unreachable {
        /// The inode.
        ino: u64,
        /// Its type.
        file_type: FileType,
    },
    /// An inode has another number of names than it says.
    Links {
        /// The inode.
        ino: u64,
        /// The recorded number.
        stored: u32,
        /// The right number, by count.
        counted: u32,
    },
    /// A directory names another parent than the one that holds it.
    Parent {
        /// The directory.
        ino: u64,
        /// The recorded number.
        stored: u64,
        /// The directory that holds it.
        parent: u64,
    },
    /// An inode has another number of blocks than it says.
    Blocks {
        /// The inode.
        ino: u64,
        /// The recorded number.
        stored: u64,
        /// The right number, by count.
        counted: u64,
    },
    /// An inode belongs to a project that is not there.
    NoProject {
        /// The inode.
        ino: u64,
        /// The number of the project.
        project: u32,
    },
    /// The inodes of a project take more or less than it says.
    Usage {
        /// The number of the project.
        project: u32,
        /// As recorded.
        stored: Usage,
        /// As it is, by count.
        counted: Usage,
    },
    /// An entry of the list of removals names an inode that is not to be removed.
    Orphan {
        /// The inode.
        ino: u64,
    },
    /// The map blocks of a group can't be used.
    Map {
        /// The group.
        group: u64,
    },
    /// One of the two map blocks of a group is damaged, or older than the other.
    MapCopy {
        /// The group.
        group: u64,
        /// The second of the two, not the first.
        copy: bool,
    },
    /// The summary in a group can't be used, or calls groups full that are not.
    Summary {
        /// The group that has it.
        group: u64,
    },
    /// As [`MapCopy`](Self::MapCopy), of the two blocks of a summary.
    SummaryCopy {
        /// The group that has it.
        group: u64,
        /// The second of the two, not the first.
        copy: bool,
    },
    /// Blocks are marked as in use that nothing refers to.
    Leaked {
        /// The first.
        start: u64,
        /// How many.
        len: u64,
    },
    /// Blocks are marked as free that are in use.
    Unmarked {
        /// The first.
        start: u64,
        /// How many.
        len: u64,
    },
    /// A counter is wrong.
    Counter {
        /// Which.
        counter: Counter,
        /// The recorded number.
        stored: u64,
        /// The right number, by count; for the next inode number, the least that is right.
        counted: u64,
    },
}

impl Finding {
    /// Whether putting it right takes another tree.
    pub(crate) fn is_in_tree(&self) -> bool {
        !matches!(
            self,
            Finding::Superblock { .. }
                | Finding::JournalNumbers
                | Finding::JournalCut { .. }
                | Finding::JournalBlock { .. }
                | Finding::JournalRecord { .. }
                | Finding::Map { .. }
                | Finding::MapCopy { .. }
                | Finding::Summary { .. }
                | Finding::SummaryCopy { .. }
                | Finding::Leaked { .. }
                | Finding::Unmarked { .. }
                | Finding::Counter { .. }
        )
    }
}

/// The name of a type, for people.
pub(crate) fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::CharDevice => "character device",
        FileType::BlockDevice => "block device",
    }
}

/// A name with unprintable characters escaped.
pub(crate) fn printable(name: &[u8]) -> String {
    String::from_utf8_lossy(name).escape_debug().collect()
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Superblock { copy: false } => f.write_str("the superblock is damaged"),
            Finding::Superblock { copy: true } => {
                f.write_str("the copy of the superblock is damaged or differs")
            }
            Finding::JournalHeader { block } => {
                write!(f, "the journal header in block {block} cannot be read")
            }
            Finding::JournalHeaders => f.write_str(
                "all journal headers are damaged, and with them the way to the root of the tree",
            ),
            Finding::JournalNumbers => {
                f.write_str("the numbers in the journal's header are near their end")
            }
            Finding::JournalCut { sequence } => {
                write!(
                    f,
                    "journal record {sequence} is damaged, and was committed: it is lost, and what \
                     follows it"
                )
            }
            Finding::JournalBlock { block } => {
                write!(f, "block {block} is damaged; what the journal has for it is of no use")
            }
            Finding::JournalRecord { sequence } => {
                write!(f, "journal record {sequence} is malformed; what follows it is lost")
            }
            Finding::Node { block, level, fault } => {
                write!(f, "the tree node of level {level} in block {block} ")?;
                f.write_str(match fault {
                    NodeFault::Place => "is not where nodes can be",
                    NodeFault::Unreadable => "can't be read from the device",
                    NodeFault::Checksum => "fails its checksum",
                    NodeFault::Level => "has another level",
                    NodeFault::Cells => "is malformed",
                    NodeFault::Shared => "is in the tree twice",
                    NodeFault::Range => "has keys beyond its range",
                    NodeFault::Empty => "is empty",
                })
            }
            Finding::Item { key, fault } => {
                write!(f, "{key} ")?;
                f.write_str(match fault {
                    ItemFault::Misplaced => "is in the wrong leaf",
                    ItemFault::Kind => "is of a kind that has no place there",
                    ItemFault::Value => "is malformed",
                    ItemFault::NoInode => "belongs to no inode",
                    ItemFault::Type => "does not suit the inode's type",
                    ItemFault::Hash => "is not where its name belongs",
                    ItemFault::Name => "has a name that is not allowed",
                    ItemFault::Duplicate => "has a name that is there already",
                    ItemFault::Removed => "is in a removed directory",
                    ItemFault::Overlap => "overlaps the one before it",
                    ItemFault::Pieces => "has missing or surplus pieces",
                })
            }
            Finding::SharedBlocks { ino, start, len, shared } => write!(
                f,
                "{shared} of the {len} blocks from {start} that inode {ino} uses belong to others"
            ),
            Finding::NoRoot => f.write_str("the root directory is missing"),
            Finding::Dangling { dir, name, ino } => write!(
                f,
                "\"{}\" in directory {dir} names inode {ino}, which does not exist",
                printable(name)
            ),
            Finding::EntryType { dir, name, ino, is } => write!(
                f,
                "\"{}\" in directory {dir} gives a wrong type for inode {ino}, a {}",
                printable(name),
                type_name(*is)
            ),
            Finding::DirectoryNamed { dir, name, ino } => write!(
                f,
                "\"{}\" in directory {dir} is one name too many for directory {ino}",
                printable(name)
            ),
            Finding::Cycle { ino } => write!(f, "directory {ino} lies within itself"),
            Finding::Unreachable { ino, file_type } => {
                write!(f, "no name leads to inode {ino}, a {}", type_name(*file_type))
            }
            Finding::Links { ino, stored, counted } => {
                write!(f, "inode {ino} says it has {stored} links, but has {counted}")
            }
            Finding::Parent { ino, stored, parent } => {
                write!(f, "directory {ino} says its parent is {stored}, but it is in {parent}")
            }
            Finding::Blocks { ino, stored, counted } => {
                write!(f, "inode {ino} says it has {stored} blocks, but has {counted}")
            }
            Finding::NoProject { ino, project } => {
                write!(f, "inode {ino} belongs to project {project}, which does not exist")
            }
            Finding::Usage { project, stored, counted } => write!(
                f,
                "project {project} says it has {} bytes and {} inodes, but has {} and {}",
                stored.bytes, stored.inodes, counted.bytes, counted.inodes
            ),
            Finding::Orphan { ino } => {
                write!(f, "inode {ino} is listed for removal, but is not to be removed")
            }
            Finding::Map { group } => write!(f, "the map of group {group} is damaged"),
            Finding::MapCopy { group, copy } => {
                let which = if *copy { "second" } else { "first" };
                write!(f, "the {which} map block of group {group} is damaged, the other is not")
            }
            Finding::SummaryCopy { group, copy } => {
                let which = if *copy { "second" } else { "first" };
                write!(f, "the {which} summary in group {group} is damaged, the other is not")
            }
            Finding::Summary { group } => {
                write!(
                    f,
                    "the summary in group {group}, which says what groups are full, is damaged"
                )
            }
            Finding::Leaked { start, len } => {
                write!(f, "{len} blocks from {start} are marked in use, but nothing uses them")
            }
            Finding::Unmarked { start, len } => {
                write!(f, "{len} blocks from {start} are in use, but marked free")
            }
            Finding::Counter { counter, stored, counted } => match counter {
                Counter::FreeBlocks => {
                    write!(f, "the volume says {stored} blocks are free, but {counted} are")
                }
                Counter::Inodes => {
                    write!(f, "the volume says it has {stored} inodes, but has {counted}")
                }
                Counter::NextInode => write!(
                    f,
                    "the next inode would get number {stored}, but must not be below {counted}"
                ),
            },
        }
    }
}

/// The findings of a check, and the changes that a repair made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The findings, the first [`FINDINGS_MAX`] of them.
    pub findings: Vec<Finding>,
    /// Findings beyond those.
    pub more_findings: u64,
    /// Findings that are no errors, as a mount notes them: traces of a crash that the next mount
    /// mends; and places where something was lost earlier, or may have been.
    pub notes: Vec<MountNote>,
    /// Journal records that a mount would replay.
    pub journal_records: u64,
    /// Whether the volume was unmounted cleanly.
    pub clean_unmount: bool,
    /// Whether the device had failed while the volume was mounted last.
    pub failed: bool,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks that hold file data.
    pub data_blocks: u64,
    /// Blocks that hold tree nodes.
    pub node_blocks: u64,
    /// Levels of the tree.
    pub tree_height: u32,
    /// Blocks that nothing uses.
    pub free_blocks: u64,
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Pipes, sockets and devices.
    pub others: u64,
    /// Inodes that the next mount removes.
    pub orphans: u64,
    /// Directory entries.
    pub names: u64,
    /// Extents.
    pub extents: u64,
    /// Extended attributes.
    pub attributes: u64,
    /// The volume was repaired; a check now finds nothing.
    pub repaired: bool,
    /// Repair wrote the tree anew.
    pub tree_rebuilt: bool,
    /// Items that were found again below damaged nodes.
    pub items_salvaged: u64,
    /// Items that were given up: entries, extents, attributes, inode records.
    pub items_lost: u64,
    /// Blocks of file data that were taken from a file because a node or another file uses them.
    pub blocks_lost: u64,
    /// Inodes that were given a name under /lost+found.
    pub inodes_reconnected: u64,
    /// Putting it right takes another tree.
    pub(crate) tree_is_wrong: bool,
}

impl Report {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// How many findings there are, those that are not listed included.
    pub fn count(&self) -> u64 {
        self.findings.len() as u64 + self.more_findings
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        self.tree_is_wrong |= finding.is_in_tree();
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.more_findings += 1;
        }
    }

    pub(crate) fn count_type(&mut self, file_type: FileType) {
        *match file_type {
            FileType::Regular => &mut self.files,
            FileType::Directory => &mut self.directories,
            FileType::Symlink => &mut self.symlinks,
            _ => &mut self.others,
        } += 1;
    }

    pub(crate) fn count_item(&mut self, key: Key) {
        match key.kind() {
            Some(Kind::Dirent) => self.names += 1,
            Some(Kind::Extent) => self.extents += 1,
            Some(Kind::Xattr) if key.offset().is_multiple_of(XATTR_PIECES) => {
                self.attributes += 1;
            }
            _ => {}
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        if self.more_findings > 0 {
            writeln!(f, "and {} more", self.more_findings)?;
        }
        for note in &self.notes {
            let what_then = if note.is_mended() { "; the next mount writes it anew" } else { "" };
            writeln!(f, "{note}{what_then}")?;
        }
        if self.repaired {
            writeln!(
                f,
                "repaired: {} items found again, {} lost, {} blocks of data lost, \
                 {} files moved to /lost+found",
                self.items_salvaged, self.items_lost, self.blocks_lost, self.inodes_reconnected
            )?;
        }
        write!(
            f,
            "{} files, {} directories, {} symbolic links, {} others; {} of {} blocks free",
            self.files, self.directories, self.symlinks, self.others, self.free_blocks, self.blocks
        )
    }
}
