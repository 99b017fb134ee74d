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

/// Requests and notifications of a call that moves as much as several requests carry.
#[test]
#[cfg_attr(miri, ignore = "takes hours there")]
fn a_call_is_one_notification_for_each_batch() {
    for (offers, lends, requests, rings) in [
        // 8 of 32 KiB at once, or 4 where each takes as many entries of the queue as it has parts.
        (features::INDIRECT, false, 32, 4),
        (0, false, 32, 8),
        (features::INDIRECT, true, 1, 1),
    ] {
        let machine = Machine::lending(lends);
        let mut fake = device(&machine, offers, storage(None));
        fake.backend.ram = RamDevice::new(1024);
        fake.config[..8].copy_from_slice(&(1024 * SECTORS).to_le_bytes());
        let mut disk = Disk::new(fake, machine).unwrap();
        let data: Vec<u8> = (0..256 * BLOCK_SIZE).map(|at| (at / 7) as u8).collect();
        disk.write(BlockIndex(5), &data).unwrap();
        assert_eq!(disk.counts(), (requests, rings));
        let mut read = vec![0; data.len()];
        disk.read(BlockIndex(5), &mut read).unwrap();
        assert!(read == data);
        assert_eq!(disk.counts(), (2 * requests, 2 * rings));
        // Blocks here and there, some with nothing to them.
        let blocks = data.chunks(BLOCK_SIZE).take(20).enumerate();
        let writes = blocks.map(|(at, data)| (BlockIndex(1000 - 7 * at as u64), data));
        let empty: &[u8] = &[];
        let writes: Vec<_> = writes.flat_map(|write| [write, (BlockIndex(3), empty)]).collect();
        disk.write_all(&writes).unwrap();
        let batches = 20 / (if offers == 0 { 4 } else { 8 });
        let rings = 2 * rings + batches + u64::from(offers != 0);
        assert_eq!(disk.counts(), (2 * requests + 20, rings));
        for (first, data) in writes.iter().filter(|(_, data)| !data.is_empty()) {
            disk.read(*first, &mut read[..BLOCK_SIZE]).unwrap();
            assert!(read[..BLOCK_SIZE] == **data, "{first}");
        }
        let before = disk.counts();
        // None is stored where one is outside.
        let outside =
            [(BlockIndex(0), &data[..BLOCK_SIZE]), (BlockIndex(1024), &data[..BLOCK_SIZE])];
        assert_eq!(disk.write_all(&outside), Err(BlockError::OutOfRange));
        assert_eq!(disk.counts(), before);
    }
}

/// One of a batch fails, whichever the disk answers first: the call does, and those that follow
/// work.
#[test]
fn one_of_a_batch_fails() {
    for seed in 1..40 {
        let machine = Machine::default();
        let mut count = 0;
        let backend = |_: u16, request: &[u8], room: usize| {
            let sector = u64::from_le_bytes(request[8..16].try_into().unwrap());
            count += 1;
            let mut answer = vec![0; room];
            answer[room - 1] = if sector == 3 * SECTORS && count < 9 { 1 } else { OK };
            Some(answer)
        };
        let mut fake = FakeDevice::new(&machine, 1, features::INDIRECT, backend);
        fake.seed = seed;
        fake.config = vec![0; 60];
        fake.config[..8].copy_from_slice(&(BLOCKS * SECTORS).to_le_bytes());
        let mut disk = Disk::new(fake, machine.clone()).unwrap();
        let data = [7; BLOCK_SIZE];
        let writes: Vec<(BlockIndex, &[u8])> =
            (0..8).map(|at| (BlockIndex(at), &data[..])).collect();
        assert_eq!(disk.write_all(&writes), Err(BlockError::Io));
        assert_eq!(machine.lent(), 0);
        assert_eq!(disk.write_all(&writes), Ok(()));
        assert_eq!(disk.counts(), (16, 2));
    }
}

/// A disk lies after some of a batch have come back: the call ends, nothing is the disk's any more,
/// and so do all that follow.
#[test]
fn a_lie_within_a_batch() {
    let data = [7; BLOCK_SIZE];
    let writes: Vec<(BlockIndex, &[u8])> = (0..8).map(|at| (BlockIndex(at), &data[..])).collect();
    for lie in [Lie::NoSuchChain(99), Lie::TooLong, Lie::Twice, Lie::IndexAhead(9)] {
        for after in 0..8 {
            let machine = Machine::default();
            let mut fake = device(&machine, features::INDIRECT, storage(None));
            fake.lies_after = Some((after, lie));
            let mut disk = Disk::new(fake, machine.clone()).unwrap();
            let told = disk.write_all(&writes);
            // The last chain is none twice if it is the first.
            if lie != Lie::Twice || after > 0 {
                assert_eq!(told, Err(BlockError::Io), "{lie:?} after {after}");
                assert_eq!(disk.write_all(&writes), Err(BlockError::Io), "{lie:?} after {after}");
            }
            assert_eq!(machine.lent(), 0);
        }
    }
}

/// A disk that never answers one of a batch is given up, and nothing of the callers' is its.
#[test]
fn one_of_a_batch_is_never_answered() {
    let machine = Machine::default();
    let backend = |_: u16, request: &[u8], room: usize| {
        let sector = u64::from_le_bytes(request[8..16].try_into().unwrap());
        (sector != 5 * SECTORS).then(|| vec![OK; room])
    };
    let mut fake = FakeDevice::new(&machine, 1, features::INDIRECT, backend);
    fake.config = vec![0; 60];
    fake.config[..8].copy_from_slice(&(BLOCKS * SECTORS).to_le_bytes());
    let mut disk = Disk::new(fake, machine.clone()).unwrap();
    let mut read = [0; BLOCK_SIZE];
    assert_eq!(disk.read(BlockIndex(0), &mut read), Ok(()));
    let block = [7; BLOCK_SIZE];
    let writes: Vec<(BlockIndex, &[u8])> = (0..8).map(|at| (BlockIndex(at), &block[..])).collect();
    assert_eq!(disk.write_all(&writes), Err(BlockError::Io));
    assert_eq!((machine.lent(), disk.device.pending(0)), (0, 0), "it was told to stop");
}
