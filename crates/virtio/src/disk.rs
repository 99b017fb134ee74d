//! A disk: VIRTIO 1.2, 5.2. Data goes to and from the caller's buffers, by as many requests at once
//! as a call makes and the queue takes, of which the disk hears at once.

use alloc::vec;
use alloc::vec::Vec;

use atoll_block::device::{block_range, checked_blocks};
use atoll_block::{BLOCK_SIZE, BlockDevice, BlockError, BlockIndex, SECTOR_SIZE};
use atoll_transport::Memory;
use atoll_transport::channel::Mapped;

use crate::device::{Device, DeviceError, features};
use crate::lent::{BATCH_MAX, Call, CallError, Copies, call_all};
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

/// Entries of the queue, and the most of a request.
const ENTRIES: u16 = 32;
const PARTS: u16 = 4;
/// A request's parts in memory that is shared: its header, the range to be zeroed, its outcome. So
/// far from each other are those of two requests.
const APART: usize = 256;
const HEADER: usize = 0;
const HEADER_LEN: usize = 16;
const RANGE: usize = 64;
const RANGE_LEN: usize = 16;
const OUTCOME: usize = 128;
/// The most bytes of one request.
const MOST: usize = 1 << 20;
/// Of one whose data is copied.
const COPIED: usize = 32 << 10;
/// Of a write of zeros.
const ZEROS: usize = 64 << 10;
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
    /// The most requests at once.
    batch: usize,
    sent: u64,
}

/// What is asked of the disk.
enum Ask<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
    Flush,
    /// So many sectors become zeros.
    Zero(u32),
}

/// A request: what is asked, of which sector on.
type Request<'a> = (u64, Ask<'a>);

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
        let requests = Requests::begin(&mut device, &mut platform, 0, ENTRIES, PARTS, agreed)?;
        let entries = if agreed & features::INDIRECT != 0 { 1 } else { PARTS };
        let batch = BATCH_MAX.min(usize::from(requests.size() / entries));
        let place = platform.share(BATCH_MAX * APART).ok_or(DeviceError::NoMemory)?;
        let copied = copied.max(BLOCK_SIZE);
        let copies =
            Copies::for_batches(&mut platform, batch, copied).ok_or(DeviceError::NoMemory)?;
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
            batch,
            sent: 0,
        })
    }

    /// How many requests the disk was sent, and how often it was told of some.
    pub fn counts(&self) -> (u64, u64) {
        (self.sent, self.requests.rung())
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

    /// Sends the requests of `batch`, no more than fit at once, and waits for their outcomes.
    ///
    /// # Errors
    /// That of the first that failed; the others have been carried out or not. `OutOfRange`:
    /// nothing has happened, and the caller sends less at a time.
    fn ask(&mut self, batch: Vec<Request<'_>>) -> Result<(), BlockError> {
        let memory = self.place.memory();
        let shared = memory.shared();
        let part = |number: usize, at: usize, len| self.place.part(number * APART + at, len);
        // The parts of each in memory that is shared for ever.
        let empty = part(0, OUTCOME, 0);
        let (mut heads, mut tails) = ([[empty; 2]; BATCH_MAX], [[empty]; BATCH_MAX]);
        for (number, (sector, ask)) in batch.iter().enumerate() {
            let at = number * APART;
            let kind = match ask {
                Ask::Read(_) => IN,
                Ask::Write(_) => OUT,
                Ask::Flush => FLUSH,
                Ask::Zero(_) => WRITE_ZEROES,
            };
            shared.write(at + HEADER, &kind.to_le_bytes());
            shared.write(at + HEADER + 4, &[0; 4]);
            let is_zero = matches!(ask, Ask::Zero(_));
            let first = if is_zero { 0 } else { *sector };
            shared.write(at + HEADER + 8, &first.to_le_bytes());
            if let Ask::Zero(count) = ask {
                let may_unmap = self.zeroes.is_some_and(|(_, may_unmap)| may_unmap);
                let flags = if may_unmap { UNMAP } else { 0 };
                shared.write(at + RANGE, &sector.to_le_bytes());
                shared.write(at + RANGE + 8, &count.to_le_bytes());
                shared.write(at + RANGE + 12, &flags.to_le_bytes());
            }
            shared.write(at + OUTCOME, &[NOTHING]);
            heads[number] = [part(number, HEADER, HEADER_LEN), part(number, RANGE, RANGE_LEN)];
            tails[number] = [part(number, OUTCOME, 1)];
        }
        let parts = heads.iter().zip(&tails);
        let mut calls = Vec::with_capacity(batch.len());
        for ((_, ask), (head, tail)) in batch.into_iter().zip(parts) {
            let head = if matches!(ask, Ask::Zero(_)) { &head[..] } else { &head[..1] };
            let (data, room): (&[u8], &mut [u8]) = match ask {
                Ask::Read(room) => (&[], room),
                Ask::Write(data) => (data, &mut []),
                Ask::Flush | Ask::Zero(_) => (&[], &mut []),
            };
            calls.push(Call { head, data, answer: &[], room, tail });
        }
        let mut written = [0; BATCH_MAX];
        let written = &mut written[..calls.len()];
        let (requests, copies) = (&mut self.requests, &self.copies);
        call_all(requests, &mut self.device, &mut self.platform, copies, &mut calls, written)
            .map_err(|error| match error {
                // The caller sends less.
                CallError::TooLarge => BlockError::OutOfRange,
                CallError::Full | CallError::Device(_) => BlockError::Io,
            })?;
        self.sent += calls.len() as u64;
        calls.iter().zip(written).enumerate().try_for_each(|(number, (call, written))| {
            let mut outcome = [NOTHING];
            memory.read(number * APART + OUTCOME, &mut outcome);
            match outcome[0] {
                // Less is not all of the data.
                OK if *written > call.room.len() => Ok(()),
                UNSUPPORTED => Err(BlockError::Unsupported),
                _ => Err(BlockError::Io),
            }
        })
    }

    /// The most bytes of the next request. If the platform lends nothing, they are copied.
    fn piece(&self, is_copied: bool) -> usize {
        if is_copied { self.most.min(self.copies.each()) } else { self.most }
    }

    /// As [`BlockDevice::write_all`], where the disk may be written and all are within it.
    fn store(&mut self, writes: &[(BlockIndex, &[u8])]) -> Result<(), BlockError> {
        let (mut next, mut is_copied) = ((0, 0), false);
        while next.0 < writes.len() {
            let most = self.piece(is_copied);
            let mut batch = Vec::with_capacity(self.batch);
            // Of which write, and how much of it, the batch ends.
            let (mut number, mut done) = next;
            while batch.len() < self.batch && number < writes.len() {
                let (first, data) = writes[number];
                let now = most.min(data.len() - done);
                if now > 0 {
                    let sector = first.0 * SECTORS + (done / SECTOR_SIZE) as u64;
                    batch.push((sector, Ask::Write(&data[done..done + now])));
                    done += now;
                }
                if done == data.len() {
                    (number, done) = (number + 1, 0);
                }
            }
            match self.ask(batch) {
                Err(BlockError::OutOfRange) if !is_copied => is_copied = true,
                stored => {
                    stored?;
                    next = (number, done);
                }
            }
        }
        Ok(())
    }

    /// Stores zeros in `count` blocks from `first` by their data.
    fn store_zeros(&mut self, first: u64, count: u64) -> Result<(), BlockError> {
        let zeros = vec![0; ZEROS];
        let (mut at, mut left) = (first, count);
        while left > 0 {
            let now = left.min((ZEROS / BLOCK_SIZE) as u64);
            self.store(&[(BlockIndex(at), &zeros[..now as usize * BLOCK_SIZE])])?;
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
            let most = self.piece(is_copied);
            let end = buf.len().min(done + most * self.batch);
            let pieces = buf[done..end].chunks_mut(most).enumerate();
            let sector = |number| (at + (done + number * most) as u64) / SECTOR_SIZE as u64;
            let batch = pieces.map(|(number, room)| (sector(number), Ask::Read(room))).collect();
            match self.ask(batch) {
                Err(BlockError::OutOfRange) if !is_copied => is_copied = true,
                read => {
                    read?;
                    done = end;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<(), BlockError> {
        self.write_all(&[(first, data)])
    }

    /// By as few batches of requests as there can be.
    fn write_all(&mut self, writes: &[(BlockIndex, &[u8])]) -> Result<(), BlockError> {
        for (first, data) in writes {
            block_range(self.block_count, *first, data.len())?;
        }
        if self.read_only {
            return Err(BlockError::ReadOnly);
        }
        self.store(writes)
    }

    /// A disk that takes no requests for that has no cache (VIRTIO 1.2, 5.2.6.2).
    fn flush(&mut self) -> Result<(), BlockError> {
        if self.flushes { self.ask(vec![(0, Ask::Flush)]) } else { Ok(()) }
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
            let Some((most, _)) = self.zeroes else {
                return self.store_zeros(at, left);
            };
            let most = u64::from(most) / SECTORS;
            let (mut next, mut rest) = (at, left);
            let mut batch = Vec::with_capacity(self.batch);
            while batch.len() < self.batch && rest > 0 {
                let now = rest.min(most);
                batch.push((next * SECTORS, Ask::Zero((now * SECTORS) as u32)));
                (next, rest) = (next + now, rest - now);
            }
            match self.ask(batch) {
                Err(BlockError::Unsupported) => self.zeroes = None,
                zeroed => {
                    zeroed?;
                    (at, left) = (next, rest);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
