//! SQLite on volumes, through the VFS.

mod common;

use std::process::Command;

use common::{compile, linked_statically, need, strs, succeed};

fn run(mode: &str, journal: &str) {
    need("/usr/include/sqlite3.h", "libsqlite3-dev");
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let program = temporary.path().join("sqlite");
    let arguments = [linked_statically(), vec!["-lsqlite3".into()]].concat();
    compile(&["tests/c/sqlite.c", "sqlite/atoll_sqlite.c"], &program, &strs(&arguments));
    let volume = temporary.path().join("test.vol");
    let output = succeed(Command::new(program).arg(volume).args([mode, journal]));
    assert_eq!(output, "kept\n");
}

#[test]
fn rollback_journal() {
    run("mapped", "delete");
}

#[test]
fn write_ahead_log() {
    run("mapped", "wal");
}

#[test]
fn rollback_journal_by_pread() {
    run("pread", "delete");
}

#[test]
fn write_ahead_log_by_pread() {
    run("pread", "wal");
}
