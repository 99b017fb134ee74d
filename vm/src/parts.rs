//! The parts that a virtual machine needs of this one, and where they lie. `cargo xtask setup`
//! brings them all; a part that is missing is named with the way to get it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Brings what is missing.
const SETUP: &str = "run `cargo xtask setup`";

/// The program `name` of the package `package`.
///
/// # Panics
/// If it is not installed.
pub fn program(name: &str, package: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Some are for the superuser, and not in the path of others.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    installed(folders.map(|folder| folder.join(name)), name, package)
}

/// A program that stands in no path.
///
/// # Panics
/// If it is not installed.
pub fn helper(path: &str, package: &str) -> PathBuf {
    installed([PathBuf::from(path)], path, package)
}

fn installed(places: impl IntoIterator<Item = PathBuf>, name: &str, package: &str) -> PathBuf {
    let found = places.into_iter().find(|place| place.is_file());
    found.unwrap_or_else(|| panic!("{name} of the package {package} is missing: {SETUP}"))
}

/// Where the kernel of guests was unpacked, as `vmlinuz`, with its `modules`; or where
/// ATOLL_VM_LINUX says that another is.
///
/// # Panics
/// If it has not been unpacked.
pub fn linux() -> PathBuf {
    match std::env::var_os("ATOLL_VM_LINUX") {
        Some(other) => other.into(),
        None => unpacked_linux("vm/linux"),
    }
}

/// The same for the kernel of a newer release.
///
/// # Panics
/// If it has not been unpacked.
pub fn newer_linux() -> PathBuf {
    unpacked_linux("vm/newer-linux")
}

fn unpacked_linux(folder: &str) -> PathBuf {
    let found = unpacked(folder, "vmlinuz");
    found.unwrap_or_else(|| panic!("a kernel of virtual machines is missing: {SETUP}"))
}

/// What runs the newer QEMU, which gives devices a window: its program with its own libraries and
/// the folders of its firmware.
///
/// # Panics
/// If it has not been unpacked.
pub fn newer_qemu() -> Vec<OsString> {
    let found = unpacked("vm/qemu", "usr/bin/qemu-system-x86_64");
    let found = found.unwrap_or_else(|| panic!("the newer QEMU is missing: {SETUP}"));
    let at = |path: &str| found.join(path).into_os_string();
    vec![
        at("usr/lib64/ld-linux-x86-64.so.2"),
        "--library-path".into(),
        at("usr/lib/x86_64-linux-gnu"),
        at("usr/bin/qemu-system-x86_64"),
        "-L".into(),
        at("usr/share/qemu"),
        "-L".into(),
        at("usr/share/seabios"),
    ]
}

/// The folder that setup unpacked in the target folder, in which the running program lies too, if
/// it has `file`.
fn unpacked(folder: &str, file: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().expect("this program");
    let mut folders = program.ancestors().map(|above| above.join(folder));
    folders.find(|folder| folder.join(file).is_file())
}

/// The libraries that `program` is linked with, its loader too; none if it is a static one.
///
/// # Panics
/// If one of them is missing.
pub fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = std::process::Command::new(self::program("ldd", "libc-bin"))
        .env("LC_ALL", "C")
        .arg(program)
        .output()
        .expect("ldd starts");
    let listed = String::from_utf8_lossy(&output.stdout);
    assert!(!listed.contains("not found"), "{}: {listed}", program.display());
    // NAME => PATH (ADDRESS), PATH (ADDRESS), or the kernel's own, which has no path.
    let words =
        listed.lines().filter_map(|line| line.split_whitespace().find(|w| w.starts_with('/')));
    words.map(PathBuf::from).collect()
}
