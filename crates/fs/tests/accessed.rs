//! Times of last access: when reading sets them, and what it must leave alone.
mod common;

use atoll_block::fault::Survival;
use atoll_block::{FaultDevice, RamDevice};
use atoll_fs::{CheckOptions, Fs, MountOptions, check};
use atoll_vfs::model::ModelFs;
use atoll_vfs::{
    Attr, Context, FileSystem, Ino, Name, RenameFlags, SetAttr, SetTime, Timespec, XattrFlags,
};
use common::*;

const DAY: i64 = 24 * 60 * 60;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn time(sec: i64, nsec: u32) -> Timespec {
    Timespec { sec, nsec }
}

fn at(now: Timespec) -> Context {
    Context { now, ..CX }
}

fn volume() -> Fs<FaultDevice> {
    let mut device = FaultDevice::new(2000);
    format_seeded(&mut device, 1);
    Fs::mount(device, &mount_options()).unwrap()
}

/// A file, a directory and a symbolic link, none of them open.
fn inodes(fs: &mut impl FileSystem) -> [Ino; 3] {
    let file = fs.mknod(&CX, Ino::ROOT, name("file"), 0o100644, 0).unwrap();
    let directory = fs.mkdir(&CX, Ino::ROOT, name("directory"), 0o755).unwrap();
    let link = fs.symlink(&CX, Ino::ROOT, name("link"), b"file").unwrap();
    [file.ino, directory.ino, link.ino]
}

/// Gives `ino` these times. The call sets ctime to its own time.
fn stamp(fs: &mut impl FileSystem, ino: Ino, atime: Timespec, mtime: Timespec, ctime: Timespec) {
    let (atime, mtime) = (Some(SetTime::To(atime)), Some(SetTime::To(mtime)));
    fs.setattr(&at(ctime), ino, None, &SetAttr { atime, mtime, ..SetAttr::default() }).unwrap();
}

/// The table of Linux's `relatime_need_update`, on both sides of each of its edges.
#[test]
fn set_when_linux_sets_them() {
    let before = time(999_999, 999_999_999);
    let then = time(1_000_000, 500);
    let after = time(1_000_000, 501);
    let soon = time(1_000_000, 600);
    let cases = [
        // atime, mtime, ctime, now, whether it is set
        (then, before, before, soon, false),
        (then, then, before, soon, true),
        (then, before, then, soon, true),
        (then, after, before, soon, true),
        (then, before, after, soon, true),
        // It already has the value that it would get.
        (then, then, then, then, false),
        // A day, by whole seconds.
        (then, before, before, time(1_000_000 + DAY - 1, 999_999_999), false),
        (then, before, before, time(1_000_000 + DAY, 0), true),
        // Times that lie ahead, or behind.
        (time(5_000_000, 0), then, then, soon, false),
        (then, time(5_000_000, 0), before, soon, true),
        (then, before, before, time(0, 0), false),
        (time(i64::MIN, 0), time(i64::MIN, 0), time(i64::MIN, 0), time(i64::MAX, 0), true),
        (time(i64::MIN, 1), time(i64::MIN, 0), time(i64::MIN, 0), time(i64::MAX, 0), true),
        (time(-DAY, 0), time(-DAY - 1, 0), time(-DAY - 1, 0), time(0, 0), true),
    ];
    let (mut fs, mut model) = (volume(), ModelFs::default());
    let (of_fs, of_model) = (inodes(&mut fs), inodes(&mut model));
    for (index, (atime, mtime, ctime, now, sets)) in cases.into_iter().enumerate() {
        for (ino, also) in of_fs.into_iter().zip(of_model) {
            stamp(&mut fs, ino, atime, mtime, ctime);
            stamp(&mut model, also, atime, mtime, ctime);
            let old = fs.getattr(&CX, ino).unwrap();
            assert_eq!(fs.accessed(&at(now), ino), sets, "case {index}");
            assert_eq!(model.accessed(&at(now), also), sets, "case {index}, the model");
            let atime = if sets { now } else { old.atime };
            assert_eq!(fs.getattr(&CX, ino).unwrap(), Attr { atime, ..old }, "case {index}");
            assert_eq!(model.getattr(&CX, also).unwrap().atime, atime, "case {index}, the model");
        }
    }
}

/// An inode's times are those of the model, whatever else happens to it meanwhile, open or not.
#[test]
fn among_other_calls_as_in_the_model() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let (mut fs, mut model) = (volume(), ModelFs::default());
        let (of_fs, of_model) = (inodes(&mut fs), inodes(&mut model));
        let mut open = None;
        let mut names = ["file", "directory", "link"].map(str::to_owned);
        for step in 0..200 {
            let cx = at(time(1_000_000 + step * (rng.below(3) as i64) * DAY / 4, step as u32));
            let which = rng.below(3) as usize;
            let (ino, also) = (of_fs[which], of_model[which]);
            match rng.below(11) {
                0..=2 => assert_eq!(fs.accessed(&cx, ino), model.accessed(&cx, also)),
                3 => {
                    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
                    fs.setattr(&cx, ino, None, &set).unwrap();
                    model.setattr(&cx, also, None, &set).unwrap();
                }
                4 => {
                    let (fd, other) = *open.get_or_insert_with(|| {
                        let mine = fs.open(&cx, of_fs[0], RW).unwrap();
                        (mine, model.open(&cx, of_model[0], RW).unwrap())
                    });
                    fs.write(&cx, of_fs[0], fd, step as u64 * 100, b"bytes").unwrap();
                    model.write(&cx, of_model[0], other, step as u64 * 100, b"bytes").unwrap();
                }
                5 => {
                    if let Some((fd, other)) = open.take() {
                        fs.release(&cx, of_fs[0], fd).unwrap();
                        model.release(&cx, of_model[0], other).unwrap();
                    }
                }
                6 => {
                    let named = format!("{step}");
                    fs.mkdir(&cx, of_fs[1], name(&named), 0o700).unwrap();
                    model.mkdir(&cx, of_model[1], name(&named), 0o700).unwrap();
                }
                7 => {
                    let (old, new) = (names[which].clone(), format!("moved{step}"));
                    let (from, to, flags) = (name(&old), name(&new), RenameFlags::empty());
                    fs.rename(&cx, Ino::ROOT, from, Ino::ROOT, to, flags).unwrap();
                    model.rename(&cx, Ino::ROOT, from, Ino::ROOT, to, flags).unwrap();
                    names[which] = new;
                }
                8 if which != 1 => {
                    fs.link(&cx, ino, Ino::ROOT, name("more")).unwrap();
                    model.link(&cx, also, Ino::ROOT, name("more")).unwrap();
                    assert_eq!(fs.accessed(&cx, ino), model.accessed(&cx, also));
                    fs.unlink(&cx, Ino::ROOT, name("more")).unwrap();
                    model.unlink(&cx, Ino::ROOT, name("more")).unwrap();
                }
                9 if which != 2 => {
                    let (key, value) = (b"user.key", [step as u8]);
                    fs.setxattr(&cx, ino, key, &value, XattrFlags::empty()).unwrap();
                    model.setxattr(&cx, also, key, &value, XattrFlags::empty()).unwrap();
                }
                _ => fs.syncfs(&cx).unwrap(),
            }
            for (ino, also) in of_fs.into_iter().zip(of_model) {
                let (mine, other) =
                    (fs.getattr(&CX, ino).unwrap(), model.getattr(&CX, also).unwrap());
                assert_eq!(
                    [mine.atime, mine.mtime, mine.ctime, mine.btime],
                    [other.atime, other.mtime, other.ctime, other.btime],
                    "seed {seed}, step {step}"
                );
            }
        }
        if let Some((fd, _)) = open.take() {
            fs.release(&CX, of_fs[0], fd).unwrap();
        }
        let times = of_fs.map(|ino| fs.getattr(&CX, ino).unwrap());
        let mut fs = Fs::mount(fs.unmount().unwrap(), &mount_options()).unwrap();
        assert_eq!(of_fs.map(|ino| fs.getattr(&CX, ino).unwrap()), times, "seed {seed}");
    }
}

/// Setting them stores nothing: they reach the device with the next sync, and a crash before that
/// loses them and nothing else.
#[test]
fn written_with_the_next_sync_and_no_sooner() {
    let mut fs = volume();
    let inodes = inodes(&mut fs);
    fs.syncfs(&CX).unwrap();
    let after_power_loss = |fs: &Fs<FaultDevice>| {
        let mut device = FaultDevice::from_image(fs.device().power_loss(Survival::None));
        assert!(check(&mut device, &CheckOptions::default()).unwrap().is_clean());
        let options = MountOptions { incarnation: [8; 16], ..mount_options() };
        let mut fs = Fs::mount(device, &options).unwrap();
        inodes.map(|ino| fs.getattr(&CX, ino).unwrap())
    };
    let old = inodes.map(|ino| fs.getattr(&CX, ino).unwrap());
    let events = fs.device().events();
    let now = time(2_000_000, 7);
    for ino in inodes {
        assert!(fs.accessed(&at(now), ino));
        assert!(!fs.accessed(&at(time(2_000_001, 0)), ino), "it is not due any more");
    }
    assert_eq!(fs.device().events(), events, "stores of a read");
    assert_eq!(after_power_loss(&fs), old);
    fs.syncfs(&CX).unwrap();
    assert_eq!(after_power_loss(&fs), old.map(|attr| Attr { atime: now, ..attr }));
}

/// More inodes than are kept in memory for their times.
#[test]
fn of_any_number_of_files() {
    let mut device = RamDevice::new(1 << 14);
    format_seeded(&mut device, 1);
    let mut fs = Fs::mount(device, &mount_options()).unwrap();
    let made = |fs: &mut Fs<RamDevice>, i: u32| {
        fs.mknod(&CX, Ino::ROOT, name(&format!("{i}")), 0o100644, 0).unwrap().ino
    };
    let inodes: Vec<Ino> = (0..10_000).map(|i| made(&mut fs, i)).collect();
    let now = time(3_000_000, 1);
    for &ino in &inodes {
        assert!(fs.accessed(&at(now), ino));
    }
    let mut fs = Fs::mount(fs.unmount().unwrap(), &mount_options()).unwrap();
    for ino in inodes {
        assert_eq!(fs.getattr(&CX, ino).unwrap().atime, now);
    }
}

/// Where they cannot be set, reading succeeds all the same; on a full volume they can.
#[test]
fn never_in_the_way_of_a_read() {
    let now = at(time(4_000_000, 0));
    let reads = |fs: &mut Fs<FaultDevice>, ino| {
        let handle = fs.open(&now, ino, atoll_vfs::OpenFlags::READ).unwrap();
        let mut bytes = [0; 8];
        assert_eq!(fs.read(&now, ino, handle, 0, &mut bytes), Ok(8));
        let set = fs.accessed(&now, ino);
        fs.release(&now, ino, handle).unwrap();
        set
    };
    let mut fs = volume();
    let (attr, handle) = fs.create(&CX, Ino::ROOT, name("file"), 0o644, RW).unwrap();
    let mut end = 0;
    while let Ok(written) = fs.write(&CX, attr.ino, handle, end, &[1; 65536]) {
        end += written.len as u64;
    }
    fs.release(&CX, attr.ino, handle).unwrap();
    assert!(reads(&mut fs, attr.ino));
    fs.syncfs(&now).unwrap();
    assert_eq!(fs.getattr(&CX, attr.ino).unwrap().atime, now.now);
    assert!(!fs.accessed(&now, Ino(999_999)), "there is no such inode");

    // A device that takes nothing more.
    stamp(&mut fs, attr.ino, time(1, 0), time(1, 0), time(1, 0));
    fs.device_mut().faults.stop_after = Some(0);
    fs.syncfs(&now).unwrap_err();
    fs.device_mut().faults.stop_after = None;
    assert!(!reads(&mut fs, attr.ino), "a volume that has failed");
    assert_eq!(fs.getattr(&CX, attr.ino).unwrap().atime, time(1, 0));

    let device = FaultDevice::from_image(fs.device().process_crash());
    let options = MountOptions { read_only: true, ..mount_options() };
    let mut fs = Fs::mount(device, &options).unwrap();
    assert!(!reads(&mut fs, attr.ino), "a volume that is only looked at");
    assert_eq!(fs.getattr(&CX, attr.ino).unwrap().atime, time(1, 0));
}
