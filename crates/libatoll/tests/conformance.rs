//! The calls from C, linked both ways, on every kind of volume.

mod common;

use std::process::Command;

use common::{compile, linked_dynamically, linked_statically, strs, succeed};

fn run(link: &[String], mode: &str) {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let program = temporary.path().join("conformance");
    compile(&["tests/c/conformance.c"], &program, &strs(link));
    let volume = temporary.path().join("test.vol");
    let output = succeed(Command::new(program).arg(volume).arg(mode));
    assert_eq!(output, "conforms\n");
}

#[test]
fn in_memory() {
    run(&linked_statically(), "ram");
}

#[test]
fn mapped() {
    run(&linked_dynamically(), "mapped");
}

#[test]
fn by_pread_and_pwrite() {
    run(&linked_dynamically(), "pread");
}
