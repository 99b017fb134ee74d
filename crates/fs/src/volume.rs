//! Mounting a volume: a mount compares the blocks that stand twice, and replays the journal.

use alloc::vec::Vec;

use atoll_block::{Addressable, BLOCK_SIZE, BlockError};
use atoll_vfs::Ino;

use crate::cache::Cache;
use crate::discard::Discards;
use crate::error::{Corruption, FsError, Result};
use crate::journal::{Headers, Journal, Position};
use crate::key::{Key, Kind};
use crate::opening::{Found, Opening};
use crate::recovery::Replay;
use crate::report::Listener;
use crate::store::Store;
use crate::superblocks::Superblocks;

/// How to mount a volume.
#[derive(Clone, Copy, Debug)]
pub struct MountOptions {
    /// Take no changes and write nothing, not even to recover.
    pub read_only: bool,
    /// Names the life of the memory that holds unflushed writes, such as the host's boot ID. Equal
    /// to that of the last mount: nothing that was written has been lost. Zeros: never equal.
    pub incarnation: [u8; 16],
    /// The owner of the mount, named in the host's own words, for others that find the volume
    /// mounted; zeros for no name. A clean unmount takes it back.
    pub owner: [u8; 32],
    /// Give freed space back by discards, in batches, after checkpoints. For storage of which
    /// discards are cheap and worth something, like sparse files.
    pub discard: bool,
    /// How much memory cached metadata blocks may take, in bytes; changed ones may exceed it for a
    /// moment.
    pub cache_bytes: usize,
    /// Told the address and length of each piece of memory for cached blocks before it is used, so
    /// that a host can ask for huge pages there: lookups in large trees are bound by address
    /// translation.
    pub new_slab: Option<fn(*const u8, usize)>,
    /// Told of damage, once and when it is found, during the mount and after it.
    pub listener: Option<&'static dyn Listener>,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            incarnation: [0; 16],
            owner: [0; 32],
            discard: false,
            cache_bytes: 64 << 20,
            new_slab: None,
            listener: None,
        }
    }
}

/// The owner that has the volume on `device` mounted, or had it when it crashed:
/// [`MountOptions::owner`] of that mount. Zeros: none, or it gave no name.
///
/// # Errors
/// Those of the image or the device.
pub fn owner<M: Addressable>(device: &mut M) -> Result<[u8; 32]> {
    let superblocks = Superblocks::read(device)?;
    Ok(Headers::read(device, &superblocks.sb).newest()?.owner)
}

/// Opens the volume on `device`: reads the superblock and replays the journal.
///
/// After the end of a process every record is replayed, after power loss those up to the last
/// commit mark. A crash within is recovered from by the next mount in the same way.
pub(crate) fn mount<M: Addressable>(mut device: M, options: &MountOptions) -> Result<Store<M>> {
    let opening = Opening::begin(&mut device, !options.read_only)?;
    let sb = opening.sb().clone();
    let header = opening.header?;
    if sb.read_compatible != 0 && !options.read_only {
        return Err(FsError::ReadOnlyFeatures);
    }
    // First pass: where the journal ends, and from which mark on its file data counts.
    let found = opening.journal(&mut device, &header, options.incarnation)?;
    if found.is_cut {
        return Err(Corruption::JournalCut.into());
    }
    let Found { tail, extent, trusted, end, .. } = found;

    let mut journal = Journal::new(&sb, header.tail, &extent.end);
    journal.note_sequence(extent.latest);
    let cache = Cache::new(options.cache_bytes, options.new_slab);
    let mut store = Store::new(device, sb, &header, journal, header.state, cache, false);
    store.listener = options.listener;
    opening.notes(Some(&found)).for_each(|note| store.note(note));
    let replay = Replay {
        tail,
        end,
        // In the same incarnation file data is where it belongs, or newer data is; so it is after a
        // flush of the device.
        data_after: if trusted { Position::MAX } else { extent.void_before },
    };
    if options.read_only {
        store.lay_over(&replay)?;
        store.set_read_only(true);
        return Ok(store);
    }
    store.discards = Discards::new(options.discard);
    let begun = (|| {
        opening.superblocks.restore(&mut store.device)?;
        opening.headers.restore(&mut store.device, &store.superblock, &header)?;
        if end != tail {
            if trusted && extent.committed != end {
                // Records must be committed before they are applied at home, or power loss now
                // would leave home ahead of the journal. After power loss they are committed.
                store.commit_recovered()?;
            } else {
                // The lists of an earlier recovery may be in memory alone.
                store.device.flush()?;
            }
            store.recover(&replay, (options.cache_bytes / BLOCK_SIZE).max(64))?;
        }
        store.set_incarnation(options.incarnation, options.owner);
        store.begin_journal()
    })();
    match begun {
        Ok(()) => Ok(store),
        // Nothing tells which of its writes are on the medium, and the next mount must not believe
        // memory.
        Err(error @ FsError::Device(BlockError::Io)) => store.fail(error),
        Err(error) => Err(error),
    }
}

/// The inodes that were unlinked but open when the volume was last used.
pub(crate) fn orphans<M: Addressable>(store: &mut Store<M>) -> Result<Vec<Ino>> {
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
