//! File content against a plain array of bytes, and the return of all space.
mod common;

use atoll_block::{BLOCK_SIZE, FaultDevice, RamDevice};
use atoll_fs::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};
use atoll_vfs::*;
use common::*;

fn fresh(blocks: u64) -> Fs<RamDevice> {
    let mut device = RamDevice::new(blocks);
    format(&mut device, &FormatOptions::default()).unwrap();
    Fs::mount(device, &MountOptions::default()).unwrap()
}

fn remount(fs: Fs<RamDevice>) -> Fs<RamDevice> {
    Fs::mount(fs.unmount().unwrap(), &MountOptions::default()).unwrap()
}

#[test]
fn many_names_come_and_go() {
    const COUNT: u64 = 20_000;
    let mut fs = fresh(20_000);
    let before = fs.statfs(&CX).unwrap();
    let name = |i: u64| format!("file{i}");
    for i in 0..COUNT {
        let n = name(i);
        fs.mknod(&CX, Ino::ROOT, Name::new(n.as_bytes()).unwrap(), 0o100644, 0).unwrap();
    }
    let mut fs = remount(fs);
    for i in 0..COUNT {
        let n = name(i);
        fs.lookup(&CX, Ino::ROOT, Name::new(n.as_bytes()).unwrap()).unwrap();
    }
    for i in 0..COUNT {
        let n = name(i * 7919 % COUNT);
        fs.unlink(&CX, Ino::ROOT, Name::new(n.as_bytes()).unwrap()).unwrap();
    }
    fs.syncfs(&CX).unwrap();
    assert_eq!(before, fs.statfs(&CX).unwrap());
}

/// A host without room refuses at once. Storage that it has set aside stays the file's, whatever
/// comes then, in any kind of block: never used, used and given back, allocated before without
/// being written.
#[test]
fn allocated_blocks_have_storage() {
    const BLOCK: u64 = BLOCK_SIZE as u64;
    for discard in [false, true] {
        let mut device = FaultDevice::new(4000);
        format(&mut device, &FormatOptions::default()).unwrap();
        let options = MountOptions { discard, ..MountOptions::default() };
        let mut fs = Fs::mount(device, &options).unwrap();
        let open = |fs: &mut Fs<FaultDevice>, name: &str| {
            let (attr, handle) =
                fs.create(&CX, Ino::ROOT, Name::new(name.as_bytes()).unwrap(), 0o644, RW).unwrap();
            (attr.ino, handle)
        };
        let (ino, handle) = open(&mut fs, "old");
        fs.write(&CX, ino, handle, 0, &vec![1; 600 * BLOCK_SIZE]).unwrap();
        fs.release(&CX, ino, handle).unwrap();
        fs.unlink(&CX, Ino::ROOT, Name::new(b"old").unwrap()).unwrap();
        fs.syncfs(&CX).unwrap();
        let (ino, handle) = open(&mut fs, "f");
        let none = FallocateMode::empty();
        fs.device_mut().faults.free_blocks = Some(1000);
        let large = 2500 * BLOCK;
        let refused = fs.fallocate(&CX, ino, handle, 0, large, none);
        assert_eq!(refused, Err(Errno::ENOSPC));
        fs.setattr(&CX, ino, None, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        fs.syncfs(&CX).unwrap();
        fs.device_mut().faults.free_blocks = Some(1000);
        fs.fallocate(&CX, ino, handle, 0, 700 * BLOCK, none).unwrap();
        fs.fallocate(&CX, ino, handle, 100 * BLOCK, 750 * BLOCK, none).unwrap();
        // Others take all the rest.
        fs.device_mut().faults.free_blocks = Some(0);
        for at in (0..850).step_by(50) {
            let data = vec![at as u8; 50 * BLOCK_SIZE];
            let written = fs.write(&CX, ino, handle, at * BLOCK, &data);
            assert_eq!(written.map(|w| w.len), Ok(data.len()), "{discard}: block {at}");
            fs.fsync(&CX, ino, handle, false).unwrap();
        }
        assert!(fs.fallocate(&CX, ino, handle, 850 * BLOCK, 2000 * BLOCK, none).is_err());
    }
}

/// The content that the file should have.
struct Expected(Vec<u8>);

impl Expected {
    fn reach(&mut self, end: usize) {
        if self.0.len() < end {
            self.0.resize(end, 0);
        }
    }

    fn zero(&mut self, at: usize, len: usize) {
        self.0.iter_mut().skip(at).take(len).for_each(|b| *b = 0);
    }
}

fn step(fs: &mut Fs<RamDevice>, ino: Ino, handle: Handle, rng: &mut Rng, expected: &mut Expected) {
    let at = rng.below(300_000);
    let span = [100, 9_000, 100_000][rng.below(3) as usize];
    let len = rng.below(span) + 1;
    let (from, n) = (at as usize, len as usize);
    match rng.below(7) {
        0..=3 => {
            let data = vec![rng.below(256) as u8; n];
            assert_eq!(fs.write(&CX, ino, handle, at, &data).unwrap().len, n);
            expected.reach(from + n);
            expected.0[from..from + n].copy_from_slice(&data);
        }
        4 => {
            let set = SetAttr { size: Some(at), ..SetAttr::default() };
            fs.setattr(&CX, ino, Some(handle), &set).unwrap();
            expected.0.resize(from, 0);
        }
        5 => {
            let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
            fs.fallocate(&CX, ino, handle, at, len, mode).unwrap();
            expected.zero(from, n);
        }
        _ => {
            let mode =
                [FallocateMode::ZERO_RANGE, FallocateMode::empty(), FallocateMode::KEEP_SIZE]
                    [rng.below(3) as usize];
            fs.fallocate(&CX, ino, handle, at, len, mode).unwrap();
            if mode == FallocateMode::ZERO_RANGE {
                expected.zero(from, n);
            }
            if mode != FallocateMode::KEEP_SIZE {
                expected.reach(from + n);
            }
        }
    }
}

#[test]
fn content_is_what_was_written() {
    for seed in 1..40 {
        let mut rng = Rng::new(seed);
        let mut fs = fresh(2000);
        let before = fs.statfs(&CX).unwrap();
        let name = Name::new(b"f").unwrap();
        let (attr, mut handle) = fs.create(&CX, Ino::ROOT, name, 0o644, RW).unwrap();
        let mut expected = Expected(Vec::new());
        for at in 0..300 {
            match rng.below(20) {
                0 => fs.syncfs(&CX).unwrap(),
                1 => {
                    fs = remount(fs);
                    handle = fs.open(&CX, attr.ino, RW).unwrap();
                }
                _ => step(&mut fs, attr.ino, handle, &mut rng, &mut expected),
            }
            let mut got = vec![1; 500_000];
            let n = fs.read(&CX, attr.ino, handle, 0, &mut got).unwrap();
            assert_eq!(n, expected.0.len(), "seed {seed}, step {at}");
            let wrong = (0..n).find(|&i| got[i] != expected.0[i]);
            assert_eq!(wrong, None, "seed {seed}, step {at}");
        }
        fs.release(&CX, attr.ino, handle).unwrap();
        fs.unlink(&CX, Ino::ROOT, name).unwrap();
        fs.syncfs(&CX).unwrap();
        assert_eq!(before, fs.statfs(&CX).unwrap(), "seed {seed}");
    }
}

/// A full host may have no storage for a block of a group that was never used: that is no damage.
#[test]
fn a_host_that_fills_up_within_a_new_group() {
    let mut device = FaultDevice::new(1 << 18);
    format(&mut device, &FormatOptions { hash_key: [5; 16], ..FormatOptions::default() }).unwrap();
    device.faults.free_blocks = Some(40_000);
    let mut fs = Fs::mount(device, &MountOptions::default()).unwrap();
    let name = Name::new(b"big").unwrap();
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name, 0o644, RW).unwrap();
    for piece in 0..3 {
        let mode = FallocateMode::empty();
        let allocated = fs.fallocate(&CX, attr.ino, handle, piece << 28, 1 << 28, mode);
        assert_eq!(allocated, Err(Errno::ENOSPC), "piece {piece}");
    }
    fs.release(&CX, attr.ino, handle).unwrap();
    let mut device = fs.unmount().unwrap();
    assert!(check(&mut device, &CheckOptions::default()).unwrap().is_clean());
}
