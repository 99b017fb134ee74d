//! Volumes of every small size, with journals of every size that fits, filled to the last block:
//! everything can be deleted again, whether it was deleted while open or by name, before a crash or
//! after, and all space comes back.
//!
//! `ATOLL_SEEDS=n` tries so many.
mod common;

use atoll_block::FaultDevice;
use atoll_block::fault::Survival;
use atoll_fs::{BLOCK_COUNT_MIN, CheckOptions, FormatOptions, Fs, MountOptions, check, format};
use atoll_vfs::{
    Errno, FallocateMode, FileSystem, FileType, Ino, Name, OpenFlags, SetAttr, XattrFlags,
};
use common::*;

const BLOCK: u64 = 4096;

fn seeds() -> u64 {
    std::env::var("ATOLL_SEEDS").ok().map_or(40, |text| text.parse().unwrap())
}

/// Full is the one error that anything here may meet.
fn full_or<T>(result: Result<T, Errno>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Errno::ENOSPC) => None,
        Err(e) => panic!("{e:?}"),
    }
}

/// Gives a file all that makes its removal long: extents in pieces, or as long as can be, and
/// attributes.
fn stuff(fs: &mut Fs<FaultDevice>, rng: &mut Rng, ino: Ino, handle: atoll_vfs::Handle) {
    match rng.below(6) {
        0 => {
            for _ in 0..rng.below(40) {
                let name = format!("user.{}", rng.below(100));
                let value = vec![1; rng.below(65_537) as usize];
                let flags = XattrFlags::empty();
                full_or(fs.setxattr(&CX, ino, name.as_bytes(), &value, flags));
            }
        }
        1 => {
            for at in 0..rng.below(600) {
                if full_or(fs.write(&CX, ino, handle, at * 2 * BLOCK, b"x")).is_none() {
                    break;
                }
            }
        }
        2 => {
            let len = (rng.below(60) + 1) << 20;
            full_or(fs.fallocate(&CX, ino, handle, 0, len, FallocateMode::empty()));
            for _ in 0..rng.below(100) {
                let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                let at = rng.below(len);
                full_or(fs.fallocate(&CX, ino, handle, at, rng.below(20_000) + 1, mode));
            }
        }
        3 => {
            let size = rng.below(8 << 20);
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            full_or(fs.setattr(&CX, ino, None, &set));
        }
        _ => {
            let data = vec![b'd'; rng.below(3 << 20) as usize + 1];
            full_or(fs.write(&CX, ino, handle, rng.below(1 << 20), &data));
        }
    }
}

/// Fills the volume; some of the files have no name any more.
fn fill(fs: &mut Fs<FaultDevice>, rng: &mut Rng) {
    let mut open = Vec::new();
    for at in 0..rng.below(400) {
        let mut name = format!("{at}").into_bytes();
        name.resize(name.len().max(rng.below(255) as usize), b'n');
        let name = Name::new(&name).unwrap();
        if rng.below(10) == 0 {
            full_or(fs.mkdir(&CX, Ino::ROOT, name, 0o755));
            continue;
        }
        let Some((attr, handle)) = full_or(fs.create(&CX, Ino::ROOT, name, 0o644, RW)) else {
            continue;
        };
        if rng.below(3) == 0 {
            stuff(fs, rng, attr.ino, handle);
        }
        match rng.below(8) {
            0 => {
                fs.unlink(&CX, Ino::ROOT, name).unwrap();
                open.push((attr.ino, handle));
            }
            1 => open.push((attr.ino, handle)),
            _ => fs.release(&CX, attr.ino, handle).unwrap(),
        }
        if rng.below(50) == 0 {
            fs.syncfs(&CX).unwrap();
        }
    }
    for (ino, handle) in open {
        match rng.below(3) {
            0 => stuff(fs, rng, ino, handle),
            1 => fs.release(&CX, ino, handle).unwrap(),
            _ => {}
        }
    }
    // To the last block.
    let name = Name::new(b"the rest").unwrap();
    if let Some((attr, handle)) = full_or(fs.create(&CX, Ino::ROOT, name, 0o644, RW)) {
        let mut at = 0;
        while let Some(written) = full_or(fs.write(&CX, attr.ino, handle, at, &[b'r'; 65_536])) {
            at += written.len as u64;
        }
    }
}

fn names(fs: &mut Fs<FaultDevice>) -> Vec<(Vec<u8>, FileType)> {
    let handle = fs.opendir(&CX, Ino::ROOT).unwrap();
    let mut found = Vec::new();
    fs.readdir(&CX, Ino::ROOT, handle, 2, &mut |entry| {
        found.push((entry.name.to_vec(), entry.file_type));
        true
    })
    .unwrap();
    fs.releasedir(&CX, Ino::ROOT, handle).unwrap();
    found
}

fn delete_everything(fs: &mut Fs<FaultDevice>, rng: &mut Rng) {
    let mut open = Vec::new();
    for (name, file_type) in names(fs) {
        let name = Name::new(&name).unwrap();
        if file_type == FileType::Directory {
            fs.rmdir(&CX, Ino::ROOT, name).unwrap();
            continue;
        }
        let ino = fs.lookup(&CX, Ino::ROOT, name).unwrap().ino;
        match rng.below(4) {
            0 => open.push((ino, fs.open(&CX, ino, RW).unwrap())),
            1 => {
                let handle = fs.open(&CX, ino, RW | OpenFlags::TRUNC).unwrap();
                fs.release(&CX, ino, handle).unwrap();
            }
            _ => {}
        }
        fs.unlink(&CX, Ino::ROOT, name).unwrap();
    }
    for (ino, handle) in open {
        fs.release(&CX, ino, handle).unwrap();
    }
}

fn options(incarnation: [u8; 16], rng: &mut Rng) -> MountOptions {
    let cache_bytes = [1, 1 << 20, 64 << 20][rng.below(3) as usize];
    MountOptions { incarnation, cache_bytes, ..MountOptions::default() }
}

fn try_shape(seed: u64) {
    let mut rng = Rng::new(seed);
    // As many volumes below 2 MiB as above 32 MiB.
    let shift = rng.below(6);
    let blocks = (BLOCK_COUNT_MIN << shift) + rng.below(BLOCK_COUNT_MIN << shift);
    let room = blocks - 3 - 64 - 128;
    let journal_blocks = match rng.below(3) {
        0 => None,
        1 => Some(128),
        _ => Some(128 + rng.below(room.min(4000))),
    };
    let mut device = FaultDevice::new(blocks);
    let format_options = FormatOptions { journal_blocks, ..FormatOptions::default() };
    if format(&mut device, &format_options).is_err() {
        return;
    }
    let mut fs = Fs::mount(device, &options(BOOT, &mut rng)).unwrap();
    let empty = fs.info().free_blocks;
    fill(&mut fs, &mut rng);
    let (image, incarnation) = match rng.below(3) {
        0 => (fs.device().process_crash(), BOOT),
        1 => (fs.device().power_loss(Survival::Seed(seed)), [8; 16]),
        _ => (fs.unmount().unwrap().process_crash(), BOOT),
    };
    let mut fs =
        Fs::mount(FaultDevice::from_image(image), &options(incarnation, &mut rng)).unwrap();
    delete_everything(&mut fs, &mut rng);
    let mut device = fs.unmount().unwrap();
    let report = check(&mut device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    let fs = Fs::mount(device, &options(incarnation, &mut rng)).unwrap();
    assert_eq!((fs.info().free_blocks, fs.info().inodes), (empty, 1));
}

#[test]
fn everything_can_be_deleted() {
    for seed in 0..seeds() {
        let tried = std::panic::catch_unwind(|| try_shape(seed));
        assert!(tried.is_ok(), "seed {seed}");
    }
}
