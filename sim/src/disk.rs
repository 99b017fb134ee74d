//! The device below the volume: the fault device, shared with the world that cuts its power.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_block::fault::Image;
use atoll_block::{Addressable, BlockDevice, BlockError, BlockIndex, FaultDevice, Flusher};
use atoll_fs::{FormatOptions, format};

type Result<T> = std::result::Result<T, BlockError>;

/// Blocks of the volume: small, so that it is cheap to make.
const BLOCKS: u64 = 1024;
/// Blocks of the journal, as few as there may be: half of it makes a checkpoint due.
const JOURNAL_BLOCKS: u64 = 128;

/// A volume that was just made.
///
/// # Panics
/// If it cannot be made.
pub fn template() -> Image {
    let mut device = FaultDevice::new(BLOCKS);
    let options =
        FormatOptions { journal_blocks: Some(JOURNAL_BLOCKS), ..FormatOptions::default() };
    format(&mut device, &options).expect("the device is large enough");
    device.process_crash()
}

/// One handle of the device; the file system has another.
#[derive(Clone)]
pub struct Disk {
    device: Arc<Mutex<FaultDevice>>,
    /// Says of each flush that it is done, and does nothing.
    lies: bool,
}

impl Disk {
    /// Shares `device`.
    pub fn new(device: FaultDevice, lies: bool) -> Disk {
        Disk { device: Arc::new(Mutex::new(device)), lies }
    }

    /// The device itself. Nothing else runs meanwhile.
    pub fn device(&self) -> MutexGuard<'_, FaultDevice> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockDevice for Disk {
    fn block_count(&self) -> u64 {
        self.device().block_count()
    }

    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<()> {
        self.device().read(first, buf)
    }

    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<()> {
        self.device().write(first, data)
    }

    fn flush(&mut self) -> Result<()> {
        if self.lies { Ok(()) } else { self.device().flush() }
    }

    fn flush_range(&mut self, first: BlockIndex, count: u64) -> Result<()> {
        if self.lies { Ok(()) } else { self.device().flush_range(first, count) }
    }

    fn flusher(&mut self, first: BlockIndex, count: u64) -> Option<Flusher> {
        if self.lies {
            return Some(Flusher::new(|| Ok(())));
        }
        self.device().flusher(first, count)
    }

    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<()> {
        self.device().discard(first, count)
    }
}

impl Addressable for Disk {
    fn load(&mut self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.device().load(at, buf)
    }

    fn store(&mut self, at: u64, data: &[u8]) -> Result<()> {
        self.device().store(at, data)
    }

    fn store_zeros(&mut self, at: u64, len: u64) -> Result<()> {
        self.device().store_zeros(at, len)
    }
}
