//! The two traits of the block seam.

use core::fmt;

use crate::error::BlockError;
use crate::flusher::Flusher;

/// Bytes in a block, the unit of every [`BlockDevice`] transfer.
pub const BLOCK_SIZE: usize = 4096;

/// Bytes in a sector, the torn-write unit: after power loss each aligned sector holds one of the
/// contents that were written to it, never a mixture of two.
pub const SECTOR_SIZE: usize = 512;

/// The position of a block on its device, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockIndex(pub u64);

impl BlockIndex {
    /// The offset in bytes of the block's first byte.
    #[inline]
    pub const fn byte_offset(self) -> u64 {
        self.0 * BLOCK_SIZE as u64
    }
}

impl fmt::Display for BlockIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Storage as an array of blocks.
///
/// # Contract
///
/// - A read returns what the last completed write to the block stored, whether flushed or not.
///   A block that was never written, or was discarded since, reads as zeros.
/// - [`flush`](Self::flush) returns once every write completed before it is durable: it survives
///   power loss. Nothing orders writes between two flushes.
/// - After power loss every aligned sector of [`SECTOR_SIZE`] bytes holds its content at the last
///   completed flush or any content written to it since, each sector for itself.
/// - A write is complete, in the sense that it survives the end of this process, when the call
///   returns.
/// - A write that fails leaves the range with the old content, the new, or a mixture by sector.
///   A flush that fails leaves it unknown which writes since the last flush are durable; a later
///   flush that succeeds says nothing about those.
///
/// Ranges are never silently clipped: a range that leaves the device, or a buffer that is not a
/// whole number of blocks, is [`BlockError::OutOfRange`] and changes nothing.
pub trait BlockDevice {
    /// The number of blocks on the device.
    fn block_count(&self) -> u64;

    /// Fills `buf` from the blocks that begin at `first`.
    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<(), BlockError>;

    /// Stores `data` in the blocks that begin at `first`.
    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<(), BlockError>;

    /// Stores each of `writes`, whose ranges do not overlap. As far as the contract goes each is a
    /// write of its own, and nothing orders them; a device may take them in one call.
    ///
    /// # Errors
    /// As [`write`](Self::write). Where not all are within the device none is stored; of other
    /// errors each write has failed or not.
    fn write_all(&mut self, writes: &[(BlockIndex, &[u8])]) -> Result<(), BlockError> {
        for (first, data) in writes {
            block_range(self.block_count(), *first, data.len())?;
        }
        writes.iter().try_for_each(|(first, data)| self.write(*first, data))
    }

    /// Makes every completed write durable.
    fn flush(&mut self) -> Result<(), BlockError>;

    /// Makes the completed writes to `count` blocks from `first` durable; others may become so.
    fn flush_range(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        checked_blocks(self.block_count(), first, count)?;
        self.flush()
    }

    /// The flusher that makes the writes to `count` blocks from `first` durable that are completed
    /// by now, while the device goes on being used: see [`Flusher`]. `None` where only the device
    /// itself can, or the range is not on it.
    fn flusher(&mut self, first: BlockIndex, count: u64) -> Option<Flusher> {
        let _ = (first, count);
        None
    }

    /// Says that `count` blocks from `first` will be stored in small pieces and flushed after each,
    /// as a journal is, so that the device can make that cheap, at once and once. It never changes
    /// their content, and may do nothing.
    fn expect_commits(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        checked_blocks(self.block_count(), first, count)?;
        Ok(())
    }

    /// Has storage set aside for `count` blocks from `first`, so that no store to them fails for
    /// want of it until they are discarded. It changes no content, and becomes durable like a
    /// write. A medium that cannot say, or has storage for all its blocks, has nothing to do.
    ///
    /// # Errors
    /// [`BlockError::NoSpace`]; a part may be set aside then. [`BlockError::Unsupported`] where
    /// stores may fail for want of storage, and nothing can be done about it.
    fn reserve(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        checked_blocks(self.block_count(), first, count)?;
        Ok(())
    }

    /// Drops whatever was kept in memory in place of the medium: what is read from now on comes
    /// from there. For who finds that the medium had failed. A device that keeps nothing has
    /// nothing to do.
    fn forget_cached(&mut self) -> Result<(), BlockError> {
        Ok(())
    }

    /// As [`forget_cached`](Self::forget_cached), for who must change nothing: what is in memory
    /// stays there, the only word of the failure maybe among it, and is read past. The device is
    /// not written to afterwards.
    fn read_past_cache(&mut self) -> Result<(), BlockError> {
        Ok(())
    }

    /// Forgets the content of `count` blocks from `first`: they read as zeros from now on, and the
    /// medium may give their space back. Ordered and durable like a write.
    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError>;
}

/// A device whose bytes can be addressed: RAM, a mapped file, or a block device behind
/// [`Cached`](crate::cached::Cached). Data moves between it and a caller's buffer with one copy.
///
/// `load` and `store` obey the contract of [`BlockDevice`] byte by byte, and may be mixed freely
/// with its calls.
pub trait Addressable: BlockDevice {
    /// Copies `buf.len()` bytes from the byte offset `at`.
    fn load(&mut self, at: u64, buf: &mut [u8]) -> Result<(), BlockError>;

    /// Copies `data` to the byte offset `at`.
    fn store(&mut self, at: u64, data: &[u8]) -> Result<(), BlockError>;

    /// Copies the bytes of `pieces`, one behind the other, to the byte offset `at`. As far as the
    /// contract goes each piece is a store of its own; a device may take them in one call.
    fn store_pieces(&mut self, at: u64, pieces: &[&[u8]]) -> Result<(), BlockError> {
        store_each(self, at, pieces)
    }

    /// Stores `len` zero bytes at the byte offset `at`.
    fn store_zeros(&mut self, at: u64, len: u64) -> Result<(), BlockError> {
        static ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(BLOCK_SIZE as u64);
            self.store(at + done, &ZEROS[..n as usize])?;
            done += n;
        }
        Ok(())
    }
}

/// Stores `pieces` one after the other, or none where not all are within the device.
pub fn store_each<D: Addressable + ?Sized>(
    device: &mut D,
    mut at: u64,
    pieces: &[&[u8]],
) -> Result<(), BlockError> {
    byte_range(device.block_count(), at, pieces.iter().map(|piece| piece.len()).sum())?;
    for piece in pieces {
        device.store(at, piece)?;
        at += piece.len() as u64;
    }
    Ok(())
}

impl<D: BlockDevice + ?Sized> BlockDevice for &mut D {
    crate::device_calls!(@blocks (deref));
}

impl<D: Addressable + ?Sized> Addressable for &mut D {
    crate::device_calls!(@bytes (deref));
}

/// Checks that `len` bytes at `at` lie within `block_count` blocks and returns them as a range of
/// `usize` offsets, for devices that live in memory.
pub fn byte_range(
    block_count: u64,
    at: u64,
    len: usize,
) -> Result<core::ops::Range<usize>, BlockError> {
    let end = at.checked_add(len as u64).ok_or(BlockError::OutOfRange)?;
    if end > block_count * BLOCK_SIZE as u64 {
        return Err(BlockError::OutOfRange);
    }
    Ok(at as usize..end as usize)
}

/// Checks a [`BlockDevice`] transfer of `len` bytes from `first`, which must be whole blocks on the
/// device, and returns its byte offset.
pub fn block_range(block_count: u64, first: BlockIndex, len: usize) -> Result<u64, BlockError> {
    let blocks = (len / BLOCK_SIZE) as u64;
    let end = first.0.checked_add(blocks).ok_or(BlockError::OutOfRange)?;
    if !len.is_multiple_of(BLOCK_SIZE) || end > block_count {
        return Err(BlockError::OutOfRange);
    }
    Ok(first.byte_offset())
}

/// Checks that `count` blocks from `first` lie on a device of `block_count` blocks and returns them
/// as a range of block indices.
pub fn checked_blocks(
    block_count: u64,
    first: BlockIndex,
    count: u64,
) -> Result<core::ops::Range<u64>, BlockError> {
    match first.0.checked_add(count) {
        Some(end) if end <= block_count => Ok(first.0..end),
        _ => Err(BlockError::OutOfRange),
    }
}

/// Makes an enum whose variants each hold one device a device itself: every call goes to the one
/// that it holds.
#[macro_export]
macro_rules! memory_of_variants {
    ($device:ty { $($variant:ident),+ }) => {
        impl $crate::BlockDevice for $device {
            $crate::device_calls!(@blocks [$($variant)+]);
        }

        impl $crate::Addressable for $device {
            $crate::device_calls!(@bytes [$($variant)+]);
        }
    };
}

/// The calls of both traits, handed on to what `self` points to, or to what its variants hold.
#[doc(hidden)]
#[macro_export]
macro_rules! device_calls {
    (@blocks $to:tt) => {
        #[inline]
        fn block_count(&self) -> u64 {
            $crate::device_calls!(@call $to self block_count ())
        }
        $crate::device_calls! { @each $to
            read(first: $crate::BlockIndex, buf: &mut [u8]) -> Result<(), $crate::BlockError>;
            write(first: $crate::BlockIndex, data: &[u8]) -> Result<(), $crate::BlockError>;
            write_all(writes: &[($crate::BlockIndex, &[u8])]) -> Result<(), $crate::BlockError>;
            flush() -> Result<(), $crate::BlockError>;
            flush_range(first: $crate::BlockIndex, count: u64) -> Result<(), $crate::BlockError>;
            flusher(first: $crate::BlockIndex, count: u64) -> Option<$crate::Flusher>;
            expect_commits(first: $crate::BlockIndex, count: u64) -> Result<(), $crate::BlockError>;
            reserve(first: $crate::BlockIndex, count: u64) -> Result<(), $crate::BlockError>;
            forget_cached() -> Result<(), $crate::BlockError>;
            read_past_cache() -> Result<(), $crate::BlockError>;
            discard(first: $crate::BlockIndex, count: u64) -> Result<(), $crate::BlockError>;
        }
    };
    (@bytes $to:tt) => {
        $crate::device_calls! { @each $to
            load(at: u64, buf: &mut [u8]) -> Result<(), $crate::BlockError>;
            store(at: u64, data: &[u8]) -> Result<(), $crate::BlockError>;
            store_pieces(at: u64, pieces: &[&[u8]]) -> Result<(), $crate::BlockError>;
            store_zeros(at: u64, len: u64) -> Result<(), $crate::BlockError>;
        }
    };
    (@each $to:tt $($call:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[inline]
            fn $call(&mut self, $($arg: $type),*) -> $result {
                $crate::device_calls!(@call $to self $call ($($arg),*))
            }
        )*
    };
    (@call (deref) $self:ident $call:ident $args:tt) => { (**$self).$call $args };
    (@call [$($variant:ident)+] $self:ident $call:ident $args:tt) => {
        match $self { $(Self::$variant(device) => device.$call $args,)+ }
    };
}
