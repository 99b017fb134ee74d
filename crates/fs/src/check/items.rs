//! The items of the tree, one after another: which of them are sound and agree with those before
//! them.
//!
//! Check and repair send the same items through the same [`Screen`], so that they judge alike: a
//! repair writes the items that the screen hands on.

use alloc::vec::Vec;

use atoll_vfs::{FileType, NAME_MAX, Name, SYMLINK_MAX, Timespec, XATTR_LIST_MAX};

use super::report::{Finding, ItemFault};
use super::space::Usage;
use crate::dir;
use crate::error::Result;
use crate::hash::{dirent_offset, xattr_offset};
use crate::inode::{Extent, InodeRecord};
use crate::key::{DIRENT_TIES, Key, Kind, OFFSET_MAX, XATTR_PIECES, XATTR_TIES};
use crate::layout::{Superblock, node};
use crate::project::Project;
use crate::xattr;

/// An inode as its items show it; names come later.
#[derive(Clone, Debug)]
pub(crate) struct InodeInfo {
    pub ino: u64,
    pub file_type: FileType,
    /// Links, blocks and parent as the record says.
    pub stored_links: u32,
    pub stored_parent: u64,
    /// The project that it belongs to.
    pub project: u32,
    /// Blocks counted.
    pub blocks: u64,
    /// The file block after the last extent.
    pub end_block: u64,
    /// The record is missing and was made up from the other items.
    pub made_up: bool,
    /// The inode can't be kept.
    pub unusable: bool,
    /// The inode is on the list of removals and has no links.
    pub removed: bool,
    /// Names, subdirectories and the directory that holds it.
    pub names: u32,
    pub subdirectories: u32,
    pub parent: u64,
    /// For a directory: which of the names counts.
    pub name: Option<u32>,
    /// For a directory: how it is connected to the root.
    pub reach: Reach,
}

/// Whether a directory has been found to hang below the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Unknown,
    OnTheWay,
    Known,
}

/// Where the screen hands its results.
pub(crate) trait Sink {
    /// Something is wrong; the item concerned is left out.
    fn finding(&mut self, finding: Finding);
    /// An item to keep, perhaps not as it was. An inode's record comes before its other items.
    fn keep(&mut self, key: Key, value: &[u8]) -> Result<()>;
    /// An inode whose items have all been seen.
    fn inode(&mut self, info: InodeInfo);
}

/// The inode whose items are being seen.
struct Current {
    ino: u64,
    record: Option<InodeRecord>,
    listed: bool,
    made_up: bool,
    blocks: u64,
    end_block: u64,
    /// Names that share the hash base of the last entry or attribute.
    base: u64,
    ties: Vec<Vec<u8>>,
    attribute: Option<Attribute>,
    attribute_names: usize,
    /// Link target: pieces and bytes so far, and whether they are in order.
    pieces: u64,
    target: u64,
    target_is_sound: bool,
    /// The last piece was not full, so that none may follow.
    target_ended: bool,
}

/// An attribute whose pieces are being seen.
struct Attribute {
    /// The offset of its first piece.
    offset: u64,
    next: u64,
    missing: usize,
    sound: bool,
    items: Vec<(Key, Vec<u8>)>,
}

/// Judges items that come in the order of keys.
pub(crate) struct Screen {
    sb: Superblock,
    /// Blocks of nodes, and of the extents seen so far.
    pub usage: Usage,
    /// The inodes listed for removal.
    pub orphans: Vec<u64>,
    current: Current,
    /// The greatest inode number seen.
    pub last_ino: u64,
    pub blocks_lost: u64,
}

impl Current {
    fn new(ino: u64, listed: bool) -> Current {
        Current {
            ino,
            record: None,
            listed,
            made_up: false,
            blocks: 0,
            end_block: 0,
            base: u64::MAX,
            ties: Vec::new(),
            attribute: None,
            attribute_names: 0,
            pieces: 0,
            target: 0,
            target_is_sound: true,
            target_ended: false,
        }
    }

    fn is_removed(&self) -> bool {
        self.listed && self.record.is_some_and(|r| r.nlink == 0)
    }

    /// Whether `name` was seen under the same hash base; notes it.
    fn is_repeated(&mut self, base: u64, name: &[u8]) -> bool {
        if base != self.base {
            self.base = base;
            self.ties.clear();
        }
        if self.ties.iter().any(|n| n == name) {
            return true;
        }
        self.ties.push(name.to_vec());
        false
    }
}

/// The record of an inode whose own is lost.
pub(crate) fn made_up_record(file_type: FileType, now: Timespec) -> InodeRecord {
    let permissions = if file_type == FileType::Directory { 0o700 } else { 0o600 };
    InodeRecord { mode: file_type.mode_bits() | permissions, ..InodeRecord::new(now) }
}

impl Screen {
    /// Begins with the blocks of the tree in use.
    pub fn new(sb: &Superblock, usage: Usage) -> Screen {
        Screen {
            sb: sb.clone(),
            usage,
            orphans: Vec::new(),
            current: Current::new(0, false),
            last_ino: 0,
            blocks_lost: 0,
        }
    }

    fn reject<S: Sink>(sink: &mut S, key: Key, fault: ItemFault) -> Result<()> {
        sink.finding(Finding::Item { key: key.into(), fault });
        Ok(())
    }

    /// Takes the next item.
    pub fn item<S: Sink>(&mut self, key: Key, value: &[u8], sink: &mut S) -> Result<()> {
        if key.ino != self.current.ino {
            self.finish(sink)?;
            // A list entry for the root would remove everything.
            let listed = key.ino != 1 && self.orphans.binary_search(&key.ino).is_ok();
            self.current = Current::new(key.ino, listed);
        }
        let Some(kind) = key.kind().filter(|_| key.ino <= OFFSET_MAX) else {
            return Self::reject(sink, key, ItemFault::Kind);
        };
        let is_projects = kind == Kind::Project && self.sb.has_projects();
        if (key.ino == 0) != (kind == Kind::Orphan || is_projects) {
            return Self::reject(sink, key, ItemFault::Kind);
        }
        if kind != Kind::Xattr {
            self.end_attribute(sink)?;
        }
        match kind {
            Kind::Orphan => self.orphan(key, value, sink),
            Kind::Project => match Project::parse(key, value) {
                Ok(_) => sink.keep(key, value),
                Err(_) => Self::reject(sink, key, ItemFault::Value),
            },
            Kind::Inode => self.record(key, value, sink),
            _ => {
                let Some(file_type) = self.owner(kind, key, sink)? else {
                    return Ok(());
                };
                match (kind, file_type) {
                    (Kind::Dirent, FileType::Directory) => self.dirent(key, value, sink),
                    (Kind::Extent, FileType::Regular) => self.extent(key, value, sink),
                    (Kind::Symlink, FileType::Symlink) => self.symlink(key, value, sink),
                    (Kind::Xattr, _) => self.xattr(key, value, sink),
                    _ => Self::reject(sink, key, ItemFault::Type),
                }
            }
        }
    }

    /// Ends the last inode.
    pub fn finish<S: Sink>(&mut self, sink: &mut S) -> Result<()> {
        self.end_attribute(sink)?;
        let c = &self.current;
        let Some(record) = c.record else { return Ok(()) };
        let removed = c.is_removed();
        if !removed && record.blocks != c.blocks && !c.made_up {
            let (ino, stored, counted) = (c.ino, record.blocks, c.blocks);
            sink.finding(Finding::Blocks { ino, stored, counted });
        }
        let is_link = record.file_type() == FileType::Symlink;
        let target_is_sound = c.target_is_sound
            && c.target == record.size
            && (1..=SYMLINK_MAX as u64).contains(&record.size);
        let unusable = is_link && !removed && !target_is_sound;
        if unusable {
            let key = Key::new(c.ino, Kind::Symlink, 0);
            Self::reject(sink, key, ItemFault::Pieces)?;
        }
        self.last_ino = c.ino;
        sink.inode(InodeInfo {
            ino: c.ino,
            file_type: record.file_type(),
            stored_links: record.nlink,
            stored_parent: record.parent,
            project: record.project,
            blocks: c.blocks,
            end_block: c.end_block,
            made_up: c.made_up,
            unusable,
            removed,
            names: 0,
            subdirectories: 0,
            parent: 0,
            name: None,
            reach: Reach::Unknown,
        });
        Ok(())
    }

    fn orphan<S: Sink>(&mut self, key: Key, value: &[u8], sink: &mut S) -> Result<()> {
        if !value.is_empty() || key.offset() == 0 {
            return Self::reject(sink, key, ItemFault::Value);
        }
        self.orphans.push(key.offset());
        sink.keep(key, value)
    }

    fn record<S: Sink>(&mut self, key: Key, value: &[u8], sink: &mut S) -> Result<()> {
        if key.offset() != 0 {
            return Self::reject(sink, key, ItemFault::Kind);
        }
        match InodeRecord::parse(value) {
            // The root must be a directory.
            Ok(record) if key.ino != 1 || record.is_dir() => {
                self.current.record = Some(record);
                sink.keep(key, value)
            }
            _ => Self::reject(sink, key, ItemFault::Value),
        }
    }

    /// The type of the inode that an item belongs to. Where the record is missing, entries and
    /// extents tell the type.
    fn owner<S: Sink>(&mut self, kind: Kind, key: Key, sink: &mut S) -> Result<Option<FileType>> {
        if let Some(record) = self.current.record {
            return Ok(Some(record.file_type()));
        }
        Self::reject(sink, key, ItemFault::NoInode)?;
        let file_type = match kind {
            Kind::Dirent => FileType::Directory,
            Kind::Extent if key.ino != 1 => FileType::Regular,
            _ => return Ok(None),
        };
        if self.current.listed {
            return Ok(None);
        }
        let record = made_up_record(file_type, Timespec::default());
        self.current.record = Some(record);
        self.current.made_up = true;
        sink.keep(Key::inode(key.ino), &record.emit())?;
        Ok(Some(file_type))
    }

    fn dirent<S: Sink>(&mut self, key: Key, value: &[u8], sink: &mut S) -> Result<()> {
        let Ok((_, _, name)) = dir::parse(value) else {
            return Self::reject(sink, key, ItemFault::Value);
        };
        if !Name::new(name).is_ok_and(|n| !n.is_dot_or_dot_dot()) {
            return Self::reject(sink, key, ItemFault::Name);
        }
        if self.current.is_removed() {
            return Self::reject(sink, key, ItemFault::Removed);
        }
        let base = dirent_offset(&self.sb.hash_key, name);
        if !(base..base + DIRENT_TIES).contains(&key.offset()) {
            return Self::reject(sink, key, ItemFault::Hash);
        }
        if self.current.is_repeated(base, name) {
            return Self::reject(sink, key, ItemFault::Duplicate);
        }
        sink.keep(key, value)
    }

    fn extent<S: Sink>(&mut self, key: Key, value: &[u8], sink: &mut S) -> Result<()> {
        let Ok(e) = Extent::parse(key.offset(), value, &self.sb) else {
            return Self::reject(sink, key, ItemFault::Value);
        };
        let Some(whole) = e.clip(self.current.end_block, u64::MAX) else {
            return Self::reject(sink, key, ItemFault::Overlap);
        };
        if whole != e {
            Self::reject(sink, key, ItemFault::Overlap)?;
        }
        let mut kept = 0;
        let mut runs = Vec::new();
        self.usage.mark(&self.sb, whole.start, whole.len, |offset, len| {
            kept += len;
            runs.push((offset, len));
        });
        let c = &mut self.current;
        c.blocks += kept;
        c.end_block = whole.end();
        if kept != whole.len {
            let shared = whole.len - kept;
            self.blocks_lost += shared;
            let Extent { start, len, .. } = whole;
            sink.finding(Finding::SharedBlocks { ino: key.ino, start, len, shared });
        }
        for (offset, len) in runs {
            let part = Extent {
                file_block: whole.file_block + offset,
                start: whole.start + offset,
                len,
                ..whole
            };
            sink.keep(Key::new(key.ino, Kind::Extent, part.file_block), &part.emit())?;
        }
        Ok(())
    }

    fn xattr<S: Sink>(&mut self, key: Key, value: &[u8], sink: &mut S) -> Result<()> {
        if self.current.is_removed() {
            // Removal may have been interrupted among the pieces.
            return sink.keep(key, value);
        }
        let piece = key.offset() % XATTR_PIECES;
        let offset = key.offset() - piece;
        if piece == 0 {
            self.end_attribute(sink)?;
            return self.first_piece(key, value, sink);
        }
        match &mut self.current.attribute {
            Some(a) if a.offset == offset => {
                let fits = piece == a.next && !value.is_empty() && value.len() <= a.missing;
                a.sound &= fits;
                a.next += 1;
                if a.sound {
                    a.missing -= value.len();
                    a.items.push((key, value.to_vec()));
                } else {
                    a.items.clear();
                }
                Ok(())
            }
            _ => Self::reject(sink, key, ItemFault::Pieces),
        }
    }

    fn first_piece<S: Sink>(&mut self, key: Key, value: &[u8], sink: &mut S) -> Result<()> {
        let Ok(first) = xattr::parse_first(value) else {
            return Self::reject(sink, key, ItemFault::Value);
        };
        if first.name.contains(&0) || first.name.len() > NAME_MAX {
            return Self::reject(sink, key, ItemFault::Name);
        }
        let base = xattr_offset(&self.sb.hash_key, first.name);
        if !(base..base + XATTR_TIES * XATTR_PIECES).contains(&key.offset()) {
            return Self::reject(sink, key, ItemFault::Hash);
        }
        let names = self.current.attribute_names + first.name.len() + 1;
        if self.current.is_repeated(base, first.name) || names > XATTR_LIST_MAX {
            return Self::reject(sink, key, ItemFault::Duplicate);
        }
        self.current.attribute_names = names;
        let Some(missing) = first.value_len.checked_sub(first.value.len()) else {
            return Self::reject(sink, key, ItemFault::Value);
        };
        self.current.attribute = Some(Attribute {
            offset: key.offset(),
            next: 1,
            missing,
            sound: true,
            items: alloc::vec![(key, value.to_vec())],
        });
        Ok(())
    }

    /// Hands on the attribute whose pieces have all been seen.
    fn end_attribute<S: Sink>(&mut self, sink: &mut S) -> Result<()> {
        let Some(a) = self.current.attribute.take() else { return Ok(()) };
        if !a.sound || a.missing > 0 {
            let key = Key::new(self.current.ino, Kind::Xattr, a.offset);
            return Self::reject(sink, key, ItemFault::Pieces);
        }
        for (key, value) in a.items {
            sink.keep(key, &value)?;
        }
        Ok(())
    }

    fn symlink<S: Sink>(&mut self, key: Key, value: &[u8], sink: &mut S) -> Result<()> {
        let c = &mut self.current;
        c.target_is_sound &= key.offset() == c.pieces
            && !c.target_ended
            && !value.is_empty()
            && value.len() <= node::VALUE_MAX;
        c.target_ended = value.len() < node::VALUE_MAX;
        c.pieces += 1;
        c.target += value.len() as u64;
        sink.keep(key, value)
    }
}
