//! Errors of a medium are reported: by commands that open a volume, by a check, and by servers when
//! they meet one.
#![allow(missing_docs)]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use common::{atoll, folder, fsck, listens, ok, volume, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const BLOCK: u64 = 4096;

fn output(dir: &Path, args: &[&str]) -> Output {
    atoll().current_dir(dir).args(args).stdin(Stdio::null()).output().unwrap()
}

/// The elements of one kind that `atoll dump` shows.
fn elements(dir: &Path, volume: &str, kind: &str) -> Vec<Value> {
    let said = ok(atoll().current_dir(dir).args(["dump", "--json", volume]));
    let all = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|element| element["kind"] == kind).collect()
}

fn overwrite(path: &Path, at: u64, len: u64) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&vec![0x5a; len as usize], at).unwrap();
}

/// Makes the second map block of the first group another one.
fn damage_map(dir: &Path, volume: &str) -> &'static str {
    let block = elements(dir, volume, "map")[0]["block"].as_u64().unwrap() + 1;
    overwrite(&dir.join(volume), block * BLOCK, BLOCK);
    "the second map block of group 0 was damaged"
}

/// A process, which ends with the test at the latest.
struct ServerProcess(Child);

impl ServerProcess {
    fn end(mut self) {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The map is read when the first block is taken, long after the volume was opened.
#[test]
fn servers_say_what_they_find_later() {
    let dir = folder();
    let path = dir.path();
    let file = volume(path, "v.vol", "16M");
    std::fs::create_dir(path.join("point")).unwrap();
    let write = "for i in 1 2 3; do head -c 50000 /dev/zero > $DIR/$i; sync $DIR/$i; done";
    for server in ["serve", "mount", "run"] {
        let text = damage_map(path, "v.vol");
        let log = std::fs::File::create(path.join("log")).unwrap();
        let said = || std::fs::read_to_string(path.join("log")).unwrap();
        let start = |args: &[&str]| {
            let mut command = atoll();
            command.current_dir(path).args(args).stdin(Stdio::null());
            ServerProcess(command.stderr(log.try_clone().unwrap()).spawn().unwrap())
        };
        let script = |before: &str, dir: &str| format!("{before} {}", write.replace("$DIR", dir));
        match server {
            "serve" => {
                let child = start(&["serve", "v.vol", "--socket", "s"]);
                wait_until("it serves", || listens(&path.join("s")));
                let script = script("if grep -q damaged log; then exit 1; fi;", "/vol");
                ok(atoll()
                    .current_dir(path)
                    .args(["run", "-v", "s:/vol", "--", "sh", "-ec", &script]));
                child.end();
            }
            "mount" => {
                let child = start(&["mount", "--foreground", "v.vol", "point"]);
                wait_until("it is mounted", || said().contains("Ctrl-C"));
                assert!(!said().contains(text), "{}", said());
                let mut shell = std::process::Command::new("sh");
                ok(shell.current_dir(path).args(["-ec", &script("", "point")]));
                child.end();
            }
            _ => {
                let script = script("if grep -q damaged log; then exit 1; fi;", "/vol");
                let args = ["run", "-v", "v.vol:/vol", "--", "sh", "-ec", &script];
                assert!(start(&args).0.wait().unwrap().success(), "{}", said());
            }
        }
        let lines = said();
        let lines: Vec<&str> = lines.lines().filter(|line| line.contains(text)).collect();
        assert!(lines.len() == 1 && lines[0].contains("v.vol"), "{server}: {}", said());
        // And has mended it.
        fsck(&file);
        assert_eq!(elements(path, "v.vol", "map")[0]["damaged"], serde_json::json!([false, false]));
    }
}

/// A damaged record that the last sync covers looks like a sync that was cut short. Every command
/// that opens the volume says so, and a check does in the same words.
#[test]
fn a_check_says_what_a_mount_says() {
    let dir = folder();
    let path = dir.path();
    volume(path, "v.vol", "16M");
    let server = atoll()
        .current_dir(path)
        .args(["serve", "v.vol", "--socket", "s"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let server = ServerProcess(server);
    wait_until("it serves", || listens(&path.join("s")));
    let script = "for i in 1 2 3 4 5 6 7 8; do mkdir /vol/$i; done; sync /vol";
    ok(atoll().current_dir(path).args(["run", "-v", "s:/vol", "--", "sh", "-ec", script]));
    drop(server);
    // Another file, of which nobody knows what memory it was in.
    std::fs::copy(path.join("v.vol"), path.join("copy.vol")).unwrap();
    let sb = &elements(path, "copy.vol", "superblock")[0]["superblock"];
    let ring = sb["ring_start"].as_u64().unwrap() * BLOCK;
    let mut told = 0;
    for record in elements(path, "copy.vol", "record") {
        std::fs::copy(path.join("v.vol"), path.join("copy.vol")).unwrap();
        overwrite(&path.join("copy.vol"), ring + record["position"].as_u64().unwrap(), 8);
        let mount = output(path, &["info", "--json", "copy.vol"]);
        if !mount.status.success() {
            assert_eq!(output(path, &["fsck", "copy.vol"]).status.code(), Some(4));
            continue;
        }
        let info: Value = serde_json::from_slice(&mount.stdout).unwrap();
        let notes: Vec<&str> =
            info["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        for quiet in [false, true] {
            let args = ["fsck", "copy.vol", "--quiet"];
            let check = output(path, if quiet { &args } else { &args[..2] });
            let said = String::from_utf8_lossy(&check.stdout);
            assert_eq!(check.status.code(), Some(0), "{said}");
            for note in &notes {
                assert!(said.lines().any(|line| line == *note), "{note}: {said}");
                assert!(String::from_utf8_lossy(&mount.stderr).contains(note));
            }
            assert!(!quiet || notes.is_empty() == said.is_empty(), "{said}");
        }
        told += notes.iter().filter(|note| note.contains("the last sync")).count();
    }
    assert!(told > 0, "no damage was like a sync that was cut short");
}
