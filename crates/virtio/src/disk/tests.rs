//! The disk against the contract of the block seam, on devices of several kinds; entropy
//! beside it.

use alloc::vec;
use alloc::vec::Vec;

use atoll_block::conformance::{BLOCKS, limits, random_operations};
use atoll_block::{BLOCK_SIZE, Cached, RamDevice};

use super::*;
use crate::device::features;
use crate::entropy::Entropy;
use crate::testing::{FakeDevice, Lie, Machine};

/// What a disk does with its requests.
struct Storage {
    ram: RamDevice,
    flushes: usize,
    zeroes: usize,
    /// Says so of zeros.
    refuses_zeroes: bool,
    /// The outcome of everything.
    fails: Option<u8>,
}

fn storage(fails: Option<u8>) -> Storage {
    let ram = RamDevice::new(BLOCKS);
    Storage { ram, flushes: 0, zeroes: 0, refuses_zeroes: false, fails }
}

impl crate::testing::Backend for Storage {
    fn serve(&mut self, _: u16, request: &[u8], room: usize) -> Option<Vec<u8>> {
        let kind = u32::from_le_bytes(request[..4].try_into().unwrap());
        let sector = u64::from_le_bytes(request[8..16].try_into().unwrap());
        let (first, data) = (BlockIndex(sector / SECTORS), &request[16..]);
        let mut answer = vec![0; room - 1];
        let done = match kind {
            IN => self.ram.read(first, &mut answer),
            OUT => self.ram.write(first, data),
            FLUSH => {
                self.flushes += 1;
                self.ram.flush()
            }
            WRITE_ZEROES if !self.refuses_zeroes => {
                self.zeroes += 1;
                let first = u64::from_le_bytes(data[..8].try_into().unwrap()) / SECTORS;
                let count = u32::from_le_bytes(data[8..12].try_into().unwrap());
                assert_eq!(data[12..], [1, 0, 0, 0]);
                self.ram.discard(BlockIndex(first), u64::from(count) / SECTORS)
            }
            _ => Err(BlockError::Unsupported),
        };
        answer.push(match done {
            Ok(()) => self.fails.unwrap_or(OK),
            Err(BlockError::Unsupported) => UNSUPPORTED,
            Err(_) => 1,
        });
        Some(answer)
    }
}

fn device(machine: &Machine, offers: u64, storage: Storage) -> FakeDevice<Storage> {
    let mut device = FakeDevice::new(machine, 1, offers, storage);
    device.config = vec![0; 60];
    device.config[..8].copy_from_slice(&(BLOCKS * SECTORS + 3).to_le_bytes());
    device.config[8..12].copy_from_slice(&(9000u32).to_le_bytes());
    device.config[48..52].copy_from_slice(&(100u32).to_le_bytes());
    device.config[56] = 1;
    device
}

#[test]
#[cfg_attr(miri, ignore = "takes hours there")]
fn keeps_the_contract() {
    let all = features::INDIRECT | features::EVENT_INDEX | F_FLUSH | F_WRITE_ZEROES | F_SIZE_MAX;
    for (offers, lends_nothing) in [(0, true), (0, false), (all, false), (all, true)] {
        let open = || {
            let machine = Machine::lending(!lends_nothing);
            let disk = Disk::new(device(&machine, offers, storage(None)), machine);
            Cached::new(disk.unwrap(), 40_000)
        };
        let mut disk = open();
        assert_eq!(disk.block_count(), BLOCKS);
        limits(&mut disk);
        disk.flush().unwrap();
        disk.discard(BlockIndex(0), BLOCKS).unwrap();
        let (fake, machine) = disk.into_device().stop();
        assert_eq!(fake.backend.flushes > 0, offers & F_FLUSH != 0);
        assert_eq!(fake.backend.zeroes > 0, offers & F_WRITE_ZEROES != 0);
        assert_eq!(machine.lent(), 0, "all is taken back");
        random_operations("atoll-virtio", "disk", 60, open);
    }
}

/// More than a request carries, whether it is copied or not.
#[test]
#[cfg_attr(miri, ignore = "takes hours there")]
fn large_transfers() {
    for lends_nothing in [false, true] {
        let machine = Machine::lending(!lends_nothing);
        let mut disk = device(&machine, features::INDIRECT, storage(None));
        disk.backend.ram = RamDevice::new(1024);
        disk.config[..8].copy_from_slice(&(1024 * SECTORS).to_le_bytes());
        let mut disk = Disk::new(disk, machine).unwrap();
        let data: Vec<u8> = (0..1000 * BLOCK_SIZE).map(|at| (at / 7) as u8).collect();
        disk.write(BlockIndex(5), &data).unwrap();
        let mut read = vec![0; data.len()];
        disk.read(BlockIndex(5), &mut read).unwrap();
        assert!(read == data);
    }
}

#[test]
fn zeros_that_a_disk_refuses_are_written() {
    let machine = Machine::default();
    let mut fake = device(&machine, F_WRITE_ZEROES, storage(None));
    fake.backend.refuses_zeroes = true;
    let mut disk = Disk::new(fake, machine).unwrap();
    disk.write(BlockIndex(1), &[7; 2 * BLOCK_SIZE]).unwrap();
    disk.discard(BlockIndex(1), 1).unwrap();
    let mut read = [1; 2 * BLOCK_SIZE];
    disk.read(BlockIndex(1), &mut read).unwrap();
    assert_eq!((read[0], read[BLOCK_SIZE]), (0, 7));
}

#[test]
fn failures_are_told() {
    let machine = Machine::default();
    let mut block = [0; BLOCK_SIZE];
    for (outcome, error) in [
        (1, BlockError::Io),
        (UNSUPPORTED, BlockError::Unsupported),
        (77, BlockError::Io),
        (NOTHING, BlockError::Io),
    ] {
        let fake = device(&machine, F_FLUSH, storage(Some(outcome)));
        let mut disk = Disk::new(fake, machine.clone()).unwrap();
        assert_eq!(disk.read(BlockIndex(0), &mut block), Err(error));
        assert_eq!(disk.write(BlockIndex(0), &block), Err(error));
        assert_eq!(disk.flush(), Err(error));
    }
    let mut disk =
        Disk::new(device(&machine, F_READ_ONLY, storage(None)), machine.clone()).unwrap();
    assert_eq!(disk.write(BlockIndex(0), &block), Err(BlockError::ReadOnly));
    assert_eq!(disk.discard(BlockIndex(0), 1), Err(BlockError::ReadOnly));
    // One that lies does no more, and has nothing of the caller's.
    for lie in [Lie::NoSuchChain(99), Lie::TooLong, Lie::NotOutstanding, Lie::IndexAhead(7)] {
        let mut fake = device(&machine, 0, storage(None));
        fake.lie = Some(lie);
        let mut disk = Disk::new(fake, machine.clone()).unwrap();
        assert_eq!(disk.read(BlockIndex(0), &mut block), Err(BlockError::Io), "{lie:?}");
        assert_eq!(disk.read(BlockIndex(0), &mut block), Err(BlockError::Io), "{lie:?}");
        assert_eq!(machine.lent(), 0);
    }
}

#[test]
fn entropy() {
    let machine = Machine::default();
    let mut count = 0u8;
    let backend = |_: u16, _: &[u8], room: usize| {
        count += 1;
        // Now and then nothing, else less than is asked for.
        Some(vec![count; if count.is_multiple_of(3) { 0 } else { room.div_ceil(2) }])
    };
    let fake = FakeDevice::new(&machine, 1, 0, backend);
    let mut source = Entropy::new(fake, &mut machine.clone()).unwrap();
    let mut out = [0; 5000];
    source.fill(&mut out).unwrap();
    assert!(out.iter().all(|&byte| byte != 0));
    let nothing = FakeDevice::new(&machine, 1, 0, |_: u16, _: &[u8], _: usize| Some(Vec::new()));
    let mut source = Entropy::new(nothing, &mut machine.clone()).unwrap();
    assert_eq!(source.fill(&mut out), Err(DeviceError::Broken));
}
