//! Registers that say anything, by chance: each is accessed in its size, and every wait ends.

use super::*;
use crate::device::features;
use crate::pci::chance::{Anything, Chance};

/// Registers that say what it takes to be used at all.
struct Tame(Anything);

impl Tame {
    fn check(at: usize) {
        assert!(at >= at::CONFIGURATION, "a register is accessed in pieces");
    }
}

impl Registers for Tame {
    fn read8(&self, at: usize) -> u8 {
        Tame::check(at);
        self.0.read8(at)
    }
    fn read16(&self, at: usize) -> u16 {
        Tame::check(at);
        self.0.read16(at)
    }
    fn read32(&self, at: usize) -> u32 {
        let said = self.0.read32(at);
        match at {
            at::MAGIC => MAGIC,
            at::VERSION => VERSION,
            at::DEVICE_ID if said == 0 => 2,
            at::DEVICE_ID => said >> 28,
            _ => said,
        }
    }
    fn write8(&self, _: usize, _: u8) {
        panic!("a configuration is not written");
    }
    fn write16(&self, _: usize, _: u16) {
        panic!("a configuration is not written");
    }
    fn write32(&self, at: usize, value: u32) {
        assert!(at < at::CONFIGURATION, "a configuration is not written");
        self.0.write32(at, value);
    }
}

struct Here {
    chance: Chance,
    has_line: bool,
}

impl Machine for Here {
    type Registers = Tame;

    fn map(&mut self, address: u64, len: u64) -> Option<Tame> {
        Some(Tame(Anything { chance: self.chance.clone(), address, len }))
    }

    fn pause(&mut self, turn: u64) -> Result<bool, DeviceError> {
        if turn < 10 { Ok(!self.has_line) } else { Err(DeviceError::Lost) }
    }

    fn has_line(&self) -> bool {
        self.has_line
    }
}

/// Uses a device that says anything, as drivers do.
fn use_device(device: &mut MmioDevice<Here>, len: usize) {
    let _ = device.begin();
    let _ = device.accept(features::VERSION_1);
    for queue in [0, 1, 7, u16::MAX] {
        let size = device.queue_size(queue);
        assert!(size <= SIZE_MAX);
        let addresses = Addresses { descriptors: 0, available: 0, used: 0 };
        let _ = device.start_queue(queue, size, &addresses);
        device.ring(queue);
    }
    let _ = device.start();
    let mut out = [0; 60];
    for (offset, wanted) in [(0, 60), (1, 7), (3, 2), (4096, 8), (usize::MAX, 1)] {
        let read = device.configuration(offset, &mut out[..wanted]);
        assert!(read.is_err() || offset + wanted <= len - at::CONFIGURATION);
    }
    for number in 0..4 {
        if let Some(Window { address, len }) = device.window(number) {
            assert!(len > 0 && address.checked_add(len).is_some());
        }
    }
    let _ = device.pause(0, u64::MAX);
    let _ = device.sleep(0);
    device.stop();
}

#[test]
fn devices_that_say_anything() {
    let mut made = 0;
    for seed in 1..if cfg!(miri) { 20 } else { 5000 } {
        let chance = Chance::new(seed);
        let len = at::CONFIGURATION as u64 + chance.next() % 64;
        let has_line = chance.next().is_multiple_of(2);
        let place = Place::new(0xfeb0_0000, len).unwrap();
        if let Ok(mut device) = MmioDevice::new(place, Here { chance, has_line }) {
            made += 1;
            use_device(&mut device, len as usize);
        }
    }
    assert!(made > 1000 || cfg!(miri), "{made}");
}
