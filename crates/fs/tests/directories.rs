//! Directories of extreme shapes: very wide, and very deep.
mod common;

use atoll_block::RamDevice;
use atoll_fs::{CheckOptions, Fs, check};
use atoll_vfs::*;
use common::*;

/// Deeper than any limit that a 20-bit counter would set.
const DEEP: u64 = (1 << 20) + 10;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn volume(blocks: u64) -> Fs<RamDevice> {
    let mut device = RamDevice::new(blocks);
    format_seeded(&mut device, 3);
    Fs::mount(device, &mount_options()).unwrap()
}

fn mkdir(fs: &mut Fs<RamDevice>, dir: Ino, text: &str) -> Ino {
    fs.mkdir(&CX, dir, name(text), 0o755).unwrap().ino
}

fn rename(fs: &mut Fs<RamDevice>, from: (Ino, &str), to: (Ino, &str)) -> Result<()> {
    fs.rename(&CX, from.0, name(from.1), to.0, name(to.1), RenameFlags::empty())
}

fn links(fs: &mut Fs<RamDevice>, dir: Ino) -> u32 {
    fs.getattr(&CX, dir).unwrap().nlink
}

fn assert_clean(fs: Fs<RamDevice>) -> RamDevice {
    let mut device = fs.unmount().unwrap();
    let report = check(&mut device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    device
}

#[test]
fn a_directory_has_more_subdirectories_than_a_file_may_have_links() {
    const WIDE: u32 = LINK_MAX + 1_000;
    let mut fs = volume(1 << 14);
    let (wide, other) = (mkdir(&mut fs, Ino::ROOT, "wide"), mkdir(&mut fs, Ino::ROOT, "other"));
    for at in 0..WIDE {
        mkdir(&mut fs, wide, &format!("{at}"));
    }
    assert_eq!(links(&mut fs, wide), WIDE + 2);
    // Moved in, moved out, replaced, exchanged, removed.
    mkdir(&mut fs, other, "in");
    rename(&mut fs, (other, "in"), (wide, "in")).unwrap();
    rename(&mut fs, (wide, "0"), (other, "out")).unwrap();
    rename(&mut fs, (wide, "1"), (wide, "2")).unwrap();
    let swap = RenameFlags::EXCHANGE;
    fs.rename(&CX, wide, name("3"), other, name("out"), swap).unwrap();
    fs.rmdir(&CX, wide, name("4")).unwrap();
    assert_eq!((links(&mut fs, wide), links(&mut fs, other)), (WIDE, 3));
    let mut fs = Fs::mount(assert_clean(fs), &mount_options()).unwrap();
    assert_eq!(links(&mut fs, wide), WIDE);
    let handle = fs.opendir(&CX, wide).unwrap();
    let mut found = 0;
    fs.readdir(&CX, wide, handle, 0, &mut |_| {
        found += 1;
        true
    })
    .unwrap();
    assert_eq!(found, WIDE, "with `.` and `..`");
}

/// A directory `top` in the root and `depth` others, each in the one before.
fn nest(fs: &mut Fs<RamDevice>, depth: u64) -> Vec<Ino> {
    let mut way = vec![mkdir(fs, Ino::ROOT, "top")];
    for _ in 0..depth {
        way.push(mkdir(fs, way[way.len() - 1], "d"));
    }
    way
}

#[test]
fn directories_are_moved_at_any_depth() {
    let mut fs = volume(1 << 17);
    let way = nest(&mut fs, DEEP);
    let bottom = way[way.len() - 1];
    let moved = mkdir(&mut fs, Ino::ROOT, "moved");
    mkdir(&mut fs, moved, "below");
    rename(&mut fs, (Ino::ROOT, "moved"), (bottom, "moved")).unwrap();
    rename(&mut fs, (bottom, "moved"), (way[0], "moved")).unwrap();
    // Into itself, from next to it and from as far as can be.
    for from in [(Ino::ROOT, "top"), (way[way.len() - 2], "d")] {
        assert_eq!(rename(&mut fs, from, (bottom, "new")), Err(Errno::EINVAL));
    }
    assert_eq!(fs.lookup(&CX, bottom, name("..")).unwrap().ino, way[way.len() - 2]);
}

/// Deeper than a check could go that used the stack or followed each way to the root.
#[test]
fn a_deep_nest_is_checked_and_repaired() {
    const DEPTH: u64 = 150_000;
    let mut fs = volume(1 << 15);
    let way = nest(&mut fs, DEPTH);
    let mut device = assert_clean(fs);
    // Without the way to the top everything below it is found again.
    let options = CheckOptions { repair: true, incarnation: BOOT, now: CX.now };
    corrupt_name(&mut device, b"top");
    let report = check(&mut device, &options).unwrap();
    assert!(!report.is_clean());
    let mut fs = Fs::mount(device, &mount_options()).unwrap();
    let found = fs.lookup(&CX, Ino::ROOT, name("lost+found")).unwrap().ino;
    let lost = fs.lookup(&CX, found, name(&format!("#{}", way[0].0))).unwrap().ino;
    assert_eq!(lost, way[0]);
    assert_eq!(fs.lookup(&CX, way[way.len() - 1], name("..")).unwrap().ino, way[way.len() - 2]);
    assert_clean(fs);
}

/// Replaces a name by one that its hash does not lead to.
fn corrupt_name(device: &mut RamDevice, text: &[u8]) {
    let bytes = device.bytes_mut();
    let places: Vec<usize> = bytes
        .windows(text.len())
        .enumerate()
        .filter(|(_, w)| *w == text)
        .map(|(at, _)| at)
        .collect();
    for at in places {
        // The type of the inode, a directory, stands before the name.
        if bytes[at - 1] == 4 {
            bytes[at] ^= 1;
        }
    }
    atoll_fs::testing::reseal(bytes);
}

/// A cookie names a place in the directory, also on a later mount, after a crash, and when its
/// entry is gone.
#[test]
fn cookies_outlive_mounts() {
    let mut fs = volume(1 << 10);
    for at in 0..300 {
        mkdir(&mut fs, Ino::ROOT, &format!("{at}"));
    }
    let list = |fs: &mut Fs<RamDevice>, cookie| {
        let handle = fs.opendir(&CX, Ino::ROOT).unwrap();
        let mut entries = Vec::new();
        fs.readdir(&CX, Ino::ROOT, handle, cookie, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.cookie));
            true
        })
        .unwrap();
        fs.releasedir(&CX, Ino::ROOT, handle).unwrap();
        entries
    };
    let all = list(&mut fs, 0);
    let (gone, cookie) = &all[100];
    let crashed = fs.device().clone();
    let mut fs = Fs::mount(crashed, &mount_options()).unwrap();
    assert_eq!(list(&mut fs, *cookie), all[101..]);
    fs.rmdir(&CX, Ino::ROOT, Name::new(gone).unwrap()).unwrap();
    let mut fs = Fs::mount(fs.unmount().unwrap(), &mount_options()).unwrap();
    assert_eq!(list(&mut fs, *cookie), all[101..]);
    assert!(
        !all[2..].is_sorted_by_key(|(_, cookie)| cookie),
        "the order is not to be read from them"
    );
}
