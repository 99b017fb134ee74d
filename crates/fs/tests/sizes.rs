//! Volumes of every size, from 1 MiB to 16 TiB: the cost of making one, that all of it can be used,
//! that growing step by step gives the same volume, and that no allocation reads more than a few
//! blocks.
mod common;
#[path = "common/sparse.rs"]
mod sparse;

use atoll_block::BlockDevice;
use atoll_fs::layout::{Superblock, map, summary};
use atoll_fs::{
    CheckOptions, FormatOptions, Fs, MountOptions, check, format, grow, read_superblock,
};
use atoll_vfs::{Context, FallocateMode, FileSystem, Ino, Name};
use common::*;
use sparse::Sparse;

const MIB: u64 = 256;
const GIB: u64 = 1024 * MIB;
const TIB: u64 = 1024 * GIB;
const GROUP: u64 = map::GROUP_BLOCKS;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn made(blocks: u64) -> Sparse {
    let mut device = Sparse::new(blocks);
    format(&mut device, &FormatOptions { uuid: [9; 16], now: CX.now, ..Default::default() })
        .unwrap();
    device
}

/// Every size of the first MiB and around each place where the layout changes, and doubled from
/// there.
fn sizes() -> Vec<u64> {
    let mut sizes: Vec<u64> = (MIB..MIB + 40).collect();
    for groups in 1..4 {
        let front = 5 + made_front(groups * GROUP);
        let edge = front + groups * GROUP + 1;
        sizes.extend(edge - 2..edge + 12);
    }
    sizes.extend((0..).map(|n| MIB << n).take_while(|&size| size <= 16 * TIB));
    sizes.extend([15 * TIB, 16 * TIB - 1, 3 * MIB + 17, 300 * GIB + 12345]);
    sizes
}

fn made_front(blocks: u64) -> u64 {
    let mut device = made(blocks);
    read_superblock(&mut device).unwrap().ring_blocks
}

fn assert_sound(device: &mut Sparse, what: &str) {
    let report = check(device, &CheckOptions { incarnation: BOOT, ..Default::default() });
    let report = report.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(report.is_clean(), "{what}: {report}");
}

#[test]
fn volumes_of_every_size_are_made_and_used() {
    for blocks in sizes() {
        let what = format!("{blocks} blocks");
        let device = made(blocks);
        assert!(device.stored() < 64 << 20, "{what}: {} bytes", device.stored());
        let mut fs = Fs::mount(device, &mount_options()).unwrap();
        let free = fs.statfs(&CX).unwrap();
        assert!(free.blocks_free < free.blocks && free.blocks < blocks, "{what}");
        // Volumes below a GiB are filled by one file, to the last block, and emptied.
        let (attr, handle) = fs.create(&CX, Ino::ROOT, name("all"), 0o600, RW).unwrap();
        let whole = free.blocks_free.min(GIB);
        let mut length = whole * 4096;
        while length > 0 {
            let mode = FallocateMode::empty();
            match fs.fallocate(&CX, attr.ino, handle, 0, length, mode) {
                Ok(()) => break,
                Err(_) => length -= 4096,
            }
        }
        assert!(length / 4096 + 24 >= whole, "{what}: {} of {whole}", length / 4096);
        fs.release(&CX, attr.ino, handle).unwrap();
        let mut device = fs.unmount().unwrap();
        assert_sound(&mut device, &what);
        let mut fs = Fs::mount(device, &mount_options()).unwrap();
        fs.unlink(&CX, Ino::ROOT, name("all")).unwrap();
        fs.syncfs(&CX).unwrap();
        assert_eq!(fs.statfs(&CX).unwrap().blocks_free, free.blocks_free, "{what}");
        let mut device = fs.unmount().unwrap();
        assert_sound(&mut device, &what);
    }
}

#[test]
fn journals_grow_with_their_volumes() {
    // By twice and by three quarters, and in one step from the first to the last.
    let doubled: Vec<u64> = (0..25).map(|n| MIB << n).collect();
    let slow: Vec<u64> = std::iter::successors(Some(MIB), |&n| Some(n + n * 3 / 4 + 1))
        .take_while(|&n| n < 4 * GIB)
        .collect();
    for steps in [doubled, slow, vec![MIB, 16 * TIB], vec![32 * MIB, GIB, 16 * TIB]] {
        let mut device = made(steps[0]);
        let mut uses = 0;
        for &blocks in &steps {
            let what = format!("grown to {blocks} of {steps:?}");
            device.resize(blocks);
            grow(&mut device, &mount_options()).unwrap_or_else(|e| panic!("{what}: {e}"));
            let sb = read_superblock(&mut device).unwrap();
            assert_eq!(sb.block_count, blocks);
            let fresh = read_superblock(&mut made(blocks)).unwrap();
            // A ring that moves is within a group.
            assert!(sb.ring_blocks * 2 >= fresh.ring_blocks.min(GROUP), "{what}: {sb:?}");
            let mut fs = Fs::mount(device, &mount_options()).unwrap();
            work(&mut fs, &mut Rng::new(blocks), 25);
            uses += 1;
            fs.mkdir(&CX, Ino::ROOT, name(&format!("kept{uses}")), 0o755).unwrap();
            for n in 1..=uses {
                fs.lookup(&CX, Ino::ROOT, name(&format!("kept{n}"))).unwrap();
            }
            device = fs.unmount().unwrap();
            assert_sound(&mut device, &what);
            // The blocks that a new volume of this size has for files, less the journals that it
            // grew out of.
            let most = |sb: &Superblock| sb.block_count - sb.usable_blocks();
            assert!(most(&sb) <= most(&fresh) + 2 * sb.ring_blocks, "{what}");
        }
    }
}

#[test]
fn a_volume_grows_after_damage_to_one_copy() {
    for lost in 0..8 {
        let mut device = made(20 * MIB);
        let sb = read_superblock(&mut device).unwrap();
        let headers = sb.journal_headers().map(|index| index.0);
        let map = sb.map_block(0).0;
        let blocks =
            [0, sb.block_count - 1, headers[0], headers[1], headers[2], headers[3], map, map + 1];
        device.set_block(blocks[lost], &[0xa5; 4096]);
        device.resize(200 * MIB);
        grow(&mut device, &mount_options()).unwrap();
        assert_eq!(read_superblock(&mut device).unwrap().block_count, 200 * MIB);
        assert_sound(&mut device, &format!("block {}", blocks[lost]));
    }
}

/// A volume of 16 TiB in which only the last groups have room, made by hand: all maps but those are
/// ones, and the summaries say so.
fn nearly_full(blocks: u64) -> Sparse {
    let mut device = made(blocks);
    let sb = read_superblock(&mut device).unwrap();
    let last = sb.group_count() - 1;
    // The state of a volume whose groups all have maps.
    for index in sb.journal_headers() {
        let mut b = device.block(index.0);
        let state = atoll_fs::layout::journal_header::STATE;
        put(&mut b, state + atoll_fs::layout::state::GROUPS, sb.group_count());
        put(&mut b, state + atoll_fs::layout::state::FREE_BLOCKS, GROUP);
        seal(&mut b, index.0);
        device.set_block(index.0, &b);
    }
    for first in (0..sb.group_count()).step_by(summary::GROUPS as usize) {
        let mut b = [0; 4096];
        let block = sb.summary_block(first).0;
        put(&mut b, 8, block);
        b[16..20].copy_from_slice(b"ASUM");
        let end = (first + summary::GROUPS).min(last);
        for group in first..end {
            let at = (group - first) as usize;
            b[summary::BITS + at / 8] |= 1 << (at % 8);
        }
        set_pair(&mut device, block, &b);
    }
    // Only the blocks that are read have to be there.
    let mut b = [0; 4096];
    put(&mut b, 8, sb.map_block(last).0);
    b[16..20].copy_from_slice(b"AMAP");
    b[map::BITS] = 0xf;
    let len = sb.group_len(last);
    for at in len..GROUP as usize {
        b[map::BITS + at / 8] |= 1 << (at % 8);
    }
    set_pair(&mut device, sb.map_block(last).0, &b);
    device
}

fn put(b: &mut [u8; 4096], at: usize, value: u64) {
    b[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn seal(b: &mut [u8; 4096], block: u64) {
    let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&b[8..], block);
    put(b, 0, sum);
}

fn set_pair(device: &mut Sparse, block: u64, content: &[u8; 4096]) {
    let mut b = *content;
    for index in [block, block + 1] {
        put(&mut b, 8, index);
        seal(&mut b, index);
        device.set_block(index, &b);
    }
}

#[test]
fn the_first_allocation_in_a_nearly_full_volume_reads_a_few_blocks() {
    let device = nearly_full(16 * TIB);
    let touched = device.touched.clone();
    touched.set(0);
    let mut fs = Fs::mount(device, &MountOptions::default()).unwrap();
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name("new"), 0o600, RW).unwrap();
    fs.write(&CX, attr.ino, handle, 0, &[1; 4096]).unwrap();
    assert!(touched.get() < 300, "{} blocks", touched.get());
    let sb = fs.info().superblock;
    assert!(sb.group_count() > 100_000);
}

/// After a crash a mount reads the journal's records and some of the ring after them, not all of a
/// large ring; records after a damaged one are found all the same.
#[test]
fn a_mount_after_a_crash_reads_little_of_a_large_journal() {
    let mut fs = Fs::mount(made(TIB), &mount_options()).unwrap();
    let ring = fs.info().superblock.ring_blocks;
    assert_eq!(ring, 256 << 8, "as large as it gets");
    let record = |fs: &mut Fs<Sparse>, text: &str| {
        fs.mkdir(&CX, Ino::ROOT, name(text), 0o700).unwrap();
    };
    record(&mut fs, "first");
    fs.syncfs(&CX).unwrap();
    let before = fs.device().clone();
    record(&mut fs, "second");
    let between = fs.device().clone();
    record(&mut fs, "third");
    fs.syncfs(&CX).unwrap();
    let crashed = fs.device().clone();
    let touched = crashed.touched.clone();
    touched.set(0);
    let mut fs = Fs::mount(crashed.clone(), &mount_options()).unwrap();
    fs.lookup(&CX, Ino::ROOT, name("third")).unwrap();
    assert!(touched.get() < ring / 6, "{} of {ring} blocks", touched.get());

    // The record of the second directory as if it had never been stored.
    let mut damaged = crashed;
    let ring_start = fs.info().superblock.ring_start;
    for block in ring_start..ring_start + 16 {
        let (old, new) = (before.block(block), between.block(block));
        let mut content = damaged.block(block);
        for (at, byte) in content.iter_mut().enumerate().filter(|&(at, _)| old[at] != new[at]) {
            *byte = old[at];
        }
        damaged.set_block(block, &content);
    }
    assert!(Fs::mount(damaged, &mount_options()).is_err());
}

/// Filling a volume notes which groups are full, so that the next mount need not look at them;
/// giving back a block makes its group be looked at again.
#[test]
fn groups_that_are_full_are_not_read_again() {
    let device = made(40 * GROUP);
    let mut fs = Fs::mount(device, &mount_options()).unwrap();
    let cx: Context = CX;
    let (attr, handle) = fs.create(&cx, Ino::ROOT, name("fill"), 0o600, RW).unwrap();
    let mode = FallocateMode::empty();
    fs.fallocate(&cx, attr.ino, handle, 0, 37 * GROUP * 4096, mode).unwrap();
    fs.release(&cx, attr.ino, handle).unwrap();
    let mut device = fs.unmount().unwrap();
    assert_sound(&mut device, "filled");
    let touched = device.touched.clone();
    let options = MountOptions { cache_bytes: 0, ..mount_options() };
    let mut fs = Fs::mount(device, &options).unwrap();
    touched.set(0);
    let (attr, handle) = fs.create(&cx, Ino::ROOT, name("new"), 0o600, RW).unwrap();
    fs.write(&cx, attr.ino, handle, 0, &[1; 4096]).unwrap();
    assert!(touched.get() < 60, "{} blocks", touched.get());
    // A hole in the third group is found, though all before and after it is full.
    let fill = fs.lookup(&cx, Ino::ROOT, name("fill")).unwrap().ino;
    let opened = fs.open(&cx, fill, RW).unwrap();
    let punch = FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE;
    fs.fallocate(&cx, fill, opened, 3 * GROUP * 4096, 64 * 4096, punch).unwrap();
    fs.release(&cx, fill, opened).unwrap();
    fs.release(&cx, attr.ino, handle).unwrap();
    let mut device = fs.unmount().unwrap();
    assert_sound(&mut device, "punched");
    let before = device.stored();
    let mut fs = Fs::mount(device, &options).unwrap();
    let (attr, handle) = fs.create(&cx, Ino::ROOT, name("into the hole"), 0o600, RW).unwrap();
    fs.fallocate(&cx, attr.ino, handle, 0, 64 * 4096, mode).unwrap();
    fs.release(&cx, attr.ino, handle).unwrap();
    let mut device = fs.unmount().unwrap();
    assert_sound(&mut device, "filled again");
    assert!(device.block_count() == 40 * GROUP && device.stored() < before + (1 << 20));
}
