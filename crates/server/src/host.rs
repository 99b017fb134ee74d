//! What the server asks of the machine that it runs on: time, randomness, memory that clients map,
//! and threads to be woken. The server itself has no clock, starts no thread and makes no system
//! call, so that all of it can run in one thread from one seed.

use std::any::Any;
use std::time::Duration;

use atoll_vfs::view::{Size, ViewWriter};
use atoll_vfs::{Result, Timespec};

/// To be called once, when something is done. It must not block.
pub type Done = Box<dyn FnOnce() + Send>;

/// The machine, as far as the server needs one.
pub trait Host: Send + Sync {
    /// The time of day, which files get.
    fn now(&self) -> Timespec;

    /// How long it has been since some moment before everything else. It never goes back.
    fn uptime(&self) -> Duration;

    /// Fills `bytes` with what nobody can guess.
    ///
    /// # Errors
    /// `EIO` when there is nothing random.
    fn random(&self, bytes: &mut [u8]) -> Result<()>;

    /// Calls `begin` and returns when what that was given has been called, maybe by another thread.
    /// For calls that no carrier has brought, whose callers have nothing else to do. While the
    /// caller panics it does nothing.
    fn wait(&self, begin: &mut dyn FnMut(Done));

    /// Memory for the content of a file that clients map: zeros.
    ///
    /// # Errors
    /// `ENOSYS` where the machine has no such memory; `EMFILE`, `ENOMEM`.
    fn pages(&self) -> Result<Box<dyn Pages>>;

    /// A View of at most `bytes`, in memory that clients can only read; `None` when that is too
    /// little.
    ///
    /// # Errors
    /// Those of making memory.
    fn view(&self, bytes: usize) -> Result<Option<Box<dyn ViewMemory>>>;
}

/// Somebody who does what there is to do when woken, and then looks whether there is more.
pub trait Bell: Send + Sync {
    /// There is something to do. It must not block.
    fn ring(&self);
}

/// Bytes of the memory of a mapped file, of which as good as all are never used: the longest file
/// that is mapped.
pub const PAGES_LEN: u64 = 1 << 44;

/// Memory of [`PAGES_LEN`] bytes that stands for a file's content. Clients change it at any time.
pub trait Pages: Any + Send {
    /// Copies out what is at `at`.
    ///
    /// # Errors
    /// What the machine says.
    fn read(&self, at: u64, to: &mut [u8]) -> Result<()>;

    /// Copies `from` to `at`.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn write(&self, at: u64, from: &[u8]) -> Result<()>;

    /// Makes `from..to` zeros, which take no memory.
    ///
    /// # Errors
    /// What the machine says.
    fn zero(&self, from: u64, to: u64) -> Result<()>;

    /// The first offset at or after `at` that is not known to be zeros; [`PAGES_LEN`] when there is
    /// none.
    ///
    /// # Errors
    /// What the machine says.
    fn next_data(&self, at: u64) -> Result<u64>;

    /// Whether a client can still see or change it. Where the machine does not say, one may.
    fn is_shared(&self) -> bool;
}

/// A View's memory. When it is dropped, nothing in it counts any more.
pub trait ViewMemory: Any + Send {
    /// What to write it by.
    fn writer(&mut self) -> &mut ViewWriter<'static>;

    /// How many records it has.
    fn size(&self) -> Size;
}
