//! Volumes on the disk of a vhost-user-blk back end, by each command that takes a volume.
#![allow(missing_docs)]

mod common;

use std::path::Path;

use atoll_vm::StorageDaemon;
use common::serving::Served;
use common::{atoll, fails, folder, fsck, ok, volume};

fn image(folder: &Path, bytes: u64) -> std::path::PathBuf {
    let path = folder.join("image");
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

#[test]
fn by_each_command() {
    let dir = folder();
    let daemon = StorageDaemon::start(&image(dir.path(), 64 << 20));
    let place = daemon.place().display().to_string();
    let at = |path: &str| format!("{place}:{path}");
    assert_eq!(ok(atoll().args(["mkfs", &place])), format!("{place}: a volume of 64 MiB\n"));
    let said = fails(atoll().args(["mkfs", &place]), 1);
    assert!(said.contains("holds data; nothing was changed"), "{said}");
    let said = fails(atoll().args(["mkfs", "--force", "--size", "32M", &place]), 1);
    assert!(said.contains("the disk has 64 MiB"), "{said}");

    std::fs::create_dir(dir.path().join("tree")).unwrap();
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(dir.path().join("tree/large"), &data).unwrap();
    std::fs::write(dir.path().join("tree/small"), b"some words\n").unwrap();
    ok(atoll().args(["cp", "-r"]).arg(dir.path().join("tree")).arg(at("/")));
    assert_eq!(ok(atoll().args(["cat", &at("/tree/small")])), "some words\n");
    assert_eq!(ok(atoll().args(["ls", &at("/tree")])), "large\nsmall\n");
    ok(atoll().args(["cp", &at("/tree/large")]).arg(dir.path().join("back")));
    assert!(std::fs::read(dir.path().join("back")).unwrap() == data, "what was copied there");
    ok(atoll().args(["mkdir", &at("/made")]));
    ok(atoll().args(["rm", &at("/tree/small")]));
    assert_eq!(ok(atoll().args(["ls", &place])), "made\ntree\n");
    ok(atoll().args(["info", &place]));
    ok(atoll().args(["fsck", &place]));
    ok(atoll().args(["dump", &place]));
    ok(atoll().args(["trim", &place]));

    // A program on it, with a server of its own.
    let script = "set -e; cd /vol; echo one >made/a; mv made/a made/b; cp tree/large copy
        cmp tree/large copy; sync; rm copy; cat made/b; ls";
    let said = ok(atoll().args(["run", "--quiet", "-v", &place, "--", "sh", "-c", script]));
    assert_eq!(said, "one\nmade\ntree\n");

    // The disk is a volume like another, which the file below it shows.
    let path = dir.path().join("image");
    assert_eq!(ok(atoll().arg("cat").arg(format!("{}:/made/b", path.display()))), "one\n");
    fsck(&path);
    // Larger, and then the volume too.
    let larger = std::fs::File::options().write(true).open(&path).unwrap();
    larger.set_len(96 << 20).unwrap();
    let daemon = StorageDaemon::start(&path);
    let place = daemon.place();
    assert!(ok(atoll().arg("grow").arg(&place)).contains(": 96 MiB, where it had 64 MiB"));
    ok(atoll().arg("fsck").arg(&place));
}

/// A server has the disk, confined as it is, and ends without a trace of damage by SIGKILL too.
#[test]
fn served() {
    let dir = folder();
    let path = image(dir.path(), 64 << 20);
    let daemon = StorageDaemon::start(&path);
    let place = daemon.place().display().to_string();
    ok(atoll().args(["mkfs", &place]));
    // The volumes that tests of servers look at.
    for name in ["a.vol", "b.vol"] {
        volume(dir.path(), name, "32M");
    }
    let mut served = Served::again(dir, &[&format!("d={place}")]);
    let script = "set -e; mkdir /vol/d; cd /vol/d; seq 100000 >seq; cp seq copy; sync; rm copy
        mv seq there; cksum <there; echo last >last";
    let said = ok(&mut served.run("s:/vol", script));
    assert_eq!(said, ok(&mut served.run("s:/vol", "cksum </vol/d/there")));
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    // What was not synced too: the back end has it.
    assert_eq!(ok(atoll().arg("cat").arg(format!("{place}:/d/last"))), "last\n");
    ok(atoll().args(["fsck", &place]));
    drop(daemon);
    fsck(&path);
}
