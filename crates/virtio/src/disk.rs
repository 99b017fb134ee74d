//! A disk: VIRTIO 1.2, 5.2. One request at a time, whose data goes to and from the caller's buffer.

use alloc::vec;

use atoll_block::device::{block_range, checked_blocks};
use atoll_block::{BLOCK_SIZE, BlockDevice, BlockError, BlockIndex, SECTOR_SIZE};
use atoll_transport::Memory;
use atoll_transport::channel::Mapped;

use crate::device::{Device, DeviceError};
use crate::lent::{Call, CallError, Copies, call};
use crate::platform::{Platform, Region};
use crate::requests::{Requests, settle};

const F_SIZE_MAX: u64 = 1 << 1;
const F_READ_ONLY: u64 = 1 << 5;
const F_FLUSH: u64 = 1 << 9;
const F_WRITE_ZEROES: u64 = 1 << 14;

// Kinds of requests.
const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const WRITE_ZEROES: u32 = 13;

// Outcomes.
const OK: u8 = 0;
const UNSUPPORTED: u8 = 2;
/// None: what stands there before the device has said anything.
const NOTHING: u8 = 0xff;

/// The storage may be given back.
const UNMAP: u32 = 1;

/// Entries of the queue.
const ENTRIES: u16 = 8;
/// A request's parts in memory that is shared: its header, the range to be zeroed, its outcome.
const HEADER: usize = 0;
const HEADER_LEN: usize = 16;
const RANGE: usize = 64;
const RANGE_LEN: usize = 16;
const OUTCOME: usize = 128;
/// The most bytes of one request.
const MOST: usize = 1 << 20;
/// Of one whose data is copied, or is zeros.
const COPIED: usize = 64 << 10;
/// Blocks in a sector's units.
const SECTORS: u64 = (BLOCK_SIZE / SECTOR_SIZE) as u64;

/// Words of the configuration, by their offsets.
mod config {
    pub const CAPACITY: usize = 0;
    pub const SIZE_MAX: usize = 8;
    pub const ZEROES_MAX: usize = 48;
    pub const ZEROES_MAY_UNMAP: usize = 56;
}

/// A disk.
#[derive(Debug)]
pub struct Disk<D, P: Platform> {
    device: D,
    platform: P,
    requests: Requests<P::Memory>,
    place: Region<P::Memory>,
    copies: Copies<P::Memory>,
    block_count: u64,
    read_only: bool,
    flushes: bool,
    /// The most sectors of a request for zeros, and whether it may give storage back. `None` where
    /// there are no such requests.
    zeroes: Option<(u32, bool)>,
    /// The most bytes of a request, a multiple of the block size.
    most: usize,
}

impl<D: Device, P: Platform> Disk<D, P> {
    /// Sets the disk `device` up.
    ///
    /// # Errors
    /// [`DeviceError`]; `Unsupported` for a disk whose requests are smaller than a block.
    pub fn new(device: D, platform: P) -> Result<Self, DeviceError> {
        Self::with_copies(device, platform, COPIED)
    }

    /// The same with a place of `copied` bytes, at least a block, for the data of each request that
    /// the platform cannot lend.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_copies(mut device: D, mut platform: P, copied: usize) -> Result<Self, DeviceError> {
        let wanted = F_SIZE_MAX | F_READ_ONLY | F_FLUSH | F_WRITE_ZEROES;
        let agreed = settle(&mut device, wanted)?;
        let mut word = [0; 8];
        device.configuration(config::CAPACITY, &mut word)?;
        let block_count = u64::from_le_bytes(word) / SECTORS;
        let mut number = |at: usize| {
            let mut word = [0; 4];
            device.configuration(at, &mut word).map(|()| u32::from_le_bytes(word))
        };
        let mut most = MOST;
        if agreed & F_SIZE_MAX != 0 {
            let size = number(config::SIZE_MAX)? as usize;
            // QEMU's storage daemon offers the feature, and says 0 where there is no limit.
            if size > 0 {
                most = most.min(size - size % BLOCK_SIZE);
            }
        }
        let mut zeroes = None;
        if agreed & F_WRITE_ZEROES != 0 {
            let sectors = number(config::ZEROES_MAX)?;
            let mut may = [0];
            device.configuration(config::ZEROES_MAY_UNMAP, &mut may)?;
            let whole = sectors - sectors % SECTORS as u32;
            zeroes = (whole > 0).then_some((whole, may[0] != 0));
        }
        if most == 0 || block_count > u64::MAX / BLOCK_SIZE as u64 {
            return Err(DeviceError::Unsupported);
        }
        let requests = Requests::begin(&mut device, &mut platform, 0, ENTRIES, 4, agreed)?;
        let place = platform.share(4096).ok_or(DeviceError::NoMemory)?;
        let copies =
            Copies::new(&mut platform, copied.max(BLOCK_SIZE)).ok_or(DeviceError::NoMemory)?;
        device.start()?;
        Ok(Disk {
            device,
            platform,
            requests,
            place,
            copies,
            block_count,
            read_only: agreed & F_READ_ONLY != 0,
            flushes: agreed & F_FLUSH != 0,
            zeroes,
            most,
        })
    }

    /// Whether a discard may give storage back.
    pub fn gives_back(&self) -> bool {
        !self.read_only && self.zeroes.is_some_and(|(_, may_unmap)| may_unmap)
    }

    /// Whether the disk may not be written.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Stops the disk, and gives back what it was made of.
    pub fn stop(mut self) -> (D, P) {
        self.requests.end(&mut self.device);
        (self.device, self.platform)
    }

    /// Sends a request of this kind and waits for its outcome.
    fn ask(
        &mut self,
        kind: u32,
        sector: u64,
        data: &[u8],
        room: &mut [u8],
    ) -> Result<(), BlockError> {
        let shared = self.place.memory().shared();
        shared.write(HEADER, &kind.to_le_bytes());
        shared.write(HEADER + 4, &[0; 4]);
        shared.write(HEADER + 8, &sector.to_le_bytes());
        shared.write(OUTCOME, &[NOTHING]);
        let header = self.place.part(HEADER, HEADER_LEN);
        let range = self.place.part(RANGE, RANGE_LEN);
        let head = [header, range];
        let head = if kind == WRITE_ZEROES { &head[..] } else { &head[..1] };
        let wanted = room.len() + 1;
        let tail = &[self.place.part(OUTCOME, 1)];
        let request = Call { head, data, answer: &[], room, tail };
        let (requests, copies) = (&mut self.requests, &self.copies);
        let sent = call(requests, &mut self.device, &mut self.platform, copies, request);
        let written = sent.map_err(|error| match error {
            // The caller sends less.
            CallError::TooLarge => BlockError::OutOfRange,
            CallError::Full | CallError::Device(_) => BlockError::Io,
        })?;
        let mut outcome = [NOTHING];
        self.place.memory().read(OUTCOME, &mut outcome);
        match outcome[0] {
            // Less is not all of the data.
            OK if written >= wanted => Ok(()),
            UNSUPPORTED => Err(BlockError::Unsupported),
            _ => Err(BlockError::Io),
        }
    }

    /// The bytes of the next request, of `left`. If the platform lends nothing, they are copied.
    fn piece(&self, left: usize, is_copied: bool) -> usize {
        left.min(if is_copied { self.most.min(self.copies.len()) } else { self.most })
    }

    /// As [`BlockDevice::write`], where the disk may be written.
    fn store(&mut self, at: u64, data: &[u8]) -> Result<(), BlockError> {
        let (mut done, mut is_copied) = (0, false);
        while done < data.len() {
            let now = self.piece(data.len() - done, is_copied);
            let sector = (at + done as u64) / SECTOR_SIZE as u64;
            match self.ask(OUT, sector, &data[done..done + now], &mut []) {
                Err(BlockError::OutOfRange) if !is_copied => is_copied = true,
                stored => {
                    stored?;
                    done += now;
                }
            }
        }
        Ok(())
    }

    /// Stores zeros in `count` blocks from `first` by their data.
    fn store_zeros(&mut self, first: u64, count: u64) -> Result<(), BlockError> {
        let zeros = vec![0; COPIED];
        let (mut at, mut left) = (BlockIndex(first).byte_offset(), count * BLOCK_SIZE as u64);
        while left > 0 {
            let now = left.min(COPIED as u64);
            self.store(at, &zeros[..now as usize])?;
            (at, left) = (at + now, left - now);
        }
        Ok(())
    }
}

impl<D: Device, P: Platform> BlockDevice for Disk<D, P> {
    fn block_count(&self) -> u64 {
        self.block_count
    }

    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<(), BlockError> {
        let at = block_range(self.block_count, first, buf.len())?;
        let (mut done, mut is_copied) = (0, false);
        while done < buf.len() {
            let now = self.piece(buf.len() - done, is_copied);
            let sector = (at + done as u64) / SECTOR_SIZE as u64;
            match self.ask(IN, sector, &[], &mut buf[done..done + now]) {
                Err(BlockError::OutOfRange) if !is_copied => is_copied = true,
                read => {
                    read?;
                    done += now;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<(), BlockError> {
        let at = block_range(self.block_count, first, data.len())?;
        if self.read_only {
            return Err(BlockError::ReadOnly);
        }
        self.store(at, data)
    }

    /// A disk that takes no requests for that has no cache (VIRTIO 1.2, 5.2.6.2).
    fn flush(&mut self) -> Result<(), BlockError> {
        if self.flushes { self.ask(FLUSH, 0, &[], &mut []) } else { Ok(()) }
    }

    /// DISCARD of virtio says nothing about what is read afterwards: zeros are asked for, with
    /// leave to give the storage back.
    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        checked_blocks(self.block_count, first, count)?;
        if self.read_only {
            return Err(BlockError::ReadOnly);
        }
        let (mut at, mut left) = (first.0, count);
        while left > 0 {
            let Some((most, may_unmap)) = self.zeroes else {
                return self.store_zeros(at, left);
            };
            let now = left.min(u64::from(most) / SECTORS);
            let flags = if may_unmap { UNMAP } else { 0 };
            let shared = self.place.memory().shared();
            shared.write(RANGE, &(at * SECTORS).to_le_bytes());
            shared.write(RANGE + 8, &((now * SECTORS) as u32).to_le_bytes());
            shared.write(RANGE + 12, &flags.to_le_bytes());
            match self.ask(WRITE_ZEROES, 0, &[], &mut []) {
                Err(BlockError::Unsupported) => self.zeroes = None,
                zeroed => {
                    zeroed?;
                    (at, left) = (at + now, left - now);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
