//! Functions whose configuration space and registers say anything, by chance: what the driver makes
//! of them lies inside of the function's memory, and every wait ends.

use alloc::rc::Rc;
use core::cell::Cell;

use super::bars::{self, Bar};
use super::capabilities;
use super::*;
use crate::device::{Device, DeviceError, features};
use crate::machine::Machine;
use crate::queue::Addresses;
use crate::registers::Registers;

const AT: Function = Function { bus: 0, device: 0, function: 0 };

#[derive(Clone)]
pub(crate) struct Chance(Rc<Cell<u64>>);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(Rc::new(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)))
    }

    pub(crate) fn next(&self) -> u64 {
        let mut word = self.0.get();
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        self.0.set(word);
        word
    }

    /// A word as hostile devices choose it: often one that makes some sense.
    fn word(&self) -> u32 {
        let word = self.next();
        match word >> 60 {
            0..4 => u32::MAX,
            4..8 => 0,
            8..12 => (word as u32) & 0xffff,
            _ => word as u32,
        }
    }
}

/// A space in which no word stays as it was, but where capabilities of virtio's are likely.
struct Space {
    chance: Chance,
    /// Registers of memory whose ranges are real: the first two wide ones.
    masks: [u32; 6],
    words: [u32; 6],
    /// Every word is by chance.
    wild: bool,
}

impl ConfigSpace for Space {
    fn read(&mut self, _: Function, offset: u16) -> u32 {
        assert!(offset.is_multiple_of(4) && offset < 256);
        let bar = usize::from(offset.wrapping_sub(0x10) / 4);
        match offset {
            _ if self.wild => self.chance.word(),
            0x04 => 1 << 20,
            0x10..0x28 => self.words[bar],
            0x34 => 0x40,
            _ if offset % 24 == 16 => {
                // A capability whose kind and successor are by chance.
                let word = self.chance.next();
                let next = (0x40 + 24 * (word % 8)) as u8;
                u32::from_le_bytes([
                    9,
                    next,
                    16 + 8 * (word >> 8 & 1) as u8,
                    (word >> 16) as u8 % 10,
                ])
            }
            _ if offset % 24 == 20 => self.chance.next() as u32 & 0x0303,
            _ if self.chance.next().is_multiple_of(2) => self.chance.next() as u32 & 0x3fff,
            _ => self.chance.word(),
        }
    }

    fn write(&mut self, _: Function, offset: u16, value: u32) {
        if let 0x10..0x28 = offset {
            let bar = usize::from((offset - 0x10) / 4);
            let kind = if bar % 2 == 0 { 4 } else { 0 };
            self.words[bar] = value & self.masks[bar] | kind;
        }
    }
}

/// Registers that say anything and know how long they are.
pub(crate) struct Anything {
    pub(crate) chance: Chance,
    pub(crate) address: u64,
    pub(crate) len: u64,
}

impl Anything {
    fn check(&self, at: usize, size: u64) {
        assert!((self.address + at as u64).is_multiple_of(size), "askew");
        assert!(at as u64 + size <= self.len, "outside");
    }
}

impl Registers for Anything {
    fn read8(&self, at: usize) -> u8 {
        self.check(at, 1);
        self.chance.word() as u8
    }
    fn read16(&self, at: usize) -> u16 {
        self.check(at, 2);
        self.chance.word() as u16
    }
    fn read32(&self, at: usize) -> u32 {
        self.check(at, 4);
        self.chance.word()
    }
    fn write8(&self, at: usize, _: u8) {
        self.check(at, 1);
    }
    fn write16(&self, at: usize, _: u16) {
        self.check(at, 2);
    }
    fn write32(&self, at: usize, _: u32) {
        self.check(at, 4);
    }
}

struct Place {
    chance: Chance,
    bars: [Bar; 6],
}

impl Machine for Place {
    type Registers = Anything;

    fn map(&mut self, address: u64, len: u64) -> Option<Anything> {
        let inside = |bar: &Bar| {
            let from = address.checked_sub(bar.address);
            from.is_some_and(|from| from.checked_add(len).is_some_and(|end| end <= bar.len))
        };
        assert!(self.bars.iter().any(inside), "{address:x} {len:x}");
        Some(Anything { chance: self.chance.clone(), address, len })
    }

    fn pause(&mut self, turn: u64) -> Result<bool, DeviceError> {
        if turn < 10 { Ok(true) } else { Err(DeviceError::Lost) }
    }
}

fn space(chance: &Chance, wild: bool) -> Space {
    let masks = [0xffff_c000, u32::MAX, 0xffff_f000, u32::MAX, 0, 0];
    Space { chance: chance.clone(), masks, words: [4, 0, 4, 0, 0, 0], wild }
}

fn gaps() -> (Gap, Gap) {
    (Gap::new(0xfe00_0000, 0xfec0_0000), Gap::new(1 << 40, 1 << 41))
}

/// Uses a device that says anything, as drivers do.
fn use_device(device: &mut PciDevice<Place>) {
    let _ = device.begin();
    let _ = device.accept(features::VERSION_1);
    for queue in [0, 1, 7, u16::MAX] {
        let size = device.queue_size(queue);
        let addresses = Addresses { descriptors: 0, available: 0, used: 0 };
        let _ = device.start_queue(queue, size, &addresses);
        device.ring(queue);
    }
    let _ = device.start();
    let mut out = [0; 60];
    for (offset, len) in [(0, 60), (1, 7), (3, 2), (4096, 8), (usize::MAX, 1)] {
        let _ = device.configuration(offset, &mut out[..len]);
    }
    let _ = device.pause(0, u64::MAX);
    device.stop();
}

#[test]
fn functions_that_say_anything() {
    let mut made = 0;
    for seed in 1..if cfg!(miri) { 20 } else { 5000 } {
        let chance = Chance::new(seed);
        let (mut low, mut high) = gaps();
        let mut tame = space(&chance, false);
        let bars = bars::settle(&mut tame, AT, &mut low, &mut high).unwrap();
        let found = capabilities::read(&mut tame, AT, &bars);
        assert!(found.windows.len() < 48);
        for (_, window) in found.windows {
            let inside = |bar: &Bar| {
                let from = window.address.checked_sub(bar.address);
                from.is_some_and(|from| from <= bar.len && window.len <= bar.len - from)
            };
            assert!(bars.iter().any(inside), "{window:?}");
        }
        // The registers have addresses by now, so that the device finds what was found above.
        let place = Place { chance: chance.clone(), bars };
        if let Ok(mut device) = PciDevice::new(&mut tame, AT, &mut low, &mut high, place) {
            made += 1;
            use_device(&mut device);
        }
    }
    assert!(made > 5 || cfg!(miri), "{made}");
}

/// Nothing can be asked of a space where not even the sizes of ranges stay the same, but an end.
#[test]
fn spaces_that_never_say_the_same() {
    for seed in 1..if cfg!(miri) { 5 } else { 300 } {
        let mut wild = space(&Chance::new(seed), true);
        assert!(scan(&mut wild).len() <= 256 * 256);
        let (mut low, mut high) = gaps();
        if let Ok(bars) = bars::settle(&mut wild, AT, &mut low, &mut high) {
            capabilities::read(&mut wild, AT, &bars);
        }
    }
}
