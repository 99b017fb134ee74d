//! The lengths of operations' records, in the smallest journal and in trees as untidy as they get,
//! compared with the stated bounds.
mod common;

use atoll_block::FaultDevice;
use atoll_fs::testing::{RECORD_BOUNDS, take_longest_record};
use atoll_fs::{CheckOptions, FormatOptions, Fs, check, format};
use atoll_vfs::{
    Errno, FallocateMode, FileSystem, Ino, Name, RenameFlags, SetAttr, XATTR_SIZE_MAX, XattrFlags,
};
use common::*;

const RECORD_MAX: usize = 128 << 10;
const BLOCK: u64 = 4096;

fn volume(blocks: u64) -> Fs<FaultDevice> {
    let mut device = FaultDevice::new(blocks);
    let options = FormatOptions { journal_blocks: Some(128), ..FormatOptions::default() };
    format(&mut device, &options).unwrap();
    Fs::mount(device, &mount_options()).unwrap()
}

fn assert_clean(fs: Fs<FaultDevice>) {
    let mut device = fs.unmount().unwrap();
    let report = check(&mut device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// Runs `body` and returns the length of its longest record.
fn longest(fs: &mut Fs<FaultDevice>, body: impl FnOnce(&mut Fs<FaultDevice>)) -> usize {
    take_longest_record(fs);
    body(fs);
    take_longest_record(fs)
}

fn long_name(at: u64) -> Vec<u8> {
    format!("{at:0>255}").into_bytes()
}

/// Files whose names, attributes and extents leave nodes of every filling.
fn untidy(fs: &mut Fs<FaultDevice>, rng: &mut Rng) -> Vec<(Vec<u8>, Ino)> {
    let mut files = Vec::new();
    for at in 0..600 {
        let name = if rng.below(3) == 0 { format!("{at}").into_bytes() } else { long_name(at) };
        let (attr, handle) =
            fs.create(&CX, Ino::ROOT, Name::new(&name).unwrap(), 0o644, RW).unwrap();
        if rng.below(8) == 0 {
            let value = vec![1; rng.below(9_000) as usize];
            fs.setxattr(&CX, attr.ino, b"user.a", &value, XattrFlags::empty()).unwrap();
        }
        fs.release(&CX, attr.ino, handle).unwrap();
        files.push((name, attr.ino));
    }
    for _ in 0..300 {
        let (name, _) = files.swap_remove(rng.below(files.len() as u64) as usize);
        fs.unlink(&CX, Ino::ROOT, Name::new(&name).unwrap()).unwrap();
    }
    files
}

#[test]
fn names_and_attributes() {
    let [_, rename, make, set] = RECORD_BOUNDS;
    let most = RECORD_BOUNDS.into_iter().max().unwrap();
    assert!(most <= RECORD_MAX);
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let mut fs = volume(20_000);
        let mut files = untidy(&mut fs, &mut rng);
        for at in 0..120 {
            let (name, ino) = files[rng.below(files.len() as u64) as usize].clone();
            // Every length, the largest often, over any other.
            let len = match rng.below(4) {
                0 => rng.below(3_000) as usize,
                1 => rng.below(XATTR_SIZE_MAX as u64 + 1) as usize,
                _ => XATTR_SIZE_MAX,
            };
            let attribute = format!("user.{:0>250}", rng.below(2)).into_bytes();
            let value = vec![at as u8; len];
            let took = longest(&mut fs, |fs| {
                fs.setxattr(&CX, ino, &attribute, &value, XattrFlags::empty()).unwrap();
            });
            assert!(took <= set, "seed {seed}: an attribute of {len} bytes took {took}");
            let mut back = Vec::new();
            fs.getxattr(&CX, ino, &attribute, &mut back).unwrap();
            assert!(back == value, "seed {seed}, attribute {at}");
            if rng.below(4) == 0 {
                let took = longest(&mut fs, |fs| fs.removexattr(&CX, ino, &attribute).unwrap());
                assert!(took <= RECORD_MAX / 2, "seed {seed}: removing it took {took}");
            }
            let target = vec![b't'; 4095];
            let link = long_name(10_000 + at);
            let link = Name::new(&link).unwrap();
            let took = longest(&mut fs, |fs| {
                fs.symlink(&CX, Ino::ROOT, link, &target).unwrap();
            });
            assert!(took <= make, "seed {seed}: a symbolic link took {took}");
            let took = longest(&mut fs, |fs| {
                let name = Name::new(&name).unwrap();
                let flags = [RenameFlags::empty(), RenameFlags::WHITEOUT][at as usize % 2];
                fs.rename(&CX, Ino::ROOT, link, Ino::ROOT, name, flags).unwrap();
            });
            assert!(took <= RECORD_MAX / 2 + rename, "seed {seed}: a rename took {took}");
            files.retain(|(kept, _)| *kept != name);
        }
        assert_clean(fs);
    }
}

/// Free space in single blocks, then everything that allocates or frees many of them.
#[test]
fn content_in_many_pieces() {
    let [last_step, ..] = RECORD_BOUNDS;
    let bound = RECORD_MAX / 2 + last_step;
    assert!(bound <= RECORD_MAX);
    let mut fs = volume(6_000);
    let (comb, handle) = fs.tmpfile(&CX, Ino::ROOT, 0o600, RW).unwrap();
    let (comb, mut end) = (comb.ino, 0);
    while fs.write(&CX, comb, handle, end * BLOCK, &[1; 4096]).is_ok() {
        end += 1;
    }
    for at in (0..end).step_by(2) {
        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        fs.fallocate(&CX, comb, handle, at * BLOCK, BLOCK, mode).unwrap();
    }
    fs.syncfs(&CX).unwrap();

    let name = Name::new(b"pieces").unwrap();
    let (attr, pieces) = fs.create(&CX, Ino::ROOT, name, 0o644, RW).unwrap();
    let ino = attr.ino;
    let megabyte: Vec<u8> = (0..1 << 20).map(|at| (at / 4096) as u8).collect();
    let check_took = |what: &str, took: usize| assert!(took <= bound, "{what} took {took}");
    for mode in [FallocateMode::empty(), FallocateMode::ZERO_RANGE] {
        let took = longest(&mut fs, |fs| {
            fs.fallocate(&CX, ino, pieces, 0, 4 << 20, mode).unwrap();
        });
        check_took("an allocation", took);
        let took = longest(&mut fs, |fs| {
            let written = fs.write(&CX, ino, pieces, 100, &megabyte).unwrap();
            assert_eq!(written.len, megabyte.len());
        });
        check_took("a megabyte into what was allocated", took);
    }
    let mut back = vec![0; megabyte.len()];
    assert_eq!(fs.read(&CX, ino, pieces, 100, &mut back), Ok(back.len()));
    assert!(back == megabyte);
    let took = longest(&mut fs, |fs| {
        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        fs.fallocate(&CX, ino, pieces, 4096, 3 << 20, mode).unwrap();
    });
    check_took("a hole", took);
    let took = longest(&mut fs, |fs| {
        assert_eq!(fs.write(&CX, ino, pieces, 4096, &megabyte).unwrap().len, megabyte.len());
    });
    check_took("a megabyte into a hole", took);
    let took = longest(&mut fs, |fs| {
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        fs.setattr(&CX, ino, None, &set).unwrap();
    });
    check_took("making it empty", took);
    let took = longest(&mut fs, |fs| fs.release(&CX, comb, handle).unwrap());
    check_took("removing a file in pieces", took);
    assert_eq!(fs.write(&CX, comb, handle, 0, b"x").map(drop), Err(Errno::EBADF));
    fs.release(&CX, ino, pieces).unwrap();
    assert_clean(fs);
}

/// Few extents that are as long as groups.
#[test]
fn content_in_long_pieces() {
    let mut fs = volume(64 << 18);
    for unlinked in [false, true] {
        let name = Name::new(b"large").unwrap();
        let (attr, handle) = fs.create(&CX, Ino::ROOT, name, 0o644, RW).unwrap();
        let free = fs.statfs(&CX).unwrap().blocks_free;
        let took = longest(&mut fs, |fs| {
            fs.fallocate(&CX, attr.ino, handle, 0, 40 << 30, FallocateMode::empty()).unwrap();
        });
        assert!(took <= RECORD_MAX, "an allocation took {took}");
        if unlinked {
            fs.unlink(&CX, Ino::ROOT, name).unwrap();
        } else {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            let took = longest(&mut fs, |fs| {
                fs.setattr(&CX, attr.ino, None, &set).unwrap();
            });
            assert!(took <= RECORD_MAX, "making it empty took {took}");
            assert_eq!(fs.statfs(&CX).unwrap().blocks_free, free);
            fs.unlink(&CX, Ino::ROOT, name).unwrap();
        }
        fs.release(&CX, attr.ino, handle).unwrap();
        assert!(fs.statfs(&CX).unwrap().blocks_free >= free);
    }
    assert_clean(fs);
}
