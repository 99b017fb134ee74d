//! The small form of `bench programs`: every program does its work on each way to a file system
//! that this user and machine have.

use std::path::Path;
use std::process::Command;

/// Is there where the kernel can trace, and so lets root count requests.
const TRACING: &str = "/sys/kernel/tracing";

#[test]
fn every_program_is_measured() {
    let bench = Path::new(env!("CARGO_BIN_EXE_atoll-bench"));
    // Tests of the whole workspace build it, and those of this crate alone do not.
    let server = bench.with_file_name("atoll");
    assert!(server.exists(), "there is no {}: cargo build -p atoll-cli", server.display());
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(bench);
    command.args(["programs", "--smoke", "--out"]).arg(folder.path());
    command.arg("--disk").arg(folder.path());
    let is_root = std::fs::metadata("/proc/self")
        .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let counts = is_root && Path::new(TRACING).exists();
    command.args(counts.then_some("--requests"));
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");

    let mut lines = text.lines();
    let head = lines.find(|line| line.contains(" tmpfs ")).expect("a head");
    let columns: Vec<&str> = head.split_whitespace().collect();
    assert!(columns.contains(&"run"), "{text}");
    let figures = |name: &str| -> usize {
        let row = text.lines().find_map(|line| line.strip_prefix("  ")?.strip_prefix(name));
        let row = row.unwrap_or_else(|| panic!("no row `{name}`: {text}"));
        row.split(' ')
            .filter_map(|word| word.parse::<f64>().ok())
            .filter(|figure| *figure > 0.0)
            .count()
    };
    for name in [
        "git clone, ms",
        "tar -x, ms",
        "SQLite WAL, ms",
        "dbench, 4 clients, MB/s",
        "nginx, a file of 64 KiB, 1/s",
    ] {
        assert_eq!(figures(name), columns.len(), "{text}");
    }
    assert_eq!(figures("run of true, ms"), 1, "{text}");
    if counts {
        let line = text.lines().find(|line| line.contains("tar -x ") && line.contains(" run "));
        let line = line.expect("requests of tar");
        assert!(line.contains("MKNOD 40"), "{line}");
    } else {
        println!("skipped: requests are counted where root has the kernel's tracing");
    }
    assert!(!text.contains("missed"), "a smoke run judges: {text}");
}
