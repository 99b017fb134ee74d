//! Damage to the journal, and to blocks that it changes: synced files are there, or their loss is
//! told.
mod common;

use atoll_block::fault::{Faults, Image, Survival};
use atoll_block::{BLOCK_SIZE, BlockDevice, BlockError, FaultDevice};
use atoll_fs::{
    CheckOptions, Corruption, DumpOptions, Element, Fs, FsError, MountNote, MountOptions, check,
    grow, read_superblock, visit,
};
use atoll_vfs::{FileSystem, Ino, Name, OpenFlags};
use common::*;

const SECTOR: u64 = 512;
const NEXT: [u8; 16] = [9; 16];

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn options(incarnation: [u8; 16]) -> MountOptions {
    MountOptions { incarnation, cache_bytes: 1 << 20, ..MountOptions::default() }
}

/// A volume with three groups of synced directories. Of the syncs the second carries data.
fn synced() -> Fs<FaultDevice> {
    let mut device = FaultDevice::new(2000);
    format_seeded(&mut device, 1);
    let mut fs = Fs::mount(device, &options(BOOT)).unwrap();
    for at in 0..3 {
        for more in 0..5 {
            fs.mkdir(&CX, Ino::ROOT, name(&format!("{at}-{more}")), 0o755).unwrap();
        }
        if at == 1 {
            let (attr, handle) = fs.create(&CX, Ino::ROOT, name("file"), 0o644, RW).unwrap();
            fs.write(&CX, attr.ino, handle, 0, b"synced").unwrap();
            fs.release(&CX, attr.ino, handle).unwrap();
        }
        fs.syncfs(&CX).unwrap();
    }
    fs
}

/// With a directory that is not synced.
fn volume() -> Fs<FaultDevice> {
    let mut fs = synced();
    fs.mkdir(&CX, Ino::ROOT, name("never synced"), 0o755).unwrap();
    fs
}

fn is_whole(fs: &mut Fs<FaultDevice>) -> bool {
    let names = (0..3).flat_map(|at| (0..5).map(move |more| format!("{at}-{more}")));
    let mut all = true;
    for named in names {
        all &= fs.lookup(&CX, Ino::ROOT, name(&named)).is_ok();
    }
    let Ok(attr) = fs.lookup(&CX, Ino::ROOT, name("file")) else { return false };
    let handle = fs.open(&CX, attr.ino, OpenFlags::READ).unwrap();
    let mut content = [0; 6];
    all && fs.read(&CX, attr.ino, handle, 0, &mut content) == Ok(6) && content == *b"synced"
}

/// The bytes of the ring on the device that have records.
fn records(image: &Image) -> std::ops::Range<u64> {
    let mut device = FaultDevice::from_image(image.clone());
    let sb = read_superblock(&mut device).unwrap();
    let mut end = 0;
    let mut start = u64::MAX;
    visit(&mut device, &DumpOptions::default(), &mut |element| {
        if let Element::Record { position, len, .. } = element {
            start = start.min(*position);
            end = position + len;
        }
        true
    })
    .unwrap();
    let base = sb.ring_start * BLOCK_SIZE as u64;
    base + start..base + end
}

fn damaged(image: &Image, at: u64, how: u64) -> Image {
    let mut image = image.clone();
    let mut sector = [0; SECTOR as usize];
    image.read(at, &mut sector);
    match how {
        0 => sector.fill(0),
        1 => sector.iter_mut().enumerate().for_each(|(i, b)| *b = (at as usize * 31 + i * 7) as u8),
        _ => sector[(at / SECTOR * 37 % SECTOR) as usize] ^= 0x10,
    }
    image.write(at, &sector);
    image
}

/// Mounts; what is synced is whole, or its loss is told.
fn judge(image: &Image, incarnation: [u8; 16]) -> Result<bool, FsError> {
    let device = FaultDevice::from_image(image.clone());
    let mut fs = Fs::mount(device, &options(incarnation))?;
    let told = fs.notes().contains(&MountNote::Journal);
    let whole = is_whole(&mut fs);
    assert!(whole || told, "synced names are gone in silence");
    Ok(whole)
}

#[test]
fn no_sector_of_the_journal_takes_synced_names_in_silence() {
    let (fs, quiet) = (volume(), synced());
    let (mut whole, mut refused, mut told) = (0, 0, 0);
    for (image, incarnation) in [
        (fs.device().power_loss(Survival::All), NEXT),
        (fs.device().process_crash(), BOOT),
        (quiet.device().power_loss(Survival::All), NEXT),
        (quiet.device().process_crash(), BOOT),
    ] {
        let used = records(&image);
        for at in (used.start / SECTOR * SECTOR..used.end).step_by(SECTOR as usize) {
            for how in 0..3 {
                let image = damaged(&image, at, how);
                match judge(&image, incarnation) {
                    Ok(true) => whole += 1,
                    Ok(false) => told += 1,
                    Err(e) => {
                        assert_eq!(e, FsError::Corrupt(Corruption::JournalCut));
                        refused += 1;
                        // A repair keeps the records before the damage.
                        let mut device = FaultDevice::from_image(image);
                        let repair =
                            CheckOptions { repair: true, incarnation, ..CheckOptions::default() };
                        assert!(check(&mut device, &repair).unwrap().repaired);
                        assert!(check(&mut device, &repair).unwrap().is_clean());
                        Fs::mount(device, &options(incarnation)).unwrap();
                    }
                }
            }
        }
    }
    assert!(whole > 20 && refused > 20 && told > 0, "{whole}, {refused}, {told}");
}

/// Without damage nothing is refused, whatever power loss leaves of a sync that has not ended.
#[test]
fn power_loss_is_no_damage() {
    let mut device = FaultDevice::new(2000);
    format_seeded(&mut device, 3);
    let mut fs = Fs::mount(device, &options(BOOT)).unwrap();
    fs.device_mut().start_recording();
    for at in 0..30 {
        fs.mkdir(&CX, Ino::ROOT, name(&format!("{at}")), 0o755).unwrap();
        if at % 3 == 2 {
            fs.syncfs(&CX).unwrap();
        }
    }
    let recording = fs.device_mut().take_recording().unwrap();
    let mut replay = recording.replay();
    loop {
        for seed in 0..8 {
            let image = replay.media().power_loss(Survival::Seed(seed));
            Fs::mount(FaultDevice::from_image(image), &options(NEXT)).unwrap();
        }
        if !replay.step() {
            break;
        }
    }
}

/// A block that the journal changes is damaged at home: it is not sealed as if it were sound. One
/// that power loss left half-way home is put together.
#[test]
fn what_the_journal_changes_is_checked() {
    let mut fs = volume();
    fs.syncfs(&CX).unwrap();
    let mut fs = Fs::mount(fs.unmount().unwrap(), &options(BOOT)).unwrap();
    fs.mkdir(&CX, Ino::ROOT, name("d"), 0o755).unwrap();
    fs.syncfs(&CX).unwrap();
    let image = fs.device().power_loss(Survival::None);
    let sb = read_superblock(&mut FaultDevice::from_image(image.clone())).unwrap();
    let root = (sb.group_start..sb.group_start + 8)
        .find(|block| {
            let mut magic = [0; 4];
            image.read(block * BLOCK_SIZE as u64 + 16, &mut magic);
            magic == *b"ANOD"
        })
        .unwrap();
    for sector in 0..BLOCK_SIZE as u64 / SECTOR {
        let image = damaged(&image, root * BLOCK_SIZE as u64 + sector * SECTOR, 2);
        let mount = |read_only| {
            let options = MountOptions { read_only, ..options(NEXT) };
            let mut fs = Fs::mount(FaultDevice::from_image(image.clone()), &options)?;
            Ok(fs.lookup(&CX, Ino::ROOT, name("d")).map(drop))
        };
        assert_eq!(mount(false), Err(FsError::Corrupt(Corruption::Checksum)));
        assert_eq!(mount(true), Ok(Err(atoll_vfs::Errno::EUCLEAN)));
    }
}

/// Power is lost while blocks go home, with every sector of them old or new.
#[test]
fn blocks_half_way_home_are_put_together() {
    let mut fs = volume();
    fs.device_mut().start_recording();
    let mut device = fs.unmount().unwrap();
    let recording = device.take_recording().unwrap();
    let mut replay = recording.replay();
    loop {
        for seed in 0..10 {
            let image = replay.media().power_loss(Survival::Seed(seed));
            assert!(judge(&image, NEXT).unwrap());
            // A mount that must not write puts them together as well.
            let read_only = MountOptions { read_only: true, ..options(NEXT) };
            let device = FaultDevice::from_image(image);
            assert!(is_whole(&mut Fs::mount(device, &read_only).unwrap()));
        }
        if !replay.step() {
            break;
        }
    }
}

/// A volume remembers that its device failed, and then only durable changes count.
#[test]
fn a_failed_device_is_remembered() {
    let mut fs = volume();
    fs.device_mut().faults.flush_errors = 1;
    assert!(fs.syncfs(&CX).is_err());
    assert!(fs.mkdir(&CX, Ino::ROOT, name("more"), 0o755).is_err());
    for incarnation in [BOOT, NEXT] {
        let device = FaultDevice::from_media(fs.device().media().clone());
        let mut again = Fs::mount(device, &options(incarnation)).unwrap();
        assert!(again.notes().contains(&MountNote::Failed));
        assert!(is_whole(&mut again));
        // It counted in the memory that the device failed to write.
        assert!(again.lookup(&CX, Ino::ROOT, name("never synced")).is_err());
        let again = Fs::mount(again.unmount().unwrap(), &options(incarnation)).unwrap();
        assert_eq!(again.notes(), [], "told once");
    }
    // An unmount that succeeds says that everything is durable.
    assert_eq!(fs.unmount().map(drop), Err(FsError::Device(BlockError::Io)));
}

/// A write that failed stays in the memory above the device, and flushes that succeed later say
/// nothing of it: neither while the volume is used, nor while a mount recovers it.
#[test]
fn flushes_fail_at_any_moment() {
    let mut failures = 0;
    for errors in [1, 2, 3, 5, 8] {
        for before in 0..8 {
            let mut fs = volume();
            let crashed = fs.device().media().clone();
            fail_flushes(fs.device_mut(), errors, before);
            for more in 0..6 {
                let _ = fs.mkdir(&CX, Ino::ROOT, name(&format!("later {more}")), 0o755);
                if fs.syncfs(&CX).is_err() {
                    failures += 1;
                    // The kernel goes on writing back.
                    let _ = fs.device_mut().flush();
                    break;
                }
            }
            let failed = fs.device().media().clone();
            for (media, incarnation) in
                [(&crashed, BOOT), (&crashed, NEXT), (&failed, BOOT), (&failed, NEXT)]
            {
                let mut device = FaultDevice::from_media(media.clone());
                fail_flushes(&mut device, errors, before);
                let recovered = Fs::mount(&mut device, &options(incarnation)).map(drop);
                failures += u64::from(recovered.is_err());
                let what = format!("{errors} errors after {before}");
                assert_lasts(device, recovered.err(), incarnation, &what, true);
            }
        }
    }
    assert!(failures > 60, "{failures}");
}

fn fail_flushes(device: &mut FaultDevice, errors: u32, before: u32) {
    device.faults.flush_errors = errors;
    device.faults.flushes_before = before;
}

/// How many of the directories are there that no sync covers, or none that succeeded.
fn unsynced(fs: &mut Fs<FaultDevice>) -> usize {
    let later = (0..6).map(|more| format!("later {more}")).chain(["never synced".to_owned()]);
    later.filter(|named| fs.lookup(&CX, Ino::ROOT, name(named)).is_ok()).count()
}

/// Synced directories are there once `device` works again, and stay. If the device failed with an
/// I/O error, a check, a mount for reading and the next mount for writing all say so: those that
/// only read leave the note for others.
fn assert_lasts(
    mut device: FaultDevice,
    failed: Option<FsError>,
    incarnation: [u8; 16],
    what: &str,
    is_all_there: bool,
) {
    // The kernel goes on writing back.
    let _ = device.flush();
    device.faults = Faults::default();
    let mut seen = None;
    if failed == Some(FsError::Device(BlockError::Io)) {
        let mut onlooker = FaultDevice::from_media(device.media().clone());
        let look = CheckOptions { incarnation, ..CheckOptions::default() };
        let report = check(&mut onlooker, &look).unwrap();
        assert!(report.notes.contains(&MountNote::Failed), "{what}: a check does not say so");
        let onlooker = FaultDevice::from_media(onlooker.media().clone());
        let read_only = MountOptions { read_only: true, ..options(incarnation) };
        let mut fs = Fs::mount(onlooker, &read_only).unwrap();
        seen = Some(unsynced(&mut fs));
        assert!(fs.notes().contains(&MountNote::Failed), "{what}: nor does a mount for reading");
        device = FaultDevice::from_media(fs.device().media().clone());
    }
    let mut fs = Fs::mount(device, &options(incarnation)).unwrap();
    assert_eq!(
        fs.notes().contains(&MountNote::Failed),
        failed == Some(FsError::Device(BlockError::Io)),
        "{what}: the mount"
    );
    assert!(!is_all_there || is_whole(&mut fs), "{what}");
    let is = unsynced(&mut fs);
    assert_eq!(seen.unwrap_or(is), is, "{what}: who looked saw memory, not the medium");
    fs.mkdir(&CX, Ino::ROOT, name("at last"), 0o755).unwrap();
    fs.syncfs(&CX).unwrap();
    let mut device = FaultDevice::from_image(fs.device().power_loss(Survival::None));
    let report = check(&mut device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{what}: {report}");
    let mut fs = Fs::mount(device, &options([3; 16])).unwrap();
    assert!(!is_all_there || is_whole(&mut fs), "{what}, and power lost");
    assert!(fs.lookup(&CX, Ino::ROOT, name("at last")).is_ok());
}

/// The same while a volume is repaired, whatever a repair has to do, and while one grows.
#[test]
fn flushes_fail_while_a_volume_is_repaired_or_grows() {
    let fs = volume();
    let crashed = fs.device().process_crash();
    let clean = fs.unmount().unwrap().process_crash();
    let sb = read_superblock(&mut FaultDevice::from_image(clean.clone())).unwrap();
    let map = sb.map_block(0).byte_offset() / SECTOR;
    let [first, _, last, _] = sb.journal_headers().map(|b| b.byte_offset() / SECTOR);
    let node = sb.group_start + 4;
    let mut magic = [0; 4];
    clean.read(node * BLOCK_SIZE as u64 + 16, &mut magic);
    assert_eq!(&magic, b"ANOD");
    let node = node * BLOCK_SIZE as u64 / SECTOR;
    // The sectors that are damaged, and whether everything can be found again.
    let damages: [(&str, &[u64], bool); 4] = [
        ("superblock", &[0], true),
        ("map", &[map, map + 8], true),
        ("node", &[node], false),
        ("headers", &[first, first + 8, last, last + 8], false),
    ];
    let (mut repairs, mut grows) = (0, 0);
    for errors in [1, 2, 4] {
        for before in 0..14 {
            for (image, incarnation) in [(&crashed, BOOT), (&crashed, NEXT), (&clean, BOOT)] {
                for (damage, sectors, is_all_there) in &damages {
                    let what = format!("{damage}, {errors} errors after {before}, {incarnation:?}");
                    let image =
                        sectors.iter().fold(image.clone(), |i, at| damaged(&i, at * SECTOR, 0));
                    let mut device = FaultDevice::from_image(image);
                    fail_flushes(&mut device, errors, before);
                    let repair =
                        CheckOptions { repair: true, incarnation, ..CheckOptions::default() };
                    let result = check(&mut device, &repair).map(drop);
                    repairs += u64::from(result.is_err());
                    let _ = device.flush();
                    device.faults = Faults::default();
                    // A second repair succeeds, and knows of the first.
                    let again = check(&mut device, &repair).unwrap();
                    match &result {
                        Ok(()) => assert!(!again.repaired && !again.failed, "{what}: {again}"),
                        // Without any header there is no place for the note, and memory is not
                        // believed.
                        Err(_) if *damage == "headers" => {}
                        Err(_) => assert!(again.failed, "{what}: {again}"),
                    }
                    let failed = result.err().filter(|_| !again.repaired);
                    assert_lasts(device, failed, incarnation, &what, *is_all_there);
                }
                let mut larger = image.clone();
                larger.resize(2600);
                let mut device = FaultDevice::from_image(larger);
                fail_flushes(&mut device, errors, before);
                let result = grow(&mut device, &options(incarnation)).map(drop);
                grows += u64::from(result.is_err());
                let what = format!("grown, {errors} errors after {before}, {incarnation:?}");
                let failed = result.err().map(|failure| failure.error);
                assert_lasts(device, failed, incarnation, &what, true);
            }
        }
    }
    assert!(repairs > 50 && grows > 30, "{repairs} and {grows}");
}
