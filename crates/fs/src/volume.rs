//! A volume's life: made, mounted with recovery, unmounted.

use alloc::vec::Vec;

use atoll_block::{BLOCK_SIZE, BlockDevice, BlockIndex, Memory};
use atoll_vfs::{Ino, Timespec};

use crate::cache::Cache;
use crate::error::{Corruption, FsError, Result};
use crate::inode::InodeRecord;
use crate::journal::{self, Beyond, Header, Journal, Position, ScanEnd};
use crate::key::{Key, Kind};
use crate::layout::{
    self, Block, GROUP_AREA_MIN, RING_BLOCKS_MIN, Superblock, VolumeState, cell, inode, magic, map,
    node, superblock,
};
use crate::node::{build_cell, image};
use crate::recovery::{Replay, is_cut};
use crate::report::MountNote;
use crate::store::Store;

/// How to make a volume.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions<'a> {
    /// The volume's UUID: random.
    pub uuid: [u8; 16],
    /// A name for people, at most 64 bytes.
    pub label: &'a str,
    /// The secret key of the hashes of names and of the journal's checksums: random, so that nobody
    /// can make names collide.
    pub hash_key: [u8; 16],
    /// The time now.
    pub now: Timespec,
    /// The owner of the root directory.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Blocks for the journal; `None` takes a sixteenth of the volume, 512 KiB to 256 MiB.
    pub journal_blocks: Option<u64>,
}

/// The smallest volume, in blocks: 1 MiB.
pub const BLOCK_COUNT_MIN: u64 = 256;

/// Makes an empty volume on the whole of `device`. What was there before is lost.
///
/// The superblock is written last: a crash within leaves no volume.
///
/// # Errors
/// [`FsError::Unsuitable`] for a device below [`BLOCK_COUNT_MIN`], a label that is too long or a
/// journal that does not fit; the device's.
pub fn format<M: Memory>(device: &mut M, options: &FormatOptions<'_>) -> Result<()> {
    let block_count = device.block_count().min(layout::BLOCK_COUNT_MAX);
    let ring_blocks = options.journal_blocks.unwrap_or((block_count / 16).clamp(128, 65536));
    let ring_start = 3;
    let fits = ring_blocks >= RING_BLOCKS_MIN
        && ring_blocks < block_count
        && block_count - ring_blocks >= ring_start + GROUP_AREA_MIN;
    if block_count < BLOCK_COUNT_MIN || !fits || options.label.len() > superblock::LABEL_LEN {
        return Err(FsError::Unsuitable);
    }
    let mut label = [0; superblock::LABEL_LEN];
    label[..options.label.len()].copy_from_slice(options.label.as_bytes());
    let sb = Superblock {
        block_count,
        ring_start,
        ring_blocks,
        group_start: ring_start + ring_blocks,
        generation: 1,
        compatible: 0,
        read_compatible: 0,
        hash_key: options.hash_key,
        uuid: options.uuid,
        label,
        created: options.now,
    };

    // What was a volume before is none until the new one is whole.
    let mut b = [0; BLOCK_SIZE];
    device.write(BlockIndex(0), &b)?;
    device.write(sb.copy_index(), &b)?;
    device.flush()?;

    // Zeros in the whole ring give it its storage now, so that appending to it never fails for
    // want of space, and leave no record of an older volume.
    device.store_zeros(sb.ring_start * BLOCK_SIZE as u64, ring_blocks * BLOCK_SIZE as u64)?;

    let mut free = 0;
    let root = sb.map_block(0).0 + 1;
    for group in 0..sb.group_count() {
        let used = if group == 0 { 2 } else { 1 };
        let index = sb.map_block(group);
        emit_map(&mut b, index, sb.group_len(group), used);
        device.write(index, &b)?;
        free += (sb.group_len(group) - used.min(sb.group_len(group))) as u64;
    }

    let record = InodeRecord {
        mode: 0o040755,
        nlink: 2,
        uid: options.uid,
        gid: options.gid,
        parent: Ino::ROOT.0,
        ..InodeRecord::new(options.now)
    };
    emit_root(&mut b, BlockIndex(root), &record);
    device.write(BlockIndex(root), &b)?;

    let state = VolumeState {
        root,
        height: 1,
        next_ino: Ino::ROOT.0 + 1,
        free_blocks: free,
        inodes: 1,
        groups: sb.group_count(),
    };
    for (generation, index) in (1..).zip(sb.journal_headers().into_iter().rev()) {
        let header = Header {
            generation,
            incarnation: [0; 16],
            tail: 0,
            sequence: 1,
            chain: sb.chain_seed(),
            state,
            clean: true,
            failed: false,
            owner: [0; 32],
            block_count,
        };
        debug_assert_eq!(sb.journal_headers()[(generation % 2) as usize], index);
        header.write(device, &sb)?;
    }
    sb.emit(&mut b, sb.copy_index());
    device.write(sb.copy_index(), &b)?;
    device.flush()?;
    sb.emit(&mut b, BlockIndex(0));
    device.write(BlockIndex(0), &b)?;
    Ok(device.flush()?)
}

/// A map block whose first `used` of `len` blocks are in use.
pub(crate) fn emit_map(b: &mut Block, index: BlockIndex, len: usize, used: usize) {
    layout::init_block(b, index, magic::MAP);
    for at in (0..used).chain(len..map::GROUP_BLOCKS as usize) {
        b[map::BITS + at / 8] |= 1 << (at % 8);
    }
    layout::seal(b);
}

/// The tree of an empty volume: a leaf with the root directory.
fn emit_root(b: &mut Block, index: BlockIndex, record: &InodeRecord) {
    layout::init_block(b, index, magic::NODE);
    let mut cell = [0; cell::VALUE + inode::LEN];
    build_cell(&mut cell, Key::inode(Ino::ROOT.0), &record.emit());
    let bytes = image(0, core::iter::once(&cell[..]));
    b[node::LEVEL..node::LEVEL + bytes.len()].copy_from_slice(&bytes);
    layout::seal(b);
}

/// How to mount a volume.
#[derive(Clone, Copy, Debug)]
pub struct MountOptions {
    /// Take no changes and write nothing, not even to recover.
    pub read_only: bool,
    /// Names the life of the memory that holds unflushed writes, such as the host's boot ID. Equal
    /// to that of the last mount: nothing that was written has been lost. Zeros: never equal.
    pub incarnation: [u8; 16],
    /// Who mounts the volume, for others who find it mounted, in words of the host's own; zeros if
    /// it does not say. A clean unmount takes it back.
    pub owner: [u8; 32],
    /// How much memory cached metadata blocks may take, in bytes; changed ones may exceed it for a
    /// moment.
    pub cache_bytes: usize,
    /// Told the address and length of each piece of memory for cached blocks before it is used, so
    /// that a host can ask for huge pages there: lookups in large trees are bound by address
    /// translation.
    pub new_slab: Option<fn(*const u8, usize)>,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            incarnation: [0; 16],
            owner: [0; 32],
            cache_bytes: 64 << 20,
            new_slab: None,
        }
    }
}

/// Reads the superblock, or its copy at the end of the device if the first is damaged.
///
/// # Errors
/// The [`Corruption`] of the first if neither is valid.
pub fn read_superblock<D: BlockDevice>(device: &mut D) -> Result<Superblock> {
    let count = device.block_count();
    if count == 0 {
        return Err(Corruption::NotAVolume.into());
    }
    let mut b = [0; BLOCK_SIZE];
    let first = match device.read(BlockIndex(0), &mut b) {
        Ok(()) => Superblock::parse(&b, BlockIndex(0), count),
        Err(e) => Err(e.into()),
    };
    if first.is_ok() {
        return first;
    }
    let last = BlockIndex(count - 1);
    match device.read(last, &mut b).map_err(FsError::from) {
        Ok(()) => match Superblock::parse(&b, last, count) {
            Ok(sb) if sb.copy_index() == last => Ok(sb),
            _ => first,
        },
        Err(_) => first,
    }
}

/// Opens the volume on `device`: reads the superblock and replays the journal.
///
/// After the end of a process every record is replayed, after power loss those up to the last
/// commit mark. A crash within is recovered from by the next mount in the same way.
pub(crate) fn mount<M: Memory>(mut device: M, options: &MountOptions) -> Result<Store<M>> {
    let sb = read_superblock(&mut device)?;
    if sb.read_compatible != 0 && !options.read_only {
        return Err(FsError::ReadOnlyFeatures);
    }
    let mut header = Header::read(&mut device, &sb)?;
    if header.failed {
        // What the memory above the medium has may never have reached it.
        device.forget_cached()?;
        header = Header::read(&mut device, &sb)?;
    }
    let trusted = !header.failed
        && header.incarnation != [0; 16]
        && header.incarnation == options.incarnation;
    let tail = ScanEnd { position: header.tail, sequence: header.sequence, chain: header.chain };

    // First pass: where the journal ends, and from which mark on its file data counts.
    let extent = journal::extent(&mut device, &sb, tail, header.clean)?;
    if is_cut(&extent, trusted) {
        return Err(Corruption::JournalCut.into());
    }
    let end = if trusted { extent.end } else { extent.committed };

    let mut journal = Journal::new(&sb, header.tail, &end);
    journal.note_sequence(extent.latest);
    let cache = Cache::new(options.cache_bytes, options.new_slab);
    let mut store = Store::new(device, sb, &header, journal, header.state, cache, false);
    if extent.beyond >= Beyond::Marks {
        store.notes.push(MountNote::Journal);
    }
    if header.failed {
        store.notes.push(MountNote::Failed);
    }
    // In the same incarnation file data is where it belongs, or newer data is; so it is after a flush
    // of the device.
    let data_after = if trusted { Position::MAX } else { extent.void_before };
    let replay = Replay { tail, end, data_after };
    if options.read_only {
        store.lay_over(&replay)?;
    } else if end != tail {
        if trusted && extent.committed != end {
            // What goes home must be committed before, or power loss now would leave home ahead of
            // the journal. After power loss it is committed.
            store.commit_recovered()?;
        } else {
            // What a recovery before this one listed may be in memory alone.
            store.device.flush()?;
        }
        store.recover(&replay, (options.cache_bytes / BLOCK_SIZE).max(64))?;
    }
    store.set_read_only(options.read_only);
    if !options.read_only {
        store.set_incarnation(options.incarnation, options.owner);
        store.begin_journal()?;
    }
    Ok(store)
}

/// The inodes that were unlinked but open when the volume was last used.
pub(crate) fn orphans<M: Memory>(store: &mut Store<M>) -> Result<Vec<Ino>> {
    let mut found = Vec::new();
    let mut key = Key::new(0, Kind::Orphan, 0);
    while let Some(place) = store.seek(key)? {
        if !place.key.is(0, Kind::Orphan) {
            break;
        }
        found.push(Ino(place.key.offset()));
        key = place.key.next();
    }
    Ok(found)
}
