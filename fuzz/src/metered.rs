//! A device that counts calls: a caller that makes too many runs in a circle.

use atoll_block::{Addressable, BlockDevice, BlockError, BlockIndex, RamDevice};

/// A device in memory that panics after a number of calls.
#[derive(Clone, Debug)]
pub struct Metered {
    device: RamDevice,
    calls_left: u64,
}

impl Metered {
    /// A device with the content of `image` that takes `calls` calls.
    pub fn new(image: Vec<u8>, calls: u64) -> Self {
        Metered { device: RamDevice::from_bytes(image), calls_left: calls }
    }

    /// The content.
    pub fn into_image(self) -> Vec<u8> {
        self.device.bytes().to_vec()
    }

    fn count(&mut self) -> &mut RamDevice {
        assert!(self.calls_left > 0, "no end: the device was called far too often");
        self.calls_left -= 1;
        &mut self.device
    }
}

impl BlockDevice for Metered {
    fn block_count(&self) -> u64 {
        self.device.block_count()
    }
    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<(), BlockError> {
        self.count().read(first, buf)
    }
    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<(), BlockError> {
        self.count().write(first, data)
    }
    fn flush(&mut self) -> Result<(), BlockError> {
        self.count().flush()
    }
    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        self.count().discard(first, count)
    }
}

impl Addressable for Metered {
    fn load(&mut self, at: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.count().load(at, buf)
    }
    fn store(&mut self, at: u64, data: &[u8]) -> Result<(), BlockError> {
        self.count().store(at, data)
    }
}
