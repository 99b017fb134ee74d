//! Devices whose registers lie in memory without a bus (VIRTIO 1.2, 4.2), as microVMs have them:
//! version 2 of the registers alone.
//!
//! No bus tells where such devices are: the machine's maker does, on a kernel's command line
//! ([`Place::parse`]), in ACPI's tables or in a device tree.

use crate::device::{Device, DeviceError, Window};
use crate::machine::{self, Machine, status};
use crate::queue::{Addresses, SIZE_MAX};
use crate::registers::Registers;

#[cfg(test)]
mod chance;
#[cfg(test)]
mod tests;

/// The registers, by offsets in bytes (VIRTIO 1.2, 4.2.2). Each is of four bytes and is accessed
/// as a whole, but for the configuration.
mod at {
    pub const MAGIC: usize = 0x00;
    pub const VERSION: usize = 0x04;
    pub const DEVICE_ID: usize = 0x08;
    pub const DEVICE_FEATURES: usize = 0x10;
    pub const DEVICE_FEATURES_SELECT: usize = 0x14;
    pub const DRIVER_FEATURES: usize = 0x20;
    pub const DRIVER_FEATURES_SELECT: usize = 0x24;
    pub const QUEUE_SELECT: usize = 0x30;
    pub const QUEUE_SIZE_MAX: usize = 0x34;
    pub const QUEUE_SIZE: usize = 0x38;
    pub const QUEUE_READY: usize = 0x44;
    pub const QUEUE_NOTIFY: usize = 0x50;
    pub const INTERRUPT_STATUS: usize = 0x60;
    pub const INTERRUPT_ACKNOWLEDGE: usize = 0x64;
    pub const STATUS: usize = 0x70;
    pub const QUEUE_DESCRIPTORS: usize = 0x80;
    pub const QUEUE_AVAILABLE: usize = 0x90;
    pub const QUEUE_USED: usize = 0xa0;
    pub const SHARED_MEMORY_SELECT: usize = 0xac;
    pub const SHARED_MEMORY_LEN: usize = 0xb0;
    pub const SHARED_MEMORY_BASE: usize = 0xb8;
    pub const GENERATION: usize = 0xfc;
    pub const CONFIGURATION: usize = 0x100;
}

/// The magic value: `virt`, in little-endian order.
const MAGIC: u32 = 0x7472_6976;
/// The version of the registers; 1 is the old interface.
const VERSION: u32 = 2;

/// Where the registers of a device are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The physical address of the first, a multiple of 4.
    pub address: u64,
    /// Their length in bytes, the device's configuration included: at least 256.
    pub len: u64,
}

impl Place {
    /// `len` bytes of registers at `address`. `None` where no device can have them there.
    pub fn new(address: u64, len: u64) -> Option<Place> {
        let whole = len >= at::CONFIGURATION as u64 && usize::try_from(len).is_ok();
        let fits = whole && address.is_multiple_of(4) && address.checked_add(len).is_some();
        fits.then_some(Place { address, len })
    }

    /// Reads the value of Linux's parameter `virtio_mmio.device`, by which QEMU and Firecracker
    /// tell of devices: `SIZE@ADDRESS:INTERRUPT[:NUMBER]`. Numbers are decimal or, behind `0x`,
    /// hexadecimal, and may end with K, M or G. The driver polls: the interrupt is not kept.
    pub fn parse(value: &[u8]) -> Option<Place> {
        let value = core::str::from_utf8(value).ok()?;
        let (len, rest) = value.split_once('@')?;
        let mut rest = rest.split(':');
        let address = rest.next()?;
        let _interrupt: u32 = number(rest.next()?)?.try_into().ok()?;
        let _number: Option<i32> = rest.next().map(|it| it.parse().ok()).unwrap_or(Some(0));
        _number?;
        if rest.next().is_some() {
            return None;
        }
        Place::new(number(address)?, number(len)?)
    }
}

/// A number as Linux's parameters have them.
fn number(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let (digits, radix) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (digits, 10),
    };
    // A sign is none of the digits.
    let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let value = u64::from_str_radix(digits, radix).ok().filter(|_| plain)?;
    value.checked_mul(1 << shift)
}

/// A device.
#[derive(Debug)]
pub struct MmioDevice<M: Machine> {
    machine: M,
    registers: M::Registers,
    len: usize,
    kind: u16,
}

impl<M: Machine> MmioDevice<M> {
    /// The device at `place`.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] when there is none, or one that has only the old interface;
    /// `NoMemory`.
    pub fn new(place: Place, mut machine: M) -> Result<Self, DeviceError> {
        let registers = machine.map(place.address, place.len).ok_or(DeviceError::NoMemory)?;
        let is_known =
            registers.read32(at::MAGIC) == MAGIC && registers.read32(at::VERSION) == VERSION;
        // A place without a device says that its kind is 0.
        let kind = if is_known { registers.read32(at::DEVICE_ID) } else { 0 };
        match u16::try_from(kind) {
            Ok(0) | Err(_) => Err(DeviceError::Unsupported),
            Ok(kind) => Ok(MmioDevice { machine, registers, len: place.len as usize, kind }),
        }
    }

    /// Its kind: [`kinds`](crate::device::kinds).
    pub fn kind(&self) -> u16 {
        self.kind
    }

    /// The machine.
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine
    }

    fn status(&self) -> u32 {
        self.registers.read32(at::STATUS)
    }

    fn add_status(&self, bit: u8) {
        self.registers.write32(at::STATUS, self.status() | u32::from(bit));
    }

    fn read64(&self, at: usize) -> u64 {
        let low = u64::from(self.registers.read32(at));
        u64::from(self.registers.read32(at + 4)) << 32 | low
    }

    /// Resets the device, and waits until it is.
    fn reset(&mut self) -> bool {
        self.registers.write32(at::STATUS, 0);
        let registers = &self.registers;
        machine::wait_for_reset(&mut self.machine, || registers.read32(at::STATUS))
    }
}

impl<M: Machine> Device for MmioDevice<M> {
    fn begin(&mut self) -> Result<u64, DeviceError> {
        if !self.reset() {
            return Err(DeviceError::Lost);
        }
        self.add_status(status::ACKNOWLEDGE);
        self.add_status(status::DRIVER);
        Ok(machine::offered(&self.registers, at::DEVICE_FEATURES_SELECT, at::DEVICE_FEATURES))
    }

    fn accept(&mut self, accepted: u64) -> Result<(), DeviceError> {
        machine::take(&self.registers, at::DRIVER_FEATURES_SELECT, at::DRIVER_FEATURES, accepted)?;
        self.add_status(status::FEATURES_OK);
        if self.status() & u32::from(status::FEATURES_OK) == 0 {
            return Err(DeviceError::Unsupported);
        }
        Ok(())
    }

    fn queue_size(&mut self, number: u16) -> u16 {
        self.registers.write32(at::QUEUE_SELECT, number.into());
        let most = self.registers.read32(at::QUEUE_SIZE_MAX);
        u16::try_from(most).map_or(SIZE_MAX, |most| most.min(SIZE_MAX))
    }

    fn start_queue(
        &mut self,
        number: u16,
        size: u16,
        addresses: &Addresses,
    ) -> Result<(), DeviceError> {
        if size == 0 || size > self.queue_size(number) {
            return Err(DeviceError::Unsupported);
        }
        // One that is in use, of which the driver knows nothing (4.2.3.2).
        if self.registers.read32(at::QUEUE_READY) != 0 {
            return Err(DeviceError::Broken);
        }
        self.registers.write32(at::QUEUE_SIZE, size.into());
        machine::write64(&self.registers, at::QUEUE_DESCRIPTORS, addresses.descriptors);
        machine::write64(&self.registers, at::QUEUE_AVAILABLE, addresses.available);
        machine::write64(&self.registers, at::QUEUE_USED, addresses.used);
        self.registers.write32(at::QUEUE_READY, 1);
        Ok(())
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        self.add_status(status::DRIVER_OK);
        Ok(())
    }

    fn ring(&mut self, number: u16) {
        self.registers.write32(at::QUEUE_NOTIFY, number.into());
    }

    fn pause(&mut self, _: u16, turn: u64) -> Result<bool, DeviceError> {
        let registers = &self.registers;
        machine::look_after(turn, || registers.read32(at::STATUS))?;
        Ok(self.machine.pause(turn)? || !self.machine.has_line())
    }

    fn sleep(&mut self, _: u16) -> Result<(), DeviceError> {
        self.machine.sleep()?;
        // Before the driver looks at its queue: what the device answers later interrupts anew.
        let why = self.registers.read32(at::INTERRUPT_STATUS);
        self.registers.write32(at::INTERRUPT_ACKNOWLEDGE, why);
        Ok(())
    }

    fn configuration(&mut self, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        let registers = &self.registers;
        machine::configuration(registers, at::CONFIGURATION..self.len, offset, out, || {
            registers.read32(at::GENERATION)
        })
    }

    /// The device's memory with this number. Unlike on PCI, where it lies within a range of the
    /// function's own, it is wherever the device says: the caller maps it only where the machine
    /// has nothing of its own.
    fn window(&mut self, number: u8) -> Option<Window> {
        self.registers.write32(at::SHARED_MEMORY_SELECT, number.into());
        let len = self.read64(at::SHARED_MEMORY_LEN);
        let address = self.read64(at::SHARED_MEMORY_BASE);
        // All ones: there is none (4.2.2).
        let is_there = len > 0 && len != u64::MAX && address.checked_add(len).is_some();
        is_there.then_some(Window { address, len })
    }

    fn stop(&mut self) -> bool {
        self.reset()
    }
}
