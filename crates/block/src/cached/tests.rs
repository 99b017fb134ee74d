use super::*;
use crate::fault::FaultDevice;
use crate::ram::RamDevice;

/// Counts the calls that reach the device.
struct Counting {
    device: RamDevice,
    reads: u64,
    writes: u64,
}

impl BlockDevice for Counting {
    fn block_count(&self) -> u64 {
        self.device.block_count()
    }
    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<(), BlockError> {
        self.reads += (buf.len() / BLOCK_SIZE) as u64;
        self.device.read(first, buf)
    }
    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<(), BlockError> {
        self.writes += 1;
        self.device.write(first, data)
    }
    fn flush(&mut self) -> Result<(), BlockError> {
        self.device.flush()
    }
    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        self.device.discard(first, count)
    }
}

fn counting(frames: usize) -> Cached<Counting> {
    let device = Counting { device: RamDevice::new(4096), reads: 0, writes: 0 };
    Cached::new(device, frames * (BLOCK_SIZE + Directory::BYTES_PER_FRAME))
}

fn touch(cached: &mut Cached<Counting>, block: u64) {
    let mut buf = [0; 8];
    cached.load(block * BLOCK, &mut buf).unwrap();
}

#[test]
fn a_scan_leaves_the_working_set_cached() {
    let mut cached = counting(100);
    for _ in 0..4 {
        (0..50).for_each(|block| touch(&mut cached, block * 2));
    }
    (1000..3000).for_each(|block| touch(&mut cached, block));
    let before = cached.device().reads;
    (0..50).for_each(|block| touch(&mut cached, block * 2));
    assert_eq!(cached.device().reads - before, 0, "the scan drove blocks out");
}

#[test]
fn a_loop_larger_than_the_cache_still_hits() {
    let mut cached = counting(100);
    let mut pass = || {
        let before = cached.device().reads;
        // In an order in which no two follow each other, so that nothing is read ahead.
        (0..150).for_each(|i| touch(&mut cached, i * 7 % 150));
        150 - (cached.device().reads - before)
    };
    let hits = (0..10).map(|_| pass()).last().unwrap();
    assert!(hits >= 40, "{hits} hits of 150, where LRU has none");
}

#[test]
fn sequential_misses_are_read_ahead() {
    let mut cached = counting(140);
    for (block, bytes) in
        (0..4096u16).zip(cached.device_mut(0..4096).device.bytes_mut().chunks_mut(BLOCK_SIZE))
    {
        bytes.as_chunks_mut().0.fill(block.to_le_bytes());
    }
    let mut buf = [0; 512];
    for at in (0..400 * BLOCK).step_by(512) {
        cached.load(at, &mut buf).unwrap();
        let block = (at / BLOCK) as u16;
        assert!(buf.as_chunks().0.iter().all(|&number| number == block.to_le_bytes()));
    }
    let reads = cached.device().reads;
    assert!((400..410).contains(&reads), "{reads} blocks read for 400");
}

#[test]
fn large_transfers_bypass_and_stay_coherent() {
    let mut cached = counting(64);
    cached.store(5 * BLOCK + 100, &[1; 10]).unwrap();
    let big = vec![2; 20 * BLOCK_SIZE];
    let before = cached.device().writes;
    cached.store(0, &big).unwrap();
    assert_eq!(cached.device().writes - before, 1);
    let mut buf = [0; 10];
    let before = cached.device().reads;
    cached.load(5 * BLOCK + 100, &mut buf).unwrap();
    assert_eq!((buf, cached.device().reads - before), ([2; 10], 0), "kept and updated");
    cached.load(6 * BLOCK, &mut buf).unwrap();
    assert_eq!((buf, cached.device().reads - before), ([2; 10], 1), "not kept by the bypass");
}

#[test]
fn errors_leave_no_stale_block() {
    let mut cached = Cached::new(FaultDevice::new(64), 0);
    cached.store(0, &[1; 16]).unwrap();
    cached.device_mut(0..0).faults.write_errors.insert(0);
    assert_eq!(cached.store(0, &[2; 8]), Err(BlockError::Io));
    let mut buf = [0; 16];
    cached.load(0, &mut buf).unwrap();
    assert_eq!(buf, [1; 16], "what the device holds");

    let faults = &mut cached.device_mut(0..64).faults;
    faults.write_errors.clear();
    faults.read_errors.insert(3);
    assert_eq!(cached.load(3 * BLOCK, &mut buf), Err(BlockError::Io));
    assert_eq!(cached.store(3 * BLOCK + 1, &[9]), Err(BlockError::Io));
    assert_eq!(cached.load(3 * BLOCK, &mut buf), Err(BlockError::Io));
    cached.device_mut(0..0).faults.read_errors.clear();
    cached.load(3 * BLOCK, &mut buf).unwrap();
    assert_eq!(buf, [0; 16]);

    // A failing write of several blocks: the first was stored, the second not.
    cached.load(BLOCK, &mut buf).unwrap();
    cached.load(2 * BLOCK, &mut buf).unwrap();
    cached.device_mut(0..0).faults.write_errors.insert(2);
    assert_eq!(cached.store(BLOCK, &[4; 2 * BLOCK_SIZE]), Err(BlockError::Io));
    cached.load(2 * BLOCK - 8, &mut buf).unwrap();
    assert_eq!(buf, [4, 4, 4, 4, 4, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn the_bound_holds_what_it_counts() {
    for bytes in [0, 100_000, 1 << 20, 8 << 20] {
        let cached = Cached::new(RamDevice::new(1 << 14), bytes);
        let held = cached.frames.len() + cached.read_ahead.len();
        assert!(held <= bytes.max(FRAMES_MIN * BLOCK_SIZE), "{held} of {bytes}");
        assert!(held + BLOCK_SIZE >= bytes * 95 / 100, "{held} of {bytes}");
    }
}

/// Random calls on a device whose blocks fail now and then: whatever is read is what the device
/// holds, and what failed to be read is never made up.
#[test]
fn random_errors_leave_the_cache_coherent() {
    for seed in 0..200u64 {
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
            (state >> 33) % below
        };
        const BLOCKS: u64 = 64;
        let mut cached = Cached::new(FaultDevice::new(BLOCKS), random(12) as usize * 9000);
        for call in 0..300 {
            let at = random(BLOCKS * BLOCK);
            let most = [100, 5000, 60_000][random(3) as usize];
            let len = random(most).min(BLOCKS * BLOCK - at) as usize;
            match random(10) {
                0..4 => drop(cached.store(at, &vec![call as u8; len])),
                4 => drop(cached.store_zeros(at, len as u64)),
                5 => drop(cached.discard(BlockIndex(at / BLOCK), len as u64 / BLOCK)),
                6 => {
                    let faults = &mut cached.device_mut(0..0).faults;
                    faults.write_errors.clear();
                    faults.write_errors.extend([random(BLOCKS), random(BLOCKS)]);
                }
                7 => {
                    let faults = &mut cached.device_mut(0..0).faults;
                    faults.read_errors.clear();
                    faults.read_errors.extend([random(BLOCKS), random(BLOCKS)]);
                }
                _ => {
                    let mut got = vec![0x55; len];
                    if cached.load(at, &mut got).is_ok() {
                        let mut held = vec![0; len];
                        cached.device().media().current().read(at, &mut held);
                        assert!(got == held, "seed {seed}, call {call}: not what is on the device");
                    }
                }
            }
        }
    }
}
