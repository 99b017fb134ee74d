//! The machine's side of virtio devices: the configuration space by ports, registers in memory,
//! those without a bus where the command line says, and memory that a device reaches by physical
//! addresses. The drivers are `atoll-virtio`.
//!
//! Answers are polled for; only of notices devices interrupt. Each access to a register leaves the
//! virtual machine, and is counted.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::NonNull;

use atoll_transport::Shared;
use atoll_unikernel::PAGE;
use atoll_vfs::windowed::{Policy, Windowed};
use atoll_vfs::{Client, ClientOptions, Errno, Forgetting, Keeping};
use atoll_virtio::device::kinds;
use atoll_virtio::disk::Disk;
use atoll_virtio::entropy::Entropy;
use atoll_virtio::fs::VirtioFs;
use atoll_virtio::lent::Lent;
use atoll_virtio::mmio::{MmioDevice, Place};
use atoll_virtio::pci::{self, Bell, ConfigSpace, Function, Gap, PciDevice};
use atoll_virtio::{Device, DeviceError, Machine, Mmio, Platform, Region, Registers};

use crate::frames::DIRECT;
use crate::sole::Sole;
use crate::told::Told;
use crate::window::Shown;
use crate::{clock, frames, interrupts, mappings, paging, ports, told};

/// Ports of the configuration space: which word, and that word.
const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
/// Nanoseconds after which a device that does not answer is given up: a server may be stopped for a
/// while, or a disk be slow.
const PATIENCE: u64 = 300_000_000_000;
/// Bytes that go through a place of the driver's at a time where the device cannot reach them.
const COPIED: usize = 256 << 10;

/// So many reads and writes in a range of a file are messages before it is shown in the window:
/// fewer than those of a process, since each message leaves the machine.
const WORTH: u32 = 64;

/// The configuration space of PCI.
struct Ports;

impl ConfigSpace for Ports {
    fn read(&mut self, function: Function, offset: u16) -> u32 {
        if offset >= 256 {
            return u32::MAX;
        }
        ports::write32(ADDRESS, function.port_word(offset));
        ports::read32(DATA)
    }

    fn write(&mut self, function: Function, offset: u16, value: u32) {
        if offset < 256 {
            ports::write32(ADDRESS, function.port_word(offset));
            ports::write32(DATA, value);
        }
    }
}

/// Registers whose accesses are counted.
#[derive(Clone, Debug)]
pub struct Counted(Mmio);

impl Registers for Counted {
    fn read8(&self, at: usize) -> u8 {
        ports::count_exit();
        self.0.read8(at)
    }

    fn read16(&self, at: usize) -> u16 {
        ports::count_exit();
        self.0.read16(at)
    }

    fn read32(&self, at: usize) -> u32 {
        ports::count_exit();
        self.0.read32(at)
    }

    fn write8(&self, at: usize, value: u8) {
        ports::count_exit();
        self.0.write8(at, value);
    }

    fn write16(&self, at: usize, value: u16) {
        ports::count_exit();
        self.0.write16(at, value);
    }

    fn write32(&self, at: usize, value: u32) {
        ports::count_exit();
        self.0.write32(at, value);
    }
}

/// This machine, for one device.
#[derive(Debug, Default)]
pub struct Here {
    /// When the wait that is under way began.
    since: u64,
    /// The device may interrupt.
    interrupts: bool,
}

impl Machine for Here {
    type Registers = Counted;

    fn map(&mut self, address: u64, len: u64) -> Option<Counted> {
        // SAFETY: the caller has found a device's registers there; a range of addresses of its own
        // is mapped for each.
        let at = unsafe { paging::map_device(address, len) }?;
        // SAFETY: mapped for ever.
        Some(Counted(unsafe { Mmio::new(NonNull::new(at as *mut u8)?, len as usize) }))
    }

    fn pause(&mut self, turn: u64) -> Result<bool, DeviceError> {
        if turn == 0 {
            self.since = clock::monotonic();
        } else if clock::monotonic() - self.since > PATIENCE {
            return Err(DeviceError::Lost);
        }
        // Others may wait for this image, and the answer for them.
        told::take_all();
        ports::pause();
        // Of an answer there is no interrupt to sleep for.
        Ok(true)
    }

    fn message(&self) -> Option<(u64, u32)> {
        self.interrupts.then(interrupts::message).flatten()
    }
}

/// This machine's memory, all of which a device reaches.
#[derive(Debug)]
pub struct Memory;

impl Platform for Memory {
    type Memory = Shared<'static>;

    fn share(&mut self, len: usize) -> Option<Region<Shared<'static>>> {
        let pages = (len as u64).div_ceil(PAGE);
        let frame = frames::take_row(pages)?;
        let at = NonNull::new((DIRECT + frame) as *mut u8)?;
        // SAFETY: frames that nobody else has, and that are never given back. The device has not
        // been told of them yet.
        let memory = unsafe {
            at.as_ptr().write_bytes(0, (pages * PAGE) as usize);
            Shared::new(at, len)
        };
        Some(Region::new(memory, frame))
    }

    fn lend(&mut self, lent: &Lent) -> Option<u64> {
        let at = lent.as_ptr() as u64;
        // The device does not reach its own window as memory.
        if mappings::touches(&(at..at + lent.len() as u64)) {
            return None;
        }
        let first = paging::physical(present(at))?;
        let mut page = (at & !(PAGE - 1)) + PAGE;
        while page < at + lent.len() as u64 {
            // In one piece for the device too.
            if paging::physical(present(page))? != first + (page - at) {
                return None;
            }
            page += PAGE;
        }
        Some(first)
    }
}

/// Touches the byte at `address`, which the caller has borrowed, so that its page is there.
fn present(address: u64) -> u64 {
    // SAFETY: a byte of a borrowed buffer.
    unsafe { (address as *const u8).read_volatile() };
    address
}

/// A device, by whichever transport.
pub trait Attached: Device {
    /// Where a queue that has been started is rung, for who looks after it beside the driver.
    /// `None` where the device does not interrupt for it.
    fn bell(&self, number: u16) -> Option<Bell<Counted>>;
}

impl Attached for PciDevice<Here> {
    fn bell(&self, number: u16) -> Option<Bell<Counted>> {
        self.interrupts().then(|| PciDevice::bell(self, number)).flatten()
    }
}

impl Attached for MmioDevice<Here> {
    fn bell(&self, _: u16) -> Option<Bell<Counted>> {
        None
    }
}

/// One that is there until the end.
type Any = &'static mut dyn Attached;
/// A disk.
pub type VirtioDisk = Disk<Any, Memory>;
/// A file system that a device serves, by messages and its window, and what is kept of it.
pub type Served = Forgetting<Windowed<Keeping<Client<VirtioFs<Any, Memory>>, Told>, Shown>>;

/// Where devices without a bus are, in the order of their addresses.
static PLACES: Sole<Vec<Place>> = Sole::new();

/// Says where devices without a bus are. Called once, before a device is asked for.
pub fn begin(places: &[Place]) {
    let mut places = places.to_vec();
    places.sort();
    // SAFETY: nothing has asked for them yet.
    unsafe { PLACES.set(places) };
}

/// The device with this number among those of its kind: those on PCI in the order of their
/// addresses, then those without a bus in the order of theirs. It may interrupt or not.
fn device(kind: u16, number: u32, interrupts: bool) -> Result<Any, DeviceError> {
    let all = pci::scan(&mut Ports);
    let mut number = number as usize;
    for found in all.iter().filter(|found| found.kind == kind) {
        if number == 0 {
            // The firmware has given all devices their addresses.
            let (mut low, mut high) = (Gap::new(0, 0), Gap::new(0, 0));
            let here = Here { since: 0, interrupts };
            let device = PciDevice::new(&mut Ports, found.function, &mut low, &mut high, here)?;
            return Ok(Box::leak(Box::new(device)));
        }
        number -= 1;
    }
    let mut missing = DeviceError::Lost;
    // SAFETY: they were set at the start, and nothing changes them.
    for &place in unsafe { PLACES.get() }.iter() {
        match MmioDevice::new(place, Here::default()) {
            Ok(device) if device.kind() != kind => {}
            Ok(device) if number == 0 => return Ok(Box::leak(Box::new(device))),
            Ok(_) => number -= 1,
            // It may have been this one, by the old interface alone.
            Err(error) => missing = error,
        }
    }
    Err(missing)
}

/// The disk with this number.
pub fn disk(number: u32) -> Result<VirtioDisk, DeviceError> {
    Disk::new(device(kinds::BLOCK, number, false)?, Memory)
}

/// Fills `buf` from the first source of entropy.
pub fn entropy(buf: &mut [u8]) -> Result<(), DeviceError> {
    Entropy::new(device(kinds::ENTROPY, 0, false)?, &mut Memory)?.fill(buf)
}

/// The file system's device with this number. What it has is used: its window, and its notices if
/// they can interrupt the program, which may call nothing for long.
pub fn served(number: u32) -> Result<Result<Served, Errno>, DeviceError> {
    let device = device(kinds::FILE_SYSTEM, number, true)?;
    let (mut transport, notices) = VirtioFs::with_notices(device, Memory, COPIED)?;
    let mut told = Told::of_nothing();
    if let Some(notices) = notices {
        match transport.device().bell(notices.number()) {
            Some(bell) => told = Told::begin(notices, bell),
            None => {
                let (device, memory) = transport.stop();
                transport = VirtioFs::new(device, memory, COPIED)?;
            }
        }
    }
    let shown = transport.device().window(0).and_then(Shown::map);
    let client = Client::connect(transport, ClientOptions::default());
    let policy = Policy { worth: WORTH, ..Policy::default() };
    let windowed = |client| Windowed::new(Keeping::new(client, told), shown, policy);
    Ok(client.map(windowed).map(Forgetting::new))
}
