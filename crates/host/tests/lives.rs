//! The incarnation of a device: equal as long as the memory lives that holds what was stored there,
//! and different, or zeros, when it may have gone.
#![allow(unsafe_code)]

mod common;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use atoll_host::device::{Access, Create, OpenOptions, open};
use common::{Loop, Mounted, disk, run, with_disks};

const UNKNOWN: [u8; 16] = [0; 16];

fn make(path: &Path) {
    let options = OpenOptions { create: Create::New, blocks: Some(8), ..OpenOptions::default() };
    open(path, &options).unwrap();
}

/// As a process that opens the volume gets it, in both ways to reach it.
fn life(path: &Path) -> [u8; 16] {
    let direct = Access::Direct { cache_bytes: 1 << 16 };
    let found = [Access::Mapped, direct].map(|access| {
        let options = OpenOptions { access, ..OpenOptions::default() };
        open(path, &options).unwrap().incarnation()
    });
    assert_eq!(found[0], found[1]);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    assert_eq!(open(path, &read_only).unwrap().incarnation(), found[0]);
    found[0]
}

/// Changes that do not touch the memory: other names, other mounts, another namespace.
fn stays(path: &Path, elsewhere: &Path) {
    let before = life(path);
    assert_eq!(life(path), before);
    let moved = path.with_extension("moved");
    std::fs::rename(path, &moved).unwrap();
    std::fs::hard_link(&moved, path).unwrap();
    assert_eq!(life(&moved), before);
    std::fs::remove_file(&moved).unwrap();
    assert_eq!(life(path), before);
    let bind = Mounted::new(&[&"--bind", &path.parent().unwrap()], elsewhere).unwrap();
    assert_eq!(life(&bind.0.join(path.file_name().unwrap())), before, "a bind mount");
    drop(bind);
    let inside = std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            common::own_namespace().unwrap();
            life(path)
        });
        inside.join().unwrap()
    });
    assert_eq!(inside, before, "another namespace");
}

/// A copy has what the file had, but nothing says of when.
fn is_no_copy(path: &Path) {
    let before = life(path);
    let copy = path.with_extension("copy");
    run("cp", &[&path, &copy]).unwrap();
    assert_ne!(life(&copy), before);
    std::fs::rename(&copy, path).unwrap();
    assert_ne!(life(path), before, "a copy in the place of the file");
    // And one that may get the same inode number.
    std::fs::rename(path, &copy).unwrap();
    let before = life(&copy);
    let bytes = std::fs::read(&copy).unwrap();
    std::fs::remove_file(&copy).unwrap();
    std::fs::write(path, bytes).unwrap();
    assert_ne!(life(path), before);
}

#[test]
fn a_file_on_any_file_system_is_known_or_unknown() {
    let _alone = common::alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume");
    make(&path);
    let first = life(&path);
    assert_eq!(life(&path), first, "the same, known or not");
    let other = folder.path().join("other");
    make(&other);
    assert!(life(&other) != first || first == UNKNOWN);
}

#[test]
fn a_tmpfs_lives_with_its_files() {
    with_disks(|folder| {
        let tmpfs = Mounted::new(&[&"-t", &"tmpfs", &"none"], &folder.join("m"))?;
        let path = tmpfs.0.join("volume");
        make(&path);
        assert_ne!(life(&path), UNKNOWN);
        stays(&path, &folder.join("elsewhere"));
        is_no_copy(&path);
        Ok(())
    });
}

/// Each file system of disks that can be made here: unmounted and mounted again its memory is
/// another.
#[test]
fn a_file_system_lives_from_mount_to_unmount() {
    for kind in ["ext4", "xfs", "btrfs", "vfat"] {
        with_disks(|folder| {
            let image = disk(folder, "image", if kind == "xfs" { 320 } else { 128 });
            run(&format!("mkfs.{kind}"), &[&image])?;
            let disk = Loop::attach(&image)?;
            let target = folder.join("m");
            let mounted = Mounted::new(&[&disk.path], &target)?;
            let path = target.join("volume");
            make(&path);
            let first = life(&path);
            assert_ne!(first, UNKNOWN, "{kind}");
            if kind != "vfat" {
                stays(&path, &folder.join("elsewhere"));
            } else {
                assert_eq!(life(&path), first);
            }
            // A second mount keeps it alive.
            let second = Mounted::new(&[&disk.path], &folder.join("second"))?;
            drop(mounted);
            if kind != "vfat" {
                assert_eq!(life(&second.0.join("volume")), first, "{kind}");
            }
            drop(second);
            let mounted = Mounted::new(&[&disk.path], &target)?;
            let second = life(&path);
            assert!(second != first && second != UNKNOWN, "{kind}: mounted again");
            if kind != "vfat" {
                is_no_copy(&path);
            }
            drop(mounted);
            // The disk goes and comes back, on the same number.
            disk.detach();
            let disk = Loop::attach(&image)?;
            let _mounted = Mounted::new(&[&disk.path], &target)?;
            assert!(life(&path) != second && life(&path) != first, "{kind}: attached again");
            Ok(())
        });
    }
}

/// A file system that shuts itself down after an error loses what it had not written.
#[test]
fn a_file_system_that_is_shut_down_lives_no_longer() {
    const EXT4_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;
    with_disks(|folder| {
        let image = disk(folder, "image", 64);
        run("mkfs.ext4", &[&image])?;
        let disk = Loop::attach(&image)?;
        let target = folder.join("m");
        let mounted = Mounted::new(&[&disk.path], &target)?;
        let path = target.join("volume");
        make(&path);
        let first = life(&path);
        run("sync", &[])?;
        let no_log_flush = 2u32;
        let root = File::open(&target).unwrap();
        // SAFETY: the call reads 32 bits.
        let done = unsafe { libc::ioctl(root.as_raw_fd(), EXT4_IOC_SHUTDOWN, &no_log_flush) };
        assert_eq!(done, 0);
        drop(root);
        drop(mounted);
        let _mounted = Mounted::new(&[&disk.path], &target)?;
        assert_ne!(life(&path), first);
        Ok(())
    });
}

#[test]
fn a_disk_lives_until_it_is_detached() {
    with_disks(|folder| {
        let image = disk(folder, "image", 4);
        let disk = Loop::attach(&image)?;
        let first = life(&disk.path);
        assert_ne!(first, UNKNOWN);
        assert_eq!(life(&disk.path), first);
        let node = folder.join("node");
        let number = run("stat", &[&"-c", &"%Hr %Lr", &disk.path])?;
        let (major, minor) = number.split_once(' ').unwrap();
        run("mknod", &[&node, &"b", &major, &minor])?;
        assert_eq!(life(&node), first, "another node of the same disk");
        let path = disk.path.clone();
        disk.detach();
        let disk = Loop::attach(&image)?;
        assert!(life(&disk.path) != first, "{path:?} and {:?}", disk.path);
        Ok(())
    });
}

/// Memory that is elsewhere, or under a mount that may outlive it.
#[test]
fn an_overlay_lives_with_its_mount() {
    with_disks(|folder| {
        let under = Mounted::new(&[&"-t", &"tmpfs", &"none"], &folder.join("under"))?;
        for name in ["lower", "upper", "work"] {
            std::fs::create_dir(under.0.join(name)).unwrap();
        }
        let place = |name: &str| under.0.join(name).display().to_string();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            place("lower"),
            place("upper"),
            place("work")
        );
        let arguments: [&dyn AsRef<std::ffi::OsStr>; 5] =
            [&"-t", &"overlay", &"-o", &options, &"none"];
        let target = folder.join("m");
        let mounted = Mounted::new(&arguments, &target)?;
        let path = target.join("volume");
        make(&path);
        let first = life(&path);
        assert_eq!(life(&path), first);
        drop(mounted);
        let _mounted = Mounted::new(&arguments, &target)?;
        assert!(life(&path) != first || first == UNKNOWN, "mounted again");
        Ok(())
    });
}
