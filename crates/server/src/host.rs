//! The services that the server asks of its machine: time, randomness, memory that clients map, and
//! threads to be woken. The server itself has no clock, starts no thread and makes no system call,
//! so that all of it can run in one thread from one seed.

use std::any::Any;
use std::time::Duration;

use atoll_vfs::view::{Size, ViewWriter};
use atoll_vfs::{Result, Timespec};

/// To be called once, when something is done. It must not block.
pub type Done = Box<dyn FnOnce() + Send>;

/// The machine, as far as the server needs one.
pub trait Host: Send + Sync {
    /// The time of day, for the timestamps of files.
    fn now(&self) -> Timespec;

    /// The time since some moment before all others. It never goes back.
    fn uptime(&self) -> Duration;

    /// Fills `bytes` with random data that nobody can guess.
    ///
    /// # Errors
    /// `EIO` when the machine has no random data.
    fn random(&self, bytes: &mut [u8]) -> Result<()>;

    /// Calls `begin` with a callback and returns when the callback has been called, maybe by
    /// another thread. For calls that no carrier has brought, whose callers have nothing else to
    /// do. While the caller panics it does nothing.
    fn wait(&self, begin: &mut dyn FnMut(Done));

    /// Memory for the content of a file that clients map: zeros.
    ///
    /// # Errors
    /// `ENOSYS` where the machine has no such memory; `EMFILE`, `ENOMEM`.
    fn pages(&self) -> Result<Box<dyn Pages>>;

    /// A View of at most `bytes`, in memory that clients can only read; `None` when that is too
    /// little. One that is `bounded` takes no memory any more when it has been dropped, though a
    /// client keeps it.
    ///
    /// # Errors
    /// Those of making memory; `ENOSYS` where the machine has none such.
    fn view(&self, bytes: usize, bounded: bool) -> Result<Option<Box<dyn ViewMemory>>>;
}

/// A sleeper that does its work when woken, and then looks whether there is more.
pub trait Bell: Send + Sync {
    /// Wakes it: there is something to do. Must not block.
    fn ring(&self);
}

/// Bytes of a mapped file's memory, nearly all of them never used: the length of the longest file
/// that can be mapped.
pub const PAGES_LEN: u64 = 1 << 44;

/// Memory of [`PAGES_LEN`] bytes that stands for a file's content. Clients change it at any time.
/// Nothing here waits for a client.
pub trait Pages: Any + Send {
    /// Copies the bytes at `at` to `to`.
    ///
    /// # Errors
    /// Those of the machine.
    fn read(&self, at: u64, to: &mut [u8]) -> Result<()>;

    /// Copies `from` to `at`.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn write(&self, at: u64, from: &[u8]) -> Result<()>;

    /// Makes `from..to` zeros, which take no more memory than what was there.
    ///
    /// # Errors
    /// Those of the machine; `ENOMEM`.
    fn zero(&self, from: u64, to: u64) -> Result<()>;

    /// Where a part of `from..to` from `from` on ends that has no more than `most` bytes in memory,
    /// as far as that can be said without a long search, and how many it has. It has some length if
    /// there is any.
    ///
    /// # Errors
    /// Those of the machine.
    fn reach(&self, from: u64, to: u64, most: u64) -> Result<(u64, u64)> {
        let data = self.next_data(from)?.min(to);
        let end = data.saturating_add(most.max(1)).min(to);
        Ok((end, end - data))
    }

    /// An offset from `at` on before which there is nothing but zeros, as far as that can be said
    /// without a long search; [`PAGES_LEN`] when none but zeros follow.
    ///
    /// # Errors
    /// Those of the machine.
    fn next_data(&self, at: u64) -> Result<u64>;

    /// Whether a client can still see or change it. Where the machine does not say, one may.
    fn is_shared(&self) -> bool;

    /// Lets go of some of what has made writes faster and was not needed lately. To be called now
    /// and then. Returns whether there was something.
    fn rest(&self) -> bool {
        false
    }
}

/// A View's memory. When it is dropped, nothing in it counts any more.
pub trait ViewMemory: Any + Send {
    /// Its writer.
    fn writer(&mut self) -> &mut ViewWriter<'static>;

    /// How many records it has.
    fn size(&self) -> Size;
}
