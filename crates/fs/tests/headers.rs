//! The blocks that are written over in place, superblocks and journal headers: whatever a loss of
//! power does to those that are being written, one of each kind is whole, and is the newest or the
//! one before. Here the medium is worse than it may be: all sectors that were not flushed are torn.
mod common;

use core::slice::from_ref;

use atoll_block::fault::{Event, Image, Media, Recording, Survival};
use atoll_block::{BLOCK_SIZE, FaultDevice};
use atoll_fs::layout::Superblock;
use atoll_fs::{
    CheckOptions, DumpOptions, Element, FormatOptions, Fs, check, format, grow, read_superblock,
    visit,
};
use common::*;

const BLOCKS: u64 = 900;
const SECTORS: u64 = (BLOCK_SIZE / 512) as u64;

/// The superblock that counts, and the generation of its newest journal header.
fn newest(image: &Image) -> Option<(Superblock, Option<u64>)> {
    let mut device = FaultDevice::from_image(image.clone());
    let sb = read_superblock(&mut device).ok()?;
    let mut generation = None;
    visit(&mut device, &DumpOptions::default(), &mut |element| {
        if let Element::JournalHeader { header: Some(header), .. } = element {
            generation = generation.max(Some(header.generation));
        }
        true
    })
    .unwrap();
    Some((sb, generation))
}

/// The groups of blocks that are written together, in pairs that are not.
fn groups(sb: &Superblock) -> [Vec<u64>; 4] {
    let slot = |generation| sb.header_slot(generation).map(|block| block.0).to_vec();
    [vec![0], vec![sb.copy_index().0], slot(0), slot(1)]
}

#[derive(Debug, Default)]
struct Seen {
    torn: u32,
    before: u32,
    latest: u32,
    superblocks: u32,
}

impl Seen {
    /// Goes through a recorded life, and loses power after every event.
    fn walk(&mut self, recording: &Recording, what: &str) {
        let mut replay = recording.replay();
        // Those of a larger volume are being written while the smaller one counts.
        let mut special: Vec<Vec<u64>> = Vec::new();
        let (mut seen, mut stored) = (Vec::new(), Vec::new());
        loop {
            let mut current = FaultDevice::from_image(replay.media().current().clone());
            let sb = read_superblock(&mut current).expect("a volume");
            for pair in groups(&sb).chunks(2) {
                if !special.contains(&pair[1]) {
                    special.extend_from_slice(pair);
                }
            }
            let what = format!("{what}, after {} events", replay.position());
            let pending = pending(replay.media(), &special);
            if pending != seen && !pending.is_empty() {
                // One of a pair is written when the other is durable, in both its places.
                for pair in special.chunks(2) {
                    let open = |group| !self::pending(replay.media(), from_ref(group)).is_empty();
                    assert!(!pair.iter().all(open), "{what}: both of {pair:?} are being written");
                }
                self.lose_power(replay.media(), &pending, &what);
            }
            seen = pending;
            match replay.next_event() {
                Some(Event::Store { at, .. })
                    if special.iter().flatten().any(|&block| block == at / BLOCK_SIZE as u64) =>
                {
                    stored.push(at / BLOCK_SIZE as u64);
                }
                // Nothing else comes before it is durable, in both its places.
                Some(Event::Flush { blocks, failed: false, .. }) => {
                    let left: Vec<_> = stored.drain(..).filter(|b| !blocks.contains(b)).collect();
                    assert!(left.is_empty(), "{what}: {left:?} after {blocks:?}");
                }
                _ => assert!(stored.is_empty(), "{what}: {stored:?} is not durable"),
            }
            if !replay.step() {
                return;
            }
        }
    }

    /// Tears the sectors `pending`, and loses them in other ways.
    fn lose_power(&mut self, media: &Media, pending: &[(u64, usize)], what: &str) {
        let (sb, last) = newest(media.current()).unwrap();
        let last = last.expect("a header");
        let mut torn = media.power_loss(Survival::None);
        for (sector, _) in pending {
            torn.write(sector * 512, &[0x6b; 512]);
        }
        self.torn += 1;
        let one = |lost: u64| {
            media.power_loss_with(|sector, contents| if sector == lost { 0 } else { contents - 1 })
        };
        let others = pending.iter().map(|&(sector, _)| one(sector));
        let lost = [torn, media.power_loss(Survival::None), media.power_loss(Survival::All)];
        for image in lost.into_iter().chain(others) {
            let (found, generation) =
                newest(&image).unwrap_or_else(|| panic!("{what}: no superblock is whole"));
            let generation = generation.unwrap_or_else(|| panic!("{what}: no header is whole"));
            if found == sb {
                assert!(generation <= last && generation + 1 >= last, "{what}: {generation}");
                *(if generation == last { &mut self.latest } else { &mut self.before }) += 1;
            } else {
                assert_eq!(found.generation + 1, sb.generation, "{what}");
                self.superblocks += 1;
            }
        }
    }
}

/// The sectors of these blocks whose content is open, each with the number of its contents.
fn pending(media: &Media, groups: &[Vec<u64>]) -> Vec<(u64, usize)> {
    let is_in = |sector: u64| groups.iter().flatten().any(|&block| block == sector / SECTORS);
    media.pending().filter(|&(sector, _)| is_in(sector)).collect()
}

/// Uses the volume, with syncs, checkpoints and an end that may come at any moment.
fn life(mut device: FaultDevice, seed: u64, unmount: bool) -> (FaultDevice, Recording) {
    device.start_recording();
    let mut fs = Fs::mount(device, &mount_options()).unwrap();
    work(&mut fs, &mut Rng::new(seed), 150);
    let mut device = if unmount { fs.unmount().unwrap() } else { fs.device().clone() };
    let recording = device.take_recording().unwrap();
    (device, recording)
}

#[test]
fn one_superblock_and_one_header_are_always_whole() {
    let mut seen = Seen::default();
    for seed in 1..4 {
        let mut device = FaultDevice::new(BLOCKS);
        let options = FormatOptions { journal_blocks: Some(128), ..FormatOptions::default() };
        format(&mut device, &options).unwrap();
        let (device, first) = life(device, seed, true);
        seen.walk(&first, &format!("seed {seed}, first life"));
        let (device, second) = life(device, seed + 10, false);
        seen.walk(&second, &format!("seed {seed}, second life"));
        // The process ended, and its memory is there.
        let media = device.media().clone();
        let (device, third) = life(FaultDevice::from_media(media), seed + 20, seed % 2 == 0);
        seen.walk(&third, &format!("seed {seed}, third life"));

        // A repair: of the superblock, of a map and of a header.
        let image = device.process_crash();
        let sb = read_superblock(&mut FaultDevice::from_image(image.clone())).unwrap();
        for block in [0, sb.copy_index().0, sb.map_block(0).0, sb.header_slot(0)[0].0] {
            let what = format!("seed {seed}, repair of {block}");
            let mut image = image.clone();
            image.write(block * BLOCK_SIZE as u64, &[0x6b; BLOCK_SIZE]);
            if block == sb.map_block(0).0 {
                image.write((block + 1) * BLOCK_SIZE as u64, &[0x6b; BLOCK_SIZE]);
            }
            let mut device = FaultDevice::from_image(image);
            device.start_recording();
            let repair =
                CheckOptions { repair: true, incarnation: BOOT, ..CheckOptions::default() };
            check(&mut device, &repair).unwrap();
            Fs::mount(&mut device, &mount_options()).unwrap().unmount().unwrap();
            seen.walk(&device.take_recording().unwrap(), &what);
        }

        // It grows; and is used on, wherever the process that has it grow ends.
        let mut image = device.process_crash();
        image.resize(BLOCKS + 700);
        let mut device = FaultDevice::from_image(image);
        device.start_recording();
        grow(&mut device, &mount_options()).unwrap();
        let growing = device.take_recording().unwrap();
        seen.walk(&growing, &format!("seed {seed}, growing"));
        let mut replay = growing.replay();
        while replay.step() {
            let what = format!("seed {seed}, grown up to {}", replay.position());
            let mut device = FaultDevice::from_media(replay.media().clone());
            device.start_recording();
            let mut fs = Fs::mount(&mut device, &mount_options()).unwrap();
            work(&mut fs, &mut Rng::new(seed), 2);
            fs.unmount().unwrap();
            seen.walk(&device.take_recording().unwrap(), &what);
        }
    }
    println!("{seen:?}");
    let Seen { torn, before, latest, superblocks } = seen;
    assert!(torn > 100 && before > 100 && latest > 100 && superblocks > 5);
}
