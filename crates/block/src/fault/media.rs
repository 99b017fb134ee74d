//! The content of a medium, and what it may be after power is lost.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use super::image::{Image, Sector, mix};
use crate::device::{BLOCK_SIZE, SECTOR_SIZE};

const SECTORS_PER_BLOCK: u64 = (BLOCK_SIZE / SECTOR_SIZE) as u64;

/// One call that changed a device, as it was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes stored, by `store` or `write`.
    Store {
        /// Byte offset.
        at: u64,
        /// The bytes stored.
        data: Box<[u8]>,
    },
    /// Zeros stored.
    Zeros {
        /// Byte offset.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// Blocks discarded.
    Discard {
        /// Index of the first.
        first: u64,
        /// How many.
        count: u64,
        /// Their content then.
        leaves: Discarded,
    },
    /// Blocks flushed.
    Flush {
        /// Which.
        blocks: Range<u64>,
        /// Whether the flush returned an error, after which nothing is known of the range.
        failed: bool,
        /// Only what was written before this moment of [`Media::now`]; `None`: everything.
        before: Option<u64>,
    },
}

impl Event {
    /// Bytes that the event stores one after another, hence the places where it can be cut.
    pub fn len(&self) -> u64 {
        match self {
            Event::Store { data, .. } => data.len() as u64,
            Event::Zeros { len, .. } => *len,
            Event::Discard { count, .. } => count * BLOCK_SIZE as u64,
            Event::Flush { .. } => 0,
        }
    }

    /// Whether the event stores nothing, as a flush.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The content of blocks after they were discarded, until they are written again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discarded {
    /// Zeros, and no storage.
    #[default]
    Zeros,
    /// Their earlier content, as on a disk that takes a discard for advice.
    Kept,
    /// Anything, as on a disk that gives them to others meanwhile.
    Noise,
}

/// Which contents power loss leaves in the sectors that were written since they were last durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// The durable ones: every unflushed write is lost.
    None,
    /// The latest: every unflushed write survives.
    All,
    /// The latest but in one sector, which has the durable one: of those that differ the one with
    /// this number, counted around.
    AllBut(u64),
    /// The durable ones but in one sector, which has the latest: chosen alike.
    Only(u64),
    /// Each sector one of its contents, chosen from the seed and the sector's number. The seed
    /// also sets how likely the durable and the latest content are, so that among many seeds some
    /// lose a few sectors, some nearly all, some mix old versions.
    Seed(u64),
}

/// The contents that a sector may have after power loss besides the durable one, oldest first.
#[derive(Clone, Debug)]
struct Pending {
    /// Each with the moment when it was written.
    versions: Vec<(u64, Arc<Sector>)>,
    /// A flush of these versions failed: no later flush makes them durable, only a new write.
    given_up: bool,
}

/// The state of a medium with a volatile cache: what reads return, what is durable, and every
/// content between the two.
#[derive(Clone, Debug)]
pub struct Media {
    current: Image,
    durable: Image,
    pending: BTreeMap<u64, Pending>,
    now: u64,
}

impl Media {
    /// A medium on which `image` is durable.
    pub fn new(image: Image) -> Self {
        Media { durable: image.clone(), current: image, pending: BTreeMap::new(), now: 0 }
    }

    /// The moment that it is, counted in events.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The content that reads return: a crash of the process leaves it.
    pub fn current(&self) -> &Image {
        &self.current
    }

    /// The content that is certainly durable.
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// The sectors with more than one possible content after power loss, in order, each with their
    /// number (the durable content counted, so 2 or more).
    pub fn pending(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.pending.iter().map(|(&sector, p)| (sector, p.versions.len() + 1))
    }

    /// Whether reads return bytes that a failed flush gave up, which may not be what is durable.
    pub fn has_given_up(&self) -> bool {
        self.pending.values().any(|pending| pending.given_up)
    }

    /// The image after power loss. `choose` is asked once for each sector of
    /// [`pending`](Self::pending), in order, with the sector and the number of its contents, which
    /// one survives: 0 is the durable one, the others follow as they were written.
    pub fn power_loss_with(&self, mut choose: impl FnMut(u64, usize) -> usize) -> Image {
        let mut image = self.durable.clone();
        for (&sector, pending) in &self.pending {
            let choice = choose(sector, pending.versions.len() + 1);
            if choice > 0 {
                image.write(sector * SECTOR_SIZE as u64, &pending.versions[choice - 1].1[..]);
            }
        }
        image
    }

    /// The image after power loss.
    pub fn power_loss(&self, survival: Survival) -> Image {
        match survival {
            Survival::None => self.durable.clone(),
            Survival::All => self.power_loss_with(|_, contents| contents - 1),
            Survival::AllBut(number) => {
                let lost = self.nth_pending(number);
                self.power_loss_with(
                    |sector, contents| {
                        if Some(sector) == lost { 0 } else { contents - 1 }
                    },
                )
            }
            Survival::Only(number) => {
                let mut image = self.durable.clone();
                if let Some(sector) = self.nth_pending(number) {
                    image.write(sector * SECTOR_SIZE as u64, &self.current.sector(sector));
                }
                image
            }
            Survival::Seed(seed) => {
                let odds = mix(seed);
                let (durable, latest) = (odds & 0xff, odds >> 8 & 0xff);
                self.power_loss_with(|sector, contents| {
                    let r = mix(odds ^ sector.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    if r & 0xff < durable {
                        0
                    } else if r >> 8 & 0xff < latest {
                        contents - 1
                    } else {
                        ((r >> 16) % contents as u64) as usize
                    }
                })
            }
        }
    }

    /// One of the sectors that differ.
    fn nth_pending(&self, number: u64) -> Option<u64> {
        let at = number.checked_rem(self.pending.len() as u64)?;
        self.pending.keys().nth(at as usize).copied()
    }

    /// Carries out `event`.
    pub fn apply(&mut self, event: &Event) {
        self.apply_without(event, 0..0);
    }

    /// Carries out `event` except for the bytes `missing` of those that it stores: what a process
    /// leaves that ends within a store. `n..event.len()` is a store cut after `n` bytes; a copy
    /// routine that stores the end first leaves a gap in the middle.
    pub fn apply_without(&mut self, event: &Event, missing: Range<u64>) {
        let parts = [0..missing.start.min(event.len()), missing.end..event.len()];
        for part in parts.into_iter().filter(|part| part.start < part.end) {
            match event {
                Event::Store { at, data } => {
                    self.store(at + part.start, &data[part.start as usize..part.end as usize]);
                }
                Event::Zeros { at, .. } => self.zeros(at + part.start, part.end - part.start),
                Event::Discard { first, leaves, .. } => {
                    let at = first * BLOCK_SIZE as u64 + part.start;
                    match leaves {
                        Discarded::Zeros => self.zeros(at, part.end - part.start),
                        Discarded::Kept => {}
                        Discarded::Noise => self.noise(at, part.end - part.start),
                    }
                }
                Event::Flush { .. } => {}
            }
        }
        match event {
            Event::Discard { first, count, leaves: Discarded::Zeros } if missing.is_empty() => {
                (*first..first + count).for_each(|block| self.current.discard(block));
            }
            Event::Flush { blocks, failed, before } => {
                self.flush(blocks.clone(), *failed, before.unwrap_or(u64::MAX));
            }
            _ => {}
        }
        self.now += 1;
    }

    /// Lets go of what a failed flush gave up: from now on reads return what is durable there.
    pub(super) fn forget_given_up(&mut self) {
        let (current, durable) = (&mut self.current, &self.durable);
        self.pending.retain(|&sector, pending| {
            if pending.given_up {
                current.write(sector * SECTOR_SIZE as u64, &durable.sector(sector));
            }
            !pending.given_up
        });
    }

    fn zeros(&mut self, at: u64, len: u64) {
        static ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(BLOCK_SIZE as u64);
            self.store(at + done, &ZEROS[..n as usize]);
            done += n;
        }
    }

    /// Stores what depends on the place and the moment alone.
    fn noise(&mut self, at: u64, len: u64) {
        let mut done = 0;
        while done < len {
            let at = at + done;
            let n = (len - done).min(SECTOR_SIZE as u64 - at % SECTOR_SIZE as u64);
            let mut word = mix(at ^ self.now << 40);
            let mut noise = [0; SECTOR_SIZE];
            for bytes in noise.chunks_exact_mut(8) {
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            self.store(at, &noise[..n as usize]);
            done += n;
        }
    }

    fn store(&mut self, at: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let offset = at + done as u64;
            let sector = offset / SECTOR_SIZE as u64;
            let within = (offset % SECTOR_SIZE as u64) as usize;
            let n = (data.len() - done).min(SECTOR_SIZE - within);
            let part = &data[done..done + n];
            done += n;
            let is_same = self.current.is(offset, part);
            if !is_same || !self.current.is_stored(offset / BLOCK_SIZE as u64) {
                self.current.write(offset, part);
            }
            if is_same {
                if let Some(pending) = self.pending.get_mut(&sector) {
                    pending.given_up = false;
                }
                continue;
            }
            let version = (self.now, Arc::new(self.current.sector(sector)));
            let pending = self.pending.entry(sector);
            let pending = pending.or_insert(Pending { versions: Vec::new(), given_up: false });
            pending.given_up = false;
            pending.versions.push(version);
        }
    }

    /// Flushes what was written to `blocks` before the moment `before`.
    fn flush(&mut self, blocks: Range<u64>, failed: bool, before: u64) {
        let sectors = blocks.start * SECTORS_PER_BLOCK..blocks.end * SECTORS_PER_BLOCK;
        if failed {
            let written = |pending: &Pending| pending.versions.iter().any(|(at, _)| *at < before);
            self.pending
                .range_mut(sectors)
                .filter(|(_, pending)| written(pending))
                .for_each(|(_, pending)| pending.given_up = true);
            return;
        }
        let mut rest = self.pending.split_off(&sectors.start);
        let mut after = rest.split_off(&sectors.end);
        for (sector, mut pending) in rest {
            if !pending.given_up {
                let later = pending.versions.partition_point(|(at, _)| *at < before);
                if let Some((_, latest)) = pending.versions.drain(..later).next_back() {
                    self.durable.write(sector * SECTOR_SIZE as u64, &latest[..]);
                }
            }
            if !pending.versions.is_empty() {
                self.pending.insert(sector, pending);
            }
        }
        self.pending.append(&mut after);
    }
}
