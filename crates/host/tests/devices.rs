//! Host devices against the contract of the block seam, and against what hosts do to them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use atoll_block::conformance::{BLOCKS, limits, random_operations};
use atoll_block::{Addressable, BLOCK_SIZE, BlockDevice, BlockError, BlockIndex};
use atoll_host::device::{Access, Create, HostDevice, OpenError, OpenOptions, open};

const MODES: [(Access, bool); 4] = [
    (Access::Mapped, false),
    (Access::Mapped, true),
    (Access::Direct { cache_bytes: 30_000 }, false),
    (Access::Direct { cache_bytes: 30_000 }, true),
];

fn options(access: Access, sealable: bool) -> OpenOptions {
    OpenOptions { access, sealable, flusher: true, ..OpenOptions::default() }
}

fn make(path: &Path, blocks: u64, access: Access, sealable: bool) -> HostDevice {
    let made = OpenOptions {
        create: Create::IfMissing,
        blocks: Some(blocks),
        ..options(access, sealable)
    };
    open(path, &made).unwrap()
}

fn conforms(test: &str, access: Access, sealable: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let fresh = || {
        let _ = std::fs::remove_file(&path);
        make(&path, BLOCKS, access, sealable)
    };
    limits(&mut fresh());
    random_operations("atoll-host --test devices", test, 60, fresh);
}

#[test]
fn mapped_conforms() {
    conforms("mapped_conforms", MODES[0].0, MODES[0].1);
}

#[test]
fn sealable_mapped_conforms() {
    conforms("sealable_mapped_conforms", MODES[1].0, MODES[1].1);
}

#[test]
fn direct_conforms() {
    conforms("direct_conforms", MODES[2].0, MODES[2].1);
}

#[test]
fn sealable_direct_conforms() {
    conforms("sealable_direct_conforms", MODES[3].0, MODES[3].1);
}

#[test]
fn content_outlives_the_device() {
    let dir = tempfile::tempdir().unwrap();
    for (i, (access, sealable)) in MODES.into_iter().enumerate() {
        let path = dir.path().join(format!("{i}"));
        let mut device = make(&path, 100, access, sealable);
        device.expect_commits(BlockIndex(10), 20).unwrap();
        device.store(5000, b"stored").unwrap();
        device.store(12 * 4096 - 3, b"committed").unwrap();
        device.flush_range(BlockIndex(11), 2).unwrap();
        drop(device);
        for (access, _) in MODES {
            let read_only = OpenOptions { read_only: true, ..options(access, false) };
            let mut device = open(&path, &read_only).unwrap();
            let mut buf = [0; 9];
            device.load(12 * 4096 - 3, &mut buf).unwrap();
            assert_eq!(&buf, b"committed");
            device.load(5000, &mut buf).unwrap();
            assert_eq!(&buf, b"stored\0\0\0");
            assert_eq!(device.store(0, &[1]), Err(BlockError::ReadOnly));
            assert_eq!(device.store_zeros(0, 1), Err(BlockError::ReadOnly));
            assert_eq!(device.write(BlockIndex(0), &[1; BLOCK_SIZE]), Err(BlockError::ReadOnly));
            assert_eq!(device.discard(BlockIndex(0), 1), Err(BlockError::ReadOnly));
            assert_eq!(device.block_count(), 100);
            device.flush().unwrap();
        }
    }
}

/// More unflushed ranges than are remembered, flushes of parts, and the medium at the end.
#[test]
fn a_sealable_device_flushes_any_number_of_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let mut device = make(&path, 6000, Access::Direct { cache_bytes: 0 }, true);
    for i in 0..2500u64 {
        device.store(i * 2 * 4096, &i.to_le_bytes()).unwrap();
    }
    device.flush_range(BlockIndex(1000), 1).unwrap();
    device.store(0, &[7; 300 * 4096]).unwrap();
    device.flush_range(BlockIndex(100), 10).unwrap();
    device.flush().unwrap();
    drop(device);
    let file = File::open(&path).unwrap();
    for i in 150..2500u64 {
        let mut buf = [0; 8];
        file.read_exact_at(&mut buf, i * 2 * 4096).unwrap();
        assert_eq!(buf, i.to_le_bytes());
    }
}

#[test]
fn discards_give_storage_back() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    for (i, (access, sealable)) in MODES.into_iter().enumerate() {
        let path = dir.path().join(format!("{i}"));
        let mut device = make(&path, 1000, access, sealable);
        device.store(0, &vec![1; 800 * 4096]).unwrap();
        device.flush().unwrap();
        let before = std::fs::metadata(&path).unwrap().blocks();
        device.discard(BlockIndex(100), 600).unwrap();
        // A hole stays one, also where no hole can be made.
        device.discard(BlockIndex(800), 200).unwrap();
        device.flush().unwrap();
        let after = std::fs::metadata(&path).unwrap().blocks();
        let given_back = if sealable { after <= before } else { after + 600 * 8 <= before + 64 };
        assert!(given_back, "{access:?}: {before} sectors before, {after} after");
        let mut buf = vec![9; 602 * 4096];
        device.load(99 * 4096, &mut buf).unwrap();
        assert!(buf[..4096].iter().all(|&b| b == 1) && buf[601 * 4096..].iter().all(|&b| b == 1));
        assert!(buf[4096..601 * 4096].iter().all(|&b| b == 0));
    }
}

#[test]
fn a_volume_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let me = OpenError::InUse { pid: Some(std::process::id()) };
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let device = make(&path, 4, Access::Mapped, false);
    for (access, sealable) in MODES {
        assert_eq!(open(&path, &options(access, sealable)).err(), Some(me));
        let read_only = OpenOptions { read_only: true, ..options(access, sealable) };
        assert_eq!(open(&path, &read_only).err(), Some(me));
    }
    drop(device);
    let readers = [open(&path, &read_only).unwrap(), open(&path, &read_only).unwrap()];
    assert_eq!(open(&path, &OpenOptions::default()).err(), Some(me));
    drop(readers);
    open(&path, &OpenOptions::default()).unwrap();
}

#[test]
fn what_is_no_storage_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let error = |name: &str, options: &OpenOptions| open(&at(name), options).err();
    let plain = OpenOptions::default();
    assert_eq!(error("missing", &plain), Some(OpenError::NotFound));
    assert_eq!(error("", &plain), Some(OpenError::NotStorage));
    let read_only = OpenOptions { read_only: true, ..plain };
    assert_eq!(error("", &read_only), Some(OpenError::NotStorage));
    assert_eq!(open(Path::new("/dev/null"), &plain).err(), Some(OpenError::NotStorage));
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    assert_eq!(error("pipe", &plain), Some(OpenError::NotStorage));
    assert_eq!(error("pipe", &read_only), Some(OpenError::NotStorage));

    std::fs::write(at("small"), [1; 4095]).unwrap();
    let too_small = OpenError::TooSmall { bytes: 4095, needed: 4096 };
    assert_eq!(error("small", &plain), Some(too_small));
    assert_eq!(std::fs::metadata(at("small")).unwrap().len(), 4095);
    let new = OpenOptions { create: Create::New, blocks: Some(2), ..plain };
    assert_eq!(error("small", &new), Some(OpenError::Exists));
    let huge = OpenOptions { create: Create::New, blocks: Some(u64::MAX / 4096), ..plain };
    assert!(error("huge", &huge).is_some());
    assert!(!at("huge").exists(), "a file that could not be used is removed");
    let grown = OpenOptions { blocks: Some(3), ..plain };
    for access in [Access::Mapped, Access::Direct { cache_bytes: 1 << 16 }] {
        // Nothing comes of it, and the file is as it was to the byte.
        let device = open(&at("small"), &OpenOptions { access, ..grown }).unwrap();
        assert_eq!(std::fs::metadata(at("small")).unwrap().len(), 3 * 4096);
        device.close_as_found();
        assert_eq!(std::fs::metadata(at("small")).unwrap().len(), 4095);
    }
    // Another has it at another length by now.
    let device = open(&at("small"), &grown).unwrap();
    let file = File::options().write(true).open(at("small")).unwrap();
    file.set_len(2 * 4096).unwrap();
    device.close_as_found();
    assert_eq!(std::fs::metadata(at("small")).unwrap().len(), 2 * 4096);
    // Longer than any process can map, and than most file systems allow.
    let huge = OpenOptions { blocks: Some(1 << 40), ..plain };
    assert!(error("small", &huge).is_some());
    assert_eq!(std::fs::metadata(at("small")).unwrap().len(), 2 * 4096);
    assert_eq!(open(&at("small"), &grown).unwrap().block_count(), 3);
    assert_eq!(open(&at("small"), &plain).unwrap().block_count(), 3);
    let not_grown = OpenOptions { blocks: Some(4), read_only: true, ..plain };
    let too_small = OpenError::TooSmall { bytes: 3 * 4096, needed: 4 * 4096 };
    assert_eq!(error("small", &not_grown), Some(too_small));
}

/// A file that became shorter is an error, in each way to touch it, and is not made longer again.
#[test]
fn a_shrunk_image_is_an_input_error() {
    let dir = tempfile::tempdir().unwrap();
    for (i, (access, sealable)) in MODES.into_iter().enumerate() {
        let path = dir.path().join(format!("{i}"));
        let mut device = make(&path, 64, access, sealable);
        device.store(0, &[3; 64 * 4096]).unwrap();
        device.flush().unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(10 * 4096).unwrap();

        let mut buf = vec![0; 8 * 4096];
        let name = format!("{access:?}, sealable: {sealable}");
        assert_eq!(device.load(20 * 4096 + 5, &mut buf[..100]), Err(BlockError::Io), "{name}");
        assert_eq!(device.load(6 * 4096, &mut buf), Err(BlockError::Io), "{name}");
        assert_eq!(device.read(BlockIndex(20), &mut buf), Err(BlockError::Io), "{name}");
        assert_eq!(device.store(20 * 4096 + 5, &[1; 100]), Err(BlockError::Io), "{name}");
        if access == Access::Mapped {
            assert_eq!(device.store(6 * 4096, &buf), Err(BlockError::Io), "{name}");
            assert_eq!(device.store_zeros(5 * 4096, 50 * 4096), Err(BlockError::Io), "{name}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 10 * 4096, "{name}");
        }
        if !sealable {
            assert_eq!(device.flush(), Err(BlockError::Io), "{name}");
        }
        device.load(100, &mut buf[..3000]).unwrap();
        assert!(buf[..3000].iter().all(|&b| b == 3), "what is left is still there");
    }
}

/// A loop device, detached when dropped.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Option<Loop> {
        let output = Command::new("losetup").args(["-f", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !name.is_empty()).then_some(Loop(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// The contract on a block device, where the user may make one.
#[test]
fn block_devices_conform() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len(BLOCKS * 4096).unwrap();
    let Some(disk) = Loop::new(&path) else {
        println!("skipped: no loop device can be made here (that needs root and the loop driver)");
        return;
    };
    for (access, sealable) in MODES {
        let fresh = || {
            let mut device = open(Path::new(&disk.0), &options(access, sealable)).unwrap();
            device.discard(BlockIndex(0), BLOCKS).unwrap();
            device
        };
        let mut device = fresh();
        device.expect_commits(BlockIndex(0), 4).unwrap();
        assert!(open(Path::new(&disk.0), &options(access, sealable)).is_err(), "it is locked");
        limits(&mut device);
        drop(device);
        random_operations("atoll-host --test devices", "block_devices_conform", 10, fresh);
    }
    let larger = OpenOptions { blocks: Some(BLOCKS + 1), ..OpenOptions::default() };
    let error = open(Path::new(&disk.0), &larger).err();
    let (bytes, needed) = (BLOCKS * 4096, (BLOCKS + 1) * 4096);
    assert_eq!(error, Some(OpenError::TooSmall { bytes, needed }));
}
