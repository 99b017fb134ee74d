use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::device::SECTOR_SIZE;

fn bytes_at(image: &Image, at: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    image.read(at, &mut buf);
    buf
}

#[test]
fn copies_of_an_image_share_until_changed() {
    let mut a = Image::new(200);
    a.write(4090, b"across blocks");
    let b = a.clone();
    a.write(4090, b"ACROSS");
    assert_eq!(bytes_at(&b, 4090, 13), b"across blocks");
    assert_eq!(bytes_at(&a, 4090, 13), b"ACROSS blocks");
    assert!(a.is_stored(1) && !a.is_stored(2));
    a.discard(1);
    assert!(!a.is_stored(1) && b.is_stored(1));
    assert_eq!(Image::from_bytes(&b.to_bytes()).to_bytes(), b.to_bytes());
    a.resize(65);
    a.resize(200);
    assert_eq!(a.to_bytes().len(), 200 * BLOCK_SIZE);
}

#[test]
fn fingerprints_tell_contents_apart_and_no_ways_to_them() {
    let mut image = Image::new(100);
    let mut seen = BTreeSet::from([image.fingerprint()]);
    // One byte in every place of some sectors, and the same sector elsewhere.
    for at in (0..1024).chain((70 * 4096..72 * 4096).step_by(512)) {
        let mut other = image.clone();
        other.write(at, &[1]);
        assert!(seen.insert(other.fingerprint()), "{at}");
        other.write(at, &[0]);
        assert_eq!(other.fingerprint(), image.fingerprint(), "zeros are what was never written");
    }
    image.write(4090, b"across blocks");
    let whole = image.fingerprint();
    assert_eq!(Image::from_bytes(&image.to_bytes()).fingerprint(), whole);
    let mut parts = Image::new(100);
    parts.write(4100, &b"across blocks"[10..]);
    parts.write(4000, &[7; 100]);
    parts.write(4000, &[0; 90]);
    parts.write(4090, &b"across blocks"[..10]);
    assert_eq!(parts.fingerprint(), whole);
    parts.discard(1);
    assert!(parts.fingerprint() != whole);
    parts.resize(1);
    image.resize(1);
    assert_eq!(parts.fingerprint(), image.fingerprint());
}

#[test]
fn discarded_blocks_hold_what_is_planned() {
    for leaves in [Discarded::Zeros, Discarded::Kept, Discarded::Noise] {
        let mut device = FaultDevice::new(4);
        device.faults.discarded = leaves;
        device.store(0, &[1; 2 * BLOCK_SIZE]).unwrap();
        device.flush().unwrap();
        device.start_recording();
        device.discard(BlockIndex(0), 1).unwrap();
        let now = device.process_crash();
        let is = bytes_at(&now, 0, BLOCK_SIZE);
        match leaves {
            Discarded::Zeros => assert_eq!(is, [0; BLOCK_SIZE]),
            Discarded::Kept => assert_eq!(is, [1; BLOCK_SIZE]),
            Discarded::Noise => assert!(is != [0; BLOCK_SIZE] && is != [1; BLOCK_SIZE]),
        }
        assert_eq!(bytes_at(&now, 4096, BLOCK_SIZE), [1; BLOCK_SIZE], "the next is as it was");
        // A discard is no more durable than a write, and a replay comes to the same.
        let lost = device.power_loss(Survival::None);
        assert_eq!(bytes_at(&lost, 0, BLOCK_SIZE), [1; BLOCK_SIZE]);
        let recording = device.take_recording().unwrap();
        let mut replay = recording.replay();
        while replay.step() {}
        assert_eq!(replay.media().current().fingerprint(), now.fingerprint());
        let half = recording.replay().media_within(512..4096).current().to_bytes();
        assert_eq!(half[..512], is[..512]);
        assert_eq!(half[512..4096], [1; 4096 - 512]);
    }
}

#[test]
fn power_loss_leaves_each_sector_one_of_its_versions() {
    let mut device = FaultDevice::new(4);
    device.store(0, &[1; 1024]).unwrap();
    device.flush().unwrap();
    device.store(100, &[2; 10]).unwrap();
    device.store(100, &[3; 500]).unwrap();
    let pending: Vec<_> = device.media().pending().collect();
    assert_eq!(pending, [(0, 3), (1, 2)]);

    let none = device.power_loss(Survival::None);
    assert_eq!(bytes_at(&none, 0, 1024), [1; 1024]);
    let all = device.power_loss(Survival::All);
    assert_eq!(all.to_bytes(), device.process_crash().to_bytes());
    let mixed = device.media().power_loss_with(|_, _| 1);
    assert_eq!(bytes_at(&mixed, 100, 12), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1]);
    assert_eq!(bytes_at(&mixed, SECTOR_SIZE as u64, 88), [3; 88]);

    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let image = device.power_loss(Survival::Seed(seed));
        assert_eq!(image.to_bytes(), device.power_loss(Survival::Seed(seed)).to_bytes());
        seen.insert(bytes_at(&image, 0, 1024));
    }
    assert_eq!(seen.len(), 6, "every combination of 3 and 2 versions comes up");
}

#[test]
fn flush_range_leaves_the_rest_volatile() {
    let mut device = FaultDevice::new(4);
    device.store(0, &[1; 4 * BLOCK_SIZE]).unwrap();
    device.flush_range(BlockIndex(1), 2).unwrap();
    let image = device.power_loss(Survival::None);
    let first_bytes: Vec<_> =
        (0..4).map(|i| bytes_at(&image, i * BLOCK_SIZE as u64, 1)[0]).collect();
    assert_eq!(first_bytes, [0, 1, 1, 0]);
}

#[test]
fn a_failed_flush_gives_its_writes_up_until_they_are_made_again() {
    let mut device = FaultDevice::new(2);
    device.store(0, &[1; 4]).unwrap();
    device.store(600, &[1; 4]).unwrap();
    device.faults.flush_errors = 1;
    assert_eq!(device.flush(), Err(BlockError::Io));
    device.store(0, &[1; 4]).unwrap();
    device.flush().unwrap();
    let none = device.power_loss(Survival::None);
    assert_eq!((bytes_at(&none, 0, 1)[0], bytes_at(&none, 600, 1)[0]), (1, 0));
    assert_eq!(bytes_at(&device.power_loss(Survival::All), 600, 1)[0], 1);
}

#[test]
fn a_flusher_makes_durable_what_was_written_before_it_was_taken() {
    let mut device = FaultDevice::new(4);
    device.start_recording();
    device.store(0, &[1; 4]).unwrap();
    device.store(BLOCK_SIZE as u64, &[1; 4]).unwrap();
    let flusher = device.flusher(BlockIndex(0), 1).unwrap();
    // The same sector, and another one, later; both are there, and may be lost.
    device.store(0, &[2; 4]).unwrap();
    device.store(600, &[2; 4]).unwrap();
    let durable = |device: &FaultDevice| {
        let image = device.power_loss(Survival::None);
        [0, 600, BLOCK_SIZE as u64].map(|at| bytes_at(&image, at, 1)[0])
    };
    assert_eq!(durable(&device), [0, 0, 0]);
    flusher.flush().unwrap();
    device.note_flushers();
    assert_eq!(durable(&device), [1, 0, 0]);
    let pending: Vec<_> = device.media().pending().collect();
    assert_eq!(pending, [(0, 2), (1, 2), (8, 2)]);
    assert_eq!(bytes_at(&device.power_loss(Survival::All), 0, 1)[0], 2);
    device.flush().unwrap();
    assert_eq!(durable(&device), [2, 2, 1]);

    // Played again it is the same.
    let recording = device.take_recording().unwrap();
    let mut replay = recording.replay();
    replay.advance_to(5);
    let image = replay.media().power_loss(Survival::None);
    assert_eq!((bytes_at(&image, 0, 1)[0], bytes_at(&image, 600, 1)[0]), (1, 0));
}

#[test]
fn a_flusher_that_fails_or_is_dropped_makes_nothing_durable() {
    let mut device = FaultDevice::new(2);
    device.store(0, &[1; 4]).unwrap();
    device.faults.flusher_errors = 1;
    let fails = device.flusher(BlockIndex(0), 2).unwrap();
    device.store(600, &[1; 4]).unwrap();
    assert_eq!(fails.flush(), Err(BlockError::Io));
    drop(device.flusher(BlockIndex(0), 2));
    device.note_flushers();
    assert_eq!(device.events(), 3, "two stores and the flush that failed");
    // The store that the flusher was for is given up, the later one is not.
    device.flush().unwrap();
    let none = device.power_loss(Survival::None);
    assert_eq!((bytes_at(&none, 0, 1)[0], bytes_at(&none, 600, 1)[0]), (0, 1));

    let late = device.flusher(BlockIndex(0), 2).unwrap();
    device.faults.stop_after = Some(device.events() + 1);
    device.store(0, &[3; 4]).unwrap();
    assert_eq!(late.flush(), Err(BlockError::Io), "the machine had stopped");
    device.note_flushers();
    assert_eq!(device.events(), 5);
    assert!(device.flusher(BlockIndex(1), 2).is_none(), "not on the device");
}

#[test]
fn a_recording_can_be_cut_anywhere() {
    let mut device = FaultDevice::new(4);
    device.store(8192, &[9; 8]).unwrap();
    device.start_recording();
    device.store(0, b"abcdef").unwrap();
    device.flush().unwrap();
    device.store_zeros(2, 2).unwrap();
    device.discard(BlockIndex(2), 1).unwrap();
    device.write(BlockIndex(3), &[7; BLOCK_SIZE]).unwrap();
    let recording = device.take_recording().unwrap();
    assert_eq!(recording.events().len(), 5);

    let mut replay = recording.replay();
    assert_eq!(bytes_at(replay.media().current(), 8192, 8), [9; 8]);
    let cut = replay.media_within(3..6);
    assert_eq!(bytes_at(cut.current(), 0, 6), b"abc\0\0\0");
    let gap = replay.media_within(1..4);
    assert_eq!(bytes_at(gap.current(), 0, 6), b"a\0\0\0ef");
    replay.advance_to(2);
    assert_eq!(bytes_at(&replay.media().power_loss(Survival::None), 0, 6), b"abcdef");
    while replay.step() {}
    assert_eq!(replay.position(), 5);
    assert_eq!(replay.media().current().to_bytes(), device.process_crash().to_bytes());
    assert!(!replay.media().current().is_stored(2));
}

#[test]
fn planned_faults_happen() {
    let mut device = FaultDevice::new(8);
    device.faults.free_blocks = Some(2);
    assert_eq!(device.store(100, &[5; 3 * BLOCK_SIZE]), Err(BlockError::NoSpace));
    assert_eq!(bytes_at(&device.process_crash(), 8191, 2), [5, 0]);
    device.store(0, &[6; 2 * BLOCK_SIZE]).unwrap();
    device.discard(BlockIndex(0), 1).unwrap();
    device.store(5 * BLOCK_SIZE as u64, &[1]).unwrap();
    assert_eq!(device.store_zeros(0, 1), Err(BlockError::NoSpace));
    device.faults.free_blocks = None;

    device.faults.read_errors.insert(1);
    let mut buf = [0; BLOCK_SIZE];
    assert_eq!(device.load(4000, &mut buf[..200]), Err(BlockError::Io));
    device.load(4000, &mut buf[..96]).unwrap();
    assert_eq!(device.read(BlockIndex(1), &mut buf), Err(BlockError::Io));

    device.faults.write_errors.insert(3);
    assert_eq!(device.discard(BlockIndex(1), 4), Err(BlockError::Io));
    assert!(!device.process_crash().is_stored(1));
    assert_eq!(device.store(3 * BLOCK_SIZE as u64 - 1, &[8; 2]), Err(BlockError::Io));
    assert_eq!(bytes_at(&device.process_crash(), 3 * BLOCK_SIZE as u64 - 1, 2), [8, 0]);

    let events = device.events();
    device.faults.stop_after = Some(events + 1);
    device.store(0, &[1]).unwrap();
    assert!(device.is_stopped());
    assert_eq!(device.store(0, &[2]), Err(BlockError::Io));
    assert_eq!(device.load(0, &mut buf[..1]), Err(BlockError::Io));
    assert_eq!(device.flush(), Err(BlockError::Io));
    assert_eq!(bytes_at(&device.process_crash(), 0, 1), [1]);
    assert_eq!(device.events(), events + 1);
}
