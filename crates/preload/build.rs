//! Compiles the interposer, a shared library in C, which the crate carries as bytes.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: [&str; 8] = [
    "system_calls.c",
    "table.c",
    "data.c",
    "descriptors.c",
    "mappings.c",
    "signals.c",
    "processes.c",
    "unwind.c",
];

/// Where what the backend is made of lies, seen from here.
const BACKEND: [&str; 5] =
    ["../preload-backend", "../host", "../vfs", "../transport", "../../Cargo.lock"];

/// Builds the backend, optimised and without unwinding whatever the profile, in a folder of its own.
/// What it needs from elsewhere has been fetched for the command as well.
fn backend(out: &Path) -> PathBuf {
    for path in BACKEND {
        println!("cargo::rerun-if-changed={path}");
    }
    let folder = out.join("backend");
    let target = env::var("TARGET").expect("cargo says for what");
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo says where it is"));
    cargo.args(["rustc", "--quiet", "--offline", "--locked", "--lib", "--crate-type", "staticlib"]);
    cargo.args(["--profile", "release", "--target", &target, "--target-dir"]).arg(&folder);
    cargo.args(["--manifest-path", "../preload-backend/Cargo.toml"]);
    for setting in ["panic=\"abort\"", "lto=\"fat\"", "codegen-units=1", "debug=false"] {
        cargo.arg("--config").arg(format!("profile.release.{setting}"));
    }
    // What this build is for, a lint or a test, is not what that one is for.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let about_this =
            text.starts_with("CARGO_") && text != "CARGO_HOME" && text != "CARGO_MAKEFLAGS"
                || text.starts_with("CLIPPY_")
                || matches!(&*text, "RUSTC_WRAPPER" | "RUSTC_WORKSPACE_WRAPPER" | "RUSTFLAGS");
        if about_this {
            cargo.env_remove(name);
        }
    }
    let status = cargo.status().unwrap_or_else(|error| panic!("{cargo:?}: {error}"));
    assert!(status.success(), "{cargo:?}: {status}");
    folder.join(target).join("release/libatoll_preload_backend.a")
}

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-env-changed=CC");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where")).join("preload.so");
    let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]);
    compiler.args(["-Wall", "-Wextra", "-Werror", "-Wno-missing-attributes"]);
    // Names of older C libraries and their like, which programs still call.
    compiler.arg("-Wno-deprecated-declarations");
    // It must not bring the loader more work than it has: every program loads it.
    // What is not defined is looked for in the C library, and its loader, when it is loaded.
    compiler.args(["-Wl,-z,relro", "-Wl,-O1", "-Wl,--hash-style=gnu"]);
    // Nothing but the C library, by the name that every one of its kind has.
    compiler.args(["-nodefaultlibs", "-Wl,--gc-sections", "-Wl,--exclude-libs,ALL", "-Wl,-s"]);
    compiler.arg("-o").arg(&out).args(SOURCES.map(|name| Path::new("c").join(name)));
    compiler.arg(backend(out.parent().expect("a folder"))).arg("-l:libc.so.6");
    let status = compiler
        .status()
        .unwrap_or_else(|error| panic!("{compiler:?}: {error}; install the package gcc"));
    assert!(status.success(), "{compiler:?}: {status}");
}
