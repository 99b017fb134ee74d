//! The device that tests crash against: in memory, with faults that are planned, and with every
//! content that a crash could leave.
//!
//! Read [`image`] first, the content of a device that is cheap to copy; then [`media`], what is
//! durable and what may be; then [`recording`], which cuts a finished run anywhere.
//!
//! Nothing here is random: seeds and choices are arguments, so that a failure can be replayed.

mod detached;
pub mod image;
pub mod media;
pub mod recording;

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::device::{
    Addressable, BLOCK_SIZE, BlockDevice, BlockIndex, block_range, checked_blocks,
};
use crate::error::BlockError;
use crate::flusher::Flusher;
use detached::Detached;
pub use image::Image;
pub use media::{Discarded, Event, Media, Survival};
pub use recording::{Recording, Replay};

/// The faults of a device, from the next call on.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Reads and loads that touch these blocks fail with [`BlockError::Io`].
    pub read_errors: BTreeSet<u64>,
    /// Stores, writes and discards that touch these blocks fail with [`BlockError::Io`]. The
    /// blocks before the first such are stored.
    pub write_errors: BTreeSet<u64>,
    /// How many more blocks that have no storage yet can get it, as on a sparse file on a nearly
    /// full disk; then [`BlockError::NoSpace`], with the blocks before stored. Discarded blocks
    /// count again. `None` is no limit.
    pub free_blocks: Option<u64>,
    /// It cannot set storage aside.
    pub reserves_nothing: bool,
    /// The content of discarded blocks. All but zeros is less than [`BlockDevice`] promises.
    pub discarded: Discarded,
    /// How many flushes fail with [`BlockError::Io`].
    pub flush_errors: u32,
    /// How many flushes succeed before those.
    pub flushes_before: u32,
    /// How many of the next [`Flusher`]s that are taken fail with [`BlockError::Io`] when they are
    /// asked.
    pub flusher_errors: u32,
    /// Once [`FaultDevice::events`] has reached this number every call fails with
    /// [`BlockError::Io`] and changes nothing: the file system above is cut off there.
    pub stop_after: Option<u64>,
}

/// A device in memory that keeps what was durable apart from what was written since.
///
/// A crash is taken from it at any moment, as an [`Image`]: [`process_crash`](Self::process_crash)
/// or [`power_loss`](Self::power_loss). To try every moment of one run, record it.
#[derive(Clone, Debug)]
pub struct FaultDevice {
    media: Media,
    events: u64,
    /// The flushers that were taken and whose flush has not been carried out.
    detached: Vec<Detached>,
    recording: Option<Recording>,
    /// The bytes that are read in place of the memory above the medium.
    past_cache: Option<Image>,
    /// The faults from now on.
    pub faults: Faults,
}

impl FaultDevice {
    /// A device of `block_count` blocks that were never written.
    pub fn new(block_count: u64) -> Self {
        Self::from_image(Image::new(block_count))
    }

    /// A device on which `image` is durable.
    pub fn from_image(image: Image) -> Self {
        Self::from_media(Media::new(image))
    }

    /// A device over `media`, of which not all has to be durable: the device of the next process
    /// after one that ended.
    pub fn from_media(media: Media) -> Self {
        FaultDevice {
            media,
            events: 0,
            detached: Vec::new(),
            recording: None,
            past_cache: None,
            faults: Faults::default(),
        }
    }

    /// How many events (stores, writes, discards and flushes that were carried out, in part at
    /// least, and failed flushes) there have been. Calls that change nothing are none.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Whether [`Faults::stop_after`] has been reached.
    pub fn is_stopped(&self) -> bool {
        self.faults.stop_after.is_some_and(|limit| self.events >= limit)
    }

    /// The durable content, and what may be durable besides.
    pub fn media(&self) -> &Media {
        &self.media
    }

    /// The same, without the device.
    pub fn into_media(self) -> Media {
        self.media
    }

    /// The image that a process leaves if it ends now: every completed call.
    pub fn process_crash(&self) -> Image {
        self.media.current().clone()
    }

    /// The image that power loss leaves now, with `survival` of what is not durable.
    pub fn power_loss(&self, survival: Survival) -> Image {
        self.media.power_loss(survival)
    }

    /// Records events from now on, from an empty record.
    pub fn start_recording(&mut self) {
        self.recording = Some(Recording::new(self.media.clone()));
    }

    /// Ends recording and returns what was recorded, or `None` if nothing was being recorded.
    pub fn take_recording(&mut self) -> Option<Recording> {
        self.recording.take()
    }

    /// Carries out what [`Flusher`]s have been asked since the last call of the device. Their
    /// flushes are not seen before by [`media`](Self::media) and the like, and come before whatever
    /// the device is asked next.
    pub fn note_flushers(&mut self) {
        for at in (0..self.detached.len()).rev() {
            if !self.detached[at].is_pending() {
                let done = self.detached.swap_remove(at);
                if let Some(event) = done.event() {
                    self.happen(event);
                }
            }
        }
    }

    fn alive(&self) -> Result<(), BlockError> {
        if self.is_stopped() { Err(BlockError::Io) } else { Ok(()) }
    }

    fn writable(&self) -> Result<(), BlockError> {
        if self.past_cache.is_some() { Err(BlockError::ReadOnly) } else { self.alive() }
    }

    fn happen(&mut self, event: Event) {
        self.media.apply(&event);
        self.events += 1;
        if let Some(recording) = &mut self.recording {
            recording.push(event);
        }
        if self.is_stopped() {
            self.detached.iter().for_each(Detached::stop);
        }
    }

    /// How many of the `len` bytes from `at` can be stored, and what stops the others. Takes the
    /// storage that they need.
    fn storable(&mut self, at: u64, len: u64) -> (u64, Result<(), BlockError>) {
        let first = at / BLOCK_SIZE as u64;
        let end = (at + len).div_ceil(BLOCK_SIZE as u64);
        for block in first..end {
            let before = (block * BLOCK_SIZE as u64).saturating_sub(at);
            if self.faults.write_errors.contains(&block) {
                return (before, Err(BlockError::Io));
            }
            if let Some(free) = &mut self.faults.free_blocks
                && !self.media.current().is_stored(block)
            {
                if *free == 0 {
                    return (before, Err(BlockError::NoSpace));
                }
                *free -= 1;
            }
        }
        (len, Ok(()))
    }

    fn readable(&self, at: u64, len: u64) -> Result<(), BlockError> {
        let blocks = at / BLOCK_SIZE as u64..(at + len).div_ceil(BLOCK_SIZE as u64);
        match self.faults.read_errors.range(blocks).next() {
            Some(_) if len > 0 => Err(BlockError::Io),
            _ => Ok(()),
        }
    }

    fn checked(&self, at: u64, len: u64) -> Result<(), BlockError> {
        let size = self.block_count() * BLOCK_SIZE as u64;
        match at.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(BlockError::OutOfRange),
        }
    }
}

impl BlockDevice for FaultDevice {
    fn block_count(&self) -> u64 {
        self.media.current().block_count()
    }

    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<(), BlockError> {
        let at = block_range(self.block_count(), first, buf.len())?;
        self.load(at, buf)
    }

    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<(), BlockError> {
        let at = block_range(self.block_count(), first, data.len())?;
        self.store(at, data)
    }

    fn flush(&mut self) -> Result<(), BlockError> {
        self.flush_range(BlockIndex(0), self.block_count())
    }

    fn flush_range(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        let blocks = checked_blocks(self.block_count(), first, count)?;
        self.note_flushers();
        self.alive()?;
        let failed = self.faults.flushes_before == 0 && self.faults.flush_errors > 0;
        self.faults.flush_errors -= u32::from(failed);
        self.faults.flushes_before = self.faults.flushes_before.saturating_sub(1);
        self.happen(Event::Flush { blocks, failed, before: None });
        if failed { Err(BlockError::Io) } else { Ok(()) }
    }

    /// Its flush is an event of the moment when it is asked; see
    /// [`note_flushers`](Self::note_flushers). Blocks written after it was taken are as volatile
    /// as before.
    fn flusher(&mut self, first: BlockIndex, count: u64) -> Option<Flusher> {
        let blocks = checked_blocks(self.block_count(), first, count).ok()?;
        self.note_flushers();
        let fails = self.faults.flusher_errors > 0;
        self.faults.flusher_errors -= u32::from(fails);
        let (detached, flusher) = Detached::new(blocks, self.media.now(), fails);
        if self.is_stopped() {
            detached.stop();
        }
        self.detached.push(detached);
        Some(flusher)
    }

    /// Zeros in the blocks that have no storage, where [`Faults::free_blocks`] limits that.
    fn reserve(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        let blocks = checked_blocks(self.block_count(), first, count)?;
        if self.faults.reserves_nothing {
            return Err(BlockError::Unsupported);
        }
        for block in blocks {
            if self.faults.free_blocks.is_some() && !self.media.current().is_stored(block) {
                self.store_zeros(BlockIndex(block).byte_offset(), BLOCK_SIZE as u64)?;
            }
        }
        Ok(())
    }

    /// Bytes that a failed flush gave up are those that were durable before. No event, and not in a
    /// recording.
    fn forget_cached(&mut self) -> Result<(), BlockError> {
        self.note_flushers();
        self.media.forget_given_up();
        Ok(())
    }

    fn read_past_cache(&mut self) -> Result<(), BlockError> {
        self.note_flushers();
        let mut media = self.media.clone();
        media.forget_given_up();
        self.past_cache = Some(media.current().clone());
        Ok(())
    }

    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        let blocks = checked_blocks(self.block_count(), first, count)?;
        self.note_flushers();
        self.writable()?;
        let stop = self.faults.write_errors.range(blocks.clone()).next().copied();
        let end = stop.unwrap_or(blocks.end);
        if blocks.start < end {
            if let Some(free) = &mut self.faults.free_blocks {
                let current = self.media.current();
                *free += (blocks.start..end).filter(|&b| current.is_stored(b)).count() as u64;
            }
            let (first, count) = (blocks.start, end - blocks.start);
            self.happen(Event::Discard { first, count, leaves: self.faults.discarded });
        }
        if stop.is_some() { Err(BlockError::Io) } else { Ok(()) }
    }
}

impl Addressable for FaultDevice {
    fn load(&mut self, at: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.checked(at, buf.len() as u64)?;
        self.note_flushers();
        self.alive()?;
        self.readable(at, buf.len() as u64)?;
        self.past_cache.as_ref().unwrap_or(self.media.current()).read(at, buf);
        Ok(())
    }

    fn store(&mut self, at: u64, data: &[u8]) -> Result<(), BlockError> {
        self.checked(at, data.len() as u64)?;
        self.note_flushers();
        self.writable()?;
        let (len, outcome) = self.storable(at, data.len() as u64);
        if len > 0 {
            self.happen(Event::Store { at, data: Box::from(&data[..len as usize]) });
        }
        outcome
    }

    fn store_zeros(&mut self, at: u64, len: u64) -> Result<(), BlockError> {
        self.checked(at, len)?;
        self.note_flushers();
        self.writable()?;
        let (len, outcome) = self.storable(at, len);
        if len > 0 {
            self.happen(Event::Zeros { at, len });
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
