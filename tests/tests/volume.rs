//! The on-disk file system against the contract and against the model.

use atoll_block::RamDevice;
use atoll_fs::{FormatOptions, Fs, MountOptions, format};
use atoll_tests::differential::{
    Differential, differential_proptest, differential_seeds, replay, seeds,
};
use atoll_tests::ops::{Profile, seeded_ops};
use atoll_tests::{Quirks, filesystem_conformance};

/// 64 MiB.
const BLOCKS: u64 = 16 << 10;

fn make(blocks: u64) -> Fs<RamDevice> {
    let mut device = RamDevice::new(blocks);
    format(&mut device, &FormatOptions { hash_key: [7; 16], ..FormatOptions::default() })
        .expect("format");
    Fs::mount(device, &MountOptions::default()).expect("mount")
}

filesystem_conformance!(ram_volume, || make(BLOCKS));

#[test]
fn differential() {
    let test = "--test volume differential";
    differential_seeds(test, 40, 2000, &Profile::DIFFERENTIAL, || {
        (make(BLOCKS), Quirks::default())
    });
    differential_proptest(test, 100, 200, Profile::DIFFERENTIAL, || {
        (make(BLOCKS), Quirks::default())
    });
}

/// A volume so small that it is full most of the time.
#[test]
fn differential_without_space() {
    let test = "--test volume differential_without_space";
    differential_seeds(test, 40, 2000, &Profile::DIFFERENTIAL, || (make(400), Quirks::default()));
}

/// Unmounted and mounted again in between: the disk holds what memory held.
#[test]
fn differential_with_remounts() {
    for seed in seeds(20) {
        let ops = seeded_ops(seed, 2000, &Profile::DIFFERENTIAL);
        let mut pair = Differential::new(make(BLOCKS), Quirks::default());
        for (i, ops) in ops.chunks(100).enumerate() {
            let result = pair.run(ops);
            let again = replay(seed, "--test volume differential_with_remounts");
            assert_eq!(result, Ok(()), "seed {seed}, after {i} remounts; {again}");
            pair = pair.reopen(|fs| {
                let device = fs.unmount().expect("unmount");
                Fs::mount(device, &MountOptions::default()).expect("mount again")
            });
            assert_eq!(pair.compare(), Ok(()), "seed {seed}, remount {i}; {again}");
        }
    }
}
