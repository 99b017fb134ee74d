//! A volume that is served for the programs of a test.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use atoll_host::client::{Address, Connection};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{TempDir, atoll, folder, fsck, ok, volume, wait_until};

/// A server of a new volume, which is at /vol for what runs.
pub struct Served {
    dir: TempDir,
    server: Child,
}

impl Served {
    pub fn new() -> Served {
        Served::with(&[])
    }

    /// With more arguments of `atoll serve`.
    pub fn with(arguments: &[&str]) -> Served {
        let dir = folder();
        volume(dir.path(), "a.vol", "128M");
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let server = atoll()
            .current_dir(dir.path())
            .args(["serve", "a.vol", "--socket", "s", "--log-level", "info"])
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let served = Served { dir, server };
        wait_until("it serves", || {
            Address::find(&served.socket()).is_some_and(|place| Connection::open(&place).is_ok())
        });
        served
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn run(&self, options: &[&str]) -> Command {
        let mut command = atoll();
        command.current_dir(self.path()).args(["run", "-v", "s:/vol"]).args(options).arg("--");
        command
    }

    #[track_caller]
    pub fn script(&self, text: &str) -> String {
        ok(self
            .run(&[])
            .args(["timeout", "-s", "KILL", "120", "bash", "-euo", "pipefail", "-c", text]))
    }

    /// How many processes had a ring.
    pub fn connections(&self) -> usize {
        let log = std::fs::read_to_string(self.path().join("log")).unwrap();
        log.lines().filter(|line| line.contains("connects to")).count()
    }

    /// Lets other users reach its folder, in which the command is too.
    pub fn let_others_in(&self) {
        std::fs::set_permissions(self.path(), PermissionsExt::from_mode(0o777)).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_atoll"), self.path().join("atoll")).unwrap();
    }

    /// The server.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.server.id() as i32)
    }

    /// Waits for a server that was killed, and checks the volume.
    pub fn killed(self) {
        drop(self.was_killed());
    }

    /// The same; returns the folder, in which the volume a.vol is nobody's.
    pub fn was_killed(mut self) -> TempDir {
        assert!(!self.server.wait().unwrap().success());
        fsck(&self.path().join("a.vol"));
        std::mem::replace(&mut self.dir, folder())
    }

    /// Ends the server, which must have stayed well, and checks the volume.
    pub fn end(self) {
        drop(self.ended());
    }

    /// The same; returns the folder, in which the volume a.vol is nobody's.
    pub fn ended(mut self) -> TempDir {
        kill(self.pid(), Signal::SIGTERM).unwrap();
        assert!(self.server.wait().unwrap().success());
        fsck(&self.path().join("a.vol"));
        std::mem::replace(&mut self.dir, folder())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
