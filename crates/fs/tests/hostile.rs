//! Images that are damaged but whose checksums are right: nothing panics or hangs, and a repaired
//! image is sound.
//!
//! One image again: ATOLL_SEED=N cargo test -p atoll-fs --test hostile; more: ATOLL_IMAGES=N
mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use atoll_block::RamDevice;
use atoll_fs::testing::mutate;
use atoll_fs::{CheckOptions, Fs, FsError, MountOptions, check};
use atoll_vfs::{FileSystem, Ino};
use common::*;

fn options(repair: bool, incarnation: [u8; 16]) -> CheckOptions {
    CheckOptions { repair, incarnation, now: CX.now }
}

/// Sound volumes of several kinds, as images.
fn originals() -> Vec<Vec<u8>> {
    let mut images = Vec::new();
    for (seed, blocks, steps, unmount) in [
        (1, 300, 60, true),
        (2, 300, 200, false),
        (3, 400, 400, true),
        (4, 700, 900, false),
        (5, 256, 30, false),
        (6, 256, 500, true),
    ] {
        let mut device = RamDevice::new(blocks);
        format_seeded(&mut device, seed);
        let mut fs = Fs::mount(device, &mount_options()).unwrap();
        work(&mut fs, &mut Rng::new(seed), steps);
        let device = if unmount { fs.unmount().unwrap() } else { fs.device().clone() };
        images.push(device.bytes().to_vec());
    }
    // A tree of several levels, which most of the volume is.
    let mut device = RamDevice::new(700);
    format_seeded(&mut device, 9);
    let mut fs = Fs::mount(device, &mount_options()).unwrap();
    for i in 0..6000 {
        let name = format!("a name that is a little longer than usual {i}");
        let name = atoll_vfs::Name::new(name.as_bytes()).unwrap();
        let _ = fs.mknod(&CX, Ino::ROOT, name, 0o100644, 0);
    }
    assert!(fs.info().tree_height > 2);
    images.push(fs.unmount().unwrap().bytes().to_vec());
    images
}

/// Does with a damaged volume everything that can be done.
fn use_unrepaired(image: &[u8], seed: u64) {
    let device = RamDevice::from_bytes(image.to_vec());
    if let Ok(mut fs) = Fs::mount(device, &mount_options()) {
        work(&mut fs, &mut Rng::new(seed), 30);
        let _ = fs.readdir_all();
        let _ = fs.unmount();
    }
}

trait ReadAll {
    fn readdir_all(&mut self) -> Result<(), atoll_vfs::Errno>;
}

impl ReadAll for Fs<RamDevice> {
    fn readdir_all(&mut self) -> Result<(), atoll_vfs::Errno> {
        let handle = self.opendir(&CX, Ino::ROOT)?;
        let mut found = Vec::new();
        self.readdir(&CX, Ino::ROOT, handle, 0, &mut |e| {
            found.push(e.ino);
            found.len() < 100
        })?;
        for ino in found {
            let _ = self.getattr(&CX, ino);
            let mut bytes = Vec::new();
            let _ = self.readlink(&CX, ino, &mut bytes);
            let _ = self.listxattr(&CX, ino, &mut bytes);
            if let Ok(handle) = self.open(&CX, ino, RW) {
                let _ = self.read(&CX, ino, handle, 0, &mut [0; 70_000]);
                let _ = self.seek(&CX, ino, handle, 0, atoll_vfs::SeekTo::Hole);
            }
        }
        Ok(())
    }
}

fn try_image(image: &[u8], seed: u64) -> bool {
    let incarnation = if seed.is_multiple_of(2) { BOOT } else { [0; 16] };
    let mut device = RamDevice::from_bytes(image.to_vec());
    let first = check(&mut device, &options(false, incarnation));
    assert!(device.bytes() == image, "a check must not write");
    let report = match (first, check(&mut device, &options(true, incarnation))) {
        (Ok(first), Ok(report)) => {
            assert_eq!(first.findings, report.findings);
            report
        }
        // No superblock: there is nothing to go by.
        (Err(FsError::Corrupt(a)), Err(FsError::Corrupt(b))) if a == b => return false,
        // No room, or a feature that says that it may only be read.
        (_, Err(FsError::Full | FsError::ReadOnlyFeatures)) => return false,
        (first, second) => panic!("{first:?} and then {second:?}"),
    };
    let again = check(&mut device, &options(false, incarnation)).unwrap();
    assert!(again.is_clean(), "still wrong:\n{again}\nwhere there had been\n{report}");
    let mount = MountOptions { incarnation, ..mount_options() };
    let mut fs = Fs::mount(device, &mount)
        .unwrap_or_else(|e| panic!("a repaired volume does not mount: {e:?}\n{report}\n{again:?}"));
    work(&mut fs, &mut Rng::new(seed), 30);
    fs.readdir_all().unwrap();
    let mut device = fs.unmount().expect("a repaired volume is unmounted");
    let last = check(&mut device, &options(false, [0; 16])).unwrap();
    assert!(last.is_clean(), "wrong after use:\n{last}\nwhere there had been\n{report}");
    true
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().expect("a number"))
}

#[test]
fn damaged_volumes_are_survived_and_repaired() {
    let originals = originals();
    let seeds = match number("ATOLL_SEED") {
        Some(seed) => seed..seed + 1,
        None => number("ATOLL_FROM").unwrap_or(0)..number("ATOLL_IMAGES").unwrap_or(4000),
    };
    let mut repaired = 0;
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let mut image = originals[(seed % originals.len() as u64) as usize].clone();
        let result = catch_unwind(AssertUnwindSafe(|| {
            mutate(&mut image, seed);
            use_unrepaired(&image, seed);
            try_image(&image, seed)
        }));
        match result {
            Ok(sound) => repaired += u64::from(sound),
            Err(panic) => {
                println!("ATOLL_SEED={seed} cargo test -p atoll-fs --test hostile");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{repaired} of {count} images repaired");
    assert!(repaired * 20 >= count * 19 || count < 100, "{repaired} of {count}");
}
