//! Making use of a device that has become larger, in one step.
//!
//! ```text
//! before   S | journal | group 0 ...  | last group, short | S'
//! after    S | journal | group 0 ...  | last group, longer  ... | more groups ... | S'
//! ```
//!
//! The superblock is the switch: it gives the number of blocks, and a journal header counts only if
//! it gives the same. So everything is prepared where the volume as it is does not look: map blocks
//! of new groups and the new copy of the superblock beyond its end; a journal header for the larger
//! volume in the place of the older header; and in the ring a record, chained to that header alone,
//! with the map block of the group that becomes longer. Then the superblock is overwritten, one
//! sector, which is either the old or the new; and the next mount replays the record.

use alloc::vec::Vec;

use atoll_block::{BLOCK_SIZE, BlockIndex, Memory};

use crate::error::{Corruption, FsError, Result};
use crate::fs::Fs;
use crate::journal::{Entry, Header, Journal, ScanEnd};
use crate::layout::{self, BLOCK_COUNT_MAX, Block, Superblock, VolumeState, magic, map, record};
use crate::volume::{MountOptions, emit_map, read_superblock};

/// What [`grow`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// Blocks of the volume before.
    pub before: u64,
    /// Blocks of the volume now.
    pub after: u64,
}

/// Makes the volume on `device`, which nobody may have mounted, as large as the device. The journal
/// keeps its size.
///
/// The volume is mounted with `options` and unmounted before and after. A crash leaves it with its
/// old size or its new one, sound in either case.
///
/// # Errors
/// Those of a mount; the device's.
pub fn grow<M: Memory>(device: &mut M, options: &MountOptions) -> Result<Grown> {
    let old = read_superblock(device)?;
    let new = Superblock {
        block_count: device.block_count().min(BLOCK_COUNT_MAX),
        generation: old.generation + 1,
        ..old.clone()
    };
    let grown = Grown { before: old.block_count, after: new.block_count };
    if new.block_count == old.block_count {
        return Ok(grown);
    }
    if options.read_only {
        return Err(FsError::Refused(atoll_vfs::Errno::EROFS));
    }
    // An empty journal to begin with.
    Fs::mount(&mut *device, options)?.unmount()?;
    let header = Header::read(device, &old)?;
    let maps = prepare_maps(device, &old, &new)?;
    prepare_header(device, &old, &new, &header, &maps)?;
    device.flush()?;
    for index in [new.copy_index(), BlockIndex(0)] {
        let mut b = [0; BLOCK_SIZE];
        new.emit(&mut b, index);
        device.write(index, &b)?;
        device.flush()?;
    }
    Fs::mount(&mut *device, options)?.unmount()?;
    Ok(grown)
}

/// Blocks that are no map blocks.
fn usable(sb: &Superblock) -> u64 {
    (sb.block_count - 1 - sb.group_start).saturating_sub(sb.group_count())
}

/// Writes the map blocks of new groups. Returns those that have to wait for the switch: that of the
/// group that becomes longer, and one that comes where the old copy of the superblock is.
fn prepare_maps<M: Memory>(
    device: &mut M,
    old: &Superblock,
    new: &Superblock,
) -> Result<Vec<(BlockIndex, Block)>> {
    let mut waiting = Vec::new();
    let last = old.group_count() - 1;
    for group in last..new.group_count() {
        let index = new.map_block(group);
        let len = new.group_len(group);
        let mut b = [0; BLOCK_SIZE];
        if group == last {
            device.read(index, &mut b)?;
            layout::verify(&b, index, magic::MAP)?;
            for at in old.group_len(group)..len {
                b[map::BITS + at / 8] &= !(1 << (at % 8));
            }
        } else {
            emit_map(&mut b, index, len, 1);
        }
        if group == last || index == old.copy_index() {
            waiting.push((index, b));
        } else {
            device.write(index, &b)?;
        }
    }
    Ok(waiting)
}

/// Writes a header that counts for the larger volume only, and the journal that it begins.
fn prepare_header<M: Memory>(
    device: &mut M,
    old: &Superblock,
    new: &Superblock,
    header: &Header,
    maps: &[(BlockIndex, Block)],
) -> Result<()> {
    let added = usable(new).checked_sub(usable(old)).ok_or(Corruption::Superblock)?;
    let state = VolumeState {
        free_blocks: header.state.free_blocks.saturating_add(added),
        groups: new.group_count(),
        ..header.state
    };
    let end = ScanEnd { position: header.tail, sequence: header.sequence, chain: header.chain };
    let mut journal = Journal::new(new, header.tail, &end);
    let generation = header.generation + 1;
    journal.begin_numbers();
    let (sequence, chain) = journal.next();
    journal.begin(record::MARK | record::FLUSHED, Some(&state));
    for (block, bytes) in maps {
        let (block, bytes) = (*block, &bytes[..]);
        journal.add(&Entry { block, offset: 0, bytes, init: true, data: false });
    }
    journal.append(device)?;
    let header = Header {
        generation,
        incarnation: [0; 16],
        sequence,
        chain,
        state,
        clean: false,
        failed: false,
        owner: [0; 32],
        block_count: new.block_count,
        ..*header
    };
    header.write(device, new)
}
