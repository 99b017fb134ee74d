//! A device in memory that keeps only the blocks that are not zeros, so that it can have any size.
#![allow(dead_code)]

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use atoll_block::{
    Addressable, BLOCK_SIZE, BlockDevice, BlockError, BlockIndex,
    device::{block_range, checked_blocks},
};

const ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];

/// The device.
#[derive(Clone, Default)]
pub struct Sparse {
    count: u64,
    blocks: HashMap<u64, Box<[u8; BLOCK_SIZE]>>,
    /// Blocks read or written in part or whole, zeros included, since it was set to 0.
    pub touched: Rc<Cell<u64>>,
}

impl Sparse {
    pub fn new(count: u64) -> Sparse {
        Sparse { count, ..Sparse::default() }
    }

    /// Bytes that a host would store.
    pub fn stored(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_SIZE as u64
    }

    /// Makes it larger.
    pub fn resize(&mut self, count: u64) {
        assert!(count >= self.count);
        self.count = count;
    }

    pub fn block(&self, index: u64) -> [u8; BLOCK_SIZE] {
        self.blocks.get(&index).map_or(ZEROS, |b| **b)
    }

    pub fn set_block(&mut self, index: u64, content: &[u8; BLOCK_SIZE]) {
        assert!(index < self.count);
        if *content == ZEROS {
            self.blocks.remove(&index);
        } else {
            self.blocks.insert(index, Box::new(*content));
        }
    }

    /// The indices of blocks with a magic number for which `wanted` is true, in order.
    pub fn with_magic(&self, wanted: impl Fn(u32) -> bool) -> Vec<u64> {
        let magic = |b: &[u8; BLOCK_SIZE]| u32::from_le_bytes([b[16], b[17], b[18], b[19]]);
        let own = |b: &[u8; BLOCK_SIZE], at: u64| b[8..16] == at.to_le_bytes();
        let found = self.blocks.iter().filter(|&(&at, b)| own(b, at) && wanted(magic(b)));
        let mut found: Vec<u64> = found.map(|(&at, _)| at).collect();
        found.sort_unstable();
        found
    }

    fn pieces(at: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize, usize)> {
        let size = BLOCK_SIZE as u64;
        let mut done = 0;
        std::iter::from_fn(move || {
            if done == len {
                return None;
            }
            let offset = (at + done) % size;
            let n = (size - offset).min(len - done);
            let piece = ((at + done) / size, offset as usize, n as usize, done as usize);
            done += n;
            Some(piece)
        })
    }

    fn check(&self, at: u64, len: u64) -> Result<(), BlockError> {
        match at.checked_add(len) {
            Some(end) if end <= self.count * BLOCK_SIZE as u64 => Ok(()),
            _ => Err(BlockError::OutOfRange),
        }
    }

    fn touch(&self) {
        self.touched.set(self.touched.get() + 1);
    }
}

impl BlockDevice for Sparse {
    fn block_count(&self) -> u64 {
        self.count
    }

    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<(), BlockError> {
        let at = block_range(self.count, first, buf.len())?;
        self.load(at, buf)
    }

    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<(), BlockError> {
        let at = block_range(self.count, first, data.len())?;
        self.store(at, data)
    }

    fn flush(&mut self) -> Result<(), BlockError> {
        Ok(())
    }

    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        for block in checked_blocks(self.count, first, count)? {
            self.blocks.remove(&block);
        }
        Ok(())
    }
}

impl Addressable for Sparse {
    fn load(&mut self, at: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.check(at, buf.len() as u64)?;
        for (block, offset, len, done) in Self::pieces(at, buf.len() as u64) {
            self.touch();
            let content = self.blocks.get(&block).map_or(&ZEROS, |b| &**b);
            buf[done..done + len].copy_from_slice(&content[offset..offset + len]);
        }
        Ok(())
    }

    fn store(&mut self, at: u64, data: &[u8]) -> Result<(), BlockError> {
        self.check(at, data.len() as u64)?;
        for (block, offset, len, done) in Self::pieces(at, data.len() as u64) {
            self.touch();
            let content = self.blocks.entry(block).or_insert_with(|| Box::new(ZEROS));
            content[offset..offset + len].copy_from_slice(&data[done..done + len]);
        }
        Ok(())
    }
}
