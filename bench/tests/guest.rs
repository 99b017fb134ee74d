//! The small form of `bench guest`: everything is measured on each that is there, and its data is
//! its own.

use std::path::Path;
use std::process::Command;

#[test]
fn a_guest_of_each_is_measured() {
    let bench = Path::new(env!("CARGO_BIN_EXE_atoll-bench"));
    // Tests of the whole workspace build it, and those of this crate alone do not.
    let server = bench.with_file_name("atoll");
    assert!(server.exists(), "there is no {}: cargo build -p atoll-cli", server.display());
    let disk = tempfile::tempdir().expect("a temporary directory");
    let is_root = std::fs::metadata("/proc/self")
        .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let mut kinds = vec!["volume", "directory", "volume-kept", "directory-kept", "native"];
    // The stock daemons change their root directory.
    if is_root && Path::new("/usr/lib/qemu/virtiofsd").exists() {
        kinds.push("c");
    }
    if is_root && std::env::var_os("ATOLL_VIRTIOFSD").is_some() {
        kinds.push("rust");
    }
    let report = disk.path().join("report");
    let mut command = Command::new(bench);
    command.args(["guest", "--smoke", "--on", &kinds.join(","), "--disk"]).arg(disk.path());
    let output = command.arg("--report").arg(&report).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert_eq!(std::fs::read_to_string(&report).expect("a report"), text);
    for name in
        ["write 16 B, random + fsync", "read 1024 KiB ", "list an entry, of 16", "remove, 2 "]
    {
        let row = text.lines().find_map(|line| line.strip_prefix("  ")?.strip_prefix(name));
        let row = row.unwrap_or_else(|| panic!("no row `{name}`: {text}"));
        // Times; processor times are in brackets.
        let times = row.split(' ').filter_map(|word| word.parse::<f64>().ok());
        assert_eq!(times.filter(|time| *time > 0.0).count(), kinds.len(), "{row}");
    }
    assert!(!text.contains("ahead of"), "a smoke run judges: {text}");
}
