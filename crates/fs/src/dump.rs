//! Everything on disk, element by element and in words, for people and for debugging.
//!
//! A dump shows what is there, right or wrong: it names elements that can't be read, and goes on
//! with all that can be reached without them. It shows metadata as a mount would see it, journal
//! replayed.

use alloc::vec::Vec;
use core::fmt;

use atoll_block::{Addressable, BLOCK_SIZE, BlockIndex};
use atoll_vfs::FileType;

use crate::check::report::{printable, type_name};
use crate::check::space::Usage;
use crate::check::view::View;
use crate::check::{ItemKey, NodeFault, Report};
use crate::dir;
use crate::error::{Corruption, FsError, Result};
use crate::inode::{Extent, InodeRecord};
use crate::journal::{self, Header, ScanEnd};
use crate::key::{Key, Kind, XATTR_PIECES};
use crate::layout::{Superblock, VolumeState, get64, magic, map};
use crate::node;
use crate::project::Project;
use crate::xattr;

/// The elements to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpOptions {
    /// As for [`MountOptions`](crate::MountOptions::incarnation): how much of the journal counts.
    pub incarnation: [u8; 16],
    /// The journal's records and their changes.
    pub records: bool,
    /// The map blocks.
    pub maps: bool,
    /// The tree's nodes.
    pub nodes: bool,
    /// The items in the leaves.
    pub items: bool,
}

impl Default for DumpOptions {
    /// Everything.
    fn default() -> Self {
        DumpOptions { incarnation: [0; 16], records: true, maps: true, nodes: true, items: true }
    }
}

/// The value of an item, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ItemValue<'a> {
    /// An inode record.
    Inode(InodeRecord),
    /// A directory entry.
    Entry {
        /// The inode that it names.
        ino: u64,
        /// The inode's type.
        file_type: FileType,
        /// The name.
        name: &'a [u8],
    },
    /// An extent; the key's offset is the first file block.
    Extent {
        /// The first block on the device.
        start: u64,
        /// Blocks.
        len: u64,
        /// Allocated, but reads as zeros.
        unwritten: bool,
    },
    /// The first piece of an extended attribute.
    Attribute {
        /// Its name.
        name: &'a [u8],
        /// The length of its value over all pieces.
        value_len: usize,
        /// The first bytes of it.
        value: &'a [u8],
    },
    /// A further piece of an extended attribute.
    AttributePiece(&'a [u8]),
    /// A piece of a symbolic link's target.
    Target(&'a [u8]),
    /// The mark of a file that is to be removed or made shorter.
    Orphan,
    /// A project; the key's offset is its number.
    Project(Project),
    /// Bytes that do not parse.
    Malformed(&'a [u8]),
}

/// One thing on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Element<'a> {
    /// A superblock.
    Superblock {
        /// Where it is.
        block: u64,
        /// Its fields, or why it can't be used.
        superblock: core::result::Result<Superblock, FsError>,
    },
    /// A journal header.
    JournalHeader {
        /// Where it is.
        block: u64,
        /// Its fields, or `None` if it is damaged.
        header: Option<Header>,
        /// It is the newer of the two.
        current: bool,
    },
    /// A journal record of the unbroken chain.
    Record {
        /// Its position in the ring, in bytes, ever growing.
        position: u64,
        /// Its sequence number.
        sequence: u64,
        /// Its length in bytes.
        len: u64,
        /// It is a commit mark.
        mark: bool,
        /// It is a commit mark after a flush of the device.
        flushed: bool,
        /// A commit mark that does not cover everything before it covers the records before this
        /// position.
        covers: Option<u64>,
        /// The volume's state after it, if it changes it.
        state: Option<VolumeState>,
        /// It parses.
        sound: bool,
    },
    /// A byte range that the record before changes.
    Change {
        /// The block.
        block: u64,
        /// Where in the block.
        offset: usize,
        /// How many bytes.
        len: usize,
        /// The block is zeroed before.
        init: bool,
        /// It is file data.
        data: bool,
    },
    /// The state of the volume, journal replayed.
    State(VolumeState),
    /// A map block.
    Map {
        /// Its group.
        group: u64,
        /// Where it is.
        block: u64,
        /// Blocks in the group, the map block included.
        blocks: u64,
        /// How many of them are in use, or the map's fault.
        used: core::result::Result<u64, NodeFault>,
        /// Which of the two map blocks are damaged.
        damaged: [bool; 2],
    },
    /// A tree node.
    Node {
        /// Where it is.
        block: u64,
        /// The level that its parent gives it.
        level: u32,
        /// The number of cells, or the node's fault.
        cells: core::result::Result<usize, NodeFault>,
        /// The journal changes it.
        in_journal: bool,
    },
    /// A child of the node before.
    Child {
        /// The least key below it.
        key: ItemKey,
        /// Its block.
        block: u64,
    },
    /// An item of the leaf before.
    Item {
        /// Its key.
        key: ItemKey,
        /// Its value.
        value: ItemValue<'a>,
    },
}

/// Calls `each` for everything on `device`, in the order of [`Element`], until it returns false.
///
/// Work and memory are bounded by the size of the volume, whatever is on it: no block is shown
/// twice as a node.
///
/// # Errors
/// The device's, in the journal. A device without a volume has two damaged superblocks and nothing
/// else.
pub fn visit<M: Addressable>(
    device: &mut M,
    options: &DumpOptions,
    each: &mut dyn FnMut(&Element<'_>) -> bool,
) -> Result<()> {
    let mut visitor = Visitor { options, each };
    // A stop is not an error for the caller.
    match visitor.volume(device) {
        Err(Stop::Asked) => Ok(()),
        Err(Stop::Failed(e)) => Err(e),
        Ok(()) => Ok(()),
    }
}

/// Writes everything on `device` to `out`, a line for each element.
///
/// # Errors
/// As [`visit`]; [`FsError::Refused`] with `EIO` if `out` takes no more.
pub fn dump<M: Addressable>(
    device: &mut M,
    options: &DumpOptions,
    out: &mut dyn fmt::Write,
) -> Result<()> {
    let mut failed = false;
    visit(device, options, &mut |element| {
        failed = writeln!(out, "{element}").is_err();
        !failed
    })?;
    if failed { Err(FsError::Refused(atoll_vfs::Errno::EIO)) } else { Ok(()) }
}

/// Why a visit ends early.
enum Stop {
    Asked,
    Failed(FsError),
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Stop {
        Stop::Failed(error)
    }
}

type Visit = core::result::Result<(), Stop>;

struct Visitor<'o, 'e> {
    options: &'o DumpOptions,
    each: &'e mut dyn FnMut(&Element<'_>) -> bool,
}

impl Visitor<'_, '_> {
    fn give(&mut self, element: Element<'_>) -> Visit {
        if (self.each)(&element) { Ok(()) } else { Err(Stop::Asked) }
    }

    fn volume<M: Addressable>(&mut self, device: &mut M) -> Visit {
        let count = device.block_count();
        let mut blocks = Vec::from([0, count.saturating_sub(1)]);
        if let Ok(sb) = crate::read_superblock(device) {
            blocks[1] = sb.copy_index().0;
        }
        blocks.dedup();
        for block in blocks {
            let mut b = [0; BLOCK_SIZE];
            let superblock = match device.read(BlockIndex(block), &mut b) {
                Ok(()) => Superblock::parse(&b, BlockIndex(block), count),
                Err(e) => Err(e.into()),
            };
            self.give(Element::Superblock { block, superblock })?;
        }
        let mut report = Report::default();
        let Ok(mut view) = View::open(device, self.options.incarnation, false, &mut report) else {
            return Ok(());
        };
        let sb = view.sb.clone();
        self.journal(&mut view, &sb)?;
        if let Some(state) = view.state {
            self.give(Element::State(state))?;
        }
        if self.options.maps {
            for group in 0..view.state.map_or(0, |s| s.groups) {
                self.map(&mut view, &sb, group)?;
            }
        }
        match view.state {
            Some(state) if self.options.nodes || self.options.items => self.tree(&mut view, &state),
            _ => Ok(()),
        }
    }

    fn journal<M: Addressable>(&mut self, view: &mut View<'_, M>, sb: &Superblock) -> Visit {
        for index in sb.journal_headers() {
            let header = Header::read_one(view.device, index, sb).ok().flatten();
            let current = header.is_some() && header == view.header;
            self.give(Element::JournalHeader { block: index.0, header, current })?;
        }
        let Some(header) = view.header.filter(|_| self.options.records) else {
            return Ok(());
        };
        let tail =
            ScanEnd { position: header.tail, sequence: header.sequence, chain: header.chain };
        let mut position = tail.position;
        let mut stop = None;
        journal::scan(view.device, sb, tail, |_, record| {
            stop = self.record(record, sb, position).err();
            position = record.end.position;
            Ok(stop.is_none())
        })?;
        stop.map_or(Ok(()), Err)
    }

    fn record(&mut self, record: &journal::Record<'_>, sb: &Superblock, position: u64) -> Visit {
        let state = record.state(sb);
        let mut changes = Vec::new();
        let parsed = record.for_each(sb, |e| {
            let (block, offset, len) = (e.block.0, e.offset, e.bytes.len());
            changes.push(Element::Change { block, offset, len, init: e.init, data: e.data });
            Ok(())
        });
        self.give(Element::Record {
            position,
            sequence: record.end.sequence.wrapping_sub(1),
            len: record.end.position - position,
            mark: record.is_mark(),
            flushed: record.is_flushed_mark(),
            covers: record.covers().filter(|&covered| covered < record.end.position),
            state: state.ok().flatten(),
            sound: state.is_ok() && parsed.is_ok(),
        })?;
        changes.into_iter().try_for_each(|change| self.give(change))
    }

    fn map<M: Addressable>(
        &mut self,
        view: &mut View<'_, M>,
        sb: &Superblock,
        group: u64,
    ) -> Visit {
        let block = sb.map_block(group).0;
        let blocks = sb.group_len(group);
        let read = view.read_pair(sb.map_block(group), magic::MAP);
        let damaged = read.as_ref().map_or([true; 2], |(_, damaged)| *damaged);
        let used = read.map(|(b, _)| {
            let bit = |at: usize| b[map::BITS + at / 8] & (1 << (at % 8)) != 0;
            (0..blocks).filter(|&at| bit(at)).count() as u64
        });
        self.give(Element::Map { group, block, blocks: blocks as u64, used, damaged })
    }

    fn tree<M: Addressable>(&mut self, view: &mut View<'_, M>, state: &VolumeState) -> Visit {
        let mut seen = Usage::default();
        let mut waiting = Vec::from([(state.root, state.height - 1)]);
        while let Some((block, level)) = waiting.pop() {
            self.node(view, &mut seen, block, level, &mut waiting)?;
        }
        Ok(())
    }

    fn node<M: Addressable>(
        &mut self,
        view: &mut View<'_, M>,
        seen: &mut Usage,
        block: u64,
        level: u32,
        waiting: &mut Vec<(u64, u32)>,
    ) -> Visit {
        let in_journal = view.is_patched(block);
        let read = if !view.sb.holds_data(block, 1) {
            Err(NodeFault::Place)
        } else if !seen.take(&view.sb, block) {
            Err(NodeFault::Shared)
        } else {
            view.read(block, magic::NODE)
        };
        let parsed = read.and_then(|data| {
            if node::level(&data) != level {
                return Err(NodeFault::Level);
            }
            match node::cells(&data, |_| true) {
                Ok(cells) => Ok((data, cells)),
                Err(_) => Err(NodeFault::Cells),
            }
        });
        let cells = parsed.as_ref().map(|(_, cells)| cells.len()).map_err(|&fault| fault);
        if self.options.nodes {
            self.give(Element::Node { block, level, cells, in_journal })?;
        }
        let Ok((data, cells)) = parsed else { return Ok(()) };
        let first = waiting.len();
        for (key, at) in cells {
            let value = node::value_at(&data, at);
            if level > 0 {
                let child = get64(value, 0);
                if self.options.nodes {
                    self.give(Element::Child { key: key.into(), block: child })?;
                }
                waiting.push((child, level - 1));
            } else if self.options.items {
                let value = parse_item(key, value, &view.sb).unwrap_or(ItemValue::Malformed(value));
                self.give(Element::Item { key: key.into(), value })?;
            }
        }
        // The first child comes off the stack first.
        waiting[first..].reverse();
        Ok(())
    }
}

fn parse_item<'a>(key: Key, value: &'a [u8], sb: &Superblock) -> Result<ItemValue<'a>> {
    Ok(match key.kind().ok_or(Corruption::Item)? {
        Kind::Inode => ItemValue::Inode(InodeRecord::parse(value)?),
        Kind::Dirent => {
            let (ino, file_type, name) = dir::parse(value)?;
            ItemValue::Entry { ino: ino.0, file_type, name }
        }
        Kind::Extent => {
            let Extent { start, len, unwritten, .. } = Extent::parse(key.offset(), value, sb)?;
            ItemValue::Extent { start, len, unwritten }
        }
        Kind::Xattr if key.offset().is_multiple_of(XATTR_PIECES) => {
            let xattr::FirstPiece { value_len, name, value } = xattr::parse_first(value)?;
            ItemValue::Attribute { name, value_len, value }
        }
        Kind::Xattr => ItemValue::AttributePiece(value),
        Kind::Symlink => ItemValue::Target(value),
        Kind::Orphan => ItemValue::Orphan,
        Kind::Project => ItemValue::Project(Project::parse(key, value)?),
    })
}

// ---- in words ----

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

fn write_state(f: &mut fmt::Formatter<'_>, s: &VolumeState) -> fmt::Result {
    write!(
        f,
        "root {} height {} next-inode {} free {} inodes {} groups {}",
        s.root, s.height, s.next_ino, s.free_blocks, s.inodes, s.groups
    )
}

impl fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Superblock { block, superblock: Ok(s) } => {
                let label = s.label.split(|&b| b == 0).next().unwrap_or_default();
                write!(
                    f,
                    "superblock {block}: {} blocks, journal {}+{}, groups from {}, generation \
                     {}, uuid {}, label \"{}\", made {}.{:09}",
                    s.block_count,
                    s.ring_start,
                    s.ring_blocks,
                    s.group_start,
                    s.generation,
                    Hex(&s.uuid),
                    printable(label),
                    s.created.sec,
                    s.created.nsec
                )
            }
            Element::Superblock { block, superblock: Err(e) } => {
                write!(f, "superblock {block}: {e}")
            }
            Element::JournalHeader { block, header: None, .. } => {
                write!(f, "journal header {block}: damaged")
            }
            Element::JournalHeader { block, header: Some(h), current } => {
                write!(
                    f,
                    "journal header {block}: generation {}, incarnation {}, tail {} sequence {} \
                     chain {:016x}, {}{}: ",
                    h.generation,
                    Hex(&h.incarnation),
                    h.tail,
                    h.sequence,
                    h.chain,
                    match (h.failed, h.clean) {
                        (true, _) => "failed",
                        (_, true) => "clean",
                        _ => "in use",
                    },
                    if *current { ", current" } else { "" }
                )?;
                write_state(f, &h.state)
            }
            Element::Record { position, sequence, len, mark, flushed, covers, state, sound } => {
                write!(f, "record {sequence} at {position}: {len} bytes")?;
                for (flag, word) in
                    [(*mark, ", mark"), (*flushed, ", flushed"), (!*sound, ", malformed")]
                {
                    f.write_str(if flag { word } else { "" })?;
                }
                if let Some(covers) = covers {
                    write!(f, ", covers up to {covers}")?;
                }
                if let Some(state) = state {
                    f.write_str(", state: ")?;
                    write_state(f, state)?;
                }
                Ok(())
            }
            Element::Change { block, offset, len, init, data } => {
                let init = if *init { ", block zeroed before" } else { "" };
                let data = if *data { ", file data" } else { "" };
                write!(f, "  block {block} bytes {offset}+{len}{init}{data}")
            }
            Element::State(state) => {
                f.write_str("state: ")?;
                write_state(f, state)
            }
            Element::Map { group, block, blocks, used: Ok(used), damaged } => {
                write!(
                    f,
                    "map of group {group} in block {block}: {used} of {blocks} blocks in use"
                )?;
                f.write_str(match damaged {
                    [false, false] => "",
                    [true, _] => ", the first map block damaged",
                    _ => ", the second map block damaged",
                })
            }
            Element::Map { group, block, used: Err(fault), .. } => {
                write!(f, "map of group {group} in block {block}: {fault:?}")
            }
            Element::Node { block, level, cells, in_journal } => {
                write!(f, "node {block} level {level}: ")?;
                match cells {
                    Ok(n) => write!(f, "{n} cells")?,
                    Err(fault) => write!(f, "{fault:?}")?,
                }
                f.write_str(if *in_journal { ", changed in the journal" } else { "" })
            }
            Element::Child { key, block } => {
                write!(f, "  from inode {} kind {} offset {}", key.ino, key.kind, key.offset)?;
                write!(f, ": node {block}")
            }
            Element::Item { key, value } => write!(f, "  {key}: {value}"),
        }
    }
}

impl fmt::Display for ItemValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ItemValue::Inode(r) => write!(
                f,
                "{} mode {:04o} links {} owner {}:{} device {} size {} blocks {} parent {} mtime \
                 {}.{:09}",
                type_name(r.file_type()),
                r.mode & 0o7777,
                r.nlink,
                r.uid,
                r.gid,
                r.rdev,
                r.size,
                r.blocks,
                r.parent,
                r.mtime.sec,
                r.mtime.nsec
            ),
            ItemValue::Entry { ino, file_type, name } => {
                write!(f, "\"{}\" is inode {ino}, a {}", printable(name), type_name(*file_type))
            }
            ItemValue::Extent { start, len, unwritten } => {
                write!(
                    f,
                    "{len} blocks from {start}{}",
                    if *unwritten { ", unwritten" } else { "" }
                )
            }
            ItemValue::Attribute { name, value_len, .. } => {
                write!(f, "\"{}\", {value_len} bytes", printable(name))
            }
            ItemValue::AttributePiece(b) => write!(f, "{} bytes more", b.len()),
            ItemValue::Target(b) => write!(f, "\"{}\"", printable(b)),
            ItemValue::Orphan => f.write_str("to be removed or made shorter"),
            ItemValue::Project(Project { number, root, usage, complete, .. }) => write!(
                f,
                "project {number} of directory {root}: {} bytes, {} inodes{}",
                usage.bytes,
                usage.inodes,
                if *complete { "" } else { ", not complete" }
            ),
            ItemValue::Malformed(b) => write!(f, "malformed, {} bytes: {}", b.len(), Hex(b)),
        }
    }
}
