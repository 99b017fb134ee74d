//! The blocks that stand twice: the tests damage each superblock, journal header, map and summary
//! in turn, at several moments of a volume's life. The volume shows the same content as before,
//! names the damage, and mends it.
mod common;
#[path = "common/sparse.rs"]
mod sparse;

use atoll_block::BLOCK_SIZE;
use atoll_fs::layout::magic;
use atoll_fs::{
    CheckOptions, Corruption, Element, Finding, FormatOptions, Fs, FsError, MountNote,
    MountOptions, check, format, grow, read_superblock,
};
use atoll_vfs::{FileSystem, Ino, Name};
use common::*;
use sparse::Sparse;

const STANDS_TWICE: [u32; 4] =
    [magic::SUPERBLOCK, magic::JOURNAL_HEADER, magic::MAP, magic::SUMMARY];

/// The damage done to a sector.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    Zeros,
    Noise,
    Bit,
    Unlike,
}

fn damage(device: &mut Sparse, block: u64, sector: usize, how: Damage) -> bool {
    let mut b = device.block(block);
    let before = b;
    let bytes = &mut b[sector * 512..(sector + 1) * 512];
    match how {
        Damage::Zeros => bytes.fill(0),
        Damage::Noise => {
            let mut rng = Rng::new(block * 8 + sector as u64 + 1);
            bytes.fill_with(|| rng.below(256) as u8);
        }
        Damage::Bit => bytes[33] ^= 4,
        Damage::Unlike => bytes.iter_mut().for_each(|byte| *byte = !*byte),
    }
    device.set_block(block, &b);
    b != before
}

/// The moments: right after it was made, unmounted, in use after a checkpoint, grown.
fn moments() -> Vec<(&'static str, Sparse)> {
    let mut found = Vec::new();
    let mut device = Sparse::new(70_000);
    let options = FormatOptions { uuid: [5; 16], journal_blocks: Some(128), ..Default::default() };
    format(&mut device, &options).unwrap();
    found.push(("made", device.clone()));
    let mut fs = Fs::mount(device, &mount_options()).unwrap();
    work(&mut fs, &mut Rng::new(3), 200);
    // So much that the second group is used.
    let (attr, handle) =
        fs.create(&CX, Ino::ROOT, Name::new(b"large").unwrap(), 0o600, RW).unwrap();
    let mode = atoll_vfs::FallocateMode::empty();
    fs.fallocate(&CX, attr.ino, handle, 0, 150 << 20, mode).unwrap();
    fs.release(&CX, attr.ino, handle).unwrap();
    fs.syncfs(&CX).unwrap();
    found.push(("in use", fs.device().clone()));
    let device = fs.unmount().unwrap();
    found.push(("unmounted", device.clone()));
    let mut device = device;
    device.resize(120_000);
    grow(&mut device, &mount_options()).unwrap();
    found.push(("grown", device));
    found
}

/// A volume's content, the notes of its mount, and the findings of a check after it has been used.
fn shown(device: Sparse) -> (Vec<String>, Vec<MountNote>, Vec<MountNote>) {
    let mut fs = Fs::mount(device, &mount_options()).unwrap();
    let mut seen = listing(&mut fs, Ino::ROOT, 0);
    // So that maps are read: most of them.
    let name = Name::new(b"another").unwrap();
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name, 0o600, RW).unwrap();
    fs.write(&CX, attr.ino, handle, 0, &[7; 5000]).unwrap();
    fs.release(&CX, attr.ino, handle).unwrap();
    if let Ok(large) = fs.lookup(&CX, Ino::ROOT, Name::new(b"large").unwrap()) {
        seen.push(format!("{:?}", large.size));
        fs.unlink(&CX, Ino::ROOT, Name::new(b"large").unwrap()).unwrap();
    }
    seen.push(format!("{:?}", fs.statfs(&CX).unwrap()));
    let notes = fs.notes().to_vec();
    let mut device = fs.unmount().unwrap();
    (seen, notes, findings(&mut device))
}

/// The findings of a check about blocks that stand twice.
fn findings(device: &mut Sparse) -> Vec<MountNote> {
    let options = CheckOptions { incarnation: BOOT, ..CheckOptions::default() };
    let report = check(device, &options).unwrap();
    let notes = report.findings.iter().map(|finding| match *finding {
        Finding::Superblock { copy } => MountNote::Superblock { copy },
        Finding::MapCopy { group, copy } => MountNote::Map { group, copy },
        Finding::SummaryCopy { group, copy } => MountNote::Summary { group, copy },
        ref other => panic!("{other}"),
    });
    notes.chain(report.notes.iter().copied()).collect()
}

fn is_lazy(note: &MountNote) -> bool {
    matches!(note, MountNote::Map { .. } | MountNote::Summary { .. })
}

fn listing(fs: &mut Fs<Sparse>, dir: Ino, depth: u32) -> Vec<String> {
    let handle = fs.opendir(&CX, dir).unwrap();
    let mut names = Vec::new();
    fs.readdir(&CX, dir, handle, 0, &mut |e| {
        names.push((e.name.to_vec(), e.ino, e.file_type));
        true
    })
    .unwrap();
    fs.releasedir(&CX, dir, handle).unwrap();
    let mut seen = Vec::new();
    for (name, ino, file_type) in names {
        if name == b"." || name == b".." {
            continue;
        }
        let attr = fs.getattr(&CX, ino).unwrap();
        seen.push(format!("{depth} {name:?} {file_type:?} {} {}", attr.size, attr.nlink));
        if file_type == atoll_vfs::FileType::Directory {
            seen.extend(listing(fs, ino, depth + 1));
        }
    }
    seen
}

#[test]
fn one_damaged_sector_of_what_stands_twice_is_mended_and_reported() {
    let mut noted = 0;
    for (moment, device) in moments() {
        let (right, notes, sound) = shown(device.clone());
        assert!(notes.is_empty() && sound.is_empty(), "{moment}: {notes:?} {sound:?}");
        let (blocks, in_journal) = blocks_in_use(&device);
        assert!(blocks.len() >= 10, "{blocks:?}");
        let sectors =
            [(0, Damage::Zeros), (0, Damage::Noise), (0, Damage::Bit), (5, Damage::Unlike)];
        for (&block, &(sector, how)) in
            blocks.iter().flat_map(|b| sectors.iter().map(move |s| (b, s)))
        {
            let what = format!("{moment}: block {block}, sector {sector}, {how:?}");
            let mut damaged = device.clone();
            damage(&mut damaged, block, sector, how);
            let found = findings(&mut damaged);
            let (seen, notes, after) = shown(damaged.clone());
            assert_eq!(seen, right, "{what}");
            if in_journal.contains(&block) {
                // The journal makes it whole.
                assert!(found.len() <= 1 && after.is_empty(), "{what}: {found:?} {after:?}");
                continue;
            }
            assert_eq!(found.len(), 1, "{what}: {found:?}");
            // A map is looked at when it is needed, and stays as it is until then.
            if notes.is_empty() && is_lazy(&found[0]) {
                assert_eq!(after, found, "{what}");
            } else {
                assert_eq!((&notes, after), (&found, vec![]), "{what}");
                noted += 1;
            }
            let repair = CheckOptions { repair: true, incarnation: BOOT, now: CX.now };
            let report = check(&mut damaged, &repair).unwrap();
            if !report.repaired {
                assert_eq!(report.notes, found, "{what}");
                continue;
            }
            assert_eq!(shown(damaged), (right.clone(), vec![], vec![]), "{what}, repaired");
        }
    }
    assert!(noted > 100, "{noted}");
}

/// The blocks that stand twice, and those of them that the journal changes.
fn blocks_in_use(device: &Sparse) -> (Vec<u64>, Vec<u64>) {
    let mut device = device.clone();
    let sb = read_superblock(&mut device).unwrap();
    let mut found = vec![0, sb.block_count - 1];
    found.extend(sb.journal_headers().map(|index| index.0));
    let mut in_journal = Vec::new();
    let options = atoll_fs::DumpOptions { incarnation: BOOT, ..Default::default() };
    atoll_fs::visit(&mut device, &options, &mut |element| {
        match element {
            Element::Change { block, data: false, .. } => in_journal.extend([*block, *block + 1]),
            Element::Map { group, block, .. } => {
                found.extend(*block..*block + sb.front_len(*group) as u64);
            }
            _ => {}
        }
        true
    })
    .unwrap();
    (found, in_journal)
}

/// An older content of one of two, put back, is harmless.
#[test]
fn an_older_content_of_one_copy_is_harmless() {
    let moments = moments();
    for (later, (moment, device)) in moments.iter().enumerate().skip(1) {
        let (right, ..) = shown(device.clone());
        for (_, before) in &moments[..later] {
            for block in device.with_magic(|m| STANDS_TWICE.contains(&m)) {
                if block >= atoll_block::BlockDevice::block_count(before) {
                    continue;
                }
                let old = before.block(block);
                if old == device.block(block) {
                    continue;
                }
                let what = format!("{moment}: block {block}");
                let mut damaged = device.clone();
                damaged.set_block(block, &old);
                let (seen, _, after) = shown(damaged);
                assert_eq!(seen, right, "{what}");
                assert!(after.iter().all(is_lazy), "{what}: {after:?}");
            }
        }
    }
}

/// A block that stands twice is damaged in both places: refused, or repaired, and never silent.
#[test]
fn what_is_damaged_twice_is_refused() {
    for (moment, device) in moments() {
        let sb = read_superblock(&mut device.clone()).unwrap();
        let pairs = [
            vec![0, sb.block_count - 1],
            sb.journal_headers().iter().map(|index| index.0).collect(),
            vec![sb.map_block(0).0, sb.map_block(0).0 + 1],
        ];
        for pair in pairs {
            let mut damaged = device.clone();
            for &block in &pair {
                damage(&mut damaged, block, 0, Damage::Noise);
            }
            let what = format!("{moment}: {pair:?}");
            let mounted = Fs::mount(damaged.clone(), &mount_options()).and_then(|mut fs| {
                let name = Name::new(b"another").unwrap();
                let (attr, handle) = fs.create(&CX, Ino::ROOT, name, 0o600, RW)?;
                fs.write(&CX, attr.ino, handle, 0, &[1; 4096]).map(drop).map_err(FsError::from)
            });
            if mounted.is_ok() {
                // The journal has the whole map.
                assert!(moment != "unmounted" && moment != "made", "{what}: nobody noticed");
            }
        }
    }
}

#[test]
fn the_first_superblock_may_be_lost_on_a_device_that_became_larger() {
    let (_, mut device) = moments().remove(2);
    let right = read_superblock(&mut device).unwrap();
    device.resize(500_000);
    damage(&mut device, 0, 0, Damage::Zeros);
    assert_eq!(read_superblock(&mut device), Ok(right));
}

/// A copy of another volume that was on the device is not taken for this one's.
#[test]
fn another_volume_that_was_here_does_not_count() {
    let mut device = Sparse::new(5000);
    format(&mut device, &FormatOptions { uuid: [1; 16], ..Default::default() }).unwrap();
    device.resize(6000);
    grow(&mut device, &MountOptions::default()).unwrap();
    let theirs = device.block(5999);
    let mut device = Sparse::new(4000);
    format(&mut device, &FormatOptions { uuid: [2; 16], ..Default::default() }).unwrap();
    device.resize(6000);
    device.set_block(5999, &theirs);
    assert_eq!(read_superblock(&mut device).unwrap().block_count, 4000);
}

#[test]
fn features_and_versions_are_respected() {
    let word = |at: usize, value: u64| {
        let mut device = Sparse::new(1000);
        format(&mut device, &FormatOptions::default()).unwrap();
        for block in [0, 999] {
            let mut b = device.block(block);
            b[at..at + 8].copy_from_slice(&value.to_le_bytes());
            let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&b[8..], block);
            b[..8].copy_from_slice(&sum.to_le_bytes());
            device.set_block(block, &b);
        }
        device
    };
    use atoll_fs::layout::superblock;
    let magic_at = atoll_fs::layout::common::MAGIC;
    let mount = |device: Sparse, read_only| {
        Fs::mount(device, &MountOptions { read_only, ..MountOptions::default() }).map(drop)
    };
    for read_only in [true, false] {
        assert_eq!(mount(word(superblock::COMPATIBLE, 1 << 40), read_only), Ok(()));
        let refused = Err(FsError::Corrupt(Corruption::Version));
        let known = superblock::PROJECTS;
        assert_eq!(mount(word(superblock::INCOMPATIBLE, known), read_only), Ok(()));
        assert_eq!(mount(word(superblock::INCOMPATIBLE, known << 1), read_only), refused);
        assert_eq!(
            mount(word(magic_at, 3 << 32 | u64::from(magic::SUPERBLOCK)), read_only),
            refused
        );
        let earlier = Err(FsError::Corrupt(Corruption::EarlierVersion));
        // As version 1 had it: the version at the same place.
        let mut old = word(superblock::GENERATION, 1);
        for block in [0, 999] {
            let mut b = old.block(block);
            b[superblock::VERSION] = 1;
            let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&b[8..BLOCK_SIZE], block);
            b[..8].copy_from_slice(&sum.to_le_bytes());
            old.set_block(block, &b);
        }
        assert_eq!(mount(old, read_only), earlier);
    }
    assert_eq!(mount(word(superblock::READ_COMPATIBLE, 2), true), Ok(()));
    assert_eq!(mount(word(superblock::READ_COMPATIBLE, 2), false), Err(FsError::ReadOnlyFeatures));
    // A feature that may be ignored is kept where the superblock is written anew.
    let mut device = word(superblock::COMPATIBLE, 1 << 40);
    device.set_block(999, &[0; BLOCK_SIZE]);
    let mut device = Fs::mount(device, &mount_options()).unwrap().unmount().unwrap();
    device.set_block(0, &[0; BLOCK_SIZE]);
    assert_eq!(read_superblock(&mut device).unwrap().compatible, 1 << 40);
}
