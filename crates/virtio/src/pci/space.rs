//! The configuration space of PCI (PCI Local Bus 3.0, chapter 6), and a scan of it.

use alloc::vec::Vec;

/// Words of a function's configuration space, by their offsets in bytes.
pub(super) mod words {
    pub const IDENTITY: u16 = 0x00;
    pub const COMMAND: u16 = 0x04;
    pub const HEADER: u16 = 0x0c;
    pub const BARS: u16 = 0x10;
    pub const BUSES: u16 = 0x18;
    pub const SUBSYSTEM: u16 = 0x2c;
    pub const CAPABILITIES: u16 = 0x34;
}

/// Bits of the command register, and of the status register above it.
pub(super) mod command {
    pub const IO: u32 = 1 << 0;
    pub const MEMORY: u32 = 1 << 1;
    pub const MASTER: u32 = 1 << 2;
    pub const NO_INTERRUPT: u32 = 1 << 10;
    pub const HAS_CAPABILITIES: u32 = 1 << 20;
    /// What a write has to leave alone: status bits are cleared by writing them.
    pub const OWN: u32 = 0xffff;
}

/// The maker of virtio devices.
const VENDOR: u16 = 0x1af4;
/// Numbers of devices: those that know the old interface too, and the others, from which the kind
/// counts.
const TRANSITIONAL: u16 = 0x1000;
const MODERN: u16 = 0x1040;
const LAST: u16 = 0x107f;

/// A function of a device on a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    /// Its bus.
    pub bus: u8,
    /// Its device's number, below 32.
    pub device: u8,
    /// Its own, below 8.
    pub function: u8,
}

impl Function {
    fn number(self) -> u32 {
        u32::from(self.bus) << 8 | u32::from(self.device & 31) << 3 | u32::from(self.function & 7)
    }

    /// The word to be written to port 0xcf8 so that port 0xcfc is that at `offset`, which is below
    /// 256.
    pub fn port_word(self, offset: u16) -> u32 {
        1 << 31 | self.number() << 8 | u32::from(offset & 0xfc)
    }

    /// Where the word at `offset` is in a configuration space in memory (ECAM) that begins with
    /// bus 0, in bytes.
    pub fn ecam_offset(self, offset: u16) -> u64 {
        u64::from(self.number()) << 12 | u64::from(offset & 0xffc)
    }
}

/// A way to the configuration space: ports, or memory.
pub trait ConfigSpace {
    /// The word at `offset`, a multiple of 4; all ones where there is no such function.
    fn read(&mut self, function: Function, offset: u16) -> u32;

    /// Writes it.
    fn write(&mut self, function: Function, offset: u16, value: u32);
}

impl<C: ConfigSpace + ?Sized> ConfigSpace for &mut C {
    fn read(&mut self, function: Function, offset: u16) -> u32 {
        (**self).read(function, offset)
    }

    fn write(&mut self, function: Function, offset: u16, value: u32) {
        (**self).write(function, offset, value);
    }
}

/// A virtio device that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where.
    pub function: Function,
    /// Its kind: [`kinds`](crate::device::kinds).
    pub kind: u16,
}

/// The kind of virtio device that a function is, if it is one.
fn kind<C: ConfigSpace>(space: &mut C, function: Function, identity: u32) -> Option<u16> {
    let (vendor, device) = (identity as u16, (identity >> 16) as u16);
    match device {
        _ if vendor != VENDOR => None,
        TRANSITIONAL..MODERN => Some((space.read(function, words::SUBSYSTEM) >> 16) as u16),
        MODERN..=LAST => Some(device - MODERN),
        _ => None,
    }
}

/// The virtio devices on bus 0 and on all buses that bridges have been given, in order.
pub fn scan<C: ConfigSpace>(space: &mut C) -> Vec<Found> {
    let mut found = Vec::new();
    let (mut buses, mut seen) = (Vec::from([0u8]), [false; 256]);
    // Each bus once.
    while let Some(bus) = buses.pop() {
        if core::mem::replace(&mut seen[usize::from(bus)], true) {
            continue;
        }
        for device in 0..32 {
            for number in 0..8 {
                let function = Function { bus, device, function: number };
                let identity = space.read(function, words::IDENTITY);
                if identity as u16 == u16::MAX {
                    // Without a first function there are no others.
                    if number == 0 {
                        break;
                    }
                    continue;
                }
                let header = space.read(function, words::HEADER) >> 16;
                if header & 0x7f == 1 {
                    buses.push((space.read(function, words::BUSES) >> 8) as u8);
                } else if let Some(kind) = kind(space, function, identity) {
                    found.push(Found { function, kind });
                }
                if number == 0 && header & 0x80 == 0 {
                    break;
                }
            }
        }
    }
    found.sort_by_key(|found| found.function);
    found
}
