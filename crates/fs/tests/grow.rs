//! Volumes that grow with their device.
mod common;

use atoll_block::fault::{Image, Survival};
use atoll_block::{BlockDevice, BlockError, FaultDevice};
use atoll_fs::layout::RING_BLOCKS_STORED;
use atoll_fs::{
    CheckOptions, FormatOptions, Fs, FsError, Grown, MountOptions, check, format, grow,
    read_superblock,
};
use atoll_vfs::{FileSystem, Ino, Name};
use common::*;

/// Blocks before group 0 with the smallest journal.
const FRONT: u64 = 3 + 128;
const GROUP: u64 = 32256;

fn options() -> MountOptions {
    mount_options()
}

/// A used volume of `blocks` on a device of `device_blocks`.
fn volume(blocks: u64, device_blocks: u64, unmount: bool) -> Image {
    let mut device = FaultDevice::new(blocks);
    let format_options =
        FormatOptions { journal_blocks: Some(128), now: CX.now, ..FormatOptions::default() };
    format(&mut device, &format_options).unwrap();
    let mut fs = Fs::mount(device, &options()).unwrap();
    work(&mut fs, &mut Rng::new(blocks), 60);
    fs.mkdir(&CX, Ino::ROOT, Name::new(b"kept").unwrap(), 0o755).unwrap();
    let device = if unmount { fs.unmount().unwrap() } else { fs.device().clone() };
    let mut image = device.process_crash();
    image.resize(device_blocks);
    image
}

fn assert_sound(image: Image, incarnation: [u8; 16], what: &str) -> u64 {
    let mut device = FaultDevice::from_image(image);
    let report = check(&mut device, &CheckOptions { incarnation, ..CheckOptions::default() });
    let report = report.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(report.is_clean(), "{what}: {report}");
    report.blocks
}

fn sizes() -> Vec<(u64, u64)> {
    let edge = FRONT + GROUP + 1;
    vec![
        (300, 301),
        (300, 5000),
        // The old copy of the superblock is where the next group's map block comes.
        (edge, edge + 1),
        (edge, edge + 500),
        (edge - 1, edge),
        (edge - 1, edge + 1),
        (edge + 1, edge + GROUP + 7),
        (400, edge + 3 * GROUP),
    ]
}

#[test]
fn volumes_grow() {
    for (before, after) in sizes() {
        for unmount in [true, false] {
            let what = format!("{before} to {after}");
            let mut device = FaultDevice::from_image(volume(before, after, unmount));
            assert_eq!(grow(&mut device, &options()), Ok(Grown { before, after }), "{what}");
            assert_eq!(read_superblock(&mut device).unwrap().block_count, after);
            assert_eq!(assert_sound(device.process_crash(), BOOT, &what), after);
            // Nothing changes a second time.
            let events = device.events();
            let same = Grown { before: after, after };
            assert_eq!(grow(&mut device, &options()), Ok(same));
            assert_eq!(events, device.events());
            let mut fs = Fs::mount(device, &options()).unwrap();
            fs.lookup(&CX, Ino::ROOT, Name::new(b"kept").unwrap()).unwrap();
            // All of it can be used.
            let name = Name::new(b"filler").unwrap();
            let (attr, handle) = fs.create(&CX, Ino::ROOT, name, 0o600, RW).unwrap();
            let data = vec![9; 1 << 20];
            let mut at = 0;
            while let Ok(written) = fs.write(&CX, attr.ino, handle, at, &data) {
                at += written.len as u64;
            }
            assert!(at > (after - before) / 2 * 4096);
            fs.release(&CX, attr.ino, handle).unwrap();
            let mut device = fs.unmount().unwrap();
            assert_sound(device.process_crash(), BOOT, &what);
            assert_eq!(device.block_count(), after);
            device.flush().unwrap();
        }
    }
}

#[test]
fn a_crash_leaves_the_old_size_or_the_new() {
    for (before, after) in sizes() {
        let mut device = FaultDevice::from_image(volume(before, after, false));
        device.start_recording();
        grow(&mut device, &options()).unwrap();
        let recording = device.take_recording().unwrap();
        let mut replay = recording.replay();
        let mut seen = [0, 0];
        loop {
            let at = replay.position();
            let mut images = vec![(replay.media().current().clone(), BOOT)];
            for survival in [Survival::None, Survival::Seed(1), Survival::Seed(at as u64)] {
                images.push((replay.media().power_loss(survival), [0; 16]));
            }
            for (image, incarnation) in images {
                let what = format!("{before} to {after}, crash at {at}, {incarnation:?}");
                let size = assert_sound(image.clone(), incarnation, &what);
                assert!(size == before || size == after, "{what}: {size}");
                seen[usize::from(size == after)] += 1;
                let mut device = FaultDevice::from_image(image);
                let mount = MountOptions { incarnation, ..options() };
                grow(&mut device, &mount).unwrap();
                assert_eq!(assert_sound(device.process_crash(), BOOT, &what), after);
            }
            if !replay.step() {
                break;
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    }
}

/// A volume whose new journal is larger than what has storage from the start, on hosts with more
/// and more room: it grows, or stays as it was and says that there is no storage; never anything
/// between.
#[test]
fn a_full_host_grows_a_volume_whole_or_not_at_all() {
    const AFTER: u64 = 16 * 2 * RING_BLOCKS_STORED;
    let image = volume(5000, AFTER, true);
    let mut outcomes = Vec::new();
    let around = RING_BLOCKS_STORED - 2..RING_BLOCKS_STORED + 12;
    for free in [0, 100].into_iter().chain(around).chain([RING_BLOCKS_STORED + 4096]) {
        let what = format!("{free} blocks of storage");
        let mut device = FaultDevice::from_image(image.clone());
        device.faults.free_blocks = Some(free);
        let grown = match grow(&mut device, &options()) {
            Ok(grown) => {
                assert_eq!((grown.before, grown.after), (5000, AFTER), "{what}");
                true
            }
            Err(error) => {
                assert_eq!(error, FsError::Device(BlockError::NoSpace), "{what}");
                false
            }
        };
        outcomes.push(grown);
        // The next mount of it has no more room than that, or none.
        let size = if grown { AFTER } else { 5000 };
        for image in [device.process_crash(), device.power_loss(Survival::None)] {
            assert_eq!(assert_sound(image.clone(), BOOT, &what), size, "{what}");
            let mut device = FaultDevice::from_image(image);
            device.faults.free_blocks = Some(0);
            let mut fs = Fs::mount(device, &options()).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(fs.lookup(&CX, Ino::ROOT, Name::new(b"kept").unwrap()).is_ok(), "{what}");
        }
    }
    assert!(outcomes.is_sorted() && outcomes[0] != outcomes[outcomes.len() - 1], "{outcomes:?}");
}
