//! Check and repair of whole volumes.
#[path = "common/mod.rs"]
mod workload;

use atoll_block::fault::{Image, Survival};
use atoll_block::{FaultDevice, RamDevice};
use atoll_fs::layout::{cell, common, get16, get32, inode, magic, node, put32};
use atoll_fs::testing::{mutate, reseal};
use atoll_fs::{CheckOptions, Fs, Report, check};
use atoll_vfs::{FileSystem, Ino, Name};
use workload::*;

fn options() -> CheckOptions {
    CheckOptions { incarnation: BOOT, ..CheckOptions::default() }
}

fn assert_clean(report: &Report, what: &str) {
    assert!(report.is_clean(), "{what}:\n{report}");
}

/// A volume that has been used, unmounted or cut off.
fn used(seed: u64, blocks: u64, steps: u64, unmount: bool) -> RamDevice {
    let mut device = RamDevice::new(blocks);
    format_seeded(&mut device, seed);
    let mut fs = Fs::mount(device, &mount_options()).unwrap();
    work(&mut fs, &mut Rng::new(seed), steps);
    if unmount { fs.unmount().unwrap() } else { fs.device().clone() }
}

#[test]
fn used_volumes_are_clean() {
    for seed in 1..30 {
        for unmount in [true, false] {
            let mut device = used(seed, 1500, 300, unmount);
            let before = device.bytes().to_vec();
            let report = check(&mut device, &options()).unwrap();
            assert_clean(&report, &format!("seed {seed}, unmount {unmount}"));
            assert!(report.files + report.directories > 3, "{report}");
            assert_eq!(unmount, report.clean_unmount);
            assert!(device.bytes() == before, "a check must not write");
        }
    }
}

#[test]
fn every_crash_leaves_a_clean_volume() {
    for seed in 1..4 {
        let mut device = FaultDevice::new(600);
        format_seeded(&mut device, seed);
        device.start_recording();
        let mut fs = Fs::mount(device, &mount_options()).unwrap();
        work(&mut fs, &mut Rng::new(seed), 120);
        let mut device = fs.unmount().unwrap();
        let recording = device.take_recording().unwrap();
        let mut replay = recording.replay();
        // Events before the first mount's header belong to another life.
        loop {
            let at = replay.position();
            let image = replay.media().current().clone();
            let report = check(&mut FaultDevice::from_image(image), &options()).unwrap();
            assert_clean(&report, &format!("seed {seed}, end of process at {at}"));
            for survival in [Survival::None, Survival::All, Survival::Seed(at as u64)] {
                let image = replay.media().power_loss(survival);
                let report = check(&mut FaultDevice::from_image(image), &CheckOptions::default());
                let what = format!("seed {seed}, power loss at {at}, {survival:?}");
                assert_clean(&report.unwrap(), &what);
            }
            if !replay.step() {
                break;
            }
        }
    }
}

#[test]
fn a_small_volume_is_checked_fast() {
    let mut device = used(3, 300, 200, true);
    let start = std::time::Instant::now();
    const TIMES: u32 = 200;
    let mut report = None;
    for _ in 0..TIMES {
        report = Some(check(&mut device, &options()).unwrap());
    }
    let each = start.elapsed() / TIMES;
    println!("a check takes {each:?}: {}", report.unwrap());
    // A hundred times what it takes, for machines that are busy.
    assert!(each < std::time::Duration::from_millis(10), "{each:?}");
}

/// Damaged images of which a repair is cut off after every one of its writes.
#[test]
fn a_repair_that_crashes_can_be_repeated() {
    let mut cut = 0;
    for seed in 0..60 {
        let mut device = used(seed % 6 + 1, 300, 150, seed % 2 == 0);
        mutate(device.bytes_mut(), seed);
        let mut device = FaultDevice::from_image(Image::from_bytes(device.bytes()));
        device.start_recording();
        let options = CheckOptions { repair: true, ..options() };
        if check(&mut device, &options).is_err() {
            continue;
        }
        let recording = device.take_recording().unwrap();
        let mut replay = recording.replay();
        loop {
            let at = replay.position();
            let survivals = [Survival::None, Survival::Seed(at as u64)];
            let lost = survivals.map(|s| (replay.media().power_loss(s), [0; 16]));
            let ended = [(replay.media().current().clone(), BOOT)];
            for (image, incarnation) in lost.into_iter().chain(ended) {
                let what = format!("seed {seed}, crash at {at} of the repair, {incarnation:?}");
                let mut device = FaultDevice::from_image(image);
                let options = CheckOptions { repair: true, incarnation, now: CX.now };
                check(&mut device, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
                let options = CheckOptions { repair: false, ..options };
                assert_clean(&check(&mut device, &options).unwrap(), &what);
                cut += 1;
            }
            if !replay.step() {
                break;
            }
        }
    }
    assert!(cut > 500, "{cut}");
}

/// A volume without free blocks but the reserve, in each leaf of which something is wrong.
fn full_volume_with_wrong_links() -> RamDevice {
    let mut device = RamDevice::new(700);
    format_seeded(&mut device, 5);
    let mut fs = Fs::mount(device, &mount_options()).unwrap();
    for i in 0..1200 {
        let name = format!("file number {i}");
        let name = Name::new(name.as_bytes()).unwrap();
        fs.mknod(&CX, Ino::ROOT, name, 0o100644, 0).unwrap();
    }
    let name = Name::new(b"filler").unwrap();
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name, 0o644, RW).unwrap();
    let mut at = 0;
    while fs.write(&CX, attr.ino, handle, at, &[1; 4096]).is_ok() {
        at += 4096;
    }
    let mut device = fs.unmount().unwrap();
    for block in device.bytes_mut().chunks_mut(4096) {
        let is_leaf = get32(block, common::MAGIC) == magic::NODE && block[node::LEVEL] == 0;
        let mut at = if is_leaf { node::CELLS } else { 4096 };
        while at < usize::from(get16(block, node::END)).min(4096) {
            if block[at + cell::KEY_ITEM + 7] == 1 {
                put32(block, at + cell::VALUE + inode::NLINK, 77);
            }
            at += usize::from(get16(block, at + cell::LEN));
        }
    }
    reseal(device.bytes_mut());
    device
}

#[test]
fn a_full_volume_is_repaired_by_way_of_the_journal() {
    let device = full_volume_with_wrong_links();
    let mut device = FaultDevice::from_image(Image::from_bytes(device.bytes()));
    device.start_recording();
    let options = CheckOptions { repair: true, ..options() };
    let report = check(&mut device, &options).unwrap();
    let shape = (report.tree_rebuilt, report.node_blocks, report.free_blocks);
    assert!(shape.0 && shape.1 > 50 && shape.2 < 40, "{shape:?}");
    assert_eq!((report.items_lost, report.files), (0, 1201));
    let recording = device.take_recording().unwrap();
    let mut replay = recording.replay();
    loop {
        let at = replay.position();
        let what = format!("crash at {at} of the repair");
        let mut device = FaultDevice::from_image(replay.media().power_loss(Survival::None));
        let options = CheckOptions { incarnation: [0; 16], ..options };
        let report = check(&mut device, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!((report.items_lost, report.files), (0, 1201), "{what}");
        let options = CheckOptions { repair: false, ..options };
        assert_clean(&check(&mut device, &options).unwrap(), &what);
        if !replay.step() {
            break;
        }
    }
}
