//! Faults of programs: each ends the image with a report and a status, and nothing hangs.

use std::fs;

use crate::common::folder;
use crate::image::{compile, run, unikernel};

const NONE: [&str; 0] = [];

#[test]
fn a_fault_is_reported_and_is_the_status() {
    let dir = folder();
    let program = compile(dir.path(), "faults");
    let faults: [(&str, i32, &str); 9] = [
        ("null", 139, "page fault reading 0x10: a null pointer"),
        ("nowhere", 139, "nothing is there"),
        ("read-only", 139, "page fault writing to"),
        ("data", 139, "page fault executing"),
        ("stack", 139, "page fault writing to"),
        ("noncanonical", 139, "general protection fault"),
        ("divide", 136, "division error"),
        ("invalid", 132, "invalid instruction"),
        ("abort", 134, ""),
    ];
    for (fault, status, said) in faults {
        let ran = run(unikernel(NONE).arg(&program).arg(fault), b"");
        assert_eq!(ran.code(), status, "{fault}: {ran:#?}");
        assert!(ran.errors.contains(said), "{fault}: {}", ran.errors);
        assert_eq!(ran.output, "began\n", "{fault}");
        if !said.is_empty() {
            assert!(ran.errors.contains("the program stopped: "), "{fault}: {}", ran.errors);
            assert!(ran.errors.contains("rax "), "{fault}: {}", ran.errors);
        }
    }
}

#[test]
fn a_program_cannot_change_the_images_text_by_mistake() {
    let dir = folder();
    let program = compile(dir.path(), "faults");
    let ran = run(unikernel(NONE).arg(&program).arg("image-text"), b"");
    assert_eq!(ran.code(), 139, "{ran:#?}");
    assert!(ran.errors.contains("its page may not be used so"), "{}", ran.errors);
    let ran = run(unikernel(NONE).arg(&program).arg("image-data"), b"");
    assert_eq!(ran.code(), 139, "{ran:#?}");
    assert!(ran.errors.contains("page fault executing"), "{}", ran.errors);
}

#[test]
fn an_unknown_call_is_named_once() {
    let dir = folder();
    let program = compile(dir.path(), "faults");
    let ran = run(unikernel(NONE).arg(&program).arg("unknown"), b"");
    assert_eq!(ran.errors.matches("system call 101 is not known here").count(), 1, "{ran:#?}");
    assert_eq!(ran.errors.matches("system call 999 is not known here").count(), 1, "{ran:#?}");
    assert_eq!(ran.ok(), "began\nENOSYS 4\n");
}

#[test]
fn a_wrong_program_is_refused() {
    let dir = folder();
    let whole = fs::read(compile(dir.path(), "faults")).unwrap();
    let refused = |name: &str, bytes: &[u8], said: &str| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        // As a file that is added: the command itself looks into a program.
        let added = format!("{}:/p", path.display());
        let ran = run(unikernel(["--add", &added]).arg("/p"), b"");
        assert_eq!(ran.code(), 125, "{name}: {ran:#?}");
        assert!(ran.errors.contains(said), "{name}: {}", ran.errors);
    };
    refused("cut", &whole[..whole.len() / 8], "cut off");
    refused("empty", b"", "not an ELF program");
    let mut other = whole.clone();
    other[18] = 183;
    refused("other", &other, "for another machine");
    // Where the stack is.
    let mut high = whole.clone();
    let table = 64;
    high[table + 16 + 5] = 0x3f;
    high[table + 16 + 4] = 0xff;
    refused("high", &high, "a malformed program");
}
