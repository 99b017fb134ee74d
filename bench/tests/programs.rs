//! Programs that know nothing of volumes, run on one by the interposer of the benchmarks: PostMark,
//! gdbm, and calls of every kind.

#[path = "../../crates/libatoll/tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use common::{compile, linked_statically, need, strs, succeed};
use tempfile::TempDir;

/// A folder with the interposer in it.
fn workshop() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let include = common::folder().join("../crates/libatoll/include").display().to_string();
        let own = ["-shared", "-fPIC", "-I", &include].map(String::from);
        let arguments = [own.to_vec(), linked_statically()].concat();
        let library = folder.path().join("interposer.so");
        compile(&["programs/interposer.c"], &library, &strs(&arguments));
        folder
    });
    folder.path()
}

/// The command that runs `program` with the volume in `folder` at /atoll.
fn on_volume(program: &Path, folder: &Path, mode: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", workshop().join("interposer.so"))
        .env("ATOLL_VOLUME", folder.join("test.vol"))
        .env("ATOLL_PREFIX", "/atoll")
        .env("ATOLL_MODE", mode)
        .env("ATOLL_BYTES", (1u64 << 30).to_string());
    command
}

fn built(source: &str, library: &[&str]) -> PathBuf {
    let name = Path::new(source).file_stem().expect("a file").to_owned();
    let to = workshop().join(name);
    compile(&[source], &to, library);
    to
}

#[test]
fn calls_of_every_kind() {
    let program = built("tests/c/ordinary.c", &[]);
    for mode in ["mapped", "pread", "ram"] {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let output = succeed(on_volume(&program, folder.path(), mode).arg("/atoll"));
        assert_eq!(output, "ordinary\n");
    }
    // It means the same on the host, but for what a volume cannot do.
    assert!(!Path::new("/atoll").exists(), "nothing is made at the prefix");
}

#[test]
fn gdbm() {
    need("/usr/include/gdbm.h", "libgdbm-dev");
    let program = built("tests/c/gdbm.c", &["-lgdbm"]);
    for mode in ["mapped", "pread"] {
        let folder = tempfile::tempdir().expect("a temporary directory");
        for what in ["store", "fetch"] {
            let mut command = on_volume(&program, folder.path(), mode);
            let output = succeed(command.args(["/atoll/data.gdbm", what, "3000"]));
            assert_eq!(output, "all there\n");
        }
    }
}

/// The counts of PostMark: created, alone, in transactions; read; appended; deleted, alone, in
/// transactions.
type Counts = [u32; 8];

/// Runs PostMark as the HermitCore report did, and compares its counts with that report's.
fn postmark(files: u32, buffering: bool, mode: &str, golden: Counts) {
    use std::io::Write;
    need("/usr/bin/postmark", "postmark");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut command = on_volume("/usr/bin/postmark".as_ref(), folder.path(), mode);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it is there");
    let commands = format!(
        "set location /atoll\nset size 500 10000\nset number {files}\nset transactions 500\n\
         set read 512\nset write 512\nset buffering {buffering}\nset report verbose\nrun\nquit\n"
    );
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(commands.as_bytes()).expect("PostMark reads");
    drop(input);
    let output = child.wait_with_output().expect("PostMark ends");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text} {errors}", output.status);
    assert!(!text.contains("Error") && errors.is_empty(), "{text} {errors}");
    let number = |line: &str, after: &str| -> Option<u32> {
        let text = line.split_once(after)?.1.trim_start();
        text.split(' ').next()?.parse().ok()
    };
    let mut counts = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        let first = ["created", "read", "appended", "deleted"]
            .iter()
            .any(|what| line.contains(&format!(" {what} (")) && !line.contains("megabytes"));
        if line.starts_with("Creation alone:") || line.starts_with("Deletion alone:") {
            counts.extend(number(line, "alone:"));
        } else if line.starts_with("Mixed with transactions:") {
            counts.extend(number(line, "transactions:"));
        } else if first {
            counts.extend(line.split(' ').next().and_then(|n| n.parse::<u32>().ok()));
        }
    }
    assert_eq!(counts, golden, "{text}");
}

#[test]
fn postmark_500_files_buffered() {
    postmark(500, true, "mapped", [764, 500, 264, 243, 257, 764, 528, 236]);
    postmark(500, true, "pread", [764, 500, 264, 243, 257, 764, 528, 236]);
}

#[test]
fn postmark_1_000_files() {
    postmark(1000, false, "mapped", [1248, 1000, 248, 255, 245, 1248, 996, 252]);
    postmark(1000, false, "pread", [1248, 1000, 248, 255, 245, 1248, 996, 252]);
}

#[test]
fn postmark_10_000_files() {
    postmark(10_000, false, "mapped", [10256, 10000, 256, 247, 253, 10256, 10012, 244]);
}

#[test]
fn postmark_100_000_files() {
    postmark(100_000, false, "ram", [100238, 100000, 238, 246, 254, 100238, 99976, 262]);
}
