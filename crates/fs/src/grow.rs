//! Making use of a device that has become larger, in one step.
//!
//! ```text
//! before   S | headers | journal | headers | group 0 ... | short last | S'
//! after    S | headers |         | headers | group 0 ... | longer last | journal, groups | S'
//! ```
//!
//! The superblock is the switch: the newer of the two counts, it says where the journal is, and a
//! header counts only if it gives the same number of blocks. So everything is prepared where the
//! old volume does not look: a journal in blocks that it does not have, or has free, with one
//! record that holds the map blocks which change; and a header for the larger volume in the place
//! of the older header. Then the new copy of the superblock is written, in one sector, whole or not
//! at all; and the next mount replays the record.
//!
//! The journal is made as large as that of a new volume of this size, as far as there is a place
//! for it in the new space, in one group, which has 126 MiB: the first group that has no map blocks
//! yet, or the new part of the last. The blocks of an earlier one that lies in a group come free;
//! those of the first, before group 0, stay unused.

use alloc::collections::{BTreeMap, btree_map};

use atoll_block::{Addressable, BLOCK_SIZE, BlockError, BlockIndex};

use crate::error::{Corruption, FsError, Result};
use crate::format::{default_ring_blocks, emit_map};
use crate::fs::Fs;
use crate::journal::{Entry, Header, Headers, Journal, ScanEnd, clear_ring};
use crate::layout::{
    self, BLOCK_COUNT_MAX, Block, Superblock, VolumeState, get64, magic, map, put64, record,
    summary,
};
use crate::opening::Opening;
use crate::pair;
use crate::superblocks::read_superblock;
use crate::volume::MountOptions;

/// The sizes before and after [`grow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// Blocks of the volume before.
    pub before: u64,
    /// Blocks of the volume now.
    pub after: u64,
}

/// Why [`grow`] failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowError {
    /// The fault.
    pub error: FsError,
    /// The volume has its old size and keeps it: what the device has beyond may be taken away. If
    /// not, the volume may have grown, and the device must stay as large as it is.
    pub kept_size: bool,
}

impl core::fmt::Display for GrowError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.error.fmt(f)
    }
}

impl core::error::Error for GrowError {}

/// An error before anything could make the volume larger.
fn as_before(error: FsError) -> GrowError {
    GrowError { error, kept_size: true }
}

/// Makes the volume on `device`, which nobody may have mounted, as large as the device. The journal
/// becomes as large as that of a new volume of this size, or stays as it is if it is larger.
///
/// The volume is mounted with `options` and unmounted before and after. A crash leaves it with its
/// old size or its new one, sound in either case.
///
/// # Errors
/// Those of a mount; the device's.
pub fn grow<M: Addressable>(
    device: &mut M,
    options: &MountOptions,
) -> core::result::Result<Grown, GrowError> {
    let opening = Opening::begin(device, !options.read_only).map_err(as_before)?;
    let before = opening.sb().block_count;
    let block_count = device.block_count().min(BLOCK_COUNT_MAX);
    let grown = Grown { before, after: block_count };
    if block_count == before {
        return Ok(grown);
    }
    if options.read_only {
        return Err(as_before(FsError::Refused(atoll_vfs::Errno::EROFS)));
    }
    // An empty journal to begin with, and nothing damaged.
    remount(device, options).map_err(as_before)?;
    let Opening { superblocks, header, .. } = Opening::begin(device, true).map_err(as_before)?;
    let (old, header) = (superblocks.sb, header.map_err(as_before)?);
    let mut new = Superblock { block_count, generation: old.generation + 1, ..old.clone() };
    place_ring(&mut new, &old, header.state.groups);
    if let Err(failure) = switch(device, &old, &new, &header) {
        if failure.error == FsError::Device(BlockError::Io) {
            // Either superblock may be on the medium. Each has a header that counts for it alone:
            // both headers get the mark of the failure, each in its place.
            for sb in [&old, &new] {
                if let Ok(header) = Headers::read(device, sb).newest() {
                    let _ = Header { failed: true, clean: false, ..header }.write(device, sb);
                }
            }
        }
        return Err(failure);
    }
    match remount(device, options) {
        Ok(()) => Ok(grown),
        Err(error) => Err(GrowError { error, kept_size: false }),
    }
}

/// Mounts the volume and unmounts it.
fn remount<M: Addressable>(device: &mut M, options: &MountOptions) -> Result<()> {
    Fs::mount(device, options)?.unmount().map(drop)
}

/// Switches the unmounted volume to the superblock `new`.
fn switch<M: Addressable>(
    device: &mut M,
    old: &Superblock,
    new: &Superblock,
    header: &Header,
) -> core::result::Result<(), GrowError> {
    Change::new(device, old, new, header)
        .and_then(|change| change.prepare(device, old, new, header))
        .and_then(|()| Ok(device.flush()?))
        .map_err(as_before)?;
    for index in [new.copy_index(), BlockIndex(0)] {
        let mut b = [0; BLOCK_SIZE];
        new.emit(&mut b, index);
        device.write(index, &b).map_err(|error| GrowError {
            error: error.into(),
            // A host without room says so before it takes anything.
            kept_size: error == BlockError::NoSpace
                && read_superblock(device).is_ok_and(|sb| sb == *old),
        })?;
        device.flush().map_err(|error| GrowError { error: error.into(), kept_size: false })?;
    }
    Ok(())
}

/// Gives `new` the ring that it should have, if there is a place for one that is larger than the
/// old.
fn place_ring(new: &mut Superblock, old: &Superblock, made: u64) {
    let want = default_ring_blocks(new.block_count);
    // A group that nobody has used, or else the part of the last one that is new.
    let (group, first) = if made < new.group_count() {
        (made, new.front_len(made))
    } else {
        let last = new.group_count() - 1;
        (last, old.group_len(last))
    };
    // The old copy of the superblock is needed until the switch.
    let start = new.map_block(group).0;
    let copy = old.copy_index().0;
    let first = match copy.checked_sub(start) {
        Some(at) if at < map::GROUP_BLOCKS => first.max(at as usize + 1),
        _ => first,
    };
    let room = (new.group_len(group).saturating_sub(first)) as u64;
    // Half of the new space is left to files.
    let ring_blocks = want.min(room).min((new.block_count - old.block_count) / 2);
    if ring_blocks > old.ring_blocks {
        new.ring_start = start + first as u64;
        new.ring_blocks = ring_blocks;
    }
}

/// The content of the record of the switch.
struct Change {
    state: VolumeState,
    /// By group.
    maps: BTreeMap<u64, Block>,
    /// By block.
    summaries: BTreeMap<u64, Block>,
}

impl Change {
    fn new<M: Addressable>(
        device: &mut M,
        old: &Superblock,
        new: &Superblock,
        header: &Header,
    ) -> Result<Change> {
        let generation = header.generation + 1;
        let mut state = header.state;
        let mut maps = BTreeMap::new();
        let mut summaries = BTreeMap::new();
        let last = old.group_count() - 1;
        if last < state.groups && new.group_len(last) != old.group_len(last) {
            let b = maps.entry(last).or_insert(read_map(device, old, last, generation)?);
            set_bits(b, old.group_len(last), new.group_len(last), false);
        }
        if new.ring_start != old.ring_start {
            for (sb, value) in [(old, false), (new, true)] {
                if sb.ring_start < sb.group_start {
                    continue;
                }
                let (group, first) = sb.locate(sb.ring_start);
                let b = if group < state.groups {
                    let b = read_map(device, old, group, generation)?;
                    maps.entry(group).or_insert(b)
                } else {
                    // Only the new ring lies in a group without map blocks: in the first.
                    let mut b = [0; BLOCK_SIZE];
                    let len = new.group_len(group);
                    emit_map(
                        &mut b,
                        new.map_block(group),
                        len,
                        new.front_len(group),
                        None,
                        generation,
                    );
                    state.groups = group + 1;
                    if new.front_len(group) > 2 {
                        let index = new.summary_block(group);
                        let mut summary = [0; BLOCK_SIZE];
                        layout::init_block(&mut summary, index, magic::SUMMARY);
                        put64(&mut summary, summary::GENERATION, generation);
                        summaries.insert(index.0, summary);
                    }
                    maps.entry(group).or_insert(b)
                };
                set_bits(b, first, first + sb.ring_blocks as usize, value);
            }
        }
        // None of these is full now.
        for &group in maps.keys() {
            let index = new.summary_block(group);
            let b = match summaries.entry(index.0) {
                btree_map::Entry::Occupied(made) => made.into_mut(),
                btree_map::Entry::Vacant(vacant) => {
                    vacant.insert(pair::read_settled(device, index, magic::SUMMARY)?.data)
                }
            };
            let last = get64(b, summary::GENERATION);
            put64(b, summary::GENERATION, generation.max(last.saturating_add(1)));
            let at = (group % summary::GROUPS) as usize;
            b[summary::BITS + at / 8] &= !(1 << (at % 8));
        }
        let added = new.usable_blocks().checked_sub(old.usable_blocks());
        // A ring that moves may take more than is added.
        state.free_blocks = match added {
            Some(added) => state.free_blocks.checked_add(added),
            None => state.free_blocks.checked_sub(old.usable_blocks() - new.usable_blocks()),
        }
        .ok_or(Corruption::Superblock)?;
        Ok(Change { state, maps, summaries })
    }

    /// Writes the journal of the larger volume, and a header that counts for that only.
    fn prepare<M: Addressable>(
        &self,
        device: &mut M,
        old: &Superblock,
        new: &Superblock,
        header: &Header,
    ) -> Result<()> {
        let mut header = *header;
        let end = ScanEnd { position: header.tail, sequence: header.sequence, chain: header.chain };
        let mut journal = Journal::new(new, header.tail, &end);
        if new.ring_start != old.ring_start {
            clear_ring(device, new)?;
            // Where the ring has storage.
            journal.begin_lap();
            header.tail = journal.head();
        }
        // The switch is not to be made where it, or the mount that replays it, finds no storage.
        let maps = self.maps.keys().map(|&group| new.map_block(group));
        let pairs = maps.chain(self.summaries.keys().map(|&block| BlockIndex(block)));
        for (block, count) in pairs.map(|pair| (pair, 2)).chain([(new.copy_index(), 1)]) {
            match device.reserve(block, count) {
                Err(BlockError::Unsupported) => {}
                other => other?,
            }
        }
        let generation = header.generation + 1;
        journal.begin_numbers();
        let (sequence, chain) = journal.next();
        journal.begin(record::MARK | record::FLUSHED, Some(&self.state));
        for (&block, bytes) in &self.summaries {
            let (block, bytes) = (BlockIndex(block), &bytes[..]);
            journal.add(&Entry { block, offset: 0, bytes, init: true, data: false });
        }
        for (&group, bytes) in &self.maps {
            let (block, bytes) = (new.map_block(group), &bytes[..]);
            journal.add(&Entry { block, offset: 0, bytes, init: true, data: false });
        }
        journal.append(device)?;
        header = Header {
            generation,
            incarnation: [0; 16],
            sequence,
            chain,
            state: self.state,
            clean: false,
            failed: false,
            owner: [0; 32],
            block_count: new.block_count,
            ..header
        };
        header.write(device, new)
    }
}

/// The map of a group, about to be changed.
fn read_map<M: Addressable>(
    device: &mut M,
    sb: &Superblock,
    group: u64,
    generation: u64,
) -> Result<Block> {
    let mut b = pair::read_settled(device, sb.map_block(group), magic::MAP)?.data;
    let last = get64(&b, map::GENERATION);
    put64(&mut b, map::GENERATION, generation.max(last.saturating_add(1)));
    Ok(b)
}

fn set_bits(b: &mut Block, from: usize, to: usize, value: bool) {
    for at in from..to {
        let byte = &mut b[map::BITS + at / 8];
        *byte = if value { *byte | 1 << (at % 8) } else { *byte & !(1 << (at % 8)) };
    }
}
