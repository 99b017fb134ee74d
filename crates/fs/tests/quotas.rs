//! Quotas: what a directory takes is exact whatever happens below it, and never more than it may.
mod common;

use atoll_block::fault::{Image, Survival};
use atoll_block::{FaultDevice, RamDevice};
use atoll_fs::{CheckOptions, Fs, Quota, Usage, check, read_superblock};
use atoll_vfs::*;
use common::*;

const NEXT: [u8; 16] = [9; 16];
const BLOCK: u64 = 4096;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn quota(bytes: u64, inodes: u64) -> Quota {
    Quota { bytes: Some(bytes), inodes: Some(inodes) }
}

fn volume() -> Fs<RamDevice> {
    let mut device = RamDevice::new(4096);
    format_seeded(&mut device, 1);
    Fs::mount(device, &mount_options()).unwrap()
}

fn mkdir<M: atoll_block::Addressable>(fs: &mut Fs<M>, dir: Ino, text: &str) -> Ino {
    fs.mkdir(&CX, dir, name(text), 0o755).unwrap().ino
}

fn create<M: atoll_block::Addressable>(fs: &mut Fs<M>, dir: Ino, text: &str) -> (Ino, Handle) {
    let (attr, handle) = fs.create(&CX, dir, name(text), 0o644, RW).unwrap();
    (attr.ino, handle)
}

fn usage<M: atoll_block::Addressable>(fs: &mut Fs<M>, dir: Ino) -> Usage {
    fs.project(dir).unwrap().expect("a project").usage
}

fn assert_clean<M: atoll_block::Addressable>(device: &mut M, incarnation: [u8; 16], what: &str) {
    let options = CheckOptions { incarnation, ..CheckOptions::default() };
    let report = check(device, &options).unwrap();
    assert!(report.is_clean(), "{what}: {:#?}", report.findings);
}

#[test]
fn bytes_end_at_the_quota() {
    let mut fs = volume();
    let home = mkdir(&mut fs, Ino::ROOT, "home");
    fs.set_quotas(&[(home, quota(64 * BLOCK, 100))]).unwrap();
    let (ino, handle) = create(&mut fs, home, "file");
    // As much as fits is written, and no more.
    let written = fs.write(&CX, ino, handle, 0, &[1; 1 << 20]).unwrap();
    assert_eq!(written.len as u64, 63 * BLOCK, "a block is for names and records");
    assert_eq!(fs.write(&CX, ino, handle, 63 * BLOCK, b"x"), Err(Errno::EDQUOT));
    fs.write(&CX, ino, handle, 0, &[2; 5000]).expect("what is there can be overwritten");
    let len = 1 << 20;
    let reserved = fs.fallocate(&CX, ino, handle, 1 << 20, len, FallocateMode::empty());
    assert_eq!(reserved, Err(Errno::EDQUOT));
    assert_eq!(
        fs.setxattr(&CX, ino, b"user.a", &[1; 9000], XattrFlags::empty()),
        Err(Errno::EDQUOT)
    );
    assert!(usage(&mut fs, home).bytes <= 64 * BLOCK);
    // Elsewhere there is room, and here too once something goes.
    let (other, open) = create(&mut fs, Ino::ROOT, "other");
    assert_eq!(fs.write(&CX, other, open, 0, &[1; 1 << 20]).unwrap().len, 1 << 20);
    let set = SetAttr { size: Some(10 * BLOCK), ..SetAttr::default() };
    fs.setattr(&CX, ino, None, &set).unwrap();
    assert_eq!(fs.write(&CX, ino, handle, 1 << 20, &[1; 8192]).unwrap().len, 8192);
    assert_clean(fs.device_mut(), BOOT, "at the end");
}

#[test]
fn inodes_end_at_the_quota() {
    let mut fs = volume();
    let home = mkdir(&mut fs, Ino::ROOT, "home");
    fs.set_quotas(&[(home, quota(1 << 30, 3))]).unwrap();
    let (_, handle) = create(&mut fs, home, "one");
    let sub = mkdir(&mut fs, home, "two");
    assert_eq!(fs.mkdir(&CX, sub, name("three"), 0o755), Err(Errno::EDQUOT));
    assert_eq!(fs.tmpfile(&CX, sub, 0o600, RW).err(), Some(Errno::EDQUOT));
    assert_eq!(fs.symlink(&CX, home, name("three"), b"t"), Err(Errno::EDQUOT));
    let one = fs.lookup(&CX, home, name("one")).unwrap().ino;
    fs.link(&CX, one, sub, name("again")).expect("a name is no inode");
    // It counts until it is gone.
    fs.unlink(&CX, sub, name("again")).unwrap();
    fs.unlink(&CX, home, name("one")).unwrap();
    assert_eq!(fs.mkdir(&CX, sub, name("three"), 0o755), Err(Errno::EDQUOT), "it is open");
    fs.release(&CX, one, handle).unwrap();
    mkdir(&mut fs, sub, "three");
    assert_clean(fs.device_mut(), BOOT, "at the end");
}

#[test]
fn names_and_attributes_count() {
    let mut fs = volume();
    let home = mkdir(&mut fs, Ino::ROOT, "home");
    let limits = Quota { bytes: Some(100_000), inodes: None };
    fs.set_quotas(&[(home, limits)]).unwrap();
    let mut made = 0;
    let refused = loop {
        match fs.mknod(&CX, home, name(&format!("{made}")), 0o100_644, 0) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Errno::EDQUOT);
    assert!((100..1000).contains(&made), "{made} empty files are not for nothing");
    for at in 0..made {
        fs.unlink(&CX, home, name(&format!("{at}"))).expect("removing needs no room");
    }
    let (ino, _) = create(&mut fs, home, "file");
    let mut set = |at: u32| {
        fs.setxattr(&CX, ino, format!("user.{at}").as_bytes(), &[1; 10_000], XattrFlags::empty())
    };
    let stored = (0..100).take_while(|&at| set(at).is_ok()).count();
    assert_eq!(stored, 9);
    fs.removexattr(&CX, ino, b"user.0").unwrap();
    fs.setxattr(&CX, ino, b"user.0", &[2; 10_000], XattrFlags::empty()).unwrap();
    fs.setxattr(&CX, ino, b"user.0", &[3; 10_000], XattrFlags::REPLACE).expect("as long as before");
    assert_clean(fs.device_mut(), BOOT, "at the end");
}

#[test]
fn nothing_passes_the_border() {
    let mut fs = volume();
    let home = mkdir(&mut fs, Ino::ROOT, "home");
    let (inside, _) = create(&mut fs, home, "inside");
    let (outside, _) = create(&mut fs, Ino::ROOT, "outside");
    let closed = fs.device().clone();
    let mut fs = Fs::mount(closed, &mount_options()).unwrap();
    fs.set_quotas(&[(home, quota(1 << 20, 10))]).unwrap();
    let none = RenameFlags::empty();
    let (root, x) = (Ino::ROOT, name("x"));
    let far = Err(Errno::EXDEV);
    assert_eq!(fs.rename(&CX, home, name("inside"), root, x, none), far);
    assert_eq!(fs.rename(&CX, root, name("outside"), home, x, none), far);
    let exchange = RenameFlags::EXCHANGE;
    assert_eq!(fs.rename(&CX, root, name("outside"), home, name("inside"), exchange), far);
    assert_eq!(fs.link(&CX, inside, root, x).err(), Some(Errno::EXDEV));
    assert_eq!(fs.link(&CX, outside, home, x).err(), Some(Errno::EXDEV));
    let sub = mkdir(&mut fs, home, "sub");
    fs.rename(&CX, home, name("inside"), sub, x, none).unwrap();
    fs.link(&CX, inside, home, name("again")).unwrap();
    // The directory stays where the quota is for it.
    assert_eq!(fs.rename(&CX, root, name("home"), root, x, none), Err(Errno::EBUSY));
    let empty = mkdir(&mut fs, root, "empty");
    fs.set_quotas(&[(home, quota(1 << 20, 10)), (empty, quota(1, 1))]).unwrap();
    assert_eq!(fs.rmdir(&CX, root, name("empty")), Err(Errno::EBUSY));
    fs.set_quotas(&[(home, quota(1 << 20, 10))]).unwrap();
    fs.rmdir(&CX, root, name("empty")).unwrap();
    assert_clean(fs.device_mut(), BOOT, "at the end");
}

#[test]
fn statfs_shows_what_a_quota_leaves() {
    let mut fs = volume();
    let home = mkdir(&mut fs, Ino::ROOT, "home");
    let whole = fs.statfs(&CX).unwrap();
    fs.set_quotas(&[(home, quota(100 * BLOCK, 20))]).unwrap();
    let sub = mkdir(&mut fs, home, "sub");
    let (ino, handle) = create(&mut fs, sub, "file");
    fs.write(&CX, ino, handle, 0, &[1; 40 * BLOCK as usize]).unwrap();
    for dir in [home, sub] {
        let stat = fs.statfs_below(&CX, dir).unwrap();
        assert_eq!((stat.blocks, stat.blocks_free), (100, 59));
        assert_eq!((stat.files, stat.files_free), (20, 17));
    }
    assert_eq!(fs.statfs_below(&CX, Ino::ROOT).unwrap(), fs.statfs(&CX).unwrap());
    // More than the volume has is not promised.
    fs.release(&CX, ino, handle).unwrap();
    fs.set_quotas(&[(home, quota(1 << 40, 1 << 40))]).unwrap();
    let stat = fs.statfs_below(&CX, home).unwrap();
    assert!(stat.blocks == whole.blocks && stat.blocks_free < whole.blocks_free);
}

/// A volume without quotas is as it has been: no bit, no item, no byte of theirs.
#[test]
fn a_volume_without_quotas_is_as_it_was() {
    let mut fs = volume();
    work(&mut fs, &mut Rng::new(1), 200);
    let mut fs = Fs::mount(fs.device().clone(), &mount_options()).unwrap();
    fs.set_quotas(&[]).unwrap();
    assert_eq!(read_superblock(&mut fs.unmount().unwrap()).unwrap().incompatible, 0);
}

#[test]
fn what_can_have_no_quota_is_refused() {
    let mut fs = volume();
    let home = mkdir(&mut fs, Ino::ROOT, "home");
    let sub = mkdir(&mut fs, home, "sub");
    let file = fs.mknod(&CX, Ino::ROOT, name("file"), 0o100_644, 0).unwrap().ino;
    let any = Quota::default();
    let mut refused = |quotas: &[(Ino, Quota)]| Errno::from(fs.set_quotas(quotas).unwrap_err());
    assert_eq!(refused(&[(home, any), (sub, any)]), Errno::EINVAL);
    assert_eq!(refused(&[(sub, any), (Ino::ROOT, any)]), Errno::EINVAL);
    assert_eq!(refused(&[(home, any), (home, any)]), Errno::EINVAL);
    assert_eq!(refused(&[(file, any)]), Errno::ENOTDIR);
    assert_eq!(refused(&[(Ino(99), any)]), Errno::ESTALE);
    let (_, handle) = create(&mut fs, home, "open");
    let error = fs.set_quotas(&[(home, any)]).unwrap_err();
    assert_eq!(Errno::from(error), Errno::EBUSY);
    let _ = handle;
    assert_eq!(read_superblock(fs.device_mut()).unwrap().incompatible, 0);
}

/// The directories of `fs` that the workload works in.
fn homes<M: atoll_block::Addressable>(fs: &mut Fs<M>) -> Vec<Ino> {
    let mut found = Vec::new();
    for at in 0..8 {
        if let Ok(attr) = fs.lookup(&CX, Ino::ROOT, name(&format!("name{at}")))
            && attr.is_dir()
        {
            found.push(attr.ino);
        }
    }
    found
}

/// Any operations, quotas that come and go, crashes: what the projects say is what a check counts,
/// in the volume and in memory, and within the quotas.
#[test]
fn any_operations_leave_the_usage_exact() {
    let (mut refused, mut crossed) = (0, 0);
    for seed in 0..12 {
        let mut rng = Rng::new(seed + 50);
        let mut device = FaultDevice::new(6000);
        format_seeded(&mut device, seed);
        let mut fs = Fs::mount(device, &mount_options()).unwrap();
        work(&mut fs, &mut rng, 150);
        for round in 0..6 {
            let image = match rng.below(3) {
                0 => fs.unmount().unwrap().process_crash(),
                1 => fs.device().process_crash(),
                _ => {
                    let image = fs.device().power_loss(Survival::Seed(rng.below(1 << 40)));
                    assert_clean(&mut FaultDevice::from_image(image.clone()), NEXT, "power lost");
                    let device = FaultDevice::from_image(image);
                    let options = atoll_fs::MountOptions { incarnation: NEXT, ..mount_options() };
                    Fs::mount(device, &options).unwrap().unmount().unwrap().process_crash()
                }
            };
            fs = Fs::mount(FaultDevice::from_image(image), &mount_options()).unwrap();
            let mut quotas = Vec::new();
            for dir in homes(&mut fs) {
                if rng.below(3) > 0 {
                    quotas.push((dir, quota(rng.below(60) * BLOCK * 4, 4 + rng.below(30))));
                }
            }
            fs.set_quotas(&quotas).unwrap();
            let before: Vec<Usage> = quotas.iter().map(|&(dir, _)| usage(&mut fs, dir)).collect();
            for _ in 0..120 {
                match step(&mut fs, &mut rng) {
                    Err(Errno::EDQUOT) => refused += 1,
                    Err(Errno::EXDEV) => crossed += 1,
                    _ => {}
                }
            }
            let what = format!("seed {seed}, round {round}");
            let image = fs.device().process_crash();
            assert_clean(&mut FaultDevice::from_image(image.clone()), BOOT, &what);
            let mut next = Fs::mount(FaultDevice::from_image(image), &mount_options()).unwrap();
            // Without what was unlinked and open.
            let mut kept: Vec<Usage> = quotas.iter().map(|&(dir, _)| usage(&mut fs, dir)).collect();
            for (at, &(dir, quota)) in quotas.iter().enumerate() {
                // Renames over a name may take a little more, and removals do not look.
                let room = 16 * BLOCK + before[at].bytes.max(quota.bytes.unwrap());
                assert!(kept[at].bytes <= room, "{what}: {:?} of {quota:?}", kept[at]);
                let most = before[at].inodes.max(quota.inodes.unwrap());
                assert!(kept[at].inodes <= most, "{what}: {:?} of {quota:?}", kept[at]);
                let found = usage(&mut next, dir);
                assert!(found.inodes <= kept[at].inodes && found.bytes <= kept[at].bytes, "{what}");
            }
            fs = Fs::mount(
                FaultDevice::from_image(fs.unmount().unwrap().process_crash()),
                &mount_options(),
            )
            .unwrap();
            kept = quotas.iter().map(|&(dir, _)| usage(&mut next, dir)).collect();
            let closed: Vec<Usage> = quotas.iter().map(|&(dir, _)| usage(&mut fs, dir)).collect();
            assert_eq!(kept, closed, "{what}");
        }
    }
    assert!(refused > 100 && crossed > 50, "{refused} refused, {crossed} across the border");
}

/// Every event of giving and taking quotas is followed by the end of the process or power loss.
#[test]
fn a_crash_while_quotas_are_set() {
    let mut device = FaultDevice::new(3000);
    format_seeded(&mut device, 3);
    let mut fs = Fs::mount(device, &mount_options()).unwrap();
    work(&mut fs, &mut Rng::new(3), 120);
    let before = fs.unmount().unwrap().process_crash();
    let mut fs = Fs::mount(FaultDevice::from_image(before.clone()), &mount_options()).unwrap();
    let dirs = homes(&mut fs);
    assert!(dirs.len() > 1, "{dirs:?}");
    let first = vec![(dirs[0], quota(1 << 30, 1000))];
    let then = vec![(dirs[1], quota(1 << 30, 1000))];
    let closed = fs.unmount().unwrap().process_crash();
    let set = |image: &Image, quotas: &[(Ino, Quota)]| {
        let mut fs = Fs::mount(FaultDevice::from_image(image.clone()), &mount_options()).unwrap();
        fs.device_mut().start_recording();
        fs.set_quotas(quotas).unwrap();
        let found: Vec<Usage> = quotas.iter().map(|&(dir, _)| usage(&mut fs, dir)).collect();
        let recording = fs.device_mut().take_recording().unwrap();
        (found, recording, fs.unmount().unwrap().process_crash())
    };
    let (expected_first, recording_first, with_first) = set(&closed, &first);
    let (expected_then, recording_then, _) = set(&with_first, &then);
    let mut rng = Rng::new(8);
    for (recording, quotas, expected) in
        [(recording_first, &first, expected_first), (recording_then, &then, expected_then)]
    {
        let mut replay = recording.replay();
        loop {
            let survival = match rng.below(3) {
                0 => Survival::None,
                1 => Survival::All,
                _ => Survival::Seed(rng.below(1 << 40)),
            };
            let lost = replay.media().power_loss(survival);
            for (image, incarnation) in [(replay.media().current().clone(), BOOT), (lost, NEXT)] {
                assert_clean(&mut FaultDevice::from_image(image.clone()), incarnation, "cut off");
                let options = atoll_fs::MountOptions { incarnation, ..mount_options() };
                let mut fs = Fs::mount(FaultDevice::from_image(image), &options).unwrap();
                fs.set_quotas(quotas).unwrap();
                let found: Vec<Usage> =
                    quotas.iter().map(|&(dir, _)| usage(&mut fs, dir)).collect();
                assert_eq!(found, expected);
                let image = fs.unmount().unwrap().process_crash();
                assert_clean(&mut FaultDevice::from_image(image), incarnation, "gone on");
            }
            if !replay.step() {
                break;
            }
        }
    }
}

/// A check sees a usage that is not that of the inodes, and an inode whose project is not there; a
/// repair puts both right.
#[test]
fn a_repair_counts_again() {
    for seed in 0..40 {
        let mut fs = volume();
        work(&mut fs, &mut Rng::new(seed), 120);
        let mut fs = Fs::mount(fs.device().clone(), &mount_options()).unwrap();
        let quotas: Vec<_> =
            homes(&mut fs).into_iter().map(|dir| (dir, quota(1 << 20, 50))).collect();
        fs.set_quotas(&quotas).unwrap();
        work(&mut fs, &mut Rng::new(seed + 1), 60);
        let mut device = fs.unmount().unwrap();
        let mut rng = Rng::new(seed + 2);
        // Volumes lose nodes, and with them items of projects, inodes and names.
        let block = atoll_block::BlockIndex(rng.below(200) + 130);
        let mut bytes = [0; BLOCK as usize];
        atoll_block::BlockDevice::read(&mut device, block, &mut bytes).unwrap();
        bytes[rng.below(BLOCK) as usize] ^= 0x55;
        atoll_block::BlockDevice::write(&mut device, block, &bytes).unwrap();
        let options = CheckOptions { incarnation: BOOT, repair: true, ..CheckOptions::default() };
        check(&mut device, &options).unwrap();
        assert_clean(&mut device, BOOT, &format!("seed {seed}"));
        let mut fs = Fs::mount(device, &mount_options()).unwrap();
        fs.set_quotas(&[]).unwrap();
        assert_clean(&mut fs.unmount().unwrap(), BOOT, &format!("seed {seed}, without"));
    }
}
