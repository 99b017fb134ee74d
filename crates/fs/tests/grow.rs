//! Volumes that grow with their device.
mod common;

use atoll_block::fault::{Image, Survival};
use atoll_block::{BlockDevice, BlockError, FaultDevice};
use atoll_fs::layout::RING_BLOCKS_STORED;
use atoll_fs::{
    CheckOptions, FormatOptions, Fs, FsError, GrowError, Grown, MountOptions, check, format, grow,
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
                assert_eq!(error.error, FsError::Device(BlockError::NoSpace), "{what}");
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

/// Whatever call fails, in whatever way: a volume that says it kept its size has it, and lives on a
/// device that is as short again as it was; one that does not say so is sound on the longer device,
/// with either size. A later attempt succeeds on both.
#[test]
fn what_failed_to_grow_can_have_its_old_device() {
    const BEFORE: u64 = 400;
    const AFTER: u64 = 3000;
    #[derive(Clone, Copy, Debug)]
    enum Fault {
        /// From this event on every call fails.
        Stop(u64),
        /// A flush after so many fails, once.
        Flush(u32),
        /// The host has so many blocks left, and may not be able to set storage aside.
        Room(u64, bool),
        /// This block cannot be written.
        Write(u64),
    }
    let image = volume(BEFORE, AFTER, true);
    let mut device = FaultDevice::from_image(image.clone());
    grow(&mut device, &options()).unwrap();
    let events = device.events();
    let rooms = (0..190).step_by(10).chain(180..200).chain((200..2000).step_by(200));
    let faults = (0..events)
        .map(Fault::Stop)
        .chain((0..40).map(Fault::Flush))
        .chain(rooms.flat_map(|room| [Fault::Room(room, false), Fault::Room(room, true)]))
        .chain((0..8).chain([BEFORE - 1, BEFORE, AFTER - 1]).map(Fault::Write));
    #[derive(Debug, Default)]
    struct Seen {
        grown: u32,
        kept: u32,
        either: u32,
    }
    let mut seen = Seen::default();
    for fault in faults {
        let what = format!("{fault:?}");
        let mut device = FaultDevice::from_image(image.clone());
        match fault {
            Fault::Stop(after) => device.faults.stop_after = Some(after),
            Fault::Flush(before) => {
                device.faults.flushes_before = before;
                device.faults.flush_errors = 1;
            }
            Fault::Room(free, reserves_nothing) => {
                device.faults.free_blocks = Some(free);
                device.faults.reserves_nothing = reserves_nothing;
            }
            Fault::Write(block) => device.faults.write_errors = [block].into(),
        }
        let result = grow(&mut device, &options());
        let kept_size = result.is_err_and(|failure| failure.kept_size);
        match result {
            Ok(grown) => {
                assert_eq!(grown, Grown { before: BEFORE, after: AFTER }, "{what}");
                seen.grown += 1;
            }
            Err(GrowError { error, .. }) => {
                if let Fault::Room(..) = fault {
                    assert_eq!(error, FsError::Device(BlockError::NoSpace), "{what}");
                    assert!(kept_size, "{what}: nothing but room is missing");
                }
                *(if kept_size { &mut seen.kept } else { &mut seen.either }) += 1;
            }
        }
        let losses = [Survival::None, Survival::All, Survival::Seed(3), Survival::Seed(4)];
        let crashed = losses.map(|survival| (device.power_loss(survival), [0; 16]));
        for (image, incarnation) in crashed.into_iter().chain([(device.process_crash(), BOOT)]) {
            // The crash may have come before the device was made as short as it was, or after.
            let lengths = if kept_size { vec![AFTER, BEFORE] } else { vec![AFTER] };
            for blocks in lengths {
                let what = format!("{what}, then {blocks} blocks, {incarnation:?}");
                let mut image = image.clone();
                image.resize(blocks);
                let size = assert_sound(image.clone(), incarnation, &what);
                assert!(size == BEFORE || !kept_size && size == AFTER, "{what}: {size}");
                let mount = MountOptions { incarnation, ..options() };
                let mut fs = Fs::mount(FaultDevice::from_image(image), &mount).unwrap();
                fs.lookup(&CX, Ino::ROOT, Name::new(b"kept").unwrap()).unwrap();
                work(&mut fs, &mut Rng::new(9), 40);
                let mut image = fs.unmount().unwrap().process_crash();
                assert_eq!(assert_sound(image.clone(), incarnation, &what), size, "{what}");
                for again in [AFTER, AFTER + 700] {
                    image.resize(again);
                    let mut device = FaultDevice::from_image(image.clone());
                    grow(&mut device, &mount).unwrap_or_else(|e| panic!("{what}: {e}"));
                    let image = device.power_loss(Survival::None);
                    assert_eq!(assert_sound(image, incarnation, &what), again, "{what}");
                }
            }
        }
    }
    assert!(seen.grown > 2 && seen.kept > 2 && seen.either > 2, "{seen:?}");
}
