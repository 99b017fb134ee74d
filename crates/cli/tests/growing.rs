//! Volumes that cannot grow, or are not made: their files are as long as they were.
#![allow(missing_docs)]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{atoll, fails, folder, fsck, listens, need, ok, volume, wait_until};

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// `atoll` as a shell runs it after `before`, in `dir`.
fn under(before: &str, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("bash");
    let script = format!("{before} && exec \"$0\" \"$@\"");
    command.current_dir(dir).args(["-c", &script, env!("CARGO_BIN_EXE_atoll")]).args(args);
    command
}

fn grow(dir: &Path, size: &str) -> Command {
    under("true", dir, &["grow", "--size", size, "v.vol"])
}

/// Makes the file a few bytes longer than the volume, as none that Atoll makes is.
fn odd_length(path: &Path) -> u64 {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_len(length(path) + 17).unwrap();
    length(path)
}

#[test]
fn a_refused_grow_leaves_the_file_as_long_as_it_was() {
    let dir = folder();
    let path = dir.path();
    let file = volume(path, "v.vol", "16M");
    ok(atoll().current_dir(path).args(["mkdir", "v.vol:/kept"]));
    let before = odd_length(&file);
    let sound = std::fs::read(&file).unwrap();
    let refused = |mut command: Command, why: &str| {
        let said = fails(&mut command, 1);
        assert!(said.contains(why), "{said}");
        assert_eq!(length(&file), before, "{said}");
    };
    refused(grow(path, "8M"), "cannot be made smaller");
    // Longer than the host allows, than this process may write, and than it can map.
    refused(grow(path, "3E"), "");
    let limited = |limit: &str| under(limit, path, &["grow", "--size", "8G", "v.vol"]);
    refused(limited("ulimit -f 1048576"), "ulimit -f");
    refused(limited("ulimit -v 4194304"), "ulimit -v");
    // A server has it.
    let mut serve = atoll();
    serve.current_dir(path).args(["serve", "v.vol", "--socket", "s"]).stderr(Stdio::null());
    let mut server = serve.spawn().unwrap();
    wait_until("a server", || listens(&path.join("s")));
    refused(grow(path, "64M"), "in use");
    server.kill().unwrap();
    server.wait().unwrap();
    // Its journal's headers are damaged, all that there are: one mount finds that, after the first
    // look at the superblock has not.
    std::fs::write(&file, &sound).unwrap();
    let dump = ok(atoll().current_dir(path).args(["dump", "--json", "v.vol"]));
    let headers: Vec<u64> = dump
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|element| element["kind"] == "journal header")
        .map(|element| element["block"].as_u64().unwrap())
        .collect();
    assert_eq!(headers.len(), 4, "{dump}");
    let opened = std::fs::File::options().write(true).open(&file).unwrap();
    for block in headers {
        opened.write_all_at(&[0x55; 4096], block * 4096).unwrap();
    }
    refused(grow(path, "64M"), "fsck");
    std::fs::write(&file, &sound).unwrap();
    fsck(&file);
    ok(&mut grow(path, "64M"));
    assert_eq!(length(&file), 64 << 20);
    fsck(&file);
    assert_eq!(ok(atoll().current_dir(path).args(["ls", "v.vol:/"])), "kept\n");
}

/// A tmpfs with room for the volume and not for the journal of a larger one.
#[test]
fn a_full_host_keeps_the_length_of_a_volume() {
    need("unshare", "util-linux");
    let dir = folder();
    let script = "mount -t tmpfs -o size=24m none . && cd \"$PWD\"
        atoll() { \"$ATOLL\" \"$@\"; }
        atoll mkfs -s 16M v.vol && atoll mkdir v.vol:/kept
        printf tail >> v.vol; before=$(stat -c %s v.vol)
        ! said=$(atoll grow -s 4G v.vol 2>&1); [[ $said == *'no space'* ]] || { echo \"$said\"; exit 3; }
        [ $(stat -c %s v.vol) = $before ] || { ls -l v.vol; exit 4; }
        atoll fsck v.vol && atoll ls v.vol
        : > empty; ! said=$(atoll mkfs -s 4G empty 2>&1)
        [[ $said == *'no space'* && $(stat -c %s empty) = 0 ]] || { echo \"$said\"; ls -l; exit 5; }
        mount -o remount,size=400m . && atoll grow -s 4G v.vol && atoll fsck v.vol && atoll ls v.vol";
    let mut shell = Command::new("unshare");
    shell.current_dir(dir.path()).env("ATOLL", env!("CARGO_BIN_EXE_atoll"));
    shell.args(["--user", "--map-root-user", "--mount"]);
    if !Command::new("unshare")
        .args(["--user", "--map-root-user", "true"])
        .status()
        .unwrap()
        .success()
    {
        return println!("skipped: user namespaces are not permitted here");
    }
    let said = ok(shell.args(["bash", "-ec", script]));
    assert_eq!(said.matches("kept").count(), 2, "{said}");
}

/// Killed at any moment: the file is as long as the volume in it or longer, and a later attempt
/// takes it from there.
#[test]
fn a_killed_grow_is_done_again() {
    let dir = folder();
    let path = dir.path();
    let mut killed = 0;
    for round in 0..40u32 {
        let file = volume(path, "v.vol", "4M");
        ok(atoll().current_dir(path).args(["mkdir", "v.vol:/kept"]));
        let mut command = grow(path, "300M");
        let mut growing = command.stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(500) * round);
        let _ = growing.kill();
        killed += u32::from(!growing.wait().unwrap().success());
        fsck(&file);
        let ls = || ok(atoll().current_dir(path).args(["ls", "v.vol:/"]));
        assert_eq!(ls(), "kept\n");
        ok(&mut grow(path, if round % 2 == 0 { "300M" } else { "400M" }));
        fsck(&file);
        assert_eq!(ls(), "kept\n");
        std::fs::remove_file(file).unwrap();
    }
    assert!(killed > 3, "{killed}");
}

/// A file that is there and of which no volume is made.
#[test]
fn a_refused_mkfs_leaves_the_file_as_long_as_it_was() {
    let dir = folder();
    let path = dir.path();
    for before in [0, 100, 5 << 20] {
        let file = path.join("f");
        std::fs::File::create(&file).unwrap().set_len(before).unwrap();
        for args in [
            &["mkfs", "-s", "8M", "--journal", "8M", "f"][..],
            &["mkfs", "--force", "-s", "8M", "--journal", "8M", "f"],
            &["mkfs", "-s", "512K", "f"],
            &["mkfs", "-s", "3E", "f"],
        ] {
            let said = fails(atoll().current_dir(path).args(args), 1);
            assert_eq!(length(&file), before, "{args:?}: {said}");
        }
        let mut limited = under("ulimit -v 4194304", path, &["mkfs", "-s", "8G", "f"]);
        fails(&mut limited, 1);
        assert_eq!(length(&file), before);
    }
}
