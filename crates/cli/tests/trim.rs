//! `atoll trim`, and what goes back to the host without it.
#![allow(missing_docs)]

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::{atoll, fails, folder, fsck, ok, volume};

fn run(dir: &Path, args: &[&str]) -> String {
    ok(atoll().current_dir(dir).args(args))
}

fn storage(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

const MIB: u64 = 1 << 20;

#[test]
fn a_file_gives_back_what_is_not_used() {
    let dir = folder();
    let path = dir.path();
    let file = volume(path, "v.vol", "64M");
    let empty = storage(&file);
    std::fs::write(path.join("large"), vec![7; 24 << 20]).unwrap();
    std::fs::write(path.join("small"), "kept").unwrap();
    run(path, &["cp", "large", "v.vol:/large"]);
    run(path, &["cp", "small", "v.vol:/small"]);
    let full = storage(&file);
    assert!(full >= empty + 24 * MIB, "{full}");
    run(path, &["rm", "v.vol:/large"]);
    let removed = storage(&file);
    assert!(removed < empty + 4 * MIB, "{removed} of {full} without being asked");
    let said = run(path, &["trim", "--json", "v.vol"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(said["trimmed"].as_u64().unwrap() > 32 * MIB, "{said}");
    assert!(storage(&file) <= removed);
    assert!(run(path, &["trim", "v.vol"]).contains("given back"));
    assert_eq!(run(path, &["cat", "v.vol:/small"]), "kept");
    fsck(&file);

    // A file that held something else gives that back as well.
    std::fs::write(path.join("old"), vec![1; 32 << 20]).unwrap();
    run(path, &["mkfs", "--force", "old"]);
    assert!(storage(&path.join("old")) < 8 * MIB, "{}", storage(&path.join("old")));
    fsck(&path.join("old"));
    std::fs::write(path.join("other"), "no volume").unwrap();
    fails(atoll().current_dir(path).args(["trim", "other"]), 1);
    assert_eq!(std::fs::read(path.join("other")).unwrap(), b"no volume");
}
