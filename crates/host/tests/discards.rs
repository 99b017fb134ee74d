//! Discards and the host's cache: storage goes back to the host and is asked for again; what is
//! forgotten is read from the medium.

mod common;

use std::fs::{File, OpenOptions as FileOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use atoll_block::{Addressable, BLOCK_SIZE, BlockDevice, BlockError, BlockIndex};
use atoll_host::device::{Access, Create, HostDevice, OpenOptions, open};
use common::{Loop, Mounted, alone, disk, run, with_disks};

const ACCESS: [Access; 2] = [Access::Mapped, Access::Direct { cache_bytes: 60_000 }];
/// Four mebibytes: storage is asked for one at a time.
const BLOCKS: u64 = 1024;

fn opened(path: &Path, access: Access) -> HostDevice {
    let options = OpenOptions {
        access,
        flusher: true,
        create: Create::IfMissing,
        blocks: Some(BLOCKS),
        ..OpenOptions::default()
    };
    open(path, &options).unwrap()
}

fn storage(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512 / BLOCK_SIZE as u64
}

/// Pieces of all sizes, below and above those in which storage is asked for.
#[test]
fn storage_goes_back_and_comes_again() {
    let folder = tempfile::tempdir().unwrap();
    for (i, access) in ACCESS.into_iter().enumerate() {
        let path = folder.path().join(i.to_string());
        let mut device = opened(&path, access);
        if !device.gives_back() {
            return eprintln!("not tested: no holes can be made in files here");
        }
        let data: Vec<u8> =
            (0..BLOCKS as usize * BLOCK_SIZE).map(|at| (at / 512) as u8 | 1).collect();
        device.store(0, &data).unwrap();
        device.flush().unwrap();
        let mut expected = data.clone();
        for (first, count) in [(3, 1), (16, 16), (100, 200), (512, 512), (20, 1), (0, 1)] {
            let before = storage(&path);
            device.discard(BlockIndex(first), count).unwrap();
            assert!(storage(&path) <= before, "{access:?}");
            let bytes = first as usize * BLOCK_SIZE..(first + count) as usize * BLOCK_SIZE;
            expected[bytes.clone()].fill(0);
            let mut found = vec![1; data.len()];
            device.load(0, &mut found).unwrap();
            assert!(found == expected, "{access:?}: {first} and {count}");
            // Small stores and large ones, there and next to it.
            if count > 4 {
                for (at, len) in [(bytes.start + 5000, 10), (bytes.start + 8192, bytes.len() / 2)] {
                    device.store(at as u64, &data[at..at + len]).unwrap();
                    expected[at..at + len].copy_from_slice(&data[at..at + len]);
                }
            }
        }
        device.discard(BlockIndex(0), BLOCKS).unwrap();
        device.flush().unwrap();
        assert!(storage(&path) < 32, "{access:?}: {} blocks", storage(&path));
        device.store(7, b"seven").unwrap();
        device.flush().unwrap();
        drop(device);
        let mut found = [0; 13];
        File::open(&path).unwrap().read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"\0\0\0\0\0\0\0seven\0");
    }
}

#[test]
fn only_files_that_may_be_written_give_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume");
    for access in ACCESS {
        drop(opened(&path, access));
        for (read_only, sealable) in [(true, false), (false, true)] {
            let options = OpenOptions { access, read_only, sealable, ..OpenOptions::default() };
            assert!(!open(&path, &options).unwrap().gives_back());
        }
        let length = BLOCKS * BLOCK_SIZE as u64;
        assert_eq!(std::fs::metadata(&path).unwrap().len(), length, "asking changes nothing");
    }
    with_disks(|folder| {
        let image = disk(folder, "image", 4);
        let disk = Loop::attach(&image)?;
        assert!(!opened(&disk.path, ACCESS[0]).gives_back());
        Ok(())
    });
}

/// The medium differs from what the host remembers of it, as after an error of writing back: here,
/// a disk whose content changes below it.
#[test]
fn what_is_forgotten_is_read_from_the_medium() {
    with_disks(|folder| {
        for access in ACCESS {
            let image = disk(folder, "image", 4);
            let disk = Loop::attach(&image)?;
            let mut device = opened(&disk.path, access);
            device.store(0, &[1; 3 * BLOCK_SIZE]).unwrap();
            device.flush().unwrap();
            let below = FileOptions::new().write(true).open(&image).unwrap();
            below.write_all_at(&[2; 3 * BLOCK_SIZE], 0).unwrap();
            let mut found = [0; 2];
            device.load(BLOCK_SIZE as u64, &mut found).unwrap();
            assert_eq!(found, [1, 1], "{access:?}: cached");
            device.forget_cached().unwrap();
            device.load(BLOCK_SIZE as u64, &mut found).unwrap();
            assert_eq!(found, [2, 2], "{access:?}: from the medium");
            device.store(0, &[3]).unwrap();
            device.flush().unwrap();
            device.forget_cached().unwrap();
            device.load(0, &mut found).unwrap();
            assert_eq!(found, [3, 2], "{access:?}: nothing is lost that was flushed");
        }
        Ok(())
    });
    with_disks(|folder| {
        for access in ACCESS {
            let image = disk(folder, "image", 4);
            let disk = Loop::attach(&image)?;
            // The cache goes with the last descriptor of the disk.
            let _held = File::open(&disk.path).unwrap();
            let mut device = opened(&disk.path, access);
            device.store(0, &[1; 3 * BLOCK_SIZE]).unwrap();
            device.flush().unwrap();
            drop(device);
            let below = FileOptions::new().write(true).open(&image).unwrap();
            below.write_all_at(&[2; 3 * BLOCK_SIZE], 0).unwrap();
            let look = || {
                let options = OpenOptions { access, read_only: true, ..OpenOptions::default() };
                open(&disk.path, &options).unwrap()
            };
            let mut past = look();
            past.read_past_cache().unwrap();
            let mut found = [0; 2];
            past.load(BLOCK_SIZE as u64 - 1, &mut found).unwrap();
            assert_eq!(found, [2, 2], "{access:?}: from the medium");
            look().load(BLOCK_SIZE as u64 - 1, &mut found).unwrap();
            assert_eq!(found, [1, 1], "{access:?}: what is cached stays");
            let mut all = vec![0; 3 * BLOCK_SIZE - 7];
            past.load(5, &mut all).unwrap();
            assert!(all.iter().all(|&byte| byte == 2), "{access:?}");
        }
        Ok(())
    });
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    for access in ACCESS {
        let mut device = opened(&folder.path().join("volume"), access);
        device.store(100, b"unflushed").unwrap();
        device.forget_cached().unwrap();
        let mut found = [0; 9];
        device.load(100, &mut found).unwrap();
        assert_eq!(&found, b"unflushed", "what can be written is, first");
    }
}

/// Space that is set aside stays, when others take all the rest; more than there is, is refused at
/// once.
#[test]
fn what_is_reserved_can_be_stored() {
    const MIB: u64 = (1 << 20) / BLOCK_SIZE as u64;
    with_disks(|folder| {
        let host = folder.join("host");
        let image = disk(folder, "image", 24);
        run("mkfs.ext4", &[&"-q", &image])?;
        let disk = Loop::attach(&image)?;
        let _mounted = Mounted::new(&[&disk.path], &host)?;
        for access in ACCESS {
            let path = host.join("volume");
            let options = OpenOptions {
                access,
                create: Create::New,
                blocks: Some(64 * MIB),
                ..OpenOptions::default()
            };
            let mut device = open(&path, &options).unwrap();
            assert_eq!(device.reserve(BlockIndex(0), 60 * MIB), Err(BlockError::NoSpace));
            device.discard(BlockIndex(0), 64 * MIB).unwrap();
            device.reserve(BlockIndex(20 * MIB), 4 * MIB).unwrap();
            assert!(device.reserve(BlockIndex(64 * MIB), 1).is_err());
            let mut filled = File::create(host.join("filled")).unwrap();
            while filled.write_all(&[1; 4096]).is_ok() {}
            for block in 20 * MIB..24 * MIB {
                device.store(BlockIndex(block).byte_offset(), &[7; BLOCK_SIZE]).unwrap();
            }
            device.flush().unwrap();
            std::fs::remove_file(host.join("filled")).unwrap();
            std::fs::remove_file(&path).unwrap();
        }
        Ok(())
    });
}

/// A caller may have opened a file that is no volume, and that holds something else up to its last
/// byte.
#[test]
fn to_ask_changes_nothing() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    for len in [1, 511, 512, 4095, 4096, 4097].map(|more| 10 * BLOCK_SIZE + more) {
        let content = vec![7; len];
        for access in ACCESS {
            std::fs::write(&path, &content).unwrap();
            open(&path, &OpenOptions { access, ..OpenOptions::default() }).unwrap().gives_back();
            assert!(std::fs::read(&path).unwrap() == content, "{access:?}: {len} bytes");
        }
    }
}
