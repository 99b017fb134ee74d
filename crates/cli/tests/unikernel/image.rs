//! The image, built once for all tests of this program, and runs of it that end in time.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::atoll;

/// How long a machine may run unless a test says more: a hundred times what one takes.
pub const BOUND: Duration = Duration::from_mins(2);

/// The image.
pub fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| {
        // Beside what cargo has built for the host.
        let program = Path::new(env!("CARGO_BIN_EXE_atoll"));
        let target = program.ancestors().nth(2).expect("cargo's target folder");
        let built = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .args(["build", "--quiet", "--package", "atoll-unikernel", "--features", "image"])
            .args(["--bin", "atoll-unikernel", "--profile", "image"])
            .args(["--target", "x86_64-unknown-none", "--target-dir"])
            .arg(target)
            .status()
            .expect("cargo starts");
        assert!(built.success(), "the image does not build");
        target.join("x86_64-unknown-none/image/atoll-unikernel")
    })
}

/// A program that is the newer QEMU, by which a device has its window and notices.
pub fn newer_qemu() -> &'static Path {
    static SCRIPT: OnceLock<PathBuf> = OnceLock::new();
    SCRIPT.get_or_init(|| {
        let parts = atoll_vm::parts::newer_qemu();
        let words: Vec<_> = parts.iter().map(|part| part.to_str().expect("UTF-8")).collect();
        assert!(!words.iter().any(|word| word.contains('\'')), "{words:?}");
        let text = format!("#!/bin/sh\nexec '{}' \"$@\"\n", words.join("' '"));
        // The same for all test programs.
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("newer-qemu");
        let unfinished = to.with_extension(std::process::id().to_string());
        std::fs::write(&unfinished, text).expect("a script");
        let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&unfinished, runs).expect("a program");
        std::fs::rename(&unfinished, &to).expect("a name");
        to
    })
}

/// What came of a program.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub output: String,
    pub errors: String,
}

impl Ran {
    /// The status, which is no signal's.
    pub fn code(&self) -> i32 {
        self.status.code().expect("a status")
    }

    /// The output of a program that succeeded and said nothing else.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{self:#?}");
        self.output
    }
}

thread_local! {
    /// The machine of this test.
    static MACHINE: Cell<&'static str> = const { Cell::new("q35") };
}

/// The machine of this test.
pub fn machine() -> &'static str {
    MACHINE.get()
}

/// Runs `test` on each of the machines that the command knows.
pub fn on_each_machine(mut test: impl FnMut()) {
    for machine in ["q35", "microvm"] {
        println!("on {machine}");
        MACHINE.set(machine);
        test();
    }
    MACHINE.set("q35");
}

/// `atoll unikernel run` with `options`; what it runs comes behind.
pub fn unikernel(options: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = atoll();
    command.args(["unikernel", "run", "--accel", "tcg", "--image"]).arg(image());
    if machine() != "q35" {
        command.args(["--machine", machine()]);
    }
    command.args(options);
    command.arg("--");
    command
}

/// The same by the newer QEMU.
pub fn newer_unikernel(options: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = atoll();
    command.args(["unikernel", "run", "--accel", "tcg", "--image"]).arg(image());
    command.arg("--qemu").arg(newer_qemu()).args(options).arg("--");
    command
}

/// Runs it with `input`.
#[track_caller]
pub fn run(command: &mut Command, input: &[u8]) -> Ran {
    run_within(command, input, BOUND)
}

/// The same within another time.
#[track_caller]
pub fn run_within(command: &mut Command, input: &[u8], bound: Duration) -> Ran {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("atoll starts");
    let mut to = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    thread::spawn(move || {
        // It may end before it has read all.
        let _ = to.write_all(&input);
    });
    let output = reader(child.stdout.take().expect("a pipe"));
    let errors = reader(child.stderr.take().expect("a pipe"));
    let status = wait(&mut child, bound);
    let text = |thread: thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&thread.join().expect("a reader")).into_owned()
    };
    let (output, errors) = (text(output), text(errors));
    match status {
        Some(status) => Ran { status, output, errors },
        None => panic!("{command:?}: {bound:?} have passed\n{output}\n{errors}"),
    }
}

fn reader(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        all
    })
}

fn wait(child: &mut Child, bound: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + bound;
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return Some(status);
        }
        if Instant::now() > end {
            // The machine ends with it.
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Compiles a program of tests/c/image to a static one in `folder`.
pub fn compile(folder: &Path, name: &str) -> PathBuf {
    let source = format!("{}/tests/c/image/{name}.c", env!("CARGO_MANIFEST_DIR"));
    atoll_vm::programs::compile(Path::new(&source), folder)
}
