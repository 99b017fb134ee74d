//! Compiles the interposer, a shared library in C, which the crate carries as bytes.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: [&str; 7] = [
    "system_calls.c",
    "table.c",
    "data.c",
    "descriptors.c",
    "mappings.c",
    "signals.c",
    "processes.c",
];

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-env-changed=CC");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where")).join("preload.so");
    let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O2", "-g1", "-fPIC", "-shared", "-fvisibility=hidden"]);
    compiler.args(["-Wall", "-Wextra", "-Werror", "-Wno-missing-attributes"]);
    // Names of older C libraries and their like, which programs still call.
    compiler.arg("-Wno-deprecated-declarations");
    // It must not bring the loader more work than it has: every program loads it.
    compiler.args(["-Wl,-z,defs", "-Wl,-z,relro", "-Wl,-O1", "-Wl,--hash-style=gnu"]);
    compiler.arg("-o").arg(&out).args(SOURCES.map(|name| Path::new("c").join(name)));
    let status = compiler
        .status()
        .unwrap_or_else(|error| panic!("{compiler:?}: {error}; install the package gcc"));
    assert!(status.success(), "{compiler:?}: {status}");
}
