//! What tests run in a guest.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::parts;

/// Compiles the C program `source` to a static one in `folder`.
///
/// # Panics
/// If it does not compile.
pub fn compile(source: &Path, folder: &Path) -> PathBuf {
    let name = source.file_stem().expect("a source file");
    let to = folder.join(name);
    let output = Command::new(parts::program("gcc", "gcc"))
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-static", "-o"])
        .args([&to, source])
        .output()
        .expect("gcc starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to
}
