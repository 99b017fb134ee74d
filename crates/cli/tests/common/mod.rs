//! Shared by the tests of the command: a folder, volumes, running the real binary.
#![allow(dead_code, missing_docs)]

pub mod everywhere;
pub mod served;
pub mod serving;
pub mod ways;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

pub use tempfile::TempDir;

/// Says that this process is the inner half of a test, which `atoll run` has started.
const INNER: &str = "ATOLL_TEST_INNER";

/// `env` with arguments that give what it runs the usual effects of all signals, and none blocked:
/// a shell cannot trap one that was ignored when it began, as some are where tests run in the
/// background.
pub const USUAL: [&str; 2] = ["env", "--default-signal"];

/// The binary that is tested, with the usual effects of signals.
pub fn atoll() -> Command {
    let mut command = Command::new(USUAL[0]);
    command.args([USUAL[1], env!("CARGO_BIN_EXE_atoll")]);
    command
}

/// A folder of its own for a test.
pub fn folder() -> TempDir {
    tempfile::Builder::new().prefix("atoll-cli-").tempdir().expect("a temporary folder")
}

/// Makes sure that a program is installed.
pub fn need(program: &str, package: &str) {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|dir| dir.join(program).is_file());
    assert!(found, "{program} is missing: install it with `apt-get install {package}`");
}

/// Runs a command that must succeed and returns what it wrote to standard output.
#[track_caller]
pub fn ok(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the command starts");
    assert!(
        output.status.success(),
        "{command:?} ended with {}\n--- stdout\n{}\n--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that must end with `status`, and returns what it wrote to standard error.
#[track_caller]
pub fn fails(command: &mut Command, status: i32) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the command starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{command:?} said: {said}");
    said
}

/// Runs a shell script in `dir` with the volume at /vol.
pub fn script(dir: &Path, text: &str) -> Output {
    atoll()
        .current_dir(dir)
        .args(["run", "--quiet", "--", "bash", "-euo", "pipefail", "-c", text])
        .stdin(Stdio::null())
        .output()
        .expect("atoll starts")
}

/// [`script`] that must succeed; returns what it wrote to standard output.
#[track_caller]
pub fn script_ok(dir: &Path, text: &str) -> String {
    let output = script(dir, text);
    assert!(
        output.status.success(),
        "{text}\n--- ended with {}\n--- stdout\n{}\n--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Makes a volume of `size` at `name` in `dir`.
pub fn volume(dir: &Path, name: &str, size: &str) -> PathBuf {
    let path = dir.join(name);
    ok(atoll().args([OsStr::new("mkfs"), "--size".as_ref(), size.as_ref(), path.as_os_str()]));
    path
}

/// Checks that the volume is consistent.
#[track_caller]
pub fn fsck(volume: &Path) {
    ok(atoll().arg("fsck").arg(volume));
}

/// Runs the test `inner` of this test program within a volume of `size` at /vol. There it runs
/// with the volume's root as its working directory.
#[track_caller]
pub fn inside(inner: &str, size: &str) {
    let dir = folder();
    let volume = volume(dir.path(), "test.vol", size);
    let mut command = atoll();
    command.arg("run").arg("-v").arg(&volume).arg("--");
    command.arg(std::env::current_exe().expect("this program"));
    command.args(["--exact", inner, "--include-ignored", "--nocapture", "--test-threads=1"]);
    let said = ok(command.env(INNER, "1"));
    assert!(said.contains("1 passed"), "no test is named {inner}: {said}");
    fsck(&volume);
}

/// The first thing an inner test does.
pub fn enter() {
    assert!(
        std::env::var_os(INNER).is_some(),
        "this test is run within a volume, by the test without `inner`"
    );
    std::env::set_current_dir("/vol").expect("the volume");
}

/// Waits until `done` says so.
#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Unmounts what is mounted at `place` in `dir`, whose files this process has had open. A child
/// that another test of this process forks holds copies of them until it executes its program, and
/// the mount is busy for that long.
pub fn unmount(dir: &Path, place: &str) {
    wait_until("nothing uses the mount", || {
        let output = atoll().current_dir(dir).args(["umount", place]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || said.contains("programs use it"), "{said}");
        output.status.success()
    });
}

/// Whether a server listens at `path`: its socket is there a little before.
pub fn listens(path: &Path) -> bool {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
    let flags = SockFlag::SOCK_CLOEXEC;
    let probe = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
    let address = UnixAddr::new(path).expect("a short path");
    connect(std::os::fd::AsRawFd::as_raw_fd(&probe), &address).is_ok()
}

/// The processes of that name below the process `parent`.
pub fn children(parent: u32, name: &str) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").expect("/proc");
    all.flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // pid (name) state parent ...
            let (front, back) = stat.rsplit_once(')')?;
            let found = front.split_once('(')?.1 == name;
            let ppid: u32 = back.split_ascii_whitespace().nth(1)?.parse().ok()?;
            (found && ppid == parent).then_some(pid)
        })
        .collect()
}

/// Runs `script` as a user without rights, in whose view /dev/fuse is open to `fuse_mode`.
pub fn as_user(dir: &Path, fuse_mode: &str, script: &str) -> Command {
    need("setpriv", "util-linux");
    let mut command = Command::new("unshare");
    command.current_dir(dir).args(["--mount", "sh", "-ec"]).arg(format!(
        "mount -t tmpfs none /mnt; mknod -m {fuse_mode} /mnt/fuse c 10 229; mount --bind /mnt/fuse /dev/fuse; \
         umount -l /mnt; exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -ec \"$0\""
    ));
    command.arg(script);
    command
}
