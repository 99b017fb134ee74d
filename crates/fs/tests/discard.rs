//! Discards: freed space goes back to the host, and nothing else does; and a volume on a full host
//! uses the space that it has.

mod common;

use std::collections::BTreeMap;

use atoll_block::fault::{Event, Image, Survival};
use atoll_block::{Addressable, BlockDevice, FaultDevice};
use atoll_fs::{CheckOptions, Fs, FsError, MountOptions, check};
use atoll_vfs::*;
use common::*;

const BLOCKS: u64 = 4096;

fn options() -> MountOptions {
    MountOptions { discard: true, ..mount_options() }
}

fn made() -> FaultDevice {
    let mut device = FaultDevice::new(BLOCKS);
    format_seeded(&mut device, 3);
    device
}

fn stored(device: &FaultDevice) -> u64 {
    let image = device.process_crash();
    (0..BLOCKS).filter(|&block| image.is_stored(block)).count() as u64
}

fn name(n: u64) -> Vec<u8> {
    format!("f{n}").into_bytes()
}

/// A file's content: bytes that tell it from others.
fn content(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n * 31 + at as u64 / 512) as u8 | 1).collect()
}

fn write<M: Addressable>(fs: &mut Fs<M>, n: u64, len: usize) -> Result<()> {
    let name = name(n);
    let name = Name::new(&name).unwrap();
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name, 0o644, RW)?;
    let data = content(n, len);
    let mut done = 0;
    let mut result = Ok(());
    while done < len && result.is_ok() {
        result = fs
            .write(&CX, attr.ino, handle, done as u64, &data[done..])
            .map(|written| done += written.len);
    }
    fs.release(&CX, attr.ino, handle).unwrap();
    if result.is_err() {
        fs.unlink(&CX, Ino::ROOT, name).unwrap();
    }
    result
}

fn unlink<M: Addressable>(fs: &mut Fs<M>, n: u64) {
    fs.unlink(&CX, Ino::ROOT, Name::new(&name(n)).unwrap()).unwrap();
}

fn sync<M: Addressable>(fs: &mut Fs<M>) {
    fs.syncfs(&CX).unwrap();
}

fn assert_files(fs: &mut Fs<impl Addressable>, files: &BTreeMap<u64, usize>) {
    for (&n, &len) in files {
        let attr = fs.lookup(&CX, Ino::ROOT, Name::new(&name(n)).unwrap()).unwrap();
        let handle = fs.open(&CX, attr.ino, OpenFlags::READ).unwrap();
        let mut data = vec![0; len + 1];
        let found = fs.read(&CX, attr.ino, handle, 0, &mut data).unwrap();
        assert!(found == len && data[..len] == content(n, len), "file {n}");
        fs.release(&CX, attr.ino, handle).unwrap();
    }
}

/// Files come and go at random; at the end the device has storage for little more than the used
/// blocks.
#[test]
fn what_is_freed_goes_back() {
    let mut left = Vec::new();
    for discard in [false, true] {
        let mut rng = Rng::new(1);
        let mut files = BTreeMap::new();
        let options = MountOptions { discard, ..options() };
        let mut fs = Fs::mount(made(), &options).unwrap();
        for round in 0..300 {
            let n = rng.below(40);
            if files.remove(&n).is_some() {
                unlink(&mut fs, n);
            } else {
                let len = rng.below(200_000) as usize + 1;
                write(&mut fs, n, len).unwrap();
                files.insert(n, len);
            }
            if round % 20 == 0 {
                sync(&mut fs);
                assert_files(&mut fs, &files);
            }
        }
        for n in files.keys().copied().filter(|n| n % 4 != 0).collect::<Vec<_>>() {
            files.remove(&n);
            unlink(&mut fs, n);
        }
        let mut device = fs.unmount().unwrap();
        left.push(stored(&device));
        assert!(check(&mut device, &CheckOptions::default()).unwrap().is_clean());
        let mut fs = Fs::mount(device, &options).unwrap();
        assert_files(&mut fs, &files);
        let used = BLOCKS - fs.info().free_blocks;
        fs.trim().unwrap();
        assert_files(&mut fs, &files);
        left.push(stored(fs.device()));
        assert!(left[left.len() - 1] <= used + 300, "{left:?} stored, {used} used");
    }
    let [kept, trimmed, discarded, _] = left[..] else { panic!() };
    assert!(discarded < kept / 2 && discarded < trimmed + 200, "{left:?}");
}

/// A volume after power loss, on a host that has storage for so many blocks, and no more.
fn assert_sound(image: Image, capacity: u64, files: &BTreeMap<u64, usize>) {
    let mut device = FaultDevice::from_image(image);
    device.faults.free_blocks = Some(capacity.saturating_sub(stored(&device)));
    assert!(check(&mut device, &CheckOptions::default()).unwrap().is_clean());
    assert_files(&mut Fs::mount(device, &options()).unwrap(), files);
}

/// Power is lost around every discard of a workload, in several ways: synced files are there, the
/// rest is sound.
#[test]
fn crashes_around_discards_lose_nothing() {
    let mut fs = Fs::mount(made(), &options()).unwrap();
    let mut rng = Rng::new(5);
    let mut files = BTreeMap::new();
    let mut discards = 0;
    for _ in 0..12 {
        for _ in 0..10 {
            let n = rng.below(30);
            if files.remove(&n).is_some() {
                unlink(&mut fs, n);
            } else {
                let len = rng.below(150_000) as usize + 1;
                write(&mut fs, n, len).unwrap();
                files.insert(n, len);
            }
        }
        sync(&mut fs);
        // An unmount checkpoints, and discards.
        fs.device_mut().start_recording();
        let mut device = fs.unmount().unwrap();
        let recording = device.take_recording().unwrap();
        let mut replay = recording.replay();
        loop {
            let is_discard = matches!(replay.next_event(), Some(Event::Discard { .. }));
            discards += u64::from(is_discard);
            if is_discard || replay.next_event().is_none() {
                let seeds = [Survival::None, Survival::All, Survival::Seed(discards)];
                for survival in seeds {
                    assert_sound(replay.media().power_loss(survival), 0, &files);
                }
            }
            if !replay.step() {
                break;
            }
        }
        fs = Fs::mount(device, &options()).unwrap();
    }
    assert!(discards > 20, "{discards}");
}

/// A host fills up; files are deleted and others written, with and without discards. The volume
/// finds the blocks that have storage, and recovery after power loss needs no more.
#[test]
fn a_full_host_has_what_was_freed() {
    for (discard, len) in [(true, 20_000), (true, 3_000), (false, 20_000), (false, 3_000)] {
        let what = format!("discard {discard}, {len} bytes");
        let mut device = made();
        device.faults.free_blocks = Some(800);
        let mut fs = Fs::mount(device, &MountOptions { discard, ..options() }).unwrap();
        let mut files = BTreeMap::new();
        let mut n = 0;
        loop {
            match write(&mut fs, n, len) {
                Ok(()) => drop(files.insert(n, len)),
                Err(error) => {
                    assert_eq!(error, Errno::ENOSPC, "{what}");
                    break;
                }
            }
            n += 1;
        }
        assert!(n > 100, "{what}: {n} files");
        sync(&mut fs);
        let gone: Vec<u64> = files.keys().copied().filter(|n| n % 2 == 0).collect();
        for n in &gone {
            files.remove(n);
            unlink(&mut fs, *n);
        }
        sync(&mut fs);
        let mut failed = 0;
        for n in 10_000..10_000 + gone.len() as u64 * 3 / 4 {
            match write(&mut fs, n, len) {
                Ok(()) => drop(files.insert(n, len)),
                Err(_) => failed += 1,
            }
        }
        assert_eq!(failed, 0, "{what}: of {}", gone.len() * 3 / 4);
        sync(&mut fs);
        assert_files(&mut fs, &files);
        let device = fs.device();
        let capacity = stored(device) + device.faults.free_blocks.unwrap_or(0);
        for survival in [Survival::None, Survival::Seed(1), Survival::Seed(2)] {
            assert_sound(device.power_loss(survival), capacity, &files);
        }
    }
}

/// A volume that takes no changes discards nothing, and refuses to trim.
#[test]
fn looking_discards_nothing() {
    let options = MountOptions { read_only: true, ..options() };
    let device = made();
    let before = stored(&device);
    let mut fs = Fs::mount(device, &options).unwrap();
    assert_eq!(fs.trim(), Err(FsError::Refused(Errno::EROFS)));
    let device = fs.unmount().unwrap();
    assert_eq!((stored(&device), device.block_count()), (before, BLOCKS));
}

/// Freed space goes back between the steps of checkpoints too, whole volumes of any length, and
/// then there is nothing left to do.
#[test]
fn steps_give_back_what_is_freed_and_end() {
    for blocks in BLOCKS..BLOCKS + 17 {
        let mut device = FaultDevice::new(blocks);
        format_seeded(&mut device, 3);
        let mut fs = Fs::mount(device, &options()).unwrap();
        let mut files = 0;
        while write(&mut fs, files, 3_000_000).is_ok() {
            files += 1;
        }
        let before = fs.device().process_crash();
        (0..files).for_each(|n| unlink(&mut fs, n));
        let mut flushed = None;
        let mut steps = 0;
        loop {
            match fs.checkpoint_step(flushed.take()).unwrap() {
                CheckpointStep::Idle if !fs.checkpoint_due() => break,
                CheckpointStep::Idle | CheckpointStep::More => {}
                CheckpointStep::Sync => sync(&mut fs),
                CheckpointStep::Wait(flush) => flushed = Some(flush.flush()),
            }
            steps += 1;
            assert!(steps < 1000, "{blocks} blocks: there is always more to do");
        }
        let after = fs.device().process_crash();
        let count = |image: &Image| (0..blocks).filter(|&b| image.is_stored(b)).count();
        let freed = count(&before) - count(&after);
        assert!(freed > 512 * files as usize, "{blocks} blocks: {freed} of {files} files");
    }
}
