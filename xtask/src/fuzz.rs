//! The fuzzer: libFuzzer by way of cargo-fuzz, which needs a nightly toolchain. The smoke run that
//! the tests make needs neither.

use crate::steps::{Failure, cargo, program};

/// Fuzzes `target` until it fails or is stopped, or lists the targets.
pub fn run(target: Option<&str>, arguments: &[String]) -> Result<(), Failure> {
    let Some(target) = target else {
        for name in targets()? {
            println!("{name}");
        }
        return Ok(());
    };
    if !targets()?.iter().any(|name| name == target) {
        return Err(Failure(format!("no fuzz target {target}; `cargo xtask fuzz` lists them")));
    }
    if !program("cargo").args(["+nightly", "--version"]).succeeds() {
        return Err(Failure(
            "fuzzing needs a nightly toolchain; run: rustup toolchain install nightly".into(),
        ));
    }
    if !cargo(&["fuzz", "--version"]).succeeds() {
        return Err(Failure("cargo-fuzz is missing; run: cargo install cargo-fuzz".into()));
    }
    program("cargo")
        .args(["+nightly", "fuzz", "run", "--features", "libfuzzer", target, "--"])
        .args(arguments)
        .run()
}

/// The names of the targets: the programs in fuzz/fuzz_targets.
fn targets() -> Result<Vec<String>, Failure> {
    let folder = crate::root().join("fuzz/fuzz_targets");
    let entries = std::fs::read_dir(&folder)
        .map_err(|error| Failure(format!("{}: {error}", folder.display())))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".rs")?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}
