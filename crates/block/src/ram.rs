//! A device in memory: fast, byte-addressable, gone with its owner.

use alloc::vec;
use alloc::vec::Vec;

use crate::device::{
    Addressable, BLOCK_SIZE, BlockDevice, BlockIndex, block_range, byte_range, checked_blocks,
};
use crate::error::BlockError;
use crate::flusher::Flusher;

/// A block device in the memory of this process: memory of its own, or `B` that holds it.
#[derive(Clone, Debug)]
pub struct RamDevice<B = Vec<u8>> {
    bytes: B,
}

impl RamDevice {
    /// A device of `block_count` zeroed blocks.
    pub fn new(block_count: u64) -> Self {
        RamDevice { bytes: vec![0; block_count as usize * BLOCK_SIZE] }
    }

    /// A device that holds `bytes`, padded with zeros to a whole block.
    pub fn from_bytes(mut bytes: Vec<u8>) -> Self {
        bytes.resize(bytes.len().next_multiple_of(BLOCK_SIZE), 0);
        RamDevice { bytes }
    }
}

impl<B> RamDevice<B> {
    /// The memory, of whole blocks.
    pub fn into_inner(self) -> B {
        self.bytes
    }
}

impl<'m> RamDevice<&'m mut [u8]> {
    /// A device in memory that somebody else has; bytes behind its last whole block are not used.
    pub fn over(bytes: &'m mut [u8]) -> Self {
        RamDevice { bytes }
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> RamDevice<B> {
    /// The whole content.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// The whole content, to be changed at will, as a failing medium would.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.as_mut()
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> BlockDevice for RamDevice<B> {
    fn block_count(&self) -> u64 {
        (self.bytes().len() / BLOCK_SIZE) as u64
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
        Ok(())
    }

    fn flusher(&mut self, first: BlockIndex, count: u64) -> Option<Flusher> {
        checked_blocks(self.block_count(), first, count).ok()?;
        Some(Flusher::new(|| Ok(())))
    }

    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        let len = count.checked_mul(BLOCK_SIZE as u64).ok_or(BlockError::OutOfRange)?;
        let at = block_range(
            self.block_count(),
            first,
            usize::try_from(len).map_err(|_| BlockError::OutOfRange)?,
        )?;
        self.store_zeros(at, len)
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Addressable for RamDevice<B> {
    #[inline]
    fn load(&mut self, at: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        let range = byte_range(self.block_count(), at, buf.len())?;
        buf.copy_from_slice(&self.bytes()[range]);
        Ok(())
    }

    #[inline]
    fn store(&mut self, at: u64, data: &[u8]) -> Result<(), BlockError> {
        let range = byte_range(self.block_count(), at, data.len())?;
        self.bytes_mut()[range].copy_from_slice(data);
        Ok(())
    }

    fn store_zeros(&mut self, at: u64, len: u64) -> Result<(), BlockError> {
        let len = usize::try_from(len).map_err(|_| BlockError::OutOfRange)?;
        let range = byte_range(self.block_count(), at, len)?;
        self.bytes_mut()[range].fill(0);
        Ok(())
    }
}
