//! A device on PCI: VIRTIO 1.2, 4.1.4.3 and 3.1.

use alloc::vec;
use alloc::vec::Vec;

use super::bars::{self, BARS, Bar, Gap};
use super::capabilities::{self, Msix, Place};
use super::space::{ConfigSpace, Function};
use crate::device::{Device, DeviceError, Window};
use crate::machine::{self, Machine, status};
use crate::queue::Addresses;
use crate::registers::Registers;

/// The common configuration, by offsets in bytes (VIRTIO 1.2, 4.1.4.3).
mod common {
    pub const DEVICE_FEATURE_SELECT: usize = 0;
    pub const DEVICE_FEATURE: usize = 4;
    pub const DRIVER_FEATURE_SELECT: usize = 8;
    pub const DRIVER_FEATURE: usize = 12;
    pub const CONFIG_VECTOR: usize = 16;
    pub const QUEUE_COUNT: usize = 18;
    pub const STATUS: usize = 20;
    pub const GENERATION: usize = 21;
    pub const QUEUE_SELECT: usize = 22;
    pub const QUEUE_SIZE: usize = 24;
    pub const QUEUE_VECTOR: usize = 26;
    pub const QUEUE_ENABLE: usize = 28;
    pub const QUEUE_NOTIFY_OFFSET: usize = 30;
    pub const QUEUE_DESCRIPTORS: usize = 32;
    pub const QUEUE_AVAILABLE: usize = 40;
    pub const QUEUE_USED: usize = 48;
}

/// No message.
const NO_VECTOR: u16 = 0xffff;

/// A device.
#[derive(Debug)]
pub struct PciDevice<M: Machine> {
    machine: M,
    common: M::Registers,
    notify: M::Registers,
    notify_len: u64,
    /// By how much the places are apart at which queues are rung.
    apart: u32,
    own: Option<(M::Registers, usize)>,
    windows: Vec<(u8, Window)>,
    /// By queue: where it is rung.
    bells: Vec<Option<usize>>,
    /// A message comes for each answer.
    interrupts: bool,
}

/// Where a queue is rung.
#[derive(Debug)]
pub struct Bell<R> {
    registers: R,
    at: usize,
    number: u16,
}

impl<R: Registers> Bell<R> {
    /// Says that something was offered by the queue.
    pub fn ring(&self) {
        self.registers.write16(self.at, self.number);
    }
}

impl<M: Machine> PciDevice<M> {
    /// The device at `function`, whose memory is given addresses from `low` and `high` where it
    /// has none: [`bars::settle`].
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] when it has only the old interface; `NoMemory`.
    pub fn new<C: ConfigSpace>(
        space: &mut C,
        function: Function,
        low: &mut Gap,
        high: &mut Gap,
        machine: M,
    ) -> Result<Self, DeviceError> {
        let bars: [Bar; BARS] = bars::settle(space, function, low, high)?;
        let found = capabilities::read(space, function, &bars);
        let mut machine = machine;
        let mut map =
            |Place { address, len }: Place| machine.map(address, len).ok_or(DeviceError::NoMemory);
        let common = map(found.common.ok_or(DeviceError::Unsupported)?)?;
        let (place, apart) = found.notify.ok_or(DeviceError::Unsupported)?;
        let notify = map(place)?;
        let own = found.device.map(|place| map(place).map(|it| (it, place.len as usize)));
        let own = own.transpose()?;
        let mut interrupts = false;
        if let (Some(Msix { at, table }), Some((address, data))) = (found.msix, machine.message()) {
            let table = machine.map(table.address, table.len).ok_or(DeviceError::NoMemory)?;
            table.write32(0, address as u32);
            table.write32(4, (address >> 32) as u32);
            table.write32(8, data);
            // Not masked.
            table.write32(12, 0);
            let word = space.read(function, at) & !(1 << 30);
            space.write(function, at, word | 1 << 31);
            interrupts = true;
        }
        Ok(PciDevice {
            machine,
            common,
            notify,
            notify_len: place.len,
            apart,
            own,
            windows: found.windows,
            bells: Vec::new(),
            interrupts,
        })
    }

    /// Whether a message comes for each answer that the driver wants one for. Known when features
    /// have been settled on.
    pub fn interrupts(&self) -> bool {
        self.interrupts
    }

    /// Where a queue that has been started is rung, for who looks after it beside the driver.
    pub fn bell(&self, number: u16) -> Option<Bell<M::Registers>>
    where
        M::Registers: Clone,
    {
        let at = (*self.bells.get(usize::from(number))?)?;
        Some(Bell { registers: self.notify.clone(), at, number })
    }

    /// The machine.
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine
    }

    fn status(&self) -> u8 {
        self.common.read8(common::STATUS)
    }

    fn add_status(&self, bit: u8) {
        self.common.write8(common::STATUS, self.status() | bit);
    }

    /// Resets the device, and waits until it is.
    fn reset(&mut self) -> bool {
        self.common.write8(common::STATUS, 0);
        let common = &self.common;
        machine::wait_for_reset(&mut self.machine, || common.read8(common::STATUS).into())
    }
}

impl<M: Machine> Device for PciDevice<M> {
    fn begin(&mut self) -> Result<u64, DeviceError> {
        if !self.reset() {
            return Err(DeviceError::Lost);
        }
        self.add_status(status::ACKNOWLEDGE);
        self.add_status(status::DRIVER);
        Ok(machine::offered(&self.common, common::DEVICE_FEATURE_SELECT, common::DEVICE_FEATURE))
    }

    fn accept(&mut self, accepted: u64) -> Result<(), DeviceError> {
        machine::take(
            &self.common,
            common::DRIVER_FEATURE_SELECT,
            common::DRIVER_FEATURE,
            accepted,
        )?;
        self.add_status(status::FEATURES_OK);
        if self.status() & status::FEATURES_OK == 0 {
            return Err(DeviceError::Unsupported);
        }
        let vector = if self.interrupts { 0 } else { NO_VECTOR };
        self.common.write16(common::CONFIG_VECTOR, NO_VECTOR);
        let count = usize::from(self.common.read16(common::QUEUE_COUNT));
        self.bells = vec![None; count];
        for queue in 0..count as u16 {
            self.common.write16(common::QUEUE_SELECT, queue);
            self.common.write16(common::QUEUE_VECTOR, vector);
            // The device may have no more vectors.
            self.interrupts &= self.common.read16(common::QUEUE_VECTOR) == vector;
        }
        Ok(())
    }

    fn queue_size(&mut self, number: u16) -> u16 {
        if usize::from(number) >= self.bells.len() {
            return 0;
        }
        self.common.write16(common::QUEUE_SELECT, number);
        self.common.read16(common::QUEUE_SIZE)
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
        self.common.write16(common::QUEUE_SIZE, size);
        machine::write64(&self.common, common::QUEUE_DESCRIPTORS, addresses.descriptors);
        machine::write64(&self.common, common::QUEUE_AVAILABLE, addresses.available);
        machine::write64(&self.common, common::QUEUE_USED, addresses.used);
        let place = self.common.read16(common::QUEUE_NOTIFY_OFFSET);
        let at = u64::from(place) * u64::from(self.apart);
        if at + 2 > self.notify_len || !at.is_multiple_of(2) {
            return Err(DeviceError::Broken);
        }
        self.bells[usize::from(number)] = Some(at as usize);
        self.common.write16(common::QUEUE_ENABLE, 1);
        Ok(())
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        self.add_status(status::DRIVER_OK);
        Ok(())
    }

    fn ring(&mut self, number: u16) {
        if let Some(Some(at)) = self.bells.get(usize::from(number)) {
            self.notify.write16(*at, number);
        }
    }

    fn pause(&mut self, _: u16, turn: u64) -> Result<bool, DeviceError> {
        let common = &self.common;
        machine::look_after(turn, || common.read8(common::STATUS).into())?;
        Ok(self.machine.pause(turn)? || !self.interrupts)
    }

    fn sleep(&mut self, _: u16) -> Result<(), DeviceError> {
        self.machine.sleep()
    }

    fn configuration(&mut self, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        let (own, len) = self.own.as_ref().ok_or(DeviceError::Unsupported)?;
        let common = &self.common;
        machine::configuration(own, 0..*len, offset, out, || {
            common.read8(common::GENERATION).into()
        })
    }

    fn window(&mut self, number: u8) -> Option<Window> {
        self.windows.iter().find(|(id, _)| *id == number).map(|(_, window)| *window)
    }

    fn stop(&mut self) -> bool {
        self.reset()
    }
}
