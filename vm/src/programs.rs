//! The programs that tests run in a guest, on a file system that it has mounted. Each checks what
//! it reads.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Guest, Image, parts};

/// How long each may take: many times what it does in a guest that is emulated.
const BOUND: Duration = Duration::from_mins(10);

/// Operations by chance on the bytes of one file.
const BYTES: &str = "../crates/cli/tests/c/fsx.c";
/// Operations by chance on names, and on files that have several or none.
const NAMES: &str = "c/names.c";
/// One use of a file at a time.
const CALLS: &str = "c/calls.c";
/// A file in blocks, each read into a place of its own.
const BLOCKS: &str = "c/blocks.c";
/// One pass over a file, or over names.
const PASSES: &str = "c/passes.c";
/// A client that does what it is told and says what came of it.
const SHARER: &str = "c/sharer.c";

/// The files of a guest that runs all that is here.
///
/// # Panics
/// If a program is missing.
pub fn image() -> Image {
    let folder = tempfile::Builder::new().prefix("atoll-vm-").tempdir().expect("a folder");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    [BYTES, NAMES, CALLS, BLOCKS, PASSES]
        .iter()
        .fold(Image::new(), |image, source| {
            image.program(&compile(&here.join(source), folder.path()))
        })
        .program(&parts::program("postmark", "postmark"))
        .program(&parts::program("sqlite3", "sqlite3"))
}

/// Compiles the client that does what it is told, in `folder`.
///
/// # Panics
/// If it does not compile.
pub fn sharer(folder: &Path) -> PathBuf {
    compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join(SHARER), folder)
}

/// Compiles the C program `source` to a static one in `folder`.
///
/// # Panics
/// If it does not compile.
pub fn compile(source: &Path, folder: &Path) -> PathBuf {
    let to = folder.join(source.file_stem().expect("a source file"));
    let output = Command::new(parts::program("gcc", "gcc"))
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-static", "-o"])
        .args([&to, source])
        .output()
        .expect("gcc starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to
}

/// Does `operations` by chance on the bytes of a file in `folder`.
///
/// # Panics
/// If a byte is not as in memory.
#[track_caller]
pub fn bytes(guest: &mut Guest, folder: &str, operations: u32, seed: u64) {
    by_chance(guest, &format!("mkdir -p {folder}; fsx {folder} {operations} {seed}"));
}

/// The same where no file is mapped shared: kernels before 6.6 cannot, if nothing is cached.
///
/// # Panics
/// If a byte is not as in memory.
#[track_caller]
pub fn bytes_unmapped(guest: &mut Guest, folder: &str, operations: u32, seed: u64) {
    by_chance(guest, &format!("mkdir -p {folder}; fsx {folder} {operations} {seed} unmapped"));
}

/// Does `operations` by chance on the names of files in `folder`.
///
/// # Panics
/// If a name, a byte or an error is not as in memory.
#[track_caller]
pub fn names(guest: &mut Guest, folder: &str, operations: u32, seed: u64) {
    by_chance(guest, &format!("mkdir -p {folder}; names {folder} {operations} {seed}"));
}

/// Whether the guest's kernel is at least of this version.
///
/// # Panics
/// If it has none.
#[track_caller]
pub fn is_since(guest: &mut Guest, major: u32, minor: u32) -> bool {
    let release = guest.ok("uname -r");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(found)), Some(Ok(next))) => (found, next) >= (major, minor),
        _ => panic!("no version: {release}"),
    }
}

#[track_caller]
fn by_chance(guest: &mut Guest, script: &str) {
    let ran = guest.run_within(BOUND, script);
    assert!(ran.status == 0 && ran.output.starts_with("end\n"), "{script}: {}", ran.output);
}

/// Runs PostMark with so many files in `folder`, and holds its counts against those that follow
/// from its seed.
///
/// # Panics
/// If they differ.
#[track_caller]
pub fn postmark(guest: &mut Guest, folder: &str, files: u32) {
    // Created alone and among transactions, read, appended, deleted alone and among transactions.
    let golden = match files {
        500 => [500, 264, 243, 257, 528, 236],
        1000 => [1000, 248, 255, 245, 996, 252],
        10_000 => [10_000, 256, 247, 253, 10_012, 244],
        _ => panic!("the counts with {files} files are not known"),
    };
    let commands = format!(
        "set location {folder}\nset number {files}\nset size 500 10000\nset transactions 500\n\
         set read 512\nset write 512\nset buffering {}\nrun\nquit\n",
        files == 500,
    );
    let script = format!(
        "mkdir -p {folder}; postmark << end\n{commands}end\necho left $(ls {folder} | wc -l)"
    );
    let ran = guest.run_within(BOUND, &script);
    // A line each for what was created, alone and mixed, read, appended, deleted, alone and mixed.
    let (_, counts) = ran.output.split_once("Files:").unwrap_or_default();
    let (counts, _) = counts.split_once("Data:").unwrap_or_default();
    let first = |line: &str| line.split(|c: char| !c.is_ascii_digit()).find_map(|n| n.parse().ok());
    let found: Vec<u32> = counts.lines().filter_map(first).collect();
    let [created, created_mixed, read, appended, deleted, deleted_mixed] = golden;
    let (all, gone) = (created + created_mixed, deleted + deleted_mixed);
    let expected = [all, created, created_mixed, read, appended, gone, deleted, deleted_mixed];
    assert_eq!(found, expected, "{}{}", ran.output, guest.log());
    assert!(ran.status == 0 && ran.output.ends_with("left 0\n"), "files are left: {}", ran.output);
}

/// Has SQLite insert `rows` in a database in `folder`, one a transaction, with the journal `mode`,
/// and read them again.
///
/// # Panics
/// If they differ, or the database is not whole.
#[track_caller]
pub fn sqlite(guest: &mut Guest, folder: &str, mode: &str, rows: u32) {
    let script = format!(
        "mkdir -p {folder}; cd {folder}; rm -f {mode}.db
         {{ echo 'pragma journal_mode={mode}; create table t (id integer, s text, f real);'
            for i in $(seq {rows}); do echo \"insert into t values ($i, 'row $i', $i * 0.5);\"; done
         }} | sqlite3 {mode}.db
         sqlite3 {mode}.db 'select count(*), sum(id), min(s), sum(f) from t; pragma integrity_check'"
    );
    let ran = guest.run_within(BOUND, &script);
    let sum = u64::from(rows) * u64::from(rows + 1) / 2;
    let expected = format!("{mode}\n{rows}|{sum}|row 1|{:.1}\nok\n", sum as f64 / 2.0);
    assert!(ran.status == 0 && ran.output == expected, "{}\nnot\n{expected}", ran.output);
}
