//! A device, by whichever transport it is reached (VIRTIO 1.2, chapters 2 and 4).

use core::fmt;

use crate::queue::Addresses;

/// Numbers of kinds of devices (VIRTIO 1.2, chapter 5).
pub mod kinds {
    /// A disk.
    pub const BLOCK: u16 = 2;
    /// A source of entropy.
    pub const ENTROPY: u16 = 4;
    /// A file system.
    pub const FILE_SYSTEM: u16 = 26;
}

/// Features of any device (VIRTIO 1.2, chapter 6).
pub mod features {
    /// Chains may lie in tables of their own.
    pub const INDIRECT: u64 = 1 << 28;
    /// The sides say with an index what they want to hear of next.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// The device keeps to version 1 of the specification.
    pub const VERSION_1: u64 = 1 << 32;
    /// The device reaches memory by addresses that the platform translates.
    pub const ACCESS_PLATFORM: u64 = 1 << 33;
}

/// Why a device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// It is gone, or does not answer.
    Lost,
    /// It says what cannot be.
    Broken,
    /// It lacks what the driver needs, or needs what the driver lacks.
    Unsupported,
    /// There is no memory to share with it, or no address space for it.
    NoMemory,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceError::Lost => "the device is gone",
            DeviceError::Broken => "the device breaks the rules",
            DeviceError::Unsupported => "device and driver have too little in common",
            DeviceError::NoMemory => "there is no memory for the device",
        })
    }
}

impl core::error::Error for DeviceError {}

/// Memory of the device's that the driver can map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its first byte, by the guest's physical addresses.
    pub address: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// A device.
///
/// It is used in this order: [`begin`](Self::begin), [`accept`](Self::accept),
/// [`start_queue`](Self::start_queue) for each queue, [`start`](Self::start).
pub trait Device {
    /// Resets the device, tells it that there is a driver, and returns the features that it offers.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] when it does not comply.
    fn begin(&mut self) -> Result<u64, DeviceError>;

    /// Settles on `features`, some of those that are offered.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] when the device does not want to work with these.
    fn accept(&mut self, features: u64) -> Result<(), DeviceError>;

    /// The most entries that the queue with this number may have; 0 where there is no such queue.
    fn queue_size(&mut self, number: u16) -> u16;

    /// Says where a queue is, which has `size` entries.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn start_queue(
        &mut self,
        number: u16,
        size: u16,
        addresses: &Addresses,
    ) -> Result<(), DeviceError>;

    /// The device may begin.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn start(&mut self) -> Result<(), DeviceError>;

    /// Says that something was offered by this queue.
    fn ring(&mut self, number: u16);

    /// Passes a moment in which the device may answer by this queue. Called again and again, with
    /// `turn` counting from 0, while the driver waits for one answer. Returns whether the driver
    /// had better look again; else it has the device interrupt, and [sleeps](Self::sleep).
    ///
    /// # Errors
    /// [`DeviceError::Lost`] when there will be no answer any more.
    fn pause(&mut self, number: u16, turn: u64) -> Result<bool, DeviceError>;

    /// Sleeps until the device interrupts for this queue, which it was told to do. It may have done
    /// so already. May return sooner.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    fn sleep(&mut self, number: u16) -> Result<(), DeviceError> {
        let _ = number;
        Ok(())
    }

    /// Copies the device's configuration from `offset` on to `out`, twice if it changes meanwhile.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] when there is less of it, [`DeviceError::Broken`] when it
    /// changes all the time.
    fn configuration(&mut self, offset: usize, out: &mut [u8]) -> Result<(), DeviceError>;

    /// The device's memory with this number, if there is any.
    fn window(&mut self, number: u8) -> Option<Window> {
        let _ = number;
        None
    }

    /// Stops the device. Returns whether it has: if so it uses no memory of the driver's any more.
    fn stop(&mut self) -> bool;
}

impl<D: Device + ?Sized> Device for &mut D {
    fn begin(&mut self) -> Result<u64, DeviceError> {
        (**self).begin()
    }

    fn accept(&mut self, features: u64) -> Result<(), DeviceError> {
        (**self).accept(features)
    }

    fn queue_size(&mut self, number: u16) -> u16 {
        (**self).queue_size(number)
    }

    fn start_queue(
        &mut self,
        number: u16,
        size: u16,
        addresses: &Addresses,
    ) -> Result<(), DeviceError> {
        (**self).start_queue(number, size, addresses)
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        (**self).start()
    }

    fn ring(&mut self, number: u16) {
        (**self).ring(number);
    }

    fn pause(&mut self, number: u16, turn: u64) -> Result<bool, DeviceError> {
        (**self).pause(number, turn)
    }

    fn sleep(&mut self, number: u16) -> Result<(), DeviceError> {
        (**self).sleep(number)
    }

    fn configuration(&mut self, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        (**self).configuration(offset, out)
    }

    fn window(&mut self, number: u8) -> Option<Window> {
        (**self).window(number)
    }

    fn stop(&mut self) -> bool {
        (**self).stop()
    }
}
