//! Other programs, run one after the other.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Why a command of the developer failed, in words for people.
#[derive(Debug)]
pub struct Failure(pub String);

/// A program to be run in the root of the repository.
pub struct Step(Command);

/// The program `name`, a path being relative to the root of the repository.
pub fn program(name: &str) -> Step {
    let root = crate::root();
    let mut command =
        if name.contains('/') { Command::new(root.join(name)) } else { Command::new(name) };
    command.current_dir(root);
    Step(command)
}

/// The cargo that runs us, with `arguments`.
pub fn cargo(arguments: &[&str]) -> Step {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(crate::root()).args(arguments);
    Step(command)
}

impl Step {
    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.0.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.0.args(arguments);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    /// Runs the program to its end; any status but success is a failure.
    pub fn run(mut self) -> Result<(), Failure> {
        let status = self.0.status().map_err(|error| self.failure(&error.to_string()))?;
        if status.success() { Ok(()) } else { Err(self.failure(&status.to_string())) }
    }

    /// Runs the program to its end, or kills it and what it has started when that takes longer than
    /// `most`.
    pub fn run_within(mut self, most: Duration) -> Result<(), Failure> {
        let begin = Instant::now();
        let before = fuse_connections();
        let mut child = self.0.spawn().map_err(|error| self.failure(&error.to_string()))?;
        loop {
            match child.try_wait().map_err(|error| self.failure(&error.to_string()))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.failure(&status.to_string())),
                None if begin.elapsed() < most => std::thread::sleep(Duration::from_millis(100)),
                None => break,
            }
        }
        let started = descendants(child.id());
        program("kill").arg("-KILL").args(started.iter().map(u32::to_string)).succeeds();
        let _ = child.kill();
        let _ = child.wait();
        let end = Instant::now() + GONE;
        while started.iter().any(|&pid| is_there(pid)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        // A process that waits for an unserved mount cannot be killed: it gets an answer first.
        // While nothing hangs no mount is touched: others may have made some meanwhile.
        for pid in started.into_iter().filter(|&pid| is_there(pid)) {
            for connection in fuse_mounts(pid).difference(&before) {
                let _ = std::fs::write(Path::new(CONNECTIONS).join(connection).join("abort"), "1");
            }
        }
        Err(self.failure(&format!("did not end within {} minutes", most.as_secs() / 60)))
    }

    /// Runs the program to its end and returns what it wrote to its standard output.
    pub fn output(mut self) -> Result<String, Failure> {
        let output = self
            .0
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| self.failure(&error.to_string()))?;
        if !output.status.success() {
            return Err(self.failure(&output.status.to_string()));
        }
        String::from_utf8(output.stdout).map_err(|error| self.failure(&error.to_string()))
    }

    /// Runs the program to its end; returns what it wrote to its standard output, and whether it
    /// succeeded.
    pub fn said(mut self) -> Result<(String, bool), Failure> {
        let output = self
            .0
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| self.failure(&error.to_string()))?;
        Ok((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
    }

    /// Whether the program could be run and ended with success; its output is dropped.
    pub fn succeeds(mut self) -> bool {
        let quiet = self.0.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    }

    fn failure(&self, reason: &str) -> Failure {
        let words = std::iter::once(self.0.get_program()).chain(self.0.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        Failure(format!("`{}`: {reason}", words.join(" ")))
    }
}

/// Fails, saying how to install it, where the standard library for the Rust target `target` is
/// missing.
pub fn target_is_there(target: &str) -> Result<(), Failure> {
    let library = program("rustc").args(["--print", "target-libdir", "--target", target]);
    if Path::new(library.output()?.trim()).is_dir() {
        return Ok(());
    }
    Err(Failure(format!("the Rust target {target} is missing; run: rustup target add {target}")))
}

/// How long processes that were killed have to end, unless something holds them.
const GONE: Duration = Duration::from_secs(2);
/// Where the kernel has a folder for each connection of FUSE.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// The numbers of all connections of FUSE.
fn fuse_connections() -> BTreeSet<String> {
    // It may be there already.
    program("mount").args(["-t", "fusectl", "none", CONNECTIONS]).succeeds();
    let names = |entry: std::fs::DirEntry| entry.file_name().into_string().ok();
    std::fs::read_dir(CONNECTIONS).into_iter().flatten().flatten().filter_map(names).collect()
}

/// The numbers of the connections of FUSE whose mounts the process `pid` sees.
fn fuse_mounts(pid: u32) -> BTreeSet<String> {
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    // The third field is the device number, whose minor names the connection.
    let minor = |line: &str| Some(line.split(' ').nth(2)?.strip_prefix("0:")?.to_owned());
    mounts.lines().filter(|line| line.contains(" - fuse")).filter_map(minor).collect()
}

/// The parent of the process `pid`, unless it has ended.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which is in parentheses and may have any character: the state, the parent.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    (fields.next()? != "Z").then(|| fields.next()?.parse().ok())?
}

fn is_there(pid: u32) -> bool {
    parent(pid).is_some()
}

/// The processes that `pid` has started, and those that they have.
fn descendants(pid: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| *child));
        at += 1;
    }
    found.split_off(1)
}

/// Steps with names, and how long each took.
#[derive(Default)]
pub struct Log(Vec<(&'static str, Duration)>);

impl Log {
    /// Runs `step` under `name`.
    pub fn step(
        &mut self,
        name: &'static str,
        step: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        eprintln!("==> {name}");
        let begin = Instant::now();
        step().map_err(|Failure(reason)| Failure(format!("{name}: {reason}")))?;
        self.0.push((name, begin.elapsed()));
        Ok(())
    }

    /// Prints the times.
    pub fn summary(&self) {
        let total: Duration = self.0.iter().map(|(_, time)| *time).sum();
        eprintln!("==> all passed");
        for (name, time) in self.0.iter().chain([&("total", total)]) {
            eprintln!("{:>8.1} s  {name}", time.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_killed_with_what_it_started() {
        let file = std::env::temp_dir().join(format!("atoll-xtask-{}", std::process::id()));
        let inner = format!("sleep 2; touch '{}'", file.display());
        let script = r#"sh -c 'sh -c "$0"; true' "$0"; true"#;
        let shell = program("sh").args(["-c", script, &inner]);
        let Failure(reason) = shell.run_within(Duration::from_millis(300)).unwrap_err();
        assert!(reason.ends_with("did not end within 0 minutes"), "{reason}");
        std::thread::sleep(Duration::from_secs(3));
        assert!(!file.exists(), "the inner shell went on");
        assert!(program("true").run_within(Duration::from_secs(60)).is_ok());
        assert!(program("false").run_within(Duration::from_secs(60)).is_err());
    }
}
