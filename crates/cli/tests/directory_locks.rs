//! Locks of clients and of the host's programs on a directory that is served.
#![allow(missing_docs)]

mod common;

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::serving::Served;
use common::{atoll, folder, need, ok, volume, wait_until, ways};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A server of the directory `host`, with what a test's clients run.
struct Scene {
    served: Served,
    calls: PathBuf,
}

fn scene(directory: &str) -> Scene {
    let dir = folder();
    // The volumes that tests of servers look at.
    for name in ["a.vol", "b.vol"] {
        volume(dir.path(), name, "32M");
    }
    std::fs::create_dir(dir.path().join("host")).unwrap();
    let calls = ways::compile("../../../../vm/c/calls.c", dir.path(), "calls", &[]);
    Scene { served: Served::again(dir, &[directory]), calls }
}

impl Scene {
    /// A new file of the host's, open.
    fn file(&self, name: &str) -> File {
        let path = self.path(name);
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.served.path().join("host").join(name)
    }

    /// A client that runs a script.
    fn client(&self, script: &str) -> Command {
        let mut command = atoll();
        command.current_dir(self.served.path()).args(["run", "-q", "-v", "s/host:/vol"]);
        command.args(["--", "sh", "-ec", script]).stdin(Stdio::null());
        command
    }

    /// The same with `calls`.
    fn calls(&self, what: &str, name: &str) -> Command {
        self.client(&format!("exec {} {what} /vol/{name}", self.calls.display()))
    }

    /// A client that has taken a lock, or is to get it.
    fn taking(&self, what: &str, name: &str) -> (Child, PathBuf) {
        let said = self.served.path().join(format!("said-{what}"));
        let to = File::create(&said).unwrap();
        (self.calls(what, name).stdout(to).spawn().unwrap(), said)
    }
}

fn says(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// A record lock of this process, or with F_UNLCK none.
fn record(file: &File, kind: i32, start: i64, len: i64) -> Result<(), Errno> {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_SETLK(&lock)).map(drop)
}

const READ: i32 = libc::F_RDLCK;
const WRITE: i32 = libc::F_WRLCK;
const NONE: i32 = libc::F_UNLCK;

#[test]
fn record_locks_hold_between_clients_and_the_host() {
    let scene = scene("host");
    let file = scene.file("f");
    // A client's bytes are locked for the host, and no others, until it is killed.
    let (mut holder, said) = scene.taking("hold", "f");
    wait_until("the client holds", || says(&said) == "held\n");
    for kind in [READ, WRITE] {
        assert_eq!(record(&file, kind, 9, 1), Err(Errno::EAGAIN));
        assert_eq!(record(&file, kind, 0, 0), Err(Errno::EAGAIN));
    }
    assert_eq!(record(&file, WRITE, 10, 0), Ok(()));
    let pid = common::children(holder.id(), "calls");
    let pid = if pid.is_empty() { vec![holder.id() as i32] } else { pid };
    pid.iter().for_each(|&pid| kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap());
    let _ = holder.wait();
    wait_until("the lock has gone", || record(&file, WRITE, 0, 0) == Ok(()));
    // The host's are for clients: at once refused, or waited for.
    let refused = scene.calls("lock", "f").output().unwrap();
    let printed = String::from_utf8_lossy(&refused.stdout);
    assert_eq!(printed, "fcntl: Resource temporarily unavailable\n");
    let (mut waiter, said) = scene.taking("wait", "f");
    // Meanwhile nobody else waits.
    for _ in 0..5 {
        assert_eq!(ok(&mut scene.client("echo x > /vol/g; cat /vol/g")), "x\n");
        assert_eq!(says(&said), "");
    }
    // Whoever gives up leaves no lock.
    let script = format!("timeout -s KILL 1 {} wait /vol/f || echo $?", scene.calls.display());
    assert_eq!(ok(&mut scene.client(&script)), "137\n");
    assert_eq!(record(&file, READ, 0, 5), Ok(()));
    assert_eq!(says(&said), "");
    assert_eq!(record(&file, NONE, 0, 0), Ok(()));
    assert!(waiter.wait().unwrap().success());
    assert_eq!(says(&said), "held\n");
    wait_until("the lock has gone", || record(&file, WRITE, 0, 0) == Ok(()));
    // Locks for reading do not exclude each other.
    assert_eq!(record(&file, READ, 0, 0), Ok(()));
    let script = "sqlite3 /vol/db 'create table if not exists t (a); select 1'";
    need("sqlite3", "sqlite3");
    assert_eq!(ok(&mut scene.client(script)), "1\n");
    scene.served.stop();
}

#[test]
fn whole_files_are_locked_between_clients_and_the_host() {
    let scene = scene("host");
    need("flock", "util-linux");
    let file = scene.file("f");
    file.lock().unwrap();
    let script = "flock -n /vol/f true || echo refused; flock -sn /vol/f true || echo refused";
    assert_eq!(ok(&mut scene.client(script)), "refused\nrefused\n");
    let mut waiter = scene.client("flock /vol/f echo had");
    let waiter = waiter.stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    file.unlock().unwrap();
    assert_eq!(waiter.wait_with_output().unwrap().stdout, b"had\n");
    // The other way round, for reading and for writing, also where a client may only read.
    let held = |how: &str| {
        let ready = scene.served.path().join("ready");
        let go = scene.served.path().join("go");
        let (said, wait) = (ready.display(), go.display());
        let script = format!(
            "exec 7< /vol/f; flock {how} 7; touch {said}; until test -e {wait}; do sleep 0.02; done"
        );
        let child = scene.client(&script).spawn().unwrap();
        wait_until("it holds", || ready.exists());
        std::fs::remove_file(&ready).unwrap();
        (child, go)
    };
    for how in ["-s", "-x"] {
        let (mut child, go) = held(how);
        assert!(matches!(file.try_lock(), Err(TryLockError::WouldBlock)), "{how}");
        let shared = file.try_lock_shared();
        assert_eq!(shared.is_ok(), how == "-s");
        let _ = file.unlock();
        File::create(&go).unwrap();
        assert!(child.wait().unwrap().success());
        wait_until("it has let go", || file.try_lock().is_ok());
        file.unlock().unwrap();
        std::fs::remove_file(&go).unwrap();
    }
    scene.served.stop();
}

/// A database that clients and the host change at the same time.
#[test]
fn a_database_is_shared_with_the_host() {
    need("sqlite3", "sqlite3");
    let scene = scene("host");
    let sql = "sqlite3 -cmd '.timeout 60000'";
    let made = format!(
        "{sql} {} 'create table t (n int); insert into t values (0)'",
        scene.path("db").display()
    );
    ok(Command::new("sh").args(["-ec", &made]));
    let script = |at: &str| {
        format!(
            "for i in $(seq 25); do {sql} {at} 'begin immediate; update t set n = n + 1; commit'; done"
        )
    };
    let host = scene.path("db").display().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| ok(Command::new("sh").args(["-ec", &script(&host)])));
        for _ in 0..2 {
            scope.spawn(|| ok(&mut scene.client(&script("/vol/db"))));
        }
    });
    let asked = format!("{sql} {host} 'select n from t; pragma integrity_check'");
    assert_eq!(ok(Command::new("sh").args(["-ec", &asked])), "75\nok\n");
    scene.served.stop();
}
