//! Volumes on file systems and disks that this machine may not have: XFS, Btrfs, and disks that
//! fail at single places. In a guest, whose kernel has them.
#![allow(missing_docs)]

mod common;

use std::path::Path;
use std::process::Command;

use atoll_vm::{Guest, Image, Machine, parts};
use common::{TempDir, folder, need, ok};

/// Functions of the scripts in guests, by a line before them.
const FUNCTIONS: &str = include_str!("host_disks.sh");

/// A disk of so many mebibytes.
fn disk(dir: &TempDir, name: &str, mebibytes: u64) {
    let file = std::fs::File::create(dir.path().join(name)).unwrap();
    file.set_len(mebibytes << 20).unwrap();
}

/// A guest with atoll and the disks `names`, as /dev/vda and so on.
fn boot(dir: &Path, names: &[&str], modules: &[&str]) -> Guest {
    // Half of it holds the files, and the program has what debuggers want.
    let mut machine = Machine::new().memory(1024);
    for name in names {
        let file = dir.join(name);
        let drive = format!("file={},if=none,id={name},format=raw", file.display());
        machine = machine.option("-drive", &drive);
        machine = machine.device(&format!("virtio-blk-pci,drive={name}"));
    }
    let modules = ["virtio_blk", "crc32c_generic"].iter().chain(modules);
    let image = modules
        .fold(Image::new(), |image, module| image.module(module))
        .program(env!("CARGO_BIN_EXE_atoll").as_ref())
        .program(&parts::program("dmsetup", "dmsetup"))
        .program(&parts::program("btrfs", "btrfs-progs"))
        .program(&parts::program("cp", "coreutils"))
        .program(&parts::program("sync", "coreutils"))
        .file("/functions", FUNCTIONS);
    Guest::boot(&machine, &image)
}

fn run(guest: &mut Guest, script: &str) -> String {
    guest.ok(&format!(". /functions\n{script}"))
}

/// What a process stored and did not sync is there as long as the memory of the host's file system
/// is, under whatever name its file is found; with another life of that memory, or in a copy, what
/// is durable is.
fn lives(kind: &str, mebibytes: u64, modules: &[&str]) {
    let make = format!("mkfs.{kind}");
    need(&make, if kind == "xfs" { "xfsprogs" } else { "btrfs-progs" });
    let dir = folder();
    disk(&dir, "host", mebibytes);
    ok(Command::new(make).arg("-q").arg(dir.path().join("host")));
    let mut guest = boot(dir.path(), &["host"], modules);
    run(
        &mut guest,
        &format!("mkdir /h /m; mount -t {kind} /dev/vda /h; atoll mkfs -s 32M /h/v.vol"),
    );
    // The same life, however often it is asked.
    run(&mut guest, "use_and_kill /h/v.vol first");
    for _ in 0..2 {
        assert_eq!(run(&mut guest, "atoll ls /h/v.vol"), "first-synced\nfirst-unsynced\n");
    }
    run(&mut guest, "mv /h/v.vol /h/w.vol; ln /h/w.vol /h/v.vol; rm /h/w.vol");
    assert_eq!(run(&mut guest, "atoll ls /h/v.vol"), "first-synced\nfirst-unsynced\n");
    // Copies are others: what they share with the file is no life.
    run(&mut guest, "cp --reflink=always /h/v.vol /h/copy.vol; cp /h/v.vol /h/plain.vol");
    assert_eq!(
        run(&mut guest, "atoll ls /h/copy.vol; atoll ls /h/plain.vol"),
        "first-synced\nfirst-synced\n"
    );
    if kind == "btrfs" {
        run(&mut guest, "btrfs -q subvolume snapshot /h /h/snapshot");
        assert_eq!(run(&mut guest, "atoll ls /h/snapshot/v.vol"), "first-synced\n");
        // The same inode number, generation and time of birth: another subvolume.
        assert_eq!(
            run(&mut guest, "stat -c '%i' /h/v.vol"),
            run(&mut guest, "stat -c '%i' /h/snapshot/v.vol")
        );
        run(&mut guest, "mv /h/v.vol /h/kept.vol; mv /h/snapshot/v.vol /h/v.vol");
        assert_eq!(run(&mut guest, "atoll ls /h/v.vol"), "first-synced\n");
        run(&mut guest, "mv /h/kept.vol /h/v.vol");
    }
    run(&mut guest, "mv /h/v.vol /h/kept.vol; mv /h/copy.vol /h/v.vol");
    assert_eq!(run(&mut guest, "atoll ls /h/v.vol"), "first-synced\n");
    run(&mut guest, "mv /h/kept.vol /h/v.vol");
    // A second mount keeps the memory; unmounted everywhere and mounted again it is another.
    run(&mut guest, &format!("mkdir /h2; mount -t {kind} /dev/vda /h2; umount /h"));
    assert_eq!(run(&mut guest, "atoll ls /h2/v.vol"), "first-synced\nfirst-unsynced\n");
    run(&mut guest, &format!("umount /h2; mount -t {kind} /dev/vda /h"));
    assert_eq!(run(&mut guest, "atoll ls /h/v.vol"), "first-synced\n");
    run(&mut guest, "atoll fsck /h/v.vol; atoll rm -r /h/v.vol:/first-synced");
    // Who goes on in the new life is believed in that, and the earlier one stays lost.
    run(&mut guest, "use_and_kill /h/v.vol second");
    assert_eq!(run(&mut guest, "atoll ls /h/v.vol"), "second-synced\nsecond-unsynced\n");
    // The power fails.
    guest.kill();
    let mut guest = boot(dir.path(), &["host"], modules);
    run(&mut guest, &format!("mkdir /h /m; mount -t {kind} /dev/vda /h"));
    assert_eq!(run(&mut guest, "atoll fsck -q /h/v.vol; atoll ls /h/v.vol"), "second-synced\n");
    run(&mut guest, "use_and_kill /h/v.vol third");
    assert_eq!(
        run(&mut guest, "atoll ls /h/v.vol"),
        "second-synced\nthird-synced\nthird-unsynced\n"
    );
    guest.end();
}

#[test]
fn a_file_on_xfs_lives_with_its_mount() {
    lives("xfs", 320, &["xfs"]);
}

#[test]
fn a_file_on_btrfs_lives_with_its_mount() {
    lives("btrfs", 256, &["btrfs"]);
}

/// A volume on a disk of which single blocks can be made to fail.
struct Failing {
    guest: Guest,
    /// Kinds of blocks, with two of each, and whether the volume has such a block only once.
    blocks: Vec<(String, u64, bool)>,
    names: Vec<String>,
}

impl Failing {
    fn boot(dir: &TempDir) -> Failing {
        disk(dir, "disk", 16);
        let mut guest = boot(dir.path(), &["disk"], &["dm_mod", "dm_flakey"]);
        run(
            &mut guest,
            "disk_with linear 0; atoll mkfs /dev/mapper/v; mkdir /tmp/t
             for i in $(seq 400); do echo $i > /tmp/t/a-name-that-is-long-enough-$i; done
             atoll cp -r /tmp/t /dev/mapper/v:/; cp /dev/mapper/v /tmp/saved",
        );
        let listed = run(&mut guest, "atoll ls /dev/mapper/v:/t");
        let names: Vec<String> = listed.lines().map(str::to_owned).collect();
        assert_eq!(names.len(), 400);
        let dump = run(
            &mut guest,
            "atoll dump --json --maps --nodes /dev/mapper/v; atoll dump --json /dev/mapper/v",
        );
        let mut blocks: Vec<(String, u64, bool)> = Vec::new();
        for line in dump.lines() {
            let element: serde_json::Value = serde_json::from_str(line).unwrap();
            let kind = match (element["kind"].as_str().unwrap(), &element["level"]) {
                ("node", level) => format!("node of level {level}"),
                (kind @ ("superblock" | "journal header" | "map"), _) => kind.to_owned(),
                _ => continue,
            };
            let block = element["block"].as_u64().unwrap();
            let once = kind.starts_with("node");
            let of_kind = blocks.iter().filter(|(other, ..)| *other == kind).count();
            if of_kind < 2 && !blocks.iter().any(|(_, other, _)| *other == block) {
                if kind == "map" {
                    blocks.push((kind.clone(), block + 1, once));
                }
                blocks.push((kind, block, once));
            }
        }
        assert!(blocks.len() >= 9, "{blocks:?}");
        Failing { guest, blocks, names }
    }

    fn run(&mut self, script: &str) -> String {
        run(&mut self.guest, script)
    }

    /// What a check or a repair says, and its status.
    fn check(&mut self, options: &str) -> (String, i32) {
        let said = self.run(&format!("check {options}"));
        let (said, status) = said.rsplit_once("status ").unwrap();
        (said.to_owned(), status.trim().parse().unwrap())
    }

    /// The volume is sound, and has the names; all of them unless a node was `lost`.
    fn assert_sound(&mut self, lost: bool, what: &str) {
        let (said, status) = self.check("");
        assert_eq!(status, 0, "{what}: {said}");
        let found = self.run("/bin/atoll ls /dev/mapper/v:/t 2> /dev/null || true");
        let found: Vec<&str> = found.lines().collect();
        assert!(
            found.iter().all(|name| self.names.iter().any(|known| known == name)),
            "{what}: {found:?}"
        );
        if !lost {
            assert_eq!(found, self.names, "{what}");
        }
    }
}

/// Blocks that cannot be read are damage, and a check changes nothing; a repair says that it
/// repaired the volume only where it has.
#[test]
fn fsck_of_a_disk_with_unreadable_blocks() {
    need("dmsetup", "dmsetup");
    let dir = folder();
    let mut failing = Failing::boot(&dir);
    for (kind, block, once) in failing.blocks.clone() {
        let what = format!("{kind} {block}");
        failing.run(&format!("restore; disk_with error {block}"));
        let (said, status) = failing.check("");
        assert!([4, 8].contains(&status) && !said.contains("is clean"), "{what}: {status} {said}");
        failing.run("disk_with linear 0");
        failing.assert_sound(false, &format!("{what}, looked at"));
        // It can neither be read nor written while the volume is repaired.
        failing.run(&format!("disk_with error {block}"));
        let (said, status) = failing.check("--repair");
        assert!([1, 8].contains(&status) && !said.contains("is clean"), "{what}: {status} {said}");
        if status == 1 {
            assert!(once, "{what}: it has to be written where it cannot be: {said}");
            failing.assert_sound(true, &format!("{what}, repaired ({said})"));
        }
        failing.run("disk_with linear 0");
        if status == 8 {
            let (said, status) = failing.check("--repair");
            assert!([0, 1].contains(&status), "{what}: {said}");
        }
        failing.assert_sound(once, &format!("{what}, healed"));
    }
    failing.guest.end();
}

/// What is repaired reaches the disk or is no repair: fsck says so, and where there is a place for
/// it the volume remembers that the disk failed.
#[test]
fn fsck_of_a_disk_that_takes_no_writes() {
    need("dmsetup", "dmsetup");
    let dir = folder();
    let mut failing = Failing::boot(&dir);
    let of = |kind: &str| failing.blocks.iter().find(|(other, ..)| other == kind).unwrap().1;
    let (leaf, map) = (of("node of level 0"), of("map"));
    let spoil = format!(
        "dd if=/dev/urandom of=/dev/mapper/v bs=4096 seek={leaf} count=1 conv=notrunc,fsync"
    );
    // Every repair writes maps; and one place of the superblock's must be written.
    for block in [map, 0] {
        let what = format!("block {block}");
        failing.run(&format!("restore; {spoil} 2> /dev/null"));
        if block == 0 {
            failing.run(
                "dd if=/dev/zero of=/dev/mapper/v bs=4096 count=1 conv=notrunc,fsync 2> /dev/null",
            );
        }
        failing.run(&format!("disk_with unwritable {block}"));
        let (said, status) = failing.check("--repair");
        assert_eq!(status, 8, "{what}: {said}");
        assert!(
            said.contains("cannot") && !said.contains("is clean") && !said.contains("repaired"),
            "{said}"
        );
        failing.run("disk_with linear 0");
        let (said, status) = failing.check("");
        assert_eq!(status, 4, "{what}: {said}");
        if block != 0 {
            assert!(said.contains("the device had failed"), "{what}: {said}");
        }
        let (said, status) = failing.check("--repair");
        assert_eq!(status, 1, "{what}: {said}");
        failing.assert_sound(true, &what);
    }
    // The same by a process that uses the volume.
    failing.run(&format!("restore; disk_with unwritable {map}"));
    failing.run("! atoll mkdir /dev/mapper/v:/t/new");
    failing.run("disk_with linear 0");
    let (said, status) = failing.check("");
    assert!(status == 0 && said.contains("the device had failed"), "{said}");
    failing.run("atoll rm -r /dev/mapper/v:/t/new || true");
    failing.assert_sound(false, "a failed unmount");
    failing.guest.end();
}
