//! Compiles the interposer, a shared library in C, which the crate carries as bytes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

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

/// The crates that the backend is made of: their names, and where they lie, seen from here.
const BACKEND: [(&str, &str); 4] = [
    ("atoll-preload-backend", "../preload-backend"),
    ("atoll-host", "../host"),
    ("atoll-vfs", "../vfs"),
    ("atoll-transport", "../transport"),
];

/// Hashes a file's name and content, and those below a folder in the order of their names.
fn hash(path: &Path, hasher: &mut DefaultHasher) -> io::Result<()> {
    path.hash(hasher);
    if !path.is_dir() {
        fs::read(path)?.hash(hasher);
        return Ok(());
    }
    let mut entries =
        fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    // Files that editors leave beside a file are none of it.
    entries.retain(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] != b'.'));
    entries.sort();
    entries.iter().try_for_each(|entry| hash(entry, hasher))
}

/// Builds the backend, optimised and without unwinding whatever the profile, in a folder of its
/// own. The crates that it needs from elsewhere have been fetched for the command as well.
///
/// Cargo goes by the times of files. Those of a folder that was copied, or put back from an
/// archive, with its times can be later than those of sources that were never built there. So a
/// crate whose content is not what was built last is built anew, whatever the times.
fn backend(out: &Path) -> PathBuf {
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    println!("cargo::rerun-if-changed=../../Cargo.toml");
    let folder = out.join("backend");
    let target = target();
    let mut built = Vec::new();
    for (name, path) in BACKEND {
        let mut hasher = DefaultHasher::new();
        for part in ["Cargo.toml", "src"].map(|part| Path::new(path).join(part)) {
            println!("cargo::rerun-if-changed={}", part.display());
            hash(&part, &mut hasher).unwrap_or_else(|e| panic!("{}: {e}", part.display()));
        }
        let content = format!("{:016x}", hasher.finish());
        let note = out.join(format!("{name}.content"));
        if fs::read_to_string(&note).is_ok_and(|before| before == content) {
            continue;
        }
        // Until it is built, nobody knows what is there.
        let _ = fs::remove_file(&note);
        run(cargo("clean", &folder, &target).args(["--package", name]));
        built.push((note, content));
    }
    let mut rustc = cargo("rustc", &folder, &target);
    rustc.args(["--lib", "--crate-type", "staticlib"]);
    for setting in ["panic=\"abort\"", "lto=\"fat\"", "codegen-units=1", "debug=false"] {
        rustc.arg("--config").arg(format!("profile.release.{setting}"));
    }
    run(&mut rustc);
    let release = folder.join(target).join("release");
    let known = BACKEND.map(|(_, path)| fs::canonicalize(path).expect("a crate"));
    let sources = fs::read_to_string(release.join("libatoll_preload_backend.d"));
    // As make has it: a blank within a name stands behind a backslash.
    let sources = sources.expect("cargo lists the sources").replace("\\ ", "\0");
    for source in sources.split_whitespace().skip(1).map(|source| source.replace('\0', " ")) {
        let listed = known.iter().any(|path| Path::new(&source).starts_with(path));
        assert!(listed, "{source} is of a crate that BACKEND does not list");
    }
    for (note, content) in built {
        fs::write(&note, content).unwrap_or_else(|e| panic!("{}: {e}", note.display()));
    }
    release.join("libatoll_preload_backend.a")
}

/// Programs load the library beside their own C library, glibc, whatever C library the command has.
fn target() -> String {
    env::var("TARGET").expect("cargo says for what").replace("-musl", "-gnu")
}

/// Beginnings of the variables that say how cargo fetches and shares its work, whatever it builds.
const KEPT: [&str; 7] = [
    "CARGO_HOME",
    "CARGO_MAKEFLAGS",
    "CARGO_HTTP_",
    "CARGO_NET_",
    "CARGO_REGISTR",
    "CARGO_SOURCE_",
    "CARGO_RESOLVER_",
];

/// Cargo with `command`, for the backend, in the target folder `folder`.
fn cargo(command: &str, folder: &Path, target: &str) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo says where it is"));
    // Not offline: it has dependencies that the command has not, and a new machine has to fetch.
    cargo.args([command, "--quiet", "--locked", "--profile", "release"]);
    cargo.args(["--target", target, "--target-dir"]).arg(folder);
    cargo.args(["--manifest-path", "../preload-backend/Cargo.toml"]);
    // This build may be for a lint or a test, and that one is not.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let about_this = text.starts_with("CARGO_")
            && !KEPT.iter().any(|kept| text.starts_with(kept))
            || text.starts_with("CLIPPY_")
            || matches!(&*text, "RUSTC_WRAPPER" | "RUSTC_WORKSPACE_WRAPPER" | "RUSTFLAGS");
        if about_this {
            cargo.env_remove(name);
        }
    }
    // But what hides the places of sources on the building machine hides them here too.
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let hides = |flag: &&str| flag.starts_with("--remap-path-prefix=");
    let hiding: Vec<&str> = flags.split('\x1f').filter(hides).collect();
    if !hiding.is_empty() {
        cargo.env("CARGO_ENCODED_RUSTFLAGS", hiding.join("\x1f"));
    }
    cargo
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

fn main() {
    println!("cargo::rerun-if-changed=c");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where")).join("preload.so");
    let mut compiler = cc::Build::new();
    compiler.target(&target()).std("gnu11").opt_level(2).debug(false).force_frame_pointer(false);
    let mut compiler = compiler.warnings_into_errors(true).get_compiler().to_command();
    compiler.args([
        "-shared",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-Wno-missing-attributes",
    ]);
    // Names of older C libraries and their like, which programs still call.
    compiler.arg("-Wno-deprecated-declarations");
    // It must not bring the loader more work than it has: every program loads it.
    // The loader looks for undefined symbols in the C library, and in itself, when it loads the
    // interposer.
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
