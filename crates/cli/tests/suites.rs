//! Suites that others wrote, at each place where programs have files: pjdfstest, fsx, dbench,
//! stress-ng. What they are told, and which of their tests are left out and why, is in `suites/`.
//!
//! `cargo xtask suites` runs them longer.
#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::everywhere::{Everywhere, Place};
use common::{need, ok};

/// How many times as long as in the tests of every day.
fn times() -> u64 {
    let times = std::env::var("ATOLL_SUITES").ok();
    times.map_or(1, |times| times.parse().expect("ATOLL_SUITES is a number"))
}

/// A program that `cargo xtask setup` has built.
fn built(name: &str) -> PathBuf {
    // The tests' own programs are in the target folder, below the profile's.
    let target = Path::new(env!("CARGO_BIN_EXE_atoll")).ancestors().nth(2).unwrap();
    let program = target.join("suites/bin").join(name);
    assert!(program.exists(), "there is no {}: run `cargo xtask setup`", program.display());
    program
}

/// A file of the folder `suites`.
fn suites(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suites").join(name)
}

/// The tests of `suite` that are left out at `place`.
fn left_out(suite: &str, place: Place) -> Vec<String> {
    let text = std::fs::read_to_string(suites("left-out.txt")).unwrap();
    let of = format!("{suite} {place:?} ");
    let lines = text.lines().filter_map(|line| line.strip_prefix(&of));
    lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn pjdfstest() {
    let program = built("pjdfstest");
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: what users may do is tried by root");
        return;
    }
    let everywhere = Everywhere::new();
    let mut wrong = Vec::new();
    for &place in Place::all() {
        let (mut command, directory) = everywhere.command(place, 300);
        // Its status says whether any failed, which may be one that is left out.
        command.args(["sh", "-c", "chmod 755 \"$2\"; \"$0\" -c \"$1\" -p \"$2\" || true"]);
        command.arg(&program).arg(suites("pjdfstest.toml")).arg(directory);
        let said = ok(command.stdin(Stdio::null()));
        let left_out = left_out("pjdfstest", place);
        let is_left_out = |name: &str| left_out.iter().any(|part| name.contains(part.as_str()));
        let results = results(&said);
        let (passed, failed): (Vec<_>, Vec<_>) =
            results.into_iter().partition(|(_, passed)| *passed);
        assert!(passed.len() > 300, "{place:?}: {said}");
        wrong.extend(
            failed.iter().filter(|(name, _)| !is_left_out(name)).map(|of| (place, of.0.to_owned())),
        );
        wrong.extend(
            passed
                .iter()
                .filter(|(name, _)| is_left_out(name))
                .map(|of| (place, format!("{} passes", of.0))),
        );
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    everywhere.end();
}

/// The tests of a report of pjdfstest that were run, and which of them passed.
fn results(report: &str) -> Vec<(&str, bool)> {
    let result = |line: &str| match line.trim().rsplit_once(char::is_whitespace) {
        Some((_, "ok")) => Some(true),
        Some((_, "FAILED")) => Some(false),
        _ => None,
    };
    let of = |line| Some((str::split_whitespace(line).next()?, result(line)?));
    report.lines().filter_map(of).collect()
}

#[test]
fn fsx() {
    let program = built("fsx");
    let everywhere = Everywhere::new();
    for (seed, &place) in Place::all().iter().enumerate() {
        let (mut command, directory) = everywhere.command(place, 60 + 60 * times());
        command.arg(&program).arg("-f").arg(suites("fsx.toml")).arg("-P").arg(everywhere.host());
        // One that fails says how it is done again.
        command.args(["-N", &(2000 * times()).to_string(), "-S", &(seed + 1).to_string()]);
        let said = ok(command.arg(format!("{directory}/fsx")).stdin(Stdio::null()));
        assert!(said.contains("A-OK"), "{place:?}: {said}");
    }
    everywhere.end();
}

#[test]
fn dbench() {
    need("dbench", "dbench");
    let everywhere = Everywhere::new();
    for &place in Place::all() {
        let (mut command, directory) = everywhere.command(place, 60 + 5 * times());
        command.args(["dbench", "-D", directory, "-t", &(2 * times()).to_string(), "4"]);
        let said = ok(command.stdin(Stdio::null()));
        assert!(said.contains("Throughput"), "{place:?}: {said}");
        // It takes a semaphore whose number is 0, as the first one's is, for none, and goes on.
        let complains = |line: &&str| line.contains("fail") || line.contains("rror");
        let complaint = said.lines().filter(|line| !line.contains("barrier")).find(complains);
        assert_eq!(complaint, None, "{place:?}");
    }
    everywhere.end();
}

/// What of stress-ng is about files, a worker each.
const STRESSORS: [&str; 30] = [
    "access",
    "aio",
    "chmod",
    "chown",
    "dentry",
    "dir",
    "dirmany",
    "fallocate",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "hdd",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "open",
    "readahead",
    "rename",
    "seek",
    "sendfile",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "xattr",
    "dirdeep",
    "filename",
];

#[test]
fn stress_ng() {
    need("stress-ng", "stress-ng");
    let everywhere = Everywhere::new();
    for &place in Place::all() {
        let (mut command, directory) = everywhere.command(place, 60 + 10 * times());
        command.args(["stress-ng", "--verify", "--timeout", &(3 * times()).to_string()]);
        command.args(["--temp-path", directory]);
        let left_out = left_out("stress-ng", place);
        for stressor in STRESSORS.iter().filter(|name| !left_out.iter().any(|left| left == *name)) {
            command.arg(format!("--{stressor}")).arg("1");
        }
        // Files that fit.
        for (stressor, bytes) in
            [("hdd", "4m"), ("fallocate", "2m"), ("readahead", "4m"), ("sync-file", "2m")]
        {
            command.arg(format!("--{stressor}-bytes")).arg(bytes);
        }
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{place:?}: {said}");
        let complaint =
            said.lines().find(|line| line.contains(" fail:") || line.contains(" error:"));
        assert_eq!(complaint, None, "{place:?}");
    }
    everywhere.end();
}
