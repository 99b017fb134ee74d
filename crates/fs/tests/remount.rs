//! The next mount after a process has ended without unmounting.
mod common;

use atoll_block::{BLOCK_SIZE, BlockDevice, BlockIndex, RamDevice};
use atoll_fs::{CheckOptions, Corruption, Fs, check, read_superblock};
use atoll_vfs::{Context, FileSystem, Ino, Name, OpenFlags, SetAttr, SetTime, Timespec};
use common::*;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// The device of a process that ends here.
fn crash(fs: &Fs<RamDevice>) -> RamDevice {
    fs.device().clone()
}

fn volume() -> RamDevice {
    let mut device = RamDevice::new(2000);
    format_seeded(&mut device, 1);
    device
}

fn mount(device: RamDevice) -> Fs<RamDevice> {
    Fs::mount(device, &mount_options()).unwrap()
}

/// utimensat(2) survives the end of the process, whatever set the times implicitly before it; the
/// times that a write sets after it may lag, and then it is the explicit ones that are seen.
#[test]
fn explicit_times_survive_a_crash() {
    let mut fs = mount(volume());
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name("file"), 0o644, flags).unwrap();
    let at = |sec| Context { now: Timespec { sec, nsec: 9 }, ..CX };
    fs.write(&at(1_000), attr.ino, handle, 0, b"content").unwrap();
    let (atime, mtime) = (Timespec { sec: 70, nsec: 1 }, Timespec { sec: 71, nsec: 2 });
    let times = SetAttr {
        atime: Some(SetTime::To(atime)),
        mtime: Some(SetTime::To(mtime)),
        ..SetAttr::default()
    };
    fs.setattr(&at(2_000), attr.ino, Some(handle), &times).unwrap();
    let found = mount(crash(&fs)).getattr(&CX, attr.ino).unwrap();
    assert_eq!((found.atime, found.mtime, found.ctime), (atime, mtime, at(2_000).now));

    let later = at(3_000);
    fs.write(&later, attr.ino, handle, 0, b"changed").unwrap();
    let found = mount(crash(&fs)).getattr(&CX, attr.ino).unwrap();
    assert!(found.mtime == mtime || found.mtime == later.now, "{:?}", found.mtime);
    // A sync ends the lag.
    fs.fsync(&later, attr.ino, handle, false).unwrap();
    assert_eq!(mount(crash(&fs)).getattr(&CX, attr.ino).unwrap().mtime, later.now);
}

/// Both copies of the last mount's header are damaged. The next mount refuses the volume; once a
/// repair has given up that mount's changes, no later mount in the same incarnation meets its
/// records again.
#[test]
fn records_of_a_lost_mount_do_not_return() {
    let device = mount(volume()).unmount().unwrap();
    let mut before = device.clone();
    let mut fs = mount(device);
    for n in 0..20 {
        fs.mkdir(&CX, Ino::ROOT, name(&format!("lost{n}")), 0o755).unwrap();
    }
    let mut lost = crash(&fs);
    let sb = read_superblock(&mut lost).unwrap();
    let mut block = [0; BLOCK_SIZE];
    let mut rotten = 0;
    for index in sb.journal_headers() {
        let mut old = [0; BLOCK_SIZE];
        before.read(index, &mut old).unwrap();
        lost.read(index, &mut block).unwrap();
        if old != block {
            block[100] ^= 1;
            lost.write(index, &block).unwrap();
            rotten += 1;
        }
    }
    assert_eq!(rotten, 2, "one header is written by a mount, twice");
    let refused = Fs::mount(lost.clone(), &mount_options()).map(drop);
    assert_eq!(refused, Err(Corruption::JournalCut.into()));
    let options = CheckOptions { repair: true, incarnation: BOOT, ..CheckOptions::default() };
    assert!(check(&mut lost, &options).unwrap().repaired);
    assert!(check(&mut lost, &options).unwrap().is_clean());
    let again = crash(&mount(lost));
    let mut fs = mount(again);
    for n in 0..20 {
        let found = fs.lookup(&CX, Ino::ROOT, name(&format!("lost{n}")));
        assert!(found.is_err(), "lost{n} is back");
    }
}

/// The copy is used whatever is wrong with the superblock.
#[test]
fn a_superblock_that_lies_about_the_length_is_replaced_by_its_copy() {
    let mut device = volume();
    let right = read_superblock(&mut device).unwrap();
    let mut block = [0; BLOCK_SIZE];
    device.read(BlockIndex(0), &mut block).unwrap();
    block[56..64].copy_from_slice(&4000u64.to_le_bytes());
    let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&block[8..], 0);
    block[..8].copy_from_slice(&sum.to_le_bytes());
    device.write(BlockIndex(0), &block).unwrap();
    assert_eq!(read_superblock(&mut device), Ok(right));
}
