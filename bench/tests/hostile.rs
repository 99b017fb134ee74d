//! The small form of `bench hostile`: every attack is made, and the victim's data is its own.

use std::path::Path;
use std::process::Command;

#[test]
fn every_attack_is_made() {
    let bench = Path::new(env!("CARGO_BIN_EXE_atoll-bench"));
    let is_root = std::fs::metadata("/proc/self")
        .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: attacks are made by other users, some by FUSE, which needs root");
        return;
    }
    // Tests of the whole workspace build it, and those of this crate alone do not.
    let server = bench.with_file_name("atoll");
    assert!(server.exists(), "there is no {}: cargo build -p atoll-cli", server.display());
    let out = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(bench);
    command.args(["hostile", "--smoke", "--out"]).arg(out.path());
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("\nforgets "), "{text}");
}
