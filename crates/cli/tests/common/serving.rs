//! `atoll serve` as tests run it, and programs that its clients are.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{TempDir, as_user, atoll, folder, fsck, volume};

/// A server, ended with its value.
pub struct Served {
    pub child: Child,
    log: PathBuf,
    /// Where the programs of tests run: clients of other users reach it too.
    dir: TempDir,
}

impl Served {
    /// Serves `arguments` in a folder with the volumes a.vol and b.vol at the socket `s`, and
    /// returns when it is ready.
    pub fn start(arguments: &[&str]) -> Served {
        let dir = folder();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        for name in ["a.vol", "b.vol"] {
            volume(dir.path(), name, "32M");
        }
        // Where another user can reach it.
        std::fs::copy(env!("CARGO_BIN_EXE_atoll"), dir.path().join("atoll")).unwrap();
        Served::again(dir, arguments)
    }

    pub fn again(dir: TempDir, arguments: &[&str]) -> Served {
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        Served::logging(dir, arguments, log.into())
    }

    /// As [`again`](Self::again), with standard error at `stderr`.
    pub fn logging(dir: TempDir, arguments: &[&str], stderr: Stdio) -> Served {
        let log = dir.path().join("log");
        let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        notify.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let child = atoll()
            .current_dir(dir.path())
            .args(["serve", "--socket", "s"])
            .args(arguments)
            .env("NOTIFY_SOCKET", dir.path().join("notify"))
            .stdin(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let served = Served { child, log, dir };
        let mut said = [0; 256];
        let length = notify.recv(&mut said).unwrap_or_else(|error| {
            panic!("not ready: {error}; it said: {}", std::fs::read_to_string(&served.log).unwrap())
        });
        assert!(said[..length].starts_with(b"READY=1\n"));
        std::fs::remove_file(served.dir.path().join("notify")).unwrap();
        served
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A connection that has said nothing.
    pub fn dial(&self) -> OwnedFd {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        connect(fd.as_raw_fd(), &UnixAddr::new(&self.path().join("s")).unwrap()).unwrap();
        fd
    }

    /// The server's answer to `message`, the first of a connection.
    pub fn answer(&self, message: &[u8]) -> String {
        let fd = self.dial();
        let flags = nix::sys::socket::MsgFlags::MSG_NOSIGNAL;
        let _ = nix::sys::socket::send(fd.as_raw_fd(), message, flags);
        let mut said = [0; 2048];
        let length = nix::unistd::read(&fd, &mut said).unwrap_or(0);
        String::from_utf8_lossy(&said[..length]).into_owned()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// A shell script with the volume `at` (SOCKET[/VOLUME][:PATH[:ro]]).
    pub fn run(&self, at: &str, script: &str) -> Command {
        let mut command = atoll();
        command.current_dir(self.path()).args(["run", "-v", at, "--", "sh", "-ec", script]);
        command
    }

    /// The same as the user nobody.
    pub fn run_as_user(&self, at: &str, script: &str) -> Command {
        as_user(self.path(), "666", &format!("./atoll run -v {at} -- sh -ec '{script}'"))
    }

    /// A shell that waits for commands.
    pub fn shell(&self, at: &str) -> Shell {
        let mut child = atoll()
            .current_dir(self.path())
            .args(["run", "-v", at, "--", "sh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        Shell { child, input, output }
    }

    /// Asks the server to end, and looks at what it leaves.
    pub fn stop(self) -> TempDir {
        let dir = self.ended();
        for name in ["a.vol", "b.vol"] {
            fsck(&dir.path().join(name));
        }
        dir
    }

    /// Asks the server to end.
    pub fn ended(mut self) -> TempDir {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
        std::mem::replace(&mut self.dir, folder())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A shell on a volume.
pub struct Shell {
    pub child: Child,
    pub input: Option<ChildStdin>,
    pub output: ChildStdout,
}

impl Shell {
    /// Runs a command and returns what it printed, without the last newline, and ` !` if it failed.
    pub fn does(&mut self, command: &str) -> String {
        let line = format!("{{ {command}\n}} 2>&1 || echo '!'; echo .\n");
        self.input.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        let mut said = Vec::new();
        let mut byte = [0];
        while !said.ends_with(b".\n") {
            assert_eq!(self.output.read(&mut byte).unwrap(), 1, "{command}");
            said.push(byte[0]);
        }
        said.truncate(said.len() - 2);
        String::from_utf8(said).unwrap().trim_end().replace('\n', " ")
    }

    pub fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
