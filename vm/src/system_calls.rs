//! How many system calls a program of this machine makes while something is done, by perf(1),
//! which does not stop it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A count that runs.
pub struct SystemCalls {
    perf: Child,
    folder: TempDir,
    tell: File,
    hear: File,
}

/// The word by which perf says that it does what it was told.
const ACKNOWLEDGED: &[u8] = b"ack\n";
/// How long it may take to.
const PATIENCE: Duration = Duration::from_mins(2);
/// Of open(2): not to wait.
const O_NONBLOCK: i32 = 0o4000;

impl SystemCalls {
    /// Whether they can be counted here: perf is installed and this user may.
    pub fn can_be_counted() -> bool {
        let mut perf = Command::new("perf");
        perf.args(["stat", "-e", "raw_syscalls:sys_enter", "true"]);
        let done = perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success())
    }

    /// Counts those of the process `pid` and of those that it has started, from now on.
    ///
    /// # Panics
    /// If perf does not begin.
    pub fn begin(pid: u32) -> SystemCalls {
        let folder = tempfile::Builder::new().prefix("atoll-vm-").tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["tell", "hear"] {
            let made = Command::new("mkfifo").arg(at(name)).status().expect("mkfifo starts");
            assert!(made.success(), "a pipe");
        }
        let all: Vec<String> = family(pid).iter().map(u32::to_string).collect();
        let control = format!("fifo:{},{}", at("tell").display(), at("hear").display());
        // It has attached itself to all threads when it answers.
        let perf = Command::new("perf")
            .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-D", "-1"])
            .args(["--control", &control, "-p", &all.join(",")])
            .arg("-o")
            .arg(at("counts"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("perf starts");
        let (tell, hear) = (pipe(&at("tell")), pipe(&at("hear")));
        let mut calls = SystemCalls { perf, folder, tell, hear };
        calls.tell("enable");
        calls
    }

    /// Ends; how many there were.
    ///
    /// # Panics
    /// If perf says nothing.
    pub fn end(mut self) -> u64 {
        self.tell("disable");
        // That ends it, and has it say what it has counted; it takes no command that does.
        let pid = self.perf.id().to_string();
        let told = Command::new("kill").args(["-INT", &pid]).status().expect("kill starts");
        assert!(told.success(), "perf has ended");
        self.perf.wait().expect("perf was started");
        let said = std::fs::read_to_string(self.folder.path().join("counts"));
        let said = said.expect("what perf has counted");
        let line = said.lines().find(|line| line.contains("sys_enter"));
        let count = line.and_then(|line| match line.split(',').next()? {
            // None of its threads has run.
            "<not counted>" => Some(0),
            count => count.parse().ok(),
        });
        count.unwrap_or_else(|| panic!("perf has counted nothing: {said}"))
    }

    /// Has perf do something, and waits until it has.
    fn tell(&mut self, what: &str) {
        writeln!(self.tell, "{what}").expect("perf hears");
        let mut said = Vec::new();
        let begin = Instant::now();
        while !said.ends_with(ACKNOWLEDGED) {
            let mut byte = [0];
            match self.hear.read(&mut byte) {
                Ok(_) => said.extend(byte),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    assert!(begin.elapsed() < PATIENCE, "perf does not {what}");
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => panic!("what perf answers: {error}"),
            }
        }
    }
}

/// An end of a pipe that has a name, which waits for no other end.
fn pipe(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(O_NONBLOCK).open(path).expect("a pipe")
}

impl Drop for SystemCalls {
    fn drop(&mut self) {
        let _ = self.perf.kill();
        let _ = self.perf.wait();
    }
}

/// The process `pid` and those that it has started, and these.
fn family(pid: u32) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may have any character: the state, the parent.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let all: Vec<(u32, u32)> = numbers.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut own = vec![pid];
    let mut at = 0;
    while let Some(&pid) = own.get(at) {
        own.extend(all.iter().filter(|(_, parent)| *parent == pid).map(|(pid, _)| pid));
        at += 1;
    }
    own
}
