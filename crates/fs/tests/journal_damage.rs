//! Damage to the journal, and to what it changes: what was synced is there, or is said to be lost.
mod common;

use atoll_block::fault::{Faults, Image, Survival};
use atoll_block::{BLOCK_SIZE, BlockDevice, FaultDevice};
use atoll_fs::{
    CheckOptions, Corruption, DumpOptions, Element, Fs, FsError, MountNote, MountOptions, check,
    read_superblock, visit,
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
                        // A repair takes what is before.
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

/// A block that the journal changes is damaged at home: it is not sealed as if it were sound. One that
/// power loss left half-way home is put together.
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

/// A device that failed is remembered, and then only what was durable counts.
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
}

/// What a device has failed to write stays in the memory above it, and flushes that succeed later say nothing
/// of it: neither while the volume is used, nor while a mount recovers it.
#[test]
fn flushes_fail_at_any_moment() {
    let (mut in_use, mut in_recovery) = (0, 0);
    for errors in [1, 2, 3, 5, 8] {
        for before in 0..8 {
            let mut fs = volume();
            let crashed = fs.device().media().clone();
            fs.device_mut().faults.flush_errors = errors;
            fs.device_mut().faults.flushes_before = before;
            for more in 0..6 {
                let _ = fs.mkdir(&CX, Ino::ROOT, name(&format!("later {more}")), 0o755);
                if fs.syncfs(&CX).is_err() {
                    in_use += 1;
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
                device.faults.flush_errors = errors;
                device.faults.flushes_before = before;
                if Fs::mount(&mut device, &options(incarnation)).is_err() {
                    in_recovery += 1;
                    let _ = device.flush();
                }
                device.faults = Faults::default();
                let mut fs = Fs::mount(device, &options(incarnation)).unwrap();
                assert!(is_whole(&mut fs), "{errors} errors after {before}");
                fs.mkdir(&CX, Ino::ROOT, name("at last"), 0o755).unwrap();
                fs.syncfs(&CX).unwrap();
                let mut device = FaultDevice::from_image(fs.device().power_loss(Survival::None));
                let report = check(&mut device, &CheckOptions::default()).unwrap();
                assert!(report.is_clean(), "{errors} errors after {before}: {report}");
                let mut fs = Fs::mount(device, &options([3; 16])).unwrap();
                assert!(is_whole(&mut fs), "{errors} errors after {before}, and power lost");
                assert!(fs.lookup(&CX, Ino::ROOT, name("at last")).is_ok());
            }
        }
    }
    assert!(in_use > 20 && in_recovery > 20, "{in_use} and {in_recovery}");
}
