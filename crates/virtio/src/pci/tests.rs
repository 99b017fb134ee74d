//! A function of PCI that is played: its configuration space, and its registers.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use super::bars::{Bar, settle};
use super::*;
use crate::device::{Device, DeviceError, Window, features, kinds};
use crate::machine::Machine;
use crate::queue::Addresses;
use crate::registers::Registers;

const AT: Function = Function { bus: 0, device: 3, function: 0 };

/// A bus with one function.
#[derive(Clone)]
struct Bus {
    words: BTreeMap<u16, u32>,
    /// By register: which bits can be set.
    masks: [u32; 6],
}

impl ConfigSpace for Bus {
    fn read(&mut self, function: Function, offset: u16) -> u32 {
        assert!(offset.is_multiple_of(4) && offset < 256);
        if function != AT {
            return u32::MAX;
        }
        self.words.get(&offset).copied().unwrap_or(0)
    }

    fn write(&mut self, function: Function, offset: u16, value: u32) {
        assert_eq!(function, AT);
        let bar = usize::from(offset.wrapping_sub(0x10) / 4);
        let value = match (offset, bar) {
            (0x10..0x28, bar) => {
                let decodes = self.words.get(&4).is_some_and(|word| word & 3 != 0);
                assert!(!decodes, "a register is changed while the function answers by it");
                let low = self.words.get(&offset).copied().unwrap_or(0) & 0xf;
                let kind = if bar % 2 == 0 { 0xf } else { 0 };
                value & self.masks[bar] & !kind | low & kind
            }
            (4, _) => self.words.get(&4).copied().unwrap_or(0) & 0xffff_0000 | value & 0xffff,
            _ => value,
        };
        self.words.insert(offset, value);
    }
}

/// A capability of virtio's: kind, BAR, number, offset, length, and more words.
fn capability(bus: &mut Bus, at: u16, next: u16, of: (u8, u8, u8, u64, u64), more: u32) {
    let (kind, bar, id, offset, len) = of;
    let own_len = if kind == 8 { 24 } else { 20 };
    bus.words.insert(at, u32::from_le_bytes([9, next as u8, own_len, kind]));
    bus.words.insert(at + 4, u32::from_le_bytes([bar, id, 0, 0]));
    bus.words.insert(at + 8, offset as u32);
    bus.words.insert(at + 12, len as u32);
    let high = kind == 8;
    bus.words.insert(at + 16, if high { (offset >> 32) as u32 } else { more });
    if high {
        bus.words.insert(at + 20, (len >> 32) as u32);
    }
}

/// A file system's device: 16 KiB of registers in BAR 4, a window of 8 GiB in BAR 2, both wide.
fn bus() -> Bus {
    let words = BTreeMap::from([
        (0x00, 0x105a_1af4),
        (0x04, 1 << 20),
        (0x18, 0xc),
        (0x20, 0xc),
        (0x34, 0x40),
    ]);
    let mut bus = Bus { words, masks: [0, 0, 0, 0xffff_fffe, 0xffff_c000, 0xffff_ffff] };
    capability(&mut bus, 0x40, 0x58, (1, 4, 0, 0, 0x1000), 0);
    capability(&mut bus, 0x58, 0x70, (3, 4, 0, 0x1000, 0x1000), 0);
    capability(&mut bus, 0x70, 0x88, (4, 4, 0, 0x2000, 0x1000), 0);
    capability(&mut bus, 0x88, 0xa0, (2, 4, 0, 0x3000, 0x1000), 4);
    capability(&mut bus, 0xa0, 0x00, (8, 2, 0, 0, 8 << 30), 0);
    bus
}

/// The device's registers and what it makes of them.
#[derive(Default)]
struct Chip {
    bytes: Vec<u8>,
    features: u64,
    /// Features that it does not work without.
    needs: u64,
    accepted: u64,
    /// By queue.
    queues: Vec<BTreeMap<usize, u64>>,
    rung: Vec<(usize, u16)>,
    /// How often its configuration changes yet while it is read.
    changes: u32,
    resets: u32,
}

#[derive(Clone)]
struct Part(Rc<RefCell<Chip>>, usize);

impl Part {
    fn read(&self, at: usize, len: usize) -> u64 {
        let mut chip = self.0.borrow_mut();
        let at = self.1 + at;
        let byte = |chip: &Chip, at: usize| u64::from(chip.bytes[at]);
        match at {
            4 => chip.features >> (32 * chip.bytes[0]) & 0xffff_ffff,
            18 => chip.queues.len() as u64,
            21 => {
                let left = chip.changes;
                chip.changes = left.saturating_sub(1);
                if left > 0 { u64::from(left & 1) } else { 9 }
            }
            24 => 256,
            30 => u64::from(chip.bytes[22]) * 3,
            _ => (0..len).map(|number| byte(&chip, at + number) << (8 * number)).sum(),
        }
    }

    fn write(&self, at: usize, value: u64, len: usize) {
        let mut chip = self.0.borrow_mut();
        let at = self.1 + at;
        match at {
            20 if value == 0 => chip.resets += 1,
            20 if value & 8 != 0 && chip.accepted & chip.needs != chip.needs => {
                chip.bytes[20] = (value & !8) as u8;
                return;
            }
            12 => chip.accepted |= value << (32 * chip.bytes[8]),
            24 | 28 | 32..56 => {
                let queue = usize::from(chip.bytes[22]);
                chip.queues[queue].insert(at, value);
            }
            0x3000.. => chip.rung.push((at - 0x3000, value as u16)),
            _ => {}
        }
        chip.bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    }
}

impl Registers for Part {
    fn read8(&self, at: usize) -> u8 {
        self.read(at, 1) as u8
    }
    fn read16(&self, at: usize) -> u16 {
        self.read(at, 2) as u16
    }
    fn read32(&self, at: usize) -> u32 {
        self.read(at, 4) as u32
    }
    fn write8(&self, at: usize, value: u8) {
        self.write(at, value.into(), 1);
    }
    fn write16(&self, at: usize, value: u16) {
        self.write(at, value.into(), 2);
    }
    fn write32(&self, at: usize, value: u32) {
        self.write(at, value.into(), 4);
    }
}

#[derive(Clone)]
struct Board(Rc<RefCell<Chip>>);

impl Board {
    fn new() -> Board {
        let chip = Chip {
            bytes: vec![0; 0x4000],
            features: features::VERSION_1 | features::INDIRECT | 1,
            queues: vec![BTreeMap::new(); 3],
            ..Chip::default()
        };
        Board(Rc::new(RefCell::new(chip)))
    }
}

impl Machine for Board {
    type Registers = Part;

    fn map(&mut self, address: u64, len: u64) -> Option<Part> {
        let at = address.checked_sub(0xfe00_0000).filter(|at| at + len <= 0x4000)?;
        Some(Part(self.0.clone(), at as usize))
    }

    fn pause(&mut self, turn: u64) -> Result<bool, DeviceError> {
        if turn < 10 { Ok(true) } else { Err(DeviceError::Lost) }
    }
}

fn gaps() -> (Gap, Gap) {
    (Gap::new(0xfe00_0000, 0xfec0_0000), Gap::new(1 << 40, 1 << 41))
}

#[test]
fn a_device_is_found_and_gets_addresses() {
    let mut bus = bus();
    let found = scan(&mut bus);
    assert_eq!(found, [Found { function: AT, kind: kinds::FILE_SYSTEM }]);
    let (mut low, mut high) = gaps();
    let bars = settle(&mut bus, AT, &mut low, &mut high).unwrap();
    let window = Bar { address: 1 << 40, len: 8 << 30, is_wide: true };
    let registers = Bar { address: 0xfe00_0000, len: 0x4000, is_wide: true };
    assert_eq!((bars[2], bars[4]), (window, registers));
    assert_eq!(bars[0].len | bars[1].len | bars[3].len | bars[5].len, 0);
    assert_eq!(bus.words[&4] & 0xffff, 1 << 1 | 1 << 2 | 1 << 10);
    // What has addresses keeps them.
    let (mut low, mut high) = (Gap::new(0, 0), Gap::new(0, 0));
    assert_eq!(settle(&mut bus, AT, &mut low, &mut high), Ok(bars));
    // The two ways to say where a word is.
    let function = Function { bus: 1, device: 31, function: 7 };
    assert_eq!(function.port_word(0x3f), 0x8001_ff3c);
    assert_eq!(function.ecam_offset(0x104), 0x1f_f104);
}

#[test]
fn no_room_for_a_device() {
    let (mut low, mut high) = (Gap::new(0xfe00_0000, 0xfe00_2000), Gap::new(1 << 40, 1 << 41));
    let mut machine = bus();
    machine.masks[3] = 0;
    machine.words.remove(&0x18);
    machine.words.insert(0x20, 0);
    let settled = settle(&mut machine, AT, &mut low, &mut high);
    assert_eq!(settled, Err(DeviceError::NoMemory));
}

#[test]
fn a_device_is_settled_with() {
    let board = Board::new();
    let (mut low, mut high) = gaps();
    let mut device = PciDevice::new(&mut bus(), AT, &mut low, &mut high, board.clone()).unwrap();
    let offered = device.begin().unwrap();
    assert_eq!(offered, features::VERSION_1 | features::INDIRECT | 1);
    let wanted = features::VERSION_1 | features::INDIRECT;
    device.accept(wanted).unwrap();
    assert_eq!(device.queue_size(2), 256);
    assert_eq!(device.queue_size(3), 0);
    let addresses = Addresses { descriptors: 0x1_2345_6000, available: 2 << 32, used: 3 };
    assert_eq!(device.start_queue(1, 512, &addresses), Err(DeviceError::Unsupported));
    device.start_queue(1, 128, &addresses).unwrap();
    device.start().unwrap();
    device.ring(1);
    device.ring(2);
    // Another who rings it; a queue that was not started has no bell.
    device.bell(1).expect("it was started").ring();
    assert!(device.bell(2).is_none() && device.bell(99).is_none());
    let chip = board.0.borrow();
    assert_eq!((chip.accepted, chip.bytes[20]), (wanted, 1 | 2 | 4 | 8));
    let queue = BTreeMap::from([
        (24, 128),
        (28, 1),
        (32, 0x2345_6000),
        (36, 1),
        (40, 0),
        (44, 2),
        (48, 3),
        (52, 0),
    ]);
    assert_eq!(chip.queues[1], queue);
    // The second of the two has not been started. The place is its own number times 4.
    assert_eq!(chip.rung, [(12, 1), (12, 1)]);
    drop(chip);
    assert_eq!(device.window(0), Some(Window { address: 1 << 40, len: 8 << 30 }));
    assert_eq!(device.window(1), None);
    assert!(device.stop());
}

#[test]
fn features_that_a_device_needs() {
    let board = Board::new();
    board.0.borrow_mut().needs = 1;
    let (mut low, mut high) = gaps();
    let mut device = PciDevice::new(&mut bus(), AT, &mut low, &mut high, board.clone()).unwrap();
    device.begin().unwrap();
    assert_eq!(device.accept(features::INDIRECT), Err(DeviceError::Unsupported));
    assert_eq!(device.accept(features::VERSION_1), Err(DeviceError::Unsupported));
    device.begin().unwrap();
    assert_eq!(device.accept(features::VERSION_1 | 1), Ok(()));
}

#[test]
fn a_configuration_that_changes_is_read_again() {
    let board = Board::new();
    let (mut low, mut high) = gaps();
    let mut device = PciDevice::new(&mut bus(), AT, &mut low, &mut high, board.clone()).unwrap();
    board.0.borrow_mut().bytes[0x2000..0x2008].copy_from_slice(b"abcdefgh");
    board.0.borrow_mut().changes = 5;
    let mut out = [0; 7];
    device.configuration(1, &mut out).unwrap();
    assert_eq!(&out, b"bcdefgh");
    board.0.borrow_mut().changes = u32::MAX;
    assert_eq!(device.configuration(0, &mut out), Err(DeviceError::Broken));
    board.0.borrow_mut().changes = 0;
    for outside in [0x0ffa, 0x1000, usize::MAX] {
        assert_eq!(device.configuration(outside, &mut out), Err(DeviceError::Unsupported));
    }
}

/// Capabilities that go in circles, lie outside of the function's memory, or are not there.
#[test]
fn capabilities_that_make_no_sense() {
    let device = |bus: &mut Bus| {
        let (mut low, mut high) = gaps();
        PciDevice::new(bus, AT, &mut low, &mut high, Board::new()).map(drop)
    };
    assert_eq!(device(&mut bus()), Ok(()));
    type Breaks = fn(&mut Bus);
    let cases: [(&str, Breaks); 9] = [
        ("a circle", |bus| capability(bus, 0x40, 0x40, (3, 4, 0, 0, 0), 0)),
        ("none", |bus| _ = bus.words.insert(4, 0)),
        ("a pointer into the header", |bus| _ = bus.words.insert(0x34, 0x10)),
        ("a pointer to the end", |bus| _ = bus.words.insert(0x34, 0xff)),
        ("too short", |bus| capability(bus, 0x40, 0x58, (1, 4, 0, 0, 55), 0)),
        ("no such BAR", |bus| capability(bus, 0x40, 0x58, (1, 6, 0, 0, 0x1000), 0)),
        ("an empty BAR", |bus| capability(bus, 0x40, 0x58, (1, 0, 0, 0, 0x1000), 0)),
        ("outside", |bus| capability(bus, 0x40, 0x58, (1, 4, 0, 0x3fc9, 56), 0)),
        ("outside by far", |bus| capability(bus, 0x88, 0xa0, (2, 4, 0, u64::MAX, 4), 0)),
    ];
    for (name, change) in cases {
        let mut bus = bus();
        change(&mut bus);
        assert_eq!(device(&mut bus), Err(DeviceError::Unsupported), "{name}");
    }
    // A place to ring that is none.
    let mut bus = bus();
    capability(&mut bus, 0x88, 0xa0, (2, 4, 0, 0x3000, 0x1000), u32::MAX);
    let (mut low, mut high) = gaps();
    let mut device = PciDevice::new(&mut bus, AT, &mut low, &mut high, Board::new()).unwrap();
    device.begin().unwrap();
    device.accept(features::VERSION_1).unwrap();
    let addresses = Addresses { descriptors: 0, available: 0, used: 0 };
    assert_eq!(device.start_queue(1, 8, &addresses), Err(DeviceError::Broken));
}
