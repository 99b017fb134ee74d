//! A volume that a process has is nobody else's, also where no lock can say so.
#![allow(missing_docs)]

mod common;

use std::process::Stdio;

use common::{atoll, fails, folder, fsck, ok, script_ok, volume, wait_until};

/// A copy of the volume's file stands for the same file by a way that has no locks.
#[test]
fn a_mark_says_who_has_a_volume() {
    let dir = folder();
    let path = dir.path();
    let file = volume(path, "v.vol", "16M");
    let mut server = atoll()
        .current_dir(path)
        .args(["serve", "v.vol", "--socket", "s"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("a server", || path.join("s").exists());
    script_ok(path, "cp v.vol seen.vol");
    let run = |args: &[&str]| fails(atoll().current_dir(path).args(args), 1);
    let pid = server.id().to_string();
    for args in [
        &["mkdir", "seen.vol:/x"][..],
        &["ls", "seen.vol"],
        &["grow", "--size", "32M", "seen.vol"],
        &["mkfs", "--force", "seen.vol"],
    ] {
        let said = run(args);
        assert!(said.contains("in use") && said.contains(&pid), "{args:?}: {said}");
    }
    let kept = std::fs::read(path.join("seen.vol")).unwrap();
    assert!(kept == std::fs::read(&file).unwrap(), "nothing was changed");
    // A server that has crashed holds its volume no more, nor does one that released it.
    server.kill().unwrap();
    server.wait().unwrap();
    ok(atoll().current_dir(path).args(["mkdir", "seen.vol:/x"]));
    ok(atoll().current_dir(path).args(["mkdir", "v.vol:/x"]));
    fsck(&file);
    fsck(&path.join("seen.vol"));
}
