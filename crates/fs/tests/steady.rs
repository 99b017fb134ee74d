//! Something that is made and removed again and again costs the same beside any number of things
//! that stay: the tree does not split nodes for it and merge them again.
//!
//! The tests count the bytes that the journal takes and the nodes that are allocated.
mod common;

use atoll_block::RamDevice;
use atoll_fs::testing::appended_and_node;
use atoll_fs::{CheckOptions, FormatOptions, Fs, check, format};
use atoll_vfs::{FileSystem, Handle, Ino, Name, SetAttr, XattrFlags};
use common::*;

type Volume = Fs<RamDevice>;

/// How often something is made and removed before that is counted, and while it is.
const WARM: u64 = 6;
const COUNTED: u64 = 12;
/// Nodes that may be allocated while it is counted: a commit looks like one.
const NODES_MAX: u64 = 1;
/// The bytes that one turn may append, as a multiple of those at the cheapest size: compactions
/// come and go.
const BYTES_RATIO: u64 = 5;
/// The longest value that has to leave the nodes alone. A longer one takes most of a node by
/// itself.
const VALUE_MAX: usize = 1_000;

fn volume() -> Volume {
    let mut device = RamDevice::new(1 << 16);
    format(&mut device, &FormatOptions { now: CX.now, ..FormatOptions::default() }).unwrap();
    Fs::mount(device, &mount_options()).unwrap()
}

fn create(fs: &mut Volume, name: &str) -> (Ino, Handle) {
    let name = Name::new(name.as_bytes()).unwrap();
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name, 0o644, RW).unwrap();
    (attr.ino, handle)
}

/// A file at the end of the tree, or with `after` others after it.
fn file(fs: &mut Volume, after: u64) -> (Ino, Handle) {
    let file = create(fs, "file");
    for at in 0..after {
        create(fs, &format!("after{at}"));
    }
    file
}

/// Another file that stays.
fn stay(fs: &mut Volume, at: u64) {
    create(fs, &format!("stays{at}"));
}

fn unlink(fs: &mut Volume) {
    fs.unlink(&CX, Ino::ROOT, Name::new(b"goes").unwrap()).unwrap();
}

/// At each of the first `sizes` sizes to which `grow` brings the volume, `turn` makes something and
/// removes it.
fn assert_steady(
    what: &str,
    mut fs: Volume,
    sizes: u64,
    nodes_max: u64,
    mut grow: impl FnMut(&mut Volume, u64),
    mut turn: impl FnMut(&mut Volume, u64),
) -> Volume {
    let mut appended = Vec::new();
    for size in 0..sizes {
        grow(&mut fs, size);
        for _ in 0..WARM {
            turn(&mut fs, size);
        }
        let (before, mut last) = appended_and_node(&fs);
        let mut nodes = 0;
        for _ in 0..COUNTED {
            turn(&mut fs, size);
            let (_, node) = appended_and_node(&fs);
            nodes += u64::from(node != last);
            last = node;
        }
        assert!(nodes <= nodes_max, "{what}, size {size}: {nodes} nodes in {COUNTED} turns");
        appended.push((appended_and_node(&fs).0 - before) / COUNTED);
    }
    let least = *appended.iter().min().unwrap();
    for (size, bytes) in appended.into_iter().enumerate() {
        let bound = least * BYTES_RATIO;
        assert!(bytes <= bound, "{what}, size {size}: {bytes} bytes a turn, {least} at best");
    }
    fs
}

fn assert_clean(fs: Volume) {
    let report = check(&mut fs.unmount().unwrap(), &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Nodes that may be allocated for values of `len` bytes.
fn nodes_max(len: usize) -> u64 {
    if len <= VALUE_MAX { NODES_MAX } else { u64::MAX }
}

#[test]
fn files() {
    let fs = assert_steady("files", volume(), 12_000, NODES_MAX, stay, |fs, _| {
        let (ino, handle) = create(fs, "goes");
        fs.release(&CX, ino, handle).unwrap();
        unlink(fs);
    });
    assert_eq!(fs.info().tree_height, 3, "inner nodes were never full");
    assert_clean(fs);
    // Leaves of every filling.
    let stay = |fs: &mut Volume, at: u64| {
        let (ino, _) = create(fs, &format!("stays{at}"));
        let value = vec![1; at as usize % 41];
        fs.setxattr(&CX, ino, b"user.a", &value, XattrFlags::empty()).unwrap();
    };
    let fs = assert_steady("files with content", volume(), 600, NODES_MAX, stay, |fs, _| {
        let (ino, handle) = create(fs, "goes");
        fs.setxattr(&CX, ino, b"user.a", &[1; 400], XattrFlags::empty()).unwrap();
        fs.write(&CX, ino, handle, 0, b"content").unwrap();
        fs.write(&CX, ino, handle, 8_192, b"content").unwrap();
        fs.release(&CX, ino, handle).unwrap();
        unlink(fs);
    });
    assert_clean(fs);
}

#[test]
fn symbolic_links() {
    for len in [10, 300, 600, VALUE_MAX, 1_500, 4_095] {
        let what = format!("links of {len} bytes");
        let fs = assert_steady(&what, volume(), 600, nodes_max(len), stay, |fs, _| {
            fs.symlink(&CX, Ino::ROOT, Name::new(b"goes").unwrap(), &vec![b't'; len]).unwrap();
            unlink(fs);
        });
        assert_clean(fs);
    }
}

#[test]
fn extents() {
    for after in [0, 50] {
        let mut fs = volume();
        let (ino, handle) = file(&mut fs, after);
        // Every second block, so that each is an extent.
        let write = |fs: &mut Volume, at: u64| {
            fs.write(&CX, ino, handle, at * 8_192, b"x").unwrap();
        };
        let what = format!("extents, {after} files after theirs");
        let fs = assert_steady(&what, fs, 2_000, NODES_MAX, write, |fs, at| {
            write(fs, at + 1);
            let shorter = SetAttr { size: Some(at * 8_192 + 1), ..SetAttr::default() };
            fs.setattr(&CX, ino, None, &shorter).unwrap();
        });
        assert_clean(fs);
    }
}

#[test]
fn attributes() {
    for (len, after) in
        [10, 300, 600, 980, 1_500, 10_000].into_iter().flat_map(|len| [(len, 0), (len, 50)])
    {
        let mut fs = volume();
        let (ino, _) = file(&mut fs, after);
        let set = |fs: &mut Volume, name: &str, value: &[u8]| {
            fs.setxattr(&CX, ino, name.as_bytes(), value, XattrFlags::empty()).unwrap();
        };
        let grow = |fs: &mut Volume, at| set(fs, &format!("user.stays{at}"), &[0; 30]);
        let what = format!("attributes of {len} bytes, {after} files after theirs");
        let fs = assert_steady(&what, fs, 600, nodes_max(len), grow, |fs, _| {
            set(fs, "user.goes", &vec![1; len]);
            fs.removexattr(&CX, ino, b"user.goes").unwrap();
        });
        assert_clean(fs);
    }
}
