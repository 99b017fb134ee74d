//! Blocks that the device does not give, one at a time: a check says so and changes nothing, and a
//! repair makes nothing worse than it is.
mod common;

use atoll_block::FaultDevice;
use atoll_block::fault::Image;
use atoll_fs::{
    CheckOptions, DumpOptions, Element, Fs, FsError, MountOptions, Report, check, format,
    read_superblock, visit,
};
use atoll_vfs::{FileSystem, Ino, Name, OpenFlags};
use common::*;

const BLOCKS: u64 = 1500;

/// Names in the root directory, enough for a tree of several nodes.
fn names() -> impl Iterator<Item = String> {
    (0..300).map(|i| format!("a name of some length, number {i}"))
}

fn volume(incarnation: [u8; 16]) -> Fs<FaultDevice> {
    let mut device = FaultDevice::new(BLOCKS);
    let options = atoll_fs::FormatOptions { journal_blocks: Some(128), ..Default::default() };
    format(&mut device, &options).unwrap();
    let mount = MountOptions { incarnation, ..mount_options() };
    let mut fs = Fs::mount(device, &mount).unwrap();
    for (i, name) in names().enumerate() {
        fs.mkdir(&CX, Ino::ROOT, Name::new(name.as_bytes()).unwrap(), 0o700).unwrap();
        if i == 200 {
            // Some of it is at home already, and changes again.
            fs.syncfs(&CX).unwrap();
        }
    }
    fs
}

fn checked(device: &mut FaultDevice, repair: bool) -> Result<Report, FsError> {
    check(device, &CheckOptions { repair, incarnation: BOOT, ..CheckOptions::default() })
}

/// How many of the names are there. All that is there is one of them.
fn count(image: &Image) -> usize {
    let mut fs = Fs::mount(FaultDevice::from_image(image.clone()), &mount_options()).unwrap();
    let found = names()
        .filter(|name| fs.lookup(&CX, Ino::ROOT, Name::new(name.as_bytes()).unwrap()).is_ok());
    found.count()
}

/// The tree's nodes, of which there is one copy.
fn nodes(image: &Image) -> Vec<u64> {
    let mut found = Vec::new();
    let options = DumpOptions { incarnation: BOOT, nodes: true, ..DumpOptions::default() };
    visit(&mut FaultDevice::from_image(image.clone()), &options, &mut |element| {
        if let Element::Node { block, .. } = element {
            found.push(*block);
        }
        true
    })
    .unwrap();
    found
}

#[test]
fn a_block_that_cannot_be_read_is_never_passed_over() {
    let fs = volume(BOOT);
    let crashed = fs.device().process_crash();
    let clean = fs.unmount().unwrap().process_crash();
    // Its journal header looks like one of a volume that grows.
    let unnamed = volume([0; 16]).device().process_crash();
    for (state, image) in [("crashed", crashed), ("clean", clean), ("unnamed", unnamed)] {
        let all = count(&image);
        assert!(all > 200);
        let sb = read_superblock(&mut FaultDevice::from_image(image.clone())).unwrap();
        // Where a crash explains other bytes, it explains nothing that cannot be read.
        let written = sb.journal_headers().map(|block| block.0);
        let written = [written.as_slice(), &[0, sb.copy_index().0]].concat();
        let nodes = nodes(&image);
        assert!(nodes.len() > 4);
        let mut faults = 0;
        for block in 0..BLOCKS {
            let what = format!("{state}, block {block}");
            let failing = || {
                let mut device = FaultDevice::from_image(image.clone());
                device.faults.read_errors = [block].into();
                device
            };
            let mut device = failing();
            let looked = checked(&mut device, false);
            assert_eq!(device.events(), 0, "{what}: a check has written");
            if looked.as_ref().is_ok_and(Report::is_clean) {
                // Then the block's content means nothing.
                let mut noise = image.clone();
                noise.write(block * 4096, &[0xa5; 4096]);
                let report = checked(&mut FaultDevice::from_image(noise), false).unwrap();
                assert!(report.is_clean(), "{what}: unreadable is worse than {report}");
                assert!(!written.contains(&block), "{what}: passed over");
                continue;
            }
            faults += 1;
            // It goes on failing while the volume is repaired, and is written all the same.
            let mut device = failing();
            let repaired = checked(&mut device, true);
            assert!(!repaired.as_ref().is_ok_and(Report::is_clean), "{what}: {repaired:?}");
            if repaired.is_ok() && nodes.contains(&block) {
                let report = checked(&mut device, false).unwrap();
                assert!(report.is_clean(), "{what}: the new tree is in it: {report}");
            }
            device.faults = Default::default();
            let mut again = FaultDevice::from_media(device.media().clone());
            let report = checked(&mut again, false).unwrap();
            if repaired.is_ok() {
                assert!(report.is_clean(), "{what}: repaired, and {report}");
            }
            checked(&mut device, true).unwrap_or_else(|e| panic!("{what}: {e}"));
            let left = count(&device.process_crash());
            if !nodes.contains(&block) || repaired.is_err() {
                assert_eq!(left, all, "{what}: {repaired:?}");
            } else {
                // What a damaged node costs, and no more.
                let mut noise = image.clone();
                noise.write(block * 4096, &[0xa5; 4096]);
                let mut noise = FaultDevice::from_image(noise);
                checked(&mut noise, true).unwrap();
                assert_eq!(left, count(&noise.process_crash()), "{what}");
            }
        }
        assert!(faults > nodes.len() + 8, "{state}: {faults} of {} nodes", nodes.len());
    }
}

/// A volume that is too full for a second tree beside the first, which goes by way of the journal:
/// the new one keeps off a node that cannot be read, since writing it may come to nothing. The tree
/// has more nodes than a volume keeps back for it.
#[test]
fn a_full_volume_is_repaired_around_what_cannot_be_read() {
    let mut fs = volume(BOOT);
    for number in 0..400 {
        let more = format!("one more, number {number}");
        fs.mkdir(&CX, Ino::ROOT, Name::new(more.as_bytes()).unwrap(), 0o700).unwrap();
    }
    let filler = Name::new(b"filler").unwrap();
    let (attr, handle) =
        fs.create(&CX, Ino::ROOT, filler, 0o600, OpenFlags::READ | OpenFlags::WRITE).unwrap();
    let mut end = 0;
    // What a sync gives back is filled too.
    for _ in 0..8 {
        while let Ok(written) = fs.write(&CX, attr.ino, handle, end, &[7; 4096]) {
            end += written.len as u64;
        }
        fs.syncfs(&CX).unwrap();
    }
    fs.release(&CX, attr.ino, handle).unwrap();
    assert!(end > BLOCKS / 2 * 4096, "{end}");
    let image = fs.unmount().unwrap().process_crash();
    let mut repaired = 0;
    for block in nodes(&image) {
        let mut device = FaultDevice::from_image(image.clone());
        device.faults.read_errors = [block].into();
        if checked(&mut device, true).is_err() {
            continue;
        }
        let report = checked(&mut device, false).unwrap();
        assert!(report.is_clean(), "node {block}: the new tree is in it: {report}");
        repaired += 1;
    }
    assert!(repaired > 4, "{repaired}");
}
