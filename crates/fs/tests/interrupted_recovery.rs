//! Recovery that is itself cut off, at every event of it, and goes on with more memory or with
//! less.
//!
//! The results are compared with an undisturbed recovery that had memory for everything, and with a
//! mount that must not write.
mod common;

use atoll_block::FaultDevice;
use atoll_block::fault::{Image, Survival};
use atoll_fs::{CheckOptions, Fs, MountOptions, check};
use atoll_vfs::model::{Snapshot, snapshot};
use atoll_vfs::{FileSystem, Ino, Name};
use common::*;

const NEXT: [u8; 16] = [9; 16];
const LITTLE: usize = 1;
const MUCH: usize = 64 << 20;

fn options(incarnation: [u8; 16], cache_bytes: usize) -> MountOptions {
    MountOptions { incarnation, cache_bytes, ..MountOptions::default() }
}

fn tree(fs: &mut Fs<FaultDevice>) -> Snapshot {
    snapshot(fs).unwrap().without_times()
}

fn assert_clean(image: &Image, incarnation: [u8; 16]) {
    let options = CheckOptions { incarnation, ..CheckOptions::default() };
    let report = check(&mut FaultDevice::from_image(image.clone()), &options).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

fn file(fs: &mut Fs<FaultDevice>, named: &str, data: &[u8]) {
    let name = Name::new(named.as_bytes()).unwrap();
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name, 0o644, RW).unwrap();
    if !data.is_empty() {
        fs.write(&CX, attr.ino, handle, 0, data).unwrap();
    }
    fs.release(&CX, attr.ino, handle).unwrap();
}

fn remove(fs: &mut Fs<FaultDevice>, named: &str) {
    fs.unlink(&CX, Ino::ROOT, Name::new(named.as_bytes()).unwrap()).unwrap();
}

/// A volume with a journal in which blocks go from data to free to node and from node to node,
/// within a commit window and from one to the next, and with data that is in the journal alone.
fn volume(seed: u64) -> Fs<FaultDevice> {
    let mut rng = Rng::new(seed);
    // Large enough for the journal to hold all of it.
    let mut device = FaultDevice::new(40_000);
    format_seeded(&mut device, seed);
    let mut fs = Fs::mount(device, &options(BOOT, MUCH)).unwrap();
    let long = "x".repeat(180);
    let mut count = 0;
    let mut kept = Vec::new();
    for window in 0..4 {
        for at in 0..3 {
            file(&mut fs, &format!("gone-{at}"), format!("of window {window}").as_bytes());
        }
        if window % 2 == 1 {
            // These were synced as data.
            fs.syncfs(&CX).unwrap();
        }
        for at in 0..3 {
            remove(&mut fs, &format!("gone-{at}"));
        }
        if window == 2 {
            fs.syncfs(&CX).unwrap();
        }
        for _ in 0..60 + rng.below(300) {
            count += 1;
            file(&mut fs, &format!("{count}-{long}"), b"");
            kept.push(count);
            if rng.below(3) == 0 {
                let at = rng.below(kept.len() as u64) as usize;
                remove(&mut fs, &format!("{}-{long}", kept.swap_remove(at)));
            }
        }
        file(&mut fs, &format!("kept-{window}"), &vec![b'a' + window; 5000]);
        fs.syncfs(&CX).unwrap();
    }
    if seed.is_multiple_of(2) {
        // A sync in halves, whose mark covers less than all before it.
        file(&mut fs, "much", &[b'm'; 200_000]);
        let mut sync = fs.begin_sync(&CX, false).unwrap();
        file(&mut fs, "between", b"");
        while let Some(half) = sync {
            let (id, flushed) = half.flush();
            fs.device_mut().note_flushers();
            sync = fs.end_sync(id, flushed).unwrap();
        }
    }
    // Of this nothing counts after power loss.
    file(&mut fs, "never synced", b"data");
    remove(&mut fs, "kept-1");
    fs
}

/// Recovers with `cache_bytes` of memory and returns the content.
fn recovered(image: &Image, incarnation: [u8; 16], cache_bytes: usize) -> Snapshot {
    let device = FaultDevice::from_image(image.clone());
    let mut fs = Fs::mount(device, &options(incarnation, cache_bytes)).unwrap();
    let found = tree(&mut fs);
    let device = fs.unmount().unwrap();
    assert_clean(&device.process_crash(), incarnation);
    found
}

fn shown_read_only(image: &Image, incarnation: [u8; 16]) -> Snapshot {
    let device = FaultDevice::from_image(image.clone());
    let read_only = MountOptions { read_only: true, ..options(incarnation, LITTLE) };
    let mut fs = Fs::mount(device, &read_only).unwrap();
    let found = tree(&mut fs);
    let device = fs.unmount().unwrap();
    assert_eq!(device.events(), 0, "a mount that must not write");
    found
}

#[test]
fn memory_makes_no_difference() {
    for seed in 0..3 {
        let fs = volume(seed);
        let images = [
            (fs.device().power_loss(Survival::None), NEXT),
            (fs.device().power_loss(Survival::All), NEXT),
            (fs.device().power_loss(Survival::Seed(seed)), NEXT),
            (fs.device().process_crash(), BOOT),
        ];
        for (image, incarnation) in &images {
            assert_clean(image, *incarnation);
            let expected = recovered(image, *incarnation, MUCH);
            assert!(expected.nodes.len() > 100);
            assert_eq!(recovered(image, *incarnation, LITTLE), expected, "seed {seed}");
            assert_eq!(shown_read_only(image, *incarnation), expected, "seed {seed}");
        }
    }
}

/// Power is lost in recovery, then in the recovery from that, and once more.
#[test]
fn power_lost_in_recovery() {
    const CACHES: [usize; 2] = [LITTLE, MUCH];
    let mut cut = 0;
    for seed in 0..3 {
        let fs = volume(seed);
        for (first, incarnation) in
            [(fs.device().power_loss(Survival::None), NEXT), (fs.device().process_crash(), BOOT)]
        {
            // Until recovery has committed the unsynced operations, power loss takes them back.
            let expected = [recovered(&first, incarnation, MUCH), recovered(&first, NEXT, MUCH)];
            let mut rng = Rng::new(seed);
            let mut images = vec![(first, incarnation)];
            for depth in 0..3 {
                let (image, incarnation) =
                    images.swap_remove(rng.below(images.len() as u64) as usize);
                images.clear();
                let mut device = FaultDevice::from_image(image.clone());
                device.start_recording();
                let cache_bytes = CACHES[rng.below(2) as usize];
                let mut fs = Fs::mount(device, &options(incarnation, cache_bytes)).unwrap();
                let recording = fs.device_mut().take_recording().unwrap();
                let mut replay = recording.replay();
                let every = recording.events().len().div_ceil(20);
                loop {
                    let survival = match rng.below(3) {
                        0 => Survival::None,
                        1 => Survival::All,
                        _ => Survival::Seed(rng.below(1 << 40)),
                    };
                    if rng.below(every as u64) == 0 {
                        images.push(match rng.below(3) {
                            0 => (replay.media().current().clone(), incarnation),
                            _ => (replay.media().power_loss(survival), [10 + depth; 16]),
                        });
                    }
                    if !replay.step() {
                        break;
                    }
                }
                for (image, incarnation) in &images {
                    cut += 1;
                    let cache_bytes = CACHES[rng.below(2) as usize];
                    let found = recovered(image, *incarnation, cache_bytes);
                    assert!(
                        expected.contains(&found),
                        "seed {seed}, depth {depth}, {cache_bytes} bytes"
                    );
                }
            }
        }
    }
    assert!(cut > 100, "{cut} cuts");
}
