//! Compiling and running C programs with the library.
#![allow(dead_code, reason = "each test uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of this crate.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo has put the library that this test was built with.
pub fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let folder = test.parent().expect("it lies in a folder").to_path_buf();
    assert!(folder.join("libatoll.a").exists(), "no libatoll.a in {}", folder.display());
    folder
}

/// Fails with what to install if `file` is missing.
pub fn need(file: &str, package: &str) {
    let found = Path::new(file).exists();
    assert!(found, "{file} is missing: install the package {package} (apt-get install {package})");
}

/// Compiles `sources` (relative to this crate's folder) to `to`, with `arguments` after them.
pub fn compile(sources: &[&str], to: &Path, arguments: &[&str]) {
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-g", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(to);
    cc.arg("-I").arg(folder().join("include"));
    cc.args(sources.iter().map(|source| folder().join(source)));
    cc.args(arguments);
    let output = cc.output().expect("cc is missing: install the packages gcc and libc6-dev");
    assert!(output.status.success(), "{cc:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The arguments that link a program with the static library.
pub fn linked_statically() -> Vec<String> {
    let library = built().join("libatoll.a").display().to_string();
    [&library, "-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"].map(String::from).to_vec()
}

/// The arguments that link a program with the shared library.
pub fn linked_dynamically() -> Vec<String> {
    let folder = built().display().to_string();
    vec![format!("-L{folder}"), "-latoll".into(), format!("-Wl,-rpath,{folder}")]
}

pub fn strs(strings: &[String]) -> Vec<&str> {
    strings.iter().map(String::as_str).collect()
}

/// Runs `command`; its output, if it succeeded.
pub fn succeed(command: &mut Command) -> String {
    // Cargo's has the folder before ours in it, where an older library may lie.
    command.env_remove("LD_LIBRARY_PATH");
    let Output { status, stdout, stderr } = command.output().expect("the program was built");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}
