//! Volumes that are made: of several at once one is, nothing that is there is lost, and no name is
//! left behind that is no volume.
#![allow(missing_docs)]

mod common;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{atoll, fails, folder, fsck, ok, volume};

fn run(dir: &Path, args: &[&str]) -> String {
    ok(atoll().current_dir(dir).args(args))
}

fn refuse(dir: &Path, args: &[&str], status: i32) -> String {
    fails(atoll().current_dir(dir).args(args), status)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Starts it `count` times at once, and returns how each ended, with what it said.
fn at_once(count: usize, mut command: impl FnMut(usize) -> Command) -> Vec<(bool, String)> {
    let started: Vec<Child> = (0..count)
        .map(|n| command(n).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    let ended = started.into_iter().map(|child| child.wait_with_output().unwrap());
    ended
        .map(|out| (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned()))
        .collect()
}

/// On a missing file, an empty one and one of zeros.
#[test]
fn one_of_many_makes_the_volume() {
    let dir = folder();
    let path = dir.path();
    for round in 0..30 {
        let name = format!("{round}.vol");
        match round % 3 {
            0 => {}
            1 => drop(std::fs::File::create(path.join(&name)).unwrap()),
            _ => std::fs::File::create(path.join(&name)).unwrap().set_len(2 << 20).unwrap(),
        }
        let ended = at_once(4, |n| {
            let mut command = atoll();
            let label = format!("made by {n}");
            command.current_dir(path).args(["mkfs", "-s", "1M", "--label", &label, &name]);
            command
        });
        let made: Vec<_> = (0..4).filter(|&n| ended[n].0).collect();
        assert_eq!(made.len(), 1, "{name}: {ended:?}");
        let info = run(path, &["info", &name]);
        assert!(info.contains(&format!("made by {}", made[0])), "{info}");
        fsck(&path.join(&name));
        std::fs::remove_file(path.join(&name)).unwrap();
    }
    assert!(names(path).is_empty(), "{:?}", names(path));
}

/// Bytes that a program has written and synced are in the volume that is there afterwards.
#[test]
fn programs_that_begin_at_once_without_a_volume() {
    let dir = folder();
    let path = dir.path();
    for _ in 0..5 {
        let ended = at_once(4, |n| {
            let script = format!("echo precious > /vol/{n} && sync /vol/{n}");
            let mut command = atoll();
            command.current_dir(path).args(["run", "-q", "--", "sh", "-c", &script]);
            command
        });
        assert!(ended.iter().any(|(done, _)| *done), "{ended:?}");
        for (n, (done, said)) in ended.iter().enumerate() {
            if *done {
                assert_eq!(run(path, &["cat", &format!("atoll.vol:/{n}")]), "precious\n");
            } else {
                assert!(said.contains("in use"), "{said}");
            }
        }
        assert_eq!(names(path), ["atoll.vol"]);
        std::fs::remove_file(path.join("atoll.vol")).unwrap();
    }
}

#[test]
fn what_cannot_be_made_leaves_everything() {
    let dir = folder();
    let path = dir.path();
    // A link is followed to what it says, and stays where that cannot be.
    symlink("missing/store", path.join("away.vol")).unwrap();
    refuse(path, &["mkfs", "-s", "1M", "away.vol"], 1);
    assert_eq!(names(path), ["away.vol"]);
    symlink("store", path.join("near.vol")).unwrap();
    run(path, &["mkfs", "-s", "1M", "near.vol"]);
    assert!(path.join("near.vol").is_symlink());
    fsck(&path.join("store"));
    // A limit is said, by mkfs as by run.
    for (limit, size) in [("ulimit -f", "100 16M"), ("ulimit -v", "4000000 8G")] {
        let (most, size) = size.split_once(' ').unwrap();
        let script = format!("{limit} {most}; exec \"$0\" mkfs -s {size} limited.vol");
        let mut limited = Command::new("bash");
        limited.current_dir(path).args(["-c", &script, env!("CARGO_BIN_EXE_atoll")]);
        let said = fails(&mut limited, 1);
        assert!(said.contains(limit), "{said}");
    }
    refuse(path, &["mkfs", "-s", "1M", "--label", &"l".repeat(65), "long.vol"], 1);
    assert_eq!(names(path), ["away.vol", "near.vol", "store"]);
}

/// A size that is given is the size, also where more is there.
#[test]
fn sizes_that_are_asked_for() {
    let dir = folder();
    let path = dir.path();
    volume(path, "v.vol", "64M");
    std::fs::File::create(path.join("blank")).unwrap().set_len(64 << 20).unwrap();
    for (args, len) in [
        (&["mkfs", "--force", "--size", "16M", "v.vol"][..], 16 << 20),
        (&["mkfs", "--size", "16M", "blank"], 16 << 20),
        (&["mkfs", "--force", "--size", "80M", "v.vol"], 80 << 20),
        (&["mkfs", "--force", "v.vol"], 80 << 20),
    ] {
        let said = run(path, args);
        assert!(said.contains(&format!("{} MiB", len >> 20)), "{args:?}: {said}");
        let file = path.join(args.last().unwrap());
        assert_eq!(std::fs::metadata(&file).unwrap().len(), len, "{args:?}");
        fsck(&file);
    }
    assert!(refuse(path, &["mkfs", "--size", "16M", "v.vol"], 1).contains("already"));
    assert_eq!(std::fs::metadata(path.join("v.vol")).unwrap().len(), 80 << 20);
}

/// A volume that the command line names twice, or that would stand for everything.
#[test]
fn places_that_make_no_sense() {
    let dir = folder();
    let path = dir.path();
    volume(path, "v.vol", "16M");
    symlink("v.vol", path.join("l.vol")).unwrap();
    for other in ["v.vol:/b", "l.vol:/b"] {
        let said = refuse(path, &["run", "-v", "v.vol:/a", "-v", other, "true"], 125);
        assert!(said.contains("second time"), "{said}");
    }
    let said = refuse(path, &["run", "-v", "v.vol:/", "true"], 125);
    assert!(said.contains("below /"), "{said}");
    // Output that cannot be written.
    for args in [&["completions", "bash"][..], &["ls", "v.vol"], &["info", "v.vol"]] {
        run(path, &["mkdir", "-p", "v.vol:/d"]);
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let out = atoll().current_dir(path).args(args).stdout(full).output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains("No space left"), "{args:?}: {said}");
    }
}
