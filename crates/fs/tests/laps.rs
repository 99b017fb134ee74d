//! A journal of which only the beginning has storage from the start: the rest gets it as it is
//! first used, and where the host has none the journal goes on at the beginning.
mod common;

use std::collections::{BTreeSet, HashSet};

use atoll_block::fault::{Event, Image, Survival};
use atoll_block::{BLOCK_SIZE, BlockDevice, BlockIndex, FaultDevice};
use atoll_fs::layout::{RING_BLOCKS_STORED, get64, journal_header};
use atoll_fs::{
    CheckOptions, Corruption, FormatOptions, Fs, FsError, MountOptions, check, format,
    read_superblock,
};
use atoll_vfs::{CheckpointStep, FileSystem, Ino, Name, XattrFlags};
use common::*;

const NEXT: [u8; 16] = [9; 16];
/// Three pieces of storage, and a short one, beyond what has it from the start.
const RING: u64 = RING_BLOCKS_STORED + 3 * PIECE + 100;
const PIECE: u64 = 1024;
const BLOCKS: u64 = RING + 1500;
const ATTRIBUTE: &[u8] = b"user.a";

fn options(incarnation: [u8; 16]) -> MountOptions {
    MountOptions { incarnation, ..mount_options() }
}

/// A volume on a host that has storage for all of it but the ring.
fn made() -> FaultDevice {
    let mut device = FaultDevice::new(BLOCKS);
    remake(&mut device);
    device.faults.free_blocks = Some(BLOCKS);
    let first = read_superblock(&mut device).unwrap().group_start;
    device.reserve(BlockIndex(first), BLOCKS - first).unwrap();
    // All of that is durable.
    FaultDevice::from_image(device.process_crash())
}

fn remake(device: &mut FaultDevice) {
    let options = FormatOptions {
        hash_key: [5; 16],
        journal_blocks: Some(RING),
        now: CX.now,
        ..FormatOptions::default()
    };
    format(device, &options).unwrap();
}

/// Mounts it on a host that has storage for so many more blocks.
fn mounted(mut device: FaultDevice, incarnation: [u8; 16], free: u64) -> Fs<FaultDevice> {
    device.faults.free_blocks = Some(free);
    Fs::mount(device, &options(incarnation)).unwrap()
}

/// The blocks of the ring that have storage without having had it from the start.
fn reserved(device: &FaultDevice) -> u64 {
    let image = device.process_crash();
    (3 + RING_BLOCKS_STORED..3 + RING).filter(|&block| image.is_stored(block)).count() as u64
}

/// The generation of the newest header, and where it says that the journal begins.
fn newest_header(device: &mut FaultDevice) -> [u64; 2] {
    let headers = [1, 2].map(|index| {
        let mut block = [0; BLOCK_SIZE];
        device.read(BlockIndex(index), &mut block).unwrap();
        [journal_header::GENERATION, journal_header::TAIL].map(|at| get64(&block, at))
    });
    headers.into_iter().max().unwrap()
}

/// Whether the journal begins at the ring's first block, and not for the first time.
fn has_begun_again(fs: &mut Fs<FaultDevice>) -> bool {
    let [_, tail] = newest_header(fs.device_mut());
    tail > 0 && tail.is_multiple_of(RING * BLOCK_SIZE as u64)
}

fn file(fs: &mut Fs<FaultDevice>) -> Ino {
    let name = Name::new(b"file").unwrap();
    if let Ok(attr) = fs.lookup(&CX, Ino::ROOT, name) {
        return attr.ino;
    }
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name, 0o644, RW).unwrap();
    fs.release(&CX, attr.ino, handle).unwrap();
    attr.ino
}

/// The number in some 60 KB, never quite as many as the last time.
fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(7500 - number as usize % 16 * 60)
}

/// Stores the number in an attribute, and so in the journal, and syncs.
fn operate(fs: &mut Fs<FaultDevice>, number: u64) {
    let ino = file(fs);
    fs.setxattr(&CX, ino, ATTRIBUTE, &value(number), XattrFlags::empty()).unwrap();
    fs.syncfs(&CX).unwrap();
}

/// The number that was stored last.
fn last(fs: &mut Fs<FaultDevice>) -> u64 {
    let ino = file(fs);
    let mut found = Vec::new();
    fs.getxattr(&CX, ino, ATTRIBUTE, &mut found).unwrap();
    let number = u64::from_le_bytes(found[..8].try_into().unwrap());
    assert!(found == value(number));
    number
}

/// The number that was stored last, in a volume that has to be sound, on a host without storage.
fn found(image: Image, incarnation: [u8; 16], what: &str) -> u64 {
    let mut device = FaultDevice::from_image(image);
    let report = check(&mut device, &CheckOptions { incarnation, ..CheckOptions::default() });
    let report = report.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(report.is_clean(), "{what}: {:#?}", report.findings);
    let mut fs = mounted(device, incarnation, 0);
    let number = last(&mut fs);
    operate(&mut fs, number + 1);
    let device = fs.unmount().unwrap();
    let report = check(&mut device.clone(), &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{what}: after use: {:#?}", report.findings);
    number
}

fn assert_found(device: &FaultDevice, number: u64) {
    for (incarnation, image) in [
        (BOOT, device.process_crash()),
        (NEXT, device.power_loss(Survival::None)),
        (NEXT, device.power_loss(Survival::Seed(number))),
    ] {
        assert_eq!(found(image, incarnation, &format!("file {number}")), number);
    }
}

/// Storage is set aside ahead of the head, piece by piece, and by nothing else; then all of the
/// ring has it.
#[test]
fn storage_is_set_aside_as_the_ring_is_used() {
    let mut fs = mounted(made(), BOOT, BLOCKS);
    let mut seen = Vec::new();
    let mut laps = 0;
    for number in 0.. {
        operate(&mut fs, number);
        let now = reserved(fs.device());
        if seen.last() != Some(&now) {
            seen.push(now);
        }
        let [_, tail] = newest_header(fs.device_mut());
        if tail / (RING * BLOCK_SIZE as u64) > laps {
            laps += 1;
            assert_found(fs.device(), number);
        }
        if laps == 3 {
            break;
        }
        if laps == 0 && now == 3 * PIECE + 100 && number % 8 == 0 {
            // Power loss takes what was set aside, and others take it from the host: recovery needs
            // none.
            let device = FaultDevice::from_image(fs.device().power_loss(Survival::None));
            assert_eq!(last(&mut mounted(device, NEXT, 0)), number);
        }
    }
    assert_eq!(seen, [0, PIECE, 2 * PIECE, 3 * PIECE, 3 * PIECE + 100]);
    // The host counts the same.
    assert_eq!(fs.device().faults.free_blocks, Some(BLOCKS - 3 * PIECE - 100));
    drop(fs.unmount().unwrap());
}

/// A host without storage, or with some for a while: every operation succeeds, and nothing that was
/// synced is lost.
#[test]
fn the_journal_begins_again_where_the_host_is_full() {
    for (free, expected) in [(0, 0), (2 * PIECE + 9, 2 * PIECE + 9)] {
        let mut fs = mounted(made(), BOOT, free);
        let mut number = 0;
        for _ in 0..2 {
            let [generation, _] = newest_header(fs.device_mut());
            while newest_header(fs.device_mut())[0] == generation || !has_begun_again(&mut fs) {
                operate(&mut fs, number);
                number += 1;
            }
            assert_found(fs.device(), number - 1);
        }
        assert!(number < 3000, "{number} operations");
        assert_eq!(reserved(fs.device()), expected, "{free} blocks");
        // The next process finds the same, and goes on with whatever storage there is.
        let mut fs = mounted(fs.unmount().unwrap(), NEXT, BLOCKS);
        (0..1100).for_each(|number| operate(&mut fs, number));
        assert_eq!(reserved(fs.device()), 3 * PIECE + 100);
        drop(fs.unmount().unwrap());
    }
}

/// A crash of any kind around the moment when the journal begins again.
#[test]
fn crashes_around_the_beginning_lose_nothing() {
    let mut fs = mounted(made(), BOOT, 0);
    let mut number = 0;
    let recording = loop {
        fs.device_mut().start_recording();
        operate(&mut fs, number);
        if has_begun_again(&mut fs) {
            // With the first operation that comes after.
            operate(&mut fs, number + 1);
            break fs.device_mut().take_recording().unwrap();
        }
        number += 1;
    };
    // From the header before it on, the last one of the checkpoint.
    let is_header = |at: u64| at == BLOCK_SIZE as u64 || at == 2 * BLOCK_SIZE as u64;
    let headers: Vec<usize> = (0..)
        .zip(recording.events())
        .filter(|(_, event)| matches!(event, Event::Store { at, .. } if is_header(*at)))
        .map(|(at, _)| at)
        .collect();
    let [checkpoint, lap] = headers[..] else { panic!("{headers:?}") };
    let mut replay = recording.replay();
    replay.advance_to(checkpoint);
    let mut images = 0;
    let mut fingerprints = HashSet::new();
    let mut numbers = BTreeSet::new();
    while replay.next_event().is_some() {
        let at = replay.position();
        let len = replay.next_event().unwrap().len();
        let within = replay.media_within(len / 3..len);
        let candidates = [
            (BOOT, replay.media().current().clone()),
            (BOOT, within.current().clone()),
            (NEXT, replay.media().power_loss(Survival::None)),
            (NEXT, replay.media().power_loss(Survival::All)),
            (NEXT, replay.media().power_loss(Survival::AllBut(at as u64))),
            (NEXT, replay.media().power_loss(Survival::Only(at as u64))),
            (NEXT, replay.media().power_loss(Survival::Seed(at as u64))),
            (NEXT, replay.media().power_loss(Survival::Seed(at as u64 + 1000))),
        ];
        for (incarnation, image) in candidates {
            if fingerprints.insert((incarnation, image.fingerprint())) {
                images += 1;
                let what = format!("crash at {at}, the journal begins again at {lap}");
                let there = found(image, incarnation, &what);
                assert!(there == number || there == number + 1, "{what}: {there} of {number}");
                numbers.insert(there);
            }
        }
        replay.step();
    }
    assert!(images > 25 && numbers.len() == 2, "{images} images, {numbers:?}");
    assert_found(fs.device(), number + 1);
}

/// Between the halves of a sync, and while a checkpoint is made in steps, the journal may begin
/// again.
#[test]
fn the_journal_begins_again_between_halves_and_steps() {
    let mut fs = mounted(made(), BOOT, 0);
    let much = Name::new(b"much").unwrap();
    let (attr, handle) = fs.create(&CX, Ino::ROOT, much, 0o644, RW).unwrap();
    let mut number = 0;
    let mut last = 0;
    let mut flushed = None;
    for _ in 0..2 {
        loop {
            match fs.checkpoint_step(flushed.take()).unwrap() {
                CheckpointStep::Wait(flush) => flushed = Some(flush.flush()),
                CheckpointStep::Sync => fs.syncfs(&CX).unwrap(),
                CheckpointStep::Idle | CheckpointStep::More => {}
            }
            fs.write(&CX, attr.ino, handle, 0, &[number as u8; 100_000]).unwrap();
            let mut half = fs.begin_sync(&CX, false).unwrap();
            let [before, _] = newest_header(fs.device_mut());
            operate(&mut fs, number);
            let begun = has_begun_again(&mut fs) && newest_header(fs.device_mut())[0] > before;
            while let Some(pending) = half {
                let (id, result) = pending.flush();
                half = fs.end_sync(id, result).unwrap();
            }
            number += 1;
            let [_, tail] = newest_header(fs.device_mut());
            if begun && tail > last {
                last = tail;
                break;
            }
        }
        assert_found(fs.device(), number - 1);
        operate(&mut fs, number);
        assert_found(fs.device(), number);
        number += 1;
    }
}

/// Both copies of the header that leads there are damaged: what was synced since is not lost in
/// silence.
#[test]
fn damage_to_the_header_of_a_new_lap_is_found() {
    let mut fs = mounted(made(), BOOT, 0);
    let mut number = 0;
    while !has_begun_again(&mut fs) {
        operate(&mut fs, number);
        number += 1;
    }
    operate(&mut fs, number);
    let sb = read_superblock(fs.device_mut()).unwrap();
    let [first, _] = newest_header(fs.device_mut());
    for (incarnation, image) in
        [(BOOT, fs.device().process_crash()), (NEXT, fs.device().power_loss(Survival::None))]
    {
        let mut device = FaultDevice::from_image(image);
        for index in sb.header_slot(first) {
            device.write(index, &[0xa5; BLOCK_SIZE]).unwrap();
        }
        let mounted = Fs::mount(device, &options(incarnation)).map(drop);
        assert_eq!(mounted, Err(FsError::Corrupt(Corruption::JournalCut)));
    }
}

/// A volume that is made over another one with the same key replays nothing of that, wherever in
/// the ring.
#[test]
fn a_new_volume_has_nothing_of_an_older_journal() {
    let lap = RING * BLOCK_SIZE as u64 / 64_000;
    let used = |device: FaultDevice, count: u64| {
        let mut fs = mounted(device, BOOT, BLOCKS);
        (0..count).for_each(|number| operate(&mut fs, number));
        fs.device().process_crash()
    };
    let mut device = FaultDevice::from_image(used(made(), lap));
    assert!(reserved(&device) > 2 * PIECE);
    remake(&mut device);
    assert_eq!(reserved(&device), 0);
    let report = check(&mut device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean() && report.journal_records == 0, "{report}");
    let count = lap - 20;
    let image = used(device, count);
    assert!(reserved(&FaultDevice::from_image(image.clone())) > PIECE);
    assert_eq!(found(image, BOOT, "made anew"), count - 1);
}

/// A host that cannot set storage aside may have none when it is needed: the journal keeps to what
/// it has.
#[test]
fn what_cannot_be_set_aside_is_not_used() {
    let mut device = made();
    device.faults.reserves_nothing = true;
    let mut fs = mounted(device, BOOT, BLOCKS);
    let mut laps = BTreeSet::new();
    let mut number = 0;
    while laps.len() < 3 {
        number += 1;
        operate(&mut fs, number);
        if has_begun_again(&mut fs) {
            laps.insert(newest_header(fs.device_mut())[1]);
        }
        assert!(number < 10_000, "it never begins again");
    }
    assert_eq!(reserved(fs.device_mut()), 0);
    assert_eq!(last(&mut fs), number);
}
