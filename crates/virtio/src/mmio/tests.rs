//! The registers of a device that is played: those of `testing`, which is told by them what a
//! driver wants.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use super::*;
use crate::device::features;
use crate::device::kinds;
use crate::entropy::Entropy;
use crate::testing::{self, FakeDevice, Lie};

/// Gives bytes that count up.
type Source = fn(u16, &[u8], usize) -> Option<Vec<u8>>;

fn source(_: u16, _: &[u8], room: usize) -> Option<Vec<u8>> {
    Some((0..room).map(|number| number as u8).collect())
}

/// What stands behind the registers.
struct Chip {
    fake: FakeDevice<Source>,
    /// What was written last, by offset.
    words: BTreeMap<usize, u32>,
    /// Features that it does not work without.
    needs: u64,
    accepted: u64,
    /// The queues that are ready.
    ready: Vec<u32>,
    windows: Vec<Window>,
    /// How often its configuration changes yet while it is read.
    changes: u32,
    /// Why it interrupts.
    interrupts: u32,
    /// It does not reset.
    is_stuck: bool,
}

impl Chip {
    fn word(&self, at: usize) -> u32 {
        self.words.get(&at).copied().unwrap_or(0)
    }

    fn address(&self, at: usize) -> u64 {
        u64::from(self.word(at + 4)) << 32 | u64::from(self.word(at))
    }

    fn read(&mut self, at: usize) -> u32 {
        let queue = self.word(at::QUEUE_SELECT);
        let window = self.windows.get(self.word(at::SHARED_MEMORY_SELECT) as usize);
        let Window { address, len } =
            window.copied().unwrap_or(Window { address: u64::MAX, len: u64::MAX });
        match at {
            at::DEVICE_FEATURES => {
                (self.fake.offers >> (32 * self.word(at::DEVICE_FEATURES_SELECT))) as u32
            }
            at::QUEUE_SIZE_MAX => match self.words.get(&at) {
                Some(&most) => most,
                None => self.fake.queue_size(queue as u16).into(),
            },
            at::QUEUE_READY => self.ready.contains(&queue).into(),
            at::INTERRUPT_STATUS => self.interrupts,
            at::SHARED_MEMORY_LEN => len as u32,
            0xb4 => (len >> 32) as u32,
            at::SHARED_MEMORY_BASE => address as u32,
            0xbc => (address >> 32) as u32,
            at::GENERATION => {
                let left = self.changes;
                self.changes = left.saturating_sub(1);
                if left > 0 { left & 1 } else { 9 }
            }
            at::MAGIC | at::VERSION | at::DEVICE_ID | at::STATUS => self.word(at),
            _ => panic!("{at:#x} is not to be read"),
        }
    }

    fn write(&mut self, at: usize, value: u32) {
        let queue = self.word(at::QUEUE_SELECT) as u16;
        match at {
            at::STATUS if self.is_stuck => return,
            at::STATUS if value == 0 => {
                self.fake.stop();
                self.ready.clear();
            }
            at::STATUS if value & 8 != 0 && self.word(at) & 8 == 0 => {
                let fits = self.accepted & self.needs == self.needs;
                if !fits || self.fake.accept(self.accepted).is_err() {
                    self.words.insert(at, value & !8);
                    return;
                }
            }
            at::STATUS if value & 4 != 0 => self.fake.start().unwrap(),
            at::DRIVER_FEATURES => {
                self.accepted |= u64::from(value) << (32 * self.word(at::DRIVER_FEATURES_SELECT));
            }
            at::QUEUE_READY => {
                assert_eq!(value, 1);
                let addresses = Addresses {
                    descriptors: self.address(at::QUEUE_DESCRIPTORS),
                    available: self.address(at::QUEUE_AVAILABLE),
                    used: self.address(at::QUEUE_USED),
                };
                let size = self.word(at::QUEUE_SIZE) as u16;
                self.fake.start_queue(queue, size, &addresses).unwrap();
                self.ready.push(queue.into());
            }
            at::QUEUE_NOTIFY => self.fake.ring(value as u16),
            at::INTERRUPT_ACKNOWLEDGE => self.interrupts &= !value,
            at::MAGIC | at::VERSION | at::DEVICE_ID | at::QUEUE_SIZE_MAX | at::GENERATION => {
                panic!("{at:#x} is not to be written");
            }
            _ => {}
        }
        self.words.insert(at, value);
    }
}

#[derive(Clone)]
struct Board {
    chip: Rc<RefCell<Chip>>,
    has_line: bool,
}

impl Board {
    fn new(machine: &testing::Machine) -> Board {
        let mut fake = FakeDevice::new(machine, 3, features::INDIRECT | 1, source as Source);
        fake.config = b"abcdefgh".to_vec();
        let words = [(at::MAGIC, MAGIC), (at::VERSION, 2), (at::DEVICE_ID, kinds::ENTROPY.into())];
        let chip = Chip {
            fake,
            words: words.into(),
            needs: 0,
            accepted: 0,
            ready: Vec::new(),
            windows: vec![Window { address: 1 << 40, len: 8 << 30 }],
            changes: 0,
            interrupts: 0,
            is_stuck: false,
        };
        Board { chip: Rc::new(RefCell::new(chip)), has_line: false }
    }

    fn device(&self) -> Result<MmioDevice<Board>, DeviceError> {
        MmioDevice::new(Place::new(0xfeb0_0000, 0x108).unwrap(), self.clone())
    }
}

impl Registers for Board {
    fn read8(&self, at: usize) -> u8 {
        self.chip.borrow().fake.config[at - at::CONFIGURATION]
    }
    fn read16(&self, at: usize) -> u16 {
        u16::from_le_bytes([0, 1].map(|byte| self.read8(at + byte)))
    }
    fn read32(&self, at: usize) -> u32 {
        match at {
            at::CONFIGURATION.. => u32::from_le_bytes([0, 1, 2, 3].map(|by| self.read8(at + by))),
            _ => self.chip.borrow_mut().read(at),
        }
    }
    fn write8(&self, at: usize, _: u8) {
        panic!("{at:#x} is not to be written by bytes");
    }
    fn write16(&self, at: usize, _: u16) {
        panic!("{at:#x} is not to be written by halves");
    }
    fn write32(&self, at: usize, value: u32) {
        self.chip.borrow_mut().write(at, value);
    }
}

impl Machine for Board {
    type Registers = Board;

    fn map(&mut self, address: u64, len: u64) -> Option<Board> {
        (address == 0xfeb0_0000 && len == 0x108).then(|| self.clone())
    }

    fn pause(&mut self, turn: u64) -> Result<bool, DeviceError> {
        // With a line the device answers while the processor sleeps.
        if self.has_line { Ok(false) } else { self.chip.borrow_mut().fake.pause(0, turn) }
    }

    fn sleep(&mut self) -> Result<(), DeviceError> {
        let mut chip = self.chip.borrow_mut();
        chip.interrupts |= 1;
        chip.fake.sleep(0)
    }

    fn has_line(&self) -> bool {
        self.has_line
    }
}

#[test]
fn a_device_is_settled_with() {
    let board = Board::new(&testing::Machine::lending(false));
    let mut device = board.device().unwrap();
    assert_eq!(device.kind(), kinds::ENTROPY);
    let offered = device.begin().unwrap();
    assert_eq!(offered, features::VERSION_1 | features::INDIRECT | 1);
    let wanted = features::VERSION_1 | features::INDIRECT;
    device.accept(wanted).unwrap();
    assert_eq!((device.queue_size(2), device.queue_size(3)), (16, 0));
    let addresses = Addresses { descriptors: 0x1_2345_6000, available: 2 << 32, used: 3 };
    assert_eq!(device.start_queue(1, 17, &addresses), Err(DeviceError::Unsupported));
    assert_eq!(device.start_queue(3, 1, &addresses), Err(DeviceError::Unsupported));
    device.start_queue(1, 8, &addresses).unwrap();
    // It is in use already, by the device's own word.
    assert_eq!(device.start_queue(1, 8, &addresses), Err(DeviceError::Broken));
    device.start().unwrap();
    device.ring(2);
    let chip = board.chip.borrow();
    assert_eq!((chip.accepted, chip.word(at::STATUS)), (wanted, 1 | 2 | 4 | 8));
    assert_eq!((chip.word(at::QUEUE_SIZE), &chip.ready[..]), (8, &[1][..]));
    assert_eq!(chip.address(at::QUEUE_DESCRIPTORS), 0x1_2345_6000);
    assert_eq!((chip.address(at::QUEUE_AVAILABLE), chip.address(at::QUEUE_USED)), (2 << 32, 3));
    assert_eq!((chip.fake.rung, chip.word(at::QUEUE_NOTIFY)), (1, 2));
    drop(chip);
    assert!(device.stop());
    assert_eq!(board.chip.borrow().word(at::STATUS), 0);
    board.chip.borrow_mut().is_stuck = true;
    board.chip.borrow_mut().words.insert(at::STATUS, 15);
    assert!(!device.stop());
    assert_eq!(device.begin(), Err(DeviceError::Lost));
}

/// A driver by the registers alone: polling, and sleeping until the device's line is held.
#[test]
fn a_driver_uses_a_device() {
    for has_line in [false, true] {
        let mut memory = testing::Machine::lending(true);
        let mut board = Board::new(&memory);
        board.has_line = has_line;
        let mut out = [0; 6000];
        let mut entropy = Entropy::new(board.device().unwrap(), &mut memory).unwrap();
        entropy.fill(&mut out).unwrap();
        assert!(out.iter().enumerate().all(|(at, &byte)| byte == (at % 4096) as u8));
        let mut chip = board.chip.borrow_mut();
        assert_eq!((chip.word(at::INTERRUPT_ACKNOWLEDGE), chip.interrupts), (has_line.into(), 0));
        chip.fake.lie = Some(Lie::NoSuchChain(9));
        drop(chip);
        assert_eq!(entropy.fill(&mut out), Err(DeviceError::Broken));
        assert_eq!(board.chip.borrow().word(at::STATUS), 0);
    }
}

#[test]
fn places_without_a_device_that_is_known() {
    let board = Board::new(&testing::Machine::lending(false));
    for (at, wrong) in [
        (at::MAGIC, 0x7672_6974),
        (at::MAGIC, u32::MAX),
        (at::VERSION, 1),
        (at::VERSION, 3),
        (at::DEVICE_ID, 0),
        (at::DEVICE_ID, 1 << 16),
    ] {
        let right = board.chip.borrow_mut().words.insert(at, wrong).unwrap();
        let refused = board.device().map(drop);
        assert_eq!(refused, Err(DeviceError::Unsupported), "{at:#x} {wrong:#x}");
        board.chip.borrow_mut().words.insert(at, right);
    }
    assert!(board.device().is_ok());
    let elsewhere = Place::new(0xfeb0_0200, 0x108).unwrap();
    let device = MmioDevice::new(elsewhere, board.clone());
    assert_eq!(device.map(drop), Err(DeviceError::NoMemory));
}

#[test]
fn features_that_a_device_needs() {
    let board = Board::new(&testing::Machine::lending(false));
    board.chip.borrow_mut().needs = 1;
    let mut device = board.device().unwrap();
    device.begin().unwrap();
    assert_eq!(device.accept(features::INDIRECT), Err(DeviceError::Unsupported));
    assert_eq!(device.accept(features::VERSION_1), Err(DeviceError::Unsupported));
    device.begin().unwrap();
    assert_eq!(device.accept(features::VERSION_1 | 1), Ok(()));
}

#[test]
fn a_configuration_that_changes_is_read_again() {
    let board = Board::new(&testing::Machine::lending(false));
    let mut device = board.device().unwrap();
    board.chip.borrow_mut().changes = 5;
    let mut out = [0; 7];
    device.configuration(1, &mut out).unwrap();
    assert_eq!((&out, board.chip.borrow().changes), (b"bcdefgh", 0));
    board.chip.borrow_mut().changes = u32::MAX;
    assert_eq!(device.configuration(0, &mut out), Err(DeviceError::Broken));
    board.chip.borrow_mut().changes = 0;
    for outside in [2, 8, usize::MAX] {
        assert_eq!(device.configuration(outside, &mut out), Err(DeviceError::Unsupported));
    }
}

#[test]
fn windows_and_queues_that_cannot_be() {
    let board = Board::new(&testing::Machine::lending(false));
    let mut device = board.device().unwrap();
    assert_eq!(device.window(0), Some(Window { address: 1 << 40, len: 8 << 30 }));
    assert_eq!(device.window(1), None);
    for (address, len) in [(4096, 0), (u64::MAX - 4095, 8192), (0, u64::MAX)] {
        board.chip.borrow_mut().windows[0] = Window { address, len };
        assert_eq!(device.window(0), None, "{address:x} {len:x}");
    }
    // More entries than there may be count as the most.
    board.chip.borrow_mut().words.insert(at::QUEUE_SIZE_MAX, 0x1_0010);
    assert_eq!(device.queue_size(0), SIZE_MAX);
}

/// A device that asks for its reset, or is gone, ends a wait.
#[test]
fn a_device_that_is_lost() {
    let mut board = Board::new(&testing::Machine::lending(false));
    // The machine itself waits for ever.
    board.has_line = true;
    let mut device = board.device().unwrap();
    for (status, lost) in [(15, false), (15 | 64, true), (0, true), (u32::MAX, true)] {
        board.chip.borrow_mut().words.insert(at::STATUS, status);
        assert_eq!(device.pause(0, 7), Ok(false), "{status:#x}");
        assert_eq!(device.pause(0, (1 << 16) - 1).is_err(), lost, "{status:#x}");
    }
}

#[test]
fn places_on_a_command_line() {
    let place = |address, len| Some(Place { address, len });
    for (text, parsed) in [
        ("512@0xfeb00000:5", place(0xfeb0_0000, 512)),
        ("0x200@0xfeb00e00:12:0", place(0xfeb0_0e00, 512)),
        // As Firecracker writes it.
        ("4K@0xd0000000:5", place(0xd000_0000, 4096)),
        ("1k@3G:5:-1", place(3 << 30, 1024)),
        ("", None),
        ("512", None),
        ("512@0xfeb00000", None),
        ("512@0xfeb00000:", None),
        ("@0xfeb00000:5", None),
        ("255@0xfeb00000:5", None),
        ("512@0xfeb00002:5", None),
        ("512@0xfffffffffffffff0:5", None),
        ("512@17179869184G:5", None),
        ("512@0x1ffffffffffffffff:5", None),
        ("512@-4:5", None),
        ("+512@4096:5", None),
        ("512@0x+1000:5", None),
        ("512@4096:5:0:1", None),
        ("512@4096:5:x", None),
        ("512@4096:4294967296", None),
        ("512@\u{e9}:5", None),
    ] {
        assert_eq!(Place::parse(text.as_bytes()), parsed, "{text}");
    }
    assert_eq!(Place::parse(b"512@4096:5\xff"), None);
}
