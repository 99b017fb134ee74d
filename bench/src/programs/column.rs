//! The ways to a file system: how each is started, where its files are, and how it is stopped.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::fixture::Fixture;
use super::player::Player;
use crate::atoll;
use crate::record::Broken;
use crate::served::program;
use crate::subject::{Places, Subject};

/// How large volumes are.
const BYTES: u64 = 8 << 30;
/// How long a server may take to begin and to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where `run` shows its volume.
const SHOWN: &str = "/atoll";

/// A way to a file system.
pub struct Column {
    /// Its name in the table and on the command line.
    pub name: &'static str,
    /// What it is.
    pub title: &'static str,
    /// Where its own folder is.
    on: Subject,
    /// Why it cannot be measured here, if so.
    pub lacks: fn(&Places) -> Option<&'static str>,
    /// Starts it in its own folder.
    start: fn(&Path) -> Result<Started, Broken>,
    /// Whether it is a command that begins and ends with a program.
    pub launches: bool,
    /// Whether it is others' work, whose faults are results.
    pub peer: bool,
}

/// What is there once a column has been started.
struct Started {
    /// The directory of its files, as programs name it.
    directory: PathBuf,
    /// What programs are started by; nothing where all see the files.
    by: Option<Command>,
    /// The servers, in the order in which they are stopped.
    servers: Vec<Server>,
}

/// All ways, in the order of the table.
pub const COLUMNS: [Column; 7] = [
    Column {
        name: "ext4",
        title: "the kernel's: a folder of the disk, or an image of its own where that has another",
        on: Subject::Disk,
        lacks: |places| {
            let on_disk = places.disk_name() == "ext4";
            (!on_disk).then(not_root).flatten()
        },
        start: |folder| {
            let places = Places { disk: folder.into(), memory: folder.into() };
            if places.disk_name() == "ext4" {
                return Ok(Started { directory: folder.into(), by: None, servers: vec![] });
            }
            let directory = formatted(folder)?;
            done(Command::new("mount").args(["-o", "loop"]).arg(image(folder)).arg(&directory))?;
            let servers = vec![Server::Mounted(Some(directory.clone()))];
            Ok(Started { directory, by: None, servers })
        },
        launches: false,
        peer: false,
    },
    Column {
        name: "tmpfs",
        title: "the kernel's, in memory",
        on: Subject::Tmpfs,
        lacks: |_| None,
        start: |folder| Ok(Started { directory: folder.into(), by: None, servers: vec![] }),
        launches: false,
        peer: false,
    },
    Column {
        name: "run",
        title: "atoll run -v FILE:/atoll",
        on: Subject::Disk,
        lacks: |_| None,
        start: |folder| {
            atoll::make(folder, BYTES)?;
            let by = Some(run(&atoll::volume_in(folder))?);
            Ok(Started { directory: SHOWN.into(), by, servers: vec![] })
        },
        launches: true,
        peer: false,
    },
    Column {
        name: "mount",
        title: "atoll mount FILE",
        on: Subject::Disk,
        lacks: |_| not_root(),
        start: |folder| own(folder, &[]),
        launches: false,
        peer: false,
    },
    Column {
        name: "writeback",
        title: "atoll mount --cache writeback FILE",
        on: Subject::Disk,
        lacks: |_| not_root(),
        start: |folder| own(folder, WRITES_BACK),
        launches: false,
        peer: false,
    },
    Column {
        name: "served",
        title: "atoll serve FILE, atoll mount SOCKET",
        on: Subject::Disk,
        lacks: |_| not_root(),
        start: |folder| {
            atoll::make(folder, BYTES)?;
            let socket = folder.join("socket");
            let mut serve = Command::new(program()?);
            serve.arg("serve").arg("--socket").arg(&socket).arg(atoll::volume_in(folder));
            let server = Server::start(serve, || socket.exists())?;
            let (directory, mount) = mounted(folder, &socket, &[])?;
            Ok(Started { directory, by: None, servers: vec![mount, server] })
        },
        launches: false,
        peer: false,
    },
    Column {
        name: "fuse2fs",
        title: "fuse2fs, of e2fsprogs",
        on: Subject::Disk,
        lacks: |_| {
            let is_there = ["/usr/bin/fuse2fs", "/usr/sbin/fuse2fs"]
                .iter()
                .any(|path| Path::new(path).exists());
            not_root().or((!is_there).then_some("the package fuse2fs is missing"))
        },
        start: |folder| {
            let directory = formatted(folder)?;
            let mut fuse2fs = Command::new("fuse2fs");
            fuse2fs.args(["-f", "-o", "fakeroot,default_permissions"]);
            fuse2fs.arg(image(folder)).arg(&directory);
            fuse2fs.stdout(Stdio::null());
            let server = mounting(fuse2fs, &directory)?;
            Ok(Started { directory, by: None, servers: vec![server] })
        },
        launches: false,
        peer: true,
    },
];

fn not_root() -> Option<&'static str> {
    (!rustix::process::geteuid().is_root()).then_some("mounting it is the superuser's")
}

/// Runs `command`, which must succeed.
pub fn done(command: &mut Command) -> Result<(), Broken> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(Broken(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

fn image(folder: &Path) -> PathBuf {
    folder.join("image")
}

/// Makes an image with ext4 in `folder`; returns the directory to mount it at.
fn formatted(folder: &Path) -> Result<PathBuf, Broken> {
    std::fs::File::create(image(folder))?.set_len(BYTES)?;
    done(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(image(folder)))?;
    mount_point(folder)
}

fn mount_point(folder: &Path) -> Result<PathBuf, Broken> {
    let directory = folder.join("m");
    std::fs::create_dir(&directory)?;
    Ok(directory)
}

/// `atoll run` with the volume at [`SHOWN`].
fn run(volume: &Path) -> Result<Command, Broken> {
    let mut attachment = volume.as_os_str().to_owned();
    attachment.push(":");
    attachment.push(SHOWN);
    let mut run = Command::new(program()?);
    run.args(["run", "--quiet", "-v"]).arg(attachment).arg("--");
    Ok(run)
}

/// A volume of its own, mounted with `options`.
fn own(folder: &Path, options: &[&str]) -> Result<Started, Broken> {
    atoll::make(folder, BYTES)?;
    let (directory, server) = mounted(folder, &atoll::volume_in(folder), options)?;
    Ok(Started { directory, by: None, servers: vec![server] })
}

const WRITES_BACK: &[&str] = &["--cache", "writeback"];

/// `atoll mount` of `what` with `options`, and where that is.
fn mounted(folder: &Path, what: &Path, options: &[&str]) -> Result<(PathBuf, Server), Broken> {
    let directory = mount_point(folder)?;
    let mut mount = Command::new(program()?);
    mount
        .args(["mount", "--foreground"])
        .args(options)
        .arg(what)
        .arg(&directory)
        .stderr(Stdio::null());
    let server = mounting(mount, &directory)?;
    Ok((directory, server))
}

/// A server that mounts at `directory`.
fn mounting(command: Command, directory: &Path) -> Result<Server, Broken> {
    let device = |path: &Path| std::fs::metadata(path).map(|of| of.dev());
    let before = device(directory)?;
    Server::start(command, || device(directory).is_ok_and(|now| now != before))
}

/// What is stopped with its column, or when the value goes.
enum Server {
    /// A process, which ends well when asked by SIGTERM. What it has mounted is unmounted then.
    Process(Child),
    /// A mount of the kernel's own, until it is stopped.
    Mounted(Option<PathBuf>),
}

impl Server {
    fn start(mut command: Command, is_ready: impl Fn() -> bool) -> Result<Server, Broken> {
        let child = command.stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| Broken(format!("{command:?}: {error}")))?;
        let mut server = Server::Process(child);
        let begin = Instant::now();
        while !is_ready() {
            if server.has_ended()? || begin.elapsed() > PATIENCE {
                return Err(Broken(format!("{command:?} is not ready")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    fn has_ended(&mut self) -> Result<bool, Broken> {
        let Server::Process(child) = self else { return Ok(false) };
        match child.try_wait()? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => Err(Broken(format!("a server ended with {status}"))),
        }
    }

    fn stop(&mut self) -> Result<(), Broken> {
        if self.has_ended()? {
            return Ok(());
        }
        match self {
            Server::Mounted(directory) => {
                let unmount = |at| done(Command::new("umount").arg(at));
                return directory.take().map_or(Ok(()), unmount);
            }
            Server::Process(child) => done(Command::new("kill").arg(child.id().to_string()))?,
        }
        let begin = Instant::now();
        while !self.has_ended()? {
            if begin.elapsed() > PATIENCE {
                return Err(Broken("a server does not end".into()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.stop().is_err()
            && let Server::Process(child) = self
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A column that has been started.
pub struct Seat {
    /// Which.
    pub column: &'static Column,
    /// The process that runs programs there.
    pub player: Player,
    servers: Vec<Server>,
    folder: TempDir,
}

/// Where columns are started, and with what for their programs.
pub struct Place<'a> {
    /// The disk and the memory.
    pub places: &'a Places,
    /// What programs work on.
    pub fixture: &'a Fixture,
}

impl Column {
    /// Starts it on a new file system.
    pub fn start(&'static self, place: &Place<'_>) -> Result<Seat, Broken> {
        let folder = place.places.fresh(self.on)?;
        let Started { directory, by, servers } = (self.start)(folder.path())?;
        let player = Player::start(by, &directory, place.fixture)?;
        Ok(Seat { column: self, player, servers, folder })
    }
}

impl Seat {
    /// Milliseconds until a program that does nothing has been run on a volume of its own.
    pub fn launch(&mut self) -> Result<f64, Broken> {
        let folder = tempfile::tempdir_in(self.folder.path())?;
        atoll::make(folder.path(), BYTES)?;
        let mut command = run(&atoll::volume_in(folder.path()))?;
        let begin = Instant::now();
        done(command.arg("true"))?;
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    }

    /// Ends it; each server must end well.
    pub fn stop(self) -> Result<(), Broken> {
        let Seat { mut player, mut servers, folder, .. } = self;
        player.stop()?;
        servers.iter_mut().try_for_each(Server::stop)?;
        drop(servers);
        Ok(folder.close()?)
    }
}
