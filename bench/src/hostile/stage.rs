//! A server, and the users around it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::record::Broken;
use crate::served;

/// The user that the server runs as. No such users need exist.
const SERVER: u32 = 3000;
/// The victim, who may read and write.
pub const VICTIM: u32 = 3001;
/// The first stranger, who may read and write too.
pub const STRANGER: u32 = 3002;
/// The first of the users for whom there is no rule.
pub const NOBODY: u32 = 3010;

/// A server on a volume of its own.
pub struct Stage {
    folder: tempfile::TempDir,
    server: Child,
}

impl Stage {
    /// Starts `program`, or the one beside this, in a folder within `memory`.
    pub fn start(memory: &Path, program: Option<&Path>) -> Result<Stage, Broken> {
        let folder = tempfile::tempdir_in(memory)?;
        let own = |path: &Path| std::os::unix::fs::chown(path, Some(SERVER), Some(SERVER));
        own(folder.path())?;
        let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(folder.path(), open)?;
        // Where the program is built, others may not look.
        let source = program.map_or_else(served::program, |program| Ok(program.to_owned()))?;
        let program = folder.path().join("atoll");
        fs::copy(&source, &program)
            .map_err(|error| Broken(format!("{}: {error}", source.display())))?;
        let mut command = Command::new(&program);
        command.uid(SERVER).gid(SERVER).current_dir(folder.path());
        command.args(["mkfs", "--size", "4G", "v.vol"]).stdout(Stdio::null());
        if !command.status()?.success() {
            return Err(Broken("atoll mkfs failed".into()));
        }
        let mut command = Command::new(&program);
        command.uid(SERVER).gid(SERVER).current_dir(folder.path());
        command.args(["serve", "v.vol", "--socket", "socket"]);
        for user in [VICTIM, STRANGER] {
            command.arg("--allow").arg(format!("uid:{user}=rw"));
        }
        let log = fs::File::create(folder.path().join("log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let server = command.spawn()?;
        let stage = Stage { folder, server };
        let begin = Instant::now();
        while !stage.socket().exists() {
            if begin.elapsed() > Duration::from_secs(20) {
                return Err(Broken("atoll serve does not listen".into()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        super::rings::furnish(&stage.socket())?;
        Ok(stage)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The number of the server's process.
    pub fn server(&self) -> u32 {
        self.server.id()
    }

    /// Starts this program as `role` with `arguments`. It becomes the user `uid`. Its mounts are in
    /// a name space of its own.
    pub fn spawn(&self, uid: u32, role: &str, arguments: &[&str]) -> Result<Actor, Broken> {
        let mut command = Command::new("unshare");
        command.args(["-m", "--"]).arg(std::env::current_exe()?).arg(role);
        command.arg("--socket").arg(self.socket()).arg("--user").arg(uid.to_string());
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, lines) = channel();
        let output = output.ok_or_else(|| Broken("no pipe".into()))?;
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.for_each(|line| drop(sender.send(line)));
        });
        Ok(Actor { child, input, lines })
    }

    /// Tells the server to end, and whether it has within ten seconds.
    pub fn stop(&mut self) -> bool {
        let Some(server) = rustix::process::Pid::from_raw(self.server.id() as i32) else {
            return false;
        };
        let _ = rustix::process::kill_process(server, rustix::process::Signal::TERM);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(10) {
            if let Ok(Some(status)) = self.server.try_wait() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.server.kill();
        // It may be in a call that never returns.
        for _ in 0..100 {
            if !matches!(self.server.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A process of some user.
pub struct Actor {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Actor {
    /// Tells it to begin.
    pub fn begin(&mut self) -> Result<(), Broken> {
        let input = self.input.as_mut().ok_or_else(|| Broken("no pipe".into()))?;
        Ok(input.write_all(b"begin\n")?)
    }

    /// Its next line; `None` when none comes within `patience`.
    pub fn answer(&mut self, patience: Duration) -> Result<Option<String>, Broken> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Broken("it ended without a word".into())),
        }
    }

    /// Waits until it is at work, or has said why it cannot be.
    pub fn ready(&mut self, patience: Duration) -> Result<(), Broken> {
        match self.answer(patience)? {
            Some(line) if line == "ready" => Ok(()),
            Some(line) => Err(Broken(line)),
            None => Err(Broken("the stranger does not begin".into())),
        }
    }

    /// The line that it has said meanwhile, if any.
    pub fn note(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Has it end by itself.
    pub fn dismiss(mut self) {
        drop(self.input.take());
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(5) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The most memory of a process.
pub struct Peak {
    over: Arc<AtomicBool>,
    most: Arc<Mutex<(f64, f64)>>,
    watcher: JoinHandle<()>,
}

impl Peak {
    /// Looks at `process` every 10 ms from here on.
    pub fn watch(process: u32) -> Peak {
        let (over, most) = (Arc::<AtomicBool>::default(), Arc::<Mutex<(f64, f64)>>::default());
        let (seen, found) = (Arc::clone(&over), Arc::clone(&most));
        let watcher = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                let status = fs::read_to_string(format!("/proc/{process}/status"));
                let status = status.unwrap_or_default();
                let field = |name: &str| {
                    let line = status.lines().find_map(|line| line.strip_prefix(name));
                    let kib = line.and_then(|rest| rest.trim().split(' ').next()?.parse().ok());
                    kib.unwrap_or(0.0) / 1024.0
                };
                let (own, shared) = (field("RssAnon:"), field("RssShmem:"));
                let mut most = found.lock().unwrap_or_else(PoisonError::into_inner);
                *most = (most.0.max(own), most.1.max(shared));
                drop(most);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Peak { over, most, watcher }
    }

    /// The most anonymous and the most shared memory, in MiB.
    pub fn end(self) -> (f64, f64) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.watcher.join();
        *self.most.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
