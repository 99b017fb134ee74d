//! The dump of sound and of damaged volumes.
mod common;

use atoll_block::RamDevice;
use atoll_fs::testing::mutate;
use atoll_fs::{DumpOptions, Element, Fs, ItemValue, check, dump, visit};
use atoll_vfs::{FileSystem, Ino, Name, XattrFlags};
use common::*;

fn volume(unmount: bool) -> RamDevice {
    let mut device = RamDevice::new(400);
    format_seeded(&mut device, 3);
    let mut fs = Fs::mount(device, &mount_options()).unwrap();
    work(&mut fs, &mut Rng::new(3), 150);
    let name = Name::new(b"a\nname").unwrap();
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name, 0o640, RW).unwrap();
    fs.write(&CX, attr.ino, handle, 0, &[1; 5000]).unwrap();
    fs.setxattr(&CX, attr.ino, b"user.colour", b"blue", XattrFlags::empty()).unwrap();
    fs.symlink(&CX, Ino::ROOT, Name::new(b"link").unwrap(), b"there").unwrap();
    if unmount { fs.unmount().unwrap() } else { fs.device().clone() }
}

fn options() -> DumpOptions {
    DumpOptions { incarnation: BOOT, ..DumpOptions::default() }
}

#[test]
fn everything_is_shown() {
    for unmount in [true, false] {
        let mut device = volume(unmount);
        let before = device.bytes().to_vec();
        let mut text = String::new();
        dump(&mut device, &options(), &mut text).unwrap();
        assert!(device.bytes() == before, "a dump must not write");
        let words = [
            "superblock 0: 400 blocks",
            "superblock 399: 400 blocks",
            ", current: root ",
            "map of group 0 in block ",
            " level 0: ",
            "\"a\\nname\" is inode ",
            "2 blocks from ",
            "\"user.colour\", 4 bytes",
            "\"there\"",
            "directory mode 0755 links ",
        ];
        for word in words {
            assert!(text.contains(word), "{word} is not in\n{text}");
        }
        assert_eq!(!unmount, text.contains("record "), "{text}");
    }
}

#[test]
fn elements_agree_with_a_check() {
    let mut device = volume(false);
    let (mut nodes, mut names, mut inodes) = (0, 0, 0);
    visit(&mut device, &options(), &mut |element| {
        match element {
            Element::Node { .. } => nodes += 1,
            Element::Item { value: ItemValue::Entry { .. }, .. } => names += 1,
            Element::Item { value: ItemValue::Inode(_), .. } => inodes += 1,
            _ => {}
        }
        true
    })
    .unwrap();
    let options = atoll_fs::CheckOptions { incarnation: BOOT, ..Default::default() };
    let report = check(&mut device, &options).unwrap();
    assert_eq!((report.node_blocks, report.names), (nodes, names));
    assert_eq!(report.files + report.directories + report.symlinks + report.others, inodes);
}

#[test]
fn a_visit_ends_when_it_is_told_to() {
    let mut count = 0;
    visit(&mut volume(true), &options(), &mut |_| {
        count += 1;
        count < 3
    })
    .unwrap();
    assert_eq!(count, 3);
}

#[test]
fn damaged_volumes_are_shown_as_they_are() {
    let image = volume(false);
    for seed in 0..1000 {
        let mut device = image.clone();
        mutate(device.bytes_mut(), seed);
        let mut text = String::new();
        // Not more than there can be on so many blocks.
        dump(&mut device, &options(), &mut text).unwrap();
        assert!(text.len() < 16 << 20, "seed {seed}: {}", text.len());
    }
    let mut text = String::new();
    dump(&mut RamDevice::new(1), &options(), &mut text).unwrap();
    assert_eq!(text, "superblock 0: not an Atoll volume\n");
}
