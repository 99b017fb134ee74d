//! Files of a served volume that programs map: shared between mounts, with read and write, and what
//! is left when one of them is killed.
#![allow(missing_docs)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{TempDir, atoll, folder, fsck, need, ok, volume, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A process, killed with its value.
struct Running(Child);

impl Running {
    fn signal(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }

    fn succeeds(mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder with a volume that is served there, and the program of tests/c.
struct Served {
    dir: TempDir,
    server: Option<Running>,
    program: PathBuf,
}

impl Served {
    fn new() -> Served {
        let dir = folder();
        volume(dir.path(), "a.vol", "32M");
        let program = compile(dir.path(), "mappings", &[]);
        let mut served = Served { dir, server: None, program };
        served.start();
        served
    }

    fn start(&mut self) {
        let mut serve = atoll();
        serve.current_dir(self.dir.path()).args(["serve", "a.vol", "--socket", "s"]);
        serve.args(["--log-level", "warn"]);
        self.server = Some(Running(serve.stdin(Stdio::null()).spawn().unwrap()));
        // Something that is served.
        wait_until("the server listens", || {
            self.run("s:/vol", &["true"]).stderr(Stdio::null()).status().unwrap().success()
        });
    }

    /// `words` with the volume, killed after a minute.
    fn run(&self, place: &str, words: &[&str]) -> Command {
        let mut command = atoll();
        command.current_dir(self.dir.path()).args(["run", "-q", "-v", place, "--"]);
        command.args(["timeout", "-s", "KILL", "60"]).args(words).stdin(Stdio::null());
        command
    }

    fn step(&self, step: &str, file: &str) -> Command {
        self.run("s:/vol", &[self.program.to_str().unwrap(), step, file])
    }

    /// A program that stores, and has said so.
    fn stores(&self, file: &str) -> Running {
        let mut child = self.step("killed", file).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "stored");
        Running(child)
    }

    /// Ends the server as `signal` does.
    fn end(&mut self, signal: Signal) {
        let mut server = self.server.take().unwrap();
        server.signal(signal);
        server.0.wait().unwrap();
    }

    /// Content of a file, read without any mapping.
    fn bytes(&self, file: &str) -> Vec<u8> {
        let mut cat = atoll();
        cat.current_dir(self.dir.path()).args(["cat", &format!("a.vol:/{file}")]);
        let output = cat.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }
}

fn compile(dir: &Path, source: &str, arguments: &[&str]) -> PathBuf {
    need("gcc", "gcc");
    let to = dir.join(source).with_extension(arguments.concat());
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let from = from.with_extension("c");
    ok(Command::new("gcc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&to)
        .arg(from)
        .args(arguments));
    to
}

#[test]
fn two_mounts_share_a_mapping() {
    let mut served = Served::new();
    let first = Running(served.step("first", "/vol/f").spawn().unwrap());
    let second = Running(served.step("second", "/vol/f").spawn().unwrap());
    first.succeeds();
    second.succeeds();
    // A third, which maps nothing.
    let mut plain = atoll();
    plain.current_dir(served.dir.path()).args(["run", "-q", "-v", "s:/vol"]);
    assert_eq!(ok(plain.args(["--", "head", "-c", "12", "/vol/f"])), "abcdefghijkl");
    served.end(Signal::SIGTERM);
    fsck(&served.dir.path().join("a.vol"));
    let bytes = served.bytes("f");
    assert_eq!(bytes.len(), 1 << 20);
    assert!(bytes.starts_with(b"abcdefghijkl\0") && bytes.ends_with(b"\0end"));
    assert_eq!(bytes[(1 << 19) + 10], b'q');
}

#[test]
fn msync_is_of_what_was_mapped() {
    let mut served = Served::new();
    assert_eq!(ok(&mut served.step("reused", "/vol/f")), "end\n");
    served.end(Signal::SIGTERM);
    let words = [served.program.to_str().unwrap(), "reused", "/vol/g"];
    assert_eq!(ok(&mut served.run("a.vol:/vol", &words)), "end\n");
}

#[test]
fn what_is_stored_outlives_a_killed_program() {
    let mut served = Served::new();
    let mut program = served.stores("/vol/f");
    // Not written back yet, and seen all the same.
    let seen = "dd if=/vol/f bs=1 skip=8192 count=3 2>/dev/null";
    assert_eq!(ok(&mut served.run("s:/vol", &["sh", "-c", seen])), "TTT");
    served
        .run("s:/vol:ro", &[served.program.to_str().unwrap(), "looks", "/vol/f"])
        .status()
        .map(|status| assert!(status.success(), "{status}"))
        .unwrap();
    program.signal(Signal::SIGKILL);
    drop(program);
    assert_eq!(ok(&mut served.run("s:/vol", &["sh", "-c", seen])), "TTT");
    served.end(Signal::SIGTERM);
    fsck(&served.dir.path().join("a.vol"));
    let bytes = served.bytes("f");
    assert!(bytes[..5000] == [b'S'; 5000] && bytes[8192..8292] == [b'T'; 100]);
    assert_eq!(bytes.len(), 16384);
}

#[test]
fn what_is_synced_outlives_a_killed_server() {
    let mut served = Served::new();
    let program = served.stores("/vol/f");
    served.end(Signal::SIGKILL);
    drop(program);
    fsck(&served.dir.path().join("a.vol"));
    let bytes = served.bytes("f");
    assert_eq!(bytes.len(), 16384);
    assert!(bytes[..5000] == [b'S'; 5000]);
    // The rest was there or not.
    assert!(bytes[5000..].iter().all(|b| [0, b'T'].contains(b)));
    // The next server knows nothing of all that.
    served.start();
    assert_eq!(ok(&mut served.run("s:/vol", &["head", "-c", "3", "/vol/f"])), "SSS");
}

#[test]
fn sqlite_with_a_write_ahead_log_from_two_mounts() {
    need("sqlite3", "sqlite3");
    let mut served = Served::new();
    let make = "pragma journal_mode=wal; create table t(who, n);";
    let printed = ok(&mut served.run("s:/vol", &["sqlite3", "/vol/db", make]));
    assert_eq!(printed, "wal\n");
    let writer = |who: &str| {
        // One connection each that stays, and others that come and go.
        let text = format!(
            "for i in $(seq 10); do echo \"begin immediate; insert into t values({who}, $i); commit;
             select count(*) from t where who = {who};\"; done | sqlite3 -bail -cmd '.timeout 30000' /vol/db > /vol/out{who}
             for i in $(seq 11 20); do sqlite3 -bail -cmd '.timeout 30000' /vol/db \"insert into t values({who}, $i)\" || exit 1; done
             seq 10 | cmp - /vol/out{who}"
        );
        Running(served.run("s:/vol", &["sh", "-ec", &text]).spawn().unwrap())
    };
    let writers = ["1", "2", "3"].map(writer);
    writers.into_iter().for_each(Running::succeeds);
    let ask = "pragma integrity_check; select who, count(*), sum(n) from t group by who;";
    let printed = ok(&mut served.run("s:/vol", &["sqlite3", "/vol/db", ask]));
    assert_eq!(printed, "ok\n1|20|210\n2|20|210\n3|20|210\n");
    served.end(Signal::SIGTERM);
    fsck(&served.dir.path().join("a.vol"));
}
