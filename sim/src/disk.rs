//! The device below the volume: the fault device, shared with the world that cuts its power.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_block::fault::Image;
use atoll_block::{Addressable, BlockDevice, BlockError, BlockIndex, FaultDevice, Flusher};
use atoll_fs::{FormatOptions, format};

type Result<T> = std::result::Result<T, BlockError>;

/// Something that is called once.
type Watch = Box<dyn FnOnce() + Send>;

/// Blocks of the volume: small, so that it is cheap to make.
pub(crate) const BLOCKS: u64 = 1024;
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
    /// How many calls have failed.
    errors: Arc<AtomicU64>,
    /// A flush has failed, maybe one that is waited for without a lock.
    lost: Arc<AtomicBool>,
    /// Called before the next store.
    watch: Arc<Mutex<Option<Watch>>>,
}

impl Disk {
    /// Shares `device`.
    pub fn new(device: FaultDevice, lies: bool) -> Disk {
        Disk {
            device: Arc::new(Mutex::new(device)),
            lies,
            errors: Arc::default(),
            lost: Arc::default(),
            watch: Arc::default(),
        }
    }

    /// Has `watch` called before the next store.
    pub(crate) fn watch(&self, watch: impl FnOnce() + Send + 'static) {
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(watch));
    }

    /// The device itself. Nothing else runs meanwhile.
    pub fn device(&self) -> MutexGuard<'_, FaultDevice> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the device away from all that have it.
    pub(crate) fn take(&self) -> FaultDevice {
        std::mem::replace(&mut *self.device(), FaultDevice::new(0))
    }

    /// How many calls have failed.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// A flush has failed.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Whether a flush has failed: data that was not durable may never be.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether anything has failed, by which the file system may take no more changes.
    pub fn has_failed(&self) -> bool {
        self.is_lost() || self.errors() > 0
    }

    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        if matches!(result, Err(BlockError::Io)) {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// The outcome of a flush: each later flush reports one that has failed, as Linux reports it to
    /// each opening of a file.
    fn told(&self, result: Result<()>) -> Result<()> {
        if self.is_lost() { Err(BlockError::Io) } else { result }
    }

    fn flushed(&self, result: Result<()>) -> Result<()> {
        if result.is_err() {
            self.lose();
        }
        self.noted(result)
    }
}

impl BlockDevice for Disk {
    fn block_count(&self) -> u64 {
        self.device().block_count()
    }

    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<()> {
        let read = self.device().read(first, buf);
        self.noted(read)
    }

    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<()> {
        let written = self.device().write(first, data);
        self.noted(written)
    }

    fn flush(&mut self) -> Result<()> {
        let flushed = if self.lies { Ok(()) } else { self.device().flush() };
        self.flushed(self.told(flushed))
    }

    fn flush_range(&mut self, first: BlockIndex, count: u64) -> Result<()> {
        let flushed = if self.lies { Ok(()) } else { self.device().flush_range(first, count) };
        self.flushed(self.told(flushed))
    }

    fn flusher(&mut self, first: BlockIndex, count: u64) -> Option<Flusher> {
        if self.lies {
            return Some(Flusher::new(|| Ok(())));
        }
        self.device().flusher(first, count)
    }

    fn reserve(&mut self, first: BlockIndex, count: u64) -> Result<()> {
        self.device().reserve(first, count)
    }

    fn forget_cached(&mut self) -> Result<()> {
        self.device().forget_cached()
    }

    fn read_past_cache(&mut self) -> Result<()> {
        self.device().read_past_cache()
    }

    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<()> {
        let discarded = self.device().discard(first, count);
        self.noted(discarded)
    }
}

impl Addressable for Disk {
    fn load(&mut self, at: u64, buf: &mut [u8]) -> Result<()> {
        let loaded = self.device().load(at, buf);
        self.noted(loaded)
    }

    fn store(&mut self, at: u64, data: &[u8]) -> Result<()> {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(watch) = watch {
            watch();
        }
        let stored = self.device().store(at, data);
        self.noted(stored)
    }

    fn store_zeros(&mut self, at: u64, len: u64) -> Result<()> {
        let stored = self.device().store_zeros(at, len);
        self.noted(stored)
    }
}
