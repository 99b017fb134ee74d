//! The daemons that are measured: each in a process of its own, ended when it is dropped. Beside
//! them the calls of the system, which have none.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::record::Broken;
use crate::served;

/// The one that is written in C, from Debian's package.
const VIRTIOFSD_C: &str = "/usr/lib/qemu/virtiofsd";
/// How long a daemon may take to listen, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A daemon, and what it serves; or none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A volume.
    AtollVolume,
    /// A folder.
    AtollFolder,
    /// A volume, by a device that tells of changes and has a window.
    AtollVolumeKept,
    /// A folder, by a device whose answers hold for a second, and which has a window.
    AtollFolderKept,
    /// virtiofsd in C.
    C,
    /// virtiofsd in Rust.
    Rust(PathBuf),
    /// No daemon: calls of the system, on a folder of the same disk.
    Native,
}

impl Kind {
    /// The stock daemons that there are.
    pub fn stock(rust: Option<&Path>) -> Vec<Kind> {
        let c = Path::new(VIRTIOFSD_C).exists().then_some(Kind::C);
        if c.is_none() {
            eprintln!("no {VIRTIOFSD_C}: the package qemu-system-common has it");
        }
        c.into_iter().chain(rust.map(|path| Kind::Rust(path.to_owned()))).collect()
    }

    /// Its name on a command line.
    pub fn word(&self) -> &'static str {
        match self {
            Kind::AtollVolume => "volume",
            Kind::AtollFolder => "directory",
            Kind::AtollVolumeKept => "volume-kept",
            Kind::AtollFolderKept => "directory-kept",
            Kind::C => "c",
            Kind::Rust(_) => "rust",
            Kind::Native => "native",
        }
    }

    /// Whether it is the device that is judged.
    pub fn is_atoll(&self) -> bool {
        !self.is_stock() && *self != Kind::Native
    }

    /// Whether it is a stock daemon.
    pub fn is_stock(&self) -> bool {
        matches!(self, Kind::C | Kind::Rust(_))
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::AtollVolume => "Atoll, volume",
            Kind::AtollFolder => "Atoll, directory",
            Kind::AtollVolumeKept => "volume, told, dax",
            Kind::AtollFolderKept => "directory, 1 s, dax",
            Kind::C => "virtiofsd (C)",
            Kind::Rust(_) => "virtiofsd (Rust)",
            Kind::Native => "native calls",
        }
    }
}

/// The command `atoll`: `program`, or the one beside this program.
pub fn atoll(program: Option<&Path>) -> Result<PathBuf, Broken> {
    program.map_or_else(served::program, |program| Ok(program.to_owned()))
}

/// A daemon that runs; of native calls only the folder.
pub struct Daemon {
    folder: tempfile::TempDir,
    child: Option<Child>,
}

impl Daemon {
    /// Starts one, with an empty folder or volume within `disk`.
    pub fn start(kind: &Kind, disk: &Path, program: Option<&Path>) -> Result<Daemon, Broken> {
        let folder = tempfile::tempdir_in(disk)?;
        let path = std::path::absolute(folder.path())?;
        let source = path.join("source");
        fs::create_dir(&source)?;
        let socket = path.join("socket");
        let mut command = match kind {
            Kind::AtollVolume
            | Kind::AtollFolder
            | Kind::AtollVolumeKept
            | Kind::AtollFolderKept => {
                let program = atoll(program)?;
                let of_volume = matches!(kind, Kind::AtollVolume | Kind::AtollVolumeKept);
                if of_volume {
                    let mut mkfs = Command::new(&program);
                    mkfs.args(["mkfs", "--size", "1G"]).arg(path.join("v.vol"));
                    if !mkfs.stdout(Stdio::null()).status()?.success() {
                        return Err(Broken("atoll mkfs failed".into()));
                    }
                }
                let mut command = Command::new(&program);
                let served = if of_volume { "v.vol" } else { "source" };
                let kept = match kind {
                    Kind::AtollVolumeKept => ",cache=told,dax=256M",
                    Kind::AtollFolderKept => ",cache=1,dax=256M",
                    _ => "",
                };
                command.arg("serve").arg(path.join(served)).arg("--socket").arg(path.join("rings"));
                command.arg("--vhost-user").arg(format!("{}{kept}", socket.display()));
                command
            }
            Kind::C => {
                let mut command = Command::new(VIRTIOFSD_C);
                command.arg("-f").arg(format!("--socket-path={}", socket.display()));
                command.arg("-o").arg(format!("source={}", source.display()));
                command.args(["-o", "cache=auto", "-o", "sandbox=chroot"]);
                command
            }
            Kind::Rust(program) => {
                let mut command = Command::new(program);
                command.arg("--socket-path").arg(&socket).arg("--shared-dir").arg(&source);
                command.args(["--cache", "auto", "--sandbox", "chroot"]);
                command
            }
            Kind::Native => return Ok(Daemon { folder, child: None }),
        };
        command.current_dir(&path).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(File::create(path.join("log"))?).spawn()?;
        let mut daemon = Daemon { folder, child: Some(child) };
        let begin = Instant::now();
        while !daemon.socket().exists() {
            let ended = daemon.has_ended()?;
            if ended || begin.elapsed() > PATIENCE {
                let log = fs::read_to_string(daemon.folder.path().join("log")).unwrap_or_default();
                return Err(Broken(format!("{} does not listen: {log}", kind.name())));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // The socket's name comes before it listens.
        std::thread::sleep(Duration::from_millis(200));
        Ok(daemon)
    }

    /// Whether there is a process, and not only the folder.
    pub fn is_process(&self) -> bool {
        self.child.is_some()
    }

    fn has_ended(&mut self) -> Result<bool, Broken> {
        Ok(self.child.as_mut().map(Child::try_wait).transpose()?.flatten().is_some())
    }

    /// The folder that it serves, or that native calls are for; a volume's is empty.
    pub fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    /// Where its front end connects.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The time that its threads, and those of the processes that it has started, have had of
    /// processors.
    pub fn processor_time(&self) -> Result<Duration, Broken> {
        let parent = |pid: u32| -> Option<u32> {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
        };
        let all: Vec<(u32, u32)> = fs::read_dir("/proc")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
            .filter_map(|pid| parent(pid).map(|parent| (pid, parent)))
            .collect();
        let mut own: Vec<u32> = self.child.iter().map(Child::id).collect();
        let mut at = 0;
        while let Some(&pid) = own.get(at) {
            own.extend(all.iter().filter(|(_, parent)| *parent == pid).map(|(pid, _)| pid));
            at += 1;
        }
        let of_thread = |path: PathBuf| -> Option<u64> {
            let text = fs::read_to_string(path.join("schedstat")).ok()?;
            text.split(' ').next()?.parse().ok()
        };
        let threads = own.iter().filter_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok());
        let times = threads.flatten().filter_map(|entry| of_thread(entry.ok()?.path()));
        Ok(Duration::from_nanos(times.sum()))
    }

    /// Ends it.
    pub fn end(mut self) -> Result<(), Broken> {
        let Some(child) = &self.child else { return Ok(()) };
        if let Some(pid) = Pid::from_raw(child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begin = Instant::now();
        while !self.has_ended()? {
            if begin.elapsed() > PATIENCE {
                return Err(Broken("a daemon does not end".into()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
