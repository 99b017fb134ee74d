//! The owner of a disk keeps others away, whatever name they reach it by.

mod common;

use std::path::{Path, PathBuf};

use atoll_host::device::{Access, Create, HostDevice, OpenError, OpenOptions, open};
use common::{Loop, Mounted, disk, run, with_disks};

fn opened(path: &Path, read_only: bool) -> Result<HostDevice, OpenError> {
    open(path, &OpenOptions { read_only, flusher: true, ..OpenOptions::default() })
}

fn in_use(path: &Path, read_only: bool) -> bool {
    match opened(path, read_only) {
        Ok(_) => false,
        Err(OpenError::InUse { .. }) => true,
        Err(error) => panic!("{path:?}: {error}"),
    }
}

/// A process that writes by one of the names is alone; one that looks by any of them shares it with
/// others that look.
fn are_one(names: &[PathBuf]) {
    for holder in names {
        let _held = opened(holder, false).unwrap();
        for other in names {
            assert!(in_use(other, false), "{other:?} while {holder:?} is written");
            assert!(in_use(other, true), "{other:?} while {holder:?} is written");
        }
    }
    for name in names {
        let looking = [opened(name, true).unwrap(), opened(name, true).unwrap()];
        assert!(in_use(name, false));
        drop(looking);
        assert!(!in_use(name, false), "{name:?} is free again");
    }
}

fn node(folder: &Path, of: &Path) -> Result<PathBuf, String> {
    let node = folder.join("node");
    let number = run("stat", &[&"-c", &"%Hr %Lr", &of])?;
    let (major, minor) = number.split_once(' ').unwrap();
    run("mknod", &[&node, &"b", &major, &minor])?;
    Ok(node)
}

#[test]
fn a_file_by_its_names() {
    let _alone = common::alone();
    let folder = tempfile::tempdir().unwrap();
    let path = disk(folder.path(), "volume", 1);
    let link = folder.path().join("link");
    std::fs::hard_link(&path, &link).unwrap();
    are_one(&[path, link]);
}

#[test]
fn a_disk_by_its_nodes_and_its_file() {
    with_disks(|folder| {
        let image = disk(folder, "image", 4);
        let disk = Loop::attach(&image)?;
        let node = node(folder, &disk.path)?;
        are_one(&[disk.path.clone(), node, image]);
        Ok(())
    });
}

/// A disk behind a disk.
#[test]
fn a_disk_by_what_is_below() {
    with_disks(|folder| {
        let image = disk(folder, "image", 4);
        let below = Loop::attach(&image)?;
        let above = Loop::attach(&below.path)?;
        let _held = opened(&above.path, false).unwrap();
        for other in [&below.path, &image] {
            assert!(in_use(other, false), "{other:?}");
        }
        Ok(())
    });
}

/// A file system's disk, or the file behind it, is nobody's to write to, not even to make a volume
/// of it.
#[test]
fn a_mounted_disk() {
    with_disks(|folder| {
        let image = disk(folder, "image", 16);
        run("mkfs.ext4", &[&image])?;
        let disk = Loop::attach(&image)?;
        let mounted = Mounted::new(&[&disk.path], &folder.join("m"))?;
        let node = node(folder, &disk.path)?;
        for name in [&disk.path, &node, &image] {
            assert!(in_use(name, false), "{name:?}");
            let access = Access::Direct { cache_bytes: 1 << 16 };
            let options =
                OpenOptions { access, create: Create::IfMissing, ..OpenOptions::default() };
            assert!(matches!(open(name, &options), Err(OpenError::InUse { .. })), "{name:?}");
        }
        drop(mounted);
        are_one(&[disk.path.clone(), node, image]);
        // And the other way round.
        let held = opened(&disk.path, false).unwrap();
        assert!(Mounted::new(&[&disk.path], &folder.join("m")).is_err());
        drop(held);
        Mounted::new(&[&disk.path], &folder.join("m")).map(drop)
    });
}
